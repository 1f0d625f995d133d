"""NebulaFL keeps the contract of a protocol (the conformance kit, simulated runtime)."""

import pytest

from fedactors.protocols.nebulafl.plugin import PROTOCOL
from fedactors.testing.conformance import check_protocol

pytestmark = pytest.mark.slow


def test_the_conformance_kit_has_no_remark():
    settings = {
        "num_centers": 2,
        "num_containers": 8,
        "active_per_center": 2,
        "duration": 1500.0,
        "rotation_interval": 400.0,
        "evaluation_interval": 500.0,
        "local_epochs": 1,
        "batch_size": 200,
    }
    check_protocol(PROTOCOL, config=settings, on_ray=False)

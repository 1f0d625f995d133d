"""The conformance kit on TablePuppet; on Ray see tests/testing/test_conformance.py."""

from __future__ import annotations

import pytest

from fedactors.protocols.tablepuppet.plugin import PROTOCOL
from fedactors.testing.conformance import check_protocol

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("algorithm", ["rfl-admm", "rfl-sgd-v"])
def test_it_conforms_in_simulation(algorithm):
    check_protocol(PROTOCOL, config={"num_rounds": 2, "algorithm": algorithm}, data="orders:300", on_ray=False)

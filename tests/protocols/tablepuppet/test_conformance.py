"""The conformance kit on TablePuppet: what a stranger's plugin is asked as well."""

from __future__ import annotations

import pytest

from fedactors.testing import check_protocol
from protocols.tablepuppet.plugin import PROTOCOL

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("algorithm", ["rfl-admm", "rfl-sgd-v"])
def test_it_conforms_in_simulation(algorithm):
    check_protocol(PROTOCOL, config={"rounds": 2, "algorithm": algorithm}, data="orders:300", on_ray=False)


@pytest.mark.ray
def test_it_conforms_on_ray(ray_cluster):
    check_protocol(PROTOCOL, config={"rounds": 3}, data="orders:300")

"""Peers that try what is not theirs in a run of the plain horizontal methods, on both runtimes."""

from __future__ import annotations

import pytest

from fedactors.protocols.horizontal.data import load_data
from fedactors.protocols.horizontal.run import run
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.horizontal.federation import changed
from tests.protocols.spies import spy_on

RUNTIMES = [
    pytest.param(SimulatedRuntime, id="simulated"),
    pytest.param(RayRuntime, id="ray", marks=pytest.mark.ray),
]
SITE = "fedactors.protocols.horizontal.actors:ClientProcess"
COORDINATOR = "fedactors.protocols.horizontal.actors:HorizontalServer"


@pytest.fixture(autouse=True)
def cluster(request):
    if request.node.get_closest_marker("ray"):
        request.getfixturevalue("ray_cluster")


@pytest.mark.parametrize("make", RUNTIMES)
def test_a_site_answers_its_server_only_and_the_server_its_driver(make):
    config = changed(num_clients=2, num_rounds=1, num_training=80)
    runtime = make(seed=0)
    attempts = spy_on(
        runtime,
        client=("client-0", SITE, ("greet",)),
        client_2=("server", COORDINATOR, ()),
        server=("server", COORDINATOR, ()),
        center_2=("server", COORDINATOR, ()),
    )
    result = runtime.execute(lambda: run(config, load_data(config, "digits", 0), runtime))
    assert result.rounds == 1
    assert len(attempts()) == 4
    assert min(attempts()) >= 9
    assert {total.type for total in runtime.ledger.totals() if total.receiver.startswith("spy")} <= {"error"}

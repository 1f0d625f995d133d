"""Actors' states from a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedactors.actors.actor import Client
from fedactors.data.new_rows import StoredState, actor_state
from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec
from fedactors.learning.optimizers import Network, OptimizerSpec
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import Memory


class Worker(Client):
    """Has a network, a plain value, an array and tensors by name."""

    state = ("network", "rows", "mean", "parameters")

    async def load(self) -> None:
        spec = ModelSpec(name="linear", inputs=(2,), outputs=1)
        self.network = Network(spec, OptimizerSpec(), 0)
        self.rows = {"order": [1, 2], "names": ("a", "b")}
        self.mean = np.arange(3.0)
        self.parameters = {"w": torch.ones(2)}


@pytest.fixture(scope="module")
def states() -> dict[str, bytes]:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory)

    async def main() -> None:
        runtime.spawn(Worker, "bank/worker-0")
        await runtime.start()
        await runtime.checkpoint()

    runtime.execute(main)
    return dict(memory.snapshots[0][1].actors)


def test_an_actors_state_is_read_as_it_was_declared(states: dict[str, bytes]) -> None:
    state = actor_state(states, "bank/worker-0")
    assert list(state) == ["network", "rows", "mean", "parameters"]
    assert state["rows"] == {"order": [1, 2], "names": ("a", "b")}
    np.testing.assert_array_equal(state["mean"], [0.0, 1.0, 2.0])
    assert torch.equal(state["parameters"]["w"], torch.ones(2))
    fresh = Network(ModelSpec(name="linear", inputs=(2,), outputs=1), OptimizerSpec(), 1)
    fresh.load_state_dict(state["network"])
    expected = Network(ModelSpec(name="linear", inputs=(2,), outputs=1), OptimizerSpec(), 0)
    np.testing.assert_array_equal(fresh.vector, expected.vector)
    assert "absent" not in state


def test_a_stored_state_reads_as_the_state_does(states: dict[str, bytes]) -> None:
    name = "bank/worker-0"
    read = StoredState(actor=name, frame=states[name]).read()
    assert set(read) == set(actor_state(states, name))


def test_who_has_no_part_is_named_with_those_who_have(states: dict[str, bytes]) -> None:
    with pytest.raises(BadInput, match=r"'shop' has no part of the model \(the checkpoint holds bank/worker-0\)"):
        actor_state(states, "shop/worker-0")
    with pytest.raises(BadInput, match="the checkpoint of bank/worker-0 is corrupt"):
        actor_state({"bank/worker-0": states["bank/worker-0"][:-1]}, "bank/worker-0")

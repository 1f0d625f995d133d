"""What protocols share after training: states from a checkpoint, a party's files, outputs by task, shared rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedactors.data.blocks import PartyBlock
from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import Network
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.roles import Client
from fedactors.runtime.simulated import SimulatedRuntime
from fedactors.serving import actor_state, shared_rows, task_predictions, write_part
from tests.runtime.cast import Memory
from tests.tiny import TinyConfig


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


def test_who_has_no_part_is_named_with_those_who_have(states: dict[str, bytes]) -> None:
    with pytest.raises(BadInput, match=r"'shop' has no part of the model \(the checkpoint holds bank/worker-0\)"):
        actor_state(states, "shop/worker-0")
    with pytest.raises(BadInput, match="the checkpoint of bank/worker-0 is corrupt"):
        actor_state({"bank/worker-0": states["bank/worker-0"][:-1]}, "bank/worker-0")


def test_a_part_is_arrays_and_how_to_build_the_model_again(tmp_path: Path) -> None:
    arrays = {"mean": np.arange(3.0), "theta": {"w": torch.ones(2), "b": np.zeros(1)}}
    paths = write_part(tmp_path, "org/bank", arrays=arrays, facts={"names": ("x", "y")}, config=TinyConfig())
    assert [path.name for path in paths] == ["org-bank.npz", "org-bank.json"]
    with np.load(paths[0]) as found:
        assert sorted(found) == ["mean", "theta/b", "theta/w"]
        np.testing.assert_array_equal(found["theta/w"], [1.0, 1.0])
    told = json.loads(paths[1].read_text())
    assert told["party"] == "org/bank"
    assert told["names"] == ["x", "y"]
    assert told["arrays"] == ["mean", "theta/b", "theta/w"]
    assert told["config"]["num_rounds"] == 4


def test_outputs_are_read_by_task() -> None:
    output = np.array([[0.0], [np.log(3.0)]])
    np.testing.assert_allclose(task_predictions("binary", output), [0.5, 0.75])
    np.testing.assert_allclose(task_predictions("binary", output[:, 0]), [0.5, 0.75])
    np.testing.assert_array_equal(task_predictions("multiclass", np.array([[1.0, 2.0], [3.0, 0.0]])), [1, 0])
    scaled = task_predictions("regression", np.array([[1.0], [-2.0]]), label_mean=10.0, label_deviation=2.0)
    np.testing.assert_array_equal(scaled, [12.0, 6.0])


def block(ids: list[Any]) -> PartyBlock:
    return PartyBlock(
        origin="test",
        ids=np.array(ids),
        features=np.zeros((len(ids), 1), np.float32),
        feature_names=("x",),
        keeps_scale=np.array([False]),
    )


def test_shared_rows_follow_the_label_partys_order() -> None:
    rows = shared_rows({"bank": block([3, 1, 2]), "shop": block([1, 4, 3])}, "bank")
    assert {party: list(found) for party, found in rows.items()} == {"bank": [0, 1], "shop": [2, 0]}
    with pytest.raises(BadInput, match="the parties share no row id"):
        shared_rows({"bank": block([1]), "shop": block([2])}, "bank")

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from fedactors.learning.optimizers import OptimizerSpec, OptimizerState
from fedactors.protocols.pubsub_vfl import replicas
from fedactors.protocols.pubsub_vfl.actors import Replica
from fedactors.protocols.pubsub_vfl.messages import Parameters
from fedactors.protocols.pubsub_vfl.replicas import add_changes, weighted_mean
from fedactors.runtime import snapshots
from tests.protocols.pubsub_vfl.runs import config_of, simulate

SETTINGS = {"sync_unit": "batch", "num_active_workers": 2, "num_passive_workers": 3, "max_in_flight": 8}


def test_interval_grows_as_the_formula_says():
    assert [replicas.sync_gap(t, 5) for t in range(1, 10)] == [1, 1, 1, 2, 3, 4, 5, 5, 5]


def test_epochs_that_end_with_an_average():
    assert [t for t in range(1, 26) if replicas.syncs(t, 5)] == [1, 2, 3, 4, 10, 15, 20, 25]


def test_other_schedules():
    assert [replicas.sync_gap(t, 5, "decreasing") for t in range(1, 10)] == [5, 5, 5, 4, 3, 2, 1, 1, 1]
    assert all(replicas.syncs(t, 5, "every") for t in range(1, 9))
    assert not any(replicas.syncs(t, 5, "never") for t in range(1, 9))


def test_averages_are_weighted_and_changes_add_up():
    a, b = np.array([1.0, 2.0], np.float32), np.array([4.0, 8.0], np.float32)
    assert weighted_mean([a, b], [1.0, 2.0]).tolist() == [3.0, 6.0]
    assert weighted_mean([a, b], [1.0, 1.0]).dtype == np.float32
    assert [t.tolist() for t in add_changes(add_changes([], [a]), [b])] == [[5.0, 10.0]]


class OneParameter:
    """A network of one parameter that a gradient is added to."""

    def __init__(self) -> None:
        self.vector = np.zeros(1)

    def apply(self, gradient):
        self.vector = self.vector + gradient

    def load(self, vector):
        self.vector = np.asarray(vector)


class SlowServer:
    """Answers with 10 when it is told to."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, float]] = []
        self.answer = asyncio.Event()

    async def mix(self, parameters: Parameters) -> Parameters:
        self.pushed.append((parameters.step, float(parameters.vectors[0][0])))
        await self.answer.wait()
        return Parameters(0, parameters.step, 1.0, (np.array([10.0]),))


async def mix_during(replica, work, server):
    async with replica.mixing(server):
        await work


def test_a_worker_trains_on_while_it_mixes_and_keeps_what_it_learned():
    server = SlowServer()
    replica = Replica([OneParameter()], config_of(sync_interval=5))

    async def work():
        for _ in range(3):
            replica.step([np.ones(1)])
            await asyncio.sleep(0)
        assert server.pushed == [(1, 1.0)], "one push at a time"
        server.answer.set()
        while replica.vectors[0][0] == 3.0:
            await asyncio.sleep(0)
        # the mean of 10 and the two steps that were taken meanwhile
        assert replica.vectors[0][0] == 12.0
        for _ in range(8):
            replica.step([np.ones(1)])
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(mix_during(replica, work(), server))
    # the steps 2 and 3 were due and overtaken, then 4, 10 (15 is not reached) as the schedule has it
    assert [step for step, _ in server.pushed] == [1, 4, 10]


def test_failures_of_mixing_are_raised():
    class Gone:
        async def mix(self, parameters):
            raise ConnectionError("gone")

    async def work():
        replica.step([np.ones(1)])
        await asyncio.sleep(0)

    replica = Replica([OneParameter()], config_of())
    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(mix_during(replica, work(), Gone()))


@pytest.mark.slow
def test_replicas_mix_during_epochs_and_are_one_model_after_each(monkeypatch):
    pushes: list[tuple[str, int]] = []
    original = replicas.AveragingServer.mix

    async def mix(self, parameters):
        pushes.append((self.caller, parameters.step))
        mean = await original(self, parameters)
        newest = np.mean([vectors[0] for vectors in self._newest.values()], axis=0)
        assert mean.vectors[0] == pytest.approx(newest, abs=1e-6)
        return mean

    monkeypatch.setattr(replicas.AveragingServer, "mix", mix)
    done = simulate(**SETTINGS)
    assert {worker for worker, _ in pushes} == {
        *(f"active/worker-{i}" for i in range(2)),
        *(f"passive/worker-{i}" for i in range(3)),
    }
    for index in range(1, 4):
        for party, count in (("active", 2), ("passive", 3)):
            one, *others = (done.vectors(index, f"{party}/worker-{i}") for i in range(count))
            for other in others:
                for a, b in zip(one, other, strict=True):
                    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [1, 2])
def test_resume_is_byte_identical(epoch):
    whole = simulate(**SETTINGS)
    resumed = simulate(**SETTINGS, resume=whole.recorder.all[epoch])
    assert resumed.recorder.rounds == whole.recorder.rounds[epoch:]
    assert resumed.result.metrics == whole.result.metrics


@pytest.mark.slow
def test_a_lost_worker_is_replaced_and_training_goes_on():
    done = simulate(**SETTINGS, runtime={"faults": {"passive/worker-1": 0.01}})
    assert done.result.rounds == 3


@pytest.mark.slow
def test_one_worker_a_side_has_nobody_to_mix_with():
    alone = {"num_active_workers": 1, "num_passive_workers": 1, "max_in_flight": 1}
    batch = simulate(**{**SETTINGS, **alone})
    epoch = simulate(**alone)
    assert batch.recorder.rounds == epoch.recorder.rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_server_steps_as_torch_does(name):
    rng = np.random.default_rng(3)
    start, gradients = rng.normal(size=20), rng.normal(size=(7, 20))
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    theirs = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[name]([parameter], lr=0.1)
    vectors: list[Any] = [start]
    states = [OptimizerState()]
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient)
        theirs.step()
        vectors, states = replicas.steps(OptimizerSpec(name=name, learning_rate=0.1), vectors, [gradient], states)
    np.testing.assert_allclose(vectors[0], parameter.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["pubsub-vfl", "avfl-ps"])
def test_a_server_that_steps_takes_each_batch_and_leaves_one_model(algorithm):
    config = {"algorithm": algorithm, "optimizer_at": "server", "num_epochs": 2, "batch_size": 32}
    done = simulate(**config, num_active_workers=3, num_passive_workers=3)
    num_batches = -(-done.result.extra["num_rows"] // 32)
    for epoch in (0, 1, 2):
        for party in ("active", "passive"):
            content = snapshots.unseal(done.recorder.all[epoch].actors[f"{party}/ps"], party)["state"]
            assert content["num_steps"][1] == epoch * num_batches
            first, *others = (done.vectors(epoch, f"{party}/worker-{i}") for i in range(3))
            for other in others:
                for one, two in zip(first, other, strict=True):
                    assert np.array_equal(one, two)

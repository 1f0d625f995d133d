import asyncio

import numpy as np
import pytest

from protocols.pubsub_vfl import servers
from protocols.pubsub_vfl.messages import Parameters
from protocols.pubsub_vfl.mixing import MixingReplica
from tests.protocols.pubsub_vfl.runs import config_of, simulate

SETTINGS = {"sync_unit": "batch", "num_active_workers": 2, "num_passive_workers": 3, "max_in_flight": 8}


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
        return Parameters("party", 0, parameters.step, 1.0, (np.array([10.0]),))


def test_a_worker_trains_on_while_it_mixes_and_keeps_what_it_learned():
    server = SlowServer()
    replica = MixingReplica("a", OneParameter(), config=config_of(sync_interval=5))

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

    asyncio.run(replica.mix_during(work(), server))
    # the steps 2 and 3 were due and overtaken, then 4, 10 (15 is not reached) as the schedule has it
    assert [step for step, _ in server.pushed] == [1, 4, 10]


def test_failures_of_mixing_are_raised():
    class Gone:
        async def mix(self, parameters):
            raise ConnectionError("gone")

    async def work():
        replica.step([np.ones(1)])
        await asyncio.sleep(0)

    replica = MixingReplica("a", OneParameter(), config=config_of())
    with pytest.raises(ConnectionError, match="gone"):
        asyncio.run(replica.mix_during(work(), Gone()))


def test_replicas_mix_during_epochs_and_are_one_model_after_each(monkeypatch):
    pushes: list[tuple[str, int]] = []
    original = servers.AveragingServer.mix

    async def mix(self, parameters):
        pushes.append((parameters.worker, parameters.step))
        mean = await original(self, parameters)
        newest = np.mean([vectors[0] for vectors in self._newest.values()], axis=0)
        assert mean.vectors[0] == pytest.approx(newest, abs=1e-6)
        return mean

    monkeypatch.setattr(servers.AveragingServer, "mix", mix)
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


@pytest.mark.parametrize("epoch", [1, 2])
def test_resume_is_byte_identical(epoch):
    whole = simulate(**SETTINGS)
    resumed = simulate(**SETTINGS, resume=whole.recorder.all[epoch])
    assert resumed.recorder.rounds == whole.recorder.rounds[epoch:]
    assert resumed.result.metrics == whole.result.metrics


def test_a_lost_worker_is_replaced_and_training_goes_on():
    done = simulate(**SETTINGS, runtime={"faults": {"passive/worker-1": 0.01}})
    assert done.result.rounds == 3


def test_one_worker_a_side_has_nobody_to_mix_with():
    alone = {"num_active_workers": 1, "num_passive_workers": 1, "max_in_flight": 1}
    batch = simulate(**{**SETTINGS, **alone})
    epoch = simulate(**alone)
    assert batch.recorder.rounds == epoch.recorder.rounds

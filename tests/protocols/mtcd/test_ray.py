"""The same numbers on Ray, the loss of a client's process, and tokens that really roam at once."""

import asyncio
import os
import signal

import pytest

from fedactors.errors import PartyLost
from fedactors.protocols.mtcd.data import load_data
from fedactors.protocols.mtcd.run import run
from fedactors.runtime.ray.runtime import RayRuntime
from tests.protocols.mtcd.running import Kept, config_of, merged, simulate

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def on_ray(words, *, resume=None):
    config = config_of(merged(words))
    data = load_data(config, "synthetic", 3)
    kept = Kept()
    runtime = RayRuntime(recorder=kept, seed=3, reproducible_noise=True)
    result = runtime.execute(lambda: run(config, data, runtime), resume)
    return result, kept, runtime


def assert_same(ours, theirs):
    assert [index for index, _ in ours.rounds] == [index for index, _ in theirs.rounds]
    for (_, a), (_, b) in zip(ours.rounds, theirs.rounds, strict=True):
        assert a == pytest.approx(b, rel=1e-12)


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    "words",
    [
        "num_clients=4 topology=complete",
        "num_clients=4 algorithm=stcd",
        "num_clients=4 algorithm=dcpa topology=ring",
        "num_clients=4 mode=overlapping batch_size=10 topology=ring noise=gaussian compression=quantise",
    ],
)
def test_both_runtimes_give_equal_numbers(words):
    _, simulated, virtual = simulate(words)
    _, kept, runtime = on_ray(words)
    assert_same(kept, simulated)
    counted = {(t.sender, t.receiver, t.type): (t.messages, t.bytes) for t in virtual.ledger.totals() if t.bytes}
    found = {(t.sender, t.receiver, t.type): (t.messages, t.bytes) for t in runtime.ledger.totals() if t.bytes}
    assert found == counted


def test_a_run_begun_in_simulation_goes_on_on_ray():
    words = "num_clients=4 topology=complete"
    _, simulated, _ = simulate(words)
    point = simulated.checkpoints[2][1]
    _, kept, _ = on_ray(words, resume=point)
    simulated.rounds = simulated.rounds[3:]
    assert_same(kept, simulated)


class Killing(RayRuntime):
    """Kills a client with SIGKILL some seconds after the driver's first call of a method, or that of round 1."""

    def __init__(self, method, delay, **options):
        super().__init__(**options)
        self.moment: tuple[str, float] | None = (method, delay)

    def call(self, receiver, method, value):
        if self.moment is not None and method == self.moment[0] and (method in AT_FIRST_CALL or value.round_ == 1):
            pid, delay = self.processes["client-2"], self.moment[1]
            self.moment = None
            if delay:
                asyncio.get_running_loop().call_later(delay, os.kill, pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
        return super().call(receiver, method, value)


AT_FIRST_CALL = ("gather", "walk_on")


def killed(words, method, delay):
    config = config_of(merged(f"num_clients=5 num_samples=300 num_features=100 topology=complete {words}"))
    data = load_data(config, "synthetic", 3)
    kept = Kept()
    runtime = Killing(method, delay, recorder=kept, seed=3)
    result = runtime.execute(lambda: run(config, data, runtime))
    assert runtime.moment is None
    return result, kept


@pytest.mark.drawn(2, family="kills", subjects=["fedactors/runtime"])
@pytest.mark.parametrize(
    ("method", "delay"),
    [("gather", 0), ("roam", 0), ("roam", 0.01), ("sync", 0)],
)
def test_a_client_killed_at_any_moment_on_ray_is_gone_on_without(method, delay):
    words = "num_rounds=6 num_local_steps=100 batch_size=100 on_party_loss=continue"
    result, kept = killed(words, method, delay)
    assert [index for index, _ in kept.rounds] == list(range(7))
    assert result.metrics["training/objective"] < kept.rounds[0][1]["training/objective"]


@pytest.mark.drawn(2, family="kills", subjects=["fedactors/runtime"])
@pytest.mark.parametrize(
    ("words", "method", "delay"),
    [
        ("num_local_steps=100", "roam", 0.01),
        ("algorithm=stcd num_local_steps=100", "walk_on", 0),
    ],
)
def test_a_client_killed_at_any_moment_on_ray_stops_the_run_with_its_name(words, method, delay):
    with pytest.raises(PartyLost, match="client-2") as caught:
        killed(f"num_rounds=6 {words}", method, delay)
    assert caught.value.exit_code == 3


def test_four_tokens_roam_at_once():
    """Token k starts at client k: at some instant all four visits are under way, each in a process of its own.

    So many steps that a visit takes longer than it takes to begin the four, on a quick machine too.
    """
    words = (
        "num_clients=4 num_tokens=4 mode=overlapping topology=complete start=all-clients num_samples=8000 "
        "num_features=400 num_local_steps=100000 num_hops=0 num_rounds=3 measure_gap=false learning_rate=1e-6"
    )
    _, kept, runtime = on_ray(words)
    visits = [(start, end, actor) for actor, _, label, start, end in kept.spans if label == "visit"]
    assert len(visits) == 12
    at_once = max(len({a for s, e, a in visits if s <= start < e}) for start, _, _ in visits)
    assert at_once == 4
    assert len({runtime.processes[f"client-{k}"] for k in range(4)}) == 4

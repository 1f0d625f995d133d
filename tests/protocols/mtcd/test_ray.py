"""The same numbers on Ray, the loss of a client's process, and tokens that really roam at once."""

import os
import signal

import pytest

from fedactors.errors import PartyLost
from fedactors.runtime.ray.runtime import RayRuntime
from protocols.mtcd.data import load_data
from protocols.mtcd.run import run
from tests.protocols.mtcd.running import Kept, config_of, merged, simulate

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


class Recorded(Kept):
    """Calls back after a round."""

    def __init__(self, after=None):
        super().__init__()
        self.after = after

    def record_round(self, index, metrics):
        super().record_round(index, metrics)
        if self.after is not None:
            self.after(index)


def on_ray(words, *, after=None, resume=None):
    config = config_of(merged(words))
    data = load_data(config, "synthetic", 3)
    kept = Recorded()
    runtime = RayRuntime(recorder=kept, seed=3, reproducible_noise=True)
    if after is not None:
        kept.after = lambda index: after(index, runtime)
    result = runtime.execute(lambda: run(config, data, runtime), resume)
    return result, kept, runtime


def assert_same(ours, theirs):
    assert [index for index, _ in ours.rounds] == [index for index, _ in theirs.rounds]
    for (_, a), (_, b) in zip(ours.rounds, theirs.rounds, strict=True):
        assert a == pytest.approx(b, rel=1e-12)


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


def test_a_client_killed_on_ray_stops_the_run_with_its_name_or_is_gone_on_without():
    def kill(index, runtime):
        if index == 1:
            os.kill(runtime.processes["client-2"], signal.SIGKILL)

    words = "num_clients=5 num_rounds=8 topology=complete"
    with pytest.raises(PartyLost, match="client-2"):
        on_ray(words, after=kill)
    result, kept, _ = on_ray(f"{words} on_party_loss=continue", after=kill)
    assert [index for index, _ in kept.rounds] == list(range(9))
    assert result.metrics["objective"] < kept.rounds[1][1]["objective"]


def test_tokens_roam_at_once():
    """Two tokens in two clusters: visits of one begin before those of the other end."""
    words = (
        "num_clients=4 num_samples=4000 num_features=800 num_local_steps=60 num_hops=1 num_rounds=2 measure_gap=false"
    )
    _, kept, _ = on_ray(f"{words} clusters=[[0,1],[2,3]] learning_rate=1e-6")
    visits = [(actor, start, end) for actor, _, label, start, end in kept.spans if label == "visit"]
    first = [(s, e) for actor, s, e in visits if actor in ("client-0", "client-1")]
    second = [(s, e) for actor, s, e in visits if actor in ("client-2", "client-3")]
    assert any(a < d and c < b for a, b in first for c, d in second)

"""The planner's dry run against simulated runs, and against what can be worked out by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from fedactors.network.links import HostCapacity, Link, Network
from fedactors.protocols.pubsub_vfl import dry_run, planner
from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.dry_run import Problem
from fedactors.protocols.pubsub_vfl.messages import PartyProfile, PowerLaw
from fedactors.protocols.pubsub_vfl.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from scenarios.paper.pubsub_vfl._profiles import profile_of_costs
from tests.protocols.pubsub_vfl.runs import arrays, config_of

LOCAL = Link(latency=5e-5, bandwidth=1e9)
CORES = 4


class Phases(MemoryRecorder):
    """Adds up the seconds of training."""

    training = 0.0

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        if kind == "phase" and label == "training":
            self.training += end - start


def simulated(config: PubSubVflConfig, latency: float, bandwidth: float) -> tuple[float, int]:
    data, recorder = arrays("multiclass", num_rows=3000), Phases()
    capacity = {party: HostCapacity(egress=bandwidth, ingress=bandwidth) for party in data.parties}
    network = Network(
        default=Link(latency=latency, bandwidth=bandwidth), local=LOCAL, hosts={"broker": "active"}, capacity=capacity
    )
    cores = dict.fromkeys(data.parties, CORES)
    runtime = SimulatedRuntime(network=network, recorder=recorder, cores=cores, checkpoint_every=0)
    done = runtime.execute(lambda: run(config, data, runtime))
    return recorder.training / config.num_epochs, done.extra["num_rows"]


def predicted(config: PubSubVflConfig, latency: float, bandwidth: float, num_rows: int) -> float:
    data, costs = arrays("multiclass", num_rows=3000), default_costs(config)
    link = {"latency": latency, "bandwidth": bandwidth, "num_rows": num_rows}
    profiles = [
        {**dataclasses.asdict(profile_of_costs(config, data, party, costs, CORES, LOCAL)), **link}
        for party in data.parties
    ]
    return planner.predict(config, planner.problem_of(config, profiles))


SETTINGS: dict[str, dict[str, Any]] = {
    "one": {},
    "unequal": {"num_active_workers": 3, "num_passive_workers": 2},
    "more workers than cores": {"num_active_workers": 6, "num_passive_workers": 5},
    "push": {"transfer": "push", "num_active_workers": 2, "num_passive_workers": 2},
    "small window": {"transfer": "push", "max_in_flight": 2},
    "little prefetch": {"prefetch": 1, "num_passive_workers": 2},
    "reports at once": {"report_interval": 0.0, "num_active_workers": 2},
    "servers": {"optimizer_at": "server", "num_active_workers": 3, "num_passive_workers": 3, "transfer": "push"},
    "servers without a window": {"optimizer_at": "server", "num_active_workers": 3, "server_window": 0},
    "8 bits": {"quantization_bits": 8, "transfer": "push"},
    "no pause": {"epochs_per_round": 2, "num_epochs": 2, "transfer": "push", "num_passive_workers": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(("latency", "bandwidth"), [(5e-4, 1e8), (0.01, 2e6)])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_dry_run_takes_as_long_as_the_simulation(name, latency, bandwidth):
    config = config_of(**{"num_epochs": 1, "batch_size": 32, **SETTINGS[name]})
    seconds, num_rows = simulated(config, latency, bandwidth)
    assert predicted(config, latency, bandwidth, num_rows) == pytest.approx(seconds, rel=0.02)


FLAT: dict[str, Any] = {"memory_base": 0.0, "memory_available": math.inf, "sync_seconds": 0.0}


def flat(role: str, seconds: float, **changes: Any) -> PartyProfile:
    """A party of which a batch's two phases take half of so many seconds each."""
    law = PowerLaw(seconds / 2, 0.0)
    return PartyProfile(role, 8, (law, law), memory_per_batch=PowerLaw(0.0, 1.0), **{**FLAT, **changes})


def test_by_hand():
    problem = Problem(active=flat("active", 0.004), passive=flat("passive", 0.002), num_rows=1000, bandwidth=math.inf)
    config = config_of(batch_size=100, report_interval=0.0)
    # ten batches, one after another, at the active worker; the first one's embedding and the last one's way back
    assert dry_run.epoch_seconds(config, problem) == pytest.approx(0.001 + 10 * 0.004 + 0.001)
    slow = dataclasses.replace(problem, active=flat("active", 0.004, message_seconds=0.001, message_row_seconds=1e-5))
    assert dry_run.epoch_seconds(config, slow) == pytest.approx(0.001 + 10 * 0.006 + 0.001)


def test_a_broker_takes_cores_of_its_host():
    busy = flat("active", 0.004, broker_seconds=0.01)
    problem = Problem(active=busy, passive=flat("passive", 0.002), num_rows=1000, bandwidth=math.inf)
    # two reports a batch at least go one after another through the broker
    assert dry_run.epoch_seconds(config_of(batch_size=100, report_interval=0.0), problem) > 10 * 0.01


@pytest.mark.slow
def test_long_trainings_are_continued_at_their_pace():
    problem = Problem(active=flat("active", 0.004), passive=flat("passive", 0.002), num_rows=100_000)
    config = config_of(batch_size=10, report_interval=0.0)
    assert dry_run.MOST_BATCHES < 10_000
    assert dry_run.epoch_seconds(config, problem) == pytest.approx(10_000 * 0.004, rel=0.01)


@pytest.mark.slow
def test_the_bound_is_below_every_dry_run():
    for w_a, w_p, size in [(1, 1, 16), (2, 1, 64), (4, 4, 32), (8, 3, 128)]:
        for transfer in ("pull", "push"):
            problem = Problem(
                active=flat("active", 0.004),
                passive=flat("passive", 0.003),
                num_rows=2000,
                row_bytes=500.0,
                bandwidth=1e7,
                latency=0.003,
                transfer=transfer,
            )
            config = config_of(num_active_workers=w_a, num_passive_workers=w_p, batch_size=size, transfer=transfer)
            bound = planner.cost(problem, w_a, w_p, size, "pipeline")
            assert bound <= planner.predict(
                planner.with_plan(config, problem, planner.Plan(w_a, w_p, size, 0)), problem
            )


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_one_worker_a_side_takes_exactly_as_long_as_the_simulation(transfer):
    config = config_of(num_epochs=1, batch_size=32, transfer=transfer, max_in_flight=2)
    seconds, num_rows = simulated(config, 5e-4, 1e8)
    assert predicted(config, 5e-4, 1e8, num_rows) == pytest.approx(seconds, rel=1e-6)


def test_nothing_is_trained():
    """What the dry actors send holds zeros only."""
    problem = Problem(active=flat("active", 0.004), passive=flat("passive", 0.002), num_rows=100, row_bytes=64.0)
    seen: list[Any] = []

    class Watching(dry_run.DryActiveWorker):
        async def _use(self, pipeline, stamp, payloads):
            seen.extend(payload.values for payload in payloads)
            await super()._use(pipeline, stamp, payloads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dry_run, "DryActiveWorker", Watching)
        dry_run.epoch_seconds(config_of(batch_size=50), problem)
    assert [values.nbytes for values in seen] == [50 * 32] * 2
    assert not any(values.any() for values in seen)

"""Going on from a snapshot in the simulated runtime, with work in flight: the rest is identical to the byte."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.context import Work
from fedactors.errors import BadInput
from fedactors.network.links import HostCapacity, Link, Network
from fedactors.runtime import snapshots
from fedactors.runtime.interface import Costs, Snapshot
from fedactors.runtime.simulation.network import SimulatedContext
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import COSTS, Echo, Memory, Trainer, carry_endpoint, descend, line, rounds_of_training

NETWORK = Network(default=Link(latency=0.01, bandwidth=1e5), capacity={"hub": HostCapacity(egress=5e3)})


def train(resume: Snapshot | None = None, **settings: Any) -> Memory:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, seed=5, network=NETWORK, **settings)
    runtime.execute(lambda: rounds_of_training(runtime), resume)
    return memory


def in_flight(found: Snapshot) -> tuple[int, int]:
    """Return how many jobs and keyed timers a snapshot holds."""
    contents = [snapshots.unseal(frame, "a frame") for frame in found.actors.values()]
    return sum(len(c["jobs"]) for c in contents), sum(len(c["timers"]) for c in contents)


def test_a_run_cut_at_any_checkpoint_goes_on_identically() -> None:
    whole = train()
    assert len(whole.snapshots) == 10
    jobs, timers = zip(*(in_flight(s) for _, s, _ in whole.snapshots), strict=True)
    assert max(jobs) == 3
    assert max(timers) == 3
    for _, found, done in whole.snapshots:
        rest = train(found)
        assert rest.rounds == whole.rounds[done:]
        assert [s for _, s, _ in rest.snapshots] == [s for _, s, n in whole.snapshots if n > done]


def test_a_resumed_run_can_be_cut_again() -> None:
    whole = train()
    middle = train(whole.snapshots[2][1])
    rest = train(middle.snapshots[3][1])
    assert middle.rounds == whole.rounds[3:]
    assert rest.rounds == whole.rounds[7:]


def test_a_run_that_keeps_no_checkpoint_packs_no_state_and_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, packed = train(), []
    monkeypatch.setattr(Memory, "keeps_checkpoints", False)
    monkeypatch.setattr(SimulatedContext, "capture", packed.append)
    bare = train()
    assert (bare.rounds, bare.rows, bare.spans) == (whole.rounds, whole.rows, whole.spans)
    assert (bare.snapshots, packed) == ([], [])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pool_and_a_resume_together(workers: int) -> None:
    whole = train()
    _, found, done = whole.snapshots[4]
    assert in_flight(found)[0] > 0
    assert train(found, pool=workers).rounds == whole.rounds[done:]


def test_the_clock_the_ledger_and_the_use_of_cores_continue() -> None:
    memory, again = Memory(), Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, seed=5, network=NETWORK)
    runtime.execute(lambda: rounds_of_training(runtime))
    resumed = SimulatedRuntime(recorder=again, costs=COSTS, seed=5, network=NETWORK)
    resumed.execute(lambda: rounds_of_training(resumed), memory.snapshots[5][1])
    assert resumed.ledger.totals() == runtime.ledger.totals()
    assert replace(resumed.usage(), wall_seconds=0.0) == replace(runtime.usage(), wall_seconds=0.0)
    assert resumed.resumed


def test_the_drivers_state_comes_back_and_is_empty_in_a_fresh_run() -> None:
    seen: list[Any] = []
    memory = Memory()

    def run(resume: Snapshot | None) -> None:
        runtime = SimulatedRuntime(recorder=memory)

        async def main() -> None:
            seen.append((runtime.resumed, dict(runtime.state)))
            a = line(runtime, "a")
            await runtime.start()
            await a.add(2)
            seen.append(await a.add(0))
            runtime.state.update(epoch=3, best=(0.5, "x"), history=[1.0, 2.0], weights=np.arange(3.0))
            await runtime.checkpoint()

        runtime.execute(main, resume)

    run(None)
    run(memory.snapshots[0][1])
    assert seen[0] == (False, {})
    assert seen[1] == 2
    resumed, state = seen[2]
    assert resumed
    assert (state["epoch"], state["best"], state["history"]) == (3, (0.5, "x"), [1.0, 2.0])
    np.testing.assert_array_equal(state["weights"], np.arange(3.0))
    assert state["weights"].flags.writeable
    assert seen[3] == 4


def test_a_compute_of_a_loop_is_not_a_legal_instant_but_a_job_is() -> None:
    class Loops(Trainer):
        state = ("steps",)

        async def load(self) -> None:
            self.steps = 0

        async def open(self) -> None:
            self.background(self._loop())

        async def _loop(self) -> None:
            await self.compute(descend, np.zeros(1), 1, work=Work("long"))
            self.steps = 1
            await (self.job("next") or self.begin("next", descend, np.zeros(1), 2, work=Work("long")))
            self.steps = 2

        @carry_endpoint
        async def done(self) -> int:
            return self.steps

    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=Costs({"long": (10.0, 0.0)}))

    async def main() -> tuple[float, int]:
        a = line(runtime, "a", Loops, 1, 1.0)
        await runtime.start()
        await runtime.clock.sleep(1.0)
        await runtime.checkpoint()
        return runtime.clock.now(), await a.done()

    assert runtime.execute(main) == (10.0, 1)
    assert in_flight(memory.snapshots[0][1]) == (1, 0)


@pytest.mark.parametrize("how", ["sleep", "give_up_after"])
def test_a_loop_in_an_unkeyed_wait_holds_a_snapshot_off(how: str) -> None:
    class Loops(Echo):
        async def open(self) -> None:
            self.background(self.give_up_after(7.0) if how == "give_up_after" else self.clock.sleep(7.0))

    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory)

    async def main() -> float:
        line(runtime, "a", Loops)
        await runtime.start()
        await runtime.checkpoint()
        return runtime.clock.now()

    assert runtime.execute(main) == 7.0


def test_calls_on_the_wire_hold_a_snapshot_off() -> None:
    runtime = SimulatedRuntime(recorder=Memory(), network=Network(default=Link(latency=1.0)))

    async def main() -> float:
        a, _ = line(runtime, "a"), line(runtime, "b")
        await runtime.start()
        call = asyncio.ensure_future(a.relay("b", 1))
        await runtime.checkpoint()
        await call
        return runtime.clock.now()

    assert runtime.execute(main) == 2.0


@pytest.mark.parametrize("change", ["cut", "flipped", "foreign", "empty"])
@pytest.mark.parametrize("whose", ["actor", "driver"])
def test_a_corrupt_checkpoint_is_refused(change: str, whose: str) -> None:
    _, found, _ = train().snapshots[0]

    def spoil(frame: bytes) -> bytes:
        half = len(frame) // 2
        return {
            "cut": frame[:half],
            "flipped": frame[:half] + bytes([frame[half] ^ 1]) + frame[half + 1 :],
            "foreign": b"PK\x03\x04 something else altogether",
            "empty": b"",
        }[change]

    if whose == "actor":
        spoilt = Snapshot({**found.actors, "hub": spoil(found.actors["hub"])}, found.driver)
        name = "hub"
    else:
        spoilt, name = Snapshot(found.actors, spoil(found.driver)), "the driver"
    with pytest.raises(BadInput, match=f"the checkpoint of {name} is corrupt"):
        train(spoilt)


def test_a_core_has_no_more_before_it_than_was_given_to_all() -> None:
    _, found, _ = train().snapshots[2]
    content = snapshots.unseal_driver(found.driver)
    content["free_at"]["t0"] = [content["now"] + content["busy"] + 1.0]
    spoilt = Snapshot(found.actors, snapshots.seal_driver(content, found.actors))
    with pytest.raises(BadInput, match=r"the checkpoint of the driver does not fit: free_at: a number from 0 to"):
        train(spoilt)


def test_a_checkpoint_names_work_of_its_actors_class_and_no_other_code() -> None:
    _, found, _ = train().snapshots[0]
    content = snapshots.unseal(found.actors["t0"], "t0")
    key, _, args, work, due = content["jobs"][0]
    for foreign in ("os:system", "system", "fedactors.runtime.ray.jobs:main", "main", "__init__", "fail"):
        spoilt = snapshots.seal({**content, "jobs": [(key, foreign, args, work, due)]})
        with pytest.raises(BadInput, match=r"the checkpoint of t0 names .*, which is no work of its class"):
            train(Snapshot({**found.actors, "t0": spoilt}, found.driver))

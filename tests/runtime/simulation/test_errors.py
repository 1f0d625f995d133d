"""The simulated runtime: errors keep their party, waits that never end are named, stops write a checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from fedactors.actors.context import Work
from fedactors.errors import BadInput, Deadlock, FedactorsError, PartyFailed, Stopped
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.runtime.actors import CLOSED, COSTS, Echo, Memory, Trainer, carry_endpoint, line, play, process_id

# --- errors and waits ---


def test_an_exception_two_hops_away_keeps_its_party_and_its_traceback() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.relay_crash("b", "the reason")

    with pytest.raises(PartyFailed, match="b: ZeroDivisionError: the reason") as caught:
        play(drive)
    assert caught.value.party == "b"
    assert "in crash\n" in caught.value.traceback_text
    assert "raise ZeroDivisionError(text)" in caught.value.traceback_text
    assert caught.value.__cause__ is None, "between parties errors are words, as on Ray"


def test_of_a_task_group_the_first_error_counts() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.crash_in_group("b", "in a group")

    with pytest.raises(PartyFailed, match="b: ZeroDivisionError: in a group"):
        play(drive)

    async def as_coroutines(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        async def wait(call: Awaitable[Any]) -> Any:
            return await call

        async with asyncio.TaskGroup() as group:
            group.create_task(wait(a.wait_for_ever()))
            group.create_task(wait(a.relay_crash("b", "in the driver's group")))

    with pytest.raises(PartyFailed, match="b: ZeroDivisionError: in the driver's group"):
        play(as_coroutines)


def test_a_users_mistake_stays_one() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.refuse()

    with pytest.raises(BadInput, match=r"^field: 3 is not allowed$"):
        play(drive)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [0, 1])
def test_a_compute_that_fails_names_its_actor(pool: int) -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.fail_in_compute()

    with pytest.raises(PartyFailed, match="a: ArithmeticError: no result") as caught:
        play(drive, costs=COSTS, pool=pool)
    assert "in fail\n" in caught.value.traceback_text


def test_a_failing_loop_stops_the_run() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await a.crash_later(3.0)
        await b.sleep(1e9)

    with pytest.raises(PartyFailed, match="a: LookupError: in the background"):
        play(drive)


def test_when_nothing_can_happen_any_more_each_wait_is_named() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await runtime.clock.sleep(2.0)
        await asyncio.gather(a.outcome_of("b", "wait_for_ever"), b.wait_for_ever())

    with pytest.raises(Deadlock) as caught:
        play(drive)
    text = str(caught.value)
    assert "at 2 s" in text
    assert "a.outcome_of (called by driver)" in text
    assert "b.wait_for_ever (called by a)" in text
    assert "b.wait_for_ever (called by driver)" in text


def test_a_driver_that_waits_for_nothing_is_a_deadlock_too() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="the driver itself"):
        play(drive)


def test_timeouts_are_virtual() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> Any:
        with pytest.raises(TimeoutError):
            async with runtime.clock.timeout(1000.0):
                await a.wait_for_ever()
        async with runtime.clock.timeout(None):
            return await b.impatient(2.5), runtime.clock.now()

    assert play(drive)[0] == ("gave up at 1002.5", 1002.5)


def test_a_driver_that_fails_raises_what_it_raised() -> None:
    async def drive(runtime: SimulatedRuntime, a: Any, b: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        play(drive)


def test_actors_are_closed_at_the_end_of_a_run() -> None:
    CLOSED.clear()
    runtime = SimulatedRuntime()

    async def main() -> None:
        for name in ("a", "b"):
            line(runtime, name)
        await runtime.start()

    runtime.execute(main)
    assert CLOSED == ["a", "b"]


def test_a_task_that_will_not_end_does_not_hang_the_run() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    runtime = SimulatedRuntime()
    kept: list[Any] = []

    async def main() -> str:
        kept.append(asyncio.ensure_future(stubborn()))
        await asyncio.sleep(0)
        return "done"

    assert runtime.execute(main) == "done"


# --- stopping ---


def test_a_stop_ends_at_the_next_checkpoint_and_writes_it() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS, checkpoint_every=100)
    ended: list[int] = []

    async def main() -> None:
        a = line(runtime, "a")
        await runtime.start()
        for index in range(10):
            await a.add()
            if index == 4:
                runtime.request_stop(143)
            await runtime.checkpoint()
            ended.append(index)

    with pytest.raises(Stopped) as caught:
        runtime.execute(main)
    assert caught.value.exit_code == 143
    assert ended == [0, 1, 2, 3]
    assert len(memory.snapshots) == 1


def test_a_stop_does_not_wait_for_a_driver_that_sleeps_under_a_key() -> None:
    memory = Memory()
    runtime = SimulatedRuntime(recorder=memory, costs=COSTS)

    async def main() -> None:
        line(runtime, "a")
        await runtime.start()
        runtime.request_stop(130)
        await runtime.clock.sleep(1e9, key="rotation")

    with pytest.raises(Stopped):
        runtime.execute(main)
    assert runtime.usage().seconds < 1.0
    assert len(memory.snapshots) == 1


def test_a_checkpoint_that_never_becomes_legal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedactors.runtime.simulation.runtime._MOST_MOVES_TO_A_CHECKPOINT", 1000)

    class Restless(Echo):
        async def open(self) -> None:
            self.background(self._loop())

        async def _loop(self) -> None:
            while True:
                await self.clock.sleep(0.1)

    runtime = SimulatedRuntime()

    async def main() -> None:
        line(runtime, "a", Restless)
        await runtime.start()
        await runtime.checkpoint()

    with pytest.raises(Deadlock, match="no legal instant for a checkpoint"):
        runtime.execute(main)


def test_a_job_may_be_begun_once_under_a_key() -> None:
    class Twice(Trainer):
        jobs = (process_id,)

        async def open(self) -> None:
            pass

        @carry_endpoint
        async def twice(self) -> None:
            job = self.begin("step", process_id, work=Work("step"))
            assert self.job("step") is job
            with pytest.raises(FedactorsError, match="a: a job 'step' is already under way"):
                self.begin("step", process_id, work=Work("step"))
            await job
            assert self.job("step") is None

    runtime = SimulatedRuntime(costs=COSTS)

    async def main() -> None:
        a = line(runtime, "a", Twice, 1, 1.0)
        await runtime.start()
        await a.twice()

    runtime.execute(main)

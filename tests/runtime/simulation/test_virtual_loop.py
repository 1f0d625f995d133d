"""The virtual event loop: order of events, and that asyncio's own waits are virtual."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from fedactors.runtime.simulation.network import Instant, VirtualLoop, current_actor


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop()
    yield made
    made.close()


def run(loop: VirtualLoop, main: Callable[[], Awaitable[Any]]) -> Any:
    async def wrapped() -> Any:
        return await main()

    return loop.run_until_complete(wrapped())


def test_events_of_one_time_fire_by_party_then_key_then_sequence(loop: VirtualLoop) -> None:
    wanted = [(t, p, k, n) for t in (1.0, 2.0) for p in ("a", "b", "c") for k in ("", "x", "y") for n in (0, 1)]
    shuffled = list(wanted)
    random.Random(3).shuffle(shuffled)
    # the sequence is that of scheduling: number two of a triple must be scheduled after number one
    shuffled.sort(key=lambda event: event[3])
    fired: list[Any] = []

    async def main() -> None:
        for event in shuffled:
            loop.call_at_keyed(event[0], event[1], event[2], fired.append, event)
        await asyncio.sleep(5)

    run(loop, main)
    assert fired == wanted
    assert loop.time() == 5.0


def test_what_an_event_makes_runnable_runs_before_the_next_event_of_the_same_time(loop: VirtualLoop) -> None:
    order: list[str] = []

    async def main() -> None:
        first: asyncio.Future[None] = loop.create_future()

        async def follow() -> None:
            await first
            for step in range(3):
                order.append(f"after first, {step}")
                await asyncio.sleep(0)

        task = asyncio.ensure_future(follow())
        await asyncio.sleep(0)
        loop.call_at_keyed(1.0, "b", "", order.append, "second")
        loop.call_at_keyed(1.0, "a", "", first.set_result, None)
        await asyncio.sleep(2)
        await task

    run(loop, main)
    assert order == ["after first, 0", "after first, 1", "after first, 2", "second"]


def test_asyncios_sleeps_are_ordered_by_the_party_whose_code_runs(loop: VirtualLoop) -> None:
    order: list[str] = []

    async def party(name: str) -> None:
        current_actor.set(name)
        await asyncio.sleep(1.0)
        order.append(name)

    async def main() -> None:
        await asyncio.gather(*(party(name) for name in ("c", "a", "b")))

    run(loop, main)
    assert order == ["a", "b", "c"]


def test_sleep_and_timeout_are_virtual(loop: VirtualLoop) -> None:
    async def main() -> float:
        await asyncio.sleep(3600.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(86400.0):
                await asyncio.Event().wait()
        return loop.time()

    assert run(loop, main) == 90_000.0


def test_an_event_in_the_past_fires_now(loop: VirtualLoop) -> None:
    times: list[float] = []

    async def main() -> None:
        await asyncio.sleep(5)
        loop.call_at_keyed(1.0, "", "", lambda: times.append(loop.time()))
        await asyncio.sleep(1)

    run(loop, main)
    assert times == [5.0]


def test_cancelled_timers_are_dropped_and_never_fire(loop: VirtualLoop) -> None:
    fired: list[int] = []

    async def main() -> None:
        kept = 7
        for index in range(20_000):
            timer = loop.call_later(100.0, fired.append, index)
            if index != kept:
                timer.cancel()
        assert len(loop._events) < 3000
        await asyncio.sleep(200.0)

    run(loop, main)
    assert fired == [7]


def test_nothing_left_to_wait_for_is_reported(loop: VirtualLoop) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(asyncio.Event().wait())

        def stop() -> None:
            waiting.cancel()

        loop.when_stuck = stop
        await waiting

    with pytest.raises(asyncio.CancelledError):
        run(loop, main)


def test_the_hook_before_time_moves_sees_a_settled_instant(loop: VirtualLoop) -> None:
    seen: list[float] = []

    def hook() -> bool:
        seen.append(loop.time())
        return False

    loop.before_time_moves = hook

    async def main() -> None:
        await asyncio.sleep(1)
        for _ in range(5):
            await asyncio.sleep(0)
        await asyncio.sleep(1)

    run(loop, main)
    assert seen == [0.0, 1.0]


def test_time_can_start_late(loop: VirtualLoop) -> None:
    loop.set_time(12.5)

    async def main() -> float:
        await asyncio.sleep(1)
        return loop.time()

    assert run(loop, main) == 13.5


def test_an_instant_wakes_its_task_at_its_time_in_the_order_of_events(loop: VirtualLoop) -> None:
    order: list[Any] = []

    async def main() -> None:
        async def wait(when: float, party: str) -> None:
            await Instant(loop, when, party, "")
            order.append((loop.time(), party))

        await asyncio.gather(wait(2.0, "b"), wait(2.0, "a"), wait(1.0, "c"))

    run(loop, main)
    assert order == [(1.0, "c"), (2.0, "a"), (2.0, "b")]


@pytest.mark.parametrize("at", [0.5, 1.0])
def test_a_task_cancelled_before_its_instant_or_at_it_ends_once(loop: VirtualLoop, at: float) -> None:
    ended: list[Any] = []

    async def main() -> None:
        async def wait() -> None:
            try:
                await Instant(loop, 1.0, "b", "")
                ended.append("woken")
            except asyncio.CancelledError:
                ended.append(loop.time())
                raise

        task = asyncio.ensure_future(wait())
        # party a: at the same time its event comes first
        loop.call_at_keyed(at, "a", "", task.cancel)
        await asyncio.sleep(3)
        assert task.cancelled()

    run(loop, main)
    assert ended == [at]


def test_a_timeout_ends_the_wait_for_an_instant(loop: VirtualLoop) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await Instant(loop, 5.0, "a", "")
        assert loop.time() == 1.0

    run(loop, main)

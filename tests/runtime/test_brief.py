"""Where an actor of a site's process computes: brief work in the loop's own thread, other work beside it."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedactors.actors.actor import Client
from fedactors.actors.context import Work
from fedactors.runtime.compute import HostedContext, WallClock
from fedactors.runtime.interface import ActorSpec


class Beside(HostedContext):
    """One that computes; it calls nobody."""

    def __init__(self) -> None:
        super().__init__(ActorSpec(Client, "bank", (), {}, Client.resources), 0, False, WallClock(time.time()), False)
        self._thread = ThreadPoolExecutor(1)


Beside.__abstractmethods__ = frozenset()


def worked(milliseconds: float) -> int:
    """Compute for so long, and say where."""
    until = time.thread_time() + milliseconds / 1e3
    while time.thread_time() < until:
        np.ones(10).sum()
    return threading.get_ident()


def test_work_is_brief_by_what_it_took_last_and_how_much_there_is_of_it() -> None:
    async def work() -> list[bool]:
        actor, here = Beside(), threading.get_ident()  # type: ignore[abstract]

        async def is_here(milliseconds: float, kind: str, units: float) -> bool:
            return await actor.compute(worked, (milliseconds,), Work(kind, units)) == here

        try:
            return [
                await is_here(0.5, "small", 10),  # nothing is known of it
                await is_here(0.5, "small", 10),
                await is_here(0.5, "small", 1000),  # a hundred times as much
                await is_here(20.0, "large", 10),
                await is_here(20.0, "large", 10),
                await is_here(20.0, "large", 1),
                await is_here(0.0, "nothing", 0),
                await is_here(0.0, "nothing", 0),
                await is_here(20.0, "free", 0),  # that it costs nothing in simulation makes it no shorter
                await is_here(20.0, "free", 0),
                await is_here(20.0, "part", 0.1),
                await is_here(20.0, "part", 0.1),
            ]
        finally:
            actor.close()

    assert asyncio.run(work()) == [False, True, False, False, False, True, False, True, *[False] * 4]


@pytest.mark.parametrize("is_given_up", [False, True])
def test_brief_work_does_not_overtake_work_of_the_same_actor_that_is_under_way(is_given_up: bool) -> None:
    """Computes of an actor share its model: one after the other, in the order in which they were asked for."""

    async def work() -> list[str]:
        actor, done = Beside(), list[str]()  # type: ignore[abstract]
        begun, may_end = threading.Event(), threading.Event()

        def long() -> None:
            begun.set()
            assert may_end.wait(30)
            done.append("long")

        def brief() -> None:
            done.append("brief")

        try:
            for _ in range(2):
                await actor.compute(brief, (), Work("brief", 1))
            done.clear()
            first = asyncio.ensure_future(actor.compute(long, (), Work("long", 1)))
            while not begun.is_set():
                await asyncio.sleep(0)
            if is_given_up:
                first.cancel()
            second = asyncio.ensure_future(actor.compute(brief, (), Work("brief", 1)))
            for _ in range(5):
                await asyncio.sleep(0)
            may_end.set()
            await asyncio.gather(first, second, return_exceptions=True)
            assert await actor.compute(threading.get_ident, (), Work("brief", 1)) == threading.get_ident()
            return done
        finally:
            actor.close()

    assert asyncio.run(work()) == ["long", "brief"]

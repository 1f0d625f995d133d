"""Where an actor of a site's process computes: in its thread, or at once what is known to be brief."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from fedactors.roles import Client
from fedactors.runtime.base import Casting, Work
from fedactors.runtime.federated.gate import Gate
from fedactors.runtime.federated.hosting import OwnProcess, SiteContext
from fedactors.runtime.hosted import WallClock
from tests.federated.world import BANK


class Holder(Client):
    """Has nothing."""


def where() -> int:
    return threading.get_ident()


def long() -> int:
    time.sleep(0.1)
    return threading.get_ident()


def on(count: int, work: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Do something with so many actors of a site."""

    async def go() -> None:
        home = OwnProcess(SimpleNamespace(gate=Gate(BANK, BANK, {})))  # type: ignore[arg-type]
        names = [f"{BANK}/holder-{i}" for i in range(count)]
        castings = [Casting(Holder, name, (), {}, Holder.resources) for name in names]
        await home.cast(castings, 0, WallClock(time.time()))
        try:
            await work(*home.actors.values())
        finally:
            home.end()

    asyncio.run(go())


def test_what_is_known_to_be_brief_needs_no_way_to_a_thread() -> None:
    async def work(one: SiteContext) -> None:
        here = threading.get_ident()
        assert await one.compute(where, (), Work("w", 10)) != here, "nothing is known of it"
        assert await one.compute(where, (), Work("w", 10)) == here
        assert await one.compute(where, (), Work("w", 5)) == here
        assert await one.compute(where, (), Work("w", 11)) != here, "so much was never done"
        assert await one.compute(where, (), Work("w", 11)) == here

    on(1, work)


def test_a_site_is_not_deaf_while_an_actor_computes_for_long() -> None:
    async def work(one: SiteContext) -> None:
        for _ in range(3):
            assert await one.compute(long, (), Work("w")) != threading.get_ident()

    on(1, work)


def test_what_lasts_longer_than_it_did_goes_to_the_thread_again() -> None:
    seconds = [0.0, 0.1, 0.0]

    def waits() -> int:
        time.sleep(seconds.pop(0))
        return threading.get_ident()

    async def work(one: SiteContext) -> None:
        here = threading.get_ident()
        assert [await one.compute(waits, (), Work("w")) == here for _ in range(3)] == [False, True, False]

    on(1, work)


def test_computes_of_one_actor_do_not_overlap() -> None:
    async def work(one: SiteContext) -> None:
        done: list[str] = []
        for _ in range(2):
            await one.compute(where, (), Work("w"))

        async def compute(function: Callable[[], int], name: str) -> None:
            await one.compute(function, (), Work("w"))
            done.append(name)

        await asyncio.gather(compute(long, "long"), compute(where, "brief"))
        assert done == ["long", "brief"]

    on(1, work)


def test_where_several_actors_compute_each_has_its_thread() -> None:
    async def work(one: SiteContext, other: SiteContext) -> None:
        for _ in range(2):
            found = {await actor.compute(where, (), Work("w")) for actor in (one, other)}
        assert len({*found, threading.get_ident()}) == 3

    on(2, work)

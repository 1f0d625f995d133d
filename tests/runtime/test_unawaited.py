"""A failed call that nobody awaits stops the run that it was made in, and none that comes after it."""

from __future__ import annotations

import asyncio
import gc

import pytest

from fedactors.errors import PartyLost
from fedactors.runtime.failures import UnawaitedCall


@pytest.mark.parametrize("is_over", [False, True])
def test_a_failed_call_that_becomes_garbage_late_stops_no_other_run(is_over: bool) -> None:
    stopped: dict[str, list[str]] = {"first": [], "second": []}

    async def work() -> None:
        loop = asyncio.get_running_loop()
        first, second = (UnawaitedCall(lambda e, of=of: stopped[of].append(str(e)), lambda _: False) for of in stopped)  # type: ignore[misc]
        loop.set_exception_handler(first)
        reply = first.track(loop.create_future())
        first.fail(reply, PartyLost("bank", "its site is gone"), "shop")
        if is_over:
            loop.set_exception_handler(second)
        del reply
        gc.collect(1)  # it is young; the whole heap of a session takes a second

    asyncio.run(work())
    said = ["bank: its site is gone (shop, which had called it, did not await the answer)"]
    assert stopped == {"first": [] if is_over else said, "second": []}


def test_where_a_loop_does_several_runs_each_is_stopped_by_its_failures_alone() -> None:
    stopped: dict[str, list[str]] = {"first": [], "second": []}

    async def work() -> None:
        loop = asyncio.get_running_loop()
        first, second = (
            UnawaitedCall(lambda e, of=of: stopped[of].append(str(e)), lambda _, of=of: of == "second", print)  # type: ignore[misc]
            for of in stopped
        )
        loop.set_exception_handler(first)
        loop.set_exception_handler(second)  # of the run that began last, which may lose the bank
        for run in (first, second):
            reply = run.track(loop.create_future())
            run.fail(reply, PartyLost("bank", "its site is gone"), "shop")
            del reply
        gc.collect(1)

    asyncio.run(work())
    said = ["bank: its site is gone (shop, which had called it, did not await the answer)"]
    assert stopped == {"first": said, "second": []}

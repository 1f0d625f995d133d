"""Floods, links that swallow, and restarts at a bad moment: honest sites go on, or end in a line and are free."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fedactors.federation.approval import kept_proposals
from fedactors.federation.session import (
    HEAD,
    LINES_PER_MINUTE,
    MOST,
    MOST_PENDING,
    REQUEST,
    Admission,
    Connection,
    Limits,
    pieces_of,
)
from fedactors.federation.site_run import SiteRun
from fedactors.messages.codec import encode_parts
from fedactors.protocols.pubsub_vfl.broker import BatchBroker
from fedactors.protocols.pubsub_vfl.messages import Report
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import BROKER, LONG, WORKER, begin, in_mid_run
from tests.federation.test_runs import SMALL, federated
from tests.federation.ways import on_a_way
from tests.federation.world import BANK, LIMITS, SHOP, World

slow = pytest.mark.slow


# --- strangers ------------------------------------------------------------------------------------------------------


def test_so_many_strangers_and_so_many_lines_of_them() -> None:
    now, lines = [0.0], []
    admission = Admission(lambda who, why: lines.append((who, why)), clock=lambda: now[0])
    dropped: list[int] = []
    for index in range(MOST + 5):
        admission.comes("one", partial(dropped.append, index))
    assert dropped == [0, 1, 2, 3, 4]
    assert len(admission._here) == MOST
    assert len(lines) == 5
    for _ in range(10_000):
        admission.refused("somebody", "says nothing")
    assert len(lines) == LINES_PER_MINUTE
    admission.look()
    assert len(lines) == LINES_PER_MINUTE, "nothing before there is room"
    now[0] = 60.0
    admission.look()
    (who, why) = lines[-1]
    assert who == "others"
    assert int(why.split()[0]) + LINES_PER_MINUTE == 10_000 + 5
    admission.refused("somebody", "says nothing")
    assert lines[-1] == ("somebody", "says nothing")


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("pressed"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


@slow
def test_a_run_goes_through_while_strangers_flood_a_site(pressed: World) -> None:
    """From another address of this machine: some say nothing, some say nonsense."""
    bank = pressed.folder(BANK).federation.members[BANK]
    before, stopped, turned_away = len(pressed.audit(BANK)), threading.Event(), [0]

    async def knock(say: bytes) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(bank.host, bank.port, local_addr=("127.0.0.2", 0))
            try:
                writer.write(say)
                async with asyncio.timeout(2.0):
                    await reader.read()
            except (OSError, TimeoutError):
                pass
            else:
                turned_away[0] += 1
            finally:
                writer.transport.abort()
                await asyncio.sleep(0)

    async def flood() -> None:
        while not stopped.is_set():
            await asyncio.gather(*(knock(b"" if index % 2 else b"GET / HTTP/1.1\r\n\r\n") for index in range(100)))

    thread = threading.Thread(target=lambda: asyncio.run(flood()))
    thread.start()
    try:
        while turned_away[0] <= LINES_PER_MINUTE:
            time.sleep(0.01)
        assert federated(pressed, (*SMALL, "algorithm=vfl")) == 0, pressed.output
        until = time.monotonic() + 60  # the run may be over before a line of many is due
        while not any("others: " in line for line in pressed.refusals(BANK)) and time.monotonic() < until:
            time.sleep(0.1)
    finally:
        stopped.set()
        thread.join(60)
    seconds = 120  # more than it took: else a line of each would have been
    assert len(pressed.audit(BANK)) - before < LINES_PER_MINUTE * (1 + seconds / 60) + 10
    assert any("others: " in line for line in pressed.refusals(BANK))


# --- frames ---------------------------------------------------------------------------------------------------------


async def over_a_socket(limits: Limits, serve: Any, press: Any) -> list[str]:
    """Let somebody press a connection at one end of a socket; return why the other end gave it up."""
    why: list[str] = []
    ended = asyncio.Event()

    def lost(_: Connection, text: str) -> None:
        why.append(text)
        ended.set()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {"limits": limits, "serve": serve, "lost": lost, "errors": errors_for(BANK, SHOP)}
        begin(Connection(peer=SHOP, **ends), writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        await press(writer)
    async with asyncio.timeout(60):
        await ended.wait()
    writer.transport.abort()
    server.close()
    await asyncio.sleep(0.01)
    return why


def frame(number: int, value: Any) -> bytes:
    return b"".join(
        HEAD.pack(sum(map(len, piece)), REQUEST, more, number) + b"".join(piece)
        for piece, more in pieces_of(encode_parts(value))
    )


@pytest.mark.slow
def test_who_makes_many_calls_and_reads_no_answers_is_given_up() -> None:
    """Small calls, each answered at once with much: nothing but their number and bytes can be bounded."""
    held: list[int] = []

    async def serve(body: memoryview) -> Any:
        held.append(len(body))
        return bytes(50_000)

    async def press(writer: asyncio.StreamWriter) -> None:
        for number in range(1, 10 * MOST_PENDING):
            writer.write(frame(number, number))
            await writer.drain()

    (why,) = asyncio.run(over_a_socket(replace(LIMITS, message=4 << 20), serve, press))
    assert f"has more than {MOST_PENDING} calls or {8 << 20} bytes under way, or reads no answers" in why
    assert len(held) * 50_000 < 32 << 20  # what is held, and what the sockets of the system took


def test_who_makes_large_calls_faster_than_they_are_done_is_given_up() -> None:
    never = asyncio.Event

    async def serve(body: memoryview) -> Any:
        await never().wait()

    async def press(writer: asyncio.StreamWriter) -> None:
        for number in range(1, 100):
            writer.write(frame(number, bytes(1 << 20)))
            await writer.drain()

    (why,) = asyncio.run(over_a_socket(replace(LIMITS, message=4 << 20), serve, press))
    assert f"{8 << 20} bytes under way" in why


@pytest.mark.slow
def test_as_many_calls_as_are_allowed_are_answered_however_many_there_were() -> None:
    """What is counted is what is under way, not what ever was."""

    async def work() -> int:
        async def serve(body: memoryview) -> Any:
            return bytes(1000)

        made: list[Connection] = []
        limits = replace(LIMITS, message=1 << 20)
        ends = {"limits": limits, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}

        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            made.append(begin(Connection(peer=SHOP, serve=serve, **ends), writer))

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        caller = begin(Connection(peer=BANK, serve=None, **ends), writer, is_dialled=True)
        count = 0
        for _ in range(8):
            asked = [caller.request(encode_parts(bytes(100)), "a call") for _ in range(1000)]
            count += len(await asyncio.gather(*asked))
        assert (made[0]._num_open, made[0]._held_bytes) == (0, 0)
        for one in (caller, made[0]):
            await one.end()
        server.close()
        return count

    assert asyncio.run(work()) == 8000 > MOST_PENDING


@slow
def test_a_site_that_floods_another_in_a_run_ends_it_in_a_line(
    pressed: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes more calls than the other can do: the other's actor is slow."""

    async def slow_report(self: BatchBroker, report: Report) -> None:
        await asyncio.sleep(600.0)

    def flood(run: SiteRun) -> None:
        monkeypatch.setattr(BatchBroker, "report", slow_report)
        connection = run._out[BANK, "calls"]
        call = encode_parts((WORKER, BROKER, "report", Report((), (), 0, False)))
        for _ in range(3 * MOST_PENDING):
            connection.request(call, "mischief").add_done_callback(lambda done: done.exception())

    thread = in_mid_run(pressed, SHOP, flood)
    assert federated(pressed, LONG) in (2, 3)
    thread.join(60)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert len(lines) == 1
    assert lines[0].startswith("fedactors: shop: ")  # whichever of the two tells the driver first
    assert f"has more than {MOST_PENDING} calls or" in lines[0]
    assert any("has more than" in line for line in pressed.refusals(BANK))
    monkeypatch.undo()
    assert federated(pressed, SMALL) == 0, pressed.output


# --- a link that swallows -------------------------------------------------------------------------------------------


@slow
def test_a_link_that_swallows_ends_the_run_within_the_heartbeat_timeout_and_both_sites_are_free(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    world, link = on_a_way(tmp_path_factory.mktemp("swallowed"))
    limits = replace(
        LIMITS, heartbeat_timeout=5.0
    )  # shorter, a busy machine would lose sites before anything is swallowed
    world.start(BANK, limits)
    world.start(SHOP, limits)
    try:
        swallowing: list[float] = []

        def swallow(run: SiteRun) -> None:
            link.swallows = True
            swallowing.append(time.monotonic())

        thread = in_mid_run(world, SHOP, swallow)
        assert federated(world, LONG) == 3
        took = time.monotonic() - swallowing[0]
        thread.join(60)
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
        assert "its site shop was lost: " in line
        # the shop gives the run up as well, and hangs up on the way that still works: whichever is first
        first = ("gave no heartbeat for 5 s, and it did not come back within 4 s", "the connection was closed")
        assert line.endswith(first)
        assert took < 60
        link.swallows = False
        end = time.monotonic() + 60
        while any(world.driven_run(name) for name in (BANK, SHOP)) and time.monotonic() < end:
            time.sleep(0.05)
        assert federated(world, SMALL) == 0, world.output
    finally:
        world.stop()
        link.stop()


# --- a restart ------------------------------------------------------------------------------------------------------


@slow
def test_a_site_that_is_restarted_while_a_run_waits_for_its_answer(
    pressed: World, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(kept_proposals(pressed.folder(SHOP)))

    def restart() -> None:
        end = time.monotonic() + 60
        while set(kept_proposals(pressed.folder(SHOP))) == before and time.monotonic() < end:
            time.sleep(0.02)
        pressed.end(SHOP)
        pressed.start(SHOP)

    thread = threading.Thread(target=restart)
    thread.start()
    assert federated(pressed, SMALL, answering=thread) == 3
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert "shop" in line
    end = time.monotonic() + 30
    while pressed.driven_run(BANK) is not None and time.monotonic() < end:
        time.sleep(0.02)
    assert federated(pressed, SMALL) == 0, pressed.output  # nothing of it is left at either

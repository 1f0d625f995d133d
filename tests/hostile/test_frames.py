"""Frames that would make much of themselves: before an approval a site takes little, and what it takes stays small."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest

from fedactors.errors import FedactorsError, Refused
from fedactors.federation.session import ERROR, ERROR_BYTES, Broken, decoded, error_in, value_of
from fedactors.federation.site import PROPOSAL_BYTES
from fedactors.federation.site_run import SiteRun
from fedactors.messages.codec import MAGIC, CodecError, decode, encode
from fedactors.protocols.horizontal.actors import HorizontalServer
from fedactors.runtime.failures import UnawaitedCall
from tests.federation.test_runs import OTHERS, federated
from tests.federation.world import BANK, SHOP, World
from tests.hostile.test_members import connected


def framed(tree: bytes) -> bytes:
    header = msgpack.packb((tree, ()))
    return struct.pack("<4sI", MAGIC, len(header)) + header


def filled(item: bytes, size: int) -> bytes:
    """Return a sequence of so many bytes, of this item again and again."""
    count = (size - 5) // len(item)
    return b"\xdd" + struct.pack(">I", count) + item * count


def nested(begin: bytes, size: int, depth: int = 500) -> bytes:
    """Return sequences within sequences, each of which announces more than there is."""
    return begin * depth + b"\0" * (size - depth * len(begin))


FORMS = {
    "mappings of one item": lambda size: filled(b"\x81\0\0", size),
    "empty mappings": lambda size: filled(b"\x80", size),
    "mappings within mappings": lambda size: filled(b"\x81\0" * 400 + b"\x80", size),
    "sequences of one item": lambda size: filled(b"\x91\0", size),
    "short texts": lambda size: filled(b"\xa2ab", size),
    "large numbers": lambda size: filled(b"\xcd\xff\xff", size),
    "one wide text": lambda size: b"\xdb" + struct.pack(">I", size - 5) + b"a" * (size - 9) + "\U0001f600".encode(),
    "announced sequences": lambda size: nested(b"\xdd" + struct.pack(">I", size - 5000), size),
    "announced mappings": lambda size: nested(b"\x81\0\xdf" + struct.pack(">I", size // 2 - 5000), size),
    "arrays": lambda size: filled(msgpack.packb(msgpack.ExtType(1, msgpack.packb((0, "<f8", (0,))))), size),
    "array facts": lambda size: msgpack.packb(msgpack.ExtType(1, nested(b"\xdd" + struct.pack(">I", size // 2), size))),
    "a message": lambda size: msgpack.packb(msgpack.ExtType(2, nested(b"\xdd" + struct.pack(">I", size // 2), size))),
}


def memory_and_seconds(read: Callable[[], Any]) -> tuple[int, float]:
    """Return what reading a frame takes at its height, and how long."""
    tracemalloc.start()
    try:
        with contextlib.suppress(CodecError, Broken):
            read()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    begun = time.thread_time()
    with contextlib.suppress(CodecError, Broken):
        read()
    return peak, time.thread_time() - begun


@pytest.mark.parametrize("form", FORMS)
def test_a_frame_before_an_approval_takes_little(form: str) -> None:
    frame = framed(FORMS[form](PROPOSAL_BYTES - 100))
    peak, seconds = memory_and_seconds(lambda: decode(frame, most=4 * PROPOSAL_BYTES))
    assert peak < 2 << 20
    assert seconds < 0.05


@pytest.mark.parametrize("form", ["announced sequences", "announced mappings", "array facts", "a message"])
def test_what_a_frame_announces_and_does_not_hold_takes_nothing(form: str) -> None:
    frame = framed(FORMS[form](1 << 20))
    peak, _ = memory_and_seconds(lambda: decode(frame))
    assert peak < 6 * len(frame)


def test_mappings_are_counted_by_what_they_take() -> None:
    frame = framed(FORMS["mappings of one item"](9_900_000))
    with pytest.raises(CodecError, match="take more than 671088640 bytes of memory"):
        decode(frame)


def test_no_integer_is_so_long_that_no_refusal_could_name_it() -> None:
    decode(encode(1 << 10_000))  # of as many clients as there may be, which of them a token has visited
    with pytest.raises(CodecError, match="an integer of 2077 bytes: at most 1700"):
        decode(encode(10**5000))


@pytest.mark.slow
@pytest.mark.parametrize("digits", [400, 5000])
def test_an_order_with_such_a_number_is_refused_and_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digits: int
) -> None:
    """The line that was to refuse it failed, as an error of the site that was asked, and its signed log had nothing."""
    world, honest = World(tmp_path), HorizontalServer._orders

    def orders(self: HorizontalServer, round: int) -> dict[str, Any]:
        return {name: replace(one, round=10**digits) for name, one in honest(self, round).items()}

    monkeypatch.setattr(HorizontalServer, "_orders", orders)
    world.start(BANK)
    world.start(SHOP)
    try:
        assert federated(world, OTHERS["horizontal"][1], protocol="horizontal") in (2, 3)
        found, *_ = world.refusals(SHOP)
    finally:
        world.stop()
    assert ("an integer of 2077 bytes" if digits > 400 else f"calls shop.train with round {10**400}"[:200]) in found


def test_an_array_of_any_size_is_a_question_of_few_bytes() -> None:
    array = np.arange(1 << 18)
    np.testing.assert_array_equal(decode(encode(array), most=4096), array)


@pytest.mark.parametrize("size", [ERROR_BYTES - 100, 8_000_000])
@pytest.mark.parametrize("form", FORMS)
def test_an_error_that_another_site_tells_takes_little(form: str, size: int) -> None:
    frame = framed(FORMS[form](size))
    peak, seconds = memory_and_seconds(lambda: error_in(frame, "shop"))
    assert peak < 8 << 20
    assert seconds < 0.05


def test_where_arrays_lie_is_counted_too() -> None:
    header = msgpack.packb((msgpack.packb(()), list(range(100)) * 10_000))
    with pytest.raises(CodecError, match="exceeds max_array_len"):
        decode(struct.pack("<4sI", MAGIC, len(header)) + header, most=16 << 20, longest=1 << 28)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_long_to_read_keeps_nobody_waiting(form: str) -> None:
    frame = framed(FORMS[form](9_900_000))

    async def longest_wait() -> float:
        longest, reading = 0.0, asyncio.create_task(decoded(frame, BANK))
        while not reading.done():
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - begun)
        if form != "one wide text":
            assert isinstance(reading.exception(), Refused)
        return longest

    async def longest_idle() -> float:
        longest = 0.0
        for _ in range(300):
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - begun)
        return longest

    gc.disable()  # a site does not look through what it has loaded: see below
    try:
        waits = sorted(asyncio.run(longest_wait()) for _ in range(5))
        idle = asyncio.run(longest_idle())
    finally:
        gc.enable()
    assert waits[2] < max(0.15, 5 * idle), (waits, idle)  # alone it is 10 to 40 ms


def test_a_frame_of_a_run_has_so_many_values() -> None:
    value_of(encode(tuple(float(i) for i in range(400_000))), BANK)
    value_of(encode(b"x" * (32 << 20)), BANK)
    with pytest.raises(Refused, match=r"bank: sends what does not decode: .* exceeds max_array_len"):
        value_of(encode(tuple(range(1_000_000))), BANK)
    with pytest.raises(Refused, match="more than 16777216 bytes of memory: many numbers or texts go into arrays"):
        value_of(encode((tuple(range(300_000)), tuple(range(300_000)))), BANK)


def test_a_call_that_is_long_to_read_keeps_its_turn() -> None:
    run, done = object.__new__(SiteRun), []

    async def serve_call(peer: str, sender: Any, receiver: Any, method: Any, value: Any) -> None:
        done.append(method)

    run.serve_call = serve_call  # type: ignore[method-assign]
    run.unawaited = UnawaitedCall(lambda error: None, lambda name: False)

    async def work() -> None:
        in_turn = asyncio.Lock()
        values = (tuple(range(300_000)), None, tuple(range(300_000)), 7)
        frames = [encode((BANK, SHOP, f"call_{number}", value)) for number, value in enumerate(values)]
        await asyncio.gather(*(run._serve_frame(BANK, in_turn, memoryview(frame)) for frame in frames))

    asyncio.run(work())
    assert done == [f"call_{number}" for number in range(4)]


PROCESS = """
import gc, sys
from pathlib import Path
from fedactors.cli import sites
from fedactors.federation.site import _get_ready
from fedactors.federation.site_folder import SiteFolder

async def when_it_listens():
    gc.collect()
    print(len(gc.get_objects()))
    _get_ready()
    gc.collect()
    print(len(gc.get_objects()))

sites.wait_for_stop = when_it_listens
sites._start(SiteFolder(Path(sys.argv[1])), "text")
"""


def test_a_site_does_not_look_for_garbage_in_what_it_has_loaded(tmp_path: Path) -> None:
    """Which takes tenths of a second, whenever frames of many values have come."""
    world = World(tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", PROCESS, str(world.path / SHOP)], capture_output=True, text=True, check=False
    )
    assert "was stopped" in process.stderr, process.stderr
    found = [int(line) for line in process.stdout.splitlines() if line.isdigit()]
    assert len(found) == 2
    assert max(found) < 30_000, found


def command(world: World) -> list[str]:
    return [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["driver", "check", "error"])
def test_a_large_frame_before_an_approval_costs_a_site_less_than_four_times_its_bytes(
    tmp_path: Path, purpose: str
) -> None:
    world, ended = World(tmp_path), threading.Event()
    frame = framed(FORMS["mappings of one item"](9_900_000))
    with subprocess.Popen(command(world), stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        assert "listens at" in site.stdout.readline()
        process, sizes = psutil.Process(site.pid), []

        def look() -> None:
            while not ended.wait(0.002):
                sizes.append(process.memory_info().rss)

        async def work() -> tuple[int, float]:
            async with connected(world, BANK, "check") as steady:
                await steady.ask(b"four", "a call")
                before = process.memory_info().rss
                slowest = 0.0
                async with connected(world, BANK, "check" if purpose == "error" else purpose) as connection:
                    sent = None
                    if purpose == "error":
                        connection._send(ERROR, 0, [frame])
                    else:
                        sent = connection.request([frame], "a large frame")
                    end = time.monotonic() + 3
                    while time.monotonic() < end:
                        begun = time.perf_counter()
                        await steady.ask(b"", "a call")
                        slowest = max(slowest, time.perf_counter() - begun)
                        await asyncio.sleep(0.015)  # a check is 256 calls at most
                    if sent is not None:
                        with pytest.raises(FedactorsError):
                            await sent
                return before, slowest

        looking = threading.Thread(target=look)
        looking.start()
        try:
            before, slowest = asyncio.run(work())
        finally:
            ended.set()
            looking.join()
            site.terminate()
    most = max(sizes)
    print(f"{purpose}: {before / 1e6:.0f} -> {most / 1e6:.0f} MB, slowest answer {slowest * 1e3:.0f} ms")
    assert most - before < 4 * len(frame)
    assert slowest < 0.5  # of two processes on a machine that others use; alone it is less than 50 ms


def test_a_proposal_of_too_many_bytes_is_not_read(world_of_shop: World) -> None:
    lost: list[str] = []

    async def work() -> None:
        async with connected(world_of_shop, BANK, "driver", lost) as connection:
            with pytest.raises(FedactorsError):
                await connection.ask(("propose", ({"config": "x" * PROPOSAL_BYTES},)), "the approval")

    asyncio.run(work())
    assert f"sends a message of more than {PROPOSAL_BYTES} bytes" in lost[0]


@pytest.fixture
def world_of_shop(tmp_path: Path) -> Any:
    made = World(tmp_path)
    made.start(SHOP)
    yield made
    made.stop()

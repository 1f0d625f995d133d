"""Frames that would make much of themselves: before an approval a site takes little, and what it takes stays small."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest

from fedactors.errors import FedactorsError
from fedactors.federation.site import PROPOSAL_BYTES
from fedactors.messages.codec import MAGIC, CodecError, decode, encode
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


def memory_and_seconds(frame: bytes, most: int) -> tuple[int, float]:
    """Return what decoding takes at its height, and how long."""
    tracemalloc.start()
    try:
        decode(frame, most=most)
    except CodecError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    begun = time.thread_time()
    with_error = None
    try:
        decode(frame, most=most)
    except CodecError as error:
        with_error = error
    del with_error
    return peak, time.thread_time() - begun


@pytest.mark.parametrize("form", FORMS)
def test_a_frame_before_an_approval_takes_little(form: str) -> None:
    peak, seconds = memory_and_seconds(framed(FORMS[form](PROPOSAL_BYTES - 100)), 4 * PROPOSAL_BYTES)
    assert peak < 2 << 20
    assert seconds < 0.05


@pytest.mark.parametrize("form", ["announced sequences", "announced mappings", "array facts", "a message"])
def test_what_a_frame_announces_and_does_not_hold_takes_nothing(form: str) -> None:
    frame = framed(FORMS[form](1 << 20))
    peak, _ = memory_and_seconds(frame, 640 << 20)
    assert peak < 6 * len(frame)


def test_mappings_are_counted_by_what_they_take() -> None:
    frame = framed(FORMS["mappings of one item"](9_900_000))
    with pytest.raises(CodecError, match="take more than 671088640 bytes of memory"):
        decode(frame)


def test_an_array_of_any_size_is_a_question_of_few_bytes() -> None:
    array = np.arange(1 << 18)
    np.testing.assert_array_equal(decode(encode(array), most=4096), array)


def command(world: World) -> list[str]:
    return [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["driver", "check"])
def test_a_large_frame_before_an_approval_costs_a_site_less_than_four_times_its_bytes(
    tmp_path: Path, purpose: str
) -> None:
    world = World(tmp_path)
    frame = framed(FORMS["mappings of one item"](9_900_000))
    with subprocess.Popen(command(world), stdout=subprocess.PIPE, text=True) as site:
        assert site.stdout is not None
        assert "listens at" in site.stdout.readline()
        process = psutil.Process(site.pid)

        async def work() -> tuple[int, int, float]:
            async with connected(world, BANK, "check") as steady:
                await steady.ask(b"four", "a call")
                before = most = process.memory_info().rss
                slowest = 0.0
                async with connected(world, BANK, purpose) as connection:
                    sent = connection.request([frame], "a large frame")
                    end = time.monotonic() + 3
                    while time.monotonic() < end:
                        begun = time.perf_counter()
                        await steady.ask(b"", "a call")
                        slowest = max(slowest, time.perf_counter() - begun)
                        most = max(most, process.memory_info().rss)
                        await asyncio.sleep(0.002)
                    with pytest.raises(FedactorsError):
                        await sent
                return before, most, slowest

        before, most, slowest = asyncio.run(work())
        site.terminate()
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

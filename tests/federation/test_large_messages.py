"""Messages that travel in parts: what is between them, what breaks, and what a hostile site makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.errors import CallTimeout, FedactorsError, PartyLost
from fedactors.federation.handshake import dial
from fedactors.federation.identity import Member
from fedactors.federation.large_messages import (
    BEGINS,
    FROM,
    LARGE_BYTES,
    MAPPED_BYTES,
    PART_BYTES,
    UNWRITTEN_BYTES,
    Arriving,
    Leaving,
    Outbox,
)
from fedactors.federation.session import (
    BEGIN,
    HEAD,
    PART,
    PIECE_BYTES,
    REPLY,
    REQUEST,
    TAKEN,
    WINDOW_BYTES,
    WROTE,
    Connection,
    value_of,
)
from fedactors.messages.codec import Parts, encode_parts
from fedactors.runtime.addresses import free_port
from tests.federation.test_broken_links import HELLO, Shop, called, from_the_bank
from tests.federation.test_broken_links import pair as pair
from tests.federation.test_runs import SMALL, federated
from tests.federation.ways import Way
from tests.federation.world import BANK, LIMITS, SHOP, World

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


class Store(Shop):
    """Takes arrays, keeps what it was given, and answers with so many bytes of it."""

    def __init__(self, world: World, limits: Any = LIMITS) -> None:
        super().__init__(world, limits)
        self.given: list[tuple[str, np.ndarray]] = []
        self.said: list[str] = []

    async def serve(self, body: memoryview) -> Any:
        name, array, size = value_of(body, BANK)
        self.given.append((name, array))
        return array[:size]


def with_store(world: World, work: Callable[[Store, Connection, list[str]], Any], **ways: Any) -> Any:
    limits = ways.pop("limits", LIMITS)

    async def everything(shop: Shop, member: Member) -> Any:
        store = Store(world, limits)
        shop.serve = store.serve  # type: ignore[method-assign]
        store.why, store.refused, store.links = shop.why, shop.refused, shop.links
        ends = shop.ends
        shop.ends = lambda *_: {**ends(), "tell": lambda _, text: store.said.append(text)}  # type: ignore[method-assign]
        lost: list[str] = []
        link = await dial(world.folder(BANK), member, HELLO, limits, **from_the_bank(world, lost))
        try:
            return await work(store, link, lost)
        finally:
            link.close()
            store.given.clear()

    return called(world, everything, limits=limits, **ways)


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)


def unnamed() -> dict[tuple[int, int], os.stat_result]:
    """The files that this process has open and that no folder names."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            file = os.stat(f"/proc/self/fd/{name}")
            if stat.S_ISREG(file.st_mode) and not file.st_nlink:
                found[file.st_dev, file.st_ino] = file
    return found


OTHERS = set(unnamed())
"""Those of pytest."""


def files() -> list[os.stat_result]:
    return [file for key, file in unnamed().items() if key not in OTHERS]


async def no_files() -> None:
    """Wait until none is left, for what is written is closed in a thread."""
    async with asyncio.timeout(10):
        while files():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", [LARGE_BYTES - MIB, LARGE_BYTES + 1, MAPPED_BYTES + 12_345])
def test_a_large_message_and_a_large_reply_arrive_whole_as_read_only_views_and_leave_no_file(
    pair: World, size: int
) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        sent = noise(size)
        reply = value_of(await link.request(encode_parts(("a", sent, size)), "a call"), SHOP)
        (_, array), is_mapped = store.given.pop(), size > MAPPED_BYTES
        assert np.array_equal(array, sent)
        assert np.array_equal(reply, sent)
        assert not array.flags.writeable
        assert not reply.flags.writeable
        assert [file.st_size for file in files() if file.st_size >= size] == [file.st_size for file in files()]
        assert len(files()) == (2 if is_mapped else 0)
        del array, reply
        await no_files()
        assert [*lost, *store.why] == []
        assert (len(link._outbox), len(link._arriving)) == (0, 0)

    with_store(pair, work)


def test_what_carries_much_is_read_in_large_blocks_and_seldom_acknowledged(pair: World) -> None:
    """Each read and each acknowledgement wakes a process; who sends little is read little of at once."""

    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        (end,) = store.links.values()
        assert end.stream._wire is not None
        tls = end.stream._wire.transport._ssl_protocol
        reads, take = [], tls.buffer_updated

        def read(num_bytes: int) -> None:
            reads.append(num_bytes)
            take(num_bytes)

        tls.buffer_updated = read
        sent, said = noise(MIB), end.traffic.sent
        for _ in range(8):
            await link.request(encode_parts(("a", sent, 1)), "a call")
        assert all(np.array_equal(array, sent) for _, array in store.given)
        assert max(reads) > 128 * 1024, sorted(reads)
        assert end.traffic.sent - said < 8 * (256 + 2 * (HEAD.size + TAKEN.size)), "two pieces a MiB"
        await link.request(encode_parts(("b", noise(1), 1)), "a call")
        assert len(tls.get_buffer(-1)) < 66 * 1024
        assert [*lost, *store.why] == []

    with_store(pair, work)


def test_small_calls_pass_a_large_one_and_calls_of_one_order_do_not(pair: World) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        one = np.zeros(1, np.uint8)
        large = link.request(encode_parts(("large", noise(60 * MIB), 1)), "a call", order="x")
        behind = link.request(encode_parts(("behind", one, 1)), "a call", order="x")
        passing = [link.request(encode_parts(("passing", one, 1)), "a call", order="y") for _ in range(3)]
        async with asyncio.timeout(60):
            await asyncio.gather(large, behind, *passing)
        assert [name for name, _ in store.given] == ["passing"] * 3 + ["large", "behind"]
        assert not lost

    with_store(pair, work)


@pytest.mark.slow
def test_calls_of_an_actor_have_its_order_also_those_of_the_driver(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Connection.request
    orders: dict[str, set[str]] = {}

    def noted(link: Connection, parts: Parts, what: str, *, is_limited: bool = True, order: str = "") -> Any:
        receiver, _, method = what.rpartition(".")
        if method and "/" in receiver:
            orders.setdefault(receiver, set()).add(order)
        return request(link, parts, what, is_limited=is_limited, order=order)

    monkeypatch.setattr(Connection, "request", noted)
    assert federated(world, (*SMALL, "algorithm=vfl")) == 0
    assert orders
    assert orders == {receiver: {receiver} for receiver in orders}


@pytest.mark.slow
def test_a_site_that_allows_smaller_messages_takes_as_many_bytes_at_once_as_others_send(pair: World) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        link.limits = LIMITS
        calls = [link.request(encode_parts((name, noise(30 * MIB), 1)), "a call") for name in "abc"]
        async with asyncio.timeout(60):
            await asyncio.gather(*calls)
        assert sorted(name for name, _ in store.given) == ["a", "b", "c"]
        assert not lost

    with_store(pair, work, limits=replace(LIMITS, message=40 * MIB, under_way=200 * MIB, at_once=LIMITS.message))


@pytest.mark.slow
def test_a_link_that_is_cut_goes_on_at_the_part_and_not_at_the_start(pair: World) -> None:
    ways: list[Way] = []

    def way(port: int) -> Way:
        ways.append(Way(free_port(), ("127.0.0.1", port)))
        return ways[0]

    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        sent = noise(100 * MIB)
        reply = link.request(encode_parts(("a", sent, 10)), "a call")
        again = []
        for _ in range(3):
            (theirs,) = store.links.values()
            came = theirs.traffic.received
            while theirs.traffic.received < came + 20 * MIB:
                await asyncio.sleep(0.002)
            await asyncio.to_thread(ways[0].cut)
            again.append(sum(map(len, link.stream._kept)))
        async with asyncio.timeout(60):
            await reply
        assert np.array_equal(store.given[0][1], sent)
        assert max(again) <= WINDOW_BYTES + 2 * PIECE_BYTES
        assert ways[0].num_cuts >= 3
        assert not lost

    with_store(pair, work, way=way)


@pytest.mark.slow
def test_neither_side_has_a_second_copy_of_what_travels(pair: World, tmp_path: Path) -> None:
    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

    size = 400 * MIB
    sent = np.memmap(tmp_path / "model", np.uint8, "w+", shape=(size,))
    sent[:: 1 << 16] = 7
    most = [0]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            most[0] = max(most[0], anonymous())

    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        before = anonymous()
        watching = threading.Thread(target=watch)
        watching.start()
        async with asyncio.timeout(60):
            await link.request(encode_parts(("a", np.asarray(sent), 1)), "a call")
        is_over.set()
        watching.join()
        assert store.given[0][1].nbytes == size
        assert np.array_equal(store.given[0][1], sent)
        assert most[0] - before < 80 * MIB, f"{(most[0] - before) / MIB:.0f} MiB"

    with_store(pair, work, limits=replace(LIMITS, message=size + MIB))


@pytest.mark.slow
def test_between_two_processes_a_message_from_a_file_takes_little_memory_and_goes_on_after_a_break() -> None:
    """As scenarios/benchmarks/large_messages.py measures it with 2 GiB."""
    words = [sys.executable, "-m", "scenarios.benchmarks.large_messages", "--gib", "0.25"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["mib"] == 256
    for way in ("lasts", "breaks"):
        assert found[way]["sender_mib"] < 60
        assert found[way]["receiver_mib"] < 60
    assert 0 < found["breaks"]["carried_again_mib"] < 20


def test_a_message_above_what_is_approved_does_not_leave_and_says_what_to_do(pair: World) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        big, small = encode_parts(("a", noise(21 * MIB), 1)), encode_parts(("b", noise(10), 1))
        with pytest.raises(FedactorsError, match=r"at most 20971520 are approved: --limit message_gib=0.03, where pol"):
            await link.request(big, "shop.take")
        await link.request(small, "a call")
        assert [name for name, _ in store.given] == ["b"]
        assert not lost

    with_store(pair, work, limits=replace(LIMITS, message=20 * MIB))


@pytest.mark.slow
def test_a_message_that_finds_no_room_is_an_error_in_one_line_and_the_link_goes_on(pair: World) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30 * MIB, hard))
        try:
            with pytest.raises(FedactorsError, match=rf"^{SHOP}: has no room for a message of \d+ bytes \(File too l"):
                await link.request(encode_parts(("a", noise(MAPPED_BYTES + MIB), 1)), "a call")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await link.request(encode_parts(("b", noise(10), 1)), "a call")
        assert [name for name, _ in store.given] == ["b"]
        assert not lost
        (said,) = store.said
        assert "has no room for a message of 681" in said, said
        assert "File too large): policy.limits.disk_gib and --limit disk_gib" in said
        assert link.stream.is_carried
        (theirs,) = store.links.values()
        assert (theirs._num_open, theirs._held_bytes) == (0, 0)
        await no_files()

    with_store(pair, work)


@pytest.mark.slow
def test_a_call_has_its_time_for_the_answer_after_its_last_part(pair: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Arriving._write

    def slow(one: Arriving, parts: list[memoryview]) -> None:
        time.sleep(0.4)
        write(one, parts)

    monkeypatch.setattr(Arriving, "_write", slow)

    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        begun, size = time.monotonic(), 60 * MIB
        assert len(await link.request(encode_parts(("a", noise(size), size)), "a call")) > size
        assert time.monotonic() - begun > 3.0
        assert not link._moved
        await asyncio.sleep(1.6)  # for timers that are left
        assert not lost

        async def never(body: memoryview) -> None:
            await asyncio.sleep(20)

        (theirs,) = store.links.values()
        theirs.serve = never
        with pytest.raises(CallTimeout, match=r"a call gave no answer within 1\.5 s"):
            await link.request(encode_parts(("a", noise(9 * MIB), 1)), "a call")

    with_store(pair, work, limits=replace(LIMITS, call=1.5))


# --- hostile --------------------------------------------------------------------------------------------------------

SIZE = 3 * PART_BYTES + 1000
MAPPED = MAPPED_BYTES + MIB
Piece = tuple[int, int, bytes]


def begin(number: int = 1, size: int = SIZE) -> Piece:
    return BEGIN, number, BEGINS.pack(REQUEST, size)


def part(start: int, size: int = PART_BYTES, number: int = 1) -> Piece:
    return PART, number, FROM.pack(REQUEST, start) + bytes(size)


def parts(size: int = SIZE, number: int = 1) -> list[Piece]:
    """All parts of a message but its last."""
    return [part(start, number=number) for start in range(0, size - PART_BYTES, PART_BYTES)]


HOSTILE: dict[str, tuple[list[Piece], str]] = {
    "out of order": ([begin(), part(PART_BYTES)], f"sends the part of a message from byte {PART_BYTES} on: 0 is next"),
    "overlapping": ([begin(), part(0), part(100)], "sends the part of a message from byte 100"),
    "more than announced": ([begin(size=1000), part(0, 2000)], "sends a part of 2000 bytes of a message of 1000"),
    "more at the end": ([begin(), *parts(), part(SIZE - 1000, 1001)], "sends a part of 1001 bytes"),
    "after the end": ([begin(), *parts(), part(SIZE - 1000, 1000), part(SIZE, 1)], "has not begun, or has ended"),
    "byte by byte": ([begin(), part(0, 1)], "sends a part of 1 bytes"),
    "nothing": ([begin(), part(0, 0)], "sends a part of 0 bytes"),
    "begun twice": ([begin(), begin()], "sends call 1 after call 1"),
    "never begun": ([part(0)], "has not begun"),
    "too large": (
        [begin(size=LIMITS.message + 1)],
        "announces a message of 268435457 bytes: at most 268435456 (--limit",
    ),
    "of no bytes": ([begin(size=0)], "announces a message of 0 bytes"),
    "an answer to nothing": ([(BEGIN, 1, BEGINS.pack(REPLY, 10))], "answers call 1, which was not made"),
    "an error": ([(BEGIN, 1, BEGINS.pack(2, 10))], "no call and no answer"),
    "cut short": ([(BEGIN, 1, b"x")], "sends an invalid part"),
    "a part cut short": ([begin(), (PART, 1, b"x")], "sends an invalid part"),
    "too many at once": (
        [
            one
            for number in range(1, 6)
            for one in (begin(number, MAPPED if number < 3 else SIZE), part(0, number=number))
        ],
        "sends parts of more than 4 messages at once",
    ),
    "too large together": (
        [one for number in range(1, 5) for one in (begin(number, 100 * MIB), part(0, number=number))],
        f"sends parts of messages of {300 * MIB} bytes at once: at most {256 * MIB}",
    ),
    "too many begun": ([begin(number) for number in range(1, 4200)], "under way"),
    "never finished": ([begin(size=MAPPED), *parts(2 * MIB)], "took more than 1 s to send one piece"),
    "never any part": ([begin()], "took more than 1 s to send one piece"),
    "written, where nothing was sent": ([(WROTE, 0, TAKEN.pack(1))], "says that it wrote 1 bytes of parts, of 0 that"),
    "written, cut short": ([(WROTE, 0, b"x")], "sends an invalid part"),
    "written again and again": ([(WROTE, 0, TAKEN.pack(0))] * 2000, "gives heartbeats all the time"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_parts_that_do_not_keep_to_the_rules_end_the_link_in_one_line_and_leave_no_file(pair: World, name: str) -> None:
    said, why = HOSTILE[name]

    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        link._outbox._sent = MAPPED  # it takes what the other side says of its parts
        for kind, number, body in said:
            link._put([body], kind, False, number)
        async with asyncio.timeout(10):
            while not lost:
                await asyncio.sleep(0.01)
        assert why in lost[0]
        assert len(lost[0].splitlines()) == 1
        assert not store.given
        await no_files()

    with_store(pair, work, limits=replace(LIMITS, piece=1.0 if name.startswith("never") else LIMITS.piece))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, PIECE_BYTES - 1000])
def test_a_message_that_stops_is_refused_beside_small_calls_and_has_the_time_that_large_ones_take(
    pair: World, size: int
) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        link._outbox._sent = MAPPED
        for kind, number, body in (begin(), part(0)):
            link._put([body], kind, False, number)
        link._made = 1
        link._late.add(1)
        begun = time.monotonic()
        while not lost and time.monotonic() - begun < 4.0:
            await asyncio.sleep(0.2)
            with contextlib.suppress(PartyLost):
                await link.request(encode_parts(("other", np.zeros(size, np.uint8), 1)), "a call")
        if size == 1:
            assert "took more than 1 s to send one piece" in lost[0]
            assert len(store.given) > 2
        else:
            for kind, number, body in (part(PART_BYTES), part(2 * PART_BYTES), part(3 * PART_BYTES, 1000)):
                link._put([body], kind, False, number)
            (theirs,) = store.links.values()
            async with asyncio.timeout(10):
                while theirs._arriving:
                    await asyncio.sleep(0.01)
            assert not lost
        await no_files()

    with_store(pair, work, limits=replace(LIMITS, piece=1.0))


@pytest.mark.slow
def test_the_time_to_write_what_arrived_is_not_the_senders(pair: World, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Arriving._write

    def slow(one: Arriving, parts: list[memoryview]) -> None:
        time.sleep(2.0)
        write(one, parts)

    monkeypatch.setattr(Arriving, "_write", slow)

    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        link._outbox._sent, link._made = SIZE, 1
        link._late.add(1)
        for kind, number, body in (begin(), *parts()):
            link._put([body], kind, False, number)
        async with asyncio.timeout(20):
            while link._outbox._written < 3 * PART_BYTES:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.6)  # on the way of a network
        (theirs,) = store.links.values()
        link._put([part(3 * PART_BYTES, 1000)[2]], PART, False, 1)
        async with asyncio.timeout(10):
            while theirs._arriving and not lost:
                await asyncio.sleep(0.01)
        assert not lost

    with_store(pair, work, limits=replace(LIMITS, piece=1.0))


def test_what_takes_turns_is_bounded_and_goes_on_until_it_is_sent() -> None:
    """Four messages at most, of one order one, of all so many bytes; while nothing is written, a window at most."""
    outbox, sizes = Outbox(), [50, 60, 50, 50, 300, 10]
    made = [Leaving(REQUEST, n, [bytes(size * MIB)], "xxabc"[n - 1 : n]) for n, size in enumerate(sizes, 1)]
    for one in made:
        outbox.add(one)
    sent: list[int] = []
    written = 0
    while outbox:
        while (due := outbox.due(200 * MIB)) is not None:
            assert outbox.holds(due.order) or not due.order
            outbox.take_part(due)
            sent.append(due.number)
            under_way = [other for other in made if 0 < other.sent < other.size]
            assert len(under_way) <= 4
            assert len(under_way) < 2 or sum(other.size for other in under_way) <= 200 * MIB
        total = sum(other.sent for other in made)
        assert not outbox or UNWRITTEN_BYTES <= total - written < UNWRITTEN_BYTES + PART_BYTES
        written = total
        assert outbox.wrote(written) == ""
    assert outbox.wrote(written - 1) == f"says that it wrote {written - 1} bytes of parts, of {written} that were sent"
    assert [one.sent for one in made] == [one.size for one in made]
    assert sent[:9] == [1, 3, 4, 1, 3, 4, 1, 3, 4]
    firsts, lasts = [sent.index(n) for n in range(1, 7)], [len(sent) - sent[::-1].index(n) for n in range(1, 7)]
    assert firsts[1] >= lasts[0], "one order"
    assert all(other.sent == other.size for other in made)


def test_more_than_the_window_is_refused_while_nothing_is_written(pair: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        free = threading.Event()
        write = Arriving._write

        def slow(one: Arriving, parts: list[memoryview]) -> None:
            free.wait(10)
            write(one, parts)

        monkeypatch.setattr(Arriving, "_write", slow)
        try:
            link._outbox._sent = MAPPED
            for kind, number, body in [begin(size=MAPPED), *parts(MAPPED)]:
                link._put([body], kind, False, number)
            async with asyncio.timeout(10):
                while not lost:
                    await asyncio.sleep(0.01)
        finally:
            free.set()
        assert f"sends more than {UNWRITTEN_BYTES} bytes of parts before they are written" in lost[0]
        await no_files()

    with_store(pair, work)

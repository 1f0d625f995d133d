"""Messages that travel in parts: what is between them, what breaks, and what a hostile site makes of them."""

from __future__ import annotations

import asyncio
import hashlib
import resource
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.errors import FedactorsError
from fedactors.federation.handshake import dial
from fedactors.federation.identity import Member
from fedactors.federation.large_messages import (
    ANNOUNCED,
    DIGEST,
    FROM,
    LARGE_BYTES,
    MAPPED_BYTES,
    WINDOW_BYTES,
    Arriving,
)
from fedactors.federation.session import BEGIN, END, PART, PIECE_BYTES, REQUEST, Connection, value_of
from fedactors.messages.codec import encode_parts
from fedactors.runtime.addresses import free_port
from tests.federation.test_broken_links import HELLO, Shop, called, from_the_bank
from tests.federation.test_broken_links import pair as pair
from tests.federation.ways import Way
from tests.federation.world import BANK, LIMITS, SHOP, World

MIB = 1 << 20
PART_BYTES = PIECE_BYTES - FROM.size


class Store(Shop):
    """Takes arrays, keeps what it was given, and answers with so many bytes of it."""

    def __init__(self, world: World, limits: Any = LIMITS) -> None:
        super().__init__(world, limits)
        self.given: list[tuple[str, np.ndarray]] = []

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
        lost: list[str] = []
        link = await dial(world.folder(BANK), member, HELLO, limits, **from_the_bank(world, lost))
        try:
            return await work(store, link, lost)
        finally:
            link.close()

    return called(world, everything, limits=limits, **ways)


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)


def files() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("message-*"))


@pytest.mark.parametrize("size", [LARGE_BYTES - MIB, LARGE_BYTES + 1, MAPPED_BYTES + 12_345])
def test_a_large_message_and_a_large_reply_arrive_whole_as_read_only_views_and_leave_no_file(
    pair: World, size: int
) -> None:
    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        sent, before = noise(size), files()
        reply = value_of(await link.request(encode_parts(("a", sent, size)), "a call"), SHOP)
        (_, array), is_mapped = store.given.pop(), size > MAPPED_BYTES
        assert np.array_equal(array, sent)
        assert np.array_equal(reply, sent)
        assert not array.flags.writeable
        assert not reply.flags.writeable
        new = files() - before
        assert len(new) == (2 if is_mapped else 0)
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in new)
        del array, reply
        await asyncio.sleep(0.1)
        assert files() == before
        assert not lost
        assert not (store.why)
        assert not (link._leaving)
        assert not (link._arriving)

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
        before = files()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30 * MIB, hard))
        try:
            with pytest.raises(FedactorsError, match=rf"^.*{SHOP}.*has no room for a message of \d+ bytes"):
                await link.request(encode_parts(("a", noise(MAPPED_BYTES + MIB), 1)), "a call")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        await link.request(encode_parts(("b", noise(10), 1)), "a call")
        assert [name for name, _ in store.given] == ["b"]
        assert not lost
        assert files() == before

    with_store(pair, work)


# --- hostile --------------------------------------------------------------------------------------------------------

SIZE = 4 * PART_BYTES


def begin(number: int = 1, size: int = SIZE) -> tuple[int, int, bytes]:
    return BEGIN, number, ANNOUNCED.pack(REQUEST, size)


def part(start: int, size: int = PART_BYTES, number: int = 1) -> tuple[int, int, bytes]:
    return PART, number, FROM.pack(REQUEST, start) + bytes(size)


def end(content: bytes = b"", number: int = 1) -> tuple[int, int, bytes]:
    return END, number, DIGEST.pack(REQUEST, hashlib.sha256(content).digest())


WHOLE = [part(start) for start in range(0, SIZE, PART_BYTES)]
HOSTILE = {
    "out of order": ([begin(), part(PART_BYTES)], "sends the part of a message from byte"),
    "overlapping": ([begin(), part(0), part(100)], "sends the part of a message from byte 100"),
    "more than announced": ([begin(size=1000), part(0, 2000)], "sends 2000 bytes of a message of 1000"),
    "nothing": ([begin(), part(0, 0)], "sends 0 bytes of a message"),
    "ended too early": ([begin(), part(0), end()], "ends a message of"),
    "another digest": ([begin(), *WHOLE, end(b"x")], "whose digest is not that of its bytes"),
    "ended twice": ([begin(), *WHOLE, end(bytes(SIZE)), part(0)], "has not begun, or has ended"),
    "begun twice": ([begin(), begin()], "sends call 1 after call 1"),
    "never begun": ([part(0)], "has not begun"),
    "too large": ([begin(size=LIMITS.message + 1)], "announces a message of 268435457 bytes"),
    "of no bytes": ([begin(size=0)], "announces a message of 0 bytes"),
    "an answer to nothing": ([(BEGIN, 1, ANNOUNCED.pack(1, 10))], "answers call 1, which was not made"),
    "an error": ([(BEGIN, 1, ANNOUNCED.pack(2, 10))], "no call and no answer"),
    "cut short": ([(BEGIN, 1, b"x")], "sends an invalid part"),
    "too many at once": (
        [one for number in range(1, 11) for one in (begin(number), part(0, number=number))],
        "sends parts of more than 4 messages at once",
    ),
    "too many begun": ([begin(number) for number in range(1, 4200)], "under way"),
    "never finished": ([begin(), part(0)], "took more than 1 s to send one piece"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_parts_that_do_not_keep_to_the_rules_end_the_link_in_one_line_and_leave_no_file(pair: World, name: str) -> None:
    said, why = HOSTILE[name]

    async def work(store: Store, link: Connection, lost: list[str]) -> None:
        before = files()
        for kind, number, body in said:
            link._put([body], kind, False, number)
        async with asyncio.timeout(10):
            while not lost:
                await asyncio.sleep(0.01)
        assert why in lost[0]
        assert len(lost[0].splitlines()) == 1
        assert not [one for one, _ in store.given] or name == "ended twice"
        assert files() == before

    with_store(pair, work, limits=replace(LIMITS, piece=1.0 if name == "never finished" else LIMITS.piece))


def test_more_than_the_window_is_refused_while_nothing_is_written() -> None:
    one, block = Arriving(4 * WINDOW_BYTES), memoryview(bytes(PART_BYTES))
    said = ""
    while not said:
        said = one.add(one.received, block)
    assert said == f"sends more than {WINDOW_BYTES} bytes of a message before they are written"
    assert one.received <= WINDOW_BYTES + PART_BYTES

"""A link that breaks at any byte, and comes back or not: nothing is lost, or done twice, or it is a line."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedactors.errors import FedactorsError, PartyLost, Refused
from fedactors.federation.handshake import accept, dial
from fedactors.federation.identity import Member
from fedactors.federation.operations import agree
from fedactors.federation.session import (
    NEW,
    PIECE_BYTES,
    PING,
    REQUEST,
    TAKEN,
    WINDOW_BYTES,
    Connection,
    Hello,
    framed,
    value_of,
)
from fedactors.federation.site_run import SiteRun
from fedactors.messages.codec import encode_parts
from fedactors.runtime.addresses import free_port
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import LONG, in_mid_run
from tests.federation.test_going_on import MANY, same
from tests.federation.test_runs import SMALL, federated, last_line, last_run, simulated
from tests.federation.ways import Way, on_a_way
from tests.federation.world import BANK, LIMITS, SHOP, World

HELLO = Hello("credit", "calls", "0" * 16, "")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two sites of a federation, neither of which listens."""
    return World(tmp_path_factory.mktemp("pair"))


class Shop:
    """What is dialled in place of the shop's process: it takes links of the bank, and answers a call with its bytes."""

    def __init__(self, world: World, limits: Any = LIMITS) -> None:
        self.folder = world.folder(SHOP)
        self.limits = limits
        self.links: dict[tuple[str, str], Connection] = {}
        self.taken: list[int] = []
        self.why: list[str] = []
        self.refused: list[str] = []

    async def serve(self, body: memoryview) -> Any:
        number, size, _ = value_of(body, BANK)
        self.taken.append(number)
        return bytes([number % 256]) * size

    def ends(self, *_: Any) -> dict[str, Any]:
        lost: Callable[..., None] = lambda _, why: self.why.append(why)  # noqa: E731
        return {"serve": self.serve, "lost": lost, "errors": errors_for(SHOP, BANK)}

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said: Callable[..., None] = lambda _, why: self.refused.append(why)  # noqa: E731
        await accept(self.folder, reader, writer, self.limits, self.links, self.ends, said, lambda _: None)


def called(
    world: World, work: Callable[[Shop, Member], Any], way: Callable[[int], Way] | None = None, limits: Any = LIMITS
) -> Any:
    """Let a shop listen, behind a way if one is given, and do something with it."""

    async def everything() -> Any:
        shop = Shop(world, limits)
        server = await asyncio.start_server(shop.take, "127.0.0.1", 0, limit=2 * PIECE_BYTES)
        port = server.sockets[0].getsockname()[1]
        made = None if way is None else way(port)
        try:
            known = shop.folder.federation.members[SHOP]
            member = replace(known, host="127.0.0.1", port=port if made is None else made.port)
            return await work(shop, member)
        finally:
            for link in shop.links.values():
                link.close()
            server.close()
            if made is not None:
                await asyncio.to_thread(made.stop)
            await asyncio.sleep(0.05)

    return asyncio.run(everything())


def from_the_bank(world: World, lost: list[str], session: str = "") -> dict[str, Any]:
    more = {"session": session} if session else {}
    return {"serve": None, "lost": lambda _, why: lost.append(why), "errors": errors_for(BANK, SHOP), **more}


# --- a link ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_over_connections_that_live_for_some_bytes_each_call_is_done_once_and_in_its_order(
    pair: World, seed: int
) -> None:
    rng = random.Random(seed)
    ways: list[Way] = []

    def way(port: int) -> Way:
        ways.append(Way(free_port(), ("127.0.0.1", port)))
        ways[0].lives = iter(lambda: rng.randrange(1, 60_000), 0)
        return ways[0]

    async def work(shop: Shop, member: Member) -> tuple[list[int], int]:
        lost: list[str] = []
        for _ in range(200):  # the first handshake is not said again
            try:
                link = await dial(pair.folder(BANK), member, HELLO, LIMITS, **from_the_bank(pair, lost))
                break
            except FedactorsError:
                pass
        asked = []
        for number in range(120):
            there, back = (rng.choice((0, 10, 5_000, 30_000, 400_000 if number % 20 == 0 else 1)) for _ in range(2))
            parts = encode_parts((number, back, bytes(there)))
            asked.append((number, back, link.request(parts, "a call")))
            if number % 10 == 0:
                await asyncio.sleep(0.01)
        for number, back, reply in asked:
            async with asyncio.timeout(120):
                assert value_of(await reply, SHOP) == bytes([number % 256]) * back
        await link.end()
        assert not lost
        return shop.taken, ways[0].num_cuts

    taken, cuts = called(pair, work, way, replace(LIMITS, away=30.0))
    assert taken == list(range(120))
    assert cuts > 30


@pytest.mark.slow
def test_what_is_kept_for_who_says_not_that_it_took_it_is_bounded(pair: World) -> None:
    """Both sides send more than that at once, too, and neither waits for the other for ever."""

    async def press() -> int:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while await reader.read(1 << 20):
                    pass
            writer.transport.abort()

        server = await asyncio.start_server(take, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        link = Connection(peer=SHOP, limits=LIMITS, **from_the_bank(pair, []))
        link.carry(writer, 0, is_dialled=True)
        link.start()
        for _ in range(8):
            link.request(encode_parts(bytes(8 << 20)), "much").add_done_callback(lambda done: done.exception())
        was = -1
        while was != link.stream.written:
            was = link.stream.written
            await asyncio.sleep(0.5)
        await link.end()
        server.close()
        await asyncio.sleep(0.2)  # in which both ends are closed
        return was

    assert WINDOW_BYTES <= asyncio.run(press()) < WINDOW_BYTES + 2 * PIECE_BYTES

    async def both(shop: Shop, member: Member) -> None:
        link = await dial(pair.folder(BANK), member, HELLO, LIMITS, **from_the_bank(pair, []))
        size = 3 * WINDOW_BYTES
        asked = [link.request(encode_parts((number, size, bytes(size))), "much") for number in range(3)]
        async with asyncio.timeout(50):
            for reply in asked:
                assert len(value_of(await reply, SHOP)) == size
        await link.end()

    called(pair, both)


async def greeted(world: World, member: Member, session: str, taken: int) -> None:
    """Dial once with a handshake that names a session, and says how much of it was taken."""
    hello = replace(HELLO, session=session, taken=taken)
    link = Connection(peer=SHOP, limits=LIMITS, **from_the_bank(world, [], session))
    from fedactors.federation.handshake import _meet

    await _meet(world.folder(BANK), member, hello, LIMITS, taken, link)
    link.close()


@pytest.mark.parametrize(
    ("session", "taken", "said"),
    [
        ("other", 0, "would go on with a link that is over, or was when the site started again"),
        ("own", NEW, "begins a link for the second time"),
        ("own", 1 << 40, "says that it took 1099511627776 bytes, of "),
        ("own", 0, "says that it took 0 bytes, of "),
    ],
)
def test_who_goes_on_with_what_cannot_be_is_refused_and_the_link_holds(
    pair: World, session: str, taken: int, said: str
) -> None:
    async def work(shop: Shop, member: Member) -> None:
        lost: list[str] = []
        link = await dial(pair.folder(BANK), member, HELLO, LIMITS, **from_the_bank(pair, lost))
        asked = encode_parts((0, 1 << 20, b""))
        assert value_of(await link.request(asked, "a call"), SHOP) == bytes(1 << 20)
        with pytest.raises(Refused, match=said):
            await greeted(pair, member, link.session if session == "own" else "0" * 32, taken)
        assert said in shop.refused[-1]
        assert value_of(await link.request(encode_parts((1, 1, b"")), "a call"), SHOP) == b"\x01"
        assert not lost
        await link.end()

    called(pair, work)


def test_a_site_does_not_go_on_with_anothers_link(tmp_path: Path) -> None:
    """The session is known to be the bank's by the bank's certificate: the shop's does not open it."""
    world = World(tmp_path)

    async def work(shop: Shop, member: Member) -> None:
        lost: list[str] = []
        link = await dial(world.folder(BANK), member, HELLO, LIMITS, **from_the_bank(world, lost))
        from fedactors.federation.handshake import _meet

        thief = Connection(peer=SHOP, limits=LIMITS, **from_the_bank(world, [], link.session))
        with pytest.raises(Refused, match="would go on with a link that is over"):
            await _meet(world.folder(SHOP), member, HELLO, LIMITS, 0, thief)
        assert value_of(await link.request(encode_parts((1, 1, b"")), "a call"), SHOP) == b"\x01"
        assert not lost
        await link.end()

    called(world, work)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (TAKEN.pack(1 << 50), "says that it took 1125899906842624 bytes, of "),
        (b"", "sends an invalid heartbeat"),
        (b"x" * 9, "sends an invalid heartbeat"),
    ],
)
def test_a_sign_of_life_that_is_none_ends_the_link(pair: World, said: bytes, why: str) -> None:
    async def work(shop: Shop, member: Member) -> str:
        lost: list[str] = []
        link = await dial(pair.folder(BANK), member, HELLO, LIMITS, **from_the_bank(pair, lost))
        link.stream.write(framed([said], PING))
        async with asyncio.timeout(20):
            while not lost:
                await asyncio.sleep(0.01)
        assert why in shop.why[0]
        return lost[0]

    assert why in called(pair, work)


def test_what_drips_after_it_began_is_refused_in_its_time(pair: World) -> None:
    """It gets longer byte by byte, and never whole."""
    limits = replace(LIMITS, piece=1.0, heartbeat_timeout=2.0, away=30.0)

    async def drip(shop: Shop, member: Member) -> str:
        lost: list[str] = []
        link = await dial(pair.folder(BANK), member, HELLO, limits, **from_the_bank(pair, lost))
        whole = framed([bytes(1000)], REQUEST)
        for at in range(len(whole)):
            link.stream.write(whole[at : at + 1])
            await asyncio.sleep(0.05)
            if lost:
                break
        return lost[0]

    assert "took more than 1 s to send one piece" in called(pair, drip, limits=limits)


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Way]]:
    world, way = on_a_way(tmp_path_factory.mktemp("broken"))
    world.start(BANK)
    world.start(SHOP)
    yield world, way
    way.lives, way.is_closed = None, False
    world.stop()
    way.stop()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [("algorithm=vfl",), ("algorithm=pubsub-vfl", "max_in_flight=1")], ids=str)
def test_a_run_whose_links_break_again_and_again_is_the_same_run(
    broken: tuple[World, Way], capsys: pytest.CaptureFixture[str], algorithm: tuple[str, ...]
) -> None:
    world, way = broken
    words = (*MANY, *algorithm)
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    over, cuts = threading.Event(), way.num_cuts

    def cut() -> None:
        while not over.is_set():
            if world.run(SHOP) is not None:
                way.cut()
            time.sleep(0.15)

    def begin(_: SiteRun) -> None:
        cutting.start()

    cutting = threading.Thread(target=cut, daemon=True)
    thread = in_mid_run(world, SHOP, begin)
    try:
        assert federated(world, words, "--share-seed", "--seed", "7") == 0, (world.output, capsys.readouterr().err)
    finally:
        over.set()
        thread.join(60)
        cutting.join(60)
    assert way.num_cuts - cuts >= 3
    found = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    if "algorithm=vfl" in algorithm:
        same(found, expected)
    assert agree({name: world.path / name for name in (BANK, SHOP)}, last_run(world))
    assert any("the link to bank broke" in line for line in world.output[SHOP])
    assert any("the link to bank is back after" in line for line in world.output[SHOP])


@pytest.mark.slow
def test_a_link_that_does_not_come_back_ends_the_run_in_a_line_and_both_sites_are_free(
    broken: tuple[World, Way], capsys: pytest.CaptureFixture[str]
) -> None:
    world, way = broken
    closed: list[float] = []

    def close(_: SiteRun) -> None:
        way.is_closed = True
        way.cut()
        closed.append(time.monotonic())

    thread = in_mid_run(world, SHOP, close)
    assert federated(world, LONG) == 3
    took = time.monotonic() - closed[0]
    thread.join(60)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    # by the driver's own clock, or by the bank's word, whom the shop told that its driver stayed away
    assert re.search("its site shop was lost: (the connection was closed|Connection reset by peer)", line)
    assert 4.0 <= took < 30
    way.is_closed = False
    end = time.monotonic() + 60
    while any(world.driven_run(name) for name in (BANK, SHOP)) and time.monotonic() < end:
        time.sleep(0.05)
    assert federated(world, SMALL) == 0, world.output


def test_a_link_that_is_lost_says_why_it_could_not_be_dialled_anew(pair: World) -> None:
    ways: list[Way] = []

    def way(port: int) -> Way:
        ways.append(Way(free_port(), ("127.0.0.1", port)))
        return ways[0]

    limits = replace(LIMITS, away=1.0)

    async def work(shop: Shop, member: Member) -> None:
        lost: list[str] = []
        link = await dial(pair.folder(BANK), member, HELLO, limits, **from_the_bank(pair, lost))
        reply = link.request(encode_parts((0, 1, b"")), "a call")
        await reply
        ways[0].is_closed = True
        ways[0].cut()
        with pytest.raises(PartyLost, match="its site was lost during a call: the connection was closed, and it did"):
            await link.request(encode_parts((1, 1, b"")), "a call")
        assert "did not come back within 1 s (its site does not answer at " in lost[0]

    called(pair, work, way, limits)

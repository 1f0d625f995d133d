"""A site of the federation that may not do what it does: it costs the others neither their place nor their memory."""

from __future__ import annotations

import _ssl
import asyncio
import contextlib
import ctypes
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.errors import CallTimeout, FedactorsError, Refused
from fedactors.federation import relay, session
from fedactors.federation.approval import ask_to_stop
from fedactors.federation.handshake import dial
from fedactors.federation.identity import FEDERATION
from fedactors.federation.operations import CHECKING, Operations
from fedactors.federation.session import (
    HEAD,
    LINES_PER_MINUTE,
    PIECE_BYTES,
    PING,
    REPLY,
    REQUEST,
    Broken,
    Connection,
    Hello,
    LineLimit,
    error_in,
    framed,
    read_piece,
)
from fedactors.federation.site_folder import SITE, SiteFolder
from fedactors.federation.site_run import CALLS, SiteRun
from fedactors.messages.codec import encode_parts
from fedactors.runtime.addresses import free_port
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import LONG, in_mid_run
from tests.federation.test_operations import renewed
from tests.federation.test_relay import Running
from tests.federation.test_runs import federated
from tests.federation.world import BANK, CLINIC, LIMITS, SHOP, World

RUN = "0123456789abcdef"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, (BANK, SHOP, CLINIC))
    made.start(SHOP)
    yield made
    made.stop()


@contextlib.asynccontextmanager
async def connected(world: World, name: str, purpose: str, lost: list[str] | None = None) -> AsyncIterator[Connection]:
    """Connect a site to the shop."""
    folder = world.folder(name)
    told = [] if lost is None else lost
    ends: dict[str, Any] = {"serve": None, "lost": lambda _, why: told.append(why), "errors": errors_for(name, SHOP)}
    hello = Hello("credit", purpose, RUN if purpose == "driver" else "", "")
    connection = await dial(folder, folder.federation.members[SHOP], hello, LIMITS, **ends)
    try:
        yield connection
    finally:
        await connection.end()


async def becomes(is_so: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + 15
    while not is_so() and time.monotonic() < end:
        await asyncio.sleep(0.05)
    assert is_so()


# --- who may not coordinate -----------------------------------------------------------------------------------------


def test_who_may_not_coordinate_takes_no_drivers_place(world: World) -> None:
    file = world.path / SHOP / SITE
    file.write_text(f'{file.read_text()}\n[policy]\ncoordinators = ["bank"]\n')

    async def work() -> None:
        with pytest.raises(Refused, match=r"policy.coordinators: clinic is not allowed$"):
            async with connected(world, CLINIC, "driver"):
                pass
        async with connected(world, BANK, "driver"):
            assert world.driven_run(SHOP) == RUN

    asyncio.run(work())
    assert [line for line in world.refusals(SHOP) if "comes as a driver" in line]


# --- who is a member no longer --------------------------------------------------------------------------------------


def without(text: str, name: str) -> str:
    """Return the federation's file without a site."""
    before, _, rest = text.partition(f'[sites."{name}"]')
    return before + rest[rest.index("\n[") + 1 :]


def test_what_a_removed_site_has_open_ends(world: World) -> None:
    async def work() -> None:
        lost: list[str] = []
        async with connected(world, CLINIC, "driver", lost), connected(world, BANK, "check") as other:
            file = world.path / SHOP / "federation.toml"
            file.write_text(world.signed(without(file.read_text(), CLINIC)))
            await becomes(lambda: bool(lost))
            assert "clinic is no site of credit any more" in lost[0]
            await becomes(lambda: world.driven_run(SHOP) is None)
            assert await other.ask(b"four", "a call") == 4
        with pytest.raises(FedactorsError):
            async with connected(world, CLINIC, "check"):
                pass

    asyncio.run(work())
    assert "clinic: has links here, and is in the federation no more" in world.refusals(SHOP)


def test_who_shows_a_certificate_that_holds_no_longer_shows_another(world: World) -> None:
    shop = world.processes[SHOP]

    async def work() -> None:
        lost: list[str] = []
        async with connected(world, BANK, "driver", lost):
            await becomes(lambda: bool(shop._links))
            (link,) = shop._links.values()
            world.on(SHOP, lambda: setattr(link, "certificate", "of before"))
            await becomes(lambda: link.certificate != "of before")
            assert link.certificate == world.folder(BANK).federation.members[BANK].fingerprints[0]
            assert lost == []

    asyncio.run(work())
    assert any("its certificate holds no longer" in text for text in world.output[SHOP])


def test_a_link_that_this_site_opened_ends_with_the_certificate_that_was_shown_on_it(world: World) -> None:
    """Whoever it reached with an old key answers nothing more, and is no site if it shows no other one."""

    async def work() -> None:
        lost: list[str] = []
        async with connected(world, BANK, "driver", lost) as link:
            held = world.folder(SHOP).federation.members[SHOP].fingerprints[0]
            assert link.certificate == held
            link.certificate = "of before"
            await becomes(lambda: link.certificate == held)
            assert await link.ask(("fail", ("nothing",)), "a call") is None
            assert lost == []
            file = world.path / BANK / "federation.toml"
            file.write_text(world.signed(without(file.read_text(), SHOP)))
            await becomes(lambda: bool(lost))
            assert "shop is no site of credit any more" in lost[0]

    asyncio.run(work())


def with_its_old_key(world: World, copied: Path) -> SiteFolder:
    """Renew the shop, whose new file every other site gets; return the folder of who has a copy of it as it was."""
    shutil.copytree(world.path / SHOP, copied)
    both = renew(world)
    for name in world.names:
        if name != SHOP:
            (world.path / name / FEDERATION).write_text(both)
    return SiteFolder(copied)


def renew(world: World) -> str:
    """Give the shop a new key; return the federation's file, which has the certificate of before too."""
    both, _ = renewed(world)
    (world.path / "credit" / FEDERATION).write_text(both)
    return both


def test_who_has_a_replaced_key_is_nobody_once_the_site_was_met_with_the_new_one(tmp_path: Path) -> None:
    world = World(tmp_path / "sites", (BANK, SHOP, CLINIC))
    thief = with_its_old_key(world, tmp_path / "thief")
    world.start(BANK)
    lost: list[str] = []

    async def knock(folder: SiteFolder, purpose: str = "check") -> Connection:
        ends: dict[str, Any] = {"serve": None, "lost": lambda _, why: lost.append(why)}
        hello = Hello("credit", purpose, RUN if purpose == "driver" else "", "")
        there = folder.federation.members[BANK]
        return await dial(folder, there, hello, LIMITS, errors=errors_for(folder.name, BANK), **ends)

    async def work() -> None:
        held = await knock(thief)  # the shop was met with no new key yet
        await (await knock(world.folder(SHOP))).end()  # nor has it the new file
        assert not held.is_closed
        (world.path / SHOP / FEDERATION).write_text((world.path / BANK / FEDERATION).read_text())
        await (await knock(world.folder(SHOP))).end()
        await becomes(lambda: bool(lost))
        await refused()

    async def refused() -> None:
        for purpose in ("check", "driver"):
            with pytest.raises(Refused, match=r"shows a certificate of shop that was replaced or revoked"):
                await knock(thief, purpose)
        await (await knock(world.folder(SHOP))).end()

    try:
        asyncio.run(work())
        said = [line for line in world.refusals(BANK) if "certificate of shop that was replaced" in line]
        assert said
        assert said[0].startswith("somebody at 127.0.0.1:")
        world.end(BANK)
        world.start(BANK)  # which a start knows
        asyncio.run(refused())
        # another site, that has not met it, goes on taking both until it has
        assert world.folder(CLINIC).federation.members[SHOP].previous is not None
        # nor does who dials speak with who has it
        bank = world.folder(BANK)
        shop = bank.federation.members[SHOP]
        ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}

        async def call() -> None:
            server = await asyncio.start_server(lambda _, writer: None, "127.0.0.1", 0, ssl=thief.server_tls)
            async with server:
                there = replace(shop, port=server.sockets[0].getsockname()[1])
                await dial(bank, there, Hello("credit", "check", "", ""), LIMITS, **ends)

        with pytest.raises(Refused, match=r"shows a certificate of shop that was replaced or revoked"):
            asyncio.run(call())
    finally:
        world.stop()


def test_a_site_with_its_new_key_takes_its_old_one_for_nobodys(tmp_path: Path) -> None:
    """Who has a copy of it would be its driver, whom a site takes for itself."""
    world = World(tmp_path / "sites")
    thief = with_its_old_key(world, tmp_path / "thief")
    thief.identified = lambda certificate: (SHOP, "")  # type: ignore[method-assign]
    world.share()
    world.start(SHOP)
    ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(SHOP, SHOP)}

    async def drive(folder: SiteFolder) -> None:
        there, hello = folder.federation.members[SHOP], Hello("credit", "driver", RUN, "")
        await (await dial(folder, there, hello, LIMITS, **ends)).end()

    try:
        with pytest.raises(Refused, match=r"shows a certificate of shop that was replaced or revoked"):
            asyncio.run(drive(thief))
        asyncio.run(drive(world.folder(SHOP)))
    finally:
        world.stop()


def test_a_newer_key_than_the_one_that_was_met_has_one_before_it_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    bank = world.folder(BANK)
    renew(world)
    world.share()
    members = bank.federation.members
    bank.met(SHOP, members[SHOP].fingerprints[1])  # the old one proves nothing
    assert bank.federation.members[SHOP].previous is not None
    bank.met(SHOP, members[SHOP].fingerprints[0])
    assert bank.federation.members[SHOP].previous is None
    assert world.folder(BANK).federation.members[SHOP].previous is None
    _ = world.folder(SHOP).federation  # it takes its next key
    renew(world)
    world.share()
    for folder in (bank, world.folder(BANK)):
        assert folder.federation.members[SHOP].previous == members[SHOP].certificate


def test_a_relay_that_met_a_new_key_takes_no_old_one(tmp_path: Path) -> None:
    world = World(tmp_path / "sites", (BANK, SHOP, CLINIC))
    running = Running(world, port := free_port())
    thief = with_its_old_key(world, tmp_path / "thief")

    async def greet(folder: SiteFolder) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await relay._greet(folder, reader, writer, LIMITS, relay.WAIT, "")
            kind, _, _, body = await read_piece(reader, LIMITS)
            return "" if kind == REPLY else str(error_in(body, "relay"))
        finally:
            writer.transport.abort()

    try:
        assert asyncio.run(greet(thief)) == ""
        world.share()
        assert asyncio.run(greet(world.folder(SHOP))) == ""
        assert "has not the key of a certificate of it that holds" in asyncio.run(greet(thief))
        assert asyncio.run(greet(world.folder(SHOP))) == ""
        running.settle()
        running.stop()
        running = Running(world, port)
        assert "has not the key of a certificate of it that holds" in asyncio.run(greet(thief))
    finally:
        running.settle()
        running.stop()


def test_a_relay_cuts_off_who_is_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_LOOK_SECONDS", 0.2)
    file, port = world.path / "credit" / "federation.toml", free_port()
    running = Running(world, port)
    folders = {name: world.folder(name) for name in (BANK, CLINIC)}

    async def work() -> None:
        ends = {}
        for name, folder in folders.items():
            reader, writer = ends[name] = await asyncio.open_connection("127.0.0.1", port)
            await relay._greet(folder, reader, writer, LIMITS, relay.WAIT, "")
            await read_piece(reader, LIMITS)
        world.signed(without(file.read_text(), CLINIC))
        async with asyncio.timeout(15):
            with contextlib.suppress(OSError):
                assert await ends[CLINIC][0].read() == b""
        ends[BANK][1].write(framed([], PING))
        assert (await read_piece(ends[BANK][0], LIMITS))[0] == PING
        for _, writer in ends.values():
            writer.transport.abort()
        await asyncio.sleep(0.01)

    try:
        asyncio.run(work())
    finally:
        running.settle()
        running.stop()


def test_who_breaks_a_link_again_and_again_fills_no_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that has proposed nothing comes back as often as it likes."""
    monkeypatch.setattr(session, "LINES_PER_MINUTE", 6)

    async def work() -> int:
        lost: list[str] = []
        async with connected(world, BANK, "driver", lost) as connection:
            for count in range(8):
                connection.cut("on purpose")
                await becomes(lambda: connection.stream.is_carried or bool(lost))
                if lost:
                    return count
            return 8

    assert asyncio.run(work()) > 4
    told = [line for line in world.output[SHOP] if line.startswith("the link to bank")]
    assert len(told) == 6, told


def test_who_breaks_the_links_that_others_dial_fills_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay, or a site that is dialled, cuts each connection: it comes back at once, and is cut again."""
    monkeypatch.setattr(session, "LINES_PER_MINUTE", 6)
    world, num_cuts = World(tmp_path), 0

    def cut(run: SiteRun) -> None:
        nonlocal num_cuts
        for link in run._out.values():
            if link.stream.is_carried:
                link.cut("on purpose")
                num_cuts += 1
        if num_cuts < 12:
            asyncio.get_running_loop().call_later(0.1, cut, run)
        else:
            ask_to_stop(run._folder, run.proposal.run, "enough")

    world.start(BANK)
    world.start(SHOP)
    try:
        cutting = in_mid_run(world, BANK, cut)
        assert federated(world, LONG) == 3
        cutting.join(10)
    finally:
        world.stop()
    assert num_cuts >= 12
    told = [line for line in world.output[BANK] if line.startswith("the link to shop")]
    assert len(told) == 6, told


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Connection, str]]:
    """The links that an end gave up, each with why."""
    found, give_up = list[tuple[Connection, str]](), Connection.give_up

    def note(self: Connection, why: str, **facts: Any) -> None:
        if not self.is_closed:
            found.append((self, why))
        give_up(self, why, **facts)

    monkeypatch.setattr(Connection, "give_up", note)
    return found


async def is_given_up(ended: list[tuple[Connection, str]], said: str) -> Connection:
    """Wait until the shop ends the bank's link for that, however long a busy machine takes; return its end of it."""
    async with asyncio.timeout(120):
        while not (found := [link for link, why in ended if link.peer == BANK and said in why]):
            await asyncio.sleep(0.05)
    return found[0]


@pytest.mark.parametrize(("what", "said"), [("calls", "more than 256 calls"), ("beats", "heartbeats all the time")])
def test_a_check_is_short(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    ended: list[tuple[Connection, str]],
    what: str,
    said: str,
) -> None:
    """A member that is in no run calls all the time, or gives heartbeats: others wait for each."""
    monkeypatch.setattr(session, "_HEARTBEATS_A_SECOND", 0.0)  # what is due does not grow while a busy machine is slow

    async def work() -> Connection:
        async with connected(world, BANK, CHECKING) as connection:
            if what == "calls":
                for _ in range(300):
                    connection.request(encode_parts(b""), "a call").add_done_callback(lambda done: done.exception())
            else:
                for _ in range(session._HEARTBEATS + 100):
                    connection._acknowledge()
            return await is_given_up(ended, said)

    link = asyncio.run(work())
    assert (link._taken, link._heartbeats._count)[what == "beats"] <= {"calls": 257, "beats": session._HEARTBEATS + 5}[
        what
    ]


def test_who_updates_the_keys_of_tls_all_the_time_is_cut_off(world: World, ended: list[tuple[Connection, str]]) -> None:
    """A record of 27 bytes carries nothing and costs some 30 microseconds, which is a third of a second for 256 KiB."""
    library, said = ctypes.CDLL(_ssl.__file__), "sends records of TLS with nothing in them"

    async def work() -> None:
        async with connected(world, BANK, CHECKING) as connection:
            assert connection.stream._wire is not None
            tls = connection.stream._wire.transport._ssl_protocol
            # a Python object begins with its count and type; _ssl's goes on with a socket, and OpenSSL's SSL
            ssl = ctypes.c_void_p.from_address(id(tls._sslobj._sslobj) + 3 * ctypes.sizeof(ctypes.c_void_p))
            for _ in range(4000):
                assert library.SSL_key_update(ssl, 0) == 1
                library.SSL_do_handshake(ssl)
            tls._process_outgoing()
            link = await is_given_up(ended, said)
            assert link.stream.num_pieces < 100

    asyncio.run(work())


def test_who_answers_a_call_again_and_again_is_cut_off() -> None:
    async def work() -> None:
        link = Connection(BANK, LIMITS, None, lambda *_: None, errors_for(SHOP, BANK))
        first, late = link.request([], "a call"), link.request([], "a call that takes too long")
        link._take(REPLY, 1, b"")
        assert first.result() == b""
        link._give_up(2)
        assert isinstance(late.exception(), CallTimeout)
        link._take(REPLY, 2, b"")
        for number in (1, 2):
            with pytest.raises(Broken, match=f"answers call {number} a second time"):
                link._take(REPLY, number, b"")

    asyncio.run(work())


def test_who_goes_on_with_what_is_refused_is_cut_off() -> None:
    """4,000 calls at once of a run that has failed are 4,000 tasks, as often as the member likes."""

    async def serve(body: memoryview) -> Any:
        raise Refused(BANK, "sends what is no call")

    async def work() -> tuple[int, list[str]]:
        lost: list[str] = []
        link = Connection(BANK, LIMITS, serve, lambda _, why: lost.append(why), errors_for(SHOP, BANK))
        for number in range(1, session.MOST_REFUSED + 100):
            if not link.is_closed:
                link._take(REQUEST, number, b"")
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        return link._taken, lost

    taken, lost = asyncio.run(work())
    assert session.MOST_REFUSED < taken < session.MOST_REFUSED + 5
    assert "goes on after 256 of its calls were refused" in lost[0]


def test_a_site_that_goes_and_comes_back_fills_no_log(world: World) -> None:
    folder, lines, begun = world.folder(SHOP), list[dict[str, Any]](), time.monotonic()
    run = SimpleNamespace(_in={}, _folder=folder, _operations=Operations(folder, lines.append))
    run.proposal, run._tell, run._lost_sites = SimpleNamespace(run=RUN), run._operations.tell, asyncio.Queue()
    for _ in range(LINES_PER_MINUTE + 40):
        run._out = {(CLINIC, CALLS): None}
        SiteRun._leave(run, CLINIC, "on purpose")  # type: ignore[arg-type]
    assert run._lost_sites.qsize() == LINES_PER_MINUTE + 40
    assert LINES_PER_MINUTE <= len(lines) < LINES_PER_MINUTE + time.monotonic() - begun + 3
    assert sum(line["what"] == "away" for line in folder.log()) == len(lines)


def test_who_calls_through_a_relay_again_and_again_fills_no_log(world: World) -> None:
    lines: list[dict[str, Any]] = []
    made = relay.Relay(world.path / "credit" / FEDERATION, None, lines.append)
    made._lines[BANK] = LineLimit(lambda: 0.0)
    for _ in range(LINES_PER_MINUTE + 40):
        made._tell_of_call(BANK, SHOP, 1, 2, 0.1)
    assert len(lines) == LINES_PER_MINUTE
    made._lines[BANK].of_minute = 1.0
    made._tell_of_call(BANK, SHOP, 7, 7, 0.1)
    assert "40 calls before it have no line: 40 bytes there, 80 back" in lines[-1]["text"]


def test_who_comes_as_a_driver_and_breaks_the_rules_again_and_again_fills_no_log(world: World) -> None:
    before, begun = len(world.audit(SHOP)), time.monotonic()

    async def work() -> None:
        for _ in range(LINES_PER_MINUTE + 20):
            lost: list[str] = []
            with contextlib.suppress(FedactorsError):
                async with connected(world, BANK, "driver", lost) as connection:
                    connection.stream.write(HEAD.pack(PIECE_BYTES + 1, PING, 0, 0))
                    await becomes(lambda lost=lost: bool(lost))  # type: ignore[misc]

    asyncio.run(work())
    most = LINES_PER_MINUTE + time.monotonic() - begun + 3
    assert LINES_PER_MINUTE <= len(world.audit(SHOP)) - before < most

"""A relay joins two sites, one of which nobody can dial; it reads nothing, admits their federation, and is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fedactors.cli.main import main
from fedactors.errors import FedactorsError, PartyLost, Refused
from fedactors.federation import identity
from fedactors.federation.handshake import dial
from fedactors.federation.identity import Member, federation_text
from fedactors.federation.operations import agree
from fedactors.federation.relay import ANSWER, DIAL, WAIT, Relay, RelayLimits, signed_words
from fedactors.federation.session import ERROR, HEAD, REPLY, Hello, error_in, framed, read_piece, value_of
from fedactors.federation.site_folder import SiteFolder
from fedactors.messages.codec import encode_parts
from fedactors.runtime.addresses import free_port
from fedactors.runtime.failures import errors_for
from tests.federation.test_going_on import MANY, after_rounds, resumed, rounds_of, runs, same
from tests.federation.test_runs import LARGE, SMALL, federated, last_line, last_run, simulated
from tests.federation.world import BANK, LIMITS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="relay")]
TIGHT = RelayLimits(handshake=1.0, silence=3.0, connections=12, per_site=6, unknown_peers=4, block=16 * 1024)


def relayed(folder: Path, port: int) -> World:
    """A bank that listens, and a shop that nobody can dial: it is called through a relay at a port."""
    world = World(folder)
    address = f"127.0.0.1:{port}"
    file = world.path / SHOP / "site.toml"
    text = file.read_text()
    listen = next(line for line in text.splitlines() if line.startswith("listen"))
    file.write_text(text.replace(listen, f'relay = "{address}"'))
    request = str(world.path / SHOP / f"{SHOP}.csr")
    world.command("federation", "admit", str(world.path / "credit"), request, "--renew", "--relay", address)
    world.share()
    return world


class Running:
    """A relay in a thread of this process; what passes it is kept."""

    def __init__(self, world: World, port: int, limits: RelayLimits | None = None) -> None:
        self.output: list[dict[str, Any]] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.relay = Relay(world.path / "credit" / "federation.toml", limits, self.output.append)
        self.server = self.on(self.relay.start("127.0.0.1", port))

    def on(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def texts(self) -> list[str]:
        return [line["text"] for line in self.output]

    def await_text(self, text: str) -> None:
        end = time.monotonic() + 60
        while not any(text in said for said in self.texts()) and time.monotonic() < end:
            time.sleep(0.02)
        assert any(text in said for said in self.texts()), (text, self.texts())

    def settle(self) -> None:
        """Wait until nobody is connected."""
        end = time.monotonic() + 20
        while self.relay._tasks and time.monotonic() < end:
            time.sleep(0.02)
        assert not self.relay._tasks

    def stop(self) -> None:
        async def work() -> None:
            self.server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            for transport in list(self.loop._transports.values()):  # type: ignore[attr-defined]
                transport.abort()
            await asyncio.sleep(0.01)

        self.on(work())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Running]]:
    """Two sites and the relay between them."""
    port = free_port()
    world = relayed(tmp_path_factory.mktemp("relayed"), port)
    relay = Running(world, port)
    world.start(BANK)
    world.start(SHOP)
    relay.await_text("shop waits to be called")
    yield world, relay
    world.stop()
    relay.stop()


# --- what it is for -------------------------------------------------------------------------------------------------


def test_a_run_through_a_relay_is_the_same_run(
    joined: tuple[World, Running], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, relay = joined
    passed: list[bytes] = []
    read = asyncio.StreamReader.read

    async def keep(self: asyncio.StreamReader, count: int = -1) -> bytes:
        block = await read(self, count)
        if threading.current_thread() is relay.thread:
            passed.append(block)
        return block

    monkeypatch.setattr(asyncio.StreamReader, "read", keep)  # as the relay's own program would see it
    words = (*SMALL, "algorithm=vfl")
    assert federated(world, words, "--share-seed", "--seed", "7") == 0, (world.output, relay.texts())
    found = last_line(capsys)
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    assert agree({name: world.path / name for name in (BANK, SHOP)}, last_run(world))
    content = b"".join(passed)
    assert len(content) > found["bytes"] / 2
    for word in (b"worker-0", b"Embedding", b"propose", b"orders", last_run(world).encode()):
        assert word not in content  # which the sites said to each other again and again
    relay.await_text("bank called shop: ")


@pytest.mark.slow
def test_large_messages_pass_a_relay_in_parts(
    joined: tuple[World, Running], capsys: pytest.CaptureFixture[str]
) -> None:
    world, relay = joined
    protocol, words = LARGE
    assert federated(world, words, "--share-seed", "--seed", "7", protocol=protocol) == 0, (world.output, relay.texts())
    found = last_line(capsys)
    assert simulated(world, words, protocol) == 0
    expected = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    assert agree({name: world.path / name for name in (BANK, SHOP)}, last_run(world))


def test_check_reaches_a_site_that_cannot_be_dialled(
    joined: tuple[World, Running], capsys: pytest.CaptureFixture[str]
) -> None:
    world, _ = joined
    capsys.readouterr()
    assert main(["site", "check", "--folder", str(world.path / BANK), "--format", "json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["sites"]
    assert (found["site"], found["problem"]) == (SHOP, None)
    assert found["mb_per_second"] > 0


def test_a_relay_that_is_no_wire_gets_nothing(joined: tuple[World, Running]) -> None:
    """It ends TLS itself, with the key of another site of the federation."""
    world, _ = joined
    bank = world.folder(BANK)
    other = world.folder(BANK)  # a member, which colludes with the relay
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            writer.write(framed(encode_parts(b"n" * 32)))
            await read_piece(reader, LIMITS)
            writer.write(framed([], REPLY))
            await writer.start_tls(other.server_tls)
            heard.append(await reader.read(1000))
        writer.transport.abort()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            member = replace(bank.federation.members[SHOP], host="127.0.0.1", port=port)
            await dial(bank, member, Hello("credit", "driver", "0" * 16, ""), LIMITS, **ends(SHOP))

    with pytest.raises(Refused, match=r"shows a certificate that is not shop's"):
        asyncio.run(work())
    assert heard in ([], [b""])


def ends(peer: str) -> dict[str, Any]:
    return {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, peer)}


@pytest.mark.timeout(300)
def test_a_relay_that_is_killed_ends_the_run_which_goes_on_exactly_when_it_is_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    world = relayed(tmp_path, port)
    file = str(tmp_path / "credit" / "federation.toml")
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-u", "-m", "fedactors", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(made)
        return made

    def line(process: subprocess.Popen[str], text: str) -> None:
        assert process.stdout is not None
        said = []
        for said_line in process.stdout:
            said.append(said_line)
            if text in said_line:
                return
        raise AssertionError(said)

    try:
        relay = start("relay", "--federation", file, "--listen", f"127.0.0.1:{port}")
        line(relay, "relay: listens at")
        shop = start("site", "start", "--folder", str(world.path / SHOP))
        world.start(BANK)
        line(shop, "shop: waits at the relay")
        sockets = [one.status for one in psutil.Process(shop.pid).net_connections("inet")]
        assert sockets
        assert psutil.CONN_LISTEN not in sockets, "the shop listens"
        words = (*MANY, "algorithm=vfl")
        assert simulated(world, words) == 0
        expected = last_line(capsys)
        killing = after_rounds(world, 2, lambda: relay.send_signal(signal.SIGKILL))
        assert federated(world, words, "--share-seed", "--seed", "7") == 3
        killing.join(60)
        (told,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("fedactors: ")]
        assert "its site shop was lost" in told
        cut = runs(world)[-1]
        assert 2 <= len(rounds_of(cut)) < 6
        assert (
            main(
                ["run", "pubsub-vfl", "--federation", str(world.path / BANK / "federation.toml"), "--resume", str(cut)]
            )
            == 3
        )
        assert f"shop: its site does not answer at 127.0.0.1:{port}" in capsys.readouterr().err
        back = start("relay", "--federation", file, "--listen", f"127.0.0.1:{port}")
        line(back, "shop waits to be called")  # by itself
        assert resumed(world, cut) == 0, capsys.readouterr().err
        same(last_line(capsys), expected)
        back.send_signal(signal.SIGTERM)
        assert back.wait(30) == 143
    finally:
        world.stop()
        for process in started:
            process.kill()
            process.wait(10)
            process.stdout.close()  # type: ignore[union-attr]


def test_a_relay_whose_connections_break_delays_a_run(
    joined: tuple[World, Running], capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them break at once: those of the run, and the one on which the shop waits to be called."""
    world, relay = joined
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)

    async def cut() -> None:
        for transport in list(relay.loop._transports.values()):  # type: ignore[attr-defined]
            transport.abort()

    cutting = after_rounds(world, 2, lambda: relay.on(cut()))
    assert federated(world, words, "--share-seed", "--seed", "7") == 0, (world.output, capsys.readouterr().err)
    cutting.join(60)
    same(last_line(capsys), expected)
    assert any("the link to bank is back after" in line for line in world.output[SHOP])
    assert agree({name: world.path / name for name in (BANK, SHOP)}, last_run(world))


# --- who may use it -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Running, int]]:
    port = free_port()
    world = relayed(tmp_path_factory.mktemp("tight"), port)
    relay = Running(world, port, TIGHT)
    yield world, relay, port
    relay.stop()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def greeted(
    port: int, folder: SiteFolder, what: str, other: str, *, site: str | None = None, said: list[bytes] | None = None
) -> Stream:
    """Connect to a relay and greet it as a site does; `said` is sent instead, or remembers what was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    nonce = value_of((await read_piece(reader, LIMITS))[3], "relay")
    words = ("credit", site or folder.name, what, other)
    signature = identity.sign(identity.read_key(folder.path / "key.pem"), signed_words(nonce, *words))
    handshake = framed(encode_parts((*words, signature)))
    if said:
        handshake = said[0]
    elif said is not None:
        said.append(handshake)
    writer.write(handshake)
    return reader, writer


async def answer_of(stream: Stream) -> str:
    """Return what a relay says to a handshake: "welcome", why not, or "nothing" where it closes."""
    reader, writer = stream
    try:
        async with asyncio.timeout(20):
            kind, _, _, body = await read_piece(reader, LIMITS)
            return (
                "welcome"
                if kind == REPLY
                else str(error_in(body, "relay"))
                if kind == ERROR
                else value_of(body, "relay")
            )
    except (EOFError, OSError):
        return "nothing"
    finally:
        writer.transport.abort()
        await asyncio.sleep(0.01)  # in which the socket is closed


def test_who_is_no_site_of_the_federation_is_refused(tight: tuple[World, Running, int], tmp_path: Path) -> None:
    world, relay, port = tight
    shop, bank = world.folder(SHOP), world.folder(BANK)

    def told(*args: Any, **more: Any) -> str:
        async def work() -> str:
            return await answer_of(await greeted(port, *args, **more))

        return str(asyncio.run(work()))

    assert told(shop, WAIT, "") == "welcome"
    assert "has not the key of a certificate of it that holds" in told(shop, WAIT, "", site=BANK)
    assert "no site of credit" in told(shop, WAIT, "", site="nobody")
    said: list[bytes] = []
    assert told(bank, WAIT, "", said=said) == "welcome"
    assert "has not the key" in told(bank, WAIT, "", said=said)  # the same words again
    for wrong in (framed(encode_parts(7)), framed(encode_parts(("credit", SHOP, WAIT, "", b"x" * 500)))):
        assert "handshake" in told(shop, WAIT, "", said=[wrong])
    assert told(shop, WAIT, "", said=[HEAD.pack(1 << 30, 0, 0, 0)]) == "nothing"
    assert "asks for 'list', which a relay does not do" in told(shop, "list", "")
    assert "dials 'bank', which does not wait here" in told(shop, DIAL, BANK)
    for token in ("00" * 16, "zz" * 16, "", "é"):
        assert "answers a call that was not made to it" in told(shop, ANSWER, token)
    # a certificate that has ended, or that somebody else has signed, in a file that the authority signed
    authority_key = identity.read_key(world.path / "credit" / "authority.pem")
    by = tmp_path / "other"
    main(["federation", "init", str(by)])
    for days, signer in ((0, world.path / "credit"), (9, by)):
        text = (signer / "federation.toml").read_text()
        authority = identity.read_certificate(text.split('"""')[1].lstrip(), "authority")
        request = (world.path / SHOP / f"{SHOP}.csr").read_bytes()
        _, made = identity.sign_request(request, identity.read_key(signer / "authority.pem"), authority, days)
        federation = replace(bank.federation, members={**bank.federation.members, SHOP: Member(SHOP, "h", 1, made)})
        file = world.path / "credit" / "federation.toml"
        before = file.read_text()
        try:
            file.write_text(federation_text(federation))  # which nobody signed
            assert told(shop, WAIT, "") == "welcome"
            file.write_text(federation_text(federation, authority_key))
            assert "has not the key of a certificate of it that holds" in told(shop, WAIT, "")
        finally:
            file.write_text(before)
        assert told(shop, WAIT, "") == "welcome"
    assert any("refused: " in text for text in relay.texts())


def test_a_call_is_answered_by_whom_it_is_for(tight: tuple[World, Running, int]) -> None:
    world, _, port = tight
    shop, bank = world.folder(SHOP), world.folder(BANK)

    async def work() -> None:
        waiting = await greeted(port, shop, WAIT, "")
        assert (await read_piece(waiting[0], LIMITS))[0] == REPLY
        calling = await greeted(port, bank, DIAL, SHOP)
        token = value_of((await read_piece(waiting[0], LIMITS))[3], "relay")
        assert "not made to it" in await answer_of(await greeted(port, bank, ANSWER, token))
        answering = await greeted(port, shop, ANSWER, token)
        assert (await read_piece(calling[0], LIMITS))[0] == REPLY
        assert "not made to it, or not in time" in await answer_of(await greeted(port, shop, ANSWER, token))
        calling[1].write(b"there")
        assert await answering[0].readexactly(5) == b"there"
        answering[1].write(b"back")
        answering[1].close()  # the last word is heard
        assert await calling[0].read() == b"back"
        calling[1].transport.abort()
        # nobody answers
        calling = await greeted(port, bank, DIAL, SHOP)
        assert "dials 'shop', which did not answer" in await answer_of(calling)
        for _, writer in (waiting, answering, calling):
            writer.transport.abort()
        await asyncio.sleep(0.01)

    asyncio.run(work())


# --- what it bears --------------------------------------------------------------------------------------------------


def test_a_flood_of_strangers_is_turned_away_and_sites_go_on(tight: tuple[World, Running, int]) -> None:
    world, relay, port = tight
    shop = world.folder(SHOP)

    async def work() -> None:
        mute = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        closed = 0
        async with asyncio.timeout(30):
            for reader, _ in mute:  # all are closed, those that were let in after their second
                with contextlib.suppress(OSError):
                    await reader.read()
                closed += 1
        assert closed == 40
        for _, writer in mute:
            writer.transport.abort()
        assert await answer_of(await greeted(port, shop, WAIT, "")) == "welcome"

    asyncio.run(work())
    assert any("when others came: 4 may be at it" in text for text in relay.texts())
    assert not relay.relay._unknown_peers._here


def test_a_site_has_so_many_connections_and_no_more(tight: tuple[World, Running, int]) -> None:
    world, relay, port = tight
    shop, bank = world.folder(SHOP), world.folder(BANK)

    async def work() -> None:
        waiting = await greeted(port, shop, WAIT, "")
        assert (await read_piece(waiting[0], LIMITS))[0] == REPLY
        calling = [await greeted(port, bank, DIAL, SHOP) for _ in range(TIGHT.per_site)]
        for _ in calling:
            await read_piece(waiting[0], LIMITS)
        assert f"has {TIGHT.per_site} connections already" in await answer_of(await greeted(port, bank, DIAL, SHOP))
        for _, writer in (waiting, *calling):
            writer.transport.abort()
        await asyncio.sleep(0.01)

    asyncio.run(work())
    end = time.monotonic() + 20
    while relay.relay._of_site.total() and time.monotonic() < end:
        time.sleep(0.02)
    assert relay.relay._of_site.total() == 0
    assert not relay.relay._calls


def test_who_does_not_read_stops_the_other_and_no_memory_goes(tight: tuple[World, Running, int]) -> None:
    world, _, port = tight
    shop, bank = world.folder(SHOP), world.folder(BANK)

    async def work() -> tuple[int, int, int]:
        waiting = await greeted(port, shop, WAIT, "")
        assert (await read_piece(waiting[0], LIMITS))[0] == REPLY
        calling = await greeted(port, bank, DIAL, SHOP)
        token = value_of((await read_piece(waiting[0], LIMITS))[3], "relay")
        answering = await greeted(port, shop, ANSWER, token)
        await read_piece(calling[0], LIMITS)
        answering[1].transport.pause_reading()  # type: ignore[attr-defined]
        before, sent, block = psutil.Process().memory_info().rss, 0, bytes(1 << 20)
        calling[1].transport.set_write_buffer_limits(1 << 16)
        with contextlib.suppress(TimeoutError, OSError):
            for _ in range(256):
                calling[1].write(block)
                async with asyncio.timeout(1.0):
                    await calling[1].drain()
                sent += len(block)
        after = psutil.Process().memory_info().rss
        with contextlib.suppress(OSError):  # it is cut after its silence
            async with asyncio.timeout(30):
                await calling[0].read()
        for _, writer in (waiting, calling, answering):
            writer.transport.abort()
        await asyncio.sleep(0.01)
        return sent, before, after

    sent, before, after = asyncio.run(work())
    assert sent < 64 << 20, "it went somewhere"
    assert after - before < 24 << 20


def test_a_site_that_does_not_wait_is_lost_in_one_line(tight: tuple[World, Running, int]) -> None:
    world, _, port = tight
    bank = world.folder(BANK)

    async def work() -> None:
        await dial(bank, bank.federation.members[SHOP], Hello("credit", "check", "", ""), LIMITS, **ends(SHOP))

    with pytest.raises(PartyLost) as told:
        asyncio.run(work())
    assert f"shop: its site cannot be called through the relay 127.0.0.1:{port}, which refuses" in str(told.value)
    assert "which does not wait here" in str(told.value)
    assert isinstance(told.value, FedactorsError)

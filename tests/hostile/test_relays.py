"""A relay takes nothing older than it took, hears of revoked certificates, and is no other relay."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedactors.errors import BadInput
from fedactors.federation import relay as relays
from fedactors.federation import session
from fedactors.federation.identity import FEDERATION, federation_text
from fedactors.federation.relay import ANSWER, DIAL, FETCH, NONCE_BYTES, WAIT, Called, Relay, RelayLimits, _greet
from fedactors.federation.session import ERROR, PING, REPLY, framed, read_piece, refusal_in, value_of
from fedactors.federation.site_folder import SiteFolder
from fedactors.messages.codec import encode_parts
from fedactors.runtime.addresses import free_port
from tests.federation.test_keys import bank_of_an_enterprise
from tests.federation.test_relay import relayed
from tests.federation.world import BANK, LIMITS, SHOP, World


async def said_to(folder: SiteFolder, port: int, *wanted: str) -> str:
    """Come to a relay, and return why it refuses what is wanted; empty: it does not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await _greet(folder, reader, writer, LIMITS, *wanted)
        kind, _, _, body = await read_piece(reader, LIMITS)
        return str(refusal_in(body, "relay")) if kind == ERROR else ""
    finally:
        writer.transport.abort()
        await asyncio.sleep(0.01)


def test_a_relay_takes_no_older_federation(tmp_path: Path) -> None:
    world = World(tmp_path)
    file, lines = tmp_path / "credit" / FEDERATION, list[dict[str, Any]]()
    older = file.read_bytes()
    running = Relay(file, tell=lines.append)
    version = running.federation.version
    world.command("federation", "sign", str(tmp_path / "credit"))
    assert running.federation.version > version
    file.write_bytes(older)
    assert running.federation.version > version
    assert any("was taken" in line["text"] for line in lines)
    with pytest.raises(BadInput, match=r"version: .* is not allowed: older than"):
        Relay(file)
    file.write_text(federation_text(replace(running.federation, is_signed=False)))
    with pytest.raises(BadInput, match="signed: missing"):
        Relay(file)


def test_who_asks_for_the_federations_file_and_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    """Each of these connections would stay as long as its site likes."""
    world, port = World(tmp_path), free_port()
    bank, running = world.folder(BANK), Relay(tmp_path / "credit" / FEDERATION, RelayLimits(silence=1.0))
    assert BANK in running.federation.members
    running._taken = replace(running._taken, text="x" * 200_000)

    async def work() -> None:
        server = await running.start("127.0.0.1", port)
        for one in server.sockets:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        mine = socket.socket()
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mine.connect(("127.0.0.1", port))
        async with server:
            reader, writer = await asyncio.open_connection(sock=mine, limit=1024)
            await _greet(bank, reader, writer, LIMITS, FETCH, "")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0.5)
            assert running._of_site[BANK] == 1
            async with asyncio.timeout(10):
                while running._of_site[BANK]:
                    await asyncio.sleep(0.1)
            writer.transport.abort()

    asyncio.run(work())


def test_who_is_revoked_has_no_place_at_a_relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "_LOOK_SECONDS", 0.2)
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, port, bank = tmp_path / "revoked.pem", free_port(), world.folder(BANK)
    certificate = bank.federation.members[BANK].certificate
    enterprise.revoke(revoked)

    async def work() -> str:
        async with await Relay(tmp_path / "credit" / FEDERATION, crl=revoked).start("127.0.0.1", port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await _greet(bank, reader, writer, LIMITS, WAIT, "")
            await read_piece(reader, LIMITS)
            await asyncio.sleep(1.1)  # the time of a list is in whole seconds
            enterprise.revoke(revoked, certificate)
            async with asyncio.timeout(15):
                assert await reader.read() == b"", "it is cut off"
            writer.transport.abort()
            return await said_to(bank, port, WAIT, "")

    assert "which is no site of credit" in asyncio.run(work())
    time.sleep(1.1)
    enterprise.revoke(revoked)
    revoked.unlink()
    with pytest.raises(BadInput, match=r"^crl: "):
        Relay(tmp_path / "credit" / FEDERATION, crl=revoked)


async def admitted(folder: SiteFolder, port: int, *wanted: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Come to a relay, which lets this site in."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await _greet(folder, reader, writer, LIMITS, *wanted)
    assert (await read_piece(reader, LIMITS))[0] == REPLY
    return reader, writer


def test_a_member_gives_a_relay_no_more_heartbeats_than_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is answered, while others wait."""
    monkeypatch.setattr(session, "_HEARTBEATS_A_SECOND", 0.0)  # what is due does not grow while a machine is busy
    port, lines = free_port(), list[dict[str, Any]]()
    world = relayed(tmp_path, port)

    async def work() -> None:
        async with await Relay(tmp_path / "credit" / FEDERATION, tell=lines.append).start("127.0.0.1", port):
            reader, writer = await admitted(world.folder(SHOP), port, WAIT, "")
            count = 0
            async with asyncio.timeout(60):
                with contextlib.suppress(OSError, EOFError):
                    for _ in range(4 * session._HEARTBEATS):
                        writer.write(framed([], PING))
                    while True:
                        assert (await read_piece(reader, LIMITS))[0] == PING
                        count += 1
            writer.transport.abort()
            assert count <= session._HEARTBEATS
            await asyncio.sleep(0.01)

    asyncio.run(work())
    assert [line["text"] for line in lines if line["event"] == "refused"] == [
        "refused: shop: gives heartbeats all the time"
    ]


@pytest.mark.parametrize("said", [framed([], PING), framed(encode_parts("00" * 16))], ids=["heartbeats", "calls"])
def test_a_relay_gives_a_site_no_more_heartbeats_or_calls_than_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(session, "_HEARTBEATS", 200)
    port, told = free_port(), list[str]()
    world, calls = relayed(tmp_path, port), list[str]()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            writer.write(framed(encode_parts(bytes(NONCE_BYTES))))
            calls.append(value_of((await read_piece(reader, LIMITS))[3], SHOP)[2])
            if calls[-1] == WAIT:
                writer.write(framed([], REPLY))
                for _ in range(4 * session._HEARTBEATS):
                    writer.write(said)
                while True:
                    await read_piece(reader, LIMITS)
        writer.transport.abort()

    async def work() -> None:
        called = Called(world.folder(SHOP), LIMITS, accepted, lambda _, text: told.append(text))
        async with await asyncio.start_server(hostile, "127.0.0.1", port):
            waiting = asyncio.get_running_loop().create_task(called.wait())
            end = time.monotonic() + 30
            while not any("heartbeats all the time" in text for text in told) and time.monotonic() < end:
                await asyncio.sleep(0.02)
            waiting.cancel()
            await asyncio.gather(waiting, *called._tasks, return_exceptions=True)
            await asyncio.sleep(0.05)

    asyncio.run(work())
    assert any(text.endswith("gives heartbeats all the time; it is tried again") for text in told), told[:5]


def test_a_member_that_calls_all_the_time_takes_no_site_from_its_relay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The called site gives a relay up that makes more calls than are due, whoever of its members makes them."""
    monkeypatch.setattr(session, "_HEARTBEATS", 80)
    monkeypatch.setattr(session, "_HEARTBEATS_A_SECOND", 0.0)  # what is due does not grow while a machine is busy
    port, lines, told = free_port(), list[dict[str, Any]](), list[str]()
    world, said = relayed(tmp_path, port), list[str]()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def work() -> None:
        called = Called(world.folder(SHOP), LIMITS, accepted, lambda _, text: told.append(text))
        async with await Relay(tmp_path / "credit" / FEDERATION, tell=lines.append).start("127.0.0.1", port):
            waiting = asyncio.get_running_loop().create_task(called.wait())
            async with asyncio.timeout(60):
                while not told:
                    await asyncio.sleep(0.02)
                for _ in range(session._HEARTBEATS + 20):
                    said.append(await said_to(world.folder(BANK), port, DIAL, SHOP))
            waiting.cancel()
            await asyncio.gather(waiting, *called._tasks, return_exceptions=True)
            await asyncio.sleep(0.05)

    asyncio.run(work())
    assert not any("heartbeats all the time" in text for text in told), told
    assert said[:20] == [""] * 20
    assert said[-1].endswith("dials 'shop' all the time")


def test_what_comes_at_once_is_read_while_others_are_heard() -> None:
    """Pieces that lie in a buffer are read without a wait: whoever sends thousands keeps nobody from their turn."""

    async def work() -> int:
        reader, turns = asyncio.StreamReader(), 0
        reader.feed_data(framed([], PING) * 1000)

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.get_running_loop().create_task(other())
        for _ in range(1000):
            await read_piece(reader, LIMITS)
        task.cancel()
        return turns

    assert asyncio.run(work()) >= 1000


def test_strangers_hide_nothing_of_what_a_relay_refuses_a_member(tmp_path: Path) -> None:
    port, lines = free_port(), list[dict[str, Any]]()
    world = relayed(tmp_path, port)

    async def work() -> None:
        async with await Relay(tmp_path / "credit" / FEDERATION, tell=lines.append).start("127.0.0.1", port):
            for _ in range(2 * session.LINES_PER_MINUTE):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(framed(encode_parts("nothing")))
                await writer.drain()
                await asyncio.sleep(0.002)
                writer.transport.abort()
            assert "does not wait here" in await said_to(world.folder(BANK), port, DIAL, SHOP)

    asyncio.run(work())
    refused = [line["text"] for line in lines if line["event"] == "refused"]
    assert len(refused) <= session.LINES_PER_MINUTE + 2
    assert "refused: bank: dials 'shop', which does not wait here" in refused


def test_what_a_site_says_to_one_relay_is_worth_nothing_at_another(tmp_path: Path) -> None:
    """Who runs the relay where a site is called passes on the number that another relay wants signed."""
    port, other_port = free_port(), free_port()
    world = relayed(tmp_path, port)
    file = tmp_path / "credit" / FEDERATION
    request = str(tmp_path / BANK / f"{BANK}.csr")
    credit = ("federation", "admit", str(tmp_path / "credit"), request, "--renew")
    world.command(*credit, "--relay", f"127.0.0.1:{other_port}")
    world.share()
    shop, bank = world.folder(SHOP), world.folder(BANK)

    async def work() -> list[str]:
        with pytest.raises(BadInput, match=r"^--address: missing: federation.toml names the relays"):
            await Relay(file).start("127.0.0.1", free_port())
        async with await Relay(file).start("127.0.0.1", other_port):
            assert await said_to(bank, other_port, WAIT, "") == ""
            repeated = [(shop, WAIT, ""), (shop, ANSWER, "00" * 16), (bank, DIAL, SHOP)]
            return [await said_to(folder, other_port, *wanted) for folder, *wanted in repeated]

    assert all("is not called through this one" in said for said in asyncio.run(work()))
    at_its_address = Relay(file, address=("127.0.0.1", port))
    assert not at_its_address._is_called_elsewhere(SHOP)
    assert at_its_address._is_called_elsewhere(BANK)

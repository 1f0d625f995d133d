"""Strangers without certificates share an address with an honest site, and keep it neither from a site nor a relay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedactors.federation import identity
from fedactors.federation.audit_log import AUDIT
from fedactors.federation.handshake import dial
from fedactors.federation.operations import Operations
from fedactors.federation.relay import WAIT, _greet
from fedactors.federation.session import (
    LINES_PER_DAY,
    LINES_PER_MINUTE,
    REPLY,
    Admission,
    Hello,
    read_piece,
    start_tls,
)
from fedactors.runtime.addresses import free_port
from fedactors.runtime.failures import errors_for
from tests.federation.test_keys import reached
from tests.federation.test_relay import Running
from tests.federation.world import BANK, LIMITS, SHOP, World

NUM_HONEST = 30


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("floods"))
    made.start(SHOP)
    yield made
    made.stop()


Act = Callable[[asyncio.StreamWriter], Coroutine[None, None, None]]


async def silent(writer: asyncio.StreamWriter) -> None:
    """Say nothing."""


async def nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET / HTTP/1.1\r\n\r\n")


def hello_of_a_client() -> bytes:
    """Return the first bytes of a client that begins TLS."""
    said = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), said, server_hostname=SHOP)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


async def half_open(writer: asyncio.StreamWriter) -> None:
    """Begin TLS, and never end it."""
    writer.write(hello_of_a_client())


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Begin TLS a byte at a time."""
    for byte in hello_of_a_client():
        writer.write(bytes([byte]))
        await asyncio.sleep(0.05)


def of_another_authority(tls: ssl.SSLContext) -> Act:
    """Show a certificate that is no site's, and stay."""

    async def act(writer: asyncio.StreamWriter) -> None:
        await start_tls(asyncio.StreamReader(), writer, tls, 5.0, SHOP)

    return act


MIXED = (silent, nonsense, half_open, dripping)


@contextlib.asynccontextmanager
async def flooded(port: int, how: Sequence[Act], count: int) -> AsyncIterator[None]:
    """Keep so many connections of strangers open, from this machine's address, each anew when it is closed."""
    num_came = 0

    async def outsider(act: Act) -> None:
        nonlocal num_came
        while True:
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                num_came += 1
                try:
                    await act(writer)
                    await reader.read()
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.2)

    tasks = [asyncio.create_task(outsider(how[index % len(how)])) for index in range(count)]
    while num_came < count:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def lost_of(num: int, honest: Callable[[], Awaitable[None]]) -> list[str]:
    """Return what became of the honest connections that failed, of so many, one after the other."""
    lost = []
    for _ in range(num):
        try:
            await honest()
        except Exception as error:
            lost.append(f"{type(error).__name__}: {error}")
    return lost


def lost_at_a_site(world: World, how: Sequence[Act], count: int, num: int = NUM_HONEST) -> list[str]:
    bank = world.folder(BANK)
    shop = bank.federation.members[SHOP]

    async def honest() -> None:
        ends = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
        connection = await dial(bank, shop, Hello("credit", "check", "", ""), LIMITS, **ends)
        try:
            async with asyncio.timeout(10):
                assert await connection.ask(b"four", "a call") == 4
        finally:
            await connection.end()

    async def work() -> list[str]:
        async with flooded(shop.port, how, count):
            return await lost_of(num, honest)

    return asyncio.run(work())


def test_silent_strangers_keep_no_site_of_their_address_out(world: World) -> None:
    assert lost_at_a_site(world, [silent], 200) == []
    assert len(world.refusals(SHOP)) < 3 * LINES_PER_MINUTE


@pytest.mark.slow
def test_strangers_of_all_kinds_keep_no_site_of_their_address_out(world: World, tmp_path: Path) -> None:
    others = World(tmp_path).folder(BANK).client_tls
    others.verify_mode = ssl.CERT_NONE
    assert lost_at_a_site(world, [*MIXED, of_another_authority(others)], 300) == []


def test_silent_strangers_keep_no_site_of_their_address_from_a_relay(world: World) -> None:
    bank, port = world.folder(BANK), free_port()
    relay = Running(world, port)

    async def honest() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await _greet(bank, reader, writer, LIMITS, WAIT, "")
            assert (await read_piece(reader, LIMITS))[0] == REPLY
        finally:
            writer.transport.abort()

    async def work() -> list[str]:
        async with flooded(port, [silent], 200):
            return await lost_of(NUM_HONEST, honest)

    try:
        assert asyncio.run(work()) == []
    finally:
        relay.settle()
        relay.stop()


def test_who_has_the_most_connections_makes_room_with_the_oldest() -> None:
    dropped: list[str] = []
    lines: list[tuple[str, str]] = []
    admission = Admission(lambda who, why: lines.append((who, why)), most=3)
    first = admission.comes("one", lambda: dropped.append("first"))
    admission.comes("two", lambda: dropped.append("second"))
    third = admission.comes("two", lambda: dropped.append("third"))
    admission.comes("three", lambda: dropped.append("fourth"))
    assert dropped == ["second"]
    admission.goes(third)
    admission.comes("four", lambda: dropped.append("fifth"))
    admission.comes("five", lambda: dropped.append("sixth"))
    assert dropped == ["second", "first"]
    assert first.is_dropped
    assert [who for who, _ in lines] == ["two", "one"]


def test_who_is_refused_for_days_fills_no_log() -> None:
    """A line of a log takes half a kilobyte, and a site reads its whole log to know what is left of a budget."""
    now, lines = [0.0], []
    admission = Admission(lambda who, why: lines.append(who), clock=lambda: now[0])
    for second in range(2 * 86_400):
        now[0] = float(second)
        admission.refused("somebody", "says nothing")
        admission.look()
    assert len(lines) <= 3 * LINES_PER_DAY
    later = len(lines)
    for minute in range(10):  # what goes on is still written down, once a minute
        now[0] += 60.0
        admission.refused("somebody", f"says nothing, in minute {minute}")
        admission.look()
    assert len(lines) >= later + 9


@pytest.mark.parametrize("char", ["x", "\U0001f600", "\x00", "é", '"', "\\"])
def test_a_line_of_the_log_has_so_many_bytes_whatever_others_write(tmp_path: Path, char: str) -> None:
    """One character takes up to twelve bytes there: a line of a thousand of them was twelve times as long."""
    folder = World(tmp_path).folder(SHOP)
    folder.audit.add("refused", party=f"somebody at {'f' * 45}", why=f"{char}" * 100_000)
    (written,) = (folder.path / AUDIT).read_bytes().splitlines()
    assert 1000 <= len(written) <= 1700
    assert folder.log()[0]["why"].endswith("...")
    assert 2 * LINES_PER_DAY * len(written) <= 5e6, "of strangers, or of a site, on the first day"
    told = list[dict[str, Any]]()
    Operations(folder, told.append).tell("refused", char * 100_000)
    assert len(json.dumps(told[0])) <= 1300


def test_a_stranger_with_very_many_certificates_is_sent_away_before_they_are_read(tmp_path: Path) -> None:
    """Each is signed by itself and named like the next: to look for a way through them took a fifth of a second."""
    world = World(tmp_path)
    world.start(SHOP)
    key = ec.generate_private_key(ec.SECP256R1())
    one = identity.make_authority(key, "same")
    chain = [identity.as_pem(identity.make_authority(key, "same")) for _ in range(200)]
    (tmp_path / "chain.pem").write_text(identity.as_pem(one) + "".join(chain))
    pem, form, bare = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "stranger.pem").write_bytes(key.private_bytes(pem, form, bare))
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    tls.load_cert_chain(tmp_path / "chain.pem", tmp_path / "stranger.pem")
    listen = world.folder(SHOP).listen
    assert listen is not None
    try:
        for _ in range(3):
            with contextlib.suppress(OSError), socket.create_connection(listen, 5) as made, tls.wrap_socket(made) as it:
                it.recv(1)
        end = time.monotonic() + 15
        while len(refused := world.refusals(SHOP)) < 3 and time.monotonic() < end:
            time.sleep(0.1)
        assert len(refused) == 3
        assert all("bytes before its handshake of TLS ends" in said for said in refused)
        assert reached(world, BANK, SHOP)
    finally:
        world.stop()

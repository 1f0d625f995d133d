"""What strangers do before their WebSocket, or the TLS in it, begins, costs a site no more than over bare TLS."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from fedactors.federation import relay, session
from fedactors.federation.session import MOST
from fedactors.runtime.addresses import free_port
from tests.federation.test_carriers import setting
from tests.federation.test_keys import reached
from tests.federation.world import BANK, LIMITS, SHOP, World

pytest.importorskip("websockets", reason="websockets is not installed: pip install 'fedactors[websocket]'")

BIT_MASKED = 0x80
NO_MASK = bytes(4)


def frame(opcode: int, body: bytes, *, is_last: bool = True, announced: int | None = None) -> bytes:
    """Return a frame as clients send it; `announced` bytes of it, of which only `body` comes."""
    size = len(body) if announced is None else announced
    head = bytes([BIT_MASKED * is_last | opcode])
    if size < 126:
        return head + bytes([BIT_MASKED | size]) + NO_MASK + body
    return head + bytes([BIT_MASKED | 127]) + size.to_bytes(8, "big") + NO_MASK + body


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, psutil.Process, int]]:
    """The shop, a process of its own that is dialled by WebSockets; it, and its port."""
    world = World(tmp_path_factory.mktemp("websockets"))
    setting(world, SHOP, 'carrier = "websocket"')
    listen = world.folder(SHOP).listen
    assert listen is not None
    file = world.path / "credit" / "federation.toml"
    at = f'"127.0.0.1:{listen[1]}"'
    file.write_text(world.signed(file.read_text().replace(at, f'"ws://{at[1:]}')))
    world.share()
    command = [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "listens at" in running.stdout.readline()
        assert reached(world, BANK, SHOP)
        yield world, psutil.Process(running.pid), listen[1]
        running.terminate()


def upgraded(port: int) -> socket.socket:
    """Return a connection that has become a WebSocket."""
    made = socket.create_connection(("127.0.0.1", port), 10)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = ["GET / HTTP/1.1", "Host: shop", "Upgrade: websocket", "Connection: Upgrade"]
    lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
    made.sendall("\r\n".join(lines).encode())
    assert made.recv(4096).startswith(b"HTTP/1.1 101")
    return made


def grown(process: psutil.Process, act: Callable[[], None]) -> int:
    """Return by how many bytes of memory a process grew while something was done to it."""
    before = process.memory_info().rss
    act()
    return int(process.memory_info().rss - before)


def sent_in(seconds: float, made: socket.socket, block: bytes) -> int:
    """Send a block again and again, and read nothing, until the other end has had enough; return the bytes."""
    end, count = time.monotonic() + seconds, 0
    made.settimeout(0.5)
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            count += made.send(block)
    return count


def test_requests_that_never_end_keep_no_site_out(site: tuple[World, psutil.Process, int]) -> None:
    world, process, port = site
    outsiders = []
    try:
        for _ in range(2 * MOST):
            outsiders.append(socket.create_connection(("127.0.0.1", port), 10))
            outsiders[-1].sendall(b"GET / HTTP/1.1\r\nHost: shop\r\n")
        num_open, ends = 2 * MOST, time.monotonic() + 30
        while num_open > MOST + 1 and time.monotonic() < ends:  # it takes as long as the machine is busy
            time.sleep(0.5)
            num_open = sum(one.status == psutil.CONN_ESTABLISHED for one in process.net_connections())
        assert MOST - 10 < num_open <= MOST + 1
        assert reached(world, BANK, SHOP)
    finally:
        for one in outsiders:
            one.close()


def test_who_pings_and_reads_no_answers_is_cut_off(site: tuple[World, psutil.Process, int]) -> None:
    _, process, port = site
    count = 0

    def act() -> None:
        nonlocal count
        with upgraded(port) as made:
            count = sent_in(9.0, made, frame(9, bytes(125)) * 1000)

    more = grown(process, act)
    assert count < 24 << 20  # it was cut off: what the two systems hold, and little more
    assert more < 8 << 20


def test_messages_that_never_end_take_little(site: tuple[World, psutil.Process, int]) -> None:
    _, process, port = site

    def unended() -> None:
        outsiders = [upgraded(port) for _ in range(100)]
        for one in outsiders:
            one.settimeout(0.5)
            with contextlib.suppress(OSError):
                one.sendall(frame(2, bytes((1 << 20) - 10), announced=1 << 20))
        time.sleep(0.5)
        for one in outsiders:
            one.close()

    assert grown(process, unended) < 48 << 20


def test_who_is_refused_and_does_not_close_its_end_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps a socket until its end is closed, or a second is over: thousands come within one."""
    monkeypatch.setitem(relay._BOUNDS, "close_timeout", 30)
    port, most, refused = free_port(), 4, list[str]()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        refused.append(address)
        await session.close_stream(writer)

    async def work() -> int:
        admission = session.Admission(lambda *_: None, most)
        server = await relay.listen_for_websockets("127.0.0.1", port, refuse, admission, LIMITS)
        outsiders = [await asyncio.to_thread(upgraded, port) for _ in range(5 * most)]
        try:
            async with asyncio.timeout(20):
                while len(refused) < len(outsiders):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            sockets = [one for one in psutil.Process().net_connections("tcp") if one.laddr.port == port]
            return len(sockets) - 1  # that listens
        finally:
            for one in outsiders:
                one.close()
            server.close()
            await server.wait_closed()

    assert asyncio.run(work()) <= most


def test_text_and_bare_frames_without_tls_are_no_link(site: tuple[World, psutil.Process, int]) -> None:
    from fedactors.federation.session import REQUEST, framed
    from fedactors.messages.codec import encode_parts

    _, _, port = site
    hello = framed(encode_parts((4, "credit", "driver", "0" * 16, "", time.time(), "s", -1, 0)), REQUEST)
    for said in (frame(1, b"hello"), frame(2, hello)):
        with upgraded(port) as made:
            made.settimeout(10)
            made.sendall(said)
            answer = b""
            with contextlib.suppress(OSError):
                while block := made.recv(4096):
                    answer += block
            assert b"credit" not in answer
            assert len(answer) < 200  # TLS' alert, and the end of the WebSocket

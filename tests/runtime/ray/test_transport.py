"""The ways out of a process: order of calls, who calls, and a peer that is not there."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import PEERS, Endpoint, Endpoints
from fedactors.errors import PartyLost
from fedactors.messages.codec import decode, encode, encode_parts
from fedactors.messages.ledger import CLIENT_SERVER
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import UnawaitedCall
from fedactors.runtime.ray import transport as transport_module
from fedactors.runtime.ray.transport import (
    HELLO,
    LEAST_SHARED,
    MOST_SHARED,
    REPLY,
    REQUEST,
    SHARED,
    TAKEN,
    UNREAD,
    Address,
    Caller,
    Incoming,
    LocalTransport,
    Memory,
    Outgoing,
    PayloadReader,
    connect,
    listen,
    ticket,
)
from tests.runtime.actors import Carry

KEY = b"b's own"
ENDPOINT = Endpoint("note", (Carry,), (Carry, NoneType), frozenset({PEERS}))
PATH = CallPath(Endpoints("Echo", {"note": ENDPOINT}, ()), ENDPOINT, "a", "b", CLIENT_SERVER)


def recognise(hello: memoryview) -> Caller | None:
    name, shown, _ = decode(hello)
    return Caller(name, "client") if shown == ticket(KEY, name) else None


def transport_to(socket: Path, me: str = "a", shown: bytes | None = None) -> LocalTransport:
    transport = LocalTransport(me, "here", True, 5.0, UnawaitedCall(lambda error: None, lambda name: True))
    credential = ticket(KEY, me) if shown is None else shown
    transport.update({"b": Address("b", "server", "here", str(socket), 1, 1, None, PATH.endpoints, credential)})
    return transport


def test_calls_arrive_in_the_order_in_which_they_are_made_also_while_the_transport_opens(tmp_path: Path) -> None:
    arrived: list[Any] = []

    async def serve(caller: Caller, body: memoryview) -> tuple[int, Any]:
        arrived.append((caller.name, decode(body)[1].values[0]))
        return REPLY, encode_parts(decode(body)[1])

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Incoming(recognise, serve), str(tmp_path / "socket"))
        transport = transport_to(tmp_path / "socket")
        address = transport.address("b", "a")
        replies = []
        # some before the transport is open, some at the very turns of the loop in which it opens, some after
        for number in range(200):
            replies.append(transport.send(address, PATH, encode_parts(("note", Carry((number,))))))
            if number % 5 == 0:
                await asyncio.sleep(0)
        answers = await asyncio.gather(*replies)
        transport.close()
        server.close()
        return [answer.values[0] for answer in answers]

    assert asyncio.run(main()) == list(range(200))
    assert arrived == [("a", number) for number in range(200)]


@pytest.mark.parametrize("shown", [b"", b"guessed", ticket(KEY, "c")])
def test_who_shows_a_ticket_that_is_not_its_own_is_not_heard(tmp_path: Path, shown: bytes) -> None:
    async def serve(caller: Caller, body: memoryview) -> tuple[int, Any]:
        raise AssertionError("served")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Incoming(recognise, serve), str(tmp_path / "socket"))
        transport = transport_to(tmp_path / "socket", shown=shown)
        with pytest.raises(PartyLost, match="b: its process was lost during note"):
            await transport.send(transport.address("b", "a"), PATH, encode_parts(("note", Carry((1,)))))
        transport.close()
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [REQUEST, REPLY, 77, TAKEN, UNREAD, SHARED | REQUEST, SHARED | HELLO])
def test_a_connection_begins_with_a_greeting_or_ends(tmp_path: Path, kind: int) -> None:
    async def serve(caller: Caller, body: memoryview) -> tuple[int, Any]:
        raise AssertionError("served")

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Incoming(recognise, serve), str(tmp_path / "socket"))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
        body = encode(("note", Carry((1,))))
        writer.write(len(body).to_bytes(8, "little") + (1).to_bytes(4, "little") + bytes([kind]) + bytes(51) + body)
        async with asyncio.timeout(5.0):
            answer = await reader.read()
        writer.close()
        server.close()
        return answer

    assert kind != HELLO
    assert asyncio.run(main()) == b""


def test_every_call_to_a_peer_that_does_not_listen_says_so(tmp_path: Path) -> None:
    async def main() -> list[Any]:
        transport = transport_to(tmp_path / "nobody")
        address = transport.address("b", "a")
        calls = [transport.send(address, PATH, encode_parts(("note", Carry((number,))))) for number in range(3)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        transport.close()
        return found

    found = asyncio.run(main())
    assert [type(error) for error in found] == [PartyLost] * 3
    assert "does not answer" in str(found[0])
    with pytest.raises(PartyLost, match="b"):
        raise found[2]


def test_a_connection_that_nobody_waits_for_any_more_leaves_no_timer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looks for late replies each second: in a site's process, for as long as that lives."""

    async def main() -> bool:
        async def never(*args: Any) -> None:
            await asyncio.Event().wait()

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "create_unix_connection", never)
        connection = Outgoing("b", [], lambda *_: None, 60.0)
        opening = asyncio.ensure_future(connect(str(tmp_path / "socket"), connection))
        await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
        return connection._sweeper.cancelled() and not connection.is_open

    assert asyncio.run(main())


# --- large bodies, in shared memory ---


async def echo(caller: Caller, body: memoryview) -> tuple[int, Any]:
    return REPLY, encode_parts(decode(body)[1])


class Blind(PayloadReader):
    """Reads nothing, as another user's process would."""

    def read(self, location: tuple[int, ...], key: int) -> bytes:
        raise PermissionError


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("size", [LEAST_SHARED - 4096, LEAST_SHARED, 3_000_000, MOST_SHARED + 1])
@pytest.mark.parametrize("there", [Memory(), Memory(reader=Blind()), None])
@pytest.mark.parametrize("here", [Memory(), Memory(reader=Blind())])
def test_a_large_body_arrives_as_it_was_whoever_can_read_whose_memory(
    tmp_path: Path, size: int, there: Memory | None, here: Memory
) -> None:
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Incoming(recognise, echo, None, there), str(tmp_path / "socket"))
        transport = transport_to(tmp_path / "socket")
        transport.memory = here
        address, answers = transport.address("b", "a"), []
        for number in range(6):
            calls = [
                transport.send(address, PATH, encode_parts(("note", Carry((number, k, values))))) for k in range(2)
            ]
            answers += await asyncio.gather(*calls)
        for memory in filter(None, (here, there)):
            # of what was read all but the last few is known to be, and its places are used again
            assert len(memory.store._slots) <= 6
            assert len(memory.store._segments) <= 2
        transport.close()
        server.close()
        await asyncio.sleep(0.05)  # the connection's end is heard of
        assert there is None or not there.store._slots, "what a peer that is gone did not take is given up"
        return answers

    answers = asyncio.run(main())
    assert [answer.values[:2] for answer in answers] == [(number, k) for number in range(6) for k in range(2)]
    assert all(np.array_equal(answer.values[2], values) for answer in answers)


def test_a_large_body_takes_the_socket_where_there_is_no_more_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Incoming(recognise, echo, None, None), str(tmp_path / "socket"))
        transport = transport_to(tmp_path / "socket")
        async with asyncio.timeout(30):
            body = encode_parts(("note", Carry((bytes(LEAST_SHARED),))))
            found = await transport.send(transport.address("b", "a"), PATH, body)
        transport.close()
        server.close()
        return found

    monkeypatch.setattr(os, "memfd_create", full)
    assert asyncio.run(main()).values == (bytes(LEAST_SHARED),)


def test_large_bodies_lie_in_shared_memory_and_small_ones_do_not(tmp_path: Path) -> None:
    async def main() -> list[int]:
        there, sizes = Memory(), []
        put = there.store.put
        there.store.put = lambda parts, readers: sizes.append(sum(map(len, parts))) or put(parts, readers)  # type: ignore[method-assign,func-returns-value]
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Incoming(recognise, echo, None, there), str(tmp_path / "socket"))
        transport = transport_to(tmp_path / "socket")
        for size in (10, LEAST_SHARED // 2, LEAST_SHARED, MOST_SHARED // 2, MOST_SHARED):
            await transport.send(transport.address("b", "a"), PATH, encode_parts(("note", Carry((bytes(size),)))))
        transport.close()
        server.close()
        there.close()
        return sizes

    found = asyncio.run(main())
    assert [size // LEAST_SHARED for size in found] == [1, MOST_SHARED // LEAST_SHARED // 2]


def test_a_place_that_is_not_in_the_senders_own_memory_is_not_looked_at(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4096))

    async def serve(caller: Caller, body: memoryview) -> tuple[int, Any]:
        raise AssertionError("served")

    async def main(file: int) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        path = str(tmp_path / f"lane{file}")
        server = await loop.create_unix_server(lambda: Incoming(recognise, serve, None, Memory()), path)
        reader, writer = await asyncio.open_unix_connection(path)
        hello, location = encode(("a", ticket(KEY, "a"), "b")), struct.pack("<QQQ40x", 5, file, 0)
        for kind, body in ((HELLO, hello), (SHARED | REQUEST, location)):
            writer.write(struct.pack("<QIB51x", len(body), 1, kind) + body)
        async with asyncio.timeout(5.0):
            head = await reader.readexactly(64)
            found = await reader.readexactly(8)
        writer.close()
        server.close()
        return head[12], found

    with secret.open("rb") as stream:
        for file in (stream.fileno(), 9999, 2**63):
            assert asyncio.run(main(file)) == (UNREAD, struct.pack("<Q", 5))


def test_many_connect_at_once_to_a_process_that_accepts_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "_BACKLOG", 1)
    served: list[str] = []

    async def serve(caller: Caller, body: memoryview) -> tuple[int, Any]:
        served.append(caller.name)
        return REPLY, encode_parts(decode(body)[1])

    async def main() -> list[Any]:
        socket = tmp_path / "socket"
        server = await listen(str(socket), recognise, serve)
        transports = [transport_to(socket, f"caller-{number}") for number in range(20)]
        asked = [
            one.send(one.book["b"], PATH, encode_parts(("note", Carry((number,)))))
            for number, one in enumerate(transports)
        ]
        try:
            return [answer.values[0] for answer in await asyncio.gather(*asked)]
        finally:
            for one in transports:
                one.close()
            server.close()

    assert asyncio.run(main()) == list(range(20))
    assert sorted(served) == sorted(f"caller-{number}" for number in range(20))

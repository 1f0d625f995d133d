"""The fast lane between actors of one Ray host: request and reply over Unix-domain sockets.

Ray places and supervises the processes; a call through Ray costs 0.7 to 1.4 ms though, of which none is needed
between two processes of one host. Here a call costs tens of microseconds, and a dead peer is noticed at once,
by the end of its connection. Between hosts calls go through Ray.

    frame = | body length u64 | request number u32 | kind u8 | zeros up to 64 | body (codec frame) |

A large body lies in the sender's shared memory, and the frame says where: a socket would copy it twice, in pieces of
what the kernel buffers, with a turn of both event loops for each.

    PLACED + kind: body = | key u64 | file u64 | offset u64 | zeros up to 64 |      TAKEN, UNREAD: body = keys, u64 each

The receiver copies it out at once, and says so with the next frame that it sends anyway. One that cannot read the
sender's memory (another user's, or in another process namespace) says that: the body then follows over the socket, and
so do all later ones.

The first frame of a connection is a HELLO with the caller's name and its ticket: who calls is bound to the connection.
A ticket can be made with the receiver's key only, which the driver and the receiver have (`ticket`). It says which
process of that name it is for: one that was lost and is not dead, because it was only cut off, is heard no more.

Codec frames are multiples of 64 bytes, so that arrays stay aligned wherever a frame lies in what was received.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedactors.errors import CallTimeout, FedactorsError, PartyLost, PayloadGone
from fedactors.network.codec import Parts, decode
from fedactors.remote import Door, Doors
from fedactors.runtime.calls import CallPath
from fedactors.runtime.ray.payloads import PayloadReader, PayloadStore

_HEAD = struct.Struct("<QIB51x")
REQUEST, REPLY, ERROR, HELLO, FETCH, TAKEN, UNREAD = range(7)
PLACED = 0x80
_PLACE = struct.Struct("<QQQ40x")
_KEY = struct.Struct("<Q")
_PEER = struct.Struct("3i")
LEAST_PLACED, MOST_PLACED = 1 << 17, 1 << 24
"""Bytes of a body that is worth shared memory, and of one that is too large to keep a place for."""
_MOST_UNTOLD = 4
"""Bodies that were taken and are not said to be: their sender cannot use their places again."""
PAYLOAD = CallPath(Doors("", {}, ()), Door("a fetch", (), (), frozenset()), "", "", "")
"""Stands for the path where it is a payload that is asked for, by its key."""
_SWEEP_SECONDS = 1.0
_NUMBER_BYTES = 4


def ticket(key: bytes, caller: str, incarnation: int = 0) -> bytes:
    """Return what lets a process speak to the actor that has `key`, as `caller` and as nobody else.

    Args:
        key: the receiver's.
        caller: name of the actor that the process hosts.
        incarnation: how many processes of that name were lost before it.
    """
    number = incarnation.to_bytes(_NUMBER_BYTES, "big")
    return number + hmac.digest(key, number + caller.encode(), "sha256")


def incarnation_of(key: bytes, caller: str, shown: bytes) -> int | None:
    """Return the incarnation that a ticket says its process is; None: it is no ticket of that caller's."""
    incarnation = int.from_bytes(shown[:_NUMBER_BYTES], "big")
    return incarnation if hmac.compare_digest(shown, ticket(key, caller, incarnation)) else None


def shown_by(hello: memoryview, key: bytes) -> tuple[str, int | None] | None:
    """Return the name in a HELLO and the incarnation that its ticket proves, if it does; None: it is no HELLO."""
    try:
        name, shown = decode(hello)
    except (FedactorsError, ValueError, TypeError):
        return None
    return (name, incarnation_of(key, name, shown)) if isinstance(name, str) and isinstance(shown, bytes) else None


@dataclass(frozen=True)
class Caller:
    """Who is at the other end of a connection, and what it may be believed: the receiver has checked its ticket."""

    name: str
    role: str
    incarnation: int = 0


@dataclass(frozen=True)
class Memory:
    """What a process keeps for others of its host to read, and its view of theirs."""

    store: PayloadStore = field(default_factory=PayloadStore)
    reader: PayloadReader = field(default_factory=PayloadReader)

    def close(self) -> None:
        """Give all memory back."""
        self.store.close()
        self.reader.close()


class _Frames(asyncio.Protocol):
    """Cuts the byte stream into frames and hands each to `on_frame(kind, number, body)`.

    Args:
        memory: where large bodies are placed; None: none is.
    """

    transport: asyncio.Transport

    def __init__(self, memory: Memory | None = None) -> None:
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = _HEAD.size
        self._memory = memory
        self._places = memory is not None
        self._peer = 0
        self._placed: dict[int, tuple[int, int]] = {}
        """Kind and number of the frames whose bodies lie in the memory here and are not taken yet, by key."""
        self._untold: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        # whose memory a place is in is the kernel's word, not the sender's
        options = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self._peer = _PEER.unpack(options)[0]

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what the peer has not taken; nobody will."""
        for key in list(self._placed):
            self._free(key)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._have += len(data)
        if self._have < self._need:
            return
        buffer = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        view = memoryview(buffer)
        start, end = 0, len(buffer)
        self._need = _HEAD.size
        while end - start >= _HEAD.size:
            length, number, kind = _HEAD.unpack_from(view, start)
            stop = start + _HEAD.size + length
            if stop > end:
                self._need = _HEAD.size + length
                break
            body = view[start + _HEAD.size : stop]
            if kind < TAKEN:
                self.on_frame(kind, number, body)
            else:
                self._on_memory(kind, number, body)
            start = stop
        # what remains is copied, so that a small rest does not keep a large buffer alive
        rest = buffer[start:]
        self._chunks = [rest] if rest else []
        self._have = len(rest)

    def on_frame(self, kind: int, number: int, body: memoryview) -> None:
        raise AssertionError("a subclass handles frames")

    def send(self, kind: int, number: int, parts: Parts) -> None:
        length = sum(len(part) for part in parts)
        if self._places and LEAST_PLACED <= length <= MOST_PLACED:
            assert self._memory is not None
            try:
                key, (_, file, offset) = self._memory.store.put(parts, frozenset())
            except OSError:  # no more files, or no memory: the socket needs neither
                self._places = False
            else:
                self._placed[key] = kind, number
                kind, length, parts = kind | PLACED, _PLACE.size, [_PLACE.pack(key, file, offset)]
        told = self._frame_of_keys(TAKEN, self._untold) if self._untold else b""
        self._untold.clear()
        self.transport.write(b"".join((told, _HEAD.pack(length, number, kind), *parts)))

    # --- bodies in shared memory ---

    @property
    def _is_known(self) -> bool:
        """Whether the peer has said who it is; before that nothing of its memory is looked at."""
        return True

    def _on_memory(self, kind: int, number: int, body: memoryview) -> None:
        """Take a body that lies in the peer's memory, or learn what became of those here."""
        is_place = kind & PLACED and kind & ~PLACED < TAKEN and len(body) == _PLACE.size
        is_answer = kind in (TAKEN, UNREAD) and len(body) % _KEY.size == 0
        if not self._is_known or not (is_place or is_answer):
            self.transport.close()
        elif is_place:
            self._take(kind & ~PLACED, number, *_PLACE.unpack(body))
        elif kind == TAKEN:
            for (key,) in _KEY.iter_unpack(body):
                self._free(key)
        else:
            self._places = False
            for (key,) in _KEY.iter_unpack(body):
                if key in self._placed and self._memory is not None:
                    frame = self._memory.store.read(key)
                    self.send(*self._free(key), [frame])

    def _take(self, kind: int, number: int, key: int, file: int, offset: int) -> None:
        try:
            if self._memory is None:
                raise PayloadGone(f"a body of {self._peer}'s memory came where none is read")
            body = self._memory.reader.read((self._peer, file, offset), key)
        except (OSError, ValueError, PayloadGone):
            self.transport.write(self._frame_of_keys(UNREAD, [key]))
            return
        self._untold.append(key)
        if len(self._untold) > _MOST_UNTOLD:
            self.transport.write(self._frame_of_keys(TAKEN, self._untold))
            self._untold.clear()
        self.on_frame(kind, number, memoryview(body))

    def _free(self, key: int) -> tuple[int, int]:
        """Use a place again; return kind and number of the frame whose body was there."""
        if self._memory is not None and key in self._placed:
            self._memory.store.free(key)
        return self._placed.pop(key, (0, 0))

    def _frame_of_keys(self, kind: int, keys: Sequence[int]) -> bytes:
        return _HEAD.pack(_KEY.size * len(keys), 0, kind) + b"".join(map(_KEY.pack, keys))


class Outgoing(_Frames):
    """The calling end of a connection to the actor `name`."""

    def __init__(
        self,
        name: str,
        hello: Parts,
        take_reply: Callable[[asyncio.Future[Any], CallPath, int, memoryview], None],
        call_timeout: float,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(memory)
        self.name = name
        self._hello = hello
        self.is_open = True
        self._take_reply = take_reply
        self._call_timeout = call_timeout
        self._pending: dict[int, tuple[asyncio.Future[Any], float, CallPath]] = {}
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.send(HELLO, 0, self._hello)

    def request(self, path: CallPath, parts: Parts) -> asyncio.Future[Any]:
        """Send a request now and return the future of its reply."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(PartyLost(self.name, f"its process is gone; {path.endpoint.name} was not done"))
            return future
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._pending[self._number] = (future, self._loop.time(), path)
        self.send(FETCH if path is PAYLOAD else REQUEST, self._number, parts)
        return future

    def on_frame(self, kind: int, number: int, body: memoryview) -> None:
        found = self._pending.pop(number, None)
        if found is None or found[0].done():
            return
        self._take_reply(found[0], found[2], kind, body)

    def give_up(self) -> None:
        """Stop looking for late replies on a connection that never came about."""
        self.is_open = False
        self._sweeper.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.is_open = False
        self._sweeper.cancel()
        pending, self._pending = self._pending, {}
        for future, _, path in pending.values():
            if not future.done():
                future.set_exception(PartyLost(self.name, f"its process was lost during {path.endpoint.name}"))

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(_SWEEP_SECONDS, self._sweep)
        oldest = self._loop.time() - self._call_timeout
        late = [number for number, (_, since, _) in self._pending.items() if since < oldest]
        for number in late:
            future, _, path = self._pending.pop(number)
            if not future.done():
                text = f"{path.endpoint.name} gave no answer within {self._call_timeout:g} s"
                future.set_exception(CallTimeout(self.name, text))


class Incoming(_Frames):
    """The serving end: each request becomes a task of `serve(caller, body)`, which returns (kind, parts).

    Args:
        recognise: says who a HELLO frame's sender is, or None if its ticket is wrong: the connection then ends.
        serve: does what a caller asks.
        fetch: likewise, of a payload; None: payloads are not asked for here.
        memory: see `_Frames`.
    """

    def __init__(
        self,
        recognise: Callable[[memoryview], Caller | None],
        serve: Callable[[Caller, memoryview], Any],
        fetch: Callable[[Caller, memoryview], Any] | None = None,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(memory)
        self._recognise = recognise
        self._serves = {REQUEST: serve} if fetch is None else {REQUEST: serve, FETCH: fetch}
        self._caller: Caller | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def _is_known(self) -> bool:
        return self._caller is not None

    def on_frame(self, kind: int, number: int, body: memoryview) -> None:
        if self.transport.is_closing():
            return
        if self._caller is None:
            self._caller = self._recognise(body) if kind == HELLO else None
            if self._caller is None:
                self.transport.close()
            return
        serve = self._serves.get(kind)
        if serve is None:
            self.transport.close()
            return
        task = asyncio.get_running_loop().create_task(self._answer(serve, self._caller, number, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, serve: Callable[..., Any], caller: Caller, number: int, body: memoryview) -> None:
        kind, parts = await serve(caller, body)
        if not self.transport.is_closing():
            self.send(kind, number, parts)


async def connect(path: str, connection: Outgoing) -> Outgoing:
    """Connect to an actor's socket.

    Raises:
        PartyLost: nobody listens there any more.
    """
    try:
        await asyncio.get_running_loop().create_unix_connection(lambda: connection, path)
    except BaseException as error:  # also where nobody waits for it any more
        connection.give_up()
        if not isinstance(error, OSError):
            raise
        raise PartyLost(connection.name, f"its process does not answer ({error.strerror or error})") from None
    return connection

"""How a process reaches the actors of a run: over Unix-domain sockets on its own Ray host, through Ray elsewhere.

Ray places and supervises the processes, but a call through Ray costs 0.7 to 1.4 ms. Between two processes of one host
a call over a socket costs tens of microseconds, and a dead peer is noticed at once by the end of its connection.

    LocalTransport.send ─▶ Outgoing ═══socket═══▶ Incoming ─▶ serve(caller, body) ─▶ reply, or error, by its number
                      └──▶ Ray's actor handle, where the host is another one

    frame = | body length u64 | request number u32 | kind u8 | zeros up to 64 | body (codec frame) |

The first frame of a connection is a HELLO with the caller's name, its ticket, and the name of the actor that it calls:
who calls whom is bound to the connection. A ticket can be made with the key of the receiver's process only, which the
driver and that process have (`ticket`). It says which process of that name it is for: one that was lost and is only cut
off is heard no more. Codec frames are multiples of
64 bytes, so that arrays stay aligned wherever a frame lies in what was received.

A large body lies in the sender's shared memory, and the frame says where: a socket would copy it twice, in pieces.

    PLACED + kind: body = | key u64 | file u64 | offset u64 | zeros up to 64 |      TAKEN, UNREAD: body = keys, u64 each

The receiver copies it out at once, and says so with the next frame that it sends anyway. One that cannot read the
sender's memory (another user's, or in another process namespace) says UNREAD: the body then follows over the socket,
and so do all later ones.

Payloads are read the same way. The owner writes a payload's frame into an anonymous memory file (memfd) and the
reference says where; a reader on the same host maps it through ``/proc/<pid>/fd/<fd>``. A slot's header holds the
payload's key before and after the copy, so a slot that was freed or used again meanwhile is noticed. Readers on other
hosts ask the owner's process for the bytes. Keys are random; whom a payload is for travels with its frame.
"""

from __future__ import annotations

import asyncio
import hmac
import mmap
import os
import secrets
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from ray import cloudpickle
from ray.exceptions import RayActorError

from fedactors.actors.remote import Endpoint, Endpoints
from fedactors.errors import CallTimeout, FedactorsError, PartyLost, PayloadGone
from fedactors.messages.codec import Parts, decode, encode_parts
from fedactors.runtime import calls
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import UnawaitedCall, decode_reply

_SLOT = struct.Struct("<QQ")
_HEADER = 64
_SEGMENT_BYTES = 1 << 24
_MAX_MAPPED = 64
_SEGMENT_NAME = "fedactors-payloads"


class PayloadStore:
    """The owner's side: slots of power-of-two sizes in a few segments, reused once freed."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, mmap.mmap]] = []
        self._fill = _SEGMENT_BYTES
        self._free: dict[int, list[tuple[int, int]]] = {}
        self._slots: dict[int, tuple[int, int, int, int]] = {}
        self._readers: dict[int, frozenset[str]] = {}

    def put(self, parts: list[bytes | memoryview], readers: frozenset[str]) -> tuple[int, tuple[int, int, int]]:
        """Store a frame given in parts for `readers`; return its key and its location."""
        length = sum(len(part) for part in parts)
        size = max(4096, 1 << (length + _HEADER - 1).bit_length())
        spare = self._free.get(size)
        segment, offset = spare.pop() if spare else self._new_slot(size)
        key = secrets.randbits(62) | 1
        descriptor, memory = self._segments[segment]
        position = offset + _HEADER
        for part in parts:
            memory[position : position + len(part)] = part
            position += len(part)
        _SLOT.pack_into(memory, offset, key, length)
        self._slots[key] = (segment, offset, size, length)
        self._readers[key] = readers
        return key, (os.getpid(), descriptor, offset)

    def readers(self, key: int) -> frozenset[str]:
        """Return for whom a payload is."""
        self._check(key)
        return self._readers[key]

    def _check(self, key: int) -> None:
        if key not in self._slots:
            raise PayloadGone(f"payload {key} was freed by its owner, or never was")

    def read(self, key: int) -> bytes:
        """Return a frame by its key, for readers that cannot map it."""
        self._check(key)
        segment, offset, _, length = self._slots[key]
        return self._segments[segment][1][offset + _HEADER : offset + _HEADER + length]

    def free(self, key: int) -> None:
        """Give a slot back; unknown keys are ignored."""
        found = self._slots.pop(key, None)
        if found is None:
            return
        segment, offset, size, _ = found
        del self._readers[key]
        _SLOT.pack_into(self._segments[segment][1], offset, 0, 0)
        self._free.setdefault(size, []).append((segment, offset))

    def close(self) -> None:
        """Give all memory back."""
        for descriptor, memory in self._segments:
            memory.close()
            os.close(descriptor)
        for tables in (self._segments, self._free, self._slots, self._readers):
            tables.clear()
        self._fill = _SEGMENT_BYTES

    def _new_slot(self, size: int) -> tuple[int, int]:
        if self._fill + size > _SEGMENT_BYTES or size > _SEGMENT_BYTES:
            length = max(_SEGMENT_BYTES, size)
            descriptor = os.memfd_create(_SEGMENT_NAME)
            os.ftruncate(descriptor, length)
            self._segments.append((descriptor, mmap.mmap(descriptor, length)))
            self._fill = 0
        offset = self._fill
        self._fill += size
        return len(self._segments) - 1, offset


class PayloadReader:
    """The reader's side: maps other processes' segments, a bounded number at a time."""

    def __init__(self) -> None:
        self._maps: OrderedDict[tuple[int, int], mmap.mmap] = OrderedDict()

    def read(self, location: tuple[int, ...], key: int) -> bytes:
        """Copy a frame out of its owner's memory.

        Raises:
            PayloadGone: it was freed.
            OSError: the owner's memory cannot be mapped (it is dead, or in another process namespace).
        """
        pid, descriptor, offset = location
        memory = self._maps.get((pid, descriptor))
        if memory is None:
            where = f"/proc/{pid}/fd/{descriptor}"
            # a location is a claim of its sender: nothing but a segment of payloads is opened
            if not os.readlink(where).startswith(f"/memfd:{_SEGMENT_NAME}"):
                raise PayloadGone(f"payload {key} does not lie where its reference says")
            with open(where, "rb") as file:
                memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            self._maps[(pid, descriptor)] = memory
            if len(self._maps) > _MAX_MAPPED:
                self._maps.popitem(last=False)[1].close()
        if not 0 <= offset <= len(memory) - _HEADER:
            raise PayloadGone(f"payload {key} does not lie where its reference says")
        found, length = _SLOT.unpack_from(memory, offset)
        frame = memory[offset + _HEADER : offset + _HEADER + length]
        if found != key or _SLOT.unpack_from(memory, offset)[0] != key:
            raise PayloadGone(f"payload {key} was freed by its owner")
        return frame

    def close(self) -> None:
        """Unmap everything."""
        for memory in self._maps.values():
            memory.close()
        self._maps.clear()


_HEAD = struct.Struct("<QIB51x")
REQUEST, REPLY, ERROR, HELLO, FETCH, TAKEN, UNREAD = range(7)
SHARED = 0x80
_LOCATION = struct.Struct("<QQQ40x")
_KEY = struct.Struct("<Q")
_PEER = struct.Struct("3i")
LEAST_SHARED, MOST_SHARED = 1 << 17, 1 << 24
"""Bytes of a body that is worth shared memory, and of one that is too large to keep memory for."""
_MOST_UNTOLD = 4
"""Bodies that were taken and are not said to be: their sender cannot use their memory again."""
PAYLOAD = CallPath(Endpoints("", {}, ()), Endpoint("a fetch", (), (), frozenset()), "", "", "")
"""Stands for the path where it is a payload that is asked for, by its key."""
_SWEEP_SECONDS = 1.0
_BACKLOG = 1024
"""Connections that wait to be accepted: those of all peers of all actors of a process may come at once."""
_ACCEPT_SECONDS, _ACCEPT_AGAIN = 600.0, 0.02
_NUMBER_BYTES = 4


def ticket(key: bytes, caller: str, incarnation: int = 0) -> bytes:
    """Return what lets a process speak to the process that has `key`, as `caller` and as nobody else.

    Args:
        key: of the receiver's process.
        caller: name of the actor that the process hosts.
        incarnation: how many processes of that name were lost before it.
    """
    number = incarnation.to_bytes(_NUMBER_BYTES, "big")
    return number + hmac.digest(key, number + caller.encode(), "sha256")


def incarnation_of(key: bytes, caller: str, shown: bytes) -> int | None:
    """Return the incarnation that a ticket says its process is; None: it is no ticket of that caller's."""
    incarnation = int.from_bytes(shown[:_NUMBER_BYTES], "big")
    return incarnation if hmac.compare_digest(shown, ticket(key, caller, incarnation)) else None


def shown_by(hello: memoryview, key: bytes) -> tuple[str, str, int | None] | None:
    """Return the names in a HELLO, the caller's and the receiver's, and the incarnation that its ticket proves, if any.

    None: it is no HELLO.
    """
    try:
        name, shown, receiver = decode(hello)
    except (FedactorsError, ValueError, TypeError):
        return None
    if not (isinstance(name, str) and isinstance(shown, bytes) and isinstance(receiver, str)):
        return None
    return name, receiver, incarnation_of(key, name, shown)


@dataclass(frozen=True)
class Caller:
    """Who is at the other end of a connection, and what it may be believed: the receiver has checked its ticket."""

    name: str
    role: str
    incarnation: int = 0
    receiver: str = ""
    """Whom it calls over this connection, of the actors of the process."""


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
        memory: where large bodies are shared; None: none is.
    """

    transport: asyncio.Transport

    def __init__(self, memory: Memory | None = None) -> None:
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = _HEAD.size
        self._memory = memory
        self._uses_memory = memory is not None
        self._peer = 0
        self._shared: dict[int, tuple[int, int]] = {}
        """Kind and number of the frames whose bodies lie in the memory here and are not taken yet, by key."""
        self._untold: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        # whose memory a location is in is the kernel's word, not the sender's
        options = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        self._peer = _PEER.unpack(options)[0]

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget what the peer has not taken; nobody will."""
        for key in list(self._shared):
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
        if self._uses_memory and LEAST_SHARED <= length <= MOST_SHARED:
            assert self._memory is not None
            try:
                key, (_, file, offset) = self._memory.store.put(parts, frozenset())
            except OSError:  # no more files, or no memory: the socket needs neither
                self._uses_memory = False
            else:
                self._shared[key] = kind, number
                kind, length, parts = kind | SHARED, _LOCATION.size, [_LOCATION.pack(key, file, offset)]
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
        is_shared = kind & SHARED and kind & ~SHARED < TAKEN and len(body) == _LOCATION.size
        is_answer = kind in (TAKEN, UNREAD) and len(body) % _KEY.size == 0
        if not self._is_known or not (is_shared or is_answer):
            self.transport.close()
        elif is_shared:
            self._take(kind & ~SHARED, number, *_LOCATION.unpack(body))
        elif kind == TAKEN:
            for (key,) in _KEY.iter_unpack(body):
                self._free(key)
        else:
            self._uses_memory = False
            for (key,) in _KEY.iter_unpack(body):
                if key in self._shared and self._memory is not None:
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
        """Use a location again; return kind and number of the frame whose body was there."""
        if self._memory is not None and key in self._shared:
            self._memory.store.free(key)
        return self._shared.pop(key, (0, 0))

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


async def listen(path: str, *served: Any) -> asyncio.AbstractServer:
    """Listen at a path; `served` are the arguments of `Incoming`."""
    return await asyncio.get_running_loop().create_unix_server(lambda: Incoming(*served), path, backlog=_BACKLOG)


async def connect(path: str, connection: Outgoing) -> Outgoing:
    """Connect to an actor's socket.

    Raises:
        PartyLost: nobody listens there any more, or accepts for so long.
    """
    loop = asyncio.get_running_loop()
    end = socket.socket(socket.AF_UNIX)
    try:
        end.setblocking(False)
        deadline = loop.time() + _ACCEPT_SECONDS
        while True:
            try:
                end.connect(path)  # by itself: asyncio takes a full queue for a connection that is under way
                break
            except BlockingIOError:  # more connect at once than the queue holds: it may compute, and accepts later
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(_ACCEPT_AGAIN)
        await loop.create_unix_connection(lambda: connection, sock=end)
    except BaseException as error:  # also where nobody waits for it any more
        end.close()
        connection.give_up()
        if not isinstance(error, OSError):
            raise
        raise PartyLost(connection.name, f"its process does not answer ({error.strerror or error})") from None
    return connection


@dataclass(frozen=True)
class Address:
    """Where an actor lives: its process's Ray handle, and its socket for callers on the same host."""

    name: str
    role: str
    host: str
    socket: str
    pid: int
    began: int
    """When the process began, by its host's count: another one may have its number by now."""
    actor: Any
    endpoints: Endpoints
    ticket: bytes
    """With which the actor that holds this address calls there; made for its name and no other."""
    process: str = ""
    """Name of its process, which is that of the first actor there."""
    incarnation: int = 0
    """How many processes of this actor were lost before it."""


class AddressBook(Mapping[str, Address]):
    """Where actors live; an entry that came packed is unpacked when it is first used.

    A run of N actors packs N entries once and sends them to all processes as one object; most actors use a few of them.

    Args:
        packed: entries as `pack` gives them, of all actors of this process.
    """

    def __init__(self, packed: dict[str, bytes] | None = None) -> None:
        self.packed: dict[str, bytes] = {} if packed is None else packed
        self.tickets: dict[str, bytes] = {}
        """With which this actor calls processes, by their names."""
        self._used: dict[str, Address] = {}

    def __getitem__(self, name: str) -> Address:
        found = self._used.get(name)
        if found is None:
            there = cloudpickle.loads(self.packed[name])
            found = self._used[name] = replace(there, ticket=self.tickets[there.process])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.packed, *self._used)))

    def __len__(self) -> int:
        return len(self.packed.keys() | self._used.keys())

    def used(self, name: str) -> Address | None:
        """Return an entry if it has been used."""
        return self._used.get(name)

    def put(self, address: Address) -> None:
        """Learn where an actor lives."""
        self._used[address.name] = address


def pack(book: Mapping[str, Address]) -> dict[str, bytes]:
    """Return the entries of an address book for others, whose tickets are not in it."""
    return {name: cloudpickle.dumps(replace(address, ticket=b"")) for name, address in book.items()}


class LocalTransport:
    """The ways out of one actor, or of the driver.

    Args:
        me: name of the actor, or of the driver, that calls from here.
        host: the Ray host that this process is on.
        use_sockets: whether actors of one host talk directly.
        call_timeout: seconds within which every call must be answered.
        unawaited: is told of every call that failed.
        memory: what this process shares with others of its host; by default this actor's own.
        packed: entries of the address book that all actors of this process have.
    """

    def __init__(
        self,
        me: str,
        host: str,
        use_sockets: bool,
        call_timeout: float,
        unawaited: UnawaitedCall,
        memory: Memory | None = None,
        packed: dict[str, bytes] | None = None,
    ) -> None:
        self.book = AddressBook(packed)
        self.memory = Memory() if memory is None else memory
        self.actor: Any = None
        """Who calls from here, where it is in this process: it knows the dimensions of replies."""
        self._me = me
        self._host = host
        self._use_sockets = use_sockets
        self._call_timeout = call_timeout
        self._unawaited = unawaited
        self._open: dict[str, Outgoing] = {}
        self._opening: dict[tuple[str, str], deque[tuple[CallPath, Parts, asyncio.Future[Any]]]] = {}
        """By receiver and socket, what waits in order for a connection: path, frame, future of the reply."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._least: dict[str, int] = {}
        """By name, the first incarnation that was not given up as lost."""

    def bar(self, name: str, incarnation: int) -> None:
        """Give up all processes of a name before this incarnation: one that was cut off may come back."""
        self._least[name] = max(incarnation, self.least(name))
        known = self.book.used(name)
        if known is not None and known.incarnation < incarnation and (gone := self._open.pop(name, None)) is not None:
            gone.transport.close()

    def least(self, name: str) -> int:
        """Return the first incarnation of a name that was not given up as lost."""
        return self._least.get(name, 0)

    def update(self, addresses: Mapping[str, Address]) -> None:
        """Learn addresses; a connection to an actor that has moved is dropped."""
        for name, address in addresses.items():
            old = self.book.used(name)
            self.book.put(address)
            if old is not None and old.socket != address.socket:
                gone = self._open.pop(name, None)
                if gone is not None and gone.is_open:
                    gone.transport.close()

    def learn(self, packed: Mapping[str, bytes], tickets: Mapping[str, bytes]) -> None:
        """Learn packed addresses, and the tickets for their processes."""
        self.book.packed.update(packed)
        self.book.tickets.update(tickets)
        for name in [name for name in packed if self.book.used(name) is not None]:
            there = cloudpickle.loads(packed[name])
            self.update({name: replace(there, ticket=self.book.tickets[there.process])})

    def address(self, receiver: str, sender: str) -> Address:
        """Return where an actor lives; an unknown one is a `BadInput` that lists those there are."""
        try:
            return self.book[receiver]
        except KeyError:
            raise calls.unknown_actor(sender, receiver, self.book) from None

    def is_near(self, address: Address) -> bool:
        """Say whether an actor is on this process's host."""
        return self._use_sockets and address.host == self._host

    def send(self, address: Address, path: CallPath, parts: Parts) -> asyncio.Future[Any]:
        """Send an encoded call and return the future of its reply.

        Calls over one socket arrive in the order in which they are made, unless a body could not be read where it lay;
        those through Ray in any order.
        """
        connection = self._open.get(address.name)
        if connection is not None and connection.is_open:
            return connection.request(path, parts)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.is_near(address):
            self._start(self._through_ray(reply, address, path, b"".join(parts)))
            return reply
        key = address.name, address.socket
        waiting = self._opening.get(key)
        if waiting is None:
            waiting = self._opening[key] = deque()
            self._start(self._connect(address, waiting))
        waiting.append((path, [b"".join(parts)], reply))
        return reply

    def send_for(self, reply: asyncio.Future[Any], address: Address, path: CallPath, parts: Parts) -> None:
        """Send an encoded call whose reply ends a future that the caller has already."""
        self.send(address, path, parts).add_done_callback(partial(self._pass_on, reply))

    def _start(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, address: Address, waiting: deque[tuple[CallPath, Parts, asyncio.Future[Any]]]) -> None:
        hello = encode_parts((self._me, address.ticket, address.name))
        connection = Outgoing(address.name, hello, self._take_reply, self._call_timeout, self.memory)
        try:
            await connect(address.socket, connection)
        except PartyLost as error:
            for _, _, reply in waiting:
                if not reply.done():
                    self._unawaited.fail(reply, PartyLost(error.party, error.message), self._me)
            return
        finally:
            del self._opening[address.name, address.socket]
        self._open[address.name] = connection
        for path, parts, reply in waiting:
            connection.request(path, parts).add_done_callback(partial(self._pass_on, reply))

    def _take_reply(self, reply: asyncio.Future[Any], path: CallPath, kind: int, body: Any) -> None:
        """End a call with its reply, or with the error that came in its place."""
        if reply.done():
            return
        try:
            if path is PAYLOAD and kind == REPLY:
                reply.set_result(bytes(body))
                return
            value = decode_reply(kind == REPLY, body)
            calls.take(path, value)
            calls.fit(path, self.actor, value)
        except Exception as error:
            self._unawaited.fail(reply, error, self._me)
        else:
            reply.set_result(value)

    def _pass_on(self, to: asyncio.Future[Any], reply: asyncio.Future[Any]) -> None:
        error = None if reply.cancelled() else reply.exception()
        if to.done():
            return
        if reply.cancelled():
            to.cancel()
        elif error is not None:
            self._unawaited.fail(to, error, self._me)
        else:
            to.set_result(reply.result())

    async def _through_ray(self, reply: asyncio.Future[Any], address: Address, path: CallPath, frame: bytes) -> None:
        # as an array the frame travels out of band, without another copy
        reference = address.actor.call.remote(address.name, self._me, address.ticket, np.frombuffer(frame, np.uint8))
        error: FedactorsError
        try:
            async with asyncio.timeout(self._call_timeout):
                kind, body = await reference
        except TimeoutError:
            error = CallTimeout(address.name, f"{path.endpoint.name} gave no answer within {self._call_timeout:g} s")
        except RayActorError:
            error = PartyLost(address.name, f"its process was lost during {path.endpoint.name}")
        else:
            if address.incarnation >= self.least(address.name):
                self._take_reply(reply, path, kind, memoryview(body))
                return
            error = PartyLost(address.name, f"its process was given up as lost during {path.endpoint.name}")
        if not reply.done():
            self._unawaited.fail(reply, error, self._me)

    async def fetch(self, address: Address, key: int) -> bytes:
        """Ask an owner for a payload's bytes."""
        if self.is_near(address):
            found: bytes = await self.send(address, PAYLOAD, encode_parts(key))
            return found
        try:
            async with asyncio.timeout(self._call_timeout):
                kind, body = await address.actor.fetch.remote(address.name, self._me, address.ticket, key)
        except TimeoutError:
            raise CallTimeout(address.name, f"payload {key} did not come within {self._call_timeout:g} s") from None
        except RayActorError:
            raise PartyLost(address.name, "its process was lost while a payload was fetched") from None
        if address.incarnation < self.least(address.name):
            raise PartyLost(address.name, "its process was given up as lost while a payload was fetched")
        frame = memoryview(body)
        return bytes(frame) if kind == REPLY else decode_reply(False, frame)

    def close(self) -> None:
        """Close all connections, and give the memory back that is shared over them."""
        for task in list(self._tasks):
            task.cancel()
        for connection in self._open.values():
            if connection.is_open:
                connection.transport.close()
        self._open.clear()
        self.memory.close()


def as_array(parts: Parts) -> np.ndarray:
    """Return a frame as a byte array, which Ray carries out of band."""
    return np.frombuffer(b"".join(parts), np.uint8)

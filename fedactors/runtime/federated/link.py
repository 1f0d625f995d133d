"""The link between two sites: numbered requests and replies over TLS, in pieces, each wait with a limit.

A connection is of one run and one purpose, and its first request says which (HELLO). Requests are numbered from 1 and
nothing is left out, so that nothing can be said twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fedactors.errors import CallTimeout, PartyLost, Refused
from fedactors.network.codec import Parts, encode_parts
from fedactors.runtime.failures import encode_error
from fedactors.runtime.federated.folders import Member, SiteFolder
from fedactors.runtime.federated.greeting import VERSION as VERSION
from fedactors.runtime.federated.greeting import Hello as Hello
from fedactors.runtime.federated.greeting import ahead_of, greeting_in
from fedactors.runtime.federated.pieces import (
    ERROR,
    HEAD,
    PIECE_BYTES,
    PING,
    REPLY,
    REQUEST,
    Broken,
    Limits,
    error_in,
    framed,
    pieces_of,
    read_piece,
    value_of,
)
from fedactors.runtime.federated.relayed import through_relay
from fedactors.validation import first_line

_LAST_WORDS = 1.0
"""Seconds within which a connection says what it still has to say, and closes."""
_SMALL = 16 * 1024
"""Bytes that are copied to be written at once: a record of TLS has no more."""
MOST_PENDING = 4096
"""Requests of one connection that may be under way."""
REFUSED, TURNED_AWAY = "refused: ", "turned away: "
"""How the reason begins for which a connection is lost, if this side or the other did not keep to its rules."""


Serve = Callable[[memoryview], Awaitable[Any]]
"""Does what a request asks and returns the value of the reply, or raises."""


@dataclass
class Traffic:
    """Bytes that were written to, and read from, a site, inside of TLS."""

    sent: int = 0
    received: int = 0


@dataclass(eq=False)
class Connection:
    """One end of a link's connection to the site `peer`.

    Args:
        peer: proved by its certificate.
        reader, writer: the stream, with TLS.
        limits: see there.
        serve: what becomes of the other side's requests; None: it may make none.
        lost: is told, once, why the connection is no more, unless this side closed it.
        errors: how an error that this side raises is told to the other.
    """

    peer: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    limits: Limits
    serve: Serve | None
    lost: Callable[[Connection, str], None]
    errors: Callable[[BaseException], Parts]
    name: str = ""
    """What whoever serves it knows it by."""
    traffic: Traffic = field(default_factory=Traffic)
    clock_seconds: float = 0.0
    """How far the other site's clock is ahead of this one's."""
    _pending: dict[int, tuple[asyncio.Future[Any], str]] = field(default_factory=dict)
    _made: int = 0
    _taken: int = 0
    _queue: deque[tuple[int, int, Parts]] = field(default_factory=deque)
    _queued: asyncio.Event = field(default_factory=asyncio.Event)
    _is_writing: bool = False
    _num_open: int = 0
    """Requests of the other side whose answers are not yet written,"""
    _held_bytes: int = 0
    """and the bytes of what they ask, or of their answers."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _is_closed: bool = False

    def start(self) -> None:
        """Begin to read, to write, and to give signs of life."""
        for work in (self._read(), self._write(), self._live()):
            self._start(work)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def request(self, parts: Parts, what: str, *, is_limited: bool = True) -> asyncio.Future[Any]:
        """Send a request now and return the future of its reply's bytes, or its error; `what` is for people.

        One that is not limited waits while the other side gives signs of life.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            reply.set_exception(PartyLost(self.peer, f"its site is gone; {what} was not done"))
            return reply
        self._made += 1
        number = self._made
        self._pending[number] = (reply, what)
        self._send(REQUEST, number, parts)
        if is_limited:
            late = asyncio.get_running_loop().call_later(self.limits.call, self._give_up, number)
            reply.add_done_callback(lambda _: late.cancel())
        return reply

    async def ask(self, value: Any, what: str) -> Any:
        """Send a request and return the value of its reply.

        Raises:
            Refused: it is none.
        """
        return value_of(await self.request(encode_parts(value), what), self.peer)

    def _give_up(self, number: int) -> None:
        reply, what = self._pending.pop(number, (None, ""))
        if reply is not None and not reply.done():
            reply.set_exception(CallTimeout(self.peer, f"{what} gave no answer within {self.limits.call:g} s"))

    def _send(self, kind: int, number: int, parts: Parts) -> None:
        size = sum(map(len, parts))
        if size <= _SMALL and self._is_clear and not self._is_closed:
            # what is small need not wait for the task that writes
            try:
                self._write_piece(b"".join(parts), kind, False, number)
            except (OSError, ssl.SSLError) as error:
                self._end(_reason(error))
            self._written(kind, size)
            return
        self._queue.append((kind, number, parts))
        self._queued.set()

    @property
    def _is_clear(self) -> bool:
        """Whether nothing waits to be written."""
        return not (self._queue or self._is_writing or self.writer.transport.get_write_buffer_size())

    def _write_piece(self, piece: bytes | memoryview, kind: int, more: bool, number: int) -> None:
        head = HEAD.pack(len(piece), kind, more, number)
        if len(piece) <= _SMALL:
            self.writer.write(head + piece)  # one record of TLS, one packet
        else:
            self.writer.write(head)
            self.writer.write(piece)
        self.traffic.sent += len(head) + len(piece)

    def _written(self, kind: int, size: int) -> None:
        if kind in (REPLY, ERROR):
            self._num_open -= 1
            self._held_bytes -= size

    async def _write(self) -> None:
        try:
            while True:
                await self._queued.wait()
                self._queued.clear()
                self._is_writing = True
                while self._queue:
                    kind, number, parts = self._queue.popleft()
                    # a reader that stands still for longer than its lease is lost: `_read` sees no sign of life
                    for piece, more in pieces_of(parts):
                        self._write_piece(piece, kind, more, number)
                        await self.writer.drain()
                    self._written(kind, sum(map(len, parts)))
                self._is_writing = False
        except (OSError, ssl.SSLError) as error:
            self._end(_reason(error))

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self.limits.lease / 4)
            if not self._queue:
                self._send(PING, 0, [])

    async def _read(self) -> None:
        held: list[bytes] = []
        begun = (-1, -1)
        try:
            while True:
                kind, more, number, piece = await read_piece(self.reader, self.limits, is_within=bool(held))
                self.traffic.received += HEAD.size + len(piece)
                if held and (kind, number) != begun and (kind, number) != (ERROR, 0):  # the latter is the last word
                    raise Broken("begins a message before the one before it has ended")
                if more and len(piece) < PIECE_BYTES:
                    raise Broken(f"sends a piece of {len(piece)} bytes within a message: each is {PIECE_BYTES}")
                if len(held) * PIECE_BYTES + len(piece) > self.limits.message:
                    raise Broken(f"sends a message of more than {self.limits.message} bytes")
                held.append(piece)
                begun = (kind, number)
                if not more:
                    self._take(kind, number, held[0] if len(held) == 1 else b"".join(held))
                    held = []
        except Broken as error:
            self._end(str(error), is_refused=True)
        except TimeoutError:
            self._end(f"gave no sign of life for {self.limits.lease:g} s")
        except (OSError, ssl.SSLError, EOFError) as error:
            self._end(_reason(error))

    def _take(self, kind: int, number: int, body: bytes) -> None:
        if kind == REQUEST:
            if number != self._taken + 1:
                raise Broken(f"sends call {number} after call {self._taken}: calls are made once, in their order")
            self._taken = number
            if self.serve is None:
                raise Broken("makes a call where it may make none")
            self._num_open += 1
            self._held_bytes += len(body)
            if self._is_pressed:
                raise Broken(self._pressed)
            self._start(self._answer(number, memoryview(body)))
        elif kind == ERROR and number == 0:
            self._end(f"{TURNED_AWAY}{_text_of(body)}")
        elif kind in (REPLY, ERROR):
            if not 0 < number <= self._made:
                raise Broken(f"answers call {number}, which was not made")
            reply, _ = self._pending.pop(number, (None, ""))
            if reply is not None and not reply.done():
                if kind == REPLY:
                    reply.set_result(body)
                    return
                reply.set_exception(error_in(body))
        elif kind != PING:
            raise Broken(f"sends a piece of kind {kind}, which there is not")

    async def _answer(self, number: int, body: memoryview) -> None:
        assert self.serve is not None
        try:
            kind, parts = REPLY, encode_parts(await self.serve(body))
        except Exception as error:
            kind, parts = ERROR, self.errors(error)
        self._held_bytes += sum(map(len, parts)) - len(body)
        if self._is_pressed:
            self._end(self._pressed, is_refused=True)
        if not self._is_closed:
            self._send(kind, number, parts)

    @property
    def _is_pressed(self) -> bool:
        return self._num_open > MOST_PENDING or self._held_bytes > 2 * self.limits.message

    @property
    def _pressed(self) -> str:
        most = f"{MOST_PENDING} calls or {2 * self.limits.message} bytes"
        return f"has more than {most} under way, or reads no answers"

    def _end(self, why: str, is_refused: bool = False) -> None:
        if self._is_closed:
            return
        if is_refused:
            # no answer to any call: the other side is told why nothing more is heard of it
            told = encode_error(self.peer, Refused(self.peer, why))
            with contextlib.suppress(OSError, RuntimeError):
                self.writer.write(framed(told, ERROR))
        self._close()
        for reply, what in list(self._pending.values()):
            if not reply.done():
                reply.set_exception(PartyLost(self.peer, f"its site was lost during {what}: {why}"))
                reply.exception()  # the run is stopped by `lost`
        self._pending.clear()
        self.lost(self, f"{REFUSED}{why}" if is_refused else why)

    def _close(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        with contextlib.suppress(OSError, RuntimeError):
            if not self.writer.is_closing():  # closed twice, it would not be aborted any more
                self.writer.close()
            # TLS would wait for the other side, which may be gone, for half a minute with the socket open
            asyncio.get_running_loop().call_later(_LAST_WORDS, self.writer.transport.abort)

    def close(self) -> None:
        """Close this end."""
        self._close()
        for reply, what in self._pending.values():
            if not reply.done():
                reply.set_exception(PartyLost(self.peer, f"the run is over; {what} has no answer"))
                reply.exception()

    async def flush(self) -> None:
        """Wait, for a second at most, until what was to be said is said."""
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(1.0):
                while self._queue and not self._is_closed:
                    await asyncio.sleep(0.005)
                await self.writer.drain()

    async def end(self) -> None:
        """Say what is still to be said, for a second at most, and close."""
        await self.flush()
        self.close()
        await _close(self.writer)


def _text_of(body: bytes) -> str:
    """Return what an error says, in a line."""
    try:
        error = error_in(body)
    except Broken:
        return "it does not say why"
    return error.message if isinstance(error, Refused) else first_line(error)


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, EOFError) or not str(error):
        return "the connection was closed"
    return getattr(error, "strerror", None) or str(error)


async def dial(folder: SiteFolder, member: Member, hello: Hello, limits: Limits, **ends: Any) -> Connection:
    """Open a connection to another site and say what for.

    Raises:
        PartyLost: nobody answers there, or not in time.
        Refused: one of the two certificates is not the federation's, or the site does not want this connection.
    """
    where = f"{member.host}:{member.port}"
    writer: asyncio.StreamWriter | None = None
    connection: Connection | None = None
    try:
        async with asyncio.timeout(limits.handshake):
            if member.is_relayed:
                reader, writer = await through_relay(folder, member, limits)
            else:
                reader, writer = await asyncio.open_connection(
                    member.host, member.port, ssl=folder.client_tls, server_hostname=member.name, limit=2 * PIECE_BYTES
                )
            der = writer.get_extra_info("ssl_object").getpeercert(True)
            if folder.federation.owner_of(der) != member.name:
                raise Refused(member.name, f"{where} shows a certificate that is not {member.name}'s")
            clock = time.time() if hello.clock is None else hello.clock
            greeting = (VERSION, hello.federation, hello.purpose, hello.run, hello.cast, clock)
            writer.write(framed(encode_parts(greeting)))
            asked = time.time()
            await writer.drain()
            try:
                kind, _, _, body = await read_piece(reader, limits)
            except (EOFError, ConnectionError, ssl.SSLError) as error:
                # with TLS 1.3 this side may take itself for connected when the other has seen no certificate yet
                text = f"{where} closed the connection: it refuses the certificate of {folder.name} ({_reason(error)})"
                raise Refused(member.name, text) from None
            if kind != REPLY:
                raise error_in(body)
            theirs = value_of(body, member.name)
            if type(theirs) is not float:
                raise Refused(member.name, "does not say what time it is there")
            clock = ahead_of(theirs, (asked + time.time()) / 2, limits)
        connection = Connection(
            peer=member.name, reader=reader, writer=writer, limits=limits, clock_seconds=clock, **ends
        )
    except Broken as error:
        raise Refused(member.name, str(error)) from None
    except ssl.SSLCertVerificationError as error:
        raise Refused(
            member.name, f"{where} shows a certificate that is not to be trusted: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise Refused(member.name, f"{where} refuses the certificate of {folder.name} ({_reason(error)})") from None
    except TimeoutError:
        raise PartyLost(member.name, f"its site did not answer at {where} within {limits.handshake:g} s") from None
    except (OSError, EOFError) as error:
        raise PartyLost(member.name, f"its site does not answer at {where} ({_reason(error)})") from None
    finally:
        if connection is None and writer is not None:
            await _close(writer)
    connection.start()
    return connection


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close, for a second at most as TLS would have it, which waits for the other side."""
    if not writer.is_closing():
        writer.close()
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_LAST_WORDS):
            await writer.wait_closed()
    writer.transport.abort()
    await asyncio.sleep(0)  # in which the socket is closed


Welcome = Callable[[str, Hello], dict[str, Any]]
"""Is told who dials and what for; returns how `Connection` is to be made, or raises `Refused`."""


async def accept(
    folder: SiteFolder,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    limits: Limits,
    welcome: Welcome,
    refused: Callable[[str, str], None],
) -> Connection | None:
    """Make a connection of one that somebody dialled, or tell them, and `refused`, why not.

    Args:
        folder: of this site.
        reader: as it was accepted, without TLS.
        writer: likewise.
        limits: see there.
        welcome: see there.
        refused: is told who was refused (a site, or an address) and why.
    """
    host, port = writer.get_extra_info("peername")[:2]
    who = f"somebody at {host}:{port}"
    try:
        async with asyncio.timeout(limits.handshake):
            await writer.start_tls(folder.server_tls, ssl_handshake_timeout=limits.handshake)
            peer = folder.federation.owner_of(writer.get_extra_info("ssl_object").getpeercert(True))
            if peer is None:
                raise Broken(f"shows a certificate of no site of {folder.federation.name}")
            who = peer
            _, _, _, body = await read_piece(reader, limits)
            found = greeting_in(body)
            if found is None:
                raise Broken("begins with no greeting")
            version, hello = found
            if version != VERSION or hello is None:
                raise Broken(f"speaks version {version} of the link, and {folder.name} version {VERSION}")
            if hello.federation != folder.federation.name:
                raise Broken("speaks for another federation")
            clock = ahead_of(hello.clock or 0.0, time.time(), limits)
            made = welcome(peer, hello)
            writer.write(framed(encode_parts(time.time()), REPLY))
            await writer.drain()
    except (Broken, Refused) as error:
        text = error.message if isinstance(error, Refused) else str(error)
        refused(who, text)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(limits.handshake):
                writer.write(framed(encode_error(folder.name, Refused(folder.name, f"refused {who}: {text}")), ERROR))
                await writer.drain()
        await _close(writer)
        return None
    except (TimeoutError, OSError, EOFError) as error:
        text = (
            f"did not end its greeting within {limits.handshake:g} s"
            if isinstance(error, TimeoutError)
            else _told(error)
        )
        refused(who, text)
        await _close(writer)
        return None
    connection = Connection(peer=peer, reader=reader, writer=writer, limits=limits, clock_seconds=clock, **made)
    connection.start()
    return connection


def _told(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"shows a certificate that is not to be trusted: {error.verify_message}"
    return _reason(error)

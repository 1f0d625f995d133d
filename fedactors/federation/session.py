"""The link between two sites: numbered requests and replies over TLS, that outlives its connections.

    Connection   requests and replies by number          ask, request ─▶ REQUEST ─▶ serve ─▶ REPLY or ERROR
    pieces       | length u32 | kind u8 | more follow u8 | number u32 | bytes |       256 KiB at most
    Stream       bytes, each way once and in order, over as many connections of TLS as it takes

    who waits                     for what                             no longer than (`Limits`)
    a request                     its reply                            call
    a side that writes            the other side to have taken enough  (the other side must send heartbeats)
    a side that hears             a heartbeat; the rest of a piece     heartbeat timeout; piece
    a link whose connection broke its dialling side to dial anew       away

A link is of one run and one purpose, which its first request says (`Hello`). Requests are numbered from 1 and nothing
is left out, so that nothing can be said twice. A PING is a heartbeat and says how many bytes were taken so far (u64); a
BYE is the last that is said. Each side counts the bytes that it has written and taken since the link began, and keeps
what it wrote until the other side has taken it: when a connection breaks, at whatever byte, the two say over the next
one what they have taken, and only the rest is written again.

What comes from elsewhere decodes or is refused, and its text is fit for a log. A client without a valid certificate may
connect repeatedly, each time to be refused; `Admission` bounds the memory, the log and the connections that this takes.
It is one file because each part of it is a step in the life of one connection, from the first byte to the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import secrets
import ssl
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedactors.errors import BadInput, CallTimeout, FedactorsError, PartyLost, Refused
from fedactors.federation.large_messages import (
    BEGINS,
    FROM,
    LARGE_BYTES,
    MOST_AT_ONCE,
    MOST_TURNS,
    UNWRITTEN_BYTES,
    Arriving,
    Leaving,
    Outbox,
)
from fedactors.messages.codec import Parts, decode, encode_parts, values_in
from fedactors.runtime.failures import encode_error, error_of, kind_of, unforeseen
from fedactors.validation import first_line, one_line

HEAD = struct.Struct("<IBBI")
TAKEN = struct.Struct("<Q")
REQUEST, REPLY, ERROR, PING, BYE = 0, 1, 2, 3, 4
BEGIN, PART, WROTE = 5, 6, 7
"""Of a large message; see `large_messages`."""
PIECE_BYTES = 256 * 1024
HANDSHAKE_BYTES, HANDSHAKE_MEMORY = 4096, 64 * 1024
"""Of what is read from somebody who has not said who they are, and of what it may take when it is decoded."""
ERROR_BYTES = 1024 * 1024
"""Of an error that another site tells, with its traceback, and of what it may take when it is decoded."""
MOST_VALUES = 16 * 1024 * 1024
"""Bytes of memory that a frame's values may take beside arrays, long texts and raw bytes: some 400,000 numbers."""
_INLINE_BYTES = 32 * 1024
"""Of a frame's values, that take at most some 15 ms to decode; more are decoded beside what else the site does."""
_DECODING = ThreadPoolExecutor(1, "frames")
_LONGEST_TRACE = 20_000
_LAST_WORDS = 1.0
"""Seconds within which a connection says what it still has to say, and closes."""


# --- pieces ---


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a site waits, in seconds, and how much it takes."""

    handshake: float = 10.0
    """For TLS and the first request, from the moment that somebody dials."""
    piece: float = 30.0
    """For a piece, from its first byte to its last; within a message, from the end of the one before."""
    heartbeat_timeout: float = 20.0
    """Without a heartbeat, after which a connection counts as broken."""
    away: float = 60.0
    """For a connection that broke to come back, after which the other site counts as lost."""
    call: float = 3600.0
    """For the answer to a call; of large messages, from their last part."""
    message: int = 256 * 1024 * 1024
    """Bytes of one message."""
    under_way: int | None = None
    """Bytes of a connection's calls without an answer, or whose answers are not read; None: of two messages."""
    at_once: int | None = None
    """Bytes of the large messages that arrive by turns; None: of one message."""
    calls: float = math.inf
    """Of one connection in all."""
    skew: float = 60.0
    """Between the clocks of two sites."""


class Broken(Exception):
    """The other side does not keep to the rules of the link; the text says how."""


def reason(error: BaseException) -> str:
    """Return why a connection broke, in a few words."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, EOFError) or not str(error):
        return "the connection was closed"
    return getattr(error, "strerror", None) or str(error)


def framed(parts: Parts, kind: int = REQUEST) -> bytes:
    """Return a message that fits into one piece, without a number."""
    body = b"".join(parts)
    return HEAD.pack(len(body), kind, 0, 0) + body


def value_of(frame: bytes | memoryview, sender: str, *, arguments: bool = False, most: int | None = None) -> Any:
    """Return the value of a frame that came from elsewhere; see `fedactors.messages.codec.decode` for the rest.

    Args:
        frame: see there.
        sender: whose it is.
        arguments: see there.
        most: bytes of its values, and of memory that they may take; None: `MOST_VALUES` of memory.

    Raises:
        Refused: it is none.
    """
    try:
        return decode(frame, arguments, MOST_VALUES, len(frame)) if most is None else decode(frame, arguments, most)
    except Exception as error:  # whatever foreign bytes can do
        raise Refused(sender, f"sends what does not decode: {first_line(error)}") from None


def is_quick(frame: bytes | memoryview) -> bool:
    """Say whether a frame has so few values that decoding it keeps nobody waiting."""
    return values_in(frame) <= _INLINE_BYTES


async def decoded(frame: bytes | memoryview, sender: str) -> Any:
    """Return the value of a frame while others are answered, where it takes long; else at once, see `value_of`.

    Raises:
        Refused: it is none.
    """
    if is_quick(frame):
        return value_of(frame, sender)
    return await asyncio.get_running_loop().run_in_executor(_DECODING, value_of, frame, sender)


def parts_of(frame: memoryview, sender: str, count: int, what: str, *, most: int | None = None) -> tuple[Any, ...]:
    """Return the parts of a frame that has so many; of another one `what` says what it is not.

    Raises:
        Refused: it has others, or does not decode.
    """
    return checked_parts(value_of(frame, sender, most=most), sender, count, what)


def checked_parts(found: Any, sender: str, count: int, what: str) -> tuple[Any, ...]:
    """Return a value that has so many parts.

    Raises:
        Refused: it has others.
    """
    if type(found) is not tuple or len(found) != count:
        raise Refused(sender, f"sends what {what}")
    return found


def error_in(body: bytes | memoryview, peer: str, is_of: Callable[[str], bool] = lambda name: False) -> FedactorsError:
    """Return the error that a reply carries; others wrote its text, which logs and terminals will show.

    It is of the party that was asked: its answer blames no other one.

    Args:
        body: of the reply.
        peer: who answers.
        is_of: says of a name whether that is one of the peer's own parties.

    Raises:
        Broken: it is none.
    """
    try:
        found = decode(body, most=ERROR_BYTES)
    except Exception:
        found = None
    if type(found) is not tuple or [type(text) for text in found] != [str] * 4:
        raise Broken("sends an invalid error")
    name, party, text, trace = found
    lines = trace[:_LONGEST_TRACE].splitlines()
    party, text = one_line(party, 100), one_line(text)
    if party != peer and not is_of(party):
        party, text = peer, f"says of {party}: {text}"
    return error_of(one_line(name, 40), party, text, "\n".join(map(one_line, lines)))


def _for_others(error: Exception) -> str:
    """Return what others may read of why a link does not come back."""
    if isinstance(error, FedactorsError) and error.for_others is not None:
        return error.for_others
    # those are of what the other side says; others may name a place of this machine
    return first_line(error) if isinstance(error, Refused | PartyLost | CallTimeout) else kind_of(error)


def refusal_in(body: bytes, who: str) -> Refused:
    """Return the error by which `who` refuses to speak with this site: it chooses its text, and no other kind.

    Raises:
        Broken: it is none.
    """
    error = error_in(body, who)
    return error if type(error) is Refused else Refused(who, first_line(error))


def pieces_of(parts: Parts) -> Iterator[tuple[Parts, bool]]:
    """Yield the parts of what is written at a time, and whether more follows; large ones are cut."""
    total = sum(map(len, parts))
    if total <= PIECE_BYTES:
        yield parts, False
        return
    whole = memoryview(b"".join(parts))
    for start in range(0, total, PIECE_BYTES):
        yield [whole[start : start + PIECE_BYTES]], start + PIECE_BYTES < total


class PieceReader:
    """Cuts what arrives, as it arrives, into pieces."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """Of a piece that has begun."""
        self._held = 0
        self._needed = HEAD.size

    @property
    def is_within(self) -> bool:
        """Whether a piece has begun and not ended."""
        return bool(self._rest)

    def pieces(self, data: bytes) -> Iterator[tuple[int, bool, int, memoryview]]:
        """Yield kind, whether more follows, number and bytes of each piece that ends in these bytes.

        Raises:
            Broken: one is too large.
        """
        if self._rest:
            self._rest.append(data)
            self._held += len(data)
            if self._held < self._needed:
                return
            data, self._rest = b"".join(self._rest), []
        view, at = memoryview(data), 0
        while True:
            self._needed = HEAD.size
            if len(view) - at < self._needed:
                break
            length, kind, more, number = HEAD.unpack_from(view, at)
            if length > PIECE_BYTES:
                raise Broken(f"announces a piece of {length} bytes: at most {PIECE_BYTES}")
            self._needed += length
            if len(view) - at < self._needed:
                break
            begins, at = at + HEAD.size, at + self._needed
            yield kind, bool(more), number, view[begins:at]
        if at < len(view):
            self._rest, self._held = [data[at:]], len(view) - at


async def read_piece(
    reader: asyncio.StreamReader, limits: Limits, most: int = PIECE_BYTES
) -> tuple[int, bool, int, bytes]:
    """Return kind, whether more follows, number and bytes of the next piece, of so many at most.

    Raises:
        Broken: it is too large, or takes too long from its first byte to its last.
        TimeoutError: none begins within the heartbeat timeout.
        EOFError: the other side has closed.
    """
    await asyncio.sleep(0)  # what has come already is read without a wait, and others wait too
    async with asyncio.timeout(limits.heartbeat_timeout):
        first = await reader.readexactly(1)
    try:
        async with asyncio.timeout(limits.piece):
            length, kind, more, number = HEAD.unpack(first + await reader.readexactly(HEAD.size - 1))
            if length > most:
                raise Broken(f"announces a piece of {length} bytes: at most {most}")
            piece = await reader.readexactly(length)
    except TimeoutError:
        raise Broken(f"took more than {limits.piece:g} s to send one piece") from None
    return kind, bool(more), number, piece


class Heartbeats:
    """Counts the heartbeats that the other side gives: each takes time that others wait for.

    Args:
        share: of what is due in all.
    """

    def __init__(self, share: float = 1.0) -> None:
        self._begun, self._share = time.monotonic(), share
        self._count = 0

    def count(self, due: int = 0) -> None:
        """Count one; `due` are more than time has made due.

        Raises:
            Broken: they are more than are due.
        """
        self._count += 1
        timely = _HEARTBEATS + _HEARTBEATS_A_SECOND * (time.monotonic() - self._begun)
        if self._count > due + self._share * timely:
            raise Broken("gives heartbeats all the time")


class WayRefused(OSError):
    """A proxy, balancer or relay does not let a connection through; the text says which, and what to do."""


async def start_tls(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext,
    seconds: float,
    name: str = "",
) -> None:
    """Let a connection go on within TLS; the end that is dialled gives no `name`.

    Raises:
        EOFError: the other side closed it at that moment.
        Broken: it says more than a handshake needs.
        WayRefused: the carrier said more than was asked: read after the handshake, it would be the
            other site's.
    """
    await writer.drain()
    if reader._buffer:  # type: ignore[attr-defined]
        raise WayRefused("something came before TLS, from the carrier of the connection")
    wire: Any = writer.transport
    wire.pause_reading()  # until TLS has the connection, which goes on then
    beginning = asyncio.ensure_future(
        writer.start_tls(context, server_hostname=name or None, ssl_handshake_timeout=seconds)
    )
    count = _Count(wire)
    try:
        await asyncio.sleep(0)  # in which TLS gets it, and reads nothing yet
        count.begin()
        await beginning
    except AttributeError:  # Python 3.11 itself fails over a transport that is gone
        if writer.transport is not None:
            raise
    except OSError:
        if not count.is_exceeded:
            raise
    finally:
        beginning.cancel()
    is_gone = writer.transport is None
    if is_gone:  # which Python leaves so, and fails over it later
        writer._transport = wire  # type: ignore[attr-defined]
    if count.is_exceeded:
        raise Broken(f"sends more than {TLS_BYTES} bytes before its handshake of TLS ends")
    if is_gone:
        raise EOFError


TLS_BYTES = 32 * 1024
"""Of what the other side says until its handshakes end, of TLS and ours: very many certificates take long to read."""


class _Count:
    """Of the bytes that the other side says in a handshake, and until a `_Wire` counts; too many end the connection."""

    num_bytes = 0

    def __init__(self, wire: asyncio.Transport) -> None:
        self._wire = wire

    @property
    def is_exceeded(self) -> bool:
        return self.num_bytes > TLS_BYTES

    def begin(self) -> None:
        """Count what comes over a connection that TLS has."""
        protocol: Any = self._wire.get_protocol()
        take = getattr(protocol, "buffer_updated", None)
        if take is None:  # it is gone, and TLS did not begin
            return

        def counted(num_bytes: int) -> None:
            self.num_bytes += num_bytes
            if self.is_exceeded:
                self._wire.abort()
            else:
                take(num_bytes)

        protocol.buffer_updated = counted


async def close_stream(writer: asyncio.StreamWriter) -> None:
    """Close after what is still to be written, for a second at most: TLS would wait for the other side."""
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        if not writer.is_closing():
            writer.close()
        async with asyncio.timeout(_LAST_WORDS):
            await writer.wait_closed()
    writer.transport.abort()
    await asyncio.sleep(0)  # in which the socket is closed


# --- the stream ---

WINDOW_BYTES = 8 * 1024 * 1024
"""That are kept at most, beside one piece, for a side that does not say that it took them."""
ACKNOWLEDGED_BYTES = 1024 * 1024
"""After so many the other side is told that they were taken."""
_BUFFER_BYTES = 256 * 1024
"""That are taken at once."""
_BESIDE_BYTES, _RECORD_BYTES = 64 * 1024, 64
"""That TLS may say beside what it carries on one connection, and more for each record: twice what two take."""
_AGAIN_BYTES = 4096
"""Of what is written again, that make one record of TLS: a connection that lives for a few gets further by them."""


class Stream:
    """Bytes of a link, each way once and in order.

    Args:
        take: takes them.
        broke: is told why the connection that carries them broke,
        refuse: or why the other side does not keep to the rules.
    """

    def __init__(
        self, take: Callable[[bytes], None], broke: Callable[[str], None], refuse: Callable[[str], None]
    ) -> None:
        self.written = self.taken = 0
        self.has_room = asyncio.Event()
        """Whether more may be written now."""
        self.has_room.set()
        self.num_pieces = 0
        """That were in what was taken."""
        self._take = take
        self._broke = broke
        self._refuse = refuse
        self._kept: deque[bytes | memoryview] = deque()
        self._kept_from = 0
        """Where in all that was written the first kept block begins."""
        self._acknowledged = 0
        self._wire: _Wire | None = None

    @property
    def is_carried(self) -> bool:
        """Whether a connection carries it now."""
        return self._wire is not None

    def carry(self, writer: asyncio.StreamWriter, taken: int, *, is_dialled: bool) -> None:
        """Use this connection from now on, and write again what the other side has not taken.

        Args:
            writer: of a connection on which nothing is under way; its dialling side speaks first.
            taken: bytes that the other side says it has taken.
            is_dialled: whether this side dialled.

        Raises:
            Broken: the other side cannot have taken so much, or said before that it had more.
        """
        if taken < self._acknowledged:
            raise Broken(f"says that it took {taken} bytes, of {self._acknowledged} that it had taken before")
        self.acknowledge(taken)
        if self._wire is not None:
            self._wire.abandon()
        self._wire = _Wire(self, writer, is_dialled)
        self._look()

    def write(self, data: bytes | memoryview) -> None:
        """Write, now or as soon as a connection carries it."""
        self._kept.append(data)
        self.written += len(data)
        if self._wire is not None:
            self._wire.write(data)
        self._look()

    def acknowledge(self, taken: int) -> None:
        """Hear that the other side has taken so many bytes since the link began; what it said before may come again.

        Raises:
            Broken: it cannot have.
        """
        if taken > self.written:
            raise Broken(f"says that it took {taken} bytes, of {self.written} that were sent")
        self._acknowledged = max(self._acknowledged, taken)
        while self._kept and self._kept_from + len(self._kept[0]) <= taken:
            self._kept_from += len(self._kept.popleft())
        self._look()

    def _look(self) -> None:
        is_held = self._wire is not None and self._wire.is_held
        if self.written - self._acknowledged >= WINDOW_BYTES or is_held:
            self.has_room.clear()
        else:
            self.has_room.set()

    def _again(self, wire: _Wire) -> None:
        """Write to a new connection what the other side has not taken."""
        at = self._kept_from
        for block in self._kept:
            view = memoryview(block)[max(0, self._acknowledged - at) :]
            at += len(block)
            for start in range(0, len(view), _AGAIN_BYTES):
                wire.write(view[start : start + _AGAIN_BYTES])

    def _arrived(self, data: bytes) -> None:
        self.taken += len(data)
        self._take(data)

    def _empty_records(self, wire: _Wire) -> None:
        if wire is self._wire:
            self._refuse("sends records of TLS with nothing in them, such as key updates, all the time")

    def _ended(self, wire: _Wire, why: str) -> None:
        if wire is self._wire:
            self._wire = None
            self._look()
            self._broke(why)

    def drop(self) -> None:
        """Use the connection no more, which does not work; another one may carry on."""
        if self._wire is not None:
            self._wire.abandon()
            self._wire = None
            self._look()

    def close(self, seconds: float) -> None:
        """Close the connection after what is written, within so many seconds."""
        if self._wire is not None:
            self._wire.close(seconds)

    async def closed(self) -> None:
        """Wait until the connection is closed."""
        if self._wire is not None:
            await self._wire.gone.wait()


class _Wire(asyncio.BufferedProtocol):
    """One connection that carries a stream; what arrives is decrypted into one buffer, of which it is taken at once."""

    def __init__(self, stream: Stream, writer: asyncio.StreamWriter, is_dialled: bool) -> None:
        self.gone = asyncio.Event()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self.is_held = False
        """Whether the connection takes no more for now."""
        self._writer = writer  # which would close the transport when it is collected
        self.transport: Any = writer.transport
        self._stream: Stream | None = stream
        # who was dialled waits until the other side reads what comes as a stream
        self._is_heard = is_dialled
        self._num_bytes = 0
        """That were taken of this connection."""
        self._count_records(stream.num_pieces)
        self.transport.set_protocol(self)
        if self.transport.is_closing():  # of which the protocol before this one may have heard
            asyncio.get_running_loop().call_soon(self.connection_lost, None)
        if is_dialled:
            stream._again(self)

    def _count_records(self, pieces_before: int) -> None:
        """Hold what TLS says beside what it carries to what pieces need: for each record others wait."""
        protocol = getattr(self.transport, "_ssl_protocol", None)
        if protocol is None:
            return
        kind, num_bytes, num_carried = type(protocol), 0, 0

        def counted(more: int) -> None:
            nonlocal num_bytes, num_carried
            num_bytes, before = num_bytes + more, self._num_bytes
            kind.buffer_updated(protocol, more)
            num_carried = self._num_bytes - before
            if (stream := self._stream) is not None:
                num_records = stream.num_pieces - pieces_before + self._num_bytes // _AGAIN_BYTES
                if num_bytes - self._num_bytes > _BESIDE_BYTES + num_records * _RECORD_BYTES:
                    stream._empty_records(self)

        protocol.buffer_updated = counted
        # what carries nothing takes a millisecond for each KiB: more is read at once after bytes that carried as much
        protocol.get_buffer = lambda hint: kind.get_buffer(protocol, hint)[: _BESIDE_BYTES + num_carried]

    def write(self, data: bytes | memoryview) -> None:
        """Write, if the connection lives and the other side listens already; else it is kept and will be."""
        if self._is_heard and not self.transport.is_closing():
            self.transport.write(data)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._stream is None:
            return
        if not self._is_heard:
            self._is_heard = True
            self._stream._again(self)
        self._num_bytes += nbytes
        self._stream._arrived(bytes(self._buffer[:nbytes]))

    def pause_writing(self) -> None:
        self._hold(True)

    def resume_writing(self) -> None:
        self._hold(False)

    def _hold(self, is_held: bool) -> None:
        self.is_held = is_held
        if self._stream is not None:
            self._stream._look()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        if self._stream is not None:
            self._stream._ended(self, "the connection was closed" if error is None else reason(error))

    def abandon(self) -> None:
        """Close at once, and hear no more of it."""
        self._stream = None
        self.transport.abort()

    def close(self, seconds: float) -> None:
        """Close after what is written, and hear no more of it."""
        self._stream = None
        with contextlib.suppress(OSError, RuntimeError):
            if not self.transport.is_closing():  # closed twice, it would not be aborted any more
                self.transport.close()
            # TLS would wait for the other side, which may be gone, for half a minute with the socket open
            asyncio.get_running_loop().call_later(seconds, self.transport.abort)


# --- the connection ---

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two attempts to dial anew."""
_HEARTBEATS, _HEARTBEATS_A_SECOND = 1000, 100.0
"""That a side takes beside one for each `ACKNOWLEDGED_BYTES` that it wrote: each takes time that others wait for."""
MOST_PENDING = 4096
"""Requests of one connection that may be under way."""
MOST_REFUSED = 256
"""Requests of one connection that may be refused: a run ends with the first, and what was under way is answered."""
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
    """One end of a link's connection to the site `peer`; it outlives the connections of TCP that carry it.

    Args:
        peer: proved by its certificate.
        limits: see there.
        serve: what becomes of the other side's requests; None: it may make none.
        lost: is told, once, why the connection is no more, unless this side closed it.
        errors: how an error that this side raises is told to the other.
        is_of: see `error_in`.
    """

    peer: str
    limits: Limits
    serve: Serve | None
    lost: Callable[[Connection, str], None]
    errors: Callable[[BaseException], Parts]
    is_of: Callable[[str], bool] = lambda name: False
    name: str = ""
    """What its server knows it by."""
    traffic: Traffic = field(default_factory=Traffic)
    clock_seconds: float = 0.0
    """How far the other site's clock is ahead of this one's."""
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    """By which both ends know the link when it comes back."""
    certificate: str = ""
    """SHA-256 of the certificate that the other site showed last."""
    again: Callable[[Connection], Awaitable[None]] | None = None
    """Dials anew when the connection broke; None: the other side does."""
    check: Callable[[Connection], None] | None = None
    """Looks, with each heartbeat, whether the other site may go on."""
    tell: Callable[[str, str], None] = lambda event, text: None
    """Takes the kind of what happened to the link, and a line for people."""
    stream: Stream = field(init=False)
    is_closed: bool = False
    _pending: dict[int, tuple[asyncio.Future[Any], str, float]] = field(default_factory=dict)
    """By number: the future of a reply, what it is about, and since when it is awaited."""
    _moved: dict[int, float] = field(default_factory=dict)
    """When a part of a request, or of its reply, last left or came."""
    _late: set[int] = field(default_factory=set)
    """Numbers of requests for whose replies this side waits no longer."""
    _made: int = 0
    _taken: int = 0
    _queue: deque[tuple[int, int, Parts, str]] = field(default_factory=deque)
    _queued: asyncio.Event = field(default_factory=asyncio.Event)
    _is_writing: bool = False
    _num_refused: int = 0
    """Requests of the other side that were refused."""
    _num_open: int = 0
    """Requests of the other side whose answers are not yet written,"""
    _held_bytes: int = 0
    """and the bytes of what they ask, or of their answers."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _pieces: PieceReader = field(default_factory=PieceReader)
    _message: list[memoryview] = field(default_factory=list)
    """The pieces so far of a message that has begun,"""
    _begun: tuple[int, int] = (-1, -1)
    """its kind and number,"""
    _waits_since: float | None = None
    """and since when its next piece is awaited, or the end of one that has begun."""
    _outbox: Outbox = field(default_factory=Outbox)
    _arriving: dict[tuple[int, int], Arriving] = field(default_factory=dict)
    """Large messages that arrive, by kind and number."""
    _unwritten: deque[tuple[int, int]] = field(default_factory=deque)
    """Those of which parts wait to be written, in the order in which they are taken."""
    _is_keeping: bool = False
    _parts_received: int = 0
    """Bytes of their parts,"""
    _parts_written: int = 0
    """and of those that are written."""
    _last_piece: float = 0.0
    """When a piece came that is no heartbeat,"""
    _piece_bytes: int = 0
    """and the bytes of all these pieces."""
    _heard: float = 0.0
    _heartbeats: Heartbeats = field(default_factory=Heartbeats)
    _acknowledged: int = 0
    """Bytes of which the other side was told that they were taken."""
    _away: asyncio.TimerHandle | None = None
    """Runs while no connection carries the link."""
    _broke_at: float = 0.0
    _why_not: str = ""
    """Why the last attempt to dial anew failed."""

    def __post_init__(self) -> None:
        self.stream = Stream(self._feed, self._broke, partial(self.give_up, is_refused=True))

    def start(self) -> None:
        """Begin to write, and to give heartbeats."""
        for work in (self._write(), self._live()):
            self._start(work)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Keep no link that nobody writes to, watches or answers any more."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.tell("error", unforeseen(error))
            self.give_up(f"unforeseen error: {kind_of(error)}")  # which others hear of

    # --- the connections that carry it ---

    def carry(self, writer: asyncio.StreamWriter, taken: int, *, is_dialled: bool) -> None:
        """Go on over this connection; see `Stream.carry`."""
        self._heard = time.monotonic()
        self._waits_since = None if self._waits_since is None else self._heard
        self._last_piece = self._heard
        for one in self._arriving.values():
            one.since = self._heard
        self.stream.carry(writer, taken, is_dialled=is_dialled)
        if is_dialled:
            self._acknowledge()
        if self._away is not None:
            self._away.cancel()
            self._away = None
            self.tell("link", f"the link to {self.peer} is back after {self._heard - self._broke_at:.1f} s")

    def cut(self, why: str) -> None:
        """Use the connection no more; the link may come back over another one."""
        if self.stream.is_carried:
            self.stream.drop()
            self._broke(why)

    def _broke(self, why: str) -> None:
        """Wait for the connection to come back, if not for ever."""
        if self.is_closed:
            return
        seconds = self.limits.away
        if seconds <= 0:
            self.give_up(why)
            return
        self._broke_at = time.monotonic()
        self.tell("link", f"the link to {self.peer} broke ({why}); it has {seconds:g} s to come back")
        self._away = asyncio.get_running_loop().call_later(seconds, self._is_over, why)
        self._why_not = ""
        if self.again is not None:
            self._start(self._return(self.again))

    async def _return(self, again: Callable[[Connection], Awaitable[None]]) -> None:
        pause = _FIRST_PAUSE
        while not self.is_closed:
            try:
                await again(self)
                return
            except Exception as error:  # whatever is answered there, it is dialled again
                self._why_not = f" ({_for_others(error)})"
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_over(self, why: str) -> None:
        self.give_up(f"{why}, and it did not come back within {self.limits.away:g} s{self._why_not}")

    async def _live(self) -> None:
        limits = self.limits
        while True:
            await asyncio.sleep(min(limits.heartbeat_timeout, limits.piece) / 4)
            if self.check is not None:
                self.check(self)
            if not self.stream.is_carried:
                continue
            now = time.monotonic()
            if now - self._heard > limits.heartbeat_timeout:
                self.cut(f"gave no heartbeat for {limits.heartbeat_timeout:g} s")
            elif (self._waits_since is not None and now - self._waits_since > limits.piece) or self._is_overdue(now):
                self.give_up(f"took more than {limits.piece:g} s to send one piece", is_refused=True)
            else:
                self._acknowledge()

    # --- requests and replies ---

    def request(self, parts: Parts, what: str, *, is_limited: bool = True, order: str = "") -> asyncio.Future[Any]:
        """Send a request now and return the future of its reply's bytes, or its error.

        Args:
            parts: of its frame.
            what: it is about, for people.
            is_limited: False: it waits while the other side gives heartbeats.
            order: a large request may be overtaken by those of another name, or of none.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            reply.set_exception(PartyLost(self.peer, f"its site is gone; {what} was not done"))
            return reply
        if (size := sum(map(len, parts))) > self.limits.message:
            reply.set_exception(self._too_large(size, what))
            return reply
        self._made += 1
        number = self._made
        self._pending[number] = (reply, what, time.monotonic())
        self._send(REQUEST, number, parts, order)
        if is_limited:
            late = asyncio.get_running_loop().call_later(self.limits.call, self._give_up, number)

            def ended(_: asyncio.Future[Any]) -> None:
                late.cancel()
                self._moved.pop(number, None)

            reply.add_done_callback(ended)
        return reply

    async def ask(self, value: Any, what: str, *, most: int | None = None) -> Any:
        """Send a request and return the value of its reply; see `value_of` for `most`.

        Raises:
            Refused: it is none.
        """
        reply = await self.request(encode_parts(value), what)
        return await decoded(reply, self.peer) if most is None else value_of(reply, self.peer, most=most)

    def awaited(self) -> tuple[int, str, float]:
        """Return how many replies this side waits for, and of the oldest what it is about and seconds so far."""
        for _, what, since in self._pending.values():  # in the order in which they were asked for
            return len(self._pending), what, time.monotonic() - since
        return 0, "", 0.0

    @property
    def num_unanswered(self) -> int:
        """How many replies the other side waits for."""
        return self._num_open

    @property
    def away_seconds(self) -> float:
        """For how long no connection has carried the link; 0: one does."""
        is_away = self._away is not None and not self.is_closed
        return time.monotonic() - self._broke_at if is_away else 0.0

    def _give_up(self, number: int) -> None:
        if (left := self._moved.get(number, -math.inf) + self.limits.call - time.monotonic()) > 0:
            asyncio.get_running_loop().call_later(left, self._give_up, number)
            return
        reply, what, _ = self._pending.pop(number, (None, "", 0.0))
        if reply is not None and not reply.done():
            self._late.add(number)
            reply.set_exception(CallTimeout(self.peer, f"{what} gave no answer within {self.limits.call:g} s"))

    def _too_large(self, size: int, what: str) -> BadInput:
        gib = math.ceil(size / (1 << 30) * 100) / 100
        said = f"{what}: a message of {size} bytes to {self.peer}: at most {self.limits.message} are approved"
        said += f": --limit message_gib={gib:g}, where policy.limits.message_gib of all sites allows it"
        return BadInput(said).telling(said)

    def _send(self, kind: int, number: int, parts: Parts, order: str = "") -> None:
        size = sum(map(len, parts))
        if size <= PIECE_BYTES and not (self._queue or self._is_writing) and self.stream.has_room.is_set():
            # one piece need not wait for the task that writes
            self._put(parts, kind, False, number)
            self._written(kind, size)
            return
        self._queue.append((kind, number, parts, order))
        self._queued.set()

    def _put(self, parts: Parts, kind: int, more: bool, number: int) -> None:
        # head and piece are written at once: as few records of TLS, packets, and wakes of the other side as can be
        piece = b"".join((HEAD.pack(sum(map(len, parts)), kind, more, number), *parts))
        self.stream.write(piece)
        self.traffic.sent += len(piece)

    def _acknowledge(self) -> None:
        """Give a heartbeat, and say what was taken."""
        self._acknowledged = self.stream.taken
        self._put([TAKEN.pack(self.stream.taken)], PING, False, 0)

    def _written(self, kind: int, size: int) -> None:
        if kind in (REPLY, ERROR):
            self._num_open -= 1
            self._held_bytes -= size

    async def _write(self) -> None:
        while True:
            await self._queued.wait()
            self._queued.clear()
            self._is_writing = True
            while self._queue or self._outbox.due(self.limits.message) is not None:
                if self._queue:
                    await self._write_next()
                await self.stream.has_room.wait()  # by turns: neither keeps the other from going on
                self._write_part()
            self._is_writing = bool(self._outbox)

    async def _write_next(self) -> None:
        """Write a message; of a large one, or one that must not overtake it, that it begins."""
        kind, number, parts, order = self._queue.popleft()
        size = sum(map(len, parts))
        await self.stream.has_room.wait()
        if kind != ERROR and (size > LARGE_BYTES or self._outbox.holds(order)):
            self._outbox.add(Leaving(kind, number, parts, order))
            self._put([BEGINS.pack(kind, size)], BEGIN, False, number)
            return
        for piece, more in pieces_of(parts):
            await self.stream.has_room.wait()
            self._put(piece, kind, more, number)
        self._written(kind, size)

    def _write_part(self) -> None:
        """Write what is due of a large message, if any is."""
        if (one := self._outbox.due(self.limits.message)) is None:
            return
        self._put(self._outbox.take_part(one), PART, False, one.number)
        self._move(one.kind == REQUEST, one.number)
        if one.sent == one.size:
            self._written(one.kind, one.size)

    def _feed(self, data: bytes) -> None:
        """Take what arrives."""
        self._heard = time.monotonic()
        self.traffic.received += len(data)
        try:
            is_new = False
            for kind, more, number, piece in self._pieces.pieces(data):
                is_new = True
                self.stream.num_pieces += 1
                self._take_piece(kind, more, number, piece)
                if self.is_closed:
                    return
        except Broken as error:
            self.give_up(str(error), is_refused=True)
            return
        if not (self._message or self._pieces.is_within):
            self._waits_since = None
        elif is_new or self._waits_since is None:
            self._waits_since = self._heard
        if self.stream.taken - self._acknowledged >= ACKNOWLEDGED_BYTES:
            self._acknowledge()

    def _take_piece(self, kind: int, more: bool, number: int, piece: memoryview) -> None:
        if kind == PING:  # also within a message: who sends one may have to hear this first
            if more or len(piece) != TAKEN.size:
                raise Broken("sends an invalid heartbeat")
            self._count_heartbeat()
            self.stream.acknowledge(*TAKEN.unpack(piece))
            return
        if kind == WROTE:  # likewise
            if more or len(piece) != TAKEN.size:
                raise Broken("sends an invalid part of a message")
            self._count_heartbeat()
            if wrong := self._outbox.wrote(*TAKEN.unpack(piece)):
                raise Broken(wrong)
            self._queued.set()
            return
        held = self._message
        self._last_piece = self._heard
        self._piece_bytes += HEAD.size + len(piece)
        if held and (kind, number) != self._begun and (kind, number) not in ((ERROR, 0), (BYE, 0)):  # the last word
            raise Broken("begins a message before the one before it has ended")
        if more and len(piece) < PIECE_BYTES:
            raise Broken(f"sends a piece of {len(piece)} bytes within a message: each is {PIECE_BYTES}")
        if len(held) * PIECE_BYTES + len(piece) > min(LARGE_BYTES, self.limits.message):
            raise Broken(f"sends a message of more than {min(LARGE_BYTES, self.limits.message)} bytes at once")
        held.append(piece)
        self._begun = (kind, number)
        if not more:
            self._message = []
            self._take(kind, number, b"".join(held))

    def _count_heartbeat(self) -> None:
        """Count what the other side says of what was taken or written: one of each for so many bytes."""
        self._heartbeats.count(2 * self.stream.written // ACKNOWLEDGED_BYTES)

    def _take(self, kind: int, number: int, body: bytes | memoryview) -> None:
        if kind == REQUEST:
            self._begin_call(number)
            self._take_call(number, memoryview(body))
        elif kind == BEGIN:
            self._begin_arriving(number, memoryview(body))
        elif kind == PART:
            self._take_part(number, memoryview(body))
        elif kind == ERROR and number == 0:
            self.give_up(f"{TURNED_AWAY}{_text_of(body)}")
        elif kind == BYE:
            self.give_up("the connection was closed")
        elif kind in (REPLY, ERROR):
            self._check_answers(number)
            self._late.discard(number)
            reply, *_ = self._pending.pop(number, (None, "", 0.0))
            if reply is not None and not reply.done():
                if kind == REPLY:
                    reply.set_result(body)
                    return
                reply.set_exception(error_in(body, self.peer, self.is_of))
        else:
            raise Broken(f"sends a piece of the unknown kind {kind}")

    def _begin_call(self, number: int) -> None:
        if number != self._taken + 1:
            raise Broken(f"sends call {number} after call {self._taken}: calls are made once, in their order")
        self._taken = number
        if self.serve is None:
            raise Broken("makes a call where it may make none")
        if number > self.limits.calls:
            raise Broken(f"makes more than {self.limits.calls} calls")
        self._num_open += 1
        if self._is_pressed:
            raise Broken(self._pressed)

    def _take_call(self, number: int, body: memoryview) -> None:
        self._held_bytes += len(body)
        if self._is_pressed:
            raise Broken(self._pressed)
        self._start(self._answer(number, body))

    def _check_answers(self, number: int) -> None:
        if not 0 < number <= self._made:
            raise Broken(f"answers call {number}, which was not made")
        if (number not in self._pending and number not in self._late) or (REPLY, number) in self._arriving:
            raise Broken(f"answers call {number} a second time")

    # --- large messages ---

    def _begin_arriving(self, number: int, body: memoryview) -> None:
        if len(body) != BEGINS.size:
            raise Broken("sends an invalid part of a message")
        of, size = BEGINS.unpack(body)
        if not 0 < size <= self.limits.message:
            raise Broken(
                f"announces a message of {size} bytes: at most {self.limits.message} (--limit message_gib, "
                "policy.limits.message_gib)"
            )
        if of == REQUEST:
            self._begin_call(number)
        elif of == REPLY:
            self._check_answers(number)
        else:
            raise Broken(f"begins message {number}, which is no call and no answer")
        self._arriving[of, number] = Arriving(size)

    def _take_part(self, number: int, body: memoryview) -> None:
        if len(body) < FROM.size:
            raise Broken("sends an invalid part of a message")
        of, start = FROM.unpack_from(body)
        one, part = self._arriving.get((of, number)), body[FROM.size :]
        if one is None or one.received == one.size:
            raise Broken(f"sends part of a message {number} that has not begun, or has ended")
        if one.received == 0 and (begun := [other.size for other in self._arriving.values() if other.has_begun]):
            if len(begun) >= MOST_AT_ONCE:
                raise Broken(f"sends parts of more than {MOST_AT_ONCE} messages at once")
            if (size := sum(begun) + one.size) > (most := self.limits.at_once or self.limits.message):
                raise Broken(f"sends parts of messages of {size} bytes at once: at most {most}")
        if self._parts_received - self._parts_written >= UNWRITTEN_BYTES:
            raise Broken(f"sends more than {UNWRITTEN_BYTES} bytes of parts before they are written")
        if wrong := one.add(start, part):
            raise Broken(wrong)
        one.bytes_before = self._piece_bytes
        self._parts_received += len(part)
        self._move(of == REPLY, number)
        if (of, number) not in self._unwritten:
            self._unwritten.append((of, number))
        if not self._is_keeping:
            self._is_keeping = True
            self._start(self._keep())

    def _move(self, is_asked_here: bool, number: int) -> None:
        if is_asked_here and number in self._pending:
            self._moved[number] = time.monotonic()

    async def _keep(self) -> None:
        """Write the parts that arrive, say how much is written, and take what is whole, in its order."""
        while self._unwritten:
            of, number = self._unwritten.popleft()
            one = self._arriving[of, number]
            begun = time.monotonic()
            num_bytes = await one.write()
            self._parts_written += num_bytes
            self._wait_longer(time.monotonic() - begun)
            self._put([TAKEN.pack(self._parts_written)], WROTE, False, 0)
            if one.written == one.size:
                del self._arriving[of, number]
                self._take_whole(of, number, one)
                if self.is_closed:
                    return
        self._is_keeping = False

    def _wait_longer(self, seconds: float) -> None:
        """Let the other side have the time that this one took to write: it may have waited for that."""
        now = time.monotonic()
        self._last_piece = min(now, self._last_piece + seconds)
        for one in self._arriving.values():
            one.since = min(now, one.since + seconds)

    def _take_whole(self, of: int, number: int, one: Arriving) -> None:
        try:
            body = one.take()
            if of == REQUEST:
                self._take_call(number, body)
            else:
                self._take(of, number, body)
        except Broken as error:
            self.give_up(str(error), is_refused=True)
        except BadInput as error:
            self.tell("error", f"{self.peer}: {error}")
            if of == REQUEST:
                self._reply(ERROR, number, self.errors(error))
                return
            self._late.discard(number)
            reply, *_ = self._pending.pop(number, (None, "", 0.0))
            if reply is not None and not reply.done():
                reply.set_exception(error)

    def _is_overdue(self, now: float) -> bool:
        """Say whether the next part of a message does not come, though all that came is written.

        A slow link may need `Limits.piece` for each `PIECE_BYTES` that come between two parts.
        """
        arriving = self._arriving.values()
        if not arriving or self._parts_written < self._parts_received:
            return False
        return now - self._last_piece > self.limits.piece or any(
            now - one.since
            > self.limits.piece * min(MOST_TURNS, 1 + (self._piece_bytes - one.bytes_before) / PIECE_BYTES)
            for one in arriving
            if one.has_begun
        )

    async def _answer(self, number: int, body: memoryview) -> None:
        assert self.serve is not None
        try:
            kind, parts = REPLY, encode_parts(await self.serve(body))
            if (size := sum(map(len, parts))) > self.limits.message:
                raise self._too_large(size, "a reply")
        except Exception as error:
            kind, parts = ERROR, self.errors(error)
            self._num_refused += isinstance(error, Refused)
            if self._num_refused > MOST_REFUSED:
                self.give_up(f"goes on after {MOST_REFUSED} of its calls were refused", is_refused=True)
        self._held_bytes -= len(body)
        self._reply(kind, number, parts)

    def _reply(self, kind: int, number: int, parts: Parts) -> None:
        self._held_bytes += sum(map(len, parts))
        if self._is_pressed:
            self.give_up(self._pressed, is_refused=True)
        if not self.is_closed:
            self._send(kind, number, parts)

    @property
    def _is_pressed(self) -> bool:
        return self._num_open > MOST_PENDING or self._held_bytes > self._most_under_way

    @property
    def _most_under_way(self) -> int:
        return 2 * self.limits.message if self.limits.under_way is None else self.limits.under_way

    @property
    def _pressed(self) -> str:
        most = f"{MOST_PENDING} calls or {self._most_under_way} bytes"
        return f"has more than {most} under way, or reads no answers"

    # --- the end ---

    def give_up(self, why: str, *, is_refused: bool = False) -> None:
        """End a link for which nobody waits any longer; of one that is refused the other side is told why."""
        if self.is_closed:
            return
        if is_refused:
            # no answer to any call: the other side is told why nothing more is heard of it
            self.stream.write(framed(encode_error(self.peer, Refused(self.peer, why)), ERROR))
        self._close()
        for reply, what, _ in list(self._pending.values()):
            if not reply.done():
                reply.set_exception(PartyLost(self.peer, f"its site was lost during {what}: {why}"))
                reply.exception()  # the run is stopped by `lost`
        self._pending.clear()
        self.lost(self, f"{REFUSED}{why}" if is_refused else why)

    def _close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._away is not None:
            self._away.cancel()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        for one in self._arriving.values():
            one.discard()
        self._arriving.clear()
        self._outbox.clear()
        self.stream.write(framed([], BYE))
        self.stream.close(_LAST_WORDS)

    def close(self) -> None:
        """Close this end."""
        self._close()
        for reply, what, _ in self._pending.values():
            if not reply.done():
                reply.set_exception(PartyLost(self.peer, f"the run is over; {what} has no answer"))
                reply.exception()

    async def flush(self) -> None:
        """Wait, for a second at most, until what was to be said is said."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                while (self._queue or self._is_writing) and not self.is_closed:
                    await asyncio.sleep(0.005)

    async def end(self) -> None:
        """Say what is still to be said, for a second at most, and close."""
        await self.flush()
        self.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _LAST_WORDS):
                await self.stream.closed()


def _text_of(body: bytes | memoryview) -> str:
    """Return what an error says, in a line."""
    try:
        error = error_in(body, "", lambda _: True)  # only its text is used
    except Broken:
        return "it does not say why"
    return error.message if isinstance(error, Refused) else first_line(error)


# --- the handshake, and who may stay before it ---

VERSION = 5
"""Of the link."""
NEW = -1
_LONGEST_WORD = 100


@dataclass(frozen=True)
class Hello:
    """What the first request on a connection says: what it is for, of which run, and what the caller was told."""

    federation: str
    purpose: str
    run: str
    assignment: str
    clock: float | None = None
    """Seconds since 1970, by the speaker's clock; None: when it is said."""
    session: str = ""
    """Of the link, drawn by the side that dials first."""
    taken: int = NEW
    """Bytes of the link that the caller has taken; NEW: it begins."""
    known: int = 0
    """Version of the federation's file that the caller has."""


def ahead_of(theirs: float, ours: float, limits: Limits) -> float:
    """Return by how many seconds another site's clock is ahead of this one's.

    Raises:
        Broken: by more than is allowed, or it is no time.
    """
    ahead = theirs - ours
    if abs(ahead) <= limits.skew:
        return ahead
    if not math.isfinite(ahead):
        raise Broken("says what is no time")
    which = "ahead of" if ahead > 0 else "behind"
    raise Broken(f"has a clock that is {abs(ahead):.0f} s {which} this site's: at most {limits.skew:g} s are allowed")


def handshake_in(body: bytes) -> tuple[int, Hello | None] | None:
    """Return the version of the link and the `Hello` of a first request (None: another version's); None: it is none."""
    try:
        found = decode(body, most=HANDSHAKE_MEMORY)
    except Exception:
        return None
    if type(found) is not tuple or not found or type(found[0]) is not int:
        return None
    version, *said = found
    if version != VERSION:
        return version, None
    if [type(part) for part in said] != [str, str, str, str, float, str, int, int]:
        return None
    return None if max(map(len, (*said[:4], said[5]))) > _LONGEST_WORD else (version, Hello(*said))


MOST, MOST_OF_MEMBER = 256, 32
"""Connections that may wait for a handshake: of all who are unknown, and of one site that showed its certificate."""
BACKLOG = 1024
"""Connections that the system keeps until they are accepted,"""
AT_ONCE = 64
"""and that are accepted before those who came earlier are looked at: asyncio takes what it has for its backlog."""
OTHER_FILES = 4 * AT_ONCE + 128
"""Files that a process has open beside connections that are admitted: those that come and go, logs, libraries."""
_MOST_FILES = 65_536
"""More are asked for by nobody: where a system allows 10^9, some programs look through all of them."""


def lengthen_queue(sockets: Iterable[Any]) -> None:
    """Let the system keep `BACKLOG` connections where a server that accepts `AT_ONCE` of them listens."""
    for one in sockets:
        with one.dup() as same:
            same.listen(BACKLOG)


def allow_files(wanted: int) -> None:
    """Let this process open as many files as the system allows it, each connection being one.

    Args:
        wanted: that there must be, so that no number of connections leaves none for anything else.

    Raises:
        BadInput: the system does not allow as many.
    """
    soft, hard = (
        math.inf if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft < (most := int(min(hard, max(wanted, _MOST_FILES)))):
        with contextlib.suppress(OSError, ValueError):  # macOS may allow fewer than its hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            soft = most
    if soft < wanted:
        raise BadInput(
            f"open files: the system allows {soft:.0f}; {wanted} are needed, for connections and what else there is: "
            "raise it by ulimit -Hn, by LimitNOFILE of a systemd unit, or by ulimits.nofile of a container"
        )


LINES_PER_MINUTE = 60
"""Refusals that are written each for itself; what is more is counted, in one line."""
LINES_PER_DAY = 1440
"""The same in the long run: a site reads all of its log to know what is left of a budget."""


def peer_address(connection: asyncio.StreamWriter | asyncio.BaseTransport) -> tuple[str, int]:
    """Return host and port that a connection comes from; one that is gone already has none."""
    host, port = (connection.get_extra_info("peername") or ("an address that is gone", 0))[:2]
    return str(host), int(port)


class LineLimit:
    """Says whether another line of one cause may be written: so many a minute, and a day."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen = clock()
        self.of_minute, self.of_day = float(LINES_PER_MINUTE), float(LINES_PER_DAY)

    def has_room(self, lines: float = 1.0) -> bool:
        """Say whether so many more would be within the minute's, and one within the day's."""
        passed, self._seen = self._clock() - self._seen, self._clock()
        self.of_minute = min(LINES_PER_MINUTE, self.of_minute + passed * LINES_PER_MINUTE / 60)
        self.of_day = min(LINES_PER_DAY, self.of_day + passed * LINES_PER_DAY / 86_400)
        return self.of_minute >= lines and self.of_day >= 1

    def take(self) -> bool:
        """Count a line, if one may be written."""
        if has_room := self.has_room():
            self.of_minute, self.of_day = self.of_minute - 1, self.of_day - 1
        return has_room


@dataclass(eq=False)
class Pending:
    """A connection whose other end has not ended its handshake."""

    who: str
    abort: Callable[[], None]
    is_dropped: bool = False
    """Whether it had to make room."""


class Admission:
    """Who has connected and not ended a handshake, and how many refusals are written (who, why) one by one.

    Nobody is turned away: where all are taken, the oldest connection of the address with the most makes room. So who
    fills them with silence, from whatever address, keeps nobody out who ends a handshake before as many others came.

    Args:
        most: that may be at a time.
    """

    def __init__(
        self,
        write: Callable[[str, str], None],
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._most = most
        self._here: dict[Pending, None] = {}
        """The oldest first."""
        self._lines = LineLimit(clock)
        self._unwritten = 0
        self._last = ""

    def comes(self, who: str, abort: Callable[[], None]) -> Pending:
        """Let somebody stay until `goes` is told that their handshake has ended; `abort` ends their connection."""
        if len(self._here) >= self._most:
            ((crowd, _),) = Counter(one.who for one in self._here).most_common(1)
            oldest = next(one for one in self._here if one.who == crowd)
            self.goes(oldest)
            oldest.is_dropped = True
            oldest.abort()
            self.refused(crowd, f"had not ended its handshake when others came: {self._most} may be at it")
        pending = Pending(who, abort)
        self._here[pending] = None
        return pending

    def goes(self, pending: Pending) -> None:
        """Hear that somebody has ended their handshake, or is gone."""
        self._here.pop(pending, None)

    def refused(self, who: str, why: str) -> None:
        """Write down that somebody was refused, or count it."""
        self.look()
        if self._unwritten or not self._lines.take():
            self._unwritten, self._last = self._unwritten + 1, who
            return
        self._write(who, why)

    def look(self) -> None:
        """Write how many were counted, once there is room for a line."""
        if self._unwritten and self._lines.has_room(LINES_PER_MINUTE / 6):
            self._lines.take()
            count, self._unwritten = self._unwritten, 0
            self._write("others", f"{count} more were refused, the last of them {self._last}")

"""The link between two sites: numbered requests and replies over TLS, in pieces, each wait with a limit.

A connection is of one run and one purpose, and its first request says which (`meeting`). Requests are numbered from 1
and nothing is left out, so that nothing can be said twice. One that breaks has a while to come back (`stream`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from fedactors.errors import CallTimeout, FedactorsError, PartyLost, Refused
from fedactors.network.codec import Parts, encode_parts
from fedactors.runtime.failures import encode_error
from fedactors.runtime.federated.pieces import (
    BYE,
    ERROR,
    HEAD,
    PIECE_BYTES,
    PING,
    REPLY,
    REQUEST,
    TAKEN,
    Broken,
    Limits,
    PieceReader,
    error_in,
    framed,
    pieces_of,
    value_of,
)
from fedactors.runtime.federated.stream import ACKNOWLEDGED_BYTES, Stream
from fedactors.validation import first_line

_LAST_WORDS = 1.0
"""Seconds within which a connection says what it still has to say, and closes."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two attempts to dial anew."""
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
    """One end of a link's connection to the site `peer`; it outlives the connections of TCP that carry it.

    Args:
        peer: proved by its certificate.
        limits: see there.
        serve: what becomes of the other side's requests; None: it may make none.
        lost: is told, once, why the connection is no more, unless this side closed it.
        errors: how an error that this side raises is told to the other.
    """

    peer: str
    limits: Limits
    serve: Serve | None
    lost: Callable[[Connection, str], None]
    errors: Callable[[BaseException], Parts]
    name: str = ""
    """What whoever serves it knows it by."""
    traffic: Traffic = field(default_factory=Traffic)
    clock_seconds: float = 0.0
    """How far the other site's clock is ahead of this one's."""
    session: str = field(default_factory=lambda: secrets.token_hex(16))
    """By which both ends know the link when it comes back."""
    again: Callable[[Connection], Awaitable[None]] | None = None
    """Dials anew when the connection broke; None: the other side does."""
    tell: Callable[[str, str], None] = lambda event, text: None
    """Takes the kind of what happened to the link, and a line for people."""
    stream: Stream = field(init=False)
    is_closed: bool = False
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
    _pieces: PieceReader = field(default_factory=PieceReader)
    _message: list[memoryview] = field(default_factory=list)
    """The pieces so far of a message that has begun,"""
    _begun: tuple[int, int] = (-1, -1)
    """its kind and number,"""
    _waits_since: float | None = None
    """and since when its next piece is awaited, or the end of one that has begun."""
    _heard: float = 0.0
    _acknowledged: int = 0
    """Bytes of which the other side was told that they were taken."""
    _away: asyncio.TimerHandle | None = None
    """Runs while no connection carries the link."""
    _broke_at: float = 0.0
    _why_not: str = ""
    """Why the last attempt to dial anew failed."""

    def __post_init__(self) -> None:
        self.stream = Stream(self._feed, self._broke)

    def start(self) -> None:
        """Begin to write, and to give signs of life."""
        for work in (self._write(), self._live()):
            self._start(work)

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the connections that carry it ---

    def carry(self, writer: asyncio.StreamWriter, taken: int, *, is_dialled: bool) -> None:
        """Go on over this connection; see `Stream.carry`."""
        self._heard = time.monotonic()
        self._waits_since = None if self._waits_since is None else self._heard
        self.stream.carry(writer, taken, is_dialled=is_dialled)
        if is_dialled:
            self._acknowledge()
        if self._away is not None:
            self._away.cancel()
            self._away = None
            self.tell("link", f"the link to {self.peer} is back after {self._heard - self._broke_at:.1f} s")

    def _broke(self, why: str) -> None:
        """Wait for the connection to come back, if not for ever."""
        if self.is_closed:
            return
        seconds = self.limits.away
        if seconds <= 0:
            self._end(why)
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
            except FedactorsError as error:
                self._why_not = f" ({first_line(error)})"
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _is_over(self, why: str) -> None:
        self._end(f"{why}, and it did not come back within {self.limits.away:g} s{self._why_not}")

    async def _live(self) -> None:
        limits = self.limits
        while True:
            await asyncio.sleep(min(limits.lease, limits.piece) / 4)
            if not self.stream.is_carried:
                continue
            now = time.monotonic()
            if now - self._heard > limits.lease:
                self.stream.drop()
                self._broke(f"gave no sign of life for {limits.lease:g} s")
            elif self._waits_since is not None and now - self._waits_since > limits.piece:
                self._end(f"took more than {limits.piece:g} s to send one piece", is_refused=True)
            else:
                self._acknowledge()

    # --- requests and replies ---

    def request(self, parts: Parts, what: str, *, is_limited: bool = True) -> asyncio.Future[Any]:
        """Send a request now and return the future of its reply's bytes, or its error; `what` is for people.

        One that is not limited waits while the other side gives signs of life.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.is_closed:
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
        if size <= PIECE_BYTES and not (self._queue or self._is_writing) and self.stream.has_room.is_set():
            # one piece need not wait for the task that writes
            self._put(parts, kind, False, number)
            self._written(kind, size)
            return
        self._queue.append((kind, number, parts))
        self._queued.set()

    def _put(self, parts: Parts, kind: int, more: bool, number: int) -> None:
        # head and piece are written at once: as few records of TLS, packets, and wakes of the other side as can be
        piece = b"".join((HEAD.pack(sum(map(len, parts)), kind, more, number), *parts))
        self.stream.write(piece)
        self.traffic.sent += len(piece)

    def _acknowledge(self) -> None:
        """Give a sign of life, and say what was taken."""
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
            while self._queue:
                kind, number, parts = self._queue.popleft()
                for piece, more in pieces_of(parts):
                    await self.stream.has_room.wait()
                    self._put(piece, kind, more, number)
                self._written(kind, sum(map(len, parts)))
            self._is_writing = False

    def _feed(self, data: bytes) -> None:
        """Take what arrives."""
        self._heard = time.monotonic()
        self.traffic.received += len(data)
        try:
            is_new = False
            for kind, more, number, piece in self._pieces.pieces(data):
                is_new = True
                self._take_piece(kind, more, number, piece)
                if self.is_closed:
                    return
        except Broken as error:
            self._end(str(error), is_refused=True)
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
                raise Broken("gives a sign of life that is none")
            self.stream.acknowledge(*TAKEN.unpack(piece))
            return
        held = self._message
        if held and (kind, number) != self._begun and (kind, number) not in ((ERROR, 0), (BYE, 0)):  # the last word
            raise Broken("begins a message before the one before it has ended")
        if more and len(piece) < PIECE_BYTES:
            raise Broken(f"sends a piece of {len(piece)} bytes within a message: each is {PIECE_BYTES}")
        if len(held) * PIECE_BYTES + len(piece) > self.limits.message:
            raise Broken(f"sends a message of more than {self.limits.message} bytes")
        held.append(piece)
        self._begun = (kind, number)
        if not more:
            self._message = []
            self._take(kind, number, b"".join(held))

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
        elif kind == BYE:
            self._end("the connection was closed")
        elif kind in (REPLY, ERROR):
            if not 0 < number <= self._made:
                raise Broken(f"answers call {number}, which was not made")
            reply, _ = self._pending.pop(number, (None, ""))
            if reply is not None and not reply.done():
                if kind == REPLY:
                    reply.set_result(body)
                    return
                reply.set_exception(error_in(body))
        else:
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
        if not self.is_closed:
            self._send(kind, number, parts)

    @property
    def _is_pressed(self) -> bool:
        return self._num_open > MOST_PENDING or self._held_bytes > 2 * self.limits.message

    @property
    def _pressed(self) -> str:
        most = f"{MOST_PENDING} calls or {2 * self.limits.message} bytes"
        return f"has more than {most} under way, or reads no answers"

    # --- the end ---

    def give_up(self, why: str, *, is_refused: bool = False) -> None:
        """End a link for which nobody waits any longer; of one that is refused the other side is told why."""
        self._end(why, is_refused)

    def _end(self, why: str, is_refused: bool = False) -> None:
        if self.is_closed:
            return
        if is_refused:
            # no answer to any call: the other side is told why nothing more is heard of it
            self.stream.write(framed(encode_error(self.peer, Refused(self.peer, why)), ERROR))
        self._close()
        for reply, what in list(self._pending.values()):
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
        self.stream.write(framed([], BYE))
        self.stream.close(_LAST_WORDS)

    def close(self) -> None:
        """Close this end."""
        self._close()
        for reply, what in self._pending.values():
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


def _text_of(body: bytes) -> str:
    """Return what an error says, in a line."""
    try:
        error = error_in(body)
    except Broken:
        return "it does not say why"
    return error.message if isinstance(error, Refused) else first_line(error)

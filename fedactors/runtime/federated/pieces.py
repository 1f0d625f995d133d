"""What travels over a link between two sites: pieces of messages, and how what came from elsewhere is read.

    piece = | length of the piece u32 | kind u8 | more pieces follow u8 | number u32 | bytes |

What is long travels in pieces of 256 KiB, each of which waits until the other side has taken enough of what went
before. A PING is a sign of life and says how many bytes were taken so far (u64); a BYE is the last that is said.
Whatever was said elsewhere is read here: it decodes or is refused, and its text is fit for a log.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedactors.errors import FedactorsError, Refused
from fedactors.network.codec import Parts, decode
from fedactors.runtime.failures import error_of
from fedactors.validation import first_line, one_line

HEAD = struct.Struct("<IBBI")
TAKEN = struct.Struct("<Q")
REQUEST, REPLY, ERROR, PING, BYE = 0, 1, 2, 3, 4
PIECE_BYTES = 256 * 1024
_LONGEST_TRACE = 20_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a site waits, in seconds, and how much it takes."""

    handshake: float = 10.0
    """For TLS and the first request, from the moment that somebody dials."""
    piece: float = 30.0
    """For a piece, from its first byte to its last; within a message, from the end of the one before."""
    lease: float = 20.0
    """Without a sign of life, after which a connection counts as broken."""
    away: float = 60.0
    """For a connection that broke to come back, after which the other site counts as lost."""
    call: float = 3600.0
    """For the answer to a call."""
    message: int = 256 * 1024 * 1024
    """Bytes of one message."""
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


def value_of(frame: bytes | memoryview, sender: str, *, arguments: bool = False) -> Any:
    """Return the value of a frame that came from elsewhere; see `fedactors.network.codec.carry` for `arguments`.

    Raises:
        Refused: it is none.
    """
    try:
        return decode(frame, arguments)
    except Exception as error:  # whatever foreign bytes can do
        raise Refused(sender, f"sends what does not decode: {first_line(error)}") from None


def parts_of(frame: memoryview, sender: str, count: int, what: str) -> tuple[Any, ...]:
    """Return the parts of a frame that has so many; of another one `what` says what it is not.

    Raises:
        Refused: it has others, or does not decode.
    """
    found = value_of(frame, sender)
    if type(found) is not tuple or len(found) != count:
        raise Refused(sender, f"sends what {what}")
    return found


def error_in(body: bytes) -> FedactorsError:
    """Return the error that a reply carries; others wrote its text, which logs and terminals will show.

    Raises:
        Broken: it is none.
    """
    try:
        found = decode(body)
    except Exception:
        found = None
    if type(found) is not tuple or [type(text) for text in found] != [str] * 4:
        raise Broken("sends an error that is none")
    name, party, text, trace = found
    lines = trace[:_LONGEST_TRACE].splitlines()
    return error_of(one_line(name, 40), one_line(party, 100), one_line(text), "\n".join(map(one_line, lines)))


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
    reader: asyncio.StreamReader, limits: Limits, *, is_within: bool = False
) -> tuple[int, bool, int, bytes]:
    """Return kind, whether more follows, number and bytes of the next piece.

    Args:
        reader: of the stream.
        limits: see there.
        is_within: whether a message has begun that this piece belongs to.

    Raises:
        Broken: it is too large, or takes too long from its first byte (of a message that has begun: from now) to its
            last.
        TimeoutError: none begins within the lease.
        EOFError: the other side has closed.
    """
    first = b""
    if not is_within:
        async with asyncio.timeout(limits.lease):
            first = await reader.readexactly(1)
    try:
        async with asyncio.timeout(limits.piece):
            length, kind, more, number = HEAD.unpack(first + await reader.readexactly(HEAD.size - len(first)))
            if length > PIECE_BYTES:
                raise Broken(f"announces a piece of {length} bytes: at most {PIECE_BYTES}")
            piece = await reader.readexactly(length)
    except TimeoutError:
        raise Broken(f"took more than {limits.piece:g} s to send one piece") from None
    return kind, bool(more), number, piece

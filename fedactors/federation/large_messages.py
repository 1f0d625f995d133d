"""Messages above 8 MiB: in parts, with a window and a digest, from the sender's arrays to a map at the receiver.

    sender    ──BEGIN (request or reply, bytes)──▶ ──PART (from where, bytes)──▶ ... ──END (SHA-256)──▶    receiver
              ◀──────────────────────WROTE (bytes that lie in the receiver's buffer or file)───────

    who waits                   for what
    a message that leaves       the receiver to have written enough (`WINDOW_BYTES`); the one before it of the same name
    a message that arrives      its next part, no longer than `Limits.piece` on a link that brings nothing else

Other messages and heartbeats pass between the parts. A connection that breaks costs no part: the link's stream writes
again what was not taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import os
import struct
import tempfile
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from fedactors.errors import BadInput
from fedactors.messages.codec import Parts

LARGE_BYTES = 8 * 1024 * 1024
"""Of a message that travels at once; a larger one travels in parts."""
WINDOW_BYTES = 8 * 1024 * 1024
"""Of a message's parts, that the receiver has not yet written."""
MAPPED_BYTES = 64 * 1024 * 1024
"""Of a message that the receiver keeps in memory; a larger one lies in a file, which is mapped."""
MOST_AT_ONCE = 4
"""Messages of one link whose parts take turns."""
MOST_TURNS = 256
"""Pieces of other messages between two parts of one: those of the others of `MOST_AT_ONCE`, and what is between."""
ANNOUNCED, FROM, DIGEST = struct.Struct("<BQ"), struct.Struct("<BQ"), struct.Struct("<B32s")
_FILES = ThreadPoolExecutor(1, "large-messages")
_HASHES = ThreadPoolExecutor(1, "digests")


@dataclass(eq=False)
class Leaving:
    """A large message that this side sends.

    Args:
        kind: request or reply.
        number: of the request.
        parts: its frame, which must not change until it is sent.
        order: messages of one name, if it has one, keep their order.
    """

    kind: int
    number: int
    parts: Parts
    order: str
    size: int = field(init=False)
    sent: int = 0
    written: int = 0
    """Bytes that the receiver has."""
    turn: int = 0
    digest: asyncio.Future[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.parts))
        self.digest = asyncio.get_running_loop().run_in_executor(_HASHES, _digest_of, list(self.parts))
        self._views = [memoryview(part) for part in self.parts if len(part)]

    @property
    def is_due(self) -> bool:
        """Whether it may go on: a part if the window has room, the digest once it is known."""
        if self.sent < self.size:
            return self.sent - self.written < WINDOW_BYTES
        return self.digest.done()

    def next_part(self, most: int) -> Parts:
        """Return where the next part begins, and its bytes, which are views of the message."""
        found: Parts = [FROM.pack(self.kind, self.sent)]
        while most and self._views:
            view = self._views[0]
            found.append(view[:most])
            taken = min(most, len(view))
            most, self.sent = most - taken, self.sent + taken
            self._views[0] = view[taken:]
            if not self._views[0]:
                del self._views[0]
        return found


def due(leaving: list[Leaving]) -> Leaving | None:
    """Return the message whose turn it is, of those that may be under way at once; None: all of them wait."""
    return min((one for one in under_way(leaving) if one.is_due), key=lambda one: one.turn, default=None)


def under_way(leaving: list[Leaving]) -> Iterator[Leaving]:
    """Yield the messages whose parts take turns: the first ones, and of one order its first."""
    orders: set[str] = set()
    count = 0
    for one in leaving:
        if one.order and one.order in orders:
            continue
        orders.add(one.order)
        yield one
        count += 1
        if count == MOST_AT_ONCE:
            return


def _digest_of(parts: Parts) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


@dataclass(eq=False)
class Arriving:
    """A large message that the other side sends: checked, and written in a thread."""

    size: int
    received: int = 0
    written: int = 0
    is_writing: bool = False
    since: float = field(default_factory=time.monotonic)
    """When its last part came."""
    announced: bytes | None = None
    """Its digest, as the other side says at the end."""
    failed: BadInput | None = None
    """Why it cannot be kept here; what still comes of it is not."""
    _waiting: list[memoryview] = field(default_factory=list)
    _digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    _buffer: bytearray | None = None
    _file: tuple[int, Path] | None = None

    def add(self, start: int, part: memoryview) -> str:
        """Take the next part; return what is wrong with it, if anything is."""
        if start != self.received:
            return f"sends the part of a message from byte {start} on: {self.received} is next"
        if not part or start + len(part) > self.size:
            return f"sends {start + len(part)} bytes of a message of {self.size}"
        if start + len(part) - self.written > WINDOW_BYTES + len(part):
            return f"sends more than {WINDOW_BYTES} bytes of a message before they are written"
        self.received += len(part)
        self.since = time.monotonic()
        self._waiting.append(part)
        return ""

    async def write(self) -> None:
        """Write what has come, in a thread; what cannot be written is `failed`."""
        parts, self._waiting = self._waiting, []
        try:
            if self.failed is None:
                await asyncio.get_running_loop().run_in_executor(_FILES, self._write, parts)
        except OSError as error:
            self.discard()
            said = f"has no room for a message of {self.size} bytes"
            self.failed = BadInput(
                f"{said} in {tempfile.gettempdir()} ({error.strerror}): free space there, or begin the site with TMPDIR"
            ).telling(f"{said} ({error.strerror})")
        self.written += sum(map(len, parts))

    def _write(self, parts: list[memoryview]) -> None:
        if self.size > MAPPED_BYTES and self._file is None:
            number, name = tempfile.mkstemp(prefix="message-")  # in the run's temporary folder, for its owner only
            self._file = number, Path(name)
        elif self._file is None and self._buffer is None:
            self._buffer = bytearray(self.size)
        at = self.written
        for part in parts:
            self._digest.update(part)
            if self._buffer is not None:
                self._buffer[at : at + len(part)] = part
            elif self._file is not None:
                left = part
                while left:
                    left = left[os.pwrite(self._file[0], left, at + len(part) - len(left)) :]
            at += len(part)

    @property
    def is_right(self) -> bool:
        """Whether what was written has the digest that the other side says."""
        return self.failed is not None or self._digest.digest() == self.announced

    def take(self) -> memoryview:
        """Return the whole message; a file goes when nobody has its map any more."""
        if self._file is None:
            return memoryview(self._buffer or b"").toreadonly()
        number, path = self._file
        mapped = mmap.mmap(number, self.size, access=mmap.ACCESS_READ)
        os.close(number)
        self._file = None
        weakref.finalize(mapped, path.unlink, missing_ok=True)
        return memoryview(mapped)

    def discard(self) -> None:
        """Keep nothing of it."""
        self._buffer = None
        if self._file is not None:
            number, path = self._file
            self._file = None
            os.close(number)
            with contextlib.suppress(OSError):
                path.unlink()

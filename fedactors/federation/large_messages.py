"""Messages above 8 MiB: in parts, from the sender's arrays to a map at the receiver.

    sender    ──BEGIN (request or reply, bytes)──▶ ──PART (from where, bytes)──▶ ... ──PART──▶    receiver
              ◀──────────WROTE (bytes of all parts that lie in the receiver's memory or file)─────

    who waits                   for what
    a part that leaves          the receiver to have written enough of those before it (`UNWRITTEN_BYTES`)
    a message that leaves       its turn (`MOST_AT_ONCE`, and bytes); the one before it of the same order
    a message that arrives      its next part, no longer than `Limits.piece` for each piece's bytes that come before it

Other messages and heartbeats pass between the parts. A connection that breaks costs no part: the link's stream writes
again what was not taken, and counts each byte; TLS sees that none is another one.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fedactors.errors import BadInput
from fedactors.messages.codec import Parts

LARGE_BYTES = 8 * 1024 * 1024
"""Of a message that travels at once; a larger one travels in parts."""
UNWRITTEN_BYTES = 8 * 1024 * 1024
"""Of parts of a link, that the receiver has not yet written."""
MAPPED_BYTES = 64 * 1024 * 1024
"""Of a message that the receiver keeps in memory; a larger one lies in a file, which is mapped."""
MOST_AT_ONCE = 4
"""Messages of one link whose parts take turns."""
MOST_TURNS = 256
"""Pieces of other messages between two parts of one: those of the others of `MOST_AT_ONCE`, and what is between."""
BEGINS, FROM = struct.Struct("<BQ"), struct.Struct("<BQ")
PART_BYTES = 256 * 1024 - FROM.size
"""Of a part, which fills a piece of the link; the last one has what is left."""
_FILES = ThreadPoolExecutor(1, "large-messages")


@dataclass(eq=False)
class Leaving:
    """A large message that this side sends.

    Args:
        kind: request or reply.
        number: of the request.
        parts: its frame, which must not change until it is sent.
        order: messages of one order, if they have one, leave one after the other.
    """

    kind: int
    number: int
    parts: Parts
    order: str
    size: int = field(init=False)
    sent: int = 0
    turn: int = 0
    """When it last had one."""

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.parts))
        self._views = [memoryview(part) for part in self.parts if len(part)]

    def next_part(self) -> Parts:
        """Return where the next part begins, and its bytes, which are views of the message."""
        found: Parts = [FROM.pack(self.kind, self.sent)]
        left = min(PART_BYTES, self.size - self.sent)
        self.sent += left
        while left:
            view = self._views[0]
            found.append(view[:left])
            self._views[0] = view[left:]
            left -= len(found[-1])
            if not self._views[0]:
                del self._views[0]
        return found


class Outbox:
    """The large messages that this side sends over a link: whose turn it is, and whether the other side has room."""

    def __init__(self) -> None:
        self._leaving: list[Leaving] = []
        self._sent = self._written = self._turn = 0

    def __len__(self) -> int:
        return len(self._leaving)

    def add(self, message: Leaving) -> None:
        """Send it when it is its turn."""
        self._leaving.append(message)

    def clear(self) -> None:
        """Send no more of them."""
        self._leaving.clear()

    def holds(self, order: str) -> bool:
        """Say whether one of this order is not yet sent."""
        return bool(order) and any(one.order == order for one in self._leaving)

    def due(self, most: int) -> Leaving | None:
        """Return the message whose turn it is; `most` bytes are those of all that take turns, unless it is one."""
        if self._sent - self._written >= UNWRITTEN_BYTES:
            return None
        return min(self._under_way(most), key=lambda one: one.turn, default=None)

    def _under_way(self, most: int) -> Iterator[Leaving]:
        orders: set[str] = set()
        count = num_bytes = 0
        for one in sorted(self._leaving, key=lambda one: one.sent == 0):  # what has begun goes on
            if one.order and one.order in orders:
                continue
            orders.add(one.order)
            count, num_bytes = count + 1, num_bytes + one.size
            if count > MOST_AT_ONCE or (count > 1 and num_bytes > most):
                return
            yield one

    def take_part(self, one: Leaving) -> Parts:
        """Return the next part of a message, which goes behind the others."""
        self._turn += 1
        one.turn, before = self._turn, one.sent
        part = one.next_part()
        self._sent += one.sent - before
        if one.sent == one.size:
            self._leaving.remove(one)
        return part

    def wrote(self, num_bytes: int) -> str:
        """Hear how many bytes of parts the other side has written; return what is wrong with that, if anything is."""
        if not self._written <= num_bytes <= self._sent:
            return f"says that it wrote {num_bytes} bytes of parts, of {self._sent} that were sent"
        self._written = num_bytes
        return ""


@dataclass(eq=False)
class Arriving:
    """A large message that the other side sends: checked, and written in a thread, to which its file is left."""

    size: int
    received: int = 0
    written: int = 0
    since: float = field(default_factory=time.monotonic)
    """When its last part came,"""
    bytes_before: int = 0
    """and the bytes of all pieces of the link until then."""
    _waiting: list[memoryview] = field(default_factory=list)
    _buffer: bytearray | None = None
    _file: Any = None
    _failed: BadInput | None = None
    """Why it cannot be kept here; what still comes of it is not."""
    _is_discarded: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether some of its parts came, and not all."""
        return 0 < self.received < self.size

    def add(self, start: int, part: memoryview) -> str:
        """Take the next part; return what is wrong with it, if anything is."""
        if start != self.received:
            return f"sends the part of a message from byte {start} on: {self.received} is next"
        if len(part) != (due := min(PART_BYTES, self.size - start)):
            return f"sends a part of {len(part)} bytes of a message of {self.size}: {due} are next"
        self.received += len(part)
        self.since = time.monotonic()
        self._waiting.append(part)
        return ""

    async def write(self) -> int:
        """Write what has come, in a thread; return how many bytes."""
        parts, self._waiting = self._waiting, []
        try:
            if self._failed is None:
                await asyncio.get_running_loop().run_in_executor(_FILES, self._write, parts)
        except (OSError, MemoryError) as error:
            self.discard()
            self._failed = self._no_room(error)
        num_bytes = sum(map(len, parts))
        self.written += num_bytes
        return num_bytes

    def _no_room(self, error: OSError | MemoryError) -> BadInput:
        why = getattr(error, "strerror", None) or "not enough memory"
        remedy = "free space there, or start the site with another TMPDIR"
        if getattr(error, "errno", None) == errno.EFBIG:
            remedy = "policy.limits.disk_gib and --limit disk_gib, or the system's limit of a file's size"
        said = f"has no room for a message of {self.size} bytes"
        return BadInput(f"{said} in {tempfile.gettempdir()} ({why}): {remedy}").telling(f"{said} ({why})")

    def _write(self, parts: list[memoryview]) -> None:
        if self._is_discarded:
            return
        if self._buffer is None and self._file is None:
            if self.size > MAPPED_BYTES:
                # without a name: it goes with the last who has it open, also if this process is killed
                self._file = tempfile.TemporaryFile(prefix="fedactors-", buffering=0)  # noqa: SIM115
            else:
                self._buffer = bytearray(self.size)
        at = self.written
        for part in parts:
            if self._buffer is not None:
                self._buffer[at : at + len(part)] = part
            else:
                left = part
                while left:
                    left = left[os.pwrite(self._file.fileno(), left, at + len(part) - len(left)) :]
            at += len(part)

    def take(self) -> memoryview:
        """Return the whole message, read-only; its file lasts as long as somebody has a view of it.

        Raises:
            BadInput: it could not be kept.
        """
        if self._failed is not None:
            raise self._failed
        if self._file is None:
            return memoryview(self._buffer or b"").toreadonly()
        try:
            with self._file:
                return memoryview(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise self._no_room(error) from None

    def discard(self) -> None:
        """Keep nothing of it."""
        _FILES.submit(self._discard)  # behind what is being written: no other file gets the number of this one

    def _discard(self) -> None:
        self._is_discarded, self._buffer = True, None
        if self._file is not None:
            self._file.close()

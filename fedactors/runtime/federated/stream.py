"""Bytes between two sites, each way once and in order, over as many connections as it takes.

Each side counts the bytes that it has written and those that it has taken since the link began, and keeps what it
wrote until the other side has said that it took it. When a connection breaks, at whatever byte, the two say over the
next one what they have taken, and only the rest is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from fedactors.runtime.federated.pieces import Broken, reason

WINDOW_BYTES = 8 * 1024 * 1024
"""That are kept at most, beside one piece, for a side that does not say that it took them."""
ACKNOWLEDGED_BYTES = 256 * 1024
"""After so many the other side is told that they were taken."""
_BUFFER_BYTES = 256 * 1024
"""That are taken at once."""
_AGAIN_BYTES = 4096
"""Of what is written again, that make one record of TLS: a connection that lives for a few gets further by them."""


class Stream:
    """See the module.

    Args:
        take: is given what arrives.
        broke: is told why the connection broke.
    """

    def __init__(self, take: Callable[[bytes], None], broke: Callable[[str], None]) -> None:
        self.written = self.taken = 0
        self.has_room = asyncio.Event()
        """Whether more may be written now."""
        self.has_room.set()
        self._take = take
        self._broke = broke
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
            writer: of a connection on which nothing is under way; whoever dialled it speaks first.
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
        self.transport.set_protocol(self)
        if self.transport.is_closing():  # of which the protocol before this one may have heard
            asyncio.get_running_loop().call_soon(self.connection_lost, None)
        if is_dialled:
            stream._again(self)

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

"""An asyncio event loop whose time is virtual: instead of waiting it jumps to the next event.

Events are ordered by (time, party, key, sequence), not by time alone: asyncio's own heap breaks ties arbitrarily, and
ordering ties by sequence alone would break a resume, where timers are made again in another order. One event is fired
at a time, and everything it makes runnable runs before the next.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import selectors
from collections.abc import Callable
from typing import Any

current_actor: contextvars.ContextVar[str] = contextvars.ContextVar("current_actor", default="driver")
"""Whose code is running: the sender of a call, and the party by which ties are ordered."""

_Event = tuple[float, str, str, int, asyncio.TimerHandle]


class _NeverWaits(selectors.BaseSelector):
    """Stands where asyncio would wait for the network, which a virtual loop never does."""

    def __init__(self) -> None:
        self._map: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._map[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return dict(self._map)

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map[fileobj if isinstance(fileobj, int) else fileobj.fileno()]


class Instant:
    """A virtual time to be awaited, by one task and once: its event wakes the task itself.

    The least that asyncio asks of a future. A plain future and an event that completes it cost twice as much, and a
    message or a compute costs little beside them.

    Args:
        loop: whose time it is.
        when: the time at which the task goes on.
        party: with `key`, its place among the events of the same time.
        key: see `party`.
    """

    __slots__ = (
        "_asyncio_future_blocking",
        "_cancelled",
        "_context",
        "_handle",
        "_key",
        "_loop",
        "_party",
        "_wake",
        "_when",
    )

    def __init__(self, loop: VirtualLoop, when: float, party: str, key: str) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._when = when
        self._party = party
        self._key = key
        self._handle: asyncio.TimerHandle | None = None
        self._wake: Any = None
        self._context: contextvars.Context | None = None
        self._cancelled = False

    def __await__(self) -> Any:
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop; asyncio asks for it."""
        return self._loop

    def add_done_callback(self, wake: Any, *, context: contextvars.Context | None = None) -> None:
        """Take the task's wake-up: it is the event."""
        self._wake, self._context = wake, context
        self._handle = self._loop.call_at_keyed(self._when, self._party, self._key, wake, self, context=context)

    def cancel(self, msg: Any = None) -> bool:
        """Wake the task now, with a cancellation."""
        if self._cancelled or self._handle is None:
            return False
        self._handle.cancel()
        self._cancelled = True
        self._loop.call_soon(self._wake, self, context=self._context)
        return True

    def result(self) -> None:
        """Let the task go on, or end it if it was cancelled."""
        if self._cancelled:
            raise asyncio.CancelledError


class _Handle(asyncio.Handle):
    """asyncio's, made without asking the loop whether it debugs."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: VirtualLoop, context: contextvars.Context | None) -> None:
        self._context = contextvars.copy_context() if context is None else context  # type: ignore[attr-defined]
        self._loop = loop  # type: ignore[attr-defined]
        self._callback = callback  # type: ignore[attr-defined]
        self._args = args
        self._cancelled = False
        self._repr = None  # type: ignore[attr-defined]
        self._source_traceback = None  # type: ignore[attr-defined]


class _TimerHandle(asyncio.TimerHandle):
    """asyncio's, made likewise."""

    __slots__ = ()

    def __init__(
        self, when: float, callback: Any, args: Any, loop: VirtualLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context  # type: ignore[attr-defined]
        self._loop = loop  # type: ignore[attr-defined]
        self._callback = callback  # type: ignore[attr-defined]
        self._args = args
        self._cancelled = False
        self._repr = None  # type: ignore[attr-defined]
        self._source_traceback = None  # type: ignore[attr-defined]
        self._when = when  # type: ignore[attr-defined]
        self._scheduled = True  # type: ignore[attr-defined]


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module; `idle` hooks run when nothing is runnable, before time moves."""

    def __init__(self) -> None:
        super().__init__(_NeverWaits())
        self._virtual_time = 0.0
        self._events: list[_Event] = []
        self._sequence = 0
        self._num_cancelled = 0
        self.before_time_moves: Callable[[], bool] = lambda: False
        """Called when nothing is runnable; returns whether it made something runnable."""
        self.when_stuck: Callable[[], None] = lambda: None
        """Called when nothing is runnable and no event is left."""

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_time

    def set_time(self, time: float) -> None:
        """Start at `time`, for a run that goes on from a snapshot."""
        self._virtual_time = time

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule under the party whose code is running, as asyncio's sleeps and timeouts do."""
        return self.call_at_keyed(when, current_actor.get(), "", callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule after `delay` virtual seconds."""
        return self.call_at(self._virtual_time + delay, callback, *args, context=context)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """Run `callback` before time moves; without asyncio's checks, which cost as much as a message itself."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at_keyed(
        self, when: float, party: str, key: str, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule an event with its place among those of the same time."""
        handle = _TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._events, (max(when, self._virtual_time), party, key, self._sequence, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._num_cancelled += 1
        if self._num_cancelled > 1000 and self._num_cancelled * 2 > len(self._events):
            self._events = [event for event in self._events if not event[4].cancelled()]
            heapq.heapify(self._events)
            self._num_cancelled = 0

    def _run_once(self) -> None:
        """Run what is runnable; when nothing is, move the clock. Stands for asyncio's own, which asks the network."""
        ready = self._ready  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            self._move()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                what = f"Exception in callback {handle._callback!r}"
                self.call_exception_handler({"message": what, "exception": error, "handle": handle})

    def _move(self) -> None:
        if self.before_time_moves():
            return
        while self._events:
            event = heapq.heappop(self._events)
            if event[4].cancelled():
                self._num_cancelled -= 1
                continue
            self._virtual_time = event[0]
            self._ready.append(event[4])  # type: ignore[attr-defined]
            return
        self.when_stuck()


def finish(future: asyncio.Future[None]) -> None:
    """Let whoever waits for `future` go on, if anyone still does."""
    if not future.done():
        future.set_result(None)

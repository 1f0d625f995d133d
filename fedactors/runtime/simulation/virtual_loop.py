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

_Event = tuple[float, str, str, int, "_Timer | Instant"]


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


class _Handle:
    """What asyncio's handle is of a callback that is runnable, and no more: a message makes three of them."""

    __slots__ = ("_args", "_callback", "_cancelled", "_context")

    def __init__(self, callback: Any, args: tuple[Any, ...], context: contextvars.Context | None) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        """Never run it."""
        self._cancelled = True

    def cancelled(self) -> bool:
        """Say whether it is never run."""
        return self._cancelled


class _Timer(_Handle):
    """The same of a callback that an event makes runnable."""

    __slots__ = ("_loop", "_when")

    def __init__(
        self, loop: VirtualLoop, when: float, callback: Any, args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._loop = loop
        self._when = when

    def when(self) -> float:
        """Return the time of the event."""
        return self._when

    def cancel(self) -> None:
        """Never run it; the loop counts how many such events it still has."""
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = None, ()
            self._loop.count_cancelled()


class Instant:
    """A virtual time to be awaited, by one task and once: it is itself the event that wakes the task.

    The least that asyncio asks of a future. A plain future and an event that completes it cost three times as much, and
    a message or a compute costs little beside them.

    Args:
        loop: whose time it is.
        when: the time at which the task goes on.
        party: with `key`, its place among the events of the same time.
        key: see `party`.
    """

    __slots__ = (
        "_args",
        "_asyncio_future_blocking",
        "_callback",
        "_cancelled",
        "_context",
        "_key",
        "_loop",
        "_party",
        "_when",
    )

    def __init__(self, loop: VirtualLoop, when: float, party: str, key: str) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._when = when
        self._party = party
        self._key = key
        self._callback: Any = None
        self._args: tuple[Any, ...] = ()
        self._cancelled = False

    def __await__(self) -> Any:
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop; asyncio asks for it."""
        return self._loop

    def add_done_callback(self, wake: Any, *, context: contextvars.Context) -> None:
        """Take the task's wake-up: it is what the event runs."""
        self._callback, self._args, self._context = wake, (self,), context
        self._loop.add_event(self._when, self._party, self._key, self)

    def cancel(self, msg: Any = None) -> bool:
        """Wake the task now, with a cancellation."""
        if self._cancelled or self._callback is None:
            return False
        self._cancelled = True
        self._loop.count_cancelled()
        self._loop.call_soon(self._callback, self, context=self._context)
        return True

    def result(self) -> None:
        """Let the task go on, or end it if it was cancelled."""
        self._callback, self._args = None, ()  # it would hold itself
        if self._cancelled:
            raise asyncio.CancelledError


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time; two hooks run when nothing is runnable, before time moves."""

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

    def create_task(self, coro: Any, *, name: object = None, context: Any = None) -> asyncio.Task[Any]:
        """Run a coroutine; without asyncio's checks, likewise."""
        if self._task_factory is not None:  # type: ignore[attr-defined]
            return super().create_task(coro, name=name, context=context)
        return asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        """Run `callback` before time moves; without asyncio's checks, which cost as much as a message itself."""
        handle = _Handle(callback, args, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle  # type: ignore[return-value]

    def call_at_keyed(
        self, when: float, party: str, key: str, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule an event with its place among those of the same time."""
        timer = _Timer(self, when, callback, args, context)
        self.add_event(when, party, key, timer)
        return timer  # type: ignore[return-value]

    def add_event(self, when: float, party: str, key: str, event: _Timer | Instant) -> None:
        """Let `event` run at its time, or now if that has passed, in its place among those of the same time."""
        self._sequence += 1
        now = self._virtual_time
        heapq.heappush(self._events, (when if when > now else now, party, key, self._sequence, event))

    def count_cancelled(self) -> None:
        """Note that an event will not run; when most of many will not, forget them."""
        self._num_cancelled += 1
        if self._num_cancelled > 1000 and self._num_cancelled * 2 > len(self._events):
            self._events = [event for event in self._events if not event[4]._cancelled]
            heapq.heapify(self._events)
            self._num_cancelled = 0

    def _run_once(self) -> None:
        """Run what is runnable; when nothing is, move the clock. Stands for asyncio's own, which asks the network.

        It goes on until the loop is stopped: to return to asyncio after each event costs as much as the event.
        """
        ready = self._ready  # type: ignore[attr-defined]
        while True:
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
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _move(self) -> None:
        if self.before_time_moves():
            return
        while self._events:
            event = heapq.heappop(self._events)
            if event[4]._cancelled:
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

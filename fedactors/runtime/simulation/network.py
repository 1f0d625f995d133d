"""Virtual time, and what travels in it: the event loop, each actor's side of it, and the wire between actors.

    SimulatedContext.call ──▶ Wire.send: check, freeze, record ──link──▶ endpoint ──link──▶ the caller's future

Instead of waiting the loop jumps to the next event. Events are ordered by (time, party, key, sequence), not by time
alone: asyncio's own heap breaks ties arbitrarily, and ordering ties by sequence alone would break a resume, where
timers are made again in another order. One event is fired at a time, and everything it makes runnable runs before the
next.

A call is under way when it is made; its receiver runs it in a task of its own after the link's latency and bytes over
bandwidth, which is shared among the transfers in flight where a host's capacity is finite.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import math
import selectors
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from fedactors.actors.actor import Actor
from fedactors.actors.context import NOWHERE, Clock, Context, Job, Ref, Work, derived_rng
from fedactors.actors.remote import Endpoint, endpoints
from fedactors.errors import BadInput, FedactorsError, PartyLost, PayloadGone, Refused
from fedactors.messages.codec import HEADER_BYTES, carry, freeze, type_name
from fedactors.messages.ledger import DRIVER as DRIVER_KIND
from fedactors.messages.ledger import kind_of
from fedactors.network.links import Link, SharedTransfers
from fedactors.runtime import calls, snapshots
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import ERROR_ROW, as_party_error
from fedactors.runtime.interface import ActorSpec

if TYPE_CHECKING:
    from fedactors.runtime.simulation.runtime import SimulatedRuntime

T = TypeVar("T")
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
    """Complete `future`, unless its waiter is gone."""
    if not future.done():
        future.set_result(None)


# --- each actor's side ---


class VirtualClock(Clock):
    """The virtual clock as one actor (or the driver) sees it."""

    def __init__(self, runtime: SimulatedRuntime, name: str) -> None:
        self._runtime = runtime
        self._name = name

    def now(self) -> float:
        """Return the virtual time."""
        return self._runtime.loop.time()

    async def sleep(self, seconds: float, key: str | None = None) -> None:
        """See `Clock.sleep`."""
        await self._runtime.sleep(self._name, seconds, key)

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
        """See `Clock.timeout`; a snapshot waits for its timer, which a resume would lose."""
        with contextlib.nullcontext() if seconds is None else self._runtime.passing_wait():
            async with asyncio.timeout(seconds) as timeout:
                yield timeout


class SimulatedContext(Context):
    """One actor's side of the simulated runtime."""

    def __init__(self, runtime: SimulatedRuntime, actor_spec: ActorSpec) -> None:
        self.name = actor_spec.name
        self.clock = VirtualClock(runtime, actor_spec.name)
        self.seed = runtime.seed
        self.reproducible_noise = runtime.reproducible_noise
        self.actor_spec = actor_spec
        self.counts = actor_spec.counts()
        self.states = runtime.states.of(actor_spec.name)
        self._runtime = runtime
        self.actor = self._make()
        self.endpoints = endpoints(actor_spec.cls)
        self.alive = True
        self.variables = contextvars.copy_context()
        self.variables.run(current_actor.set, actor_spec.name)
        self.jobs: dict[str, Job] = {}
        self.timers: dict[str, float] = {}
        self.tasks: dict[asyncio.Future[Any], None] = {}  # in the order of their start, which a set would lose
        self._payloads: dict[int, tuple[Any, int, frozenset[str]]] = {}
        self._payload_keys = derived_rng(runtime.seed, actor_spec.name, "payload keys")

    def _make(self) -> Actor:
        # a copy of its own: what is built with the arguments, now or after a restart, finds them as they were given
        args, kwargs = carry((self.actor_spec.args, dict(self.actor_spec.kwargs)))
        actor = self.actor_spec.cls(*args, **kwargs)
        actor._context = self
        return actor

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        return self._runtime.send(self.name, receiver, method, value)

    async def compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        runtime = self._runtime
        due, result = runtime.cores.start(self.name, function, args, work)
        runtime.num_passing_waits += 1
        try:
            await Instant(runtime.loop, due, self.name, f"compute {work.kind}")
        finally:
            runtime.num_passing_waits -= 1
        return cast(T, result())

    def begin(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work) -> Job:
        if key in self.jobs:
            raise FedactorsError(f"{self.name}: a job {key!r} is already under way")
        frozen, _ = freeze(args)
        due, result = self._runtime.cores.start(self.name, function, frozen, work)
        return self._start_job(key, function, frozen, work, due, result)

    def _start_job(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work, due: float, result: Any
    ) -> Job:
        future: asyncio.Future[None] = self._runtime.loop.create_future()
        self._runtime.loop.call_at_keyed(due, self.name, key, finish, future)

        async def wait(job: Job) -> Any:
            await future
            self.jobs.pop(job.key, None)
            return result()

        job = Job(key, function, args, work, due, wait)
        self.jobs[key] = job
        return job

    def redo(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work, due: float) -> None:
        """Do the work of a restored job again; its result counts at the time at which it was due."""
        self._start_job(key, function, args, work, due, self._runtime.cores.run(function, args))

    def job(self, key: str) -> Job | None:
        return self.jobs.get(key)

    def background(self, awaitable: Awaitable[Any]) -> None:
        async def go_on() -> None:
            await awaitable

        task: asyncio.Future[Any]
        if isinstance(awaitable, asyncio.Future):
            task = awaitable
        else:
            coroutine = awaitable if isinstance(awaitable, Coroutine) else go_on()
            task = self._runtime.loop.create_task(coroutine, context=self.variables.copy())
        self.tasks[task] = None
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Future[Any]) -> None:
        self.tasks.pop(task, None)
        if task.cancelled() or task.exception() is None or not self.alive:
            return
        self._runtime.fail(as_party_error(self.name, cast(BaseException, task.exception())))

    def put(self, value: Any, readers: frozenset[str]) -> Ref:
        frozen, size = calls.keep(self.endpoints, self.name, value)
        key = int(self._payload_keys.integers(1, 1 << 62))
        self._payloads[key] = (frozen, size, readers)
        return Ref(self.name, key, size, NOWHERE)

    async def get(self, ref: Ref) -> Any:
        owner = self._runtime.context_of(ref.owner)
        if ref.key not in owner._payloads:
            raise PayloadGone(f"payload {ref.key} was freed by its owner {ref.owner}, or never was")
        value, size, readers = owner._payloads[ref.key]
        if owner is not self:
            calls.check_reader(self.name, readers, ref.owner)
            await self._runtime.wire.carry(ref.owner, self.name, type_name(value, "payload"), size)
        return value

    def free(self, ref: Ref) -> None:
        self._payloads.pop(ref.key, None)

    def record_span(self, kind: str, label: str, start: float, end: float) -> None:
        self._runtime.record_span(self.name, kind, label, start, end)

    def record_privacy(self, record: Any) -> None:
        self._runtime.privacy_records.append(record)

    def capture(self) -> bytes:
        """Return the actor's state, work in flight and keyed timers as a sealed frame, or where that is kept."""
        jobs = [
            (j.key, j.function.__name__, j.args, (j.work.kind, j.work.units), j.due)
            for j in sorted(self.jobs.values(), key=lambda j: j.key)
        ]
        return self.states.keep(snapshots.seal_actor(self.actor, jobs, self.timers))

    def restore(self, frame: bytes, folder: str) -> None:
        """Load a sealed frame into the actor and take up its work in flight again; `folder`: where it lies."""
        content = snapshots.restore(self.actor, frame, self.name, folder)
        what = snapshots.checkpoint_of(self.name, folder)
        with snapshots.intact(what):
            self._take_up(content, what)

    def _take_up(self, content: Any, what: str) -> None:
        timers = {str(key): snapshots.amount(due, f"timers.{key}", what) for key, due in content["timers"].items()}
        self.timers = timers
        functions = {function.__name__: function for function in self.actor.jobs}
        for key, name, args, (kind, units), due in content["jobs"]:
            if name not in functions:
                raise BadInput(f"{what} names {name!r}, which is no work of its class")
            due = snapshots.amount(due, f"jobs.{name}", what)
            self.redo(key, functions[name], args, Work(kind, units), due)


class Route(NamedTuple):
    """How messages go from one actor to another."""

    kind: str
    link: Link
    is_shared: bool
    """Whether a host's finite capacity limits it."""
    takes_time: bool


@dataclass(slots=True, eq=False)
class Call:
    """A call that is not yet answered.

    `timer` is its arrival while it is on the way, `task` what its receiver does about it from then on.
    """

    number: int
    sender: str
    receiver: SimulatedContext
    path: CallPath
    message: Any
    reply: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None

    @property
    def endpoint(self) -> Endpoint:
        """What is called."""
        return self.path.endpoint


class Wire:
    """What is under way between the actors of `runtime`."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.calls: dict[int, Call] = {}
        """Calls not yet answered, by number."""
        self.arrivals: dict[int, asyncio.Future[None]] = {}
        self.watch_replies: Callable[[str, str, str, Any], None] | None = None
        """Is told of every reply: who replied, to whom, to which method, and what."""
        self._runtime = runtime
        self._num_sent = 0
        self.reroute()

    def reroute(self) -> None:
        """Forget the routes taken so far: the network is another one."""
        self._routes: dict[tuple[str, ...], Route] = {}
        self._paths: dict[tuple[str, str, str], CallPath] = {}
        """By (sender, receiver, method), where the endpoint was found open."""
        self._shared = SharedTransfers(self._runtime.network)
        self._shared_timer: asyncio.TimerHandle | None = None
        self._shared_changed = False

    def send(self, sender: str, receiver: str, method: str, value: Any) -> asyncio.Future[Any]:
        """Send a call: check, freeze and record it now, deliver it after the link's time, reply likewise."""
        runtime = self._runtime
        path = self._paths.get((sender, receiver, method))
        if path is None or value.__class__ not in path.endpoint.takes:
            path = self._admit(sender, receiver, method, value)
        context = runtime.contexts[receiver]
        kind, link, is_shared, takes_time = path.there
        frozen, size = calls.leave(path, value)
        loop = runtime.loop
        now = loop.time()
        runtime.ledger.record(now, sender, receiver, kind, type_name(value, method), size)
        self._num_sent += 1
        number = self._num_sent
        # no task of the sender's: the receiver goes on even if the sender stops waiting, as on Ray
        reply: asyncio.Future[Any] = loop.create_future()
        call = Call(number, sender, context, path, frozen, reply)
        self.calls[number] = call
        if is_shared:
            self._start(call, self._travel_and_serve(call, size + HEADER_BYTES, link))
        elif takes_time:
            arrival = now + link.seconds(size + HEADER_BYTES)
            key, variables = path.key_there, context.variables
            call.timer = loop.call_at_keyed(arrival, sender, key, self._arrive, call, context=variables)
        else:
            self._arrive(call)
        return reply

    def _admit(self, sender: str, receiver: str, method: str, value: Any) -> CallPath:
        """Return the path to an endpoint that is open to the sender and takes the value, with the route there."""
        contexts, role = self._runtime.contexts, self._runtime.role_of
        if receiver not in contexts:
            raise calls.unknown_actor(sender, receiver, contexts)
        endpoints = contexts[receiver].endpoints
        path = calls.admit(endpoints, method, sender, role(sender), receiver, role(receiver), value)
        path.there, path.key_there = self._route(sender, receiver), f"{receiver}.{method}"
        self._paths[sender, receiver, method] = path
        return path

    def _route(self, sender: str, receiver: str) -> Route:
        network, role = self._runtime.network, self._runtime.role_of
        kind = kind_of(sender, role(sender), receiver, role(receiver))
        source, target = network.host(sender), network.host(receiver)
        key: tuple[str, ...] = (kind, source, target)
        if not network.links and not network.capacity:  # thousands of parties have few kinds of routes
            key = (kind, "within") if source == target else (kind,)
        route = self._routes.get(key)
        if route is None:
            link, is_shared = network.local, False
            if kind != DRIVER_KIND:
                link = network.link(sender, receiver, kind)
                is_shared = network.is_shared(sender, receiver, kind)
            takes_time = is_shared or link.latency > 0 or not math.isinf(link.bandwidth)
            route = self._routes[key] = Route(kind, link, is_shared, takes_time)
        return route

    def _back(self, path: CallPath) -> Route:
        if path.back is None:
            path.back = self._route(path.receiver, path.sender)
            path.key_back = f"{path.sender}.{path.endpoint.name}"
        back: Route = path.back
        return back

    def _arrive(self, call: Call) -> None:
        call.timer = None
        self._start(call, self._serve(call))

    def _start(self, call: Call, coroutine: Coroutine[Any, Any, None]) -> None:
        call.task = self._runtime.loop.create_task(coroutine, context=call.receiver.variables.copy())

    async def _travel_and_serve(self, call: Call, size: int, link: Link) -> None:
        try:
            await self._travel(call.sender, call.receiver.name, call.path.key_there, size, link)
        except asyncio.CancelledError:
            self._end_cancelled(call)
            return
        await self._serve(call)

    async def _serve(self, call: Call) -> None:
        """Let the receiver do what is called for, and bring its reply, or its failure, back to the sender."""
        context, path = call.receiver, call.path
        try:
            if not context.alive:
                raise PartyLost(context.name, f"its process is gone; {path.endpoint.name} was not done")
            reply = await calls.begin(path, context.actor, call.message)
            if reply is None:
                calls.answer(path, None)
            else:
                reply, size = self._send_back(call, reply)
                _, link, is_shared, takes_time = self._back(path)
                if is_shared:
                    await self._travel(context.name, call.sender, path.key_back, size, link)
                elif takes_time:
                    loop = self._runtime.loop
                    await Instant(loop, loop.time() + link.seconds(size), context.name, path.key_back)
        except asyncio.CancelledError:
            self._end_cancelled(call)
        except Exception as error:
            failed, size = calls.failed(context.name, call.sender, error)
            del self.calls[call.number]
            now = self._runtime.loop.time()
            self._runtime.ledger.record(now, context.name, call.sender, path.kind, ERROR_ROW, size)
            if not call.reply.done():
                self._runtime.unawaited.fail(call.reply, failed, call.sender)
        else:
            del self.calls[call.number]
            if self.watch_replies is not None and reply is not None:
                self.watch_replies(context.name, call.sender, path.endpoint.name, reply)
            if not call.reply.done():
                self._give(call, reply)

    def _give(self, call: Call, reply: Any) -> None:
        """End a call with its reply, if it has the dimensions that the caller knows."""
        caller = self._runtime.contexts.get(call.sender)
        try:
            calls.fit(call.path, None if caller is None or not caller.alive else caller.actor, reply)
        except Refused as error:
            self._runtime.unawaited.fail(call.reply, error, call.sender)
        else:
            call.reply.set_result(reply)

    def _send_back(self, call: Call, reply: Any) -> tuple[Any, int]:
        """Check, freeze and record a reply; return it with the bytes that it is on its link."""
        path = call.path
        frozen, size = calls.answer(path, reply)
        type_, now = type_name(frozen, path.endpoint.name), self._runtime.loop.time()
        self._runtime.ledger.record(now, path.receiver, path.sender, path.kind, type_, size)
        return frozen, size + HEADER_BYTES

    def lose(self, name: str) -> None:
        """End the calls to an actor whose process is lost, on the way or under way."""
        for call in [call for call in self.calls.values() if call.receiver.name == name]:
            if call.task is not None:
                call.task.cancel()
            else:
                assert call.timer is not None
                call.timer.cancel()
                self._end_cancelled(call)

    def _end_cancelled(self, call: Call) -> None:
        del self.calls[call.number]
        if call.reply.done():
            return
        if call.receiver.alive:
            call.reply.cancel()
        else:
            name = call.receiver.name
            lost = PartyLost(name, f"its process was lost during {call.path.endpoint.name}")
            self._runtime.unawaited.fail(call.reply, lost, call.sender)

    async def carry(self, sender: str, receiver: str, type_: str, size: int) -> None:
        """Record and time the transfer of a payload."""
        kind, link, is_shared, takes_time = self._route(sender, receiver)
        loop, key = self._runtime.loop, f"{receiver}.{type_}"
        now = loop.time()
        self._runtime.ledger.record(now, sender, receiver, kind, type_, size)
        if takes_time:
            with self._runtime.passing_wait():
                if is_shared:
                    await self._travel(sender, receiver, key, size + HEADER_BYTES, link)
                else:
                    await Instant(loop, now + link.seconds(size + HEADER_BYTES), sender, key)

    async def _travel(self, sender: str, receiver: str, key: str, size: int, link: Link) -> None:
        """Share the hosts' capacity with the other transfers, then wait for the link's latency."""
        loop = self._runtime.loop
        arrival: asyncio.Future[None] = loop.create_future()
        self._num_sent += 1
        number = self._num_sent
        self.arrivals[number] = arrival
        source, target = self._runtime.network.host(sender), self._runtime.network.host(receiver)
        self._shared.start(loop.time(), number, source, target, link, size)
        self._shared_changed = True
        await arrival
        await Instant(loop, loop.time() + link.latency, sender, key)

    def plan(self) -> None:
        """Set the timer to the end of the next transfer through a shared host, if anything has changed."""
        if not self._shared_changed:
            return
        self._shared_changed = False
        if self._shared_timer is not None:
            self._shared_timer.cancel()
            self._shared_timer = None
        end = self._shared.next_end()
        if end is not None:
            self._shared_timer = self._runtime.loop.call_at_keyed(end, "", "transfer", self._end_shared)

    def _end_shared(self) -> None:
        for number in self._shared.advance(self._runtime.loop.time()):
            finish(self.arrivals.pop(number))
        self._shared_changed = True

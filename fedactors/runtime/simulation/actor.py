"""One actor's side of the simulated runtime: its clock, its calls, its work and what a snapshot holds of it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from fedactors.actor import Actor
from fedactors.errors import BadInput, FedactorsError, PayloadGone
from fedactors.network.codec import carry, freeze, type_name
from fedactors.remote import doors
from fedactors.runtime import calls, restored, snapshot
from fedactors.runtime.base import NOWHERE, Casting, Clock, Context, Job, Ref, Work, derived_rng
from fedactors.runtime.failures import as_party_error
from fedactors.runtime.simulation.virtual_loop import Instant, current_actor, finish

if TYPE_CHECKING:
    from fedactors.runtime.simulated import SimulatedRuntime

T = TypeVar("T")


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

    def __init__(self, runtime: SimulatedRuntime, casting: Casting) -> None:
        self.name = casting.name
        self.clock = VirtualClock(runtime, casting.name)
        self.seed = runtime.seed
        self.reproducible_noise = runtime.reproducible_noise
        self.casting = casting
        self.states = runtime.states.of(casting.name)
        self._runtime = runtime
        self.actor = self._make()
        self.doors = doors(casting.cls)
        self.alive = True
        self.variables = contextvars.copy_context()
        self.variables.run(current_actor.set, casting.name)
        self.jobs: dict[str, Job] = {}
        self.timers: dict[str, float] = {}
        self.tasks: dict[asyncio.Future[Any], None] = {}  # in the order of their start, which a set would lose
        self._payloads: dict[int, tuple[Any, int, frozenset[str]]] = {}
        self._payload_keys = derived_rng(runtime.seed, casting.name, "payload keys")

    def _make(self) -> Actor:
        # a copy of its own: what is built with the arguments, now or after a restart, finds them as they were given
        args, kwargs = carry((self.casting.args, dict(self.casting.kwargs)))
        actor = self.casting.cls(*args, **kwargs)
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
        frozen, size = calls.keep(self.doors, self.name, value)
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
        return self.states.keep(snapshot.seal_actor(self.actor, jobs, self.timers))

    def restore(self, frame: bytes, folder: str) -> None:
        """Load a sealed frame into the actor and take up its work in flight again; `folder`: where it lies."""
        content = restored.restore(self.actor, frame, self.name, folder)
        what = snapshot.checkpoint_of(self.name, folder)
        with snapshot.intact(what):
            self._take_up(content, what)

    def _take_up(self, content: Any, what: str) -> None:
        timers = {str(key): restored.amount(due, f"timers.{key}", what) for key, due in content["timers"].items()}
        self.timers = timers
        functions = {function.__name__: function for function in self.actor.jobs}
        for key, name, args, (kind, units), due in content["jobs"]:
            if name not in functions:
                raise BadInput(f"{what} names {name!r}, which is no work of its class")
            due = restored.amount(due, f"jobs.{name}", what)
            self.redo(key, functions[name], args, Work(kind, units), due)

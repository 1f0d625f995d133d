"""What every runtime on the wall clock gives an actor: its clock, its work, its tasks, and what it records.

Only calls and payloads are left to the runtime: how they travel is what it is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fedactors.errors import FedactorsError
from fedactors.network.codec import freeze
from fedactors.network.ledger import Ledger, Row
from fedactors.remote import current_caller, doors
from fedactors.runtime.base import Casting, Clock, Context, Job, Work
from fedactors.runtime.batched import Batches, is_marked

T = TypeVar("T")
_BRIEF_SECONDS = 0.005
"""For which the interpreter would let another thread compute before this one has its turn: to change threads for less
costs more than it gives."""
ACCOUNT = "account"
"""The door at which actors write down what they have released; a site with a privacy budget asks by itself."""


class WallClock(Clock):
    """Seconds since the run began, `scale` wall seconds each, `offset` seconds ahead when a run goes on."""

    def __init__(self, start: float, offset: float = 0.0, scale: float = 1.0) -> None:
        self._start = start
        self.offset = offset
        self._scale = scale

    def begin(self, start: float) -> None:
        """Count from `start` (by the wall clock) on."""
        self._start = start

    def now(self) -> float:
        """Return the present time."""
        return (time.time() - self._start) / self._scale + self.offset

    async def sleep(self, seconds: float, key: str | None = None) -> None:
        """See `Clock.sleep`; a keyed wait is not continued across a resume, its loop asks for it again."""
        await asyncio.sleep(seconds * self._scale)


class HostedContext(Context):
    """One actor's side of a runtime whose time is the wall clock.

    Args:
        casting: the actor.
        seed, reproducible_noise: of the run, for this actor.
        clock: its clock.
        keep_rows: whether each message and span is kept for the run's records, not only the totals.
    """

    clock: WallClock

    def __init__(
        self, casting: Casting, seed: int, reproducible_noise: bool, clock: WallClock, keep_rows: bool
    ) -> None:
        self.name = casting.name
        self.seed = seed
        self.reproducible_noise = reproducible_noise
        self.clock = clock
        self.rows: list[Row] = []
        self.spans: list[tuple[str, str, str, float, float]] = []
        self.privacy: list[Any] = []
        self.waiting_seconds = 0.0
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.ledger = Ledger(self.rows.extend if keep_rows else None)
        self.doors = doors(casting.cls)
        self._role = casting.cls.role
        self._keep_rows = keep_rows
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._computing_seconds = 0.0
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        """Where computes run that are not brief, if not in the loop's own thread."""
        self._rates: dict[str, float] = {}
        """Seconds that a unit of each kind of work last took; what is less than one counts as one."""
        self._beside: list[concurrent.futures.Future[Any]] = []
        """What the thread has been given: what is brief queues behind it, and does not run at its side."""
        self._batches = Batches()

    async def compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        # lets frames in that arrived meanwhile: the function may block this process
        await asyncio.sleep(0)
        start = self.clock.now()
        result = await self._compute(function, args, work)
        self.record_span("compute", work.kind, start, self.clock.now())
        return result

    async def _compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        is_brief = self._rates.get(work.kind, math.inf) * max(work.units, 1) < _BRIEF_SECONDS
        if is_marked(function):
            function, args = self._batches.add(function, args), ()
            await asyncio.sleep(0)  # others that were asked for at once come along
            is_brief = False  # whoever comes first computes for all
        # also of a compute that nobody awaits any more the thread is not done before it is
        self._beside = [one for one in self._beside if not one.done()]
        if self._thread is None or (is_brief and not self._beside):
            return self._timed(function, args, work)
        beside = self._thread.submit(self._timed, function, args, work)
        self._beside.append(beside)
        return await asyncio.wrap_future(beside)

    def _timed(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        start = time.thread_time()
        try:
            return function(*args)
        finally:
            seconds = time.thread_time() - start
            self._computing_seconds += seconds
            self._rates[work.kind] = seconds / max(work.units, 1)

    def begin(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work) -> Job:
        if key in self._jobs:
            raise FedactorsError(f"{self.name}: a job {key!r} is already under way")
        task = asyncio.ensure_future(self.compute(function, freeze(args)[0], work))

        async def wait(job: Job) -> Any:
            result = await asyncio.shield(task)
            self._jobs.pop(job.key, None)
            return result

        job = Job(key, function, args, work, self.clock.now(), wait)
        self._jobs[key] = job
        return job

    def job(self, key: str) -> Job | None:
        return self._jobs.get(key)

    def background(self, awaitable: Awaitable[Any]) -> None:
        async def go_on() -> Any:
            return await awaitable

        task: asyncio.Future[Any]
        if isinstance(awaitable, asyncio.Future):
            task = awaitable
        else:
            variables = contextvars.copy_context()
            variables.run(current_caller.set, None)  # whoever called the door that begins it does not call this
            task = asyncio.get_running_loop().create_task(go_on(), context=variables)
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop the run: whoever watches this actor is told the first failure."""
        if not self.failure.done():
            self.failure.set_result(error)

    def record_span(self, kind: str, label: str, start: float, end: float) -> None:
        if kind == "wait":
            self.waiting_seconds += end - start
        if self._keep_rows:
            self.spans.append((self.name, kind, label, start, end))

    def record_privacy(self, record: Any) -> None:
        self.privacy.append(record)

    async def account(self, actor: Any) -> list[Any]:
        """Return what the actor writes down of privacy when it is asked for its account, which is not kept."""
        if ACCOUNT not in self.doors.table:
            return []
        kept, self.privacy = self.privacy, []
        try:
            await actor.account()
        finally:
            found, self.privacy = self.privacy, kept
        return found

    def close(self) -> None:
        """Stop what goes on by itself."""
        for task in list(self._tasks):
            task.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

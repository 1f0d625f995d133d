"""SimulatedRuntime: every party an object in this process, time virtual, arithmetic real.

A call to a peer is a task started after the link's latency and bytes/bandwidth; a compute runs for real (here, or in
a pool) and its result counts at the virtual time that the cost model gives, an actor's computes queueing for its
cores. Events are ordered by (virtual time, party, key, sequence): the same seed gives byte-identical metrics.

A snapshot is taken at an instant when no call is under way and every actor waits in a Job, a keyed timer or nothing.
When nothing can happen any more, that is a `Deadlock` naming each wait.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import copy
import heapq
import importlib
import math
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from fedactors.actor import Actor
from fedactors.errors import BadInput, Deadlock, FedactorsError, PartyLost, PayloadGone, Stopped
from fedactors.network.codec import HEADER_BYTES, freeze, type_name
from fedactors.network.ledger import DRIVER as DRIVER_KIND
from fedactors.network.ledger import Ledger, kind_of
from fedactors.network.links import Link, Network, SharedTransfers
from fedactors.runtime import snapshot
from fedactors.runtime.base import (
    DRIVER,
    Casting,
    Clock,
    Context,
    CostModel,
    Job,
    MissingCost,
    RecorderLike,
    Ref,
    Runtime,
    Snapshot,
    Usage,
    Work,
    as_party_error,
    first_error,
)
from fedactors.runtime.pool import Pool, ProcessPool, one_thread
from fedactors.runtime.virtual_loop import VirtualLoop, current_actor

T = TypeVar("T")
_MOST_MOVES_TO_A_CHECKPOINT = 1_000_000


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
        self.pooled = runtime.pooled
        self.casting = casting
        self._runtime = runtime
        self.actor = self._make()
        self.alive = True
        self.variables = contextvars.copy_context()
        self.variables.run(current_actor.set, casting.name)
        self.jobs: dict[str, Job] = {}
        self.timers: dict[str, float] = {}
        self.tasks: dict[asyncio.Future[Any], None] = {}  # in the order of their start, which a set would lose
        self._payloads: dict[int, tuple[Any, int]] = {}
        self._next_payload = 0

    def _make(self) -> Actor:
        args, kwargs = self.casting.args, self.casting.kwargs
        if self._runtime.loss_policy(self.name) == "restart":
            # a process that takes its place must find the arguments as they were
            args, kwargs = copy.deepcopy((args, kwargs))
        actor = self.casting.cls(*args, **kwargs)
        actor._context = self
        return actor

    def call(self, receiver: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        return self._runtime.send(self.name, receiver, method, args, kwargs)

    async def compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        due, result = self._runtime.start_compute(self, function, args, work)
        future: asyncio.Future[None] = self._runtime.loop.create_future()
        self._runtime.loop.call_at_keyed(due, self.name, f"compute {work.kind}", _finish, future)
        with self._runtime.passing_wait():
            await future
        return cast(T, result())

    def begin(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work) -> Job:
        if key in self.jobs:
            raise FedactorsError(f"{self.name}: a job {key!r} is already under way")
        frozen, _ = freeze(args)
        due, result = self._runtime.start_compute(self, function, frozen, work)
        return self._start_job(key, function, frozen, work, due, result)

    def _start_job(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work, due: float, result: Any
    ) -> Job:
        future: asyncio.Future[None] = self._runtime.loop.create_future()
        self._runtime.loop.call_at_keyed(due, self.name, key, _finish, future)

        async def wait(job: Job) -> Any:
            await future
            self.jobs.pop(job.key, None)
            return result()

        job = Job(key, function, args, work, due, wait)
        self.jobs[key] = job
        return job

    def redo(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work, due: float) -> None:
        """Do the work of a restored job again; its result counts at the time at which it was due."""
        self._start_job(key, function, args, work, due, self._runtime.run_function(function, args))

    def job(self, key: str) -> Job | None:
        return self.jobs.get(key)

    def background(self, awaitable: Awaitable[Any]) -> None:
        async def go_on() -> None:
            await awaitable

        task = self._runtime.loop.create_task(go_on(), context=self.variables.copy())
        self.tasks[task] = None
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Future[Any]) -> None:
        self.tasks.pop(task, None)
        if task.cancelled() or task.exception() is None or not self.alive:
            return
        self._runtime.fail(as_party_error(self.name, cast(BaseException, task.exception())))

    def put(self, value: Any) -> Ref:
        frozen, size = freeze(value)
        self._next_payload += 1
        self._payloads[self._next_payload] = (frozen, size)
        return Ref(self.name, self._next_payload, size, ())

    async def get(self, ref: Ref) -> Any:
        owner = self._runtime.context_of(ref.owner)
        if ref.key not in owner._payloads:
            raise PayloadGone(f"payload {ref.key} was freed by its owner {ref.owner}")
        value, size = owner._payloads[ref.key]
        if owner is not self:
            await self._runtime.carry(ref.owner, self.name, type_name(value, "payload"), size)
        return value

    def free(self, ref: Ref) -> None:
        self._payloads.pop(ref.key, None)

    def record_span(self, kind: str, label: str, start: float, end: float) -> None:
        self._runtime.record_span(self.name, kind, label, start, end)

    def record_privacy(self, record: Any) -> None:
        self._runtime.privacy_records.append(record)

    def capture(self) -> bytes:
        """Return the actor's state, its work in flight and its keyed timers as a sealed frame."""
        jobs = [
            (j.key, f"{j.function.__module__}:{j.function.__qualname__}", j.args, (j.work.kind, j.work.units), j.due)
            for j in sorted(self.jobs.values(), key=lambda j: j.key)
        ]
        state = snapshot.capture(self.actor, self.actor.state)
        return snapshot.seal({"state": state, "jobs": jobs, "timers": dict(sorted(self.timers.items()))})

    def restore(self, frame: bytes) -> None:
        """Load a sealed frame into the actor and take up its work in flight again."""
        content = snapshot.unseal(frame, f"the checkpoint of {self.name}")
        snapshot.apply(self.actor, content["state"])
        self.timers = dict(content["timers"])
        for key, where, args, (kind, units), due in content["jobs"]:
            self.redo(key, self._job_function(where), args, Work(kind, units), due)

    def _job_function(self, where: str) -> Callable[..., Any]:
        module, _, name = where.partition(":")
        own = self.casting.cls.__module__
        package = own.rpartition(".")[0] + "."
        if module != own and not module.startswith((package if package != "." else own + ".", "fedactors.")):
            raise BadInput(f"the checkpoint of {self.name} names a function outside its protocol: {where}")
        return cast("Callable[..., Any]", getattr(importlib.import_module(module), name))


class SimulatedRuntime(Runtime):
    """See the module.

    Args:
        costs: seconds for each kind of work; a protocol's stated default is used when None.
        network: the links; `Network()` (every pair of parties on a LAN) by default.
        cores: per party, the cores that all its actors share; by default each actor has those of its resources.
        pool: number of worker processes that run computes (0: here), or a `Pool`.
        faults: actor name to the virtual time at which its process is lost.
        restart_seconds: virtual time that bringing an actor back takes.
        seed, recorder, checkpoint_every, reproducible_noise: see `Runtime`.
    """

    def __init__(
        self,
        *,
        costs: CostModel | None = None,
        network: Network | None = None,
        cores: Mapping[str, int] | None = None,
        pool: int | Pool = 0,
        faults: Mapping[str, float] | None = None,
        restart_seconds: float = 1.0,
        seed: int = 0,
        recorder: RecorderLike | None = None,
        checkpoint_every: int = 1,
        reproducible_noise: bool = False,
    ) -> None:
        super().__init__(
            seed=seed,
            recorder=recorder,
            checkpoint_every=checkpoint_every,
            reproducible_noise=reproducible_noise,
        )
        self.network = network if network is not None else Network()
        self._network_given = network is not None
        self.ledger = Ledger(recorder.ledger_sink if recorder is not None else None)
        self.loop: VirtualLoop
        self.clock = VirtualClock(self, DRIVER)
        self._costs = costs
        self._cores = dict(cores or {})
        self._pool_size = pool
        self._pool: Pool | None = None
        self._faults = dict(faults or {})
        self._restart_seconds = restart_seconds
        self._contexts: dict[str, SimulatedContext] = {}
        self._routes: dict[tuple[str, str], tuple[str, Link, bool]] = {}
        self._free_at: dict[str, list[float]] = {}
        self._shared = SharedTransfers(self.network)
        self._arrivals: dict[int, asyncio.Future[None]] = {}
        self._shared_timer: asyncio.TimerHandle | None = None
        self._shared_changed = False
        self._num_sent = 0
        self._calls: dict[int, tuple[str, str, str, asyncio.Task[Any]]] = {}
        self.num_passing_waits = 0
        """Waits under way that a snapshot cannot hold: unkeyed sleeps, timeouts, computes, payloads on the wire."""
        self._num_moves_wanted = 0
        self._wanted: list[tuple[str | None, asyncio.Future[None]]] = []
        self._failure: BaseException | None = None
        self._main: asyncio.Task[Any] | None = None
        self._busy_seconds = 0.0
        self._waiting_seconds = 0.0
        self._wall_start = time.perf_counter()
        self._resume: Snapshot | None = None

    # --- the driver's side ---

    @property
    def pooled(self) -> bool:
        """Whether computes run in a pool."""
        return self._pool is not None

    def use_costs(self, costs: CostModel) -> None:
        if self._costs is None:
            self._costs = costs

    def use_network(self, network: Network) -> None:
        if not self._network_given:
            self.network = network
            self._shared = SharedTransfers(network)
            self._routes.clear()

    def call(self, receiver: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        return self.send(DRIVER, receiver, method, args, kwargs)

    async def start(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # as in every other process: more threads change results
        contexts = [SimulatedContext(self, casting) for casting in self._take_new()]
        for context in contexts:
            self._contexts[context.name] = context
            fault = self._faults.pop(context.name, None)
            if fault is not None and not (self.resumed and fault <= self.loop.time()):
                self.loop.call_at_keyed(fault, "", "fault", self.kill, context.name)
        await self._bring_up(contexts, self._resume)

    async def _bring_up(self, contexts: list[SimulatedContext], state: Snapshot | None) -> None:
        for context in contexts:
            await self._in_context(context, context.actor.load)
            if state is not None and context.name in state.actors:
                context.restore(state.actors[context.name])
        for context in contexts:
            await self._in_context(context, context.actor.open)

    async def _in_context(self, context: SimulatedContext, method: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            try:
                await method()
            except FedactorsError:
                raise
            except Exception as error:
                raise as_party_error(context.name, error) from first_error(error)

        await self.loop.create_task(run(), context=context.variables.copy())

    async def respawn(self, name: str) -> None:
        context = SimulatedContext(self, self._castings[name])
        self._contexts[name] = context
        await self._bring_up([context], self._last_snapshot)

    async def checkpoint(self, label: str = "last") -> None:
        self._num_checkpoints += 1
        due = self.checkpoint_every > 0 and self._num_checkpoints % self.checkpoint_every == 0
        wanted = due or self._stop_code is not None or label != "last"
        taken: asyncio.Future[None] = self.loop.create_future()
        # the wait is the same whether a snapshot is due or not, else taking one would change the run
        self._wanted.append((label if wanted else None, taken))
        await taken
        self._stop_if_asked()

    def usage(self) -> Usage:
        seconds = self.loop.time()
        capacity = sum(self._num_cores(pool) for pool in self._free_at) * seconds
        return Usage(
            messages=self.ledger.messages(),
            bytes=self.ledger.bytes(),
            header_bytes=self.ledger.header_bytes(),
            seconds=seconds,
            wall_seconds=time.perf_counter() - self._wall_start,
            cpu_utilisation=self._busy_seconds / capacity if capacity else 0.0,
            waiting_seconds=self._waiting_seconds,
            price=self.ledger.price(self.network.link) + self.spent,
        )

    def request_stop(self, exit_code: int) -> None:
        self._stop_code = exit_code

    def execute(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None = None) -> T:
        one_thread()
        self.loop = VirtualLoop()
        self.loop.before_time_moves = self._before_time_moves
        self.loop.when_stuck = self._stuck
        self._wall_start = time.perf_counter()
        try:
            if resume is not None:
                self._restore_driver(resume)
            if isinstance(self._pool_size, int):
                self._pool = ProcessPool(self._pool_size) if self._pool_size > 0 else None
            else:
                self._pool = self._pool_size
            result: T = self.loop.run_until_complete(self._run_main(main))
            return result
        finally:
            self._tear_down()

    async def _run_main(self, main: Callable[[], Awaitable[T]]) -> T:
        async def driver() -> T:
            return await main()

        main_task: asyncio.Task[T] = self.loop.create_task(driver())
        self._main = main_task
        try:
            result = await main_task
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from self._failure.__cause__
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        if self._failure is not None:
            raise self._failure
        for context in self._contexts.values():
            if context.alive:
                await self._in_context(context, context.actor.close)
        return result

    def _tear_down(self) -> None:
        # in the order of their start, so that what their ends record is in the same order each time
        names = {task.get_name(): task for task in asyncio.all_tasks(self.loop)}
        pending = [names[name] for name in sorted(names, key=lambda name: (len(name), name))]
        for task in pending:
            task.cancel()
        if pending:
            self.loop.before_time_moves = lambda: False
            self.loop.when_stuck = self.loop.stop
            ended = asyncio.gather(*pending, return_exceptions=True)
            with contextlib.suppress(RuntimeError):  # stopped: some task waits for ever in spite of all
                self.loop.run_until_complete(ended)
        if self._pool is not None:
            self._pool.close()
        self.ledger.flush()
        if self.recorder is not None:
            self.recorder.privacy(self.privacy_records)
        self._end_time = self.loop.time()
        self.loop.close()

    def fail(self, error: BaseException) -> None:
        """Stop the run with its first failure."""
        if self._failure is None:
            self._failure = error
            if self._main is not None:
                self._main.cancel()

    # --- calls ---

    def send(
        self, sender: str, receiver: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> asyncio.Future[Any]:
        """Send a call: freeze and record it now, deliver it after the link's time, reply likewise."""
        frozen_args, size = freeze(args)
        if kwargs:
            kwargs, more = freeze(kwargs)
            size += more
        route = self._routes.get((sender, receiver)) or self._route(sender, receiver)
        name = type_name(args[0], method) if args else method
        self.ledger.record(self.loop.time(), sender, receiver, route[0], name, size)
        self._num_sent += 1
        number = self._num_sent
        context = self._contexts[receiver]
        task = self.loop.create_task(
            self._deliver(number, sender, context, method, frozen_args, kwargs, size, route),
            context=context.variables.copy(),
        )
        self._calls[number] = (sender, receiver, method, task)
        # the receiver goes on even if the sender stops waiting, as on Ray
        return asyncio.shield(task)

    def _route(self, sender: str, receiver: str) -> tuple[str, Link, bool]:
        if receiver not in self._contexts:
            raise BadInput(
                f"{sender} calls {receiver!r}, which does not exist (there are: {', '.join(self._contexts)})"
            )
        kind = kind_of(sender, self._role(sender), receiver, self._role(receiver))
        if kind == DRIVER_KIND:
            route = (kind, self.network.local, False)
        else:
            link = self.network.link(sender, receiver, kind)
            route = (kind, link, self.network.is_shared(sender, receiver))
        self._routes[(sender, receiver)] = route
        return route

    async def _deliver(
        self,
        number: int,
        sender: str,
        context: SimulatedContext,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        size: int,
        route: tuple[str, Link, bool],
    ) -> Any:
        receiver = context.name
        try:
            _, link, shared = route
            if shared or link.latency or not math.isinf(link.bandwidth):
                await self._travel(sender, receiver, method, size + HEADER_BYTES, link, shared)
            if not context.alive:
                raise PartyLost(receiver, f"its process is gone; {method} was not done")
            reply = await getattr(context.actor, method)(*args, **kwargs)
            if reply is None:
                return None
            frozen, size = freeze(reply)
            back = self._routes.get((receiver, sender)) or self._route_back(receiver, sender)
            self.ledger.record(self.loop.time(), receiver, sender, back[0], type_name(reply, f"{method} reply"), size)
            _, link, shared = back
            if shared or link.latency or not math.isinf(link.bandwidth):
                await self._travel(receiver, sender, method, size + HEADER_BYTES, link, shared)
            return frozen
        except asyncio.CancelledError:
            if not context.alive:
                raise PartyLost(receiver, f"its process was lost during {method}") from None
            raise
        except Exception as error:
            failed = as_party_error(receiver, error)
            if failed is error:
                raise
            raise failed from first_error(error)
        finally:
            del self._calls[number]

    def _route_back(self, receiver: str, sender: str) -> tuple[str, Link, bool]:
        if sender != DRIVER:
            return self._route(receiver, sender)
        route = (DRIVER_KIND, self.network.local, False)
        self._routes[(receiver, sender)] = route
        return route

    async def carry(self, sender: str, receiver: str, type_: str, size: int) -> None:
        """Record and time the transfer of a payload."""
        route = self._routes.get((sender, receiver)) or self._route(sender, receiver)
        self.ledger.record(self.loop.time(), sender, receiver, route[0], type_, size)
        _, link, shared = route
        if shared or link.latency or not math.isinf(link.bandwidth):
            with self.passing_wait():
                await self._travel(sender, receiver, type_, size + HEADER_BYTES, link, shared)

    async def _travel(self, sender: str, receiver: str, key: str, size: int, link: Link, shared: bool) -> None:
        arrival: asyncio.Future[None] = self.loop.create_future()
        if shared:
            self._num_sent += 1
            number = self._num_sent
            self._arrivals[number] = arrival
            source, target = self.network.host(sender), self.network.host(receiver)
            self._shared.start(self.loop.time(), number, source, target, link, size)
            self._shared_changed = True
            await arrival
            arrival = self.loop.create_future()
            self.loop.call_at_keyed(self.loop.time() + link.latency, sender, f"{receiver}.{key}", _finish, arrival)
        else:
            self.loop.call_at_keyed(
                self.loop.time() + link.seconds(size), sender, f"{receiver}.{key}", _finish, arrival
            )
        await arrival

    def _plan_shared(self) -> None:
        self._shared_changed = False
        if self._shared_timer is not None:
            self._shared_timer.cancel()
            self._shared_timer = None
        end = self._shared.next_end()
        if end is not None:
            self._shared_timer = self.loop.call_at_keyed(end, "", "transfer", self._end_shared)

    def _end_shared(self) -> None:
        for number in self._shared.advance(self.loop.time()):
            _finish(self._arrivals.pop(number))
        self._shared_changed = True

    def context_of(self, name: str) -> SimulatedContext:
        """Return the context of a living actor."""
        context = self._contexts[name]
        if not context.alive:
            raise PartyLost(name, "its process is gone")
        return context

    # --- computes and time ---

    def start_compute(
        self, context: SimulatedContext, function: Callable[..., Any], args: tuple[Any, ...], work: Work
    ) -> tuple[float, Callable[[], Any]]:
        """Run a function now and return (the virtual time at which its result counts, how to get it)."""
        if self._costs is None:
            raise MissingCost(f"{context.name}: no cost model was given, so {work.kind!r} has no duration")
        seconds = self._costs.seconds(context.name, work)
        pool = context.name.partition("/")[0]
        if pool not in self._cores:
            pool = context.name
        free_at = self._free_at.get(pool)
        if free_at is None:
            free_at = self._free_at[pool] = [0.0] * self._num_cores(pool)
        start = max(self.loop.time(), heapq.heappop(free_at))
        due = start + seconds
        heapq.heappush(free_at, due)
        self._busy_seconds += seconds
        if self.recorder is not None:
            self.recorder.record_span(context.name, "compute", work.kind, start, due)
        return due, self.run_function(function, args)

    def run_function(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
        """Run `function` here or in the pool; calling what is returned gives the result, or raises its error."""
        if self._pool is not None:
            return self._pool.submit(function, args).result
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            done.set_result(function(*args))
        except Exception as error:
            done.set_exception(error)
        return done.result

    def _num_cores(self, pool: str) -> int:
        if pool in self._cores:
            return self._cores[pool]
        asked = self._castings[pool].resources
        return max(1, int(asked.num_cpus if asked.simulated_cores is None else asked.simulated_cores))

    async def sleep(self, name: str, seconds: float, key: str | None) -> None:
        """Wait on the virtual clock; a keyed wait found in a restored snapshot ends when it was to end."""
        done: asyncio.Future[None] = self.loop.create_future()
        if key is None:
            self.loop.call_at_keyed(self.loop.time() + seconds, name, "sleep", _finish, done)
            with self.passing_wait():
                await done
            return
        timers = self._timers_of(name)
        due = timers.setdefault(key, self.loop.time() + seconds)
        self.loop.call_at_keyed(due, name, key, _finish, done)
        try:
            await done
        finally:
            timers.pop(key, None)

    @contextlib.contextmanager
    def passing_wait(self) -> Iterator[None]:
        """Hold snapshots off while something waits that they cannot hold."""
        self.num_passing_waits += 1
        try:
            yield
        finally:
            self.num_passing_waits -= 1

    def _timers_of(self, name: str) -> dict[str, float]:
        if name == DRIVER:
            return cast("dict[str, float]", self.state.setdefault("_timers", {}))
        return self._contexts[name].timers

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Add to the timeline; waits are summed for `usage`."""
        if kind == "wait":
            self._waiting_seconds += end - start
        if self.recorder is not None:
            self.recorder.record_span(actor, kind, label, start, end)

    # --- snapshots ---

    def _before_time_moves(self) -> bool:
        if self._failure is not None:
            return False
        if self._shared_changed:
            self._plan_shared()
        legal = not self._calls and not self.num_passing_waits and not self._arrivals
        if self._wanted and legal:
            wanted, self._wanted = self._wanted, []
            self._num_moves_wanted = 0
            for label, taken in wanted:
                if label is not None:
                    self._save(label)
                _finish(taken)
            return True
        if self._stop_code is not None and legal and self._driver_waits_in_timer():
            self._save("last")
            self._stop_main()
            return True
        if self._wanted:
            self._num_moves_wanted += 1
            if self._num_moves_wanted > _MOST_MOVES_TO_A_CHECKPOINT:
                self.fail(Deadlock(f"no legal instant for a checkpoint by {self.loop.time():.6g} s: {self._waits()}"))
                return True
        return False

    def _waits(self) -> str:
        waits = [f"{receiver}.{method} (called by {sender})" for sender, receiver, method, _ in self._calls.values()]
        if self.num_passing_waits:
            waits.append(f"{self.num_passing_waits} sleeps, timeouts, computes or payloads of loops")
        if self._wanted:
            waits.append("the driver's checkpoint")
        return "; ".join(waits) if waits else "the driver itself"

    def _driver_waits_in_timer(self) -> bool:
        return bool(self.state.get("_timers"))

    def _stop_main(self) -> None:
        code, self._stop_code = self._stop_code or 1, None
        self.fail(Stopped(f"stopped at {self.loop.time():.6g} s; a checkpoint is written", code))

    def _stop_if_asked(self) -> None:
        if self._stop_code is not None:
            raise Stopped(f"stopped at {self.loop.time():.6g} s; a checkpoint is written", self._stop_code)

    def _save(self, label: str) -> None:
        actors = {name: context.capture() for name, context in sorted(self._contexts.items()) if context.alive}
        driver = snapshot.seal(
            {
                "now": self.loop.time(),
                "state": snapshot.pack(self.state, "the driver's state"),
                "ledger": self.ledger.state(),
                "spent": self.spent,
                "busy": self._busy_seconds,
                "waiting": self._waiting_seconds,
                "free_at": {pool: list(times) for pool, times in sorted(self._free_at.items())},
            }
        )
        self._last_snapshot = Snapshot(actors, driver)
        if self.recorder is not None:
            self.recorder.save_checkpoint(label, actors, driver)

    def _restore_driver(self, resume: Snapshot) -> None:
        content = snapshot.unseal(resume.driver, "the checkpoint of the driver")
        self._resume = self._last_snapshot = resume
        self.resumed = True
        self.loop.set_time(content["now"])
        self.state = snapshot.unpack(content["state"])
        self.spent = content["spent"]
        self.ledger.restore(content["ledger"])
        self._busy_seconds = content["busy"]
        self._waiting_seconds = content["waiting"]
        self._free_at = {pool: list(times) for pool, times in content["free_at"].items()}

    # --- faults ---

    def kill(self, name: str) -> None:
        """Lose an actor's process now: its waits end, its state is gone, what it was doing fails for its callers."""
        context = self._contexts[name]
        if not context.alive:
            return
        context.alive = False
        for _, receiver, _, task in list(self._calls.values()):
            if receiver == name:
                task.cancel()
        for background in list(context.tasks):
            background.cancel()
        lost = PartyLost(name, "its process is gone")
        policy = self.loss_policy(name)
        if policy == "stop":
            self.fail(lost)
            return
        task = self.loop.create_task(self._after_loss(name, policy))
        task.add_done_callback(self._loss_handled)

    async def _after_loss(self, name: str, policy: str) -> None:
        if policy == "restart":
            await self.clock.sleep(self._restart_seconds)
            await self.respawn(name)
        if self._loss_handler is not None:
            await self._loss_handler(name)

    def _loss_handled(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    def _stuck(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the run does not end after its failure: {self._failure}")
        self.fail(Deadlock(f"nothing can happen any more at {self.loop.time():.6g} s; waiting: {self._waits()}"))


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

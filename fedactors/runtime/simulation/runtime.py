"""SimulatedRuntime: every party an object in this process, time virtual, arithmetic real.

    actor ──call──▶ Wire ──after the link's time──▶ endpoint of another actor
          ──compute──▶ Cores: runs for real, here or in a pool; its result counts when the cost model says

    who waits         for what
    a call            latency and bytes/bandwidth of its link, each way, and the endpoint
    a compute         a core of its actor's host, then the stated seconds
    a checkpoint      an instant with no call under way and every actor in a Job, a keyed timer or nothing

Events are ordered by (virtual time, party, key, sequence): the same seed gives byte-identical metrics. When nothing can
happen any more, that is a `Deadlock` naming each wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar, Unpack, cast

import numpy as np

from fedactors.actors.actor import Resources, queue_for_core
from fedactors.actors.context import MissingCost, Work
from fedactors.actors.remote import DRIVER
from fedactors.errors import Deadlock, FedactorsError, PartyLost, Stopped
from fedactors.messages.ledger import Ledger, Usage
from fedactors.network.links import Network
from fedactors.runtime import snapshots
from fedactors.runtime.compute import Batches, Pool, ProcessPool, computed, is_marked, one_thread
from fedactors.runtime.failures import UnawaitedCall, as_party_error, first_error, note_loss
from fedactors.runtime.interface import CostModel, Runtime, RuntimeSettings, Snapshot, in_thread, is_in_loop
from fedactors.runtime.simulation.network import SimulatedContext, VirtualClock, VirtualLoop, Wire, finish
from fedactors.runtime.snapshots import digests_of_files


class Cores:
    """When each core is free again, and where functions really run.

    Args:
        runtime: whose clock and actors these are.
        costs: seconds for each kind of work.
        shared: per party or host, the cores that all its actors share; other actors have those of their resources.
    """

    def __init__(self, runtime: SimulatedRuntime, costs: CostModel | None, shared: Mapping[str, int]) -> None:
        self.costs = costs
        self.pool: Pool | None = None
        self.busy_seconds = 0.0
        self.free_at: dict[str, list[float]] = {}
        self._runtime = runtime
        self._shared = dict(shared)
        self._batches = Batches()

    def start(
        self, actor: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work
    ) -> tuple[float, Callable[[], Any]]:
        """Begin a function and return (the virtual time at which its result counts, how to get it)."""
        if self.costs is None:
            raise MissingCost(f"{actor}: no cost model was given, so {work.kind!r} has no duration")
        seconds = self.costs.seconds(actor, work)
        group = self._group(actor) if self._shared else actor
        free_at = self.free_at.get(group)
        if free_at is None:
            free_at = self.free_at[group] = [0.0] * self._count(group)
        start, due = queue_for_core(free_at, self._runtime.loop.time(), seconds)
        self.busy_seconds += seconds
        self._runtime.record_span(actor, "compute", work.kind, start, due)
        return due, self.run(function, args)

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
        """Run `function` here or in the pool; calling what is returned gives the result, or raises its error.

        Here, calls of a function that is marked with `together` wait until one of their results is needed.
        """
        if self.pool is not None:
            return self.pool.submit(function, args).result
        if not is_marked(function):
            return computed(function, args)
        return self._batches.add(function, args)

    def capacity(self) -> int:
        """Return the cores that have been used at all."""
        return sum(map(self._count, self.free_at))

    def _group(self, actor: str) -> str:
        names = (actor.partition("/")[0], self._runtime.network.host(actor))
        return next((name for name in names if name in self._shared), actor)

    def _count(self, group: str) -> int:
        if group in self._shared:
            return self._shared[group]
        return self._runtime.resources_of(group).num_cores


T = TypeVar("T")
_MOST_MOVES_TO_A_CHECKPOINT = 1_000_000
_OBJECTS_TO_A_SEARCH = 20_000
"""New objects, beyond those that went, after which Python looks for rubbish: messages under way are many, none is."""


class SimulatedRuntime(Runtime):
    """The driver's side of a simulated run.

    Args:
        costs: seconds for each kind of work; a protocol's stated default is used when None.
        network: the links; `Network()` (every pair of parties on a LAN) by default.
        cores: per party or host, the cores that all its actors share; by default each actor has those of its resources.
        pool: number of worker processes that run computes (0: here), or a `Pool`.
        faults: actor name to the virtual time at which its process is lost.
        restart_seconds: virtual time that bringing an actor back takes.
        settings: see `Runtime`.
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
        **settings: Unpack[RuntimeSettings],
    ) -> None:
        super().__init__(**settings)
        self.network = network if network is not None else Network()
        self._network_given = network is not None
        self.ledger = Ledger(self.recorder.ledger_sink if self.recorder is not None else None)
        self.loop: VirtualLoop
        self.clock = VirtualClock(self, DRIVER)
        self.cores = Cores(self, costs, cores or {})
        self.unawaited = UnawaitedCall(self.fail, lambda name: self.loss_policy(name) != "stop")
        self.wire = Wire(self)
        self.contexts: dict[str, SimulatedContext] = {}
        self._pool = pool
        self._faults = dict(faults or {})
        self._keeps_snapshots = bool(faults) or (self.recorder is not None and self.recorder.keeps_checkpoints)
        """Whether anybody can go on from a snapshot: a later run, or a fresh process of an actor that is lost."""
        self._restart_seconds = restart_seconds
        self.num_passing_waits = 0
        """Waits under way that a snapshot cannot hold: unkeyed sleeps, timeouts, computes, payloads on the wire."""
        self._num_moves_wanted = 0
        self._wanted: list[tuple[str | None, asyncio.Future[None]]] = []
        self._idle_seconds = 0.0
        self._wall_start = time.perf_counter()
        self._resume: Snapshot | None = None

    # --- the driver's side ---

    def use_costs(self, costs: CostModel) -> None:
        if self.cores.costs is None:
            self.cores.costs = costs

    def use_network(self, network: Network) -> None:
        if not self._network_given:
            self.network = network
            self.wire.reroute()

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        return self.send(DRIVER, receiver, method, value)

    async def start(self) -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)  # as in every other process: more threads change results
        contexts = [SimulatedContext(self, actor_spec) for actor_spec in self._take_new()]
        self.states.check(self._actor_specs, {} if self._resume is None else self._resume.actors)
        for context in contexts:
            self.contexts[context.name] = context
            fault = self._faults.pop(context.name, None)
            if fault is not None and not (self.resumed and fault <= self.loop.time()):
                self.loop.call_at_keyed(fault, "", "fault", self.kill, context.name)
        await self._bring_up(contexts, self._resume)
        # what lives as long as the run (features, graphs, actors) is not searched for rubbish again and again
        gc.freeze()

    async def _bring_up(self, contexts: list[SimulatedContext], state: Snapshot | None) -> None:
        for number, context in enumerate(contexts, start=1):
            self.tell(f"loading: {number:,} of {len(contexts):,}")
            frame = context.states.begin(None if state is None else state.actors.get(context.name))
            context.actor._files = digests_of_files((context.actor_spec.args, context.actor_spec.kwargs))
            await self._in_context(context, context.actor.load)
            if state is not None and frame is not None:
                context.restore(frame, state.folder)
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
        context = SimulatedContext(self, self._actor_specs[name])
        self.contexts[name] = context
        await self._bring_up([context], self._last_snapshot)

    async def checkpoint(self, label: str = "last") -> None:
        wanted = self._is_due(label)
        taken: asyncio.Future[None] = self.loop.create_future()
        # the wait is the same whether a snapshot is due or not, else taking one would change the run
        self._wanted.append((label if wanted else None, taken))
        await taken
        if self._stop_code is not None:
            raise Stopped(
                f"stopped at {self.loop.time():.6g} s of virtual time; a checkpoint is written", self._stop_code
            )

    def usage(self) -> Usage:
        seconds = self.loop.time()
        capacity = self.cores.capacity() * seconds
        return self._usage(
            seconds=seconds,
            wall_seconds=time.perf_counter() - self._wall_start,
            cpu_utilisation=self.cores.busy_seconds / capacity if capacity else 0.0,
            idle_seconds=self._idle_seconds,
        )

    def request_stop(self, exit_code: int) -> None:
        self._stop_code = exit_code

    def execute(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None = None) -> T:
        return in_thread(lambda: self._execute(main, resume)) if is_in_loop() else self._execute(main, resume)

    def _execute(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None) -> T:
        one_thread()
        self.loop = VirtualLoop()
        self.loop.before_time_moves = self._before_time_moves
        self.loop.when_stuck = self._stuck
        self.loop.set_exception_handler(self.unawaited)
        self._wall_start = time.perf_counter()
        searches = gc.get_threshold()
        if searches[0]:
            gc.set_threshold(max(searches[0], _OBJECTS_TO_A_SEARCH), *searches[1:])
        try:
            if resume is not None:
                self._restore_driver(resume)
            if isinstance(self._pool, int):
                self.cores.pool = ProcessPool(self._pool) if self._pool > 0 else None
            else:
                self.cores.pool = self._pool
            # what overflows is found where it is measured, and told in one line; numpy would warn before
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                result: T = self.loop.run_until_complete(self._run_main(main))
            return result
        finally:
            gc.set_threshold(*searches)
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
        await self.unawaited.last_answers([call.reply for call in self.wire.calls.values()])
        self.unawaited.check()
        if self._failure is not None:
            raise self._failure
        for context in self.contexts.values():
            if context.alive:
                await self._in_context(context, context.actor.close)
        return result

    def _tear_down(self) -> None:
        gc.unfreeze()
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
        if self.cores.pool is not None:
            self.cores.pool.close()
        self.ledger.flush()
        if self.recorder is not None:
            self.recorder.privacy(self.privacy_records)
        self.loop.close()
        # an actor and its context hold each other: what actors hold would stay until the next full search for rubbish,
        # and a process that runs many scenarios would grow by the data of each
        for context in self.contexts.values():
            del context.actor

    def send(self, sender: str, receiver: str, method: str, value: Any) -> asyncio.Future[Any]:
        """Send a call from one actor (or the driver) to another; see `Wire`."""
        return self.wire.send(sender, receiver, method, value)

    def role_of(self, name: str) -> str:
        """Return the role of an actor, or of the driver."""
        return self._role(name)

    def resources_of(self, name: str) -> Resources:
        """Return what an actor asked of its host."""
        return self._actor_specs[name].resources

    def context_of(self, name: str) -> SimulatedContext:
        """Return the context of a living actor."""
        context = self.contexts[name]
        if not context.alive:
            raise PartyLost(name, "its process is gone")
        return context

    # --- computes and time ---

    async def sleep(self, name: str, seconds: float, key: str | None) -> None:
        """Wait on the virtual clock; a keyed wait found in a restored snapshot ends when it was to end."""
        done: asyncio.Future[None] = self.loop.create_future()
        if key is None:
            self.loop.call_at_keyed(self.loop.time() + seconds, name, "sleep", finish, done)
            with self.passing_wait():
                await done
            return
        timers = self._timers_of(name)
        due = timers.setdefault(key, self.loop.time() + seconds)
        self.loop.call_at_keyed(due, name, key, finish, done)
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
        return self.contexts[name].timers

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Add to the timeline; waits are summed for `usage`."""
        if kind == "wait":
            self._idle_seconds += end - start
        if self.recorder is not None:
            self.recorder.record_span(actor, kind, label, start, end)

    # --- snapshots ---

    def _before_time_moves(self) -> bool:
        if self._failure is not None:
            return False
        self.wire.plan()
        if not self._wanted and self._stop_code is None:
            return False
        legal = not self.wire.calls and not self.num_passing_waits and not self.wire.arrivals
        if self._wanted and legal:
            wanted, self._wanted = self._wanted, []
            self._num_moves_wanted = 0
            for label, taken in wanted:
                if label is not None:
                    self._save(label)
                finish(taken)
            return True
        if self._stop_code is not None and legal and self.state.get("_timers"):  # the driver waits in one
            self._save("last")
            code, self._stop_code = self._stop_code or 1, None
            self.fail(Stopped(f"stopped at {self.loop.time():.6g} s of virtual time; a checkpoint is written", code))
            return True
        if self._wanted:
            self._num_moves_wanted += 1
            if self._num_moves_wanted > _MOST_MOVES_TO_A_CHECKPOINT:
                self.fail(Deadlock(f"no legal instant for a checkpoint by {self.loop.time():.6g} s: {self._waits()}"))
                return True
        return False

    def _waits(self) -> str:
        waits = [
            f"{call.receiver.name}.{call.path.endpoint.name} (called by {call.sender})"
            for call in self.wire.calls.values()
        ]
        if self.num_passing_waits:
            waits.append(f"{self.num_passing_waits} sleeps, timeouts, computes or payloads of loops")
        if self._wanted:
            waits.append("the driver's checkpoint")
        return "; ".join(waits) if waits else "the driver itself"

    def _save(self, label: str) -> None:
        if not self._keeps_snapshots:
            return
        actors = {name: context.capture() for name, context in sorted(self.contexts.items()) if context.alive}
        if self.deadline is not None and self._last_snapshot is not None:  # who comes back has its state of before
            lost = {name for name in self.contexts.keys() - actors.keys() if self.loss_policy(name) == "restart"}
            actors |= {name: frame for name, frame in self._last_snapshot.actors.items() if name in lost}
        driver = snapshots.seal_driver(
            {
                "now": self.loop.time(),
                "state": snapshots.pack(self.state, "the driver's state"),
                "ledger": self.ledger.state(),
                "spent": self.spent,
                "busy": self.cores.busy_seconds,
                "waiting": self._idle_seconds,
                "free_at": {pool: list(times) for pool, times in sorted(self.cores.free_at.items())},
            },
            actors,
        )
        self._last_snapshot = Snapshot(actors, driver)
        if self.recorder is not None:
            self.ledger.flush()  # what left before the checkpoint is on disk with it
            self.recorder.save_checkpoint(label, actors, driver)
        for name, frame in self.states.replaced(label, actors).items():
            self.contexts[name].states.drop(frame)

    def _restore_driver(self, resume: Snapshot) -> None:
        content, what = snapshots.unseal_driver(resume.driver), snapshots.DRIVERS
        self._resume = self._last_snapshot = resume
        self.resumed = True
        with snapshots.intact(what):
            now, self.spent, busy, waiting = (
                snapshots.amount(content[name], name, what) for name in ("now", "spent", "busy", "waiting")
            )
            self.loop.set_time(now)
            self.state = dict(snapshots.unpack(content["state"]))
            self.ledger.restore(snapshots.totals(content["ledger"], what))
            self.cores.busy_seconds, self._idle_seconds = busy, waiting
            latest = (now + busy) * (1 + 1e-9)  # no core has more before it than all of them were given
            self.cores.free_at = {
                pool: [snapshots.amount(time, "free_at", what, latest) for time in times]
                for pool, times in content["free_at"].items()
            }

    # --- faults ---

    def kill(self, name: str) -> None:
        """Lose an actor's process now: its waits end, its state is gone, what it was doing fails for its callers.

        It comes back with its state only in a run with `faults`, or whose recorder keeps checkpoints.
        """
        context = self.contexts[name]
        if not context.alive:
            return
        context.alive = False
        self.wire.lose(name)
        for background in list(context.tasks):
            background.cancel()
        lost = PartyLost(name, "its process is gone")
        policy = self.loss_policy(name)
        if policy == "stop":
            self.fail(lost)
            return
        note_loss(self, name, policy)
        task = self.loop.create_task(self._after_loss(name, policy))
        task.add_done_callback(self._loss_handled)

    async def _after_loss(self, name: str, policy: str) -> None:
        if policy == "restart":
            # rounds, and their checkpoints, go on meanwhile where the run says how long they wait
            wait = self.clock.sleep if self.deadline is None else asyncio.sleep
            await wait(self._restart_seconds)
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

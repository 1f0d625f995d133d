"""RayRuntime: actors in processes, placed and supervised by Ray; time is the wall clock.

    run.py ──spawn, call──▶ RayRuntime ──▶ ActorProcess (one per actor, or for several) ◀──socket / Ray──▶ ActorProcess

    who waits                      for what
    `start`, `respawn`             all new processes: prepared, loaded, open (`processes`)
    `checkpoint`                   the states of all processes; the protocol calls it when it has no call under way
    `record_round`, `settle`       the records of all processes
    a lost process's callers       nothing: they get `PartyLost`; what follows is `on_loss`'s policy of each actor

Ray never restarts an actor by itself: a fresh process gets the constructor's arguments and the last snapshot's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, Unpack

import ray
from ray.util.metrics import Gauge

from fedactors.actors.remote import DRIVER
from fedactors.errors import BadInput, CallTimeout, FedactorsError, PartyLost, Stopped
from fedactors.messages.codec import encode_parts, message_types, type_name, wire_types
from fedactors.messages.ledger import Ledger, Usage
from fedactors.network.links import Network
from fedactors.runtime import calls, snapshots
from fedactors.runtime.addresses import greets, refuses
from fedactors.runtime.compute import WallClock
from fedactors.runtime.failures import UnawaitedCall, first_error, note_loss
from fedactors.runtime.interface import ActorSpec, CostModel, Runtime, RuntimeSettings, Snapshot, in_thread, is_in_loop
from fedactors.runtime.ray import cluster
from fedactors.runtime.ray.actor_process import Accounts, Drained, Settings, Used
from fedactors.runtime.ray.cleanup import DriverWatchdog, Reaper
from fedactors.runtime.ray.processes import (
    PLACEMENTS,
    Processes,
    by_process,
    labelled,
    raise_first,
    watch_services,
    within,
)
from fedactors.runtime.ray.transport import LocalTransport


class RunGauges:
    """Ray metrics of one run, for Prometheus or the dashboard: set after each round, labelled with the run's seed."""

    def __init__(self, seed: int) -> None:
        self._tags = {"seed": str(seed)}
        self._gauges: dict[str, Gauge] = {}

    def update(self, index: int, metrics: Mapping[str, Any], usage: Usage) -> None:
        """Set all gauges: the round, its metrics, and what the run has used."""
        self._set("round", "last round that was recorded", index)
        self._set("messages", "messages between actors", usage.messages)
        self._set("bytes", "bytes of arrays, texts and raw bytes between actors", usage.bytes)
        self._set("idle_seconds", "seconds that actors waited", usage.idle_seconds)
        self._set("cost_usd", "what traffic and hardware cost", usage.price)
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._set(f"metric_{name}", f"metric {name} of the last round", value)

    def _set(self, name: str, text: str, value: float) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
            gauge = self._gauges[name] = Gauge(f"fedactors_{clean}", description=text, tag_keys=("seed",))
        gauge.set(float(value), tags=self._tags)


T = TypeVar("T")
HEARTBEAT_TIMEOUT = 15.0
_CLOSE_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_HANDSHAKE_SECONDS = 2.0
_log = logging.getLogger(__name__)


class RayRuntime(Runtime):
    """The driver's side of a run on Ray.

    Args:
        address: "host:port" or "auto" of a running cluster; RAY_ADDRESS, else an embedded one, by default.
        num_cpus: cores that an embedded cluster offers (default: all).
        placement: how Ray's placement group lays the actors over hosts (one of `PLACEMENTS`; None: no group).
        labels: party or actor to the label (a custom Ray resource) that its hosts must have.
        network, costs: links and compute times to emulate.
        scale: wall seconds for each second of the actors' clocks, of links and of costs.
        emulate: whether to emulate the protocol's own links and costs where none are given.
        start_timeout: seconds within which all processes must be up.
        heartbeat_timeout: seconds without a heartbeat after which a process counts as lost.
        call_timeout: seconds within which every call must be answered.
        use_sockets: whether actors of one host talk directly; otherwise every call goes through Ray.
        settings: see `Runtime`.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        num_cpus: int | None = None,
        placement: str | None = None,
        labels: Mapping[str, str] | None = None,
        network: Network | None = None,
        costs: CostModel | None = None,
        scale: float = 1.0,
        emulate: bool = False,
        start_timeout: float = 300.0,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
        call_timeout: float = 3600.0,
        use_sockets: bool = True,
        **settings: Unpack[RuntimeSettings],
    ) -> None:
        super().__init__(**settings)
        if placement is not None and placement not in PLACEMENTS:
            raise BadInput(f"placement: {placement!r} is not allowed: use {', '.join(PLACEMENTS)}")
        self.network = network if network is not None else Network()
        self.ledger = Ledger()
        if not heartbeat_timeout > 0:
            raise BadInput(f"heartbeat timeout: {heartbeat_timeout} is not allowed: give a number of seconds above 0")
        if not scale > 0:
            raise BadInput(f"scale: {scale} is not allowed: give a number above 0")
        self._network_given = network is not None
        self._settings = Settings(
            seed=self.seed,
            start=0.0,
            offset=0.0,
            reproducible_noise=self.reproducible_noise,
            call_timeout=call_timeout,
            use_sockets=use_sockets,
            keep_rows=self.recorder is not None,
            network=network,
            costs=costs,
            scale=scale,
        )
        self._unawaited: UnawaitedCall
        self._emulate = emulate
        self._address = address
        self._num_cpus = num_cpus
        self._placement = placement
        self._labels = dict(labels or {})
        self._start_timeout = start_timeout
        self._heartbeat_timeout = heartbeat_timeout
        self._processes: Processes
        self._left: list[Any] = []
        self._accounts = Accounts()
        self._gauges: RunGauges | None = None
        self._driver_ledger = Ledger(self.recorder.ledger_sink if self.recorder is not None else None)
        self._wall_start = time.perf_counter()
        self._began: float | None = None
        self._is_sick = False
        """Whether Ray's own services are gone."""
        self._watchdog: DriverWatchdog | None = None
        self._reaper: Reaper | None = None
        self._resume: Snapshot | None = None
        self._offset = 0.0
        self._draining = asyncio.Lock()
        self._end: float | None = None
        self.num_cores = int(num_cpus or os.cpu_count() or 1)

    # --- the driver's side ---

    @property
    def processes(self) -> dict[str, int]:
        """Process id of each actor on its host; none before the first start."""
        return self._processes.pids if hasattr(self, "_processes") else {}

    def use_costs(self, costs: CostModel) -> None:
        if self._emulate and self._settings.costs is None:
            self._settings = replace(self._settings, costs=costs)

    def use_network(self, network: Network) -> None:
        if not self._network_given:
            self.network = network  # prices hold in any case
            if self._emulate:
                self._settings = replace(self._settings, network=network)

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        address = self._transport.address(receiver, DRIVER)
        path = calls.admit(address.endpoints, method, DRIVER, DRIVER, receiver, address.role, value)
        value, size = calls.leave(path, value, copy=False)
        self._driver_ledger.record(self.clock.now(), DRIVER, receiver, path.kind, type_name(value, method), size)
        return self._unawaited.track(self._transport.send(address, path, encode_parts((method, value))))

    async def start(self) -> None:
        self._actor_specs |= labelled(self._actor_specs, self._labels)
        actor_specs = self._take_new()
        self.states.check(self._actor_specs, {} if self._resume is None else self._resume.actors)
        firsts = (specs[0] for specs in by_process(self._actor_specs.values()).values())
        cluster.check_resources(firsts, await cluster.hosts())
        await self._bring_up(actor_specs, self._resume)
        if self._began is None:
            self._began = time.perf_counter()

    async def _bring_up(
        self, actor_specs: list[ActorSpec], state: Snapshot | None, among: list[cluster.Host] | None = None
    ) -> None:
        frames = state.actors if state is not None else {}
        await self._processes.bring_up(actor_specs, self._settings, frames, self._begin, among)

    def _begin(self) -> float:
        """Return when the run began: as on the virtual clock, starting processes and loading data is not its time."""
        if self._began is None:
            self._settings = replace(self._settings, start=time.time())
            self.clock = WallClock(self._settings.start, self._offset, self._settings.scale)
        return self._settings.start

    async def respawn(self, name: str) -> None:
        async with self._processes.changing:
            process = self._processes.process_of(name)
            names = [name]
            if process is not None:  # it is still there: all that its process hosts come back with it
                names = self._processes.names[process]
                await self._give_up(process)
            await self._bring_back(names)

    async def _bring_back(self, names: Sequence[str]) -> None:
        """Give actors that have none a process again; those that may share one do."""
        specs = [self._actor_specs[name] for name in names]
        known = await cluster.hosts()
        here = await cluster.answering(known)
        try:
            cluster.check_resources([each[0] for each in by_process(specs).values()], here)
        except BadInput as error:
            raise PartyLost(names[0], f"its process is gone, and no host can take it: {error}") from None
        await self._bring_up(specs, self._last_snapshot, None if here == known else here)

    async def _give_up(self, process: str) -> None:
        """End a process, and let nobody hear its actors any more."""
        names = self._processes.names[process]
        self._processes.retire(process)
        for name in names:
            self._accounts.retire(name)
        await self._processes.bar(names)

    async def checkpoint(self, label: str = "last") -> None:
        if self._is_due(label):
            await self._drain()
            frames = await self._processes.snapshots()
            self._last_snapshot = Snapshot(frames, self._capture_driver(frames))
            if self.recorder is not None:
                self.recorder.save_checkpoint(label, self._last_snapshot.actors, self._last_snapshot.driver)
                if self._reaper is not None and self.way_on:
                    self._reaper.advise(self.way_on)
            await self._processes.drop(self.states.replaced(label, self._last_snapshot.actors))
        if self._stop_code is not None:
            raise Stopped(f"stopped at {self.clock.now():.1f} s; a checkpoint is written", self._stop_code)

    def _capture_driver(self, frames: Mapping[str, bytes]) -> bytes:
        return snapshots.seal_driver(
            {
                "now": self.clock.now(),
                "state": snapshots.pack(self.state, "the driver's state"),
                "ledger": self.ledger.state(),
                "spent": self.spent,
                "busy": 0.0,
                "waiting": self._accounts.used().waiting,
                "free_at": {},
            },
            frames,
        )

    def usage(self) -> Usage:
        end = self._end if self._end is not None else time.perf_counter()
        run_seconds = end - self._began if self._began is not None else 0.0
        used = self._accounts.used()
        return self._usage(
            seconds=run_seconds / self._settings.scale + self._offset,
            wall_seconds=end - self._wall_start,
            cpu_utilisation=used.cpu / (run_seconds * self.num_cores) if run_seconds > 0 else 0.0,
            idle_seconds=used.waiting,
            overhead_seconds=used.overhead,
        )

    async def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        await super().record_round(index, metrics)
        if self._gauges is not None:
            self._gauges.update(index, metrics, self.usage())

    async def settle(self) -> None:
        await self._drain()

    async def _keep_current(self) -> None:
        """Ask for the processes' records every second while they are shown."""
        while self.watched:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.watched and self._began is not None:
                with contextlib.suppress(FedactorsError):  # who is lost is said elsewhere
                    await self._drain()

    async def _drain(self) -> None:
        async with self._draining:
            found = await self._processes.drained()
            self._take(found)

    def _take(self, records: Mapping[str, Drained]) -> None:
        for name, found in records.items():
            self._accounts.take(name, found)
            for text in found.refused:
                _log.warning("%s: refused: %s", name, text)
            self.privacy_records.extend(found.privacy)
            if self.recorder is not None:
                if found.rows:
                    self.recorder.ledger_sink(found.rows)
                for span in found.spans:
                    self.recorder.record_span(*span)
        self._driver_ledger.flush()
        self.ledger.restore(self._accounts.totals(self._driver_ledger.state()))

    # --- life ---

    def request_stop(self, exit_code: int) -> None:
        self._stop_code = exit_code
        loop = getattr(self, "_loop", None)
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(self._stop_now)

    def _stop_now(self) -> None:
        # the last snapshot is of the last epoch's end: an epoch that was cut is run again
        if self._last_snapshot is not None:
            text = "its last checkpoint is written"
        else:
            text = "before its first checkpoint, so that nothing can be resumed"
        self.fail(Stopped(f"stopped at {self.clock.now():.1f} s, {text}", self._stop_code or 1))

    def execute(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None = None) -> T:
        address = self._address or os.environ.get("RAY_ADDRESS")
        if not ray.is_initialized():
            self.tell(f"joining Ray at {address}" if address else "starting Ray")
        joined = cluster.join(self._address, self._num_cpus, self.tell)
        # an embedded cluster has nobody who scrapes metrics
        self._gauges = RunGauges(self.seed) if address else None
        try:
            self._watchdog, self._reaper = joined.watchdog, joined.reaper
            self.num_cores = int(ray.cluster_resources().get("CPU", self.num_cores)) or 1
            run = partial(asyncio.run, self._run(main, resume))
            return in_thread(run) if is_in_loop() else run()
        finally:
            cluster.leave(joined, self._left, is_sick=self._is_sick)

    async def _run(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None) -> T:
        self._loop = asyncio.get_running_loop()
        self._wall_start = time.perf_counter()
        if resume is not None:
            content = snapshots.unseal_driver(resume.driver)
            self._resume = self._last_snapshot = resume
            self.resumed = True
            with snapshots.intact(snapshots.DRIVERS):
                self._offset, self.spent, waiting = (
                    snapshots.amount(content[name], name, snapshots.DRIVERS) for name in ("now", "spent", "waiting")
                )
                self.state = dict(snapshots.unpack(content["state"]))
                earlier = snapshots.totals(content["ledger"], snapshots.DRIVERS)
                self._accounts = Accounts(earlier=earlier, before=Used(waiting=waiting))
        script = sys.modules["__main__"]
        self._settings = settings = replace(
            self._settings,
            start=time.time(),
            offset=self._offset,
            script_types=(*message_types(script), *wire_types(script)),
            checkpoint="" if resume is None else resume.folder,
        )
        self.clock = WallClock(settings.start, self._offset, settings.scale)
        self._services = await cluster.services()
        if self._watchdog is not None:
            self._watchdog.watch(self._services)
        host = ray.get_runtime_context().get_node_id()
        self._unawaited = UnawaitedCall(self.fail, lambda name: self.loss_policy(name) != "stop")
        self._loop.set_exception_handler(self._unawaited)
        self._transport = LocalTransport(DRIVER, host, settings.use_sockets, settings.call_timeout, self._unawaited)
        self._processes = Processes(
            self._transport,
            placement=self._placement,
            start_timeout=self._start_timeout,
            call_timeout=settings.call_timeout,
            heartbeat_timeout=self._heartbeat_timeout,
            states=self.states,
            lost=self._lose,
            failed=self.fail,
            tell=lambda text: self.tell(text),
        )
        if self._stop_code is not None:
            raise Stopped("stopped before the first step", self._stop_code)

        async def driver() -> T:
            return await main()

        main_task: asyncio.Task[T] = asyncio.get_running_loop().create_task(driver())
        self._main = main_task
        services = asyncio.ensure_future(watch_services(self._services, self._heartbeat_timeout))
        services.add_done_callback(self._cluster_is_gone)
        looking = asyncio.ensure_future(self._keep_current())
        try:
            result = await main_task
        except asyncio.CancelledError:
            if self._failure is None:
                raise
            raise self._failure from None
        except BaseExceptionGroup as group:
            raise first_error(group) from None
        except PartyLost:
            # the watcher knows whether this is the failure that stops the run
            if self._failure is None:
                await self._check_services()
            if self._failure is not None:
                raise self._failure from None
            raise
        else:
            await asyncio.gather(self._unawaited.last_answers(), self._processes.last_answers())
            self._unawaited.check()
        finally:
            services.cancel()
            self.watched = False
            if self._draining.locked():  # what is on its way here is here once only
                await asyncio.wait({looking}, timeout=_CLOSE_SECONDS)
            looking.cancel()
            errors = await self._finish()
        if self._failure is not None:
            raise self._failure
        raise_first(errors)
        return result

    def _cluster_is_gone(self, watched: asyncio.Task[PartyLost]) -> None:
        if not watched.cancelled():
            self._is_sick = True
            self.fail(watched.exception() or watched.result())

    async def _check_services(self) -> bool:
        """Stop the run if a service of Ray's own is no more, which takes processes with it; return whether all live.

        One that takes a while to answer is not gone.
        """
        refused = await asyncio.gather(*(refuses(address) for address in self._services.values()))
        for (what, address), is_gone in zip(self._services.items(), refused, strict=True):
            if is_gone:
                self._is_sick = True
                self.fail(PartyLost("Ray", f"its {what} at {address} is gone"))
        return not self._is_sick

    async def _finish(self) -> list[bytes | None]:
        """Close everything; return, encoded, what failed at the actors' ends."""
        self._is_closing = True
        if self._failure is not None and not self._is_sick:
            heartbeats = (within(_HANDSHAKE_SECONDS, partial(greets, address)) for address in self._services.values())
            self._is_sick = not all(await asyncio.gather(*heartbeats))
        errors: list[bytes | None] = []
        self._end = time.perf_counter()
        self._processes.stop_watching()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._drain()
                errors = await self._processes.close()
        except (TimeoutError, CallTimeout):
            pass  # a process that does not answer any more is killed with the others
        if self.recorder is not None:
            self.recorder.privacy(self.privacy_records)
        self._left = self._processes.forget(is_sick=self._is_sick)
        self._transport.close()
        return errors

    async def _lose(self, loss: PartyLost) -> None:
        """Do what the protocol's policy says about each actor of a process that is gone, or that hangs."""
        if self._is_closing:
            return
        if not await self._check_services():
            return  # no fresh process can be had
        process = loss.party
        policies = {name: self.loss_policy(name) for name in self._processes.names[process]}
        if (stopping := next((name for name, policy in policies.items() if policy == "stop"), None)) is not None:
            self._processes.retire(process)
            self.fail(loss if stopping == process else PartyLost(stopping, loss.message))
            return
        for name, policy in policies.items():
            note_loss(self, name, policy)
        back = [name for name, policy in policies.items() if policy == "restart"]
        then = "the run goes on" if self._loss_handler is not None else "the run goes on without it"
        _log.warning("%s; %s", loss, "a fresh process takes its place" if back else then)
        try:
            async with self._processes.changing:
                await self._give_up(process)
                if back:
                    await self._bring_back(back)
            if self._loss_handler is not None:
                for name in policies:
                    await self._loss_handler(name)
        except Exception as error:
            self.fail(error)

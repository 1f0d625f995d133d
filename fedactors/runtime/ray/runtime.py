"""RayRuntime: every actor a process, placed and supervised by Ray; time is the wall clock.

    run.py ──spawn, call──▶ RayRuntime ──▶ ActorProcess (one per actor) ◀──fast lane / Ray──▶ ActorProcess

A pending `watch` per actor reports a dead process at once; what follows is `on_loss`'s policy. Ray never restarts an
actor by itself: a fresh process gets the constructor's arguments again and the state of the last snapshot.
Snapshots are taken where the protocol calls `checkpoint`, when it has no call under way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedactors.errors import BadInput, CallTimeout, PartyLost, Stopped
from fedactors.network.codec import encode_parts, measure, message_types, plain_types, type_name
from fedactors.network.ledger import DRIVER as DRIVER_KIND
from fedactors.network.ledger import Ledger
from fedactors.network.links import Network
from fedactors.remote import DRIVER, doors
from fedactors.runtime import snapshot
from fedactors.runtime.base import (
    Casting,
    CostModel,
    RecorderLike,
    Runtime,
    Snapshot,
    UnawaitedCall,
    Usage,
    first_error,
)
from fedactors.runtime.ray import cluster
from fedactors.runtime.ray.gauges import RunGauges
from fedactors.runtime.ray.lanes import Address, Lanes, decode_reply
from fedactors.runtime.ray.placement import cause, check_strict, labelled
from fedactors.runtime.ray.process import ActorProcess, Settings, WallClock
from fedactors.runtime.ray.transport import ERROR, ticket

T = TypeVar("T")
_MAX_CONCURRENCY = 10_000
PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class RayRuntime(Runtime):
    """See the module.

    Args:
        address: "host:port" or "auto" of a running cluster; RAY_ADDRESS, else an embedded one, by default.
        num_cpus: cores that an embedded cluster offers (default: all).
        placement: how Ray's placement group lays the actors over hosts (one of `PLACEMENTS`; None: no group).
        labels: party or actor to the label (a custom Ray resource) that its hosts must have.
        network, costs: links and compute times to emulate.
        scale: wall seconds for each second of the actors' clocks, of links and of costs.
        emulate: whether to emulate the protocol's own links and costs where none are given.
        start_timeout: seconds within which all processes must be up.
        call_timeout: seconds within which every call must be answered.
        use_sockets: whether actors of one host talk directly; otherwise every call goes through Ray.
        seed, recorder, checkpoint_every, reproducible_noise: see `Runtime`.
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
        start_timeout: float = 180.0,
        call_timeout: float = 3600.0,
        use_sockets: bool = True,
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
        if placement is not None and placement not in PLACEMENTS:
            raise BadInput(f"placement: {placement!r} is not allowed: use {', '.join(PLACEMENTS)}")
        self.network = network if network is not None else Network()
        self.ledger = Ledger()
        self.processes: dict[str, int] = {}
        """Process id of each actor on its host."""
        if not scale > 0:
            raise BadInput(f"scale: {scale} is not allowed: give a number above 0")
        self._emulated = (network, costs, scale)
        self._settings: Settings
        self._emulate = emulate
        self._address = address
        self._num_cpus = num_cpus
        self._placement = placement
        self._labels = dict(labels or {})
        self._start_timeout = start_timeout
        self._call_timeout = call_timeout
        self._use_sockets = use_sockets
        self._actors: dict[str, Any] = {}
        """Processes that are prepared: they may be asked for records, snapshots and calls."""
        self._starting: dict[str, Any] = {}
        """Processes that are not prepared yet: nothing may be asked of them but to prepare."""
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._gone_totals: list[tuple[str, str, str, str, int, int]] = []
        self._process_totals: dict[str, list[tuple[str, str, str, str, int, int]]] = {}
        self._resumed_totals: list[tuple[str, str, str, str, int, int]] = []
        self._gauges: RunGauges | None = None
        self._own_ledger = Ledger(recorder.ledger_sink if recorder is not None else None)
        self._losing = asyncio.Lock()
        self._waiting: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._outside: dict[str, float] = {}
        self._keys: dict[str, bytes] = {}
        self._cpu_before = 0.0
        self._wall_start = time.perf_counter()
        self._began: float | None = None
        self._groups: list[Any] = []
        self._places: dict[str, dict[str, Any]] = {}
        self._failure: BaseException | None = None
        self._main: asyncio.Task[Any] | None = None
        self._closing = False
        self._resume: Snapshot | None = None
        self._offset = 0.0
        self._end: float | None = None
        self._cluster_cpus = float(num_cpus or os.cpu_count() or 1)

    # --- the driver's side ---

    def use_costs(self, costs: CostModel) -> None:
        if self._emulate and self._settings.costs is None:
            self._settings = replace(self._settings, costs=costs)

    def use_network(self, network: Network) -> None:
        if self._emulated[0] is None:
            self.network = network  # prices hold in any case
            if self._emulate:
                self._settings = replace(self._settings, network=network)

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        address = self._lanes.address(receiver, DRIVER)
        door = address.doors.check(method, DRIVER, DRIVER, receiver, value)
        size = measure(value)
        self._own_ledger.record(self.clock.now(), DRIVER, receiver, DRIVER_KIND, type_name(value, method), size)
        return self._lanes.send(address, door, encode_parts((method, value)))

    async def start(self) -> None:
        self._castings |= labelled(self._castings, self._labels)
        castings = self._take_new()
        cluster.check_resources(self._castings.values())
        await self._bring_up(castings, self._resume)
        if self._began is None:
            self._began = time.perf_counter()

    async def _bring_up(self, castings: list[Casting], state: Snapshot | None) -> None:
        options = await self._placed(castings)
        for casting in castings:
            remote = ray.remote(ActorProcess).options(
                max_restarts=0, max_concurrency=_MAX_CONCURRENCY, **options[casting.name]
            )
            key = self._keys[casting.name] = secrets.token_bytes(32)
            self._starting[casting.name] = remote.remote(casting, self._settings, key)
        fresh: dict[str, Address] = {}
        places = await self._all(castings, self._starting, lambda actor, own, _: actor.prepare.remote(own))
        for casting, (host, path, pid) in zip(castings, places, strict=True):
            actor = self._actors[casting.name] = self._starting.pop(casting.name)
            own = self._ticket(casting.name)
            fresh[casting.name] = Address(
                casting.name, casting.cls.role, host, path, pid, actor, doors(casting.cls), own
            )
            self.processes[casting.name] = pid
        others = [self._castings[name] for name in self._lanes.book if name in self._actors and name not in fresh]
        self._lanes.update(fresh)
        await self._all(castings, self._actors, lambda actor, _, name: self._introduce(actor, name, self._lanes.book))
        # one of them may be lost too by now: its own watcher sees to that
        told = [self._introduce(self._actors[other.name], other.name, fresh) for other in others]
        await asyncio.gather(*told, return_exceptions=True)
        for casting in castings:
            self._watchers[casting.name] = asyncio.ensure_future(self._watch(casting.name))
        frames = state.actors if state is not None else {}
        self._raise_first(
            await self._all(castings, self._actors, lambda actor, own, name: actor.load.remote(own, frames.get(name)))
        )
        if self._began is None:
            # the run begins here, as on the virtual clock: starting processes and loading data is not its time
            self._settings = replace(self._settings, start=time.time())
            self.clock = WallClock(self._settings.start, self._offset, self._settings.scale)
        start = self._settings.start
        self._raise_first(await self._all(castings, self._actors, lambda actor, own, _: actor.open.remote(own, start)))

    def _ticket(self, name: str, caller: str = DRIVER) -> bytes:
        return ticket(self._keys[name], caller)

    def _introduce(self, actor: Any, name: str, book: Mapping[str, Address]) -> Any:
        """Tell an actor where others are, with the tickets that let it call them in its own name."""
        own = {other: replace(there, ticket=self._ticket(other, name)) for other, there in book.items()}
        return actor.meet.remote(self._ticket(name), own)

    async def _placed(self, castings: list[Casting]) -> dict[str, dict[str, Any]]:
        if self._placement is None:
            return {c.name: c.resources.ray_options() for c in castings}
        if all(c.name in self._places for c in castings):  # brought back: its place is still reserved
            return self._places
        # a bundle may not be empty; a sliver of a core stands for "no reservation"
        bundles = [c.resources.demand() or {"CPU": 0.001} for c in castings]
        check_strict(castings, self._placement, [node["Resources"] for node in ray.nodes() if node["Alive"]])
        group = placement_group(bundles, strategy=self._placement)
        self._groups.append(group)
        try:
            async with asyncio.timeout(self._start_timeout):
                await group.ready()
        except TimeoutError:
            raise BadInput(
                f"placement: {self._placement} of {len(bundles)} actors could not be met within "
                f"{self._start_timeout:g} s; the cluster has {len(ray.nodes())} host(s)"
            ) from None
        self._places |= {
            c.name: {
                **(c.resources.ray_options() if c.resources.demand() else {"num_cpus": 0.001}),
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            }
            for index, c in enumerate(castings)
        }
        return self._places

    async def _all(
        self, castings: list[Casting], processes: Mapping[str, Any], ask: Callable[[Any, bytes, str], Any]
    ) -> list[Any]:
        async def one(name: str) -> Any:
            try:
                async with asyncio.timeout(self._start_timeout):
                    return await ask(processes[name], self._ticket(name), name)
            except TimeoutError:
                raise CallTimeout(name, f"its process was not up within {self._start_timeout:g} s") from None
            except RayActorError as error:
                raise PartyLost(name, f"its process died while it was being started{cause(error)}") from None

        return list(await asyncio.gather(*(one(c.name) for c in castings)))

    @staticmethod
    def _raise_first(errors: list[bytes | None]) -> None:
        for error in errors:
            if error is not None:
                decode_reply(ERROR, error)

    async def respawn(self, name: str) -> None:
        async with self._losing:  # no snapshot is taken of an actor that is half way back
            self._retire(name)
            await self._bring_up([self._castings[name]], self._last_snapshot)

    def _retire(self, name: str) -> None:
        watcher = self._watchers.pop(name, None)
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()
        actor = self._actors.pop(name, None)
        if actor is not None:
            ray.kill(actor, no_restart=True)
        self._remove_folder(name)
        self._gone_totals.extend(self._process_totals.pop(name, []))
        self._cpu_before += self._cpu.pop(name, 0.0)

    def _remove_folder(self, name: str) -> None:
        """Remove what a killed process of this host left: the folder of its socket."""
        address = self._lanes.book.get(name)
        if address is not None and self._lanes.is_near(address):
            shutil.rmtree(Path(address.socket).parent, ignore_errors=True)

    async def checkpoint(self, label: str = "last") -> None:
        self._num_checkpoints += 1
        due = self.checkpoint_every > 0 and self._num_checkpoints % self.checkpoint_every == 0
        if due or label != "last" or self._stop_code is not None:
            await self._drain()
            self._last_snapshot = Snapshot(await self._capture_actors(), self._capture_driver())
            if self.recorder is not None:
                self.recorder.save_checkpoint(label, self._last_snapshot.actors, self._last_snapshot.driver)
        if self._stop_code is not None:
            raise Stopped(f"stopped at {self.clock.now():.1f} s; a checkpoint is written", self._stop_code)

    async def _capture_actors(self) -> dict[str, bytes]:
        """Return every actor's frame; when one is lost meanwhile, all are asked again once that was dealt with."""
        while True:
            async with self._losing, asyncio.timeout(self._call_timeout):  # none is half way back
                names, watchers = sorted(self._actors), dict(self._watchers)
                asked = [self._actors[name].snapshot.remote(self._ticket(name)) for name in names]
                frames = await asyncio.gather(*asked, return_exceptions=True)
            lost = [name for name, found in zip(names, frames, strict=True) if isinstance(found, RayActorError)]
            for found in frames:
                if isinstance(found, BaseException) and not isinstance(found, RayActorError):
                    raise found
            if not lost:
                return {name: cast(bytes, found) for name, found in zip(names, frames, strict=True)}
            await asyncio.wait([watchers[name] for name in lost])

    def _capture_driver(self) -> bytes:
        return snapshot.seal(
            {
                "now": self.clock.now(),
                "state": snapshot.pack(self.state, "the driver's state"),
                "ledger": self.ledger.state(),
                "spent": self.spent,
                "busy": 0.0,
                "waiting": sum(self._waiting.values()),
                "free_at": {},
            }
        )

    def usage(self) -> Usage:
        end = self._end if self._end is not None else time.perf_counter()
        run_seconds = end - self._began if self._began is not None else 0.0
        cpu = sum(self._cpu.values()) + self._cpu_before
        return Usage(
            messages=self.ledger.messages(),
            bytes=self.ledger.bytes(),
            header_bytes=self.ledger.header_bytes(),
            seconds=run_seconds / self._emulated[2] + self._offset,
            wall_seconds=end - self._wall_start,
            cpu_utilisation=cpu / (run_seconds * self._cluster_cpus) if run_seconds > 0 else 0.0,
            waiting_seconds=sum(self._waiting.values()),
            outside_seconds=sum(self._outside.values()),
            price=self.ledger.price(self.network.link) + self.spent,
        )

    async def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        await super().record_round(index, metrics)
        if self._gauges is not None:
            self._gauges.update(index, metrics, self.usage())

    async def settle(self) -> None:
        await self._drain()

    async def _drain(self) -> None:
        async def ask(name: str, actor: Any) -> Any:
            try:
                return await actor.drain.remote(self._ticket(name))
            except RayActorError:
                return None  # it is gone, and what it had recorded since the last time with it

        asked = {name: asyncio.ensure_future(ask(name, actor)) for name, actor in self._actors.items()}
        if asked:
            await asyncio.wait(asked.values(), timeout=self._call_timeout)
        for name, answer in asked.items():
            if not answer.done():
                answer.cancel()
                raise CallTimeout(name, f"its records did not come within {self._call_timeout:g} s")
            found = answer.result()
            if found is None:
                continue
            self._process_totals[name] = found.totals
            self._waiting[name] = found.waiting_seconds
            self._cpu[name] = found.cpu_seconds
            self._outside[name] = found.outside_seconds
            for text in found.refused:
                logging.getLogger(__name__).warning("%s: refused: %s", name, text)
            self.privacy_records.extend(found.privacy)
            if self.recorder is not None:
                if found.rows:
                    self.recorder.ledger_sink(found.rows)
                for span in found.spans:
                    self.recorder.record_span(*span)
        self._own_ledger.flush()
        self._sum_ledger()

    def _sum_ledger(self) -> None:
        merged: dict[tuple[str, str, str, str], list[int]] = {}
        parts = [self._resumed_totals, self._gone_totals, self._own_ledger.state(), *self._process_totals.values()]
        for part in parts:
            for s, r, k, t, messages, num_bytes in part:
                total = merged.setdefault((s, r, k, t), [0, 0])
                total[0] += messages
                total[1] += num_bytes
        self.ledger.restore([(*key, messages, size) for key, (messages, size) in sorted(merged.items())])

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
            text = "before its first checkpoint"
        self.fail(Stopped(f"stopped at {self.clock.now():.1f} s, {text}", self._stop_code or 1))

    def execute(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None = None) -> T:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        ours = cluster.join(self._address, self._num_cpus)
        # an embedded cluster has nobody who scrapes metrics
        self._gauges = RunGauges(self.seed) if self._address or os.environ.get("RAY_ADDRESS") else None
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)  # Ray puts its own in their place
        try:
            self._cluster_cpus = float(ray.cluster_resources().get("CPU", self._cluster_cpus))
            return asyncio.run(self._run(main, resume))
        finally:
            cluster.leave(ours, [*self._actors.values(), *self._starting.values()])
            self._actors.clear()
            self._starting.clear()

    async def _run(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None) -> T:
        self._loop = asyncio.get_running_loop()
        self._wall_start = time.perf_counter()
        if resume is not None:
            content = snapshot.unseal(resume.driver, "the checkpoint of the driver")
            self._resume = self._last_snapshot = resume
            self.resumed = True
            self._offset = content["now"]
            self.state = snapshot.unpack(content["state"])
            self.spent = content["spent"]
            self._resumed_totals = list(content["ledger"])
            self._waiting["before"] = content["waiting"]
        network, costs, scale = self._emulated
        script = sys.modules["__main__"]
        start = time.time()
        self.clock = WallClock(start, self._offset, scale)
        self._settings = Settings(
            seed=self.seed,
            start=start,
            offset=self._offset,
            reproducible_noise=self.reproducible_noise,
            call_timeout=self._call_timeout,
            use_sockets=self._use_sockets,
            keep_rows=self.recorder is not None,
            network=network,
            costs=costs,
            scale=scale,
            script_types=(*message_types(script), *plain_types(script)),
        )
        host = ray.get_runtime_context().get_node_id()
        unawaited = UnawaitedCall(self.fail, lambda name: self.loss_policy(name) != "stop")
        self._loop.set_exception_handler(unawaited)
        self._lanes = Lanes(DRIVER, host, self._use_sockets, self._call_timeout, unawaited)
        if self._stop_code is not None:
            raise Stopped("stopped before the first step", self._stop_code)

        async def driver() -> T:
            return await main()

        main_task: asyncio.Task[T] = asyncio.get_running_loop().create_task(driver())
        self._main = main_task
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
            if self._failure is not None:
                raise self._failure from None
            raise
        else:
            unawaited.check()
        finally:
            errors = await self._finish()
        if self._failure is not None:
            raise self._failure
        self._raise_first(errors)
        return result

    async def _finish(self) -> list[bytes | None]:
        """Close everything; return, encoded, what failed at the actors' ends."""
        self._closing = True
        errors: list[bytes | None] = []
        self._end = time.perf_counter()
        for watcher in self._watchers.values():
            watcher.cancel()
        try:
            async with asyncio.timeout(10.0):
                await self._drain()
                closing = (actor.close.remote(self._ticket(name)) for name, actor in self._actors.items())
                found = await asyncio.gather(*closing, return_exceptions=True)
                errors = [error for error in found if not isinstance(error, BaseException)]
        except TimeoutError:
            pass  # a process that does not answer any more is killed with the others
        for group in self._groups:
            remove_placement_group(group)
        if self.recorder is not None:
            self.recorder.privacy(self.privacy_records)
        for name in self._lanes.book:
            self._remove_folder(name)
        self._lanes.close()
        return errors

    def fail(self, error: BaseException) -> None:
        """Stop the run with its first failure."""
        if self._failure is None and not self._closing:
            self._failure = error
            if self._main is not None:
                self._main.cancel()

    async def _watch(self, name: str) -> None:
        actor = self._actors[name]
        try:
            error = await actor.watch.remote(self._ticket(name))
        except RayActorError:
            if not self._closing:
                await self._lose(name)
            return
        try:
            decode_reply(ERROR, error)
        except Exception as failure:
            self.fail(failure)

    async def _lose(self, name: str) -> None:
        policy = self.loss_policy(name)
        if policy == "stop":
            self.fail(PartyLost(name, "its process is gone"))
            return
        what = "a fresh process takes its place" if policy == "restart" else "the run goes on without it"
        logging.getLogger(__name__).warning("%s: its process was lost; %s", name, what)
        try:
            async with self._losing:
                self._retire(name)
                if policy == "restart":
                    await self._bring_up([self._castings[name]], self._last_snapshot)
            if self._loss_handler is not None:
                await self._loss_handler(name)
        except Exception as error:
            self.fail(error)

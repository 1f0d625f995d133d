"""The life of a run's processes on Ray, as the driver sees it.

    created ─prepare─▶ prepared ─meet, load─▶ loaded ─open─▶ open ─▶ … ─▶ lost | closed

    who waits            for what                          until
    driver, to start     each step of all processes        `start_timeout`, or one of them is silent
    driver, for a loss   `watch`, which ends with Ray's    the process dies
                         word on the process
                         a heartbeat (`beat`)              none comes within the heartbeat timeout: stopped, hung, or
                         cut off

Nothing is asked of a process before its state allows it. Heartbeats come from a thread of their own, so a long
computation is no silence. While a process starts, it loads libraries, during which no thread of its interpreter runs.
So where one that is starting gives no heartbeat, its machine is asked: if it computes or waits for a core or a disk,
it goes on. What follows a loss is not decided here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import shutil
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from fedactors.actors.remote import DRIVER, endpoints
from fedactors.errors import BadInput, CallTimeout, PartyLost
from fedactors.runs.folder import is_here
from fedactors.runs.party_states import StateLocations, is_reference
from fedactors.runs.storage import start_of
from fedactors.runtime.addresses import greets
from fedactors.runtime.failures import decode_reply
from fedactors.runtime.interface import ActorSpec
from fedactors.runtime.ray import cluster
from fedactors.runtime.ray.actor_process import HEARTBEAT_TIMEOUT, ActorProcess, Drained, Settings
from fedactors.runtime.ray.transport import Address, LocalTransport, pack, ticket
from fedactors.runtime.snapshots import object_at, objects_in

_LOOKS = 10
"""At a heartbeat that is waited for."""
_WATCHED_SECONDS = 1.0
_AT_WORK = ("R", "D")
"""States of a thread that runs or waits for a core, and that waits for a disk."""
_STOPPED = ("T", "t")


async def within(seconds: float, beat: Callable[[], Awaitable[Any]]) -> bool:
    """Ask for a heartbeat and say whether it comes in time; a sender known to be gone is somebody else's business.

    The time is that in which this process ran: one that was stopped, or whose machine slept, has waited for nobody.
    """

    async def come() -> None:
        with suppress(RayError):
            await beat()

    coming = asyncio.ensure_future(come())
    try:
        for _ in range(_LOOKS):
            if (await asyncio.wait({coming}, timeout=seconds / _LOOKS))[0]:
                return True
        return False
    finally:
        coming.cancel()


async def is_at_work(process: Mapping[str, Any]) -> bool | None:
    """Say whether a process (see `runs.folder.this_process`) computes, or would if it had a core or its disk.

    None: it is on another machine.
    """
    if not is_here(process):
        return None
    num_busy = 0
    for _ in range(_LOOKS):
        states = _states(process["pid"])
        if start_of(process["pid"]) != process["start"] or any(state in _STOPPED for state in states):
            return False
        num_busy += any(state in _AT_WORK for state in states)
        await asyncio.sleep(_WATCHED_SECONDS / _LOOKS)
    return num_busy > _LOOKS / 2  # threads of Ray's own wake up now and then in any process


def _states(pid: int) -> list[str]:
    """Return the state of each thread of a process, as ``proc(5)`` has them."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            found.append(thread.read_text().rpartition(")")[2].split()[0])
    return found


async def watch_services(addresses: Mapping[str, str], heartbeat_timeout: float) -> PartyLost:
    """Return the loss of one of Ray's own services (what, address); Ray would wait a minute, then end this process."""
    while True:
        heartbeats = (within(heartbeat_timeout, partial(greets, address)) for address in addresses.values())
        for (what, address), lives in zip(addresses.items(), await asyncio.gather(*heartbeats), strict=True):
            if not lives:
                return PartyLost("Ray", f"its {what} at {address} gave no heartbeat for {heartbeat_timeout:g} s")
        await asyncio.sleep(heartbeat_timeout / 3)


def by_process(actor_specs: Iterable[ActorSpec]) -> dict[str, list[ActorSpec]]:
    """Return the actors of each process; it is named as the first of them, and asks what one of them asks."""
    groups: dict[Any, list[ActorSpec]] = {}
    for spec in actor_specs:
        shared = (spec.process, *sorted(spec.resources.demand().items()))
        groups.setdefault(shared if spec.process else spec.name, []).append(spec)
    return {specs[0].name: specs for specs in groups.values()}


def and_others(names: Sequence[str]) -> str:
    """Return whom a process hosts beside the first, in words; nothing for one actor."""
    number = len(names) - 1
    return f", with {number:,} more actor{'s' if number > 1 else ''}," if number else ""


_SLIVER = 0.001
"""Of a label: enough to be placed by it, and it is left to others."""


_HEAD = "node:__internal_head__"


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in sorted(resources.items()))


def labelled(actor_specs: Mapping[str, ActorSpec], labels: Mapping[str, str]) -> dict[str, ActorSpec]:
    """Return the actor_specs, each asking for the label that was given for its name or its party.

    Raises:
        BadInput: a label for a party that does not exist.
    """
    for party in labels:
        if not any(party in (name, name.partition("/")[0]) for name in actor_specs):
            parties = dict.fromkeys(name.partition("/")[0] for name in actor_specs)
            raise BadInput(f"--placement: {party!r} is not allowed: the parties are {', '.join(parties)}")
    made = {}
    for name, actor_spec in actor_specs.items():
        label = labels.get(name, labels.get(name.partition("/")[0]))  # an actor's own comes before its party's
        wanted = {} if label is None else {label: _SLIVER}
        asked = dataclasses.replace(actor_spec.resources, labels={**wanted, **actor_spec.resources.labels})
        made[name] = dataclasses.replace(actor_spec, resources=asked) if wanted else actor_spec
    return made


def check_strict(actor_specs: Sequence[ActorSpec], strategy: str, hosts: Sequence[Mapping[str, float]]) -> None:
    """Raise `BadInput` when a strict strategy of Ray's cannot be met by hosts of these resources; Ray would wait."""
    demands = [specs[0].resources.demand() for specs in by_process(actor_specs).values()]
    if strategy == "STRICT_SPREAD" and len(demands) > len(hosts):
        raise BadInput(
            f"--spread: strict-spread wants a host for each of the {len(demands)} actors; the cluster has {len(hosts)} "
            "(spread lays them out as far as hosts go)"
        )
    if strategy == "STRICT_PACK":
        names = sorted({name for demand in demands for name in demand})
        asked = {name: sum(demand.get(name, 0.0) for demand in demands) for name in names}
        if not any(all(host.get(name, 0.0) + 1e-9 >= amount for name, amount in asked.items()) for host in hosts):
            listed = ", ".join(f"{name}={amount:g}" for name, amount in asked.items())
            raise BadInput(f"--spread: strict-pack wants all actors on one host, which asks {listed}; no host has that")


def cause(error: Exception) -> str:
    """Return, in brackets, why an actor could not be built (say, a module that its host lacks); Ray says it last."""
    lines = [line.strip() for line in str(error).splitlines() if "Error: " in line]
    return f" ({lines[-1]})" if lines else ""


_MAX_CONCURRENCY = 10_000
_FAR_TIMEOUTS = 4
"""Leases without a sign after which a process that is starting counts as lost, of which nothing else is seen here."""
PLACEMENTS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class Processes:
    """All processes of a run.

    Args:
        transport: the driver's ways to them.
        placement: how Ray's placement group lays them over hosts (one of `PLACEMENTS`; None: no group).
        start_timeout: seconds within which a process must be up.
        call_timeout: seconds within which it must answer the driver.
        heartbeat timeout: seconds without a heartbeat after which it counts as lost.
        states: where the actors' snapshots are kept.
        lost: is told of each process that is lost, once.
        failed: is told when something that goes on by itself in a process failed.
    """

    def __init__(
        self,
        transport: LocalTransport,
        *,
        placement: str | None,
        start_timeout: float,
        call_timeout: float,
        heartbeat_timeout: float,
        states: StateLocations,
        lost: Callable[[PartyLost], Awaitable[None]],
        failed: Callable[[BaseException], None],
        tell: Callable[[str], None],
    ) -> None:
        self.pids: dict[str, int] = {}
        """Process id of each actor on its host."""
        self.reports: dict[str, dict[str, Any]] = {}
        """By process, what it says of itself: see `this_process`, and the digest of its ``source``."""
        self.changing = asyncio.Lock()
        """Held while a process is lost or brought back: nobody is half way then."""
        self.names: dict[str, list[str]] = {}
        """By process, the actors that it hosts; it is named as the first of them."""
        self._transport = transport
        self._placement = placement
        self._start_timeout = start_timeout
        self._call_timeout = call_timeout
        self._heartbeat_timeout = heartbeat_timeout
        self._states = states
        self._lost = lost
        self._failed = failed
        self._tell_phase = tell
        self._actors: dict[str, Any] = {}
        """By name, processes that are prepared: they may be asked for records, snapshots and calls."""
        self._starting: dict[str, Any] = {}
        """Processes that are not prepared yet."""
        self._coming_up: dict[str, dict[str, Any]] = {}
        """Processes that are not open yet: which they are, as soon as they have said so."""
        self._keys: dict[str, bytes] = {}
        self._incarnations: dict[str, int] = {}
        """By actor, how many processes were lost."""
        self._watchers: dict[str, list[asyncio.Task[None]]] = {}
        self._losses: dict[str, asyncio.Task[None]] = {}
        self._objects: dict[str, Any] = {}
        """By address, where Ray keeps objects that are data: each is sent once, to the actors that name it."""
        self._groups: list[Any] = []
        self._placements: dict[str, dict[str, Any]] = {}

    # --- coming up ---

    async def bring_up(
        self,
        actor_specs: list[ActorSpec],
        settings: Settings,
        frames: Mapping[str, bytes],
        begin: Callable[[], float],
        among: Sequence[cluster.Host] | None = None,
    ) -> None:
        """Bring processes to life: construct, introduce, load, restore, open.

        Args:
            actor_specs: who is to be hosted.
            settings: of the run.
            frames: snapshots by name, of those that go on from one.
            begin: called when all are loaded; returns the wall time at which the run began.
            among: the hosts to place them on, where Ray counts on others that do not answer.

        Raises:
            PartyLost, CallTimeout: naming the process that did not come up.
        """
        await self.prepare(actor_specs, settings, among)
        await self.load(actor_specs, frames)
        await self.open(actor_specs, begin())

    def admit(self, address: Address, key: bytes) -> None:
        """Let processes that are not there yet know of somebody who has this key and is hosted elsewhere."""
        self._keys[address.name] = key
        self._transport.update({address.name: address})

    @property
    def addresses(self) -> dict[str, Address]:
        """Where the processes are that are prepared."""
        return {name: there for name, there in self._transport.book.items() if self.process_of(name)}

    def process_of(self, name: str) -> str | None:
        """Return the process of an actor that is up; None: it has none."""
        there = self._transport.book.get(name)
        if there is None or there.process not in self._actors or name not in self.names[there.process]:
            return None
        return there.process

    async def prepare(
        self, actor_specs: list[ActorSpec], settings: Settings, among: Sequence[cluster.Host] | None = None
    ) -> None:
        """Construct and introduce; see `bring_up`."""
        groups = by_process(actor_specs)
        options = await self._reserved(groups) if among is None else self._elsewhere(groups, among)
        # Ray's control service would keep an event of each of the last 100,000 calls, and grow with them
        hosting = ray.remote(concurrency_groups={HEARTBEAT_TIMEOUT: 1}, enable_task_events=False)(ActorProcess)
        for process, specs in groups.items():
            remote = hosting.options(max_restarts=0, max_concurrency=_MAX_CONCURRENCY, **options[process])
            self._coming_up[process] = {}
            self.names[process] = [spec.name for spec in specs]
            key = self._keys[process] = secrets.token_bytes(32)
            states, objects = {spec.name: self._states.of(spec.name) for spec in specs}, self._objects_of(specs)
            self._starting[process] = remote.remote(specs, settings, key, states, objects)
        fresh: dict[str, Address] = {}
        first = "starting processes"
        found = await self._all(groups, self._starting, lambda actor, ticket, _: actor.prepare.remote(ticket), first)
        for (process, specs), (host, path, which) in zip(groups.items(), found, strict=True):
            actor, shown = self._starting.pop(process), self._ticket(process)
            self._actors[process] = actor
            self.reports[process] = which
            self._coming_up[process] = which  # it may have answered before its first heartbeat came
            for spec in specs:
                where, number = (host, path, which["pid"], which["start"], actor), self._incarnations.get(spec.name, 0)
                fresh[spec.name] = Address(
                    spec.name, spec.cls.role, *where, endpoints(spec.cls), shown, process, number
                )
                self.pids[spec.name] = which["pid"]
        others = [process for process in self._actors if process not in groups]
        self._transport.update(fresh)
        introduce = self._introductions(self._transport.book)
        await self._all(groups, self._actors, lambda _, __, process: introduce(process))
        await self._tell(map(self._introductions(fresh), others))
        for process in groups:
            watching = (self._watch(process), self._keep_heartbeat(process))
            self._watchers[process] = [asyncio.ensure_future(watcher) for watcher in watching]

    def _objects_of(self, actor_specs: Sequence[ActorSpec]) -> dict[str, Any]:
        """Return where Ray keeps the objects that actors are built with, by address."""
        found = sorted(set(objects_in([(spec.args, spec.kwargs) for spec in actor_specs])))
        for address in found:
            if address not in self._objects:
                self._objects[address] = ray.put(object_at(address))
        return {address: self._objects[address] for address in found}

    async def load(self, actor_specs: list[ActorSpec], frames: Mapping[str, bytes]) -> None:
        """Load and restore; see `bring_up`."""

        def states_of(process: str) -> dict[str, bytes]:
            return {name: frames[name] for name in self.names[process] if name in frames}

        await self._ready(
            by_process(actor_specs),
            lambda actor, ticket, process: actor.load.remote(ticket, states_of(process)),
            "loading",
        )

    async def open(self, actor_specs: list[ActorSpec], start: float) -> None:
        """Open, the run having begun at `start`; see `bring_up`."""
        groups = by_process(actor_specs)
        await self._ready(groups, lambda actor, ticket, _: actor.open.remote(ticket, start))
        for process in groups:
            self._coming_up.pop(process, None)

    async def reserve(self, actor_specs: Sequence[ActorSpec], host: cluster.Host, seconds: float) -> bool:
        """Reserve on a host what processes ask, all together: two runs do not hold half of it each, and wait for ever.

        Returns:
            Whether they ask for anything.

        Raises:
            BadInput: so much is not free there within these seconds.
        """
        groups = by_process(actor_specs)
        total = Counter[str]()
        for specs in groups.values():
            total.update(specs[0].resources.demand())
        if not total:
            return False
        here = {name: _SLIVER for name in host.resources if name.startswith("node:") and name != _HEAD}
        if not await self._group(groups, "STRICT_PACK", seconds, {"_soft_target_node_id": host.id}, here):
            free = ray._private.state.available_resources_per_node().get(host.id, {})
            raise BadInput(
                f"ray: the actors ask {_amounts(total)} together; free on this host of the cluster is "
                f"{_amounts({name: free.get(name, 0.0) for name in total})} of "
                f"{_amounts({name: host.resources.get(name, 0.0) for name in total})}: start the run again when others "
                "are over"
            )
        return True

    async def _group(
        self,
        groups: Mapping[str, Sequence[ActorSpec]],
        strategy: str,
        seconds: float,
        more: Mapping[str, Any],
        of_all: Mapping[str, float],
    ) -> bool:
        """Make a placement group; return whether it could be within so many seconds.

        Args:
            groups: actors by process.
            strategy: one of `PLACEMENTS`.
            seconds: that it may take.
            more: arguments of Ray's.
            of_all: what each bundle asks beside what its process asks.
        """
        asked = {process: specs[0].resources for process, specs in groups.items()}
        # a bundle may not be empty; a sliver of a core stands for "no reservation"
        bundles = [{**(resources.demand() or {"CPU": 0.001}), **of_all} for resources in asked.values()]
        group = placement_group(bundles, strategy=strategy, **more)
        self._groups.append(group)
        try:
            async with asyncio.timeout(seconds):
                await group.ready()
        except TimeoutError:
            return False
        for index, (process, resources) in enumerate(asked.items()):
            reserved = {
                **(resources.ray_options() if resources.demand() else {"num_cpus": 0.001}),
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            }
            self._placements |= {spec.name: reserved for spec in groups[process]}  # also of one that comes back
        return True

    async def _reserved(self, groups: Mapping[str, Sequence[ActorSpec]]) -> dict[str, dict[str, Any]]:
        if all(process in self._placements for process in groups):  # reserved, also for one that is brought back
            return self._placements
        asked = {process: specs[0].resources for process, specs in groups.items()}
        if self._placement is None:
            # Ray would put processes that ask for nothing anywhere: those that many share are there to use all cores
            spread = {p: {"scheduling_strategy": "SPREAD"} if len(specs) > 1 else {} for p, specs in groups.items()}
            return {process: resources.ray_options() | spread[process] for process, resources in asked.items()}
        known = await cluster.hosts()
        check_strict(
            [spec for specs in groups.values() for spec in specs], self._placement, [host.resources for host in known]
        )
        if not await self._group(groups, self._placement, self._start_timeout, {}, {}):
            raise BadInput(
                f"placement: {self._placement} of {len(asked)} actors could not be met within "
                f"{self._start_timeout:g} s; the cluster has {len(known)} host(s)"
            )
        return self._placements

    def _elsewhere(
        self, groups: Mapping[str, Sequence[ActorSpec]], among: Sequence[cluster.Host]
    ) -> dict[str, dict[str, Any]]:
        """Place processes on some hosts only, whatever was reserved for them elsewhere."""
        return {
            process: {
                **specs[0].resources.ray_options(),
                "scheduling_strategy": NodeAffinitySchedulingStrategy(cluster.host_for(specs[0], among).id, soft=False),
            }
            for process, specs in groups.items()
        }

    async def _all(
        self,
        names: Collection[str],
        processes: Mapping[str, Any],
        ask: Callable[[Any, bytes, str], Any],
        phase: str = "",
    ) -> list[Any]:
        num_done = 0
        if phase:
            self._tell_phase(f"{phase}: 0 of {len(names):,}")

        async def one(name: str) -> Any:
            nonlocal num_done
            ticket = self._ticket(name)
            answer = asyncio.ensure_future(ask(processes[name], ticket, name))
            silence = asyncio.ensure_future(self._silence(name, processes[name], ticket))
            try:
                waiting = {answer, silence}
                await asyncio.wait(waiting, timeout=self._start_timeout, return_when=asyncio.FIRST_COMPLETED)
                if answer.done():
                    num_done += 1
                    if phase:
                        self._tell_phase(f"{phase}: {num_done:,} of {len(names):,}")
                    return answer.result()
            except RayActorError as error:
                others = and_others(self.names[name])
                raise PartyLost(name, f"its process{others} died while it was being started{cause(error)}") from None
            finally:
                answer.cancel()
                silence.cancel()
            if silence.done():
                raise PartyLost(name, f"{silence.result()} while it was being started")
            raise CallTimeout(name, f"its process was not up within {self._start_timeout:g} s")

        return list(await asyncio.gather(*map(one, names)))

    async def _silence(self, name: str, actor: Any, ticket: bytes) -> str:
        """Return, in words, when a process gives no more heartbeats; until the first one a new one is coming up."""
        if self._coming_up.get(name) == {}:
            with suppress(RayActorError):
                self._coming_up[name] = await actor.beat.remote(ticket)
        num_silent = 0
        while True:
            if await within(self._heartbeat_timeout, partial(actor.beat.remote, ticket)):
                num_silent = 0
                await asyncio.sleep(self._heartbeat_timeout / 3)
                continue
            num_silent += 1
            process = self._coming_up.get(name)
            is_busy = await is_at_work(process) if process else False
            if process is None or is_busy is False or (is_busy is None and num_silent == _FAR_TIMEOUTS):
                return f"its process gave no heartbeat for {self._heartbeat_timeout * num_silent:g} s"

    async def _ready(self, names: Collection[str], ask: Callable[[Any, bytes, str], Any], phase: str = "") -> None:
        raise_first(await self._all(names, self._actors, ask, phase))

    def _ticket(self, process: str, caller: str = DRIVER) -> bytes:
        return ticket(self._keys[process], caller, self._incarnations.get(caller, 0))

    def _introductions(self, book: Mapping[str, Address]) -> Callable[[str], Any]:
        """Return what tells a process where actors are, with the tickets that let its own call them in their names.

        The addresses are one object of Ray's; 32 bytes of ticket for each process are each actor's own.
        """
        packed = ray.put(pack(book))
        there = dict.fromkeys(address.process for address in book.values())

        def introduce(process: str) -> Any:
            tickets = {name: {other: self._ticket(other, name) for other in there} for name in self.names[process]}
            return self._actors[process].meet.remote(self._ticket(process), packed, tickets)

        return introduce

    def as_seen_by(self, name: str, book: Mapping[str, Address]) -> dict[str, Address]:
        """Return addresses with the tickets that let somebody call there in that name."""
        return {other: replace(there, ticket=self._ticket(there.process, name)) for other, there in book.items()}

    async def bar(self, names: Iterable[str]) -> None:
        """Let nobody hear a process of these actors any more that was lost: it may only be cut off, and come back."""
        numbers = {name: self._incarnations.get(name, 0) + 1 for name in names}
        self._incarnations |= numbers
        for name, number in numbers.items():
            self._transport.bar(name, number)
        await self._tell(actor.bar.remote(self._ticket(other), numbers) for other, actor in self._actors.items())

    async def _tell(self, telling: Iterable[Awaitable[Any]]) -> None:
        """Wait until all have been told; one of them may be lost too and never answer.

        Its own heartbeat timeout sees to that.
        """

        async def told(one: Awaitable[Any]) -> None:
            with suppress(RayActorError):
                await one

        if tasks := [asyncio.ensure_future(told(one)) for one in telling]:
            _, late = await asyncio.wait(tasks, timeout=self._heartbeat_timeout)
            for task in late:
                task.cancel()

    # --- losses ---

    async def _watch(self, name: str) -> None:
        actor = self._actors[name]
        try:
            error = await actor.watch.remote(self._ticket(name))
        except RayActorError:
            self._is_lost(name, "its process is gone")
            return
        try:
            decode_reply(False, error)
        except Exception as failure:
            self._failed(failure)

    async def _keep_heartbeat(self, name: str) -> None:
        self._is_lost(name, await self._silence(name, self._actors[name], self._ticket(name)))

    def _is_lost(self, name: str, text: str) -> None:
        if name not in self._losses:
            said = text.replace("its process", f"its process{and_others(self.names[name])}", 1)
            self._losses[name] = asyncio.ensure_future(self._lost(PartyLost(name, said)))

    def retire(self, name: str) -> None:
        """End a process, be it dead, hung or alive, and forget it; how its actors are called is still known."""
        for watcher in self._watchers.pop(name, []):
            watcher.cancel()
        self._losses.pop(name, None)
        self._coming_up.pop(name, None)
        actor = self._actors.pop(name, None) or self._starting.pop(name, None)
        if actor is not None:
            ray.kill(actor, no_restart=True)
        self._clean_up(name)

    def _clean_up(self, name: str, *, kill: bool = True) -> None:
        """Kill a process of this host, and remove the folder of its socket."""
        address = self._transport.book.get(name)
        if address is not None and self._transport.is_near(address):
            if kill:
                end_process(address.pid, address.began)
            if address.socket:
                shutil.rmtree(Path(address.socket).parent, ignore_errors=True)

    # --- what the driver asks of them ---

    async def snapshots(self) -> dict[str, bytes]:
        """Return every actor's frame; when one is lost meanwhile, all are asked again once that was dealt with."""
        while True:
            if under_way := [loss for loss in self._losses.values() if not loss.done()]:
                await asyncio.wait(under_way)
                continue
            async with self.changing:
                asked = list(self._actors)
                found = await self._asked(asked, lambda actor, ticket, _: actor.snapshot.remote(ticket), "its snapshot")
            of_all = {name: one for each in found.values() for name, one in each.items()}
            raise_first(error for _, error in of_all.values())
            frames = {name: bytes(of_all[name][0]) for name in sorted(of_all)}
            if [*found] == asked:
                return frames
            await self.drop(frames)
            await asyncio.sleep(0.01)  # one is dead by now; its watcher may not have been told yet

    async def drop(self, frames: Mapping[str, bytes]) -> None:
        """Let actors remove what they keep in a place of their own and no checkpoint refers to any more."""
        kept: dict[str, dict[str, bytes]] = {}
        for name, frame in frames.items():
            if is_reference(frame) and (process := self.process_of(name)) is not None:
                kept.setdefault(process, {})[name] = frame
        what = "the removal of a state"
        raise_first(
            (await self._asked(kept, lambda actor, ticket, n: actor.drop.remote(ticket, kept[n]), what)).values()
        )

    async def drained(self) -> dict[str, Drained]:
        """Return what each actor's process recorded of it."""
        found = await self._asked(self._actors, lambda actor, ticket, _: actor.drain.remote(ticket), "its records")
        return {name: one for each in found.values() for name, one in each.items()}

    async def account(self, party: str) -> list[Any]:
        """Return what a party's actors say that they have released; see `HostedContext.account`."""
        there = [p for p in self._actors if any(name.partition("/")[0] == party for name in self.names[p])]
        found = await self._asked(there, lambda actor, ticket, _: actor.account.remote(ticket, party), "its account")
        raise_first(error for _, error in found.values())
        return [record for records, _ in found.values() for record in records]

    async def _asked(self, names: Iterable[str], ask: Callable[[Any, bytes, str], Any], what: str) -> dict[str, Any]:
        """Return the answers that are there when all have come, or when one is lost, who may never answer.

        Raises:
            CallTimeout: naming the process that did not answer.
        """

        async def answer(name: str, actor: Any) -> Any:
            with suppress(RayActorError):  # what a process that is gone had to say is gone with it
                return await ask(actor, self._ticket(name), name)

        asked = {name: asyncio.ensure_future(answer(name, self._actors[name])) for name in names}
        known, waiting = set(self._losses), set(asked.values())
        try:
            async with asyncio.timeout(self._call_timeout):
                while waiting and set(self._losses) <= known:
                    _, waiting = await asyncio.wait(waiting, timeout=0.05)
        except TimeoutError:
            slow = next(name for name, answer in asked.items() if not answer.done())
            raise CallTimeout(slow, f"{what} did not come within {self._call_timeout:g} s") from None
        finally:
            for late in waiting:
                late.cancel()
        found = {name: done.result() for name, done in asked.items() if done not in waiting}
        return {name: answered for name, answered in found.items() if answered is not None}

    async def last_answers(self) -> None:
        """Wait for the answers to all calls that nobody awaits, before anybody is closed."""
        asked = (actor.last_answers.remote(self._ticket(name)) for name, actor in self._actors.items())
        await asyncio.gather(*asked, return_exceptions=True)  # who is lost has nothing to wait for

    async def close(self) -> list[bytes | None]:
        """Close all actors; return, encoded, what failed at their ends."""
        closing = (actor.close.remote(self._ticket(name)) for name, actor in self._actors.items())
        found = await asyncio.gather(*closing, return_exceptions=True)
        return [error for error in found if not isinstance(error, BaseException)]

    def stop_watching(self) -> None:
        """From now on nobody who goes is lost."""
        for task in [*self._losses.values(), *(watcher for each in self._watchers.values() for watcher in each)]:
            if task is not asyncio.current_task():
                task.cancel()

    def forget(self, *, is_sick: bool = False) -> list[Any]:
        """Remove folders and, unless Ray's services are gone, reservations; return the actors that are to be killed."""
        for group in () if is_sick else self._groups:
            remove_placement_group(group)
        for process in {there.process: None for there in self._transport.book.values()}:
            self._clean_up(process, kill=process in self._actors)
        left = [*self._actors.values(), *self._starting.values()]
        self._actors.clear()
        self._starting.clear()
        self._objects.clear()  # in a later session of Ray's an old reference may be of another object
        return left


def end_process(pid: int, began: int) -> None:
    """Kill a process of this host, unless it is gone and its number is another process's by now.

    One that was stopped does not hear Ray, which waits for it.
    """
    with suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(pid)  # of this very process, whatever becomes of its number
        try:
            if start_of(pid) == began:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def raise_first(errors: Iterable[bytes | None]) -> None:
    """Raise the first of errors that came encoded; None stands for none."""
    for error in errors:
        if error is not None:
            decode_reply(False, error)

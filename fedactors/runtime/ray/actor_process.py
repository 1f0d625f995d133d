"""The process side of the Ray runtime: one generic Ray actor class that hosts any actors, and what it tells the driver.

    driver ──prepare, meet, load, open, snapshot, drain, watch──▶ ActorProcess
    peers  ──local transport (same host) or Ray call───────────▶ ActorProcess ──▶ an endpoint of the plain actor

    who waits                                   for what
    a call that comes before `load` has ended   the actor's `load` and restore
    `watch`                                     the first failure of what goes on by itself

Most processes host one actor. Those of one trust domain may share one (`ActorSpec.process`): each is an object with a
name, a ledger and connections of its own; the loop, the memory for payloads and the address book are the process's.

A caller shows a ticket, which the driver made for it (`transport.ticket`); the sender is never read from a frame.
Errors travel as values, so Ray's own wrapping never shows.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import enum
import gc
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import ray

from fedactors import user_code
from fedactors.actors.actor import queue_for_core
from fedactors.actors.context import NOWHERE, Ref, Work
from fedactors.actors.remote import DRIVER, REPEATS
from fedactors.config import source_on_disk
from fedactors.errors import FedactorsError, PartyLost, Refused
from fedactors.messages.codec import HEADER_BYTES, Parts, declare, decode, encode_parts, name_of, type_name
from fedactors.messages.ledger import DRIVER as DRIVER_KIND
from fedactors.messages.ledger import Row, kind_of, merged
from fedactors.network.links import Network
from fedactors.runs.folder import this_process
from fedactors.runs.party_states import PartyStates
from fedactors.runs.storage import make_folder
from fedactors.runtime import calls, snapshots
from fedactors.runtime.calls import CallPath
from fedactors.runtime.compute import HostedContext, WallClock, keep_freed_memory
from fedactors.runtime.failures import ERROR_ROW, UnawaitedCall, encode_error
from fedactors.runtime.interface import ActorSpec, CostModel
from fedactors.runtime.ray.transport import (
    ERROR,
    REPLY,
    Caller,
    LocalTransport,
    Memory,
    as_array,
    incarnation_of,
    listen,
    shown_by,
)
from fedactors.runtime.snapshots import digests_of_files, receive_objects
from fedactors.validation import one_line

Totals = tuple[str, str, str, str, int, int]
"""Sender, receiver, kind, type, messages, bytes."""


@dataclass
class Drained:
    """What a process recorded since it was last asked, and what it used since it began."""

    rows: list[Row]
    spans: list[tuple[str, str, str, float, float]]
    privacy: list[Any]
    totals: list[Totals]
    idle_seconds: float
    cpu_seconds: float
    overhead_seconds: float
    """Processor time since the run began that was spent outside of `compute`: messages, and whatever else."""
    refused: list[str]
    """What callers asked that they may not."""


@dataclass
class Used:
    """Seconds of one process."""

    waiting: float = 0.0
    cpu: float = 0.0
    overhead: float = 0.0

    def __add__(self, other: Used) -> Used:
        return Used(self.waiting + other.waiting, self.cpu + other.cpu, self.overhead + other.overhead)


@dataclass
class Accounts:
    """Sums over the processes of now, those that are gone, and the run that this one goes on from."""

    earlier: list[Totals] = field(default_factory=list)
    """Traffic of the run that this one goes on from."""
    before: Used = field(default_factory=Used)
    """Of that run, and of the processes that are gone."""
    _totals: dict[str, list[Totals]] = field(default_factory=dict)
    _used: dict[str, Used] = field(default_factory=dict)

    def take(self, name: str, drained: Drained) -> None:
        """Take what a process has recorded; its totals replace those that it gave before."""
        self._totals[name] = drained.totals
        self._used[name] = Used(drained.idle_seconds, drained.cpu_seconds, drained.overhead_seconds)

    def retire(self, name: str) -> None:
        """Keep what a process recorded that is gone: another one of its name counts from nothing."""
        self.earlier.extend(self._totals.pop(name, []))
        self.before += self._used.pop(name, Used())

    def used(self) -> Used:
        """Return the seconds of all."""
        return sum(self._used.values(), self.before)

    def totals(self, driver: Iterable[Totals]) -> list[Totals]:
        """Return the traffic of all, the driver's included."""
        return merged(total for part in (self.earlier, driver, *self._totals.values()) for total in part)


@dataclass(frozen=True)
class Settings:
    """What every process of a run must know."""

    seed: int
    start: float
    offset: float
    reproducible_noise: bool
    call_timeout: float
    use_sockets: bool
    keep_rows: bool
    network: Network | None
    costs: CostModel | None
    scale: float
    script_types: tuple[type, ...] = ()
    """Messages and plain values that the driver's own script declares: other processes cannot import them."""
    use_shared_memory: bool = True
    """Whether a payload's reference says where in the memory of its owner's process it lies; else it is asked for."""
    checkpoint: str = ""
    """Where the checkpoint lies that the run goes on from, for lines about what does not fit."""
    repeats: int = REPEATS
    """Calls of each endpoint beyond its bound: none where another organisation's driver makes them."""
    is_between_organisations: bool = False
    """Whether others than the own organisation have parts in the run: secrets then come from the system."""
    package: str = ""
    """The protocol's, whose code each process says the digest of; empty: nobody wants it."""
    code: Mapping[str, bytes] = field(default_factory=dict)
    """Source files that the run brings, which each process may import."""


T = TypeVar("T")
HEARTBEAT_TIMEOUT = "heartbeat_timeout"
"""Name of the group of Ray's that gives heartbeats."""
_MOST_REFUSALS = 100
"""Of those that are remembered between two looks of the driver: a flood of them costs no memory."""


class SharedParts:
    """What the actors of one process have in common.

    Args:
        first: name of the process, which is that of its first actor: failures that nobody's name is on are under it.
        host: the Ray host that it is on.
    """

    def __init__(self, first: str, host: str) -> None:
        self.host = host
        self.memory = Memory()
        self.addresses: dict[str, bytes] = {}
        """Where the run's actors live, as they came packed."""
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        """Where actors compute whose links or costs are emulated; no thread before it is used."""
        loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[tuple[str, BaseException]] = loop.create_future()
        """The first failure of what goes on by itself, and whose it is."""
        # the driver alone knows which losses are dealt with: a lost party is its watcher's business
        self.unawaited = UnawaitedCall(lambda error: self.fail(first, error), lambda _: True)
        loop.set_exception_handler(self.unawaited)

    def fail(self, name: str, error: BaseException) -> None:
        """Stop the run: the driver is told the first failure."""
        if not self.failure.done():
            self.failure.set_result((name, error))


class RayContext(HostedContext):
    """One actor's side of the Ray runtime, in the actor's own process."""

    def __init__(self, actor_spec: ActorSpec, settings: Settings, process: SharedParts) -> None:
        clock = WallClock(settings.start, settings.offset, settings.scale)
        local = (settings.seed, settings.reproducible_noise, clock, settings.keep_rows, settings.repeats)
        super().__init__(actor_spec, *local)
        self.is_between_organisations = settings.is_between_organisations
        self.refused: list[str] = []
        self.unawaited = process.unawaited
        limits = settings.use_sockets, settings.call_timeout
        self.transport = LocalTransport(
            self.name, process.host, *limits, self.unawaited, process.memory, process.addresses
        )
        self._process = process
        self._overhead_reported = 0.0
        self._settings = settings
        self._free_at = [0.0] * actor_spec.resources.num_cores
        self._store, self._reader = self.transport.memory.store, self.transport.memory.reader
        # a compute in the loop's own thread would also delay the emulated links
        if settings.network is not None or settings.costs is not None:
            self._thread = process.thread

    def _fail(self, error: BaseException) -> None:
        self._process.fail(self.name, error)

    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        address = self.transport.address(receiver, self.name)
        with self._noting():
            path = calls.admit(address.endpoints, method, self.name, self._role, receiver, address.role, value)
            value, size = calls.leave(path, value, copy=False)
        self.ledger.record(self.clock.now(), self.name, receiver, path.kind, type_name(value, method), size)
        parts = encode_parts((method, value))
        delay = self._link_delay(self.name, receiver, path.kind, size)
        if delay <= 0:
            return self.unawaited.track(self.transport.send(address, path, parts))
        # no task of the caller's: the message is under way even if it stops waiting
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = self.unawaited.track(loop.create_future())
        frame: Parts = [b"".join(parts)]
        loop.call_later(delay, self.transport.send_for, reply, address, path, frame)
        return reply

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        """Write down what this actor is refused, whether or not its code tells anybody."""
        try:
            yield
        except Refused as error:
            self.note_refusal(str(error))
            raise

    def note_refusal(self, text: str) -> None:
        """Remember that somebody asked what it may not."""
        if len(self.refused) < _MOST_REFUSALS:
            self.refused.append(one_line(text))

    def _link_delay(self, sender: str, receiver: str, kind: str, size: int) -> float:
        network = self._settings.network
        if network is None or kind == DRIVER_KIND:
            return 0.0
        return network.link(sender, receiver, kind).seconds(size + HEADER_BYTES) * self._settings.scale

    async def reply_later(self, path: CallPath, type_: str, size: int) -> None:
        """Record a reply, and hold it back for the time that an emulated link takes."""
        self.ledger.record(self.clock.now(), self.name, path.sender, path.kind, type_, size)
        delay = self._link_delay(self.name, path.sender, path.kind, size)
        if delay > 0:
            await asyncio.sleep(delay)

    def record_error(self, caller: Caller, size: int) -> None:
        """Record that an error was told: its text leaves the party too."""
        kind = kind_of(self.name, self._role, caller.name, caller.role)
        self.ledger.record(self.clock.now(), self.name, caller.name, kind, ERROR_ROW, size)

    async def _compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        costs = self._settings.costs
        if costs is None:
            return await super()._compute(function, args, work)
        # as in simulation: of several computes at once each core does one, however little the arithmetic here takes
        _, due = queue_for_core(self._free_at, self.clock.now(), costs.seconds(self.name, work))
        result = await super()._compute(function, args, work)
        await self.clock.sleep(max(0.0, due - self.clock.now()))
        return result

    def put(self, value: Any, readers: frozenset[str]) -> Ref:
        with self._noting():
            value, size = calls.keep(self.endpoints, self.name, value, copy=False)
        key, location = self._store.put(encode_parts((sorted(readers), value)), readers)
        is_told = self._settings.use_sockets and self._settings.use_shared_memory
        return Ref(self.name, key, size, location if is_told else NOWHERE)

    async def get(self, ref: Ref) -> Any:
        if ref.owner == self.name:
            return decode(self._store.read(ref.key))[1]
        address = self.transport.address(ref.owner, self.name)
        frame = None
        # a reference comes from a peer: it is believed that its payload lies with its owner, and nowhere else
        is_near = self.transport.is_near(address) and self._settings.use_shared_memory
        if is_near and len(ref.location) == 3 and ref.location[0] == address.pid:
            try:
                frame = self._reader.read(ref.location, ref.key)
            except (FileNotFoundError, ProcessLookupError):
                raise PartyLost(ref.owner, "its process is gone, and its payloads with it") from None
            except PermissionError:
                # the owner's memory is out of reach (another user or process namespace): ask for the bytes
                frame = None
        if frame is None:
            frame = await self.transport.fetch(address, ref.key)
        readers, value = decode(frame)
        calls.check_reader(self.name, frozenset(readers), ref.owner)
        size = calls.receive(address.endpoints, ref.owner, value)
        kind = kind_of(ref.owner, address.role, self.name, self._role)
        self.ledger.record(self.clock.now(), ref.owner, self.name, kind, type_name(value, ""), size)
        delay = self._link_delay(ref.owner, self.name, kind, size)
        if delay > 0:
            await asyncio.sleep(delay)
        return value

    def read_payload(self, key: int, reader: str) -> bytes:
        """Return the bytes of a payload kept here, for a reader on another host."""
        calls.check_reader(reader, self._store.readers(key), self.name)
        return self._store.read(key)

    def free(self, ref: Ref) -> None:
        self._store.free(ref.key)

    def begin_run(self, start: float) -> None:
        """Count time and computing from here on: what came before was starting up."""
        self.clock.begin(start)
        self._computing_seconds = self._overhead_reported = 0.0

    @property
    def computing_seconds(self) -> float:
        """Processor time in `compute` since the run began."""
        return self._computing_seconds

    def drain(self, overhead: float) -> Drained:
        """Hand over what was recorded since the last time.

        Args:
            overhead: this actor's share of what its process has computed outside of `compute` since the run began.
        """
        self.ledger.flush()
        cpu = self._computing_seconds + overhead
        now = self.clock.now()
        # as one span that ends now: how much it was, not when it was, is known
        since = max(0.0, overhead - self._overhead_reported)
        self.record_span("overhead", "outside of compute", max(0.0, now - since), max(0.0, now))
        self._overhead_reported = overhead
        rows, spans, privacy, refused = list(self.rows), list(self.spans), list(self.privacy), list(self.refused)
        for kept in (self.rows, self.spans, self.privacy, self.refused):
            kept.clear()
        totals = self.ledger.state()
        return Drained(rows, spans, privacy, totals, self.idle_seconds, cpu, overhead, refused)

    def close(self) -> None:
        """Stop what goes on by itself and give memory back."""
        super().close()
        self.transport.close()


class Life(enum.IntEnum):
    """How far a process has come; nothing is asked of it before its time."""

    CREATED = 0
    PREPARED = 1
    LOADED = 2
    OPEN = 3
    CLOSED = 4


class HostedActor:
    """An actor in its process: its life, and the calls to it; `states` keeps its snapshots."""

    def __init__(self, spec: ActorSpec, states: PartyStates, settings: Settings, process: SharedParts) -> None:
        self.context = RayContext(spec, settings, process)
        self._spec = spec
        self._states = states
        self._checkpoint = settings.checkpoint
        self._actor = spec.cls(*spec.args, **spec.kwargs)
        self._actor._context = self.context
        self.context.transport.actor = self._actor
        self._loaded = asyncio.Event()

    async def load(self, state: bytes | None) -> bytes | None:
        """Load data and restore a snapshot; return an encoded error or None."""

        async def work() -> None:
            frame = self._states.begin(state)
            self._actor._files = digests_of_files((self._spec.args, self._spec.kwargs))
            await self._actor.load()
            if frame is not None:
                snapshots.restore(self._actor, frame, self._spec.name, self._checkpoint)
            # calls that come earlier, from peers that know a respawned actor already, wait for this
            self._loaded.set()

        return await self._guarded(work)

    async def open(self) -> bytes | None:
        """Start the actor's loops; return an encoded error or None."""
        return await self._guarded(self._actor.open)

    def snapshot(self) -> tuple[bytes, bytes | None]:
        """Return the actor's state as a sealed frame, or where it is kept; and an encoded error or None."""
        frame = snapshots.seal_actor(self._actor)
        try:
            return self._states.keep(frame), None
        except FedactorsError as error:
            return b"", b"".join(encode_error(self._spec.name, error))

    async def drop(self, frame: bytes) -> bytes | None:
        """Remove a kept state that no checkpoint refers to any more; return an encoded error or None."""

        async def work() -> None:
            self._states.drop(frame)

        return await self._guarded(work)

    async def account(self) -> tuple[list[Any], bytes | None]:
        """Return what the actor says that it has released, which is not recorded; and an encoded error or None."""
        found: list[Any] = []

        async def work() -> None:
            found.extend(await self.context.account(self._actor))

        return found, await self._guarded(work)

    async def close(self) -> bytes | None:
        """Close the actor; return an encoded error or None."""
        return await self._guarded(self._actor.close)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> bytes | None:
        try:
            await work()
        except Exception as error:
            return b"".join(encode_error(self._spec.name, error))
        return None

    # --- for peers ---

    def known(self, name: str, incarnation: int | None) -> Caller | None:
        """Return a caller of this actor, whose ticket says that it is this incarnation; None: it says nothing."""
        if incarnation is None:
            self.context.note_refusal(f"somebody calls {self._spec.name} as {name} without its ticket")
            return None
        known = self.context.transport.book.get(name)
        role = DRIVER if name == DRIVER else "" if known is None else known.role
        return Caller(name, role, incarnation, self._spec.name)

    def payload(self, name: str, caller: Caller | None, asked: int | memoryview) -> tuple[int, Parts]:
        """Serve a payload to a reader that cannot read it where it lies."""
        try:
            key = asked if isinstance(asked, int) else decode(asked)
            if not isinstance(key, int):
                raise Refused(name, f"asks {self._spec.name} for no payload")
            if caller is None or caller.incarnation < self.context.transport.least(name):
                raise Refused(name, f"asks {self._spec.name} for a payload with a ticket that is not its own")
            return REPLY, [self.context.read_payload(key, name)]
        except FedactorsError as error:
            return ERROR, encode_error(self._spec.name, error)

    async def serve(self, caller: Caller, body: memoryview) -> tuple[int, Parts]:
        """Run an endpoint; return its reply or error."""
        name, context = self._spec.name, self.context
        try:
            try:
                if caller.incarnation < context.transport.least(caller.name):
                    raise Refused(caller.name, f"calls {name} from a process that was given up as lost")
                asked, value = decode(body)
                path = calls.admit(context.endpoints, asked, caller.name, caller.role, name, self._spec.cls.role, value)
                calls.arrive(path, value)
                if not self._loaded.is_set():
                    await self._loaded.wait()
                coroutine = calls.begin(path, self._actor, value)
            except (Refused, ValueError, TypeError) as error:
                is_refusal = isinstance(error, Refused)
                refusal = error if is_refusal else Refused(caller.name, f"sends {name} no call: {error}")
                context.note_refusal(str(refusal))
                raise refusal from None
            reply, size = calls.answer(path, await coroutine, copy=False)
            if reply is not None:
                await context.reply_later(path, type_name(reply, path.endpoint.name), size)
            return REPLY, encode_parts(reply)
        except Exception as error:
            failed, size = calls.failed(name, caller.name, error)
            context.record_error(caller, size)
            return ERROR, encode_error(name, failed)


class ActorProcess:
    """The Ray actor that hosts actors; tickets to them are made with `key`, and `objects` are their parties' data.

    What the driver asks is asked of all actors at once, and answered by their names.
    """

    def __init__(
        self,
        actor_specs: Sequence[ActorSpec],
        settings: Settings,
        key: bytes,
        states: Mapping[str, PartyStates],
        objects: Mapping[str, Any],
    ) -> None:
        receive_objects({address: ray.get(reference) for address, reference in objects.items()})
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        for cls in settings.script_types:
            setattr(sys.modules["__main__"], cls.__name__, cls)
            declare(cls, name_of(cls))
        self._actor_specs = actor_specs
        self._settings = settings
        self._key = key
        self._states = states
        self._life = Life.CREATED
        self._process = this_process()
        self._name = actor_specs[0].name
        self._actors: dict[str, HostedActor] = {}
        self._shared: SharedParts
        self._cpu_before = 0.0
        self._folder: Path | None = None
        self._server: asyncio.AbstractServer | None = None

    # --- for the driver, who shows its ticket ---

    async def prepare(self, driver: bytes) -> tuple[str, str, dict[str, Any]]:
        """Construct the actors and listen; return (host, socket path, which process this is)."""
        self._check_driver(driver, Life.CREATED)
        host = ray.get_runtime_context().get_node_id()
        self._shared = SharedParts(self._name, host)
        if self._settings.code:
            user_code.hold(self._settings.code)
        for spec in self._actor_specs:
            self._actors[spec.name] = HostedActor(spec, self._states[spec.name], self._settings, self._shared)
        path = ""
        if self._settings.use_sockets:
            self._folder = make_folder("socket")
            path = str(self._folder / "socket")
            self._server = await listen(path, self._recognise, self._serve, self._give, self._shared.memory)
        self._life = Life.PREPARED
        source = source_on_disk(self._settings.package) if self._settings.package else ""
        return host, path, {**self._process, "source": source}

    async def meet(self, driver: bytes, packed: dict[str, bytes], tickets: dict[str, dict[str, bytes]]) -> None:
        """Learn where all actors live, and by actor of this process the tickets with which it calls other processes."""
        self._check_driver(driver, Life.PREPARED)
        for name, actor in self._actors.items():
            actor.context.transport.learn(packed, tickets[name])

    async def bar(self, driver: bytes, incarnations: dict[str, int]) -> None:
        """Hear no process of these actors any more that came before these incarnations."""
        self._check_driver(driver, Life.PREPARED)
        for actor in self._actors.values():
            for name, incarnation in incarnations.items():
                actor.context.transport.bar(name, incarnation)

    async def load(self, driver: bytes, states: dict[str, bytes]) -> bytes | None:
        """Load data and restore snapshots; return an encoded error or None."""
        self._check_driver(driver, Life.PREPARED)
        error = await self._of_all(lambda name, actor: actor.load(states.get(name)))
        if error is None:
            self._life = Life.LOADED
        return error

    async def open(self, driver: bytes, start: float) -> bytes | None:
        """Start the actors' loops, the run having begun at `start`; return an encoded error or None."""
        self._check_driver(driver, Life.LOADED)
        self._cpu_before = time.process_time()
        for actor in self._actors.values():
            actor.context.begin_run(start)
        # modules and data live as long as the run: the collector of garbage need not look at them again
        gc.collect()
        gc.freeze()
        keep_freed_memory()
        self._life = Life.OPEN
        return await self._of_all(lambda _, actor: actor.open())

    @ray.method(concurrency_group=HEARTBEAT_TIMEOUT)  # type: ignore[untyped-decorator]
    async def beat(self, driver: bytes) -> dict[str, Any]:
        """Give a heartbeat, from a thread that no computation of the actors' holds up: which process this is."""
        self._check_driver(driver, Life.CREATED)
        return self._process

    async def watch(self, driver: bytes) -> bytes:
        """Return, encoded, the error of whatever went on by itself and failed."""
        self._check_driver(driver, Life.PREPARED)
        return b"".join(encode_error(*await self._shared.failure))

    async def snapshot(self, driver: bytes) -> dict[str, tuple[bytes, bytes | None]]:
        """Return the actors' states; see `HostedActor.snapshot`."""
        self._check_driver(driver, Life.LOADED)
        return {name: actor.snapshot() for name, actor in self._actors.items()}

    async def drop(self, driver: bytes, frames: dict[str, bytes]) -> bytes | None:
        """Remove kept states that no checkpoint refers to any more; return an encoded error or None."""
        self._check_driver(driver, Life.LOADED)
        return _first([await self._actors[name].drop(frame) for name, frame in frames.items()])

    async def account(self, driver: bytes, party: str) -> tuple[list[Any], bytes | None]:
        """Return what a party's actors say that they have released; see `HostedActor.account`."""
        self._check_driver(driver, Life.OPEN)
        found = [await self._actors[name].account() for name in self._actors if name.partition("/")[0] == party]
        return [record for records, _ in found for record in records], _first(error for _, error in found)

    async def drain(self, driver: bytes) -> dict[str, Drained]:
        """Return what was recorded; what the process computed outside of `compute` is shared out alike."""
        self._check_driver(driver, Life.PREPARED)
        contexts = [actor.context for actor in self._actors.values()]
        outside = time.process_time() - self._cpu_before - sum(context.computing_seconds for context in contexts)
        share = max(0.0, outside) / len(contexts)
        return {context.name: context.drain(share) for context in contexts}

    async def last_answers(self, driver: bytes) -> None:
        """Wait for the answers to calls that nobody here awaits; see `UnawaitedCall.last_answers`."""
        self._check_driver(driver, Life.PREPARED)
        await self._shared.unawaited.last_answers()

    async def close(self, driver: bytes) -> bytes | None:
        """Close the actors and everything that their process opened; return an encoded error or None."""
        self._check_driver(driver, Life.PREPARED)
        self._life = Life.CLOSED
        error = await self._of_all(lambda _, actor: actor.close())
        self._shared.unawaited.check()
        if error is None and self._shared.failure.done():
            error = b"".join(encode_error(*self._shared.failure.result()))
        if self._server is not None:
            self._server.close()
        for actor in self._actors.values():
            actor.context.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        return error

    def _check_driver(self, shown: bytes, least: Life) -> None:
        if incarnation_of(self._key, DRIVER, shown) is None:
            raise PermissionError(f"{self._name}: only the run's driver may ask this")
        if self._life < least:
            raise RuntimeError(f"{self._name} is {self._life.name.lower()}, not {least.name.lower()} yet")

    async def _of_all(self, work: Callable[[str, HostedActor], Awaitable[bytes | None]]) -> bytes | None:
        """Do something with all actors at once, who may need each other; return the first error, if any."""
        return _first(await asyncio.gather(*(work(name, actor) for name, actor in self._actors.items())))

    # --- for peers ---

    async def call(self, receiver: str, name: str, shown: bytes, frame: Any) -> tuple[int, Any]:
        """Serve a call that came through Ray."""
        actor = self._actors[receiver]
        caller = self._caller(actor, name, shown)
        if caller is None:
            refusal = Refused(name, f"calls {receiver} with a ticket that is not its own")
            return ERROR, as_array(encode_error(receiver, refusal))
        kind, parts = await actor.serve(caller, memoryview(frame))
        return kind, as_array(parts)

    async def fetch(self, receiver: str, name: str, shown: bytes, key: int) -> tuple[int, Any]:
        """Serve a payload to a reader on another host."""
        actor = self._actors[receiver]
        kind, parts = actor.payload(name, self._caller(actor, name, shown), key)
        return kind, as_array(parts)

    async def _give(self, caller: Caller, body: memoryview) -> tuple[int, Parts]:
        """Serve a payload to a reader on this host that cannot read it where it lies."""
        return self._actors[caller.receiver].payload(caller.name, caller, body)

    async def _serve(self, caller: Caller, body: memoryview) -> tuple[int, Parts]:
        return await self._actors[caller.receiver].serve(caller, body)

    def _recognise(self, hello: memoryview) -> Caller | None:
        """Return who opens a connection and to which actor, if it proves it."""
        name, receiver, incarnation = shown_by(hello, self._key) or ("", "", None)
        return self._actors[receiver].known(name, incarnation) if receiver in self._actors else None

    def _caller(self, actor: HostedActor, name: Any, shown: Any) -> Caller | None:
        if not (isinstance(name, str) and isinstance(shown, bytes)):
            return None
        return actor.known(name, incarnation_of(self._key, name, shown))


def _first(errors: Iterable[bytes | None]) -> bytes | None:
    return next((error for error in errors if error is not None), None)

"""What an await means is a runtime's business: the interface between actors, drivers and runtimes.

    actor code ──awaits──▶ Context (one per actor) ──▶ Runtime ──▶ virtual clock, Ray processes, or sites
    run.py     ──awaits──▶ Runtime (the driver's side of the same)

Another runtime implements `Context` (what an actor can await) and `Runtime` (spawning, snapshots, supervision).
What the runtimes share stands here, so that they cannot drift apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from fedactors.errors import BadInput, FedactorsError
from fedactors.network.codec import CodecError, carry, message
from fedactors.records.states import Places
from fedactors.remote import DRIVER
from fedactors.resources import Resources

if TYPE_CHECKING:
    from fedactors.actor import Actor
    from fedactors.network.ledger import Ledger
    from fedactors.network.links import Network

T = TypeVar("T")
ACTOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*(/[A-Za-z0-9][A-Za-z0-9_.\-]*)*")  # file names, and words
LOSS_POLICIES = ("stop", "continue", "restart")
FINAL = "final"  # label of the checkpoint that ends a run


@dataclass(frozen=True, slots=True)
class Work:
    """What a compute does and how much of it: the cost model maps it to seconds in the simulated runtime."""

    kind: str
    units: float = 1.0


class CostModel(Protocol):
    """Maps work to seconds on the hardware of an actor; unknown work must raise `MissingCost`."""

    def seconds(self, actor: str, work: Work) -> float:
        """Return the seconds that `work` takes `actor` on one of its cores."""


class MissingCost(FedactorsError):
    """The simulated runtime has no cost for a kind of work; it never assumes zero seconds."""

    exit_code = 2


@dataclass(frozen=True)
class Costs:
    """A cost model of ``fixed + per_unit * units`` seconds per kind of work.

    Args:
        kinds: kind of work to (fixed seconds, seconds per unit).
        speed: per actor or party, how many times faster than stated its cores are (default 1).
    """

    kinds: Mapping[str, tuple[float, float]]
    speed: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, (fixed, per_unit) in self.kinds.items():
            if not (fixed >= 0 and per_unit >= 0):
                raise BadInput(f"cost of {kind}: {(fixed, per_unit)} is not allowed: seconds must be 0 or more")
        for name, value in self.speed.items():
            if not value > 0:
                raise BadInput(f"speed of {name}: {value} is not allowed: it must be more than 0")

    def seconds(self, actor: str, work: Work) -> float:
        """Return the modelled seconds; see `CostModel`."""
        try:
            fixed, per_unit = self.kinds[work.kind]
        except KeyError:
            raise MissingCost(
                f"{actor}: no cost is known for {work.kind!r} (known: {', '.join(sorted(self.kinds)) or 'none'})"
            ) from None
        speed = self.speed.get(actor) or self.speed.get(actor.partition("/")[0]) or 1.0
        return (fixed + per_unit * work.units) / speed


@message(reveals="the owner's name and the payload's size; nothing of its content")
class Ref:
    """A payload that stays with its owner until it is fetched; `key` cannot be guessed."""

    owner: str
    key: int
    num_bytes: int
    place: tuple[int, ...]
    """Where the bytes lie (process, descriptor, offset), for a reader on the same host; `NOWHERE` when they must be
    asked for. Three numbers in any case, so that the ledger counts the same bytes on every runtime."""


NOWHERE = (0, 0, 0)


@dataclass
class Job:
    """Work in flight: its inputs, and a way to wait for its result. It survives a snapshot by being done again."""

    key: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    work: Work
    due: float
    wait: Callable[[Job], Awaitable[Any]]

    def __await__(self) -> Any:
        return self.wait(self).__await__()


class Clock(ABC):
    """Seconds since the run began; virtual or wall, continued through a resume."""

    @abstractmethod
    def now(self) -> float:
        """Return the present time in seconds."""

    @abstractmethod
    async def sleep(self, seconds: float, key: str | None = None) -> None:
        """Wait; with a `key` the wait may outlive a snapshot (the same key then ends at the same time)."""

    async def sleep_until(self, time: float, key: str | None = None) -> None:
        """Wait until `time`; a time in the past returns at once."""
        await self.sleep(max(0.0, time - self.now()), key)

    def timeout(self, seconds: float | None) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Return an async context manager that raises TimeoutError after `seconds` (None: never)."""
        return asyncio.timeout(seconds)


class Handle:
    """A reference to an actor by name: calling a door sends its message and returns the awaitable reply.

    The message leaves when the door is called, awaited or not; a call that fails and that nobody awaits stops the run.
    Two calls that were not awaited one after the other may arrive in any order.
    """

    def __init__(self, context: Caller, name: str) -> None:
        self._context = context
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        if method.startswith("__"):
            raise AttributeError(method)
        call, name = self._context.call, self._name

        def send(message: Any = None, /) -> Awaitable[Any]:
            return call(name, method, message)

        self.__dict__[method] = send
        return send

    def __repr__(self) -> str:
        return f"<handle of {self._name}>"


class Caller(ABC):
    """Whoever can call an actor: another actor, or the driver."""

    name: str
    clock: Clock

    @abstractmethod
    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        """Send a message (None: a bare call) to a door and return the awaitable reply.

        Raises:
            Refused: it is no door of the receiver, not open to this caller, or takes another message.
        """

    def handle(self, name: str, cls: type[T]) -> T:
        """Return a handle of the actor `name`, typed as its class."""
        return cast(T, Handle(self, name))


class Context(Caller):
    """What one actor can await: given to it by the runtime that hosts it."""

    seed: int
    reproducible_noise: bool

    @abstractmethod
    async def compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        """Run a pure function; see `Actor.compute`."""

    @abstractmethod
    def begin(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work) -> Job:
        """Start work that outlives a snapshot; see `Actor.begin`."""

    @abstractmethod
    def job(self, key: str) -> Job | None:
        """Return the work begun under `key` and not yet collected."""

    @abstractmethod
    def background(self, awaitable: Awaitable[Any]) -> None:
        """Let something go on by itself; its failure stops the run."""

    @abstractmethod
    def put(self, value: Any, readers: frozenset[str]) -> Ref:
        """Keep a payload for `readers`, actors or parties, to fetch."""

    @abstractmethod
    async def get(self, ref: Ref) -> Any:
        """Fetch a payload from its owner."""

    @abstractmethod
    def free(self, ref: Ref) -> None:
        """Forget a payload of one's own; unknown ones are ignored."""

    def output(self, to: str) -> Path:
        """Return where a file goes that the driver asks for under the name `to`."""
        return Path(to)

    @abstractmethod
    def record_span(self, kind: str, label: str, start: float, end: float) -> None:
        """Add to the timeline."""

    @abstractmethod
    def record_privacy(self, record: Any) -> None:
        """Add to the privacy ledger."""

    @contextlib.contextmanager
    def span(self, kind: str, label: str) -> Iterator[None]:
        """Put what happens inside on the timeline."""
        start = self.clock.now()
        try:
            yield
        finally:
            self.record_span(kind, label, start, self.clock.now())


def derived_seed(seed: int, name: str, purpose: str) -> int:
    """Return the 63-bit seed of one actor's generator for one purpose."""
    digest = hashlib.sha256(f"{seed}\0{name}\0{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derived_rng(seed: int, name: str, purpose: str) -> np.random.Generator:
    """Return the generator of one actor for one purpose (data order, initialisation, walks, sampling)."""
    return np.random.default_rng(derived_seed(seed, name, purpose))


def noise_rng(seed: int, name: str, purpose: str, reproducible: bool) -> np.random.Generator:
    """Return a generator for noise, masks or salts: seeded by the operating system unless made reproducible."""
    if reproducible:
        return derived_rng(seed, name, f"noise {purpose}")
    return np.random.default_rng(int.from_bytes(os.urandom(32), "big"))


@dataclass(frozen=True)
class Casting:
    """One actor to be: its class, name, constructor arguments and resources."""

    cls: type[Actor]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    resources: Resources


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on: a frame per actor, and the driver's; `folder` says where, if they lie in files."""

    actors: Mapping[str, bytes]
    driver: bytes
    folder: str = ""


@dataclass(frozen=True)
class Usage:
    """What a run used. Seconds are those of the runtime's clock; bytes and messages leave the driver's out."""

    messages: int
    bytes: int
    header_bytes: int
    seconds: float
    wall_seconds: float
    cpu_utilisation: float
    waiting_seconds: float
    price: float
    outside_seconds: float = 0.0
    """Processor time of the actors' processes outside of `compute`; the virtual clock knows none."""


class RecorderLike(Protocol):
    """Where a runtime writes: a run folder, or memory in tests (see `fedactors.records.recorder`)."""

    keeps_checkpoints: bool
    """Whether anybody can go on from what `save_checkpoint` takes."""

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Add one round's metrics."""

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Add one span to the timeline."""

    def ledger_sink(self, rows: list[Any]) -> None:
        """Add a block of ledger rows."""

    def privacy(self, records: list[Any]) -> None:
        """Add privacy records."""

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        """Write a checkpoint."""


LossHandler = Callable[[str], Awaitable[None]]


class Runtime(Caller):
    """The driver's side: a protocol's `run` spawns actors, calls them, records rounds and takes checkpoints.

    `state` is the driver's own state (the epoch to go on with, and the like). Keep it current between awaits: it is
    part of every snapshot, and holds the snapshot's values when a run is resumed (else it is empty).
    """

    name = DRIVER
    clock: Clock
    seed: int
    reproducible_noise: bool
    ledger: Ledger
    network: Network
    state: dict[str, Any]

    def __init__(
        self,
        *,
        seed: int = 0,
        recorder: RecorderLike | None = None,
        checkpoint_every: int = 1,
        reproducible_noise: bool = False,
    ) -> None:
        self.seed = seed
        self.recorder = recorder
        self.checkpoint_every = checkpoint_every
        self.reproducible_noise = reproducible_noise
        self.state = {}
        self.resumed = False  # whether this run goes on from a snapshot
        self.states = Places()
        """Which parties keep their states themselves; set before the run is executed."""
        self.privacy_records: list[Any] = []
        self.spent = 0.0
        self.tell: Callable[[str], None] = lambda text: None  # takes what is under way, in words
        self.way_on = ""  # how to go on from a checkpoint that is kept, in a line
        self.watched = False  # whether the records of other processes are wanted every second, not only every round
        self._castings: dict[str, Casting] = {}
        self._new: list[str] = []
        self._loss_policy: str | Callable[[str], str] = "stop"
        self._loss_handler: LossHandler | None = None
        self._last_snapshot: Snapshot | None = None
        self._num_checkpoints = 0
        self._stop_code: int | None = None

    # --- the driver's verbs ---

    def spawn(self, cls: type[T], name: str, *args: Any, resources: Resources | None = None, **kwargs: Any) -> T:
        """Cast an actor and return its handle; it comes to life at the next `start`.

        Args:
            cls: the actor's class.
            name: unique; the party is the part before a slash ("bank", "bank/worker-0").
            args: small constructor arguments: plain values, arrays, messages, configurations and dataclasses declared
                with `plain`; each actor gets a copy of its own. Data is loaded by the actor itself.
            resources: what it asks of its host; the class's own by default.
            kwargs: more constructor arguments.

        Raises:
            BadInput: the name is taken, or an argument is something else.
        """
        if not ACTOR_NAME.fullmatch(name):
            raise BadInput(
                f"party: {name!r} is not allowed as the name of an actor: use letters, digits, '.', '_' and '-', "
                "beginning with a letter or a digit"
            )
        if name in self._castings or name.partition("/")[0] == DRIVER:
            raise BadInput(f"party: {name!r} is not allowed: the name is taken")
        try:
            args, kwargs = carry((args, kwargs))
        except CodecError as error:
            raise BadInput(
                f"{name}: an argument of its constructor cannot be carried to its process: {error}"
            ) from None
        actor_cls = cast("type[Actor]", cls)
        asked = resources if resources is not None else actor_cls.resources
        self._castings[name] = Casting(actor_cls, name, args, kwargs, asked)
        self._new.append(name)
        return self.handle(name, cls)

    @contextlib.contextmanager
    def phase(self, label: str) -> Iterator[None]:
        """Put a part of the run, such as training or evaluation, on the driver's line of the timeline."""
        start = self.clock.now()
        self.tell(label)
        yield
        if self.recorder is not None:
            self.recorder.record_span(self.name, "phase", label, start, self.clock.now())

    @abstractmethod
    async def start(self) -> None:
        """Bring the actors cast since the last start to life: construct, load, restore when resumed, open."""

    @abstractmethod
    async def respawn(self, name: str) -> None:
        """Bring a lost actor back, with the state of the last snapshot if there is one."""

    @abstractmethod
    async def checkpoint(self, label: str = "last") -> None:
        """Take a snapshot at the next legal instant and write it (each `checkpoint_every`-th call).

        Raises:
            Stopped: the run was asked to stop; the checkpoint is written.
        """

    @abstractmethod
    def usage(self) -> Usage:
        """Return what the run has used so far."""

    @abstractmethod
    def request_stop(self, exit_code: int) -> None:
        """Ask the run to write a checkpoint and end with `Stopped`; safe in a signal handler."""

    @abstractmethod
    def execute(self, main: Callable[[], Awaitable[T]], resume: Snapshot | None = None) -> T:
        """Run the driver coroutine to its end, then stop all that was started.

        Raises:
            FedactorsError: the first failure, naming the party; `Stopped` after `request_stop`.
        """

    def on_loss(self, policy: str | Callable[[str], str], handler: LossHandler | None = None) -> None:
        """Say what follows when an actor's process is gone.

        Args:
            policy: "stop" raises `PartyLost`; "continue" goes on without it; "restart" respawns it; or a function
                from the actor's name to one of these.
            handler: awaited with the actor's name after that, by "continue" and "restart".
        """
        if isinstance(policy, str) and policy not in LOSS_POLICIES:
            raise BadInput(f"on_party_loss: {policy!r} is not allowed: use {', '.join(LOSS_POLICIES)}")
        self._loss_policy = policy
        self._loss_handler = handler

    async def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Record one round's metrics: numbers of the mathematics, never wall time (which `usage` tells)."""
        await self.settle()
        if self.recorder is not None:
            self.recorder.record_round(index, metrics)

    def spend(self, amount: float) -> None:
        """Add to the run's price what was spent on other things than traffic (rented hardware, say)."""
        self.spent += amount

    async def settle(self) -> None:
        """Bring the ledger up to date where it is kept in several processes."""

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the driver's generator for a purpose."""
        return derived_rng(self.seed, DRIVER, purpose)

    def use_costs(self, costs: CostModel) -> None:
        """Offer a protocol's stated default cost model; one that the user gave takes precedence."""

    def use_network(self, network: Network) -> None:
        """Offer a protocol's own links; a network that the user gave takes precedence."""

    # --- shared by the runtimes ---

    def loss_policy(self, name: str) -> str:
        """Return what follows the loss of the actor `name`."""
        return self._loss_policy if isinstance(self._loss_policy, str) else self._loss_policy(name)

    def _take_new(self) -> list[Casting]:
        names, self._new = self._new, []
        return [self._castings[name] for name in names]

    def _role(self, name: str) -> str:
        return DRIVER if name == DRIVER else self._castings[name].cls.role

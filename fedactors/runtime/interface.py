"""What an await means is a runtime's business: the interface between actors, drivers and runtimes.

    actor code ──awaits──▶ Context (one per actor) ──▶ Runtime ──▶ virtual clock, Ray processes, or sites
    run.py     ──awaits──▶ Runtime (the driver's side of the same)

Another runtime implements `Context` (what an actor can await) and `Runtime` (spawning, snapshots, supervision).
What the runtimes share stands here, so that they cannot drift apart.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar, cast

import numpy as np

from fedactors.actors.actor import Resources
from fedactors.actors.context import ACTOR_NAME, Caller, Clock, MissingCost, Work, derived_rng
from fedactors.actors.remote import DRIVER, REPEATS, CallCounts, config_of
from fedactors.errors import BadInput
from fedactors.messages.codec import CodecError, carry
from fedactors.messages.ledger import Usage
from fedactors.runs.party_states import StateLocations

if TYPE_CHECKING:
    from fedactors.actors.actor import Actor
    from fedactors.messages.ledger import Ledger
    from fedactors.network.links import Network
    from fedactors.runs.recorder import Recorder

T = TypeVar("T")
LOSS_POLICIES = ("stop", "continue", "restart")


class CostModel(Protocol):
    """Maps work to seconds on the hardware of an actor; unknown work must raise `MissingCost`."""

    def seconds(self, actor: str, work: Work) -> float:
        """Return the seconds that `work` takes `actor` on one of its cores."""


ALIGNING = "align"
"""Kind of work of an alignment of ids."""
_BEFORE_ROUNDS = {ALIGNING: (0.0, 0.0)}
"""What a cost model may leave out: it comes before the first round, of whose virtual time it takes none."""


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
            fixed, per_unit = self.kinds[work.kind] if work.kind in self.kinds else _BEFORE_ROUNDS[work.kind]
        except KeyError:
            raise MissingCost(
                f"{actor}: no cost is known for {work.kind!r} (known: {', '.join(sorted(self.kinds)) or 'none'})"
            ) from None
        speed = self.speed.get(actor) or self.speed.get(actor.partition("/")[0]) or 1.0
        return (fixed + per_unit * work.units) / speed


@dataclass(frozen=True)
class ActorSpec:
    """One actor to be: its class, name, constructor arguments, resources, and the process that it may share."""

    cls: type[Actor]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    resources: Resources
    process: str = ""

    def counts(self, repeats: int = REPEATS) -> CallCounts:
        """Return what counts the actor's calls, from nothing; see `REPEATS`."""
        return CallCounts(config_of(self.cls, self.args, self.kwargs), repeats)


@dataclass(frozen=True)
class Snapshot:
    """All that a run needs to go on: a frame per actor, and the driver's; `folder` says where, if they lie in files."""

    actors: Mapping[str, bytes]
    driver: bytes
    folder: str = ""


class RuntimeSettings(TypedDict, total=False):
    """What every runtime takes; see `Runtime`."""

    seed: int
    recorder: Recorder | None
    checkpoint_every: int
    reproducible_noise: bool


LossHandler = Callable[[str], Awaitable[None]]


def is_in_loop() -> bool:
    """Say whether an event loop runs here, as in a notebook: another one needs a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def in_thread(call: Callable[[], T]) -> T:
    """Return what a call returns in a thread of its own."""
    with ThreadPoolExecutor(1, "fedactors run") as pool:
        return pool.submit(call).result()


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
    keeps_journals = False
    """Whether parties note what left where no checkpoint rolls it back: one that was lost can be in sums again."""

    def __init__(
        self,
        *,
        seed: int = 0,
        recorder: Recorder | None = None,
        checkpoint_every: int = 1,
        reproducible_noise: bool = False,
    ) -> None:
        self.seed = seed
        self.recorder = recorder
        self.checkpoint_every = checkpoint_every
        self.reproducible_noise = reproducible_noise
        self.state = {}
        self.resumed = False  # whether this run goes on from a snapshot
        self.states = StateLocations()
        """Which parties keep their states themselves; set before the run is executed."""
        self.privacy_records: list[Any] = []
        self.spent = 0.0
        self.num_cores = 0
        """Of the machines that actors' processes are on, once they are known; none where actors are no processes."""
        self.tell: Callable[[str], None] = lambda text: None  # takes what is under way, in words
        self.way_on = ""  # how to go on from a checkpoint that is kept, in a line
        self.watched = False  # whether the records of other processes are wanted every second, not only every round
        self._actor_specs: dict[str, ActorSpec] = {}
        self._new: list[str] = []
        self._loss_policy: str | Callable[[str], str] = "stop"
        self._loss_handler: LossHandler | None = None
        self._leaving_handler: LossHandler | None = None
        self.deadline: float | None = None
        """Seconds that a site may take where the run can go on without it; None: the runtime's own limit."""
        self._last_snapshot: Snapshot | None = None
        self._num_checkpoints = 0
        self._stop_code: int | None = None
        self._failure: BaseException | None = None
        self._main: asyncio.Task[Any] | None = None
        self._is_closing = False

    # --- the driver's verbs ---

    def spawn(
        self, cls: type[T], name: str, *args: Any, resources: Resources | None = None, process: str = "", **kwargs: Any
    ) -> T:
        """Spawn an actor and return its handle; it comes to life at the next `start`.

        Args:
            cls: the actor's class.
            name: unique; the party is the part before a slash ("bank", "bank/worker-0").
            args: small constructor arguments: plain values, arrays, messages, configurations and dataclasses declared
                with `plain`; each actor gets a copy of its own. Data is loaded by the actor itself.
            resources: what it asks of its host; the class's own by default.
            process: actors that give the same name share a process where actors are processes, and are objects in it:
                for many small ones of one trust domain (see `shared_processes`). Those that ask for other resources do
                not share it, and what they ask is asked once. By default each has a process.
            kwargs: more constructor arguments.

        Raises:
            BadInput: the name is taken, or an argument is something else.
        """
        if not ACTOR_NAME.fullmatch(name):
            raise BadInput(
                f"party: {name!r} is not allowed as the name of an actor: use letters, digits, '.', '_' and '-', "
                "beginning with a letter or a digit"
            )
        if name in self._actor_specs or name.partition("/")[0] == DRIVER:
            raise BadInput(f"party: {name!r} is not allowed: the name is taken")
        try:
            args, kwargs = carry((args, kwargs))
        except CodecError as error:
            raise BadInput(
                f"{name}: an argument of its constructor cannot be carried to its process: {error}"
            ) from None
        actor_cls = cast("type[Actor]", cls)
        asked = resources if resources is not None else actor_cls.resources
        self._actor_specs[name] = ActorSpec(actor_cls, name, args, kwargs, asked, process)
        self._new.append(name)
        return self.handle(name, cls)

    def shared_processes(self, names: Sequence[str], per_process: int | None = None) -> dict[str, str]:
        """Return for actors of one trust domain the processes to `spawn` them in, neighbours together.

        Where actors are no processes this changes nothing.

        Args:
            names: of the actors.
            per_process: how many share one; by default there are as many processes as cores, if there are more actors.
        """
        if per_process is None:
            num_cores = self.num_cores or len(names) or 1
            per_process = max(1, -(-len(names) // num_cores))
        if per_process == 1:
            return dict.fromkeys(names, "")
        return {name: names[index - index % per_process] for index, name in enumerate(names)}

    def site_of(self, name: str) -> str:
        """Return the site that hosts an actor of this name; empty where no sites are."""
        return ""

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
        """Bring the actors spawned since the last start to life: construct, load, restore when resumed, open."""

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

    def on_loss(
        self,
        policy: str | Callable[[str], str],
        handler: LossHandler | None = None,
        leaving: LossHandler | None = None,
    ) -> None:
        """Say what follows when an actor's process is gone.

        Args:
            policy: "stop" raises `PartyLost`; "continue" goes on without it; "restart" respawns it; or a function
                from the actor's name to one of these.
            handler: awaited with the actor's name after that, by "continue" and "restart".
            leaving: between sites awaited with the actor's name before others can reach its new process.
        """
        if isinstance(policy, str) and policy not in LOSS_POLICIES:
            raise BadInput(f"on_party_loss: {policy!r} is not allowed: use {', '.join(LOSS_POLICIES)}")
        self._loss_policy = policy
        self._loss_handler = handler
        self._leaving_handler = leaving

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

    def fail(self, error: BaseException) -> None:
        """Stop the run with its first failure."""
        if self._failure is None and not self._is_closing:
            self._failure = error
            if self._main is not None:
                self._main.cancel()

    def loss_policy(self, name: str) -> str:
        """Return what follows the loss of the actor `name`."""
        return self._loss_policy if isinstance(self._loss_policy, str) else self._loss_policy(name)

    def _is_due(self, label: str) -> bool:
        """Count a call of `checkpoint`, and say whether it writes one."""
        self._num_checkpoints += 1
        is_turn = self.checkpoint_every > 0 and self._num_checkpoints % self.checkpoint_every == 0
        return is_turn or label != "last" or self._stop_code is not None

    def _usage(self, **more: Any) -> Usage:
        """Return what the ledger says that the run has used, and what its runtime adds."""
        traffic = {"messages": self.ledger.messages(), "bytes": self.ledger.bytes()}
        price = self.ledger.price(self.network.link) + self.spent
        return Usage(**traffic, header_bytes=self.ledger.header_bytes(), price=price, **more)

    def _take_new(self) -> list[ActorSpec]:
        names, self._new = self._new, []
        return [self._actor_specs[name] for name in names]

    def _role(self, name: str) -> str:
        return DRIVER if name == DRIVER else self._actor_specs[name].cls.role

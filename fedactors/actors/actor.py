"""Actor: a party's process as a plain class with async methods; its four roles, and what it asks of its host.

It is never decorated, never reads a wall clock, sleeps or opens a socket by itself. It awaits a peer's method, a
payload, the clock, or its own heavy work; the runtime that hosts it decides what that means.

    life:  __init__ (small arguments) → load (data, models) → [restore] → open (background loops) → … → close

A role says on which kind of link an actor's messages travel, and nothing else.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from fedactors.actors.context import Clock, Context, Job, Ref, Work, derived_rng, derived_seed, noise_rng
from fedactors.actors.remote import Endpoints, current_caller, make_endpoints
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.messages.fields import dimensions_of, wrong_size
from fedactors.privacy.accounting import without_guarantee

if TYPE_CHECKING:
    from fedactors.privacy.accounting import PrivacyRecord


@dataclass(frozen=True, kw_only=True)
class Resources:
    """CPUs, GPUs, memory and labels that an actor needs.

    A label is a custom Ray resource, such as ``{"dc-oregon": 1}`` for hosts started with
    ``ray start --resources='{"dc-oregon": 1}'``; asking for a small share (0.001) places an actor there without
    using the label up. In the simulated runtime, and on Ray where costs are emulated, the actor's computes queue for
    `simulated_cores` cores, `num_cpus` of them by default; an actor that schedules rented hardware by itself states as
    many as it may ever use.
    """

    num_cpus: float = 0.0
    num_gpus: float = 0.0
    memory: int | None = None
    labels: Mapping[str, float] = field(default_factory=dict)
    simulated_cores: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("num_cpus", self.num_cpus), ("num_gpus", self.num_gpus), ("memory", self.memory or 0)):
            if value < 0:
                raise BadInput(f"{name}: {value} is not allowed: it must be 0 or more")
        for name, value in self.labels.items():
            if value <= 0:
                raise BadInput(f"labels: {name}={value} is not allowed: it must be more than 0")

    @property
    def num_cores(self) -> int:
        """How many computations of the actor run at once."""
        return max(1, int(self.num_cpus if self.simulated_cores is None else self.simulated_cores))

    def demand(self) -> dict[str, float]:
        """Return the requested resources by Ray's names, without zeros."""
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory or 0), **self.labels}
        return {name: value for name, value in asked.items() if value}

    def ray_options(self) -> dict[str, Any]:
        """Return the keyword arguments for Ray's ``options`` of an actor class."""
        options: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        if self.memory:
            options["memory"] = self.memory
        if self.labels:
            options["resources"] = dict(self.labels)
        return options


def queue_for_core(free_at: list[float], now: float, seconds: float) -> tuple[float, float]:
    """Take the core that is free first, and return when work of so many seconds begins and ends on it.

    Args:
        free_at: when each core is free again, as a heap; changed here.
        now: the time on the actor's clock.
        seconds: how long the work takes a core.
    """
    start = max(now, free_at[0])
    heapq.heapreplace(free_at, start + seconds)
    return start, start + seconds


T = TypeVar("T")


class Actor:
    """Base of all actors.

    Class attributes that a subclass sets:
        role: "client", "server", "parameter-server" or "data-center"; decides the kind of link in the ledger.
        state: names of the attributes that make up a snapshot. Allowed values: modules, optimisers and others with
            ``state_dict``/``load_state_dict``, generators, arrays, tensors, messages, plain values and containers.
        resources: what it asks of a host by default.
        payloads: the messages that it may `put` for others to fetch.
        jobs: the functions that it may `begin`; a checkpoint names one of them, and no other code can be run by it.

    What others may call is declared with `fedactors.actors.remote.remote`.
    """

    role: ClassVar[str] = "client"
    state: ClassVar[tuple[str, ...]] = ()
    resources: ClassVar[Resources] = Resources()
    payloads: ClassVar[tuple[type, ...]] = ()
    jobs: ClassVar[tuple[Callable[..., Any], ...]] = ()
    __endpoints__: ClassVar[Endpoints]
    _context: Context
    is_account_level: ClassVar[bool] = True
    """Whether a restored actor's account grows by as much as any record was released since; else it may grow less."""
    _goes_on = False
    """Whether it was restored from a checkpoint, be it one of before the first round: what left after it is unknown."""
    _files: tuple[tuple[str, bytes], ...] = ()
    """Path and digest of each file of its party, as it was when it loaded; see `fedactors.runtime.snapshots`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__endpoints__ = make_endpoints(cls)

    # --- life, overridden where needed ---

    async def load(self) -> None:
        """Load data and build models."""

    async def open(self) -> None:
        """Start background loops, with `background`; called after `load` and a restore."""

    async def close(self) -> None:
        """Release resources other than memory."""

    # --- what an actor can do ---

    @property
    def name(self) -> str:
        """The actor's name; the party is the part before a slash."""
        return self._context.name

    @property
    def party(self) -> str:
        """The name of the organisation that this actor belongs to."""
        return self._context.name.partition("/")[0]

    @property
    def caller(self) -> str:
        """The name of the caller of the endpoint that runs, proved by the connection and never read from a message.

        Raises:
            LookupError: no endpoint runs: it is a loop of this actor's own.
        """
        caller = current_caller.get()
        if caller is None:
            raise LookupError(f"{self.name}: no endpoint runs that anybody called")
        return caller

    @property
    def scope(self) -> str:
        """Names the run among those that are under way in this process: what a process keeps for all is kept by it."""
        return self._context.scope

    @property
    def clock(self) -> Clock:
        """The runtime's clock."""
        return self._context.clock

    def peer(self, name: str, cls: type[T]) -> T:
        """Return a handle of another actor, typed as its class."""
        return self._context.handle(name, cls)

    async def compute(self, function: Callable[..., T], *args: Any, work: Work) -> T:
        """Run a module-level pure function (seed included in its arguments) and return its result.

        In the simulated runtime the result is there when the cost model says so, and the computes of an actor queue
        for its cores. In the Ray runtime the function runs here and blocks only this actor.

        Raises:
            MissingCost: the simulated runtime has no cost for this kind of work.
        """
        return await self._context.compute(function, args, work)

    def begin(self, key: str, function: Callable[..., Any], *args: Any, work: Work) -> Job:
        """Start work that outlives a snapshot; ``await`` the job, or find it again under `key` after a resume.

        A loop writes ``job = self.job(key) or self.begin(key, ...)`` and keeps nothing else in local variables.
        """
        if function not in self.jobs:
            raise FedactorsError(f"{self.name}: begins {function.__name__}, which is not among its class's jobs")
        return self._context.begin(key, function, args, work)

    def job(self, key: str) -> Job | None:
        """Return the work begun under `key` whose result was not yet taken."""
        return self._context.job(key)

    def background(self, awaitable: Awaitable[Any]) -> None:
        """Run a coroutine or an unawaited call in the background; if it fails, the run stops with this actor's name."""
        self._context.background(awaitable)

    def put(self, value: Any, to: str | Sequence[str]) -> Ref:
        """Keep a payload here, and return a small reference to send to its readers.

        Args:
            value: a message of a type that the class names in `payloads`.
            to: names of the actors or parties that may fetch it; nobody else can.
        """
        return self._context.put(value, frozenset((to,) if isinstance(to, str) else to))

    async def get(self, ref: Ref) -> Any:
        """Fetch a payload from its owner; the ledger records its bytes.

        Raises:
            Refused: it was put for others, or there is no such payload.
            PartyLost: the owner is gone.
            PayloadGone: the owner has freed it (also a KeyError).
        """
        return await self._context.get(ref)

    def output(self, to: str) -> Path:
        """Return the path on this party's host for a file that the driver calls `to`."""
        return self._context.output(to)

    def free(self, ref: Ref) -> None:
        """Free a payload that this actor keeps."""
        self._context.free(ref)

    def span(self, kind: str, label: str) -> AbstractContextManager[None]:
        """Record the code inside on the timeline, as "wait" or another kind."""
        return self._context.span(kind, label)

    def record_span(self, kind: str, label: str, start: float, end: float) -> None:
        """Put something on the timeline that began before a snapshot or in another method."""
        self._context.record_span(kind, label, start, end)

    def release(
        self, what: str, key: object = "", *, at_most: int = 1, round: int = 0, last_round: int | None = None
    ) -> None:
        """Count what depends on private rows before it is drawn and leaves, however it was ordered.

        Args:
            what: is released, in a word or two.
            key: of one release: the same one may leave `at_most` times in a round.
            at_most: times.
            round: of the training; one that is over releases no more.
            last_round: that is approved; None: this one.

        Raises:
            Refused: it left as often already, or in this round nothing may leave.
        """
        named = f" {key}" if key != "" else ""
        self._context.counts.release(
            self.name, what, named, at_most, round, round if last_round is None else last_round
        )

    def catch_up(self, left: Mapping[str, tuple[int, int]]) -> None:
        """Learn what left, be it after the checkpoint that this actor goes on from, before it is opened; overridden.

        Args:
            left: by bounded endpoint: how many answers left, and the last number that grows (a round's; else 0).
        """

    def known_sizes(self, message: Any, sender: str) -> Mapping[str, int]:
        """Return the sizes of a message's dimensions that this actor knows, by their names; overridden.

        Args:
            message: that arrived, whose fields state `fedactors.messages.fields.Dimensions`.
            sender: whose it is.
        """
        return {}

    def check_sizes(self, message: Any, sender: str | None = None) -> None:
        """Check the dimensions of a message's arrays against each other, and against what this actor knows.

        Args:
            message: a message that arrived.
            sender: whose it is; None: the caller's.

        Raises:
            Refused: naming the sender, the field, its shape and what is expected.
        """
        if not dimensions_of(message.__class__):
            return
        name = self.caller if sender is None else sender
        if (wrong := wrong_size(message, lambda one: self.known_sizes(one, name))) is not None:
            raise Refused(name, f"sends {self.name} {wrong}")

    def count_forwarded(self, method: str, value: Any) -> None:
        """Count a call of one of the own endpoints that came inside of another message.

        Raises:
            Refused: it was called as often as is approved.
        """
        endpoint = self.__endpoints__.table[method]
        if endpoint.bound is not None:
            self._context.counts.admit(endpoint, endpoint.bound, self.caller, self, value)

    def record_privacy(self, record: PrivacyRecord) -> None:
        """Add a line to the privacy ledger: the mechanism applied to a release of this party.

        With ``reproducible_noise`` the line says that nothing is guaranteed.

        Raises:
            Refused: the record is another party's.
        """
        if record.party != self.party:
            raise Refused(self.name, f"records a release of {record.party!r}; a party speaks for itself only")
        if self._context.reproducible_noise:
            record = without_guarantee(record)
        self._context.record_privacy(record)

    def planned_privacy(self) -> Iterable[PrivacyRecord]:
        """Return what a run with these settings releases of the own rows, as lines of the ledger; overridden.

        A site refuses a run whose plan goes beyond what was announced. Before the rows are known there is no plan.
        """
        return ()

    def rng(self, purpose: str) -> np.random.Generator:
        """Return a generator derived from (run seed, this actor, purpose); the same each time it is asked for."""
        return derived_rng(self._context.seed, self.name, purpose)

    def seed(self, purpose: str) -> int:
        """Return a 63-bit seed derived like `rng`'s, for torch generators and compute functions."""
        return derived_seed(self._context.seed, self.name, purpose)

    def party_seed(self, purpose: str) -> int:
        """Return a seed that is the same for all actors of this party, for replicated models."""
        return derived_seed(self._context.seed, self.party, purpose)

    def noise_rng(self, purpose: str) -> np.random.Generator:
        """Return a generator for privacy noise, masks and salts, from the operating system's entropy.

        With ``reproducible_noise`` (tests, simulation) it is derived from the run's seed, and nothing is private.
        """
        context = self._context
        return noise_rng(context.seed, self.name, purpose, context.reproducible_noise)

    @property
    def draws_reproducibly(self) -> bool:
        """Whether noise, masks and salts follow from the run's seed, so that nothing is private."""
        return self._context.reproducible_noise


class Client(Actor):
    """An actor of a party that owns data."""

    role: ClassVar[str] = "client"


class Server(Actor):
    """A coordinator that owns no data."""

    role: ClassVar[str] = "server"
    resources: ClassVar[Resources] = Resources()


class ParameterServer(Actor):
    """Keeps the parameters that the workers of one party share."""

    role: ClassVar[str] = "parameter-server"


class DataCenter(Actor):
    """A site that runs many clients' work on its own resources and talks to other sites."""

    role: ClassVar[str] = "data-center"

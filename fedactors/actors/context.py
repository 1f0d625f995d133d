"""What an actor can await: its context, which the runtime that hosts it implements, and what passes through it.

    actor ──call, compute, begin, put, get──▶ Context ──▶ virtual clock, Ray processes, or sites

A `Handle` turns a method's call into a message to an endpoint; a `Ref` stands for a payload that stays with its owner;
a `Job` is work that outlives a snapshot. Generators are derived from (run seed, actor, purpose).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from fedactors.actors.remote import CallCounts
from fedactors.errors import FedactorsError
from fedactors.messages.codec import message

T = TypeVar("T")


ACTOR_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*(/[A-Za-z0-9][A-Za-z0-9_.\-]*)*")  # file names, and words


@dataclass(frozen=True, slots=True)
class Work:
    """What a compute does and how much of it: the cost model maps it to seconds in the simulated runtime."""

    kind: str
    units: float = 1.0


class MissingCost(FedactorsError):
    """The simulated runtime has no cost for a kind of work; it never assumes zero seconds."""

    exit_code = 2


@message(reveals="the owner's name and the payload's size; nothing of its content")
class Ref:
    """A payload that stays with its owner until it is fetched; `key` cannot be guessed."""

    owner: str
    key: int
    num_bytes: int
    location: tuple[int, ...]
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
    """A reference to an actor by name: calling an endpoint sends its message and returns the awaitable reply.

    The message leaves at the call, awaited or not; a call that fails and that nobody awaits stops the run.
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
    """A caller of an actor: another actor, or the driver."""

    name: str
    clock: Clock

    @abstractmethod
    def call(self, receiver: str, method: str, value: Any) -> Awaitable[Any]:
        """Send a message (None: a bare call) to an endpoint and return the awaitable reply.

        Raises:
            Refused: it is no endpoint of the receiver, not open to this caller, or takes another message.
        """

    def handle(self, name: str, cls: type[T]) -> T:
        """Return a handle of the actor `name`, typed as its class."""
        return cast(T, Handle(self, name))


class Context(Caller):
    """What one actor can await: given to it by the runtime that hosts it."""

    seed: int
    reproducible_noise: bool
    is_between_organisations = False
    """Whether other organisations' sites take part in the run."""
    scope = ""
    """Names the run among those that are under way in this process; empty: there is no other."""
    counts: CallCounts
    keeps_journal = False
    """Whether what left is written down where no checkpoint rolls it back; see `Actor.catch_up`."""

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
        """Free a payload that this actor keeps; unknown ones are ignored."""

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

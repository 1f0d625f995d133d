"""The actors that a site hosts in a run, wherever they live: what the run at the site asks of them."""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedactors.errors import Refused
from fedactors.network.codec import Parts, encode_parts
from fedactors.network.ledger import Row
from fedactors.remote import DRIVER
from fedactors.runtime.base import Casting
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import UnawaitedCall
from fedactors.runtime.federated.gate import Gate, Place
from fedactors.runtime.federated.pieces import value_of
from fedactors.runtime.hosted import WallClock

if TYPE_CHECKING:
    from fedactors.runtime.federated.kept_states import Earlier

Totals = Sequence[tuple[str, str, str, str, int, int]]
"""Sender, receiver, kind, type, messages, bytes."""


class Life(enum.IntEnum):
    """How far a run has come at a site."""

    APPROVED = 0
    PREPARED = 1
    CONNECTED = 2
    LOADED = 3
    OPEN = 4
    CLOSED = 5
    ENDED = 6


class Outside(Protocol):
    """The run at its site, as its actors need it: the way to other sites, which leads through the gate."""

    gate: Gate
    unawaited: UnawaitedCall

    def send(self, site: str, purpose: str, parts: Parts, what: str) -> asyncio.Future[Any]:
        """Send a request to another site; return the future of its reply's bytes."""

    def note(self, error: Refused) -> None:
        """Hear that something was refused, which stops the run."""

    def failed(self, actor: str, error: BaseException) -> None:
        """Hear that something of an actor failed, which stops the run."""

    def output(self, to: str) -> Path:
        """Return where a file that the driver asked for goes."""


@dataclass
class Recorded:
    """What actors recorded since they were last asked."""

    rows: list[Row] = field(default_factory=list)
    spans: list[tuple[str, str, str, float, float]] = field(default_factory=list)
    privacy: list[Any] = field(default_factory=list)


class Household(ABC):
    """See the module. Whatever an actor's code raises is told as of that actor (`words.code_of`)."""

    @abstractmethod
    async def cast(self, castings: Sequence[Casting], seed: int, clock: WallClock) -> None:
        """Make the actors; `seed` is of their generators, `clock` the run's."""

    @abstractmethod
    async def load(self, earlier: Earlier | None) -> None:
        """Let them load their data, and go on from an earlier run."""

    @abstractmethod
    async def open(self, start: float) -> None:
        """Start their loops, the run having begun at `start`."""

    @abstractmethod
    async def serve(self, path: CallPath, value: Any) -> Any:
        """Do what a call from another site, or the driver, asks, its door and message having been checked.

        The reply is checked in this process: as the actor gives it, or as it comes from a process of its own.
        """

    @abstractmethod
    async def read(self, owner: str, key: int, reader: str) -> Any:
        """Return a payload for a reader at another site, who may have it; it is checked as replies are."""

    @abstractmethod
    async def account(self, party: str) -> list[Any]:
        """Return what a party's actors say, at their door `account`, that they have released; it is not recorded."""

    @abstractmethod
    async def snapshots(self) -> dict[str, bytes]:
        """Return the actors' states, sealed."""

    @abstractmethod
    async def settle(self) -> None:
        """Fetch what the actors have recorded."""

    @abstractmethod
    def recorded(self) -> Recorded:
        """Return what was recorded and fetched, once."""

    @abstractmethod
    def totals(self) -> Mapping[str, Totals]:
        """Return the messages of each actor so far."""

    @abstractmethod
    def waiting(self) -> Mapping[str, float]:
        """Return the seconds that each actor has waited so far."""

    @abstractmethod
    def cpu_seconds(self) -> float:
        """Return the processor time of processes of their own."""

    @abstractmethod
    async def close(self) -> None:
        """Close all actors, the run being done."""

    @abstractmethod
    def end(self) -> None:
        """Stop whatever is left of them, at once."""


def not_taken(name: str) -> Refused:
    """Return what is said of arguments that the class of an actor does not take."""
    return Refused(DRIVER, f"casts {name} with other arguments than it takes")


async def fetch_abroad(outside: Outside, reader: str, place: Place, key: int) -> Any:
    """Return a payload of an actor of another site, for one of this site's.

    Raises:
        Refused: what came is no payload of its class.
    """
    asked = encode_parts((reader, place.name, key))
    value = value_of(await outside.send(place.site, "payloads", asked, f"a payload of {place.name}"), place.name)
    outside.gate.payload_in(place, reader, value)
    return value

"""The traffic ledger: every message that crossed between actors, for every protocol and baseline alike.

A row is (time, sender, receiver, kind, type, bytes); the kind is one of `KINDS`. Bytes are those of the arrays,
texts and raw bytes really sent; each message costs `HEADER_BYTES` more on a link, which totals state apart.
Rows go to a sink (the run folder's Parquet file) in blocks; memory holds the totals and one block.

The ledger proves what honest code sent through the framework. It proves nothing about a malicious party, about
what the driver reads, or about what can be inferred from what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fedactors.messages.codec import HEADER_BYTES

CLIENT_SERVER = "client-server"
CLIENT_CLIENT = "client-client"
INTRA_PARTY = "intra-party"
INTER_DATA_CENTER = "inter-data-center"
DRIVER = "driver"
KINDS = (CLIENT_SERVER, CLIENT_CLIENT, INTRA_PARTY, INTER_DATA_CENTER, DRIVER)

Row = tuple[float, str, str, str, str, int]
BLOCK = 16_384


@dataclass(frozen=True)
class Total:
    """Messages and bytes of one (sender, receiver, kind, type)."""

    sender: str
    receiver: str
    kind: str
    type: str
    messages: int
    bytes: int


def kind_of(sender: str, sender_role: str, receiver: str, receiver_role: str) -> str:
    """Return the kind of link between two actors; traffic with the driver is control, not communication."""
    if sender_role == DRIVER or receiver_role == DRIVER:
        return DRIVER
    if sender.partition("/")[0] == receiver.partition("/")[0]:
        return INTRA_PARTY
    if sender_role == "data-center" and receiver_role == "data-center":
        return INTER_DATA_CENTER
    if "server" in (sender_role, receiver_role):
        return CLIENT_SERVER
    return CLIENT_CLIENT


def merged(totals: Iterable[tuple[str, str, str, str, int, int]]) -> list[tuple[str, str, str, str, int, int]]:
    """Return the totals of several ledgers' states as one, sorted."""
    found: dict[tuple[str, str, str, str], list[int]] = {}
    for sender, receiver, kind, type_, messages, num_bytes in totals:
        total = found.setdefault((sender, receiver, kind, type_), [0, 0])
        total[0] += messages
        total[1] += num_bytes
    return [(*key, messages, size) for key, (messages, size) in sorted(found.items())]


class Ledger:
    """Rows in, totals and blocks out.

    Args:
        sink: receives each full block of rows; without one only the totals are kept.
    """

    def __init__(self, sink: Callable[[list[Row]], None] | None = None) -> None:
        self._sink = sink
        self._rows: list[Row] = []
        self._totals: dict[tuple[str, str, str, str], list[int]] = {}
        self._order: list[tuple[str, str, str, str]] = []
        """The keys of the totals, sorted, as they were when somebody last wanted them so."""

    def record(self, time: float, sender: str, receiver: str, kind: str, type_: str, num_bytes: int) -> None:
        """Add one message."""
        key = (sender, receiver, kind, type_)
        total = self._totals.get(key)
        if total is None:
            self._totals[key] = [1, num_bytes]
        else:
            total[0] += 1
            total[1] += num_bytes
        if self._sink is not None:
            self._rows.append((time, sender, receiver, kind, type_, num_bytes))
            if len(self._rows) >= BLOCK:
                self.flush()

    def flush(self) -> None:
        """Hand the rows of the block begun to the sink."""
        if self._sink is not None and self._rows:
            rows, self._rows = self._rows, []
            self._sink(rows)

    def totals(self) -> list[Total]:
        """Return the totals, sorted, traffic with the driver included."""
        return [Total(*key, *self._totals[key]) for key in self._sorted()]

    def messages(self, *kinds: str) -> int:
        """Return the number of messages of these kinds (by default all but the driver's)."""
        return sum(found[0] for (_, _, kind, _), found in self._totals.items() if self._counts(kind, kinds))

    def bytes(self, *kinds: str) -> int:
        """Return the bytes of these kinds (by default all but the driver's), headers apart."""
        return sum(found[1] for (_, _, kind, _), found in self._totals.items() if self._counts(kind, kinds))

    def header_bytes(self) -> int:
        """Return the bytes of the headers of all messages but the driver's."""
        return HEADER_BYTES * self.messages()

    def price(self, link: Callable[[str, str, str], Any]) -> float:
        """Return what all messages cost, `link(sender, receiver, kind)` being the `Link` they took."""
        return float(
            sum(
                link(sender, receiver, kind).price(size + HEADER_BYTES * messages)
                for sender, receiver, kind, _, messages, size in self.state()
                if kind != DRIVER
            )
        )

    def state(self) -> list[tuple[str, str, str, str, int, int]]:
        """Return the totals as plain values for a snapshot."""
        pairs = ((key, self._totals[key]) for key in self._sorted())
        return [(*key, messages, size) for key, (messages, size) in pairs]

    def restore(self, state: Iterable[tuple[str, str, str, str, int, int]]) -> None:
        """Continue from the totals of a snapshot."""
        self._totals = {(s, r, k, t): [m, b] for s, r, k, t, m, b in state}
        self._order = []

    def _sorted(self) -> list[tuple[str, str, str, str]]:
        """Return the keys of the totals, whose number only grows."""
        if len(self._order) != len(self._totals):
            self._order = sorted(self._totals)
        return self._order

    @staticmethod
    def _counts(kind: str, kinds: tuple[str, ...]) -> bool:
        return kind in kinds if kinds else kind != DRIVER


@dataclass(frozen=True)
class Usage:
    """What a run used. Seconds are those of the runtime's clock; bytes and messages leave the driver's out."""

    messages: int
    bytes: int
    header_bytes: int
    seconds: float
    wall_seconds: float
    cpu_utilisation: float
    idle_seconds: float
    price: float
    overhead_seconds: float = 0.0
    """Processor time of the actors' processes outside of `compute`; the virtual clock knows none."""

"""The timeline of a run: spans of what each actor did, streamed to disk, and their sums per actor and party.

Memory does not grow with the run: spans go to a sink line by line, only sums are kept. After ``max_spans`` spans only
the sums go on, and `summary` says how many spans were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedactors.messages.ledger import DRIVER, Total
from fedactors.runs.metrics import json_line

WAIT = "wait"
COMPUTE = "compute"
LOST = "lost"
"""A span without length: the run goes on without its actor, or with a fresh one."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something an actor did from ``start`` to ``end``, in seconds of the runtime's clock."""

    actor: str
    kind: str
    label: str
    start: float
    end: float


@dataclass
class EventLog:
    """Writes spans and marks through ``sink`` (one JSON line each) and adds up seconds per actor and kind."""

    sink: Callable[[str], None]
    max_spans: int = 200_000
    num_spans: int = 0
    totals: dict[str, dict[str, float]] = field(default_factory=dict)
    num_computes: dict[str, int] = field(default_factory=dict)

    def span(self, span: Span) -> None:
        """Record one span; an end before its start is a `ValueError`."""
        if span.end < span.start:
            raise ValueError(f"span {span.label!r} of {span.actor} ends at {span.end} before its start {span.start}")
        self.count(span)
        if self.num_spans <= self.max_spans or span.kind == LOST:
            self.sink(json_line({"type": "span", **vars(span)}))

    def count(self, span: Span) -> None:
        """Add a span to the sums only, such as one that the run before a resume wrote."""
        kinds = self.totals.setdefault(span.actor, {})
        kinds[span.kind] = kinds.get(span.kind, 0.0) + (span.end - span.start)
        if span.kind == COMPUTE:
            self.num_computes[span.actor] = self.num_computes.get(span.actor, 0) + 1
        self.num_spans += 1

    def mark(self, kind: str, values: Mapping[str, Any]) -> None:
        """Record a moment, such as the end of a round; marks are never left out."""
        self.sink(json_line({"type": kind, **values}))

    @property
    def dropped(self) -> int:
        """How many spans were only added up."""
        return max(0, self.num_spans - self.max_spans)

    def idle_seconds(self) -> dict[str, float]:
        """Seconds each actor spent waiting, by name."""
        return {actor: kinds.get(WAIT, 0.0) for actor, kinds in sorted(self.totals.items())}

    def busy_seconds(self) -> dict[str, float]:
        """Seconds each actor spent on anything but waiting, by name."""
        return {
            actor: sum(seconds for kind, seconds in kinds.items() if kind != WAIT)
            for actor, kinds in sorted(self.totals.items())
        }

    def summary(self) -> dict[str, Any]:
        """Return the last line of the log: sums per actor and kind, and how many spans were left out."""
        actors = {actor: dict(sorted(kinds.items())) for actor, kinds in sorted(self.totals.items())}
        return {"actors": actors, "spans": self.num_spans, "dropped": self.dropped}


@dataclass
class Activity:
    """The sums of one party's actors since the run began; seconds are those of the runtime's clock."""

    party: str
    num_actors: int = 0
    num_computes: int = 0
    """Pieces of work, such as a batch's forward or backward pass."""
    computing: float = 0.0
    waiting: float = 0.0
    sent: int = 0
    """Bytes to other parties."""
    received: int = 0
    """Bytes from other parties."""


Look = Callable[[], list[Activity]]


def activities(totals: Iterable[Total], events: EventLog) -> list[Activity]:
    """Return what each party has done, by name; traffic with the driver is control and left out.

    Args:
        totals: of the run's ledger.
        events: of the run's timeline.
    """
    found: dict[str, Activity] = {}
    known: set[str] = set()

    def of(actor: str) -> Activity:
        party = actor.partition("/")[0]
        entry = found.setdefault(party, Activity(party))
        entry.num_actors += actor not in known
        known.add(actor)
        return entry

    # copies: a display looks from a thread of its own while the run goes on
    for actor, kinds in list(events.totals.items()):
        if actor == DRIVER:
            continue
        entry = of(actor)
        entry.num_computes += events.num_computes.get(actor, 0)
        entry.computing += kinds.get(COMPUTE, 0.0)
        entry.waiting += kinds.get(WAIT, 0.0)
    for total in totals:
        sender, receiver = total.sender.partition("/")[0], total.receiver.partition("/")[0]
        if total.kind == DRIVER or sender == receiver:
            continue
        of(total.sender).sent += total.bytes
        of(total.receiver).received += total.bytes
    return sorted(found.values(), key=lambda entry: entry.party)

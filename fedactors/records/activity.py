"""What each party of a run has done so far, for a display: summed from the ledger's totals and the timeline's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedactors.network.ledger import DRIVER, Total
from fedactors.records.events import COMPUTE, WAIT, EventLog


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

"""The runs that wait for a site: their order, and for whom the site is reserved.

    driver ──queue──▶ last in order ──its turn──▶ reserved ──propose──▶ under way, and no longer in the queue

    what a driver does                               what becomes of its run
    asks for its position again and again            it is ready: the first ready run reserves the free site
    stops asking: killed, frozen, busy elsewhere     it keeps its position and is passed over, after `READY_SECONDS`
    is gone for `ABSENT_SECONDS`                     it leaves the queue
    does not begin while other coordinators wait     after `policy.reservation_seconds` all runs of its coordinator are
                                                     behind those of others, and are passed over for as long

A driver reserves its sites in the order of their names, so that no two wait for each other. With several slots a site
too: take the last site by name that somebody waits for. Who has a slot there waits for no later one, so it begins and
ends, and then the first in order has its turn, also one that has to be alone there.

Here are no clock and no I/O: `now` is an argument, in seconds of the monotonic clock, and `site.SiteProcess` does what
follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import asyncio

    from fedactors.federation.approval import Proposal
    from fedactors.federation.session import Connection
    from fedactors.federation.site_folder import RunLimits, Totals
    from fedactors.federation.site_run import SiteRun

QUEUED = "queue"
"""What a driver that waits says in its handshake."""
READY_SECONDS = 15.0
"""A driver that lost one site lets its others go after so long: a reservation lasts for longer, or runs take turns."""
ABSENT_SECONDS = 30.0
POLL_SECONDS = 5.0
"""After which a driver is told its position, whether or not that has changed."""


@dataclass(eq=False)
class QueuedRun:
    """A run that waits for a site; `since` is in seconds since 1970, `hosts` as when it was proposed."""

    coordinator: str
    run: str
    since: float
    proposal: Proposal | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    link: Connection | None = None
    absent_since: float | None = None
    """None: its driver is connected."""
    is_asking: bool = False
    asked_at: float = -math.inf
    is_approved: bool = False
    """By a person, who answers at this site: others that nobody has answered come later."""
    priority: int = 0
    """Of its coordinator, as the site's policy says: no driver states one."""
    rejection: str | None = None

    def is_ready(self, now: float) -> bool:
        """Say whether its driver would begin now."""
        if self.proposal is None or self.absent_since is not None or self.rejection is not None:
            return False
        return self.is_asking or now - self.asked_at <= READY_SECONDS


class Demand(NamedTuple):
    """What a run takes of a site."""

    limits: RunLimits
    first: str
    """The run that it goes on from in the end, or itself."""
    is_alone: bool
    """Whether its limits can be held to only while no other run is under way: they are of the site's process."""


@dataclass(eq=False)
class ActiveRun:
    """A run that a site is busy with: its driver is connected, or the site is reserved for it."""

    coordinator: str
    run: str
    driver: Connection | None = None
    proposal: Proposal | None = None
    demand: Demand | None = None
    """None: its driver has proposed nothing."""
    is_considered: bool = False
    """Its proposal is checked, or waits for its answer."""
    is_unanswered: bool = False
    site_run: SiteRun | None = None
    """Since it was approved."""
    watch: asyncio.Task[None] | None = None
    """What ends it when there is a reason to."""
    idle_since: float | None = None
    """Since when its driver is connected and has proposed nothing; None: it has."""
    why: str = ""
    """What its driver said before it went."""


def why_not_beside(demand: Demand, others: Iterable[ActiveRun], totals: Totals) -> str | None:
    """Return why a run may not be under way beside others; None: it may."""
    known = [(one.coordinator, one.demand) for one in others if one.demand is not None]
    for coordinator, other in known:
        if other.first == demand.first:
            return "it goes on from the same run as one that is under way"
        if other.is_alone:
            return f"a run of {coordinator} is alone here: its limits are those of the site's process"
    if demand.is_alone and known:
        return "its limits are those of the site's process, where it has to be alone"
    return totals.exceeded_by([demand.limits, *(other.limits for _, other in known)])


class RunQueue:
    """The runs that wait for one site: by priority, and in the order in which they came."""

    def __init__(self) -> None:
        self._runs: list[QueuedRun] = []
        self._reserved: dict[QueuedRun, float] = {}
        """Since when."""
        self._refused_at: dict[str, float] = {}
        """By coordinator: when a driver of theirs that does not wait was refused."""
        self._passed_over: dict[str, float] = {}
        """By coordinator: until when its runs are passed over."""

    def __iter__(self) -> Iterator[QueuedRun]:
        return iter(tuple(self._runs))

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, coordinator: str, run: str) -> QueuedRun | None:
        """Return the run, if it waits."""
        return next((one for one in self._runs if (one.coordinator, one.run) == (coordinator, run)), None)

    def why_full(self, coordinator: str, most: int, most_in_all: int) -> str | None:
        """Return why a coordinator's further run may not wait; None: it may.

        A coordinator's first run always may: nobody is kept out by the runs of others.
        """
        waiting = sum(one.coordinator == coordinator for one in self._runs)
        if waiting >= most:
            return f"{waiting} runs of {coordinator} wait already; at most {most} (policy.queued_runs)"
        if waiting and len(self._runs) >= most_in_all:
            return f"{len(self._runs)} runs wait already; at most {most_in_all} (policy.queue_length)"
        return None

    def add(self, run: QueuedRun) -> None:
        """Let a run wait behind all others."""
        self._runs.append(run)

    def order(self, priority: Mapping[str, int]) -> None:
        """Let runs of coordinators with a higher priority come first; those of the same keep their order."""
        for one in self._runs:
            one.priority = priority.get(one.coordinator, 0)
        self._runs.sort(key=lambda one: -one.priority)

    @property
    def reserved(self) -> tuple[QueuedRun, ...]:
        """The runs for which the site is reserved."""
        return tuple(self._reserved)

    def remove(self, run: QueuedRun) -> None:
        """Let a run wait no longer; again does nothing."""
        if run in self._runs:
            self._runs.remove(run)
        self._reserved.pop(run, None)

    def refused(self, coordinator: str, now: float) -> None:
        """Count a driver, which did not want to wait, as one that waits."""
        self._refused_at[coordinator] = now

    def turns(self, now: float, active: Sequence[str] = (), most: int | None = None) -> list[QueuedRun]:
        """Return the ready runs in order: approved, by priority, of whom fewest are under way, as they came.

        Args:
            now: on the monotonic clock.
            active: coordinators of the runs that are under way.
            most: runs of one coordinator that may be.
        """
        self._passed_over = {who: until for who, until in self._passed_over.items() if until > now}
        full = {who for who in active if most is not None and active.count(who) >= most}
        ready = [one for one in self._runs if one.is_ready(now) and one not in self._reserved]
        ready = [one for one in ready if one.coordinator not in self._passed_over.keys() | full]
        return sorted(ready, key=lambda one: (not one.is_approved, -one.priority, active.count(one.coordinator)))

    def reserve(
        self,
        now: float,
        active: Sequence[str] = (),
        most: int | None = None,
        fits: Callable[[QueuedRun], bool] = lambda _: True,
    ) -> QueuedRun | None:
        """Reserve a free slot of the site for the first ready run if it fits, and return it; None: it does not.

        A run that does not fit beside those under way keeps its turn: smaller ones do not overtake it for ever. One
        whose coordinator has a run under way is overtaken: it might wait for that one, and others with it.
        """
        for turn in self.turns(now, active, most):
            if fits(turn):
                self._reserved[turn] = now
                return turn
            if turn.coordinator not in active:
                return None
        return None

    def release(self, now: float, most_seconds: float) -> list[QueuedRun]:
        """End reservations whose drivers are not ready any more, or keep others waiting; return their runs."""
        ended = []
        for held, since in list(self._reserved.items()):
            others = (one for one in self._runs if one.coordinator != held.coordinator and one not in self._reserved)
            is_waited_for = any(one.is_ready(now) for one in others) or any(
                at >= since for who, at in self._refused_at.items() if who != held.coordinator
            )
            if held.is_ready(now):
                if not is_waited_for or now - since <= most_seconds:
                    continue
                self._runs.sort(key=lambda one, held=held: one.coordinator == held.coordinator)  # type: ignore[misc]
                self._passed_over[held.coordinator] = now + most_seconds
            del self._reserved[held]
            ended.append(held)
        return ended

    def absent(self, now: float) -> list[QueuedRun]:
        """Return the runs whose drivers have been gone for too long."""
        gone = [(one, one.absent_since) for one in self._runs]
        return [one for one, since in gone if since is not None and now - since > ABSENT_SECONDS]

    def position(self, run: QueuedRun) -> int:
        """Return 0 where the site is reserved for a run, else how many of those that wait it is."""
        if run in self._reserved:
            return 0
        return 1 + [one for one in self._runs if one not in self._reserved].index(run)

    def ahead(self, run: QueuedRun) -> QueuedRun | None:
        """Return the run just before this one; None: it is the first."""
        index = self._runs.index(run)
        return self._runs[index - 1] if index else None

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Return who waits, JSON-ready."""

        def state(one: QueuedRun) -> str:
            if one in self._reserved:
                return "reserved"
            return "ready" if one.is_ready(now) else "connected" if one.absent_since is None else "absent"

        return [
            {
                "run": one.run,
                "coordinator": one.coordinator,
                "protocol": one.proposal.protocol,
                "position": self.position(one),
                "priority": one.priority,
                "since": one.since,
                "state": state(one),
            }
            for one in self._runs
            if one.proposal is not None
        ]

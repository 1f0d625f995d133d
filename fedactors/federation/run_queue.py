"""The runs that wait for a site: their order, and for whom the site is reserved.

    driver ──queue──▶ last in order ──its turn──▶ reserved ──propose──▶ under way, and no longer in the queue

    what a driver does                               what becomes of its run
    asks for its position again and again            it is ready: the first ready run reserves the free site
    stops asking: killed, frozen, busy elsewhere     it keeps its position and is passed over, after `READY_SECONDS`
    is gone for `ABSENT_SECONDS`                     it leaves the queue
    does not begin while other coordinators wait     after `policy.reservation_seconds` all runs of its coordinator are
                                                     behind those of others, and are passed over for as long

A driver reserves its sites in the order of their names, so that no two wait for each other. Here are no clock and no
I/O: `now` is an argument, in seconds of the monotonic clock, and `site.SiteProcess` does what follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedactors.federation.approval import Proposal
    from fedactors.federation.session import Connection

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
    rejection: str | None = None

    def is_ready(self, now: float) -> bool:
        """Say whether its driver would begin now."""
        if self.proposal is None or self.absent_since is not None or self.rejection is not None:
            return False
        return self.is_asking or now - self.asked_at <= READY_SECONDS


class RunQueue:
    """The runs that wait for one site, in the order in which they came."""

    def __init__(self) -> None:
        self.reserved: QueuedRun | None = None
        self._runs: list[QueuedRun] = []
        self._reserved_at = 0.0
        self._refused_at = -math.inf
        """When a driver that does not wait was refused because of the reservation."""
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

    def remove(self, run: QueuedRun) -> None:
        """Let a run wait no longer; again does nothing."""
        if run in self._runs:
            self._runs.remove(run)
        if self.reserved is run:
            self.reserved = None

    def refused(self, now: float) -> None:
        """Count a driver of another coordinator, which did not want to wait, as one that waits."""
        self._refused_at = now

    def reserve(self, now: float) -> QueuedRun | None:
        """Reserve the free site for the first ready run, and return it; None: there is none."""
        self._passed_over = {who: until for who, until in self._passed_over.items() if until > now}
        ready = [one for one in self._runs if one.is_ready(now) and one.coordinator not in self._passed_over]
        self.reserved = min(ready, key=lambda one: not one.is_approved, default=None)
        self._reserved_at = now
        return self.reserved

    def release(self, now: float, most_seconds: float) -> bool:
        """End a reservation whose driver is not ready any more, or keeps others waiting; say whether it has ended."""
        held = self.reserved
        if held is None:
            return False
        if not held.is_ready(now):
            self.reserved = None
            return True
        is_waited_for = self._refused_at >= self._reserved_at or any(
            one.is_ready(now) for one in self._runs if one.coordinator != held.coordinator
        )
        if not is_waited_for or now - self._reserved_at <= most_seconds:
            return False
        self._runs.sort(key=lambda one: one.coordinator == held.coordinator)  # each keeps its order
        self._passed_over[held.coordinator] = now + most_seconds
        self.reserved = None
        return True

    def absent(self, now: float) -> list[QueuedRun]:
        """Return the runs whose drivers have been gone for too long."""
        gone = [(one, one.absent_since) for one in self._runs]
        return [one for one, since in gone if since is not None and now - since > ABSENT_SECONDS]

    def position(self, run: QueuedRun) -> int:
        """Return 0 where the site is reserved for a run, else how many of those that wait it is."""
        if run is self.reserved:
            return 0
        return 1 + [one for one in self._runs if one is not self.reserved].index(run)

    def ahead(self, run: QueuedRun) -> QueuedRun | None:
        """Return the run just before this one; None: it is the first."""
        index = self._runs.index(run)
        return self._runs[index - 1] if index else None

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Return who waits, JSON-ready."""

        def state(one: QueuedRun) -> str:
            if one is self.reserved:
                return "reserved"
            return "ready" if one.is_ready(now) else "connected" if one.absent_since is None else "absent"

        return [
            {
                "run": one.run,
                "coordinator": one.coordinator,
                "protocol": one.proposal.protocol,
                "position": self.position(one),
                "since": one.since,
                "state": state(one),
            }
            for one in self._runs
            if one.proposal is not None
        ]

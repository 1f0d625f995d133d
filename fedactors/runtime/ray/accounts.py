"""What the processes of a run recorded, summed by the driver: traffic, processor time, waiting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedactors.network.ledger import Row, merged

Totals = tuple[str, str, str, str, int, int]
"""Sender, receiver, kind, type, messages, bytes."""


@dataclass
class Drained:
    """What a process recorded since it was last asked, and what it used since it began."""

    rows: list[Row]
    spans: list[tuple[str, str, str, float, float]]
    privacy: list[Any]
    totals: list[Totals]
    waiting_seconds: float
    cpu_seconds: float
    outside_seconds: float
    """Processor time since the run began that was spent outside of `compute`: messages, and whatever else."""
    refused: list[str]
    """What callers asked that they may not."""


@dataclass
class Used:
    """Seconds of one process."""

    waiting: float = 0.0
    cpu: float = 0.0
    outside: float = 0.0


@dataclass
class Accounts:
    """Sums over the processes of now, those that are gone, and the run that this one goes on from."""

    earlier: list[Totals] = field(default_factory=list)
    """Traffic of the run that this one goes on from."""
    before: Used = field(default_factory=Used)
    """Of that run, and of the processes that are gone."""
    _totals: dict[str, list[Totals]] = field(default_factory=dict)
    _used: dict[str, Used] = field(default_factory=dict)

    def take(self, name: str, drained: Drained) -> None:
        """Take what a process has recorded; its totals replace those that it gave before."""
        self._totals[name] = drained.totals
        self._used[name] = Used(drained.waiting_seconds, drained.cpu_seconds, drained.outside_seconds)

    def retire(self, name: str) -> None:
        """Keep what a process recorded that is gone: another one of its name counts from nothing."""
        self.earlier.extend(self._totals.pop(name, []))
        gone = self._used.pop(name, Used())
        self.before.waiting += gone.waiting
        self.before.cpu += gone.cpu
        self.before.outside += gone.outside

    def used(self) -> Used:
        """Return the seconds of all."""
        all_ = [self.before, *self._used.values()]
        return Used(sum(u.waiting for u in all_), sum(u.cpu for u in all_), sum(u.outside for u in all_))

    def totals(self, driver: Iterable[Totals]) -> list[Totals]:
        """Return the traffic of all, the driver's included."""
        return merged(total for part in (self.earlier, driver, *self._totals.values()) for total in part)

"""A row made again, beside the one in the record: what of it differs, and by how much."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedactors.cli.terminal import format_value
from fedactors.runs.table import RunRow

TOLERANCE = 0.01
"""Relative difference of two numbers that count as the same. On the kind of processor and with the libraries that made
a row they are equal to the last digit; elsewhere sums are rounded otherwise, and training carries that on.

Of calibration errors it is the absolute difference. They are sums over bins of confidence: a sample beside an edge
changes bins when its confidence moves by a rounding, and that alone is worth up to two over the number of samples,
whatever the error itself is."""
SEEDS = 3
"""From so many seeds of a row on, a number that is further off is held against their range: training that rounding
carries further ends elsewhere, as far as another seed does. It is said. Settings and data have no such range, nor has
the usage of runs that all send the same."""
_WHICH_WAS_BEST = ("metrics.best_epoch", "metrics.best_round")
"""Not compared: of two that are equal but for rounding it is either. What was measured of the best one is compared."""


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """A row and the same run made again."""

    known: RunRow
    again: RunRow
    tolerance: float = TOLERANCE
    others: Sequence[RunRow] = ()
    """The row's other seeds in the record."""

    @property
    def differences(self) -> list[str]:
        """What differs by more than the tolerance and the seeds, or is missing; no times of the wall clock."""
        known, again = self.known, self.again
        found = [
            f"{name}: {getattr(known, name)} in the record, {getattr(again, name)} now"
            for name in ("status", "content")
            if getattr(known, name) != getattr(again, name)
        ]
        for name, value in known.config.items():
            if name not in again.config:
                found.append(f"config.{name}: {value} in the record, no such field now")
            elif not _equal(value, again.config[name]):
                found.append(f"config.{name}: {value} in the record, {again.config[name]} now")
        return found + [line for name, line in self._far() if not self._is_as_of_a_seed(name)]

    @property
    def rounded(self) -> list[str]:
        """What differs by more than the tolerance, and no more than the seeds do."""
        return [line for name, line in self._far() if self._is_as_of_a_seed(name)]

    @property
    def num_exact(self) -> int:
        """How many numbers are equal to the last digit."""
        return sum(_distance(value, other) == 0 for _, value, other in self._numbers())

    def __str__(self) -> str:
        """Return one line, and one more for each difference."""
        prefix = f"{self.known.study}/{self.known.name} seed {self.known.seed}"
        if self.known.status == "failed":
            head = f"{prefix}: failed in the record, {self.again.status} now"
        else:
            total = len(list(self._numbers()))
            head = f"{prefix}: {self.num_exact} of {total} numbers equal, tolerance {self.tolerance:g}"
            if any(_is_sum_over_bins(name) for name, _, _ in self._numbers()):
                head += " (calibration errors: absolute)"
        different, rounded = self.differences, self.rounded
        verdict = (
            "DIFFERENT" if different else "the same but for what rounding does to training" if rounded else "the same"
        )
        lines = [*(f"  {line}" for line in different), *(f"  {line}, within the seeds' range" for line in rounded)]
        return "\n".join([f"{head}: {verdict}", *lines])

    def _far(self) -> Iterator[tuple[str, str]]:
        for name, value, other in self._numbers():
            if name in _WHICH_WAS_BEST and value is not None and other is not None:
                continue
            if _distance(value, other, absolute=_is_sum_over_bins(name)) > self.tolerance:
                yield name, f"{name}: {_shown(value)} in the record, {_shown(other)} now"

    def _is_as_of_a_seed(self, name: str) -> bool:
        """Say whether a number lies in the range of the row's seeds, widened by its width on both sides."""
        if len(self.others) + 1 < SEEDS:
            return False
        group, _, metric = name.partition(".")
        known = [getattr(row, group).get(metric) for row in (self.known, *self.others)]
        now = getattr(self.again, group).get(metric)
        if not _is_number(now) or not all(map(_is_number, known)):
            return False
        least, most = min(known), max(known)
        return bool(2 * least - most <= now <= 2 * most - least)

    def _numbers(self) -> Iterator[tuple[str, Any, Any]]:
        for group in ("metrics", "usage"):
            other = getattr(self.again, group)
            for name, value in getattr(self.known, group).items():
                yield f"{group}.{name}", value, other.get(name)
        for name in self.known.censored:
            yield f"metrics.{name}", None, self.again.metrics.get(name)


def can_repeat(row: RunRow) -> bool:
    """Say whether a row can be made again by its own command: it is whole, and no clock and no noise decides it."""
    is_whole = not row.lacks and " --row " in row.command and row.status == "finished" and bool(row.code)
    return is_whole and row.runtime == "simulated" and not draws_noise(row)


def draws_noise(row: RunRow) -> bool:
    """Say whether a party of a row's run adds noise: that is drawn anew each time, from the operating system."""
    return any(scale > 0.0 for scale in _noise_scales(row.extra.get("privacy")))


def _noise_scales(told: Any) -> Iterator[float]:
    """Give all that a ledger calls the scale of a noise; of a table it is nested mappings, or JSON within."""
    if isinstance(told, str) and told.startswith("{"):
        told = json.loads(told)
    if isinstance(told, Mapping):
        yield float(told.get("noise_scale") or 0.0)
        for within in told.values():
            yield from _noise_scales(within)


def is_of_earlier_version(row: RunRow) -> bool:
    """Say whether a row keeps no command or no digest of the code that made it: that code was another."""
    return not row.command or not row.code


def older_text(named: Mapping[str, Sequence[RunRow]]) -> str:
    """Return the line below a table that names what an earlier version made; nothing where all rows have a command.

    Args:
        named: the rows behind the table, by the name of their line.
    """
    older = [name for name, rows in named.items() if any(map(is_of_earlier_version, rows))]
    if not older:
        return ""
    which = "All of it" if len(older) == len(named) else ", ".join(older)
    return f"\n*{which}: made by an earlier version, and not made again since.*\n"


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_equal, value, other))
    return bool(value == other)


def _is_sum_over_bins(name: str) -> bool:
    return name.endswith("calibration_error")


def _distance(value: Any, other: Any, *, absolute: bool = False) -> float:
    """Return the relative (or absolute) difference of two numbers; of anything else 0 if it is equal."""
    if not (_is_number(value) and _is_number(other)) or value == other:
        return 0.0 if _equal(value, other) else float("inf")
    if math.isnan(value) and math.isnan(other):
        return 0.0
    distance = float(abs(value - other) / (1 if absolute else max(abs(value), abs(other))))
    return float("inf") if math.isnan(distance) else distance


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return "none" if value is None else format_value(value)

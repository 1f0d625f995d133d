"""Choosing one setting of a sweep by a metric, and saying among how many it was chosen."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedactors.errors import BadInput
from fedactors.records.table import RunRow


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A metric, and whether more or less of it is better."""

    metric: str
    mode: Literal["max", "min"]

    @classmethod
    def parse(cls, text: str) -> Criterion:
        """Read ``metric:max`` or ``metric:min``.

        Raises:
            BadInput: another form, or a metric of the test rows: who chooses by it has none left to report.
        """
        metric, _, mode = text.rpartition(":")
        if not metric or mode not in ("max", "min"):
            raise BadInput(f"--choose: {text!r} is not allowed: METRIC:max or METRIC:min")
        if metric.startswith("test/"):
            raise BadInput(f"--choose: {metric!r} is not allowed: settings are chosen on validation or training rows")
        return cls(metric=metric, mode="max" if mode == "max" else "min")

    def value(self, row: RunRow) -> float | None:
        """Return the metric of a run, else the best of its rounds; None if it has none."""
        if _is_number(row.metrics.get(self.metric)):
            return float(row.metrics[self.metric])
        rounds = [float(value) for value in row.curve.get(self.metric, ()) if _is_number(value)]
        return None if not rounds else max(rounds) if self.mode == "max" else min(rounds)


def by_setting(rows: Sequence[RunRow]) -> list[list[RunRow]]:
    """Group rows that differ in nothing but their seed, in the order of their first ones."""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        key = [row.protocol, row.study, row.name, row.data, row.runtime, row.config]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(row)
    return list(groups.values())


def choose(rows: Sequence[RunRow], criterion: Criterion, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the setting with the best mean over seeds, JSON-ready, and how many settings were tried.

    A setting one of whose seeds failed, or lacks the metric, is tried but cannot be chosen.

    Args:
        rows: of the whole sweep.
        criterion: what decides.
        settings: what was set, by a row's digest.

    Raises:
        BadInput: no setting has the metric in all its runs.
    """
    tried: list[dict[str, Any]] = []
    for group in by_setting(rows):
        values = [criterion.value(row) if row.status == "finished" else None for row in group]
        known = [value for value in values if value is not None]
        mean = statistics.fmean(known) if len(known) == len(values) else None
        tried.append({"settings": dict(settings[group[0].digest]), "mean": mean, "seeds": [row.seed for row in group]})
    found = [entry for entry in tried if entry["mean"] is not None]
    if not found:
        names = sorted({name for row in rows for name in (*row.metrics, *row.curve) if not name.startswith("test/")})
        raise BadInput(f"--choose: no setting has {criterion.metric!r} in all its runs (there are {', '.join(names)})")
    best = (max if criterion.mode == "max" else min)(found, key=lambda entry: entry["mean"])
    return {"metric": criterion.metric, "mode": criterion.mode, "settings_tried": len(tried), **best, "tried": tried}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

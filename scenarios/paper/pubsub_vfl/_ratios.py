"""Paired ratios of the times that watched runs took to a target."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from _watch import name_of, reaches, score_of

from fedactors.records.paired import paired_ratio
from fedactors.records.table import RunRow

CHANCE = 0.5
"""The AUC with which an untrained model begins; where the RMSE does, a run's first look says."""


def crossing(row: RunRow, target: float) -> float | None:
    """Return when the line through a run's looks first reaches the target; None if no look does.

    Looks are a share of an epoch apart, so that a method with long epochs would be read later if only looks counted.
    """
    score = score_of(row.data)
    seconds, values = row.curve["seconds"], row.curve[score]
    if score == "auc":
        seconds, values = [0.0, *seconds], [CHANCE, *values]
    for place in range(1, len(values)):
        if reaches(score, values[place], target):
            share = (target - values[place - 1]) / (values[place] - values[place - 1])
            return float(seconds[place - 1] + share * (seconds[place] - seconds[place - 1]))
    return None


def by_seed(rows: Sequence[RunRow], target: float) -> dict[int, float | None]:
    """Return the seconds to a target by seed, None where it was not reached."""
    return {row.seed: crossing(row, target) for row in rows if row.status == "finished"}


def median_seconds(rows: Sequence[RunRow], target: float) -> float:
    """Return the median time; infinite if fewer than half reached the target."""
    return statistics.median_low([math.inf if v is None else v for v in by_seed(rows, target).values()] or [math.inf])


def ratio_row(ours: Sequence[RunRow], theirs: Sequence[RunRow], target: float) -> RunRow:
    """Return the paired ratio of the times to a target, with its interval, as a row."""
    found = paired_ratio(by_seed(ours, target), by_seed(theirs, target))
    looks = [
        {row.seed: row.metrics.get(name_of(target)) for row in rows if row.status == "finished"}
        for rows in (ours, theirs)
    ]
    at_looks = paired_ratio(*looks, num_samples=1)["ratio"]
    interval = found["interval"] or (math.nan, math.nan)
    values = {
        "seconds_to_target": median_seconds(ours, target),
        "others_seconds_to_target": median_seconds(theirs, target),
        "ratio_to_target": math.nan if found["ratio"] is None else found["ratio"],
        "low_to_target": interval[0],
        "high_to_target": interval[1],
        "ratio_of_looks_to_target": math.nan if at_looks is None else at_looks,
    }
    metrics = {name: value for name, value in values.items() if math.isfinite(value)}
    counts = {name: found[name] for name in ("n", "ours_censored", "theirs_censored", "neither")}
    return dataclasses.replace(
        ours[0], metrics={**metrics, **counts}, censored=tuple(values.keys() - metrics.keys()), curve={}, extra={}
    )

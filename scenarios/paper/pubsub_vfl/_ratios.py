"""Paired ratios of the times that watched runs took to a target."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

from _watch import name_of, reaches, score_of

from fedactors.runs.table import RunRow
from scenarios.paper import pairs

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
    for index in range(1, len(values)):
        if reaches(score, values[index], target):
            share = (target - values[index - 1]) / (values[index] - values[index - 1])
            return float(seconds[index - 1] + share * (seconds[index] - seconds[index - 1]))
    return None


def by_seed(rows: Sequence[RunRow], target: float) -> dict[int, float | None]:
    """Return the seconds to a target by seed, None where it was not reached."""
    return {row.seed: crossing(row, target) for row in rows if row.status == "finished"}


def median_seconds(rows: Sequence[RunRow], target: float) -> float:
    """Return the median time; infinite if fewer than half reached the target."""
    return pairs.median_spent(rows, partial(crossing, target=target))


def ratio_row(ours: Sequence[RunRow], theirs: Sequence[RunRow], target: float) -> RunRow:
    """Return the paired ratio of the times to a target as a row, and the ratio that looks alone would give."""
    row = pairs.ratio_row(ours, theirs, partial(crossing, target=target))
    at_looks = pairs.ratio_row(ours, theirs, lambda run: run.metrics.get(name_of(target)))
    if "ratio" not in at_looks.metrics:
        return dataclasses.replace(row, censored=(*row.censored, "ratio_of_looks"))
    return dataclasses.replace(row, metrics={**row.metrics, "ratio_of_looks": at_looks.metrics["ratio"]})

"""Rows of runs with the same seeds side by side: the ratio of what they took until a target, and their difference."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedactors.runs.compare import difference
from fedactors.runs.table import RunRow


def ratio_row(
    ours: Sequence[RunRow], theirs: Sequence[RunRow], spent: Callable[[RunRow], float | None], *, scale: float = 1.0
) -> RunRow:
    """Return the median of the paired ratios with its interval, and both medians, as a row.

    Args:
        ours: rows of one name.
        theirs: those of the other.
        spent: what a run took until its target, None where it was not reached.
        scale: of the two medians.
    """
    sides = [{row.seed: spent(row) for row in rows if row.status == "finished"} for rows in (ours, theirs)]
    found = paired_ratio(*sides)
    low, high = found["interval"] or (math.nan, math.nan)
    values = {
        "ratio": math.nan if found["ratio"] is None else found["ratio"], "low": low, "high": high,
        "ours": median_spent(ours, spent) * scale, "theirs": median_spent(theirs, spent) * scale,
    }  # fmt: skip
    metrics = {name: value for name, value in values.items() if math.isfinite(value)}
    counts = {name: found[name] for name in ("n", "ours_censored", "theirs_censored")}
    censored = tuple(name for name in values if name not in metrics)
    return dataclasses.replace(ours[0], metrics={**metrics, **counts}, censored=censored, curve={}, extra={})


def median_spent(rows: Sequence[RunRow], spent: Callable[[RunRow], float | None]) -> float:
    """Return the median of what it took; infinite where fewer than half of the runs reached it."""
    values = [spent(row) for row in rows if row.status == "finished"] or [None]
    return statistics.median_low(math.inf if value is None else value for value in values)


def difference_row(
    ours: Sequence[RunRow], theirs: Sequence[RunRow], column: str, *, scale: float = 1.0, relative: bool = False
) -> RunRow | None:
    """Return the mean paired difference of a metric and its t interval as a row; None where too few pairs state one.

    Args:
        ours: rows of one name.
        theirs: those of the other.
        column: the metric.
        scale: of differences, 100 for points.
        relative: each difference is a share of their value.
    """
    sides = [
        {row.seed: row.metrics[column] for row in rows if row.status == "finished" and column in row.metrics}
        for rows in (ours, theirs)
    ]
    units = {seed: scale / (value if relative else 1.0) for seed, value in sides[1].items()}
    found = difference(*({seed: value * units.get(seed, scale) for seed, value in side.items()} for side in sides))
    if found["difference"] is None:
        return None
    metrics = {"difference": found["difference"], **dict(zip(("low", "high"), found["ci95"], strict=True))}
    # equal numbers added in another order differ by some 1e-17
    metrics = {name: round(value, 12) + 0.0 for name, value in metrics.items()}
    return dataclasses.replace(ours[0], metrics={**metrics, "n": found["n"]}, censored=(), curve={}, extra={}, usage={})


def paired_ratio(
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    *,
    level: float = 0.95,
    num_samples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the median of ours / theirs over the seeds that both have, with its percentile bootstrap interval.

    The seeds are drawn again, with replacement; a median is covered in 93 % of cases with five pairs as with ten.
    Times to a target may be censored (None: not reached). Then only the order of a pair is known: it counts as a ratio
    of 0 where they did not reach it, as an infinite one where we did not, which a median bears; a pair in which
    neither did says nothing and is left out.

    Args:
        ours: positive values by seed, or None.
        theirs: those of the other setting.
        level: of the interval.
        num_samples: of seeds, drawn with replacement.
        seed: decides what is drawn.

    Returns:
        n (pairs that say something), neither, ours_censored, theirs_censored, ratio and interval [low, high], both
        None without a pair.
    """
    keys = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[key], theirs[key]) for key in keys if not (ours[key] is None and theirs[key] is None)]
    ratios = [math.inf if a is None else 0.0 if b is None else a / b for a, b in pairs]
    counts = {
        "n": len(pairs),
        "neither": len(keys) - len(pairs),
        "ours_censored": sum(a is None for a, _ in pairs),
        "theirs_censored": sum(b is None for _, b in pairs),
    }
    if not ratios:
        return {**counts, "ratio": None, "interval": None}
    stream = random.Random(seed)
    # the lower of two middle values, as the mean of a finite and an infinite one would say nothing
    medians = sorted(statistics.median_low(stream.choices(ratios, k=len(ratios))) for _ in range(num_samples))
    tail = (1.0 - level) / 2.0
    low, high = (medians[max(0, math.ceil(share * num_samples - 1e-9) - 1)] for share in (tail, 1.0 - tail))
    return {**counts, "ratio": statistics.median_low(ratios), "interval": [low, high]}

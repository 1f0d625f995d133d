"""Differences and ratios of two settings over the same seeds, with intervals.

Two runs with the same seed share data split and initial weights, so that their difference scatters less than they do.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[str, Any]:
    """Return the mean of ours - theirs over the seeds that both have, with its 95 % interval of Student's t.

    Not the bootstrap's: with five pairs a percentile interval covers the truth in 82 % of cases, and t in 95.

    Args:
        ours: values by seed.
        theirs: values of the other setting by seed.

    Returns:
        n, difference and interval [low, high]; the interval is None for fewer than two common seeds, and the
        difference for none.
    """
    gaps = [ours[key] - theirs[key] for key in sorted(ours.keys() & theirs.keys())]
    if len(gaps) < 2:
        return {"n": len(gaps), "difference": gaps[0] if gaps else None, "interval": None}
    return {"n": len(gaps), "difference": statistics.fmean(gaps), "interval": t_interval(gaps)}


def t_interval(values: Sequence[float]) -> list[float]:
    """Return the 95 % interval [low, high] of Student's t for the mean of at least two values."""
    from scipy.stats import t

    mean, freedom = statistics.fmean(values), len(values) - 1
    half = float(t.ppf(0.975, freedom)) * statistics.stdev(values) / math.sqrt(len(values))
    return [mean - half, mean + half]


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

"""What a run between sites should come to: the numbers of simulated runs, with the same loss where a site was lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data
from fedactors.protocols.horizontal.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime

FALSE_ALARMS = 0.001
"""Share of right runs whose metric is judged to be wrong; one in twenty is outside of the 95 % interval."""
EXACT = 1e-6
"""By how much metrics may differ where no noise is added, as documented; secure sums round to a fixed point."""
METRICS = ("test/accuracy", "test/loss")


@dataclass(frozen=True)
class Absence:
    """One site is gone from one round of the run until another, as shares of all rounds."""

    site: str
    how: str
    begin: float
    end: float


def interval(values: Sequence[float], outside: float) -> tuple[float, float]:
    """Return in which interval one more run is, but for a share of such runs."""
    deviation = float(np.std(values, ddof=1)) * math.sqrt(1 + 1 / len(values))
    half = deviation * float(stats.t.ppf(1 - outside / 2, len(values) - 1))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def with_absences(
    config: HorizontalConfig, file: Path, absences: Sequence[Absence], seeds: int
) -> list[dict[str, float]]:
    """Return the last metrics of simulated runs that lose the same sites, for as many rounds in all."""
    found = []
    whole, data = SimulatedRuntime(seed=0, recorder=MemoryRecorder()), load_data(config, str(file), 0)
    whole.execute(partial(run, config, data, whole))
    seconds = whole.usage().seconds  # on the virtual clock, much the same for each seed
    gone = {name: [a for a in absences if a.site == name] for name in {a.site for a in absences}}
    share = sum(a.end - a.begin for a in absences) / max(1, len(gone))
    for seed in range(seeds):
        data = load_data(config, str(file), seed)
        faults = {name: seconds * min(a.begin for a in of_site) for name, of_site in gone.items()}
        lost = {"faults": faults, "restart_seconds": seconds * share} if gone else {}
        runtime = SimulatedRuntime(seed=seed, recorder=MemoryRecorder(), **lost)
        result = runtime.execute(partial(run, config, data, runtime))
        found.append({name: float(result.metrics[name]) for name in METRICS})
    return found


def outside(found: Mapping[str, Any], expected: Sequence[Mapping[str, Any]]) -> str:
    """Return which metric of a run is not as in other runs, but for chance; empty: none."""
    told = []
    for name in (name for name in expected[0] if name.startswith("test/")):
        low, high = interval([float(one[name]) for one in expected], FALSE_ALARMS)
        if not low - EXACT <= float(found[name]) <= high + EXACT:
            told.append(f"{name} is {found[name]:g}, outside of {low:g} to {high:g}")
    return "; ".join(told)


def difference(
    found: Mapping[str, Any],
    rounds: Sequence[Any],
    expected: Mapping[str, Any],
    rounds_expected: Sequence[Any],
    *,
    traffic: bool = True,
) -> str:
    """Return what of a run differs from the run that nobody disturbed; empty: nothing.

    Args:
        found: last line of the run.
        rounds: its metrics of each round.
        expected: last line of the other run.
        rounds_expected: its metrics of each round.
        traffic: whether bytes and messages must agree too.
    """
    if len(rounds) != len(rounds_expected):
        return f"{len(rounds)} rounds of {len(rounds_expected)}"
    pairs = zip([*rounds, found["metrics"]], [*rounds_expected, expected["metrics"]], strict=True)
    told = [
        f"{name} is {one[name]:.9g}, of {value:.9g}"
        for one, other in pairs
        for name, value in other.items()
        if name in one and isinstance(value, float) and not math.isclose(one[name], value, rel_tol=EXACT, abs_tol=EXACT)
    ]
    told += [
        f"{name} are {found[name]}, of {expected[name]}"
        for name in (("bytes", "messages") if traffic else ())
        if found[name] != expected[name]
    ]
    return "; ".join(told[:5])

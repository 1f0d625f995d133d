"""What the tables of docs/results/mtcd-appendix.md are made of: means over seeds, numbers, paired intervals, lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from _study import by_name

from fedactors.runs.compare import paired_difference
from scenarios.paper.pairs import paired_ratio


def summaries(study: str) -> dict[str, dict[str, Any]]:
    """Return the means over seeds of a study's settings, by name; `runs` has the metrics of each seed."""
    found: dict[str, dict[str, Any]] = {}
    for name, rows in by_name(study).items():
        runs = [row.metrics for row in rows]
        shared = [key for key in runs[0] if all(key in run for run in runs)]
        found[name] = {key: float(np.mean([run[key] for run in runs])) for key in shared}
        found[name] |= {"seeds": len(rows), "runs": runs}
    return found


def number(value: Any) -> str:
    """Return a number as a table shows it."""
    if value is None or isinstance(value, str) or not np.isfinite(value):
        return "not reached"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def values_of(found: dict[str, Any], key: str) -> list[float]:
    """Return a metric of each seed, infinite where a seed did not get there."""
    values = [run.get(key) for run in found["runs"]]
    return [float("inf") if value is None or isinstance(value, str) else float(value) for value in values]


def spread_of(values: Sequence[float]) -> str:
    """Return mean and deviation over seeds as a table shows them."""
    if not np.isfinite(values).all():
        reached = int(np.isfinite(values).sum())
        return "not reached" if reached == 0 else f"reached by {reached} of {len(values)}"
    deviation = f" ± {number(np.std(values, ddof=1))}" if len(values) > 1 else ""
    return f"{number(np.mean(values))}{deviation}"


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; `head` is separated by bars."""
    columns = [column.strip() for column in head.split("|")]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def by_seed(study: str, name: str, key: str, weights: Mapping[str, float] | None = None) -> dict[int, float]:
    """Return a metric, or a weighted sum of several that `key` completes, by seed; infinite where not reached."""
    found = {}
    for row in by_name(study)[name]:
        parts = [(weight, row.metrics.get(f"{part}{key}")) for part, weight in (weights or {"": 1.0}).items()]
        found[row.seed] = sum(math.inf if value is None else weight * float(value) for weight, value in parts if weight)
    return found


def difference_text(ours: Mapping[int, float], theirs: Mapping[int, float], scale: float = 1.0) -> str:
    """Return the mean difference over the seeds that both have, with its 95 % interval."""
    found = paired_difference(ours, theirs)
    low, high = (scale * end for end in found["interval"])
    return f"{scale * found['difference']:+.2f} ({low:+.2f} to {high:+.2f})"


def ratio_text(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Return the median ratio over the seeds that both have, with its 95 % interval; not reached is censored."""
    sides = ({seed: value if math.isfinite(value) else None for seed, value in one.items()} for one in (ours, theirs))
    found = paired_ratio(*sides)
    if found["ratio"] is None or not math.isfinite(found["ratio"]):
        return "not reached"
    low, high = found["interval"]
    return f"{found['ratio']:.2f} ({low:.2f} to {f'{high:.2f}' if math.isfinite(high) else 'not reached'})"


def grid_table(head: str, found: Mapping[tuple[str, ...], Mapping[float, float]]) -> str:
    """Return a line for each method and a column for each step, the least bold; a dash diverged or was not tried."""
    steps = sorted({step for line in found.values() for step in line})
    rows = []
    for names, line in found.items():
        cells = [number(line[step]) if step in line else "-" for step in steps]
        best = min(line, key=lambda step: line[step])
        cells[steps.index(best)] = f"**{cells[steps.index(best)]}**"
        rows.append([*names, *cells])
    return table(f"{head} | " + " | ".join(f"{step:g}" for step in steps), rows)

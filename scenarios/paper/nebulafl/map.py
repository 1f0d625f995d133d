"""Who is best where: time and money to a target on cited hardware and links, by the model's bytes and its work.

    python scenarios/paper/nebulafl/map.py                      # all cells, then who is best in each
    python scenarios/paper/nebulafl/map.py --only 44.7-MB-x1/
    python scenarios/paper/nebulafl/map.py --part summary

Hardware, prices and links are those of the example ``cloud``: every center, and the exchange, has 5 Gbit/s for all that
it sends, and for all that it receives, so that twenty transfers at once take twenty times as long. The digits are
trained for real; on links their small model weighs what the cell says (`bytes_factor`), and on hardware a container's
training takes as long as one of ResNet-18 over 250 images of 32 x 32, five epochs (the paper's 50,000 over 200), times
1 or 100 (`work_factor`): 0.23 and 23 s on an RTX 4090.

Every method has the settings that `choose.py` found, none was tuned for a cell. NebulaFL's interval between rotations
is what was chosen there in trainings (2.2), or twice the time of a transfer if that is longer. Everybody is measured
twice in a training's time, at no cost, and a run ends with the target.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from _study import BASELINES, DIGITS, SMOKE, Row, chosen, flags, once

from fedactors.records.paired import paired_ratio
from fedactors.records.table import RunRow
from fedactors.sweeps.study import Study

TARGET = 0.94
BYTES = {"0.02": 1.0, "1": 1e6 / 19_240, "44.7": 44.7e6 / 19_240, "500": 500e6 / 19_240}
"""Megabytes that a model weighs, and how many times those of the digits' model (4,810 numbers) that is."""
WORK = {"x1": 250 / 36, "x100": 100 * 250 / 36}
"""How many times the work of a container's 36 digits, over the throughput of ResNet-18."""
OURS: dict[str, dict[str, Any]] = {
    "nebulafl": {},
    "nebulafl-received": {"planet_rule": "received"},
    "nebulafl-shifted": {"planet_rule": "shifted"},
}
NEBULA_POLICIES: dict[str, dict[str, Any]] = {
    "fastest": {"resource_policy": "fastest"},
    "own": {"resource_policy": "nebulafl"},
    "own-by-training": {"resource_policy": "nebulafl", "price_rule": "training"},
}
THEIRS: dict[str, dict[str, Any]] = {
    "fastest": {"resource_policy": "fastest"},
    "cheapest": {"resource_policy": "cheapest", "price_rule": "training"},
}
METRICS = ("hours", "dollars")
PARTS = ("cells", "summary")


def cell(bytes_factor: float, work_factor: float) -> dict[str, dict[str, Any]]:
    """Return what every row of a cell sets."""
    training = 36 * 5 * work_factor / 5326.0  # seconds on an RTX 4090
    transfer = bytes_factor * 19_240 / 625e6  # seconds of a model that has a link for itself
    common = {
        **DIGITS, "catalogue": "cloud", "network": "cloud", "dirichlet": 0.5,
        "bytes_factor": bytes_factor, "work_factor": work_factor,
        "target_accuracy": TARGET, "stop_at_target": True,
        "duration": 400 * training + 200 * transfer, "evaluation_interval": training / 2,
    }  # fmt: skip
    interval = {"rotation_interval": max(2.2 * training, 2 * transfer)}
    rows = {
        f"{name}-{policy}": {**common, **chosen("nebulafl"), **interval, **rule, **how}
        for name, rule in OURS.items()
        for policy, how in NEBULA_POLICIES.items()
    }
    for name in BASELINES:
        if name != "fedhkt":  # it reaches no target within such times
            rows |= {f"{name}-{policy}": {**common, **chosen(name), **how} for policy, how in THEIRS.items()}
    return rows


def cells() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings of all rows by cell and name."""
    return {
        f"{megabytes}-MB-{times}": cell(bytes_factor, work_factor)
        for megabytes, bytes_factor in BYTES.items()
        for times, work_factor in WORK.items()
    }


def spent(rows: Sequence[RunRow], metric: str) -> dict[int, float | None]:
    """Return what it took until the target by seed, None where it was not reached."""
    suffix = f"_{100 * TARGET:g}"
    return {
        row.seed: row.metrics[f"{metric}{suffix}"] if row.metrics[f"reached{suffix}"] else None
        for row in rows
        if row.status == "finished"
    }


def median(rows: Sequence[RunRow], metric: str) -> float:
    """Return the median of what it took; infinite where most seeds did not reach the target."""
    values = sorted(math.inf if value is None else value for value in spent(rows, metric).values())
    return values[len(values) // 2] if values else math.inf


def summarise(given: Study) -> None:
    """Put beside one another, for each cell and for time and money, the best baseline and each kind of NebulaFL."""
    for name, settings in cells().items():
        found = {row: given.rows(f"map/{name}", row) for row in settings}
        theirs = {row: rows for row, rows in found.items() if rows and not row.startswith("nebulafl")}
        for metric in METRICS if theirs else ():
            best = min(theirs, key=lambda row: median(theirs[row], metric))
            for kind in OURS:
                ours = {f"{kind}-{p}": found[f"{kind}-{p}"] for p in NEBULA_POLICIES if found[f"{kind}-{p}"]}
                if not ours:
                    continue
                # each with the policy that serves it best here, ours and theirs alike
                mine = min(ours, key=lambda row: median(ours[row], metric))
                ratio = ratio_row(ours[mine], theirs[best], metric)
                given.put(f"map-{metric}", f"{name}, {mine} over {best}", [ratio])


def ratio_row(ours: Sequence[RunRow], theirs: Sequence[RunRow], metric: str) -> RunRow:
    """Return the median of the paired ratios with its interval, as a row."""
    found = paired_ratio(spent(ours, metric), spent(theirs, metric))
    low, high = found["interval"] or (math.nan, math.nan)
    ratio = math.nan if found["ratio"] is None else found["ratio"]
    scale = 3600.0 if metric == "hours" else 1.0
    values = {
        "ratio": ratio, "low": low, "high": high,
        "ours": median(ours, metric) * scale, "theirs": median(theirs, metric) * scale,
    }  # fmt: skip
    metrics = {name: value for name, value in values.items() if math.isfinite(value)}
    counts = {name: found[name] for name in ("n", "ours_censored", "theirs_censored")}
    censored = tuple(values.keys() - metrics.keys())
    return dataclasses.replace(ours[0], metrics={**metrics, **counts}, censored=censored, curve={}, extra={})


def main() -> None:
    parser = flags(__doc__, (0, 1, 2, 3, 4))
    parser.add_argument("--part", action="append", choices=PARTS, help="(default: all)")
    given = parser.parse_args(namespace=Study())
    parts = given.part or PARTS
    measured = functools.partial(once, targets=(0.9, TARGET))
    for name, rows in cells().items() if "cells" in parts else ():
        points = {row: Row(_resized(settings, given)) for row, settings in rows.items()}
        given.measure(f"map/{name}", points, measured, all_seeds=True, smoke_rows=1)
    if "summary" in parts:
        summarise(given)


def _resized(settings: Mapping[str, Any], given: Study) -> dict[str, Any]:
    small = {**SMOKE, "duration": 30.0, "evaluation_interval": 5.0, "rotation_interval": 5.0} if given.smoke else {}
    return {**settings, **small, **given.settings}


if __name__ == "__main__":
    main()

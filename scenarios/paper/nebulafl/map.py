"""Who is best where: time and money to a target on cited hardware and links, by the model's bytes and its work.

    python scenarios/paper/nebulafl/map.py                      # all cells, then who is best in each
    python scenarios/paper/nebulafl/map.py --only 44.7-MB-x1/   # Table II with ResNet-18's bytes
    python scenarios/paper/nebulafl/map.py --part summary

Hardware, prices and links are those of the example ``cloud``: every center, and the exchange, has 5 Gbit/s for all that
it sends, and for all that it receives, so that twenty transfers at once take twenty times as long. The digits are
trained for real; on links their small model weighs what the cell says (`bytes_factor`), and hardware takes as long as
for ResNet-18, or a hundred times (`work_factor`).

Every method has the settings that `choose.py` found, none was tuned for a cell. NebulaFL's interval between rotations
is what was chosen there in trainings, or twice the time of a transfer if that is longer. A run ends with the target.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from _study import (
    BASELINES,
    BYTES,
    TARGET,
    WORK,
    Row,
    chosen,
    cloud,
    cloud_nebulafl,
    compared,
    flags,
    once,
    resized,
    spent,
)  # fmt: skip

from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.pairs import median_spent
from scenarios.paper.study import Study

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
PARTS = ("cells", "exchange", "summary")
HEAVY = (("44.7", "x1"), ("500", "x1"))
"""Cells in which what is sent decides: there each side also tries how often it exchanges models across centers."""
TABLE_2 = "44.7-MB-x1"
"""The cell with ResNet-18's bytes and work, where NebulaFL is held against each baseline with each way to rent."""


def cell(megabytes: str, work: str) -> dict[str, dict[str, Any]]:
    """Return what every row of a cell sets."""
    common, ours = cloud(megabytes, work), cloud_nebulafl(megabytes, work)
    rows = {
        f"{name}-{policy}": {**common, **ours, **rule, **how}
        for name, rule in OURS.items()
        for policy, how in NEBULA_POLICIES.items()
    }
    for name in BASELINES:
        if name != "fedhkt":  # it reaches no target within such times
            rows |= {f"{name}-{policy}": {**common, **chosen(name), **how} for policy, how in THEIRS.items()}
    return rows


def exchange(megabytes: str, work: str) -> dict[str, dict[str, Any]]:
    """Return rows with other intervals between NebulaFL's rotations, and rounds in a center of hierarchical FedAvg."""
    common, ours = cloud(megabytes, work), cloud_nebulafl(megabytes, work)
    rows = {
        f"nebulafl-interval-x{factor:g}": {
            **common, **ours, "resource_policy": "fastest", "rotation_interval": factor * ours["rotation_interval"],
        }
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
    }  # fmt: skip
    theirs = {**common, **chosen("fedavg-hierarchical")}
    return rows | {
        f"fedavg-hierarchical-{policy}-rounds-{count}": {**theirs, **how, "center_rounds": count}
        for count in (1, 2, 4, 8, 12, 16)
        for policy, how in THEIRS.items()
    }


def cells() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings of all rows by cell and name."""
    return {f"{megabytes}-MB-{work}": cell(megabytes, work) for megabytes in BYTES for work in WORK}


def summarise(given: Study) -> None:
    """Put beside one another, for each cell and for time and money, the best baseline and each kind of NebulaFL."""
    made: dict[str, dict[str, RunRow]] = {}
    for name, settings in cells().items():
        found = {row: given.rows(f"map/{name}", row) for row in settings}
        theirs = {row: rows for row, rows in found.items() if rows and not row.startswith("nebulafl")}
        for metric in METRICS if theirs else ():
            best = min(theirs, key=lambda row: median_spent(theirs[row], spent(metric)))
            for kind in OURS:
                ours = {f"{kind}-{p}": found[f"{kind}-{p}"] for p in NEBULA_POLICIES if found[f"{kind}-{p}"]}
                if not ours:
                    continue
                # each with the policy that serves it best here, ours and theirs alike
                mine = min(ours, key=lambda row: median_spent(ours[row], spent(metric)))
                ratio = compared(ours[mine], theirs[best], metric)
                made.setdefault(f"map-{metric}", {})[f"{name}, {mine} over {best}"] = ratio
                if kind == "nebulafl" and name == TABLE_2:
                    for row, rows in theirs.items():
                        table = made.setdefault(f"table-2-{metric}", {})
                        table[f"{mine} over {row}"] = compared(ours[mine], rows, metric)
    for study, ratios in made.items():
        given.replace(study, ratios)


def summarise_exchange(given: Study) -> None:
    """Put each side's best number of exchanges beside the other's: those with the least time, and the least money."""
    made: dict[str, dict[str, RunRow]] = {}
    for megabytes, work in HEAVY:
        name = f"{megabytes}-MB-{work}"
        found = {row: given.rows(f"exchange/{name}", row) for row in exchange(megabytes, work)}
        for sought in METRICS if all(found.values()) else ():
            ours, theirs = (
                min(
                    (row for row in found if row.startswith(side)),
                    key=lambda row: median_spent(found[row], spent(sought)),
                )
                for side in ("nebulafl", "fedavg")
            )
            for metric in METRICS:
                ratio = compared(found[ours], found[theirs], metric)
                made.setdefault(f"exchange-{metric}", {})[f"{name}, least {sought}: {ours} over {theirs}"] = ratio
    for study, ratios in made.items():
        given.replace(study, ratios)


def main() -> None:
    parser = flags(__doc__, (0, 1, 2, 3, 4))
    parser.add_argument("--part", action="append", choices=PARTS, help="(default: all)")
    given = parser.parse_args(namespace=Study())
    parts = given.part or PARTS
    measured = functools.partial(once, targets=(0.9, TARGET))
    for name, rows in cells().items() if "cells" in parts else ():
        points = {row: Row(resized(settings, given)) for row, settings in rows.items()}
        given.measure(f"map/{name}", points, measured, all_seeds=True, as_set=True, smoke_rows=1)
    for megabytes, work in HEAVY if "exchange" in parts else ():
        points = {row: Row(resized(settings, given)) for row, settings in exchange(megabytes, work).items()}
        study = f"exchange/{megabytes}-MB-{work}"
        given.measure(study, points, measured, all_seeds=True, as_set=True, smoke_rows=1)
    if "summary" in parts:
        summarise(given)
        summarise_exchange(given)


if __name__ == "__main__":
    main()

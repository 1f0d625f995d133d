"""The planner's prediction beside the epoch as it is (Section 4.3), by the one cost model that `fedactors plan` uses.

Predicted by the functions of the command from profile files, before the run. In simulation, on a link that both parties
share: `planning` has one epoch of Bank on three links, with unequal workers, small and large windows, both ways in
which payloads travel, servers that step, fewer bits and epochs without a pause; `planning-cells` all cells of a grid of
workers and batch sizes, with the window and prefetch that the planner returns, and `planning-choice` the cell that it
chooses beside the best one. With ``--ray``: `planning-ray`, ten settings on real Ray, on this machine, predicted from
the profiles that the parties measure. `planning-summary` says how many predictions are within 20 %.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _planning import ROWS, PlanningStudy, problem
from _planning_ray import measure_on_ray
from _watch import RESULTS, Watched, watch

from fedactors.config import build
from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.pubsub_vfl import planner
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.planner import Plan
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from scenarios.paper.study import study_flags

NEVER = 2.0
"""An AUC that no run reaches: it is watched to its end."""
WORKERS = ((1, 1), (2, 2), (4, 2), (4, 4), (8, 8))
SIZES = (128, 512)
LINKS = ((1.0, 0.0005), (0.1, 0.01), (25.0, 0.0005))
KINDS: Mapping[str, Mapping[str, Any]] = {
    "server": {"optimizer_at": "server"},
    "8-bits": {"quantization_bits": 8},
    "no-pause": {"epochs_per_round": 2, "num_epochs": 2},
    "no-pause-pull": {"epochs_per_round": 2, "num_epochs": 2, "transfer": "pull"},
}
GRID_WORKERS = (1, 4, 8)
GRID_SIZES = (64, 256)
GRID_LINKS = (*LINKS, (1.0, 0.01))
BASE: dict[str, Any] = {
    **PUBLISHED,
    "num_epochs": 1,
    "report_interval": 0.0,
    "sync_unit": "batch",
    "transfer": "push",
}


def link_name(gigabits: float, latency: float) -> str:
    """Return what a link is called in the rows."""
    return f"{gigabits:g}-gbit-{latency * 1e3:g}-ms"


def points(data: str) -> dict[str, Watched]:
    """Return the runs, by name; every second has a small window, every third fetches its payloads."""
    made = {}
    for index, ((gigabits, latency), (w_a, w_p), size) in enumerate(itertools.product(LINKS, WORKERS, SIZES)):
        window = 4 if index % 2 else 12
        settings: dict[str, Any] = {
            **BASE,
            "num_active_workers": w_a,
            "num_passive_workers": w_p,
            "batch_size": size,
            "max_in_flight": window * w_p,
            "prefetch": 6,
            "transfer": "push" if index % 3 else "pull",
        }
        name = f"{link_name(gigabits, latency)}-w{w_a}-{w_p}-b{size}-p{window}-{settings['transfer']}"
        made[name] = Watched(data=data, settings=settings, targets=(NEVER,), gigabits=gigabits, latency=latency)
    for (gigabits, latency), (kind, changes) in itertools.product(((1.0, 0.0005), (1.0, 0.01)), KINDS.items()):
        workers = {"num_active_workers": 4, "num_passive_workers": 4, "batch_size": 128}
        settings = {**BASE, **workers, "max_in_flight": 48, "prefetch": 12, **changes}
        name = f"{link_name(gigabits, latency)}-w4-4-b128-{kind}"
        made[name] = Watched(data=data, settings=settings, targets=(NEVER,), gigabits=gigabits, latency=latency)
    return made


def measured(point: Watched, seed: int) -> RunRow:
    """Run a point; its row has the predicted and the measured seconds of an epoch."""
    config = build(PubSubVflConfig, dict(point.settings))
    made = problem(config, point.data, point.cores, ROWS[point.data], point.gigabits, point.latency)
    expected, row = planner.predict(config, made), watch(point, seed)
    seconds = row.metrics["until_all_end"] / config.num_epochs
    metrics = {"predicted": expected, "measured": seconds, "measured_over_predicted": seconds / expected}
    return dataclasses.replace(row, metrics=metrics, censored=(), curve={})


@functools.cache
def chosen(data: str, gigabits: float, latency: float) -> Plan:
    """Return the cell of the grid that the planner chooses for a link."""
    config = build(PubSubVflConfig, BASE)
    made = problem(config, data, {"active": 32, "passive": 32}, ROWS[data], gigabits, latency)
    return planner.choose(config, made, batch_sizes=GRID_SIZES, workers=GRID_WORKERS)[0]


def cells(data: str, gigabits: float, latency: float) -> dict[Plan, Watched]:
    """Return the grid of a link, each cell with the window and prefetch that the planner returns for it."""
    config = build(PubSubVflConfig, BASE)
    made = problem(config, data, {"active": 32, "passive": 32}, ROWS[data], gigabits, latency)
    found = {}
    for w_a, w_p, size in itertools.product(GRID_WORKERS, GRID_WORKERS, GRID_SIZES):
        cell = Plan(w_a, w_p, size, 0.0)
        complete = planner.with_plan(config, made, cell)
        names = ("num_active_workers", "num_passive_workers", "batch_size", "max_in_flight", "prefetch")
        settings = {**BASE, **{name: getattr(complete, name) for name in names}}
        found[cell] = Watched(data=data, settings=settings, targets=(NEVER,), gigabits=gigabits, latency=latency)
    return found


def cell_name(gigabits: float, latency: float, cell: Plan) -> str:
    """Return the name of a cell's row."""
    workers = f"w{cell.num_active_workers}-{cell.num_passive_workers}"
    return f"{link_name(gigabits, latency)}-{workers}-b{cell.batch_size}"


def compare_choices(given: PlanningStudy, data: str) -> None:
    """Put what the planner chooses on each link beside the best cell measured there."""
    for gigabits, latency in GRID_LINKS:
        prefix = f"{link_name(gigabits, latency)}-w"
        rows = [row for row in given.rows("planning-cells") if row.name.startswith(prefix)]
        if not rows:
            continue
        picked = cell_name(gigabits, latency, dataclasses.replace(chosen(data, gigabits, latency), cost=0.0))
        seconds = {row.name: row.metrics["measured"] for row in rows}
        best = min(seconds, key=lambda name: seconds[name])
        metrics = {
            "chosen": picked.removeprefix(prefix[:-1]),
            "best": best.removeprefix(prefix[:-1]),
            "chosen_seconds": seconds[picked],
            "best_seconds": seconds[best],
            "worst_seconds": max(seconds.values()),
            "chosen_over_best": seconds[picked] / seconds[best],
        }
        given.put("planning-choice", link_name(gigabits, latency), [dataclasses.replace(rows[0], metrics=metrics)])
    if rows := given.rows("planning-choice"):
        worst = {"links": len(rows), "chosen_over_best": max(row.metrics["chosen_over_best"] for row in rows)}
        given.put("planning-worst-choice", "all", [dataclasses.replace(rows[0], metrics=worst)])


def summarise(given: PlanningStudy, study: str) -> None:
    """Say how far the predictions of a study are from what was measured."""
    rows = given.rows(study)
    if not rows:
        return
    errors = [abs(row.metrics["measured_over_predicted"] - 1) for row in rows]
    metrics = {
        "settings": len(errors),
        "within_20_percent": sum(error <= 0.2 for error in errors) / len(errors),
        "within_10_percent": sum(error <= 0.1 for error in errors) / len(errors),
        "median_error": statistics.median(errors),
        "largest_error": max(errors),
    }
    given.put("planning-summary", study, [dataclasses.replace(rows[0], metrics=metrics)])


def main(words: Sequence[str] | None = None) -> None:
    flags = study_flags(__doc__, "pubsub_vfl", RESULTS)
    flags.add_argument("--ray", action="store_true", help="ten settings on real Ray instead, on this machine")
    given: PlanningStudy = flags.parse_args(words, namespace=PlanningStudy())
    data = "breast-cancer" if given.smoke else "bank"
    if given.ray:
        measure_on_ray(given, "breast-cancer" if given.smoke else "synthetic:40000x40")
        summarise(given, "planning-ray")
        return
    given.measure("planning", points(data), measured, smoke_rows=2)
    for gigabits, latency in GRID_LINKS[:1] if given.smoke else GRID_LINKS:
        grid = {cell_name(gigabits, latency, cell): point for cell, point in cells(data, gigabits, latency).items()}
        given.measure("planning-cells", grid, measured)
    compare_choices(given, data)
    for study in ("planning", "planning-cells"):
        summarise(given, study)


if __name__ == "__main__":
    main()

"""The planner's choice beside a grid, by seconds to a target: six scenes of rows, cores and links.

    python scenarios/benchmarks/planner.py [--only bank,digits] [--jobs N] [--smoke]

`fedactors plan pubsub-vfl` is asked for each scene with the parties' profiles, as the simulation's cost model has them,
and with seed 0. Then the settings that it chooses, those of the quickest epoch (``--aim epoch``) and a grid run with
seeds that it has not seen: the corners of what it may choose (1 and 48 workers on either side, the smallest and the
largest batch, the lowest and the highest rate), and between them equal workers, batch sizes and rates. All run with one
seed, up to 1.5 times the mean of the choice; the five best, two of them with the default window too, with ten.
`planner-choice` has a row a scene: the choice's mean seconds over those of the best cell are its ratio. The cells of a
scene are `planner-cells-SCENE`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedactors.config import as_dict
from fedactors.launch import load_data
from fedactors.plugins import Planning, find_protocol
from fedactors.runs.table import RunRow
from fedactors.sweeps import Outcome, Pilots, rank
from fedactors.validation import read_tree

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "paper" / "pubsub_vfl"))

from _planning import profile_files

from fedactors.protocols.pubsub_vfl import planner
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.pilots import Rehearsal
from fedactors.protocols.pubsub_vfl.planner import BATCH_SIZES, RATES, WORKER_STEPS, Plan, TargetSearch, short_name
from scenarios.paper.study import Study, study_flags

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
SEEDS = tuple(range(100, 110))
"""Of the runs that compare; the planner's are 0 to 11."""
WITHIN, BEST, WINDOWS = 1.5, 5, 2
WORKERS, SIZES, GRID_RATES = ((1, 1), (2, 2), (4, 4), (8, 8)), (16, 64, 256), (0.003, 0.01, 0.03)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Rows, machines and a link; a target of the validation rows, or None: the planner's own."""

    data: str
    cores: Mapping[str, int] = field(default_factory=lambda: {"active": 32, "passive": 32})
    gigabits: float = 1.0
    latency: float = 0.0005
    target: float | None = None

    def profiles(self) -> list[dict[str, Any]]:
        """Return both parties' profiles, with the rates of their link."""
        with tempfile.TemporaryDirectory() as folder:
            link = (self.gigabits, self.latency, Path(folder))
            files = profile_files(PubSubVflConfig(), self.data, self.cores, 1, *link)
            return [read_tree(str(path), "--profile") for path in files]


SCENES = {
    "breast-cancer": Scene(data="breast-cancer", target=0.97, cores={"active": 4, "passive": 4}),
    "bank": Scene(data="bank", target=0.92),
    "fast": Scene(data="synthetic:4000x40", target=0.9, cores={"active": 50, "passive": 14}, gigabits=25.0),
    "wan": Scene(data="synthetic:6000x20", target=0.9, cores={"active": 4, "passive": 8}, gigabits=0.02, latency=0.03),
    "digits": Scene(data="digits", target=0.85, cores={"active": 16, "passive": 4}, gigabits=0.1, latency=0.002),
    "credit": Scene(data="credit", target=0.74, cores={"active": 8, "passive": 8}, gigabits=0.1, latency=0.01),
}


class PlannerStudy(Study):
    """Rows of a table of their own."""

    @property
    def table(self) -> Path:
        """The table that rows are read from and written into."""
        return self.out / "pubsub_vfl_choice.parquet"


class Comparison:
    """A scene's choice beside its grid.

    Args:
        scene: what is planned for.
        planning: how, with seed 0.
    """

    def __init__(self, scene: Scene, planning: Planning) -> None:
        protocol = find_protocol("pubsub-vfl")
        config, profiles = PubSubVflConfig(target=scene.target), scene.profiles()
        data = load_data(protocol, config, scene.data, 0)
        self.scene = scene
        self.planned = planner.plan(config, profiles, dataclasses.replace(planning, data=data))
        problem = planner.problem_of(config, profiles)
        rehearsal = Rehearsal(problem, data)
        problem = dataclasses.replace(problem, num_rows=rehearsal.num_rows(config))
        config = dataclasses.replace(config, target=self.planned["target"])
        self.search = TargetSearch(config, problem, rehearsal, planning)
        window = {name: self.planned[name] for name in ("max_in_flight", "prefetch")}
        choice = self.search.setting(self._plan(self.planned), self.planned["learning_rate"])
        self.choice = dataclasses.replace(choice, **window)
        quickest = planner.quickest_epoch(config, [{**one, "num_rows": problem.num_rows} for one in profiles])
        self.quickest = self.search.setting(self._plan(quickest), config.learning_rate)
        self.pilots = Pilots(rehearsal, planning, short_name)

    @staticmethod
    def _plan(found: Mapping[str, Any]) -> Plan:
        return Plan(found["num_active_workers"], found["num_passive_workers"], found["batch_size"], 0.0)

    def grid(self) -> list[PubSubVflConfig]:
        """Return the corners of what the planner may choose, and what lies between them."""
        sizes = [size for size in BATCH_SIZES if size <= max(BATCH_SIZES[0], self.search.num_rows // 2)]
        ends = (WORKER_STEPS[0], WORKER_STEPS[-1])
        rate = self.search.given.learning_rate
        corners = itertools.product(ends, ends, (sizes[0], sizes[-1]), (rate * RATES[0], rate * RATES[-1]))
        inner = ((*workers, size, by) for workers in WORKERS for size in SIZES if size in sizes for by in GRID_RATES)
        made = [self.search.setting(Plan(w_a, w_p, size, 0.0), by) for w_a, w_p, size, by in (*corners, *inner)]
        return list(dict.fromkeys(made))

    def compared(self, seeds: Sequence[int]) -> dict[PubSubVflConfig, list[Outcome]]:
        """Return what the choice, the quickest epoch and the best cells came to with all seeds; the rest with one."""
        chosen = self.pilots([self.choice], seeds, math.inf)[0]
        limit = WITHIN * rank(chosen)[1]
        cells = self.grid()
        first = dict(zip(cells, self.pilots(cells, seeds[:1], limit), strict=True))
        best = sorted(cells, key=lambda cell: rank(first[cell]))[:BEST]
        best += [dataclasses.replace(cell, max_in_flight=24, prefetch=6) for cell in best[:WINDOWS]]
        found = dict(zip(best, self.pilots(best, seeds, 4 * limit), strict=True))
        quickest = self.pilots([self.quickest], seeds, 10 * limit)[0]
        return {**first, **found, self.quickest: quickest, self.choice: chosen}


def rows_of_scene(made: Comparison, seeds: Sequence[int]) -> tuple[RunRow, list[RunRow]]:
    """Return a scene's row of the choice, and a row of each cell."""
    found = made.compared(seeds)
    whole = {cell: rank(outcomes) for cell, outcomes in found.items() if len(outcomes) == len(seeds)}
    cells = [cell for cell in whole if cell not in (made.choice, made.quickest)] or [made.choice]
    best = min(cells, key=lambda cell: whole[cell])
    seconds, best_seconds, old = (whole[cell][1] for cell in (made.choice, best, made.quickest))
    metrics = {
        "target": made.planned["target"],
        "chosen": short_name(made.choice),
        "seconds": seconds,
        "best": short_name(best),
        "best_seconds": best_seconds,
        "ratio": seconds / best_seconds,
        "missed": whole[made.choice][0],
        "quickest_epoch": short_name(made.quickest),
        **({"quickest_epoch_ratio": old / best_seconds} if math.isfinite(old) else {}),
        "predicted_seconds": made.planned["seconds_to_target"],
        "epoch_seconds": made.planned["epoch_seconds"],
        "megabytes": statistics.fmean(one.figures["bytes"] for one in found[made.choice]) / 1e6,
        "pilots": made.planned["pilots"],
        "cells": len(found),
    }
    choice = RunRow(
        protocol="pubsub-vfl",
        seed=0,
        data=made.scene.data,
        config=as_dict(made.choice),
        metrics=metrics,
        censored=() if math.isfinite(old) else ("quickest_epoch_ratio",),
    )
    lines = []
    for cell, outcomes in found.items():
        missed, mean, _ = rank(outcomes)
        told = {"seeds": len(outcomes), "missed": missed, **({"seconds": mean} if math.isfinite(mean) else {})}
        lines.append(RunRow(protocol="pubsub-vfl", seed=0, data=made.scene.data, config=as_dict(cell), metrics=told))
    return choice, lines


def cell_name(row: RunRow) -> str:
    """Return the name of a cell's row: workers, batch size, rate, window and prefetch."""
    c = row.config
    workers = f"w{c['num_active_workers']}-{c['num_passive_workers']}-b{c['batch_size']}-r{c['learning_rate']:g}"
    return f"{workers}-p{c['max_in_flight']}-{c['prefetch']}"


def wanted(given: PlannerStudy, scene: str) -> bool:
    """Say whether a scene is to be measured: it is asked for and not there, or has the one row that is made again."""
    if given.row is not None:
        return given.row == f"planner-choice/{scene}" or given.row.startswith(f"planner-cells-{scene}/")
    return given.wants(scene) and given.lacks("planner-choice", scene)


def main(words: Sequence[str] | None = None) -> None:
    flags = study_flags(__doc__, "pubsub_vfl", RESULTS)
    given: PlannerStudy = flags.parse_args(words, namespace=PlannerStudy())
    names = ["breast-cancer"] if given.smoke else list(SCENES)
    for name in (one for one in names if wanted(given, one)):
        tell = lambda line, name=name: print(f"{name}: {line}", flush=True)  # noqa: E731
        made = Comparison(SCENES[name], Planning(jobs=given.jobs, time_limit=36_000.0, tell=tell))
        choice, cells = rows_of_scene(made, SEEDS[:2] if given.smoke else SEEDS)
        given.put("planner-choice", name, [choice], list(SCENES))
        given.replace(f"planner-cells-{name}", {cell_name(row): row for row in cells})


if __name__ == "__main__":
    main()

"""Choose the settings of Figures 5 to 8: the least loss on the training join at the end of a run, over grids.

FEDACTORS_DATA=... python -m scenarios.paper.tablepuppet.choose [--only nycflights13-linear] [--again]

Test rows play no part: of each run only the training loss is kept, in the study ``grid-<data>-<model>``; one that
diverges is a row that says so. Under privacy the noise decides between near points: the best three of a grid are run
with two more seeds, and the least mean of these is chosen. The best points are `_study.SETTINGS`.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import guarded
from fedactors.runs.table import RunRow
from fedactors.sweeps import run_once

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.tablepuppet.plugin import PROTOCOL
from scenarios.paper.study import Study
from scenarios.paper.tablepuppet._study import Panel, Point, study_of

Axes = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """An algorithm on a panel, and the values that each of its settings may have."""

    panel: Panel
    algorithm: str
    axes: Axes

    @property
    def folder(self) -> str:
        """The study of the points."""
        return f"grid-{self.panel.subject}" + ("-private" if self.panel.private else "")

    @property
    def name(self) -> str:
        """Data set, model and algorithm."""
        return f"{self.folder} {self.algorithm}"

    def points(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Return each point's name and settings."""
        for values in itertools.product(*self.axes.values()):
            chosen = dict(zip(self.axes, values, strict=True))
            yield " ".join([self.algorithm, *(f"{name}={value:g}" for name, value in chosen.items())]), chosen


LINEAR, SOFTMAX = {"data": "movielens-1m"}, {"data": "movielens-1m", "task": "multiclass"}
FLIGHTS, LATE = {"data": "nycflights13"}, {"data": "nycflights13", "task": "binary"}
NEURAL, PRIVATE = {"neural": True}, {"private": True}


def grids(given: Mapping[str, Any], sgd: Axes, admm: Axes, partitioned: Axes) -> tuple[Grid, ...]:
    """Return the grids of a data set and model: SGD's, ADMM's, and ADMM's with two clients in each organisation."""
    return (
        Grid(panel=Panel(**given), algorithm="rfl-sgd-v", axes=sgd),
        Grid(panel=Panel(**given), algorithm="rfl-admm-v", axes=admm),
        Grid(panel=Panel(**given, num_partitions=2), algorithm="rfl-admm", axes=partitioned),
    )


RHO: dict[str, tuple[float, ...]] = {"rho": (0.03, 0.1, 0.3, 1.0)}
GRIDS = (
    *grids(
        LINEAR,
        {"learning_rate": (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0)},
        {"rho": (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0)},
        {"rho": (0.1, 0.3, 1.0), "inner_rho": (0.0001, 0.001, 0.01)},
    ),
    *grids(
        SOFTMAX,
        {"learning_rate": (0.5, 1.0, 2.0)},
        {"rho": (0.01, *RHO["rho"])},
        {"rho": (0.1, 0.3), "inner_rho": (0.001, 0.01)},
    ),
    *grids(
        LINEAR | NEURAL,
        {"learning_rate": (0.2, 0.5, 1.0)},
        {"rho": (0.1, 0.3, 1.0)},
        {"inner_rho": (0.001, 0.01), "lbfgs_iterations": (3, 10)},
    ),
    *grids(
        FLIGHTS,
        {"learning_rate": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5), "batch_size": (512, 2048)},
        {"rho": (0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 3.0)},
        {"rho": (0.03, 0.1, 0.3, 1.0), "inner_rho": (0.0001, 0.001, 0.01)},
    ),
    *grids(
        LATE,
        {"learning_rate": (0.3, 0.5, 1.0, 1.5, 2.0, 4.0), "batch_size": (512, 2048)},
        {"rho": (0.003, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.2, 0.3, 0.5, 1.0, 3.0)},
        {"rho": (0.01, 0.03, 0.1, 0.3), "inner_rho": (0.0001, 0.001, 0.01)},
    ),
    *grids(
        FLIGHTS | NEURAL,
        {"learning_rate": (0.0003, 0.001, 0.003), "batch_size": (512,)},
        RHO,
        {"inner_rho": (0.001, 0.01)},
    ),
)
"""The paper's ranges (rates 0.01 to 0.5, rho 0.1 to 10), and beyond them where the loss is less curved than the squared
one. The linear and logistic models have as many points for each method. Four clients take the settings of two, and VFL
those of RFL-V."""
PRIVATE_GRIDS = (
    *grids(
        LINEAR | PRIVATE,
        {"batch_size": (102400,), "clip": (10, 30), "learning_rate": (0.2,)},
        {"rho": (0.3,), "local_epochs": (5,), "local_learning_rate": (0.1, 0.3)},
        {"inner_rounds": (1,), "inner_rho": (0.001, 0.01, 0.1, 1.0)},
    ),
    *grids(
        LATE | PRIVATE,
        {"batch_size": (240000,), "clip": (3, 10, 30), "learning_rate": (4.0, 8.0, 16.0)},
        {"rho": (0.2, 1.0, 3.0), "local_learning_rate": (0.01, 0.1, 0.3)},
        {"inner_rounds": (1,), "inner_rho": (0.01, 0.1, 1.0), "local_learning_rate": (0.03, 0.1, 0.3)},
    ),
    Grid(
        panel=Panel(data="nycflights13", task="binary", private=True),
        algorithm="rfl-admm-v",
        axes={"local_batch_size": (1_000_000,), "clip": (1, 3, 10), "local_learning_rate": (0.01, 0.03, 0.1)},
    ),
)
"""Large batches and few local epochs: each step is one more release, so few steps with little noise beat many. On the
flights 240,000 is more than all joined rows: one step an epoch. The last grid asks the same of ADMM: all rows of a
client's own table in a batch, and other clips."""
SMOKE = (Grid(panel=Panel(data="orders:300", num_rounds=1), algorithm="rfl-admm-v", axes={"rho": (0.3, 1.0)}),)


def search(grid: Grid, study: Study) -> None:
    """Measure the points of a grid that are not there yet, under privacy the best three again, and print the best."""
    points = {
        name.replace(" ", "_"): Point(
            data=grid.panel.data, settings={**grid.panel.settings(grid.algorithm), **chosen, **study.settings}
        )
        for name, chosen in grid.points()
    }
    study.measure(grid.folder, points, once, whole=True)
    if grid.panel.private:
        first = losses(grid, study, seeds=(0,))
        finals = {name: points[name] for name in sorted(first, key=lambda name: first[name])[:3] if name in points}
        study.measure(grid.folder, finals, once, seeds=(0, 1, 2), whole=True, all_seeds=True, as_set=True)
    found = losses(grid, study)
    name = min(found, key=lambda name: found[name])
    print(f"{grid.folder}: {name} with {found[name]:.6f}", flush=True)


def losses(grid: Grid, study: Study, seeds: Sequence[int] = (0, 1, 2)) -> dict[str, float]:
    """Return the mean training loss of an algorithm's points in the table: of those with the most of the seeds."""
    found: dict[str, list[float]] = {}
    for row in study.rows(grid.folder):
        if row.name.startswith(f"{grid.algorithm}_") and row.seed in seeds:
            found.setdefault(row.name, []).append(row.metrics.get("training/loss", math.inf))
    most = max(map(len, found.values()))
    return {name: statistics.fmean(values) for name, values in found.items() if len(values) == most}


def once(point: Point, seed: int) -> RunRow:
    """Train at one point; under privacy its ledger is kept too, which says that the noise is drawn anew each time."""
    done = run_once(PROTOCOL, point.settings, point.data, seed)
    kept = ("privacy", "rows_that_join", "joined_rows") if point.settings.get("label_dp") else ()
    extra = {name: done.result.extra[name] for name in kept}
    return done.row({"training/loss": done.result.metrics["training/loss"]}, extra=extra, curve={})


def main() -> int:
    """Search the grids that the flags ask for."""
    study = study_of(__doc__, seeds=(0,))
    for grid in SMOKE if study.smoke else (*GRIDS, *PRIVATE_GRIDS):
        if study.wants(f"{grid.name} "):
            search(grid, study)
    return 0


if __name__ == "__main__":
    with guarded():
        sys.exit(main())

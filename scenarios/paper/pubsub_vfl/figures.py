"""Draws docs/results/pubsub_vfl-*.svg from the committed table of runs: times to a target, attack success for 5d."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from _ratios import by_seed
from _study import TABLE, measured, study_of

from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.study import rows_of


def times(axes: Any, study: str) -> None:
    """Draw how many of the ten seeds have reached AUC 0.92 by when, each method at its chosen setting."""
    rows: dict[str, list[RunRow]] = {}
    for row in rows_of(TABLE, study):
        rows.setdefault(row.name.removesuffix("-0"), []).append(row)
    for name, found in rows.items():
        reached = sorted(seconds for seconds in by_seed(found, 0.92).values() if seconds is not None)
        axes.step([0.0, *reached, 0.2], [*range(len(reached) + 1), len(reached)], where="post", label=name)
    axes.set_xlabel("simulated seconds of training")
    axes.set_ylabel("seeds of ten that have reached AUC 0.92")
    axes.set_xlim(0.0, 0.2)
    axes.legend(fontsize=7, loc="lower right")


def attacks(axes: Any, study: str) -> None:
    """Draw the success of the inversion over the nominal budget, and that of guessing."""
    points = []
    for name, row in measured(study).items():
        if "gradient" in name:
            continue
        metrics = row.metrics
        mu = metrics["nominal_mu"] if metrics["nominal_mu"] != "none" else math.inf
        points.append((mu, metrics["inversion_success"], metrics["guess_success"], metrics["inversion_auc"]))
    points.sort()
    x = range(len(points))
    axes.plot(x, [p[1] for p in points], marker="o", label="features reconstructed")
    axes.plot(x, [p[3] for p in points], marker="s", label="AUC on two-valued features")
    axes.plot(x, [p[2] for p in points], linestyle="--", color="grey", label="guessing the median")
    axes.set_xticks(list(x), [f"{p[0]:g}" for p in points])
    axes.set_xlabel("nominal mu")
    axes.legend(fontsize=8)


def main() -> None:
    given = study_of(__doc__)
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fedactors"
    from matplotlib import pyplot

    folder = given.out
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw, source in (
        ("time", times, "confirm-bank"),
        ("attacks", attacks, "attacks-bank"),
    ):
        if not given.wants(name):
            continue
        figure, axes = pyplot.subplots(figsize=(5.6, 3.6), layout="constrained")
        draw(axes, source)
        figure.savefig(folder / f"pubsub_vfl-{name}.svg", metadata={"Date": None})
        pyplot.close(figure)
        print(folder / f"pubsub_vfl-{name}.svg")


if __name__ == "__main__":
    main()

"""Draws docs/results/pubsub_vfl-*.svg from the committed summaries: curves for Figure 3a, attack success for 5d."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from _study import RESULTS, flags
from best import chosen

from fedactors.records.study import Study


def curves(axes: Any, split: str) -> None:
    """Draw validation AUC over simulated seconds, one line for the best row of each method."""
    for method, row in sorted(chosen(split).items()):
        seconds, auc = zip(*row["extra"]["curve"], strict=True)
        axes.plot(seconds, auc, marker="o", markersize=4, label=f"{method} ({row['run'].partition('-w')[2]})")
    axes.axhline(0.94, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("simulated seconds, evaluation included")
    axes.set_ylabel("validation AUC")
    axes.legend(fontsize=7)


def attacks(axes: Any, folder: Path) -> None:
    """Draw the success of the inversion over the nominal budget, and that of guessing."""
    points = []
    for file in folder.glob("mu-*.json"):
        if "gradient" in file.stem:
            continue
        metrics = json.loads(file.read_text())["metrics"]
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
    given = flags(__doc__).parse_intermixed_args(namespace=Study())
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fedactors"
    from matplotlib import pyplot

    folder = given.out if given.out != RESULTS else RESULTS.parents[1]
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw, source in (
        ("time", curves, "32-32"),
        ("attacks", attacks, RESULTS / "attacks-bank"),
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

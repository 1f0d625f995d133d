"""Draws docs/results/pubsub_vfl-*.svg from the committed table of runs: curves for Figure 3a, attack success for 5d."""

from __future__ import annotations

import math
from typing import Any

from _study import asked, measured


def curves(axes: Any, study: str) -> None:
    """Draw validation AUC over seconds of training, the best setting of each method, one seed."""
    for name, row in sorted(measured(study).items()):
        if name.endswith("-0"):
            axes.plot(row.curve["seconds"], row.curve["auc"], marker="o", markersize=3, label=name.removesuffix("-0"))
    axes.set_xlabel("simulated seconds of training (seed 0)")
    axes.set_ylabel("validation AUC")
    axes.set_ylim(bottom=0.8)
    axes.legend(fontsize=7)


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
    given = asked(__doc__)
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fedactors"
    from matplotlib import pyplot

    folder = given.out
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw, source in (
        ("time", curves, "compare-bank"),
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

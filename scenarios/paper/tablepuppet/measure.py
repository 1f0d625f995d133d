"""What Figures 5 to 8 share: panels on real multi-table sets, measured into summaries, and how they are drawn.

A panel is a data set, a model and a number of clients in each organisation; it runs the centralised model first and
then every algorithm, and writes one summary for each into ``docs/results/data/tablepuppet/<panel>/``. Panels that are
there already are left alone unless ``--again`` is given. Arithmetic is real and runs on the simulated runtime; seconds
on the networks are the paper's formula over the bytes in the traffic ledger. Settings come from the paper's grid.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedactors.config import build
from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.records.metrics import Summary
from fedactors.terminal import guarded
from protocols.tablepuppet.plugin import PROTOCOL

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "data" / "tablepuppet"
VERTICAL = ("rfl-admm-v", "rfl-sgd-v", "vfl-admm", "vfl-sgd")
PARTITIONED = ("rfl-admm", "rfl-sgd")
MODELS = {"regression": "linear", "binary": "logistic", "multiclass": "softmax"}
SETTINGS: dict[str, dict[str, Any]] = {
    "movielens-1m/linear": {"learning_rate": 0.5, "rho": 1.0, "inner_rho": 0.1},
    "movielens-1m/softmax": {"learning_rate": 0.5, "rho": 0.1, "inner_rho": 0.01, "num_classes": 5},
    "movielens-1m/neural": {"learning_rate": 0.5, "rho": 1.0, "inner_rho": 0.1, "centralised": "sgd"},
    "nycflights13/linear": {"learning_rate": 0.3, "batch_size": 512, "rho": 0.5, "inner_rho": 0.05},
    "nycflights13/logistic": {"learning_rate": 0.5, "batch_size": 512, "rho": 0.1, "inner_rho": 0.01},
    "orders:300/linear": {},
}
PRIVATE: dict[str, Any] = {
    "label_dp": 0.5, "feature_dp": 1.0, "admm": "paper_sgd", "batch_size": 10240, "learning_rate": 0.1,
    "local_learning_rate": 0.1,
}  # fmt: skip
LABEL_RANGE = {"movielens-1m": (1.0, 5.0), "nycflights13": (-60.0, 300.0)}
"""Declared ranges of the numeric labels: what a rating can be, and minutes of delay that are believed."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel of a figure; `task` decides the model (linear, logistic, softmax) unless it is `neural`."""

    data: str
    task: str = "regression"
    neural: bool = False
    num_partitions: int = 1
    """Clients in each organisation: 1 compares VFL and RFL-V, more run RFL."""
    private: bool = False
    """Label DP (lambda 0.5) and feature DP (epsilon 1, delta 1e-5, clip 1)."""
    algorithms: tuple[str, ...] = ()
    """Those of the panel if none."""
    rounds: int = 10

    @property
    def model(self) -> str:
        """The model's name."""
        return "neural" if self.neural else MODELS[self.task]

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.data}-{self.model}-{self.num_partitions}way" + ("-private" if self.private else "")

    @property
    def runs(self) -> tuple[str, ...]:
        """The algorithms to run."""
        return self.algorithms or (VERTICAL if self.num_partitions == 1 else PARTITIONED)


SMOKE = (Panel(data="orders:300", algorithms=("rfl-admm-v",), rounds=1),)


def measure(figure: str, panels: Sequence[Panel], axis: str = "epoch") -> int:
    """Measure a figure's panels, or draw what was measured, as the command line says."""
    parser = argparse.ArgumentParser(description=f"{figure} of TablePuppet")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the summaries")
    parser.add_argument("--only", default="", help="measure only panels whose name holds this text")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--plot", action="store_true", help="draw what was measured, and measure nothing")
    parser.add_argument("--smoke", action="store_true", help="one tiny panel on generated data")
    args = parser.parse_args()
    chosen = SMOKE if args.smoke else [panel for panel in panels if args.only in panel.name]

    def action() -> int:
        if not args.plot:
            for panel in chosen:
                measure_panel(panel, args.out, args.again)
        if args.plot or args.smoke:
            print(draw(figure, chosen, args.out, axis))
        return 0

    return guarded(action)


def measure_panel(panel: Panel, out: Path, again: bool) -> None:
    """Run a panel, the centralised model first, and write the summaries."""
    folder = out / panel.name
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in panel.runs if again or not (folder / f"{name}.json").exists()]
    if not missing:
        return
    print(panel.name)
    settings, known = SETTINGS[f"{panel.data}/{panel.model}"], folder / "centralised.json"
    if again or not known.exists():
        rounds = 4 if panel.model in ("logistic", "softmax") else panel.rounds
        found = train(panel, {**settings, "algorithm": "centralised", "rounds": rounds})
        write(folder, "centralised", found, found)
    centralised = Summary.from_dict(json.loads(known.read_text()))
    for algorithm in missing:
        words = {**settings, "algorithm": algorithm, "rounds": panel.rounds}
        if panel.private:
            words |= PRIVATE
            if panel.task == "regression":
                words["label_range"] = LABEL_RANGE[panel.data]
        write(folder, algorithm, train(panel, words), centralised)


def train(panel: Panel, words: dict[str, Any]) -> Summary:
    """Run one algorithm in a folder of its own that is thrown away."""
    model = "neural" if panel.neural else "auto"
    given = {"task": panel.task, "model": model, "num_partitions": panel.num_partitions, **words}
    with tempfile.TemporaryDirectory() as scratch:
        options = RunOptions(runtime="simulated", data=panel.data, seed=0, out=scratch, quiet=True)
        _, options = resolve(PROTOCOL, [], options)
        (summary,) = launch(PROTOCOL, build(PROTOCOL.Config, given), options)
    return summary


def write(folder: Path, name: str, summary: Summary, centralised: Summary) -> None:
    """Write a summary with the share of the gap that it closes and its communication; print a line."""
    metrics, best = dict(summary.metrics), centralised.metrics
    score = "rmse" if "rmse" in metrics else "accuracy"
    metrics[f"centralised_{score}"] = best[score]
    for key, of in (("gap_closed_%", score), ("loss_gap_closed_%", "test_loss")):
        span = best[of] - best[f"trivial_{of}"]
        metrics[key] = round(100 * (metrics[of] - metrics[f"trivial_{of}"]) / span, 2) if span else 100.0
    sent = summary.extra["communication"]
    metrics["epoch_mb"] = sent["epoch_bytes"] / 1e6 if name != "centralised" else 0.0
    for network in ("us-uk", "us-us"):
        metrics[f"{network}_s"] = sent[network]["ledger_seconds"] if name != "centralised" else 0.0
        metrics[f"{network}_model_s"] = sent[network]["model_seconds"]
    made = dataclasses.replace(summary, run=folder.name, metrics=metrics).as_dict()
    (folder / f"{name}.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    print(
        f"{name:12} {score} {metrics[score]:.4f} (trivial {metrics[f'trivial_{score}']:.4f}, centralised "
        f"{best[score]:.4f}): {metrics['gap_closed_%']:.1f} % of the gap, "
        f"{metrics['loss_gap_closed_%']:.1f} % in loss; "
        f"{metrics['epoch_mb']:.2f} MB and {metrics['us-uk_s']:.2f} s US-UK an epoch",
        flush=True,
    )


def draw(figure: str, panels: Sequence[Panel], out: Path, axis: str) -> Path:
    """Draw the measured panels: the score by epoch, or by seconds of communication on a network."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tablepuppet"
    from matplotlib import pyplot

    shown = [panel for panel in panels if (out / panel.name / "centralised.json").exists()]
    columns = min(len(shown), 3)
    rows = -(-len(shown) // columns)
    canvas, grid = pyplot.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False)
    for place in grid.flat[len(shown) :]:
        place.set_visible(False)
    for axes, panel in zip(grid.flat, shown, strict=False):
        folder = out / panel.name
        best = json.loads((folder / "centralised.json").read_text())["metrics"]
        score = "rmse" if "rmse" in best else "accuracy"
        axes.axhline(best[score], color="black", linestyle="--", linewidth=1, label="centralised")
        axes.axhline(best[f"trivial_{score}"], color="grey", linestyle=":", linewidth=1, label="trivial")
        for name in panel.runs:
            if not (folder / f"{name}.json").exists():
                continue
            run = json.loads((folder / f"{name}.json").read_text())
            step = 1.0 if axis == "epoch" else run["metrics"][f"{axis}_s"]
            curve = run["extra"]["curve"]
            axes.plot([step * (i + 1) for i in range(len(curve))], curve, marker="o", markersize=3, label=name)
        if axis != "epoch":
            axes.set_xscale("log")
        axes.set_title(panel.name, fontsize=9)
        axes.set_xlabel("epoch" if axis == "epoch" else f"seconds of communication, {axis.upper()}", fontsize=8)
        axes.set_ylabel(f"test {score}", fontsize=8)
        axes.legend(fontsize=6)
    canvas.tight_layout()
    path = (out.parents[1] if out == RESULTS else out) / f"tablepuppet-{figure}.svg"
    canvas.savefig(path, metadata={"Date": None})
    return path

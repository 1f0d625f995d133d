"""Figures 5 to 8: every algorithm on a real multi-table set, beside the centralised model and the trivial predictor.

    FEDACTORS_DATA=... python scenarios/paper/tablepuppet/convergence.py data=movielens-1m task=regression
    ... data=movielens-1m task=multiclass          softmax on the five ratings
    ... data=movielens-1m model=neural             hidden 16, as in Table 7
    ... data=nycflights13 task=binary              delay of 15 minutes or more
    ... num_partitions=2                           two clients in each organisation (RFL)
    ... private=true                               label and feature DP (Figure 6)

Writes one summary for each algorithm into `out`; `figures.py` draws them, docs/results/tablepuppet.md tabulates them.
Everything runs on the simulated runtime; numbers are those of real arithmetic, seconds on the networks are the paper's
formula over the bytes in the traffic ledger. Settings were chosen from the paper's grid on the training loss.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedactors.config import build, config, parse_words
from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.records.metrics import Summary
from fedactors.terminal import guarded
from protocols.tablepuppet.plugin import PROTOCOL

VERTICAL = ("rfl-admm-v", "rfl-sgd-v", "vfl-admm", "vfl-sgd")
PARTITIONED = ("rfl-admm", "rfl-sgd")
SETTINGS: dict[str, dict[str, Any]] = {
    "movielens-1m/linear": {"learning_rate": 0.5, "rho": 1.0, "inner_rho": 0.1},
    "movielens-1m/softmax": {"learning_rate": 0.5, "rho": 0.1, "inner_rho": 0.01},
    "movielens-1m/neural": {"learning_rate": 0.5, "rho": 1.0, "inner_rho": 0.1, "centralised": "sgd"},
    "nycflights13/linear": {"learning_rate": 0.3, "batch_size": 512, "rho": 0.5, "inner_rho": 0.05},
    "nycflights13/logistic": {"learning_rate": 0.5, "batch_size": 512, "rho": 0.1, "inner_rho": 0.01},
}
PRIVATE: dict[str, Any] = {
    "label_dp": 0.5, "feature_dp": 1.0, "admm": "paper_sgd", "learning_rate": 0.1, "local_learning_rate": 0.1,
}  # fmt: skip
LABEL_RANGE = {"movielens-1m": (1.0, 5.0), "nycflights13": (-60.0, 300.0)}
"""Declared ranges of the numeric labels: what a rating can be, and minutes of delay that are believed."""


@config
class Experiment:
    """One panel of the figures."""

    data: Literal["movielens-1m", "nycflights13"] = "movielens-1m"
    """Data set."""
    task: Literal["regression", "binary", "multiclass"] = "regression"
    """Rating or delay in minutes; delay of 15 minutes or more; the five ratings as classes."""
    model: Literal["auto", "neural"] = "auto"
    """Linear, logistic or softmax by the task, or a hidden layer of 16."""
    num_partitions: int = Field(default=1, ge=1)
    """Clients in each organisation; 1 runs RFL-V and VFL, more run RFL."""
    private: bool = False
    """Label DP (lambda 0.5) and feature DP (epsilon 1, delta 1e-5, clip 1)."""
    rounds: int = Field(default=10, ge=1)
    """Epochs of SGD and rounds of ADMM."""
    algorithms: tuple[str, ...] = ()
    """Algorithms to run; those of the panel if none."""
    seed: int = Field(default=0, ge=0)
    """Seed."""
    out: str = "docs/results/data/tablepuppet"
    """Folder of the summaries."""


def main(experiment: Experiment) -> None:
    """Run the panel, the centralised model first, and write the summaries."""
    kinds = {"regression": "linear", "binary": "logistic", "multiclass": "softmax"}
    kind = "neural" if experiment.model == "neural" else kinds[experiment.task]
    settings = SETTINGS[f"{experiment.data}/{kind}"]
    panel = f"{experiment.data}-{kind}-{experiment.num_partitions}way" + ("-private" if experiment.private else "")
    folder = Path(experiment.out) / panel
    folder.mkdir(parents=True, exist_ok=True)
    print(panel)
    exact = {k: v for k, v in settings.items() if k == "centralised"}
    rounds = 4 if kind in ("logistic", "softmax") else experiment.rounds
    centralised = train(experiment, {**settings, **exact, "algorithm": "centralised", "rounds": rounds})
    write(folder, "centralised", centralised, centralised)
    algorithms = experiment.algorithms or (VERTICAL if experiment.num_partitions == 1 else PARTITIONED)
    for algorithm in algorithms:
        words = {**settings, "algorithm": algorithm, "rounds": experiment.rounds}
        if experiment.private:
            words |= PRIVATE
            if experiment.task == "regression":
                words["label_range"] = LABEL_RANGE[experiment.data]
        write(folder, algorithm, train(experiment, words), centralised)


def train(experiment: Experiment, words: dict[str, Any]) -> Summary:
    """Run one algorithm in a folder of its own that is thrown away."""
    given = {"task": experiment.task, "model": experiment.model, "num_partitions": experiment.num_partitions, **words}
    if experiment.task == "multiclass":
        given["num_classes"] = 5
    with tempfile.TemporaryDirectory() as scratch:
        options = RunOptions(runtime="simulated", data=experiment.data, seed=experiment.seed, out=scratch, quiet=True)
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
        metrics[f"{network}_s"] = sent[network]["ledger_seconds"]
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


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(build(Experiment, parse_words(sys.argv[1:]))) or 0))

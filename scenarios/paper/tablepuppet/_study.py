"""What Figures 5 to 8 share: panels on real multi-table sets, measured into the table of runs.

A panel is a data set, a model and a number of clients in each organisation; it runs the centralised model first and
then its rows, whose study is the panel's name. Rows that are there already are left alone unless ``--again`` is given.
Arithmetic is real and runs on the simulated runtime; seconds on the networks are the paper's formula over the bytes in
the traffic ledger. Settings were chosen by training loss (`choose`).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedactors.runs.table import RunRow
from fedactors.sweeps import run_once

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.tablepuppet.plugin import PROTOCOL, PUBLISHED
from scenarios.paper.study import Study, study_flags

RESULTS = Path(__file__).parents[3] / "docs" / "results"
MODELS = {"regression": "linear", "binary": "logistic", "multiclass": "softmax"}
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "movielens-1m-linear": {
        "sgd": {"learning_rate": 0.3},
        "admm": {"rho": 0.5},
        "partitioned admm": {"rho": 0.3, "inner_rho": 0.01},
    },
    "movielens-1m-softmax": {
        "sgd": {"learning_rate": 1.0},
        "admm": {"rho": 0.03},
        "partitioned admm": {"rho": 0.1, "inner_rho": 0.001},
    },
    "movielens-1m-neural": {
        "sgd": {"learning_rate": 0.5},
        "admm": {"rho": 0.1},
        "partitioned admm": {"rho": 0.3, "inner_rho": 0.001, "lbfgs_iterations": 10},
    },
    "nycflights13-linear": {
        "sgd": {"learning_rate": 0.3, "batch_size": 512},
        "admm": {"rho": 0.5},
        "partitioned admm": {"rho": 0.3, "inner_rho": 0.001},
    },
    "nycflights13-logistic": {
        "sgd": {"learning_rate": 1.0, "batch_size": 512},
        "admm": {"rho": 0.05},
        "partitioned admm": {"rho": 0.1, "inner_rho": 0.0001},
    },
    "nycflights13-neural": {
        "sgd": {"learning_rate": 0.003, "batch_size": 512},
        "admm": {"rho": 0.3},
        "partitioned admm": {"rho": 0.3, "inner_rho": 0.001, "lbfgs_iterations": 3},
    },
    "movielens-1m-linear-private": {
        "sgd": {"batch_size": 102400, "clip": 30, "learning_rate": 0.2},
        "admm": {"rho": 0.3, "local_epochs": 5, "local_learning_rate": 0.3},
        "partitioned admm": {
            "rho": 0.3,
            "local_epochs": 5,
            "local_learning_rate": 0.3,
            "inner_rounds": 1,
            "inner_rho": 0.01,
        },
    },
    "nycflights13-logistic-private": {
        "sgd": {"batch_size": 240000, "clip": 10, "learning_rate": 8.0},
        "admm": {"rho": 1.0, "clip": 1, "local_epochs": 1, "local_learning_rate": 0.1},
        "partitioned admm": {
            "rho": 1.0,
            "clip": 1,
            "local_epochs": 1,
            "local_learning_rate": 0.03,
            "inner_rounds": 1,
            "inner_rho": 0.01,
        },
    },
    "orders:300-linear": {"sgd": {}, "admm": {}, "partitioned admm": {}},
}
"""By data set and model: the points of `choose.GRIDS` with the least training loss."""
PRIVACY: dict[str, Any] = {"label_dp": 0.5, "feature_dp": 1.0, "admm": "paper_sgd", "local_batch_size": 10240}
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
    """Label DP (lambda 0.5) and feature DP (epsilon 1, delta 1e-5)."""
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name to settings beside the chosen ones; the algorithm is the name's first word."""
    num_rounds: int = 10

    @property
    def subject(self) -> str:
        """Data set and model."""
        return f"{self.data}-{'neural' if self.neural else MODELS[self.task]}"

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.centralised}{'-private' if self.private else ''}"

    @property
    def centralised(self) -> str:
        """The panel without privacy, which the centralised model of both belongs to."""
        return f"{self.subject}-{self.num_partitions}way"

    def settings(self, algorithm: str) -> dict[str, Any]:
        """Return what a run of `algorithm` sets."""
        kind = "admm" if "admm" in algorithm else "sgd"
        if kind == "admm" and self.num_partitions > 1:
            kind = "partitioned admm"
        words: dict[str, Any] = {
            **PUBLISHED,
            "task": self.task,
            "num_partitions": self.num_partitions,
            "num_rounds": self.num_rounds,
        }
        is_private = self.private and algorithm != "centralised"
        if self.neural:
            words |= {"model": "neural", "centralised": "sgd", "lbfgs_iterations": 10}
        elif algorithm == "centralised":
            words |= {"num_rounds": 1, "lbfgs_iterations": 200}
        words |= SETTINGS[f"{self.subject}-private" if is_private else self.subject][kind] | {"algorithm": algorithm}
        if self.task == "multiclass":
            words["num_classes"] = 5
        if is_private:
            words |= PRIVACY
            if self.task == "regression":
                words["label_range"] = LABEL_RANGE[self.data]
        return words


SMOKE = (Panel(data="orders:300", rows={"rfl-admm-v": {}}, num_rounds=1),)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a panel, and the centralised ones that it is compared with, by seed; none is compared with itself."""

    data: str
    settings: Mapping[str, Any]
    centralised: Mapping[int, RunRow] = field(default_factory=dict)


def measure_panel(panel: Panel, study: Study) -> None:
    """Run the seeds that a panel lacks, those of the centralised model first."""

    def settings(name: str, more: Mapping[str, Any]) -> dict[str, Any]:
        return {**panel.settings(name.partition(" ")[0]), **more, **study.settings}

    first = {"centralised": Point(data=panel.data, settings=settings("centralised", {}))}
    study.measure(panel.centralised, first, once, whole=True, all_seeds=True, as_set=True)
    known = {row.seed: row for row in study.rows(panel.centralised, "centralised")}
    points = {
        name.replace(" ", "-"): Point(data=panel.data, settings=settings(name, more), centralised=known)
        for name, more in panel.rows.items()
    }
    study.measure(panel.name, points, once, all_seeds=True, as_set=True)


def once(point: Point, seed: int) -> RunRow:
    """Run one algorithm with one seed."""
    done = run_once(PROTOCOL, point.settings, point.data, seed)
    # the curve of scores is a column of its own
    row = done.row(extra={name: value for name, value in done.result.extra.items() if name != "curve"})
    return compared(row, point.centralised[seed] if point.centralised else row)


def compared(row: RunRow, centralised: RunRow) -> RunRow:
    """Return a row with the share of the gap that it closes, and its communication.

    Under privacy each run has test rows of its own: each is compared with the trivial predictor on its own.
    """
    metrics, best = dict(row.metrics), centralised.metrics
    score = "rmse" if "test/rmse" in metrics else "accuracy"
    metrics[f"test/centralised_{score}"] = best[f"test/{score}"]
    for key, of in (("gap_closed_%", score), ("loss_gap_closed_%", "loss")):
        span = best[f"test/{of}"] - best[f"test/trivial_{of}"]
        gained = metrics[f"test/{of}"] - metrics[f"test/trivial_{of}"]
        metrics[key] = round(100 * gained / span, 2) if span else 100.0
    sent, is_federated = row.extra["communication"], row is not centralised
    metrics["epoch_mb"] = sent["epoch_bytes"] / 1e6 if is_federated else 0.0
    for network in ("us-uk", "us-us"):
        metrics[f"{network}_s"] = sent[network]["ledger_seconds"] if is_federated else 0.0
        metrics[f"{network}_model_s"] = sent[network]["model_seconds"]
    return dataclasses.replace(row, metrics=metrics)


def study_of(description: str | None, seeds: Sequence[int] = range(5)) -> Study:
    """Read the command line of a script of this folder."""
    given: Study = study_flags(description, "tablepuppet", RESULTS, seeds=seeds).parse_args(namespace=Study())
    return given


def run_panels(panels: Sequence[Panel], study: Study) -> Sequence[Panel]:
    """Measure the panels that the flags ask for; return them all."""
    chosen = SMOKE if study.smoke else panels
    for panel in chosen:
        if any(study.wants(f"{panel.name}/{name.replace(' ', '-')}") for name in panel.rows):
            measure_panel(panel, study)
    return chosen

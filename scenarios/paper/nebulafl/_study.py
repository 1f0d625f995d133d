"""What NebulaFL's tables and figures share: rows, sizes, one run, and the settings that were chosen for each method.

Every row is run once per seed in the simulated runtime (training real, time and money modelled by the illustrative
"market" example) into ``docs/results/nebulafl.parquet``.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedactors.data.horizontal import HorizontalData
from fedactors.learning.metrics import of_split
from fedactors.records.recorder import MemoryRecorder
from fedactors.records.table import RunRow
from fedactors.sweeps.runs import run_once
from fedactors.sweeps.study import Study, rows_of, study_flags
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.plugin import PROTOCOL
from protocols.nebulafl.run import measured_split

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
BASELINES = (
    "fedavg", "fedavg-hierarchical", "fedhisyn", "fedhkt", "fedsa", "pisces", "gitfl", "fedasync", "fedbuff",
)  # fmt: skip
POLICIES = ("random", "cheapest", "fastest")
DIGITS: dict[str, Any] = {
    # a container holds 36 digits: batches of 10 give a training 18 steps (the paper: 125); the paper's 50 gives 5
    "model": "top-mlp", "batch_size": 10, "duration": 6000.0, "evaluation_interval": 500.0, "checkpoint_interval": 0,
}  # fmt: skip
FULL: dict[str, Any] = {"duration": 100000.0, "num_containers": 200, "active_per_center": 10}
SMOKE: dict[str, Any] = {
    "duration": 600.0, "evaluation_interval": 300.0, "num_centers": 2, "num_containers": 6, "active_per_center": 1,
    "rotation_interval": 200.0, "num_epochs": 1, "num_training": None,
}  # fmt: skip


More = Callable[[NebulaFLConfig, HorizontalData, Mapping[str, bytes]], Mapping[str, float]]
"""Metrics of a finished run from its actors' states."""


@dataclass(frozen=True)
class Row:
    """What a row sets beside the table's settings, and its data set."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"


def chosen(method: str) -> dict[str, Any]:
    """Return the settings that `choose.py` found best for a method on validation rows, the first at a tie."""
    best = max(tried(RESULTS, method), key=lambda row: float(row.metrics["validation/accuracy"]))
    return dict(best.extra.get("chosen", best.config))


def tried(out: Path, method: str) -> list[RunRow]:
    """Return what `choose.py` tried of a method: its settings, and the accuracy on validation rows."""
    return [row for row in rows_of(out / "nebulafl.parquet", "choice") if row.config["algorithm"] == method]


def flags(description: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Return the parser of a study of this protocol."""
    return study_flags(description, "nebulafl", RESULTS, seeds=seeds)


def resized(settings: Mapping[str, Any], given: Study, full: Mapping[str, Any] = FULL) -> dict[str, Any]:
    """Return settings at the size that the command line asks for, its own values on top."""
    size = full if given.full else SMOKE if given.smoke else {}
    return {**settings, **size, **given.settings}


def measure(
    description: str | None,
    table: str,
    rows: Mapping[str, Row],
    *,
    seeds: Sequence[int],
    targets: Sequence[float] = (),
    common: Mapping[str, Any] = DIGITS,
    full: Mapping[str, Any] = FULL,
    more: More | None = None,
) -> Study:
    """Run the rows of a table as the command line says; two of each study with ``--smoke``.

    Args:
        description: of the script.
        table: study of the rows; a row ``a/b`` is row b of the study ``<table>/a``.
        rows: what to run.
        seeds: of a run that gives none.
        targets: test accuracies; when and for how much each was first measured is written too.
        common: settings of all rows.
        full: what ``--full`` sets.
        more: metrics from the last checkpoint.
    """
    given = flags(description, seeds).parse_args(namespace=Study())
    wanted = [name for name in rows if given.wants(name)][: 2 if given.smoke else None]
    studies: dict[str, dict[str, Row]] = {}
    for name in wanted:
        settings = resized({**common, **rows[name].settings}, given, full)
        *folder, last = name.split("/")
        study = "/".join([table, *folder])
        studies.setdefault(study, {})[last] = Row(settings, "digits" if given.smoke else rows[name].data)
    for study, points in studies.items():
        given.measure(study, points, functools.partial(once, targets=targets, more=more), whole=True)
    return given


def once(row: Row, seed: int, targets: Sequence[float] = (), more: More | None = None) -> RunRow:
    """Run one row with one seed; `more` metrics come from its last checkpoint."""
    recorder = MemoryRecorder()
    done = run_once(PROTOCOL, row.settings, row.data, seed, recorder=recorder)
    curve = done.result.extra["curve"]
    metrics = dict(done.result.metrics)
    if more is not None:
        metrics |= more(done.config, done.data, recorder.checkpoints["final"].actors)
    for target in targets:
        metrics |= until(target, curve)
    digits = {"time": 6, "accuracy": 4, "dollars": 3}
    kept = {name: [round(point[name], places) for point in curve] for name, places in digits.items()}
    kept |= of_split(measured_split(done.config), {"accuracy": kept.pop("accuracy")})
    return done.row(metrics, curve=kept, extra={})


def until(target: float, curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what it took until `target` was first measured; everything that was spent if it never was."""
    hit = next((point for point in curve if point["accuracy"] >= target), None)
    point, suffix = hit or curve[-1], f"_{100 * target:g}"
    return {
        f"reached{suffix}": float(hit is not None),
        f"hours{suffix}": point["time"] / 3600.0,
        f"dollars{suffix}": point["dollars"],
        f"center_bytes{suffix}": point["center_bytes"],
    }

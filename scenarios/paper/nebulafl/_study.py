"""What NebulaFL's tables and figures share: rows, sizes, one run, and the settings that were chosen for each method.

Every row is run once per seed in the simulated runtime (training real, time and money modelled by the illustrative
"market" example) and written to ``docs/results/data/nebulafl/<table>/<row>.json``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedactors.config import build
from fedactors.data.horizontal import HorizontalData
from fedactors.launch import combine
from fedactors.records.metrics import Summary
from fedactors.records.recorder import MemoryRecorder
from fedactors.records.study import Study, study_flags, write_summary
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import load_data
from protocols.nebulafl.run import run

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results" / "data" / "nebulafl"
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
    """One row: its name, what it sets beside the table's settings, and its data set."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"


def chosen(method: str) -> dict[str, Any]:
    """Return the settings that `choose.py` found best for a method on validation rows."""
    settings: dict[str, Any] = json.loads((RESULTS / "choice.json").read_text())[method]["chosen"]
    return {"algorithm": method, **settings}


def flags(description: str | None, seeds: Sequence[int]) -> argparse.ArgumentParser:
    """Return the parser of a study of this protocol."""
    return study_flags(description, RESULTS, seeds=seeds)


def resized(settings: Mapping[str, Any], given: Study, full: Mapping[str, Any] = FULL) -> dict[str, Any]:
    """Return settings at the size that the command line asks for, its own values on top."""
    size = full if given.full else SMOKE if given.smoke else {}
    return {**settings, **size, **given.settings}


def measure(
    description: str | None,
    table: str,
    rows: Sequence[Row],
    *,
    seeds: Sequence[int],
    targets: Sequence[float] = (),
    common: Mapping[str, Any] = DIGITS,
    full: Mapping[str, Any] = FULL,
    more: More = lambda config, source, states: {},
) -> Study:
    """Run the rows of a table as the command line says, and write one summary for each.

    Args:
        description: of the script.
        table: folder of the summaries.
        rows: what to run; two of them with ``--smoke``.
        seeds: of a run that gives none.
        targets: test accuracies; when and for how much each was first measured is written too.
        common: settings of all rows.
        full: what ``--full`` sets.
        more: metrics from the last checkpoint.
    """
    given = flags(description, seeds).parse_args(namespace=Study())
    wanted = [row for row in rows if given.wants(row.name)]
    for row in wanted[:2] if given.smoke else wanted:
        path = given.out / table / f"{row.name}.json"
        if not given.lacks(path):
            continue
        data = "digits" if given.smoke else row.data
        settings = resized({**common, **row.settings}, given, full)
        numbers = given.seeds[:1] if given.smoke else given.seeds
        combined = combine([once(row.name, settings, data, seed, targets, more) for seed in numbers])
        write_summary(path, combined)
        shown = {name: round(value, 4) for name, value in combined["mean"]["metrics"].items()}
        print(path.relative_to(given.out), shown, flush=True)
    return given


def once(
    name: str,
    settings: Mapping[str, Any],
    data: str,
    seed: int,
    targets: Sequence[float] = (),
    more: More = lambda config, source, states: {},
) -> Summary:
    """Run one row with one seed; `more` metrics come from its last checkpoint."""
    config = build(NebulaFLConfig, dict(settings))
    source, recorder = load_data(config, data, seed), MemoryRecorder()
    runtime = SimulatedRuntime(seed=seed, recorder=recorder)
    result = runtime.execute(lambda: run(config, source, runtime))
    curve = result.extra["curve"]
    metrics = {**result.metrics, **more(config, source, recorder.checkpoints["final"].actors)}
    for target in targets:
        metrics |= until(target, curve)
    return Summary.of(
        result,
        runtime.usage(),
        run=f"{name}-{seed}",
        protocol="nebulafl",
        runtime="simulated",
        seed=seed,
        metrics=metrics,
        extra={
            "settings": {key: str(value) for key, value in sorted(settings.items())},
            "data": data,
            "time": [point["time"] for point in curve],
            "accuracy": [round(point["accuracy"], 4) for point in curve],
            "dollars": [round(point["dollars"], 3) for point in curve],
        },
    )


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

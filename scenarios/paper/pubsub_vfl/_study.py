"""What the experiments of this folder share: one run as a row, and where rows are kept.

A point is the settings of one run. Its row carries seconds and main metric after each epoch, so that the time to a
target can be read from it. Rows that are there already are skipped unless ``--again`` is given.

Two clocks are read: `seconds_to_target` with the alignment of rows and the evaluation on validation rows after each
epoch, which cost all methods the same, and `training_to_target` without them: what the paper calls running time.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _watch import blocks

from fedactors.config import parse_words
from fedactors.network.links import Network
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runs.table import NOT_REACHED, RunRow
from fedactors.runtime.interface import Runtime
from fedactors.sweeps import Done, run_once

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL, PUBLISHED
from fedactors.protocols.pubsub_vfl.run import HEADLINE
from scenarios.paper.pairs import difference_row
from scenarios.paper.study import Study, rows_of, study_flags

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
TABLE = RESULTS / "pubsub_vfl.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One run: its name, data, what it sets beside `PUBLISHED`, and the cores of each party's host."""

    name: str
    data: str
    settings: Mapping[str, Any]
    cores: Mapping[str, int] = dataclasses.field(default_factory=dict)
    speed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    network: Network | None = None
    reproducible_noise: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", {**PUBLISHED, **self.settings})


class Clocked(MemoryRecorder):
    """Notes the runtime's seconds after each epoch, those of its training alone and, in simulation, of busy cores."""

    runtime: Runtime | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.training: list[float] = []
        self.busy: list[float] = []
        self._last = (0.0, 0.0)
        self._computes: list[tuple[float, float]] = []

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        if kind == "compute":
            self._computes.append((start, end))
        elif (kind, label) == ("phase", "training"):
            self._last = (start, end)

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        super().record_round(index, metrics)
        if self.runtime is None:
            return
        begin, done = self._last
        self.seconds.append(self.runtime.usage().seconds)
        self.training.append(done - begin)
        self.busy.append(sum(max(0.0, min(end, done) - max(start, begin)) for start, end in self._computes))
        self._computes.clear()


def perform(point: Point, seed: int = 0) -> RunRow:
    """Run a point in simulation."""
    return perform_with_states(point, seed)[0]


def perform_with_states(point: Point, seed: int = 0) -> tuple[RunRow, dict[str, bytes]]:
    """Run a point in simulation; return the actors' final states too."""
    recorder = Clocked()
    if int(point.settings.get("num_parties", 2)) == 2:
        blocks(point.data, tuple(point.settings.get("feature_split", ())))  # held: a study loads them once
    done = run_once(
        PROTOCOL,
        point.settings,
        point.data,
        seed,
        recorder=recorder,
        cores=point.cores,
        network=point.network,
        costs=lambda config: default_costs(config, dict(point.speed)),
        reproducible_noise=point.reproducible_noise,
    )
    return row_of(point, done), dict(recorder.checkpoints["final"].actors)


def row_of(point: Point, done: Done) -> RunRow:
    """Return the row of a finished run; the time to the target is that of the first epoch that reached it."""
    recorder, result, config = done.recorder, done.result, done.config
    used, metric = done.runtime.usage(), HEADLINE[done.data.task][0]
    cores = sum(point.cores.values())
    reached = done.runtime.state.get("reached", False)
    training = sum(recorder.training)
    metrics = {
        **result.metrics,
        "epochs": result.rounds,
        "seconds_to_target": recorder.seconds[-1] if reached else NOT_REACHED,
        "epoch_seconds": recorder.seconds[-1] / result.rounds,
        "waiting_per_epoch": used.idle_seconds / result.rounds,
        "megabytes": used.bytes / 1e6,
        "utilisation": used.cpu_utilisation,
        "abandoned": sum(int(values["abandoned"]) for values in recorder.rounds),
        "reached": float(reached),
        "training_seconds": training,
        "training_to_target": training if reached else NOT_REACHED,
        "training_per_epoch": training / result.rounds,
        **({"training_utilisation": sum(recorder.busy) / (cores * training)} if cores else {}),
        **{"w_a": config.num_active_workers, "w_p": config.num_passive_workers, "B": config.batch_size},
        "learning_rate": config.learning_rate,
    }
    curve = {"seconds": recorder.seconds, metric: [values[metric] for values in recorder.rounds]}
    extra = {**result.extra, "cores": dict(point.cores)}
    return done.row(metrics, curve=curve, extra=extra)


def measured(study: str) -> dict[str, RunRow]:
    """Return the committed rows of a study by name, of several seeds the first."""
    found: dict[str, RunRow] = {}
    for row in rows_of(TABLE, study):
        found.setdefault(row.name, row)
    return found


def settings(method: str, w_a: int, w_p: int, batch_size: int, window: int) -> dict[str, Any]:
    """Return what a run of a method sets; `window` batches are in flight for each worker of the passive party.

    Messages cost no processor time in the simulation, so that PubSub-VFL's workers report at once.
    """
    return {
        "algorithm": method,
        "num_active_workers": w_a,
        "num_passive_workers": w_p,
        "batch_size": batch_size,
        "embedding_buffer": window,
        "max_in_flight": window * w_p,
        "transfer": "push",
        "prefetch": 6,
        "report_interval": 0.0,
    }


def flags(description: str | None, seeds: Sequence[int] = (0,)) -> argparse.ArgumentParser:
    """Return the flags that every experiment of this folder has."""
    return study_flags(description, "pubsub_vfl", RESULTS, seeds=seeds)


def study_of(description: str | None, seeds: Sequence[int] = (0,)) -> Study:
    """Read the command line of an experiment that has no flags of its own."""
    given: Study = flags(description, seeds).parse_args(namespace=Study())
    return given


def perform_all(points: Iterable[Point], study: str, given: Study) -> None:
    """Run every point with each seed that is not there yet; with ``--smoke`` the first, tiny."""
    words, sized = parse_words(given.words), {}
    for point in points:
        settings: dict[str, Any] = {**point.settings, **words}
        if given.smoke:
            settings |= {"num_epochs": 1, "num_layers": 2, "hidden_size": 8, "embedding_size": 4, "batch_size": 32}
            settings["feature_split"] = ()
            point = dataclasses.replace(point, data="breast-cancer")
        sized[point.name] = dataclasses.replace(point, settings=settings)
    given.measure(study, sized, perform, all_seeds=True, as_set=True, smoke_rows=1)


def put_difference(given: Study, study: str, name: str, baseline: str, metric: str, *, relative: bool = False) -> None:
    """Put the paired difference of two names' rows, in per cent, into the table, if both have enough seeds.

    Args:
        given: what the command line says.
        study: that they belong to.
        name: whose rows are compared.
        baseline: with which.
        metric: what of them.
        relative: per cent of the baseline's value instead of points.
    """
    sides = given.rows(study, name), given.rows(study, baseline)
    row = difference_row(*sides, metric, scale=100.0, relative=relative)
    if row is not None:
        given.put(f"{study}-differences", name, [row])

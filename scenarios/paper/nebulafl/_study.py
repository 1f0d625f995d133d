"""What NebulaFL's tables and figures share: rows, sizes, one run, and the settings that were chosen for each method.

Every row is run once per seed in the simulated runtime (training real, time and money modelled) into
``docs/results/nebulafl.parquet``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.config import build
from fedactors.data.layouts.horizontal import HorizontalData
from fedactors.learning.metrics import of_split
from fedactors.messages.ledger import INTER_DATA_CENTER
from fedactors.network.links import SharedTransfers
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runs.table import RunRow
from fedactors.sweeps import run_once

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.nebulafl.config import BY_CENTER, NebulaFLConfig
from fedactors.protocols.nebulafl.data import exchange_name, read_catalogue, read_network
from fedactors.protocols.nebulafl.plugin import PROTOCOL
from fedactors.protocols.nebulafl.run import measured_split
from scenarios.paper.pairs import ratio_row
from scenarios.paper.study import Study, rows_of, study_flags

TARGET = 0.94
RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
BASELINES = (
    "fedavg", "fedavg-hierarchical", "fedhisyn", "fedhkt", "fedsa", "pisces", "gitfl", "fedasync", "fedbuff",
)  # fmt: skip
POLICIES = ("random", "cheapest", "fastest")
DIGITS: dict[str, Any] = {
    # a container holds 36 digits: batches of 10 give a training 18 steps (the paper: 125); the paper's 50 gives 5
    "model": "top-mlp", "batch_size": 10, "duration": 6000.0, "evaluation_interval": 500.0, "checkpoint_interval": 0,
    "rotation_interval": 1000.0,
}  # fmt: skip
FULL: dict[str, Any] = {"duration": 100000.0, "num_containers": 200, "active_per_center": 10}
SMOKE: dict[str, Any] = {
    "duration": 600.0, "evaluation_interval": 300.0, "num_centers": 2, "num_containers": 6, "active_per_center": 1,
    "rotation_interval": 200.0, "local_epochs": 1, "num_training": None,
}  # fmt: skip
SMOKE_IN_CLOUD = {"duration": 6.0, "evaluation_interval": 3.0, "rotation_interval": 2.0}
SPAN = 14.0
"""Seconds in the cloud after which methods are compared: sixty trainings in a row on an RTX 4090."""
FULL_IN_CLOUD: dict[str, Any] = {"num_containers": 200, "active_per_center": 10}
MODEL_BYTES = 19_240
"""Of the digits' model, 4,810 numbers."""
BYTES = {megabytes: float(megabytes) * 1e6 / MODEL_BYTES for megabytes in ("1", "44.7", "500")}
BYTES = {"0.02": 1.0, **BYTES}
"""Megabytes that a model weighs on links, and how many times those of the digits' model that is."""
WORK = {"x1": 250 / 36, "x100": 100 * 250 / 36}
"""How many times the work of a container's 36 digits, over the throughput of ResNet-18."""


def cloud(megabytes: str = "44.7", work: str = "x1") -> dict[str, Any]:
    """Return what sets digits on cited hardware and links, until 94 % (the example ``cloud``).

    A training takes as long as one of ResNet-18 over 250 images of 32 x 32, five epochs (the paper's 50,000 over 200),
    times 1 or 100: 0.23 and 23 s on an RTX 4090. Everybody is measured twice in that time, at no cost.
    """
    training, transfer = _training(work), _transfer(megabytes)
    return {
        **DIGITS, "catalogue": "cloud", "network": "cloud", "dirichlet": 0.5,
        "bytes_factor": BYTES[megabytes], "work_factor": WORK[work],
        "target_accuracy": TARGET, "stop_at_target": True,
        "duration": 400 * training + 200 * transfer, "evaluation_interval": training / 2,
    }  # fmt: skip


def cloud_nebulafl(megabytes: str = "44.7", work: str = "x1") -> dict[str, Any]:
    """Return NebulaFL's settings there: its interval is the chosen one in trainings, or two transfers if longer."""
    known = chosen("nebulafl")
    trainings = 2.2 * known["rotation_interval"] / 250.0  # where it was chosen, 250 s are 2.2 trainings
    return {**known, "rotation_interval": max(trainings * _training(work), 2 * _transfer(megabytes))}


def cloud_chosen(method: str) -> dict[str, Any]:
    """Return a method's settings there: NebulaFL's interval follows the cloud's seconds, all else is as chosen."""
    return cloud_nebulafl() if method == "nebulafl" else chosen(method)


def _training(work: str) -> float:
    return 36 * 5 * WORK[work] / 5326.0  # seconds on an RTX 4090


def _transfer(megabytes: str) -> float:
    return BYTES[megabytes] * MODEL_BYTES / 625e6  # seconds of a model that has a link for itself


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


def resized(settings: Mapping[str, Any], given: Study, paper: Mapping[str, Any] = FULL) -> dict[str, Any]:
    """Return settings at the size that the command line asks for, its own values on top."""
    smoke = {**SMOKE, **(SMOKE_IN_CLOUD if settings.get("catalogue") == "cloud" else {})}
    size = paper if given.paper else smoke if given.smoke else {}
    return {**settings, **size, **given.settings}


def measure(
    description: str | None,
    table: str,
    rows: Mapping[str, Row],
    *,
    seeds: Sequence[int],
    targets: Sequence[float] = (),
    times: Sequence[float] = (),
    common: Mapping[str, Any] = DIGITS,
    paper: Mapping[str, Any] = FULL,
    more: More | None = None,
) -> Study:
    """Run the rows of a table as the command line says; two of each study with ``--smoke``.

    Args:
        description: of the script.
        table: study of the rows; a row ``a/b`` is row b of the study ``<table>/a``.
        rows: what to run.
        seeds: of a run that gives none.
        targets: test accuracies; when and for how much each was first measured is written too.
        times: seconds; the accuracy measured last by then is written too.
        common: settings of all rows.
        paper: what ``--paper`` sets.
        more: metrics from the last checkpoint.
    """
    given = flags(description, seeds).parse_args(namespace=Study())
    wanted = [name for name in rows if given.wants(name)][: 2 if given.smoke else None]
    studies: dict[str, dict[str, Row]] = {}
    for name in wanted:
        settings = resized({**common, **rows[name].settings}, given, paper)
        *folder, last = name.split("/")
        study = "/".join([table, *folder])
        studies.setdefault(study, {})[last] = Row(settings, "digits" if given.smoke else rows[name].data)
    for study, points in studies.items():
        given.measure(
            study,
            points,
            functools.partial(once, targets=targets, times=times, more=more),
            whole=True,
            all_seeds=True,
            as_set=True,
        )
    return given


def once(
    row: Row, seed: int, targets: Sequence[float] = (), times: Sequence[float] = (), more: More | None = None
) -> RunRow:
    """Run one row with one seed; `more` metrics come from its last checkpoint."""
    recorder = MemoryRecorder()
    done = run_once(PROTOCOL, row.settings, row.data, seed, recorder=recorder)
    curve = done.result.extra["curve"]
    metrics = dict(done.result.metrics)
    if more is not None:
        metrics |= more(done.config, done.data, recorder.checkpoints["final"].actors)
    for target in targets:
        metrics |= until(target, curve)
    for time in times:
        known = [point["accuracy"] for point in curve if point["time"] <= time * (1 + 1e-9)]
        metrics |= of_split(measured_split(done.config), {f"accuracy_{time:g}s": known[-1]}) if known else {}
    digits = {"time": 6, "accuracy": 4, "dollars": 3}
    kept = {name: [round(point[name], num_digits) for point in curve] for name, num_digits in digits.items()}
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


def handing(config: NebulaFLConfig) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the seconds and dollars of a model from the exchange to each center at once, and of one from each back."""
    centers, exchange = read_catalogue(config.catalogue).first_centers(config.num_centers), exchange_name(config)
    network = read_network(config.network).heavier(config.bytes_factor).links(centers, exchange, MODEL_BYTES)

    def together(ways: Sequence[tuple[str, str]]) -> tuple[float, float]:
        links, flows = [network.link(*way, INTER_DATA_CENTER) for way in ways], SharedTransfers(network)
        for index, ((source, target), link) in enumerate(zip(ways, links, strict=True)):
            flows.start(0.0, index, network.host(source), network.host(target), link, MODEL_BYTES)
        arrivals: list[float] = []
        while (end := flows.next_end()) is not None:
            arrivals += [end + links[index].latency for index in flows.advance(end)]
        return max(arrivals), sum(link.price(MODEL_BYTES) for link in links)

    return together([(exchange, center) for center in centers]), together([(center, exchange) for center in centers])


def owed(row: RunRow) -> tuple[float, float]:
    """Return the seconds and dollars that a row is charged beside what its run shows, so that all methods do the same.

    That is to begin with a model at the exchange, and to end with one there. The other methods' runs do, and are
    charged for it. NebulaFL's begin with a model that each center draws from the seed, and what is measured is the mean
    of the centers' masters, which nobody holds: it owes both ways. In methods with rounds the next one's orders have
    left by the time that a model is measured: these are taken off the bill.
    """
    config = build(NebulaFLConfig, row.config)
    (out_seconds, out_dollars), (back_seconds, back_dollars) = handing(config)
    if config.algorithm == "nebulafl":
        return out_seconds + back_seconds, out_dollars + back_dollars
    orders = 1 if config.algorithm in BY_CENTER else config.active_per_center if config.algorithm == "fedavg" else 0
    return 0.0, -orders * out_dollars


def spent(metric: str, *, handed: bool = True) -> Callable[[RunRow], float | None]:
    """Return what gives a row's hours or dollars until the target, None where it was not reached.

    Args:
        metric: hours or dollars.
        handed: what is `owed` is charged.
    """
    suffix = f"_{100 * TARGET:g}"

    def found(row: RunRow) -> float | None:
        if not row.metrics[f"reached{suffix}"]:
            return None
        seconds, dollars = owed(row) if handed else (0.0, 0.0)
        return float(row.metrics[f"{metric}{suffix}"]) + (seconds / 3600.0 if metric == "hours" else dollars)

    return found


def compared(ours: Sequence[RunRow], theirs: Sequence[RunRow], metric: str, *, handed: bool = True) -> RunRow:
    """Return the paired ratios of hours (the medians in seconds) or dollars as a row; see `spent`."""
    return ratio_row(ours, theirs, spent(metric, handed=handed), scale=3600.0 if metric == "hours" else 1.0)


def in_equal_time(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return rows with the test accuracy that they had in the same time, what they owe included."""
    found = []
    for row in rows:
        seconds, time = owed(row)[0], row.curve["time"]
        if seconds:
            known = float(np.interp(time[-1] - seconds, time, row.curve["test/accuracy"]))
            row = dataclasses.replace(row, metrics={**row.metrics, "test/accuracy": known})
        found.append(row)
    return found

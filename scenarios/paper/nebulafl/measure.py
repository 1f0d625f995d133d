"""What NebulaFL's tables and figures share: rows, seeds, sizes, and summaries written as JSON.

Every row is run once per seed in the simulated runtime (training real, time and money modelled by the illustrative
"market" example) and written to ``docs/results/data/nebulafl/<table>/<row>.json``. Rows that are there already are left
alone unless ``--again`` is given. ``--full`` sets the paper's size, ``--smoke`` the smallest that means something.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedactors.config import build
from fedactors.launch import combine
from fedactors.records.metrics import Summary, jsonable
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import load_data
from protocols.nebulafl.run import run

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "data" / "nebulafl"
BASELINES = (
    "fedavg", "fedavg-hierarchical", "fedhisyn", "fedhkt", "fedsa", "pisces", "gitfl", "fedasync", "fedbuff",
)  # fmt: skip
POLICIES = ("random", "cheapest", "fastest", "nebulafl")
COMMON: dict[str, Any] = {"duration": 6000.0, "evaluation_interval": 1000.0, "checkpoint_interval": 0}
FULL: dict[str, Any] = {"duration": 100000.0, "num_containers": 200, "active_per_center": 10}
SMOKE: dict[str, Any] = {
    "duration": 600.0, "evaluation_interval": 300.0, "num_centers": 2, "num_containers": 6, "active_per_center": 1,
    "rotation_interval": 200.0, "num_epochs": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row: its name, what it sets beside the common settings, and its data set."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    data: str = "digits"


def measure(
    table: str, rows: Sequence[Row], *, seeds: str = "0,1,2,3,4", target: float | None = None, **common: Any
) -> None:
    """Run the rows of a table as the command line says, and write one summary file for each.

    Args:
        table: folder of the summaries.
        rows: what to run.
        seeds: seeds of a run that gives none.
        target: test accuracy; when and for how much it was first measured is written too.
        common: settings of this table beside the common ones.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default=seeds)
    parser.add_argument("--rows", default="", help="names of rows, or their beginnings, by comma")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, each in its process")
    parser.add_argument("--out", help="folder of the summaries (with --smoke)")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("words", nargs="*", metavar="key=value")
    args = parser.parse_args()
    folder = (Path(args.out) if args.out else RESULTS) / table
    folder.mkdir(parents=True, exist_ok=True)
    given = dict(word.split("=", 1) for word in args.words)
    wanted = tuple(args.rows.split(","))
    chosen = [row for row in rows if row.name.startswith(wanted)]
    if args.smoke:
        chosen, args.seeds = [row for row in chosen if row.data == "digits"][:2], "0"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    with concurrent.futures.ProcessPoolExecutor(args.workers, context) as executor:
        pending = {}
        for row in chosen:
            path = folder / f"{row.name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not args.again:
                continue
            settings = {**COMMON, **common, **row.settings}
            settings |= FULL if args.full else SMOKE if args.smoke else {}
            settings |= given
            if target is not None:
                settings["target_accuracy"] = target
            pending[path] = [
                executor.submit(once, row.name, settings, row.data, int(seed)) for seed in args.seeds.split(",")
            ]
        for path, futures in pending.items():
            summaries = [Summary.from_dict(future.result(), where=str(path)) for future in futures]
            combined = combine(summaries)
            path.write_text(json.dumps(jsonable(combined), indent=1, sort_keys=True) + "\n")
            shown = {name: round(value, 4) for name, value in combined["mean"]["metrics"].items()}
            print(path.relative_to(folder), shown, flush=True)


def once(name: str, settings: Mapping[str, Any], data: str, seed: int) -> dict[str, Any]:
    """Run one row with one seed and return its summary as plain values."""
    import torch

    torch.set_num_threads(1)
    start = time.perf_counter()
    config = build(NebulaFLConfig, dict(settings))
    source = load_data(config, data, seed)
    runtime = SimulatedRuntime(seed=seed)
    result = runtime.execute(lambda: run(config, source, runtime))
    usage = runtime.usage()
    metrics = dict(result.metrics)
    if "target_accuracy" in settings:
        metrics |= until(float(settings["target_accuracy"]), result.extra["curve"])
    return Summary(
        run=f"{name}-{seed}",
        protocol="nebulafl",
        runtime="simulated",
        seed=seed,
        rounds=result.rounds,
        metrics=jsonable(metrics),
        extra={
            "settings": {key: str(value) for key, value in sorted(settings.items())},
            "data": data,
            "curve": jsonable(result.extra["curve"]),
        },
        bytes=usage.bytes,
        messages=usage.messages,
        seconds=usage.seconds,
        wall_seconds=round(time.perf_counter() - start, 1),
        cpu_utilisation=usage.cpu_utilisation,
        waiting_seconds=usage.waiting_seconds,
        money=usage.price,
        header_bytes=usage.header_bytes,
    ).as_dict()


def until(target: float, curve: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what it took until `target` was first measured; everything that was spent if it never was."""
    hit = next((point for point in curve if point["accuracy"] >= target), None)
    point = hit or curve[-1]
    return {
        "reached": float(hit is not None),
        "time_to_target": point["time"],
        "dollars_to_target": point["dollars"],
        "center_bytes_to_target": point["center_bytes"],
    }

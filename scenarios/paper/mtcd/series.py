"""Runs of MTCD and its baselines in the simulated runtime, kept as curves and summaries for tables and figures.

What the scripts beside this one share: `record` runs one setting over seeds and writes

    docs/results/data/mtcd/<figure>/<setting>.json      mean and deviation over seeds, as `fedactors run` prints them
    docs/results/data/mtcd/curves/<figure>.json         curves: gap against iterations, vectors and cost
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.config import build
from fedactors.launch import combine
from fedactors.records.metrics import Summary, jsonable
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import load_data
from protocols.mtcd.run import run

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
DATA = RESULTS / "data" / "mtcd"
FIGURES = RESULTS / "figures" / "mtcd"
POINTS = 80
"""Points of a curve that are kept."""


@dataclass
class Curve:
    """One run's measurements, by metric, in the order of rounds."""

    columns: dict[str, list[float]] = field(default_factory=dict)

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Add a round."""
        for name, value in {"round": index, **metrics}.items():
            self.columns.setdefault(name, []).append(float(value))

    def record_span(self, *span: Any) -> None:
        """Leave the timeline out."""

    def ledger_sink(self, rows: list[Any]) -> None:
        """Leave the rows out: totals are in the metrics."""

    def privacy(self, records: list[Any]) -> None:
        """Leave the privacy ledger out."""

    def save_checkpoint(self, label: str, actors: Any, driver: bytes) -> None:
        """Write nothing."""

    def vectors(self, num_bytes: int) -> tuple[list[float], list[float]]:
        """Return vectors sent over client-server and client-client links so far, each of `num_bytes`."""
        server = [value / num_bytes for value in self.columns["client_server_bytes"]]
        clients = [value / num_bytes for value in self.columns["client_client_bytes"]]
        return server, clients

    def first_below(self, metric: str, limit: float) -> int | None:
        """Return the first place at which a metric is at most `limit`."""
        return next((i for i, value in enumerate(self.columns[metric]) if value <= limit), None)


def measure(settings: Mapping[str, Any], seed: int, data: str = "synthetic") -> tuple[Curve, Summary]:
    """Run one setting with one seed."""
    config = build(MtcdConfig, settings)
    curve = Curve()
    runtime = SimulatedRuntime(seed=seed, recorder=curve, checkpoint_every=0)
    source = load_data(config, data, seed)
    result = runtime.execute(lambda: run(config, source, runtime))
    usage = runtime.usage()
    summary = Summary(
        run=f"seed-{seed}",
        protocol="mtcd",
        runtime="simulated",
        seed=seed,
        rounds=result.rounds,
        metrics=jsonable(result.metrics),
        extra={"learning_rate": result.extra["learning_rate"], "optimum": result.extra["optimum"]},
        bytes=usage.bytes,
        messages=usage.messages,
        seconds=usage.seconds,
        wall_seconds=0.0,
        cpu_utilisation=usage.cpu_utilisation,
        waiting_seconds=usage.waiting_seconds,
    )
    return curve, summary


def record(
    figure: str,
    name: str,
    settings: Mapping[str, Any],
    seeds: Sequence[int],
    *,
    gaps: Sequence[float] = (1e-1, 1e-2, 1e-3),
    data: str = "synthetic",
) -> list[Curve]:
    """Run a setting over seeds, write its summary, and add its curves to the figure's; return the curves.

    Beside the last measurements the summary has, for each gap, the iterations and vectors it took to reach it
    (infinite when it was not reached).
    """
    started = time.perf_counter()
    curves, summaries = [], []
    for seed in seeds:
        curve, summary = measure(settings, seed, data)
        extra: dict[str, float] = {}
        if "gap" in curve.columns:
            server, clients = curve.vectors(8 * int(settings.get("num_samples", 1000)))
            for gap in gaps:
                place = curve.first_below("gap", gap)
                found = math.inf if place is None else None
                extra[f"iterations_to_{gap:g}"] = found or curve.columns["iterations"][place or 0]
                extra[f"cs_vectors_to_{gap:g}"] = found or server[place or 0]
                extra[f"cc_vectors_to_{gap:g}"] = found or clients[place or 0]
                extra[f"vectors_to_{gap:g}"] = found or server[place or 0] + clients[place or 0]
        metrics = {**summary.metrics, **extra}
        summaries.append(Summary(**{**summary.__dict__, "metrics": jsonable(metrics)}))
        curves.append(curve)
    target = DATA / figure
    target.mkdir(parents=True, exist_ok=True)
    combined = combine(summaries)
    combined["settings"] = dict(settings)
    (target / f"{name}.json").write_text(json.dumps(combined, indent=1, sort_keys=True) + "\n")
    add_curves(figure, name, curves)
    last = {
        key: [round(c.columns[key][-1], 8) for c in curves]
        for key in ("objective", "gap", "test_accuracy")
        if key in curves[0].columns
    }
    print(f"{figure} {name}: {last} ({time.perf_counter() - started:.0f} s)", flush=True)
    return curves


def add_curves(figure: str, name: str, curves: Sequence[Curve]) -> None:
    """Keep a setting's curves, thinned, in the figure's file."""
    path = DATA / "curves" / f"{figure}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = [thinned(curve) for curve in curves]
    path.write_text(json.dumps(kept, sort_keys=True) + "\n")


def thinned(curve: Curve) -> dict[str, list[float]]:
    """Return at most `POINTS` points, denser at the start, six digits each."""
    length = len(curve.columns["round"])
    places = sorted({round(place) for place in np.geomspace(1, length, POINTS)} | {1})
    return {name: [float(f"{values[place - 1]:.6g}") for place in places] for name, values in curve.columns.items()}


def load_curves(figure: str) -> dict[str, list[dict[str, list[float]]]]:
    """Return a figure's curves by setting."""
    found: dict[str, list[dict[str, list[float]]]] = json.loads((DATA / "curves" / f"{figure}.json").read_text())
    return found


def band(runs: Sequence[Mapping[str, Sequence[float]]], x: str, y: str) -> tuple[Any, Any, Any]:
    """Return the common x, and mean and deviation of log10 y over seeds (curves meet at interpolated places)."""
    end = min(max(run[x]) for run in runs)
    longest = max(runs, key=lambda run: len(run[x]))
    grid = np.asarray([value for value in longest[x] if value <= end])
    logs = np.asarray([np.interp(grid, run[x], np.log10(np.maximum(run[y], 1e-16))) for run in runs])
    return grid, logs.mean(axis=0), logs.std(axis=0)


def mean_or_infinite(values: Sequence[float]) -> float:
    """Return the mean; infinite if any is."""
    return statistics.fmean(values)

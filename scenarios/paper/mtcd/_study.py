"""Runs of MTCD and its baselines in the simulated runtime, kept as curves and summaries for tables and figures.

What the scripts beside this one share: `MtcdStudy.record` runs one setting over seeds and writes, below
docs/results/data/mtcd or the folder that --out names,

    <figure>/<setting>.json      mean and deviation over seeds, as `fedactors run` prints them
    curves/<figure>.json         curves: gap against iterations, vectors and cost
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.config import build
from fedactors.launch import combine
from fedactors.records.metrics import Summary, jsonable
from fedactors.records.study import Study, study_flags, write_summary
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import load_data
from protocols.mtcd.run import run

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
DATA = RESULTS / "data" / "mtcd"
POINTS = 60
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
    extra = {"learning_rate": result.extra["learning_rate"], "optimum": result.extra["optimum"]}
    names = {"run": f"seed-{seed}", "protocol": "mtcd", "runtime": "simulated"}
    summary = Summary.of(result, runtime.usage(), seed=seed, extra=extra, **names)
    # committed results hold no time of the machine that made them
    summary = dataclasses.replace(summary, wall_seconds=0.0)
    return curve, summary


class MtcdStudy(Study):
    """What a script's command line asks for, and how a setting is run by it."""

    @classmethod
    def of(cls, description: str | None, seeds: Sequence[int] = (0, 1, 2, 3, 4)) -> MtcdStudy:
        """Read the command line of a script."""
        given = study_flags(description, DATA, seeds=seeds).parse_args(namespace=cls())
        if given.smoke:
            given.seeds = given.seeds[:1]
        return given

    def needs(self, path: Path, name: str) -> bool:
        """Say whether a setting is to be run: it is asked for, and not there yet with as many seeds."""
        if not self.wants(name):
            return False
        return self.lacks(path) or _num_runs(path) < len(self.seeds)

    def record(
        self,
        figure: str,
        name: str,
        settings: Mapping[str, Any],
        *,
        gaps: Sequence[float] = (1e-1, 1e-2, 1e-3),
        data: str = "synthetic",
    ) -> None:
        """Run a setting over seeds, write its summary, and add its curves to the figure's.

        Beside the last measurements the summary has, for each gap, the iterations and vectors it took to reach it
        (infinite when it was not reached).
        """
        target = self.out / figure / f"{name}.json"
        if not self.needs(target, f"{figure}/{name}"):
            return
        settings = {"min_cluster_size": 1, **(small(settings) if self.smoke else settings), **self.settings}
        started = time.perf_counter()
        curves, summaries = [], []
        for seed in self.seeds:
            curve, summary = measure(settings, seed, data)
            metrics = {**summary.metrics, **reached(curve, gaps, 8 * int(settings.get("num_samples", 1000)))}
            summaries.append(dataclasses.replace(summary, metrics=jsonable(metrics)))
            curves.append(curve)
        write_summary(target, {**combine(summaries), "settings": dict(settings)})
        add_curves(self.out, figure, name, curves)
        last = {
            key: [round(c.columns[key][-1], 8) for c in curves]
            for key in ("objective", "gap", "test_accuracy")
            if key in curves[0].columns
        }
        print(f"{figure} {name}: {last} ({time.perf_counter() - started:.0f} s)", flush=True)


def _num_runs(path: Path) -> int:
    content = json.loads(path.read_text())
    return len(content["runs"] if isinstance(content, dict) else content)


def small(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tiny version of a setting, for --smoke."""
    made = {**settings, "num_rounds": 2, "record_every": 1, "num_samples": 60}
    if settings.get("problem") == "network":
        return {**made, "network_width": 4, "batch_size": 16}
    made |= {
        "num_clients": 8,
        "num_features": 48,
        "edge_probability": 0.9,
        "num_hops": min(int(settings.get("num_hops", 1)), 3),
    }
    return {**made, "num_tokens": min(int(settings.get("num_tokens", 1)), 4)}


def reached(curve: Curve, gaps: Sequence[float], num_bytes: int) -> dict[str, float]:
    """Return iterations and vectors (of `num_bytes`) to each gap, infinite where it was not reached."""
    found: dict[str, float] = {}
    if "gap" not in curve.columns:
        return found
    server, clients = curve.vectors(num_bytes)
    for gap in gaps:
        place = curve.first_below("gap", gap)
        columns = {"iterations": curve.columns["iterations"], "rounds": curve.columns["round"]}
        columns |= {"cs_vectors": server, "cc_vectors": clients}
        for name, values in columns.items():
            found[f"{name}_to_{gap:g}"] = math.inf if place is None else values[place]
        found[f"vectors_to_{gap:g}"] = math.inf if place is None else server[place] + clients[place]
    return found


def add_curves(out: Path, figure: str, name: str, curves: Sequence[Curve]) -> None:
    """Keep a setting's curves, thinned, in the figure's file."""
    path = out / "curves" / f"{figure}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = [thinned(curve) for curve in curves]
    path.write_text(json.dumps(kept, sort_keys=True) + "\n")


def thinned(curve: Curve) -> dict[str, list[float]]:
    """Return at most `POINTS` points, denser at the start, six digits each."""
    length = len(curve.columns["round"])
    places = sorted({round(place) for place in np.geomspace(1, length, POINTS)} | {1})
    return {name: [float(f"{values[place - 1]:.6g}") for place in places] for name, values in curve.columns.items()}

"""Runs of MTCD and its baselines in the simulated runtime, with their curves, for tables and figures.

What the scripts beside this one share: `MtcdStudy.record` runs settings over seeds, into the table ``mtcd.parquet`` of
docs/results or of the folder that --out names. Curves are thinned: gap against iterations, vectors and cost.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.privacy.accounting import compose_mu, epsilon_of_mu
from fedactors.runs.table import RunRow
from fedactors.sweeps import run_once

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.mtcd.plugin import PROTOCOL, PUBLISHED
from scenarios.paper.study import Study, rows_of, study_flags

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
TABLE = RESULTS / "mtcd.parquet"
GAPS = (1e-1, 1e-2, 1e-3)
FEW = (40, 20, 10, 8, 4)
"""Tokens of the settings whose Q is tuned with 40 clients; 40 stands for SVFL."""
POINTS = 60
"""Points of a curve that are kept."""
Curve = Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run sets, its data, and the gaps or accuracies whose iterations and vectors, or bytes, are measured."""

    settings: Mapping[str, Any]
    data: str = "synthetic"
    gaps: Sequence[float] = GAPS
    accuracies: Sequence[float] = ()
    reproducible_noise: bool = False
    states_budget: bool = False
    """Whether the row says what its noise amounts to."""


class MtcdStudy(Study):
    """What a script's command line asks for, and how a setting is run by it."""

    @classmethod
    def of(cls, description: str | None, seeds: Sequence[int] = (0, 1, 2, 3, 4)) -> MtcdStudy:
        """Read the command line of a script."""
        given: MtcdStudy = study_flags(description, "mtcd", RESULTS, seeds=seeds).parse_args(namespace=cls())
        return given

    def record(
        self,
        figure: str,
        rows: Mapping[str, Mapping[str, Any]],
        *,
        gaps: Sequence[float] = GAPS,
        data: str = "synthetic",
        accuracies: Sequence[float] = (),
        reproducible_noise: bool = False,
        states_budget: bool = False,
        seeds: Sequence[int] | None = None,
    ) -> None:
        """Run the settings of a figure, by name, over seeds: those seeds that are not there with these settings.

        Beside the last measurements a row has, for each gap, the iterations and vectors it took to reach it.
        """
        points = {}
        for name, settings in rows.items():
            sized = small(settings) if self.smoke else settings
            points[name] = Setting(
                settings={"min_cluster_size": 1, **sized, **self.settings},
                data=data,
                gaps=gaps,
                accuracies=accuracies,
                reproducible_noise=reproducible_noise,
                states_budget=states_budget,
            )
        self.measure(figure, points, once, seeds=seeds, all_seeds=True, as_set=True)

    def best(
        self, figure: str, tried: Iterable[str], metric: str, otherwise: float, step: str = "learning_rate"
    ) -> float:
        """Return the step size of the row with the least of a metric among those that were tried, if any."""
        rows = [row for name in tried for row in self.rows(figure, name) if row.status == "finished"]
        if not rows:
            return otherwise
        return float(min(rows, key=lambda row: float(row.metrics[metric])).config[step])


def once(setting: Setting, seed: int) -> RunRow:
    """Run one setting with one seed."""
    noise = setting.reproducible_noise
    settings = {**PUBLISHED, **setting.settings}
    done = run_once(PROTOCOL, settings, setting.data, seed, checkpoint_every=0, reproducible_noise=noise)
    curve = {name: [float(value) for value in column] for name, column in done.recorder.curve.items()}
    num_bytes = 8 * int(done.config.num_samples)
    extra = {name: done.result.extra[name] for name in ("learning_rate", "optimum")}
    metrics = {**done.result.metrics, **reached(curve, setting.gaps, num_bytes)}
    metrics |= bytes_to(curve, setting.accuracies)
    if setting.states_budget and done.config.noise is not None:
        lines = done.result.extra["privacy"].values()
        mu = max(compose_mu(float(line["rigorous_mu"]) for line in of_client.values()) for of_client in lines)
        metrics |= {"mu": mu, "epsilon": epsilon_of_mu(mu, done.config.delta)}
    return done.row(metrics, extra=extra, curve=thinned(curve))


def small(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tiny version of a setting, for --smoke."""
    made = {**settings, "num_rounds": 2, "record_every": 1, "num_samples": 60}
    if settings.get("problem") == "network":
        return {**made, "hidden_size": 4, "batch_size": 16}
    made |= {
        "num_clients": 8,
        "num_features": 48,
        "edge_probability": 0.9,
        "num_hops": min(int(settings.get("num_hops", 1)), 3),
    }
    return {**made, **({"num_tokens": min(int(settings["num_tokens"]), 4)} if "num_tokens" in settings else {})}


def reached(curve: Curve, gaps: Sequence[float], num_bytes: int) -> dict[str, float]:
    """Return iterations and vectors (of `num_bytes`) to each gap, infinite where it was not reached."""
    found: dict[str, float] = {}
    if "gap" not in curve:
        return found
    columns = {"iterations": curve["iterations"], "rounds": curve["round"]}
    columns |= {
        short: [value / num_bytes for value in curve[f"{link}_bytes"]]
        for short, link in (("cs_vectors", "client_server"), ("cc_vectors", "client_client"))
    }
    columns["vectors"] = [sum(pair) for pair in zip(columns["cs_vectors"], columns["cc_vectors"], strict=True)]
    for gap in gaps:
        index = next((i for i, value in enumerate(curve["gap"]) if value <= gap), None)
        found |= {
            f"{name}_to_{gap:g}": math.inf if index is None else values[index] for name, values in columns.items()
        }
    return found


def bytes_to(curve: Curve, accuracies: Sequence[float]) -> dict[str, float]:
    """Return rounds and bytes to each test accuracy, infinite where it was not reached."""
    found = {}
    for level in accuracies:
        index = next((i for i, value in enumerate(curve["test/accuracy"]) if value >= level), None)
        for name in ("round", "client_server_bytes", "client_client_bytes"):
            found[f"{name}_to_{level:g}"] = math.inf if index is None else curve[name][index]
    return found


def thinned(curve: Curve) -> dict[str, list[float]]:
    """Return at most `POINTS` points, denser at the start, six digits each."""
    length = len(curve["round"])
    indices = sorted({round(index) for index in np.geomspace(1, length, POINTS)} | {1})
    return {name: [float(f"{values[index - 1]:.6g}") for index in indices] for name, values in curve.items()}


@functools.cache
def by_name(study: str) -> dict[str, list[RunRow]]:
    """Return the committed rows of a study, one a seed, by name in alphabetical order."""
    found: dict[str, list[RunRow]] = {}
    for row in rows_of(TABLE, study):
        if row.status == "finished":
            found.setdefault(row.name, []).append(row)
    return dict(sorted(found.items()))

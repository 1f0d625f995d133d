"""Measures what the parties' computes take on one core and fits the cost model of the simulated runtime.

Seconds are CPU seconds of the computing thread, the least of many repetitions, so that a busy machine changes little.
Fitted per kind of work: seconds = fixed + per_layer x layers + per_operation x units (`algorithm.operations`;
non-negative least squares on relative errors over all sizes), and the power law lambda B^gamma for Table 8.
Usage: python scenarios/benchmarks/compute_costs.py --output docs/results/data/pubsub_vfl/cost_model.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from fedactors.config import build
from fedactors.learning.optimizers import Network, OptimizerState
from fedactors.learning.split_learning import (
    Exchange,
    Publication,
    active_gradients,
    joint_output,
    local_gradients,
    loss_gradients,
    weighted_rows,
)
from fedactors.messages.compression import decode
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.protocols.pubsub_vfl.replicas import steps, weighted_mean
from fedactors.runtime.compute import one_torch_thread

BATCH_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SIZES = ((10, 64, 250), (10, 64, 50), (10, 64, 450), (10, 256, 250), (4, 32, 20))
PAPER = SIZES[0]
COSTS = Path(__file__).resolve().parents[2] / "docs" / "results" / "data" / "pubsub_vfl" / "cost_model.json"


def least_seconds(action: Callable[[], object], repetitions: int) -> float:
    """Return the least CPU time of `action`, after two runs to warm up."""
    taken = []
    for index in range(repetitions + 2):
        start = time.thread_time()
        action()
        if index >= 2:
            taken.append(time.thread_time() - start)
    return min(taken)


def measure(num_layers: int, hidden: int, features: int, repetitions: int) -> list[dict[str, Any]]:
    """Return seconds of each kind of work at each batch size for one size of models."""
    config = build(PubSubVflConfig, {**PUBLISHED, "num_layers": num_layers, "hidden_size": hidden})
    data = load_data(config, "synthetic:100x10", 0)
    spec, rng = config.step_rule, np.random.default_rng(0)
    bottom = Network(algorithm.bottom_spec(config, features), spec, 0)
    top = Network(algorithm.top_spec(config, data), spec, 0)
    sizes = {"bottom": bottom.vector.size, "top": top.vector.size}
    rows = []
    for batch_size in BATCH_SIZES:
        x = rng.normal(size=(batch_size, features)).astype(np.float32)
        z = rng.normal(size=(batch_size, config.embedding_size)).astype(np.float32)
        y = rng.integers(0, 2, size=batch_size)

        def backward(x: Any = x, z: Any = z) -> float:
            publication = Publication(bottom.model, x)
            publication.embed()
            start = time.thread_time()
            bottom.apply(publication.gradient(z))
            return time.thread_time() - start

        def active(x: Any = x, z: Any = z, y: Any = y) -> None:
            found = active_gradients(bottom.model, top.model, "binary", x, [z], y)
            bottom.apply(found.bottom)
            top.apply(found.top)

        def top_step(z: Any = z, y: Any = y) -> None:
            top.apply(loss_gradients(top.model, [z, z], y, "binary").gradient)

        def embed(x: Any = x) -> None:
            Publication(bottom.model, x).embed()

        def top_forward(z: Any = z) -> None:
            joint_output(top.model, [z, z])

        seconds = {
            "bottom-forward": least_seconds(embed, repetitions),
            "bottom-backward": min(backward() for _ in range(repetitions)),
            "active-step": least_seconds(active, repetitions),
            "top-step": least_seconds(top_step, repetitions),
            "top-forward": least_seconds(top_forward, repetitions),
        }
        for kind, value in seconds.items():
            part = {"active-step": sum(sizes.values()), "top-step": sizes["top"], "top-forward": sizes["top"]}
            size = part.get(kind, sizes["bottom"])
            rows.append(
                {
                    "kind": kind,
                    "layers": num_layers,
                    "hidden": hidden,
                    "features": features,
                    "batch_size": batch_size,
                    "parameters": size,
                    "seconds": value,
                }
            )
    return rows


def operations(row: dict[str, Any]) -> float:
    """Return the units of work of one measurement."""
    updates = row["kind"] in ("bottom-backward", "active-step", "top-step")
    return algorithm.operations(row["batch_size"], row["parameters"], updates=updates)


def fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Fit the cost of one kind of work on relative errors."""
    seconds = np.array([row["seconds"] for row in rows])
    design = np.array([[1.0, row["layers"], operations(row)] for row in rows])
    scale = np.array([1e-4, 1e-5, 1e-10])
    found, _ = nnls(design * scale / seconds[:, None], np.ones(len(rows)))
    fixed, per_layer, per_operation = found * scale
    error = np.abs(design @ (found * scale) / seconds - 1)
    return {
        "fixed": fixed,
        "per_layer": per_layer,
        "per_operation": per_operation,
        "median_relative_error": float(np.median(error)),
        "largest_relative_error": float(error.max()),
    }


def power_law(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Fit lambda B^gamma by least squares of logarithms, with its goodness of fit."""
    x, y = (np.log([row[name] for row in rows]) for name in ("batch_size", "seconds"))
    gamma, intercept = np.polyfit(x, y, 1)
    residual = y - (gamma * x + intercept)
    return {
        "lambda": float(np.exp(intercept)),
        "gamma": float(gamma),
        "r2": float(1 - residual.var() / y.var()),
        "largest_relative_error": float(np.abs(np.expm1(residual)).max()),
    }


def average_seconds(repetitions: int) -> dict[str, float]:
    """Return seconds per parameter and worker of an average, and per call."""
    vectors = [np.random.default_rng(i).normal(size=60_000).astype(np.float32) for i in range(8)]
    many = least_seconds(lambda: weighted_mean(vectors, [1.0] * 8), repetitions)
    few = least_seconds(lambda: weighted_mean([v[:100] for v in vectors], [1.0] * 8), repetitions)
    return {"fixed": few, "per_layer": 0.0, "per_operation": (many - few) / (8 * 59_900)}


def per_value(action: Callable[[int], Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Return seconds per value, and per call, of what is done with arrays of any length."""
    few, many = (least_seconds(action(size), repetitions) for size in (640, 64_000))
    slope = (many - few) / (64_000 - 640)
    return {"fixed": max(few - 640 * slope, 0.0), "per_layer": 0.0, "per_operation": slope}


def exchange_seconds(repetitions: int) -> dict[str, dict[str, float]]:
    """Return what it takes to round values for the wire, to read them, and to step with Adam at a parameter server."""

    def values(size: int) -> np.ndarray:
        return np.random.default_rng(size).normal(size=(size // 64, 64)).astype(np.float32)

    def step(size: int) -> Callable[[], object]:
        vector = values(size).reshape(-1)
        states = steps(build(PubSubVflConfig, PUBLISHED).step_rule, [vector], [vector], [OptimizerState()])[1]
        return lambda: steps(build(PubSubVflConfig, PUBLISHED).step_rule, [vector], [vector], states)

    def compress(size: int) -> Callable[[], object]:
        array = values(size)
        return lambda: algorithm.compress(array, 8, 0)

    def decompress(size: int) -> Callable[[], object]:
        packed = algorithm.compress(values(size), 8, 0)
        return lambda: decode(packed)

    made = {"compress": compress, "decompress": decompress, "server-step": step}
    return {kind: per_value(action, repetitions) for kind, action in made.items()}


def local_seconds(repetitions: int, active: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return what cached local updates take: weighing rows, and the label holder's step.

    The step is told by how many times as long it takes as an active step of the same minute, on whose fit it rests: so
    a busy machine changes little.
    """
    config = build(PubSubVflConfig, PUBLISHED)
    rule, rng = config.step_rule, np.random.default_rng(0)
    top = Network(algorithm.top_spec(config, load_data(config, "synthetic:100x10", 0)), rule, 0)
    ratios = []
    for num_layers, hidden, features in SIZES[:3]:
        spec = algorithm.bottom_spec(
            build(PubSubVflConfig, {**PUBLISHED, "num_layers": num_layers, "hidden_size": hidden}), features
        )
        bottom = Network(spec, rule, 0)
        for batch_size in (64, 128, 256, 512):
            x = rng.normal(size=(batch_size, features)).astype(np.float32)
            z = rng.normal(size=(batch_size, config.embedding_size)).astype(np.float32)
            y = rng.integers(0, 2, size=batch_size)
            then = Exchange(rows=np.arange(batch_size), embeddings=(z,), gradients=(z,))

            def step(bottom: Network = bottom, x: Any = x, z: Any = z, y: Any = y) -> None:
                found = active_gradients(bottom.model, top.model, "binary", x, [z], y)
                bottom.apply(found.bottom)
                top.apply(found.top)

            def again(bottom: Network = bottom, x: Any = x, y: Any = y, then: Exchange = then) -> None:
                found = local_gradients(bottom.model, top.model, "binary", x, then, 0.0, y)
                bottom.apply(found[0])
                top.apply(found[1])

            ratios.append(least_seconds(again, repetitions) / least_seconds(step, repetitions))
    ratio = float(np.median(ratios))
    names = ("fixed", "per_layer", "per_operation")

    def weigh(size: int) -> Callable[[], object]:
        array = np.random.default_rng(size).normal(size=(size // 64, 64)).astype(np.float32)
        return lambda: weighted_rows(array, array, array, 0.5)

    step_again = {**{name: active[name] * ratio for name in names}, "of_active_step": ratio, "largest": max(ratios)}
    return {"weigh": per_value(weigh, repetitions), "local-step": step_again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=COSTS)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--exchange", action="store_true", help="measure only what the exchange itself computes")
    parser.add_argument("--local", action="store_true", help="measure only what cached local updates compute")
    given = parser.parse_args()
    one_torch_thread()
    if given.exchange or given.local:
        made = json.loads(given.output.read_text())
        if given.exchange:
            made["kinds"] |= exchange_seconds(given.repetitions)
        if given.local:
            made["kinds"] |= local_seconds(given.repetitions, made["kinds"]["active-step"])
        given.output.write_text(json.dumps(made, indent=1) + "\n")
        print(json.dumps({"kinds": made["kinds"]}))
        return
    rows = [row for size in SIZES for row in measure(*size, given.repetitions)]
    kinds = sorted({row["kind"] for row in rows})
    reference = [row for row in rows if (row["layers"], row["hidden"], row["features"]) == PAPER]
    fits = {kind: fit([r for r in rows if r["kind"] == kind]) for kind in kinds}
    made = {
        "schema_version": 1,
        "command": "python scenarios/benchmarks/compute_costs.py --output docs/results/data/pubsub_vfl/cost_model.json",
        "machine": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "torch": torch.__version__,
        },
        "load_average": os.getloadavg()[0],
        "kinds": fits
        | {"average": average_seconds(given.repetitions)}
        | exchange_seconds(given.repetitions)
        | local_seconds(given.repetitions, fits["active-step"]),
        "power_laws": {kind: power_law([r for r in reference if r["kind"] == kind]) for kind in kinds},
        "measured": rows,
    }
    given.output.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps({"kinds": made["kinds"], "power_laws": made["power_laws"]}))


if __name__ == "__main__":
    main()

"""How many small clients a second are trained: one after the other, and in batched calls.

    plain      `fedactors.learning.local_training.train_locally`, client by client
    together   `fedactors.learning.many_clients.train_clients`, 16, 64 and 256 clients a call

Usage: python scenarios/benchmarks/batched_clients.py [--clients 256] [--samples 20,60] [--device cuda]
Prints one JSON line a row: model, samples, and clients a second of each. One thread; random samples; each client
starts from the same model, batch 20, two passes, SGD with momentum. All sides of a row alternate; the best of three
counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch

from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.many_clients import train_clients, why_not_together
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.learning.optimizers import OptimizerSpec

MODELS = {
    "linear 28x28": ModelSpec(name="linear", inputs=(784,), outputs=10),
    "mlp 30-64-64-2": ModelSpec(name="mlp", inputs=(30,), outputs=2, hidden_size=64, layers=3),
    "mlp 784-200-10": ModelSpec(name="mlp", inputs=(784,), outputs=10, hidden_size=200, layers=2),
    "cnn8": ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10),
    "cnn28": ModelSpec(name="cnn28", inputs=(1, 28, 28), outputs=10),
}
TOGETHER = (16, 64, 256)
REPEATS = 3
BATCH, EPOCHS = 20, 2


def measure(spec: ModelSpec, num_clients: int, num_samples: int, device: str) -> dict[str, float]:
    """Return clients a second of each side."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(num_samples // 2, num_samples * 3 // 2 + 1, num_clients)
    rows = [(rng.normal(size=(n, *spec.inputs)).astype(np.float32), rng.integers(0, spec.outputs, n)) for n in sizes]
    start = initial_vector(spec, 0)
    training = LocalTraining(
        optimizer=OptimizerSpec(learning_rate=0.01, momentum=0.9), batch_size=BATCH, num_epochs=EPOCHS
    )
    few = rows[: max(8, num_clients // 8)]  # a client alone costs the same each time

    def plain() -> int:
        for seed, (x, y) in enumerate(few):
            train_locally(spec, start, x, y, seed=seed, training=training, device=device)
        return len(few)

    def together(size: int) -> Callable[[], int]:
        def call() -> int:
            train_clients(
                spec, [start] * num_clients, rows, seeds=range(num_clients), training=training, device=device,
                most_together=size, most_parameters=10**9,
            )  # fmt: skip
            return num_clients

        return call

    sides: dict[str, Callable[[], int]] = {"plain": plain}
    if not why_not_together(spec):
        sides |= {f"together {size}": together(size) for size in TOGETHER if size <= num_clients}
    best = dict.fromkeys(sides, 0.0)
    for _ in range(REPEATS):
        for name, side in sides.items():
            begun = time.perf_counter()
            done = side()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            best[name] = max(best[name], done / (time.perf_counter() - begun))
    return {name: round(value, 1) for name, value in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--samples", default="20,60")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.models.split(","):
        spec = MODELS[name]
        for num_samples in map(int, args.samples.split(",")):
            found = measure(spec, args.clients, num_samples, args.device)
            batched = max((value for side, value in found.items() if side.startswith("together")), default=0.0)
            alone = max(value for side, value in found.items() if not side.startswith("together"))
            line = {"model": name, "parameters": initial_vector(spec, 0).size, "samples": num_samples}
            print(json.dumps({**line, **found, "gain": round(batched / alone, 2)}), flush=True)


if __name__ == "__main__":
    main()

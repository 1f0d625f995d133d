"""FedAvg over many small clients in simulation, against the barest loop of the same trainings in two processes.

    ours   `horizontal` in the simulated runtime with a pool of two, two sites that hold half of the clients each
    bare   two processes that hold half of the clients each: for each round
           `fedactors.learning.many_clients.train_clients` over them (the function that a site calls), their weighted
           sum, and one mean of the two; no actors, messages, ledger, clock, checks or measurement
    flat   the same with `fedactors.learning.local_training.train_locally`, client by client:
           what NebulaFL's containers use

Usage: FEDACTORS_DATA=<folder> python scenarios/benchmarks/many_clients.py [--clients 100] [--samples 600]
       [--models cnn28] [--rounds 5] [--repeats 3] [--data fashion-mnist] [--per-site 50]
Prints one JSON line a model: seconds a round of either side, by the wall and of the processor (all processes of a
side), the mean of all rounds but the first and the last; and ours over either other. Sides take turns; all begin from
the same model with the same rows and orders of rows, and `apart` is by how much the last models of ours and bare differ
at most.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import psutil

from fedactors.actors.context import derived_seed
from fedactors.config import build
from fedactors.data.layouts.horizontal import rows_key, rows_of
from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.many_clients import train_clients
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.protocols.horizontal.algorithm import local_training as training_of
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data, model_spec
from fedactors.protocols.horizontal.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.compute import one_torch_thread
from fedactors.runtime.simulation.runtime import SimulatedRuntime

Marks = list[tuple[float, float]]
"""Wall and processor seconds at the end of each round."""


def mark() -> tuple[float, float]:
    """Return the seconds of the wall, and of the processor that this process and those under it have used."""
    here = psutil.Process()
    used = 0.0
    for process in (here, *here.children(recursive=True)):
        times = process.cpu_times()
        used += times.user + times.system
    return time.perf_counter(), used


class Watch(MemoryRecorder):
    """Notes when each round ends, and the model then."""

    runtime: SimulatedRuntime

    def __init__(self) -> None:
        super().__init__()
        self.marks: Marks = []
        self.model: Any = None

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """See the class."""
        self.marks.append(mark())
        self.model = self.runtime.contexts["server"].actor.model.vector  # type: ignore[attr-defined]
        super().record_round(index, metrics)


def ours(config: HorizontalConfig, name: str) -> tuple[Marks, Any]:
    """Run the protocol; return the ends of its rounds, and its last model."""
    watch = Watch()
    runtime = watch.runtime = SimulatedRuntime(seed=0, recorder=watch, pool=2, checkpoint_every=0)
    data = load_data(config, name, 0)
    runtime.execute(lambda: run(config, data, runtime))
    return watch.marks, watch.model


def trained(
    spec: ModelSpec, model_P: Any, clients: Any, seeds: list[int], training: LocalTraining, is_flat: bool
) -> Iterator[Any]:
    """Yield each client's model, of either kernel."""
    if not is_flat:
        starts = [model_P] * len(clients)
        yield from (one.vector for one in train_clients(spec, starts, clients, seeds=seeds, training=training))
        return
    for (x, y), seed in zip(clients, seeds, strict=True):
        yield train_locally(spec, model_P, x, y, seed=seed, training=training).vector


def train_half(config: HorizontalConfig, name: str, half: range, pipe: Connection, is_flat: bool) -> None:
    """Train these clients from the model that comes, round by round; send back their weighted sum."""
    one_torch_thread()
    data = load_data(config, name, 0)
    clients = [rows_of(rows_key(data.client(client))) for client in half]
    weights = [float(len(x)) for x, _ in clients]
    spec = model_spec(config, inputs=data.shape, task=data.task, num_classes=data.num_classes)
    for round_ in range(1, config.num_rounds + 1):
        model_P = pipe.recv()
        seeds = [derived_seed(0, f"client {client}", f"rows {round_}") for client in half]
        training = training_of(config, data.task, round_)
        sum_P = np.zeros(model_P.shape)
        for weight, vector_P in zip(weights, trained(spec, model_P, clients, seeds, training, is_flat), strict=True):
            sum_P += weight * vector_P
        pipe.send((sum(weights), sum_P))


def bare(config: HorizontalConfig, name: str, is_flat: bool = False) -> tuple[Marks, Any]:
    """Train in two processes, which stay; return the ends of the rounds, and the last model."""
    data = load_data(config, name, 0)
    spec = model_spec(config, inputs=data.shape, task=data.task, num_classes=data.num_classes)
    model_P = initial_vector(spec, derived_seed(0, "all clients", "model"))
    context = multiprocessing.get_context("spawn")
    middle = -(-data.num_clients // 2)
    workers, pipes = [], []
    for half in (range(middle), range(middle, data.num_clients)):
        near, far = context.Pipe()
        workers.append(context.Process(target=train_half, args=(config, name, half, far, is_flat), daemon=True))
        pipes.append(near)
        workers[-1].start()
        far.close()  # the end of a worker that dies is heard of
    marks = []
    for _ in range(config.num_rounds):
        for pipe in pipes:
            pipe.send(model_P)
        found = [pipe.recv() for pipe in pipes]
        total = sum(weight for weight, _ in found)
        model_P = (sum(sum_P for _, sum_P in found) / total).astype(model_P.dtype)
        marks.append(mark())
    for worker in workers:
        worker.join()
    return marks, model_P


def rounds_of(marks: Marks) -> list[tuple[float, float]]:
    """Return what each round took, but for the first, which loads, and the last, which measures."""
    taken = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(marks)]
    return taken[:-1] or taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=600, help="rows of a client")
    parser.add_argument("--models", default="cnn28")
    parser.add_argument("--per-site", type=int, help="clients of a site (default: half of all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    for model in args.models.split(","):
        words = {
            "model": model, "num_clients": args.clients, "clients_per_site": args.per_site or -(-args.clients // 2),
            "dirichlet": None,
            "num_training": args.clients * args.samples, "num_rounds": args.rounds, "evaluate_every": args.rounds,
            "momentum": 0.9, "learning_rate": 0.01, "batch_size": 50,
        }  # fmt: skip
        config = build(HorizontalConfig, words)
        found: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": [], "flat": []}
        models = {}
        for _ in range(args.repeats):
            for side, play in (("ours", ours), ("bare", bare), ("flat", partial(bare, is_flat=True))):
                marks, models[side] = play(config, args.data)
                found[side] += rounds_of(marks)
        line: dict[str, Any] = {"model": model, "clients": args.clients, "samples": args.samples}
        for index, kind in enumerate(("wall", "processor")):
            seconds = {side: statistics.fmean(one[index] for one in each) for side, each in found.items()}
            line |= {f"{side}_{kind}_seconds": round(value, 4) for side, value in seconds.items()}
            for other in ("bare", "flat"):
                ratio = round(seconds["ours"] / seconds[other], 3) if seconds[other] else None
                line[f"{kind}_of_{other}"] = ratio
        print(json.dumps({**line, "apart": float(np.abs(models["ours"] - models["bare"]).max())}), flush=True)


if __name__ == "__main__":
    main()

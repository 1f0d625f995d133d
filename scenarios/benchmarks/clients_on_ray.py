"""Memory and processor time of many small clients on Ray beside bare processes, in one run.

    shared   `horizontal` on Ray, its clients in as many processes as cores: each with messages and a state of its own
    sites    `horizontal` on Ray with `clients_per_site`: as many sites as cores, which send the mean of their clients
    each     `horizontal` on Ray with a process for each client, of the first `--each` clients only: all do not fit
    bare     a process for each core that holds its share of the clients, trains them one after the other with
             `fedactors.learning.local_training.train_locally` and sends their weighted sum through a pipe: no actors,
             messages, ledger, checks, measurement or checkpoints

Usage: FEDACTORS_DATA=<folder> python scenarios/benchmarks/clients_on_ray.py [--clients 1000] [--samples 60]
       [--model linear] [--rounds 8] [--repeats 2] [--each 20] [--data fashion-mnist] [--out rows.jsonl]
Prints one JSON line a side and repeat, by turns; each side is a process of its own, all of which load the same rows.
`round_seconds` and `round_cpu_seconds` are means over all rounds but the first and the last, which load and measure, by
the wall and of all processes of a side together. `*_mb` is memory at the end of the last round but one, as
proportional set size (PSS: what is shared by several processes is divided among them), in all, of the driver, of the
processes that hold clients or their server, and of Ray's own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import psutil

from fedactors.actors.context import derived_seed
from fedactors.config import build
from fedactors.data.layouts.horizontal import HorizontalData, rows_key, rows_of
from fedactors.learning.local_training import train_locally
from fedactors.learning.network import initial_vector
from fedactors.protocols.horizontal.algorithm import local_training
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data, model_spec
from fedactors.protocols.horizontal.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.compute import one_torch_thread

SIDES = ("shared", "sites", "each", "bare")
Mark = dict[str, float]


def weigh() -> Mark:
    """Return seconds of the wall and of the processor, and megabytes, of this process and all those under it."""
    here = psutil.Process()
    found: Mark = dict.fromkeys(("cpu", "all_mb", "driver_mb", "actors_mb", "rays_mb"), 0.0)
    for process in (here, *here.children(recursive=True)):
        try:
            times, memory, words = process.cpu_times(), process.memory_full_info().pss / 2**20, process.cmdline()
        except psutil.NoSuchProcess:
            continue
        kind = "driver" if process == here else "rays"
        if process != here and (words[:1] == ["ray::ActorProcess"] or "spawn_main" in " ".join(words)):
            kind = "actors"
        found["cpu"] += times.user + times.system
        found["all_mb"] += memory
        found[f"{kind}_mb"] += memory
    return {"wall": time.perf_counter(), **found}


class Watch(MemoryRecorder):
    """Notes what has been used when each round ends."""

    def __init__(self) -> None:
        super().__init__(keeps_checkpoints=False)
        self.marks: list[Mark] = []

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """See the class."""
        if "training/loss" in metrics:
            self.marks.append({**weigh(), "clients": metrics["clients"]})
        super().record_round(index, metrics)


def on_ray(config: HorizontalConfig, data: HorizontalData) -> tuple[list[Mark], int]:
    """Run the protocol; return what was used at the end of each round, and the number of processes of clients."""
    from fedactors.runtime.ray.runtime import RayRuntime

    watch = Watch()
    runtime = RayRuntime(seed=0, recorder=watch, checkpoint_every=0)
    runtime.execute(lambda: run(config, data, runtime))
    return watch.marks, len({pid for name, pid in runtime.processes.items() if name != "server"})


def train_share(config: HorizontalConfig, name: str, share: range, pipe: Connection) -> None:
    """Train these clients from the model that comes, round by round; send back their weighted sum."""
    one_torch_thread()
    data = load_data(config, name, 0)
    clients = {client: rows_of(rows_key(data.client(client))) for client in share}
    spec = model_spec(config, inputs=data.shape, task=data.task, num_classes=data.num_classes)
    for round_ in range(1, config.num_rounds + 1):
        model_P = pipe.recv()
        total_P = np.zeros(model_P.shape)
        for client, (x, y) in clients.items():
            seed = derived_seed(0, f"client {client}", f"rows {round_}")
            training = local_training(config, data.task, round_)
            total_P += len(x) * train_locally(spec, model_P, x, y, seed=seed, training=training).vector
        pipe.send((float(sum(len(x) for x, _ in clients.values())), total_P))


def bare(config: HorizontalConfig, data: HorizontalData, name: str) -> tuple[list[Mark], int]:
    """Train in a process for each core; return as `on_ray`."""
    spec = model_spec(config, inputs=data.shape, task=data.task, num_classes=data.num_classes)
    model_P = initial_vector(spec, derived_seed(0, "all clients", "model"))
    context, num_processes = multiprocessing.get_context("spawn"), os.cpu_count() or 1
    size = -(-data.num_clients // num_processes)
    workers, pipes, marks = [], [], []
    for first in range(0, data.num_clients, size):
        near, far = context.Pipe()
        share = range(first, min(first + size, data.num_clients))
        workers.append(context.Process(target=train_share, args=(config, name, share, far), daemon=True))
        pipes.append(near)
        workers[-1].start()
        far.close()  # the end of a worker that dies is heard of
    for _ in range(config.num_rounds):
        for pipe in pipes:
            pipe.send(model_P)
        found = [pipe.recv() for pipe in pipes]
        total = sum(weight for weight, _ in found)
        model_P = (sum(total_P for _, total_P in found) / total).astype(model_P.dtype)
        marks.append({**weigh(), "clients": float(data.num_clients)})
    for worker in workers:
        worker.join()
    return marks, len(workers)


def play(side: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one side here; return its row."""
    num_clients = min(args.each, args.clients) if side == "each" else args.clients
    words = {
        "model": args.model, "num_clients": num_clients, "dirichlet": None, "num_training": num_clients * args.samples,
        "num_rounds": args.rounds, "evaluate_every": args.rounds, "momentum": 0.9, "learning_rate": 0.01,
        "batch_size": 50, "on_party_loss": "stop",
    }  # fmt: skip
    if side == "sites":
        words["clients_per_site"] = -(-num_clients // (os.cpu_count() or 1))
    if side == "each":
        words["clients_per_process"] = 1
    config = build(HorizontalConfig, words)
    data = load_data(config, args.data, 0)
    began = time.perf_counter()
    marks, num_processes = bare(config, data, args.data) if side == "bare" else on_ray(config, data)
    assert {mark["clients"] for mark in marks} == {num_clients}, "a client is missing"
    taken = [(b["wall"] - a["wall"], b["cpu"] - a["cpu"]) for a, b in pairwise(marks)]
    wall, cpu = (statistics.fmean(part) for part in zip(*(taken[:-1] or taken), strict=True))
    held = {name: round(value, 1) for name, value in marks[-2].items() if name.endswith("_mb")}
    seconds = {"round_seconds": round(wall, 3), "round_cpu_seconds": round(cpu, 3)}
    all_seconds = {"all_seconds": round(time.perf_counter() - began, 1), "all_cpu_seconds": round(marks[-1]["cpu"], 1)}
    return {"side": side, "clients": num_clients, "processes": num_processes, **held, **seconds, **all_seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=60, help="rows of a client")
    parser.add_argument("--model", default="linear")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--each", type=int, default=20, help="clients of the side with a process for each")
    parser.add_argument("--out", type=Path, help="a file for the rows, beside standard output")
    parser.add_argument("--side", choices=SIDES, help="one side, in this process; by default all, each in its own")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(play(args.side, args)), flush=True)
        return
    rows = []
    for repeat in range(args.repeats):
        for side in SIDES:
            words = [sys.executable, __file__, *sys.argv[1:], "--side", side]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
            rows.append({"repeat": repeat, **json.loads(done.stdout.splitlines()[-1])})
            print(json.dumps(rows[-1]), flush=True)
            if args.out:
                args.out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


if __name__ == "__main__":
    main()

"""How near the whole PubSub-VFL protocol on Ray comes to the pipeline's bound, measured in the same run.

Bound: batch size over the slower party's own seconds per batch, each party's arithmetic measured alone, in a process of
its own, before and after the run. Bound together: the same with both at work at the same time, in two processes that
exchange nothing, and as many batches embedded ahead as the window allows: caches and memory are shared.
Protocol: two parties, one worker each, broker, deadline, ledger and handles all on.
Usage: python scenarios/benchmarks/pubsub_pipeline.py [--hidden-size 64] [--rows 100000] [--epochs 7]
       [--windows 12,24,4] [report_interval=0.02,prefetch=8]
Prints one JSON line: samples per second, the bound, their ratio, and per window, and per further settings, the
validation AUC (staleness).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import psutil

from fedactors.config import build, parse_words
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data, num_batches
from fedactors.protocols.pubsub_vfl.messages import EpochOrder
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.protocols.pubsub_vfl.run import assemble
from fedactors.runtime.compute import one_torch_thread
from fedactors.runtime.ray.runtime import RayRuntime

ROLES = ("passive", "active")


def seconds_a_batch(
    role: str, config: PubSubVflConfig, held: int = 0, together: Any = None, num_batches: int = 150
) -> float:
    """Return one party's median seconds per batch: forward, backward and step on its own arrays.

    Args:
        role: passive or active.
        config: sizes of batch and models.
        held: how many batches the passive party has embedded when a gradient comes.
        together: a barrier at which the other party's process waits too; both then go on until both have measured.
        num_batches: how many are measured.
    """
    one_torch_thread()
    from fedactors.learning.optimizers import Network
    from fedactors.learning.split_learning import Publication, active_gradients

    data = load_data(config, "synthetic:2000x500", 0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(config.batch_size * 40, 250)).astype(np.float32)
    y = rng.integers(0, 2, size=len(x))
    z = rng.normal(size=(config.batch_size, config.embedding_size)).astype(np.float32)
    spec = config.step_rule
    bottom = Network(algorithm.bottom_spec(config, 250), spec, 0)
    top = Network(algorithm.top_spec(config, data), spec, 0)
    publications: deque[Publication] = deque()

    def batch() -> float:
        rows = rng.permutation(len(x))[: config.batch_size]
        start = time.perf_counter()
        if role == "passive":
            publications.append(Publication(bottom.model, x[rows]))
            publications[-1].embed()
            if len(publications) > held:
                bottom.apply(publications.popleft().gradient(z))
        else:
            found = active_gradients(bottom.model, top.model, "binary", x[rows], [z], y[rows])
            top.apply(found.top)
            bottom.apply(found.bottom)
        return time.perf_counter() - start

    for _ in range(20 + held):
        batch()
    if together is None:
        return statistics.median(batch() for _ in range(num_batches))
    together.wait()
    found = statistics.median(batch() for _ in range(num_batches))
    end = time.perf_counter() + 0.5 * found * num_batches
    while time.perf_counter() < end:
        batch()
    return found


def measure_alone(config: PubSubVflConfig) -> dict[str, float]:
    """Measure both parties alone, one after the other, each in a fresh process."""
    context = multiprocessing.get_context("spawn")
    found = {}
    for role in ROLES:
        with context.Pool(1) as pool:
            found[role] = pool.apply(seconds_a_batch, (role, config))
    return found


def measure_together(config: PubSubVflConfig) -> dict[str, float]:
    """Measure both parties at the same time, in two processes that exchange nothing, with the window's batches held."""
    context = multiprocessing.get_context("spawn")
    # the end of one that dies is heard of, and ends the other
    with context.Manager() as manager, ProcessPoolExecutor(2, context) as pool:
        barrier = manager.Barrier(2)
        asked = {role: pool.submit(seconds_a_batch, role, config, config.max_in_flight, barrier, 400) for role in ROLES}
        return {role: answer.result() for role, answer in asked.items()}


def measure_protocol(config: PubSubVflConfig, rows: int, epochs: int) -> dict[str, Any]:
    """Train some epochs over Ray; return the median seconds of an epoch after the first, and the validation AUC."""
    data = load_data(config, f"synthetic:{rows}x500", 0)
    runtime = RayRuntime(seed=0, num_cpus=2)
    taken: list[float] = []
    facts: dict[str, Any] = {}

    def cpu_seconds() -> dict[str, float]:
        processes = {"driver": os.getpid(), **runtime.processes}
        used = {name: psutil.Process(pid).cpu_times() for name, pid in processes.items()}
        return {name: times.user + times.system for name, times in used.items()}

    async def main() -> None:
        actors = assemble(config, data, runtime)
        await runtime.start()
        num_rows = (await actors.align()).num_rows
        facts["started"] = time.perf_counter() - begun
        for epoch in range(1, epochs + 1):
            if epoch == 2:
                facts["cpu"] = cpu_seconds()
            start = time.perf_counter()
            await actors.train(EpochOrder(epoch), num_rows)
            taken.append(time.perf_counter() - start)
        facts["cpu"] = {name: seconds - facts["cpu"][name] for name, seconds in cpu_seconds().items()}
        facts["auc"] = (await actors.evaluate("validation")).metrics["auc"]
        facts["num_rows"] = num_rows

    begun = time.perf_counter()
    runtime.execute(main)
    usage = runtime.usage()
    seconds = statistics.median(taken[1:])
    num_trained = num_batches(facts["num_rows"], config.batch_size) * (epochs - 1)
    return {
        "cpu_ms_per_batch": {name: round(1000 * s / num_trained, 3) for name, s in facts["cpu"].items()},
        "samples_per_second": facts["num_rows"] / seconds,
        "seconds_to_first_epoch": facts["started"],
        "epoch_seconds": [round(t, 3) for t in taken],
        "ms_per_batch": 1000 * seconds / num_batches(facts["num_rows"], config.batch_size),
        "validation_auc": facts["auc"],
        "messages": usage.messages,
        "bytes": usage.bytes,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument(
        "--windows", default="12,24,4", help="batches in flight, the first is the one compared with the bound"
    )
    parser.add_argument("others", nargs="*", metavar="KEY=VALUE,...", help="a run more with the first window and these")
    given = parser.parse_args()
    windows = [int(w) for w in given.windows.split(",")]
    common: dict[str, Any] = {
        **PUBLISHED,
        "hidden_size": given.hidden_size,
        "max_in_flight": windows[0],
        "prefetch": 4,
        "num_epochs": given.epochs,
    }
    settings = {str(w): {**common, "max_in_flight": w} for w in windows}
    settings |= {words: {**common, **parse_words(words.split(","))} for words in given.others}
    configs = {name: build(PubSubVflConfig, values) for name, values in settings.items()}
    first = configs[str(windows[0])]
    before = measure_alone(first)
    runs = {name: measure_protocol(config, given.rows, given.epochs) for name, config in configs.items()}
    after = measure_alone(first)
    alone = {role: min(before[role], after[role]) for role in before}
    together = measure_together(first)
    bound = first.batch_size / max(alone.values())
    bound_together = first.batch_size / max(together.values())
    reached = runs[str(windows[0])]["samples_per_second"]
    print(
        json.dumps(
            {
                "benchmark": "pubsub_pipeline",
                "hidden_size": given.hidden_size,
                "alone_ms_per_batch": {role: 1000 * s for role, s in alone.items()},
                "alone_ms_before_after": [before, after],
                "together_ms_per_batch": {role: 1000 * s for role, s in together.items()},
                "bound_samples_per_second": bound,
                "ratio_of_bound": reached / bound,
                "ratio_of_bound_together": reached / bound_together,
                "windows": runs,
            }
        )
    )


if __name__ == "__main__":
    main()

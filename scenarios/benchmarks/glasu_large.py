"""A generated graph of 1,000,000 nodes and 10,000,000 edges: sampled rounds of GLASU, and what memory they take.

python scenarios/benchmarks/glasu_large.py [nodes [edges [features of a client [width [nodes at a time]]]]]
python scenarios/benchmarks/glasu_large.py 169343 1166243 43 256       # the size of ogbn-arxiv: 128 features in all
python scenarios/benchmarks/glasu_large.py --simulated 1000000         # one round and the evaluation, in this process

Three clients and the server run as processes of their own. Printed: the largest sum of their and the driver's resident
memory in each round, and its seconds; the first round includes loading, the last an evaluation on the whole graph.
With ``--simulated`` all of them are in this process, one core computes, and processor seconds are told too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from fedactors.config import build
from fedactors.data.datasets.load import to_csr
from fedactors.data.layouts.graph import GraphBlock
from fedactors.messages.codec import wire_type
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.run import run
from fedactors.runtime.compute import one_torch_thread
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime

SETTINGS = {
    "batch_size": 1024,
    "num_neighbours": 3,
    "hidden_size": 32,
    "num_local_updates": 4,
    "learning_rate": 0.002,
    "num_rounds": 3,
    "evaluate_every": 3,
}


@wire_type
class LargePart:
    """A client's part of a `LargeGraph`."""

    party: str
    client: int
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int = 4

    def load(self) -> GraphBlock:
        """Draw what the client holds; labels and split are everyone's."""
        common = np.random.default_rng(0)
        labels = common.integers(0, self.num_classes, self.num_nodes)
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], np.arange(self.num_classes + 1))
        source = common.integers(0, self.num_nodes, self.num_edges)
        low, high = starts[labels[source]], starts[labels[source] + 1]
        near = order[low + (common.random(self.num_edges) * (high - low)).astype(np.int64)]
        far = common.integers(0, self.num_nodes, self.num_edges)
        edges = np.stack([source, np.where(common.random(self.num_edges) < 0.8, near, far)], axis=1)
        nodes = common.permutation(self.num_nodes)
        local = np.random.default_rng([1, self.client])
        indptr, indices = to_csr(edges[local.random(self.num_edges) < 0.8], self.num_nodes)
        centres = local.standard_normal((self.num_classes, self.num_features)).astype(np.float32)
        features = centres[labels] + 2 * local.standard_normal((self.num_nodes, self.num_features), dtype=np.float32)
        tenth = self.num_nodes // 10
        return GraphBlock(
            indptr=indptr,
            indices=indices,
            features=features,
            columns=np.arange(self.num_features),
            labels=labels,
            num_classes=self.num_classes,
            train=nodes[: 6 * tenth],
            validation=nodes[6 * tenth : 7 * tenth],
            test=nodes[7 * tenth :],
        )


@dataclass(frozen=True)
class LargeGraph:
    """A stochastic block model with features that each client draws for itself: edges, then which of them it keeps."""

    num_nodes: int
    num_edges: int
    num_features: int
    parties: tuple[str, ...] = ("client-0", "client-1", "client-2")

    def part(self, party: str) -> LargePart:
        """Return a client's part."""
        client = self.parties.index(party)
        return LargePart(
            party=party,
            client=client,
            num_nodes=self.num_nodes,
            num_edges=self.num_edges,
            num_features=self.num_features,
        )


class Watch:
    """Keeps the largest sum of the processes' resident memory since it was last read, without what Ray shares."""

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        self.processes = processes
        self.peak = 0
        self.running = True
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while self.running:
            total = 0
            for process in [0, *self.processes()]:
                try:
                    memory = psutil.Process(process or None).memory_info()
                    total += memory.rss - memory.shared
                except psutil.NoSuchProcess:
                    continue
            self.peak = max(self.peak, total)
            time.sleep(0.1)


class Rounds:
    """A recorder that notes when rounds end and what memory they took; it keeps nothing else."""

    keeps_checkpoints = False

    def __init__(self) -> None:
        self.watch: Watch
        self.rounds: list[dict[str, Any]] = []
        self.start = time.perf_counter()

    def record_round(self, index: int, metrics: dict[str, Any]) -> None:
        """Note and print a round."""
        now = time.perf_counter()
        row = {"round": index, "seconds": now - self.start, "peak_gb": self.watch.peak / 1e9, **metrics}
        row["processor_seconds"] = time.process_time()
        self.rounds.append(row)
        print(json.dumps(row), flush=True)
        self.start, self.watch.peak = now, 0

    def record_span(self, *span: Any) -> None:
        """Ignore the timeline."""

    def ledger_sink(self, rows: list[Any]) -> None:
        """Ignore the ledger's rows."""

    def privacy(self, records: list[Any]) -> None:
        """Ignore privacy records."""

    def save_checkpoint(self, label: str, actors: Any, driver: bytes) -> None:
        """Ignore checkpoints."""


def main() -> None:
    """Run three rounds: the first after loading, the third with an evaluation on the whole graph."""
    is_simulated = "--simulated" in sys.argv
    sizes = [int(word) for word in sys.argv[1:] if word != "--simulated"]
    num_nodes = sizes[0] if sizes else 1_000_000
    num_edges, num_features, width, chunk = (*sizes[1:], *(10 * num_nodes, 16, 32, 65536)[max(0, len(sizes) - 1) :])
    source = LargeGraph(num_nodes, num_edges, num_features)
    recorder = Rounds()
    words = {**SETTINGS, "hidden_size": width, "evaluation_nodes": chunk}
    runtime: SimulatedRuntime | RayRuntime
    if is_simulated:
        one_torch_thread()
        words |= {"num_rounds": 1, "evaluate_every": 1}
        runtime = SimulatedRuntime(seed=0, recorder=recorder, checkpoint_every=0)  # type: ignore[arg-type]
        recorder.watch = Watch(list)
    else:
        runtime = RayRuntime(seed=0, recorder=recorder, checkpoint_every=0, start_timeout=900.0)  # type: ignore[arg-type]
        recorder.watch = Watch(lambda: runtime.processes.values())
    config = build(GlasuConfig, words)
    runtime.execute(lambda: run(config, source, runtime))
    recorder.watch.running = False


if __name__ == "__main__":
    main()

"""Two layers of GCN in torch_geometric, width 16, against GLASU's centralised case, on the same nodes and edges.

python scenarios/benchmarks/glasu_against_pyg.py [cora [0,1,2]]      # needs torch_geometric, which nothing else does

Both train for 200 epochs and give the test accuracy at the evaluation, every fifth epoch, that did best on validation
nodes. GLASU's network ends in a classifier after its layers; torch_geometric's second layer is the classifier.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fedactors.config import build
from fedactors.data.layouts.graph import GraphBlock, graph
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.glasu.run import run
from fedactors.runtime.simulation.runtime import SimulatedRuntime

EPOCHS, EVALUATE_EVERY = 200, 5
COMMON = {"special_case": "centralised", "edge_share": 1.0, "num_rounds": EPOCHS, "evaluate_every": EVALUATE_EVERY}
OURS = {
    "GCN, 2 layers, width 16": {"backbone": "gcn", "num_layers": 2, "hidden_size": 16, "weight_decay": 5e-4},
    "GCNII, 4 layers, width 64": {},
}


def theirs(block: GraphBlock, seed: int, normalise: bool) -> dict[str, float]:
    """Train torch_geometric's network."""
    from torch_geometric.nn import GCNConv

    torch.manual_seed(seed)
    heads = np.repeat(np.arange(block.num_nodes), np.diff(block.indptr))
    edges = torch.from_numpy(np.stack([heads, block.indices]))
    x, labels = torch.from_numpy(np.array(block.features)), torch.from_numpy(np.array(block.labels))
    if normalise:
        x = x / x.sum(dim=1, keepdim=True).clamp_min(1e-9)
    train = torch.from_numpy(np.array(block.train))
    layers = torch.nn.ModuleList(
        [GCNConv(x.shape[1], 16, cached=True), GCNConv(16, int(labels.max()) + 1, cached=True)]
    )
    optimiser = torch.optim.Adam(layers.parameters(), lr=0.01, weight_decay=5e-4)

    def forward(training: bool) -> torch.Tensor:
        h = layers[0](functional.dropout(x, 0.5, training), edges).relu()
        return layers[1](functional.dropout(h, 0.5, training), edges)

    best, spent = (0.0, 0.0), 0.0
    for epoch in range(1, EPOCHS + 1):
        start = time.process_time()
        optimiser.zero_grad()
        functional.cross_entropy(forward(True)[train], labels[train]).backward()
        optimiser.step()
        spent += time.process_time() - start
        if epoch % EVALUATE_EVERY == 0:
            with torch.no_grad():
                right = (forward(False).argmax(dim=1) == labels).numpy()
            best = max(best, (right[block.validation].mean(), right[block.test].mean()), key=lambda pair: pair[0])
    return {"validation": float(best[0]), "test": float(best[1]), "epoch_ms": 1000 * spent / EPOCHS}


def ours(settings: dict[str, Any], data: str, seed: int) -> dict[str, float]:
    """Train GLASU's centralised case."""
    config = build(GlasuConfig, {**COMMON, **settings})
    runtime = SimulatedRuntime(seed=seed, checkpoint_every=0)
    source = load_data(config, data, seed)
    start = time.process_time()
    metrics = runtime.execute(lambda: run(config, source, runtime)).metrics
    spent = time.process_time() - start
    return {
        "validation": metrics["validation/accuracy"],
        "test": metrics["test/accuracy"],
        "epoch_ms": 1000 * spent / EPOCHS,
    }


def main() -> None:
    """Print one line for each network."""
    torch.set_num_threads(1)
    data = sys.argv[1] if len(sys.argv) > 1 else "cora"
    seeds = [int(seed) for seed in (sys.argv[2] if len(sys.argv) > 2 else "0,1,2").split(",")]
    blocks = {seed: graph(data, 1, seed=seed).load_whole() for seed in seeds}
    rivals = {
        "torch_geometric, features as they are": lambda seed: theirs(blocks[seed], seed, False),
        "torch_geometric, rows that sum to 1": lambda seed: theirs(blocks[seed], seed, True),
    }
    for name, settings in OURS.items():
        rivals[f"GLASU centralised, {name}"] = lambda seed, settings=settings: ours(settings, data, seed)  # type: ignore[misc]
    for name, train in rivals.items():
        found = [train(seed) for seed in seeds]
        means = {key: round(statistics.fmean(one[key] for one in found), 4) for key in found[0]}
        print(json.dumps({"data": data, "network": name, "seeds": len(seeds), **means}), flush=True)


if __name__ == "__main__":
    main()

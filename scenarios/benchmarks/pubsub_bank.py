"""PubSub-VFL on the bank data beside bare PyTorch in the same run: milliseconds a mini-batch, and AUC.

Two parties, batch 256, the same networks and optimiser; bare PyTorch trains all of them in one process without any
framework. Usage: FEDACTORS_DATA=<data folder> python scenarios/benchmarks/pubsub_bank.py [--epochs 5]
Prints one JSON line. For comparison: Flower 1.41's vertical example, rebuilt for two parties on the same data, here
took 103 ms a mini-batch with one round trip, 204 ms as the example does it (24 to 29 s an epoch).
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from fedactors.config import build
from fedactors.data.party_rows import prepare, split
from fedactors.learning.metrics import auc
from fedactors.learning.models import build_model
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import batches, load_data, num_batches
from fedactors.protocols.pubsub_vfl.messages import EpochOrder
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.protocols.pubsub_vfl.run import assemble
from fedactors.runtime.ray.runtime import RayRuntime

FLOWER_MS = (103.0, 204.0)
"""Milliseconds a mini-batch of Flower's vertical example: one round trip, and as published."""


def bare_pytorch(config: PubSubVflConfig, data: Any) -> dict[str, float]:
    """Train the same networks in one process with torch alone."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    blocks = [data.load(party) for party in data.parties]
    parts = split(
        len(blocks[0].ids), seed=0, test_fraction=config.test_fraction, validation_fraction=config.validation_fraction
    )
    order = np.arange(len(blocks[0].ids))
    ready = [prepare(block, order, parts, data.task) for block in blocks]
    bottoms = [build_model(algorithm.bottom_spec(config, r.num_features), i) for i, r in enumerate(ready)]
    top = build_model(algorithm.top_spec(config, data), 9)
    parameters = [p for module in (*bottoms, top) for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=config.learning_rate)
    x = [torch.from_numpy(r.train.features) for r in ready]
    y = torch.from_numpy(ready[0].train.labels).float()
    seconds, count = 0.0, 0
    for epoch in range(config.num_epochs):
        start = time.perf_counter()
        for rows in batches(len(y), config.batch_size, 0, epoch):
            index = torch.from_numpy(rows)
            z = torch.cat([bottom(part[index]) for bottom, part in zip(bottoms, x, strict=True)], dim=1)
            loss = nn.functional.binary_cross_entropy_with_logits(top(z).squeeze(-1), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += 1
        seconds += time.perf_counter() - start
    with torch.no_grad():
        z = torch.cat([b(torch.from_numpy(r.test.features)) for b, r in zip(bottoms, ready, strict=True)], dim=1)
        assert ready[0].test.labels is not None
        score = auc(ready[0].test.labels, top(z).squeeze(-1).numpy())
    return {"ms_per_batch": 1000 * seconds / count, "epoch_seconds": seconds / config.num_epochs, "test_auc": score}


def over_ray(config: PubSubVflConfig, data: Any) -> dict[str, float]:
    """Train with the whole protocol on Ray."""
    runtime = RayRuntime(seed=0, num_cpus=2)
    taken: list[float] = []
    facts: dict[str, float] = {}

    async def main() -> None:
        actors = assemble(config, data, runtime)
        await runtime.start()
        num_rows = (await actors.align()).num_rows
        for epoch in range(1, config.num_epochs + 1):
            start = time.perf_counter()
            await actors.train(EpochOrder(epoch), num_rows)
            taken.append(time.perf_counter() - start)
        facts["test_auc"] = (await actors.evaluate("test")).metrics["auc"]
        facts["batches"] = num_batches(num_rows, config.batch_size)

    runtime.execute(main)
    seconds = float(np.median(taken[1:]))
    return {
        "ms_per_batch": 1000 * seconds / facts["batches"],
        "epoch_seconds": seconds,
        "test_auc": facts["test_auc"],
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    given = parser.parse_args()
    config = build(PubSubVflConfig, {**PUBLISHED, "num_epochs": given.epochs})
    data = load_data(config, "bank", 0)
    bare, ours = bare_pytorch(config, data), over_ray(config, data)
    times = {f"times_faster_than_flower_at_{ms:g}_ms": ms / ours["ms_per_batch"] for ms in FLOWER_MS}
    print(json.dumps({"benchmark": "pubsub_bank", "bare_pytorch": bare, "fedactors_on_ray": ours, **times}))


if __name__ == "__main__":
    main()

"""What the four baselines share: all pairs train an epoch, and their losses are reduced in the order of pairs."""

from __future__ import annotations

import asyncio

from protocols.pubsub_vfl.cast import Cast


async def train_pairs(epoch: int, cast: Cast, servers: tuple[str, ...]) -> dict[str, float]:
    """Let every pair train its share of an epoch; return the mean loss and the number of abandoned batches (none)."""
    active = list(cast.active.values())
    found = await asyncio.gather(
        *(
            worker.train_pair(epoch, (pair, len(active)), cast.partners(pair), servers)
            for pair, worker in enumerate(active)
        )
    )
    loss = sum(f["loss_sum"] for f in found) / sum(f["rows"] for f in found)
    return {"loss": loss, "abandoned": 0}

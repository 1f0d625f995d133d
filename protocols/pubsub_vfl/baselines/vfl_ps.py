"""VFL with parameter servers: w pairs, one synchronous step for all of them (Section 5.1, baseline 2).

    pair i: batch s w + i of step s ──gradients──▶ parameter server of each party ──their mean──▶ all workers step

A step is that of one worker on the w batches together: gradients are averaged by rows, and all replicas stay equal.
"""

from __future__ import annotations

from protocols.pubsub_vfl.baselines.paired import train_pairs
from protocols.pubsub_vfl.cast import Cast


async def train_epoch(epoch: int, cast: Cast) -> dict[str, float]:
    """Train one epoch and return the mean loss."""
    return await train_pairs(epoch, cast, servers=cast.servers)

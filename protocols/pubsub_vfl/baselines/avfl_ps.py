"""Asynchronous VFL with parameter servers: w fixed pairs with a window each (Section 5.1, baseline 4).

A worker steps on its own gradients, and after `push_every` batches pushes the change to its party's parameter server
and goes on from the sum of all workers' changes. No deadline, no re-assignment: a slow pair finishes its own share.
"""

from __future__ import annotations

from protocols.pubsub_vfl.baselines.paired import train_pairs
from protocols.pubsub_vfl.cast import Cast


async def train_epoch(epoch: int, cast: Cast, push_every: int) -> dict[str, float]:
    """Train one epoch, let all workers catch up with their parameter server, and return the mean loss."""
    trained = await train_pairs(epoch, cast, servers=cast.servers)
    if push_every:
        # the first time pushes what is left, the second pulls what all have pushed
        await cast.with_server("follow", epoch)
        await cast.with_server("follow", epoch)
    return trained

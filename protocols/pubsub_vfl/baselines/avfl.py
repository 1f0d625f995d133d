"""Asynchronous VFL: one worker per party, a window of `embedding_buffer` batches in flight (Section 5.1, baseline 3).

The passive worker embeds ahead; gradients come back for embeddings of older parameters.
"""

from __future__ import annotations

from protocols.pubsub_vfl.baselines.paired import train_pairs
from protocols.pubsub_vfl.cast import Cast


async def train_epoch(epoch: int, cast: Cast) -> dict[str, float]:
    """Train one epoch and return the mean loss."""
    return await train_pairs(epoch, cast, servers=())

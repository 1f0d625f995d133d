"""VFL: synchronous split learning, one worker per party and one batch at a time (Section 5.1, baseline 1).

    active worker ──gradient of batch k, "embed batch k+1"──▶ passive workers ──embedding of batch k+1──▶ active worker

One round trip per batch: a passive worker applies the gradient of one batch and embeds the next in the same call.
"""

from __future__ import annotations

from protocols.pubsub_vfl.baselines.paired import train_pairs
from protocols.pubsub_vfl.cast import Cast


async def train_epoch(epoch: int, cast: Cast) -> dict[str, float]:
    """Train one epoch and return the mean loss."""
    return await train_pairs(epoch, cast, servers=())

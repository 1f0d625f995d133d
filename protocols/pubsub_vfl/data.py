"""How a named data set or the user's own file becomes a vertical partition for PubSub-VFL."""

from __future__ import annotations

from pathlib import Path

from fedactors.data.own import load_own
from fedactors.data.partitioners import VerticalSizePartitioner
from fedactors.data.partitions import VerticalData, vertical
from fedactors.errors import BadInput
from protocols.pubsub_vfl.config import PubSubVflConfig


def load_data(config: PubSubVflConfig, name: str, seed: int) -> VerticalData:
    """Return who holds what: a file's description, or the columns of a named set dealt to the parties.

    Raises:
        BadInput: a file that is not vertical, or fewer columns than parties.
    """
    if name.endswith(".toml"):
        own = load_own(Path(name))
        if not isinstance(own, VerticalData):
            raise BadInput(f"data: {name} is not allowed: pubsub-vfl needs parties that hold columns of the same rows")
        return own
    passive = ["passive"] if config.num_parties == 2 else [f"passive-{i}" for i in range(1, config.num_parties)]
    partitioner = VerticalSizePartitioner(partition_sizes=config.feature_split) if config.feature_split else None
    return vertical(name, ("active", *passive), partitioner=partitioner, alignment=config.alignment)

"""A party's rows as one of its workers holds them, from the loaded block to the batches of an epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.blocks import PartyBlock, PreparedBlock, prepare, split
from fedactors.data.partitions import VerticalData
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.config import PubSubVflConfig

Floats = NDArray[np.floating[Any]]


class PartyRows:
    """Loaded at construction; aligned, split and standardised once the common order is known.

    A snapshot holds the order and, for whoever serves the model later, the scale.

    Args:
        config: the run's settings.
        data: who holds what; only the party's own source is loaded.
        party: the party's name.
        run_seed: shared by all parties, for the split and the batches.
    """

    def __init__(self, config: PubSubVflConfig, data: VerticalData, party: str, run_seed: int) -> None:
        self._config = config
        self._task = data.task
        self._run_seed = run_seed
        self._prepared: PreparedBlock | None = None
        self._order: NDArray[np.int64] | None = None
        self._batches: tuple[int, list[NDArray[np.int64]]] = (0, [])
        self.block: PartyBlock = data.load(party)

    def follow(self, order_N: NDArray[np.int64]) -> None:
        """Bring the rows into the common order: for each aligned position the party's own row."""
        config = self._config
        parts = split(
            len(order_N), seed=self._run_seed, test_share=config.test_share, validation_share=config.validation_share
        )
        self._order, self._batches = order_N, (0, [])
        self._prepared = prepare(self.block, order_N, parts, self._task)

    @property
    def prepared(self) -> PreparedBlock:
        """The parts of the split, standardised.

        Raises:
            RuntimeError: the rows are not aligned yet.
        """
        if self._prepared is None:
            raise RuntimeError("rows are used before they are aligned")
        return self._prepared

    @property
    def num_features(self) -> int:
        """Columns after one-hot encoding."""
        return int(self.block.features.shape[1])

    @property
    def num_train(self) -> int:
        """Training rows."""
        return len(self.prepared.train.features)

    def batches(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the positions of an epoch's batches in the training part, the same at every party."""
        if self._batches[0] != epoch:
            made = algorithm.batches(self.num_train, self._config.batch_size, self._run_seed, epoch)
            self._batches = (epoch, made)
        return self._batches[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the order and the scale as plain values."""
        if self._prepared is None:
            return {"order": None}
        return {"order": self._order, **self._prepared.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Prepare the rows again in the order of a snapshot."""
        if state["order"] is not None:
            self.follow(state["order"])

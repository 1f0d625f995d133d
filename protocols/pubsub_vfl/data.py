"""Who holds what: a named data set or the user's own file, and a party's rows, aligned, split and cut into batches."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from fedactors.data.alignment.rows import load_described_rows
from fedactors.data.description import refuse_settings
from fedactors.data.layouts.vertical import VerticalData, VerticalPart, vertical
from fedactors.data.partitioners import VerticalSizePartitioner
from fedactors.data.party_rows import (
    Part,
    PartyBlock,
    PreparedBlock,
    Scale,
    Split,
    draw_parts,
    prepare,
    refuse_moved,
    split,
)
from fedactors.data.sources import FileSource
from fedactors.errors import BadInput
from fedactors.learning.user_models import check_name
from fedactors.privacy.mechanisms import private_scale, randomised_response
from fedactors.protocols.pubsub_vfl.algorithm import top_spec
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.messages import RowOrder

Index = NDArray[np.int64]
Parts = NDArray[np.uint8]


def load_data(config: PubSubVflConfig, name: str | VerticalData, seed: int) -> VerticalData:
    """Return who holds what: a file's description, or the columns of a named set dealt to the parties."""
    data = _described(config, name)
    if data.weighted_by and math.isfinite(config.label_epsilon):
        raise BadInput(
            f"{data.weighted_by} is not allowed with label_epsilon={config.label_epsilon:g}: weights tell of labels "
            "that are to be hidden"
        )
    check_name(config.bottom_model)
    top_spec(config, data)
    return data


def _described(config: PubSubVflConfig, name: str | VerticalData) -> VerticalData:
    if isinstance(name, VerticalData):
        return _fitting(config, name)
    if name.endswith(".toml"):
        accounts = {
            "privacy_mu": math.isfinite(config.privacy_mu),
            "embedding_mu": math.isfinite(config.embedding_mu),
            "gradient_mu": math.isfinite(config.gradient_mu),
            "label_epsilon": math.isfinite(config.label_epsilon),
            "bottom_training": config.bottom_training == "private",
            "standardisation": config.standardisation == "private",
        }
        return _fitting(config, load_described_rows(Path(name), config, accounts))
    passive = ["passive"] if config.num_parties == 2 else [f"passive-{i}" for i in range(1, config.num_parties)]
    partitioner = VerticalSizePartitioner(partition_sizes=config.feature_split) if config.feature_split else None
    return vertical(name, ("active", *passive), partitioner=partitioner, alignment=config.alignment)


def _fitting(config: PubSubVflConfig, user_data: VerticalData) -> VerticalData:
    why = {
        "num_parties": f"they are of {len(user_data.parties)} parties",
        "alignment": "their query joins the rows" if user_data.query else "task.alignment says it",
        "feature_split": "each party has the columns of its file",
    }
    if any(isinstance(source, FileSource) and source.split_column is not None for source in user_data.sources):
        why |= dict.fromkeys(("test_fraction", "validation_fraction"), "a column says which rows are which")
    refuse_settings(config, why, but={"num_parties": len(user_data.parties), "alignment": user_data.alignment})
    return user_data


def batches(num_rows: int, batch_size: int, seed: int, epoch: int) -> list[Index]:
    """Return the row positions of each batch of an epoch; every worker of every party derives the same."""
    order = np.random.default_rng([seed, epoch]).permutation(num_rows)
    return [order[start : start + batch_size] for start in range(0, num_rows, batch_size)]


def num_batches(num_rows: int, batch_size: int) -> int:
    """Return ceil(N / B)."""
    return -(-num_rows // batch_size)


_PREPARED: WeakValueDictionary[tuple[Any, ...], PreparedBlock] = WeakValueDictionary()
"""Prepared rows that somebody in this process holds beside their block, by block, settings and order."""


def held_rows() -> list[PreparedBlock]:
    """Return the rows that are prepared in this process; a run of the same rows and seed finds those that are held."""
    return list(_PREPARED.values())


def _digest(array: NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).digest()


class PartyRows:
    """Loaded at construction; aligned, split and standardised once the common order is known.

    A snapshot holds the order and, to serve the model later, the scale.
    """

    _prepared: PreparedBlock | None = None

    def __init__(
        self, config: PubSubVflConfig, part: VerticalPart, run_seed: int, block: PartyBlock | None = None
    ) -> None:
        self._config = config
        self._data = part
        self._run_seed = run_seed
        self._drawn: RowOrder | None = None
        self._batches: tuple[int, list[Index]] = (0, [])
        self.block: PartyBlock = part.load() if block is None else block

    def follow(self, drawn: RowOrder) -> None:
        """Bring the rows into the common order, with the scale and the labels that were drawn for all workers."""
        scale: Scale | None = None
        if self._config.standardisation != "measured":
            scale = np.zeros(self.num_features), np.ones(self.num_features)
            if len(drawn.mean):
                scale = drawn.mean, drawn.deviation
        labels = drawn.labels if len(drawn.labels) else None
        self._drawn, self._batches = drawn, (0, [])
        parts = self._split(len(drawn.rows), drawn.parts)
        # workers that share a block share what is made of it, which none of them writes to
        shares = (self._config.test_fraction, self._config.validation_fraction, self._config.standardisation)
        arrays = (drawn.rows, drawn.parts, drawn.mean, drawn.deviation, drawn.labels)
        key = (id(self.block), self._run_seed, *shares, *(_digest(array) for array in arrays))
        self._prepared = _PREPARED.get(key)
        if self._prepared is None:
            self._prepared = prepare(self.block, drawn.rows, parts, self._data.task, scale, labels)
            _PREPARED[key] = self._prepared

    def draw_parts(self, order_N: Index) -> Parts:
        """Return the parts of the split that the label party announces; none where all parties draw them alike."""
        config = self._config
        if self._data.split == "stratified" and self.block.parts is None and math.isfinite(config.label_epsilon):
            raise BadInput(
                f"task.split: 'stratified' is not allowed with label_epsilon={config.label_epsilon:g}: who is in which "
                "part would follow from the labels"
            )
        shares = {"test_fraction": config.test_fraction, "validation_fraction": config.validation_fraction}
        return draw_parts(self.block, order_N, self._data.split, seed=self._run_seed, **shares)

    def draw(self, order_N: Index, parts_N: Parts, rng: np.random.Generator) -> RowOrder:
        """Return the common order with what is drawn once for all workers: a private scale, exchanged labels.

        Args:
            order_N: for each aligned position the party's own row.
            parts_N: the parts of the split that were announced, or none.
            rng: of the noise.
        """
        config, block, parts = self._config, self.block, self._split(len(order_N), parts_N)
        num_classes = self._data.num_classes
        if config.standardisation != "measured" and any(block.fills):
            column = block.feature_names[next(index for index, how in enumerate(block.fills) if how)]
            raise BadInput(
                f"{self._data.party}: missing values of {column!r} are filled with what is measured on the rows, which "
                f"standardisation={config.standardisation} does not allow: give constant or drop"
            )
        if config.standardisation != "measured":
            refuse_moved(block, self._data.party, f"standardisation={config.standardisation} measures nothing on rows")
        mean = deviation = np.zeros(0)
        if config.standardisation == "private":
            mean, deviation = np.zeros(self.num_features), np.ones(self.num_features)
            scaled = ~block.keeps_scale
            if scaled.any():
                rows = block.features[np.ix_(order_N[parts.train], scaled)]
                mean[scaled], deviation[scaled] = private_scale(rows, config.standardisation_mu, rng)
        labels = np.zeros(0, np.int64)
        if block.labels is not None and math.isfinite(config.label_epsilon):
            labels = block.labels.astype(np.int64)
            used = order_N[np.concatenate([parts.train, parts.validation])]
            labels[used] = randomised_response(labels[used], num_classes, config.label_epsilon, rng, "labels")
        return RowOrder(order_N, parts_N, mean, deviation, labels)

    def count_train(self, num_rows: int, parts_N: Parts) -> int:
        """Return how many of so many aligned rows are trained on, by the parts that were announced, or drawn."""
        return len(self._split(num_rows, parts_N).train)

    def _split(self, num_rows: int, parts_N: Parts) -> Split:
        config = self._config
        shares = {"test_fraction": config.test_fraction, "validation_fraction": config.validation_fraction}
        return split(num_rows, seed=self._run_seed, parts_N=parts_N, **shares)

    @property
    def is_aligned(self) -> bool:
        """Whether the common order is known."""
        return self._prepared is not None

    @property
    def train_rows(self) -> Index:
        """The own row at each position of the training part."""
        if self._drawn is None:
            raise RuntimeError("rows are used before they are aligned")
        return self._drawn.rows[self._split(len(self._drawn.rows), self._drawn.parts).train]

    @property
    def num_scaled(self) -> int:
        """Columns that are standardised."""
        return int((~self.block.keeps_scale).sum())

    @property
    def prepared(self) -> PreparedBlock:
        """The parts of the split, standardised."""
        if self._prepared is None:
            raise RuntimeError("rows are used before they are aligned")
        return self._prepared

    @property
    def train(self) -> Part:
        """The training rows."""
        return self.prepared.train

    def part(self, name: str) -> Part:
        """Return the part of the split that a peer names: validation or test, of which it may ask for all."""
        parts = {"validation": self.prepared.validation, "test": self.prepared.test}
        if name not in parts:
            raise BadInput(f"part: {name!r} is not allowed: use {', '.join(parts)}")
        return parts[name]

    @property
    def num_features(self) -> int:
        """Columns after one-hot encoding."""
        return int(self.block.features.shape[1])

    @property
    def num_train(self) -> int:
        """Training rows."""
        return len(self.train.features)

    @property
    def _size(self) -> int:
        return self._config.batch_size or self._config.at(self.num_train).batch_size

    def batches(self, epoch: int) -> list[Index]:
        """Return the positions of an epoch's batches in the training part, the same at every party."""
        if self._batches[0] != epoch:
            self._batches = (epoch, batches(self.num_train, self._size, self._run_seed, epoch))
        return self._batches[1]

    def batches_until(self, epoch: int, num_epochs: int) -> list[tuple[int, Index]]:
        """Return epoch and positions of the batches of so many epochs that end with this one, in their order."""
        return [(e, batch) for e in range(epoch - num_epochs + 1, epoch + 1) for batch in self.batches(e)]

    def state_dict(self) -> dict[str, Any]:
        """Return the order, the scale, and what the model is for, as plain values."""
        if self._prepared is None or self._drawn is None:
            return {"order": None}
        drawn, data = self._drawn, self._data
        kept = {name: getattr(drawn, name) for name in ("parts", "mean", "deviation", "labels")}
        facts = {
            "task": data.task,
            "num_classes": data.num_classes,
            "parties": (data.label_party, *data.passive_parties),
            "num_train": self.num_train,
        }
        return {"order": drawn.rows, "drawn": kept, **facts, **self._prepared.scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Prepare the rows again in the order of a snapshot."""
        if state["order"] is not None:
            kept = (np.asarray(state["drawn"][name]) for name in ("parts", "mean", "deviation", "labels"))
            self.follow(RowOrder(np.asarray(state["order"]), *kept))

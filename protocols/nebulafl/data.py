"""Who holds which rows: a data set dealt to containers, or one's own files, as a small recipe for every process.

A row set has a *key*, a text from which any process of the run loads the same rows once. Named sets have one key for
all training rows, and a container is an index into them; of one's own files each has its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedactors.data.catalogue import describe
from fedactors.data.horizontal import HorizontalData, horizontal
from fedactors.data.images import load_images
from fedactors.data.own import load_own
from fedactors.data.partitioners import DirichletPartitioner, IidPartitioner, RowPartitioner
from fedactors.errors import BadInput
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.inputs import read_catalogue, read_network, require_samples

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Rows = NDArray[np.int64]
MODEL_OF_SHAPE: dict[tuple[int, ...], str] = {(1, 8, 8): "cnn8", (1, 28, 28): "cnn28", (3, 32, 32): "resnet18"}
"""What ``model=auto`` stands for, by the shape of a sample; ``linear`` for any other."""
_FILE = ".toml#"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One container's rows: positions in the row set that `key` names."""

    key: str
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class NebulaData:
    """The recipe: small enough to be an actor's argument."""

    name: str
    """A named data set, or the path of a description of one's own files."""
    seed: int
    """Of the dealing."""
    num_containers: int
    partitioner: RowPartitioner | None
    """How a named set is dealt; None for one's own files."""
    num_proxy: int
    """Training rows held out as the public proxy set; they belong to no container."""
    num_validation: int = 0
    """Training rows held out to measure models on instead of the test rows; they belong to no container."""
    num_training: int | None = None
    """Rows dealt to the containers; None for all that are not held out."""
    shape: tuple[int, ...]
    """Of one sample."""
    num_classes: int

    @property
    def train_key(self) -> str:
        """Key of a named set's training rows."""
        return f"train:{self.seed}:{self.name}"

    @property
    def test_key(self) -> str:
        """Key of the rows that models are measured on."""
        part = f"validation={self.num_validation}" if self.num_validation else "test"
        return f"{part}:{self.seed}:{self.name}"

    def shards(self) -> list[Shard]:
        """Return every container's rows.

        Raises:
            BadInput: a container without rows.
        """
        if self.partitioner is None:
            keys = [f"client:{self.seed}:{self.name}#{i}" for i in range(self.num_containers)]
            return [Shard(key=key, rows=np.arange(len(load_rows(key)[1]))) for key in keys]
        dealt, _ = self._dealt()
        return [Shard(key=self.train_key, rows=rows) for rows in dealt]

    def proxy(self) -> Shard:
        """Return the public proxy rows.

        Raises:
            BadInput: one's own files have none.
        """
        if self.partitioner is None:
            raise BadInput("algorithm: fedhkt is not allowed with own files: it needs public proxy rows of a named set")
        return Shard(key=self.train_key, rows=self._dealt()[1])

    def labels(self, shard: Shard) -> Labels:
        """Return the labels of a shard's rows."""
        return (self._train_labels() if self.partitioner is not None else load_rows(shard.key)[1])[shard.rows]

    def _train_labels(self) -> Labels:
        if describe(self.name).kind == "images":
            return load_images(self.name).train_labels
        return load_rows(self.train_key)[1]

    def _dealt(self) -> tuple[list[Rows], Rows]:
        assert self.partitioner is not None
        labels_N = self._train_labels()
        order = _holding_order(self.seed, len(labels_N))[self.num_validation :]
        proxy, private = np.sort(order[: self.num_proxy]), np.sort(order[self.num_proxy :][: self.num_training])
        found = self.partitioner.over(labels_N[private])
        return [private[found.load_partition(i)] for i in range(self.num_containers)], proxy


def _holding_order(seed: int, num_rows: int) -> Rows:
    """Return the order in which training rows are held out: validation first, then proxy, then the containers'."""
    return np.random.default_rng([seed, 17]).permutation(num_rows)


def load_rows(key: str) -> tuple[Floats, Labels]:
    """Load the row set of a key, samples as the models take them.

    Raises:
        BadInput: own files that are not horizontal.
        DataMissing: a file is not on this machine.
    """
    part, seed, name = key.split(":", 2)
    if _FILE in name:
        path, _, index = name.rpartition("#")
        block = _own(Path(path)).client(int(index)).load()
    elif name.endswith(".toml"):
        block = _own(Path(name)).test().load()
    else:
        whole = horizontal(name, IidPartitioner(num_partitions=1), seed=int(seed))
        block = whole.test().load() if part == "test" else whole.client(0).load()
        if part.startswith("validation="):
            held = _holding_order(int(seed), len(block.labels))[: int(part.partition("=")[2])]
            return block.features[held], np.asarray(block.labels, np.int64)[held]
    return block.features, np.asarray(block.labels, np.int64)


@lru_cache(maxsize=64)
def cached_rows(key: str) -> tuple[Floats, Labels]:
    """Return the row set of a key, loaded once in this process and run."""
    return load_rows(key)


@lru_cache(maxsize=2)
def _own(path: Path) -> HorizontalData:
    found = load_own(path)
    if not isinstance(found, HorizontalData):
        raise BadInput(f"data: {path} is not allowed: nebulafl needs clients that hold rows of the same columns")
    return found


def load_data(config: NebulaFLConfig, name: str, seed: int) -> NebulaData:
    """Return the recipe of a run's data, after checking catalogue, network and that no container is empty.

    Raises:
        BadInput: see `protocols.nebulafl.inputs` and `NebulaData.shards`.
    """
    for cache in (cached_rows, _own):
        cache.cache_clear()  # files may have changed since an earlier run of this process
    catalogue = read_catalogue(config.catalogue)
    centers = catalogue.first_centers(config.num_centers)
    read_network(config.network).require(centers)
    num_proxy = config.num_proxy if config.algorithm == "fedhkt" else 0
    made = _own_data(config, name, seed) if name.endswith(".toml") else _named_data(config, name, seed, num_proxy)
    for center in centers:
        for hardware in catalogue.types_of(center):
            hardware.samples_per_second(model_name(config, made))
    if made.partitioner is None:
        require_samples([len(shard.rows) for shard in made.shards()], config.dirichlet)
    else:
        _require_rows(config, made, num_proxy)
        made.shards()
    return made


def _require_rows(config: NebulaFLConfig, made: NebulaData, num_proxy: int) -> None:
    rows, held = len(made._train_labels()), num_proxy + config.num_validation
    if held >= rows:
        raise BadInput(f"num_proxy + num_validation: {held} is not allowed: {made.name} has {rows} training rows")
    if config.num_training is not None and config.num_training > rows - held:
        raise BadInput(f"num_training: {config.num_training} is not allowed: {made.name} has {rows - held} to deal")


def model_name(config: NebulaFLConfig, data: NebulaData) -> str:
    """Return the model of a run; ``auto`` is decided by the shape of a sample."""
    return MODEL_OF_SHAPE.get(data.shape, "linear") if config.model == "auto" else config.model


def _named_data(config: NebulaFLConfig, name: str, seed: int, num_proxy: int) -> NebulaData:
    partitioner: RowPartitioner
    count = config.num_containers
    if config.dirichlet is None:
        partitioner = IidPartitioner(num_partitions=count, seed=seed)
    else:
        partitioner = DirichletPartitioner(num_partitions=count, alpha=config.dirichlet, seed=seed)
    whole = horizontal(name, partitioner, seed=seed)
    if whole.task == "regression":
        raise BadInput(f"data: {name} is not allowed: nebulafl trains classifiers")
    shape = whole.shape or load_rows(f"test:{seed}:{name}")[0].shape[1:]
    return NebulaData(
        name=name,
        seed=seed,
        num_containers=count,
        partitioner=partitioner,
        num_proxy=num_proxy,
        num_validation=config.num_validation,
        num_training=config.num_training,
        shape=tuple(shape),
        num_classes=max(whole.num_classes, 2),
    )


def _own_data(config: NebulaFLConfig, name: str, seed: int) -> NebulaData:
    for field, count in (("num_validation", config.num_validation), ("num_training", config.num_training)):
        if count:
            raise BadInput(f"{field}: {count} is not allowed with own files: they say who holds which rows")
    own = _own(Path(name))
    if own.num_clients != config.num_containers:
        raise BadInput(f"num_containers: {config.num_containers} is not allowed: {name} describes {own.num_clients}")
    if own.task == "regression":
        raise BadInput(f"data: {name} is not allowed: nebulafl trains classifiers")
    block = own.test().load()
    return NebulaData(
        name=str(Path(name).resolve()),
        seed=seed,
        num_containers=own.num_clients,
        partitioner=None,
        num_proxy=0,
        shape=cast("tuple[int, ...]", block.features.shape[1:]),
        num_classes=max(own.num_classes, 2),
    )

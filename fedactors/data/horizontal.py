"""Horizontal data: clients that hold different rows of the same columns, of a named data set or of their own files."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedactors.data.blocks import check_block, check_labels, one_hot
from fedactors.data.catalogue import Task, describe
from fedactors.data.images import load_images
from fedactors.data.partitioners import IidPartitioner, Partitions, RowPartitioner
from fedactors.data.sources import FileSource
from fedactors.data.tabular import load_tabular
from fedactors.errors import BadInput
from fedactors.network.codec import plain

Index = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class HorizontalBlock:
    """Rows of one client (or the test rows): images as (n, C, H, W) or columns as (n, D)."""

    features: NDArray[np.float32]
    labels: NDArray[Any]


@plain
class HorizontalSource:
    """Rows of one client of a named data set; all sources of one process share the loaded arrays."""

    dataset: str
    partitioner: RowPartitioner
    part: Literal["client", "test", "public"]
    index: int = 0
    public_size: int = 0
    seed: int = 0

    def load(self) -> HorizontalBlock:
        """Load these rows.

        Raises:
            BadInput: unknown data set, or a partition that cannot be made.
            DataMissing: a file is not on this machine.
        """
        if describe(self.dataset).kind == "images":
            return self._load_images()
        return self._load_rows()

    def _load_images(self) -> HorizontalBlock:
        images = load_images(self.dataset)
        if self.part == "test":
            return HorizontalBlock(features=images.scaled(images.test_images), labels=images.test_labels)
        rows = self._rows()
        return HorizontalBlock(features=images.scaled(images.train_images[rows]), labels=images.train_labels[rows])

    def _load_rows(self) -> HorizontalBlock:
        features, labels, num_test = _standardised_rows(self.dataset, self.seed)
        rows = np.arange(num_test) if self.part == "test" else num_test + self._rows()
        return HorizontalBlock(features=features[rows], labels=labels[rows])

    def _rows(self) -> Index:
        public, clients = _dealt(self.dataset, self.partitioner, self.public_size, self.seed)
        return public if self.part == "public" else clients.load_partition(self.index)


@functools.lru_cache(maxsize=2)
def _standardised_rows(dataset: str, seed: int) -> tuple[NDArray[np.float32], NDArray[Any], int]:
    """Return a table's rows shuffled, the first 30 % being test rows, standardised by the other rows."""
    found = load_tabular(dataset)
    features, _, flags = one_hot(found.features, found.columns, found.categories)
    order = np.random.default_rng([seed, 11]).permutation(len(features))
    features, labels = features[order], found.labels[order]
    num_test = round(0.3 * len(order))
    mean = np.where(flags, 0, features[num_test:].mean(axis=0, dtype=np.float64)).astype(np.float32)
    deviation = np.where(flags, 1, features[num_test:].std(axis=0, dtype=np.float64)).astype(np.float32)
    features -= mean
    features /= np.where(deviation > 0, deviation, 1)
    return features, labels, num_test


@functools.lru_cache(maxsize=8)
def _dealt(dataset: str, partitioner: RowPartitioner, public_size: int, seed: int) -> tuple[Index, Partitions]:
    """Return (public rows, client partitions) of the training rows; the public ones belong to no client."""
    if describe(dataset).kind == "images":
        labels = load_images(dataset).train_labels
    else:
        _, all_labels, num_test = _standardised_rows(dataset, seed)
        labels = all_labels[num_test:]
    if not 0 <= public_size < len(labels):
        raise BadInput(f"public_size: {public_size} is not allowed: give 0 to {len(labels) - 1}")
    order = np.random.default_rng([seed, 13]).permutation(len(labels))
    public, private = np.sort(order[:public_size]), np.sort(order[public_size:])
    dealt = partitioner.over(labels[private])
    return public, Partitions(private[dealt.order], dealt.offsets)


@plain
class HorizontalFile:
    """One client's own file: numeric columns and a label; every client must have the same columns."""

    file: FileSource
    classes: tuple[str, ...]
    """The text of each class, in the order that all clients share; empty for regression."""

    def load(self) -> HorizontalBlock:
        """Read the file.

        Raises:
            BadInput: as `FileSource.load`, or a label that is not among `classes`.
        """
        block = self.file.load()
        where = f"{self.file.party}: {self.file.path}"
        labels = block.labels
        if labels is None:
            raise BadInput(f"{where}: label: every client needs labels")
        if self.classes:
            unknown = sorted(set(block.class_names) - set(self.classes))
            if unknown:
                raise BadInput(f"{where}: label {unknown[0]!r} is not allowed: classes are {', '.join(self.classes)}")
            codes = np.asarray([self.classes.index(name) for name in block.class_names], np.int64)
            labels = codes[labels]
        # One client may well have a single class, so that its labels are not held against `check_block`.
        check_block(dataclasses.replace(block, labels=None), self.file.party, self.file.task, len(self.classes))
        if not self.classes:
            check_labels(labels, where, "regression", 1)
        return HorizontalBlock(features=block.features, labels=labels)


@plain
class HorizontalData:
    """Clients that hold different rows of the same columns, test rows, and perhaps a small public set."""

    name: str
    task: Task
    num_classes: int
    num_clients: int
    shape: tuple[int, ...]
    """Shape of one row's features: (C, H, W) of an image; empty when only the files tell."""
    partitioner: RowPartitioner | None = None
    public_size: int = 0
    seed: int = 0
    files: tuple[HorizontalFile, ...] = ()
    """One's own files, one per client; then `partitioner` is None."""
    parties: tuple[str, ...] = ()
    """Names of the clients that bring their own files."""
    test_file: HorizontalFile | None = None

    def client(self, index: int) -> HorizontalSource | HorizontalFile:
        """Return the source of client `index`.

        Raises:
            BadInput: no such client.
        """
        if not 0 <= index < self.num_clients:
            raise BadInput(f"client: {index} is not allowed: there are {self.num_clients}")
        return self.files[index] if self.files else self._named("client", index)

    def test(self) -> HorizontalSource | HorizontalFile:
        """Return the source of the test rows, which belong to no client.

        Raises:
            BadInput: own files without a test file.
        """
        if not self.files:
            return self._named("test", 0)
        if self.test_file is None:
            raise BadInput(f'test: {self.name} names no test file; give test = "..." under [task]')
        return self.test_file

    def public(self) -> HorizontalSource:
        """Return the source of the public rows, held out from the training rows.

        Raises:
            BadInput: there is no public set.
        """
        if self.files or not self.public_size:
            raise BadInput(f"public_size: {self.public_size} is not allowed here: {self.name} has no public set")
        return self._named("public", 0)

    def _named(self, part: Literal["client", "test", "public"], index: int) -> HorizontalSource:
        return HorizontalSource(
            dataset=self.name,
            partitioner=self.partitioner or IidPartitioner(num_partitions=self.num_clients),
            part=part,
            index=index,
            public_size=self.public_size,
            seed=self.seed,
        )


def horizontal(dataset: str, partitioner: RowPartitioner, *, public_size: int = 0, seed: int = 0) -> HorizontalData:
    """Deal the training rows of a named data set to as many clients as `partitioner` makes partitions.

    Raises:
        BadInput: unknown data set, or one that is not made of rows.
    """
    described = describe(dataset)
    if "horizontal" not in described.layouts:
        raise BadInput(f"data: {dataset} is of kind {described.kind} and cannot be split by rows")
    shapes = {64: (1, 8, 8), 784: (1, 28, 28), 3072: (3, 32, 32)}
    return HorizontalData(
        name=dataset,
        task=described.task,
        num_classes=described.num_classes,
        num_clients=partitioner.num_partitions,
        shape=shapes[described.columns] if described.kind == "images" else (),
        partitioner=partitioner,
        public_size=public_size,
        seed=seed,
    )

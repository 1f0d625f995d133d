"""Partitioners: frozen, picklable recipes that cut rows among clients or columns among parties.

They carry the names of flwr-datasets. `over` binds a recipe to labels (rows) or to a number of columns and gives
`Partitions`, whose `load_partition(i)` are indices; ten thousand partitions cost two arrays, not ten thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput
from fedactors.messages.codec import wire_type

Index = NDArray[np.int64]

_ATTEMPTS = 10


@dataclass(frozen=True)
class Partitions:
    """Disjoint index sets, stored one after the other."""

    order: Index
    offsets: Index
    """Where each partition starts in `order`, and the end: one more than there are partitions."""

    @property
    def num_partitions(self) -> int:
        """How many partitions there are."""
        return len(self.offsets) - 1

    def load_partition(self, partition_id: int) -> Index:
        """Return the indices of one partition, ascending.

        Raises:
            BadInput: there is no such partition.
        """
        if not 0 <= partition_id < self.num_partitions:
            raise BadInput(f"partition_id: {partition_id} is not allowed: there are {self.num_partitions} partitions")
        return np.sort(self.order[self.offsets[partition_id] : self.offsets[partition_id + 1]])

    def sizes(self) -> Index:
        """Return the number of indices in each partition."""
        return np.diff(self.offsets)


def _check_count(num_partitions: int, available: int, what: str) -> None:
    if not 1 <= num_partitions <= available:
        raise BadInput(f"num_partitions: {num_partitions} is not allowed: give 1 to {available}, the number of {what}")


def _by_sizes(order_N: Index, sizes: Index) -> Partitions:
    return Partitions(order_N, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


def _even_sizes(total: int, parts: int) -> Index:
    sizes = np.full(parts, total // parts, np.int64)
    sizes[: total % parts] += 1
    return sizes


@wire_type
class IidPartitioner:
    """Rows dealt at random; partition sizes differ by one at most."""

    num_partitions: int
    seed: int = 0

    def over(self, labels_N: NDArray[Any]) -> Partitions:
        """Cut the rows that `labels_N` stands for."""
        _check_count(self.num_partitions, len(labels_N), "rows")
        order = np.random.default_rng(self.seed).permutation(len(labels_N))
        return _by_sizes(order, _even_sizes(len(labels_N), self.num_partitions))


@wire_type
class DirichletPartitioner:
    """Each class dealt in proportions drawn from a Dirichlet distribution: the smaller `alpha`, the more skewed."""

    num_partitions: int
    alpha: float
    min_partition_size: int = 1
    """Draws are repeated, ten times at most, until every partition has this many rows."""
    self_balancing: bool = False
    """Give no more of the classes that follow to a partition that already has its even share."""
    seed: int = 0

    def over(self, labels_N: NDArray[Any]) -> Partitions:
        """Cut the rows that `labels_N` stands for.

        Raises:
            BadInput: `alpha` is not positive, or some partition stayed smaller than `min_partition_size`.
        """
        _check_count(self.num_partitions, len(labels_N), "rows")
        if not (np.isfinite(self.alpha) and self.alpha > 0):
            raise BadInput(f"alpha: {self.alpha} is not allowed: give a number above 0")
        if self.min_partition_size * self.num_partitions > len(labels_N):
            raise BadInput(
                f"min_partition_size: {self.min_partition_size} is not allowed: {self.num_partitions} partitions of "
                f"{len(labels_N)} rows have {len(labels_N) // self.num_partitions} each on average"
            )
        rng = np.random.default_rng(self.seed)
        for _ in range(_ATTEMPTS):
            owner_N = self._deal(np.asarray(labels_N), rng)
            sizes = np.bincount(owner_N, minlength=self.num_partitions)
            if sizes.min() >= self.min_partition_size:
                return _by_sizes(np.argsort(owner_N, kind="stable"), sizes)
        smallest = int(sizes.argmin())
        raise BadInput(
            f"alpha: {self.alpha} leaves container {smallest} of {self.num_partitions} "
            f"{'empty' if sizes[smallest] == 0 else f'with {sizes[smallest]} rows'} in each of {_ATTEMPTS} draws "
            f"(min_partition_size={self.min_partition_size}): give a larger alpha, fewer partitions, "
            "self_balancing=true, or another seed"
        )

    def _deal(self, labels_N: NDArray[Any], rng: np.random.Generator) -> Index:
        owner_N = np.empty(len(labels_N), np.int64)
        counts_P = np.zeros(self.num_partitions, np.int64)
        even = len(labels_N) / self.num_partitions
        for label in np.unique(labels_N):
            rows = rng.permutation(np.flatnonzero(labels_N == label))
            share_P = rng.dirichlet(np.full(self.num_partitions, self.alpha))
            if self.self_balancing:
                open_P = share_P * (counts_P < even)
                share_P = open_P if open_P.sum() > 0 else (counts_P < even).astype(float)
            ends_P = np.round(np.cumsum(share_P / share_P.sum()) * len(rows)).astype(np.int64)
            sizes_P = np.diff(ends_P, prepend=0)
            owner_N[rows] = np.repeat(np.arange(self.num_partitions), sizes_P)
            counts_P += sizes_P
        return owner_N


@wire_type
class ShardPartitioner:
    """Rows sorted by label, cut into equal shards, and the shards dealt at random: few classes per partition."""

    num_partitions: int
    num_shards_per_partition: int = 2
    seed: int = 0

    def over(self, labels_N: NDArray[Any]) -> Partitions:
        """Cut the rows that `labels_N` stands for."""
        _check_count(self.num_partitions, len(labels_N), "rows")
        num_shards = self.num_partitions * self.num_shards_per_partition
        if self.num_shards_per_partition < 1 or num_shards > len(labels_N):
            most = len(labels_N) // self.num_partitions
            raise BadInput(
                f"num_shards_per_partition: {self.num_shards_per_partition} is not allowed: give 1 to {most}"
            )
        rng = np.random.default_rng(self.seed)
        mixed = rng.permutation(len(labels_N))
        by_label = mixed[np.argsort(np.asarray(labels_N)[mixed], kind="stable")]
        shards = np.split(by_label, np.cumsum(_even_sizes(len(labels_N), num_shards))[:-1])
        dealt = rng.permutation(num_shards)
        sizes = np.asarray([len(shards[shard]) for shard in dealt]).reshape(self.num_partitions, -1).sum(axis=1)
        return _by_sizes(np.concatenate([shards[shard] for shard in dealt]), sizes)


@wire_type
class VerticalEvenPartitioner:
    """Columns dealt evenly; with `shuffle` at random, else in their order."""

    num_partitions: int
    shuffle: bool = True
    seed: int = 0

    def over(self, num_columns: int) -> Partitions:
        """Cut columns 0..num_columns-1."""
        _check_count(self.num_partitions, num_columns, "columns")
        return _by_sizes(
            _column_order(num_columns, self.shuffle, self.seed), _even_sizes(num_columns, self.num_partitions)
        )


@wire_type
class VerticalSizePartitioner:
    """Columns dealt by stated sizes: whole numbers are counts, fractions shares; other columns are left out."""

    partition_sizes: tuple[float, ...]
    shuffle: bool = True
    seed: int = 0

    @property
    def num_partitions(self) -> int:
        """How many partitions there are."""
        return len(self.partition_sizes)

    def over(self, num_columns: int) -> Partitions:
        """Cut columns 0..num_columns-1.

        Raises:
            BadInput: a size below one column, or more columns asked for than there are.
        """
        given = np.asarray(self.partition_sizes, float)
        shares = bool(given.size and (given < 1).all())
        if shares and given.sum() <= 1 + 1e-9:
            sizes = np.diff(np.round(np.cumsum(given) * num_columns), prepend=0).astype(np.int64)
        else:
            sizes = given.astype(np.int64)
        exact = shares or bool((sizes == given).all())
        if not given.size or not exact or sizes.min() < 1 or sizes.sum() > num_columns:
            raise BadInput(
                f"partition_sizes: {self.partition_sizes} is not allowed: give counts of at least 1 or shares below 1, "
                f"at most {num_columns} columns together"
            )
        return _by_sizes(_column_order(num_columns, self.shuffle, self.seed)[: sizes.sum()], sizes)


def _column_order(num_columns: int, shuffle: bool, seed: int) -> Index:
    return np.random.default_rng(seed).permutation(num_columns) if shuffle else np.arange(num_columns)


RowPartitioner = IidPartitioner | DirichletPartitioner | ShardPartitioner
ColumnPartitioner = VerticalEvenPartitioner | VerticalSizePartitioner

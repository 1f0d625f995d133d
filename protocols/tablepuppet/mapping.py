"""The join of a run, split into training and test rows, and sums over its joined rows.

A joined row is a test row if its row of the label's table is one.

The server keeps a join listed, or as a tree, and trains on either through the same operations. A value on joined rows
is a list of parts, whose sum it is:

    ListedJoin   p_i(j) in memory             one part of N rows
    TreeJoin     `fedactors.data.join`   one part of n_i rows for each table: v_j = sum_i v_i[p_i(j)]

A tree needs the squared loss: z and lambda (Eq. 7, 8) are then linear in h and y, so they have parts as h has them.
Numbers are those of the listed join up to rounding; work and memory are those of the tables.

Legend: M tables, N joined rows, n_i rows of table i; p_i in [0, n_i)^N; G_ij = |{g : p_i(g) = j}|.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedactors.data.join import EmptyJoinError, JoinTree, Rows, TreeSums, check_not_empty, join_keys, list_join
from fedactors.data.query import JoinPlan
from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.algorithm import Array, Loss, Parts, gather_join, less

MUCH_LARGER = 4
"""How many times the tables' rows a join has that is not listed unless it is asked for."""


@dataclass(frozen=True)
class JoinSplit:
    """p_i of each table over the training join and over the test join; `num_rows` are the tables' rows."""

    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    num_rows: tuple[int, ...]

    @property
    def num_joined(self) -> int:
        """Rows of the training join."""
        return len(self.train[0])

    def labels(self, side: int, y_n: NDArray[Any]) -> tuple[NDArray[Any], None]:
        """Return the labels of the training join from those of table `side`; each is listed as often as it occurs."""
        return y_n[self.train[side]], None

    def tested(self, side: int) -> NDArray[Any]:
        """Return the rows of table `side` whose outputs are scored, one for each joined test row."""
        return self.test[side]

    def counts(self) -> list[tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]]:
        """Return for each table G_i of the training join (n), and which rows are in the test join (n)."""
        made: list[tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]] = []
        for train, test, n in zip(self.train, self.test, self.num_rows, strict=True):
            in_test = np.zeros(n, dtype=bool)
            in_test[test] = True
            made.append((np.bincount(train, minlength=n).astype(np.int32), in_test))
        return made

    def renumbered(self) -> JoinSplit:
        """Return the same join with the rows that take part in it numbered without gaps, as the clients keep them."""
        train, test, sizes = [], [], []
        for (G_n, in_test), train_N, test_N in zip(self.counts(), self.train, self.test, strict=True):
            active = G_n > 0
            train.append((np.cumsum(active, dtype=np.int32) - 1)[train_N])
            test.append((np.cumsum(in_test, dtype=np.int32) - 1)[test_N])
            sizes.append(int(np.count_nonzero(active)))
        return JoinSplit(tuple(train), tuple(test), tuple(sizes))

    def shuffled(self, rng: np.random.Generator) -> tuple[JoinSplit, NDArray[np.int64], NDArray[np.int64]]:
        """Return the joined rows in random order, and the orders of the training and the test join."""
        train, test = rng.permutation(len(self.train[0])), rng.permutation(len(self.test[0]))
        shuffled = JoinSplit(tuple(r[train] for r in self.train), tuple(r[test] for r in self.test), self.num_rows)
        return shuffled, train, test

    def vertical_slices(self) -> JoinSplit:
        """Return the join as every table's own rows, as traditional vertical FL has them (Section 6.1).

        There are N rows in each, in the order of the join: row j is row j in every table and nothing is reduced.
        """
        num_tables, num_train, num_test = len(self.train), len(self.train[0]), len(self.test[0])
        train, test = (np.arange(count, dtype=np.int32) for count in (num_train, num_test))
        return JoinSplit((train,) * num_tables, (test,) * num_tables, (num_train,) * num_tables)


def comparable_rows(split: JoinSplit) -> list[float]:
    """Return for each table the share of its rows whose value's difference to another's follows from sums.

    Two joined rows that differ in one table's row alone have sums that differ by just that table's part.
    """
    rows = np.concatenate([np.stack(split.train), np.stack(split.test)], axis=1)
    shares = []
    for table, local_N in enumerate(rows):
        others = np.unique(np.delete(rows, table, axis=0), axis=1, return_inverse=True)[1].reshape(-1)
        pairs = np.unique(np.stack([others, local_N]), axis=1)
        compared = np.bincount(pairs[0])[pairs[0]] > 1
        shares.append(len(np.unique(pairs[1, compared])) / len(np.unique(local_N)))
    return shares


@dataclass(frozen=True)
class TreeSplit:
    """The training join and the test join as trees, each of the rows that are in it, and G_i of all rows in both."""

    train: JoinTree
    test: JoinTree
    in_train: tuple[NDArray[np.int64], ...]
    in_test: tuple[NDArray[np.int64], ...]

    @property
    def num_joined(self) -> int:
        """Rows of the training join."""
        return _size(self.in_train)

    def labels(self, side: int, y_n: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the labels of the rows of table `side` in the training join, and how often each occurs."""
        occurs = self.in_train[side] > 0
        return y_n[occurs], self.in_train[side][occurs]

    def tested(self, side: int) -> NDArray[Any]:
        """Return the rows of table `side` whose outputs are scored, each once."""
        return np.flatnonzero(self.in_test[side])

    def counts(self) -> list[tuple[NDArray[np.integer[Any]], NDArray[np.bool_]]]:
        """Return for each table G_i of the training join (n), and which rows are in the test join (n)."""
        return [(train, test > 0) for train, test in zip(self.in_train, self.in_test, strict=True)]


def join_tables(
    plan: JoinPlan,
    hashes: Mapping[str, Sequence[NDArray[np.uint8]]],
    num_rows: Mapping[str, int],
    is_test: NDArray[np.bool_],
    label_side: int,
    threads: int | None = None,
    memory_limit: str | None = None,
    join_by: Literal["rows", "tree", "auto"] = "rows",
) -> JoinSplit | TreeSplit:
    """Join the hashed keys and split the join by the label's rows.

    Raises:
        EmptyJoinError: no rows join, or none of the training rows, or none of the test rows.
        JoinTooLargeError: more joined rows than can be listed, or counted.
    """
    tree = join_keys(plan, hashes, num_rows, threads, memory_limit)
    if join_by != "rows":
        split = _split_tree(plan, replace(tree, root=label_side), is_test)
        if join_by == "tree" or _size(split.in_train) + _size(split.in_test) > MUCH_LARGER * sum(tree.num_rows):
            return split
    mapping = list_join(plan, tree)
    in_test = is_test[mapping.rows[label_side]]
    train = tuple(rows[~in_test] for rows in mapping.rows)
    test = tuple(rows[in_test] for rows in mapping.rows)
    _check_parts(len(train[0]), len(test[0]))
    return JoinSplit(train, test, mapping.num_rows)


def _split_tree(plan: JoinPlan, tree: JoinTree, is_test: NDArray[np.bool_]) -> TreeSplit:
    tables = range(len(tree.num_rows))
    found = [tree.counts([kept if i == tree.root else None for i in tables]) for kept in (~is_test, is_test)]
    check_not_empty(plan, _size(found[0]) + _size(found[1]))
    _check_parts(_size(found[0]), _size(found[1]))
    return TreeSplit(tree.restricted(found[0]), tree.restricted(found[1]), tuple(found[0]), tuple(found[1]))


def _size(counts: Sequence[NDArray[np.int64]]) -> int:
    return int(counts[0].sum())


def _check_parts(num_train: int, num_test: int) -> None:
    for part, size in (("training", num_train), ("test", num_test)):
        if size == 0:
            raise EmptyJoinError(f"join: none of {num_train + num_test} joined rows is a {part} row; see test_fraction")


# --- sums over joined rows ---


class ListedJoin:
    """Joined rows in a list.

    Args:
        rows: p_i of every table (N).
    """

    def __init__(self, rows: Sequence[Rows]) -> None:
        self.rows = list(rows)
        self.num_joined = len(rows[0])
        self.sizes = (self.num_joined,)
        """Rows of each part."""

    @cached_property
    def counts(self) -> list[NDArray[np.int64]]:
        """G_i of every table (n_i)."""
        return [np.bincount(rows) for rows in self.rows]

    def of_label(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return values that belong to the label's table, one for each label or the same for all, in parts."""
        return [values]

    def norm(self, parts: Parts) -> float:
        """Return the norm over all joined rows."""
        return float(np.linalg.norm(parts[0]))

    def loss(self, loss: Loss, predictions: Sequence[Array], y_N: NDArray[Any]) -> float:
        """Return the mean loss of the tables' predictions."""
        return algorithm.mean_loss(loss, gather_join(predictions, self.rows), y_N)

    def outputs(self, predictions: Sequence[Array]) -> Outputs:
        """Return what the label's owner scores: h of every joined row."""
        return gather_join(predictions, self.rows), *LISTED


class TreeJoin(TreeSums):
    """Joined rows as a tree of tables; the root is the label's table. See `ListedJoin` for what each method returns."""

    def __init__(self, tree: JoinTree) -> None:
        super().__init__(tree)
        self.sizes = tree.num_rows

    def of_label(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return values of the root's rows as the root's part, beside zeros."""
        return [values if i == self.tree.root else np.zeros(1) for i in range(len(self.sizes))]

    def norm(self, parts: Parts) -> float:
        """Return the norm over all joined rows."""
        return sqrt(self.square(_flat(parts)))

    def scatter(self, parts: Parts) -> list[Array]:
        """Return for each row of every table the sum over its joined rows (Eq. 10, 14)."""
        return [part[:, None] for part in self.sums(_flat(parts))]

    def loss(self, loss: Loss, predictions: Sequence[Array], y_n: NDArray[Any]) -> float:
        """Return half the mean squared error of the tables' predictions."""
        return self.square(less(_flat(predictions), self.of_label(y_n))) / self.num_joined / 2

    def outputs(self, predictions: Sequence[Array]) -> Outputs:
        """Return for each row of the root the mean of its joined rows' h, how many they are, and their spread."""
        mean_n, spread_n = self.at_root(_flat(predictions))
        return mean_n[:, None], self.counts[self.tree.root], spread_n


Outputs = tuple[Array, NDArray[Any], Array]
"""Outputs to be scored; of a tree also the joined rows of each, and the sum of squares around it."""
LISTED: tuple[NDArray[Any], Array] = (np.zeros(0, dtype=np.int32), np.zeros(0))
"""Where outputs are of single joined rows: neither counts nor spread."""


def score_means(mean_n: Array, y_n: NDArray[Any], counts_n: NDArray[Any], spread_n: Array) -> Array:
    """Return sums over joined rows of the label, its square and the squared error, from each label row's outputs.

    Args:
        mean_n: mean of the outputs of a label row's joined rows.
        y_n: its label.
        counts_n: its joined rows.
        spread_n: sum of squares of the outputs around their mean.
    """
    return np.array([counts_n @ y_n, counts_n @ y_n**2, np.sum(spread_n) + counts_n @ (mean_n - y_n) ** 2])


def _flat(parts: Parts) -> list[Array]:
    return [part[:, 0] for part in parts]

"""The join of a run (`fedactors.data.table_mapping`), split into training and test rows.

A joined row is a test row if its row of the label's table is one.

Legend: M tables, N joined rows, n_i rows of table i; p_i in [0, n_i)^N; G_ij = |{g : p_i(g) = j}|.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedactors.data.query import JoinPlan
from fedactors.data.table_mapping import EmptyJoinError, Rows, table_mapping


@dataclass(frozen=True)
class JoinSplit:
    """p_i of each table over the training join and over the test join; `num_rows` are the tables' rows."""

    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
    num_rows: tuple[int, ...]

    def counts(self) -> list[tuple[NDArray[np.int32], NDArray[np.bool_]]]:
        """Return for each table G_i of the training join (n), and which rows are in the test join (n)."""
        made = []
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
    for table, own_N in enumerate(rows):
        others = np.unique(np.delete(rows, table, axis=0), axis=1, return_inverse=True)[1].reshape(-1)
        pairs = np.unique(np.stack([others, own_N]), axis=1)
        compared = np.bincount(pairs[0])[pairs[0]] > 1
        shares.append(len(np.unique(pairs[1, compared])) / len(np.unique(own_N)))
    return shares


def join_tables(
    plan: JoinPlan,
    hashes: Mapping[str, Sequence[NDArray[np.uint8]]],
    num_rows: Mapping[str, int],
    is_test: NDArray[np.bool_],
    label_side: int,
    threads: int | None = None,
    memory_limit: str | None = None,
) -> JoinSplit:
    """Join the hashed keys (`mapping.table_mapping`) and split the join by the label's rows.

    Raises:
        EmptyJoinError: no rows join, or none of the training rows, or none of the test rows.
    """
    mapping = table_mapping(plan, hashes, threads, memory_limit, num_rows)
    in_test = is_test[mapping.rows[label_side]]
    train = tuple(rows[~in_test] for rows in mapping.rows)
    test = tuple(rows[in_test] for rows in mapping.rows)
    for part, rows in (("training", train), ("test", test)):
        if len(rows[0]) == 0:
            raise EmptyJoinError(f"join: none of the {mapping.num_joined} joined rows is a {part} row; see test_share")
    return JoinSplit(train, test, mapping.num_rows)

"""The table mapping split into the training join and the test join, and renumbered to the rows that join.

A joined row is a test row if its row of the label's table is one. Legend: N joined rows, n rows of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocols.tablepuppet.faults import EmptyJoinError
from protocols.tablepuppet.mapping import table_mapping
from protocols.tablepuppet.plan import JoinPlan

Rows = NDArray[np.int32]


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

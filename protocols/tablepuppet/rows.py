"""What a client does with its own rows before anything is trained: read, drop NULL keys, shuffle, encode, choose.

Legend: n rows of a client, D columns of the design matrix, N joined rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedactors.data.relational import TableSource
from fedactors.privacy.mechanisms import randomised_labels, randomised_values
from protocols.tablepuppet.algorithm import Loss
from protocols.tablepuppet.encoding import ColumnFacts, design_matrix, label_values
from protocols.tablepuppet.mapping import hash_keys, rows_with_keys, shuffle_order
from protocols.tablepuppet.messages import Facts
from protocols.tablepuppet.plan import Edge, JoinPlan, VerticalTable

Array = NDArray[np.float64]


@dataclass(frozen=True)
class OwnRows:
    """The rows of one client in the order of this run, and how many were left out because a key was NULL."""

    data: pa.Table
    num_null: int


def read_rows(source: TableSource, table: VerticalTable, partition: int, order: np.random.Generator) -> OwnRows:
    """Read the columns and rows that the plan needs from the client's own database, and shuffle them."""
    found = source.load(table.needed_columns(), table.partitions[partition].where)
    kept = rows_with_keys(found.select(table.keys)) if table.keys else np.ones(found.num_rows, dtype=bool)
    data = found if kept.all() else found.filter(pa.array(kept))
    return OwnRows(data.take(pa.array(shuffle_order(data.num_rows, order))), int(np.count_nonzero(~kept)))


def hash_rows(data: pa.Table, edges: Sequence[Edge], table: str, secret: bytes) -> tuple[NDArray[np.uint8], ...]:
    """Return the keyed hashes of every row, one array for each edge at the table."""
    return tuple(hash_keys(data, edge, table, secret, threads=1) for edge in edges)


def choose_test(num_rows: int, test_share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which rows of a partition of the label's table are kept for the test."""
    chosen = np.ones(num_rows, dtype=bool)
    chosen[rng.permutation(num_rows)[: int(num_rows * (1.0 - test_share))]] = False
    return chosen


def label_rows(data: pa.Table, plan: JoinPlan, loss: Loss, classes: Sequence[str]) -> NDArray[Any]:
    """Return y_n; see `encoding.label_values`."""
    name = plan.label_table.label
    assert name is not None
    return label_values(data.column(name), loss, name, classes)


def noisy_labels(
    y_n: NDArray[Any],
    loss: Loss,
    num_classes: int,
    deviation: float,
    label_range: tuple[float, float] | None,
    rng: np.random.Generator,
) -> NDArray[Any]:
    """Return labels under label DP (Eq. 25, or clipped numbers with additive noise)."""
    if loss == "squared":
        assert label_range is not None
        return randomised_values(y_n, *label_range, deviation, rng)
    chosen = randomised_labels(y_n.astype(np.int64), max(num_classes, 2), deviation, rng)
    return chosen.astype(y_n.dtype)


def encode_rows(data: pa.Table, table: VerticalTable, facts: Facts, standardise: bool) -> Array:
    """Return the design matrix x_nD; the label's table has a last column of ones."""
    return design_matrix(data, table.features, unpack_facts(facts), table.label is not None, standardise)


def pack_facts(facts: Sequence[ColumnFacts], classes: Sequence[str]) -> Facts:
    """Turn facts into the message."""
    return Facts(
        categories=tuple(fact.categories for fact in facts),
        counts=np.array([fact.count for fact in facts], dtype=np.int64),
        totals=np.array([fact.total for fact in facts], dtype=np.float64),
        squares=np.array([fact.squares for fact in facts], dtype=np.float64),
        classes=tuple(classes),
    )


def unpack_facts(facts: Facts) -> tuple[ColumnFacts, ...]:
    """Turn the message into facts."""
    return tuple(
        ColumnFacts(tuple(categories), int(count), float(total), float(squares))
        for categories, count, total, squares in zip(
            facts.categories, facts.counts, facts.totals, facts.squares, strict=True
        )
    )

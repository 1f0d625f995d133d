"""The physical operators LoJ and LoU of Section 4.1 as functions on arrays: gather, (compute), scatter.

    LoU.gather: predictions of the partitions -> of the vertical table        (concatenate, in partition order)
    LoJ.gather: predictions of the vertical tables -> sum on joined rows      (h_j = sum_i h_i[p_i(j)])
    LoJ.scatter: a value on joined rows -> Y_i on each table's rows           (segment sums over G_i(j), Eq. 10, 14)
    LoU.scatter: Y_i, G_i of the vertical table -> of the partitions          (split)

compute() of each is in `algorithm`. What a mini-batch touches is a `BatchRows`: the distinct rows of a table in the
batch, alpha_i in total per epoch, which is all that a client computes on and sends (duplicate reduction).

Legend: N joined rows, B rows of a batch, u distinct rows of a table in the batch, n_i rows, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.tablepuppet.mapping import TableMapping

Array = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class BatchRows:
    """The rows of one table in one batch: ``rows_u`` distinct, ``place_B`` the place in them of each batch row."""

    rows_u: Index
    place_B: Index

    def counts(self) -> Index:
        """Return how often each distinct row occurs in the batch (G_ij of the batch)."""
        return np.bincount(self.place_B, minlength=len(self.rows_u))


def row_index(mapping: TableMapping, index: int) -> Index:
    """Return p_i as numpy's own index type, made once so that no later gather or scatter converts it."""
    return mapping.rows[index].astype(np.int64)


def gather_join(predictions: Sequence[Array], rows: Sequence[Index]) -> Array:
    """Return h_NC = sum_i h_i[p_i(j)], tables added in the given order (LoJ gather)."""
    h_NC = np.take(predictions[0], rows[0], axis=0)
    for prediction, row in zip(predictions[1:], rows[1:], strict=True):
        h_NC += np.take(prediction, row, axis=0)
    return h_NC


def scatter_join(values_NC: Array, rows_N: Index, num_rows: int) -> Array:
    """Return the sums over G_i(j) of a value on joined rows, for each row of a table (LoJ scatter, Eq. 10 and 14)."""
    if values_NC.shape[1] == 1:
        return np.asarray(np.bincount(rows_N, weights=values_NC[:, 0], minlength=num_rows), dtype=np.float64)[:, None]
    columns = [np.bincount(rows_N, weights=values_NC[:, c], minlength=num_rows) for c in range(values_NC.shape[1])]
    return np.stack(columns, axis=1)


def batch_rows(rows_B: Index, scratch_n: Index) -> BatchRows:
    """Return the distinct rows of a batch, O(B) whatever the table's size; `scratch_n` is overwritten.

    The distinct rows come in the order of their last occurrence in the batch, which depends on nothing else.
    """
    places = np.arange(len(rows_B))
    scratch_n[rows_B] = places
    rows_u = rows_B[scratch_n[rows_B] == places]
    scratch_n[rows_u] = np.arange(len(rows_u))
    return BatchRows(rows_u=rows_u, place_B=scratch_n[rows_B])


def touch_tables(chosen: Sequence[Index], scratch: Sequence[Index]) -> list[BatchRows]:
    """Return the distinct rows of every table in a batch, from p_i of its joined rows."""
    return [batch_rows(rows_B, scratch_n) for rows_B, scratch_n in zip(chosen, scratch, strict=True)]


def epoch_batches(num_joined: int, batch_size: int, rng: np.random.Generator) -> list[Index]:
    """Return the joined rows of each mini-batch of an epoch in random order; the last may be smaller."""
    order = rng.permutation(num_joined)
    return [order[start : start + batch_size] for start in range(0, num_joined, batch_size)]


def touched_rows(mapping: TableMapping, batches: Sequence[Index]) -> tuple[int, ...]:
    """Return alpha_i of each table: its distinct rows summed over the batches (n_i <= alpha_i <= N, Table 6)."""
    totals = []
    for rows, num_rows in zip(mapping.rows, mapping.num_rows, strict=True):
        scratch = np.empty(num_rows, dtype=np.int64)
        totals.append(sum(len(batch_rows(rows[batch].astype(np.int64), scratch).rows_u) for batch in batches))
    return tuple(totals)


def gather_union(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the partitions' arrays as the vertical table's, in partition order (LoU gather)."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def scatter_union(values_n: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """Return the vertical table's array split by partition (LoU scatter)."""
    return np.split(values_n, np.cumsum(sizes)[:-1])


def split_rows(rows_u: Index, sizes: Sequence[int]) -> list[tuple[Index, Index]]:
    """Return for each partition (places in `rows_u`, row numbers inside the partition) of a batch's distinct rows."""
    ends = np.cumsum(sizes)
    owner = np.searchsorted(ends, rows_u, side="right")
    found = []
    for q, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        places = np.flatnonzero(owner == q)
        found.append((places, rows_u[places] - (end - size)))
    return found

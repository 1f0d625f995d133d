"""Sums over the rows of a join that is never listed: by messages between the tables along the join tree.

    a value on joined rows that is a sum of one part a table, v_j = sum_i a_i[p_i(j)]
    tables --mean of their part by key, and back--> its sum over the joined rows behind each row of every table

What a key's rows have behind them on one side of an edge is independent of what they have on the other, so the counts
of the joined rows multiply and means add: an edge is passed twice, whatever N is, and work and memory follow the
tables' rows and their distinct keys. This is the factorised evaluation of aggregates over joins: Olteanu and Schleich,
"Factorized Databases" (SIGMOD Record 45(2), 2016); Schleich, Olteanu and Ciucanu, "Learning Linear Regression Models
over Factorized Joins" (SIGMOD 2016). Means with sums of squares around them stand for sums of squares, so that nothing
large is taken from something large (Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983).

Legend: N joined rows, n_i rows of table i, K keys of an edge; G_n joined rows behind each row of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.data.table_mapping import JoinTooLargeError, Rows, Step

Array = NDArray[np.float64]
MOST_JOINED = 2**53
"""Joined rows that are counted exactly."""


@dataclass(frozen=True)
class JoinTree:
    """The rows of each table that are in the join, by their keys; every one of them has partners in all tables.

    Args:
        num_rows: n_i of each table.
        steps: the tree's edges: two tables, and the number of each of their rows' key (-1: a key without partner).
        root: the table at which squares are summed up.
    """

    num_rows: tuple[int, ...]
    steps: tuple[Step, ...]
    root: int = 0

    @property
    def order(self) -> list[tuple[int, int, int]]:
        """Who sends whom a message over which edge: from the leaves to the root, then back."""
        reached, down, left = {self.root}, [], list(range(len(self.steps)))
        while left:
            edge = next(e for e in left if reached & set(self.steps[e][:2]))
            one, other = self.steps[edge][:2]
            sender, receiver = (one, other) if one in reached else (other, one)
            down.append((sender, receiver, edge))
            reached.add(receiver)
            left.remove(edge)
        return [(receiver, sender, edge) for sender, receiver, edge in reversed(down)] + down

    def keys(self, table: int, edge: int) -> Rows:
        """Return the number of each row's key on one edge."""
        one, _, own, others = self.steps[edge]
        return own if table == one else others

    def counts(self, kept: Sequence[NDArray[np.bool_] | None]) -> list[NDArray[np.int64]]:
        """Return the joined rows behind each row of every table.

        Args:
            kept: of each table the rows that take part (n_i); None: all.

        Raises:
            JoinTooLargeError: there are more than can be counted.
        """
        weights = [np.ones(n) if k is None else k.astype(np.float64) for n, k in zip(self.num_rows, kept, strict=True)]
        behind: dict[tuple[int, int], Array] = {}
        for sender, receiver, edge in self.order:
            own = self._behind(weights, behind, sender, but=edge)
            behind[receiver, edge] = _by_key(self.keys(sender, edge), own, self._num_keys(edge))
        found = [self._behind(weights, behind, table) for table in range(len(self.num_rows))]
        total = float(found[0].sum())
        if total > MOST_JOINED:
            raise JoinTooLargeError(f"join: {total:.3g} joined rows, more than {MOST_JOINED} are not supported")
        return [counts.astype(np.int64) for counts in found]

    def restricted(self, counts: Sequence[NDArray[np.int64]]) -> JoinTree:
        """Return the tree of those rows that have joined rows behind them, numbered without gaps; keys too."""
        kept = [np.flatnonzero(count) for count in counts]
        steps = []
        for one, other, keys_one, keys_other in self.steps:
            own, others = keys_one[kept[one]], keys_other[kept[other]]
            number = np.zeros(int(own.max(initial=-1)) + 1, dtype=np.int32)
            number[own] = 1
            number = (np.cumsum(number) - 1).astype(np.int32)
            steps.append((one, other, number[own], number[others]))
        return JoinTree(tuple(len(rows) for rows in kept), tuple(steps), self.root)

    def _num_keys(self, edge: int) -> int:
        _, _, one, other = self.steps[edge]
        return int(max(one.max(initial=-1), other.max(initial=-1))) + 1

    def _behind(
        self, weights: Sequence[Array], behind: dict[tuple[int, int], Array], table: int, but: int | None = None
    ) -> Array:
        """Return what is behind each row of a table, over all edges or all but one."""
        found = weights[table].copy()
        for edge, step in enumerate(self.steps):
            if table in step[:2] and edge != but:
                # a key without partner has number -1, that of the zero at the end
                found *= np.append(behind[table, edge], 0.0)[self.keys(table, edge)]
        return found


class TreeSums:
    """What is summed over a join again and again, with the counts that stay.

    Args:
        tree: of rows that are in the join, all of them (`JoinTree.restricted`).
    """

    def __init__(self, tree: JoinTree) -> None:
        self.tree = tree
        self.counts = tree.counts([None] * len(tree.num_rows))
        """G_n of each table."""
        self.num_joined = int(self.counts[0].sum())
        self._edges = [[e for e, s in enumerate(tree.steps) if i in s[:2]] for i in range(len(tree.num_rows))]
        self._order = tree.order
        # a row's share in what its table tells of a key over an edge: joined rows behind it, over the other edges
        weights: list[Array] = [np.ones(n) for n in tree.num_rows]
        behind: dict[tuple[int, int], Array] = {}
        self._shares: dict[tuple[int, int], Array] = {}
        for sender, receiver, edge in self._order:
            own = tree._behind(weights, behind, sender, but=edge)
            keys = tree.keys(sender, edge)
            behind[receiver, edge] = _by_key(keys, own, tree._num_keys(edge))
            self._shares[sender, edge] = own / behind[receiver, edge][keys]

    def means(self, parts: Sequence[Array]) -> list[Array]:
        """Return for each row of every table the mean of sum_i a_i over the joined rows behind it.

        Args:
            parts: a_i of every table (n_i).
        """
        told = self._told(parts)
        return [self._at(i, parts[i], told) for i in range(len(parts))]

    def sums(self, parts: Sequence[Array]) -> list[Array]:
        """Return for each row of every table the sum of sum_i a_i over the joined rows behind it: Eq. 10 and 14."""
        return [mean * count for mean, count in zip(self.means(parts), self.counts, strict=True)]

    def at_root(self, parts: Sequence[Array]) -> tuple[Array, Array]:
        """Return for each row of the root the mean of sum_i a_i behind it, and the sum of squares around that mean."""
        root = self.tree.root
        told = self._told(parts)
        spread: dict[tuple[int, int], Array] = {}
        for sender, receiver, edge in self._order[: len(self.tree.steps)]:
            keys = self.tree.keys(sender, edge)
            mean = self._at(sender, parts[sender], told, but=edge)
            around = self._at(sender, np.zeros(len(mean)), spread, but=edge) + (mean - told[receiver, edge][keys]) ** 2
            spread[receiver, edge] = self._tell(sender, edge, around)
        around = self._at(root, np.zeros(len(parts[root])), spread) * self.counts[root]
        return self._at(root, parts[root], told), around

    def square(self, parts: Sequence[Array]) -> float:
        """Return the sum over the joined rows of (sum_i a_i)^2."""
        mean, around = self.at_root(parts)
        return float(around.sum() + self.counts[self.tree.root] @ mean**2)

    def _told(self, parts: Sequence[Array]) -> dict[tuple[int, int], Array]:
        told: dict[tuple[int, int], Array] = {}
        for sender, receiver, edge in self._order:
            told[receiver, edge] = self._tell(sender, edge, self._at(sender, parts[sender], told, but=edge))
        return told

    def _tell(self, sender: int, edge: int, values_n: Array) -> Array:
        """Return the mean of a value by key (K), over the joined rows on the sender's side of an edge."""
        keys = self.tree.keys(sender, edge)
        return np.asarray(np.bincount(keys, weights=values_n * self._shares[sender, edge]), dtype=np.float64)

    def _at(self, table: int, own_n: Array, told: dict[tuple[int, int], Array], but: int | None = None) -> Array:
        """Return a table's own value and what it was told by its neighbours, all or all but one, row by row."""
        found = own_n
        for edge in self._edges[table]:
            if edge != but:
                found = found + told[table, edge][self.tree.keys(table, edge)]
        return found


def _by_key(keys: NDArray[Any], values: Array, num_keys: int) -> Array:
    """Return the sum of a value by key; rows of number -1 are left out."""
    kept = keys >= 0
    if not kept.all():
        keys, values = keys[kept], values[kept]
    return np.asarray(np.bincount(keys, weights=values, minlength=num_keys), dtype=np.float64)

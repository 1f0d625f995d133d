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

import numpy as np
from numpy.typing import NDArray

from fedactors.data.table_mapping import JoinTree, sum_by_key

Array = NDArray[np.float64]


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
            own = tree.behind(weights, behind, sender, but=edge)
            keys = tree.keys(sender, edge)
            behind[receiver, edge] = sum_by_key(keys, own, tree.num_keys(edge))
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

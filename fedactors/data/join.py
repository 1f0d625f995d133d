"""Table mapping: hashed join keys in, the row of every table behind every joined row out; nobody sees a joined row.

    a table's owner: key columns --hash_keys--> 16-byte keyed hashes, one column for each edge of the join tree
    who joins:       hashes of all tables --join_keys (DuckDB)--> JoinTree --listed--> p_i(j), counts G_ij; no feature
    of a join that is never listed: each table's part of a sum --by messages along the tree--> its sum over the joined
                     rows behind each row of every table, where v_j = sum_i a_i[p_i(j)]

Row ids are positions: before anything is sent an owner shuffles its rows, so that row k of what it sends is row k of
the table in every later message and tells nothing about the order in its database. One-to-one ids are the special case
of two tables, one edge and keys that occur once.

What a key's rows have behind them on one side of an edge is independent of what they have on the other, so counts of
joined rows multiply and means add: an edge is passed twice, whatever N is. Means with sums of squares around them stand
for sums of squares, so that nothing large is taken from something large.

Sources: the mapping is Section 3.1.1 of TablePuppet (Xu et al., "TablePuppet: A Generic Framework for Relational
Federated Learning"); aggregates over factorised joins: Olteanu and Schleich, "Factorized Databases" (SIGMOD Record
45(2), 2016), Schleich, Olteanu and Ciucanu, "Learning Linear Regression Models over Factorized Joins" (SIGMOD 2016);
sums of squares: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (1983).

Legend: M tables, N joined rows, n_i rows of table i, K keys of an edge; p_i in [0, n_i)^N; G_ij = |{g : p_i(g) = j}|,
sum_j G_ij = N; G_n joined rows behind each row of a table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedactors.data.databases import memory_database
from fedactors.data.query import Edge, JoinPlan, QueryError
from fedactors.data.values import Inexact, allocate, exact_texts, plain_values, read_only, times_of_day
from fedactors.errors import BadInput

if TYPE_CHECKING:
    import scipy.sparse
    from duckdb import DuckDBPyConnection

Rows = NDArray[np.int32]
Step = tuple[int, int, Rows, Rows]
"""An edge of a join tree: two tables, and the number of each of their rows' key (-1: no partner)."""
HASH_BYTES = 16
MOST_JOINED = 2**53
"""Joined rows that are counted exactly."""
_HMAC_BLOCK = 64
_BLOCK_ROWS = 1 << 16


class EmptyJoinError(QueryError):
    """No row of the join exists, so there is nothing to train on."""


class JoinTooLargeError(QueryError):
    """The join has more rows than row numbers can count."""


@dataclass(frozen=True)
class JoinTree:
    """A join as the tree of its tables: which key each of their rows has on each edge.

    Args:
        num_rows: n_i of each table.
        steps: the edges: two tables, and the number of each of their rows' key (-1: a key without partner).
        root: the table at which lists begin and squares are summed up.
    """

    num_rows: tuple[int, ...]
    steps: tuple[Step, ...]
    root: int = 0

    @property
    def down(self) -> list[tuple[int, int, int]]:
        """The edges from the root to the leaves: parent, child, number of the edge."""
        return directed([step[:2] for step in self.steps], self.root)

    @property
    def order(self) -> list[tuple[int, int, int]]:
        """Who sends whom a message over which edge: from the leaves to the root, then back."""
        return [(child, parent, edge) for parent, child, edge in reversed(self.down)] + self.down

    def keys(self, table: int, edge: int) -> Rows:
        """Return the number of each row's key on one edge."""
        one, _, local, others = self.steps[edge]
        return local if table == one else others

    def listed(self) -> list[Rows]:
        """List the joined rows as the row of each table, in O(sum n_i + N).

        Rows that cannot join are dropped first, leaves to root, so that no intermediate list is longer than the join.
        The order is by the root's row, then by the child's, edge by edge.
        """
        joins = self.joining(self.down)
        rows: dict[int, Rows] = {self.root: np.flatnonzero(joins[self.root]).astype(np.int32)}
        for parent, child, edge in self.down:
            parent_codes, child_codes = self.keys(parent, edge), self.keys(child, edge)
            kept = np.flatnonzero(joins[child] & (child_codes >= 0)).astype(np.int32)
            codes, size = child_codes[kept], self.num_keys(edge)
            partners = np.bincount(codes, minlength=size)
            listed = kept[_order_by(codes, size)]
            starts = (np.cumsum(partners) - partners).astype(np.int32)
            every = len(rows[parent]) == self.num_rows[parent] and len(rows) == 1
            wanted = parent_codes if every else parent_codes[rows[parent]]
            if partners.max(initial=0) <= 1:
                rows[child] = listed[starts[wanted]]
            else:
                rows = _repeat_rows(rows, child, listed, starts[wanted], partners.astype(np.int32)[wanted])
        return [rows[i] for i in range(len(self.num_rows))]

    def unmatched(self) -> NDArray[np.int16]:
        """Return for each of the root's rows the first table, down the tree, without a partner; -1: it joins."""
        unmatched = np.full(self.num_rows[self.root], -1, dtype=np.int16)
        for length in range(len(self.down), 0, -1):
            joins = self.joining(self.down[:length])[self.root]
            unmatched[~joins] = self.down[length - 1][1]
        return unmatched

    def joining(self, down: Sequence[tuple[int, int, int]]) -> list[NDArray[np.bool_]]:
        """Return which rows of each table find partners down these edges: of the root, which join."""
        joins = [np.ones(n, dtype=bool) for n in self.num_rows]
        for parent, child, edge in reversed(down):
            partner = np.zeros(self.num_keys(edge) + 1, dtype=bool)
            partner[self.keys(child, edge)[joins[child]]] = True
            partner[-1] = False
            joins[parent] &= partner[self.keys(parent, edge)]
        return joins

    def counts(self, kept: Sequence[NDArray[np.bool_] | None]) -> list[NDArray[np.int64]]:
        """Return the joined rows behind each row of every table.

        Args:
            kept: of each table the rows that take part (n_i); None: all.

        Raises:
            JoinTooLargeError: there are more than can be counted.
        """
        weights = [np.ones(n) if k is None else k.astype(np.float64) for n, k in zip(self.num_rows, kept, strict=True)]
        behind: dict[tuple[int, int], NDArray[np.float64]] = {}
        for sender, receiver, edge in self.order:
            local = self.behind(weights, behind, sender, but=edge)
            behind[receiver, edge] = sum_by_key(self.keys(sender, edge), local, self.num_keys(edge))
        found = [self.behind(weights, behind, table) for table in range(len(self.num_rows))]
        total = float(found[0].sum())
        if total > MOST_JOINED:
            raise JoinTooLargeError(f"join: {total:.3g} joined rows, more than {MOST_JOINED} are not supported")
        return [counts.astype(np.int64) for counts in found]

    def restricted(self, counts: Sequence[NDArray[np.int64]]) -> JoinTree:
        """Return the tree of those rows that have joined rows behind them, numbered without gaps; keys too."""
        kept = [np.flatnonzero(count) for count in counts]
        steps = []
        for one, other, keys_one, keys_other in self.steps:
            local, others = keys_one[kept[one]], keys_other[kept[other]]
            number = np.zeros(int(local.max(initial=-1)) + 1, dtype=np.int32)
            number[local] = 1
            number = (np.cumsum(number) - 1).astype(np.int32)
            steps.append((one, other, number[local], number[others]))
        return JoinTree(tuple(len(rows) for rows in kept), tuple(steps), self.root)

    def num_keys(self, edge: int) -> int:
        """Return how many keys an edge has."""
        _, _, one, other = self.steps[edge]
        return int(max(one.max(initial=-1), other.max(initial=-1))) + 1

    def behind(
        self,
        weights: Sequence[NDArray[np.float64]],
        behind: dict[tuple[int, int], NDArray[np.float64]],
        table: int,
        but: int | None = None,
    ) -> NDArray[np.float64]:
        """Return what is behind each row of a table, over all edges or all but one."""
        found = weights[table].copy()
        for edge, step in enumerate(self.steps):
            if table in step[:2] and edge != but:
                # a key without partner has number -1, that of the zero at the end
                found *= np.append(behind[table, edge], 0.0)[self.keys(table, edge)]
        return found


MANY = 10
"""Times the largest table from which on a join is told as large."""


def join_notes(num_joined: int, rows: Mapping[str, int], trained: Mapping[str, int]) -> list[str]:
    """Return what became of the tables' rows, a line each where not all are trained on, and of a very large join.

    Args:
        num_joined: rows of the join, those to train and to test on.
        rows: of each table.
        trained: of each table, those that stand in a joined row to train on.
    """
    notes = [
        f"{name}: {trained[name]} of {count} rows stand in joined rows to train on"
        for name, count in rows.items()
        if trained[name] < count
    ]
    largest = max(rows, key=lambda name: rows[name], default="")
    if largest and num_joined >= MANY * rows[largest] > 0:
        notes.append(
            f"the join has {num_joined} rows, {num_joined / rows[largest]:.0f} times as many as {largest}, the largest "
            "table: is there a key by which each row finds its own?"
        )
    return notes


def sum_by_key(keys: NDArray[Any], values: NDArray[Any], num_keys: int) -> NDArray[np.float64]:
    """Return the sum of a value by key; rows of number -1 are left out."""
    kept = keys >= 0
    if not kept.all():
        keys, values = keys[kept], values[kept]
    return np.asarray(np.bincount(keys, weights=values, minlength=num_keys), dtype=np.float64)


def directed(edges: Sequence[tuple[int, int]], root: int) -> list[tuple[int, int, int]]:
    """Return the edges of a tree as (parent, child, number of the edge), parents before their children."""
    reached, found, left = {root}, [], list(range(len(edges)))
    while left:
        edge = next(e for e in left if reached & set(edges[e]))
        one, other = edges[edge]
        found.append((one, other, edge) if one in reached else (other, one, edge))
        reached |= {one, other}
        left.remove(edge)
    return found


@dataclass(frozen=True)
class TableMapping:
    """The join as row numbers: ``rows[i][j]`` is p_i(j), ``num_rows[i]`` is n_i, tables in plan order.

    Joined rows are sorted by the row numbers of the largest table, then of the others along the join tree, so the
    same hashes give the same mapping on any machine and any number of threads.
    """

    rows: tuple[Rows, ...]
    num_rows: tuple[int, ...]

    @property
    def num_joined(self) -> int:
        """N, the number of joined rows."""
        return len(self.rows[0])

    @property
    def duplicate_counts(self) -> tuple[NDArray[np.int64], ...]:
        """G_i of each table: how often each of its rows occurs in the join."""
        return tuple(np.bincount(rows, minlength=n) for rows, n in zip(self.rows, self.num_rows, strict=True))


def hash_keys(keys: pa.Table, edge: Edge, table: str, secret: bytes, threads: int | None = None) -> NDArray[np.uint8]:
    """Return HMAC-SHA-256 of each row's key for one edge, cut to 128 bits, computed by DuckDB (shape [n, 16]).

    The message is the edge's name and the keys, each as its exact text (`fedactors.data.values.exact_texts`) with its
    length before it, so that neither ("a", "bc") and ("ab", "c") nor equal values on two edges give equal hashes. Each
    distinct key is hashed once. `secret` is shared among the clients and unknown to the server. Rows with NULL keys
    must be gone.

    Raises:
        BadInput: keys that have no exact text.
    """
    if keys.num_rows == 0:
        return np.zeros((0, HASH_BYTES), dtype=np.uint8)
    columns = edge.columns(table)
    picked = pa.table({f"k{i}": _exact_key(keys.column(name), f"{table}.{name}") for i, name in enumerate(columns)})
    texts = [f"k{i}::VARCHAR" for i in range(len(columns))]
    message = " || ".join(["?::VARCHAR", *(f"length({t})::VARCHAR || ':' || {t}" for t in texts)])
    names = ", ".join(f"k{i}" for i in range(len(columns)))
    padded = (secret if len(secret) <= _HMAC_BLOCK else hashlib.sha256(secret).digest()).ljust(_HMAC_BLOCK, b"\0")
    inner, outer = bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded)
    digest = f"sha256(?::BLOB || unhex(sha256(?::BLOB || encode({message}))))"
    found = (
        f"SELECT digest FROM (SELECT *, row_number() OVER () AS position FROM block)"
        f" JOIN hashed USING ({names}) ORDER BY position"
    )
    made = allocate((keys.num_rows, HASH_BYTES), np.uint8)
    with memory_database(**_settings(threads, None)) as connection:
        connection.register("picked", picked)
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE hashed AS SELECT {names}, unhex(left({digest}, {2 * HASH_BYTES})) AS digest"
            f" FROM (SELECT DISTINCT {names} FROM picked)",
            [outer, inner, edge.name],
        )
        for first in range(0, keys.num_rows, _JOINED_ROWS):
            connection.register("block", picked.slice(first, _JOINED_ROWS))
            hashed = _fixed_bytes(connection.sql(found).to_arrow_table().column("digest"))
            made[first : first + len(hashed)] = hashed
            connection.unregister("block")
        connection.execute("DROP TABLE hashed")
        connection.unregister("picked")
    return read_only(made)


_JOINED_ROWS = 1 << 17
"""Rows that DuckDB has at a time."""


def _exact_key(column: pa.ChunkedArray, name: str) -> Any:
    """Return a key whose text in DuckDB is the same for equal values, whatever their type."""
    kind = column.type
    if pa.types.is_string(kind):
        return times_of_day(column)
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_boolean(kind):
        return column
    try:
        return exact_texts(plain_values(column), "key")
    except Inexact as error:
        raise BadInput(f"sql: key {name} holds {error}") from None


def hash_rows(data: pa.Table, edges: Sequence[Edge], table: str, secret: bytes) -> tuple[NDArray[np.uint8], ...]:
    """Return the keyed hashes of every row, one array for each edge at the table."""
    return tuple(hash_keys(data, edge, table, secret, threads=1) for edge in edges)


def table_mapping(
    plan: JoinPlan,
    hashes: Mapping[str, Sequence[NDArray[np.uint8]]],
    threads: int | None = None,
    memory_limit: str | None = None,
    num_rows: Mapping[str, int] | None = None,
) -> TableMapping:
    """Join the hashed keys of all tables with DuckDB into p_i and G_i (Section 3.1.1, step 2).

    Args:
        plan: the join tree.
        hashes: for each table one [n_i, 16] array for each of `plan.edges_of(table)`, partitions already unioned.
        threads: DuckDB's threads; all cores if None.
        memory_limit: DuckDB's limit, such as "4GB"; it spills to disk beyond.
        num_rows: the rows of a table without edges, which is a query over one table only.

    Raises:
        EmptyJoinError: no rows join.
    """
    tree = join_keys(plan, hashes, num_rows, threads, memory_limit)
    return list_join(plan, tree)


def list_join(plan: JoinPlan, tree: JoinTree) -> TableMapping:
    """List the joined rows, in the order that `TableMapping` states.

    Raises:
        EmptyJoinError: no rows join.
    """
    rows = tree.listed()
    check_not_empty(plan, len(rows[0]))
    for row in rows:
        row.setflags(write=False)
    return TableMapping(rows=tuple(rows), num_rows=tree.num_rows)


def check_not_empty(plan: JoinPlan, num_joined: int) -> None:
    """Refuse a join without rows.

    Raises:
        EmptyJoinError: it has none.
    """
    if not num_joined:
        raise empty_join(plan)


def empty_join(plan: JoinPlan) -> EmptyJoinError:
    """Return the error of tables that have no joined row."""
    where = " and ".join(edge.shown for edge in plan.edges)
    return EmptyJoinError(
        f"join: no row joins where {where} (are the keys of the same kind of thing? Those of two CSV files are "
        "compared as texts: 007 is not 7, unless both sides are written CAST(... AS BIGINT). Where blanks at the ends, "
        'accents or case differ, both parties give id_rules = ["nfkc", "casefold"])'
    )


@dataclass(frozen=True)
class PartnersOf:
    """The join as one table's owner needs it: `mapping` is sorted by its rows, and may have no row."""

    mapping: TableMapping
    unmatched: NDArray[np.int16]
    """For each of its rows the first table, along the join tree, in which it finds no partner; -1: it joins."""


def partners_of(
    plan: JoinPlan,
    hashes: Mapping[str, Sequence[NDArray[np.uint8]]],
    side: int,
    threads: int | None = None,
    memory_limit: str | None = None,
    num_rows: Mapping[str, int] | None = None,
) -> PartnersOf:
    """Join as `table_mapping` does, from the rows of one table (number `side` of the plan); an empty join is none."""
    tree = join_keys(plan, hashes, num_rows, threads, memory_limit, side)
    return PartnersOf(TableMapping(rows=tuple(tree.listed()), num_rows=tree.num_rows), tree.unmatched())


def join_keys(
    plan: JoinPlan,
    hashes: Mapping[str, Sequence[NDArray[np.uint8]]],
    num_rows: Mapping[str, int] | None = None,
    threads: int | None = None,
    memory_limit: str | None = None,
    root: int | None = None,
) -> JoinTree:
    """Join the hashed keys edge by edge, from `root` (the largest table); see `table_mapping`."""
    import duckdb  # as scipy below: parties of every protocol import this module, and few map tables

    names = [table.name for table in plan.tables]
    sizes = tuple(len(hashes[name][0]) if hashes.get(name) else (num_rows or {})[name] for name in names)
    root = int(np.argmax(sizes)) if root is None else root
    steps: list[Step] = []
    with duckdb.connect(config=_settings(threads, memory_limit)) as connection:
        for parent, child, edge in directed([(names.index(e.left), names.index(e.right)) for e in plan.edges], root):
            local, others = (hashes[names[i]][plan.edges_of(names[i]).index(plan.edges[edge])] for i in (parent, child))
            steps.append((parent, child, *_key_codes(connection, local, others)))
    return JoinTree(sizes, tuple(steps), root)


def _repeat_rows(rows: Mapping[int, Rows], child: int, listed: Rows, starts: Rows, repeats: Rows) -> dict[int, Rows]:
    """Give listed row k its partners listed[starts[k]], ... (repeats[k] of them); in blocks that fit the cache."""
    ends = np.cumsum(repeats, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total > np.iinfo(np.int32).max:
        raise JoinTooLargeError(f"join: {total} joined rows, more than {np.iinfo(np.int32).max} are not supported")
    made = {table: np.empty(total, dtype=np.int32) for table in (*rows, child)}
    for first in range(0, len(repeats), _BLOCK_ROWS):
        block = slice(first, first + _BLOCK_ROWS)
        times = repeats[block]
        before = ends[block] - times
        low, high = int(before[0]), int(ends[block][-1])
        for table, row in rows.items():
            made[table][low:high] = np.repeat(row[block], times)
        indices = np.repeat(starts[block] - (before - low).astype(np.int32), times)
        indices += np.arange(high - low, dtype=np.int32)
        made[child][low:high] = listed[indices]
    return made


def _key_codes(
    connection: DuckDBPyConnection, parent: NDArray[np.uint8], child: NDArray[np.uint8]
) -> tuple[Rows, Rows]:
    """Join the hashes of one edge: return the number of each parent and child row's key (-1 for parents alone)."""
    connection.register("child", _hash_table(child))
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE keys AS SELECT high, low, (row_number() OVER () - 1)::INTEGER AS code"
        " FROM (SELECT DISTINCT high, low FROM child)"
    )
    connection.unregister("child")
    found = []
    for hashed in (parent, child):
        codes = np.full(len(hashed), -1, dtype=np.int32)
        for first in range(0, len(hashed), _JOINED_ROWS):
            connection.register("side", _hash_table(hashed[first : first + _JOINED_ROWS]))
            joined = connection.sql("SELECT s.row, k.code FROM side s JOIN keys k USING (high, low)").fetchnumpy()
            codes[np.asarray(joined["row"]) + first] = np.asarray(joined["code"])
            connection.unregister("side")
        found.append(codes)
    return found[0], found[1]


def _order_by(values: Rows, size: int) -> Rows:
    """Return the stable order of `values` in [0, size): a counting sort, by the transposition of a sparse matrix."""
    order: Rows = _by_key(values, np.ones(len(values), dtype=np.int8), size).indices.astype(np.int32, copy=False)
    return order


def _by_key(keys: NDArray[Any], values: NDArray[Any], size: int) -> scipy.sparse.csr_array:
    """Return the sparse matrix (size x n) with each row's value at its key; a key's rows in their order."""
    import scipy.sparse

    count = len(keys)
    one_per_row = scipy.sparse.csr_array((values, keys, np.arange(count + 1, dtype=keys.dtype)), shape=(count, size))
    return one_per_row.tocsc().T


def _hash_table(hashed: NDArray[np.uint8]) -> pa.Table:
    halves = np.ascontiguousarray(hashed).view(np.uint64)
    columns = {"high": np.ascontiguousarray(halves[:, 0]), "low": np.ascontiguousarray(halves[:, 1])}
    return pa.table({"row": np.arange(len(hashed), dtype=np.int32), **columns})


def _fixed_bytes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    pieces = []
    for chunk in column.chunks:
        fixed = chunk.cast(pa.binary(HASH_BYTES))
        size, skipped = len(fixed) * HASH_BYTES, fixed.offset * HASH_BYTES
        pieces.append(np.frombuffer(fixed.buffers()[1], dtype=np.uint8, count=size, offset=skipped))
    return np.concatenate(pieces).reshape(-1, HASH_BYTES)


def _settings(threads: int | None, memory_limit: str | None) -> dict[str, str | int | bool]:
    settings: dict[str, str | int | bool] = {
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "preserve_insertion_order": False,
    }
    if threads is not None:
        settings["threads"] = threads
    if memory_limit is not None:
        settings["memory_limit"] = memory_limit
    return settings


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
        self._keys: dict[tuple[int, int], NDArray[np.intp]] = {}
        self._means: dict[tuple[int, int], scipy.sparse.csr_array] = {}
        for sender, receiver, edge in self._order:
            local = tree.behind(weights, behind, sender, but=edge)
            keys = tree.keys(sender, edge).astype(np.intp)  # as `take` has them, which copies others each time
            behind[receiver, edge] = sum_by_key(keys, local, tree.num_keys(edge))
            self._keys[sender, edge] = keys
            self._means[sender, edge] = _by_key(keys, local / behind[receiver, edge][keys], tree.num_keys(edge))

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
        told: dict[tuple[int, int], Array] = {}
        spread: dict[tuple[int, int], Array] = {}
        for sender, receiver, edge in self._order[: len(self.tree.steps)]:  # towards the root
            mean = self._at(sender, parts[sender], told, but=edge)
            told[receiver, edge] = self._tell(sender, edge, mean)
            around = (mean - told[receiver, edge].take(self._keys[sender, edge])) ** 2
            spread[receiver, edge] = self._tell(sender, edge, self._at(sender, around, spread, but=edge))
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
        return np.asarray(self._means[sender, edge] @ values_n, dtype=np.float64)

    def _at(self, table: int, local_n: Array, told: dict[tuple[int, int], Array], but: int | None = None) -> Array:
        """Return a table's own value and what it was told by its neighbours, all or all but one, row by row."""
        found = local_n
        for edge in self._edges[table]:
            if edge != but:
                found = found + told[table, edge].take(self._keys[table, edge])
        return found

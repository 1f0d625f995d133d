"""Table mapping (Section 3.1.1): hashed join keys in, the row of every table behind every joined row out.

    Client: key columns --hash_keys--> 16-byte keyed hashes, one column for each edge of the join tree
    Server: hashes of all tables --table_mapping (DuckDB)--> p_i(j), counts G_ij; never a feature

Row ids are positions: before anything is sent a client shuffles its rows with `shuffle_order`, so that row k of
what it sends is row k of the table in every later message and tells nothing about the order in its database.

Legend: M tables, N joined rows, n_i rows of table i; p_i in [0, n_i)^N; G_ij = |{g : p_i(g) = j}|, sum_j G_ij = N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa
import scipy.sparse
from numpy.typing import NDArray

from protocols.tablepuppet.faults import EmptyJoinError
from protocols.tablepuppet.plan import Edge, JoinPlan

Rows = NDArray[np.int32]
HASH_BYTES = 16
_BLOCK = 64


@dataclass(frozen=True)
class TableMapping:
    """The join as row numbers: ``rows[i][j]`` is p_i(j), ``num_rows[i]`` is n_i, tables in plan order.

    Joined rows are sorted by the row numbers of the largest table, then of the others in plan order, so the same
    hashes give the same mapping on any machine.
    """

    tables: tuple[str, ...]
    rows: tuple[Rows, ...]
    num_rows: tuple[int, ...]
    duplicate_counts: tuple[NDArray[np.int64], ...]

    @property
    def num_joined(self) -> int:
        """N, the number of joined rows."""
        return len(self.rows[0])

    def num_matched(self) -> tuple[int, ...]:
        """Return for each table how many of its rows join at all (G_ij > 0)."""
        return tuple(int(np.count_nonzero(count)) for count in self.duplicate_counts)

    def reverse(self, index: int) -> tuple[NDArray[np.int64], Rows]:
        """Return the reverse mapping of table `index`: (start_S, joined_N), G_i(j) = joined[start[j]:start[j + 1]]."""
        starts = np.concatenate([[0], np.cumsum(self.duplicate_counts[index])])
        return starts, _order_by(self.rows[index], self.num_rows[index])


def shuffle_order(num_rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the random order in which a client lists its rows for this run."""
    return rng.permutation(num_rows)


def rows_with_keys(keys: pa.Table) -> NDArray[np.bool_]:
    """Return which rows have no NULL in any key column; the others join with nothing and are left out."""
    complete = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        if column.null_count:
            complete &= column.is_valid().to_numpy(zero_copy_only=False)
    return complete


def hash_keys(keys: pa.Table, edge: Edge, table: str, secret: bytes, threads: int | None = None) -> NDArray[np.uint8]:
    """Return HMAC-SHA-256 of each row's key for one edge, cut to 128 bits, computed by DuckDB (shape [n, 16]).

    The message is the edge's name and the key columns, each as text with its length before it, so that neither
    ("a", "bc") and ("ab", "c") nor equal values on two edges give equal hashes. Each distinct key is hashed once.
    `secret` is shared among the clients and unknown to the server. Rows with NULL keys must be gone.
    """
    if keys.num_rows == 0:
        return np.zeros((0, HASH_BYTES), dtype=np.uint8)
    columns = edge.columns(table)
    picked = pa.table({f"k{i}": keys.column(name) for i, name in enumerate(columns)})
    texts = [f"CAST(k{i} AS {_CANONICAL.get(kind, 'VARCHAR')})::VARCHAR" for i, kind in enumerate(edge.kinds)]
    message = " || ".join(["?::VARCHAR", *(f"length({t})::VARCHAR || ':' || {t}" for t in texts)])
    names = ", ".join(f"k{i}" for i in range(len(columns)))
    padded = (secret if len(secret) <= _BLOCK else _sha256(secret)).ljust(_BLOCK, b"\0")
    inner, outer = bytes(b ^ 0x36 for b in padded), bytes(b ^ 0x5C for b in padded)
    digest = f"sha256(?::BLOB || unhex(sha256(?::BLOB || encode({message}))))"
    query = (
        f"WITH hashed AS (SELECT {names}, unhex(left({digest}, {2 * HASH_BYTES})) AS digest"
        f" FROM (SELECT DISTINCT {names} FROM picked))"
        f" SELECT digest FROM (SELECT *, row_number() OVER () AS position FROM picked)"
        f" JOIN hashed USING ({names}) ORDER BY position"
    )
    with duckdb.connect(config=_settings(threads, None)) as connection:
        connection.register("picked", picked)
        found = connection.sql(query, params=[outer, inner, edge.name]).to_arrow_table()
    return _fixed_bytes(found.column("digest"))


def table_mapping(
    plan: JoinPlan,
    hashes: Mapping[str, Sequence[NDArray[np.uint8]]],
    threads: int | None = None,
    memory_limit: str | None = None,
) -> TableMapping:
    """Join the hashed keys of all tables with DuckDB into p_i and G_i (Section 3.1.1, step 2).

    Args:
        plan: the join tree.
        hashes: for each table one [n_i, 16] array for each of `plan.edges_of(table)`, partitions already unioned.
        threads: DuckDB's threads; all cores if None.
        memory_limit: DuckDB's limit, such as "4GB"; it spills to disk beyond.

    Raises:
        EmptyJoinError: no rows join.
    """
    names = tuple(t.name for t in plan.tables)
    if not plan.edges:
        raise EmptyJoinError("join: a table mapping needs at least two tables")
    num_rows = tuple(len(hashes[name][0]) for name in names)
    with duckdb.connect(config=_settings(threads, memory_limit)) as connection:
        for name in names:
            connection.register(f"t{names.index(name)}", _hash_table(hashes[name]))
        found = connection.sql(join_statement(plan)).fetchnumpy()
    rows = [found.pop(f"r{i}") for i in range(len(names))]
    if len(rows[0]) == 0:
        raise EmptyJoinError(f"join: no row of {', '.join(names)} joins (are the keys of the same kind of thing?)")
    rows = canonical_order([np.asarray(r, dtype=np.int32) for r in rows], num_rows)
    counts = tuple(np.bincount(r, minlength=n) for r, n in zip(rows, num_rows, strict=True))
    for array in (*rows, *counts):
        array.setflags(write=False)
    return TableMapping(tables=names, rows=tuple(rows), num_rows=num_rows, duplicate_counts=counts)


def join_statement(plan: JoinPlan) -> str:
    """Return the DuckDB query over t0, t1, ... (columns row, high0, low0, ...) that yields r0, r1, ..."""
    names = [t.name for t in plan.tables]
    conditions = []
    for edge in plan.edges:
        sides = []
        for name in (edge.left, edge.right):
            sides.append((names.index(name), plan.edges_of(name).index(edge)))
        (a, i), (b, k) = sides
        conditions.append(f"t{a}.high{i} = t{b}.high{k} AND t{a}.low{i} = t{b}.low{k}")
    picked = ", ".join(f"t{i}.row AS r{i}" for i in range(len(names)))
    tables = ", ".join(f"t{i}" for i in range(len(names)))
    return f"SELECT {picked} FROM {tables} WHERE {' AND '.join(conditions)}"


def canonical_order(rows: Sequence[Rows], num_rows: Sequence[int]) -> list[Rows]:
    """Sort joined rows by the row numbers of the largest table, then of the others in order, by counting sorts, O(M N)."""
    largest = int(np.argmax(num_rows))
    ranks = [largest, *(i for i in range(len(rows)) if i != largest)]
    ordered = list(rows)
    for i in reversed(ranks):
        order = _order_by(ordered[i], num_rows[i])
        ordered = [r[order] for r in ordered]
    return ordered


def _order_by(values: Rows, size: int) -> Rows:
    """Return the stable order of `values` in [0, size): a counting sort, through the transposition of a sparse matrix."""
    count = len(values)
    one_per_row = scipy.sparse.csr_matrix(
        (np.ones(count, dtype=np.int8), values, np.arange(count + 1, dtype=np.int32)), shape=(count, size)
    )
    order: Rows = one_per_row.tocsc().indices
    return order


def _hash_table(columns: Sequence[NDArray[np.uint8]]) -> pa.Table:
    made: dict[str, NDArray[np.generic]] = {"row": np.arange(len(columns[0]), dtype=np.int32)}
    for i, hashed in enumerate(columns):
        halves = np.ascontiguousarray(hashed).view(np.uint64)
        made[f"high{i}"], made[f"low{i}"] = np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])
    return pa.table(made)


def _fixed_bytes(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    pieces = []
    for chunk in column.chunks:
        fixed = chunk.cast(pa.binary(HASH_BYTES))
        pieces.append(
            np.frombuffer(fixed.buffers()[1], dtype=np.uint8, count=len(fixed) * HASH_BYTES, offset=fixed.offset * HASH_BYTES)
        )
    return np.concatenate(pieces).reshape(-1, HASH_BYTES)


def _sha256(data: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(data).digest()


def _settings(threads: int | None, memory_limit: str | None) -> dict[str, str | int | bool]:
    settings: dict[str, str | int | bool] = {"enable_external_access": False, "preserve_insertion_order": False}
    if threads is not None:
        settings["threads"] = threads
    if memory_limit is not None:
        settings["memory_limit"] = memory_limit
    return settings


_CANONICAL = {"integer": "HUGEINT", "float": "DOUBLE", "boolean": "BOOLEAN", "date": "DATE", "timestamp": "TIMESTAMP"}

"""A query over tables that different organisations hold: who holds what of it, and the rows of one holder.

RelationalData --held_partitions--> Seat: one partition of one table, and where it lies        (the driver)
RelationalQuery, everybody's Schemas --resolve_plan--> JoinPlan                                (everybody alike)
Seat --read_rows--> OwnRows                                                                    (that owner alone)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import sqlglot
from numpy.typing import NDArray
from sqlglot import exp

from fedactors.data.partitions import RelationalData, RelationalPartition, RelationalQuery
from fedactors.data.query import Encoding, JoinPlan, Query, UnknownTableError, VerticalTable, make_plan, parse_query
from fedactors.data.relational import TableSource, in_memory
from fedactors.data.table_columns import rows_with_values
from fedactors.errors import BadInput
from fedactors.network.codec import message, plain


@message(reveals="names and types of the table's columns; no row")
class Schema:
    """The columns of one partition and their kinds."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]


@message(reveals="names and types of all tables' columns; no row")
class Schemas:
    """The schema of each source of the query, by the source's name."""

    by_source: dict[str, Schema]


@plain
class Seat:
    """One partition's owner: the actor's name, table and partition in the query, and its own partition of the data."""

    name: str
    table: str
    index: int
    """Of the partition, in the order of the query's."""
    own: RelationalPartition


def held_query(stated_query: RelationalQuery) -> Query:
    """Return the query over one source for each partition that somebody holds.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
    """
    query = parse_query(stated_query.sql)
    sources: dict[str, list[str]] = {}
    for source in {source for parts in query.tables.values() for source, _ in parts}:
        held = [(t, p) for _, t, p in stated_query.holders if t == source]
        held = held or [(t, p) for _, t, p in stated_query.holders if t.lower() == source.lower()]
        if not held:
            known = ", ".join(stated_query.tables) or "none"
            raise UnknownTableError(f"sql: unknown table {source!r} (known: {known})")
        held.sort(key=lambda one: one[1])
        sources[source] = [_source_name(stated_query, table, partition) for table, partition in held]
    return query.held_in(sources)


def held_partitions(data: RelationalData) -> list[tuple[str, int, RelationalPartition]]:
    """Return (table, number of the partition, partition), tables and partitions in the order of the query's.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
    """
    by_source = {_source_name(data.query, p.table, p.partition): p for p in data.partitions}
    tables = held_query(data.query).tables
    return [(table, i, by_source[source]) for table, parts in tables.items() for i, (source, _) in enumerate(parts)]


def resolve_plan(stated_query: RelationalQuery, schemas: Schemas) -> JoinPlan:
    """Return what the query means over the columns of all sources; see `query.make_plan`."""
    kinds = {name: dict(zip(s.columns, s.kinds, strict=True)) for name, s in schemas.by_source.items()}
    encodings: dict[str, Encoding] = dict.fromkeys(stated_query.ruled, "ruled")
    encodings |= dict.fromkeys(stated_query.categorical, "one_hot")
    others: Encoding = "ruled" if stated_query.is_new else "numeric"
    return make_plan(held_query(stated_query), kinds, stated_query.label, encodings, others)


def meaning_of(plan: JoinPlan, table: VerticalTable, query: RelationalQuery, schemas: Schemas) -> dict[str, Any]:
    """Return what a query means for one of its tables, as plain values: rows to predict must have the same."""
    label = plan.label_table
    kinds = schemas.by_source[label.partitions[0].source]
    joins = [" = ".join(sorted((f"{e.left}.{a}", f"{e.right}.{b}"))) for e in plan.edges for a, b in e.keys]
    return {
        "table": table.name,
        "tables": [one.name for one in plan.tables],
        "features": [[one.column, one.kind, one.encoding] for one in table.features],
        "joins": sorted(joins),
        "label": f"{label.name}.{label.label}",
        "label_column": label.label if table == label else None,
        "label_kind": kinds.kinds[kinds.columns.index(str(label.label))],
        "task": query.task,
        "num_classes": query.num_classes,
    }


def check_meaning(trained: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a query of rows to predict means for a table what the query of training meant.

    Raises:
        BadInput: other features, joins, label or task; names both.
    """

    def told(meaning: Mapping[str, Any], key: str) -> str:
        found = meaning[key]
        if key == "features":
            found = [f"{column} (categories)" if how == "one_hot" else column for column, _, how in found]
        return ", ".join(map(str, found)) if isinstance(found, list) else str(found)

    for key, field in (("features", f"features of {now['table']}"), ("joins", "joins"), ("label", "label"),
                       ("task", "task.type"), ("num_classes", "task.classes")):  # fmt: skip
        if told(trained, key) != told(now, key):
            raise BadInput(
                f"{field}: {told(now, key) or 'none'} is not allowed: the model was trained on "
                f"{told(trained, key) or 'none'}"
            )


def _source_name(query: RelationalQuery, table: str, partition: int) -> str:
    return table if sum(t == table for _, t, _ in query.holders) == 1 else f"{table}#{partition}"


# --- a holder's own rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OwnRows:
    """The rows of one client in the order of this run."""

    data: pa.Table
    num_null: int
    """Rows left out because a key was NULL, or a value that they need."""
    fingerprint: bytes
    """SHA-256 of the rows, whatever their order in the database."""


def read_rows(
    source: TableSource, table: VerticalTable, index: int, order: np.random.Generator, needed: Sequence[str] = ()
) -> OwnRows:
    """Read the columns and rows that the plan needs from the client's own database, and shuffle them.

    They are ordered by their content first, keys before features: a database may give them in another order each
    time, and row k must be the same row after a resume. Rows without a value in the columns `needed` are left out as
    those without a key are.
    """
    found = source.load(table.needed_columns(), table.partitions[index].where)
    kept = rows_with_keys(found.select(table.keys)) if table.keys else np.ones(found.num_rows, dtype=bool)
    kept &= rows_with_values(found.select(list(needed)))
    data = _ordered(found if kept.all() else found.filter(pa.array(kept)))
    fingerprint = hashlib.sha256(in_memory(data).rows).digest()
    shuffled = data.take(pa.array(order.permutation(data.num_rows)))
    return OwnRows(shuffled, int(np.count_nonzero(~kept)), fingerprint)


def without_label(table: VerticalTable) -> VerticalTable:
    """Return a table of rows to predict: without its label, and without what the query asks of the label."""
    if table.label is None:
        return table

    def kept(condition: str) -> bool:
        columns = sqlglot.parse_one(condition, dialect="duckdb").find_all(exp.Column)
        return all(column.name != table.label for column in columns)

    parts = tuple(replace(part, where=tuple(filter(kept, part.where))) for part in table.partitions)
    return replace(table, label=None, partitions=parts)


@dataclass(frozen=True)
class RowsToPredict:
    """The rows of one holder that are to be predicted."""

    whole: pa.Table
    """All of them, in the order of their source."""
    order: NDArray[np.int64]
    """The row of `whole` behind each row of this prediction, in which rows without a key have no part."""


def read_rows_to_predict(
    source: TableSource, table: VerticalTable, index: int, ids: Sequence[str], order: np.random.Generator
) -> RowsToPredict:
    """Read what the plan needs, and the columns that rows are called by, and draw the order of this prediction.

    Raises:
        BadInput: a column is not there.
    """
    wanted = tuple(dict.fromkeys([*table.needed_columns(), *ids]))
    whole = source.load(wanted, table.partitions[index].where)
    kept = rows_with_keys(whole.select(table.keys)) if table.keys else np.ones(whole.num_rows, dtype=bool)
    return RowsToPredict(whole, order.permutation(np.flatnonzero(kept)))


def rows_with_keys(keys: pa.Table) -> NDArray[np.bool_]:
    """Return which rows have no NULL in any key column; the others join with nothing and are left out."""
    complete = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        if column.null_count:
            complete &= column.is_valid().to_numpy(zero_copy_only=False)
    return complete


def _ordered(data: pa.Table) -> pa.Table:
    if not data.num_columns:
        return data
    columns = {f"c{i}": _sortable(column) for i, column in enumerate(data.columns)}
    places = pyarrow.compute.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return data.take(places).combine_chunks()


def _sortable(column: pa.ChunkedArray) -> Any:
    """Return a column that Arrow can sort: itself, or what it holds as texts (categories, intervals, lists)."""
    kind, types = column.type, pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_string(kind):
        return column
    if types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return column
    return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())

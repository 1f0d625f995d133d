"""A query over tables of different organisations: who holds what of it, and the rows of one owner.

    RelationalData --partitions_of--> TableOwner: one partition of one table, and where it lies     (the driver)
    RelationalQuery, everybody's Schemas --resolve_plan--> JoinPlan                                   (everybody alike)
    TableOwner --read_rows--> UserRows                                                                (that owner alone)
    rules of [parties.NAME.columns] --fit_table--> Preprocessing, in the owner's part of the model    (that owner alone)

Everybody knows which columns have rules, for the query is resolved with them; what they say and measure only the owner
knows. A row that misses a value which its rule drops it for is left out before keys are hashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import sqlglot
from numpy.typing import NDArray
from sqlglot import exp

from fedactors.data.columns import ColumnRule, Preprocessing, encode, fit, resolve_rules
from fedactors.data.databases import FINGERPRINT_ROWS, TableSource, fingerprint
from fedactors.data.layouts.vertical import RelationalData, RelationalPartition, RelationalQuery
from fedactors.data.party_rows import measured_fill, measured_scale
from fedactors.data.query import (
    Encoding,
    Feature,
    JoinPlan,
    LabelError,
    Query,
    UnknownTableError,
    VerticalTable,
    make_plan,
    parse_query,
)
from fedactors.data.values import Column, IdRule, compared_names, is_large, mapped_table
from fedactors.errors import BadInput
from fedactors.messages.codec import message, wire_type
from fedactors.validation import shown


@message(reveals="names and types of the table's columns; no row")
class Schema:
    """The columns of one partition and their kinds."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]


@message(reveals="names and types of all tables' columns; no row")
class Schemas:
    """The schema of each source of the query, by the source's name."""

    by_source: dict[str, Schema]


@wire_type
class TableOwner:
    """One partition's owner: the actor's name, table and partition in the query, and its own partition of the data."""

    name: str
    table: str
    index: int
    """Of the partition, in the order of the query's."""
    partition: RelationalPartition


def query_over_partitions(stated_query: RelationalQuery) -> Query:
    """Return the query over one source for each partition that somebody holds.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
    """
    query = parse_query(stated_query.sql)
    sources: dict[str, list[str]] = {}
    for source in dict.fromkeys(source for parts in query.tables.values() for source, _ in parts):
        held = [(t, p) for _, t, p in stated_query.holders if t == source]
        held = held or [(t, p) for _, t, p in stated_query.holders if t.lower() == source.lower()]
        if not held:
            known = ", ".join(stated_query.tables) or "none"
            raise UnknownTableError(f"sql: unknown table {source!r} (known: {known})")
        held.sort(key=lambda one: one[1])
        sources[source] = [_source_name(stated_query, table, partition) for table, partition in held]
    return query.over(sources)


def label_parties(stated_query: RelationalQuery) -> tuple[str, ...]:
    """Return who holds the label: what the label and the query say of it, whatever parties say of their columns.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
        LabelError: the label does not name its table, so that whose column it is follows from all parties' columns.
    """
    tables, written = query_over_partitions(stated_query).tables, stated_query.label
    table = written.rpartition(".")[0].lower()
    found = next((partitions for name, partitions in tables.items() if name.lower() == table), None)
    if found is None:
        known = ", ".join(tables)
        raise LabelError(f"label: {shown(written)} is not allowed: give TABLE.COLUMN, of the query's tables {known}")
    held = {_source_name(stated_query, table, number): party for party, table, number in stated_query.holders}
    return tuple(dict.fromkeys(held[source] for source, _ in found))


def partitions_of(data: RelationalData) -> list[tuple[str, int, RelationalPartition]]:
    """Return (table, number of the partition, partition), tables and partitions in the order of the query's.

    Raises:
        QueryError: the SQL is at fault, or names a table that nobody holds.
    """
    by_source = {_source_name(data.query, p.table, p.partition): p for p in data.partitions}
    tables = query_over_partitions(data.query).tables
    return [(table, i, by_source[source]) for table, parts in tables.items() for i, (source, _) in enumerate(parts)]


def resolve_plan(stated_query: RelationalQuery, schemas: Schemas) -> JoinPlan:
    """Return what the query means over the columns of all sources; see `query.make_plan`."""
    kinds = {name: dict(zip(s.columns, s.kinds, strict=True)) for name, s in schemas.by_source.items()}
    query = query_over_partitions(stated_query)
    encodings: dict[str | tuple[str, str], Encoding] = dict.fromkeys(_ruled(stated_query, query, kinds), "ruled")
    encodings |= dict.fromkeys(stated_query.categorical, "one_hot")
    others: Encoding = "ruled" if stated_query.is_new else "numeric"
    return make_plan(query, kinds, stated_query.label, encodings, others)


def _ruled(
    stated_query: RelationalQuery, query: Query, kinds: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the columns, by the names that the query gives their tables, of which their owners have rules."""
    ruled: dict[str, list[tuple[str, ColumnRule]]] = {}
    for written in stated_query.ruled:
        table = next(table for table in stated_query.tables if written.startswith(f"{table}."))
        ruled.setdefault(table, []).append((written.removeprefix(f"{table}."), ColumnRule()))
    for name, parts in query.tables.items():
        for source, _ in parts:
            rules = ruled.get(source, ruled.get(source.rpartition("#")[0], []))
            yield from ((name, column) for column in resolve_rules(rules, tuple(kinds[source])))


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
        "classes": list(query.classes),
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


# --- an owner's rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UserRows:
    """The rows of one client in the order of this run."""

    data: pa.Table
    num_null: int
    """Rows left out because a key was NULL, or a value that they need."""
    fingerprint: bytes
    """SHA-256 of the rows, whatever their order in the database."""


def read_rows(
    source: TableSource, table: VerticalTable, index: int, order: np.random.Generator, needed: Sequence[str] = ()
) -> UserRows:
    """Read the columns and rows that the plan needs from the client's own database, and shuffle them.

    They are ordered by their content first, keys before features: a database may give them in another order each
    time, and row k must be the same row after a resume. Rows without a value in the columns `needed` are left out as
    those without a key are.
    """
    found = source.load(
        table.needed_columns(), table.partitions[index].where, table.computed, table.called_by, table.exact
    )
    found = found.select(list(dict.fromkeys([*table.keys, *found.column_names])))
    kept = rows_with_keys(found.select(table.keys)) if table.keys else np.ones(found.num_rows, dtype=bool)
    kept &= rows_with_values(found.select(list(needed)))
    data = found if kept.all() else _taken(found, np.flatnonzero(kept))
    ordered = _order_of(data)
    found = fingerprint(data, ordered)
    shuffled = _taken(data, ordered[order.permutation(data.num_rows)])
    return UserRows(shuffled, int(np.count_nonzero(~kept)), found)


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
    whole = source.load(wanted, table.partitions[index].where, table.computed, table.called_by, table.exact)
    kept = rows_with_keys(whole.select(table.keys)) if table.keys else np.ones(whole.num_rows, dtype=bool)
    return RowsToPredict(whole, order.permutation(np.flatnonzero(kept)))


def rows_with_keys(keys: pa.Table) -> NDArray[np.bool_]:
    """Return which rows have no NULL in any key column; the others join with nothing and are left out."""
    complete = np.ones(keys.num_rows, dtype=bool)
    for column in keys.columns:
        has_nan = pa.types.is_floating(column.type)  # which is a missing value everywhere here
        if column.null_count or has_nan:
            complete &= ~pyarrow.compute.is_null(column, nan_is_null=has_nan).to_numpy(zero_copy_only=False)
    return complete


def _order_of(data: pa.Table) -> NDArray[np.integer[Any]]:
    """Return the rows in the order of their content."""
    numbers = np.int32 if data.num_rows <= np.iinfo(np.int32).max else np.int64
    if not data.num_columns:
        return np.arange(data.num_rows, dtype=numbers)
    columns = {f"c{i}": _sortable(column) for i, column in enumerate(data.columns)}
    indices = pyarrow.compute.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
    return np.asarray(indices.to_numpy()).astype(numbers)


def _taken(data: pa.Table, rows_n: NDArray[np.integer[Any]]) -> pa.Table:
    """Return some rows of a table: block by block into mapped files where they are large."""
    if not is_large(data.nbytes) or not data.num_columns:
        return data.take(pa.array(rows_n)).combine_chunks()
    pieces = (
        (number, column.take(pa.array(rows_n[first : first + FINGERPRINT_ROWS])).combine_chunks())
        for number, column in enumerate(data.columns)
        for first in range(0, len(rows_n), FINGERPRINT_ROWS)
    )
    return mapped_table(data.schema, len(rows_n), pieces)


def _sortable(column: pa.ChunkedArray) -> Any:
    """Return a column that Arrow can sort: itself, or what it holds as texts (categories, intervals, lists)."""
    kind, types = column.type, pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return column
    if types.is_string(kind) or types.is_large_string(kind):
        return column
    if types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind) or types.is_timestamp(kind):
        return column
    return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.string())


# --- an owner's columns -----------------------------------------------------------------------------------------------


def rules_of_features(features: Sequence[Feature], local: RelationalPartition) -> dict[str, ColumnRule]:
    """Return the rule of each feature: the owner's, else categories or numbers, as the query has them.

    Raises:
        BadInput: the owner has a rule for a column that is no feature.
    """
    names = [feature.column for feature in features]
    given = resolve_rules(local.rules, names)
    if unknown := [one for one, rule in local.rules if not resolve_rules([(one, rule)], names)]:
        raise BadInput(
            f"parties.{local.party}.columns: {min(unknown)!r} is not allowed: the query selects "
            f"{', '.join(names) or 'no feature'} of {local.table}"
        )
    usual = {"one_hot": ColumnRule(type="categorical")}
    return {one.column: given.get(one.column, usual.get(one.encoding, ColumnRule())) for one in features}


def dropped_for(rules: Mapping[str, ColumnRule]) -> tuple[str, ...]:
    """Return the columns for whose missing values a row is left out."""
    return tuple(name for name, rule in rules.items() if rule.missing == "drop")


def compared_keys(rows: pa.Table, keys: Sequence[str], rules: Sequence[IdRule], where: str) -> pa.Table:
    """Return the keys of rows as they find those of other tables: texts without what does not count in them.

    Args:
        rows: of one owner.
        keys: its key columns.
        rules: the owner's, as of ids; none: texts are compared as they are.
        where: their place in the description, for errors.

    Raises:
        BadInput: no key is a text.
    """
    found = rows.select(list(keys))
    if not rules:
        return found
    texts = [one.name for one in found.schema if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)]
    if not texts:
        raise BadInput(f"{where}: {list(rules)} is not allowed: no key of {', '.join(keys)} is a text")
    for name in texts:
        made = pa.chunked_array([compared_names(found.column(name), rules)], pa.string())
        found = found.set_column(found.column_names.index(name), name, made)
    return found


def rows_with_values(columns: pa.Table) -> np.ndarray:
    """Return which rows have a value in every column (n); NaN is none."""
    complete = np.ones(columns.num_rows, dtype=bool)
    for column in columns.columns:
        complete &= ~pyarrow.compute.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False)
    return complete


def column_of(rows: pa.Table, name: str, rule: ColumnRule) -> Column:
    """Return a column as its rule reads it."""
    column = rows.column(name)
    if rule.is_category and pa.types.is_boolean(column.type):  # in SQL's words
        column = column.cast(pa.string())
    return Column(name, column)


def fit_table(
    columns: Mapping[str, Column], rules: Mapping[str, ColumnRule], where: str, scales: bool
) -> Preprocessing:
    """Return what turns a whole table into numbers in double precision, measured on its rows.

    Args:
        columns: of the table, in the order of the features.
        rules: of each.
        where: owner and table, for errors.
        scales: whether numbers are standardised at all.

    Raises:
        BadInput: values that their rules do not allow.
    """
    fitted = fit(columns, rules, where, np.float64)
    values = encode(columns, fitted, where, new=False, dtype=np.float64).features
    fills = tuple(how for one in fitted for how in one.fills)
    keeps = np.asarray([not scales or kept for one in fitted for kept in one.keeps_scale], np.bool_)
    names = tuple(name for one in fitted for name in one.names)
    for index, how in enumerate(fills):
        bad = np.flatnonzero(np.isinf(values[:, index]) if how else ~np.isfinite(values[:, index]))
        if len(bad):
            raise BadInput(
                f"{where}: {names[index]} has no finite number in {len(bad)} of {len(values)} rows; give a rule, such "
                f'as {names[index]} = {{ missing = "median" }}, or filter them in the query'
            )
    fill = measured_fill(values, fills)
    mean, deviation = measured_scale(values, keeps, fill)
    return Preprocessing(columns=fitted, feature_names=names, fill=fill, mean=mean, deviation=deviation)

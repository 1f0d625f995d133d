"""The training set as a value: what a query says (`Query`) and what it means over known schemas (`JoinPlan`).

`sql.parse_query` turns SQL text into a `Query`; a `Query` written in Python is the equivalent. `make_plan`
resolves its names, checks it, and returns the plan that every party of a run shares:

    SQL text --parse_query--> Query --make_plan(schemas, label)--> JoinPlan
    Query(tables=(Table(...), ...), joins=(On(...), ...))  ---^

Kinds of columns: integer, float, decimal, boolean, text, date, timestamp, other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from protocols.tablepuppet.faults import (
    AmbiguousColumnError,
    CyclicJoinError,
    DisconnectedJoinError,
    FeatureTypeError,
    KeyTypeError,
    LabelError,
    QueryError,
    SchemaMismatchError,
    UnknownColumnError,
    UnknownTableError,
    UnsupportedQueryError,
)

Schema = Mapping[str, str]
Tree = Any
Encoding = Literal["numeric", "one_hot"]
NUMERIC_KINDS = ("integer", "float", "decimal", "boolean")


@dataclass(frozen=True)
class Partition:
    """One horizontal partition: a source's name, the rows kept (``where``) and the columns kept (empty: all)."""

    source: str
    where: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One vertical table of a query: its alias and its horizontal partitions."""

    name: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True)
class Column:
    """A column as written, with or without its table."""

    name: str
    table: str | None = None

    def __str__(self) -> str:
        return f"{self.table}.{self.name}" if self.table else self.name


@dataclass(frozen=True)
class On:
    """The join condition ``left = right`` of two columns."""

    left: Column
    right: Column


@dataclass(frozen=True)
class Query:
    """A conjunctive query over unions of partitions; ``select`` may hold ``*`` and ``t.*`` as the name ``*``."""

    tables: tuple[Table, ...]
    joins: tuple[On, ...]
    select: tuple[Column, ...] = (Column("*"),)
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Feature:
    """A feature column of one table and how it becomes numbers."""

    column: str
    kind: str
    encoding: Encoding = "numeric"


@dataclass(frozen=True)
class Edge:
    """An edge of the join tree: columns of ``left`` equal to columns of ``right``, pair by pair."""

    left: str
    right: str
    keys: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]

    @property
    def name(self) -> str:
        """The edge in words, which also separates the key hashes of different edges."""
        return " and ".join(f"{self.left}.{a} = {self.right}.{b}" for a, b in self.keys)

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the key columns on the side of `table`."""
        return tuple(pair[0] if table == self.left else pair[1] for pair in self.keys)


@dataclass(frozen=True)
class VerticalTable:
    """One vertical table of the plan with the roles of its columns; filters are SQL over its own columns."""

    name: str
    partitions: tuple[Partition, ...]
    features: tuple[Feature, ...]
    keys: tuple[str, ...]
    label: str | None = None

    def needed_columns(self) -> tuple[str, ...]:
        """Return every column that a client must read, each once."""
        wanted = [*self.keys, *(f.column for f in self.features)] + ([self.label] if self.label else [])
        return tuple(dict.fromkeys(wanted))


@dataclass(frozen=True)
class JoinPlan:
    """The resolved training set: vertical tables, and the edges of the join tree."""

    tables: tuple[VerticalTable, ...]
    edges: tuple[Edge, ...]

    def table(self, name: str) -> VerticalTable:
        """Return the table called `name`."""
        return next(t for t in self.tables if t.name == name)

    def edges_of(self, name: str) -> tuple[Edge, ...]:
        """Return the edges that touch table `name`, in plan order."""
        return tuple(e for e in self.edges if name in (e.left, e.right))

    @property
    def label_table(self) -> VerticalTable:
        """The table that owns the label."""
        return next(t for t in self.tables if t.label is not None)


def make_plan(
    query: Query, schemas: Mapping[str, Schema], label: str, encodings: Mapping[str, Encoding] | None = None
) -> JoinPlan:
    """Resolve `query` against the schemas of its sources (source -> column -> kind).

    `label` and the keys of `encodings` are written ``column`` or ``table.column``. Columns that a ``*`` brings
    in are features unless they are join keys or the label; a key named explicitly is a feature too.

    Raises:
        QueryError: one of its subclasses, naming the table or column concerned.
    """
    columns = {table.name: _table_schema(table, schemas) for table in query.tables}
    if len(columns) != len(query.tables):
        names = [t.name for t in query.tables]
        raise QueryError(f"sql: table name {next(n for n in names if names.count(n) > 1)!r} is used twice")
    edges = _edges(query, columns)
    filters = _local_filters(query.where, columns)
    label_table, label_column = _find_label(label, columns)
    encoded = {_resolve(_column(text), columns): way for text, way in (encodings or {}).items()}
    keys: dict[str, list[str]] = {name: [] for name in columns}
    for edge in edges:
        keys[edge.left] += edge.columns(edge.left)
        keys[edge.right] += edge.columns(edge.right)
    picked = _selected(query.select, columns, keys)
    tables = []
    for table in query.tables:
        own = [c for t, c in picked if t == table.name and (t, c) != (label_table, label_column)]
        tables.append(
            VerticalTable(
                name=table.name,
                partitions=tuple(
                    replace(
                        p,
                        where=tuple(
                            canonical_filter(w, columns[table.name], table.name)
                            for w in (*p.where, *filters[table.name])
                        ),
                    )
                    for p in table.partitions
                ),
                features=tuple(_feature(table.name, c, columns[table.name][c], encoded) for c in dict.fromkeys(own)),
                keys=tuple(dict.fromkeys(keys[table.name])),
                label=label_column if table.name == label_table else None,
            )
        )
    return JoinPlan(tables=tuple(tables), edges=edges)


ALLOWED_IN_FILTER = (
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.Paren, exp.In, exp.Between,
    exp.Is, exp.Like, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Column, exp.Identifier, exp.Literal,
    exp.Boolean, exp.Null, exp.Cast, exp.DataType,
)  # fmt: skip


def canonical_filter(text: str, schema: Schema, table: str) -> str:
    """Return a filter as DuckDB SQL with every column unqualified and quoted; refuse anything but plain comparisons.

    Raises:
        UnsupportedQueryError: the filter calls a function or holds a subquery.
        UnknownColumnError: a column is not in `schema`.
    """
    tree = _parse_condition(text)
    for node in tree.walk():
        if not isinstance(node, ALLOWED_IN_FILTER):
            raise UnsupportedQueryError(f"sql: {node.sql()!r} in the filter {text!r} is not supported ({node.key})")

    def unqualified(node: Tree) -> Tree:
        if not isinstance(node, exp.Column):
            return node
        name = match_name(node.name, schema)
        if name is None or (node.table and node.table.lower() != table.lower()):
            raise UnknownColumnError(f"sql: unknown column {node.sql()!r} in the filter {text!r} of table {table}")
        return exp.column(exp.to_identifier(name, quoted=True))

    return str(tree.transform(unqualified).sql(dialect="duckdb", identify=True))


def match_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name equal to `name`, or the only one equal up to upper and lower case."""
    names = list(known)
    if name in names:
        return name
    close = [k for k in names if k.lower() == name.lower()]
    return close[0] if len(close) == 1 else None


def _parse_condition(text: str) -> Tree:
    try:
        return sqlglot.parse_one(text, dialect="duckdb", into=exp.Condition)
    except SqlglotError as error:
        raise QueryError(f"sql: the filter {text!r} does not parse: {str(error).splitlines()[0]}") from None


def _column(text: str) -> Column:
    table, dot, name = text.rpartition(".")
    return Column(name, table if dot else None)


def _table_schema(table: Table, schemas: Mapping[str, Schema]) -> dict[str, str]:
    if not table.partitions:
        raise QueryError(f"sql: table {table.name!r} has no partition")
    found = []
    for partition in table.partitions:
        if partition.source not in schemas:
            raise UnknownTableError(
                f"sql: unknown table {partition.source!r} (known: {', '.join(sorted(schemas)) or 'none'})"
            )
        schema = schemas[partition.source]
        kept = {}
        for name in partition.columns or tuple(schema):
            match = match_name(name, schema)
            if match is None:
                raise UnknownColumnError(f"sql: unknown column {name!r} of table {partition.source!r}")
            kept[match] = schema[match]
        found.append((partition.source, kept))
    for (first, one), (second, other) in pairwise(found):
        if one != other:
            different = sorted(set(one.items()) ^ set(other.items()))[0][0]
            raise SchemaMismatchError(
                f"sql: partitions {first!r} and {second!r} of table {table.name!r} differ in column {different!r}"
                f" ({one.get(different, 'absent')} and {other.get(different, 'absent')})"
            )
    return found[0][1]


def _resolve(column: Column, tables: Mapping[str, Schema]) -> tuple[str, str]:
    if column.table is not None:
        table = match_name(column.table, tables)
        if table is None:
            raise UnknownTableError(f"sql: unknown table {column.table!r} in {column} (known: {', '.join(tables)})")
        name = match_name(column.name, tables[table])
        if name is None:
            raise UnknownColumnError(f"sql: table {table!r} has no column {column.name!r}")
        return table, name
    owners = [(t, n) for t, schema in tables.items() if (n := match_name(column.name, schema)) is not None]
    if not owners:
        raise UnknownColumnError(f"sql: unknown column {column.name!r}")
    if len(owners) > 1:
        raise AmbiguousColumnError(
            f"sql: column {column.name!r} is in {' and '.join(t for t, _ in owners)}; qualify it"
        )
    return owners[0]


def _edges(query: Query, tables: Mapping[str, Schema]) -> tuple[Edge, ...]:
    pairs: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for on in query.joins:
        (left, a), (right, b) = _resolve(on.left, tables), _resolve(on.right, tables)
        if left == right:
            raise UnsupportedQueryError(f"sql: the join condition {on.left} = {on.right} stays within table {left!r}")
        if tables[left][a] != tables[right][b]:
            raise KeyTypeError(
                f"sql: join keys of different types: {left}.{a} is {tables[left][a]}, {right}.{b} is {tables[right][b]}"
            )
        if (right, left) in pairs:
            left, a, right, b = right, b, left, a
        found = pairs.setdefault((left, right), [])
        if (a, b) not in found:
            found.append((a, b))
    _require_tree(list(tables), list(pairs))
    return tuple(
        Edge(left=left, right=right, keys=tuple(keys), kinds=tuple(tables[left][a] for a, _ in keys))
        for (left, right), keys in pairs.items()
    )


def _require_tree(tables: Sequence[str], pairs: Sequence[tuple[str, str]]) -> None:
    root = {name: name for name in tables}

    def find(name: str) -> str:
        while root[name] != name:
            name = root[name]
        return name

    for left, right in pairs:
        if find(left) == find(right):
            raise CyclicJoinError(f"sql: the join condition between {left!r} and {right!r} closes a cycle")
        root[find(left)] = find(right)
    apart = [name for name in tables if find(name) != find(tables[0])]
    if apart:
        raise DisconnectedJoinError(f"sql: table {apart[0]!r} is not joined with {tables[0]!r}")


def _local_filters(where: Sequence[str], tables: Mapping[str, Schema]) -> dict[str, list[str]]:
    filters: dict[str, list[str]] = {name: [] for name in tables}
    for text in where:
        tree = _parse_condition(text)
        owners = {_resolve(Column(c.name, c.table or None), tables)[0] for c in tree.find_all(exp.Column)}
        if len(owners) != 1:
            what = " and ".join(sorted(owners)) or "no table"
            raise UnsupportedQueryError(f"sql: the filter {text!r} must concern exactly one table, not {what}")
        filters[owners.pop()].append(text)
    return filters


def _find_label(label: str, tables: Mapping[str, Schema]) -> tuple[str, str]:
    try:
        table, column = _resolve(_column(label), tables)
    except AmbiguousColumnError as error:
        raise LabelError(f"label: {str(error).removeprefix('sql: ')}") from None
    except QueryError:
        raise LabelError(f"label: {label!r} is in none of the tables {', '.join(tables)}") from None
    return table, column


def _selected(
    select: Sequence[Column], tables: Mapping[str, Schema], keys: Mapping[str, Sequence[str]]
) -> list[tuple[str, str]]:
    picked: list[tuple[str, str]] = []
    for column in select:
        if column.name != "*":
            picked.append(_resolve(column, tables))
            continue
        owners = list(tables)
        if column.table is not None:
            owner = match_name(column.table, tables)
            if owner is None:
                raise UnknownTableError(f"sql: unknown table {column.table!r} in {column}")
            owners = [owner]
        picked += [(t, c) for t in owners for c in tables[t] if c not in keys[t]]
    return picked


def _feature(table: str, column: str, kind: str, encodings: Mapping[tuple[str, str], Encoding]) -> Feature:
    encoding = encodings.get((table, column), "numeric")
    if encoding == "numeric" and kind not in NUMERIC_KINDS:
        raise FeatureTypeError(
            f"features: {table}.{column} is {kind}, not a number; give it the encoding one_hot or leave it out"
        )
    return Feature(column=column, kind=kind, encoding=encoding)

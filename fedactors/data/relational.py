"""Tables read in place: DuckDB and SQLite files, Parquet, CSV, PostgreSQL, named data sets, and Arrow in memory.

Projection and filter go to where the table lies, so that an organisation reads only the columns the query names.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedactors.errors import BadInput

TableKind = Literal["duckdb", "sqlite", "parquet", "csv", "postgres", "named"]
_BATCH = 100_000


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """Where one partition of one table lies; small, so that the organisation's actor reads it itself."""

    kind: TableKind
    where: str
    """Path of the file, name of the data set, or ``env:NAME`` (PostgreSQL: the variable that holds the address)."""
    table: str
    partition: int = 0
    num_partitions: int = 1
    """Named data sets are dealt by row number: partition i has rows i, i + num_partitions, ..."""

    def load(self, columns: Sequence[str] | None = None, where: str | None = None) -> Any:
        """Read a `pyarrow.Table` of the columns named, of the rows that the SQL condition `where` keeps.

        Raises:
            BadInput: no such file, table or column, or a condition that the database refuses.
            DataMissing: a file of a named data set is not on this machine.
        """
        query = _select(columns, where)
        try:
            if self.kind == "sqlite":
                return self._sqlite(query)
            if self.kind == "postgres":
                return self._postgres(query)
            return self._duckdb(query)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("duckdb", "_duckdb", "sqlite3", "psycopg", "pyarrow"):
                raise
            raise BadInput(f"{self.table}: {self.shown}: {str(error).splitlines()[0]}") from error

    @property
    def shown(self) -> str:
        """The place, as messages name it: never an address with a password."""
        return f"{self.kind} {self.where}"

    def _duckdb(self, query: str) -> Any:
        import duckdb

        if self.kind == "named":
            return self._named(query)
        self._need_file()
        if self.kind == "duckdb":
            with duckdb.connect(self.where, read_only=True) as connection:
                return connection.sql(query.format(_quoted(self.table))).to_arrow_table()
        reader = "read_parquet" if self.kind == "parquet" else "read_csv"
        path = self.where.replace("'", "''")
        with duckdb.connect() as connection:
            return connection.sql(query.format(f"{reader}('{path}')")).to_arrow_table()

    def _named(self, query: str) -> Any:
        import duckdb

        from fedactors.data.tables import load_tables

        tables = load_tables(self.where)
        if self.table not in tables:
            raise BadInput(f"table: {self.table!r} is not allowed: {self.where} has {', '.join(tables)}")
        rows = tables[self.table]
        if self.num_partitions > 1:
            rows = rows.take(np.arange(self.partition, rows.num_rows, self.num_partitions))
        with duckdb.connect() as connection:
            connection.register("named_rows", rows)
            return connection.sql(query.format("named_rows")).to_arrow_table()

    def _sqlite(self, query: str) -> Any:
        self._need_file()
        connection = sqlite3.connect(f"file:{Path(self.where).as_posix()}?mode=ro", uri=True)
        try:
            return _drain(connection.execute(query.format(_quoted(self.table))))
        finally:
            connection.close()

    def _postgres(self, query: str) -> Any:
        variable = self.where.removeprefix("env:")
        address = os.environ.get(variable) if self.where.startswith("env:") else None
        if not address:
            raise BadInput(
                f"{self.table}: where: {self.where!r} is not allowed: give env:NAME of a variable that is set"
            )
        try:
            psycopg = importlib.import_module("psycopg")
        except ImportError:
            raise BadInput(f"{self.table}: reading PostgreSQL needs the extra fedactors[postgres]") from None
        with psycopg.connect(address, connect_timeout=15) as connection, connection.cursor() as cursor:
            return _drain(cursor.execute(query.format(_quoted(self.table)).encode()))

    def _need_file(self) -> None:
        if not Path(self.where).is_file():
            raise BadInput(f"{self.table}: where: {self.where} is not a file")


def named_tables(sql: str) -> tuple[str, ...]:
    """Return the names of the tables that a query reads, each once, in the order in which they occur.

    Raises:
        BadInput: text that is no SQL query, or one that reads no table.
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(sql, dialect="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise BadInput(f"sql: not a query: {str(error).splitlines()[0]}") from error
    names = tuple(dict.fromkeys(table.name for table in tree.find_all(exp.Table, bfs=False)))
    if not names:
        raise BadInput(f"sql: {sql!r} reads no table")
    return names


def _select(columns: Sequence[str] | None, where: str | None) -> str:
    """Return the query with ``{}`` where the table goes; braces in names and conditions are doubled."""
    chosen = "*" if columns is None else ", ".join(_quoted(column) for column in columns)
    condition = "" if where is None else f" WHERE {where}"
    return chosen.replace("{", "{{").replace("}", "}}").join(("SELECT ", " FROM {}")) + condition.replace(
        "{", "{{"
    ).replace("}", "}}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _drain(cursor: Any) -> Any:
    """Turn a cursor of the Python database interface into an Arrow table, batch by batch."""
    import pyarrow as pa

    names = [column[0] for column in cursor.description]
    batches = []
    while rows := cursor.fetchmany(_BATCH):
        batches.append(pa.table([list(column) for column in zip(*rows, strict=True)], names=names))
    if not batches:
        return pa.table({name: pa.array([], pa.null()) for name in names})
    return pa.concat_tables(batches, promote_options="permissive")

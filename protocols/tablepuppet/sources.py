"""Where a client's table is and how it is read in place: DuckDB, SQLite, Parquet, CSV, PostgreSQL, Arrow in memory.

`describe` gives column -> kind, which is all that the plan needs and all that leaves the organisation before a
run; `read` gives the wanted columns and rows as an Arrow table. Every identifier is quoted, filters come from
`plan.canonical_filter`, files are opened read-only, and a PostgreSQL password stays out of repr and errors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.compute
import sqlglot

from fedactors.errors import DataMissing
from protocols.tablepuppet.faults import SourceError, UnknownColumnError

_FETCH_ROWS = 50_000


@dataclass(frozen=True)
class DuckDBSource:
    """A table or view of a DuckDB file."""

    path: str
    table: str


@dataclass(frozen=True)
class SQLiteSource:
    """A table or view of an SQLite file."""

    path: str
    table: str


@dataclass(frozen=True)
class FileSource:
    """A Parquet or CSV file (``.parquet``, ``.csv``, ``.csv.gz``); CSV needs a header line.

    `null_texts` are what a CSV file writes for NULL beside nothing at all; `kinds` says (column, kind) where the
    kind found in the file is not the one meant, such as an hour written 5.0.
    """

    path: str
    null_texts: tuple[str, ...] = ("NA",)
    kinds: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PostgresSource:
    """A table of a PostgreSQL server; without a password libpq's own ways apply (PGPASSWORD, ~/.pgpass)."""

    host: str
    database: str
    table: str
    schema: str = "public"
    port: int = 5432
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    connect_timeout_s: int = 10

    @property
    def address(self) -> str:
        """The address without the password, for people and logs."""
        user = f"{self.user}@" if self.user else ""
        return f"postgresql://{user}{self.host}:{self.port}/{self.database}?table={self.schema}.{self.table}"


@dataclass(frozen=True)
class ArrowSource:
    """A table in this process's memory."""

    data: pa.Table = field(repr=False)


Source = DuckDBSource | SQLiteSource | FileSource | PostgresSource | ArrowSource


def parse_address(address: str) -> Source:
    """Turn an address into a source.

    ``duckdb:FILE?table=T``, ``sqlite:FILE?table=T``, ``postgresql://user:password@host:port/db?table=schema.T``,
    or the path of a ``.parquet``, ``.csv`` or ``.csv.gz`` file.

    Raises:
        SourceError: the address cannot be understood.
    """
    scheme, colon, _ = address.partition(":")
    if colon and scheme in ("duckdb", "sqlite"):
        path, _, query = address[len(scheme) + 1 :].partition("?")
        table = parse_qs(query).get("table", [""])[0]
        if not path or not table:
            raise SourceError(f"source: {address!r} is not allowed: write {scheme}:FILE?table=NAME")
        return DuckDBSource(path, table) if scheme == "duckdb" else SQLiteSource(path, table)
    if colon and scheme in ("postgresql", "postgres"):
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port or 5432
        except ValueError:
            raise SourceError("source: the PostgreSQL address has no valid host and port") from None
        schema, _, table = parse_qs(parts.query).get("table", [""])[0].rpartition(".")
        if not host or not table or not parts.path.strip("/"):
            raise SourceError("source: write postgresql://user:password@host:port/database?table=schema.name")
        return PostgresSource(
            host=host,
            port=port,
            database=unquote(parts.path.strip("/")),
            schema=schema or "public",
            table=table,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
        )
    if address.endswith((".parquet", ".csv", ".csv.gz")):
        return FileSource(address)
    raise SourceError(
        f"source: {address.rpartition('@')[2]!r} is not allowed: duckdb:FILE?table=NAME, sqlite:FILE?table=NAME,"
        " postgresql://..., or a .parquet, .csv or .csv.gz file"
    )


def describe(source: Source) -> dict[str, str]:
    """Return the columns of a source and their kinds, in order.

    Raises:
        DataMissing: the file does not exist, or the driver is not installed.
        SourceError: the table is not there, or the database refuses or cannot be reached.
    """
    if isinstance(source, SQLiteSource):
        with _sqlite(source) as connection:
            found = connection.execute("SELECT name, type FROM pragma_table_info(?)", [source.table]).fetchall()
        if not found:
            raise SourceError(f"source: no table {source.table!r} in {source.path}")
        return {name: _sqlite_kind(declared) for name, declared in found}
    if isinstance(source, PostgresSource):
        with _postgres(source) as connection:
            rows = connection.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                [source.schema, source.table],
            ).fetchall()
        if not rows:
            raise SourceError(f"source: no table {source.schema}.{source.table} at {source.address}")
        return {name: _POSTGRES_KINDS.get(kind, "other") for name, kind in rows}
    with _duckdb(source) as (connection, relation):
        schema = connection.sql(f"SELECT * FROM {relation} LIMIT 0").to_arrow_table().schema
    return {column.name: _arrow_kind(column.type) for column in schema}


def read(source: Source, columns: Sequence[str], where: Sequence[str] = ()) -> pa.Table:
    """Return the given columns of the rows that meet every filter (canonical DuckDB SQL), as an Arrow table.

    Row order is the database's own and means nothing: clients shuffle before anything leaves them.

    Raises:
        DataMissing, SourceError: as `describe`.
        UnknownColumnError: a column is not in the source.
    """
    known = describe(source)
    for column in columns:
        if column not in known:
            raise UnknownColumnError(f"source: no column {column!r} (known: {', '.join(known)})")
    if isinstance(source, SQLiteSource):
        statement = _select(columns, _quote(source.table), where, "sqlite")
        with _sqlite(source) as connection:
            cursor = connection.execute(statement)
            return _batches(iter(lambda: cursor.fetchmany(_FETCH_ROWS), []), columns, known, source.path)
    if isinstance(source, PostgresSource):
        # As text, CHAR(n) loses its padding and kinds without a number (uuid, enum) can be keys or categories.
        texts = {name for name in columns if known[name] in ("text", "other")}
        statement = _select(columns, f"{_quote(source.schema)}.{_quote(source.table)}", where, "postgres", texts)
        with _postgres(source) as connection, connection.cursor(name="fedactors") as cursor:
            cursor.execute(statement)
            return _batches(iter(lambda: cursor.fetchmany(_FETCH_ROWS), []), columns, known, source.address)
    with _duckdb(source) as (connection, relation):
        try:
            found: pa.Table = connection.sql(_select(columns, relation, where, "duckdb")).to_arrow_table()
        except duckdb.Error as error:
            raise SourceError(f"source: reading failed: {str(error).splitlines()[0]}") from None
    return found


def count_nulls(data: pa.Table, columns: Sequence[str]) -> int:
    """Return how many rows have a NULL in one of `columns`; as join keys they join with nothing."""
    missing = None
    for name in columns:
        here = data.column(name).is_null()
        missing = here if missing is None else pa.compute.or_(missing, here)
    return 0 if missing is None else int(pa.compute.sum(missing).as_py() or 0)


def _select(
    columns: Sequence[str], relation: str, where: Sequence[str], dialect: str, as_text: Collection[str] = ()
) -> str:
    named = [f"CAST({_quote(c)} AS TEXT) AS {_quote(c)}" if c in as_text else _quote(c) for c in columns]
    picked = ", ".join(named) or "1"
    text = f"SELECT {picked} FROM {relation}"
    if where:
        filters = [sqlglot.transpile(w, read="duckdb", write=dialect, identify=True)[0] for w in where]
        text += " WHERE " + " AND ".join(f"({f})" for f in filters)
    return text


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _file_relation(source: FileSource) -> str:
    if source.path.endswith(".parquet"):
        relation = f"read_parquet({_literal(source.path)})"
    else:
        nulls = ", ".join(_literal(text) for text in ("", *source.null_texts))
        relation = f"read_csv({_literal(source.path)}, header = true, nullstr = [{nulls}], sample_size = -1)"
    if not source.kinds:
        return relation
    wrong = [kind for _, kind in source.kinds if kind not in _DUCKDB_TYPES]
    if wrong:
        raise SourceError(f"source: kind {wrong[0]!r} is not allowed: one of {', '.join(_DUCKDB_TYPES)}")
    casts = ", ".join(f"CAST({_quote(c)} AS {_DUCKDB_TYPES[kind]}) AS {_quote(c)}" for c, kind in source.kinds)
    return f"(SELECT * REPLACE ({casts}) FROM {relation})"


def _require_file(path: str) -> None:
    if not Path(path).is_file():
        raise DataMissing(f"source: there is no file {path}")


@contextmanager
def _duckdb(source: DuckDBSource | FileSource | ArrowSource) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
    try:
        if isinstance(source, DuckDBSource):
            _require_file(source.path)
            with duckdb.connect(source.path, read_only=True) as connection:
                yield connection, _quote(source.table)
        elif isinstance(source, FileSource):
            _require_file(source.path)
            with duckdb.connect() as connection:
                yield connection, _file_relation(source)
        else:
            with duckdb.connect(config={"enable_external_access": False}) as connection:
                connection.register("memory_table", source.data)
                yield connection, "memory_table"
    except duckdb.Error as error:
        raise SourceError(f"source: {source!r}: {str(error).splitlines()[0]}") from None


@contextmanager
def _sqlite(source: SQLiteSource) -> Iterator[sqlite3.Connection]:
    _require_file(source.path)
    try:
        address = Path(source.path).resolve().as_uri() + "?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise SourceError(f"source: SQLite file {source.path}, table {source.table!r}: {error}") from None


@contextmanager
def _postgres(source: PostgresSource) -> Iterator[Any]:
    try:
        import psycopg
    except ImportError:
        raise DataMissing("source: PostgreSQL needs the extra: pip install 'fedactors[postgres]'") from None
    try:
        with psycopg.connect(
            host=source.host,
            port=source.port,
            dbname=source.database,
            user=source.user,
            password=source.password,
            connect_timeout=source.connect_timeout_s,
            options="-c default_transaction_read_only=on",
        ) as connection:
            yield connection
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if source.password:
            reason = reason.replace(source.password, "***")
        raise SourceError(f"source: {source.address}: {reason}") from None


def _batches(
    batches: Iterator[Sequence[Sequence[object]]], columns: Sequence[str], kinds: dict[str, str], place: str
) -> pa.Table:
    schema = pa.schema([(name, _ARROW_TYPES.get(kinds[name], pa.string())) for name in columns])
    made = []
    for rows in batches:
        try:
            arrays = [
                pa.array(_converted(values, kinds[name]), type=schema.field(name).type)
                for name, values in zip(columns, zip(*rows, strict=True), strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError) as error:
            raise SourceError(f"source: {place}: a value does not fit its column's type: {error}") from None
        made.append(pa.record_batch(arrays, schema=schema))
    return pa.Table.from_batches(made, schema=schema)


def _converted(values: Sequence[Any], kind: str) -> Sequence[Any]:
    """Return values as Arrow needs them: SQLite keeps booleans as 0 and 1, PostgreSQL numeric arrives as Decimal."""
    if kind in ("float", "decimal"):
        return [None if v is None else float(v) for v in values]
    if kind == "boolean":
        return [None if v is None else bool(v) for v in values]
    return values


def _arrow_kind(kind: pa.DataType) -> str:
    checks = (
        (pa.types.is_boolean, "boolean"),
        (pa.types.is_integer, "integer"),
        (pa.types.is_floating, "float"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_string, "text"),
        (pa.types.is_large_string, "text"),
        (pa.types.is_date, "date"),
        (pa.types.is_timestamp, "timestamp"),
    )
    return next((name for check, name in checks if check(kind)), "other")


def _sqlite_kind(declared: str) -> str:
    """Return the kind by SQLite's own affinity rules, with dates and booleans that SQLite stores as text or number."""
    word = declared.upper()
    if "INT" in word:
        return "integer"
    if any(part in word for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if any(part in word for part in ("REAL", "FLOA", "DOUB")):
        return "float"
    if "BOOL" in word:
        return "boolean"
    if "DEC" in word or "NUM" in word:
        return "decimal"
    return "text" if "DATE" in word or "TIME" in word else "other"


_POSTGRES_KINDS = {
    "smallint": "integer", "integer": "integer", "bigint": "integer", "real": "float", "double precision": "float",
    "numeric": "decimal", "boolean": "boolean", "text": "text", "character varying": "text", "character": "text",
    "date": "date", "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamp",
}  # fmt: skip

_DUCKDB_TYPES = {
    "integer": "BIGINT", "float": "DOUBLE", "boolean": "BOOLEAN", "text": "VARCHAR", "date": "DATE",
    "timestamp": "TIMESTAMP",
}  # fmt: skip

_ARROW_TYPES = {
    "integer": pa.int64(), "float": pa.float64(), "decimal": pa.float64(), "boolean": pa.bool_(), "text": pa.string(),
    "date": pa.date32(), "timestamp": pa.timestamp("us"),
}  # fmt: skip

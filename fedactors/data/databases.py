"""Tables read in place: DuckDB and SQLite files, Parquet, CSV, PostgreSQL, named data sets, and Arrow in memory.

`TableSource.describe` gives column -> kind, `TableSource.load` the wanted columns of the wanted rows: projection and
filter go to where the table lies. Every identifier is quoted, files and databases are opened read-only, DuckDB reads
nothing but the file that was named (no view of it reaches another file, no extension is loaded), and a PostgreSQL
password stays out of repr and errors. PostgreSQL's rows come as CSV by COPY, which Arrow parses in blocks, from tables,
partitioned and foreign ones, and views alike. Each process keeps one DuckDB for each choice of settings, because
opening one takes longer than reading a small table; every use has a connection of its own.

Kinds of columns: integer, float, decimal, boolean, text, date, timestamp, other.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import io
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

import numpy as np

from fedactors.errors import BadInput, DataMissing
from fedactors.messages.codec import wire_type

_BLOCK = 1 << 22
"""Bytes that are parsed at once."""

DESCRIBE = """
SELECT a.attname, format_type(COALESCE(NULLIF(t.typbasetype, 0), t.oid), NULL)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0
AND NOT a.attisdropped AND has_column_privilege(c.oid, a.attnum, 'SELECT')
ORDER BY a.attnum
"""
"""Names and types of the columns that may be read, by schema and table; the standard's catalogue has no materialised
views."""

KINDS = {
    "smallint": "integer", "integer": "integer", "bigint": "integer", "real": "float", "double precision": "float",
    "numeric": "decimal", "boolean": "boolean", "text": "text", "character varying": "text", "character": "text",
    "bpchar": "text", "date": "date", "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamp",
}  # fmt: skip


def copied(connection: Any, statement: str, schema: Any) -> Any:
    """Return the `pyarrow.Table` of what a SELECT gives, with the columns of `schema` in their order.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit its column's type, such as a date that is infinite.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    parse = pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
    convert = pa_csv.ConvertOptions(
        column_types=schema,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,  # COPY quotes an empty text, and writes nothing for NULL
        true_values=["t"],
        false_values=["f"],
    )
    made: list[Any] = []
    with connection.cursor() as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)") as rows:
        for block in _blocks(rows):
            size = block.seek(0, io.SEEK_END)
            block.seek(0)
            read = pa_csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=size + 1)
            table = pa_csv.read_csv(block, read_options=read, parse_options=parse, convert_options=convert)
            made += table.to_batches()
    return pa.Table.from_batches(made, schema=schema)


def _blocks(rows: Iterable[Any]) -> Iterator[io.BytesIO]:
    """Yield whole rows together: each piece that COPY sends is one."""
    block = io.BytesIO()
    for row in rows:
        block.write(row)
        if block.tell() >= _BLOCK:
            yield block
            block = io.BytesIO()
    if block.tell():
        yield block


@contextmanager
def memory_database(**settings: str | int | bool) -> Iterator[Any]:
    """Yield a connection to a database in memory with these settings."""
    # its threads do not survive a fork: a forked process opens its own
    with _database(os.getpid(), tuple(sorted(settings.items()))).cursor() as connection:
        yield connection


@functools.lru_cache(maxsize=8)
def _database(process: int, settings: tuple[tuple[str, str | int | bool], ...]) -> Any:
    import duckdb

    return duckdb.connect(":memory:", config=dict(settings))


atexit.register(_database.cache_clear)  # DuckDB complains of what is open when Python is gone


TableKind = Literal["duckdb", "sqlite", "parquet", "csv", "postgres", "named", "memory"]
_FETCH_ROWS = 50_000


class SourceError(BadInput):
    """A database refused or could not be reached, or its address cannot be understood (never shows a password)."""


@wire_type
class TableSource:
    """Where one partition of one table lies; small, so that the organisation's actor reads it itself."""

    kind: TableKind
    where: str = field(default="", repr=False)
    """Path of the file, name of the data set, PostgreSQL address, or ``env:NAME`` of the variable that holds it.

    An address is ``postgresql://user:password@host:port/database?option=value``, the options being libpq's, such as
    sslmode; without a password libpq's own ways apply (PGPASSWORD, ~/.pgpass).
    """
    table: str = ""
    """Name of the table; PostgreSQL: ``schema.table``, the schema public if none. Unused for files."""
    partition: int = 0
    num_partitions: int = 1
    """Named data sets are dealt by row number: partition i has rows i, i + num_partitions, ..."""
    null_texts: tuple[str, ...] = ("NA",)
    """What a CSV file writes for NULL beside nothing at all."""
    kinds: tuple[tuple[str, str], ...] = ()
    """(column, kind) where the kind found in a file is not the one meant, such as an hour written 5.0."""
    rows: bytes = field(default=b"", repr=False)
    """The table itself as an Arrow IPC stream, for the kind memory; see `in_memory`."""

    @property
    def shown(self) -> str:
        """The place, as messages name it: never an address with a password."""
        if self.kind != "postgres":
            return f"{self.kind} {self.where}".strip()
        return self.where if self.where.startswith("env:") else _without_password(self.where)

    def __repr__(self) -> str:
        """Show the place without a password."""
        return f"TableSource({self.shown}, table={self.table!r})"

    def describe(self) -> dict[str, str]:
        """Return the columns and their kinds, in order.

        Raises:
            DataMissing: the file does not exist, or the driver is not installed.
            SourceError: the table is not there, or the database refuses or cannot be reached.
        """
        if self.kind == "sqlite":
            with _sqlite(self) as connection:
                found = connection.execute("SELECT name, type FROM pragma_table_info(?)", [self.table]).fetchall()
            if not found:
                raise SourceError(f"source: no table {self.table!r} in {self.where}")
            return {name: _sqlite_kind(declared) for name, declared in found}
        if self.kind == "postgres":
            schema, table = _postgres_table(self.table)
            with _postgres(self) as connection:
                rows = connection.execute(DESCRIBE, [schema, table]).fetchall()
            if not rows:
                raise SourceError(f"source: no table {schema}.{table} at {self.shown}")
            return {name: KINDS.get(kind, "other") for name, kind in rows}
        with _duckdb(self) as (connection, relation):
            columns = connection.sql(f"SELECT * FROM {relation} LIMIT 0").to_arrow_table().schema
        return {column.name: _arrow_kind(column.type) for column in columns}

    def load(self, columns: Sequence[str] | None = None, where: str | Sequence[str] | None = None) -> Any:
        """Read a `pyarrow.Table` of the columns named, of the rows that every SQL condition of `where` keeps.

        Conditions are DuckDB SQL over the table's own columns and are translated for the database. Row order is the
        database's own and means nothing.

        Raises:
            BadInput: a column that is not there, or a condition that is none.
            DataMissing, SourceError: as `describe`; a file of a named data set is not on this machine.
        """
        known = self.describe()
        wanted = list(known) if columns is None else list(columns)
        for column in wanted:
            if column not in known:
                raise BadInput(f"{self.table}: no column {column!r} (known: {', '.join(known)})")
        filters = _filters(where)
        if self.kind == "sqlite":
            statement = _select(wanted, _quote(self.table), filters, "sqlite")
            with _sqlite(self) as connection:
                cursor = connection.execute(statement)
                return _batches(iter(lambda: cursor.fetchmany(_FETCH_ROWS), []), wanted, known, self.shown)
        if self.kind == "postgres":
            # As text, CHAR(n) loses its padding and kinds without a number (uuid, enum) can be keys or categories.
            # A moment with a time zone is that of UTC, the session's.
            types = {"text": "TEXT", "other": "TEXT", "timestamp": "TIMESTAMP"}
            casts = {name: types[known[name]] for name in wanted if known[name] in types}
            schema, table = _postgres_table(self.table)
            statement = _select(wanted, f"{_quote(schema)}.{_quote(table)}", filters, "postgres", casts)
            with _postgres(self) as connection, _fitting(self.shown):
                return copied(connection, statement, _schema(wanted, known))
        with _duckdb(self) as (connection, relation):
            return connection.sql(_select(wanted, relation, filters, "duckdb")).to_arrow_table()


def in_memory(rows: Any) -> TableSource:
    """Return the source of a `pyarrow.Table` that is already there."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return TableSource(kind="memory", rows=sink.getvalue().to_pybytes())


def rows_of(stream: bytes) -> Any:
    """Return the `pyarrow.Table` of an Arrow IPC stream, such as `in_memory` makes."""
    import pyarrow as pa

    with pa.ipc.open_stream(stream) as opened:
        return opened.read_all()


def parse_address(address: str) -> TableSource:
    """Turn an address into a source.

    ``duckdb:FILE?table=T``, ``sqlite:FILE?table=T``, ``postgresql://user:password@host:port/db?table=schema.T``,
    ``env:NAME?table=T`` (PostgreSQL), or the path of a ``.parquet``, ``.csv`` or ``.csv.gz`` file. A PostgreSQL
    address may go on with libpq's options: ``...&sslmode=verify-full``.

    Raises:
        SourceError: the address cannot be understood.
    """
    scheme, colon, rest = address.partition(":")
    location, _, query = rest.partition("?")
    table = parse_qs(query).get("table", [""])[0]
    if colon and scheme in ("duckdb", "sqlite", "env"):
        if not location or not table:
            raise SourceError(f"source: {address!r} is not allowed: write {scheme}:FILE?table=NAME")
        if scheme == "env":
            return TableSource(kind="postgres", where=f"env:{location}", table=table)
        return TableSource(kind="duckdb" if scheme == "duckdb" else "sqlite", where=location, table=table)
    if colon and scheme in ("postgresql", "postgres"):
        if not table:
            raise SourceError("source: write postgresql://user:password@host:port/database?table=schema.name")
        options = "&".join(part for part in query.split("&") if not part.startswith("table="))
        where = address.partition("?")[0] + (f"?{options}" if options else "")
        postgres_settings(where)
        return TableSource(kind="postgres", where=where, table=table)
    if address.endswith((".csv", ".csv.gz", ".parquet")):
        return TableSource(kind="parquet" if address.endswith(".parquet") else "csv", where=address)
    raise SourceError(
        f"source: {address.rpartition('@')[2]!r} is not allowed: duckdb:FILE?table=NAME, sqlite:FILE?table=NAME,"
        " postgresql://..., or a .parquet, .csv or .csv.gz file"
    )


def _filters(where: str | Sequence[str] | None) -> list[str]:
    """Return the conditions, each checked to be one condition and nothing more."""
    import sqlglot
    from sqlglot import exp

    texts = [where] if isinstance(where, str) else list(where or ())
    for text in texts:
        try:
            statements = sqlglot.parse(f"SELECT 1 WHERE {text}", dialect="duckdb")
        except sqlglot.errors.SqlglotError as error:
            raise BadInput(f"where: {text!r} is no condition: {str(error).splitlines()[0]}") from None
        tree = statements[0]
        clauses = {name for name, value in tree.args.items() if value} if isinstance(tree, exp.Select) else set()
        if len(statements) != 1 or clauses != {"expressions", "where"}:
            raise BadInput(f"where: {text!r} is not one condition")
    return texts


def _select(
    columns: Sequence[str], relation: str, where: Sequence[str], dialect: str, casts: Mapping[str, str] | None = None
) -> str:
    import sqlglot

    casts = casts or {}
    named = [f"CAST({_quote(c)} AS {casts[c]}) AS {_quote(c)}" if c in casts else _quote(c) for c in columns]
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


def _file_relation(source: TableSource) -> str:
    if source.kind == "parquet":
        relation = f"read_parquet({_literal(source.where)})"
    else:
        nulls = ", ".join(_literal(text) for text in ("", *source.null_texts))
        relation = f"read_csv({_literal(source.where)}, header = true, nullstr = [{nulls}], sample_size = -1)"
    if not source.kinds:
        return relation
    wrong = [kind for _, kind in source.kinds if kind not in _DUCKDB_TYPES]
    if wrong:
        raise SourceError(f"source: kind {wrong[0]!r} is not allowed: one of {', '.join(_DUCKDB_TYPES)}")
    casts = ", ".join(f"CAST({_quote(c)} AS {_DUCKDB_TYPES[kind]}) AS {_quote(c)}" for c, kind in source.kinds)
    return f"(SELECT * REPLACE ({casts}) FROM {relation})"


def _require_file(path: str) -> None:
    if not os.path.isfile(path):
        raise DataMissing(f"source: there is no file {path}")


@contextmanager
def _duckdb(source: TableSource) -> Iterator[tuple[Any, str]]:
    import duckdb

    try:
        if source.kind not in ("duckdb", "parquet", "csv"):
            with memory_database(**_NO_EXTENSIONS, enable_external_access=False, lock_configuration=True) as connection:
                rows = _named_rows(source) if source.kind == "named" else rows_of(source.rows)
                connection.register("rows_in_memory", rows)
                yield connection, "rows_in_memory"
            return
        _require_file(source.where)
        database = source.where if source.kind == "duckdb" else ":memory:"
        with duckdb.connect(database, read_only=source.kind == "duckdb", config=_NO_EXTENSIONS) as connection:
            if source.kind != "duckdb":
                connection.execute(f"SET allowed_paths = [{_literal(source.where)}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection, _quote(source.table) if source.kind == "duckdb" else _file_relation(source)
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        reason = reason.partition(" Error: ")[2] or reason  # DuckDB names a kind of error first
        raise SourceError(f"{source.table or 'source'}: {source.shown}: {reason}") from None


_NO_EXTENSIONS = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
"""A query over a table needs neither; a view in somebody's file could ask for both."""


def _named_rows(source: TableSource) -> Any:
    from fedactors.data.datasets.load import load_tables

    tables = load_tables(source.where)
    if source.table not in tables:
        raise BadInput(f"table: {source.table!r} is not allowed: {source.where} has {', '.join(tables)}")
    rows = tables[source.table]
    if source.num_partitions > 1:
        return rows.take(np.arange(source.partition, rows.num_rows, source.num_partitions))
    return rows


@contextmanager
def _sqlite(source: TableSource) -> Iterator[sqlite3.Connection]:
    _require_file(source.where)
    try:
        address = Path(source.where).resolve().as_uri() + "?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise SourceError(f"source: SQLite file {source.where}, table {source.table!r}: {error}") from None


def _postgres_table(name: str) -> tuple[str, str]:
    schema, dot, table = name.partition(".")
    return (schema, table) if dot else ("public", name)


def postgres_settings(address: str) -> dict[str, Any]:
    """Return the settings with which libpq connects; every option of the address is among them.

    Raises:
        SourceError: it is no address, or has an option that libpq does not know; never shows a password.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or 5432
    except ValueError:
        raise SourceError("source: the PostgreSQL address has no valid host and port") from None
    if parts.scheme not in ("postgresql", "postgres") or not host or not parts.path.strip("/"):
        raise SourceError("source: write postgresql://user:password@host:port/database?table=schema.name")
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _POSTGRES_OPTIONS:
            raise SourceError(
                f"source: option {name!r} of a PostgreSQL address is not allowed: one of libpq's, such as sslmode,"
                " sslrootcert or connect_timeout; host, user, password and database stand before the question mark"
            )
        options[name] = value
    return {
        "connect_timeout": 10,
        **options,
        "host": host,
        "port": port,
        "dbname": unquote(parts.path.strip("/")),
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        # last, so that no option of the address takes it back; synchronised scans would start in the middle
        "options": f"{options.get('options', '')} -c default_transaction_read_only=on -c synchronize_seqscans=off"
        " -c datestyle=ISO -c timezone=UTC -c extra_float_digits=1",
    }


_POSTGRES_OPTIONS = {
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "fallback_application_name",
    "gssdelegation", "gssencmode", "gsslib", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "krbsrvname", "load_balance_hosts", "max_protocol_version", "min_protocol_version",
    "options", "passfile", "replication", "require_auth", "requirepeer", "requiressl", "scram_client_key",
    "scram_server_key", "service", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode",
    "sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslmode", "sslnegotiation", "sslpassword",
    "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout",
}  # fmt: skip
POSTGRES_SECRETS = ("password", "sslpassword", "scram_client_key", "scram_server_key")
"""Settings that are never shown, and stand in no file."""


def _without_password(address: str) -> str:
    made = postgres_settings(address)
    user = f"{made['user']}@" if made["user"] else ""
    return f"postgresql://{user}{made['host']}:{made['port']}/{made['dbname']}"


@contextmanager
def _postgres(source: TableSource) -> Iterator[Any]:
    address = source.where
    if address.startswith("env:"):
        address = os.environ.get(address.removeprefix("env:"), "")
        if not address:
            raise SourceError(f"{source.table}: {source.where!r} is not allowed: no such environment variable is set")
    made = postgres_settings(address)
    try:
        psycopg = importlib.import_module("psycopg")
    except ImportError:
        raise DataMissing("source: PostgreSQL needs the extra: pip install 'fedactors[postgres]'") from None
    try:
        with psycopg.connect(**made) as connection:
            yield connection
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        for secret in filter(None, map(made.get, POSTGRES_SECRETS)):
            reason = reason.replace(secret, "***")
        raise SourceError(f"source: {_without_password(address)}, table {source.table}: {reason}") from None


def _batches(
    batches: Iterator[Sequence[Sequence[object]]], columns: Sequence[str], kinds: dict[str, str], location: str
) -> Any:
    import pyarrow as pa

    schema, made = _schema(columns, kinds), []
    for rows in batches:
        with _fitting(location):
            arrays = [
                pa.array(_converted(values, kinds[name]), type=schema.field(name).type)
                for name, values in zip(columns, zip(*rows, strict=True), strict=True)
            ]
        made.append(pa.record_batch(arrays, schema=schema))
    return pa.Table.from_batches(made, schema=schema)


def _schema(columns: Sequence[str], kinds: dict[str, str]) -> Any:
    import pyarrow as pa

    types = {
        "integer": pa.int64(), "float": pa.float64(), "decimal": pa.float64(), "boolean": pa.bool_(),
        "text": pa.string(), "date": pa.date32(), "timestamp": pa.timestamp("us"),
    }  # fmt: skip
    return pa.schema([(name, types.get(kinds[name], pa.string())) for name in columns])


@contextmanager
def _fitting(location: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError) as error:
        raise SourceError(f"source: {location}: a value does not fit its column's type: {error}") from None


def _converted(values: Sequence[Any], kind: str) -> Sequence[Any]:
    """Return values as Arrow needs them: SQLite keeps booleans as 0 and 1, and numbers of any type in a column."""
    if kind in ("float", "decimal"):
        return [None if v is None else float(v) for v in values]
    if kind == "boolean":
        return [None if v is None else bool(v) for v in values]
    return values


def _arrow_kind(kind: Any) -> str:
    import pyarrow as pa

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


_DUCKDB_TYPES = {
    "integer": "BIGINT", "float": "DOUBLE", "boolean": "BOOLEAN", "text": "VARCHAR", "date": "DATE",
    "timestamp": "TIMESTAMP",
}  # fmt: skip

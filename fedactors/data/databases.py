"""Tables read in place: DuckDB and SQLite files, Parquet, CSV, PostgreSQL, named data sets, and Arrow in memory.

`TableSource.describe` gives column -> kind, `TableSource.load` the wanted columns of the wanted rows. A filter means
what it means in DuckDB, whatever the database: what that provably answers alike, written anew from names and literals
(comparisons of whole numbers, tests for NULL, equality of texts byte by byte), goes to where the table lies, the rest
is evaluated on the rows that were read, and so are keys that are expressions: what others wrote asks no database that
has anything else. CSV files are read as in any layout (`fedactors.data.readers`). SQLite
has no types: a column's kind is that of its values. Every identifier is quoted, files and databases are opened
read-only, DuckDB reads nothing but the file that was named (no view of it reaches another file, no extension is
loaded), and a PostgreSQL password stays out of repr and errors. PostgreSQL's rows come as CSV by COPY, which Arrow
parses in blocks, from tables, partitioned and foreign ones, and views alike. Each process keeps one DuckDB for each
choice of settings, because opening one takes longer than reading a small table; every use has a connection of its own.

A party's view is a SELECT over its own tables, which DuckDB evaluates in memory. Whole numbers of more than 64 bits are
exact.

Kinds of columns: integer, float, decimal, boolean, text, date, timestamp, other, and of PostgreSQL those that are not
read (`fedactors.data.values.UNCLEAR`); of CSV files also numeral: whole numbers, and code: numbers that no program
writes so, such as 1.10 beside 1.1; both are texts as well. A key that is compared as a number is refused where two
texts of its column, 007 and 7, are one. All sources are one file because they share the rules by which a value has its
kind.
"""

from __future__ import annotations

import atexit
import codecs
import functools
import hashlib
import importlib
import io
import math
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit
from weakref import WeakValueDictionary

import numpy as np

from fedactors.data.query import NUMBER_KINDS, is_among_texts
from fedactors.data.readers import read_arrays, refuse_lost_column, refuse_pandas_types
from fedactors.data.values import (
    UNCLEAR,
    Column,
    CsvFormat,
    exact_texts,
    gathered,
    is_large,
    mapped_if_large,
    mapped_table,
    pieces_of,
    plain_values,
    row_bytes,
)
from fedactors.errors import BadInput, DataMissing
from fedactors.messages.codec import wire_type
from fedactors.runtime.compute import interruptible
from fedactors.runtime.snapshots import object_at
from fedactors.validation import address_of, files_at, unreplaced

_BLOCK = 1 << 22
"""Bytes that are read from a database at once."""
_PARSED = 1 << 20
"""Bytes of them that are parsed at once."""

DESCRIBE = """
WITH RECURSIVE base (oid, of_type) AS (
    SELECT oid, oid FROM pg_catalog.pg_type WHERE typbasetype = 0
    UNION ALL SELECT t.oid, b.of_type FROM pg_catalog.pg_type t JOIN base b ON t.typbasetype = b.oid
)
SELECT a.attname, format_type(t.of_type, NULL)
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
JOIN base t ON t.oid = a.atttypid
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND a.attnum > 0
AND NOT a.attisdropped AND has_column_privilege(c.oid, a.attnum, 'SELECT')
ORDER BY a.attnum
"""
"""Names and types of the columns that may be read, by schema and table, of a domain that on which it rests; the
standard's catalogue has no materialised views."""
LIKELY = """
SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE lower(c.relname) = lower(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 3
"""
"""Tables that are called nearly so."""

KINDS = {
    "smallint": "integer", "integer": "integer", "bigint": "integer", "real": "float", "double precision": "float",
    "numeric": "decimal", "boolean": "boolean", "text": "text", "character varying": "text", "character": "text",
    "bpchar": "text", "date": "date", "timestamp without time zone": "timestamp",
    "timestamp with time zone": "timestamp",
}  # fmt: skip
_AS_THEY_ARE = ("integer", "float", "boolean", "date", "other")
"""Kinds that COPY writes as the server shows them; a CAST makes 1.2.3.4/32 of the address 1.2.3.4."""


def _postgres_kind(stored: str) -> str:
    if stored in KINDS:
        return KINDS[stored]
    ends = next((kind for end, kind in (("[]", "array"), ("range", "range")) if stored.endswith(end)), "other")
    return stored if stored in UNCLEAR else ends


def copied(connection: Any, statement: str, schema: Any) -> Any:
    """Return the `pyarrow.Table` of what a SELECT gives, with the columns of `schema` in their order.

    The server sends row after row: a block of them is in memory, and the others where `gathered` puts them.

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

    def batches(rows: Iterable[Any]) -> Iterator[Any]:
        kept: list[Any] = []
        for block in _blocks(rows):
            size = block.seek(0, io.SEEK_END)
            block.seek(0)
            read = pa_csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=size + 1)
            try:
                table = pa_csv.read_csv(block, read_options=read, parse_options=parse, convert_options=convert)
            except pa.ArrowInvalid as error:
                raise ValueError(_conversion_error(str(error), schema.names)) from None
            kept.append(table)
            if sum(one.nbytes for one in kept) >= _BLOCK:
                yield from _compact(kept)
        yield from _compact(kept)

    with connection.cursor() as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT csv)") as rows:
        return gathered(schema, batches(rows))


def _compact(tables: list[Any]) -> Iterator[Any]:
    """Yield tables as one record batch, and forget them: what is parsed has twice the room that it needs."""
    import pyarrow as pa

    if tables:
        whole = pa.concat_tables(tables).combine_chunks()
        tables.clear()
        pa.default_memory_pool().release_unused()
        yield from whole.to_batches()


def _conversion_error(reason: str, names: Sequence[str]) -> str:
    """Return what to say of a value that Arrow's type of its column does not have."""
    found = re.search(r"In CSV column #([0-9]+): .*? to ([a-z0-9\[\]]+): invalid (value '.*'|UTF8 data)", reason)
    if found is None:
        return reason.partition("\n")[0]
    column, kind, value = f"column {names[int(found[1])]}", found[2].partition("[")[0], found[3]
    if value == "UTF8 data":
        return f"{column} holds a text that is not in UTF-8; a view may tell it: convert_from(column::bytea, 'LATIN1')"
    told = f"{value.removeprefix('value ')}, which is no {kind.rstrip('0123456789')} of the years 1 to 9999"
    return f"{column} holds {told}; write NULL for it, or CAST the column to TEXT, in a view"


def _blocks(rows: Iterable[Any]) -> Iterator[io.BytesIO]:
    """Yield whole rows together: each piece that COPY sends is one."""
    block = _new_block()
    for row in rows:
        block.write(row)
        if block.tell() >= _PARSED:
            yield block
            block = _new_block()
    if block.tell() > len(codecs.BOM_UTF8):
        yield block


def _new_block() -> io.BytesIO:
    """Return an empty block that begins with the mark that Arrow leaves out, so that a value keeps one of its own."""
    block = io.BytesIO()
    block.write(codecs.BOM_UTF8)
    return block


@contextmanager
def memory_database(**settings: str | int | bool) -> Iterator[Any]:
    """Yield a connection to a database in memory with these settings."""
    # its threads do not survive a fork: a forked process opens its own
    with _database(os.getpid(), tuple(sorted(settings.items()))).cursor() as connection:
        yield connection


@functools.lru_cache(maxsize=8)
def _database(process: int, settings: tuple[tuple[str, str | int | bool], ...]) -> Any:
    return _connected(":memory:", dict(settings))


def _connected(database: str, settings: Mapping[str, Any], *, read_only: bool = False) -> Any:
    """Return a connection to a database in which moments with a time zone are those of UTC, whatever the machine's."""
    import duckdb

    given = dict(settings)
    is_locked = given.pop("lock_configuration", False)
    connection = duckdb.connect(database, read_only=read_only, config=given)
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    if is_locked:
        connection.execute("SET lock_configuration = true")
    return connection


atexit.register(_database.cache_clear)  # DuckDB complains of what is open when Python is gone


TableKind = Literal["duckdb", "sqlite", "parquet", "csv", "postgres", "named", "memory", "object", "library", "view"]
_FETCH_ROWS, _VECTOR_ROWS, _LEAST_ROWS = 50_000, 2048, 256


class SourceError(BadInput):
    """A database refused or could not be reached, or its address cannot be understood (never shows a password)."""


@wire_type
class TableSource:
    """Where one partition of one table lies; small, so that the organisation's actor reads it itself."""

    kind: TableKind
    where: str = field(default="", repr=False)
    """Path of the file, name of the data set, an object's address, PostgreSQL's, or ``env:NAME`` of a variable with it.

    An address is ``postgresql://user:password@host:port/database?option=value``, the options being libpq's, such as
    sslmode; without a password libpq's own ways apply (PGPASSWORD, ~/.pgpass).
    """
    table: str = ""
    """Name of the table; PostgreSQL: ``schema.table``, the schema public if none. Unused for files."""
    partition: int = 0
    num_partitions: int = 1
    """Named data sets are dealt by row number: partition i has rows i, i + num_partitions, ..."""
    csv: CsvFormat | None = None
    """How a CSV file is written."""
    kinds: tuple[tuple[str, str], ...] = ()
    """(column, kind) where the kind found in a file is not the one meant, such as an hour written 5.0."""
    rows: bytes = field(default=b"", repr=False)
    """The table itself as an Arrow IPC stream, for the kind memory; see `in_memory`."""
    sql: str = ""
    """Of the kind view: a SELECT over the party's own `tables`, evaluated by DuckDB."""
    tables: tuple[TableSource, ...] = ()
    """Each with the name that the SELECT gives it as its `label`."""
    label: str = ""

    @property
    def is_of_rows(self) -> bool:
        """Whether what it has is known by its rows, and not by a file's bytes."""
        return self.kind in ("duckdb", "sqlite", "postgres", "library")

    @property
    def shown(self) -> str:
        """The place, as messages name it: never an address with a password."""
        if self.kind in ("object", "library"):
            return self.where
        if self.kind == "view":
            return f"view of {', '.join(one.label for one in self.tables)}"
        if self.kind != "postgres":
            return f"{self.kind} {self.where}".strip()
        return self.where if self.where.startswith("env:") else _without_password(self.where)

    def __repr__(self) -> str:
        """Show the place without a password, and how it is read."""
        inside = tuple((one.label, one.table, one.csv, one.kinds) for one in self.tables)
        how = {"csv": self.csv, "kinds": self.kinds, "sql": self.sql, "tables": inside}
        told = "".join(f", {name}={value!r}" for name, value in how.items() if value)
        return f"TableSource({self.shown}, table={self.table!r}{told})"

    def digest(self) -> bytes:
        """Return the SHA-256 of the rows, in the order in which the database gives them.

        Raises:
            DataMissing, SourceError: as `load`.
        """
        rows = self.load()
        return fingerprint(rows, np.arange(rows.num_rows))

    def parsed(self) -> ParsedFile | None:
        """Return a CSV file's columns: while the caller holds them, `describe` and `load` do not parse it again.

        Raises:
            DataMissing, SourceError: as `load`.
        """
        return _parsed(self) if self.kind == "csv" else None

    def describe(self) -> dict[str, str]:
        """Return the columns and their kinds, in order.

        Raises:
            DataMissing: the file does not exist, or the driver is not installed.
            SourceError: the table is not there, or the database refuses or cannot be reached.
        """
        if self.kind == "sqlite":
            with _sqlite(self) as connection:
                return {name: kind for name, (kind, _) in _sqlite_kinds(self, connection).items()}
        if self.kind == "postgres":
            schema, table = _postgres_table(self.table)
            with _postgres(self) as connection:
                rows = connection.execute(DESCRIBE, [schema, table]).fetchall()
                advice = "" if rows else _likely_table(connection, schema, table)
            if not rows:
                raise SourceError(f"source: no table {schema}.{table} at {self.shown}{advice}")
            _refuse_alike([name for name, _ in rows], self)
            return {name: _postgres_kind(kind) for name, kind in rows}
        if self.kind == "csv":
            return _csv_kinds(self, _parsed(self).columns)
        with _duckdb(self) as (connection, relation):
            schema = connection.sql(f"SELECT * FROM {relation} LIMIT 0").to_arrow_table().schema
        return {column.name: _arrow_kind(column.type) for column in schema}

    def names(self) -> list[str]:
        """Return the columns in order, without a look at their values.

        Raises:
            DataMissing, SourceError: as `describe`.
        """
        if self.kind != "sqlite":
            return list(self.describe())
        with _sqlite(self) as connection:
            return [name for name, _ in _sqlite_columns(self, connection)]

    def load(
        self,
        columns: Sequence[str] | None = None,
        where: str | Sequence[str] | None = None,
        computed: Sequence[str] = (),
        keys: Sequence[str] = (),
        exact: Sequence[str] = (),
    ) -> Any:
        """Read a `pyarrow.Table` of the columns named, of the rows that every SQL condition of `where` keeps.

        Conditions are DuckDB SQL over the table's own columns. Row order is the database's own and means nothing.

        Args:
            columns: their names; None: all.
            where: conditions.
            computed: expressions over the table's columns, which become columns called as they are written.
            keys: columns by which rows are found.
            exact: those of them whose numbers are compared.

        Raises:
            BadInput: a column that is not there, a condition that is none, or two texts of a file that are one number.
            DataMissing, SourceError: as `describe`; a file of a named data set is not on this machine.
        """
        of_file = _parsed(self).columns if self.kind == "csv" else {}
        known = _csv_kinds(self, of_file) if self.kind == "csv" else self.describe()
        wanted = list(known) if columns is None else list(columns)
        for column in wanted:
            if column not in known:
                raise BadInput(f"{self.table}: no column {column!r} (known: {', '.join(known)})")
        filters = _filters(where)
        if wanted and not (filters or computed or self.kinds) and _is_plain(self, wanted):
            import pyarrow as pa

            found, _ = read_arrays(Path(self.where), self.table or "source", wanted, CsvFormat())
            return pa.table({name: found[name] for name in wanted})
        if self.kind in ("parquet", "named", "memory", "object", "library", "view"):
            with _duckdb(self) as (connection, relation), _fitting(self.shown):
                seconds = QUERY_SECONDS if filters or computed else math.inf
                return _fetched(connection, _select([*wanted], relation, filters, computed), seconds)
        pushed = {text: _pushed(text, known, self.kind) for text in filters}
        left = [text for text in filters if pushed[text] is None]
        asked = [name for text in [*left, *computed] for name in _names_in(text, known)]
        needed = list(dict.fromkeys([*wanted, *asked]))
        for column in asked if columns is None else needed:
            if known.get(column) in UNCLEAR:
                raise SourceError(f"{self.table}: {self.shown}: column {column} {UNCLEAR[known[column]]}")
        conditions = [sql for sql in pushed.values() if sql is not None]
        needed = needed or list(known)[:1]
        of_file = {name: one for name, one in of_file.items() if name in needed}
        rows = self._read(needed, conditions, known, asked, keys, exact, of_file)
        if left or computed:
            with _explained(self), memory_database(**_OF_OTHERS) as connection, _fitting(self.shown):
                connection.register("rows_in_memory", rows)
                texts = [name for name in rows.column_names if name.endswith(_AS_TEXT)]
                rows = _fetched(connection, _select(wanted, "rows_in_memory", left, computed, texts), QUERY_SECONDS)
        return rows if not wanted and not computed else rows.select([*wanted, *computed])

    def _read(
        self,
        columns: Sequence[str],
        where: Sequence[str],
        known: Mapping[str, str],
        asked: Sequence[str],
        keys: Sequence[str],
        exact: Sequence[str],
        of_file: Mapping[str, _CsvColumn],
    ) -> Any:
        """Read columns of the rows that conditions in the database's own SQL keep, of some with the texts of a file."""
        import pyarrow as pa

        if self.kind == "csv":
            for name, one in of_file.items():
                if name in keys and one.column.is_text and (rounded := one.column.rounded()):
                    raise SourceError(f"{self.table or 'source'}: {self.shown}: column {name}: holds {rounded}")
            for name in exact:
                if name in of_file and (merged := of_file[name].merged()) is not None:
                    raise SourceError(_one_number(self, name, merged))
            texts = {f"{name}{_AS_TEXT}": of_file[name].texts() for name in asked if of_file[name].is_number}
            return pa.table({**{name: one.values for name, one in of_file.items()}, **texts})
        if self.kind == "sqlite":
            with _sqlite(self) as connection:
                kinds = _sqlite_kinds(self, connection)
                cursor = connection.execute(_statement(columns, _quote(self.table), where))
                size = max(_LEAST_ROWS, _FETCH_ROWS // max(len(columns), 1))
                return _gathered(iter(lambda: cursor.fetchmany(size), []), columns, kinds, self.shown)
        if self.kind == "postgres":
            # As text, CHAR(n) loses its padding.
            # A moment with a time zone is that of UTC, the session's; decimals become numbers here, which are exact.
            types = {"timestamp": "TIMESTAMP"}
            casts = {name: types.get(known[name], "TEXT") for name in columns if known[name] not in _AS_THEY_ARE}
            schema, table = _postgres_table(self.table)
            statement = _statement(columns, f"{_quote(schema)}.{_quote(table)}", where, casts)
            with _postgres(self) as connection, _fitting(self.shown):
                connection.execute("SET bytea_output = 'hex'")
                stored = dict(connection.execute(DESCRIBE, [schema, table]).fetchall())
                found = copied(connection, statement, _schema(columns, known, pa.string()))
                made, large = {name: found.column(name) for name in columns}, is_large(found.nbytes)
                for name in columns:
                    if known[name] == "decimal":
                        made[name] = mapped_if_large(_decimals(made[name], name), large)
                    elif stored[name] in ("bit", "bit varying"):
                        made[name] = mapped_if_large(_bits(made[name]), large)
                    elif stored[name] == "bytea":
                        made[name] = mapped_if_large(_bytes(made[name]), large)
                return pa.table(made)
        with _duckdb(self) as (connection, relation), _fitting(self.shown):
            return _fetched(connection, _statement(columns, relation, where))


QUERY_SECONDS = 600.0
"""For which what others ask of a table may compute."""


def _fetched(connection: Any, sql: str, seconds: float = math.inf) -> Any:
    """Return the `pyarrow.Table` of a query's rows: in memory, or where they are large block by block in files.

    DuckDB ends a query that takes longer, or whose run is over.
    """
    with interruptible(connection.interrupt, seconds):
        relation = connection.sql(sql)
        schema = connection.sql(f"SELECT * FROM ({sql}) LIMIT 0").to_arrow_table().schema
        ((num_rows,),) = connection.sql(f"SELECT COUNT(*) FROM ({sql})").fetchall()
        if _wide_columns(relation) or not is_large(num_rows * row_bytes(schema)):
            return rows_of_relation(relation)
        size = min(_FETCH_ROWS, max(_VECTOR_ROWS, int(_BLOCK // row_bytes(schema))))
        return mapped_table(schema, num_rows, pieces_of(connection.sql(sql).to_arrow_reader(size)))


FINGERPRINT_ROWS, FINGERPRINT_CELLS = 1 << 16, 1 << 20
"""Rows, and values, of which a digest is taken at a time."""


def fingerprint(rows: Any, order_n: Any) -> bytes:
    """Return the SHA-256 of a table's rows in an order, as an Arrow stream of blocks has them."""
    import pyarrow as pa

    # types of columns in mapped files, and what they are in memory: a digest is the same of both
    narrow = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    schema = pa.schema([field.with_type(narrow.get(field.type, field.type)) for field in rows.schema])
    digest = _Digest()
    with pa.ipc.new_stream(pa.PythonFile(digest, mode="w"), schema) as stream:
        step = min(FINGERPRINT_ROWS, FINGERPRINT_CELLS // max(rows.num_columns, 1) + 1)
        for first in range(0, max(len(order_n), 1), step):
            block = rows.take(pa.array(order_n[first : first + step])).combine_chunks()
            stream.write_table(block if block.schema == schema else block.cast(schema))
    return digest.found.digest()


class _Digest(io.RawIOBase):
    """A file of which a SHA-256 is all that is kept."""

    def __init__(self) -> None:
        self.found = hashlib.sha256()
        self._size = 0

    def writable(self) -> bool:
        """Say that it may be written to."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._size

    def write(self, part: Any) -> int:
        """Take bytes."""
        self.found.update(part)
        self._size += len(part)
        return len(part)


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


def _statement(
    columns: Sequence[str], relation: str, where: Sequence[str], casts: Mapping[str, str] | None = None
) -> str:
    """Return the SELECT of columns of the rows that all conditions keep."""
    casts = casts or {}
    named = [f"CAST({_quote(c)} AS {casts[c]}) AS {_quote(c)}" if c in casts else _quote(c) for c in columns]
    text = f"SELECT {', '.join(named) or '1'} FROM {relation}"
    return text + (" WHERE " + " AND ".join(f"({condition})" for condition in where) if where else "")


_AS_TEXT = " (as text)"
"""Behind the name of a column of whole numbers of a CSV file: the texts that stand there."""


def _select(
    columns: Sequence[str], relation: str, where: Sequence[str], computed: Sequence[str], texts: Sequence[str] = ()
) -> str:
    """Return DuckDB's SELECT of columns and expressions of the rows that all conditions keep."""
    named = [_quote(column) for column in columns]
    named += [f"{_over_texts(one, texts)} AS {_quote(one)}" for one in computed]
    return _statement_of(named, relation, [_over_texts(one, texts) for one in where])


def _statement_of(named: Sequence[str], relation: str, where: Sequence[str]) -> str:
    text = f"SELECT {', '.join(named) or '1'} FROM {relation}"
    return text + (" WHERE " + " AND ".join(f"({condition})" for condition in where) if where else "")


def _over_texts(sql: str, texts: Sequence[str]) -> str:
    """Return an expression in which whole numbers of a CSV file are, where they are treated as texts, those texts."""
    import sqlglot
    from sqlglot import exp

    tree = sqlglot.parse_one(sql, dialect="duckdb")
    known = {text.removesuffix(_AS_TEXT).lower(): text for text in texts}
    for column in list(tree.find_all(exp.Column)):
        if column.name.lower() in known and is_among_texts(column):
            column.set("this", exp.to_identifier(known[column.name.lower()], quoted=True))
    return str(tree.sql(dialect="duckdb", identify=True))


def _names_in(sql: str, known: Mapping[str, str]) -> list[str]:
    """Return the table's columns in an expression."""
    import sqlglot
    from sqlglot import exp

    exact = {name.lower(): name for name in known}
    names = [column.name for column in sqlglot.parse_one(sql, dialect="duckdb").find_all(exp.Column)]
    return [name if name in known else exact.get(name.lower(), name) for name in names]


def _pushed(sql: str, kinds: Mapping[str, str], database: str) -> str | None:
    """Return a condition in the SQL of a database that provably keeps the rows that DuckDB would; None: nobody knows.

    Whole numbers are compared alike everywhere; texts are equal byte by byte where a database is told so. DuckDB's own
    files may hold texts that are compared otherwise. Nothing of the condition is passed on as it is written.
    """
    import sqlglot
    from sqlglot import exp

    exact = {name.lower(): name for name in kinds}
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    if database == "csv":
        return None

    def column(node: Any, kind: str) -> str | None:
        name = exact.get(node.name.lower()) if isinstance(node, exp.Column) else None
        return _quote(name) if name is not None and (kind == "any" or kinds[name] == kind) else None

    def literal(node: Any, kind: str) -> str | None:
        sign, node = ("-", node.this) if isinstance(node, exp.Neg) else ("", node)
        if not isinstance(node, exp.Literal) or node.is_string != (kind == "text"):
            return None
        if kind == "text":
            return None if sign or "\0" in node.name else _literal(node.name)
        return sign + node.name if node.name.isascii() and node.name.isdecimal() and len(node.name) < 19 else None

    def texts(name: str) -> str:
        return f"{name} COLLATE BINARY" if database == "sqlite" else f'CAST({name} AS TEXT) COLLATE "C"'

    def made(node: Any) -> str | None:
        if isinstance(node, exp.Paren):
            return made(node.this)
        if isinstance(node, exp.Not):
            inner = made(node.this)
            return None if inner is None else f"NOT ({inner})"
        if isinstance(node, exp.And | exp.Or):
            sides = [made(node.left), made(node.right)]
            return None if None in sides else f" {node.key.upper()} ".join(f"({side})" for side in sides)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            name = column(node.this, "any")
            return None if name is None else f"{name} IS NULL"
        if isinstance(node, exp.In) and node.expressions:
            operands, sign = [node.this, *node.expressions], "IN"
        elif type(node) in _SIGNS:
            operands, sign = [node.left, node.right], _SIGNS[type(node)]
            if isinstance(operands[1], exp.Column):
                operands, sign = operands[::-1], _TURNED.get(sign, sign)
        else:
            return None
        has_texts = sign in ("=", "<>", "IN") and database != "duckdb"
        for kind in ("integer", "text") if has_texts else ("integer",):
            name, values = column(operands[0], kind), [literal(one, kind) for one in operands[1:]]
            if name is not None and None not in values:
                listed, compared = ", ".join(map(str, values)), texts(name) if kind == "text" else name
                return f"{compared} {sign} " + (f"({listed})" if sign == "IN" else listed)
        return None

    _SIGNS = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
    _TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    return made(tree)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _plain(name: str) -> str:
    """Return a name as one writes it in a query."""
    return name if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name) else _quote(name)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _file_relation(source: TableSource) -> str:
    files = _parts_of(source.where)
    relation = f"read_parquet([{', '.join(map(_literal, files))}], hive_partitioning = false)"
    if not source.kinds:
        return relation
    casts = ", ".join(f"CAST({_quote(c)} AS {_duckdb_type(kind)}) AS {_quote(c)}" for c, kind in source.kinds)
    return f"(SELECT * REPLACE ({casts}) FROM {relation})"


def _duckdb_type(kind: str) -> str:
    if kind not in _DUCKDB_TYPES:
        raise SourceError(f"source: kind {kind!r} is not allowed: one of {', '.join(_DUCKDB_TYPES)}")
    return _DUCKDB_TYPES[kind]


def _parts_of(path: str) -> list[str]:
    """Return the files of a table: of a folder those that Spark and others write there, in the order of their names."""
    return list(map(str, files_at(path)))


def _reads_exactly(source: TableSource) -> bool:
    """Say whether DuckDB reads Parquet files as they are: here, of one type each, for it rounds to the first.

    Raises:
        SourceError: two columns are one to SQL.
    """
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    files = files_at(source.where)
    if address_of(source.where) or any(file.is_dir() for file in files):
        return False
    try:
        schemas = [pa_parquet.read_schema(file) for file in files]
    except (pa.ArrowInvalid, OSError):
        return True  # it is no such file, as DuckDB says in a line
    for one in schemas:
        _refuse_alike(one.names, source)
        refuse_pandas_types(list(one), f"{source.table or 'source'}: {source.where}")
    refuse_lost_column(files, schemas[0].names if schemas else (), f"{source.table or 'source'}: {source.where}")
    is_other = (pa.types.is_duration, pa.types.is_decimal256)  # numbers of 64 bits, and floats, to DuckDB
    is_known = not any(check(kind) for one in schemas for kind in one.types for check in is_other)
    return is_known and all(one.equals(schemas[0]) for one in schemas)


def _is_plain(source: TableSource, wanted: Sequence[str]) -> bool:
    """Say whether Arrow gives these columns of a Parquet file as DuckDB does, in half of the memory."""
    import pyarrow as pa
    import pyarrow.parquet as pa_parquet

    if source.kind != "parquet" or address_of(source.where) or not os.path.isfile(source.where):
        return False
    schema, types = pa_parquet.read_schema(source.where), pa.types
    checks = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_string, types.is_date32)
    kinds = [schema.field(name).type for name in wanted]
    return all(kind == pa.timestamp("us") or any(check(kind) for check in checks) for kind in kinds)


def _refuse_alike(names: Sequence[str], source: TableSource) -> None:
    """Refuse columns whose names differ by letters' case only: to SQL they are one, and DuckDB would name one anew."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.get(name.lower())) is not None:
            raise SourceError(
                f"{source.table or 'source'}: {source.shown}: columns {other!r} and {name!r} are one name to SQL; "
                "rename one of them, or make a view of the others in the database"
            )
        seen[name.lower()] = name


def _require_file(path: str) -> None:
    if not files_at(path):
        variable = unreplaced(path)
        raise DataMissing(f"source: there is no file {path}{variable and f'; {variable}'}")


@contextmanager
def _duckdb(source: TableSource) -> Iterator[tuple[Any, str]]:
    with _explained(source):
        if source.kind not in ("duckdb", "parquet") or (source.kind == "parquet" and not _reads_exactly(source)):
            rows = _rows_here(source)
            _refuse_alike(rows.column_names, source)
            with memory_database(**_CLOSED) as connection, _fitting(source.shown):
                connection.register("rows_in_memory", _as_duckdb_takes(rows))
                yield connection, "rows_in_memory"
            return
        _require_file(source.where)
        database = source.where if source.kind == "duckdb" else ":memory:"
        with _connected(database, _NO_EXTENSIONS, read_only=source.kind == "duckdb") as connection:
            if source.kind != "duckdb":
                files = ", ".join(map(_literal, _parts_of(source.where)))
                connection.execute(f"SET allowed_paths = [{files}]")
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection, _table_in(connection, source) if source.kind == "duckdb" else _file_relation(source)


def _table_in(connection: Any, source: TableSource) -> str:
    """Return the name of a table, or of one of a schema: ``sales.orders``."""
    schema, point, table = source.table.partition(".")
    asked = "SELECT 1 FROM information_schema.tables WHERE table_schema = ? AND table_name = ?"
    if point and connection.execute(asked, [schema, table]).fetchall():
        return f"{_quote(schema)}.{_quote(table)}"
    return _quote(source.table)


def _as_duckdb_takes(rows: Any) -> Any:
    """Return a table with floats, and decimals, of a width that DuckDB has; of wider ones the exact texts."""
    import pyarrow as pa

    for number, column in enumerate(rows.schema):
        values = rows.column(number)
        if pa.types.is_float16(column.type):
            values = values.cast(pa.float32())
        elif pa.types.is_decimal256(column.type):
            try:
                values = values.cast(pa.decimal128(_DIGITS, column.type.scale))
            except pa.ArrowInvalid:
                values = pa.chunked_array([exact_texts(plain_values(values), "key")])
        if values.type != column.type:
            rows = rows.set_column(number, column.name, values)
    return rows


def _rows_here(source: TableSource) -> Any:
    if source.kind == "object":
        return object_at(source.where)
    if source.kind == "view":
        return _view_rows(source)
    if source.kind in ("parquet", "library"):
        import pyarrow as pa

        found, _ = read_arrays(Path(source.where), source.table or "source", None, CsvFormat())
        return pa.table(found)
    return _named_rows(source) if source.kind == "named" else rows_of(source.rows)


def _bits(texts: Any) -> Any:
    """Return bits that a database shows as texts: as bytes where several stand together, for 0101 is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    longest = pc.max(pc.utf8_length(texts)).as_py() or 0
    return texts if longest <= 1 else texts.cast(pa.binary())


def _bytes(texts: Any) -> Any:
    """Return bytes that a database shows as texts, as other sources have them."""
    import pyarrow as pa

    return pa.array([None if one is None else bytes.fromhex(one[2:]) for one in texts.to_pylist()], pa.binary())


_WIDE = ("HUGEINT", "UHUGEINT", "BIGNUM", "VARINT")
_AS_THEY_SHOW = ("BIT", "TIME WITH TIME ZONE")
"""Types of which Arrow would have a part."""
_IN_LISTS = re.compile(r"(BIT|TIME WITH TIME ZONE|UHUGEINT)(\[[0-9]*\])+")
"""Lists of which Arrow would have other values."""


def _wide_columns(relation: Any) -> dict[str, str]:
    """Return the columns that DuckDB would give to Arrow as other values, with their kinds."""
    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    for name, kind in kinds.items():
        if _IN_LISTS.fullmatch(kind):
            raise ValueError(
                f"column {name} holds lists of the type {kind}, of which Arrow has other values; in a view write a "
                f"column of each place, such as {_plain(name)}[1] AS {name}1"
            )
    return {name: kind for name, kind in kinds.items() if kind in (*_WIDE, *_AS_THEY_SHOW)}


def rows_of_relation(relation: Any) -> Any:
    """Return DuckDB's rows as Arrow: whole numbers of more than 64 bits exactly, which it would give as others.

    Raises:
        ValueError: one has more digits than are read.
    """
    casts = _wide_columns(relation)
    if not casts:
        return relation.to_arrow_table()
    replaced = ", ".join(f"CAST({_quote(name)} AS VARCHAR) AS {_quote(name)}" for name in casts)
    found = relation.project(f"* REPLACE ({replaced})").to_arrow_table()
    for name, kind in casts.items():
        if kind in (*_WIDE, "BIT"):
            made = _bits(found.column(name)) if kind == "BIT" else _decimals(found.column(name), name)
            found = found.set_column(found.column_names.index(name), name, made)
    return found


def _view_rows(source: TableSource) -> Any:
    """Return what a SELECT over a party's own tables gives, always in the same order."""
    with memory_database(**_CLOSED, threads=1) as connection:
        for table in source.tables:
            connection.register(table.label, _with_texts(table, source.sql))
        with _explained(source), _fitting(source.shown):
            return _fetched(connection, source.sql)


def _with_texts(source: TableSource, sql: str) -> Any:
    """Return a table in which numbers of a CSV file are the texts that stand there, where these say more: 007.

    Raises:
        SourceError: a view computes with them and finds rows by them too.
    """
    if source.kind != "csv":
        return source.load(_columns_in(sql, source))
    parsed = _parsed(source)
    found = source.load()
    for name, column in parsed.columns.items():
        if not (code := column.code()):
            continue
        as_key, as_number = _uses(sql, name)
        if as_key and as_number:
            raise SourceError(
                f"{source.label}: {source.shown}: column {name} holds codes such as {code!r}, and the view computes "
                f"with it and finds rows by it: write CAST({_plain(name)} AS DOUBLE) or CAST({_plain(name)} AS "
                "VARCHAR) in each place"
            )
        if not as_number:
            found = found.set_column(found.column_names.index(name), name, [column.texts()])
    return found


def _columns_in(sql: str, source: TableSource) -> list[str] | None:
    """Return the columns of a table that a SELECT may read, by all names that occur in it; None: all."""
    import sqlglot
    from sqlglot import exp

    tree = sqlglot.parse_one(sql, dialect="duckdb")
    names = {one.name.lower() for one in tree.find_all(exp.Identifier)}
    tables = {one.alias_or_name.lower() for one in tree.find_all(exp.Table)}
    has_others = any(not isinstance(one.parent, exp.Count) for one in tree.find_all(exp.Star))
    has_rows = any(one.name.lower() in tables for one in tree.find_all(exp.Column))  # a row as a struct
    are_natural = any((one.args.get("method") or "").upper() == "NATURAL" for one in tree.find_all(exp.Join))
    if has_others or has_rows or are_natural or tree.find(exp.Pivot, exp.Columns, exp.PositionalColumn):
        return None
    known = source.names()
    return [name for name in known if name.lower() in names] or known[:1]


def _uses(sql: str, name: str) -> tuple[bool, bool]:
    """Say whether a SELECT finds rows by a column, or has it as a text, and whether it computes with it."""
    import sqlglot
    from sqlglot import exp

    tree = sqlglot.parse_one(sql, dialect="duckdb")
    has_sets = tree.find(exp.Distinct, exp.Union, exp.Intersect, exp.Except) is not None
    using = [one.name.lower() for join in tree.find_all(exp.Join) for one in join.args.get("using") or ()]
    as_key, as_number = name.lower() in using, False
    for column in tree.find_all(exp.Column):
        if column.name.lower() != name.lower():
            continue
        node = column.parent
        while isinstance(node, exp.Paren | exp.Alias):
            node = node.parent
        is_pair = isinstance(node, exp.EQ) and isinstance(node.left, exp.Column) and isinstance(node.right, exp.Column)
        if isinstance(node, exp.Group | exp.Tuple | exp.Count | exp.Distinct) or is_pair or is_among_texts(column):
            as_key |= not isinstance(node, exp.Cast)
        elif isinstance(node, exp.Select):
            as_key |= has_sets
        elif not isinstance(node, exp.Cast | exp.Is | exp.Subquery):
            as_number = True
    return as_key, as_number


@contextmanager
def _explained(source: TableSource) -> Iterator[None]:
    """Turn what DuckDB says into one line that names the source."""
    import duckdb

    try:
        yield
    except duckdb.InterruptException:
        said = f"it computed for more than {QUERY_SECONDS:g} s, or its run was stopped"
        raise SourceError(f"{source.table or 'source'}: {source.shown}: {said}") from None
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
_CLOSED: dict[str, str | int | bool] = {**_NO_EXTENSIONS, "enable_external_access": False, "lock_configuration": True}
"""Settings of a database in memory that reaches nothing else."""
_OF_OTHERS: dict[str, str | int | bool] = {**_CLOSED, "temp_directory": ""}
"""The same for what others ask, row by row, which needs no files beside its memory."""


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
        "keepalives_idle": 60,
        "keepalives_interval": 10,
        "keepalives_count": 6,
        **options,
        "client_encoding": "UTF8",
        "host": host,
        "port": port,
        "dbname": unquote(parts.path.strip("/")),
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        # last, so that neither an option of the address nor a setting of the user takes it back; synchronised scans
        # would start in the middle, and parallel workers mix their rows
        "options": f"-c lock_timeout={_LOCK_SECONDS}s {options.get('options', '')} -c default_transaction_read_only=on"
        " -c synchronize_seqscans=off -c max_parallel_workers_per_gather=0 -c datestyle=ISO -c timezone=UTC"
        " -c extra_float_digits=1"
        " -c intervalstyle=postgres -c bytea_output=hex -c lc_monetary=C",
    }


_LOCK_SECONDS = 60
"""To wait for a table that somebody changes."""
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


def _likely_table(connection: Any, schema: str, table: str) -> str:
    """Return what to say of a table that is not there."""
    found = [name for (name,) in connection.execute(LIKELY, [table]).fetchall()]
    if f"{schema}.{table}" in found:
        return " of which this user may read a column: GRANT USAGE ON SCHEMA and GRANT SELECT allow it"
    return f"; there is {' and '.join(found)}" if found else ""


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


# --- kinds of what has no types -------------------------------------------------------------------------------------

_TOO_LONG = r"[1-9][0-9]{38}"
_WHOLE_NUMBER, _TRUTH = r"^[+-]?[0-9]+$", {"true": True, "false": False}
_DIGITS = 38
"""Of the longest whole number that DuckDB holds."""


class _CsvColumn(NamedTuple):
    """A column of a CSV file."""

    kind: str
    values: Any
    """Of that kind."""
    column: Column
    """As it stands there."""
    is_large: bool

    @property
    def is_number(self) -> bool:
        """Whether its texts are numbers as well."""
        return self.column.is_text and self.kind in NUMBER_KINDS

    def texts(self) -> Any:
        """Return the texts of its numbers, without blanks."""
        return mapped_if_large(self.column.codes(), self.is_large)

    def merged(self) -> tuple[str, str] | None:
        """Return two texts that are one number; whole numbers that are written as floats, 7.0 and 7, are none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.is_number:
            return None
        values = self.values
        if self.kind == "float":
            values = pc.add(values, 0.0)  # -0.0 is 0.0
            if pc.all(pc.equal(values, pc.floor(values))).as_py():
                return None
        rows = pa.table({"text": self.column.codes(), "value": values})
        counted = rows.group_by("value").aggregate([("text", "count_distinct")])
        several = counted.filter(pc.greater(counted.column("text_count_distinct"), 1)).column("value").drop_null()
        if not len(several):
            return None
        first, second, *_ = rows.filter(pc.equal(rows.column("value"), several[0])).column("text").unique().to_pylist()
        return first, second

    def code(self) -> str:
        """Return one of its texts that shows that they are no mere numbers; empty: there is none."""
        import pyarrow.compute as pc

        if self.kind != "numeral" or not self.column.is_text:
            return self.column.code() if self.kind == "code" else ""
        texts = self.column.codes().drop_null()
        codes = texts.filter(pc.match_substring_regex(texts, "^[+-]?0[0-9]"))
        return codes[0].as_py() if len(codes) else (self.merged() or ("",))[0]


def _one_number(source: TableSource, name: str, texts: tuple[str, str]) -> str:
    """Return what to say of two texts of a key that are one number."""
    first, second = map(repr, texts)
    kind = "BIGINT" if all(re.fullmatch(_WHOLE_NUMBER, text) for text in texts) else "DOUBLE"
    return (
        f"{source.table or 'source'}: {source.shown}: column {name}: {first} and {second} are one number, by which "
        f"rows would be found; where they are one key, write CAST({_plain(name)} AS {kind}), where they are two, "
        f"CAST(... AS VARCHAR) on both sides"
    )


@dataclass(frozen=True, eq=False)
class ParsedFile:
    """The columns of a CSV file, of the kinds that its values have."""

    columns: Mapping[str, _CsvColumn]


_HELD: WeakValueDictionary[Any, ParsedFile] = WeakValueDictionary()
"""Files that somebody in this process holds, by how they are read and what the file system says of them."""


def _parsed(source: TableSource) -> ParsedFile:
    """Parse a CSV file, or return what somebody holds of it, if it has not changed since."""
    _require_file(source.where)
    if address_of(source.where):
        return ParsedFile(_csv_columns(source))
    stats = [os.stat(file) for file in files_at(source.where)]
    state = tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in stats)
    key = (source.where, source.table, source.csv, source.kinds, state)
    found = _HELD.get(key)
    if found is None:
        found = _HELD[key] = ParsedFile(_csv_columns(source))
    return found


def _csv_columns(source: TableSource) -> dict[str, _CsvColumn]:
    """Return the columns of a CSV file."""
    where = source.table or "source"
    arrays, present = read_arrays(Path(source.where), where, None, source.csv or CsvFormat())
    if not present:
        raise SourceError(f"{where}: {source.where} has no column")
    made, meant = {}, dict(source.kinds)
    large = is_large(sum(values.nbytes for values in arrays.values()))
    for name, values in arrays.items():
        column = Column(name, values, source.csv)
        kind, typed = _csv_kind(column) if column.is_text else (_arrow_kind(column.values.type), column.values)
        if name in meant:
            kind = meant[name]
            with _explained(source), memory_database(**_CLOSED) as connection:
                import pyarrow as pa

                connection.register("one_column", pa.table({"c": typed}))
                sql = f"SELECT CAST(c AS {_duckdb_type(kind)}) AS c FROM one_column"
                typed = connection.sql(sql).to_arrow_table().column("c")
        made[name] = _CsvColumn(
            kind, mapped_if_large(typed, large) if typed is not column.values else typed, column, large
        )
    return made


def _csv_kinds(source: TableSource, columns: Mapping[str, _CsvColumn]) -> dict[str, str]:
    """Return the kinds of the columns of a CSV file, which are all that it has."""
    _refuse_alike(list(columns), source)
    if not any(len(one.values) for one in columns.values()):
        raise SourceError(f"{source.table or 'source'}: {source.where} has a header and no row")
    return {name: one.kind for name, one in columns.items()}


def _csv_kind(column: Column) -> tuple[str, Any]:
    """Return the kind of a column of texts, and its values: text unless all of them are of another kind."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = column.values
    if texts.null_count == len(texts):
        return "text", texts
    numerals = column.numerals()
    present = numerals.drop_null()
    if pc.all(pc.match_substring_regex(present, _WHOLE_NUMBER)).as_py():
        if pc.any(pc.match_substring_regex(present, _TOO_LONG)).as_py():  # of which Arrow makes another number
            return "text", texts
        for kind in (pa.int64(), pa.decimal128(_DIGITS, 0)):
            try:
                return "numeral", pc.cast(numerals, kind)
            except pa.ArrowInvalid:
                continue
        return "text", texts
    if pc.all(pc.is_in(pc.utf8_lower(present), pa.array(_TRUTH))).as_py():
        return "boolean", pc.equal(pc.utf8_lower(numerals), "true")
    if not column.first_text():
        numbers = pa.array(column.numbers(column.name), pa.float64(), mask=column.is_missing())
        return ("code" if column.code() else "float"), numbers
    for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            return _arrow_kind(kind), pc.cast(texts, kind)
        except pa.ArrowInvalid:
            continue
    return "text", texts


_STORED = ("integer", "real", "text", "blob")


def _sqlite_columns(source: TableSource, connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the columns and their declared types."""
    # which has generated columns too; the hidden ones of a virtual table are its own
    asked = "SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1"
    found = connection.execute(asked, [source.table]).fetchall()
    if not found:
        raise SourceError(f"source: no table {source.table!r} in {source.where}")
    return found


def _sqlite_kinds(source: TableSource, connection: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """Return the kind of each column by the types of its values, and its declared type, which binds nobody."""
    found = _sqlite_columns(source, connection)
    kinds: dict[str, tuple[str, str]] = {}
    for first in range(0, len(found), 100):  # SQLite selects so many columns at once
        some = found[first : first + 100]
        kinds_asked = [f"max(typeof({_quote(name)}) = '{kind}')" for name, _ in some for kind in _STORED]
        stored = connection.execute(f"SELECT {', '.join(kinds_asked)} FROM {_quote(source.table)}").fetchone()
        for number, (name, declared) in enumerate(some):
            has = {kind for kind, is_there in zip(_STORED, stored[number * 4 :], strict=False) if is_there}
            kinds[name] = (_sqlite_kind(source, connection, name, declared.upper(), has), declared)
    return kinds


def _sqlite_kind(source: TableSource, connection: sqlite3.Connection, name: str, declared: str, has: set[str]) -> str:
    """Return the kind of values of these types; the declared one tells what texts and whole numbers stand for."""
    if not has:
        return _declared_kind(declared)
    meant = _declared_kind(declared)
    if has in ({"integer"}, {"text"}) or (has == {"integer", "text"} and meant == "boolean"):
        asked = f"SELECT DISTINCT {_quote(name)} FROM {_quote(source.table)} WHERE {_quote(name)} IS NOT NULL"

        def all_are(kind: str) -> bool:
            cursor = connection.execute(asked)
            return all(_are([value for (value,) in some], kind) for some in iter(partial(cursor.fetchmany, 10_000), []))

        if meant == "boolean" and all_are("boolean"):
            return "boolean"
        if len(has) > 1:
            return "other"
        if has == {"integer"} and meant == "date" and all_are("date"):  # 20240131
            return "date"
        if has == {"text"} and meant in ("date", "timestamp"):
            found = next((kind for kind in ("date", "timestamp", "zoned") if all_are(kind)), "text")
            return "timestamp" if found == "zoned" else found
        return "text" if has == {"text"} else "integer"
    if has <= {"integer", "real"}:
        return "decimal" if meant == "decimal" else "float"
    return "other"


_BEYOND_FLOATS = r"^-?[0.]*[1-9](?:\.?[0-9]){15,}$"
"""Decimals that a float does not hold digit by digit."""
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "true", "y", "yes", "on"), True),
    **dict.fromkeys(("0", "f", "false", "n", "no", "off"), False),
}
"""What stands in a column that is declared to be BOOLEAN."""


def _are(values: Sequence[Any], kind: str) -> bool:
    """Say whether values may all be of a kind that SQLite does not have."""
    if kind == "boolean":
        return all(str(value).lower() in _BOOLEANS for value in values)
    return _as_moments(values, kind) is not None


def _as_moments(values: Sequence[Any], kind: str) -> Any:
    """Return texts, or whole numbers such as 20240131, as dates or moments (of UTC); None: one of them is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = [value for value in values if isinstance(value, int)]
    if numbers and (kind != "date" or not all(18000101 <= value <= 22001231 for value in numbers)):
        return None
    values = [f"{v // 10000}-{v // 100 % 100:02}-{v % 100:02}" if isinstance(v, int) else v for v in values]
    types = {"date": pa.date32(), "timestamp": pa.timestamp("us"), "zoned": pa.timestamp("us", "UTC")}
    try:
        found = pc.cast(pa.array(values, pa.string()), types[kind])
    except pa.ArrowInvalid:
        return None
    return found.cast(types["timestamp"]) if kind == "zoned" else found


def _gathered(
    batches: Iterator[Sequence[Sequence[object]]],
    columns: Sequence[str],
    kinds: Mapping[str, tuple[str, str]],
    location: str,
) -> Any:
    import pyarrow as pa

    schema = _schema(columns, {name: kind for name, (kind, _) in kinds.items()})

    def converted(rows: Sequence[Sequence[object]]) -> Any:
        with _fitting(location):
            arrays = [
                _sqlite_values(name, values, kinds[name][0], schema.field(name).type)
                for name, values in zip(columns, zip(*rows, strict=True), strict=True)
            ]
        return pa.record_batch(arrays, schema=schema)

    return gathered(schema, map(converted, batches))


def _sqlite_values(name: str, values: Sequence[Any], kind: str, arrow: Any) -> Any:
    """Return values of one kind as Arrow has them."""
    import pyarrow as pa

    if kind == "boolean":
        values = [None if v is None else _BOOLEANS[str(v).lower()] for v in values]
    elif kind in ("float", "decimal"):
        large = next((v for v in values if isinstance(v, int) and abs(v) > 2**53), None)
        if large is not None:
            raise ValueError(f"column {name} holds {large} beside numbers with a point, which would round it")
        values, arrow = [None if v is None else float(v) for v in values], pa.float64()
    elif kind in ("date", "timestamp"):
        found = _as_moments(values, kind)
        return _as_moments(values, "zoned") if found is None else found
    elif kind == "other":
        some = {type(v).__name__: v for v in values if v is not None}
        if set(some) != {"str"}:
            told = " and ".join(f"{v!r} ({one})" for one, v in some.items())
            raise ValueError(
                f"column {name} holds {told}; in a view, write NULLIF({_plain(name)}, 'TEXT') where a text means that "
                f"a value is missing, else {'hex' if 'bytes' in some else 'CAST'}({_plain(name)}"
                f"{'' if 'bytes' in some else ' AS TEXT'}): a CAST to a number makes 0 of what is none"
            )
    return pa.array(values, type=arrow)


def _decimals(texts: Any, name: str) -> Any:
    """Return decimals that were read as texts, exactly; as floats where some are no finite numbers.

    Raises:
        ValueError: one has more digits than DuckDB holds.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]  # one at a time, so that copies are small
    found = [_digits(part) for part in parts]
    if any(one is None for one in found):
        if any(pc.any(pc.match_substring_regex(part, _BEYOND_FLOATS)).as_py() for part in parts):
            raise ValueError(
                f"column {name} holds NaN or infinity beside decimals of more than 15 digits, which floats "
                "would round; write NULL for them in a view, or CAST the column to DOUBLE PRECISION"
            )
        return pc.cast(texts, pa.float64())
    whole, scale = (max(sizes) for sizes in zip(*filter(None, found), (0, 0), strict=True))
    if whole + scale > _DIGITS:
        raise ValueError(
            f"column {name}: a decimal of {whole + scale} digits; at most {_DIGITS} are read; in a view, CAST it to "
            "DOUBLE PRECISION to learn from it, or to TEXT"
        )
    kind = pa.decimal128(_DIGITS, scale)
    return pa.chunked_array([pc.cast(part, kind) for part in parts], kind)


def _digits(texts: Any) -> tuple[int, int] | None:
    """Return the most digits before and behind the point; None: some are no finite numbers."""
    import pyarrow.compute as pc

    if pc.any(pc.match_substring_regex(texts, "[A-Za-z]")).as_py():
        return None
    digits = pc.replace_substring_regex(texts, r"^-?0*", "")
    behind = pc.max(pc.utf8_length(pc.replace_substring_regex(digits, r"^[0-9]*\.?", ""))).as_py()
    before = pc.max(pc.utf8_length(pc.replace_substring_regex(digits, r"\..*$", ""))).as_py()
    return before or 0, behind or 0


def _schema(columns: Sequence[str], kinds: Mapping[str, str], decimal: Any = None) -> Any:
    import pyarrow as pa

    types = {
        "integer": pa.int64(), "float": pa.float64(), "decimal": decimal or pa.float64(), "boolean": pa.bool_(),
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


def _declared_kind(declared: str) -> str:
    """Return the kind that a column is declared to have, by SQLite's own affinity rules, with dates and booleans."""
    if "INT" in declared:
        return "integer"
    if any(part in declared for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if any(part in declared for part in ("REAL", "FLOA", "DOUB")):
        return "float"
    if "BOOL" in declared:
        return "boolean"
    if "DEC" in declared or "NUM" in declared:
        return "decimal"
    if "TIME" in declared:
        return "timestamp"
    return "date" if "DATE" in declared else "text"


_DUCKDB_TYPES = {
    "integer": "BIGINT", "float": "DOUBLE", "boolean": "BOOLEAN", "text": "VARCHAR", "date": "DATE",
    "timestamp": "TIMESTAMP",
}  # fmt: skip

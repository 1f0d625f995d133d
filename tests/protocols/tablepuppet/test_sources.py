from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedactors.errors import DataMissing
from protocols.tablepuppet.faults import SourceError, UnknownColumnError
from protocols.tablepuppet.mapping import hash_keys, table_mapping
from protocols.tablepuppet.plan import make_plan
from protocols.tablepuppet.sources import (
    ArrowSource,
    DuckDBSource,
    FileSource,
    PostgresSource,
    SQLiteSource,
    _postgres,
    count_nulls,
    describe,
    parse_address,
    read,
)
from protocols.tablepuppet.sql import parse_query

NAME, ODD = 'odd "table', "a; DROP TABLE x --"
DATA = pa.table({"id": [1, 2, None, 4], ODD: [0.5, 1.5, 2.5, 3.5], "town": ["x", "it's", None, "z"]})
KINDS = {"id": "integer", ODD: "float", "town": "text"}
COLUMNS = '("id" BIGINT, "a; DROP TABLE x --" DOUBLE PRECISION, "town" TEXT)'
QUOTED = '"odd ""table"'


def make_duckdb(folder):
    path = str(folder / "a.duckdb")
    with duckdb.connect(path) as connection:
        connection.register("incoming", DATA)
        connection.execute(f"CREATE TABLE {QUOTED} AS SELECT * FROM incoming")
    return DuckDBSource(path, NAME)


def make_sqlite(folder):
    path = str(folder / "a.sqlite")
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {QUOTED} {COLUMNS}")
    connection.executemany(f"INSERT INTO {QUOTED} VALUES (?, ?, ?)", [tuple(r.values()) for r in DATA.to_pylist()])
    connection.commit()
    connection.close()
    return SQLiteSource(path, NAME)


def make_parquet(folder):
    path = str(folder / "it's.parquet")
    pyarrow.parquet.write_table(DATA, path)
    return FileSource(path)


def make_csv(folder):
    path = str(folder / "a.csv")
    pyarrow.csv.write_csv(DATA, path)
    return FileSource(path)


def make_arrow(folder):
    return ArrowSource(DATA)


@pytest.fixture(scope="session")
def postgres():
    """A real PostgreSQL server with the user of the tests; yields (host, port).

    Its folder is not under pytest's: those are closed to the account that the server must run under for root.
    """
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(p) for p in [shutil.which("initdb")] if p]
    if not found:
        pytest.skip("no PostgreSQL server is installed")
    binaries = found[-1].parent
    account = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        data, secret = folder / "data", folder / "password"
        secret.write_text("s3cret-pw")
        if account:
            shutil.chown(folder, "postgres", "postgres")
            shutil.chown(secret, "postgres", "postgres")
        run = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, **account}
        setup = ["-D", data, "-U", "org", f"--pwfile={secret}", "-A", "scram-sha-256"]
        subprocess.run([binaries / "initdb", *setup], **run)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        subprocess.run([binaries / "pg_ctl", "-D", data, "-l", folder / "log", "-w", "-o", options, "start"], **run)
        yield "127.0.0.1", port
        subprocess.run([binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **run)


def make_postgres(address, data=DATA, table=NAME, columns=COLUMNS):
    import psycopg

    host, port = address
    source = PostgresSource(host, "postgres", table, port=port, user="org", password="s3cret-pw")
    quoted = '"' + table.replace('"', '""') + '"'
    with psycopg.connect(host=host, port=port, user="org", password="s3cret-pw", dbname="postgres") as connection:
        connection.execute(f"DROP TABLE IF EXISTS {quoted}")
        connection.execute(f"CREATE TABLE {quoted} {columns}")
        with connection.cursor() as cursor, cursor.copy(f"COPY {quoted} FROM STDIN") as copy:
            for row in data.to_pylist():
                copy.write_row(tuple(row.values()))
    return source


MAKERS = {"duckdb": make_duckdb, "sqlite": make_sqlite, "parquet": make_parquet, "csv": make_csv, "arrow": make_arrow}


@pytest.fixture(params=[*MAKERS, "postgres"])
def source(request, tmp_path):
    if request.param == "postgres":
        return make_postgres(request.getfixturevalue("postgres"))
    return MAKERS[request.param](tmp_path)


def test_every_database_describes_and_reads_the_same(source):
    assert describe(source) == KINDS
    assert read(source, list(KINDS)).to_pydict() == DATA.to_pydict()
    picked = read(source, [ODD], (f'"{ODD}" > 1', "\"town\" = 'it''s' OR \"id\" IS NULL"))
    assert sorted(picked.column(ODD).to_pylist()) == [1.5, 2.5]
    assert picked.column_names == [ODD]


def test_an_unknown_column_is_a_named_error(source):
    with pytest.raises(UnknownColumnError, match="nope"):
        read(source, ["nope"])


def test_more_rows_than_one_batch_arrive(tmp_path):
    path = str(tmp_path / "long.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (n INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?)", ((i,) for i in range(120_001)))
    connection.commit()
    connection.close()
    assert read(SQLiteSource(path, "t"), ["n"]).column("n").to_pylist() == list(range(120_001))


def test_null_keys_are_counted():
    assert count_nulls(DATA, ["id"]) == 1
    assert count_nulls(DATA, ["id", "town"]) == 1
    assert count_nulls(DATA, []) == 0


@pytest.mark.parametrize("kind", [DuckDBSource, SQLiteSource])
def test_a_missing_file_or_table_is_a_named_error(kind, tmp_path):
    with pytest.raises(DataMissing, match="no file"):
        describe(kind(str(tmp_path / "none"), "t"))
    made = (make_duckdb if kind is DuckDBSource else make_sqlite)(tmp_path)
    with pytest.raises(SourceError, match="nope"):
        describe(kind(made.path, "nope"))


def test_addresses():
    assert parse_address("duckdb:a/b.duckdb?table=my t") == DuckDBSource("a/b.duckdb", "my t")
    assert parse_address("sqlite:x.db?table=t") == SQLiteSource("x.db", "t")
    assert parse_address("x.csv.gz") == FileSource("x.csv.gz")
    made = parse_address("postgresql://org:p%40ss@db.example:6000/shop?table=sales.orders")
    assert made == PostgresSource("db.example", "shop", "orders", "sales", 6000, "org", "p@ss")
    assert made.address == "postgresql://org@db.example:6000/shop?table=sales.orders"


@pytest.mark.parametrize("address", ["duckdb:x", "ftp://x", "postgresql://u:hidden@h/db", "postgresql://u:hidden@/x?table=t",
                                     "mysql://u:hidden@h/x", "postgresql://u:hidden@h:port/x?table=t"])  # fmt: skip
def test_a_bad_address_is_an_error_without_its_password(address):
    with pytest.raises(SourceError) as caught:
        parse_address(address)
    assert "hidden" not in str(caught.value)


def test_a_password_is_in_neither_repr_nor_error(postgres):
    host, port = postgres
    wrong = PostgresSource(host, "postgres", "t", port=port, user="org", password="wr0ng-pw")
    assert "wr0ng-pw" not in repr(wrong)
    with pytest.raises(SourceError, match="password authentication failed") as caught:
        describe(wrong)
    assert "wr0ng-pw" not in str(caught.value)


def test_an_unreachable_server_is_a_named_error():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(SourceError, match=r"postgresql://org@127\.0\.0\.1:1/x"):
        describe(PostgresSource("127.0.0.1", "x", "t", port=1, user="org", password="pw", connect_timeout_s=2))


def test_without_the_driver_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DataMissing, match="fedactors\\[postgres\\]"):
        describe(PostgresSource("h", "d", "t"))


def test_postgres_is_opened_read_only(postgres):
    made = make_postgres(postgres)
    with pytest.raises(SourceError, match="read-only"), _postgres(made) as connection:
        connection.execute(f"DELETE FROM {QUOTED}")
    assert read(made, ["id"]).num_rows == 4


def test_one_join_across_four_kinds_of_database(tmp_path, postgres):
    orders = pa.table({"item": [1, 2, 2, 9], "card": ["a", "b", "a", "a"], "y": [1.0, 2.0, 3.0, 4.0]})
    north, south = pa.table({"card": ["a"], "age": [30]}), pa.table({"card": ["b"], "age": [50]})
    items = pa.table({"item": [2, 1, 2], "price": [5.0, 6.0, 7.0]})
    pyarrow.parquet.write_table(orders, tmp_path / "orders.parquet")
    with duckdb.connect(str(tmp_path / "i.duckdb")) as connection:
        connection.register("incoming", items)
        connection.execute("CREATE TABLE items AS SELECT * FROM incoming")
    connection = sqlite3.connect(tmp_path / "n.db")
    connection.execute("CREATE TABLE cards (card TEXT, age INTEGER)")
    connection.execute("INSERT INTO cards VALUES ('a', 30)")
    connection.commit()
    connection.close()
    sources = {
        "orders": FileSource(str(tmp_path / "orders.parquet")),
        "items": DuckDBSource(str(tmp_path / "i.duckdb"), "items"),
        "north": SQLiteSource(str(tmp_path / "n.db"), "cards"),
        "south": make_postgres(postgres, south, "cards", "(card VARCHAR(9), age INT)"),
    }
    plan = make_plan(
        parse_query("SELECT o.y, i.price, c.age FROM orders o JOIN items i ON o.item = i.item JOIN "
                    "(SELECT * FROM north UNION ALL SELECT * FROM south) c ON o.card = c.card"),
        {name: describe(source) for name, source in sources.items()}, "y",
    )  # fmt: skip
    data = {
        t.name: pa.concat_tables([read(sources[p.source], t.needed_columns(), p.where) for p in t.partitions])
        for t in plan.tables
    }
    hashes = {n: [hash_keys(d, e, n, b"k" * 32) for e in plan.edges_of(n)] for n, d in data.items()}
    mapping = table_mapping(plan, hashes, threads=1)
    rows = sorted(zip(*(r.tolist() for r in mapping.rows), strict=True))
    assert rows == [(0, 1, 0), (1, 0, 1), (1, 2, 1), (2, 0, 0), (2, 2, 0)]
    assert data["c"].column("age").to_pylist() == [*north["age"].to_pylist(), *south["age"].to_pylist()]


def test_a_csv_file_may_write_null_in_words_and_its_kinds_may_be_declared(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("hour,wind\n5.0,NA\n,3.5\nmissing,2\n")
    plain = FileSource(str(path), null_texts=("NA", "missing"))
    assert describe(plain) == {"hour": "float", "wind": "float"}
    meant = FileSource(str(path), null_texts=("NA", "missing"), kinds=(("hour", "integer"),))
    assert describe(meant) == {"hour": "integer", "wind": "float"}
    assert read(meant, ["hour", "wind"]).to_pydict() == {"hour": [5, None, None], "wind": [None, 3.5, 2.0]}
    with pytest.raises(SourceError, match="'hours' is not allowed"):
        describe(FileSource(str(path), kinds=(("hour", "hours"),)))


def test_sqlite_booleans_and_decimals_become_what_they_mean(tmp_path):
    connection = sqlite3.connect(tmp_path / "b.db")
    connection.execute("CREATE TABLE t (flag BOOLEAN, price DECIMAL(9, 2), day DATE)")
    connection.execute("INSERT INTO t VALUES (1, 2, '2024-01-31'), (NULL, 2.5, NULL)")
    connection.commit()
    connection.close()
    source = SQLiteSource(str(tmp_path / "b.db"), "t")
    assert describe(source) == {"flag": "boolean", "price": "decimal", "day": "text"}
    assert read(source, ["flag", "price"]).to_pydict() == {"flag": [True, None], "price": [2.0, 2.5]}


def test_postgres_types_become_what_they_mean(postgres):
    data = pa.table({"c": ["ab"], "n": ["2.50"], "u": ["8a6e0804-2bd0-4672-b79d-d97027f9071a"], "b": [True]})
    source = make_postgres(postgres, data, "kinds", "(c CHAR(5), n NUMERIC(9, 2), u UUID, b BOOLEAN)")
    assert describe(source) == {"c": "text", "n": "decimal", "u": "other", "b": "boolean"}
    assert read(source, ["c", "n", "u", "b"], ('"n" > 1',)).to_pylist() == [
        {"c": "ab", "n": 2.5, "u": "8a6e0804-2bd0-4672-b79d-d97027f9071a", "b": True}
    ]


def test_a_value_that_does_not_fit_its_column_is_a_named_error(tmp_path):
    connection = sqlite3.connect(tmp_path / "b.db")
    connection.execute("CREATE TABLE t (n INTEGER)")
    connection.execute("INSERT INTO t VALUES ('word')")
    connection.commit()
    connection.close()
    with pytest.raises(SourceError, match="does not fit"):
        read(SQLiteSource(str(tmp_path / "b.db"), "t"), ["n"])

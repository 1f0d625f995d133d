from __future__ import annotations

import sqlite3
import sys
from dataclasses import replace

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedactors.data.databases import (
    SourceError,
    TableSource,
    _duckdb,
    _postgres,
    in_memory,
    parse_address,
    postgres_settings,
)
from fedactors.data.values import CsvFormat
from fedactors.errors import BadInput, DataMissing
from tests.databases import fill_postgres, postgres_address

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
    return TableSource(kind="duckdb", where=path, table=NAME)


def make_sqlite(folder):
    path = str(folder / "a.sqlite")
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE {QUOTED} {COLUMNS}")
    connection.executemany(f"INSERT INTO {QUOTED} VALUES (?, ?, ?)", [tuple(r.values()) for r in DATA.to_pylist()])
    connection.commit()
    connection.close()
    return TableSource(kind="sqlite", where=path, table=NAME)


def make_parquet(folder):
    path = str(folder / "it's.parquet")
    pyarrow.parquet.write_table(DATA, path)
    return TableSource(kind="parquet", where=path)


def make_csv(folder):
    path = str(folder / "a.csv")
    pyarrow.csv.write_csv(DATA, path)
    return TableSource(kind="csv", where=path)


def make_arrow(folder):
    return in_memory(DATA)


MAKERS = {"duckdb": make_duckdb, "sqlite": make_sqlite, "parquet": make_parquet, "csv": make_csv, "arrow": make_arrow}


@pytest.fixture(params=[*MAKERS, "postgres"])
def source(request, tmp_path):
    if request.param == "postgres":
        return fill_postgres(request.getfixturevalue("postgres"), DATA, NAME, COLUMNS)
    return MAKERS[request.param](tmp_path)


def test_every_database_describes_and_reads_the_same(source):
    assert source.describe() == KINDS | ({"id": "numeral"} if source.kind == "csv" else {})
    assert source.load(list(KINDS)).to_pydict() == DATA.to_pydict()
    picked = source.load([ODD], (f'"{ODD}" > 1', "\"town\" = 'it''s' OR \"id\" IS NULL"))
    assert sorted(picked.column(ODD).to_pylist()) == [1.5, 2.5]
    assert picked.column_names == [ODD]


def test_an_unknown_column_is_a_named_error(source):
    with pytest.raises(BadInput, match="nope"):
        source.load(["nope"])


@pytest.mark.slow
def test_more_rows_than_one_batch_arrive(tmp_path):
    path = str(tmp_path / "long.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (n INTEGER)")
    connection.executemany("INSERT INTO t VALUES (?)", ((i,) for i in range(120_001)))
    connection.commit()
    connection.close()
    assert TableSource(kind="sqlite", where=path, table="t").load(["n"]).column("n").to_pylist() == list(range(120_001))


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_missing_file_or_table_is_a_named_error(kind, tmp_path):
    with pytest.raises(DataMissing, match="no file"):
        TableSource(kind=kind, where=str(tmp_path / "none"), table="t").describe()
    made = MAKERS[kind](tmp_path)
    with pytest.raises(SourceError, match="nope"):
        replace(made, table="nope").describe()


def test_addresses():
    assert parse_address("duckdb:a/b.duckdb?table=my t") == TableSource(kind="duckdb", where="a/b.duckdb", table="my t")
    assert parse_address("sqlite:x.db?table=t") == TableSource(kind="sqlite", where="x.db", table="t")
    assert parse_address("x.csv.gz") == TableSource(kind="csv", where="x.csv.gz")
    assert parse_address("env:SHOP?table=t") == TableSource(kind="postgres", where="env:SHOP", table="t")
    made = parse_address("postgresql://org:p%40ss@db.example:6000/shop?table=sales.orders")
    assert (made.kind, made.table) == ("postgres", "sales.orders")
    assert made.shown == "postgresql://org@db.example:6000/shop"


@pytest.mark.parametrize("address", ["duckdb:x", "ftp://x", "postgresql://u:hidden@h/db", "postgresql://u:hidden@/x?table=t",
                                     "mysql://u:hidden@h/x", "postgresql://u:hidden@h:port/x?table=t"])  # fmt: skip
def test_a_bad_address_is_an_error_without_its_password(address):
    with pytest.raises(SourceError) as caught:
        parse_address(address)
    assert "hidden" not in str(caught.value)


def test_a_password_is_in_neither_repr_nor_error(postgres):
    wrong = TableSource(kind="postgres", where=postgres_address(postgres, "wr0ng-pw"), table="t")
    assert "wr0ng-pw" not in repr(wrong)
    assert "wr0ng-pw" not in str(wrong)
    with pytest.raises(SourceError, match="password authentication failed") as caught:
        wrong.describe()
    assert "wr0ng-pw" not in str(caught.value)


def test_an_unreachable_server_is_a_named_error():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(SourceError, match=r"postgresql://org@127\.0\.0\.1:1/x") as caught:
        TableSource(kind="postgres", where="postgresql://org:s3cret@127.0.0.1:1/x", table="t").describe()
    assert "s3cret" not in str(caught.value)


def test_without_the_driver_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DataMissing, match="fedactors\\[postgres\\]"):
        TableSource(kind="postgres", where="postgresql://h/d", table="t").describe()


def test_the_address_may_come_from_the_environment(postgres, monkeypatch):
    made = fill_postgres(postgres, DATA, NAME, COLUMNS)
    monkeypatch.setenv("SHOP_DATABASE", made.where)
    hidden = replace(made, where="env:SHOP_DATABASE")
    assert hidden.load(["id"]).num_rows == 4
    assert repr(hidden) == f"TableSource(env:SHOP_DATABASE, table={NAME!r})"
    monkeypatch.delenv("SHOP_DATABASE")
    with pytest.raises(SourceError, match="no such environment variable"):
        hidden.describe()


def test_every_option_of_a_postgres_address_is_passed_on_and_an_unknown_one_refused(postgres):
    made = fill_postgres(postgres, DATA, NAME, COLUMNS)
    named = parse_address(f"{made.where}?application_name=the%20shop&table=x")
    with _postgres(named) as connection:
        assert connection.execute("SHOW application_name").fetchone() == ("the shop",)
    encrypted = parse_address(f"{made.where}?table=x&sslmode=verify-full&connect_timeout=3")
    assert encrypted.where == f"{made.where}?sslmode=verify-full&connect_timeout=3"
    settings = postgres_settings(encrypted.where)
    assert (settings["sslmode"], settings["connect_timeout"]) == ("verify-full", "3")
    with pytest.raises(SourceError):  # the server of the tests speaks no TLS
        encrypted.describe()
    for option in ("sslmodes=verify-full", "host=elsewhere", "password=hidden"):
        with pytest.raises(SourceError, match="of a PostgreSQL address is not allowed") as caught:
            parse_address(f"postgresql://h/d?table=x&{option}")
        assert "hidden" not in str(caught.value)


def test_no_option_makes_postgres_writable(postgres):
    made = fill_postgres(postgres, DATA, NAME, COLUMNS)
    opened = replace(made, where=f"{made.where}?options=-c%20default_transaction_read_only%3Doff")
    with pytest.raises(SourceError, match="read-only"), _postgres(opened) as connection:
        connection.execute(f"DELETE FROM {QUOTED}")


def test_a_view_reaches_no_file_but_the_one_that_was_named(tmp_path):
    (tmp_path / "secret.csv").write_text("id\n7\n")
    path = str(tmp_path / "a.duckdb")
    with duckdb.connect(path) as connection:
        connection.execute(f"CREATE VIEW files AS SELECT * FROM read_csv('{tmp_path}/secret.csv')")
        connection.execute("CREATE VIEW accounts AS SELECT content FROM read_text('/etc/passwd')")
        assert connection.execute("SELECT id FROM files").fetchall() == [(7,)]
    for view in ("files", "accounts"):
        with pytest.raises(SourceError, match="disabled by configuration"):
            TableSource(kind="duckdb", where=path, table=view).load()


@pytest.mark.parametrize("make", [make_parquet, make_arrow, make_duckdb], ids=lambda make: make.__name__)
def test_duckdb_opens_no_other_file_and_loads_no_extension(make, tmp_path):
    (tmp_path / "secret.csv").write_text("id\n7\n")
    with _duckdb(make(tmp_path)) as (connection, relation):
        assert len(connection.sql(f"SELECT * FROM {relation}").fetchall()) == 4
        for statement in (
            f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
            f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
            f"ATTACH '{tmp_path}/other.duckdb'",
            "SET enable_external_access = true",
            "LOAD httpfs",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)


def test_postgres_is_opened_read_only(postgres):
    made = fill_postgres(postgres, DATA, NAME, COLUMNS)
    with pytest.raises(SourceError, match="read-only"), _postgres(made) as connection:
        connection.execute(f"DELETE FROM {QUOTED}")
    assert made.load(["id"]).num_rows == 4


@pytest.mark.slow
def test_a_filter_is_one_condition_and_nothing_more(source):
    for text in ("1 = 1; DROP TABLE x; SELECT 1", "true GROUP BY 1", "true UNION SELECT 1", "id >"):
        with pytest.raises(BadInput, match="condition"):
            source.load(["id"], text)
    assert source.load().num_rows == 4


def test_a_named_table_that_is_not_there():
    with pytest.raises(BadInput, match=r"orders has orders, items, cards"):
        TableSource(kind="named", where="orders", table="shops").load()


def test_a_csv_file_may_write_null_in_words_and_its_kinds_may_be_declared(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("hour,wind\n5.0,NA\n,3.5\nmissing,2\n")
    null = CsvFormat(null=("NA", "missing"))
    plain = TableSource(kind="csv", where=str(path), csv=null)
    assert plain.describe() == {"hour": "float", "wind": "float"}
    meant = TableSource(kind="csv", where=str(path), csv=null, kinds=(("hour", "integer"),))
    assert meant.describe() == {"hour": "integer", "wind": "float"}
    assert meant.load(["hour", "wind"]).to_pydict() == {"hour": [5, None, None], "wind": [None, 3.5, 2.0]}
    with pytest.raises(SourceError, match="'hours' is not allowed"):
        TableSource(kind="csv", where=str(path), kinds=(("hour", "hours"),)).describe()


def test_sqlite_booleans_and_decimals_become_what_they_mean(tmp_path):
    connection = sqlite3.connect(tmp_path / "b.db")
    connection.execute("CREATE TABLE t (flag BOOLEAN, price DECIMAL(9, 2), day DATE)")
    connection.execute("INSERT INTO t VALUES (1, 2, '2024-01-31'), (NULL, 2.5, NULL)")
    connection.commit()
    connection.close()
    source = TableSource(kind="sqlite", where=str(tmp_path / "b.db"), table="t")
    assert source.describe() == {"flag": "boolean", "price": "decimal", "day": "date"}
    assert source.load(["flag", "price"]).to_pydict() == {"flag": [True, None], "price": [2.0, 2.5]}


def test_postgres_types_become_what_they_mean(postgres):
    data = pa.table({"c": ["ab"], "n": ["2.50"], "u": ["8a6e0804-2bd0-4672-b79d-d97027f9071a"], "b": [True]})
    source = fill_postgres(postgres, data, "kinds", "(c CHAR(5), n NUMERIC(9, 2), u UUID, b BOOLEAN)")
    assert source.describe() == {"c": "text", "n": "decimal", "u": "other", "b": "boolean"}
    assert source.load(["c", "n", "u", "b"], ('"n" > 1',)).to_pylist() == [
        {"c": "ab", "n": 2.5, "u": "8a6e0804-2bd0-4672-b79d-d97027f9071a", "b": True}
    ]


def test_a_value_that_does_not_fit_its_column_is_a_named_error(tmp_path):
    connection = sqlite3.connect(tmp_path / "b.db")
    connection.execute("CREATE TABLE t (n INTEGER)")
    connection.execute("INSERT INTO t VALUES ('word'), (7)")
    connection.commit()
    connection.close()
    with pytest.raises(SourceError, match="does not fit"):
        TableSource(kind="sqlite", where=str(tmp_path / "b.db"), table="t").load(["n"])


OPENED: list[str] = []


def _note(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith("read_once.csv"):
        OPENED.append(arguments[0])


def test_a_csv_file_is_read_once_to_load_it(tmp_path):
    pyarrow.csv.write_csv(DATA, tmp_path / "read_once.csv")
    source = TableSource(kind="csv", where=str(tmp_path / "read_once.csv"), table=NAME)
    sys.addaudithook(_note)
    found = source.load(["town", "id"], where="id > 1", keys=["id"])
    assert len(OPENED) == 1
    assert found.to_pydict() == {"town": ["it's", "z"], "id": [2, 4]}

import sqlite3

import duckdb
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from fedactors.data.relational import TableSource
from fedactors.errors import BadInput

ROWS = pa.table({"key": [1, 2, 3], "a {b}": [0.5, 1.5, 2.5], "name": ["x", None, "z"]})


@pytest.fixture(params=["duckdb", "sqlite", "parquet", "csv"])
def source(request, tmp_path):
    kind = request.param
    path = tmp_path / f"it's.{kind}"
    if kind == "duckdb":
        with duckdb.connect(str(path)) as connection:
            connection.register("given", ROWS)
            connection.execute('CREATE TABLE "the table" AS SELECT * FROM given')
    elif kind == "sqlite":
        connection = sqlite3.connect(path)
        connection.execute('CREATE TABLE "the table" (key INTEGER, "a {b}" REAL, name TEXT)')
        rows = zip(*ROWS.to_pydict().values(), strict=True)
        connection.executemany('INSERT INTO "the table" VALUES (?, ?, ?)', rows)
        connection.commit()
        connection.close()
    elif kind == "parquet":
        pq.write_table(ROWS, path)
    else:
        pa_csv.write_csv(ROWS, path)
    return TableSource(kind=kind, where=str(path), table="the table")


def test_every_kind_reads_the_same_rows(source):
    assert source.load().to_pydict() == ROWS.to_pydict()


def test_projection_and_filter_happen_in_place(source):
    read = source.load(["a {b}"], "key >= 2")
    assert read.to_pydict() == {"a {b}": [1.5, 2.5]}
    assert source.load(["key"], "key > 9").num_rows == 0


def test_a_wrong_column_or_table_is_bad_input(source):
    with pytest.raises(BadInput, match=r"the table: .*"):
        source.load(["absent"], None if source.kind != "sqlite" else "no_such_column = 1")
    with pytest.raises(BadInput, match=r"is not a file"):
        TableSource(kind=source.kind, where=source.where + "x", table="the table").load()
    if source.kind in ("duckdb", "sqlite"):
        with pytest.raises(BadInput, match=r"other"):
            TableSource(kind=source.kind, where=source.where, table="other").load()


def test_a_database_file_is_never_written(source):
    with pytest.raises(BadInput):
        source.load(None, '1 = 1; DROP TABLE "the table"; SELECT 1')
    assert source.load().num_rows == 3


def test_postgres_address_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("SHOP_DATABASE", raising=False)
    with pytest.raises(BadInput, match=r"give env:NAME"):
        TableSource(kind="postgres", where="env:SHOP_DATABASE", table="t").load()
    with pytest.raises(BadInput, match=r"give env:NAME"):
        TableSource(kind="postgres", where="postgresql://user:secret@host/db", table="t").load()


def test_a_named_table_that_is_not_there():
    with pytest.raises(BadInput, match=r"orders has orders, items, cards"):
        TableSource(kind="named", where="orders", table="shops").load()

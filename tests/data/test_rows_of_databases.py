"""A run goes on with the rows of databases that it began with, wherever the databases write them."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest

import fedactors
from fedactors.data import databases
from fedactors.data.checks import check_data
from fedactors.data.databases import TableSource
from fedactors.data.sources import FileSource
from fedactors.errors import RowsChangedError
from fedactors.runtime import snapshots
from tests.databases import fill_postgres, postgres_address

ROWS = "VALUES (1, 0.5), (2, 1.5)"


def source_over(table, sql="SELECT * FROM t"):
    view = TableSource(kind="view", table="v", sql=sql, tables=(replace(table, label="t"),))
    return FileSource(party="shop", path="", task="binary", num_classes=2, view=view, id_column="id")


def digest(source):
    ((_, found),) = snapshots.digests_of_files((source,))
    return found


def changes_of_sqlite(path):
    base = sqlite3.connect(path)
    base.execute("PRAGMA journal_mode = WAL")
    base.execute("PRAGMA wal_autocheckpoint = 0")
    base.execute("CREATE TABLE t (id INTEGER, x REAL)")
    base.execute(f"INSERT INTO t {ROWS}")
    base.commit()

    def execute(sql):
        base.execute(sql)
        base.commit()

    return TableSource(kind="sqlite", where=str(path), table="t"), execute


def changes_of_duckdb(path):
    def execute(sql):
        with duckdb.connect(str(path)) as base:
            base.execute(sql)

    execute(f"CREATE TABLE t AS SELECT * FROM ({ROWS}) v(id, x)")
    return TableSource(kind="duckdb", where=str(path), table="t"), execute


def changes_of_postgres(server):
    psycopg = pytest.importorskip("psycopg")
    rows = pa.table({"id": [1, 2], "x": [0.5, 1.5]})
    table = fill_postgres(server, rows, "noticed", "(id BIGINT, x DOUBLE PRECISION)")

    def execute(sql):
        with psycopg.connect(postgres_address(server)) as base:
            base.execute(sql)

    execute("DROP TABLE IF EXISTS noticed_other")
    return table, execute


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "postgres"])
def test_a_changed_row_of_a_database_is_noticed(kind, tmp_path, request):
    if kind == "postgres":
        table, execute = changes_of_postgres(request.getfixturevalue("postgres"))
    else:
        table, execute = {"sqlite": changes_of_sqlite, "duckdb": changes_of_duckdb}[kind](tmp_path / "a.db")
    source = source_over(table)
    ((name, before),) = snapshots.digests_of_files((source,))
    assert name.startswith(f"table {table.table} of ")
    assert "org:" not in name
    execute("CREATE TABLE noticed_other (id INTEGER)")
    assert digest(source) == before
    assert digest(source_over(table, "SELECT id, x FROM t WHERE x > 1")) != before
    execute(f"UPDATE {table.table} SET x = 7 WHERE id = 2")
    after = snapshots.digests_of_files((source,))
    assert after[0][1] != before
    with pytest.raises(RowsChangedError, match=r"^shop: table \w+ of .*: its rows are others, in another order"):
        snapshots._check_files(SimpleNamespace(_files=after), [before], "shop")
    execute(f"UPDATE {table.table} SET x = 1.5 WHERE id = 2")
    assert digest(source) == before


def test_a_database_that_is_gone_is_told_by_whoever_reads_it(tmp_path):
    assert digest(source_over(TableSource(kind="sqlite", where=str(tmp_path / "none.db"), table="t")))


def test_a_csv_file_of_a_query_is_parsed_once_while_it_is_held_and_again_when_it_changed(tmp_path, monkeypatch):
    parsed, read = [], databases.read_arrays  # type: ignore[attr-defined]

    def counted(path, *more):
        parsed.append(path.name)
        return read(path, *more)

    monkeypatch.setattr(databases, "read_arrays", counted)
    for name, column in (("a", "y"), ("b", "x")):
        rows = "".join(f"{row:03d},{row % 2 if column == 'y' else row / 3:.4f}\n" for row in range(60))
        (tmp_path / f"{name}.csv").write_text(f"k,{column}\n{rows}")
    (tmp_path / "query.toml").write_text(
        '[task]\ntype = "binary"\nlayout = "relational"\nlabel = "a.y"\n'
        'sql = "SELECT a.y, b.x FROM a JOIN b ON a.k = b.k"\n[parties.a]\npath = "a.csv"\n[parties.b]\npath = "b.csv"\n'
    )
    run = fedactors.simulate("tablepuppet", tmp_path / "query.toml", num_rounds=1)
    assert run.summary.extra["joined_rows"] + run.summary.extra["joined_test_rows"] == 60
    # once by the check of the data, which warns, and once by its owner
    assert parsed == ["a.csv", "b.csv"] * 2
    parsed.clear()
    check_data(tmp_path / "query.toml")
    assert parsed == ["a.csv", "b.csv"]
    source = TableSource(kind="csv", where=str(tmp_path / "b.csv"), table="b")
    parsed.clear()
    held = source.parsed()
    assert source.describe() == {"k": "numeral", "x": "float"}
    before = source.load()
    assert len(parsed) == 1
    (tmp_path / "b.csv").write_text((tmp_path / "b.csv").read_text().replace("19.3333", "99.3333"))
    after = source.load()
    assert before.column("x").to_pylist()[58:] == [19.3333, 19.6667]
    assert after.column("x").to_pylist()[58:] == [99.3333, 19.6667]
    del held
    assert source.load().equals(after)
    assert len(parsed) == 3

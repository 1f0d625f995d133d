"""Runs over real databases: every organisation in PostgreSQL, and one run across four kinds of database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import duckdb
import pyarrow.parquet
import pytest

from fedactors.cli.main import main
from fedactors.config import build
from fedactors.data.databases import in_memory as rows_in_memory
from fedactors.data.datasets.load import load_tables
from fedactors.data.layouts.vertical import stated
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.databases import PASSWORD, fill_postgres

SQL = """
SELECT o.amount, o.hour, i.weight, i.price, c.credit_limit, c.age
FROM orders o JOIN items i ON o.order_id = i.order_id
JOIN (SELECT * FROM cards_north UNION ALL SELECT * FROM cards_south) c ON o.card_id = c.card_id
"""
COLUMNS = {
    "orders": "(order_id BIGINT, card_id BIGINT, amount DOUBLE PRECISION, hour BIGINT, returned BIGINT)",
    "items": "(order_id BIGINT, weight DOUBLE PRECISION, price DOUBLE PRECISION)",
    "cards_north": "(card_id BIGINT, credit_limit DOUBLE PRECISION, age BIGINT)",
    "cards_south": "(card_id BIGINT, credit_limit DOUBLE PRECISION, age BIGINT)",
}


def tables():
    made = dict(load_tables("orders:300"))
    cards = made.pop("cards")
    half = cards.num_rows // 2
    return {**made, "cards_north": cards.slice(0, half), "cards_south": cards.slice(half)}


def train(sources):
    config = build(TablePuppetConfig, {"algorithm": "rfl-admm", "model": "logistic", "num_rounds": 2, "rho": 0.1})
    runtime = SimulatedRuntime(seed=1, recorder=MemoryRecorder())
    data = stated(SQL, sources, label="o.returned", task="binary")
    return runtime.execute(lambda: run(config, data, runtime))


@pytest.fixture
def in_memory():
    return train({name: rows_in_memory(rows) for name, rows in tables().items()})


@pytest.mark.slow
def test_every_organisation_in_postgresql(postgres, in_memory):
    sources = {name: fill_postgres(postgres, rows, name, COLUMNS[name]) for name, rows in tables().items()}
    assert train(sources) == in_memory


@pytest.mark.slow
def test_duckdb_sqlite_parquet_and_postgresql_at_once(postgres, in_memory, tmp_path):
    rows = tables()
    with duckdb.connect(str(tmp_path / "o.duckdb")) as connection:
        connection.register("incoming", rows["orders"])
        connection.execute("CREATE TABLE orders AS SELECT * FROM incoming")
    connection = sqlite3.connect(tmp_path / "i.db")
    connection.execute("CREATE TABLE items (order_id INTEGER, weight REAL, price REAL)")
    connection.executemany("INSERT INTO items VALUES (?, ?, ?)", [tuple(r.values()) for r in rows["items"].to_pylist()])
    connection.commit()
    connection.close()
    pyarrow.parquet.write_table(rows["cards_north"], tmp_path / "north.parquet")
    sources = {
        "orders": f"duckdb:{tmp_path}/o.duckdb?table=orders",
        "items": f"sqlite:{tmp_path}/i.db?table=items",
        "cards_north": f"{tmp_path}/north.parquet",
        "cards_south": fill_postgres(postgres, rows["cards_south"], "cards_south", COLUMNS["cards_south"]),
    }
    assert train(sources) == in_memory


@pytest.mark.slow
def test_a_password_is_nowhere_in_the_run_folder_or_on_the_screen(postgres, tmp_path, monkeypatch, capsys):
    rows = tables()
    lines = ["[task]", 'type = "binary"', 'layout = "relational"', f'sql = """{SQL}"""', 'label = "o.returned"']
    for name, data in rows.items():
        monkeypatch.setenv(f"DB_{name.upper()}", fill_postgres(postgres, data, name, COLUMNS[name]).where)
        lines += [f"[parties.{name}]", f'path = "env:DB_{name.upper()}"']
    (tmp_path / "parties.toml").write_text("\n".join(lines))
    code = main(
        ["run", "tablepuppet", "--runtime", "simulated", "--data", str(tmp_path / "parties.toml"), "--out",
         str(tmp_path / "runs"), "algorithm=rfl-sgd", "num_rounds=2"]
    )  # fmt: skip
    printed = capsys.readouterr()
    assert code == 0
    assert PASSWORD not in printed.out + printed.err
    written = [path for path in Path(tmp_path / "runs").rglob("*") if path.is_file()]
    assert len(written) > 5
    for path in written:
        assert PASSWORD.encode() not in path.read_bytes(), path

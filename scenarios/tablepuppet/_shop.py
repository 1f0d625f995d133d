"""The example databases of `own_databases.py`: a shop's DuckDB, a warehouse's SQLite, two banks' Parquet and CSV."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import duckdb
import pyarrow.csv
import pyarrow.parquet

from fedactors.data.datasets.load import load_tables


def write_databases(folder: Path, num_orders: int = 5000) -> None:
    """Write the four files into an empty folder."""
    tables = load_tables(f"orders:{num_orders}")
    with duckdb.connect(str(folder / "orders.duckdb")) as connection:
        connection.register("incoming", tables["orders"])
        connection.execute("CREATE TABLE orders AS SELECT * FROM incoming")
    items = sqlite3.connect(folder / "items.db")
    items.execute("CREATE TABLE items (order_id INTEGER, weight REAL, price REAL)")
    items.executemany("INSERT INTO items VALUES (?, ?, ?)", [tuple(r.values()) for r in tables["items"].to_pylist()])
    items.commit()
    items.close()
    cards = tables["cards"]
    half = cards.num_rows // 2
    pyarrow.parquet.write_table(cards.slice(0, half), folder / "cards_north.parquet")
    pyarrow.csv.write_csv(cards.slice(half), folder / "cards_south.csv")

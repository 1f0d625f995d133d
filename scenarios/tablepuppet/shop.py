"""Write the example databases of `own_databases.py` into a folder: DuckDB, SQLite, Parquet and CSV.

python scenarios/tablepuppet/make_databases.py folder=shop orders=5000
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import duckdb
import pyarrow.csv
import pyarrow.parquet

from fedactors.data.tables import load_tables


def write_databases(folder: Path, num_orders: int = 5000) -> None:
    """Write the four files, unless the folder is there already."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
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

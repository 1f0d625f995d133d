"""Write the example databases of `own_databases.py` into a folder: DuckDB, SQLite, Parquet and CSV.

python scenarios/tablepuppet/make_databases.py folder=shop orders=5000
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import duckdb
import pyarrow.csv
import pyarrow.parquet
from pydantic import Field

from fedactors.config import build, config, parse_words
from fedactors.data.tables import load_tables


@config
class Shop:
    """What is written where."""

    folder: str = "shop"
    """Folder of the databases; files in it are overwritten."""
    orders: int = Field(default=5000, ge=10)
    """Rows of the orders."""


def main(shop: Shop) -> None:
    """Write the four files."""
    folder, tables = Path(shop.folder), load_tables(f"orders:{shop.orders}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("orders.duckdb", "items.db"):
        (folder / name).unlink(missing_ok=True)
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
    print(f"{folder}: orders.duckdb, items.db, cards_north.parquet, cards_south.csv")


if __name__ == "__main__":
    main(build(Shop, parse_words(sys.argv[1:])))

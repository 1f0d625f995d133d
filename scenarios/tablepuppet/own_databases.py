"""Train on a join of three organisations' databases, one of them in two places, without joining it.

python -m scenarios.tablepuppet.own_databases algorithm=rfl-sgd --runtime simulated

The example databases are written into ./shop first. A PostgreSQL address is best given as
``env:NAME?table=schema.table``: no password is then in any file.
"""

from pathlib import Path

from fedactors.plugins import Headline
from fedactors.scenario import main
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.data import stated
from protocols.tablepuppet.run import run
from scenarios.tablepuppet.shop import write_databases

SQL = """
SELECT o.amount, o.hour, i.weight, i.price, c.credit_limit, c.age
FROM orders o JOIN items i ON o.order_id = i.order_id
JOIN (SELECT * FROM cards_north UNION ALL SELECT * FROM cards_south) c ON o.card_id = c.card_id
"""
DATABASES = {
    "orders": "duckdb:shop/orders.duckdb?table=orders",
    "items": "sqlite:shop/items.db?table=items",
    "cards_north": "shop/cards_north.parquet",
    "cards_south": "shop/cards_south.csv",  # or "env:CARDS_SOUTH?table=public.cards"
}

if __name__ == "__main__":
    write_databases(Path("shop"))
    main(
        TablePuppetConfig,
        run,
        data="orders",
        partition="relational",
        headline=Headline(name="accuracy"),
        load_data=lambda config, name, seed: stated(SQL, DATABASES, label="o.returned", task="binary", num_classes=2),
        smoke={"rounds": 2, "algorithm": "rfl-admm"},
    )

"""Train on a join of three organisations' databases, one of them in two places, without joining it.

    python scenarios/tablepuppet/make_databases.py        # writes the example databases into ./shop
    python scenarios/tablepuppet/own_databases.py --runtime simulated algorithm=rfl-sgd rounds=20
    CARDS_SOUTH='postgresql://me@db.example/cards' python scenarios/tablepuppet/own_databases.py ...

A PostgreSQL address is best given as ``env:NAME?table=schema.table``: no password is then in any file.
"""

from fedactors.plugins import Headline
from fedactors.scenario import main
from protocols.tablepuppet.config import TablePuppetConfig
from protocols.tablepuppet.data import stated
from protocols.tablepuppet.run import run

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
    main(
        TablePuppetConfig,
        run,
        data="orders",
        partition="relational",
        headline=Headline(name="accuracy"),
        load_data=lambda config, name, seed: stated(SQL, DATABASES, label="o.returned", task="binary", num_classes=2),
        smoke={"rounds": 2, "algorithm": "rfl-admm"},
    )

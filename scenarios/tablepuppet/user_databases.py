"""Train on a join of three organisations' databases, one of them in two places, without joining it.

python -m scenarios.tablepuppet.user_databases algorithm=rfl-sgd --runtime simulated

The example databases lie in a temporary folder while this runs. A PostgreSQL address is best given as
``env:NAME?table=schema.table``: no password is then in any file.
"""

import sys
import tempfile
from pathlib import Path

from fedactors.data.layouts.vertical import stated
from fedactors.plugins import Headline
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.run import run
from fedactors.scenario import main

sys.path.insert(0, str(Path(__file__).parents[2]))

from scenarios.tablepuppet._shop import write_databases

SQL = """
SELECT o.amount, o.hour, i.weight, i.price, c.credit_limit, c.age
FROM orders o JOIN items i ON o.order_id = i.order_id
JOIN (SELECT * FROM cards_north UNION ALL SELECT * FROM cards_south) c ON o.card_id = c.card_id
"""

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="shop-") as shop:
        write_databases(Path(shop))
        databases = {
            "orders": f"duckdb:{shop}/orders.duckdb?table=orders",
            "items": f"sqlite:{shop}/items.db?table=items",
            "cards_north": f"{shop}/cards_north.parquet",
            "cards_south": f"{shop}/cards_south.csv",  # or "env:CARDS_SOUTH?table=public.cards"
        }
        main(
            TablePuppetConfig,
            run,
            data="orders",
            partition="relational",
            headline=Headline(name="test/accuracy"),
            load_data=lambda config, name, seed: stated(SQL, databases, label="o.returned", task="binary"),
            smoke={"num_rounds": 2, "algorithm": "rfl-admm"},
        )

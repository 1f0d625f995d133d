"""A generated order / item / card join of any size, after the paper's Figure 1; the default data, no download.

orders(item_id, card_id, quantity, express, amount) many-to-one on cards, many-to-many on items, because an item has
one row for each of its parts, so the join is larger than every table.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

QUERY = """
SELECT o.quantity, o.express, o.amount, i.weight, i.price, i.material, c.balance, c.age
FROM orders o JOIN items i ON o.item_id = i.item_id JOIN cards c ON o.card_id = c.card_id
"""
LABEL = "amount"
ENCODINGS = {"i.material": "one_hot"}
_MATERIALS = ("glass", "metal", "paper", "wood")


def generate_tables(num_orders: int, seed: int, parts_per_item: int = 2) -> dict[str, pa.Table]:
    """Return the tables ``orders``, ``items`` and ``cards``; the label depends linearly on columns of all three.

    There are num_orders / 20 items, each with 1 to 2 * parts_per_item - 1 rows, and num_orders / 10 cards; a few
    orders name an item or card that does not exist and so do not join.
    """
    rng = np.random.default_rng(seed)
    num_items, num_cards = max(num_orders // 20, 4), max(num_orders // 10, 4)
    parts = rng.integers(1, 2 * parts_per_item, num_items)
    item_id = np.repeat(np.arange(num_items), parts)
    material = rng.integers(0, len(_MATERIALS), len(item_id))
    weight, price = rng.gamma(2.0, 1.0, len(item_id)), rng.gamma(3.0, 2.0, len(item_id))
    balance, age = rng.normal(3.0, 1.0, num_cards), rng.integers(18, 80, num_cards)
    order_item, order_card = rng.integers(0, num_items + 1, num_orders), rng.integers(0, num_cards + 1, num_orders)
    quantity, express = rng.integers(1, 6, num_orders), rng.random(num_orders) < 0.3
    worth = 0.5 * weight + 0.8 * price + 0.7 * material
    item_worth = np.append(np.bincount(item_id, weights=worth, minlength=num_items) / parts, 0.0)
    card_worth = np.append(1.5 * balance + 0.03 * age, 0.0)
    amount = quantity + 1.2 * express + item_worth[order_item] + card_worth[order_card]
    amount += rng.normal(0.0, 0.5, num_orders)
    return {
        "orders": pa.table(
            {"item_id": order_item, "card_id": order_card, "quantity": quantity, "express": express, "amount": amount}
        ),
        "items": pa.table(
            {"item_id": item_id, "weight": weight, "price": price, "material": [_MATERIALS[m] for m in material]}
        ),
        "cards": pa.table({"card_id": np.arange(num_cards), "balance": balance, "age": age}),
    }

"""Rules of columns of tables that a query joins: as if each owner had prepared its table by hand; kept for new rows."""

from __future__ import annotations

import csv
import datetime
import json

import numpy as np
import pytest

from fedactors.api import load_part
from fedactors.cli.main import main
from fedactors.data.new_rows import actor_state
from tests.data.alignment.test_rows import SETTINGS, SPLIT_SETTINGS, TASK, materialise, save, train

FIRST = datetime.date(2020, 1, 1)
QUERY = '''layout = "relational"
label = "orders.bad"
sql = """
SELECT orders.bad, orders.amount, cards.age, cards.kind, cards.since
FROM orders JOIN cards ON orders.card = cards.card
"""
[parties.shop]
table = "orders"
path = "{name}orders.csv"
id = "order"
{shop}
[parties.bank]
table = "cards"
path = "{name}cards.csv"
{bank}
'''
SHOP = '[parties.shop.columns]\namount = { missing = "mean" }\n'
RULES = """[parties.bank.columns]
age = { missing = "median", scaling = "range", range = [0.0, 128.0] }
kind = { type = "text", missing = "indicator" }
since = { type = "datetime", parts = ["days"], missing = "constant", fill = "2020-01-01" }
"""
KINDS = {
    "shop": ("orders", ("card",), ("amount",), "bad"),
    "bank": ("cards", ("card",), ("age", "kind", "since"), None),
}


def tables(num_orders=120, labelled=True):
    rng = np.random.default_rng(num_orders)
    cards = [
        {"card": c, "age": "" if c % 7 == 3 else 20 + c, "kind": ["Gold ", "gold", "tin", ""][c % 4],
         "since": "" if c == 5 else FIRST + datetime.timedelta(days=32 * c)}
        for c in range(24)
    ]  # fmt: skip
    orders = [
        {
            "order": f"o{i}",
            "card": int(rng.integers(0, 24)),
            "amount": "" if i % 11 == 5 else float(rng.integers(-8, 9)),
        }
        for i in range(num_orders)
    ]
    for order in orders if labelled else ():
        order["bad"] = int((order["amount"] or 0) + order["card"] / 3 > 4)
    return {"orders": orders, "cards": cards}


def write(folder, found, rules=RULES, shop=SHOP, name=""):
    for table, rows in found.items():
        save(folder / f"{name}{table}.csv", rows)
    path = folder / f"{name}parties.toml"
    path.write_text(TASK + QUERY.format(name=name, shop=shop, bank=rules))
    return path


@pytest.mark.parametrize("protocol", ["pubsub-vfl", pytest.param("mtcd", marks=pytest.mark.slow)])
def test_joined_rows_are_prepared_as_the_materialised_join_is(tmp_path, protocol):
    linear = {"num_clients": 2, "num_rounds": 3, "topology": "complete", "num_tokens": 1, "relaxed_protocol": True,
              "min_cluster_size": 1, "problem": "ridge"}  # fmt: skip
    settings, clear_settings = (SETTINGS, SPLIT_SETTINGS) if protocol == "pubsub-vfl" else (linear, linear)
    found, states, _, _ = train(protocol, settings, write(tmp_path, tables()))
    joined = materialise(tmp_path, states, KINDS, condition="")
    rows = actor_state(states, "shop/worker-0" if protocol == "pubsub-vfl" else "shop")["rows"]
    parts = np.array(["train", "validation", "test"])[rows["drawn"]["parts"] if "drawn" in rows else rows["parts"]]
    text = TASK
    for party, local in joined.items():
        _, _, features, label = KINDS[party]
        kept = [{name: row[name] for name in (*features, *([label] if label else []))} for row in local]
        kept = [{**row, "part": part} for row, part in zip(kept, parts, strict=True)] if label else kept
        save(tmp_path / f"joined-{party}.csv", kept)
        text += f'[parties.{party}]\npath = "joined-{party}.csv"\n' + (
            'label = "bad"\nsplit = "part"\n' if label else ""
        )
        text += SHOP if label else RULES
    (tmp_path / "joined.toml").write_text(text)
    clear, _, _, _ = train(protocol, clear_settings, tmp_path / "joined.toml")
    assert found.metrics == clear.metrics
    assert {one["name"] for one in json.loads((rows.get("scale") or rows)["preprocessing"])["columns"]} == {"amount"}


def by_hand(cards, median):
    """What the rules make of the bank's table, as plain numbers."""
    made = []
    for card in cards:
        kind = str(card["kind"]).strip().casefold()
        age, since = card["age"] if card["age"] != "" else median, card["since"] or FIRST
        made.append({
            "card": card["card"], "age": age / 128, "missing": float(not kind), "gold": float(kind == "gold"),
            "tin": float(kind == "tin"), "days": float((since - datetime.date(1970, 1, 1)).days),
        })  # fmt: skip
    return made


def run_tablepuppet(path, out):
    words = ["standardise=false", "num_rounds=4", "algorithm=rfl-admm-v"]
    asked = ["run", "tablepuppet", "--data", str(path), "--runtime", "simulated", "--quiet", *words]
    assert main([*asked, "--out", str(out)]) == 0
    (folder,) = out.iterdir()
    return folder


def predicted(folder, data, to):
    assert main(["predict", str(folder), "--data", str(data), "--output", str(to)]) == 0
    with to.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_tablepuppet_learns_and_predicts_as_from_a_table_prepared_by_hand(tmp_path):
    local = tables()
    ages = [card["age"] for card in local["cards"] if card["age"] != ""]
    for order in local["orders"]:  # the same at both, so that the same rows are kept for the test
        order["amount"] = order["amount"] or 0.0

    ruled, hand = tmp_path / "ruled", tmp_path / "hand"
    for folder in (ruled, hand):
        folder.mkdir()
    first = run_tablepuppet(write(ruled, local, RULES, ""), ruled / "runs")

    def prepared(cards):
        return by_hand(cards, float(np.median(ages)))

    path = write(hand, {**local, "cards": prepared(local["cards"])}, "", "")
    columns = "cards.age, cards.missing, cards.gold, cards.tin, cards.days"
    path.write_text(path.read_text().replace("cards.age, cards.kind, cards.since", columns))
    second = run_tablepuppet(path, hand / "runs")

    new = tables(30, labelled=False)
    for order in new["orders"]:
        order["amount"] = order["amount"] or 0.0
    new["cards"][2]["kind"] = "platinum"  # nobody had it in training: zeros, which no known one has
    new["cards"][4]["age"] = ""
    found = predicted(first, write(ruled, new, "", "", "new-"), ruled / "said.csv")
    new_path = write(hand, {**new, "cards": prepared(new["cards"])}, "", "", "new-")
    new_path.write_text(new_path.read_text().replace("cards.age, cards.kind, cards.since", columns))
    wanted = predicted(second, new_path, hand / "said.csv")
    assert [row["order"] for row in found] == [row["order"] for row in wanted] == [o["order"] for o in new["orders"]]
    numbers = [[float(row["probability_1"]) for row in rows] for rows in (found, wanted)]
    np.testing.assert_allclose(numbers[0], numbers[1], atol=1e-9)
    assert np.std(numbers[0]) > 1e-3

    assert main(["export", str(first), "--output", str(tmp_path / "parts"), "--party", "bank"]) == 0
    part = load_part(tmp_path / "parts" / "bank")
    assert [one.name for one in part.preprocessing.columns] == ["age", "kind", "since"]


@pytest.mark.parametrize(
    ("rules", "words", "told"),
    [
        (RULES.replace("age =", "rank ="), [], "'rank'"),
        (
            RULES + 'card = { missing = "drop" }\n',
            [],
            "'card' is not allowed: the query selects age, kind, since of cards",
        ),
        (RULES.replace('missing = "median", ', ""), [], "age"),
        (RULES, ["declared_facts=age=0:9"], "parties.shop.columns: rules are not allowed with declared_facts"),
        ("", [], "cards.kind is text, no number; name it in task.categorical or its party's columns"),
    ],
)
def test_rules_that_do_not_fit_are_one_line(tmp_path, capsys, rules, words, told):
    path = write(tmp_path, tables(), rules)
    run = ["run", "tablepuppet", "--data", str(path), "--runtime", "simulated", "--quiet", *words]
    assert main([*run, "--out", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert told in said


@pytest.mark.slow
def test_rows_that_miss_what_they_need_are_left_out_and_told(tmp_path):
    shop = '[parties.shop.columns]\namount = { missing = "drop" }\n'
    found, states, _, _ = train("pubsub-vfl", {**SETTINGS, "num_epochs": 1}, write(tmp_path, tables(), shop=shop))
    gone = sum(order["amount"] == "" for order in tables()["orders"])
    assert gone == 11
    assert found.extra["notes"][0] == (
        f"shop: {120 - gone} of 120 rows are used ({gone} without a key or a value that they need); "
        f"{120 - gone} joined rows"
    )
    assert len(actor_state(states, "shop/table")["positions"]) == 120 - gone

"""Rows of the same query predicted by the tables' own actors, and the exported parts, against the join in the clear."""

from __future__ import annotations

import csv
from functools import partial

import numpy as np
import pytest
import torch

from fedactors.api import load_part
from fedactors.cli.main import main
from fedactors.config import build
from fedactors.data.new_rows import StoredState
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.data import load_data
from fedactors.protocols.tablepuppet.messages import WantedRows
from fedactors.protocols.tablepuppet.run import run
from fedactors.protocols.tablepuppet.serving import PredictingServer, part, predict
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.serving.parts import write_part
from fedactors.serving.predictions import Application

pytestmark = pytest.mark.slow
TOML = '''
[task]
type = "{kind}"
{classes}
layout = "relational"
label = "o.{label}"
categorical = ["i.kind", "o.gift"]
sql = """
SELECT o.amount, o.gift, o.stock, i.price, i.kind, i.same, c.age
FROM orders o JOIN items i ON o.item_id = i.item_id JOIN {cards} c ON i.card_id = c.card_id
WHERE o.{label} IS NOT NULL AND o.amount > 0
"""
[parties.shop]
table = "orders"
path = "{name}-orders.csv"
{ids}
[parties.supplier]
table = "items"
path = "{name}-items.csv"
'''
WHOLE = '[parties.bank]\ntable = "cards"\npath = "{name}-cards.csv"\n'
HALVES = """
[parties.north]
table = "cards_north"
path = "{name}-cards_north.csv"
[parties.south]
table = "cards_south"
path = "{name}-cards_south.csv"
"""
UNION = "(SELECT * FROM cards_north UNION ALL SELECT * FROM cards_south)"


def rows_of(name: str, labelled: bool) -> dict[str, list[dict]]:
    """Orders of items of cards; item 3 has two cards, so its orders occur twice in the join."""
    rng = np.random.default_rng(len(name))
    orders = []
    for number in range(90 if labelled else 12):
        item, amount, stock = int(rng.integers(0, 6)), 2000 + float(rng.normal()), int(rng.integers(0, 3))
        orders.append({"order_id": f"{name}{number}", "item_id": item, "amount": amount, "gift": number % 2 == 0,
                       "stock": stock, "bad": int(rng.integers(0, 2)), "grade": "abc"[number % 3],
                       "value": amount * item + stock})  # fmt: skip
    items = [{"item_id": i, "card_id": i, "price": 1.5 * i, "kind": "xyz"[i % 3], "same": 4} for i in range(6)]
    items.append({**items[3], "card_id": 0, "price": 9.0})
    cards = [{"card_id": i, "age": 20.0 + 7 * i} for i in range(6)]
    if not labelled:
        for order in orders:
            del order["bad"], order["grade"], order["value"]
        orders[0]["item_id"] = 77
        orders[1]["item_id"] = ""
        orders[2].update(item_id=1, stock="")
        orders[3]["item_id"] = 2
        orders[4]["item_id"] = 5
        orders[5]["item_id"] = 3
        orders[6].update(item_id=0, amount=-1)
        orders[7]["item_id"] = 4
        items[2]["price"] = ""
        items[0].update(kind="new", same=5)
        cards = [card for card in cards if card["card_id"] != 5]
    return {"orders": orders, "items": items, "cards": cards, "cards_north": cards[::2], "cards_south": cards[1::2]}


def write(folder, label="bad", kind="binary", union=False, ids='id = "order_id"'):
    for name in ("old", "new"):
        for table, rows in rows_of(name, name == "old").items():
            with (folder / f"{name}-{table}.csv").open("w", newline="") as file:
                out = csv.DictWriter(file, list(rows[0]))
                out.writeheader()
                out.writerows(rows)
        text = TOML + (HALVES if union else WHOLE)
        classes = "classes = 3" if kind == "multiclass" else ""
        cards = UNION if union else "cards"
        (folder / f"{name}.toml").write_text(
            text.format(name=name, label=label, kind=kind, classes=classes, cards=cards, ids=ids)
        )


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def trained(folder, *words, **more):
    write(folder, **more)
    words_ = ["run", "tablepuppet", "--data", str(folder / "old.toml"), "--runtime", "simulated", "--quiet"]
    penalty = [] if any("sgd" in word or "centralised" in word for word in words) else ["rho=0.1"]
    assert main([*words_, "--out", str(folder / "runs"), "num_rounds=3", *penalty, *words]) == 0
    (made,) = (folder / "runs").iterdir()
    return str(made)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A trained run, its new rows' predictions and its exported parts."""
    folder = tmp_path_factory.mktemp("shop")
    run = trained(folder)
    assert main(["predict", run, "--data", str(folder / "new.toml"), "--output", str(folder / "said.csv")]) == 0
    assert main(["export", run, "--output", str(folder / "model")]) == 0
    return folder


REJECTIONS = {
    "new0": "no partner in i",
    "new1": "a key is missing",
    "new2": "stock: missing",
    "new3": "its partner in i misses values that the model needs",
    "new4": "no partner in c",
}


def test_every_order_is_there_with_classes_or_a_reason(shop):
    rows = read(shop / "said.csv")
    assert list(rows[0]) == ["order_id", "prediction", "probability_0", "probability_1", "reason"]
    assert {row["order_id"]: row["reason"] for row in rows if row["reason"]}.items() >= REJECTIONS.items()
    assert {row["reason"] for row in rows} <= {"", *REJECTIONS.values()}
    names = [row["order_id"] for row in rows]
    assert "new6" not in names  # the query's filter leaves it out; what it asks of the label is left out itself
    assert names == sorted(names, key=lambda name: int(name.removeprefix("new")))
    assert set(names) == {f"new{n}" for n in range(12)} - {"new6"}
    assert names.count("new5") == 2
    twice = [row["probability_1"] for row in rows if row["order_id"] == "new5"]
    assert twice[0] != twice[1]
    for row in rows:
        if row["reason"]:
            assert row["prediction"] == row["probability_0"] == row["probability_1"] == ""
        else:
            assert float(row["probability_0"]) + float(row["probability_1"]) == pytest.approx(1)
            assert row["prediction"] == str(int(float(row["probability_1"]) > 0.5))


def composed(folder, tables=(("shop", "orders"), ("supplier", "items"), ("bank", "cards"))):
    """The sum of the exported parts over the join of the new rows, made here in the clear: by order, sorted outputs."""
    parts = {table: load_part(folder / "model" / party) for party, table in tables}
    rows = {table: read(folder / f"new-{table}.csv") for _, table in tables}
    joined = [
        (order, item, card)
        for order in rows["orders"]
        for item in rows["items"]
        for card in rows["cards"]
        if order["item_id"] == item["item_id"] and item["card_id"] == card["card_id"]
        and order["stock"] and float(order["amount"]) > 0 and item["price"]
    ]  # fmt: skip
    numbers = {"amount", "stock", "price", "same", "age"}

    def columns(picked):
        return {
            key: [float(row[key]) if key in numbers else row[key].lower() for row in picked]
            for key in picked[0]
            if key not in ("order_id", "item_id", "card_id")
        }

    total = 0
    with torch.no_grad():
        for index, (_, table) in enumerate(tables):
            part = parts[table]
            total = total + part.bottom(part.preprocess(columns([triple[index] for triple in joined])))
    return [order["order_id"] for order, _, _ in joined], total


def agrees(rows, names, values, column):
    said = sorted((row["order_id"], float(row[column])) for row in rows if not row["reason"])
    made = sorted(zip(names, values.tolist(), strict=True))
    assert [name for name, _ in said] == [name for name, _ in made]
    np.testing.assert_allclose([value for _, value in said], [value for _, value in made], rtol=0, atol=1e-6)


def test_the_parts_together_say_what_prediction_says(shop):
    names, total = composed(shop)
    agrees(read(shop / "said.csv"), names, torch.sigmoid(total)[:, 0], "probability_1")
    assert len(names) >= 4


def test_a_part_says_how_its_table_is_read(shop):
    part = load_part(shop / "model/supplier")
    assert part.preprocessing.feature_names == ("price", "kind=x", "kind=y", "kind=z", "same")
    assert (part.party, part.parties, part.settings["table"]) == ("supplier", ("o", "i", "c"), "i")
    x = part.preprocess({"price": [3.0], "kind": ["new"], "same": [5]})
    assert x.dtype == torch.float64
    assert x[0, 1:].tolist() == pytest.approx([0, 0, 0, 0])  # an unknown kind, and what was constant in training


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (["model=neural", "hidden_size=4"], {}),
        (["algorithm=rfl-sgd-v", "learning_rate=0.2"], {"label": "value", "kind": "regression"}),
        (["algorithm=vfl-admm", "standardise=false"], {"label": "grade", "kind": "multiclass"}),
        (["server_in=i"], {}),
    ],
)
def test_whatever_the_task_and_the_model(tmp_path, words, more):
    run = trained(tmp_path, *words, **more)
    new = ["predict", run, "--data", str(tmp_path / "new.toml")]
    assert main([*new, "--output", str(tmp_path / "said.csv")]) == 0
    assert main(["export", run, "--output", str(tmp_path / "model")]) == 0
    names, total = composed(tmp_path)
    rows = read(tmp_path / "said.csv")
    if more.get("kind") == "multiclass":
        for index, letter in enumerate("abc"):
            agrees(rows, names, torch.softmax(total, dim=1)[:, index], f"probability_{letter}")
    elif more.get("kind") == "regression":
        assert list(rows[0]) == ["order_id", "prediction", "reason"]
        agrees(rows, names, total[:, 0], "prediction")
    else:
        agrees(rows, names, torch.sigmoid(total)[:, 0], "probability_1")


def outcome(config, data, states, to):
    runtime = SimulatedRuntime(seed=0, recorder=MemoryRecorder())
    asked = Application(stored={n: StoredState(actor=n, frame=frame) for n, frame in states.items()}, to=str(to))
    return runtime.execute(lambda: predict(config, data, runtime, asked)), runtime


def test_sums_under_masks_and_unions_change_no_prediction(tmp_path, shop):
    """Three runs: whole tables, predictions under masks, a table in two organisations."""
    said = {}
    for name, words, union in (
        ("plain", {}, False),
        ("masked", {"secure_aggregation": True}, False),
        ("union", {"algorithm": "rfl-admm"}, True),
    ):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, union=union)
        config = build(TablePuppetConfig, {"num_rounds": 3, "rho": 0.1, **words})
        old, new = (load_data(config, str(folder / f"{which}.toml"), 0) for which in ("old", "new"))
        recorder = MemoryRecorder()
        runtime = SimulatedRuntime(seed=0, recorder=recorder)
        runtime.execute(partial(run, config, old, runtime))
        states = list(recorder.checkpoints.values())[-1].actors
        (found,), ran = outcome(config, new, states, folder / "said.csv")
        assert found.party == "shop"
        said[name] = read(folder / "said.csv")
        sent = {total.type for total in ran.ledger.totals()}
        assert ("Masked" in sent, "Predictions" in sent) == ((True, False) if name == "masked" else (False, True))
        if union:
            for party in ("shop", "supplier", "north", "south"):
                write_part(part(config, party, states), folder / "model" / party)
            for party in ("north", "south"):
                names, total = composed(folder, (("shop", "orders"), ("supplier", "items"), (party, "cards")))
                agrees(said[name], names, torch.sigmoid(total)[:, 0], "probability_1")

    def told(rows):
        return sorted((row["order_id"], row["reason"], float(row["probability_1"] or 0)) for row in rows)

    for one, other in zip(told(said["plain"]), told(said["masked"]), strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], abs=1e-5)


def test_rows_are_called_by_several_columns(tmp_path, shop):
    (run,) = (shop / "runs").iterdir()
    text = (shop / "new.toml").read_text().replace('id = "order_id"', 'id = ["order_id", "item_id"]')
    (shop / "called.toml").write_text(text)
    said = tmp_path / "said.csv"
    assert main(["predict", str(run), "--data", str(shop / "called.toml"), "--output", str(said)]) == 0
    before, orders = read(shop / "said.csv"), {row["order_id"]: row for row in read(shop / "new-orders.csv")}
    assert len(before) > 10
    expected = [{**row, "item_id": orders[row["order_id"]]["item_id"]} for row in before]
    assert sorted(sorted(row.items()) for row in read(said)) == sorted(sorted(row.items()) for row in expected)


class Curious(PredictingServer):
    """Asks a table a second time, for the mean of two noises."""

    async def open(self):
        await super().open()
        self.caught = []

    async def _sum(self, rows, keys):
        found = await super()._sum(rows, keys)
        await self._clients["i"][0].predict(WantedRows(rows[1]))
        return found


def test_a_table_predicts_once(tmp_path, shop, monkeypatch, capsys):
    (run,) = (shop / "runs").iterdir()
    from fedactors.protocols.tablepuppet import serving

    monkeypatch.setattr(serving, "PredictingServer", Curious)
    assert main(["predict", str(run), "--data", str(shop / "new.toml"), "--output", str(tmp_path / "said.csv")]) != 0
    assert "asks supplier for predictions a second time" in capsys.readouterr().err


def test_noise_of_training_is_on_predictions_and_in_the_account(tmp_path, capsys):
    import json

    words = ["feature_dp=1.0", "prediction_clip=0.5", "prediction_noise=2.0", "algorithm=rfl-sgd-v"]
    run = trained(tmp_path, *words)
    capsys.readouterr()
    new = ["predict", run, "--data", str(tmp_path / "new.toml"), "--format", "json"]
    assert main([*new, "--output", str(tmp_path / "said.csv")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["privacy"]) == {"shop", "supplier", "bank"}
    assert told["predictions"][0]["rejections"]["no partner in i"] == 1
    assert main([*new, "--output", str(tmp_path / "again.csv")]) == 0
    assert read(tmp_path / "said.csv") != read(tmp_path / "again.csv")


def test_without_an_id_rows_are_called_by_their_keys(tmp_path):
    run = trained(tmp_path, ids="")
    assert main(["predict", run, "--data", str(tmp_path / "new.toml"), "--output", str(tmp_path / "said.csv")]) == 0
    assert list(read(tmp_path / "said.csv")[0])[:2] == ["item_id", "prediction"]


def changed(shop, tmp_path, old, new):
    text = (shop / "new.toml").read_text().replace('path = "', f'path = "{shop}/')
    assert old in text
    path = tmp_path / "changed.toml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("i.price, ", "", "features of i: kind (categories), same is not allowed: the model was trained on price"),
        ("i.card_id = c.card_id", "o.stock = c.card_id", "joins: "),
        ('"o.bad"', '"o.stock"', "label: o.stock is not allowed: the model was trained on o.bad"),
        ('type = "binary"', 'type = "regression"', "task.type: regression is not allowed"),
        ("[parties.bank]", "[parties.stranger]", "'stranger' has no part of the model"),
        ('id = "order_id"', 'id = "number"', "no column 'number'"),
    ],
)
def test_another_query_is_refused_by_one_line(shop, tmp_path, capsys, old, new, named):
    (run,) = (shop / "runs").iterdir()
    data = changed(shop, tmp_path, old, new)
    assert main(["predict", str(run), "--data", str(data), "--output", str(tmp_path / "said.csv")]) == 2
    said = capsys.readouterr().err.strip()
    assert "\n" not in said
    assert named in said
    assert not (tmp_path / "said.csv").exists()


def test_nothing_that_joins_is_a_file_of_reasons(shop, tmp_path, capsys):
    (run,) = (shop / "runs").iterdir()
    path = tmp_path / "cards.csv"
    path.write_text("card_id,age\n99,30\n")
    data = changed(shop, tmp_path, f"{shop}/new-cards.csv", str(path))
    assert main(["predict", str(run), "--data", str(data), "--output", str(tmp_path / "said.csv")]) == 0
    assert "shop: 0 of " in capsys.readouterr().out
    assert {row["prediction"] for row in read(tmp_path / "said.csv")} == {""}


def test_export_knows_who_has_a_table(shop, tmp_path, capsys):
    (run,) = (shop / "runs").iterdir()
    for party, named in (("server", "'server' is not allowed: it has no table"), ("nobody", "'nobody'")):
        assert main(["export", str(run), "--party", party, "--output", str(tmp_path)]) == 2
        assert named in capsys.readouterr().err


def test_where_the_server_has_the_model_nobody_predicts(tmp_path, capsys):
    run = trained(tmp_path, "algorithm=centralised")
    for command in (["predict", run, "--data", str(tmp_path / "new.toml")], ["export", run]):
        assert main([*command, "--output", str(tmp_path / "x.csv")]) == 2
        assert "algorithm: 'centralised' is not allowed" in capsys.readouterr().err
    assert main(["inspect", "tablepuppet", "--format", "json"]) == 0
    assert "JoinedOutputs" in capsys.readouterr().out

"""Vertical protocols over a query's joined rows: the same numbers as on a materialised join; who learns what."""

from __future__ import annotations

import asyncio
import csv
import types

import numpy as np
import pyarrow as pa
import pytest

from fedactors.actors.remote import CLIENT, DRIVER, SERVER, current_caller, endpoints
from fedactors.cli.main import main
from fedactors.config import build
from fedactors.data.alignment.rows import MAPPER, RowHolder, RowPositions
from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput, Refused, RowsChangedError
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.validation import party_name
from tests.keeping import Keeping

TASK = '[task]\ntype = "binary"\n'
QUERY = (
    TASK
    + '''layout = "relational"
label = "orders.bad"
categorical = ["items.kind"]
sql = """
SELECT orders.bad, orders.amount, items.price, items.kind, cards.age
FROM orders JOIN items ON orders.item = items.item JOIN cards ON items.card = cards.card WHERE orders.amount > -9
"""
[parties.shop]
table = "orders"
path = "orders.csv"
[parties.supplier]
table = "items"
path = "items.csv"
[parties.bank]
table = "cards"
path = "cards.csv"
'''
)
SETTINGS = {"num_epochs": 2, "num_layers": 2, "hidden_size": 4, "embedding_size": 3, "batch_size": 16,
            "validation_fraction": 0.3}  # fmt: skip
SPLIT_SETTINGS = {name: value for name, value in SETTINGS.items() if name != "validation_fraction"}
"""Where a column says which rows are which."""


def tables() -> dict[str, list[dict]]:
    """Orders of items, of which the last two are one and the same with two cards, of cards."""
    rng = np.random.default_rng(4)
    orders: list[dict] = [
        {"item": int(rng.integers(0, 9)), "amount": float(np.float32(rng.normal()))} for _ in range(80)
    ]
    for order in orders:
        order["bad"] = int(order["amount"] + order["item"] / 4 > 1)
    orders[0]["item"] = ""
    items = [{"item": i, "card": i % 4, "price": float(np.float32(rng.normal())), "kind": "xyz"[i % 3]}
             for i in [*range(7), 6]]  # fmt: skip
    items[-1].update(card=3, price=2.5)
    items[0]["card"] = 9
    return {"orders": orders, "items": items, "cards": [{"card": c, "age": 20.0 + c * c} for c in range(4)]}


def save(path, rows):
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


@pytest.fixture
def folder(tmp_path):
    for name, rows in tables().items():
        save(tmp_path / f"{name}.csv", rows)
    (tmp_path / "parties.toml").write_text(QUERY)
    return tmp_path


def train(name, settings, data_file, seed=0, resume=None):
    protocol = find_protocol(name)
    config = build(protocol.Config, settings)
    recorder = Keeping()
    runtime = SimulatedRuntime(seed=seed, recorder=recorder, reproducible_noise=True)
    data = load_data(protocol, config, str(data_file), seed)
    result = runtime.execute(lambda: protocol.run(config, data, runtime), resume)
    return result, list(recorder.checkpoints.values())[-1].actors, runtime, recorder


def materialise(folder, states, kinds, condition="amount > -9"):
    """Write the join in the clear, in the order of the run: one file of joined rows a party, split as it was."""
    from fedactors.data.databases import parse_address
    from fedactors.data.layouts.relational import read_rows
    from fedactors.data.query import Feature, Partition, VerticalTable

    joined = {}
    for party, (table, keys, features, label) in kinds.items():
        state = actor_state(states, f"{party}/table")
        source = parse_address(str(folder / f"{table}.csv"))
        where = (condition,) if condition and table == "orders" else ()
        texts = tuple(f'CAST("{key}" AS TEXT)' for key in keys)  # as keys of two CSV files are compared
        read = VerticalTable(
            table, (Partition(table, where),), tuple(Feature(c, "float") for c in features), texts, label, texts, keys
        )
        rows = read_rows(source, read, 0, np.random.default_rng(state["row_order"])).data.to_pylist()
        rows = [row | {key: row[text] for key, text in zip(keys, texts, strict=True)} for row in rows]
        nobody = dict.fromkeys((*keys, *features))
        joined[party] = [rows[index] if index >= 0 else nobody for index in state["positions"]]
    lengths = {len(rows) for rows in joined.values()}
    assert len(lengths) == 1
    for order, item, *cards in zip(*joined.values(), strict=True) if "supplier" in kinds else ():
        assert order["item"] == item["item"]
        assert [card["card"] for card in cards if card["card"] is not None] == [item["card"]]
    return joined


KINDS = {
    "shop": ("orders", ("item",), ("amount",), "bad"),
    "supplier": ("items", ("item", "card"), ("price", "kind"), None),
    "bank": ("cards", ("card",), ("age",), None),
}


def in_the_clear(folder, joined, parts, kinds=None):
    """Write what a party would have had to have: the join, cut by columns, and a description of it."""
    names = np.array(["train", "validation", "test"])
    text = TASK
    for party, rows in joined.items():
        _, _, features, label = (kinds or KINDS)[party]
        kept = [{name: row[name] for name in (*features, *([label] if label else []))} for row in rows]
        if label:
            kept = [{**row, "part": part} for row, part in zip(kept, names[parts], strict=True)]
        save(folder / f"joined-{party}.csv", kept)
        text += f'[parties.{party}]\npath = "joined-{party}.csv"\n'
        text += 'label = "bad"\nsplit = "part"\n' if label else ""
        text += 'categorical = ["kind"]\n' if "kind" in features else ""
    (folder / "joined.toml").write_text(text)


@pytest.mark.slow
def test_pubsub_vfl_on_a_query_is_pubsub_vfl_on_the_materialised_join(folder):
    found, states, _, _ = train("pubsub-vfl", SETTINGS, folder / "parties.toml")
    joined = materialise(folder, states, KINDS)
    rows = actor_state(states, "shop/worker-0")["rows"]
    assert np.array_equal(rows["order"], np.arange(len(joined["shop"])))
    in_the_clear(folder, joined, rows["drawn"]["parts"])
    clear, clear_states, _, _ = train("pubsub-vfl", SPLIT_SETTINGS, folder / "joined.toml")
    assert found.metrics == clear.metrics
    for party in KINDS:
        mine, other = (actor_state(one, f"{party}/worker-0")["replica"] for one in (states, clear_states))
        for one, two in zip(mine["networks"], other["networks"], strict=True):
            assert np.array_equal(one["vector"], two["vector"])  # to the bit
    # a row of the label's table is in one part of the split, however often it joins
    positions = actor_state(states, "shop/table")["positions"]
    parts = np.asarray(rows["drawn"]["parts"])
    assert len(positions) > len(set(positions.tolist()))
    assert all(len(set(parts[positions == row])) == 1 for row in set(positions.tolist()))
    note, gain = found.extra["notes"]
    assert note == "shop: " + note_of(joined)
    assert gain.startswith("shop: AUC ")


@pytest.mark.slow
def test_mtcd_on_a_query_is_mtcd_on_the_materialised_join(folder):
    settings = {"num_clients": 3, "num_rounds": 3, "topology": "complete", "num_tokens": 1, "relaxed_protocol": True,
                "min_cluster_size": 1, "problem": "ridge"}  # fmt: skip
    found, states, _, _ = train("mtcd", settings, folder / "parties.toml")
    joined = materialise(folder, states, KINDS)
    in_the_clear(folder, joined, actor_state(states, "shop")["rows"]["parts"])
    clear, clear_states, _, _ = train("mtcd", settings, folder / "joined.toml")
    assert found.metrics == clear.metrics
    for party in KINDS:
        assert np.array_equal(actor_state(states, party)["theta"], actor_state(clear_states, party)["theta"])
    assert found.extra["notes"] == ["shop: " + note_of(joined)]


@pytest.mark.slow
def test_a_table_in_two_partitions_is_a_block_of_missing_values_at_each(folder):
    cards = tables()["cards"]
    for party, rows in (("north", cards[::2]), ("south", cards[1::2])):
        save(folder / f"{party}.csv", rows)
    union = "JOIN (SELECT * FROM north UNION ALL SELECT * FROM south) cards ON"
    text = QUERY[: QUERY.index("[parties.bank]")].replace("JOIN cards ON", union)
    text += "".join(f'[parties.{party}]\npath = "{party}.csv"\n' for party in ("north", "south"))
    (folder / "parties.toml").write_text(text)
    found, states, _, _ = train("pubsub-vfl", SETTINGS, folder / "parties.toml")
    kinds = {party: kind for party, kind in KINDS.items() if party != "bank"}
    kinds |= {party: (party, ("card",), ("age",), None) for party in ("north", "south")}
    joined = materialise(folder, states, kinds)
    assert all((a["age"] is None) != (b["age"] is None) for a, b in zip(joined["north"], joined["south"], strict=True))
    rule = '[parties.{}.columns]\nage = {{ missing = "indicator" }}\n'
    in_the_clear(folder, joined, actor_state(states, "shop/worker-0")["rows"]["drawn"]["parts"], kinds)
    described = (folder / "joined.toml").read_text() + "".join(rule.format(party) for party in ("north", "south"))
    (folder / "joined.toml").write_text(described)
    assert found.metrics == train("pubsub-vfl", SPLIT_SETTINGS, folder / "joined.toml")[0].metrics


def note_of(joined):
    orders = tables()["orders"]
    without_item = sum(order["item"] != "" and order["item"] not in range(7) for order in orders)
    without_card = sum(order["item"] == 0 for order in orders)
    used = len(orders) - 1 - without_item - without_card
    return (
        f"{used} of {len(orders)} rows are used ({without_item} without a partner in items, "
        f"{without_card} without a partner in cards, 1 without a key or a value that they need); "
        f"{len(joined['shop'])} joined rows"
    )


@pytest.mark.slow
def test_nobody_but_its_owner_is_sent_a_row_or_a_place(folder):
    _, _, runtime, _ = train("pubsub-vfl", {**SETTINGS, "num_epochs": 1}, folder / "parties.toml")
    totals = [(total.sender, total.receiver, total.type) for total in runtime.ledger.totals()]
    assert {(s.partition("/")[0], r.partition("/")[0]) for s, r, kind in totals if kind == "TableSlice"} == {
        (party, party) for party in KINDS
    }
    assert {(s, r) for s, r, kind in totals if kind == "RowPositions"} == {
        (MAPPER, f"{party}/table") for party in KINDS
    }
    assert {r for _, r, kind in totals if kind == "HashSecret"} <= {f"{party}/table" for party in KINDS}
    assert {kind for s, r, kind in totals if r == MAPPER and not kind.endswith("()")} == {"Schema", "KeyHashes"}
    assert RowPositions.__message__.reveals.startswith("which of its rows")  # type: ignore[attr-defined]


def test_rows_are_given_to_the_own_party_and_places_taken_from_the_server_alone():
    table = endpoints(RowHolder)
    table.check("give_slice", "shop/worker-0", CLIENT, "shop/table", None)
    for sender, role in (("bank/worker-0", CLIENT), (MAPPER, SERVER), (DRIVER, DRIVER)):
        with pytest.raises(Refused, match=r"calls shop/table\.give_slice, which is open to"):
            table.check("give_slice", sender, role, "shop/table", None)
    with pytest.raises(Refused, match="which is open to: server"):
        table.check("take_positions", "bank/table", CLIENT, "shop/table", RowPositions(np.zeros(1, np.int32)))
    with pytest.raises(BadInput, match="mapper"):
        party_name(MAPPER)


def test_places_are_taken_from_the_mapper_alone_and_name_rows_that_there_are():
    holder = RowHolder.__new__(RowHolder)
    endpoint = endpoints(RowHolder).check(
        "take_positions", "broker", SERVER, "bank/table", RowPositions(np.zeros(1, np.int32))
    )
    with pytest.raises(Refused, match="open to its joiners only: mapper; not to broker"):
        endpoints(RowHolder).check_named(endpoint, "broker", "bank/table", holder)
    endpoints(RowHolder).check_named(endpoint, MAPPER, "bank/table", holder)
    for name in ("describe", "send_keys"):
        endpoint = endpoints(RowHolder).check(name, "broker", SERVER, "bank/table", None)
        with pytest.raises(Refused, match="open to its joiners only: mapper; not to broker"):
            endpoints(RowHolder).check_named(endpoint, "broker", "bank/table", holder)
    holder._local = types.SimpleNamespace(data=pa.table({"age": [1.0, 2.0]}), num_null=0)  # type: ignore[assignment]
    holder._context = types.SimpleNamespace(name="bank/table", party="bank")  # type: ignore[assignment]
    holder._is_alone = False
    caller = current_caller.set(MAPPER)
    for rows in (np.array([2]), np.array([-2])):
        with pytest.raises(Refused, match="mapper: names rows of bank/table that there are not: 2 are here"):
            asyncio.run(holder.take_positions(RowPositions(rows)))
    with pytest.raises(Refused, match=r"mapper: sends bank/table RowPositions.rows of shape \(1, 1\)"):
        holder.check_sizes(RowPositions(np.zeros((1, 1), np.int32)))
    asyncio.run(holder.take_positions(RowPositions(np.array([1, -1, 0]))))
    assert holder.positions is not None
    holder._is_alone = True  # -1 is no partition's here, but the last row
    with pytest.raises(Refused, match="mapper: names rows of bank/table that there are not: 2 are here"):
        asyncio.run(holder.take_positions(RowPositions(np.array([1, -1, 0]))))
    current_caller.reset(caller)


@pytest.mark.slow
def test_a_resumed_run_reads_its_rows_again_and_notices_others(folder):
    whole, _, _, recorder = train("pubsub-vfl", SETTINGS, folder / "parties.toml")
    resume = recorder.all[1]  # after the alignment and one epoch
    assert train("pubsub-vfl", SETTINGS, folder / "parties.toml", resume=resume)[0].metrics == whole.metrics
    rows = tables()["cards"]
    rows[0]["age"] = 99.0
    save(folder / "cards.csv", rows)
    with pytest.raises(RowsChangedError, match="bank/table: the rows of table 'cards' have changed since"):
        train("pubsub-vfl", SETTINGS, folder / "parties.toml", resume=resume)


@pytest.mark.parametrize(
    ("old", "new", "words", "named"),
    [
        ('"orders.bad"', '"bad"', [], "task.label: 'bad' is not allowed here: write TABLE.COLUMN"),
        ("orders.item = items.item", "orders.item = items.missing", [], "no column 'missing'"),
        ("items.card = cards.card WHERE", "items.kind = cards.age WHERE", [], "join keys of different types"),
        ("orders.amount > -9", "orders.amount > 99", [], "no row joins where"),
        ("", "", ["embedding_mu=1"], "embedding_mu: 1.0 is not allowed where a query joins the rows"),
    ],
)
def test_what_cannot_be_is_one_line(folder, capsys, old, new, words, named):
    (folder / "parties.toml").write_text(QUERY.replace(old, new))
    run = ["run", "pubsub-vfl", "--data", str(folder / "parties.toml"), "--runtime", "simulated", "--quiet", *words]
    assert main([*run, "--out", str(folder / "runs")]) == 2
    assert named in capsys.readouterr().err

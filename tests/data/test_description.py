from __future__ import annotations

import json
import re

import pytest

from fedactors.data.columns import ColumnRule
from fedactors.data.description import load_description, load_description_as
from fedactors.data.layouts.horizontal import HorizontalData
from fedactors.data.layouts.vertical import RelationalData, VerticalData
from fedactors.data.party_rows import check_block
from fedactors.data.sources import FileSource
from fedactors.errors import BadInput

VERTICAL = """
[task]
type = "binary"
alignment = "psi"

[parties.bank]
path = "bank.csv"
id = "customer"
label = "bad"
categorical = ["region"]

[parties.shop]
path = "data/shop.csv"
id = "client"
features = ["spent"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "bank.csv").write_text("customer,age,region,bad\na,31,n,1\nb,45,s,0\nc,52,n,0\n")
    (tmp_path / "data/shop.csv").write_text("client,spent,other\nc,3.5,1\nz,9.5,1\na,1.5,1\n")
    return tmp_path


RELATIONAL = """
[task]
type = "binary"
layout = "relational"
sql = "SELECT * FROM orders JOIN cards ON orders.card = cards.card"
label = "orders.bad"
[parties.east]
path = "orders-1.csv"
table = "orders"
[parties.west]
path = "orders-2.csv"
table = "orders"
[parties.cards]
path = "cards.csv"
"""


def describe(folder, text):
    path = folder / "parties.toml"
    path.write_text(text)
    return load_description(path)


def test_vertical_files_of_two_parties_share_ids(folder):
    data = describe(folder, VERTICAL)
    assert isinstance(data, VerticalData)
    assert (data.parties, data.label_party, data.alignment, data.task) == (("bank", "shop"), "bank", "psi", "binary")
    bank, shop = (data.load(party) for party in ("bank", "shop"))
    shared = sorted(set(bank.ids.tolist()) & set(shop.ids.tolist()))
    assert shared == ["a", "c"]
    joined = [(bank.features[bank.ids == id_, 0][0], shop.features[shop.ids == id_, 0][0]) for id_ in shared]
    assert joined == [(31, 1.5), (52, 3.5)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"binary"',
            '"ordinal"',
            "task.type: 'ordinal' is not allowed: input should be 'binary', 'multiclass' or 'regression'",
        ),
        ('alignment = "psi"', 'alignment = "magic"', "task.alignment: 'magic'"),
        ('alignment = "psi"', "aligment = 1", "task: unknown key 'aligment'"),
        ('id = "client"', "", r"parties.shop.id: missing; alignment=psi"),
        ('label = "bad"', "", r"label: 0 parties name one \(none\)"),
        ('id = "client"', 'id = "client"\nlabel = "other"', "label: 2 parties name one"),
        ('["spent"]', "3", "parties.shop.features: 3 is not allowed"),
        ('["spent"]', '["spent", "spent"]', "parties.shop.features"),
        ('path = "bank.csv"', "", "parties.bank.path: missing"),
        ('path = "bank.csv"', 'path = "bank.csv"\nsize = 3', "parties.bank: unknown key 'size'"),
        ("[parties.shop]", '[parties."a/b"]', "'a/b' is not allowed as the name of a party"),
        ('type = "binary"', 'type = "binary"\nclasses = 3', "task.classes: 3 is not allowed for type=binary"),
        ('type = "binary"', 'type = "multiclass"', "task.classes: missing; type=multiclass needs"),
        ("[task]", "[tasks]", "unknown key 'tasks'"),
        ("[task]", "[task", "not TOML"),
    ],
)
def test_wrong_entries_are_named(folder, old, new, said):
    assert old in VERTICAL
    with pytest.raises(BadInput, match=said):
        describe(folder, VERTICAL.replace(old, new, 1))


def test_other_faults_of_the_file(folder):
    with pytest.raises(BadInput, match=r"cannot be read"):
        load_description(folder / "absent.toml")
    with pytest.raises(BadInput, match=r"1 given .* at least 2"):
        describe(folder, VERTICAL.split("[parties.shop]")[0])
    with pytest.raises(BadInput, match=r"no table \[parties.NAME\]"):
        describe(folder, VERTICAL.split("[parties.bank]")[0])


def test_a_missing_file_is_told_by_its_party_only(folder):
    data = describe(folder, VERTICAL.replace("data/shop.csv", "data/none.csv"))
    assert data.load("bank").features.shape == (3, 3)
    with pytest.raises(BadInput, match=r"shop: path: .*none.csv is not a file"):
        data.load("shop")


def test_horizontal_files(folder):
    (folder / "one.csv").write_text("x,z,y\n1,2,low\n3,4,high\n")
    (folder / "two.csv").write_text("x,z,y\n5,6,high\n")
    (folder / "test.csv").write_text("x,z,y\n1,2,low\n3,4,high\n")
    text = """
[task]
type = "binary"
layout = "horizontal"
classes = ["low", "high"]
test = "test.csv"
[parties.a]
path = "one.csv"
label = "y"
features = ["x", "z"]
[parties.b]
path = "two.csv"
label = "y"
features = ["x", "z"]
"""
    data = describe(folder, text)
    assert isinstance(data, HorizontalData)
    assert (data.num_clients, data.num_classes, data.shape) == (2, 2, (2,))
    assert list(data.client(0).load().labels) == [0, 1]
    assert list(data.client(1).load().labels) == [1]
    assert data.test().load().features.shape == (2, 2)
    assert data.centers == ()
    for name, center in (("one", "oregon"), ("two", "tokyo")):
        text = text.replace(f'path = "{name}.csv"', f'path = "{name}.csv"\ncenter = "{center}"')
    assert describe(folder, text).centers == ("oregon", "tokyo")
    with pytest.raises(BadInput, match=r"parties.b.center: missing"):
        describe(folder, text.replace('center = "tokyo"', ""))
    with pytest.raises(BadInput, match=r"test: parties names no test file"):
        describe(folder, text.replace('test = "test.csv"', "")).test()
    with pytest.raises(BadInput, match=r"parties.b.features: every client must name the same"):
        describe(folder, text[::-1].replace('["x", "z"]'[::-1], '["z"]'[::-1], 1)[::-1])
    with pytest.raises(BadInput, match=r"label y: 'high' not among task.classes \(low, tall\)"):
        describe(folder, text.replace('"high"]', '"tall"]')).client(1).load()


def test_relational_files(folder):
    (folder / "orders-1.csv").write_text("id,card,bad\n1,7,0\n")
    (folder / "orders-2.csv").write_text("id,card,bad\n2,7,1\n")
    (folder / "cards.csv").write_text("card,limit\n7,100\n")
    text = RELATIONAL
    data = describe(folder, text)
    assert isinstance(data, RelationalData)
    assert [(p.party, p.table, p.partition) for p in data.partitions] == [
        ("east", "orders", 0),
        ("west", "orders", 1),
        ("cards", "cards", 0),
    ]
    assert data.of("orders")[1].source.load(["id", "bad"]).to_pydict() == {"id": [2], "bad": [1]}
    with pytest.raises(BadInput, match=r"table 'cards' is with no party"):
        describe(folder, text.split("[parties.cards]")[0])
    with pytest.raises(BadInput, match=r"parties.east.table: 'shops' is not allowed: give one of orders, cards"):
        describe(folder, text.replace('table = "orders"', 'table = "shops"', 1))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("postgresql://reader:hunter2@h/d", "a password is not allowed in a file"),
        ("postgresql://reader@h/d?sslpassword=hunter2", "a password is not allowed in a file"),
        ("postgresql://reader@h/d?sslmodes=require", "option 'sslmodes' of a PostgreSQL address is not allowed"),
    ],
)
def test_a_file_holds_no_password_and_no_option_that_nobody_knows(folder, address, words):
    text = RELATIONAL.replace('path = "cards.csv"', f'path = "{address}"')
    with pytest.raises(BadInput, match=words) as caught:
        describe(folder, text)
    assert "hunter2" not in str(caught.value)


def test_another_layout_than_the_protocol_needs(folder):
    (folder / "parties.toml").write_text(VERTICAL)
    assert load_description_as(folder / "parties.toml", VerticalData).label_party == "bank"
    with pytest.raises(BadInput, match=r"task.layout: 'vertical' is not allowed: give 'horizontal'"):
        load_description_as(folder / "parties.toml", HorizontalData)


@pytest.mark.parametrize("features", ["features = []", ""])
def test_a_party_without_features(folder, features):
    (folder / "data/shop.csv").write_text("client\nc\na\n")
    data = describe(folder, VERTICAL.replace('features = ["spent"]', features))
    with pytest.raises(BadInput, match=r"shop: .*shop.csv: no feature column"):
        data.load("shop")


def test_a_party_without_rows(folder):
    (folder / "data/shop.csv").write_text("client,spent\n")
    with pytest.raises(BadInput, match=r"shop: .*shop.csv: no rows"):
        describe(folder, VERTICAL).load("shop")


def test_faults_in_the_rows_name_party_file_and_column(folder):
    (folder / "data/shop.csv").write_text("client,spent\na,1\nb,\na,\n")
    with pytest.raises(BadInput, match=r"shop: .*shop.csv: 1 ids occur more than once, the first is a"):
        describe(folder, VERTICAL).load("shop")
    (folder / "data/shop.csv").write_text("client,spent\na,1\nb,\nc,inf\n")
    with pytest.raises(BadInput, match=r"shop: .*shop.csv: column spent: 1 values are infinite, such as inf"):
        describe(folder, VERTICAL).load("shop")
    (folder / "data/shop.csv").write_text("client,spent\na,1\nb,\nc,\n")
    with pytest.raises(BadInput, match=r"shop: .*shop.csv: column spent: 2 values are NaN, missing or infinite"):
        describe(folder, VERTICAL).load("shop")
    (folder / "bank.csv").write_text("customer,age,region,bad\na,31,n,1\nb,45,s,1\n")
    with pytest.raises(BadInput, match=r"bank: .*bank.csv: label bad: 1 classes .* a model needs rows of at least two"):
        describe(folder, VERTICAL).load("bank")


def test_truth_values_are_classes(folder):
    (folder / "bank.csv").write_text("customer,age,region,bad\na,31,n,true\nb,45,s,false\nc,52,n,\n")
    text = VERTICAL.replace('label = "bad"', 'label = "bad"\nunlabelled = "drop"')
    bank = describe(folder, text.replace("[task]", "[task]\npositive = 'false'")).load("bank")
    assert (bank.class_names, list(bank.labels)) == (("true", "false"), [0, 1])
    (folder / "one.csv").write_text("x,y\n1,true\n3,false\n")
    (folder / "two.csv").write_text("x,y\n1,\n3,true\n")
    clients = "".join(
        f'[parties.{name}]\npath = "{name}.csv"\nlabel = "y"\nunlabelled = "drop"\n' for name in ("one", "two")
    )
    data = describe(folder, f'[task]\ntype = "binary"\nlayout = "horizontal"\nclasses = ["true", "false"]\n{clients}')
    assert [list(data.client(index).load().labels) for index in (0, 1)] == [[0, 1], [0]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"p,q,y\n", "no rows"),
        (b"p,q,y\n1,,0\n2,,1\n", "column q: no row has a value; list the other columns under features"),
        ("p,q,y\n1,2,0\n".encode("utf-16"), 'is not written in utf8; give its encoding: csv = { encoding = "utf-16" }'),
    ],
)
def test_files_that_hold_nothing_to_learn_from_are_one_line(tmp_path, content, said):
    (tmp_path / "a.csv").write_bytes(content)
    rules = (("q", ColumnRule(missing="mean")),)
    file = FileSource(party="a", path=str(tmp_path / "a.csv"), task="binary", num_classes=2, label="y", rules=rules)
    with pytest.raises(BadInput, match=re.escape(said)):
        file.load()


def test_rows_that_are_all_left_out_say_why(tmp_path):
    (tmp_path / "a.csv").write_text("p,q\n1,\n,2\n,3\n")
    rules = tuple((name, ColumnRule(missing="drop")) for name in "pq")
    file = FileSource(party="a", path=str(tmp_path / "a.csv"), task="binary", num_classes=2, rules=rules)
    with pytest.raises(BadInput, match="no rows; all are left out, 2 of them for 'p: missing'"):
        check_block(file.load(), "a", "binary", 2)


def test_rare_categories_are_not_refused_and_bucketed_at_once(folder):
    rule = '\n[parties.shop.columns]\nspent = { type = "categorical", rare = 3, unknown = "refuse" }\n'
    with pytest.raises(BadInput, match=r"parties.shop.columns.spent.rare: 3 is not allowed with unknown='refuse'"):
        describe(folder, VERTICAL + rule)


@pytest.mark.parametrize("classes", [["low", "high"], ["high", "low"]])
def test_classes_may_be_listed_in_the_order_of_their_numbers(tmp_path, classes):
    (tmp_path / "bank.csv").write_text("id,a,y\n1,2,low\n2,3,high\n3,5,low\n")
    (tmp_path / "shop.csv").write_text("id,b\n1,2\n2,3\n3,4\n")
    head = f'[task]\ntype = "binary"\nclasses = {json.dumps(classes)}\n'
    parties = '[parties.bank]\npath = "bank.csv"\nlabel = "y"\nid = "id"\n'
    parties += '[parties.shop]\npath = "shop.csv"\nid = "id"\n'
    path = tmp_path / "parties.toml"
    path.write_text(head + parties)
    found = load_description(path).load("bank")
    assert found.class_names == tuple(classes)
    assert [found.class_names[label] for label in found.labels] == ["low", "high", "low"]
    for wrong, said in (
        ('["low", "low"]', r"task.classes: .* a label is there twice \(parties.toml:3\)"),
        ('["low", "high"]\npositive = "low"', r"task.positive: .* beside a list"),
    ):
        path.write_text(head.replace(json.dumps(classes), wrong) + parties)
        with pytest.raises(BadInput, match=said):
            load_description(path)
    unknown, absent = "'high' not among task.classes", "no row is 'top'"
    for wrong, said in (('["low", "top"]', unknown), ('["low", "high", "top"]', absent)):
        kind = head.replace("binary", "multiclass").replace(json.dumps(classes), wrong)
        path.write_text(kind + parties)
        with pytest.raises(BadInput, match=said):
            load_description(path).load("bank")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('type = "binary"', 'type = "binaer"', 2),
        ('label = "y"', 'label = "y"\nlabels = "z"', 3),
        ('id = "i"', "id = 7", 9),
        ("v = { }", 'v = { type = "words" }', 12),
    ],
)
def test_an_error_names_the_line_of_the_description(tmp_path, old, new, line):
    text = (
        '[task]\ntype = "binary"\n[parties.bank]\npath = "bank.csv"\nlabel = "y"\n\n'
        '[parties.shop]\npath = "shop.csv"\nid = "i"\n\n[parties.shop.columns]\nv = { }\n'
    )
    assert old in text
    path = tmp_path / "parties.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(BadInput, match=rf"\(parties.toml:{line}\)$"):
        load_description(path)

"""What public reports of people's real files asked for, on inputs of their kinds that are made here.

Others hold the kinds of `test_image_folders`, `test_exact_values` (forms of files, numbers, labels and dates) and
`test_exact_queries` (keys and filters); `test_given_cases` reads the reports' files themselves, where they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import datetime
import decimal
import json
import logging
import sqlite3
import subprocess
import sys
import time
import unicodedata
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedactors
from fedactors.cli.main import main
from fedactors.config import build
from fedactors.data.checks import check_data, edits_of
from fedactors.data.databases import TableSource
from fedactors.data.description import load_description
from fedactors.data.layouts.relational import compared_keys
from fedactors.data.objects import table_of
from fedactors.data.readers import read_columns
from fedactors.data.sources import FileSource
from fedactors.data.values import CsvFormat
from fedactors.errors import BadInput, DataMissing, Refused
from fedactors.plugins import find_protocol
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.runtime.snapshots import digests_of_files
from tests.data.test_checks import edited, write_csv

ROWS = 60
IDS = [f"c{row:03d}" for row in range(ROWS)]
NOISE = [f"{np.random.default_rng(row).uniform():.4f}" for row in range(ROWS)]
LABELS = [row % 2 for row in range(ROWS)]


def described(folder, shop, *, bank="", text=None, rules=""):
    """Write a description of a bank with labels and a shop whose file holds `text`, or is already there."""
    write_csv(folder / "bank.csv", id=IDS, age=NOISE, y=LABELS)
    if text is not None:
        (folder / shop).write_text(text)
    path = folder / "parties.toml"
    path.write_text(
        '[task]\ntype = "binary"\nalignment = "hash"\n'
        f'[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n{bank}'
        f'[parties.shop]\npath = {json.dumps(str(shop))}\nid = "id"\n{rules}'
    )
    return path


def lines(*columns, head="id,v"):
    return "\n".join([head, *map(",".join, zip(IDS, *columns, strict=True))]) + "\n"


GERMAN = [f"{1 + row}.{row:03d},{row % 10}0" for row in range(ROWS)]
QUOTED = [f'"{text}"' for text in GERMAN]
ENGLISH = [f'"{1 + row},{row:03d}.{row % 10}"' for row in range(ROWS)]
NULLS = ["?" if row % 9 == 1 else "NA" if row % 9 == 2 else NOISE[row] for row in range(ROWS)]
HUGE = ["1e39" if row % 9 == 1 else NOISE[row] for row in range(ROWS)]
SECONDS = [str(1_700_000_000 + 3600 * row) for row in range(ROWS)]
ANSWERED = {
    "decimal commas and points": (lines(QUOTED), "", 'csv = { decimal = ",", thousands = "." }'),
    "commas between thousands": (lines(ENGLISH), "", 'csv = { thousands = "," }'),
    "another text for missing": (lines(NULLS), "", 'csv = { null = ["?", "NA"] }'),
    "blanks after commas": (lines(NOISE, head=" id, v").replace(",", ", "), "", "csv = { trim = true }"),
    "semicolons": (lines(NOISE).replace(",", ";"), "", 'csv = { separator = ";" }'),
    "beyond single precision": (lines(HUGE), "", 'v = { scaling = "range", range = [0, 1'),
    "seconds as dates": (lines(SECONDS), '[parties.shop.columns]\nv = { type = "datetime" }\n', 'format = "unix"'),
}


@pytest.mark.parametrize("kind", ANSWERED)
def test_the_check_answers_what_a_file_is_like(tmp_path, kind):
    text, rules, answer = ANSWERED[kind]
    path = described(tmp_path, "shop.csv", text=text, rules=rules)
    assert answer in edits_of(check_data(path))
    after = edited(path)
    assert not [one for one in check_data(after) if one.level == "error"]
    assert load_description(after).part("shop").load().features.shape[0] == ROWS


@pytest.mark.parametrize("text", ["1,234", "12,500"])
def test_a_comma_that_may_mean_two_things_has_no_answer(tmp_path, text):
    path = described(tmp_path, "shop.csv", text=lines([f'"{text}"'] * ROWS))
    assert "csv" not in edits_of(check_data(path))
    with pytest.raises(BadInput, match=r"thousands = \",\" \} reads 1.* another"):
        load_description(path).part("shop").load()


def test_a_file_without_names_says_so_and_an_empty_one_too(tmp_path):
    path = described(tmp_path, "shop.csv", text="7,1\n8,2\n")
    assert any('csv = { names = ["...", ...] }' in one.text for one in check_data(path))
    path = described(tmp_path, "shop.csv", text="id,v\n")
    assert [one.text for one in check_data(path) if "no row" in one.text]


TYPES = {
    "lists": (pa.list_(pa.float64()), [[0.5], []], 'features = ["w"]'),
    "structs": (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": 2}], 'features = ["w"]'),
    "time spans": (pa.duration("s"), [1, 2], 'features = ["w"]'),
    "times of day": (pa.time64("us"), [datetime.time(1), datetime.time(23, 5)], 'parts = ["hour"]'),
    "dates": (pa.date32(), [datetime.date(2024, 1, 1), datetime.date(2024, 3, 2)], 'v = { type = "datetime" }'),
}


@pytest.mark.parametrize("rule", ["", '[parties.shop.columns]\nv = { type = "categorical" }\n'])
@pytest.mark.parametrize("kind", TYPES)
def test_types_of_parquet_are_told_with_what_can_be_done(tmp_path, kind, rule):
    of_type, values, answer = TYPES[kind]
    assert isinstance(values, list)
    column = pa.array([values[row % 2] for row in range(ROWS)], of_type)
    pq.write_table(pa.table({"id": IDS, "w": list(map(float, NOISE)), "v": column}), tmp_path / "shop.parquet")
    path = described(tmp_path, "shop.parquet", rules=rule)
    found = check_data(path)
    if not rule:
        assert any(f"holds {kind}" in one.text for one in found)
        assert answer in edits_of(found)
        assert not [one for one in check_data(edited(path)) if one.level == "error"]
    elif kind in ("lists", "structs"):
        assert any("which are no names or categories, and drop its rule" in one.text for one in found)
    else:
        assert any(one.column == "v" for one in found) is (kind == "time spans")


@pytest.mark.parametrize(
    ("names", "values", "line"),
    [
        ([f"g{number}" for number in range(12)], ["" if row % 9 == 1 else NOISE[row] for row in range(ROWS)], '"*" = '),
        ([f"lab_{number}" for number in range(12)], [f"{row % 3}x" for row in range(ROWS)], '"lab_*" = '),
    ],
)
def test_one_rule_answers_many_columns(tmp_path, names, values, line):
    write_csv(tmp_path / "shop.csv", id=IDS, w=NOISE, **dict.fromkeys(names, values))
    path = described(tmp_path, "shop.csv")
    found = check_data(path)
    assert [one.suggestion.startswith(line) for one in found] == [True]
    assert "12 columns, such as" in found[0].text
    assert not [one for one in check_data(edited(path)) if one.level == "error"]


# --- rules of every layout --------------------------------------------------------------------------------------------


def clients(folder, task="", label="y", **columns):
    for name in ("north", "south", "test"):
        write_csv(folder / f"{name}.csv", **columns)
    parties = "".join(f'[parties.{one}]\npath = "{one}.csv"\nlabel = "{label}"\n' for one in ("north", "south"))
    path = folder / "parties.toml"
    path.write_text(f'[task]\ntype = "binary"\nlayout = "horizontal"\ntest = "test.csv"\n{task}\n{parties}')
    return path


GAPS = ["" if row % 9 == 1 else NOISE[row] for row in range(ROWS)]


@pytest.mark.parametrize("pattern", ["*", "lab_*", "*_2"])
def test_rules_by_pattern_hold_for_clients(tmp_path, pattern):
    rules = f'columns = {{ "{pattern}" = {{ missing = "constant", fill = 0.25 }} }}\nclasses = [0, 1]'
    path = clients(tmp_path, rules, lab_1=NOISE, lab_2=GAPS, y=LABELS)
    block = load_description(path).client(0).load()
    assert block.features[1].tolist() == pytest.approx([float(NOISE[1]), 0.25])
    run = fedactors.simulate("horizontal", path, num_rounds=1)
    (tmp_path / "south.csv").write_text("lab_1,lab_2\n0.5,\n")
    new = tmp_path / "new.toml"
    new.write_text(path.read_text().replace('test = "test.csv"', "").replace('label = "y"', 'label = "y"'))
    predicted = run.predict(new, tmp_path / "predicted.csv").as_dict()["predictions"]
    assert {one["party"]: one["predicted"] for one in predicted} == {"north": ROWS, "south": 1}


def test_labels_of_clients_may_have_a_rule(tmp_path):
    rules = 'columns = { y = { type = "text" } }\nclasses = ["No", "Yes"]'
    labels = [["no", "YES", " No", "yes"][row % 4] for row in range(ROWS)]
    path = clients(tmp_path, rules, v=NOISE, y=labels)
    assert load_description(path).client(1).load().labels.tolist() == LABELS
    path = clients(tmp_path, 'classes = ["No", "Yes"]', v=NOISE, y=labels)
    assert not [one for one in check_data(edited(path)) if one.level == "error"]


def test_a_class_that_is_never_predicted_is_told(tmp_path):
    income = [3000 + 30 * row for row in range(ROWS)]
    path = clients(tmp_path, "classes = [0, 1]", income=income, y=LABELS)
    run = fedactors.simulate("horizontal", path, num_rounds=2, standardisation="none")
    notes = run.summary.extra["notes"]
    assert any("1 class is predicted for no test row; try standardisation=sums" in note for note in notes)


QUERY = """
[task]
type = "{type}"
layout = "relational"
label = "orders.y"
{task}
sql = "SELECT o.y, o.lab_1, o.lab_2, c.age FROM orders o JOIN cards c ON o.card = c.card"
[parties.shop]
path = "orders.csv"
table = "orders"
{shop}
[parties.bank]
path = "cards.csv"
table = "cards"
{bank}
"""


def joined(folder, *, kind="binary", task="", shop="", bank="", y=LABELS, keys=None, lab_2=NOISE, cards=None):
    write_csv(
        folder / "orders.csv", card=keys or [f"k{row % 20}" for row in range(ROWS)], y=y, lab_1=NOISE, lab_2=lab_2
    )
    write_csv(folder / "cards.csv", card=cards or [f"k{row}" for row in range(20)], age=NOISE[:20])
    path = folder / "query.toml"
    path.write_text(QUERY.format(type=kind, task=task.replace("orders.y", "o.y"), shop=shop, bank=bank).replace(
        'label = "orders.y"', 'label = "o.y"'))  # fmt: skip
    return path


@pytest.mark.parametrize("protocol", ["tablepuppet", "pubsub-vfl"])
@pytest.mark.parametrize(("kind", "names"), [("binary", ["low", "high"]), ("multiclass", ["low", "mid", "high"])])
def test_classes_are_listed_in_a_query_too(tmp_path, protocol, kind, names):
    labels = [names[row % len(names)] for row in range(ROWS)]
    path = joined(tmp_path, kind=kind, task=f"classes = {json.dumps(names)}", y=labels)
    settings = {"num_rounds": 2} if protocol == "tablepuppet" else {"num_epochs": 1, "validation_fraction": 0.3}
    run = fedactors.simulate(protocol, path, **settings)
    predicted = tmp_path / "predicted.csv"
    run.predict(path, predicted)
    assert any(name in predicted.read_text() for name in names)


def test_a_label_of_text_names_its_party_and_what_helps(tmp_path):
    labels = [["low", "high"][row % 2] for row in range(ROWS)]
    with pytest.raises(
        BadInput, match=r"shop: y is string, not a number; list its classes: classes = \[\"high\", \"lo"
    ):
        fedactors.simulate("tablepuppet", joined(tmp_path, y=labels), num_rounds=1)
    path = joined(tmp_path, y=labels, task='classes = ["low", "tall"]')
    with pytest.raises(BadInput, match=r"shop: y holds 'high', which is none of the classes low, tall"):
        fedactors.simulate("tablepuppet", path, num_rounds=1)


@pytest.mark.parametrize("pattern", ["*", "lab_*"])
def test_rules_by_pattern_hold_for_tables_of_a_query(tmp_path, pattern):
    texts = ["" if row % 9 == 1 else f"{row % 3}x" for row in range(ROWS)]
    rule = f'columns = {{ "{pattern}" = {{ missing = "median" }}, lab_2 = {{ type = "text", missing = "indicator" }} }}'
    path = joined(tmp_path, shop=rule, lab_2=texts)
    run = fedactors.simulate("tablepuppet", path, num_rounds=1)
    assert run.summary.extra["rows"]["o"] == ROWS
    with pytest.raises(BadInput, match=r"parties.shop.columns: 'z\*' is not allowed: the query selects lab_1, lab_2"):
        fedactors.simulate("tablepuppet", joined(tmp_path, shop='columns = { "z*" = {} }'), num_rounds=1)


def test_keys_of_a_query_may_have_rules(tmp_path, caplog):
    keys = [["K", "k", "Ｋ"][row % 3] + str(row % 20) for row in range(ROWS)]
    rules = 'id_rules = ["nfkc", "casefold"]'
    with caplog.at_level(logging.INFO):
        run = fedactors.simulate("tablepuppet", joined(tmp_path, keys=keys, shop=rules, bank=rules), num_rounds=1)
    assert run.summary.extra["joined_rows"] + run.summary.extra["joined_test_rows"] == ROWS
    assert "bank: 20 of its 20 rows found partners" in caplog.text
    with pytest.raises(BadInput, match=r"parties.shop.id_rules: \['nfkc'\] is not allowed: no key of k is a text"):
        compared_keys(pa.table({"k": [1, 2]}), ["k"], ("nfkc",), "parties.shop.id_rules")


# --- rows of one id, and who finds partners ---------------------------------------------------------------------------


@pytest.mark.parametrize(("rule", "kept"), [("first", ROWS), ("drop", ROWS - 1)])
def test_rows_of_one_id_are_kept_or_left_out_as_the_party_says(tmp_path, caplog, rule, kept):
    text = lines(NOISE) + f"{IDS[7]},0.77\n"
    with pytest.raises(BadInput, match='say duplicates = "first", or "drop"'):
        load_description(described(tmp_path, "shop.csv", text=text)).part("shop").load()
    assert 'duplicates = "first"' in edits_of(check_data(tmp_path / "parties.toml"))
    path = described(tmp_path, "shop.csv", text=text, rules=f'duplicates = "{rule}"\n')
    block = load_description(path).part("shop").load()
    assert len(block.ids) == kept
    assert set(block.rejected) == {(IDS[7], "another row has its id")}
    assert 0.77 not in block.features
    with caplog.at_level(logging.INFO):
        fedactors.simulate("pubsub-vfl", path, num_epochs=1, batch_size=16, validation_fraction=0.3)
    assert f"shop: {kept} of its {kept} rows found partners; {ROWS + 1 - kept} more were left out" in caplog.text


def test_a_passive_party_is_told_how_many_of_its_rows_found_partners(tmp_path, caplog):
    shop = lines(NOISE) + "".join(f"z{row},0.5\n" for row in range(40))
    path = described(tmp_path, "shop.csv", text=shop)
    with caplog.at_level(logging.INFO):
        fedactors.simulate("pubsub-vfl", path, num_epochs=1, batch_size=16, validation_fraction=0.3)
    assert "shop: 60 of its 100 rows found partners" in caplog.text


# --- where files are, and what they are -------------------------------------------------------------------------------


def test_a_query_reads_csv_as_any_layout_does(tmp_path):
    (tmp_path / "t.csv").write_bytes("id;größe\n7;1,5\n".encode("latin-1"))
    with pytest.raises(BadInput, match=r"give what stands between its fields|give its encoding"):
        TableSource(kind="csv", where=str(tmp_path / "t.csv"), table="t").load()
    csv = CsvFormat(separator=";", decimal=",", encoding="latin-1")
    source = TableSource(kind="csv", where=str(tmp_path / "t.csv"), table="t", csv=csv)
    assert source.load().to_pydict() == {"id": [7], "größe": [1.5]}


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/bucket", recursive=True)


def test_files_are_found_wherever_they_are(tmp_path, memory, monkeypatch):
    first, second = lines(NOISE).splitlines()[:31], lines(NOISE).splitlines()[31:]
    one, other = "\n".join(first) + "\n", "\n".join([first[0], *second]) + "\n"
    whole = described(tmp_path, "shop.csv", text=lines(NOISE))
    right = load_description(whole).part("shop").load()
    (tmp_path / "parts").mkdir()
    for name, text in (("parts/a.csv", one), ("parts/b.csv", other), ("parts/_SUCCESS", "")):
        (tmp_path / name).write_text(text)
    for name, text in (("p-1.csv", one), ("p-2.csv", other), ("whole.csv", lines(NOISE))):
        memory.pipe(f"/bucket/{name}", text.encode())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": IDS, "v": list(map(float, NOISE))}), sink)
    memory.pipe("/bucket/whole.parquet", sink.getvalue().to_pybytes())
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("parts", "parts/*.csv", "~/shop.csv", "memory://bucket/p-*.csv", "memory://bucket/whole.csv",
                  "memory://bucket/whole.parquet", f"file://{tmp_path}/shop.csv"):  # fmt: skip
        block = load_description(described(tmp_path, path)).part("shop").load()
        assert block.ids.tolist() == right.ids.tolist(), path
        assert np.array_equal(block.features, right.features), path
    table = TableSource(kind="parquet", where="memory://bucket/whole.parquet", table="t")
    assert table.load(where="v > 2").num_rows == 0
    assert table.load().column("id").to_pylist() == IDS


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("memory://bucket/none.csv", "memory://bucket/none.csv is not a file"),
        ("s4://bucket/x.csv", "Protocol not known: s4"),
        ("none-*.csv", "none-*.csv is not a file"),
        ("s3://user:secret@bucket/x.csv", "a password or key in an address"),
    ],
)
def test_what_is_nowhere_is_named(tmp_path, path, words):
    with pytest.raises(BadInput) as refused:
        load_description(described(tmp_path, path)).part("shop").load()
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


WITH_PATH = {
    "vertical": '[parties.bank]\npath = "bank.csv"\nlabel = "y"\n[parties.shop]\npath = {path}\n',
    "a view": '[parties.bank]\npath = "bank.csv"\nlabel = "y"\n[parties.shop]\ntables = {{ t = {path} }}\n'
    'sql = "SELECT * FROM t"\n',
    "horizontal": 'layout = "horizontal"\ntest = {path}\nclasses = [0, 1]\n[parties.a]\npath = "bank.csv"\n'
    'label = "y"\n[parties.b]\npath = "shop.csv"\nlabel = "y"\n',
    "relational": 'layout = "relational"\nlabel = "t.y"\nsql = "SELECT t.y, u.v FROM t JOIN u ON t.id = u.id"\n'
    '[parties.t]\npath = "bank.csv"\n[parties.u]\npath = {path}\n',
    "graph-tables": 'layout = "graph-tables"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
    'edges = {path}\n[parties.shop]\npath = "shop.csv"\nid = "id"\nedges = "edges.csv"\n',
    "sparse": 'layout = "graph-tables"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\nedges = "e.csv"\n'
    '[parties.shop]\npath = "shop.csv"\nid = "id"\nedges = "edges.csv"\nsparse = {path}\n',
    "a key of checkpoints": '[parties.bank]\npath = "bank.csv"\nlabel = "y"\n[parties.shop]\npath = "shop.csv"\n'
    "checkpoint_dir = {path}\n",
}  # fmt: skip


@pytest.mark.parametrize("path", ["$HOME/x.csv", "${HOME}/x.csv", "data/$UNSET_HERE.csv", "s3://$BUCKET/x.csv"])
@pytest.mark.parametrize("layout", WITH_PATH)
def test_a_variable_in_a_path_is_refused_in_every_layout(tmp_path, layout, path, capsys):
    write_csv(tmp_path / "bank.csv", id=IDS, age=NOISE, y=LABELS)
    write_csv(tmp_path / "shop.csv", id=IDS, v=NOISE)
    description = tmp_path / "parties.toml"
    description.write_text(f'[task]\ntype = "binary"\n{WITH_PATH[layout].format(path=json.dumps(path))}')
    protocol = {"horizontal": "horizontal", "relational": "tablepuppet"}.get(
        layout, "glasu" if layout in ("graph-tables", "sparse") else "pubsub-vfl"
    )
    assert main(["run", protocol, "--data", str(description), "--out", str(tmp_path / "runs")]) == 2
    told = capsys.readouterr().err
    assert "is not replaced by its value: write the whole path, or ~ for your home folder" in told
    assert path in told
    assert len([line for line in told.splitlines() if not line.startswith("reading ")]) == 1


@pytest.mark.parametrize("key", ["file", "nodes"])
def test_a_variable_in_the_path_of_arrays_is_refused(tmp_path, key):
    paths = {"file": "bank.npz", "nodes": "nodes.npz"} | {key: "$HOME/x.npz"}
    description = tmp_path / "parties.toml"
    description.write_text(
        f'[task]\nlayout = "graph"\nnodes = "{paths["nodes"]}"\n[parties.bank]\nfile = "{paths["file"]}"\n'
    )
    with pytest.raises(BadInput, match=r"\$HOME is not replaced by its value: write the whole path, or ~ "):
        load_description(description)


@pytest.mark.parametrize("words", [["--out", "$HOME/runs"], ["--checkpoint-dir", "shop=${HOME}/states"]])
def test_a_variable_in_a_path_of_the_command_line_is_refused(tmp_path, monkeypatch, words, capsys):
    monkeypatch.chdir(tmp_path)
    path = described(tmp_path, "shop.csv", text=lines(NOISE))
    assert main(["run", "pubsub-vfl", "--data", str(path), *words]) == 2
    assert "is not replaced by its value" in capsys.readouterr().err
    assert not list(tmp_path.glob("$*"))


def test_a_variable_in_a_path_of_python_is_told_and_a_file_that_is_called_so_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (
        FileSource(party="shop", path="$HOME/shop.csv", task="binary", num_classes=2),
        TableSource(kind="csv", where="$HOME/shop.csv", table="t"),
        TableSource(kind="sqlite", where="$HOME/shop.db", table="t"),
    ):
        with pytest.raises((BadInput, DataMissing), match=r"\$HOME is not replaced by its value"):
            source.load()
    (tmp_path / "$HOME").mkdir()
    for name in ("$HOME/shop.csv", "2024$sales.csv"):
        path = described(tmp_path, name, text=lines(NOISE))
        assert load_description(path).part("shop").load().ids.tolist() == IDS
    monkeypatch.setenv("HOME", str(tmp_path))  # what the line advises
    path = described(tmp_path, "~/shop.csv")
    (tmp_path / "shop.csv").write_text(lines(NOISE))
    assert load_description(path).part("shop").load().ids.tolist() == IDS


def test_other_rows_at_an_address_or_of_a_pattern_have_another_digest(tmp_path, memory):
    memory.pipe("/bucket/x.csv", b"id,v\n1,2\n")
    (tmp_path / "p-1.csv").write_text("id,v\n1,2\n")
    for path, change in (
        ("memory://bucket/x.csv", lambda: memory.pipe("/bucket/x.csv", b"id,v\n1,3\n")),
        ("p-*.csv", lambda: (tmp_path / "p-2.csv").write_text("id,v\n9,9\n")),
    ):
        source = load_description(described(tmp_path, path)).part("shop").source
        before = digests_of_files(source)
        assert digests_of_files(source) == before
        change()
        assert digests_of_files(source) != before


def test_parts_are_of_one_kind_and_no_value_is_rounded(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    pq.write_table(pa.table({"k": [1, 2**53 + 1]}), folder / "a.parquet")
    pq.write_table(pa.table({"k": [2.5]}), folder / "b.parquet")
    with pytest.raises(BadInput, match="9007199254740993 not in range"):
        read_columns(folder, "shop", wanted=None)
    with pytest.raises(BadInput, match="9007199254740993 not in range"):
        TableSource(kind="parquet", where=str(folder), table="t").load()
    pq.write_table(pa.table({"k": [1, 2]}), folder / "a.parquet")
    assert read_columns(folder, "shop", wanted=None)["k"].numbers("").tolist() == [1, 2, 2.5]
    assert sorted(TableSource(kind="parquet", where=str(folder), table="t").load().column("k").to_pylist()) == [
        1,
        2,
        2.5,
    ]
    (folder / "c.csv").write_text("k\n1\n")
    with pytest.raises(BadInput, match="the files of a table are of one kind"):
        read_columns(folder, "shop", wanted=None)


def test_a_workbook_is_read_as_it_is_meant_or_refused(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    day = datetime.datetime(2024, 1, 2)
    for row in (["id", "day", "v", "note"], ["007", day, 1, "x"], [7, day, 2.5, " "], [None] * 4):
        sheet.append(row)
    book.save(tmp_path / "shop.xlsx")
    found = read_columns(tmp_path / "shop.xlsx", "shop", wanted=None)
    assert {name: column.values.to_pylist() for name, column in found.items()} == {
        "id": ["007", "7"], "day": [day.date()] * 2, "v": [1.0, 2.5], "note": ["x", None],
    }  # fmt: skip
    for change, words in (
        (lambda: sheet.__setitem__("C3", "=1+1"), "cell C3 is a formula whose value is not there"),
        (lambda: sheet.merge_cells("A2:A3"), "cells A2:A3 are merged"),
        (lambda: book.create_sheet("more").append(["id"]), "the workbook has 2 sheets (Sheet, more)"),
    ):
        change()
        book.save(tmp_path / "shop.xlsx")
        with pytest.raises(BadInput) as refused:
            read_columns(tmp_path / "shop.xlsx", "shop", wanted=None)
        assert words in str(refused.value)
        sheet.unmerge_cells("A2:A3") if "merged" in words else sheet.__setitem__("C3", 2.5)


def test_a_workbook_without_the_extra_says_how_to_read_it(tmp_path, monkeypatch):
    import zipfile

    with zipfile.ZipFile(tmp_path / "shop.xlsx", "w") as packed:
        packed.writestr("[Content_Types].xml", "")
        packed.writestr("xl/workbook.xml", "")
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(BadInput, match=r"pip install 'fedactors\[excel\]', or save it as CSV"):
        read_columns(tmp_path / "shop.xlsx", "shop", wanted=None)


# --- a party with several tables --------------------------------------------------------------------------------------

SPENT = "SELECT customer, SUM(amount) AS spent, COUNT(*) AS n FROM orders GROUP BY customer"


def shop_tables(folder, customers=None):
    customers = customers or IDS
    write_csv(folder / "bank.csv", id=customers, age=NOISE, y=LABELS)
    write_csv(folder / "orders.csv", customer=[*customers, *customers[:20]], amount=[*NOISE, *NOISE[:20]])
    write_csv(folder / "customers.csv", customer=customers, segment=[row % 3 for row in range(ROWS)])
    return [float(NOISE[row]) * (2 if row < 20 else 1) for row in range(ROWS)]


@pytest.mark.parametrize("customers", [IDS, [f"{row:03d}" for row in range(ROWS)]], ids=["names", "007"])
def test_a_partys_rows_may_be_a_view_of_its_own_tables(tmp_path, customers):
    spent = shop_tables(tmp_path, customers)
    path = tmp_path / "parties.toml"
    sql = (
        f"WITH spent AS ({SPENT}) SELECT customers.customer AS id, segment, spent, n FROM customers "
        "LEFT JOIN spent ON customers.customer = spent.customer"
    )
    path.write_text(
        '[task]\ntype = "binary"\nalignment = "hash"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
        f'[parties.shop]\nid = "id"\nsql = "{sql}"\n'
        'tables = { orders = "orders.csv", customers = "customers.csv" }\n'
    )
    block = load_description(path).part("shop").load()
    found = dict(zip(block.ids.tolist(), block.features.tolist(), strict=True))
    assert block.feature_names == ("segment", "spent", "n")
    assert [found[name] for name in customers] == [
        pytest.approx([row % 3, spent[row], 2 if row < 20 else 1]) for row in range(ROWS)
    ]
    assert not [one for one in check_data(path) if one.level == "error"]
    run = fedactors.simulate("pubsub-vfl", path, num_epochs=1, batch_size=16, validation_fraction=0.3)
    assert run.summary.extra["num_rows"] > 0
    before = digests_of_files(load_description(path).part("shop").source)
    (tmp_path / "orders.csv").write_text("customer,amount\nx,1\n")
    assert digests_of_files(load_description(path).part("shop").source) != before
    for old, new, words in (
        (SPENT, f"{SPENT} LIMIT 5", "sql: 'LIMIT 5' in shop is not supported"),
        ("FROM orders", "FROM bills", "sql: table 'bills' of shop is with no party"),
        (
            'id = "id"\nsql',
            'id = "id"\npath = "x.csv"\nsql',
            "parties.shop.path: 'x.csv' is not allowed: the party gives sql",
        ),
        (sql, "SELECT * FROM 'bank.csv'", "with no party"),
        (sql, "DELETE FROM orders", "only SELECT is allowed"),
    ):
        path.with_name("other.toml").write_text(path.read_text().replace(old, new))
        with pytest.raises(BadInput) as refused:
            load_description(path.with_name("other.toml"))
        assert words in str(refused.value)


VIEWS = {
    "WITH": f"WITH spent AS ({SPENT}) SELECT bank.y, bank.age, spent.spent, c.segment FROM bank "
    "JOIN spent ON bank.id = spent.customer JOIN customers c ON bank.id = c.customer",
    "FROM": f"SELECT bank.y, bank.age, spent.spent, c.segment FROM bank JOIN ({SPENT}) AS spent "
    "ON bank.id = spent.customer JOIN customers c ON bank.id = c.customer",
    "one of another": f"WITH a AS ({SPENT}), s AS (SELECT a.customer, a.spent, k.segment FROM a LEFT JOIN customers k "
    "ON a.customer = k.customer) SELECT bank.y, bank.age, s.spent, s.segment FROM bank JOIN s ON bank.id = s.customer",
}


def two_tables(folder, sql):
    path = folder / "query.toml"
    path.write_text(
        f'[task]\ntype = "binary"\nlayout = "relational"\nlabel = "bank.y"\nsql = """{sql}"""\n'
        '[parties.bank]\npath = "bank.csv"\n'
        '[parties.shop]\ntables = { orders = "orders.csv", customers = "customers.csv" }\n'
    )
    return path


@pytest.mark.parametrize("kind", VIEWS)
def test_views_of_one_partys_tables_are_tables_of_a_query(tmp_path, kind):
    spent = shop_tables(tmp_path)
    path = two_tables(tmp_path, VIEWS[kind])
    data = load_description(path)
    (view,) = (one.source for one in data.partitions if one.source.kind == "view")
    rows = view.load(["customer", "spent"]).to_pydict()
    assert dict(zip(rows["customer"], rows["spent"], strict=True)) == pytest.approx(dict(zip(IDS, spent, strict=True)))
    run = fedactors.simulate("tablepuppet", path, num_rounds=1)
    assert run.summary.extra["joined_rows"] + run.summary.extra["joined_test_rows"] == ROWS


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            "WITH a AS (SELECT * FROM bank JOIN orders ON id = customer) SELECT a.y FROM a",
            "a reads tables of bank and shop",
        ),
        (
            "WITH a AS (SELECT * FROM orders LIMIT 3) SELECT bank.y FROM bank JOIN a ON id = a.customer",
            "'LIMIT 3' in a",
        ),
        (
            "WITH a AS (SELECT random() r, * FROM orders) SELECT bank.y FROM bank JOIN a ON id = a.customer",
            "in a is not su",
        ),
        (
            "WITH a AS (SELECT * FROM bills) SELECT bank.y FROM bank JOIN a ON id = a.customer",
            "'bills' of a is with no",
        ),
        ("SELECT bank.y FROM bank LEFT JOIN orders ON bank.id = orders.customer", "LEFT JOIN is not supported"),
        ("WITH Bank AS (SELECT * FROM orders) SELECT bank.y FROM bank", "table name 'Bank' is used twice"),
        (
            "WITH a AS (SELECT customer, first(amount) f FROM orders GROUP BY customer) SELECT bank.y FROM bank "
            "JOIN a ON id = a.customer",
            "'FIRST(amount)' in a is not supported",
        ),
        (
            "WITH a AS (SELECT *, row_number() OVER () n FROM orders) SELECT bank.y FROM bank JOIN a "
            "ON id = a.customer",
            "'ROW_NUMBER() OVER ()' in a is not supported",
        ),
    ],
)
def test_what_is_no_view_of_one_partys_tables_is_named(tmp_path, sql, words):
    shop_tables(tmp_path)
    with pytest.raises(BadInput) as refused:
        load_description(two_tables(tmp_path, sql))
    assert words in str(refused.value)


# --- the tutorial's two messy files -----------------------------------------------------------------------------------


def test_the_tutorials_messy_files_are_accepted_after_one_check_and_one_edit(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/tutorial/your-data-your-model.md").read_text()
    script = page.partition("<<'PY'\n")[2].partition("\nPY\n")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "make_files.py", "exec"), {})
    path = tmp_path / "parties.toml"
    path.write_text(
        '[task]\ntype = "binary"\nalignment = "psi"\n'
        '[parties.bank]\npath = "bank.csv"\nid = "customer"\nlabel = "defaulted"\n'
        '[parties.shop]\npath = "shop.csv"\nid = "client"\n'
    )
    found = check_data(path)
    assert {one.party for one in found if one.level == "error"} == {"bank", "shop"}
    edits = edits_of(found)
    for line in (
        'csv = { separator = ";", decimal = ",", null = ["?"] }',
        'job = { type = "text" }',
        'since = { type = "datetime", format = "%d.%m.%Y" }',
        'last_order = { type = "datetime", missing = "median" }',
    ):
        assert line in edits.splitlines(), edits
    assert any(
        "where NA or null is a value: csv = { null = [] }" in one.text for one in found if one.column == "country"
    )
    text = path.read_text()
    for table in edits.split("\n\n"):  # as a reader puts the lines in, table by table
        head, _, rest = table.partition("\n")
        text = text.replace(f"{head}\n", f"{head}\n{rest}\n") if f"{head}\n" in text else f"{text}{table}\n"
    path.write_text(text)
    assert not [one for one in check_data(path) if one.level == "error"]
    run = fedactors.simulate("pubsub-vfl", path, num_epochs=1, batch_size=64)
    assert run.status == "finished"
    assert run.summary.extra["num_rows"] > 300


# --- values that would be others in silence ---------------------------------------------------------------------------

DAY_FIRST = [f"{1 + row % 28:02d}/{1 + row % 12:02d}/2024" for row in range(ROWS)]
MONTH_FIRST = [f"{1 + row % 12:02d}/{1 + row % 28:02d}/2024" for row in range(ROWS)]
EITHER = [f"{1 + row % 12:02d}/{1 + row % 11:02d}/2024" for row in range(ROWS)]


@pytest.mark.parametrize("rule", ["", '[parties.shop.columns]\nv = { type = "datetime" }\n'])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        (DAY_FIRST, 'format = "%d/%m/%Y"'),
        (MONTH_FIRST, 'format = "%m/%d/%Y"'),
        (["2024-05-06", *MONTH_FIRST[1:]], 'format = ["iso", "%m/%d/%Y"]'),
        (EITHER, None),
    ],
)
def test_days_and_months_are_told_apart_by_the_whole_column_or_not_at_all(tmp_path, values, said, rule):
    path = described(tmp_path, "shop.csv", text=lines(values), rules=rule)
    found = check_data(path)
    if said is None:
        assert "nobody can tell which" in "; ".join(one.text for one in found)
        assert "format" not in edits_of(found)
        return
    assert said in edits_of(found)
    read = load_description(edited(path)).part("shop").load().features[:, 0]
    right = [datetime.date(2024, int(text[:2]), int(text[3:5])) for text in MONTH_FIRST]
    if said == 'format = "%d/%m/%Y"':
        right = [datetime.date(2024, int(text[3:5]), int(text[:2])) for text in DAY_FIRST]
    assert read[1:].tolist() == [(day - datetime.date(1970, 1, 1)).days for day in right[1:]]


@pytest.mark.parametrize("text", ['1,"a\\"b"\n2,"c\\"d"\n', '1,"abc"def\n2,x\n', '1,"y""z"x\n2,x\n'])
def test_text_behind_a_closing_quote_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(f"id,v\n{text}")
    with pytest.raises(BadInput, match="text follows a closing double quote in or below line 2"):
        read_columns(tmp_path / "a.csv", "bank", wanted=None)
    (tmp_path / "a.csv").write_text('id,v\n1,"a""b"\n2,ab"c"d\n')
    assert read_columns(tmp_path / "a.csv", "bank", wanted=None)["v"].texts() == ['a"b', 'ab"c"d']


def test_the_widest_whole_numbers_of_duckdb_are_exact_or_refused(tmp_path):
    where = str(tmp_path / "a.duckdb")
    wide = 10**37 + 1
    with duckdb.connect(where) as base:
        base.execute(f"CREATE TABLE t AS SELECT {wide}::UHUGEINT u, {-wide}::HUGEINT h, '101'::BIT b, 7 AS k")
        base.execute("CREATE TABLE most AS SELECT 340282366920938463463374607431768211455::UHUGEINT u")
    source = TableSource(kind="duckdb", where=where, table="t")
    assert source.load().to_pylist() == [{"u": wide, "h": -wide, "b": b"101", "k": 7}]
    assert source.load(["u"], "k = 7").to_pylist() == [{"u": wide}]
    with pytest.raises(BadInput, match="column u: a decimal of 39 digits; at most 38 are read"):
        TableSource(kind="duckdb", where=where, table="most").load()


def test_lists_of_python_are_not_rounded():
    with pytest.raises(BadInput, match="9007199254740993"):
        table_of({"a": [2**53 + 1, 0.5]}, "bank")
    assert table_of({"a": [2**53 + 1, None]}, "bank").to_pydict() == {"a": [2**53 + 1, None]}


def test_codes_that_look_like_exponents_stay_what_they_are(tmp_path):
    (tmp_path / "a.csv").write_text("id\n12E4\n7E02\n")
    assert read_columns(tmp_path / "a.csv", "bank", wanted=None)["id"].names("").to_pylist() == ["12E4", "7E02"]
    (tmp_path / "a.csv").write_text("id\n1.2E+05\n7e+00\n")
    assert read_columns(tmp_path / "a.csv", "bank", wanted=None)["id"].names("").to_pylist() == ["120000", "7"]


@pytest.mark.parametrize("shape", ["one", "group"])
def test_hidden_columns_of_a_workbook_are_told(tmp_path, shape):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    for row in zip(["id", *IDS], ["secret", *NOISE], ["other", *NOISE], ["v", *NOISE], strict=True):
        sheet.append([row[0], *(one if one in ("secret", "other", "v") else float(one) for one in row[1:])])
    if shape == "one":
        sheet.column_dimensions["B"].hidden = True
    else:
        sheet.column_dimensions.group("B", "C", hidden=True)
    book.save(tmp_path / "shop.xlsx")
    found = [one.text for one in check_data(described(tmp_path, "shop.xlsx"))]
    named = "columns secret" if shape == "one" else "columns secret, other"
    assert [text for text in found if text.startswith(f"{named} of the workbook are hidden or filtered out, and read")]


def test_rows_to_predict_without_an_id_are_told(tmp_path, caplog):
    path = clients(tmp_path, "classes = [0, 1]", v=NOISE, id=IDS, y=LABELS)
    path.write_text(path.read_text().replace('label = "y"', 'label = "y"\nid = "id"'))
    run = fedactors.simulate("horizontal", path, num_rounds=1)
    (tmp_path / "south.csv").write_text("v,id\n0.5,z1\n0.7,\n0.9,z3\n")
    new = tmp_path / "new.toml"
    new.write_text(path.read_text().replace('test = "test.csv"', ""))
    run.predict(new, tmp_path / "predicted.csv")
    assert "south.csv: 1 rows to predict have no id (first in row 2)" in caplog.text
    assert "stand in the order of the file" in caplog.text


# --- the reports, from the file to the run ----------------------------------------------------------------------------

D = decimal.Decimal
PEOPLE = 240
DRAWN = np.random.default_rng(11)
INCOME, ORDERS = DRAWN.normal(30, 8, PEOPLE).round(2), DRAWN.integers(0, 40, PEOPLE)
GOOD = (ORDERS - INCOME + DRAWN.normal(0, 4, PEOPLE) > -10).astype(int)
NAMES = [f"c{row:04d}" for row in range(PEOPLE)]


def shops(folder, *, bank_ids=NAMES, shop_ids=NAMES, bank='id = "id"', shop='id = "id"', **columns):
    """Write a bank with labels and a shop that explains them; the shop has further columns."""
    write_csv(folder / "bank.csv", id=bank_ids, income=INCOME, y=GOOD)
    write_csv(folder / "shop.csv", id=shop_ids, orders=ORDERS, **columns)
    path = folder / "parties.toml"
    path.write_text(
        f'[task]\ntype = "binary"\nalignment = "psi"\n[parties.bank]\npath = "bank.csv"\nlabel = "y"\n{bank}\n'
        f'[parties.shop]\npath = "shop.csv"\n{shop}\n'
    )
    return path


def trained(path, **settings):
    return fedactors.simulate("pubsub-vfl", path, **{"num_epochs": 3, "batch_size": 32, **settings})


def used(run):
    """Return how many rows of the label party are used, of all."""
    note = next((note for note in run.summary.extra["notes"] if "rows are used" in note), f"bank: {PEOPLE} of")
    return int(note.split()[1])


@pytest.mark.slow
def test_numbers_as_ids_meet_however_they_are_written(tmp_path):
    numbers = range(100_037, 100_037 + PEOPLE)
    path = shops(tmp_path, bank_ids=list(numbers), shop_ids=[f"{one}.0" for one in numbers])
    run = trained(path)
    assert used(run) == PEOPLE
    assert run.summary.metrics["test/auc"] > 0.9


@pytest.mark.slow
def test_names_as_ids_meet_whatever_their_unicode_form(tmp_path):
    names = [f"{'Zoë' if row % 2 else 'Ｋim'} {row}" for row in range(PEOPLE)]
    forms = [[unicodedata.normalize(form, one) for one in names] for form in ("NFC", "NFKD")]
    run = trained(shops(tmp_path, bank_ids=forms[0], shop_ids=forms[1]))
    assert used(run) == PEOPLE // 2
    assert any('id_rules = ["nfkc"]' in note for note in run.summary.extra["notes"])
    rules = 'id = "id"\nid_rules = ["nfkc"]'
    assert used(trained(shops(tmp_path, bank_ids=forms[0], shop_ids=forms[1], bank=rules, shop=rules))) == PEOPLE


@pytest.mark.slow
def test_blank_lines_are_no_rows(tmp_path):
    path = shops(tmp_path)
    text = (tmp_path / "shop.csv").read_text().splitlines()
    (tmp_path / "shop.csv").write_text("\n\n".join(text[:20]) + "\n" + "\n".join(text[20:]) + "\n\n   \n")
    assert used(trained(path)) == PEOPLE


@pytest.mark.slow
def test_ids_of_two_columns_meet(tmp_path):
    keys = {"branch": [row % 7 for row in range(PEOPLE)], "account": [row // 7 for row in range(PEOPLE)]}
    both = 'id = ["branch", "account"]\nfeatures = {}'
    path = shops(tmp_path, bank=both.format('["income"]'), shop=both.format('["orders"]'), **keys)
    write_csv(tmp_path / "bank.csv", income=INCOME, y=GOOD, **keys)
    assert used(trained(path)) == PEOPLE


@pytest.mark.slow
def test_a_process_ends_after_a_row_of_more_than_a_megabyte_that_is_cut(tmp_path):
    wide = ",".join(["0.25"] * 400_000)
    (tmp_path / "shop.csv").write_text(f"id,{','.join(f'g{one}' for one in range(400_000))}\n1,{wide}\n2,{wide},7\n")
    code = (
        "from pathlib import Path\nfrom fedactors.data.readers import read_columns\n"
        f"read_columns(Path({str(tmp_path / 'shop.csv')!r}), 'shop', wanted=None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "line 3 has 400002 fields, the header 400001" in done.stderr


@pytest.mark.slow
def test_few_rows_are_refused_with_a_setting_that_trains(tmp_path):
    write_csv(tmp_path / "bank.csv", id=NAMES[:18], income=INCOME[:18], y=[row % 2 for row in range(18)])
    write_csv(tmp_path / "shop.csv", id=NAMES[:18], orders=ORDERS[:18])
    path = tmp_path / "parties.toml"
    path.write_text(
        '[task]\ntype = "binary"\nsplit = "stratified"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
        '[parties.shop]\npath = "shop.csv"\nid = "id"\n'
    )
    settings = {"batch_size": 4, "validation_fraction": 0.3}
    advice = r"at least 10 \(min_aligned_rows\); align more rows, or set min_aligned_rows=\d+ if all parties agree"
    with pytest.raises(Exception, match=advice) as few:
        trained(path, **settings)
    fewest = int(str(few.value).partition("set min_aligned_rows=")[2].split()[0])
    assert trained(path, min_aligned_rows=fewest, **settings).summary.metrics


@pytest.mark.slow
def test_a_ratio_that_a_view_of_sqlite_computes_is_a_number(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as base:
        base.execute("CREATE TABLE raw (id TEXT, returned INTEGER, orders INTEGER)")
        base.executemany("INSERT INTO raw VALUES (?, ?, ?)", zip(NAMES, GOOD.tolist(), ORDERS.tolist(), strict=True))
        base.execute("CREATE VIEW orders AS SELECT id, 1.0 * returned / (orders + 1) AS rate FROM raw")
        base.commit()
    write_csv(tmp_path / "bank.csv", id=NAMES, income=INCOME, y=GOOD)
    path = tmp_path / "parties.toml"
    path.write_text(
        '[task]\ntype = "binary"\nlayout = "relational"\nlabel = "b.y"\n'
        'sql = "SELECT b.y, b.income, s.rate FROM b JOIN s ON b.id = s.id"\n'
        '[parties.bank]\npath = "bank.csv"\ntable = "b"\n'
        '[parties.shop]\npath = "shop.db"\nkind = "sqlite"\ntable = "s"\nsource_table = "orders"\n'
    )
    source = TableSource(kind="sqlite", where=str(tmp_path / "shop.db"), table="orders")
    assert source.describe() == {"id": "text", "rate": "float"}
    assert source.load().column("rate").to_pylist() == (GOOD / (ORDERS + 1)).tolist()
    assert joined_rows(fedactors.simulate("tablepuppet", path, num_rounds=2)) == PEOPLE


def joined_rows(run):
    return run.summary.extra["joined_rows"] + run.summary.extra["joined_test_rows"]


def queried(folder, sql, *, orders, areas, named="", kinds=("csv", "csv"), **task):
    """Write two tables of a query over them."""
    path = folder / "parties.toml"
    for name, columns, kind in (("orders", orders, kinds[0]), ("areas", areas, kinds[1])):
        if kind == "csv":
            write_csv(folder / f"{name}.csv", **columns)
        else:
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in task.items())
    path.write_text(
        f"[task]\ntype = \"binary\"\nlayout = \"relational\"\nlabel = \"o.y\"\n{keys}sql = '''{sql}'''\n"
        f'[parties.shop]\npath = "orders.{kinds[0]}"\ntable = "orders"\n{named}'
        f'[parties.state]\npath = "areas.{kinds[1]}"\ntable = "areas"\n'
    )
    return path


JOIN = "SELECT o.y, o.amount, a.rate FROM orders o JOIN areas a ON o.zip = a.zip"


@pytest.mark.slow
def test_codes_with_zeros_in_front_join_those_that_have_none(tmp_path):
    codes = ["00501", *(str(10_000 + 37 * one) for one in range(39))]
    orders = {"zip": [codes[row % 40] for row in range(PEOPLE)], "amount": INCOME, "y": GOOD}
    path = queried(tmp_path, JOIN, orders=orders, areas={"zip": codes[1:], "rate": NOISE[:39]})
    assert joined_rows(fedactors.simulate("tablepuppet", path, num_rounds=2)) == PEOPLE - 6


@pytest.mark.slow
def test_long_numbers_join_one_to_one_and_in_columns_of_other_types(tmp_path):
    keys = [89_430_100_000_000_000_000 + one for one in range(PEOPLE)]
    orders = {"zip": [decimal.Decimal(one) for one in keys], "amount": INCOME, "y": GOOD}
    for kinds in (("parquet", "csv"), ("csv", "csv"), ("parquet", "parquet")):
        areas = {"zip": orders["zip"] if kinds[1] == "parquet" else keys, "rate": INCOME}
        given = orders if kinds[0] == "parquet" else orders | {"zip": keys}
        path = queried(tmp_path, JOIN, orders=given, areas=areas, kinds=kinds)
        assert joined_rows(fedactors.simulate("tablepuppet", path, num_rounds=1)) == PEOPLE, kinds


QUERIES = {
    "comments and case": "-- all\nselect o.Y, o.AMOUNT, a.rate /* x */ FROM orders AS o, areas a WHERE o.zip = a.zip",
    "USING": "SELECT o.y, o.amount, a.rate FROM orders o JOIN areas a USING (zip)",
    "WITH": "WITH big AS (SELECT * FROM orders WHERE amount > 30) SELECT o.y, o.amount, a.rate FROM big o JOIN areas a "
    "ON o.zip = a.zip",
    "TRIM": "SELECT o.y, o.amount, a.rate FROM orders o JOIN areas a ON TRIM(o.zip) = TRIM(a.zip)",
    "CAST": "SELECT o.y, o.amount, a.rate FROM orders o JOIN areas a ON CAST(o.n AS VARCHAR) = CAST(a.n AS VARCHAR)",
    "BETWEEN": f"{JOIN} WHERE o.amount BETWEEN 20 AND 31.5",
    "ILIKE": f"{JOIN} WHERE a.zip ILIKE 'Z1%'",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUERIES)
def test_a_query_as_people_write_it_joins_the_rows_of_duckdb(tmp_path, kind):
    numbers = [row % 40 for row in range(PEOPLE)]
    zips = [f"z{one}{' ' * (one % 2)}" for one in range(40)]
    orders: dict[str, Iterable[Any]] = {
        "zip": [zips[one].strip() for one in numbers],
        "n": numbers,
        "amount": INCOME,
        "y": GOOD,
    }
    areas: dict[str, Iterable[Any]] = {
        "zip": zips if kind == "TRIM" else [one.strip() for one in zips],
        "n": range(40),
        "rate": NOISE[:40],
    }
    path = queried(tmp_path, QUERIES[kind], orders=orders, areas=areas)
    with duckdb.connect() as base:
        for name, columns in (("orders", orders), ("areas", areas)):
            base.register(name, pa.table({key: list(values) for key, values in columns.items()}))
        right = len(base.execute(QUERIES[kind]).fetchall())
    assert 0 < right < PEOPLE or kind in ("comments and case", "USING", "TRIM", "CAST")
    assert joined_rows(fedactors.simulate("tablepuppet", path, num_rounds=1)) == right


FILTERS = {
    "name LIKE 'S%'": "TEXT", "name = 'x'": "TEXT COLLATE NOCASE", "CAST(x AS INTEGER) = 2": "TEXT",
    "seen >= '2024-01-02'": "TEXT", "name > 'T'": "TEXT",
}  # fmt: skip


@pytest.mark.parametrize("where", FILTERS)
def test_a_filter_keeps_in_sqlite_what_duckdb_keeps(tmp_path, where):
    names = ["S1", "s1", "x", "X", "Tz", "ta", "ß"]
    rows = [(row, names[row % 7], row % 9 / 2 + 0.5, f"2024-01-0{1 + row % 3} 0{row % 4}:00:00") for row in range(90)]
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db")) as base:
        base.execute(f"CREATE TABLE t (row INTEGER, name {FILTERS[where]}, x REAL, seen TIMESTAMP)")
        base.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
        base.commit()
        others = base.execute(f"SELECT row FROM t WHERE {where}").fetchall()
    source = TableSource(kind="sqlite", where=str(tmp_path / "a.db"), table="t")
    with duckdb.connect() as base:
        base.register("t", source.load())
        right = [row for (row,) in base.execute(f"SELECT row FROM t WHERE {where} ORDER BY row").fetchall()]
    found = sorted(source.load(["row"], where=where).column("row").to_pylist())
    assert found == right
    assert (sorted(row for (row,) in others) != right) is ("> 'T'" not in where and "seen" not in where)


def adult(folder, text, written):
    """Write the files of two clients and of the test, and how they are written."""
    for name in ("a", "b", "test"):
        (folder / f"{name}.data").write_text(text)
    path = folder / "parties.toml"
    parties = "".join(f'[parties.{one}]\npath = "{one}.data"\nlabel = "income"\n{written}\n' for one in "ab")
    path.write_text(
        '[task]\ntype = "binary"\nlayout = "horizontal"\ntest = "test.data"\nclasses = ["<=50K", ">50K"]\n'
        f'columns = {{ work = {{ type = "categorical", categories = ["Private", "State-gov"] }} }}\n{parties}'
    )
    return path


@pytest.mark.slow
def test_a_file_without_names_and_with_blanks_is_read_as_its_refusals_say(tmp_path):
    rows = [
        f"{20 + row % 50}, {['Private', 'State-gov'][row % 2]}, {income:g}, {['<=50K', '>50K'][good]}"
        for row, (income, good) in enumerate(zip(INCOME, GOOD, strict=True))
    ]
    bare = "\n".join(rows) + "\n"
    with pytest.raises(BadInput, match=r"name all in their order: csv = . names ="):
        fedactors.simulate("horizontal", adult(tmp_path, bare, ""), num_rounds=1)
    named = 'csv = { names = ["age", "work", "hours", "income"] }'
    with pytest.raises(BadInput, match=r"csv = . trim = true ."):
        fedactors.simulate("horizontal", adult(tmp_path, bare, named), num_rounds=1)
    path = adult(tmp_path, bare, 'csv = { names = ["age", "work", "hours", "income"], trim = true }')
    block = load_description(path).client(0).load()
    assert block.labels.tolist() == GOOD.tolist()
    assert block.features[:, -1].tolist() == pytest.approx(INCOME.tolist())
    assert fedactors.simulate("horizontal", path, num_rounds=1).summary.metrics


@pytest.mark.parametrize("zones", ["in all", "in none"])
def test_a_moment_with_a_zone_beside_one_without_is_refused_with_remedies_that_work(tmp_path, zones):
    moments = ["2023-01-01T00:00:00" if row % 2 else "2023-01-01 07:00:00+02:00" for row in range(PEOPLE)]
    rule = 'id = "id"\ncolumns = { last = { type = "datetime", parts = ["hour"] } }'
    path = shops(tmp_path, shop=rule, last=moments)
    told = (
        r"shop: .*shop.csv: column last: '2023-01-01 07:00:00\+02:00' names a time zone, and '2023-01-01T00:00:00' none"
        r"; name it in all of them, such as Z for UTC, or in none$"
    )
    with pytest.raises(BadInput, match=told):
        trained(path)
    assert any("column last: " in one.line and one.level == "error" for one in check_data(path))
    mended = [one if "+" in one else f"{one}Z" for one in moments] if zones == "in all" else [o[:19] for o in moments]
    path = shops(tmp_path, shop=rule, last=mended)
    assert not [one for one in check_data(path) if one.level == "error"]
    block = load_description(path).part("shop").load()
    features: Any = block.features
    first = features[:, list(block.feature_names).index("last (hour, cosine)")]
    right = [5, 0] if zones == "in all" else [7, 0]  # of UTC
    assert first[:2].tolist() == pytest.approx(np.cos(2 * np.pi * np.array(right) / 24).tolist(), abs=1e-6)


IDS_OF_TYPES = {
    "binary": pa.array([b"c0", b"c1"], pa.binary()),
    "decimals": pa.array([D(10**20), D(10**20 + 1)], pa.decimal128(38)),
    "uuid": pa.array([uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes], pa.uuid()),
    "moments": pa.array([datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, 1)], pa.timestamp("us")),
}  # fmt: skip
TEXTS_OF_TYPES = {
    "binary": ["c0", "c1"], "decimals": [str(10**20), str(10**20 + 1)],
    "uuid": [str(uuid.UUID(int=1)), str(uuid.UUID(int=2))],
    "moments": ["2024-01-01", "2024-01-01 01:00:00"],
}  # fmt: skip


@pytest.mark.parametrize("kind", IDS_OF_TYPES)
def test_ids_of_any_type_are_the_texts_that_a_csv_file_has(tmp_path, kind):
    pq.write_table(pa.table({"id": IDS_OF_TYPES[kind], "v": [0.5, 1.5]}), tmp_path / "shop.parquet")
    write_csv(tmp_path / "shop.csv", id=TEXTS_OF_TYPES[kind], v=[0.5, 1.5])
    found = [load_description(described(tmp_path, name)).part("shop").load() for name in ("shop.parquet", "shop.csv")]
    assert found[0].ids.tolist() == found[1].ids.tolist() == TEXTS_OF_TYPES[kind]


@pytest.mark.slow
def test_seconds_since_1970_are_learnt_from_as_those_since_another_day(tmp_path):
    seen = DRAWN.integers(0, 60, PEOPLE)
    label = (seen + DRAWN.normal(0, 5, PEOPLE) > 30).astype(int)
    found = []
    for offset in (0, 1_700_000_000):
        path = shops(tmp_path, seen=seen + offset)
        write_csv(tmp_path / "bank.csv", id=NAMES, income=INCOME, y=label)
        run = trained(path, num_epochs=12, learning_rate=0.01)
        found.append(run.summary.metrics["test/auc"])
        told = [note for note in run.summary.extra["notes"] if "single precision merges values such as" in note]
        assert len(told) == (offset > 0)
    assert min(found) > 0.9


HUGE_VALUES = {"infinite": "inf", "beyond single precision": "-1e300", "beyond double precision": "1e400"}


@pytest.mark.parametrize("rule", ["", ', missing = "indicator"'])
@pytest.mark.parametrize("kind", HUGE_VALUES)
def test_numbers_that_are_infinite_are_refused_with_a_range_that_reads_them(tmp_path, kind, rule):
    values = [HUGE_VALUES[kind] if row % 40 == 3 else row % 7 for row in range(PEOPLE)]
    given = f'id = "id"\ncolumns = {{ v = {{ type = "numeric"{rule} }} }}'
    path = shops(tmp_path, shop=given, v=values)
    with pytest.raises(
        BadInput, match=r"column v: 6 values are infinite.* say under columns what to clip them to"
    ) as told:
        trained(path)
    assert 'missing = "indicator"' not in str(told.value)
    after = edited(path)
    assert 'scaling = "range"' in edits_of(check_data(path))
    assert not [one for one in check_data(after) if one.level == "error"]
    block = load_description(after).part("shop").load()
    assert block.features[3, 1] == (0 if values[3].startswith("-") else 1)


@pytest.mark.slow
def test_new_rows_of_another_shape_are_predicted_or_have_a_reason(tmp_path, caplog):
    regions = [["north", "south"][row % 2] for row in range(PEOPLE)]
    path = shops(tmp_path, bank='id = "id"\ncategorical = ["region"]')
    write_csv(tmp_path / "bank.csv", id=NAMES, income=INCOME, region=regions, y=GOOD)
    run = trained(path)
    changed = [*INCOME[:20].tolist(), "", "3_000", 41]
    odd = ["west", *regions[1:22], ""]
    write_csv(tmp_path / "bank.csv", region=odd, more=range(23), id=NAMES[:23], income=changed)
    run.predict(path, tmp_path / "out.csv")
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    rejections = {row["id"]: row["reason"] for row in rows if row["reason"]}
    assert rejections == {
        NAMES[20]: "income: missing", NAMES[21]: "income: '3_000' is no number", NAMES[22]: "region: missing",
    }  # fmt: skip
    assert all(bool(row["prediction"]) is not bool(row["reason"]) for row in rows)
    assert "1 of 23 rows hold categories that training did not see, such as 'west'" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__"])
def test_an_index_of_pandas_is_no_feature(tmp_path, name):
    order = np.argsort(GOOD, kind="stable")
    path = shops(tmp_path)
    noise = DRAWN.random(PEOPLE)
    write_csv(tmp_path / "bank.csv", id=[NAMES[row] for row in order], income=noise, y=GOOD[order])
    write_csv(tmp_path / "shop.csv", **{name: range(PEOPLE)}, id=[NAMES[row] for row in order], noise=noise)
    with pytest.raises(
        BadInput, match=r"is called as pandas calls an index, which counts rows; list the other columns"
    ):
        trained(path)
    edit = edits_of(check_data(path))
    assert edit == '[parties.shop]\nfeatures = ["noise"]'
    path.write_text(path.read_text().replace(*([f"{edit.splitlines()[0]}\n", f"{edit}\n"])))
    assert load_description(path).part("shop").load().feature_names == ("noise",)
    assert trained(path).summary.metrics["test/auc"] < 0.75


@pytest.mark.slow
def test_a_run_in_a_running_loop_trains(tmp_path):
    async def cell():
        return trained(shops(tmp_path))

    assert asyncio.run(cell()).summary.metrics["test/auc"] > 0.9


@pytest.mark.slow
def test_a_runtime_is_called_in_a_running_loop(tmp_path):
    protocol = find_protocol("pubsub-vfl")
    load_data = protocol.load_data
    assert load_data is not None
    config = build(protocol.Config, {**protocol.smoke, "num_epochs": 1})

    async def cell():
        runtime = SimulatedRuntime()
        data = load_data(config, str(shops(tmp_path)), 0)
        return runtime.execute(lambda: protocol.run(config, data, runtime))

    assert asyncio.run(cell()).metrics["test/auc"] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:1", "auto", "ray://127.0.0.1:1", "http://127.0.0.1:1"])
def test_an_address_of_a_cluster_that_is_gone_is_one_line_that_says_who_gave_it(tmp_path, monkeypatch, capsys, address):
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    start = time.monotonic()
    assert main(["run", "pubsub-vfl", "--data", str(shops(tmp_path)), "--out", str(tmp_path / "runs")]) == 2
    (told,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert "RAY_ADDRESS" in told
    assert time.monotonic() - start < 60


# --- rows of megabytes ------------------------------------------------------------------------------------------------


def test_rows_of_more_than_a_megabyte_are_read_as_they_stand_there_and_trained_on(tmp_path):
    """As of 60,000 genes, with longer numbers; so few rows are trained on where the setting says so."""
    draw = np.random.default_rng(0)
    names = [f"g{number}" for number in range(1200)]
    ids = IDS[:30]
    texts = [[f"{draw.uniform():.17f}" + "".join(map(str, draw.integers(0, 10, 900))) for _ in names] for _ in ids]
    rows = [",".join([name, *cells]) for name, cells in zip(ids, texts, strict=True)]
    assert min(map(len, rows)) > 1 << 20
    path = described(tmp_path, "shop.csv", text="\n".join([",".join(["id", *names]), *rows]) + "\n")
    write_csv(tmp_path / "bank.csv", id=ids, age=NOISE[:30], y=LABELS[:30])
    block = load_description(path).part("shop").load()
    assert block.ids.tolist() == ids
    assert block.feature_names == tuple(names)
    assert np.array_equal(block.features, np.asarray(texts, np.float64).astype(np.float32))
    settings = {"num_epochs": 2, "batch_size": 4, "validation_fraction": 0.3, "seed": 0}
    with pytest.raises(Refused, match=r"15 rows of .* trained on; .*, or set min_aligned_rows=15 if all parties agree"):
        fedactors.simulate("pubsub-vfl", path, **settings, min_aligned_rows=16)
    run = fedactors.simulate("pubsub-vfl", path, **settings, min_aligned_rows=15)
    assert 0 <= run.summary.metrics["test/auc"] <= 1

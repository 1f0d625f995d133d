"""What public reports of people's real files asked for: where each is held, and kinds that no other file holds."""

from __future__ import annotations

import ast
import datetime
import json
import logging
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedactors
from fedactors.data.checks import check_data, edits_of
from fedactors.data.databases import TableSource
from fedactors.data.description import load_description
from fedactors.data.layouts.relational import compared_keys
from fedactors.data.objects import table_of
from fedactors.data.readers import read_columns
from fedactors.data.values import CsvFormat
from fedactors.errors import BadInput
from fedactors.runtime.snapshots import digests_of_files
from tests.data.test_checks import edited, write_csv

TEST_OF = {
    "01-float-ids": "data/test_exact_values.py::test_an_id_is_the_same_text_whatever_its_type",
    "02-unicode-ids": "data/test_exact_values.py::test_ids_of_several_columns_and_rules",
    "04-blank-lines": "data/test_messy_files.py::test_is_read_as_it_is_meant",
    "06-two-key-columns": "data/test_exact_values.py::test_ids_of_several_columns_and_rules",
    "08-row-over-1MB": "data/test_exact_values.py::test_a_row_of_more_than_a_megabyte_is_read",
    "09-png-16-bit": "data/test_image_folders.py::test_whatever_holds_the_same_greys_is_the_same_sample",
    "11-sqlite-view": "data/test_exact_queries.py::test_sqlite_has_the_kinds_of_its_values",
    "12-leading-zero-keys": "data/test_exact_queries.py::test_keys_of_csv_files_are_texts_to_texts_and_numbers_to_numbers",  # noqa: E501
    "14-stale-ray-address": "runtime/ray/test_real_cluster.py::test_auto_is_the_cluster_that_was_started_last_and_told_where_it_is_gone",  # noqa: E501
    "18-uci-no-header": "data/test_cases.py::test_the_check_answers_what_a_file_is_like",
    "19-mixed-dates": "data/test_exact_values.py::test_dates_of_several_formats_in_their_order",
    "21-parquet-types": "data/test_cases.py::test_types_of_parquet_are_told_with_what_can_be_done",
    "22-encodings": "data/test_exact_values.py::test_advice_for_a_file_of_another_dialect_works",
    "23-file-endings": "data/test_exact_values.py::test_a_file_is_what_its_content_is",
    "24-epoch-seconds": "data/test_exact_values.py::test_seconds_since_1970_keep_their_minutes_until_their_mean_is_off",
    "26-sql-dialects": "data/test_exact_queries.py::test_what_a_query_may_not_have_is_named_before_its_tables_are",
    "28-label-forms": "data/test_exact_values.py::test_a_label_may_have_a_rule",
    "29-number-forms": "data/test_exact_values.py::test_what_is_no_number_is_none_in_training_nor_in_prediction",
    "31-inf-nan-huge": "data/test_cases.py::test_the_check_answers_what_a_file_is_like",
    "32-image-modes": "data/test_image_folders.py::test_images_that_would_be_others_are_refused_with_file_and_reason",
    "34-predict-other-shape": "data/test_columns.py::test_one_row_that_cannot_be_used_is_told_and_no_other_suffers",
    "39-wide-5000": "data/test_cases.py::test_one_rule_answers_many_columns",
    "41-pandas-index": "data/test_checks.py::test_what_pandas_calls_an_index_is_no_feature_and_is_told",
    "42-query-csv-forms": "data/test_cases.py::test_a_query_reads_csv_as_any_layout_does",
    "43-places": "data/test_cases.py::test_files_are_found_wherever_they_are",
    "46-unscaled-horizontal": "data/test_cases.py::test_a_class_that_is_never_predicted_is_told",
    "47-in-a-notebook": "data/test_objects.py::test_objects_in_a_running_loop",
    "50-long-number-keys": "data/test_exact_queries.py::test_keys_that_are_long_numbers_are_exact_in_every_source",
    "51-filters-of-databases": "data/test_exact_queries.py::test_a_filter_keeps_the_rows_that_duckdb_keeps",
}
"""By report, a test of its kind."""
ROWS = 60
IDS = [f"c{row:03d}" for row in range(ROWS)]
NOISE = [f"{np.random.default_rng(row).uniform():.4f}" for row in range(ROWS)]
LABELS = [row % 2 for row in range(ROWS)]


@pytest.mark.parametrize("case", TEST_OF)
def test_each_report_has_a_test_of_its_kind(case):
    file, _, name = TEST_OF[case].partition("::")
    path = Path(__file__).parents[1] / file
    assert path.is_file(), path
    functions = {one.name for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.FunctionDef)}
    assert not name or name in functions


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

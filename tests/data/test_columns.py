"""Rules of columns: fitted on rows to train on, kept as plain values, applied to others."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedactors.config import from_table
from fedactors.data.columns import ColumnRule, Preprocessing, encode, fit
from fedactors.data.party_rows import draw_parts, prepare, prepare_like, split
from fedactors.data.sources import FileSource
from fedactors.data.values import Column, CsvFormat
from fedactors.errors import BadInput


def source(folder, text, *, csv=None, name="bank.csv", **rules):
    (folder / name).write_text(text)
    made = tuple((column.replace("_", " ").strip(), rule) for column, rule in rules.items())
    return FileSource(
        party="bank", path=str(folder / name), task="binary", num_classes=2, rules=made, csv=csv or CsvFormat()
    )


def test_missing_numbers_are_filled_by_the_training_rows_alone(tmp_path):
    values = ["1", "2", "", "6", "", "1000"]
    text = "mean,median,told,constant\n" + "\n".join(",".join([value] * 4) for value in values) + "\n"
    rules = {
        "mean": ColumnRule(missing="mean"),
        "median": ColumnRule(missing="median"),
        "told": ColumnRule(missing="indicator"),
        "constant": ColumnRule(missing="constant", fill=7.0),
    }
    block = source(tmp_path, text, **rules).load()
    assert block.feature_names == ("mean", "median", "told", "told is missing", "constant")
    parts = split(6, seed=0, parts_N=np.asarray([0, 0, 0, 0, 1, 2], np.uint8))
    made = prepare(block, np.arange(6), parts, "binary").preprocessing
    assert list(made.fill) == [3, 2, 3, 0, 0]  # the test row's 1000 moves nothing
    whole = made.finish(block.features) * made.deviation + made.mean
    np.testing.assert_allclose(whole[2], [3, 2, 3, 1, 7], rtol=1e-5)
    np.testing.assert_array_equal(whole[:, 3], [0, 0, 1, 0, 1, 0])


def test_categories_unknown_rare_and_missing(tmp_path):
    text = "job,colour,kind\n" + "nurse,red,a\nNurse ,red,\nclerk,blue,b\nclerk,red,b\n"
    rules = {
        "job": ColumnRule(type="text"),
        "colour": ColumnRule(type="categorical", rare=2),
        "kind": ColumnRule(type="categorical", missing="indicator"),
    }
    block = source(tmp_path, text, **rules).load()
    assert block.feature_names == (
        *("job=clerk", "job=nurse", "colour=red", "colour=<other>", "kind=<missing>", "kind=a", "kind=b"),
    )
    new = source(tmp_path, "job,colour,kind\nPILOT,green,c\nNURSE,red,a\n", **rules).load(block.columns)
    np.testing.assert_array_equal(new.features, [[0, 0, 0, 1, 0, 0, 0], [0, 1, 1, 0, 0, 1, 0]])
    assert block.keeps_scale.all()


def test_one_row_that_cannot_be_used_is_told_and_no_other_suffers(tmp_path):
    strict = {"x": ColumnRule(), "c": ColumnRule(type="categorical", unknown="refuse")}
    block = source(tmp_path, "x,c\n1,a\n2,b\n", **strict).load()
    new = source(tmp_path, "x,c\n1,a\n,a\n2,z\ninf,b\n", **strict).load(block.columns)
    assert new.unusable == {1: "x: missing", 2: "c: 'z' was not there in training", 3: "x: infinite"}
    parts = split(2, seed=0, parts_N=np.asarray([0, 2], np.uint8), validation_fraction=0)
    trained = prepare(block, np.arange(2), parts,
                      "binary").preprocessing  # fmt: skip
    assert np.isfinite(prepare_like(new, trained)).all()
    dropping = source(tmp_path, "x,c\n1,a\n,a\n2,b\n", x=ColumnRule(missing="drop"), c=strict["c"]).load()
    assert (list(dropping.ids), dropping.rejected) == ([0, 2], (("1", "x: missing"),))


def test_dates_ranges_and_texts_that_mean_nothing(tmp_path):
    rules = {
        "day": ColumnRule(type="datetime", format="%d.%m.%Y", parts=("days", "month")),
        "x": ColumnRule(scaling="range", range=(0, 10)),
        "land": ColumnRule(type="categorical"),
    }
    text = "day;x;land\n01.01.1970;2,5;NA\n02.07.1970;99;DE\n"
    block = source(tmp_path, text, csv=CsvFormat(separator=";", decimal=",", null=()), **rules).load()
    assert block.feature_names == (
        *("day (days)", "day (month, sine)", "day (month, cosine)", "x", "land=DE", "land=NA"),
    )
    np.testing.assert_allclose(block.features, [[0, 0, 1, 0.25, 0, 1], [182, 0, -1, 1, 1, 0]], atol=1e-6)
    assert list(block.keeps_scale) == [False, True, True, True, True, True]
    with pytest.raises(BadInput, match=r"bank: .*bank.csv: column day: '1970-01-01' in row 1 is no date"):
        source(tmp_path, "day\n1970-01-01\n", day=rules["day"]).load()


def test_parquet_and_csv_mean_the_same(tmp_path):
    rules = {"when": ColumnRule(type="datetime"), "code": ColumnRule(type="categorical"), "x": ColumnRule()}
    one = source(tmp_path, "when,code,x\n2024-02-29,7,1\n2024-03-01T12:00:00,8,2\n", **rules)
    table = pa.table(
        {
            "when": np.asarray(["2024-02-29T00:00", "2024-03-01T12:00"], "datetime64[us]"),
            "code": [7.0, 8.0],
            "x": [1, 2],
        }
    )
    pq.write_table(table, tmp_path / "bank.parquet")
    two = FileSource(**{**vars(one), "path": str(tmp_path / "bank.parquet")})
    trained = one.load()
    assert trained.feature_names == two.load().feature_names
    np.testing.assert_array_equal(trained.features, two.load(trained.columns).features)


def test_what_is_fitted_is_kept_exactly_as_json(tmp_path):
    block = source(
        tmp_path, "x,c\n0.1,a\n,b\n3,a\n1e9,b\n", x=ColumnRule(missing="mean"), c=ColumnRule(type="categorical")
    ).load()
    parts = split(4, seed=1, parts_N=np.asarray([0, 0, 0, 2], np.uint8), validation_fraction=0)
    made = prepare(block, np.arange(4), parts, "binary").preprocessing
    again = Preprocessing.of(json.loads(json.dumps(made.as_dict())), "bank")
    assert again.columns == made.columns
    np.testing.assert_array_equal(again.finish(block.features), made.finish(block.features))
    for spoilt in ({"fill": [0.0]}, {"columns": [{"name": "x"}]}, {"feature_names": ["x"]}, {"mean": "x"}):
        with pytest.raises(BadInput, match="bank: its preprocessing is damaged"):
            Preprocessing.of(made.as_dict() | spoilt, "bank")


def test_stratified_parts_have_each_class_in_its_share(tmp_path):
    labels = ["yes"] * 20 + ["no"] * 80
    text = "x,y\n" + "\n".join(f"{row},{label}" for row, label in enumerate(labels)) + "\n"
    made = source(tmp_path, text)
    block = FileSource(**{**vars(made), "label": "y", "positive": "no"}).load()
    assert block.class_names == ("yes", "no")
    order = np.random.default_rng(0).permutation(100)
    assert block.labels is not None
    parts = draw_parts(block, order, "stratified", seed=3, test_fraction=0.3, validation_fraction=0.1)
    cut = split(100, seed=0, parts_N=parts)
    assert [int((block.labels[order[rows]] == 0).sum()) for rows in (cut.train, cut.validation, cut.test)] == [13, 1, 6]
    assert draw_parts(block, order, "random", seed=3, test_fraction=0.3, validation_fraction=0.1).size == 0


def test_a_column_that_tells_the_split_has_precedence(tmp_path):
    text = "x,y,part\n1,a,train\n2,b,train\n3,a,validation\n4,b,test\n"
    made = FileSource(**{**vars(source(tmp_path, text)), "label": "y", "split_column": "part"})
    block = made.load()
    assert block.feature_names == ("x",)
    parts = draw_parts(block, np.arange(4)[::-1], "random", seed=0, test_fraction=0.5, validation_fraction=0.1)
    assert list(parts) == [2, 1, 0, 0]
    (tmp_path / "bank.csv").write_text(text.replace("test", "tset"))
    with pytest.raises(BadInput, match=r"column part: 'tset' in row 4 is not allowed: give train, validation, test"):
        made.load()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"type": "number"}, "c.type: 'number' is not allowed"),
        ({"missing": "mode"}, "c.missing: 'mode'"),
        ({"colour": 1}, "c: unknown key 'colour'"),
        ({"missing": "constant"}, "fill: give the value together"),
        ({"fill": 3}, "fill: give the value together"),
        ({"scaling": "range"}, "range: give"),
        ({"scaling": "range", "range": [3, 1]}, "the first number is less"),
        ({"type": "categorical", "missing": "mean"}, "categories have none"),
        ({"rare": 0}, "c.rare: 0"),
        ({"rare": "2"}, "c.rare: '2'"),
        ({"missing": "constant", "fill": "much"}, "fill: 'much' is not allowed for type=numeric"),
        ({"type": "datetime", "missing": "constant", "fill": "soon"}, "fill: 'soon'"),
        ({"parts": []}, r"parts: \[\]"),
        (3, "c: 3 is not allowed: give a table"),
    ],
)
def test_a_wrong_rule_is_one_line(given, said):
    with pytest.raises(BadInput, match=said) as caught:
        from_table(ColumnRule, given, "c")
    assert "\n" not in str(caught.value)


def test_a_party_is_told_of_categories_that_training_did_not_see(caplog):
    def column(*values):
        return {"region": Column("region", list(values)), "x": Column("x", [0.0] * len(values))}

    rules = {"region": ColumnRule(type="categorical"), "x": ColumnRule()}
    trained = column("north", "south", "south")
    fitted = fit(trained, rules, "bank: rows.csv")
    encode(trained, fitted, "bank: rows.csv", new=False)
    assert not caplog.messages
    rows = encode(column("mars", "south", "mars", "moon"), fitted, "bank: new.csv", new=True)
    assert (rows.rejected, rows.features[:, :2].tolist()) == ({}, [[0, 0], [0, 1], [0, 0], [0, 0]])
    assert caplog.messages == [
        "bank: new.csv: column region: 3 of 4 rows hold categories that training did not see, such as 'mars'; they "
        'count as none of the known ones (unknown = "refuse" under columns leaves such rows out)'
    ]
    caplog.clear()
    listed = fit(trained, {**rules, "region": ColumnRule(type="categorical", categories=("north", "east"))}, "bank: a")
    encode(trained, listed, "bank: a", new=False)
    assert "2 of 3 rows hold categories that are not listed, such as 'south'" in caplog.text
    caplog.clear()
    for rule in (ColumnRule(type="categorical", unknown="refuse"), ColumnRule(type="categorical", rare=2)):
        told = fit(trained, {**rules, "region": rule}, "bank: a")
        encode(column("mars", "south"), told, "bank: a", new=True)  # which is refused, or in a bucket that was trained
    assert not caplog.messages

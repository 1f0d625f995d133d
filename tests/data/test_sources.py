import dataclasses
import pickle
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedactors.data.columns import ColumnRule
from fedactors.data.datasets.load import load_tabular
from fedactors.data.partitioners import VerticalSizePartitioner
from fedactors.data.party_rows import check_block
from fedactors.data.sources import FileSource, named_sources
from fedactors.data.values import CsvFormat
from fedactors.errors import BadInput

CSV = "customer,age,region,income,bad\n007,31,north,1.5,yes\n12,45,south,2.5,no\n3,52,north,3.5,no\n"


def source(path, **given):
    return FileSource(**{"party": "bank", "path": str(path), "task": "binary", "num_classes": 2, **given})


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "bank.csv"
    path.write_text(CSV)
    return path


def test_named_parties_share_out_all_columns():
    recipe = VerticalSizePartitioner(partition_sizes=(10, 20))
    active, passive = named_sources("breast-cancer", 2, partitioner=recipe)
    a, p = active.load(), passive.load()
    assert (a.features.shape, p.features.shape) == ((569, 10), (569, 20))
    assert set(a.feature_names) | set(p.feature_names) == set(load_tabular("breast-cancer").columns)
    assert p.labels is None
    assert int(a.labels.sum()) == 357
    assert len(pickle.dumps(active)) < 1000


def test_overlap_and_own_order():
    first, second = (s.load() for s in named_sources("breast-cancer", 2, overlap=0.8, order_seed=5))
    assert len(first.ids) == len(second.ids) == 455
    assert not np.array_equal(first.ids, second.ids)
    whole = load_tabular("breast-cancer")
    column = whole.columns.index(second.feature_names[0])
    np.testing.assert_array_equal(second.features[:, 0], whole.features[second.ids, column])
    np.testing.assert_array_equal(first.labels, whole.labels[first.ids])


def test_csv_with_categories_text_labels_and_ids(csv):
    made = source(csv, id_column="customer", label="bad", categorical=("region",)).load()
    assert list(made.ids) == ["007", "12", "3"]
    assert made.feature_names == ("age", "region=north", "region=south", "income")
    np.testing.assert_array_equal(made.features, [[31, 1, 0, 1.5], [45, 0, 1, 2.5], [52, 1, 0, 3.5]])
    assert made.class_names == ("no", "yes")
    assert list(made.labels) == [1, 0, 0]


def test_only_the_wanted_columns_are_taken(csv):
    made = source(csv, features=("income",)).load()
    assert made.feature_names == ("income",)
    assert list(made.ids) == [0, 1, 2]


def test_parquet_and_npy_hold_the_same(tmp_path):
    pq.write_table(pa.table({"id": [3, 1], "x": [1.0, 2.0], "y": [10, 9]}), tmp_path / "p.parquet")
    np.save(tmp_path / "m.npy", np.asarray([[3, 1.0, 10], [1, 2.0, 9]]))
    np.save(tmp_path / "s.npy", np.asarray([(3, 1.0, 10), (1, 2.0, 9)], dtype=[("id", int), ("x", float), ("y", int)]))
    columns = {"p.parquet": ("id", "x", "y"), "m.npy": ("c0", "c1", "c2"), "s.npy": ("id", "x", "y")}
    for name, (key, x, y) in columns.items():
        made = source(tmp_path / name, id_column=key, features=(x,), label=y).load()
        assert list(made.ids) == ["3", "1"]
        np.testing.assert_array_equal(made.features, [[1], [2]])
        assert made.class_names == ("9", "10")
        assert list(made.labels) == [1, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id_column": "client"}, "id: 'client' is not a column"),
        ({"label": "good"}, "label: 'good' is not a column"),
        ({"features": ("age", "size")}, "features: 'size' is not a column"),
        ({"label": "bad"}, "column region: holds text such as 'north'"),
        (
            {"label": "age", "features": ("income",)},
            "label age: 3 classes .31, 45, 52., 2 are expected; give type = .multiclass. and classes = 3",
        ),
        ({"features": ("age",), "label": "region", "task": "regression"}, "column region: holds text"),
        ({"features": ("age", "bad"), "label": "bad"}, "features: 'bad' is the label or the id"),
        ({"id_column": "bad", "label": "bad"}, "label: 'bad' is the id column too"),
        ({"features": ("age",), "categorical": ("region",)}, "categorical: 'region' is not among the features"),
    ],
)
def test_wrong_columns_are_named(csv, given, said):
    with pytest.raises(BadInput, match=said) as caught:
        source(csv, **given).load()
    assert str(caught.value).startswith("bank: ")


def test_missing_values(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("id,x,c,y\n1,2,a,0\n,3,,1\n4,,b,\n")
    assert np.isnan(source(path, features=("x",)).load().features).sum() == 1  # refused by check_block
    for given, column in (
        ({"id_column": "id", "features": ("x",)}, "id"),
        ({"features": ("c",), "categorical": ("c",)}, "c"),
        ({"features": ("x",), "label": "y"}, "y"),
    ):
        with pytest.raises(BadInput, match=f"column {column}: 1 values are missing"):
            source(path, **given).load()


def test_what_can_be_done_about_a_file_is_said_of_all_columns_at_once(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("id,age,so many,c,y\n1,,,a,0\n2,3,,,1\n3,4,5,b,0\n")
    path.with_name("t.csv").write_text("c,n,d\na,1,\nb,2,x\n")
    with pytest.raises(BadInput, match=r"columns hold text: c \('a'\), d \('x'\); give numbers, or name the columns"):
        source(path.with_name("t.csv")).load()
    with pytest.raises(BadInput) as caught:
        source(path, id_column="id", label="y", categorical=("c",)).load()
    assert 'columns what to do, such as c = { type = "categorical", missing = "indicator" }' in str(caught.value)
    rules = (("c", ColumnRule(type="text", missing="indicator")),)
    made = source(path, id_column="id", label="y", rules=rules)
    with pytest.raises(BadInput) as caught:
        check_block(made.load(), "bank", "binary", 2)
    said = str(caught.value)
    assert "column age: 1 values are NaN, missing or infinite (first in row 1), column so many: 2 values" in said
    assert 'such as age = { missing = "indicator" }' in said
    # what the line says is what helps
    helped = dataclasses.replace(
        made, rules=(*rules, ("age", ColumnRule(missing="indicator")), ("so many", ColumnRule(missing="median")))
    )
    check_block(helped.load(), "bank", "binary", 2)


@pytest.mark.parametrize("text", ["größe,y\n1,0\n2,1\n", "job,y\nMüller,0\nb,1\n"], ids=["a name", "a value"])
@pytest.mark.parametrize("categorical", [(), ("job",)])
def test_other_characters_than_utf8(tmp_path, text, categorical):
    path = tmp_path / "b.csv"
    path.write_bytes(text.encode("latin-1"))
    given = {"label": "y", "categorical": categorical if text.startswith("job") else ()}
    with pytest.raises(
        BadInput,
        match=r"not written in utf8 \(line [12] has the byte 0x..\); give its encoding, .* encoding = \"latin-1",
    ):
        source(path, **given).load()
    if categorical or text.startswith("gr"):
        read = source(path, **given, csv=CsvFormat(encoding="latin-1")).load()
        assert read.feature_names[0] in ("größe", "job=Müller")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_is_recognised(tmp_path, separator):
    path = tmp_path / "b.csv"
    path.write_text(f"x{separator}y\n1{separator}0\n2{separator}1\n")
    with pytest.raises(BadInput, match=r"has one column, .*csv = \{ separator = ") as caught:
        source(path, label="y").load()
    given = tomllib.loads(str(caught.value).rpartition(": ")[2])["csv"]
    assert source(path, label="y", csv=CsvFormat(**given)).load().feature_names == ("x",)


def test_values_beyond_float32_are_refused_or_clipped(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("x\n1e300\n2\ninf\n")
    with pytest.raises(BadInput, match=r"column x: 2 values .* single precision, such as 1e\+300 \(first in row 1\)"):
        source(path).load()
    clipped = ColumnRule(scaling="range", range=(0, 4))
    assert source(path, rules=(("x", clipped),)).load().features.tolist() == [[1], [0.5], [1]]


def test_dates_are_not_numbers(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("day\n2013-01-01\n2013-01-02\n")
    with pytest.raises(BadInput, match=r"column day"):
        source(path).load()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.csv", None, "is not a file"),
        ("a.xlsx", b"x", "give a .csv"),
        ("a.parquet", b"not parquet", "cannot be read"),
        ("a.npy", b"not npy", "cannot be read"),
        ("a.csv", b"a,a\n1,2\n", "columns of the same name: 'a', 2 times"),
        ("b.csv", b"a,b\n1,2\n1\n", "line 3 has 1 fields, the header 2"),
    ],
)
def test_unreadable_files(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=said):
        source(tmp_path / name).load()


def test_a_pickled_npy_is_refused(tmp_path):
    np.save(tmp_path / "o.npy", np.asarray([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(BadInput, match=r"cannot be read"):
        source(tmp_path / "o.npy").load()


@pytest.mark.parametrize(
    ("written", "names", "codes"),
    [
        (["0", "1", "", "1"], ("0", "1"), [0, 1, 1]),
        (["true", "", "false", "true"], ("false", "true"), [1, 0, 1]),
        (["False", "True", "", "TRUE"], ("false", "true"), [0, 1, 1]),
        (["002", "", "001", "010"], ("001", "002", "010"), [1, 0, 2]),
        (["10", "9", "", " 10", "1e1", "-1"], ("-1", "9", "10"), [2, 1, 2, 2, 0]),
        (["1.0", "1", "0.0", "0.50", ""], ("0", "0.50", "1"), [2, 2, 0, 1]),
        (["90071992547409921", "", "90071992547409922"], ("90071992547409921", "90071992547409922"), [0, 1]),
        (["b", "", "10", "a"], ("10", "a", "b"), [2, 0, 1]),
    ],
    ids=["integers", "truth", "truth as Python writes it", "zeros", "spellings", "decimals", "long", "text"],
)
def test_classes_are_called_what_the_file_calls_them(tmp_path, written, names, codes):
    path = tmp_path / "b.csv"
    path.write_text("x,y\n" + "".join(f"1,{text}\n" for text in written))
    given = {"label": "y", "unlabelled": "drop", "num_classes": len(names)}
    made = source(path, **given).load()
    assert made.class_names == names
    assert list(made.labels) == codes
    weighed = source(path, **given, class_weights=((names[-1], 3.0),)).load()
    np.testing.assert_array_equal(weighed.weights, [3 if code == len(names) - 1 else 1 for code in codes])
    if len(names) == 2:
        assert list(source(path, **given, positive=names[0]).load().labels) == [1 - code for code in codes]


def test_classes_of_typed_files_have_the_same_names(tmp_path):
    path = tmp_path / "b.parquet"
    for values, names in (([10, None, 9], ("9", "10")), ([True, None, False], ("false", "true"))):
        pq.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": values}), path)
        made = source(path, label="y", unlabelled="drop").load()
        assert (made.class_names, list(made.labels)) == (names, [1, 0])


def test_labels_of_a_regression_stay_numbers(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("x;y\n1;0,5\n2;\n3;1\n")
    made = source(
        path, label="y", task="regression", num_classes=1, unlabelled="drop", csv=CsvFormat(separator=";", decimal=",")
    )
    assert list(made.load().labels) == [0.5, 1]


def test_what_is_no_number_under_the_files_decimal_is_named(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("x;z\n1,5;1\n2.5;2\n3,5;3\n")
    with pytest.raises(BadInput, match=r"column x: holds text such as '2\.5'"):
        source(path, csv=CsvFormat(separator=";", decimal=",")).load()
    with pytest.raises(BadInput, match=r"column x: holds text such as '1,5'"):
        source(path, csv=CsvFormat(separator=";")).load()

"""What stands beside a value is no part of it, and is not lost: columns, dates, formats of cells, weights of edges."""

from __future__ import annotations

import datetime

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

import fedactors
from fedactors.data.checks import check_data
from fedactors.data.description import load_description
from fedactors.data.objects import table_of
from fedactors.data.readers import read_columns
from fedactors.data.sources import FileSource
from fedactors.data.values import Column
from fedactors.errors import BadInput
from fedactors.runtime.snapshots import object_at


def source(path, **given):
    return FileSource(**{"party": "bank", "path": str(path), "task": "regression", "num_classes": 0, **given})


# --- names with a number at their end ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [{"label": "y"}, {"id_column": "y"}, {"targets": ("y",)}, {"weight": "y"}])
def test_a_column_that_is_called_like_the_label_with_a_number_is_a_feature(tmp_path, role):
    (tmp_path / "bank.csv").write_text("y,y.1,z\n1,5,0\n2,6,1\n")
    names = source(tmp_path / "bank.csv", **role).load().feature_names
    assert names == ("y.1", "z")


def test_places_of_a_target_that_is_a_list_are_no_features(tmp_path):
    pq.write_table(pa.table({"y": [[1.0, 2.0], [3.0, 4.0]], "z": [0.0, 1.0]}), tmp_path / "bank.parquet")
    block = source(tmp_path / "bank.parquet", targets=("y",)).load()
    assert block.feature_names == ("z",)
    assert block.labels.tolist() == [[1, 2], [3, 4]]


def test_a_place_of_a_list_takes_no_other_columns_name(tmp_path):
    columns = {"x": [[1.0, 2.0], [3.0, 4.0]], "x.0": [9.0, 8.0]}
    pq.write_table(pa.table(columns), tmp_path / "bank.parquet")
    with pytest.raises(BadInput, match=r"bank: .*column x\.0: is also what place 0 of the lists of column x is called"):
        read_columns(tmp_path / "bank.parquet", "bank", wanted=None)
    assert list(read_columns(tmp_path / "bank.parquet", "bank", wanted=["x.0"], whole=["x"])) == ["x.0"]


# --- dates of objects -------------------------------------------------------------------------------------------------

STEPS = {"10s": "s", "2D": "D", "25us": "us", "M": "M", "W": "W", "7D": "D"}


@pytest.mark.parametrize("unit", STEPS)
def test_dates_of_numpy_that_count_several_of_a_unit_are_those_dates(unit):
    days = np.array(["2024-01-04", "2031-12-30"], f"M8[{unit}]")
    for value in ({"x": days}, np.array([(one,) for one in days], [("x", days.dtype)])):
        found = table_of(value, "bank").column("x").to_pylist()
        assert [np.datetime64(one) for one in found] == [one.astype("M8[us]") for one in days]


def test_dates_in_steps_that_single_units_do_not_hold_are_refused():
    with pytest.raises(BadInput, match=r"bank: .*dates in steps of 1000000000 ns .*give datetime64\[us\]"):
        table_of({"x": np.array([32_503_680_000]).view("M8[1000000000ns]")}, "bank")


DAY, HOUR = datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1, 5)
EAST = datetime.timezone(datetime.timedelta(hours=2))


@pytest.mark.parametrize("make", [list, lambda values: np.array(values, object), lambda v: pd.Series(v, dtype=object)])
@pytest.mark.parametrize("dates", [[DAY, HOUR], [HOUR, HOUR.replace(tzinfo=EAST)]])
def test_dates_of_several_kinds_are_refused_in_whatever_holds_them(make, dates):
    with pytest.raises(BadInput, match=r"bank: .*column x: holds dates of several kinds \((date, )?datetime, with a"):
        table_of({"x": make([*dates, None])}, "bank")
    assert table_of({"x": make([HOUR, None])}, "bank").column("x").to_pylist() == [HOUR, None]


# --- data sets of pairs -----------------------------------------------------------------------------------------------


class Tenfold(torch.utils.data.TensorDataset):
    """Whose samples are ten times what its tensors hold."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 10 * x, y


def test_what_a_data_set_makes_of_its_tensors_is_what_is_learnt_from():
    x, y = torch.ones(4, 2), torch.tensor([0, 1, 0, 1])
    data = fedactors.horizontal([Tenfold(x, y), torch.utils.data.TensorDataset(2 * x, y)], task="binary")
    tables = [object_at(keys["path"]) for keys in data.parties.values()]
    assert [one.column("c1").to_pylist() for one in tables] == [[10.0] * 4, [2.0] * 4]


# --- graphs -----------------------------------------------------------------------------------------------------------

NODES = {"labels": np.array([0, 1, 0]), "train": [0], "validation": [1], "test": [2]}
EDGES = np.array([[0, 1], [1, 2]])


class Data:
    """As PyTorch Geometric has it."""

    def __init__(self, **given):
        self.edge_index, self.x, self.edge_attr, self.edge_weight = torch.from_numpy(EDGES), torch.eye(3), None, None
        vars(self).update(given)


@pytest.mark.parametrize("key", ["edge_weight", "edge_attr"])
def test_weights_of_edges_are_refused_for_no_model_sees_them(key):
    weights = torch.tensor([0.5, 2.0])
    for value in (Data(**{key: weights}), {"edges": EDGES, "features": np.eye(3), key: weights}):
        with pytest.raises(BadInput, match=rf"^a: {key} is not allowed: edges have no weights here; leave it out"):
            fedactors.graph({"a": value, "b": {"edges": EDGES, "features": np.ones((3, 1))}}, nodes=NODES)


def test_tensors_that_are_no_plain_arrays_are_one_line_with_their_party():
    with pytest.raises(BadInput, match=r"^a: Data: a tensor that is not dense; give what .to_dense\(\) makes of it"):
        fedactors.graph({"a": Data(x=torch.eye(3).to_sparse()), "b": Data()}, nodes=NODES)
    assert fedactors.graph({"a": Data(), "b": {"edges": EDGES, "features": np.eye(3)}}, nodes=NODES)


# --- workbooks --------------------------------------------------------------------------------------------------------


def test_codes_of_a_workbook_have_the_zeros_that_it_shows(tmp_path):
    book = openpyxl.Workbook()
    for row in (["zip", "x"], [501, 1], [10001, 2], ["00502", 3], [None, 4]):
        book.active.append(row)
    for line in (2, 3):
        book.active.cell(line, 1).number_format = "00000"
    book.save(tmp_path / "bank.xlsx")
    column = read_columns(tmp_path / "bank.xlsx", "bank", wanted=None)["zip"]
    assert column.texts() == ["00501", "10001", "00502", None]
    assert np.nan_to_num(column.numbers("bank"), nan=-1).tolist() == [501, 10001, 502, -1]


# --- data sets of Hugging Face ----------------------------------------------------------------------------------------


def test_a_data_set_of_hugging_face_is_what_its_format_makes_of_it():
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": [1.0, 2.0, 3.0], "z": [7, 8, 9], "y": [0, 1, 0]})
    assert table_of(whole.select([2, 0]), "bank").to_pydict() == {"x": [3.0, 1.0], "z": [9, 7], "y": [0, 0]}
    some = whole.with_format("torch", columns=["x", "y"])
    assert table_of(some, "bank").to_pydict() == {"x": [1.0, 2.0, 3.0], "y": [0, 1, 0]}
    tenfold = whole.with_transform(lambda rows: {name: [10 * one for one in values] for name, values in rows.items()})
    with pytest.raises(BadInput, match=r"bank: .*a data set with a transform, .*; use map\(\.\.\.\) instead"):
        table_of(tenfold, "bank")
    with pytest.raises(BadInput, match=r'bank: .*2 splits \(train, test\); give one, as data\["train"\]'):
        table_of(datasets.DatasetDict(train=whole, test=whole), "bank")


def test_classes_of_hugging_face_are_called_by_their_names():
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["10", "9", "no one"])
    features = datasets.Features({"kind": names, "y": names, "tags": datasets.Sequence(names)})
    rows = datasets.Dataset.from_dict(
        {"kind": [0, 2, -1], "y": [1, None, 0], "tags": [[0, 1], [2, 2], [1, 0]]}, features=features
    )
    named = {"kind": ["10", "no one", None], "y": ["9", None, "10"], "tags": [[0, 1], [2, 2], [1, 0]]}
    assert table_of(rows, "bank").to_pydict() == named
    whole = datasets.concatenate_datasets([rows.select([2, 0]), rows.select([1])])
    assert table_of(whole, "bank").column("kind").to_pylist() == [None, "10", "no one"]
    odd = pa.table({"y": pa.array([0, 3], pa.int64())})
    beyond = datasets.Dataset(odd, info=datasets.DatasetInfo(features=datasets.Features({"y": names})))
    with pytest.raises(BadInput, match=r"bank: .*column y holds the class 3, and 3 have names, from 0 on"):
        table_of(beyond, "bank")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_long_whole_numbers_beside_small_ones_are_exact_as_ids_and_told_as_features(tmp_path, kind):
    size = 30
    numbers = [2**53, 2**53 + 1, *range(size - 2)]
    table = pa.table({"id": numbers, "v": numbers, "y": [row % 2 for row in range(size)]})
    write = pa.csv.write_csv if kind == "csv" else pq.write_table
    write(table, tmp_path / f"bank.{kind}")
    pa.csv.write_csv(pa.table({"id": numbers, "w": list(range(size))}), tmp_path / "shop.csv")
    path = tmp_path / "parties.toml"
    path.write_text(
        '[task]\ntype = "binary"\nalignment = "hash"\n'
        f'[parties.bank]\npath = "bank.{kind}"\nid = "id"\nlabel = "y"\n[parties.shop]\npath = "shop.csv"\nid = "id"\n'
    )
    assert load_description(path).part("bank").load().ids.tolist() == list(map(str, numbers))
    told = "9007199254740992 and 9007199254740993 are one number in double precision; write ids as texts"
    assert [one.column for one in check_data(path) if one.text == told] == ["v"]


def test_a_date_of_the_year_0_is_none(tmp_path):
    column = Column("d", pa.array(["0000-01-01", "2017-01-01"]))
    moments, wrong = column.moments("")
    assert wrong == {0: "0000-01-01"}
    assert str(moments[1]).startswith("2017-01-01")

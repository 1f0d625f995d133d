from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from fedactors.data.databases import in_memory
from fedactors.data.layouts.relational import read_rows, rows_with_keys
from fedactors.data.query import Feature, FeatureTypeError, LabelError, Partition, VerticalTable
from fedactors.protocols.tablepuppet.data import (
    column_facts,
    design_matrix,
    label_classes,
    label_values,
    merge_classes,
    merge_facts,
)

FEATURES = (Feature("age", "integer"), Feature("town", "text", "one_hot"), Feature("same", "float"))


def part(ages, towns):
    return pa.table({"age": ages, "town": towns, "same": [4.0] * len(ages)})


def test_partitions_encode_as_the_whole_table_would():
    parts = [part([1, 3], ["b", ""]), part([8], ["a"])]
    facts = merge_facts([column_facts(part, FEATURES) for part in parts])
    whole = pa.concat_tables(parts)
    assert facts.categories[1] == ("", "a", "b")
    pieces = np.vstack([design_matrix(p, FEATURES, facts, True) for p in parts])
    assert pieces == pytest.approx(design_matrix(whole, FEATURES, facts, True))
    ages = np.array([1.0, 3.0, 8.0])
    assert pieces[:, 0] == pytest.approx((ages - ages.mean()) / ages.std())
    assert pieces[:, 1:].tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 0, 1], [0, 1, 0, 0, 1]]


def test_an_unknown_category_gives_zeros_and_raw_numbers_stay():
    facts = column_facts(part([1], ["a"]), FEATURES)
    made = design_matrix(part([5], ["z"]), FEATURES, facts, False, standardise=False)
    assert made.tolist() == [[5.0, 0.0, 4.0]]


def test_missing_numbers_are_a_named_error():
    with pytest.raises(FeatureTypeError, match="age has no finite number in 1 of 2 rows"):
        column_facts(part([1, None], ["a", "b"]), FEATURES)


def test_missing_categories_are_refused_as_a_rule_of_the_column_would():
    with pytest.raises(FeatureTypeError, match=r"town is missing in 1 of 2 rows; .* missing = \"indicator\" }"):
        column_facts(part([1, 2], ["a", None]), FEATURES)


@pytest.mark.parametrize(
    ("feature", "values", "told"),
    [
        (Feature("x", "integer"), [2**53 + 1, 1], "holds whole numbers beyond 2"),
        (Feature("x", "other", "one_hot"), [[1], [2]], "holds list<.*>, no categories"),
    ],
)
def test_values_that_no_number_and_no_text_holds_are_named(feature, values, told):
    with pytest.raises(FeatureTypeError, match=f"^features: x {told}"):
        column_facts(pa.table({"x": values}), (feature,))


def test_labels_become_numbers_bits_or_classes():
    numbers = pa.chunked_array([[10, 2, 10]])
    classes = merge_classes([label_classes(numbers), ("3", "x")])
    assert classes == ("2", "3", "10", "x")
    assert label_values(numbers, "softmax", "y", classes).tolist() == [2, 0, 2]
    assert label_values(numbers, "squared", "y").tolist() == [10.0, 2.0, 10.0]
    assert label_values(pa.chunked_array([[True, False]]), "logistic", "y").tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("values", "loss", "words"),
    [
        ([1.0, None], "squared", "missing in 1 of 2"),
        (["a"], "squared", "not a number"),
        ([2], "logistic", "0 and 1"),
        (["b"], "softmax", "'b'"),
        ([float("inf")], "squared", "finite"),
    ],
)
def test_unfit_labels_are_named_errors(values, loss, words):
    with pytest.raises(LabelError, match=words):
        label_values(pa.chunked_array([values]), loss, "y", ("a",) if loss == "softmax" else ())


def test_rows_with_a_null_key_are_found():
    keys = pa.table({"k": [1, None, 3], "t": ["a", "b", None]})
    assert rows_with_keys(keys).tolist() == [True, False, False]


def test_rows_are_those_of_the_table_in_an_order_of_the_run_whatever_the_databases():
    rng = np.random.default_rng(0)
    rows = pa.table({"k": rng.integers(0, 9, 200), "x": rng.normal(size=200), "t": [None, "a", "b", "c"] * 50})
    table = VerticalTable("t", (Partition("t"),), (Feature("x", "float"), Feature("t", "text", "one_hot")), ("k",))
    given = (rows, rows.take(pa.array(rng.permutation(200))), rows.set_column(1, "x", rows["x"].take([0] * 200)))
    read = [read_rows(in_memory(listed), table, 0, np.random.default_rng(1)) for listed in given]
    assert read[0].data.equals(read[1].data)
    assert read[0].fingerprint == read[1].fingerprint != read[2].fingerprint
    assert sorted(map(str, read[0].data.to_pylist())) == sorted(map(str, rows.select(["k", "x", "t"]).to_pylist()))
    assert read[0].data["k"].to_pylist() != sorted(rows["k"].to_pylist())


def test_columns_of_any_kind_can_be_put_in_order():
    with duckdb.connect() as connection:
        made = connection.sql(
            "SELECT uuid() u, time '10:00:00' t, INTERVAL (x) DAY i, 'a'::ENUM('b', 'a') e, 'x'::BLOB b, [x] l,"
            " {'a': x} s, x::DECIMAL(9, 2) d, now() n, x > 1 k, NULL nothing, '101'::BIT bits FROM range(3) r(x)"
        ).to_arrow_table()
    for name in made.column_names:
        table = VerticalTable("t", (Partition("t"),), (), (name,))
        source = in_memory(made.select([name]).append_column("row", pa.array([0, 1, 2])))
        assert read_rows(source, table, 0, np.random.default_rng(0)).num_null == (3 if name == "nothing" else 0)

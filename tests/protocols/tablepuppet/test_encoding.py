from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from protocols.tablepuppet.encoding import column_facts, column_names, design_matrix, merge_facts
from protocols.tablepuppet.faults import FeatureTypeError
from protocols.tablepuppet.plan import Feature

FEATURES = (Feature("age", "integer"), Feature("town", "text", "one_hot"), Feature("same", "float"))


def part(ages, towns):
    return pa.table({"age": ages, "town": towns, "same": [4.0] * len(ages)})


def test_partitions_encode_as_the_whole_table_would():
    parts = [part([1, 3], ["b", None]), part([8], ["a"])]
    facts = merge_facts([column_facts(p, FEATURES) for p in parts])
    whole = pa.concat_tables(parts)
    assert facts[1].categories == ("", "a", "b")
    pieces = np.vstack([design_matrix(p, FEATURES, facts, True) for p in parts])
    assert pieces == pytest.approx(design_matrix(whole, FEATURES, facts, True))
    ages = np.array([1.0, 3.0, 8.0])
    assert pieces[:, 0] == pytest.approx((ages - ages.mean()) / ages.std())
    assert pieces[:, 1:].tolist() == [[0, 0, 1, 0, 1], [1, 0, 0, 0, 1], [0, 1, 0, 0, 1]]
    assert column_names(FEATURES, facts, True) == ("age", "town=", "town=a", "town=b", "same", "1")


def test_an_unknown_category_gives_zeros_and_raw_numbers_stay():
    facts = column_facts(part([1], ["a"]), FEATURES)
    made = design_matrix(part([5], ["z"]), FEATURES, facts, False, standardise=False)
    assert made.tolist() == [[5.0, 0.0, 4.0]]


def test_missing_numbers_are_a_named_error():
    with pytest.raises(FeatureTypeError, match="age has no finite number in 1 of 2 rows"):
        column_facts(part([1, None], ["a", "b"]), FEATURES)

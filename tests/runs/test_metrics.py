from __future__ import annotations

import json

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import Summary, encode_round, jsonable, read_lines

SUMMARY = Summary(
    run="runs/x",
    protocol="tiny",
    runtime="simulated",
    seed=0,
    rounds=3,
    metrics={"auc": 0.9},
    bytes=10,
    messages=2,
    seconds=1.5,
    wall_seconds=0.5,
    cpu_utilisation=0.5,
    idle_seconds=0.1,
)


def test_round_line_is_deterministic_and_exact():
    line = encode_round(3, {"loss": 0.1 + 0.2, "auc": np.float64(1 / 3), "count": np.int64(4)})
    assert line == '{"round": 3, "auc": 0.3333333333333333, "count": 4, "loss": 0.30000000000000004}'
    assert line == encode_round(3, {"count": 4, "auc": 1 / 3, "loss": 0.1 + 0.2})


def test_not_a_number_is_null():
    assert json.loads(encode_round(1, {"a": float("nan"), "b": float("inf")})) == {"round": 1, "a": None, "b": None}


def test_jsonable_keeps_structure_and_refuses_objects():
    assert jsonable({"a": (1, np.array([1.5, np.nan])), "b": frozenset({"y", "x"})}) == {
        "a": [1, [1.5, None]],
        "b": ["x", "y"],
    }
    with pytest.raises(TypeError, match="object cannot be written"):
        jsonable(object())


def test_summary_round_trip():
    assert Summary.from_dict(json.loads(json.dumps(SUMMARY.as_dict()))) == SUMMARY


@pytest.mark.parametrize(
    ("change", "message"), [({"schema_version": 2}, "schema_version 2"), ({"bytes": None}, "bytes missing")]
)
def test_foreign_summary_is_bad_input(change, message):
    values = {**SUMMARY.as_dict(), **change}
    values = {key: value for key, value in values.items() if value is not None}
    with pytest.raises(BadInput, match=message):
        Summary.from_dict(values)


def test_lines_cut_short_are_left_out_and_damaged_ones_named(tmp_path):
    folder = RunFolder.create(tmp_path, "x", 0, {})
    folder.write_bytes("a.jsonl", b'{"a": 1}\n{"a": 2')
    assert list(read_lines(folder, "a.jsonl")) == [{"a": 1}]
    folder.write_bytes("a.jsonl", b'{"a": 1}\n}{\n')
    with pytest.raises(BadInput, match="line 2 is damaged"):
        list(read_lines(folder, "a.jsonl"))
    assert list(read_lines(folder, "none.jsonl")) == []

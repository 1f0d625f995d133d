import json
from pathlib import Path

import pytest
from fedactors.records.study import Study, study_flags, write_summary

from fedactors.errors import BadInput


def parse(*words, results=Path("results")):
    return study_flags("A study.", results, seeds=(0, 1)).parse_args(words, namespace=Study())


def test_defaults():
    given = parse()
    assert (given.out, given.seeds, given.smoke, given.full) == (Path("results"), (0, 1), False, False)
    assert given.wants("anything")


def test_what_is_given():
    given = parse("--seeds", "3,4", "--only", "ab,cd", "rate=0.1", "--out", "x")
    assert (given.seeds, given.out, given.settings) == ((3, 4), Path("x"), {"rate": "0.1"})
    assert [given.wants(name) for name in ("xaby", "cd", "ac")] == [True, True, False]


def test_settings_may_stand_between_flags():
    given = parse("a=1", "--seeds", "3", "b=2", "--only", "ab", "c=3")
    assert (given.settings, given.only) == ({"a": "1", "b": "2", "c": "3"}, "ab")


def test_a_word_that_is_no_setting():
    with pytest.raises(BadInput, match="rate"):
        _ = parse("rate").settings


def test_a_summary_is_measured_once_unless_again(tmp_path):
    path = tmp_path / "table" / "row.json"
    assert parse().lacks(path)
    write_summary(path, {"b": float("inf"), "a": 1})
    assert list(json.loads(path.read_text())) == ["a", "b"]
    assert (parse().lacks(path), parse("--again").lacks(path)) == (False, True)

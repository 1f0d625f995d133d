from pathlib import Path

import pytest

from fedactors.errors import BadInput, Diverged
from fedactors.records.table import RunRow, read_table
from fedactors.sweeps.study import Study, study_flags


def parse(*words, results=Path("results")):
    return study_flags("A study.", "vfl", results, seeds=(0, 1)).parse_args(words, namespace=Study())


def once(point, seed):
    if point == "bad":
        raise Diverged("learning_rate: too large")
    return RunRow(protocol="glasu", seed=seed, metrics={"point": point, "seed": seed})


def test_defaults():
    given = parse()
    assert (given.out, given.seeds, given.smoke, given.full) == (Path("results"), (0, 1), False, False)
    assert given.table == Path("results/vfl.parquet")
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


def measured(tmp_path, points, *words, **options):
    given = parse("--out", str(tmp_path), *words)
    given.protocol = "glasu"
    given.measure("table", points, once, **options)
    return [(row.name, row.seed, row.metrics.get("point")) for row in read_table(given.table)]


def test_a_row_is_measured_once_unless_again(tmp_path):
    assert measured(tmp_path, {"a": "1"}) == [("a", 0, "1"), ("a", 1, "1")]
    assert measured(tmp_path, {"a": "2"}) == [("a", 0, "1"), ("a", 1, "1")]
    assert measured(tmp_path, {"a": "2"}, "--seeds", "0,1,2") == [("a", 0, "1"), ("a", 1, "1")]
    more = [("a", 0, "2"), ("a", 1, "2"), ("a", 2, "2")]
    assert measured(tmp_path, {"a": "2"}, "--seeds", "0,1,2", all_seeds=True) == more
    assert measured(tmp_path, {"a": "3"}, "--again") == [("a", 0, "3"), ("a", 1, "3")]


def test_what_only_and_smoke_leave_out(tmp_path):
    points = {"a-1": "1", "b-1": "2", "b-2": "3"}
    assert measured(tmp_path / "x", points, "--only", "b-") == [
        (n, s, p) for n, p in (("b-1", "2"), ("b-2", "3")) for s in (0, 1)
    ]
    assert measured(tmp_path / "y", points, "--smoke", smoke_rows=2) == [("a-1", 0, "1"), ("b-1", 0, "2")]


def test_a_run_that_diverges_is_a_row(tmp_path):
    measured(tmp_path, {"a": "bad", "b": "1"}, "--seeds", "0")
    bad, good = read_table(tmp_path / "glasu.parquet")
    assert (bad.status, bad.failure, good.status) == ("failed", "learning_rate: too large", "finished")
    assert (bad.protocol, len(good.code)) == ("glasu", 64)
    assert "numpy" in good.versions


def test_several_jobs_write_the_rows_in_order(tmp_path):
    points = {f"row-{index}": str(index) for index in range(4)}
    expected = [(name, seed, point) for name, point in points.items() for seed in (0, 1)]
    assert measured(tmp_path, points, "--jobs", "2") == expected

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedactors.errors import BadInput, Diverged
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.runs.table import RunRow, read_table, write_table
from scenarios.paper.repeat import Repeat, can_repeat
from scenarios.paper.study import Study, study_flags


def parse(*words, results=Path("results")):
    return study_flags("A study.", "vfl", results, seeds=(0, 1)).parse_args(words, namespace=Study())


def once(point, seed):
    if point == "bad":
        raise Diverged("learning_rate: too large")
    return RunRow(protocol="glasu", seed=seed, metrics={"point": point, "seed": seed})


def test_defaults():
    given = parse()
    assert (given.out, given.seeds, given.smoke, given.paper) == (Path("results"), (0, 1), False, False)
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


def test_a_row_that_was_made_with_other_settings_is_measured_again_where_they_follow_from_other_rows(tmp_path):
    @dataclasses.dataclass
    class Point:
        settings: dict[str, object]

    def once(point, seed):
        config = dataclasses.asdict(GlasuConfig(**point.settings))
        return RunRow(protocol="glasu", seed=seed, config=config, metrics={"rate": point.settings["learning_rate"]})

    def rates(rate, **more):
        given = parse("--out", str(tmp_path))
        given.protocol = "glasu"
        points = {"a": Point({"learning_rate": rate}), "b": Point({"learning_rate": 0.5})}
        given.measure("table", points, once, seeds=(0,), **more)
        return [row.metrics["rate"] for row in read_table(given.table)]

    assert rates(0.25) == [0.25, 0.5]
    assert rates(0.125) == [0.25, 0.5], "a row is left alone"
    before = [row for row in read_table(tmp_path / "glasu.parquet") if row.name == "b"]
    assert rates(0.125, as_set=True) == [0.125, 0.5]
    assert [row for row in read_table(tmp_path / "glasu.parquet") if row.name == "b"] == before


def test_only_the_seeds_that_are_not_there_are_measured_where_settings_are_as_they_were(tmp_path):
    asked = []

    def once(point, seed):
        asked.append(seed)
        return RunRow(protocol="glasu", seed=seed, config=dataclasses.asdict(GlasuConfig(**point)))

    def seeds(rate, *seeds):
        asked.clear()
        given = parse("--out", str(tmp_path))
        given.protocol = "glasu"
        points = {"a": {"learning_rate": rate}}
        given.measure("table", points, once, seeds=seeds, all_seeds=True, as_set=True)
        return [row.seed for row in read_table(given.table)]

    assert seeds(0.25, 0, 1) == asked == [0, 1]
    before = read_table(tmp_path / "glasu.parquet")
    assert seeds(0.25, 0, 1, 2, 3) == [0, 1, 2, 3]
    assert asked == [2, 3]
    assert read_table(tmp_path / "glasu.parquet")[:2] == before, "they stay as they are"
    assert seeds(0.125, 0, 1, 2, 3, 4) == asked == [0, 1, 2, 3, 4], "none of other settings stays beside the new ones"


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


@pytest.mark.slow
def test_several_jobs_write_the_rows_in_order(tmp_path):
    points = {f"row-{index}": str(index) for index in range(4)}
    expected = [(name, seed, point) for name, point in points.items() for seed in (0, 1)]
    assert measured(tmp_path, points, "--jobs", "2") == expected


def test_a_row_has_all_that_makes_it_again(tmp_path, monkeypatch):
    words = [
        "--out",
        str(tmp_path),
        "--only=table",
        "--jobs",
        "1",
        "--again",
        "--seeds",
        "0,1",
        "--smoke",
        "hidden_size=4",
    ]
    monkeypatch.setattr("sys.argv", ["/home/a/scenarios/paper/x.py", *words])
    monkeypatch.setattr("sys.modules", {**sys.modules, "__main__": ModuleType("__main__")})
    measured(tmp_path, {"a b": "1"}, "--seeds", "0,1")
    row = read_table(tmp_path / "glasu.parquet")[1]
    assert row.command == "python scenarios/paper/x.py --smoke hidden_size=4 --row 'table/a b' --seeds 1"
    assert row.lacks == ("config", "data", "content")
    given = parse("--out", str(tmp_path))
    given.protocol = "glasu"
    given.put("table", "whole", [RunRow(protocol="", seed=0, data="karate", config={"patience": None})])
    whole = given.rows("table", "whole")[0]
    assert can_repeat(whole)
    line = {"mechanism": "gaussian", "noise_scale": 1.5}
    assert not can_repeat(dataclasses.replace(whole, extra={"privacy": {"bank": {"Embedding": line}}}))
    assert not can_repeat(dataclasses.replace(whole, extra={"privacy": json.dumps({"bank": {"Embedding": line}})}))
    assert can_repeat(dataclasses.replace(whole, extra={"privacy": {"bank": {"Facts": {**line, "noise_scale": 0.0}}}}))


def test_a_row_made_again_is_compared_and_not_written(tmp_path, capsys):
    measured(tmp_path, {"a": "1", "b": "1"})
    with pytest.raises(SystemExit) as end:
        measured(tmp_path, {"a": "1", "b": "1"}, "--row", "table/b", "--seeds", "1")
    assert not end.value.code
    assert capsys.readouterr().out.endswith("table/b seed 1: 2 of 2 numbers equal, tolerance 0.01: the same\n")
    with pytest.raises(SystemExit) as end:
        measured(tmp_path, {"a": "1", "b": "other"}, "--row", "table/b", "--seeds", "1")
    assert end.value.code
    assert capsys.readouterr().out.endswith("  metrics.point: 1 in the record, other now\n")
    assert measured(tmp_path, {}) == [(name, seed, "1") for name in "ab" for seed in (0, 1)]
    with pytest.raises(BadInput, match="has no row table/b with seed 7"):
        measured(tmp_path, {"b": "1"}, "--row", "table/b", "--seeds", "7")


def test_a_study_that_is_replaced_keeps_no_row_of_another_name(tmp_path, capsys):
    measured(tmp_path, {"a": "1"})
    given = parse("--out", str(tmp_path))
    given.protocol = "glasu"
    given.put("other", "old", [once("1", 0)])
    given.replace("other", {name: once(name, 0) for name in ("z", "y")})
    assert [(row.study, row.name) for row in read_table(given.table)] == [
        ("table", "a"), ("table", "a"), ("other", "z"), ("other", "y"),
    ]  # fmt: skip
    given.row = "other/y"
    with pytest.raises(SystemExit) as end:
        given.replace("other", {name: once(name, 0) for name in ("x", "y")})
    assert not end.value.code
    assert "other/y seed 0" in capsys.readouterr().out
    assert [row.name for row in given.rows("other")] == ["z", "y"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, []),
        ({"metrics": {"gap": 1.005, "split": "test"}}, []),
        ({"metrics": {"gap": 1.02, "split": "test"}}, ["metrics.gap: 1.0000 in the record, 1.0200 now"]),
        ({"metrics": {"gap": 1.0, "split": "x"}}, ["metrics.split: test in the record, x now"]),
        ({"metrics": {"split": "test"}}, ["metrics.gap: 1.0000 in the record, none now"]),
        (
            {"metrics": {"gap": 1.0, "split": "test", "rounds_to_0.1": 3}},
            ["metrics.rounds_to_0.1: none in the record, 3 now"],
        ),
        ({"config": {"patience": 8}}, ["config.patience: None in the record, 8 now"]),
        ({"config": {"patience": None, "new": 1}}, []),
        ({"content": "b"}, ["content: a in the record, b now"]),
    ],
)
def test_what_differs(tmp_path, change, said):
    row = RunRow(
        protocol="glasu",
        seed=0,
        config={"patience": None},
        metrics={"gap": 1.0, "split": "test"},
        censored=("rounds_to_0.1",),
        content="a",
    )
    # as it comes back from a file, where nothing and absent are one
    write_table(tmp_path / "t.parquet", [row])
    again = dataclasses.replace(row, **change)
    assert Repeat(known=read_table(tmp_path / "t.parquet")[0], again=again).differences == said


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"best_epoch": 34, "auc": 0.9}, []),
        ({"best_epoch": 34, "auc": 0.8}, ["metrics.auc: 0.9000 in the record, 0.8000 now"]),
        ({"auc": 0.9}, ["metrics.best_epoch: 53 in the record, none now"]),
    ],
)
def test_which_epoch_was_best_is_not_compared_but_what_was_measured_of_it_is(now, said):
    known = RunRow(protocol="pubsub-vfl", seed=0, metrics={"best_epoch": 53, "auc": 0.9})
    found = Repeat(known=known, again=dataclasses.replace(known, metrics=now)).differences
    assert found == said


@pytest.mark.parametrize(
    ("seeds", "now", "is_same"),
    [
        ((0.90, 0.93), 0.92, True),
        ((0.90, 0.93), 0.88, True),  # the range .90 to .93 widened by .03
        ((0.90, 0.93), 0.86, False),
        ((0.93,), 0.92, False),  # of two seeds nothing is known
        ((0.90, None), 0.92, False),
        ((0.90, 0.93), None, False),
        ((0.90, 0.93), float("nan"), False),
    ],
)
def test_a_number_may_differ_as_the_seeds_do(seeds, now, is_same):
    known = RunRow(protocol="glasu", seed=0, metrics={"f1": 0.9}, usage={"sent_bytes": 9}, config={"rate": 1})
    others = [dataclasses.replace(known, seed=1 + index, metrics={"f1": value}) for index, value in enumerate(seeds)]
    again = dataclasses.replace(known, metrics={"f1": now})
    repeat = Repeat(known=known, again=again, others=others)
    assert (not repeat.differences) == is_same == bool(repeat.rounded)
    assert ("the same but for what rounding does to training" in str(repeat)) == is_same
    assert Repeat(known=known, again=known, others=others).rounded == []
    for changed in ({"usage": {"sent_bytes": 8}}, {"config": {"rate": 2}}, {"content": "other"}):
        assert Repeat(known=known, again=dataclasses.replace(again, **changed), others=others).differences


@pytest.mark.parametrize(("now", "is_same"), [(0.0715, True), (0.0600, True), (0.0800, False), (None, False)])
def test_calibration_errors_are_compared_by_their_absolute_difference(now, is_same):
    # a sample beside the edge of a bin moves the sum by up to two over the number of samples
    known = RunRow(protocol="glasu", seed=0, metrics={"validation/calibration_error": 0.0694, "loss": 0.0694})
    again = dataclasses.replace(known, metrics={"validation/calibration_error": now, "loss": 0.0694})
    repeat = Repeat(known=known, again=again)
    assert (not repeat.differences) == is_same
    assert "1 of 2 numbers equal, tolerance 0.01 (calibration errors: absolute): " in str(repeat)
    other = dataclasses.replace(known, metrics={"validation/calibration_error": 0.0694, "loss": 0.0715})
    assert Repeat(known=known, again=other).differences == ["metrics.loss: 0.0694 in the record, 0.0715 now"]

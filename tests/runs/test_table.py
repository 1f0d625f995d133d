from __future__ import annotations

import dataclasses
import math
import multiprocessing

import pyarrow.parquet as parquet
import pytest

from fedactors.errors import BadInput
from fedactors.runs.metrics import Summary
from fedactors.runs.table import RunRow, read_facts, read_table, write_table
from scenarios.paper.study import put_rows


def row(name="a", seed=0, **more):
    return RunRow(protocol="vfl", study="table", name=name, seed=seed, data="bank", **more)


FULL = row(
    config={"rate": 0.1, "size": 8, "layers": [8, 16], "secure": False, "mode": "paper", "deadline": math.inf},
    metrics={"auc": 0.9, "epochs": 3},
    usage={"bytes": 10, "seconds": 1.5},
    curve={"round": [1, 2], "auc": [0.8, 0.9], "loss": [0.5, None]},
    extra={"privacy": {"bank": {"epsilon": None}}, "cores": {"bank": 2}},
    censored=("seconds_to_target",),
    versions={"python": "3.11.7"},
    command="fedactors run vfl",
    wall_seconds=2.0,
)


def test_what_is_written_is_read_again(tmp_path):
    failed = row("b", status="failed", failure="the loss is infinite", config={"rate": 10.0})
    write_table(tmp_path / "t.parquet", [FULL, failed], {"choice": {"settings_tried": 2}})
    assert read_table(tmp_path / "t.parquet") == [FULL, failed]
    assert read_facts(tmp_path / "t.parquet") == {"choice": {"settings_tried": 2}}


def test_columns_have_the_types_of_their_values(tmp_path):
    write_table(tmp_path / "t.parquet", [FULL, row("b", config={"rate": 1, "size": 9, "mode": "joint"})])
    schema = parquet.read_schema(tmp_path / "t.parquet")
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    assert kinds["config.rate"] == "double"
    assert kinds["config.size"] == "int64"
    assert kinds["config.secure"] == "bool"
    assert kinds["config.layers"] == "list<element: int64>"
    assert kinds["curve.loss"] == "list<element: double>"
    assert kinds["extra.privacy"] == "string"
    assert schema.field("extra.privacy").metadata[b"encoding"] == b"json"
    # the one column of the machine's clock is the last
    assert schema.names[-1] == "wall_seconds"


def test_a_column_of_numbers_and_words_keeps_both(tmp_path):
    rows = [row("a", config={"rate": "auto"}), row("b", config={"rate": 0.1}), row("c")]
    write_table(tmp_path / "t.parquet", rows)
    assert [found.config for found in read_table(tmp_path / "t.parquet")] == [{"rate": "auto"}, {"rate": 0.1}, {}]


def test_a_target_that_was_not_reached_is_censored():
    summary = Summary(
        run="x",
        protocol="vfl",
        runtime="simulated",
        seed=3,
        rounds=2,
        metrics={"auc": 0.5, "seconds_to_target": "not reached", "rounds_to_0.1": math.inf, "f1": math.nan},
        bytes=1,
        messages=2,
        seconds=3.0,
        wall_seconds=4.0,
        cpu_utilisation=0.5,
        idle_seconds=0.0,
    )
    made = RunRow.of(summary, name="x")
    assert made.censored == ("rounds_to_0.1", "seconds_to_target")
    assert made.metrics == {"auc": 0.5}
    assert made.summary.metrics == {"auc": 0.5, "rounds_to_0.1": None, "seconds_to_target": None}
    assert dataclasses.replace(made.summary, metrics=summary.metrics) == summary


def test_rows_replace_those_of_their_name_and_keep_the_order(tmp_path):
    path = tmp_path / "t.parquet"
    put_rows(path, [row("b"), row("b", 1)], order=["a", "b", "c"])
    put_rows(path, [row("c")], order=["a", "b", "c"])
    put_rows(path, [dataclasses.replace(row("z"), study="other")])
    put_rows(path, [row("a")], order=["a", "b", "c"])
    put_rows(path, [row("b", 5)], order=["a", "b", "c"])
    assert [(found.name, found.seed) for found in read_table(path)] == [("a", 0), ("b", 5), ("c", 0), ("z", 0)]


def put_many(path, first):
    for index in range(first, first + 5):
        put_rows(path, [row(f"row-{index}")])


@pytest.mark.slow
def test_two_processes_lose_no_row(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=put_many, args=(tmp_path / "t.parquet", 5 * i)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert {found.name for found in read_table(tmp_path / "t.parquet")} == {f"row-{i}" for i in range(10)}


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(BadInput, match="no such table"):
        read_table(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(BadInput, match="not a Parquet file"):
        read_table(tmp_path / "text.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(BadInput, match="not a table of runs of schema 1"):
        read_table(tmp_path / "other.parquet")

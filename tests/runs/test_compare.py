from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest

from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.messages.ledger import Usage
from fedactors.report.charts import plot_comparison
from fedactors.runs.compare import (
    FEWEST,
    NO_INTERVAL,
    compare,
    describe_values,
    difference,
    group_runs,
    load_runs,
    make_curve,
    shared_metrics,
    table_rows,
)
from fedactors.runs.folder import SUMMARY, RunFolder
from fedactors.runs.metrics import Summary
from fedactors.runs.recorder import FolderRecorder
from fedactors.runs.table import RunRow
from scenarios.paper.pairs import difference_row, median_spent, ratio_row


def make_run(out: Path, auc: float, seed: int, **config: object) -> Path:
    resolved = {
        "scenario": "vfl",
        "protocol": "vfl",
        "runtime": "simulated",
        "seed": seed,
        "data": "bank",
        "headline": {"name": "auc", "mode": "max"},
        "config": {"batch_size": 8, **config},
    }
    folder = RunFolder.create(out, "vfl", seed, resolved)
    recorder = FolderRecorder(folder)
    for index in (1, 2):
        recorder.usage = lambda at=index: Usage(
            messages=at,
            bytes=10 * at,
            header_bytes=0,
            seconds=2.0 * at,
            wall_seconds=1.0,
            cpu_utilisation=0.5,
            idle_seconds=0.0,
            price=0.0,
        )
        recorder.record_round(index, {"auc": auc * index / 2, "loss": 1.0})
    recorder.close()
    summary = Summary(
        run=folder.path.name,
        protocol="vfl",
        runtime="simulated",
        seed=seed,
        rounds=2,
        metrics={"auc": auc},
        bytes=20,
        messages=2,
        seconds=4.0,
        wall_seconds=1.0,
        cpu_utilisation=0.5,
        idle_seconds=0.0,
    )
    folder.write_json(SUMMARY, summary.as_dict())
    folder.finish("finished")
    return folder.path


def test_runs_group_over_seeds_and_labels_tell_what_differs(tmp_path):
    paths = [make_run(tmp_path, 0.5, seed, batch_size=size) for size in (8, 16) for seed in (1, 0)]
    groups = group_runs(load_runs(paths))
    assert [(g.label, [r.summary.seed for r in g.runs]) for g in groups] == [
        ("vfl batch_size=8", [0, 1]),
        ("vfl batch_size=16", [0, 1]),
    ]


def test_mean_deviation_and_interval_by_hand():
    # mean 2, s = 1, n = 3, t(2, 97.5 %) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138
    got = describe_values([1.0, 2.0, 3.0])
    assert (got["n"], got["mean"], got["std"]) == (3, 2.0, 1.0)
    assert got["ci95"] == pytest.approx([2 - 2.4841377, 2 + 2.4841377])
    assert describe_values([1.5]) == {"n": 1, "mean": 1.5, "std": None, "ci95": None}


def test_paired_difference_by_hand():
    # differences 1, 2, 3 although the values themselves scatter widely; seed 7 has no partner
    got = difference({0: 11.0, 1: 102.0, 2: 53.0}, {2: 50.0, 0: 10.0, 1: 100.0, 7: 900.0})
    assert (got["n"], got["difference"]) == (3, 2.0)
    assert got["ci95"] == pytest.approx([2 - 2.4841377, 2 + 2.4841377])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({0: 1.0}, {0: 0.5}),
        ({0: 4.0, 1: 6.0}, {0: 1.0, 1: 3.0}),
        ({0: 4.0, 1: 6.0, 2: 5.0}, {1: 1.0, 2: 2.0, 3: 3.0}),
        ({0: 4.0, 1: 6.0, 2: 5.0}, {3: 1.0, 4: 2.0, 5: 3.0}),
    ],
)
def test_of_fewer_than_three_pairs_nothing_is_claimed(ours, theirs):
    got = difference(ours, theirs)
    assert got["n"] == len(ours.keys() & theirs.keys()) < FEWEST
    assert (got["difference"], got["ci95"]) == (None, None)


def test_comparison_is_json_with_differences_from_the_first_group(tmp_path):
    paths = [
        make_run(tmp_path, auc, seed, batch_size=b)
        for b, aucs in [(8, (0.5, 0.7, 0.6)), (16, (0.6, 0.8, 0.7))]
        for seed, auc in enumerate(aucs)
    ]
    made = json.loads(json.dumps(compare(load_runs(paths))))
    assert made["groups"][0]["metrics"]["auc"]["mean"] == pytest.approx(0.6)
    (gap,) = made["differences"]
    assert gap["metrics"]["auc"]["difference"] == pytest.approx(0.1)
    assert gap["metrics"]["auc"]["ci95"] == pytest.approx([0.1, 0.1])
    assert made["notes"] == []
    (header, rows), (_, gaps) = table_rows(made)
    assert header[:3] == ["run", "n", "auc"]
    assert rows[0][:3] == ["vfl batch_size=8", "3", "0.6 ± 0.1"]
    assert gaps[0][0] == "vfl batch_size=16 - vfl batch_size=8"


def test_two_seeds_a_side_state_no_difference_and_say_why_on_screen_and_in_json(tmp_path, capsys):
    paths = [str(make_run(tmp_path, 0.5 + 0.1 * seed, seed, batch_size=b)) for b in (8, 16) for seed in (0, 1)]
    assert main(["compare", *paths]) == 0
    shown = capsys.readouterr().out
    (of_groups,) = [line.split() for line in shown.splitlines() if line.startswith("auc ")]
    assert of_groups == ["auc", *["0.55", "±", "0.07071"] * 2]
    assert " ".join(NO_INTERVAL.split()) in " ".join(shown.split())
    assert main(["compare", *paths, "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["notes"] == [NO_INTERVAL]
    assert {gap["difference"] for entry in made["differences"] for gap in entry["metrics"].values()} == {None}


def test_unfinished_and_repeated_runs_are_bad_input(tmp_path):
    path = make_run(tmp_path, 0.5, 0)
    with pytest.raises(BadInput, match="given twice"):
        load_runs([path, path])
    with pytest.raises(BadInput, match=r"has no summary \(status: running\)"):
        load_runs([RunFolder.create(tmp_path, "x", 0, {}).path])


def test_same_seed_twice_is_not_averaged(tmp_path):
    groups = group_runs(load_runs([make_run(tmp_path, 0.5, 0), make_run(tmp_path, 0.6, 0)]))
    assert [group.label for group in groups] == ["vfl", "vfl (2)"]


def test_curves_are_means_over_seeds_on_each_axis(tmp_path):
    (group,) = group_runs(load_runs([make_run(tmp_path, auc, seed) for seed, auc in enumerate((0.4, 0.6))]))
    curve = make_curve(group, "auc", "seconds")
    assert curve.x == (2.0, 4.0)
    assert curve.mean == pytest.approx((0.25, 0.5))
    assert curve.std == pytest.approx((0.1 / 2**0.5, 0.2 / 2**0.5))
    assert make_curve(group, "auc").x == (1.0, 2.0)
    assert make_curve(group, "nothing") is None
    assert shared_metrics([group]) == ["auc", "loss"]


@pytest.mark.slow
def test_plot_is_a_png(tmp_path):
    runs = load_runs([make_run(tmp_path, 0.5, 0), make_run(tmp_path, 0.6, 0, batch_size=16)])
    path = plot_comparison(runs, tmp_path / "plot.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(BadInput, match=r"ending in \.png"):
        plot_comparison(runs, tmp_path / "plot.doc")
    with pytest.raises(BadInput, match="'f1' was recorded in no round"):
        plot_comparison(runs, tmp_path / "plot.png", metric="f1")


def test_names_of_columns_go_on_below_where_a_table_is_too_wide_for_the_screen(monkeypatch):
    from fedactors.cli.terminal import table_lines

    header = ["metric", "pubsub-vfl runtime=ray data=a", "pubsub-vfl runtime=simulated data=b"]
    monkeypatch.setenv("COLUMNS", "120")
    assert len(table_lines(header, [["auc", "0.5", "0.6"]])) == 3
    monkeypatch.setenv("COLUMNS", "50")
    lines = table_lines(header, [["auc", "0.5", "0.6"]])
    assert max(map(len, lines)) <= 50
    heads = [line for line in lines[:-1] if not set(line) <= {"-", " "}]
    assert sorted(" ".join(heads).split()) == sorted(" ".join(header).split()), "words are whole, and all there"


def rows_taking(name, *values):
    return [
        RunRow(protocol="x", name=name, seed=seed, metrics={} if value is None else {"seconds": value})
        for seed, value in enumerate(values)
    ]


def test_a_row_of_paired_ratios_counts_what_was_not_reached():
    ours, theirs = rows_taking("ours", 1.0, 6.0, None), rows_taking("theirs", 2.0, 4.0, 8.0)
    row = ratio_row(ours, theirs, lambda row: row.metrics.get("seconds"), scale=10.0)
    # ratios 0.5, 1.5 and, as ours was not reached, infinity
    assert (row.metrics["ratio"], row.metrics["low"], row.metrics["ours"], row.metrics["theirs"]) == (1.5, 0.5, 60, 40)
    assert (row.metrics["n"], row.metrics["ours_censored"], row.censored) == (3, 1, ("high",))
    assert math.isinf(median_spent(rows_taking("x", None, None, 1.0), lambda row: row.metrics.get("seconds")))


def test_a_row_of_paired_differences_has_the_t_interval():
    row = difference_row(rows_taking("ours", 1.0, 2.0, 6.0), rows_taking("theirs", 0.0, 0.0, 0.0), "seconds")
    half = 4.302652729749464 * statistics.stdev([1, 2, 6]) / math.sqrt(3)
    assert (row.metrics["difference"], row.metrics["n"]) == (3, 3)
    assert (row.metrics["low"], row.metrics["high"]) == pytest.approx((3 - half, 3 + half))
    assert difference_row(rows_taking("ours", 1.0, 2.0), rows_taking("theirs", 0.0, 0.0), "seconds") is None


def test_a_relative_difference_is_a_share_of_each_seeds_own_value():
    sides = rows_taking("ours", 1.1, 2.4, 2.0), rows_taking("theirs", 1.0, 2.0, 4.0)
    row = difference_row(*sides, "seconds", scale=100.0, relative=True)
    assert row.metrics["difference"] == pytest.approx((10 + 20 - 50) / 3)
    assert difference_row(*sides, "seconds", scale=100.0).metrics["difference"] == pytest.approx((10 + 40 - 200) / 3)

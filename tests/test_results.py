"""Tables in documents, made from tables of runs."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.runs.table import RunRow, write_table
from scenarios.results import _cell, main, markdown_table, pooled, record_text, render_document

PAGES = Path(__file__).parents[1] / "docs/results"


def row(name, seed=0, **metrics):
    usage = {"bytes": 20}
    return RunRow(
        protocol="vfl", study="best", name=name, seed=seed, metrics=metrics, usage=usage, censored=("hours",),
        command="python scenarios/best.py --row best/a --seeds 0", code="12",
    )  # fmt: skip


@pytest.fixture
def document(tmp_path):
    write_table(tmp_path / "vfl.parquet", [row("b-sync", auc=0.8), row("a-pubsub", auc=0.91)])
    document = tmp_path / "vfl.md"
    document.write_text("# R\n<!-- results: rows=vfl/best columns=auc,bytes -->\nold\n<!-- end -->\ntext\n")
    return document


def test_tables_are_generated_and_checked(document, capsys):
    assert main([str(document.parent), "--check"]) == 1
    assert "not current" in capsys.readouterr().out
    assert main([str(document.parent)]) == 0
    text = document.read_text()
    assert text == (
        "# R\n<!-- results: rows=vfl/best columns=auc,bytes -->\n"
        "|  | auc | bytes | seeds |\n| --- | --- | --- | --- |\n"
        "| b-sync | 0.8000 | 20 | 1 |\n| a-pubsub | 0.9100 | 20 | 1 |\n<!-- end -->\ntext\n"
    )
    assert main([str(document.parent), "--check"]) == 0
    document.write_text(text.replace("0.9100", "0.9900"))
    assert main([str(document.parent), "--check"]) == 1


def test_table_of_several_seeds_and_its_errors(tmp_path):
    failed = RunRow(protocol="vfl", study="best", name="c", seed=0, status="failed")
    write_table(tmp_path / "vfl.parquet", [row("a", 0, auc=0.4), row("a", 1, auc=0.6), row("b", auc=0.5), failed])
    # s = 0.2 / sqrt(2) over two seeds
    lines = markdown_table(tmp_path, "vfl/best", ["auc", "hours"]).splitlines()
    assert lines[2:] == ["| a | 0.5000 ± 0.1414 | not reached | 2 |", "| b | 0.5000 | not reached | 1 |"]
    assert "earlier version" not in "".join(lines)
    assert "| b | 0.5000 ± 0 | 1 |" in markdown_table(tmp_path, "vfl/best", ["auc"], always=True)
    with pytest.raises(BadInput, match="best/a: has no 'f1'"):
        markdown_table(tmp_path, "vfl/best", ["f1"])
    with pytest.raises(BadInput, match="has no rows of 'none'"):
        render_document("<!-- results: rows=vfl/none columns=auc -->\n<!-- end -->", tmp_path)


def test_a_comparison_counts_its_pairs_as_seeds(tmp_path):
    write_table(tmp_path / "vfl.parquet", [row("a over b", ratio=0.4, n=10)])
    lines = markdown_table(tmp_path, "vfl/best", ["ratio", "n"]).splitlines()
    assert lines == ["|  | ratio | seeds |", "| --- | --- | --- |", "| a over b | 0.4000 | 10 |"]


def test_a_table_says_which_of_its_rows_no_command_makes_again(tmp_path):
    old = dataclasses.replace(row("b", auc=0.5), command="", code="")
    write_table(tmp_path / "vfl.parquet", [row("a", auc=0.4), old])
    assert "\n\n*b: made by an earlier version" in markdown_table(tmp_path, "vfl/best", ["auc"])
    write_table(tmp_path / "old.parquet", [old])
    document = "<!-- results: rows=old/best columns=auc -->\n<!-- end -->"
    assert "\n\n*All of it: made by" in render_document(document, tmp_path)


def test_the_record_says_why_a_row_is_never_drawn(tmp_path):
    whole = dataclasses.replace(row("a"), config={"x": 1}, data="d", content="3")
    others = [
        dataclasses.replace(whole, name="b", study="first", command=""),
        dataclasses.replace(whole, name="c", study="second", content=""),
        dataclasses.replace(whole, name="d", study="third", status="failed"),
        dataclasses.replace(whole, name="e", study="third", runtime="ray"),
    ]
    write_table(tmp_path / "vfl.parquet", [whole, *others])
    text = record_text(tmp_path, ["vfl.parquet"])
    assert text.startswith("1 of the 5 rows")
    assert "earlier version:* first (1)." in text
    assert "without the digest of the data that it compares:* second (1)." in text
    assert "Failed, measured by a clock, or of no single run:* third (2)." in text


def test_attacks_over_several_seeds_are_pooled():
    texts = ["0.600 (0.500 to 0.700; chance 0.500)", "0.800 (0.700 to 0.900; chance 0.400)"]
    mean, low, high, chance = pooled(texts)
    half = 0.1 / math.sqrt(2)
    assert (mean, low, high, chance) == pytest.approx((0.7, 0.7 - half, 0.7 + half, 0.45))
    rows = [
        RunRow(protocol="p", study="s", name="n", seed=seed, metrics={"a": text}) for seed, text in enumerate(texts)
    ]
    assert _cell(rows, "a", False) == "0.700 (0.629 to 0.771; seeds 0.600 to 0.800; chance 0.450)"
    assert _cell(rows[:1], "a", False) == texts[0]
    with pytest.raises(BadInput, match="no figures of an attack"):
        pooled(["none"])


def test_what_noise_costs_is_the_paired_difference_with_its_interval(tmp_path):
    def row(setting, seed, points, epsilon=None):
        return {"data": "digits", "setting": setting, "seed": seed, "points": points, "epsilon": epsilon}

    rows = [row("100 clients", 0, 90.0), row("100 clients", 1, 80.0)]
    rows += [row("fixed clip", 0, 89.0, 2.0), row("fixed clip", 1, 77.0, 2.5), row("rows", 0, 50.0, 1.0)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "private_averaging.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = render_document("<!-- private averaging -->\nold\n<!-- end -->\n", tmp_path).splitlines()
    assert made[3:-1] == [
        "| digits | 100 clients | none | 85.0 |  | 2 |",
        # 12.7 is Student's t of one degree of freedom; the differences 1 and 3 have a standard error of 1
        "| digits | fixed clip | 2.50 | 83.0 | 2.0 (-10.7 to 14.7) | 2 |",
        "| digits | rows | 1.00 | 50.0 |  | 1 |",
    ]


def test_a_table_of_defaults_has_a_line_a_data_set_with_the_means_of_its_seeds(tmp_path):
    rows = [("p", "one", 1, 2.0), ("p", "one", 0, 4.0), ("q", "one", 0, 9.0), ("p", "two", 0, 5.0)]
    written = [
        json.dumps({"protocol": protocol, "data": data, "seed": seed, "scores": {"defaults": score, "linear": 1.0}})
        for protocol, data, seed, score in rows
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "defaults.jsonl").write_text("\n".join(written))
    text = "<!-- defaults: p defaults,linear -->\nold\n<!-- end -->\n"
    made = render_document(text, tmp_path).splitlines()
    assert made[1:-1] == [
        "| data | defaults | linear | seeds |",
        "| --- | --- | --- | --- |",
        "| one | 3.0 (2.0 to 4.0) | 1.0 | 0, 1 |",
        "| two | 5.0 (5.0 to 5.0) | 1.0 | 0 |",
    ]
    (tmp_path / "data" / "defaults.jsonl").write_text(
        "\n".join(written).replace('"linear": 1.0', '"linear": Infinity', 1)
    )
    made = render_document(text, tmp_path).splitlines()
    assert made[3] == "| one | 3.0 (2.0 to 4.0) | 1.0 (of 1) | 0, 1 |"
    with pytest.raises(BadInput, match="has no rows of 'other'"):
        render_document(text.replace(" p ", " other "), tmp_path)


def test_a_table_of_speed_has_medians_and_ranges(tmp_path):
    row = {"what": "one", "asked": "2", "before": [3.0, 9.0, 5.0], "after": [1.5], "command": "c"}
    rows = [row, {**row, "after": []}]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "speed.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = render_document("<!-- speed -->\nold\n<!-- end -->\n", tmp_path).splitlines()
    assert made[3:-1] == ["| one | 2 | 5 (3 to 9) | 1.5 | `c` |", "| one | 2 | 5 (3 to 9) | as before | `c` |"]


def test_a_table_of_reading_has_a_line_a_version_and_file(tmp_path):
    row = {"version": "new", "file": "csv", "columns": 0.658, "whole": 2.312, "peak_mib": 106.9, "numbers_mib": 72.1}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "reading.jsonl").write_text(json.dumps(row))
    made = render_document("<!-- reading -->\nold\n<!-- end -->\n", tmp_path).splitlines()
    assert made[3:-1] == ["| new | csv | 0.66 | 2.31 | 107 | 72 |"]


def test_tables_of_a_fleet_say_what_a_message_costs_and_a_round_takes(tmp_path):
    message = {"part": "message", "bytes": 1_000_000, "out_ms": 2.0, "in_ms": 10.0, "add_ms": 1.0}
    round_ = {"part": "round", "sites": 1000, "bytes": 1_000_000, "aggregators": 0, "round_seconds": 1046.31}
    round_ |= {"out_gb": 1.0, "in_gb": 1.0, "link_share": 0.346, "core_share": 0.084}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "fleet.jsonl").write_text("\n".join(map(json.dumps, (message, round_))))
    made = render_document("<!-- fleet -->\nold\n<!-- end -->\n", tmp_path).splitlines()
    # a site takes 8 ms of the link out, 10 of the core in, 1 to add: 30 s / 19 ms; at 10 Gbit/s 2, 10 and 1
    assert made[3] == "| 1,000,000 | 2 | 10 | 1 | 1,579 | 2,308 |"
    assert made[7:-1] == ["| 1,000,000 | 1,000 | 0 | 1,046.3 | 1 | 35 % | 8 % |"]


def test_the_page_of_many_clients_on_ray_has_the_committed_rows():
    rows = [json.loads(line) for line in (PAGES / "data/clients_on_ray.jsonl").read_text().splitlines()]
    page = (PAGES / "frame.md").read_text()
    for side in {row["side"] for row in rows}:
        one = [row for row in rows if row["side"] == side]
        memory, round_, whole = (
            ", ".join(f"{row[key] + 1e-9:{how}}" for row in one)  # halves are rounded up
            for key, how in (("all_mb", ",.0f"), ("round_cpu_seconds", ".2f"), ("all_cpu_seconds", ".1f"))
        )
        (line,) = [line for line in page.splitlines() if f"| {one[0]['processes']} | {memory} |" in line]
        assert line.endswith(f"| {round_} | {whole} |")

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.records.compare import Group, load_runs
from fedactors.records.curves import Curve, shared_metrics
from fedactors.records.ledger_log import LEDGER
from fedactors.records.metrics import Summary
from fedactors.records.recorder import FolderRecorder
from fedactors.records.report import MAX_SPANS, render_report
from fedactors.records.run_folder import SUMMARY, RunFolder
from fedactors.records.svg import line_chart, natural, talk_graph, ticks
from fedactors.runtime.base import Usage

ROWS = [
    (0.5, "bank", "shop/worker-0", "client-client", "Embedding", 2_000_000),
    (0.6, "shop/worker-0", "bank", "client-client", "Gradient", 1500),
    (0.7, "driver", "bank", "driver", "Start", 10),
]


def make_run(out: Path, seed: int = 0, num_spans: int = 2, **config: object) -> Path:
    resolved = {"scenario": "vfl", "protocol": "vfl", "runtime": "simulated", "seed": seed, "config": config}
    folder = RunFolder.create(out, "vfl", seed, resolved)
    recorder = FolderRecorder(folder)
    for index in range(num_spans):
        recorder.record_span("bank", "compute", "step", float(index), index + 0.75)
        recorder.record_span("bank", "wait", "gradient", index + 0.75, float(index + 1))
    recorder.ledger_sink(ROWS)
    recorder.privacy([{"party": "bank", "message": "Embedding", "clip": 1.0, "epsilon": 0.5}])
    for index in (1, 2, 3):
        recorder.usage = lambda at=index: Usage(
            messages=at,
            bytes=1000 * at,
            header_bytes=0,
            seconds=float(at),
            wall_seconds=1.0,
            cpu_utilisation=0.5,
            waiting_seconds=0.0,
            price=0.0,
        )
        recorder.record_round(index, {"auc": 0.1 * index + 0.01 * seed, "members": 3, "test_tail": 1.0 / index})
    recorder.close()
    summary = Summary(
        run=folder.path.name,
        protocol="vfl",
        runtime="simulated",
        seed=seed,
        rounds=3,
        metrics={"auc": 0.3},
        bytes=3000,
        messages=2,
        seconds=3.0,
        wall_seconds=1.0,
        cpu_utilisation=0.5,
        waiting_seconds=0.5,
    )
    folder.write_json(SUMMARY, summary.as_dict())
    folder.finish("finished")
    return folder.path


class Checker(HTMLParser):
    VOID = frozenset({"meta", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_is_well_formed_self_contained_and_complete(tmp_path):
    page = render_report(load_runs([make_run(tmp_path, batch_size=8)]))
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert not re.search(r"(src|href)=\"(?!data:)|url\((?!#)|https?://|@import", page)
    for title in ("Results", "Curves", "Timeline", "Utilisation", "Who talks to whom", "Privacy ledger", "Environment"):
        assert f"<h2>{title}</h2>" in page
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page
    assert checker.seen.count("svg") == 6  # auc against round, seconds, bytes; another metric; timeline; graph
    assert "bank to shop/worker-0: 2.0 MB" in page
    assert "<td>50.0</td>" in page  # the bank computes for 1.5 s of 3
    assert "<td>Start</td>" not in page  # the driver's control traffic


def test_seeds_share_a_curve_with_a_band(tmp_path):
    page = render_report(load_runs([make_run(tmp_path, seed) for seed in (0, 1)]))
    assert page.count('class="curve"') == 4
    assert "<polygon" in page
    assert page.count("<details>") == 2


def test_what_comes_from_files_is_escaped(tmp_path):
    page = render_report(load_runs([make_run(tmp_path, name="<script>alert(1)</script>")]))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_damaged_ledger_is_named(tmp_path):
    run = make_run(tmp_path)
    (run / LEDGER).write_bytes((run / LEDGER).read_bytes()[:50])
    with pytest.raises(BadInput, match="the ledger is damaged"):
        render_report(load_runs([run]))


def test_what_is_the_same_in_every_round_is_no_chart(tmp_path):
    page = render_report(load_runs([make_run(tmp_path)]))
    assert "The same in every round: members 3." in page
    assert "members against round" not in page


def test_a_metric_of_the_whole_run_is_drawn_by_its_rounds(tmp_path):
    run = load_runs([make_run(tmp_path)])[0]
    whole = dataclasses.replace(run, config={**run.config, "headline": {"name": "tail", "mode": "max"}})
    group = Group(label="x", runs=(whole,))
    assert shared_metrics([group])[0] == "test_tail"


def test_messages_are_listed_by_type_and_by_pair(tmp_path):
    page = render_report(load_runs([make_run(tmp_path)]))
    assert "<td>Embedding</td><td>bank</td><td>shop/worker-0</td><td>client-client</td>" in page
    assert "<details open><summary>by sender and receiver</summary>" in page


def test_one_actor_that_talks_with_all_stands_in_the_middle():
    star = {("server", name): 10 for name in "abc"} | {(name, "server"): 20 for name in "abc"}
    drawn = talk_graph(star)
    assert '<circle cx="320.0" cy="220.0"' in drawn
    assert drawn.count(">10 B</text>") == drawn.count(">20 B</text>") == 3
    assert '<circle cx="320.0" cy="220.0"' not in talk_graph({("a", "b"): 1, ("c", "d"): 1})


def test_actors_are_sorted_as_people_count():
    names = ["client-10", "client-2", "bank/worker-0", "client-0"]
    assert sorted(names, key=natural) == ["bank/worker-0", "client-0", "client-2", "client-10"]


def test_many_spans_are_limited_and_it_says_so(tmp_path):
    page = render_report(load_runs([make_run(tmp_path, num_spans=MAX_SPANS)]))
    assert f"The {MAX_SPANS} longest of {2 * MAX_SPANS} spans are drawn" in page
    assert page.count("<rect") == MAX_SPANS


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 0.0, None),
        (5.0, 5.0, None),
        (0.93, 0.951, None),
        (-3.0, 900.0, None),
    ],
)
def test_ticks_span_the_values(low, high, expected):
    made = ticks(low, high)
    assert made[0] <= low
    assert made[-1] >= high
    assert 2 <= len(made) <= 8
    assert expected is None or made == pytest.approx(expected)


def test_flat_and_single_point_curves_can_be_drawn():
    for x, y in (((1.0,), (0.5,)), ((1.0, 2.0), (0.0, 0.0))):
        chart = line_chart([Curve(label="a", x=x, mean=y, std=(0.0,) * len(x))], "round", "auc")
        assert "nan" not in chart
        assert chart.count("<circle") == len(x)


def test_graph_of_two_directions_and_of_many_actors():
    two = talk_graph({("a", "b"): 10, ("b", "a"): 20})
    assert two.count('class="edge"') == 2
    many = talk_graph({(f"c{i}", "server"): i for i in range(40)})
    assert many.count('class="edge"') == 40
    assert many.count("<circle") == 41

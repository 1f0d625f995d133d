from __future__ import annotations

import csv
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.messages.ledger import Usage
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.report.charts import (
    MAX_MATRIX,
    NUM_MOMENTS,
    Timeline,
    decades,
    draw_communication,
    kind_index,
    line_chart,
    metric_title,
    natural,
    talk_circle,
    ticks,
    write_figures,
)
from fedactors.report.page import render_report
from fedactors.runs.compare import Curve, Group, LoadedRun, compare, load_runs, shared_metrics
from fedactors.runs.folder import ROUND_METRICS, SUMMARY, RunFolder
from fedactors.runs.metrics import Summary
from fedactors.runs.recorder import LEDGER, FolderRecorder, read_ledger

ROWS = [
    (0.5, "bank", "shop/worker-0", "client-client", "Embedding", 2_000_000),
    (0.6, "shop/worker-0", "bank", "client-client", "Gradient", 1500),
    (0.7, "driver", "bank", "driver", "Start", 10),
]
PRIVACY_LINE = PrivacyRecord(
    party="bank",
    message_type="Embedding",
    mechanism="gaussian",
    clip_norm=1.0,
    noise_scale=2.0,
    touched=1,
    sensitivity=2.0,
    rigorous_mu=1.0,
    delta=1e-5,
)


def make_run(
    out: Path,
    seed: int = 0,
    num_spans: int = 2,
    once: dict[str, float] | None = None,
    notes: tuple[str, ...] = (),
    **config: object,
) -> Path:
    resolved = {"scenario": "vfl", "protocol": "vfl", "runtime": "simulated", "seed": seed, "config": config}
    folder = RunFolder.create(out, "vfl", seed, resolved)
    recorder = FolderRecorder(folder)
    for index in range(num_spans):
        recorder.record_span("bank", "compute", "step", float(index), index + 0.75)
        recorder.record_span("bank", "wait", "gradient", index + 0.75, float(index + 1))
    recorder.ledger_sink(ROWS)
    recorder.privacy([PRIVACY_LINE])
    for index in (1, 2, 3):
        recorder.usage = lambda at=index: Usage(
            messages=at,
            bytes=1000 * at,
            header_bytes=0,
            seconds=float(at),
            wall_seconds=1.0,
            cpu_utilisation=0.5,
            idle_seconds=0.0,
            price=0.0,
        )
        metrics = {"auc": 0.1 * index + 0.01 * seed, "members": 3, "validation/tail": 1.0 / index}
        recorder.record_round(index, metrics | (once or {} if index == 3 else {}))
    recorder.close()
    summary = Summary(
        run=folder.path.name,
        protocol="vfl",
        runtime="simulated",
        seed=seed,
        rounds=3,
        metrics={"auc": 0.3},
        bytes=2_001_500,
        messages=2,
        seconds=3.0,
        wall_seconds=1.0,
        cpu_utilisation=0.5,
        idle_seconds=0.5,
        extra={"notes": list(notes)},
    )
    folder.write_json(SUMMARY, summary.as_dict())
    folder.finish("finished")
    return folder.path


class Checker(HTMLParser):
    VOID = frozenset({"meta", "link", "br", "input"})

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
    assert all(f"<strong>vfl, seed {seed}</strong>" in page for seed in (0, 1))


def test_what_comes_from_files_is_escaped(tmp_path):
    page = render_report(load_runs([make_run(tmp_path, name="<script>alert(1)</script>")]))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_damaged_ledger_is_named(tmp_path):
    run = make_run(tmp_path)
    (run / LEDGER).write_bytes((run / LEDGER).read_bytes()[:50])
    with pytest.raises(BadInput, match=r"ledger\.parquet is damaged"):
        render_report(load_runs([run]))
    with pytest.raises(BadInput, match="the ledger is damaged"):
        read_ledger(RunFolder.open(run))


def test_a_number_that_was_changed_afterwards_is_not_shown(tmp_path):
    run = make_run(tmp_path)
    summary = run / SUMMARY
    summary.write_text(summary.read_text().replace("0.3", "0.9"))
    with pytest.raises(BadInput, match=r"summary\.json is damaged \(it differs from manifest\.json\)"):
        load_runs([run])


def test_what_is_the_same_in_every_round_is_no_chart(tmp_path):
    page = render_report(load_runs([make_run(tmp_path)]))
    assert "The same in every round: members 3." in page
    assert "members against round" not in page


def test_a_metric_of_the_whole_run_is_drawn_by_its_rounds(tmp_path):
    run = load_runs([make_run(tmp_path)])[0]
    whole = dataclasses.replace(run, config={**run.config, "headline": {"name": "test/tail", "mode": "max"}})
    group = Group(label="x", runs=(whole,))
    assert shared_metrics([group])[0] == "validation/tail"


def test_messages_are_listed_by_type_and_by_pair(tmp_path):
    page = render_report(load_runs([make_run(tmp_path)]))
    assert "<td>Embedding</td><td>bank</td><td>shop/worker-0</td><td>client-client</td>" in page
    assert "<details open><summary>by sender and receiver</summary>" in page


def test_one_actor_that_talks_with_all_stands_in_the_middle():
    star = {("server", name): 10 for name in "abc"} | {(name, "server"): 20 for name in "abc"}
    drawn = talk_circle(star)
    assert '<circle cx="320.0" cy="220.0"' in drawn
    assert drawn.count(">10 B</text>") == drawn.count(">20 B</text>") == 3
    assert '<circle cx="320.0" cy="220.0"' not in talk_circle({("a", "b"): 1, ("c", "d"): 1})


def texts_of(page, letter=7.2):
    """Return what each text of a picture covers: left, top, right, bottom; by letters of 13 pixels."""
    found = {}
    for x, y, anchor, said in re.findall(r'<text x="([-0-9.]+)" y="([-0-9.]+)" text-anchor="(\w+)">([^<]+)<', page):
        long = letter * len(said)
        left = float(x) - {"start": 0, "middle": long / 2, "end": long}[anchor]
        found[f"{said} {x} {y}"] = (left, float(y) - 10, left + long, float(y) + 3)
    return found


FLOWS = {
    "pair": {(a, b): 366_700 for a in "ab" for b in "ab" if a != b},
    "triangle": {(a, b): 366_700 for a in "abc" for b in "abc" if a != b},
    "square": {(a, b): 366_700 for a in "abcd" for b in "abcd" if a != b},
    **{f"star of {n}": {e: 918_800 for i in range(n) for e in ((f"c{i}", "server"), ("server", f"c{i}"))}
       for n in range(3, 12)},
    **{f"ring of {n}": {(f"client-{i}", f"client-{(i + 1) % n}"): 366_700 for i in range(n)} for n in range(3, 13)},
    "three parties and a broker": {
        (a, b): 3_400 for a in ("active/worker-0", "passive-1/worker-0", "passive-2/worker-0", "broker")
        for b in ("active/worker-0", "broker") if a != b
    },
}  # fmt: skip


@pytest.mark.parametrize("edges", FLOWS.values(), ids=FLOWS)
def test_what_is_written_in_a_circle_lies_on_no_arrow_and_within_the_picture(edges):
    page = talk_circle(edges)
    width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', page).groups())
    boxes = texts_of(page)
    paths = [list(map(float, re.findall(r"[-0-9.]+", d))) for d in re.findall(r'class="edge" d="([^"]+)"', page)]
    assert len(paths) == len(edges)
    points = [
        ((1 - t) ** 2 * x1 + 2 * t * (1 - t) * cx + t * t * x2, (1 - t) ** 2 * y1 + 2 * t * (1 - t) * cy + t * t * y2)
        for x1, y1, cx, cy, x2, y2 in paths
        for t in (step / 100 for step in range(101))
    ]
    for said, (left, top, right, bottom) in boxes.items():
        assert 0 <= left < right <= width, said
        assert 0 <= top < bottom <= height, said
        assert not [p for p in points if left < p[0] < right and top < p[1] < bottom], said
        others = [box for name, box in boxes.items() if name != said]
        assert not [o for o in others if left < o[2] and o[0] < right and top < o[3] and o[1] < bottom], said


def test_every_arrow_between_few_has_its_bytes_beside_it():
    for name in ("pair", "triangle", "star of 3", "star of 6", "ring of 12", "three parties and a broker"):
        assert talk_circle(FLOWS[name]).count("kB</text>") == len(FLOWS[name]), name


def test_actors_are_sorted_as_people_count():
    names = ["client-10", "client-2", "bank/worker-0", "client-0"]
    assert sorted(names, key=natural) == ["bank/worker-0", "client-0", "client-2", "client-10"]


def span(actor, kind, start, end):
    return {"actor": actor, "kind": kind, "start": start, "end": end}


def test_a_timeline_loses_no_second():
    spans = [span("bank", "compute", 0.1 * i, 0.1 * i + 0.0371) for i in range(5000)]
    spans += [span("bank", "wait", 0.1 * i + 0.05, 0.1 * i + 0.1) for i in range(5000)]
    spans += [span("shop", "compute", 12.0, 480.0), span("shop", "send", 500.0, 500.0)]
    drawn = Timeline.of(spans)
    for actor, kind in (("bank", "compute"), ("bank", "wait"), ("shop", "compute")):
        expected = sum(s["end"] - s["start"] for s in spans if (s["actor"], s["kind"]) == (actor, kind))
        assert drawn.seconds(actor, kind) == pytest.approx(expected, rel=1e-9)
    assert Timeline.of([]) is None


def test_a_timeline_ends_with_its_run():
    spans = [span("oregon", "compute", 0.0, 4600.0), span("oregon", "compute", 3100.0, 3200.0)]
    drawn = Timeline.of(spans, 3000.0)
    assert (drawn.end, drawn.seconds("oregon", "compute")) == (3000.0, pytest.approx(3000.0))
    assert Timeline.of(spans[1:], 3000.0) is None


def test_the_driver_is_drawn_by_the_names_of_its_phases(tmp_path):
    spans = [span("driver", "phase", at, at + 1.0) | {"label": label} for at, label in enumerate(("training", "rest"))]
    drawn = Timeline.of([*spans, span("bank", "compute", 0.0, 1.0)])
    assert drawn.kinds == ["compute", "rest", "training"]
    assert painted(drawn.draw(), "driver", kind_index("training")) == pytest.approx(0.5, abs=1e-2)
    assert len({kind_index(kind) for kind in ("compute", "wait", "training", "alignment", "evaluation", "rest")}) == 6


def painted(page, actor, kind_colour):
    """Return the share of an actor's lane that is painted in a colour."""
    lane = next(part for part in page.split("<g ")[1:] if f"<title>{actor}:" in part)
    width, height = (float(re.findall(rf'{side}="([0-9.]+)"', lane)[0]) for side in ("width", "height"))
    path = re.search(rf'fill="var\(--c{kind_colour}\)" d="([^"]*)"', lane)
    boxes = re.findall(r"M([0-9.]+) (-?[0-9.]+)H([0-9.]+)V(-?[0-9.]+)", "" if path is None else path[1])
    return sum((float(x2) - float(x1)) * (float(y1) - float(y2)) for x1, y1, x2, y2 in boxes) / (width * height)


def test_many_short_computations_look_as_busy_as_they_are():
    short = [span("short", "compute", i * 1e-3, i * 1e-3 + 9e-4) for i in range(20_000)]
    idle = [span("idle", "compute", i * 1e-1, i * 1e-1 + 1e-3) for i in range(200)]
    page = Timeline.of([*short, *idle]).draw()
    assert painted(page, "short", 0) == pytest.approx(0.9, abs=0.05)
    # what is there at all is seen: a little more than it is, never nothing
    assert 0.005 < painted(page, "idle", 0) < 0.1
    assert page.count("<path") == 2
    assert len(page) < 200 * NUM_MOMENTS


def test_computing_at_a_time_fills_a_lane_and_no_more():
    page = Timeline.of([span("a", "compute", 0.0, 1.0)] * 3 + [span("a", "wait", 0.0, 1.0)]).draw()
    assert painted(page, "a", 0) == pytest.approx(1.0, abs=1e-3)
    assert painted(page, "a", 1) == 0


def test_rounds_have_whole_ticks_and_what_falls_by_decades_a_logarithmic_axis():
    assert ticks(1, 3, whole=True) == [1, 2, 3]
    assert ticks(1, 1, whole=True) == [0, 1, 2]
    assert decades(3e-7, 2.0) == pytest.approx([1e-7, 1e-5, 1e-3, 1e-1, 10.0])
    falling = Curve(label="a", x=(1.0, 2.0, 3.0), mean=(10.0, 1e-2, 1e-5), std=(0.0, 0.02, 0.0))
    chart = line_chart([falling], "round", "objective")
    assert "Objective (logarithmic)" in chart
    heights = [float(y) for y in re.findall(r'cy="([0-9.]+)"', chart)]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)
    assert "logarithmic" not in line_chart([Curve(label="a", x=(1.0, 2.0), mean=(0.9, 0.1), std=(0, 0))], "round", "l")


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


def test_no_tick_is_cut_off_and_none_lies_on_another():
    curve = Curve(label="a", x=(0.0125, 0.025), mean=(0.899676, 0.899699), std=(0.0, 0.0))
    chart = line_chart([curve], "seconds", "auc")
    written = re.findall(r'<text x="([0-9.]+)" y="([0-9.]+)" text-anchor="(end|middle)">([0-9.]+)<', chart)
    ends = [(float(x), float(y), text) for x, y, anchor, text in written if anchor == "end"]
    assert max(len(text) for *_, text in ends) == 8
    assert all(x - 7 * len(text) >= 0 for x, _, text in ends)
    lowest = max(y for _, y, _ in ends)
    assert all(float(y) - lowest >= 13 for _, y, anchor, _ in written if anchor == "middle")


@pytest.mark.parametrize(("metric", "ends"), [("validation/auc", True), ("validation/loss", False)])
def test_the_deviation_of_a_share_ends_with_it(metric, ends):
    curve = Curve(label="a", x=(1.0, 2.0), mean=(0.96, 0.99), std=(0.08, 0.05))
    written = re.findall(r'text-anchor="end">([0-9.]+)<', line_chart([curve], "round", metric))
    assert (max(map(float, written)) == 1.0) is ends


def test_what_runs_are_judged_by_comes_first():
    run = LoadedRun(
        summary=Summary(
            run="r", protocol="p", runtime="simulated", seed=0, rounds=1, metrics={"a": 1.0, "test/auc": 0.5}, bytes=1,
            messages=1, seconds=1.0, wall_seconds=1.0, cpu_utilisation=1.0, idle_seconds=0.0,
        ),
        config={"headline": {"name": "validation/auc", "mode": "max"}},
    )  # fmt: skip
    assert list(compare([run])["groups"][0]["metrics"])[:2] == ["test/auc", "a"]


def test_what_was_measured_once_is_no_chart(tmp_path):
    page = render_report(load_runs([make_run(tmp_path, once={"test/f1": 0.25})]))
    assert "Measured in one round only: test/f1." in page
    assert 'aria-label="test/f1 against' not in page
    assert 'aria-label="validation/tail against round"' in page


def test_usage_and_kinds_of_spans_are_explained_where_they_stand(tmp_path):
    page = render_report(load_runs([make_run(tmp_path)]))
    for name in ("seconds", "wall_seconds", "compute", "wait"):
        assert page.count(f"<strong>{name}</strong>:") == 1, name
    assert "<strong>evaluation</strong>" not in page


def test_flat_and_single_point_curves_can_be_drawn():
    for x, y in (((1.0,), (0.5,)), ((1.0, 2.0), (0.0, 0.0))):
        chart = line_chart([Curve(label="a", x=x, mean=y, std=(0.0,) * len(x))], "round", "auc")
        assert "nan" not in chart
        assert chart.count("<circle") == len(x)


def test_talk_of_two_of_many_and_of_very_many():
    two = draw_communication({("a", "b"): 10, ("b", "a"): 20})
    assert two.count('class="edge"') == 2
    many = draw_communication({(f"c{i}", f"c{(i * 7) % 40}"): i for i in range(40)})
    assert many.count('class="edge-cell"') == 40
    assert "c39 to c33: 39 B" in many
    by_party = draw_communication({(f"bank/worker-{i}", f"shop/worker-{i}"): 1000 for i in range(200)})
    assert "bank to shop: 200.0 kB" in by_party
    largest = draw_communication({(f"c{i}", f"c{i + 1}"): i + 1 for i in range(300)})
    assert f"to {301 - (MAX_MATRIX - 1)} others" in largest
    assert (
        len(set(re.findall(r'text-anchor="end">(?:<title>.*?</title>)?(\w[^<]*)<', largest)) - {"from ↓  to →"})
        == MAX_MATRIX
    )


def test_many_around_one_are_drawn_as_one():
    star = {("server", f"client-{i}"): 100 for i in range(200)} | {(f"client-{i}", "server"): 10 for i in range(200)}
    drawn = draw_communication({**star, ("auditor", "server"): 7})
    assert drawn.count('class="edge"') == 3
    for told in ("server to 200 × client: 20.0 kB", "200 × client to server: 2.0 kB", "auditor to server: 7 B"):
        assert told in drawn
    # not where somebody talks with another one as well
    assert "× client" not in draw_communication({**star, ("client-0", "client-1"): 1})


@pytest.mark.slow
def test_figures_are_written_with_the_numbers_in_them(tmp_path):
    pytest.importorskip("matplotlib")
    runs = load_runs([make_run(tmp_path, seed) for seed in (0, 1)])
    written = write_figures(runs, tmp_path / "figures")
    assert {path.name for path in written} >= {"auc.svg", "auc.pdf", "auc.csv", "validation-tail.csv"}
    assert (tmp_path / "figures" / "auc.pdf").read_bytes().startswith(b"%PDF")
    rows = list(csv.DictReader((tmp_path / "figures" / "auc.csv").read_text().splitlines()))
    third = next(row for row in rows if row["axis"] == "bytes" and float(row["x"]) == 3000)
    assert float(third["mean"]) == pytest.approx(0.305)
    assert float(third["std"]) == pytest.approx(0.01 / 2**0.5)
    with pytest.raises(BadInput, match=r"--figures: .* is a file"):
        write_figures(runs, tmp_path / "figures" / "auc.csv")


@pytest.mark.slow
def test_figures_show_decades_as_decades_and_whole_rounds(tmp_path):
    """The svg backend writes each text that it draws as a comment."""
    folder = RunFolder.open(make_run(tmp_path))
    lines = [json.loads(line) for line in (folder.path / ROUND_METRICS).read_text().splitlines()]
    text = "".join(json.dumps(line | {"gap": 10.0 ** (-2 * at)}) + "\n" for at, line in enumerate(lines))
    folder.write_bytes(ROUND_METRICS, text.encode())
    folder.write_manifest()
    figures = {path.name: path for path in write_figures(load_runs([folder.path]), tmp_path / "figures")}
    told = {name: re.findall("<!-- (.*?) -->", figures[f"{name}.svg"].read_text()) for name in ("gap", "auc")}
    assert {"1", "0.01", "0.0001"} <= set(told["gap"])
    assert not {"1.5", "2.5"} & set(told["gap"]), "a round and a half"
    assert not any("math" in text for text in told["gap"])
    assert "0.0001" not in told["auc"]


def test_axes_have_names_and_no_keys():
    titles = {"test/accuracy": "Test accuracy", "validation/pr_auc": "Validation PR AUC", "objective": "Objective",
              "north/validation/r2": "North validation R²", "": ""}  # fmt: skip
    assert {name: metric_title(name) for name in titles} == titles


def test_a_note_names_its_run_unless_all_say_so(tmp_path):
    runs = [make_run(tmp_path, seed, notes=("two rows were left out", f"AUC 0.{seed}")) for seed in (0, 1)]
    page = render_report(load_runs(runs))
    assert page.count("two rows were left out") == 1
    for said in ("<p>two rows were left out</p>", "<p>vfl, seed 0: AUC 0.0</p>", "<p>vfl, seed 1: AUC 0.1</p>"):
        assert said in page
    assert "<p>AUC 0.0</p>" in render_report(load_runs(runs[:1]))

from __future__ import annotations

import io

from fedactors.runs.progress import (
    LiveProgress,
    NoProgress,
    NotebookProgress,
    PlainProgress,
    RoundProgress,
    describe,
    format_bytes,
    format_seconds,
    in_notebook,
    open_progress,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_line_tells_round_metric_throughput_time_to_go_bytes_and_budget():
    state = RoundProgress(round=4, metrics={"loss": 1.0, "auc": 0.91234}, bytes=1_500_000, epsilon=2.5)
    assert (
        describe(state, 10, "auc", 2, 4.0) == "round 4/10  auc 0.9123  0.50 rounds/s  12 s to go  1.5 MB  epsilon 2.5"
    )
    assert " to go" not in describe(state, 10, "auc", 60, 4.0)  # less than half a second


def test_unknown_total_and_headline():
    assert describe(RoundProgress(round=1, metrics={"loss": 2}), None, "auc", 1, 0.0) == "round 1  loss 2  0 B"
    assert describe(RoundProgress(round=1, metrics={}), None, "auc", 1, 0.0) == "round 1  0 B"


def test_plain_writes_one_line_a_round():
    ticks = iter([60.0, 61.0])
    stream = io.StringIO()
    progress = PlainProgress(3, "auc", stream, now=lambda: next(ticks))
    progress.update(RoundProgress(round=1, metrics={"auc": 0.5}))
    progress.update(RoundProgress(round=2, metrics={"auc": 0.75}))
    assert stream.getvalue().splitlines() == [
        "round 1/3  auc 0.5000  0 B",
        "round 2/3  auc 0.7500  1.00 rounds/s  1 s to go  0 B",
    ], "what came before the first round is no part of the pace"


def test_rounds_that_are_told_together_count_as_many():
    """Epochs without a pause are told at the end of the last one: 10 of them in a second are no round a second."""
    ticks, stream = iter([60.0, 61.0, 63.0]), io.StringIO()
    progress = PlainProgress(60, "auc", stream, now=lambda: next(ticks))
    for finished in (10, 20, 40):
        progress.update(RoundProgress(round=finished, metrics={}))
    assert stream.getvalue().splitlines() == [
        "round 10/60  0 B",
        "round 20/60  10.00 rounds/s  4 s to go  0 B",
        "round 40/60  10.00 rounds/s  2 s to go  0 B",
    ]


def test_plain_writes_each_phase_once_and_only_before_the_first_round():
    stream = io.StringIO()
    progress = PlainProgress(3, "auc", stream, now=lambda: 0.0)
    for text in ("starting Ray", "loading: 1 of 2", "loading: 2 of 2", "alignment"):
        progress.phase(text)
    progress.update(RoundProgress(round=1, metrics={}))
    progress.phase("evaluation")
    assert stream.getvalue().splitlines() == ["starting Ray", "loading", "alignment", "round 1/3  0 B"]


def test_display_fits_the_stream():
    assert isinstance(open_progress(quiet=True, total=None, headline="auc", stream=Terminal()), NoProgress)
    assert isinstance(open_progress(quiet=False, total=None, headline="auc", stream=io.StringIO()), PlainProgress)
    terminal = Terminal()
    live = open_progress(quiet=False, total=3, headline="auc", stream=terminal)
    assert isinstance(live, LiveProgress)
    live.update(RoundProgress(round=3, metrics={"auc": 0.5}))
    live.close()
    assert "round 3/3" in terminal.getvalue()


def test_units():
    assert [format_bytes(n) for n in (0, 999, 1500, 2.5e6, 3e9, 4e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 MB",
        "3.0 GB",
        "4.0 TB",
    ]
    assert [format_seconds(s) for s in (5.4, 185, 7800)] == ["5 s", "3 min 05 s", "2 h 10 min"]


def test_a_notebook_has_a_bar_that_ends_without_times():
    shown, ticks = [], iter(range(0, 1000, 10))
    progress = NotebookProgress(3, "auc", lambda drawn, text: shown.append((drawn, text)), now=lambda: next(ticks))
    progress.phase("loading: 1 of <2>")
    assert shown[-1] == ("<progress></progress> loading: 1 of &lt;2&gt;", "loading: 1 of <2>")
    progress.update(RoundProgress(round=1, metrics={"auc": 0.5}))
    progress.update(RoundProgress(round=2, metrics={"auc": 0.75}))
    assert shown[-1][0].startswith('<progress value="2" max="3"></progress> round 2/3  auc 0.7500  0.0')
    assert "rounds/s" in shown[-1][1]
    progress.close()
    assert shown[-1][1] == "round 2/3  auc 0.7500  0 B"


def test_a_notebook_that_never_had_a_round_says_so():
    shown = []
    NotebookProgress(None, "auc", lambda drawn, text: shown.append((drawn, text))).close()
    assert shown == [("<progress></progress> no round", "no round")]


def test_no_notebook_here():
    assert not in_notebook()

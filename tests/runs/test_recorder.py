from __future__ import annotations

import json

import pytest

from fedactors.errors import BadInput
from fedactors.messages.ledger import Usage
from fedactors.runs.folder import EVENTS, PRIVACY, ROUND_METRICS, RunFolder
from fedactors.runs.metrics import read_lines, read_rounds
from fedactors.runs.progress import Tracker, check_trackers, open_trackers, scalars
from fedactors.runs.recorder import LEDGER, LEDGER_LOG, FolderRecorder, MemoryRecorder, Recorder, read_ledger
from fedactors.runs.timeline import EventLog, Span

ROWS = [
    (0.5, "bank", "shop", "client-client", "Embedding", 100),
    (0.7, "shop", "bank", "client-client", "Gradient", 50),
]


def usage_of(num_rounds: int) -> Usage:
    return Usage(
        messages=2 * num_rounds,
        bytes=150 * num_rounds,
        header_bytes=0,
        seconds=num_rounds + 0.5,
        wall_seconds=9.0,
        cpu_utilisation=0.0,
        idle_seconds=0.0,
        price=0.0,
    )


def feed(recorder: Recorder, first: int, last: int) -> None:
    for index in range(first, last + 1):
        recorder.record_span("bank", "compute", "step", index, index + 0.5)
        recorder.ledger_sink(ROWS)
        recorder.privacy([{"party": "bank", "epsilon": 0.1 * index}])
        recorder.record_round(index, {"auc": index / 10})
        recorder.save_checkpoint(f"r{index}", {"bank": bytes([index])}, b"driver")


def test_round_metrics_hold_no_time_and_events_do(tmp_path):
    folder = RunFolder.create(tmp_path, "x", 0, {})
    recorder = FolderRecorder(folder)
    recorder.usage = lambda: usage_of(recorder.num_rounds + 1)
    feed(recorder, 1, 2)
    recorder.close()
    folder.finish("finished")
    assert read_rounds(folder) == [{"round": 1, "auc": 0.1}, {"round": 2, "auc": 0.2}]
    marks = [line for line in read_lines(folder, EVENTS) if line["type"] == "round"]
    assert [(m["round"], m["seconds"], m["bytes"]) for m in marks] == [(1, 1.5, 150), (2, 2.5, 300)]
    RunFolder.open(folder.path).verify()


def test_rounds_are_on_disk_at_once(tmp_path):
    folder = RunFolder.create(tmp_path, "x", 0, {})
    FolderRecorder(folder).record_round(1, {"auc": 0.5})
    assert json.loads((folder.path / ROUND_METRICS).read_text()) == {"round": 1, "auc": 0.5}


def test_ledger_is_one_parquet_file_with_all_rows(tmp_path):
    import pyarrow.parquet as parquet

    folder = RunFolder.create(tmp_path, "x", 0, {})
    recorder = FolderRecorder(folder)
    feed(recorder, 1, 3)
    assert not (folder.path / LEDGER).exists()
    recorder.close()
    table = parquet.read_table(folder.path / LEDGER)
    assert [tuple(row.values()) for row in table.to_pylist()] == ROWS * 3
    assert parquet.ParquetFile(folder.path / LEDGER).num_row_groups == 1, "not one for each checkpoint"
    assert [p.name for p in folder.path.iterdir() if p.name.endswith(".part")] == []


def test_resumed_run_reads_as_if_it_had_never_stopped(tmp_path):
    import pyarrow.parquet as parquet

    whole = RunFolder.create(tmp_path, "whole", 0, {})
    recorder = FolderRecorder(whole)
    feed(recorder, 1, 4)
    recorder.close()
    whole.finish("finished")

    parent = RunFolder.create(tmp_path, "parent", 0, {})
    first = FolderRecorder(parent)
    feed(first, 1, 2)
    first.record_round(3, {"auc": 9.9})  # after the checkpoint: the resumed run does this round again
    first.ledger_sink(ROWS)
    first.close()
    parent.finish("failed")

    child = RunFolder.create(tmp_path, "child", 0, {}, parent=parent)
    second = FolderRecorder(child, parent=RunFolder.open(parent.path))
    checkpoint = second.load_checkpoint()
    assert checkpoint is not None
    assert (checkpoint.label, checkpoint.actors) == ("r2", {"bank": b"\x02"})
    feed(second, 3, 4)
    second.close()
    child.finish("finished")

    for name in ("metrics/round_metrics.jsonl", PRIVACY):
        assert (child.path / name).read_bytes() == (whole.path / name).read_bytes()
    assert second.events.summary() == recorder.events.summary()
    spans = [[line for line in read_lines(folder, EVENTS) if line["type"] == "span"] for folder in (child, whole)]
    assert spans[0] == spans[1]
    assert parquet.read_table(child.path / LEDGER).equals(parquet.read_table(whole.path / LEDGER))
    assert child.manifest["parent"] == parent.path.name


def killed(tmp_path, name="killed"):
    """A run that got a checkpoint after two rounds, went on, and was never closed."""
    folder = RunFolder.create(tmp_path, name, 0, {})
    recorder = FolderRecorder(folder)
    feed(recorder, 1, 2)
    recorder.ledger_sink(ROWS)
    return folder


def test_what_left_before_the_last_checkpoint_is_read_after_a_kill(tmp_path):
    folder = killed(tmp_path)
    found = read_ledger(RunFolder.open(folder.path))
    assert [tuple(row.values()) for row in found.to_pylist()] == ROWS * 2
    RunFolder.open(folder.path).verify()
    child = RunFolder.create(tmp_path, "child", 0, {}, parent=folder)
    recorder = FolderRecorder(child, parent=RunFolder.open(folder.path))
    feed(recorder, 3, 4)
    recorder.close()
    child.finish("finished")
    assert [tuple(row.values()) for row in read_ledger(RunFolder.open(child.path)).to_pylist()] == ROWS * 4
    assert not (child.path / LEDGER_LOG).exists()
    RunFolder.open(child.path).verify()


def test_half_a_segment_at_the_end_is_passed_over(tmp_path):
    folder = killed(tmp_path)
    log = folder.path / LEDGER_LOG
    whole = log.read_bytes()
    for extra in (whole[: len(whole) // 3], b"\0" * 100, b"foreign"):
        log.write_bytes(whole + extra)
        assert read_ledger(RunFolder.open(folder.path)).num_rows == len(ROWS) * 2


def test_a_ledger_that_lacks_what_had_left_is_refused_at_a_resume(tmp_path):
    folder = killed(tmp_path)
    log = folder.path / LEDGER_LOG
    log.write_bytes(log.read_bytes()[:-200])
    with pytest.raises(BadInput, match="it is damaged"):
        FolderRecorder(RunFolder.create(tmp_path, "child", 0, {}), parent=RunFolder.open(folder.path))


def test_memory_recorder_keeps_everything():
    recorder = MemoryRecorder()
    feed(recorder, 1, 2)
    recorder.close()
    assert recorder.rounds == [{"round": 1, "auc": 0.1}, {"round": 2, "auc": 0.2}]
    assert recorder.ledger_rows == ROWS * 2
    assert recorder.load_checkpoint() is None
    resumed = MemoryRecorder(resume_from=recorder.checkpoints["r2"])
    assert resumed.load_checkpoint().actors == {"bank": b"\x02"}
    assert recorder.closed


def test_events_add_up_per_actor_and_stop_growing():
    lines: list[str] = []
    log = EventLog(lines.append, max_spans=2)
    for actor, kind, start, end in [
        ("b", "wait", 0, 1),
        ("a", "compute", 0, 2),
        ("b", "wait", 2, 5),
        ("b", "send", 5, 6),
    ]:
        log.span(Span(actor=actor, kind=kind, label="", start=float(start), end=float(end)))
    assert len(lines) == 2
    assert json.loads(lines[0]) == {"type": "span", "actor": "b", "kind": "wait", "label": "", "start": 0.0, "end": 1.0}
    assert log.idle_seconds() == {"a": 0.0, "b": 4.0}
    assert log.busy_seconds() == {"a": 2.0, "b": 1.0}
    assert log.summary()["dropped"] == 2


def test_span_that_ends_before_it_starts_is_an_error():
    with pytest.raises(ValueError, match="before its start"):
        EventLog(lambda line: None).span(Span(actor="a", kind="wait", label="x", start=2.0, end=1.0))


class ListTracker:
    def __init__(self) -> None:
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, round_index, metrics):
        self.seen.append((round_index, dict(metrics)))

    def close(self, *, finished=True):
        self.closed += 1


def test_trackers_receive_finite_numbers_and_are_closed_once(tmp_path):
    tracker = ListTracker()
    as_tracker: Tracker = tracker
    recorder = FolderRecorder(RunFolder.create(tmp_path, "x", 0, {}), trackers=[as_tracker])
    recorder.record_round(1, {"auc": 0.5, "bad": float("nan"), "name": "x"})
    recorder.close()
    recorder.close()
    assert tracker.seen == [(1, {"auc": 0.5})]
    assert tracker.closed == 1
    assert scalars({"flag": True, "n": 3}) == {"n": 3.0}


def test_unknown_tracker_is_bad_input():
    with pytest.raises(BadInput, match="'tensorbord' is not allowed: one of tensorboard, mlflow, wandb"):
        check_trackers(["tensorbord"])


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_tracker_that_is_not_installed_says_how_to_install_it(name, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=rf"{name} is not installed: pip install 'fedactors\[{name}\]'"):
        open_trackers([name], tmp_path, {})


def test_a_checkpoint_that_is_saved_later_is_of_the_moment_that_it_was_taken(tmp_path):
    folder = RunFolder.create(tmp_path, "x", 0, {})
    recorder = FolderRecorder(folder)
    feed(recorder, 1, 1)
    recorder.record_span("bank", "compute", "step", 2, 2.5)
    reached = recorder.reached()
    recorder.ledger_sink(ROWS)
    recorder.record_span("bank", "compute", "later", 3, 3.5)
    recorder.record_round(2, {"auc": 0.2})
    recorder.save_checkpoint("last", {"bank": b"2"}, b"driver", reached)
    recorder.close()
    folder.finish("failed")
    later = FolderRecorder(RunFolder.create(tmp_path, "x", 0, {}, parent=folder), parent=folder)
    later.close()
    assert read_rounds(later.folder) == [{"round": 1, "auc": 0.1}]
    labels = [line["label"] for line in read_lines(later.folder, EVENTS) if line["type"] == "span"]
    assert labels == ["step", "step"]
    assert len(read_ledger(later.folder)) == len(ROWS)

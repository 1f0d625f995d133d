"""Somebody puts files into a run folder, or numbers into its files; the manifest does not know, or is made to agree."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from fedactors.auditing.audit import check_run
from fedactors.errors import BadInput
from fedactors.report.page import render_report
from fedactors.runs import recorder as ledger_log
from fedactors.runs.compare import compare, load_runs
from fedactors.runs.folder import AUDIT, EVENTS, PRIVACY, ROUND_METRICS, SUMMARY, RunFolder
from fedactors.runs.metrics import read_events, read_rounds
from fedactors.runs.recorder import (
    LEDGER,
    LEDGER_LOG,
    FolderRecorder,
    LedgerLog,
    Row,
    make_parquet,
    read_ledger,
    read_rows,
)
from fedactors.runs.storage import LineFile
from tests.report.test_page import ROWS, make_run
from tests.runs.test_recorder import usage_of

REPLAY = {"neighbour": "row", "kind": "row", "mu": 0.123456, "bare": [], "to_driver": [], "moved": {}}
AUDIT_CONTENT = {
    "run": "r",
    "agrees": True,
    "refuted": [],
    "lines": [],
    "claims": [],
    "replays": [{"party": "bank", "claims": {}, "replays": [REPLAY]}],
    "attacks": [],
}


def forge(run: Path, name: str, content: bytes) -> Path:
    """Change a file of a run folder, and its manifest with it."""
    folder = RunFolder.open(run)
    folder.write_bytes(name, content)
    folder.write_manifest()
    return run


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A run that was killed after its first checkpoint."""
    folder = RunFolder.create(tmp_path, "x", 0, {})
    recorder = FolderRecorder(folder)
    recorder.record_round(1, {"auc": 0.5})
    recorder.record_span("bank", "compute", "step", 0.0, 1.0)
    recorder.ledger_sink(ROWS)
    recorder.save_checkpoint("last", {"bank": b"1"}, b"2")
    return folder.path


def test_a_summary_that_was_planted_is_no_summary(tmp_path: Path, unfinished: Path) -> None:
    whole = make_run(tmp_path / "whole")
    (unfinished / SUMMARY).write_bytes((whole / SUMMARY).read_bytes())
    with pytest.raises(BadInput, match=r"has no summary \(status: running\)"):
        load_runs([unfinished])


def test_a_ledger_that_was_planted_is_not_read(unfinished: Path, tmp_path: Path) -> None:
    log = LedgerLog(LineFile(tmp_path / "log"))
    log.append(ROWS * 9)
    log.flush()
    make_parquet(tmp_path / "log", unfinished / LEDGER)  # as a killed run may leave it, too
    assert read_ledger(RunFolder.open(unfinished)).num_rows == len(ROWS)
    folder = RunFolder.open(unfinished)
    del folder.manifest["files"][LEDGER_LOG]
    folder.write_manifest()
    assert read_ledger(RunFolder.open(unfinished)).num_rows == 0


def planted_ledger(run: Path, rows: list[Row]) -> RunFolder:
    """Put a ledger of these rows into an ended run, and let the manifest agree."""
    (run / "log").unlink(missing_ok=True)
    file = LineFile(run / "log")
    log = LedgerLog(file)
    log.append(rows)
    log.flush()
    file.close()
    make_parquet(run / "log", run / "made")
    forge(run, LEDGER, (run / "made").read_bytes())
    return RunFolder.open(run)


@pytest.mark.parametrize("rows", [[], ROWS[:1], [*ROWS, ROWS[0]], [*ROWS[:1], (*ROWS[1][:5], 7), *ROWS[2:]]])
def test_a_ledger_that_is_not_what_the_summary_says_is_refused(tmp_path: Path, rows: list[Row]) -> None:
    run = make_run(tmp_path)
    assert read_ledger(planted_ledger(run, ROWS)).num_rows == len(ROWS)
    with pytest.raises(BadInput, match=r"the ledger is damaged: it holds \d messages of \d+ bytes, .* says 2 of"):
        read_ledger(planted_ledger(run, rows))


@pytest.mark.slow
def test_a_small_ledger_that_stands_for_any_number_of_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_log, "MOST_ROWS", 100_000)
    run = make_run(tmp_path)
    folder = planted_ledger(run, ROWS * 50_000)
    assert (run / LEDGER).stat().st_size < 100_000, "it says little, so often"
    with pytest.raises(BadInput, match="the ledger holds too many messages: at most 100000 are read"):
        read_ledger(folder)
    with pytest.raises(BadInput, match="too many messages"):
        read_rows(run / "log")


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize(("column", "value"), [("type", "x" * 100_000), ("sender", None), ("bytes", None)])
def test_a_ledger_with_texts_of_any_length_or_without_values_is_refused(
    tmp_path: Path, ended: bool, column: str, value: str | None
) -> None:
    file = tmp_path / (LEDGER if ended else LEDGER_LOG)
    rows = [dict(zip(ledger_log.COLUMNS, row, strict=True)) | {column: value} for row in ROWS * 100]
    table = pa.Table.from_pylist(rows, schema=ledger_log._schema())
    if ended:
        parquet.write_table(table, file)
    else:
        with pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    with pytest.raises(BadInput, match=f"{column}: a text of more than 1000 bytes|{column}: a value is missing"):
        read_rows(file)


def test_a_ledger_that_lacks_what_rounds_say_is_not_gone_on_from(tmp_path: Path) -> None:
    for least in (2, 3):
        folder = RunFolder.create(tmp_path, "x", 0, {})
        recorder = FolderRecorder(folder)
        recorder.usage = lambda least=least: replace(usage_of(1), messages=least, bytes=100)  # type: ignore[misc]
        recorder.record_round(1, {"auc": 0.5})
        recorder.ledger_sink(ROWS)
        recorder.save_checkpoint("last", {"bank": b"1"}, b"2")
        child, parent = RunFolder.create(tmp_path, "y", 0, {}), RunFolder.open(folder.path)
        if least == 2:
            FolderRecorder(child, parent=parent)
            continue
        with pytest.raises(BadInput, match="the ledger is damaged: up to the checkpoint it holds 2 messages"):
            FolderRecorder(child, parent=parent)


@pytest.mark.parametrize("name", [ROUND_METRICS, EVENTS])
@pytest.mark.parametrize("more", [-1, 1, 10**6])
def test_a_mark_that_is_the_end_of_no_line_is_not_gone_on_from(unfinished: Path, name: str, more: int) -> None:
    folder = RunFolder.open(unfinished)
    folder.manifest["checkpoints"][-1]["marks"][name] += more
    folder.write_manifest()
    child = RunFolder.create(unfinished.parent, "child", 0, {})
    with pytest.raises(BadInput, match=f"{name}: byte .* is the end of no line"):
        FolderRecorder(child, parent=RunFolder.open(unfinished))


def test_an_audit_that_was_planted_is_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make_run(tmp_path)
    (run / AUDIT).write_text(json.dumps(AUDIT_CONTENT))
    assert "0.123456" not in render_report(load_runs([run]))
    assert "audit.json is not read, since manifest.json does not list it" in caplog.text
    forge(run, AUDIT, json.dumps(AUDIT_CONTENT).encode())
    assert "0.123456" in render_report(load_runs([run]))


@pytest.mark.parametrize("name", [EVENTS, PRIVACY, ROUND_METRICS])
def test_a_file_of_lines_that_is_not_listed_has_none(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path)
    folder = RunFolder.open(run)
    del folder.manifest["files"][name]
    folder.write_manifest()
    found = RunFolder.open(run)
    found.verify()
    if name == EVENTS:
        assert list(read_events(found)) == []
    elif name == ROUND_METRICS:
        assert read_rounds(found) == []
    else:
        with pytest.raises(BadInput, match=r"no privacy\.jsonl"):
            check_run(found)


def test_lines_behind_those_that_the_manifest_covers_are_not_read(unfinished: Path) -> None:
    with open(unfinished / ROUND_METRICS, "a") as file:
        file.write('{"round": 2, "auc": 1.0}\n')
    folder = RunFolder.open(unfinished)
    folder.verify()
    assert [line["round"] for line in read_rounds(folder)] == [1]


def test_a_checkpoint_that_was_planted_is_refused(unfinished: Path) -> None:
    (unfinished / "checkpoints/last/shop.ckpt").write_bytes(b"x")
    manifest = json.loads((unfinished / "manifest.json").read_text())
    manifest["checkpoints"][0]["actors"].append("shop")
    (unfinished / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r"shop\.ckpt is missing"):
        RunFolder.open(unfinished).load_checkpoint()


def changed(run: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """Change the values of a file (of its first line), and the manifest with it."""
    text = (run / name).read_text()
    if name.endswith(".jsonl"):
        first, _, rest = text.partition("\n")
        return forge(run, name, f"{json.dumps(change(json.loads(first)))}\n{rest}".encode())
    return forge(run, name, json.dumps(change(json.loads(text))).encode())


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, 10**400])
@pytest.mark.parametrize(
    ("name", "field"),
    [
        (SUMMARY, "metrics"),
        (SUMMARY, "seconds"),
        (SUMMARY, "bytes"),
        (SUMMARY, "extra"),
        (EVENTS, "end"),
        (ROUND_METRICS, "auc"),
        (PRIVACY, "noise_scale"),
        (PRIVACY, "touched"),
        ("config.json", "config"),
        ("environment.json", "cpus"),
    ],
)
def test_a_number_that_nobody_measured_ends_with_one_line(tmp_path: Path, name: str, field: str, value: float) -> None:
    """In place of a number, or as a member of what holds several: a line that names file and field, or a page."""
    run = changed(
        make_run(tmp_path),
        name,
        lambda tree: {**tree, field: {"auc": value} if isinstance(tree.get(field), dict) else value},
    )
    if value == 1e300 and field in ("config", "extra"):  # harmless: it is shown, and nothing is computed from it
        assert "1e+300" in render_report(load_runs([run])) or field == "extra"
        return
    with pytest.raises(BadInput, match=f"{name}.*damaged"):
        show(run)


def test_what_ends_before_it_starts_is_damaged(tmp_path: Path) -> None:
    run = changed(make_run(tmp_path), EVENTS, lambda line: {**line, "end": line["start"] - 1.0})
    with pytest.raises(BadInput, match=r"events.jsonl.*damaged: it ends at -1, before its start at 0"):
        show(run)


def show(run: Path) -> None:
    """Do what `fedactors compare` and `fedactors report` do."""
    compare(load_runs([run]))
    render_report(load_runs([run]))

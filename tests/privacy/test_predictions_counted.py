"""Whoever asks often enough averages the noise away: each prediction is counted in the run's folder, or is not made."""

from __future__ import annotations

import json
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.data import new_rows
from fedactors.errors import BadInput
from fedactors.privacy.accounting import PrivacyRecord, budgets
from fedactors.runs.folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    words = "num_clients=3 num_tokens=1 problem=sparse-logistic num_rounds=2 relaxed_protocol=true learning_rate=0.1"
    noise = "noise=gaussian noise_multiplier=4 clip_norm=1"
    begin = ["run", "mtcd", "--data", "breast-cancer", "--runtime", "simulated", "--quiet"]
    assert main([*begin, *words.split(), *noise.split(), "--out", str(out)]) == 0
    (made,) = out.iterdir()
    return made


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / trained.name))


def predict(run: Path) -> int:
    return main(["predict", str(run), "--data", "breast-cancer", "--output", str(run.parent / "said.csv")])


def audited(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["audit", str(run), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_three_questions_cost_what_three_questions_cost(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert predict(run) == 0
    found = audited(run, capsys)
    (claim,) = [one for one in found["prediction_claims"] if one["party"] == "client-1"]
    assert (claim["neighbour"], claim["covered"]) == ("new row", True)
    assert claim["mu"] == pytest.approx(math.sqrt(3) * 0.5)
    assert {"neighbour", "uncovered", "note"} <= set(found["predictions"][0])
    assert any("client-1, one row: the claim is on the training" in line for line in found["not_counted"])
    RunFolder.open(run).verify()
    page = run.parent / "report.html"
    assert main(["report", str(run), "--output", str(page)]) == 0
    assert "client-1, one row: the claim is on the training" in page.read_text()


def test_the_json_of_a_prediction_says_for_whom_and_what_not(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    words = [
        "predict",
        str(run),
        "--data",
        "breast-cancer",
        "--output",
        str(run.parent / "said.csv"),
        "--format",
        "json",
    ]
    assert main(words) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])["privacy"]["client-1"]["Contribution"]
    assert (line["neighbour"], line["covered"], line["uncovered"]) == ("new row", True, [])
    assert "training rows" in line["note"]


def test_a_prediction_that_fails_after_its_releases_is_counted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **words: Any) -> None:
        raise BadInput("--output: the disk is full")

    monkeypatch.setattr(new_rows, "write_predictions", full)
    assert predict(run) == 2
    assert len((run / "predictions.jsonl").read_text().splitlines()) == 2


def test_where_nothing_can_be_counted_nothing_is_released(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.open(run)
    folder.manifest["status"] = "running"
    folder.write_manifest()
    assert predict(run) == 2
    assert "this run has not ended: wait for its end" in capsys.readouterr().err
    assert not (run / "predictions.jsonl").exists()
    assert not (run.parent / "said.csv").exists()


def test_predictions_at_once_lose_no_line(run: Path) -> None:
    folders = [RunFolder.open(run) for _ in range(8)]
    threads = [threading.Thread(target=one.count, args=([f'{{"n": {n}}}'],)) for n, one in enumerate(folders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    told = [json.loads(line)["n"] for line in (run / "predictions.jsonl").read_text().splitlines()]
    assert sorted(told) == list(range(8))
    RunFolder.open(run).verify()


def test_two_lines_of_one_message_are_both_told() -> None:
    row = PrivacyRecord(party="bank", message_type="Embedding", mechanism="none")
    label = PrivacyRecord(party="bank", message_type="Embedding", mechanism="none", neighbour="label", note="labels")
    found = budgets([row, label, label])["bank"]
    assert [(name, one["neighbour"], one["note"]) for name, one in found.items()] == [
        ("Embedding", "row", ""),
        ("Embedding 2", "label", "labels"),
        ("Embedding 3", "label", "labels"),
    ]

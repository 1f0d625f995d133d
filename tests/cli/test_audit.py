"""``fedactors audit``: figures of a run folder recomputed, replayed and attacked, and who tampers with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.runs.folder import RunFolder

SMALL = ["--runtime", "simulated", "--quiet", "num_epochs=1", "num_layers=1", "hidden_size=8", "embedding_size=4"]
COVERED = ["embedding_mu=2", "bottom_training=frozen", "standardisation=private"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    assert main(["run", "pubsub-vfl", *SMALL, *COVERED, "label_epsilon=1", "--out", str(out)]) == 0
    (made,) = out.iterdir()
    return made


def audit(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["audit", *words, "--format", "json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_every_figure_of_a_run_follows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = audit(capsys, str(folder))
    assert code == 0
    assert found["agrees"]
    claims = {(claim["party"], claim["neighbour"]): claim for claim in found["claims"]}
    assert claims["passive", "row"]["mu"] == pytest.approx((2**2 + 0.5**2) ** 0.5)
    assert claims["active", "label"]["epsilon"] == pytest.approx(1.0)
    assert not claims["active", "row"]["covered"]
    assert claims["active", "row"]["mu"] is None


@pytest.mark.slow
def test_a_replay_and_attacks_proxy_the_report(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = audit(capsys, str(folder), "--replay", "--neighbours", "3", "--attacks")
    assert code == 0
    assert found["refuted"] == []
    moved = {(one["party"], replay["kind"]) for one in found["replays"] for replay in one["replays"]}
    assert moved == {("passive", "row"), ("active", "row"), ("active", "label")}
    names = {attack["name"].partition(":")[0] for attack in found["attacks"]}
    assert names == {
        "membership",
        "labels by gradient norm",
        "labels by gradient direction",
        "labels by gradient clusters",
        "inversion by decoder",
        "inversion by optimisation",
        "inversion by nearest neighbour",
    }
    assert main(["report", str(folder), "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "recomputed: agrees" in page
    assert "replay moved mu" in page
    assert main(["audit", str(folder)]) == 0
    assert "no guarantee" in capsys.readouterr().out


def test_a_figure_that_was_changed_is_found(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    lines = [json.loads(line) for line in (copy / "privacy.jsonl").read_text().splitlines()]
    for line in lines:
        if line["message_type"] == "Embedding":
            line |= {"rigorous_mu": 0.1, "epsilon": 0.2}
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (copy / "privacy.jsonl").write_text(text)
    assert main(["audit", str(copy)]) == 2  # it is not as long as the manifest says
    assert "privacy.jsonl" in capsys.readouterr().err
    made = RunFolder.open(copy)
    made.write_bytes("privacy.jsonl", text.encode())
    made.write_manifest()
    code, found = audit(capsys, str(copy))
    assert code == 5
    assert not found["agrees"]
    assert "passive/Embedding" in found["refuted"][0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--neighbours", "0", "--replay"], "--neighbours"),
        (["--replay", "--party", "nobody"], "nobody"),
        (["num_epochs=1"], "--replay"),
        (["--replay", "no_such=1"], "no_such"),
    ],
)
def test_bad_input_is_named(folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(folder), *words]) == 2
    assert message in capsys.readouterr().err

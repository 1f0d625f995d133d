"""Words of run folders, manifests, plugins, peers and headers of files reach terminals and pages as plain text."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from fedactors import plugins
from fedactors.cli.main import main
from fedactors.cli.terminal import guarded
from fedactors.errors import PartyFailed
from fedactors.plugins import PluginEntry
from fedactors.runs.folder import PRIVACY, ROUND_METRICS, SUMMARY
from tests.bad_inputs import world
from tests.report.test_page import make_run
from tests.runs.test_planted import forge

EVIL = "$\\frac{\x1b]0;pwned\x07\x1b[2J\x1b[31m\x9b5m\u202ebank\r\b<script>alert(1)</script>"


def check(text: str) -> None:
    assert not set(text) & {chr(code) for code in [*range(9), *range(11, 32), *range(127, 160), 0x202E]}, repr(text)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A run whose texts steer a terminal wherever a schema takes a text."""
    run = make_run(tmp_path, name=EVIL)
    summary = json.loads((run / SUMMARY).read_text())
    summary |= {"protocol": EVIL, "run": EVIL, "metrics": {EVIL: 0.5, "auc": 0.3}, "extra": {"notes": [EVIL]}}
    forge(run, SUMMARY, json.dumps(summary).encode())
    lines = [json.loads(line) for line in (run / ROUND_METRICS).read_text().splitlines()]
    text = "".join(json.dumps(line | {EVIL: 0.1 * number}) + "\n" for number, line in enumerate(lines))
    forge(run, ROUND_METRICS, text.encode())
    line = json.loads((run / PRIVACY).read_text()) | {"party": EVIL, "message_type": EVIL, "note": EVIL}
    forge(run, PRIVACY, json.dumps(line).encode() + b"\n")
    return run


@pytest.mark.parametrize("words", [["compare", "RUN"], ["report", "RUN"], ["audit", "RUN"]], ids=lambda w: w[0])
def test_of_a_run_folder(evil: Path, words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    code = main([word.replace("RUN", str(evil)) for word in words])
    said = capfd.readouterr()
    assert code in (0, 5)
    assert said.out
    assert "bank" in said.out or words[0] == "report"
    check(said.out + said.err)


@pytest.mark.slow
def test_of_a_run_folder_on_a_page(evil: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(evil), "--output", str(page), "--figures", str(tmp_path / "figures")]) == 0
    text = page.read_text()
    check(text)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text, "it is told, as text"
    for drawn in (tmp_path / "figures").glob("*.svg"):
        assert "<script>alert" not in drawn.read_text()


@pytest.mark.parametrize("key", ["kind", "status", "parent", EVIL])
def test_of_a_manifest(evil: Path, key: str, capfd: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((evil / "manifest.json").read_text())
    (evil / "manifest.json").write_text(json.dumps({**manifest, key: [EVIL]}))
    assert main(["report", str(evil)]) == 2
    check(said := capfd.readouterr().err)
    assert len(said.splitlines()) == 1


def test_of_a_folder_with_such_a_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / EVIL.replace("/", "")).mkdir()
    assert main(["report", str(tmp_path / EVIL.replace("/", ""))]) == 2
    check(said := capfd.readouterr().err)
    assert len(said.splitlines()) == 1


def test_of_a_plugin(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    from fedactors import api

    found = [PluginEntry(name=EVIL, package=EVIL, error=EVIL)]
    monkeypatch.setattr(api, "discover", lambda: [*plugins.discover(), *found])
    assert main(["list"]) == 0
    check(said := capfd.readouterr().out)
    assert "BROKEN" in said


def test_of_a_peer(capfd: pytest.CaptureFixture[str]) -> None:
    def action() -> None:
        logging.getLogger("fedactors.x").warning("%s: refused", EVIL)
        error = PartyFailed("bank", f"ValueError: {EVIL}\n{EVIL}", f"Traceback: {EVIL}")
        error.add_note(f"details: {EVIL}")
        raise error

    logging.getLogger("fedactors.x").propagate = True
    with pytest.raises(SystemExit) as ended, guarded():
        action()
    assert ended.value.code == 3
    check(said := capfd.readouterr().err)
    assert said.splitlines()[-3].startswith("fedactors: bank: ValueError: ")


@pytest.mark.parametrize("cell", ["header", "value"])
def test_of_a_file_of_data(cell: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = EVIL.replace("\r", "")
    rows = [f"{number},{text if cell == 'value' and number == 7 else number},{number % 2}" for number in range(40)]
    (tmp_path / "bank.csv").write_text("\n".join([f"id,{text if cell == 'header' else 'age'},bad", *rows]))
    (tmp_path / "shop.csv").write_text("\n".join(["id,spent,visits", *(f"{n},{n / 7},{n}" for n in range(40))]))
    (tmp_path / "parties.toml").write_text(world.VERTICAL)
    flags = ["--data", str(tmp_path / "parties.toml"), "--runtime", "simulated", "--out", str(tmp_path / "out")]
    code = main(["run", "pubsub-vfl", *world.small("pubsub-vfl").split(), *flags])
    said = capfd.readouterr()
    assert code in (0, 2), said.err
    check(said.out + said.err)

"""No command writes over the record of a run, or into it, wherever its user wants the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedactors.cli.main import main
from tests.bad_inputs import world

_COMMANDS = {
    "report --output": "report RUN --output PLACE",
    "report --figures": "report RUN --output page.html --figures PLACE",
    "compare --plot": "compare RUN --plot PLACE",
    "compare --report": "compare RUN --report PLACE",
    "predict --output": "predict RUN --data synthetic --runtime simulated --output PLACE",
    "export --output": "export RUN --output PLACE",
    "new --output": "new scenario other --output PLACE",
    "run --out": f"run mtcd {world.SMALL['mtcd']} --runtime simulated --quiet --out PLACE",
}
_OUTPUTS = [
    "manifest.json",
    "config.json",
    "metrics/summary.json",
    "checkpoints/final",
    "LEDGER.parquet",
    "x/../audit.json",
]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    world.train("mtcd", root)
    return root / "run"


@pytest.mark.parametrize("command", list(_COMMANDS))
def test_a_record_is_no_place_for_results(
    command: str, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(finished)
    before = content(finished)
    for output in (
        *(finished / name for name in _OUTPUTS),
        tmp_path / "link/config.json",
        tmp_path / "link/checkpoints/a",
    ):
        words = _COMMANDS[command].replace("RUN", str(finished)).replace("PLACE", str(output)).split()
        assert main(words) == 2, output
        said = capfd.readouterr().err
        assert len(said.splitlines()) == 1
        assert command.split()[1] in said
        assert content(finished) == before, output
        assert not (tmp_path / "page.html").exists()


def test_beside_the_record_a_page_may_lie(finished: Path) -> None:
    assert main(["report", str(finished)]) == 0
    assert main(["report", str(finished), "--output", str(finished / "mine.html")]) == 0
    assert (finished / "mine.html").exists()

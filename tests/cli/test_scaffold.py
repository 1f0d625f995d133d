from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedactors.cli import main as cli
from fedactors.cli.scaffold import write_protocol, write_scenario
from fedactors.errors import BadInput
from tests.tiny import install_plugin

ROOT = Path(__file__).parents[2]


def run_python(words: list[str], cwd: Path, *folders: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *folders])), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_new_protocol_keeps_the_contract(tmp_path):
    assert cli.main(["new", "protocol", "secure-mean", "--output", str(tmp_path)]) == 0
    folder = tmp_path / "secure-mean"
    code = (
        "from secure_mean.plugin import PROTOCOL\nfrom fedactors.testing import check_protocol\n"
        "check_protocol(PROTOCOL, on_ray=False)\n"
        "from fedactors.sweeps import run_once\n"
        "done = run_once(PROTOCOL, PROTOCOL.smoke, PROTOCOL.default_data, 0)\n"
        "assert {name.partition('/')[0] for name in done.recorder.curve if '/' in name} == {'validation'}\n"
        "assert set(done.result.metrics) == {'test/auc', 'test/loss'}, done.result.metrics\n"
    )
    done = run_python(["-c", code], tmp_path, folder)
    assert done.returncode == 0, done.stderr
    lines = (folder / "pyproject.toml").read_text()
    assert 'secure-mean = "secure_mean.plugin:PROTOCOL"' in lines
    written = [file for file in folder.rglob("*.*") if file.is_file() and file.suffix != ".pyc"]
    assert written
    assert "$" not in "".join(file.read_text() for file in written)


@pytest.mark.slow
def test_a_new_scenario_runs(tmp_path, capsys, monkeypatch):
    install_plugin(tmp_path / "site", **{"pubsub-vfl": "fedactors.protocols.pubsub_vfl.plugin:PROTOCOL"})
    monkeypatch.syspath_prepend(tmp_path / "site")
    words = ["new", "scenario", "my_first", "--protocol", "pubsub-vfl", "--output", str(tmp_path), "--format", "json"]
    assert cli.main(words) == 0
    assert json.loads(capsys.readouterr().out) == {"files": [str(tmp_path / "my_first.py")]}
    done = run_python(["my_first.py", "--smoke", "--runtime", "simulated", "--quiet", "--format", "json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2


def test_nothing_is_overwritten(tmp_path):
    write_protocol("secure-mean", tmp_path)
    with pytest.raises(BadInput, match="already exists, and nothing is overwritten"):
        write_protocol("secure-mean", tmp_path)
    (tmp_path / "mine.py").write_text("mine")
    with pytest.raises(BadInput, match="already exists"):
        write_scenario("mine", tmp_path)
    assert (tmp_path / "mine.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["Upper", "1st", "a b", "class", "../up", "fedactors"])
def test_names_that_cannot_be_packages_are_refused(tmp_path, name):
    with pytest.raises(BadInput, match=r"name: .* is not allowed"):
        write_protocol(name, tmp_path)
    assert list(tmp_path.iterdir()) == []

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedactors.cli.flags import add_federation_flags, add_run_flags
from fedactors.options import RunOptions

ROOT = Path(__file__).parents[1]
SCRIPT = '''"""A scenario for tests."""

from fedactors import launch
from fedactors.plugins import Headline
from fedactors.scenario import main
from tests import tiny

launch.make_runtime = tiny.make_runtime

if __name__ == "__main__":
    main(
        tiny.TinyConfig,
        tiny.run,
        data="breast-cancer",
        partition="vertical",
        headline=Headline(name="score"),
        load_data=tiny.load_data,
        smoke={"num_rounds": 2},
    )
'''


def run_script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = folder / "my_scenario.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_script_runs_without_the_command_line_tool(tmp_path):
    done = run_script(tmp_path, "--smoke", "batch_size=4", "--quiet", "--format", "json", "--seed", "2")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rounds"], result["seed"]) == (2, 2)
    assert "-my_scenario-2" in result["run"]


@pytest.mark.slow
def test_script_has_the_same_errors_and_codes(tmp_path):
    done = run_script(tmp_path, "batch_size=zero")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fedactors: batch_size: 'zero' is not allowed")


def test_flags_and_options_are_the_same_set():
    parser = argparse.ArgumentParser()
    add_run_flags(parser)
    add_federation_flags(parser)  # of the command `run` alone: a script has no site
    names = {action.dest for action in parser._actions} - {"help", "words"}
    assert names == set(RunOptions.__dataclass_fields__)


def test_the_contract_of_the_flags_is_frozen():
    parser = argparse.ArgumentParser()
    add_run_flags(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings} - {"-h", "--help"}
    environment = {
        "--runtime",
        "--address",
        "--placement",
        "--spread",
        "--pool",
        "--emulate",
        "--heartbeat-timeout",
        "--out",
        "--resume",
        "--checkpoint-dir",
        "--checkpoint-key",
        "--allow-import",
    }
    experiment = {"--data", "--seed", "--seeds", "--smoke", "--paper"}
    display = {"--quiet", "--format", "--track"}
    assert flags == environment | experiment | display


@pytest.mark.slow
def test_help_explains_the_settings_of_the_script(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = run_script(tmp_path, "--help")
    assert done.returncode == 0, done.stderr
    assert "my_scenario: A scenario for tests." in done.stdout
    assert "  num_rounds=4  (integer >= 1)\n      Rounds to run.\n" in done.stdout
    assert "--smoke: num_rounds=2" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80

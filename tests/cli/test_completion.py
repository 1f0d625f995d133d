"""Completion: the candidates, and bash itself asking for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedactors.cli import main as cli
from fedactors.cli.flags import SHELLS, candidates
from fedactors.cli.parsers import parsers
from tests.tiny import install_plugin

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch):
    install_plugin(tmp_path / "site", tiny_one="tests.tiny:PROTOCOL", mtcd="fedactors.protocols.mtcd.plugin:PROTOCOL")
    monkeypatch.syspath_prepend(tmp_path / "site")


def complete(line: str) -> list[str]:
    """Return the candidates at the end of a line, as a shell divides it."""
    words = line.split(" ")
    return candidates(parsers()[1], words)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("re", ["relay", "report"]),
        ("--v", ["--version"]),
        ("run tiny", ["tiny-one"]),
        ("submit mt", ["mtcd"]),
        ("new scenario x --protocol tiny", ["tiny-one"]),
        ("new pro", ["protocol"]),
        ("run tiny-one num_", ["num_rounds="]),
        ("run tiny_one --seed 3 --quiet num_", ["num_rounds="]),
        ("run mtcd mode=", ["mode=token-per-cluster", "mode=overlapping"]),
        ("run mtcd measure_gap=f", ["measure_gap=false"]),
        ("run mtcd num_rounds=", []),
        ("run mtcd no_such=", []),
        ("run no-such num_", []),
        ("inspect mtcd num_rounds=3 num_r", []),
        ("run mtcd --runtime s", ["simulated"]),
        ("run mtcd --data breast", ["breast-cancer"]),
        ("run mtcd --res", ["--resume"]),
        ("run mtcd --resume ", []),
        ("plan mtcd --profile a.toml ", []),
        ("plan mtcd --profile a.toml --format ", ["text", "json"]),
        ("data fetch breast", ["breast-cancer"]),
        ("data list ", []),
        ("compare runs/a ", []),
        ("completion ", ["bash", "zsh", "fish"]),
        ("no-such ", []),
    ],
)
def test_what_may_stand_at_the_end_of_a_line(line, expected):
    assert complete(line) == expected


def test_every_command_is_a_candidate():
    assert complete("") == list(parsers()[1])


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_accepts_its_script(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fedactors ru", ["run"]),
        ("fedactors run tiny", ["tiny-one"]),
        ("fedactors run tiny-one ba", ["batch_size="]),
        ("fedactors run mtcd mode=", ["token-per-cluster", "overlapping"]),
        ("fedactors run mtcd --seed 1 mode=ov", ["overlapping"]),
        ("fedactors run mtcd --resume ", []),
    ],
)
def test_bash_completes(tmp_path, line, expected):
    command = tmp_path / "fedactors"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedactors "$@"\n')
    command.chmod(0o755)
    script = (
        f'source <({command} completion bash)\nCOMP_LINE="{line}" COMP_POINT={len(line)}\n'
        f'_fedactors {command}\n[ ${{#COMPREPLY[@]}} = 0 ] || printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "site")])}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == expected, done.stderr

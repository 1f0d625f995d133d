"""What failed among others is run once more, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest, pathlib

ONCE = pathlib.Path(__file__).with_name("once")

@pytest.mark.xdist_group("a group 0")
@pytest.mark.parametrize("word", ["a@b", "c d::[e"])
def test_grouped(word):
    assert (ONCE / word[0]).exists() or (ONCE / word[0]).write_text("") is None and False

def test_alone():
    assert (ONCE / "alone").exists() or (ONCE / "alone").write_text("") is None and False

def test_fine():
    (ONCE / "fine").write_text((ONCE / "fine").read_text() + "." if (ONCE / "fine").exists() else ".")
"""


def pytest_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-o", "cache_dir=kept", *words]
    around = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, timeout=240)


def outcome(kept: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.failed", str(kept)]
    return subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_what_failed_among_others_is_run_again_alone(tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    first = pytest_in(tmp_path, "-n", "2", "--dist", "loadgroup")
    assert first.returncode == 1
    assert "3 failed, 1 passed" in first.stdout
    kept = tmp_path / "kept" / "v" / "cache" / "lastfailed"
    assert '@a group 0"' in kept.read_text()
    (tmp_path / "failed").write_text(outcome(kept).stdout)
    second = pytest_in(tmp_path, "@failed")
    assert second.returncode == 0, second.stdout
    assert "3 passed" in second.stdout
    assert (tmp_path / "once" / "fine").read_text() == "."


def test_too_many_are_not_run_again(tmp_path: Path) -> None:
    kept = tmp_path / "lastfailed"
    kept.write_text("{" + ", ".join(f'"tests/test_it.py::test_{index}": true' for index in range(21)) + "}")
    refused = outcome(kept)
    assert refused.returncode == 1
    assert "21 failed" in refused.stderr

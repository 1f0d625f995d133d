"""Every script under scenarios/ but benchmarks and what makes or checks results runs in smoke mode, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.declared import undeclared_in

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(
    path
    for path in (ROOT / "scenarios").rglob("*.py")
    if path.parent.name != "benchmarks"
    and path.name not in ("accounts.py", "results.py", "replay.py")
    and '__name__ == "__main__"' in path.read_text()
)
NEEDS_RAY = ("demo.py",)
pytestmark = [pytest.mark.walk, pytest.mark.slow, pytest.mark.drawn(4)]


def starts_ray(script: Path) -> bool:
    return script.name in NEEDS_RAY or "RayRuntime" in script.read_text()


def relative(path: Path) -> str:
    return path.relative_to(ROOT / "scenarios").as_posix()


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(script, marks=[pytest.mark.ray] if starts_ray(script) else [], id=relative(script))
        for script in SCRIPTS
    ],
)
def test_runs_in_smoke_mode(script: Path, tmp_path: Path) -> None:
    source = script.read_text()
    words = [sys.executable, str(script), "--smoke", "--out", str(tmp_path / "runs")]
    if "fedactors.scenario import main" in source and script.name not in NEEDS_RAY:
        words += ["--runtime", "simulated", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}, "it writes elsewhere than told"
    assert not any(undeclared_in(tmp_path).values()), "a ledger has messages that nobody declared"

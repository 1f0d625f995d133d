"""A driver that ends without a word, killed or ended by Ray's own library, has somebody who says the line for it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedactors.errors import PartyLost

ROOT = Path(__file__).resolve().parents[3]
DRIVER = """
import sys
import ray
from fedactors.cli.terminal import guarded
from fedactors.runtime.ray.runtime import RayRuntime
from tests.keeping import Keeping
from tests.runtime.actors import line

if __name__ == "__main__":
    runtime = RayRuntime(num_cpus=1, heartbeat_timeout=5.0, recorder=Keeping())
    runtime.way_on = "resume with: fedactors run mtcd --resume HERE"

    async def main():
        a = line(runtime, "a")
        await runtime.start()
        await runtime.checkpoint()
        print("up", flush=True)
        for _ in range(100_000):
            await a.echo(1)
            if "put" in sys.argv:
                ray.put(bytes(1 << 20))  # as a large snapshot is: Ray's library looks for its raylet at once
            await runtime.clock.sleep(0.01)

    with guarded():
        runtime.execute(main)
"""
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.drawn(1, family="killed drivers")]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    script = folder / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    environment.pop("RAY_ADDRESS", None)
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, str(script), *words], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def raylet_of(driver: subprocess.Popen[str]) -> psutil.Process:
    until = time.monotonic() + 90
    while time.monotonic() < until and driver.poll() is None:
        for one in psutil.Process(driver.pid).children():
            try:
                if one.cmdline()[:1] and one.cmdline()[0].endswith("/raylet"):
                    return one
            except psutil.Error:
                continue
        time.sleep(0.01)
    raise AssertionError("it has no raylet")


def ended(driver: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Wait for its end; return its code, and the lines of ours that it ended with."""
    _, errors = driver.communicate(timeout=120)
    return driver.returncode, [
        line for line in errors.splitlines() if line.startswith(("fedactors: ", "resume with: "))
    ]


def test_a_driver_that_rays_library_ends_with_its_raylet_has_one_line(tmp_path: Path) -> None:
    for _ in range(2):
        driver = start(tmp_path, "put")
        assert driver.stdout is not None
        assert driver.stdout.readline() == "up\n"
        raylet_of(driver).kill()
        code, lines = ended(driver)
        assert code == 1, "Ray's own; if it is another one by now, the page on commands has to say so"
        assert lines == [
            "fedactors: Ray: its raylet is gone, and Ray's library ended the run's process at once (exit code 1)",
            "resume with: fedactors run mtcd --resume HERE",
        ]


def test_a_raylet_that_is_killed_while_ray_starts_ends_the_driver_with_one_line(tmp_path: Path) -> None:
    driver = start(tmp_path)
    raylet_of(driver).kill()
    with contextlib.suppress(AssertionError):  # its start is tried once more, where it is not ended
        raylet_of(driver).kill()
    code, lines = ended(driver)
    assert len(lines) == 1, lines
    assert "Ray" in lines[0], lines
    assert code == (1 if "(exit code 1)" in lines[0] else PartyLost.exit_code), lines


def test_a_driver_that_is_killed_has_one_line_too(tmp_path: Path) -> None:
    driver = start(tmp_path)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "up\n"
    os.kill(driver.pid, signal.SIGKILL)
    assert ended(driver) == (
        -signal.SIGKILL,
        [
            f"fedactors: the run's process ({driver.pid}) ended without a word: it was killed, or Ray's library "
            "ended it (exit code 1), as it does when the raylet of its host is gone",
            "resume with: fedactors run mtcd --resume HERE",
        ],
    )

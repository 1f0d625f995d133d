"""Runs whose embedded Ray loses a service of its own, and runs that were stopped themselves."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fedactors.errors import PartyLost
from fedactors.runtime.ray.processes import watch_services

ROOT = Path(__file__).resolve().parents[3]
HEARTBEAT_TIMEOUT = 5.0
DRIVER = """
import sys
from fedactors.cli.terminal import guarded
from fedactors.runtime.ray.runtime import RayRuntime
from tests.runtime.actors import line

if __name__ == "__main__":
    runtime = RayRuntime(num_cpus=1, heartbeat_timeout=5.0)

    async def main():
        runtime.on_loss("restart")
        a = line(runtime, "a")
        await runtime.start()
        print("up", flush=True)
        for _ in range(100_000):
            await a.echo(1)
            await runtime.clock.sleep(0.05)
            await runtime.checkpoint()

    with guarded():
        runtime.execute(main)
"""
pytestmark = pytest.mark.ray


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    yield process
    process.kill()
    process.communicate()


def service(driver: subprocess.Popen[str], program: str) -> psutil.Process:
    found = [one for one in psutil.Process(driver.pid).children() if one.cmdline()[0].endswith(program)]
    assert len(found) == 1
    return found[0]


@pytest.mark.drawn(2, family="services")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize(("program", "name"), [("gcs_server", "control service (GCS)"), ("raylet", "raylet")])
def test_a_lost_service_ends_the_run_with_one_line_and_nothing_left(
    driver: subprocess.Popen[str], program: str, name: str, number: int
) -> None:
    family = psutil.Process(driver.pid).children(recursive=True)
    service(driver, program).send_signal(number)
    _, errors = driver.communicate(timeout=HEARTBEAT_TIMEOUT + 60)
    (line,) = errors.splitlines()
    assert line.startswith(
        f"fedactors: Ray: its {'control service (GCS)' if program == 'gcs_server' else 'raylet'} at "
    )
    assert driver.returncode == PartyLost.exit_code
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.drawn(2, family="services")
def test_a_driver_that_was_stopped_for_longer_than_a_heartbeat_timeout_has_lost_nobody(
    driver: subprocess.Popen[str],
) -> None:
    driver.send_signal(signal.SIGSTOP)
    time.sleep(2 * HEARTBEAT_TIMEOUT)
    driver.send_signal(signal.SIGCONT)
    time.sleep(2 * HEARTBEAT_TIMEOUT)
    driver.send_signal(signal.SIGTERM)
    _, errors = driver.communicate(timeout=60)
    assert "no heartbeat" not in errors
    assert "a fresh process" not in errors


def test_a_watch_that_ends_at_once_leaves_nothing_behind() -> None:
    async def main() -> None:
        watch = asyncio.ensure_future(watch_services({"raylet": "127.0.0.1:1", "GCS": "127.0.0.1:2"}, 5.0))
        await asyncio.sleep(0)  # its tasks are made by then, and none has begun
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()  # what was never awaited is told by then, and what other tests left too
    assert [str(one.message) for one in told if "never awaited" in str(one.message)] == []

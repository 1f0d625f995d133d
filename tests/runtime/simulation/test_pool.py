"""The process pool leaves nothing behind, whatever becomes of its owner."""

from __future__ import annotations

import concurrent.futures
import multiprocessing.util
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from fedactors.runtime import compute

ROOT = Path(__file__).resolve().parents[3]
OWNER = """
import multiprocessing.util, os, time
from fedactors.runtime.compute import ProcessPool
if __name__ == "__main__":
    pool = ProcessPool(1)
    print(pool.submit(os.getpid, ()).result(), pool._folder, multiprocessing.util.get_temp_dir(), flush=True)
    pool.submit(time.sleep, (600,))
    os.kill(os.getpid(), 9)
"""
DIES = """
import os
from fedactors.errors import BadInput
from fedactors.runtime.compute import ProcessPool
print(os.getpid(), flush=True)
{}
try:
    pool = ProcessPool(2)
    error = pool.submit(os.getpid, ()).exception()
    for _ in range(2):
        try:
            error = pool.submit(os.getpid, ()).exception()
        except BadInput as refused:
            error = refused
except BadInput as refused:
    error = refused
print("told:", error, flush=True)
pool.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("line", ["if __name__ != '__main__': os._exit(3)", "", "if __name__ != '__main__': 1 / 0"])
def test_workers_that_die_at_their_start_end_the_pool_with_one_line(tmp_path: Path, line: str) -> None:
    """Among them those of a script without a guard, which each of them runs again."""
    script = tmp_path / "owner.py"
    script.write_text(DIES.format(line))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    _, *others = done.stdout.splitlines()
    # a worker that dies while it prints may leave half a line before, and one that starts meanwhile a line after
    assert "told: --pool: a worker process ended by itself" in done.stdout
    assert len(others) < 20  # a few workers were started, and no more
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(script) in (p.info["cmdline"] or [])]


@pytest.mark.slow
def test_workers_end_with_an_owner_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    worker, *folders = done.stdout.split()
    deadline = time.monotonic() + 60
    while psutil.pid_exists(int(worker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(worker))
    assert len(folders) == 2
    assert not [folder for folder in folders if Path(folder).exists()]


@pytest.mark.parametrize("is_child", [False, True])
def test_a_process_that_another_one_started_may_share_its_folder_and_leaves_it(
    monkeypatch: pytest.MonkeyPatch, is_child: bool
) -> None:
    given: list[tuple[str, ...]] = []

    class Executor:
        def __init__(self, *args: object, initargs: tuple[str, ...], **more: object) -> None:
            given.append(initargs)

        def submit(self, *args: object) -> Future[object]:
            return Future()

        def shutdown(self, **more: object) -> None:
            """Nothing was started."""

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Executor)
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if is_child else None)
    made = compute.ProcessPool(1)
    made.close()
    local = [made._folder] if is_child else [made._folder, multiprocessing.util.get_temp_dir()]
    assert given == [tuple(local)]

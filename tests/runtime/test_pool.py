"""The process pool leaves nothing behind, whatever becomes of its owner."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
OWNER = """
import os, time
from fedactors.runtime.simulation.pool import ProcessPool
if __name__ == "__main__":
    pool = ProcessPool(1)
    print(pool.submit(os.getpid, ()).result(), pool._folder.name, flush=True)
    pool.submit(time.sleep, (600,))
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_workers_end_with_an_owner_that_was_killed(tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    worker, folder = done.stdout.split()
    deadline = time.monotonic() + 60
    while psutil.pid_exists(int(worker)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(worker))
    assert not Path(folder).exists()

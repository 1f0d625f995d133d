"""A driver that Ray holds while its control service is gone ends with one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedactors.runtime.ray.cleanup import of_folder

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import sys, time
from pathlib import Path
from fedactors.runtime.ray import cleanup
cleanup._WATCH_SECONDS, cleanup._START_LOOKS = 2, 4
one = cleanup.DriverWatchdog(Path(sys.argv[1]))
for word in sys.argv[3:]:
    one.dismiss() if word == "dismiss" else one.watch({"raylet": word})
time.sleep(float(sys.argv[2]))
"""


def watched_process(folder: Path, seconds: float, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(folder), str(seconds), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.slow
def test_a_driver_that_is_held_while_the_control_service_is_gone_ends_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        began = time.monotonic()
        assert watched_process(tmp_path, 2.0).returncode == 0  # it is not known yet where it is
        session = tmp_path / "session_1"
        session.mkdir()
        (session / "gcs_server_port_abc").write_text(str(port))
        assert of_folder(tmp_path) == f"127.0.0.1:{port}"
        assert watched_process(tmp_path, 6.0, "dismiss").returncode == 0
        silent = watched_process(tmp_path, 100.0)  # it accepts and says nothing, like one that was stopped
    gone = watched_process(tmp_path, 100.0)
    for ended in (silent, gone):
        assert ended.returncode == 3
        assert (
            ended.stderr == f"fedactors: Ray: its control service (GCS) at 127.0.0.1:{port} gave no heartbeat for 4 s\n"
        )
    assert time.monotonic() - began < 100


def test_a_folder_that_goes_while_it_is_looked_at_has_no_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the thread that watches ends with an error, and nobody watches any more."""
    (tmp_path / "session_latest").mkdir()
    scandir = os.scandir

    def gone(path: str | os.PathLike[str] = ".") -> Any:
        if Path(path).name == "session_latest":
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert of_folder(tmp_path) is None


@pytest.mark.slow
def test_one_that_is_held_while_its_raylet_is_stopped_ends_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ended = watched_process(tmp_path, 100.0, address)
    assert (ended.returncode, ended.stderr) == (
        3,
        f"fedactors: Ray: its raylet at {address} gave no heartbeat for 4 s\n",
    )


@pytest.mark.slow
def test_a_start_without_end_ends_with_one_line(tmp_path: Path) -> None:
    ended = watched_process(tmp_path, 100.0)
    assert (ended.returncode, ended.stderr.startswith("fedactors: Ray did not start on this machine within")) == (
        3,
        True,
    )

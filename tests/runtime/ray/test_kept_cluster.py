"""One Ray cluster for several runs of a process, and what is left when it is closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import json
import sys
import time

import psutil
import ray

import fedactors

SMALL = dict(num_rounds=2, num_clients=2, hidden_size=4)


def services():
    return sorted(one.pid for one in psutil.Process().children() if one.name() in ("gcs_server", "raylet"))


if __name__ == "__main__":
    found = {"services": [], "actors": []}
    with fedactors.cluster(num_cpus=2) as kept:
        for seed in (0, 0):
            run = fedactors.run("horizontal", seed=seed, out=sys.argv[1], **SMALL)
            found["services"].append(services())
            found.setdefault("rounds", []).append(run.metrics["test/accuracy"])
        try:
            fedactors.run("horizontal", address="127.0.0.1:1", out=sys.argv[1], **SMALL)
        except fedactors.BadInput as error:
            found["refused"] = str(error)
        try:
            fedactors.cluster("127.0.0.1:1")
        except fedactors.BadInput as error:
            found["refused again"] = str(error)
    kept.close()
    found["after"] = services()
    found["initialised"] = ray.is_initialized()
    again = fedactors.run("horizontal", seed=0, out=sys.argv[1], **SMALL)
    found["alone"] = again.metrics["test/accuracy"]
    found["last"] = services()
    print(json.dumps(found))
"""
pytestmark = pytest.mark.ray


@pytest.mark.timeout(400)
def test_runs_share_a_cluster_that_is_gone_when_it_is_closed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "FEDACTORS_QUIET": "1"}
    environment.pop("RAY_ADDRESS", None)
    words = [sys.executable, str(script), str(tmp_path / "runs")]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=360)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    first, second = found["services"]
    assert len(first) == 2
    assert first == second
    assert found["rounds"][0] == found["rounds"][1] == found["alone"]
    assert found["after"] == found["last"] == []
    assert not found["initialised"]
    assert not any(psutil.pid_exists(pid) for pid in first)
    assert "127.0.0.1:1" in found["refused"]
    assert "this process has joined the cluster at" in found["refused again"]
    assert "cannot join '127.0.0.1:1' as well" in found["refused again"]

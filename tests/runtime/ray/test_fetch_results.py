"""What a job leaves for its submitter, and what is sent along with it; over a network: test_cluster.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.runtime.ray.jobs import archive_of, sending, unpack

ROOT = Path(__file__).parents[3]
COMMAND = """
import pathlib, signal, sys, time
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
def stop(*_):
    (out / "run-0" / "stopped").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
(out / "run-0").mkdir()
(out / "run-0" / "manifest.json").write_text("{}")
print("ready", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


def begin(folder: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedactors.runtime.ray.jobs", sys.executable, "-c", COMMAND, *words]
    with open(folder / "job-driver-j1.log", "wb") as log:
        return subprocess.Popen(
            command, stdout=log, env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True
        )


@pytest.mark.slow
def test_the_run_folder_is_packed_beside_the_log_and_the_code_is_the_commands(tmp_path):
    assert begin(tmp_path, "0", "3").wait(60) == 3
    archive = tmp_path / archive_of("job-driver-j1.log")
    assert unpack(archive, tmp_path / "home") == [tmp_path / "home" / "run-0"]
    assert (tmp_path / "home" / "run-0" / "manifest.json").read_text() == "{}"
    with pytest.raises(BadInput, match="run-0 is there already, and nothing is overwritten"):
        unpack(archive, tmp_path / "home")


@pytest.mark.slow
def test_a_stopped_job_packs_what_its_command_wrote_last(tmp_path):
    process = begin(tmp_path, "60", "0")
    until = time.monotonic() + 60
    while "ready" not in (tmp_path / "job-driver-j1.log").read_text() and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)  # as Ray does: every process of the job
    assert process.wait(60) == 143
    (run,) = unpack(tmp_path / archive_of("job-driver-j1.log"), tmp_path / "home")
    assert (run / "stopped").exists()


def test_a_packed_file_never_lands_outside(tmp_path):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as packed:
        packed.add(__file__, arcname="../escaped")
    with pytest.raises((BadInput, tarfile.OutsideDestinationError)):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "a" / "home")
    assert not (tmp_path / "a" / "escaped").exists()


@pytest.mark.parametrize(
    ("folder", "run", "there", "sent"),
    [
        (None, "runs/b", "b", {"b/x"}),
        (".", "runs/b", "runs/b", {"own.py", "lib/own.py", "runs/b/x", "kept/c/x", "kept/d/x"}),
        (".", "kept/c", "kept/c", {"own.py", "lib/own.py", "kept/c/x"}),
        (".", None, None, {"own.py", "lib/own.py", "kept/c/x", "kept/d/x"}),
    ],
)
def test_a_run_folder_is_sent_along_without_its_neighbours(tmp_path, monkeypatch, folder, run, there, sent):
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    monkeypatch.chdir(tmp_path)
    for name in ("own.py", "lib/own.py", "runs/a/x", "runs/b/x", "kept/c/x", "kept/d/x", ".venv/x"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    base, left_out, inside = sending(folder, run)
    assert inside == there
    root, found = Path(base).resolve(), set()
    _dir_travel(root, [_get_excludes(root, left_out)], lambda path: found.add(path), include_gitignore=False)
    assert {str(path.relative_to(root)) for path in found if path.is_file()} == sent


def test_a_run_folder_outside_of_what_is_sent_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"--resume: '\.\./elsewhere' is not in '.', the folder that is sent along"):
        sending(".", "../elsewhere")

"""Brings the run folders of a job home, for a submitter who shares no folder with the cluster.

    the job          python -m fedactors.runtime.ray.handback COMMAND...   runs COMMAND --out FOLDER, packs the folder
    the submitter    Jobs.fetch(job, out)                                  asks the job server for the file, unpacks it

The job server hands out the files of its folder of logs, and nothing else that a job writes; so the packed folder goes
there, beside the log of the job, and stays as long as that does. A run folder holds no secret.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fedactors.errors import BadInput
from fedactors.records.storage import disk_errors

_MODULE = "fedactors.runtime.ray.handback"


def wrapped(words: Sequence[str]) -> list[str]:
    """Return the command that runs `words` in a job and leaves their run folders for the submitter."""
    return ["python", "-m", _MODULE, *words]


def archive_of(log: str) -> str:
    """Return the name of a job's packed run folders, given the name of its log."""
    return f"{log.removesuffix('.log')}-runs.tar.gz"


def unpack(archive: Path, out: Path) -> list[Path]:
    """Unpack run folders under `out` and return them.

    Raises:
        BadInput: one of them is there already, or `out` cannot be written.
    """
    with disk_errors(out), tarfile.open(archive) as packed:
        names = sorted({Path(name).parts[0] for name in packed.getnames()})
        for name in names:
            if (out / name).exists():
                raise BadInput(f"--out: {out / name} is there already, and nothing is overwritten")
        out.mkdir(parents=True, exist_ok=True)
        packed.extractall(out, filter="data")
    return [out / name for name in names]


def main(words: Sequence[str]) -> int:
    """Run a command with an ``--out`` of its own, pack what it left there, and return its exit code."""
    # Ray signals every process of a job that is stopped: the command writes its checkpoint, and this one waits for it
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    log = Path(os.readlink("/proc/self/fd/1"))
    with tempfile.TemporaryDirectory(prefix="fedactors-job-") as out:
        code = subprocess.run([*words, "--out", out], check=False).returncode
        if os.listdir(out):
            _pack(Path(out), log.with_name(archive_of(log.name)))
    return code if code >= 0 else 128 - code


def _pack(folder: Path, archive: Path) -> None:
    half = archive.with_suffix(".half")
    with tarfile.open(half, "w:gz", compresslevel=1) as packed:
        for run in sorted(folder.iterdir()):
            packed.add(run, arcname=run.name)
    shutil.move(half, archive)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

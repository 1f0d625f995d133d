"""What a driver that was killed left on this machine: found at the next start, and removed; nothing that is not ours.

Folders are known by their names (`fedactors.records.temporary`). Ray's own processes of an embedded cluster are known
by the cluster's folder, which they name on their command lines or hold files of open, and by the program of Ray's that
they run.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import psutil

from fedactors.records.temporary import remove_folders

_RAYS_TITLE = "ray::"
_RAYS_PROGRAM = re.compile(r"/ray/(core|dashboard|_private)/")
_MOST_WORDS_BEFORE_IT = 4
_END_SECONDS = 3.0


def remove_leftovers() -> list[Path]:
    """End the processes and remove the folders of owners that are gone; return the folders."""
    return remove_folders({"ray": end_processes_of, "lane": lambda _: None, "run": lambda _: None})


def end_processes_of(folder: Path, seconds: float = _END_SECONDS) -> None:
    """End this user's processes of an embedded cluster: Ray's own that name its folder or hold a file of it open.

    Others that do so too, such as an editor with one of its logs, are none of ours.

    Args:
        folder: of the cluster.
        seconds: that they are given to end by themselves.
    """
    ours = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = process.cmdline()
            if process.uids().real != os.getuid() or not _is_rays(words):
                continue
            if any(str(folder) in word for word in words) or _holds_open(process.pid, folder):
                process.terminate()
                ours.append(process)
    _, alive = psutil.wait_procs(ours, timeout=seconds)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=_END_SECONDS)


def _is_rays(words: list[str]) -> bool:
    """Say whether a command line is a program of Ray's, or the title that its workers and agents give themselves."""
    return bool(words) and (
        words[0].startswith(_RAYS_TITLE) or any(map(_RAYS_PROGRAM.search, words[:_MOST_WORDS_BEFORE_IT]))
    )


def _holds_open(pid: int, folder: Path) -> bool:
    descriptors = Path(f"/proc/{pid}/fd")
    return any(os.readlink(one).startswith(f"{folder}/") for one in descriptors.iterdir())

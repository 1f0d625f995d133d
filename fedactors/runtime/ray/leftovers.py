"""What a driver that was killed left on this machine: found at the next start, and removed; nothing that is not ours.

Every folder that a process of ours makes for its own lifetime carries in its name where its process is (host and
namespace of process numbers), the process's number and its start, so that it is known whose it was when that process is
gone. A folder from elsewhere, a container with the same /tmp say, stays: whether its owner lives cannot be seen here.
Ray's own processes of an embedded cluster are known by the cluster's folder, which they name on their command lines or
hold files of open, and by the program of Ray's that they run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

_NAME = re.compile(r"fedactors-(lane|ray)-([0-9a-f]{4})-(\d+)-([0-9a-f]+)-\d")
_RAYS_TITLE = "ray::"
_RAYS_PROGRAM = re.compile(r"/ray/(core|dashboard|_private)/")
_MOST_WORDS_BEFORE_IT = 4
_END_SECONDS = 3.0


def make_folder(kind: str) -> Path:
    """Make a folder of this process's own, of the kind ``lane`` (a socket) or ``ray`` (an embedded cluster).

    Its name is short: Ray puts sockets 64 characters deeper, and the path of a socket has 107 at most.
    """
    pid = os.getpid()
    for number in range(10):
        folder = Path(tempfile.gettempdir()) / f"fedactors-{kind}-{_place()}-{pid}-{start_of(pid) or 0:x}-{number}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(f"{folder} and those before it are there already")


def remove_leftovers() -> list[Path]:
    """End the processes and remove the folders of owners that are gone; return the folders."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob("fedactors-*"):
        found = _NAME.fullmatch(folder.name)
        with suppress(FileNotFoundError):
            if found is None or folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            kind, place, pid, start = found.group(1), found.group(2), int(found.group(3)), int(found.group(4), 16)
            if place != _place() or start_of(pid) == start:
                continue  # it is not known here whether its owner is alive, or it is
            if kind == "ray":
                end_processes_of(folder)
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


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


def _place() -> str:
    """Return four digits for the host and the namespace in which process numbers mean what they mean here."""
    machine = Path("/etc/machine-id")
    machine_id = machine.read_text().strip() if machine.is_file() else ""
    where = f"{socket.gethostname()} {machine_id} {os.stat('/proc/self/ns/pid').st_ino}"
    return hashlib.sha256(where.encode()).hexdigest()[:4]


def start_of(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None: there is none of that number."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])

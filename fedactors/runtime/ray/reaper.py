"""Ends what an embedded cluster leaves when its driver is killed: a small process that outlives the driver by seconds.

    driver ──a pipe that nobody writes to──▶ python -m fedactors.runtime.ray.reaper DRIVER [FOLDER]

The driver's process is watched, and the pipe, which ends with it however it ends; a child that the driver forked holds
the pipe too, and is not waited for. What a driver that ends in peace has removed itself is not there any more;
everything else of the cluster goes now, and does not wait for the next start.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from fedactors.runtime.ray import leftovers

_MODULE = "fedactors.runtime.ray.reaper"
_PATIENCE = 1.0
"""Seconds for Ray's processes to end by themselves, whose driver is dead."""
_LOOKS = 12
"""At what is left on this host of a driver that had joined a cluster, one a second."""


class Reaper:
    """The driver's end: it watches until `dismiss`, or until this process is no more.

    Args:
        folder: of the embedded cluster; None: of a cluster that was joined only sockets of this host are removed.
    """

    def __init__(self, folder: Path | None) -> None:
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        # in a session of its own: the signals of a terminal are meant for the driver
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(os.getpid()), *([] if folder is None else [str(folder)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def dismiss(self) -> None:
        """Let it go: nothing is left for it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def main(driver: int, folder: Path | None) -> None:
    """Wait for the driver's end, then remove what it left."""
    ends: list[int] = [sys.stdin.fileno()]
    with suppress(OSError):
        ends.append(os.pidfd_open(driver))
    # it was the parent until just now, so that this is its number still, or its end was before
    if os.getppid() == driver:
        select.select(ends, [], [])
    if folder is not None:
        leftovers.end_processes_of(folder, _PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)
        leftovers.remove_leftovers()  # the folders of its actors' sockets
        return
    for _ in range(_LOOKS):  # the cluster ends a dead driver's actors
        leftovers.remove_leftovers()
        time.sleep(1.0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

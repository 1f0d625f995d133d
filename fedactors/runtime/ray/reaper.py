"""Speaks and clears up for a driver that ended at once: a small process that outlives the driver by seconds.

    driver ──a pipe──▶ python -m fedactors.runtime.ray.reaper DRIVER [FOLDER]

The driver's process is watched, and the pipe, which ends with it however it ends; a child that the driver forked holds
the pipe too, and is not waited for. What a driver that ends in peace has removed itself is not there any more;
everything else of the cluster goes now, and does not wait for the next start.

A driver that is killed says nothing, and neither does one that Ray's library ends: it does so with exit code 1 and at
once when it finds the raylet of its host gone in the midst of a call. The driver's standard error is the reaper's too,
where it then says one line, and what the driver gave it to add.
"""

from __future__ import annotations

import os
import re
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
_RAYLET_IS_GONE = re.compile(r"^\[[^]]* [WEFC] [^]]*\] .*(raylet|plasma store)", re.IGNORECASE)
_SPOKEN = "spoken"
_ADVICE = "advice "


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
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        self._advice = ""

    def advise(self, advice: str) -> None:
        """Give it a line to add to what it says should this process end without a word."""
        if advice != self._advice:
            self._advice = advice
            self._tell(_ADVICE + " ".join(advice.split("\n")))

    def be_silent(self) -> None:
        """Let it say nothing: this process has said itself why it ends."""
        self._tell(_SPOKEN)

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None:
            with suppress(OSError, ValueError):  # it was killed, or dismissed
                print(line, file=self._process.stdin, flush=True)

    def dismiss(self) -> None:
        """Let it go: nothing is left for it."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def main(driver: int, folder: Path | None) -> None:
    """Wait for the driver's end, say what it did not say, then remove what it left."""
    told = _told_until_the_end(driver)
    if _SPOKEN not in told:
        advice = [line.removeprefix(_ADVICE) for line in told if line.startswith(_ADVICE)]
        print("\n".join([f"fedactors: {_why(driver, folder)}", *advice[-1:]]), file=sys.stderr, flush=True)
    # whoever reads it to its end is not kept waiting by what follows
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    if folder is not None:
        leftovers.end_processes_of(folder, _PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)
        leftovers.remove_leftovers()  # the folders of its actors' sockets
        return
    for _ in range(_LOOKS):  # the cluster ends a dead driver's actors
        leftovers.remove_leftovers()
        time.sleep(1.0)


def _told_until_the_end(driver: int) -> list[str]:
    """Return the lines that came through the pipe when the driver is no more."""
    pipe, told = sys.stdin.fileno(), b""
    os.set_blocking(pipe, False)
    ends: list[int] = [pipe]
    with suppress(OSError):
        ends.append(os.pidfd_open(driver))
    # it was the parent until just now, so that this is its number still, or its end was before
    over = os.getppid() != driver
    while True:
        ready = [] if over else select.select(ends, [], [])[0]
        over = over or any(one != pipe for one in ready)
        with suppress(BlockingIOError):
            while block := os.read(pipe, 1 << 16):
                told += block
            return told.decode(errors="replace").splitlines()  # nobody holds its other end
        if over:
            return told.decode(errors="replace").splitlines()


def _why(driver: int, folder: Path | None) -> str:
    """Return why the driver ended, as far as it can be known: the last that Ray's library wrote into its own log."""
    for log in () if folder is None else folder.glob(f"session_*/logs/python-core-driver-*_{driver}.log"):
        with suppress(OSError):
            last = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            if _RAYLET_IS_GONE.search(last):
                return "Ray: its raylet is gone, and Ray's library ended the run's process at once (exit code 1)"
    return (
        f"the run's process ({driver}) ended without a word: it was killed, or Ray's library ended it "
        "(exit code 1), as it does when the raylet of its host is gone"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

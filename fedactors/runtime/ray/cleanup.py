"""What happens when a driver ends at once, or cannot end: the reaper speaks and clears up, the watchdog ends it.

    driver ──a pipe──▶ python -m fedactors.runtime.ray.cleanup DRIVER [FOLDER]      the reaper
       └─a thread──▶ DriverWatchdog ──greets──▶ Ray's services

The reaper watches the driver's process and the pipe, which ends with it however it ends. A driver that is killed says
nothing, and neither does one that Ray's library ends (exit code 1, when the raylet of its host is gone in the midst of
a call): the reaper then says one line on the driver's standard error, adds what the driver gave it, and removes what is
left of the cluster. What a reaper that was killed too left is removed at the next start (`remove_orphans`).

The watchdog ends a driver whose cluster is gone while Ray's library holds it in a call that does not return; where the
event loop runs, `processes.watch_services` is sooner.

Folders are known by their names (`fedactors.runs.storage`), Ray's own processes of an embedded cluster by its folder,
which they name on their command lines or hold files of open, and by the program of Ray's that they run.
"""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from fedactors.errors import PartyLost
from fedactors.runs.storage import remove_folders
from fedactors.runtime.addresses import greets

_RAYS_TITLE = "ray::"
_RAYS_PROGRAM = re.compile(r"/ray/(core|dashboard|_private)/")
_MOST_WORDS_BEFORE_IT = 4
_END_SECONDS = 3.0


def remove_orphans() -> list[Path]:
    """End the processes and remove the folders of owners that are gone; return the folders."""
    return remove_folders({"ray": end_processes_of, "socket": lambda _: None, "run": lambda _: None})


def end_processes_of(folder: Path, seconds: float = _END_SECONDS) -> None:
    """End this user's processes of an embedded cluster; those that do not end within so many seconds are killed.

    Others that have its files open too, such as an editor with one of its logs, are none of ours.
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


_MODULE = "fedactors.runtime.ray.cleanup"
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
        # in a session of its own: the signals of a terminal are meant for the driver; others may write where that began
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, str(os.getpid()), *([] if folder is None else [str(folder)])],
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
    # a reader that waits for its end is not kept waiting by what follows
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    if folder is not None:
        end_processes_of(folder, _PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)
        remove_orphans()  # the folders of its actors' sockets
        return
    for _ in range(_LOOKS):  # the cluster ends a dead driver's actors
        remove_orphans()
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
    for log in () if folder is None else folder.glob(f"*/session_*/logs/python-core-driver-*_{driver}.log"):
        with suppress(OSError):
            last = log.read_text(errors="replace").rstrip().rpartition("\n")[2]
            if _RAYLET_IS_GONE.search(last):
                return "Ray: its raylet is gone, and Ray's library ended the run's process at once (exit code 1)"
    return (
        f"the run's process ({driver}) ended without a word: it was killed, or Ray's library ended it "
        "(exit code 1), as it does when the raylet of its host is gone"
    )


_WATCH_SECONDS = 20
"""So many in a row without a heartbeat, each of two seconds: Ray ends the process after sixty."""
_START_LOOKS = 90
"""So many until an embedded cluster is up: Ray itself gives up on most of its parts after thirty seconds."""
GCS = "control service (GCS)"


class DriverWatchdog:
    """Watches from a thread of its own, until `dismiss`.

    Args:
        folder: of the embedded cluster that is being started.
        has_spoken: is told that this process says itself why it ends.
    """

    def __init__(self, folder: Path, has_spoken: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._has_spoken = has_spoken
        self._services: Mapping[str, str] = {}
        self._dismissed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def watch(self, services: Mapping[str, str]) -> None:
        """Watch these from now on (addresses, by what they are called): the cluster is up."""
        self._services = services

    def dismiss(self) -> None:
        """Stop watching."""
        self._dismissed.set()

    def _watch(self) -> None:
        silent: Counter[str] = Counter()
        looks = 0
        while not self._dismissed.wait(1.0):
            looks += 1
            gcs = of_folder(self._folder)
            services = self._services or ({GCS: gcs} if gcs else {})
            for what, lives in asyncio.run(_greeted_by(services)).items():
                silent[what] = 0 if lives else silent[what] + 1
                if silent[what] >= _WATCH_SECONDS:
                    self._end(f"Ray: its {what} at {services[what]} gave no heartbeat for {2 * _WATCH_SECONDS} s")
            if not self._services and looks >= _START_LOOKS:
                self._end(
                    f"Ray did not start on this machine within {_START_LOOKS} s (a busy machine may need another try)"
                )

    def _end(self, text: str) -> None:
        if not self._dismissed.is_set():
            self._has_spoken()
            print(f"fedactors: {text}", file=sys.stderr, flush=True)
            os._exit(PartyLost.exit_code)


def of_folder(folder: Path) -> str | None:
    """Return the address of the control service of an embedded cluster, once it has one."""
    with suppress(OSError):  # Ray is making what is looked at, or somebody removes it
        for file in folder.glob("session_*/gcs_server_port_*"):
            if (port := file.read_text().strip()).isdecimal():
                return f"127.0.0.1:{port}"
    return None


async def _greeted_by(services: Mapping[str, str]) -> dict[str, bool]:
    tries = (asyncio.wait_for(greets(address), 1.0) for address in services.values())
    found = await asyncio.gather(*tries, return_exceptions=True)
    return {what: not isinstance(error, TimeoutError) for what, error in zip(services, found, strict=True)}


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

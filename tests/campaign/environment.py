"""Where a run of the campaign lives: folders, processes and a network of its own, so that all it leaves can be counted.

Every process of a run carries a mark in its environment, which it hands down; its temporary files lie in a folder of
its own. Where the machine allows it, the run has a network namespace, whose only link is its loopback, and a small
disk for its run folders.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import ray

from fedactors.runtime.addresses import free_port
from tests import forked_workers

ROOT = Path(__file__).parents[2]
DISK_MEGABYTES = 128
_STARTS = 5
_OURS = re.compile(r"ray|plasma|fedactors-(?!pool)")
_MARK = "FEDACTORS_CAMPAIGN"
_PROGRAMS = {
    "raylet": ("/raylet/raylet",),
    "GCS": ("/gcs/gcs_server",),
    "agent": ("/agent.py", "/agent/main.py", "ray::DashboardAgent", "ray::RuntimeEnvAgent"),
}


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=check, capture_output=True, text=True)


class Disk:
    """A small disk mounted on a folder, which can be full.

    Raises:
        OSError, subprocess.CalledProcessError: this user may not mount.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m,mode=700", "tmpfs", str(folder))

    def fill(self) -> None:
        """Leave no byte free."""
        with suppress(OSError), open(self.folder / "ballast", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        """Free it again."""
        (self.folder / "ballast").unlink(missing_ok=True)

    def remove(self) -> None:
        _run("umount", "-l", str(self.folder), check=False)


class Environment:
    """See the module.

    Args:
        network: whether the run has a network namespace of its own.
        disk: whether its run folders lie on a small disk of their own.
        cluster: whether a cluster runs there, which its runs join.
    """

    def __init__(self, *, network: bool = False, disk: bool = False, cluster: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="campaign-"))
        self.out, self.temporary = self.folder / "out", _short_folder()
        self.out.mkdir()
        self.mark = secrets.token_hex(8)
        self._memory = set(os.listdir("/dev/shm"))
        self.network: str | None = None
        self.disk: Disk | None = None
        if network:
            self.network = f"fa-c-{self.mark[:6]}"
            _run("ip", "netns", "add", self.network)
            self.link(up=True)
        if disk:
            self.disk = Disk(self.out)
        self.address: str | None = None
        self._services: set[int] = set()
        self._cluster = _short_folder() if cluster else None
        self._workers: dict[str, str] = {}
        self._open = ExitStack()
        if cluster:
            self._start_cluster()

    def _start_cluster(self) -> None:
        port = free_port()
        self._workers = self._open.enter_context(forked_workers.server())
        words = [sys.executable, "-m", "tests.campaign.head", "start", "--head"]
        words += [f"--port={port}", "--num-cpus=8", "--object-store-memory=200000000", "--include-dashboard=false"]
        words += ["--disable-usage-stats", f"--temp-dir={self._cluster}"]
        words = [*self._inside(), *words]
        for _ in range(_STARTS):  # Ray gives itself 30 seconds, which a starved machine may not have
            done = subprocess.run(words, cwd=self.folder, env=self._environment(), capture_output=True, check=False)
            if done.returncode == 0:
                self.address, self._services = f"{ray.util.get_node_ip_address()}:{port}", set(self.processes())
                return
            self.end_all()
        raise RuntimeError(f"no cluster: {done.stderr.decode()[-300:]}")

    def _inside(self) -> list[str]:
        return ["ip", "netns", "exec", self.network] if self.network else []

    def _environment(self) -> dict[str, str]:
        environment = {
            **os.environ,
            _MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "ignore",
            "OMP_NUM_THREADS": "1",
            "RAY_worker_niceness": "0",  # on a busy machine Ray's workers would wait for everybody else
        }
        environment.pop("RAY_ADDRESS", None)
        if self._cluster is not None:
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 2 * self.mark, **self._workers}
        return environment

    def start(self, pids: Path, *words: str) -> subprocess.Popen[str]:
        """Start a driver; standard output and error go to files beside `pids`."""
        with open(pids.with_suffix(".out"), "w") as out, open(pids.with_suffix(".err"), "w") as err:
            return subprocess.Popen(
                [*self._inside(), sys.executable, "-m", "tests.campaign.driver", str(pids), *words],
                cwd=self.folder,
                env=self._environment(),
                stdout=out,
                stderr=err,
                text=True,
            )

    # --- what lives there ---

    def processes(self) -> dict[int, str]:
        """Return the living processes of the place, and what each of them is."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            with suppress(OSError):
                folder = Path("/proc", entry)
                # Ray's processes write their titles over their environment, but stay where they were started
                here = Path(os.readlink(folder / "cwd")).is_relative_to(self.folder)
                if int(entry) in self._services:
                    continue
                if not here and f"{_MARK}={self.mark}".encode() not in (folder / "environ").read_bytes():
                    continue
                if (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    continue
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if self.address is not None and words.startswith("ray::IDLE"):
                    continue
                found[int(entry)] = _kind(words)
        return found

    def waited(self) -> float:
        """Return how many seconds the process waited for a core that did so longest."""
        waits = [0.0]
        for pid in self.processes():
            with suppress(OSError):
                waits.append(int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9)
        return max(waits)

    def left(self) -> tuple[list[str], list[str]]:
        """Return what is left of runs that ended: processes, and files of ours (sockets, shared memory) by name."""
        files = [str(path.relative_to(self.temporary)) for path in self.temporary.iterdir()]
        # other programs of this machine make memory too, among them pools of simulated runs
        memory = set(os.listdir("/dev/shm")) - self._memory
        files += [f"/dev/shm/{name}" for name in memory if _OURS.search(name)]
        files += [str(p.relative_to(self.out)) for p in self.out.glob("*/.*.part")]
        return sorted(self.processes().values()), sorted(files)

    # --- faults of the place ---

    def link(self, *, up: bool) -> None:
        """Take the only link of the place up or down."""
        _run("ip", "-n", str(self.network), "link", "set", "lo", "up" if up else "down")

    # --- the end ---

    def end_all(self) -> None:
        """End every process that is left."""
        until = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < until:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def remove(self) -> None:
        """Remove every trace."""
        self._services, self.address = set(), None
        self.end_all()
        self._open.close()
        if self.disk is not None:
            self.disk.remove()
        if self.network:
            _run("ip", "netns", "del", self.network, check=False)
        for folder in filter(None, (self.folder, self.temporary, self._cluster)):
            shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> Path:
    """Make a folder for temporary files: sockets lie deep below it, and the path of a socket has 107 characters."""
    while True:
        folder = Path("/tmp", secrets.token_hex(2))
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


def _kind(words: str) -> str:
    for kind, parts in _PROGRAMS.items():
        if any(part in words for part in parts):
            return kind
    if "tests.campaign.driver" in words:
        return "driver"
    if words.startswith("ray::ActorProcess"):
        return "actor"
    return words[:60].strip()


def whether_possible() -> dict[str, str | None]:
    """Say for networks and disks of one's own why they cannot be made here, or None."""
    why: dict[str, str | None] = {}
    for what in ("network", "disk"):
        try:
            Environment(**{what: True}).remove()
            why[what] = None
        except (subprocess.CalledProcessError, OSError) as error:
            why[what] = str(getattr(error, "stderr", "") or error).strip()
    return why

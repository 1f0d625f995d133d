"""Checks of `fedactors doctor`: whether this machine can run fedactors, and what a cluster allows without a token.

Ray is really started once, while the rest is looked at.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from fedactors.runs.storage import make_folder
from fedactors.runtime.ray.cluster import asks_by_itself, longest_folder, token_path, user_token

_SECONDS = 5.0
_PORTS = {6379: "the cluster's store (GCS)", 8265: "dashboard and jobs", 10001: "Ray client", 8076: "agent"}
_TOKEN, _TLS = "token, on this machine", "TLS, on this machine"
START_SECONDS = 60.0
"""How long an embedded Ray may take to start and answer."""
_GIB = 1 << 30
_MOST_OPEN_FILES = 4096
_TRIAL = """
import ray
from fedactors.runtime.ray import cluster
joined = cluster.join(None, 2)
assert ray.get(ray.remote(num_cpus=1)(lambda: 2 + 3).remote()) == 5
cluster.leave(joined, ())
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `advice` says what to do unless all is well."""

    what: str
    state: Literal["ok", "open", "unknown", "fault"]
    result: str
    advice: str = ""


Look = tuple[Literal["ok", "open", "unknown", "fault"], str, str]
"""State, what was found, advice."""


# --- what unauthenticated clients can do ---


def examine_here() -> list[Finding]:
    """Look at this process's own settings for Ray: they are those of a cluster that is started from here."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    asks = mode == "token" or (not mode and asks_by_itself())
    others = "asks for a token" if asks else "other users of this machine reach it without a token"
    embedded = Finding("embedded Ray", "ok", f"listens on the loopback only, and ends with the run; {others}")
    if mode == "token" or (not mode and user_token() is not None):
        token = _examine_token_file("RAY_AUTH_MODE=token" if mode else "RAY_AUTH_MODE is not set, but there is a token")
    else:
        found = "RAY_AUTH_MODE is not set: a cluster started from here asks nobody for a token"
        advice = "before ray start set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file that only you read"
        token = Finding(_TOKEN, "open", found, advice)
    if os.environ.get("RAY_USE_TLS", "0") == "1":
        return [embedded, token, Finding(_TLS, "ok", "RAY_USE_TLS=1")]
    found = "RAY_USE_TLS is not set: what hosts say to each other can be read"
    advice = "before ray start set RAY_USE_TLS=1 and the certificates on every host, or use a private network"
    return [embedded, token, Finding(_TLS, "open", found, advice)]


def _examine_token_file(found: str) -> Finding:
    if os.environ.get("RAY_AUTH_TOKEN"):
        found = f"{found}, the token in RAY_AUTH_TOKEN: every process that is started from here inherits it"
        advice = "put it into a file that only you read, and its path into RAY_AUTH_TOKEN_PATH"
        return Finding(_TOKEN, "open", found, advice)
    path = token_path()
    try:
        shared = path.stat().st_mode & 0o077
    except OSError:
        return Finding(_TOKEN, "fault", f"{found}, but {path} cannot be read", "ray get-auth-token --generate")
    if shared:
        return Finding(_TOKEN, "open", f"{found}, {path} can be read by other users", f"chmod 600 {path}")
    return Finding(_TOKEN, "ok", f"{found}, {path} can be read by its owner only")


def examine_cluster(address: str) -> list[Finding]:
    """Look at the cluster whose dashboard is at `address` (``http://HEAD:8265``), without a token."""
    parts = urlsplit(address)
    host = parts.hostname or "localhost"
    is_open = host not in ("localhost", "127.0.0.1", "::1")
    clear = "tokens and logs travel in the clear: put it behind TLS, a tunnel or a private network"
    encryption: Look = ("ok", parts.scheme, "") if parts.scheme == "https" else ("open", parts.scheme, clear)
    advice = "let only the cluster's own hosts reach it: a host that can, and has the token, runs code in it"
    ports = [
        Finding(f"port {port}", "open" if is_open else "ok", f"{what} answers at {host}", advice)
        for port, what in _PORTS.items()
        if _listens(host, port)
    ]
    return [_examine_token(address), Finding("encryption of the dashboard", *encryption), *ports]


def _examine_token(address: str) -> Finding:
    request = urllib.request.Request(f"{address.rstrip('/')}/api/jobs/")
    what = "token required"
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Finding(what, "ok", f"refused without a token (HTTP {error.code})")
        return Finding(what, "unknown", f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding(what, "fault", f"no answer: {reason}", "is the address the dashboard's?")
    found = "jobs are listed without a token: anybody who reaches this port runs code in the cluster"
    advice = "start every host with RAY_AUTH_MODE=token (ray get-auth-token --generate makes a token)"
    return Finding(what, "open", found, advice)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


# --- whether this machine can run fedactors ---


def examine_machine(show: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Look at Python, torch, memory, cores, shared memory, ports, files and folders, while Ray is being started."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    began = time.monotonic()
    trial = subprocess.Popen(
        [sys.executable, "-c", _TRIAL], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    findings = []
    for what, look in _LOOKS.items():
        show(f"looking at this machine: {what}")
        findings.append(Finding(what, *look()))
    show("looking at this machine: starting Ray")
    return [*findings[:2], _ray(trial, began), *findings[2:]]


def _python() -> Look:
    # an older one than fedactors needs is refused by pip
    return "ok", f"{platform.python_version()} at {sys.executable}", ""


def _torch() -> Look:
    try:
        import torch

        torch.ones(4, 4).mm(torch.ones(4, 4))
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except Exception as error:
        return "fault", f"cannot be used: {error}", "install it again: pip install --force-reinstall torch"
    return "ok", f"{torch.__version__}, computes on {', '.join(['CPU', *devices])}", ""


def _ray(trial: subprocess.Popen[str], began: float) -> Finding:
    try:
        _, said = trial.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        trial.terminate()
        trial.communicate()
        said = f"no answer within {START_SECONDS:g} s"
    if trial.returncode == 0:
        import ray

        seconds = time.monotonic() - began
        return Finding("Ray", "ok", f"{ray.__version__}, started and did a task within {seconds:.0f} s")
    lines = said.strip().splitlines() or [f"exit code {trial.returncode}"]
    advice = "see the lines below on memory, shared memory, files and folders; until then use --runtime simulated"
    return Finding("Ray", "fault", f"did not start: {lines[-1]}", advice)


def _memory() -> Look:
    free = _free_memory()
    if free is None:
        return "unknown", "this system does not say how much is free", ""
    found = f"{free / _GIB:.1f} GiB free"
    if free >= 2 * _GIB:
        return "ok", found, ""
    advice = "on Ray every actor is a process of some 0.2 GiB: use few workers, or --runtime simulated (one process)"
    return "open" if free >= _GIB else "fault", found, advice


def _free_memory() -> int | None:
    """Return the bytes that may still be used, by the machine's count and by the container's, whichever is less."""
    counts = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        counts += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            counts.append(int(limit) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(counts, default=None)


def _cores() -> Look:
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if number >= 2:
        return "ok", f"{number}", ""
    return "open", f"{number}", "parties take turns: times on Ray say little here, use --runtime simulated for them"


def _shared_memory() -> Look:
    path = Path("/dev/shm")
    if not path.is_dir():
        return "ok", "no /dev/shm: Ray uses files", ""
    free = shutil.disk_usage(path).free
    found = f"{free / _GIB:.1f} GiB free in {path}"
    advice = "in a container: docker run --shm-size=2g; else Ray's store lies on disk, and large payloads are slow"
    return ("ok", found, "") if free >= _GIB else ("open", found, advice)


def _ports() -> Look:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 1.0):
            pass
    except OSError as error:
        return "fault", f"127.0.0.1: {error}", "allow connections on the loopback: Ray's own services talk over it"
    taken = [port for port in (6379, 8265) if _is_taken(port)]
    if not taken:
        return "ok", "the loopback can be used; 6379 and 8265 are free for a cluster", ""
    found = f"{' and '.join(map(str, taken))} taken, perhaps by a cluster that runs here"
    return (
        "open",
        found,
        "runs of this machine do not need them; for ray start give other ones (--port, --dashboard-port)",
    )


def _is_taken(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return False
    except OSError:
        return True


def _files() -> Look:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= _MOST_OPEN_FILES or soft == resource.RLIM_INFINITY:
        return "ok", f"up to {soft:,} in a process", ""
    advice = f"with many actors: ulimit -n {min(hard, 65536) if hard > 0 else 65536}"
    return "open", f"up to {soft} in a process", advice


def _folder() -> Look:
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {free / _GIB:.1f} GiB free"
    try:
        local = make_folder("ray")
        local.rmdir()
    except OSError as error:
        return "fault", f"{folder}: {error}", "set TMPDIR to a folder that you may write to"
    if (over := len(str(local)) - longest_folder()) > 0:
        advice = f"set TMPDIR to a path that is shorter by {over} characters: Ray puts sockets below it"
        return "fault", found, advice
    if free < 2 * _GIB:
        advice = "set TMPDIR to a disk with 2 GiB free: Ray writes its logs there, and warns when it is nearly full"
        return "open", found, advice
    return "ok", found, ""


_LOOKS: dict[str, Callable[[], Look]] = {
    "Python": _python,
    "torch": _torch,
    "memory": _memory,
    "cores": _cores,
    "shared memory": _shared_memory,
    "ports": _ports,
    "open files": _files,
    "temporary files": _folder,
}

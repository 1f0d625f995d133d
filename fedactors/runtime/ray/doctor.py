"""What a cluster lets strangers do: whether it asks for a token, encrypts, and where it listens.

Whether this machine can run fedactors: what runs need of it is looked at, and Ray is really started once.
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
from fedactors.runtime.ray.cluster import asks_by_itself, own_token, token_path

_SECONDS = 5.0
_PORTS = {6379: "the cluster's store (GCS)", 8265: "dashboard and jobs", 10001: "Ray client", 8076: "agent"}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at; `advice` says what to do unless all is well."""

    what: str
    state: Literal["ok", "open", "unknown", "fault"]
    found: str
    advice: str = ""


def examine_here() -> list[Finding]:
    """Look at this process's own settings for Ray: they are those of a cluster that is started from here."""
    mode, tls = os.environ.get("RAY_AUTH_MODE", ""), os.environ.get("RAY_USE_TLS", "0")
    asks = mode == "token" or (not mode and asks_by_itself())
    others = "asks for a token" if asks else "other users of this machine reach it without a token"
    embedded = Finding(
        what="embedded Ray", state="ok", found=f"listens on the loopback only, and ends with the run; {others}"
    )
    token = Finding(
        what="token, on this machine",
        state="open",
        found="RAY_AUTH_MODE is not set: a cluster started from here asks nobody for a token",
        advice="before ray start set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file that only you read",
    )
    if mode == "token" or (not mode and own_token() is not None):
        token = _examine_token_file("RAY_AUTH_MODE=token" if mode else "RAY_AUTH_MODE is not set, but there is a token")
    encryption = Finding(
        what="TLS, on this machine",
        state="ok" if tls == "1" else "open",
        found="RAY_USE_TLS=1" if tls == "1" else "RAY_USE_TLS is not set: what hosts say to each other can be read",
        advice=""
        if tls == "1"
        else "before ray start set RAY_USE_TLS=1 and the certificates on every host, or use a private network",
    )
    return [embedded, token, encryption]


def _examine_token_file(found: str) -> Finding:
    what = "token, on this machine"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return Finding(
            what=what,
            state="open",
            found=f"{found}, the token in RAY_AUTH_TOKEN: every process that is started from here inherits it",
            advice="put it into a file that only you read, and its path into RAY_AUTH_TOKEN_PATH",
        )
    path = token_path()
    try:
        shared = path.stat().st_mode & 0o077
    except OSError:
        return Finding(
            what=what,
            state="fault",
            found=f"{found}, but {path} cannot be read",
            advice="ray get-auth-token --generate",
        )
    return Finding(
        what=what,
        state="open" if shared else "ok",
        found=f"{found}, {path} can be read by {'other users' if shared else 'its owner only'}",
        advice=f"chmod 600 {path}" if shared else "",
    )


def examine_cluster(address: str) -> list[Finding]:
    """Look at the cluster whose dashboard is at `address` (``http://HEAD:8265``), as a stranger without a token."""
    parts = urlsplit(address)
    host = parts.hostname or "localhost"
    findings = [_examine_token(address)]
    encrypted = parts.scheme == "https"
    findings.append(
        Finding(
            what="encryption of the dashboard",
            state="ok" if encrypted else "open",
            found=parts.scheme,
            advice=""
            if encrypted
            else "tokens and logs travel in the clear: put it behind TLS, a tunnel or a private network",
        )
    )
    for port, what in _PORTS.items():
        if _listens(host, port):
            findings.append(
                Finding(
                    what=f"port {port}",
                    state="open" if host not in ("localhost", "127.0.0.1", "::1") else "ok",
                    found=f"{what} answers at {host}",
                    advice="let only the cluster's own hosts reach it: whoever can, and has the token, runs code in it",
                )
            )
    return findings


def _examine_token(address: str) -> Finding:
    request = urllib.request.Request(f"{address.rstrip('/')}/api/jobs/")
    what = "token asked of strangers"
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return Finding(what=what, state="ok", found=f"refused without a token (HTTP {error.code})")
        return Finding(what=what, state="unknown", found=f"HTTP {error.code}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        return Finding(what=what, state="fault", found=f"no answer: {reason}", advice="is the address the dashboard's?")
    return Finding(
        what=what,
        state="open",
        found="jobs are listed without a token: anybody who reaches this port runs code in the cluster",
        advice="start every host with RAY_AUTH_MODE=token (ray get-auth-token --generate makes a token)",
    )


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


START_SECONDS = 60.0
"""How long an embedded Ray may take to start and answer."""
_GIB = 1 << 30
_MOST_CHARACTERS = 107 - 64
"""Of the path of an embedded cluster's folder: a socket's has 107, and Ray puts its own 64 characters deeper."""
_MOST_OPEN_FILES = 4096
_TRIAL = """
import ray
from fedactors.runtime.ray import cluster
joined = cluster.join(None, 2)
assert ray.get(ray.remote(num_cpus=1)(lambda: 2 + 3).remote()) == 5
cluster.leave(joined, ())
"""


def examine_machine(show: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Look at Python, torch, memory, cores, shared memory, ports, files and folders, while Ray is being started.

    Args:
        show: is told of each look before it begins.
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    began = time.monotonic()
    trial = subprocess.Popen(
        [sys.executable, "-c", _TRIAL], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    findings = []
    for what, look in _LOOKS.items():
        show(f"looking at this machine: {what}")
        findings.append(look())
    show("looking at this machine: starting Ray")
    return [*findings[:2], _ray(trial, began), *findings[2:]]


def _python() -> Finding:
    # an older one than fedactors needs is refused by pip
    return Finding(what="Python", state="ok", found=f"{platform.python_version()} at {sys.executable}")


def _torch() -> Finding:
    try:
        import torch

        torch.ones(4, 4).mm(torch.ones(4, 4))
        devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except Exception as error:
        advice = "install it again: pip install --force-reinstall torch"
        return Finding(what="torch", state="fault", found=f"cannot be used: {error}", advice=advice)
    return Finding(what="torch", state="ok", found=f"{torch.__version__}, computes on {', '.join(['CPU', *devices])}")


def _ray(trial: subprocess.Popen[str], began: float) -> Finding:
    what, found = "Ray", "did not start"
    try:
        _, said = trial.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        trial.terminate()
        trial.communicate()
        said = f"no answer within {START_SECONDS:g} s"
    if trial.returncode == 0:
        import ray

        seconds = time.monotonic() - began
        return Finding(what=what, state="ok", found=f"{ray.__version__}, started and did a task within {seconds:.0f} s")
    lines = said.strip().splitlines() or [f"exit code {trial.returncode}"]
    advice = "see the lines below on memory, shared memory, files and folders; until then use --runtime simulated"
    return Finding(what=what, state="fault", found=f"{found}: {lines[-1]}", advice=advice)


def _memory() -> Finding:
    free = _free_memory()
    if free is None:
        return Finding(what="memory", state="unknown", found="this system does not say how much is free")
    found = f"{free / _GIB:.1f} GiB free"
    if free >= 2 * _GIB:
        return Finding(what="memory", state="ok", found=found)
    return Finding(
        what="memory",
        state="open" if free >= _GIB else "fault",
        found=found,
        advice="on Ray every actor is a process of some 0.2 GiB: use few workers, or --runtime simulated (one process)",
    )


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


def _cores() -> Finding:
    number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if number >= 2:
        return Finding(what="cores", state="ok", found=f"{number}")
    advice = "parties take turns: times on Ray say little here, use --runtime simulated for them"
    return Finding(what="cores", state="open", found=f"{number}", advice=advice)


def _shared_memory() -> Finding:
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding(what="shared memory", state="ok", found="no /dev/shm: Ray uses files")
    free = shutil.disk_usage(place).free
    found = f"{free / _GIB:.1f} GiB free in {place}"
    if free >= _GIB:
        return Finding(what="shared memory", state="ok", found=found)
    advice = "in a container: docker run --shm-size=2g; else Ray's store lies on disk, and large payloads are slow"
    return Finding(what="shared memory", state="open", found=found, advice=advice)


def _ports() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 1.0):
            pass
    except OSError as error:
        advice = "allow connections on the loopback: Ray's own services talk over it"
        return Finding(what="ports", state="fault", found=f"127.0.0.1: {error}", advice=advice)
    taken = [port for port in (6379, 8265) if _is_taken(port)]
    if not taken:
        return Finding(what="ports", state="ok", found="the loopback can be used; 6379 and 8265 are free for a cluster")
    return Finding(
        what="ports",
        state="open",
        found=f"{' and '.join(map(str, taken))} taken, perhaps by a cluster that runs here",
        advice="runs of this machine do not need them; for ray start give other ones (--port, --dashboard-port)",
    )


def _is_taken(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return False
    except OSError:
        return True


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= _MOST_OPEN_FILES or soft == resource.RLIM_INFINITY:
        return Finding(what="open files", state="ok", found=f"up to {soft:,} in a process")
    return Finding(
        what="open files",
        state="open",
        found=f"up to {soft} in a process",
        advice=f"with many actors: ulimit -n {min(hard, 65536) if hard > 0 else 65536}",
    )


def _folder() -> Finding:
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {free / _GIB:.1f} GiB free"
    try:
        own = make_folder("ray")
        own.rmdir()
    except OSError as error:
        advice = "set TMPDIR to a folder that you may write to"
        return Finding(what="temporary files", state="fault", found=f"{folder}: {error}", advice=advice)
    if (over := len(str(own)) - _MOST_CHARACTERS) > 0:
        advice = f"set TMPDIR to a path that is shorter by {over} characters: Ray puts sockets below it"
        return Finding(what="temporary files", state="fault", found=found, advice=advice)
    if free < 2 * _GIB:
        advice = "set TMPDIR to a disk with 2 GiB free: Ray writes its logs there, and warns when it is nearly full"
        return Finding(what="temporary files", state="open", found=found, advice=advice)
    return Finding(what="temporary files", state="ok", found=found)


_LOOKS: dict[str, Callable[[], Finding]] = {
    "Python": _python,
    "torch": _torch,
    "memory": _memory,
    "cores": _cores,
    "shared memory": _shared_memory,
    "ports": _ports,
    "open files": _files,
    "temporary files": _folder,
}

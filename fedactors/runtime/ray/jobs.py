"""Work on a Ray cluster that is not this process's run: a run as a job, its folders brought home, and tasks of a sweep.

    submitter ──Jobs.submit──▶ job server ──▶ python -m fedactors.runtime.ray.jobs COMMAND...
              ◀──follow: log, exit code──     runs COMMAND --out FOLDER, packs the folder beside the job's log
              ◀──fetch: packed folder────

The job server hands out the files of its folder of logs, and nothing else that a job writes; so the packed folder goes
there, and stays as long as the log does. A run folder holds no secret. `run_on_cluster` calls one function as tasks,
for sweeps; the hosts need the same installation.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import ray
from ray.exceptions import RayTaskError, WorkerCrashedError

from fedactors.errors import BadInput, FedactorsError
from fedactors.runs.storage import disk_errors
from fedactors.runtime.ray import cluster
from fedactors.validation import first_line

_MODULE = "fedactors.runtime.ray.jobs"


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


CONNECT_SECONDS = 10.0
STOP_SECONDS = 60
"""How long a job that is stopped may take to write its checkpoint before Ray kills it."""
_POLL_SECONDS = 0.5
_LEFT_OUT = [".git", ".venv", "runs", "__pycache__", "*.egg-info", ".mypy_cache", ".ruff_cache", "node_modules"]


class SubmissionFailed(FedactorsError):
    """The cluster refused the job, or lost it."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class JobEnd:
    """How a job ended; `exit_code` is its command's, 143 when it was stopped."""

    status: str
    exit_code: int
    message: str


class Jobs:
    """A cluster's job server.

    Args:
        address: ``http://HEAD:8265``; RAY_API_SERVER_ADDRESS, else RAY_ADDRESS if it is of that form, by default.

    Raises:
        BadInput: no address, nobody answers within `CONNECT_SECONDS`, or the token is refused.
    """

    def __init__(self, address: str | None) -> None:
        self.address = job_address(address)
        # Ray's client would put these before the address that it is given
        for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
            os.environ.pop(name, None)
        from ray.exceptions import RayError
        from ray.job_submission import JobSubmissionClient

        try:
            self._client = JobSubmissionClient(self.address)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise BadInput(f"--address: {self.address!r} refuses jobs: {first_line(error)}") from None

    def submit(
        self,
        words: Sequence[str],
        *,
        working_dir: str | None = None,
        left_out: Sequence[str] = (),
        needs: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Submit a command and return the job's id.

        Args:
            words: the command; Python is the one that the cluster's hosts find first.
            working_dir: folder that is sent along and becomes the job's own; nothing is sent by default.
            left_out: patterns, as in a .gitignore, of what in it is not sent.
            needs: the rest of Ray's runtime_env: packages, variables.
        """
        variables = {**needs.get("env_vars", {}), "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS)}
        environment: dict[str, Any] = {**needs, "env_vars": variables}
        if working_dir is not None:
            environment |= {"working_dir": working_dir, "excludes": list(left_out)}
        try:
            # exec: a shell in between would keep the signal that stops the job from its command
            made: str = self._client.submit_job(entrypoint=f"exec {shlex.join(words)}", runtime_env=environment)
        except (RuntimeError, TypeError, ValueError) as error:
            raise SubmissionFailed(f"{self.address} refused the job: {first_line(error)}") from None
        return made

    def follow(self, job: str, show: Callable[[str], None]) -> JobEnd:
        """Show the log of a job as it grows, and return how it ended.

        Raises:
            BadInput: no such job.
        """
        shown = 0
        while True:
            info = self._info(job)
            log = self._client.get_job_logs(job)
            if len(log) > shown:
                show(log[shown:])
                shown = len(log)
            if info.status.is_terminal():
                break
            time.sleep(_POLL_SECONDS)
        rest = self._client.get_job_logs(job)[shown:]
        if rest:
            show(rest)
        code = info.driver_exit_code
        if code is None or code < 0:
            code = 143 if info.status == "STOPPED" or code == -15 else 1
        if info.status == "SUCCEEDED":
            code = 0
        return JobEnd(status=str(info.status.value), exit_code=int(code), message=str(info.message or ""))

    def fetch(self, job: str, out: Path) -> list[Path]:
        """Write the run folders that an ended job left for its submitter under `out`, and return them.

        Raises:
            BadInput: no such job, it goes on, or it left none; see also `unpack`.
        """
        info = self._info(job)
        if not info.status.is_terminal():
            raise BadInput(f"job: {job} goes on ({info.status.value}); its run folder can be fetched when it has ended")
        wanted = {"node_id": info.driver_node_id, "filename": archive_of(f"job-driver-{job}.log"), "lines": -1}
        answer = self._client._do_request("GET", f"/api/v0/logs/file?{urlencode(wanted)}&timeout=300", stream=True)
        if answer.status_code != 200:
            raise BadInput(f"job: {job} left no run folder to fetch (it does if --out was relative and a run began)")
        with tempfile.NamedTemporaryFile(prefix="fedactors-", suffix=".tar.gz") as file:
            for chunk in answer.iter_content(1 << 20):
                file.write(chunk)
            file.flush()
            return unpack(Path(file.name), out)

    def _info(self, job: str) -> Any:
        try:
            return self._client.get_job_info(job)
        except RuntimeError as error:
            raise BadInput(f"job: {self.address} does not know {job!r}: {first_line(error)}") from None

    def stop(self, job: str) -> None:
        """Ask a job to stop; it writes a checkpoint first."""
        self._client.stop_job(job)

    def status(self, job: str) -> str:
        """Return the job's status in Ray's words."""
        return str(self._client.get_job_status(job).value)


def sending(folder: str | None, run: str | None) -> tuple[str | None, list[str], str | None]:
    """Return what is sent along with a job: a folder, the patterns of what in it stays here, and the run's path in it.

    Args:
        folder: folder that is sent in any case, or None.
        run: run folder that the job goes on from, or None; of its neighbours none is sent.

    Raises:
        BadInput: the run folder is not inside `folder`.
    """
    if run is None:
        return folder, _LEFT_OUT, None
    if folder is None:
        path = Path(run).resolve()
        # all but the run folder; "/*" would match the folder "." itself
        return str(path.parent), ["/[!.]*", "/.[!.]*", f"!/{path.name}", f"!/{path.name}/**"], path.name
    try:
        inside = Path(run).resolve().relative_to(Path(folder).resolve())
    except ValueError:
        raise BadInput(f"--resume: {run!r} is not in {folder!r}, the folder that is sent along") from None
    around = [] if len(inside.parts) == 1 else [f"!/{inside.parent.as_posix()}", f"/{inside.parent.as_posix()}/*"]
    return folder, [*_LEFT_OUT, *around, f"!/{inside.as_posix()}", f"!/{inside.as_posix()}/**"], str(inside)


def job_address(address: str | None) -> str:
    """Return the address of a job server at which somebody answers; see `Jobs`."""
    given = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    if not given:
        raise BadInput("--address: give http://HEAD:8265 of the cluster, or set RAY_API_SERVER_ADDRESS")
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        parts, host, port = urlsplit(""), None, 0
    if parts.scheme not in ("http", "https") or not host:
        raise BadInput(
            f"--address: {given!r} is not allowed: jobs go to http://HEAD:8265, the address of the dashboard"
        )
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"--address: nobody answers at {given!r} ({reason})") from None
    return given.rstrip("/")


def last_json(log: str) -> Iterator[str]:
    """Yield the lines of a log that are JSON objects, newest first."""
    for line in reversed(log.splitlines()):
        if line.startswith("{") and line.endswith("}"):
            yield line


A = TypeVar("A")
R = TypeVar("R")


def run_on_cluster(
    function: Callable[[A], R],
    arguments: Sequence[A],
    *,
    address: str | None,
    when_lost: Callable[[A, str], R],
    num_cpus: int | None = None,
) -> Iterator[tuple[int, R]]:
    """Yield (place of the argument, result) as they come; the cluster runs as many at a time as it has cores.

    Args:
        function: of a module that the cluster's hosts have too; called with one argument.
        arguments: what to call it with.
        address: of the cluster; None starts one here.
        when_lost: what stands for the result when the task's process or host is lost.
        num_cpus: cores of a cluster that is started here.

    Raises:
        BadInput: nobody answers at the address.
    """
    ours = cluster.join(address, num_cpus)
    task = ray.remote(num_cpus=1, max_retries=0)(function)
    waiting: dict[Any, int] = {}
    try:
        waiting = {task.remote(argument): index for index, argument in enumerate(arguments)}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            index = waiting.pop(done)
            try:
                yield index, ray.get(done)
            except RayTaskError as error:
                raise error.cause from None
            except (WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
                yield index, when_lost(arguments[index], f"its process was lost: {type(error).__name__}")
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        cluster.leave(ours, ())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

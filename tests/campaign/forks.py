"""Processes of sites and drivers, forked from one that has imported what they need: a start takes a tenth of the time.

From then on each is a process like any other, with its own files, sockets and signals.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_POLL = 0.02


class Forked:
    """A process, as `subprocess.Popen` has it; what it says goes to files."""

    def __init__(self, pid: int, codes: Mapping[int, int], out: Path) -> None:
        self.pid, self.out, self._codes = pid, out, codes

    @property
    def returncode(self) -> int | None:
        return self._codes.get(self.pid)

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        end = time.monotonic() + timeout
        while (code := self.returncode) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL)
        return code

    def communicate(self, timeout: float = 60.0) -> tuple[str, str]:
        """Wait until it has ended; return what it said on standard output and error.

        Raises:
            subprocess.TimeoutExpired: it has not.
        """
        self.wait(timeout)
        return self.out.read_text(), self.out.with_suffix(".err").read_text()


class Forks:
    """Starts processes that run a command of fedactors.

    Args:
        folder: for what they say.
        env: of all of them.
    """

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder, self._codes, self._lock, self._count = folder, dict[int, int](), threading.Lock(), 0
        path = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.campaign.forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**env, "PYTHONPATH": path},
        )
        self._started: list[int] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, *words: str) -> Forked:
        """Start ``fedactors WORDS``."""
        assert self._server.stdin is not None
        with self._lock:
            self._count += 1
            out = self._folder / f"{self._count}.out"
            print(json.dumps([str(out), words]), file=self._server.stdin, flush=True)
            while len(self._started) < self._count:
                assert self._server.poll() is None, "the server has ended"
                time.sleep(_POLL)
            return Forked(self._started[-1], self._codes, out)

    def _read(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            what, pid, *code = line.split()
            if what == "started":
                self._started.append(int(pid))
            else:
                self._codes[int(pid)] = int(code[0])

    def stop(self) -> None:
        """End the server; the processes that it started have ended."""
        self._server.kill()
        self._server.wait(10)
        self._reader.join(10)
        for stream in (self._server.stdin, self._server.stdout):
            assert stream is not None
            stream.close()


def serve() -> None:
    """Fork for each line of standard input; say on standard output who started and who ended."""
    importlib.import_module("torch")
    importlib.import_module("fedactors.cli.main")
    for name in ("launch", "federation.site", "federation.runtime", "runtime.simulation.runtime"):
        importlib.import_module(f"fedactors.{name}")
    for file in sorted((ROOT / "protocols").glob("*/run.py")):
        importlib.import_module(f"fedactors.protocols.{file.parent.name}.run")
    children, rest = set[int](), ""
    while True:
        ready, _, _ = select.select([0], [], [], _POLL)
        if ready:
            block = os.read(0, 1 << 16).decode()
            if not block:
                return
            *lines, rest = (rest + block).split("\n")
            for line in lines:
                out, words = json.loads(line)
                if (pid := os.fork()) == 0:
                    _become(Path(out), words)
                children.add(pid)
                print("started", pid, flush=True)
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                children.remove(pid)
                print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)


def _become(out: Path, words: list[str]) -> None:
    """Run a command in this process, which was just forked, and end it."""
    code = 70
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        for number, file in ((1, out), (2, out.with_suffix(".err"))):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        random.seed()
        from fedactors.cli.main import main

        sys.argv = ["fedactors", *words]
        code = main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()

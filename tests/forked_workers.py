"""Workers of the tests' Ray cluster, forked from one process that has loaded ray, torch and the protocols already.

Ray's own way to start a worker loads ray twice and torch once: three seconds of processor time for each actor of each
test. A fork has all that in a hundredth of a second, and is from then on a worker like any other. Clusters that tests
start by a command, as people do, have Ray's own workers.

This file is the server, and it is what Ray starts in the place of its `setup_worker.py`: that asks the server and ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ADDRESS = "FEDACTORS_TESTS_FORKED_WORKERS"
"""Environment variable: the socket of the server."""
WATCH = "FEDACTORS_TESTS_WATCH"
"""Environment variable: a file that names the files whose opening the workers forked from then on are to tell."""
ROOT = Path(__file__).resolve().parents[1]
_LONGEST = 1 << 18
_LIMIT = 60.0
"""Seconds; a fork takes a hundredth of one, the first of a cluster as long as importing ray and the protocols."""
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="


@contextlib.contextmanager
def server() -> Iterator[dict[str, str]]:
    """Run one for the block; yield what the environment of a cluster must have so that its workers are forked."""
    with tempfile.TemporaryDirectory(prefix="forked-") as folder:
        address = f"{folder}/socket"
        before = os.environ.get(WATCH)  # of another cluster of this process
        os.environ[WATCH] = f"{address}.watch"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        # -P: the folders beside this file are no packages that a worker may import
        command = [sys.executable, "-P", __file__, address]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
        try:
            yield {ADDRESS: address}
        finally:
            assert process.stdin is not None
            if before is None:
                os.environ.pop(WATCH, None)
            else:
                os.environ[WATCH] = before
            process.stdin.close()  # ends it
            process.wait(timeout=60)


def serve(address: str) -> None:
    """Fork for everybody who asks, until standard input ends."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)

    import gc
    import random

    import numpy
    import torch

    protocols = ROOT / "protocols"
    actors = [f"fedactors.protocols.{file.parent.name}.actors" for file in sorted(protocols.glob("*/actors.py"))]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        asking, _ = listener.accept()
        asking.settimeout(_LIMIT)
        content, files, _, _ = socket.recv_fds(asking, _LONGEST, 3)
        words, environment, folder = json.loads(content)
        if "ray" not in sys.modules:
            # Ray reads its variables, such as those of the token, when it is loaded: all forks are of one cluster
            os.environ.update(environment)
            for name in ("fedactors.runtime.ray.actor_process", *actors):
                importlib.import_module(name)
            gc.freeze()
        if os.fork():
            asking.close()
            for file in files:
                os.close(file)
            continue
        # the fork: it becomes what was asked for, in a process group of its own, which Ray ends with it
        os.setpgid(0, 0)
        listener.close()
        asking.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        watch_openings(Path(f"{address}.watch"))
        sys.argv = words
        # a process of its own has numbers of its own
        random.seed()
        numpy.random.seed()
        torch.seed()
        runpy.run_path(words[0], run_name="__main__")
        return


def watch_openings(order: Path) -> None:
    """Tell which of some files this process opens through Python from now on, if there is such an order.

    Args:
        order: a JSON file of the ``files`` (real paths) and the ``log``, which gets a line for each opening: a process
            and a path.
    """
    if not order.exists():
        return
    wanted = json.loads(order.read_text())
    files = set(wanted["files"])
    log = os.open(wanted["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "sqlite3.connect") and isinstance(arguments[0], (str, bytes, os.PathLike)):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if path in files and order.exists():
                os.write(log, f"{os.getpid()} {path}\n".encode())

    sys.addaudithook(watch)


def ask() -> None:
    """Have the server fork the worker that Ray wants; without one, do what Ray's own `setup_worker.py` does."""
    words = sys.argv[1:]
    context = json.loads(next((word.removeprefix(_CONTEXT) for word in words if word.startswith(_CONTEXT)), "{}"))
    local = [word for word in words if not word.startswith((_CONTEXT, _LANGUAGE))]
    asks_more = any(value for name, value in context.items() if (name, value) != ("py_executable", sys.executable))
    if asks_more or not local[0].endswith("default_worker.py"):
        import ray._private.workers.setup_worker as original

        os.execv(sys.executable, [sys.executable, original.__file__, *words])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_LIMIT)
        connection.connect(os.environ[ADDRESS])
        content = json.dumps([local, dict(os.environ), os.getcwd()]).encode()
        socket.send_fds(connection, [content], [0, 1, 2])
        connection.recv(1)  # until the fork has what it needs


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        ask()

"""Where the simulated runtime runs computes for real: inline, or in a pool of processes that uses every core.

A pool only decides *where* a pure function runs; when its result counts is the virtual clock's business, so
results do not depend on the pool.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import multiprocessing.util
import os
import shutil
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from typing import Any, Protocol

import numpy as np

from fedactors.actor import Actor
from fedactors.errors import BadInput
from fedactors.records.temporary import make_folder, remove_folders
from fedactors.runtime import shared_arrays

_WORKER_DIED = (
    "--pool: a worker process ended by itself: it was killed, the machine's memory is full, or the script that starts "
    'it has no `if __name__ == "__main__":`; --pool 0 computes in this process'
)


class Pool(Protocol):
    """Takes functions and returns futures."""

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
        """Start `function(*args)` somewhere."""

    def close(self) -> None:
        """Stop all workers."""


def one_thread() -> None:
    """Make torch and BLAS use one thread in this process: more threads change results and fight for cores.

    torch is told only where it is loaded already; where it is loaded later the environment tells it.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def one_torch_thread() -> None:
    """Load torch in a fresh worker and limit it to one thread."""
    import torch  # noqa: F401

    one_thread()


def start_worker(*folders: str) -> None:
    """Make a fresh worker ready: one torch thread, and no life without the process that started the pool.

    Args:
        folders: of the pool's owner, removed when it was killed and could not do so.
    """
    owner = multiprocessing.parent_process()

    def follow() -> None:
        if owner is not None:
            multiprocessing.connection.wait([owner.sentinel])
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    np.seterr(over="ignore", invalid="ignore", divide="ignore")  # as in the runtime's own process
    one_torch_thread()


def _loaded_here() -> list[str]:
    """Return the modules that workers would import one after the other: what is loaded of the frame and beside actors.

    The process that workers are forked from imports them once: up to two seconds less for each worker of each pool.
    """
    packages, kinds = set(), [Actor]
    while kinds:
        kind = kinds.pop()
        kinds.extend(kind.__subclasses__())
        packages.add(kind.__module__.rpartition(".")[0])
    slow = {"scipy.stats", "sklearn.metrics"}  # what metrics import when they are first asked for
    return sorted(
        name
        for name in sys.modules
        if name in slow or name.rpartition(".")[0] in packages - {""} or name.partition(".")[0] == "fedactors"
        if not name.startswith("fedactors.runtime.ray")
    )


class ProcessPool:
    """Processes of this machine, one torch thread each; large read-only arrays reach them through shared memory.

    The arguments of a task that is under way are kept alive here, because a worker maps them only when it begins.
    """

    def __init__(self, num_workers: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "torch", *_loaded_here()])
        # workers remove it when their owner was killed; where all of them were, whoever makes the next pool here does
        remove_folders({"pool": lambda folder: None}, shared_arrays.MEMORY_FOLDER)
        self._folder = str(make_folder("pool", shared_arrays.MEMORY_FOLDER))
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._arguments = shared_arrays.Arguments(self._folder)
        folders = [self._folder]
        if multiprocessing.parent_process() is None:  # else it may be the folder of the process that started this one
            folders.append(multiprocessing.util.get_temp_dir())  # where whoever forks the workers listens
        self._executor = concurrent.futures.ProcessPoolExecutor(
            num_workers, context, initializer=start_worker, initargs=tuple(folders)
        )
        self.submit(os.getpid, ())  # the processes start while the caller prepares

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
        """See `Pool`; where a worker dies all ends with one `BadInput`, and no other takes its place."""
        placed = self._arguments.share(args)
        try:
            raw = self._executor.submit(shared_arrays.call, self._folder, function, placed)
        except (BrokenExecutor, RuntimeError, OSError) as error:
            raise BadInput(_WORKER_DIED) from error
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def pass_on(ended: concurrent.futures.Future[Any], kept: tuple[Any, ...] = args) -> None:
            try:
                done.set_result(shared_arrays.take(ended.result()))
            except concurrent.futures.CancelledError:
                done.cancel()
            except BrokenExecutor:
                done.set_exception(BadInput(_WORKER_DIED))
            except BaseException as error:
                done.set_exception(error)

        raw.add_done_callback(pass_on)
        return done

    def close(self) -> None:
        """See `Pool`."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._remove()

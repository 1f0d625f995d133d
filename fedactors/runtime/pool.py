"""Where the simulated runtime runs computes for real: inline, or in a pool of processes that uses every core.

A pool only decides *where* a pure function runs; when its result counts is the virtual clock's business, so
results do not depend on the pool.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol


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


class ProcessPool:
    """Processes of this machine, one torch thread each."""

    def __init__(self, num_workers: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["numpy", "torch"])
        self._executor = concurrent.futures.ProcessPoolExecutor(num_workers, context, initializer=one_torch_thread)

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
        """See `Pool`."""
        return self._executor.submit(function, *args)

    def close(self) -> None:
        """See `Pool`."""
        self._executor.shutdown(wait=True, cancel_futures=True)

"""A pool of Ray workers for the simulated runtime's computes: every core of a cluster, results by virtual time."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import ray

from fedactors.runtime.ray import cluster
from fedactors.runtime.simulation.pool import one_torch_thread


class _Worker:
    def __init__(self) -> None:
        one_torch_thread()

    def run(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return function(*args)


class RayPool:
    """Workers of a cluster, one core and one torch thread each.

    Args:
        address: of a running cluster; an embedded one by default.
        num_workers: how many (default: one per core of the cluster).
    """

    def __init__(self, address: str | None = None, num_workers: int | None = None) -> None:
        self._joined = cluster.join(address, num_workers)
        count = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._workers = [ray.remote(_Worker).options(num_cpus=1).remote() for _ in range(count)]
        self._next = 0

    def submit(self, function: Callable[..., Any], args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
        """See `fedactors.runtime.simulation.pool.Pool`."""
        worker = self._workers[self._next % len(self._workers)]
        self._next += 1
        future: concurrent.futures.Future[Any] = worker.run.remote(function, args).future()
        return future

    def close(self) -> None:
        """See `fedactors.runtime.simulation.pool.Pool`."""
        cluster.leave(self._joined, self._workers)

"""Calls of one function as tasks of a Ray cluster, for sweeps; the hosts need the same installation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayTaskError, WorkerCrashedError

from fedactors.runtime.ray import cluster

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
        waiting = {task.remote(argument): place for place, argument in enumerate(arguments)}
        while waiting:
            (done, *_), _ = ray.wait(list(waiting), num_returns=1)
            place = waiting.pop(done)
            try:
                yield place, ray.get(done)
            except RayTaskError as error:
                raise error.cause from None
            except (WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
                yield place, when_lost(arguments[place], f"its process was lost: {type(error).__name__}")
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
        cluster.leave(ours, ())

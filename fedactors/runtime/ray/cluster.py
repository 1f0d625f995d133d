"""Starting or joining a Ray cluster, and checking before anything is spawned that it has what is asked."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from fedactors.errors import BadInput, FedactorsError
from fedactors.runtime.addresses import check_reachable
from fedactors.runtime.base import Casting
from fedactors.runtime.ray import leftovers
from fedactors.runtime.ray.tokens import check_token
from fedactors.validation import first_line

_OBJECT_STORE_BYTES = 512 * 1024 * 1024


class NotStarted(FedactorsError):
    """Ray could not be started on this machine, or not in the time that it gives itself."""

    exit_code = 3


@dataclass(frozen=True)
class Joined:
    """How this process came to its cluster, and what has to be undone."""

    ours: bool
    """Whether this process joined it, and not somebody before."""
    folder: Path | None = None
    """Of an embedded cluster."""


def join(address: str | None, num_cpus: int | None) -> Joined:
    """Join the cluster at `address` (or RAY_ADDRESS), else start one in this process.

    An embedded cluster listens on the loopback only, takes `num_cpus` cores (all by default), and keeps its files in a
    folder of its own; what drivers that were killed left of theirs is removed first.

    Raises:
        BadInput: nobody answers at the address.
    """
    if ray.is_initialized():
        return Joined(ours=False)
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address is None:
        # inherited by all worker processes: more threads change results and fight for cores
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        leftovers.remove_leftovers()
        folder = leftovers.make_folder("ray")
        try:
            with _loopback_only():
                ray.init(
                    address="local",
                    num_cpus=num_cpus or os.cpu_count(),
                    object_store_memory=_OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(folder),
                )
        except Exception as error:
            ray.shutdown()
            leftovers.end_processes_of(folder)
            shutil.rmtree(folder, ignore_errors=True)
            raise NotStarted(
                f"Ray did not start on this machine: {first_line(error)} (a busy machine may need a second try)"
            ) from error
        _keep_output_clean()
        return Joined(ours=True, folder=folder)
    check_reachable(address)
    check_token(address)
    # a failure is told in one line below; Ray's own client would print each of its attempts
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray has no class of its own for a start that took too long
        raise BadInput(f"address: no Ray cluster could be joined at {address!r}: {first_line(error)}") from None
    _keep_output_clean()
    return Joined(ours=True)


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """Make an embedded cluster use the loopback address, which Ray offers only as a default of some systems."""
    constants = ray._private.ray_constants
    before = getattr(constants, "ENABLE_RAY_CLUSTER", True)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _keep_output_clean() -> None:
    """Keep Ray's remarks on dead workers off standard output: the runtime reports each loss itself."""
    ray._private.worker._worker_logs_enabled = False


def check_resources(castings: Iterable[Casting]) -> None:
    """Raise `BadInput` when the cluster lacks what the actors ask in all, or what one of them asks of one host.

    Ray itself would wait silently for ever.
    """
    hosts = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    have: dict[str, float] = {}
    for host in hosts:
        for name, amount in host.items():
            have[name] = have.get(name, 0.0) + amount
    asked: dict[str, float] = {}
    for casting in castings:
        demand = casting.resources.demand()
        for name, amount in demand.items():
            asked[name] = asked.get(name, 0.0) + amount
        if demand and not any(all(host.get(n, 0.0) + 1e-9 >= a for n, a in demand.items()) for host in hosts):
            raise BadInput(
                f"resources: {casting.name} asks {_listed(demand)}, which no host has; the cluster has "
                + "; ".join(_listed(_shown(host)) for host in hosts)
            )
    lacking = {name: amount for name, amount in asked.items() if amount > have.get(name, 0.0) + 1e-6}
    if lacking:
        raise BadInput(f"resources: the actors ask {_listed(lacking)} in all; the cluster has {_listed(_shown(have))}")


def _shown(resources: dict[str, float]) -> dict[str, float]:
    return {n: a for n, a in resources.items() if not n.startswith("node:") and n != "object_store_memory"}


def _listed(resources: dict[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in sorted(resources.items())) or "nothing"


def leave(joined: Joined, actors: Iterable[Any]) -> None:
    """Kill what is left of the actors, and stop an embedded cluster."""
    for actor in actors:
        ray.kill(actor, no_restart=True)
    if joined.ours:
        ray.shutdown()
    if joined.folder is not None:
        leftovers.end_processes_of(joined.folder)
        shutil.rmtree(joined.folder, ignore_errors=True)

"""Starting or joining a Ray cluster, and checking before anything is spawned that it has what is asked."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from fedactors.errors import BadInput
from fedactors.runtime.base import Casting
from fedactors.runtime.ray import leftovers

CONNECT_SECONDS = 10.0
_EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_OBJECT_STORE_BYTES = 512 * 1024 * 1024


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
        _keep_output_clean()
        return Joined(ours=True, folder=folder)
    check_reachable(address)
    # a failure is told in one line below; Ray's own client would print each of its attempts
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BadInput(f"address: no Ray cluster could be joined at {address!r}: {_first_line(error)}") from None
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


def check_reachable(address: str) -> None:
    """Raise `BadInput` within `CONNECT_SECONDS` when nobody listens at ``host:port``; "auto" is left to Ray."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise BadInput(
            f"address: {address!r} is not allowed: give host:port of a cluster that this machine belongs to, "
            "or submit the scenario with `ray job submit`"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise BadInput(f"address: {address!r} is not allowed: it must be host:port or auto")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            if not os.environ.get("RAY_USE_TLS") and not _speaks_grpc(connection):
                raise BadInput(f"address: what answers at {address!r} is no Ray cluster")
    except OSError as error:
        raise BadInput(f"address: nobody answers at {address!r} ({error.strerror or error})") from None


def _speaks_grpc(connection: socket.socket) -> bool:
    """Say whether the other side greets as an HTTP/2 server does; Ray itself would try for minutes."""
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _EMPTY_SETTINGS)
    head = b""
    with contextlib.suppress(TimeoutError):
        while len(head) < len(_EMPTY_SETTINGS) and (more := connection.recv(len(_EMPTY_SETTINGS))):
            head += more
    return head[3:4] == _EMPTY_SETTINGS[3:4]


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


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def leave(joined: Joined, actors: Iterable[Any]) -> None:
    """Kill what is left of the actors, and stop an embedded cluster."""
    for actor in actors:
        ray.kill(actor, no_restart=True)
    if joined.ours:
        ray.shutdown()
    if joined.folder is not None:
        leftovers.end_processes_of(joined.folder)
        shutil.rmtree(joined.folder, ignore_errors=True)

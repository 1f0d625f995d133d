"""The Ray cluster of a run: its token, starting or joining it, its hosts and what they have, and leaving it.

What is wrong is said before anything is spawned, and without Ray where that is possible: Ray itself tries for twenty
seconds before it says that a token is wrong, and waits for ever for resources that no host has.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import ray

from fedactors.errors import BadInput, FedactorsError, PartyLost, Stopped
from fedactors.runs.storage import make_folder
from fedactors.runtime.addresses import (
    CONNECT_SECONDS,
    VARIABLE,
    check_cluster,
    check_reachable,
    greets,
    naming_the_variable,
    uses_tls,
)
from fedactors.runtime.interface import ActorSpec
from fedactors.runtime.ray import cleanup
from fedactors.runtime.ray.cleanup import GCS, DriverWatchdog, Reaper
from fedactors.validation import first_line

_SECONDS = 5.0
_QUESTION = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""A call that every GCS answers and that changes nothing."""
_HINT = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the cluster's token"


@dataclass(frozen=True)
class Token:
    """A token and where it was found."""

    text: str
    source: str


def user_token() -> Token | None:
    """Return the token that Ray would show in this process, if it has one and shows any."""
    if not _is_token_mode():
        return None
    if given := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return Token(given, "RAY_AUTH_TOKEN")
    path = token_path()
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Token(text, str(path)) if text else None


def token_path() -> Path:
    """Return where Ray looks for a token that is not in RAY_AUTH_TOKEN."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def make_user_token() -> None:
    """Make the token that Ray would make where it starts in this process and finds none: to be read by its user only.

    Ray itself makes one that all users of the machine can read.
    """
    if user_token() is not None or os.environ.get("RAY_AUTH_TOKEN_PATH") or not _is_token_mode():
        return
    path = token_path()
    with contextlib.suppress(OSError):  # without a folder to write to Ray says so itself
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)  # whole or not at all, and never in place of another's


def _is_token_mode() -> bool:
    mode = os.environ.get("RAY_AUTH_MODE")
    return asks_by_itself() if mode is None else mode.lower() == "token"


def asks_by_itself() -> bool:
    """Say whether the installed Ray asks for a token where RAY_AUTH_MODE is not set.

    One that starts inside a process then always does; ``ray start`` does where it finds a token.
    """
    with contextlib.suppress(ImportError):
        setup = importlib.import_module(f"{ray.__name__}._private.authentication.authentication_token_setup")
        return hasattr(setup, "enable_token_auth_by_default")
    return False


def check_token(address: str) -> None:
    """Check that the cluster at ``host:port`` lets this process in, and show it the token that it wants.

    Where RAY_AUTH_MODE is not set, Ray joins without a token, even if one lies where ``ray start`` found its own.

    Raises:
        BadInput: it asks for a token, and this process has none or another one.
    """
    if address == "auto" or uses_tls() or not _refuses(address, None):
        return
    token = user_token()
    if token is None:
        raise BadInput(f"address: the cluster at {address!r} asks for a token, and none is set: {_HINT}")
    if _refuses(address, token):
        raise BadInput(f"address: the cluster at {address!r} refuses the token of {token.source}: {_HINT}")
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        importlib.import_module(f"{ray.__name__}._raylet").Config.initialize("")  # which has read the environment


def _refuses(address: str, token: Token | None) -> bool:
    shown = () if token is None else (("authorization", f"Bearer {token.text}"),)
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_QUESTION)(b"", timeout=_SECONDS, metadata=shown)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)  # whatever else it is, Ray says it better
    return False


JOIN_SECONDS = 60.0
"""How long a cluster that answers may take to be joined."""
_LEAVE_SECONDS = 60.0
_SICK_LEAVE_SECONDS = 10.0
_OBJECT_STORE_BYTES = 512 * 1024 * 1024


INSIDE = "r"
"""Ray's folder in a cluster's, which its user alone may enter: all users of the machine may write in Ray's own."""
_SOCKET = "/session_2026-01-01_00-00-00_000000_{pid}/sockets/plasma_store"
"""Where Ray puts the socket with the longest path."""
EMBEDDED = "embedded"
"""Stands for an address where a cluster is to be started, whatever RAY_ADDRESS says."""
has_stuck_thread = threading.Event()
"""Set once Ray's library holds a thread of this process for ever: ending as usual would crash it then."""


def longest_folder() -> int:
    """Return how many characters the path of the folder of a cluster of this process may have: a socket has 107."""
    return 107 - len(f"/{INSIDE}") - len(_SOCKET.format(pid=os.getpid()))


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
    reaper: Reaper | None = None
    """Who says a line and removes what is left here when this process ends at once."""
    watchdog: DriverWatchdog | None = None
    """Who ends this process where Ray holds it for ever."""


def join(address: str | None, num_cpus: int | None, tell: Callable[[str], None] = lambda text: None) -> Joined:
    """Join the cluster at `address` (or RAY_ADDRESS), else, or for EMBEDDED, start one in this process.

    An embedded cluster listens on the loopback only, takes `num_cpus` cores (all by default), and keeps its files in a
    folder of its own; what drivers that were killed left of theirs is removed first. A start that fails is tried once
    more.

    Where this process has joined a cluster already, it stays in that one.

    Raises:
        BadInput: nobody answers at the address, or this process has joined another cluster.
        NotStarted: Ray did not start here.
    """
    if ray.is_initialized():
        _check_same(address)
        return Joined(ours=False)
    given = address
    address = None if given == EMBEDDED else check_cluster(given)
    if address is None:
        # inherited by all worker processes: more threads change results and fight for cores
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        cleanup.remove_orphans()
        make_user_token()
        try:
            return _start(num_cpus)
        except NotStarted:
            tell("Ray takes long to start, as on a busy machine: trying again, attempt 2 of 2")
            return _start(num_cpus)
    with naming_the_variable(None if given else address):
        address = _resolved(address, "address" if given else VARIABLE)
    check_token(address)
    # a failure is told in one line below; Ray's own client would print each of its attempts
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    reaper = Reaper(None)
    try:
        with _keep_signal_handlers():
            _init_within(JOIN_SECONDS, address)
    except BaseException as error:  # Ray has no class of its own for a start that took too long
        reaper.dismiss()
        if isinstance(error, Stopped) or not isinstance(error, Exception):
            raise
        raise BadInput(f"address: no Ray cluster could be joined at {address!r}: {first_line(error)}") from None
    _keep_output_clean()
    return Joined(ours=True, reaper=reaper)


def _start(num_cpus: int | None) -> Joined:
    """Start a cluster in this process.

    Raises:
        BadInput: the folder of temporary files has too long a path for Ray's sockets.
        NotStarted: Ray failed, or had too little time.
    """
    folder = make_folder("ray")
    if (over := len(str(folder)) - longest_folder()) > 0:
        folder.rmdir()
        raise BadInput(
            f"TMPDIR: {tempfile.gettempdir()!r} is too long: set it to a path that is shorter by {over} characters, as "
            "Ray puts sockets below it"
        )
    reaper = Reaper(folder)
    watchdog = DriverWatchdog(folder / INSIDE, reaper.be_silent)
    joined = Joined(ours=True, folder=folder, reaper=reaper, watchdog=watchdog)
    try:
        with _loopback_only(), _keep_signal_handlers():
            ray.init(
                address="local",
                num_cpus=num_cpus or os.cpu_count(),
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder / INSIDE),
            )
    except BaseException as error:
        leave(joined, (), is_sick=True)
        if isinstance(error, Stopped) or not isinstance(error, Exception):
            raise
        raise NotStarted(f"Ray did not start on this machine: {first_line(error)} (is it busy? try again)") from error
    watchdog.watch({GCS: ray.get_runtime_context().gcs_address})
    _keep_output_clean()
    return joined


class Cluster:
    """The Ray cluster of this process, until it is closed: by ``close()``, or at the end of a ``with`` block."""

    def __init__(self, joined: Joined) -> None:
        self._joined: Joined | None = joined

    def close(self) -> None:
        """Leave the cluster, and stop it if it was started here; closing twice changes nothing."""
        joined, self._joined = self._joined, None
        if joined is not None:
            leave(joined, ())

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def cluster(address: str | None = None, *, num_cpus: int | None = None) -> Cluster:
    """Join or start a Ray cluster and keep it for all runs and predictions until it is closed.

    Without it, each run starts and stops its own.

        with fedactors.cluster():
            runs = [fedactors.run("horizontal", seed=seed) for seed in range(3)]

    Args:
        address: ``host:port`` of a running cluster, or "auto"; RAY_ADDRESS, else a new cluster here, by default.
        num_cpus: cores of a new cluster; all by default.

    Raises:
        BadInput: nobody answers at the address, or this process has joined another cluster.
        FedactorsError: Ray does not start here.
    """
    return Cluster(join(address, num_cpus))


def _check_same(address: str | None) -> None:
    """Check that an address, where one is given, is of the cluster that this process has joined."""
    joined = str(ray.get_runtime_context().gcs_address)
    if address in (None, EMBEDDED, "auto", joined):
        return
    given, _, port = str(address).rpartition(":")
    with contextlib.suppress(OSError):
        if port == joined.rpartition(":")[2] and socket.gethostbyname(given) == joined.rpartition(":")[0]:
            return
    raise BadInput(
        f"address: this process has joined the cluster at {joined!r}, and cannot join {address!r} as well: omit it, or "
        "leave the first (ray.shutdown(), or the end of fedactors.cluster())"
    )


def _resolved(address: str, field: str) -> str:
    """Return the ``host:port`` that "auto" stands for, at which somebody answers; another address as it is.

    Raises:
        BadInput: no cluster is known on this machine, or it is gone.
    """
    if address != "auto":
        return address
    try:
        address = str(ray._private.services.canonicalize_bootstrap_address("auto"))
    except (ConnectionError, ValueError):
        raise BadInput(f"{field}: 'auto' is not allowed here: no Ray cluster runs on this machine") from None
    check_reachable(address, f"{field}: auto")
    return address


def _init_within(seconds: float, address: str) -> None:
    """Join in a thread of its own: Ray's library tries for many minutes, and meanwhile no signal would be heard."""
    failures: list[BaseException] = []
    done = threading.Event()  # an interrupted Thread.join would take the thread for ended

    def init() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except BaseException as error:
            failures.append(error)
        done.set()

    threading.Thread(target=init, name="joining Ray", daemon=True).start()
    try:
        done.wait(seconds)
    finally:
        if not done.is_set():
            has_stuck_thread.set()
            atexit.unregister(ray.shutdown)  # it would wait for the same
    if not done.is_set():
        raise TimeoutError(f"it gave no answer within {seconds:g} s")
    if failures:
        raise failures[0]


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


@contextlib.contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Keep this process's handlers of signals: Ray would put one in their place that ends it without a word."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    utils = ray._private.utils
    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)  # below Python, Ray's library has put one that Python does not see


def _keep_output_clean() -> None:
    """Keep Ray's remarks on dead workers off standard output: the runtime reports each loss itself."""
    ray._private.worker._worker_logs_enabled = False


@dataclass(frozen=True)
class Host:
    """A host of the cluster that Ray counts on."""

    id: str
    address: str
    """Of its raylet."""
    resources: Mapping[str, float]
    """In all, in use or not."""


async def hosts() -> list[Host]:
    """Return the hosts that Ray counts on.

    Raises:
        PartyLost: its control service does not answer; Ray itself would wait for a minute.
    """
    loop, nodes = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def settle(found: Any, error: Exception | None) -> None:
        if not nodes.done():
            if error is None:
                nodes.set_result(found)
            else:
                nodes.set_exception(error)

    def ask() -> None:
        found, error = None, None
        try:
            found = ray.nodes()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(settle, found, error)

    # a thread that nobody waits for at the end of this process, as of those of asyncio's own pool
    threading.Thread(target=ask, daemon=True).start()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await nodes
    except TimeoutError:
        raise PartyLost("Ray", f"its control service (GCS) gave no answer within {CONNECT_SECONDS:g} s") from None
    return [
        Host(node["NodeID"], f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}", node["Resources"])
        for node in nodes.result()
        if node["Alive"]
    ]


async def services() -> dict[str, str]:
    """Return the addresses of the services of Ray's that this process needs, by what they are called."""
    context = ray.get_runtime_context()
    raylets = {host.id: host.address for host in await hosts()}
    return {GCS: context.gcs_address, "raylet": raylets[context.get_node_id()]}


async def answering(known: Sequence[Host]) -> list[Host]:
    """Return those of the hosts that answer: Ray counts on one that is cut off for a minute yet."""

    async def answers(host: Host) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await greets(host.address)
                return True
        return False

    found = await asyncio.gather(*map(answers, known))
    return [host for host, here in zip(known, found, strict=True) if here]


def host_for(actor_spec: ActorSpec, among: Sequence[Host]) -> Host:
    """Return the host with the most free cores of those that have what an actor asks; `check_resources` saw one."""
    demand, free = actor_spec.resources.demand(), ray._private.state.available_resources_per_node()
    fitting = [host for host in among if _has(host, demand)]
    return max(fitting, key=lambda host: (free.get(host.id, {}).get("CPU", 0.0), host.id))


def _has(host: Host, demand: Mapping[str, float]) -> bool:
    return all(host.resources.get(name, 0.0) + 1e-9 >= amount for name, amount in demand.items())


def check_resources(actor_specs: Iterable[ActorSpec], among: Sequence[Host]) -> None:
    """Raise `BadInput` when hosts lack what the actors ask in all, or what one of them asks of one host.

    Ray itself would wait silently for ever.
    """
    have: dict[str, float] = {}
    for host in among:
        for name, amount in host.resources.items():
            have[name] = have.get(name, 0.0) + amount
    asked: dict[str, float] = {}
    for actor_spec in actor_specs:
        demand = actor_spec.resources.demand()
        for name, amount in demand.items():
            asked[name] = asked.get(name, 0.0) + amount
        if demand and not any(_has(host, demand) for host in among):
            raise BadInput(
                f"resources: {actor_spec.name} asks {_listed(demand)}, which no host has; the cluster has "
                + "; ".join(_listed(_shown(host.resources)) for host in among)
            )
    lacking = {name: amount for name, amount in asked.items() if amount > have.get(name, 0.0) + 1e-6}
    if lacking:
        raise BadInput(f"resources: the actors ask {_listed(lacking)} in all; the cluster has {_listed(_shown(have))}")


def _shown(resources: Mapping[str, float]) -> dict[str, float]:
    return {n: a for n, a in resources.items() if not n.startswith("node:") and n != "object_store_memory"}


def _listed(resources: dict[str, float]) -> str:
    return ", ".join(f"{name}={amount:g}" for name, amount in sorted(resources.items())) or "nothing"


def leave(joined: Joined, actors: Iterable[Any], *, is_sick: bool = False) -> None:
    """Kill what is left of the actors, and stop an embedded cluster.

    Args:
        joined: how this process came to it.
        actors: that are left.
        is_sick: whether services of the cluster are gone, so that Ray would wait for them.
    """
    try:
        if joined.watchdog is not None:
            joined.watchdog.dismiss()
        if is_sick and joined.folder is not None:
            cleanup.end_processes_of(joined.folder)

        def in_peace() -> None:
            if not is_sick:
                for actor in actors:
                    ray.kill(actor, no_restart=True)
            if joined.ours:
                ray.shutdown()

        # Ray waits without a limit for services that are gone
        leaving = threading.Thread(target=in_peace, daemon=True)
        leaving.start()
        leaving.join(_SICK_LEAVE_SECONDS if is_sick else _LEAVE_SECONDS)
        if leaving.is_alive():
            has_stuck_thread.set()
            atexit.unregister(ray.shutdown)  # it would wait again
        if joined.folder is not None:
            cleanup.end_processes_of(joined.folder)
            shutil.rmtree(joined.folder, ignore_errors=True)
            cleanup.remove_orphans()  # the sockets of actors that ended before they could say where they are
    except BaseException:
        if joined.reaper is not None:  # it clears up, and the error is told here
            joined.reaper.be_silent()
        raise
    if joined.reaper is not None:
        joined.reaper.dismiss()

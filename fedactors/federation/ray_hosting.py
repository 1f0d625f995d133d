"""The actors that a site hosts in a run as processes of its own Ray: embedded, or its organisation's cluster.

    site's process: RayActorHost ──verbs──▶ RaySidecar ──Ray──▶ the actors' processes
                                 ◀─answers; losses, failures─
    actor's process ──socket──▶ RemoteActorProxy in the site's process ──gate, TLS──▶ another site
                    ◀──socket──                                        ◀──gate, TLS──

    who waits                        for what
    the run at the site, each verb   the sidecar's answer, or its end
    an actor that calls elsewhere    its proxy, which waits for the other site's reply

Ray's library ends the process that it is in when Ray is lost, and when it is used after its end. So the site's process,
which other organisations talk to, is never one of Ray's: a sidecar joins Ray and keeps the actors' processes for one
run. The two speak pickle over a pair of sockets that nobody else has, and the sidecar ends with the site's end of it.

Calls between actors of the site go from process to process. For each actor of another site the site's process has a
proxy: to a process of this Ray it is one more actor, with a name, a key, a socket and tickets of its own. It decides
nothing: the site's gate checks each message. No call and no payload of an actor passes through the sidecar.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import secrets
import shutil
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle
from ray.exceptions import RayTaskError

from fedactors.actors.remote import DRIVER
from fedactors.config import source_on_disk
from fedactors.errors import BadInput, FedactorsError, PartyLost, Refused
from fedactors.federation.hosting import (
    ActorAddress,
    ActorHost,
    Counted,
    Recorded,
    SiteBoundary,
    fetch_abroad,
    not_taken,
)
from fedactors.federation.session import decoded, parts_of
from fedactors.messages.codec import Parts, decode, encode_parts
from fedactors.messages.ledger import merged
from fedactors.runs.party_states import StateLocations
from fedactors.runs.storage import make_folder, remove_folders
from fedactors.runtime import calls
from fedactors.runtime.calls import CallPath
from fedactors.runtime.compute import WallClock
from fedactors.runtime.failures import UnawaitedCall, code_of, decode_reply, encode_error, raised_by
from fedactors.runtime.interface import ActorSpec
from fedactors.runtime.ray import cluster
from fedactors.runtime.ray.actor_process import Drained, Settings
from fedactors.runtime.ray.processes import Processes, by_process, raise_first, watch_services
from fedactors.runtime.ray.transport import ERROR, REPLY, Address, Caller, LocalTransport, listen, shown_by

if TYPE_CHECKING:
    from fedactors.federation.site_run import Earlier

HEARTBEAT_TIMEOUT = 15.0
EVENT = 0
"""Number of what is no answer."""
_START_SECONDS = 180.0
_RESERVE_SECONDS = 20.0
"""Within which what a run before has left is free again."""
_LENGTH = struct.Struct("<Q")


async def read(reader: asyncio.StreamReader) -> Any:
    """Return what comes next.

    Raises:
        EOFError, OSError: the other end is gone.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def write(writer: asyncio.StreamWriter, what: Any) -> None:
    """Send something; endpoints may have functions as bounds, which only cloudpickle takes."""
    frame = cloudpickle.dumps(what, protocol=5)
    writer.write(_LENGTH.pack(len(frame)))
    writer.write(frame)


class RaySidecar:
    """The process that joins Ray for a site, on the same host, and keeps the processes of its actors for one run."""

    FORWARDED = frozenset({"snapshots", "account", "drained", "last_answers"})
    """What it is asked for that the processes do as it is asked."""

    def __init__(self, writer: asyncio.StreamWriter, host: str, call_timeout: float) -> None:
        self.is_sick = False
        """Whether Ray's own services are gone."""
        self._writer = writer
        self._host = host
        self._actor_specs: list[ActorSpec] = []
        self._processes = Processes(
            LocalTransport(DRIVER, host, True, call_timeout, UnawaitedCall(self._failed, lambda _: True)),
            placement=None,
            start_timeout=_START_SECONDS,
            call_timeout=call_timeout,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            states=StateLocations(),
            lost=self._lost,
            failed=self._failed,
            tell=lambda _: None,
        )

    def _failed(self, error: BaseException) -> None:
        write(self._writer, (EVENT, False, self._told(error)))

    async def _lost(self, loss: PartyLost) -> None:
        self._failed(loss)

    def _told(self, error: BaseException) -> bytes:
        """Return an error, encoded; one that does not say whose it is goes by the first actor."""
        return b"".join(encode_error(self._actor_specs[0].name if self._actor_specs else DRIVER, error))

    async def answer(self, number: int, verb: str, args: tuple[Any, ...]) -> None:
        """Do what the site asks, and say how it went."""
        try:
            work = getattr(self._processes, verb) if verb in self.FORWARDED else getattr(self, verb)
            found = await work(*args)
            write(self._writer, (number, True, found))
        except Exception as error:
            write(self._writer, (number, False, self._told(error)))

    async def watch(self) -> None:
        """Tell when Ray itself is lost."""
        gone = await watch_services(await cluster.services(), HEARTBEAT_TIMEOUT)
        self.is_sick = True
        self._failed(gone)

    async def spawn(
        self, actor_specs: list[ActorSpec], settings: Settings, known: Mapping[str, tuple[Address, bytes]], source: str
    ) -> tuple[dict[str, dict[str, Address]], list[dict[str, Any]]]:
        """Bring actors to life from the code whose digest is `source`.

        Return by caller, the driver and those that are `known`, where it finds each, and what each process says of
        itself.
        """
        self._actor_specs, processes = actor_specs, self._processes
        hosts = [host for host in await cluster.hosts() if host.id == self._host]
        cluster.check_resources((specs[0] for specs in by_process(actor_specs).values()), hosts)
        for address, key in known.values():
            processes.admit(address, key)
        is_reserved = await processes.reserve(actor_specs, hosts[0], _RESERVE_SECONDS)
        try:
            await processes.prepare(actor_specs, settings, None if is_reserved else hosts)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if isinstance(cause, (TypeError, ValueError, LookupError, AttributeError)):
                raise not_taken(actor_specs[0].name) from None
            raise cause from None
        for one in (source_on_disk(settings.package), *(one.get("source", "") for one in processes.reports.values())):
            if one != source:
                raise BadInput(
                    f"ray: its processes have other code, source {one[:12]}; the run asks for source {source[:12]}: "
                    "install the wheel of the site where Ray runs, and start both again"
                )
        bare = {name: replace(there, actor=None) for name, there in processes.addresses.items()}
        found = {caller: processes.as_seen_by(caller, bare) for caller in (DRIVER, *known)}
        return found, list(processes.reports.values())

    async def load(self, frames: Mapping[str, bytes]) -> None:
        """Let them load, and go on from states."""
        await self._processes.load(self._actor_specs, frames)

    async def open(self, start: float) -> None:
        """Open them, the run having begun at `start`."""
        await self._processes.open(self._actor_specs, start)

    async def close(self) -> None:
        """Close them."""
        raise_first(await self._processes.close())

    def forget(self) -> list[Any]:
        """Watch nobody any more; return the actors that are left."""
        self._processes.stop_watching()
        return self._processes.forget(is_sick=self.is_sick)


async def _keep(end: socket.socket, joined: cluster.Joined, call_timeout: float) -> tuple[list[Any], bool]:
    reader, writer = await asyncio.open_connection(sock=end)
    services = await cluster.services()
    if joined.watchdog is not None:
        joined.watchdog.watch(services)
    host = ray.get_runtime_context().get_node_id()
    sidecar = RaySidecar(writer, host, call_timeout)
    tasks = {asyncio.ensure_future(sidecar.watch())}
    write(writer, (EVENT, True, host))
    try:
        while True:
            task = asyncio.ensure_future(sidecar.answer(*await read(reader)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    except (EOFError, OSError):
        return sidecar.forget(), sidecar.is_sick
    finally:
        for task in tasks:
            task.cancel()


def main(number: int, address: str, call_timeout: float) -> None:
    """Join Ray and serve the site at the other end of an open socket."""
    end = socket.socket(fileno=number)
    left: list[Any] = []
    is_sick = False
    try:
        joined = cluster.join(address, None)
    except Exception as error:
        said = str(error).removeprefix("address: ")
        told = BadInput(f"ray: {said} (site.toml, and the environment of fedactors site start)")
        found = told if isinstance(error, BadInput) else error
        frame = pickle.dumps((EVENT, False, b"".join(encode_error(DRIVER, found))), protocol=5)
        end.sendall(_LENGTH.pack(len(frame)) + frame)
        return
    try:
        left, is_sick = asyncio.run(_keep(end, joined, call_timeout))
    finally:
        cluster.leave(joined, left, is_sick=is_sick)


class RemoteActorProxy:
    """One actor of another site, as the actors' processes of this site's Ray see it."""

    def __init__(self, address: ActorAddress, boundary: SiteBoundary, host: str, call_timeout: float) -> None:
        self.key = secrets.token_bytes(32)
        self.transport = LocalTransport(address.name, host, True, call_timeout, boundary.unawaited)
        """Its ways to actors of this site."""
        self._address = address
        self._boundary = boundary
        self._host = host
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, socket: Path) -> Address:
        """Listen at a path; return where processes of this host find it."""
        address, memory = self._address, self.transport.memory
        self._server = await listen(str(socket), self._recognise, self._serve, self._give, memory)
        here = address.name, address.role, self._host, str(socket)
        return Address(*here, 0, 0, None, address.endpoints, b"", process=address.name)

    def close(self) -> None:
        """Be there no more."""
        if self._server is not None:
            self._server.close()
        self.transport.close()

    def _recognise(self, hello: memoryview) -> Caller | None:
        name, receiver, incarnation = shown_by(hello, self.key) or ("", "", None)
        if incarnation is None or receiver != self._address.name:
            return None
        return Caller(name, self._boundary.gate.role(name), incarnation, receiver)

    async def _serve(self, caller: Caller, body: memoryview) -> tuple[int, Parts]:
        """Call the actor that this one stands for."""
        gate, address = self._boundary.gate, self._address
        try:
            asked, value = parts_of(body, caller.name, 2, "is no call")
            path, value, _ = gate.call_out(caller.name, address, asked, value)
            parts = encode_parts((caller.name, address.name, asked, value))
            sent = self._boundary.send(address.site, "calls", parts, f"{address.name}.{asked}")
            reply = await decoded(await sent, address.name)
            gate.reply_in(path, reply)
            return REPLY, encode_parts(reply)
        except Exception as error:
            return self._refusal(error)

    async def _give(self, caller: Caller, body: memoryview) -> tuple[int, Parts]:
        """Fetch a payload of the actor that this one stands for."""
        try:
            value = await fetch_abroad(self._boundary, caller.name, self._address, decode(body))
            return REPLY, encode_parts(((caller.name,), value))
        except Exception as error:
            return self._refusal(error)

    def _refusal(self, error: Exception) -> tuple[int, Parts]:
        if isinstance(error, Refused):
            self._boundary.note(error)
        return ERROR, encode_error(self._address.name, error)

    async def fetch(self, owner: str, key: int) -> Any:
        """Return a payload of an actor of this site, which says whether it may be had; it is checked here."""
        frame = memoryview(await self.transport.fetch(self.transport.book[owner], key))
        _, value = parts_of(frame, owner, 2, "is no call")
        calls.receive(self._boundary.gate.book[owner].endpoints, owner, value)
        return value


_SIDECAR = "fedactors.federation.ray_hosting"
_SETTLE_SECONDS = 1.0


class RayActorHost(ActorHost):
    """The site's process's side: asks the sidecar, and calls actors over its own and its proxies' sockets.

    Args:
        address: of the cluster; `cluster.EMBEDDED` for one that begins and ends with the run.
        package: the protocol's.
        source: digest of the code that was approved.
        code: source files that the run brings.
    """

    def __init__(
        self,
        boundary: SiteBoundary,
        address: str,
        call_timeout: float,
        package: str = "",
        source: str = "",
        code: Mapping[str, bytes] | None = None,
    ) -> None:
        self._boundary = boundary
        self._package, self._source, self._code = package, source, dict(code or {})
        self._address = address
        self._call_timeout = call_timeout
        self._has_ended = False
        self._names: list[str] = []
        self._clock: WallClock
        self._sidecar: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(EVENT + 1)
        self._transport: LocalTransport | None = None
        """The driver's ways to the actors."""
        self._proxies: dict[str, RemoteActorProxy] = {}
        self._folder: Path | None = None
        """Of the proxies' sockets."""
        self._drained: dict[str, Drained] = {}
        """What each process said last."""
        self._recorded = Recorded()
        self._before: dict[str, Counted] = {}
        """Messages and seconds of waiting of the run that this one goes on from."""
        self._tasks: list[asyncio.Task[None]] = []
        self._settling = asyncio.Lock()

    @property
    def root(self) -> int | None:
        """The number of the sidecar's process."""
        return None if self._sidecar is None else self._sidecar.pid

    # --- the sidecar ---

    async def _join(self) -> str:
        """Start the sidecar; return the Ray host that it is on.

        Raises:
            FedactorsError: there is no Ray.
        """
        near, far = socket.socketpair()
        number = str(far.fileno())
        words = (sys.executable, "-P", "-m", _SIDECAR, number, self._address, str(self._call_timeout))
        root, given = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "").split(os.pathsep)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *map(os.path.abspath, filter(None, given))])}
        with far:
            # in a session of its own: the signals of a terminal are meant for the site's process; and where its code
            # lies, for Ray's workers import first from where it begins, which others may write in
            ends: dict[str, Any] = {"pass_fds": (far.fileno(),), "stdin": asyncio.subprocess.DEVNULL}
            try:
                self._sidecar = await asyncio.create_subprocess_exec(
                    *words, start_new_session=True, env=env, cwd=root, **ends
                )
            except BaseException:
                near.close()
                raise
        reader, self._writer = await asyncio.open_connection(sock=near)
        try:
            _, is_good, found = await read(reader)
        except (EOFError, OSError):
            raise PartyLost(self._names[0], "its Ray did not begin") from None
        if not is_good:
            decode_reply(False, found)
        self._tasks.append(asyncio.get_running_loop().create_task(self._listen(reader)))
        return str(found)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                number, is_good, found = await read(reader)
                asked = self._asked.pop(number, None)
                try:
                    value = found if is_good else decode_reply(False, found)
                except FedactorsError as error:
                    if number == EVENT:
                        self._boundary.failed(self._names[0], error)
                    elif asked is not None and not asked.done():
                        asked.set_exception(error)
                else:
                    if asked is not None and not asked.done():
                        asked.set_result(value)
        except (EOFError, OSError):
            gone = PartyLost(self._names[0], "the process that had joined its Ray is gone")
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(gone)
            self._boundary.failed(self._names[0], gone)

    async def _ask(self, verb: str, *args: Any) -> Any:
        """Ask the sidecar; what it says that an actor's code raised is told as of that actor."""
        if not self._names:
            return {}  # the site hosts nobody in this run
        with code_of(self._names[0], self._boundary.gate.book):
            if self._writer is None or self._writer.is_closing():
                raise PartyLost(self._names[0], "its Ray is gone")
            number = next(self._numbers)
            asked = self._asked[number] = asyncio.get_running_loop().create_future()
            write(self._writer, (number, verb, args))
            return await asked

    # --- the actors ---

    async def spawn(self, actor_specs: Sequence[ActorSpec], seed: int, clock: WallClock) -> None:
        if not actor_specs:
            return
        self._clock, self._names = clock, [actor_spec.name for actor_spec in actor_specs]
        with code_of(self._names[0], self._boundary.gate.book):
            host = await self._join()
        transport = self._transport = LocalTransport(DRIVER, host, True, self._call_timeout, self._boundary.unawaited)
        remove_folders({"socket": lambda _: None})  # of a site's process that was killed
        self._folder = make_folder("socket")
        known = {}
        for number, (name, address) in enumerate(self._boundary.gate.book.items()):
            if name not in self._names:
                one = self._proxies[name] = RemoteActorProxy(address, self._boundary, host, self._call_timeout)
                known[name] = await one.listen(self._folder / str(number)), one.key
        settings = Settings(
            seed=seed,
            start=0.0,
            offset=clock.offset,
            reproducible_noise=False,
            call_timeout=self._call_timeout,
            use_sockets=True,
            keep_rows=True,
            network=None,
            costs=None,
            scale=1.0,
            use_shared_memory=False,
            repeats=0,
            is_between_organisations=True,
            package=self._package,
            code=self._code,
        )
        found, self.reports = await self._ask("spawn", list(actor_specs), settings, known, self._source)
        transport.update(found[DRIVER])
        for name, one in self._proxies.items():
            one.transport.update(found[name])
        self._tasks.append(asyncio.get_running_loop().create_task(self._settle_again()))

    async def load(self, earlier: Earlier | None) -> None:
        if earlier is not None:
            self._before = {name: earlier.counted(name) for name in self._names}
        await self._ask("load", {} if earlier is None else {name: earlier.state(name) for name in self._names})

    async def open(self, start: float) -> None:
        self._clock.begin(start)
        await self._ask("open", start)

    async def serve(self, path: CallPath, value: Any) -> Any:
        receiver, caller = path.receiver, path.sender
        transport = self._transport if caller == DRIVER else self._proxies[caller].transport
        with code_of(receiver, self._boundary.gate.book):
            if transport is None:
                raise PartyLost(receiver, "it is not spawned yet")
            return await transport.send(
                transport.address(receiver, caller), path, encode_parts((path.endpoint.name, value))
            )

    async def read(self, owner: str, key: int, reader: str) -> Any:
        return await self._proxies[reader].fetch(owner, key)

    async def account(self, party: str) -> list[Any]:
        return list(await self._ask("account", party))

    async def snapshots(self) -> dict[str, bytes]:
        found: dict[str, bytes] = await self._ask("snapshots")
        return found

    async def settle(self) -> None:
        async with self._settling:
            found: dict[str, Drained] = await self._ask("drained")
            for name, one in found.items():
                self._drained[name] = one
                self._recorded.rows += one.rows
                self._recorded.spans += one.spans
                self._recorded.privacy += one.privacy
                for text in one.refused:
                    error = Refused(name, text)
                    raised_by(name, error, self._boundary.gate.book)  # whose words stay at this site
                    self._boundary.note(error)

    async def _settle_again(self) -> None:
        """Keep what is fetched no older than a second: whatever ends the run, so much of it is written."""
        while True:
            await asyncio.sleep(_SETTLE_SECONDS)
            with contextlib.suppress(FedactorsError):  # who is lost is said elsewhere
                await self.settle()

    def recorded(self) -> Recorded:
        found, self._recorded = self._recorded, Recorded()
        return found

    def counted(self) -> Mapping[str, Counted]:
        found = {}
        for name, one in self._drained.items():
            totals, waiting, _ = self._before.get(name, Counted((), 0.0))
            found[name] = Counted(merged([*totals, *one.totals]), waiting + one.idle_seconds, one.cpu_seconds)
        return found

    async def close(self) -> None:
        await self._ask("last_answers")
        await self.settle()
        await self._ask("close")

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        for task in self._tasks:
            task.cancel()
        for one in self._proxies.values():
            one.close()
        if self._transport is not None:
            self._transport.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._writer is not None:
            self._writer.close()  # at which the sidecar leaves Ray, and ends


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
    if cluster.has_stuck_thread.is_set():
        os._exit(1)

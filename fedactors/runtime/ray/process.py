"""One generic Ray actor class that hosts any actor: the process side of the Ray runtime.

    driver ──prepare, meet, open, snapshot, drain, watch──▶ ActorProcess
    peers  ──fast lane (same host) or Ray call────────────▶ ActorProcess.serve ──▶ the plain actor's method

Errors travel as values, so Ray's own wrapping never shows. `watch` ends when something that goes on by itself fails.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import ray

from fedactors.errors import BadInput, FedactorsError, PartyLost
from fedactors.network.codec import HEADER_BYTES, decode, encode_parts, freeze, measure, type_name
from fedactors.network.ledger import DRIVER as DRIVER_KIND
from fedactors.network.ledger import Ledger, Row, kind_of
from fedactors.network.links import Network
from fedactors.runtime import snapshot
from fedactors.runtime.base import Casting, Clock, Context, CostModel, Job, Ref, Work
from fedactors.runtime.ray.lanes import Address, Lanes, as_array, encode_error
from fedactors.runtime.ray.payloads import PayloadReader, PayloadStore
from fedactors.runtime.ray.transport import ERROR, REPLY, Incoming, Parts

T = TypeVar("T")


class WallClock(Clock):
    """Seconds since the run began, `scale` wall seconds each, `offset` seconds ahead when a run goes on."""

    def __init__(self, start: float, offset: float = 0.0, scale: float = 1.0) -> None:
        self._start = start
        self._offset = offset
        self._scale = scale

    def begin(self, start: float) -> None:
        """Count from `start` (by the wall clock) on."""
        self._start = start

    def now(self) -> float:
        """Return the present time."""
        return (time.time() - self._start) / self._scale + self._offset

    async def sleep(self, seconds: float, key: str | None = None) -> None:
        """See `Clock.sleep`; a keyed wait is not continued across a resume, its loop asks for it again."""
        await asyncio.sleep(seconds * self._scale)


@dataclass(frozen=True)
class Settings:
    """What every process of a run must know."""

    seed: int
    start: float
    offset: float
    reproducible_noise: bool
    call_timeout: float
    use_sockets: bool
    keep_rows: bool
    network: Network | None
    costs: CostModel | None
    scale: float
    script_messages: tuple[type, ...] = ()
    """Messages that the driver's own script declares: other processes cannot import them."""


@dataclass
class Drained:
    """What a process recorded since it was last asked, and what it used since it began."""

    rows: list[Row]
    spans: list[tuple[str, str, str, float, float]]
    privacy: list[Any]
    totals: list[tuple[str, str, str, str, int, int]]
    waiting_seconds: float
    cpu_seconds: float


class RayContext(Context):
    """One actor's side of the Ray runtime, in the actor's own process."""

    def __init__(self, casting: Casting, settings: Settings, lanes: Lanes) -> None:
        self.name = casting.name
        self.seed = settings.seed
        self.reproducible_noise = settings.reproducible_noise
        self.clock: WallClock = WallClock(settings.start, settings.offset, settings.scale)
        self.rows: list[Row] = []
        self.spans: list[tuple[str, str, str, float, float]] = []
        self.privacy: list[Any] = []
        self.waiting_seconds = 0.0
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.ledger = Ledger(self.rows.extend if settings.keep_rows else None)
        self.lanes = lanes
        self._cpu_before = 0.0
        self._role = casting.cls.role
        self._settings = settings
        self._store = PayloadStore()
        self._reader = PayloadReader()
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._emulating = settings.network is not None or settings.costs is not None
        # a compute in the loop's own thread would also delay the emulated links
        self._thread = concurrent.futures.ThreadPoolExecutor(1) if self._emulating else None

    def call(self, receiver: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        address = self.lanes.address(receiver, self.name)
        size = measure(args) + (measure(kwargs) if kwargs else 0)
        name = type_name(args[0], method) if args else method
        kind = kind_of(self.name, self._role, receiver, address.role)
        self.ledger.record(self.clock.now(), self.name, receiver, kind, name, size)
        parts = encode_parts((self.name, self._role, method, args, kwargs))
        delay = self._link_delay(self.name, receiver, kind, size)
        if delay <= 0:
            return self.lanes.send(address, method, parts)
        return asyncio.ensure_future(self._send_later(delay, address, method, [b"".join(parts)]))

    async def _send_later(self, delay: float, address: Address, method: str, parts: Parts) -> Any:
        await asyncio.sleep(delay)
        return await self.lanes.send(address, method, parts)

    def _link_delay(self, sender: str, receiver: str, kind: str, size: int) -> float:
        network = self._settings.network
        if network is None or kind == DRIVER_KIND:
            return 0.0
        return network.link(sender, receiver, kind).seconds(size + HEADER_BYTES) * self._settings.scale

    async def reply_later(self, receiver: str, receiver_role: str, type_: str, size: int) -> None:
        """Record a reply, and hold it back for the time that an emulated link takes."""
        kind = kind_of(self.name, self._role, receiver, receiver_role)
        self.ledger.record(self.clock.now(), self.name, receiver, kind, type_, size)
        delay = self._link_delay(self.name, receiver, kind, size)
        if delay > 0:
            await asyncio.sleep(delay)

    async def compute(self, function: Callable[..., T], args: tuple[Any, ...], work: Work) -> T:
        # lets frames in that arrived meanwhile: the function blocks this process
        await asyncio.sleep(0)
        start = self.clock.now()
        if self._thread is None:
            result = function(*args)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)
            costs = self._settings.costs
            if costs is not None:
                rest = costs.seconds(self.name, work) - (self.clock.now() - start)
                await self.clock.sleep(max(0.0, rest))
        self.record_span("compute", work.kind, start, self.clock.now())
        return result

    def begin(self, key: str, function: Callable[..., Any], args: tuple[Any, ...], work: Work) -> Job:
        if key in self._jobs:
            raise FedactorsError(f"{self.name}: a job {key!r} is already under way")
        task = asyncio.ensure_future(self.compute(function, freeze(args)[0], work))

        async def wait(job: Job) -> Any:
            result = await asyncio.shield(task)
            self._jobs.pop(job.key, None)
            return result

        job = Job(key, function, args, work, self.clock.now(), wait)
        self._jobs[key] = job
        return job

    def job(self, key: str) -> Job | None:
        return self._jobs.get(key)

    def background(self, awaitable: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(awaitable)
        self._tasks.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        if not self.failure.done():
            self.failure.set_result(cast(BaseException, task.exception()))

    def put(self, value: Any) -> Ref:
        size = measure(value)
        key, place = self._store.put(encode_parts(value))
        return Ref(self.name, key, size, place if self._settings.use_sockets else ())

    async def get(self, ref: Ref) -> Any:
        if ref.owner == self.name:
            return decode(self._store.read(ref.key))
        address = self.lanes.address(ref.owner, self.name)
        frame = None
        if ref.place and self.lanes.is_near(address):
            try:
                frame = self._reader.read(ref.place, ref.key)
            except (FileNotFoundError, ProcessLookupError):
                raise PartyLost(ref.owner, "its process is gone, and its payloads with it") from None
            except PermissionError:
                # the owner's memory is out of reach (another user or process namespace): ask for the bytes
                frame = None
        if frame is None:
            frame = await self.lanes.fetch(address, ref.key)
        value = decode(frame)
        kind = kind_of(ref.owner, address.role, self.name, self._role)
        self.ledger.record(self.clock.now(), ref.owner, self.name, kind, type_name(value, "payload"), ref.num_bytes)
        delay = self._link_delay(ref.owner, self.name, kind, ref.num_bytes)
        if delay > 0:
            await asyncio.sleep(delay)
        return value

    def read_payload(self, key: int) -> bytes:
        """Return the bytes of a payload kept here, for a reader on another host."""
        return self._store.read(key)

    def free(self, ref: Ref) -> None:
        self._store.free(ref.key)

    def record_span(self, kind: str, label: str, start: float, end: float) -> None:
        if kind == "wait":
            self.waiting_seconds += end - start
        if self._settings.keep_rows:
            self.spans.append((self.name, kind, label, start, end))

    def record_privacy(self, record: Any) -> None:
        self.privacy.append(record)

    def begin_run(self, start: float) -> None:
        """Count time and CPU seconds from here on: what came before was starting up."""
        self.clock.begin(start)
        self._cpu_before = _cpu_seconds()

    def drain(self) -> Drained:
        """Hand over what was recorded since the last time."""
        self.ledger.flush()
        rows, spans, privacy = list(self.rows), list(self.spans), list(self.privacy)
        self.rows.clear()
        self.spans.clear()
        self.privacy.clear()
        return Drained(
            rows, spans, privacy, self.ledger.state(), self.waiting_seconds, _cpu_seconds() - self._cpu_before
        )

    def close(self) -> None:
        """Stop what goes on by itself and give memory back."""
        for task in list(self._tasks):
            task.cancel()
        self.lanes.close()
        self._store.close()
        self._reader.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def _cpu_seconds() -> float:
    used = os.times()
    return used.user + used.system


class ActorProcess:
    """The Ray actor; see the module."""

    def __init__(self, casting: Casting, settings: Settings) -> None:
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        for cls in settings.script_messages:
            setattr(sys.modules["__main__"], cls.__name__, cls)
        self._casting = casting
        self._settings = settings
        self._context: RayContext
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._server: asyncio.AbstractServer | None = None

    async def prepare(self) -> tuple[str, str, int]:
        """Construct the actor and listen; return (host, socket path, process id)."""
        host = ray.get_runtime_context().get_node_id()
        lanes = Lanes(host, self._settings.use_sockets, self._settings.call_timeout)
        self._context = RayContext(self._casting, self._settings, lanes)
        self._actor = self._casting.cls(*self._casting.args, **self._casting.kwargs)
        self._actor._context = self._context
        path = ""
        if self._settings.use_sockets:
            self._folder = tempfile.TemporaryDirectory(prefix="fedactors-")
            path = str(Path(self._folder.name) / "lane")
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Incoming(self._serve), path)
        self._loaded = asyncio.Event()
        return host, path, os.getpid()

    async def meet(self, addresses: dict[str, Address]) -> None:
        """Learn where the other actors live."""
        self._context.lanes.update(addresses)

    async def load(self, state: bytes | None) -> bytes | None:
        """Load data and restore a snapshot; return an encoded error or None."""

        async def work() -> None:
            await self._actor.load()
            if state is not None:
                content = snapshot.unseal(state, f"the checkpoint of {self._casting.name}")
                snapshot.apply(self._actor, content["state"])
            # calls that come earlier, from peers that know a respawned actor already, wait for this
            self._loaded.set()

        return await self._guarded(work)

    async def open(self, start: float) -> bytes | None:
        """Start the actor's loops, the run having begun at `start`; return an encoded error or None."""
        self._context.begin_run(start)
        # modules and data live as long as the run: the collector of garbage need not look at them again
        gc.collect()
        gc.freeze()
        return await self._guarded(self._actor.open)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> bytes | None:
        try:
            await work()
        except Exception as error:
            return b"".join(encode_error(self._casting.name, error))
        return None

    async def call(self, frame: Any) -> tuple[int, Any]:
        """Serve a call that came through Ray."""
        kind, parts = await self._serve(memoryview(frame))
        return kind, as_array(parts)

    async def fetch(self, key: int) -> tuple[int, Any]:
        """Serve a payload to a reader on another host."""
        try:
            return REPLY, as_array([self._context.read_payload(key)])
        except FedactorsError as error:
            return ERROR, as_array(encode_error(self._casting.name, error))

    async def _serve(self, body: memoryview) -> tuple[int, Parts]:
        name = self._casting.name
        try:
            sender, role, method, args, kwargs = decode(body)
            if method.startswith("_") or not hasattr(self._actor, method):
                raise BadInput(f"{name} has no method {method!r}")
            if not self._loaded.is_set():
                await self._loaded.wait()
            reply = await getattr(self._actor, method)(*args, **kwargs)
            if reply is not None:
                size = measure(reply)
                await self._context.reply_later(sender, role, type_name(reply, f"{method} reply"), size)
            return REPLY, encode_parts(reply)
        except Exception as error:
            return ERROR, encode_error(name, error)

    async def watch(self) -> bytes:
        """Return, encoded, the error of whatever went on by itself and failed."""
        return b"".join(encode_error(self._casting.name, await self._context.failure))

    async def snapshot(self) -> bytes:
        """Return the actor's state as a sealed frame."""
        state = snapshot.capture(self._actor, self._actor.state)
        return snapshot.seal({"state": state, "jobs": [], "timers": {}})

    async def drain(self) -> Drained:
        """Return what was recorded; see `RayContext.drain`."""
        return self._context.drain()

    async def close(self) -> None:
        """Close the actor and everything that its process opened."""
        await self._actor.close()
        if self._server is not None:
            self._server.close()
        self._context.close()
        if self._folder is not None:
            self._folder.cleanup()

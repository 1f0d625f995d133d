"""What a protocol's actors send, and what their code does besides, noted while a simulated run goes on.

`ObservedRuntime` notes everything that leaves a party, and the processor time spent outside of computes. `WatchedCode`
notes what goes past the framework: clocks and generators of the process, functions run outside of computes, files,
connections and processes, variables of modules and classes, and what is printed, each by the source file that asked
for it: what a library does by itself is its business. Observing costs time, never virtual time, and changes no result.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import hashlib
import inspect
import io
import logging
import os
import random
import re
import sys
import time
import types
import zlib
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import numpy as np

import fedactors.data
import fedactors.runtime
from fedactors.actors.actor import Resources
from fedactors.actors.context import Ref
from fedactors.actors.remote import DRIVER
from fedactors.runtime.failures import words_of
from fedactors.runtime.simulation.network import SimulatedContext, current_actor
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.testing.leaks import MIN_DISTINCT, MIN_DRAWN, RawData

T = TypeVar("T")

_MOST_KEPT = 40
_MOST_SMALL = 4000
_SMALL = 64
_STACK_ENTRY = re.compile(r'^ *(?:\| *)*File "[^"\n]+", line \d+, in .*\n(?: .*\n)?', re.MULTILINE)
"""A frame of a traceback, with its line of code: what remains are words."""


@dataclass
class Gathered:
    """What left in one field of a message, or in another place with a name, in the order of leaving."""

    route: str
    """The first "sender to receiver"."""
    arrays: list[Any] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    texts: dict[str, None] = field(default_factory=dict)
    blobs: list[bytes] = field(default_factory=list)

    def add(self, value: Any) -> None:
        """Keep one leaf; of large ones the first few."""
        if isinstance(value, (bool, int, float, np.generic)) and len(self.numbers) < _MOST_SMALL:
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                self.numbers.append(float(value))
        elif isinstance(value, str) and len(self.texts) < _MOST_SMALL:
            self.texts[value] = None
        elif isinstance(value, np.ndarray):
            if len(self.arrays) < (_MOST_SMALL if value.size <= _SMALL else _MOST_KEPT):
                self.arrays.append(value.copy())
        elif isinstance(value, (bytes, bytearray, memoryview)) and len(self.blobs) < _MOST_KEPT:
            self.blobs.append(bytes(value))


@dataclass
class Observed:
    """What was seen of one run."""

    sent: list[tuple[str, int]] = field(default_factory=list)
    """Every message in the order of sending: (what it was, its bytes)."""
    sent_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    """Bytes by (sender, receiver), counted apart from the ledger."""
    types: dict[type, str] = field(default_factory=dict)
    """Message classes that crossed between parties or reached the driver, with a "sender to receiver" that did so."""
    left: dict[tuple[str, str], Gathered] = field(default_factory=dict)
    """Everything that left a party, by (message type and field or another name of the place, sender)."""
    raw: RawData = field(default_factory=RawData)
    """Features and labels that `fedactors.data` gave out during the run."""
    orders: dict[bytes, Any] = field(default_factory=dict)
    """Index arrays that the actors' coroutines held: batches, permutations."""
    wall_time: dict[str, str] = field(default_factory=dict)
    """Reads of a wall clock by the protocol's code: place and function."""
    global_generators: list[str] = field(default_factory=list)
    """Process-wide generators that were drawn from or seeded."""
    channels: dict[str, str] = field(default_factory=dict)
    """Files written, connections and processes made by the protocol's code: place and what it did."""
    shared: dict[str, str] = field(default_factory=dict)
    """Variables of modules and classes that changed during the run, with the actor after whose step it was seen."""
    others_data: dict[str, str] = field(default_factory=dict)
    """Data that somebody loaded who is not the party that has them: place, and who loaded whose."""
    relayed: dict[str, str] = field(default_factory=dict)
    """Arrays that one party gave to the driver and the driver to another: message field, and the two parties."""
    computed: dict[Any, str] = field(default_factory=dict)
    """Code of the functions that were given to `compute`, with their names."""
    called: dict[Any, str] = field(default_factory=dict)
    """Code that the protocol called outside of any compute, with the first place."""
    steps: list[tuple[str, str, float]] = field(default_factory=list)
    """Of each step of an actor: (actor, what it served, processor seconds outside of computes and of the frame)."""
    compute_seconds: dict[str, float] = field(default_factory=dict)
    """Processor seconds of each actor's computes."""
    _told_driver: dict[bytes, str] = field(default_factory=dict)
    """Digest of each array that the driver was given, and who gave it."""

    def message(self, sender: str, receiver: str, method: str, value: Any) -> None:
        """Note one message; `value` is what the codec carries."""
        route = f"{sender} to {receiver}"
        size = count_bytes(value)
        self.sent.append((f"{method} from {route}", size))
        pair = (sender, receiver)
        if DRIVER not in pair:
            self.sent_bytes[pair] = self.sent_bytes.get(pair, 0) + size
        if sender.partition("/")[0] == receiver.partition("/")[0]:
            return
        for path, item, cls in walk(value):
            if cls is not None:
                self.types.setdefault(cls, route)
            elif DRIVER in pair and isinstance(item, np.ndarray) and len(np.unique(item)) >= MIN_DISTINCT:
                self._note_relay(sender, receiver, path, item)
        self.leave(f"{receiver}.{method}" if receiver != DRIVER else method, sender, route, value)

    def _note_relay(self, sender: str, receiver: str, path: str, array: Any) -> None:
        digest = hashlib.sha256(array.tobytes()).digest()
        if receiver == DRIVER:
            self._told_driver.setdefault(digest, sender)
        elif (giver := self._told_driver.get(digest, receiver)).partition("/")[0] != receiver.partition("/")[0]:
            self.relayed.setdefault(path, f"{giver} to {receiver}")

    def leave(self, name: str, sender: str, route: str, value: Any) -> None:
        """Keep everything in `value`, by message type and field, and its numbers by the call as well."""
        gathered = self.left
        for path, item, cls in walk(value):
            if cls is not None:
                continue
            field = name if path.startswith("[") else path
            gathered.setdefault((field, sender), Gathered(route)).add(item)
            if field != name and isinstance(item, (bool, int, float, np.generic)):
                gathered.setdefault((name, sender), Gathered(route)).add(item)


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any, type | None]]:
    """Yield (path, value, message class or None) of messages and leaves; a path outside of a message is ``[...]``."""
    cls = type(value)
    if is_dataclass(value) and cls is not Ref:
        yield cls.__name__, value, cls if hasattr(cls, "__message__") else None
        for f in dataclass_fields(cls):
            yield from walk(getattr(value, f.name), f"{cls.__name__}.{f.name}")
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            yield from walk(item, path or "[]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield path or "[]", key, None
            yield from walk(item, path or "[]")
    else:
        yield path or "[]", value, None


def count_bytes(value: Any) -> int:
    """Return the bytes of a message beside its header; written apart from the codec, to check it.

    A number is eight bytes wherever it is, but for the first eight that are fields of the message itself.
    """
    if is_dataclass(value):
        contents = [getattr(value, f.name) for f in dataclass_fields(value)]
        numbers = [
            item for item in contents if isinstance(item, (bool, int, float, np.generic)) and _all_bytes(item) == 8
        ]
        return _all_bytes(value) - 8 * min(8, len(numbers))
    return _all_bytes(value)


def _all_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray):
        # the shape of an array without content says whatever its maker wants it to say
        return value.nbytes or 8 * max(sum(size > 1 for size in value.shape), value.ndim - 2)
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return value.bit_length() // 8 + 1
    if isinstance(value, (bool, int, float, np.generic)):
        return 8
    if isinstance(value, (tuple, list)):
        return sum(max(1, _all_bytes(item)) for item in value)
    if isinstance(value, Mapping):
        return sum(map(_all_bytes, (*value.keys(), *value.values())))
    if is_dataclass(value):
        return sum(_all_bytes(getattr(value, f.name)) for f in dataclass_fields(value))
    return 0


class ObservedRuntime(SimulatedRuntime):
    """A `SimulatedRuntime` that notes everything in `observed`.

    Args:
        observed: where it is noted.
        after_step: called with an actor's name after each of its steps.
        options: see `SimulatedRuntime`.
    """

    def __init__(
        self,
        observed: Observed,
        *,
        after_step: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.observed = observed
        self.computing = 0
        """How many computes are running (inside of one another)."""
        self._after_step = after_step
        self.num_starting = 0
        """How many groups of actors are loading: what that costs is not the run's."""
        self._excused = 0.0
        self._run_function = self.cores.run
        self.cores.run = self._compute  # type: ignore[method-assign]

    def spawn(self, cls: type[T], name: str, *args: Any, resources: Resources | None = None, **kwargs: Any) -> T:
        self.loop.set_task_factory(self._make_task)  # type: ignore[arg-type]
        return super().spawn(cls, name, *args, resources=resources, **kwargs)

    # --- what leaves ---

    def send(self, sender: str, receiver: str, method: str, value: Any) -> Any:
        with self._excuse():
            # of the wire, not of what is returned: a sender that stops waiting does not stop the receiver from
            # answering
            self.wire.watch_replies = self._note_reply
            reply = super().send(sender, receiver, method, value)
            self.observed.message(sender, receiver, method, value)
            reply.add_done_callback(partial(self._note_error, sender, receiver, method))
            return reply

    def _note_reply(self, sender: str, receiver: str, method: str, reply: Any) -> None:
        with self._excuse():
            self.observed.message(sender, receiver, f"{method} reply", reply)

    def _note_error(self, sender: str, receiver: str, method: str, reply: asyncio.Future[Any]) -> None:
        error = getattr(reply, "_exception", None)  # `exception()` would count as having been looked at
        if error is not None:
            route = f"{receiver} to {sender}"
            said = [*words_of(error), _STACK_ENTRY.sub("", getattr(error, "traceback_text", ""))]
            self.observed.leave(f"the error of {method}", receiver, route, said)

    async def _bring_up(self, contexts: list[SimulatedContext], state: Any) -> None:
        for context in contexts:
            self._watch_payloads(context)
        self.num_starting += 1
        try:
            await super()._bring_up(contexts, state)
        finally:
            self.num_starting -= 1

    def _watch_payloads(self, context: SimulatedContext) -> None:
        fetch, keep = context.get, context.put

        async def get(ref: Ref) -> Any:
            value = await fetch(ref)
            if ref.owner != context.name:
                self.observed.message(ref.owner, context.name, "payload", value)
            return value

        def put(value: Any, readers: frozenset[str]) -> Ref:
            with self._excuse():
                return keep(value, readers)

        context.get = get  # type: ignore[method-assign]
        context.put = put  # type: ignore[method-assign]

    # --- processor time ---

    def _make_task(self, loop: Any, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Stepped(coroutine, self), loop=loop, **options)

    def _compute(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
        actor, pure = current_actor.get(), function
        while isinstance(pure, partial):
            pure = pure.func
        pure = inspect.unwrap(pure)
        code = getattr(pure, "__code__", None)
        if code is not None:
            self.observed.computed.setdefault(code, pure.__qualname__)
        before = time.thread_time()
        with self._excuse():
            self.computing += 1
            try:
                return self._run_function(function, args)
            finally:
                self.computing -= 1
                seconds = self.observed.compute_seconds
                seconds[actor] = seconds.get(actor, 0.0) + time.thread_time() - before

    @contextlib.contextmanager
    def _excuse(self) -> Iterator[None]:
        """Keep what happens inside out of the time that a step is found to have worked."""
        before, start = self._excused, time.thread_time()
        try:
            yield
        finally:
            self._excused = before + time.thread_time() - start

    @contextlib.contextmanager
    def measured_step(self, served: str) -> Iterator[None]:
        """Note the processor time of one step of the running task."""
        actor, outermost = current_actor.get(), self._excused
        start = time.thread_time()
        try:
            yield
        finally:
            outside = time.thread_time() - start - (self._excused - outermost)
            if actor != DRIVER and not self.num_starting:
                self.observed.steps.append((actor, served, outside))
                if self._after_step is not None:
                    self._after_step(actor)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Keep the collection of garbage out of the steps in which it happens to fall."""
        began = 0.0

        def collect(phase: str, _: Any) -> None:
            nonlocal began
            if phase == "start":
                began = time.thread_time()
            else:
                self._excused += time.thread_time() - began

        gc.callbacks.append(collect)
        try:
            yield
        finally:
            gc.callbacks.remove(collect)


class _Stepped(Coroutine[Any, Any, Any]):
    """A coroutine whose every step is measured."""

    def __init__(self, inner: Coroutine[Any, Any, Any], runtime: ObservedRuntime) -> None:
        self._inner = inner
        self._runtime = runtime
        call = getattr(getattr(inner, "cr_frame", None), "f_locals", {}).get("call")
        endpoint = getattr(call, "endpoint", None)
        self._served = str(getattr(endpoint, "name", None) or getattr(inner, "__qualname__", "a task"))

    def send(self, value: Any) -> Any:
        with self._runtime.measured_step(self._served):
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._runtime.measured_step(self._served):
            return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()


_DATA_FOLDER = str(Path(fedactors.data.__file__).parent)
_FRAME_FOLDERS = (_DATA_FOLDER, str(Path(fedactors.runtime.__file__).parent))
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "sleep")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_CHANNELS = {
    **dict.fromkeys(("os.mkdir", "os.rename", "os.link", "os.symlink"), "makes or renames a file"),
    **dict.fromkeys(("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty"), "starts a process"),
    "subprocess.Popen": "starts a process",
    "os.putenv": "sets an environment variable",
    "sqlite3.connect": "opens a database",
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo"), "opens a connection"),
}
_DEEPEST = 8
_MOST_VALUES = 20_000
_MOST_ORDERS = 2000
_SELF_CONTAINED = ("logging", "typing", "pydantic", "annotated_types", "_thread", "threading", "re")
_EVERY_STEP = 2000
_LATER = 50


class WatchedCode:
    """What the protocol's own files do during one run.

    Args:
        home: name of the module that the protocol's `run` comes from.
        is_user_code: whether a source file belongs to the protocol.
    """

    def __init__(self, home: str, is_user_code: Callable[[str], bool]) -> None:
        self._home = home
        self.is_user_code = functools.cache(is_user_code)
        self.observed = Observed()
        self.runtime: ObservedRuntime | None = None
        self._used: set[str] = set()
        self._variables: dict[str, dict[str, Any]] = {}
        self._num_steps = 0

    @contextmanager
    def watching(self, runtime: ObservedRuntime) -> Iterator[None]:
        """Note in the runtime's `observed` what happens inside."""
        self.runtime, self.observed = runtime, runtime.observed
        printed, complained = _Printed(sys.stdout), _Printed(sys.stderr)
        before = _generator_states()
        self._variables = dict(self._user_variables())
        previous = sys.getprofile()
        with ExitStack() as stack:
            stack.enter_context(_listening(self._note_event))
            stack.enter_context(redirect_stdout(printed))
            stack.enter_context(redirect_stderr(complained))
            stack.enter_context(_logging_to(self._note_log))
            sys.setprofile(self._profile)
            try:
                yield
            finally:
                sys.setprofile(previous)
                self._compare_variables("the run")
                after = _generator_states()
                self._used |= {name for name in before if before[name] != after[name]}
                self.observed.global_generators = sorted(self._used)
        said = printed.getvalue() + complained.getvalue()
        self.observed.leave("standard output", "the run", "the run to the terminal", said)

    def after_step(self, actor: str) -> None:
        """Look at the variables of modules and classes; later in a long run only now and then."""
        self._num_steps += 1
        if self._num_steps <= _EVERY_STEP or self._num_steps % _LATER == 0:
            profile = sys.getprofile()
            sys.setprofile(None)
            self._compare_variables(actor)
            sys.setprofile(profile)

    # --- clocks, generators, functions, data ---

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            self._note_builtin(frame, arg)
        elif event == "call":
            caller = frame.f_back
            if caller is not None and self.is_user_code(caller.f_code.co_filename):
                if frame.f_code.co_filename == random.__file__:
                    # its own functions; other libraries draw from it for names and the like, which is their business
                    self._used.add("random")
                if frame.f_code not in self.observed.called and self._is_at_work():
                    self.observed.called[frame.f_code] = _location(caller)
        elif event == "return" and arg is not None:
            if frame.f_code.co_filename.startswith(_DATA_FOLDER):
                self._note_data(arg)
                self._note_reader(frame, arg)
            elif frame.f_code.co_flags & inspect.CO_COROUTINE and self.is_user_code(frame.f_code.co_filename):
                self._note_order(frame)

    def _is_at_work(self) -> bool:
        """Say whether an actor's code runs outside of any compute, and not to load."""
        runtime = self.runtime
        return runtime is not None and not (runtime.computing or runtime.num_starting) and current_actor.get() != DRIVER

    def _note_builtin(self, frame: FrameType, function: Any) -> None:
        name, module = getattr(function, "__name__", ""), getattr(function, "__module__", None)
        clock = (module == "time" and name in _CLOCKS) or (
            name in ("now", "utcnow", "today") and isinstance(getattr(function, "__self__", None), type)
        )
        if clock and self.is_user_code(frame.f_code.co_filename):
            self.observed.wall_time.setdefault(_location(frame), f"{module or 'datetime'}.{name}")
        elif getattr(function, "__self__", None) is random._inst and self.is_user_code(frame.f_code.co_filename):  # type: ignore[attr-defined]
            self._used.add("random")
        elif module == "_thread" and name == "start_new_thread":
            self._note_channel(frame, "starts a thread")

    def _note_log(self, record: logging.LogRecord) -> None:
        if self.is_user_code(record.pathname):
            self.observed.leave("the log", "the run", "the run to its log", record.getMessage())

    def _note_order(self, frame: FrameType) -> None:
        """Keep the index arrays that a coroutine of an actor holds: in their order it may send raw values."""
        for holder in (frame.f_locals, getattr(frame.f_locals.get("self"), "__dict__", {})):
            for value in list(holder.values()):
                drawn = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
                if drawn and MIN_DRAWN <= len(value) <= _MOST_VALUES and len(self.observed.orders) < _MOST_ORDERS:
                    self.observed.orders.setdefault(value.tobytes(), value.copy())

    def _note_data(self, value: Any) -> None:
        raw, name = self.observed.raw, str(getattr(value, "origin", type(value).__name__))
        features, labels = getattr(value, "features", None), getattr(value, "labels", None)
        if isinstance(features, np.ndarray) and features.ndim > 1 and features.dtype.kind == "f":
            raw.add_features(name, features)
        if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "biuf":
            raw.add_labels(name, labels)
        if type(value).__module__.startswith("pyarrow") and hasattr(value, "column_names"):
            for column in value.column_names:
                if str(value.column(column).type) in ("double", "float"):
                    raw.add_features(f"table column {column}", np.nan_to_num(value.column(column).to_numpy())[:, None])

    def _note_reader(self, frame: FrameType, value: Any) -> None:
        """Note who loads data that are another party's; before the run's loop goes on, the launcher may."""
        caller, runtime = frame.f_back, self.runtime
        if frame.f_code.co_name != "load" or not hasattr(value, "features") or caller is None or runtime is None:
            return
        if not self.is_user_code(caller.f_code.co_filename) or asyncio._get_running_loop() is None:
            return
        held = frame.f_locals
        party = str(held.get("party", getattr(held.get("self"), "party", "")))
        reader = current_actor.get()
        parties = {name.partition("/")[0] for name in runtime._actor_specs}
        if reader == DRIVER:
            self.observed.others_data.setdefault(
                _location(caller), f"the driver loads the data of {party or 'a party'}"
            )
        elif party in parties and reader.partition("/")[0] != party:
            self.observed.others_data.setdefault(_location(caller), f"{reader} loads the data of {party}")

    # --- files, connections, processes ---

    def _note_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = bool(flags & _WRITES) if isinstance(flags, int) else any(c in str(mode) for c in "wax+")
            if not writes or isinstance(path, int) or str(path) == os.devnull or "__pycache__" in str(path):
                return
            what = f"opens {path} for writing"
        else:
            what = f"{_CHANNELS[event]} ({event} {' '.join(map(str, args[:2]))[:80]})"
        self._note_channel(sys._getframe(1), what)

    def _note_channel(self, frame: FrameType | None, what: str) -> None:
        """Note what happened under `frame`, if the protocol's code asked for it and not the frame's."""
        while frame is not None and not frame.f_code.co_filename.startswith(_FRAME_FOLDERS):
            if self.is_user_code(frame.f_code.co_filename):
                self.observed.channels.setdefault(_location(frame), what)
                return
            frame = frame.f_back

    # --- variables of modules and classes ---

    def _compare_variables(self, actor: str) -> None:
        for scope, found in self._user_variables():
            before = self._variables.get(scope)
            self._variables[scope] = found
            for name in found if before is None else found.keys() | before.keys():
                if before is not None and before.get(name) != found.get(name):
                    self.observed.shared.setdefault(f"{scope}.{name}", actor)

    def _user_variables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (module or class, content by name) of all that lives as long as the process and may change."""
        actors = [] if self.runtime is None else [actor_spec.cls for actor_spec in self.runtime._actor_specs.values()]
        classes = dict.fromkeys(cls for actor in actors for cls in actor.__mro__ if cls is not object)
        for module in self._user_modules(cls.__module__ for cls in classes):
            found = {}
            for name, value in list(vars(module).items()):
                if isinstance(value, type):
                    if value.__module__ == module.__name__:
                        classes[value] = None
                elif not name.startswith("__") and not isinstance(value, types.ModuleType):
                    found[name] = _Content().of(value)
            yield module.__name__, found
        for cls in classes:
            inner = {name: value for name, value in vars(cls).items() if not name.startswith(("__", "_abc_"))}
            yield f"{cls.__module__}.{cls.__qualname__}", {name: _Content().of(item) for name, item in inner.items()}

    def _user_modules(self, more: Iterable[str]) -> list[types.ModuleType]:
        """Return the protocol's modules: those of its run and its actors, and what they import of their own."""
        names, modules = [self._home, *more], {}
        while names:
            module = sys.modules.get(name := names.pop())
            if module is None or name in modules or not self.is_user_code(getattr(module, "__file__", None) or ""):
                continue
            modules[name] = module
            for value in list(vars(module).values()):
                where = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
                if isinstance(where, str):
                    names.append(where)
        return list(modules.values())


_FUNCTIONS = (types.FunctionType, types.MethodType, classmethod, staticmethod)
_UNCHANGING = (
    type, types.ModuleType, CodeType, property, functools._lru_cache_wrapper, types.GenericAlias, types.UnionType,
    np.ufunc,
)  # fmt: skip


class _Content:
    """Reads values into something that is equal as long as nothing in them has changed."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the content of `value`; beyond a depth and a number of values only which object it is."""
        self._left -= 1
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            return repr(value)
        if depth > _DEEPEST or self._left < 0 or type(value).__module__.partition(".")[0] in _SELF_CONTAINED:
            return id(value)
        if isinstance(value, _FUNCTIONS):  # most of what a module has, so that they come first
            function: Any = value
            made: Any = inspect.unwrap(getattr(function, "__func__", function))
            defaults = [getattr(made, name, None) for name in ("__defaults__", "__kwdefaults__")]
            return id(getattr(made, "__code__", made)), any(defaults) and self.of(defaults, depth + 1)
        if isinstance(value, _UNCHANGING):
            return id(value)
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ndarray):
            return value.shape, zlib.crc32(value.tobytes())
        if isinstance(value, Mapping):
            return [(self.of(key, depth + 1), self.of(item, depth + 1)) for key, item in list(value.items())]
        if isinstance(value, (list, tuple, deque)):
            return [self.of(item, depth + 1) for item in list(value)]
        if isinstance(value, (set, frozenset)):
            return sorted(repr(self.of(item, depth + 1)) for item in value)
        if isinstance(value, np.random.Generator):
            return repr(value.bit_generator.state)
        return id(value), self.of(vars(value), depth + 1) if hasattr(value, "__dict__") else repr(value)


@contextmanager
def _logging_to(heard: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Hear of all that is logged: what a run's own level leaves out, another run's writes."""
    root, listener, level = logging.getLogger(), logging.Handler(), logging.getLogger().level
    listener.emit = heard  # type: ignore[method-assign,assignment]
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(listener)


class _Printed(io.StringIO):
    """Keeps what is printed, and prints it."""

    def __init__(self, to: Any) -> None:
        super().__init__()
        self._to = to

    def write(self, text: str) -> int:
        self._to.write(text)
        return super().write(text)


def _location(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


_listener: Callable[[str, tuple[Any, ...]], None] | None = None
_hooked = False


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if _listener is not None and (event == "open" or event in _CHANNELS):
        _listener(event, args)


@contextmanager
def _listening(listener: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Hear of files, connections and processes; Python keeps an audit hook for ever, so there is one, mostly deaf."""
    global _listener, _hooked
    if not _hooked:
        sys.addaudithook(_hear)
        _hooked = True
    _listener = listener
    try:
        yield
    finally:
        _listener = None


def _generator_states() -> dict[str, Any]:
    states: dict[str, Any] = {"numpy.random": repr(np.random.get_state(legacy=False))}
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states

"""A simulated runtime that is observed: everything that leaves a party, and the processor time spent outside computes.

Observing costs time, never virtual time, and changes no result.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import inspect
import re
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fedactors.remote import DRIVER
from fedactors.resources import Resources
from fedactors.runtime.base import Ref
from fedactors.runtime.failures import words_of
from fedactors.runtime.simulated import SimulatedRuntime
from fedactors.runtime.simulation.actor import SimulatedContext
from fedactors.runtime.simulation.virtual_loop import current_actor
from fedactors.testing.leaks import MIN_DISTINCT, RawData

T = TypeVar("T")

_MOST_KEPT = 40
_MOST_SMALL = 4000
_SMALL = 64
_PLACE = re.compile(r'^ *(?:\| *)*File "[^"\n]+", line \d+, in .*\n(?: .*\n)?', re.MULTILINE)
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
            place = name if path.startswith("[") else path
            gathered.setdefault((place, sender), Gathered(route)).add(item)
            if place != name and isinstance(item, (bool, int, float, np.generic)):
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
            said = [*words_of(error), _PLACE.sub("", getattr(error, "traceback_text", ""))]
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
        """Note the processor time of one step of whoever is running."""
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
        door = getattr(call, "door", None)
        self._served = str(getattr(door, "name", None) or getattr(inner, "__qualname__", "a task"))

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

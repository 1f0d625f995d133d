"""A simulated runtime that is watched: every message as its receiver gets it, and what the code did behind the frame.

For `fedactors.testing`. Watching costs time, never virtual time, and changes no result.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np

import fedactors.data
from fedactors.privacy.raw_columns import RawColumns
from fedactors.resources import Resources
from fedactors.runtime.base import DRIVER, Ref
from fedactors.runtime.simulated import SimulatedRuntime
from fedactors.runtime.simulation.actor import SimulatedContext

T = TypeVar("T")

_KEPT_ARRAYS = 40
_DATA_FOLDER = str(Path(fedactors.data.__file__).parent)
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "sleep")


@dataclass
class Observed:
    """What was seen of one run."""

    sent: list[tuple[str, int]] = field(default_factory=list)
    """Every message in the order of sending: (what it was, its bytes)."""
    sent_bytes: dict[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of arrays, texts and raw bytes by (sender, receiver), counted apart from the ledger."""
    types: dict[type, str] = field(default_factory=dict)
    """Message classes that crossed between parties, with a "sender to receiver" that did so."""
    bare: dict[str, str] = field(default_factory=dict)
    """Calls between parties that carried arrays or bytes outside of a message, with what they carried."""
    arrays: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    """Arrays that left a party, the first few by (message type and field, "sender to receiver")."""
    raw: RawColumns = field(default_factory=RawColumns)
    """Feature matrices that `fedactors.data` gave out during the run."""
    wall_time: dict[str, str] = field(default_factory=dict)
    """Reads of a wall clock by the protocol's code: place and function."""
    global_generators: list[str] = field(default_factory=list)
    """Process-wide generators that were drawn from or seeded."""

    def message(self, sender: str, receiver: str, method: str, value: Any) -> None:
        """Note one message; `value` is what the codec carries."""
        route = f"{sender} to {receiver}"
        size = count_bytes(value)
        self.sent.append((f"{method} from {route}", size))
        pair = (sender, receiver)
        if DRIVER not in pair:
            self.sent_bytes[pair] = self.sent_bytes.get(pair, 0) + size
        if sender == DRIVER or sender.partition("/")[0] == receiver.partition("/")[0]:
            return
        for path, item, cls in walk(value):
            if cls is not None and receiver != DRIVER:
                self.types.setdefault(cls, route)
            elif receiver != DRIVER and path.startswith("[") and isinstance(item, (np.ndarray, bytes)):
                self.bare.setdefault(f"{sender} -> {receiver}.{method}", type(item).__name__)
            if isinstance(item, np.ndarray):
                kept = self.arrays.setdefault((path if not path.startswith("[") else method, route), [])
                if len(kept) < _KEPT_ARRAYS:
                    kept.append(item.copy())


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any, type | None]]:
    """Yield (path, value, message class or None) of messages and leaves; a path outside of a message is ``[...]``."""
    cls = type(value)
    if hasattr(cls, "__message__") and cls is not Ref:
        yield cls.__name__, value, cls
        for f in dataclass_fields(cls):
            yield from walk(getattr(value, f.name), f"{cls.__name__}.{f.name}")
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from walk(item, path or "[]")
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from walk(item, path or "[]")
    else:
        yield path or "[]", value, None


def count_bytes(value: Any) -> int:
    """Return the bytes of arrays, texts and raw bytes in `value`."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, (tuple, list)):
        return sum(map(count_bytes, value))
    if isinstance(value, Mapping):
        return sum(map(count_bytes, value.values()))
    if is_dataclass(value):
        return sum(count_bytes(getattr(value, f.name)) for f in dataclass_fields(value))
    return 0


class ObservedRuntime(SimulatedRuntime):
    """A `SimulatedRuntime` that notes everything in `observed`.

    Args:
        isolate: give each actor its own copy of its constructor's arguments, as separate processes have.
        options: see `SimulatedRuntime`.
    """

    def __init__(self, *, isolate: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.observed = Observed()
        self._isolate = isolate

    def spawn(self, cls: type[T], name: str, *args: Any, resources: Resources | None = None, **kwargs: Any) -> T:
        if self._isolate:
            args, kwargs = copy.deepcopy((args, kwargs))
        return super().spawn(cls, name, *args, resources=resources, **kwargs)

    def send(self, sender: str, receiver: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.observed.message(sender, receiver, method, (*args, *kwargs.values()))
        # of the wire, not of what is returned: a sender that stops waiting does not stop the receiver from answering
        self.wire.watch_replies = self._note_reply
        return super().send(sender, receiver, method, args, kwargs)

    def _note_reply(self, sender: str, receiver: str, method: str, reply: Any) -> None:
        self.observed.message(sender, receiver, f"{method} reply", reply)

    async def _bring_up(self, contexts: list[SimulatedContext], state: Any) -> None:
        for context in contexts:
            self._watch_payloads(context)
        await super()._bring_up(contexts, state)

    def _watch_payloads(self, context: SimulatedContext) -> None:
        fetch = context.get

        async def get(ref: Ref) -> Any:
            value = await fetch(ref)
            if ref.owner != context.name:
                self.observed.message(ref.owner, context.name, "payload", value)
            return value

        context.get = get  # type: ignore[method-assign]


@contextmanager
def watched_code(observed: Observed, is_own: Callable[[str], bool]) -> Iterator[None]:
    """Note wall clocks that the protocol's files read, global generators used, and features that are loaded.

    Args:
        observed: where it is noted.
        is_own: whether a file belongs to the protocol.
    """

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call":
            name = getattr(arg, "__name__", "")
            module = getattr(arg, "__module__", None)
            clock = (module == "time" and name in _CLOCKS) or (
                name in ("now", "utcnow", "today") and isinstance(getattr(arg, "__self__", None), type)
            )
            if clock and is_own(frame.f_code.co_filename):
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                observed.wall_time.setdefault(place, f"{module or 'datetime'}.{name}")
            elif getattr(arg, "__self__", None) is random._inst and is_own(frame.f_code.co_filename):  # type: ignore[attr-defined]
                used.add("random")
        elif event == "call" and frame.f_code.co_filename == random.__file__ and frame.f_back is not None:
            # its own functions; other libraries draw from it for names and the like, which is their business
            if is_own(frame.f_back.f_code.co_filename):
                used.add("random")
        elif event == "return" and arg is not None and frame.f_code.co_filename.startswith(_DATA_FOLDER):
            for name, features in _features_of(arg):
                observed.raw.add(name, features)

    used: set[str] = set()
    before = _generator_states()
    previous = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(previous)
        after = _generator_states()
        used |= {name for name in before if before[name] != after[name]}
        observed.global_generators = sorted(used)


def _features_of(value: Any) -> Iterator[tuple[str, Any]]:
    features = getattr(value, "features", None)
    if isinstance(features, np.ndarray) and features.ndim > 1 and features.dtype.kind == "f":
        yield str(getattr(value, "origin", type(value).__name__)), features
    elif type(value).__module__.startswith("pyarrow") and hasattr(value, "column_names"):
        for name in value.column_names:
            column = value.column(name)
            if str(column.type) in ("double", "float"):
                yield f"table column {name}", np.nan_to_num(column.to_numpy())[:, None]


def _generator_states() -> dict[str, Any]:
    states: dict[str, Any] = {"numpy.random": repr(np.random.get_state(legacy=False))}
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states

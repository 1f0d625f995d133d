"""An actor's declared state as a pickle-free frame, and back into an actor that it fits.

    capture, seal_actor ──frame (checksum, tagged values)──▶ restore: unseal, check, apply

What is not plain is tagged: ``("list", …)``, ``("state", …)`` for anything with ``state_dict``, ``("rng", …)`` for a
numpy generator, ``("tensor", …)``, ``("torch-rng", …)``. Restoring loads into the objects that the actor has built, so
that a frame never decides what code runs. Digests of the files that an actor read stand beside its state: a resumed run
needs the same rows. Where a source names a file it may name an object of Python instead, ``object:PARTY:DIGEST``, which
a process holds by that address: in the caller's process all that it gave, in an actor's own process its party's.

A run folder may come from someone else, so a checkpoint is checked before any code of the actor sees it:

    class Walker(Client):
        state = ("held", "theta")
        held: Token | None                  # in the class's body: what may be there
        def __init__(self) -> None:
            self.held, self.theta = None, np.zeros(3)

A value is compared with the annotation in the body of the actor's class, if there is one that says something, else with
what the attribute holds once the actor has loaded: a number stays a number (an int or a float), a text a text, an array
keeps its kind of numbers and its number of dimensions, a mapping the kinds of the values that both have. None fits
everywhere, and an empty list or array says little. What does not fit is one line with party, field and file.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import importlib
import math
import sys
import types
import typing
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedactors.errors import (
    BadInput,
    Deadlock,
    FedactorsError,
    PartyFailed,
    Refused,
    RowsChangedError,
    is_out_of_memory,
)
from fedactors.messages.codec import CodecError, decode, encode
from fedactors.messages.fields import Check, UnknownAnnotation, check_of, in_words, wrong_in
from fedactors.validation import address_of, files_at, first_line, opened, shown

_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
DRIVERS = "the checkpoint of the driver"
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


class Stateful:
    """A part of an actor's state with a state of its own.

    `state` names its attributes that a snapshot holds (none: all): plain values, generators, or parts of this kind.
    """

    state: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return these attributes."""
        values = {name: getattr(self, name) for name in self.state or vars(self)}
        return {name: one.state_dict() if isinstance(one, Stateful) else one for name, one in values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.state or tuple(vars(self)):
            current = getattr(self, name)
            if isinstance(current, Stateful):
                current.load_state_dict(state[name])
            elif isinstance(current, np.random.Generator):
                current.bit_generator.state = state[name].bit_generator.state  # others may hold the same generator
            else:
                setattr(self, name, copy.deepcopy(state[name]))


def capture(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of the attributes `names` of `owner` in tagged form."""
    captured: dict[str, Any] = {}
    for name in names:
        value, where = getattr(owner, name), f"{type(owner).__name__}.{name}"
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            captured[name] = ("state", pack(dict(value.state_dict()), where))
        else:
            captured[name] = pack(value, where)
    return captured


def apply(owner: Any, state: Mapping[str, Any], what: str = "a checkpoint") -> None:
    """Set the attributes of `owner` from what `capture` returned; `what` names that in errors.

    Raises:
        BadInput: the frame names one that is not among its class's ``state``.
    """
    foreign = sorted(set(state) - set(getattr(owner, "state", state)))
    if foreign:
        raise BadInput(f"{what} names {', '.join(foreign)}, which {type(owner).__name__} keeps in no snapshot")
    for name, packed in state.items():
        current = getattr(owner, name, None)
        tag, content = packed
        if tag == "state":
            current.load_state_dict(unpack(content))  # type: ignore[union-attr]
        elif tag == "rng" and isinstance(current, np.random.Generator) and _same_kind(current, content):
            current.bit_generator.state = unpack(content)  # others may hold the same generator
        elif tag == "torch-rng" and current is not None:
            current.set_state(importlib.import_module("torch").from_numpy(content.copy()))
        else:
            setattr(owner, name, unpack(packed))


def seal_actor(actor: Any, jobs: Sequence[Any] = (), timers: Mapping[str, float] | None = None) -> bytes:
    """Return an actor's frame: its state, digests of the files that it read, counts, work in flight, keyed timers."""
    digests = tuple(digest for _, digest in actor._files)
    local = {"state": capture(actor, actor.state), "files": digests, "counts": actor._context.counts.state()}
    return seal({**local, "jobs": list(jobs), "timers": dict(sorted((timers or {}).items()))})


def digests_of_files(value: Any) -> tuple[tuple[str, bytes], ...]:
    """Return path and SHA-256 of each file that the sources in `value` name as their ``user_files``, in their order.

    A digest covers the content, and how the source reads it, but not where it lies. What is not there has one too:
    its reader says what is wrong. Of databases, ``user_tables``, it covers the rows in their order. Tables that a
    query joins are not looked at: their rows have a fingerprint in any order (`fedactors.data.layouts.relational`).

    Args:
        value: what an actor is built with: dataclasses, sequences and mappings are looked into.
    """
    return tuple(_digests(value))


def _digests(value: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            if not isinstance(item, str | int | float):  # of which a thousand parties have a million
                yield from _digests(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        facts = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        paths, tables = getattr(value, "user_files", ()), getattr(value, "user_tables", ())
        if not paths and not tables:
            yield from _digests([item for _, item in facts])
            return
        # a setting that a later version adds, and that says nothing here, changes nothing
        how = repr([(field.name, item) for field, item in facts if item not in (*paths, field.default)]).encode()
        for path in paths:
            yield path, hashlib.sha256(how + _content(Path(path))).digest()
        for table in tables:
            yield f"{_TABLE}{table.table} of {table.shown}", hashlib.sha256(how + _rows(table)).digest()


_TABLE = "table "
"""What stands before a table's name where others have the path of a file."""


def _rows(table: Any) -> bytes:
    with contextlib.suppress(FedactorsError):
        return bytes(table.digest())
    return b""


def _content(path: Path) -> bytes:
    """Return the SHA-256 of a file, or of a folder's files with their places in it; an object's address has it.

    Of a pattern, or at the address of another file system, it is that of the files there.
    """
    if is_object(path):
        return str(path).rpartition(":")[2].encode()
    try:
        if address_of(path) or not path.exists():
            return _of_several(files_at(path))
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.is_file())
            found = b"".join(str(one.relative_to(path)).encode() + b"\0" + _content(one) for one in inside)
            return hashlib.sha256(found).digest()
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except (OSError, ValueError):  # no file of the system's, by its name either
        return b""


def _of_several(files: Sequence[Path]) -> bytes:
    digest = hashlib.sha256()
    for file in files:
        with opened(file) as stream:
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(stream.read()).digest())
    return digest.digest() if files else b""


# --- objects as data ---

OBJECT = "object:"


class HeldObject:
    """An object as it is read, and its address; `object_at` finds it as long as somebody keeps this."""

    def __init__(self, address: str, content: Any) -> None:
        self.address = address
        self.content = content


_held: weakref.WeakValueDictionary[str, HeldObject] = weakref.WeakValueDictionary()
_received: dict[str, HeldObject] = {}
"""What a process was sent, for as long as it lives."""


def hold(address: str, content: Any) -> HeldObject:
    """Hold an object for as long as somebody keeps what is returned: the same for all who give the same object."""
    return _held.setdefault(address, HeldObject(address, content))


def is_object(path: str | Path | None) -> bool:
    """Say whether a path, or a name of data, is the address of an object."""
    return path is not None and str(path).startswith(OBJECT)


def is_held(address: str) -> bool:
    """Say whether an object of this address is in this process."""
    return address in _held


def object_at(address: str | Path, field: str = "data") -> Any:
    """Return the object of an address: data (a `pyarrow.Table`, arrays by name, a description's tables), or a model.

    Args:
        address: ``object:NAME:DIGEST``.
        field: the argument that it was given as.

    Raises:
        BadInput: it is not in this process.
    """
    if (found := _held.get(str(address))) is None:
        raise BadInput(
            f"{field}: {address} is not here: an object lives in the process that made it; give it again: "
            f"fedactors.run(..., {field}=...)"
        )
    return found.content


def receive_objects(contents: Mapping[str, Any]) -> None:
    """Keep objects that were sent to this process, by address."""
    _received.update({address: hold(address, content) for address, content in contents.items()})


def objects_in(value: Any) -> Iterator[str]:
    """Yield the addresses of objects in what an actor is built with: dataclasses, sequences, mappings."""
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from objects_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from objects_in([getattr(value, field.name) for field in dataclasses.fields(value)])
    elif isinstance(value, str) and is_held(value):
        yield value


def _same_kind(generator: np.random.Generator, packed_state: tuple[str, Any]) -> bool:
    return bool(generator.bit_generator.state["bit_generator"] == unpack(packed_state)["bit_generator"])


def checkpoint_of(name: str, folder: str = "") -> str:
    """Return how lines name an actor's part of a checkpoint, with its file if it lies in one."""
    return f"the checkpoint of {name}" + (f" ({folder}/{name}.ckpt)" if folder else "")


def seal(value: Any) -> bytes:
    """Return `value` as a frame with a checksum in front."""
    frame = encode(value)
    return zlib.crc32(frame).to_bytes(4, "big") + frame


def unseal(data: bytes, what: str) -> Any:
    """Return the value of a sealed frame.

    Raises:
        BadInput: the bytes are cut short, changed or foreign.
    """
    if len(data) < 8 or zlib.crc32(data[4:]).to_bytes(4, "big") != data[:4]:
        raise BadInput(f"{what} is corrupt: its checksum does not match")
    try:
        return decode(memoryview(data)[4:])
    except CodecError as error:
        raise BadInput(f"{what} is corrupt: {error}") from None


def seal_driver(content: Mapping[str, Any], actors: Iterable[str], number: int = 0) -> bytes:
    """Return the driver's frame: what it goes on from, whose states belong to it, and by which number others know it.

    The number can be read before the messages are imported that the content holds.
    """
    return seal({"actors": sorted(actors), "number": number, "content": seal(content)})


def unseal_driver(data: bytes) -> Any:
    """Return what the driver goes on from, of messages that this process knows; raise as `unseal`."""
    with intact(DRIVERS):
        return unseal(unseal(data, DRIVERS)["content"], DRIVERS)


def check_actors(driver: bytes, actors: Collection[str]) -> None:
    """Refuse a checkpoint that holds the states of other actors than those that its driver took it with.

    Raises:
        BadInput: names who is missing, and who is too many.
    """
    with intact(DRIVERS):
        taken = {str(name) for name in unseal(driver, DRIVERS)["actors"]}
    for names, said in (
        (taken - set(actors), "lacks the state of"),
        (set(actors) - taken, "holds a foreign state, of"),
    ):
        if names:
            raise BadInput(f"the checkpoint is damaged: it {said} {', '.join(map(shown, sorted(names)))}")


@contextlib.contextmanager
def intact(what: str) -> Iterator[None]:
    """Turn whatever goes wrong with a frame's content into one line: a whole checksum does not make it sound.

    Raises:
        BadInput: it holds something else than was expected.
    """
    try:
        yield
    except FedactorsError:
        raise
    except Exception as error:
        raise BadInput(f"{what} is corrupt: {type(error).__name__}: {first_line(error)}") from error


def pack(value: Any, where: str) -> tuple[str, Any]:
    """Return one value in tagged form; `where` names it in errors."""
    torch = sys.modules.get("torch")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return "plain", value
    if isinstance(value, np.generic):
        return "plain", value.item()
    if isinstance(value, np.ndarray):
        return "array", value
    if isinstance(value, np.random.Generator):
        return "rng", pack(value.bit_generator.state, where)
    if torch is not None and isinstance(value, torch.Tensor):
        return "tensor", value.detach().cpu().numpy()
    if torch is not None and isinstance(value, torch.Generator):
        return "torch-rng", value.get_state().numpy()
    if isinstance(value, Mapping):
        return "dict", [(pack(k, where), pack(v, where)) for k, v in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        if isinstance(value, deque) and value.maxlen is not None:
            return "bounded", (value.maxlen, [pack(item, where) for item in value])
        # the order of a set differs from process to process
        items = sorted(value) if isinstance(value, set | frozenset) else value
        tag = next(t for t in ("list", "set", "frozenset", "deque", "tuple") if isinstance(value, _SEQUENCES[t]))
        return tag, [pack(item, where) for item in items]
    if hasattr(type(value), "__message__"):
        return "message", value
    raise CodecError(f"{where} holds a {type(value).__qualname__}, which cannot be part of a snapshot")


def unpack(packed: tuple[str, Any]) -> Any:
    """Return the value of its tagged form, with writable copies of arrays."""
    tag, content = packed
    if tag in ("plain", "message"):
        return content
    if tag == "array":
        return content.copy()
    if tag == "dict":
        return {unpack(key): unpack(value) for key, value in content}
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](unpack(item) for item in content)
    if tag == "bounded":
        return deque((unpack(item) for item in content[1]), content[0])
    if tag == "rng":
        state = unpack(content)
        if state["bit_generator"] not in _BIT_GENERATORS:
            raise BadInput(f"a checkpoint holds an unknown generator {state['bit_generator']!r}")
        bits = getattr(np.random, state["bit_generator"])()
        bits.state = state
        return np.random.Generator(bits)
    torch = importlib.import_module("torch")
    if tag == "tensor":
        return torch.from_numpy(content.copy())
    if tag == "torch-rng":
        generator = torch.Generator()
        generator.set_state(torch.from_numpy(content.copy()))
        return generator
    raise BadInput(f"a checkpoint holds a value of unknown kind {tag!r}")


# --- whether a frame fits ---

_DEEPEST = 60
_LATEST = 1e12
"""Seconds of a run's clock: later the next second would be the same number."""
_SCALARS = (type(None), bool, int, float, str, bytes)
_KINDS = {"b": "truth values", "i": "numbers", "u": "numbers", "f": "numbers", "c": "complex numbers", "S": "texts"}
_KINDS |= {"U": "texts", "m": "times", "M": "times"}


class CheckpointMismatch(Exception):
    """Something in a checkpoint is not what it should be: where, and in what way."""


class _Generator:
    """Stands for a generator of random numbers."""


def restore(owner: Any, frame: bytes, name: str, folder: str = "") -> Mapping[str, Any]:
    """Set the state of an actor that has loaded from its frame of a checkpoint; return all that the frame holds.

    Raises:
        RowsChangedError: the actor has loaded other files of its party than those that the run began with.
        BadInput: the frame is damaged, or does not fit the actor.
    """
    what = checkpoint_of(name, folder)
    content = unseal(frame, what)
    with intact(what):
        _check_files(owner, content.get("files", ()), name)
        check(owner, dict(content["state"]), what)
        apply(owner, content["state"], what)
        owner._goes_on = True
        if (context := getattr(owner, "_context", None)) is not None:
            context.counts.restore(content["counts"])
    return content  # type: ignore[no-any-return]


def _check_files(owner: Any, digests: Sequence[bytes], name: str) -> None:
    found = getattr(owner, "_files", ())
    if len(digests) != len(found):
        raise RowsChangedError(f"{name}: reads {len(found)} files, and {len(digests)} when the run began")
    for (path, now), before in zip(found, digests, strict=True):
        if now != before:
            what = "its rows are others, in another order" if path.startswith(_TABLE) else "the file is another"
            raise RowsChangedError(f"{name}: {path}: {what}, or read otherwise, than when the run began")


@contextlib.contextmanager
def in_use(folder: str, is_young: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Turn what goes wrong in the use of a checkpoint into one line about it: what fits by its kind may be nonsense.

    Args:
        folder: where the checkpoint lies; empty: nothing is changed, there is none.
        is_young: whether what fails now fails because of the checkpoint, as far as one can say.

    Raises:
        BadInput: code that works on what a run has written failed.
    """
    try:
        yield
    except Exception as error:
        known = isinstance(error, FedactorsError) and not isinstance(
            error, (PartyFailed, Refused, Deadlock, CodecError)
        )
        if known or not folder or is_out_of_memory(error) or not is_young():
            raise
        kind = "" if isinstance(error, FedactorsError) else f"{type(error).__name__}: "
        raise BadInput(f"{folder}: nothing comes of this checkpoint: {kind}{first_line(error)}") from error


def check(owner: Any, state: Mapping[str, Any], what: str) -> None:
    """Compare the parts of a state, tagged as `capture` returns them, with what `owner` declares and holds.

    Raises:
        BadInput: names the first field that does not fit, and what it should be.
    """
    declared = _declared(type(owner))
    for name, packed in state.items():
        if name not in getattr(type(owner), "state", state):
            continue  # `apply` refuses it
        try:
            found, now = _plain(packed, ""), getattr(owner, name, None)
            if name in declared:
                wrong = declared[name](found)
                if wrong is not None:
                    raise CheckpointMismatch(f"{wrong[0]}: {in_words(wrong[1])} where {wrong[2]} is declared")
            elif now is not None and hasattr(now, "state_dict"):
                if packed[0] != "state":
                    raise CheckpointMismatch(": it is no state of the object that belongs there")
                _compare(found, _present(dict(now.state_dict()), name), "")
            elif packed[0] == "state" and now is not None:
                raise CheckpointMismatch(f": the state of an object where {in_words(now)} belongs")
            else:
                _compare(found, _present(now, name), "")
        except CheckpointMismatch as mismatch:
            raise BadInput(f"{what} does not fit: {name}{mismatch}") from None


def check_fields(hints: Mapping[str, Any], values: Mapping[str, Any], what: str) -> None:
    """Compare values with annotations by name, as far as these say something.

    Raises:
        BadInput: names the first that does not fit.
    """
    for name, hint in hints.items():
        look = _look(hint)
        if name in values and look is not None:
            try:
                wrong = look(_plain(pack(values[name], name), ""))
            except CheckpointMismatch as mismatch:
                raise BadInput(f"{what} does not fit: {name}{mismatch}") from None
            if wrong is not None:
                raise BadInput(f"{what} does not fit: {name}{wrong[0]}: {in_words(wrong[1])} where {wrong[2]} belongs")


def amount(value: Any, field: str, what: str, most: float = _LATEST) -> float:
    """Return a number that counts seconds or money, `most` at most.

    Raises:
        BadInput: it is no number, negative, not finite, or later than anything can be.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise BadInput(f"{what} does not fit: {field}: a number from 0 to {most:g} belongs there")
    return float(value)


def totals(value: Any, what: str) -> list[tuple[str, str, str, str, int, int]]:
    """Return the totals of a ledger: (sender, receiver, kind, type, messages, bytes).

    Raises:
        BadInput: they are none.
    """
    rows: list[Any] = list(value) if isinstance(value, (list, tuple)) else [None]
    for row in rows:
        kinds = [type(part) for part in row] if isinstance(row, tuple) else []
        if kinds != [str, str, str, str, int, int] or not all(0 <= n < 2**63 for n in row[4:]):
            raise BadInput(f"{what} does not fit: ledger: totals of messages belong there")
    return rows


def _declared(cls: type) -> dict[str, Check]:
    """Return the checks of those annotations in the bodies of a class and its bases that say something."""
    found = {}
    for base in reversed(cls.__mro__):
        scope = vars(sys.modules.get(base.__module__, types))
        for name, hint in vars(base).get("__annotations__", {}).items():
            if name not in getattr(cls, "state", ()):
                continue
            alone: Any = types.SimpleNamespace(__annotations__={name: hint})
            try:
                look = _look(typing.get_type_hints(alone, scope)[name])
            except NameError:  # of a type that is imported for type checkers only
                look = None
            if look is not None:
                found[name] = look
    return found


def _look(hint: Any) -> Check | None:
    try:
        return None if hint in (Any, object) else check_of(hint)
    except UnknownAnnotation:
        return None


def _present(value: Any, name: str) -> Any:
    """Return what an attribute holds now, for comparing; None where that says nothing."""
    with contextlib.suppress(CheckpointMismatch, CodecError):
        return _plain(pack(value, name), "")
    return None


def _plain(packed: Any, where: str, depth: int = 0) -> Any:
    """Return what a tagged value is, for comparing: sequences as tuples, arrays and tensors as views."""
    if depth > _DEEPEST:
        raise CheckpointMismatch(f"{where[:80]}: it is nested too deeply")
    if not isinstance(packed, tuple) or len(packed) != 2 or not isinstance(packed[0], str):
        raise CheckpointMismatch(f"{where}: no value that a snapshot holds")
    tag, content = packed
    if tag == "plain" and isinstance(content, _SCALARS):
        if isinstance(content, float) and math.isnan(content):
            raise CheckpointMismatch(f"{where}: not a number (NaN)")
        return content
    if tag in ("array", "tensor", "torch-rng") and isinstance(content, np.ndarray):
        return content if tag != "torch-rng" else _Generator()
    if tag == "message" and hasattr(type(content), "__message__"):
        if (wrong := wrong_in(content)) is not None:
            raise CheckpointMismatch(f"{where}{wrong[0]}: {in_words(wrong[1])} where {wrong[2]} is declared")
        return content
    if tag == "dict" and isinstance(content, tuple | list):
        return dict(_pair(pair, where, depth) for pair in content)
    if tag in _SEQUENCES and isinstance(content, tuple | list):
        return tuple(_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(content))
    if tag == "bounded" and isinstance(content, tuple | list) and len(content) == 2 and type(content[0]) is int:
        return _plain(("deque", content[1]), where, depth)
    if tag == "rng":
        _plain(content, where, depth + 1)
        return _Generator()
    if tag == "state" and depth == 0:
        return _plain(content, where, depth + 1)
    raise CheckpointMismatch(f"{where}: no value that a snapshot holds")


def _pair(pair: Any, where: str, depth: int) -> tuple[Any, Any]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise CheckpointMismatch(f"{where}: no value that a snapshot holds")
    key = _plain(pair[0], where, depth + 1)
    if isinstance(key, (dict, np.ndarray, _Generator)):
        raise CheckpointMismatch(f"{where}: a key that is {in_words(key)}")
    return key, _plain(pair[1], f"{where}[{key!r:.40}]", depth + 1)


def _compare(found: Any, now: Any, where: str) -> None:
    """Raise `CheckpointMismatch` where a value is of another kind than the one that is there now."""
    if found is None or now is None:
        return
    if isinstance(now, np.ndarray):
        _compare_arrays(found, now, where)
    elif isinstance(now, dict) and isinstance(found, dict):
        for key in now.keys() & found.keys():
            _compare(found[key], now[key], f"{where}[{key!r:.40}]")
    elif isinstance(now, tuple) and isinstance(found, tuple):
        if len({type(item) for item in now}) == 1:
            for index, item in enumerate(found):
                _compare(item, now[0], f"{where}[{index}]")
    elif isinstance(now, bool) or isinstance(found, bool) or not isinstance(now, int | float):
        if type(found) is not type(now):
            raise CheckpointMismatch(f"{where}: {in_words(found)} where {in_words(now)} belongs")
    elif not isinstance(found, int | float):
        raise CheckpointMismatch(f"{where}: {in_words(found)} where a number belongs")


def _compare_arrays(found: Any, now: np.ndarray, where: str) -> None:
    if not isinstance(found, np.ndarray):
        raise CheckpointMismatch(f"{where}: {in_words(found)} where {in_words(now)} belongs")
    is_placeholder = now.size == 0
    kinds = [_KINDS[array.dtype.kind] for array in (found, now)]
    if kinds[0] != kinds[1] or (not is_placeholder and found.ndim != now.ndim):
        raise CheckpointMismatch(f"{where}: {in_words(found)} where {in_words(now)} belongs")

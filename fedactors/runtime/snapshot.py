"""An actor's declared state as a pickle-free frame, and back.

What is not plain is tagged: ``("list", …)``, ``("state", …)`` for anything with ``state_dict``, ``("rng", …)`` for a
numpy generator, ``("tensor", …)``, ``("torch-rng", …)``. Restoring loads into the objects that the actor has built, so
that a frame never decides what code runs. Digests of the files that an actor read
stand beside its state: a resumed run needs the same rows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import sys
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.errors import BadInput, FedactorsError
from fedactors.network.codec import CodecError, decode, encode
from fedactors.validation import first_line, shown

_SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
DRIVERS = "the checkpoint of the driver"
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def capture(owner: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of the attributes `names` of `owner` in tagged form."""
    captured: dict[str, Any] = {}
    for name in names:
        value, where = getattr(owner, name), f"{type(owner).__name__}.{name}"
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            captured[name] = ("state", _pack(dict(value.state_dict()), where))
        else:
            captured[name] = _pack(value, where)
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
    """Return an actor's frame: its state, the digests of the files that it read, work in flight and keyed timers."""
    digests = tuple(digest for _, digest in actor._files)
    state = capture(actor, actor.state)
    return seal({"state": state, "files": digests, "jobs": list(jobs), "timers": dict(sorted((timers or {}).items()))})


def digests_of_files(value: Any) -> tuple[tuple[str, bytes], ...]:
    """Return path and SHA-256 of each file that the sources in `value` name as their ``own_files``, in their order.

    A digest covers the content, and how the source reads it, but not where it lies. What is not there has one too:
    whoever reads it says what is wrong. Tables of databases are not looked at: their rows have a fingerprint
    (`fedactors.data.held_tables`).

    Args:
        value: what an actor is built with: dataclasses, sequences and mappings are looked into.
    """
    return tuple(_digests(value))


def _digests(value: Any) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from _digests(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        facts = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        paths = getattr(value, "own_files", ())
        if not paths:
            yield from _digests([item for _, item in facts])
        # a setting that a later version adds, and that says nothing here, changes nothing
        how = [(field.name, item) for field, item in facts if item not in (*paths, field.default)] if paths else []
        for path in paths:
            yield path, hashlib.sha256(repr(how).encode() + _content(Path(path))).digest()


def _content(path: Path) -> bytes:
    """Return the SHA-256 of a file, or of a folder's files with their places in it."""
    try:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.is_file())
            found = b"".join(str(one.relative_to(path)).encode() + b"\0" + _content(one) for one in inside)
            return hashlib.sha256(found).digest()
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except (OSError, ValueError):  # no file of the system's, by its name either
        return b""


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


def seal_driver(content: Mapping[str, Any], actors: Iterable[str]) -> bytes:
    """Return the driver's frame: what it goes on from, and whose states belong to it."""
    return seal({"actors": sorted(actors), "content": seal(content)})


def unseal_driver(data: bytes) -> Any:
    """Return what the driver goes on from, of messages that this process knows; raise as `unseal`."""
    with intact(DRIVERS):
        return unseal(unseal(data, DRIVERS)["content"], DRIVERS)


def check_actors(driver: bytes, actors: Collection[str]) -> None:
    """Refuse a checkpoint that holds the states of other actors than those that its driver took it with.

    Args:
        driver: the driver's frame.
        actors: whose states there are.

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


def pack(value: Any, where: str) -> Any:
    """Return one value in tagged form; `where` names it in errors."""
    return _pack(value, where)


def _pack(value: Any, where: str) -> tuple[str, Any]:
    torch = sys.modules.get("torch")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return "plain", value
    if isinstance(value, np.generic):
        return "plain", value.item()
    if isinstance(value, np.ndarray):
        return "array", value
    if isinstance(value, np.random.Generator):
        return "rng", _pack(value.bit_generator.state, where)
    if torch is not None and isinstance(value, torch.Tensor):
        return "tensor", value.detach().cpu().numpy()
    if torch is not None and isinstance(value, torch.Generator):
        return "torch-rng", value.get_state().numpy()
    if isinstance(value, Mapping):
        return "dict", [(_pack(k, where), _pack(v, where)) for k, v in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        if isinstance(value, deque) and value.maxlen is not None:
            return "bounded", (value.maxlen, [_pack(item, where) for item in value])
        # the order of a set differs from process to process
        items = sorted(value) if isinstance(value, set | frozenset) else value
        tag = next(t for t in ("list", "set", "frozenset", "deque", "tuple") if isinstance(value, _SEQUENCES[t]))
        return tag, [_pack(item, where) for item in items]
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

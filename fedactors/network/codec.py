"""The pickle-free codec: how messages, arguments and replies become bytes, and how they are frozen.

A frame is ``magic | header length | header | padding | buffers``: the header is msgpack with every array
replaced by its index, dtype and shape; the arrays follow as raw 64-byte aligned buffers, so that decoding
copies nothing and yields read-only views. Decoding runs no code of the sender: it knows plain values,
arrays of plain dtypes, and dataclasses marked by `message` in modules that are already imported here.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

import msgpack
import numpy as np

from fedactors.errors import FedactorsError

T = TypeVar("T")
Parts = list[bytes | memoryview]
"""A frame as pieces to be written one after the other."""
MAGIC = b"FDA1"
HEADER_BYTES = 64
"""Bytes that one message costs on a link beside its arrays: what the ledger states and the simulator charges."""

_ARRAY, _MESSAGE, _BIG_INT = 1, 2, 3
_PREFIX = struct.Struct("<4sI")
_ALIGN = 64
_PACK_BYTES = 1024
"""What a packer begins with: msgpack's 256 KiB, for each message within a message, come from the kernel each time."""
_PLAIN_KINDS = "biufcSUmM"
_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    SyntaxError,
    msgpack.exceptions.UnpackException,
)
"""What foreign bytes can make msgpack or numpy raise."""


class CodecError(FedactorsError):
    """A value that may not cross a party's boundary, or bytes that are not a frame."""


@dataclasses.dataclass(frozen=True)
class MessageFacts:
    """The privacy review of one message type: what it reveals, and who reads it where no door says so."""

    reveals: str
    readers: str


@dataclass_transform(frozen_default=True, kw_only_default=False)
def message(*, reveals: str, readers: str = "") -> Callable[[type[T]], type[T]]:
    """Declare a class as a message: a frozen slotted dataclass that the codec may carry.

    Who receives it follows from the doors that take or give it (`fedactors.remote`).

    Args:
        reveals: one sentence on what the receiver learns from it.
        readers: for payloads, which are fetched and come through no door: who may fetch them.
    """

    def declare(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(frozen=True, slots=True)(cls)
        made.__message__ = MessageFacts(reveals, readers)  # type: ignore[attr-defined]
        return made

    return declare


@overload
def plain(cls: type[T]) -> type[T]: ...


@overload
def plain(*, eq: bool = ...) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def plain(cls: Any = None, *, eq: bool = True) -> Any:
    """Declare a frozen keyword-only dataclass of plain values: an actor may be built with it, and it is no message."""

    def declare(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(frozen=True, kw_only=True, eq=eq)(cls)
        made.__plain__ = True  # type: ignore[attr-defined]
        return made

    return declare if cls is None else declare(cls)


def message_types(module: Any) -> list[type]:
    """Return the message classes that `module` declares, in the order of their names."""
    return _declared(module, "__message__")


def plain_types(module: Any) -> list[type]:
    """Return the classes that `module` declares with `plain` or as configurations, in the order of their names."""
    return _declared(module, "__plain__")


def _declared(module: Any, mark: str) -> list[type]:
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and hasattr(value, mark) and value.__module__ == module.__name__
    ]
    return sorted(found, key=lambda cls: cls.__name__)


# --- freezing and measuring ----------------------------------------------------------------------------------------

SCALAR_BYTES = 8
"""Bytes of a number that does not lie in an array."""
_HEADER_SCALARS = HEADER_BYTES // SCALAR_BYTES
_LARGE = 1 << 63
_NUMBERS = frozenset({int, float, bool})
_FIELDS: dict[type, tuple[str, ...] | None] = {}


def _message_fields(cls: type) -> tuple[str, ...] | None:
    try:
        return _FIELDS[cls]
    except KeyError:
        # a subclass that is not declared itself could carry more than its fields
        is_declared = "__message__" in vars(cls)
        names = tuple(f.name for f in dataclasses.fields(cls)) if is_declared else None  # type: ignore[arg-type]
        _FIELDS[cls] = names
        return names


def _argument_fields(cls: type) -> tuple[str, ...] | None:
    if hasattr(cls, "__plain__"):
        return tuple(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]
    return _message_fields(cls)


def measure(value: Any) -> int:
    """Return the bytes of `value` beside its header, as `freeze` counts them, copying nothing."""
    return freeze(value, copy=False)[1]


def freeze(value: Any, copy: bool = True) -> tuple[Any, int]:
    """Return `value` as the receiver will see it, and its bytes beside the header.

    Arrays that anyone could still write to, or that do not lie in one piece, are copied once and made read-only; lists
    become tuples. Arrays, raw bytes, texts (as UTF-8) and integers beyond 64 bits count in full, every other number
    `SCALAR_BYTES`, as does each size above 1 of an array without content, the length of its texts and a unit of time,
    the keys of a mapping like its values, and each item of a sequence one byte at least. The first eight numbers that
    are fields of the message itself travel in its header.

    Raises:
        CodecError: a value of a type that may not be sent (a tensor, an undeclared dataclass, an object array).
    """
    names = _message_fields(value.__class__)
    if names is not None:
        return _freeze_message(value, value.__class__, names, copy, _HEADER_SCALARS)
    return _freeze(value, copy)


def _freeze(value: Any, copy: bool) -> tuple[Any, int]:
    if value is None:
        return value, 0
    cls = value.__class__
    if cls is float or cls is bool:
        return value, SCALAR_BYTES
    if cls is int:
        return value, SCALAR_BYTES if -_LARGE <= value < _LARGE else value.bit_length() // 8 + 1
    if cls is np.ndarray:
        if value.dtype.kind not in _PLAIN_KINDS:
            raise CodecError(f"an array of dtype {value.dtype} may not be sent; use a numeric or text dtype")
        if copy and (not value.flags.c_contiguous or _writable_by_anyone(value)):
            value = value.copy()
            value.setflags(write=False)
        size = value.nbytes or _shape_bytes(value)
        # a unit of time is any number of seconds
        return value, size + SCALAR_BYTES if value.dtype.kind in "mM" else size
    if cls is bytes or (cls is str and value.isascii()):
        return value, len(value)
    if cls is str:
        return value, len(value.encode())
    names = _message_fields(cls)
    if names is not None:
        return _freeze_message(value, cls, names, copy, 0)
    if cls is tuple or cls is list:
        return _freeze_sequence(value, copy)
    if cls is dict:
        frozen, total = {}, 0
        for key, item in value.items():
            frozen[key], size = _freeze(item, copy)
            total += size + _freeze(key, False)[1]
        return frozen, total
    if isinstance(value, np.generic) and type(value.item()) is not cls:
        return _freeze(value.item(), copy)
    for kind in (bool, int, float, str):  # a member of an enumeration arrives as its plain value
        if isinstance(value, kind):
            return _freeze(kind(value) if kind is not str else str.__str__(value), copy)
    raise CodecError(
        f"a {cls.__module__}.{cls.__qualname__} may not be sent: only plain values, numpy arrays and dataclasses "
        "declared with @message cross a party's boundary"
    )


def _shape_bytes(empty: np.ndarray) -> int:
    """Return what the shape of an array without content counts: it says whatever its maker wants it to say."""
    num_sizes: int = max(sum(size > 1 for size in empty.shape), empty.ndim - 2)
    return SCALAR_BYTES * (num_sizes + (empty.dtype.kind in "SU"))  # so does the length of its texts


def _writable_by_anyone(array: np.ndarray) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    return base is not None and not isinstance(base, bytes) and not (isinstance(base, memoryview) and base.readonly)


def _freeze_message(value: Any, cls: Any, names: tuple[str, ...], copy: bool, free: int) -> tuple[Any, int]:
    total, num_scalars, changed = 0, 0, False
    parts = []
    for name in names:
        item = getattr(value, name)
        kind = item.__class__
        if kind is float or kind is bool or (kind is int and -_LARGE <= item < _LARGE):
            num_scalars += 1
        else:
            frozen, size = _freeze(item, copy)
            if frozen.__class__ in _NUMBERS and size == SCALAR_BYTES:  # numpy's, or a member of an enumeration
                num_scalars, size = num_scalars + 1, 0
            total += size
            if frozen is not item:
                item, changed = frozen, True
        parts.append(item)
    if num_scalars > free:
        total += SCALAR_BYTES * (num_scalars - free)
    if not changed:
        return value, total
    made = cls.__new__(cls)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(made, name, part)
    return made, total


def _freeze_sequence(value: Any, copy: bool) -> tuple[Any, int]:
    total, parts = 0, []
    for item in value:
        frozen, size = _freeze(item, copy)
        total += size or 1  # how many there are of them says something too
        parts.append(frozen)
    return tuple(parts), total


def type_name(value: Any, method: str) -> str:
    """Return the name under which the ledger records a call of `method`: its message's class, or the bare call."""
    return f"{method}()" if value is None else value.__class__.__name__


def carry(value: Any) -> Any:
    """Return a copy of what an actor is built with, as a process elsewhere would get it from a frame.

    Beside what may be sent, dataclasses declared with `plain` and configurations may be in it.

    Raises:
        CodecError: anything else is in it.
    """
    return decode(encode(value, arguments=True), arguments=True)


# --- bytes ---------------------------------------------------------------------------------------------------------


def encode_parts(value: Any, arguments: bool = False) -> Parts:
    """Return the frame of `value` as pieces to be written one after the other (arrays are not copied)."""
    fields_of = _argument_fields if arguments else _message_fields
    arrays: list[np.ndarray] = []

    def default(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            if item.dtype.kind not in _PLAIN_KINDS:
                raise CodecError(f"an array of dtype {item.dtype} may not be sent; use a numeric or text dtype")
            # ascontiguousarray would turn a 0-d array into a 1-d one
            arrays.append(item if item.flags.c_contiguous else np.ascontiguousarray(item))
            return msgpack.ExtType(
                _ARRAY, msgpack.packb((len(arrays) - 1, item.dtype.str, item.shape), buf_size=_PACK_BYTES)
            )
        names = fields_of(item.__class__)
        if names is not None:
            cls = item.__class__
            content = (f"{cls.__module__}:{cls.__qualname__}", [getattr(item, name) for name in names])
            return msgpack.ExtType(_MESSAGE, msgpack.packb(content, default=default, buf_size=_PACK_BYTES))
        if isinstance(item, np.generic):
            return item.item()
        if isinstance(item, int):
            return msgpack.ExtType(_BIG_INT, item.to_bytes(item.bit_length() // 8 + 1, "little", signed=True))
        cls = item.__class__
        raise CodecError(f"a {cls.__module__}.{cls.__qualname__} may not be sent")

    tree = msgpack.packb(value, default=default, buf_size=_PACK_BYTES)
    offsets, offset = [], 0
    for array in arrays:
        offsets.append(offset)
        offset += array.nbytes + (-array.nbytes) % _ALIGN
    header = msgpack.packb((tree, offsets), buf_size=_PACK_BYTES)
    start = _PREFIX.size + len(header)
    parts: Parts = [_PREFIX.pack(MAGIC, len(header)), header, b"\0" * ((-start) % _ALIGN)]
    for array in arrays:
        if array.nbytes:
            parts.append(array.reshape(-1).view(np.uint8).data)
            parts.append(b"\0" * ((-array.nbytes) % _ALIGN))
    return parts


def encode(value: Any, arguments: bool = False) -> bytes:
    """Return the frame of `value` as one piece; see `carry` for `arguments`.

    Raises:
        CodecError: see `freeze`.
    """
    return b"".join(encode_parts(value, arguments))


def decode(frame: bytes | memoryview, arguments: bool = False) -> Any:
    """Return the value of a frame; arrays are read-only views into it; see `carry` for `arguments`.

    Raises:
        CodecError: not a frame, cut short, or of a message type unknown in this process.
    """
    view = memoryview(frame).toreadonly()
    if len(view) < _PREFIX.size:
        raise CodecError("not a frame: too short")
    magic, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise CodecError("not a frame: the first bytes are foreign")
    start = _PREFIX.size + length
    data_start = start + (-start) % _ALIGN

    def ext_hook(code: int, data: bytes) -> Any:
        if code == _ARRAY:
            index, dtype, shape = msgpack.unpackb(data, use_list=False)
            kind = np.dtype(dtype)
            if kind.kind not in _PLAIN_KINDS:
                raise CodecError(f"an array of dtype {dtype} may not be received")
            count = 1
            for size in shape:
                count *= size
            if count == 0:
                return np.empty(shape, kind)
            return np.frombuffer(view, kind, count, data_start + offsets[index]).reshape(shape)
        if code == _MESSAGE:
            name, values = msgpack.unpackb(data, ext_hook=ext_hook, use_list=False, strict_map_key=False)
            return _make_message(name, values, arguments)
        if code == _BIG_INT:
            return int.from_bytes(data, "little", signed=True)
        raise CodecError(f"unknown extension {code} in a frame")

    try:
        tree, offsets = msgpack.unpackb(view[_PREFIX.size : start], use_list=False)
        return msgpack.unpackb(tree, ext_hook=ext_hook, use_list=False, strict_map_key=False)
    except _MALFORMED as error:
        raise CodecError(f"a frame that does not decode: {error}") from None


def _make_message(name: str, values: tuple[Any, ...], arguments: bool) -> Any:
    module, _, qualname = name.partition(":")
    cls: Any = sys.modules.get(module)
    for part in qualname.split("."):
        cls = getattr(cls, "__dict__", {}).get(part)  # getattr might import more of a package that loads lazily
    fields_of = _argument_fields if arguments else _message_fields
    names = fields_of(cls) if isinstance(cls, type) else None
    if names is None or len(names) != len(values):
        raise CodecError(f"{name} is not a message type known in this process")
    made = cls.__new__(cls)
    for field, value in zip(names, values, strict=True):
        object.__setattr__(made, field, value)
    return made

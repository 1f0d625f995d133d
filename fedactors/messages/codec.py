"""The pickle-free codec: how messages, arguments and replies become bytes, and how they are frozen.

    frame = | magic | header length | header: msgpack, each array replaced by index, dtype, shape | padding | arrays |

Arrays follow as raw 64-byte aligned buffers, so that decoding copies nothing and yields read-only views. Decoding runs
no code of the sender: it knows plain values, arrays of plain dtypes, and dataclasses declared with `message` in modules
that are already imported here.

Frames and checkpoints hold stable names of classes, ``mtcd/Token``, which are no paths of Python's: a namespace and the
class's own name. The namespace is the protocol (in ``fedactors.protocols`` the folder's name, of a third party the
package that has a module `plugin`), ``fedactors``, else the class's module. A class may move to another file of its
namespace. One that moves further, or gets another name, keeps the old one: ``@message(name="mtcd/Token",
reveals=...)``. A script's classes are of ``__main__``.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import struct
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from typing import Any, TypeVar, dataclass_transform, overload

import msgpack
import numpy as np

from fedactors.errors import FedactorsError

_CLASSES: dict[str, type] = {}
_SCRIPT = "__main__"
_SCRIPTS = (_SCRIPT, "__mp_main__")
"""A script where it starts, and in the processes that multiprocessing starts from it."""


def declare(cls: type, name: str = "") -> None:
    """Give a class its stable name, by which this process finds it from now on.

    The same class may be declared again, as when a cell of a notebook runs twice: the last one counts.

    Args:
        cls: the class.
        name: ``namespace/ClassName``; by default of its module and its own name.

    Raises:
        TypeError: the name is malformed, or another class has it.
    """
    name = name or _default(cls)
    namespace, slash, class_name = name.partition("/")
    if not (namespace and slash and class_name and name.isprintable()):
        raise TypeError(f"{_import_path(cls)}: name: {name!r} is not allowed: give 'namespace/ClassName'")
    known = _CLASSES.get(name, cls)
    if _import_path(known) != _import_path(cls):
        raise TypeError(
            f"{_import_path(cls)}: {_import_path(known)} has the name {name!r}: give one of them another with name="
        )
    cls.__wire_name__ = name  # type: ignore[attr-defined]
    _CLASSES[name] = cls


def class_of(name: Any) -> type | None:
    """Return the class of a name; None: this process knows none."""
    return _CLASSES.get(name)


def name_of(cls: type) -> str:
    """Return the name of a class that is declared itself, not only a base of it."""
    return str(vars(cls)["__wire_name__"])


def namespace_of(cls: type) -> str:
    """Return the namespace of a class, declared or not."""
    return (vars(cls).get("__wire_name__") or _default(cls)).partition("/")[0]


def _default(cls: type) -> str:
    module = _module(cls)
    parts = module.split(".")
    if "<locals>" in cls.__qualname__:  # other functions have classes of that name, which is nobody's but theirs
        namespace = module
    elif parts[:2] == ["fedactors", "protocols"] and len(parts) > 3:
        namespace = parts[2]
    elif parts[0] == "fedactors":
        namespace = "fedactors"
    else:
        packages = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        namespace = next(filter(_has_plugin, packages), module)
    return f"{namespace}/{cls.__qualname__}"


def _has_plugin(package: str) -> bool:
    folders = getattr(sys.modules.get(package), "__path__", ())
    return PathFinder.find_spec(f"{package}.plugin", list(folders)) is not None


def _module(cls: type) -> str:
    return _SCRIPT if cls.__module__ in _SCRIPTS else cls.__module__


def _import_path(cls: type) -> str:
    return f"{_module(cls)}.{cls.__qualname__}"


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
_WIRE_KINDS = "biufcSUmM"
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


_DEEPEST = 32
"""Messages within messages: each takes some 50 kB of the process's stack, which no limit of Python's counts."""
MOST_MEMORY = 640 << 20
"""Bytes that the values of a frame may take beside the content of arrays."""
_MOST_GROWTH = 128
"""Bytes of memory for one of a frame: a mapping of one item has 240, and 2 of them in the frame."""
_SMALL_BYTES = 1 << 20
"""Of a frame's values, up to which nothing is counted, if even that growth stays within what they may take."""
_ITEM_BYTES, _CONTAINER_BYTES, _OBJECT_BYTES = 32, 64, 320
"""Of memory that a number or a short text takes, a mapping or a sequence beside its table, an array or a message."""
_UNCHECKED_BYTES, _LONGEST_ARRAY_FACTS = 4096, 512
_SLICE_BYTES = 32 * 1024
"""Of a frame's values, that are read at once: between two slices other threads of the process go on."""
_MOST_DIMENSIONS, _LONGEST_DTYPE, _MOST_EMPTY = 32, 40, 1 << 28
"""Of an array: sizes, characters of its dtype, and rows (or what its sizes make) where it has no content."""
_LONGEST_INT = 1700
"""Bytes of an integer: of more than 4,300 digits Python makes no text, and who refuses it could not say so."""
_FEW_KEYS, _MOST_ALIKE = 64, 9
"""Keys of a mapping, beyond which there are at most so many for each hash: numbers of 64 bits have nine at most."""


class CodecError(FedactorsError):
    """A value that may not cross a party's boundary, or bytes that are not a frame."""


@dataclasses.dataclass(frozen=True)
class MessageFacts:
    """The privacy review of one message type: what it reveals, and who reads it where no endpoint says so."""

    reveals: str
    readers: str


@dataclass_transform(frozen_default=True, kw_only_default=False)
def message(*, reveals: str, readers: str = "", name: str = "") -> Callable[[type[T]], type[T]]:
    """Declare a class as a message: a frozen slotted dataclass that the codec may carry.

    Who receives it follows from the endpoints that take or give it (`fedactors.actors.remote`).

    Args:
        reveals: one sentence on what the receiver learns from it.
        readers: for payloads, which are fetched and come through no endpoint: who may fetch them.
        name: in frames and checkpoints; see `fedactors.messages.codec`.
    """

    def decorate(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(frozen=True, slots=True)(cls)
        made.__message__ = MessageFacts(reveals, readers)  # type: ignore[attr-defined]
        declare(made, name)
        return made

    return decorate


@overload
def wire_type(cls: type[T]) -> type[T]: ...


@overload
def wire_type(*, eq: bool = ..., name: str = ...) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def wire_type(cls: Any = None, *, eq: bool = True, name: str = "") -> Any:
    """Declare a frozen keyword-only dataclass of plain values: an actor may be built with it, and it is no message."""

    def decorate(cls: type[T]) -> type[T]:
        made = dataclasses.dataclass(frozen=True, kw_only=True, eq=eq)(cls)
        made.__wire_type__ = True  # type: ignore[attr-defined]
        declare(made, name)
        return made

    return decorate if cls is None else decorate(cls)


def message_types(module: Any) -> list[type]:
    """Return the message classes that `module` declares, in the order of their names."""
    return _declared(module, "__message__")


def wire_types(module: Any) -> list[type]:
    """Return the classes that `module` declares with `plain` or as configurations, in the order of their names."""
    return _declared(module, "__wire_type__")


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
"""Of messages; None: the class is none."""
_ARGUMENTS: dict[type, tuple[str, ...] | None] = {}
"""Of messages, plain classes and configurations."""
_ITEMS: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


def _message_fields(cls: type) -> tuple[str, ...] | None:
    try:
        return _FIELDS[cls]
    except KeyError:
        return _find_fields(cls, _FIELDS, "__message__")


def _argument_fields(cls: type) -> tuple[str, ...] | None:
    try:
        return _ARGUMENTS[cls]
    except KeyError:
        return _find_fields(cls, _ARGUMENTS, "__message__", "__wire_type__")


def _find_fields(cls: type, known: dict[type, tuple[str, ...] | None], *marks: str) -> tuple[str, ...] | None:
    # a subclass that is not declared itself could carry more than its fields
    if not any(mark in vars(cls) for mark in marks):
        known[cls] = None
        return None
    known[cls] = names = tuple(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]
    _ITEMS[cls] = items_of(names)
    return names


def items_of(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes the attributes of these names from an object, in one call where there are several."""
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


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
        kind = value.dtype.kind
        if kind not in _WIRE_KINDS:
            raise CodecError(f"an array of dtype {value.dtype} may not be sent; use a numeric or text dtype")
        if copy:
            flags, base = value.flags, value.base
            if flags.writeable or not flags.c_contiguous or (base is not None and _writable_by_anyone(base)):
                value = value.copy()
                value.setflags(write=False)
        size = value.nbytes or _shape_bytes(value)
        # a unit of time is any number of seconds
        return value, size + SCALAR_BYTES if kind in "mM" else size
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
    for wire_kind in (bool, int, float, str):  # a member of an enumeration arrives as its plain value
        if isinstance(value, wire_kind):
            return _freeze(wire_kind(value) if wire_kind is not str else str.__str__(value), copy)
    raise CodecError(
        f"a {cls.__module__}.{cls.__qualname__} may not be sent: only plain values, numpy arrays and dataclasses "
        "declared with @message cross a party's boundary"
    )


def _shape_bytes(empty: np.ndarray) -> int:
    """Return what the shape of an array without content counts: it says whatever its maker wants it to say."""
    num_sizes: int = max(sum(size > 1 for size in empty.shape), empty.ndim - 2)
    return SCALAR_BYTES * (num_sizes + (empty.dtype.kind in "SU"))  # so does the length of its texts


def _writable_by_anyone(base: Any) -> bool:
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    return base is not None and not isinstance(base, bytes) and not (isinstance(base, memoryview) and base.readonly)


def _freeze_message(value: Any, cls: Any, names: tuple[str, ...], copy: bool, free: int) -> tuple[Any, int]:
    total, num_scalars, changed = 0, 0, False
    parts = []
    for item in _ITEMS[cls](value):
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
            if item.dtype.kind not in _WIRE_KINDS:
                raise CodecError(f"an array of dtype {item.dtype} may not be sent; use a numeric or text dtype")
            # ascontiguousarray would turn a 0-d array into a 1-d one
            arrays.append(item if item.flags.c_contiguous else np.ascontiguousarray(item))
            return msgpack.ExtType(
                _ARRAY, msgpack.packb((len(arrays) - 1, item.dtype.str, item.shape), buf_size=_PACK_BYTES)
            )
        names = fields_of(item.__class__)
        if names is not None:
            cls = item.__class__
            content = (cls.__wire_name__, _ITEMS[cls](item))
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
    arrays.clear()  # `default` has itself and them, which go with the frame
    return parts


def encode(value: Any, arguments: bool = False) -> bytes:
    """Return the frame of `value` as one piece; see `carry` for `arguments`.

    Raises:
        CodecError: see `freeze`.
    """
    return b"".join(encode_parts(value, arguments))


class _Slices:
    """Bytes that msgpack reads as a file, some at a time."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._rest = memoryview(data)

    def read(self, size: int) -> bytes:
        """Return the next bytes, of so many at most."""
        taken, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return taken


def _unpacker(data: bytes | memoryview, **hooks: Any) -> msgpack.Unpacker:
    size = min(_SLICE_BYTES, len(data))
    return msgpack.Unpacker(_Slices(data), read_size=size, max_buffer_size=len(data), **hooks)


def _unpacked(data: bytes | memoryview, unchecked: int, **hooks: Any) -> Any:
    """Return what msgpack makes of bytes, having seen that they hold as many items as they announce.

    Room for all items of a sequence is made when it begins: a few bytes, nested, would ask for gigabytes. Of up to
    `unchecked` bytes it is not seen. msgpack lets no other thread go on while it reads, so that many bytes are sliced.
    """
    if len(data) > unchecked:
        _unpacker(data).skip()
    if len(data) <= _SLICE_BYTES:
        return msgpack.unpackb(data, **hooks)
    unpacker = _unpacker(data, **hooks)
    value = unpacker.unpack()
    if unpacker.tell() != len(data):
        raise ValueError("more follows where it should end")
    return value


def values_in(frame: bytes | memoryview) -> int:
    """Return how many bytes of a frame are values, and no content of arrays, as it says itself; 0: it is no frame."""
    if len(frame) < _PREFIX.size:
        return 0
    magic, length = _PREFIX.unpack_from(frame)
    return length if magic == MAGIC else 0


def decode(
    frame: bytes | memoryview, arguments: bool = False, most: int = MOST_MEMORY, longest: int | None = None
) -> Any:
    """Return the value of a frame; arrays are read-only views into it; see `carry` for `arguments`.

    Args:
        frame: of `encode`, or from elsewhere.
        arguments: see `carry`.
        most: bytes of memory that the value may take beside the content of its arrays; of a sequence it is seen when
            that has ended. Long texts and raw bytes take as much as they have in the frame.
        longest: bytes of the frame that may be values, with their long texts and raw bytes; None: `most`.

    Raises:
        CodecError: not a frame, cut short, of a message type unknown in this process, or more than it may be.
    """
    view = memoryview(frame).toreadonly()
    if len(view) < _PREFIX.size:
        raise CodecError("not a frame: too short")
    magic, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise CodecError("not a frame: the first bytes are foreign")
    longest = most if longest is None else longest
    if length > longest:
        raise CodecError(f"a frame of {length} bytes of values: at most {longest}")
    start = _PREFIX.size + length
    data_start = start + (-start) % _ALIGN

    depth = taken = 0
    unchecked = min(_UNCHECKED_BYTES, most // 256)

    def count(found: Any) -> Any:
        nonlocal taken
        taken += sys.getsizeof(found) + _CONTAINER_BYTES + _ITEM_BYTES * len(found)
        if taken > most:
            raise CodecError(_too_much(most))
        return found

    hooks: dict[str, Any] = {"use_list": False, "strict_map_key": False, "object_pairs_hook": _mapping}
    if length > min(_SMALL_BYTES, most // _MOST_GROWTH):
        most_items = most // (_ITEM_BYTES + 8)
        hooks |= {"object_pairs_hook": lambda pairs: count(_mapping(pairs))}
        hooks |= {"list_hook": count, "max_array_len": most_items, "max_map_len": most_items}

    def ext_hook(code: int, data: bytes) -> Any:
        nonlocal depth, taken
        if (taken := taken + _OBJECT_BYTES) > most:
            raise CodecError(_too_much(most))
        if code == _ARRAY:
            if len(data) > _LONGEST_ARRAY_FACTS:
                raise CodecError("an array of no dtype, or of too many dimensions")
            index, dtype, shape = msgpack.unpackb(data, use_list=False)
            return _array(view, data_start + offsets[index], dtype, shape)
        if code == _MESSAGE:
            depth += 1
            if depth > _DEEPEST:
                raise CodecError(f"messages within messages, deeper than {_DEEPEST}")
            name, values = _unpacked(data, unchecked, **hooks)
            depth -= 1
            return _make_message(name, values, arguments)
        if code == _BIG_INT:
            if len(data) > _LONGEST_INT:
                raise CodecError(f"an integer of {len(data)} bytes: at most {_LONGEST_INT}")
            return int.from_bytes(data, "little", signed=True)
        raise CodecError(f"unknown extension {code} in a frame")

    try:
        tree, offsets = _unpacked(view[_PREFIX.size : start], unchecked, **hooks)
        hooks["ext_hook"] = ext_hook
        return _unpacked(tree, unchecked, **hooks)
    except _MALFORMED as error:
        raise CodecError(f"a frame that does not decode: {error}") from None
    finally:
        hooks.clear()  # of the hook that has them and the frame, which goes with its last array


def _mapping(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return what a frame has as pairs; keys that hash alike would each be compared with all others."""
    if len(pairs) > _FEW_KEYS and _MOST_ALIKE * len({hash(key) for key, _ in pairs}) < len(pairs):
        raise CodecError(f"a mapping of {len(pairs)} keys that hash alike")
    return dict(pairs)


def _too_much(most: int) -> str:
    return f"a frame whose values take more than {most} bytes of memory: many numbers or texts go into arrays"


def _array(view: memoryview, at: int, dtype: Any, shape: Any) -> np.ndarray:
    """Return the array of these facts whose content begins at `at`; what the facts say costs nothing yet."""
    if type(dtype) is not str or len(dtype) > _LONGEST_DTYPE or len(shape) > _MOST_DIMENSIONS:
        raise CodecError("an array of no dtype, or of too many dimensions")
    kind = np.dtype(dtype)
    if kind.kind not in _WIRE_KINDS:
        raise CodecError(f"an array of dtype {dtype} may not be received")
    if (count := math.prod(shape)) != 0:
        return np.frombuffer(view, kind, count, at).reshape(shape)
    if math.prod(size for size in shape if size) > _MOST_EMPTY:
        raise CodecError(f"an array of no content and sizes {shape}")
    return np.empty(shape, kind)


def _make_message(name: str, values: tuple[Any, ...], arguments: bool) -> Any:
    cls: Any = class_of(name)
    fields_of = _argument_fields if arguments else _message_fields
    names = None if cls is None else fields_of(cls)
    if names is None or len(names) != len(values):
        raise CodecError(f"{name} is not a message type known in this process")
    made = cls.__new__(cls)
    for field, value in zip(names, values, strict=True):
        object.__setattr__(made, field, value)
    return made

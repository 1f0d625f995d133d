"""What arrived is what was declared: each field of a message against its annotation.

The checks of a class are made once, from its annotations. Known are numbers, texts, bytes, None, literals, unions,
messages, tuples and lists (a list arrives as a tuple), mappings, `Any`, and arrays with the kind of number
(``NDArray[np.floating]``) and the number of dimensions (``np.ndarray[tuple[int, int], ...]``) that they state.
An int of 64 bits is taken for a float, as everywhere in Python; a bool for neither.

``Annotated[NDArray[np.floating], Dimensions("nodes", "width")]`` names the dimensions of an array. One name has one
size within a message: that of its field of this name, if it has one, and the one that its receiver knows
(`wrong_size`).
"""

from __future__ import annotations

import collections.abc
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedactors.messages import codec

Wrong = tuple[str, Any, str]
"""Where in a message something is not as declared, what is there, and what is declared."""
Check = Callable[[Any], Wrong | None]
Checks = tuple[tuple[str, frozenset[type], Check], ...]
"""Per field: its name, the classes that need no further look, and how to look at the others."""

_NOTHING: frozenset[type] = frozenset()
_SCALARS: dict[Any, frozenset[type]] = {
    int: frozenset({int}),
    float: frozenset({float}),
    bool: frozenset({bool}),
    str: frozenset({str}),
    bytes: frozenset({bytes}),
    None: frozenset({types.NoneType}),
    types.NoneType: frozenset({types.NoneType}),
    np.ndarray: frozenset({np.ndarray}),
}
_ANYTHING: frozenset[type] = frozenset({int, float, bool, str, bytes, types.NoneType, np.ndarray})
_SEQUENCES = (tuple, list, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)
_CHECKS: dict[type, Checks] = {}


class UnknownAnnotation(TypeError):
    """A field of a message whose annotation says nothing that could be checked."""


def wrong_in(message: Any) -> Wrong | None:
    """Return what in a message that arrived is not as its class declares it; None when all is."""
    cls = message.__class__
    checks = _CHECKS.get(cls)
    for name, classes, check in checks_of(cls) if checks is None else checks:
        item = getattr(message, name)
        if item.__class__ not in classes and (wrong := check(item)) is not None:
            return f".{name}{wrong[0]}", wrong[1], wrong[2]
    return None


def checks_of(cls: type) -> Checks:
    """Make the checks of a message class.

    Raises:
        UnknownAnnotation: a field's annotation is of no kind that is known here.
    """
    found = []
    hints, whole = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    annotations = vars(cls).get("__annotations__", {})
    # a class of a script travels to Ray's processes without the names that its annotations, being texts, stand on
    annotations.update({name: whole[name] for name in annotations})
    for name, hint in hints.items():
        try:
            found.append((name, *_of(hint)))
        except UnknownAnnotation as error:
            raise UnknownAnnotation(f"{cls.__qualname__}.{name}: {error}") from None
    _CHECKS[cls] = tuple(found)
    return _CHECKS[cls]


def _of(hint: Any) -> tuple[frozenset[type], Check]:
    """Return the classes that an annotation takes without another look, and the check of the others."""
    hint = expanded(hint)
    classes = _SCALARS.get(hint)
    if hint is float:
        return _SCALARS[float], _number
    if classes is not None:
        return classes, lambda item: ("", item, _text(hint))
    if hint is Any or hint is object:
        return _ANYTHING, _in_anything
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return _union(hint, parts)
    if origin is Literal:
        return _NOTHING, _literal(hint, parts)
    if origin is np.ndarray:
        return _NOTHING, _array(hint, parts)
    if hint in _SEQUENCES or origin in _SEQUENCES:
        return _NOTHING, _sequence(hint, parts or (Any,))
    if hint in _MAPPINGS or origin in _MAPPINGS:
        return _NOTHING, _mapping(hint, parts or (Any, Any))
    if _is_message(hint):
        return _NOTHING, lambda item: wrong_in(item) if item.__class__ is hint else ("", item, _text(hint))
    raise UnknownAnnotation(f"{_text(hint)} cannot be checked when a message arrives; see fedactors.messages.fields")


def expanded(hint: Any) -> Any:
    """Return what an annotation's alias stands for: one of a ``type`` statement, or ``NDArray`` of NumPy 2.5 on."""
    while type(alias := typing.get_origin(hint) or hint).__name__ == "TypeAliasType":
        parts = typing.get_args(hint)
        hint = alias.__value__[parts] if parts else alias.__value__
    return hint


def check_of(hint: Any) -> Check:
    """Return the check of one annotation.

    Raises:
        UnknownAnnotation: it is of no kind that is known here.
    """
    classes, check = _of(hint)
    return lambda item: None if item.__class__ in classes else check(item)


def _number(item: Any) -> Wrong | None:
    """Look at what is declared as a float; a longer integer may be beyond all floats, and fails where it is used."""
    return None if item.__class__ is int and -(1 << 63) <= item < 1 << 63 else ("", item, "float")


def _union(hint: Any, parts: tuple[Any, ...]) -> tuple[frozenset[type], Check]:
    found, text = [_of(part) for part in parts], _text(hint)

    def check(item: Any) -> Wrong | None:
        deepest: Wrong = ("", item, text)
        for _, look in found:
            wrong = look(item)
            if wrong is None:
                return None
            deepest = wrong if wrong[0] else deepest  # what lies deeper is of the part that was meant
        return deepest

    return _NOTHING.union(*(classes for classes, _ in found)), check


def _literal(hint: Any, values: tuple[Any, ...]) -> Check:
    allowed = {(value.__class__, value) for value in values}
    classes = frozenset(value.__class__ for value in values)

    def check(item: Any) -> Wrong | None:
        is_one = item.__class__ in classes and (item.__class__, item) in allowed
        return None if is_one else ("", item, _text(hint))

    return check


def _array(hint: Any, parts: tuple[Any, ...]) -> Check:
    ndim, kinds = _shape_and_kinds(parts)

    def check(item: Any) -> Wrong | None:
        if item.__class__ is np.ndarray and issubclass(item.dtype.type, kinds) and ndim in (None, item.ndim):
            return None
        return "", item, _text(hint)

    return check


def _shape_and_kinds(parts: tuple[Any, ...]) -> tuple[int | None, tuple[type, ...]]:
    """Return the number of dimensions that an array's annotation states, if it does, and its kinds of numbers."""
    shape, dtype = map(expanded, parts)
    sizes, kinds = typing.get_args(shape), typing.get_args(dtype)
    return len(sizes) if sizes and Ellipsis not in sizes else None, _kinds(kinds[0] if kinds else Any)


def _kinds(hint: Any) -> tuple[type, ...]:
    hint = expanded(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for part in typing.get_args(hint) for kind in _kinds(part))
    origin = typing.get_origin(hint) or hint  # np.floating[Any] is np.floating
    if isinstance(origin, type) and issubclass(origin, np.generic):
        return (origin,)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return (np.generic,)
    raise UnknownAnnotation(f"an array of {_text(hint)} is no kind of number")


def _sequence(hint: Any, parts: tuple[Any, ...]) -> Check:
    is_fixed = typing.get_origin(hint) is tuple and Ellipsis not in parts
    checks = [_of(part) for part in parts if part is not Ellipsis]

    def check(item: Any) -> Wrong | None:
        if item.__class__ is not tuple or (is_fixed and len(item) != len(checks)):
            return "", item, _text(hint)
        for index, inner in enumerate(item):
            classes, look = checks[index if is_fixed else 0]
            if inner.__class__ not in classes and (wrong := look(inner)) is not None:
                return f"[{index}]{wrong[0]}", wrong[1], wrong[2]
        return None

    return check


def _mapping(hint: Any, parts: tuple[Any, ...]) -> Check:
    check_key, check_value = check_of(parts[0]), check_of(parts[1])

    def check(item: Any) -> Wrong | None:
        if item.__class__ is not dict:
            return "", item, _text(hint)
        for key, inner in item.items():
            wrong = check_key(key) or check_value(inner)
            if wrong is not None:
                return f"[{key!r:.40}]{wrong[0]}", wrong[1], wrong[2]
        return None

    return check


def _in_anything(item: Any) -> Wrong | None:
    """Look at what a field carries that may be anything: the messages within are what they are declared to be."""
    stack = [item]
    while stack:
        inner = stack.pop()
        kind = inner.__class__
        if kind is tuple or kind is list:
            stack.extend(part for part in inner if part.__class__ not in _ANYTHING)
        elif kind is dict:
            stack.extend(inner.values())
        elif hasattr(kind, "__message__") and (wrong := wrong_in(inner)) is not None:
            return wrong
    return None


def _text(hint: Any) -> str:
    if hint is None or hint is types.NoneType:
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("numpy.", "np.")


def in_words(item: Any) -> str:
    """Return what kind of value something is, for a line that refuses it; its content is not told."""
    if isinstance(item, np.ndarray):
        return f"an array of {item.dtype} with {item.ndim} dimension{'s' * (item.ndim != 1)}"
    name = type(item).__name__
    return "nothing" if item is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


# --- dimensions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, init=False)
class Dimensions:
    """The dimensions of an array, or of each array of a tuple, or the length of a tuple of numbers.

    Args:
        names: of the dimensions, each a word for its size that the receiver may know, or the size itself.
        or_none: whether an empty array may come in its place.
    """

    names: tuple[str | int, ...]
    or_none: bool

    def __init__(self, *names: str | int, or_none: bool = False) -> None:
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "or_none", or_none)


_DIMENSIONS: dict[type, tuple[tuple[str, Dimensions, bool], ...]] = {}
"""Of a message's fields: name, dimensions, and whether it is a tuple of arrays."""
_COUNTS: dict[type, tuple[str, ...]] = {}
"""The fields that are themselves the size of a dimension of that name."""


def dimensions_of(cls: type) -> tuple[tuple[str, Dimensions, bool], ...]:
    """Return the fields of a message that name their dimensions: their names, and whether they are tuples of arrays."""
    found = _DIMENSIONS.get(cls)
    if found is None:
        hints = typing.get_type_hints(cls, include_extras=True) if _is_message(cls) else {}
        marked = ((name, _dimensions(hint), _is_of_arrays(hint)) for name, hint in hints.items())
        found = _DIMENSIONS[cls] = tuple((name, one, several) for name, one, several in marked if one is not None)
        named = {name for _, one, _ in found for name in one.names}
        _COUNTS[cls] = tuple(name for name, hint in hints.items() if hint is int and name in named)
    return found


def _dimensions(hint: Any) -> Dimensions | None:
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Dimensions)), None)


def _is_of_arrays(hint: Any) -> bool:
    whole = expanded(typing.get_args(hint)[0]) if _dimensions(hint) is not None else None
    parts = typing.get_args(whole)
    return typing.get_origin(whole) is tuple and typing.get_origin(expanded(parts[0])) is np.ndarray


def wrong_size(message: Any, known: Callable[[Any], Mapping[str, int]]) -> str | None:
    """Return which array of a message has other dimensions than those known here, or than another one of it states.

    Args:
        message: whose fields are as declared.
        known: returns the sizes that the receiver knows of a message, by name.
    """
    declared = dimensions_of(message.__class__)
    if not declared:
        return None
    sizes: dict[str | int, int] = {}
    sizes.update(known(message))
    kind = message.__class__.__name__
    for field in _COUNTS[message.__class__]:
        number = getattr(message, field)
        if sizes.setdefault(field, number) != number:
            return f"{kind}.{field} {number:,}; expected: {sizes[field]:,}"
    for name, dimensions, is_of_arrays in declared:
        item = getattr(message, name)
        for array in item if is_of_arrays else (item,):
            shape = (len(array),) if isinstance(array, tuple) else tuple(array.shape)  # an `Encoded` has one too
            if dimensions.or_none and shape == (0,):
                continue
            names = dimensions.names
            if len(shape) != len(names) or any(
                (one if isinstance(one, int) else sizes.setdefault(one, size)) != size
                for one, size in zip(names, shape, strict=True)
            ):
                expected = " x ".join(f"{sizes[one]:,} ({one})" if one in sizes else f"{one}" for one in names)
                return f"{kind}.{name} of shape {shape}; expected: {expected}"
    return None


# --- freeze and check in one pass ----------------------------------------------------------------------------------

_Freezer = Callable[[Any, bool, int], "tuple[Any, int] | None"]
_FREEZERS: dict[type, _Freezer] = {}
"""Here and not on the classes: those of scripts travel to Ray's processes by value."""
_PLAIN_SCALARS = frozenset(t for t in set(np.sctypeDict.values()) if np.dtype(t).kind in "biufcSU")
_IN_64_BITS = "-0x8000000000000000 <= {} and {} <= 0x7fffffffffffffff"
_Case = tuple[str, str]
"""A condition on the field's value `a` under which it is surely right, and the lines that freeze and measure it."""

_SCALAR_CASES: dict[Any, tuple[_Case, ...]] = {
    int: ((f"a.__class__ is int and {_IN_64_BITS.format('a', 'a')}", "numbers += 1"),),
    float: ((f"a.__class__ is float or (a.__class__ is int and {_IN_64_BITS.format('a', 'a')})", "numbers += 1"),),
    bool: (("a.__class__ is bool", "numbers += 1"),),
    str: (("a.__class__ is str", "size += len(a) if a.isascii() else len(a.encode())"),),
    bytes: (("a.__class__ is bytes", "size += len(a)"),),
    types.NoneType: (("a is None", "pass"),),
}
_SEQUENCE_CASES: dict[Any, _Case] = {
    int: (f"kinds == {{int}} and {_IN_64_BITS.format('min(a)', 'max(a)')}", "size += 8 * len(a)"),
    float: ("kinds == {float}", "size += 8 * len(a)"),
    str: ("kinds == {str} and ''.join(a).isascii()", "size += sum(map(len, a)) + a.count('')"),
}
_ARRAY_LINES = """
if copy:
    flags = a.flags
    if flags.writeable or not flags.c_contiguous or ((base := a.base) is not None and is_writable(base)):
        a = a.copy()
        a.setflags(write=False)
        changed = True
size += a.nbytes or shape_bytes(a)
"""
_MESSAGE_LINES = """
found = (freezers.get({cls}) or make({cls}))(a, copy, 0)
if found is None: return None
if found[0] is not a: a = found[0]; changed = True
size += found[1]
"""
_MESSAGES_LINES = """
frozen = []
freeze_item = freezers.get({cls}) or make({cls})
is_new = a.__class__ is list
for item in a:
    found = freeze_item(item, copy, 0) if item.__class__ is {cls} else None
    if found is None: return None
    size += found[1] or 1
    is_new = is_new or found[0] is not item
    frozen.append(found[0])
if is_new: a = tuple(frozen); changed = True
"""
_OTHER_LINES = """
frozen, bytes_ = freeze(a, copy)
if frozen.__class__ not in classes_{i} and check_{i}(frozen) is not None: return None
if bytes_ == 8 and frozen.__class__ in numbers_classes: numbers += 1
else: size += bytes_
if frozen is not a: a = frozen; changed = True
"""


def freeze_valid(message: Any, copy: bool = True) -> tuple[Any, int] | None:
    """Return what `codec.freeze` does where every field is surely as declared; None: `freeze`, then `wrong_in`, tell.

    A function made once for each class from its annotations does both in one pass. It has no words for what is wrong.
    """
    cls = message.__class__
    return (_FREEZERS.get(cls) or _make_freezer(cls))(message, copy, codec.HEADER_BYTES // codec.SCALAR_BYTES)


def _make_freezer(cls: type) -> _Freezer:
    names = codec._message_fields(cls)
    if names is None:
        return lambda message, copy, free: None
    hints = typing.get_type_hints(cls)
    checks = {name: (classes, check) for name, classes, check in checks_of(cls)}
    scope: dict[str, Any] = {
        "ndarray": np.ndarray, "freeze": codec._freeze, "numbers_classes": codec._NUMBERS, "freezers": _FREEZERS,
        "is_writable": codec._writable_by_anyone, "shape_bytes": codec._shape_bytes, "make": _make_freezer, "cls": cls,
    }  # fmt: skip
    lines = ["numbers = size = 0", "changed = False"]
    for i, name in enumerate(names):
        scope[f"classes_{i}"], scope[f"check_{i}"] = checks[name]
        scope[f"set_{i}"] = _setter_of(cls, name)
        lines += [f"a = message.{name}", "if False: pass"]
        for condition, body in (*_cases(hints[name], scope), ("True", _OTHER_LINES.format(i=i))):
            lines += [f"elif {condition}:", textwrap.indent(body, "    ")]
        lines.append(f"a_{i} = a")
    lines += ["if numbers > free: size += 8 * (numbers - free)", "if not changed: return message, size"]
    lines += ["made = cls.__new__(cls)", *(f"set_{i}(made, a_{i})" for i in range(len(names))), "return made, size"]
    source = f"def freezer(message, copy, free):\n{textwrap.indent(chr(10).join(lines), '    ')}"
    exec(compile(source, f"<freezer of {cls.__qualname__}>", "exec"), scope)
    _FREEZERS[cls] = made = scope["freezer"]
    return made  # type: ignore[no-any-return]


def _setter_of(cls: type, name: str) -> Callable[[Any, Any], None]:
    """Return the setter of a field of a frozen message; a class that was sent to a process by value has no slots."""
    if hasattr(cls, name):
        return getattr(cls, name).__set__  # type: ignore[no-any-return]
    return lambda message, value: object.__setattr__(message, name, value)


def _cases(hint: Any, scope: dict[str, Any]) -> tuple[_Case, ...]:
    """Return the cases of an annotation; `scope` gets the names that they use."""

    def named(value: Any) -> str:
        scope[name := f"known_{len(scope)}"] = value
        return name

    hint = expanded(hint)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in _SCALAR_CASES:
        return _SCALAR_CASES[hint]
    if origin is typing.Union or origin is types.UnionType:
        return tuple(case for part in parts for case in _cases(part, scope))
    if hint is np.ndarray or origin is np.ndarray:
        ndim, kinds = _shape_and_kinds(parts) if parts else (None, (np.generic,))
        scalars = named(frozenset(t for t in _PLAIN_SCALARS if issubclass(t, kinds)))
        of_dimensions = "" if ndim is None else f" and a.ndim == {ndim}"
        return ((f"a.__class__ is ndarray and a.dtype.type in {scalars}{of_dimensions}", _ARRAY_LINES),)
    if _is_message(hint):
        name = named(hint)
        return ((f"a.__class__ is {name}", _MESSAGE_LINES.format(cls=name)),)
    if origin in _SEQUENCES and parts and (origin is not tuple or parts[1:] == (Ellipsis,)):
        if parts[0] in _SEQUENCE_CASES:
            sure, body = _SEQUENCE_CASES[parts[0]]
            is_sure = f"a.__class__ is tuple and (kinds := set(map(type, a))) and {sure}"
            return ("a.__class__ is tuple and not a", "pass"), (is_sure, body)
        if _is_message(parts[0]):
            return (("a.__class__ is tuple or a.__class__ is list", _MESSAGES_LINES.format(cls=named(parts[0]))),)
    return ()


def _is_message(hint: Any) -> bool:
    return isinstance(hint, type) and hasattr(hint, "__message__")

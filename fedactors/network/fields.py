"""What arrived is what was declared: each field of a message against its annotation.

The checks of a class are made once, from its annotations. Known are numbers, texts, bytes, None, literals, unions,
messages, tuples and lists (a list arrives as a tuple), mappings, `Any`, and arrays with the kind of number
(``NDArray[np.floating]``) and the number of dimensions (``np.ndarray[tuple[int, int], ...]``) that they state.
An int is taken for a float, as everywhere in Python; a bool for neither.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Wrong = tuple[str, Any, str]
"""Where in a message something is not as declared, what is there, and what is declared."""
Check = Callable[[Any], Wrong | None]
Checks = tuple[tuple[str, frozenset[type], Check], ...]
"""Per field: its name, the classes that need no further look, and how to look at the others."""

_NOTHING: frozenset[type] = frozenset()
_SCALARS: dict[Any, frozenset[type]] = {
    int: frozenset({int}),
    float: frozenset({float, int}),
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
    hints = typing.get_type_hints(cls)
    own = vars(cls).get("__annotations__", {})
    # a class of a script travels to Ray's processes without the names that its annotations, being texts, stand on
    own.update({name: hints[name] for name in own})
    for name, hint in hints.items():
        try:
            found.append((name, *_of(hint)))
        except UnknownAnnotation as error:
            raise UnknownAnnotation(f"{cls.__qualname__}.{name}: {error}") from None
    _CHECKS[cls] = tuple(found)
    return _CHECKS[cls]


def _of(hint: Any) -> tuple[frozenset[type], Check]:
    """Return the classes that an annotation takes without another look, and the check of the others."""
    classes = _SCALARS.get(hint)
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
    if isinstance(hint, type) and hasattr(hint, "__message__"):
        return _NOTHING, lambda item: wrong_in(item) if item.__class__ is hint else ("", item, _text(hint))
    raise UnknownAnnotation(f"{_text(hint)} cannot be checked when a message arrives; see fedactors.network.fields")


def check_of(hint: Any) -> Check:
    """Return the check of one annotation.

    Raises:
        UnknownAnnotation: it is of no kind that is known here.
    """
    classes, check = _of(hint)
    return lambda item: None if item.__class__ in classes else check(item)


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
    shape, dtype = parts
    sizes = typing.get_args(shape)
    ndim = len(sizes) if sizes and Ellipsis not in sizes else None
    kinds = _kinds(typing.get_args(dtype)[0] if typing.get_args(dtype) else Any)

    def check(item: Any) -> Wrong | None:
        if item.__class__ is np.ndarray and issubclass(item.dtype.type, kinds) and ndim in (None, item.ndim):
            return None
        return "", item, _text(hint)

    return check


def _kinds(hint: Any) -> tuple[type, ...]:
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

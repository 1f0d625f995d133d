"""Stable names of the classes that frames and checkpoints hold: ``mtcd/Token``, which is no path of Python's.

A name is a namespace and the class's own name. The namespace is the protocol (in ``protocols`` the folder's name, of a
third party the package that has a module `plugin`), ``fedactors``, else the class's module. A class may move to another
file of its namespace. One that moves further, or gets another name, keeps the old one:
``@message(name="mtcd/Token", reveals=...)``. A script's classes are of ``__main__``.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import Any

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
    namespace, slash, own = name.partition("/")
    if not (namespace and slash and own and name.isprintable()):
        raise TypeError(f"{_place(cls)}: name: {name!r} is not allowed: give 'namespace/ClassName'")
    known = _CLASSES.get(name, cls)
    if _place(known) != _place(cls):
        raise TypeError(f"{_place(cls)}: {_place(known)} has the name {name!r}: give one of them another with name=")
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
    elif parts[0] == "fedactors":
        namespace = "fedactors"
    elif parts[0] == "protocols" and len(parts) > 2:
        namespace = parts[1]
    else:
        packages = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
        namespace = next(filter(_has_plugin, packages), module)
    return f"{namespace}/{cls.__qualname__}"


def _has_plugin(package: str) -> bool:
    folders = getattr(sys.modules.get(package), "__path__", ())
    return PathFinder.find_spec(f"{package}.plugin", list(folders)) is not None


def _module(cls: type) -> str:
    return _SCRIPT if cls.__module__ in _SCRIPTS else cls.__module__


def _place(cls: type) -> str:
    return f"{_module(cls)}.{cls.__qualname__}"

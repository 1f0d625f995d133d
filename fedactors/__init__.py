"""fedactors: a Ray actor framework for federated learning across organisations.

Importing this package loads neither torch nor ray: each public name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "load_part": "fedactors.api",
}
"""Each public name, and the module that defines it."""


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'fedactors' has no attribute {name!r}")

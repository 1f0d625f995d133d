"""Facts about the machine and the installed versions, without anything that could be a secret."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

_PACKAGES = (
    "fedactors",
    "ray",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "networkx",
    "opacus",
    "pyarrow",
    "pydantic",
    "duckdb",
)


def describe_environment() -> dict[str, Any]:
    """Return versions and host facts: no variable of the environment, no user name, no command line."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None

"""The files that somebody's own data lie in, by their content: a run that goes on goes on with the rows that it had."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


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

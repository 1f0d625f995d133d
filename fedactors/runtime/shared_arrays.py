"""Large arrays between processes of one host without pipes: written once to shared memory, mapped by who reads.

    sender: share(value, folder) --> small tagged value --> pipe --> receiver: attach(value)

A file lives until the receiver has mapped it (results) or the sender's array is gone (arguments, which are often the
same model for many tasks). Everything lies in one folder, which whoever made it removes.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import weakref
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

LEAST_BYTES = 1 << 16
"""Smaller arrays travel faster through the pipe."""
MEMORY_FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else None
_number = itertools.count()


@dataclass(frozen=True)
class Placed:
    """Where the bytes of an array lie."""

    path: str
    dtype: str
    shape: tuple[int, ...]


def place(array: np.ndarray, folder: str) -> Placed:
    """Write an array into a new file."""
    path = os.path.join(folder, f"{os.getpid()}-{next(_number)}")
    with open(path, "wb", buffering=0) as stream:
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while view:
            view = view[stream.write(view) :]
    return Placed(path, array.dtype.str, array.shape)


def mapped(placed: Placed) -> np.ndarray:
    """Return the array, read-only, its bytes shared with all who map them."""
    with open(placed.path, "rb") as stream:
        memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memoryview(memory).toreadonly(), placed.dtype).reshape(placed.shape)


def is_large(value: Any) -> bool:
    """Tell whether a value is an array that shared memory is worth it for."""
    return isinstance(value, np.ndarray) and value.nbytes >= LEAST_BYTES and value.dtype.kind in "biufc"


class Arguments:
    """The sender's side for arguments: a read-only array that is sent again is not written again."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._known: dict[int, Placed] = {}

    def share(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return `args` with each large array among them replaced by its place."""
        return tuple(self._share(value) if is_large(value) else value for value in args)

    def _share(self, array: np.ndarray) -> Any:
        if array.flags.writeable:
            return array
        placed = self._known.get(id(array))
        if placed is None:
            placed = self._known[id(array)] = place(array, self._folder)
            weakref.finalize(array, self._forget, id(array), placed.path)
        return placed

    def _forget(self, identity: int, path: str) -> None:
        self._known.pop(identity, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@lru_cache(maxsize=4)
def _mapped_before(placed: Placed) -> np.ndarray:
    return mapped(placed)


def call(folder: str, function: Any, args: tuple[Any, ...]) -> Any:
    """Run `function` in the receiving process, on mapped arguments; large arrays of its result are placed."""
    result = function(*(_mapped_before(value) if isinstance(value, Placed) else value for value in args))
    if is_large(result):
        return place(result, folder)
    if type(result) is tuple:
        return tuple(place(value, folder) if is_large(value) else value for value in result)
    return result


def take(result: Any) -> Any:
    """Map the large arrays of a result; their files are gone as soon as they are mapped."""
    if isinstance(result, Placed):
        return _take(result)
    if type(result) is tuple:
        return tuple(_take(value) if isinstance(value, Placed) else value for value in result)
    return result


def _take(placed: Placed) -> np.ndarray:
    array = mapped(placed)
    os.unlink(placed.path)
    return array

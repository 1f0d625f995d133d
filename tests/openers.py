"""Which processes open a file, whatever reads it: fanotify(7), for which a process needs CAP_SYS_ADMIN."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_ADD, _OPEN, _HERE = 1, 0x20, -100
_EVENT = struct.Struct("=IBBHQii")


def _begin() -> int:
    return int(_LIBC.fanotify_init(0, os.O_RDONLY)) if hasattr(_LIBC, "fanotify_init") else -1


def may_watch() -> bool:
    descriptor = _begin()
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0


@contextmanager
def openers(paths: list[Path]) -> Iterator[dict[str, set[int]]]:
    """Collect which processes open which of these files (by path) while the block runs."""
    descriptor, done = _begin(), os.eventfd(0)
    for path in paths:
        if _LIBC.fanotify_mark(descriptor, _ADD, ctypes.c_uint64(_OPEN), _HERE, str(path).encode()):
            raise OSError(ctypes.get_errno(), str(path))
    found: dict[str, set[int]] = {str(path.resolve()): set() for path in paths}

    def collect() -> None:
        while True:
            ready, _, _ = select.select([descriptor, done], [], [])
            if descriptor not in ready:
                return
            events = os.read(descriptor, 65536)
            while events:
                length, _, _, _, _, file, process = _EVENT.unpack_from(events)
                found[os.readlink(f"/proc/self/fd/{file}")].add(process)
                os.close(file)
                events = events[length:]

    watch = threading.Thread(target=collect)
    watch.start()
    try:
        yield found
    finally:
        os.eventfd_write(done, 1)
        watch.join()
        os.close(descriptor)
        os.close(done)

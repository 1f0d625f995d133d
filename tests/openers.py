"""Which processes open a file: fanotify(7) tells it, whatever reads them, to a process with CAP_SYS_ADMIN.

Without that capability audit hooks of Python, in this process and in the workers of the tests' Ray cluster, tell which
open a file through Python; what DuckDB opens by itself they do not see.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.forked_workers import WATCH, watch_openings

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
    """Collect which processes open which of these files (by path) while the block runs; see the module."""
    with (told_by_kernel if may_watch() else told_by_python)(paths) as found:
        yield found


@contextmanager
def told_by_python(paths: list[Path]) -> Iterator[dict[str, set[int]]]:
    """As `openers`, by audit hooks."""
    found: dict[str, set[int]] = {str(path.resolve()): set() for path in paths}
    order = Path(os.environ[WATCH])
    log = order.with_suffix(".log")
    log.write_text("")
    order.write_text(json.dumps({"files": list(found), "log": str(log)}))
    watch_openings(order)
    try:
        yield found
    finally:
        order.unlink()
        for line in log.read_text().splitlines():
            process, path = line.split(" ", 1)
            found[path].add(int(process))


@contextmanager
def told_by_kernel(paths: list[Path]) -> Iterator[dict[str, set[int]]]:
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

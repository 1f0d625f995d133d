"""DuckDB over tables that are in memory.

To open a database takes longer than to read a small table, so each process keeps one for each choice of settings;
every use gets a connection of its own, whose registered tables no other sees.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def memory_database(**settings: str | int | bool) -> Iterator[Any]:
    """Yield a connection to a database in memory with these settings."""
    # its threads do not survive a fork: a forked process opens its own
    with _database(os.getpid(), tuple(sorted(settings.items()))).cursor() as connection:
        yield connection


@functools.lru_cache(maxsize=8)
def _database(process: int, settings: tuple[tuple[str, str | int | bool], ...]) -> Any:
    import duckdb

    return duckdb.connect(":memory:", config=dict(settings))


atexit.register(_database.cache_clear)  # DuckDB complains of what is open when Python is gone

"""The wall clock of a run on Ray, continued through a resume."""

from __future__ import annotations

import asyncio
import time

from fedactors.runtime.base import Clock


class WallClock(Clock):
    """Seconds since the run began, `scale` wall seconds each, `offset` seconds ahead when a run goes on."""

    def __init__(self, start: float, offset: float = 0.0, scale: float = 1.0) -> None:
        self._start = start
        self._offset = offset
        self._scale = scale

    def begin(self, start: float) -> None:
        """Count from `start` (by the wall clock) on."""
        self._start = start

    def now(self) -> float:
        """Return the present time."""
        return (time.time() - self._start) / self._scale + self._offset

    async def sleep(self, seconds: float, key: str | None = None) -> None:
        """See `Clock.sleep`; a keyed wait is not continued across a resume, its loop asks for it again."""
        await asyncio.sleep(seconds * self._scale)

"""What every process of a run on Ray is told, and its clock."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fedactors.network.links import Network
from fedactors.runtime.base import Clock, CostModel


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


@dataclass(frozen=True)
class Settings:
    """What every process of a run must know."""

    seed: int
    start: float
    offset: float
    reproducible_noise: bool
    call_timeout: float
    use_sockets: bool
    keep_rows: bool
    network: Network | None
    costs: CostModel | None
    scale: float
    script_types: tuple[type, ...] = ()
    """Messages and plain values that the driver's own script declares: other processes cannot import them."""

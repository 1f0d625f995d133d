"""Those who have connected to a site or a relay and not yet proved who they are: how many may be, what is written.

Whoever reaches a port may connect again and again, and each time be refused. That must cost neither memory, nor disk,
nor the connections of others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

MOST, MOST_OF_ADDRESS = 256, 32
LINES_PER_MINUTE = 60
"""Refusals that are written each for itself; what is more is counted, in one line."""


class Strangers:
    """See the module.

    Args:
        write: takes who was refused, and why, for the log.
        most, most_of_address: that may be at a time, in all and from one address.
        clock: in seconds.
    """

    def __init__(
        self,
        write: Callable[[str, str], None],
        most: int = MOST,
        most_of_address: int = MOST_OF_ADDRESS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._most, self._most_of_address = most, most_of_address
        self._clock = clock
        self._here: Counter[str] = Counter()
        self._lines = float(LINES_PER_MINUTE)
        self._seen = clock()
        self._unwritten = 0
        self._last = ""

    def comes(self, address: str) -> bool:
        """Say whether somebody may stay until they have said who they are; `goes` is told when they have."""
        if self._here.total() >= self._most or self._here[address] >= self._most_of_address:
            self.refused(f"somebody at {address}", "comes while there are too many who have not said who they are")
            return False
        self._here[address] += 1
        return True

    def goes(self, address: str) -> None:
        """Hear that somebody is known, or gone."""
        self._here[address] -= 1
        if not self._here[address]:
            del self._here[address]

    def refused(self, who: str, why: str) -> None:
        """Write down that somebody was refused, or count it."""
        self.look()
        if self._lines < 1 or self._unwritten:
            self._unwritten, self._last = self._unwritten + 1, who
            return
        self._lines -= 1
        self._write(who, why)

    def look(self) -> None:
        """Write how many were counted, once there is room for a line."""
        now = self._clock()
        self._lines = min(LINES_PER_MINUTE, self._lines + (now - self._seen) * LINES_PER_MINUTE / 60)
        self._seen = now
        if self._unwritten and self._lines >= LINES_PER_MINUTE / 6:
            self._lines -= 1
            count, self._unwritten = self._unwritten, 0
            self._write("others", f"{count} more were refused, the last of them {self._last}")

"""Live progress on standard error: a moving line on a terminal, one plain line a round elsewhere, or nothing.

Nothing here ever writes to standard output, which belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from fedactors.records.metrics import shown_metric


@dataclass(frozen=True, kw_only=True)
class RoundProgress:
    """What is shown after a round; ``epsilon`` is the privacy budget spent so far, if there is one."""

    round: int
    metrics: Mapping[str, Any]
    bytes: int = 0
    epsilon: float | None = None


class Progress(Protocol):
    """Shows how far a run has come."""

    def update(self, state: RoundProgress) -> None:
        """Show one finished round."""

    def close(self) -> None:
        """Stop showing."""


class NoProgress:
    """Shows nothing."""

    def update(self, state: RoundProgress) -> None:
        """Take a round and say nothing."""

    def close(self) -> None:
        """Do nothing."""


class Pace:
    """Counts rounds and seconds since the first finished round: before it, processes were starting."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._done = -1

    def step(self, now: float) -> tuple[int, float]:
        """Note that a round is finished; return the rounds after the first one and the seconds that they took."""
        self._first = now if self._first is None else self._first
        self._done += 1
        return self._done, now - self._first


class PlainProgress:
    """Writes one line a round."""

    def __init__(
        self,
        total: int | None,
        headline: str,
        stream: TextIO,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._headline, self._stream, self._now = total, headline, stream, now
        self._pace = Pace()

    def update(self, state: RoundProgress) -> None:
        """Write the line of one round."""
        print(
            describe(state, self._total, self._headline, *self._pace.step(self._now())), file=self._stream, flush=True
        )

    def close(self) -> None:
        """Do nothing: every line is out."""


class LiveProgress:
    """A bar that moves on a terminal."""

    def __init__(
        self,
        total: int | None,
        headline: str,
        stream: TextIO,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        self._total, self._headline, self._now = total, headline, now
        self._pace = Pace()
        columns = (SpinnerColumn(), BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
        self._bar = Bar(*columns, console=Console(file=stream))
        self._task = self._bar.add_task("starting", total=total)
        self._bar.start()

    def update(self, state: RoundProgress) -> None:
        """Move the bar by one round."""
        text = describe(state, self._total, self._headline, *self._pace.step(self._now()))
        self._bar.update(self._task, description=text, completed=state.round)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._bar.stop()


def open_progress(*, quiet: bool, total: int | None, headline: str, stream: TextIO | None = None) -> Progress:
    """Return the display that fits: none when `quiet`, live on a terminal, plain lines otherwise."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return NoProgress()
    if stream.isatty():
        return LiveProgress(total, headline, stream)
    return PlainProgress(total, headline, stream)


def describe(state: RoundProgress, total: int | None, headline: str, num_done: int, elapsed: float) -> str:
    """Return one line: round, main metric, rounds per second, time to go, bytes, budget.

    Args:
        state: the round just finished.
        total: number of rounds of the whole run, if known.
        headline: name of the main metric; `shown_metric` says what stands for it where it is not measured.
        num_done: rounds finished in this process after its first.
        elapsed: the seconds that they took.
    """
    parts = [f"round {state.round}" + (f"/{total}" if total else "")]
    name = shown_metric(headline, state.metrics)
    if name is not None:
        value = state.metrics[name]
        parts.append(f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}")
    if num_done and elapsed > 0:
        parts.append(f"{num_done / elapsed:.2f} rounds/s")
        if total and total > state.round:
            parts.append(f"{format_seconds((total - state.round) * elapsed / num_done)} to go")
    parts.append(format_bytes(state.bytes))
    if state.epsilon is not None:
        parts.append(f"epsilon {state.epsilon:.3g}")
    return "  ".join(parts)


def format_bytes(count: float) -> str:
    """Return `count` bytes with a decimal unit, such as ``1.5 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Return `seconds` as ``42 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"

"""Every epsilon and mu that a row of a table states, and beside it what it should be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedactors.runs.table import RunRow

RELATIVE = 1e-6
Figures = dict[str, float | None]
"""What a row must state, by key; None: nothing (``none``, ``inf`` or left out)."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One stated figure beside what it should be."""

    table: str
    row: RunRow
    key: str
    stated: float | None
    holds: float | None
    reason: str = ""

    @property
    def difference(self) -> float:
        """Relative; infinite where one of both is nothing."""
        if self.stated is None and self.holds is None:
            return 0.0
        if self.stated is None or self.holds is None:
            return math.inf
        return abs(self.stated - self.holds) / max(abs(self.holds), 1e-12)

    @property
    def agrees(self) -> bool:
        """Whether it is what it should be."""
        return not self.reason and self.difference <= RELATIVE

    def __str__(self) -> str:
        where = f"{self.table}/{self.row.study}/{self.row.name} seed {self.row.seed}: {self.key}"
        return f"{where} {_text(self.stated)} is stated, {self.reason or f'{_text(self.holds)} was computed'}"


def stated(row: RunRow) -> Figures:
    """Return every epsilon and mu of a row by key, but what replays measured."""
    found: Figures = {}
    for group in ("metrics", "extra"):
        found.update(_figures(getattr(row, group), ""))
    return found


def _figures(tree: Any, key: str) -> Iterator[tuple[str, float | None]]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _figures(value, f"{key}/{name}" if key else str(name))
    last = key.rpartition("/")[2]
    is_figure = last in ("mu", "epsilon") or last.endswith(("_mu", "_epsilon"))
    if is_figure and not isinstance(tree, Mapping) and "replay" not in last:
        yield key, number(tree)


def number(value: Any) -> float | None:
    """Return a figure as a number; None where it is none, or infinite."""
    if value in (None, "none", "inf", "Infinity") or not math.isfinite(float(value)):
        return None
    return float(value)


def summary(found: Sequence[Compared]) -> str:
    """Return one line for each kind of figure: how many, how many agree, and the largest difference."""
    kinds: dict[tuple[str, str], list[Compared]] = {}
    for one in found:
        if one.stated is not None or not one.agrees:
            name = one.key.rpartition("/")[2]
            kinds.setdefault((f"{one.table}/{one.row.study}", name), []).append(one)
    lines = [("figures of", "", "stated", "agree", "largest difference")]
    for (study, name), ones in sorted(kinds.items()):
        worst = max(one.difference for one in ones)
        lines.append((study, name, str(len(ones)), str(sum(one.agrees for one in ones)), f"{worst:.1e}"))
    widths = [max(len(line[index]) for line in lines) for index in range(5)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def _text(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.9g}"

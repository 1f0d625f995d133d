"""Forest plots of a protocol's claims: a ratio or a difference a line, its 95 % interval, the aim, the verdict.

Drawn as SVG for pages and PDF for print. A picture's description has the digest of what it shows, so that a test can
tell whether it is current without drawing it: the same numbers give other bytes in another version of matplotlib.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scenarios.headlines import ForestLine

COLOURS = {"confirmed": "#0072B2", "inconclusive": "#8a6d00", "refuted": "#C0392B"}
"""Told apart with any colour vision, and by their markers."""
MARKERS = {"confirmed": "o", "inconclusive": "D", "refuted": "s"}
STYLE: dict[str, Any] = {
    "font.family": "serif",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedactors",
    "pdf.fonttype": 42,
}
_LINE = 0.34
_TITLES = {"ratio": "ratio (below 1: less than the other side)", "points": "difference in percentage points"}
_DESCRIPTION = re.compile(r"lines ([0-9a-f]{32})")
_LARGEST = 6.0
"""Of a ratio; an interval that goes on ends in an arrow."""


def digest(lines: Sequence[ForestLine]) -> str:
    """Return a digest of lines and of how they are drawn."""
    return hashlib.sha256(repr(list(lines)).encode() + Path(__file__).read_bytes()).hexdigest()[:32]


def is_current(path: Path, lines: Sequence[ForestLine]) -> bool:
    """Say whether the SVG at `path` shows these lines."""
    found = _DESCRIPTION.search(path.read_text()) if path.exists() else None
    return found is not None and found[1] == digest(lines)


def draw(path: Path, lines: Sequence[ForestLine]) -> None:
    """Draw lines into an SVG at `path`, and a PDF beside it."""
    panels = {name: [line for line in lines if line.panel == name] for name in ("ratio", "points")}
    panels = {name: found for name, found in panels.items() if found}
    heights = [len(found) + 1.4 for found in panels.values()]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, _LINE * sum(heights) + 0.5), layout="constrained")
        for axes, (name, found) in zip(
            figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights).flat, panels.items(), strict=True
        ):
            _draw_panel(axes, name, found)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Description": f"lines {digest(lines)}"})
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None, "Subject": f"lines {digest(lines)}"})


def _draw_panel(axes: Axes, name: str, lines: Sequence[ForestLine]) -> None:
    ends = [end for line in lines for end in (*line.interval, line.aim, line.value) if end is not None]
    if name == "ratio":
        axes.set_xscale("log")
        kept = [min(end, _LARGEST) for end in ends]
        low, high = min(kept) / 1.15, max([*kept, 1.0]) * 1.15
        ticks = [tick for tick in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5) if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
    else:
        span = max(ends) - min(ends)
        low, high = min([*ends, 0.0]) - 0.05 * span, max([*ends, 0.0]) + 0.05 * span
    axes.set_xlim(low, high)
    axes.axvline(1.0 if name == "ratio" else 0.0, color="0.55", linewidth=0.8, zorder=0)
    for index, line in enumerate(lines):
        _draw_line(axes, len(lines) - index, line, high)
    axes.set_ylim(0.3, len(lines) + 0.7)
    axes.set_yticks([len(lines) - index for index in range(len(lines))], [line.label for line in lines])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(_TITLES[name])
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def _draw_line(axes: Axes, height: int, line: ForestLine, highest: float) -> None:
    colour = COLOURS.get(line.verdict, "0.3")
    low, high = line.interval
    shown = min(high, highest)
    axes.plot([low, shown], [height, height], color=colour, linewidth=1.4)
    if high > highest:
        axes.plot([highest], [height], marker=">", color=colour, markersize=5, clip_on=False)
    axes.plot([min(line.value, highest)], [height], marker=MARKERS.get(line.verdict, "o"), color=colour, markersize=5)
    if line.aim is not None:
        axes.plot([line.aim] * 2, [height - 0.3, height + 0.3], color="black", linewidth=1, linestyle=":")
    said = f"{_number(line.value)} ({_number(low)} to {_number(high)})  {line.verdict}"
    axes.annotate(
        said,
        (1.0, height),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        color=colour,
        fontsize=8,
        va="center",
    )


def _number(value: float) -> str:
    if math.isinf(value):
        return "not reached"
    return f"{value:.2f}" if abs(value) < 9.995 else f"{value:.1f}"

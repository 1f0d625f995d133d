"""The pictures of the report as inline SVG, and pictures of compared runs as files.

- `line_chart`: curves with their bands
- `draw_communication`: bytes between actors, a circle of few actors or a table of shades for many
- `Timeline`: what each actor did in each moment. A moment is a column, in which computing is drawn from the ground up
  and waiting above it, as high as their shares, so that a thousand short computations look like the long one that they
  add up to.
- `plot_comparison`, `write_figures`: by matplotlib, for a paper or a README, and the numbers in them

Colours are CSS variables (``--c0`` to ``--c7``, ``--ink``, ``--grid``), so that the page decides on light or dark.
Texts come from files: `escape` makes sure that nothing of them is markup.
"""

from __future__ import annotations

import csv
import html
import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedactors.errors import BadInput
from fedactors.runs.compare import AXES, Curve, LoadedRun, group_runs, is_of_decades, make_curve, shared_metrics
from fedactors.runs.progress import format_bytes
from fedactors.runs.storage import write_atomic
from fedactors.validation import without_controls


def escape(text: str, quote: bool = True) -> str:
    """Return a text for a page, with entities for what markup is made of and without control characters."""
    return html.escape(without_controls(text), quote)


NUM_COLOURS = 8
AXIS_NAMES = {"seconds": "time, s", "bytes": "sent", "cost_usd": "cost, $"}
"""Axes with their units; a tick of bytes has its own."""
_SHARES = ("auc", "accuracy", "f1")
"""How metrics are called that lie between 0 and 1."""
KIND_COLOURS = {"compute": 0, "wait": 1, "training": 2, "alignment": 3, "evaluation": 7}


_ACRONYMS = {"auc": "AUC", "f1": "F1", "rmse": "RMSE", "mae": "MAE", "r2": "R²", "pr": "PR", "cpu": "CPU", "usd": "USD"}


def metric_title(name: str) -> str:
    """Return a metric's name as an axis has it: "Test AUC" for ``test/auc``."""
    words = re.split(r"[/_]+", name.strip("/_"))
    title = " ".join(_ACRONYMS.get(word, word) for word in words)
    return title[:1].upper() + title[1:]


def colour(index: int) -> str:
    """Return the CSS colour of the series `index`."""
    return f"var(--c{index % NUM_COLOURS})"


def line_chart(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """Return curves with their bands, axes with round ticks, and a legend if there are several.

    What falls by more than two decades is drawn on a logarithmic axis; rounds have whole ticks only.
    """
    width, height, right, top, bottom = 460.0, 290.0, 36.0, 24.0, 46.0
    xs = [x for curve in curves for x in curve.x]
    # a share is never below 0 or above 1, and neither is what is drawn of its deviation
    least, most = (0.0, 1.0) if y_label.endswith(_SHARES) else (-math.inf, math.inf)
    lows = [max(m - s, least) for curve in curves for m, s in zip(curve.mean, curve.std, strict=True)]
    highs = [min(m + s, most) for curve in curves for m, s in zip(curve.mean, curve.std, strict=True)]
    means = [m for curve in curves for m in curve.mean]
    is_log = is_of_decades(curves)
    # "1.25 MB" takes the room of two numbers
    x_ticks = ticks(min(xs), max(xs), 3 if x_label == "bytes" else 5, whole=x_label == "round")
    y_ticks = decades(min(means), max(means)) if is_log else ticks(min(lows), max(highs))
    y_ticks = [tick for tick in y_ticks if least <= tick <= most]
    x_low, x_high = min(*xs, x_ticks[0]), max(*xs, x_ticks[-1])
    y_low, y_high = (y_ticks[0], y_ticks[-1]) if is_log else (min(*lows, y_ticks[0]), max(*highs, y_ticks[-1]))

    # a letter is at most this wide; names of ticks are not cut off
    left = max(48.0, 12.0 + 7.5 * max(len(_tick_text(tick, y_label)) for tick in y_ticks))

    def px(x: float) -> float:
        return left + (x - x_low) / (x_high - x_low) * (width - left - right)

    def py(y: float) -> float:
        share = math.log(max(y, y_low) / y_low) / math.log(y_high / y_low) if is_log else (y - y_low) / (y_high - y_low)
        return height - bottom - min(share, 1.0) * (height - top - bottom)

    title = f"{y_label} against {x_label}"
    parts = [open_svg(width, height, title)]
    for tick in x_ticks:
        parts.append(f'<line class="grid" x1="{px(tick):.1f}" x2="{px(tick):.1f}" y1="{top}" y2="{height - bottom}"/>')
        parts.append(text(px(tick), height - bottom + 19, _tick_text(tick, x_label), "middle"))
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{py(tick):.1f}" y2="{py(tick):.1f}"/>')
        parts.append(text(left - 6, py(tick) + 4, _tick_text(tick, y_label), "end"))
    parts.append(text((left + width - right) / 2, height - 7, AXIS_NAMES.get(x_label, x_label), "middle"))
    parts.append(text(left, top - 10, f"{metric_title(y_label)}{' (logarithmic)' if is_log else ''}", "start"))
    for index, curve in enumerate(curves):
        above = [(px(x), py(min(m + s, most))) for x, m, s in zip(curve.x, curve.mean, curve.std, strict=True)]
        below = [(px(x), py(max(m - s, least))) for x, m, s in zip(curve.x, curve.mean, curve.std, strict=True)]
        if any(curve.std):
            parts.append(
                f'<polygon points="{_points([*above, *reversed(below)])}" fill="{colour(index)}" opacity="0.18"/>'
            )
        middle = [(px(x), py(m)) for x, m in zip(curve.x, curve.mean, strict=True)]
        named = f"<title>{escape(curve.label)}</title>"
        parts.append(f'<polyline class="curve" points="{_points(middle)}" stroke="{colour(index)}">{named}</polyline>')
        if len(middle) <= 30:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour(index)}"/>' for x, y in middle]
    return "".join([*parts, "</svg>"])


_INLINE = {
    'class="grid"': 'stroke="#8884"',
    'class="curve"': 'fill="none" stroke-width="2"',
    "var(--c0)": "#2563eb",
    "<text": '<text fill="currentColor" font-size="13"',
    "<svg": '<svg style="max-width:460px;display:block"',
}
"""What the style of a page says elsewhere, as attributes."""


def inline_chart(curve: Curve, metric: str) -> str:
    """Return one curve over the rounds as a picture that needs no page around it, for the cells of notebooks."""
    drawn = line_chart([curve], "round", metric)
    for styled, attributes in _INLINE.items():
        drawn = drawn.replace(styled, attributes)
    return drawn


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts ``client-2`` before ``client-10``."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def kind_index(kind: str) -> int:
    """Return the colour index of a kind of span."""
    return KIND_COLOURS.get(kind, 4 + sum(kind.encode()) % 3)


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Return about `count` round numbers, or `whole` ones, that span [low, high]; never fewer than two."""
    if high <= low:
        margin = 1.0 if whole else abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = max((high - low) / count, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(
        factor * power
        for factor in ((1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10))
        if factor * power >= raw * (1 - 1e-9)
    )
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def decades(low: float, high: float) -> list[float]:
    """Return powers of ten that span [low, high], both positive: every one, or every few if there are many."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    step = max(1, math.ceil((last - first) / 6))
    return [10.0**power for power in range(first, last + step, step)]


def _tick_text(value: float, label: str) -> str:
    if label == "bytes" or label.endswith("_bytes"):
        return format_bytes(value)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:g}"


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def open_svg(width: float, height: float, title: str) -> str:
    """Return the opening tag of a picture."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title, quote=True)}">'


def text(x: float, y: float, written: str, anchor: str, told: str = "") -> str:
    """Return a text; `told` is shown when it is pointed at, for a name that was cut."""
    title = f"<title>{escape(told)}</title>" if told and told != written else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{title}{escape(written)}</text>'


MAX_CIRCLE = 12
"""Actors above which names and arrows of a circle would lie on each other."""
MAX_MATRIX = 48
"""Actors above which the names at a table could not be read; the actors of a party are one then."""

_NUMBER = re.compile(r"[-_]?\d+$")
_LETTER = 8.4
"""Width of a letter; on a phone they are larger than on a screen."""
_CORNER = (28.0, 26.0)
"""Where the middle's name stands, after a spot of its colour, if the arrows leave no room beside it."""
_ALONG = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73, 0.2, 0.8)
"""Shares of an arrow at which its label is tried."""
Edges = Mapping[tuple[str, str], int]
Point = tuple[float, float]
Box = tuple[float, float, float, float]


def draw_communication(edges: Edges) -> str:
    """Return the picture of bytes by (sender, receiver), grouped by party where there are too many actors."""
    drawn = edges
    if len(_names(edges)) > MAX_CIRCLE:
        drawn = _around_hub(edges)
    if len(_names(drawn)) > MAX_MATRIX:
        drawn = _grouped(edges, lambda name: name.partition("/")[0])
    if len(_names(drawn)) > MAX_MATRIX:
        drawn = _largest(drawn)
    return talk_circle(drawn) if len(_names(drawn)) <= MAX_CIRCLE else talk_matrix(drawn)


def _names(edges: Edges) -> list[str]:
    return sorted({name for edge in edges for name in edge}, key=natural)


def _grouped(edges: Edges, called: Callable[[str], str]) -> Edges:
    """Return the bytes between actors that are called otherwise, several of them by one name."""
    found: dict[tuple[str, str], int] = {}
    for (sender, receiver), count in edges.items():
        edge = (called(sender), called(receiver))
        found[edge] = found.get(edge, 0) + count
    return found


def _around_hub(edges: Edges) -> Edges:
    """Put actors that all talk with one other only, such as a server's clients, under one name for each kind."""
    names = _names(edges)
    hub = next((name for name in names if all(name in edge for edge in edges)), None)
    if hub is None:
        return edges
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(name if name == hub else _NUMBER.sub("", name), []).append(name)
    called = {name: f"{len(same)} × {kind}" if len(same) > 1 else name for kind, same in kinds.items() for name in same}
    return _grouped(edges, called.__getitem__)


def _largest(edges: Edges) -> Edges:
    """Put all but the actors with the most bytes under one name."""
    totals: dict[str, int] = {}
    for edge, count in edges.items():
        for name in edge:
            totals[name] = totals.get(name, 0) + count
    kept = set(sorted(totals, key=lambda name: (-totals[name], natural(name)))[: MAX_MATRIX - 1])
    others = f"{len(totals) - len(kept)} others"
    return _grouped(edges, lambda name: name if name in kept else others)


def talk_matrix(edges: Edges) -> str:
    """Return a table of senders and receivers whose cells are the darker the more bytes went that way."""
    names = _names(edges)
    cell, top, left = max(9.0, 16.0 - len(names) / 12), 110.0, 150.0
    width, height = left + cell * len(names) + 40, top + cell * len(names) + 24
    most = math.log1p(max(edges.values(), default=0)) or 1.0
    parts = [open_svg(width, height, "who talks to whom"), text(left - 6, top - 8, "from ↓  to →", "end")]
    size = f"font-size:{min(11.0, cell - 1):.0f}px"
    for index, name in enumerate(names):
        at = cell * (index + 0.5)
        short = name if len(name) <= 20 else f"{name[:19]}…"
        parts.append(f'<g style="{size}">{text(left - 4, top + at + cell / 3, short, "end", name)}</g>')
        turned = f"translate({left + at + cell / 3:.1f} {top - 4}) rotate(-60)"
        parts.append(f'<g style="{size}" transform="{turned}">{text(0, 0, short, "start", name)}</g>')
    parts.append(f'<rect class="lane" x="{left}" y="{top}" width="{cell * len(names)}" height="{cell * len(names)}"/>')
    positions = {name: index for index, name in enumerate(names)}
    for (sender, receiver), count in sorted(edges.items()):
        x, y = left + cell * positions[receiver], top + cell * positions[sender]
        shade = 0.15 + 0.85 * math.log1p(count) / most
        parts.append(
            f'<rect class="edge-cell" x="{x:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" height="{cell - 1:.1f}" '
            f'fill="{colour(0)}" opacity="{shade:.2f}"><title>{_told(sender, receiver, count)}</title></rect>'
        )
    return "".join([*parts, "</svg>"])


def talk_circle(edges: Edges) -> str:
    """Return actors on a circle, those of a party beside each other, and an arrow for each flow, as wide as it asks."""
    names = _names(edges)
    height, radius = 440.0, 165.0
    # a name beside the outermost place ends within the picture
    width = max(640.0, 2 * (1.25 * radius + 18 + _LETTER * max((len(name) for name in names), default=0)))
    hub = _hub(edges, names)
    ring = [name for name in names if name != hub]
    angles = {name: 2 * math.pi * index / len(ring) - math.pi / 2 for index, name in enumerate(ring)}
    positions = {
        name: (width / 2 + 1.25 * radius * math.cos(angle), height / 2 + radius * math.sin(angle))
        for name, angle in angles.items()
    }
    if hub is not None:
        positions[hub] = (width / 2, height / 2)
    parts = [open_svg(width, height, "who talks to whom")]
    parts.append(
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--ink)"/></marker></defs>'
    )
    most = max(edges.values(), default=1) or 1
    bend, widest = 44.0 * min(1.0, 5 / len(names)), 5 * min(1.0, 24 / len(edges)) if edges else 0.0
    curves = {(a, b): _Curve.between(positions[a], positions[b], bend) for a, b in sorted(edges)}
    for (sender, receiver), curve in curves.items():
        count = edges[sender, receiver]
        parts.append(
            f'<path class="edge" d="{curve.path}" stroke-width="{1 + widest * math.sqrt(count / most):.1f}" '
            f'marker-end="url(#tip)"><title>{_told(sender, receiver, count)}</title></path>'
        )
    parties = {party: index for index, party in enumerate(dict.fromkeys(name.partition("/")[0] for name in names))}
    fills = {name: colour(parties[name.partition("/")[0]]) for name in names}
    drawn = [curve.at(share / 40) for curve in curves.values() for share in range(41)]
    called: list[str] = []
    taken: list[Box] = []
    for name, (x, y) in positions.items():
        at, anchor = _beside((x, y), angles[name], 14) if name != hub else _hub_name(name, (x, y), len(ring), drawn)
        if at == _CORNER:
            called.append(text(at[0] - 14, at[1], "●", "middle").replace("<text", f'<text style="fill:{fills[name]}"'))
        called.append(text(*at, name, anchor))
        taken += [_box(*at, name, anchor), (x - 10, y - 10, x + 10, y + 10)]
    labels = _labels(edges, curves, drawn, taken, hub)
    # where some have no room, a few would look like all: each arrow tells its bytes when pointed at
    if len(labels) == len(edges) or len(edges) <= MAX_CIRCLE:
        parts += labels
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{fills[name]}"/>' for name, (x, y) in positions.items()]
    return "".join([*parts, *called, "</svg>"])


@dataclass(frozen=True)
class _Curve:
    """An arrow: a quadratic curve that bends to its left, so that the two directions of a pair lie apart."""

    start: Point
    control: Point
    end: Point
    outward: Point
    """Of length 1: where the curve bends to."""

    @classmethod
    def between(cls, a: Point, b: Point, bend: float) -> _Curve:
        (x1, y1), (x2, y2) = a, b
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        control = ((x1 + x2) / 2 - uy * bend, (y1 + y2) / 2 + ux * bend)
        return cls((x1 + ux * 14, y1 + uy * 14), control, (x2 - ux * 14, y2 - uy * 14), (-uy, ux))

    @property
    def path(self) -> str:
        (x1, y1), (cx, cy), (x2, y2) = self.start, self.control, self.end
        return f"M{x1:.1f} {y1:.1f}Q{cx:.1f} {cy:.1f} {x2:.1f} {y2:.1f}"

    def at(self, share: float) -> Point:
        """Return the point after this share of the curve."""
        a, b, c = (1 - share) ** 2, 2 * share * (1 - share), share**2
        (x1, y1), (cx, cy), (x2, y2) = self.start, self.control, self.end
        return a * x1 + b * cx + c * x2, a * y1 + b * cy + c * y2


def _beside(position: Point, angle: float, gap: float) -> tuple[Point, str]:
    """Return where a text begins that stands in this direction of a place, and its anchor."""
    away_x, away_y = math.cos(angle), math.sin(angle)
    anchor = "start" if away_x > 0.3 else "end" if away_x < -0.3 else "middle"
    return (position[0] + gap * away_x, position[1] + (gap + 4) * away_y + 4), anchor


def _hub_name(name: str, position: Point, size: int, drawn: Sequence[Point]) -> tuple[Point, str]:
    """Return where the middle's name stands: between two neighbours of a ring of this size, else in the corner."""
    between = [math.pi * (2 * index + 1) / size - math.pi / 2 for index in range(size)]
    tried = [_beside(position, angle, gap) for gap in (16.0, 26.0, 40.0, 60.0) for angle in between]
    return next((one for one in tried if not _touches(_box(*one[0], name, one[1]), drawn)), (_CORNER, "start"))


def _touches(box: Box, drawn: Sequence[Point]) -> bool:
    left, top, right, bottom = box
    return any(left - 3 < x < right + 3 and top - 1 < y < bottom + 1 for x, y in drawn)


def _labels(
    edges: Edges,
    curves: Mapping[tuple[str, str], _Curve],
    drawn: Sequence[Point],
    taken: list[Box],
    hub: str | None,
) -> list[str]:
    """Return the bytes of each arrow, written beside it where they touch no arrow, name or other label."""
    made = []
    for (sender, receiver), curve in curves.items():
        said, (out_x, out_y) = format_bytes(edges[sender, receiver]), curve.outward
        # nearer to the ring first, where there is room
        order = sorted(_ALONG, key=lambda at: abs(at - (0.62 if sender == hub else 0.38 if receiver == hub else 0.5)))
        for share, gap in itertools.product(order, (9.0, 14.0, -9.0)):
            x, y = curve.at(share)
            right_of = math.copysign(out_x, out_x * gap)
            anchor = "start" if right_of > 0.3 else "end" if right_of < -0.3 else "middle"
            at = (x + gap * out_x, y + gap * out_y + 4 + math.copysign(4, gap) * out_y)
            left, top, right, bottom = box = _box(*at, said, anchor)
            free = all(right < a or c < left or bottom < b or d < top for a, b, c, d in taken)
            if free and not _touches(box, drawn):
                made.append(text(*at, said, anchor))
                taken.append(box)
                break
    return made


def _box(x: float, y: float, said: str, anchor: str) -> Box:
    """Return what a text covers: left, top, right, bottom."""
    long = _LETTER * len(said)
    left = x - {"start": 0.0, "middle": long / 2, "end": long}[anchor]
    return left, y - 11, left + long, y + 3


def _told(sender: str, receiver: str, count: int) -> str:
    return escape(f"{sender} to {receiver}: {format_bytes(count)}")


def _hub(edges: Edges, names: Sequence[str]) -> str | None:
    """Return the one actor that talks with all others, if it alone does and there are enough of them for a ring."""
    partners: dict[str, set[str]] = {name: set() for name in names}
    for sender, receiver in edges:
        partners[sender].add(receiver)
        partners[receiver].add(sender)
    hubs = [name for name in names if len(partners[name] - {name}) == len(names) - 1]
    return hubs[0] if len(hubs) == 1 and len(names) > 3 else None


NUM_MOMENTS = 1600
"""Columns; a zoomed page shows them apart."""
MAX_LANES = 60
PHASE = "phase"
"""Kind of the driver's spans; each is drawn under its own name."""
MEANINGS = {
    "compute": "a function of the actor runs",
    "wait": "the actor can do nothing until a message comes",
    "overhead": "processor time beside computing, such as packing messages",
    "train": "a rented machine trains",
    "given up": "a rented machine's training that came to nothing",
    "alignment": "the parties find out which rows or nodes they share, and in which order",
    "introductions": "each client is told what training needs, and says what it has",
    "training": "the driver waits for training's rounds",
    "evaluation": "the model is measured, which is no part of training",
}
"""What kinds of spans and phases are."""
_ROOMY = 24
"""Lanes that are drawn in full height: more of them would not fit a screen."""
_LEVELS = 12
"""Heights that are told apart: neighbours of the same height are drawn as one."""


class Timeline:
    """Seconds of each kind in each moment of each actor.

    Args:
        start: the first moment's beginning, in seconds of the run's clock.
        end: the last moment's end, later than `start`.
    """

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end
        self._width = (end - start) / NUM_MOMENTS
        self.actors: dict[str, dict[str, np.ndarray]] = {}

    @classmethod
    def of(cls, spans: Iterable[Mapping[str, Any]], until: float = math.inf) -> Timeline | None:
        """Sum up spans (actor, kind, start, end), given twice over by an iterable; None if there are none.

        What was under way at `until`, the run's last second, is drawn to there: a virtual clock says when work would
        have been done that the run did not wait for.
        """
        first = [(span["start"], min(span["end"], until)) for span in spans if span["start"] <= until]
        if not first:
            return None
        start, end = min(low for low, _ in first), max(high for _, high in first)
        made = cls(start, end if end > start else start + 1e-9)
        for span in spans:
            if span["start"] <= until:
                kind = span["label"] if span["kind"] == PHASE else span["kind"]
                made.add(span["actor"], kind, span["start"], min(span["end"], until))
        return made

    def add(self, actor: str, kind: str, start: float, end: float) -> None:
        """Add a span."""
        kinds = self.actors.setdefault(actor, {})
        if kind not in kinds:
            kinds[kind] = np.zeros(NUM_MOMENTS)
        low, high = (start - self.start) / self._width, (end - self.start) / self._width
        first, last = min(int(low), NUM_MOMENTS - 1), min(int(high), NUM_MOMENTS - 1)
        seconds = kinds[kind]
        if first == last:
            seconds[first] += end - start
            return
        seconds[first] += (first + 1 - low) * self._width
        seconds[first + 1 : last] += self._width
        seconds[last] += (high - last) * self._width

    @property
    def kinds(self) -> list[str]:
        """All kinds, computing first and waiting last."""
        found = {kind for kinds in self.actors.values() for kind in kinds}
        return sorted(found, key=lambda kind: (kind != "compute", kind == "wait", kind))

    def seconds(self, actor: str, kind: str) -> float:
        """Return how long an actor did something."""
        found = self.actors[actor].get(kind)
        return 0.0 if found is None else float(found.sum())

    def draw(self) -> str:
        """Return the picture: a lane for each actor, of the `MAX_LANES` busiest."""
        names = sorted(self.actors, key=lambda name: -sum(self.seconds(name, kind) for kind in self.kinds))
        names = sorted(names[:MAX_LANES], key=natural)
        row, letters = (22.0, "") if len(names) <= _ROOMY else (14.0, ' style="font-size:9.5px"')
        left, width, bottom = 150.0, 980.0, 30.0
        height = row * len(names) + bottom
        scale = (width - left - 24) / NUM_MOMENTS
        parts = [open_svg(width, height, "timeline of actors")]
        for tick in ticks(self.start, self.end):
            if self.start <= tick <= self.end:
                x = left + (tick - self.start) / self._width * scale
                parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - bottom}"/>')
                parts.append(text(x, height - bottom + 14, f"{tick:g} s", "middle"))
        for index, name in enumerate(names):
            base = row * (index + 1) - 3
            called = text(left - 6, base - row / 2 + 7, name if len(name) <= 22 else f"{name[:21]}…", "end", name)
            parts.append(f"<g{letters}>{called}</g>")
            told = ", ".join(f"{kind} {self.seconds(name, kind):.4g} s" for kind in self.actors[name])
            parts.append(f'<g transform="translate({left} {base})"><title>{escape(f"{name}: {told}")}</title>')
            parts.append(f'<rect class="lane" width="{NUM_MOMENTS * scale:.1f}" height="{row - 5}" y="{5 - row}"/>')
            ground = np.zeros(NUM_MOMENTS)
            for kind in self.kinds:
                if kind not in self.actors[name]:
                    continue
                share = np.minimum(self.actors[name][kind] / self._width, 1 - ground)
                path = "".join(_boxes(ground, share, scale, row - 5))
                if path:
                    parts.append(f'<path fill="{colour(kind_index(kind))}" d="{path}"/>')
                ground = ground + share
            parts.append("</g>")
        return "".join([*parts, "</svg>"])


def _boxes(ground: np.ndarray, share: np.ndarray, scale: float, height: float) -> Iterator[str]:
    """Yield the boxes of one kind, each of neighbours that look the same; what is there at all is seen."""
    low, high = np.round(ground * _LEVELS), np.round((ground + share) * _LEVELS)
    high = np.where((share > 0) & (high == low), low + 1, high)
    edges = np.flatnonzero(np.diff(low, prepend=-1) != 0) if len(low) else np.array([], dtype=int)
    edges = np.union1d(edges, np.flatnonzero(np.diff(high, prepend=-1) != 0))
    for begin, end in zip(edges, [*edges[1:], NUM_MOMENTS], strict=True):
        if share[begin] > 0 or high[begin] > low[begin]:
            bottom, top = -low[begin] / _LEVELS * height, -high[begin] / _LEVELS * height
            yield f"M{begin * scale:.2f} {bottom:.1f}H{end * scale:.2f}V{top:.1f}H{begin * scale:.2f}z"


def plot_comparison(
    runs: Sequence[LoadedRun],
    path: Path,
    *,
    metric: str | None = None,
    axes: Sequence[str] = ("round", "seconds", "bytes"),
) -> Path:
    """Draw `metric` of each group of runs against each of `axes`, with a band of one deviation over seeds.

    Args:
        runs: finished runs.
        path: a .png, .svg or .pdf file.
        metric: name of a metric of the rounds; the first run's main one by default.
        axes: some of round, seconds, bytes, cost_usd.

    Raises:
        BadInput: another kind of file, or a metric that no run recorded.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"--plot: {str(path)!r} is not allowed: a file ending in .png, .svg or .pdf")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

    groups = group_runs(runs)
    name = metric or next(iter(shared_metrics(groups)), "")
    # names of metrics come from files: they are no formulas, and a sign that the font lacks is nobody's trouble
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure = Figure(figsize=(4.2 * len(axes), 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        drawn: list[Curve] = []
        for index, axis in enumerate(axes):
            plot = figure.add_subplot(1, len(axes), index + 1)
            for group in groups:
                curve = make_curve(group, name, axis)
                if curve is None:
                    continue
                drawn.append(curve)
                (line,) = plot.plot(
                    curve.x, curve.mean, label=without_controls(curve.label), marker="." if len(curve.x) < 30 else ""
                )
                low = [m - s for m, s in zip(curve.mean, curve.std, strict=True)]
                high = [m + s for m, s in zip(curve.mean, curve.std, strict=True)]
                plot.fill_between(curve.x, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
            plot.set_xlabel(AXES[axis])
            # "500 kB" takes the room of two numbers, and there is no half of a round
            plot.xaxis.set_major_locator(MaxNLocator(4 if axis == "bytes" else 6, integer=axis == "round"))
            if axis == "bytes":
                plot.xaxis.set_major_formatter(EngFormatter(unit="B"))
            plot.set_ylabel(without_controls(metric_title(name)))
            plot.grid(alpha=0.3)
        if not drawn:
            raise BadInput(f"--metric: {name!r} was recorded in no round of these runs")
        if is_of_decades(drawn):
            for plot in figure.axes:
                plot.set_yscale("log")
                plot.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        figure.axes[0].legend(fontsize="small")
        buffer = io.BytesIO()
        figure.savefig(buffer, format=path.suffix[1:], dpi=144)
    write_atomic(path, buffer.getvalue(), "--plot")
    return path


def write_figures(runs: Sequence[LoadedRun], folder: Path) -> list[Path]:
    """Write every metric of the rounds as <metric>.svg, <metric>.pdf, and <metric>.csv with what is drawn.

    Args:
        runs: finished runs.
        folder: is made if it is not there.

    Raises:
        BadInput: no metric was recorded in any round, or `folder` is a file.
    """
    groups = group_runs(runs)
    metrics = shared_metrics(groups)
    if not metrics:
        raise BadInput("--figures: no metric was recorded in any round of these runs")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--figures: {str(folder)!r} is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for metric in metrics:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", metric)
        axes = [axis for axis in AXES if axis == "round" or any(_moves(make_curve(g, metric, axis)) for g in groups)]
        written += [
            plot_comparison(runs, folder / f"{name}{suffix}", metric=metric, axes=axes) for suffix in (".svg", ".pdf")
        ]
        table = io.StringIO()
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(["runs", "axis", "x", "mean", "std"])
        for group in groups:
            for axis in axes:
                if (curve := make_curve(group, metric, axis)) is not None:
                    points = zip(curve.x, curve.mean, curve.std, strict=True)
                    rows.writerows([group.label, axis, repr(x), repr(m), repr(s)] for x, m, s in points)
        write_atomic(folder / f"{name}.csv", table.getvalue().encode())
        written.append(folder / f"{name}.csv")
    return written


def _moves(curve: Curve | None) -> bool:
    return curve is not None and any(x > 0 for x in curve.x)

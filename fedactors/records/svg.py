"""Small inline SVG pictures for the report: curves, a timeline, and who talks to whom.

Colours are CSS variables (``--c0`` to ``--c7``, ``--ink``, ``--grid``), so that the page decides on light or dark.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape

from fedactors.records.curves import Curve
from fedactors.records.events import Span
from fedactors.records.progress import format_bytes

NUM_COLOURS = 8
KIND_COLOURS = {"compute": 0, "wait": 1, "send": 2}


def colour(index: int) -> str:
    """Return the CSS colour of the series `index`."""
    return f"var(--c{index % NUM_COLOURS})"


def line_chart(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """Return curves with their bands, axes with round ticks, and a title element per curve."""
    width, height, left, right, top, bottom = 460.0, 290.0, 58.0, 36.0, 24.0, 42.0
    xs = [x for curve in curves for x in curve.x]
    lows = [m - s for curve in curves for m, s in zip(curve.mean, curve.std, strict=True)]
    highs = [m + s for curve in curves for m, s in zip(curve.mean, curve.std, strict=True)]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(lows), max(highs))
    x_low, x_high = min(*xs, x_ticks[0]), max(*xs, x_ticks[-1])
    y_low, y_high = min(*lows, y_ticks[0]), max(*highs, y_ticks[-1])

    def px(x: float) -> float:
        return left + (x - x_low) / (x_high - x_low) * (width - left - right)

    def py(y: float) -> float:
        return height - bottom - (y - y_low) / (y_high - y_low) * (height - top - bottom)

    parts = [_open(width, height, f"{y_label} against {x_label}")]
    for tick in x_ticks:
        parts.append(f'<line class="grid" x1="{px(tick):.1f}" x2="{px(tick):.1f}" y1="{top}" y2="{height - bottom}"/>')
        parts.append(_text(px(tick), height - bottom + 14, _tick_text(tick, x_label), "middle"))
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{py(tick):.1f}" y2="{py(tick):.1f}"/>')
        parts.append(_text(left - 6, py(tick) + 4, _tick_text(tick, y_label), "end"))
    parts.append(_text((left + width - right) / 2, height - 6, x_label, "middle"))
    parts.append(_text(left, top - 10, y_label, "start"))
    for index, curve in enumerate(curves):
        above = [(px(x), py(m + s)) for x, m, s in zip(curve.x, curve.mean, curve.std, strict=True)]
        below = [(px(x), py(m - s)) for x, m, s in zip(curve.x, curve.mean, curve.std, strict=True)]
        if any(curve.std):
            parts.append(
                f'<polygon points="{_points([*above, *reversed(below)])}" fill="{colour(index)}" opacity="0.18"/>'
            )
        middle = [(px(x), py(m)) for x, m in zip(curve.x, curve.mean, strict=True)]
        title = f"<title>{escape(curve.label)}</title>"
        parts.append(f'<polyline class="curve" points="{_points(middle)}" stroke="{colour(index)}">{title}</polyline>')
        if len(middle) <= 30:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour(index)}"/>' for x, y in middle]
    return "".join([*parts, "</svg>"])


def timeline(spans: Sequence[Span]) -> str:
    """Return one lane per actor with its spans, over the seconds of the runtime's clock."""
    actors = sorted({span.actor for span in spans}, key=natural)
    row, left, width, bottom = 22.0, 130.0, 920.0, 30.0
    height = row * len(actors) + bottom
    low, high = min(span.start for span in spans), max(span.end for span in spans)
    marks = ticks(low, high)
    low, high = min(low, marks[0]), max(high, marks[-1])

    def px(seconds: float) -> float:
        return left + (seconds - low) / (high - low) * (width - left - 24)

    parts = [_open(width, height, "timeline of actors")]
    for tick in marks:
        parts.append(f'<line class="grid" x1="{px(tick):.1f}" x2="{px(tick):.1f}" y1="0" y2="{height - bottom}"/>')
        parts.append(_text(px(tick), height - bottom + 14, f"{tick:g} s", "middle"))
    for index, actor in enumerate(actors):
        parts.append(_text(left - 6, row * index + 15, actor, "end"))
    for span in spans:
        y = row * actors.index(span.actor) + 3
        size = max(px(span.end) - px(span.start), 0.4)
        title = f"{span.actor}: {span.kind} {span.label}, {span.end - span.start:.4g} s"
        parts.append(
            f'<rect x="{px(span.start):.2f}" y="{y}" width="{size:.2f}" height="{row - 6}" '
            f'fill="{colour(kind_index(span.kind))}"><title>{escape(title)}</title></rect>'
        )
    return "".join([*parts, "</svg>"])


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts ``client-2`` before ``client-10``."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def kind_index(kind: str) -> int:
    """Return the colour index of a kind of span."""
    return KIND_COLOURS.get(kind, 3 + sum(kind.encode()) % (NUM_COLOURS - 3))


def talk_graph(edges: Mapping[tuple[str, str], int]) -> str:
    """Return actors on a circle and an arrow for each (sender, receiver), as wide as its bytes ask for.

    Args:
        edges: bytes by (sender, receiver).
    """
    names = sorted({name for edge in edges for name in edge}, key=natural)
    width, height, radius = 640.0, 440.0, 165.0
    hub = _hub(edges, names)
    ring = [name for name in names if name != hub]
    angles = {name: 2 * math.pi * index / len(ring) - math.pi / 2 for index, name in enumerate(ring)}
    places = {
        name: (width / 2 + 1.25 * radius * math.cos(angle), height / 2 + radius * math.sin(angle))
        for name, angle in angles.items()
    }
    if hub is not None:
        places[hub] = (width / 2, height / 2)
    most = max(edges.values(), default=1) or 1
    parts = [_open(width, height, "who talks to whom")]
    parts.append(
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" '
        'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--ink)"/></marker></defs>'
    )
    labels = []
    bend, widest = 44.0 * min(1.0, 5 / len(names)), 5 * min(1.0, 24 / len(edges)) if edges else 0.0
    for (sender, receiver), count in sorted(edges.items()):
        (x1, y1), (x2, y2) = places[sender], places[receiver]
        length = math.hypot(x2 - x1, y2 - y1) or 1.0
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        # the two directions of a pair bend to opposite sides
        cx, cy = (x1 + x2) / 2 - uy * bend, (y1 + y2) / 2 + ux * bend
        path = f"M{x1 + ux * 14:.1f} {y1 + uy * 14:.1f}Q{cx:.1f} {cy:.1f} {x2 - ux * 14:.1f} {y2 - uy * 14:.1f}"
        title = f"<title>{escape(sender)} to {escape(receiver)}: {format_bytes(count)}</title>"
        stroke = 1 + widest * math.sqrt(count / most)
        parts.append(f'<path class="edge" d="{path}" stroke-width="{stroke:.1f}" marker-end="url(#tip)">{title}</path>')
        # outside of its own bend, so that two directions stay apart; nearer to the ring, where there is room
        along = 0.5 if hub not in (sender, receiver) else 0.62 if sender == hub else 0.38
        x, y = x1 + ux * length * along - uy * 0.86 * bend, y1 + uy * length * along + ux * 0.86 * bend + 4
        labels.append(_text(x, y, format_bytes(count), "middle"))
    if len(edges) <= 24:
        parts += labels
    for index, (name, (x, y)) in enumerate(places.items()):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{9 if len(names) <= 30 else 5}" fill="{colour(index)}"/>')
        if name == hub:
            parts.append(_text(x, y - 15, name, "middle"))
            continue
        away_x, away_y = math.cos(angles[name]), math.sin(angles[name])
        anchor = "start" if away_x > 0.3 else "end" if away_x < -0.3 else "middle"
        parts.append(_text(x + 14 * away_x, y + 18 * away_y + 4, name, anchor))
    return "".join([*parts, "</svg>"])


def _hub(edges: Mapping[tuple[str, str], int], names: Sequence[str]) -> str | None:
    """Return the one actor that talks with all others, if it alone does and there are enough of them for a ring."""
    partners: dict[str, set[str]] = {name: set() for name in names}
    for sender, receiver in edges:
        partners[sender].add(receiver)
        partners[receiver].add(sender)
    hubs = [name for name in names if len(partners[name] - {name}) == len(names) - 1]
    return hubs[0] if len(hubs) == 1 and len(names) > 3 else None


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` round numbers that span [low, high]; never fewer than two."""
    if high <= low:
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _tick_text(value: float, label: str) -> str:
    return format_bytes(value) if label == "bytes" else f"{value:g}"


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _open(width: float, height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title, quote=True)}">'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

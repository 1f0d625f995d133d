"""Draws learning curves from the table of runs: one panel a setting, one line a method, a band of one deviation."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from _study import RESULTS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedactors.runs.table import RunRow

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.study import Study

FIGURES = RESULTS / "figures" / "nebulafl"
Panels = Mapping[str, Mapping[str, tuple[str, str]]]
"""Title of a panel to its lines: a label to study and name of its rows."""
COLUMNS = 4


def draw(given: Study, name: str, panels: Panels, *, columns: int = COLUMNS) -> None:
    """Draw accuracy against virtual hours; what is not in the table is left out, and nothing is drawn of nothing.

    Args:
        given: the command line.
        name: of the picture.
        panels: what to draw.
        columns: panels side by side.
    """
    found = {title: {k: given.rows(*number) for k, number in lines.items()} for title, lines in panels.items()}
    found = {title: {k: rows for k, rows in lines.items() if rows} for title, lines in found.items()}
    found = {title: lines for title, lines in found.items() if lines}
    if not found:
        return
    num_rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.4 * min(columns, len(found)), 2.7 * num_rows), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    lowest = 1.0
    plots = []
    for index, (title, lines) in enumerate(found.items()):
        plot = figure.add_subplot(num_rows, min(columns, len(found)), index + 1)
        for number, (label, rows) in enumerate(lines.items()):
            hours, mean, deviation = curve(rows)
            (line,) = plot.plot(hours, mean, label=label, color=f"C{number}", linewidth=1.4)
            low = [m - d for m, d in zip(mean, deviation, strict=True)]
            high = [m + d for m, d in zip(mean, deviation, strict=True)]
            plot.fill_between(hours, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
            lowest = min(lowest, mean[len(mean) // 3])
        plot.set_title(title, fontsize=9)
        plot.set_xlabel("virtual hours", fontsize=8)
        plot.set_ylabel("test accuracy", fontsize=8)
        plot.tick_params(labelsize=7)
        plot.grid(alpha=0.3)
        plot.legend(fontsize=7, loc="lower right")
        plots.append(plot)
    for plot in plots:
        plot.set_ylim(max(0.0, lowest - 0.05), 1.0)
    folder = FIGURES if given.out == RESULTS else given.out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png")


def curve(rows: Sequence[RunRow]) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Return hours, and the mean and deviation over seeds of the accuracy measured then."""
    points = list(zip(*(row.curve["test/accuracy"] for row in rows), strict=True))
    deviation = [statistics.stdev(point) if len(point) > 1 else 0.0 for point in points]
    return [time / 3600 for time in rows[0].curve["time"]], [statistics.fmean(point) for point in points], deviation

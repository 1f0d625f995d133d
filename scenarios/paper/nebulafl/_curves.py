"""Draws learning curves from committed summaries: one panel a setting, one line a method, a band of one deviation."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from _study import RESULTS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedactors.records.study import Study

FIGURES = RESULTS.parents[1] / "figures" / "nebulafl"
COLUMNS = 4


def draw(given: Study, name: str, panels: Mapping[str, Mapping[str, str]], *, columns: int = COLUMNS) -> None:
    """Draw accuracy against virtual hours; what has no summary under the study's folder is left out.

    Args:
        given: the command line.
        name: of the picture.
        panels: title of a panel to its lines, a label to a summary's path without its ending.
        columns: panels side by side.
    """
    found = {title: {k: given.out / f"{v}.json" for k, v in lines.items()} for title, lines in panels.items()}
    found = {title: {k: path for k, path in lines.items() if path.exists()} for title, lines in found.items()}
    found = {title: lines for title, lines in found.items() if lines}
    num_rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.4 * min(columns, len(found)), 2.7 * num_rows), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    lowest = 1.0
    plots = []
    for index, (title, lines) in enumerate(found.items()):
        plot = figure.add_subplot(num_rows, min(columns, len(found)), index + 1)
        for place, (label, path) in enumerate(lines.items()):
            hours, mean, deviation = curve(path)
            (line,) = plot.plot(hours, mean, label=label, color=f"C{place}", linewidth=1.4)
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


def curve(path: Path) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
    """Return hours, and the mean and deviation over seeds of the accuracy measured then."""
    runs = [run["extra"] for run in json.loads(path.read_text())["runs"]]
    points = list(zip(*(run["accuracy"] for run in runs), strict=True))
    deviation = [statistics.stdev(point) if len(point) > 1 else 0.0 for point in points]
    return [time / 3600 for time in runs[0]["time"]], [statistics.fmean(point) for point in points], deviation

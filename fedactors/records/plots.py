"""A picture of runs compared, as a file for a paper or a README."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from fedactors.errors import BadInput
from fedactors.records.compare import LoadedRun, group_runs
from fedactors.records.curves import AXES, make_curve
from fedactors.records.storage import write_atomic


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
        axes: some of round, seconds, bytes, money.

    Raises:
        BadInput: another kind of file, or a metric that no run recorded.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"--plot: {str(path)!r} is not allowed: a file ending in .png, .svg or .pdf")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    name = metric or runs[0].headline[0]
    groups = group_runs(runs)
    figure = Figure(figsize=(4.2 * len(axes), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    drawn = 0
    for index, axis in enumerate(axes):
        plot = figure.add_subplot(1, len(axes), index + 1)
        for group in groups:
            curve = make_curve(group, name, axis)
            if curve is None:
                continue
            drawn += 1
            (line,) = plot.plot(curve.x, curve.mean, label=curve.label, marker="." if len(curve.x) < 30 else "")
            low = [m - s for m, s in zip(curve.mean, curve.std, strict=True)]
            high = [m + s for m, s in zip(curve.mean, curve.std, strict=True)]
            plot.fill_between(curve.x, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
        plot.set_xlabel(AXES[axis])
        if axis == "bytes":
            plot.xaxis.set_major_formatter(EngFormatter(unit="B"))
        plot.set_ylabel(name)
        plot.grid(alpha=0.3)
    if drawn == 0:
        raise BadInput(f"--metric: {name!r} was recorded in no round of these runs")
    figure.axes[0].legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=144)
    write_atomic(path, buffer.getvalue())
    return path

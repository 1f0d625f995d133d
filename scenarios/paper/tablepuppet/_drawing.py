"""Figures 5 to 8 drawn from the table of runs: the score by epoch, or by seconds of communication."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedactors.errors import BadInput

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.study import Study
from scenarios.paper.tablepuppet._study import Panel


def draw(figure: str, panels: Sequence[Panel], study: Study, axis: str = "epoch") -> Path:
    """Draw what was measured of the panels (of several seeds the first) and return where.

    Raises:
        BadInput: nothing was measured.
    """
    shown = [panel for panel in panels if study.rows(panel.centralised, "centralised")]
    if not shown:
        raise BadInput(f"{study.table}: no panel of {figure} is measured (see --only)")
    columns = min(len(shown), 3)
    size = (4 * columns, 3 * -(-len(shown) // columns))
    canvas = Figure(figsize=size)
    grid = canvas.subplots(-(-len(shown) // columns), columns, squeeze=False)
    for spare in grid.flat[len(shown) :]:
        spare.set_visible(False)
    for axes, panel in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, panel, study, axis)
    canvas.tight_layout()
    path = study.out / f"tablepuppet-{figure}.svg"
    with rc_context({"svg.hashsalt": "tablepuppet"}):
        canvas.savefig(path, metadata={"Date": None})
    return path


def _draw_panel(axes: Axes, panel: Panel, study: Study, axis: str) -> None:
    best = study.rows(panel.centralised, "centralised")[0].metrics
    score = "rmse" if "test/rmse" in best else "accuracy"
    ours, trivial = best[f"test/{score}"], best[f"test/trivial_{score}"]
    axes.axhline(ours, color="black", linestyle="--", linewidth=1, label="centralised")
    axes.axhline(trivial, color="grey", linestyle=":", linewidth=1, label="trivial")
    reached = [ours, trivial]
    for marker, name in zip("osv^D", panel.rows, strict=False):
        rows = study.rows(panel.name, name.replace(" ", "-"))
        if not rows or rows[0].status == "failed":
            continue
        step, curve = 1.0 if axis == "epoch" else rows[0].metrics[f"{axis}_s"], rows[0].curve[f"test/{score}"]
        # what is better than the trivial predictor is shown whole
        reached += [value for value in curve if (value < trivial) == (score == "rmse")]
        if len(curve) == 1:
            axes.axhline(curve[0], color="black", linestyle="-.", linewidth=1, label=name)
            continue
        seconds = [step * (i + 1) for i in range(len(curve))]
        axes.plot(seconds, curve, marker=marker, markersize=3, linewidth=1, label=name, alpha=0.8)
    span = max(reached) - min(reached)
    axes.set_ylim(min(reached) - 0.2 * span, max(reached) + 0.2 * span)
    if axis != "epoch":
        axes.set_xscale("log")
    axes.set_title(panel.name, fontsize=9)
    axes.set_xlabel("epoch" if axis == "epoch" else f"seconds of communication, {axis.upper()}", fontsize=8)
    axes.set_ylabel(f"test {score}", fontsize=8)
    axes.legend(fontsize=6)

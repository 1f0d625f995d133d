"""Figures 5 to 8 drawn from the measured summaries: the score by epoch, or by seconds of communication."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedactors.errors import BadInput
from scenarios.paper.tablepuppet._study import RESULTS, Panel


def draw(figure: str, panels: Sequence[Panel], out: Path, axis: str = "epoch") -> Path:
    """Draw what was measured of the panels (of several seeds the first) and return where.

    Raises:
        BadInput: nothing was measured.
    """
    shown = [panel for panel in panels if (out / panel.name / "centralised.json").exists()]
    if not shown:
        raise BadInput(f"{out}: no panel of {figure} is measured (see --only)")
    columns = min(len(shown), 3)
    size = (4 * columns, 3 * -(-len(shown) // columns))
    canvas = Figure(figsize=size)
    grid = canvas.subplots(-(-len(shown) // columns), columns, squeeze=False)
    for place in grid.flat[len(shown) :]:
        place.set_visible(False)
    for axes, panel in zip(grid.flat, shown, strict=False):
        _draw_panel(axes, panel, out / panel.name, axis)
    canvas.tight_layout()
    path = (out.parents[1] if out == RESULTS else out) / f"tablepuppet-{figure}.svg"
    with rc_context({"svg.hashsalt": "tablepuppet"}):
        canvas.savefig(path, metadata={"Date": None})
    return path


def _draw_panel(axes: Axes, panel: Panel, folder: Path, axis: str) -> None:
    best = _read(folder / "centralised.json")["metrics"]
    score = "rmse" if "rmse" in best else "accuracy"
    axes.axhline(best[score], color="black", linestyle="--", linewidth=1, label="centralised")
    axes.axhline(best[f"trivial_{score}"], color="grey", linestyle=":", linewidth=1, label="trivial")
    span = abs(best[score] - best[f"trivial_{score}"])
    low, high = sorted((best[score], best[f"trivial_{score}"]))
    for marker, name in zip("osv^D", panel.rows, strict=False):
        path = folder / f"{name.replace(' ', '-')}.json"
        if not path.exists():
            continue
        run = _read(path)
        step, curve = 1.0 if axis == "epoch" else run["metrics"][f"{axis}_s"], run["extra"]["curve"]
        seconds = [step * (i + 1) for i in range(len(curve))]
        axes.plot(seconds, curve, marker=marker, markersize=3, linewidth=1, label=name, alpha=0.8)
    axes.set_ylim(low - 0.5 * span, high + 0.5 * span)
    if axis != "epoch":
        axes.set_xscale("log")
    axes.set_title(panel.name, fontsize=9)
    axes.set_xlabel("epoch" if axis == "epoch" else f"seconds of communication, {axis.upper()}", fontsize=8)
    axes.set_ylabel(f"test {score}", fontsize=8)
    axes.legend(fontsize=6)


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return dict(values["runs"][0]) if "runs" in values else values

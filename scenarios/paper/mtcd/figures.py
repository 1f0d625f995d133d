"""Draw the figures and write the tables of docs/results/mtcd-appendix.md from the committed table of runs.

python scenarios/paper/mtcd/figures.py                       draw figures, renew tables
python scenarios/paper/mtcd/figures.py --check               draw nothing; end with 1 if a table is not current
python scenarios/paper/mtcd/figures.py --smoke --out DIR     the same from the committed data, below DIR
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _cells import summaries, values_of
from _study import RESULTS, TABLE
from _tables import (
    COMPARISONS,
    GRAPHS,
    cost_line,
    extremes,
    kinds,
    load_curves,
    load_dcpa,
    mean_of,
    render,
    sparse_curves,
)
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

DOCUMENT = RESULTS / "mtcd-appendix.md"
VECTOR = 8000.0
"""Bytes of a vector of 1,000 samples."""
STYLES = {"svfl": "--", "stcd": "-.", "dcpa": ":"}
Runs = Sequence[Mapping[str, Sequence[float]]]


def band(runs: Runs, x: str, y: str, *, log: bool) -> tuple[Any, Any, Any, Any]:
    """Return the common x, and mean, lower and upper edge of y over seeds: mean and deviation, of log10 y if `log`."""
    end = min(max(run[x]) for run in runs)
    longest = max(runs, key=lambda run: len(run[x]))
    grid = np.asarray([value for value in longest[x] if value <= end])
    rows = [np.interp(grid, run[x], np.log10(np.maximum(run[y], 1e-16)) if log else run[y]) for run in runs]
    middle, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1) if len(rows) > 1 else 0.0 * grid
    edges = (middle, middle - spread, middle + spread)
    return (grid, *(10**edge for edge in edges)) if log else (grid, *edges)


def line(plot: Axes, runs: Runs, x: str, y: str, label: str, *, log: bool = True, style: str = "-") -> None:
    """Draw the mean over seeds with its band."""
    grid, middle, low, high = band(runs, x, y, log=log)
    if x != "round" and log:
        keep = grid > 0
        grid, middle, low, high = grid[keep], middle[keep], low[keep], high[keep]
    color = "black" if label in STYLES else None  # None: the next of the cycle
    (drawn,) = plot.plot(grid, middle, style, label=label, linewidth=1.3, color=color)
    plot.fill_between(grid, low, high, alpha=0.2, color=drawn.get_color(), linewidth=0)


def with_costs(curves: Mapping[str, Runs], ratio: float) -> dict[str, list[dict[str, Any]]]:
    """Return curves with `cost` added: weighted cost in vectors over a client-client link."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, runs in curves.items():
        found[name] = []
        for run in runs:
            server, clients = np.asarray(run["client_server_bytes"]), np.asarray(run["client_client_bytes"])
            made = {**run, "cost": list((ratio * server + clients) / VECTOR)}
            found[name].append({**made, "vectors": list((server + clients) / VECTOR)})
    return found


def canvas(rows: int, columns: int, width: float = 4.3, height: float = 3.3) -> tuple[Figure, Any]:
    """Return a figure with a grid of plots."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def label(plot: Axes, title: str, x: str, y: str, *, log_x: bool = False, log_y: bool = True) -> None:
    """Name the axes and add grid and legend."""
    plot.set(title=title, xlabel=x, ylabel=y, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    if not log_x:
        plot.locator_params(axis="x", nbins=5)
    plot.grid(alpha=0.3)
    plot.legend(fontsize="x-small")


def decentralised() -> Figure:
    """Figures 2 and 3: gap against iterations and against vectors, on three graphs."""
    figure, plots = canvas(2, 3)
    kept = with_costs(load_curves("decentralised"), 1.0)
    for column, graph in enumerate(GRAPHS):
        for row, x in enumerate(("iterations", "vectors")):
            plot = plots[row][column]
            line(plot, kept[f"stcd-{graph}"], x, "gap", "STCD")
            line(plot, load_dcpa(graph), x, "gap", "DCPA (Condat-Vu form)")
            label(plot, graph, "iterations (hops)" if row == 0 else "vectors sent", "relative gap", log_x=True)
    return figure


def semi(graph: str) -> Figure:
    """Figure 4: gap against weighted cost at several ratios."""
    ratios = (0.3, 1.0, 3.0, 10.0)
    figure, plots = canvas(1, len(ratios), 4.0, 3.8)
    curves = {**load_curves(f"semi-{graph}"), "stcd": load_curves("decentralised")[f"stcd-{graph}"]}
    for plot, ratio in zip(plots[0], ratios, strict=True):
        for name, runs in with_costs(curves, ratio).items():
            line(plot, runs, "cost", "gap", name, style=STYLES.get(name, "-"))
        line(plot, load_dcpa(graph), "vectors", "gap", "dcpa", style=STYLES["dcpa"])
        label(plot, f"{graph}, rho = {ratio:g}", "weighted cost (vectors)", "relative gap", log_x=True)
        plot.get_legend().remove()
    handles, names = plots[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=6, fontsize="x-small")
    return figure


def costs() -> Figure:
    """Figure 5: cost to a gap against the ratio; shaded where a setting between the extremes is cheapest."""
    figure, plots = canvas(2, 3, 4.6, 3.6)
    plots[1][2].set_visible(False)
    ratios = np.geomspace(0.1, 200, 400)
    for plot, of in zip(plots.flat, COMPARISONS.values(), strict=False):
        ends = extremes(of, ratios)
        for name, values in ends.items():
            if np.isfinite(values).all():
                plot.plot(ratios, values, STYLES[name], label=name, linewidth=1.3, color="black")
        rows = {name: row for name, row in summaries(of.folder).items() if name.startswith("mtcd")}
        between = {name: cost_line(row, of.gap, ratios) for name, row in rows.items()}
        for name, values in between.items():
            if np.isfinite(values).all():
                plot.plot(ratios, values, label=name, linewidth=1.3)
        best = np.min(list(between.values()), axis=0)
        wins = best < np.min(list(ends.values()), axis=0)
        plot.fill_between(ratios, 0, 1, where=wins, transform=plot.get_xaxis_transform(), alpha=0.12, color="green")
        title = f"{of.graph}, gap {of.gap:g}, steps: {of.steps}"
        label(plot, title, "client-server cost / client-client cost", "weighted cost (vectors)", log_x=True)
    return figure


def step_sizes() -> Figure:
    """Rounds to a gap of 1e-3 against the step size."""
    figure, plots = canvas(1, 1, 4.8, 3.6)
    found: dict[str, list[tuple[float, float]]] = {}
    for name, row in summaries("step-sizes").items():
        tokens, _, step = name.partition("-tokens-")
        found.setdefault(tokens, []).append((float(step), mean_of(row, "rounds_to_0.001")))
    for tokens, points in sorted(found.items()):
        steps, rounds = zip(*sorted(points), strict=True)
        name = "SVFL" if tokens == "40" else f"{int(tokens)} tokens"
        plots[0][0].plot(steps, [value if np.isfinite(value) else None for value in rounds], "o-", label=name)
    label(plots[0][0], "path, clusters swept, Q = 20, seed 0", "step size", "rounds to 1e-3")
    return figure


def networks() -> Figure:
    """Figure 6: accuracy against sync rounds and against weighted cost at two ratios."""
    figure, plots = canvas(len(kinds()), 3)
    for row, kind in enumerate(kinds()):
        for column, (x, ratio) in enumerate((("round", 1.0), ("cost", 1.0), ("cost", 10.0))):
            for name, runs in with_costs(load_curves(f"networks-{kind}"), ratio).items():
                style = "-" if name.startswith("mtcd") else "--"
                line(plots[row][column], runs, x, "test/accuracy", name, log=False, style=style)
            where = "sync rounds" if x == "round" else f"weighted cost, rho = {ratio:g} (8 kB)"
            label(plots[row][column], kind, where, "test accuracy", log_y=False)
    return figure


def overlapping() -> Figure:
    """Figure 4, top row: tokens that roam anywhere, against iterations and against cost at three ratios."""
    figure, plots = canvas(1, 4, 4.0, 3.8)
    curves = {**load_curves("overlapping"), "svfl": load_curves("best-40-0.01")["svfl"]}
    axes = (("iterations", 1.0), ("cost", 1.0), ("cost", 10.0), ("cost", 100.0))
    for plot, (x, ratio) in zip(plots[0], axes, strict=True):
        for name, runs in with_costs(curves, ratio).items():
            line(plot, runs, x, "gap", name, style=STYLES.get(name, "-"))
        if x == "cost":
            line(plot, load_dcpa("path"), "vectors", "gap", "dcpa", style=STYLES["dcpa"])
        where = "iterations (hops)" if x == "iterations" else f"weighted cost (vectors), rho = {ratio:g}"
        label(plot, "path, overlapping tokens", where, "relative gap", log_x=True)
    return figure


def sparse_logistic() -> Figure:
    """Figure 3's problem at Gisette's shape: objective against hops and against what was sent."""
    figure, plots = canvas(1, 2)
    axes = (("iterations", "iterations (hops)"), ("vectors", "sent (8 kB)"))
    for plot, (x, where) in zip(plots[0], axes, strict=True):
        for name, runs in with_costs(sparse_curves(), 1.0).items():
            line(plot, runs, x, "training/objective", name, style=STYLES.get(name, "-"))
        label(plot, "sparse logistic, 6,000 x 5,000", where, "objective", log_x=True)
    return figure


def transforms() -> Figure:
    """Gap against bytes under compression, and accuracy against epsilon."""
    figure, plots = canvas(1, 3)
    curves = load_curves("compression")
    for plot, method in zip(plots[0], ("svfl", "mtcd-8-sweep"), strict=False):
        for name, runs in with_costs(curves, 1.0).items():
            if name.startswith(method):
                line(plot, runs, "vectors", "gap", name.removeprefix(f"{method}-"))
        label(plot, f"{method}, path", "sent (8 kB)", "relative gap", log_x=True)
    for method in ("svfl", "mtcd"):
        rows = {name: row for name, row in summaries("privacy").items() if name.startswith(method) and "epsilon" in row}
        points = sorted((row["epsilon"], values_of(row, "test/accuracy")) for row in rows.values())
        spent, found = zip(*points, strict=True)
        spreads = [np.std(values, ddof=1) for values in found]
        plots[0][2].errorbar(spent, [np.mean(values) for values in found], spreads, fmt="o-", label=method, capsize=2)
    label(
        plots[0][2],
        "breast-cancer, 3 clients",
        "epsilon of a row at one party",
        "test accuracy",
        log_x=True,
        log_y=False,
    )
    return figure


def ablations() -> Figure:
    """Figures 7 to 9: gap against hops and weighted cost for tokens, hops and local steps."""
    figure, plots = canvas(2, 3)
    titles = {"tokens": "tokens (Gamma)", "hops": "hops between syncs (S)", "local-steps": "local steps (Q)"}
    for column, (folder, title) in enumerate(titles.items()):
        for row, (x, where) in enumerate((("iterations", "iterations (hops)"), ("cost", "weighted cost, rho = 10"))):
            for name, runs in with_costs(load_curves(folder), 10.0).items():
                line(plots[row][column], runs, x, "gap", name)
            label(plots[row][column], title, where, "relative gap", log_x=True)
    return figure


FIGURES: Mapping[str, Any] = {
    "figures-2-3-decentralised": decentralised,
    "figure-4-path": lambda: semi("path"),
    "figure-4-erdos-renyi": lambda: semi("erdos-renyi"),
    "figure-5-costs": costs,
    "step-sizes": step_sizes,
    "figure-6-networks": networks,
    "figures-7-8-9-ablations": ablations,
    "figure-4-overlapping": overlapping,
    "sparse-logistic": sparse_logistic,
    "transforms": transforms,
}


def main() -> int:
    """Draw and write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--smoke", action="store_true", help="the first figure only")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR")
    args = parser.parse_args()
    text = DOCUMENT.read_text()
    made = render(text)
    if args.check:
        return int(made != text)
    folder = args.out / "figures" / "mtcd"
    folder.mkdir(parents=True, exist_ok=True)
    shown = [name for name in FIGURES if f"{name}.png" in text]
    for name in shown[: 1 if args.smoke else None]:
        FIGURES[name]().savefig(folder / f"{name}.png", dpi=100)
        print(folder / f"{name}.png")
    (args.out / "mtcd-appendix.md").write_text(made)
    print(json.dumps({"data": str(TABLE), "document": str(args.out / "mtcd-appendix.md")}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

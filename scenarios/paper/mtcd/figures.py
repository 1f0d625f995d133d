"""Draw the figures and write the tables of docs/results/mtcd.md from the committed curves and summaries.

python scenarios/paper/mtcd/figures.py            draw figures, renew tables
python scenarios/paper/mtcd/figures.py --check    draw nothing; end with 1 if a table is not current
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import series

DOCUMENT = series.RESULTS / "mtcd.md"
RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
VECTOR = 8000.0
"""Bytes of a vector of 1,000 samples."""
GAP = 1e-3


def summaries(figure: str) -> dict[str, dict[str, Any]]:
    """Return the means over seeds of a figure's settings, by name."""
    found = {}
    for path in sorted((series.DATA / figure).glob("*.json")):
        content = json.loads(path.read_text())
        found[path.stem] = {**content["mean"]["metrics"], "seeds": len(content["runs"])}
        found[path.stem]["runs"] = [run["metrics"] for run in content["runs"]]
    return found


def number(value: Any) -> str:
    """Return a number as a table shows it."""
    if value is None or value == "inf" or value != value or value == float("inf"):
        return "not reached"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def mean_of(found: dict[str, Any], key: str) -> float:
    """Return the mean over seeds, infinite if a seed did not get there."""
    values = [run.get(key) for run in found["runs"]]
    if any(value is None or isinstance(value, str) for value in values):
        return float("inf")
    return float(np.mean(values))


def decentralised_table() -> str:
    """Return STCD against DCPA on each graph."""
    rows = ["| graph | method | seeds | iterations to 1e-3 | vectors to 1e-3 | gap at the end | of iterations |"]
    rows.append("|---|---|---|---|---|---|---|")
    found = summaries("decentralised")
    for graph in ("complete", "erdos-renyi", "path"):
        for name in (f"stcd-{graph}", f"stcd-{graph}-1e-4"):
            if name not in found:
                continue
            row = found[name]
            step = "1/L_block" if name.endswith(graph) else "1e-4"
            rows.append(
                f"| {graph} | STCD, step {step} | {row['seeds']} | {number(mean_of(row, 'iterations_to_0.001'))} | "
                f"{number(mean_of(row, 'vectors_to_0.001'))} | {number(row['gap'])} | {number(row['iterations'])} |"
            )
        path = series.DATA / "curves" / f"dcpa-{graph}.json"
        if path.exists():
            runs = json.loads(path.read_text())
            last = runs[0]
            reached = last["gap"][-1] <= GAP
            rows.append(
                f"| {graph} | DCPA (Condat-Vu form), mu_y {last['dual_step']:.3g} | {len(runs)} | "
                f"{number(last['iterations'][-1] if reached else None)} | "
                f"{number(last['vectors'][-1] if reached else None)} | {number(last['gap'][-1])} | "
                f"{number(last['iterations'][-1])} |"
            )
    return "\n".join(rows)


def semi_table(graph: str) -> str:
    """Return what each setting costs to 1e-3 at several ratios; the cheapest of a ratio is bold."""
    found = summaries(f"semi-{graph}")
    head = (
        "| setting | seeds | iterations | cs vectors | cc vectors | " + " | ".join(f"rho {r:g}" for r in RATIOS) + " |"
    )
    rows = [head, "|---" * (5 + len(RATIOS)) + "|"]
    costs = {name: cost_line(row) for name, row in found.items()}
    for name, row in found.items():
        cells = []
        for place in range(len(RATIOS)):
            best = min(line[place] for line in costs.values())
            text = number(costs[name][place])
            cells.append(f"**{text}**" if costs[name][place] == best < float("inf") else text)
        rows.append(
            f"| {name} | {row['seeds']} | {number(mean_of(row, 'iterations_to_0.001'))} | "
            f"{number(mean_of(row, 'cs_vectors_to_0.001'))} | {number(mean_of(row, 'cc_vectors_to_0.001'))} | "
            + " | ".join(cells)
            + " |"
        )
    return "\n".join(rows)


def cost_line(row: dict[str, Any], ratios: Any = RATIOS) -> list[float]:
    """Return the weighted cost to 1e-3 at each ratio, in vectors over a client-client link."""
    server, clients = mean_of(row, "cs_vectors_to_0.001"), mean_of(row, "cc_vectors_to_0.001")
    return [float(ratio * server + clients) if np.isfinite(server + clients) else float("inf") for ratio in ratios]


def setting_table(*figures: str) -> str:
    """Return iterations and vectors to 1e-2 of an ablation's settings."""
    rows = ["| setting | seeds | rounds | iterations to 1e-2 | cs vectors | cc vectors | gap at the end |"]
    rows.append("|---|---|---|---|---|---|---|")
    for figure in figures:
        for name, row in summaries(figure).items():
            curve = series.load_curves(figure)[name][0]
            rows.append(
                f"| {name} | {row['seeds']} | {number(curve['round'][-1])} | "
                f"{number(mean_of(row, 'iterations_to_0.01'))} | {number(mean_of(row, 'cs_vectors_to_0.01'))} | "
                f"{number(mean_of(row, 'cc_vectors_to_0.01'))} | {number(row['gap'])} |"
            )
    return "\n".join(rows)


def reach_table() -> str:
    """Return how far token-per-cluster falls on the complete graph."""
    rows = ["| setting | seeds | iterations to 1e-3 | to 1e-4 | to 1e-5 | to 1e-6 | gap at the end | of iterations |"]
    rows.append("|---|---|---|---|---|---|---|---|")
    for name, row in summaries("reach").items():
        cells = [number(mean_of(row, f"iterations_to_{gap}")) for gap in ("0.001", "0.0001", "1e-05", "1e-06")]
        rows.append(
            f"| {name} | {row['seeds']} | "
            + " | ".join(cells)
            + f" | {number(row['gap'])} | {number(row['iterations'])} |"
        )
    return "\n".join(rows)


def network_table() -> str:
    """Return accuracy and cost of the networks."""
    rows = ["| data | method | seeds | test accuracy | deviation | cs MB | cc MB | cost, rho 1 | rho 10 |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for data in ("views", "quadrants"):
        for name, row in summaries(f"networks-{data}").items():
            accuracies = [run["test_accuracy"] for run in row["runs"]]
            server, clients = row["client_server_bytes"] / 1e6, row["client_client_bytes"] / 1e6
            rows.append(
                f"| {data} | {name} | {row['seeds']} | {np.mean(accuracies):.4f} | "
                f"{np.std(accuracies, ddof=min(1, len(accuracies) - 1)):.4f} | {server:.2f} | {clients:.2f} | "
                f"{server + clients:.2f} | {10 * server + clients:.2f} |"
            )
    return "\n".join(rows)


TABLES: dict[str, Callable[[], str]] = {
    "decentralised": decentralised_table,
    "semi-path": lambda: semi_table("path"),
    "semi-erdos-renyi": lambda: semi_table("erdos-renyi"),
    "reach": reach_table,
    "networks": network_table,
    "tokens": lambda: setting_table("tokens"),
    "hops": lambda: setting_table("hops"),
    "local-steps": lambda: setting_table("local-steps"),
}


def render(text: str) -> str:
    """Return the document with every marked table made anew."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\S+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def draw(figure: str, panels: list[tuple[str, dict[str, list[dict[str, list[float]]]], str, str, str]]) -> Path:
    """Draw panels of (title, curves by name, x, y, label of x) side by side."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(4.4 * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(canvas)
    for place, (title, curves, x, y, label) in enumerate(panels):
        plot = canvas.add_subplot(1, len(panels), place + 1)
        for name, runs in curves.items():
            grid, middle, spread = series.band(runs, x, y)
            (line,) = plot.plot(grid, 10**middle, label=name)
            plot.fill_between(grid, 10 ** (middle - spread), 10 ** (middle + spread), alpha=0.2, color=line.get_color())
        plot.set(title=title, xlabel=label, ylabel="relative gap" if y == "gap" else y.replace("_", " "))
        plot.set_yscale("log" if y == "gap" else "linear")
        plot.grid(alpha=0.3)
        plot.legend(fontsize="x-small")
    series.FIGURES.mkdir(parents=True, exist_ok=True)
    target = series.FIGURES / f"{figure}.png"
    canvas.savefig(target, dpi=110)
    return target


def with_costs(curves: dict[str, Any], ratio: float) -> dict[str, Any]:
    """Return curves with vectors and the weighted cost at a ratio."""
    made: dict[str, Any] = {}
    for name, runs in curves.items():
        made[name] = []
        for run in runs:
            server, clients = np.asarray(run["client_server_bytes"]), np.asarray(run["client_client_bytes"])
            cost = (ratio * server + clients) / VECTOR
            made[name].append({**run, "cost": cost.tolist(), "vectors": ((server + clients) / VECTOR).tolist()})
    return made


def draw_all() -> None:
    """Draw every figure whose curves are there."""
    curves_folder = series.DATA / "curves"
    if (curves_folder / "decentralised.json").exists():
        panels: list[Any] = []
        kept = with_costs(series.load_curves("decentralised"), 1.0)
        for graph in ("complete", "erdos-renyi", "path"):
            lines = {name: runs for name, runs in kept.items() if name == f"stcd-{graph}"}
            path = curves_folder / f"dcpa-{graph}.json"
            if path.exists():
                lines[f"dcpa-{graph}"] = json.loads(path.read_text())
            if len(lines) > 0:
                panels.append((graph, lines, "iterations", "gap", "iterations (hops)"))
                panels.append((graph, lines, "vectors", "gap", "vectors sent"))
        draw("figures-2-3-decentralised", panels[0::2])
        draw("figures-2-3-decentralised-communication", panels[1::2])
    for graph in ("path", "erdos-renyi"):
        if (curves_folder / f"semi-{graph}.json").exists():
            kept = series.load_curves(f"semi-{graph}")
            panels = [
                (f"{graph}, rho {ratio:g}", with_costs(kept, ratio), "cost", "gap", "weighted cost (vectors)")
                for ratio in (0.3, 3.0, 30.0)
            ]
            draw(f"figure-4-semi-{graph}", panels)
            draw_costs(graph)
    for data in ("views", "quadrants"):
        if (curves_folder / f"networks-{data}.json").exists():
            kept = with_costs(series.load_curves(f"networks-{data}"), 10.0)
            draw(
                f"figure-6-{data}",
                [
                    (data, kept, "round", "test_accuracy", "sync rounds"),
                    (f"{data}, rho 10", kept, "cost", "test_accuracy", "weighted cost (8 kB)"),
                ],
            )
    panels = [
        (figure, with_costs(series.load_curves(figure), 1.0), "iterations", "gap", "iterations (hops)")
        for figure in ("tokens", "hops", "local-steps")
        if (curves_folder / f"{figure}.json").exists()
    ]
    if panels:
        draw("figures-7-8-9-ablations", panels)


def draw_costs(graph: str) -> None:
    """Draw Figure 5: the cost to reach 1e-3 against the ratio."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ratios = np.geomspace(0.03, 300, 60)
    canvas = Figure(figsize=(5.2, 3.8), layout="constrained")
    FigureCanvasAgg(canvas)
    plot = canvas.add_subplot()
    for name, row in summaries(f"semi-{graph}").items():
        plot.plot(ratios, cost_line(row, ratios), label=name, linestyle="-" if name.startswith("mtcd") else "--")
    plot.set(xscale="log", yscale="log", xlabel="cost of a client-server link / client-client link")
    plot.set(ylabel="weighted cost to a gap of 1e-3", title=graph)
    plot.grid(alpha=0.3)
    plot.legend(fontsize="x-small")
    canvas.savefig(series.FIGURES / f"figure-5-cost-{graph}.png", dpi=110)


def main() -> int:
    """Draw and write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = DOCUMENT.read_text()
    made = render(text)
    if args.check:
        return int(made != text)
    draw_all()
    DOCUMENT.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())

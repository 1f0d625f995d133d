"""The tables of docs/results/mtcd.md, made from the committed table of runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from _study import by_name

from fedactors.sweeps.repeat import older_text

GRAPHS = ("complete", "erdos-renyi", "path")
RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
GAP = 1e-3


def summaries(study: str) -> dict[str, dict[str, Any]]:
    """Return the means over seeds of a study's settings, by name; `runs` has the metrics of each seed."""
    found: dict[str, dict[str, Any]] = {}
    for name, rows in by_name(study).items():
        runs = [row.metrics for row in rows]
        shared = [key for key in runs[0] if all(key in run for run in runs)]
        found[name] = {key: float(np.mean([run[key] for run in runs])) for key in shared}
        found[name] |= {"seeds": len(rows), "runs": runs}
    return found


def load_curves(study: str) -> dict[str, list[Mapping[str, Sequence[float]]]]:
    """Return a study's curves by setting, one a seed."""
    return {name: [row.curve for row in rows] for name, rows in by_name(study).items()}


def load_dcpa(graph: str) -> list[dict[str, Any]]:
    """Return the curves and dual steps of DCPA's runs on a graph, one a seed."""
    return [{**row.curve, **row.extra} for row in by_name("dcpa")[graph]]


def number(value: Any) -> str:
    """Return a number as a table shows it."""
    if value is None or isinstance(value, str) or not np.isfinite(value):
        return "not reached"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def values_of(found: dict[str, Any], key: str) -> list[float]:
    """Return a metric of each seed, infinite where a seed did not get there."""
    values = [run.get(key) for run in found["runs"]]
    return [float("inf") if value is None or isinstance(value, str) else float(value) for value in values]


def mean_of(found: dict[str, Any], key: str) -> float:
    """Return the mean over seeds, infinite if a seed did not get there."""
    return float(np.mean(values_of(found, key)))


def spread_of(values: Sequence[float]) -> str:
    """Return mean and deviation over seeds as a table shows them."""
    if not np.isfinite(values).all():
        reached = int(np.isfinite(values).sum())
        return "not reached" if reached == 0 else f"reached by {reached} of {len(values)}"
    deviation = f" ± {number(np.std(values, ddof=1))}" if len(values) > 1 else ""
    return f"{number(np.mean(values))}{deviation}"


def table(head: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; `head` is separated by bars."""
    columns = [column.strip() for column in head.split("|")]
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Settings between server and peers on a graph: where their summaries are, and to which gap they are compared."""

    folder: str
    graph: str
    gap: float
    steps: str


COMPARISONS = {
    "coarse-path": Comparison(folder="coarse-path", graph="path", gap=1e-2, steps="each tuned"),
    "semi-path": Comparison(folder="semi-path", graph="path", gap=1e-3, steps="1e-5 for all"),
    "tuned-path": Comparison(folder="tuned-path", graph="path", gap=1e-3, steps="each tuned"),
    "coarse-erdos-renyi": Comparison(folder="coarse-erdos-renyi", graph="erdos-renyi", gap=1e-2, steps="each tuned"),
    "semi-erdos-renyi": Comparison(folder="semi-erdos-renyi", graph="erdos-renyi", gap=1e-3, steps="1e-5 for all"),
}


def cost_line(row: dict[str, Any], gap: float, ratios: Any = RATIOS) -> Any:
    """Return the weighted cost to a gap at each ratio, in vectors over a client-client link."""
    server, clients = mean_of(row, f"cs_vectors_to_{gap:g}"), mean_of(row, f"cc_vectors_to_{gap:g}")
    if not np.isfinite(server + clients):
        return np.full(len(ratios), np.inf)
    return np.asarray(ratios) * server + clients


def dcpa_vectors(graph: str, gap: float) -> list[float]:
    """Return the vectors to a gap of each seed."""
    found = []
    for run in load_dcpa(graph):
        reached = [vectors for value, vectors in zip(run["gap"], run["vectors"], strict=True) if value <= gap]
        found.append(reached[0] if reached else float("inf"))
    return found


def extremes(of: Comparison, ratios: Any) -> dict[str, Any]:
    """Return the cost of the methods with a server only, and without one, at each ratio.

    STCD's is the mean of the seeds that reached the gap in its hops, so that it is rather too low than too high.
    """
    found = {"svfl": cost_line(summaries(of.folder)["svfl"], of.gap, ratios)}
    hops = np.asarray(values_of(summaries(f"semi-{of.graph}")["stcd"], f"cc_vectors_to_{of.gap:g}"))
    hops = hops[np.isfinite(hops)]
    found["stcd"] = np.full(len(ratios), np.mean(hops) if len(hops) else np.inf)
    found["dcpa"] = np.full(len(ratios), np.mean(dcpa_vectors(of.graph, of.gap)))
    return found


def decentralised_table() -> str:
    """Return STCD against DCPA on each graph."""
    rows, found = [], summaries("decentralised")
    for graph in GRAPHS:
        for name in (f"stcd-{graph}", f"stcd-{graph}-1e-4", f"stcd-{graph}-1e-5"):
            if name in found:
                row = found[name]
                step = name.removeprefix(f"stcd-{graph}").lstrip("-") or "1/L_block"
                reach = [spread_of(values_of(row, f"{key}_to_0.001")) for key in ("iterations", "vectors")]
                ends = [spread_of(values_of(row, "gap")), number(row["iterations"])]
                rows.append([graph, f"STCD, step {step}", str(row["seeds"]), *reach, *ends])
        runs = load_dcpa(graph)
        reached = [run["iterations"][-1] if run["gap"][-1] <= GAP else float("inf") for run in runs]
        cells = [spread_of(reached), spread_of(dcpa_vectors(graph, GAP)), spread_of([run["gap"][-1] for run in runs])]
        last = number(np.mean([run["iterations"][-1] for run in runs]))
        rows.append([graph, f"DCPA (Condat-Vu form), mu_y {runs[0]['dual_step']:.3g}", str(len(runs)), *cells, last])
    return table("graph | method | seeds | iterations to 1e-3 | vectors to 1e-3 | gap at the end | of iterations", rows)


def semi_table(of: Comparison) -> str:
    """Return what each setting costs to the gap at several ratios; the cheapest of a ratio is bold."""
    found = summaries(of.folder)
    lines = {name: cost_line(row, of.gap) for name, row in found.items()} | extremes(of, RATIOS)
    best = np.min(list(lines.values()), axis=0)
    rows = []
    for name in sorted(lines):
        row = summaries(f"semi-{of.graph}")[name] if name == "stcd" else found.get(name)
        if row is None:
            counts = [str(len(load_dcpa(of.graph))), "", "0", spread_of(dcpa_vectors(of.graph, of.gap))]
        else:
            keys = ("rounds", "cs_vectors", "cc_vectors")
            counts = [str(row["seeds"]), *(spread_of(values_of(row, f"{key}_to_{of.gap:g}")) for key in keys)]
        cells = [
            f"**{number(cost)}**" if cost == least < np.inf else number(cost)
            for cost, least in zip(lines[name], best, strict=True)
        ]
        rows.append([name, *counts, *cells])
    return table(
        "setting | seeds | rounds | cs vectors | cc vectors | " + " | ".join(f"rho {ratio:g}" for ratio in RATIOS), rows
    )


def range_table() -> str:
    """Return for which ratios a setting between the extremes is cheaper than SVFL, STCD and DCPA."""
    rows = []
    ratios = np.geomspace(0.01, 1000, 5001)
    for of in COMPARISONS.values():
        ends = np.min(list(extremes(of, ratios).values()), axis=0)
        wins = {
            name: ratios[cost_line(row, of.gap, ratios) < ends]
            for name, row in summaries(of.folder).items()
            if name.startswith("mtcd")
        }
        found = [[name, f"{won[0]:.2g}", f"{won[-1]:.2g}"] for name, won in wins.items() if len(won)]
        rows += [[of.graph, f"{of.gap:g}", of.steps, *cells] for cells in found or [["none", "", ""]]]
    return table("graph | gap | step sizes | setting | cheaper than all extremes from rho | to rho", rows)


def setting_table(folder: str) -> str:
    """Return iterations and vectors to 1e-1 of an ablation's settings."""
    rows = []
    for name, row in summaries(folder).items():
        keys = ("rounds", "iterations", "cs_vectors", "cc_vectors")
        cells = [spread_of(values_of(row, f"{key}_to_0.1")) for key in keys]
        rows.append([name, str(row["seeds"]), *cells, number(row["gap"])])
    head = "setting | seeds | rounds to 1e-1 | iterations | cs vectors | cc vectors | gap at the end"
    return table(head, rows)


def reach_table() -> str:
    """Return how far token-per-cluster falls on the complete graph."""
    rows = []
    for name, row in summaries("reach").items():
        reach = [spread_of(values_of(row, f"iterations_to_{gap}")) for gap in ("0.001", "0.0001", "1e-05", "1e-06")]
        rows.append([name, str(row["seeds"]), *reach])
    return table("setting | seeds | iterations to 1e-3 | to 1e-4 | to 1e-5 | to 1e-6", rows)


def step_table(gap: str) -> str:
    """Return the rounds to a gap, ``0.001`` or ``0.01``, for each number of tokens and step size."""
    found: dict[str, dict[float, float]] = {}
    for name, row in summaries("step-sizes").items():
        tokens, _, step = name.partition("-tokens-")
        found.setdefault(tokens, {})[float(step)] = mean_of(row, f"rounds_to_{gap}")
    steps = sorted({step for line in found.values() for step in line})
    rows = []
    for tokens, line in sorted(found.items(), reverse=True):
        best = min(line.values())
        cells = [
            "diverges" if step not in line else f"**{line[step]:.0f}**" if line[step] == best else number(line[step])
            for step in steps
        ]
        rows.append(["SVFL" if tokens == "40" else f"{int(tokens)} tokens", *cells])
    return table(f"rounds to {float(gap):g} | " + " | ".join(f"{step:g}" for step in steps), rows)


def network_table() -> str:
    """Return accuracy and cost of the networks."""
    rows = []
    for kind in ("table", "views", "quadrants"):
        for name, row in summaries(f"networks-{kind}").items():
            server, clients = row["client_server_bytes"] / 1e6, row["client_client_bytes"] / 1e6
            accuracy = [100 * value for value in values_of(row, "test/accuracy")]
            cells = [f"{np.mean(accuracy):.2f} ± {np.std(accuracy, ddof=1):.2f}" if len(accuracy) > 1 else "one seed"]
            cells += [f"{value:.2f}" for value in (server, clients, server + clients, 10 * server + clients)]
            rows.append([kind, name, str(row["seeds"]), *cells])
    return table("data | method | seeds | test accuracy, % | cs MB | cc MB | cost, rho 1 | cost, rho 10", rows)


def speed_table() -> str:
    """Return hops per second of the actors and of a plain loop."""
    rows = []
    for (row,) in by_name("speed").values():
        loop, actors = (f"{row.metrics[f'{name}_hops_per_second']:,}" for name in ("plain_loop", "actors"))
        low, high = row.extra["ratio_range"]
        ratio = f"{row.metrics['ratio']:.2f} ({low:.2f} to {high:.2f})"
        rows.append([row.config["algorithm"], str(row.config["num_local_steps"]), loop, actors, ratio])
    return table("algorithm | local steps | plain loop, hops/s | actors, hops/s | ratio", rows)


def overlap_table() -> str:
    """Return how long two, three and four visits were under way at once on Ray."""
    (row,) = by_name("overlap")["overlap"]
    shares = [f"{100 * row.metrics[f'share_of_{least}_or_more']:.0f} %" for least in (2, 3, 4)]
    return table(
        "visits | mean seconds of a visit | two or more at once | three or more | all four",
        [[f"{row.metrics['visits']:.0f}", f"{row.metrics['mean_visit_seconds']:.2f}", *shares]],
    )


def clock_table() -> str:
    """Return seconds of a round on the clock beside Section 4.1's, and to 1e-2 over SVFL's with the same seeds."""
    rows, found = [], summaries("clock")
    for name, row in found.items():
        setting, _, ratio = name.partition("-links-")
        base = values_of(found[f"svfl-links-{ratio}"], "seconds_to_0.01")
        took = values_of(row, "seconds_to_0.01")
        ratios = [own / other for own, other in zip(took, base, strict=True)]
        cells = [number(row["seconds_per_round"]), number(row["stated_seconds_per_round"])]
        cells += [f"{100 * (row['seconds_per_round'] / row['stated_seconds_per_round'] - 1):.1f} %"]
        cells += [spread_of(values_of(row, f"{key}_to_0.01")) for key in ("rounds", "seconds")]
        against = "1" if setting == "svfl" else f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([setting, ratio, str(row["seeds"]), *cells, against])
    head = "setting | clients' links over the server's | seeds | seconds a round | Section 4.1 | apart | rounds to 1e-2"
    return table(f"{head} | seconds to 1e-2 | over SVFL (least to most)", rows)


TABLES: dict[str, Callable[[], str]] = {
    "decentralised": decentralised_table,
    **{name: functools.partial(semi_table, of) for name, of in COMPARISONS.items()},
    "ranges": range_table,
    "reach": reach_table,
    "step-sizes": functools.partial(step_table, "0.001"),
    "step-sizes-coarse": functools.partial(step_table, "0.01"),
    "networks": network_table,
    "speed": speed_table,
    "overlap": overlap_table,
    "clock": clock_table,
    "tokens": lambda: setting_table("tokens"),
    "hops": lambda: setting_table("hops"),
    "local-steps": lambda: setting_table("local-steps"),
}
STUDIES = {
    "step-sizes-coarse": ("step-sizes",),
    "decentralised": ("decentralised", "dcpa"),
    "ranges": tuple(COMPARISONS),
    "networks": ("networks-table", "networks-views", "networks-quadrants"),
}
"""Studies that a table stands on, where it is not the one of its name."""


def older(name: str) -> str:
    """Return the line below a table that says what of it an earlier version made, if any."""
    studies = STUDIES.get(name, (name,))
    named = {
        row if len(studies) == 1 else f"{study}/{row}": rows
        for study in studies
        for row, rows in by_name(study).items()
    }
    return older_text(named)


def render(text: str) -> str:
    """Return the document with every marked table made anew."""

    def made(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n{older(match[1])}<!-- end -->"

    return re.sub(r"<!-- table: (\S+) -->\n.*?<!-- end -->", made, text, flags=re.DOTALL)

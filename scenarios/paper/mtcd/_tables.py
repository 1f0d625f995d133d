"""The tables of docs/results/mtcd-appendix.md, made from the committed table of runs."""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _cells import by_seed, difference_text, grid_table, number, ratio_text, spread_of, summaries, table, values_of
from _study import by_name

sys.path.insert(0, str(Path(__file__).parents[3]))

from scenarios.paper.repeat import older_text

GRAPHS = ("complete", "erdos-renyi", "path")
RATIOS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
GAP = 1e-3


def load_curves(study: str) -> dict[str, list[Mapping[str, Sequence[float]]]]:
    """Return a study's curves by setting, one a seed."""
    return {name: [row.curve for row in rows] for name, rows in by_name(study).items()}


def load_dcpa(graph: str) -> list[dict[str, Any]]:
    """Return the curves and dual steps of DCPA's runs on a graph, one a seed."""
    return [{**row.curve, **row.extra} for row in by_name("dcpa")[graph]]


def mean_of(found: dict[str, Any], key: str) -> float:
    """Return the mean over seeds, infinite if a seed did not get there."""
    return float(np.mean(values_of(found, key)))


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


def dcpa_vectors(graph: str, gap: float) -> dict[int, float]:
    """Return DCPA's vectors to a gap by seed."""
    found = {}
    for row in by_name("dcpa")[graph]:
        pairs = zip(row.curve["gap"], row.curve["vectors"], strict=True)
        found[row.seed] = next((vectors for value, vectors in pairs if value <= gap), math.inf)
    return found


def extremes(of: Comparison, ratios: Any) -> dict[str, Any]:
    """Return the cost of the methods with a server only, and without one, at each ratio.

    STCD's is the mean of the seeds that reached the gap in its hops, so that it is rather too low than too high.
    """
    found = {"svfl": cost_line(summaries(of.folder)["svfl"], of.gap, ratios)}
    hops = np.asarray(values_of(summaries("decentralised")[f"stcd-{of.graph}"], f"cc_vectors_to_{of.gap:g}"))
    hops = hops[np.isfinite(hops)]
    found["stcd"] = np.full(len(ratios), np.mean(hops) if len(hops) else np.inf)
    found["dcpa"] = np.full(len(ratios), np.mean(list(dcpa_vectors(of.graph, of.gap).values())))
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
        cells = [
            spread_of(reached),
            spread_of(list(dcpa_vectors(graph, GAP).values())),
            spread_of([run["gap"][-1] for run in runs]),
        ]
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
        row = summaries("decentralised")[f"stcd-{of.graph}"] if name == "stcd" else found.get(name)
        if row is None:
            counts = [str(len(load_dcpa(of.graph))), "", "0", spread_of(list(dcpa_vectors(of.graph, of.gap).values()))]
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


def step_table(gap: str, study: str = "step-sizes") -> str:
    """Return the rounds to a gap, ``0.001`` or ``0.01``, for each number of tokens and step size."""
    found: dict[str, dict[float, float]] = {}
    for name, row in summaries(study).items():
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
        rows.append(["SVFL" if tokens == max(found) else f"{int(tokens)} tokens", *cells])
    return table(f"rounds to {float(gap):g} | " + " | ".join(f"{step:g}" for step in steps), rows)


def network_table() -> str:
    """Return accuracy and cost of the networks, and MTCD over SVFL at equal work of the clients and of theta_0."""
    rows = []
    for kind in kinds():
        study = f"networks-{kind}"
        ours = next(name for name in by_name(study) if name.startswith("mtcd"))
        for name, row in summaries(study).items():
            reached_keys = [key for key in row["runs"][0] if key.startswith("client_server_bytes_to_")]
            level = min(reached_keys, default="").removeprefix("client_server_bytes")
            server, clients = row["client_server_bytes"] / 1e6, row["client_client_bytes"] / 1e6
            accuracy = [100 * value for value in values_of(row, "test/accuracy")]
            is_other = name != ours
            cells = [f"{by_name(study)[name][0].config['learning_rate']:g}", str(row["seeds"])]
            cells += [f"{np.mean(accuracy):.2f} ± {np.std(accuracy, ddof=1):.2f}"]
            pair = (by_seed(study, ours, "test/accuracy"), by_seed(study, name, "test/accuracy"))
            cells += [difference_text(*pair, 100) if is_other else ""]
            cells += [f"{value:.2f}" for value in (server, clients)]
            for weights in COSTS:
                pair = (by_seed(study, ours, level, weights), by_seed(study, name, level, weights))
                cells += [ratio_text(*pair) if is_other and level else ""]
            rows.append([kind, name.removesuffix("-sum"), *cells])
    head = "data | method | step | seeds | test accuracy, % | MTCD minus it | cs MB | cc MB"
    return table(f"{head} | MTCD over it, cs bytes to an accuracy | cost, rho 1 | cost, rho 10", rows)


COSTS: tuple[dict[str, float], ...] = (
    {"client_server_bytes": 1.0},
    {"client_server_bytes": 1.0, "client_client_bytes": 1.0},
    {"client_server_bytes": 10.0, "client_client_bytes": 1.0},
)
"""Client-server bytes alone, and weighted costs at ratios of 1 and 10."""
NETWORKS = ("digits", "table", "views", "quadrants")


def kinds(study: str = "networks") -> tuple[str, ...]:
    """Return the networks that were run."""
    return tuple(kind for kind in NETWORKS if by_name(f"{study}-{kind}"))


def network_step_table() -> str:
    """Return the test loss at the end of each method at each step, on the seed that chose."""
    found: dict[tuple[str, str], dict[float, float]] = {}
    for kind in kinds("network-steps"):
        for name, row in summaries(f"network-steps-{kind}").items():
            method, _, step = name.rpartition("-")
            found.setdefault((kind, method), {})[float(step)] = row["test/loss"]
    return grid_table(
        "data | method", {key: found[key] for key in sorted(found, key=lambda key: NETWORKS.index(key[0]))}
    )


def local_steps_grid(gap: str, which: str = "", num_clients: int = 40) -> str:
    """Return the fewest rounds of each method with each Q, and the product of step and Q at which it needs them."""
    found: dict[int, dict[int, tuple[float, float]]] = {}
    sizes = {int(name.partition("-")[0]) for name in by_name(f"local-step-sizes{which}")}
    for study in (f"step-sizes{which}", f"local-step-sizes{which}"):
        for name, rows in by_name(study).items():
            given, rounds = rows[0].config, rows[0].metrics.get(f"rounds_to_{gap}")
            tokens, q = int(name.partition("-")[0]), int(given["num_local_steps"])
            if tokens in sizes and rounds is not None:
                point = (float(rounds), q * float(given["learning_rate"]))
                found.setdefault(tokens, {})[q] = min(found.get(tokens, {}).get(q, (math.inf, 0.0)), point)
    all_q = sorted({q for line in found.values() for q in line})
    rows_ = []
    for tokens, line in sorted(found.items(), reverse=True):
        best = min(rounds for rounds, _ in line.values())
        cells = [f"{line[q][0]:.0f} at {line[q][1]:.2g}" if q in line else "not reached" for q in all_q]
        cells = [
            f"**{cell}**" if q in line and line[q][0] == best else cell for q, cell in zip(all_q, cells, strict=True)
        ]
        rows_.append(["SVFL" if tokens == num_clients else f"{tokens} tokens", *cells])
    return table(f"rounds to {float(gap):g} | " + " | ".join(f"Q = {q}" for q in all_q), rows_)


def best_table(num_clients: int) -> str:
    """Return what methods cost at their own best step (and Q), and their cost at some ratios over SVFL's."""
    rows = []
    for gap in ("0.01", "0.001"):
        study = f"best-{num_clients}-{gap}"
        found = summaries(study)
        for name in sorted(found, key=lambda name: (name != "svfl", -int(name.split("-")[1]) if "-" in name else 0)):
            row, given = found[name], by_name(study)[name][0].config
            cells = [f"{given['learning_rate']:.2g}", str(given["num_local_steps"]), str(row["seeds"])]
            cells += [spread_of(values_of(row, f"{key}_to_{gap}")) for key in ("rounds", "cs_vectors", "cc_vectors")]
            for ratio in (1.0, 3.0, 10.0, 30.0):
                weights = {"cs_vectors": ratio, "cc_vectors": 1.0}
                pair = [by_seed(study, each, f"_to_{gap}", weights) for each in (name, "svfl")]
                cells.append("1" if name == "svfl" else ratio_text(*pair))
            rows.append([gap, name, *cells])
    head = "gap | setting | step | Q | seeds | rounds | cs vectors | cc vectors"
    return table(f"{head} | cost over SVFL's, rho 1 | rho 3 | rho 10 | rho 30", rows)


def overlapping_table() -> str:
    """Return tokens that roam anywhere, and their cost at some ratios over that of SVFL and of DCPA."""
    rows = []
    for gap in ("0.1", "0.01"):
        dcpa = dcpa_vectors("path", float(gap))
        for study, name in [*(("overlapping", name) for name in by_name("overlapping")), ("best-40-0.01", "svfl")]:
            row, given = summaries(study)[name], by_name(study)[name][0].config
            cells = [f"{given['learning_rate']:.2g}", str(row["seeds"])]
            cells += [spread_of(values_of(row, f"{key}_to_{gap}")) for key in ("rounds", "cs_vectors", "cc_vectors")]
            for ratio in (1.0, 10.0, 100.0):
                weights = {"cs_vectors": ratio, "cc_vectors": 1.0}
                ours, svfl = (by_seed(*of, f"_to_{gap}", weights) for of in ((study, name), ("best-40-0.01", "svfl")))
                cells.append("1" if name == "svfl" else ratio_text(ours, svfl))
                cells.append(ratio_text(ours, dcpa))
            rows.append([gap, name, *cells])
    head = "gap | setting | step | seeds | rounds | cs vectors | cc vectors"
    ends = (f"rho {ratio}: cost over {other}'s" for ratio in (1, 10, 100) for other in ("SVFL", "DCPA"))
    return table(f"{head} | {' | '.join(ends)}", rows)


def method_grid(study: str, head: str) -> str:
    """Return the objective at the end of each method of a study at each step, on the seed that chose."""
    found: dict[tuple[str, ...], dict[float, float]] = {}
    for name, row in summaries(study).items():
        method = re.sub(r"-[\d.]+(e-\d+)?$", "", name)
        step = by_name(study)[name][0].config["learning_rate"]
        found.setdefault((method,), {})[float(f"{step:.3g}")] = row["training/objective"]
    return grid_table(head, found)


def sparse_curves() -> dict[str, list[Mapping[str, Any]]]:
    """Return the curves of sparse logistic regression, each with its seed, without the row of the minimum."""
    found = by_name("sparse-logistic")
    return {
        name: [{**row.curve, "seed": row.seed} for row in rows] for name, rows in found.items() if name != "minimum"
    }


SPARSE_VECTOR = 48_000.0
"""Bytes of a vector of 6,000 samples."""
SPARSE_LEVELS = (0.3, 0.2, 0.17)
"""Objectives; at zero it is 0.69."""


def sparse_table() -> str:
    """Return what sparse logistic regression costs to some objectives, and against STCD and SVFL."""
    rows, curves = [], sparse_curves()
    against = [end for end in (("stcd", "rho 1"), ("svfl", "rho 1"), ("svfl", "rho 10")) if end[0] in curves]
    for level in SPARSE_LEVELS:
        found: dict[str, dict[str, dict[int, float]]] = {}
        for name, runs in curves.items():
            of_name: dict[str, dict[int, float]] = {key: {} for key in ("hops", "cs", "cc", "rho 1", "rho 10")}
            for run in runs:
                index = next((i for i, value in enumerate(run["training/objective"]) if value <= level), None)
                if index is None:
                    hops = server = clients = math.inf
                else:
                    hops = run["iterations"][index]
                    server, clients = (
                        run[f"client_{end}_bytes"][index] / SPARSE_VECTOR for end in ("server", "client")
                    )
                line = (hops, server, clients, server + clients, 10 * server + clients)
                for column, value in zip(of_name.values(), line, strict=True):
                    column[run["seed"]] = value
            found[name] = of_name
        for name, of_name in found.items():
            given = by_name("sparse-logistic")[name][0].config
            cells = [f"{step_of(given):.3g}", str(len(curves[name]))]
            cells += [spread_of(list(of_name[key].values())) for key in ("hops", "cs", "cc")]
            for other, ratio in against:
                cells.append("1" if name == other else ratio_text(of_name[ratio], found[other][ratio]))
            rows.append([f"{level:g}", name, *cells])
    head = "objective | method | step | seeds | hops | cs vectors | cc vectors"
    ends = (f"cost over {other.upper()}'s, {ratio}" for other, ratio in against)
    return table(f"{head} | {' | '.join(ends)}", rows)


def step_of(config: Mapping[str, Any]) -> float:
    """Return the step size that is tuned: of DCPA the dual one."""
    return float(config["dcpa_dual_step" if config["algorithm"] == "dcpa" else "learning_rate"])


def sparse_step_table() -> str:
    """Return the objective of each method at each of its six steps, on the seed that chose, the least bold."""
    found: dict[str, dict[float, float]] = {}
    for name, row in summaries("sparse-logistic-steps").items():
        step = step_of(by_name("sparse-logistic-steps")[name][0].config)
        found.setdefault(name.rsplit("-", 2 if "e-" in name else 1)[0], {})[step] = row["training/objective"]
    rows = []
    for method, line in found.items():
        best = min(line.values())
        cells = [f"{value:.4f} at {step:.3g}" for step, value in sorted(line.items())]
        rows.append([method, *(f"**{cell}**" if cell.startswith(f"{best:.4f}") else cell for cell in cells)])
    return table("method, objective at its step | " + " | ".join(str(n + 1) for n in range(6)), rows)


def compression_table() -> str:
    """Return what compressed representations and tokens cost to 1e-2 and 1e-3, in vectors of 8 kB, over plain ones."""
    rows = []
    for name, row in summaries("compression").items():
        method = "svfl" if name.startswith("svfl") else "mtcd-8-sweep"
        cells = [str(row["seeds"]), spread_of(values_of(row, "rounds_to_0.01"))]
        for gap in ("0.01", "0.001"):
            cells.append(spread_of(values_of(row, f"vectors_to_{gap}")))
            pair = [by_seed("compression", each, f"vectors_to_{gap}") for each in (name, f"{method}-plain")]
            cells.append("1" if name.endswith("plain") else ratio_text(*pair))
        rows.append([method, name.removeprefix(f"{method}-"), *cells, number(row["gap"])])
    head = "method | transform | seeds | rounds to 1e-2 | vectors to 1e-2 | over plain | vectors to 1e-3 | over plain"
    return table(f"{head} | gap at the end", rows)


def privacy_table() -> str:
    """Return test accuracy and loss by the noise on what clients send, and what it amounts to for a row at a party."""
    rows = []
    for name, row in summaries("privacy").items():
        method, _, multiplier = name.partition("-noise-")
        accuracy = spread_of([100 * value for value in values_of(row, "test/accuracy")])
        step = f"{by_name('privacy')[name][0].config['learning_rate']:g}"
        spent = [number(row[key]) if key in row else "none" for key in ("mu", "epsilon")]
        rows.append(
            [method, f"{float(multiplier):g}", step, *spent, str(row["seeds"]), accuracy, number(row["test/loss"])]
        )
    return table("method | noise over clip | step | mu | epsilon | seeds | test accuracy, % | test loss", rows)


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
        ratios = [local / other for local, other in zip(took, base, strict=True)]
        cells = [number(row["seconds_per_round"]), number(row["stated_seconds_per_round"])]
        cells += [f"{100 * (row['seconds_per_round'] / row['stated_seconds_per_round'] - 1):.1f} %"]
        cells += [spread_of(values_of(row, f"{key}_to_0.01")) for key in ("rounds", "seconds")]
        against = "1" if setting == "svfl" else f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append([setting, ratio, str(row["seeds"]), *cells, against])
    head = "setting | clients' links over the server's | seeds | seconds a round | Section 4.1 | apart | rounds to 1e-2"
    return table(f"{head} | seconds to 1e-2 | over SVFL (least to most)", rows)


ALL_TABLES: dict[str, Callable[[], str]] = {
    "decentralised": decentralised_table,
    **{name: functools.partial(semi_table, of) for name, of in COMPARISONS.items()},
    "ranges": range_table,
    "step-sizes": functools.partial(step_table, "0.001"),
    "step-sizes-coarse": functools.partial(step_table, "0.01"),
    "networks": network_table,
    "network-steps": network_step_table,
    "local-step-sizes": functools.partial(local_steps_grid, "0.001"),
    "local-step-sizes-coarse": functools.partial(local_steps_grid, "0.01"),
    "local-step-sizes-80": functools.partial(local_steps_grid, "0.001", "-80", 80),
    "local-step-sizes-80-coarse": functools.partial(local_steps_grid, "0.01", "-80", 80),
    "best-40": functools.partial(best_table, 40),
    "best-80": functools.partial(best_table, 80),
    "overlapping": overlapping_table,
    "sparse-logistic": sparse_table,
    "sparse-logistic-steps": sparse_step_table,
    "compression": compression_table,
    "privacy": privacy_table,
    "step-sizes-80": functools.partial(step_table, "0.001", "step-sizes-80"),
    "step-sizes-80-coarse": functools.partial(step_table, "0.01", "step-sizes-80"),
    "overlapping-steps": lambda: method_grid("overlapping-steps", "objective after 100 rounds"),
    "speed": speed_table,
    "overlap": overlap_table,
    "clock": clock_table,
    "tokens": lambda: setting_table("tokens"),
    "hops": lambda: setting_table("hops"),
    "local-steps": lambda: setting_table("local-steps"),
}
STUDIES = {
    "step-sizes-coarse": ("step-sizes",),
    "step-sizes-80-coarse": ("step-sizes-80",),
    "decentralised": ("decentralised", "dcpa"),
    "ranges": tuple(COMPARISONS),
    **{study: tuple(f"{study}-{kind}" for kind in kinds(study)) for study in ("networks", "network-steps")},
    **{f"local-step-sizes{which}": ("step-sizes", "local-step-sizes") for which in ("", "-coarse")},
    **{f"local-step-sizes-80{which}": ("step-sizes-80", "local-step-sizes-80") for which in ("", "-coarse")},
    "overlapping": ("overlapping", "best-40-0.01"),
    **{f"best-{number}": tuple(f"best-{number}-{gap}" for gap in ("0.01", "0.001")) for number in (40, 80)},
}
"""Studies that a table stands on, where it is not the one of its name."""
TABLES = {
    name: make for name, make in ALL_TABLES.items() if (of := STUDIES.get(name, (name,))) and all(map(by_name, of))
}
"""Those whose studies have been run."""


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

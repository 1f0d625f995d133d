"""Figures 2 and 3: without a server, one token (STCD) against dual consensus (DCPA) on three graphs.

Relative gap against iterations (hops of the token; iterations of DCPA) and against vectors sent. DCPA at the dual step
that needs the fewest iterations on the first seed (tried: 0.003 to 1 and the automatic one), found with a plain loop.

    python scenarios/paper/mtcd/decentralised.py            40 clients, 2 seeds (3 for STCD on the complete graph),
                                                            20,000 hops, DCPA to a gap of 1e-3 on one seed
    python scenarios/paper/mtcd/decentralised.py --full     5 seeds, 40,000 hops, both step sizes of STCD everywhere
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
import series

from fedactors.config import build
from fedactors.network import topology
from protocols.mtcd import objective
from protocols.mtcd.baselines import dcpa
from protocols.mtcd.cast import make_graph
from protocols.mtcd.config import MtcdConfig
from protocols.mtcd.data import load_data, stack

GRAPHS = ("complete", "erdos-renyi", "path")
DUALS = (0.01, 0.03, 0.1, None)
MOST_ITERATIONS = 3000


def best_dual(settings: dict[str, Any]) -> tuple[str, int]:
    """Return the dual step that reaches 1e-3 first (or the least gap) on seed 0, and the iterations it took."""
    config = build(MtcdConfig, settings)
    data = load_data(config, "synthetic", 0)
    x_NF, y_N = stack(data) or (np.zeros(0), np.zeros(0))
    problem = objective.Ridge(config.ridge_penalty)
    _, optimum = objective.solve(problem, x_NF, y_N)
    blocks = [data.load(client).train for client in range(config.num_clients)]
    laplacian_KK = dcpa.consensus_matrix(topology.metropolis_weights(make_graph(config, 0)))
    found = []
    for dual in DUALS:
        steps = dcpa.auto_steps(problem, blocks, laplacian_KK, dual)
        states = [dcpa.start_state(len(y_N), x_ND.shape[1]) for x_ND in blocks]
        gap, iteration = math.inf, 0
        for iteration in range(1, MOST_ITERATIONS + 1):
            mixed_KN = laplacian_KK @ np.array([state.y for state in states])
            states = [
                dcpa.iterate(problem, x_ND, y_N, state, mixed_N, steps, len(blocks))
                for x_ND, state, mixed_N in zip(blocks, states, mixed_KN, strict=True)
            ]
            if iteration % 25 == 0:
                value = objective.objective(problem, blocks, y_N, [state.w for state in states])
                gap = objective.relative_gap(value, optimum)
                if gap <= 1e-3 or gap > 1e6 or (found and iteration > found[0][0]):
                    break
        found.append((iteration if gap <= 1e-3 else MOST_ITERATIONS * (1 + gap), "auto" if dual is None else str(dual)))
        found.sort()
        print(f"dual step {dual}: gap {gap:.3g} after {iteration} iterations", flush=True)
    return found[0][1], int(found[0][0])


def main() -> None:
    """Run both methods on each graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--graphs", nargs="+", default=GRAPHS)
    args = parser.parse_args()
    num_hops = 40_000 if args.full else 20_000
    for graph in args.graphs:
        common = {"num_clients": 40, "topology": graph, "edge_probability": 0.3}
        walk = {**common, "algorithm": "stcd", "num_hops": 99, "num_local_steps": 20, "local_arithmetic": "gram"}
        seeds = range(5 if args.full else 3 if graph == "complete" else 2)
        for rate in ("auto", "1e-4") if args.full or graph == "complete" else ("auto",):
            name = f"stcd-{graph}" if rate == "auto" else f"stcd-{graph}-{rate}"
            rounds = {"num_rounds": num_hops // 100, "record_every": 4}
            series.record("decentralised", name, {**walk, **rounds, "learning_rate": rate}, seeds)
        settings = {
            **common,
            "algorithm": "dcpa",
            "num_rounds": MOST_ITERATIONS,
            "record_every": 25,
            "target_gap": 1e-3,
        }
        dual, _ = best_dual(settings)
        few = seeds if args.full else seeds[:1]
        series.record("decentralised", f"dcpa-{graph}", {**settings, "dcpa_dual_step": dual}, few)


if __name__ == "__main__":
    main()

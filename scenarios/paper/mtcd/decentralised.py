"""Figures 2 and 3: without a server, one token (STCD) against dual consensus (DCPA) on three graphs.

Relative gap against iterations (hops of the token; iterations of DCPA) and against vectors sent. DCPA at the dual step
that needs the fewest iterations on seed 0, whatever seeds are asked for (tried: 0.01, 0.03, 0.1 and the automatic one),
in a plain loop, to a gap of 1e-3: the run over actors gives the same numbers and the ledger the same vectors, as a test
shows, and takes far longer.

    python scenarios/paper/mtcd/decentralised.py            40 clients, 5 seeds, 20,000 hops
    python scenarios/paper/mtcd/decentralised.py --paper     40,000 hops
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from _study import MtcdStudy, small

from fedactors.config import as_dict, build
from fedactors.network import topology
from fedactors.protocols.mtcd import objective
from fedactors.protocols.mtcd.baselines import dcpa
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import GeneratedData, load_data, stack
from fedactors.protocols.mtcd.roaming import make_graph
from fedactors.runs.table import RunRow

GRAPHS = ("complete", "erdos-renyi", "path")
DUALS = (0.03, 0.01, 0.05, 0.1, None, 0.02, 0.015, 0.007, 0.005, 0.003)
MOST_ITERATIONS = 2500


def iterations(
    problem: objective.Problem,
    blocks: Sequence[objective.Array],
    y_N: objective.Array,
    laplacian_KK: objective.Array,
    steps: dcpa.DcpaSteps,
) -> Iterator[list[dcpa.DcpaState]]:
    """Yield all clients' states after each iteration of DCPA."""
    zero_N = np.zeros(len(y_N))
    states = [dcpa.DcpaState(np.zeros(x_ND.shape[1]), zero_N, zero_N) for x_ND in blocks]
    while True:
        mixed_KN = laplacian_KK @ np.array([state.y for state in states])
        states = [
            dcpa.iterate(problem, x_ND, y_N, state, mixed_N, steps, len(blocks))
            for x_ND, state, mixed_N in zip(blocks, states, mixed_KN, strict=True)
        ]
        yield states


def run_dcpa(settings: dict[str, Any], seed: int, dual: float | None, most: int) -> dict[str, Any]:
    """Return one run's curve of gap and vectors, to 1e-3, divergence, or `most` iterations."""
    config = build(MtcdConfig, settings)
    data = load_data(config, "synthetic", seed)
    assert isinstance(data, GeneratedData)
    x_NF, y_N = stack(data)
    problem = objective.Ridge(config.ridge_penalty)
    _, optimum = objective.solve(problem, x_NF, y_N)
    blocks = [data.load(client).train for client in range(config.num_clients)]
    graph = make_graph(config, seed)
    laplacian_KK = dcpa.consensus_matrix(topology.metropolis_weights(graph))
    largest = max(objective.largest_gram_eigenvalue([x_ND]) for x_ND in blocks)
    norm = float(np.linalg.norm(laplacian_KK, 2))
    steps = dcpa.steps_within(problem, largest, len(y_N), len(blocks), norm, dual)
    curve: dict[str, Any] = {"dual_step": steps.dual, "iterations": [], "gap": [], "vectors": []}
    all_states = iterations(problem, blocks, y_N, laplacian_KK, steps)
    for iteration, states in zip(range(1, most + 1), all_states, strict=False):
        if iteration % 25 == 0 or iteration == most:
            value = objective.objective(problem, blocks, y_N, [state.w for state in states])
            curve["iterations"].append(iteration)
            curve["gap"].append(float(f"{objective.relative_gap(value, optimum):.6g}"))
            curve["vectors"].append(2 * graph.number_of_edges() * iteration)
            if not 1e-3 < curve["gap"][-1] < 1e6:
                break
    return curve


def tuned_dcpa(study: MtcdStudy, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a run per seed at the dual step that reaches 1e-3 first, or comes nearest, on seed 0."""
    best: Any = None
    chosen = None
    most = 2 if study.smoke else MOST_ITERATIONS
    for dual in DUALS:
        curve = run_dcpa(settings, 0, dual, most)
        print(f"dual step {curve['dual_step']:.3g}: {curve['gap'][-1]:.3g} after {curve['iterations'][-1]}", flush=True)
        gap, iterations = curve["gap"][-1], curve["iterations"][-1]
        rank = (0, iterations) if gap <= 1e-3 else (1, gap)
        if best is None or rank < best[0]:
            best, chosen = (rank, curve), dual
            most = iterations if gap <= 1e-3 else most
    seeds = study.seeds[:1] if study.smoke else study.seeds
    return [best[1] if seed == 0 else run_dcpa(settings, seed, chosen, MOST_ITERATIONS) for seed in seeds]


def dcpa_row(settings: dict[str, Any], seed: int, run: dict[str, Any]) -> RunRow:
    """Return the row of one of DCPA's runs."""
    curve = {name: run[name] for name in ("iterations", "gap", "vectors")}
    metrics = {name: values[-1] for name, values in curve.items()}
    extra = {"dual_step": run["dual_step"]}
    config = as_dict(build(MtcdConfig, settings))
    return RunRow(
        protocol="mtcd", seed=seed, data="synthetic", config=config, metrics=metrics, curve=curve, extra=extra
    )


def main() -> None:
    """Run both methods on each graph."""
    study = MtcdStudy.of(__doc__)
    num_hops = 40_000 if study.paper else 20_000
    for graph in GRAPHS:
        common = {"num_clients": 40, "topology": graph, "edge_probability": 0.3}
        walk = {**common, "algorithm": "stcd", "num_hops": 99, "num_local_steps": 20, "local_arithmetic": "gram"}
        rounds = {"num_rounds": num_hops // 100, "record_every": 4}
        for rate in ("auto", "1e-4", "1e-5") if graph == "complete" else ("auto",):
            name = f"stcd-{graph}" if rate == "auto" else f"stcd-{graph}-{rate}"
            study.record("decentralised", {name: {**walk, **rounds, "learning_rate": rate}})
        if study.wants(f"decentralised/dcpa-{graph}") and study.lacks("dcpa", graph, len(study.seeds)):
            settings = {**common, "algorithm": "dcpa"}
            runs = tuned_dcpa(study, small(settings) if study.smoke else settings)
            study.put(
                "dcpa", graph, [dcpa_row(settings, seed, run) for seed, run in zip(study.seeds, runs, strict=False)]
            )


if __name__ == "__main__":
    main()

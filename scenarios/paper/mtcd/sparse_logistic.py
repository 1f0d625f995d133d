"""Figure 3: sparse logistic regression at Gisette's shape, 6,000 samples of 5,000 features over 40 clients.

Generated data (Gisette itself is not at hand); L1 by a proximal step after each local step; Q = 5; an Erdos-Renyi
graph. STCD against DCPA (a plain loop over the clients' own function) without a server; SVFL and 8 tokens beside them.
Every method has six step sizes (DCPA: dual ones); the best has the least objective on seed 0 after 10 rounds of 40
blocks (DCPA: 30 iterations), and the seeds that follow are others. The minimum of each of these, found once to a
duality gap of 1e-3 of it, is a row of its own.

    python scenarios/paper/mtcd/sparse_logistic.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _study import MtcdStudy, Setting, small
from decentralised import iterations

from fedactors.config import as_dict, build
from fedactors.network import topology
from fedactors.protocols.mtcd.baselines import dcpa
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.data import GeneratedData, load_data, stack
from fedactors.protocols.mtcd.objective import (
    Array,
    SparseLogistic,
    largest_gram_eigenvalue,
    objective,
    solve_sparse_logistic,
)
from fedactors.protocols.mtcd.roaming import make_graph
from fedactors.runs.table import RunRow

Q = 5
BASE: dict[str, Any] = {
    **{"problem": "sparse-logistic", "num_samples": 6000, "num_features": 5000, "num_clients": 40},
    **{"topology": "erdos-renyi", "edge_probability": 0.3, "num_local_steps": Q},
    **{"measure_gap": False, "min_cluster_size": 1, "num_rounds": 40},
}
METHODS: dict[str, dict[str, Any]] = {
    "stcd": {"algorithm": "stcd", "num_hops": 39},
    "svfl": {"algorithm": "svfl"},
    "mtcd-8-sweep": {"num_tokens": 8, "num_hops": 4, "walk": "sweep"},
}
MOVED = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Step times Q where blocks move at once; 1/L is about 1.1."""
ALONE = (5.0, 10.0, 20.0, 30.0, 40.0, 60.0)
"""The same for one block at a time; 1/L_block is about 3, and Q of these are to be done."""
DUALS = (1.25e-5, 2.5e-5, 5e-5, 1e-4, 2e-4, 4e-4)
"""Dual steps of DCPA; the automatic one is about 4e-4."""
ITERATIONS = 40
"""Of DCPA."""


def minimum(setting: Setting, seed: int) -> RunRow:
    """Return the row of a seed's minimum."""
    config = build(MtcdConfig, setting.settings)
    data = load_data(config, setting.data, seed)
    assert isinstance(data, GeneratedData)
    x_NF, y_N = stack(data)
    step = 1.0 / (1.05 * SparseLogistic().curvature(len(y_N)) * largest_gram_eigenvalue([x_NF], tolerance=1e-4))
    theta_F = solve_sparse_logistic(x_NF, y_N, config.l1_penalty, tolerance=1e-3, step=step)
    found = objective(SparseLogistic(config.l1_penalty), [x_NF], y_N, [theta_F])
    metrics = {"training/objective": found, "non_zero": float((theta_F != 0.0).sum())}
    return RunRow(protocol="mtcd", seed=seed, data=setting.data, config=as_dict(config), metrics=metrics)


def squared_norm(x_ND: Array) -> float:
    """Return ||X||_2^2 of a block with few features."""
    return float(np.linalg.eigvalsh(x_ND.T @ x_ND)[-1])


def once_dcpa(setting: Setting, seed: int) -> RunRow:
    """Return one run of DCPA, `num_rounds` iterations."""
    config = build(MtcdConfig, setting.settings)
    data = load_data(config, setting.data, seed)
    assert isinstance(data, GeneratedData)
    problem, (_, y_N) = SparseLogistic(config.l1_penalty), stack(data)
    blocks = [data.load(client).train for client in range(config.num_clients)]
    graph = make_graph(config, seed)
    laplacian_KK = dcpa.consensus_matrix(topology.metropolis_weights(graph))
    largest, norm = max(map(squared_norm, blocks)), float(np.linalg.norm(laplacian_KK, 2))
    dual = None if config.dcpa_dual_step == "auto" else config.dcpa_dual_step
    steps = dcpa.steps_within(problem, largest, len(y_N), len(blocks), norm, dual)
    curve: dict[str, list[float]] = {"round": [], "iterations": [], "client_client_bytes": [], "training/objective": []}
    all_states = iterations(problem, blocks, y_N, laplacian_KK, steps)
    for iteration, states in zip(range(1, config.num_rounds + 1), all_states, strict=False):
        value = objective(problem, blocks, y_N, [state.w for state in states])
        line = (iteration, iteration, 8 * len(y_N) * 2 * graph.number_of_edges() * iteration, value)
        for column, number in zip(curve.values(), line, strict=True):
            column.append(float(number))
    curve["client_server_bytes"] = [0.0] * len(curve["round"])
    metrics = {name: column[-1] for name, column in curve.items()}
    given = as_dict(config)
    return RunRow(protocol="mtcd", seed=seed, data=setting.data, config=given, metrics=metrics, curve=curve)


def main() -> None:
    """Ask for the step of each method, then run them over the seeds."""
    study = MtcdStudy.of(__doc__, seeds=(1, 2, 3))
    few = 1 if study.smoke else None
    base = small(BASE) if study.smoke else BASE
    for name, method in METHODS.items():
        shape = {**BASE, **method}
        tried = {
            f"{name}-{moved:g}": {**shape, "learning_rate": moved / Q, "num_rounds": 10}
            for moved in (ALONE if name == "stcd" else MOVED)[:few]
        }
        study.record("sparse-logistic-steps", tried, seeds=(0,))
        step = study.best("sparse-logistic-steps", tried, "training/objective", MOVED[0] / Q)
        study.record("sparse-logistic", {name: {**shape, "learning_rate": step}})
    shape = {**base, "algorithm": "dcpa"}
    duals = {
        f"dcpa-{dual:g}": {**shape, "dcpa_dual_step": dual, "num_rounds": 2 if few else 30} for dual in DUALS[:few]
    }
    study.measure("sparse-logistic-steps", {k: Setting(settings=v) for k, v in duals.items()}, once_dcpa, seeds=(0,))
    dual = study.best("sparse-logistic-steps", duals, "training/objective", DUALS[0], "dcpa_dual_step")
    last = {**shape, "dcpa_dual_step": dual, "num_rounds": 2 if few else ITERATIONS}
    study.measure("sparse-logistic", {"dcpa": Setting(settings=last)}, once_dcpa, all_seeds=True)
    least = {"minimum": Setting(settings={**base, "algorithm": "svfl"})}
    study.measure("sparse-logistic", least, minimum, all_seeds=True)


if __name__ == "__main__":
    main()

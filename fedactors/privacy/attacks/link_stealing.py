"""Link stealing: from what is seen of two nodes to whether an edge joins them (He et al., 2021, attack 0).

Layers of a graph network average over neighbours, so that what is sent of joined nodes is alike.

Shapes: N nodes, D width of what is seen, P pairs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pair_scores(seen_ND: Array, pairs_2P: NDArray[np.int64]) -> Array:
    """Return for each pair the correlation of what is seen of its nodes: higher for joined ones."""
    centred = np.asarray(seen_ND, np.float64) - np.mean(seen_ND, axis=0)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-30)
    scores: Array = np.sum(unit[pairs_2P[0]] * unit[pairs_2P[1]], axis=1)
    return scores


def sample_pairs(edges_2E: NDArray[np.int64], num_nodes: int, count: int, seed: int) -> tuple[Array, Array]:
    """Return up to `count` edges and as many pairs without one (2 x P), and which are edges (P)."""
    rng = np.random.default_rng(seed)
    chosen = edges_2E[:, rng.permutation(edges_2E.shape[1])[:count]]
    known = set((edges_2E.min(axis=0) * num_nodes + edges_2E.max(axis=0)).tolist())
    drawn = rng.integers(0, num_nodes, (2, 4 * chosen.shape[1]))
    free = [a != b and min(a, b) * num_nodes + max(a, b) not in known for a, b in drawn.T.tolist()]
    others = drawn[:, np.array(free, dtype=bool)][:, : chosen.shape[1]]
    truth = np.r_[np.ones(chosen.shape[1], dtype=bool), np.zeros(others.shape[1], dtype=bool)]
    return np.concatenate([chosen, others], axis=1), truth

"""Graph data sets: Planetoid, Zachary's karate club, and stochastic block models of any size.

Shapes: N nodes, F features, E undirected edges (each once, smaller node first).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedactors.data.catalogue import Dataset, describe
from fedactors.data.planetoid import read_planetoid
from fedactors.errors import BadInput

Index = NDArray[np.int64]

_AVERAGE_DEGREE = 10.0
_SAME_CLASS = 0.8


@dataclass(frozen=True, kw_only=True)
class GraphDataset:
    """One graph with node features and node labels, read-only."""

    features: NDArray[np.float32]
    labels: Index
    edges: Index
    num_classes: int


@functools.lru_cache(maxsize=2)
def load_graph(name: str) -> GraphDataset:
    """Load a graph; repeated calls in one process share the arrays.

    Raises:
        BadInput: unknown name, or a file that does not hold what the catalogue states.
        DataMissing: a file is not on this machine.
    """
    dataset = describe(name)
    base = dataset.name.partition(":")[0]
    if base == "karate":
        features, labels, edges = _karate()
    elif base == "blocks":
        features, labels, edges = _blocks(dataset)
    elif dataset.kind == "graph":
        features, labels, edges = read_planetoid(base)
    else:
        raise BadInput(f"data: {name!r} is of kind {dataset.kind}; a graph is needed here")
    if features.shape != (dataset.rows, dataset.columns):
        raise BadInput(f"{name}: the files hold {features.shape} nodes and features, expected {dataset.rows} nodes")
    for array in (features, labels, edges):
        array.flags.writeable = False
    return GraphDataset(features=features, labels=labels, edges=edges, num_classes=dataset.num_classes)


def to_csr(edges_E2: Index, num_nodes: int) -> tuple[Index, Index]:
    """Return (indptr (N+1,), indices (2E,)) of the symmetric adjacency, neighbours of each node in ascending order."""
    source = np.concatenate([edges_E2[:, 0], edges_E2[:, 1]])
    target = np.concatenate([edges_E2[:, 1], edges_E2[:, 0]])
    order = np.lexsort((target, source))
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(source, minlength=num_nodes), out=indptr[1:])
    return indptr, target[order]


def csr_of(edges_2E: Index, num_nodes: int) -> tuple[Index, Index]:
    """Return (indptr (N+1,), indices) of any edge list (2, E), neighbours of each node in ascending order.

    Each edge counts in both directions; repeats and self loops are dropped.
    """
    left, right = edges_2E[0].astype(np.int64), edges_2E[1].astype(np.int64)
    distinct = left != right
    left, right = left[distinct], right[distinct]
    codes = np.concatenate([left * num_nodes + right, right * num_nodes + left])
    codes.sort()
    if len(codes):
        codes = codes[np.concatenate([[True], codes[1:] != codes[:-1]])]
    heads, indices = np.divmod(codes, max(num_nodes, 1))
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(heads, minlength=num_nodes), out=indptr[1:])
    return indptr, indices


def _karate() -> tuple[NDArray[np.float32], Index, Index]:
    import networkx as nx

    graph = nx.karate_club_graph()
    labels = np.asarray([graph.nodes[node]["club"] != "Mr. Hi" for node in graph], np.int64)
    edges = np.sort(np.asarray(graph.edges, np.int64), axis=1)
    return np.eye(len(labels), dtype=np.float32), labels, np.unique(edges, axis=0)


def _blocks(dataset: Dataset) -> tuple[NDArray[np.float32], Index, Index]:
    """Make a stochastic block model with features: drawn edge by edge, so that millions of edges take seconds.

    Each of the N * 5 drawn edges joins a node with one of the same class with probability 0.8 and with any node else;
    features are a class centre plus unit noise. Repeated edges and self-loops are dropped.
    """
    rng = np.random.default_rng(0)
    rows, columns, classes = dataset.rows, dataset.columns, dataset.num_classes
    labels = np.sort(np.arange(rows, dtype=np.int64) % classes)
    starts = np.searchsorted(labels, np.arange(classes + 1))
    num_edges = int(rows * _AVERAGE_DEGREE / 2)
    source = rng.integers(0, rows, num_edges)
    low, high = starts[labels[source]], starts[labels[source] + 1]
    near = low + (rng.random(num_edges) * (high - low)).astype(np.int64)
    target = np.where(rng.random(num_edges) < _SAME_CLASS, near, rng.integers(0, rows, num_edges))
    order = rng.permutation(rows)  # the place of a node must not give its class away
    source, target = order[source], order[target]
    shuffled = np.empty_like(labels)
    shuffled[order] = labels
    pairs = np.stack([np.minimum(source, target), np.maximum(source, target)], axis=1)
    centres = rng.standard_normal((classes, columns)).astype(np.float32) * np.float32(2.0 / columns**0.25)
    features = centres[shuffled] + rng.standard_normal((rows, columns), dtype=np.float32)
    return features, shuffled, np.unique(pairs[source != target], axis=0)

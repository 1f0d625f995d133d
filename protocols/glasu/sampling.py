"""Neighbour sampling over a client's own edges, and the sparse blocks that the layers work on (Algorithm 2).

Shapes: N nodes, E edges or sampled pairs, T nodes at a layer's output level, S nodes at its input level.
Index sets are sorted arrays of distinct node numbers. Nothing here loops over nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedactors.actors.context import derived_rng
from fedactors.data.datasets.load import csr_of
from fedactors.errors import Refused

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Adjacency:
    """An undirected graph without self loops in CSR form: the neighbours of i are indices[indptr[i]:indptr[i+1]]."""

    indptr: IntArray
    indices: IntArray

    @property
    def num_nodes(self) -> int:
        """Number of nodes, isolated ones included."""
        return len(self.indptr) - 1

    @property
    def degrees(self) -> IntArray:
        """Number of neighbours of each node."""
        return np.diff(self.indptr)

    @property
    def edges(self) -> IntArray:
        """Each undirected edge once, the smaller node first; shape (2, E)."""
        rows = np.repeat(np.arange(self.num_nodes), self.degrees)
        once = rows < self.indices
        return np.stack([rows[once], self.indices[once]])


@dataclass(frozen=True)
class SampledLayer:
    """What one layer reads: for each output node the sampled neighbours, and the input level that holds them.

    ``rows_E`` are positions in ``targets_T``; ``neighbours_E`` are node numbers; ``sources_S`` contains
    the targets, the neighbours and, after a union, what other clients sampled.
    """

    targets_T: IntArray
    rows_E: IntArray
    neighbours_E: IntArray
    sources_S: IntArray

    def with_sources(self, sources_S: IntArray) -> SampledLayer:
        """Return the layer over a larger input level, such as the union of all clients' index sets."""
        return SampledLayer(self.targets_T, self.rows_E, self.neighbours_E, sources_S)


_DENSE = 16
"""A mark for each node up to the largest is quicker than sorting if there are no more than so many for each member."""


@dataclass(frozen=True)
class Block:
    """The sampled and normalised adjacency matrix A(E(S[l+1], S[l])) in CSR form, T rows by S columns.

    Each row holds its own node and its neighbours. ``root_T`` is each output node's position in the input level.
    """

    indptr: IntArray
    indices: IntArray
    weights: FloatArray
    num_sources: int
    root_T: IntArray

    @property
    def num_targets(self) -> int:
        """Number of rows T."""
        return len(self.indptr) - 1


def adjacency(edges_2E: IntArray, num_nodes: int) -> Adjacency:
    """Build the CSR form of an edge list; each edge counts in both directions, repeats and self loops are dropped."""
    return Adjacency(*csr_of(edges_2E, num_nodes))


def choose_batch(train_nodes: IntArray, batch_size: int | None, rng: np.random.Generator) -> IntArray:
    """Draw S[L], `batch_size` distinct training nodes in ascending order; all of them where it is None or larger."""
    if batch_size is None or batch_size >= len(train_nodes):
        return np.sort(train_nodes)
    return np.sort(rng.choice(train_nodes, size=batch_size, replace=False))


def check_sampled(client: str, nodes_S: IntArray, num_nodes: int) -> None:
    """Check a client's index set before it goes to the others, who would name the server for it.

    Raises:
        Refused: naming the client; it names nodes that there are not, or one twice.
    """
    is_sorted = bool((nodes_S[1:] > nodes_S[:-1]).all())
    if len(nodes_S) and not (nodes_S[0] >= 0 and nodes_S[-1] < num_nodes and is_sorted):
        raise Refused(client, f"samples nodes that are not in order, each once, from 0 to {num_nodes - 1}")


def batch_of(
    train_nodes: IntArray, batch_size: int | None, run_seed: int, round: int, attempt: int, server: str
) -> IntArray:
    """Return the batch of a round, which the server draws, and each client by itself: nobody chooses its nodes."""
    return choose_batch(train_nodes, batch_size, derived_rng(run_seed, server, f"batch {round}/{attempt}"))


def sample_neighbours(
    graph: Adjacency, targets_T: IntArray, num_neighbours: int | None, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Draw up to `num_neighbours` distinct neighbours of each target, uniformly; None takes all of them.

    Returns rows_E (positions in `targets_T`, ascending) and neighbours_E (node numbers). Distinct positions come
    from Floyd's method, done for all targets at once: its loop runs over `num_neighbours`, not over nodes.
    """
    starts, degrees = graph.indptr[targets_T], graph.indptr[targets_T + 1] - graph.indptr[targets_T]
    wanted = degrees if num_neighbours is None else np.minimum(degrees, num_neighbours)
    rows_E = np.repeat(np.arange(len(targets_T)), wanted)
    firsts = np.cumsum(wanted) - wanted
    offsets_E = np.arange(len(rows_E)) - np.repeat(firsts, wanted)
    many = np.flatnonzero(degrees > wanted)
    if len(many) and num_neighbours:
        chosen = np.empty((len(many), num_neighbours), dtype=np.int64)
        for step in range(num_neighbours):
            last = degrees[many] - num_neighbours + step
            drawn = rng.integers(0, last + 1)
            taken = (chosen[:, :step] == drawn[:, None]).any(axis=1)
            chosen[:, step] = np.where(taken, last, drawn)
        offsets_E[firsts[many][:, None] + np.arange(num_neighbours)] = np.sort(chosen, axis=1)
    return rows_E, graph.indices[np.repeat(starts, wanted) + offsets_E]


def sample_segment(
    graph: Adjacency, targets_T: IntArray, num_layers: int, num_neighbours: int | None, rng: np.random.Generator
) -> list[SampledLayer]:
    """Sample the layers between two aggregations, from the top level down (Algorithm 2, the client's inner loop).

    Returns the layers in the order of the network, lowest first; the lowest one's sources are what the client
    contributes to the union.
    """
    layers: list[SampledLayer] = []
    for _ in range(num_layers):
        rows_E, neighbours_E = sample_neighbours(graph, targets_T, num_neighbours, rng)
        layer = SampledLayer(targets_T, rows_E, neighbours_E, union([targets_T, neighbours_E]))
        layers.insert(0, layer)
        targets_T = layer.sources_S
    return layers


def union(index_sets: Sequence[IntArray]) -> IntArray:
    """Return the sorted union of index sets (Algorithm 2, the server's step); without sorting where they are dense."""
    nodes = np.concatenate(list(index_sets))
    top = int(nodes.max(initial=-1)) + 1
    if len(nodes) * _DENSE < top:
        return np.unique(nodes)
    is_member = np.zeros(top, dtype=bool)
    is_member[nodes] = True
    return np.flatnonzero(is_member)


def positions(sources_S: IntArray, nodes_E: IntArray) -> IntArray:
    """Return where nodes stand in an index set that holds them all; without searching where they are dense."""
    top = int(sources_S[-1]) + 1 if len(sources_S) else 0
    if len(nodes_E) * _DENSE < top:
        return np.searchsorted(sources_S, nodes_E)
    lookup = np.empty(top, dtype=np.int64)
    lookup[sources_S] = np.arange(len(sources_S))
    return lookup[nodes_E]


def block(graph: Adjacency, layer: SampledLayer) -> Block:
    """Weigh the sampled pairs of a layer.

    The weights are those of D^-1/2 (A + I) D^-1/2 of the client's graph; a sampled neighbour of i counts
    degree(i) / sampled(i) times, so that the expectation over samples is the full row, and a row sampled
    completely is that row exactly.
    """
    num_targets = len(layer.targets_T)
    sampled_T = np.bincount(layer.rows_E, minlength=num_targets)
    degrees_T = graph.indptr[layer.targets_T + 1] - graph.indptr[layer.targets_T]
    degrees_E = graph.indptr[layer.neighbours_E + 1] - graph.indptr[layer.neighbours_E]
    root_T = positions(layer.sources_S, layer.targets_T)
    counts = sampled_T + 1
    indptr = np.concatenate([[0], np.cumsum(counts)])
    indices = np.empty(indptr[-1], dtype=np.int64)
    weights = np.empty(indptr[-1], dtype=np.float64)
    indices[indptr[:-1]] = root_T
    weights[indptr[:-1]] = 1.0 / (degrees_T + 1.0)
    indices_E = np.arange(len(layer.rows_E)) + layer.rows_E + 1
    indices[indices_E] = positions(layer.sources_S, layer.neighbours_E)
    scale_T = degrees_T / np.maximum(sampled_T, 1)
    weights[indices_E] = scale_T[layer.rows_E] / np.sqrt((degrees_T[layer.rows_E] + 1.0) * (degrees_E + 1.0))
    return Block(indptr, indices, weights, len(layer.sources_S), root_T)


def full_block(graph: Adjacency) -> Block:
    """Return the block of a layer that maps all nodes to all nodes (full batch)."""
    nodes = np.arange(graph.num_nodes)
    rows_E = np.repeat(nodes, graph.degrees)
    return block(graph, SampledLayer(nodes, rows_E, graph.indices, nodes))


def initial_rows(layers: Sequence[SampledLayer]) -> list[IntArray]:
    """Return, for each layer, the positions of its output nodes in the lowest level S_m[0] (for GCNII's h0)."""
    lowest = layers[0].sources_S
    return [positions(lowest, layer.targets_T) for layer in layers]

"""What a client computes in a round, as functions of plain values that its actor hands to `compute`.

    sample ─▶ make_batch ─▶ first_segment ─▶ next_segment ... ─▶ head and segment gradients (mode joint) ─▶ updates

Shapes as in `algorithm`; arrays that cross the actor's boundary are numpy's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from protocols.glasu import algorithm, backbones, sampling
from protocols.glasu.aggregation import Floats
from protocols.glasu.algorithm import ClientBatch, Descent, OptimiserState, Stale
from protocols.glasu.backbones import Network, Parameters
from protocols.glasu.config import GlasuConfig
from protocols.glasu.graphs import GraphShare, NodeSplit
from protocols.glasu.sampling import Adjacency, IntArray, SampledLayer


def dtype_of(float64: bool) -> torch.dtype:
    """Return the precision of a run."""
    return torch.float64 if float64 else torch.float32


def network_of(config: GlasuConfig, num_features: int, num_classes: int, position: int) -> Network:
    """Return the shape of the network of the client at `position`."""
    return Network(
        backbone=config.backbone,
        num_layers=config.num_layers,
        aggregation_layers=config.resolved_layers,
        aggregation=config.aggregation,
        num_clients=config.num_networks,
        position=position if config.num_networks > 1 else 0,
        num_features=num_features,
        hidden_size=config.hidden_size,
        num_classes=num_classes,
        num_heads=config.num_heads,
        alpha=config.alpha,
        lam=config.lam,
        dropout=config.dropout,
        clip_norm=config.clip_norm,
    )


def build_graph(share: GraphShare, num_nodes: int) -> Adjacency:
    """Return a share's edges in CSR form."""
    return sampling.adjacency(share.edges_2E.reshape(2, -1), num_nodes)


def full_batch(graph: Adjacency, share: GraphShare, split: NodeSplit, num_layers: int, float64: bool) -> ClientBatch:
    """Return the batch of the whole graph, with the training nodes in the loss."""
    dtype = dtype_of(float64)
    operator = backbones.operator(sampling.full_block(graph), dtype)
    rows = np.sort(split.train)
    features = np.require(share.features_NF, requirements="W")  # copied where loaded data are read-only
    return ClientBatch(
        backbones.compact_features(features, dtype),
        (operator,) * num_layers,
        (None,) * num_layers,
        torch.from_numpy(split.labels_N[rows]),
        torch.from_numpy(rows),
    )


def sample(
    graph: Adjacency, targets_T: IntArray, num_layers: int, num_neighbours: int | None, seed: int
) -> list[SampledLayer]:
    """Sample one segment's layers from the client's own edges (Algorithm 2, the client's inner loop)."""
    return sampling.sample_segment(graph, targets_T, num_layers, num_neighbours, np.random.default_rng(seed))


def make_batch(
    graph: Adjacency, share: GraphShare, split: NodeSplit, layers: Sequence[SampledLayer], float64: bool, seed: int
) -> ClientBatch:
    """Turn the sampled layers of a round, lowest first, into what the network multiplies with."""
    dtype = dtype_of(float64)
    return ClientBatch(
        torch.from_numpy(share.features_NF[layers[0].sources_S]).to(dtype),
        tuple(backbones.operator(sampling.block(graph, layer), dtype) for layer in layers),
        tuple(torch.from_numpy(rows) for rows in sampling.initial_rows(layers)),
        torch.from_numpy(split.labels_N[layers[-1].targets_T]),
        seed=seed,
    )


def first_segment(parameters: Parameters, network: Network, batch: ClientBatch) -> tuple[Tensor, Tensor | None]:
    """Return H_m^+ of the lowest aggregation layer and GCNII's h0 (Algorithm 3)."""
    with torch.no_grad():
        h, h0 = algorithm.initial_representation(parameters, network, batch)
        return algorithm.segment(parameters, network, batch, 0, h, h0), h0


def next_segment(
    parameters: Parameters, network: Network, batch: ClientBatch, index: int, h_SW: Floats, h0_SD: Tensor | None
) -> Tensor:
    """Return H_m^+ of segment `index` from what the aggregation below gave (Algorithm 3)."""
    with torch.no_grad():
        return algorithm.segment(parameters, network, batch, index, tensor(h_SW), h0_SD)


def updates(
    parameters: Parameters,
    state: OptimiserState,
    network: Network,
    batch: ClientBatch,
    stale: Sequence[Stale],
    crosses: Sequence[Tensor] | None,
    descent: Descent,
    num_local_updates: int,
) -> tuple[Parameters, OptimiserState, list[float]]:
    """Do the Q local updates (Algorithm 4); see `algorithm.local_updates`."""
    return algorithm.local_updates(parameters, state, network, batch, stale, crosses, descent, num_local_updates)


def predict_alone(parameters: Parameters, network: Network, batch: ClientBatch) -> Tensor:
    """Return the logits of a client that never communicates."""
    with torch.no_grad():
        return algorithm.local_forward(parameters, network, batch, [])[0]


def predict(parameters: Parameters, h_SW: Floats) -> Tensor:
    """Return the logits from the last aggregate."""
    with torch.no_grad():
        return algorithm.classify(parameters, tensor(h_SW))


def tensor(values: Floats) -> Tensor:
    """Return an array that was received, and may be read-only, as a tensor of its own."""
    return torch.from_numpy(np.array(values))


def forward_operations(network: Network, batch: ClientBatch, layers: Sequence[int]) -> float:
    """Return the floating-point operations of a forward pass through `layers`: what a compute costs in simulation."""
    total = 0.0
    for layer in layers:
        operator, width = batch.operators[layer], network.hidden_size
        pairs, nodes = len(operator.rows_E), operator.matrix_TS.shape[0]
        total += 2.0 * (pairs * width + nodes * width * network.input_width(layer if layer else 1))
    if 0 in layers:
        features = batch.features
        entries = len(features.rows_E) if isinstance(features, backbones.Operator) else features.numel()
        total += 2.0 * entries * network.hidden_size
    return total

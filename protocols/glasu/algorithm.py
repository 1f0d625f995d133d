"""GLASU's mathematics at a client: joint inference (Algorithm 3), local updates (Algorithm 4), joint gradients.

    make_batch ─▶ first_segment ─▶ segment ... ─▶ head and segment gradients (mode joint) ─▶ local_updates

These are pure functions, which the client's actor hands to `compute`; what is received and sent is numpy's.

Shapes: S nodes of an index set, D hidden size, W width after Agg (D, or M * D for concatenation), C classes,
B nodes in the loss. M clients in the order of their names.

A client's network falls into segments, one for each aggregation layer; `segment` computes H_m^+[l] from what the
last aggregation gave. Mode ``paper`` is Algorithm 4: a client's loss reaches only its own paths. Mode ``joint``
descends on the mean of the clients' losses: the paths through other clients enter as the gradients that the
server sends back, frozen during the Q local updates as the other clients' representations are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedactors.learning.network import on_device, to_device
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, optimizer_step
from fedactors.privacy.mechanisms import clip_rows
from fedactors.protocols.glasu import sampling
from fedactors.protocols.glasu.backbones import (
    Network,
    Operator,
    Parameters,
    compact_features,
    drop,
    drop_pairs,
    gat_layer,
    gcn_layer,
    gcnii_layer,
    multiply,
    operator,
    user_layer,
)
from fedactors.protocols.glasu.data import ClientGraph
from fedactors.protocols.glasu.sampling import SampledLayer


@dataclass(frozen=True)
class ClientBatch:
    """What a client needs for one round: the rows of X_m at its lowest level, the layers' operators, the labels.

    ``initial_rows`` gives, for each layer, where its output nodes are in the lowest level (None: same nodes).
    ``loss_rows`` picks the nodes in the loss from S[L] (None: all of them); ``labels_B`` are theirs.
    ``seed`` fixes the dropped entries of the joint inference and the first local update; later ones draw their own.
    """

    features: Tensor | Operator
    operators: tuple[Operator, ...]
    initial_rows: tuple[Tensor | None, ...]
    labels_B: Tensor
    loss_rows: Tensor | None = None
    seed: int = 0


@dataclass(frozen=True)
class Stale:
    """What is left of an aggregation after Extract: its result and the client's own part in it.

    For the average this stands for H_{-m} = H - H_m^+ / M; keeping both makes Agg after Extract exact.
    """

    aggregated_SW: Tensor
    local_SD: Tensor


def full_batch(local: ClientGraph, num_layers: int, dtype: torch.dtype, device: str = "cpu") -> ClientBatch:
    """Return the batch of the whole graph, with the training nodes in the loss."""
    whole = on_device(operator(sampling.full_block(local.graph), dtype), device)
    rows = np.sort(local.nodes.train)
    features = np.require(local.features_NF, requirements="W")  # copied where loaded data are read-only
    return ClientBatch(
        on_device(compact_features(features, dtype), device),
        (whole,) * num_layers,
        (None,) * num_layers,
        to_device(local.nodes.labels_N[rows], device),
        to_device(rows, device),
    )


def make_batch(
    local: ClientGraph, layers: Sequence[SampledLayer], dtype: torch.dtype, seed: int, device: str = "cpu"
) -> ClientBatch:
    """Turn the sampled layers of a round, lowest first, into what the network multiplies with."""
    made = ClientBatch(
        torch.from_numpy(local.features_NF[layers[0].sources_S]).to(dtype),
        tuple(operator(sampling.block(local.graph, layer), dtype) for layer in layers),
        tuple(torch.from_numpy(rows) for rows in sampling.initial_rows(layers)),
        torch.from_numpy(local.nodes.labels_N[layers[-1].targets_T]),
        seed=seed,
    )
    return on_device(made, device)


def extract(aggregated_SW: Tensor, local_SD: Tensor) -> Stale:
    """Extract (Section 2.3): what the other clients contributed to an aggregation."""
    return Stale(aggregated_SW.detach(), local_SD.detach())


def aggregate_locally(stale: Stale, fresh_SD: Tensor, network: Network) -> Tensor:
    """Agg(H_{-m}, H_m^{t,q,+}) at the client (Algorithm 4): its fresh part beside the others' stale ones."""
    if network.num_clients == 1:
        return fresh_SD
    if network.aggregation == "average":
        return stale.aggregated_SW + (fresh_SD - stale.local_SD) / network.num_clients
    before, after = _local_columns(stale.aggregated_SW, network)
    return torch.cat([before, fresh_SD, after], dim=1)


def _local_columns(h_SW: Tensor, network: Network) -> tuple[Tensor, Tensor]:
    start = network.position * network.hidden_size
    return h_SW[:, :start], h_SW[:, start + network.hidden_size :]


def share_of_gradient(gradient_SW: Tensor, network: Network) -> Tensor:
    """Back-propagate through Agg (Section 2.1): 1/M of the gradient, or the client's block of it."""
    if network.aggregation == "average":
        return gradient_SW / network.num_clients
    start = network.position * network.hidden_size
    return gradient_SW[:, start : start + network.hidden_size]


def initial_representation(
    parameters: Parameters, network: Network, batch: ClientBatch
) -> tuple[Tensor | Operator, Tensor | None]:
    """Return H_m[0] and, for GCNII, h0 = ReLU(W_in x), which is then H_m[0] too."""
    features = batch.features
    if network.dropout:
        rate, seed, layer = network.dropout, batch.seed, network.num_layers
        if isinstance(features, Tensor):
            features = drop(features, rate, seed, layer)
        else:
            features = drop_pairs(features, rate, seed, layer)
    if network.backbone != "gcnii":
        return features, None
    h0 = functional.relu(multiply(features, parameters["input.weight"]) + parameters["input.bias"])
    return h0, h0


def segment(
    parameters: Parameters,
    network: Network,
    batch: ClientBatch,
    index: int,
    h_SW: Tensor | Operator,
    h0_SD: Tensor | None,
) -> Tensor:
    """Compute the layers of segment `index` up to H_m^+[l] of its aggregation layer (Algorithm 3)."""
    h = h_SW
    for layer in network.segments[index]:
        if network.dropout and isinstance(h, Tensor) and (layer or network.backbone == "gcnii"):
            h = drop(h, network.dropout, batch.seed, layer)
        rows = batch.initial_rows[layer]
        h0_TD = h0_SD if rows is None or h0_SD is None else h0_SD[rows]
        h = one_layer(parameters, network, layer, batch.operators[layer], h, h0_TD)
    assert isinstance(h, Tensor)
    return h if network.clip_norm is None else clip_rows(h, network.clip_norm)


def one_layer(
    parameters: Parameters,
    network: Network,
    layer: int,
    adjacency: Operator,
    h_SW: Tensor | Operator,
    h0_TD: Tensor | None,
) -> Tensor:
    """Compute a layer of the network's backbone, shape (T, D); GCNII's needs h0 of its output nodes."""
    if network.backbone == "gcn":
        return gcn_layer(parameters, layer, adjacency, h_SW)
    if network.backbone == "gat":
        return gat_layer(parameters, layer, adjacency, h_SW, network.num_heads)
    if network.backbone == "own":
        return user_layer(parameters, network, layer, adjacency, h_SW)
    assert isinstance(h_SW, Tensor)
    assert h0_TD is not None
    return gcnii_layer(parameters, layer, adjacency, h_SW, h0_TD, network.alpha, network.lam)


# --- evaluation on a graph that is too large to go through at once ---


def whole_h0(
    parameters: Parameters, network: Network, local: ClientGraph, chunk: int, dtype: torch.dtype, device: str
) -> Tensor:
    """Return GCNII's h0 of all nodes (N, D), `chunk` nodes at a time."""
    num_nodes = local.graph.num_nodes
    h0_ND = torch.empty((num_nodes, network.hidden_size), dtype=dtype, device=device)
    for start in range(0, num_nodes, chunk):
        rows_TF = to_device(local.features_NF[start : start + chunk], device).to(dtype)
        h0_ND[start : start + chunk] = functional.relu(rows_TF @ parameters["input.weight"] + parameters["input.bias"])
    return h0_ND


def whole_segment(
    parameters: Parameters,
    network: Network,
    local: ClientGraph,
    index: int,
    h_NW: Tensor | None,
    h0_ND: Tensor | None,
    chunk: int,
    dtype: torch.dtype,
    device: str,
) -> Tensor:
    """Compute segment `index` on all nodes layer by layer, `chunk` output nodes with all their neighbours at a time.

    The same as `segment` on the whole graph without dropout. What is held beside h_NW, h0_ND and the layer's output
    grows with the chunk and its neighbours, not with N.
    """
    num_nodes = local.graph.num_nodes
    for layer in network.segments[index]:
        made_ND = torch.empty((num_nodes, network.hidden_size), dtype=dtype, device=device)
        for start in range(0, num_nodes, chunk):
            targets_T = np.arange(start, min(start + chunk, num_nodes))
            (sampled,) = sampling.sample_segment(local.graph, targets_T, 1, None, np.random.default_rng(0))
            adjacency = on_device(operator(sampling.block(local.graph, sampled), dtype), device)
            if h_NW is None:
                read_SW = to_device(local.features_NF[sampled.sources_S], device).to(dtype)
            else:
                read_SW = h_NW[to_device(sampled.sources_S, device)]
            h0_TD = None if h0_ND is None else h0_ND[start : start + chunk]
            made_ND[start : start + chunk] = one_layer(parameters, network, layer, adjacency, read_SW, h0_TD)
        h_NW = made_ND
    assert h_NW is not None
    return h_NW if network.clip_norm is None else clip_rows(h_NW, network.clip_norm)


def whole_operations(network: Network, local: ClientGraph, index: int) -> float:
    """Return the floating-point operations of `whole_segment`, as `forward_operations` counts them."""
    nodes, width = local.graph.num_nodes, network.hidden_size
    pairs = len(local.graph.indices) + nodes
    layers = network.segments[index]
    total = sum(2.0 * (pairs * width + nodes * width * network.input_width(layer or 1)) for layer in layers)
    return total + 2.0 * (local.features_NF.size * width if 0 in layers and network.backbone != "gcnii" else 0)


def classify(parameters: Parameters, h_SW: Tensor) -> Tensor:
    """Return the logits f_m(H[L], W_m[L]), shape (S, C)."""
    return torch.addmm(parameters["classifier.bias"], h_SW, parameters["classifier.weight"])


def loss_of(logits_SC: Tensor, batch: ClientBatch) -> Tensor:
    """Mean cross-entropy over the nodes in the loss."""
    picked = logits_SC if batch.loss_rows is None else logits_SC[batch.loss_rows]
    return functional.cross_entropy(picked, batch.labels_B)


def local_forward(
    parameters: Parameters, network: Network, batch: ClientBatch, stale: Sequence[Stale]
) -> tuple[Tensor, list[Tensor]]:
    """Forward pass of Algorithm 4; returns the logits and the fresh H_m^{t,q,+} of each aggregation layer.

    `stale` holds one entry for each aggregation layer; a lone client needs none.
    """
    h, h0 = initial_representation(parameters, network, batch)
    fresh: list[Tensor] = []
    for index in range(len(network.segments)):
        fresh.append(segment(parameters, network, batch, index, h, h0))
        h = fresh[-1] if network.num_clients == 1 else aggregate_locally(stale[index], fresh[-1], network)
    assert isinstance(h, Tensor)
    return classify(parameters, h), fresh


def traceable(parameters: Parameters) -> Parameters:
    """Return parameters of which what is computed from them remembers how: for a gradient without another pass."""
    return {name: value.detach().requires_grad_() for name, value in parameters.items()}


@dataclass(frozen=True)
class Inferred:
    """What a client computed in the joint inference; it may know how (`is_traced`), but not in another process."""

    values: Tensor

    def __reduce__(self) -> tuple[type[Inferred], tuple[Tensor]]:
        return Inferred, (self.values.detach(),)


def is_traced(part: Inferred) -> bool:
    """Say whether a part knows how it was computed from `traceable` parameters."""
    return part.values.grad_fn is not None


def infer_lowest(parameters: Parameters, network: Network, batch: ClientBatch) -> tuple[Inferred, Inferred | None]:
    """Return H_m^+ of the lowest aggregation layer and GCNII's h0, of the joint inference (Algorithm 3)."""
    part_SD, h0_SD = first_segment(parameters, network, batch)
    return Inferred(part_SD), None if h0_SD is None else Inferred(h0_SD)


def infer_segment(
    parameters: Parameters,
    network: Network,
    batch: ClientBatch,
    index: int,
    aggregated_SW: Tensor,
    local: Inferred,
    h0: Inferred | None,
) -> Inferred:
    """Compute segment `index` >= 1 of the joint inference on an aggregation, which `local` went into.

    Where that is traced, so is the result: as in the local forward pass, whose numbers it has.
    """
    if is_traced(local):
        aggregated_SW = aggregate_locally(extract(aggregated_SW, local.values), local.values, network)
    return Inferred(segment(parameters, network, batch, index, aggregated_SW, None if h0 is None else h0.values))


def first_segment(parameters: Parameters, network: Network, batch: ClientBatch) -> tuple[Tensor, Tensor | None]:
    """Return H_m^+ of the lowest aggregation layer and GCNII's h0 (Algorithm 3)."""
    h, h0 = initial_representation(parameters, network, batch)
    return segment(parameters, network, batch, 0, h, h0), h0


def head_gradient(parameters: Parameters, network: Network, batch: ClientBatch, h_SW: Tensor) -> tuple[float, Tensor]:
    """Return the client's loss and the gradient of its 1/M part of the mean loss in H[L], shape (S, W) (mode joint)."""
    h_SW = h_SW.detach().requires_grad_()
    with torch.enable_grad():
        loss = loss_of(classify(parameters, h_SW), batch)
        (gradient,) = torch.autograd.grad(loss / network.num_clients, [h_SW])
    return float(loss.detach()), gradient


def segment_gradient(
    parameters: Parameters, network: Network, batch: ClientBatch, index: int, h_SW: Tensor, output_gradient_SD: Tensor
) -> Tensor:
    """Carry a gradient from H_m^+ of segment `index` >= 1 back to its input, the aggregation before (mode joint)."""
    h_SW = h_SW.detach().requires_grad_()
    with torch.no_grad():
        _, h0 = initial_representation(parameters, network, batch) if network.backbone == "gcnii" else (None, None)
    with torch.enable_grad():
        output = segment(parameters, network, batch, index, h_SW, h0)
        (gradient,) = torch.autograd.grad(output, [h_SW], output_gradient_SD)
    return gradient


def loss_and_gradients(
    parameters: Parameters,
    network: Network,
    batch: ClientBatch,
    stale: Sequence[Stale],
    cross_gradients: Sequence[Tensor] | None = None,
    inferred: Sequence[Inferred] = (),
) -> tuple[float, Parameters]:
    """Return the client's loss and the direction of one local update.

    `inferred` are the own parts of the joint inference under these very parameters: where they are traced, they are
    the forward pass, and no other is made.

    Without `cross_gradients`: the gradient of L_m over the client's own paths (Algorithm 4). With them, one for each
    aggregation layer: the gradient of the mean loss, where ``cross_gradients[k]`` is what reaches H_m^+ through the
    other clients (the server's share of the gradient minus the client's own part); exact at the round's first update.
    """
    is_inferred = bool(inferred) and all(map(is_traced, inferred))
    leaves = parameters if is_inferred else traceable(parameters)
    with torch.enable_grad():
        if is_inferred:
            fresh = [part.values for part in inferred]
            logits = classify(leaves, aggregate_locally(stale[-1], fresh[-1], network))
        else:
            logits, fresh = local_forward(leaves, network, batch, stale)
        loss = loss_of(logits, batch)
        objective = loss
        if cross_gradients is not None:
            objective = loss / network.num_clients
            for cross_SD, fresh_SD in zip(cross_gradients, fresh, strict=True):
                objective = objective + (cross_SD * fresh_SD).sum()
        gradients = torch.autograd.grad(objective, list(leaves.values()))
    return float(loss.detach()), dict(zip(leaves, gradients, strict=True))


def cross_gradient(received_SD: Tensor, local_gradient_SW: Tensor, network: Network) -> Tensor:
    """Return what reaches H_m^+ through other clients: the server's share minus the client's own."""
    return received_SD - share_of_gradient(local_gradient_SW, network)


def local_updates(
    parameters: Parameters,
    network: Network,
    batch: ClientBatch,
    optimizer: OptimizerSpec,
    state: OptimizerState,
    stale: Sequence[Stale],
    cross_gradients: Sequence[Tensor] | None,
    num_local_updates: int,
    inferred: Sequence[Inferred] = (),
) -> tuple[Parameters, OptimizerState, list[float]]:
    """Do the Q local updates of a round (Algorithm 1); returns W_m^{t,Q} and the loss before each update.

    The first one needs no forward pass of its own where `inferred` has that of the joint inference.
    """
    state, losses = state.copy(), list[float]()
    for update in range(num_local_updates):
        local_batch = replace(batch, seed=batch.seed + update)
        loss, gradients = loss_and_gradients(parameters, network, local_batch, stale, cross_gradients, inferred)
        values = [value.detach() for value in parameters.values()]
        moved = optimizer_step(optimizer, values, [gradients[name] for name in parameters], state)
        parameters, inferred = dict(zip(parameters, moved, strict=True)), ()
        losses.append(loss)
    return parameters, state, losses


def forward_operations(network: Network, batch: ClientBatch, layers: Sequence[int]) -> float:
    """Return the floating-point operations of a forward pass through `layers`: what a compute costs in simulation."""
    total = 0.0
    for layer in layers:
        matrix, width = batch.operators[layer], network.hidden_size
        pairs, nodes = len(matrix.rows_E), matrix.matrix_TS.shape[0]
        total += 2.0 * (pairs * width + nodes * width * network.input_width(layer if layer else 1))
    if 0 in layers:
        features = batch.features
        entries = len(features.rows_E) if isinstance(features, Operator) else features.numel()
        total += 2.0 * entries * network.hidden_size
    return total

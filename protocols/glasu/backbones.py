"""The client's sub-layers: GCN, GAT, GCNII or the user's own, functions of parameters, a sparse operator and rows.

Shapes: T and S nodes at a layer's output and input level, E stored pairs of the operator, F features,
D width (hidden size), W width of a layer's input (F, D, or M * D after a concatenation), H heads, C classes.
Symbols: A normalised adjacency, W[l] weights, alpha and lambda of GCNII, theta_l = ln(lambda / l + 1), l from 1.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from fedactors.learning.models import ModelSpec, build_model, check_size
from fedactors.learning.network import on_device, skeleton
from fedactors.learning.user_models import check_model
from fedactors.protocols.glasu.config import GlasuConfig
from fedactors.protocols.glasu.sampling import Block

Backbone = Literal["gcn", "gat", "gcnii", "own"]
Aggregation = Literal["average", "concatenation"]
Parameters = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Network:
    """The shape of one client's network; ``position`` is the client's place in the order of names."""

    backbone: Backbone
    user_layer: str = ""
    """Address of the layer that ``own`` stands for, ``package.module:function``."""
    num_layers: int
    aggregation_layers: tuple[int, ...]
    aggregation: Aggregation = "average"
    num_clients: int = 1
    position: int = 0
    num_features: int
    hidden_size: int
    num_classes: int
    num_heads: int = 1
    alpha: float = 0.1
    lam: float = 0.5
    dropout: float = 0.0
    clip_norm: float | None = None

    @classmethod
    def of(cls, config: GlasuConfig, num_features: int, num_classes: int, position: int) -> Network:
        """Return the shape of the network of the client at `position`."""
        return cls(
            backbone="own" if config.user_layer else config.backbone,
            user_layer=config.user_layer,
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

    @property
    def segments(self) -> tuple[range, ...]:
        """The layers that a client computes alone, from one aggregation to the next."""
        starts = (0, *(layer + 1 for layer in self.aggregation_layers[:-1]))
        return tuple(range(start, end + 1) for start, end in zip(starts, self.aggregation_layers, strict=True))

    def input_width(self, layer: int) -> int:
        """Width W of what layer `layer` reads; `num_layers` stands for the classifier."""
        if layer == 0:
            return self.hidden_size if self.backbone == "gcnii" else self.num_features
        concatenated = self.aggregation == "concatenation" and layer - 1 in self.aggregation_layers
        return self.hidden_size * (self.num_clients if concatenated else 1)


@dataclass(frozen=True)
class Operator:
    """A sparse matrix and its transpose as CSR tensors, with the row and column of each stored pair.

    ``order_E`` is the order of the pairs in the transpose. ``root_T`` gives each row's own column; None says that rows
    and columns are the same nodes.
    """

    matrix_TS: Tensor
    transposed_ST: Tensor
    rows_E: Tensor
    columns_E: Tensor
    order_E: Tensor
    root_T: Tensor | None

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as arrays: torch shares memory there, and sparse tensors not at all well."""
        root_T = None if self.root_T is None else self.root_T.numpy()
        values = self.matrix_TS.values()
        arrays = (self.matrix_TS.crow_indices(), self.rows_E, self.columns_E, values)
        return _operator, (*(array.numpy() for array in arrays), tuple(self.matrix_TS.shape), values.dtype, root_T)


class _SparseProduct(torch.autograd.Function):
    """A @ h whose backward pass uses the stored transpose."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, h_SD: Tensor) -> Tensor:
        ctx.operator = operator
        return operator.matrix_TS @ h_SD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, ctx.operator.transposed_ST @ gradients[0]


def operator(block: Block, dtype: torch.dtype = torch.float32) -> Operator:
    """Turn a block into the tensors that the layers multiply with."""
    shape = (block.num_targets, block.num_sources)
    rows = np.repeat(np.arange(shape[0]), np.diff(block.indptr))
    same = shape[0] == shape[1] and np.array_equal(block.root_T, np.arange(shape[0]))
    root_T = None if same else block.root_T
    return _operator(block.indptr, rows, block.indices, block.weights, shape, dtype, root_T)


def compact_features(features_NF: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor | Operator:
    """Return features in the form that multiplies faster: sparse where at most a tenth is not zero, else dense."""
    if np.count_nonzero(features_NF) <= 0.1 * features_NF.size:
        return sparse_features(features_NF, dtype)
    return torch.from_numpy(features_NF).to(dtype)


def sparse_features(features_NF: np.ndarray, dtype: torch.dtype = torch.float32) -> Operator:
    """Keep mostly-zero features such as bags of words as a sparse operator."""
    rows, columns = np.nonzero(features_NF)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(features_NF)))])
    return _operator(indptr, rows, columns, features_NF[rows, columns], features_NF.shape, dtype, None)


def _operator(
    indptr: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    root_T: np.ndarray | None,
) -> Operator:
    sort = np.lexsort((columns, rows))
    rows, columns, values = rows[sort], columns[sort], values[sort]
    order = np.argsort(columns, kind="stable")
    transposed_indptr = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=shape[1]))])
    return Operator(
        _csr(indptr, columns, values, (shape[0], shape[1]), dtype),
        _csr(transposed_indptr, rows[order], values[order], (shape[1], shape[0]), dtype),
        torch.from_numpy(rows),
        torch.from_numpy(columns),
        torch.from_numpy(order),
        None if root_T is None else torch.from_numpy(root_T),
    )


def _csr(
    indptr: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(
            torch.from_numpy(indptr.astype(np.int64)),
            torch.from_numpy(columns.astype(np.int64)),
            torch.from_numpy(values.astype(np.float64)).to(dtype),
            size=shape,
            check_invariants=True,
        )


def initial_parameters(
    network: Network,
    rng: np.random.Generator,
    classifier_rng: np.random.Generator,
    dtype: torch.dtype = torch.float32,
) -> Parameters:
    """Draw W_m (Glorot uniform, biases zero); equal seeds of `classifier_rng` give every client the same classifier."""

    def glorot(rows: int, columns: int, source: np.random.Generator) -> Tensor:
        limit = math.sqrt(6.0 / (rows + columns))
        return torch.from_numpy(source.uniform(-limit, limit, (rows, columns))).to(dtype)

    size, made = network.hidden_size, Parameters()
    if network.backbone != "own":
        num_values = size * sum(network.input_width(layer) for layer in range(network.num_layers))
        check_size(f"model {network.backbone}", num_values * dtype.itemsize)
    if network.backbone == "gcnii":
        made["input.weight"] = glorot(network.num_features, size, rng)
        made["input.bias"] = torch.zeros(size, dtype=dtype)
    for layer in range(network.num_layers):
        width = network.input_width(layer)
        if network.backbone == "own":
            module = build_model(layer_spec(network, layer, dtype), int(rng.integers(2**62)))
            made |= {f"{layer}.{name}": value.detach() for name, value in module.named_parameters()}
            continue
        if network.backbone == "gcnii":
            if width != size:
                made[f"{layer}.projection"] = glorot(width, size, rng)
            made[f"{layer}.weight"] = glorot(size, size, rng)
            continue
        made[f"{layer}.weight"] = glorot(width, size, rng)
        made[f"{layer}.bias"] = torch.zeros(size, dtype=dtype)
        if network.backbone == "gat":
            per_head = size // network.num_heads
            made[f"{layer}.attend_source"] = glorot(network.num_heads, per_head, rng)
            made[f"{layer}.attend_target"] = glorot(network.num_heads, per_head, rng)
    made["classifier.weight"] = glorot(network.input_width(network.num_layers), network.num_classes, classifier_rng)
    made["classifier.bias"] = torch.zeros(network.num_classes, dtype=dtype)
    return made


def layer_spec(network: Network, layer: int, dtype: torch.dtype) -> ModelSpec:
    """Return the description of a layer of the user's own."""
    width, size, is_double = network.input_width(layer), network.hidden_size, dtype == torch.float64
    return ModelSpec(name=network.user_layer, inputs=(width,), outputs=size, float64=is_double)


def check_layers(network: Network, layers: Iterable[int]) -> None:
    """Check layers of the user's own before anything is trained.

    Raises:
        BadInput: one line that says what is wrong.
    """
    seen = {network.input_width(layer): layer for layer in layers} if network.user_layer else {}
    for layer in seen.values():
        check_model(layer_spec(network, layer, torch.float32), split=True, num_arguments=2)


def user_layer(
    parameters: Parameters, network: Network, layer: int, adjacency: Operator, h_SW: Tensor | Operator
) -> Tensor:
    """Call the user's layer with each node's own row and the mean A h over it and its neighbours, both (T, W)."""
    dense_SW = h_SW.matrix_TS.to_dense() if isinstance(h_SW, Operator) else h_SW
    root_TW = dense_SW if adjacency.root_T is None else dense_SW[adjacency.root_T]
    module = skeleton(layer_spec(network, layer, dense_SW.dtype))
    named = {name: parameters[f"{layer}.{name}"] for name, _ in module.named_parameters()}
    made: Tensor = functional_call(module, named, (root_TW, multiply(adjacency, dense_SW)))
    return made


def multiply(left: Tensor | Operator, right_SD: Tensor) -> Tensor:
    """Return the product with a dense or sparse left factor; gradients reach the right factor of a sparse one."""
    if isinstance(left, Operator):
        product: Tensor = _SparseProduct.apply(left, right_SD)  # type: ignore[no-untyped-call]
        return product
    return left @ right_SD


def drop(h_SW: Tensor, rate: float, seed: int, layer: int) -> Tensor:
    """Zero entries with probability `rate` and scale the rest; the same (seed, layer) drops the same entries.

    Sixteen random bits decide on each entry: drawing floats costs more than a sparse product does.
    """
    bits = np.random.Generator(np.random.SFC64([seed, layer])).bytes(2 * h_SW.numel())
    border = min(round(rate * 2**16), 2**16 - 1)
    kept = on_device(torch.from_numpy(np.frombuffer(bits, dtype="<u2") >= border).view(h_SW.shape), h_SW.device)
    return h_SW * kept.to(h_SW.dtype).mul_(2**16 / (2**16 - border))


def drop_pairs(operator: Operator, rate: float, seed: int, layer: int) -> Operator:
    """Do the same to the stored pairs of a sparse operator; the others are zero already."""
    values_E = drop(operator.matrix_TS.values(), rate, seed, layer)
    matrix, transposed = operator.matrix_TS, operator.transposed_ST
    return replace(
        operator,
        matrix_TS=_with_values(matrix, values_E),
        transposed_ST=_with_values(transposed, values_E[operator.order_E]),
    )


def _with_values(matrix: Tensor, values_E: Tensor) -> Tensor:
    pattern = (matrix.crow_indices(), matrix.col_indices())
    return torch.sparse_csr_tensor(*pattern, values_E, size=matrix.shape, check_invariants=False)


def gcn_layer(parameters: Parameters, layer: int, adjacency: Operator, h_SW: Tensor | Operator) -> Tensor:
    """Kipf and Welling 2016: ReLU(A h W + b), shape (T, D); the narrower of h and h W is propagated."""
    weight, bias = parameters[f"{layer}.weight"], parameters[f"{layer}.bias"]
    if isinstance(h_SW, Operator) or weight.shape[1] <= weight.shape[0]:
        return functional.relu(multiply(adjacency, multiply(h_SW, weight)) + bias)
    return functional.relu(multiply(adjacency, h_SW) @ weight + bias)


def gat_layer(
    parameters: Parameters, layer: int, adjacency: Operator, h_SW: Tensor | Operator, num_heads: int
) -> Tensor:
    """Velickovic et al. 2018: softmax over i and its neighbours of LeakyReLU(a . [W h_i, W h_j]), then ELU."""
    z_SHD = torch.unflatten(multiply(h_SW, parameters[f"{layer}.weight"]), 1, (num_heads, -1))
    root_THD = z_SHD if adjacency.root_T is None else z_SHD[adjacency.root_T]
    from_SH = (z_SHD * parameters[f"{layer}.attend_source"]).sum(-1)
    to_TH = (root_THD * parameters[f"{layer}.attend_target"]).sum(-1)
    rows, columns = adjacency.rows_E, adjacency.columns_E
    score_EH = functional.leaky_relu(from_SH[columns] + to_TH[rows], 0.2)
    index_EH = rows[:, None].expand_as(score_EH)
    highest_TH = torch.full_like(to_TH, -math.inf).scatter_reduce(0, index_EH, score_EH.detach(), "amax")
    share_EH = torch.exp(score_EH - highest_TH[rows])
    total_TH = torch.zeros_like(to_TH).index_add(0, rows, share_EH)
    attention_EH = share_EH / total_TH[rows]
    mixed_THD = torch.zeros_like(root_THD).index_add(0, rows, attention_EH[:, :, None] * z_SHD[columns])
    return functional.elu(mixed_THD.flatten(1) + parameters[f"{layer}.bias"])


def gcnii_layer(
    parameters: Parameters, layer: int, adjacency: Operator, h_SW: Tensor, h0_TD: Tensor, alpha: float, lam: float
) -> Tensor:
    """Chen et al. 2020: S = (1 - alpha) A h + alpha h0, then ReLU(theta S W + (1 - theta) S)."""
    if f"{layer}.projection" in parameters:
        h_SW = h_SW @ parameters[f"{layer}.projection"]
    theta = math.log(lam / (layer + 1) + 1.0)
    mixed_TD = torch.add(alpha * h0_TD, multiply(adjacency, h_SW), alpha=1.0 - alpha)
    return functional.relu(
        torch.addmm(mixed_TD, mixed_TD, parameters[f"{layer}.weight"], beta=1.0 - theta, alpha=theta)
    )

"""Split neural networks for MTCD: representation models, aggregation, and local steps as functions on arrays.

Shapes: B rows, E numbers per representation, K clients, C classes. Z is (B, E) with aggregation by sum and (B, K E)
by concatenation, where client k owns columns k E to (k + 1) E.

Parameters travel as mappings of names to arrays; modules only say what to compute (`torch.func.functional_call`), so
one module serves every token's copy. Group normalisation stands in for batch normalisation: h_k must be a function of
theta_k and the rows alone, else Z == sum_k h_k at the token's copy could not hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedactors.errors import BadInput

Parameters = dict[str, NDArray[np.floating]]
Aggregation = Literal["sum", "concatenation"]
FloatArray = NDArray[np.floating]


class Mlp(nn.Module):
    """Two layers for tabular features (B, D) -> (B, E)."""

    def __init__(self, num_features: int, width: int, representation_size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(num_features, width)
        self.out = nn.Linear(width, representation_size)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return h (B, E)."""
        representation: Tensor = self.out(torch.relu(self.hidden(x_BD)))
        return representation


class ViewCnn(nn.Module):
    """Three convolutions and a linear layer for one view of an object (B, channels, height, width) -> (B, E)."""

    def __init__(self, num_channels: int, width: int, representation_size: int) -> None:
        super().__init__()
        sizes = (num_channels, width, 2 * width, 4 * width)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in itertools.pairwise(sizes)
        )
        self.out = nn.Linear(sizes[-1], representation_size)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return h (B, E)."""
        for convolution in self.convolutions:
            x_BCHW = torch.relu(convolution(x_BCHW))
        representation: Tensor = self.out(x_BCHW.mean(dim=(2, 3)))
        return representation


class _ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.first_norm = _group_norm(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = _group_norm(after)
        same = before == after and stride == 1
        self.shortcut: nn.Module = nn.Identity() if same else nn.Conv2d(before, after, 1, stride=stride, bias=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(x_BCHW)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(x_BCHW))


class ResNet18(nn.Module):
    """ResNet-18 for small images (3 x 3 stem, no pooling before the stages): (B, 3, H, W) -> (B, E)."""

    def __init__(self, num_channels: int, width: int, representation_size: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(num_channels, width, 3, padding=1, bias=False)
        self.stem_norm = _group_norm(width)
        stages: list[nn.Module] = []
        before = width
        for stage in range(4):
            after = width * 2**stage
            stages += [_ResidualBlock(before, after, 1 if stage == 0 else 2), _ResidualBlock(after, after, 1)]
            before = after
        self.blocks = nn.ModuleList(stages)
        self.out = nn.Linear(before, representation_size)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return h (B, E)."""
        x_BCHW = torch.relu(self.stem_norm(self.stem(x_BCHW)))
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        representation: Tensor = self.out(x_BCHW.mean(dim=(2, 3)))
        return representation


class Fusion(nn.Module):
    """The fusion model phi before its loss: a linear layer on relu(Z), (B, E or K E) -> logits (B, C)."""

    def __init__(self, aggregate_size: int, num_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(aggregate_size, num_classes)

    def forward(self, z_BE: Tensor) -> Tensor:
        """Return logits (B, C)."""
        logits: Tensor = self.out(torch.relu(z_BE))
        return logits


def _group_norm(channels: int) -> nn.GroupNorm:
    # 16 channels a group: in groups of two, a map of one pixel would keep nothing but signs
    return nn.GroupNorm(max(1, channels // 16), channels)


def representation_model(
    kind: Literal["mlp", "resnet18", "multi-view-cnn"], input_shape: Sequence[int], width: int, representation_size: int
) -> nn.Module:
    """Return a client's model for one sample of `input_shape`: (D,) for mlp, (channels, height, width) otherwise.

    Raises:
        BadInput: the shape does not suit the model.
    """
    expected = 1 if kind == "mlp" else 3
    if len(input_shape) != expected or 0 in input_shape:
        raise BadInput(
            f"network: {kind} needs samples of {expected} non-empty axis(es), got shape {tuple(input_shape)}"
        )
    if kind == "mlp":
        return Mlp(input_shape[0], width, representation_size)
    if kind == "resnet18":
        return ResNet18(input_shape[0], width, representation_size)
    return ViewCnn(input_shape[0], width, representation_size)


def fusion_model(aggregation: Aggregation, num_clients: int, representation_size: int, num_classes: int) -> Fusion:
    """Return the fusion model for the aggregation's width of Z."""
    slots = num_clients if aggregation == "concatenation" else 1
    return Fusion(slots * representation_size, num_classes)


def initial_parameters(module: nn.Module, generator: np.random.Generator) -> Parameters:
    """Draw parameters: weights uniform within 1/sqrt(fan in), biases 0, normalisation scales 1."""
    drawn: Parameters = {}
    for name, tensor in module.named_parameters():
        shape = tuple(tensor.shape)
        if len(shape) > 1:
            bound = 1.0 / np.sqrt(np.prod(shape[1:]))
            drawn[name] = generator.uniform(-bound, bound, size=shape).astype(np.float32)
        else:
            drawn[name] = np.full(shape, 1.0 if name.endswith("norm.weight") else 0.0, dtype=np.float32)
    return drawn


def image_quadrants(x_BCHW: FloatArray) -> list[FloatArray]:
    """Cut images into four: top left, top right, bottom left, bottom right; odd sizes leave the rest to the latter."""
    height, width = x_BCHW.shape[2] // 2, x_BCHW.shape[3] // 2
    return [
        np.ascontiguousarray(x_BCHW[:, :, rows, columns])
        for rows in (slice(None, height), slice(height, None))
        for columns in (slice(None, width), slice(width, None))
    ]


def represent(module: nn.Module, theta: Mapping[str, FloatArray], x_B: FloatArray) -> FloatArray:
    """Return h_k(theta_k; X_k) (B, E)."""
    with torch.no_grad():
        h_BE: Tensor = functional_call(module, _tensors(theta), (_tensor(x_B),))
    return np.asarray(h_BE.numpy())


def aggregate(representations: Sequence[FloatArray], aggregation: Aggregation) -> FloatArray:
    """Return Z of the clients' representations, in the order of the clients."""
    if aggregation == "concatenation":
        return np.concatenate(representations, axis=1)
    z_BE = np.zeros_like(representations[0])
    for h_BE in representations:
        z_BE += h_BE
    return z_BE


def replace_in_token(
    z: FloatArray, old_h_BE: FloatArray, new_h_BE: FloatArray, client: int, aggregation: Aggregation
) -> FloatArray:
    """Return Z with one client's representation replaced: Z + (new - old), or the client's columns set to new."""
    if aggregation == "sum":
        return z + (new_h_BE - old_h_BE)
    width = new_h_BE.shape[1]
    replaced = z.copy()
    replaced[:, client * width : (client + 1) * width] = new_h_BE
    return replaced


def visit(
    module: nn.Module,
    fusion: nn.Module,
    theta: Mapping[str, FloatArray],
    theta_0: Mapping[str, FloatArray],
    x_B: FloatArray,
    labels_B: NDArray[np.int64],
    z: FloatArray,
    *,
    client: int,
    aggregation: Aggregation,
    step: float,
    num_local_steps: int,
    update_fusion: bool,
) -> tuple[Parameters, Parameters, FloatArray]:
    """Do Q local steps on the visited client's block (equation 2); with `update_fusion`, on theta_0 too (STCD).

    Z follows every step exactly: the other clients' share of it is held fixed and one's own is computed anew.

    Returns:
        New theta_k, new theta_0 (the one given unless `update_fusion`), new Z.
    """
    block = _tensors(theta, gradients=True)
    head = _tensors(theta_0, gradients=update_fusion)
    old_h_BE = represent(module, theta, x_B)
    x, labels, z_tensor = _tensor(x_B), torch.from_numpy(np.array(labels_B)), _tensor(z)
    own = torch.from_numpy(old_h_BE)
    moving = [*block.values(), *(head.values() if update_fusion else ())]
    for _ in range(num_local_steps):
        h_BE = functional_call(module, block, (x,))
        loss = _loss(fusion, head, _with_own(z_tensor, own, h_BE, client, aggregation), labels)
        _descend(moving, torch.autograd.grad(loss, moving), step)
    new_theta = _arrays(block)
    new_z = replace_in_token(z, old_h_BE, represent(module, new_theta, x_B), client, aggregation)
    return new_theta, _arrays(head), new_z


def fusion_steps(
    fusion: nn.Module,
    theta_0: Mapping[str, FloatArray],
    z: FloatArray,
    labels_B: NDArray[np.int64],
    *,
    step: float,
    num_steps: int,
) -> Parameters:
    """Do token 0's Q (S + 1) steps on theta_0 with Z frozen, at the server (Algorithm 2)."""
    head = _tensors(theta_0, gradients=True)
    z_tensor, labels = _tensor(z), torch.from_numpy(np.array(labels_B))
    moving = list(head.values())
    for _ in range(num_steps):
        _descend(moving, torch.autograd.grad(_loss(fusion, head, z_tensor, labels), moving), step)
    return _arrays(head)


def combine(
    theta: Mapping[str, FloatArray], copies: Mapping[int, Mapping[str, FloatArray]], weights_G: FloatArray
) -> Parameters:
    """Return sum_gamma w_{k,gamma} theta_k^gamma, a token without a copy counting as `theta` (Algorithm 2, line 12)."""
    combined: Parameters = {name: array.copy() for name, array in theta.items()}
    for token in sorted(copies):
        weight = float(weights_G[token])
        if weight == 1.0:
            return {name: array.copy() for name, array in copies[token].items()}
        for name, array in theta.items():
            combined[name] += (weight * (copies[token][name] - array)).astype(array.dtype)
    return combined


def predict(
    fusion: nn.Module, theta_0: Mapping[str, FloatArray], z: FloatArray, labels_B: NDArray[np.int64]
) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy on Z of a batch."""
    with torch.no_grad():
        head, labels = _tensors(theta_0), torch.from_numpy(np.array(labels_B))
        logits_BC: Tensor = functional_call(fusion, head, (_tensor(z),))
        loss = nn.functional.cross_entropy(logits_BC, labels)
        accuracy = (logits_BC.argmax(dim=1) == labels).double().mean()
    return float(loss), float(accuracy)


def classify(fusion: nn.Module, theta_0: Mapping[str, FloatArray], z: FloatArray) -> NDArray[np.int64]:
    """Return the likeliest class of each row of Z (B,)."""
    with torch.no_grad():
        logits_BC: Tensor = functional_call(fusion, _tensors(theta_0), (_tensor(z),))
    return np.asarray(logits_BC.argmax(dim=1).numpy())


def _loss(fusion: nn.Module, head: Mapping[str, Tensor], z: Tensor, labels_B: Tensor) -> Tensor:
    return nn.functional.cross_entropy(functional_call(fusion, dict(head), (z,)), labels_B)


def _with_own(z: Tensor, old_h_BE: Tensor, h_BE: Tensor, client: int, aggregation: Aggregation) -> Tensor:
    """Return Z as a differentiable function of the client's representation `h_BE`."""
    if aggregation == "sum":
        return (z - old_h_BE) + h_BE
    width = h_BE.shape[1]
    return torch.cat([z[:, : client * width], h_BE, z[:, (client + 1) * width :]], dim=1)


def _descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], step: float) -> None:
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= step * gradient


def _tensor(array: FloatArray) -> Tensor:
    return torch.from_numpy(np.array(array))


def _tensors(arrays: Mapping[str, FloatArray], gradients: bool = False) -> dict[str, Tensor]:
    return {name: _tensor(array).requires_grad_(gradients) for name, array in arrays.items()}


def _arrays(tensors: Mapping[str, Tensor]) -> Parameters:
    return {name: np.asarray(tensor.detach().numpy()) for name, tensor in tensors.items()}

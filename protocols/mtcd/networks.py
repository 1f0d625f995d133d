"""Split networks as the actors see them (loads torch): the counterpart of `algorithm`'s `LinearBlock` and `LinearHead`.

Shapes: N samples, B rows of a mini-batch, E numbers per representation, K clients, C classes, P parameters. Z is
(B, E) with aggregation by sum and (B, K E) by concatenation, where client k owns columns k E to (k + 1) E.

Parameters travel as one flat vector; a frozen `ModelSpec` says what to compute with it, so one skeleton in a process
serves every token's copy. No model has running statistics: h_k must be a function of theta_k and the rows alone, else
Z == sum_k h_k at the token's copy could not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedactors.actors.context import Work
from fedactors.config import is_code
from fedactors.data.values import blocks_of
from fedactors.errors import BadInput
from fedactors.learning.metrics import known, task_metrics
from fedactors.learning.models import ModelSpec, build_skeleton
from fedactors.learning.network import (
    Device,
    as_tensor,
    find_device,
    functional_model,
    initial_vector,
    on_host,
    to_device,
)
from fedactors.learning.user_models import check_model
from fedactors.protocols.mtcd.algorithm import Rows, Task, aggregate, some
from fedactors.protocols.mtcd.config import MtcdConfig

Array = NDArray[Any]
_MODELS = {"mlp": "mlp", "resnet18": "narrow-resnet18", "multi-view-cnn": "view-cnn"}


def bottom_spec(config: MtcdConfig, input_shape: tuple[int, ...]) -> ModelSpec:
    """Return a client's model for samples of `input_shape`: (D,) for mlp, (channels, height, width) otherwise."""
    expected = 1 if config.network == "mlp" else 3
    if len(input_shape) != expected or 0 in input_shape:
        raise BadInput(f"network: {config.network} needs samples of {expected} non-empty axis(es), got {input_shape}")
    made = ModelSpec(
        name=config.user_network or _MODELS[config.network],
        inputs=input_shape,
        outputs=config.representation_size,
        hidden_size=config.hidden_size,
        layers=2,
    )
    check_model(made, split=True)
    return made


def fusion_spec(config: MtcdConfig, num_classes: int) -> ModelSpec:
    """Return the fusion model phi before its loss: a linear layer, which is given relu(Z)."""
    slots = config.num_clients if config.aggregation == "concatenation" else 1
    return ModelSpec(name="linear", inputs=(slots * config.representation_size,), outputs=num_classes)


def named_parameters(spec: ModelSpec, vector_P: Array) -> dict[str, Array]:
    """Return a model's parameters by their names in torch."""
    named, start = {}, 0
    for name, tensor in build_skeleton(spec).named_parameters():
        named[name] = vector_P[start : start + tensor.numel()].reshape(tensor.shape)
        start += tensor.numel()
    return named


def initial(spec: ModelSpec, generator: np.random.Generator) -> Array:
    """Draw parameters (P): weights uniform within 1/sqrt(fan in), biases 0, normalisation scales 1.

    A model of the user's own initialises itself.
    """
    if is_code(spec.name):
        return initial_vector(spec, int(generator.integers(2**62)))
    drawn: list[Array] = []
    for part in build_skeleton(spec).modules():
        for name, tensor in part.named_parameters(recurse=False):
            if tensor.dim() > 1:
                bound = 1.0 / np.sqrt(np.prod(tensor.shape[1:]))
                drawn.append(generator.uniform(-bound, bound, size=tuple(tensor.shape)).ravel())
            else:
                is_scale = isinstance(part, nn.GroupNorm) and name == "weight"
                drawn.append(np.full(tensor.shape, 1.0 if is_scale else 0.0))
    return np.concatenate(drawn).astype(np.float32)


# --- what the actors compute ---


def represent(
    spec: ModelSpec, theta_P: Array, x_N: Array | Tensor, rows_B: Rows | None, device: Device = "cpu"
) -> Array:
    """Return h_k(theta_k; X_k) (B, E); of all rows of a large array block by block."""
    theta = to_device(theta_P, device)
    if rows_B is not None or isinstance(x_N, Tensor):
        return on_host(_represented(spec, theta, _chosen(x_N, rows_B, device)))
    blocks = blocks_of(len(x_N), x_N.nbytes / max(len(x_N), 1))
    found = [on_host(_represented(spec, theta, to_device(x_N[rows], device))) for rows in blocks]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _represented(spec: ModelSpec, theta_P: Tensor, x_B: Tensor) -> Tensor:
    model = functional_model(spec)
    with torch.no_grad():
        return model(model.views(theta_P), x_B)


def _chosen(values_N: Array | Tensor, rows_B: Rows | None, device: Device) -> Tensor:
    """Return some rows there; a tensor is there already."""
    if isinstance(values_N, Tensor):
        return values_N if rows_B is None else values_N[torch.as_tensor(np.asarray(rows_B), device=device)]
    return to_device(values_N if rows_B is None else values_N[rows_B], device)


def visit(
    bottom: ModelSpec,
    fusion: ModelSpec,
    theta_P: Array,
    theta_0: Array,
    x_N: Array | Tensor,
    labels_N: Array | Tensor,
    z: Array,
    rows_B: Rows | None,
    local: tuple[slice, ...],
    step: float,
    num_local_steps: int,
    trains_theta_0: bool,
    device: Device = "cpu",
    weights_N: Array | Tensor | None = None,
) -> tuple[Array, Array, Array]:
    """Do Q local steps on the visited client's block (equation 2); with `trains_theta_0`, on theta_0 too (STCD).

    The loss is the mean of each row's times its weight; without `weights_N` all count alike. Z follows every step
    exactly: the other clients' share of it is held fixed and one's own, at `local`, computed anew.

    Returns:
        New theta_k, new theta_0 (the one given unless `trains_theta_0`), new Z.
    """
    x, labels = _chosen(x_N, rows_B, device), _chosen(labels_N, rows_B, device)
    weights = None if weights_N is None else _chosen(weights_N, rows_B, device)
    model, z_before = functional_model(bottom), to_device(z, device)
    block, head = to_device(theta_P, device), to_device(theta_0, device)
    old = _represented(bottom, block, x)
    is_slot, old_h_BE = len(local) > 1, on_host(old)
    for _ in range(num_local_steps):
        views, head_views = model.views(block), functional_model(fusion).views(head)
        h_BE = model(views, x)
        if is_slot:
            low, high = local[1].start, local[1].stop
            joined = torch.cat([z_before[:, :low], h_BE, z_before[:, high:]], dim=1)
        else:
            joined = (z_before - old) + h_BE
        moving = [*views, *(head_views if trains_theta_0 else ())]
        found = torch.autograd.grad(_loss(fusion, head_views, joined, labels, weights), moving)
        block = _stepped(block, found[: len(views)], step)
        if trains_theta_0:
            head = _stepped(head, found[len(views) :], step)
    new_h_BE = on_host(_represented(bottom, block, x))
    new_z = z.copy()
    if is_slot:
        new_z[local] = new_h_BE
    else:
        new_z += new_h_BE - old_h_BE
    return on_host(block), on_host(head), new_z


def fusion_steps(
    spec: ModelSpec,
    theta_0: Array,
    z: Array,
    labels_B: Array,
    step: float,
    num_steps: int,
    device: Device = "cpu",
    weights_B: Array | None = None,
) -> Array:
    """Do token 0's Q (S + 1) steps on theta_0 with Z frozen, at the server (Algorithm 2)."""
    head, z_tensor, labels = to_device(theta_0, device), to_device(z, device), to_device(labels_B, device)
    weights = None if weights_B is None else to_device(weights_B, device)
    for _ in range(num_steps):
        views = functional_model(spec).views(head)
        head = _stepped(head, torch.autograd.grad(_loss(spec, views, z_tensor, labels, weights), views), step)
    return on_host(head)


def logits(spec: ModelSpec, theta_0: Array, z: Array) -> Array:
    """Return the scores of each class (B, C)."""
    model = functional_model(spec)
    with torch.no_grad():
        found_BC = model(model.views(as_tensor(theta_0)), torch.relu(as_tensor(z)))
    return np.asarray(found_BC.numpy())


def score(spec: ModelSpec, theta_0: Array, z: Array, labels_B: Array) -> dict[str, float]:
    """Return the metrics of Z over the rows."""
    found = known(task_metrics("multiclass", labels_B, logits(spec, theta_0, z)))
    return {**found, "loss": mean_loss(spec, theta_0, z, labels_B)}


def mean_loss(spec: ModelSpec, theta_0: Array, z: Array, labels_B: Array, weights_B: Array | None = None) -> float:
    """Return the mean cross-entropy of Z over the rows, each times its weight."""
    weights = None if weights_B is None else as_tensor(weights_B)
    return float(_cross_entropy(torch.from_numpy(logits(spec, theta_0, z)), as_tensor(labels_B), weights))


def _loss(fusion: ModelSpec, views: list[Tensor], z: Tensor, labels_B: Tensor, weights_B: Tensor | None) -> Tensor:
    return _cross_entropy(functional_model(fusion)(views, torch.relu(z)), labels_B, weights_B)


def _cross_entropy(scores_BC: Tensor, labels_B: Tensor, weights_B: Tensor | None) -> Tensor:
    if weights_B is None:
        return nn.functional.cross_entropy(scores_BC, labels_B)
    return (nn.functional.cross_entropy(scores_BC, labels_B, reduction="none") * weights_B).mean()


def _stepped(vector_P: Tensor, gradients: tuple[Tensor, ...], step: float) -> Tensor:
    return vector_P - step * torch.cat([gradient.reshape(-1) for gradient in gradients])


# --- as the actors see it ---


class NetworkBlock:
    """A client's features and labels, and its representation model; see `algorithm.LinearBlock` for the methods."""

    def __init__(
        self,
        config: MtcdConfig,
        client: int,
        features: Mapping[str, Array],
        labels: Mapping[str, Array],
        num_classes: int,
        weights_N: Array | None = None,
    ) -> None:
        torch.set_num_threads(1)  # torch comes after the process has begun, and more threads change results
        self._bottom = bottom_spec(config, tuple(features["train"].shape[1:]))
        self._fusion = fusion_spec(config, num_classes)
        self.x, self.y = features, labels
        self._device = find_device(config.device)
        # what stays with the actor is where it computes; on the host the arrays themselves, for a pool's processes too
        on_cpu = self._device.type == "cpu"
        self._held = dict(features) if on_cpu else {part: to_device(x, self._device) for part, x in features.items()}
        self._targets = labels["train"] if on_cpu else to_device(labels["train"], self._device)
        self._weights = weights_N if on_cpu or weights_N is None else to_device(weights_N, self._device)
        self.num_samples = len(features["train"])
        self._num_local_steps = config.num_local_steps
        size = config.representation_size
        slot = slice(client * size, (client + 1) * size)
        self.local = (slice(None), slot) if config.aggregation == "concatenation" else (slice(None),)

    def initial(self, generator: np.random.Generator) -> Array:
        """Draw theta_k."""
        return initial(self._bottom, generator)

    def initial_theta_0(self, generator: np.random.Generator) -> Array:
        """Draw theta_0, for a run without a server."""
        return initial(self._fusion, generator)

    def blank(self, num_rows: int) -> Array:
        """Return Z of nobody (B, E or K E)."""
        return np.zeros((num_rows, self._fusion.inputs[0]), np.float32)

    def represent(self, theta: Array, rows_B: Rows | None, part: str = "train") -> Task:
        """Say how to compute h_k over rows of a part."""
        units = len(self.x[part]) if rows_B is None else len(rows_B)
        arguments = (self._bottom, theta, self._held[part], rows_B, str(self._device))
        return Task(represent, arguments, Work("represent", units))

    def visit(
        self, theta: Array, theta_0: Array, z: Array, rows_B: Rows | None, step: float, trains_theta_0: bool
    ) -> Task:
        """Say how to compute a visit; it gives (theta_k, theta_0, Z)."""
        x_N, labels_N, num_steps = self._held["train"], self._targets, self._num_local_steps
        arguments = (
            *(self._bottom, self._fusion, theta, theta_0, x_N, labels_N, z, rows_B, self.local),
            *(step, num_steps, trains_theta_0, str(self._device), self._weights),
        )
        return Task(visit, arguments, Work("visit", len(z) * num_steps))

    def penalty(self, theta: Array) -> float:
        """Return 0: networks have no regulariser here."""
        return 0.0

    def score(self, part: str, z: Array, theta_0: Array) -> Task:
        """Say how to compute the metrics of Z over a part."""
        return Task(score, (self._fusion, theta_0, z, self.y[part]), Work("score"))


class NetworkHead:
    """The server's side: labels, the fusion model, and theta_0; see `algorithm.LinearHead` for the methods."""

    def __init__(self, config: MtcdConfig, labels_N: Array, num_classes: int, weights_N: Array | None = None) -> None:
        torch.set_num_threads(1)  # as in `NetworkBlock`
        self._fusion = fusion_spec(config, num_classes)
        self._num_slots = config.num_clients if config.aggregation == "concatenation" else None
        self._labels, self._weights = labels_N, weights_N
        self._device = str(find_device(config.device))

    def initial(self, generator: np.random.Generator) -> Array:
        """Draw theta_0."""
        return initial(self._fusion, generator)

    def nothing(self) -> Array | None:
        """Return None: a drawn theta has no Z that is known beforehand."""
        return None

    def merge(self, z: Array | None, before: Mapping[int, Array], after: Mapping[int, Array], fresh: bool) -> Array:
        """Return Z of all representations known; one that is missing counts as zeros."""
        return aggregate(after if fresh else {**before, **after}, self._num_slots)

    def steps(self, theta_0: Array, z: Array, rows_B: Rows | None, step: float, num_steps: int) -> Task | None:
        """Say how to compute token 0's steps."""
        labels_B = self._labels if rows_B is None else self._labels[rows_B]
        weights_B = some(self._weights, rows_B)
        arguments = (self._fusion, theta_0, z, labels_B, step, num_steps, self._device, weights_B)
        return Task(fusion_steps, arguments, Work("fusion", len(z) * num_steps))

    def loss(self, theta_0: Array, z: Array, rows_B: Rows | None) -> float:
        """Return the mean cross-entropy on the rows."""
        labels_B = self._labels if rows_B is None else self._labels[rows_B]
        return mean_loss(self._fusion, theta_0, z, labels_B, some(self._weights, rows_B))

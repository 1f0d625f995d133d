"""Local training and evaluation of a whole model, for protocols that average or rotate parameters.

`train_locally` is a pure function: everything that it depends on, the seed of the sample order included, is an
argument, so it can run anywhere and be done again.

Shapes: N samples, P flat parameters, B batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedactors.errors import BadInput
from fedactors.learning.devices import placed
from fedactors.learning.losses import Task, weighted_loss
from fedactors.learning.metrics import task_metrics
from fedactors.learning.models import ModelSpec, build_skeleton
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, optimizer_step
from fedactors.learning.parameters import Array, load_vector, to_vector, trained_places

_MEAN_BLOCK = 32768
"""Parameters that `weighted_mean` adds at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains between two exchanges."""

    optimizer: OptimizerSpec = dataclasses.field(
        default_factory=lambda: OptimizerSpec(learning_rate=0.01, momentum=0.9)
    )
    """The rule of a step; its moments start at zero in every call."""
    batch_size: int = 50
    """Samples per step."""
    num_epochs: int = 5
    """Passes over the client's samples."""
    proximal: float = 0.0
    """FedProx's coefficient of 1/2 ||w - w_start||^2 (Li et al., 2020); 0 is FedAvg."""
    task: Task = "multiclass"
    """Which loss."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LocalResult:
    """What local training returns."""

    vector: Array
    num_samples: int
    num_steps: int
    loss: float
    """Mean training loss over the last epoch."""
    loss_rms: float
    """Root mean square of the losses of all batches."""


def train_locally(
    spec: ModelSpec,
    vector_P: Array,
    x_N: Array | Tensor,
    y_N: Array | Tensor,
    *,
    seed: int,
    training: LocalTraining,
    correction_P: Array | None = None,
    weights_N: Array | None = None,
    device: str | torch.device = "cpu",
) -> LocalResult:
    """Run epochs of mini-batch steps from `vector_P` (McMahan et al., 2017, ClientUpdate).

    Args:
        spec: the model.
        vector_P: where to start.
        x_N: samples; tensors on the device stay there, arrays are copied to it.
        y_N: targets.
        seed: of the order of samples, and of dropout where the model has it.
        training: passes, steps and loss.
        correction_P: added to each gradient (SCAFFOLD's c - c_i); where the vector holds no parameter it is ignored.
        weights_N: how much each sample counts: a batch's loss is the mean of loss times weight; None: 1 each.
        device: where to compute; the vector and what is returned are the host's.

    Raises:
        BadInput: no samples, or a single one with batch normalisation.
    """
    if len(x_N) == 0:
        raise BadInput("local training: the client has no samples")
    module = _loaded(spec, vector_P, device).train()
    parameters, places = zip(*trained_places(module), strict=True)
    start = [parameter.detach().clone() for parameter in parameters] if training.proximal else []
    correction: list[Tensor] = []
    if correction_P is not None:
        whole_P = placed(correction_P, device, spec.dtype)
        correction = [whole_P[place].view(p.shape) for p, place in zip(parameters, places, strict=True)]
    moments = OptimizerState()
    x, y = placed(x_N, device, spec.dtype), placed(y_N, device)
    w = None if weights_N is None else placed(weights_N, device, spec.dtype)
    smallest = smallest_batch(module)
    if len(x) < smallest:
        raise BadInput("local training: batch normalisation needs at least two samples")
    order = np.random.default_rng(seed)
    num_steps, loss_sum, squares = 0, 0.0, 0.0
    with _seeded(module, seed, x.device):
        for _ in range(training.num_epochs):
            loss_sum = 0.0
            for index_B in batches(len(x), training.batch_size, order, smallest):
                chosen = torch.from_numpy(index_B).to(device)
                loss = weighted_loss(training.task, module(x[chosen]), y[chosen], None if w is None else w[chosen])
                gradients = list(torch.autograd.grad(loss, parameters))
                if start:
                    gradients = [
                        gradient.add(parameter.detach() - anchor, alpha=training.proximal)
                        for gradient, parameter, anchor in zip(gradients, parameters, start, strict=True)
                    ]
                if correction:
                    gradients = [gradient + part for gradient, part in zip(gradients, correction, strict=True)]
                optimizer_step(training.optimizer, parameters, gradients, moments, in_place=True)
                num_steps += 1
                value = loss.item()
                loss_sum += value * len(index_B)
                squares += value * value
    return LocalResult(
        vector=to_vector(module),
        num_samples=len(x),
        num_steps=num_steps,
        loss=loss_sum / len(x),
        loss_rms=math.sqrt(squares / num_steps),
    )


def evaluate_model(
    spec: ModelSpec,
    vector_P: Array,
    x_N: Array | Tensor,
    y_N: Array,
    *,
    task: Task = "multiclass",
    batch_size: int = 1024,
    device: str | torch.device = "cpu",
) -> dict[str, float]:
    """Return the metrics of the model on the given samples."""
    return task_metrics(task, y_N, model_outputs(spec, vector_P, x_N, batch_size=batch_size, device=device))


def model_outputs(
    spec: ModelSpec, vector_P: Array, x_N: Array | Tensor, *, batch_size: int = 1024, device: str | torch.device = "cpu"
) -> Array:
    """Return the outputs (N x O) of the model in evaluation mode."""
    module = _loaded(spec, vector_P, device).eval()
    with torch.no_grad():
        parts = [
            module(placed(x_N[first : first + batch_size], device, spec.dtype)).cpu().numpy()
            for first in range(0, len(x_N), batch_size)
        ]
    return np.concatenate(parts) if parts else np.zeros((0, spec.outputs))


def batches(
    num_samples: int, batch_size: int, order: np.random.Generator, smallest: int = 1
) -> Iterator[NDArray[np.int64]]:
    """Yield a random partition of the samples; a last batch below `smallest` is joined to the one before it."""
    permutation = order.permutation(num_samples)
    firsts = list(range(0, num_samples, batch_size))
    if len(firsts) > 1 and num_samples - firsts[-1] < smallest:
        firsts.pop()
    for first, last in zip(firsts, [*firsts[1:], num_samples], strict=True):
        yield permutation[first:last]


def blend(first_P: Array, second_P: Array, share: float) -> Array:
    """Return (1 - share) first + share second, a new vector between the two in every number, 0 <= share <= 1."""
    if share > 0.5:
        return blend(second_P, first_P, 1.0 - share)
    mixed_P = second_P - first_P
    mixed_P *= np.float32(share)
    mixed_P += first_P
    return mixed_P


def weighted_mean(models: Sequence[Array], weights: Sequence[float]) -> Array:
    """Return sum(w_k m_k) / sum(w_k), added in the order given, in double precision.

    Weights are non-negative; when all of them are zero every model counts the same.
    """
    if len(models) != len(weights) or not models:
        raise ValueError(f"{len(models)} models and {len(weights)} weights do not make a mean")
    shares = np.asarray(weights, dtype=np.float64)
    if (shares < 0).any():
        raise ValueError("a weight is negative")
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(len(models), 1.0 / len(models))
    mean_P = np.empty_like(models[0])
    sum_P, term_P = np.empty(_MEAN_BLOCK), np.empty(_MEAN_BLOCK)
    for first in range(0, mean_P.size, _MEAN_BLOCK):  # block by block, so that sums stay in the processor's cache
        place = slice(first, min(first + _MEAN_BLOCK, mean_P.size))
        sums, terms = sum_P[: place.stop - first], term_P[: place.stop - first]
        sums[:] = 0.0
        for share, model_P in zip(shares, models, strict=True):
            terms[:] = model_P[place]
            terms *= share
            sums += terms
        mean_P[place] = sums
    return mean_P


def smallest_batch(module: nn.Module) -> int:
    """Return how many samples a step needs at least: two with batch normalisation."""
    return 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()) else 1


def draws(module: nn.Module) -> bool:
    """Say whether a module draws at random while it trains."""
    return any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in module.modules())


@contextlib.contextmanager
def _seeded(module: nn.Module, seed: int, device: torch.device) -> Iterator[None]:
    if not draws(module):
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


_MODULES = threading.local()
"""Modules by specification and device, a few in each thread: a small model trains faster than it is built."""
_MOST_MODULES = 4


def _loaded(spec: ModelSpec, vector_P: Array, device: str | torch.device = "cpu") -> nn.Module:
    known: dict[tuple[ModelSpec, str], nn.Module] = _MODULES.__dict__.setdefault("known", {})
    key = (spec, str(device))
    if key not in known:
        if len(known) >= _MOST_MODULES:
            known.clear()
        known[key] = build_skeleton(spec, device="cpu").to(device)
    module = known[key]
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.num_batches_tracked is not None:
            part.num_batches_tracked.zero_()
    load_vector(module, vector_P)
    return module

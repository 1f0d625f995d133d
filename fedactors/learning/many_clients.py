"""Many clients trained in one batched call: the same numbers as one after the other, to rounding.

A small model on a small client spends its time between operations, not in them. Here the parameters of all clients lie
in one tensor per layer (C, ...), and `torch.func.vmap` turns each operation over one client into one over all:

    step t   clients that still have a t-th batch:  0 .. k_t     (sorted, the most steps first: k_t only falls)
             rows (k, B, F), those beyond a client's own batch with weight 0
             losses (k,) -> gradients -> one step of the optimiser for all k

So clients may differ in rows and in steps; who has none left keeps its model. The order of each client's rows is the
one that `fedactors.learning.local_training.train_locally` draws from the same seed.

Not every module can be trained so: running statistics and dropout depend on what is computed beside them. Such a model
is trained one client after the other, and `why_not_together` says why.

Shapes: C clients, k of them at a step, T steps, B rows of a batch, P parameters.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedactors.config import is_code
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalResult, LocalTraining, batches, draws, train_locally
from fedactors.learning.metrics import Task
from fedactors.learning.models import ModelSpec, build_skeleton, nonlinear_weights, target_shape, task_loss
from fedactors.learning.network import Array, statistics_of, to_device, trained_slices
from fedactors.learning.optimizers import NORM_EPSILON, OptimizerState, optimizer_step
from fedactors.validation import first_line

MOST_TOGETHER = 64
"""Clients of one batched call by default: more are trained in several, so that a step's rows stay in the cache."""
MOST_PARAMETERS = 65_536
"""Numbers of a model up to which a batched call pays on a CPU: beyond, many clients' parameters leave the cache at each
operation (`scenarios/benchmarks/batched_clients.py`). On a GPU it always does."""
Rows = tuple[Array | Tensor, Array | Tensor]
"""A client's samples and targets, both with N rows; tensors on the device stay there."""
_log = logging.getLogger(__name__)


def train_clients(
    spec: ModelSpec,
    starts: Sequence[Array],
    clients: Sequence[Rows],
    *,
    seeds: Sequence[int],
    training: LocalTraining | Sequence[LocalTraining],
    corrections: Sequence[Array] | None = None,
    weights: Sequence[Array | None] | None = None,
    together: bool = True,
    most_together: int = MOST_TOGETHER,
    most_parameters: int = MOST_PARAMETERS,
    device: str | torch.device = "cpu",
) -> list[LocalResult]:
    """Train each client from its own start; return the results in their order.

    Args:
        spec: the model of all of them.
        starts: a vector (P) for each.
        clients: the rows of each.
        seeds: of each client's order of rows.
        training: passes, steps and loss; of each client where passes, rows of a step or decay differ.
        corrections: added to each client's gradients (P each).
        weights: how much each client's rows count in its loss; None: all alike.
        together: in batched calls, where the model allows it and it pays; else one after the other.
        most_together: clients of one batched call.
        most_parameters: of a model that is trained in batched calls on a CPU.
        device: where to compute.

    Raises:
        BadInput: a client without samples.
    """
    weighing = [None] * len(clients) if weights is None else weights
    trainings = [training] * len(clients) if isinstance(training, LocalTraining) else list(training)
    together = together and all(one.is_plain for one in trainings)
    task = trainings[0].task if trainings else "multiclass"
    if not together or not can_be_batched(spec, task, len(clients), len(starts[0]), device, most_parameters):
        added = [None] * len(clients) if corrections is None else corrections
        return [
            train_locally(
                spec, start_P, *rows, seed=seed, training=how, correction_P=one, weights_N=counts, device=device
            )
            for start_P, rows, seed, how, one, counts in zip(
                starts, clients, seeds, trainings, added, weighing, strict=True
            )
        ]
    plans = [_plan(rows, seed, how) for rows, seed, how in zip(clients, seeds, trainings, strict=True)]
    order = sorted(range(len(clients)), key=lambda client: -len(plans[client]))
    results: dict[int, LocalResult] = {}
    for first in range(0, len(order), most_together):
        chosen = order[first : first + most_together]
        found = _train(
            spec,
            np.stack([starts[client] for client in chosen]),
            [clients[client] for client in chosen],
            [plans[client] for client in chosen],
            [trainings[client] for client in chosen],
            None if corrections is None else np.stack([corrections[client] for client in chosen]),
            [weighing[client] for client in chosen],
            torch.device(device),
        )
        results |= dict(zip(chosen, found, strict=True))
    return [results[client] for client in range(len(clients))]


_ON_DEVICE: dict[tuple[bytes, str], tuple[weakref.ref[Array], Rows]] = {}


def rows_on(load: Callable[[bytes], tuple[Array, Array]], key: bytes, device: str) -> Rows:
    """Return the rows that `load` finds by a key, as tensors that stay on the device; on the CPU the arrays.

    They stay as long as the samples that `load` returns are kept.
    """
    x, y = load(key)
    if device == "cpu":
        return x, y
    of, rows = _ON_DEVICE.get((key, device), (None, None))
    if rows is None or of is None or of() is not x:
        rows = to_device(x, device), to_device(y, device)
        _ON_DEVICE[key, device] = weakref.ref(x, lambda of: _forget(key, device, of)), rows
    return rows


def _forget(key: bytes, device: str, of: weakref.ref[Array]) -> None:
    if (found := _ON_DEVICE.get((key, device))) is not None and found[0] is of:
        del _ON_DEVICE[key, device]


def can_be_batched(
    spec: ModelSpec,
    task: Task,
    num_clients: int,
    num_parameters: int,
    device: str | torch.device = "cpu",
    most_parameters: int = MOST_PARAMETERS,
) -> bool:
    """Say whether clients are trained in one call: it pays, and the model allows it; else it is said why, once."""
    if num_clients < 2 or (torch.device(device).type == "cpu" and num_parameters > most_parameters):
        return False
    if reason := why_not_together(spec, task):
        _say_once(spec.name, reason)
    return not reason


@functools.lru_cache(maxsize=32)
def why_not_together(spec: ModelSpec, task: Task = "multiclass") -> str:
    """Return why clients with this model cannot be trained in one call; empty: they can be."""
    if task == "tokens":
        return "its loss is a mean over the tokens that count, of which clients have different numbers"
    module = build_skeleton(spec, device="cpu")
    if statistics_of(module):
        return "it has running statistics, which a batched call would share"
    x = torch.zeros(2, 2, *spec.inputs, dtype=spec.dtype)
    try:
        if draws(module, *([x[0]] if is_code(spec.name) else [])):
            return "it draws at random (dropout), which a batched call would do in another order"
    except Exception as error:  # the caller that trains it says so
        return f"it takes no batch of two ({first_line(error)})"
    y = torch.zeros(2, 2, *target_shape(task, spec), dtype=torch.long)
    values = [part[0].detach()[None].repeat(2, *[1] * part[0].ndim) for part in trained_slices(module)]
    try:
        _gradients(module, task, values, x, y, torch.ones(2, 2, dtype=spec.dtype))
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        return f"torch cannot batch it ({str(error).splitlines()[0]})"
    return ""


@functools.cache
def _say_once(name: str, reason: str) -> None:
    _log.warning("%s is trained one client after the other: %s", name, reason)


def _plan(rows: Rows, seed: int, training: LocalTraining) -> list[NDArray[np.int64]]:
    """Return the rows of each step."""
    if len(rows[0]) == 0:
        raise BadInput("local training: the client has no samples")
    order = np.random.default_rng(seed)
    return [
        index_B for _ in range(training.num_epochs) for index_B in batches(len(rows[0]), training.batch_size, order)
    ]


def _train(
    spec: ModelSpec,
    starts_CP: Array,
    clients: Sequence[Rows],
    plans: Sequence[list[NDArray[np.int64]]],
    trainings: Sequence[LocalTraining],
    corrections_CP: Array | None,
    weighing: Sequence[Array | None],
    device: torch.device,
) -> list[LocalResult]:
    """Train clients that are sorted by their number of steps, the most first."""
    module, training = _module(spec, device), trainings[0]
    slices = trained_slices(module)
    starts = _split(starts_CP, slices, spec, device)
    corrections = None if corrections_CP is None else _split(corrections_CP, slices, spec, device)
    optimizer, clip_norm = training.optimizer.unclipped, training.optimizer.clip_norm
    index_TCB, weight_TCB, steps_C = _padded(clients, plans, weighing)
    rows_TC = torch.from_numpy(_lengths(plans, len(index_TCB))).to(device, spec.dtype)
    x_N = torch.cat([to_device(x, device, spec.dtype) for x, _ in clients])
    y_N = torch.cat([to_device(y, device) for _, y in clients])
    index, weight = torch.from_numpy(index_TCB).to(device), torch.from_numpy(weight_TCB).to(device, spec.dtype)
    last_epoch = np.array([len(plan) - len(plan) // how.num_epochs for plan, how in zip(plans, trainings, strict=True)])
    shares = [optimizer.learning_rate * how.decay for how in trainings]
    shares_C = torch.tensor(shares, dtype=spec.dtype, device=device)
    decayed = _nonlinear(spec, slices) if any(shares) else []
    first_epoch = np.array([len(plan) // how.num_epochs for plan, how in zip(plans, trainings, strict=True)])
    losses_C, squares_C, lost_C, seen_C = torch.zeros(4, len(clients), dtype=spec.dtype, device=device)
    left_C = torch.ones_like(shares_C)
    values, moments = [start.clone() for start in starts], OptimizerState()
    done = [torch.empty_like(value) for value in values]
    active = len(clients)
    for step in range(len(index)):
        still = int(np.count_nonzero(steps_C > step))
        if still < active:
            for kept, value in zip(done, values, strict=True):
                kept[still:active] = value[still:]
            values, active = [value[:still] for value in values], still
            for name in ("first", "second"):
                if getattr(moments, name) is not None:
                    setattr(moments, name, [moment[:still] for moment in getattr(moments, name)])
        chosen = index[step, :active]
        weight_kB = weight[step, :active]
        losses_k, gradients, unused = _gradients(module, training.task, values, x_N[chosen], y_N[chosen], weight_kB)
        if training.proximal:
            pulls = zip(gradients, values, starts, strict=True)
            gradients = [g.add(value - start[:active], alpha=training.proximal) for g, value, start in pulls]
        if corrections is not None:
            gradients = [g + part[:active] for g, part in zip(gradients, corrections, strict=True)]
        if clip_norm is not None:
            gradients = _clipped(gradients, clip_norm)
        if training.decays_by_loss:  # by what the first pass says so far
            is_first_k = torch.from_numpy(step < first_epoch[:active]).to(device)
            seen_C[:active] += rows_TC[step, :active] * is_first_k
            lost_C[:active] += losses_k * rows_TC[step, :active] * is_first_k
            left_C = (lost_C / seen_C.clamp(min=1)).clamp(max=1)
        kept_k = 1 - (shares_C * left_C)[:active].clamp(max=1)
        for number in decayed:
            values[number] = values[number] * kept_k.view(-1, *[1] * (values[number].ndim - 1))
        moved = optimizer_step(optimizer, values, gradients, moments)
        # as in torch, what gets no gradient does not decay either
        values = [values[number] if number in unused else one for number, one in enumerate(moved)]
        counted = torch.from_numpy(step >= last_epoch[:active]).to(device)
        losses_C[:active] += losses_k * rows_TC[step, :active] * counted
        squares_C[:active] += losses_k.square()
    for kept, value in zip(done, values, strict=True):
        kept[:active] = value
    vectors_CP = _joined(done, slices, starts_CP)
    losses, squares = losses_C.cpu().numpy(), squares_C.cpu().numpy()
    return [
        LocalResult(
            vector=vectors_CP[number],
            num_samples=len(rows[0]),
            num_steps=len(plan),
            loss=float(losses[number]) / len(rows[0]),
            loss_rms=math.sqrt(float(squares[number]) / len(plan)),
        )
        for number, (rows, plan) in enumerate(zip(clients, plans, strict=True))
    ]


def _gradients(
    module: nn.Module, task: Task, values: Sequence[Tensor], x_kBF: Tensor, y_kB: Tensor, weight_kB: Tensor
) -> tuple[Tensor, list[Tensor], set[int]]:
    """Return each client's mean loss over its own rows (k), its gradients, and which parameters get none."""
    named = {name: value for name, value in module.named_parameters() if value.requires_grad}

    def loss(values: tuple[Tensor, ...], x_BF: Tensor, y_B: Tensor, weight_B: Tensor) -> Tensor:
        output_BO = functional_call(module, dict(zip(named, values, strict=True)), (x_BF,))
        return (task_loss(task, output_BO, y_B, reduction="none") * weight_B).sum()

    leaves = tuple(value.detach().requires_grad_() for value in values)
    losses_k = vmap(loss)(leaves, x_kBF, y_kB, weight_kB)
    # clients do not touch one another: the gradient of the sum holds everybody's own
    found = torch.autograd.grad(losses_k.sum(), leaves, allow_unused=True)
    unused = {number for number, gradient in enumerate(found) if gradient is None}
    gradients = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, found, strict=True)]
    return losses_k.detach(), gradients, unused


_MODULES = threading.local()


def _module(spec: ModelSpec, device: torch.device) -> nn.Module:
    """Return the module that calls are made with, of this thread; its own parameters are never used."""
    kept: tuple[ModelSpec, str, nn.Module] | None = _MODULES.__dict__.get("kept")
    if kept is None or kept[:2] != (spec, str(device)):
        kept = (spec, str(device), build_skeleton(spec, device="cpu").to(device).train())
        _MODULES.kept = kept
    return kept[2]


def _split(
    vectors_CP: Array, slices: Sequence[tuple[nn.Parameter, slice]], spec: ModelSpec, device: torch.device
) -> list[Tensor]:
    whole = to_device(vectors_CP, device, spec.dtype)
    return [whole[:, part].reshape(len(whole), *parameter.shape) for parameter, part in slices]


def _joined(values: Sequence[Tensor], slices: Sequence[tuple[nn.Parameter, slice]], starts_CP: Array) -> Array:
    vectors_CP = np.array(starts_CP)
    for value, (_, part) in zip(values, slices, strict=True):
        vectors_CP[:, part] = value.reshape(len(value), -1).cpu().numpy()
    return vectors_CP


def _nonlinear(spec: ModelSpec, slices: Sequence[tuple[nn.Parameter, slice]]) -> list[int]:
    """Return which of the trained tensors are weights of the MLP beside a linear skip."""
    marks_P = nonlinear_weights(spec)
    return [number for number, (_, part) in enumerate(slices) if bool(marks_P[part].all())]


def _lengths(plans: Sequence[list[NDArray[np.int64]]], num_steps: int) -> NDArray[np.int64]:
    """Return the rows of each step of each client (T, C)."""
    return np.array([[len(plan[step]) if step < len(plan) else 0 for plan in plans] for step in range(num_steps)])


def _padded(
    clients: Sequence[Rows], plans: Sequence[list[NDArray[np.int64]]], weighing: Sequence[Array | None]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Return rows among all clients' (T, C, B), their weights in the mean of a batch, and each client's steps (C)."""
    steps_C = np.array([len(plan) for plan in plans])
    width = max(len(index_B) for plan in plans for index_B in plan)
    index_TCB = np.zeros((steps_C.max(), len(plans), width), np.int64)
    weight_TCB = np.zeros(index_TCB.shape)
    first = 0
    for client, (rows, plan, counts) in enumerate(zip(clients, plans, weighing, strict=True)):
        for step, index_B in enumerate(plan):
            index_TCB[step, client] = first  # a row of its own, so that what has no weight is a number too
            index_TCB[step, client, : len(index_B)] = first + index_B
            weight_TCB[step, client, : len(index_B)] = (1.0 if counts is None else counts[index_B]) / len(index_B)
        first += len(rows[0])
    return index_TCB, weight_TCB, steps_C


def _clipped(gradients: Sequence[Tensor], norm: float) -> list[Tensor]:
    """Clip each client's gradients as `fedactors.learning.optimizers.clipped` does one's."""
    squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients])
    factor_k = (norm / (squares.sum(0).sqrt() + NORM_EPSILON)).clamp(max=1.0)
    return [gradient * factor_k.view(-1, *[1] * (gradient.ndim - 1)) for gradient in gradients]

"""Local training and evaluation of a whole model, for protocols that average or rotate parameters.

`train_locally` is a pure function: everything that it depends on, the seed of the sample order included, is an
argument, so it can run anywhere and be done again. `clipped_gradient_sum` is DP-SGD's (Abadi
et al., 2016): each row's own gradient by torch.func (vmap over grad), which serves any module without running
statistics; noise and account are the caller's.

`train_privately` is DP-SGD as a client's local training, with Opacus's per-sample gradients:

    step    rows, each with probability q = B / N, of which nobody else knows
            g = (sum of the rows' gradients, each clipped to norm C, + N(0, (z C)^2)) / B
            the optimiser's step along g, with FedProx's pull and SCAFFOLD's correction, which follow from no row

A row that is there or not moves a sum by at most C; what follows from the sums alone costs nothing more. Frozen
parameters (LoRA) are left out of norm and noise. No loss of the rows is returned.

Shapes: N samples, P flat parameters, B batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import random
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from fedactors.config import is_code
from fedactors.errors import BadInput
from fedactors.learning.metrics import Task, task_metrics, token_metrics
from fedactors.learning.models import (
    ModelSpec,
    build_skeleton,
    find_code,
    fork_draws,
    instance_of,
    nonlinear_weights,
    num_terms,
    task_loss,
    weighted_loss,
)
from fedactors.learning.network import (
    Array,
    load_vector,
    local_mask,
    on_host,
    skeleton,
    to_device,
    to_vector,
    train_mode,
    trained_slices,
)
from fedactors.learning.network import Model as ModelFunction
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, clip_factor, optimizer_step
from fedactors.privacy.accounting import RecordPrivacy
from fedactors.privacy.mechanisms import add_gaussian
from fedactors.validation import first_line

_MOST_OUTPUTS = 2**24
"""Values that a model returns at a time where it is measured."""
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
    loss: str = ""
    """Address of a user's loss instead; see `user_loss`."""
    decay: float = 0.0
    """Share of its non-linear weights that a step of size 1 takes from a ``skip-mlp`` (`nonlinear_weights`)."""
    decays_by_loss: bool = False
    """Whether a step takes that share times the mean loss of the first pass so far, where that is below 1."""
    precision: Literal["full", "bf16"] = "full"
    """``bf16``: modules compute in bfloat16 where torch can (autocast); parameters and losses are as they are."""
    micro_batch_size: int | None = None
    """Samples whose gradients are computed at once and added up to those of a step; None: all of them."""
    only: Literal["all", "local", "shared"] = "all"
    """Which parameters follow their gradients: those that `local` names, all others, or all of them."""
    local: tuple[str, ...] = ()
    """Patterns of `fedactors.learning.network.local_entries`."""

    @property
    def is_plain(self) -> bool:
        """Whether a batched call over clients does the same."""
        whole = self.micro_batch_size is None and self.only == "all"
        return not self.loss and self.precision == "full" and whole

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Return the context that a module is called in."""
        if self.precision == "full":
            return contextlib.nullcontext()
        return torch.autocast(device.type, torch.bfloat16)


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
        seed: of the order of samples, and of what the model draws (dropout).
        training: passes, steps and loss.
        correction_P: added to each gradient (SCAFFOLD's c - c_i); where the vector holds no parameter it is ignored.
        weights_N: how much each sample counts: a batch's loss is the mean of loss times weight; None: 1 each.
        device: where to compute; the vector and what is returned are the host's.

    Raises:
        BadInput: no samples, or a single one with batch normalisation.
    """
    space = _workspace(spec, device)
    x, y = Samples(x_N, device, spec.dtype), to_device(y_N, device)
    w = None if weights_N is None else to_device(weights_N, device, spec.dtype)

    if training.loss and w is not None:
        raise BadInput("loss: your own loss is not allowed with class_weights: weigh the classes in it")
    if training.task == "tokens" and w is not None:
        raise BadInput("weight: not allowed for tokens, whose loss is a mean over those that count")

    def loss_of(index_B: Tensor) -> Tensor:
        with training.autocast(torch.device(device)):
            output_BO = space.module(x[index_B])
        output_BO = output_BO.to(spec.dtype)
        if training.loss:
            return user_loss(training.loss, output_BO, y[index_B])
        return weighted_loss(training.task, output_BO, y[index_B], None if w is None else w[index_B])

    def terms_of(index_B: NDArray[np.int64]) -> int:
        return num_terms(training.task, y[torch.from_numpy(index_B).to(y.device)])

    counts = terms_of if training.task == "tokens" else len
    return space.train(vector_P, len(x), loss_of, seed, training, correction_P, counts)


def user_loss(address: str, output_BO: Tensor, target_B: Tensor) -> Tensor:
    """Return a user's loss of a batch, the mean over it: ``loss(outputs, targets)``.

    A class is made first, ``torch.nn:HuberLoss``. Outputs are (B, O), of a single one (B), of tokens (B, K, O).
    """
    loss = instance_of(find_code("loss", address))
    output = output_BO.squeeze(1) if output_BO.shape[1:] == (1,) else output_BO
    is_number = output.ndim == 1 or target_B.is_floating_point()
    made: Tensor = loss(output, target_B.to(output.dtype) if is_number else target_B)
    return made


class Samples:
    """Samples to be chosen by their numbers: on the host an array stays where it is, in memory or in a mapped file.

    Args:
        samples: an array, or a tensor on the device.
        device: where they are computed with.
        dtype: of the model.
    """

    def __init__(self, samples: Array | Tensor, device: str | torch.device, dtype: torch.dtype) -> None:
        self._dtype = dtype
        is_array = isinstance(samples, np.ndarray) and torch.device(device).type == "cpu"
        self._array = samples if is_array else None
        self._tensor = None if is_array else to_device(samples, device, dtype)
        self._size = len(samples)

    def __len__(self) -> int:
        """Return how many there are."""
        return self._size

    def __getitem__(self, index_B: Tensor) -> Tensor:
        """Return some of them, as a tensor on the device."""
        if self._tensor is not None:
            return self._tensor[index_B]
        assert self._array is not None
        return torch.from_numpy(self._array[index_B.numpy()]).to(self._dtype)


def distil(
    spec: ModelSpec,
    vector_P: Array,
    x_N: Array | Tensor,
    target_NK: Array,
    *,
    seed: int,
    training: LocalTraining,
    device: str | torch.device = "cpu",
) -> LocalResult:
    """Fit a classifier to the class probabilities `target_NK` of unlabelled samples by Kullback-Leibler divergence."""
    space = _workspace(spec, device)
    x, target = to_device(x_N, device, spec.dtype), to_device(target_NK, device)

    def loss_of(index_B: Tensor) -> Tensor:
        return kl_div(log_softmax(space.module(x[index_B]), dim=1), target[index_B], reduction="batchmean")

    return space.train(vector_P, len(x), loss_of, seed, training)


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
    """Return the metrics of the model on the given samples; of tokens part by part, whose outputs are large."""
    if task != "tokens":
        return task_metrics(task, y_N, model_outputs(spec, vector_P, x_N, batch_size=batch_size, device=device))
    with _evaluated(spec, vector_P, device) as outputs_of:
        return token_metrics((y_N[rows], outputs_of(x_N[rows])) for rows in _parts(spec, len(x_N), batch_size))


def model_outputs(
    spec: ModelSpec, vector_P: Array, x_N: Array | Tensor, *, batch_size: int = 1024, device: str | torch.device = "cpu"
) -> Array:
    """Return the outputs (N x O) of the model in evaluation mode."""
    with _evaluated(spec, vector_P, device) as outputs_of:
        parts = [outputs_of(x_N[rows]) for rows in _parts(spec, len(x_N), batch_size)]
    return np.concatenate(parts) if parts else np.zeros((0, *spec.output_shape))


def _parts(spec: ModelSpec, num_rows: int, batch_size: int) -> list[slice]:
    """Return rows in parts, for which a model returns so many values at most that memory holds them."""
    size = min(batch_size, max(1, _MOST_OUTPUTS // math.prod(spec.output_shape)))
    return [slice(first, first + size) for first in range(0, num_rows, size)]


@contextlib.contextmanager
def _evaluated(
    spec: ModelSpec, vector_P: Array, device: str | torch.device
) -> Iterator[Callable[[Array | Tensor], Array]]:
    """Give a function from samples to the model's outputs, in evaluation mode."""
    module = _workspace(spec, device).load(vector_P).eval()
    # a module of the user's own may draw even now
    drawing = fork_draws(0, torch.device(device)) if is_code(spec.name) else contextlib.nullcontext()
    with torch.no_grad(), drawing:
        yield lambda x_B: module(to_device(x_B, device, spec.dtype)).cpu().numpy()


def batches(
    num_samples: int, batch_size: int, order: np.random.Generator, smallest: int = 1
) -> Iterator[NDArray[np.int64]]:
    """Yield a random partition of the samples; a last batch below `smallest` is joined to the one before it."""
    yield from _pieces(order.permutation(num_samples), batch_size, smallest)


def _pieces(rows_N: NDArray[np.int64], size: int | None, smallest: int = 1) -> Iterator[NDArray[np.int64]]:
    """Yield rows in pieces of a size (None: all at once); a last one below `smallest` is joined to the one before."""
    firsts = list(range(0, len(rows_N), size or max(len(rows_N), 1)))
    if len(firsts) > 1 and len(rows_N) - firsts[-1] < smallest:
        firsts.pop()
    for first, last in zip(firsts, [*firsts[1:], len(rows_N)], strict=True):
        yield rows_N[first:last]


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
        part = slice(first, min(first + _MEAN_BLOCK, mean_P.size))
        sums, terms = sum_P[: part.stop - first], term_P[: part.stop - first]
        sums[:] = 0.0
        for share, model_P in zip(shares, models, strict=True):
            terms[:] = model_P[part]
            terms *= share
            sums += terms
        mean_P[part] = sums
    return mean_P


def smallest_batch(module: nn.Module) -> int:
    """Return how many samples a step needs at least: two with batch normalisation."""
    return 2 if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()) else 1


def draws(module: nn.Module, *inputs: Tensor) -> bool:
    """Say whether a module draws at random while it trains: it has dropout, or draws when called with `inputs`."""
    if any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in module.modules()):
        return True
    if not inputs:
        return False
    with fork_draws(0), torch.no_grad():
        before = _generators()
        train_mode(module)(*inputs)
        return before != _generators()


def _generators() -> tuple[Any, ...]:
    """Return where the generators are that a module may draw from."""
    return torch.get_rng_state().tolist(), random.getstate(), [str(part) for part in tuple(np.random.get_state())[2:]]


class _Workspace:
    """A module whose trained parameters are views of one flat vector, and their gradients of another.

    A step is then a few operations on two vectors, however many parameters there are.
    """

    def __init__(self, spec: ModelSpec, device: torch.device) -> None:
        self._spec = spec
        self.module = build_skeleton(spec, device="cpu").to(device)
        self._smallest_batch = smallest_batch(self.module)
        self._draws = is_code(spec.name) or draws(self.module)  # of a module of the user's own nobody knows
        trained = trained_slices(self.module)
        sizes = [parameter.numel() for parameter, _ in trained]
        self._slices, self._sizes = [part for _, part in trained], sizes
        self._parameters = [parameter for parameter, _ in trained]
        self._values_P = torch.cat([parameter.detach().reshape(-1) for parameter, _ in trained])
        self._gradient_P = torch.zeros_like(self._values_P)
        self._gradients = torch.split(self._gradient_P, sizes)
        for (parameter, _), value, gradient in zip(
            trained, torch.split(self._values_P, sizes), self._gradients, strict=True
        ):
            parameter.data, parameter.grad = value.view(parameter.shape), gradient.view(parameter.shape)
        is_skip = spec.name == "skip-mlp"
        self._nonlinear_P = self._trained(nonlinear_weights(spec).to(spec.dtype).numpy()) if is_skip else None

    def load(self, vector_P: Array) -> nn.Module:
        """Return the module with the parameters and statistics of a vector."""
        for part in self.module.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.num_batches_tracked is not None:
                part.num_batches_tracked.zero_()
        load_vector(self.module, vector_P)
        return self.module

    def train(
        self,
        vector_P: Array,
        num_samples: int,
        loss_of: Callable[[Tensor], Tensor],
        seed: int,
        training: LocalTraining,
        correction_P: Array | None = None,
        terms_of: Callable[[NDArray[np.int64]], int] = len,
    ) -> LocalResult:
        """Run epochs of mini-batch steps on the loss of rows, a mean over `terms_of` them; see `train_locally`."""
        if num_samples < self._smallest_batch:
            raise BadInput(
                "local training: batch normalisation needs at least two samples"
                if num_samples
                else "local training: the client has no samples"
            )
        train_mode(self.load(vector_P))
        values_P, order, moments = self._values_P, np.random.default_rng(seed), OptimizerState()
        rule = training.optimizer.unclipped
        start_P = values_P.clone() if training.proximal else None
        added_P = None if correction_P is None else self._trained(correction_P)
        kept_P, kept = self._kept(training)
        share = rule.learning_rate * training.decay if self._nonlinear_P is not None else 0.0
        num_steps, loss_sum, squares, total, left = 0, 0.0, 0.0, 0, 1.0
        with fork_draws(seed, values_P.device) if self._draws or training.loss else contextlib.nullcontext():
            for epoch in range(training.num_epochs):
                loss_sum, total = 0.0, 0
                for index_B in batches(num_samples, training.batch_size, order, self._smallest_batch):
                    if num_steps or not rule.weight_decay:
                        loss = self._backward(index_B, loss_of, training, terms_of)
                    else:
                        with self._used() as used:
                            loss = self._backward(index_B, loss_of, training, terms_of)
                        kept_P, kept = self._kept(training, set(range(len(self._sizes))) - used)
                    gradient_P = self._gradient(training, start_P, added_P, kept_P)
                    if share and self._nonlinear_P is not None:
                        if training.decays_by_loss and epoch == 0:
                            left = min(1.0, (loss_sum + loss.item() * len(index_B)) / (total + len(index_B)))
                        values_P.mul_(1.0 - min(1.0, share * left) * self._nonlinear_P)
                    optimizer_step(rule, [values_P], [gradient_P], moments, in_place=True)
                    if kept_P is not None:  # weight decay would move them
                        values_P[kept_P] = kept
                    num_steps += 1
                    value = loss.item()
                    loss_sum += value * terms_of(index_B)
                    total += terms_of(index_B)
                    squares += value * value
        return LocalResult(
            vector=to_vector(self.module),
            num_samples=num_samples,
            num_steps=num_steps,
            loss=loss_sum / max(1, total),
            loss_rms=math.sqrt(squares / num_steps),
        )

    def _backward(
        self,
        index_B: NDArray[np.int64],
        loss_of: Callable[[Tensor], Tensor],
        training: LocalTraining,
        terms_of: Callable[[NDArray[np.int64]], int],
    ) -> Tensor:
        """Compute the gradient of the mean loss of a batch, of some samples at a time; return the loss."""
        self._gradient_P.zero_()
        losses, total = [], max(1, terms_of(index_B))
        for part_B in _pieces(index_B, training.micro_batch_size, self._smallest_batch):
            loss = loss_of(torch.from_numpy(part_B).to(self._values_P.device))
            losses.append(loss if len(part_B) == len(index_B) else loss * (terms_of(part_B) / total))
            losses[-1].backward()  # type: ignore[no-untyped-call]
        return losses[0] if len(losses) == 1 else torch.stack([loss.detach() for loss in losses]).sum()

    @contextlib.contextmanager
    def _used(self) -> Iterator[set[int]]:
        """Give the numbers of the parameters that get a gradient, when one has been computed."""
        found: set[int] = set()
        hooks = [
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _, number=number: found.add(number)
            )
            for number, parameter in enumerate(self._parameters)
        ]
        try:
            yield found
        finally:
            for hook in hooks:
                hook.remove()

    def _kept(self, training: LocalTraining, unused: Collection[int] = ()) -> tuple[Tensor | None, Tensor]:
        """Return which values stay as they are, None where none do, and what they are.

        As in torch, what gets no gradient does not decay either.
        """
        if training.only == "all" and not unused:
            return None, self._values_P[:0]
        local_P = local_mask(self._spec, training.local if training.only != "all" else ())
        mask_P = torch.from_numpy(np.concatenate([local_P[part] for part in self._slices])).to(self._values_P.device)
        kept_P = ~mask_P if training.only == "local" else mask_P
        for number in unused:
            torch.split(kept_P, self._sizes)[number].fill_(True)
        return kept_P, self._values_P[kept_P].clone()

    def _gradient(
        self, training: LocalTraining, start_P: Tensor | None, added_P: Tensor | None, kept_P: Tensor | None
    ) -> Tensor:
        """Return the gradient of a step's loss with FedProx's pull to the start and SCAFFOLD's correction, clipped."""
        gradient_P, clip_norm = self._gradient_P, training.optimizer.clip_norm
        if start_P is not None:
            gradient_P.add_(self._values_P - start_P, alpha=training.proximal)
        if added_P is not None:
            gradient_P.add_(added_P)
        if kept_P is not None:
            gradient_P.masked_fill_(kept_P, 0.0)
        return gradient_P if clip_norm is None else gradient_P.mul_(clip_factor(self._gradients, clip_norm))

    def _trained(self, vector_P: Array) -> Tensor:
        """Return the numbers of a model's vector that stand where parameters are trained."""
        whole_P = to_device(vector_P, self._values_P.device, self._values_P.dtype)
        return torch.cat([whole_P[part] for part in self._slices])


_WORKSPACES = threading.local()
"""By specification and device, a few in each thread: a small model trains faster than it is built."""
_MOST_WORKSPACES = 4


def _workspace(spec: ModelSpec, device: str | torch.device) -> _Workspace:
    known: dict[tuple[ModelSpec, str], _Workspace] = _WORKSPACES.__dict__.setdefault("known", {})
    key = (spec, str(device))
    if key not in known:
        if len(known) >= _MOST_WORKSPACES:
            known.clear()
        known[key] = _Workspace(spec, torch.device(device))
    return known[key]


SampleLoss = Callable[[Tensor, Tensor], Tensor]
"""Loss of a batch of one: output (1 x O) and target (1) to a scalar."""


def per_sample_gradients(
    module: nn.Module, loss: SampleLoss, x_B: Tensor, y_B: Tensor, views: Sequence[Tensor] | None = None
) -> Tensor:
    """Return the gradient of every sample's own loss, B x P, parameters in `module.parameters()` order.

    `views` are used as the parameters, in that order, instead of the module's own.
    """
    if any(True for _ in module.buffers()):
        raise ValueError("DP-SGD cannot use modules with running statistics (use group or layer normalisation)")
    named = dict(module.named_parameters())
    given = named.values() if views is None else views
    parameters = {name: parameter.detach() for name, parameter in zip(named, given, strict=True)}

    def sample_loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(module, values, (x.unsqueeze(0),))
        return loss(output, y.unsqueeze(0))

    gradients = torch.func.vmap(torch.func.grad(sample_loss), in_dims=(None, 0, 0))(parameters, x_B, y_B)
    return torch.cat([gradients[name].reshape(len(x_B), -1) for name in parameters], dim=1)


_SLICE_ROWS = 64


def clipped_gradient_sum(model: ModelFunction, x_BF: Array | Tensor, upstream_BO: Array, clip_norm: float) -> Array:
    """Return the sum (P) of each row's gradient of ``<output, upstream>``, clipped to L2 norm `clip_norm`.

    One row moves it by at most twice `clip_norm`. Rows go through in slices, to bound memory.
    """
    module = skeleton(model.spec)
    x = to_device(x_BF, model.device, model.spec.dtype)
    upstream = to_device(upstream_BO, model.device, model.spec.dtype)
    total_P = torch.zeros(model.num_parameters, dtype=model.spec.dtype, device=model.device)
    for first in range(0, len(x), _SLICE_ROWS):
        rows = slice(first, first + _SLICE_ROWS)
        gradient_BP = per_sample_gradients(module, _inner_product, x[rows], upstream[rows], model.views)
        total_P += _clip(gradient_BP, clip_norm).sum(dim=0)
    return on_host(total_P)


def _clip(gradient_BP: Tensor, clip_norm: float) -> Tensor:
    """Scale each row down to `clip_norm`; a gradient that is no finite number counts as zero."""
    norm_B1 = gradient_BP.norm(dim=1, keepdim=True)
    finite_BP = torch.where(norm_B1.isfinite(), gradient_BP, torch.zeros_like(gradient_BP))
    clipped: Tensor = finite_BP * (clip_norm / norm_B1.nan_to_num(torch.inf).clamp(min=clip_norm))
    return clipped


def _inner_product(output: Tensor, upstream: Tensor) -> Tensor:
    return (output * upstream).sum()


# --- DP-SGD on a client's own rows ---

RELEASE = "noised gradients"
"""What the sums are called in an audit."""
_PRIVATE_ROWS = 256
"""Rows whose gradients are held at once."""


@functools.lru_cache(maxsize=8)
def check_private(spec: ModelSpec) -> None:
    """Check that each row of a model has a gradient of its own.

    Raises:
        BadInput: it has batch normalisation or other layers that mix rows, or that Opacus does not know.
    """
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    module = train_mode(build_skeleton(spec, device="cpu"))
    problems = [*ModuleValidator.validate(module, strict=False)]
    problems = problems or list(GradSampleModule.validate(module, strict=False))
    if problems:
        raise BadInput(
            f"record_clip_norm: not allowed with {spec.name}: {first_line(problems[0])}; use group normalisation "
            "(normalisation=group, torch.nn.GroupNorm), and layers that treat each row by itself"
        )


def train_privately(
    spec: ModelSpec,
    vector_P: Array,
    x_N: Array | Tensor,
    y_N: Array | Tensor,
    *,
    secret: tuple[int, ...],
    privacy: RecordPrivacy,
    training: LocalTraining,
    correction_P: Array | None = None,
    weights_N: Array | None = None,
    device: str | torch.device = "cpu",
) -> Array:
    """Return the parameters (P) after DP-SGD from `vector_P`.

    Args:
        spec: the model.
        vector_P: where to start.
        x_N: samples.
        y_N: targets.
        secret: seeds of batches, of what the model draws and of the noise, that nobody else knows.
        privacy: clipping, noise and batches.
        training: the rule of a step, the task and FedProx's pull.
        correction_P: added to each gradient (SCAFFOLD's c - c_i).
        weights_N: how much each row counts in its loss, before clipping.
        device: where to compute.

    Raises:
        BadInput: no samples, or a model whose rows have no gradients of their own.
    """
    if not len(x_N):
        raise BadInput("local training: the client has no samples")
    check_private(spec)
    rng = np.random.default_rng(secret)
    with fork_draws(int(rng.integers(0, 2**62)), torch.device(device)), warnings.catch_warnings():
        # Opacus hooks layers whose inputs are rows, which need no gradient
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        return _trained(spec, vector_P, x_N, y_N, rng, privacy, training, correction_P, weights_N, torch.device(device))


def _trained(
    spec: ModelSpec,
    vector_P: Array,
    x_N: Array | Tensor,
    y_N: Array | Tensor,
    rng: np.random.Generator,
    privacy: RecordPrivacy,
    training: LocalTraining,
    correction_P: Array | None,
    weights_N: Array | None,
    device: torch.device,
) -> Array:
    from opacus import GradSampleModule

    module = build_skeleton(spec, device="cpu").to(device)
    load_vector(module, vector_P)
    train_mode(module)
    slices = trained_slices(module)
    samples, targets = Samples(x_N, device, spec.dtype), to_device(y_N, device)
    weights = None if weights_N is None else to_device(weights_N, device, spec.dtype)
    hooked = GradSampleModule(module, loss_reduction="sum")

    def clipped_sum(index_B: NDArray[np.int64]) -> NDArray[np.float64]:
        total = np.zeros(sum(parameter.numel() for parameter, _ in slices))
        for first in range(0, len(index_B), _PRIVATE_ROWS):
            rows = torch.from_numpy(index_B[first : first + _PRIVATE_ROWS]).to(device)
            hooked.zero_grad()
            output, held = hooked(samples[rows]), None if weights is None else weights[rows]
            if training.task == "tokens":  # a row's loss, over its own tokens, follows from no other row
                losses = task_loss("tokens", output, targets[rows], reduction="none").sum()
            else:
                losses = weighted_loss(training.task, output, targets[rows], held) * len(rows)
            losses.backward()  # type: ignore[no-untyped-call]
            gradient_BP = torch.cat([_of_rows(parameter, len(rows)) for parameter, _ in slices], dim=1)
            total += _clip(gradient_BP.detach().double(), privacy.clip_norm).sum(dim=0).cpu().numpy()
        return total

    rate, moments, rule = privacy.sample_rate(len(samples)), OptimizerState(), training.optimizer
    values = torch.cat([parameter.detach().reshape(-1) for parameter, _ in slices])
    start = values.clone()
    for _ in range(privacy.num_steps(len(samples))):
        index_B = np.flatnonzero(rng.random(len(samples)) < rate)
        sigma = privacy.noise_multiplier * privacy.clip_norm
        noised = add_gaussian(clipped_sum(index_B), sigma, rng, RELEASE, sample_rate=rate)
        gradient = torch.from_numpy(noised / privacy.batch_size).to(values)
        if training.proximal:
            gradient = gradient + training.proximal * (values - start)
        if correction_P is not None:
            whole = to_device(correction_P, device, values.dtype)
            gradient = gradient + torch.cat([whole[part] for _, part in slices])
        values = optimizer_step(rule, values, gradient, moments)
        parts = torch.split(values, [parameter.numel() for parameter, _ in slices])
        with torch.no_grad():
            for (parameter, _), part in zip(slices, parts, strict=True):
                parameter.copy_(part.view_as(parameter))
    made = to_vector(module)
    hooked.remove_hooks()
    return made


def _of_rows(parameter: torch.nn.Parameter, num_rows: int) -> Tensor:
    """Return each row's gradient of a parameter, flat; zeros where the output does not depend on it."""
    found = getattr(parameter, "grad_sample", None)
    if isinstance(found, list):  # one for each use of the layer
        found = torch.stack(found).sum(dim=0)
    made: Tensor = parameter.new_zeros(num_rows, parameter.numel()) if found is None else found
    return made.reshape(num_rows, -1)

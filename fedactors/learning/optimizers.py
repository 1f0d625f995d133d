"""SGD with momentum, Adam and AdamW: one description, one step, for torch and for numpy, without importing torch.

With it come gradient clipping (``clip_norm``) and schedules of the step size (`Schedule`): one vocabulary for all.

    spec, moments = OptimizerSpec(name="adam", learning_rate=0.01), OptimizerState()
    vector_P = optimizer_step(spec, vector_P, gradient_P, moments)                      # a flat vector, torch or numpy
    tensors = optimizer_step(spec, tensors, gradients, moments)                         # a model's tensors
    optimizer_step(spec, list(module.parameters()), gradients, moments, in_place=True)  # a module

A step returns new values and leaves the old ones alone, so that a graph which still refers to them stays valid: that
is what several batches in flight need. ``in_place`` changes them instead. The rules are those of torch.optim
(momentum without dampening; weight decay added to the gradient, but by AdamW taken from the value).

A list of tensors goes through torch's operations on lists, which spares a small network most of its calls; for Adam a
vector and a list agree to rounding, for SGD to the bit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedactors.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
NAMES = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "step")
_NORM_EPSILON = 1e-6
V = TypeVar("V", "Tensor", Array, "Sequence[Tensor]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Which optimiser, with its constants."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """``sgd``, ``adam`` (Kingma and Ba, 2015) or ``adamw`` (Loshchilov and Hutter, 2019)."""
    learning_rate: float = 0.001
    """Step size."""
    momentum: float = 0.0
    """Momentum of ``sgd``."""
    weight_decay: float = 0.0
    """L2 penalty added to the gradient; of ``adamw`` the share of a value that a step of size 1 takes away."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    epsilon: float = 1e-8
    """Adam's term against division by zero."""
    clip_norm: float | None = None
    """A gradient longer than this (Euclidean norm over all values together) is scaled down to it; None: none is."""

    def __post_init__(self) -> None:
        """Check name and ranges."""
        if self.name not in NAMES:
            raise BadInput(f"optimizer: {self.name!r} is not allowed ({', '.join(NAMES)})")
        if not self.learning_rate > 0:
            raise BadInput(f"learning_rate: {self.learning_rate!r} is not allowed: it must be greater than 0")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise BadInput(f"clip_norm: {self.clip_norm!r} is not allowed: it must be greater than 0")
        if not 0 <= self.momentum < 1 or not all(0 <= beta < 1 for beta in self.betas):
            raise BadInput(f"momentum and betas must be in [0, 1), got {self.momentum} and {self.betas}")
        if self.momentum and self.name != "sgd":
            raise BadInput(f"momentum: {self.momentum} is not allowed: only with optimizer sgd")

    def scaled(self, factor: float) -> OptimizerSpec:
        """Return the same optimiser with `factor` times the step size."""
        return self if factor == 1.0 else dataclasses.replace(self, learning_rate=self.learning_rate * factor)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the step size changes over a run, by rounds, epochs or steps, whatever a protocol counts."""

    name: Literal["constant", "cosine", "step"] = "constant"
    """``constant``; ``cosine`` from 1 to 0 (Loshchilov and Hutter, 2017, without restarts); ``step`` by `factor`."""
    every: int = 10
    """``step``: rounds between two falls."""
    factor: float = 0.1
    """``step``: what the step size is multiplied with."""

    def __post_init__(self) -> None:
        """Check name and ranges."""
        if self.name not in SCHEDULES:
            raise BadInput(f"schedule: {self.name!r} is not allowed ({', '.join(SCHEDULES)})")
        if self.every < 1:
            raise BadInput(f"decay_every: {self.every!r} is not allowed: it must be 1 or more")
        if not 0 < self.factor <= 1:
            raise BadInput(f"decay_factor: {self.factor!r} is not allowed: it must be above 0 and at most 1")

    def at(self, round: int, num_rounds: int) -> float:
        """Return the factor of the step size in `round`, counted from 0, of a run of so many; above 0 in each."""
        if self.name == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * round / num_rounds))
        return float(self.factor ** (round // self.every)) if self.name == "step" else 1.0


@dataclasses.dataclass
class OptimizerState:
    """Steps done and the moments, each as the values are (a vector, or a list), None before they are needed."""

    step: int = 0
    first: Any = None
    second: Any = None

    def copy(self) -> OptimizerState:
        """Return a state whose steps leave this one alone, for a pure function."""
        return OptimizerState(self.step, _copied(self.first), _copied(self.second))

    def state_dict(self) -> dict[str, Any]:
        """Return steps and moments for a snapshot."""
        return {"step": self.step, "first": _copied(self.first), "second": _copied(self.second)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.step, self.first, self.second = state["step"], _copied(state["first"]), _copied(state["second"])


def optimizer_step(spec: OptimizerSpec, values: V, gradients: V, state: OptimizerState, *, in_place: bool = False) -> V:
    """Return the values after one step; `state` is advanced in place.

    Args:
        spec: the optimiser.
        values: a tensor, an array, or a list of tensors; parameters of a module may require gradients.
        gradients: of the same shapes; they stay as they are.
        state: of these values; fresh before the first step.
        in_place: change `values` and return them.
    """
    state.step += 1
    if spec.clip_norm is not None:
        gradients = clipped(gradients, spec.clip_norm)
    if isinstance(values, np.ndarray):
        moved = _step_array(spec, values, gradients, state)
        if in_place:
            values[...] = moved
            return values
        return moved
    if isinstance(values, Sequence):
        made = _step_list(spec, [value.detach() for value in values], list(gradients), state)
        if in_place:
            for value, new in zip(values, made, strict=True):
                value.detach().copy_(new)
            return values
        return made
    return _step_vector(spec, values, gradients, state, in_place)


def clipped(gradients: V, norm: float) -> V:
    """Return gradients of at most this Euclidean norm over all of them, by the rule of torch's `clip_grad_norm_`."""
    if isinstance(gradients, np.ndarray):
        return gradients * min(1.0, norm / (float(np.linalg.norm(gradients)) + _NORM_EPSILON))
    if isinstance(gradients, Sequence):
        import torch

        lengths = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
        factor = (norm / (torch.linalg.vector_norm(lengths) + _NORM_EPSILON)).clamp(max=1.0)
        return [gradient * factor for gradient in gradients]
    shorter: V = gradients * (norm / (gradients.norm() + _NORM_EPSILON)).clamp(max=1.0)
    return shorter


def _step_vector(spec: OptimizerSpec, value: Tensor, gradient: Tensor, state: OptimizerState, in_place: bool) -> Tensor:
    kept = value
    value, gradient = value.detach(), gradient.detach()
    if spec.weight_decay and spec.name != "adamw":
        gradient = gradient.add(value, alpha=spec.weight_decay)
    elif spec.weight_decay:
        shrunk = 1 - spec.learning_rate * spec.weight_decay
        value = value.mul_(shrunk) if in_place else value.mul(shrunk)
    if spec.name == "sgd":
        if spec.momentum:
            if state.first is None:
                state.first = gradient.clone()
            else:
                state.first.mul_(spec.momentum).add_(gradient)
            gradient = state.first
        if not in_place:
            return value.sub(gradient, alpha=spec.learning_rate)
        value.sub_(gradient, alpha=spec.learning_rate)
        return kept
    if state.first is None:
        state.first, state.second = value.new_zeros(value.shape), value.new_zeros(value.shape)
    beta1, beta2 = spec.betas
    state.first.lerp_(gradient, 1 - beta1)
    state.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (state.second / (1 - beta2**state.step)).sqrt_().add_(spec.epsilon)
    size = -spec.learning_rate / (1 - beta1**state.step)
    if not in_place:
        return value.addcdiv(state.first, root, value=size)
    value.addcdiv_(state.first, root, value=size)
    return kept


def _step_list(
    spec: OptimizerSpec, values: list[Tensor], gradients: list[Tensor], state: OptimizerState
) -> list[Tensor]:
    import torch

    if spec.weight_decay and spec.name != "adamw":
        gradients = list(torch._foreach_add(gradients, values, alpha=spec.weight_decay))
    elif spec.weight_decay:
        values = list(torch._foreach_mul(values, 1 - spec.learning_rate * spec.weight_decay))
    if spec.name == "sgd":
        if spec.momentum:
            if state.first is None:
                state.first = [gradient.clone() for gradient in gradients]
            else:
                state.first = list(torch._foreach_add(torch._foreach_mul(state.first, spec.momentum), gradients))
            gradients = state.first
        return list(torch._foreach_add(values, gradients, alpha=-spec.learning_rate))
    if state.first is None:
        state.first = [value.new_zeros(value.shape) for value in values]
        state.second = [value.new_zeros(value.shape) for value in values]
    beta1, beta2 = spec.betas
    state.first = list(torch._foreach_lerp(state.first, gradients, 1 - beta1))
    squares = torch._foreach_mul(gradients, gradients)
    state.second = list(torch._foreach_lerp(state.second, squares, 1 - beta2))
    roots = torch._foreach_div(torch._foreach_sqrt(state.second), (1 - beta2**state.step) ** 0.5)
    moves = torch._foreach_div(state.first, torch._foreach_add(roots, spec.epsilon))
    return list(torch._foreach_add(values, moves, alpha=-spec.learning_rate / (1 - beta1**state.step)))


def _step_array(spec: OptimizerSpec, value: Array, gradient: Array, state: OptimizerState) -> Array:
    if spec.weight_decay and spec.name != "adamw":
        gradient = gradient + spec.weight_decay * value
    elif spec.weight_decay:
        value = value * (1 - spec.learning_rate * spec.weight_decay)
    if spec.name == "sgd":
        if spec.momentum:
            state.first = gradient.copy() if state.first is None else spec.momentum * state.first + gradient
            gradient = state.first
        moved: Array = value - spec.learning_rate * gradient
        return moved
    if state.first is None:
        state.first, state.second = np.zeros_like(value), np.zeros_like(value)
    beta1, beta2 = spec.betas
    state.first = state.first + (1 - beta1) * (gradient - state.first)
    state.second = beta2 * state.second + (1 - beta2) * gradient * gradient
    root = np.sqrt(state.second / (1 - beta2**state.step)) + spec.epsilon
    moved = value - spec.learning_rate / (1 - beta1**state.step) * state.first / root
    return moved


def _copied(moments: Any) -> Any:
    """Return a copy of moments: arrays and tensors, or a list of them."""
    if moments is None:
        return None
    if isinstance(moments, np.ndarray):
        return moments.copy()
    return [one.clone() for one in moments] if isinstance(moments, Sequence) else moments.clone()

"""SGD with momentum, Adam and AdamW: one description, one step, for torch and for numpy, without importing torch.

    network = Network(spec, optimizer, seed)                                            # what an actor trains
    network.apply(gradient_P)                                                           # network.model is another now

    spec, moments = OptimizerSpec(name="adam", learning_rate=0.01), OptimizerState()
    vector_P = optimizer_step(spec, vector_P, gradient_P, moments)                      # a flat vector, torch or numpy
    tensors = optimizer_step(spec, tensors, gradients, moments)                         # a model's tensors
    optimizer_step(spec, list(module.parameters()), gradients, moments, in_place=True)  # a module

A step returns new values and leaves the old ones alone, so that a graph which still refers to them stays valid: that
is what several batches in flight need. ``in_place`` changes them instead. The rules are those of torch.optim
(momentum without dampening; weight decay added to the gradient, but by AdamW taken from the value). Tensors go through
torch's operations on lists, which spares a small network most of its calls; for Adam a vector and a list agree to
rounding, for SGD to the bit.

A protocol's config inherits `StepSettings`, or `ScheduleSettings` where its mathematics allows plain steps alone, and
states defaults of its own: optimiser, gradient clipping and schedule have the same names everywhere.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedactors.config import OnlyWith, config
from fedactors.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from fedactors.learning.models import ModelSpec
    from fedactors.learning.network import Device

Array = NDArray[Any]
NAMES = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "step")
NORM_EPSILON = 1e-6
LEAST_SUMMED_STEPS = 2
"""Steps of an adaptive optimiser, from moments of zero, at least, before its change is in a sum."""
SIGNS_SHOW = (
    "steps of adam and adamw are nearly plus or minus the learning rate where batches agree: from a sum, with all "
    "weights known, it follows which way each site's numbers went, and so how often it has a class; optimizer=sgd or "
    "noise prevents it"
)
"""What sums under masks do not hide of adaptive optimisers."""
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
    """Clip gradients to this global L2 norm; None disables clipping."""

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

    @property
    def unclipped(self) -> OptimizerSpec:
        """The same optimiser, for gradients that are clipped already."""
        return dataclasses.replace(self, clip_norm=None)

    def scaled(self, factor: float) -> OptimizerSpec:
        """Return the same optimiser with `factor` times the step size."""
        return self if factor == 1.0 else dataclasses.replace(self, learning_rate=self.learning_rate * factor)


def check_summed_steps(rule: OptimizerSpec, num_steps: int, whose: str) -> None:
    """Refuse a single adaptive step before a sum, of which each change is the step size, up or down.

    The first step from moments of zero is that, whatever the gradient: a sum of such changes with known weights tells
    each one's sign. This is the worst case only: more steps blur it, and do not end it (`SIGNS_SHOW`).

    Raises:
        BadInput: there are fewer than `LEAST_SUMMED_STEPS`.
    """
    if rule.name != "sgd" and num_steps < LEAST_SUMMED_STEPS:
        raise BadInput(
            f"optimizer: {rule.name} is not allowed with secure_aggregation where {whose} takes {num_steps} steps at a "
            f"time: {LEAST_SUMMED_STEPS} at least, or a sum tells which way each number went; give a smaller "
            "batch_size, more local_epochs, or optimizer=sgd"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the step size changes over a run, by rounds, epochs or steps, whatever a protocol counts."""

    name: Literal["constant", "cosine", "step"] = "constant"
    """``constant``; ``cosine`` from 1 to 0 (Loshchilov and Hutter, 2017, without restarts); ``step`` by `factor`."""
    every: int = 10
    """``step``: rounds between two falls."""
    factor: float = 0.1
    """``step`` schedule: decay factor."""

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
    if state.first is None and (spec.momentum or spec.name != "sgd"):
        state.first, state.second = _zeros(values), None if spec.name == "sgd" else _zeros(values)
    moved: Any
    if isinstance(values, np.ndarray):
        moved = _step_array(spec, values, gradients, state)
        if in_place:
            values[...] = moved
    elif isinstance(values, Sequence):
        moved = _step_tensors(spec, list(values), list(gradients), state, in_place)
    else:
        (moved,) = _step_tensors(spec, [values], [gradients], state, in_place)
    return values if in_place else moved


def clipped(gradients: V, norm: float) -> V:
    """Return gradients of at most this Euclidean norm over all of them, by the rule of torch's `clip_grad_norm_`."""
    if isinstance(gradients, np.ndarray):
        return gradients * min(1.0, norm / (float(np.linalg.norm(gradients)) + NORM_EPSILON))
    if isinstance(gradients, Sequence):
        factor = clip_factor(gradients, norm)
        return [gradient * factor for gradient in gradients]
    shorter: V = gradients * (norm / (gradients.norm() + NORM_EPSILON)).clamp(max=1.0)
    return shorter


def clip_factor(gradients: Sequence[Tensor], norm: float) -> Tensor:
    """Return what shortens gradients to this Euclidean norm over all of them; 1 where they are no longer."""
    import torch

    lengths = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
    factor: Tensor = (norm / (torch.linalg.vector_norm(lengths) + NORM_EPSILON)).clamp(max=1.0)
    return factor


def _step_tensors(
    spec: OptimizerSpec, values: list[Tensor], gradients: list[Tensor], state: OptimizerState, in_place: bool
) -> list[Tensor]:
    import torch

    values = [value.detach() for value in values]
    if spec.weight_decay and spec.name != "adamw":
        gradients = list(torch._foreach_add(gradients, values, alpha=spec.weight_decay))
    elif spec.weight_decay:
        shrunk = torch._foreach_mul(values, 1 - spec.learning_rate * spec.weight_decay)
        if in_place:
            torch._foreach_copy_(values, shrunk)
        else:
            values = list(shrunk)
    if spec.name in ("adam", "adamw"):
        return _adam(spec, values, gradients, state, in_place)
    assert spec.name == "sgd", f"{spec.name} has no step here"
    if spec.momentum:
        first = list(state.first) if isinstance(state.first, Sequence) else [state.first]
        torch._foreach_mul_(first, spec.momentum)
        torch._foreach_add_(first, gradients)
        gradients = first
    return _added(values, gradients, -spec.learning_rate, in_place)


def _adam(
    spec: OptimizerSpec, values: list[Tensor], gradients: list[Tensor], state: OptimizerState, in_place: bool
) -> list[Tensor]:
    """Step by Adam: a vector in the roundings of `torch.addcmul` and `torch.addcdiv`, a list in those of `torch.lerp`.

    Either is what recorded results were made with; `torch.optim` has a third, and is no quicker.
    """
    import torch

    (beta1, beta2), left = spec.betas, 1 - spec.betas[1] ** state.step
    first: Any = state.first
    second: Any = state.second
    size = -spec.learning_rate / (1 - beta1**state.step)
    if isinstance(first, Sequence):
        torch._foreach_lerp_(list(first), gradients, 1 - beta1)
        torch._foreach_lerp_(second, torch._foreach_mul(gradients, gradients), 1 - beta2)
        roots = torch._foreach_div(torch._foreach_sqrt(second), left**0.5)
        moves = torch._foreach_div(list(first), torch._foreach_add(roots, spec.epsilon))
        return _added(values, list(moves), size, in_place)
    (value,), (gradient,) = values, gradients
    first.lerp_(gradient, 1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (second / left).sqrt_().add_(spec.epsilon)
    return [value.addcdiv_(first, root, value=size) if in_place else value.addcdiv(first, root, value=size)]


def _added(values: list[Tensor], moves: list[Tensor], size: float, in_place: bool) -> list[Tensor]:
    import torch

    if not in_place:
        return list(torch._foreach_add(values, moves, alpha=size))
    torch._foreach_add_(values, moves, alpha=size)
    return values


def _step_array(spec: OptimizerSpec, value: Array, gradient: Array, state: OptimizerState) -> Array:
    """Step in numpy, for processes without torch."""
    if spec.weight_decay and spec.name != "adamw":
        gradient = gradient + spec.weight_decay * value
    elif spec.weight_decay:
        value = value * (1 - spec.learning_rate * spec.weight_decay)
    if spec.name == "sgd":
        if spec.momentum:
            gradient = state.first = spec.momentum * state.first + gradient
        moved: Array = value - spec.learning_rate * gradient
        return moved
    assert spec.name in ("adam", "adamw"), f"{spec.name} has no step here"
    beta1, beta2 = spec.betas
    state.first = state.first + (1 - beta1) * (gradient - state.first)
    state.second = beta2 * state.second + (1 - beta2) * gradient * gradient
    root = np.sqrt(state.second / (1 - beta2**state.step)) + spec.epsilon
    moved = value - spec.learning_rate / (1 - beta1**state.step) * state.first / root
    return moved


def _zeros(values: Any) -> Any:
    """Return zeros in the form of values: an array, a tensor, or a list of tensors."""
    if isinstance(values, np.ndarray):
        return np.zeros_like(values)
    made = [value.new_zeros(value.shape) for value in (values if isinstance(values, Sequence) else [values])]
    return made if isinstance(values, Sequence) else made[0]


def _copied(moments: Any) -> Any:
    """Return a copy of moments: arrays and tensors, or a list of them."""
    if moments is None:
        return None
    if isinstance(moments, np.ndarray):
        return moments.copy()
    return [one.clone() for one in moments] if isinstance(moments, Sequence) else moments.clone()


class Network:
    """The parameters that an actor trains: a `Model`, its optimiser's moments and the number of steps taken so far.

    Args:
        spec: what the network is.
        optimizer: how it follows its gradients.
        seed: of its first parameters.
        device: where parameters and moments are.
    """

    def __init__(self, spec: ModelSpec, optimizer: OptimizerSpec, seed: int, device: Device = "cpu") -> None:
        # half a second, which torch would else take at the first gradient, on the run's clock
        import torch.fx.experimental.symbolic_shapes  # noqa: F401

        from fedactors.learning.network import Model, initial_vector

        self.spec = spec
        self.optimizer = optimizer
        self.model = Model(spec, initial_vector(spec, seed), device)
        """The network at the present parameters."""
        self.version = 0
        self.rate = 1.0
        """Factor of the step size, set by the caller's schedule."""
        self.decay = 0.0
        """Share that a step of size 1 takes away from the weights of an MLP beside a linear skip."""
        self._moments = OptimizerState()
        self._kept: tuple[float, Tensor] | None = None

    @property
    def vector(self) -> Array:
        """A copy of the flat parameters (P)."""
        return self.model.vector

    def load(self, vector_P: Array) -> None:
        """Replace the parameters (after an average, say); moments stay, graphs of earlier ones stay valid."""
        self.model = self.model.at(vector_P)

    def apply(self, gradient_P: Array | Tensor) -> None:
        """Take one optimiser step with a flat gradient."""
        rule, model = self.optimizer.scaled(self.rate), self.model
        values = model.tensor if not self.decay else self._decayed(model.tensor, rule.learning_rate * self.decay)
        self.model = model.at(optimizer_step(rule, values, model.to_device(gradient_P), self._moments))
        self.version += 1

    def _decayed(self, vector_P: Tensor, share: float) -> Tensor:
        """Return the parameters with that share of the non-linear weights taken away."""
        import torch

        from fedactors.learning.models import nonlinear_weights

        if self._kept is None or self._kept[0] != share:
            marks = nonlinear_weights(self.spec).to(vector_P.device)
            self._kept = share, torch.where(marks, max(0.0, 1.0 - share), 1.0).to(vector_P.dtype)
        return vector_P.detach() * self._kept[1]

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, moments and version for a snapshot."""
        return {"vector": self.vector, "moments": self._moments.state_dict(), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        from fedactors.learning.network import on_device

        self.load(state["vector"])
        self._moments.load_state_dict(on_device(state["moments"], self.model.device))
        self.version = state["version"]


@config
class ScheduleSettings:
    """How the step size changes over a run."""

    only_with: ClassVar[OnlyWith] = {"decay_every": {"schedule": ("step",)}, "decay_factor": {"schedule": ("step",)}}

    schedule: Literal["constant", "cosine", "step"] = "constant"
    """Learning-rate schedule over rounds (or epochs): constant, half a cosine to 0, or steps."""
    decay_every: int = Field(default=10, ge=1)
    """``step`` schedule: rounds (or epochs) between decays."""
    decay_factor: float = Field(default=0.1, gt=0, le=1)
    """``step`` schedule: decay factor."""

    @property
    def rate_schedule(self) -> Schedule:
        """The schedule."""
        return Schedule(name=self.schedule, every=self.decay_every, factor=self.decay_factor)


@config
class StepSettings(ScheduleSettings):
    """A rule of steps and how its size changes."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Rule of a step."""
    learning_rate: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Size of a step."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of ``sgd``."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """L2 penalty added to the gradient; of ``adamw`` the share of a value that a step of size 1 takes away."""
    max_gradient_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Clip gradients to this global L2 norm; `none` disables clipping."""

    @model_validator(mode="after")
    def _check_step_rule(self) -> StepSettings:
        _ = self.step_rule, self.rate_schedule
        return self

    @property
    def step_size(self) -> float:
        """The size of a step, before the schedule."""
        return self.learning_rate

    @property
    def step_rule(self) -> OptimizerSpec:
        """The rule of a step, before the schedule."""
        return OptimizerSpec(
            name=self.optimizer,
            learning_rate=self.step_size,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip_norm=self.max_gradient_norm,
        )

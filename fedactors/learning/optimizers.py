"""SGD and Adam on one flat vector, out of place: a step returns a new vector and leaves the old one alone.

A graph that still refers to the old vector therefore stays valid, which is what several batches in flight need.
The rules are those of torch.optim (momentum without dampening, weight decay added to the gradient).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedactors.errors import BadInput
from fedactors.learning.parameters import Array, as_tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Which optimiser, with its constants."""

    name: Literal["sgd", "adam"] = "sgd"
    """``sgd`` or ``adam``."""
    learning_rate: float = 0.001
    """Step size."""
    momentum: float = 0.0
    """Momentum of ``sgd``."""
    weight_decay: float = 0.0
    """L2 penalty added to the gradient."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two moments."""
    epsilon: float = 1e-8
    """Adam's term against division by zero."""

    def __post_init__(self) -> None:
        """Check name and ranges."""
        if self.name not in ("sgd", "adam"):
            raise BadInput(f"optimizer: {self.name!r} is not allowed (sgd, adam)")
        if not self.learning_rate > 0:
            raise BadInput(f"learning_rate: {self.learning_rate!r} is not allowed: it must be greater than 0")
        if not 0 <= self.momentum < 1 or not all(0 <= beta < 1 for beta in self.betas):
            raise BadInput(f"momentum and betas must be in [0, 1), got {self.momentum} and {self.betas}")


@dataclasses.dataclass
class OptimizerState:
    """Steps done and the moments (each a flat vector, or None before they are needed)."""

    step: int = 0
    first: Tensor | None = None
    second: Tensor | None = None

    def to_arrays(self) -> dict[str, int | Array | None]:
        """Return the state as plain values for a snapshot."""
        return {
            "step": self.step,
            "first": None if self.first is None else self.first.numpy().copy(),
            "second": None if self.second is None else self.second.numpy().copy(),
        }

    @staticmethod
    def from_arrays(values: dict[str, int | Array | None]) -> OptimizerState:
        """Rebuild a state from `to_arrays`."""
        step, first, second = values["step"], values["first"], values["second"]
        return OptimizerState(
            step=int(step) if isinstance(step, int) else 0,
            first=as_tensor(first) if isinstance(first, np.ndarray) else None,
            second=as_tensor(second) if isinstance(second, np.ndarray) else None,
        )


def optimizer_step(spec: OptimizerSpec, vector_P: Tensor, gradient_P: Tensor, state: OptimizerState) -> Tensor:
    """Return the vector after one step; `state` is advanced in place, `vector_P` and `gradient_P` stay as they are."""
    with torch.no_grad():
        state.step += 1
        if spec.weight_decay:
            gradient_P = gradient_P.add(vector_P, alpha=spec.weight_decay)
        if spec.name == "sgd":
            if spec.momentum:
                if state.first is None:
                    state.first = gradient_P.clone()
                else:
                    state.first.mul_(spec.momentum).add_(gradient_P)
                gradient_P = state.first
            return vector_P.sub(gradient_P, alpha=spec.learning_rate)
        if state.first is None or state.second is None:
            state.first, state.second = torch.zeros_like(vector_P), torch.zeros_like(vector_P)
        beta1, beta2 = spec.betas
        state.first.lerp_(gradient_P, 1 - beta1)
        state.second.mul_(beta2).addcmul_(gradient_P, gradient_P, value=1 - beta2)
        root = (state.second / (1 - beta2**state.step)).sqrt_().add_(spec.epsilon)
        return vector_P.addcdiv(state.first, root, value=-spec.learning_rate / (1 - beta1**state.step))

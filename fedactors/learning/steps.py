"""Settings of gradient steps: the same names in every protocol that has them.

A protocol's config inherits `StepSettings`, or `ScheduleSettings` where its mathematics allows plain steps alone, and
states defaults of its own. Importing this loads no torch.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from fedactors.config import OnlyWith, config
from fedactors.learning.optimizers import OptimizerSpec, Schedule


@config
class ScheduleSettings:
    """How the step size changes over a run."""

    only_with: ClassVar[OnlyWith] = {"decay_every": {"schedule": ("step",)}, "decay_factor": {"schedule": ("step",)}}

    schedule: Literal["constant", "cosine", "step"] = "constant"
    """How the step size changes over the rounds (or epochs): not at all, along half a cosine to 0, or in steps."""
    decay_every: int = Field(default=10, ge=1)
    """``step``: rounds (or epochs) between two falls."""
    decay_factor: float = Field(default=0.1, gt=0, le=1)
    """``step``: what the step size is multiplied with."""

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
    """A gradient that is longer (Euclidean norm over all parameters of a model) is scaled down to it; none: none is."""

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

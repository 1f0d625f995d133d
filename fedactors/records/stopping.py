"""When to keep a model and when to stop: state machines fed with one metric value a round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Mode = Literal["max", "min"]


def improves(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Tell whether `value` beats `best` by more than `min_delta`; not-a-number never does, the first number always."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value > best + min_delta if mode == "max" else value < best - min_delta


@dataclass
class BestKeeper:
    """Remembers the best value of a metric and the round that gave it; the earlier of two equal ones."""

    mode: Mode = "max"
    min_delta: float = 0.0
    best: float | None = None
    best_round: int | None = None

    def update(self, round_index: int, value: float) -> bool:
        """Take the value of one round; True means that it is the best so far and should be kept."""
        if not improves(value, self.best, self.mode, self.min_delta):
            return False
        self.best, self.best_round = float(value), round_index
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"best": self.best, "best_round": self.best_round}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.best, self.best_round = state["best"], state["best_round"]


@dataclass
class EarlyStopping:
    """Asks to stop after ``patience`` rounds in a row without an improvement above ``min_delta``."""

    patience: int
    mode: Mode = "max"
    min_delta: float = 0.0
    best: float | None = None
    num_bad: int = 0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience: {self.patience} is not allowed: at least 1")

    def update(self, value: float) -> bool:
        """Take the value of one round; True means stop."""
        if improves(value, self.best, self.mode, self.min_delta):
            self.best, self.num_bad = float(value), 0
        else:
            self.num_bad += 1
        return self.num_bad >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"best": self.best, "num_bad": self.num_bad}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        self.best, self.num_bad = state["best"], state["num_bad"]

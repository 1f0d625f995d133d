"""What an asynchronous server hears of a container, and the discounts for staleness."""

from __future__ import annotations

import dataclasses
from typing import Literal

from protocols.nebulafl.algorithm import Floats

Discount = Literal["constant", "polynomial", "hinge"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrival:
    """A trained model, with the model and version it was trained from."""

    container: int
    """Who."""
    start: Floats
    """The model handed out at dispatch."""
    parameters: Floats
    """The model that came back."""
    version: int
    """Version of the server's model at dispatch."""
    num_samples: int
    """Samples behind it."""
    loss_rms: float
    """Root mean square of the batch losses."""
    seconds: float
    """How long it took."""


def staleness(current: int, version: int) -> int:
    """Return how many versions the server moved on since a model was handed out."""
    if version > current:
        raise ValueError(f"version {version} is from the future, the server is at {current}")
    return current - version


def polynomial(value: float, exponent: float) -> float:
    """Return (staleness + 1)^-exponent."""
    return float((value + 1.0) ** -exponent)


def discount(
    kind: Discount, value: float, exponent: float = 0.5, hinge_at: float = 4.0, hinge_slope: float = 10.0
) -> float:
    """Return s(staleness) of FedAsync: 1, (x + 1)^-a, or 1 up to b and then 1 / (a (x - b) + 1)."""
    if kind == "constant":
        return 1.0
    if kind == "polynomial":
        return polynomial(value, exponent)
    return 1.0 if value <= hinge_at else 1.0 / (hinge_slope * (value - hinge_at) + 1.0)

"""FedAsync (Xie et al., 2019): each arrival is mixed into the server's model at once, less so the staler it is.

The proximal term of the paper's local objective is left out; its weight is a free parameter there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocols.nebulafl.algorithm import Floats, blend
from protocols.nebulafl.baselines.arrivals import Arrival, Discount, discount, staleness


class FedAsync:
    """The server: an arrival in, a new model out."""

    def __init__(
        self, model_P: Floats, mixing: float = 0.6, exponent: float = 0.5, kind: Discount = "polynomial"
    ) -> None:
        self.model_P = model_P
        self.version = 0
        self.mixing, self.exponent, self.kind = mixing, exponent, kind

    def arrive(self, arrival: Arrival) -> float:
        """Set w <- (1 - a_t) w + a_t w_i with a_t = mixing * s(staleness), and return a_t."""
        share = self.mixing * discount(self.kind, staleness(self.version, arrival.version), self.exponent)
        self.model_P = blend(self.model_P, arrival.parameters, share)
        self.version += 1
        return share

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {"model_P": self.model_P, "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.model_P, self.version = state["model_P"], state["version"]

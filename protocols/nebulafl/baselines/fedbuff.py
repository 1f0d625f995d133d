"""FedBuff (Nguyen et al., 2022): arrivals gather in a buffer; when it is full their differences are averaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.baselines.arrivals import Arrival, polynomial, staleness


class FedBuff:
    """The server: arrivals in, a new model every `buffer_size` of them."""

    def __init__(self, model_P: Floats, buffer_size: int = 10, server_rate: float = 1.0, exponent: float = 0.5) -> None:
        self.model_P = model_P
        self.version = 0
        self.buffer_size, self.server_rate, self.exponent = buffer_size, server_rate, exponent
        self.sum_P = np.zeros(model_P.shape, dtype=np.float64)
        self.num_buffered = 0

    def arrive(self, arrival: Arrival) -> bool:
        """Add s(staleness) (w_i - w_start) to the buffer; when full, w <- w + rate * sum / K. Tell if w changed."""
        weight = polynomial(staleness(self.version, arrival.version), self.exponent)
        self.sum_P += weight * (arrival.parameters - arrival.start)
        self.num_buffered += 1
        if self.num_buffered < self.buffer_size:
            return False
        moved_P = self.model_P + self.server_rate * self.sum_P / self.buffer_size
        self.model_P = moved_P.astype(self.model_P.dtype)
        self.sum_P[:] = 0.0
        self.num_buffered = 0
        self.version += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "model_P": self.model_P,
            "version": self.version,
            "sum_P": np.array(self.sum_P),
            "num_buffered": self.num_buffered,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.model_P, self.version = state["model_P"], state["version"]
        self.sum_P, self.num_buffered = np.array(state["sum_P"]), state["num_buffered"]

"""FedSA (Ma et al., 2021): the server aggregates after some arrivals (or a time window); the rest of w stays.

    w <- sum over arrivals (n_i / n) w_i + (1 - sum over arrivals n_i / n) w,   n = samples of all containers

Who arrived, and who fell more than the staleness bound behind, gets the new model; everybody else goes on with
the model handed out before. The learning rate falls with the share of arrivals a container made so far. The
limits of that scaling are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from protocols.nebulafl.algorithm import Floats, weighted_mean
from protocols.nebulafl.baselines.arrivals import Arrival, staleness

RATE_LIMITS = (0.1, 2.0)
"""Least and greatest factor of the learning rate."""


class FedSA:
    """The server: arrivals in, aggregations out."""

    def __init__(
        self,
        model_P: Floats,
        total_samples: int,
        num_containers: int,
        num_arrivals: int = 5,
        staleness_bound: int = 5,
        window: float | None = None,
    ) -> None:
        self.model_P = model_P
        self.version = 0
        self.total_samples, self.num_arrivals = total_samples, num_arrivals
        self.staleness_bound, self.window = staleness_bound, window
        self.aggregated_at = 0.0
        self.participation_C = np.zeros(num_containers, dtype=np.int64)
        self.buffer: dict[int, tuple[Floats, int]] = {}

    def arrive(self, arrival: Arrival) -> None:
        """Put an arrival into the round's buffer; a container's second one replaces its first."""
        staleness(self.version, arrival.version)
        self.participation_C[arrival.container] += 1
        self.buffer[arrival.container] = (arrival.parameters, arrival.num_samples)

    def due(self, now: float) -> bool:
        """Tell whether to aggregate: enough arrivals, or, with a window, its end and at least one arrival."""
        if self.window is not None:
            return bool(self.buffer) and now >= self.aggregated_at + self.window
        return len(self.buffer) >= self.num_arrivals

    def aggregate(self, now: float) -> list[int]:
        """Make the new model and return the containers that arrived in this round, in ascending order."""
        arrived = sorted(self.buffer)
        models = [self.buffer[c][0] for c in arrived]
        weights = [self.buffer[c][1] / self.total_samples for c in arrived]
        rest = max(0.0, 1.0 - sum(weights))
        self.model_P = weighted_mean([*models, self.model_P], [*weights, rest])
        self.buffer = {}
        self.version += 1
        self.aggregated_at = now
        return arrived

    def outdated(self, running: Mapping[int, int]) -> list[int]:
        """Return the running containers (with the version each started from) that must start anew."""
        return sorted(c for c, version in running.items() if staleness(self.version, version) > self.staleness_bound)

    def rate_factor(self, container: int) -> float:
        """Return the factor of the learning rate: mean participation over this container's, within `RATE_LIMITS`."""
        mean = float(self.participation_C.mean())
        least, greatest = RATE_LIMITS
        if mean == 0:
            return 1.0
        return min(greatest, max(least, mean / max(float(self.participation_C[container]), mean / greatest)))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "model_P": self.model_P,
            "version": self.version,
            "total_samples": self.total_samples,
            "aggregated_at": self.aggregated_at,
            "participation_C": np.array(self.participation_C),
            "buffer": dict(self.buffer),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        for name, value in state.items():
            setattr(self, name, np.array(value) if name == "participation_C" else value)

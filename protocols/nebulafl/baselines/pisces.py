"""Pisces (Jiang et al., 2022): utility decides who trains, the slowest running container how often to aggregate.

    utility = n * rms loss * latency^-0.5 * (staleness + 1)^-beta
    aggregate every (greatest latency of those running) / (staleness bound) seconds

Left out: the clustering of losses that finds corrupted clients. Latency and loss of a container are those of its
last training, its staleness the mean of its last five; who never trained comes first. Differences to the model
handed out are averaged, weighted by samples.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from protocols.nebulafl.algorithm import Floats
from protocols.nebulafl.baselines.arrivals import Arrival, polynomial, staleness

HISTORY = 5
"""Trainings over which the staleness of a container is averaged."""


def utility(num_samples: int, loss_rms: float, seconds: float, stale: float, exponent: float = 0.5) -> float:
    """Return how much a training of a container is worth."""
    return num_samples * loss_rms / math.sqrt(seconds) * polynomial(stale, exponent)


class Pisces:
    """The server: arrivals in; whom to call and when to aggregate out."""

    def __init__(self, model_P: Floats, staleness_bound: int = 5, exponent: float = 0.5) -> None:
        self.model_P = model_P
        self.version = 0
        self.staleness_bound, self.exponent = staleness_bound, exponent
        self.aggregated_at = 0.0
        self.seen: dict[int, tuple[int, float, float]] = {}
        self.stale: dict[int, deque[int]] = {}
        self.sum_P = np.zeros(model_P.shape, dtype=np.float64)
        self.buffered_samples = 0

    def utility_of(self, container: int) -> float:
        """Return the utility of a container, infinite before its first training."""
        if container not in self.seen:
            return float("inf")
        history = self.stale[container]
        return utility(*self.seen[container], sum(history) / len(history), self.exponent)

    def choose(self, idle: Iterable[int], count: int) -> list[int]:
        """Return the idle containers of greatest utility, at most `count`; the lower number first at a tie."""
        return sorted(idle, key=lambda container: (-self.utility_of(container), container))[:count]

    def arrive(self, arrival: Arrival) -> None:
        """Buffer an arrival and note what it tells about its container."""
        stale = staleness(self.version, arrival.version)
        self.seen[arrival.container] = (arrival.num_samples, arrival.loss_rms, arrival.seconds)
        self.stale.setdefault(arrival.container, deque(maxlen=HISTORY)).append(stale)
        self.sum_P += float(arrival.num_samples) * (arrival.parameters - arrival.start)
        self.buffered_samples += arrival.num_samples

    def due_at(self, running_latencies: Iterable[float]) -> float:
        """Return when to aggregate next, given the expected latencies (seconds) of those running."""
        return self.aggregated_at + max(running_latencies, default=0.0) / self.staleness_bound

    def due(self, now: float, running_latencies: Iterable[float]) -> bool:
        """Tell whether to aggregate at `now`: something is buffered and the interval is over."""
        return self.buffered_samples > 0 and now >= self.due_at(running_latencies)

    def aggregate(self, now: float) -> None:
        """Set w <- w + sum n_i (w_i - w_start) / sum n_i over the buffer and count the version."""
        moved_P = self.model_P + self.sum_P / self.buffered_samples
        self.model_P = moved_P.astype(self.model_P.dtype)
        self.sum_P[:] = 0.0
        self.buffered_samples = 0
        self.version += 1
        self.aggregated_at = now

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "model_P": self.model_P,
            "version": self.version,
            "aggregated_at": self.aggregated_at,
            "seen": dict(self.seen),
            "stale": {c: list(history) for c, history in self.stale.items()},
            "sum_P": np.array(self.sum_P),
            "buffered_samples": self.buffered_samples,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        for name, value in state.items():
            setattr(self, name, value)
        self.sum_P = np.array(state["sum_P"])
        self.stale = {c: deque(history, maxlen=HISTORY) for c, history in state["stale"].items()}

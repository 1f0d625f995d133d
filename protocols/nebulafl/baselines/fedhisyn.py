"""FedHiSyn (Li et al., 2022): clusters of containers of like speed, a ring inside each, one average a round.

    fast cluster   a -> b -> c -> a -> b ...     each hands its model on when it is done and goes on with
    slow cluster   d -> e -> d                   the newest model it was handed, until the slowest container
                                                 of the round is done; then the server averages them all

A reconstruction from the description: k-means on training time, the ring from fast to slow, no hand-over that
would end after the slowest container, equal weight of containers in the average.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from protocols.nebulafl.algorithm import Floats, weighted_mean
from protocols.nebulafl.baselines.clustering import kmeans


@dataclasses.dataclass(frozen=True)
class Start:
    """Let a container train from a model."""

    container: int
    """Who."""
    parameters: Floats
    """From what."""


def rings(seconds: Mapping[int, float], num_clusters: int) -> list[list[int]]:
    """Return the rings of a round: clusters by training time, each ordered from fast to slow."""
    containers = sorted(seconds)
    points_N1 = np.array([[seconds[c]] for c in containers])
    clusters = [[containers[place] for place in cluster] for cluster in kmeans(points_N1, num_clusters)]
    return [sorted(cluster, key=lambda c: (seconds[c], c)) for cluster in clusters]


class RingRound:
    """One round: containers done in, starts out, complete when everyone rests."""

    def __init__(self, seconds: Mapping[int, float], num_clusters: int, global_P: Floats, now: float) -> None:
        self.seconds = dict(seconds)
        self.successor: dict[int, int] = {}
        for ring in rings(seconds, num_clusters):
            self.successor |= dict(zip(ring, ring[1:] + ring[:1], strict=True))
        self.ends_at = now + max(seconds.values())
        self.training = set(seconds)
        self.latest: dict[int, Floats] = {}
        self.handed: dict[int, Floats] = {}
        self.global_P = global_P

    def starts(self) -> list[Start]:
        """Return the first starts of the round, all from the server's model."""
        return [Start(container, self.global_P) for container in sorted(self.successor)]

    @property
    def complete(self) -> bool:
        """Whether everyone rests."""
        return not self.training

    def finished(self, container: int, parameters_P: Floats, now: float) -> Start | None:
        """Hand a model on; its maker goes on with what it was handed, if that would end within the round."""
        if container not in self.training:
            raise ValueError(f"container {container} is not training")
        self.training.remove(container)
        self.latest[container] = parameters_P
        self.handed[self.successor[container]] = parameters_P
        if now + self.seconds[container] > self.ends_at:
            return None
        self.training.add(container)
        return Start(container, self.handed.pop(container, parameters_P))

    def lose(self, container: int) -> None:
        """Take a lost container out of its ring; its last model still counts."""
        self.training.discard(container)
        follower = self.successor.pop(container)
        for before, after in self.successor.items():
            if after == container:
                self.successor[before] = follower

    def result(self) -> Floats | None:
        """Return the mean of every container's last model, or None if all were lost before their first."""
        if not self.complete:
            raise ValueError(f"containers {sorted(self.training)} are training")
        models = [self.latest[c] for c in sorted(self.latest)]
        return weighted_mean(models, [1.0] * len(models)) if models else None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {
            "seconds": dict(self.seconds),
            "successor": dict(self.successor),
            "ends_at": self.ends_at,
            "training": sorted(self.training),
            "latest": dict(self.latest),
            "handed": dict(self.handed),
            "global_P": self.global_P,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        for name, value in state.items():
            setattr(self, name, set(value) if name == "training" else value)

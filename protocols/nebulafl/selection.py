"""Which idle container trains a planet: performance and curiosity rewards, and what a center knows of containers.

A planet that is ahead (version gap above zero) is sent to a slow container, one that lags to a fast one;
curiosity prefers containers that were seldom chosen.

Shapes: C containers of a center, R hardware types of a center.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Mask = NDArray[np.bool_]
LEAST_REWARD = 1e-6
"""What a reward is raised to, so that an idle container can always be chosen."""


def performance_rewards(scores_C: Numbers, gap: float, *, paper_literal: bool = False) -> Numbers:
    """Return R_p for performance scores PSc (seconds) and a version gap dv (Equation 5).

    dv > 0: PSc / max PSc * dv. dv <= 0: (1 - (PSc - min PSc) / max PSc) |dv|. The print has min - PSc and dv
    instead of |dv|: negative rewards whose ratios favour slow containers, against the text; `paper_literal`
    keeps it.
    """
    slowest = scores_C.max()
    if gap > 0:
        return np.asarray(scores_C / slowest * gap)
    if paper_literal:
        return np.asarray((1.0 - (scores_C.min() - scores_C) / slowest) * gap)
    return np.asarray((1.0 - (scores_C - scores_C.min()) / slowest) * -gap)


def curiosity_rewards(counts_C: NDArray[np.integer], *, paper_literal: bool = False) -> Numbers:
    """Return R_c = 1 / sqrt(Cnt + 1); the print has 1 / sqrt(Cnt), infinite before the first time (Equation 6)."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / np.sqrt(counts_C + (0.0 if paper_literal else 1.0)), dtype=np.float64)


def selection_probabilities(
    scores_C: Numbers,
    counts_C: NDArray[np.integer],
    busy_C: Mask,
    gap: float,
    *,
    paper_literal: bool = False,
) -> Numbers:
    """Return the probability of each container, zero for busy ones, proportional to R_p + R_c (Equation 7).

    Rewards below 1e-6 count as 1e-6. With `paper_literal` a container never chosen (infinite curiosity) shares
    all probability with its like, and rewards that are all negative keep their printed ratios.

    Raises:
        ValueError: no container is idle.
    """
    if busy_C.all():
        raise ValueError("no container is idle")
    rewards_C = performance_rewards(scores_C, gap, paper_literal=paper_literal)
    rewards_C = rewards_C + curiosity_rewards(counts_C, paper_literal=paper_literal)
    unseen_C = np.isinf(rewards_C) & ~busy_C
    if unseen_C.any():
        weights_C = unseen_C.astype(np.float64)
    elif paper_literal and (rewards_C[~busy_C] < 0).all():
        weights_C = -rewards_C
    else:
        weights_C = np.maximum(rewards_C, LEAST_REWARD)
    weights_C = np.where(busy_C, 0.0, weights_C)
    return np.asarray(weights_C / weights_C.sum())


def random_probabilities(busy_C: Mask) -> Numbers:
    """Return equal probabilities for idle containers (the ablation with random containers)."""
    if busy_C.all():
        raise ValueError("no container is idle")
    idle_C = (~busy_C).astype(np.float64)
    return np.asarray(idle_C / idle_C.sum())


def draw(probabilities_C: Numbers, uniform: float) -> int:
    """Return the container that a number in [0, 1) falls on."""
    edges_C = np.cumsum(probabilities_C)
    place = int(np.searchsorted(edges_C, uniform * edges_C[-1], side="right"))
    last = int(np.flatnonzero(probabilities_C)[-1])
    return min(place, last)


@dataclasses.dataclass
class ContainerTable:
    """What a center knows of its containers: who is busy or lost, how often chosen, how long they took.

    RTime is the mean of the measured times of a container on a type of hardware, the prediction until there is
    one; PSc is the mean of RTime over the types, so that having met slow hardware does not make a container slow.
    """

    predicted: Numbers
    """(R, C): seconds predicted from samples, epochs and throughput."""
    counts: NDArray[np.int64] = dataclasses.field(init=False)
    """(C,): Cnt, times chosen."""
    busy: Mask = dataclasses.field(init=False)
    """(C,): chosen and not back yet."""
    lost: Mask = dataclasses.field(init=False)
    """(C,): cannot be called."""
    measured: Numbers = dataclasses.field(init=False)
    """(R, C): sum of measured seconds."""
    runs: NDArray[np.int64] = dataclasses.field(init=False)
    """(R, C): number of measurements."""
    scores: Numbers = dataclasses.field(init=False)
    """(C,): PSc in seconds."""

    def __post_init__(self) -> None:
        num_types, num_containers = self.predicted.shape
        self.counts = np.zeros(num_containers, dtype=np.int64)
        self.busy = np.zeros(num_containers, dtype=np.bool_)
        self.lost = np.zeros(num_containers, dtype=np.bool_)
        self.measured = np.zeros((num_types, num_containers))
        self.runs = np.zeros((num_types, num_containers), dtype=np.int64)
        self.scores = self.predicted.mean(axis=0)

    @property
    def unavailable(self) -> Mask:
        """Containers that cannot be chosen now."""
        return self.busy | self.lost

    def times(self, container: int) -> Numbers:
        """Return RTime of a container on each type, shape (R,), in seconds."""
        runs_R = self.runs[:, container]
        return np.where(runs_R > 0, self.measured[:, container] / np.maximum(runs_R, 1), self.predicted[:, container])

    def choose(self, gap: float, uniform: float, *, random: bool = False, paper_literal: bool = False) -> int | None:
        """Return the container for a planet of version gap `gap` and mark it busy, or None when none is idle."""
        unavailable_C = self.unavailable
        if unavailable_C.all():
            return None
        if random:
            probabilities_C = random_probabilities(unavailable_C)
        else:
            probabilities_C = selection_probabilities(
                self.scores, self.counts, unavailable_C, gap, paper_literal=paper_literal
            )
        container = draw(probabilities_C, uniform)
        self.occupy(container)
        return container

    def occupy(self, container: int) -> None:
        """Mark an idle container busy and count it as chosen."""
        if self.busy[container] or self.lost[container]:
            raise ValueError(f"container {container} is not idle")
        self.busy[container] = True
        self.counts[container] += 1

    def finished(self, container: int, hardware: int, seconds: float) -> None:
        """Take a container back with the seconds that its training took on a type of hardware."""
        self.busy[container] = False
        self.measured[hardware, container] += seconds
        self.runs[hardware, container] += 1
        self.scores[container] = self.times(container).mean()

    def lose(self, container: int) -> None:
        """Take a container out: what it was training is given up, and not counted as measured."""
        self.busy[container] = False
        self.lost[container] = True

    def regain(self, container: int) -> None:
        """Make a lost container idle again."""
        self.lost[container] = False

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        return {field.name: np.array(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, np.array(state[field.name]))

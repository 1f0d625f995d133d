"""FedAvg (McMahan et al., 2017), flat and over centers: rounds of sampled containers, mean weighted by samples.

flat          server -> containers -> server              every round crosses the network between centers
hierarchical  server -> centers -> containers -> centers  center_rounds rounds inside, then once across
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.nebulafl.algorithm import Floats, weighted_mean


@dataclasses.dataclass(frozen=True)
class Update:
    """A trained model and the number of samples behind it."""

    parameters: Floats
    """The model."""
    num_samples: int
    """Its weight."""


def sample(idle: Sequence[int], count: int, generator: np.random.Generator) -> list[int]:
    """Return `count` different idle containers (all of them if there are fewer), in ascending order."""
    chosen: NDArray[np.int64] = generator.permutation(len(idle))[:count]
    return sorted(idle[place] for place in chosen)


def average(updates: Sequence[Update]) -> Update:
    """Return the mean of models weighted by samples, with the samples of all.

    Means of centers can be averaged again: the result is that of one flat average over everything.
    """
    parameters_P = weighted_mean([u.parameters for u in updates], [u.num_samples for u in updates])
    return Update(parameters_P, sum(update.num_samples for update in updates))


class SynchronousRound:
    """Collects one round: complete when everyone called has answered or is lost."""

    def __init__(self, called: Sequence[int]) -> None:
        self.pending = set(called)
        self.updates: dict[int, Update] = {}

    @property
    def complete(self) -> bool:
        """Whether nobody is waited for."""
        return not self.pending

    def arrive(self, container: int, update: Update) -> None:
        """Take an answer; one that was not called, or comes twice, is a ValueError."""
        if container not in self.pending:
            raise ValueError(f"container {container} was not called in this round")
        self.pending.remove(container)
        self.updates[container] = update

    def lose(self, container: int) -> None:
        """Stop waiting for a container."""
        self.pending.discard(container)

    def result(self) -> Update | None:
        """Return the average, added in the order of container numbers, or None if all were lost."""
        if not self.complete:
            raise ValueError(f"containers {sorted(self.pending)} have not answered")
        return average([self.updates[c] for c in sorted(self.updates)]) if self.updates else None

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a snapshot needs."""
        answers = {c: (u.parameters, u.num_samples) for c, u in self.updates.items()}
        return {"pending": sorted(self.pending), "updates": answers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a snapshot back."""
        self.pending = set(state["pending"])
        self.updates = {c: Update(*answer) for c, answer in state["updates"].items()}


def crosses_centers(round_number: int, center_rounds: int) -> bool:
    """Tell whether hierarchical FedAvg aggregates over all centers after round 0, 1, ... inside them."""
    return (round_number + 1) % center_rounds == 0

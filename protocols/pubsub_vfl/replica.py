"""A worker's copy of its party's models, and the ways in which it follows the party's parameter server.

alone      step on the own gradient                                    pubsub-vfl within an epoch, vfl, avfl
together   push the gradient, step on the average of all workers'      vfl-ps
shared     step, push the change, continue from all workers' changes   avfl-ps
average    push the parameters, continue from the average              pubsub-vfl at the end of certain epochs
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.learning.split_network import BottomNetwork, TopNetwork
from protocols.pubsub_vfl.messages import Parameters
from protocols.pubsub_vfl.servers import AveragingServer

Vector = NDArray[np.floating[Any]]
Network = BottomNetwork | TopNetwork


class Replica:
    """The models of one worker, changed only here.

    Args:
        worker: the worker's name.
        networks: freshly initialised alike in all workers of the party.
    """

    def __init__(self, worker: str, *networks: Network) -> None:
        self.networks = networks
        self._worker = worker
        self._initial = self.vectors
        self.sizes = tuple(vector.size for vector in self._initial)
        """Parameters of each model."""
        self._best: tuple[Vector, ...] | None = None
        self._unpushed = 0
        self._pushing = False
        self._base = self._initial

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The flat parameters of each model."""
        return tuple(network.vector for network in self.networks)

    def load(self, vectors: Sequence[Vector]) -> None:
        """Replace the parameters."""
        for network, vector in zip(self.networks, vectors, strict=True):
            network.load(vector)

    def step(self, gradients: Sequence[Vector]) -> None:
        """Step on one's own gradients (Eq. 2)."""
        for network, gradient in zip(self.networks, gradients, strict=True):
            network.apply(gradient)

    async def step_together(
        self, gradients: Sequence[Vector], num_rows: int, server: AveragingServer, epoch: int, step: int
    ) -> None:
        """Step on the mean gradient over the rows of all workers; who has no rows gives none."""
        vectors = tuple(gradients) if num_rows else tuple(np.zeros_like(v) for v in self.vectors)
        pushed = Parameters(self._worker, epoch, step, float(num_rows), vectors)
        self.step((await server.average(pushed)).vectors)

    async def step_shared(self, gradients: Sequence[Vector], server: AveragingServer, epoch: int, every: int) -> None:
        """Step, and after `every` steps push the change since the last push and continue from all workers' changes."""
        if self.step_towards_push(gradients, every):
            await self.follow(server, epoch)

    def step_towards_push(self, gradients: Sequence[Vector], every: int) -> bool:
        """Step, and say whether to `follow` now: after `every` steps, if no push is under way."""
        self.step(gradients)
        self._unpushed += 1
        if not every or self._unpushed < every or self._pushing:
            return False
        self._pushing = True
        return True

    async def follow(self, server: AveragingServer, epoch: int) -> None:
        """Push the change since the last push, and continue from the sum of all workers' changes.

        Steps taken while the answer is under way stay, and go with the next push.
        """
        self._pushing, self._unpushed = True, 0
        present = self.vectors
        change = tuple(now - base for now, base in zip(present, self._base, strict=True))
        total = (await server.add(Parameters(self._worker, epoch, 0, 1.0, change))).vectors
        self._base = tuple(first + all_ for first, all_ in zip(self._initial, total, strict=True))
        later = (now - then for now, then in zip(self.vectors, present, strict=True))
        self.load([base + since for base, since in zip(self._base, later, strict=True)])
        self._pushing = False

    async def average(self, server: AveragingServer, epoch: int) -> None:
        """Continue from the mean of all workers' parameters (Algorithm 1, line 31)."""
        self.load((await server.average(Parameters(self._worker, epoch, 0, 1.0, self.vectors))).vectors)

    def remember(self) -> None:
        """Keep the present parameters as the best so far."""
        self._best = self.vectors

    def recall(self) -> None:
        """Go back to the best parameters."""
        if self._best is not None:
            self.load(self._best)

    def state_dict(self) -> dict[str, Any]:
        """Return models, optimisers and best parameters as plain values."""
        return {
            "networks": [network.state_dict() for network in self.networks],
            "best": None if self._best is None else list(self._best),
            "base": list(self._base),
            "unpushed": self._unpushed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for network, content in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(content)
        self._best = None if state["best"] is None else tuple(state["best"])
        self._base = tuple(state["base"])
        self._unpushed = state["unpushed"]

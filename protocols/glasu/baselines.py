"""Clients that never communicate: `standalone`, each with its own block, and `centralised`, one with everything.

driver ◀──▶ client 1 .. M     rounds on the own graph; what is told of a run is the mean over the clients
"""

from __future__ import annotations

import math

import numpy as np

from fedactors.actors.context import Work
from fedactors.actors.remote import DRIVER, remote
from fedactors.protocols.glasu import algorithm, sampling
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.messages import Evaluation, Progress, Remarks, RoundOrder, Stamp, Targets


class LoneClient(GraphClient):
    """A client with the endpoints of the server: the driver orders its rounds."""

    @remote(caller=DRIVER, unbounded="always says the same")
    async def prepare(self) -> Remarks:
        """Say what is unusual about the data."""
        return Remarks(tuple(self._remarks))

    @remote(caller=DRIVER, at_most="num_rounds", of="round")
    async def train(self, order: RoundOrder) -> Progress:
        """Do a round on its own graph."""
        config, stamp = self._config, Stamp(order.round, 0, False, (self.name,))
        batch = sampling.choose_batch(self._local.nodes.train, config.batch_size, self.rng(f"batch {order.round}"))
        await self._build(Targets(stamp, 0, batch))
        losses = await self._update([], None)
        return Progress(losses[0], losses[-1], 1)

    @remote(caller=DRIVER, at_most="num_rounds", of="round")
    async def evaluate(self, order: RoundOrder) -> Evaluation:
        """Return how good the own network is on the whole graph."""
        await self._build(Targets(Stamp(order.round, 0, True, (self.name,)), 0, np.empty(0, dtype=np.int64)))
        everything = range(len(self._network.segments))
        if self._goes_in_chunks:
            h = None
            for index in everything:
                h = await self._in_chunks(index, h)
            logits = await self.compute(algorithm.classify, self.parameters, h, work=Work("gradient", 0))
        else:
            logits, _ = await self._run("segment", algorithm.local_forward, [], segments=everything)
        scores = await self._score(self._scored(logits))
        local = scores.test.get("accuracy", math.nan)
        return Evaluation(scores.validation, scores.test, local, local)

    @remote(caller=DRIVER, at_most="num_evaluations")
    async def remember(self) -> None:
        """Keep the present parameters as the best so far."""
        await super().remember()

    @remote(caller=DRIVER, once=True)
    async def account(self) -> None:
        """Write the lines of the privacy ledger."""
        await super().account()

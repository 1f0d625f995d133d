"""How the workers of a party stay one model: when they average (Section 4.2), and their server (`actors.Replica`).

    replica ──parameters, at the end of certain epochs──▶ server ──mean──▶ all replicas       average
    replica ──parameters, after certain batches──▶ server ──mean of the newest──▶ replica     mix: nobody waits
    replica ──change since the last push──▶ server ──sum of all changes──▶ replica            follow: nobody waits
    replica ──gradient──▶ server, whose optimiser steps ──parameters──▶ replica               step: waits for few

Who waits for whom: a push of `average` waits at the server until all workers of the party have pushed. Importing this
loads no torch. Shapes: P flat parameters.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import ParameterServer
from fedactors.actors.context import Work
from fedactors.actors.remote import SAME_PARTY, remote
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, optimizer_step
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.messages import Parameters

Vector = NDArray[np.floating[Any]]

# --- when -----------------------------------------------------------------------------------------------------------


def sync_gap(epoch: int, interval: int, schedule: str = "growing") -> int:
    """Return Delta T_t, the interval between parameter averages at an epoch counted from 1 (Eq. 5).

    ``growing``: ceil(i/2 tanh(2t/i - 2) + i/2), as the formula stands; ``decreasing``: its mirror image, as the text
    says, from i down to 1.
    """
    if schedule == "every":
        return 1
    grown = math.ceil(interval / 2 * math.tanh(2 * epoch / interval - 2) + interval / 2)
    gap = max(1, grown)
    return gap if schedule == "growing" else max(1, interval + 1 - gap)


def syncs(epoch: int, interval: int, schedule: str = "growing") -> bool:
    """Say whether `epoch` (or batch, counted from 1) ends with an average (Algorithm 1, line 30)."""
    if schedule == "never":
        return False
    return epoch % sync_gap(epoch, interval, schedule) == 0


def averages_after(config: PubSubVflConfig, epoch: int) -> bool:
    """Say whether the workers of each party average at the end of an epoch; after the last one they always do."""
    if not config.averages:
        return False
    if config.steps_at_server or config.mixes or epoch == config.num_epochs:
        return True
    return syncs(epoch, config.sync_interval, config.sync_schedule)


# --- the server -----------------------------------------------------------------------------------------------------


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return sum_i w_i v_i / sum_i w_i (P), accumulated in double precision in the order given (line 31)."""
    total = vectors[0].astype(np.float64) * weights[0]
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        total += vector.astype(np.float64) * weight
    mean: Vector = (total / sum(weights)).astype(vectors[0].dtype)
    return mean


def add_changes(totals: Sequence[Vector], changes: Sequence[Vector]) -> list[Vector]:
    """Return the sums of all changes so far (P each, double precision); no totals yet count as zero."""
    if not totals:
        return [change.astype(np.float64) for change in changes]
    return [total + change for total, change in zip(totals, changes, strict=True)]


def steps(
    spec: OptimizerSpec, vectors: Sequence[Vector], gradients: Sequence[Vector], states: Sequence[OptimizerState]
) -> tuple[list[Vector], list[OptimizerState]]:
    """Return parameters and states of the optimiser after one step of each model."""
    after = [state.copy() for state in states]
    parts = zip(vectors, gradients, after, strict=True)
    return [optimizer_step(spec, vector, gradient, state) for vector, gradient, state in parts], after


def _means(columns: list[list[Vector]], weights: list[float]) -> list[Vector]:
    return [weighted_mean(column, weights) for column in columns]


class AveragingServer(ParameterServer):
    """A party's parameter server: averages what all its workers pushed, adds up their changes, or steps for them.

    Args:
        workers: names of the party's workers.
        config: how the server steps.
    """

    state: ClassVar[tuple[str, ...]] = ("changes", "present", "num_steps", "moments", "num_rows")

    def __init__(self, workers: Sequence[str], config: PubSubVflConfig) -> None:
        self._workers = tuple(workers)
        self._config = config
        self.present: list[Vector] = []
        self.num_steps = self.num_rows = 0
        self.moments: list[dict[str, Any]] = []
        self._pushed: dict[str, Parameters] = {}
        self._complete: asyncio.Future[Parameters] | None = None
        self._last: Parameters | None = None
        self._adding = asyncio.Lock()
        self._newest: dict[str, tuple[Vector, ...]] = {}
        self._sums: list[Vector] = []
        self.changes: list[Vector] = []

    @remote(caller=SAME_PARTY)
    async def average(self, parameters: Parameters) -> Parameters:
        """Wait for the pushes of all workers of this round and return their mean, taken in the order of names.

        Who pushes again for the round that ended last, after a restart, gets its mean.
        """
        last = self._last
        if last is not None and (last.epoch, last.step) == (parameters.epoch, parameters.step):
            return last
        self._pushed[self.caller] = parameters
        self._newest, self._sums = {}, []
        if self._complete is None:
            self._complete = asyncio.get_running_loop().create_future()
        complete = self._complete
        if len(self._pushed) == len(self._workers):
            pushed = [self._pushed[name] for name in sorted(self._pushed)]
            self._pushed, self._complete = {}, None
            weights = [p.weight for p in pushed]
            columns = [list(column) for column in zip(*(p.vectors for p in pushed), strict=True)]
            means = await self.compute(_means, columns, weights, work=_work(parameters, len(pushed)))
            self._last = Parameters(parameters.epoch, parameters.step, sum(weights), tuple(means))
            complete.set_result(self._last)
        return await asyncio.shield(complete)

    @remote(caller=SAME_PARTY)
    async def mix(self, parameters: Parameters) -> Parameters:
        """Take a worker's newest parameters; return the mean of the newest of all that pushed since `average`."""
        worker, local = self.caller, parameters.vectors
        async with self._adding:
            before = self._newest.get(worker) or [np.zeros_like(part) for part in local]
            changes = [new.astype(np.float64) - old for new, old in zip(local, before, strict=True)]
            self._newest[worker] = local
            self._sums = await self.compute(add_changes, self._sums, changes, work=_work(parameters, 2))
            means = [total / len(self._newest) for total in self._sums]
        return _like(parameters, means)

    @remote(caller=SAME_PARTY)
    async def add(self, change: Parameters) -> Parameters:
        """Add a worker's change to those of all workers since the beginning, and return the sum."""
        async with self._adding:
            self.changes = await self.compute(add_changes, self.changes, list(change.vectors), work=_work(change, 1))
        return _like(change, self.changes)

    @remote(caller=SAME_PARTY)
    async def adopt(self, parameters: Parameters) -> Parameters:
        """Return the parameters that the server has stepped to; in the beginning it takes those that it is shown."""
        if not self.present:
            self.num_rows = int(parameters.weight)
            self.present = list(parameters.vectors)
            self.moments = [OptimizerState().state_dict() for _ in self.present]
        return Parameters(parameters.epoch, self.num_steps, 1.0, tuple(self.present))

    @remote(caller=SAME_PARTY)
    async def step(self, gradients: Parameters) -> Parameters:
        """Step on a worker's gradient, after those that came before it; return the parameters."""
        async with self._adding:
            states = [OptimizerState(**content) for content in self.moments]
            work = Work("server-step", sum(vector.size for vector in gradients.vectors))
            num_epochs = self._config.at(self.num_rows).num_epochs
            rate = self._config.rate_schedule.at(gradients.epoch - 1, num_epochs)
            args = (self._config.step_rule.scaled(rate), self.present, list(gradients.vectors), states)
            self.present, states = await self.compute(steps, *args, work=work)
            self.moments = [state.state_dict() for state in states]
            self.num_steps += 1
            return Parameters(gradients.epoch, self.num_steps, 1.0, tuple(self.present))


def _work(pushed: Parameters, num_vectors: int) -> Work:
    return Work("average", num_vectors * sum(vector.size for vector in pushed.vectors))


def _like(pushed: Parameters, found: Sequence[Vector]) -> Parameters:
    """Return what was found in answer to a push, in the precision of what was pushed."""
    vectors = tuple(new.astype(old.dtype) for new, old in zip(found, pushed.vectors, strict=True))
    return Parameters(pushed.epoch, pushed.step, 1.0, vectors)

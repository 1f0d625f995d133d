"""How the workers of a party stay one model: when they average (Section 4.2), their server, and a worker's replica.

    replica ──parameters, at the end of certain epochs──▶ server ──mean──▶ all replicas       average
    replica ──parameters, after certain batches──▶ server ──mean of the newest──▶ replica     mix: nobody waits
    replica ──change since the last push──▶ server ──sum of all changes──▶ replica            follow: nobody waits
    replica ──gradient──▶ server, whose optimiser steps ──parameters──▶ replica               step: waits for few

Who waits for whom: a push of `average` waits at the server until all workers of the party have pushed. Importing this
loads no torch. Shapes: P flat parameters.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.actor import ParameterServer
from fedactors.actors.context import Work
from fedactors.actors.remote import SAME_PARTY, remote
from fedactors.learning.optimizers import OptimizerSpec, OptimizerState, optimizer_step
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import Parameters

if TYPE_CHECKING:
    from torch import Tensor

    from fedactors.learning.network import Network

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
        config: how the server steps, for whoever lets it.
    """

    state: ClassVar[tuple[str, ...]] = ("changes", "present", "num_steps", "moments")

    def __init__(self, workers: Sequence[str], config: PubSubVflConfig) -> None:
        self._workers = tuple(workers)
        self._config = config
        self.present: list[Vector] = []
        self.num_steps = 0
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
            self.present = list(parameters.vectors)
            self.moments = [OptimizerState().state_dict() for _ in self.present]
        return Parameters(parameters.epoch, self.num_steps, 1.0, tuple(self.present))

    @remote(caller=SAME_PARTY)
    async def step(self, gradients: Parameters) -> Parameters:
        """Step on a worker's gradient, after those that came before it; return the parameters."""
        async with self._adding:
            states = [OptimizerState(**content) for content in self.moments]
            work = Work("server-step", sum(vector.size for vector in gradients.vectors))
            rate = self._config.rate_schedule.at(gradients.epoch - 1, self._config.num_epochs)
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


# --- a worker's replica ---------------------------------------------------------------------------------------------


class Replica:
    """The models of one worker, changed only here.

    Args:
        networks: freshly initialised alike in all workers of the party.
        config: its schedule counts batches in `mixing`.
    """

    def __init__(self, networks: Sequence[Network], config: PubSubVflConfig) -> None:
        self.networks = tuple(networks)
        self._config = config
        self._initial = self._base = self.vectors
        self.sizes = tuple(vector.size for vector in self._initial)
        """Parameters of each model."""
        self._best: tuple[Vector, ...] | None = None
        self._num_unpushed = 0
        self._is_following = False
        self._server: AveragingServer | None = None
        self._num_steps = 0
        self._is_due = False
        self._mix_under_way: asyncio.Future[None] | None = None
        self._steps_under_way: deque[asyncio.Future[None]] = deque()
        self._newest = 0

    @property
    def vectors(self) -> tuple[Vector, ...]:
        """The flat parameters of each model."""
        return tuple(network.vector for network in self.networks)

    def load(self, vectors: Sequence[Vector]) -> None:
        """Replace the parameters."""
        for network, vector in zip(self.networks, vectors, strict=True):
            network.load(vector)

    def begin_epoch(self, epoch: int) -> None:
        """Let steps be as large as the schedule says for an epoch, counted from 1."""
        rate = self._config.rate_schedule.at(epoch - 1, self._config.num_epochs)
        for network in self.networks:
            network.rate = rate

    def step(self, gradients: Sequence[Vector | Tensor]) -> None:
        """Step on one's own gradients (Eq. 2); while `mixing`, start to mix where it is time and none is under way."""
        for network, gradient in zip(self.networks, gradients, strict=True):
            network.apply(gradient)
        self._num_unpushed += 1
        if self._server is not None:
            self._mix_when_due(self._server)

    async def average(self, server: AveragingServer, epoch: int) -> None:
        """Continue from the mean of all workers' parameters (Algorithm 1, line 31)."""
        self.load((await server.average(Parameters(epoch, 0, 1.0, self.vectors))).vectors)

    async def step_together(
        self, gradients: Sequence[Vector | Tensor], num_rows: int, server: AveragingServer, epoch: int, step: int
    ) -> None:
        """Step on the mean gradient over the rows of all workers; who has no rows gives none."""
        from fedactors.learning.network import on_host

        vectors = tuple(map(on_host, gradients)) if num_rows else tuple(np.zeros_like(v) for v in self.vectors)
        self.step((await server.average(Parameters(epoch, step, float(num_rows), vectors))).vectors)

    async def step_at(self, server: AveragingServer, gradients: Sequence[Vector | Tensor], epoch: int) -> None:
        """Let the server step on a gradient, and wait only if more than `server_window` of them are under way."""
        from fedactors.learning.network import on_host

        push = server.step(Parameters(epoch, 0, 1.0, tuple(map(on_host, gradients))))
        self._steps_under_way.append(asyncio.ensure_future(self._follow_server(push)))
        while len(self._steps_under_way) > self._config.server_window:
            await self._steps_under_way.popleft()

    async def adopt(self, server: AveragingServer, epoch: int) -> None:
        """Continue from the server's parameters, when no gradient is under way any more."""
        while self._steps_under_way:
            await self._steps_under_way.popleft()
        await self._follow_server(server.adopt(Parameters(epoch, 0, 1.0, self.vectors)))

    async def _follow_server(self, answer: Awaitable[Parameters]) -> None:
        found = await answer
        if found.step >= self._newest:  # answers may overtake one another
            self._newest = found.step
            self.load(found.vectors)

    def must_follow(self, every: int) -> bool:
        """Say whether to `follow` now: after `every` steps, if that is not under way already."""
        if self._num_unpushed < every or self._is_following:
            return False
        self._is_following = True
        return True

    async def follow(self, server: AveragingServer, epoch: int) -> None:
        """Push the change since the last push, and continue from the sum of all workers' changes.

        Steps taken while the answer is under way stay, and go with the next push.
        """
        self._is_following, self._num_unpushed = True, 0
        pushed = self.vectors
        change = tuple(now - base for now, base in zip(pushed, self._base, strict=True))
        total = (await server.add(Parameters(epoch, 0, 1.0, change))).vectors
        self._base = tuple(first + all_ for first, all_ in zip(self._initial, total, strict=True))
        self._continue_from(self._base, pushed)
        self._is_following = False

    @contextlib.asynccontextmanager
    async def mixing(self, server: AveragingServer | None) -> AsyncIterator[None]:
        """Mix through `server` after some of the steps taken inside (None: after none); the last mix is waited for.

        Algorithm 1 with `t` counted as its loop counts it: in lines 4 to 34 each worker takes one batch, and line 30
        asks whether to average; the text of Section 4.2 calls t an epoch. No worker waits: it trains on while its
        parameters are under way, and keeps what it learned meanwhile.
        """
        self._server = server
        try:
            yield
            if self._mix_under_way is not None:
                await self._mix_under_way
        finally:
            self._server = None
            if self._mix_under_way is not None:
                self._mix_under_way.cancel()
                self._mix_under_way = None

    def _mix_when_due(self, server: AveragingServer) -> None:
        config, under_way = self._config, self._mix_under_way
        self._num_steps += 1
        self._is_due = self._is_due or syncs(self._num_steps, config.sync_interval, config.sync_schedule)
        if not self._is_due or (under_way is not None and not under_way.done()):
            return
        if under_way is not None:
            under_way.result()
        self._is_due = False
        self._mix_under_way = asyncio.ensure_future(self._mix(server))

    async def _mix(self, server: AveragingServer) -> None:
        pushed = self.vectors
        mean = (await server.mix(Parameters(0, self._num_steps, 1.0, pushed))).vectors
        self._continue_from(mean, pushed)

    def _continue_from(self, received: Sequence[Vector], pushed: Sequence[Vector]) -> None:
        """Go on from what was received, with what was learned since the push."""
        learned = (now - then for now, then in zip(self.vectors, pushed, strict=True))
        self.load([vector + change for vector, change in zip(received, learned, strict=True)])

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
            "num_steps": self._num_steps,
            "is_due": self._is_due,
            "newest": self._newest,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for network, content in zip(self.networks, state["networks"], strict=True):
            network.load_state_dict(content)
        self._best = None if state["best"] is None else tuple(state["best"])
        self._base = tuple(state["base"])
        self._num_steps, self._is_due, self._newest = state["num_steps"], state["is_due"], state["newest"]

"""Averages while an epoch is under way (`sync_unit=batch`): Algorithm 1 with `t` counted as its loop counts it.

    worker ──parameters, after its t-th batch where t mod Delta T_t = 0──▶ parameter server
    worker ◀──────────mean of the newest parameters of all workers──────── parameter server

In the loop of lines 4 to 34 each worker takes one batch, and line 30 asks whether to average; the text of Section 4.2
calls t an epoch. No worker waits: it trains on while its parameters are under way, and keeps what it learned meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.active import ActiveWorker
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import Parameters
from protocols.pubsub_vfl.passive import PassiveWorker
from protocols.pubsub_vfl.replica import Network, Replica, Vector
from protocols.pubsub_vfl.servers import AveragingServer


class MixingReplica(Replica):
    """A replica that mixes with those of the party's other workers after some of its steps.

    Args:
        worker: the worker's name.
        networks: freshly initialised alike in all workers of the party.
        config: its `sync_interval` and `sync_schedule` count batches here.
    """

    def __init__(self, worker: str, *networks: Network, config: PubSubVflConfig) -> None:
        super().__init__(worker, *networks)
        self._config = config
        self._server: AveragingServer | None = None
        self._rounds = 0
        self._due = False
        self._mixing: asyncio.Future[None] | None = None

    def step(self, gradients: Sequence[Vector]) -> None:
        """Step on one's own gradients, and start to mix if it is time and no mixing is under way."""
        super().step(gradients)
        self._rounds += 1
        self._due = self._due or algorithm.syncs(self._rounds, self._config.sync_interval, self._config.sync_schedule)
        if self._server is None or not self._due or (self._mixing is not None and not self._mixing.done()):
            return
        if self._mixing is not None:
            self._mixing.result()
        self._due = False
        self._mixing = asyncio.ensure_future(self._mix(self._server))

    async def _mix(self, server: AveragingServer) -> None:
        pushed = self.vectors
        mean = (await server.mix(Parameters(self._worker, 0, self._rounds, 1.0, pushed))).vectors
        since = (now - then for now, then in zip(self.vectors, pushed, strict=True))
        self.load([average + later for average, later in zip(mean, since, strict=True)])

    async def mix_during(self, work: Any, server: AveragingServer) -> Any:
        """Await `work`, mixing through `server` meanwhile; what is under way then is waited for."""
        self._server = server
        try:
            done = await work
            if self._mixing is not None:
                await self._mixing
            return done
        finally:
            self._server = None
            if self._mixing is not None:
                self._mixing.cancel()
                self._mixing = None

    def state_dict(self) -> dict[str, Any]:
        """Return the replica's state and how many steps it took."""
        return {**super().state_dict(), "rounds": self._rounds, "due": self._due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self._rounds, self._due = state["rounds"], state["due"]


class MixingPassiveWorker(PassiveWorker):
    """A passive party's worker that averages with its siblings during an epoch."""

    async def load(self) -> None:
        """Load the party's own rows and build its bottom model."""
        await super().load()
        self.replica: Replica = MixingReplica(self.name, self.bottom, config=self.config)

    async def run_epoch(self, epoch: int, broker_name: str) -> None:
        """Embed batches and apply their gradients until the broker says that the epoch is over."""
        assert isinstance(self.replica, MixingReplica)
        server = self.peer(f"{self.party}/ps", AveragingServer)
        await self.replica.mix_during(super().run_epoch(epoch, broker_name), server)


class MixingActiveWorker(ActiveWorker):
    """An active party's worker that averages with its siblings during an epoch."""

    async def load(self) -> None:
        """Load the party's own rows and labels, and build its models."""
        await super().load()
        self.replica: Replica = MixingReplica(self.name, self.bottom, self.top, config=self.config)

    async def run_epoch(self, epoch: int, broker_name: str) -> dict[str, float]:
        """Train on batches whose embeddings are there until the broker says that the epoch is over."""
        assert isinstance(self.replica, MixingReplica)
        server = self.peer(f"{self.party}/ps", AveragingServer)
        found: dict[str, float] = await self.replica.mix_during(super().run_epoch(epoch, broker_name), server)
        return found

"""What the workers of both sides share: their rows' order, their party's averages, the best parameters so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fedactors.data.partitions import VerticalData
from fedactors.roles import Client
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import RowOrder
from protocols.pubsub_vfl.replica import Replica
from protocols.pubsub_vfl.rows import PartyRows
from protocols.pubsub_vfl.servers import AveragingServer

Stamp = tuple[int, int]
"""A batch's id and the number of its attempt."""


class PartyWorker(Client):
    """One of a party's workers, named "party/worker-i"; worker 0 also aligns rows and takes part in evaluations.

    Args:
        config: the run's settings.
        data: who holds what; only the own party's source is loaded.
        run_seed: shared by all parties, for the split and the batches.
        siblings: the party's other workers, for worker 0.
    """

    state: ClassVar[tuple[str, ...]] = ("rows", "replica")
    rows: PartyRows
    replica: Replica

    def __init__(self, config: PubSubVflConfig, data: VerticalData, run_seed: int, siblings: Sequence[str]) -> None:
        self.config = config
        self._data = data
        self._run_seed = run_seed
        self._siblings = tuple(siblings)

    async def take_rows(self, order: RowOrder) -> None:
        """Take the row order from the party's worker 0."""
        self.rows.follow(order.rows)

    async def average(self, epoch: int, server_name: str) -> None:
        """Continue from the average of the party's workers."""
        with self.span("wait", "average"):
            await self.replica.average(self.peer(server_name, AveragingServer), epoch)

    async def follow(self, epoch: int, server_name: str) -> None:
        """Continue from the changes of all the party's workers."""
        await self.replica.follow(self.peer(server_name, AveragingServer), epoch)

    async def end_epoch(self, is_best: bool) -> None:
        """Remember the present parameters if they are the best so far."""
        if is_best:
            self.replica.remember()

    async def recall(self) -> None:
        """Go back to the best parameters."""
        self.replica.recall()

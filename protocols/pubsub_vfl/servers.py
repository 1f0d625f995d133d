"""The broker and the parameter servers: they hold no data, and importing them loads no torch.

Who waits for whom: a worker's report waits at the broker only when it has nothing else to do and nothing is there for
it; a worker's push waits at its parameter server until all workers of the party have pushed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedactors.resources import Resources
from fedactors.roles import ParameterServer, Server
from protocols.pubsub_vfl.dispatch import Counts, Dispatch
from protocols.pubsub_vfl.messages import ActiveOrders, ActiveReport, Parameters, PassiveOrders, PassiveReport


class BatchBroker(Server):
    """Runs the `Dispatch` of batches between workers; payloads do not pass through it.

    Args:
        dispatch: the state machine; fresh.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._parked: dict[str, asyncio.Future[None]] = {}
        self._over = asyncio.Event()

    async def begin_epoch(self, num_batches: int) -> None:
        """Open an epoch; workers may report from now on."""
        self._dispatch.begin(num_batches, self.clock.now())
        self._over.clear()

    async def serve_epoch(self) -> tuple[int, int, int]:
        """Wait for the end of the epoch, abandoning batches at their deadlines.

        Returns:
            batches abandoned, entries discarded, the largest number of attempts of one batch.
        """
        dispatch = self._dispatch
        while not dispatch.finished:
            look = dispatch.next_look(self.clock.now())
            patience = None if look is None else max(look - self.clock.now(), 0.0)
            try:
                async with self.clock.timeout(patience):
                    await self._over.wait()
            except TimeoutError:
                if dispatch.expire(self.clock.now()):
                    self._wake_all()
        self._wake_all()
        counts: Counts = dispatch.counts()
        return counts.abandoned, counts.discarded, counts.max_sequence

    async def report_passive(self, report: PassiveReport) -> PassiveOrders:
        """Take what a passive worker has done; return its orders, waiting for some if the report says so."""
        dispatch, worker, now = self._dispatch, report.worker, self.clock.now()
        party = worker.partition("/")[0]
        for batch_id, sequence, ref in report.published:
            dispatch.publish(party, worker, batch_id, sequence, ref, now)
        for batch_id, sequence in report.done:
            dispatch.acknowledge(party, worker, batch_id, sequence, now)
        self._wake()

        def anything() -> bool:
            return dispatch.has_outbox(worker) or (report.room > 0 and dispatch.can_assign(party))

        if report.wait and not dispatch.finished and not anything():
            await self._park(worker)
        assigned = dispatch.assign(party, worker, report.room, self.clock.now())
        box = dispatch.outbox(worker)
        return PassiveOrders(assigned, box.gradients, box.abandoned, dispatch.finished)

    async def report_active(self, report: ActiveReport) -> ActiveOrders:
        """Take an active worker's gradients; return its orders, waiting for some if the report says so."""
        dispatch, worker, now = self._dispatch, report.worker, self.clock.now()
        for batch_id, sequence, refs in report.gradients:
            if refs:
                dispatch.publish_gradients(worker, batch_id, sequence, refs, now)
            else:
                dispatch.give_up(batch_id, sequence, now)
        self._wake()
        if report.wait and not dispatch.finished and not dispatch.can_claim() and not dispatch.has_outbox(worker):
            await self._park(worker)
        claims = dispatch.claim(worker, report.room, self.clock.now())
        return ActiveOrders(claims, dispatch.outbox(worker).released, dispatch.finished)

    async def lose(self, worker: str) -> None:
        """Give the batches of a lost worker to others."""
        self._dispatch.lose(worker, self.clock.now())
        self._unpark(worker)
        self._wake_all()

    async def _park(self, worker: str) -> None:
        self._parked[worker] = asyncio.get_running_loop().create_future()
        await self._parked[worker]

    def _unpark(self, worker: str) -> None:
        parked = self._parked.pop(worker, None)
        if parked is not None and not parked.done():
            parked.set_result(None)

    def _wake(self) -> None:
        """Wake the workers for whom there is something now."""
        dispatch = self._dispatch
        if dispatch.finished:
            self._over.set()
            self._wake_all()
            return
        for worker in list(self._parked):
            party = worker.partition("/")[0]
            work = dispatch.can_assign(party) if dispatch.is_passive(party) else dispatch.can_claim()
            if work or dispatch.has_outbox(worker):
                self._unpark(worker)

    def _wake_all(self) -> None:
        for worker in list(self._parked):
            self._unpark(worker)


class AveragingServer(ParameterServer):
    """A party's parameter server: averages what all its workers pushed and hands it back.

    Args:
        workers: names of the party's workers.
    """

    resources: ClassVar[Resources] = Resources()

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = tuple(workers)
        self._pushed: dict[str, Parameters] = {}
        self._complete: asyncio.Future[Parameters] | None = None

    async def push(self, parameters: Parameters) -> Parameters:
        """Wait for the pushes of all workers of this epoch and return their average, taken in the order of names."""
        self._pushed[parameters.worker] = parameters
        if self._complete is None:
            self._complete = asyncio.get_running_loop().create_future()
        complete = self._complete
        if len(self._pushed) == len(self._workers):
            complete.set_result(self._average())
            self._pushed, self._complete = {}, None
        return await asyncio.shield(complete)

    def _average(self) -> Parameters:
        ordered = [self._pushed[name] for name in sorted(self._pushed)]
        means = []
        for parts in zip(*(p.vectors for p in ordered), strict=True):
            total = parts[0].astype(np.float64)
            for part in parts[1:]:
                total += part
            means.append((total / len(parts)).astype(parts[0].dtype))
        return Parameters(self.party, ordered[0].epoch, tuple(means))

"""The broker and the parameter servers: they hold no data, and importing them loads no torch.

Who waits for whom: a worker's report waits at the broker only when it has nothing else to do and nothing is there for
it; a worker's push waits at its parameter server until all workers of the party have pushed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from fedactors.roles import ParameterServer, Server
from fedactors.runtime.base import Work
from protocols.pubsub_vfl.averages import add_changes, weighted_mean
from protocols.pubsub_vfl.dispatch import Counts, Dispatch
from protocols.pubsub_vfl.messages import ActiveOrders, ActiveReport, Parameters, PassiveOrders, PassiveReport

Report = PassiveReport | ActiveReport


class BatchBroker(Server):
    """Runs the `Dispatch` of batches between workers; payloads do not pass through it.

    Args:
        dispatch: the state machine; fresh.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._parked: dict[str, tuple[Report, asyncio.Future[Any]]] = {}
        self._over = asyncio.Event()

    async def begin_epoch(self, num_batches: int) -> None:
        """Put the batches of an epoch in the queue; only then may workers report."""
        self._dispatch.begin(num_batches, self.clock.now())
        self._over.clear()

    async def serve_epoch(self) -> tuple[int, int, int]:
        """See the epoch to its end, abandoning batches at their deadlines.

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
                    self._wake()
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
        orders: PassiveOrders = await self._orders(report)
        return orders

    async def report_active(self, report: ActiveReport) -> ActiveOrders:
        """Take an active worker's gradients; return its orders, waiting for some if the report says so."""
        dispatch, worker, now = self._dispatch, report.worker, self.clock.now()
        for batch_id, sequence, refs in report.gradients:
            if refs:
                dispatch.publish_gradients(worker, batch_id, sequence, refs, now)
            else:
                dispatch.give_up(batch_id, sequence, now)
        self._wake()
        orders: ActiveOrders = await self._orders(report)
        return orders

    async def lose(self, worker: str) -> None:
        """Give the batches of a lost worker to others."""
        parked = self._parked.pop(worker, None)
        if parked is not None:
            parked[1].set_result(self._nothing(parked[0]))
        self._dispatch.lose(worker, self.clock.now())
        self._wake()

    async def _orders(self, report: Report) -> Any:
        found = self._orders_now(report)
        if found is not None or not report.wait:
            return found or self._nothing(report)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parked[report.worker] = (report, future)
        return await future

    def _orders_now(self, report: Report) -> PassiveOrders | ActiveOrders | None:
        """Return what there is for a worker now, or None."""
        dispatch, worker = self._dispatch, report.worker
        room = report.room
        if isinstance(report, PassiveReport):
            box = dispatch.outbox(worker)
            # gradients are on their way to a worker with enough under way: new batches come with the next of them
            will_hear = report.wait and dispatch.in_flight_of(worker) > room and not (box.gradients or box.abandoned)
            given = 0 if will_hear else room
            assigned = dispatch.assign(worker.partition("/")[0], worker, given, self.clock.now())
            if not (assigned or box.gradients or box.abandoned or dispatch.finished):
                return None
            return PassiveOrders(assigned, box.gradients, box.abandoned, dispatch.finished)
        claims = dispatch.claim(worker, room, self.clock.now())
        released = dispatch.outbox(worker).released
        # to free a payload is not worth waking a worker for
        if not (claims or dispatch.finished) and report.wait:
            dispatch.keep_released(worker, released)
            return None
        return ActiveOrders(claims, released, dispatch.finished)

    def _nothing(self, report: Report) -> PassiveOrders | ActiveOrders:
        if isinstance(report, PassiveReport):
            return PassiveOrders((), (), (), False)
        return ActiveOrders((), (), False)

    def _wake(self) -> None:
        """Answer the parked reports for which there is something now, in the order in which they came."""
        if self._dispatch.finished:
            self._over.set()
        for worker, (report, future) in list(self._parked.items()):
            found = self._orders_now(report)
            if found is not None:
                del self._parked[worker]
                future.set_result(found)


class AveragingServer(ParameterServer):
    """A party's parameter server: averages what all its workers pushed, or adds up their changes as they come.

    Args:
        workers: names of the party's workers.
    """

    state: ClassVar[tuple[str, ...]] = ("changes",)

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = tuple(workers)
        self._pushed: dict[str, Parameters] = {}
        self._complete: asyncio.Future[Parameters] | None = None
        self._last: Parameters | None = None
        self._adding = asyncio.Lock()
        self._newest: dict[str, tuple[np.ndarray, ...]] = {}
        self._sums: list[np.ndarray] = []
        self.changes: list[np.ndarray] = []

    async def average(self, parameters: Parameters) -> Parameters:
        """Wait for the pushes of all workers of this round and return their mean, taken in the order of names.

        Who pushes again for the round that ended last, after a restart, gets its mean.
        """
        last = self._last
        if last is not None and (last.epoch, last.step) == (parameters.epoch, parameters.step):
            return last
        self._pushed[parameters.worker] = parameters
        self._newest, self._sums = {}, []
        if self._complete is None:
            self._complete = asyncio.get_running_loop().create_future()
        complete = self._complete
        if len(self._pushed) == len(self._workers):
            pushed = [self._pushed[name] for name in sorted(self._pushed)]
            self._pushed, self._complete = {}, None
            weights = [p.weight for p in pushed]
            columns = zip(*(p.vectors for p in pushed), strict=True)
            size = sum(vector.size for vector in parameters.vectors)
            work = Work("average", size * len(pushed))
            means = await self.compute(_means, [list(column) for column in columns], weights, work=work)
            self._last = Parameters(self.party, parameters.epoch, parameters.step, sum(weights), tuple(means))
            complete.set_result(self._last)
        return await asyncio.shield(complete)

    async def mix(self, parameters: Parameters) -> Parameters:
        """Take a worker's newest parameters; return the mean of the newest of all that pushed since `average`."""
        size = sum(vector.size for vector in parameters.vectors)
        async with self._adding:
            before = self._newest.get(parameters.worker)
            own = list(parameters.vectors)
            gone = [np.zeros_like(part) for part in own] if before is None else list(before)
            changes = [new.astype(np.float64) - old for new, old in zip(own, gone, strict=True)]
            self._newest[parameters.worker] = parameters.vectors
            self._sums = await self.compute(add_changes, self._sums, changes, work=Work("average", 2 * size))
            means = tuple(
                (total / len(self._newest)).astype(part.dtype) for total, part in zip(self._sums, own, strict=True)
            )
        return Parameters(self.party, parameters.epoch, parameters.step, 1.0, means)

    async def add(self, change: Parameters) -> Parameters:
        """Add a worker's change to those of all workers since the beginning, and return the sum."""
        size = sum(vector.size for vector in change.vectors)
        async with self._adding:
            own = list(change.vectors)
            self.changes = await self.compute(add_changes, self.changes, own, work=Work("average", size))
        sums = tuple(total.astype(part.dtype) for total, part in zip(self.changes, change.vectors, strict=True))
        return Parameters(self.party, change.epoch, change.step, 1.0, sums)


def _means(columns: list[list[np.ndarray]], weights: list[float]) -> list[np.ndarray]:
    return [weighted_mean(column, weights) for column in columns]

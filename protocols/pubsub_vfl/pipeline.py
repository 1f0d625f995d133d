"""What a worker exchanges with the broker in an epoch, while it computes.

    broker ──orders: batches to embed, payloads or references──▶ assigned, received ──▶ worker ──report──▶ broker

    passive worker   assigned: embed a batch and publish it     received: apply its gradient, it is done
    active worker    (none)                                     received: train on its embeddings, publish the gradients

Who waits for whom: a worker waits for news (orders, a payload) only when it has nothing to compute. Several reports
may be under way; where payloads are fetched at most one of them waits at the broker, and only when the worker has
nothing to compute; where they are sent each waits there until there is something to bring back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import TYPE_CHECKING, Any

from fedactors.actors.context import Ref
from fedactors.errors import PartyLost
from protocols.pubsub_vfl.broker import BROKER, BatchBroker
from protocols.pubsub_vfl.messages import Orders, Payload, Report, Stamp

if TYPE_CHECKING:
    from protocols.pubsub_vfl.actors import PartyWorker

_log = logging.getLogger(__name__)


class Pipeline:
    """A worker's reports, orders and payloads of an epoch.

    Args:
        worker: whose they are.
        epoch: its number, as the broker was told.
        first: batches to embed that are not asked for; None: they are still to come, and none is asked for before.
    """

    def __init__(self, worker: PartyWorker, epoch: int, first: Iterable[Stamp] | None = ()) -> None:
        self._worker, self._config, self.epoch = worker, worker.config, epoch
        self._broker = worker.peer(BROKER, BatchBroker)
        self._assigned: deque[Stamp] = deque(first or ())
        self._knows_first = first is not None
        self._received: deque[tuple[Stamp, list[Any]]] = deque()
        self._num_fetching = 0
        self._published: list[tuple[int, int, tuple[Payload, ...]]] = []
        self._done: list[Stamp] = []
        self._dropped: set[Stamp] = set()
        self._finished = False
        self._under_way: set[asyncio.Future[None]] = set()
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._room_asked = 0
        self._num_parked = 0
        self._no_report_before = 0.0
        self._task: asyncio.Task[Any] | None = None
        self._is_left = False

    # --- what the worker does ---

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Exchange while the worker works inside; leave when all has been reported, or at once after `leave`."""
        self._task = asyncio.current_task()
        try:
            yield
            while self._under_way:
                await self._news.wait()
                self._check()
        except asyncio.CancelledError:
            if not self._is_left or self._task is None or self._task.uncancel():
                raise
        finally:
            self._task = None
            for task in list(self._under_way):
                task.cancel()
            self._worker.forget_all()

    def begin_with(self, assigned: Iterable[Stamp]) -> None:
        """Take batches to embed that were not asked for."""
        self._knows_first = True
        self._assigned.extend(assigned)
        self._news.set()

    def leave(self) -> None:
        """End the epoch here and now: others have done what is in hand."""
        if self._task is not None:
            self._is_left = True
            self._task.cancel()

    @property
    def is_over(self) -> bool:
        """Whether the broker has said that the epoch is over, and all has been reported."""
        return self._finished and not (self._done or self._published)

    def next_received(self) -> tuple[Stamp, list[Any]] | None:
        """Return a batch and the payloads that came for it, if there is one."""
        if not self._received:
            return None
        if self._takes_one_at_a_time:
            self._report()  # what comes next is to be there when this is done
        return self._received.popleft()

    def next_assigned(self) -> Stamp | None:
        """Return a batch to embed, if there is one."""
        return self._assigned.popleft() if self._assigned else None

    def publish(self, stamp: Stamp, payloads: tuple[Payload, ...]) -> None:
        """Tell the broker of a batch's embedding, or of its gradients; no payloads: those to train on were gone."""
        self._published.append((*stamp, payloads))

    def publish_embedding(self, stamp: Stamp, payloads: tuple[Payload, ...]) -> None:
        """Publish a batch's embedding, unless the batch was abandoned meanwhile."""
        if stamp in self._dropped:
            self._worker.forget(stamp)
        else:
            self.publish(stamp, payloads)

    def finish(self, stamp: Stamp) -> None:
        """Tell the broker that a batch's gradient was applied."""
        self._done.append(stamp)

    async def exchange(self) -> None:
        """Report what was done; with nothing in hand do other work, or wait for news."""
        self._report()
        if not (self._received or self._assigned or self.is_over or await self._has_other_work()):
            with self._worker.span("wait", self._worker.waits_for):
                await self._news.wait()
        self._check()

    async def _has_other_work(self) -> bool:
        """Take a local update, if there is one and no news has come."""
        return self._config.local_updates > 0 and not self._news.is_set() and await self._worker.update_locally()

    # --- reports and orders ---

    @property
    def _takes_one_at_a_time(self) -> bool:
        """Whether a report brings at most one batch to train on, so that it must leave before the last is used up."""
        return self._config.sends_payloads and not self._worker.embeds

    def _report(self) -> None:
        if not self._knows_first:
            return  # what is asked for now would be asked for once more with each batch that is told of first
        in_hand, now = len(self._received) + len(self._assigned), self._worker.clock.now()
        if in_hand > 1 and now < self._no_report_before:
            return  # there is enough to do: collect more before the next report
        room = self._room()
        # gradients come to a passive worker that has asked for no more batches
        has_use = room > 0 or (self._worker.embeds and not self._num_parked)
        if self._config.sends_payloads:
            # every report waits for what it can bring back: orders need not wait for the next one to come
            wait, worth = True, has_use
        else:
            wait = not in_hand and not self._num_parked and has_use
            worth = wait or (room > 0 and not self._num_parked)
        if not (self._published or self._done or worth):
            return
        report = Report(tuple(self._published), tuple(self._done), room, wait, self.epoch)
        self._published.clear()
        self._done.clear()
        self._no_report_before = now + self._config.report_interval
        self._room_asked += room
        self._num_parked += wait
        self._start(self._take_orders(self._broker.report(report), room, wait))

    def _room(self) -> int:
        """Return how many more batches to ask for."""
        held = len(self._assigned) if self._worker.embeds else len(self._received) + self._num_fetching
        # who computes on one may hold the next, and leaves the others to its siblings
        most = min(self._config.prefetch, 2) if self._takes_one_at_a_time else self._config.prefetch
        return max(0, most - held - self._room_asked)

    async def _take_orders(self, answer: Awaitable[Orders], room: int, wait: bool) -> None:
        try:
            orders = await answer
        finally:
            self._room_asked -= room
            self._num_parked -= wait
        self._finished = self._finished or orders.finished
        for stamp in orders.dropped:
            self._dropped.add(stamp)
            self._worker.forget(stamp)
        self._assigned = deque(stamp for stamp in (*self._assigned, *orders.assigned) if stamp not in self._dropped)
        for batch_id, sequence, payloads in orders.payloads:
            stamp = (batch_id, sequence)
            if stamp in self._dropped and self._config.stale_gradients != "apply":
                continue
            if any(isinstance(payload, Ref) for payload in payloads):
                self._num_fetching += 1
                self._start(self._fetch(stamp, payloads))
            else:
                self._received.append((stamp, list(payloads)))

    async def _fetch(self, stamp: Stamp, payloads: tuple[Payload, ...]) -> None:
        try:
            # one payload of a neighbour is there at once: tasks of its own would let the worker report "idle" meanwhile
            gets = [self._worker.opened(payload) for payload in payloads]
            self._received.append((stamp, [await gets[0]] if len(gets) == 1 else list(await asyncio.gather(*gets))))
        except (KeyError, PartyLost) as error:
            # its owner is gone, or has abandoned the batch: the broker assigns it anew
            if isinstance(error, PartyLost):
                _log.warning("%s: batch %d is abandoned: %s", self._worker.name, stamp[0], error)
            if not self._worker.embeds:
                self.publish(stamp, ())
        finally:
            self._num_fetching -= 1

    # --- what is under way ---

    def _start(self, errand: Awaitable[None]) -> None:
        """Let something go on that makes news when it is done."""
        task = asyncio.ensure_future(errand)
        self._under_way.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Future[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
        self._news.set()

    def _check(self) -> None:
        """Forget the news; raise the first failure of what was under way."""
        self._news.clear()
        if self._failure is not None:
            raise self._failure

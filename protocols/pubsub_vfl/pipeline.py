"""A worker's epoch over the broker: it computes while its reports and the payloads that it fetches are under way.

    broker ──orders: batches to embed, references to payloads──▶ todo, fetch ──▶ ready ──▶ compute ──report──▶ broker

    passive worker   todo: embed a batch and publish it         ready: apply its gradient, it is done
    active worker    (none)                                     ready: train on its embeddings, publish the gradients

Who waits for whom: a worker waits for news (orders, a payload) only when it has nothing to compute. Several reports
may be under way; where payloads are fetched at most one of them waits at the broker, and only when the worker has
nothing to compute; where they are sent each waits there until there is something to bring back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fedactors.actors.actor import Actor
from fedactors.actors.context import Ref
from fedactors.actors.remote import SERVER, remote
from fedactors.errors import PartyLost
from protocols.pubsub_vfl.broker import BROKER, Addressee, BatchBroker
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.messages import FirstOrders, Orders, Payload, Report, Stamp

_log = logging.getLogger(__name__)


class Pipeline:
    """What a worker has in hand during an epoch.

    Args:
        worker: whose epoch it is.
        epoch: its number, as the broker was told.
        config: prefetch, the interval between reports, what becomes of stale gradients.
        use: computes on a batch's payloads; returns what to publish, or whether the batch is done.
        embed: embeds a batch and returns what to publish; None at the active party.
        drop: is told of batches that are done with or abandoned, and at the end of all that are then held.
        waits_for: what the timeline calls the wait for news.
        meanwhile: computes something of use where there is nothing else to do; says whether there was something.
        first: batches to embed that are not asked for; None: they are still to come, and none is asked for before.
    """

    def __init__(
        self,
        worker: Actor,
        epoch: int,
        config: PubSubVflConfig,
        *,
        use: Callable[[Stamp, list[Any]], Awaitable[tuple[Payload, ...] | bool]],
        embed: Callable[[Stamp], Awaitable[Payload]] | None = None,
        drop: tuple[Callable[[Stamp], None], Mapping[Stamp, Any]],
        waits_for: str,
        meanwhile: Callable[[], Awaitable[bool]] | None = None,
        first: Iterable[Stamp] | None = (),
    ) -> None:
        self._worker, self.epoch, self._config = worker, epoch, config
        self._use, self._embed = use, embed
        self._drop, self._held = drop
        self._waits_for, self._meanwhile = waits_for, meanwhile
        self._broker = worker.peer(BROKER, BatchBroker)
        self._todo: deque[Stamp] = deque(first or ())
        self._knows_first = first is not None
        self._ready: deque[tuple[Stamp, list[Any]]] = deque()
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

    async def run(self) -> None:
        """Work until the broker says that the epoch is over and all has been reported, or until it is left."""
        self._task = asyncio.current_task()
        try:
            while not self._is_over:
                if self._ready:
                    if self._takes_one_at_a_time:
                        self._report()  # what comes next is to be there when this is done
                    await self._compute(*self._ready.popleft())
                if self._todo:
                    await self._publish(self._todo.popleft())
                self._report()
                if not (self._ready or self._todo or self._is_over or await self._has_other_work()):
                    with self._worker.span("wait", self._waits_for):
                        await self._news.wait()
                self._check()
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
            for stamp in list(self._held):
                self._drop(stamp)

    def begin_with(self, assigned: Iterable[Stamp]) -> None:
        """Take batches to embed that were not asked for."""
        self._knows_first = True
        self._todo.extend(assigned)
        self._news.set()

    def leave(self) -> None:
        """End the epoch here and now: others have done what is in hand."""
        if self._task is not None:
            self._is_left = True
            self._task.cancel()

    async def _has_other_work(self) -> bool:
        """Do a piece of other work, if there is one and no news has come."""
        return self._meanwhile is not None and not self._news.is_set() and await self._meanwhile()

    @property
    def _takes_one_at_a_time(self) -> bool:
        """Whether a report brings at most one batch to train on, so that it must leave before the last is used up."""
        return self._embed is None and self._config.payloads == "sent"

    @property
    def _is_over(self) -> bool:
        return self._finished and not (self._done or self._published)

    async def _compute(self, stamp: Stamp, payloads: list[Any]) -> None:
        found = await self._use(stamp, payloads)
        if isinstance(found, tuple):
            self._published.append((*stamp, found))
        elif found:
            self._done.append(stamp)

    async def _publish(self, stamp: Stamp) -> None:
        assert self._embed is not None
        ref = await self._embed(stamp)
        if stamp in self._dropped:
            self._drop(stamp)
        else:
            self._published.append((*stamp, (ref,)))

    # --- reports and orders ---

    def _report(self) -> None:
        if not self._knows_first:
            return  # what is asked for now would be asked for once more with each batch that is told of first
        in_hand, now = len(self._ready) + len(self._todo), self._worker.clock.now()
        if in_hand > 1 and now < self._no_report_before:
            return  # there is enough to do: collect more before the next report
        held = len(self._ready) + self._num_fetching if self._embed is None else len(self._todo)
        # who computes on one may hold the next, and leaves the others to its siblings
        most = min(self._config.prefetch, 2) if self._takes_one_at_a_time else self._config.prefetch
        room = max(0, most - held - self._room_asked)
        # gradients come to a passive worker that has asked for no more batches
        has_use = room > 0 or (self._embed is not None and not self._num_parked)
        if self._config.payloads == "sent":
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
        self._start(self._exchange(self._broker.report(report), room, wait))

    async def _exchange(self, answer: Awaitable[Orders], room: int, wait: bool) -> None:
        try:
            orders = await answer
        finally:
            self._room_asked -= room
            self._num_parked -= wait
        self._finished = self._finished or orders.finished
        for stamp in orders.dropped:
            self._dropped.add(stamp)
            self._drop(stamp)
        self._todo = deque(stamp for stamp in (*self._todo, *orders.assigned) if stamp not in self._dropped)
        for batch_id, sequence, refs in orders.payloads:
            stamp = (batch_id, sequence)
            if stamp in self._dropped and self._config.stale_gradients != "apply":
                continue
            if self._config.payloads == "sent":
                self._ready.append((stamp, list(refs)))
                continue
            self._num_fetching += 1
            self._start(self._fetch(stamp, refs))

    async def _fetch(self, stamp: Stamp, refs: tuple[Payload, ...]) -> None:
        try:
            # one payload of a neighbour is there at once: tasks of its own would let the worker report "idle" meanwhile
            gets = [self._worker.get(ref) for ref in refs if isinstance(ref, Ref)]
            self._ready.append((stamp, [await gets[0]] if len(gets) == 1 else list(await asyncio.gather(*gets))))
        except (KeyError, PartyLost) as error:
            # its owner is gone, or has abandoned the batch: the broker assigns it anew
            if isinstance(error, PartyLost):
                _log.warning("%s: batch %d is abandoned: %s", self._worker.name, stamp[0], error)
            if self._embed is None:
                self._published.append((*stamp, ()))
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


class Embedder(Addressee):
    """Who embeds batches: what it is to begin with goes to its pipeline."""

    _pipeline: Pipeline | None = None
    _first: FirstOrders | None = None

    @remote(caller=SERVER, only="broker")
    async def take_first(self, orders: FirstOrders) -> None:
        """Begin with these batches, now or when the driver says that the epoch has begun."""
        if self._pipeline is not None and self._pipeline.epoch == orders.epoch:
            self._pipeline.begin_with(orders.assigned)
        else:
            self._first = orders

    def _first_of(self, epoch: int) -> tuple[Stamp, ...] | None:
        """Return, and forget, the batches that came before their epoch did; None if they have not come."""
        first, self._first = self._first, None
        return first.assigned if first is not None and first.epoch == epoch else None

    def _key(self, epoch: int, stamp: Stamp) -> Stamp:
        """Return what a batch is kept by until its gradient comes."""
        return stamp

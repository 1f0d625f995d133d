"""The broker: who works on which batch; and a worker's side of it. It sees batch ids and references; loads no torch.

Where payloads are sent instead of fetched it passes them on, and should then run at the active party.

The life of a batch in an epoch, per sequence number (its attempt):

    queued ─assign (per passive party)─▶ assigned ─publish─▶ published by all ─claim─▶ claimed ─gradients─▶ graded
       ▲                                                                                                    │
       └────────── abandon (deadline, lost worker): sequence + 1 ◀─────────────┐              acknowledge by all ─▶ done

Each batch has an embedding topic and a gradient topic for every passive party: bounded FIFOs of stamped references (p
and q entries; when one is full the oldest entry is discarded), of which the newest is read. A batch is done when every
passive party has acknowledged its gradient: each batch trains exactly once when nothing is abandoned. A step is not
taken back: where a worker, active or passive, had stepped on a batch that is abandoned later, it trains there again.
Who lets a deadline pass is excluded: it gets no more batches of the epoch, which ends without waiting for it.

    broker ──orders: batches to embed, payloads or references──▶ assigned, received ──▶ worker ──report──▶ broker

Who waits for whom: a worker waits for news (orders, a payload) only when it has nothing to compute, and a report at the
broker when there is nothing for it. Several reports may be under way; where payloads are fetched at most one of them
waits, and only if the worker has nothing else to do; where they are sent each does until there is something to bring
back, and the broker tells each passive worker which batches to embed first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fedactors.actors.actor import Server
from fedactors.actors.context import Ref
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.errors import FedactorsError, PartyLost
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.messages import (
    BatchCount,
    EpochCounts,
    InitialOrders,
    LostWorker,
    Orders,
    Payload,
    Report,
    Stamp,
)

if TYPE_CHECKING:
    from fedactors.protocols.pubsub_vfl.actors import PartyWorker, PassiveWorker

BROKER = "broker"
_log = logging.getLogger(__name__)
_RESOLUTION = 1e-9


class NeverEnds(FedactorsError):
    """A batch was assigned `max_attempts` times and never trained."""

    exit_code = 3


Topic = deque[tuple[int, Any]]
"""Entries (sequence, reference), the oldest first; its ``maxlen`` is the buffer."""


@dataclass
class _Slot:
    """One passive party's part in a batch."""

    embeddings: Topic
    gradients: Topic
    worker: str | None = None
    published: bool = False
    acknowledged: bool = False
    is_counted: bool = False
    """Whether it is one of those in flight."""


@dataclass
class _Batch:
    slots: dict[str, _Slot]
    since: float
    sequence: int = 1
    claimed_by: str | None = None
    graded: bool = False
    done: bool = False


@dataclass
class _Box:
    """What a worker is to be told: gradients that wait for it, and batches that are abandoned or done with."""

    gradients: list[Stamp] = field(default_factory=list)
    dropped: list[Stamp] = field(default_factory=list)


class Dispatch:
    """A state machine of events in, decisions out: `now` is an argument, and nothing waits.

    Args:
        config: buffers, window, deadline, attempts, and what becomes of stale gradients.
        parties: names of the passive parties; a worker's name begins with its party's.
    """

    def __init__(self, config: PubSubVflConfig, parties: Sequence[str]) -> None:
        self._config = config
        self._parties = tuple(parties)
        self._applies_stale = config.stale_gradients == "apply"
        self.begin(0, 0.0)

    def begin(self, num_batches: int, now: float, max_in_flight: int = 0) -> None:
        """Start an epoch of the batches 0 to `num_batches` - 1, so many of a party in flight; 0: as many as are set."""
        self.max_in_flight = max_in_flight or self._config.max_in_flight
        p, q = self._config.embedding_buffer, self._config.gradient_buffer
        self._batches = {
            batch_id: _Batch({party: _Slot(deque(maxlen=p), deque(maxlen=q)) for party in self._parties}, now)
            for batch_id in range(num_batches)
        }
        self._queues = {party: deque(self._batches) for party in self._parties}
        self._ready: deque[int] = deque()
        self._in_flight = dict.fromkeys(self._parties, 0)
        self._num_assigned: dict[str, int] = {}
        self._num_open = num_batches
        self._publishers: dict[tuple[str, Stamp], dict[str, str | None]] = {}
        self._boxes: defaultdict[str, _Box] = defaultdict(_Box)
        self._num_abandoned = 0
        self._num_discarded = 0
        self._seen: dict[str, set[str]] = {}
        self._excluded: set[str] = set()

    @property
    def finished(self) -> bool:
        """Whether every batch of the epoch is done."""
        return self._num_open == 0

    def counts(self) -> EpochCounts:
        """Return what happened so far in this epoch."""
        batches, excluded = self._batches.values(), tuple(sorted(self._excluded))
        trained, attempts = sum(batch.done for batch in batches), max((one.sequence for one in batches), default=0)
        return EpochCounts(trained, self._num_abandoned, self._num_discarded, attempts, excluded)

    # --- a worker's report, and what it is told ---

    def take(self, worker: str, report: Report, now: float) -> None:
        """Take what a worker has done."""
        for batch_id, sequence, refs in report.published:
            if not refs:
                self.give_up(worker, batch_id, sequence, now)
            elif _party(worker) in self._parties:
                self.publish(worker, batch_id, sequence, refs[0], now)
            else:
                self.publish_gradients(worker, batch_id, sequence, refs, now)
        for batch_id, sequence in report.done:
            self.acknowledge(worker, batch_id, sequence, now)

    def orders(self, worker: str, report: Report, now: float) -> Orders | None:
        """Return what there is for a worker now; None if it may wait and there is nothing worth waking it for."""
        room, wait = report.room, report.wait
        if _party(worker) in self._parties:
            gradients, dropped = self.outbox(worker)
            # gradients are on their way to a worker with enough under way: new batches come with the next of them
            will_hear = wait and self.in_flight_of(worker) > room and not (gradients or dropped)
            will_hear = will_hear and not self._config.sends_payloads
            assigned = () if will_hear else self.assign(worker, room, now)
            told = bool(assigned or gradients or dropped or self.finished)
            return Orders(assigned, gradients, dropped, self.finished) if told or not wait else None
        # whose reports wait all the time gets one at a time: the first to ask would take what others could begin with
        claims = self.claim(worker, room if not self._config.sends_payloads else min(room, 1), now)
        # to free a payload is not worth waking a worker for
        if wait and not (claims or self.finished):
            return None
        return Orders((), claims, self.outbox(worker)[1], self.finished)

    def outbox(self, worker: str) -> tuple[tuple[tuple[int, int, tuple[Any, ...]], ...], tuple[Stamp, ...]]:
        """Return, and forget, the gradients that wait for a worker and the batches that it may forget.

        Gradients of abandoned attempts are told of only if they are applied.
        """
        box = self._boxes.pop(worker, None)
        if box is None:
            return (), ()
        found = []
        for batch_id, sequence in box.gradients:
            entries = dict(self._batches[batch_id].slots[_party(worker)].gradients)
            if sequence in entries and (self._applies_stale or self._current(batch_id, sequence) is not None):
                found.append((batch_id, sequence, (entries[sequence],)))
        return tuple(found), tuple(box.dropped)

    # --- the passive side ---

    def can_assign(self, party: str) -> bool:
        """Say whether a worker of `party` would be given a batch now."""
        return bool(self._queues[party]) and self._in_flight[party] < self.max_in_flight

    def in_flight_of(self, worker: str) -> int:
        """Return how many batches of a passive worker are assigned or published and not yet acknowledged."""
        return self._num_assigned.get(worker, 0)

    def assign(self, worker: str, room: int, now: float) -> tuple[Stamp, ...]:
        """Give a passive worker up to `room` batches to embed."""
        party = _party(worker)
        given: list[Stamp] = []
        while self._may_have_more(worker) and len(given) < room and self.can_assign(party):
            batch_id = self._queues[party].popleft()
            batch = self._batches[batch_id]
            batch.slots[party].worker, batch.slots[party].is_counted = worker, True
            batch.since = now
            self._in_flight[party] += 1
            self._num_assigned[worker] = self._num_assigned.get(worker, 0) + 1
            given.append((batch_id, batch.sequence))
        return tuple(given)

    def publish(self, worker: str, batch_id: int, sequence: int, value: Any, now: float) -> bool:
        """Take an embedding into its topic; return False when the batch was abandoned meanwhile."""
        batch = self._current(batch_id, sequence)
        if batch is None or batch.slots[_party(worker)].worker != worker:
            return False
        slot = batch.slots[_party(worker)]
        self._append(slot.embeddings, sequence, value)
        if not slot.published:
            slot.published = True
            batch.since = now
            if all(s.published for s in batch.slots.values()):
                self._ready.append(batch_id)
        return True

    def acknowledge(self, worker: str, batch_id: int, sequence: int, now: float) -> bool:
        """Note that a gradient was applied; return False when the batch was abandoned meanwhile."""
        batch, party = self._current(batch_id, sequence), _party(worker)
        if batch is None or not batch.graded:
            return False
        slot = batch.slots[party]
        if slot.worker != worker or slot.acknowledged:
            return False
        slot.acknowledged = True
        batch.since = now
        self._uncount(party, slot)
        if all(s.acknowledged for s in batch.slots.values()):
            batch.done = True
            self._num_open -= 1
            self._drop(batch.claimed_by, (batch_id, sequence))
        return True

    # --- the active side ---

    def claim(self, worker: str, room: int, now: float) -> tuple[tuple[int, int, tuple[Any, ...]], ...]:
        """Give an active worker up to `room` batches: (batch id, sequence, the newest embedding of each party)."""
        given: list[tuple[int, int, tuple[Any, ...]]] = []
        while self._may_have_more(worker) and len(given) < room and self._ready:
            batch_id = self._ready.popleft()
            batch = self._batches[batch_id]
            batch.claimed_by = worker
            batch.since = now
            given.append((batch_id, batch.sequence, tuple(slot.embeddings[-1][1] for slot in batch.slots.values())))
        return tuple(given)

    def publish_gradients(self, worker: str, batch_id: int, sequence: int, values: Sequence[Any], now: float) -> bool:
        """Take a batch's gradients, one per passive party; return False when it was abandoned meanwhile."""
        batch = self._current(batch_id, sequence)
        if batch is not None:
            if batch.claimed_by != worker or batch.graded:
                return False
            batch.graded = True
            batch.since = now
            readers = {party: slot.worker for party, slot in batch.slots.items()}
            if self._config.sends_payloads:
                # the gradient takes the order for the next batch along: the acknowledgement would come too late for it
                for party, slot in batch.slots.items():
                    self._uncount(party, slot)
        else:
            readers = self._publishers.pop((worker, (batch_id, sequence)), {})
        for (party, reader), value in zip(readers.items(), values, strict=bool(readers)):
            self._append(self._batches[batch_id].slots[party].gradients, sequence, value)
            if reader is not None:
                self._boxes[reader].gradients.append((batch_id, sequence))
        return batch is not None

    # --- time and loss ---

    def next_look(self, now: float) -> float | None:
        """Return when to call `expire` next: the first deadline of a batch that somebody holds; None for never."""
        if math.isinf(self._config.deadline):
            return None
        held = [batch.since for batch in self._batches.values() if _is_held(batch)]
        return min(held, default=now) + self._config.deadline

    def expire(self, now: float) -> tuple[int, ...]:
        """Abandon every held batch that has not moved for the deadline, and fence who kept it; return their ids."""
        # a timer may fire one rounding error before the time it was set for
        reached = now + _RESOLUTION * max(1.0, abs(now)) - self._config.deadline
        late = [i for i, batch in self._batches.items() if _is_held(batch) and batch.since <= reached]
        if self._config.exclude_stragglers:
            self._exclude({worker for batch_id in late for worker in _waited_for(self._batches[batch_id])})
        for batch_id in late:
            self._abandon(batch_id, now)
        return tuple(late)

    def _may_have_more(self, worker: str) -> bool:
        self._seen.setdefault(_party(worker), set()).add(worker)
        return worker not in self._excluded

    def _exclude(self, workers: set[str]) -> None:
        """Give these workers no more of this epoch; where all of a party's are late, it is not they who are slow."""
        self._excluded |= workers
        for seen in self._seen.values():
            if seen <= self._excluded:
                self._excluded -= seen

    def lose(self, worker: str, now: float) -> tuple[int, ...]:
        """Abandon every batch that a lost worker held or whose payload died with it; return their ids."""
        held = [
            i
            for i, batch in self._batches.items()
            if not batch.done
            and (
                batch.claimed_by == worker
                or any(s.worker == worker and not s.acknowledged for s in batch.slots.values())
            )
        ]
        for batch_id in held:
            self._abandon(batch_id, now)
        self._boxes.pop(worker, None)
        return tuple(held)

    def give_up(self, worker: str, batch_id: int, sequence: int, now: float) -> bool:
        """Abandon a batch that a worker holds and whose payload it could not get."""
        batch = self._current(batch_id, sequence)
        if batch is None or worker not in (batch.claimed_by, *(slot.worker for slot in batch.slots.values())):
            return False
        self._abandon(batch_id, now)
        return True

    def _abandon(self, batch_id: int, now: float) -> None:
        batch, config = self._batches[batch_id], self._config
        if batch.sequence >= config.max_attempts:
            raise NeverEnds(
                f"batch {batch_id} was assigned {batch.sequence} times without being trained within the deadline of "
                f"{config.deadline:g} s: raise deadline, or lower max_in_flight"
            )
        stamp = (batch_id, batch.sequence)
        publishers = {party: slot.worker for party, slot in batch.slots.items()}
        for party, slot in batch.slots.items():
            self._uncount(party, slot)
            self._drop(slot.worker, stamp)
            slot.worker, slot.published, slot.acknowledged = None, False, False
        if self._applies_stale and batch.claimed_by is not None and not batch.graded:
            self._publishers[batch.claimed_by, stamp] = publishers
        else:
            self._drop(batch.claimed_by, stamp)
        batch.sequence, batch.since, batch.claimed_by, batch.graded = batch.sequence + 1, now, None, False
        for queue in (self._ready, *self._queues.values()):
            if batch_id in queue:
                queue.remove(batch_id)
        for queue in self._queues.values():
            queue.appendleft(batch_id)
        self._num_abandoned += 1

    def _uncount(self, party: str, slot: _Slot) -> None:
        """Let a batch be no longer in flight, if it is."""
        if slot.is_counted and slot.worker is not None:
            slot.is_counted = False
            self._in_flight[party] -= 1
            self._num_assigned[slot.worker] -= 1

    def _current(self, batch_id: int, sequence: int) -> _Batch | None:
        batch = self._batches.get(batch_id)
        if batch is None or batch.sequence != sequence or batch.done:
            return None
        return batch

    def _append(self, topic: Topic, sequence: int, value: Any) -> None:
        self._num_discarded += len(topic) == topic.maxlen
        topic.append((sequence, value))

    def _drop(self, worker: str | None, stamp: Stamp) -> None:
        if worker is not None:
            self._boxes[worker].dropped.append(stamp)


def _party(worker: str) -> str:
    return worker.partition("/")[0]


def _is_held(batch: _Batch) -> bool:
    return not batch.done and any(slot.worker is not None for slot in batch.slots.values())


def _waited_for(batch: _Batch) -> set[str]:
    """Return the workers that a batch waits for: nobody while it waits to be claimed."""
    if batch.graded:
        late = {slot.worker for slot in batch.slots.values() if not slot.acknowledged}
    elif batch.claimed_by is not None:
        late = {batch.claimed_by}
    else:
        late = {slot.worker for slot in batch.slots.values() if not slot.published}
    return {worker for worker in late if worker is not None}


class BatchBroker(Server):
    """Runs a `Dispatch` between workers.

    Args:
        config: the run's settings.
        active_party: name of the party that has the labels.
        passive_parties: names of the passive parties.
    """

    def __init__(self, config: PubSubVflConfig, active_party: str, passive_parties: Sequence[str]) -> None:
        self._config = config
        self._parties = (active_party, *passive_parties)
        self._dispatch = Dispatch(config, passive_parties)
        self._parked: list[tuple[str, Report, asyncio.Future[Orders]]] = []
        self._over = asyncio.Event()
        self._epoch = 0

    @remote(caller=DRIVER, unbounded="the broker has no rows")
    async def begin_epoch(self, batches: BatchCount) -> None:
        """Put the batches of an epoch in the queue; only then may workers report."""
        self._dispatch.begin(batches.num_batches, self.clock.now(), batches.max_in_flight)
        self._epoch = batches.epoch
        self._over.clear()
        for party in self._parties[1:]:
            for index in range(self._config.num_passive_workers):
                self._begin(f"{party}/worker-{index}")

    def _begin(self, worker: str) -> None:
        """Assign a passive worker what it embeds first, where payloads are sent: to ask for it takes another way."""
        config = self._config
        if config.sends_payloads:
            most = min(config.prefetch, max(1, self._dispatch.max_in_flight // config.num_passive_workers))
            assigned = self._dispatch.assign(worker, most, self.clock.now())
            self.background(self._tell(worker, InitialOrders(self._epoch, assigned)))

    async def _tell(self, worker: str, orders: InitialOrders) -> None:
        passive = cast("PassiveWorker", self.peer(worker, object))  # its module loads torch
        with contextlib.suppress(PartyLost):  # `lose` gives its batches to others
            await passive.take_first(orders)

    @remote(caller=DRIVER, unbounded="the broker has no rows")
    async def serve_epoch(self) -> EpochCounts:
        """See the epoch to its end, abandoning batches at their deadlines."""
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
        return dispatch.counts()

    @property
    def parties(self) -> tuple[str, ...]:
        """Those that take part in the training."""
        return self._parties

    @remote(caller=CLIENT, only="parties", unbounded="the broker has no rows")
    async def report(self, report: Report) -> Orders:
        """Take what the worker that calls has done; return its orders, waiting for some if the report says so."""
        worker = self.caller
        if report.epoch != self._epoch:
            # sent before its sender was made to leave: batches of this epoch have the same numbers
            return Orders((), (), (), True)
        self._dispatch.take(worker, report, self.clock.now())
        self._wake()
        orders = self._dispatch.orders(worker, report, self.clock.now())
        if orders is not None:
            return orders
        answer: asyncio.Future[Orders] = asyncio.get_running_loop().create_future()
        self._parked.append((worker, report, answer))
        return await answer

    @remote(caller=DRIVER, unbounded="the broker has no rows")
    async def lose(self, lost: LostWorker) -> None:
        """Give the batches of a lost worker to others."""
        for worker, _, answer in self._parked:
            if worker == lost.worker:
                answer.set_result(Orders((), (), (), False))
        self._parked = [parked for parked in self._parked if parked[0] != lost.worker]
        self._dispatch.lose(lost.worker, self.clock.now())
        self._wake()
        if _party(lost.worker) in self._parties[1:]:
            self._begin(lost.worker)

    def _wake(self) -> None:
        """Answer the parked reports for which there is something now, in the order in which they came."""
        if self._dispatch.finished:
            self._over.set()
        waiting = []
        for parked in self._parked:
            worker, report, answer = parked
            orders = self._dispatch.orders(worker, report, self.clock.now())
            if orders is None:
                waiting.append(parked)
            else:
                answer.set_result(orders)
        self._parked = waiting


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

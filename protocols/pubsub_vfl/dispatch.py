"""Who works on which batch: a state machine of events in, decisions out (`now` is an argument; no waiting, no I/O).

The life of a batch in an epoch, per sequence number (its attempt):

    queued ─assign (per passive party)─▶ assigned ─publish─▶ published by all ─claim─▶ claimed ─gradients─▶ graded
       ▲                                                                                                    │
       └────────── abandon (deadline, lost worker): sequence + 1 ◀─────────────┐              acknowledge by all ─▶ done

Each topic is a bounded FIFO (`fedactors.channels.topics.Topic`). A batch is done when every passive party has
acknowledged its gradient: each batch trains exactly once when nothing is abandoned; an active worker may have stepped
already on a batch that is abandoned later, so that on its side a batch trains at least once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedactors.channels.topics import Entry, Topic
from fedactors.errors import FedactorsError

_RESOLUTION = 1e-9


class NeverEnds(FedactorsError):
    """A batch was assigned `max_attempts` times and never trained."""

    exit_code = 3


@dataclass
class _Slot:
    """One passive party's part in a batch's present attempt."""

    worker: str | None = None
    published: bool = False
    acknowledged: bool = False


@dataclass
class _Batch:
    sequence: int = 1
    since: float = 0.0
    slots: dict[str, _Slot] = field(default_factory=dict)
    embeddings: dict[str, Topic] = field(default_factory=dict)
    gradients: dict[str, Topic] = field(default_factory=dict)
    claimed_by: str | None = None
    graded: bool = False
    done: bool = False


@dataclass(frozen=True)
class Outbox:
    """What a worker is to be told at its next report."""

    gradients: tuple[tuple[int, int, Any], ...] = ()
    abandoned: tuple[tuple[int, int], ...] = ()
    released: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Counts:
    """What happened in an epoch."""

    abandoned: int
    discarded: int
    max_sequence: int


class Dispatch:
    """See the module.

    Args:
        parties: names of the passive parties.
        embedding_buffer, gradient_buffer: entries that a topic keeps (p, q).
        max_in_flight: batches per passive party assigned or published and not yet acknowledged.
        deadline: seconds after which a batch that does not move is abandoned (T_ddl; inf: never).
        max_attempts: assignments of one batch after which `NeverEnds` is raised.
        applies_stale: whether gradients of abandoned attempts go to their publishers all the same.
    """

    def __init__(
        self,
        parties: Sequence[str],
        *,
        embedding_buffer: int,
        gradient_buffer: int,
        max_in_flight: int,
        deadline: float,
        max_attempts: int,
        applies_stale: bool = False,
    ) -> None:
        self._parties = tuple(parties)
        self._embedding_buffer = embedding_buffer
        self._gradient_buffer = gradient_buffer
        self._max_in_flight = max_in_flight
        self._deadline = deadline
        self._max_attempts = max_attempts
        self._applies_stale = applies_stale
        self.begin(0, 0.0)

    def begin(self, num_batches: int, now: float) -> None:
        """Start an epoch of the batches 0 to `num_batches` - 1."""
        self._batches = {batch_id: self._fresh(now) for batch_id in range(num_batches)}
        self._queues = {party: deque(self._batches) for party in self._parties}
        self._ready: deque[int] = deque()
        self._in_flight = dict.fromkeys(self._parties, 0)
        self._own: dict[str, int] = {}
        self._num_open = num_batches
        self._publishers: dict[tuple[int, int], dict[str, str | None]] = {}
        self._gradients: dict[str, list[tuple[int, int, Any]]] = {}
        self._abandoned: dict[str, list[tuple[int, int]]] = {}
        self._released: dict[str, list[tuple[int, int]]] = {}
        self._num_abandoned = 0
        self._num_discarded = 0

    def _fresh(self, now: float) -> _Batch:
        return _Batch(
            since=now,
            slots={party: _Slot() for party in self._parties},
            embeddings={party: Topic(self._embedding_buffer) for party in self._parties},
            gradients={party: Topic(self._gradient_buffer) for party in self._parties},
        )

    @property
    def finished(self) -> bool:
        """Whether every batch of the epoch is done."""
        return self._num_open == 0

    def counts(self) -> Counts:
        """Return what happened so far in this epoch."""
        return Counts(
            self._num_abandoned, self._num_discarded, max((b.sequence for b in self._batches.values()), default=0)
        )

    # --- the passive side ---

    def can_assign(self, party: str) -> bool:
        """Say whether a worker of `party` would be given a batch now."""
        return bool(self._queues[party]) and self._in_flight[party] < self._max_in_flight

    def in_flight_of(self, worker: str) -> int:
        """Return how many batches of a passive worker are assigned or published and not yet acknowledged."""
        return self._own.get(worker, 0)

    def assign(self, party: str, worker: str, room: int, now: float) -> tuple[tuple[int, int], ...]:
        """Give a worker up to `room` batches to embed: (batch id, sequence)."""
        given: list[tuple[int, int]] = []
        while len(given) < room and self.can_assign(party):
            batch_id = self._queues[party].popleft()
            batch = self._batches[batch_id]
            batch.slots[party].worker = worker
            batch.since = now
            self._in_flight[party] += 1
            self._own[worker] = self._own.get(worker, 0) + 1
            given.append((batch_id, batch.sequence))
        return tuple(given)

    def publish(self, party: str, worker: str, batch_id: int, sequence: int, value: Any, now: float) -> bool:
        """Take an embedding into its topic; return False when the batch was abandoned meanwhile."""
        batch = self._current(batch_id, sequence)
        if batch is None or batch.slots[party].worker != worker:
            return False
        if batch.embeddings[party].publish(Entry(worker, sequence, now, value)) is not None:
            self._num_discarded += 1
        slot = batch.slots[party]
        if not slot.published:
            slot.published = True
            batch.since = now
            if all(s.published for s in batch.slots.values()):
                self._ready.append(batch_id)
        return True

    def acknowledge(self, party: str, worker: str, batch_id: int, sequence: int, now: float) -> bool:
        """Note that a gradient was applied; return False when the batch was abandoned meanwhile."""
        batch = self._current(batch_id, sequence)
        if batch is None or not batch.graded:
            return False
        slot = batch.slots[party]
        if slot.worker != worker or slot.acknowledged:
            return False
        slot.acknowledged = True
        batch.since = now
        self._in_flight[party] -= 1
        self._own[worker] -= 1
        if all(s.acknowledged for s in batch.slots.values()):
            batch.done = True
            self._num_open -= 1
            self._tell(self._released, batch.claimed_by, (batch_id, sequence))
        return True

    # --- the active side ---

    def can_claim(self) -> bool:
        """Say whether a batch waits for an active worker."""
        return bool(self._ready)

    def claim(self, worker: str, room: int, now: float) -> tuple[tuple[int, int, tuple[Any, ...]], ...]:
        """Give an active worker up to `room` batches: (batch id, sequence, the newest embedding of each party)."""
        given: list[tuple[int, int, tuple[Any, ...]]] = []
        while len(given) < room and self._ready:
            batch_id = self._ready.popleft()
            batch = self._batches[batch_id]
            batch.claimed_by = worker
            batch.since = now
            entries = [batch.embeddings[party].take(worker) for party in self._parties]
            given.append((batch_id, batch.sequence, tuple(e.value for e in entries if e is not None)))
        return tuple(given)

    def publish_gradients(self, worker: str, batch_id: int, sequence: int, values: Sequence[Any], now: float) -> bool:
        """Take a batch's gradients, one per passive party; return False when it was abandoned meanwhile."""
        batch = self._current(batch_id, sequence)
        if batch is None:
            publishers = self._publishers.pop((batch_id, sequence), {})
            for party, value in zip(self._parties, values, strict=True):
                self._tell(self._gradients, publishers.get(party), (batch_id, sequence, value))
            return False
        if batch.claimed_by != worker or batch.graded:
            return False
        batch.graded = True
        batch.since = now
        for party, value in zip(self._parties, values, strict=True):
            if batch.gradients[party].publish(Entry(worker, sequence, now, value)) is not None:
                self._num_discarded += 1
            reader = batch.slots[party].worker
            entry = batch.gradients[party].take(str(reader))
            if entry is not None:
                self._tell(self._gradients, reader, (batch_id, sequence, entry.value))
        return True

    # --- outboxes ---

    def outbox(self, worker: str) -> Outbox:
        """Return, and forget, what a worker is to be told; gradients of abandoned attempts only if they are applied."""
        gradients = self._gradients.pop(worker, [])
        if not self._applies_stale:
            gradients = [g for g in gradients if self._current(g[0], g[1]) is not None]
        return Outbox(tuple(gradients), tuple(self._abandoned.pop(worker, [])), tuple(self._released.pop(worker, [])))

    def keep_released(self, worker: str, stamps: Sequence[tuple[int, int]]) -> None:
        """Put back releases that a worker was not told of after all."""
        self._released.setdefault(worker, [])[:0] = stamps

    # --- time and loss ---

    def next_look(self, now: float) -> float | None:
        """Return when to call `expire` next: the first deadline of a batch that somebody holds; None for never."""
        if math.isinf(self._deadline):
            return None
        held = [batch.since for batch in self._batches.values() if self._is_held(batch)]
        return min(held, default=now) + self._deadline

    def expire(self, now: float) -> tuple[int, ...]:
        """Abandon every held batch that has not moved for the deadline; return their ids."""
        if math.isinf(self._deadline):
            return ()
        # a timer may fire one rounding error before the time it was set for
        reached = now + _RESOLUTION * max(1.0, abs(now))
        late = [i for i, b in self._batches.items() if self._is_held(b) and b.since + self._deadline <= reached]
        for batch_id in late:
            self._abandon(batch_id, now)
        return tuple(late)

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
        for told in (self._gradients, self._abandoned, self._released):
            told.pop(worker, None)
        return tuple(held)

    def give_up(self, batch_id: int, sequence: int, now: float) -> bool:
        """Abandon a batch whose payload a worker could not get."""
        if self._current(batch_id, sequence) is None:
            return False
        self._abandon(batch_id, now)
        return True

    def _abandon(self, batch_id: int, now: float) -> None:
        batch = self._batches[batch_id]
        if batch.sequence >= self._max_attempts:
            raise NeverEnds(
                f"batch {batch_id} was assigned {batch.sequence} times without being trained within the deadline of "
                f"{self._deadline:g} s: raise deadline, or lower max_in_flight"
            )
        stamp = (batch_id, batch.sequence)
        for party, slot in batch.slots.items():
            if slot.worker is not None and not slot.acknowledged:
                self._in_flight[party] -= 1
                self._own[slot.worker] -= 1
            self._tell(self._abandoned, slot.worker, stamp)
        if self._applies_stale and batch.claimed_by is not None and not batch.graded:
            self._publishers[stamp] = {party: slot.worker for party, slot in batch.slots.items()}
        else:
            self._tell(self._released, batch.claimed_by, stamp)
        if batch_id in self._ready:
            self._ready.remove(batch_id)
        fresh = self._fresh(now)
        fresh.sequence = batch.sequence + 1
        self._batches[batch_id] = fresh
        for queue in self._queues.values():
            if batch_id in queue:
                queue.remove(batch_id)
            queue.appendleft(batch_id)
        self._num_abandoned += 1

    def _is_held(self, batch: _Batch) -> bool:
        return not batch.done and any(slot.worker is not None for slot in batch.slots.values())

    def _current(self, batch_id: int, sequence: int) -> _Batch | None:
        batch = self._batches.get(batch_id)
        if batch is None or batch.sequence != sequence or batch.done:
            return None
        return batch

    @staticmethod
    def _tell(box: dict[str, list[Any]], worker: str | None, item: Any) -> None:
        if worker is not None:
            box.setdefault(worker, []).append(item)

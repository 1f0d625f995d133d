"""Topics as a state machine: events in, decisions out; no clock, no waiting, no I/O.

A topic is a bounded FIFO of stamped entries under (channel, key), for instance ("embedding", batch id). When it is
full the oldest entry is discarded. A subscriber takes the newest entry that it has not read.

    publish ──▶ Topic ──▶ take (an entry now, or a parked take that a later publish answers, or that expires)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from fedactors.errors import BadInput


@dataclass(frozen=True, slots=True)
class Entry:
    """A published value with its stamp; `sequence` is the publisher's."""

    publisher: str
    sequence: int
    time: float
    value: Any


class Topic:
    """A bounded FIFO of entries, and what each subscriber has read of it.

    Args:
        capacity: entries kept; at least 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise BadInput(f"buffer_size: {capacity} is not allowed: it must be 1 or more")
        self._entries: deque[tuple[int, Entry]] = deque()
        self._capacity = capacity
        self._count = 0
        self._read: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> tuple[Entry, ...]:
        """Return what is kept, oldest first."""
        return tuple(entry for _, entry in self._entries)

    def publish(self, entry: Entry) -> Entry | None:
        """Append an entry; return the oldest one if it had to be discarded."""
        self._count += 1
        self._entries.append((self._count, entry))
        if len(self._entries) > self._capacity:
            return self._entries.popleft()[1]
        return None

    def take(self, subscriber: str) -> Entry | None:
        """Return the newest entry that `subscriber` has not read, and count all older ones as read."""
        if not self._entries or self._entries[-1][0] <= self._read.get(subscriber, 0):
            return None
        number, entry = self._entries[-1]
        self._read[subscriber] = number
        return entry


@dataclass(frozen=True, slots=True)
class Parked:
    """A take that waits: `expires` is when it gives up."""

    number: int
    subscriber: str
    channel: str
    key: Hashable
    expires: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """A parked take and the entry that answers it."""

    parked: Parked
    entry: Entry


class Topics:
    """All topics of a broker, created as they are named, and the takes parked on them.

    Args:
        buffer_size: entries that each topic keeps.
    """

    def __init__(self, buffer_size: int) -> None:
        Topic(buffer_size)  # refuses a size that is not allowed before anything is published
        self._buffer_size = buffer_size
        self._topics: dict[tuple[str, Hashable], Topic] = {}
        self._parked: dict[tuple[str, Hashable], list[Parked]] = {}
        self._next = 0
        self.num_discarded = 0

    def publish(self, channel: str, key: Hashable, entry: Entry) -> list[Delivery]:
        """Publish an entry and return the parked takes that it answers, in the order in which they were parked."""
        topic = self._topic(channel, key)
        if topic.publish(entry) is not None:
            self.num_discarded += 1
        deliveries = []
        for parked in self._parked.pop((channel, key), []):
            found = topic.take(parked.subscriber)
            if found is None:
                self._parked.setdefault((channel, key), []).append(parked)
            else:
                deliveries.append(Delivery(parked, found))
        return deliveries

    def take(self, subscriber: str, channel: str, key: Hashable, now: float, patience: float) -> Entry | Parked:
        """Return an unread entry, or park the take until `now` + `patience`."""
        found = self._topic(channel, key).take(subscriber)
        if found is not None:
            return found
        self._next += 1
        parked = Parked(self._next, subscriber, channel, key, now + patience)
        self._parked.setdefault((channel, key), []).append(parked)
        return parked

    def expire(self, parked: Parked) -> None:
        """Forget a parked take."""
        waiting = self._parked.get((parked.channel, parked.key), [])
        if parked in waiting:
            waiting.remove(parked)

    def close(self, channel: str, key: Hashable) -> None:
        """Forget a topic."""
        self._topics.pop((channel, key), None)
        self._parked.pop((channel, key), None)

    def _topic(self, channel: str, key: Hashable) -> Topic:
        topic = self._topics.get((channel, key))
        if topic is None:
            topic = self._topics[(channel, key)] = Topic(self._buffer_size)
        return topic

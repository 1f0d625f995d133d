"""The broker actor: channels between parties as an object of the user's.

    publisher ──publish(channel, key, sequence, value)──▶ Broker ◀──take(channel, key, deadline)── subscriber

Who waits for whom: a subscriber waits for the newest unread entry of its topic, at most its deadline; a publisher never
waits. A value is a small message or the reference of a payload (`Actor.put`): payloads do not pass through the broker.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fedactors.channels.topics import Entry, Parked, Topics
from fedactors.network.codec import message
from fedactors.roles import Server


@message(receiver="broker", reveals="that the publisher has an entry for this topic, and its size if it is a reference")
class Publish:
    """An entry for a topic; `value` is a small message or a payload reference."""

    channel: str
    key: int | str
    publisher: str
    sequence: int
    value: Any


@message(receiver="broker", reveals="that the subscriber waits for this topic")
class Take:
    """A request for the newest unread entry of a topic, good for `deadline` seconds."""

    channel: str
    key: int | str
    subscriber: str
    deadline: float


@message(receiver="subscriber", reveals="what the publisher's message reveals")
class Taken:
    """The entry taken."""

    publisher: str
    sequence: int
    time: float
    value: Any


class Broker(Server):
    """Holds the topics of some channels.

    Args:
        buffer_size: entries kept per topic; the oldest is discarded when one more is published.
    """

    def __init__(self, buffer_size: int = 5) -> None:
        self._topics = Topics(buffer_size)
        self._waiting: dict[int, asyncio.Future[Entry]] = {}

    async def publish(self, entry: Publish) -> None:
        """Append an entry to its topic and wake whoever waits for it."""
        stamped = Entry(entry.publisher, entry.sequence, self.clock.now(), entry.value)
        for delivery in self._topics.publish(entry.channel, entry.key, stamped):
            waiting = self._waiting.pop(delivery.parked.number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(delivery.entry)

    async def take(self, request: Take) -> Taken | None:
        """Return the newest unread entry of a topic, or None when none came before the deadline."""
        found = self._topics.take(request.subscriber, request.channel, request.key, self.clock.now(), request.deadline)
        if isinstance(found, Parked):
            future: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
            self._waiting[found.number] = future
            try:
                async with self.clock.timeout(request.deadline):
                    entry = await future
            except TimeoutError:
                self._topics.expire(found)
                return None
            finally:
                self._waiting.pop(found.number, None)
        else:
            entry = found
        return Taken(entry.publisher, entry.sequence, entry.time, entry.value)

    async def close_topic(self, channel: str, key: int | str) -> None:
        """Forget a topic that nobody needs any more."""
        self._topics.close(channel, key)

"""A worker's reports to the broker, sent ahead: the worker computes while the answers are under way.

    worker ──report──▶ broker        several reports may be under way; at most one of them waits at the broker,
       ▲                 │           and only when the worker has nothing to compute
       └────orders───────┘

Who waits for whom: a worker waits for `news` (an answer, a payload) only when it has nothing to compute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class Reports:
    """What a worker has under way during an epoch: reports, and payloads that it fetches ahead.

    Args:
        interval: seconds between two reports of a worker that has enough to do.
    """

    def __init__(self, interval: float = 0.0) -> None:
        self._interval = interval
        self._not_before = 0.0
        self.room_asked = 0
        """Batches asked for in reports that are not answered yet."""
        self.parked = False
        """Whether a report waits at the broker for something to do."""
        self._under_way: set[asyncio.Future[Any]] = set()
        self._news = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._under_way)

    def may_wait(self, num_held: int, now: float) -> bool:
        """Say whether a worker that holds `num_held` batches had better collect more before it reports."""
        return num_held > 1 and now < self._not_before

    def sent(self, now: float) -> None:
        """Note that a report was sent."""
        self._not_before = now + self._interval

    def send(self, report: Awaitable[Any], room: int, wait: bool, take: Callable[[Any], None]) -> None:
        """Send a report that asks for `room` batches; `take` gets the orders that answer it."""
        self.room_asked += room
        self.parked = self.parked or wait

        async def exchange() -> None:
            try:
                orders = await report
            finally:
                self.room_asked -= room
                if wait:
                    self.parked = False
            take(orders)

        self.start(exchange())

    def start(self, errand: Awaitable[None]) -> None:
        """Let something go on that makes news when it is done."""
        task = asyncio.ensure_future(errand)
        self._under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()
        self._news.set()

    async def wait_for_news(self) -> None:
        """Wait until something that was under way is done; raise what it raised."""
        await self._news.wait()
        self.check()

    def check(self) -> None:
        """Forget the news; raise the first failure of what was under way."""
        self._news.clear()
        if self._failure is not None:
            raise self._failure

    async def finish(self) -> None:
        """Wait for all that is under way."""
        while self.busy:
            await self.wait_for_news()
        self.check()

    def cancel(self) -> None:
        """Stop waiting for anything."""
        for task in list(self._under_way):
            task.cancel()

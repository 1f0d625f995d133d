"""The wire between simulated actors: calls, replies and payloads that take the time of their links.

A call is frozen, recorded and under way when it is made; its receiver runs it in a task of its own after the link's
latency and bytes over bandwidth (shared among the transfers in flight where a host's capacity is finite).
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from fedactors.errors import BadInput, PartyLost
from fedactors.network.codec import HEADER_BYTES, freeze, type_name
from fedactors.network.ledger import DRIVER as DRIVER_KIND
from fedactors.network.ledger import kind_of
from fedactors.network.links import Link, SharedTransfers
from fedactors.runtime.base import DRIVER, as_party_error, first_error
from fedactors.runtime.simulation.actor import SimulatedContext
from fedactors.runtime.simulation.virtual_loop import finish

if TYPE_CHECKING:
    from fedactors.runtime.simulated import SimulatedRuntime

Route = tuple[str, Link, bool]
"""Kind of traffic, link, and whether a host's finite capacity limits it."""


class Wire:
    """What is under way between the actors of `runtime`."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.calls: dict[int, tuple[str, str, str, asyncio.Task[Any]]] = {}
        """Calls not yet answered: (sender, receiver, method, the receiver's task) by number."""
        self.arrivals: dict[int, asyncio.Future[None]] = {}
        self._runtime = runtime
        self._num_sent = 0
        self.reroute()

    def reroute(self) -> None:
        """Forget the routes taken so far: the network is another one."""
        self.routes: dict[tuple[str, str], Route] = {}
        self._shared = SharedTransfers(self._runtime.network)
        self._shared_timer: asyncio.TimerHandle | None = None
        self._shared_changed = False

    def send(
        self, sender: str, receiver: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> asyncio.Future[Any]:
        """Send a call: freeze and record it now, deliver it after the link's time, reply likewise."""
        frozen_args, size = freeze(args)
        if kwargs:
            kwargs, more = freeze(kwargs)
            size += more
        route = self.routes.get((sender, receiver)) or self._route(sender, receiver)
        name = type_name(args[0], method) if args else method
        self._runtime.ledger.record(self._runtime.loop.time(), sender, receiver, route[0], name, size)
        self._num_sent += 1
        number = self._num_sent
        context = self._runtime.contexts[receiver]
        task = self._runtime.loop.create_task(
            self._deliver(number, sender, context, method, frozen_args, kwargs, size, route),
            context=context.variables.copy(),
        )
        self.calls[number] = (sender, receiver, method, task)
        # the receiver goes on even if the sender stops waiting, as on Ray
        return asyncio.shield(task)

    def _route(self, sender: str, receiver: str) -> Route:
        if receiver not in self._runtime.contexts:
            raise BadInput(
                f"{sender} calls {receiver!r}, which does not exist (there are: {', '.join(self._runtime.contexts)})"
            )
        kind = kind_of(sender, self._runtime.role_of(sender), receiver, self._runtime.role_of(receiver))
        if kind == DRIVER_KIND:
            route = (kind, self._runtime.network.local, False)
        else:
            link = self._runtime.network.link(sender, receiver, kind)
            route = (kind, link, self._runtime.network.is_shared(sender, receiver))
        self.routes[(sender, receiver)] = route
        return route

    async def _deliver(
        self,
        number: int,
        sender: str,
        context: SimulatedContext,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        size: int,
        route: Route,
    ) -> Any:
        receiver = context.name
        try:
            _, link, shared = route
            if shared or link.latency or not math.isinf(link.bandwidth):
                await self._travel(sender, receiver, method, size + HEADER_BYTES, link, shared)
            if not context.alive:
                raise PartyLost(receiver, f"its process is gone; {method} was not done")
            reply = await getattr(context.actor, method)(*args, **kwargs)
            if reply is None:
                return None
            frozen, size = freeze(reply)
            back = self.routes.get((receiver, sender)) or self._route_back(receiver, sender)
            self._runtime.ledger.record(
                self._runtime.loop.time(), receiver, sender, back[0], type_name(reply, f"{method} reply"), size
            )
            _, link, shared = back
            if shared or link.latency or not math.isinf(link.bandwidth):
                await self._travel(receiver, sender, method, size + HEADER_BYTES, link, shared)
            return frozen
        except asyncio.CancelledError:
            if not context.alive:
                raise PartyLost(receiver, f"its process was lost during {method}") from None
            raise
        except Exception as error:
            failed = as_party_error(receiver, error)
            if failed is error:
                raise
            raise failed from first_error(error)
        finally:
            del self.calls[number]

    def _route_back(self, receiver: str, sender: str) -> Route:
        if sender != DRIVER:
            return self._route(receiver, sender)
        route = (DRIVER_KIND, self._runtime.network.local, False)
        self.routes[(receiver, sender)] = route
        return route

    async def carry(self, sender: str, receiver: str, type_: str, size: int) -> None:
        """Record and time the transfer of a payload."""
        route = self.routes.get((sender, receiver)) or self._route(sender, receiver)
        self._runtime.ledger.record(self._runtime.loop.time(), sender, receiver, route[0], type_, size)
        _, link, shared = route
        if shared or link.latency or not math.isinf(link.bandwidth):
            with self._runtime.passing_wait():
                await self._travel(sender, receiver, type_, size + HEADER_BYTES, link, shared)

    async def _travel(self, sender: str, receiver: str, key: str, size: int, link: Link, shared: bool) -> None:
        loop = self._runtime.loop
        arrival: asyncio.Future[None] = loop.create_future()
        if shared:
            self._num_sent += 1
            number = self._num_sent
            self.arrivals[number] = arrival
            source, target = self._runtime.network.host(sender), self._runtime.network.host(receiver)
            self._shared.start(loop.time(), number, source, target, link, size)
            self._shared_changed = True
            await arrival
            arrival = loop.create_future()
            loop.call_at_keyed(loop.time() + link.latency, sender, f"{receiver}.{key}", finish, arrival)
        else:
            loop.call_at_keyed(loop.time() + link.seconds(size), sender, f"{receiver}.{key}", finish, arrival)
        await arrival

    def plan(self) -> None:
        """Set the timer to the end of the next transfer through a shared host, if anything has changed."""
        if not self._shared_changed:
            return
        self._shared_changed = False
        if self._shared_timer is not None:
            self._shared_timer.cancel()
            self._shared_timer = None
        end = self._shared.next_end()
        if end is not None:
            self._shared_timer = self._runtime.loop.call_at_keyed(end, "", "transfer", self._end_shared)

    def _end_shared(self) -> None:
        for number in self._shared.advance(self._runtime.loop.time()):
            finish(self.arrivals.pop(number))
        self._shared_changed = True

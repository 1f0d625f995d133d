"""The wire between simulated actors: calls, replies and payloads that take the time of their links.

A call is frozen, recorded and under way when it is made; its receiver runs it in a task of its own after the link's
latency and bytes over bandwidth (shared among the transfers in flight where a host's capacity is finite).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from fedactors.errors import PartyLost
from fedactors.network.codec import HEADER_BYTES, type_name
from fedactors.network.ledger import DRIVER as DRIVER_KIND
from fedactors.network.ledger import kind_of
from fedactors.network.links import Link, SharedTransfers
from fedactors.remote import Door
from fedactors.runtime import calls
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import ERROR_ROW
from fedactors.runtime.simulation.actor import SimulatedContext
from fedactors.runtime.simulation.virtual_loop import Instant, finish

if TYPE_CHECKING:
    from fedactors.runtime.simulated import SimulatedRuntime


class Route(NamedTuple):
    """How messages go from one actor to another."""

    kind: str
    link: Link
    is_shared: bool
    """Whether a host's finite capacity limits it."""
    takes_time: bool


@dataclass(slots=True, eq=False)
class Call:
    """A call that is not yet answered.

    `timer` is its arrival while it is on the way, `task` what its receiver does about it from then on.
    """

    number: int
    sender: str
    receiver: SimulatedContext
    path: CallPath
    message: Any
    reply: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None

    @property
    def door(self) -> Door:
        """What is called."""
        return self.path.endpoint


class Wire:
    """What is under way between the actors of `runtime`."""

    def __init__(self, runtime: SimulatedRuntime) -> None:
        self.calls: dict[int, Call] = {}
        """Calls not yet answered, by number."""
        self.arrivals: dict[int, asyncio.Future[None]] = {}
        self.watch_replies: Callable[[str, str, str, Any], None] | None = None
        """Is told of every reply: who replied, to whom, to which method, and what."""
        self._runtime = runtime
        self._num_sent = 0
        self.reroute()

    def reroute(self) -> None:
        """Forget the routes taken so far: the network is another one."""
        self._routes: dict[tuple[str, ...], Route] = {}
        self._paths: dict[tuple[str, str, str], CallPath] = {}
        """By (sender, receiver, method), where the door was found open."""
        self._shared = SharedTransfers(self._runtime.network)
        self._shared_timer: asyncio.TimerHandle | None = None
        self._shared_changed = False

    def send(self, sender: str, receiver: str, method: str, value: Any) -> asyncio.Future[Any]:
        """Send a call: check, freeze and record it now, deliver it after the link's time, reply likewise."""
        runtime = self._runtime
        path = self._paths.get((sender, receiver, method))
        if path is None or value.__class__ not in path.endpoint.takes:
            path = self._admit(sender, receiver, method, value)
        context = runtime.contexts[receiver]
        kind, link, is_shared, takes_time = path.there
        frozen, size = calls.leave(path, value)
        loop = runtime.loop
        now = loop.time()
        runtime.ledger.record(now, sender, receiver, kind, type_name(value, method), size)
        self._num_sent += 1
        number = self._num_sent
        # no task of the sender's: the receiver goes on even if the sender stops waiting, as on Ray
        reply: asyncio.Future[Any] = loop.create_future()
        call = Call(number, sender, context, path, frozen, reply)
        self.calls[number] = call
        if is_shared:
            self._start(call, self._travel_and_serve(call, size + HEADER_BYTES, link))
        elif takes_time:
            arrival = now + link.seconds(size + HEADER_BYTES)
            key, variables = path.key_there, context.variables
            call.timer = loop.call_at_keyed(arrival, sender, key, self._arrive, call, context=variables)
        else:
            self._arrive(call)
        return reply

    def _admit(self, sender: str, receiver: str, method: str, value: Any) -> CallPath:
        """Return the path to a door that is open to the sender and takes the value, with the route there."""
        contexts, role = self._runtime.contexts, self._runtime.role_of
        if receiver not in contexts:
            raise calls.unknown_actor(sender, receiver, contexts)
        endpoints = contexts[receiver].doors
        path = calls.admit(endpoints, method, sender, role(sender), receiver, role(receiver), value)
        path.there, path.key_there = self._route(sender, receiver), f"{receiver}.{method}"
        self._paths[sender, receiver, method] = path
        return path

    def _route(self, sender: str, receiver: str) -> Route:
        network, role = self._runtime.network, self._runtime.role_of
        kind = kind_of(sender, role(sender), receiver, role(receiver))
        source, target = network.host(sender), network.host(receiver)
        place: tuple[str, ...] = (kind, source, target)
        if not network.links and not network.capacity:  # thousands of parties have few kinds of routes
            place = (kind, "within") if source == target else (kind,)
        route = self._routes.get(place)
        if route is None:
            link, is_shared = network.local, False
            if kind != DRIVER_KIND:
                link = network.link(sender, receiver, kind)
                is_shared = network.is_shared(sender, receiver, kind)
            takes_time = is_shared or link.latency > 0 or not math.isinf(link.bandwidth)
            route = self._routes[place] = Route(kind, link, is_shared, takes_time)
        return route

    def _back(self, path: CallPath) -> Route:
        if path.back is None:
            path.back = self._route(path.receiver, path.sender)
            path.key_back = f"{path.sender}.{path.endpoint.name}"
        back: Route = path.back
        return back

    def _arrive(self, call: Call) -> None:
        call.timer = None
        self._start(call, self._serve(call))

    def _start(self, call: Call, coroutine: Coroutine[Any, Any, None]) -> None:
        call.task = self._runtime.loop.create_task(coroutine, context=call.receiver.variables.copy())

    async def _travel_and_serve(self, call: Call, size: int, link: Link) -> None:
        try:
            await self._travel(call.sender, call.receiver.name, call.path.key_there, size, link)
        except asyncio.CancelledError:
            self._end_cancelled(call)
            return
        await self._serve(call)

    async def _serve(self, call: Call) -> None:
        """Let the receiver do what is called for, and bring its reply, or its failure, back to the sender."""
        context, path = call.receiver, call.path
        try:
            if not context.alive:
                raise PartyLost(context.name, f"its process is gone; {path.endpoint.name} was not done")
            reply = await calls.begin(path, context.actor, call.message)
            if reply is None:
                calls.answer(path, None)
            else:
                reply, size = self._send_back(call, reply)
                _, link, is_shared, takes_time = self._back(path)
                if is_shared:
                    await self._travel(context.name, call.sender, path.key_back, size, link)
                elif takes_time:
                    loop = self._runtime.loop
                    await Instant(loop, loop.time() + link.seconds(size), context.name, path.key_back)
        except asyncio.CancelledError:
            self._end_cancelled(call)
        except Exception as error:
            failed, size = calls.failed(context.name, call.sender, error)
            del self.calls[call.number]
            now = self._runtime.loop.time()
            self._runtime.ledger.record(now, context.name, call.sender, path.kind, ERROR_ROW, size)
            if not call.reply.done():
                self._runtime.unawaited.fail(call.reply, failed, call.sender)
        else:
            del self.calls[call.number]
            if self.watch_replies is not None and reply is not None:
                self.watch_replies(context.name, call.sender, path.endpoint.name, reply)
            if not call.reply.done():
                call.reply.set_result(reply)

    def _send_back(self, call: Call, reply: Any) -> tuple[Any, int]:
        """Check, freeze and record a reply; return it with the bytes that it is on its link."""
        path = call.path
        frozen, size = calls.answer(path, reply)
        type_, now = type_name(frozen, path.endpoint.name), self._runtime.loop.time()
        self._runtime.ledger.record(now, path.receiver, path.sender, path.kind, type_, size)
        return frozen, size + HEADER_BYTES

    def lose(self, name: str) -> None:
        """End the calls to an actor whose process is lost, on the way or under way."""
        for call in [call for call in self.calls.values() if call.receiver.name == name]:
            if call.task is not None:
                call.task.cancel()
            else:
                assert call.timer is not None
                call.timer.cancel()
                self._end_cancelled(call)

    def _end_cancelled(self, call: Call) -> None:
        del self.calls[call.number]
        if call.reply.done():
            return
        if call.receiver.alive:
            call.reply.cancel()
        else:
            name = call.receiver.name
            lost = PartyLost(name, f"its process was lost during {call.door.name}")
            self._runtime.unawaited.fail(call.reply, lost, call.sender)

    async def carry(self, sender: str, receiver: str, type_: str, size: int) -> None:
        """Record and time the transfer of a payload."""
        kind, link, is_shared, takes_time = self._route(sender, receiver)
        loop, key = self._runtime.loop, f"{receiver}.{type_}"
        now = loop.time()
        self._runtime.ledger.record(now, sender, receiver, kind, type_, size)
        if takes_time:
            with self._runtime.passing_wait():
                if is_shared:
                    await self._travel(sender, receiver, key, size + HEADER_BYTES, link)
                else:
                    await Instant(loop, now + link.seconds(size + HEADER_BYTES), sender, key)

    async def _travel(self, sender: str, receiver: str, key: str, size: int, link: Link) -> None:
        """Share the hosts' capacity with the other transfers, then wait for the link's latency."""
        loop = self._runtime.loop
        arrival: asyncio.Future[None] = loop.create_future()
        self._num_sent += 1
        number = self._num_sent
        self.arrivals[number] = arrival
        source, target = self._runtime.network.host(sender), self._runtime.network.host(receiver)
        self._shared.start(loop.time(), number, source, target, link, size)
        self._shared_changed = True
        await arrival
        await Instant(loop, loop.time() + link.latency, sender, key)

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

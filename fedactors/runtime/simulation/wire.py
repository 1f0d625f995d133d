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

from fedactors.errors import BadInput, PartyLost
from fedactors.network.codec import HEADER_BYTES, freeze, type_name
from fedactors.network.ledger import DRIVER as DRIVER_KIND
from fedactors.network.ledger import kind_of
from fedactors.network.links import Link, SharedTransfers
from fedactors.remote import DRIVER, Door, current_caller
from fedactors.runtime.failures import ERROR_ROW, as_party_error, error_bytes, error_of, told
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
class Path:
    """What every call of one actor to a door of another has in common: neither names nor classes change in a run."""

    door: Door
    there: Route
    key: str
    """Where its arrivals stand among the events of one time."""
    back: Route | None = None
    """The route of replies, from the first one on."""
    key_back: str = ""


@dataclass(slots=True, eq=False)
class Call:
    """A call that is not yet answered.

    `timer` is its arrival while it is on the way, `task` what its receiver does about it from then on.
    """

    number: int
    sender: str
    receiver: SimulatedContext
    path: Path
    message: Any
    reply: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    task: asyncio.Task[None] | None = None

    @property
    def door(self) -> Door:
        """What is called."""
        return self.path.door


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
        self._paths: dict[tuple[str, str, str], Path] = {}
        """By (sender, receiver, method), where the door was found open."""
        self._shared = SharedTransfers(self._runtime.network)
        self._shared_timer: asyncio.TimerHandle | None = None
        self._shared_changed = False

    def send(self, sender: str, receiver: str, method: str, value: Any) -> asyncio.Future[Any]:
        """Send a call: check, freeze and record it now, deliver it after the link's time, reply likewise."""
        runtime = self._runtime
        path = self._paths.get((sender, receiver, method))
        if path is None or value.__class__ not in path.door.takes:
            path = self._admit(sender, receiver, method, value)
        context = runtime.contexts[receiver]
        kind, link, is_shared, takes_time = path.there
        frozen, size = freeze(value)
        context.doors.check_fields(sender, frozen)
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
            call.timer = loop.call_at_keyed(arrival, sender, path.key, self._arrive, call, context=context.variables)
        else:
            self._arrive(call)
        return reply

    def _admit(self, sender: str, receiver: str, method: str, value: Any) -> Path:
        """Return the path to a door that is open to the sender and takes the value."""
        runtime = self._runtime
        if receiver not in runtime.contexts:
            there = ", ".join(runtime.contexts)
            raise BadInput(f"{sender} calls {receiver!r}, which does not exist (there are: {there})")
        doors = runtime.contexts[receiver].doors
        door = doors.check(method, sender, runtime.role_of(sender), receiver, value)
        path = Path(door, self._route(sender, receiver), f"{receiver}.{method}")
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

    def _back(self, call: Call) -> Route:
        path = call.path
        if path.back is None:
            path.back = self._route(call.receiver.name, call.sender)
            path.key_back = f"{call.sender}.{path.door.name}"
        return path.back

    def _arrive(self, call: Call) -> None:
        call.timer = None
        self._start(call, self._serve(call))

    def _start(self, call: Call, coroutine: Coroutine[Any, Any, None]) -> None:
        call.task = self._runtime.loop.create_task(coroutine, context=call.receiver.variables.copy())

    async def _travel_and_serve(self, call: Call, size: int, link: Link) -> None:
        try:
            await self._travel(call.sender, call.receiver.name, call.path.key, size, link)
        except asyncio.CancelledError:
            self._end_cancelled(call)
            return
        await self._serve(call)

    async def _serve(self, call: Call) -> None:
        """Let the receiver do what is called for, and bring its reply, or its failure, back to the sender."""
        context, path = call.receiver, call.path
        door = path.door
        try:
            if not context.alive:
                raise PartyLost(context.name, f"its process is gone; {door.name} was not done")
            if door.only is not None:
                context.doors.check_named(door, call.sender, context.name, context.actor)
            current_caller.set(call.sender)  # in the task's own variables
            method = getattr(context.actor, door.name)
            reply = await (method() if door.is_bare else method(call.message))
            context.doors.check_reply(door, context.name, reply)
            if reply is not None:
                reply, size = self._send_back(call, reply)
                _, link, is_shared, takes_time = self._back(call)
                if is_shared:
                    await self._travel(context.name, call.sender, path.key_back, size, link)
                elif takes_time:
                    loop = self._runtime.loop
                    await Instant(loop, loop.time() + link.seconds(size), context.name, path.key_back)
        except asyncio.CancelledError:
            self._end_cancelled(call)
        except Exception as error:
            failed = as_party_error(context.name, error)
            size = error_bytes(failed)
            if call.sender != DRIVER:  # another party is told in words: what hangs on the error stays here
                failed = error_of(*told(context.name, failed))
            del self.calls[call.number]
            now, kind = self._runtime.loop.time(), self._back(call).kind
            self._runtime.ledger.record(now, context.name, call.sender, kind, ERROR_ROW, size)
            if not call.reply.done():
                self._runtime.unawaited.fail(call.reply, failed, call.sender)
        else:
            del self.calls[call.number]
            if self.watch_replies is not None and reply is not None:
                self.watch_replies(context.name, call.sender, door.name, reply)
            if not call.reply.done():
                call.reply.set_result(reply)

    def _send_back(self, call: Call, reply: Any) -> tuple[Any, int]:
        """Check, freeze and record a reply; return it with the bytes that it is on its link."""
        frozen, size = freeze(reply)
        replier = call.receiver.name
        call.receiver.doors.check_fields(replier, frozen)
        type_, now = type_name(reply, call.path.door.name), self._runtime.loop.time()
        self._runtime.ledger.record(now, replier, call.sender, self._back(call).kind, type_, size)
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

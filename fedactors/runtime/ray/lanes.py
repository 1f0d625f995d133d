"""How a process reaches the actors of a run: the address book, and the choice between the fast lane and Ray.

Actor processes and the driver share this code, so that a call means the same wherever it comes from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from ray.exceptions import RayActorError

from fedactors.errors import CallTimeout, FedactorsError, PartyLost
from fedactors.network.codec import Parts, encode_parts
from fedactors.remote import Doors
from fedactors.runtime import calls
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import UnawaitedCall, decode_reply
from fedactors.runtime.ray.transport import PAYLOAD, REPLY, Memory, Outgoing, connect


@dataclass(frozen=True)
class Address:
    """Where an actor lives: its Ray handle, and its socket for callers on the same host."""

    name: str
    role: str
    host: str
    socket: str
    pid: int
    began: int
    """When the process began, by its host's count: another one may have its number by now."""
    actor: Any
    doors: Doors
    ticket: bytes
    """With which the process that holds this address calls there; made for its name and no other."""
    incarnation: int = 0
    """How many processes of this name were lost before it."""


class Lanes:
    """The ways out of one process.

    Args:
        me: name of the actor, or of the driver, that calls from here.
        host: the Ray host that this process is on.
        use_sockets: whether actors of one host talk directly.
        call_timeout: seconds within which every call must be answered.
        unawaited: is told of every call that failed.
    """

    def __init__(self, me: str, host: str, use_sockets: bool, call_timeout: float, unawaited: UnawaitedCall) -> None:
        self.book: dict[str, Address] = {}
        self.memory = Memory()
        """What this process shares with others of its host."""
        self._me = me
        self._host = host
        self._use_sockets = use_sockets
        self._call_timeout = call_timeout
        self._unawaited = unawaited
        self._open: dict[str, Outgoing] = {}
        self._opening: dict[str, deque[tuple[CallPath, Parts, asyncio.Future[Any]]]] = {}
        """By socket, what waits in order for a connection that is being made: path, frame, future of the reply."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._least: dict[str, int] = {}
        """By name, the first incarnation that was not given up as lost."""

    def bar(self, name: str, incarnation: int) -> None:
        """Give up all processes of a name before this incarnation: one that was cut off may come back."""
        self._least[name] = max(incarnation, self.least(name))
        known = self.book.get(name)
        if known is not None and known.incarnation < incarnation and (gone := self._open.pop(name, None)) is not None:
            gone.transport.close()

    def least(self, name: str) -> int:
        """Return the first incarnation of a name that was not given up as lost."""
        return self._least.get(name, 0)

    def update(self, addresses: dict[str, Address]) -> None:
        """Learn addresses; a connection to an actor that has moved is dropped."""
        for name, address in addresses.items():
            old = self.book.get(name)
            self.book[name] = address
            if old is not None and old.socket != address.socket:
                gone = self._open.pop(name, None)
                if gone is not None and gone.is_open:
                    gone.transport.close()

    def address(self, receiver: str, sender: str) -> Address:
        """Return where an actor lives; an unknown one is a `BadInput` that lists those there are."""
        try:
            return self.book[receiver]
        except KeyError:
            raise calls.unknown_actor(sender, receiver, self.book) from None

    def is_near(self, address: Address) -> bool:
        """Say whether an actor is on this process's host."""
        return self._use_sockets and address.host == self._host

    def send(self, address: Address, path: CallPath, parts: Parts) -> asyncio.Future[Any]:
        """Send an encoded call and return the future of its reply.

        Calls over one socket arrive in the order in which they are made, unless a body could not be read where it lay;
        those through Ray in any order.
        """
        connection = self._open.get(address.name)
        if connection is not None and connection.is_open:
            return connection.request(path, parts)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if not self.is_near(address):
            self._start(self._through_ray(reply, address, path, b"".join(parts)))
            return reply
        waiting = self._opening.get(address.socket)
        if waiting is None:
            waiting = self._opening[address.socket] = deque()
            self._start(self._open_lane(address, waiting))
        waiting.append((path, [b"".join(parts)], reply))
        return reply

    def send_for(self, reply: asyncio.Future[Any], address: Address, path: CallPath, parts: Parts) -> None:
        """Send an encoded call whose reply ends a future that the caller has already."""
        self.send(address, path, parts).add_done_callback(partial(self._pass_on, reply))

    def _start(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(errand)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open_lane(self, address: Address, waiting: deque[tuple[CallPath, Parts, asyncio.Future[Any]]]) -> None:
        hello = encode_parts((self._me, address.ticket))
        connection = Outgoing(address.name, hello, self._take_reply, self._call_timeout, self.memory)
        try:
            await connect(address.socket, connection)
        except PartyLost as error:
            for _, _, reply in waiting:
                if not reply.done():
                    self._unawaited.fail(reply, PartyLost(error.party, error.message), self._me)
            return
        finally:
            del self._opening[address.socket]
        self._open[address.name] = connection
        for path, parts, reply in waiting:
            connection.request(path, parts).add_done_callback(partial(self._pass_on, reply))

    def _take_reply(self, reply: asyncio.Future[Any], path: CallPath, kind: int, body: Any) -> None:
        """End a call with its reply, or with the error that came in its place."""
        if reply.done():
            return
        try:
            if path is PAYLOAD and kind == REPLY:
                reply.set_result(bytes(body))
                return
            value = decode_reply(kind == REPLY, body)
            calls.take(path, value)
        except Exception as error:
            self._unawaited.fail(reply, error, self._me)
        else:
            reply.set_result(value)

    def _pass_on(self, to: asyncio.Future[Any], reply: asyncio.Future[Any]) -> None:
        error = None if reply.cancelled() else reply.exception()
        if to.done():
            return
        if reply.cancelled():
            to.cancel()
        elif error is not None:
            self._unawaited.fail(to, error, self._me)
        else:
            to.set_result(reply.result())

    async def _through_ray(self, reply: asyncio.Future[Any], address: Address, path: CallPath, frame: bytes) -> None:
        # as an array the frame travels out of band, without another copy
        reference = address.actor.call.remote(self._me, address.ticket, np.frombuffer(frame, np.uint8))
        error: FedactorsError
        try:
            async with asyncio.timeout(self._call_timeout):
                kind, body = await reference
        except TimeoutError:
            error = CallTimeout(address.name, f"{path.endpoint.name} gave no answer within {self._call_timeout:g} s")
        except RayActorError:
            error = PartyLost(address.name, f"its process was lost during {path.endpoint.name}")
        else:
            if address.incarnation >= self.least(address.name):
                self._take_reply(reply, path, kind, memoryview(body))
                return
            error = PartyLost(address.name, f"its process was given up as lost during {path.endpoint.name}")
        if not reply.done():
            self._unawaited.fail(reply, error, self._me)

    async def fetch(self, address: Address, key: int) -> bytes:
        """Ask an owner for a payload's bytes."""
        if self.is_near(address):
            found: bytes = await self.send(address, PAYLOAD, encode_parts(key))
            return found
        try:
            async with asyncio.timeout(self._call_timeout):
                kind, body = await address.actor.fetch.remote(self._me, address.ticket, key)
        except TimeoutError:
            raise CallTimeout(address.name, f"payload {key} did not come within {self._call_timeout:g} s") from None
        except RayActorError:
            raise PartyLost(address.name, "its process was lost while a payload was fetched") from None
        if address.incarnation < self.least(address.name):
            raise PartyLost(address.name, "its process was given up as lost while a payload was fetched")
        frame = memoryview(body)
        return bytes(frame) if kind == REPLY else decode_reply(False, frame)

    def close(self) -> None:
        """Close all connections, and give the memory back that is shared over them."""
        for task in list(self._tasks):
            task.cancel()
        for connection in self._open.values():
            if connection.is_open:
                connection.transport.close()
        self._open.clear()
        self.memory.close()


def as_array(parts: Parts) -> np.ndarray:
    """Return a frame as a byte array, which Ray carries out of band."""
    return np.frombuffer(b"".join(parts), np.uint8)

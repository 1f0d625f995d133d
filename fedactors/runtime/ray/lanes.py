"""How a process reaches the actors of a run: the address book, and the choice between the fast lane and Ray.

Actor processes and the driver share this code, so that a call means the same wherever it comes from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from ray.exceptions import RayActorError

from fedactors import errors
from fedactors.errors import BadInput, CallTimeout, FedactorsError, PartyError, PartyFailed, PartyLost
from fedactors.network.codec import decode, encode_parts
from fedactors.runtime.base import as_party_error
from fedactors.runtime.ray.transport import ERROR, REPLY, Outgoing, Parts, connect


@dataclass(frozen=True)
class Address:
    """Where an actor lives: its Ray handle, and its socket for callers on the same host."""

    name: str
    role: str
    host: str
    socket: str
    pid: int
    actor: Any


def encode_error(name: str, error: BaseException) -> Parts:
    """Return an error as a value: class name, party, message, original traceback."""
    known = as_party_error(name, error)
    party = known.party if isinstance(known, PartyError) else name
    text = known.message if isinstance(known, PartyError) else str(known)
    trace = known.traceback_text if isinstance(known, PartyFailed) else ""
    # a protocol's own kind of error travels as the one of `errors` that it is
    kind = next(cls.__name__ for cls in type(known).__mro__ if getattr(errors, cls.__name__, None) is cls)
    return encode_parts((kind, party, text, trace))


def decode_reply(kind: int, body: memoryview | bytes) -> Any:
    """Return a reply's value, or raise the error it carries."""
    value = decode(body)
    if kind == REPLY:
        return value
    name, party, text, trace = value
    cls = getattr(errors, name, None)
    if cls is PartyFailed:
        raise PartyFailed(party, text, trace)
    if isinstance(cls, type) and issubclass(cls, PartyError):
        raise cls(party, text)
    if isinstance(cls, type) and issubclass(cls, FedactorsError) and cls is not errors.Stopped:
        raise cls(text)
    raise PartyFailed(party, f"{name}: {text}", trace)


class Lanes:
    """The ways out of one process."""

    def __init__(self, host: str, use_sockets: bool, call_timeout: float) -> None:
        self.book: dict[str, Address] = {}
        self._host = host
        self._use_sockets = use_sockets
        self._call_timeout = call_timeout
        self._open: dict[str, Outgoing] = {}
        self._opening: dict[str, deque[tuple[str, Parts, asyncio.Future[Any]]]] = {}
        """By socket, what waits in order for a connection that is being made: method, frame, future of the reply."""
        self._tasks: set[asyncio.Task[None]] = set()

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
            raise BadInput(
                f"{sender} calls {receiver!r}, which does not exist (there are: {', '.join(self.book)})"
            ) from None

    def is_near(self, address: Address) -> bool:
        """Say whether an actor is on this process's host."""
        return self._use_sockets and address.host == self._host

    def send(self, address: Address, method: str, parts: Parts) -> asyncio.Future[Any]:
        """Send an encoded call and return the future of its reply; calls arrive in the order in which they are made."""
        if not self.is_near(address):
            return asyncio.ensure_future(self._through_ray(address, method, b"".join(parts)))
        connection = self._open.get(address.name)
        if connection is not None and connection.is_open:
            return connection.request(method, parts)
        waiting = self._opening.get(address.socket)
        if waiting is None:
            waiting = self._opening[address.socket] = deque()
            task = asyncio.ensure_future(self._open_lane(address, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting.append((method, [b"".join(parts)], reply))
        return reply

    async def _open_lane(self, address: Address, waiting: deque[tuple[str, Parts, asyncio.Future[Any]]]) -> None:
        connection = Outgoing(address.name, decode_reply, self._call_timeout)
        try:
            await connect(address.socket, connection)
        except PartyLost as error:
            for _, _, reply in waiting:
                if not reply.done():
                    reply.set_exception(PartyLost(error.party, error.message))
            return
        finally:
            del self._opening[address.socket]
        self._open[address.name] = connection
        for method, parts, reply in waiting:
            connection.request(method, parts).add_done_callback(partial(_pass_on, reply))

    async def _through_ray(self, address: Address, method: str, frame: bytes) -> Any:
        # as an array the frame travels out of band, without another copy
        reference = address.actor.call.remote(np.frombuffer(frame, np.uint8))
        try:
            async with asyncio.timeout(self._call_timeout):
                kind, body = await reference
        except TimeoutError:
            raise CallTimeout(address.name, f"{method} gave no answer within {self._call_timeout:g} s") from None
        except RayActorError:
            raise PartyLost(address.name, f"its process was lost during {method}") from None
        return decode_reply(kind, memoryview(body))

    async def fetch(self, address: Address, key: int) -> bytes:
        """Ask an owner on another host for a payload's bytes."""
        try:
            async with asyncio.timeout(self._call_timeout):
                kind, body = await address.actor.fetch.remote(key)
        except TimeoutError:
            raise CallTimeout(address.name, f"payload {key} did not come within {self._call_timeout:g} s") from None
        except RayActorError:
            raise PartyLost(address.name, "its process was lost while a payload was fetched") from None
        frame = memoryview(body)
        return bytes(frame) if kind == REPLY else decode_reply(ERROR, frame)

    def close(self) -> None:
        """Close all connections."""
        for task in list(self._tasks):
            task.cancel()
        for connection in self._open.values():
            if connection.is_open:
                connection.transport.close()
        self._open.clear()


def _pass_on(to: asyncio.Future[Any], reply: asyncio.Future[Any]) -> None:
    error = None if reply.cancelled() else reply.exception()
    if to.done():
        return
    if reply.cancelled():
        to.cancel()
    elif error is not None:
        to.set_exception(error)
    else:
        to.set_result(reply.result())


def as_array(parts: Parts) -> np.ndarray:
    """Return a frame as a byte array, which Ray carries out of band."""
    return np.frombuffer(b"".join(parts), np.uint8)

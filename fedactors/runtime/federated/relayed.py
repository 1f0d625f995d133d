"""A site's side of a relay: how it calls a site that cannot be dialled, and how such a site waits to be called."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.network.codec import encode_parts
from fedactors.runtime.federated.credentials import KEY
from fedactors.runtime.federated.identity import read_key
from fedactors.runtime.federated.pieces import (
    ERROR,
    PIECE_BYTES,
    PING,
    REPLY,
    REQUEST,
    Broken,
    Limits,
    error_in,
    framed,
    read_piece,
    value_of,
)
from fedactors.validation import first_line

if TYPE_CHECKING:
    from fedactors.runtime.federated.folders import Member, SiteFolder

WAIT, DIAL, ANSWER = "wait", "dial", "answer"
"""What a site wants of a relay."""
NONCE_BYTES = 32
_LABEL = b"fedactors relay 1\0"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_MOST_CALLS = 64
"""That are being answered at once."""

Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def signed_words(nonce: bytes, federation: str, site: str, what: str, other: str) -> bytes:
    """Return what a site signs to be known by a relay: for this connection, and for what it wants of it."""
    return _LABEL + b"".join(encode_parts((nonce, federation, site, what, other)))


async def _greet(
    folder: SiteFolder, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits, *wanted: str
) -> None:
    """Say to a relay who this is, and prove it."""
    kind, more, _, body = await read_piece(reader, limits)
    nonce = value_of(body, "relay")
    if kind != REQUEST or more or type(nonce) is not bytes or len(nonce) != NONCE_BYTES:
        raise Broken("is no relay")
    words = (folder.federation.name, folder.name, *wanted)
    signature = read_key(folder.path / KEY).sign(signed_words(nonce, *words))
    writer.write(framed(encode_parts((*words, signature))))


async def through_relay(
    folder: SiteFolder, member: Member, limits: Limits
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Call a site through its relay; return the stream, with TLS between the two sites.

    Raises:
        PartyLost: the relay says that it cannot be called.
        Broken: the relay does not keep to its rules.
    """
    where = f"{member.host}:{member.port}"
    reader, writer = await asyncio.open_connection(member.host, member.port, limit=2 * PIECE_BYTES)
    try:
        await _greet(folder, reader, writer, limits, DIAL, member.name)
        kind, _, _, body = await read_piece(reader, limits)
        if kind == ERROR:
            text = first_line(error_in(body)).removeprefix("relay: ")
            raise PartyLost(member.name, f"its site cannot be called through the relay {where}, which {text}")
        if kind != REPLY or body:
            raise Broken(f"is called through {where}, which is no relay")
        await writer.start_tls(folder.client_tls, server_hostname=member.name, ssl_handshake_timeout=limits.handshake)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


class Called:
    """A site that cannot be dialled: it waits at a relay, and takes each call as others take a connection.

    Args:
        folder: of the site.
        limits: of its links.
        accept: what becomes of a connection, without TLS.
        tell: takes the kind of what happened, and a line for people.
    """

    def __init__(self, folder: SiteFolder, limits: Limits, accept: Accept, tell: Callable[[str, str], None]) -> None:
        assert folder.relay is not None
        self._folder = folder
        self._host, self._port = folder.relay
        self._limits = limits
        self._accept = accept
        self._tell = tell
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pause = _FIRST_PAUSE

    async def wait(self) -> None:
        """Wait at the relay, and return to it, until this is cancelled."""
        where, said = f"the relay {self._host}:{self._port}", ""
        try:
            while True:
                try:
                    await self._stay()
                except (OSError, EOFError, TimeoutError) as error:
                    why = f"{where} is not reached ({first_line(error)}); it is tried again"
                except (Broken, Refused, PartyLost, BadInput) as error:
                    why = f"{where}: {first_line(error)}; it is tried again"
                if self._pause == _FIRST_PAUSE or why != said:
                    self._tell("relay", why)
                said = why
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        finally:
            for task in self._tasks:
                task.cancel()

    async def _stay(self) -> None:
        """Wait at the relay for as long as the connection holds."""
        async with asyncio.timeout(self._limits.handshake):
            reader, writer = await asyncio.open_connection(self._host, self._port, limit=2 * PIECE_BYTES)
        living: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._limits.handshake):
                await _greet(self._folder, reader, writer, self._limits, WAIT, "")
                kind, _, _, body = await read_piece(reader, self._limits)
            if kind == ERROR:
                raise error_in(body)
            if kind != REPLY:
                raise Broken("is no relay")
            self._pause = _FIRST_PAUSE
            self._tell("relay", f"{self._folder.name}: waits at the relay {self._host}:{self._port}")
            living = asyncio.get_running_loop().create_task(self._live(writer))
            while True:
                kind, _, _, body = await read_piece(reader, self._limits)
                if kind == REQUEST:
                    self._called(value_of(body, "relay"))
                elif kind != PING:
                    raise Broken("says what a relay does not say")
        finally:
            if living is not None:
                living.cancel()
            writer.transport.abort()

    async def _live(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(framed([], PING))
                await writer.drain()
                await asyncio.sleep(self._limits.lease / 4)

    def _called(self, found: Any) -> None:
        if type(found) is not str:
            raise Broken("makes a call that is none")
        if len(self._tasks) < _MOST_CALLS:
            task = asyncio.get_running_loop().create_task(self._answer(found))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, token: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2 * PIECE_BYTES)
        made: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        # as of a connection that was accepted: this end is TLS's server
        protocol = asyncio.StreamReaderProtocol(reader, lambda _, writer: made.set_result(writer))
        try:
            async with asyncio.timeout(self._limits.handshake):
                await loop.create_connection(lambda: protocol, self._host, self._port)
                writer = await made
                await _greet(self._folder, reader, writer, self._limits, ANSWER, token)
        except (OSError, EOFError, TimeoutError, Broken, Refused, BadInput) as error:
            self._tell("relay", f"a call through the relay could not be answered: {first_line(error)}")
            if made.done() and not made.cancelled():
                made.result().transport.abort()
            return
        await self._accept(reader, writer)

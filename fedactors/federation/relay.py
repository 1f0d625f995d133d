"""A process that two sites dial out to, where one cannot be dialled: it joins what they send, and reads none of it.

    shop ──WAIT──────────▶ relay                      shop holds one connection, on which it is called (`Called`)
    bank ──DIAL shop─────▶ relay ──CALL token──▶ shop (`through_relay`)
                           relay ◀─ANSWER token── shop
    bank ◀═══════TLS 1.3, both certificates═════▶ shop       the relay (`Relay`) copies bytes

The relay has no key and no certificate: it asks each caller to sign a number that it has just drawn, and believes
the certificates of the federation's file. The two sites prove themselves to each other inside, so whatever a relay
does, it can delay and cut, and knows who talks to whom, when and how much.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import socket
import ssl
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fedactors.errors import BadInput, FedactorsError, PartyLost, Refused
from fedactors.federation.identity import Federation, fingerprint, holds, key_of, sign, verify
from fedactors.federation.session import (
    AT_ONCE,
    ERROR,
    HANDSHAKE_BYTES,
    HANDSHAKE_MEMORY,
    OTHER_FILES,
    PIECE_BYTES,
    PING,
    REPLY,
    REQUEST,
    Admission,
    Broken,
    Heartbeats,
    Limits,
    LineLimit,
    Pending,
    WayRefused,
    allow_files,
    close_stream,
    framed,
    lengthen_queue,
    peer_address,
    read_piece,
    refusal_in,
    start_tls,
    value_of,
)
from fedactors.federation.site_folder import FederationReader
from fedactors.messages.codec import encode_parts
from fedactors.runtime.failures import encode_error, lasting, unforeseen
from fedactors.validation import first_line, one_line, short_line

if TYPE_CHECKING:
    from fedactors.federation.identity import Member
    from fedactors.federation.site_folder import Proxy, SiteFolder

WAIT, DIAL, ANSWER, FETCH = "wait", "dial", "answer", "federation"
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
    nonce = value_of(body, "relay", most=HANDSHAKE_MEMORY)
    if kind != REQUEST or more or type(nonce) is not bytes or len(nonce) != NONCE_BYTES:
        raise Broken("is no relay")
    words = (folder.federation.name, folder.name, *wanted)
    signature = sign(folder.key.read(), signed_words(nonce, *words))
    writer.write(framed(encode_parts((*words, signature))))


# --- on the way out: through a proxy, or in a WebSocket ---

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_BLOCK = 64 * 1024
"""Bytes of a message of a WebSocket."""
_MOST_QUEUED = 4
"""Messages of a WebSocket that wait to be read."""
_MOST_UNREAD = 4 * _BLOCK
"""Bytes that may wait for the other end of a WebSocket to read them."""
_QUIET = logging.Logger("websocket", logging.CRITICAL + 1)
"""Unauthenticated clients would fill the library's log; what matters is in the site's log."""
_BOUNDS: dict[str, Any] = {
    "compression": None,
    "max_size": _BLOCK,
    "max_queue": _MOST_QUEUED,
    "close_timeout": 1,
    "logger": _QUIET,
}
_pumps: set[asyncio.Task[None]] = set()
"""asyncio keeps a task only as long as something wakes it."""


class _Reading:
    """Of a WebSocket: who lets answers to its pings pile up, and reads none, is cut off."""

    transport: Any

    def data_received(self, data: bytes) -> None:
        """Take what arrives, and answer it."""
        super().data_received(data)  # type: ignore[misc]
        if self.transport.get_write_buffer_size() > _MOST_UNREAD:
            self.transport.abort()


async def open_stream(folder: SiteFolder, host: str, port: int) -> Streams:
    """Open a connection, through the site's proxy if it has one.

    Raises:
        WayRefused, OSError: it is not to be had.
    """
    proxy = folder.proxy
    if proxy is None or not proxy.is_for(host):
        return await asyncio.open_connection(host, port, limit=2 * PIECE_BYTES)
    return await _through_proxy(await _to_proxy(proxy), proxy, host, port)


async def _to_proxy(proxy: Proxy) -> Streams:
    try:
        return await asyncio.open_connection(proxy.host, proxy.port, limit=2 * PIECE_BYTES)
    except OSError as error:
        raise WayRefused(f"the proxy {proxy.host}:{proxy.port} is not reached ({first_line(error)})") from None


async def _through_proxy(streams: Streams, proxy: Proxy, host: str, port: int) -> Streams:
    reader, writer = streams
    name, where = f"the proxy {proxy.host}:{proxy.port}", f"{f'[{host}]' if ':' in host else host}:{port}"
    try:
        lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
        if login := proxy.login():
            lines += [f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}"]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        try:
            answer = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode("latin-1")
        except (EOFError, asyncio.LimitOverrunError):
            raise WayRefused(f"{name} answers CONNECT {where} with nothing") from None
        version, _, status = answer.partition(" ")
        if not version.startswith("HTTP/1.") or not status.startswith("2"):
            remedy = (
                "give proxy_credentials_file in site.toml"
                if status.startswith("407")
                else f"ask its operator to allow CONNECT to {where}"
            )
            raise WayRefused(f"{name} answers CONNECT {where} with {one_line(status or answer, 100)!r}: {remedy}")
    except BaseException:
        await close_stream(writer)
        raise
    return reader, writer


async def open_websocket(folder: SiteFolder, member: Member, limits: Limits) -> Streams:
    """Open a WebSocket to a site's balancer; what is written to the stream goes through it, and TLS in that.

    Raises:
        WayRefused, OSError: it is not to be had.
    """
    try:
        from websockets.asyncio.client import ClientConnection, connect
        from websockets.exceptions import WebSocketException
    except ImportError:
        raise BadInput(_NO_WEBSOCKETS) from None
    proxy, through = folder.proxy, None
    if proxy is not None and proxy.is_for(member.host):
        user, colon, password = proxy.login().partition(":")
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if colon else ""
        through = f"http://{login}{proxy.host}:{proxy.port}"
    outer = ssl.create_default_context(cafile=folder.websocket_ca) if member.url.startswith("wss:") else None

    class Connecting(connect):  # type: ignore[misc]
        def process_redirect(self, exc: Exception) -> Exception | str:
            """Go nowhere else: federation.toml says where the site is, not a server that answers there."""
            return exc

    try:
        carrier = await Connecting(
            member.url,
            ssl=outer,
            proxy=through,
            open_timeout=limits.handshake,
            create_connection=type("Dialled", (_Reading, ClientConnection), {}),
            **_BOUNDS,
        )
    except WebSocketException as error:
        raise WayRefused(f"{member.url} answers with no WebSocket: {first_line(error)}") from None
    except ssl.SSLError as error:
        raise WayRefused(f"the balancer's certificate: {first_line(error)}: see websocket_ca in site.toml") from None
    near, far = socket.socketpair()
    streams = await asyncio.open_connection(sock=near, limit=2 * PIECE_BYTES)
    task = asyncio.get_running_loop().create_task(_pump(carrier, far))
    _pumps.add(task)
    task.add_done_callback(_pumps.discard)
    return streams


_NO_WEBSOCKETS = "carrier: a WebSocket needs the package websockets: pip install 'fedactors[websocket]'"


async def listen_for_websockets(
    host: str,
    port: int,
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]],
    admission: Admission,
    limits: Limits,
) -> Any:
    """Listen for WebSockets; `accept` takes the stream of each, as of a connection, and the address it came from.

    Those whose request is still to come wait at `admission`, as all do who have not ended their handshake.

    Raises:
        OSError: nobody may listen there.
    """
    try:
        from websockets.asyncio.server import ServerConnection, serve
    except ImportError:
        raise BadInput(_NO_WEBSOCKETS) from None

    class Accepted(_Reading, ServerConnection):  # type: ignore[misc]
        pending: Pending

        def connection_made(self, transport: Any) -> None:
            self.waits(transport)
            super().connection_made(transport)

        def waits(self, transport: Any) -> None:
            self.pending = admission.comes(f"somebody at {peer_address(transport)[0]}", transport.abort)

        def connection_lost(self, error: Exception | None) -> None:
            admission.goes(self.pending)
            super().connection_lost(error)

    async def answer(carrier: Any) -> None:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=2 * PIECE_BYTES)
        near, far = socket.socketpair()
        # as of a connection that was accepted: this end is TLS's server
        made: asyncio.Future[asyncio.StreamWriter] = loop.create_future()
        protocol = asyncio.StreamReaderProtocol(reader, lambda _, writer: made.set_result(writer))
        await loop.connect_accepted_socket(lambda: protocol, near)
        writer = await made
        pump = loop.create_task(_pump(carrier, far))
        admission.goes(carrier.pending)  # it comes again where `accept` waits for TLS
        try:
            await accept(reader, writer, "{}:{}".format(*carrier.remote_address[:2]))
            if writer.transport.is_closing() and not carrier.transport.is_closing():
                carrier.waits(carrier.transport)  # it was refused, and keeps a socket until it closes its end
            await pump
        finally:
            pump.cancel()

    ends = {"create_connection": Accepted, "open_timeout": limits.handshake, "backlog": AT_ONCE}
    server = await serve(answer, host, port, **ends, **_BOUNDS)
    lengthen_queue(server.sockets)
    return server


async def _pump(carrier: Any, end: socket.socket) -> None:
    """Copy between a WebSocket and one end of a pair of sockets, until either closes."""
    from websockets.exceptions import ConnectionClosed

    reader, writer = await asyncio.open_connection(sock=end)

    async def outwards() -> None:
        while block := await reader.read(_BLOCK):
            await carrier.send(block)

    async def inwards() -> None:
        while True:
            async for piece in carrier.recv_streaming():  # a message may have any number of pieces, of no bytes too
                if isinstance(piece, str):
                    return
                writer.write(piece)
                await writer.drain()

    async def copy(work: Awaitable[None]) -> None:
        with contextlib.suppress(OSError, ConnectionClosed):
            await work

    tasks = [asyncio.get_running_loop().create_task(copy(work)) for work in (outwards(), inwards())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            await close_stream(writer)
            await carrier.close()
        finally:  # also where it is cancelled twice
            writer.transport.abort()


# --- calls through a relay ---


async def through_relay(
    folder: SiteFolder, member: Member, limits: Limits
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Call a site through its relay; return the stream, with TLS between the two sites.

    Raises:
        PartyLost: the relay says that it cannot be called.
        Broken: the relay does not keep to its rules.
    """
    where = f"{member.host}:{member.port}"
    reader, writer = await open_stream(folder, member.host, member.port)
    try:
        await _greet(folder, reader, writer, limits, DIAL, member.name)
        kind, _, _, body = await read_piece(reader, limits)
        if kind == ERROR:
            text = first_line(refusal_in(body, "relay")).removeprefix("relay: ")
            raise PartyLost(member.name, f"its site cannot be called through the relay {where}, which {text}")
        if kind != REPLY or body:
            raise Broken(f"is called through {where}, which is no relay")
        await start_tls(reader, writer, folder.client_tls, limits.handshake, member.name)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def federation_at_relay(folder: SiteFolder, limits: Limits) -> str:
    """Return the text of the federation's file that this site's relay has.

    Raises:
        Broken, Refused: the relay does not give it.
    """
    host, port = folder.relay or ("", 0)
    async with asyncio.timeout(limits.handshake):
        reader, writer = await open_stream(folder, host, port)
        try:
            await _greet(folder, reader, writer, limits, FETCH, "")
            kind, _, _, body = await read_piece(reader, limits)
        finally:
            writer.transport.abort()
    if kind == ERROR:
        raise refusal_in(body, "relay")
    text = value_of(body, "relay", most=PIECE_BYTES)
    if kind != REPLY or type(text) is not str:
        raise Broken("gives no federation.toml")
    return text


class Called:
    """A site that cannot be dialled: it waits at a relay, and takes each call as others take a connection."""

    def __init__(self, folder: SiteFolder, limits: Limits, accept: Accept, tell: Callable[[str, str], None]) -> None:
        assert folder.relay is not None
        self._folder = folder
        self._host, self._port = folder.relay
        self._limits = limits
        self._accept = accept
        self._tell = tell
        self._tasks: set[asyncio.Task[Any]] = set()
        self._pause = _FIRST_PAUSE
        self._num_answering = 0

    async def wait(self) -> None:
        """Wait at the relay, and return to it, until this is cancelled."""
        where, said = f"the relay {self._host}:{self._port}", ""
        try:
            while True:
                try:
                    await self._stay()
                except (OSError, EOFError, TimeoutError) as error:
                    why = f"{where} is not reached ({first_line(error)}); it is tried again"
                except (Broken, FedactorsError) as error:
                    why = f"{where}: {first_line(error)}; it is tried again"
                except Exception as error:
                    why = f"{where}: {unforeseen(error)}; it is tried again"
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
            reader, writer = await open_stream(self._folder, self._host, self._port)
        living: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(self._limits.handshake):
                await _greet(self._folder, reader, writer, self._limits, WAIT, "")
                kind, _, _, body = await read_piece(reader, self._limits)
            if kind == ERROR:
                raise refusal_in(body, "relay")
            if kind != REPLY:
                raise Broken("is no relay")
            self._pause = _FIRST_PAUSE
            self._tell("relay", f"{self._folder.name}: waits at the relay {self._host}:{self._port}")
            living = asyncio.get_running_loop().create_task(self._live(writer))
            heartbeats = Heartbeats()
            while True:
                kind, _, _, body = await read_piece(reader, self._limits, HANDSHAKE_BYTES)
                heartbeats.count()  # calls too: those that are not answered cost as much
                if kind == REQUEST:
                    self._called(value_of(body, "relay", most=HANDSHAKE_MEMORY))
                elif kind != PING or body:
                    raise Broken("sends a message that relays do not send")
        finally:
            if living is not None:
                living.cancel()
            writer.transport.abort()

    async def _live(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                writer.write(framed([], PING))
                await writer.drain()
                await asyncio.sleep(self._limits.heartbeat_timeout / 4)

    def _called(self, found: Any) -> None:
        if type(found) is not str:
            raise Broken("makes a call that is none")
        if self._num_answering < _MOST_CALLS:
            self._num_answering += 1
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
                proxy = self._folder.proxy
                if proxy is not None and not proxy.is_for(self._host):
                    proxy = None
                first = (self._host, self._port) if proxy is None else (proxy.host, proxy.port)
                await loop.create_connection(lambda: protocol, *first)
                writer = await made
                if proxy is not None:
                    await _through_proxy((reader, writer), proxy, self._host, self._port)
                await _greet(self._folder, reader, writer, self._limits, ANSWER, token)
        except BaseException as error:
            if made.done() and not made.cancelled():
                made.result().transport.abort()
            if not isinstance(error, (OSError, EOFError, TimeoutError, Broken, FedactorsError)):
                raise
            self._tell("relay", f"a call through the relay could not be answered: {first_line(error)}")
            return
        finally:
            self._num_answering -= 1
        await self._accept(reader, writer)


KNOWN_TO_RELAY = "known.relay.json"
"""Beside the federation's file: the newest that a relay took; see `site_folder.FederationReader`."""
_TOKEN_BYTES = 16
_LOOK_SECONDS = 5.0
_LONGEST_WORD = 100


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """What a relay takes, and how long it waits, in seconds."""

    handshake: float = 10.0
    """For the handshake of a caller, and for the site that is called to answer."""
    silence: float = 90.0
    """After which a connection on which nothing was said is cut; sites say something every quarter of a minute."""
    connections: int = 1024
    """In all."""
    per_site: int = 128
    """Of one site, waiting, calling or called."""
    unknown_peers: int = 128
    """Of those that have not proved who they are."""
    block: int = 64 * 1024
    """Bytes of a stream that are held at once, in each direction; what the system's sockets hold comes to it."""


@dataclass(eq=False)
class _Waiting:
    """A site that waits to be called."""

    site: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    calls: dict[str, Heartbeats] = field(default_factory=dict)
    """By who calls: of more calls together than are due the site would give the relay up."""


@dataclass(eq=False)
class _Call:
    """One site that dials another, until that answers."""

    caller: str
    called: str
    answered: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    done: asyncio.Event = field(default_factory=asyncio.Event)


class Relay:
    """The relay's process.

    Args:
        file: the federation's, ``federation.toml``; beside it the relay notes the newest that it took.
        limits: see there.
        tell: takes each line, as ``{time, event, text, ...}``.
        crl: file of revocation lists; None: there are none.
        address: by which the federation's file names this relay; None: the only one that it names, or the one where
            this relay listens.

    Raises:
        BadInput: a file is wrong, or older than what was taken.
    """

    def __init__(
        self,
        file: Path,
        limits: RelayLimits | None = None,
        tell: Callable[[dict[str, Any]], None] = lambda line: print(line["text"]),
        *,
        crl: Path | None = None,
        address: tuple[str, int] | None = None,
    ) -> None:
        self.limits = limits or RelayLimits()
        self._say = tell
        self._reader = FederationReader(file, crl, file.with_name(KNOWN_TO_RELAY))
        self._seen = self._reader.now()
        """Of the files, before they were read: they may change meanwhile."""
        self._taken = self._reader.read()
        self._address = address
        self._here: set[tuple[str, int]] = set()
        """By what address the federation's file names this relay."""
        self._note()
        self._waiting: dict[str, _Waiting] = {}
        self._calls: dict[str, _Call] = {}
        self._of_site: Counter[str] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._open: dict[asyncio.StreamWriter, tuple[str, str]] = {}
        """Connections of sites that were admitted, each with the site's name and its certificate's SHA-256."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unknown_peers = Admission(self._refused, self.limits.unknown_peers)
        self._members: defaultdict[str, Admission] = defaultdict(lambda: Admission(self._refused))
        """By site: what others are refused, however often, hides nothing of what it is."""
        self._lines: defaultdict[str, LineLimit] = defaultdict(LineLimit)
        """By site: which may come and go, and call, as often as it likes."""
        self._unwritten: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        """By site: its calls that have no line, and their bytes there and back."""
        self._pieces = Limits(
            handshake=self.limits.handshake, piece=self.limits.handshake, heartbeat_timeout=self.limits.silence
        )

    @property
    def federation(self) -> Federation:
        """The federation as its files are now; as it was, where they are wrong or older."""
        if (seen := self._reader.now()) != self._seen:
            self._seen = seen
            try:
                self._taken = self._reader.read()
                self._note()
            except BadInput as error:
                self._tell("config_errors", f"the federation of before goes on: {error}")
        return self._taken.federation

    def _note(self) -> None:
        """Note what was read, and say what is wrong with it."""
        if self._taken.problem is not None:
            self._tell("config_errors", f"whom the list of before named stays revoked: {self._taken.problem}")
        try:
            self._reader.take(self._taken)
        except (OSError, BadInput) as error:  # a folder that it may only read
            self._tell("config_errors", f"at its next start it may take older files than these: {first_line(error)}")
        named = self._named()
        self._here = {self._address} if self._address is not None else named if len(named) == 1 else self._here

    def _named(self) -> set[tuple[str, int]]:
        """Return the addresses of all relays of the federation."""
        return {(one.host, one.port) for one in self._taken.federation.members.values() if one.is_relayed}

    def _is_called_elsewhere(self, site: str) -> bool:
        """Say whether a site is called through another relay: who runs that one can repeat here what it hears."""
        member = self._taken.federation.members.get(site)
        return member is not None and member.is_relayed and (member.host, member.port) not in self._here

    async def start(self, host: str, port: int) -> asyncio.Server:
        """Listen.

        Raises:
            BadInput: nobody may listen there, or which of the federation's relays this is nobody says.
        """
        if self._address is None and len(named := self._named()) > 1:
            self._here = named & {(host, port)}
            if not self._here:
                which = " and ".join(sorted(f"{one}:{its_port}" for one, its_port in named))
                raise BadInput(f"--address: missing: federation.toml names the relays {which}: say which one this is")
        # a call has two connections, one of them counted as its caller's
        allow_files(2 * self.limits.connections + self.limits.unknown_peers + OTHER_FILES)
        try:
            server = await asyncio.start_server(self._accept, host, port, limit=self.limits.block, backlog=AT_ONCE)
            lengthen_queue(server.sockets)
        except OSError as error:
            raise BadInput(f"listen: {host}:{port} cannot be listened at: {error.strerror or error}") from None
        tell = partial(self._tell, "error")
        self._looking = asyncio.get_running_loop().create_task(lasting(self._look, tell))
        self._tell("listens", f"relay: listens at {host}:{port}, for the federation {self.federation.name}")
        return server

    def _tell(self, event: str, text: str, **facts: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._say({"time": now, "event": event, **facts, "text": short_line(text, 1000)})

    async def _look(self) -> None:
        """Cut what sites have open that the federation's file, as it is now, has no more."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            members = self.federation.members
            for writer, (site, certificate) in list(self._open.items()):
                if site not in members or certificate not in members[site].fingerprints:
                    writer.transport.abort()
            for those in (self._unknown_peers, *self._members.values()):
                those.look()

    def _refused(self, who: str, why: str) -> None:
        self._tell("refused", f"refused: {who}: {why}")

    # --- who connects ---

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # asyncio keeps a task only as long as something wakes it
        task.add_done_callback(self._tasks.discard)
        host, port = peer_address(writer)
        who, counted, refusals = f"somebody at {host}:{port}", "", self._unknown_peers
        pending = self._unknown_peers.comes(f"somebody at {host}", writer.transport.abort)
        try:
            async with asyncio.timeout(self.limits.handshake):
                site, certificate, what, other = await self._admitted(who, reader, writer)
            self._unknown_peers.goes(pending)
            who, refusals = site, self._members[site]
            if what != ANSWER:  # to a call, which is its caller's: others could use up what the site may have
                self._check_room(site)
                self._of_site[site] += 1
                counted = site
            self._open[writer] = site, certificate
            await self._serve(site, what, other, reader, writer)
        except Refused as error:
            refusals.refused(error.party, error.message)
            with contextlib.suppress(OSError):
                writer.write(framed(encode_error("relay", Refused("relay", f"refuses {error}")), ERROR))
        except Broken as error:
            refusals.refused(who, str(error))
        except (OSError, EOFError, TimeoutError):
            pass  # it went away, or said nothing
        finally:
            if counted:
                self._of_site[counted] -= 1
            await close_stream(writer)
            self._open.pop(writer, None)
            self._unknown_peers.goes(pending)

    def _check_room(self, site: str) -> None:
        if self._of_site[site] >= self.limits.per_site:
            raise Refused(site, f"has {self.limits.per_site} connections already")
        if self._of_site.total() >= self.limits.connections:
            raise Refused(site, f"comes where {self.limits.connections} connections are open already")

    async def _admitted(
        self, who: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, str, str, str]:
        """Return which site of the federation this is, by which certificate (SHA-256), what it wants, and of whom."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(framed(encode_parts(nonce)))
        kind, more, _, body = await read_piece(reader, self._pieces, HANDSHAKE_BYTES)
        found = value_of(body, who, most=HANDSHAKE_MEMORY)
        if kind != REQUEST or more or type(found) is not tuple or list(map(type, found)) != [str, str, str, str, bytes]:
            raise Refused(who, "begins with no handshake")
        federation, site, what, other, signature = found
        if max(map(len, found)) > _LONGEST_WORD:
            raise Refused(who, "begins with a handshake that is too long")
        member = self.federation.members.get(site)
        if federation != self.federation.name or member is None:
            raise Refused(
                who, f"says that it is {site!r} of {federation!r}, which is no site of {self.federation.name}"
            )
        words, certificates = signed_words(nonce, federation, site, what, other), (member.certificate, member.previous)
        by = next((one for one in certificates if _is_signed_by(one, self.federation, signature, words)), None)
        if by is None:
            raise Refused(who, f"says that it is {site}, and has not the key of a certificate of it that holds")
        if (taken := self._reader.met(self._taken, site, fingerprint(by))) is not self._taken:
            self._taken = taken
            self._note()
        if what != FETCH and self._is_called_elsewhere(there := other if what == DIAL else site):
            raise Refused(who, f"repeats what {site} says to another relay: {there} is not called through this one")
        return site, fingerprint(by), what, other

    async def _serve(
        self, site: str, what: str, other: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if what == WAIT:
            await self._wait(_Waiting(site, reader, writer))
        elif what == DIAL:
            await self._dial(site, other, reader, writer)
        elif what == ANSWER:
            call = self._calls.get(other)
            if call is None or call.called != site or call.answered.done():
                raise Refused(site, "answers a call that was not made to it, or not in time")
            call.answered.set_result((reader, writer))
            await call.done.wait()
        elif what == FETCH:
            text = encode_parts(self._taken.text)
            if sum(map(len, text)) > PIECE_BYTES:
                raise Refused(site, f"asks for the federation's file, which has more than {PIECE_BYTES} bytes")
            writer.write(framed(text, REPLY))
            async with asyncio.timeout(self.limits.silence):
                await writer.drain()
        else:
            raise Refused(site, f"asks for {what!r}, which a relay does not do")

    # --- what it wants ---

    async def _wait(self, waiting: _Waiting) -> None:
        before, self._waiting[waiting.site] = self._waiting.get(waiting.site), waiting
        if before is not None:  # the site was cut off, and the relay has not noticed
            before.writer.transport.abort()
        elif self._lines[waiting.site].take():
            self._tell("waits", f"{waiting.site} waits to be called", site=waiting.site)
        waiting.writer.write(framed([], REPLY))
        heartbeats = Heartbeats()
        try:
            while True:
                kind, _, _, body = await read_piece(waiting.reader, self._pieces, HANDSHAKE_BYTES)
                heartbeats.count()
                if kind != PING or body:
                    raise Refused(waiting.site, "says something on a connection on which it waits")
                waiting.writer.write(framed([], PING))
                async with asyncio.timeout(self.limits.silence):
                    await waiting.writer.drain()
        finally:
            if self._waiting.get(waiting.site) is waiting:
                del self._waiting[waiting.site]
                if self._lines[waiting.site].take():
                    self._tell("gone", f"{waiting.site} waits no longer", site=waiting.site)

    async def _dial(self, site: str, other: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting = self._waiting.get(other)
        if waiting is None:
            raise Refused(site, f"dials {other!r}, which does not wait here")
        if waiting.writer.transport.get_write_buffer_size() > self.limits.block:  # calls pile up that nobody reads
            waiting.writer.transport.abort()
            raise Refused(site, f"dials {other!r}, which reads nothing")
        try:
            waiting.calls.setdefault(site, Heartbeats(1 / (2 * len(self._taken.federation.members)))).count()
        except Broken:
            raise Refused(site, f"dials {other!r} all the time") from None
        token, call = secrets.token_hex(_TOKEN_BYTES), _Call(site, other)
        self._calls[token] = call
        try:
            waiting.writer.write(framed(encode_parts(token)))
            try:
                async with asyncio.timeout(self.limits.handshake):
                    far_reader, far_writer = await call.answered
            except TimeoutError:
                raise Refused(site, f"dials {other!r}, which did not answer") from None
            writer.write(framed([], REPLY))
            begun = time.monotonic()
            there, back = await self._join((reader, writer), (far_reader, far_writer))
            self._tell_of_call(site, other, there, back, time.monotonic() - begun)
        finally:
            del self._calls[token]
            call.done.set()

    def _tell_of_call(self, site: str, other: str, there: int, back: int, seconds: float) -> None:
        """Say who called whom, or count it for the next line that may be written."""
        if not self._lines[site].take():
            totals = self._unwritten[site]
            totals[:] = [total + one for total, one in zip(totals, (1, there, back), strict=True)]
            return
        text = f"{site} called {other}: {there} bytes there, {back} back, {seconds:.1f} s"
        facts = {"site": site, "other": other, "sent": there, "received": back}
        if (more := self._unwritten.pop(site, None)) is not None:
            text += f"; {more[0]} calls before it have no line: {more[1]} bytes there, {more[2]} back"
            facts |= {"more_calls": more[0], "more_sent": more[1], "more_received": more[2]}
        self._tell("relayed", text, **facts)

    async def _join(self, *ends: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> tuple[int, int]:
        """Copy what each end says to the other until one of them closes; return the bytes both ways."""
        counts = [0, 0]

        async def copy(index: int) -> None:
            reader, writer = ends[index][0], ends[1 - index][1]
            writer.transport.set_write_buffer_limits(self.limits.block)
            with contextlib.suppress(OSError, TimeoutError):
                while True:
                    async with asyncio.timeout(self.limits.silence):
                        block = await reader.read(self.limits.block)
                    if not block:
                        return
                    writer.write(block)
                    counts[index] += len(block)
                    async with asyncio.timeout(self.limits.silence):
                        await writer.drain()

        tasks = [asyncio.get_running_loop().create_task(copy(index)) for index in (0, 1)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for _, writer in ends:  # what one end said last, the other hears
                await close_stream(writer)
        return counts[0], counts[1]


def _is_signed_by(certificate: Any, federation: Federation, signature: bytes, words: bytes) -> bool:
    if certificate is None or not verify(key_of(certificate), signature, words):
        return False
    return holds(certificate, federation.authorities)

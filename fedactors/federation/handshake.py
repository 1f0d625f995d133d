"""How two sites meet: TLS with both certificates, a handshake, and what becomes of a link that comes back.

    dials ──(version, federation, purpose, run, assignment, clock, session, bytes taken, of its file)──▶ is dialled
          ◀──(clock, bytes taken, version of its federation.toml), or why not────────────────────────────────────────
          ──what the link carries─▶ ◀─and from here on in both directions────────────

A link that comes back is known by its session, to the site that dialled it before: the certificates are shown anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.federation.identity import Member
from fedactors.federation.relay import open_stream, open_websocket, through_relay
from fedactors.federation.session import (
    ERROR,
    HANDSHAKE_BYTES,
    HANDSHAKE_MEMORY,
    NEW,
    PIECE_BYTES,
    REPLY,
    VERSION,
    Broken,
    Connection,
    Hello,
    Limits,
    WayRefused,
    ahead_of,
    close_stream,
    framed,
    handshake_in,
    peer_address,
    read_piece,
    reason,
    refusal_in,
    start_tls,
    value_of,
)
from fedactors.federation.site_folder import SiteFolder
from fedactors.messages.codec import encode_parts
from fedactors.runtime.failures import encode_error


async def dial(folder: SiteFolder, member: Member, hello: Hello, limits: Limits, **ends: Any) -> Connection:
    """Open a connection to another site and say what for; it is dialled anew by itself when it breaks.

    Raises:
        PartyLost: nobody answers there, or not in time.
        Refused: one of the two certificates is not the federation's, or the site does not want this connection.
    """
    again = partial(_meet, folder, member, hello, limits, NEW)
    connection = Connection(peer=member.name, limits=limits, **ends)
    await again(connection)
    connection.again = partial(_meet, folder, member, hello, limits, None)
    connection.check = partial(check_member, folder)
    connection.start()
    return connection


def check_member(folder: SiteFolder, connection: Connection) -> None:
    """Cut a link to a site whose certificate holds no longer, and give one up to a site that is none any more."""
    federation = folder.federation
    if (member := federation.members.get(connection.peer)) is None:
        connection.give_up(f"{connection.peer} is no site of {federation.name} any more")
    elif connection.certificate not in member.fingerprints:
        connection.cut("its certificate holds no longer")


async def _meet(
    folder: SiteFolder, member: Member, hello: Hello, limits: Limits, taken: int | None, connection: Connection
) -> None:
    """Dial, greet, and let the link go on over this connection; `taken` is NEW where it begins.

    Raises: see `dial`.
    """
    where = member.where
    writer: asyncio.StreamWriter | None = None
    is_carried = False
    try:
        async with asyncio.timeout(limits.handshake):
            if member.is_relayed:
                reader, writer = await through_relay(folder, member, limits)
            elif member.url or (folder.proxy is not None and folder.proxy.is_for(member.host)):
                opening = open_websocket(folder, member, limits) if member.url else None
                reader, writer = await (opening or open_stream(folder, member.host, member.port))
                await start_tls(reader, writer, folder.client_tls, limits.handshake, member.name)
            else:
                reader, writer = await asyncio.open_connection(
                    member.host, member.port, ssl=folder.client_tls, server_hostname=member.name, limit=2 * PIECE_BYTES
                )
            der = writer.get_extra_info("ssl_object").getpeercert(True)
            try:
                shown = folder.identified(der)
            except BadInput as error:
                raise Refused(member.name, f"{where} {error}") from None
            if shown[0] != member.name:
                raise Refused(member.name, f"{where} shows a certificate that is not {member.name}'s")
            folder.met(*shown)
            connection.certificate = shown[1]
            clock = time.time() if hello.clock is None else hello.clock
            taken = connection.stream.taken if taken is None else taken
            about = (hello.federation, hello.purpose, hello.run, hello.assignment, clock, connection.session, taken)
            writer.write(framed(encode_parts((VERSION, *about, folder.federation.version))))
            asked = time.time()
            await writer.drain()
            try:
                kind, _, _, body = await read_piece(reader, limits)
            except (EOFError, ConnectionError, ssl.SSLError) as error:
                # with TLS 1.3 this side may take itself for connected when the other has seen no certificate yet
                text = f"{where} closed the connection: it refuses the certificate of {folder.name} ({reason(error)})"
                raise Refused(member.name, text) from None
            if kind != REPLY:
                refused = refusal_in(body, member.name)
                if taken != NEW:  # it would say so again
                    connection.give_up(refused.message)
                raise refused
            theirs = value_of(body, member.name, most=HANDSHAKE_MEMORY)
            if type(theirs) is not tuple or [type(part) for part in theirs] != [float, int, int]:
                raise Refused(member.name, "does not say what time it is there")
            folder.heard(member.name, theirs[2])
            connection.clock_seconds = ahead_of(theirs[0], (asked + time.time()) / 2, limits)
        if connection.is_closed:
            return
        connection.carry(writer, theirs[1], is_dialled=True)
        is_carried = True
    except Broken as error:
        raise Refused(member.name, str(error)) from None
    except ssl.SSLCertVerificationError as error:
        raise Refused(member.name, f"{where} shows an untrusted certificate: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise Refused(member.name, f"{where} refuses the certificate of {folder.name} ({reason(error)})") from None
    except TimeoutError:
        raise PartyLost(member.name, f"its site did not answer at {where} within {limits.handshake:g} s") from None
    except WayRefused as error:
        said = f"its site is not reached at {where}"  # how, is of this site's network
        raise PartyLost(member.name, f"{said}: {error}").telling(f"{said} from {folder.name}") from None
    except (OSError, EOFError) as error:
        said, remedy = f"its site does not answer at {where}", "is it started? There: fedactors site start"
        raise PartyLost(member.name, f"{said} ({reason(error)}): {remedy}").telling(f"{said}: {remedy}") from None
    finally:
        if not is_carried and writer is not None:
            await close_stream(writer)


Welcome = Callable[[str, Hello], dict[str, Any]]
"""Is told who dials and what for; returns how `Connection` is to be made, or raises `Refused`."""
Links = MutableMapping[tuple[str, str], Connection]
"""The links that others dialled, by site and session."""


async def accept(
    folder: SiteFolder,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    limits: Limits,
    links: Links,
    welcome: Welcome,
    refused: Callable[[str, str], None],
    identified: Callable[[str], None],
    address: str | None = None,
) -> Connection | None:
    """Make a connection of one that somebody dialled, or go on with theirs; or tell them, and `refused`, why not.

    Args:
        folder: of this site.
        reader: as it was accepted, without TLS.
        writer: likewise.
        limits: see there.
        links: that there are.
        welcome: see there.
        refused: is told who was refused (a site, or an address) and why.
        identified: is told which site showed its certificate.
        address: that it came from; None: as the stream says.

    Returns:
        The connection, if it is new.
    """
    if address is None:
        address = "{}:{}".format(*peer_address(writer))
    who = f"somebody at {address}"
    try:
        async with asyncio.timeout(limits.handshake):
            await start_tls(reader, writer, folder.server_tls, limits.handshake)
            certificate = writer.get_extra_info("ssl_object").getpeercert(True)
            try:
                shown = folder.identified(certificate)
            except BadInput as error:
                raise Broken(str(error)) from None
            folder.met(*shown)
            who = peer = shown[0]
            identified(peer)
            _, _, _, body = await read_piece(reader, limits, HANDSHAKE_BYTES)
            found = handshake_in(body)
            if found is None:
                raise Broken("begins with no handshake")
            version, hello = found
            if version != VERSION or hello is None:
                raise Broken(f"speaks version {version} of the link, and {folder.name} version {VERSION}")
            if hello.federation != folder.federation.name:
                raise Broken("speaks for another federation")
            clock = ahead_of(hello.clock or 0.0, time.time(), limits)
            known = links.get((peer, hello.session))
            if hello.taken == NEW:
                if known is not None:
                    raise Broken("begins a link for the second time")
                made = {"limits": limits, **welcome(peer, hello)}
                connection = Connection(peer=peer, session=hello.session, clock_seconds=clock, **made)
            elif known is None or known.is_closed:
                raise Broken("would go on with a link that is over, or was when the site started again")
            else:
                connection = known
            connection.certificate = shown[1]
            folder.heard(peer, hello.known)
            # nothing is written to it before the other side, having read the answer, has said something
            connection.carry(writer, max(0, hello.taken), is_dialled=False)
            answer = (time.time(), connection.stream.taken, folder.federation.version)
            writer.write(framed(encode_parts(answer), REPLY))
    except (Broken, Refused) as error:
        text = error.message if isinstance(error, Refused) else str(error)
        refused(who, text)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(limits.handshake):
                writer.write(framed(encode_error(folder.name, Refused(folder.name, f"refused {who}: {text}")), ERROR))
                await writer.drain()
        await close_stream(writer)
        return None
    except (TimeoutError, OSError, EOFError) as error:
        text = (
            f"did not end its handshake within {limits.handshake:g} s"
            if isinstance(error, TimeoutError)
            else _told(error)
        )
        refused(who, text)
        await close_stream(writer)
        return None
    if connection is known:
        return None
    links[peer, hello.session] = connection
    connection.start()
    return connection


def _told(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"shows an untrusted certificate: {error.verify_message}"
    return reason(error)

"""Whether a Ray cluster answers at an address; found out without Ray, before anything is made and while a run lasts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
from collections.abc import Iterator

from fedactors.errors import BadInput
from fedactors.validation import shown

CONNECT_SECONDS = 10.0
VARIABLE = "RAY_ADDRESS"
# between the ports of Ray's processes (to 19,999) and those that Linux gives to clients (from 32,768)
_FREE_PORTS = range(20_000, 32_768)
_TRIES = 1_000
_RETRY_SECONDS = 0.2
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_EMPTY_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.\-]{0,252}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")


def check_cluster(given: str | None) -> str | None:
    """Return the address of the cluster that a run joins: as given, else RAY_ADDRESS; None: one is to be started here.

    Raises:
        BadInput: as `check_reachable`; it says where the address comes from.
    """
    if given:
        check_reachable(given)
        return given
    address = os.environ.get(VARIABLE)
    with naming_the_variable(address):
        if address:
            check_reachable(address, VARIABLE)
    return address or None


@contextlib.contextmanager
def naming_the_variable(address: str | None) -> Iterator[None]:
    """Say of errors about the address that the environment gives what ends them."""
    try:
        yield
    except BadInput as error:
        if address is None:
            raise
        raise BadInput(f"{error}; unset {VARIABLE} to start Ray here, or give --address") from None


def check_reachable(address: str, field: str = "address") -> None:
    """Raise `BadInput` within `CONNECT_SECONDS` when nobody listens at ``host:port``.

    Args:
        address: "auto" passes: which one that is Ray says, when it is joined.
        field: what the address was given by, for errors.
    """
    if address == "auto":
        return
    if address.startswith("ray://"):
        raise BadInput(
            f"{field}: {address!r} is not allowed: give host:port of a cluster that this machine belongs to, "
            "or submit the scenario with `ray job submit`"
        )
    host, _, port = address.rpartition(":")
    if not _HOST.fullmatch(host) or not port.isascii() or not port.isdecimal() or not 0 < int(port[:6]) < 65536:
        raise BadInput(f"{field}: {shown(address)} is not allowed: it must be host:port or auto")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            is_plain = _speaks_grpc(connection)
            if uses_tls() and is_plain:
                raise BadInput(f"{field}: the cluster at {address!r} does not encrypt, and RAY_USE_TLS is set here")
            if not uses_tls() and not is_plain:
                raise BadInput(
                    f"{field}: what answers at {address!r} is no Ray cluster, or one that encrypts "
                    "(then set RAY_USE_TLS=1 and the certificates)"
                )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"{field}: nobody answers at {address!r} ({reason})") from None


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port at which nobody listens, and which this machine gives to no connection in the meantime.

    What a system gives for port 0 is one of those that any process which connects somewhere may get a moment later.

    Raises:
        BadInput: none of a thousand ports can be had.
    """
    for port in random.SystemRandom().sample(_FREE_PORTS, _TRIES):
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind((host, port))
            return port
    raise BadInput(f"address: no port of {host} is free between {_FREE_PORTS[0]} and {_FREE_PORTS[-1]}")


def uses_tls() -> bool:
    """Say whether Ray would encrypt what this process says to a cluster."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _speaks_grpc(connection: socket.socket) -> bool:
    """Say whether the other side greets as an HTTP/2 server does; Ray itself would try for minutes."""
    connection.sendall(_PREFACE + _EMPTY_SETTINGS)
    head = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while len(head) < len(_EMPTY_SETTINGS) and (more := connection.recv(len(_EMPTY_SETTINGS))):
            head += more
    return head[3:4] == _EMPTY_SETTINGS[3:4]


async def greets(address: str) -> None:
    """Return once a service of Ray's at ``host:port`` shows that it lives: it accepts a connection and greets."""
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                if uses_tls():
                    return
                writer.write(_PREFACE + _EMPTY_SETTINGS)
                if await reader.read(1):
                    return
            finally:
                writer.close()
        await asyncio.sleep(_RETRY_SECONDS)


async def refuses(address: str) -> bool:
    """Say whether nobody listens at ``host:port`` any more, on a host that can be reached."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    writer.close()
    return False

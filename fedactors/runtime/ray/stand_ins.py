"""Stand-ins: how the Ray of one organisation sees the actors of others.

    own actor's process ──lane──▶ StandIn in the site's process ──gate, TLS──▶ the other site
    own actor's process ◀──lane── StandIn in the site's process ◀──gate, TLS── the other site

To a process of this Ray a stand-in is one more actor: it has a name, a key and a socket, and calls in its own name with
a ticket of its own. It keeps and decides nothing: the site's gate checks each message, in the site's process.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

from fedactors.errors import Refused
from fedactors.network.codec import Parts, decode, encode_parts
from fedactors.runtime import calls
from fedactors.runtime.failures import encode_error
from fedactors.runtime.federated.gate import Place
from fedactors.runtime.federated.household import Outside, fetch_abroad
from fedactors.runtime.federated.pieces import value_of
from fedactors.runtime.ray.lanes import Address, Lanes
from fedactors.runtime.ray.transport import ERROR, REPLY, Caller, Incoming, shown_by


class StandIn:
    """One actor of another site; see the module.

    Args:
        place: whom it stands for.
        outside: the run at this site.
        host: the Ray host that this process is on.
        call_timeout: seconds within which each call must be answered.
    """

    def __init__(self, place: Place, outside: Outside, host: str, call_timeout: float) -> None:
        self.key = secrets.token_bytes(32)
        self.lanes = Lanes(place.name, host, True, call_timeout, outside.unawaited)
        """Its ways to actors of this site."""
        self._place = place
        self._outside = outside
        self._host = host
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, socket: Path) -> Address:
        """Listen at a path; return where processes of this host find it."""
        loop, place = asyncio.get_running_loop(), self._place
        self._server = await loop.create_unix_server(
            lambda: Incoming(self._recognise, self._serve, self._give, self.lanes.memory), str(socket)
        )
        return Address(place.name, place.role, self._host, str(socket), 0, 0, None, place.doors, b"")

    def close(self) -> None:
        """Be there no more."""
        if self._server is not None:
            self._server.close()
        self.lanes.close()

    def _recognise(self, hello: memoryview) -> Caller | None:
        name, incarnation = shown_by(hello, self.key) or ("", None)
        return None if incarnation is None else Caller(name, self._outside.gate.role(name), incarnation)

    async def _serve(self, caller: Caller, body: memoryview) -> tuple[int, Parts]:
        """Call the actor that this one stands for."""
        gate, place = self._outside.gate, self._place
        try:
            asked, value = _pair(body, caller.name)
            path, value, _ = gate.call_out(caller.name, place, asked, value)
            parts = encode_parts((caller.name, place.name, asked, value))
            sent = self._outside.send(place.site, "calls", parts, f"{place.name}.{asked}")
            reply = value_of(await sent, place.name)
            gate.reply_in(path, reply)
            return REPLY, encode_parts(reply)
        except Exception as error:
            return self._refusal(error)

    async def _give(self, caller: Caller, body: memoryview) -> tuple[int, Parts]:
        """Fetch a payload of the actor that this one stands for."""
        try:
            value = await fetch_abroad(self._outside, caller.name, self._place, decode(body))
            return REPLY, encode_parts(((caller.name,), value))
        except Exception as error:
            return self._refusal(error)

    def _refusal(self, error: Exception) -> tuple[int, Parts]:
        if isinstance(error, Refused):
            self._outside.note(error)
        return ERROR, encode_error(self._place.name, error)

    async def fetch(self, owner: str, key: int) -> Any:
        """Return a payload of an actor of this site, which says whether it may be had; it is checked here."""
        _, value = _pair(await self.lanes.fetch(self.lanes.book[owner], key), owner)
        calls.receive(self._outside.gate.book[owner].doors, owner, value)
        return value


def _pair(frame: bytes | memoryview, sender: str) -> tuple[Any, Any]:
    found = value_of(frame, sender)
    if type(found) is not tuple or len(found) != 2:
        raise Refused(sender, "sends what is no call")
    return found

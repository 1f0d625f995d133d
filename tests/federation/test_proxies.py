"""A proxy hands what an actor's process says to the gate, and to nobody past it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.actors.actor import Client
from fedactors.actors.remote import CLIENT, DRIVER, remote
from fedactors.errors import PartyLost, Refused
from fedactors.federation.hosting import Gate, make_book
from fedactors.federation.ray_hosting import RemoteActorProxy
from fedactors.messages.codec import Parts, decode, encode, encode_parts, message
from fedactors.messages.ledger import CLIENT_CLIENT
from fedactors.runtime.calls import CallPath
from fedactors.runtime.failures import UnawaitedCall
from fedactors.runtime.ray.transport import LocalTransport, ticket

A, B = "bank/a", "shop/b"


@message(reveals="a number", readers="whom it was put for")
class Number:
    """A number."""

    value: float


class Answerer(Client):
    """Who is asked."""

    payloads = (Number,)

    @remote(caller=CLIENT)
    async def double(self, order: Number) -> Number:
        """Answer with twice the number."""
        return Number(2 * order.value)

    @remote(caller=DRIVER)
    async def finish(self) -> None:
        """End."""


class Site:
    """The bank's end of a run: what reaches the link, and what was refused before."""

    def __init__(self) -> None:
        book = make_book([(A, "Answerer"), (B, "Answerer")], [Answerer], lambda name: name.partition("/")[0])
        self.gate = Gate("bank", "bank", book)
        self.unawaited = UnawaitedCall(lambda error: None, lambda name: True)
        self.sent: list[Any] = []
        self.refused: list[str] = []
        self.answer: Any = Number(6.0)
        self.journal, self.scope = None, ""

    def send(self, site: str, purpose: str, parts: Parts, what: str) -> asyncio.Future[Any]:
        self.sent.append((site, purpose, decode(b"".join(parts))))
        reply = asyncio.get_running_loop().create_future()
        reply.set_result(encode(self.answer))
        return reply

    def note(self, error: Refused) -> None:
        self.refused.append(str(error))

    def failed(self, actor: str, error: BaseException) -> None:
        raise AssertionError(error)

    def output(self, to: str) -> Path:
        raise AssertionError(to)


def between(folder: Path, act: Callable[[Site, LocalTransport], Coroutine[Any, Any, Any]], caller: str = A) -> Site:
    """Let the process of an actor of the bank do something with the proxy of the shop's."""
    site = Site()

    async def main() -> None:
        one = RemoteActorProxy(site.gate.book[B], site, "here", 5.0)
        address = await one.listen(folder / "transport")
        transport = LocalTransport(A, "here", True, 5.0, site.unawaited)
        transport.update({B: replace(address, ticket=ticket(one.key, caller))})
        try:
            await act(site, transport)
        finally:
            transport.close()
            one.close()

    asyncio.run(main())
    return site


def ask(transport: LocalTransport, method: str, value: Any) -> asyncio.Future[Any]:
    there = transport.address(B, A)
    path = CallPath(there.endpoints, there.endpoints.table["double"], A, B, CLIENT_CLIENT)
    return transport.send(there, path, encode_parts((method, value)))


def test_a_call_and_a_payload_go_through_the_gate_and_are_counted(tmp_path: Path) -> None:
    async def act(site: Site, transport: LocalTransport) -> None:
        assert (await ask(transport, "double", Number(3.0))).value == 6.0
        readers, value = decode(await transport.fetch(transport.address(B, A), 77))
        assert (readers, value.value) == ((A,), 6.0)

    site = between(tmp_path, act)
    assert site.sent == [("shop", "calls", (A, B, "double", Number(3.0))), ("shop", "payloads", (A, B, 77))]
    assert not site.refused
    assert [(total.sender, total.type, total.messages) for total in site.gate.left.totals()] == [(A, "Number", 1)]
    assert [(total.sender, total.messages) for total in site.gate.arrived.totals()] == [(B, 2)]


FORGED = {
    "an endpoint that is not there": ("open", Number(1.0), "there is no endpoint|no endpoint"),
    "the driver's endpoint": ("finish", None, "finish"),
    "a field of another type": ("double", Number("secret"), "declared as"),  # type: ignore[arg-type]
    "another message": ("double", np.zeros(3), "takes a Number"),
    "no name": (7, Number(1.0), "endpoint"),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_the_gate_refuses_does_not_leave(tmp_path: Path, what: str) -> None:
    method, value, text = FORGED[what]

    async def act(site: Site, transport: LocalTransport) -> None:
        with pytest.raises(Refused, match=text):
            await ask(transport, method, value)

    site = between(tmp_path, act)
    assert not site.sent
    assert len(site.refused) == 1
    assert "secret" not in site.refused[0]
    assert not list(site.gate.left.totals())


def test_an_answer_that_no_endpoint_gives_does_not_reach_the_actor(tmp_path: Path) -> None:
    async def act(site: Site, transport: LocalTransport) -> None:
        site.answer = np.zeros(3)
        with pytest.raises(Refused, match="double returned a ndarray"):
            await ask(transport, "double", Number(3.0))
        with pytest.raises(Refused, match="is no payload of Answerer"):
            await transport.fetch(transport.address(B, A), 77)

    assert len(between(tmp_path, act).refused) == 2


def test_nobody_calls_in_anothers_name(tmp_path: Path) -> None:
    async def act(site: Site, transport: LocalTransport) -> None:
        with pytest.raises(PartyLost, match="its process was lost"):
            await ask(transport, "double", Number(3.0))

    assert not between(tmp_path, act, caller="bank/other").sent

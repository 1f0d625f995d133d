"""Who carries a link between two sites says nothing in it, and leads nobody elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedactors.errors import PartyLost, Refused
from fedactors.federation.handshake import dial
from fedactors.federation.relay import Relay
from fedactors.federation.session import ERROR, NEW, REPLY, VERSION, Hello, framed
from fedactors.federation.site_folder import Proxy
from fedactors.messages.codec import encode_parts
from fedactors.runtime.addresses import free_port
from fedactors.runtime.failures import encode_error, errors_for
from tests.federation.test_relay import Running, relayed
from tests.federation.world import BANK, LIMITS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, family="hostile")]
FORGED = "is what its carrier made up"


def writes(monkeypatch: pytest.MonkeyPatch, method: str, following: bytes) -> None:
    """Let a relay write bytes of its own right after the first that one of its methods writes."""
    honest = getattr(Relay, method)

    async def act(self: Relay, *args: Any) -> Any:
        writer = args[-1]
        write = writer.write

        def once(data: bytes) -> None:
            writer.write = write
            write(data + following)

        writer.write = once
        return await honest(self, *args)

    monkeypatch.setattr(Relay, method, act)


def dialled(world: World, **proxied: Any) -> str:
    """Dial the shop as the bank; return why it is not reached."""
    bank = world.folder(BANK)
    bank.proxy = proxied.get("proxy")
    ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}

    async def work() -> None:
        hello = Hello("credit", "check", "", "")
        await (await dial(bank, bank.federation.members[SHOP], hello, LIMITS, **ends)).end()

    try:
        asyncio.run(work())
    except (PartyLost, Refused) as error:
        return str(error)
    return ""


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[tuple[World, Running]]:
    """Two sites, and a relay between them."""
    port = free_port()
    world = relayed(tmp_path, port)
    relay = Running(world, port)
    world.start(SHOP)
    relay.await_text("shop waits to be called")
    yield world, relay
    world.stop()
    relay.stop()


MADE_UP = {
    "a refusal": framed(encode_error(SHOP, Refused(SHOP, FORGED)), ERROR),
    "an answer": framed(encode_parts((time.time(), 7, 1 << 40)), REPLY),
}


@pytest.mark.parametrize("words", MADE_UP.values(), ids=MADE_UP)
def test_a_relay_answers_nobody_in_the_name_of_the_site_that_is_called(
    joined: tuple[World, Running], monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    """Its bytes come before the first of TLS, so that whoever reads both in one go takes them for the site's."""
    world, _ = joined
    writes(monkeypatch, "_dial", words)
    why = dialled(world)
    assert "before TLS" in why
    assert FORGED not in why
    monkeypatch.undo()
    assert dialled(world) == ""


def test_a_relay_asks_nobody_in_the_name_of_the_site_that_calls(
    joined: tuple[World, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = joined
    about = ("credit", "driver", "f" * 16, FORGED, time.time(), "e" * 32, NEW, 0)
    honest = Relay._dial

    async def call(self: Relay, *args: Any) -> None:  # the next who comes is the site that is called
        writes(monkeypatch, "_admitted", framed(encode_parts((VERSION, *about))))
        await honest(self, *args)

    monkeypatch.setattr(Relay, "_dial", call)
    assert dialled(world) != ""
    monkeypatch.undo()
    assert dialled(world) == ""  # whatever the shop had to say of the call before is in its log now
    assert [said for said in world.refusals(SHOP) if said.startswith(BANK)] == []


def answering(answer: bytes, heard: list[bytes], *, hears_more: bool = True) -> int:
    """Answer the first who connects to a port of this host, and hear what they say then; return the port."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = int(listening.getsockname()[1])

    def work() -> None:
        with listening, listening.accept()[0] as made:
            made.settimeout(30)
            with contextlib.suppress(OSError):
                heard.append(made.recv(65536))
                made.sendall(answer)
                if hears_more:
                    heard.append(made.recv(65536))

    threading.Thread(target=work, daemon=True).start()
    return port


def test_a_proxy_says_nothing_before_the_two_sites_speak_tls(tmp_path: Path) -> None:
    world = World(tmp_path)
    heard: list[bytes] = []
    port = answering(b"HTTP/1.1 200 OK\r\n\r\n" + MADE_UP["a refusal"], heard)
    why = dialled(world, proxy=Proxy("127.0.0.1", port, None, frozenset()))
    assert "before TLS" in why
    assert FORGED not in why


def test_a_balancer_sends_a_site_nowhere_else(tmp_path: Path) -> None:
    """Else a member whose address is a WebSocket's has others ask what they alone reach."""
    pytest.importorskip("websockets", reason="websockets is not installed: pip install 'fedactors[websocket]'")
    world, heard, asked = World(tmp_path), list[bytes](), list[bytes]()
    inside = answering(b"HTTP/1.1 200 OK\r\n\r\n", asked)
    lines = ["HTTP/1.1 307 Temporary Redirect", f"Location: ws://127.0.0.1:{inside}/admin?restart=1", "", ""]
    balancer = answering("\r\n".join(lines).encode(), heard, hears_more=False)
    bank = world.folder(BANK)
    member = replace(bank.federation.members[SHOP], url=f"ws://127.0.0.1:{balancer}", port=balancer)
    ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
    with pytest.raises(PartyLost, match=r"answers with no WebSocket: .*307"):
        asyncio.run(dial(bank, member, Hello("credit", "check", "", ""), LIMITS, **ends))
    assert heard
    assert asked == []
    socket.create_connection(("127.0.0.1", inside)).close()

"""How a test does something at a site in the middle of a run, or asks a site for what no honest coordinator would."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fedactors.config import as_dict, build, spell_infinities
from fedactors.federation.approval import make_proposal
from fedactors.federation.handshake import dial
from fedactors.federation.hosting import Life
from fedactors.federation.session import Connection, Hello
from fedactors.federation.site_run import SiteRun
from fedactors.plugins import find_protocol
from fedactors.runtime.failures import errors_for
from tests.federation.test_runs import SMALL
from tests.federation.world import BANK, LIMITS, SHOP, World

LONG = ("num_epochs=100000", *SMALL[1:])
WORKER, BROKER = f"{SHOP}/worker-0", "broker"


def in_mid_run(world: World, site: str, act: Callable[[SiteRun], None]) -> threading.Thread:
    """Do something in the thread of a site once its next run is under way; return the thread that waits for that."""

    def wait() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            run = world.run(site)
            if run is not None and run.life is Life.OPEN and run.gate.left.messages():
                world.on(site, partial(act, run))
                return
            time.sleep(0.02)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def begin(connection: Connection, writer: asyncio.StreamWriter, *, is_dialled: bool = False) -> Connection:
    """Let a connection begin over what was just dialled."""
    connection.carry(writer, 0, is_dialled=is_dialled)
    connection.start()
    return connection


class Rogue:
    """A coordinator at the bank that says what it likes to the shop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder = world.folder(BANK)
        protocol = find_protocol("pubsub-vfl")
        self.config = build(protocol.Config, {"on_party_loss": "stop"})
        settings = spell_infinities(as_dict(self.config))
        self.proposal = make_proposal(self.folder, protocol, settings, "bank=customers,shop=orders", None)

    def say(self, *requests: tuple[str, tuple[Any, ...]]) -> None:
        """Make these requests, one after the other; the first refusal is raised."""

        async def work() -> None:
            hello = Hello("credit", "driver", self.proposal.run, "")
            ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
            shop = self.folder.federation.members[SHOP]
            connection = await dial(self.folder, shop, hello, LIMITS, **ends)
            try:
                for verb, args in requests:
                    async with asyncio.timeout(30):
                        await connection.ask((verb, args), verb)
            finally:
                await connection.end()

        asyncio.run(work())

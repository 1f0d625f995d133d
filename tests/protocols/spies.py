"""A peer inside a protocol's own run that tries every endpoint of another actor.

On Ray past its own side's refusal too.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any

import pytest

from fedactors.actors.actor import Actor, Client, DataCenter, Server
from fedactors.actors.remote import Endpoint, Endpoints, endpoints
from fedactors.errors import Refused
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.runtime.interface import Runtime

NO_ENDPOINTS = ("load", "close", "open", "record_privacy")


@dataclass(frozen=True)
class Blind(Endpoints):
    """Endpoints of another program's, which asks whatever it likes."""

    def check(self, method: Any, caller: str, role: str, receiver: str, value: Any) -> Endpoint:
        return self.table.get(method) or Endpoint(method, (type(value),), (NoneType,), frozenset())

    def check_fields(self, sender: str, value: Any) -> None:
        """Let whatever it is leave."""


class Spying(Actor):
    """Tries all endpoints of a class at an actor, but those `spared`, and what is no endpoint.

    The run says how many.
    """

    def __init__(self, victim: str, address: str, spared: tuple[str, ...]) -> None:
        self.victim, self.address, self.spared = victim, address, spared

    async def load(self) -> None:
        module, name = self.address.split(":")
        cls = getattr(importlib.import_module(module), name)
        tried = 0
        for blind in (False, True) if hasattr(self._context, "transport") else (False,):
            peer: Any = self.peer(self.victim, cls)
            if blind:
                self._look_away(cls)
            for endpoint in endpoints(cls).table.values():
                if endpoint.name not in self.spared:
                    await self._refused(getattr(peer, endpoint.name), endpoint, blind)
                    tried += 1
            if not blind:
                for method in NO_ENDPOINTS:
                    with pytest.raises((Refused, TypeError)):
                        await getattr(peer, method)()
                    tried += 1
        self.record_privacy(PrivacyRecord(party=self.party, message_type=str(tried), mechanism="none"))

    def _look_away(self, cls: type) -> None:
        transport = self._context.transport  # type: ignore[attr-defined]
        known = endpoints(cls)
        blind = Blind(**{field.name: getattr(known, field.name) for field in dataclasses.fields(Endpoints)})
        transport.book.put(dataclasses.replace(transport.book[self.victim], endpoints=blind))

    async def _refused(self, call: Callable[..., Awaitable[Any]], endpoint: Endpoint, blind: bool) -> None:
        taken = endpoint.takes[0]
        made = () if taken is NoneType else (taken(*(None for _ in dataclasses.fields(taken))),)
        with pytest.raises(Refused) as caught:
            await call(*made)
        assert caught.value.party == self.name
        assert f"{self.victim}.{endpoint.name}, which is open to" in str(caught.value)


class SpyingClient(Spying, Client):
    """A spy among the clients."""


class SpyingServer(Spying, Server):
    """A spy among the servers."""


class SpyingCenter(Spying, DataCenter):
    """A spy among the data centers."""


SPIES: dict[str, type[Spying]] = {"client": SpyingClient, "server": SpyingServer, "center": SpyingCenter}


def spy_on(runtime: Runtime, **targets: tuple[str, str, tuple[str, ...]]) -> Callable[[], list[int]]:
    """Cast a spy of a role for each (victim, class, endpoints open to it); what is returned counts the attempts."""
    for name, (victim, address, spared) in targets.items():
        role = name.partition("_")[0]
        runtime.spawn(SPIES[role], f"spy-{name.replace('_', '-')}", victim, address, spared)
    return lambda: [int(one.message_type) for one in runtime.privacy_records if one.party.startswith("spy-")]

"""Clients that never communicate: `standalone` (each with its own block) and `centralised` (one with everything).

client 1 .. M     T rounds on its own graph, each on its own; the accuracy is the mean over the clients
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fedactors.errors import PartyLost
from protocols.glasu.actors import GraphClient
from protocols.glasu.messages import Stamp


class Alone:
    """Stands where the server does in a run; who is lost is left out under ``on_party_loss=continue``."""

    def __init__(self, clients: Mapping[str, GraphClient], on_party_loss: str) -> None:
        self._clients = dict(clients)
        self._on_party_loss = on_party_loss

    async def train_round(self, round_index: int) -> dict[str, float]:
        """Let every client do its own round; return the mean losses."""
        stamp = Stamp(round_index, 0, False, (0,))
        found = await self._each("train_alone", stamp)
        losses = {"loss": [one.first_loss for one in found], "last_loss": [one.last_loss for one in found]}
        return {name: sum(values) / len(values) for name, values in losses.items()} | {"num_members": len(found)}

    async def evaluate(self, round_index: int) -> dict[str, float]:
        """Return the clients' mean accuracies."""
        found = await self._each("evaluate_alone", Stamp(round_index, 0, True, (0,)))
        test = [one.test for one in found]
        return {
            "validation_accuracy": sum(one.validation for one in found) / len(found),
            "test_accuracy": sum(test) / len(found),
            "mean_client_accuracy": sum(test) / len(found),
            "least_client_accuracy": min(test),
        }

    async def remember(self) -> None:
        """Let every client keep its present parameters as the best so far."""
        await self._each("remember")

    async def account(self) -> dict[str, object]:
        """Let every client write its lines of the privacy ledger."""
        found = await self._each("account")
        return dict(zip(self._clients, found, strict=True))

    async def gather_introductions(self) -> tuple[str, ...]:
        """Return the clients' remarks on their data."""
        found = await self._each("introduce")
        return tuple(dict.fromkeys(remark for one in found for remark in one.remarks))

    async def rejoin(self) -> None:
        """Take a run up again: nothing has to be exchanged."""

    async def _each(self, method: str, *args: object) -> list[Any]:
        answers = await asyncio.gather(
            *(getattr(client, method)(*args) for client in self._clients.values()), return_exceptions=True
        )
        for name, answer in zip(list(self._clients), answers, strict=True):
            if isinstance(answer, PartyLost) and self._on_party_loss == "continue" and len(self._clients) > 1:
                del self._clients[name]
            elif isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

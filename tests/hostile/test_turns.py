"""A server that sends most clients the next order while they follow the one before would add up parts of two states."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.context import Work
from fedactors.actors.remote import current_caller
from fedactors.api import simulate
from fedactors.data.alignment.ids import AlignmentOrder
from fedactors.learning.network import on_host
from fedactors.plugins import find_protocol
from fedactors.protocols.glasu import messages
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.aggregation import AggregationServer
from fedactors.protocols.glasu.privacy import point_of
from fedactors.protocols.mtcd.actors import Party, TokenClient
from fedactors.runtime.snapshots import apply, capture
from fedactors.secure_sums.actors import SecureSummand, as_bytes, in_turn
from fedactors.secure_sums.messages import framed

pytestmark = pytest.mark.slow
WORK = Work("aggregate", 1.0)
Ask = Callable[[Any, str], Awaitable[Any]]


async def in_two_states(server: Any, group: Any, first: Ask, second: Ask) -> dict[str, Any]:
    """Send the last client the second order when it has followed the first, all others while they still follow it."""
    *others, victim = group.members
    ask = {name: (lambda order, name=name: order(group.handle(name), name)) for name in group.members}  # type: ignore[misc]
    under_way = {name: asyncio.ensure_future(ask[name](first)) for name in group.members}
    await server.clock.sleep(0.002)
    assert not any(under_way[name].done() for name in others), "the second order comes too late to show anything"
    parts = {name: asyncio.ensure_future(ask[name](second)) for name in others}
    await under_way[victim]
    return {**{name: await part for name, part in parts.items()}, victim: await ask[victim](second)}


def attacked(monkeypatch: pytest.MonkeyPatch, name: str, cls: Any, step: str, attack: Any, **words: Any) -> None:
    """Let a server do something else in place of one of its steps, which ends the run when it is over."""

    async def other(self: Any, *told: Any) -> Any:
        return await attack(self, *told)

    monkeypatch.setattr(cls, step, other)
    with pytest.raises(SystemExit, match="over"):
        simulate(name, seed=1, **{**find_protocol(name).smoke, "secure_aggregation": True, **words})


GLASU: Mapping[str, Any] = {"num_clients": 5, "on_party_loss": "stop", "num_local_updates": 50}


def test_a_classifier_is_summed_with_those_of_the_same_number_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one would give the averaged one, which the server knows, and one what it has made of that."""
    exact, honest, update = {}, GraphClient._changed, AggregationServer._update

    def changed(self: GraphClient, parameters: Any) -> None:
        honest(self, parameters)
        exact[self.name] = np.concatenate([on_host(parameters[one]).reshape(-1) for one in self._classifier_names])

    async def attack(self: Any, sent: Any) -> Any:
        if not exact:
            return await update(self, sent)
        known = np.mean(list(exact.values()), axis=0)  # what all clients have since they were told the average
        stamp = self._stamp(2, scoring=False)
        parts = await in_two_states(
            self,
            self.clients,
            lambda client, name: client.update(sent[name]),
            lambda client, _: client.classifier(stamp),
        )
        total, _ = await self._sums.total(parts, point_of(self._config, "classifier"), WORK)
        local = exact[self.clients.members[-1]]
        error = np.abs(total - (len(parts) - 1) * known - local).max()
        assert error > 0.1 * np.abs(local - known).max(), "the server has read a client's classifier"
        raise SystemExit("over")

    monkeypatch.setattr(GraphClient, "_changed", changed)
    attacked(monkeypatch, "glasu", AggregationServer, "_update", attack, **GLASU, average_classifiers=True)


def test_a_representation_is_summed_with_those_of_the_same_number_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one would add what they added before an update, so that the difference is one's alone."""
    exact: dict[str, list[Any]] = {}
    honest, update = GraphClient._protected, AggregationServer._update
    before: list[Any] = []

    def protected(self: GraphClient, segment: int, hops: int, values: Any, heard: bytes, *, first: bool = False) -> Any:
        if segment == 0 and self._round.stamp.scoring:
            exact.setdefault(self.name, []).append(values.copy())
        return honest(self, segment, hops, values, heard, first=first)

    async def total(self: Any, parts: Any) -> Any:
        return (await self._sums.total(parts, point_of(self._config, "forward"), WORK))[0]

    async def attack(self: Any, sent: Any) -> Any:
        stamp = messages.Stamp(1 + len(before), self.clients.attempt, True, tuple(self.clients.members))
        targets = messages.Targets(stamp, 0, np.empty(0, np.int64))
        if not before:
            reports = await update(self, sent)
            before.append(await total(self, await self.clients.ask(lambda client: client.infer_lowest(targets))))
            return reports
        parts = await in_two_states(
            self,
            self.clients,
            lambda client, name: client.update(sent[name]),
            lambda client, _: client.infer_lowest(targets),
        )
        first, *_, second = exact[self.clients.members[-1]]
        error = np.abs(await total(self, parts) - before[0] - (second - first)).max()
        assert error > 0.1 * np.abs(second - first).max(), "the server has read what changed of one client's"
        raise SystemExit("over")

    monkeypatch.setattr(GraphClient, "_protected", protected)
    attacked(monkeypatch, "glasu", AggregationServer, "_update", attack, **GLASU, evaluate_every=1)


def test_no_endpoint_hears_out_of_turn() -> None:
    client = object.__new__(SecureSummand)
    client._acting, client._context = None, SimpleNamespace(name="ann")  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match=r"ann\.infer hears what sums follow from: declare it @in_turn"):
        client.heard("infer")


class Summand(SecureSummand):
    @in_turn
    async def take(self, *told: Any) -> bytes:
        return self.heard("take", *told)


def test_rows_that_a_label_party_pairs_otherwise_are_in_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pairings the difference of the sums is a difference of somebody's rows."""

    async def done(self: Party, order: Any = None) -> None:
        if order is None:  # what the label party told all others
            self._told_rows(told)

    monkeypatch.setattr(Party, "take_order", done)
    monkeypatch.setattr(Party, "align", done)

    def client(name: str) -> TokenClient:
        made = object.__new__(TokenClient)
        SecureSummand.__init__(made, ("ann", "bob", "cleo"))
        made._context, made.rows = SimpleNamespace(name=name), SimpleNamespace(labels=None)  # type: ignore[assignment]
        return made

    told = AlignmentOrder(b"salt", np.zeros((2, 32), np.uint8), np.zeros(0, np.uint8))
    other = replace(told, digests=np.ones((2, 32), np.uint8))
    ann, bob, cleo = client("ann"), client("bob"), client("cleo")

    async def work() -> None:
        current_caller.set("ann")
        await bob.take_order(told)
        await cleo.take_order(other)
        await ann.align()

    asyncio.run(work())
    assert bob.history != cleo.history
    labels = hashlib.sha256(framed(bob.history, b"take_labels", as_bytes(None))).digest()
    assert ann.history == labels


@pytest.mark.parametrize("survives_loss", [False, True])
def test_clients_that_go_on_from_checkpoints_of_different_moments_sum_nothing(survives_loss: bool) -> None:
    """A driver takes each site's checkpoint when it likes: one that has followed an order more would be read alone."""

    def resumed(client: Summand) -> Summand:
        again = Summand(("ann", "bob", "cleo"), survives_loss=survives_loss)
        apply(again, capture(client, Summand.state))
        return again

    async def work() -> list[bytes]:
        ann, bob = (Summand(("ann", "bob", "cleo"), survives_loss=survives_loss) for _ in range(2))
        await ann.take(1), await bob.take(1)
        same = [await one.take(3) for one in (resumed(ann), resumed(bob))]
        await bob.take(2)
        return [*same, *[await one.take(3) for one in (resumed(ann), resumed(bob))]]

    ann, bob, again, skewed = asyncio.run(work())
    assert ann == bob == again
    assert skewed != again

"""What the approved settings do not use is closed: endpoints of another algorithm, and messages that no such run sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import CallCounts, endpoints
from fedactors.api import simulate
from fedactors.errors import Refused
from fedactors.federation.hosting import Gate, make_book
from fedactors.inspection import may_leave
from fedactors.plugins import find_protocol
from protocols.glasu import aggregation as graphs
from protocols.glasu import messages
from protocols.tablepuppet import actors as tables
from protocols.tablepuppet import loj_operator
from tests.federation.test_runs import OTHERS, federated
from tests.federation.world import BANK, CLINIC, SHOP, World
from tests.hostile.test_bounds import _the_bank_is_hostile  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="hostile")]
ALGORITHMS = {
    "pubsub-vfl": ("pubsub-vfl", "vfl", "avfl"),
    "mtcd": ("mtcd", "stcd", "svfl", "dcpa"),
    "tablepuppet": ("rfl-sgd-v", "rfl-admm-v", "rfl-sgd", "rfl-admm", "vfl-sgd", "vfl-admm", "centralised"),
    "nebulafl": ("nebulafl", "fedavg", "fedavg-hierarchical", "fedhisyn"),
    "horizontal": ("fedavg", "scaffold"),
}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"algorithm": one}) for name, found in ALGORITHMS.items() for one in found),
    *(("glasu", words) for words in ({}, {"mode": "joint"}, {"average_classifiers": True}, {"batch_size": 16})),
    ("horizontal", {"secure_aggregation": True}),
    ("tablepuppet", {"algorithm": "rfl-sgd-v", "secure_aggregation": True}),
    ("nebulafl", {"algorithm": "fedavg-hierarchical", "secure_aggregation": True, "num_centers": 3}),
]
UNUSED = {
    *("answer_alignment", "take_order", "take_labels", "align", "columns"),  # data of named sets need none
    *("measure", "score", "fusion_parameters", "account", "gather", "validate", "remember"),  # as data and noise say
    *("safe_step", "squared_norm", "probe"),  # after a divergence
    *("container_news", "set_present", "center_lost", "center_back", "round_lost", "center_news"),  # after a loss
    *("tell_facts", "receive_facts", "accept"),  # tables of several partitions
    *("take_first", "run_epoch", "facts", "receive_counts"),  # what another class, or another message, does
}
"""Endpoints that these runs leave open and do not call; none of them gives what depends on a row."""
BY_PARTITIONS = {"rfl-sgd": {"exchange"}, "rfl-admm": {"solve"}}
"""Of tables of one partition, and these tables have two: refused there."""


@pytest.mark.parametrize(("name", "words"), SETTINGS, ids=lambda one: one if isinstance(one, str) else str([*one.values()]))
def test_what_a_run_does_not_call_is_closed(monkeypatch: pytest.MonkeyPatch, name: str, words: dict[str, Any]) -> None:
    called, actors, honest = Counter[str](), dict[type, tuple[Any, Any]](), CallCounts.admit

    def admit(self: CallCounts, endpoint: Any, bound: Any, sender: str, actor: Any, value: Any) -> None:
        called[f"{type(actor).__name__}.{endpoint.name}"] += 1
        actors[type(actor)] = self._config, actor
        honest(self, endpoint, bound, sender, actor, value)

    monkeypatch.setattr(CallCounts, "admit", admit)
    simulate(name, seed=1, **{**find_protocol(name).smoke, **words})
    left = UNUSED | BY_PARTITIONS.get(str(words.get("algorithm")), set())
    still_open = [
        f"{cls.__name__}.{one.name}"
        for cls, (config, actor) in actors.items()
        for one in endpoints(cls).table.values()
        if one.bound is not None and not called[f"{cls.__name__}.{one.name}"] and one.name not in left
        if one.bound.limit(config, actor) != 0
    ]
    assert actors
    assert still_open == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("modes"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


def test_classifiers_that_are_not_averaged_are_not_given(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings say that they stay; the server asks for them all the same."""
    evaluate = graphs.AggregationServer.evaluate

    async def asking(self: Any, order: messages.RoundOrder) -> messages.Evaluation:
        stamp = messages.Stamp(order.round, 0, tuple(self.clients.members), False)
        await self.clients.ask(lambda client: client.classifier(stamp))
        return await evaluate(self, order)

    asking.__dict__.update(evaluate.__dict__)
    monkeypatch.setattr(graphs.AggregationServer, "evaluate", asking)
    before = len(world.refusals(SHOP))
    assert federated(world, OTHERS["glasu"][1], protocol="glasu") in (2, 3), world.output
    (found,) = world.refusals(SHOP)[before:]
    assert "server: calls shop.classifier, which gives Classifier; approved: settings with which no run sends" in found


def test_predictions_are_not_given_without_the_masks_that_were_approved(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server never says which rows are summed, so that nothing was to be summed."""
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    honest = tables.TableClient._positions

    def bare(self: tables.TableClient) -> Any:
        return self.positions if self.party == BANK else honest.fget(self)  # type: ignore[misc]

    async def silent(self: Any, joined: Any, tested: Any) -> Any:
        return joined

    monkeypatch.setattr(tables.TableClient, "_positions", property(bare))
    monkeypatch.setattr(loj_operator.TableServer, "_send_positions", silent)
    for name in world.names:
        world.start(name)
    try:
        words = ("num_rounds=2", "algorithm=rfl-sgd-v", "secure_aggregation=true")
        assert federated(world, words, protocol="tablepuppet") in (2, 3)
        found = world.refusals(SHOP) + world.refusals(CLINIC)
        assert any("predictions that no sum hides; approved: sums" in one for one in found), found
    finally:
        world.stop()


def test_a_gate_lets_nothing_out_that_the_settings_do_not_send() -> None:
    protocol = find_protocol("glasu")
    config = protocol.Config(num_clients=2)
    classes = protocol.actors(config)
    pairs = [("server", classes["server"].__name__), (SHOP, classes["clients"].__name__)]
    book = make_book(pairs, classes.values(), lambda name: SHOP if name == SHOP else BANK)
    gate = Gate(SHOP, BANK, book, may_leave(protocol, config, predicts=False))
    stamp = messages.Stamp(1, 0, (SHOP,), False)
    with pytest.raises(Refused, match=r"server: calls shop\.classifier, which gives Classifier; approved: settings"):
        gate.call_in(BANK, "server", SHOP, "classifier", stamp)
    averaged = messages.AveragedClassifier(np.zeros(1))
    with pytest.raises(Refused, match=r"take_classifier with AveragedClassifier; approved: settings with which"):
        gate.call_in(BANK, "server", SHOP, "take_classifier", averaged)
    path = Gate(SHOP, BANK, book).call_in(BANK, "server", SHOP, "classifier", stamp)
    with pytest.raises(Refused, match="shop: replies to server with Classifier"):
        gate.reply_out(path, messages.Classifier(np.zeros(1)))
    allowed = may_leave(protocol, protocol.Config(num_clients=2, average_classifiers=True), predicts=False)
    assert Gate(SHOP, BANK, book, allowed).call_in(BANK, "server", SHOP, "classifier", stamp)

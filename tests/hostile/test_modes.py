"""What the approved settings do not use is closed: endpoints of another algorithm, messages that no such run sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import CallCounts, endpoints
from fedactors.api import simulate
from fedactors.config import build
from fedactors.errors import Refused
from fedactors.federation.hosting import Gate, make_book
from fedactors.inspection import may_leave
from fedactors.plugins import find_protocol
from fedactors.protocols.glasu import aggregation as graphs
from fedactors.protocols.glasu import messages
from fedactors.protocols.mtcd.data import load_data
from fedactors.protocols.mtcd.messages import OrderKey
from fedactors.protocols.mtcd.run import run
from fedactors.protocols.mtcd.server import GatheringServer
from fedactors.protocols.pubsub_vfl.actors import PassiveWorker
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.tablepuppet import actors as tables
from fedactors.protocols.tablepuppet import loj_operator
from fedactors.protocols.tablepuppet import messages as joins
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.federation.test_runs import OTHERS, federated
from tests.federation.world import BANK, CLINIC, SHOP, World
from tests.protocols.mtcd.running import config_of, merged

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
    (
        "nebulafl",
        {"algorithm": "fedavg-hierarchical", "secure_aggregation": True, "num_centers": 3, "on_party_loss": "stop"},
    ),
]
UNUSED = {
    *("answer_alignment", "take_order", "take_labels", "align", "columns"),  # data of named sets need none
    *("sum_columns", "take_scale"),  # nor these, and a site refuses the first there
    "measure_alone",  # of images, of which it says nothing
    *("measure", "score", "fusion_parameters", "account", "gather", "validate", "remember"),  # as data and noise say
    *("safe_step", "squared_norm", "probe"),  # after a divergence
    *("container_news", "set_present", "center_lost", "center_back", "round_lost", "center_news"),  # after a loss
    *("tell_facts", "receive_facts", "accept"),  # tables of several partitions
    *("take_first", "run_epoch", "facts", "receive_counts"),  # what another class, or another message, does
    "give_part",  # under masks, of a round that is over
}
"""Endpoints that these runs leave open and do not call; none of them gives what depends on a row."""
BY_PARTITIONS = {"rfl-sgd": {"exchange"}, "rfl-admm": {"solve"}}
"""Of tables of one partition, and these tables have two: refused there."""


@pytest.mark.parametrize(
    ("name", "words"), SETTINGS, ids=lambda one: one if isinstance(one, str) else str([*one.values()])
)
def test_what_a_run_does_not_call_is_closed(monkeypatch: pytest.MonkeyPatch, name: str, words: dict[str, Any]) -> None:
    called, actors, honest = Counter[str](), dict[type, tuple[Any, Any]](), CallCounts.admit

    def admit(self: CallCounts, endpoint: Any, bound: Any, sender: str, actor: Any, value: Any) -> None:
        called[f"{type(actor).__name__}.{endpoint.name}"] += 1
        actors[type(actor)] = self._config, actor
        honest(self, endpoint, bound, sender, actor, value)

    monkeypatch.setattr(CallCounts, "admit", admit)
    kept = {"keep": "best"} if name == "pubsub-vfl" else {}  # which calls recall; of the last epoch it changes nothing
    simulate(name, seed=1, **{**find_protocol(name).smoke, **kept, **words})
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
        stamp = messages.Stamp(order.round, 0, False, tuple(self.clients.members))
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
    honest: Any = vars(tables.TableClient)["_positions"]

    def bare(self: tables.TableClient) -> Any:
        return self.positions if self.party == BANK else honest.__get__(self)

    async def silent(self: Any, joined: Any, tested: Any) -> Any:
        return joined

    monkeypatch.setattr(tables.TableClient, "_positions", property(bare))
    monkeypatch.setattr(loj_operator.JoinServer, "_send_positions", silent)
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
    assert protocol.actors is not None
    classes = protocol.actors(config)
    pairs = [("server", classes["server"].__name__), (SHOP, classes["clients"].__name__)]
    book = make_book(pairs, classes.values(), lambda name: SHOP if name == SHOP else BANK)
    gate = Gate(SHOP, BANK, book, may_leave(protocol, config, predicts=False))
    stamp = messages.Stamp(1, 0, False, (SHOP,))
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


def test_a_join_is_not_said_to_be_larger_than_is_approved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says how many rows the join has, and how often it asks for rows follows from that."""
    honest = joins.DuplicateCounts

    def large(train: Any, in_test: Any, num_joined: int, *more: Any) -> Any:
        return honest(10**6 * np.asarray(train, np.int64), in_test, 10**6 * num_joined, *more)

    monkeypatch.setattr(joins, "DuplicateCounts", large)
    words = {**find_protocol("tablepuppet").smoke, "algorithm": "rfl-sgd-v", "batch_size": 512}
    with pytest.raises(Refused, match=r"server: joins .* rows, which are .* approved: at most 1,000 \(max_batches\)"):
        simulate("tablepuppet", seed=1, **words)


class Noted(SimulatedRuntime):
    """A driver that keeps all that it gives its actors, and all handles."""

    def spawn(self, cls: type[Any], name: str, *args: Any, **more: Any) -> Any:
        given.append((name, args))
        return super().spawn(cls, name, *args, **more)


given: list[tuple[str, tuple[Any, ...]]] = []


def test_no_driver_has_the_keys_of_the_orders_that_clients_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client draws its own and tells the server alone; orders under any other are no orders of the server's."""
    keys, take = dict[str, bytes](), GatheringServer.take_order_key

    async def taken(self: GatheringServer, order_key: OrderKey) -> None:
        keys[self.caller] = order_key.key
        await take(self, order_key)

    taken.__dict__.update(take.__dict__)
    monkeypatch.setattr(GatheringServer, "take_order_key", taken)
    config = config_of(merged("num_clients=3 num_tokens=1 topology=path server_links=0,1 num_hops=9 num_rounds=2"))
    data, runtime = load_data(config, "synthetic", 3), Noted(seed=3)
    given.clear()
    runtime.execute(lambda: run(config, data, runtime))
    assert set(keys) == {"client-0", "client-1", "client-2"}
    assert len(set(keys.values())) == 3
    assert {len(key) for key in keys.values()} == {32}
    assert not [name for name, args in given if any(isinstance(one, bytes) for one in args)]
    assert {total.type for total in runtime.ledger.totals()} >= {"OrderKey", "Relayed"}
    assert {(total.sender, total.receiver) for total in runtime.ledger.totals() if total.type == "OrderKey"} == {
        (name, "server") for name in keys
    }


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_run_that_keeps_its_last_model_recalls_none(keep: str) -> None:
    words = {"keep": keep} | ({"validation_fraction": 0.2} if keep == "best" else {})
    config = build(PubSubVflConfig, {"num_epochs": 3, "batch_size": 32, **words})
    endpoint = endpoints(PassiveWorker).table["recall"]
    counts, actor = CallCounts(config, 0), SimpleNamespace(name="shop/worker-0")
    assert endpoint.bound is not None
    if keep == "best":
        counts.admit(endpoint, endpoint.bound, "driver", actor, None)
    with pytest.raises(Refused, match="approved: never" if keep == "last" else "for the 2nd time; approved: once"):
        counts.admit(endpoint, endpoint.bound, "driver", actor, None)

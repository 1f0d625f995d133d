"""Who may ask what of whom, what a configuration can send, and what an actor is told."""

import dataclasses

import pytest

from fedactors.actors.actor import Client
from fedactors.actors.remote import DRIVER, endpoints
from fedactors.errors import Refused
from fedactors.inspection import describe_messages, describe_predictions
from fedactors.messages.codec import message_types
from fedactors.protocols.glasu import messages
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.aggregation import AggregationServer
from fedactors.protocols.glasu.baselines import LoneClient
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.glasu.messages import Stamp
from fedactors.protocols.glasu.plugin import PROTOCOL
from fedactors.protocols.glasu.run import actors, run
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.secure_sums.actors import MESSAGES, IdentityShare
from fedactors.secure_sums.messages import Arrived
from tests.protocols.glasu.federation import DATA, Eavesdropper, settings, simulate
from tests.protocols.glasu.test_bad_input import write

NOISE = {"noise_multiplier": "1", "clip_norm": "1", "max_degree": "60"}
CONFIGURATIONS = [
    {},
    {"mode": "joint"},
    {"mode": "joint", "secure_aggregation": "true", "average_classifiers": "true"},
    {"secure_aggregation": "true"},
    {"batch_size": "12", "num_neighbours": "2", "average_classifiers": "true"},
    {"batch_size": "12", "special_case": "zhou", **NOISE},
    {"aggregation": "concatenation"},
    {"num_clients": "1"},
    {"special_case": "standalone"},
    {"special_case": "centralised", "mode": "joint", "average_classifiers": "true"},
]


def types_in(value) -> set[type]:
    """The types of a message and of those that it carries."""
    if not hasattr(type(value), "__message__"):
        return set()
    return {type(value)}.union(*(types_in(getattr(value, one.name)) for one in dataclasses.fields(value)))


@pytest.mark.parametrize("words", CONFIGURATIONS, ids=lambda words: " ".join(words.values()) or "default")
def test_a_run_sends_what_its_configuration_says_and_nothing_else(monkeypatch, words):
    config, ear = settings(**words, num_rounds="1", evaluate_every="1"), Eavesdropper(monkeypatch)
    _, memory = simulate(config)
    declared = set(messages.sent(config))
    assert set().union(*(types_in(value) for value in ear.seen)) == declared
    assert {row[4] for row in memory.rows if not row[4].endswith("()")} <= {cls.__name__ for cls in declared}
    told = {entry["message"] for entry in describe_messages(PROTOCOL, config)}
    assert told == {cls.__name__ for cls in declared}


def test_every_message_is_sent_by_some_configuration():
    found = set().union(*(messages.sent(settings(**words)) for words in CONFIGURATIONS))
    in_predictions = {entry["message"] for entry in describe_predictions(PROTOCOL, settings())}
    predicting = {cls for cls in message_types(messages) if cls.__name__ in in_predictions}
    assert predicting - found == {messages.SummedLogits, messages.Logits}
    assert found | predicting == {*message_types(messages), *MESSAGES}


def test_inspection_names_the_receivers_of_the_configuration():
    told = {entry["message"]: entry["receiver"] for entry in describe_messages(PROTOCOL, settings(mode="joint"))}
    assert told["GradientPart"] == "server"
    assert told["GradientShare"] == "clients"
    assert told["Evaluation"] == "the run's driver"
    assert "GradientPart" not in {entry["message"] for entry in describe_messages(PROTOCOL, settings())}
    assert set(actors(settings(special_case="standalone"))) == {"clients"}


@pytest.mark.parametrize("method", sorted({*endpoints(GraphClient).table} - {"greet"}))
def test_a_client_answers_its_server_only(method):
    table = endpoints(GraphClient)
    taken = table.table[method].takes[0]
    value = None if taken is type(None) else taken(*(None for _ in dataclasses.fields(taken)))
    table.check(method, "server", "server", "client-0", value)
    for sender, role in (("client-1", "client"), (DRIVER, ""), ("other", "parameter-server")):
        with pytest.raises(Refused, match=rf"{sender}.*client-0\.{method}, which is open to: (data-center, )?server"):
            table.check(method, sender, role, "client-0", value)


def test_only_the_driver_orders_rounds():
    orders = {"prepare", "train", "evaluate", "remember", "account"}
    assert set(endpoints(AggregationServer).table) == orders
    for cls in (AggregationServer, LoneClient):
        assert all(endpoints(cls).table[order].callers == {DRIVER} for order in orders)


class Spy(Client):
    """A party of the run that asks for what only the server may."""

    async def load(self) -> None:
        for call in (
            lambda victim: victim.introduce(),
            lambda victim: victim.confirm_sum(Arrived(0, ("client-0", "spy"))),
            lambda victim: victim.classifier(Stamp(1, 0, False, ("client-0",))),
        ):
            with pytest.raises(Refused, match="spy"):
                await call(self.peer("client-0", GraphClient))


def test_a_hostile_party_of_a_running_federation_is_refused():
    config = settings(secure_aggregation="true", average_classifiers="true", num_rounds="1")
    runtime = SimulatedRuntime(seed=0)
    runtime.spawn(Spy, "spy")
    runtime.execute(lambda: run(config, load_data(config, DATA, 0), runtime))
    refused = [entry for entry in runtime.ledger.totals() if entry.sender == "spy"]
    assert refused == []


class Outsider(Client):
    """A party of the run, though none of its clients, that would be one of those who sum."""

    async def load(self) -> None:
        with pytest.raises(Refused, match="stranger: greets client-0, whose fellows are client-0, client-1, client-2"):
            await self.peer("client-0", GraphClient).greet(IdentityShare(bytes(32), bytes(32)))


def test_a_stranger_is_not_among_those_who_sum():
    config = settings(secure_aggregation="true", num_rounds="1")
    runtime = SimulatedRuntime(seed=0)
    runtime.spawn(Outsider, "stranger")
    runtime.execute(lambda: run(config, load_data(config, DATA, 0), runtime))


@pytest.mark.parametrize("case", ["none", "standalone", "vfl", "zhou", "ni"])
def test_an_actor_is_told_of_its_own_file_only(monkeypatch, tmp_path, case):
    path, told = write(tmp_path), {}
    config = settings(num_clients="2", special_case=case, num_rounds="1", evaluate_every="1", hidden_size="4")
    runtime = SimulatedRuntime(seed=0)
    spawn = runtime.spawn

    def listen(cls, name, *args, **kwargs):
        told[name] = repr([vars(arg) if hasattr(arg, "__dict__") else arg for arg in args])
        return spawn(cls, name, *args, **kwargs)

    monkeypatch.setattr(runtime, "spawn", listen)
    runtime.execute(lambda: run(config, load_data(config, str(path), 0), runtime))
    assert "bank.npz" in told["bank"]
    assert "shop.npz" not in told["bank"]
    assert "shop.npz" in told["shop"]
    assert "bank.npz" not in told["shop"]
    assert ".npz" not in told.get("server", "")


def test_the_driver_reads_neither_labels_nor_split(monkeypatch, tmp_path):
    path = write(tmp_path)
    for file in tmp_path.glob("*.npz"):
        file.unlink()
    assert load_data(settings(num_clients="2"), str(path), 0).parties == ("bank", "shop")

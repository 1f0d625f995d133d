"""Whole runs over real actors in the simulated runtime, and their equality with Ray."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from fedactors.actors.actor import Client, Server
from fedactors.actors.remote import DRIVER, endpoints, remote
from fedactors.auditing.attacks import reconstruct_features
from fedactors.config import build
from fedactors.data.alignment import rows as joining
from fedactors.data.alignment.rows import HashSecret
from fedactors.data.databases import TableSource
from fedactors.data.databases import in_memory as rows_in_memory
from fedactors.data.layouts.vertical import RelationalPartition, stated
from fedactors.errors import PartyLost, Refused, RowsChangedError
from fedactors.inspection import describe_predictions
from fedactors.messages.codec import message_types
from fedactors.plugins import find_protocol
from fedactors.protocols.tablepuppet import messages
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.costs import default_costs
from fedactors.protocols.tablepuppet.data import assign_clients, load_data, name_tables
from fedactors.protocols.tablepuppet.loj_operator import JoinServer
from fedactors.protocols.tablepuppet.messages import Agreement, Facts, RoundOrder
from fedactors.protocols.tablepuppet.run import assemble, run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Costs, Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.secure_sums.actors import MESSAGES
from tests.arrays import arrays_in

ALGORITHMS = ["rfl-admm-v", "rfl-sgd-v", "rfl-admm", "rfl-sgd", "vfl-admm", "vfl-sgd", "centralised"]
FEDERATED = ALGORITHMS[:-1]


def settings(**words):
    words = {"num_rounds": 3, "batch_size": 256, "rho": 0.3, "model": "linear", **words}
    return build(TablePuppetConfig, words)


def execute(config, data=None, seed=0, recorder=None, resume=None, **options):
    recorder = recorder or MemoryRecorder()
    runtime = SimulatedRuntime(seed=seed, recorder=recorder, **options)
    data = data or load_data(config, "orders:400", seed)
    result = runtime.execute(lambda: run(config, data, runtime), resume)
    return result, recorder, runtime


def in_memory(**tables):
    return {name: rows_in_memory(rows) for name, rows in tables.items()}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_learns_and_repeats_byte_for_byte(algorithm):
    config = settings(algorithm=algorithm)
    first, recorded, runtime = execute(config)
    again, recorded_again, runtime_again = execute(config)
    assert first == again
    assert recorded.rounds == recorded_again.rounds
    assert runtime.usage().bytes == runtime_again.usage().bytes
    assert runtime.usage().seconds == runtime_again.usage().seconds > 0
    assert first.metrics["test/rmse"] < first.metrics["test/trivial_rmse"]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "model"), [("binary", "auto"), ("multiclass", "auto"), ("binary", "neural")])
@pytest.mark.parametrize("algorithm", ["rfl-admm", "rfl-sgd", "centralised"])
def test_classification_beats_the_majority(task, model, algorithm):
    result, _, _ = execute(
        settings(
            algorithm=algorithm, task=task, model=model, num_rounds=6, learning_rate=0.5, rho=0.1, lbfgs_iterations=20
        )
    )
    assert result.metrics["test/accuracy"] > result.metrics["test/trivial_accuracy"] + 0.05
    assert result.extra["outputs"] == (2 if task == "multiclass" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2, 4])
@pytest.mark.parametrize(
    "words", [{}, {"model": "neural", "hidden_size": 4}, {"task": "multiclass", "model": "softmax"}]
)
def test_rfl_sgd_takes_the_centralised_steps_whatever_the_partitions(partitions, words):
    common = {"num_partitions": partitions, "learning_rate": 0.2, **words}
    ours, _, _ = execute(settings(algorithm="rfl-sgd", **common))
    joined, _, _ = execute(settings(algorithm="centralised", centralised="sgd", **common))
    for name, value in joined.metrics.items():
        if name != "training/loss":  # the one counts it on the way, the other after the epoch
            assert ours.metrics[name] == pytest.approx(value, rel=1e-9)


@pytest.mark.slow
def test_vfl_and_rfl_v_take_the_same_steps():
    for pair in (("vfl-sgd", "rfl-sgd-v"), ("vfl-admm", "rfl-admm-v")):
        a, b = (execute(settings(algorithm=algorithm))[0].metrics for algorithm in pair)
        assert a == pytest.approx(b, rel=1e-9)


@pytest.mark.slow
def test_admm_reaches_the_centralised_ridge():
    ridge, _, _ = execute(settings(algorithm="centralised"))
    assert ridge.rounds == 1
    for algorithm in ("rfl-admm-v", "vfl-admm"):
        found, _, _ = execute(settings(algorithm=algorithm, num_rounds=60))
        assert found.metrics["test/rmse"] == pytest.approx(ridge.metrics["test/rmse"], rel=1e-6)
    ridge, _, _ = execute(settings(algorithm="centralised", num_partitions=2))
    found, _, _ = execute(settings(algorithm="rfl-admm", num_rounds=40))
    assert found.metrics["test/rmse"] == pytest.approx(ridge.metrics["test/rmse"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", FEDERATED)
def test_where_the_coordinator_and_the_server_live_changes_no_number(algorithm):
    plain, _, _ = execute(settings(algorithm=algorithm))
    moved, _, runtime = execute(settings(algorithm=algorithm, lou_coordinator="organisation", server_in="orders"))
    assert moved.metrics == plain.metrics
    names = {total.sender for total in runtime.ledger.totals()}
    host = "orders-0" if algorithm in ("rfl-sgd", "rfl-admm") else "orders"
    assert f"{host}/server" in names
    assert ("items-0/union-items" in names) == (host == "orders-0")


@pytest.mark.slow
def test_with_the_coordinator_in_the_organisation_the_server_never_sees_theta():
    for index, seen in (("server", True), ("organisation", False)):
        _, _, runtime = execute(settings(algorithm="rfl-admm", lou_coordinator=index))
        types = {t.type for t in runtime.ledger.totals() if t.receiver == "server"}
        assert ("LocalParameters" in types) is seen
        assert "Predictions" in types


@pytest.mark.parametrize("name", ["first_theta", "consensus", "partial", "apply", "adopt"])
def test_and_is_refused_it_as_every_other_organisation_is(name):
    config = settings(algorithm="rfl-admm", lou_coordinator="organisation")
    data = load_data(config, "orders:400", 0)
    table_owners = assign_clients(config, data)
    tables, server = name_tables(config, table_owners)
    table_owner = next(table_owner for table_owner in table_owners if table_owner.table == "items")
    everybody = tuple(one.name for one in table_owners)
    client = TableClient(config, data.query, table_owner, tables["items"], everybody, server)
    table = endpoints(TableClient)
    table.check_named(table.table[name], "items-0/union-items", table_owner.name, client)
    for sender in (server, "cards-0/union-cards"):
        with pytest.raises(Refused, match=rf"{name}, which is open to its operator only: items-0/union-items; not to"):
            table.check_named(table.table[name], sender, table_owner.name, client)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["rfl-admm", "rfl-sgd-v", "vfl-admm", "centralised"])
@pytest.mark.parametrize("model", ["linear", "neural"])
def test_a_resumed_run_is_the_uninterrupted_one(algorithm, model):
    words = {"algorithm": algorithm, "model": model, "admm": "paper_sgd", "centralised": "sgd"}
    whole, whole_recorder, whole_runtime = execute(settings(**words, num_rounds=4))
    _, half, _ = execute(settings(**words, num_rounds=2))
    taken = half.checkpoints["last"]
    result, resumed, runtime = execute(settings(**words, num_rounds=4), resume=Snapshot(taken.actors, taken.driver))
    assert result == whole
    assert resumed.rounds == whole_recorder.rounds[2:]
    assert runtime.usage().bytes == whole_runtime.usage().bytes
    assert runtime.usage().seconds == whole_runtime.usage().seconds


def shop(order=None, price=0.5):
    """Orders and items in memory, listed as their database lists them."""
    rng = np.random.default_rng(0)
    tables = {
        "orders": pa.table({"k": rng.integers(0, 30, 300), "a": rng.normal(size=300), "y": rng.normal(size=300)}),
        "items": pa.table({"k": np.arange(60) % 30, "price": [price, *rng.normal(size=59)]}),
    }
    if order is not None:
        tables = {name: rows.take(pa.array(order.permutation(rows.num_rows))) for name, rows in tables.items()}
    return stated("SELECT y, a, price FROM orders o JOIN items i ON o.k = i.k", in_memory(**tables), label="y")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["rfl-admm-v", "rfl-sgd-v", "vfl-sgd"])
def test_a_database_that_lists_its_rows_in_another_order_changes_nothing_at_a_resume(algorithm):
    words = {"algorithm": algorithm, "batch_size": 64}
    whole, _, _ = execute(settings(**words, num_rounds=4), shop())
    taken = execute(settings(**words, num_rounds=2), shop())[1].checkpoints["last"]
    other = shop(np.random.default_rng(7))
    assert execute(settings(**words, num_rounds=4), other, resume=Snapshot(taken.actors, taken.driver))[0] == whole


@pytest.mark.slow
def test_other_rows_at_a_resume_are_a_named_error():
    taken = execute(settings(num_rounds=2), shop())[1].checkpoints["last"]
    with pytest.raises(RowsChangedError, match="items: the rows of table 'i' have changed since the run began"):
        execute(settings(num_rounds=4), shop(price=0.25), resume=Snapshot(taken.actors, taken.driver))


CONFIGURATIONS = [{"algorithm": name} for name in ALGORITHMS] + [
    {"algorithm": "rfl-admm", "lou_coordinator": "organisation", "server_in": "orders"},
    {"algorithm": "centralised", "num_partitions": 2},
    {"algorithm": "rfl-sgd", "task": "multiclass", "model": "auto"},
    {"algorithm": "rfl-admm-v", "secure_aggregation": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("words", CONFIGURATIONS, ids=str)
def test_what_is_sent_is_what_the_configuration_says(words):
    config = settings(**words, inner_rounds=2)
    _, _, runtime = execute(config)
    types = {t.type for t in runtime.ledger.totals() if not t.type.endswith("()")}
    said = {cls.__name__ for cls in messages.sent(config)}
    if config.partitions == 1:
        said -= {"Facts", "Agreement"}
    assert types == said


def test_every_message_is_sent_in_some_configuration():
    known = {cls for words in CONFIGURATIONS for cls in messages.sent(settings(**words))}
    told = {one["message"] for one in describe_predictions(find_protocol("tablepuppet"), settings())}
    predicting = {cls for cls in message_types(messages) if cls.__name__ in told}
    assert known | predicting == {*message_types(messages), *MESSAGES, *joining.MESSAGES}


@pytest.mark.slow
def test_an_actor_is_built_with_its_own_sources_only(monkeypatch):
    built = {}
    original = SimulatedRuntime.spawn

    def spawn(self, cls, name, *args, **kwargs):
        built[name] = args
        return original(self, cls, name, *args, **kwargs)

    monkeypatch.setattr(SimulatedRuntime, "spawn", spawn)
    execute(settings(algorithm="rfl-admm", lou_coordinator="organisation"))
    for name, args in built.items():
        sources = {source.partition for source in plain_values(args, TableSource)}
        assert len(sources) == (name.partition("/")[0] not in ("server",) and "union" not in name)
        assert {p.party for p in plain_values(args, RelationalPartition)} <= {name.partition("/")[0]}


def plain_values(value, kind):
    """Yield everything of a kind in constructor arguments."""
    if isinstance(value, kind):
        yield value
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name) for field in dataclasses.fields(value)]
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from plain_values(item, kind)


class Intruder(Client):
    """A party that calls whatever it likes."""

    @remote(caller=DRIVER)
    async def attack(self, order: RoundOrder) -> None:
        """Ask for what only the server may ask for, or pretend to be somebody else."""
        victim = self.peer("items", TableClient)
        calls = [victim.give_rows, victim.predict_all, victim.first_theta, victim.send_labels, victim.account]
        calls += [self.peer("server", JoinServer).map_tables]
        await calls[order.number]()


class Neighbour(Client):
    """A client that speaks in the place of others."""

    @remote(caller=DRIVER)
    async def attack(self, order: RoundOrder) -> None:
        """Give a hash key that it knows, or facts and an agreement of a table that it holds no part of."""
        victim = self.peer("items", TableClient)
        facts = Facts((), np.zeros(0, np.int64), np.zeros(0), np.zeros(0), ())
        if order.number == 0:
            await victim.receive_secret(HashSecret(b"k" * 32, b""))
        elif order.number == 1:
            await victim.receive_facts(facts)
        else:
            await victim.accept(Agreement(facts, 0))


class Impostor(Server):
    """A server, or another organisation's coordinator, that asks for what is not for it."""

    @remote(caller=DRIVER)
    async def attack(self, order: RoundOrder) -> None:
        """Ask for every row, give the clients a hash key that it knows, or ask for labels and for hashed keys."""
        victim = self.peer("items", TableClient)
        if order.number == 0:
            await victim.give_rows()
        elif order.number == 1:
            await victim.receive_secret(HashSecret(b"k" * 32, b""))
        elif order.number == 2:
            await self.peer("orders", TableClient).send_labels()
        else:
            await victim.send_keys()


ATTACKS = [(Intruder, 6), (Neighbour, 3), (Impostor, 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("intruder", "number"), [(intruder, n) for intruder, count in ATTACKS for n in range(count)])
def test_who_asks_for_what_is_not_theirs_is_refused(intruder, number):
    config = settings()
    runtime = SimulatedRuntime(seed=0, recorder=MemoryRecorder())

    async def main():
        runtime.use_costs(default_costs(config))
        server, _ = assemble(config, load_data(config, "orders:400", 0), runtime)
        outsider = runtime.spawn(intruder, "stranger")
        await runtime.start()
        await server.agree()
        await outsider.attack(RoundOrder(number))

    with pytest.raises(Refused, match=r"^stranger: "):
        runtime.execute(main)


@pytest.mark.slow
def test_a_killed_client_stops_the_run_with_its_name():
    config = settings()
    _, _, runtime = execute(config)
    with pytest.raises(PartyLost, match="cards") as caught:
        execute(config, faults={"cards": runtime.usage().seconds * 0.7})
    assert caught.value.party == "cards"
    assert caught.value.exit_code == 3


def sent_values(monkeypatch):
    """Record every value that is sent between actors."""
    seen = []
    original = SimulatedRuntime.send

    def send(self, sender, receiver, method, value):
        seen.append((sender, receiver, value))
        reply = original(self, sender, receiver, method, value)
        reply.add_done_callback(
            lambda done: (
                None if done.cancelled() or done.exception() else seen.append((receiver, sender, done.result()))
            )
        )
        return reply

    monkeypatch.setattr(SimulatedRuntime, "send", send)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_feature_column_and_no_join_key_is_in_any_message(algorithm, monkeypatch):
    seen = sent_values(monkeypatch)
    config = settings(algorithm=algorithm, standardise=False, learning_rate=1e-7)
    data = load_data(config, "orders:400", 0)
    execute(config, data)
    private = set()
    for partition in data.partitions:
        table = partition.source.load()
        for name in table.column_names:
            if name not in ("returned", "hour", "age"):  # the label may be sent; small whole numbers occur anywhere
                private |= {float(v) for v in table[name].to_pylist() if float(v) > 40 or float(v) % 1}
    leaked = 0
    for _, _, value in seen:
        # a score is of sums and counts over all test rows, which may be any whole number
        for array in () if isinstance(value, messages.Score) else arrays_in(value):
            if array.dtype.kind == "f":
                leaked += int(np.isin(array, list(private)).sum())
    keys = set(range(300, 400))
    assert (leaked > 0) == (algorithm == "centralised")
    hashes = [a for _, _, v in seen for a in arrays_in(v) if a.dtype == np.uint8]
    assert hashes
    assert not keys & {int(x) for a in hashes for x in a.reshape(-1, 16)[:, :8].copy().view(np.uint64).ravel()[:50]}


@pytest.mark.slow
def test_the_hash_key_never_reaches_the_server(monkeypatch):
    seen = sent_values(monkeypatch)
    execute(settings())
    with_key = [(s, r) for s, r, v in seen if isinstance(v, HashSecret)]
    assert len(with_key) == 2
    assert all("server" not in pair and "driver" not in pair for pair in with_key)


@pytest.mark.slow
def test_bytes_of_an_epoch_follow_table_6():
    sent = {}
    for algorithm in FEDERATED:
        result, _, _ = execute(settings(algorithm=algorithm, inner_rounds=4))
        facts, sent[algorithm] = result.extra, result.extra["communication"]
        joined = list(facts["rows_that_join"].values())
        N, M, n, epoch = facts["joined_rows"], len(joined), sum(joined), sent[algorithm]["epoch_bytes"]
        if algorithm == "vfl-admm":
            assert epoch == 16 * M * N
        elif algorithm == "rfl-admm-v":
            assert epoch == 16 * n
        elif algorithm == "vfl-sgd":
            assert epoch == (16 + 4) * M * N  # and the row numbers of each batch
        elif algorithm == "rfl-admm":
            parameters = {"orders": 3, "items": 2, "cards": 2}
            inner = sum(4 * 2 * 3 * 8 * p for p in parameters.values())  # T' rounds, Q = 2, theta up, w and u down
            last = sum(2 * 2 * 8 * p for p in parameters.values())
            first = sum(8 * p * 2 for p in parameters.values()) / 3  # the first theta, once in three rounds
            assert epoch == pytest.approx(16 * n + inner + last + first)
        else:
            assert 20 * n <= epoch < 20 * M * N + 10_000
    assert sent["rfl-sgd-v"]["epoch_bytes"] < sent["vfl-sgd"]["epoch_bytes"]


@pytest.mark.slow
def test_client_work_grows_with_its_rows_and_not_with_the_duplicates():
    done = {}

    class Counting(Costs):
        def seconds(self, actor, work):
            if actor != "server" and work.kind in ("solve", "predict", "gradient"):
                done[actor, work.kind] = done.get((actor, work.kind), 0) + work.units
            return super().seconds(actor, work)

    rng = np.random.default_rng(0)
    counted = []
    for copies in (1, 2):
        done.clear()
        card = np.arange(100) % 20
        orders = pa.table({"item": np.arange(100) % 50, "card": card, "y": rng.normal(size=100)})
        items = pa.table({"item": np.repeat(np.arange(50), 4), "price": rng.normal(size=200)})
        if copies == 2:  # every item row joins twice as many orders, with as many rows in every table
            orders = orders.set_column(0, "item", pa.array(np.arange(100) % 25))
            items = items.set_column(0, "item", pa.array(np.repeat(np.arange(25), 8)))
        cards = pa.table({"card": np.arange(20), "age": rng.normal(size=20)})
        data = stated(
            "SELECT y, price, age FROM orders JOIN items ON orders.item = items.item"
            " JOIN cards ON orders.card = cards.card",
            {n: rows_in_memory(t) for n, t in (("orders", orders), ("items", items), ("cards", cards))},
            label="y",
        )
        config = settings(test_fraction=0.01)
        result, _, _ = execute(config, data, costs=Counting(default_costs(config).kinds))
        counted.append((result.extra["joined_rows"], dict(done)))
    (small, first), (large, second) = counted
    assert large == 2 * small
    for key, units in first.items():
        assert second[key] <= 1.1 * units


@pytest.mark.slow
def test_a_server_that_coordinates_the_union_solves_for_the_rows_and_one_that_does_not_cannot(monkeypatch):
    seen = sent_values(monkeypatch)
    config = settings(algorithm="rfl-admm", num_rounds=6, rho=0.3, inner_rounds=1)
    data = load_data(config, "orders:400", 0)
    execute(config, data)
    thetas, predictions = [], []
    for sender, receiver, given in seen:
        kind = type(given).__name__
        if (sender, receiver) == ("server", "items-0") and kind == "Consensus":
            thetas.append(given.w)
        if (sender, receiver) == ("items-0", "server") and kind == "Predictions":
            predictions.append(given.values[:, 0])
    # each round: one inner Consensus, then the adopted w, whose predictions come back
    adopted = thetas[1::2]
    rows = reconstruct_features(np.array(adopted), np.array(predictions[1:]))
    table = data.of("items")[0].source.load(["weight", "price"])
    truth = np.stack([table[c].to_numpy() for c in ("weight", "price")], axis=1)
    loaded = [p.source.load(["weight", "price"]) for p in data.of("items")]
    both = np.concatenate([np.stack([t["weight"].to_numpy(), t["price"].to_numpy()], axis=1) for t in loaded])
    truth = (truth - both.mean(axis=0)) / both.std(axis=0)
    nearest = np.array([np.abs(truth - row).max(axis=1).min() for row in rows])
    assert nearest.max() < 1e-8


def test_null_keys_do_not_join_and_are_counted():
    orders = pa.table({"k": [1, 2, None, 3] * 20, "y": np.arange(80.0)})
    items = pa.table({"k": [1, 2, 3, None, None], "x": [1.0, 2.0, 3.0, 4.0, 5.0]})
    data = stated(
        "SELECT y, x FROM orders JOIN items ON orders.k = items.k",
        in_memory(orders=orders, items=items),
        label="y",
    )
    result, _, _ = execute(settings(), data)
    assert result.extra["rows_with_null_keys"] == {"orders": 20, "items": 2}
    assert result.metrics["rows_with_null_keys"] == 22
    assert result.extra["joined_rows"] + result.extra["joined_test_rows"] == 60


def test_a_party_may_hold_several_tables_and_a_table_may_occur_twice():
    rng = np.random.default_rng(0)
    people = pa.table({"id": np.arange(30), "age": rng.normal(size=30)})
    calls = pa.table(
        {"caller": rng.integers(0, 30, 200), "callee": rng.integers(0, 30, 200), "y": rng.normal(size=200)}
    )
    data = stated(
        "SELECT y, a.age, b.age FROM calls JOIN people a ON calls.caller = a.id JOIN people b ON calls.callee = b.id",
        in_memory(calls=calls, people=people),
        label="y",
    )
    result, _, runtime = execute(settings(), data)
    assert result.extra["joined_rows"] == 170
    assert {"people/a", "people/b"} <= {t.sender for t in runtime.ledger.totals()}

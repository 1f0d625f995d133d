"""A client lost at any moment: the run stops with its name, or goes on without its block; nothing hangs."""

import math

import pytest

from fedactors.errors import CallTimeout, Diverged, FedactorsError, PartyLost, Refused
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.aggregation import AggregationServer
from fedactors.protocols.glasu.messages import Representation
from fedactors.protocols.glasu.run import default_costs
from fedactors.runtime.interface import Costs
from fedactors.secure_sums.protocol import SecureSumClient
from tests.protocols.glasu.federation import settings, simulate

VARIANTS = [
    {},
    {"mode": "joint", "num_local_updates": "2"},
    {"aggregation": "concatenation", "batch_size": "12", "num_neighbours": "2"},
    {"num_clients": "4", "secure_aggregation": "true", "average_classifiers": "true", "mode": "joint"},
    {"average_classifiers": "true"},
]


def name(words):
    return " ".join(words.values()) or "default"


def moments(config, count=9):
    """Times spread over an undisturbed run, the very beginning included."""
    _, memory = simulate(config)
    end = max(span[4] for span in memory.spans)
    return [end * (index + 0.37) / count for index in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("words", VARIANTS, ids=name)
def test_a_lost_client_stops_the_run_with_its_name(words):
    config = settings(num_rounds="2", evaluate_every="1", **words)
    for moment in moments(config):
        with pytest.raises(PartyLost) as error:
            simulate(config, faults={"client-1": moment})
        assert error.value.party == "client-1"


@pytest.mark.slow
@pytest.mark.parametrize("words", VARIANTS, ids=name)
def test_training_goes_on_without_the_block_of_a_lost_client(words):
    config = settings(num_rounds="3", evaluate_every="1", on_party_loss="continue", **words)
    left, seen = config.num_clients - 1, []
    for moment in moments(config):
        result, memory = simulate(config, faults={"client-1": moment})
        assert result.rounds == 3
        assert [row["round"] for row in memory.rounds] == [1, 2, 3]
        seen.append(memory.rounds[-1]["num_members"])
        assert "client-1" not in result.extra["privacy"]
        assert math.isfinite(result.metrics["test/loss"])
        assert "client-1" not in memory.snapshots[-1].actors
    # only who is lost after its last update still counts in the last round
    assert sorted(seen) == seen
    assert seen[:5] == [left] * 5


@pytest.mark.slow
def test_a_run_that_lost_a_client_resumes_without_it():
    config = settings(num_rounds="6", evaluate_every="3", on_party_loss="continue")
    whole, memory = simulate(config, faults={"client-1": moments(config)[2]})
    assert memory.rounds[2]["num_members"] == 2
    resumed, rest = simulate(config, resume=memory.snapshots[3])
    assert rest.rounds == memory.rounds[3:]
    assert resumed.metrics == whole.metrics


@pytest.mark.slow
def test_the_last_client_left_is_not_left_out():
    config = settings(num_rounds="4", on_party_loss="continue")
    first, second, third = moments(config)[2:8:2]
    result, memory = simulate(config, faults={"client-1": first, "client-0": second})
    assert result.rounds == 4
    assert memory.rounds[-1]["num_members"] == 1
    with pytest.raises(PartyLost):
        simulate(config, faults={"client-1": first, "client-0": second, "client-2": third})


@pytest.mark.slow
def test_standalone_clients_are_lost_one_by_one():
    config = settings(special_case="standalone", on_party_loss="continue", num_rounds="3")
    result, memory = simulate(config, faults={"client-2": moments(config)[2]})
    assert result.rounds == 3
    assert memory.rounds[-1]["num_members"] == 2
    # a resumed run goes on without it, too
    resumed, rest = simulate(config, resume=memory.snapshots[2])
    assert (resumed.metrics, rest.rounds) == (result.metrics, memory.rounds[2:])
    with pytest.raises(PartyLost, match="client-2"):
        simulate(settings(special_case="standalone"), faults={"client-2": moments(config)[2]})


@pytest.mark.slow
def test_a_lost_server_stops_the_run():
    config = settings(on_party_loss="continue")
    with pytest.raises(PartyLost) as error:
        simulate(config, faults={"server": moments(config)[4]})
    assert error.value.party == "server"


SECURE = {"secure_aggregation": "true", "on_party_loss": "continue", "evaluate_every": "1", "dropout": "0"}


def lose(monkeypatch, endpoint, names, which):
    """Let clients vanish while they answer the `which`-th call of an endpoint."""
    kept, calls = getattr(GraphClient, endpoint), dict.fromkeys(names, 0)

    async def vanish(self, given):
        if self.name in calls:
            calls[self.name] += 1
            if calls[self.name] == which:
                self._context._runtime.kill(self.name)
                await self.clock.sleep(1.0)
        return await kept(self, given)

    monkeypatch.setattr(GraphClient, endpoint, vanish)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["infer_lowest", "infer", "confirm_sum", "unmask_sum", "take_shares", "predict"])
@pytest.mark.parametrize("names", [("client-2",), ("client-1", "client-4")], ids=["one", "two"])
@pytest.mark.parametrize("which", [1, 2])
def test_sums_are_recovered_without_one_or_two_of_five(monkeypatch, endpoint, names, which):
    if endpoint == "take_shares" and which == 2:
        pytest.skip("keys are prepared once")
    calls = lose(monkeypatch, endpoint, names, which)
    companies, kept = {}, SecureSumClient.confirm

    def listen(self, arrived):
        found = kept(self, arrived)
        companies.setdefault((self.name, self._ids[arrived.slot][0]), set()).add(arrived.members)
        return found

    monkeypatch.setattr(SecureSumClient, "confirm", listen)
    result, memory = simulate(settings(num_clients="5", num_rounds="3", **SECURE))
    assert set(calls.values()) == {which}
    assert result.rounds == 3
    assert memory.rounds[-1]["num_members"] == 5 - len(names)
    # of three classes after three rounds; masks that are left in a sum make it huge
    assert result.metrics["test/loss"] < 2
    # no client was ever summed with two companies over the same values
    assert companies
    assert {len(seen) for seen in companies.values()} == {1}


@pytest.mark.slow
def test_a_loss_in_an_evaluation_moves_the_parameters_before_the_next_sum(monkeypatch):
    """Without dropout the next round would sum the same representations again, with one client less."""
    advanced, kept = [], GraphClient.advance

    async def listen(self):
        advanced.append(self.name)
        return await kept(self)

    monkeypatch.setattr(GraphClient, "advance", listen)
    lose(monkeypatch, "predict", ("client-1",), 1)
    result, _ = simulate(settings(num_clients="4", num_rounds="2", **SECURE))
    assert result.rounds == 2
    assert sorted(advanced) == ["client-0", "client-2", "client-3"]


def test_a_server_that_sums_the_same_values_among_fewer_is_refused(monkeypatch):
    """The attack that succeeded before: repeat an evaluation without one client, and take the difference."""

    async def never(self):
        self.summed = {}
        await self._sums.prepare(self._num_sums)

    monkeypatch.setattr(AggregationServer, "_begin", never)
    lose(monkeypatch, "predict", ("client-1",), 1)
    with pytest.raises(FedactorsError, match="summed before, among others"):
        simulate(settings(num_clients="4", num_rounds="2", **SECURE))


@pytest.mark.slow
def test_masked_sums_of_two_clients_are_refused_by_name():
    config = settings(secure_aggregation="true", on_party_loss="continue")
    for moment in moments(config):
        with pytest.raises(PartyLost, match=r"client-2: .*secure aggregation needs 3") as error:
            simulate(config, faults={"client-2": moment})
        assert error.value.party == "client-2"


def test_a_part_without_masks_is_refused_with_its_clients_name(monkeypatch):
    kept = GraphClient._masked
    monkeypatch.setattr(
        GraphClient,
        "_masked",
        lambda self, what, values, *rest: (
            Representation(values) if self.name == "client-1" else kept(self, what, values, *rest)
        ),
    )
    with pytest.raises(Refused, match="client-1: its part of forward/0 is bare"):
        simulate(settings(secure_aggregation="true"))


def test_a_client_that_never_answers_counts_as_lost():
    slow = Costs(default_costs().kinds, speed={"client-1": 1e-6})
    with pytest.raises(CallTimeout) as error:
        simulate(settings(client_timeout="1"), costs=slow)
    assert error.value.party == "client-1"
    result, memory = simulate(settings(client_timeout="1", on_party_loss="continue"), costs=slow)
    assert result.rounds == 4
    assert memory.rounds[0]["num_members"] == 2


def test_a_loss_that_is_not_finite_stops_the_run_with_the_clients_name():
    with pytest.raises(Diverged, match=r"learning_rate: 1e\+15 diverges \(client-\d's loss (nan|inf) in round \d+\)"):
        simulate(settings(learning_rate="1e15", optimizer="sgd", num_rounds="20", clip_norm="none"))

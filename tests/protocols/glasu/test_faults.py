"""A client lost at any moment: the run stops with its name, or goes on without its block; nothing hangs."""

import pytest

from fedactors.errors import CallTimeout, PartyFailed, PartyLost, Refused
from fedactors.runtime.base import Costs
from protocols.glasu.actors import GraphClient
from protocols.glasu.messages import Masked, Prediction, Revealed
from protocols.glasu.run import default_costs
from tests.protocols.glasu.federation import Eavesdropper, settings, simulate

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
    return [end * (place + 0.37) / count for place in range(count)]


@pytest.mark.parametrize("words", VARIANTS, ids=name)
def test_a_lost_client_stops_the_run_with_its_name(words):
    config = settings(num_rounds="2", evaluate_every="1", **words)
    for moment in moments(config):
        with pytest.raises(PartyLost) as error:
            simulate(config, faults={"client-1": moment})
        assert error.value.party == "client-1"


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
        assert result.metrics["accuracy"] > 0
        assert "client-1" not in memory.snapshots[-1].actors
    # only who is lost after its last update still counts in the last round
    assert sorted(seen) == seen
    assert seen[:5] == [left] * 5


def test_a_run_that_lost_a_client_resumes_without_it():
    config = settings(num_rounds="6", evaluate_every="3", on_party_loss="continue")
    whole, memory = simulate(config, faults={"client-1": moments(config)[2]})
    assert memory.rounds[2]["num_members"] == 2
    resumed, rest = simulate(config, resume=memory.snapshots[3])
    assert rest.rounds == memory.rounds[3:]
    assert resumed.metrics == whole.metrics


def test_the_last_client_left_is_not_left_out():
    config = settings(num_rounds="4", on_party_loss="continue")
    first, second, third = moments(config)[2:8:2]
    result, memory = simulate(config, faults={"client-1": first, "client-0": second})
    assert result.rounds == 4
    assert memory.rounds[-1]["num_members"] == 1
    with pytest.raises(PartyLost):
        simulate(config, faults={"client-1": first, "client-0": second, "client-2": third})


def test_standalone_clients_are_lost_one_by_one():
    config = settings(special_case="standalone", on_party_loss="continue", num_rounds="3")
    result, memory = simulate(config, faults={"client-2": moments(config)[4]})
    assert result.rounds == 3
    assert memory.rounds[-1]["num_members"] == 2
    # a resumed run goes on without it, too
    resumed, rest = simulate(config, resume=memory.snapshots[2])
    assert (resumed.metrics, rest.rounds) == (result.metrics, memory.rounds[2:])
    with pytest.raises(PartyLost, match="client-2"):
        simulate(settings(special_case="standalone"), faults={"client-2": moments(config)[4]})


def test_a_lost_server_stops_the_run():
    config = settings(on_party_loss="continue")
    with pytest.raises(PartyLost) as error:
        simulate(config, faults={"server": moments(config)[4]})
    assert error.value.party == "server"


def test_a_client_that_drops_between_masking_and_the_sum_costs_only_a_new_attempt(monkeypatch):
    config = settings(num_clients="4", secure_aggregation="true", num_rounds="2", on_party_loss="continue")
    plain = settings(num_clients="4", num_rounds="2", on_party_loss="continue")
    kept, hit = GraphClient.reveal, []

    async def vanish(self, request):
        if self.name == "client-2" and request.context.startswith(b"1/0/0/forward/1") and not hit:
            hit.append(self.name)
            self._context._runtime.kill("client-2")
            await self.clock.sleep(1.0)
        return await kept(self, request)

    monkeypatch.setattr(GraphClient, "reveal", vanish)
    ear = Eavesdropper(monkeypatch)
    result, memory = simulate(config)
    assert hit
    assert memory.rounds[-1]["num_members"] == 3
    masked = [*ear.of(Masked), *(one.part for one in ear.of(Prediction))]
    assert len(masked) == len(ear.of(Revealed)) + 1
    assert {one.dropped_seeds == {} for one in ear.of(Revealed)} == {True}
    monkeypatch.undo()
    hit.clear()
    # without masks, a loss in the same attempt leads to the same numbers
    kept_infer = GraphClient.infer

    async def vanish_plainly(self, aggregated):
        if self.name == "client-2" and not hit:
            hit.append(self.name)
            self._context._runtime.kill("client-2")
            await self.clock.sleep(1.0)
        return await kept_infer(self, aggregated)

    monkeypatch.setattr(GraphClient, "infer", vanish_plainly)
    _, expected = simulate(plain)
    for one, two in zip(memory.rounds, expected.rounds, strict=True):
        assert one == pytest.approx(two, rel=1e-5)
    assert result.rounds == 2


def test_masked_sums_of_two_clients_are_refused_by_name():
    config = settings(secure_aggregation="true", on_party_loss="continue")
    for moment in moments(config):
        with pytest.raises(PartyLost, match=r"client-2: .*secure aggregation needs three") as error:
            simulate(config, faults={"client-2": moment})
        assert error.value.party == "client-2"


def test_a_part_without_masks_is_refused_with_its_clients_name(monkeypatch):
    kept = GraphClient._masked
    monkeypatch.setattr(
        GraphClient, "_masked", lambda self, *args: None if self.name == "client-1" else kept(self, *args)
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
    with pytest.raises(PartyFailed, match=r"client-\d: the loss is not finite"):
        simulate(settings(learning_rate="1e30", optimiser="sgd", num_rounds="20", clip_norm="none"))

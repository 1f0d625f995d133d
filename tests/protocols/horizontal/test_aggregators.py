"""A tree of aggregators: the numbers of the flat run, a model each way for each aggregator, losses and refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedactors.config import build
from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.protocols.horizontal import messages
from fedactors.protocols.horizontal.actors import Aggregator, HorizontalServer
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import groups_of, load_data
from fedactors.protocols.horizontal.plugin import PROTOCOL
from fedactors.protocols.horizontal.run import run
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.secure_sums.messages import MaskedSum
from fedactors.testing.conformance import check_protocol
from tests.protocols.horizontal.federation import METHODS, changed, cut, play, rounds, user_files, vector_of
from tests.protocols.horizontal.test_personal import WAYS

FEW = {"num_rounds": 3, "local_epochs": 1, "num_training": 120}
SECURE = {**FEW, "secure_aggregation": True}
NOISED = {**SECURE, "client_clip_norm": 1.0, "client_noise_multiplier": 1.0}


def sent(runtime, sender: str) -> dict[str, tuple[int, int]]:
    """Messages and bytes of each type that left an actor, beside those to the driver."""
    found: dict[str, tuple[int, int]] = {}
    for one in runtime.ledger.totals():
        if one.sender == sender and one.kind != "driver":
            number, size = found.get(one.type, (0, 0))
            found[one.type] = number + one.messages, size + one.bytes
    return found


def replaced(monkeypatch, cls, name, made):
    """Let an actor's method be another one, which is called as the honest one is."""
    made.__dict__.update(getattr(cls, name).__dict__)
    monkeypatch.setattr(cls, name, made)


def leaving_out(monkeypatch, site, from_round=1):
    """Let aggregators not ask one of their sites from a round on."""
    honest = Aggregator.train

    async def train(self, group):
        kept = {name: clients for name, clients in group.clients.items() if name != site}
        return await honest(self, group if group.order.round < from_round else dataclasses.replace(group, clients=kept))

    replaced(monkeypatch, Aggregator, "train", train)


@pytest.mark.parametrize(
    ("sites", "count", "sizes"), [(6, 2, [3, 3]), (7, 3, [2, 2, 3]), (5, 5, [1] * 5), (1000, 32, [31, 31, 31, 32] * 8)]
)
def test_sites_are_dealt_to_aggregators_in_order_and_evenly(sites, count, sizes):
    names = [f"client-{number}" for number in range(sites)]
    groups = groups_of(changed(num_clients=sites, num_aggregators=count), names)
    assert [name for group in groups.values() for name in group] == names
    assert sorted(map(len, groups.values())) == sorted(sizes)
    assert list(groups) == [f"aggregator-{number}" for number in range(count)]
    assert groups_of(changed(), names) == {}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("more", [{}, {"dropout_rate": 0.2, "num_clients": 18, "clients_per_site": 3}])
def test_the_model_is_that_of_the_flat_run(algorithm, more):
    """Also where clients drop out, and two sites of each group still have some."""
    words = {**FEW, "algorithm": algorithm, "validation_fraction": 0.2, **more}
    whole, flat, _ = play(changed(**words))
    for count in (1, 3):
        result, tree, _ = play(changed(**words, num_aggregators=count))
        np.testing.assert_allclose(vector_of(tree), vector_of(flat), rtol=0, atol=1e-12)
        assert result.metrics == pytest.approx(whole.metrics, abs=1e-9)
        assert [one["clients"] for one in tree.rounds] == [one["clients"] for one in flat.rounds]


def test_in_single_precision_a_round_differs_by_the_rounding_of_its_changes():
    words = {**FEW, "num_rounds": 1, "float64": False}
    flat, tree = (vector_of(play(changed(**words, num_aggregators=count))[1]) for count in (0, 3))
    assert flat.dtype == tree.dtype == np.float32
    assert 0 < np.abs(tree - flat).max() <= 4 * np.finfo(np.float32).eps * np.abs(flat).max()


def test_the_server_sends_one_model_to_each_aggregator():
    _, _, runtime = play(changed(num_rounds=1, num_aggregators=2, validation_fraction=0.2))
    model = 650 * 8
    server, aggregator = sent(runtime, "server"), sent(runtime, "aggregator-0")
    assert "TrainOrder" not in server
    assert "MeasureOrder" not in server
    assert server["GroupOrder"][0] == server["GroupMeasureOrder"][0] == 2
    assert 2 * model <= server["GroupOrder"][1] < 2 * model + 200
    assert aggregator["TrainOrder"][0] == aggregator["MeasureOrder"][0] == 3
    assert aggregator["GroupChange"][0] == 1
    assert model <= aggregator["GroupChange"][1] < model + 100


@pytest.mark.parametrize("way", ["ditto", "head"])
def test_clients_with_models_of_their_own_measure_as_in_the_flat_run(way):
    words = {**FEW, **WAYS[way], "validation_fraction": 0.25}
    flat, tree = (play(changed(**words, num_aggregators=count))[0] for count in (0, 2))
    assert flat.metrics["validation/lowest_accuracy"] < flat.metrics["validation/highest_accuracy"]
    assert tree.metrics == pytest.approx(flat.metrics, abs=1e-9)


# --- under masks ---


@pytest.mark.parametrize("words", [SECURE, NOISED], ids=["secure", "noised"])
def test_masked_words_add_up_to_the_same_bits(words):
    """Sums of words have no order: the grid is the flat run's, and so is the model, to the bit."""
    plays = [play(changed(**words, num_aggregators=count), reproducible_noise=True) for count in (0, 2, 3)]
    flat, *trees = [vector_of(recorder) for _, recorder, _ in plays]
    assert all(np.array_equal(flat, tree) for tree in trees)
    types = {total.type for total in plays[1][2].ledger.totals() if total.sender.startswith("aggregator")}
    assert types == {"TrainOrder" if words is SECURE else "PrivateOrder", "MaskedSum"}


def test_an_aggregator_that_adds_a_vector_twice_is_refused(monkeypatch):
    honest = Aggregator.train

    async def train(self, group):
        found = await honest(self, group)
        return dataclasses.replace(found, members=(*found.members, found.members[0]))

    replaced(monkeypatch, Aggregator, "train", train)
    with pytest.raises(Refused, match=r"aggregator-\d: adds up a vector of client-\d, which is in another sum too"):
        play(changed(**SECURE, num_aggregators=2))


# --- losses and resume ---


def seconds_of(config, share: float) -> float:
    return play(config)[2].usage().seconds * share


@pytest.mark.slow
@pytest.mark.parametrize("words", [FEW, {**SECURE, "num_clients": 9}], ids=["open", "masked"])
def test_a_lost_aggregator_takes_its_sites_along_or_stops_the_run(words, caplog):
    config = changed(**words, num_aggregators=3)
    faults = {"aggregator-1": seconds_of(config, 0.5)}
    result, recorder, _ = play(config, faults=faults)
    (note,) = [line for line in result.extra["notes"] if "aggregator-1 passed on no answer of" in line]
    assert note.count("client-") == config.num_clients // 3
    counts, group = [one["clients"] for one in recorder.rounds], config.num_clients // 3
    assert counts[0] == config.num_clients
    assert counts[-1] == config.num_clients - group
    left_out = {line.split(":")[0] for line in caplog.messages if "no answer of it came through aggregator-1" in line}
    assert left_out == {f"client-{number}" for number in range(group, 2 * group)}
    with pytest.raises(PartyLost, match="aggregator-1"):
        play(dataclasses.replace(config, on_party_loss="stop"), faults=faults)


@pytest.mark.slow
def test_the_others_go_on_as_the_flat_run_does_without_the_same_sites():
    """Also where a whole group is lost, and its aggregator has nobody left to ask."""
    for lost, groups in ((("client-1",), 2), (("client-2", "client-3"), 3)):
        found = []
        for count in (0, groups):
            config = changed(**{**FEW, "num_rounds": 6}, num_aggregators=count)
            at = seconds_of(config, 0.5)
            _, recorder, _ = play(config, faults=dict.fromkeys(lost, at))
            counts = [one["clients"] for one in recorder.rounds]
            assert counts[0] == 6
            assert counts[-1] == 6 - len(lost)
            found.append((counts.index(6 - len(lost)), vector_of(recorder)))
        if found[0][0] == found[1][0]:  # lost in the same round
            np.testing.assert_allclose(found[0][1], found[1][1], rtol=0, atol=1e-12)


def test_under_masks_too_few_that_are_left_end_the_run():
    config = changed(**SECURE, num_aggregators=2)
    with pytest.raises(PartyLost, match=r"aggregator-0: it was lost, and 3 sites are left: a round needs 4"):
        play(config, faults={"aggregator-0": seconds_of(config, 0.5)})


def test_no_site_that_is_left_ends_the_run():
    config = changed(**FEW, num_aggregators=2)
    at = seconds_of(config, 0.5)
    with pytest.raises(PartyLost):
        play(config, faults={"aggregator-0": at, "aggregator-1": at})


@pytest.mark.slow
@pytest.mark.parametrize("words", [{"algorithm": "scaffold"}, {"algorithm": "fedadam"}, SECURE])
def test_a_resumed_run_is_the_uninterrupted_one(words):
    config = changed(**{**FEW, **words, "num_rounds": 4}, num_aggregators=2)
    _, whole, _ = play(config, reproducible_noise=True)
    before, half = cut(config, 2, reproducible_noise=True)
    _, resumed, _ = play(config, resume=Snapshot(half.actors, half.driver), reproducible_noise=True)
    assert (rounds(before) + rounds(resumed))[-4:] == rounds(whole)
    assert np.array_equal(vector_of(resumed), vector_of(whole))


# --- who may do what ---


def test_the_server_refuses_answers_that_it_did_not_ask_an_aggregator_for(monkeypatch):
    honest = Aggregator.train

    async def train(self, group):
        found = await honest(self, group)
        return dataclasses.replace(found, members=("client-0",))

    replaced(monkeypatch, Aggregator, "train", train)
    with pytest.raises(Refused, match=r"aggregator-1: passes on answers of 'client-0', which were not asked of it"):
        play(changed(**FEW, num_aggregators=2))


def test_an_aggregator_that_counts_more_clients_than_were_wanted_is_refused(monkeypatch):
    honest = Aggregator.train

    async def train(self, group):
        found = await honest(self, group)
        return dataclasses.replace(found, change=dataclasses.replace(found.change, num_clients=4))

    replaced(monkeypatch, Aggregator, "train", train)
    with pytest.raises(Refused, match=r"aggregator-0: sends a change of 4 clients, .* wanted: 3 clients"):
        play(changed(**FEW, num_aggregators=2))


def test_a_site_takes_the_model_of_its_own_aggregator_only(monkeypatch):
    """A server that asks a site itself, past its aggregator, would read its change."""

    async def past(self, orders):
        return await self.sites.ask_each(lambda site, one: site.train(one), orders)

    monkeypatch.setattr(HorizontalServer, "_answers", past)
    with pytest.raises(Refused, match=r"train, which is open to its server or aggregator only: aggregator-0; not to"):
        play(changed(**FEW, num_aggregators=2))


def test_an_aggregator_orders_nothing_of_anothers_sites(monkeypatch):
    honest = HorizontalServer._orders

    def swapped(self, round):
        self._groups = dict(zip(self._groups, reversed(self._groups.values()), strict=True))
        return honest(self, round)

    monkeypatch.setattr(HorizontalServer, "_orders", swapped)
    with pytest.raises(
        Refused, match=r"server: orders client-3, client-4, client-5 of aggregator-0; approved: client-0"
    ):
        play(changed(**FEW, num_aggregators=2))


@pytest.mark.parametrize("words", [FEW, SECURE], ids=["open", "masked"])
def test_an_aggregator_leaves_no_site_out_where_a_loss_stops_the_run(monkeypatch, words):
    leaving_out(monkeypatch, "client-0")
    with pytest.raises(Refused, match=r"aggregator-0: passes on no answer of client-0 and does not say that it is"):
        play(changed(**words, num_aggregators=2, on_party_loss="stop"))


def test_an_aggregator_leaves_no_sites_scores_out_where_a_loss_stops_the_run(monkeypatch):
    honest = Aggregator.measure

    async def measure(self, group):
        return await honest(self, dataclasses.replace(group, sites=group.sites[1:]))

    replaced(monkeypatch, Aggregator, "measure", measure)
    with pytest.raises(Refused, match=r"aggregator-0: passes on no answer of client-0"):
        play(changed(**FEW, num_aggregators=2, validation_fraction=0.2, on_party_loss="stop"))


def test_a_site_that_an_aggregator_leaves_out_is_named_and_has_its_line_of_the_privacy_ledger(monkeypatch):
    leaving_out(monkeypatch, "client-0", from_round=2)
    noised = {**FEW, "record_clip_norm": 1.0, "record_noise_multiplier": 2.0}
    result, recorder, runtime = play(changed(**noised, num_aggregators=2, on_party_loss="continue"))
    assert [one["clients"] for one in recorder.rounds] == [6, 5, 5]
    assert [line for line in result.extra["notes"] if "aggregator-0 passed on no answer of client-0: " in line]
    spent = {one.party: one.epsilon for one in runtime.privacy_records}
    assert set(spent) == {f"client-{number}" for number in range(6)}
    assert 0 < spent["client-0"] < spent["client-1"]


def test_a_server_reads_no_single_sites_change_through_an_aggregator(monkeypatch):
    async def of_one(self, orders):
        groups = {
            name: messages.GroupOrder(dataclasses.replace(orders[sites[0]], clients=()), {sites[0]: (0,)})
            for name, sites in self._groups.items()
        }
        return await self.aggregators.ask_each(lambda one, group: one.train(group), groups)

    monkeypatch.setattr(HorizontalServer, "_answers", of_one)
    with pytest.raises(Refused, match=r"server: orders client-\d alone of aggregator-\d; approved: at least 2 of its"):
        play(changed(**FEW, num_aggregators=2))


def changes_passed_on(monkeypatch):
    """Each answer of each aggregator: its members, and how many clients its change is of."""
    honest, found = Aggregator.train, []

    async def train(self, group):
        made = await honest(self, group)
        found.append((made.members, made.change.num_clients, made.change.change.size))
        return made

    replaced(monkeypatch, Aggregator, "train", train)
    return found


def test_a_site_that_is_left_alone_of_its_group_is_left_out(monkeypatch):
    found = changes_passed_on(monkeypatch)
    config = changed(**{**FEW, "num_rounds": 6}, num_aggregators=3)
    result, recorder, _ = play(config, faults={"client-1": seconds_of(config, 0.5)})
    counts = [one["clients"] for one in recorder.rounds]
    assert counts[0] == 6
    assert counts[-1] == 4
    assert ((), 0, 0) in found
    assert {len(members) for members, _, _ in found} == {0, 2}
    assert [line for line in result.extra["notes"] if "passed on no answer of client-0, client-1: " in line]


def test_of_a_group_in_which_one_sites_clients_alone_answer_nothing_is_passed_on(monkeypatch):
    found = changes_passed_on(monkeypatch)
    _, recorder, _ = play(changed(**{**FEW, "num_rounds": 6}, num_aggregators=3, dropout_rate=0.5))
    assert {len(members) for members, _, _ in found} == {2}
    assert {(clients, size > 0) for _, clients, size in found} == {(0, False), (2, True)}
    assert {one["clients"] for one in recorder.rounds} <= {0, 2, 4, 6}


def test_an_aggregator_that_claims_more_rows_than_its_sites_told_is_refused(monkeypatch, tmp_path):
    honest = Aggregator.train

    async def train(self, group):
        found = await honest(self, group)
        return dataclasses.replace(found, change=dataclasses.replace(found.change, weight=1e6))

    replaced(monkeypatch, Aggregator, "train", train)
    config = changed(num_clients=None, num_training=None, num_rounds=1, num_aggregators=1)
    with pytest.raises(
        Refused, match=r"aggregator-0: sends a change of 3 clients, of weight 1e\+06 .* wanted: 3 clients of 120 rows"
    ):
        play(config, name=user_files(tmp_path))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            {"aggregation": "median", "weighting": "uniform"},
            "num_aggregators: 2 is not allowed with aggregation=median",
        ),
        ({"aggregation": "multi-krum"}, "needs each site's change"),
        ({"min_sites": 3}, "num_aggregators: 2 is not allowed with min_sites"),
        (
            {"client_clip_norm": 1.0, "client_noise_multiplier": 1.0},
            "without secure_aggregation: changes have no noise",
        ),
        ({"num_aggregators": 4}, "num_aggregators: 4 is not allowed: there are 6 sites, and each aggregator needs 2"),
        ({"clients_per_round": 3}, "not allowed with clients_per_round without secure_aggregation"),
    ],
)
def test_what_a_sum_cannot_give_is_refused(words, line):
    with pytest.raises(BadInput, match=line):
        play(build(HorizontalConfig, {"num_clients": 6, "num_aggregators": 2, **words}))


def test_its_messages_are_those_that_are_declared():
    for words in (FEW, SECURE, NOISED, {**FEW, "validation_fraction": 0.2}):
        config = changed(**words, num_aggregators=2)
        _, _, runtime = play(config)
        types = {total.type for total in runtime.ledger.totals() if not total.type.endswith("()")}
        assert types <= {cls.__name__ for cls in messages.sent(config)}
        assert not {cls.__name__ for cls in messages.sent(changed(**words))} & {"GroupOrder", MaskedSum.__name__}


@pytest.mark.slow
def test_the_conformance_kit_has_no_remark():
    check_protocol(PROTOCOL, config={"num_training": 200, "num_clients": 6, "num_aggregators": 2}, on_ray=False)


@pytest.mark.ray
def test_on_ray_it_gives_the_same_numbers_and_traffic(ray_cluster):
    config = changed(**FEW, num_aggregators=2)
    _, recorder, simulated = play(config)
    runtime = RayRuntime(seed=0)
    result = runtime.execute(lambda: run(config, load_data(config, "digits", 0), runtime))
    assert result.metrics["test/accuracy"] == pytest.approx(recorder.rounds[-1]["test/accuracy"], abs=1e-6)
    kinds = [{(one.sender, one.type): one.bytes for one in each.ledger.totals()} for each in (simulated, runtime)]
    assert kinds[0] == kinds[1]

"""Masked sums, noise and its account: what the server sees, and what the privacy ledger says of it."""

import math

import numpy as np
import pytest
import torch

from fedactors.auditing.replay import audit_by_replay
from fedactors.privacy.accounting import check_record, compose_mu, epsilon_of_mu
from fedactors.protocols.glasu import auditing, privacy
from fedactors.protocols.glasu.actors import GraphClient
from fedactors.protocols.glasu.aggregation import AggregationServer
from fedactors.protocols.glasu.data import load_data
from fedactors.protocols.glasu.messages import GradientPart, Introduction, Prediction, Report, Representation
from fedactors.protocols.glasu.plugin import PROTOCOL
from fedactors.secure_sums.actors import IdentityShare
from fedactors.secure_sums.messages import Masked, SumKeys
from tests.protocols.glasu.federation import DATA, Eavesdropper, altered, settings, simulate


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["paper", "joint"])
def test_masked_sums_give_the_numbers_of_plain_ones(mode):
    words = {"mode": mode, "average_classifiers": "true", "num_local_updates": "2", "float64": "true"}
    _, plain = simulate(settings(**words))
    _, masked = simulate(settings(**words, secure_aggregation="true", reproducible_noise="true"))
    for one, two in zip(plain.rounds, masked.rounds, strict=True):
        one.pop("test/least_client_accuracy", None)  # of a sum it is not known
        assert one == pytest.approx(two, rel=1e-5)  # 32 bits: a step is 64 * 3 / 2^31


def test_the_server_sees_masked_sums_only_and_a_masked_message_looks_like_noise(monkeypatch):
    ear = Eavesdropper(monkeypatch)
    config = settings(secure_aggregation="true", mode="joint", average_classifiers="true", num_rounds="2")
    simulate(config)
    assert ear.of(Representation, GradientPart, Prediction, Report) == []
    words = [one.words for one in ear.of(Masked)]
    assert len(words) == 2 * 3 * (2 + 2 + 1 + 1) + 3 * (2 + 1)  # rounds, with their losses, and the evaluation
    # representations after a ReLU are never negative and small in fixed point: their upper bits would be zero
    for one in words:
        high = (one >> np.uint32(24)).astype(np.float64)
        expected, deviation = 127.5, 73.9 / math.sqrt(len(high))
        assert abs(high.mean() - expected) < 5 * deviation
        ones = np.unpackbits(one.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / math.sqrt(32 * len(one))
    everything = np.concatenate(words)
    counts = np.bincount((everything >> np.uint32(28)).astype(np.int64), minlength=16)
    chi_squared = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert chi_squared < 45  # 15 degrees of freedom: one run in ten thousand is above


@pytest.mark.slow
def test_masks_orders_and_weights_are_fresh_in_every_run(monkeypatch):
    ear, config = Eavesdropper(monkeypatch), settings(secure_aggregation="true", num_rounds="1")
    found = []
    for _ in range(2):
        ear.seen.clear()
        _, memory = simulate(config)
        found.append((ear.of(Masked), ear.of(Introduction), memory))
    (first, there, one), (second, here, two) = found
    assert not any(np.array_equal(a.words, b.words) for a, b in zip(first, second, strict=True))
    assert not np.array_equal(there[0].train, here[0].train)
    assert one.rounds != two.rounds  # other first weights


def test_what_the_server_holds_does_not_undo_the_shuffle_or_give_the_first_weights(monkeypatch):
    """The attack that succeeded before: all orders and weights from the run's seed, which every actor has."""
    from fedactors.actors.context import derived_rng, derived_seed
    from fedactors.protocols.glasu import backbones

    config, seed = settings(secure_aggregation="true", num_rounds="1"), 0
    common = derived_seed(seed, "all clients", "nodes")
    local = load_data(config, DATA, seed).part("client-0").load()
    guess = np.sort(np.random.default_rng([common, 1]).permutation(local.num_nodes)[local.train])
    for words, succeeds in (({}, True), ({"secure_aggregation": "true"}, False)):
        config, first = settings(**words, num_rounds="1"), []
        kept = GraphClient.introduce

        async def listen(self, kept=kept, first=first):
            found = await kept(self)
            if self.name == "client-0":
                first.append((self._network, {name: one.clone() for name, one in self.parameters.items()}))
            return found

        monkeypatch.setattr(GraphClient, "introduce", listen)
        ear = Eavesdropper(monkeypatch)
        simulate(config)
        monkeypatch.undo()
        assert np.array_equal(ear.of(Introduction)[0].train, guess) == succeeds
        network, parameters = first[0]
        rngs = derived_rng(seed, "client-0", "weights"), np.random.default_rng([common, 2])
        guessed = backbones.initial_parameters(network, *rngs, torch.float32)
        same = all(bool((guessed[name] == value).all()) for name, value in parameters.items())
        assert same == succeeds


@pytest.mark.slow
def test_a_resumed_run_masks_under_other_keys_and_keeps_its_orders(monkeypatch):
    config = settings(secure_aggregation="true")
    ear = Eavesdropper(monkeypatch)
    _, memory = simulate(config)
    before, orders = [one.masking.tobytes() for one in ear.of(SumKeys)], ear.of(Introduction)[0].train
    secrets = [one.secret for one in ear.of(IdentityShare)]
    ear.seen.clear()
    simulate(config, resume=memory.snapshots[1])
    keys = [one.masking.tobytes() for one in ear.of(SumKeys)]
    assert not set(keys) & set(before)
    assert np.array_equal(ear.of(Introduction)[0].train, orders)
    identities = {one.identity for one in ear.of(IdentityShare)}
    assert len(identities) == 3
    server = memory.snapshots[1].actors["server"]
    assert secrets
    assert not [secret for secret in secrets if secret in server]


NOISY = {"noise_multiplier": "2", "clip_norm": "1", "max_degree": "60", "aggregation_layers": "1,3"}


@pytest.mark.slow
def test_noise_is_fresh_unless_made_reproducible():
    assert simulate(settings(**NOISY))[1].rounds != simulate(settings(**NOISY))[1].rounds
    config = settings(**NOISY, reproducible_noise="true")
    one, two = simulate(config)[1], simulate(config)[1]
    assert one.rounds == two.rounds
    record = next(record for record in one.records if record.message_type == "Representation")
    assert not record.covered
    assert "no privacy guarantee" in record.note


def test_what_is_sent_is_clipped_and_noised_and_the_own_part_stays_clean(monkeypatch):
    ear = Eavesdropper(monkeypatch)
    simulate(settings(**{**NOISY, "noise_multiplier": "0"}, num_rounds="1"))
    lengths = np.concatenate([np.linalg.norm(one.values, axis=1) for one in ear.of(Representation)])
    assert lengths.max() <= 1 + 1e-6
    ear.seen.clear()
    simulate(settings(**NOISY, num_rounds="1"))
    values = np.concatenate([one.values.reshape(-1) for one in ear.of(Representation)])
    assert values.std() == pytest.approx(2.0, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("secure", ["false", "true"])
def test_the_ledger_accounts_for_every_noised_release(secure):
    config = settings(**NOISY, secure_aggregation=secure)
    result, memory = simulate(config)
    records = [record for record in memory.records if record.message_type == "Representation"]
    assert [record.party for record in records] == ["client-0", "client-1", "client-2"]
    # 4 rounds and 2 evaluations of 2 aggregations; the first round's weights have seen no data
    releases, row = 12, (2.0 / 2.0) ** 2
    near = min(120, 1 + 60 + 60 * 59)
    for record in records:
        assert record.mechanism == "gaussian"
        assert not record.covered  # losses and predictions have no noise
        assert set(record.uncovered) == {"Report without noise", "Prediction without noise"}
        assert check_record(record).agrees
        assert record.releases == releases
        assert (record.clip_norm, record.noise_scale) == (1.0, 2.0)
        assert record.nominal_mu == pytest.approx(math.sqrt(releases * row * near))
        assert record.rigorous_mu == pytest.approx(math.sqrt(releases * row * 120))
        assert record.epsilon == pytest.approx(epsilon_of_mu(record.rigorous_mu, 1e-5))
        assert "one node's features" in record.note
        assert "degree up to 60" in record.note
        assert ("discrete Gaussian" in record.note) == (secure == "true")
    others = {record.message_type: record for record in memory.records if record.party == "client-0"}
    assert set(others) == {"Representation", "Report", "Prediction"}
    assert not any(record.covered for record in others.values())
    assert result.extra["privacy"]["client-0"]["Representation"]["releases"] == releases


@pytest.mark.slow
def test_runs_without_noise_claim_nothing():
    for words, mechanism in (({}, "none"), ({"secure_aggregation": "true"}, "secure-sum")):
        _, memory = simulate(settings(**words, mode="joint", average_classifiers="true", batch_size="10"))
        local = [record for record in memory.records if record.party == "client-0"]
        assert {record.message_type for record in local} == {
            "Representation", "Report", "Prediction", "GradientPart", "Classifier", "IndexSet",
        }  # fmt: skip
        assert not any(record.covered for record in local)
        assert local[0].mechanism == mechanism
        assert local[0].epsilon == math.inf


def test_rows_that_one_node_reaches():
    assert [privacy.reached_rows(3, hops, 1000) for hops in (0, 1, 2, 3)] == [1, 4, 10, 22]
    assert privacy.reached_rows(3, 3, 15) == 15
    assert privacy.reached_rows(1, 5, 100) == 6  # an upper bound: a pair reaches two


def test_releases_add_up_and_only_the_first_weights_know_nothing():
    config = settings(**NOISY, num_layers="4", scale_features="false")
    releases = privacy.noised_releases(config)
    privacy.count_release(releases, config, 1, 1000, first=True)
    assert (releases.count, releases.nominal_mu, releases.rigorous_mu) == (1, math.sqrt(61), math.sqrt(61))
    resumed = privacy.noised_releases(config)
    resumed.load_state_dict(releases.state_dict())
    privacy.count_release(resumed, config, 1, 1000, first=False)
    assert (resumed.count, resumed.nominal_mu, resumed.rigorous_mu) == (2, math.sqrt(122), math.sqrt(1061))


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["gcn", "gat", "gcnii"])
def test_one_node_moves_no_more_rows_of_the_first_release_than_is_accounted_for(monkeypatch, backbone):
    """An audit of the nominal account: replace one node's features, look which rows of the first release move."""
    words = {**NOISY, "noise_multiplier": "1e-6", "num_rounds": "1", "backbone": backbone, "max_degree": "60"}
    config, releases = settings(**words, reproducible_noise="true"), []
    source = altered()
    block = source.load(0)
    for node in (None, 3, int(np.argmax(np.diff(block.indptr)))):
        features = block.features.copy()
        if node is not None:
            features[node] = 1e6
        ear = Eavesdropper(monkeypatch)
        simulate(config, data=altered(features=features))
        releases.append((node, [one.values for one in ear.of(Representation)[:3]]))
        monkeypatch.undo()
    (_, before), *others = releases
    for node, after in others:
        moves = [np.linalg.norm(two - one, axis=1) for one, two in zip(before, after, strict=True)]
        move = max(moves, key=lambda norms: norms.max())  # the others' representations stay
        moved = move > 1e-3
        degree = int(np.diff(block.indptr).max())
        hops = 2
        near = {node}
        for _ in range(hops):
            near |= {int(other) for one in near for other in block.indices[block.indptr[one] : block.indptr[one + 1]]}
        assert 0 < moved.sum() <= len(near) <= privacy.reached_rows(degree, hops, len(moved))
        assert move.max() <= 2 * (1 + 1e-4)


def test_a_representation_beyond_the_range_of_masked_sums_is_named():
    from fedactors.errors import BadInput

    with pytest.raises(BadInput, match=r"secure_range: 0\.0001 is too small for forward/0"):
        simulate(settings(secure_aggregation="true", secure_range="0.0001"))


@pytest.mark.slow
def test_the_noise_of_a_masked_sum_is_as_wide_as_stated(monkeypatch):
    """Two runs whose noise differs: the first sums differ by noise of both, at least twice the stated variance."""
    config = settings(**NOISY, secure_aggregation="true", num_rounds="1")
    sums = []
    kept = AggregationServer._aggregate

    async def listen(self, segment, parts):
        found = await kept(self, segment, parts)
        if segment == 0:
            sums.append(np.asarray(found.values) * len(parts))
        return found

    monkeypatch.setattr(AggregationServer, "_aggregate", listen)
    monkeypatch.setattr(GraphClient, "_is_secret", False)  # the same weights, noise and masks of the system
    simulate(config)
    once = len(sums)
    simulate(config)
    noise = (sums[0] - sums[once]) / math.sqrt(2)
    stated = 2.0 * math.sqrt(3 / 2)  # three parts, of which any two have 2.0
    assert noise.std() == pytest.approx(stated, rel=0.1)


def test_a_node_above_the_degree_bound_is_refused():
    from fedactors.errors import BadInput

    with pytest.raises(BadInput, match=r"max_degree: 3 is not allowed: client-0 has a node of degree"):
        simulate(settings(**{**NOISY, "max_degree": "3"}))


@pytest.mark.slow
@pytest.mark.parametrize("secure", ["false", "true"])
def test_a_replay_of_one_node_stays_below_the_account(secure):
    """What really moves of the noised releases, over rounds of training, against the figure of the ledger."""
    config = settings(**NOISY, secure_aggregation=secure, num_rounds="2", evaluate_every="2", dropout="0")
    data = load_data(config, DATA, 0)
    nodes = auditing.neighbours(config, data, "client-0", 3, 0)
    audit = audit_by_replay(PROTOCOL, config, data, "client-0", nodes)
    assert audit.refuted == []
    _, memory = simulate(settings(**NOISY, secure_aggregation=secure, num_rounds="2", evaluate_every="2", dropout="0"))
    stated = next(one.rigorous_mu for one in memory.records if one.message_type == "Representation")
    moved = [compose_mu(shift.mu for shift in replayed.shifts) for replayed in audit.replays]
    assert 0 < max(moved) <= stated


@pytest.mark.slow
def test_links_show_in_representations_and_less_under_noise():
    found = {}
    for name, words in (("open", {}), ("noise", {**NOISY, "noise_multiplier": "200"})):
        config = settings(**words, num_rounds="6", evaluate_every="3")
        _, memory = simulate(config)
        attacks = auditing.surface(config, load_data(config, DATA, 0), memory.snapshots[-1].actors, 0).others
        assert len(attacks) == 3
        found[name] = attacks
    assert all(attack.estimate > 0.55 and not attack.is_chance for attack in found["open"])
    assert np.mean([attack.estimate for attack in found["noise"]]) < 0.55

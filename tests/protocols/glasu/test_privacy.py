"""Masked sums, noise and its account: what the server sees, and what the privacy ledger says of it."""

import math

import numpy as np
import pytest

from fedactors.privacy.accounting import epsilon_of_mu
from protocols.glasu import privacy
from protocols.glasu.messages import GradientPart, Logits, Masked, Representation
from tests.protocols.glasu.federation import Eavesdropper, settings, simulate


@pytest.mark.parametrize("mode", ["paper", "joint"])
def test_masked_sums_give_the_numbers_of_plain_ones(mode):
    words = {"mode": mode, "average_classifiers": "true", "num_local_updates": "2", "float64": "true"}
    _, plain = simulate(settings(**words))
    _, masked = simulate(settings(**words, secure_aggregation="true"))
    for one, two in zip(plain.rounds, masked.rounds, strict=True):
        assert one == pytest.approx(two, rel=1e-6)


def test_the_server_sees_masked_sums_only_and_a_masked_message_looks_like_noise(monkeypatch):
    ear = Eavesdropper(monkeypatch)
    config = settings(secure_aggregation="true", mode="joint", average_classifiers="true", num_rounds="2")
    simulate(config)
    assert ear.of(Representation, GradientPart, Logits) == []
    words = [one.words for one in ear.of(Masked)]
    assert len(words) == 2 * 3 * (2 + 2 + 1) + 2 * 3
    # representations after a ReLU are never negative and below 2^44 in fixed point: their upper bits would be zero
    for one in words:
        high = (one >> np.uint64(56)).astype(np.float64)
        expected, deviation = 127.5, 73.9 / math.sqrt(len(high))
        assert abs(high.mean() - expected) < 5 * deviation
        ones = np.unpackbits(one.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / math.sqrt(64 * len(one))
    everything = np.concatenate(words)
    assert len(np.unique(everything)) == len(everything)
    counts = np.bincount((everything >> np.uint64(60)).astype(np.int64), minlength=16)
    chi_squared = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    assert chi_squared < 45  # 15 degrees of freedom: one run in ten thousand is above


def test_masks_are_fresh_in_every_run_and_leave_no_trace_in_the_results(monkeypatch):
    ear, config = Eavesdropper(monkeypatch), settings(secure_aggregation="true", num_rounds="1")
    _, one = simulate(config)
    first = [message.words for message in ear.of(Masked)]
    ear.seen.clear()
    _, two = simulate(config)
    second = [message.words for message in ear.of(Masked)]
    assert one.rounds == two.rounds
    assert not any(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_resumed_run_masks_under_other_keys(monkeypatch):
    config = settings(secure_aggregation="true")
    _, memory = simulate(config)
    ear = Eavesdropper(monkeypatch)
    simulate(config, resume=memory.snapshots[1])
    keys = [one.public_key for one in ear.messages() if hasattr(one, "public_key")]
    assert len(set(keys)) == 3
    assert all(key not in frame for frame in memory.snapshots[1].actors.values() for key in keys)


NOISY = {"noise_multiplier": "2", "clip_norm": "1", "max_degree": "60", "aggregation_layers": "1,3"}


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
        assert record.covered
        assert record.releases == releases
        assert (record.clip_norm, record.noise_scale) == (1.0, 2.0)
        assert record.nominal_mu == pytest.approx(math.sqrt(releases * row * near))
        assert record.rigorous_mu == pytest.approx(math.sqrt(releases * row * 120))
        assert record.epsilon == pytest.approx(epsilon_of_mu(record.rigorous_mu, 1e-5))
        assert "one node's features" in record.note
        assert "degree up to 60" in record.note
        assert ("masked sums" in record.note) == (secure == "true")
    others = {record.message_type: record for record in memory.records if record.party == "client-0"}
    assert {name for name, record in others.items() if not record.covered} == {"Report", "Logits"}
    assert result.extra["privacy"]["client-0"]["Representation"]["releases"] == releases


def test_runs_without_noise_claim_nothing():
    for words, mechanism in (({}, "none"), ({"secure_aggregation": "true"}, "secure-sum")):
        _, memory = simulate(settings(**words, mode="joint", average_classifiers="true", batch_size="10"))
        own = [record for record in memory.records if record.party == "client-0"]
        assert {record.message_type for record in own} == {
            "Representation", "Report", "Logits", "GradientPart", "Classifier", "IndexSet",
        }  # fmt: skip
        assert not any(record.covered for record in own)
        assert own[0].mechanism == mechanism
        assert own[0].epsilon == math.inf


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


def test_a_node_moves_every_row_of_a_block_that_is_scaled_by_its_mean():
    releases = privacy.noised_releases(settings(**NOISY))
    privacy.count_release(releases, settings(**NOISY), 1, 1000, first=True)
    assert (releases.nominal_mu, releases.rigorous_mu) == (math.sqrt(1000), math.sqrt(1000))


def test_a_node_above_the_degree_bound_is_refused():
    from fedactors.errors import BadInput

    with pytest.raises(BadInput, match=r"max_degree: 3 is not allowed: client-0 has a node of degree"):
        simulate(settings(**{**NOISY, "max_degree": "3"}))

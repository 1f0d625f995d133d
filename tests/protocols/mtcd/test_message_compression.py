"""Compression with error feedback, noise, and what they cost."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.messages.compression import Encoded
from fedactors.privacy.accounting import epsilon_of_mu
from fedactors.protocols.mtcd.message_compression import Estimates, Transforms, releases_of, unpack
from tests.protocols.mtcd.running import Watched, config_of, merged, simulate


def test_differences_to_an_estimate_lose_nothing_for_good():
    """Top-k keeps 1 of 4; four messages of the same array bring all of it."""
    wire = Transforms.of(config_of("compression=top-k compression_ratio=0.25"))
    sender, receiver = Estimates(4), Estimates(4)
    h = np.array([4.0, -3.0, 2.0, 1.0])
    seen = []
    for _ in range(4):
        encoded, _ = wire.representation.encode(h - sender.known(0, h, None), None, np.random.default_rng(0))
        sender.add(0, unpack(encoded), None)
        seen.append(receiver.add(0, unpack(encoded), None).tolist())
    assert seen == [[4, 0, 0, 0], [4, -3, 0, 0], [4, -3, 2, 0], [4, -3, 2, 1]]


def test_estimates_are_kept_for_each_row():
    estimates = Estimates(5)
    assert estimates.add(2, np.array([1.0, 2.0]), np.array([0, 3])).tolist() == [1, 2]
    assert estimates.add(2, np.array([1.0, 1.0]), np.array([3, 4])).tolist() == [3, 1]
    assert estimates.known(2, np.zeros(2), None).tolist() == [1, 0, 0, 3, 1]
    again = Estimates(5)
    again.load_state_dict(estimates.state_dict())
    assert again.known(2, np.zeros(2), np.array([3])).tolist() == [3]


def test_tokens_are_quantised_but_never_thinned_out():
    assert Transforms.of(config_of("compression=top-k")).token is None
    packed = Transforms.of(config_of("compression=quantise quantise_bits=4")).pack_token(np.linspace(0, 1, 100), 1, 2)
    assert isinstance(packed, Encoded)
    assert packed.num_bytes == 50
    assert np.abs(unpack(packed) - np.linspace(0, 1, 100)).max() <= 1 / 15 + 1e-12
    again = Transforms.of(config_of("compression=quantise quantise_bits=4")).pack_token(np.linspace(0, 1, 100), 1, 2)
    assert np.array_equal(packed.values, again.values)


@pytest.mark.slow
def test_compression_with_error_feedback_reaches_the_minimum_with_fewer_bytes():
    words = "algorithm=svfl num_rounds=300 record_every=100"
    plain, _, _ = simulate(words)
    fed_back, _, _ = simulate(f"{words} compression=top-k compression_ratio=0.3")
    cut, _, _ = simulate(f"{words} compression=top-k compression_ratio=0.3 error_feedback=false")
    assert abs(plain.metrics["gap"]) < 1e-9
    assert abs(fed_back.metrics["gap"]) < 1e-6
    assert cut.metrics["gap"] > 1e-3
    assert fed_back.metrics["client_server_bytes"] < plain.metrics["client_server_bytes"]


@pytest.mark.slow
def test_quantised_tokens_and_representations_come_close_with_an_eighth_of_the_bytes():
    """A byte a sample instead of eight, three for the name of the numbers' type, five numbers that describe it."""
    plain, _, _ = simulate("num_rounds=60 record_every=20 topology=complete")
    coarse, _, _ = simulate("num_rounds=60 record_every=20 topology=complete compression=quantise quantise_bits=8")
    assert coarse.metrics["client_client_bytes"] == plain.metrics["client_client_bytes"] / 240 * (30 + 3 + 5 * 8)
    assert abs(coarse.metrics["gap"] - plain.metrics["gap"]) < 0.02


# --- noise ---


def test_the_privacy_ledger_tells_the_releases_and_both_budgets():
    """Two releases of 30 rows at clip 1, sigma 4: nominal 2 sqrt(2)/4, rigorous sqrt(30) times that [hand]."""
    releases = releases_of(config_of("noise=gaussian noise_multiplier=4"), "Token")
    releases.add(30, nominal_rows=1, times=2)
    record = releases.record("bank")
    assert record.nominal_mu == pytest.approx(2 * math.sqrt(2) / 4)
    assert record.rigorous_mu == pytest.approx(2 * math.sqrt(60) / 4)
    assert record.epsilon == pytest.approx(epsilon_of_mu(record.rigorous_mu, 1e-5))
    assert record.covered


def test_every_release_is_noised_and_counted():
    words = "noise=gaussian clip_norm=5 noise_multiplier=0.1 topology=complete num_tokens=1 clusters=whole"
    result, kept, runtime = simulate(words, cls=Watched)
    records = {(record.party, record.message_type): record for record in kept.records}
    assert len(records) == 12
    for client in (f"client-{index}" for index in range(6)):
        representations = [
            sent for sender, _, sent in runtime.messages if type(sent).__name__ == "Representation" and sender == client
        ]
        assert records[(client, "Representation")].releases == len(representations)
        assert all(m.penalty == 0.0 for m in representations)
        assert all(np.abs(m.h).max() <= 5 + 0.5 * 6 for m in representations)
    tokens = [row for row in kept.rows if row[4] == "Token" and row[1] != "server"]
    assert sum(r.releases for (_, kind), r in records.items() if kind == "Token") >= len(tokens)
    assert all(not record.covered and "no privacy guarantee" in record.note for record in kept.records)
    found = result.extra["privacy"]["client-0"]["Token"]
    assert found["rigorous_mu"] == records[("client-0", "Token")].rigorous_mu


def test_real_noise_differs_from_run_to_run_and_nothing_is_asked_beside_the_protocol():
    words = "noise=gaussian topology=complete"
    first, kept, runtime = simulate(words, reproducible_noise=False, cls=Watched)
    second, _, _ = simulate(words, reproducible_noise=False)
    assert first.metrics["training/objective"] != second.metrics["training/objective"]
    assert not [m for _, _, m in runtime.messages if type(m).__name__ == "Measured"]
    assert not any(record.covered for record in kept.records if record.releases)  # the step size is found with norms
    _, kept, _ = simulate(f"{words} learning_rate=0.1", reproducible_noise=False)
    assert all(record.covered for record in kept.records if record.releases)
    with pytest.raises(BadInput, match="nothing may be measured"):
        simulate(f"{words} algorithm=stcd", reproducible_noise=False)


def test_a_clipped_change_of_z_is_bounded():
    words = "noise=gaussian clip_norm=0.01 noise_multiplier=1e-9 topology=complete num_hops=5 num_rounds=1 num_tokens=1"
    _, _, runtime = simulate(f"{words} clusters=whole", cls=Watched)
    tokens = sorted((m for _, _, m in runtime.messages if type(m).__name__ == "Token"), key=lambda m: m.hop)
    assert len(tokens) > 2
    for before, after in itertools.pairwise(tokens):
        assert np.abs(after.z - before.z).max() <= 0.01 + 1e-9


def test_words_of_transforms_are_checked():
    for words, line in (
        ("algorithm=dcpa noise=gaussian", "not allowed for dcpa"),
        ("algorithm=stcd compression=top-k", "top-k is not allowed for stcd"),
    ):
        with pytest.raises(BadInput, match=line):
            config_of(merged(words))

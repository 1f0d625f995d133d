"""Differential privacy of clients and of rows: formulas, accounts, replays, refusals, resumes, and both runtimes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from opacus.accountants.rdp import RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from fedactors.auditing.replay import audit_by_replay
from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.inspection import describe_messages
from fedactors.privacy.accounting import CLIENT_PRESENCE, ROW_PRESENCE, check_record, claims
from fedactors.protocols.horizontal import client_dp
from fedactors.protocols.horizontal.algorithm import ServerModel
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data, model_spec
from fedactors.protocols.horizontal.plugin import PROTOCOL
from fedactors.protocols.horizontal.privacy import neighbours
from fedactors.protocols.horizontal.run import run
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.ray.runtime import RayRuntime
from tests.protocols.horizontal.federation import changed, cut, play, rounds, vector_of

FEW = {"num_rounds": 2, "local_epochs": 1, "num_training": 120}
CLIENTS = {"client_clip_norm": 0.5, "client_noise_multiplier": 2.0}
ROWS = {"record_clip_norm": 1.0, "record_noise_multiplier": 1.5}


def epsilon_by_hand(mu, delta):
    """Solve the delta of a Gaussian mechanism (Balle and Wang, 2018) for epsilon."""

    def excess(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return brentq(excess, 0, 100)


def lines_of(runtime, party):
    return [line for line in runtime.privacy_records if line.party == party]


def test_a_change_is_clipped_to_one_and_its_bit_shares_the_bound():
    long, short = np.array([3.0, 4.0]), np.array([0.3, 0.4])
    assert client_dp.unit_change(long, 2.5, 0.0) == pytest.approx([0.6, 0.8, 0.0])
    assert client_dp.unit_change(short, 2.5, 0.0) == pytest.approx([0.12, 0.16, 0.0])
    for change in (long, short, np.array([np.inf, 1.0])):
        assert np.linalg.norm(client_dp.unit_change(change, 2.5, 0.3)) <= 1 + 1e-12
    assert client_dp.unit_change(long, 2.5, 0.3)[-1] == -0.3
    assert client_dp.unit_change(short, 2.5, 0.3)[-1] == 0.3


def test_the_noise_of_both_parts_is_that_of_the_paper():
    """Andrew et al., 2021: z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2), sigma_b a twentieth of the clients."""
    config = changed(**CLIENTS, clip_quantile=0.5)
    bit = client_dp.bit_share(config, 100)
    z, sigma_b = 2.0, 100 / 20
    assert z / (2 * bit) == pytest.approx(sigma_b)
    assert z / math.sqrt(1 - bit**2) == pytest.approx((z**-2 - (2 * sigma_b) ** -2) ** -0.5)


def test_the_clip_norm_follows_its_quantile():
    config = changed(**CLIENTS, clip_quantile=0.5, clip_learning_rate=0.2)
    spec = model_spec(config, inputs=(1, 8, 8), task="multiclass", num_classes=10)
    bit = client_dp.bit_share(config, 6)
    model = ServerModel(np.zeros(650))
    for within, factor in ((6, math.exp(-0.1)), (0, math.exp(0.1)), (3, 1.0)):
        total = np.append(np.zeros(650), bit * (2 * within - 6))
        assert client_dp.advance(config, spec, model, total, 0.5, 6)[1] == pytest.approx(0.5 * factor)


@pytest.mark.parametrize("words", [{}, {"clip_quantile": 0.5}, {"secure_aggregation": True}, {"algorithm": "fedadam"}])
def test_the_account_of_clients_is_recounted(words):
    _, _, runtime = play(changed(**FEW, **CLIENTS, **words))
    summed = "secure_aggregation" in words
    (line,) = lines_of(runtime, "client-0" if summed else "server")
    assert (line.neighbour, line.covered, line.touched) == (CLIENT_PRESENCE, True, 2)
    assert line.epsilon == pytest.approx(epsilon_by_hand(math.sqrt(2) / 2.0, 1e-5), rel=1e-6)
    assert check_record(line).agrees
    claim = claims([line])[line.party, "client"]
    assert claim.epsilon == pytest.approx(epsilon_by_hand(2 * math.sqrt(2) / 2.0, 1e-5), rel=1e-6)
    if not summed:  # whoever does not trust the server has no promise
        assert not claims(lines_of(runtime, "client-0"))["client-0", "client"].covered


def test_secret_samples_amplify_as_opacus_counts_them():
    _, recorder, runtime = play(changed(**FEW, **CLIENTS, client_sampling_rate=0.3))
    (line,) = lines_of(runtime, "server")
    counted = RDPAccountant()
    counted.history = [(2.0, 0.3, 2)]
    assert line.epsilon == pytest.approx(counted.get_epsilon(1e-5), rel=1e-9)
    assert line.epsilon < epsilon_by_hand(math.sqrt(2) / 2.0, 1e-5)
    assert all(entry["training/loss"] is None for entry in recorder.rounds)


def test_the_noise_is_as_large_as_stated():
    """With no step that moves anything, what the model does in a round is noise: C z / m on each number."""
    words = {**FEW, "num_rounds": 1, "learning_rate": 1e-12, "clip_quantile": None}
    for more in ({}, {"secure_aggregation": True}):
        config = changed(**words, **CLIENTS, **more)
        _, noised, _ = play(config)
        _, plain, _ = play(changed(**words))
        deviation = float((vector_of(noised) - vector_of(plain)).std())
        # of six sites any three must give the whole noise without one's own, so that all six give more
        excess = math.sqrt(6 / 3) if more else 1.0
        assert deviation == pytest.approx(0.5 * 2.0 / 6 * excess, rel=0.15)


@pytest.mark.parametrize(
    ("party", "words"),
    [
        ("server", {**CLIENTS, "clip_quantile": 0.5}),
        ("client-1", {**CLIENTS, "secure_aggregation": True}),
        ("client-1", ROWS),
    ],
)
def test_a_replay_refutes_no_claim_and_moves_something(party, words):
    config = changed(**{**FEW, "num_clients": 3}, **words)
    data = load_data(config, "digits", 0)
    audit = audit_by_replay(PROTOCOL, config, data, party, neighbours(config, data, party, 4, 0))
    assert audit.refuted == []
    assert {one.kind for one in audit.replays} == {"row" if words is ROWS else "client"}
    assert max(one.mu for one in audit.replays) > 0
    assert all(math.isfinite(one.mu) for one in audit.replays), [one.bare for one in audit.replays]


def test_a_replay_refutes_a_server_without_its_noise(monkeypatch):
    config = changed(**{**FEW, "num_clients": 3}, **CLIENTS)
    monkeypatch.setattr("fedactors.protocols.horizontal.actors.add_gaussian", lambda values, *args, **words: values)
    data = load_data(config, "digits", 0)
    assert audit_by_replay(PROTOCOL, config, data, "server", neighbours(config, data, "server", 1, 0)).refuted


def test_each_client_accounts_for_its_own_number_of_rows():
    config = changed(**FEW, **ROWS)
    _, recorder, runtime = play(config)
    sizes = [len(load_data(config, "digits", 0).client(index).load().labels) for index in range(6)]
    assert len(set(sizes)) > 1
    for index, size in enumerate(sizes):
        (line,) = lines_of(runtime, f"client-{index}")
        counted = RDPAccountant()
        counted.history = [(1.5, min(1.0, 16 / size), 2 * math.ceil(size / 16))]
        if size > 16:
            assert line.epsilon == pytest.approx(counted.get_epsilon(1e-5), rel=1e-9)
        assert (line.neighbour, line.covered, check_record(line).agrees) == (ROW_PRESENCE, True, True)
    assert all(entry["training/loss"] is None for entry in recorder.rounds)


@pytest.mark.parametrize("words", [CLIENTS, {**CLIENTS, "client_sampling_rate": 0.5}, ROWS])
def test_a_resumed_run_is_exact_and_promises_nothing(words):
    config = changed(**{**FEW, "num_rounds": 4}, **words)
    _, whole, _ = play(config, reproducible_noise=True)
    _, half = cut(config, 2, reproducible_noise=True)
    _, resumed, runtime = play(config, resume=Snapshot(half.actors, half.driver), reproducible_noise=True)
    assert rounds(resumed)[-1] == rounds(whole)[-1]
    assert np.array_equal(vector_of(resumed), vector_of(whole))
    assert not any(line.covered for line in runtime.privacy_records)


@pytest.mark.ray
@pytest.mark.parametrize("words", [{**CLIENTS, "clip_quantile": 0.5}, ROWS])
def test_ray_gives_the_numbers_of_the_simulation(words, ray_cluster):
    config = changed(**{**FEW, "num_clients": 3}, **words)
    _, simulated, _ = play(config, reproducible_noise=True)
    runtime = RayRuntime(seed=0, reproducible_noise=True)
    data = load_data(config, "digits", 0)
    result = runtime.execute(lambda: run(config, data, runtime))
    assert result.metrics["test/loss"] == simulated.rounds[-1]["test/loss"]


def test_what_travels_is_said():
    central = {entry["message"]: entry for entry in describe_messages(PROTOCOL, changed(**CLIENTS))}
    assert "trusted" in central["ClippedChanges"]["reveals"]
    assert not {"Change", "TrainOrder"} & set(central)
    summed = {entry["message"] for entry in describe_messages(PROTOCOL, changed(**CLIENTS, secure_aggregation=True))}
    assert {"PrivateOrder", "Masked"} <= summed
    assert "ClippedChanges" not in summed


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"client_clip_norm": 1.0}, "client_noise_multiplier: .*both are needed"),
        ({"record_noise_multiplier": 1.0}, "record_noise_multiplier: .*both are needed"),
        ({**CLIENTS, "algorithm": "scaffold"}, "client_clip_norm: .*scaffold"),
        ({**CLIENTS, "weighting": "samples"}, "client_clip_norm: .*weighting=samples"),
        ({**CLIENTS, "secure_aggregation": True, "client_sampling_rate": 0.5}, "client_sampling_rate: .*amplified"),
        ({**CLIENTS, "clients_per_round": 3, "client_sampling_rate": 0.5}, "client_sampling_rate: .*fixed number"),
        ({**CLIENTS, **ROWS}, "record_clip_norm: .*choose rows or clients"),
        ({**ROWS, "loss": "torch.nn:HuberLoss"}, "record_clip_norm: .*your own loss"),
        ({**CLIENTS, "max_epsilon": 2.0}, "max_epsilon: 2 rounds cost epsilon 2.9"),
        ({**CLIENTS, "aggregation": "median"}, "aggregation: median .*client_clip_norm"),
    ],
)
def test_what_does_not_go_together_is_refused(words, why):
    with pytest.raises(BadInput, match=why):
        build(HorizontalConfig, {**FEW, **words})


@pytest.mark.parametrize("words", [CLIENTS, ROWS])
def test_batch_normalisation_is_refused_with_the_remedy(words):
    config = changed(**{**FEW, "num_clients": 3, "float64": False}, **words, model="resnet18", normalisation="batch")
    with pytest.raises(BadInput, match=r"_clip_norm: not allowed with resnet18.*GroupNorm"):
        play(config)


def test_a_client_refuses_rounds_beyond_its_rows_budget():
    with pytest.raises(BadInput, match=r"max_epsilon: 2 rounds cost a row of client-\d epsilon .*more than 0.5"):
        play(changed(**FEW, **ROWS, max_epsilon=0.5))

"""Differential privacy of containers and of rows: accounts, budgets, replays, refusals, resumes; losses, metrics."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from opacus.accountants.rdp import RDPAccountant

from fedactors.auditing.replay import audit_by_replay
from fedactors.config import build
from fedactors.data.layouts.horizontal import rows_key, rows_of
from fedactors.errors import BadInput
from fedactors.inspection import describe_messages
from fedactors.learning.local_training import train_privately
from fedactors.privacy.accounting import CLIENT_PRESENCE, ROW_PRESENCE, RecordPrivacy, check_record, claims
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import center_part, load_data
from fedactors.protocols.nebulafl.plugin import PROTOCOL
from fedactors.protocols.nebulafl.privacy import neighbours
from fedactors.protocols.nebulafl.training import local_training, model_spec, run_model, samples_of, steps_of
from fedactors.protocols.nebulafl.training import train as train_container
from tests.protocols.nebulafl.runs import changed, cut, play, rounds

FEW = {"num_training": 300, "model": "linear", "batch_size": 16, "dirichlet": None, "work_factor": 200.0}
CLIENTS = {"client_clip_norm": 0.5, "client_noise_multiplier": 2.0}
ROWS = {"record_clip_norm": 1.0, "record_noise_multiplier": 1.5}
EACH = ("nebulafl", "fedavg", "fedavg-hierarchical", "fedhisyn", "fedbuff", "fedasync", "gitfl", "fedsa")


def line_of(runtime, party="oregon"):
    (line,) = [line for line in runtime.privacy_records if line.party == party]
    return line


def trainings_of(recorder, runtime, center="oregon"):
    """Return how often each container of a center was chosen, from the run's own timeline."""
    spans = [json.loads(line) for line in recorder.lines]
    found: dict[str, int] = {}
    for span in spans:
        if span["type"] == "span" and span["kind"] in ("train", "given up"):
            container = span["label"].split(" on ")[0]
            if container.startswith(f"{center}/"):
                found[container] = found.get(container, 0) + 1
    return found


@pytest.mark.parametrize("algorithm", EACH)
def test_the_account_of_rows_is_that_of_opacus(algorithm):
    config = changed(**FEW, **ROWS, algorithm=algorithm)
    _, recorder, runtime = play(config)
    data = load_data(config, "digits", 0)
    sizes = [len(rows_of(rows_key(one))[1]) for one in center_part(config, data, 0).clients]
    counts = trainings_of(recorder, runtime)
    steps = max(counts.get(f"oregon/{number}", 0) * math.ceil(size / 16) for number, size in enumerate(sizes))
    line = line_of(runtime)
    counted = RDPAccountant()
    counted.history = [(1.5, 16 / min(sizes), steps)]
    assert (line.neighbour, line.covered, line.touched) == (ROW_PRESENCE, True, steps)
    assert line.epsilon == pytest.approx(counted.get_epsilon(1e-5), rel=1e-9)
    assert check_record(line).agrees
    assert {one.party for one in runtime.privacy_records} == {"oregon", "virginia", "frankfurt"}


def test_the_account_of_containers_counts_their_trainings():
    _, recorder, runtime = play(changed(**FEW, **CLIENTS))
    most = max(trainings_of(recorder, runtime).values())
    line = line_of(runtime)
    assert (line.neighbour, line.covered, line.touched) == (CLIENT_PRESENCE, True, most)
    assert line.rigorous_mu == pytest.approx(math.sqrt(most) / 2.0)
    assert check_record(line).agrees
    assert claims([line])["oregon", "client"].mu == pytest.approx(2 * math.sqrt(most) / 2.0)


def test_a_training_is_the_frames_own_dp_sgd():
    config = changed(**FEW, **ROWS, local_epochs=2)
    data = load_data(config, "digits", 0)
    model, key = run_model(config, data), rows_key(data.client(0))
    start_P = np.zeros(650, np.float32)
    privacy = RecordPrivacy(clip_norm=1.0, noise_multiplier=1.5, batch_size=16, num_epochs=2)
    steps = steps_of(config)
    made_P, loss, _, logits = train_container(
        model, start_P, key, 0, steps, b"", "cpu", ("record", 1.0, 1.5, (1, 2, 3, 4))
    )
    expected_P = train_privately(
        model_spec(model), start_P, samples_of(key), rows_of(key)[1], secret=(1, 2, 3, 4), privacy=privacy,
        training=local_training(steps),
    )  # fmt: skip
    assert np.array_equal(made_P, expected_P)
    assert (loss, logits) == (0.0, None)


def test_the_noise_of_a_container_is_as_large_as_stated():
    config = changed(**FEW, **CLIENTS, learning_rate=1e-12)
    data = load_data(config, "digits", 0)
    model, key = run_model(config, data), rows_key(data.client(0))
    made_P, *_ = train_container(
        model, np.zeros(650, np.float32), key, 0, steps_of(config), b"", "cpu", ("client", 0.5, 2.0, ())
    )
    assert made_P.std() == pytest.approx(0.5 * 2.0, rel=0.1)
    again_P, *_ = train_container(
        model, np.zeros(650, np.float32), key, 0, steps_of(config), b"", "cpu", ("client", 0.5, 2.0, ())
    )
    assert not np.array_equal(made_P, again_P)


@pytest.mark.parametrize("processes", [False, True])
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg", "fedhisyn", "fedbuff"])
@pytest.mark.parametrize("words", [CLIENTS, ROWS])
def test_no_container_spends_more_than_its_budget(algorithm, words, processes):
    config = changed(**FEW, **words, algorithm=algorithm, container_processes=processes)
    size = 25
    config = changed(config, max_epsilon=config.epsilon_of(2, size) + 1e-9)
    assert config.most_trainings(size) == 2
    result, recorder, runtime = play(config)
    assert set(trainings_of(recorder, runtime).values()) == {2}
    line = line_of(runtime)
    assert line.epsilon <= config.max_epsilon
    assert math.isfinite(result.metrics["test/accuracy"])


def test_a_budget_that_allows_no_training_is_refused():
    for words, kind in ((CLIENTS, "client"), (ROWS, "record")):
        with pytest.raises(BadInput, match=rf"max_epsilon: one training costs oregon/0 epsilon .*{kind}_noise_mult"):
            play(changed(**FEW, **words, max_epsilon=1e-3))


@pytest.mark.parametrize("words", [CLIENTS, ROWS])
@pytest.mark.parametrize("algorithm", ["nebulafl", "fedavg-hierarchical", "fedbuff"])
def test_a_replay_refutes_no_claim_and_moves_something(words, algorithm):
    config = changed(**FEW, **words, algorithm=algorithm, duration=1200.0)
    data = load_data(config, "digits", 0)
    audit = audit_by_replay(PROTOCOL, config, data, "virginia", neighbours(config, data, "virginia", 3, 0))
    assert audit.refuted == []
    assert {one.kind for one in audit.replays} == {"row" if words is ROWS else "client"}
    assert max(one.mu for one in audit.replays) > 0
    assert all(math.isfinite(one.mu) for one in audit.replays), [one.bare for one in audit.replays]


def test_a_replay_refutes_trainings_without_their_noise(monkeypatch):
    config = changed(**FEW, **CLIENTS, duration=1200.0)
    monkeypatch.setattr("fedactors.protocols.nebulafl.training.add_gaussian", lambda values, *args, **words: values)
    data = load_data(config, "digits", 0)
    assert audit_by_replay(PROTOCOL, config, data, "virginia", neighbours(config, data, "virginia", 1, 0)).refuted


@pytest.mark.parametrize("words", [CLIENTS, ROWS])
def test_a_resumed_run_is_exact_and_promises_nothing(words):
    config = changed(**FEW, **words)
    whole, _, _ = play(config, reproducible_noise=True)
    _, half = cut(config, 9, reproducible_noise=True)
    resumed, _, runtime = play(config, resume=half, reproducible_noise=True)
    assert resumed.metrics == whole.metrics
    assert not any(line.covered for line in runtime.privacy_records)


def test_containers_of_their_own_give_the_same_numbers_under_noise():
    config = changed(**FEW, **ROWS)
    _, inside, _ = play(config, reproducible_noise=True)
    _, apart, runtime = play(changed(config, container_processes=True), reproducible_noise=True)
    assert len(rounds(inside)) == len(rounds(apart))
    assert {line.party for line in runtime.privacy_records} == {"oregon", "virginia", "frankfurt"}


def test_masked_sums_are_of_noised_models():
    config = changed(**FEW, **CLIENTS, algorithm="fedhisyn", secure_aggregation=True, on_party_loss="stop")
    _, _, runtime = play(config)
    assert line_of(runtime).covered
    with pytest.raises(ValueError, match=r"max_epsilon: 8\.0 is not allowed with secure_aggregation"):
        changed(config, max_epsilon=8.0)


def test_what_travels_is_said():
    found = describe_messages(PROTOCOL, changed(**CLIENTS, algorithm="fedbuff", max_epsilon=4.0))
    assert "ContainerEvent" in {entry["message"] for entry in found}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"client_clip_norm": 1.0}, "client_noise_multiplier: .*both are needed"),
        ({"record_noise_multiplier": 1.0}, "record_noise_multiplier: .*both are needed"),
        ({**CLIENTS, **ROWS}, "record_clip_norm: .*choose rows or containers"),
        ({**CLIENTS, "algorithm": "fedhkt"}, "client_clip_norm: .*label counts"),
        ({**ROWS, "algorithm": "pisces"}, "record_clip_norm: .*losses"),
        ({**ROWS, "together": True}, "record_clip_norm: .*together"),
        ({**ROWS, "precision": "bf16"}, "precision: .*in full"),
        ({**ROWS, "micro_batch_size": 4}, "micro_batch_size: .*in full"),
        ({**ROWS, "loss": "torch.nn:CrossEntropyLoss"}, "record_clip_norm: .*your own loss"),
        ({"loss": "mse"}, "loss: 'mse' is not allowed"),
    ],
)
def test_what_does_not_go_together_is_refused(words, why):
    with pytest.raises(BadInput, match=why):
        build(NebulaFLConfig, words)


@pytest.mark.parametrize("words", [CLIENTS, ROWS])
def test_batch_normalisation_is_refused_with_the_remedy(words):
    config = changed(**{**FEW, "model": "resnet18"}, **words, normalisation="batch")
    with pytest.raises(BadInput, match=r"_clip_norm: not allowed with resnet18.*GroupNorm"):
        play(config)


# --- losses, metrics, precision ---------------------------------------------------------------------------------------


def halved(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets) / 2


def margin(outputs, targets):
    return (outputs.max(dim=1).values - outputs.min(dim=1).values).mean()


def test_a_loss_of_ones_own_is_what_is_trained():
    """Half of the loss is half of each step of plain gradient descent."""
    plain = changed(**FEW, momentum=0.0, duration=900.0)
    twice = changed(plain, loss=f"{__name__}:halved", learning_rate=2 * plain.learning_rate)
    first, second = play(plain)[0], play(twice)[0]
    assert second.metrics["test/accuracy"] == pytest.approx(first.metrics["test/accuracy"], abs=0.003)
    assert second.metrics["test/accuracy"] != play(changed(twice, loss="auto"))[0].metrics["test/accuracy"]


def test_a_metric_of_ones_own_is_in_each_measurement_and_in_the_end():
    result, recorder, _ = play(changed(**FEW, duration=900.0, metric=f"{__name__}:margin"))
    assert all(entry["test/margin"] > 0 for entry in recorder.rounds)
    assert result.metrics["test/margin"] == recorder.rounds[-1]["test/margin"]
    result, _, _ = play(changed(**FEW, duration=900.0, metric="sklearn.metrics:cohen_kappa_score"))
    assert -1 <= result.metrics["test/cohen_kappa_score"] <= 1


def test_gradients_add_up_and_bfloat16_is_near():
    config = changed(**FEW, duration=900.0)
    whole, added, rough = (
        play(changed(config, **words))[0].metrics["test/accuracy"]
        for words in ({}, {"micro_batch_size": 5}, {"precision": "bf16"})
    )
    assert added == pytest.approx(whole, abs=0.003)
    assert rough == pytest.approx(whole, abs=0.03)


def test_a_wrong_loss_or_metric_is_told_before_the_run():
    with pytest.raises(BadInput, match="loss: "):
        load_data(changed(loss=f"{__name__}:missing"), "digits", 0)
    with pytest.raises(BadInput, match="metric: "):
        load_data(changed(metric="sklearn.metrics:roc_auc_score"), "digits", 0)

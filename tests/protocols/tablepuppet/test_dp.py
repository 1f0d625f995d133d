"""Label and feature DP over whole runs: what is recorded, what leaves, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedactors.config import build
from fedactors.data.alignment import rows as joining
from fedactors.data.layouts import relational
from fedactors.errors import BadInput, Refused
from fedactors.privacy.accounting import dpsgd_epsilon
from fedactors.protocols.tablepuppet import local_solvers
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.data import load_data
from fedactors.protocols.tablepuppet.messages import DuplicateCounts
from fedactors.protocols.tablepuppet.messages import TestRows as RowsOfTest
from fedactors.protocols.tablepuppet.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime import snapshots
from fedactors.runtime.simulation.runtime import SimulatedRuntime


def execute(reproducible=True, **words):
    config = build(TablePuppetConfig, {"num_rounds": 2, "batch_size": 512, **words})
    recorder = MemoryRecorder()
    runtime = SimulatedRuntime(seed=0, recorder=recorder, reproducible_noise=reproducible)
    tables = load_data(config, "orders:1000", 0)
    result = runtime.execute(lambda: run(config, tables, runtime))
    return result, {(r.party, r.message_type): r for r in recorder.privacy_records}, config


@pytest.mark.slow
def test_label_noise_is_recorded_with_its_budget_and_costs_accuracy():
    plain, none, _ = execute(model="logistic", algorithm="rfl-sgd-v", learning_rate=0.5)
    noisy, records, _ = execute(model="logistic", algorithm="rfl-sgd-v", learning_rate=0.5, label_dp=0.5)
    record = records["orders", "Labels"]
    assert record.mechanism == "randomised-label"
    assert record.epsilon == pytest.approx(5.657, abs=1e-3)
    assert none["orders", "Labels"].mechanism == "none"
    assert noisy.metrics["training/loss"] > plain.metrics["training/loss"]
    assert ("items", "Labels") not in records


@pytest.mark.slow
def test_numeric_labels_are_clipped_and_noised():
    _, records, _ = execute(reproducible=False, model="linear", algorithm="rfl-sgd-v", label_dp=0.5, label_range=[0, 1])
    record = records["orders", "Labels"]
    assert (record.mechanism, record.covered) == ("laplace", True)
    assert record.epsilon == pytest.approx(np.sqrt(2) / 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    {"algorithm": "rfl-sgd-v"},
    {"algorithm": "rfl-admm-v", "admm": "paper_sgd", "local_batch_size": 16},
    {"algorithm": "rfl-admm", "admm": "paper_sgd", "inner_rounds": 2, "local_batch_size": 16},
])  # fmt: skip
def test_feature_dp_spends_its_budget_and_says_that_predictions_are_not_covered(words):
    result, records, config = execute(reproducible=False, model="linear", feature_dp=1.0, **words)
    for (_, kind), record in records.items():
        if kind == "theta":
            assert 0.9 < record.epsilon <= 1.0
            assert record.delta == 1e-5
            assert not record.covered  # predictions and facts read the same row
            assert record.sampling == ("poisson" if config.is_admm else "known-batches")
        if kind == "Predictions":
            assert not record.covered
            assert "not covered" in record.note
    joint = result.extra["privacy"]["joined tuple"]
    assert joint["epsilon"] == np.inf
    assert {f"{line}: no noise" for line in ("items/Predictions", "items/Facts", "orders/Labels")} <= {
        line.replace("-0", "").replace("-1", "") for line in joint["uncovered"]
    }


@pytest.mark.slow
def test_predictions_have_a_budget_of_their_own():
    _, records, _ = execute(
        reproducible=False, model="linear", feature_dp=1.0, algorithm="rfl-sgd-v", prediction_clip=2.0,
        prediction_noise=20.0,
    )  # fmt: skip
    record = records["items", "Predictions"]
    assert (record.mechanism, record.covered, record.noise_scale) == ("gaussian", False, 40.0)
    assert record.releases >= 2 * 5
    assert record.epsilon > 0.5


@pytest.mark.slow
def test_reproducible_noise_is_stamped():
    result, records, _ = execute(model="linear", feature_dp=1.0, algorithm="rfl-sgd-v")
    assert result.extra["privacy"]["reproducible_noise"] == "no privacy guarantee"
    assert not any(record.covered for record in records.values())
    again, _, _ = execute(model="linear", feature_dp=1.0, algorithm="rfl-sgd-v")
    assert again.metrics == result.metrics


@pytest.mark.slow
def test_noise_is_fresh_in_every_run_unless_made_reproducible():
    runs = [execute(reproducible=False, model="linear", feature_dp=1.0, algorithm="rfl-sgd-v")[0] for _ in range(2)]
    assert runs[0].metrics["test/rmse"] != runs[1].metrics["test/rmse"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reproducible", "words", "is_secret"),
    [
        (False, {"label_dp": 0.5}, True),
        (False, {"feature_dp": 1.0}, True),
        (True, {"label_dp": 0.5}, False),
        (False, {}, False),
    ],
)
def test_under_privacy_nobody_can_derive_the_order_of_rows(monkeypatch, reproducible, words, is_secret):
    """Rows are shuffled from the order of their keys: whoever could derive it would know the ranks of hashed keys."""
    read, found = relational.read_rows, []

    def listen(*args):
        rows = read(*args)
        found.append(rows.data.to_pylist())
        return rows

    monkeypatch.setattr(joining, "read_rows", listen)
    for _ in range(2):
        execute(
            reproducible=reproducible, model="logistic", algorithm="rfl-sgd-v", learning_rate=0.5, num_rounds=1, **words
        )
    first, second = found[: len(found) // 2], found[len(found) // 2 :]
    assert (first != second) == is_secret
    assert [sorted(map(str, rows)) for rows in first] == [sorted(map(str, rows)) for rows in second]


@pytest.mark.parametrize("mode", ["boyd", "paper_exact"])
def test_exact_solves_have_no_dp(mode):
    with pytest.raises(BadInput, match="exact solves"):
        execute(feature_dp=1.0, algorithm="rfl-admm-v", admm=mode)


def test_the_noise_of_a_run_is_that_of_its_steps():
    config = build(
        TablePuppetConfig, {"feature_dp": 1.0, "algorithm": "rfl-sgd-v", "num_rounds": 10, "batch_size": 10240}
    )
    steps, rate = local_solvers.total_steps(config, 6000, 1_786_513, True)
    assert (steps, rate) == (1750, 1.0)
    multiplier = local_solvers.choose_noise(config, 6000, 1_786_513, True)
    spent = dpsgd_epsilon(noise_multiplier=multiplier, steps=steps, delta=1e-5, sampling="full")
    assert 0.99 < spent <= 1.0
    admm = build(TablePuppetConfig, {"feature_dp": 1.0, "algorithm": "rfl-admm", "admm": "paper_sgd", "num_rounds": 10})
    steps, rate = local_solvers.total_steps(admm, 10_240, 1_786_513, False)
    assert (steps, rate) == (10 * 10 * 10 * 10, 0.1)


def test_only_rows_kept_for_the_test_are_scored(monkeypatch):
    """Scores of single rows, or of rows that the query does not join, would tell their labels."""
    monkeypatch.setattr(TableClient, "caller", "server")
    monkeypatch.setattr(TableClient, "name", "orders")
    client = object.__new__(TableClient)
    client._is_test, client.joined = np.array([True, False, True, True]), None
    client.counts = DuplicateCounts(np.zeros(4, int), np.array([True, False, True, False]), 1, 1, np.zeros(0))
    with pytest.raises(Refused, match="server: would score rows of orders that are not kept for the test"):
        client.receive_test_rows(RowsOfTest(np.array([0, 1]))).send(None)
    for others in ([0, 2, 3], [0], []):
        with pytest.raises(Refused, match="server: would score other rows of orders than those of the test join"):
            client.receive_test_rows(RowsOfTest(np.array(others, int))).send(None)
    with pytest.raises(StopIteration):
        client.receive_test_rows(RowsOfTest(np.array([0, 2, 2]))).send(None)


def test_labels_that_are_asked_for_again_have_the_same_noise(monkeypatch):
    config = build(TablePuppetConfig, {"model": "logistic", "algorithm": "rfl-sgd-v", "label_dp": 0.5})
    monkeypatch.setattr(TableClient, "noise_rng", lambda *_: np.random.default_rng())
    drawn = []
    monkeypatch.setattr(TableClient, "release", lambda _, what: drawn.append(what))
    client = object.__new__(TableClient)
    client._config, client._loss, client._classes, client.sent_labels = config, "logistic", ("a", "b"), None
    client._table = SimpleNamespace(label="y")  # type: ignore[assignment]
    client._labels, client._is_test = np.tile([0.0, 1.0], 500), np.zeros(1000, bool)
    told = []
    for _ in range(2):
        with pytest.raises(StopIteration) as stopped:
            client.send_labels().send(None)
        told.append(stopped.value.value.train)
    assert np.array_equal(*told)
    assert drawn == ["the labels"]
    # nor does a process that goes on from a checkpoint draw it anew
    restored = object.__new__(TableClient)
    restored._table = client._table
    snapshots.apply(restored, snapshots.unseal(snapshots.seal(snapshots.capture(client, ("sent_labels",))), "orders"))
    with pytest.raises(StopIteration) as stopped:
        restored.send_labels().send(None)
    assert np.array_equal(stopped.value.value.train, told[0])


@pytest.mark.slow
def test_a_state_does_not_take_the_noise_off():
    """The generator of the noise is in no state, but in those of reproducible runs, which promise nothing."""
    words = {
        "model": "linear",
        "feature_dp": 1.0,
        "algorithm": "rfl-sgd-v",
        "prediction_clip": 2.0,
        "prediction_noise": 2.0,
    }
    for reproducible in (False, True):
        captured = []
        kept = TableClient._predict

        async def look(self, x_nD, captured=captured, kept=kept):
            captured.append(self.noise_state)
            return await kept(self, x_nD)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TableClient, "_predict", look)
            execute(reproducible=reproducible, **words)
        assert captured
        assert all((state is not None) == reproducible for state in captured)


@pytest.mark.slow
def test_a_batch_that_holds_a_row_twice_is_refused():
    """It would move theta, and average the noise of predictions, more often than the account says."""
    kept = TableClient._distinct

    def twice(self, rows):
        return kept(self, np.repeat(rows, 2))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableClient, "_distinct", twice)
        with pytest.raises(Refused, match="for a batch that holds a row twice"):
            execute(model="linear", feature_dp=1.0, algorithm="rfl-sgd-v")

"""What a server reads in scores of outputs of its own making: test labels, but for their noise."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from fedactors.config import build
from fedactors.errors import Refused
from fedactors.privacy.mechanisms import kept_label_share, randomised_labels
from fedactors.protocols.tablepuppet import algorithm, messages
from fedactors.protocols.tablepuppet.actors import TableClient
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.runtime import snapshots

NUM_ROWS = 400
LOSSES = {"logistic": 4.0, "squared": 200.0, "softmax": 4.0}


def label_owner(monkeypatch: pytest.MonkeyPatch, loss: str, label_dp: float | None) -> TableClient:
    """Return a client whose rows are all kept for the test, and which has sent its labels."""
    monkeypatch.setattr(TableClient, "noise_rng", lambda *_: np.random.default_rng(5))
    monkeypatch.setattr(TableClient, "caller", "server")
    monkeypatch.setattr(TableClient, "name", "orders")
    monkeypatch.setattr(TableClient, "release", lambda *_: None)
    client: Any = object.__new__(TableClient)
    words: dict[str, Any] = {"label_range": (0.0, 100.0)} if loss == "squared" else {}
    client._config = build(TablePuppetConfig, {"algorithm": "rfl-sgd-v", "label_dp": label_dp, **words})
    rng = np.random.default_rng(0)
    y_n = rng.integers(0, 3 if loss == "softmax" else 2, NUM_ROWS)
    client._labels = np.round(rng.uniform(0, 100, NUM_ROWS)) if loss == "squared" else y_n
    if loss == "logistic":
        client._labels = y_n.astype(float)
    client._loss, client._classes = loss, ("a", "b", "c")
    client._table = type("Table", (), {"label": "y"})()
    client._is_test, client.sent_labels = np.ones(NUM_ROWS, bool), None
    client.test_rows = messages.TestRows(np.arange(NUM_ROWS))
    return client  # type: ignore[no-any-return]


def answer(client: TableClient, h_NC: Any) -> messages.Score:
    ranks = algorithm.ranks_of(client._loss, h_NC)
    nothing = np.zeros(0)
    return asyncio.run(client.score(messages.TestOutputs(h_NC, ranks, nothing.astype(np.int32), nothing)))


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_outputs_that_spell_test_labels_spell_noisy_ones(monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    """A few rows' outputs are powers of a base, so that one sum over rows holds the label of each as a digit."""
    client = label_owner(monkeypatch, loss, LOSSES[loss])
    asyncio.run(client.send_labels())
    found = np.empty(NUM_ROWS)
    zeros = answer(client, np.zeros((NUM_ROWS, 1)))
    width, base = (20, 2.0) if loss == "logistic" else (1, 128.0)
    for first in range(0, NUM_ROWS, width):
        h_NC = np.zeros((NUM_ROWS, 1))
        powers = base ** np.arange(7, 7 + width)
        h_NC[first : first + width, 0] = -powers if loss == "logistic" else powers
        told = answer(client, h_NC)
        if loss == "squared":
            found[first] = (zeros.total + powers[0] ** 2 - told.total) / (2 * powers[0])
            continue
        kept = kept_label_share(2, LOSSES[loss])
        without = told.loss * (2 * kept - 1) + (1 - kept) * (powers.sum() + 2 * (NUM_ROWS - width) * np.log(2))
        spelt = round((without - (NUM_ROWS - width) * np.log(2)) / base**7)
        found[first : first + width] = [(spelt >> digit) & 1 for digit in range(width)]
    noisy = np.asarray(client.test_labels)
    if loss == "squared":
        assert np.std(found - client._labels) > 100
        return
    assert np.mean(found == client._labels) < 0.75  # a bit more than half of them, as the noise keeps
    assert np.mean(found == noisy) > 0.8  # but where the score is cut


def test_scores_of_labels_without_noise_spell_test_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are powers of two are the bits of a sum: `site show` says of test labels that they leave too."""
    client, found = label_owner(monkeypatch, "logistic", None), np.empty(NUM_ROWS)
    for first in range(0, NUM_ROWS, 50):
        ranks, nothing = np.zeros(NUM_ROWS, np.int64), np.zeros(0)
        ranks[first : first + 50] = 2 << np.arange(50)
        outputs = messages.TestOutputs(np.zeros((NUM_ROWS, 1)), ranks, nothing.astype(np.int32), nothing)
        spelt = int(asyncio.run(client.score(outputs)).tally[-1])
        found[first : first + 50] = [(spelt >> digit) & 1 for digit in range(50)]
    assert np.array_equal(found, client._labels)


@pytest.mark.parametrize("loss", LOSSES)
def test_scores_of_noisy_labels_have_no_bias(monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(400):
        client: Any = label_owner(monkeypatch, loss, 1.0 if loss != "squared" else 50.0)
        monkeypatch.setattr(TableClient, "noise_rng", lambda *_: rng)
        asyncio.run(client.send_labels())
        h_NC = np.random.default_rng(1).normal(0, 1, (NUM_ROWS, 3 if loss == "softmax" else 1))
        if loss == "squared":
            h_NC = client._labels[:, None] + 60 * h_NC
        told = answer(client, h_NC)
        found.append((told.total, told.loss))
    true = algorithm.score_rows(client._loss, h_NC, client._labels)
    loss_sum = algorithm.mean_loss(client._loss, h_NC, client._labels) * NUM_ROWS
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - [true, loss_sum]) < 4 * error)


@pytest.mark.parametrize(("num_classes", "deviation"), [(2, 0.5), (3, 1.0), (7, 0.4), (50, 2.0)])
def test_how_often_noise_keeps_a_label(num_classes: int, deviation: float) -> None:
    labels = np.random.default_rng(0).integers(0, num_classes, 200_000)
    noisy = randomised_labels(labels, num_classes, deviation, np.random.default_rng(1))
    assert kept_label_share(num_classes, deviation) == pytest.approx(np.mean(noisy == labels), abs=0.005)


def test_labels_of_test_rows_are_noised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores before the labels are refused, and a process that goes on has the same noise."""
    client = label_owner(monkeypatch, "logistic", 1.0)
    with pytest.raises(Refused, match="asks orders for scores before the labels"):
        answer(client, np.zeros((NUM_ROWS, 1)))
    asyncio.run(client.send_labels())
    assert "test_labels" in TableClient.state
    restored: Any = object.__new__(TableClient)
    kept = snapshots.capture(client, ("sent_labels", "test_labels"))
    snapshots.apply(restored, snapshots.unseal(snapshots.seal(kept), "orders"))
    assert np.array_equal(restored.test_labels, client.test_labels)

"""What a run gets that sets nothing: settings by the number of rows, a network that begins linear, the gain."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import torch

import fedactors
from fedactors.errors import BadInput
from fedactors.federation.site_folder import Policy
from fedactors.learning.models import ModelSpec, build_model, nonlinear_weights
from fedactors.learning.network import to_vector
from fedactors.learning.optimizers import Network, OptimizerSpec
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL, PUBLISHED

SKIP = ModelSpec(name="skip-mlp", inputs=(5,), outputs=3, hidden_size=8, layers=2)


@pytest.mark.parametrize(
    ("rows", "size", "epochs", "window", "decay"),
    [
        (50, 16, 60, 4, 10.0),
        (350, 16, 36, 6, 3000 / 350),
        (3000, 256, 60, 4, 1.0),
        (13_000, 256, 60, 13, 3000 / 13_000),
        (63_000, 256, 16, 24, 3000 / 63_000),
    ],
)
def test_batch_epochs_window_and_decay_follow_from_the_rows(rows, size, epochs, window, decay):
    found = PubSubVflConfig().at(rows)
    assert (found.batch_size, found.num_epochs, found.max_in_flight) == (size, epochs, window)
    assert found.nonlinear_decay == pytest.approx(decay)
    assert found.epochs_per_round == -(-epochs // 10)
    assert found.at(10 * rows) is found


def test_what_is_given_stays_and_a_budget_takes_ten_epochs():
    given = PubSubVflConfig(num_epochs=7, batch_size=33, epochs_per_round=2).at(1000)
    assert (given.num_epochs, given.batch_size, given.epochs_per_round) == (7, 33, 2)
    private = PubSubVflConfig(embedding_mu=1.0)
    assert (private.most_epochs, private.at(100).num_epochs, private.at(100).batch_size) == (10, 10, 256)
    assert PubSubVflConfig(max_in_flight=50).at(1000).max_in_flight == 50
    workers = [PubSubVflConfig(num_passive_workers=count).at(1000).max_in_flight for count in (1, 4, 16)]
    assert workers == [4, 8, 24]
    assert PubSubVflConfig(patience=3).at(1000).epochs_per_round == 1
    assert PubSubVflConfig(patience=3).keeps_best
    assert not PubSubVflConfig().keeps_best


def test_the_published_settings_are_one_preset():
    published = PubSubVflConfig(**PUBLISHED)
    assert published.at(100_000) == dataclasses.replace(published, nonlinear_decay=0.03)
    assert (published.model, published.num_layers, published.keep, published.transfer) == ("mlp", 10, "best", "pull")
    assert dict(PROTOCOL.paper) == {**PUBLISHED, "num_epochs": 100}


def test_a_small_epoch_has_few_batches_in_flight():
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(600, 2)), rng.normal(size=(600, 2))
    tables = {
        "shop": pa.table({"a": near[:, 0], "b": near[:, 1], "y": near[:, 0] * far[:, 0]}),
        "bank": pa.table({"c": far[:, 0], "d": far[:, 1]}),
    }
    data = fedactors.vertical(tables, label=("shop", "y"), task="regression")
    usual, window, many = (
        fedactors.simulate("pubsub-vfl", data, local_baseline=False, **given).metrics["test/r2"]
        for given in ({}, {"max_in_flight": 4}, {"max_in_flight": 24})
    )
    assert usual == window != many


def test_a_policy_takes_no_number_for_what_follows_from_rows():
    policy = Policy(protocols={"pubsub-vfl": {"num_epochs": {"at_most": 20}}})
    with pytest.raises(BadInput, match=r"num_epochs: 0 is not allowed: .*give a number"):
        policy.check("shop", "credit", "pubsub-vfl", PubSubVflConfig())
    policy.check("shop", "credit", "pubsub-vfl", PubSubVflConfig(num_epochs=20))


def test_a_skip_network_begins_linear():
    module = build_model(SKIP, 3)
    x = torch.randn(20, 5)
    assert torch.allclose(module(x), module.linear(x))
    assert int(nonlinear_weights(SKIP).sum()) == 5 * 8 + 8 * 3


def test_decay_takes_from_the_non_linear_weights_alone():
    network = Network(SKIP, OptimizerSpec(name="sgd", learning_rate=0.1), 0)
    before, marks = network.vector, nonlinear_weights(SKIP).numpy()
    network.decay, network.rate = 2.0, 0.5
    network.apply(np.zeros_like(before))
    assert np.allclose(network.vector[marks], 0.9 * before[marks])
    assert np.array_equal(network.vector[~marks], before[~marks])
    assert len(before) == len(to_vector(build_model(SKIP, 0)))


@pytest.mark.parametrize("is_told", [True, False])
def test_the_label_party_says_what_the_others_bring(is_told):
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=(400, 2)), rng.normal(size=(400, 2))
    label = (near[:, 0] + 2 * far[:, 0] > 0).astype(int)
    tables = {
        "shop": pa.table({"a": near[:, 0], "b": near[:, 1], "y": label}),
        "bank": pa.table({"c": far[:, 0], "d": far[:, 1]}),
    }
    data = fedactors.vertical(tables, label=("shop", "y"), task="binary")
    run = fedactors.simulate("pubsub-vfl", data, num_epochs=10, local_baseline=is_told)
    said = [note for note in run.summary.extra.get("notes", ()) if "with its own alone" in note]
    assert len(said) == int(is_told)
    assert ("test/local_auc" in run.metrics) == is_told
    if is_told:
        assert run.metrics["test/local_auc"] < 0.85 < 0.97 < run.metrics["test/auc"]
        assert said[0].startswith(f"shop: AUC {run.metrics['test/auc']:.3f} with the others' columns")

from __future__ import annotations

import pytest

from fedactors.config import build
from fedactors.data.layouts.vertical import stated
from fedactors.errors import BadInput
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.data import loss_of


def test_defaults_and_words():
    config = build(TablePuppetConfig, {"algorithm": "rfl-sgd", "rho": "0.3", "label_range": "1,5", "label_dp": "0.5"})
    assert (config.algorithm, config.rho, config.label_range) == ("rfl-sgd", 0.3, (1.0, 5.0))
    assert build(TablePuppetConfig).admm == "boyd"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ({"rho": "0"}, "rho: '0' is not allowed"),
        ({"algorithm": "rfl"}, "algorithm: 'rfl' is not allowed"),
        ({"rhos": "1"}, "did you mean rho"),
        ({"feature_dp": "1"}, "exact solves"),
        ({"feature_dp": "1", "algorithm": "centralised"}, "centralised"),
        ({"label_range": "5,1"}, "label_range"),
        ({"loss": "softmax"}, "loss"),
        ({"prediction_noise": "1"}, "prediction_clip"),
    ],
)
def test_what_is_not_allowed_is_named(words, part):
    with pytest.raises(BadInput, match=part):
        build(TablePuppetConfig, words)


@pytest.mark.parametrize(
    ("words", "task", "loss"),
    [({}, "regression", "squared"), ({}, "binary", "logistic"), ({}, "multiclass", "softmax"),
     ({"model": "linear"}, "binary", "squared"), ({"model": "softmax"}, "binary", "softmax"),
     ({"model": "neural"}, "regression", "squared"), ({"model": "neural"}, "binary", "logistic")],
)  # fmt: skip
def test_the_loss_follows_the_model_and_the_task(words, task, loss):
    data = stated("SELECT a.x FROM a", {"a": "a.csv"}, label="x", task=task)
    assert loss_of(build(TablePuppetConfig, words), data.task) == loss


def test_label_noise_on_numbers_needs_their_range():
    data = stated("SELECT a.x FROM a", {"a": "a.csv"}, label="x")
    with pytest.raises(BadInput, match="label_range"):
        loss_of(build(TablePuppetConfig, {"label_dp": "0.5"}), data.task)
    assert loss_of(build(TablePuppetConfig, {"label_dp": "0.5", "label_range": "1,5"}), data.task) == "squared"


@pytest.mark.parametrize(
    ("algorithm", "partitions"), [("rfl-sgd", 2), ("rfl-admm", 2), ("rfl-sgd-v", 1), ("vfl-sgd", 1)]
)
def test_partitions_follow_the_algorithm(algorithm, partitions):
    assert build(TablePuppetConfig, {"algorithm": algorithm}).partitions == partitions
    assert build(TablePuppetConfig, {"algorithm": algorithm, "num_partitions": 4}).partitions == 4


def test_dp_is_allowed_with_inexact_admm_and_sgd():
    assert build(TablePuppetConfig, {"feature_dp": "1", "admm": "paper_sgd"}).feature_dp == 1
    assert build(TablePuppetConfig, {"feature_dp": "1", "algorithm": "rfl-sgd-v"}).feature_dp == 1

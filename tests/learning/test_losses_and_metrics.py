"""Losses and metrics of the user's own, of torch, scikit-learn and torchmetrics: given as objects and by name."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
import torch
from torch.nn import functional

import fedactors
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.learning.user_models import user_metrics

HERE = "tests.learning.test_losses_and_metrics"
SMALL = {"num_rounds": 2, "num_clients": 3, "num_training": 90}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = (X @ [1.0, 2.0, -1.0]).astype(np.float32)


def pinball(outputs, targets, quantile=0.9):
    gap = targets - outputs
    return torch.maximum(quantile * gap, (quantile - 1) * gap).mean()


def numbers():
    parts = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    return fedactors.horizontal(parts, test=(X + 0.01, Y), task="regression")


def test_a_loss_given_by_name_and_as_an_object_trains_alike():
    runs = [fedactors.simulate("horizontal", numbers(), loss=one, num_rounds=2) for one in (pinball, f"{HERE}:pinball")]
    usual = fedactors.simulate("horizontal", numbers(), num_rounds=2)
    assert runs[0].rounds["training/loss"] == runs[1].rounds["training/loss"] != usual.rounds["training/loss"]
    assert runs[0].config["loss"].startswith("object:pinball:")


def test_the_task_s_loss_given_as_ones_own_makes_the_same_model():
    spec = ModelSpec(name="linear", inputs=(3,), outputs=1)
    start = initial_vector(spec, 0)
    both = [
        train_locally(spec, start, X, Y, seed=0, training=LocalTraining(task="regression", loss=loss)).vector
        for loss in ("", "torch.nn:MSELoss", "torch.nn.functional:mse_loss")
    ]
    assert np.array_equal(both[0], both[1])
    assert np.array_equal(both[0], both[2])


def test_a_quantile_is_learned_by_its_loss():
    targets = np.linspace(0, 1, 200, dtype=np.float32)
    x = np.zeros((200, 1), np.float32)
    spec = ModelSpec(name="linear", inputs=(1,), outputs=1)
    training = LocalTraining(task="regression", loss=f"{HERE}:pinball", num_epochs=200)
    weight, bias = train_locally(spec, initial_vector(spec, 0), x, targets, seed=0, training=training).vector
    assert bias == pytest.approx(0.9, abs=0.05)
    assert np.isfinite(weight)


def smoothed(outputs, targets):
    return functional.cross_entropy(outputs, targets, label_smoothing=0.1)


def several(outputs, targets):
    hit = (outputs.argmax(1) == targets).float()
    return {"hits": hit.sum(), "rate": hit.mean()}


@pytest.mark.parametrize("metric", [sklearn.metrics.cohen_kappa_score, "sklearn.metrics:cohen_kappa_score"])
def test_a_metric_of_scikit_learn_stands_beside_the_others(metric):
    run = fedactors.simulate("horizontal", loss=smoothed, metric=metric, **SMALL)
    assert run.metrics["test/cohen_kappa_score"] == run.rounds["test/cohen_kappa_score"][-1]
    assert -1 <= run.metrics["test/cohen_kappa_score"] <= 1


def test_a_metric_may_be_several():
    run = fedactors.simulate("horizontal", metric=several, **SMALL)
    assert run.metrics["test/rate"] == pytest.approx(run.metrics["test/accuracy"], abs=1e-6)


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_what_a_metric_is_given_is_what_its_arguments_say(task):
    output = RNG.normal(size=(30, 1 if task == "binary" else 3))
    target = np.arange(30) % (2 if task == "binary" else 3)
    found = user_metrics(task, target, output, "sklearn.metrics:accuracy_score")
    chosen = output.ravel() > 0 if task == "binary" else output.argmax(1)
    assert found == {"accuracy_score": pytest.approx((chosen == target).mean())}
    if task == "binary":
        expected = sklearn.metrics.roc_auc_score(target, output.ravel())
        assert user_metrics(task, target, output, "sklearn.metrics:roc_auc_score")["roc_auc_score"] == expected


def test_a_metric_of_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics")
    metric = torchmetrics.Accuracy(task="multiclass", num_classes=10)
    run = fedactors.simulate("horizontal", metric=metric, **SMALL)
    assert run.metrics["test/MulticlassAccuracy"] == pytest.approx(run.metrics["test/accuracy"], abs=1e-6)
    both = torchmetrics.MetricCollection([metric, torchmetrics.F1Score(task="multiclass", num_classes=10)])
    run = fedactors.simulate("horizontal", metric=both, **SMALL)
    assert {"test/MulticlassAccuracy", "test/MulticlassF1Score"} <= set(run.metrics)
    assert run.metrics["test/MulticlassAccuracy"] == pytest.approx(run.metrics["test/accuracy"], abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"loss": lambda outputs, targets: outputs}, "loss: <lambda> is not allowed: it must return a scalar"),
        ({"loss": lambda outputs: outputs.sum()}, r"given outputs \(2, 10\) and 2 targets it fails: TypeError"),
        ({"loss": "hinge"}, "loss: 'hinge' is not allowed: give auto, or package.module:function"),
        ({"loss": "no_such:loss"}, "loss: 'no_such:loss' is not allowed: no_such cannot be imported"),
        ({"metric": lambda outputs, targets: outputs}, "metric: _lambda_ is not allowed: on 40 rows it fails"),
        ({"metric": lambda outputs, targets: {"a b": 1.0}}, "'a b' is no name of a metric"),
        ({"metric": "kappa"}, "metric: 'kappa' is not allowed: give none"),
    ],
)
def test_a_bad_one_is_refused_before_a_run_begins(settings, line, tmp_path):
    with pytest.raises(BadInput, match=line.replace("<lambda>", "_lambda_")):
        fedactors.simulate("horizontal", out=tmp_path, **settings, **SMALL)
    assert not list(tmp_path.iterdir())

"""Losses and metrics of the user's own, of torch, scikit-learn and torchmetrics: given as objects and by name."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import torch
from torch.nn import functional

import fedactors
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.learning.user_models import check_loss, user_metrics

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


def of_probabilities(outputs, targets):
    return functional.binary_cross_entropy(outputs, targets.to(outputs.dtype))


def sloped(outputs, targets):
    value = functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))
    (slope,) = torch.autograd.grad(value, outputs, create_graph=True)
    return value + slope.square().sum()


@pytest.mark.parametrize("loss", ["of_probabilities", "sloped"])
def test_a_loss_is_tried_where_it_is_defined_and_with_gradients(loss):
    check_loss(ModelSpec(name="linear", inputs=(3,), outputs=1), "binary", f"{HERE}:{loss}")


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


@pytest.mark.parametrize("name", ["roc_auc_score", "average_precision_score", "brier_score_loss", "log_loss"])
def test_of_two_classes_scores_are_the_probabilities_of_the_second(name):
    output, target = RNG.normal(size=(30, 2)), np.arange(30) % 2
    probability = 1 / (1 + np.exp(output[:, 0] - output[:, 1]))
    found = user_metrics("multiclass", target, output, f"sklearn.metrics:{name}")
    assert found == {name: pytest.approx(getattr(sklearn.metrics, name)(target, probability))}


def test_a_metric_of_torchmetrics():
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs torchmetrics")
    metric = torchmetrics.Accuracy(task="multiclass", num_classes=10)
    run = fedactors.simulate("horizontal", metric=metric, **SMALL)
    assert run.metrics["test/MulticlassAccuracy"] == pytest.approx(run.metrics["test/accuracy"], abs=1e-6)
    both = torchmetrics.MetricCollection([metric, torchmetrics.F1Score(task="multiclass", num_classes=10)])
    run = fedactors.simulate("horizontal", metric=both, **SMALL)
    assert {"test/MulticlassAccuracy", "test/MulticlassF1Score"} <= set(run.metrics)
    assert run.metrics["test/MulticlassAccuracy"] == pytest.approx(run.metrics["test/accuracy"], abs=1e-6)


class Growing(torch.nn.Module):
    """Keeps a count from call to call."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, outputs, targets):
        self.calls += 1
        return self.calls * functional.cross_entropy(outputs, targets)


class Weighing(torch.nn.Module):
    """Has parameters of its own."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(10))

    def forward(self, outputs, targets):
        return functional.cross_entropy(outputs * self.weight, targets)


class Meter:
    """Collects rows over all measurements."""

    def __init__(self):
        self.right, self.rows = 0, 0

    def __call__(self, outputs, targets):
        self.right, self.rows = self.right + (outputs.argmax(1) == targets).sum(), self.rows + len(targets)
        return self.right / self.rows


ALONE = torch.Generator().manual_seed(0)


def drawing(outputs, targets):
    return functional.cross_entropy(outputs + torch.randn(outputs.shape, generator=ALONE), targets)


def detached(outputs, targets):
    return torch.tensor(1.0, requires_grad=True)


def accuracy(outputs, targets):
    return 0.5


def unbounded(outputs, targets):
    return float("inf")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"loss": Growing()},
            "loss: Growing is not allowed: called twice with the same arguments it returns different values",
        ),
        (
            {"loss": drawing},
            "loss: drawing is not allowed: called twice with the same arguments it returns different values",
        ),
        ({"loss": Weighing}, "loss: Weighing is not allowed: its parameter 'weight' would never change"),
        (
            {"metric": Meter()},
            "metric: Meter is not allowed: called twice with the same arguments it returns different values",
        ),
        ({"loss": lambda outputs, targets: outputs}, "loss: <lambda> is not allowed: it must return a scalar"),
        ({"loss": detached}, "loss: detached is not allowed: it must return a scalar tensor that depends"),
        ({"loss": torch.nn.CrossEntropyLoss(reduction="sum")}, "it adds up over a batch; return the mean over it"),
        ({"metric": accuracy}, "metric: accuracy is not allowed: accuracy is measured already; call yours otherwise"),
        ({"metric": unbounded}, "unbounded is inf on 40 rows; return nan where it is not defined"),
        ({"metric": lambda outputs, targets: 1.0}, r"'<lambda>' is no name of a metric: .*or return \{name"),
        ({"loss": lambda outputs: outputs.sum()}, r"given outputs \(2, 10\) and 2 targets it fails: TypeError"),
        ({"loss": "hinge"}, "loss: 'hinge' is not allowed: give auto, or package.module:function"),
        ({"loss": "no_such:loss"}, "loss: 'no_such:loss' is not allowed: no_such cannot be imported"),
        ({"metric": lambda outputs, targets: outputs}, "metric: _lambda_ is not allowed: on 40 rows it fails"),
        ({"metric": lambda outputs, targets: {"a b": 1.0}}, "'a b' is no name of a metric"),
        ({"metric": "kappa"}, "metric: 'kappa' is not allowed: give none"),
    ],
)
def test_a_bad_one_is_refused_before_a_run_begins(settings, line, tmp_path):
    with pytest.raises(BadInput, match=line.replace("<lambda> is not", "_lambda_ is not")):
        fedactors.simulate("horizontal", out=tmp_path, **settings, **SMALL)
    assert not list(tmp_path.iterdir())


F1 = "torchmetrics.classification:MulticlassF1Score(num_classes=10, average='macro')"


def test_a_metric_by_name_takes_arguments():
    torchmetrics = pytest.importorskip("torchmetrics", reason="needs the extra `torchmetrics`")
    given = torchmetrics.classification.MulticlassF1Score(num_classes=10, average="macro")
    runs = [fedactors.simulate("horizontal", metric=one, **SMALL) for one in (F1, given)]
    assert runs[0].metrics["test/MulticlassF1Score"] == runs[1].metrics["test/MulticlassF1Score"]
    assert runs[0].config["metric"] == F1
    beta = fedactors.simulate("horizontal", metric="sklearn.metrics:fbeta_score(beta=2, average='micro')", **SMALL)
    assert beta.metrics["test/fbeta_score"] == pytest.approx(beta.metrics["test/accuracy"])
    loss = "torch.nn:CrossEntropyLoss(label_smoothing=0.1)"
    named, given = (fedactors.simulate("horizontal", loss=one, **SMALL) for one in (loss, smoothed))
    assert named.rounds["training/loss"] == given.rounds["training/loss"]


@pytest.mark.parametrize("wrong", [f"sklearn.metrics:f1_score{one}" for one in ("(2)", "(average=print)", "((")])
def test_arguments_of_a_name_are_plain_values_by_name(wrong):
    with pytest.raises(BadInput, match=r"metric: .* give arguments by name"):
        fedactors.simulate("horizontal", metric=wrong, **SMALL)


def test_several_metrics_are_a_list(tmp_path):
    asked = [several, F1, sklearn.metrics.cohen_kappa_score]
    run = fedactors.simulate("horizontal", metric=asked, out=tmp_path, **SMALL)
    assert {"test/hits", "test/rate", "test/MulticlassF1Score", "test/cohen_kappa_score"} <= set(run.metrics)
    again = fedactors.load_run(run.path).resume(metric=asked, out=tmp_path / "again")
    assert again.metrics == run.metrics
    with pytest.raises(BadInput, match="differs from the run's"):
        fedactors.load_run(run.path).resume(metric=[several], out=tmp_path / "other")
    named = fedactors.simulate("horizontal", metric=f"{HERE}:METRICS", **SMALL)
    assert named.metrics["test/cohen_kappa_score"] == run.metrics["test/cohen_kappa_score"]
    with pytest.raises(BadInput, match=r"metric: .*two are called rate"):
        fedactors.simulate("horizontal", metric=[several, lambda outputs, targets: {"rate": 1.0}], **SMALL)
    with pytest.raises(BadInput, match="metric: list is not allowed"):
        fedactors.simulate("horizontal", metric=[3], **SMALL)


METRICS = [several, sklearn.metrics.cohen_kappa_score]


def test_the_worst_client_is_named():
    run = fedactors.simulate("horizontal", validation_fraction=0.3, **SMALL)
    (note,) = [one for one in run.summary.extra["notes"] if "worst client" in one]
    best = run.metrics["best_round"] - 1
    scores = {name: run.rounds[f"validation/{name}/accuracy"][best] for name in ("client-0", "client-1", "client-2")}
    worst = min(scores, key=scores.get)
    assert note.startswith(f"worst client: {worst} with accuracy {scores[worst]:.4g}")


def test_unknown_settings_suggest_the_nearest_setting_or_argument():
    for wrong, meant in (("num_round", "num_rounds"), ("callback", "callbacks"), ("runtim", "runtime")):
        with pytest.raises(BadInput, match=f"{wrong}: unknown key; did you mean {meant}"):
            fedactors.run("horizontal", **{wrong: "1"})


def test_one_object_for_two_clients_is_refused_with_a_remedy_that_works():
    frame = pd.DataFrame({"a": np.arange(30.0), "y": np.arange(30) % 2})
    held = frame.copy()
    with pytest.raises(BadInput, match=r"client-1: its object is client-0's already.*copy.copy"):
        fedactors.horizontal([frame, frame], label="y", test=held, task="binary")
    data = fedactors.horizontal([frame, copy.copy(frame)], label="y", test=held, task="binary")
    assert np.isfinite(fedactors.simulate("horizontal", data, num_rounds=1).metrics["test/loss"])
    rows = torch.utils.data.TensorDataset(torch.rand(30, 4), torch.arange(30) % 2)
    data = fedactors.horizontal([rows, copy.copy(rows)], test=copy.copy(rows), task="binary")
    assert np.isfinite(fedactors.simulate("horizontal", data, num_rounds=1).metrics["test/loss"])

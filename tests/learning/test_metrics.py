import subprocess
import sys

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from sklearn.metrics import log_loss as sk_log_loss
from sklearn.metrics import roc_auc_score

from fedactors.learning import metrics
from fedactors.learning.models import output_width, task_loss


def test_auc_by_hand_with_a_tie():
    assert metrics.auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert metrics.auc([0, 1, 0, 1], [1.0, 1.0, 0.0, 2.0]) == (0.5 + 1 + 1 + 1) / 4


@pytest.mark.parametrize("decimals", [0, 1, 8])
def test_auc_equals_sklearn(decimals):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 500)
    scores = np.round(rng.normal(size=500) + labels, decimals)
    assert metrics.auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auc_of_one_class_is_nan():
    assert np.isnan(metrics.auc([1, 1], [0.1, 0.2]))


def test_accuracy_rmse_and_log_loss():
    logits = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    assert metrics.accuracy([0, 2], logits) == 0.5
    assert metrics.accuracy([1, 0, 0], [[0.5], [-0.5], [0.5]]) == pytest.approx(2 / 3)
    assert metrics.rmse([0.0, 0.0], [[3.0], [4.0]]) == pytest.approx(np.sqrt(12.5))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert metrics.log_loss([0, 2], logits) == pytest.approx(sk_log_loss([0, 2], probabilities, labels=[0, 1, 2]))
    assert metrics.log_loss([1, 0], [[0.0], [0.0]]) == pytest.approx(np.log(2))


def test_losses_agree_with_metrics():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(20, 3)), rng.integers(0, 3, 20)
    loss = task_loss("multiclass", torch.tensor(logits), torch.tensor(labels)).item()
    assert loss == pytest.approx(metrics.task_metrics("multiclass", labels, logits)["loss"])
    single, binary = rng.normal(size=(20, 1)), rng.integers(0, 2, 20)
    loss = task_loss("binary", torch.tensor(single), torch.tensor(binary)).item()
    assert loss == pytest.approx(metrics.task_metrics("binary", binary, single)["loss"])
    loss = task_loss("regression", torch.tensor(single), torch.tensor(binary), reduction="sum").item()
    assert loss == pytest.approx(20 * metrics.rmse(binary, single) ** 2)
    assert output_width("multiclass", 5) == 5
    assert output_width("regression") == 1


@pytest.mark.parametrize("seed", range(20))
def test_metrics_equal_sklearn(seed):
    rng = np.random.default_rng(seed)
    num_rows, num_classes = int(rng.integers(2, 60)), int(rng.integers(3, 6))
    label, score = rng.integers(0, 2, num_rows), np.round(rng.normal(size=num_rows), seed % 3).astype(np.float32)
    found, chosen = metrics.task_metrics("binary", label, score[:, None]), score > 0
    expected = {
        "f1": sk.f1_score(label, chosen, zero_division=0),
        "balanced_accuracy": sk.recall_score(label, chosen, labels=np.unique(label), average="macro", zero_division=0),
    }
    if len(np.unique(label)) == 2:
        expected["pr_auc"] = sk.average_precision_score(label, score)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-12)

    label, logit = rng.integers(0, num_classes, num_rows), rng.normal(size=(num_rows, num_classes))
    found, chosen = metrics.task_metrics("multiclass", label, logit), logit.argmax(axis=1)
    recall = sk.recall_score(label, chosen, labels=np.unique(label), average="macro", zero_division=0)
    assert found["balanced_accuracy"] == pytest.approx(recall, abs=1e-12)
    assert found["f1"] == pytest.approx(sk.f1_score(label, chosen, average="macro", zero_division=0), abs=1e-12)

    labels = rng.integers(0, 2, (num_rows, num_classes)) * (np.arange(num_classes) > seed % 2)  # one is never there
    found = metrics.task_metrics("multilabel", labels, logit)
    for name, average in (("f1", "macro"), ("micro_f1", "micro")):
        expected = sk.f1_score(labels, logit > 0, average=average, zero_division=0)
        assert found[name] == pytest.approx(expected, abs=1e-12)

    for target in (logit[:, :2] + rng.normal(size=(num_rows, 2)), np.ones((num_rows, 2))):
        found = metrics.task_metrics("regression", target, logit[:, :2])
        assert found["r2"] == pytest.approx(sk.r2_score(target, logit[:, :2]), abs=1e-9)
        assert found["mae"] == pytest.approx(sk.mean_absolute_error(target, logit[:, :2]), abs=1e-12)
    assert metrics.task_metrics("regression", np.ones(3), np.ones(3))["r2"] == 1.0


def test_metrics_import_neither_torch_nor_sklearn():
    code = (
        "import sys, numpy; from fedactors.learning.metrics import task_metrics; "
        "from fedactors.data.datasets.load import load; load('breast-cancer'); load('digits'); "
        "y = numpy.arange(4) % 2; [task_metrics(t, y, y[:, None] - .5) for t in ('binary', 'regression')]; "
        "task_metrics('multiclass', y, numpy.eye(4)); task_metrics('multilabel', numpy.eye(4), numpy.eye(4)); "
        "print(sorted({'torch', 'sklearn', 'ray', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_classes_that_are_never_predicted_are_counted_if_they_have_rows_enough():
    labels = np.repeat([0, 1, 2], [20, 10, 9])
    always_0 = np.tile([1.0, 0.0, 0.0], (39, 1))
    assert metrics.num_unpredicted(labels, always_0) == 1  # nine rows of class 2 say little
    always_0[20, 1] = 2.0
    assert metrics.num_unpredicted(labels, always_0) == 0
    assert metrics.num_unpredicted([0, 1] * 10, np.full(20, -1.0)) == 1
    assert metrics.num_unpredicted([0, 0, 1] * 3, np.full(9, -1.0)) == 0


@pytest.mark.parametrize(
    "rare", [[1], [1, 1, 2], list(range(1, 102))], ids=["one row", "a class of one", "many classes"]
)
def test_a_table_with_classes_of_few_rows_has_a_local_baseline(rare):
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.zeros(10_500, np.int64), rare])
    rows = rng.normal(size=(len(labels), 2)) + labels[:, None]
    task = "binary" if max(rare) == 1 else "multiclass"
    found = metrics.local_baseline(task, (rows, labels), {"test": (rows[:50], labels[:50])})
    assert found["test"]["accuracy"] > 0.5

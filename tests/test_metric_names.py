"""One name of a metric never means two splits: what each protocol's rounds and summary say is said of which rows."""

import pytest

from fedactors.learning.metrics import task_metrics
from fedactors.plugins import find_protocol
from fedactors.runs.metrics import shown_metric
from fedactors.sweeps import run_once

MEASURES = {
    *task_metrics("binary", [0, 1], [[-1.0], [1.0]]),
    *task_metrics("regression", [0.0, 1.0], [[0.5], [1.0]]),
    "objective",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["glasu", "horizontal", "mtcd", "nebulafl", "pubsub-vfl", "tablepuppet"])
def test_every_metric_names_its_split(name):
    protocol = find_protocol(name)
    done = run_once(protocol, protocol.smoke, protocol.default_data, 0)
    recorded = [metric for metric, column in done.recorder.curve.items() if column[-1] is not None]
    assert not MEASURES & {*recorded, *done.result.metrics}
    splits = {"training", "validation", "test"}
    prefixed = [metric for metric in (*recorded, *done.result.metrics) if "/" in metric]
    assert prefixed
    assert {metric.partition("/")[0] for metric in prefixed} <= splits
    assert not [m for m in (*recorded, *done.result.metrics) if m.partition("_")[0] in {*splits, "train"}]
    # the main metric, or what stands for it in the rounds, is one that is measured
    measure = protocol.headline.name.partition("/")[2]
    assert shown_metric(protocol.headline.name, recorded).endswith(f"/{measure}")
    assert protocol.headline.name in done.result.metrics


def test_accuracy_or_the_loss_stands_for_what_the_task_does_not_have():
    counts = ["abandoned", "batches", "training/loss"]
    assert shown_metric("test/auc", [*counts, "validation/f1", "validation/accuracy"]) == "validation/accuracy"
    assert shown_metric("test/auc", [*counts, "validation/rmse"]) == "validation/rmse"
    assert shown_metric("test/auc", counts) == "training/loss"
    assert shown_metric("test/auc", counts[:2]) == "abandoned"

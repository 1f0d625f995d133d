"""Many clients in one batched call: the numbers of one after the other, whatever clients and models are like."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

from fedactors.errors import BadInput
from fedactors.learning import many_clients
from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.many_clients import train_clients, why_not_together
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import initial_vector
from fedactors.learning.optimizers import OptimizerSpec

SIZES = (7, 31, 1, 20, 12, 64)
MODELS = {
    "linear": ModelSpec(name="linear", inputs=(5,), outputs=3),
    "mlp": ModelSpec(name="mlp", inputs=(5,), outputs=3, hidden_size=8, layers=3),
    "residual": ModelSpec(name="residual-mlp", inputs=(5,), outputs=3, hidden_size=8, layers=2),
    "cnn8": ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=3),
    "resnet": ModelSpec(name="narrow-resnet18", inputs=(3, 8, 8), outputs=3, hidden_size=8),
    "images as rows": ModelSpec(name="linear", inputs=(1, 8, 8), outputs=3),
}
OPTIMIZERS = {
    "sgd": OptimizerSpec(learning_rate=0.05),
    "momentum": OptimizerSpec(learning_rate=0.02, momentum=0.9, weight_decay=0.01),
    "adam": OptimizerSpec(name="adam", learning_rate=0.003, weight_decay=0.01),
    "adamw, clipped": OptimizerSpec(name="adamw", learning_rate=0.003, weight_decay=0.01, clip_norm=0.5),
}


def clients(spec, sizes=SIZES, task="multiclass"):
    rng = np.random.default_rng(0)
    found = []
    for n in sizes:
        x = rng.normal(size=(n, *spec.inputs)).astype(np.float32)
        y = rng.normal(size=n).astype(np.float32) if task == "regression" else rng.integers(0, 2, n)
        found.append((x, y))
    return found


def both(spec, training, *, sizes=SIZES, corrections=None, weights=None, **options):
    """Return (together, one after the other)."""
    rows = clients(spec, sizes, training.task)
    starts = [initial_vector(spec, client % 2) for client in range(len(sizes))]
    seeds = list(range(10, 10 + len(sizes)))
    options = {"most_parameters": 10**9, **options}
    made = train_clients(
        spec, starts, rows, seeds=seeds, training=training, corrections=corrections, weights=weights, **options
    )
    counts = weights or [None] * len(sizes)
    added = corrections or [None] * len(sizes)
    plain = [
        train_locally(spec, start, *one, seed=seed, training=training, correction_P=c, weights_N=w)
        for start, one, seed, c, w in zip(starts, rows, seeds, added, counts, strict=True)
    ]
    return made, plain


def assert_equal(made, plain, tolerance=1e-5):
    for one, other in zip(made, plain, strict=True):
        np.testing.assert_allclose(one.vector, other.vector, rtol=tolerance, atol=tolerance)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        assert one.loss_rms == pytest.approx(other.loss_rms, rel=1e-4)
        assert (one.num_samples, one.num_steps) == (other.num_samples, other.num_steps)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_model_gives_the_numbers_of_one_after_the_other(model):
    spec = MODELS[model]
    assert why_not_together(spec) == ""
    assert_equal(*both(spec, LocalTraining(optimizer=OPTIMIZERS["sgd"], batch_size=8, num_epochs=3)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimiser_does(optimizer):
    training = LocalTraining(optimizer=OPTIMIZERS[optimizer], batch_size=8, num_epochs=3, proximal=0.1)
    assert_equal(*both(MODELS["mlp"], training))


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("regression", 1), ("multiclass", 3)])
def test_every_task_does(task, outputs):
    spec = ModelSpec(name="mlp", inputs=(4,), outputs=outputs, hidden_size=8, layers=2)
    assert_equal(*both(spec, LocalTraining(batch_size=6, num_epochs=2, task=task)))


def test_in_double_precision_to_the_last_digits_with_corrections():
    spec = ModelSpec(name="mlp", inputs=(5,), outputs=3, hidden_size=8, layers=3, float64=True)
    corrections = [np.random.default_rng(n).normal(size=initial_vector(spec, 0).size) for n in range(len(SIZES))]
    training = LocalTraining(optimizer=OptimizerSpec(learning_rate=0.05), batch_size=8, num_epochs=4)
    made, plain = both(spec, training, corrections=corrections)
    assert_equal(made, plain, tolerance=1e-12)


def test_rows_that_do_not_count_alike():
    rng = np.random.default_rng(3)
    weights = [None, *(rng.integers(0, 4, size).astype(np.float32) for size in SIZES[1:])]  # a client may have none
    assert_equal(*both(MODELS["mlp"], LocalTraining(batch_size=8, num_epochs=2), weights=weights))


@pytest.mark.parametrize(("task", "outputs"), [("binary", 1), ("regression", 1), ("multiclass", 3)])
def test_a_weight_is_so_many_copies_of_a_row(task, outputs):
    """A step over all rows is one over copies, whose mean loss is over as many rows as there are copies."""
    spec = ModelSpec(name="mlp", inputs=(4,), outputs=outputs, hidden_size=6, layers=2, float64=True)
    ((x, y),) = clients(spec, (9,), task)
    weights = np.array([0, 1, 2, 3, 1, 0, 5, 1, 1])

    def step(x, y, rate, weights_N=None):
        training = LocalTraining(
            optimizer=OptimizerSpec(learning_rate=rate), batch_size=len(x), num_epochs=1, task=task
        )
        start = initial_vector(spec, 0)
        return train_locally(spec, start, x, y, seed=0, training=training, weights_N=weights_N).vector

    copies = step(np.repeat(x, weights, axis=0), np.repeat(y, weights), 0.1 * weights.sum() / len(x))
    np.testing.assert_allclose(step(x, y, 0.1, weights.astype(float)), copies, rtol=1e-12, atol=1e-12)


def test_in_several_calls_as_in_one():
    training = LocalTraining(batch_size=8, num_epochs=2)
    made, plain = both(MODELS["mlp"], training, most_together=2)
    assert_equal(made, plain)


def test_the_one_after_the_other_is_train_locally_to_the_bit():
    made, plain = both(MODELS["mlp"], LocalTraining(batch_size=8), together=False)
    assert all(np.array_equal(one.vector, other.vector) for one, other in zip(made, plain, strict=True))


def test_a_large_model_is_trained_one_after_the_other_on_a_cpu():
    made, plain = both(MODELS["mlp"], LocalTraining(batch_size=8), most_parameters=100)
    assert all(np.array_equal(one.vector, other.vector) for one, other in zip(made, plain, strict=True))


def test_a_client_alone_is_trained_as_ever():
    made, plain = both(MODELS["mlp"], LocalTraining(batch_size=8), sizes=(9,))
    assert np.array_equal(made[0].vector, plain[0].vector)


def test_a_client_without_rows_is_refused():
    with pytest.raises(BadInput, match="no samples"):
        both(MODELS["mlp"], LocalTraining(), sizes=(9, 0, 3))


class Forked(nn.Module):
    """Its path depends on the values, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x):
        made = self.layer(x)
        return made if made.sum() > 0 else 2 * made


def forked(inputs, outputs):
    return Forked()


def dropping(inputs, outputs):
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=3, norm="batch"), "running statistics"),
        (ModelSpec(name=f"{__name__}:dropping", inputs=(5,), outputs=3), "dropout"),
        (ModelSpec(name=f"{__name__}:forked", inputs=(5,), outputs=3), "torch cannot batch it"),
    ],
)
def test_a_model_that_cannot_be_batched_is_trained_one_after_the_other_and_it_is_said(spec, reason, caplog):
    many_clients._say_once.cache_clear()
    assert reason in why_not_together(spec)
    training = LocalTraining(batch_size=4, num_epochs=1)
    with caplog.at_level(logging.WARNING):
        made, plain = both(spec, training, sizes=(6, 4))
        both(spec, training, sizes=(6, 4))
    assert all(np.array_equal(one.vector, other.vector) for one, other in zip(made, plain, strict=True))
    assert [reason in record.message for record in caplog.records] == [True]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_as_on_the_cpu():
    training = LocalTraining(optimizer=OPTIMIZERS["sgd"], batch_size=8, num_epochs=2)
    assert_equal(*both(MODELS["mlp"], training, device="cuda"))

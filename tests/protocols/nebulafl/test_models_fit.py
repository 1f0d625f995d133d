"""The flat vectors of this protocol are those of the framework's parameters, for every model it may train."""

import numpy as np
import pytest
import torch
from torch import nn

from fedactors.learning.averaging import LocalTraining, train_locally
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.learning.parameters import load_vector, to_vector
from protocols.nebulafl import algorithm
from protocols.nebulafl.algorithm import Sgd


def factory(spec: ModelSpec) -> nn.Module:
    return build_skeleton(spec, "cpu")


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10),
        ModelSpec(name="resnet18", inputs=(3, 8, 8), outputs=10, norm="batch"),
    ],
    ids=lambda spec: spec.name,
)
def test_a_trained_vector_loads_into_the_frameworks_model(spec):
    vector = to_vector(build_model(spec, seed=0))
    assert algorithm.num_parameters(factory, spec) == len(vector)
    x = np.random.default_rng(0).normal(size=(8, *spec.inputs)).astype(np.float32)
    y = np.arange(8)
    made = algorithm.local_training(factory, spec, vector, x, y, seed=1, sgd=Sgd(num_epochs=1, batch_size=4))
    module = build_model(spec, seed=5).eval()
    load_vector(module, made.parameters)
    with torch.no_grad():
        np.testing.assert_allclose(
            module(torch.tensor(x)).numpy(), algorithm.logits(factory, spec, made.parameters, x), rtol=1e-4, atol=1e-5
        )
    assert (made.parameters != vector).any()


@pytest.mark.parametrize(
    ("spec", "batch_size", "num_epochs", "tolerance"),
    [
        (ModelSpec(name="linear", inputs=(12,), outputs=5), 4, 2, 1e-5),
        (ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10), 4, 2, 1e-5),
        (ModelSpec(name="cnn28", inputs=(1, 8, 8), outputs=10), 4, 2, 1e-5),
        (ModelSpec(name="resnet18", inputs=(3, 8, 8), outputs=10, norm="group"), 4, 1, 1e-4),
        # one step: batch statistics over a few samples of one pixel multiply the rounding of another summation order
        (ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=10, norm="batch"), 9, 1, 1e-3),
    ],
    ids=lambda value: f"{value.name}-{value.norm}" if isinstance(value, ModelSpec) else None,
)
def test_the_fast_training_is_the_plain_one(spec, batch_size, num_epochs, tolerance):
    vector = to_vector(build_model(spec, seed=0))
    x = np.random.default_rng(0).normal(size=(9, *spec.inputs)).astype(np.float32)
    y = np.arange(9) % 5
    training = LocalTraining(batch_size=batch_size, num_epochs=num_epochs)
    plain = train_locally(spec, vector, x, y, seed=4, training=training)
    fast = algorithm.local_training(factory, spec, vector, x, y, seed=4, sgd=Sgd(num_epochs, batch_size))
    moved = np.linalg.norm(plain.vector - vector)
    assert np.linalg.norm(fast.parameters - plain.vector) < tolerance * moved
    assert fast.loss == pytest.approx(plain.loss, rel=1e-3 if tolerance > 1e-5 else 1e-5)

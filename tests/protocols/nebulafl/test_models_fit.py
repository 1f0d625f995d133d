"""The flat vectors of this protocol are those of the framework's parameters, for every model it may train."""

import numpy as np
import pytest
import torch
from torch import nn

from fedactors.learning.averaging import LocalTraining, train_locally
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.learning.parameters import load_vector, to_vector
from protocols.nebulafl import algorithm


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
    made = algorithm.local_training(factory, spec, vector, x, y, seed=1, num_epochs=1, batch_size=4)
    module = build_model(spec, seed=5).eval()
    load_vector(module, made.parameters)
    with torch.no_grad():
        np.testing.assert_allclose(
            module(torch.tensor(x)).numpy(), algorithm.logits(factory, spec, made.parameters, x), rtol=1e-4, atol=1e-5
        )
    assert (made.parameters != vector).any()


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(name="linear", inputs=(12,), outputs=5),
        ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10),
        ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=10, norm="batch"),
    ],
    ids=lambda spec: spec.name,
)
def test_the_fast_training_is_the_plain_one(spec):
    vector = to_vector(build_model(spec, seed=0))
    x = np.random.default_rng(0).normal(size=(9, *spec.inputs)).astype(np.float32)
    y = np.arange(9) % 5
    plain = train_locally(spec, vector, x, y, seed=4, training=LocalTraining(batch_size=4, num_epochs=2))
    fast = algorithm.local_training(factory, spec, vector, x, y, seed=4, num_epochs=2, batch_size=4)
    np.testing.assert_allclose(fast.parameters, plain.vector, rtol=1e-4, atol=1e-5)
    assert fast.loss == pytest.approx(plain.loss, rel=1e-5)

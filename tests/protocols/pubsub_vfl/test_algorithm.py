import math

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.learning.split_network import BottomNetwork, TopNetwork
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.config import PubSubVflConfig
from tests.protocols.pubsub_vfl.runs import config_of


def test_sigma_is_equation_17():
    config = config_of(privacy_mu=2.0, clip_norm=3.0, batch_size=50, num_epochs=4)
    # c B sqrt(K) / (mu n) with K = T n / B = 4 * 1000 / 50
    assert algorithm.embedding_sigma(config, 1000) == pytest.approx(3.0 * 50 * math.sqrt(80) / (2.0 * 1000))
    assert algorithm.embedding_sigma(config_of(), 1000) == 0.0


def test_rigorous_budget_is_105_times_the_nominal_one_at_the_papers_size():
    config = config_of(privacy_mu=1.0, batch_size=256, num_epochs=10)
    mu, epsilon = algorithm.rigorous_budget(1.0, algorithm.embedding_sigma(config, 700_000), 10, 1e-5)
    assert mu == pytest.approx(2 * math.sqrt(700_000 / 256))
    assert mu == pytest.approx(104.6, abs=0.05)
    assert epsilon > mu
    assert algorithm.rigorous_budget(1.0, 0.0, 10, 1e-5) == (math.inf, math.inf)


def test_gradient_noise_meets_its_budget():
    sigma = algorithm.gradient_sigma(3.0, 0.5, 16)
    assert algorithm.rigorous_budget(0.5, sigma, 16, 1e-5)[0] == pytest.approx(3.0)


def networks() -> tuple[BottomNetwork, TopNetwork]:
    sgd = OptimizerSpec(name="sgd", learning_rate=0.1)
    bottom = ModelSpec(name="mlp", inputs=(3,), outputs=2, hidden=4, layers=2, float64=True)
    top = ModelSpec(name="top-mlp", inputs=(4,), outputs=1, hidden=4, float64=True)
    return BottomNetwork(bottom, sgd, 1), TopNetwork(top, sgd, 2, task="binary")


def test_pure_functions_give_the_stateful_numbers():
    rng = np.random.default_rng(0)
    bottom, top = networks()
    x, z, g = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    y = np.array([0, 1, 1, 0, 1])
    publication, values = algorithm.forward(bottom, x)
    before = bottom.vector
    assert np.array_equal(values, algorithm.forward_pure(bottom.spec, before, x))
    kept = algorithm.active_gradients(bottom, top, x, [z], y)
    pure = algorithm.active_gradients_pure((bottom.spec, before), (top.spec, top.vector), "binary", x, [z], y)
    assert kept.loss == pure.loss
    for one, other in zip(
        (*kept.embeddings, kept.bottom, kept.top), (*pure.embeddings, pure.bottom, pure.top), strict=True
    ):
        assert np.array_equal(one, other)
    bottom.apply(kept.bottom)
    # the gradient goes through the activation of the publication, not of the present parameters
    assert np.array_equal(
        algorithm.backward(bottom, publication, g), algorithm.backward_pure(bottom.spec, before, x, g)
    )
    outputs = algorithm.top_outputs(top.spec, top.vector, [values, z])
    assert np.array_equal(outputs, top.output([values, z]))
    assert np.array_equal(algorithm.embed_rows(bottom.spec, before, x), values)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"algorithm": "vfl", "num_active_workers": 2}, "num_active_workers"),
        ({"algorithm": "avfl-ps", "num_active_workers": 2, "num_passive_workers": 3}, "must be equal"),
        ({"feature_split": (3,)}, "feature_split"),
    ],
)
def test_config_refuses(changes, named):
    with pytest.raises((BadInput, ValueError), match=named):
        PubSubVflConfig(**changes)

import itertools
import math

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.learning.split_network import BottomNetwork, TopNetwork
from protocols.pubsub_vfl import algorithm
from protocols.pubsub_vfl.averages import add_changes, weighted_mean
from protocols.pubsub_vfl.config import PubSubVflConfig
from tests.protocols.pubsub_vfl.runs import config_of


def test_interval_grows_as_the_formula_says():
    assert [algorithm.sync_gap(t, 5) for t in range(1, 10)] == [1, 1, 1, 2, 3, 4, 5, 5, 5]


def test_epochs_that_end_with_an_average():
    assert list(itertools.islice(algorithm.sync_epochs(5), 8)) == [1, 2, 3, 4, 10, 15, 20, 25]


def test_other_schedules():
    assert [algorithm.sync_gap(t, 5, "decreasing") for t in range(1, 10)] == [5, 5, 5, 4, 3, 2, 1, 1, 1]
    assert all(algorithm.syncs(t, 5, "every") for t in range(1, 9))
    assert not any(algorithm.syncs(t, 5, "never") for t in range(1, 9))


def test_batches_cover_the_rows_once_and_differ_between_epochs():
    first, second = (algorithm.batches(103, 10, 7, epoch) for epoch in (1, 2))
    assert len(first) == algorithm.num_batches(103, 10) == 11
    assert sorted(np.concatenate(first)) == list(range(103))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))
    assert all(map(np.array_equal, first, algorithm.batches(103, 10, 7, 1)))


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


def test_averages_are_weighted_and_changes_add_up():
    a, b = np.array([1.0, 2.0], np.float32), np.array([4.0, 8.0], np.float32)
    assert weighted_mean([a, b], [1.0, 2.0]).tolist() == [3.0, 6.0]
    assert weighted_mean([a, b], [1.0, 1.0]).dtype == np.float32
    assert [t.tolist() for t in add_changes(add_changes([], [a]), [b])] == [[5.0, 10.0]]


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

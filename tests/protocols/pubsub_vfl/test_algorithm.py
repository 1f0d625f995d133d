import math

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.learning.metrics import log_loss
from fedactors.learning.models import ModelSpec
from fedactors.learning.network import Model
from fedactors.learning.optimizers import Network, OptimizerSpec
from fedactors.learning.split_learning import Publication, active_gradients, joint_output
from fedactors.privacy.accounting import GaussianReleases
from fedactors.protocols.pubsub_vfl import algorithm
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from tests.protocols.pubsub_vfl.runs import config_of


def test_sigma_is_equation_17():
    config = config_of(privacy_mu=2.0, clip_norm=3.0, batch_size=50, num_epochs=4)
    # c B sqrt(K) / (mu n) with K = T n / B = 4 * 1000 / 50
    assert algorithm.embedding_sigma(config, 1000) == pytest.approx(3.0 * 50 * math.sqrt(80) / (2.0 * 1000))
    assert algorithm.embedding_sigma(config_of(), 1000) == 0.0


def test_rigorous_budget_is_105_times_the_nominal_one_at_the_papers_size():
    config = config_of(privacy_mu=1.0, batch_size=256, num_epochs=10)
    releases = GaussianReleases(
        "Embedding",
        clip_norm=1.0,
        sigma=algorithm.embedding_sigma(config, 700_000),
        delta=1e-5,
        paper_touched=config.batch_size * config.num_epochs / (4 * 700_000),
    )
    releases.add(times=10)
    assert releases.rigorous_mu == pytest.approx(2 * math.sqrt(700_000 / 256))
    assert releases.rigorous_mu == pytest.approx(104.6, abs=0.05)
    assert releases.nominal_mu == 1.0


def test_gradient_noise_meets_its_budget():
    releases = GaussianReleases("Gradient", clip_norm=0.5, sigma=algorithm.gaussian_sigma(3.0, 0.5, 16), delta=1e-5)
    releases.add(times=16)
    assert releases.rigorous_mu == pytest.approx(3.0)


def networks() -> tuple[Network, Network]:
    sgd = OptimizerSpec(name="sgd", learning_rate=0.1)
    bottom = ModelSpec(name="mlp", inputs=(3,), outputs=2, hidden_size=4, layers=2, float64=True)
    top = ModelSpec(name="top-mlp", inputs=(4,), outputs=1, hidden_size=4, float64=True)
    return Network(bottom, sgd, 1), Network(top, sgd, 2)


def test_gradients_are_those_of_the_joint_loss_by_finite_differences():
    rng = np.random.default_rng(0)
    bottom, top = networks()
    x, z, y = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), np.array([0, 1, 1, 0, 1])

    def loss(bottom_P: np.ndarray, top_P: np.ndarray, z_BE: np.ndarray) -> float:
        models = Model(bottom.spec, bottom_P), Model(top.spec, top_P)
        return log_loss(y, joint_output(models[1], [algorithm.embed_rows(models[0], x), z_BE]))

    found = active_gradients(bottom.model, top.model, "binary", x, [z], y)
    at = [bottom.vector, top.vector, z]
    assert found.loss == pytest.approx(loss(*at))
    for index, gradient in enumerate((found.bottom, found.top, found.embeddings[0])):
        for entry in np.ndindex(at[index].shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = [value.copy() for value in at]
                moved[index][entry] += step
                ends.append(loss(*moved))
            assert gradient[entry] == pytest.approx((ends[0] - ends[1]) / 2e-6, abs=1e-7)


def test_a_gradient_goes_through_the_activation_of_its_publication():
    rng = np.random.default_rng(0)
    bottom, _ = networks()
    x, g = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    publication, before = Publication(bottom.model, x), bottom.vector
    assert np.array_equal(publication.embed(), algorithm.embed_rows(Model(bottom.spec, before), x))
    bottom.apply(np.ones_like(before))
    late = publication.gradient(g)
    assert np.array_equal(late, Publication(Model(bottom.spec, before), x).gradient(g))
    assert not np.array_equal(late, Publication(bottom.model, x).gradient(g))


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

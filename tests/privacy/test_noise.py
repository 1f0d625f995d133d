"""The laws of noise against the trade-off functions that they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedactors.privacy.mechanisms import add_gaussian, add_laplace, flip_probability, randomised_response
from fedactors.privacy.noise import Gaussian, Laplace, RandomisedResponse, mu_of_epsilon, observing


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 29.9, 30.1, 80.0])
def test_mu_of_epsilon_touches_the_trade_off_of_pure_privacy(epsilon: float) -> None:
    mu = mu_of_epsilon(epsilon)
    kink = norm.logcdf(-mu / 2)
    assert kink == pytest.approx(-math.log1p(math.exp(epsilon)) if epsilon < 700 else -epsilon, rel=1e-9)
    errors = np.linspace(1e-6, 1 - 1e-6, 101)
    pure = np.maximum(0, np.maximum(1 - math.exp(epsilon) * errors, math.exp(-epsilon) * (1 - errors)))
    assert (norm.cdf(norm.isf(errors) - mu) <= pure + 1e-12).all()


def test_distances_are_in_units_of_the_noise() -> None:
    one, other = np.zeros((2, 2)), np.array([[3.0, 0.0], [0.0, 4.0]])
    assert Gaussian(2.0).mu(one, other) == 2.5
    assert Gaussian(0.0).mu(one, other) == math.inf
    assert Gaussian(0.0).mu(one, one) == 0.0
    assert Laplace(math.sqrt(2)).epsilon(one, other) == pytest.approx(7.0)
    assert RandomisedResponse(0.5).epsilon(np.array([0, 1, 2]), np.array([1, 1, 0])) == 1.0
    assert RandomisedResponse(0.5).mu(np.array([0, 1, 2]), np.array([1, 1, 0])) == mu_of_epsilon(1.0)


def test_what_did_not_move_costs_nothing_and_no_noise_hides_nothing() -> None:
    one, other = np.zeros(2), np.array([0.0, 1e-3])
    for law in (Gaussian(2.0), Laplace(1.0), Gaussian(0.0), Laplace(0.0)):
        assert law.epsilon(one, one) == law.mu(one, one) == 0.0
    assert Gaussian(2.0).epsilon(one, other) == math.inf  # a Gaussian tail bounds no ratio
    assert Laplace(0.0).epsilon(one, other) == Laplace(0.0).mu(one, other) == math.inf
    assert Gaussian(2.0).mu(one, np.array([0.0, np.inf])) == math.inf
    assert Laplace(1.0).mu(one, other) == mu_of_epsilon(Laplace(1.0).epsilon(one, other))
    assert (mu_of_epsilon(0.0), mu_of_epsilon(math.inf)) == (0.0, math.inf)


def test_randomised_response_keeps_labels_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40_000)
    changed = randomised_response(labels, 3, 1.0, rng)
    share = float(np.mean(changed != labels))
    assert share == pytest.approx(flip_probability(3, 1.0), abs=4 * math.sqrt(0.25 / len(labels)))
    others = (changed[changed != labels] - labels[changed != labels]) % 3
    assert np.mean(others == 1) == pytest.approx(0.5, abs=0.02)
    with pytest.raises(ValueError, match="labels must be in"):
        randomised_response(labels, 2, 1.0, rng)


def test_every_mechanism_is_heard_by_an_audit() -> None:
    heard = []

    def observer(exact, law, draw, name):  # type: ignore[no-untyped-def]
        heard.append((law, name))
        return draw()

    rng = np.random.default_rng(0)
    with observing(observer):
        add_gaussian(np.zeros(3), 1.5, rng, "a")
        add_laplace(np.zeros(3), 2.0, rng, "b")
        randomised_response([0, 1], 2, 1.0, rng, "c")
        add_gaussian(np.zeros(3), 0.0, rng, "no noise, no release")
    add_gaussian(np.zeros(3), 1.5, rng, "after")
    assert heard == [(Gaussian(1.5), "a"), (Laplace(2.0), "b"), (RandomisedResponse(1.0), "c")]

"""Lower bounds from attacks: they hold where the truth is known, and find out who has no noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedactors.auditing.audit import attack_by_auc, attack_by_share, epsilon_of_guesses, one_run_epsilon, threshold_mu
from fedactors.privacy.accounting import epsilon_of_mu


@pytest.mark.slow
def test_one_run_bounds_hold_for_randomised_response_and_come_near() -> None:
    rng = np.random.default_rng(0)
    epsilon, beyond, found = 2.0, 0, []
    for _ in range(200):
        bits = rng.integers(0, 2, 1000)
        said = np.where(rng.random(1000) < 1 / (1 + math.exp(-epsilon)), bits, 1 - bits)
        # as many guesses of each kind: scores in random order within what was said
        found.append(one_run_epsilon(said + 0.5 * rng.random(1000), bits, delta=0.0, num_guesses=600))
        beyond += found[-1] > epsilon
    assert beyond <= 20  # 5 % of 200 are expected, and 20 are 2 in 10,000
    assert np.mean(found) > 1.3


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_canaries_under_gaussian_noise_stay_below_what_holds(mu: float) -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, 2000)
    seen = mu * bits + rng.standard_normal(2000)
    found = one_run_epsilon(seen, bits, delta=1e-5, num_guesses=200)
    assert 0 < found < epsilon_of_mu(mu, 1e-5)


def test_without_noise_every_canary_is_found() -> None:
    bits = np.random.default_rng(2).integers(0, 2, 500)
    assert one_run_epsilon(bits, bits, delta=1e-5, num_guesses=200) > 4.0
    assert epsilon_of_guesses(500, 200, 100, delta=1e-5) == 0.0
    # all of r guesses right: the binomial tail alone, q^r = 0.05
    assert epsilon_of_guesses(100, 100, 100, delta=0.0) == pytest.approx(
        math.log(0.05**0.01 / (1 - 0.05**0.01)), abs=1e-6
    )
    with pytest.raises(ValueError, match="not possible"):
        epsilon_of_guesses(10, 20, 5, delta=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 1.0, 3.0])
def test_thresholds_over_repeated_runs_bound_mu(mu: float) -> None:
    rng = np.random.default_rng(3)
    bounds = [threshold_mu(mu + rng.standard_normal(400), rng.standard_normal(400)) for _ in range(40)]
    assert sum(bound > mu for bound in bounds) <= 6
    assert np.mean(bounds) > 0.5 * mu - 1e-9


def test_an_attack_that_guesses_is_chance_and_one_that_knows_is_not() -> None:
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 2, 1000)
    assert attack_by_auc("guess", truth, rng.random(1000)).is_chance
    knows = attack_by_auc("knows", truth, truth + rng.normal(size=1000))
    assert not knows.is_chance
    assert knows.low < knows.estimate < knows.high
    assert attack_by_share("guess", "share", rng.random((500, 4)) < 0.5, 0.5).is_chance
    assert not attack_by_share("knows", "share", rng.random((500, 4)) < 0.7, 0.5).is_chance
    assert not attack_by_auc("turned round", truth, -truth).is_chance
    with pytest.raises(ValueError, match="both classes"):
        attack_by_auc("none", np.zeros(5), np.arange(5))

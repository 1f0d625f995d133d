import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from fedactors.privacy.accounting import (
    PrivacyRecord,
    compose_mu,
    delta_of_mu,
    dpsgd_epsilon,
    dpsgd_noise_multiplier,
    epsilon_of_mu,
    gaussian_mu,
    laplace_label_epsilon,
    laplace_value_epsilon,
)
from fedactors.privacy.mechanisms import pubsub_sigma


def test_composition_and_sensitivity():
    assert compose_mu([3.0, 4.0]) == 5.0
    assert gaussian_mu(clip_norm=1.5, sigma=3.0, releases=1) == 1.0
    assert gaussian_mu(clip_norm=1.5, sigma=3.0, releases=9) == pytest.approx(compose_mu([1.0] * 9)) == 3.0
    assert gaussian_mu(clip_norm=1.5, sigma=3.0, releases=4, neighbours="add-remove") == 1.0
    assert gaussian_mu(clip_norm=1.0, sigma=0.0, releases=1) == math.inf
    assert gaussian_mu(clip_norm=math.inf, sigma=1.0, releases=1) == math.inf
    assert gaussian_mu(clip_norm=1.0, sigma=1.0, releases=0) == 0.0


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_conversion_is_the_closed_form_and_inverts(mu):
    for epsilon in (0.0, 0.5, 3.0):
        expected = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        assert delta_of_mu(mu, epsilon) == pytest.approx(expected, abs=1e-14)
    assert delta_of_mu(mu, epsilon_of_mu(mu, 1e-5)) == pytest.approx(1e-5, rel=1e-6)


def test_conversion_of_known_and_extreme_values():
    assert epsilon_of_mu(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-3)
    assert 500_000 < epsilon_of_mu(1000.0, 1e-5) < 510_000
    assert epsilon_of_mu(math.inf, 1e-5) == math.inf
    assert epsilon_of_mu(0.0, 1e-5) == 0.0
    assert delta_of_mu(math.inf, 5.0) == 1.0
    with pytest.raises(ValueError, match="delta"):
        epsilon_of_mu(1.0, 0.0)


@pytest.mark.parametrize("mu", [0.5, 8.0])
def test_nominal_and_rigorous_accounts_differ_by_105(mu):
    n, b, epochs, clip = 700_000, 256, 10, 1.3
    sigma = pubsub_sigma(mu=mu, clip_norm=clip, batch_size=b, num_samples=n, num_epochs=epochs)
    rigorous = gaussian_mu(clip_norm=clip, sigma=sigma, releases=epochs)
    assert rigorous / mu == pytest.approx(2 * math.sqrt(n / b))
    assert round(rigorous / mu) == 105


def test_laplace_epsilon():
    assert laplace_label_epsilon(0.5) == pytest.approx(5.657, abs=5e-4)
    assert laplace_value_epsilon(4.0, 0.5) == pytest.approx(math.sqrt(2) * 8)
    assert laplace_label_epsilon(0.0) == math.inf


def test_laplace_label_epsilon_is_not_exceeded_by_the_real_odds():
    # the difference of two Laplace variables of scale s exceeds -1 with 1 - e^(-1/s) (2 + 1/s) / 4
    s = 0.5 / math.sqrt(2)
    keep = 1 - math.exp(-1 / s) * (2 + 1 / s) / 4
    assert math.log(keep / (1 - keep)) <= laplace_label_epsilon(0.5)


def test_poisson_account_is_opacus_and_is_smaller_than_without_amplification():
    common = {"noise_multiplier": 1.0, "steps": 1000, "delta": 1e-5}
    rdp = dpsgd_epsilon(**common, sampling="poisson", sample_rate=0.01)
    prv = dpsgd_epsilon(**common, sampling="poisson", sample_rate=0.01, accountant="prv")
    assert rdp == pytest.approx(2.1014, abs=1e-3)
    assert prv < rdp
    known = dpsgd_epsilon(**common, sampling="known-batches", releases=10)
    assert known == pytest.approx(epsilon_of_mu(math.sqrt(10), 1e-5))
    assert known > rdp
    assert dpsgd_epsilon(**common, sampling="full") == pytest.approx(epsilon_of_mu(math.sqrt(1000), 1e-5))


def test_no_amplification_without_poisson_sampling():
    for sampling in ("shuffled", "known-batches"):
        with pytest.raises(ValueError, match="no amplification"):
            dpsgd_epsilon(noise_multiplier=1.0, steps=10, delta=1e-5, sampling=sampling, sample_rate=0.01)
    with pytest.raises(ValueError, match="add-remove"):
        dpsgd_epsilon(
            noise_multiplier=1.0, steps=10, delta=1e-5, sampling="poisson", sample_rate=0.01, neighbours="replace"
        )
    assert dpsgd_epsilon(noise_multiplier=0.0, steps=1, delta=1e-5, sampling="full") == math.inf
    assert dpsgd_epsilon(noise_multiplier=1.0, steps=0, delta=1e-5, sampling="full") == 0.0


@pytest.mark.parametrize(
    "how",
    [
        {"sampling": "poisson", "sample_rate": 0.02, "steps": 500},
        {"sampling": "shuffled", "releases": 10, "steps": 500},
    ],
)
def test_noise_multiplier_meets_the_budget_closely(how):
    multiplier = dpsgd_noise_multiplier(epsilon=1.0, delta=1e-5, **how)
    spent = dpsgd_epsilon(noise_multiplier=multiplier, delta=1e-5, **how)
    assert 0.98 < spent <= 1.0


def test_loose_orders_of_the_rdp_accountant_still_bound():
    for multiplier, steps in ((0.3, 1), (50.0, 1)):
        common = {"noise_multiplier": multiplier, "steps": steps, "delta": 1e-5, "sampling": "poisson"}
        found = dpsgd_epsilon(**common, sample_rate=0.001)
        assert 0 < found < epsilon_of_mu(1 / multiplier, 1e-5) + 5


def test_record_cannot_claim_what_does_not_hold():
    with pytest.raises(ValueError, match="finite"):
        PrivacyRecord(party="bank", message_type="Embedding", mechanism="none", rigorous_mu=math.inf, covered=True)
    record = PrivacyRecord(party="bank", message_type="Embedding", mechanism="gaussian", rigorous_mu=2.0, covered=True)
    assert record.covered


def test_import_is_light():
    code = (
        "import sys, fedactors.privacy.accounting;print(sorted({'torch', 'opacus', 'scipy', 'ray'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_gaussian_account_bounds_the_best_distinguisher():
    # two neighbours at distance 2c; the optimal test's power at level alpha is the Gaussian trade-off function
    clip, sigma, n = 1.0, 2.0, 200_000
    rng = np.random.default_rng(0)
    without, with_record = rng.normal(-clip, sigma, n), rng.normal(clip, sigma, n)
    threshold = np.quantile(without, 0.95)
    power = np.mean(with_record > threshold)
    mu = gaussian_mu(clip_norm=clip, sigma=sigma, releases=1)
    assert power == pytest.approx(norm.cdf(norm.ppf(0.05) + mu), abs=0.01)

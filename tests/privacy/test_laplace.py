"""Laplace noise in whole steps: its law, and who looks at the last bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, laplace

from fedactors.privacy.mechanisms import add_laplace, laplace_step, randomised_values
from fedactors.privacy.noise import LARGEST_SIGMA, discrete_laplace


@pytest.mark.parametrize("scale", [1, 3, 40])
def test_the_discrete_law_is_the_one_stated(scale: int) -> None:
    count = 60_000
    found = discrete_laplace(scale, count, np.random.default_rng(scale).bytes)
    far = 4 * scale
    x = np.arange(-far, far + 1)
    share = math.tanh(1 / (2 * scale)) * np.exp(-np.abs(x) / scale)  # (e^(1/s) - 1) / (e^(1/s) + 1) e^(-|x|/s)
    observed = np.array([(found == one).sum() for one in x])
    inside = np.append(observed, count - observed.sum())
    assert chisquare(inside, count * np.append(share, 1 - share.sum())).pvalue > 1e-3


@pytest.mark.parametrize("deviation", [1e-3, 0.5, 7.3, 1e6])
def test_noise_is_laplace_of_that_deviation(deviation: float) -> None:
    noise = add_laplace(np.zeros(40_000), deviation, np.random.default_rng(0))
    assert noise.std() == pytest.approx(deviation, rel=0.03)
    assert kstest(noise, laplace(scale=deviation / math.sqrt(2)).cdf).pvalue > 1e-3


def bits_below(values: np.ndarray, step: float) -> np.ndarray:
    return values / step - np.floor(values / step)


@pytest.mark.parametrize("deviation", [0.3, 0.5, 2.0])
def test_last_bits_tell_no_label(deviation: float) -> None:
    """Of noise in floating point they do: 0 + x keeps bits of a small x that 1 + x has lost."""
    step, labels = laplace_step(deviation), np.repeat([0.0, 1.0], 5000)
    rng = np.random.default_rng(1)
    naive = labels + rng.laplace(scale=deviation / math.sqrt(2), size=len(labels))
    told = bits_below(naive, 2.0**-53) != 0  # finer than 1 + x can be
    assert told[:5000].mean() > 0.01
    assert not told[5000:][np.abs(naive[5000:] - 1) < 0.5].any()
    noisy = add_laplace(labels, deviation, rng)
    assert not bits_below(noisy, step).any()
    assert (np.abs(noisy / step) < 2**52).all()


def test_no_pair_of_labels_is_farther_apart_than_the_range() -> None:
    low, high, deviation = -0.1, 0.7, 0.37
    kept: list[np.ndarray] = []
    from fedactors.privacy.noise import observing

    def listen(exact: np.ndarray, law: object, draw: object, name: str) -> np.ndarray:
        kept.append(exact)
        return exact

    with observing(listen):
        randomised_values([-9.0, low, 0.123456789, high, 9.0], low, high, deviation, np.random.default_rng(0))
    assert not bits_below(kept[0], laplace_step(deviation)).any()
    assert kept[0].max() - kept[0].min() <= high - low


def test_the_scale_is_never_less_than_asked() -> None:
    for deviation in np.geomspace(1e-9, 1e9, 50):
        step, scale = laplace_step(deviation), deviation / math.sqrt(2)
        assert 2**22 <= scale / step < 2**23
        assert math.ceil(scale / step) * step >= scale


@pytest.mark.parametrize("scale", [0, -1, 1.5, LARGEST_SIGMA + 1])
def test_scales_out_of_range_are_refused(scale: int) -> None:
    with pytest.raises(ValueError, match="a whole number of steps from 1"):
        discrete_laplace(scale, 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_values_that_no_grid_holds_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="values must be finite and below"):
        add_laplace([value], 1.0, np.random.default_rng(0))

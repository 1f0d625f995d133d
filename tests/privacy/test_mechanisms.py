import math

import numpy as np
import pytest
import torch

from fedactors.privacy.mechanisms import (
    add_gaussian,
    add_laplace,
    clip_and_noise,
    clip_rows,
    clip_rows_backward,
    pubsub_sigma,
    randomised_labels,
    randomised_values,
)


def test_clipping_bounds_rows_and_leaves_short_ones():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=np.float32)
    clipped = clip_rows(rows, 1.0)
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-6)
    assert clipped.dtype == np.float32
    assert clip_rows(rows, math.inf) is rows
    with pytest.raises(ValueError, match="clip_norm"):
        clip_rows(rows, 0.0)


def test_clip_backward_equals_autograd():
    rng = np.random.default_rng(0)
    rows, upstream = rng.normal(size=(20, 5)), rng.normal(size=(20, 5))
    for clip_norm in (0.5, 2.0, 100.0):
        leaf = torch.tensor(rows, requires_grad=True)
        out = leaf * torch.clamp(clip_norm / leaf.norm(dim=1, keepdim=True), max=1.0)
        (expected,) = torch.autograd.grad(out, leaf, torch.tensor(upstream))
        np.testing.assert_allclose(clip_rows_backward(rows, upstream, clip_norm), expected.numpy(), atol=1e-12)
    assert clip_rows_backward(rows, upstream, math.inf) is upstream


def test_gaussian_deviation_equals_sigma():
    n = 200_000
    noise = add_gaussian(np.zeros((n, 1)), 0.7, np.random.default_rng(1))
    assert abs(noise.std() - 0.7) < 4 * 0.7 / math.sqrt(2 * n)
    assert abs(noise.mean()) < 4 * 0.7 / math.sqrt(n)
    z = np.ones((2, 2), dtype=np.float32)
    assert add_gaussian(z, 0.0, np.random.default_rng(1)) is z
    assert add_gaussian(z, 1.0, np.random.default_rng(1)).dtype == np.float32


def test_laplace_deviation_is_lambda():
    n = 200_000
    noise = add_laplace(np.zeros(n), 0.5, np.random.default_rng(2))
    # the variance of a Laplace sample's square is 5 var^2, so that of its deviation is 5/4 var / n
    assert abs(noise.std() - 0.5) < 4 * 0.5 * math.sqrt(1.25 / n)
    assert abs(np.abs(noise).mean() - 0.5 / math.sqrt(2)) < 4 * 0.5 / math.sqrt(2 * n)


@pytest.mark.parametrize(("num_classes", "probability"), [(2, 0.9287), (5, 0.8099), (6, 0.7801)])
def test_keep_probabilities_of_randomised_labels(num_classes, probability):
    n = 100_000
    rng = np.random.default_rng(3)
    labels = rng.integers(0, num_classes, n)
    kept = np.mean(randomised_labels(labels, num_classes, 0.5, rng) == labels)
    assert abs(kept - probability) < 4 * math.sqrt(probability * (1 - probability) / n)


def test_no_noise_keeps_labels_and_one_class_is_refused():
    labels = np.array([0, 2, 1])
    assert (randomised_labels(labels, 3, 0.0, np.random.default_rng(0)) == labels).all()
    with pytest.raises(ValueError, match="at least two classes"):
        randomised_labels(labels, 1, 0.5, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"0\.\.1"):
        randomised_labels(labels, 2, 0.5, np.random.default_rng(0))


def test_numeric_labels_are_clipped_to_their_range():
    values = randomised_values([-10.0, 3.0, 10.0], 1.0, 5.0, 0.0, np.random.default_rng(0))
    assert values.tolist() == [1.0, 3.0, 5.0]
    for low in (5.0, 1.0):  # a range of one value is none
        with pytest.raises(ValueError, match="low < high"):
            randomised_values([1.0], low, 1.0, 0.5, np.random.default_rng(0))


def test_pubsub_sigma_by_hand():
    # K = 10 * 10000 / 100 = 1000 releases: 2 * 100 * sqrt(1000) / (4 * 10000)
    sigma = pubsub_sigma(mu=4.0, clip_norm=2.0, batch_size=100, num_samples=10_000, num_epochs=10)
    assert sigma == pytest.approx(2 * 100 * math.sqrt(1000) / (4 * 10_000))
    assert pubsub_sigma(mu=math.inf, clip_norm=2.0, batch_size=100, num_samples=10_000, num_epochs=10) == 0.0
    with pytest.raises(ValueError, match="greater than 0"):
        pubsub_sigma(mu=0.0, clip_norm=2.0, batch_size=100, num_samples=10_000, num_epochs=10)


def test_release_without_clip_and_noise_is_the_input():
    rows = np.random.default_rng(0).normal(size=(3, 4))
    assert clip_and_noise(rows, math.inf, 0.0, np.random.default_rng(0)) is rows


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
def test_a_row_that_overflows_does_not_show(value):
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = value
    clipped = clip_rows(rows, 1.0)
    assert np.isfinite(clipped).all()
    assert np.linalg.norm(clipped, axis=1).max() <= 1 + 1e-6
    assert (clipped[[0, 2]] == clip_rows(rows[[0, 2]], 1.0)).all()

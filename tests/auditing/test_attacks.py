from __future__ import annotations

import numpy as np
import pytest
import torch

from fedactors.auditing.attacks import (
    baseline_success_rate,
    binary_feature_auc,
    clustering_scores,
    direction_scores,
    invert_by_optimisation,
    nearest_neighbour,
    norm_scores,
    reconstruct_features,
    success_rate,
    train_decoder,
)
from fedactors.learning.metrics import auc
from fedactors.learning.models import ModelSpec, build_model
from fedactors.privacy.mechanisms import clip_and_noise

BOTTOM = ModelSpec(name="mlp", inputs=(6,), outputs=16, hidden_size=32, layers=3)


def victim(n=600):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    x[:, 5] = rng.integers(0, 2, n)
    bottom = build_model(BOTTOM, 0)
    return x, bottom, bottom(torch.tensor(x)).detach().numpy()


def test_nearest_neighbour_finds_the_row_of_an_embedding_table():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50, 8))
    chosen = rng.integers(0, 50, 200)
    assert (nearest_neighbour(table[chosen], table, chunk=64) == chosen).all()
    noisy = table[chosen] + rng.normal(scale=20.0, size=(200, 8))
    assert np.mean(nearest_neighbour(noisy, table) == chosen) < 0.3


@pytest.mark.slow
def test_optimisation_inverts_a_known_bottom():
    x, bottom, z = victim(20)
    guess = invert_by_optimisation(bottom, z, 6, seed=0, steps=800)
    assert success_rate(x, guess, 0.1) > 0.7
    noisy = z + np.random.default_rng(1).normal(scale=3.0, size=z.shape).astype(np.float32)
    assert success_rate(x, invert_by_optimisation(bottom, noisy, 6, seed=0, steps=300), 0.1) < 0.4


@pytest.mark.slow
def test_decoder_succeeds_without_noise_and_fails_with_much():
    x, _, z = victim()
    rng = np.random.default_rng(2)
    rates, areas = [], []
    for sigma in (0.0, 0.3, 10.0):
        seen = z if sigma == 0 else clip_and_noise(z, 3.0, sigma, rng)
        decode = train_decoder(seen[:400], x[:400], seed=0)
        guess = decode(seen[400:])
        rates.append(success_rate(x[400:], guess, 0.3))
        areas.append(binary_feature_auc(x[400:], guess))
    assert rates[0] > 0.6
    assert rates[0] > rates[1] > rates[2]
    assert rates[2] < baseline_success_rate(x[400:], x[:400], 0.3) + 0.1
    assert areas[0] > 0.95
    assert areas[2] < 0.65


def test_binary_auc_without_binary_features_is_nan():
    x = np.random.default_rng(0).normal(size=(10, 2))
    assert np.isnan(binary_feature_auc(x, x))


def cut_layer_gradients():
    rng = np.random.default_rng(3)
    z = torch.tensor(rng.normal(size=(500, 4)), requires_grad=True)
    y = (rng.random(500) < 0.1).astype(float)
    weight = torch.tensor(rng.normal(size=4))
    logit = z @ (0.1 * weight) - 2.0
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, torch.tensor(y))
    (gradient,) = torch.autograd.grad(loss, z)
    return gradient.numpy(), y


def test_cut_layer_gradients_leak_labels_by_norm_and_direction():
    gradient, y = cut_layer_gradients()
    assert auc(y, norm_scores(gradient)) > 0.95
    assert auc(y, direction_scores(gradient, int(np.flatnonzero(y)[0]))) > 0.99
    assert auc(y, clustering_scores(gradient)) > 0.99
    hidden = clip_and_noise(gradient, 1e-3, 1.0, np.random.default_rng(0))
    assert auc(y, norm_scores(hidden)) < 0.65


def test_parameters_and_predictions_determine_the_features():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(30, 8))
    theta = rng.normal(size=(8, 8))
    assert np.abs(reconstruct_features(theta, theta @ x.T) - x).max() < 1e-10
    assert np.abs(reconstruct_features(theta[:5], theta[:5] @ x.T) - x).max() > 0.1
    noisy = theta @ x.T + rng.normal(size=(8, 30))
    assert np.abs(reconstruct_features(theta, noisy) - x).max() > 0.3
    with pytest.raises(ValueError, match="parameter vectors"):
        reconstruct_features(theta, (theta @ x.T)[:3])

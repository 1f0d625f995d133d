"""DP-SGD as local training: each row's gradient, what is frozen, and noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedactors.learning.local_training import LocalTraining, check_private, train_privately
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.network import initial_vector, load_vector, trained_slices
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.privacy.accounting import RecordPrivacy

PLAIN = LocalTraining(optimizer=OptimizerSpec(learning_rate=0.5))
MLP = ModelSpec(name="mlp", inputs=(5,), outputs=3, hidden_size=8, layers=2, float64=True)


class Adapted(nn.Module):
    """A frozen trunk beside what is trained."""

    def __init__(self):
        super().__init__()
        self.trunk, self.head = nn.Linear(5, 8).requires_grad_(False), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.trunk(x)))


def rows(count=40):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 5)), rng.integers(0, 3, count)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_is_the_sum_of_the_rows_clipped_gradients(weighted):
    """Each row by itself through plain autograd; all rows are in the batch, and the noise is too small to see."""
    x, y = rows()
    weights = np.linspace(0.5, 2.0, len(x)) if weighted else None
    start = initial_vector(MLP, 0)
    privacy = RecordPrivacy(clip_norm=0.4, noise_multiplier=1e-12, batch_size=len(x))
    found = train_privately(MLP, start, x, y, secret=(1, 2), privacy=privacy, training=PLAIN, weights_N=weights)
    module, total, clipped = build_model(MLP, 0), 0.0, 0
    load_vector(module, start)
    for number in range(len(x)):
        loss = nn.functional.cross_entropy(module(torch.tensor(x[number : number + 1])), torch.tensor(y[number])[None])
        gradients = torch.autograd.grad(loss * (1.0 if weights is None else weights[number]), list(module.parameters()))
        flat = torch.cat([part.reshape(-1) for part in gradients]).numpy()
        clipped += int(np.linalg.norm(flat) > 0.4)
        total = total + flat * min(1.0, 0.4 / np.linalg.norm(flat))
    assert clipped > 0
    assert np.abs(found - (start - 0.5 * total / len(x))).max() < 1e-9


def test_frozen_parameters_have_no_part():
    spec = ModelSpec(name=f"{__name__}:Adapted", inputs=(5,), outputs=3)
    module = Adapted()
    assert sum(parameter.numel() for parameter, _ in trained_slices(module)) == 27
    start = np.zeros(27, np.float32)
    x, y = rows()
    privacy = RecordPrivacy(clip_norm=1.0, noise_multiplier=1.0, batch_size=8, num_epochs=2)
    found = train_privately(spec, start, x, y, secret=(1,), privacy=privacy, training=PLAIN)
    again = train_privately(spec, start, x, y, secret=(1,), privacy=privacy, training=PLAIN)
    other = train_privately(spec, start, x, y, secret=(2,), privacy=privacy, training=PLAIN)
    assert found.shape == (27,)
    assert np.array_equal(found, again)
    assert not np.array_equal(found, other)
    check_private(spec)


def test_batches_are_poisson_samples(monkeypatch):
    sums = []

    def heard(values, sigma, rng, name, *, sample_rate):
        sums.append(sample_rate)
        return values

    monkeypatch.setattr("fedactors.learning.local_training.add_gaussian", heard)
    x, y = rows()
    privacy = RecordPrivacy(clip_norm=1.0, noise_multiplier=1.0, batch_size=16, num_epochs=3)
    train_privately(MLP, initial_vector(MLP, 0), x, y, secret=(1,), privacy=privacy, training=PLAIN)
    assert sums == [16 / 40] * 9

from __future__ import annotations

import concurrent.futures
import math

import numpy as np
import pytest
import torch

from fedactors.learning.local_training import clipped_gradient_sum, per_sample_gradients
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.optimizers import Network, OptimizerSpec

SPEC = ModelSpec(name="mlp", inputs=(4,), outputs=3, hidden_size=5, layers=3, float64=True)
LOSS = torch.nn.functional.cross_entropy


def batch(n=12):
    rng = np.random.default_rng(0)
    return torch.tensor(rng.normal(size=(n, 4))), torch.tensor(rng.integers(0, 3, n))


def naive(module, x, y):
    rows = []
    for i in range(len(x)):
        loss = LOSS(module(x[i : i + 1]), y[i : i + 1])
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))]))
    return torch.stack(rows)


@pytest.mark.slow
def test_per_sample_gradients_equal_the_naive_loop():
    module, (x, y) = build_model(SPEC, 0), batch()
    torch.testing.assert_close(per_sample_gradients(module, LOSS, x, y), naive(module, x, y), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_per_sample_gradients_equal_opacus():
    from opacus.grad_sample import GradSampleModule

    module, (x, y) = build_model(SPEC, 0), batch()
    wrapped = GradSampleModule(build_model(SPEC, 0), loss_reduction="sum")
    LOSS(wrapped(x), y, reduction="sum").backward()
    expected = torch.cat([p.grad_sample.reshape(len(x), -1) for p in wrapped.parameters()], dim=1)
    torch.testing.assert_close(per_sample_gradients(module, LOSS, x, y), expected, rtol=0, atol=1e-12)


def rows_and_upstream(n=150):
    """More rows than go through in one slice, of which the first is a million times as large."""
    rng = np.random.default_rng(1)
    x, upstream = rng.normal(size=(n, 4)), rng.normal(size=(n, 3))
    x[0] *= 1e6
    return x, upstream


def naive_clipped(module, x, upstream, clip_norm):
    total = torch.zeros(sum(p.numel() for p in module.parameters()), dtype=torch.float64)
    for row, along in zip(torch.from_numpy(x), torch.from_numpy(upstream), strict=True):
        grads = torch.autograd.grad((module(row[None]) * along).sum(), list(module.parameters()))
        gradient = torch.cat([g.reshape(-1) for g in grads])
        total += gradient * min(1.0, clip_norm / gradient.norm().item())
    return total.numpy()


@pytest.mark.parametrize("clip_norm", [0.01, 3.0, 1e9])
def test_the_clipped_sum_is_that_of_a_loop_over_rows(clip_norm):
    x, upstream = rows_and_upstream()
    module = build_model(SPEC, 0)
    found = clipped_gradient_sum(Network(SPEC, OptimizerSpec(), 0).model, x, upstream, clip_norm)
    np.testing.assert_allclose(found, naive_clipped(module, x, upstream, clip_norm), rtol=1e-9, atol=1e-12)


def test_parties_in_threads_of_one_process_do_not_mix_up_their_models():
    """Each would take its gradients at the parameters of another one, or fail."""
    x, upstream = rows_and_upstream(64)
    models = [Network(SPEC, OptimizerSpec(), seed).model for seed in range(4)]
    alone = [clipped_gradient_sum(model, x, upstream, 3.0) for model in models]
    with concurrent.futures.ThreadPoolExecutor(len(models)) as pool:
        for _ in range(20):
            found = pool.map(lambda model: clipped_gradient_sum(model, x, upstream, 3.0), models)
            for together, expected in zip(found, alone, strict=True):
                np.testing.assert_array_equal(together, expected)


@pytest.mark.parametrize("value", [0.0, 1e30, -1e30, math.inf, math.nan])
def test_one_row_moves_the_sum_by_no_more_than_twice_the_clip(value):
    x, upstream = rows_and_upstream()
    model = Network(SPEC, OptimizerSpec(), 0).model
    other, along = x.copy(), upstream.copy()
    other[70], along[70] = value, 1e3
    moved = clipped_gradient_sum(model, other, along, 0.5) - clipped_gradient_sum(model, x, upstream, 0.5)
    assert np.linalg.norm(moved) <= 2 * 0.5 * (1 + 1e-9)


def test_running_statistics_are_refused():
    module = build_model(ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=2, norm="batch"), 0)
    with pytest.raises(ValueError, match="running statistics"):
        per_sample_gradients(module, LOSS, torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))

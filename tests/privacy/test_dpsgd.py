import math

import numpy as np
import pytest
import torch

from fedactors.learning.models import ModelSpec, build_model
from fedactors.privacy.dpsgd import noisy_gradient, per_sample_gradients, poisson_batches

SPEC = ModelSpec(name="mlp", inputs=(4,), outputs=3, hidden=5, layers=3, float64=True)
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


def test_without_clip_and_noise_it_is_the_plain_gradient():
    module, (x, y) = build_model(SPEC, 0), batch()
    found = noisy_gradient(
        module,
        LOSS,
        x,
        y,
        clip_norm=1e9,
        noise_multiplier=0.0,
        expected_batch_size=len(x),
        rng=np.random.default_rng(0),
    )
    torch.testing.assert_close(found, naive(module, x, y).mean(dim=0), rtol=0, atol=1e-12)


def test_each_sample_is_clipped_after_its_weight():
    module, (x, y) = build_model(SPEC, 0), batch(2)
    rows = naive(module, x, y)
    weights = torch.tensor([1.0, 1000.0])
    found = noisy_gradient(
        module,
        LOSS,
        x,
        y,
        clip_norm=0.01,
        noise_multiplier=0.0,
        expected_batch_size=1.0,
        rng=np.random.default_rng(0),
        weights_B=weights,
    )
    expected = 0.01 * rows[0] / rows[0].norm() + 0.01 * rows[1] / rows[1].norm()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_noise_deviation_and_empty_batches():
    spec = ModelSpec(name="linear", inputs=(200,), outputs=500)
    module = build_model(spec, 0)
    found = noisy_gradient(
        module,
        LOSS,
        torch.zeros(0, 200),
        torch.zeros(0, dtype=torch.long),
        clip_norm=0.5,
        noise_multiplier=3.0,
        expected_batch_size=10.0,
        rng=np.random.default_rng(0),
    )
    sigma = 3.0 * 0.5 / 10
    assert abs(found.std().item() - sigma) < 4 * sigma / math.sqrt(2 * found.numel())


def test_poisson_batches_have_the_stated_rate():
    sizes = np.array([len(b) for b in poisson_batches(1000, 0.05, 400, np.random.default_rng(0))])
    assert abs(sizes.mean() - 50) < 4 * math.sqrt(1000 * 0.05 * 0.95 / 400)
    assert sizes.std() == pytest.approx(math.sqrt(1000 * 0.05 * 0.95), rel=0.2)


def test_running_statistics_are_refused():
    module = build_model(ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=2, norm="batch"), 0)
    with pytest.raises(ValueError, match="running statistics"):
        per_sample_gradients(module, LOSS, torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.long))

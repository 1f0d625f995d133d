import concurrent.futures

import numpy as np
import pytest
import torch

from fedactors.errors import BadInput
from fedactors.learning.models import MODEL_NAMES, ModelSpec, build_model
from fedactors.learning.network import to_vector


def count(spec):
    return sum(p.numel() for p in build_model(spec, 0).parameters())


@pytest.mark.slow
def test_published_parameter_counts():
    assert count(ModelSpec(name="cnn28", inputs=(1, 28, 28), outputs=10)) == 1_663_370
    for norm in ("batch", "group"):
        assert count(ModelSpec(name="resnet18", inputs=(3, 32, 32), outputs=10, norm=norm)) == 11_173_962
    assert count(ModelSpec(name="vgg16", inputs=(3, 32, 32), outputs=10, norm="batch")) == 14_728_266


def test_ten_layers_count_by_hand():
    spec = ModelSpec(name="mlp", inputs=(5,), outputs=3, hidden_size=7)
    assert count(spec) == (5 * 7 + 7) + 8 * (7 * 7 + 7) + (7 * 3 + 3)
    assert count(ModelSpec(name="top-mlp", inputs=(5,), outputs=3, hidden_size=7)) == (5 * 7 + 7) + (7 * 3 + 3)
    assert count(ModelSpec(name="linear", inputs=(5,), outputs=3, bias=False)) == 15


@pytest.mark.slow
@pytest.mark.drawn(5)
@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("norm", ["group", "none"])
def test_every_model_maps_a_batch(name, norm):
    images = {"cnn28": (1, 28, 28), "cnn8": (1, 8, 8), "resnet18": (3, 16, 16), "vgg16": (3, 16, 16)}
    images |= {"narrow-resnet18": (3, 8, 8), "view-cnn": (1, 16, 16)}
    inputs = images.get(name, (6,))
    spec = ModelSpec(name=name, inputs=inputs, outputs=4, norm=norm)
    output = build_model(spec, 1)(torch.zeros(2, *inputs))
    assert output.shape == (2, 4)
    assert torch.isfinite(output).all()


def test_initialisation_depends_on_the_seed_alone_and_leaves_the_global_generator():
    spec = ModelSpec(name="residual-mlp", inputs=(6,), outputs=4, layers=2)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = to_vector(build_model(spec, 3))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert np.array_equal(first, to_vector(build_model(spec, 3)))
    assert not np.array_equal(first, to_vector(build_model(spec, 4)))


def test_signal_survives_ten_layers():
    spec = ModelSpec(name="mlp", inputs=(250,), outputs=64, hidden_size=256)
    x = torch.randn(512, 250, generator=torch.Generator().manual_seed(0))
    deviation = build_model(spec, 0)(x).std().item()
    assert 0.2 < deviation < 3.0


def test_double_precision():
    spec = ModelSpec(name="mlp", inputs=(3,), outputs=1, float64=True)
    assert all(p.dtype == torch.float64 for p in build_model(spec, 0).parameters())


def test_bad_names_and_shapes():
    with pytest.raises(BadInput, match="'mpl' is not known"):
        build_model(ModelSpec(name="mpl", inputs=(3,), outputs=1), 0)
    with pytest.raises(BadInput, match="channels, height, width"):
        build_model(ModelSpec(name="cnn8", inputs=(64,), outputs=10), 0)
    with pytest.raises(BadInput, match="at least 1"):
        build_model(ModelSpec(name="mlp", inputs=(3,), outputs=0), 0)
    with pytest.raises(BadInput, match="norm: 'layer'"):
        build_model(ModelSpec(name="vgg16", inputs=(3, 32, 32), outputs=1, norm="layer"), 0)


def test_threads_that_build_at_once_build_what_they_would_alone() -> None:
    specs = [ModelSpec(name="linear", inputs=(200,), outputs=100 + k) for k in range(4)]

    def first(spec):
        return next(build_model(spec, 7).parameters()).detach().numpy()

    alone = [first(spec) for spec in specs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for found, expected in zip(pool.map(first, specs), alone, strict=True):
                np.testing.assert_array_equal(found, expected)

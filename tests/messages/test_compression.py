from __future__ import annotations

import math

import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.messages import codec
from fedactors.messages.compression import Clip, Noise, Pipeline, Quantise, TopK, decode, dense


def rng(seed=0):
    return np.random.default_rng(seed)


def test_no_transform_is_the_identity():
    array = rng().normal(size=(3, 4)).astype(np.float32)
    encoded, residual = Pipeline().encode(array, None, rng())
    assert residual is None
    assert encoded.num_bytes == array.nbytes
    np.testing.assert_array_equal(decode(encoded), array)
    assert decode(encoded).dtype == np.float32


def test_top_k_by_hand():
    pipeline = Pipeline(compressors=(TopK(fraction=0.5),))
    encoded, residual = pipeline.encode(np.array([[1.0, -5.0], [3.0, 0.5]]), None, rng())
    np.testing.assert_array_equal(decode(encoded), [[0.0, -5.0], [3.0, 0.0]])
    np.testing.assert_array_equal(residual, [[1.0, 0.0], [0.0, 0.5]])
    again, residual = pipeline.encode(np.array([[1.0, 0.0], [0.0, 0.0]]), residual, rng())
    np.testing.assert_array_equal(decode(again), [[2.0, 0.0], [0.0, 0.5]])
    np.testing.assert_array_equal(residual, np.zeros((2, 2)))


@pytest.mark.parametrize("bits", [1, 3, 4, 8, 12, 16])
def test_quantisation_is_within_a_level_and_really_small(bits):
    array = rng(1).normal(size=1000).astype(np.float32)
    nearest, _ = Pipeline(compressors=(Quantise(bits=bits, stochastic=False),)).encode(array, None, rng())
    level = (array.max() - array.min()) / (2**bits - 1)
    assert np.abs(decode(nearest) - array).max() <= level / 2 * 1.0001 + 1e-6
    assert nearest.num_bytes == math.ceil(1000 * bits / 8)
    random, _ = Pipeline(compressors=(Quantise(bits=bits),)).encode(array, None, rng())
    assert np.abs(decode(random) - array).max() <= level * 1.0001 + 1e-6


@pytest.mark.slow
def test_stochastic_rounding_is_unbiased():
    array = np.array([0.0, 0.3, 1.0])
    stage = Pipeline(compressors=(Quantise(bits=1),), error_feedback=False)
    noise = rng(2)
    mean = np.mean([decode(stage.encode(array, None, noise)[0]) for _ in range(20_000)], axis=0)
    assert abs(mean[1] - 0.3) < 4 * math.sqrt(0.21 / 20_000)
    assert mean[[0, 2]].tolist() == [0.0, 1.0]


def test_error_feedback_loses_nothing_over_time():
    pipeline = Pipeline(compressors=(TopK(fraction=0.1), Quantise(bits=4)))
    noise, residual, sent, given = rng(3), None, np.zeros(200), np.zeros(200)
    sizes = []
    for _ in range(50):
        array = noise.normal(size=200)
        encoded, residual = pipeline.encode(array, residual, noise)
        sent, given = sent + decode(encoded), given + array
        sizes.append(np.abs(residual).max())
    np.testing.assert_allclose(sent + residual, given, atol=1e-9)
    assert max(sizes[25:]) < 40
    assert encoded.num_bytes == 20 * 4 + 10


def test_the_residual_is_all_the_state_there_is():
    pipeline = Pipeline(compressors=(TopK(fraction=0.2),))
    arrays = rng(4).normal(size=(4, 30))
    straight = None
    for array in arrays:
        last, straight = pipeline.encode(array, straight, rng())
    middle = None
    for array in arrays[:2]:
        _, middle = pipeline.encode(array, middle, rng())
    resumed: np.ndarray | None = np.array(middle.tolist())
    for array in arrays[2:]:
        final, resumed = Pipeline(compressors=(TopK(fraction=0.2),)).encode(array, resumed, rng())
    np.testing.assert_array_equal(decode(final), decode(last))


def test_noise_comes_before_compression_and_after_a_clip():
    with pytest.raises(BadInput, match="clip before it"):
        Pipeline(stages=(Noise(sigma=1.0),))
    with pytest.raises(BadInput, match="before compression"):
        Pipeline(compressors=(Noise(sigma=1.0),))
    with pytest.raises(BadInput, match="before quantisation"):
        Pipeline(compressors=(Quantise(bits=4), TopK(fraction=0.5))).encode(np.ones(4), None, rng())
    with pytest.raises(BadInput, match="only once"):
        Pipeline(compressors=(Quantise(bits=4), Quantise(bits=4))).encode(np.ones(4), None, rng())


def test_clip_and_noise_have_the_stated_size():
    rows = 10 * rng(5).normal(size=(20_000, 4))
    clipped, _ = Pipeline(stages=(Clip(clip_norm=2.0),)).encode(rows, None, rng())
    assert np.linalg.norm(decode(clipped), axis=1).max() <= 2.0 + 1e-9
    noised, _ = Pipeline(stages=(Clip(clip_norm=2.0), Noise(sigma=0.5))).encode(rows, None, rng(6))
    difference = decode(noised) - decode(clipped)
    assert abs(difference.std() - 0.5) < 4 * 0.5 / math.sqrt(2 * difference.size)


def test_bad_numbers_and_odd_arrays():
    for bad in (0.0, 1.5):
        with pytest.raises(BadInput, match="fraction"):
            TopK(fraction=bad)
    with pytest.raises(BadInput, match="bits"):
        Quantise(bits=17)
    pipeline = Pipeline(compressors=(TopK(fraction=0.1), Quantise(bits=2)))
    for array in (np.zeros((0, 3)), np.full((2, 2), 7.0), np.array([[1.0]])):
        found = decode(pipeline.encode(array, None, rng())[0])
        assert found.shape == array.shape
        assert set(found.ravel()) <= {0.0, 7.0, 1.0}
    with pytest.raises(ValueError, match="residual of shape"):
        pipeline.encode(np.ones(4), np.ones(3), rng())


def test_full_top_k_keeps_the_order():
    array = rng(7).normal(size=9)
    np.testing.assert_array_equal(decode(TopK(fraction=1.0).compress(dense(array), rng())), array)


def test_the_travelling_form_passes_the_codec():
    array = rng(9).normal(size=(6, 5)).astype(np.float32)
    for compressors in ((), (TopK(fraction=0.3),), (TopK(fraction=0.3), Quantise(bits=5))):
        encoded, _ = Pipeline(compressors=compressors).encode(array, None, rng())
        received = codec.decode(codec.encode(encoded))
        np.testing.assert_array_equal(decode(received), decode(encoded))
        assert decode(received).dtype == np.float32

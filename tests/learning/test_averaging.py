import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import load_digits

from fedactors.errors import BadInput
from fedactors.learning.averaging import (
    LocalTraining,
    batches,
    blend,
    evaluate_model,
    model_outputs,
    train_locally,
    weighted_mean,
)
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.learning.parameters import to_vector
from fedactors.learning.split_network import initial_vector

LINEAR = ModelSpec(name="linear", inputs=(4,), outputs=3, float64=True)
DIGITS = ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10)


def data(n=20):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4)), rng.integers(0, 3, n)


def test_one_full_batch_step_is_plain_gradient_descent():
    x, y = data()
    vector = initial_vector(LINEAR, 0)
    training = LocalTraining(optimizer=OptimizerSpec(learning_rate=0.1), batch_size=20, num_epochs=1)
    result = train_locally(LINEAR, vector, x, y, seed=1, training=training)
    module = build_model(LINEAR, 0)
    loss = torch.nn.functional.cross_entropy(module(torch.tensor(x)), torch.tensor(y))
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 0.1 * parameter.grad  # type: ignore[misc]
    np.testing.assert_allclose(result.vector, to_vector(module), rtol=0, atol=1e-12)
    assert result.loss == pytest.approx(loss.item())
    assert (result.num_steps, result.num_samples) == (1, 20)


def test_the_result_depends_on_its_arguments_alone():
    x, y = data()
    for array in (x, y):
        array.flags.writeable = False
    vector = initial_vector(LINEAR, 0)
    training = LocalTraining(batch_size=6, num_epochs=2)
    torch.manual_seed(1)
    first = train_locally(LINEAR, vector, x, y, seed=1, training=training)
    torch.manual_seed(2)
    again = train_locally(LINEAR, vector, x, y, seed=1, training=training)
    other = train_locally(LINEAR, vector, x, y, seed=2, training=training)
    assert np.array_equal(first.vector, again.vector)
    assert not np.array_equal(first.vector, other.vector)
    assert first.num_steps == 8


def test_proximal_term_pulls_towards_the_start():
    x, y = data()
    vector = initial_vector(LINEAR, 0)
    far, near = (
        np.linalg.norm(
            train_locally(
                LINEAR,
                vector,
                x,
                y,
                seed=1,
                training=LocalTraining(
                    num_epochs=10, optimizer=OptimizerSpec(learning_rate=0.1, momentum=0.9), proximal=mu
                ),
            ).vector
            - vector
        )
        for mu in (0.0, 5.0)
    )
    assert near < 0.5 * far


@pytest.mark.slow
def test_digits_are_learned():
    x, y = load_digits(return_X_y=True)
    x = (x / 16).reshape(-1, 1, 8, 8).astype(np.float32)
    training = LocalTraining(num_epochs=4, optimizer=OptimizerSpec(learning_rate=0.05, momentum=0.9))
    result = train_locally(DIGITS, initial_vector(DIGITS, 0), x[:1200], y[:1200], seed=0, training=training)
    assert evaluate_model(DIGITS, result.vector, x[1200:], y[1200:])["accuracy"] > 0.9


@pytest.mark.slow
def test_batch_normalisation_travels_in_the_vector_and_never_sees_one_sample():
    spec = ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=2, norm="batch")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 1, 8, 8)).astype(np.float32), rng.integers(0, 2, 5)
    vector = initial_vector(spec, 0)
    result = train_locally(spec, vector, x, y, seed=0, training=LocalTraining(batch_size=4, num_epochs=1))
    assert result.num_steps == 1
    assert result.vector.shape == vector.shape
    assert not np.array_equal(model_outputs(spec, result.vector, x), model_outputs(spec, vector, x))
    with pytest.raises(BadInput, match="two samples"):
        train_locally(spec, vector, x[:1], y[:1], seed=0, training=LocalTraining())


def test_batches_partition_the_samples():
    for n, size, smallest in ((10, 3, 1), (10, 3, 2), (5, 8, 2), (9, 3, 2)):
        parts = list(batches(n, size, np.random.default_rng(0), smallest))
        assert sorted(np.concatenate(parts)) == list(range(n))
        assert min(map(len, parts)) >= min(smallest, n)


def test_no_samples_is_an_error():
    with pytest.raises(BadInput, match="no samples"):
        train_locally(
            LINEAR, initial_vector(LINEAR, 0), np.zeros((0, 4)), np.zeros(0), seed=0, training=LocalTraining()
        )


vectors = arrays(np.float32, 3, elements=st.floats(-1e3, 1e3, width=32))


@given(vectors, vectors, st.floats(0, 1))
def test_blend_stays_between(first, second, share):
    made = blend(first, second, share)
    assert (made >= np.minimum(first, second)).all()
    assert (made <= np.maximum(first, second)).all()


def test_blend_of_far_numbers_loses_neither():
    far, near = np.array([1e8], np.float32), np.array([1.0], np.float32)
    assert blend(far, near, 1.0) == 1.0
    assert blend(far, near, 0.99999999) >= 1.0


def test_blend_and_mean_by_hand():
    one, two = np.array([1.0, -2.0], np.float32), np.array([3.0, 2.0], np.float32)
    np.testing.assert_array_equal(blend(one, two, 0.25), [1.5, -1.0])
    np.testing.assert_array_equal(blend(one, two, 0.75), [2.5, 1.0])
    np.testing.assert_array_equal(blend(one, two, 0.0), one)
    np.testing.assert_array_equal(blend(one, two, 1.0), two)
    np.testing.assert_array_equal(weighted_mean([one, two], [3, 1]), [1.5, -1.0])
    with pytest.raises(ValueError, match="negative"):
        weighted_mean([one, two], [1, -1])
    with pytest.raises(ValueError, match="do not make a mean"):
        weighted_mean([], [])

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import load_digits
from torch import nn

from fedactors.errors import BadInput
from fedactors.learning.local_training import (
    LocalTraining,
    batches,
    blend,
    distil,
    evaluate_model,
    model_outputs,
    train_locally,
    weighted_mean,
)
from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.network import initial_vector, load_vector, to_vector
from fedactors.learning.optimizers import OptimizerSpec

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


# --- modules of one's own, images ---


def dropping(inputs, outputs):
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, outputs))


def normalising(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, outputs),
    )


def counting(inputs, outputs):
    module = normalising(inputs, outputs)
    module[1].momentum = None  # a plain mean over all batches counted so far
    return module


def shared(inputs, outputs):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, outputs))
    module[2].weight = module[1].weight
    module[2].bias.requires_grad_(False)
    return module


USER_MODELS = {
    made.__name__: ModelSpec(name=f"{__name__}:{made.__name__}", inputs=(1, 8, 8), outputs=10)
    for made in (dropping, normalising, counting, shared)
}


def samples(num_samples=120):
    x = np.random.default_rng(0).normal(size=(num_samples, 1, 8, 8)).astype(np.float32)
    y = x.reshape(num_samples, -1)[:, :10].argmax(axis=1)
    for array in (x, y):
        array.setflags(write=False)
    return x, y


@pytest.mark.parametrize(
    ("spec", "rule", "proximal"),
    [
        (DIGITS, OptimizerSpec(learning_rate=0.01, momentum=0.9), 0.0),
        (USER_MODELS["normalising"], OptimizerSpec(learning_rate=0.01, momentum=0.9), 0.0),
        (USER_MODELS["shared"], OptimizerSpec(name="adamw", learning_rate=0.01, weight_decay=0.1, clip_norm=0.5), 0.3),
    ],
)
def test_training_equals_torchs_own_optimiser(spec, rule, proximal):
    x, y = samples()
    module = build_model(spec, 0).train()
    start = to_vector(module)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    first = [parameter.detach().clone() for parameter in parameters]
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[rule.name]
    options = {"momentum": rule.momentum} if rule.momentum else {}
    optimizer = kind(parameters, lr=rule.learning_rate, weight_decay=rule.weight_decay, **options)
    order = np.random.default_rng(3)
    for _ in range(3):
        for rows in batches(120, 50, order):
            optimizer.zero_grad()
            pull = sum(((p - one) ** 2).sum() for p, one in zip(parameters, first, strict=True))
            loss = nn.functional.cross_entropy(module(torch.tensor(x[rows])), torch.tensor(y[rows]))
            (loss + 0.5 * proximal * pull).backward()
            if rule.clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, rule.clip_norm)
            optimizer.step()
    training = LocalTraining(optimizer=rule, num_epochs=3, proximal=proximal)
    result = train_locally(spec, start, x, y, seed=3, training=training)
    np.testing.assert_allclose(result.vector, to_vector(module), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", USER_MODELS)
def test_a_task_does_not_depend_on_the_tasks_before_it(name):
    (x, y), spec, training = samples(), USER_MODELS[name], LocalTraining(num_epochs=2)
    state, start = torch.get_rng_state(), to_vector(build_model(spec, 0))
    alone = train_locally(spec, start, x, y, seed=5, training=training)
    train_locally(spec, alone.vector, x[:30], y[:30], seed=6, training=training)
    evaluate_model(spec, alone.vector, x, y)
    again = train_locally(spec, start, x, y, seed=5, training=training)
    np.testing.assert_array_equal(alone.vector, again.vector)
    assert (alone.loss, alone.loss_rms) == (again.loss, again.loss_rms)
    other = train_locally(spec, start, x, y, seed=7, training=training)
    assert (other.vector != alone.vector).any()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("spec", [DIGITS, USER_MODELS["normalising"]])
def test_images_with_channels_last_are_trained_alike(spec):
    (x, y), training, start = samples(9), LocalTraining(batch_size=4, num_epochs=2), to_vector(build_model(spec, 0))
    last = torch.tensor(x).contiguous(memory_format=torch.channels_last)
    one, other = (train_locally(spec, start, images, y, seed=4, training=training) for images in (x, last))
    np.testing.assert_allclose(one.vector, other.vector, rtol=1e-4, atol=1e-5)
    module = build_model(spec, seed=5).eval()
    load_vector(module, other.vector)
    with torch.no_grad():
        expected = module(torch.tensor(x)).numpy()
    np.testing.assert_allclose(expected, model_outputs(spec, other.vector, last), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_agree_to_the_bit():
    script = textwrap.dedent("""
        import torch
        torch.set_num_threads(1)
        from tests.learning.test_local_training import digest
        print(digest())
    """)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    runs = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, cwd=root)
        for _ in range(2)
    ]
    assert len({run.communicate(timeout=120)[0].strip() for run in runs}) == 1


def digest():
    x, y = samples()
    made = [
        train_locally(spec, to_vector(build_model(spec, 0)), x, y, seed=11, training=LocalTraining())
        for spec in (DIGITS, USER_MODELS["dropping"], USER_MODELS["normalising"])
    ]
    text = b"".join(m.vector.tobytes() + repr((m.loss, m.loss_rms)).encode() for m in made)
    return hashlib.sha256(text).hexdigest()


def test_a_vector_of_another_length_is_refused():
    x, y = samples()
    with pytest.raises(ValueError, match="the model has"):
        train_locally(DIGITS, np.zeros(3, np.float32), x, y, seed=0, training=LocalTraining())


def test_distillation_moves_towards_the_teacher():
    (x, y), spec = samples(), ModelSpec(name="linear", inputs=(1, 8, 8), outputs=10)
    start = initial_vector(spec, 0)
    rule, few, many = OptimizerSpec(learning_rate=0.01, momentum=0.9), 1, 40
    short, long = (LocalTraining(optimizer=rule, num_epochs=epochs) for epochs in (few, many))
    teacher = train_locally(spec, start, x, y, seed=0, training=long).vector
    target = torch.softmax(torch.tensor(model_outputs(spec, teacher, x)), 1).numpy()
    first = distil(spec, start, x, target, seed=0, training=short)
    last = distil(spec, start, x, target, seed=0, training=long)
    assert last.loss < 0.5 * first.loss
    perfect = distil(spec, teacher, x, target, seed=0, training=short)
    np.testing.assert_allclose(perfect.vector, teacher, atol=1e-5)


def test_evaluation_by_hand():
    spec = ModelSpec(name="linear", inputs=(1, 8, 8), outputs=10)
    weights = np.zeros(650, np.float32)
    weights[640] = 5.0  # bias of class 0
    x, y = samples()
    assert evaluate_model(spec, weights, x, y)["accuracy"] == pytest.approx((y == 0).mean())
    assert model_outputs(spec, weights, x, batch_size=50).shape == (120, 10)


vectors = arrays(np.float32, 3, elements=st.floats(-1e3, 1e3, width=32))


@pytest.mark.slow
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


# --- precision, and gradients of a few samples at a time ---


@pytest.mark.parametrize("size", [1, 5, 32])
def test_gradients_added_up_are_those_of_the_whole_batch(size):
    spec = ModelSpec(name="mlp", inputs=(64,), outputs=10, hidden_size=8, layers=2, float64=True)
    x, y = samples()
    x, start = x.reshape(len(x), -1).astype(float), initial_vector(spec, 0)
    given = {"seed": 3, "weights_N": np.linspace(0.5, 2, len(y)), "correction_P": 0.01 * np.ones_like(start)}
    training = LocalTraining(batch_size=32, num_epochs=2, proximal=0.1)
    whole = train_locally(spec, start, x, y, training=training, **given)
    pieces = train_locally(spec, start, x, y, training=dataclasses.replace(training, micro_batch_size=size), **given)
    np.testing.assert_allclose(pieces.vector, whole.vector, rtol=0, atol=1e-12)
    assert (pieces.loss, pieces.loss_rms) == pytest.approx((whole.loss, whole.loss_rms), abs=1e-12)
    assert pieces.num_steps == whole.num_steps


def test_fewer_samples_at_once_keep_fewer_activations():
    spec = ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10)
    x, y = samples()

    def most_kept(size):
        kept = [0]

        def keep(tensor):
            kept[-1] += tensor.numel()
            return tensor

        def done(tensor):
            kept.append(0)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, done):
            training = LocalTraining(batch_size=60, num_epochs=1, micro_batch_size=size)
            train_locally(spec, initial_vector(spec, 0), x, y, seed=0, training=training)
        return max(kept)

    assert most_kept(6) < most_kept(None) / 4


def test_a_single_sample_is_left_to_no_batch_normalisation():
    spec = ModelSpec(name="tests.protocols.horizontal.test_personal:Net", inputs=(1, 8, 8), outputs=10)
    x, y = samples()
    training = LocalTraining(batch_size=10, num_epochs=1, micro_batch_size=3)  # 3, 3 and 4
    assert np.isfinite(train_locally(spec, initial_vector(spec, 0), x, y, seed=0, training=training).vector).all()


def test_bfloat16_is_what_modules_compute_in_and_nothing_else():
    spec, seen = ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10), set()
    x, y = samples()
    training = LocalTraining(batch_size=20, num_epochs=3)
    full = train_locally(spec, initial_vector(spec, 0), x, y, seed=0, training=training)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: seen.add((type(module).__name__, output.dtype))
    )
    half = train_locally(
        spec, initial_vector(spec, 0), x, y, seed=0, training=dataclasses.replace(training, precision="bf16")
    )
    hook.remove()
    assert {("Conv2d", torch.bfloat16), ("Linear", torch.bfloat16)} <= seen
    assert half.vector.dtype == np.float32
    assert not np.array_equal(half.vector, full.vector)
    assert half.loss == pytest.approx(full.loss, rel=0.05)
    scores = [evaluate_model(spec, one.vector, x, y)["accuracy"] for one in (half, full)]
    assert scores[0] == pytest.approx(scores[1], abs=0.05)

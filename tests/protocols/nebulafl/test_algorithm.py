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
from torch import nn

from protocols.nebulafl import algorithm, versioning
from protocols.nebulafl.algorithm import Sgd

ROOT = Path(__file__).parents[3]


def factory(name: str) -> nn.Module:
    if name == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    if name == "dropout":
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    running = None if name == "counted" else 0.1  # none: a plain mean over all batches counted so far
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4, momentum=running),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def samples(num_samples: int = 120) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_samples, 1, 8, 8)).astype(np.float32)
    y = x.reshape(num_samples, -1)[:, :10].argmax(axis=1)
    for array in (x, y):
        array.setflags(write=False)
    return x, y


def load(dataset: str) -> tuple[np.ndarray, np.ndarray]:
    return samples()


def start(name: str) -> np.ndarray:
    values = np.random.default_rng(1).normal(size=algorithm.num_parameters(factory, name)).astype(np.float32) * 0.1
    if name in ("cnn", "counted"):  # entries 52 to 55 are running variances
        values[52:56] = 1.0
    values.setflags(write=False)
    return values


def by_torch(name: str, vector: np.ndarray, x: np.ndarray, y: np.ndarray, seed: int, epochs: int) -> np.ndarray:
    """Train with torch's own optimiser on the same order of samples."""
    module = factory(name)
    entries = [v for v in module.state_dict().values() if v.is_floating_point()]
    for entry, part in zip(entries, torch.tensor(vector).split([e.numel() for e in entries]), strict=True):
        entry.copy_(part.view_as(entry))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    order = np.random.Generator(np.random.PCG64(seed))
    for _ in range(epochs):
        for rows in np.array_split(order.permutation(len(y)), np.arange(50, len(y), 50)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(torch.tensor(x[rows])), torch.tensor(y[rows])).backward()
            optimiser.step()
    return torch.cat([e.reshape(-1) for e in entries]).numpy()


@pytest.mark.parametrize("name", ["linear", "cnn"])
def test_training_equals_torchs_own_optimiser(name):
    x, y = samples()
    made = algorithm.local_training(factory, name, start(name), x, y, seed=3, sgd=Sgd(num_epochs=3))
    np.testing.assert_allclose(made.parameters, by_torch(name, start(name), x, y, 3, 3), rtol=1e-5, atol=1e-6)
    assert made.num_samples == 120


def test_training_learns_and_leaves_its_inputs_alone():
    x, y = samples()
    first = start("linear")
    before = first.copy()
    made = algorithm.local_training(factory, "linear", first, x, y, seed=0, sgd=Sgd(num_epochs=60))
    assert algorithm.evaluate(factory, "linear", made.parameters, x, y).accuracy > 0.9
    assert made.loss < algorithm.evaluate(factory, "linear", first, x, y).loss
    np.testing.assert_array_equal(first, before)


@pytest.mark.parametrize("name", ["linear", "cnn", "counted", "dropout"])
def test_a_task_does_not_depend_on_the_tasks_before_it(name):
    x, y = samples()
    alone = algorithm.local_training(factory, name, start(name), x, y, seed=5)
    algorithm.local_training(factory, name, alone.parameters, x[:30], y[:30], seed=6)
    algorithm.evaluate(factory, name, alone.parameters, x, y)
    again = algorithm.local_training(factory, name, start(name), x, y, seed=5)
    np.testing.assert_array_equal(alone.parameters, again.parameters)
    assert (alone.loss, alone.loss_rms) == (again.loss, again.loss_rms)
    other = algorithm.local_training(factory, name, start(name), x, y, seed=7)
    assert (other.parameters != alone.parameters).any()


def test_the_global_generator_is_left_alone():
    x, y = samples()
    state = torch.get_rng_state()
    algorithm.local_training(factory, "dropout", start("dropout"), x, y, seed=5)
    assert torch.equal(torch.get_rng_state(), state)


def test_rows_of_a_loaded_set_are_those_samples():
    x, y = samples()
    rows = np.array([5, 60, 7, 110, 2])
    by_rows = algorithm.shard_training(factory, "linear", start("linear"), load, "all", rows, seed=2)
    by_value = algorithm.local_training(factory, "linear", start("linear"), x[rows], y[rows], seed=2)
    np.testing.assert_array_equal(by_rows.parameters, by_value.parameters)


def test_two_processes_agree_to_the_bit():
    script = textwrap.dedent("""
        import hashlib, importlib.util
        spec = importlib.util.spec_from_file_location("shared", {path!r})
        shared = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(shared)
        print(shared.digest())
    """).format(path=__file__)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    runs = [
        subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {run.communicate(timeout=120)[0].strip() for run in runs}
    assert said == {digest()}


def digest() -> str:
    x, y = samples()
    made = [algorithm.local_training(factory, n, start(n), x, y, seed=11) for n in ("linear", "cnn", "dropout")]
    text = b"".join(m.parameters.tobytes() + repr((m.loss, m.loss_rms)).encode() for m in made)
    return hashlib.sha256(text).hexdigest()


def test_bad_calls():
    x, y = samples()
    with pytest.raises(ValueError, match="does not fit a model of 650"):
        algorithm.local_training(factory, "linear", np.zeros(3, np.float32), x, y, seed=0)
    with pytest.raises(ValueError, match="without samples"):
        algorithm.local_training(factory, "linear", start("linear"), x[:0], y[:0], seed=0)


def test_one_planet_that_ignores_its_stellar_model_is_sequential_sgd():
    x, y = samples()
    stellar, planet, sequential = start("linear"), start("linear"), start("linear")
    for version in range(3):
        trained = algorithm.local_training(factory, "linear", planet, x, y, seed=version).parameters
        planet = versioning.planet_update(trained, stellar, version, 0.0, decay=0.0)
        sequential = algorithm.local_training(factory, "linear", sequential, x, y, seed=version).parameters
    np.testing.assert_array_equal(planet, sequential)


def test_distillation_moves_towards_the_teacher():
    x, y = samples()
    teacher = algorithm.local_training(
        factory, "linear", start("linear"), x, y, seed=0, sgd=Sgd(num_epochs=40)
    ).parameters
    target = torch.softmax(torch.tensor(algorithm.logits(factory, "linear", teacher, x)), 1).numpy()
    first = algorithm.distil(factory, "linear", start("linear"), x, target, seed=0, sgd=Sgd(num_epochs=1))
    last = algorithm.distil(factory, "linear", start("linear"), x, target, seed=0, sgd=Sgd(num_epochs=40))
    assert last.loss < 0.5 * first.loss
    perfect = algorithm.distil(factory, "linear", teacher, x, target, seed=0, sgd=Sgd(num_epochs=1))
    np.testing.assert_allclose(perfect.parameters, teacher, atol=1e-5)


def test_evaluation_by_hand():
    weights = np.zeros(650, np.float32)
    weights[640] = 5.0  # bias of class 0
    x, y = samples()
    made = algorithm.evaluate(factory, "linear", weights, x, y)
    assert made.accuracy == pytest.approx((y == 0).mean())
    assert algorithm.logits(factory, "linear", weights, x, batch_size=50).shape == (120, 10)


vectors = arrays(np.float32, 3, elements=st.floats(-1e3, 1e3, width=32))


@given(vectors, vectors, st.floats(0, 1))
def test_blend_stays_between(first, second, share):
    made = algorithm.blend(first, second, share)
    assert (made >= np.minimum(first, second)).all()
    assert (made <= np.maximum(first, second)).all()


def test_blend_of_far_numbers_loses_neither():
    far, near = np.array([1e8], np.float32), np.array([1.0], np.float32)
    assert algorithm.blend(far, near, 1.0) == 1.0
    assert algorithm.blend(far, near, 0.99999999) >= 1.0


def test_blend_and_mean_by_hand():
    one, two = np.array([1.0, -2.0], np.float32), np.array([3.0, 2.0], np.float32)
    np.testing.assert_array_equal(algorithm.blend(one, two, 0.25), [1.5, -1.0])
    np.testing.assert_array_equal(algorithm.blend(one, two, 0.75), [2.5, 1.0])
    np.testing.assert_array_equal(algorithm.blend(one, two, 0.0), one)
    np.testing.assert_array_equal(algorithm.blend(one, two, 1.0), two)
    np.testing.assert_array_equal(algorithm.weighted_mean([one, two], [3, 1]), [1.5, -1.0])
    with pytest.raises(ValueError, match="negative"):
        algorithm.weighted_mean([one, two], [1, -1])
    with pytest.raises(ValueError, match="do not make a mean"):
        algorithm.weighted_mean([], [])

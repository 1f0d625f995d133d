import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedactors.learning import flat_training
from fedactors.learning.averaging import LocalTraining, train_locally
from fedactors.learning.flat_training import Sgd
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.learning.parameters import load_vector, to_vector

ROOT = Path(__file__).parents[2]


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


def start(name: str) -> np.ndarray:
    values = np.random.default_rng(1).normal(size=flat_training.num_parameters(factory, name)).astype(np.float32) * 0.1
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
    made = flat_training.local_training(factory, name, start(name), x, y, seed=3, sgd=Sgd(num_epochs=3))
    np.testing.assert_allclose(made.parameters, by_torch(name, start(name), x, y, 3, 3), rtol=1e-5, atol=1e-6)
    assert made.num_samples == 120


def test_training_learns_and_leaves_its_inputs_alone():
    x, y = samples()
    first = start("linear")
    before = first.copy()
    made = flat_training.local_training(factory, "linear", first, x, y, seed=0, sgd=Sgd(num_epochs=60))
    assert flat_training.evaluate(factory, "linear", made.parameters, x, y)["accuracy"] > 0.9
    assert made.loss < flat_training.evaluate(factory, "linear", first, x, y)["loss"]
    np.testing.assert_array_equal(first, before)


@pytest.mark.parametrize("name", ["linear", "cnn", "counted", "dropout"])
def test_a_task_does_not_depend_on_the_tasks_before_it(name):
    x, y = samples()
    alone = flat_training.local_training(factory, name, start(name), x, y, seed=5)
    flat_training.local_training(factory, name, alone.parameters, x[:30], y[:30], seed=6)
    flat_training.evaluate(factory, name, alone.parameters, x, y)
    again = flat_training.local_training(factory, name, start(name), x, y, seed=5)
    np.testing.assert_array_equal(alone.parameters, again.parameters)
    assert (alone.loss, alone.loss_rms) == (again.loss, again.loss_rms)
    other = flat_training.local_training(factory, name, start(name), x, y, seed=7)
    assert (other.parameters != alone.parameters).any()


def test_the_global_generator_is_left_alone():
    x, y = samples()
    state = torch.get_rng_state()
    flat_training.local_training(factory, "dropout", start("dropout"), x, y, seed=5)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
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
    made = [flat_training.local_training(factory, n, start(n), x, y, seed=11) for n in ("linear", "cnn", "dropout")]
    text = b"".join(m.parameters.tobytes() + repr((m.loss, m.loss_rms)).encode() for m in made)
    return hashlib.sha256(text).hexdigest()


def test_bad_calls():
    x, y = samples()
    with pytest.raises(ValueError, match="does not fit a model of 650"):
        flat_training.local_training(factory, "linear", np.zeros(3, np.float32), x, y, seed=0)
    with pytest.raises(ValueError, match="without samples"):
        flat_training.local_training(factory, "linear", start("linear"), x[:0], y[:0], seed=0)


def test_distillation_moves_towards_the_teacher():
    x, y = samples()
    teacher = flat_training.local_training(
        factory, "linear", start("linear"), x, y, seed=0, sgd=Sgd(num_epochs=40)
    ).parameters
    target = torch.softmax(torch.tensor(flat_training.logits(factory, "linear", teacher, x)), 1).numpy()
    first = flat_training.distil(factory, "linear", start("linear"), x, target, seed=0, sgd=Sgd(num_epochs=1))
    last = flat_training.distil(factory, "linear", start("linear"), x, target, seed=0, sgd=Sgd(num_epochs=40))
    assert last.loss < 0.5 * first.loss
    perfect = flat_training.distil(factory, "linear", teacher, x, target, seed=0, sgd=Sgd(num_epochs=1))
    np.testing.assert_allclose(perfect.parameters, teacher, atol=1e-5)


def test_evaluation_by_hand():
    weights = np.zeros(650, np.float32)
    weights[640] = 5.0  # bias of class 0
    x, y = samples()
    made = flat_training.evaluate(factory, "linear", weights, x, y)
    assert made["accuracy"] == pytest.approx((y == 0).mean())
    assert flat_training.logits(factory, "linear", weights, x, batch_size=50).shape == (120, 10)


# --- the flat vectors are those of the framework's parameters, for every model ---


def skeleton(spec: ModelSpec) -> nn.Module:
    return build_skeleton(spec, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10),
        ModelSpec(name="resnet18", inputs=(3, 8, 8), outputs=10, norm="batch"),
    ],
    ids=lambda spec: spec.name,
)
def test_a_trained_vector_loads_into_the_frameworks_model(spec):
    vector = to_vector(build_model(spec, seed=0))
    assert flat_training.num_parameters(skeleton, spec) == len(vector)
    x = np.random.default_rng(0).normal(size=(8, *spec.inputs)).astype(np.float32)
    y = np.arange(8)
    made = flat_training.local_training(skeleton, spec, vector, x, y, seed=1, sgd=Sgd(num_epochs=1, batch_size=4))
    module = build_model(spec, seed=5).eval()
    load_vector(module, made.parameters)
    with torch.no_grad():
        np.testing.assert_allclose(
            module(torch.tensor(x)).numpy(),
            flat_training.logits(skeleton, spec, made.parameters, x),
            rtol=1e-4,
            atol=1e-5,
        )
    assert (made.parameters != vector).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "batch_size", "num_epochs", "tolerance"),
    [
        (ModelSpec(name="linear", inputs=(12,), outputs=5), 4, 2, 1e-5),
        (ModelSpec(name="cnn8", inputs=(1, 8, 8), outputs=10), 4, 2, 1e-5),
        (ModelSpec(name="cnn28", inputs=(1, 8, 8), outputs=10), 4, 2, 1e-5),
        (ModelSpec(name="resnet18", inputs=(3, 8, 8), outputs=10, norm="group"), 4, 1, 1e-4),
        # one step: batch statistics over a few samples of one pixel multiply the rounding of another summation order
        (ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=10, norm="batch"), 9, 1, 1e-3),
    ],
    ids=lambda value: f"{value.name}-{value.norm}" if isinstance(value, ModelSpec) else None,
)
def test_the_fast_training_is_the_plain_one(spec, batch_size, num_epochs, tolerance):
    vector = to_vector(build_model(spec, seed=0))
    x = np.random.default_rng(0).normal(size=(9, *spec.inputs)).astype(np.float32)
    y = np.arange(9) % 5
    training = LocalTraining(batch_size=batch_size, num_epochs=num_epochs)
    plain = train_locally(spec, vector, x, y, seed=4, training=training)
    fast = flat_training.local_training(skeleton, spec, vector, x, y, seed=4, sgd=Sgd(num_epochs, batch_size))
    moved = np.linalg.norm(plain.vector - vector)
    assert np.linalg.norm(fast.parameters - plain.vector) < tolerance * moved
    assert fast.loss == pytest.approx(plain.loss, rel=1e-3 if tolerance > 1e-5 else 1e-5)

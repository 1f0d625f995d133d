"""What of a user's model travels: trained parameters once, statistics; and what stays at home bars no method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import fedactors
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, batches, evaluate_model, train_locally
from fedactors.learning.many_clients import train_clients, why_not_together
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.learning.network import base_digest, initial_vector, shared_entries, statistics_mask, to_vector
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.learning.user_models import base_of, check_base, check_model

HERE = "tests.learning.user_networks"
SMALL = {"num_rounds": 2, "num_clients": 3, "num_training": 90}
GOOD = 64 * 16 + 16 + 16 * 10 + 10


def spec(name):
    return ModelSpec(name=f"{HERE}:{name}", inputs=(1, 8, 8), outputs=10)


def rows(count=20):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, count)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("good", GOOD),
        ("unused", GOOD + 6),
        ("rotated", GOOD),
        ("declared", GOOD + 1),
        ("tied", 64 * 64 + 650),
        ("frozen_trunk", 330),
        ("normalised", GOOD + 4 * 64),
    ],
)
def test_what_travels(name, values):
    check_model(spec(name))
    assert initial_vector(spec(name), 0).size == values


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "scaffold", "fedavgm", "fedadam"])
@pytest.mark.parametrize("name", ["unused", "rotated", "tied", "frozen_trunk", "normalised", "declared"])
def test_each_method_takes_it(name, algorithm):
    run = fedactors.simulate("horizontal", algorithm=algorithm, model=f"{HERE}:{name}", **SMALL)
    assert run.summary.extra["parameters"] == initial_vector(spec(name), 0).size
    assert np.isfinite(run.metrics["test/loss"])


def test_what_is_frozen_stays_as_it_is_and_normalises_by_what_it_has():
    x, y = rows()
    start = initial_vector(spec("frozen_trunk"), 3)
    trained = train_locally(spec("frozen_trunk"), start, x, y, seed=0, training=LocalTraining())
    module: Any = build_model(spec("frozen_trunk"), 3)
    by_torch = torch.optim.SGD(module.head.parameters(), lr=0.01, momentum=0.9)
    module.train()
    module.trunk[2].eval()
    base = build_skeleton(spec("frozen_trunk")).trunk.state_dict()
    module.trunk.load_state_dict(base)
    for _ in range(5):
        by_torch.zero_grad()
        torch.nn.functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y)).backward()
        by_torch.step()
    expected = torch.cat([value.detach().reshape(-1) for value in module.head.parameters()]).numpy()
    np.testing.assert_allclose(trained.vector, expected, rtol=1e-5, atol=1e-6)


def test_running_statistics_are_averaged_and_parameters_follow_the_method():
    mask = statistics_mask(spec("normalised"))
    assert mask.sum() == 128
    entries = shared_entries(build_skeleton(spec("normalised")))
    assert {"1.running_mean", "1.running_var"} <= set(entries)
    runs = [
        fedactors.simulate("horizontal", algorithm=one, model=f"{HERE}:normalised", **{**SMALL, "num_rounds": 1})
        for one in ("fedavg", "fedadam")
    ]
    vectors = [run.folder.load_checkpoint(None).actors["server"] for run in runs]
    assert vectors[0] != vectors[1]


def test_batched_training_of_frozen_and_unused_parameters_equals_one_after_the_other():
    x, y = rows(24)
    for name in ("frozen", "unused", "rotated", "tied"):
        assert not why_not_together(spec(name)), name
        starts = [initial_vector(spec(name), 0)] * 2
        clients = [(x[:12], y[:12]), (x[12:], y[12:])]
        rule = OptimizerSpec(learning_rate=0.01, momentum=0.9, weight_decay=0.1)
        asked = {"seeds": [1, 2], "training": LocalTraining(batch_size=5, optimizer=rule)}
        both = [train_clients(spec(name), starts, clients, together=one, **asked) for one in (True, False)]
        for one, other in zip(*both, strict=True):
            np.testing.assert_allclose(one.vector, other.vector, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_head_that_gets_no_gradient_does_not_decay_as_in_torch(optimizer):
    x, y = rows(20)
    start, module, order = initial_vector(spec("unused"), 0), build_model(spec("unused"), 0), np.random.default_rng(3)
    rule = OptimizerSpec(name=optimizer, learning_rate=0.05, weight_decay=0.5)
    training = LocalTraining(optimizer=rule, batch_size=10, num_epochs=2)
    found = train_locally(spec("unused"), start, x, y, seed=3, training=training).vector
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[optimizer]
    by_torch = make(module.train().parameters(), lr=0.05, weight_decay=0.5)
    for index in [*batches(20, 10, order), *batches(20, 10, order)]:
        by_torch.zero_grad()
        torch.nn.functional.cross_entropy(module(torch.from_numpy(x[index])), torch.from_numpy(y[index])).backward()
        by_torch.step()
    np.testing.assert_allclose(found, to_vector(module), atol=1e-5)
    assert (found[GOOD:] == start[GOOD:]).all()
    together = train_clients(spec("unused"), [start] * 2, [(x, y)] * 2, seeds=[3, 3], training=training, together=True)
    assert all((one.vector[GOOD:] == start[GOOD:]).all() for one in together)


def test_another_base_is_refused_with_whose_it_is():
    mine = base_of(spec("frozen_trunk"))
    assert mine == base_digest(build_model(spec("frozen_trunk"), 0))
    assert not base_of(spec("good"))
    check_base(spec("frozen_trunk"), mine, "client-1")
    with pytest.raises(BadInput, match="other frozen parameters or constants here than client-1"):
        check_base(spec("frozen_trunk"), "0" * 32, "client-1")


@pytest.mark.parametrize("name", ["dropping", "dropping_by_function", "dropping_by_python", "recurrent"])
def test_all_that_a_model_draws_follows_the_seed(name):
    x, y = rows()
    start = initial_vector(spec(name), 0)

    def trained(seed):
        torch.rand(3), np.random.rand(5)  # what others draw in between
        return train_locally(spec(name), start, x, y, seed=seed, training=LocalTraining()).vector

    assert np.array_equal(trained(1), trained(1))
    assert not np.array_equal(trained(1), trained(2))
    assert "draws at random" in why_not_together(spec(name))
    found = [evaluate_model(spec(name), start, x, y) for _ in range(2)]
    assert found[0] == found[1]


def test_what_a_model_draws_leaves_the_generators_as_they_were():
    import random

    x, y = rows()
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    start = initial_vector(spec("dropping_by_python"), 0)
    train_locally(spec("dropping_by_python"), start, x, y, seed=1, training=LocalTraining())
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), str(np.random.get_state()))

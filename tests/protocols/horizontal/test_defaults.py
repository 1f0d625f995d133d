"""What a run of horizontal takes that sets nothing: model and steps by the rows, targets by sums, own models beside."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest
import torch

import fedactors
from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.learning.local_training import LocalTraining, model_outputs, train_locally
from fedactors.learning.many_clients import train_clients
from fedactors.learning.models import ModelSpec, nonlinear_weights
from fedactors.learning.network import initial_vector
from fedactors.learning.optimizers import OptimizerSpec
from fedactors.protocols.horizontal.algorithm import PLAIN, local_steps, local_training
from fedactors.protocols.horizontal.config import HorizontalConfig, enough_decay, informative_rows
from fedactors.protocols.horizontal.data import model_spec
from fedactors.protocols.horizontal.messages import Baselines, sent
from fedactors.protocols.horizontal.standardisation import column_sums, scale_of

TABLE, IMAGE = (7,), (1, 8, 8)
NOISE = {"client_clip_norm": 1.0, "client_noise_multiplier": 1.0}
SKIP = ModelSpec(name="skip-mlp", inputs=(4,), outputs=2, hidden_size=8, layers=2, float64=True)
NUMBER = dataclasses.replace(SKIP, outputs=1)


def tables(task="regression", rows=240, split=False):
    """Return three clients' tables of 2, 3 and 5 tenths of the rows, and a test table."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 4)) * [1.0, 100.0, 0.01, 5.0]
    score = x[:, 0] + x[:, 1] / 100 + 0.3 * rng.normal(size=rows)
    y = 700.0 + 40.0 * score if task == "regression" else (score > 0).astype(np.int64)
    made = [pa.table({**{f"x{i}": part[0][:, i] for i in range(4)}, "y": part[1]}) for part in _cut(x, y)]
    if split:
        marks = [np.where(np.arange(len(one)) % 4 == 0, "validation", "train") for one in made[:3]]
        made[:3] = [one.append_column("part", pa.array(mark)) for one, mark in zip(made, marks, strict=False)]
    clients = dict(zip(("north", "south", "west"), made[:3], strict=True))
    more = {"parties": {key: {"split": "part"} for key in clients}} if split else {}
    return fedactors.horizontal(clients, label="y", test=made[3], task=task, **more), x, y


def _cut(x, y):
    bounds = [len(y) * share // 10 for share in (0, 2, 4, 7, 10)]
    return [(x[a:b], y[a:b]) for a, b in itertools.pairwise(bounds)]


def test_what_follows_from_the_shape_and_what_does_not():
    usual = HorizontalConfig()
    assert model_spec(usual, inputs=TABLE, task="binary", num_classes=2).name == "skip-mlp"
    assert model_spec(usual, inputs=TABLE, task="binary", num_classes=2).layers == 2
    assert model_spec(usual, inputs=IMAGE, task="multiclass", num_classes=10).name == "cnn8"
    table, image = usual.at(TABLE), usual.at(IMAGE)
    assert (table.optimizer, table.step_size, table.schedule) == ("adam", 0.01, "cosine")
    assert (image.optimizer, image.step_size, image.schedule) == ("sgd", 0.05, "constant")
    private = build(HorizontalConfig, NOISE)
    assert (private.at(TABLE).optimizer, private.at(TABLE).model) == ("sgd", "linear")
    assert build(HorizontalConfig, {"algorithm": "scaffold"}).at(TABLE).optimizer == "sgd"
    with pytest.raises(BadInput, match="scaffold is not allowed with"):
        build(HorizontalConfig, {"algorithm": "scaffold", "optimizer": "adam"})


def test_what_is_set_wins():
    given = {"model": "mlp", "layers": 4, "optimizer": "sgd", "learning_rate": 0.3, "schedule": "constant"}
    config = build(HorizontalConfig, {**given, "batch_size": 7, "local_epochs": 3, "nonlinear_decay": 0.5})
    resolved = config.at(TABLE)
    assert all(getattr(resolved, name) == value for name, value in given.items())
    steps = local_steps(config, "binary", 2, TABLE, np.arange(100) % 2, 4)
    assert dataclasses.astuple(steps) == (7, 3, 0.5, False)
    assert build(HorizontalConfig, {"momentum": 0.9}).at(TABLE).optimizer == "sgd"


def test_the_settings_of_fedavgs_paper_are_reachable():
    words = HorizontalConfig.__doc__.split("in its paper: ")[1].rstrip(". \n").split()
    config = build(HorizontalConfig, dict(word.split("=") for word in words))
    training = local_training(config, "binary", 5, local_steps(config, "binary", 2, TABLE, np.arange(9) % 2, 3), TABLE)
    assert (training.batch_size, training.num_epochs, training.decay) == (32, 1, 0.0)
    assert training.optimizer == OptimizerSpec(name="sgd", learning_rate=0.05)
    assert model_spec(config, inputs=TABLE, task="binary", num_classes=2).name == "linear"
    assert not config.measures_columns


@pytest.mark.parametrize(
    ("rows", "size", "passes"), [(8, 16, 50), (60, 16, 13), (500, 64, 7), (5_000, 256, 3), (100_000, 256, 1)]
)
def test_steps_follow_from_a_clients_rows(rows, size, passes):
    steps = local_steps(HorizontalConfig(), "regression", 1, TABLE, np.zeros(rows), 4)
    assert (steps.batch_size, steps.num_epochs) == (size, passes)
    assert passes * -(-rows // size) >= 50
    assert local_steps(HorizontalConfig(), "regression", 1, IMAGE, np.zeros(rows), 4) == PLAIN


def test_rare_classes_are_worth_fewer_rows():
    assert informative_rows("binary", 100, [50, 50], 2) == pytest.approx(100)
    assert informative_rows("binary", 5000, [4900, 100], 2) == pytest.approx(0.0784 * 5000)
    assert informative_rows("multiclass", 90, [30, 30, 30], 3) == pytest.approx(90)
    assert informative_rows("binary", 100, [100], 2) == 0.0
    assert informative_rows("regression", 100, [], 1) == 100
    assert enough_decay("binary", 0.0) == 10.0
    assert enough_decay("binary", 2000) == pytest.approx(0.5)


@pytest.mark.parametrize("together", [False, True])
def test_decay_shrinks_the_nonlinear_weights_alone(together):
    start = initial_vector(SKIP, 0) + 0.1
    rows = [(np.zeros((size, 4)), np.zeros(size, np.int64)) for size in (6, 9)]
    still = LocalTraining(optimizer=OptimizerSpec(learning_rate=1e-9), batch_size=16, num_epochs=1)
    trainings = [dataclasses.replace(still, decay=2e8), dataclasses.replace(still, decay=0.0)]
    first, second = train_clients(SKIP, [start] * 2, rows, seeds=(1, 2), training=trainings, together=together)
    shrunk = np.where(nonlinear_weights(SKIP).numpy(), 0.8 * start, start)
    np.testing.assert_allclose(first.vector, shrunk, atol=1e-7)
    np.testing.assert_allclose(second.vector, start, atol=1e-7)


@pytest.mark.parametrize("together", [False, True])
def test_decay_by_loss_takes_the_share_of_the_variance_that_is_left(together):
    start = initial_vector(NUMBER, 0) + 0.1
    rows = [(np.zeros((size, 4)), np.full(size, target)) for size, target in ((6, 0.5), (9, 30.0))]
    output = model_outputs(NUMBER, start, np.zeros((1, 4))).item()
    still = LocalTraining(optimizer=OptimizerSpec(learning_rate=1e-9), batch_size=16, num_epochs=1, task="regression")
    how = [dataclasses.replace(still, decay=2e8, decays_by_loss=True)] * 2
    made = train_clients(NUMBER, [start] * 2, rows, seeds=(1, 2), training=how, together=together)
    for one, loss in zip(made, ((output - 0.5) ** 2, 1.0), strict=True):  # of the second the loss is above 1
        shrunk = np.where(nonlinear_weights(NUMBER).numpy(), (1 - 0.2 * loss) * start, start)
        np.testing.assert_allclose(one.vector, shrunk, atol=1e-6)


def test_decay_by_loss_follows_the_first_pass_together_as_one_after_the_other():
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(size, 4)), 0.5 * rng.normal(size=size)) for size in (11, 30, 52)]
    adam = OptimizerSpec(name="adam", learning_rate=0.05)
    trainings = [
        LocalTraining(
            optimizer=adam, batch_size=size, num_epochs=passes, task="regression", decay=5.0, decays_by_loss=True
        )
        for size, passes in ((4, 3), (8, 4), (16, 2))
    ]
    start = initial_vector(NUMBER, 0)
    made = train_clients(NUMBER, [start] * 3, rows, seeds=(1, 2, 3), training=trainings)
    for one, held, seed, how in zip(made, rows, (1, 2, 3), trainings, strict=True):
        alone = train_locally(NUMBER, start, *held, seed=seed, training=how)
        np.testing.assert_allclose(one.vector, alone.vector, atol=1e-12)
        constant = train_locally(
            NUMBER, start, *held, seed=seed, training=dataclasses.replace(how, decays_by_loss=False)
        )
        assert np.abs(alone.vector - constant.vector).max() > 1e-3


def test_standardised_regressions_decay_by_their_loss():
    steps = local_steps(HorizontalConfig(), "regression", 1, TABLE, np.zeros(500), 4)
    assert (steps.decay, steps.decays_by_loss) == (pytest.approx(2.25), True)
    assert local_training(HorizontalConfig(), "regression", 1, steps, TABLE).decays_by_loss
    raw = local_steps(build(HorizontalConfig, {"standardisation": "none"}), "regression", 1, TABLE, np.zeros(500), 4)
    assert (raw.decay, raw.decays_by_loss) == (pytest.approx(0.75), False)
    for config, task in (
        (build(HorizontalConfig, {"nonlinear_decay": 0.5}), "regression"),
        (HorizontalConfig(), "binary"),
    ):
        assert not local_steps(config, task, 2, TABLE, np.arange(500) % 2, 4).decays_by_loss


def test_clients_with_steps_of_their_own_train_together_as_one_after_the_other():
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(size, 4)), rng.integers(0, 2, size)) for size in (11, 30, 52)]
    adam = OptimizerSpec(name="adam", learning_rate=0.01)
    shapes = ((4, 3, 1.0), (8, 1, 5.0), (16, 2, 0.0))
    trainings = [
        LocalTraining(optimizer=adam, batch_size=size, num_epochs=passes, decay=decay) for size, passes, decay in shapes
    ]
    start = initial_vector(SKIP, 0)
    made = train_clients(SKIP, [start] * 3, rows, seeds=(1, 2, 3), training=trainings)
    for one, (x, y), seed, how in zip(made, rows, (1, 2, 3), trainings, strict=True):
        alone = train_locally(SKIP, start, x, y, seed=seed, training=how)
        np.testing.assert_allclose(one.vector, alone.vector, atol=1e-12)
        assert (one.num_steps, one.loss) == (alone.num_steps, pytest.approx(alone.loss))


def test_sums_of_targets_are_the_last_column():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(50, 3)), rng.normal(900, 30, 50)
    scaled = np.array([True, False, True])
    means = column_sums([x[:20], x[20:]], scaled, np.zeros(0), [y[:20], y[20:]])[1:] / 50
    total = column_sums([x[:20], x[20:]], scaled, means, [y[:20], y[20:]])
    mean, deviation = scale_of(total, means, np.append(scaled, True))
    np.testing.assert_allclose((mean[3], deviation[3]), (y.mean(), y.std()))
    np.testing.assert_allclose((mean[2], deviation[2]), (x[:, 2].mean(), x[:, 2].std()))


@pytest.mark.parametrize("is_secure", [False, True])
def test_a_regression_is_as_good_as_a_line_wherever_its_targets_lie(is_secure, tmp_path):
    data, x, y = tables()
    run = fedactors.simulate("horizontal", data, secure_aggregation=is_secure, out=tmp_path, num_rounds=10)
    train, test = slice(0, 168), slice(168, None)
    design = np.column_stack([x, np.ones(len(x))])
    least, *_ = np.linalg.lstsq(design[train], y[train], rcond=None)
    best = np.sqrt(np.mean((design[test] @ least - y[test]) ** 2))
    assert run.metrics["test/rmse"] < 1.15 * best
    part = fedactors.load_part(run.export(party="server")["server"][0].parent)
    assert part.label_mean == pytest.approx(y[train].mean())
    assert part.label_deviation == pytest.approx(y[train].std())


def test_each_clients_own_model_stands_beside_the_joint_one():
    data, *_ = tables("binary", rows=600, split=True)
    run = fedactors.simulate("horizontal", data, num_rounds=3)
    names = {name for name in run.metrics if name.endswith("/local_auc")}
    assert names == {f"validation/{client}/local_auc" for client in ("north", "south", "west")}
    lines = [line for line in run.summary.extra["notes"] if "with the others' rows" in line]
    assert len(lines) == 3
    assert f"{run.metrics['validation/north/local_auc']:.3f} with its own alone" in lines[0]
    assert "Baselines" in set(run.ledger.to_pandas()["type"])


def test_nothing_is_measured_without_rows_of_ones_own_or_where_it_must_not_be_told():
    data, *_ = tables("binary")
    run = fedactors.simulate("horizontal", data, num_rounds=1)
    assert not [name for name in run.metrics if "local" in name]
    assert Baselines in sent(HorizontalConfig())
    for words in ({"secure_aggregation": True}, NOISE, {"local_baseline": False}):
        assert Baselines not in sent(build(HorizontalConfig, words))


def test_the_linear_part_starts_alone():
    spec = model_spec(HorizontalConfig(), inputs=TABLE, task="binary", num_classes=2)
    assert not torch.from_numpy(initial_vector(spec, 0))[nonlinear_weights(spec)][-64:].any()

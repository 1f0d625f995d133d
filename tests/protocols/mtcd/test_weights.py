"""Rows that do not count alike in MTCD: against closed forms, automatic differentiation, and copies of rows."""

import numpy as np
import pytest
import torch

from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput
from fedactors.learning.models import ModelSpec
from fedactors.protocols.mtcd import algorithm as al
from fedactors.protocols.mtcd import networks
from fedactors.protocols.mtcd.data import load_data, weights_of
from fedactors.protocols.mtcd.messages import Labels
from fedactors.protocols.mtcd.objective import Ridge, SparseLogistic
from fedactors.protocols.mtcd.run import run
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.protocols.mtcd.running import Kept, config_of

PARTIES = ("bank", "shop", "post")
RUN = "num_clients=3 relaxed_protocol=true topology=complete num_hops=3"
NUM_ROWS, WIDTH = 48, 2
ALPHA = 4.0


@pytest.fixture
def weighted_data(tmp_path):
    """Write files of numbers that single precision has exactly; return the description, features, labels, weights."""
    rng = np.random.default_rng(5)
    x_NF = np.round(rng.normal(size=(NUM_ROWS, 3 * WIDTH)) * 64) / 64
    labels_N = np.where(x_NF.sum(axis=1) + rng.normal(size=NUM_ROWS) > 0, 1.0, -1.0)
    times_N = rng.integers(0, 5, NUM_ROWS) / 2
    is_train_N = np.arange(NUM_ROWS) % 4 > 0
    text = '[task]\ntype = "binary"\nclass_weights = { yes = 3.0 }\n'
    for index, party in enumerate(PARTIES):
        names = [f"{party}_{column}" for column in range(WIDTH)]
        columns = x_NF[:, index * WIDTH :][:, :WIDTH].tolist()
        if index == 0:
            tail = [[t, "yes" if y > 0 else "no", "train" if kept else "test"]
                    for t, y, kept in zip(times_N, labels_N, is_train_N, strict=True)]  # fmt: skip
            columns = [row + rest for row, rest in zip(columns, tail, strict=True)]
        header = [*names, *(["times", "bad", "part"] if index == 0 else [])]
        lines = [",".join(map(str, row)) for row in [header, *columns]]
        (tmp_path / f"{party}.csv").write_text("\n".join(lines) + "\n")
        text += f'[parties.{party}]\npath = "{party}.csv"\n'
        text += 'label = "bad"\nweight = "times"\nsplit = "part"\n' if index == 0 else ""
        text += f"[parties.{party}.columns]\n" + "".join(f'{name} = {{ scaling = "none" }}\n' for name in names)
    (tmp_path / "parties.toml").write_text(text)
    weights_N = times_N * np.where(labels_N > 0, 3.0, 1.0)
    return tmp_path / "parties.toml", x_NF[is_train_N], labels_N[is_train_N], weights_N[is_train_N]


def trained(path, words, steps=2):
    config = config_of(f"{RUN} num_local_steps={steps} {words}")
    kept = Kept()
    runtime = SimulatedRuntime(seed=1, recorder=kept, reproducible_noise=True)
    data = load_data(config, str(path), 1)
    runtime.execute(lambda: run(config, data, runtime))
    states = kept.checkpoints[-1][1].actors
    return np.concatenate([actor_state(states, party)["theta"] for party in PARTIES]), kept.rounds[-1][1]


def closed_form(x_NF, y_N, weights_N):
    gram = x_NF.T @ (weights_N[:, None] * x_NF) + ALPHA * np.eye(x_NF.shape[1])
    return np.linalg.solve(gram, x_NF.T @ (weights_N * y_N))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "num_tokens=1 local_arithmetic=gram",
        "num_tokens=1 local_arithmetic=data backtracking=true",
        "algorithm=stcd",
        "algorithm=svfl",
        "num_tokens=1 secure_aggregation=true learning_rate=0.004",
    ],
)
def test_a_run_ends_where_the_weighted_ridge_regression_has_its_minimum(weighted_data, words):
    path, x_NF, y_N, weights_N = weighted_data
    exact = closed_form(x_NF, y_N, weights_N)
    rounds = 400 if "stcd" in words else 150
    found, last = trained(path, f"problem=ridge ridge_penalty={ALPHA} num_rounds={rounds} {words}")
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-3 if "secure" in words else 1e-10)
    assert np.abs(exact - closed_form(x_NF, y_N, np.ones(len(y_N)))).max() > 1e-2  # else it would show nothing
    value = 0.5 * np.sum(weights_N * (x_NF @ exact - y_N) ** 2) + 0.5 * ALPHA * exact @ exact
    assert last["training/objective"] == pytest.approx(value, abs=1e-3 if "secure" in words else 1e-9)


@pytest.mark.slow
def test_a_run_ends_where_the_weighted_logistic_loss_and_its_penalty_balance(weighted_data):
    path, x_NF, y_N, weights_N = weighted_data
    beta = 0.02
    theta, _ = trained(path, f"problem=sparse-logistic l1_penalty={beta} num_rounds=100 num_tokens=1", steps=50)
    pulls = -y_N * weights_N / (1 + np.exp(y_N * (x_NF @ theta))) / len(y_N)
    gradient = x_NF.T @ pulls
    moving = theta != 0
    assert moving.any()
    np.testing.assert_allclose(gradient[moving], -beta * np.sign(theta[moving]), atol=1e-10)
    assert (np.abs(gradient[~moving]) <= beta + 1e-10).all()


@pytest.mark.parametrize("problem", [Ridge(0.5), SparseLogistic(0.0)], ids=["ridge", "logistic"])
@pytest.mark.parametrize("rows", [None, np.array([0, 3, 4, 11])])
def test_a_visit_is_gradient_descent_on_the_weighted_loss(problem, rows):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(12, 3)), np.sign(rng.normal(size=12))
    weights, theta, others = rng.random(12) * 3, rng.normal(size=3), rng.normal(size=12)
    some = np.arange(12) if rows is None else rows
    options = al.VisitOptions(step=0.05, num_local_steps=3, num_samples=12)
    z = x[some] @ theta + others[some]
    found, _, new_z = al.visit_block(problem, x, None, y, theta, z, rows, options, weights)
    point = torch.tensor(theta, requires_grad=True)
    for _ in range(3):
        images = torch.from_numpy(x[some]) @ point + torch.from_numpy(others[some])
        target, times = torch.from_numpy(y[some]), torch.from_numpy(weights[some])
        if isinstance(problem, Ridge):
            loss = 0.5 * (times * (images - target) ** 2).sum() * 12 / len(some) + 0.25 * point @ point
        else:
            loss = (times * torch.nn.functional.softplus(-target * images)).mean()
        point = (point - 0.05 * torch.autograd.grad(loss, point)[0]).detach().requires_grad_()
    np.testing.assert_allclose(found, point.detach().numpy(), atol=1e-10)
    np.testing.assert_allclose(new_z, x[some] @ found + others[some], atol=1e-10)


def test_steps_on_the_gram_matrix_are_those_on_the_data():
    rng = np.random.default_rng(3)
    x, y, weights, theta = rng.normal(size=(20, 4)), rng.normal(size=20), rng.random(20) * 2, rng.normal(size=4)
    options = al.VisitOptions(step=0.01, num_local_steps=5, num_samples=20)
    scaled = x * np.sqrt(weights)[:, None]
    on_data = al.visit_block(Ridge(0.3), x, None, y, theta, x @ theta, None, options, weights)
    on_gram = al.visit_block(Ridge(0.3), x, scaled.T @ scaled, y, theta, x @ theta, None, options, weights)
    for one, other in zip(on_data, on_gram, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


def test_of_networks_a_weight_is_so_many_copies_of_a_row():
    """Three rows that count twice, once and not at all, of mean weight 1, are three rows with copies."""
    rng = np.random.default_rng(4)
    bottom = ModelSpec(name="mlp", inputs=(3,), outputs=2, hidden_size=4, layers=2)
    fusion = ModelSpec(name="linear", inputs=(2,), outputs=3)
    theta, theta_0 = (networks.initial(spec, rng).astype(np.float64) for spec in (bottom, fusion))
    x, others, labels = rng.normal(size=(3, 3)), rng.normal(size=(3, 2)), np.array([0, 1, 2])
    weights, copies = np.array([2.0, 1.0, 0.0]), np.array([0, 0, 1])
    local_slices = (slice(None),)

    def visited(rows, weights_N):
        z = networks.represent(bottom, theta, x[rows], None) + others[rows]
        given = (bottom, fusion, theta, theta_0, x[rows], labels[rows], z, None, local_slices, 0.3, 3, True, "cpu")
        moved = networks.visit(*given, weights_N)
        head = networks.fusion_steps(fusion, theta_0, z, labels[rows], 0.3, 3, "cpu", weights_N)
        return moved[0], moved[1], head, networks.mean_loss(fusion, theta_0, z, labels[rows], weights_N)

    weighted, copied = visited(np.arange(3), weights), visited(copies, None)
    for one, other in zip(weighted, copied, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)
    assert np.abs(weighted[0] - visited(np.arange(3), None)[0]).max() > 1e-3


@pytest.mark.slow
def test_a_network_is_trained_by_them_without_a_server_and_with_one(weighted_data):
    path = weighted_data[0]
    words = "problem=network network=mlp hidden_size=4 representation_size=2 num_rounds=2 learning_rate=0.1"
    for algorithm in ("num_tokens=1", "algorithm=stcd"):
        weighted = trained(path, f"{words} {algorithm}")[0]
        alike = path.with_name("alike.toml")
        alike.write_text(path.read_text().replace("class_weights = { yes = 3.0 }\n", ""))
        assert np.abs(weighted - trained(alike, f"{words} {algorithm}")[0]).max() > 1e-4


def test_what_cannot_be_weighted_is_one_line(weighted_data):
    with pytest.raises(BadInput, match=r"parties.bank.weight: 'times' is not allowed with algorithm=dcpa"):
        load_data(config_of(f"{RUN} algorithm=dcpa problem=ridge"), str(weighted_data[0]), 1)


@pytest.mark.parametrize("weights", [np.ones(2), np.array([1.0, np.nan, 1.0]), np.array([1.0, -1.0, 1.0]), np.zeros(3)])
def test_what_the_label_party_tells_is_checked(weights):
    with pytest.raises(BadInput, match="weights: "):
        weights_of(Labels(np.ones(3), np.ones(1), weights), np.float64)

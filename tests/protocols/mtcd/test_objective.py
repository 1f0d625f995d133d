"""Objectives, step sizes, exact minima and the checks of data."""

import numpy as np
import pytest
from scipy.optimize import minimize

from fedactors.errors import BadInput
from fedactors.protocols.mtcd import objective as ob
from fedactors.protocols.mtcd.algorithm import safe_step
from tests.protocols.mtcd.by_hand import synthetic_regression
from tests.protocols.mtcd.running import config_of


def _data(num_samples=60, num_features=20, seed=0):
    x, y = synthetic_regression(np.random.default_rng(seed), num_samples, num_features)
    return x, y


@pytest.mark.parametrize("problem", [ob.Ridge(3.0), ob.SparseLogistic(0.0)])
def test_slope_is_the_derivative_of_the_loss(problem):
    y = np.sign(_data()[1])
    z = np.random.default_rng(1).standard_normal(60)
    slope = problem.slope(z, y, 60, np.empty(60))
    for i in (0, 7, 59):
        step = np.zeros(60)
        step[i] = 1e-6
        numeric = (problem.loss(z + step, y, 60) - problem.loss(z - step, y, 60)) / 2e-6
        assert slope[i] == pytest.approx(numeric, abs=1e-6)


@pytest.mark.parametrize("problem", [ob.Ridge(3.0), ob.SparseLogistic(0.0)])
def test_mini_batch_slope_is_unbiased(problem):
    """Over all batches of 2 of 4 rows, the scattered slopes average to the full slope."""
    y, z = np.array([1.0, -1.0, 1.0, -1.0]), np.array([0.3, 0.1, -2.0, 1.0])
    total, count = np.zeros(4), 0
    for a in range(4):
        for b in range(a + 1, 4):
            rows = [a, b]
            total[rows] += problem.slope(z[rows], y[rows], 4, np.empty(2))
            count += 1
    np.testing.assert_allclose(total / count, problem.slope(z, y, 4, np.empty(4)), rtol=1e-12)


def test_hand_computed_values():
    ridge = ob.Ridge(2.0)
    x, y, theta = np.array([[1.0], [2.0]]), np.array([1.0, 0.0]), np.array([3.0])
    assert ob.objective(ridge, [x], y, [theta]) == 0.5 * (2.0**2 + 6.0**2) + 0.5 * 2.0 * 9.0
    logistic = ob.SparseLogistic(0.5)
    assert ob.objective(logistic, [x], np.array([1.0, -1.0]), [np.zeros(1)]) == pytest.approx(np.log(2.0))
    shrunk = np.array([0.3, -0.04, -1.0])
    logistic.shrink(shrunk, 0.1)
    np.testing.assert_allclose(shrunk, [0.25, 0.0, -0.95])
    assert ob.relative_gap(3.0, 2.0) == 0.5


def test_power_iteration_finds_the_spectral_norm_of_one_block_and_of_all():
    x, _ = _data()
    blocks = np.split(x, 4, axis=1)
    assert ob.largest_gram_eigenvalue(blocks) == pytest.approx(np.linalg.norm(x, 2) ** 2, rel=1e-6)
    assert ob.largest_gram_eigenvalue(blocks[:1]) == pytest.approx(np.linalg.norm(blocks[0], 2) ** 2, rel=1e-6)
    assert ob.largest_gram_eigenvalue([np.zeros((3, 2))]) == 0.0


def test_the_safe_step_is_one_over_l_for_one_step_and_never_above_the_block_step():
    x, _ = _data()
    blocks, ridge = np.split(x, 4, axis=1), ob.Ridge(10.0)
    block, joint = max(ob.smoothness(ridge, [b]) for b in blocks), ob.smoothness(ridge, [x])
    words = "algorithm=svfl num_clients=4 num_local_steps"
    assert safe_step(config_of(f"{words}=1"), block, joint, 1) == 1.0 / joint < 1.0 / block
    assert safe_step(config_of(f"{words}=20"), block, joint, 1) == pytest.approx(1.0 / joint / 20)
    one = config_of("num_clients=4 num_tokens=1 num_hops=0 num_local_steps=1")
    assert safe_step(one, block, joint, 4) == 1.0 / block


@pytest.mark.parametrize(("num_samples", "num_features"), [(60, 20), (20, 60)])
def test_ridge_minimum_has_zero_gradient(num_samples, num_features):
    x, y = _data(num_samples, num_features)
    theta, optimum = ob.solve(ob.Ridge(10.0), x, y)
    gradient = x.T @ (x @ theta - y) + 10.0 * theta
    assert np.abs(gradient).max() < 1e-10
    assert optimum == ob.objective(ob.Ridge(10.0), [x], y, [theta])


@pytest.mark.parametrize(("num_samples", "num_features", "beta"), [(100, 60, 0.02), (80, 200, 0.03), (100, 20, 1e-3)])
def test_sparse_logistic_minimum_is_certified_and_meets_the_optimality_conditions(num_samples, num_features, beta):
    x, y = _data(num_samples, num_features)
    y = np.sign(y)
    theta, optimum = ob.solve(ob.SparseLogistic(beta), x, y)
    assert ob.sparse_logistic_gap(x, y, beta, theta) + 1e-15 >= 0
    assert ob.sparse_logistic_gap(x, y, beta, theta) <= 1e-12 * optimum
    gradient = x.T @ (-y / (1.0 + np.exp(y * (x @ theta)))) / num_samples
    assert np.abs(gradient).max() <= beta * (1 + 1e-6)
    np.testing.assert_allclose(gradient[theta != 0], -beta * np.sign(theta[theta != 0]), atol=1e-8)


def test_sparse_logistic_minimum_agrees_with_another_solver():
    x, y = _data(80, 10)
    y, beta, problem = np.sign(y), 0.02, ob.SparseLogistic(0.02)
    _, optimum = ob.solve(problem, x, y)

    def split_value(parts):
        theta = parts[:10] - parts[10:]
        return problem.loss(x @ theta, y, 80) + beta * parts.sum()

    found = minimize(split_value, np.full(20, 0.1), bounds=[(0, None)] * 20, method="L-BFGS-B", options={"ftol": 1e-15})
    assert optimum <= found.fun + 1e-12
    assert optimum == pytest.approx(found.fun, abs=1e-6)


def test_a_penalty_above_the_largest_correlation_gives_zero():
    x, y = _data()
    theta, optimum = ob.solve(ob.SparseLogistic(100.0), x, np.sign(y))
    assert not theta.any()
    assert optimum == pytest.approx(np.log(2.0))


@pytest.mark.parametrize(
    ("block", "labels", "words"),
    [
        (np.ones((3, 2)), np.ones(4), "features of b: 3 rows for 4 labels"),
        (np.ones((4, 0)), np.ones(4), "features of b: shape"),
        (np.full((4, 1), np.nan), np.ones(4), "features of b: a value is missing"),
        (np.ones((4, 1)), np.array([1, 2, 3, np.inf]), "labels: a value"),
        (np.ones((4, 1)), np.ones(0), "labels: empty"),
    ],
)
def test_bad_data_is_named(block, labels, words):
    with pytest.raises(BadInput, match=words):
        ob.check_data(["a", "b"], [np.ones((len(labels), 1)), block], labels)


def test_solve_names_a_problem_without_exact_minimum():
    with pytest.raises(BadInput, match="problem"):
        ob.solve(object(), np.ones((2, 1)), np.ones(2))

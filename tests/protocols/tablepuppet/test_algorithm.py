from __future__ import annotations

import numpy as np
import pytest

from fedactors.protocols.tablepuppet import algorithm as alg


def labels(loss, n, rng):
    return {"squared": rng.normal(size=n), "logistic": rng.integers(0, 2, n).astype(float),
            "softmax": rng.integers(0, 4, n)}[loss]  # fmt: skip


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
@pytest.mark.parametrize("rho", [0.01, 0.3, 1.0, 10.0])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_z_update_is_stationary(loss, rho, scale):
    rng = np.random.default_rng(1)
    n, outputs = 400, 4 if loss == "softmax" else 1
    y = labels(loss, n, rng)
    dual, h = rng.normal(size=(n, outputs)), scale * rng.normal(size=(n, outputs))
    z = alg.update_z(loss, y, dual, h, rho)
    residual = alg.loss_gradient(loss, z, y) - dual - rho * (h - z)
    assert np.abs(residual).max() < 1e-9 * scale


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_the_loss_gradient_is_that_of_the_loss(loss):
    rng = np.random.default_rng(2)
    n, outputs = 5, 4 if loss == "softmax" else 1
    y, h = labels(loss, n, rng), rng.normal(size=(n, outputs))
    gradient = alg.loss_gradient(loss, h, y)
    for index in np.ndindex(n, outputs):
        step = np.zeros_like(h)
        step[index] = 1e-6
        slope = (alg.mean_loss(loss, h + step, y) - alg.mean_loss(loss, h - step, y)) / 2e-6
        assert gradient[index] / n == pytest.approx(slope, abs=1e-8)


def test_the_squared_z_and_lambda_by_hand():
    y, dual, h = np.array([3.0]), np.array([[0.5]]), np.array([[1.0]])
    z = alg.update_z("squared", y, dual, h, 2.0)
    assert z[0, 0] == pytest.approx((3 + 0.5 + 2) / 3)
    assert alg.update_lambda(dual, h, z, 2.0)[0, 0] == pytest.approx(0.5 + 2 * (1 - 5.5 / 3))


def test_after_a_z_update_lambda_is_the_loss_gradient_at_z():
    rng = np.random.default_rng(3)
    y, dual, h = labels("logistic", 50, rng), rng.normal(size=(50, 1)), rng.normal(size=(50, 1))
    z = alg.update_z("logistic", y, dual, h, 0.7)
    assert alg.update_lambda(dual, h, z, 0.7) == pytest.approx(alg.loss_gradient("logistic", z, y), abs=1e-11)


@pytest.mark.parametrize("num_partitions", [1, 2, 4])
def test_the_consensus_fixed_point_solves_the_undivided_problem(num_partitions):
    problem = consensus_problem(num_partitions)
    w = consensus(*problem, beta=0.3, rho=0.2, scale=1.0)  # type: ignore[misc]
    hessians, rights = problem
    exact = np.linalg.solve(sum(hessians) + 0.3 * np.eye(3), sum(rights))
    assert w == pytest.approx(exact, abs=1e-10)


def test_with_the_papers_constant_the_fixed_point_belongs_to_another_beta():
    hessians, rights = consensus_problem(4)
    M = 3
    w = consensus(hessians, rights, beta=0.3, rho=0.2, scale=M / 4)
    wrong = np.linalg.solve(sum(hessians) + 0.3 * 4 / M * np.eye(3), sum(rights))
    right = np.linalg.solve(sum(hessians) + 0.3 * np.eye(3), sum(rights))
    assert w == pytest.approx(wrong, abs=1e-10)
    assert np.abs(w - right).max() > 1e-3


def consensus_problem(num_partitions):
    rng = np.random.default_rng(4)
    hessians = [a @ a.T for a in rng.normal(size=(num_partitions, 3, 5))]
    return hessians, list(rng.normal(size=(num_partitions, 3)))


def consensus(hessians, rights, beta, rho, scale):
    """Eq. 20-22 on quadratics; `scale` times Q rho is the constant of Eq. 20 (1 is the correct one)."""
    Q = len(hessians)
    w, u = np.zeros(3), [np.zeros(3)] * Q
    for _ in range(4000):
        theta = [
            np.linalg.solve(A + rho * np.eye(3), b + rho * (w - v)) for A, b, v in zip(hessians, rights, u, strict=True)
        ]
        w = alg.update_consensus(theta, u, beta / scale, rho)
        u = [alg.update_u(v, t, w) for v, t in zip(u, theta, strict=True)]
    return w


def test_scores_are_sums_over_rows():
    h = np.array([[2.0, 1.0], [0.0, 3.0], [5.0, 1.0]])
    assert alg.score_rows("softmax", h, np.array([0, 1, 1])) == 2
    assert alg.score_rows("logistic", np.array([[1.0], [-1.0]]), np.array([1.0, 1.0])) == 1
    assert alg.score_rows("squared", np.array([[1.0], [2.0]]), np.array([1.0, 4.0])) == pytest.approx(4.0)
    assert alg.mean_score("squared", 4.0, 2) == pytest.approx(np.sqrt(2))
    assert alg.mean_score("softmax", 2, 3) == pytest.approx(2 / 3)


def test_trivial_outputs_are_the_best_constants_for_the_loss():
    for loss, y, outputs in (("squared", np.array([1.0, 3.0, 8.0]), 1), ("logistic", np.array([1.0, 0.0, 1.0, 1.0]), 1),
                             ("softmax", np.array([1, 1, 2, 0, 1]), 3)):  # fmt: skip
        best = alg.trivial_outputs(loss, y, outputs)
        value = alg.mean_loss(loss, np.tile(best, (len(y), 1)), y)
        for shift in np.random.default_rng(0).normal(scale=0.1, size=(20, outputs)):
            assert alg.mean_loss(loss, np.tile(best + shift, (len(y), 1)), y) >= value - 1e-12
    assert np.argmax(alg.trivial_outputs("softmax", np.array([1, 1, 2]), 4)) == 1
    assert alg.trivial_outputs("logistic", np.array([1.0, 1.0]), 1)[0] > 10

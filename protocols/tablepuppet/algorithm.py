"""Server and coordinator mathematics of TablePuppet: losses, ADMM updates (Table 2), gradients and consensus (Table 3).

One scale of the loss everywhere: the problem is (1/N) sum_j l(sum_i h_ij; y_j) + beta sum_i R(theta_i) with
R = |theta|^2 / 2 and N the number of *joined* rows; lambda is the dual of the unscaled l, so Eq. 7 has no 1/N and
Eq. 9, 16 and 22 have it.

Legend: N joined rows, n_i rows of table i, C outputs, M vertical tables, Q_i partitions, P parameters;
h_NC sum of the tables' predictions, z_NC auxiliary variables, lambda_NC duals, y_N labels (class numbers for
softmax), G_n duplicate counts, Y_nC aggregated linear terms, theta_P, w_P, u_P consensus variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]
Loss = Literal["squared", "logistic", "softmax"]
AdmmMode = Literal["boyd", "paper_exact", "paper_sgd"]

_BLOCK = 1 << 15


def mean_loss(loss: Loss, h_NC: Array, y_N: NDArray[Any]) -> float:
    """Return (1/N) sum_j l(h_j; y_j): half the squared error, or the negative log likelihood in nats."""
    if loss == "squared":
        return float(np.mean((h_NC[:, 0] - y_N) ** 2) / 2)
    if loss == "logistic":
        return float(np.mean(np.logaddexp(0.0, h_NC[:, 0]) - y_N * h_NC[:, 0]))
    total = 0.0
    for start in range(0, len(y_N), _BLOCK):
        h_Cb, y_b = np.ascontiguousarray(h_NC[start : start + _BLOCK].T), y_N[start : start + _BLOCK]
        top_b = np.max(h_Cb, axis=0)
        log_b = top_b + np.log(np.sum(np.exp(h_Cb - top_b), axis=0))
        total += float(np.sum(log_b - h_Cb[y_b, np.arange(len(y_b))]))
    return total / len(y_N)


def loss_gradient(loss: Loss, h_NC: Array, y_N: NDArray[Any]) -> Array:
    """Return dl_j/dh_j, which is dl_j/dh_ij for every table i since their predictions are summed (Eq. 4)."""
    made: Array
    if loss == "squared":
        made = h_NC - y_N[:, None]
    elif loss == "logistic":
        made = expit(h_NC) - y_N[:, None]
    else:
        # in blocks that fit the cache, classes first: sums over five numbers each are slow the other way
        made = np.empty_like(h_NC)
        for start in range(0, len(y_N), _BLOCK):
            h_Cb, y_b = np.ascontiguousarray(h_NC[start : start + _BLOCK].T), y_N[start : start + _BLOCK]
            p_Cb = np.exp(h_Cb - np.max(h_Cb, axis=0))
            p_Cb /= np.sum(p_Cb, axis=0)
            p_Cb[y_b, np.arange(len(y_b))] -= 1.0
            made[start : start + _BLOCK] = p_Cb.T
    return made


def update_z(loss: Loss, y_N: NDArray[Any], lambda_NC: Array, h_NC: Array, rho: float) -> Array:
    """Return argmin_z l(z; y) - lambda^T z + rho/2 |h - z|^2 row by row (Eq. 7): l'(z) - lambda - rho (h - z) = 0."""
    if loss == "squared":
        made: Array = (y_N[:, None] + lambda_NC + rho * h_NC) / (1.0 + rho)
        return made
    if loss == "logistic":
        return _logistic_root(y_N[:, None] + lambda_NC + rho * h_NC, h_NC, rho)
    constant_NC = lambda_NC + rho * h_NC
    constant_NC[np.arange(len(y_N)), y_N] += 1.0
    pieces = [_softmax_root(constant_NC[i : i + _BLOCK], h_NC[i : i + _BLOCK], rho) for i in range(0, len(y_N), _BLOCK)]
    return np.concatenate(pieces)


def update_lambda(lambda_NC: Array, h_NC: Array, z_NC: Array, rho: float) -> Array:
    """Return lambda + rho (h - z) (Eq. 8)."""
    made: Array = lambda_NC + rho * (h_NC - z_NC)
    return made


def shared_term(lambda_NC: Array, h_NC: Array, z_NC: Array, rho: float) -> Array:
    """Return lambda + rho (h - z), the part of Eq. 14 that is the same for every table (lambda already updated)."""
    made: Array = lambda_NC + rho * (h_NC - z_NC)
    return made


def linear_term(mode: AdmmMode, summed_nC: Array, G_n: NDArray[Any], h_nC: Array, rho: float, M: int) -> Array:
    """Return Y_i of Eq. 14 from the segment sums of `shared_term` and the table's own predictions h_i^t.

    s_ij leaves out the table's own prediction, hence -rho G h. `boyd` also subtracts (M - 1) rho G h, the
    linear part of the proximal term of the sharing form, with which the parallel step converges.
    """
    times = M if mode == "boyd" else 1
    made: Array = summed_nC - (times * rho) * (G_n[:, None] * h_nC)
    return made


def quadratic_weight(mode: AdmmMode, rho: float, M: int) -> float:
    """Return kappa of the quadratic term kappa G_ij / 2 |f|^2: rho in Eq. 16, M rho in the sharing form."""
    return M * rho if mode == "boyd" else rho


def combine_gradients(partial_QP: Sequence[Array], num_joined: int) -> Array:
    """Return (1/N) sum_q of the partitions' gradients (Eq. 17), added in the given order."""
    total = np.zeros_like(partial_QP[0])
    for partial in partial_QP:
        total += partial
    return total / num_joined


def gradient_step(theta_P: Array, gradient_P: Array, learning_rate: float) -> Array:
    """Return theta - eta grad (Eq. 6, 13, 19)."""
    return theta_P - learning_rate * gradient_P


def update_consensus(theta_QP: Sequence[Array], u_QP: Sequence[Array], beta: float, rho: float) -> Array:
    """Return w = argmin beta R(w) + Q_i rho / 2 |w - mean theta - mean u|^2 (Eq. 20).

    The paper prints M rho / 2. With a constant c in place of Q_i rho the fixed point solves the problem of
    beta Q_i rho / c, so the constant must be Q_i rho (each of the Q_i agents contributes rho / 2).
    """
    Q = len(theta_QP)
    total = np.zeros_like(theta_QP[0])
    for theta, u in zip(theta_QP, u_QP, strict=True):
        total += theta + u
    return total * rho / (beta + Q * rho)


def update_u(u_P: Array, theta_P: Array, w_P: Array) -> Array:
    """Return u + theta - w (Eq. 21)."""
    return u_P + theta_P - w_P


def centralised_ridge(x_ND: Array, y_NC: Array, beta: float) -> Array:
    """Return (X^T X / N + beta I)^-1 X^T y / N, the minimiser of Eq. 1 for the squared loss on the joined table."""
    N, D = x_ND.shape
    made: Array = np.linalg.solve(x_ND.T @ x_ND / N + beta * np.eye(D), x_ND.T @ y_NC / N)
    return made


def _logistic_root(c_NC: Array, start_NC: Array, rho: float) -> Array:
    """Solve sigmoid(z) + rho z = c by Newton steps inside a shrinking bracket, halving it where they do not shrink."""
    low, high = (c_NC - 1.0) / rho, c_NC / rho
    z = np.clip(start_NC, low, high)
    last = np.full_like(z, np.inf)
    for _ in range(200):
        p = expit(z)
        f = p + rho * z - c_NC
        low, high = np.where(f < 0, z, low), np.where(f > 0, z, high)
        step = -f / (p * (1.0 - p) + rho)
        size = np.abs(step)
        poor = (z + step < low) | (z + step > high) | (size > last / 2)
        poor &= size > 1e-13 * (1.0 + np.abs(z))
        if poor.any():
            step = np.where(poor, (low + high) / 2 - z, step)
            size = np.abs(step)
        z, last = z + step, size
        if np.all(size <= 1e-13 * (1.0 + np.abs(z))):
            break
    return z


def _softmax_root(c_bC: Array, start_bC: Array, rho: float) -> Array:
    """Solve softmax(z) + rho z = c by Newton steps on rows still moving, halved while the objective would grow."""
    c, z = np.ascontiguousarray(c_bC.T), np.ascontiguousarray(start_bC.T)
    solved = np.empty_like(z)
    active = np.arange(z.shape[1])
    p, value = _softmax_state(z, c, rho)
    for _ in range(100):
        f = p + rho * z - c
        moving = np.max(np.abs(f), axis=0) > 1e-10
        if not moving.all():
            solved[:, active[~moving]] = z[:, ~moving]
            if not moving.any():
                return np.ascontiguousarray(solved.T)
            active, z, c, p, f, value = (
                active[moving],
                z[:, moving],
                c[:, moving],
                p[:, moving],
                f[:, moving],
                value[moving],
            )
        # (diag(p + rho) - p p^T)^-1 by Sherman-Morrison; 1 - p^T D^-1 p is written without cancellation.
        inverse = 1.0 / (p + rho)
        weighted = p * inverse
        factor = np.sum(weighted * f, axis=0) / (rho * np.sum(weighted, axis=0))
        step = -(inverse * f + weighted * factor)
        slope = np.sum(f * step, axis=0)
        length = np.ones(len(active))
        for _ in range(40):
            tried = z + length * step
            p, following = _softmax_state(tried, c, rho)
            worse = following > value + 1e-4 * length * slope + 1e-12 * (1.0 + np.abs(value))
            if not worse.any():
                break
            length[worse] /= 2
        z, value = tried, following
    solved[:, active] = z
    return np.ascontiguousarray(solved.T)


def _softmax_state(z_Cb: Array, c_Cb: Array, rho: float) -> tuple[Array, Array]:
    """Return softmax(z) and logsumexp(z) - c^T z + rho/2 |z|^2 of each column."""
    top = np.max(z_Cb, axis=0)
    p = np.exp(z_Cb - top)
    total = np.sum(p, axis=0)
    p /= total
    value: Array = top + np.log(total) + np.sum(z_Cb * (rho / 2 * z_Cb - c_Cb), axis=0)
    return p, value

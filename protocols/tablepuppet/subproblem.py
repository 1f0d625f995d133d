"""The theta_i subproblem of a client (Eq. 16 and 22) and its solvers.

Both equations are one problem, with a pull towards an anchor:

    min over theta of (1/N) sum_j [ Y_j^T f(theta; x_j) + kappa G_j / 2 |f(theta; x_j)|^2 ] + tau/2 |theta - a|^2

Eq. 16: tau = beta, a = 0. Eq. 22 (partition q): tau = rho, a = w - u^q. kappa from `algorithm.quadratic_weight`.
The cost is that of the client's own n rows, however many joined rows they stand for.

Legend: n rows, D columns, C outputs, P parameters; x_nD, Y_nC, G_n, theta_P, anchor_P; N joined rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse.linalg
from numpy.typing import NDArray

from protocols.tablepuppet.models import Array, TableModel, predict, pull_back

_BLOCK = 1 << 16


@dataclass(frozen=True)
class Subproblem:
    """Everything of the problem but Y, which changes each round."""

    model: TableModel
    x_nD: Array
    G_n: NDArray[Any]
    kappa: float
    tau: float
    num_joined: int


@dataclass(frozen=True)
class LinearSystem:
    """A + tau I of a linear model, A = (kappa / N) X^T diag(G) X, as its eigenvectors and eigenvalues.

    The same factors serve every round, and every rho and tau, since neither Y nor the anchor enters them.
    """

    vectors_DD: Array
    values_D: Array
    tau: float


def factorise(problem: Subproblem) -> LinearSystem:
    """Return the factors of a linear model's system, in blocks of rows (never more than D^2 and a block in memory)."""
    x_nD, D = problem.x_nD, problem.model.num_columns
    gram_DD = np.zeros((D, D))
    weights = np.sqrt(np.asarray(problem.G_n, dtype=np.float64))
    for start in range(0, len(x_nD), _BLOCK):
        block = x_nD[start : start + _BLOCK] * weights[start : start + _BLOCK, None]
        gram_DD += block.T @ block
    values, vectors = scipy.linalg.eigh(gram_DD * (problem.kappa / problem.num_joined))
    return LinearSystem(vectors_DD=vectors, values_D=values, tau=problem.tau)


def solve_linear(problem: Subproblem, system: LinearSystem, Y_nC: Array, anchor_P: Array | None = None) -> Array:
    """Return the exact minimiser for a linear model; with tau = 0 and dependent columns, the one of least norm."""
    D, C = problem.model.num_columns, problem.model.num_outputs
    right_DC = -(problem.x_nD.T @ Y_nC) / problem.num_joined
    if anchor_P is not None:
        right_DC += system.tau * anchor_P.reshape(D, C)
    values = system.values_D + system.tau
    usable = values > 1e-12 * max(float(values.max(initial=0.0)), 1e-300)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=usable)
    made: Array = (system.vectors_DD @ (inverse[:, None] * (system.vectors_DD.T @ right_DC))).ravel()
    return made


def solve_linear_cg(
    problem: Subproblem, Y_nC: Array, theta_P: Array, anchor_P: Array | None = None, tolerance: float = 1e-12
) -> Array:
    """Return the minimiser for a linear model by conjugate gradients from `theta_P`, without a D x D matrix."""
    x_nD, D, C = problem.x_nD, problem.model.num_columns, problem.model.num_outputs
    G_n = np.asarray(problem.G_n, dtype=np.float64)
    right_DC = -(x_nD.T @ Y_nC) / problem.num_joined
    if anchor_P is not None:
        right_DC = right_DC + problem.tau * anchor_P.reshape(D, C)

    def times(v_D: Array) -> Array:
        made: Array = problem.kappa / problem.num_joined * (x_nD.T @ (G_n * (x_nD @ v_D))) + problem.tau * v_D
        return made

    operator = scipy.sparse.linalg.LinearOperator((D, D), matvec=times, dtype=np.float64)
    start_DC = theta_P.reshape(D, C)
    columns = [
        scipy.sparse.linalg.cg(operator, right_DC[:, c], x0=start_DC[:, c], rtol=tolerance, maxiter=20 * D)[0]
        for c in range(C)
    ]
    return np.stack(columns, axis=1).ravel()


def solve_lbfgs(
    problem: Subproblem, Y_nC: Array, theta_P: Array, anchor_P: Array | None = None, iterations: int = 50
) -> Array:
    """Return an approximate minimiser for any model, by L-BFGS from `theta_P`."""
    kept = problem.G_n > 0
    x_nD, Y_nC, G_n1 = problem.x_nD[kept], Y_nC[kept], np.asarray(problem.G_n, dtype=np.float64)[kept, None]
    anchor = np.zeros_like(theta_P) if anchor_P is None else anchor_P

    def objective(theta: Array) -> tuple[float, Array]:
        f_nC = predict(problem.model, theta, x_nD)
        away = theta - anchor
        value = np.sum(Y_nC * f_nC + problem.kappa / 2 * G_n1 * f_nC * f_nC) / problem.num_joined
        dh_nC = (Y_nC + problem.kappa * G_n1 * f_nC) / problem.num_joined
        gradient = pull_back(problem.model, theta, x_nD, dh_nC) + problem.tau * away
        return float(value + problem.tau / 2 * (away @ away)), gradient

    found = scipy.optimize.minimize(
        objective, theta_P, jac=True, method="L-BFGS-B", options={"maxiter": iterations, "maxcor": 20}
    )
    made: Array = np.asarray(found.x, dtype=np.float64)
    return made


def solve_sgd(
    problem: Subproblem,
    Y_nC: Array,
    theta_P: Array,
    rng: np.random.Generator,
    anchor_P: Array | None = None,
    epochs: int = 10,
    batch_size: int = 1024,
    learning_rate: float = 0.01,
    weight_decay: float = 1e-5,
) -> Array:
    """Return theta after a few epochs of mini-batch SGD (the inexact mode `paper_sgd`).

    A batch's gradient is divided by the joined rows it stands for (the sum of its G), so it estimates the full
    gradient. Rows with G = 0 join with nothing and are left out first, so no batch divides 0 by 0.
    """
    kept = np.flatnonzero(problem.G_n > 0)
    x_nD, Y_nC, G_n1 = problem.x_nD[kept], Y_nC[kept], np.asarray(problem.G_n, dtype=np.float64)[kept, None]
    theta = theta_P.copy()
    for _ in range(epochs):
        order = rng.permutation(len(kept))
        for start in range(0, len(kept), batch_size):
            batch = order[start : start + batch_size]
            x, G = x_nD[batch], G_n1[batch]
            dh = (Y_nC[batch] + problem.kappa * G * predict(problem.model, theta, x)) / G.sum()
            gradient = pull_back(problem.model, theta, x, dh) + weight_decay * theta
            if anchor_P is not None:
                gradient += problem.tau * (theta - anchor_P)
            theta -= learning_rate * gradient
    return theta


def partial_gradient(
    model: TableModel, theta_P: Array, x_uD: Array, Y_uC: Array, G_u: NDArray[Any], beta: float
) -> Array:
    """Return sum_j (Y_j dh_j/dtheta + beta G_j dR/dtheta) over the given rows (Eq. 18; over N it is Eq. 12)."""
    return pull_back(model, theta_P, x_uD, Y_uC) + (beta * float(np.sum(G_u))) * theta_P

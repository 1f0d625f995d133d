"""The local model f_i of one vertical table, and how a client finds its parameters theta_i, with DP or without.

A model is a linear map or a network with one hidden layer, on flat parameters. The outputs of the tables are summed
(psi in Section 3.1.2), so no model ends in a nonlinearity: a sum of ReLUs is not a centralised model. Only the table
that owns the label has an output bias; a linear model gets it as a column of ones in its design matrix
(`data.design_matrix`), a network as a parameter.

Under ADMM theta_i solves Eq. 16 or 22. Both are one problem, with a pull towards an anchor:

    min over theta of (1/N) sum_j [ Y_j^T f(theta; x_j) + kappa G_j / 2 |f(theta; x_j)|^2 ] + tau/2 |theta - a|^2

Eq. 16: tau = beta, a = 0. Eq. 22 (partition q): tau = rho, a = w - u^q. kappa from `algorithm.quadratic_weight`.
The cost is that of the client's own n rows, however many joined rows they stand for.

Privacy of features: a row's aggregated contribution (over all its duplicates) is clipped, so the neighbouring relation
is "one base row of one table removed", whatever its duplicate count.

Legend: n rows, u rows of a batch, D columns of the design matrix, H hidden units, C outputs, P parameters, N joined
rows; x_nD, h_nC, Y_nC, G_n, theta_P (flat, float64), anchor_P.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray

from fedactors.data.party_rows import SparseRows
from fedactors.data.values import allocate, blocks_of, is_large, read_only
from fedactors.privacy.accounting import dpsgd_noise_multiplier
from fedactors.privacy.mechanisms import add_gaussian, clip_rows
from fedactors.protocols.tablepuppet.algorithm import quadratic_weight
from fedactors.protocols.tablepuppet.config import TablePuppetConfig

Array = NDArray[np.float64]
Matrix = Array | SparseRows
_BLOCK, _CELLS = 1 << 16, 1 << 21
"""Rows, and numbers, of a block that is weighted at once."""


# --- the model --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableModel:
    """What a table's model is; its parameters travel separately as one flat array of `num_parameters` numbers."""

    kind: Literal["linear", "neural"]
    num_columns: int
    num_outputs: int
    hidden_size: int = 16
    output_bias: bool = False

    @property
    def num_parameters(self) -> int:
        """Length of theta_P."""
        if self.kind == "linear":
            return self.num_columns * self.num_outputs
        bias = self.num_outputs if self.output_bias else 0
        return (self.num_columns + 1) * self.hidden_size + self.hidden_size * self.num_outputs + bias


def describe_model(config: TablePuppetConfig, num_columns: int, num_outputs: int, has_label: bool) -> TableModel:
    """Return the model that a table has under the run's settings; `has_label` says whether it owns the label."""
    kind: Literal["linear", "neural"] = "neural" if config.model == "neural" else "linear"
    return TableModel(kind, num_columns, num_outputs, config.hidden_size, has_label)


def initial_theta(model: TableModel, rng: np.random.Generator, base_C: Array | None = None) -> Array:
    """Return zeros for a linear model; for a network, uniform weights of size 1/sqrt(fan-in), zero biases.

    The label table's bias, its last C parameters, begins at `base_C`.
    """
    theta = np.zeros(model.num_parameters)
    if model.kind == "neural":
        inner, outer = model.num_columns * model.hidden_size, model.hidden_size * model.num_outputs
        theta[:inner] = rng.uniform(-1, 1, inner) / np.sqrt(max(model.num_columns, 1))
        start = inner + model.hidden_size
        theta[start : start + outer] = rng.uniform(-1, 1, outer) / np.sqrt(model.hidden_size)
    if base_C is not None and len(base_C) and model.output_bias:
        theta[-model.num_outputs :] = base_C
    return theta


def predict(model: TableModel, theta_P: Array, x_nD: Matrix) -> Array:
    """Return h_nC = f_i(theta; x), of a large table block by block."""
    if isinstance(x_nD, np.ndarray) and is_large(x_nD.nbytes):
        made = allocate((len(x_nD), model.num_outputs), np.float64)
        for rows in blocks_of(len(x_nD), x_nD.nbytes / len(x_nD)):
            made[rows] = _predicted(model, theta_P, x_nD[rows])
        return read_only(made)
    return _predicted(model, theta_P, x_nD)


def _predicted(model: TableModel, theta_P: Array, x_nD: Matrix) -> Array:
    if model.kind == "linear":
        return x_nD @ theta_P.reshape(model.num_columns, model.num_outputs)
    w1_DH, b1_H, w2_HC, b2_C = layers(model, theta_P)
    return np.maximum(x_nD @ w1_DH + b1_H, 0.0) @ w2_HC + b2_C


def pull_back(model: TableModel, theta_P: Array, x_nD: Matrix, dh_nC: Array) -> Array:
    """Return the gradient of sum(dh * f(theta; x)) with respect to theta, flat."""
    if model.kind == "linear":
        return (x_nD.T @ dh_nC).ravel()
    w1_DH, b1_H, w2_HC, _ = layers(model, theta_P)
    a_nH = np.maximum(x_nD @ w1_DH + b1_H, 0.0)
    da_nH = (dh_nC @ w2_HC.T) * (a_nH > 0)
    pieces = [(x_nD.T @ da_nH).ravel(), da_nH.sum(axis=0), (a_nH.T @ dh_nC).ravel()]
    if model.output_bias:
        pieces.append(dh_nC.sum(axis=0))
    return np.concatenate(pieces)


def row_gradients(model: TableModel, theta_P: Array, x_nD: Matrix, dh_nC: Array) -> Array:
    """Return the gradient that `pull_back` sums, separately for each row (shape [n, P]), for clipping row by row."""
    n, x_nD = len(x_nD), np.asarray(x_nD)
    if model.kind == "linear":
        made: Array = (x_nD[:, :, None] * dh_nC[:, None, :]).reshape(n, model.num_parameters)
        return made
    w1_DH, b1_H, w2_HC, _ = layers(model, theta_P)
    a_nH = np.maximum(x_nD @ w1_DH + b1_H, 0.0)
    da_nH = (dh_nC @ w2_HC.T) * (a_nH > 0)
    pieces = [
        (x_nD[:, :, None] * da_nH[:, None, :]).reshape(n, w1_DH.size),
        da_nH,
        (a_nH[:, :, None] * dh_nC[:, None, :]).reshape(n, w2_HC.size),
    ]
    if model.output_bias:
        pieces.append(dh_nC)
    return np.concatenate(pieces, axis=1)


def layers(model: TableModel, theta_P: Array) -> tuple[Array, Array, Array, Array]:
    """Return weights and biases of a network: D x H, H, H x C, C."""
    D, H, C = model.num_columns, model.hidden_size, model.num_outputs
    w1, b1, w2, b2 = np.split(theta_P, [D * H, D * H + H, D * H + H + H * C])
    return w1.reshape(D, H), b1, w2.reshape(H, C), b2 if model.output_bias else np.zeros(C)


# --- exact and inexact solves -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Subproblem:
    """Everything of the problem but Y, which changes each round."""

    model: TableModel
    x_nD: Matrix
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
    if isinstance(x_nD, SparseRows):
        gram_DD += x_nD.gram(np.asarray(problem.G_n, dtype=np.float64))
    else:
        weights = np.sqrt(np.asarray(problem.G_n, dtype=np.float64))
        step = min(_BLOCK, _CELLS // max(D, 1))
        for start in range(0, len(x_nD), step):
            block = x_nD[start : start + step] * weights[start : start + step, None]
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
    model: TableModel, theta_P: Array, x_uD: Matrix, Y_uC: Array, G_u: NDArray[Any], beta: float
) -> Array:
    """Return sum_j (Y_j dh_j/dtheta + beta G_j dR/dtheta) over the given rows (Eq. 18; over N it is Eq. 12)."""
    return pull_back(model, theta_P, x_uD, Y_uC) + (beta * float(np.sum(G_u))) * theta_P


# --- differential privacy of features ---------------------------------------------------------------------------------


def noisy_gradient_sum(
    gradients_nP: Array, clip: float, noise_multiplier: float, rng: np.random.Generator, sampling_rate: float = 1.0
) -> Array:
    """Return the sum of clipped row gradients plus Gaussian noise of deviation ``noise_multiplier * clip``.

    One release of the Gaussian mechanism for "one base row removed". In RFL-SGD a row with many duplicates is in
    many batches of an epoch, so the accountant counts every batch and claims no amplification by sampling.
    """
    total_P = clip_rows(gradients_nP, clip).sum(axis=0)
    return add_gaussian(total_P, noise_multiplier * clip, rng, "theta", sample_rate=sampling_rate)


def solve_dp_sgd(
    problem: Subproblem,
    Y_nC: Array,
    theta_P: Array,
    sampling: np.random.Generator,
    noise: np.random.Generator,
    *,
    steps: int,
    sampling_rate: float,
    clip: float,
    noise_multiplier: float,
    learning_rate: float,
    weight_decay: float = 0.0,
    anchor_P: Array | None = None,
) -> Array:
    """Return theta after `steps` of DP-SGD on a client's subproblem, batches drawn by Poisson sampling.

    A row's gradient, summed over its duplicates, is divided by the table's mean duplicate count N / n and clipped,
    so `clip` has the scale of one joined tuple and each row weighs at most `clip` in a step. The step divides by
    the expected batch, never by the drawn one, which would reveal its size. All n rows take part, joining or not.
    """
    n = len(problem.x_nD)
    mean_duplicates = max(problem.num_joined / max(n, 1), 1e-300)
    G_n1 = np.asarray(problem.G_n, dtype=np.float64)[:, None]
    theta = theta_P.copy()
    for _ in range(steps):
        # a binomial number of rows, any as likely as any other: Poisson sampling without a draw for every row
        batch = sampling.choice(n, sampling.binomial(n, sampling_rate), replace=False, shuffle=False)
        x = problem.x_nD[batch]
        dh = (Y_nC[batch] + problem.kappa * G_n1[batch] * predict(problem.model, theta, x)) / mean_duplicates
        rows = row_gradients(problem.model, theta, x, dh)
        total = noisy_gradient_sum(rows, clip, noise_multiplier, noise, sampling_rate)
        gradient = total / (sampling_rate * n) + weight_decay * theta
        if anchor_P is not None:
            gradient += problem.tau * (theta - anchor_P)
        theta -= learning_rate * gradient
    return theta


# --- which of these a run's settings ask for --------------------------------------------------------------------------


def pose(
    config: TablePuppetConfig,
    model: TableModel,
    x_nD: Matrix,
    G_n: NDArray[Any],
    num_joined: int,
    num_tables: int,
    alone: bool,
) -> Subproblem:
    """Return Eq. 16 (a table of one partition, `alone`) or Eq. 22 (one of several), without Y."""
    kappa = quadratic_weight(config.admm, config.first_rho, num_tables)
    tau = config.beta if alone else (config.inner_rho or config.first_rho)
    return Subproblem(model, x_nD, G_n, kappa, tau, num_joined)


def with_penalty(
    problem: Subproblem, system: LinearSystem | None, factor: float
) -> tuple[Subproblem, LinearSystem | None]:
    """Return the same with `factor` times the penalty rho; a linear model is not factorised again."""
    if factor == 1.0:
        return problem, system
    scaled = None if system is None else replace(system, values_D=system.values_D * factor)
    return replace(problem, kappa=problem.kappa * factor), scaled


def prepare_solver(config: TablePuppetConfig, problem: Subproblem) -> LinearSystem | None:
    """Return the factors that the exact solver of a linear model uses in every round, else None."""
    if config.is_admm and config.admm != "paper_sgd" and problem.model.kind == "linear":
        return factorise(problem)
    return None


def solve_theta(
    config: TablePuppetConfig,
    problem: Subproblem,
    system: LinearSystem | None,
    Y_nC: Array,
    theta_P: Array,
    anchor_P: Array | None,
    order: np.random.Generator,
    noise_seed: tuple[int, ...],
    noise_multiplier: float,
) -> Array:
    """Return the new theta of Eq. 16 or 22 by the solver that the mode and the model ask for."""
    if config.admm != "paper_sgd":
        if system is not None:
            return solve_linear(problem, system, Y_nC, anchor_P)
        return solve_lbfgs(problem, Y_nC, theta_P, anchor_P, config.lbfgs_iterations)
    if config.feature_dp is None:
        local = (config.local_epochs, config.local_batch_size, config.local_learning_rate, config.local_weight_decay)
        return solve_sgd(problem, Y_nC, theta_P, order, anchor_P, *local)
    steps, rate = local_steps(config, len(problem.x_nD))
    noise = np.random.default_rng(noise_seed)
    return solve_dp_sgd(
        problem,
        Y_nC,
        theta_P,
        noise,  # amplification holds only if nobody else knows which rows were sampled
        noise,
        steps=steps,
        sampling_rate=rate,
        clip=config.clip,
        noise_multiplier=noise_multiplier,
        learning_rate=config.local_learning_rate,
        weight_decay=config.local_weight_decay,
        anchor_P=anchor_P,
    )


def local_steps(config: TablePuppetConfig, num_rows: int) -> tuple[int, float]:
    """Return the steps of one DP-SGD solve and the probability with which each takes a row."""
    batches = max(ceil(num_rows / config.local_batch_size), 1)
    return config.local_epochs * batches, 1.0 / batches


def total_steps(config: TablePuppetConfig, num_rows: int, num_joined: int, alone: bool) -> tuple[int, float]:
    """Return the noisy sums of a run that a row may be in, and the sampling rate that may be claimed (1: none)."""
    if config.is_admm:
        steps, rate = local_steps(config, num_rows)
        return config.most_rounds * (1 if alone else config.inner_rounds) * steps, rate
    return config.most_rounds * ceil(num_joined / config.batch_of(num_joined)), 1.0


def choose_noise(config: TablePuppetConfig, num_rows: int, num_joined: int, alone: bool) -> float:
    """Return the noise multiplier with which the whole run stays within `feature_dp`; 0 without it.

    SGD's batches are known to the server and a row with many duplicates may be in all of them, so every batch counts.
    ADMM's local batches are Poisson samples that only the client knows, so Opacus' accountant amplifies.
    """
    if config.feature_dp is None or num_rows == 0:
        return 0.0
    steps, rate = total_steps(config, num_rows, num_joined, alone)
    return dpsgd_noise_multiplier(
        epsilon=config.feature_dp,
        delta=config.feature_delta,
        steps=steps,
        sampling="poisson" if config.is_admm else "full",
        sample_rate=rate,
    )


def batch_gradient(
    config: TablePuppetConfig,
    model: TableModel,
    theta_P: Array,
    x_uD: Matrix,
    Y_uC: Array,
    num_joined: int,
    noise_seed: tuple[int, ...],
    noise_multiplier: float,
) -> Array:
    """Return Eq. 18 over a batch's rows, which stand for `num_joined` joined rows; noisy under feature DP."""
    if config.feature_dp is None:
        return partial_gradient(model, theta_P, x_uD, Y_uC, np.array(num_joined), config.beta)
    rows_uP = row_gradients(model, theta_P, x_uD, Y_uC)
    noise = np.random.default_rng(noise_seed)
    return noisy_gradient_sum(rows_uP, config.clip, noise_multiplier, noise) + (config.beta * num_joined) * theta_P

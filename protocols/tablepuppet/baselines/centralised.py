"""The centralised baseline: one model on the joined table, every feature given away.

``exact`` reaches the optimum of the same problem that the federated algorithms solve: ridge by its normal equations for
the squared loss and linear models, L-BFGS otherwise. ``sgd`` is the mini-batch SGD on materialised joined rows whose
steps RFL-SGD(-V) must reproduce.

Legend: N joined rows, B rows of a batch or block, D columns of all tables, C outputs, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from fedactors.protocols.tablepuppet import algorithm
from fedactors.protocols.tablepuppet.algorithm import epoch_batches, gather_join, scatter_join
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.local_solvers import Array, TableModel, describe_model, predict, pull_back

_BLOCK = 1 << 16


@dataclass(frozen=True)
class JoinedTable:
    """The joined table as its parts: row j is the concatenation of x_i[rows_i[j]] over the tables."""

    models: tuple[TableModel, ...]
    x: tuple[Array, ...]
    rows: tuple[NDArray[np.int64], ...]
    y: NDArray[Any]

    def slices(self, chosen: Any) -> list[Array]:
        """Return the materialised joined rows `chosen`, each table's columns apart."""
        return [x[rows[chosen]] for x, rows in zip(self.x, self.rows, strict=True)]


def describe_models(
    config: TablePuppetConfig, matrices: Sequence[Array], label_index: int, num_outputs: int
) -> tuple[TableModel, ...]:
    """Return the model of each table, from its number of columns."""
    return tuple(describe_model(config, x.shape[1], num_outputs, i == label_index) for i, x in enumerate(matrices))


def predict_tables(models: Sequence[TableModel], thetas: Sequence[Array], matrices: Sequence[Array]) -> list[Array]:
    """Return h_i of every table's rows."""
    return [predict(model, theta, x) for model, theta, x in zip(models, thetas, matrices, strict=True)]


def train(
    config: TablePuppetConfig,
    loss: algorithm.Loss,
    joined: JoinedTable,
    thetas: Sequence[Array],
    batches: np.random.Generator,
) -> list[Array]:
    """Train one round: an epoch of SGD, the ridge solution, or `lbfgs_iterations` of L-BFGS."""
    if config.centralised == "sgd":
        return train_sgd(config, loss, joined, thetas, batches)
    if loss == "squared" and config.model != "neural":
        return solve_ridge(config.beta, joined)
    return train_lbfgs(config, loss, joined, thetas)


def train_sgd(
    config: TablePuppetConfig,
    loss: algorithm.Loss,
    joined: JoinedTable,
    thetas: Sequence[Array],
    batches: np.random.Generator,
) -> list[Array]:
    """Train one epoch of mini-batch SGD on materialised joined rows."""
    made = [theta.copy() for theta in thetas]
    for batch in epoch_batches(len(joined.y), config.batch_of(len(joined.y)), batches):
        parts = joined.slices(batch)
        total_BC = sum(predict_tables(joined.models, made, parts))
        derivative_BC = algorithm.loss_gradient(loss, np.asarray(total_BC), joined.y[batch]) / len(batch)
        for i, (model, part) in enumerate(zip(joined.models, parts, strict=True)):
            gradient = pull_back(model, made[i], part, derivative_BC) + config.beta * made[i]
            made[i] = algorithm.gradient_step(made[i], gradient, config.learning_rate)
    return made


def solve_ridge(beta: float, joined: JoinedTable) -> list[Array]:
    """Return (X^T X / N + beta I)^-1 X^T y / N, in blocks of materialised rows; least norm if it is singular."""
    ends = np.cumsum([x.shape[1] for x in joined.x])
    D, N = int(ends[-1]), len(joined.y)
    gram_DD, right_D = np.zeros((D, D)), np.zeros(D)
    for start in range(0, N, _BLOCK):
        block_BD = np.hstack(joined.slices(slice(start, start + _BLOCK)))
        gram_DD += block_BD.T @ block_BD
        right_D += block_BD.T @ joined.y[start : start + _BLOCK]
    theta_D = np.linalg.lstsq(gram_DD / N + beta * np.eye(D), right_D / N, rcond=None)[0]
    return list(np.split(theta_D, ends[:-1]))


def train_lbfgs(
    config: TablePuppetConfig, loss: algorithm.Loss, joined: JoinedTable, thetas: Sequence[Array]
) -> list[Array]:
    """Return theta after at most `lbfgs_iterations` of L-BFGS on Eq. 1.

    Value and gradient are those of the joined table, computed on distinct rows (Eq. 10) so that minutes become seconds.
    """
    ends = np.cumsum([len(theta) for theta in thetas])[:-1]
    N = len(joined.y)

    def objective(theta_P: Array) -> tuple[float, Array]:
        parts = np.split(theta_P, ends)
        total_NC = gather_join(predict_tables(joined.models, parts, joined.x), joined.rows)
        value = algorithm.mean_loss(loss, total_NC, joined.y) + config.beta / 2 * float(theta_P @ theta_P)
        derivative_NC = algorithm.loss_gradient(loss, total_NC, joined.y) / N
        gradients = [
            pull_back(model, theta, x, scatter_join(derivative_NC, rows, len(x)))
            for model, theta, x, rows in zip(joined.models, parts, joined.x, joined.rows, strict=True)
        ]
        return value, np.concatenate(gradients) + config.beta * theta_P

    options = {"maxiter": config.lbfgs_iterations, "maxcor": 20}
    found = scipy.optimize.minimize(objective, np.concatenate(thetas), jac=True, method="L-BFGS-B", options=options)
    return list(np.split(np.asarray(found.x, dtype=np.float64), ends))

"""The local model f_i of one vertical table: a linear map or a network with one hidden layer, on flat parameters.

The outputs of the tables are summed (psi in Section 3.1.2), so no model ends in a nonlinearity: a sum of ReLUs is
not a centralised model. Only the table that owns the label has an output bias; a linear model gets it as a column
of ones in its design matrix (`encoding.design_matrix`), a network as a parameter.

Legend: n rows, D columns of the design matrix, H hidden units, C outputs; x_nD, h_nC, theta_P (flat, float64).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TableModel:
    """What a table's model is; its parameters travel separately as one flat array of `num_parameters` numbers."""

    kind: Literal["linear", "neural"]
    num_columns: int
    num_outputs: int
    num_hidden: int = 16
    output_bias: bool = False

    @property
    def num_parameters(self) -> int:
        """Length of theta_P."""
        if self.kind == "linear":
            return self.num_columns * self.num_outputs
        bias = self.num_outputs if self.output_bias else 0
        return (self.num_columns + 1) * self.num_hidden + self.num_hidden * self.num_outputs + bias


def initial_theta(model: TableModel, rng: np.random.Generator) -> Array:
    """Return zeros for a linear model; for a network, uniform weights of size 1/sqrt(fan-in), zero biases."""
    theta = np.zeros(model.num_parameters)
    if model.kind == "neural":
        inner, outer = model.num_columns * model.num_hidden, model.num_hidden * model.num_outputs
        theta[:inner] = rng.uniform(-1, 1, inner) / np.sqrt(max(model.num_columns, 1))
        start = inner + model.num_hidden
        theta[start : start + outer] = rng.uniform(-1, 1, outer) / np.sqrt(model.num_hidden)
    return theta


def predict(model: TableModel, theta_P: Array, x_nD: Array) -> Array:
    """Return h_nC = f_i(theta; x)."""
    if model.kind == "linear":
        return x_nD @ theta_P.reshape(model.num_columns, model.num_outputs)
    w1_DH, b1_H, w2_HC, b2_C = _layers(model, theta_P)
    return np.maximum(x_nD @ w1_DH + b1_H, 0.0) @ w2_HC + b2_C


def pull_back(model: TableModel, theta_P: Array, x_nD: Array, dh_nC: Array) -> Array:
    """Return the gradient of sum(dh * f(theta; x)) with respect to theta, flat."""
    if model.kind == "linear":
        return (x_nD.T @ dh_nC).ravel()
    w1_DH, b1_H, w2_HC, _ = _layers(model, theta_P)
    a_nH = np.maximum(x_nD @ w1_DH + b1_H, 0.0)
    da_nH = (dh_nC @ w2_HC.T) * (a_nH > 0)
    pieces = [(x_nD.T @ da_nH).ravel(), da_nH.sum(axis=0), (a_nH.T @ dh_nC).ravel()]
    if model.output_bias:
        pieces.append(dh_nC.sum(axis=0))
    return np.concatenate(pieces)


def row_gradients(model: TableModel, theta_P: Array, x_nD: Array, dh_nC: Array) -> Array:
    """Return the gradient that `pull_back` sums, separately for each row (shape [n, P]), for clipping row by row."""
    n = len(x_nD)
    if model.kind == "linear":
        made: Array = (x_nD[:, :, None] * dh_nC[:, None, :]).reshape(n, -1)
        return made
    w1_DH, b1_H, w2_HC, _ = _layers(model, theta_P)
    a_nH = np.maximum(x_nD @ w1_DH + b1_H, 0.0)
    da_nH = (dh_nC @ w2_HC.T) * (a_nH > 0)
    pieces = [
        (x_nD[:, :, None] * da_nH[:, None, :]).reshape(n, -1),
        da_nH,
        (a_nH[:, :, None] * dh_nC[:, None, :]).reshape(n, -1),
    ]
    if model.output_bias:
        pieces.append(dh_nC)
    return np.concatenate(pieces, axis=1)


def _layers(model: TableModel, theta_P: Array) -> tuple[Array, Array, Array, Array]:
    D, H, C = model.num_columns, model.num_hidden, model.num_outputs
    w1, b1, w2, b2 = np.split(theta_P, [D * H, D * H + H, D * H + H + H * C])
    return w1.reshape(D, H), b1, w2.reshape(H, C), b2 if model.output_bias else np.zeros(C)

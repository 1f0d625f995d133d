"""What is particular to TablePuppet in privacy: labels (Eq. 25), duplicates, predictions, and the attack on them.

Accounting rules stated here and used by the actors:

- labels: one-hot plus Laplace noise of standard deviation lambda (scale lambda / sqrt 2) and argmax; replacing one
  label changes two coordinates by 1, so eps = 2 sqrt(2) / lambda. One class would be constant, so numbers are
  clipped to a declared range instead and get additive Laplace noise: eps = sqrt(2) range / lambda.
- features: a row's aggregated contribution (over all its duplicates) is clipped, so the neighbouring relation is
  "one base row of one table replaced or removed", whatever its duplicate count. A joined tuple has one row in every
  table, so for "one joined tuple" the tables' budgets add up.
- predictions h = f(theta; T) read the table again and are *not* covered by the noise in theta: who sees theta and h
  solves for the rows (`reconstruct_rows`). They need their own clipping and noise, and their own budget.

Legend: n rows, C outputs or classes, D columns, P parameters, t rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def label_epsilon(noise_std: float) -> float:
    """Return eps of noisy one-hot labels, 2 sqrt(2) / lambda (Theorem 1)."""
    return 2.0 * sqrt(2.0) / noise_std


def numeric_label_epsilon(noise_std: float, label_range: tuple[float, float]) -> float:
    """Return eps of clipped numeric labels, sqrt(2) (high - low) / lambda."""
    return sqrt(2.0) * (label_range[1] - label_range[0]) / noise_std


def noisy_classes(
    y_n: NDArray[np.int64], num_classes: int, noise_std: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return argmax of the one-hot labels plus Laplace noise on every coordinate (Eq. 25).

    Raises:
        ValueError: fewer than two classes, for which the result would be constant.
    """
    if num_classes < 2:
        raise ValueError(f"num_classes: {num_classes} is not allowed: one-hot noise needs at least 2")
    noisy = rng.laplace(scale=noise_std / sqrt(2.0), size=(len(y_n), num_classes))
    noisy[np.arange(len(y_n)), y_n] += 1.0
    return np.asarray(np.argmax(noisy, axis=1), dtype=np.int64)


def noisy_numbers(y_n: Array, label_range: tuple[float, float], noise_std: float, rng: np.random.Generator) -> Array:
    """Return labels clipped to the declared range plus Laplace noise of standard deviation `noise_std`."""
    made: Array = np.clip(y_n, *label_range) + rng.laplace(scale=noise_std / sqrt(2.0), size=len(y_n))
    return made


def clip_row_gradients(gradients_nP: Array, clip: float) -> Array:
    """Return row gradients scaled to an L2 norm of at most `clip`; each is a row's sum over all its duplicates."""
    norms = np.linalg.norm(gradients_nP, axis=1)
    made: Array = gradients_nP * np.minimum(1.0, clip / np.maximum(norms, 1e-300))[:, None]
    return made


def clip_predictions(h_nC: Array, clip: float) -> Array:
    """Return predictions scaled to an L2 norm of at most `clip` in each row, before noise of their own."""
    return clip_row_gradients(h_nC, clip)


def compose_over_tables(epsilons: Sequence[float], deltas: Sequence[float]) -> tuple[float, float]:
    """Return the budget of one joined tuple, which touches a row in every table: the sums (basic composition)."""
    return float(sum(epsilons)), float(sum(deltas))


def reconstruct_rows(thetas_tDC: Array, predictions_tnC: Array) -> Array:
    """Return the rows x_nD of a linear model's table by least squares from (theta^t, h^t = x theta^t) of t rounds.

    The attack of a server that also coordinates the union: exact once the thetas span all D directions.
    """
    t, D, C = thetas_tDC.shape
    n = predictions_tnC.shape[1]
    directions = thetas_tDC.transpose(0, 2, 1).reshape(t * C, D)
    seen = predictions_tnC.transpose(0, 2, 1).reshape(t * C, n)
    return np.asarray(np.linalg.lstsq(directions, seen, rcond=None)[0].T, dtype=np.float64)

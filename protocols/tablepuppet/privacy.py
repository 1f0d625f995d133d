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

from protocols.tablepuppet.models import predict, row_gradients
from protocols.tablepuppet.subproblem import Subproblem

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
    made: Array = gradients_nP * (clip / np.maximum(norms, clip))[:, None]
    return made


def noisy_gradient_sum(gradients_nP: Array, clip: float, noise_multiplier: float, rng: np.random.Generator) -> Array:
    """Return the sum of clipped row gradients plus Gaussian noise of deviation ``noise_multiplier * clip``.

    One release of the Gaussian mechanism for "one base row removed". In RFL-SGD a row with many duplicates is in
    many batches of an epoch, so the accountant counts every batch and claims no amplification by sampling.
    """
    total: Array = clip_row_gradients(gradients_nP, clip).sum(axis=0)
    return total + rng.normal(scale=noise_multiplier * clip, size=total.shape)


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
        batch = np.flatnonzero(sampling.random(n) < sampling_rate)
        x = problem.x_nD[batch]
        dh = (Y_nC[batch] + problem.kappa * G_n1[batch] * predict(problem.model, theta, x)) / mean_duplicates
        total = noisy_gradient_sum(row_gradients(problem.model, theta, x, dh), clip, noise_multiplier, noise)
        gradient = total / (sampling_rate * n) + weight_decay * theta
        if anchor_P is not None:
            gradient += problem.tau * (theta - anchor_P)
        theta -= learning_rate * gradient
    return theta


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

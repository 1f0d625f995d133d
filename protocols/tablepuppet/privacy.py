"""What is particular to TablePuppet in privacy: duplicates, predictions, and how budgets add over tables.

Accounting rules stated here and used by the actors:

- labels: `fedactors.privacy.mechanisms.randomised_labels` (Eq. 25) or, for numbers, `randomised_values`.
- features: a row's aggregated contribution (over all its duplicates) is clipped, so the neighbouring relation is
  "one base row of one table replaced or removed", whatever its duplicate count. A joined tuple has one row in every
  table, so for "one joined tuple" the tables' budgets add up.
- predictions h = f(theta; T) read the table again and are *not* covered by the noise in theta: who sees theta and h
  solves for the rows (`fedactors.privacy.attacks.least_squares`). They need their own clipping, noise
  and budget.

Legend: n rows, C outputs or classes, D columns, P parameters, t rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedactors.privacy.mechanisms import add_gaussian, clip_and_noise, clip_rows
from protocols.tablepuppet.models import predict, row_gradients
from protocols.tablepuppet.subproblem import Subproblem

Array = NDArray[np.float64]


def noisy_gradient_sum(gradients_nP: Array, clip: float, noise_multiplier: float, rng: np.random.Generator) -> Array:
    """Return the sum of clipped row gradients plus Gaussian noise of deviation ``noise_multiplier * clip``.

    One release of the Gaussian mechanism for "one base row removed". In RFL-SGD a row with many duplicates is in
    many batches of an epoch, so the accountant counts every batch and claims no amplification by sampling.
    """
    return add_gaussian(clip_rows(gradients_nP, clip).sum(axis=0), noise_multiplier * clip, rng)


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
        total = noisy_gradient_sum(row_gradients(problem.model, theta, x, dh), clip, noise_multiplier, noise)
        gradient = total / (sampling_rate * n) + weight_decay * theta
        if anchor_P is not None:
            gradient += problem.tau * (theta - anchor_P)
        theta -= learning_rate * gradient
    return theta


def noisy_predictions(h_nC: Array, clip: float | None, noise_multiplier: float, rng: np.random.Generator) -> Array:
    """Return predictions clipped row by row with Gaussian noise of deviation ``noise_multiplier * clip``."""
    return h_nC if clip is None else clip_and_noise(h_nC, clip, noise_multiplier * clip, rng)


def compose_over_tables(epsilons: Sequence[float], deltas: Sequence[float]) -> tuple[float, float]:
    """Return the budget of one joined tuple, which touches a row in every table: the sums (basic composition)."""
    return float(sum(epsilons)), float(sum(deltas))

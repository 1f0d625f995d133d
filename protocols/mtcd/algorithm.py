"""STCD and MTCD for generalised linear models as functions on arrays (Algorithms 1 and 2).

Shapes: N samples, B rows of the round's mini-batch (B = N in the full-batch case), D features of one client.
A token is Z (B,): sum_k X_k theta_k at the token's own copy of theta. theta_0 is empty for these models.

All arguments may be read-only; what is returned is new. The inner loop of a visit allocates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from protocols.mtcd.objective import Array, Problem, Ridge, quiet_divergence

Rows = NDArray[np.int64]


def batch_rows(seed: int, round_: int, num_samples: int, batch_size: int | None) -> Rows | None:
    """Return the rows of the round's mini-batch, the same at every client (shared seed); None means all."""
    if batch_size is None or batch_size >= num_samples:
        return None
    generator = np.random.default_rng([seed, round_])
    return np.sort(generator.choice(num_samples, size=batch_size, replace=False))


@quiet_divergence
def represent(x_ND: Array, theta_D: Array, rows_B: Rows | None = None) -> Array:
    """Return h_k = X_k theta_k over the rows of the mini-batch (B,)."""
    return (x_ND if rows_B is None else x_ND[rows_B]) @ theta_D


@quiet_divergence
def visit(
    problem: Problem,
    x_BD: Array,
    y_B: Array,
    theta_D: Array,
    z_B: Array,
    *,
    step: float,
    num_local_steps: int,
    num_samples: int,
) -> tuple[Array, Array]:
    """Do Q local steps on the visited client's block and keep the token in accordance (equation 2).

    Each step is theta_k <- prox(theta_k - step X_k^T dphi/dZ - step grad r), then Z <- Z + X_k (new - old).

    Returns:
        The client's new theta_k (D,) and the token's new Z (B,).
    """
    theta_D, z_B = theta_D.copy(), z_B.copy()
    slope_B, image_B = np.empty_like(z_B), np.empty_like(z_B)
    move_D, old_D = np.empty_like(theta_D), np.empty_like(theta_D)
    smooth_penalty = problem.smooth_penalty
    for _ in range(num_local_steps):
        np.dot(problem.slope(z_B, y_B, num_samples, slope_B), x_BD, out=move_D)
        old_D[:] = theta_D
        move_D *= step
        theta_D *= 1.0 - step * smooth_penalty
        theta_D -= move_D
        problem.shrink(theta_D, step)
        np.subtract(theta_D, old_D, out=move_D)
        np.dot(x_BD, move_D, out=image_B)
        z_B += image_B
    return theta_D, z_B


def gram(x_ND: Array) -> Array:
    """Return X_k^T X_k (D, D), computed once for `visit_ridge_gram`."""
    return x_ND.T @ x_ND


def gram_is_cheaper(num_samples: int, num_features: int, num_local_steps: int) -> bool:
    """Say whether Q ridge steps cost fewer multiplications on the Gram matrix than on the data (full batch)."""
    on_data = 2 * num_samples * num_features * num_local_steps
    return 2 * num_samples * num_features + num_features * num_features * num_local_steps < on_data


@quiet_divergence
def visit_ridge_gram(
    problem: Ridge,
    x_ND: Array,
    gram_DD: Array,
    y_N: Array,
    theta_D: Array,
    z_N: Array,
    *,
    step: float,
    num_local_steps: int,
) -> tuple[Array, Array]:
    """Do the steps of `visit` for ridge and the full batch, touching the N samples twice instead of 2Q times.

    The block's gradient g obeys g <- g - step (X_k^T X_k + alpha I) g, so the steps between the first gradient and
    the last update of Z need only D x D products. The same numbers as `visit` up to rounding.
    """
    start_D = theta_D
    theta_D = theta_D.copy()
    gradient_D = (z_N - y_N) @ x_ND
    gradient_D += problem.alpha * theta_D
    image_D, move_D = np.empty_like(theta_D), np.empty_like(theta_D)
    for _ in range(num_local_steps):
        np.multiply(gradient_D, step, out=move_D)
        theta_D -= move_D
        np.dot(gram_DD, move_D, out=image_D)
        gradient_D -= image_D
        move_D *= problem.alpha
        gradient_D -= move_D
    return theta_D, z_N + x_ND @ (theta_D - start_D)


def cluster_weights(token: int, num_tokens: int) -> Array:
    """Return w_k of the token-per-cluster setting (Gamma,): all on the token of the own cluster (Section 4.1)."""
    weights_G = np.zeros(num_tokens)
    weights_G[token] = 1.0
    return weights_G


def overlapping_weights(num_tokens: int) -> Array:
    """Return w_k of the overlapping setting (Gamma,): 1/Gamma for every token (Section 4.2)."""
    return np.full(num_tokens, 1.0 / num_tokens)


def combine(theta_D: Array, copies: Mapping[int, Array], weights_G: Array) -> Array:
    """Return theta_k <- sum_gamma w_{k,gamma} theta_k^gamma (Algorithm 2, line 12).

    `copies` holds the client's own copy for each token that visited it. A token that never came left its copy at the
    value of the last sync, `theta_D`, and counts with its full weight. Written as theta + sum w (copy - theta), so a
    client nobody visited keeps its value to the bit.
    """
    combined_D = theta_D.copy()
    for token in sorted(copies):
        weight = weights_G[token]
        if weight == 1.0:
            return copies[token].copy()
        if weight != 0.0:
            combined_D += weight * (copies[token] - theta_D)
    return combined_D


def rebuild_token(representations: Sequence[Array]) -> Array:
    """Return Z = sum_k h_k, added in the given order (the clients' order, never that of arrival)."""
    z_B = np.zeros_like(representations[0])
    for h_B in representations:
        z_B += h_B
    return z_B


def merge_cluster_tokens(z_B: Array, tokens: Sequence[Array]) -> Array:
    """Return Z0 + sum_gamma (Z_gamma - Z0): the synced Z for one token per cluster, sum aggregation, the same rows."""
    merged_B = z_B.copy()
    for token_B in tokens:
        merged_B += token_B - z_B
    return merged_B


def average_tokens(tokens: Sequence[Array]) -> Array:
    """Return the mean of the tokens' Z: the synced Z of overlapping tokens, if h is linear and rows are the same."""
    return rebuild_token(tokens) / len(tokens)


def stale_steps(num_local_steps: int, num_hops: int, smallest_cluster: int) -> int:
    """Return about how many steps one block takes between two syncs: Q ceil((S + 1) / clients in the cluster)."""
    return num_local_steps * math.ceil((num_hops + 1) / smallest_cluster)


def diverged(value: float, start: float) -> bool:
    """Say whether the objective has left the region where it began: not finite, or over ten times its start."""
    return not math.isfinite(value) or value > 10.0 * abs(start) + 1e-12


def divergence_line(learning_rate: float, value: float, start: float, round_: int, safe: float) -> str:
    """Return the line for the user whose step size diverges, with a safe value."""
    return (
        f"learning_rate: {learning_rate:g} diverges (objective {value:.3g} in round {round_}, {start:.3g} at the "
        f"start); a safe value here is {safe:.3g}"
    )

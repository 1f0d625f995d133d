"""Generalised linear objectives, their step sizes and their exact minima (equation 1, Section 5.1).

Shapes: N samples, B rows of a mini-batch, D features of one client, F features of all clients together.
Rows may have weights (B): phi is then the sum, or mean, of each row's loss times its weight; None: all count alike.
A problem is f(theta) = phi(Z) + sum_k r(theta_k) with Z = sum_k X_k theta_k. Both problems here hide the same five
operations behind one interface, so that the local step of MTCD is written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from fedactors.data.values import are_finite
from fedactors.errors import BadInput
from fedactors.protocols.mtcd.config import MtcdConfig

Array = NDArray[np.float64]
quiet_divergence = np.errstate(over="ignore", invalid="ignore")
"""Decorator: a step size that diverges is noticed by the run and named there, not by numpy's warnings."""


class Problem(Protocol):
    """What a generalised linear model must offer: a loss of Z and a separable regulariser."""

    def loss(self, z_B: Array, y_B: Array, num_samples: int, weights_B: Array | None = None) -> float:
        """Return phi over the given rows, as an unbiased estimate of phi over `num_samples` rows."""

    def slope(self, z_B: Array, y_B: Array, num_samples: int, out: Array, weights_B: Array | None = None) -> Array:
        """Write dphi/dZ of the estimate of `loss` into `out` and return it."""

    def curvature(self, num_samples: int) -> float:
        """Return the largest second derivative of phi along one sample of weight 1, over the full batch."""

    @property
    def smooth_penalty(self) -> float:
        """Curvature of the smooth part of the regulariser."""

    def penalty(self, theta_D: Array) -> float:
        """Return r(theta_k)."""

    def shrink(self, theta_D: Array, step: float) -> None:
        """Apply the proximal step of the part of r that is not smooth, in place."""


@dataclass(frozen=True, slots=True)
class Ridge:
    """1/2 ||X theta - y||^2 + alpha/2 ||theta||^2 (Section 5.1)."""

    alpha: float = 10.0

    @quiet_divergence
    def loss(self, z_B: Array, y_B: Array, num_samples: int, weights_B: Array | None = None) -> float:
        """Return half the squared residual, scaled from the rows given to all rows."""
        residual_B = z_B - y_B
        weighted_B = residual_B if weights_B is None else residual_B * weights_B
        return 0.5 * float(residual_B @ weighted_B) * (num_samples / len(y_B))

    def slope(self, z_B: Array, y_B: Array, num_samples: int, out: Array, weights_B: Array | None = None) -> Array:
        """Write the residual, scaled from the rows given to all rows."""
        np.subtract(z_B, y_B, out=out)
        if weights_B is not None:
            out *= weights_B
        if len(out) != num_samples:
            out *= num_samples / len(out)
        return out

    def curvature(self, num_samples: int) -> float:
        """Return 1: the loss is a plain sum over samples."""
        return 1.0

    @property
    def smooth_penalty(self) -> float:
        """Return alpha."""
        return self.alpha

    @quiet_divergence
    def penalty(self, theta_D: Array) -> float:
        """Return alpha/2 ||theta_k||^2."""
        return 0.5 * self.alpha * float(theta_D @ theta_D)

    def shrink(self, theta_D: Array, step: float) -> None:
        """Do nothing: the whole regulariser is smooth."""


@dataclass(frozen=True, slots=True)
class SparseLogistic:
    """1/N sum_n log(1 + exp(-y_n z_n)) + beta ||theta||_1 with labels -1 and +1 (Section 5.1).

    The paper's text does not show the factor of the loss; the mean over samples is taken here.
    """

    beta: float = 1e-3

    def loss(self, z_B: Array, y_B: Array, num_samples: int, weights_B: Array | None = None) -> float:
        """Return the mean log-loss of the rows given (an unbiased estimate of the mean of all)."""
        losses_B = np.logaddexp(0.0, -y_B * z_B)
        return float(np.mean(losses_B if weights_B is None else losses_B * weights_B))

    def slope(self, z_B: Array, y_B: Array, num_samples: int, out: Array, weights_B: Array | None = None) -> Array:
        """Write -y sigma(-y z) / B."""
        np.multiply(z_B, y_B, out=out)
        np.negative(out, out=out)
        expit(out, out=out)
        out *= y_B
        out *= -1.0 / len(out)
        if weights_B is not None:
            out *= weights_B
        return out

    def curvature(self, num_samples: int) -> float:
        """Return 1/(4N)."""
        return 0.25 / num_samples

    @property
    def smooth_penalty(self) -> float:
        """Return 0: the L1 term is handled by its proximal step."""
        return 0.0

    def penalty(self, theta_D: Array) -> float:
        """Return beta ||theta_k||_1."""
        return self.beta * float(np.abs(theta_D).sum())

    def shrink(self, theta_D: Array, step: float) -> None:
        """Soft-threshold by ``step * beta``, in place."""
        theta_D -= np.clip(theta_D, -step * self.beta, step * self.beta)


def problem_of(config: MtcdConfig) -> Problem:
    """Return the objective that the config names."""
    return Ridge(config.ridge_penalty) if config.problem == "ridge" else SparseLogistic(config.l1_penalty)


def objective(problem: Problem, blocks: Sequence[Array], y_N: Array, thetas: Sequence[Array]) -> float:
    """Return f(theta) over all samples, Z summed in the order of the clients."""
    z_N = np.zeros(len(y_N))
    for x_ND, theta_D in zip(blocks, thetas, strict=True):
        z_N += x_ND @ theta_D
    return problem.loss(z_N, y_N, len(y_N)) + sum(problem.penalty(theta_D) for theta_D in thetas)


def relative_gap(value: float, optimum: float) -> float:
    """Return (f - f*) / f*, the relative suboptimality gap of Section 5.1."""
    return (value - optimum) / optimum


def largest_gram_eigenvalue(blocks: Sequence[Array], tolerance: float = 1e-9, max_iterations: int = 2000) -> float:
    """Return ||X||_2^2 of X = [X_1 ... X_K] by power iteration on the N x N matrix sum_k X_k X_k^T.

    One block gives its own constant. Only the vectors X_k X_k^T u would leave a client. The start vector is fixed, so
    the result is the same everywhere; the Rayleigh quotient approaches the eigenvalue from below.
    """
    num_samples = len(blocks[0])
    u_N: Array = np.random.default_rng(0).standard_normal(num_samples)
    np.divide(u_N, np.linalg.norm(u_N), out=u_N)
    value = 0.0
    for _ in range(max_iterations):
        image_N: Array = np.zeros(num_samples)
        for x_ND in blocks:
            image_N += x_ND @ (u_N @ x_ND)
        new_value = float(u_N @ image_N)
        length = float(np.linalg.norm(image_N))
        if length == 0.0:
            return 0.0
        np.divide(image_N, length, out=u_N)
        if abs(new_value - value) <= tolerance * new_value:
            return new_value
        value = new_value
    return value


def smoothness(problem: Problem, blocks: Sequence[Array]) -> float:
    """Return the smoothness constant of f over `blocks` moved together (A1); one block gives L_block."""
    curvature = problem.curvature(blocks[0].shape[0])
    return curvature * largest_gram_eigenvalue(blocks) + problem.smooth_penalty


def check_data(names: Sequence[str], blocks: Sequence[Array], y_N: Array) -> None:
    """Reject an empty block, features that do not match the labels in length, and values that are not finite."""
    if len(y_N) == 0:
        raise BadInput("labels: empty, at least one sample is needed")
    for name, x_ND in zip(names, blocks, strict=True):
        if x_ND.ndim < 2 or x_ND.size == 0:
            raise BadInput(f"features of {name}: shape {x_ND.shape}, at least one sample and one feature are needed")
        if len(x_ND) != len(y_N):
            raise BadInput(f"features of {name}: {len(x_ND)} rows for {len(y_N)} labels, the lengths must be equal")
        if not are_finite(x_ND):
            raise BadInput(f"features of {name}: a value is missing or infinite, all must be finite numbers")
    if not np.isfinite(y_N).all():
        raise BadInput("labels: a value is missing or infinite, all must be finite numbers")


def solve(problem: Problem, x_NF: Array, y_N: Array) -> tuple[Array, float]:
    """Return theta* (F,) and f* of a ridge or sparse logistic problem."""
    if isinstance(problem, Ridge):
        theta_F = solve_ridge(x_NF, y_N, problem.alpha)
    elif isinstance(problem, SparseLogistic):
        theta_F = solve_sparse_logistic(x_NF, y_N, problem.beta)
    else:
        raise BadInput(f"problem: {type(problem).__name__} has no exact minimum, allowed are ridge and sparse-logistic")
    return theta_F, objective(problem, [x_NF], y_N, [theta_F])


def solve_ridge(x_NF: Array, y_N: Array, alpha: float) -> Array:
    """Return theta* in closed form, from the smaller of the primal (F x F) and dual (N x N) systems."""
    num_samples, num_features = x_NF.shape
    if num_features <= num_samples:
        return np.asarray(cho_solve(cho_factor(x_NF.T @ x_NF + alpha * np.eye(num_features)), x_NF.T @ y_N))
    return np.asarray(x_NF.T @ cho_solve(cho_factor(x_NF @ x_NF.T + alpha * np.eye(num_samples)), y_N))


def solve_sparse_logistic(
    x_NF: Array, y_N: Array, beta: float, tolerance: float = 1e-12, max_sweeps: int = 500, step: float | None = None
) -> Array:
    """Return theta* with a duality gap of at most `tolerance` (relative to f); `step` is at most 1/L, by default found.

    Accelerated proximal gradient with restart finds the support; a damped Newton method on the support does the rest.
    """
    problem = SparseLogistic(beta)
    num_samples = len(y_N)
    theta_F = np.zeros(x_NF.shape[1])
    step = step or 1.0 / (1.01 * smoothness(problem, [x_NF]))
    for _ in range(max_sweeps):
        theta_F = _accelerated_steps(problem, x_NF, y_N, theta_F, step, num_steps=100)
        theta_F = _newton_on_support(problem, x_NF, y_N, theta_F)
        value = problem.loss(x_NF @ theta_F, y_N, num_samples) + problem.penalty(theta_F)
        if sparse_logistic_gap(x_NF, y_N, beta, theta_F) <= tolerance * value:
            return theta_F
    raise BadInput(f"l1_penalty: {beta} leaves a problem whose minimum was not found to {tolerance:g}, raise it")


def sparse_logistic_gap(x_NF: Array, y_N: Array, beta: float, theta_F: Array) -> float:
    """Return the duality gap of `theta_F`: an upper bound of f - f* (dual point: the slopes, scaled to be feasible)."""
    num_samples = len(y_N)
    problem = SparseLogistic(beta)
    z_N = x_NF @ theta_F
    p_N = -y_N * num_samples * problem.slope(z_N, y_N, num_samples, np.empty_like(z_N))
    correlation = float(np.abs(x_NF.T @ (y_N * p_N)).max()) / num_samples
    p_N *= min(1.0, beta / correlation) if correlation > 0 else 1.0
    entropy = np.mean(_x_log_x(p_N) + _x_log_x(1.0 - p_N))
    return problem.loss(z_N, y_N, num_samples) + problem.penalty(theta_F) + float(entropy)


def _x_log_x(p_N: Array) -> Array:
    return np.where(p_N > 0, p_N * np.log(np.maximum(p_N, np.finfo(float).tiny)), 0.0)


def _accelerated_steps(
    problem: SparseLogistic, x_NF: Array, y_N: Array, theta_F: Array, step: float, num_steps: int
) -> Array:
    """Proximal gradient with momentum; the momentum restarts when it points uphill."""
    point_F, momentum = theta_F.copy(), 1.0
    slope_N = np.empty(len(y_N))
    for _ in range(num_steps):
        problem.slope(x_NF @ point_F, y_N, len(y_N), slope_N)
        new_F = point_F - step * (slope_N @ x_NF)
        problem.shrink(new_F, step)
        if float((point_F - new_F) @ (new_F - theta_F)) > 0:
            momentum = 1.0
        next_momentum = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum * momentum))
        point_F = new_F + ((momentum - 1.0) / next_momentum) * (new_F - theta_F)
        theta_F, momentum = new_F, next_momentum
    return theta_F


def _newton_on_support(problem: SparseLogistic, x_NF: Array, y_N: Array, theta_F: Array) -> Array:
    """Newton steps over the non-zero entries with their signs fixed, halved until the objective falls."""
    num_samples = len(y_N)
    support = np.flatnonzero(theta_F)
    if len(support) == 0 or len(support) > num_samples:
        return theta_F
    x_NS, theta_S = x_NF[:, support], theta_F[support]
    signs_S = np.sign(theta_S)
    value = problem.loss(x_NS @ theta_S, y_N, num_samples) + problem.penalty(theta_S)
    for _ in range(20):
        z_N = x_NS @ theta_S
        gradient_S = problem.slope(z_N, y_N, num_samples, np.empty(num_samples)) @ x_NS + problem.beta * signs_S
        sigma_N = expit(z_N)
        hessian_SS = (x_NS * (sigma_N * (1.0 - sigma_N) / num_samples)[:, None]).T @ x_NS
        ridge = 1e-14 * float(np.trace(hessian_SS)) / len(support)
        direction_S = np.linalg.solve(hessian_SS + ridge * np.eye(len(support)), -gradient_S)
        for halving in range(30):
            trial_S = theta_S + 0.5**halving * direction_S
            trial_S[np.sign(trial_S) != signs_S] = 0.0
            trial = problem.loss(x_NS @ trial_S, y_N, num_samples) + problem.penalty(trial_S)
            if trial <= value:
                break
        else:
            break
        moved = float(np.abs(trial_S - theta_S).max())
        theta_S, value = trial_S, trial
        if moved == 0.0 or (theta_S == 0.0).any():
            break
    result_F = np.zeros_like(theta_F)
    result_F[support] = theta_S
    return result_F

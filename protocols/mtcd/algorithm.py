"""STCD and MTCD for generalised linear models: Algorithms 1 and 2 as functions on arrays, and as the actors see them.

Shapes: N samples, B rows of the round's mini-batch (B = N in the full-batch case), D features of one client.
A token is Z (B,): sum_k X_k theta_k at the token's own copy of theta. theta_0 is empty for these models.

All arguments may be read-only; what is returned is new. The inner loop of a visit allocates nothing. `LinearBlock` is
a client's side and `LinearHead` the server's: they say which function to compute with which arguments, as `compute`
wants it. `networks` offers the same two for split networks; what does not depend on the model stands here once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedactors.actors.context import Work
from fedactors.learning.metrics import known, task_metrics
from fedactors.protocols.mtcd.config import MtcdConfig
from fedactors.protocols.mtcd.objective import (
    Array,
    Problem,
    Ridge,
    largest_gram_eigenvalue,
    problem_of,
    quiet_divergence,
)
from fedactors.runtime.interface import Costs
from fedactors.secure_sums.primitives import FixedPoint

Rows = NDArray[np.int64]
NO_THETA_0: Array = np.zeros(0)
NETWORK_STEP = 0.05
"""The step size of `learning_rate=auto` with a network."""
NUM_PROBES = 30
"""Images of each client's kernel that settle a step size."""
_BATCH_MARGIN = 1.1
"""Other mini-batches may have a larger norm than those that were looked at."""
_MOST_HALVINGS = 60


class Task(NamedTuple):
    """What an actor is to compute."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    work: Work


def batch_rows(seed: int, round_: int, num_samples: int, batch_size: int | None) -> Rows | None:
    """Return the rows of the round's mini-batch, the same at every client (shared seed); None means all."""
    if batch_size is None or batch_size >= num_samples:
        return None
    generator = np.random.default_rng([seed, round_])
    return np.sort(generator.choice(num_samples, size=batch_size, replace=False))


# --- a visit (equation 2) ---


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
    backtracking: bool = False,
    weights_B: Array | None = None,
    scale: float = 1.0,
) -> tuple[Array, Array]:
    """Do Q local steps on the visited client's block and keep the token in accordance (equation 2).

    Each step is theta_k <- prox(theta_k - step X_k^T dphi/dZ - step grad r), then Z <- Z + X_k (new - old). With
    `backtracking` it is halved, for this visit, until f(new) <= f(old) + <grad, new - old> + |new - old|^2 / (2 step)
    for the smooth part f of the objective at the token (Beck and Teboulle 2009, Section 4). The token counts each
    change `scale` times: of Gamma tokens, phi(Z + sum change) <= 1/Gamma sum phi(Z + Gamma change) by convexity.

    Returns:
        The client's new theta_k (D,) and the token's new Z (B,).
    """
    theta_D, z_B = theta_D.copy(), z_B.copy()
    slope_B, image_B = np.empty_like(z_B), np.empty_like(z_B)
    move_D, old_D = np.empty_like(theta_D), np.empty_like(theta_D)
    smooth_penalty = problem.smooth_penalty
    for _ in range(num_local_steps):
        np.dot(problem.slope(z_B, y_B, num_samples, slope_B, weights_B), x_BD, out=move_D)
        old_D[:] = theta_D
        move_D *= step
        theta_D *= 1.0 - step * smooth_penalty
        theta_D -= move_D
        problem.shrink(theta_D, step)
        np.subtract(theta_D, old_D, out=move_D)
        np.dot(x_BD, move_D, out=image_B)
        if scale != 1.0:
            image_B *= scale
        if backtracking:
            gradient_D = slope_B @ x_BD + smooth_penalty * old_D
            before = problem.loss(z_B, y_B, num_samples, weights_B) + 0.5 * smooth_penalty * float(old_D @ old_D)
            for _halving in range(_MOST_HALVINGS):
                after = problem.loss(z_B + image_B, y_B, num_samples, weights_B)
                after += 0.5 * smooth_penalty * float(theta_D @ theta_D)
                promised = before + float(gradient_D @ move_D) + float(move_D @ move_D) / (2 * step)
                if after <= promised + 1e-12 * abs(before):
                    break
                step *= 0.5
                theta_D[:] = old_D - step * gradient_D
                problem.shrink(theta_D, step)
                np.subtract(theta_D, old_D, out=move_D)
                np.dot(x_BD, move_D, out=image_B)
        z_B += image_B
    return theta_D, z_B


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
    weights_N: Array | None = None,
    scale: float = 1.0,
) -> tuple[Array, Array]:
    """Do the steps of `visit` for ridge and the full batch, touching the N samples twice instead of 2Q times.

    The block's gradient g obeys g <- g - step (X_k^T X_k + alpha I) g, so the steps between the first gradient and
    the last update of Z need only D x D products. The same numbers as `visit` up to rounding. Where rows have weights,
    X_k^T W X_k is the Gram matrix.
    """
    start_D = theta_D
    theta_D = theta_D.copy()
    residual_N = z_N - y_N
    gradient_D = (residual_N if weights_N is None else residual_N * weights_N) @ x_ND
    gradient_D += problem.alpha * theta_D
    image_D, move_D = np.empty_like(theta_D), np.empty_like(theta_D)
    for _ in range(num_local_steps):
        np.multiply(gradient_D, step, out=move_D)
        theta_D -= move_D
        np.dot(gram_DD, move_D, out=image_D)
        image_D *= scale
        gradient_D -= image_D
        move_D *= problem.alpha
        gradient_D -= move_D
    return theta_D, z_N + x_ND @ (scale * (theta_D - start_D))


class VisitOptions(NamedTuple):
    """What a visit needs beside arrays."""

    step: float
    num_local_steps: int
    num_samples: int
    backtracking: bool = False
    scale: float = 1.0


def visit_block(
    problem: Problem,
    x_ND: Array,
    gram_DD: Array | None,
    y_N: Array,
    theta_D: Array,
    z_B: Array,
    rows_B: Rows | None,
    options: VisitOptions,
    weights_N: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Do a visit's local steps on the data or, where the client keeps it, on the Gram matrix.

    Returns:
        theta_k (D,), the empty theta_0, and Z (B,).
    """
    step, num_local_steps, num_samples, backtracking, scale = options
    if gram_DD is not None and isinstance(problem, Ridge):
        given = (problem, x_ND, gram_DD, y_N, theta_D, z_B)
        found = visit_ridge_gram(*given, step=step, num_local_steps=num_local_steps, weights_N=weights_N, scale=scale)
    else:
        x_BD, y_B = (x_ND, y_N) if rows_B is None else (x_ND[rows_B], y_N[rows_B])
        found = visit(
            problem,
            x_BD,
            y_B,
            theta_D,
            z_B,
            step=step,
            num_local_steps=num_local_steps,
            num_samples=num_samples,
            backtracking=backtracking,
            weights_B=some(weights_N, rows_B),
            scale=scale,
        )
    return found[0], NO_THETA_0, found[1]


# --- what holds for every model ---


def some(weights_N: Array | None, rows_B: Rows | None) -> Array | None:
    """Return the weights of the rows of a mini-batch, or of all; None where all rows count alike."""
    return weights_N if weights_N is None or rows_B is None else weights_N[rows_B]


def combine(theta_P: Array, copies: Mapping[int, Array], weight: float) -> Array:
    """Return theta_k <- sum_gamma w theta_k^gamma (Algorithm 2, line 12).

    `copies` holds the client's own copy for each token that visited it. With `weight` 1 (Section 4.1) there is one,
    of the own cluster's token; with 1/Gamma (Section 4.2) a token that never came left its copy at the value of the
    last sync, `theta_P`, and counts with its full weight. Written as theta + sum w (copy - theta), so a client nobody
    visited keeps its value to the bit.
    """
    combined_P = theta_P.copy()
    for token in sorted(copies):
        if weight == 1.0:
            return copies[token].copy()
        combined_P += weight * (copies[token] - theta_P)
    return combined_P


def aggregate(representations: Mapping[int, NDArray[Any]], num_slots: int | None = None) -> NDArray[Any]:
    """Return Z of the clients' representations, in the clients' order, never that of arrival.

    They are added up or, with `num_slots`, put side by side; a client that is missing counts as zeros.
    """
    like = next(iter(representations.values()))
    if num_slots is not None:
        blank = np.zeros_like(like)
        return np.concatenate([representations.get(client, blank) for client in range(num_slots)], axis=1)
    z = np.zeros_like(like)
    for client in sorted(representations):
        z += representations[client]
    return z


def stale_steps(num_local_steps: int, num_hops: int, smallest_cluster: int) -> int:
    """Return about how many steps one block takes between two syncs: Q ceil((S + 1) / clients in the cluster)."""
    return num_local_steps * math.ceil((num_hops + 1) / smallest_cluster)


def moves_in_parallel(config: MtcdConfig) -> bool:
    """Say whether several blocks move between two syncs without seeing each other."""
    return config.algorithm == "svfl" or (config.mode == "token-per-cluster" and config.tokens > 1)


def scheduled(config: MtcdConfig, step: float, num_train: int, round_: int) -> float:
    """Return the step size of a round, by the schedule over epochs."""
    rounds_per_epoch = max(1, num_train // (config.batch_size or num_train))
    return step * config.rate_schedule.at(round_ // rounds_per_epoch, config.num_rounds // rounds_per_epoch + 1)


def approved_step(config: MtcdConfig, num_train: int, round_: int) -> float:
    """Return the step size of a round where the settings alone say it, as they do with secure sums."""
    step = NETWORK_STEP if config.learning_rate == "auto" else float(config.learning_rate)
    return scheduled(config, step, num_train, round_)


def safe_step(config: MtcdConfig, block: float, joint: float, smallest_cluster: int) -> float:
    """Return the step for blocks that move at once: min(1/L_block, 1/(L stale steps)).

    L_block is the largest constant of a block (`block`), L that of all blocks together (`joint`).

    Stale steps are those that a block takes between two syncs while the others stand still. With one step this is
    1/L. With more it has to shrink: a block that runs to its own minimum makes a Jacobi iteration, which diverges for
    correlated blocks whatever the step (Theorem 1 asks for O(1/(L tau))). Blocks that move between two syncs have
    together a constant of no more than their number times L_block.
    """
    num_stale, num_moving = config.num_local_steps, config.num_clients
    if config.algorithm == "mtcd":
        num_stale = stale_steps(config.num_local_steps, config.num_hops, smallest_cluster)
        num_moving = min(num_moving, config.tokens * (config.num_hops + 1))
    return min(1.0 / block, 1.0 / (min(joint, num_moving * block) * num_stale))


def next_momentum(age: float) -> tuple[float, float]:
    """Return Nesterov's momentum of a round, and what the next one is to be called with; 1 starts anew."""
    following = 0.5 * (1.0 + math.sqrt(1.0 + 4.0 * age * age))
    return (age - 1.0) / following, following


def most_momentum(num_rounds: int) -> float:
    """Return a bound on the momentum of so many rounds: an age grows by 1/2 to 1 a round."""
    return (num_rounds - 1.0) / (num_rounds + 0.5) if num_rounds > 1 else 0.0


def has_diverged(value: float, start: float) -> bool:
    """Say whether the objective has left the region where it began: not finite, or over ten times its start."""
    return not math.isfinite(value) or value > 10.0 * abs(start) + 1e-12


# --- as the actors see it ---


def default_costs(config: MtcdConfig) -> Costs:
    """Return what computes take on one core: overhead + units / rate seconds.

    For generalised linear models units are rows x features x local steps (each touches the data twice), at 2 GFLOP/s of
    a memory-bound product in float64; for networks they are rows x local steps, at the operations of the model.
    `scenarios/benchmarks/mtcd_hops.py` measures the first again. Scores are no part of a run and take no time of it.
    """
    overhead, once, visit = 2e-5, 4e-10, 8e-10
    if config.problem == "network":
        width, pixels = config.hidden_size, 256.0
        operations = 2.0 * 9 * width * width * pixels * (8 if config.network == "resnet18" else 1)
        if config.network == "mlp":
            operations = 2.0 * width * (config.num_features / config.num_clients + config.representation_size)
        once = operations / 2.0e10
        overhead, visit = 20 * overhead, 3 * once
    return Costs(
        {
            "visit": (overhead, visit),
            "represent": (overhead, once),
            "fusion": (overhead, 1e-8),
            "probe": (overhead, 2 * once),
            "iterate": (overhead, 2 * once),
            "merge": (overhead, 1e-9),
            "score": (0.0, 0.0),
        }
    )


def score(
    problem: Problem, z_N: Array, y_N: Array, has_classes: bool, weights_N: Array | None = None
) -> dict[str, float]:
    """Return the metrics of classes (-1 and 1) or targets; the loss is the problem's own, in which alone rows weigh."""
    found = task_metrics("binary", y_N > 0, z_N) if has_classes else task_metrics("regression", y_N, z_N)
    return {**known(found), "loss": problem.loss(z_N, y_N, len(y_N), weights_N)}


def kernel_image(x_ND: Array, u_B: Array, rows_B: Rows | None = None) -> Array:
    """Return X_k X_k^T u (B,) of the rows, or of all."""
    x_BD = x_ND if rows_B is None else x_ND[rows_B]
    return x_BD @ (u_B @ x_BD)


def squared_norm(x_ND: Array, batches: Sequence[Rows] = ()) -> float:
    """Return ||X_k||^2, as steps on all rows meet it, or on mini-batches, whose slope is scaled by N / B.

    Of mini-batches it is the largest of those given and a margin, at most what all rows have, times N / B.
    """
    whole = largest_gram_eigenvalue([x_ND])
    if not batches:
        return whole
    largest = max(largest_gram_eigenvalue([x_ND[rows_B]]) for rows_B in batches)
    return min(whole, _BATCH_MARGIN * largest) * len(x_ND) / len(batches[0])


def prefers_gram(config: MtcdConfig, num_samples: int, num_features: int) -> bool:
    """Say whether local steps are done on X_k^T X_k: as asked for, or because that takes fewer operations.

    A visit touches N x D numbers twice a step, or twice in all and D x D ones at each step.
    """
    if config.local_arithmetic != "auto":
        return config.local_arithmetic == "gram"
    if config.problem != "ridge" or config.batch_size is not None or config.backtracking:
        return False
    num_steps = config.num_local_steps
    return 2 * num_samples + num_steps * num_features < 2 * num_steps * num_samples


class LinearBlock:
    """A client's features and labels (training rows, and test rows for measuring)."""

    local = (slice(None),)
    """Where this client's representation lies in Z."""

    def __init__(
        self,
        config: MtcdConfig,
        features: Mapping[str, Array],
        labels: Mapping[str, Array],
        weights_N: Array | None = None,
    ) -> None:
        self.problem = problem_of(config)
        self.x, self.y = features, labels
        self._weights = weights_N
        self.num_samples, self.num_features = features["train"].shape
        self._has_classes = set(np.unique(labels["train"])) <= {-1.0, 1.0}
        self._num_local_steps = config.num_local_steps
        uses_gram = prefers_gram(config, self.num_samples, self.num_features)
        self._gram = self._as_steps_meet_it.T @ self._as_steps_meet_it if uses_gram else None
        self._backtracking, self._scale = config.backtracking, config.token_scale

    @property
    def _as_steps_meet_it(self) -> Array:
        """The training rows, each times the root of its weight, as the weighted loss's curvature has them."""
        x_ND = self.x["train"]
        return x_ND if self._weights is None else x_ND * np.sqrt(self._weights)[:, None]

    def initial(self, generator: np.random.Generator) -> Array:
        """Return theta = 0, so that Z = 0."""
        return np.zeros(self.num_features)

    def initial_theta_0(self, generator: np.random.Generator) -> Array:
        """Return the empty theta_0."""
        return NO_THETA_0

    def blank(self, num_rows: int) -> Array:
        """Return Z of nobody (B,)."""
        return np.zeros(num_rows)

    def represent(self, theta_D: Array, rows_B: Rows | None, part: str = "train") -> Task:
        """Say how to compute h_k over rows of a part."""
        x_ND = self.x[part]
        units = (len(x_ND) if rows_B is None else len(rows_B)) * self.num_features
        return Task(represent, (x_ND, theta_D, rows_B), Work("represent", units))

    def visit(
        self, theta_D: Array, theta_0: Array, z_B: Array, rows_B: Rows | None, step: float, trains_theta_0: bool
    ) -> Task:
        """Say how to compute a visit; it gives (theta_k, theta_0, Z)."""
        options = VisitOptions(step, self._num_local_steps, self.num_samples, self._backtracking, self._scale)
        x_ND, y_N = self.x["train"], self.y["train"]
        arguments = (self.problem, x_ND, self._gram, y_N, theta_D, z_B, rows_B, options, self._weights)
        return Task(visit_block, arguments, Work("visit", len(z_B) * self.num_features * self._num_local_steps))

    def penalty(self, theta_D: Array) -> float:
        """Return r(theta_k)."""
        return self.problem.penalty(theta_D)

    def score(self, part: str, z_N: Array, theta_0: Array) -> Task:
        """Say how to compute the metrics of Z over a part."""
        weights_N = self._weights if part == "train" else None
        return Task(score, (self.problem, z_N, self.y[part], self._has_classes, weights_N), Work("score"))

    def squared_norm(self, batches: Sequence[Rows] = ()) -> Task:
        """Say how to compute ||X_k||^2, as steps on all rows or on these mini-batches meet it."""
        return Task(squared_norm, (self._as_steps_meet_it, batches), Work("probe", 100 * self.num_samples))

    def kernel_image(self, u_B: Array, rows_B: Rows | None = None) -> Task:
        """Say how to compute X_k X_k^T u of the rows, or of all."""
        return Task(kernel_image, (self._as_steps_meet_it, u_B, rows_B), Work("probe", len(u_B)))


class LinearHead:
    """The server's side: labels, the loss of Z, and no theta_0."""

    def __init__(self, config: MtcdConfig, y_N: Array, weights_N: Array | None = None) -> None:
        self.problem = problem_of(config)
        self._y, self._weights = y_N, weights_N

    def initial(self, generator: np.random.Generator) -> Array:
        """Return the empty theta_0."""
        return NO_THETA_0

    def nothing(self) -> Array | None:
        """Return Z of theta = 0 over all rows."""
        return np.zeros(len(self._y))

    def merge(self, z_B: Array | None, before: Mapping[int, Array], after: Mapping[int, Array], fresh: bool) -> Array:
        """Return Z with the representations in `after` in place of those in `before`, in the clients' order.

        `fresh` says that the rows are new ones, so that Z is the sum of `after` alone.
        """
        if fresh or z_B is None:
            return aggregate(after)
        z_B = z_B.copy()
        for client in sorted(after):
            z_B += after[client]
            if client in before:
                z_B -= before[client]
        return z_B

    def steps(self, theta_0: Array, z_B: Array, rows_B: Rows | None, step: float, num_steps: int) -> Task | None:
        """Return None: there is no theta_0 to train."""
        return None

    def loss(self, theta_0: Array, z_B: Array, rows_B: Rows | None) -> float:
        """Return phi(Z) over the rows, scaled to all rows."""
        y_B = self._y if rows_B is None else self._y[rows_B]
        return self.problem.loss(z_B, y_B, len(self._y), some(self._weights, rows_B))


# --- under masks ---


def point_of(config: MtcdConfig) -> FixedPoint:
    """Return how representations become words of a sum."""
    return FixedPoint(limit=config.secure_range, num_clients=config.num_clients)


def summand(h: NDArray[Any], penalty: float) -> Array:
    """Return what a client adds to a sum: its representation by rows, and a last row that begins with r(theta_k)."""
    rows_BE = h.reshape(len(h), -1)
    last_E = np.zeros(rows_BE.shape[1])
    last_E[0] = penalty
    return np.vstack([rows_BE, last_E])


def parts_of(total: Array, config: MtcdConfig) -> tuple[Array, float]:
    """Return Z, as the problem has it, and the sum of all regularisers."""
    z, penalty = total[:-1], float(total[-1, 0])
    return (z.astype(np.float32) if config.problem == "network" else z[:, 0]), penalty

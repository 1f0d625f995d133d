"""Server and coordinator mathematics of TablePuppet: operators, losses, ADMM updates (Table 2), consensus (Table 3).

    LoU gathers: predictions of the partitions -> of the vertical table        (concatenate, in partition order)
    LoJ gathers: predictions of the vertical tables -> sum on joined rows      (h_j = sum_i h_i[p_i(j)])
    LoJ scatters: a value on joined rows -> Y_i on each table's rows           (segment sums over G_i(j), Eq. 10, 14)
    LoU scatters: Y_i, G_i of the vertical table -> of the partitions          (split)

What a mini-batch touches is a `BatchRows`: the distinct rows of a table in the batch, alpha_i in total per epoch, which
is all that a client computes on and sends (duplicate reduction).

One scale of the loss everywhere: the problem is (1/N) sum_j l(sum_i h_ij; y_j) + beta sum_i R(theta_i) with
R = |theta|^2 / 2 and N the number of *joined* rows; lambda is the dual of the unscaled l, so Eq. 7 has no 1/N and
Eq. 9, 16 and 22 have it.

Legend: N joined rows, B rows of a batch, u distinct rows of a table in it, n_i rows of table i, C outputs, M vertical
tables, Q_i partitions, P parameters; h_NC sum of the tables' predictions, z_NC auxiliary variables, lambda_NC duals,
y_N labels (class numbers for softmax), G_n duplicate counts, Y_nC aggregated linear terms, theta_P, w_P, u_P consensus
variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from fedactors.data.values import allocate, blocks_of, is_large, read_only
from fedactors.privacy.mechanisms import kept_label_share

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Parts = Sequence[Array]
"""A value on joined rows, as arrays whose sum it is: see `mapping`."""
Loss = Literal["squared", "logistic", "softmax"]
AdmmMode = Literal["boyd", "paper_exact", "paper_sgd"]

_BLOCK = 1 << 15
_UNBALANCED, _CHANGE = 4.0, 10.0
"""The ratio of residuals from which the penalty moves, and its largest change in a round."""


# --- operators (Section 4.1) ---


@dataclass(frozen=True)
class BatchRows:
    """The rows of one table in one batch: ``rows_u`` distinct, ``position_B`` each batch row's position in them."""

    rows_u: Index
    position_B: Index

    def counts(self) -> Index:
        """Return how often each distinct row occurs in the batch (G_ij of the batch)."""
        return np.bincount(self.position_B, minlength=len(self.rows_u))


def gather_join(predictions: Sequence[Array], rows: Sequence[NDArray[np.integer[Any]]]) -> Array:
    """Return h_NC = sum_i h_i[p_i(j)], tables added in the given order (LoJ gather)."""
    h_NC = allocate((len(rows[0]), *predictions[0].shape[1:]), predictions[0].dtype)
    for block in blocks_of(len(h_NC), h_NC.nbytes / max(len(h_NC), 1)):
        h_NC[block] = np.take(predictions[0], rows[0][block], axis=0)
        for prediction, row in zip(predictions[1:], rows[1:], strict=True):
            h_NC[block] += np.take(prediction, row[block], axis=0)
    return h_NC


def scatter_join(values_NC: Array, rows_N: Index, num_rows: int) -> Array:
    """Return the sums over G_i(j) of a value on joined rows, for each row of a table (LoJ scatter, Eq. 10 and 14)."""
    if values_NC.shape[1] == 1:
        return np.asarray(np.bincount(rows_N, weights=values_NC[:, 0], minlength=num_rows), dtype=np.float64)[:, None]
    columns = [np.bincount(rows_N, weights=values_NC[:, c], minlength=num_rows) for c in range(values_NC.shape[1])]
    return np.stack(columns, axis=1)


def batch_rows(rows_B: Index, scratch_n: Index) -> BatchRows:
    """Return the distinct rows of a batch, O(B) whatever the table's size; `scratch_n` is overwritten.

    The distinct rows come in the order of their last occurrence in the batch, which depends on nothing else.
    """
    positions = np.arange(len(rows_B))
    scratch_n[rows_B] = positions
    rows_u = rows_B[scratch_n[rows_B] == positions]
    scratch_n[rows_u] = np.arange(len(rows_u))
    return BatchRows(rows_u=rows_u, position_B=scratch_n[rows_B])


def touch_tables(chosen: Sequence[Index], scratch: Sequence[Index]) -> list[BatchRows]:
    """Return the distinct rows of every table in a batch, from p_i of its joined rows."""
    return [batch_rows(rows_B, scratch_n) for rows_B, scratch_n in zip(chosen, scratch, strict=True)]


def epoch_batches(num_joined: int, batch_size: int, rng: np.random.Generator) -> list[Index]:
    """Return the joined rows of each mini-batch of an epoch in random order; the last may be smaller."""
    order = rng.permutation(num_joined)
    return [order[start : start + batch_size] for start in range(0, num_joined, batch_size)]


def gather_union(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return the partitions' arrays as the vertical table's, in partition order (LoU gather)."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def scatter_union(values_n: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """Return the vertical table's array split by partition (LoU scatter)."""
    return np.split(values_n, np.cumsum(sizes)[:-1])


def split_rows(rows_u: NDArray[np.integer[Any]], sizes: Sequence[int]) -> list[tuple[Index, Index]]:
    """Return for each partition (positions in `rows_u`, row numbers in the partition) of a batch's distinct rows."""
    ends = np.cumsum(sizes)
    owner = np.searchsorted(ends, rows_u, side="right")
    found = []
    for q, (end, size) in enumerate(zip(ends, sizes, strict=True)):
        positions = np.flatnonzero(owner == q)
        found.append((positions, rows_u[positions] - (end - size)))
    return found


# --- losses and scores ---

SCORE_NAMES: dict[Loss, str] = {"squared": "rmse", "logistic": "accuracy", "softmax": "accuracy"}


def score_rows(loss: Loss, h_NC: Array, y_N: NDArray[Any]) -> float:
    """Return the sum of squared errors, or how many classes are right."""
    if loss == "squared":
        return float(np.sum((h_NC[:, 0] - y_N) ** 2))
    if loss == "logistic":
        return float(np.count_nonzero((h_NC[:, 0] > 0) == (y_N > 0.5)))
    return float(np.count_nonzero(np.argmax(h_NC, axis=1) == y_N))


def unbiased_score(loss: Loss, h_NC: Array, y_N: NDArray[Any], deviation: float) -> tuple[float, float]:
    """Return the sum of squared errors, or how many are right, and the sum of losses, without the bias of label noise.

    Of numbers the noise adds its variance to each squared error. A class is kept with probability p and becomes each
    other one with q: of a score s(y) of classes, ``(s(y) - q sum_c s(c)) / (p - q)`` has the mean that labels without
    noise have. What no score can be is cut.
    """
    count = len(y_N)
    if loss == "squared":
        total = unbiased_squares(score_rows(loss, h_NC, y_N), count, deviation)
        return total, total / 2
    num_classes = max(h_NC.shape[1], 2)
    kept = kept_label_share(num_classes, deviation)
    other = (1 - kept) / (num_classes - 1)
    told = max(kept - other, 1e-9)
    right = (score_rows(loss, h_NC, y_N) - other * count) / told
    of_first = mean_loss(loss, h_NC, np.zeros_like(y_N))
    if loss == "logistic":
        of_all = of_first + mean_loss(loss, h_NC, np.ones_like(y_N))
    else:  # each is the logarithm of a sum over classes, less the class's own output
        of_all = num_classes * (of_first + float(np.mean(h_NC[:, 0]))) - float(np.mean(h_NC.sum(axis=1)))
    summed = (mean_loss(loss, h_NC, y_N) - other * of_all) * count / told
    return min(max(right, 0.0), float(count)), max(summed, 0.0)


def unbiased_squares(total: float, count: int, deviation: float) -> float:
    """Return a sum of squared errors without what label noise adds to it."""
    return max(total - count * deviation**2, 0.0)


def tally_rows(loss: Loss, h_NC: Array, y_N: NDArray[Any], ranks_N: NDArray[np.integer[Any]]) -> Array:
    """Return sums over rows from which other scores follow, however rows are dealt: see `more_scores`.

    `ranks_N` (see `ranks_of`) are for two classes alone.
    """
    if loss == "squared":
        error_N = h_NC[:, 0] - y_N
        return np.array([np.sum(y_N), np.sum(y_N**2), np.sum(error_N**2), np.sum(np.abs(error_N))])
    num_classes = 2 if loss == "logistic" else h_NC.shape[1]
    chosen_N = (h_NC[:, 0] > 0).astype(np.int64) if loss == "logistic" else np.argmax(h_NC, axis=1)
    right, said, there = (
        np.bincount(rows, minlength=num_classes).astype(np.float64)
        for rows in (chosen_N[chosen_N == y_N], chosen_N, np.asarray(y_N, dtype=np.int64))
    )
    ranked = float(np.sum(ranks_N[y_N > 0.5])) / 2 if loss == "logistic" else 0.0
    return np.concatenate([right, said, there, [ranked]])


def more_scores(loss: Loss, tally: Array, count: int) -> dict[str, float]:
    """Return R2 and the mean absolute error, or F1 (macro over classes that occur) and, for two classes, the AUC."""
    if loss == "squared":
        total, squares, errors, *absolute = tally
        spread = squares - total**2 / count
        found = {"mae": float(absolute[0] / count)} if absolute else {}
        return {**found, "r2": float(1 - errors / spread)} if spread > 0 else found
    right_C, said_C, there_C = np.split(tally[:-1], 3)
    if loss == "logistic":
        found = {"f1": float(2 * right_C[1] / max(said_C[1] + there_C[1], 1.0))}
        absent, present = there_C
        if absent and present:
            found["auc"] = float((tally[-1] - present * (present + 1) / 2) / (present * absent))
        return found
    occurs = (said_C + there_C) > 0
    return {"f1": float(np.mean(2 * right_C[occurs] / (said_C + there_C)[occurs]))}


def ranks_of(loss: Loss, h_NC: Array) -> Index:
    """Return twice the rank of each row's output among all, ties at their mean; nothing but for two classes."""
    if loss != "logistic":
        return np.zeros(0, dtype=np.int64)
    from scipy.stats import rankdata  # half a second of every party's start

    ranks: Index = np.rint(2 * rankdata(h_NC[:, 0])).astype(np.int64)
    return ranks


def base_outputs(
    loss: Loss, y_N: NDArray[Any], num_outputs: int, is_wanted: bool, times_N: NDArray[Any] | None = None
) -> Array:
    """Return the outputs (C) at which the label table's bias begins: those of the trivial predictor, or 0.

    Of several classes they are centred: a constant over the classes makes no difference.
    """
    if not is_wanted or not len(y_N):
        return np.zeros(num_outputs)
    base_C = trivial_outputs(loss, y_N, num_outputs, times_N)
    return base_C - base_C.mean() if loss == "softmax" else base_C


LEAST_CURVATURE = 0.02
"""Where positives are rarer the loss is nearly flat at the base outputs, and not where training goes."""


def curvature(loss: Loss, base_C: Array) -> float:
    """Return the loss's second derivative at these outputs: 1, p (1 - p), or its mean over classes."""
    if loss == "squared":
        return 1.0
    p_C = expit(base_C) if loss == "logistic" else np.exp(base_C - base_C.max()) / np.exp(base_C - base_C.max()).sum()
    return float(max(np.mean(p_C * (1.0 - p_C)), LEAST_CURVATURE))


def mean_score(loss: Loss, total: float, count: int) -> float:
    """Return the RMSE or the accuracy over all partitions."""
    return sqrt(total / count) if loss == "squared" else total / count


def trivial_outputs(
    loss: Loss, train_y_N: NDArray[Any], num_outputs: int, times_N: NDArray[Any] | None = None
) -> Array:
    """Return the outputs (C) of the predictor that knows only the training labels: their mean, or their frequencies.

    `times_N` says of numbers how often each occurs, where they are listed once.
    """
    if loss == "softmax":
        counts = np.bincount(train_y_N, minlength=num_outputs)
        made: Array = np.log(np.maximum(counts, 0.5) / len(train_y_N))
        return made
    mean = float(np.average(train_y_N, weights=times_N))
    if loss == "logistic":
        mean = float(np.clip(mean, 1e-9, 1 - 1e-9))
        return np.full(num_outputs, np.log(mean / (1 - mean)))
    return np.full(num_outputs, mean)


def mean_loss(loss: Loss, h_NC: Array, y_N: NDArray[Any]) -> float:
    """Return (1/N) sum_j l(h_j; y_j): half the squared error, or the negative log likelihood in nats."""
    if loss == "squared":
        return float(np.mean((h_NC[:, 0] - y_N) ** 2) / 2)
    if loss == "logistic":
        return float(np.mean(np.logaddexp(0.0, h_NC[:, 0]) - y_N * h_NC[:, 0]))
    total = 0.0
    for start in range(0, len(y_N), _BLOCK):
        h_Cb, y_b = np.ascontiguousarray(h_NC[start : start + _BLOCK].T), y_N[start : start + _BLOCK]
        top_b = np.max(h_Cb, axis=0)
        log_b = top_b + np.log(np.sum(np.exp(h_Cb - top_b), axis=0))
        total += float(np.sum(log_b - h_Cb[y_b, np.arange(len(y_b))]))
    return total / len(y_N)


def loss_gradient(loss: Loss, h_NC: Array, y_N: NDArray[Any]) -> Array:
    """Return dl_j/dh_j, which is dl_j/dh_ij for every table i since their predictions are summed (Eq. 4)."""
    made: Array
    if loss == "squared":
        made = h_NC - y_N[:, None]
    elif loss == "logistic":
        made = expit(h_NC) - y_N[:, None]
    else:
        # in blocks that fit the cache, classes first: sums over five numbers each are slow the other way
        made = np.empty_like(h_NC)
        for start in range(0, len(y_N), _BLOCK):
            h_Cb, y_b = np.ascontiguousarray(h_NC[start : start + _BLOCK].T), y_N[start : start + _BLOCK]
            p_Cb = np.exp(h_Cb - np.max(h_Cb, axis=0))
            p_Cb /= np.sum(p_Cb, axis=0)
            p_Cb[y_b, np.arange(len(y_b))] -= 1.0
            made[start : start + _BLOCK] = p_Cb.T
    return made


def update_z(loss: Loss, y_N: NDArray[Any], lambda_NC: Array, h_NC: Array, rho: float) -> Array:
    """Return argmin_z l(z; y) - lambda^T z + rho/2 |h - z|^2 row by row (Eq. 7): l'(z) - lambda - rho (h - z) = 0."""
    if loss == "squared":
        made: Array = (y_N[:, None] + lambda_NC + rho * h_NC) / (1.0 + rho)
        return made
    if loss == "logistic":
        return _logistic_root(y_N[:, None] + lambda_NC + rho * h_NC, h_NC, rho)
    constant_NC = lambda_NC + rho * h_NC
    constant_NC[np.arange(len(y_N)), y_N] += 1.0
    pieces = [_softmax_root(constant_NC[i : i + _BLOCK], h_NC[i : i + _BLOCK], rho) for i in range(0, len(y_N), _BLOCK)]
    return np.concatenate(pieces)


def update_lambda(lambda_NC: Array, h_NC: Array, z_NC: Array, rho: float) -> Array:
    """Return lambda + rho (h - z) (Eq. 8)."""
    made: Array = lambda_NC + rho * (h_NC - z_NC)
    return made


def shared_term(lambda_NC: Array, h_NC: Array, z_NC: Array, rho: float) -> Array:
    """Return lambda + rho (h - z), the part of Eq. 14 that is the same for every table (lambda already updated)."""
    return update_lambda(lambda_NC, h_NC, z_NC, rho)


def linear_term(mode: AdmmMode, summed_nC: Array, G_n: NDArray[Any], h_nC: Array, rho: float, M: int) -> Array:
    """Return Y_i of Eq. 14 from the segment sums of `shared_term` and the table's own predictions h_i^t.

    s_ij leaves out the table's own prediction, hence -rho G h. `boyd` also subtracts (M - 1) rho G h, the
    linear part of the proximal term of the sharing form, with which the parallel step converges.
    """
    times = M if mode == "boyd" else 1
    made = allocate(summed_nC.shape, np.float64)
    for rows in blocks_of(len(made), made.nbytes / max(len(made), 1)):
        made[rows] = summed_nC[rows] - (times * rho) * (G_n[rows, None] * h_nC[rows])
    return read_only(made)


def quadratic_weight(mode: AdmmMode, rho: float, M: int) -> float:
    """Return kappa of the quadratic term kappa G_ij / 2 |f|^2: rho in Eq. 16, M rho in the sharing form."""
    return M * rho if mode == "boyd" else rho


def combine_gradients(partial_QP: Sequence[Array], num_joined: int) -> Array:
    """Return (1/N) sum_q of the partitions' gradients (Eq. 17), added in the given order."""
    total = np.zeros_like(partial_QP[0])
    for partial in partial_QP:
        total += partial
    return total / num_joined


def gradient_step(theta_P: Array, gradient_P: Array, learning_rate: float) -> Array:
    """Return theta - eta grad (Eq. 6, 13, 19)."""
    return theta_P - learning_rate * gradient_P


def update_consensus(theta_QP: Sequence[Array], u_QP: Sequence[Array], beta: float, rho: float) -> Array:
    """Return w = argmin beta R(w) + Q_i rho / 2 |w - mean theta - mean u|^2 (Eq. 20).

    The paper prints M rho / 2. With a constant c in place of Q_i rho the fixed point solves the problem of
    beta Q_i rho / c, so the constant must be Q_i rho (each of the Q_i agents contributes rho / 2).
    """
    Q = len(theta_QP)
    total = np.zeros_like(theta_QP[0])
    for theta, u in zip(theta_QP, u_QP, strict=True):
        total += theta + u
    return total * rho / (beta + Q * rho)


def update_u(u_P: Array, theta_P: Array, w_P: Array) -> Array:
    """Return u + theta - w (Eq. 21)."""
    return u_P + theta_P - w_P


# --- what an operator computes in one go ---


@dataclass(frozen=True)
class Residuals:
    """How far a round of ADMM is from its fixed point (Boyd et al. 2011, Section 3.3): norms over joined rows."""

    primal: float
    """|h - z|."""
    dual: float
    """rho |z - z of the round before|."""
    primal_scale: float
    """The larger one of |h| and |z|, both without what the predictor without features gives."""
    dual_scale: float
    """|lambda|."""

    @property
    def shares(self) -> tuple[float, float]:
        """Both residuals relative to their scales; 0 where there is nothing left."""
        pairs = ((self.primal, self.primal_scale), (self.dual, self.dual_scale))
        return tuple(0.0 if size == 0 else size / max(scale, 1e-300) for size, scale in pairs)  # type: ignore[return-value]

    def balanced(self, rho: float) -> float:
        """Return the penalty of the next round: larger where the primal residual is, smaller where the dual one is.

        The idea is that of Boyd et al. 2011, Section 3.4.1; residuals are compared by their shares and the change
        follows their ratio, as in Wohlberg 2017 (arXiv 1704.06209): where labels are rare one residual as it stands is
        far below the other at any good penalty.
        """
        primal, dual = self.shares
        if primal == 0 or dual == 0 or 1 / _UNBALANCED <= primal / dual <= _UNBALANCED:
            return rho
        return rho * min(max(sqrt(primal / dual), 1 / _CHANGE), _CHANGE)


def admm_server_round(
    loss: Loss,
    labels: Sequence[NDArray[Any]],
    dual: Parts,
    h: Parts,
    rho: float,
    before: Parts,
    base: Parts,
    norm: Callable[[Parts], float],
    relaxation: float = 1.0,
) -> tuple[list[Array], list[Array], list[Array], Residuals]:
    """Return lambda (Eq. 8, after z of Eq. 7), what every table's Y_i shares (Eq. 14), z, and the residuals.

    With the squared loss z and lambda are linear in h and y, so each of several parts is updated on its own. `before`
    is z of the round before, `base` the outputs at which training began, `norm` that of a value on joined rows. With
    over-relaxation z and lambda follow predictions that go `relaxation` times as far beyond `before` (Boyd et al. 2011,
    Section 3.4.3).
    """
    parts = zip(labels, dual, h, before, strict=True)
    found = [_admm_part(loss, *one, rho, relaxation) for one in parts]
    updated, shared, z = (list(each) for each in zip(*found, strict=True))
    return (
        updated,
        shared,
        z,
        Residuals(
            primal=norm(less(h, z)),
            dual=rho * norm(less(z, before)),
            primal_scale=max(norm(less(h, base)), norm(less(z, base))),
            dual_scale=norm(updated),
        ),
    )


def _admm_part(
    loss: Loss, y: NDArray[Any], local: Array, part: Array, before: Array, rho: float, relaxation: float
) -> tuple[Array, Array, Array]:
    """Return lambda, what every table's Y_i shares, and z of one part, block by block."""
    updated, shared, z = (allocate(part.shape, np.float64) for _ in range(3))
    y = np.broadcast_to(y, len(part))  # along a tree one zero stands for all of a table that has no labels
    for rows in blocks_of(len(part), part.nbytes / max(len(part), 1)):
        over = part[rows] if relaxation == 1.0 else relaxation * part[rows] + (1.0 - relaxation) * before[rows]
        exact = update_z(loss, y[rows], local[rows], over, rho)
        updated[rows] = update_lambda(local[rows], over, exact, rho)
        shared[rows] = shared_term(updated[rows], part[rows], exact, rho)
        z[rows] = over - (updated[rows] - local[rows]) / rho
    return updated, shared, z


def less(parts: Parts, others: Parts) -> list[Array]:
    """Return a value on joined rows minus another one, part by part."""
    return [_difference(*pair) for pair in zip(parts, others, strict=True)]


def _difference(part: Array, other: Array) -> Array:
    if not is_large(part.nbytes):
        return part - other
    made = allocate(np.broadcast_shapes(part.shape, other.shape), np.float64)
    other = np.broadcast_to(other, made.shape)
    for rows in blocks_of(len(made), made.nbytes / max(len(made), 1)):
        made[rows] = part[rows] - other[rows]
    return made


def sgd_server_step(
    loss: Loss, predictions: Sequence[Array], touched: list[BatchRows], y_B: NDArray[Any], are_summed: bool
) -> tuple[float, list[Array]]:
    """Return a batch's summed loss, and for each table the derivatives summed over its rows' partners (Eq. 4, 10).

    Of predictions that `are_summed` there is one array for all tables, on the rows of the batch.
    """
    total_BC = predictions[0] if are_summed else gather_join(predictions, [t.position_B for t in touched])
    derivative_BC = loss_gradient(loss, total_BC, y_B)
    summed = [scatter_join(derivative_BC, t.position_B, len(t.rows_u)) for t in touched]
    return mean_loss(loss, total_BC, y_B) * len(y_B), summed


def consensus_step(
    theta_QP: Sequence[Array], u_QP: Sequence[Array], beta: float, rho: float
) -> tuple[Array, list[Array]]:
    """Return the new w (Eq. 20) and u of every partition (Eq. 21)."""
    w = update_consensus(theta_QP, u_QP, beta, rho)
    return w, [update_u(u, theta, w) for u, theta in zip(u_QP, theta_QP, strict=True)]


# --- inside ---


def _logistic_root(c_NC: Array, start_NC: Array, rho: float) -> Array:
    """Solve sigmoid(z) + rho z = c by Newton steps inside a shrinking bracket, halving it where they do not shrink."""
    low, high = (c_NC - 1.0) / rho, c_NC / rho
    z = np.clip(start_NC, low, high)
    last = np.full_like(z, np.inf)
    for _ in range(200):
        p = expit(z)
        f = p + rho * z - c_NC
        low, high = np.where(f < 0, z, low), np.where(f > 0, z, high)
        step = -f / (p * (1.0 - p) + rho)
        size = np.abs(step)
        poor = (z + step < low) | (z + step > high) | (size > last / 2)
        poor &= size > 1e-13 * (1.0 + np.abs(z))
        if poor.any():
            step = np.where(poor, (low + high) / 2 - z, step)
            size = np.abs(step)
        z, last = z + step, size
        if np.all(size <= 1e-13 * (1.0 + np.abs(z))):
            break
    return z


def _softmax_root(c_bC: Array, start_bC: Array, rho: float) -> Array:
    """Solve softmax(z) + rho z = c by Newton steps on rows still moving, halved while the objective would grow."""
    c, z = np.ascontiguousarray(c_bC.T), np.ascontiguousarray(start_bC.T)
    solved = np.empty_like(z)
    active = np.arange(z.shape[1])
    p, value = _softmax_state(z, c, rho)
    for _ in range(100):
        f = p + rho * z - c
        moving = np.max(np.abs(f), axis=0) > 1e-10
        if not moving.all():
            solved[:, active[~moving]] = z[:, ~moving]
            if not moving.any():
                return np.ascontiguousarray(solved.T)
            active, value = active[moving], value[moving]
            z, c, p, f = (array[:, moving] for array in (z, c, p, f))
        # (diag(p + rho) - p p^T)^-1 by Sherman-Morrison; 1 - p^T D^-1 p is written without cancellation.
        inverse = 1.0 / (p + rho)
        weighted = p * inverse
        factor = np.sum(weighted * f, axis=0) / (rho * np.sum(weighted, axis=0))
        step = -(inverse * f + weighted * factor)
        slope = np.sum(f * step, axis=0)
        length = np.ones(len(active))
        for _ in range(40):
            tried = z + length * step
            p, following = _softmax_state(tried, c, rho)
            worse = following > value + 1e-4 * length * slope + 1e-12 * (1.0 + np.abs(value))
            if not worse.any():
                break
            length[worse] /= 2
        z, value = tried, following
    solved[:, active] = z
    return np.ascontiguousarray(solved.T)


def _softmax_state(z_Cb: Array, c_Cb: Array, rho: float) -> tuple[Array, Array]:
    """Return softmax(z) and logsumexp(z) - c^T z + rho/2 |z|^2 of each column."""
    top = np.max(z_Cb, axis=0)
    p = np.exp(z_Cb - top)
    total = np.sum(p, axis=0)
    p /= total
    value: Array = top + np.log(total) + np.sum(z_Cb * (rho / 2 * z_Cb - c_Cb), axis=0)
    return p, value

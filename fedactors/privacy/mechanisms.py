"""Mechanisms that change what leaves a party: clipping, Gaussian and Laplace noise, randomised labels, private scales.

Gaussian noise is drawn in double precision by numpy; attacks on the grid of floating-point numbers (Mironov, 2012) are
out of scope there and documented in the threat model. Laplace noise, on which labels rest, is drawn in whole steps.
Accounts of these mechanisms are in `fedactors.privacy.accounting`.

`private_scale` gives means and deviations of columns by two Gaussian releases that need no bounds known beforehand:

1. per column the number of rows in each half-octave of magnitude and sign, noised; the range that holds all but about
   1 % of the rows at either end is read from it;
2. per column the sums of u and u^2 over the rows, u being the place in that range cut to [0, 1], noised.

One row that is replaced moves two counts of each of D columns by one, so ``sqrt(2 D)`` in L2; and each column's
(u, u^2) by at most ``sqrt(2)``, so again ``sqrt(2 D)``. Half of the budget's square goes to each. The number of rows is
public.

Shapes: B or N rows, E width of a row, C classes, D columns.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedactors.privacy.noise import Gaussian, Laplace, RandomisedResponse, discrete_laplace, released

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


Rows = TypeVar("Rows", Array, "Tensor")


def clip_rows(rows_BE: Rows, clip_norm: float) -> Rows:
    """Scale each row down to L2 norm `clip_norm`; rows within it are unchanged, and so is everything if it is inf.

    Of a tensor's rows gradients go back through it.

    A row whose norm is no finite number becomes zeros: it may not show either.
    """
    if not clip_norm > 0:
        raise ValueError(f"clip_norm must be greater than 0, got {clip_norm}")
    if math.isinf(clip_norm):
        return rows_BE
    if not isinstance(rows_BE, np.ndarray):
        return _clip_tensor(rows_BE, clip_norm)
    norm_B1 = _norms(rows_BE)
    finite_BE = np.where(np.isfinite(norm_B1), rows_BE, 0.0)
    return (finite_BE * (clip_norm / np.maximum(norm_B1, clip_norm))).astype(rows_BE.dtype)


def _clip_tensor(rows_BE: Tensor, clip_norm: float) -> Tensor:
    import torch  # loaded already where there is a tensor

    is_finite_B1 = torch.linalg.vector_norm(rows_BE.detach(), dim=1, keepdim=True).isfinite()
    finite_BE = rows_BE.masked_fill(~is_finite_B1, 0.0)
    norm_B1 = torch.linalg.vector_norm(finite_BE, dim=1, keepdim=True)
    clipped_BE: Tensor = finite_BE * (clip_norm / norm_B1.clamp_min(clip_norm))
    return clipped_BE


def clip_rows_backward(rows_BE: Array, gradient_BE: Array, clip_norm: float) -> Array:
    """Pull a gradient with respect to the clipped rows back to the rows before clipping.

    For a clipped row r the Jacobian is ``(c / ||r||) (I - r r^T / ||r||^2)``; it is the identity within the ball.
    """
    if math.isinf(clip_norm):
        return gradient_BE
    norm_B1 = _norms(rows_BE)
    is_finite_B1 = np.isfinite(norm_B1)
    finite_BE = np.where(is_finite_B1, rows_BE, 0.0)  # a row that was replaced by zeros has no gradient
    unit_BE = finite_BE / np.maximum(np.where(is_finite_B1, norm_B1, 1.0), np.finfo(rows_BE.dtype).tiny)
    along_B1 = np.sum(unit_BE * gradient_BE, axis=1, keepdims=True)
    clipped_BE = clip_norm / np.maximum(norm_B1, clip_norm) * (gradient_BE - along_B1 * unit_BE)
    return np.where(norm_B1 > clip_norm, clipped_BE, gradient_BE).astype(gradient_BE.dtype)


def add_gaussian(
    values: Array, sigma: float, rng: np.random.Generator, name: str = "", *, sample_rate: float = 1.0
) -> Array:
    """Add independent N(0, sigma^2) to every entry; sigma 0 returns the values.

    An audit knows it by `name`, and by the probability with which a record took part in secret.
    """
    if sigma < 0:
        raise ValueError(f"sigma must be at least 0, got {sigma}")
    if sigma == 0:
        return values

    def draw() -> Array:
        return (values + sigma * rng.standard_normal(values.shape)).astype(values.dtype)

    return released(values, Gaussian(sigma, sample_rate), draw, name)


def clip_and_noise(rows_BE: Array, clip_norm: float, sigma: float, rng: np.random.Generator, name: str = "") -> Array:
    """Clip each row and add Gaussian noise: the release of PubSub-VFL's embeddings (Section 4.4, Eq. 17)."""
    return add_gaussian(clip_rows(rows_BE, clip_norm), sigma, rng, name)


def laplace_step(deviation: float) -> float:
    """Return the grid of Laplace noise: a power of two, of which the scale has from 2^22 to 2^23 steps."""
    return math.ldexp(1.0, math.frexp(deviation / math.sqrt(2))[1] - 23)


def add_laplace(values: ArrayLike, deviation: float, rng: np.random.Generator, name: str = "") -> Array:
    """Add Laplace noise of scale ``deviation / sqrt(2)``, all in whole steps of `laplace_step`.

    Values go down to the next step and the noise is a discrete Laplace, its scale rounded up by less than 2^-22 of it:
    whatever the values are, results lie on one grid and show nothing in their last bits (Mironov, 2012). Between values
    that are no whole number of steps apart the distance may grow by one step.

    Raises:
        ValueError: a deviation below 0, or values beyond 2^29 of it, which no grid of doubles holds.
    """
    if not deviation >= 0:
        raise ValueError(f"deviation must be at least 0, got {deviation}")
    exact: Array = np.asarray(values, dtype=np.float64)
    if deviation == 0:
        return exact
    step = laplace_step(deviation)
    steps = np.floor(exact / step)
    if not np.all(np.abs(steps) < 2.0**52):
        raise ValueError(f"values must be finite and below 2^29 times the deviation, {deviation:g}")

    def draw() -> Array:
        noise = discrete_laplace(math.ceil(deviation / math.sqrt(2) / step), exact.size, rng.bytes)
        noisy: Array = (steps + noise.reshape(exact.shape)) * step
        return noisy

    return released(steps * step, Laplace(deviation), draw, name)


def randomised_response(
    labels_B: ArrayLike, num_classes: int, epsilon: float, rng: np.random.Generator, name: str = ""
) -> NDArray[np.int64]:
    """Keep each label with probability ``e^eps / (e^eps + C - 1)``, else draw another one evenly (Warner, 1965).

    Raises:
        ValueError: fewer than two classes, an epsilon that is not above 0, or a label out of range.
    """
    if num_classes < 2 or not epsilon > 0:
        raise ValueError(f"need two classes and an epsilon above 0, got {num_classes} classes and epsilon {epsilon}")
    label_B = _labels(labels_B, num_classes)

    def draw() -> NDArray[np.int64]:
        changed_B = rng.random(label_B.shape) < flip_probability(num_classes, epsilon)
        return np.where(changed_B, (label_B + rng.integers(1, num_classes, label_B.shape)) % num_classes, label_B)

    return released(label_B, RandomisedResponse(epsilon), draw, name)


def flip_probability(num_classes: int, epsilon: float) -> float:
    """Return the probability that `randomised_response` changes a label, ``(C - 1) / (e^eps + C - 1)``."""
    return (num_classes - 1) / (math.exp(min(epsilon, 700.0)) + num_classes - 1)


def randomised_labels(
    labels_B: ArrayLike, num_classes: int, deviation: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the argmax of the one-hot label plus Laplace noise per coordinate (TablePuppet, Eq. 25).

    Raises:
        ValueError: fewer than two classes (Eq. 25 is constant then: use `randomised_values`) or a label out of range.
    """
    if num_classes < 2:
        raise ValueError("randomised labels need at least two classes; numeric labels go through randomised_values")
    one_hot_BC = np.eye(num_classes)[_labels(labels_B, num_classes)]
    chosen_B: NDArray[np.int64] = add_laplace(one_hot_BC, deviation, rng, "Labels").argmax(axis=1)
    return chosen_B


@functools.lru_cache(maxsize=64)
def kept_label_share(num_classes: int, deviation: float) -> float:
    """Return how likely `randomised_labels` keeps a label; the other classes are as likely as each other.

    The integral of ``f(x) F(x + 1)^(C - 1)`` over the noise x, of density f and distribution F, by ``u = F(x)``: in
    closed form below -1 and above 0, by midpoints in log u between.
    """
    moved, power = max(math.exp(-math.sqrt(2) / deviation), 1e-300), num_classes - 1
    above = -math.expm1(num_classes * math.log1p(-moved / 2)) / (num_classes * moved)
    below = moved * 0.5**num_classes / num_classes
    edges = np.linspace(math.log(moved / 2), math.log(0.5), (1 << 16) + 1)
    u = np.exp((edges[1:] + edges[:-1]) / 2)
    between = float(np.sum((1 - moved / (4 * u)) ** power * u) * (edges[1] - edges[0]))
    return above + below + between


def _labels(labels_B: ArrayLike, num_classes: int) -> NDArray[np.int64]:
    label_B = np.asarray(labels_B, dtype=np.int64)
    if label_B.size and not (label_B.min() >= 0 and label_B.max() < num_classes):
        raise ValueError(f"labels must be in 0..{num_classes - 1}, got {label_B.min()}..{label_B.max()}")
    return label_B


def randomised_values(
    labels_B: ArrayLike, low: float, high: float, deviation: float, rng: np.random.Generator
) -> Array:
    """Clip numeric labels to the declared range and add Laplace noise of the given standard deviation."""
    if not low < high:
        raise ValueError(f"the declared range must have low < high, got {low} and {high}")
    # counted from the lowest, so that rounding down to steps cannot widen the range
    above_B = np.clip(np.asarray(labels_B, dtype=np.float64), low, high) - low
    noisy_B: Array = low + add_laplace(above_B, deviation, rng, "Labels")
    return noisy_B


def pubsub_sigma(*, mu: float, clip_norm: float, batch_size: int, num_samples: int, num_epochs: int | float) -> float:
    """Return the noise deviation of PubSub-VFL, ``c N_m sqrt(K) / (mu N)`` (Eq. 17 with its constant made explicit).

    N_m is the batch size, N the number of samples and K = T N / N_m the number of releases over T epochs. ``mu = inf``
    gives 0. This is the *nominal* calibration: it rests on amplification by sampling, which known batches do not give.
    A record's releases, one per epoch at sensitivity 2c, compose to ``2 sqrt(N / N_m)`` times this mu.
    """
    if not mu > 0 or not clip_norm > 0:
        raise ValueError(f"mu and clip_norm must be greater than 0, got {mu} and {clip_norm}")
    if math.isinf(mu):
        return 0.0
    num_releases = num_epochs * num_samples / batch_size
    return clip_norm * batch_size * math.sqrt(num_releases) / (mu * num_samples)


def _norms(rows_BE: Array) -> Array:
    """Return each row's L2 norm (B x 1), inf where it is no finite number."""
    with np.errstate(over="ignore", invalid="ignore"):
        norm_B1: Array = np.linalg.norm(rows_BE, axis=1, keepdims=True)
    return np.where(np.isnan(norm_B1), np.inf, norm_B1)


RELEASE = "Standardisation"
"""What its releases are called in ledgers and audits."""
NUM_RELEASES = 2
_SMALLEST, _LARGEST = -20, 40
_PER_OCTAVE = 2
_TAIL = 0.01


def scale_sensitivity(num_columns: int) -> float:
    """Return the L2 distance that one replaced row moves either release, ``sqrt(2 D)``."""
    return math.sqrt(2 * num_columns)


def scale_sigma(num_columns: int, mu: float) -> float:
    """Return the noise deviation at which both releases together cost `mu`."""
    return scale_sensitivity(num_columns) * math.sqrt(NUM_RELEASES) / mu


def private_scale(rows_ND: Array, mu: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return mean and deviation of each column (D each, double precision) under mu-GDP for one replaced row."""
    num_rows, num_columns = rows_ND.shape
    sigma = scale_sigma(num_columns, mu)
    edges, exact_ND = _edges(), rows_ND.astype(np.float64)
    counts_DK = np.stack([np.histogram(exact_ND[:, d], edges)[0] for d in range(num_columns)]).astype(np.float64)
    noisy_DK = add_gaussian(counts_DK, sigma, rng, RELEASE)
    low_D, high_D = _range(noisy_DK, sigma, edges)
    u_ND = np.clip((exact_ND - low_D) / (high_D - low_D), 0, 1)
    sums_2D = add_gaussian(np.stack([u_ND.sum(axis=0), (u_ND**2).sum(axis=0)]), sigma, rng, RELEASE)
    mean_D, square_D = np.clip(sums_2D / num_rows, 0, 1)
    deviation_D = np.sqrt(np.maximum(square_D - mean_D**2, 1e-4))
    return low_D + mean_D * (high_D - low_D), deviation_D * (high_D - low_D)


def _edges() -> Array:
    """Return the edges of the bins: half-octaves of either sign, zero in the middle, everything at the ends."""
    powers = np.exp2(np.arange(_SMALLEST * _PER_OCTAVE, _LARGEST * _PER_OCTAVE + 1) / _PER_OCTAVE)
    return np.concatenate([[-np.inf], -powers[::-1], powers, [np.inf]])


def _range(noisy_DK: Array, sigma: float, edges: Array) -> tuple[Array, Array]:
    """Return the ends of the bins that hold all but a tail of the rows; bins that may be noise alone count as empty."""
    finite = np.clip(edges, -(2.0**_LARGEST), 2.0**_LARGEST)
    low, high = [], []
    # a column does not lie in the bins without an end: noise there would be a range of no width
    finite, noisy_DK = finite[1:-1], noisy_DK[:, 1:-1]
    for counts_K in noisy_DK:
        kept_K = np.where(counts_K > max(4 * sigma, 1), counts_K, 0)
        if not kept_K.any():
            kept_K[int(np.argmax(counts_K))] = 1
        share_K = np.cumsum(kept_K) / kept_K.sum()
        first, last = int(np.argmax(share_K > _TAIL)), int(np.argmax(share_K >= 1 - _TAIL))
        low.append(finite[first])
        high.append(finite[last + 1])
    return np.asarray(low), np.asarray(high)

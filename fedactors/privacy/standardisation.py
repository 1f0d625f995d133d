"""The scale of columns without the rows behind it: means and deviations by two Gaussian releases.

Neither release needs bounds that somebody would have to know beforehand:

1. per column the number of rows in each half-octave of magnitude and sign, noised; the range that holds all but about
   1 % of the rows at either end is read from it;
2. per column the sums of u and u^2 over the rows, u being the place in that range cut to [0, 1], noised.

One row that is replaced moves two counts of each of D columns by one, so ``sqrt(2 D)`` in L2; and each column's
(u, u^2) by at most ``sqrt(2)``, so again ``sqrt(2 D)``. Half of the budget's square goes to each. The number of rows is
public.

Shapes: N rows, D columns.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedactors.privacy.mechanisms import add_gaussian

Array = NDArray[Any]
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
    low_D, high_D = _range(noisy_DK, sigma, num_rows, edges)
    u_ND = np.clip((exact_ND - low_D) / (high_D - low_D), 0, 1)
    sums_2D = add_gaussian(np.stack([u_ND.sum(axis=0), (u_ND**2).sum(axis=0)]), sigma, rng, RELEASE)
    mean_D, square_D = np.clip(sums_2D / num_rows, 0, 1)
    deviation_D = np.sqrt(np.maximum(square_D - mean_D**2, 1e-4))
    return low_D + mean_D * (high_D - low_D), deviation_D * (high_D - low_D)


def _edges() -> Array:
    """Return the edges of the bins: half-octaves of either sign, zero in the middle, everything at the ends."""
    powers = np.exp2(np.arange(_SMALLEST * _PER_OCTAVE, _LARGEST * _PER_OCTAVE + 1) / _PER_OCTAVE)
    return np.concatenate([[-np.inf], -powers[::-1], powers, [np.inf]])


def _range(noisy_DK: Array, sigma: float, num_rows: int, edges: Array) -> tuple[Array, Array]:
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

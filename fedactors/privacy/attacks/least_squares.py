"""Least-squares reconstruction: who sees a linear model's parameters and its predictions solves for the features.

After R rounds with parameters theta_r and predictions h_r = X theta_r of the same rows, ``Theta X^T = H`` determines
X as soon as the R parameter vectors span the features: TablePuppet's predictions touch the raw table again, so they
are no post-processing of noisy parameters.

Shapes: R rounds, N rows, F features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reconstruct_features(theta_RF: Array, prediction_RN: Array) -> Array:
    """Return the least-squares (minimum-norm) estimate of the features, N x F."""
    if len(theta_RF) != len(prediction_RN):
        raise ValueError(f"{len(theta_RF)} parameter vectors but {len(prediction_RN)} prediction vectors")
    exact_theta: Array = np.asarray(theta_RF, dtype=np.float64)
    solution_FN, *_ = np.linalg.lstsq(exact_theta, np.asarray(prediction_RN, dtype=np.float64), rcond=None)
    features: Array = solution_FN.T
    return features


def complete_rows(seen_NR: Array, known_places: NDArray[Any], known_KF: Array) -> Array:
    """Return an estimate of all rows (N x F) of who knows some of them and never sees a parameter.

    Features are a linear function of a linear model's predictions over as many rounds as there are features: the
    function is fitted on the known rows, and applied to the others.

    Args:
        seen_NR: what was seen of each row in each round, predictions or sums in which they are.
        known_places: which rows are known (K).
        known_KF: their features.
    """
    exact = np.column_stack([np.asarray(seen_NR, dtype=np.float64), np.ones(len(seen_NR))])
    fitted, *_ = np.linalg.lstsq(exact[known_places], np.asarray(known_KF, dtype=np.float64), rcond=1e-9)
    rows: Array = exact @ fitted
    return rows

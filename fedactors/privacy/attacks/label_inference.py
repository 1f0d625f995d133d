"""Label inference by a feature holder from the gradients it receives at the cut layer (Li et al., 2022).

Each function returns scores; `fedactors.learning.metrics.auc` of the true labels against them is the leak
(0.5: none, 1: all labels). Gradients of different batches may be stacked when the model hardly moved between them.

Shapes: B rows, E embedding width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def norm_scores(gradient_BE: Array) -> Array:
    """Return each row's gradient norm: the rarer class, of which the model is less sure, has the larger ones."""
    norm_B: Array = np.linalg.norm(gradient_BE, axis=1)
    return norm_B


def direction_scores(gradient_BE: Array, positive: int) -> Array:
    """Return the cosine of each row with that of one sample whose label the attacker knows to be positive.

    The loss's derivative with respect to the logit is negative for positive samples and positive for negative ones,
    so rows of the two classes tend to point in opposite directions.
    """
    unit_BE = gradient_BE / np.maximum(np.linalg.norm(gradient_BE, axis=1, keepdims=True), 1e-30)
    cosine_B: Array = unit_BE @ unit_BE[positive]
    return cosine_B


def clustering_scores(gradient_BE: Array) -> Array:
    """Return each row's projection on the first singular direction, signed so that the rarer side is positive.

    Needs no known label, only that the positive class is the rarer one.
    """
    _, _, direction = np.linalg.svd(gradient_BE, full_matrices=False)
    score_B: Array = gradient_BE @ direction[0]
    return score_B if np.mean(score_B > 0) <= 0.5 else -score_B

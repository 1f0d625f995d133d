"""Scores on the joined test rows, from the sums that the label's partitions report.

Legend: N joined rows, C outputs; h_NC, y_N.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.tablepuppet.algorithm import Array, Loss

SCORE_NAMES: dict[Loss, str] = {"squared": "rmse", "logistic": "accuracy", "softmax": "accuracy"}


def score_rows(loss: Loss, h_NC: Array, y_N: NDArray[Any]) -> float:
    """Return the sum of squared errors, or how many classes are right."""
    if loss == "squared":
        return float(np.sum((h_NC[:, 0] - y_N) ** 2))
    if loss == "logistic":
        return float(np.count_nonzero((h_NC[:, 0] > 0) == (y_N > 0.5)))
    return float(np.count_nonzero(np.argmax(h_NC, axis=1) == y_N))


def final_score(loss: Loss, total: float, count: int) -> float:
    """Return the RMSE or the accuracy over all partitions."""
    return sqrt(total / count) if loss == "squared" else total / count


def trivial_outputs(loss: Loss, train_y_N: NDArray[Any], num_outputs: int) -> Array:
    """Return the outputs (C) of the predictor that knows only the training labels: their mean, or majority class."""
    made = np.zeros(num_outputs)
    if loss == "squared":
        made[0] = float(np.mean(train_y_N))
    elif loss == "logistic":
        made[0] = 1.0 if np.mean(train_y_N) > 0.5 else -1.0
    else:
        made[int(np.argmax(np.bincount(train_y_N, minlength=num_outputs)))] = 1.0
    return made

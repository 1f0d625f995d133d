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


def final_scores(loss: Loss, total: float, loss_sum: float, count: int) -> dict[str, float]:
    """Return the RMSE or the accuracy, and the mean loss, over all partitions."""
    score = sqrt(total / count) if loss == "squared" else total / count
    return {SCORE_NAMES[loss]: score, "test_loss": loss_sum / count}


def trivial_outputs(loss: Loss, train_y_N: NDArray[Any], num_outputs: int) -> Array:
    """Return the outputs (C) of the predictor that knows only the training labels: their mean, or their frequencies."""
    if loss == "softmax":
        counts = np.bincount(train_y_N, minlength=num_outputs)
        made: Array = np.log(np.maximum(counts, 0.5) / len(train_y_N))
        return made
    mean = float(np.mean(train_y_N))
    if loss == "logistic":
        mean = float(np.clip(mean, 1e-9, 1 - 1e-9))
        return np.full(num_outputs, np.log(mean / (1 - mean)))
    return np.full(num_outputs, mean)

"""Metrics on numpy arrays; importing this module loads numpy only, so any actor may use it.

Shapes: B samples, O outputs (logits or values as a model gives them).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """Return the area under the ROC curve by the rank statistic, ties counted one half; NaN if one class is absent.

    Equals the probability that a positive sample's score exceeds a negative's (Mann-Whitney U over its maximum).
    """
    positive_B = np.asarray(labels).ravel() > 0
    score_B = np.asarray(scores).ravel()
    if positive_B.shape != score_B.shape:
        raise ValueError(f"labels and scores differ in length: {positive_B.size} and {score_B.size}")
    num_positive = int(positive_B.sum())
    num_negative = positive_B.size - num_positive
    if num_positive == 0 or num_negative == 0:
        return float("nan")
    _, place_B, count = np.unique(score_B, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    rank_sum = float(mean_rank[place_B][positive_B].sum())
    return (rank_sum - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


def accuracy(labels: ArrayLike, outputs: ArrayLike) -> float:
    """Return the share of right classes; a two-dimensional output with several columns is read by its argmax.

    A single column is a logit: positive means class 1.
    """
    label_B = np.asarray(labels).ravel()
    output = np.asarray(outputs)
    if output.ndim == 2 and output.shape[1] > 1:
        chosen_B: NDArray[np.int64] = output.argmax(axis=1)
    else:
        chosen_B = (output.ravel() > 0).astype(np.int64)
    return float(np.mean(chosen_B == label_B))


def rmse(targets: ArrayLike, values: ArrayLike) -> float:
    """Return the root mean squared error."""
    error_B = np.asarray(targets, dtype=np.float64).ravel() - np.asarray(values, dtype=np.float64).ravel()
    return float(np.sqrt(np.mean(error_B**2)))


def log_loss(labels: ArrayLike, outputs: ArrayLike) -> float:
    """Return the mean cross-entropy of logits: one column for two classes, several columns for several."""
    label_B = np.asarray(labels).ravel()
    logit = np.asarray(outputs, dtype=np.float64)
    if logit.ndim == 2 and logit.shape[1] > 1:
        top_B = logit.max(axis=1)
        log_sum_B = top_B + np.log(np.exp(logit - top_B[:, None]).sum(axis=1))
        return float(np.mean(log_sum_B - logit[np.arange(len(logit)), label_B.astype(np.int64)]))
    logit_B = logit.ravel()
    return float(np.mean(np.logaddexp(0.0, logit_B) - label_B * logit_B))


def task_metrics(task: str, targets: ArrayLike, outputs: ArrayLike) -> dict[str, float]:
    """Return the metrics of a task (``binary``, ``multiclass``, ``regression``) from raw model outputs (B x O)."""
    if task == "regression":
        error = rmse(targets, outputs)
        return {"rmse": error, "loss": error**2}
    found = {"accuracy": accuracy(targets, outputs), "loss": log_loss(targets, outputs)}
    return {"auc": auc(targets, outputs), **found} if task == "binary" else found

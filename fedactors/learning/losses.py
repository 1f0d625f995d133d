"""Losses and prediction scores, one per task.

Shapes: B batch, O outputs (1 for ``binary`` and ``regression``, the number of classes for ``multiclass``).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Task = Literal["binary", "multiclass", "regression"]


def output_width(task: Task, num_classes: int = 2) -> int:
    """Return how many outputs a model for `task` has."""
    return num_classes if task == "multiclass" else 1


def task_loss(
    task: Task, output_BO: Tensor, target_B: Tensor, reduction: Literal["mean", "sum", "none"] = "mean"
) -> Tensor:
    """Return cross-entropy with logits (``binary``, ``multiclass``) or the squared error (``regression``).

    A scalar, or with the reduction ``none`` one value a row (B).
    """
    if task == "multiclass":
        return functional.cross_entropy(output_BO, target_B.long(), reduction=reduction)
    flat_B = output_BO.squeeze(-1)
    target_B = target_B.to(flat_B.dtype)
    if task == "binary":
        return functional.binary_cross_entropy_with_logits(flat_B, target_B, reduction=reduction)
    return functional.mse_loss(flat_B, target_B, reduction=reduction)


def weighted_loss(task: Task, output_BO: Tensor, target_B: Tensor, weights_B: Tensor | None = None) -> Tensor:
    """Return the mean of loss times weight over a batch (a scalar); None: every row counts 1.

    It is not divided by the sum of weights: summed over batches, clients and rows, each row's loss counts its weight.
    """
    if weights_B is None:
        return task_loss(task, output_BO, target_B)
    losses_B = task_loss(task, output_BO, target_B, reduction="none")
    return (losses_B * weights_B.to(losses_B.dtype)).mean()


def predictions(task: Task, output_BO: Tensor) -> Tensor:
    """Return probabilities (``binary``: B, ``multiclass``: B x O) or predicted values (``regression``: B)."""
    if task == "multiclass":
        return torch.softmax(output_BO, dim=-1)
    flat_B = output_BO.squeeze(-1)
    return torch.sigmoid(flat_B) if task == "binary" else flat_B

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

    A scalar, or with ``none`` the loss of each sample (B).
    """
    if task == "multiclass":
        return functional.cross_entropy(output_BO, target_B.long(), reduction=reduction)
    flat_B = output_BO.squeeze(-1)
    target_B = target_B.to(flat_B.dtype)
    if task == "binary":
        return functional.binary_cross_entropy_with_logits(flat_B, target_B, reduction=reduction)
    return functional.mse_loss(flat_B, target_B, reduction=reduction)


def predictions(task: Task, output_BO: Tensor) -> Tensor:
    """Return probabilities (``binary``: B, ``multiclass``: B x O) or predicted values (``regression``: B)."""
    if task == "multiclass":
        return torch.softmax(output_BO, dim=-1)
    flat_B = output_BO.squeeze(-1)
    return torch.sigmoid(flat_B) if task == "binary" else flat_B

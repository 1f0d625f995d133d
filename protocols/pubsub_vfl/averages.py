"""Arithmetic of the parameter servers, in a module without torch. Shapes: P flat parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]


def weighted_mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Return sum_i w_i v_i / sum_i w_i (P), accumulated in double precision in the order given (line 31)."""
    total = vectors[0].astype(np.float64) * weights[0]
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        total += vector.astype(np.float64) * weight
    mean: Vector = (total / sum(weights)).astype(vectors[0].dtype)
    return mean


def add_changes(totals: Sequence[Vector], changes: Sequence[Vector]) -> list[Vector]:
    """Return the sums of all changes so far (P each, double precision); no totals yet count as zero."""
    if not totals:
        return [change.astype(np.float64) for change in changes]
    return [total + change for total, change in zip(totals, changes, strict=True)]

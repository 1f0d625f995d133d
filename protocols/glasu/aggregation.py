"""What the parameter-free server does with arrays: Agg and its backward pass. It needs numpy only.

Shapes: S nodes of an index set, D hidden size, W width after Agg (D, or M * D for concatenation), M clients.
Parts come in the order of the clients' names. A client that is lost leaves its place empty (None): the average is
then over those who are left, a concatenation holds zeros there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FRACTION_BITS = 40
"""Bits after the point under masks: representations and the far smaller gradients both keep single precision."""

Floats = NDArray[np.floating[Any]]


def average(total_SD: Floats, num_parts: int) -> Floats:
    """Return the average (Section 2.1) from a sum, which is all that secure aggregation shows."""
    mean: Floats = total_SD / total_SD.dtype.type(num_parts)
    return mean


def add(parts_SD: Sequence[Floats]) -> Floats:
    """Return the sum of arrays, in their order."""
    total = parts_SD[0]
    for part in parts_SD[1:]:
        total = total + part
    return total


def concatenate(parts_SD: Mapping[int, Floats], num_clients: int) -> Floats:
    """Return the clients' representations side by side (Section 2.1); zeros where a client's part is missing."""
    some = next(iter(parts_SD.values()))
    empty = np.zeros_like(some)
    return np.concatenate([parts_SD.get(position, empty) for position in range(num_clients)], axis=1)


def block_of(gradient_SW: Floats, position: int, hidden_size: int) -> Floats:
    """Return a client's block of the gradient of a concatenation (Section 2.1)."""
    start = position * hidden_size
    return np.ascontiguousarray(gradient_SW[:, start : start + hidden_size])

"""Parameters as numpy arrays: a tuple in state-dict order, or one flat vector.

Only floating-point entries take part (parameters, and running statistics of batch normalisation); integer counters
stay with their module. Vectors keep the entries in state-dict order, each in row-major order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[Any]


def as_tensor(array: Array, dtype: torch.dtype | None = None) -> Tensor:
    """Return a private tensor copy of `array`, which may be read-only."""
    return torch.tensor(array, dtype=dtype)


def float_entries(module: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point entries of the state dict; the tensors share memory with the module."""
    return {name: value for name, value in module.state_dict().items() if value.is_floating_point()}


def trained_places(module: nn.Module) -> list[tuple[nn.Parameter, slice]]:
    """Return the parameters that are trained, each once, and where they are in the module's flat vector."""
    found: dict[int, tuple[nn.Parameter, slice]] = {}
    start = 0
    for value in module.state_dict(keep_vars=True).values():
        if value.is_floating_point():
            if isinstance(value, nn.Parameter) and value.requires_grad:
                found.setdefault(id(value), (value, slice(start, start + value.numel())))
            start += value.numel()
    return list(found.values())


def num_values(module: nn.Module) -> int:
    """Return the length of the module's flat vector."""
    return sum(value.numel() for value in float_entries(module).values())


def to_vector(module: nn.Module) -> Array:
    """Return one flat copy of all floating-point entries."""
    vector: Array = torch.cat([value.detach().cpu().reshape(-1) for value in float_entries(module).values()]).numpy()
    return vector


def load_vector(module: nn.Module, vector: Array) -> None:
    """Copy a flat vector into the module in place; a wrong length is a ValueError."""
    entries = float_entries(module)
    total = sum(value.numel() for value in entries.values())
    if np.shape(vector) != (total,):
        raise ValueError(f"the model has {total} values, the vector has shape {np.shape(vector)}")
    parts = torch.split(as_tensor(vector), [value.numel() for value in entries.values()])
    for value, part in zip(entries.values(), parts, strict=True):
        value.copy_(part.view_as(value))

"""The arrays in what actors send."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Yield every array in a message, however deep."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        yield from arrays_in(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from arrays_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from arrays_in(getattr(value, field.name))

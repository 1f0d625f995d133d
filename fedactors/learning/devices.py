"""Where an actor's tensors live: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, as a configuration says it.

An actor asks once, when it loads, and keeps its parameters, its optimiser's moments and its rows there; what leaves the
actor is an array on the host. On Ray a process sees the GPUs that its share (`Resources.num_gpus`, which may be a
fraction) gives it and no others, so that ``auto`` without a share is the CPU.

Here alone do values move: `placed` and `on_device` there, through pinned memory and without waiting; `on_host` back.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedactors.config import DEVICE_PATTERN
from fedactors.errors import BadInput
from fedactors.learning.parameters import Array, as_tensor

Device = str | torch.device
T = TypeVar("T")


def find_device(text: str) -> torch.device:
    """Return the device that `text` names in this process; ``auto`` is the first GPU that it sees, else the CPU.

    Raises:
        BadInput: another word, or a GPU that this process does not see.
    """
    if not re.fullmatch(DEVICE_PATTERN, text):
        raise BadInput(f"device: {text!r} is not allowed: use auto, cpu, cuda or cuda:N")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        text = "cuda" if num_gpus else "cpu"
    device = torch.device(text)
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise BadInput(f"device: {text!r} is not allowed: this process sees {num_gpus} GPUs (num_gpus= asks for them)")
    return device


def placed(values: Array | Tensor, device: Device, dtype: torch.dtype | None = None) -> Tensor:
    """Return values as a tensor on a device: an array's copy, or the tensor itself where it is there already."""
    if isinstance(values, Tensor):
        return values.to(device, dtype)
    made = as_tensor(values, dtype)
    return made if torch.device(device).type == "cpu" else made.pin_memory().to(device, non_blocking=True)


def on_device(value: T, device: Device) -> T:
    """Return a value with all tensors in it on a device; dataclasses, mappings, tuples and lists are gone through."""
    made: Any = value
    if isinstance(value, Tensor):
        made = value.to(device)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        made = dataclasses.replace(value, **{name: on_device(getattr(value, name), device) for name in names})
    elif isinstance(value, dict):
        made = {name: on_device(one, device) for name, one in value.items()}
    elif isinstance(value, (tuple, list)):
        made = type(value)(on_device(one, device) for one in value)
    return made  # type: ignore[no-any-return]


def on_host(values: Array | Tensor) -> Array:
    """Return values as an array of the host; what is there already is not copied."""
    if not isinstance(values, Tensor):
        return values
    detached = values.detach()
    if detached.device.type == "cpu":
        return detached.numpy()  # type: ignore[no-any-return]
    buffer = torch.empty(detached.shape, dtype=detached.dtype, pin_memory=True)
    buffer.copy_(detached, non_blocking=True)
    torch.cuda.current_stream(detached.device).synchronize()
    return buffer.numpy()  # type: ignore[no-any-return]


def resident(tensor: Tensor) -> Array | Tensor:
    """Return what stays with an actor: on a GPU the tensor, on the host its array, which may go to a pool's process."""
    return tensor.detach() if tensor.device.type != "cpu" else on_host(tensor)


class Held:
    """An actor's arrays on its device, each copied there once; on the host they are what they are.

    Args:
        device: where.
    """

    def __init__(self, device: Device) -> None:
        self.device = torch.device(device)
        self._held: dict[str, tuple[Array, Tensor]] = {}

    def take(self, name: str, array_N: Array, rows_B: NDArray[np.integer[Any]]) -> Array | Tensor:
        """Return rows of an array; another array under the same name takes the former one's place."""
        if self.device.type == "cpu":
            chosen: Array = array_N[rows_B]
            return chosen
        if name not in self._held or self._held[name][0] is not array_N:
            self._held[name] = (array_N, placed(array_N, self.device))
        return self._held[name][1][torch.from_numpy(rows_B).to(self.device, non_blocking=True)]

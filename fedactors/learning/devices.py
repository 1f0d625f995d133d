"""Where an actor's tensors live: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``, as a configuration says it.

An actor asks once, when it loads, and keeps its parameters, its optimiser's moments and its rows there; what leaves the
actor is an array on the host. On Ray a process sees the GPUs that its share (`Resources.num_gpus`, which may be a
fraction) gives it and no others, so that ``auto`` without a share is the CPU.
"""

from __future__ import annotations

import re

import torch

from fedactors.config import DEVICE_PATTERN
from fedactors.errors import BadInput


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

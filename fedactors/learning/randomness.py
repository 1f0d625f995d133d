"""torch's one generator of a process, as if whoever draws from it were alone.

Initial weights and dropout draw from it, and no module can be given another. Threads wait for each other here: two that
seed it at once would both draw from a mixture.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DRAWING = threading.RLock()


@contextmanager
def own_draws(seed: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """Draw within the block from `seed` (or from where the generator is); afterwards it is as it was."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with _DRAWING, torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
        yield

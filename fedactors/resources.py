"""Resource annotations: what an actor asks of the host it runs on."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedactors.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Resources:
    """CPUs, GPUs, memory and labels that an actor needs.

    A label is a custom Ray resource, such as ``{"dc-oregon": 1}`` for hosts started with
    ``ray start --resources='{"dc-oregon": 1}'``; asking for a small share (0.001) places an actor there without
    using the label up. In the simulated runtime, and on Ray where costs are emulated, the actor's computes queue for
    `simulated_cores` cores, `num_cpus` of them by default; an actor that schedules rented hardware by itself states as
    many as it may ever use.
    """

    num_cpus: float = 0.0
    num_gpus: float = 0.0
    memory: int | None = None
    labels: Mapping[str, float] = field(default_factory=dict)
    simulated_cores: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("num_cpus", self.num_cpus), ("num_gpus", self.num_gpus), ("memory", self.memory or 0)):
            if value < 0:
                raise BadInput(f"{name}: {value} is not allowed: it must be 0 or more")
        for name, value in self.labels.items():
            if value <= 0:
                raise BadInput(f"labels: {name}={value} is not allowed: it must be more than 0")

    @property
    def num_cores(self) -> int:
        """How many computes of the actor take their stated time at once."""
        return max(1, int(self.num_cpus if self.simulated_cores is None else self.simulated_cores))

    def demand(self) -> dict[str, float]:
        """Return what is asked in Ray's names, without the zeros."""
        asked = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": float(self.memory or 0), **self.labels}
        return {name: value for name, value in asked.items() if value}

    def ray_options(self) -> dict[str, Any]:
        """Return the keyword arguments for Ray's ``options`` of an actor class."""
        options: dict[str, Any] = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus}
        if self.memory:
            options["memory"] = self.memory
        if self.labels:
            options["resources"] = dict(self.labels)
        return options


def queue_for_core(free_at: list[float], now: float, seconds: float) -> tuple[float, float]:
    """Take the core that is free first, and return when work of so many seconds begins and ends on it.

    Args:
        free_at: when each core is free again, as a heap; changed here.
        now: the time on the actor's clock.
        seconds: how long the work takes a core.
    """
    start = max(now, free_at[0])
    heapq.heapreplace(free_at, start + seconds)
    return start, start + seconds

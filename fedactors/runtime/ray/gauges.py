"""The run's figures as Ray metrics, for whatever scrapes the cluster (Prometheus, the dashboard)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from fedactors.runtime.base import Usage


class RunGauges:
    """Gauges of one run, set after each round; series carry the run's seed as a label."""

    def __init__(self, seed: int) -> None:
        self._tags = {"seed": str(seed)}
        self._gauges: dict[str, Gauge] = {}

    def update(self, index: int, metrics: Mapping[str, Any], usage: Usage) -> None:
        """Set all gauges: the round, its metrics, and what the run has used."""
        self._set("round", "last round that was recorded", index)
        self._set("messages", "messages between actors", usage.messages)
        self._set("bytes", "bytes of arrays, texts and raw bytes between actors", usage.bytes)
        self._set("waiting_seconds", "seconds that actors waited", usage.waiting_seconds)
        self._set("money", "what traffic and hardware cost", usage.price)
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._set(f"metric_{name}", f"metric {name} of the last round", value)

    def _set(self, name: str, text: str, value: float) -> None:
        gauge = self._gauges.get(name)
        if gauge is None:
            clean = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
            gauge = self._gauges[name] = Gauge(f"fedactors_{clean}", description=text, tag_keys=("seed",))
        gauge.set(float(value), tags=self._tags)

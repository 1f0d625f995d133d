"""A recorder that keeps every checkpoint of a run, in order."""

from __future__ import annotations

from collections.abc import Mapping

from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Snapshot


class Keeping(MemoryRecorder):
    """Keeps every checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Snapshot] = []

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        """Keep it beside the one of its label."""
        super().save_checkpoint(label, actors, driver)
        self.all.append(Snapshot(dict(actors), driver))

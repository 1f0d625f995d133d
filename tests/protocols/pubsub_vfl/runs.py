"""Small runs of PubSub-VFL on arrays, for the tests of this folder."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fedactors.data.layouts.vertical import VerticalData
from fedactors.data.sources import ArraySource
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.plugin import PUBLISHED
from fedactors.protocols.pubsub_vfl.run import run
from fedactors.runs.folder import Checkpoint
from fedactors.runs.metrics import RunResult
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runs.timeline import Span
from fedactors.runtime import snapshots
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime

TINY: dict[str, Any] = {
    **PUBLISHED,
    "num_epochs": 3,
    "batch_size": 64,
    "num_layers": 2,
    "hidden_size": 8,
    "embedding_size": 4,
    "learning_rate": 0.01,
}


class Recorder(MemoryRecorder):
    """Keeps every checkpoint and span, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Checkpoint] = []
        self.spans: list[Span] = []

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        super().record_span(actor, kind, label, start, end)
        self.spans.append(Span(actor=actor, kind=kind, label=label, start=start, end=end))

    def save_checkpoint(self, label: str, actors: Any, driver: bytes) -> None:
        super().save_checkpoint(label, actors, driver)
        self.all.append(self.checkpoints[label])


@dataclasses.dataclass
class Done:
    """A finished run."""

    result: RunResult
    recorder: Recorder
    runtime: SimulatedRuntime

    def vectors(self, index: int, actor: str) -> list[np.ndarray]:
        """The flat parameters of an actor's models in the checkpoint of that index (0: before the first epoch)."""
        state = snapshots.unseal(self.recorder.all[index].actors[actor], actor)["state"]
        return [np.asarray(n["vector"]) for n in snapshots.unpack(state["replica"][1])["networks"]]

    def rows(self, *types: str) -> list[tuple[Any, ...]]:
        """The ledger's rows of these message types."""
        return [row for row in self.recorder.ledger_rows if row[4] in types]


def config_of(**changes: Any) -> PubSubVflConfig:
    return PubSubVflConfig(**{**TINY, **changes})


def arrays(task: str, num_parties: int = 2, num_rows: int = 400) -> VerticalData:
    """Parties with three columns each, and a target that depends on all of them."""
    rng = np.random.default_rng(5)
    features = [rng.normal(size=(num_rows, 3)).astype(np.float32) for _ in range(num_parties)]
    score = sum(f @ np.array([1.0, -2.0, 0.5]) for f in features)
    if task == "regression":
        labels: np.ndarray = (10 + 3 * score).astype(np.float32)
    else:
        labels = np.digitize(score, np.quantile(score, [1 / 3, 2 / 3])).astype(np.int64)
    ids = np.arange(num_rows)
    return VerticalData(
        name=f"arrays-{task}",
        task=task,  # type: ignore[arg-type]
        num_classes=1 if task == "regression" else 3,
        parties=("active", *(f"passive-{i}" for i in range(1, num_parties))),
        sources=tuple(
            ArraySource(ids=ids, features=f, labels=labels if i == 0 else None) for i, f in enumerate(features)
        ),
        label_party="active",
    )


def simulate(
    data: str | VerticalData = "breast-cancer",
    *,
    seed: int = 0,
    resume: Checkpoint | None = None,
    runtime: dict[str, Any] | None = None,
    **changes: Any,
) -> Done:
    """Run in simulation with `TINY` settings and `changes` to them."""
    config = config_of(**changes)
    loaded = load_data(config, data, seed) if isinstance(data, str) else data
    recorder = Recorder()
    simulated = SimulatedRuntime(seed=seed, recorder=recorder, **(runtime or {}))
    snapshot_ = None if resume is None else Snapshot(resume.actors, resume.driver)
    result = simulated.execute(lambda: run(config, loaded, simulated), snapshot_)
    return Done(result, recorder, simulated)

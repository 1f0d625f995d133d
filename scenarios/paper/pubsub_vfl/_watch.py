"""One simulated run, watched every 5 % of an epoch from outside until it has reached all targets.

The watch costs the run nothing: no time, no message, no step. What is watched is the same for all methods: the
validation AUC (of a regression the RMSE, in original units, which falls to its targets) of the models that the parties'
parameter servers would give out at that moment, the means of their workers' replicas. Time is that of training:
alignment and the run's own evaluations are left out.

The parties share their link: each of them sends and receives at most its bandwidth in all (`HostCapacity`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedactors.config import as_dict, build
from fedactors.data.datasets.catalogue import describe
from fedactors.data.party_rows import PartyBlock
from fedactors.errors import FedactorsError
from fedactors.network.links import HostCapacity, Link, Network
from fedactors.runs.table import RunRow
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.sweeps import run_once

sys.path.insert(0, str(Path(__file__).parents[3]))

from fedactors.protocols.pubsub_vfl.actors import PartyWorker
from fedactors.protocols.pubsub_vfl.algorithm import default_costs
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.data import load_data, num_batches
from fedactors.protocols.pubsub_vfl.pilots import TrainingClock, joint_score
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL, PUBLISHED
from scenarios.paper.study import rows_of

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
TABLE = RESULTS / "pubsub_vfl.parquet"
EVERY = 0.05
"""Share of an epoch after which the model is looked at."""
STEPS = ("active-step", "top-step")
"""Computes of the active party, of which a batch has one."""
SIGNS = {"auc": 1, "rmse": -1}
"""Scores that are watched: 1 where more is better, -1 where less is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched:
    """A run: data, settings, targets, the link between the parties, cores and how fast they are."""

    data: str
    settings: Mapping[str, Any]
    targets: tuple[float, ...]
    gigabits: float = 1.0
    """Gbit/s that each party sends and receives in all."""
    latency: float = 0.0005
    """Seconds of one way."""
    every: float = EVERY
    """Share of an epoch after which the models are looked at."""
    cores: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"active": 32, "passive": 32})
    speed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    published: bool = True
    """Whether what is not set is as the published rows have it, and not as the defaults are."""

    def __post_init__(self) -> None:
        if self.published:
            object.__setattr__(self, "settings", {**PUBLISHED, **self.settings})


class Enough(FedactorsError):
    """All targets are reached."""


def network(gigabits: float = 1.0, latency: float = 0.0005, parties: Sequence[str] = ("active", "passive")) -> Network:
    """Return the links: within a party those that `local_link.py` measured, the broker at the active party."""
    (row,) = rows_of(TABLE, "local-link")
    local = Link(latency=row.metrics["latency"], bandwidth=row.metrics["bandwidth"])
    rate = gigabits * 1e9 / 8
    capacity = {party: HostCapacity(egress=rate, ingress=rate) for party in parties}
    default = Link(latency=latency, bandwidth=rate)
    return Network(default=default, local=local, hosts={"broker": "active"}, capacity=capacity)


def name_of(target: float) -> str:
    """Return the metric that holds the seconds to a target."""
    return f"seconds_to_{target:g}"


def score_of(data: str) -> str:
    """Return what is watched of a data set: auc, or of a regression rmse."""
    return "rmse" if describe(data).task == "regression" else "auc"


def reaches(score: str, value: float, target: float) -> bool:
    """Say whether a value is at least as good as the target."""
    return SIGNS[score] * value >= SIGNS[score] * target


class Watcher(TrainingClock):
    """Looks at the models whenever the active party's steps have come another share of an epoch further."""

    def __init__(self, score: str, targets: tuple[float, ...], every: float = EVERY) -> None:
        super().__init__()
        self.curve: dict[str, list[float]] = {"epochs": [], "seconds": [], score: []}
        self.seconds_to: dict[float, float] = {}
        self._score = score
        self._targets = targets
        self._every = every
        self._num_steps = 0
        self._num_looks = 0
        self.busy = 0.0
        self.trained = math.nan
        """Seconds until all workers had ended their epochs, if it came to that."""

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        super().record_span(actor, kind, label, start, end)
        if kind == "phase" and label == "alignment":
            if self._score == "rmse":
                # an untrained model's AUC is one half; where its RMSE begins is to be looked at
                self._look(0.0, 0.0)
        elif kind == "phase" and label == "training":
            self.trained = end - self._begun - self._aside
        elif kind == "compute" and not math.isnan(self._begun):
            self.busy += end - start
            if label in STEPS:
                self._num_steps += 1
                self._look_if_due()

    def _look_if_due(self) -> None:
        runtime = self._simulation
        first = runtime.contexts["active/worker-0"].actor
        assert isinstance(first, PartyWorker)
        per_epoch = num_batches(first.rows.num_train, first.config.batch_size)
        if self._num_steps < (self._num_looks + 1) * self._every * per_epoch:
            return
        self._num_looks = int(self._num_steps / (self._every * per_epoch))
        self._look(self._num_steps / per_epoch, self.seconds)
        if len(self.seconds_to) == len(self._targets):
            runtime.fail(Enough("all targets are reached"))

    def _look(self, epochs: float, seconds: float) -> None:
        score = joint_score(self._simulation, self._score)
        for name, value in (("epochs", epochs), ("seconds", seconds), (self._score, score)):
            self.curve[name].append(value)
        for target in self._targets:
            if reaches(self._score, score, target):
                self.seconds_to.setdefault(target, seconds)

    @property
    def _simulation(self) -> SimulatedRuntime:
        assert isinstance(self.runtime, SimulatedRuntime)
        return self.runtime


@functools.lru_cache(maxsize=1)
def blocks(data: str, feature_split: tuple[int, ...] = ()) -> tuple[PartyBlock, ...]:
    """Return the parties' rows of a named data set; as long as they are held, runs of this process load no others."""
    made = load_data(PubSubVflConfig(feature_split=feature_split), data, 0)
    return tuple(made.load(party) for party in made.parties)


def watch(point: Watched, seed: int) -> RunRow:
    """Run a point; its row has the seconds to each target (censored where it was not reached) and what it took."""
    score = score_of(point.data)
    recorder = Watcher(score, point.targets, point.every)
    blocks(point.data)  # held by its cache: runs of a study load them once
    with contextlib.suppress(Enough):
        run_once(
            PROTOCOL,
            point.settings,
            point.data,
            seed,
            recorder=recorder,
            cores=point.cores,
            network=network(point.gigabits, point.latency),
            costs=lambda config: default_costs(config, dict(point.speed)),
            checkpoint_every=0,
        )
    runtime = recorder.runtime
    assert runtime is not None
    used = runtime.usage()
    curve, seconds = recorder.curve, recorder.curve["seconds"][-1]
    reached = {name_of(target): value for target, value in recorder.seconds_to.items()}
    metrics = {
        **reached,
        "epochs": curve["epochs"][-1],
        f"best_{score}": (min if score == "rmse" else max)(curve[score]),
        "seconds_per_epoch": seconds / curve["epochs"][-1],
        "utilisation": recorder.busy / (sum(point.cores.values()) * seconds),
        "megabytes_per_epoch": used.bytes / 1e6 / curve["epochs"][-1],
    }
    if not math.isnan(recorder.trained):
        metrics["until_all_end"] = recorder.trained
    facts = {"gigabits": point.gigabits, "latency": point.latency, "cores": dict(point.cores)}
    return RunRow(
        protocol=PROTOCOL.name,
        seed=seed,
        data=point.data,
        config=as_dict(build(PubSubVflConfig, dict(point.settings))),
        metrics=metrics,
        censored=tuple(name_of(target) for target in point.targets if target not in recorder.seconds_to),
        curve=curve,
        extra={**facts, "speed": dict(point.speed)},
        wall_seconds=used.wall_seconds,
    )

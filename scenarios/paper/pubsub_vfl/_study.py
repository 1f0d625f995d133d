"""What the experiments of this folder share: one simulated run as a summary, and where summaries are written.

A point is a name and the settings of one run. Its summary carries seconds and main metric after each epoch, so that
the time to a target can be read from it. Runs whose summary exists already are skipped unless ``--again`` is given.

Two clocks are read: `seconds_to_target` with the alignment of rows and the evaluation on validation rows after each
epoch, which cost all methods the same, and `training_to_target` without them: what the paper calls running time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedactors.config import build, parse_words
from fedactors.launch import combine
from fedactors.network.links import Network
from fedactors.plugins import RunResult
from fedactors.records.metrics import Summary
from fedactors.records.recorder import MemoryRecorder
from fedactors.records.study import Study, study_flags, write_summary
from fedactors.runtime.base import Runtime
from fedactors.runtime.ray import cluster
from fedactors.runtime.simulated import SimulatedRuntime
from fedactors.runtime.simulation.pool import one_torch_thread
from protocols.pubsub_vfl.algorithm import default_costs
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.data import load_data
from protocols.pubsub_vfl.run import HEADLINE, run

RESULTS = Path(__file__).resolve().parents[3] / "docs/results/data/pubsub_vfl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One run: its name, data and settings, and the cores of each party's host."""

    name: str
    data: str
    settings: Mapping[str, Any]
    cores: Mapping[str, int] = dataclasses.field(default_factory=dict)
    speed: Mapping[str, float] = dataclasses.field(default_factory=dict)
    network: Network | None = None
    seed: int = 0
    reproducible_noise: bool = False


class Clocked(MemoryRecorder):
    """Notes the runtime's seconds after each epoch, those of its training alone and, in simulation, of busy cores."""

    runtime: Runtime | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self.training: list[float] = []
        self.busy: list[float] = []
        self._last = (0.0, 0.0)
        self._computes: list[tuple[float, float]] = []

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        if kind == "compute":
            self._computes.append((start, end))
        elif (kind, label) == ("phase", "training"):
            self._last = (start, end)

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        super().record_round(index, metrics)
        if self.runtime is None:
            return
        begin, done = self._last
        self.seconds.append(self.runtime.usage().seconds)
        self.training.append(done - begin)
        self.busy.append(sum(max(0.0, min(end, done) - max(start, begin)) for start, end in self._computes))
        self._computes.clear()


def perform(point: Point) -> Summary:
    """Run a point in simulation."""
    return perform_with_states(point)[0]


def perform_with_states(point: Point) -> tuple[Summary, dict[str, bytes]]:
    """Run a point in simulation; return the actors' final states too."""
    one_torch_thread()
    config = build(PubSubVflConfig, dict(point.settings))
    data = load_data(config, point.data, point.seed)
    recorder = Clocked()
    runtime = recorder.runtime = SimulatedRuntime(
        seed=point.seed,
        recorder=recorder,
        cores=point.cores,
        network=point.network,
        costs=default_costs(config, dict(point.speed)),
        reproducible_noise=point.reproducible_noise,
    )
    result: RunResult = runtime.execute(lambda: run(config, data, runtime))
    summary = summarise(point, config, data.task, result, recorder, runtime)
    return summary, dict(recorder.checkpoints["final"].actors)


def summarise(
    point: Point,
    config: PubSubVflConfig,
    task: str,
    result: RunResult,
    recorder: Any,
    runtime: Runtime,
) -> Summary:
    """Return the summary of a finished run; the time to the target is that of the first epoch that reached it."""
    used, metric = runtime.usage(), HEADLINE[task][0]
    cores = sum(point.cores.values())
    curve = [[s, r[metric]] for s, r in zip(recorder.seconds, recorder.rounds, strict=True)]
    reached = runtime.state.get("reached", False)
    metrics = {
        **result.metrics,
        "epochs": result.rounds,
        "seconds_to_target": curve[-1][0] if reached else "not reached",
        "epoch_seconds": curve[-1][0] / result.rounds,
        "waiting_per_epoch": used.waiting_seconds / result.rounds,
        "megabytes": used.bytes / 1e6,
        "utilisation": used.cpu_utilisation,
        "abandoned": sum(int(values["abandoned"]) for values in recorder.rounds),
    }
    training = sum(recorder.training)
    metrics["reached"] = float(reached)
    metrics["training_seconds"] = training
    metrics["training_to_target"] = training if reached else "not reached"
    metrics["training_per_epoch"] = training / result.rounds
    if cores:
        metrics["training_utilisation"] = sum(recorder.busy) / (cores * training)
    shown = {key: value for key, value in point.settings.items() if key != "num_epochs"}
    metrics |= {"w_a": config.num_active_workers, "w_p": config.num_passive_workers, "B": config.batch_size}
    metrics["learning_rate"] = config.learning_rate
    extra = {**result.extra, "settings": shown, "data": point.data, "cores": dict(point.cores), "curve": curve}
    kind = "simulated" if isinstance(runtime, SimulatedRuntime) else "ray"
    return Summary.of(
        result,
        used,
        run=point.name,
        protocol="pubsub-vfl",
        runtime=kind,
        seed=point.seed,
        metrics=metrics,
        extra=extra,
    )


@contextlib.contextmanager
def one_cluster(num_cpus: int = 2) -> Iterator[None]:
    """Keep an embedded Ray cluster for several runs, so that none of them is measured while it starts."""
    ours = cluster.join(None, num_cpus)
    try:
        yield
    finally:
        cluster.leave(ours, ())


def flags(description: str | None, seeds: Sequence[int] = (0,)) -> argparse.ArgumentParser:
    """Return the flags that every experiment of this folder has."""
    return study_flags(description, RESULTS, seeds=seeds)


def perform_all(points: Iterable[Point], folder: Path, given: Study) -> dict[str, Any]:
    """Run every point with each seed and write its summary to ``folder/name.json``; with ``--smoke`` the first, tiny.

    Returns:
        the files' contents by name: a summary, or runs, mean and std of several seeds.
    """
    done: dict[str, Any] = {}
    words = parse_words(given.words)
    for point in points:
        path = folder / f"{point.name}.json"
        if not given.wants(point.name):
            continue
        if not given.lacks(path):
            done[point.name] = json.loads(path.read_text())
            continue
        settings: dict[str, Any] = {**point.settings, **words}
        if given.smoke:
            settings |= {"num_epochs": 1, "num_layers": 2, "hidden_size": 8, "embedding_size": 4, "batch_size": 32}
            settings["feature_split"] = ()
            point = dataclasses.replace(point, data="breast-cancer")
        seeds = given.seeds[:1] if given.smoke else given.seeds
        runs = [perform(dataclasses.replace(point, settings=settings, seed=seed)) for seed in seeds]
        done[point.name] = write(path, runs)
        if given.smoke:
            break
    return done


def write(path: Path, runs: Sequence[Summary], load_average: float | None = None) -> dict[str, Any]:
    """Write one run's summary, or those of several seeds with mean and std; return what was written."""
    if load_average is not None:
        runs = [dataclasses.replace(run, extra={**run.extra, "load_average": load_average}) for run in runs]
    made = runs[0].as_dict() if len(runs) == 1 else combine(runs)
    write_summary(path, made)
    shown = {"point": path.stem, **runs[0].as_dict()["metrics"], "wall": runs[0].wall_seconds}
    print(json.dumps(shown), flush=True)
    return made

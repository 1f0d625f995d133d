"""What the experiments of this folder share: one simulated run as a summary, and where summaries are written.

A point is a name and the settings of one run. Its summary carries seconds and main metric after each epoch, so that
the time to a target can be read from it. Runs whose summary exists already are skipped unless ``--again`` is given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedactors.config import build
from fedactors.network.links import Network
from fedactors.plugins import RunResult
from fedactors.records.metrics import Summary
from fedactors.records.recorder import MemoryRecorder
from fedactors.runtime.base import Runtime
from fedactors.runtime.simulated import SimulatedRuntime
from fedactors.runtime.simulation.pool import one_torch_thread
from protocols.pubsub_vfl.config import PubSubVflConfig
from protocols.pubsub_vfl.costs import default_costs
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


class _Clocked(MemoryRecorder):
    """Notes the runtime's seconds after each epoch."""

    runtime: Runtime | None = None

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        super().record_round(index, metrics)
        if self.runtime is not None:
            self.seconds.append(self.runtime.usage().seconds)


def perform(point: Point) -> Summary:
    """Run a point in simulation."""
    return perform_with_states(point)[0]


def perform_with_states(point: Point) -> tuple[Summary, dict[str, bytes]]:
    """Run a point in simulation; return the actors' final states too."""
    one_torch_thread()
    config = build(PubSubVflConfig, dict(point.settings))
    data = load_data(config, point.data, point.seed)
    recorder = _Clocked()
    runtime = recorder.runtime = SimulatedRuntime(
        seed=point.seed,
        recorder=recorder,
        cores=point.cores,
        network=point.network,
        costs=default_costs(config, dict(point.speed)),
        reproducible_noise=point.reproducible_noise,
    )
    start = time.perf_counter()
    result: RunResult = runtime.execute(lambda: run(config, data, runtime))
    summary = summarise(point, config, data.task, result, recorder, runtime, time.perf_counter() - start)
    return summary, dict(recorder.checkpoints["final"].actors)


def summarise(
    point: Point,
    config: PubSubVflConfig,
    task: str,
    result: RunResult,
    recorder: Any,
    runtime: Runtime,
    wall_seconds: float,
) -> Summary:
    """Return the summary of a finished run; the time to the target is that of the first epoch that reached it."""
    used, metric = runtime.usage(), HEADLINE[task][0]
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
    }
    shown = {key: value for key, value in point.settings.items() if key != "num_epochs"}
    return Summary(
        run=point.name,
        protocol="pubsub-vfl",
        runtime="simulated" if isinstance(runtime, SimulatedRuntime) else "ray",
        seed=point.seed,
        rounds=result.rounds,
        metrics=metrics,
        extra={**result.extra, "settings": shown, "data": point.data, "cores": dict(point.cores), "curve": curve},
        bytes=used.bytes,
        messages=used.messages,
        seconds=used.seconds,
        wall_seconds=round(wall_seconds, 2),
        cpu_utilisation=used.cpu_utilisation,
        waiting_seconds=used.waiting_seconds,
        header_bytes=used.header_bytes,
    )


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the flags that every experiment of this folder has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--to", type=Path, default=RESULTS, help="folder under which summaries are written")
    made.add_argument("--smoke", action="store_true", help="the smallest meaningful run; writes nothing")
    made.add_argument("--full", action="store_true", help="the paper's sizes")
    made.add_argument("--again", action="store_true", help="run also what has a summary already")
    return made


def perform_all(points: Iterable[Point], folder: Path, given: argparse.Namespace) -> dict[str, Summary]:
    """Run every point and write each summary to ``folder/name.json``; with ``--smoke`` only the first, tiny."""
    done: dict[str, Summary] = {}
    for point in points:
        if given.smoke:
            tiny = {"num_epochs": 1, "num_layers": 2, "hidden_size": 8, "embedding_size": 4, "batch_size": 32}
            smallest = dataclasses.replace(point, data="breast-cancer", settings={**point.settings, **tiny})
            done[point.name] = perform(smallest)
            break
        path = folder / f"{point.name}.json"
        if path.is_file() and not given.again:
            done[point.name] = Summary.from_dict(json.loads(path.read_text()))
            continue
        done[point.name] = summary = perform(point)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(summary.as_dict(), indent=1) + "\n")
        print(
            json.dumps({"point": point.name, **summary.as_dict()["metrics"], "wall": summary.wall_seconds}), flush=True
        )
    return done

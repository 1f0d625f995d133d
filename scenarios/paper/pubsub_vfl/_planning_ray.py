"""Ten settings on real Ray, predicted from what `fedactors plan --measure` measures on this machine just before."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _planning import PlanningStudy, problem_in_files

from fedactors.config import as_dict, build
from fedactors.launch import measure
from fedactors.options import RunOptions
from fedactors.protocols.pubsub_vfl import planner
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.dry_run import Problem
from fedactors.protocols.pubsub_vfl.plugin import PROTOCOL, PUBLISHED
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runs.table import RunRow
from fedactors.runtime.interface import Runtime
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.sweeps import run_once

EPOCHS = 4
"""The first of them is left out: it loads and allocates what the others find."""
SETTINGS = (
    (1, 1, 64, 8, "pull"),
    (1, 1, 128, 8, "push"),
    (1, 1, 256, 8, "pull"),
    (1, 1, 256, 2, "pull"),
    (1, 1, 512, 8, "push"),
    (1, 2, 128, 12, "pull"),
    (1, 2, 512, 12, "pull"),
    (2, 1, 128, 12, "pull"),
    (2, 1, 256, 12, "push"),
    (2, 2, 256, 16, "pull"),
)
"""Workers of both sides, batch size, window, and how payloads travel."""


class Trainings(MemoryRecorder):
    """Keeps how long each epoch's training took, and the processor seconds of all actors by its end."""

    runtime: Runtime | None = None

    def __init__(self) -> None:
        super().__init__(keeps_checkpoints=False)
        self.seconds: list[float] = []
        self.processor: list[float] = []

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        if kind == "phase" and label == "training":
            assert isinstance(self.runtime, RayRuntime)
            self.seconds.append(end - start)
            times = [psutil.Process(pid).cpu_times() for pid in self.runtime.processes.values()]
            self.processor.append(sum(time.user + time.system for time in times))


def measure_on_ray(given: PlanningStudy, data: str) -> None:
    """Let the parties measure themselves, predict all settings from their files, and run them one after another."""
    made: dict[str, dict[str, Any]] = {}
    for w_a, w_p, size, window, payloads in SETTINGS[:2] if given.smoke else SETTINGS:
        made[f"w{w_a}-{w_p}-b{size}-p{window}-{payloads}"] = {
            **PUBLISHED,
            "num_epochs": EPOCHS,
            "num_active_workers": w_a,
            "num_passive_workers": w_p,
            "batch_size": size,
            "max_in_flight": window,
            "prefetch": 3,
            "transfer": payloads,
        }
    made = {name: settings for name, settings in made.items() if given.wants(name)}
    told: dict[str, list[Mapping[str, Any]]] = {}
    expected: dict[str, tuple[float, float]] = {}
    for name, settings in made.items():
        config = build(PubSubVflConfig, settings)
        if config.transfer not in told:
            told[config.transfer] = measure(PROTOCOL, config, RunOptions(runtime="ray", data=data))
        problem = _problem(config, told[config.transfer])
        expected[name] = (planner.predict(config, problem), _processor_seconds(config, problem))
    for name, settings in made.items():
        given.put("planning-ray", name, [_run(settings, data, *expected[name], told[settings["transfer"]])], list(made))


def _problem(config: PubSubVflConfig, profiles: Sequence[Mapping[str, Any]]) -> Problem:
    """Return what is planned for, by way of files, as parties send them."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{index}.json") for index, _ in enumerate(profiles)]
        for path, profile in zip(files, profiles, strict=True):
            path.write_text(json.dumps(profile))
        return problem_in_files(config, files)


def _processor_seconds(config: PubSubVflConfig, problem: Problem) -> float:
    """Return the processor seconds that the profiles say an epoch takes all workers; the broker's reports are few."""
    size, num_batches = config.batch_size, problem.num_rows / config.batch_size
    sides = (problem.active, problem.passive)
    messages = sum(side.message_seconds + side.message_row_seconds * size for side in sides)
    broker = 3 * problem.active.broker_seconds + 2 * size * problem.active.broker_row_seconds
    return num_batches * (sum(planner.batch_seconds(side, size) for side in sides) + messages + broker)


def _run(
    settings: Mapping[str, Any], data: str, expected: float, processor: float, profiles: Sequence[Mapping[str, Any]]
) -> RunRow:
    recorder, before = Trainings(), os.getloadavg()[0]
    done = run_once(PROTOCOL, settings, data, 0, make=RayRuntime, recorder=recorder, checkpoint_every=0)
    seconds, spent = statistics.median(recorder.seconds[1:]), statistics.median(np.diff(recorder.processor))
    metrics = {
        "predicted": expected,
        "measured": seconds,
        "measured_over_predicted": seconds / expected,
        "processor_predicted": processor,
        "processor_measured": float(spent),
        "load_average": before,
    }
    row = done.row(metrics, config=as_dict(done.config))
    return dataclasses.replace(row, curve={"seconds": recorder.seconds}, extra={"profiles": list(profiles)})

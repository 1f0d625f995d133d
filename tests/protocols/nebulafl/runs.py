"""Small runs of NebulaFL in the simulated runtime, whole and cut."""

import dataclasses
import json

import pytest

from fedactors.errors import Stopped
from fedactors.records.recorder import MemoryRecorder
from fedactors.runtime.base import Snapshot
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import load_data
from protocols.nebulafl.run import run

SMALL = NebulaFLConfig(
    num_centers=3,
    num_containers=12,
    active_per_center=2,
    duration=2600.0,
    rotation_interval=500.0,
    evaluation_interval=650.0,
    num_epochs=1,
    batch_size=200,
    catalogue="scarce",
    network="scarce",
)
BASELINES = (
    "fedavg", "fedavg-hierarchical", "fedhisyn", "fedhkt", "fedsa", "pisces", "gitfl", "fedasync", "fedbuff",
)  # fmt: skip


def play(config, *, seed=0, resume=None, recorder=None, name="digits", **options):
    data = load_data(config, name, seed)
    recorder = recorder if recorder is not None else MemoryRecorder()
    runtime = SimulatedRuntime(seed=seed, recorder=recorder, **options)
    result = runtime.execute(lambda: run(config, data, runtime), resume)
    return result, recorder, runtime


def changed(config=SMALL, **values):
    return dataclasses.replace(config, **values)


def rounds(recorder):
    return [json.dumps(entry, sort_keys=True) for entry in recorder.rounds]


def spans_of(recorder):
    events = [json.loads(line) for line in recorder.lines]
    return [e for e in events if e["type"] == "span" and e["kind"] in ("train", "given up")]


class CutRecorder(MemoryRecorder):
    """Asks the runtime to stop while trainings are under way, between two rotations."""

    def __init__(self, after, runtime_of):
        super().__init__()
        self.after, self.runtime_of = after, runtime_of

    def record_span(self, actor, kind, label, start, end):
        super().record_span(actor, kind, label, start, end)
        self.after -= kind == "train"
        if self.after == 0:
            self.runtime_of().request_stop(143)


def cut(config, after, **options):
    holder = {}
    recorder = CutRecorder(after, lambda: holder["runtime"])
    data = load_data(config, "digits", 0)
    runtime = holder["runtime"] = SimulatedRuntime(seed=0, recorder=recorder, **options)
    with pytest.raises(Stopped):
        runtime.execute(lambda: run(config, data, runtime))
    found = recorder.checkpoints["last"]
    return recorder, Snapshot(found.actors, found.driver)

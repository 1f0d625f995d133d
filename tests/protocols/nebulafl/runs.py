"""Small runs of NebulaFL in the simulated runtime, whole and cut."""

import dataclasses
import json

import numpy as np
import pytest

from fedactors.config import with_contents
from fedactors.errors import Stopped
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime

SMALL = NebulaFLConfig(
    num_centers=3,
    num_containers=12,
    active_per_center=2,
    duration=2600.0,
    rotation_interval=500.0,
    evaluation_interval=650.0,
    local_epochs=1,
    batch_size=200,
    catalogue="scarce",
    network="scarce",
)
BASELINES = (
    "fedavg", "fedavg-hierarchical", "fedhisyn", "fedhkt", "fedsa", "pisces", "gitfl", "fedasync", "fedbuff",
)  # fmt: skip

PRICES = {"rtx-3080": 0.12, "rtx-4090": 0.30, "a100": 0.60}


def play(config, *, seed=0, resume=None, recorder=None, name="digits", **options):
    data = load_data(config, name, seed)
    recorder = recorder if recorder is not None else MemoryRecorder()
    runtime = SimulatedRuntime(seed=seed, recorder=recorder, **options)
    result = runtime.execute(lambda: run(config, data, runtime), resume)
    return result, recorder, runtime


def changed(config=SMALL, **values):
    return with_contents(dataclasses.replace(config, **values))


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


def cut(config, after, *, name="digits", **options):
    holder = {}
    recorder = CutRecorder(after, lambda: holder["runtime"])
    data = load_data(config, name, 0)
    runtime = holder["runtime"] = SimulatedRuntime(seed=0, recorder=recorder, **options)
    with pytest.raises(Stopped):
        runtime.execute(lambda: run(config, data, runtime))
    found = recorder.checkpoints["last"]
    return recorder, Snapshot(found.actors, found.driver)


def user_files(folder, *, columns=("a", "b", "c"), wider=(), listed=True, centers=(), **values):
    """Write four clients' files and test rows; return a configuration and the data for them."""
    rng = np.random.default_rng(0)
    for name in ("client-0", "client-1", "client-2", "client-3", "test"):
        names = (*columns, "extra") if name in wider else columns
        x = rng.normal(size=(30, len(names)))
        y = (x[:, 0] > 0).astype(int)
        rows = [",".join([*map(str, row), str(label)]) for row, label in zip(x, y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([",".join([*names, "y"]), *rows]))
    features = f"features = {list(columns)}\n" if listed else ""
    parties = [f'[parties.client-{n}]\npath = "client-{n}.csv"\nlabel = "y"\n{features}\n' for n in range(4)]
    parties = [f'{party}center = "{at}"\n' for party, at in zip(parties, centers, strict=True)] if centers else parties
    head = '[task]\ntype = "binary"\nlayout = "horizontal"\ntest = "test.csv"\n'
    (folder / "parties.toml").write_text(head + "\n".join(parties))
    config = changed(
        num_centers=2, num_containers=4, active_per_center=2, dirichlet=None, model="linear", duration=90.0,
        evaluation_interval=30.0, rotation_interval=20.0, batch_size=10, catalogue="scarce",
    )  # fmt: skip
    config = changed(config, **values)
    return config, load_data(config, str(folder / "parties.toml"), 0)

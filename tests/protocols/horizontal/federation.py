"""Small runs of the plain horizontal methods in the simulated runtime, whole and cut."""

import dataclasses
import json

import numpy as np
import pytest

from fedactors.config import build
from fedactors.data.new_rows import actor_state
from fedactors.errors import Stopped
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.protocols.horizontal.data import load_data
from fedactors.protocols.horizontal.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime

METHODS = ("fedavg", "fedprox", "scaffold", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
SMALL = HorizontalConfig(
    model="linear", num_clients=6, num_rounds=4, num_training=240, batch_size=16, local_epochs=2, float64=True
)


def changed(**values):
    return build(HorizontalConfig, {**dataclasses.asdict(SMALL), **values})


def play(config, *, name="digits", seed=0, resume=None, recorder=None, **options):
    recorder = recorder if recorder is not None else MemoryRecorder()
    runtime = SimulatedRuntime(seed=seed, recorder=recorder, **options)
    data = load_data(config, name, seed)
    result = runtime.execute(lambda: run(config, data, runtime), resume)
    return result, recorder, runtime


def rounds(recorder):
    return [json.dumps(entry, sort_keys=True) for entry in recorder.rounds]


def state_of(recorder, actor="server", label="final"):
    return actor_state(recorder.checkpoints[label].actors, actor)


def vector_of(recorder):
    return np.asarray(state_of(recorder)["model"]["vector"])


class CutRecorder(MemoryRecorder):
    """Asks the runtime to stop when a round is recorded."""

    def __init__(self, after):
        super().__init__()
        self.after, self.runtime = after, None

    def record_round(self, index, metrics):
        super().record_round(index, metrics)
        if index == self.after:
            self.runtime.request_stop(143)


def cut(config, after, *, name="digits", **options):
    recorder = CutRecorder(after)
    runtime = recorder.runtime = SimulatedRuntime(seed=0, recorder=recorder, **options)
    data = load_data(config, name, 0)
    with pytest.raises(Stopped):
        runtime.execute(lambda: run(config, data, runtime))
    found = recorder.checkpoints["last"]
    return recorder, Snapshot(found.actors, found.driver)


def user_files(folder, *, task="binary", wider=(), outputs=2):
    """Write three clients' files and test rows; return the description's path."""
    rng = np.random.default_rng(0)
    for name in ("north", "south", "west", "test"):
        names = ["a", "b", "c", *(["extra"] if name in wider else [])]
        x = rng.normal(size=(40, len(names)))
        y = x[:, 0] - x[:, 1] if task == "regression" else (x[:, 0] > x[:, 1]).astype(int)
        rows = [",".join([*map(str, row), str(label)]) for row, label in zip(x, y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([",".join([*names, "y"]), *rows]))
    parties = [f'[parties.{name}]\npath = "{name}.csv"\nlabel = "y"\n' for name in ("north", "south", "west")]
    head = f'[task]\ntype = "{task}"\nlayout = "horizontal"\ntest = "test.csv"\n'
    (folder / "parties.toml").write_text(head + "\n".join(parties))
    return str(folder / "parties.toml")

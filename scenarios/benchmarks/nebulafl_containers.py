"""What containers as processes of their own bring on Ray: trainings a second, beside those in their center's process.

One center with four containers, two of them training at a time, on two cores: in their center's process one trains
after the other; as processes of their own, two at once. `digits` is a training of some milliseconds, where messages
count; `fashion-mnist` one of half a second, where arithmetic does. Sides alternate; the median of three counts.

Usage: FEDACTORS_DATA=<data folder> python scenarios/benchmarks/nebulafl_containers.py [--seconds 20]
       [--repeats 3] [--data digits,fashion-mnist]
Prints one JSON line a data set: trainings a second of either side, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from fedactors.config import build
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.run import run
from fedactors.runtime.ray.runtime import RayRuntime

SETTINGS = {"digits": {}, "fashion-mnist": {"num_training": 6000, "local_epochs": 1}}


def trainings(name: str, seconds: float, *, alone: bool) -> float:
    """Return the trainings a second of a run of so many seconds."""
    settings: dict[str, Any] = {
        "num_centers": 1,
        "num_containers": 4,
        "active_per_center": 2,
        "duration": seconds,
        "evaluation_interval": seconds,
        "rotation_interval": seconds,
        "container_processes": alone,
        **SETTINGS[name],
    }
    config = build(NebulaFLConfig, settings)
    data = load_data(config, name, 0)
    runtime = RayRuntime(seed=0, num_cpus=2, checkpoint_every=0)
    return float(runtime.execute(lambda: run(config, data, runtime)).metrics["trainings"]) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", default=",".join(SETTINGS))
    given = parser.parse_args()
    for name in given.data.split(","):
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(given.repeats):
            for alone, each in found.items():
                each.append(trainings(name, given.seconds, alone=alone))
        inside, local = (statistics.median(each) for each in found.values())
        measured = {"in_their_center": inside, "as_processes": local, "ratio": local / inside}
        print(json.dumps({"data": name, **{key: round(value, 3) for key, value in measured.items()}}), flush=True)


if __name__ == "__main__":
    main()

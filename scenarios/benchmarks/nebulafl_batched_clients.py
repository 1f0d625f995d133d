"""How many containers a second a simulated run of NebulaFL trains: one by one, and what is under way in one call.

Usage: FEDACTORS_DATA=<folder> python scenarios/benchmarks/nebulafl_batched_clients.py [--device cuda] [--smoke]
Prints one JSON line a row: model, its numbers, trainings under way at once, rows of a container, containers a second
of both sides (whole runs, scheduling and measuring included), `gain`, and by how much the final models differ at most.
One thread; sides alternate, the best of three counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

from fedactors.protocols.nebulafl.algorithm import master_model
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.runtime.snapshots import unpack, unseal

REPEATS = 3
ROWS = (
    # data, model, containers, active in each of four centers, virtual seconds: some hundreds of trainings
    ("digits", "linear", 40, 5, 200.0),
    ("digits", "top-mlp", 40, 5, 8000.0),
    ("digits", "top-mlp", 200, 10, 1000.0),
    ("digits", "cnn8", 200, 10, 400.0),
    ("fashion-mnist", "linear", 200, 10, 100.0),
    ("fashion-mnist", "top-mlp", 200, 10, 4000.0),
)


def play(config: NebulaFLConfig, name: str) -> tuple[float, np.ndarray, int]:
    """Run; return containers a second, the mean of the centers' masters at the end, and the rows of a container."""
    data = load_data(config, name, 0)
    rows = len(data.client(0).load().labels)  # the data set is read before the clock starts
    recorder = MemoryRecorder()
    runtime = SimulatedRuntime(seed=0, recorder=recorder)
    begun = time.perf_counter()
    result = runtime.execute(lambda: run(config, data, runtime))
    seconds = time.perf_counter() - begun
    masters = []
    for actor, frame in recorder.checkpoints["last"].actors.items():
        state = unseal(frame, actor)["state"]
        if "models" in state:
            models = unpack(state["models"][1])
            masters.append(master_model(models["planets"], models["versions"]))
    return result.metrics["trainings"] / seconds, np.mean(masters, axis=0), rows


def compare(name: str, model: str, containers: int, active: int, seconds: float, device: str) -> dict[str, object]:
    """Return one row."""
    sides = {
        word: NebulaFLConfig(
            model=model, num_containers=containers, active_per_center=active, together=word == "together",
            dirichlet=None, num_training=None if name == "digits" else 30 * containers, device=device,
            rotation_interval=seconds / 5, duration=seconds, evaluation_interval=seconds,
        )
        for word in ("one by one", "together")
    }  # fmt: skip
    best, models, rows = dict.fromkeys(sides, 0.0), {}, 0
    for _ in range(REPEATS):
        for word, config in sides.items():
            speed, models[word], rows = play(config, name)
            best[word] = max(best[word], speed)
    return {
        "data": name,
        "model": model,
        "numbers": models["together"].size,
        "under way": 4 * active,
        "rows": rows,
        **{word: round(speed, 1) for word, speed in best.items()},
        "gain": round(best["together"] / best["one by one"], 2),
        "difference": float(np.abs(models["together"] - models["one by one"]).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--smoke", action="store_true", help="a tenth of the first row")
    args = parser.parse_args()
    for row in [(*ROWS[0][:-1], 20.0)] if args.smoke else ROWS:
        print(json.dumps(compare(*row, args.device)), flush=True)


if __name__ == "__main__":
    main()

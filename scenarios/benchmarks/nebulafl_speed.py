"""How fast NebulaFL's simulated runs are: against plain training, against Flower, and the cost of scheduling alone.

    bound      a NebulaFL run on Fashion-MNIST with a pool of two, and as many of the same local trainings, by the same
               function, back to back in two single-thread processes; both from process start to exit
    peer       FedAvg as Flower's Ray simulation does it (same kind of split, same model), both from start to exit
    overhead   the linear model: seconds per client task beyond bare training; and thousands of tiny containers

Usage: FEDACTORS_DATA=<folder> python scenarios/benchmarks/nebulafl_speed.py bound [--repeats 2]
       ... peer CLIENTS PER_ROUND ROUNDS [--linear] --peer-python P --peer-script flower_fedavg.py
       ... overhead [--containers 1000 --per-round 200 --samples 60]
Prints one JSON line. Sides of a comparison alternate in one run, so that other load hits both.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

START = time.perf_counter()
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402


def run_fedavg(clients: int, per_round: int, rounds: int, linear: bool, pool: int) -> dict[str, Any]:
    """Run FedAvg with one center in this process; return accuracy, samples trained, seconds inside the run."""
    from fedactors.protocols.nebulafl.config import NebulaFLConfig
    from fedactors.protocols.nebulafl.data import load_data
    from fedactors.protocols.nebulafl.run import run
    from fedactors.runtime.simulation.runtime import SimulatedRuntime

    config = NebulaFLConfig(
        algorithm="fedavg",
        model="linear" if linear else "cnn28",
        num_centers=1,
        num_containers=clients,
        active_per_center=per_round,
        num_rounds=rounds,
        local_epochs=1,
        duration=1e9,
        rotation_interval=1e3,
        evaluation_interval=1e8,
        checkpoint_interval=0,
        resource_policy="fastest",
        dirichlet=0.5 if clients <= 100 else None,  # as the peer's script splits
    )
    data = load_data(config, "fashion-mnist", 0)
    begun = time.perf_counter()
    runtime = SimulatedRuntime(seed=0, pool=pool)
    result = runtime.execute(lambda: run(config, data, runtime))
    return {
        "accuracy": result.metrics["test/accuracy"],
        "tasks": result.metrics["trainings"],
        "run_seconds": time.perf_counter() - begun,
    }


def run_tiny_containers(containers: int) -> dict[str, Any]:
    """Run NebulaFL itself with the linear model over four centers for a few virtual seconds."""
    from fedactors.protocols.nebulafl.config import NebulaFLConfig
    from fedactors.protocols.nebulafl.data import load_data
    from fedactors.protocols.nebulafl.run import run
    from fedactors.runtime.simulation.runtime import SimulatedRuntime

    config = NebulaFLConfig(
        model="linear", num_containers=containers, active_per_center=12, local_epochs=1, dirichlet=None, duration=8.0,
        rotation_interval=2.0, evaluation_interval=8.0, checkpoint_interval=0,
    )  # fmt: skip
    data = load_data(config, "fashion-mnist", 0)
    begun = time.perf_counter()
    runtime = SimulatedRuntime(seed=0)
    result = runtime.execute(lambda: run(config, data, runtime))
    return {"accuracy": result.metrics["test/accuracy"], "run_seconds": time.perf_counter() - begun}


def nebulafl_side() -> dict[str, Any]:
    """Run NebulaFL on Fashion-MNIST until about `BOUND_TRAININGS` trainings are done, with a pool of two."""
    from fedactors.protocols.nebulafl.config import NebulaFLConfig
    from fedactors.protocols.nebulafl.data import load_data
    from fedactors.protocols.nebulafl.run import run
    from fedactors.runtime.simulation.runtime import SimulatedRuntime

    config = bound_config(NebulaFLConfig)
    data = load_data(config, "fashion-mnist", 0)
    runtime = SimulatedRuntime(seed=0, pool=2)
    result = runtime.execute(lambda: run(config, data, runtime))
    # 20 planets: those under way at the end were trained too
    return {"tasks": result.metrics["trainings"] + config.num_centers * config.active_per_center}


def bound_config(make: Any) -> Any:
    """Return the run that is held against the bound: trainings of one epoch over about 1,500 images."""
    return make(
        num_centers=4, num_containers=40, active_per_center=5, local_epochs=1, rotation_interval=60.0, duration=75.0,
        evaluation_interval=75.0, dirichlet=None, checkpoint_interval=0, resource_policy="fastest",
    )  # fmt: skip


def plain_worker(index: int, num_tasks: int) -> None:
    """Train `num_tasks` containers one after the other with the kernel that NebulaFL's containers use, and no more."""
    from fedactors.data.layouts.horizontal import rows_key
    from fedactors.protocols.nebulafl.config import NebulaFLConfig
    from fedactors.protocols.nebulafl.data import load_data
    from fedactors.protocols.nebulafl.training import initial_parameters, run_model, steps_of, train
    from fedactors.runtime.compute import one_torch_thread

    one_torch_thread()
    config = bound_config(NebulaFLConfig)
    data = load_data(config, "fashion-mnist", 0)
    model = run_model(config, data)
    start_P = initial_parameters(model, 0)
    for task in range(num_tasks):
        key = rows_key(data.client((index + 2 * task) % data.num_clients))
        train(model, start_P, key, task, steps_of(config))


def plain_side(num_tasks: int) -> None:
    """Do `num_tasks` trainings in two processes."""
    context = multiprocessing.get_context("spawn")
    shares = (num_tasks - num_tasks // 2, num_tasks // 2)
    workers = [context.Process(target=plain_worker, args=(index, share)) for index, share in enumerate(shares)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class ProcessorTime(threading.Thread):
    """Adds up the processor seconds of every process that carries a marker, seen four times a second.

    On a machine that is shared with other work wall times say little; processor seconds of both sides still compare.
    """

    def __init__(self, marker: str) -> None:
        super().__init__(daemon=True)
        self._marker, self._over = marker, threading.Event()
        self._mine: dict[int, bool] = {}
        self._used: dict[int, float] = {}

    def run(self) -> None:
        """Look until told to stop."""
        while not self._over.wait(0.25):
            for process in psutil.process_iter():
                try:
                    if process.pid not in self._mine:
                        self._mine[process.pid] = process.environ().get("BENCHMARK_SIDE") == self._marker
                    if self._mine[process.pid]:
                        times = process.cpu_times()
                        self._used[process.pid] = times.user + times.system
                except psutil.Error:
                    continue

    def total(self) -> float:
        """Stop and return the sum."""
        self._over.set()
        self.join()
        return sum(self._used.values())


def timed(command: list[str]) -> tuple[float, float, dict[str, Any]]:
    """Run a command; return its seconds from start to exit, its processor seconds and the JSON of its last line."""
    marker = f"{os.getpid()}-{time.time_ns()}"
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "RAY_worker_niceness": "0",  # else the peer's workers give way to every other process of the machine
        "BENCHMARK_SIDE": marker,
    }
    watch = ProcessorTime(marker)
    watch.start()
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return seconds, watch.total(), json.loads(lines[-1]) if lines else {}


def compare_bound(repeats: int) -> dict[str, Any]:
    """Alternate the two sides; every side does all its work from process start to exit."""
    framework, plain, tasks = [], [], 0
    for _ in range(repeats):
        seconds, used, found = timed([sys.executable, __file__, "nebulafl-side"])
        framework.append((seconds, used))
        # trainings given up at the end were computed all the same
        tasks = int(found["tasks"])
        plain.append(timed([sys.executable, __file__, "plain-side", str(tasks)])[:2])
    return {"trainings": tasks, **compared("framework", framework, "plain", plain)}


def compared(first_name: str, first: list[Any], second_name: str, second: list[Any]) -> dict[str, Any]:
    """Return both sides' wall and processor seconds and their ratios."""
    ratio = {
        word: sum(one[index] for one in first) / sum(one[index] for one in second)
        for index, word in enumerate(("ratio", "processor_ratio"))
    }
    return {first_name: first, second_name: second, **ratio}


def compare_peer(args: argparse.Namespace) -> dict[str, Any]:
    """Alternate Flower and this framework on the same work."""
    words = [str(args.clients), str(args.per_round), str(args.rounds)]
    linear = ["linear"] if args.linear else []
    ours, theirs, accuracy = [], [], {}
    for _ in range(args.repeats):
        seconds, used, found = timed([args.peer_python, args.peer_script, *words, *linear])
        theirs.append((seconds, used))
        accuracy["peer_accuracy"] = found.get("accuracy")
        flags = ["--linear"] if args.linear else []
        command = [sys.executable, __file__, "fedavg", *words, *flags, "--pool", str(args.pool)]
        seconds, used, found = timed(command)
        ours.append((seconds, used))
        accuracy["accuracy"] = found["accuracy"]
    return {"work": words + linear, **compared("ours", ours, "peer", theirs), **accuracy}


def measure_overhead(args: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds per task of a FedAvg run of the linear model beyond the training functions themselves."""
    from fedactors.data.datasets.load import load_images
    from fedactors.protocols.nebulafl import actors, training
    from fedactors.protocols.nebulafl.baselines import actors as baselines

    inside = [0.0, 0.0, 0]  # wall seconds, processor seconds, calls
    bare = training.train

    def watched(*words: Any) -> Any:
        begun, used = time.perf_counter(), time.process_time()
        found = bare(*words)
        inside[0] += time.perf_counter() - begun
        inside[1] += time.process_time() - used
        inside[2] += 1
        return found

    watched.__name__ = bare.__name__
    vars(training)["train"] = watched
    for center in (actors.NebulaCenter, baselines.OrderCenter):
        setattr(center, "jobs", (watched,))  # noqa: B010
    load_images("fashion-mnist")  # read once before the clock starts
    begun = time.process_time()
    if args.rotate:
        found = run_tiny_containers(args.containers)
    else:
        found = run_fedavg(args.containers, args.per_round, args.rounds, True, 0)
    used = time.process_time() - begun
    tasks = int(inside[2])
    return {
        "algorithm": "nebulafl" if args.rotate else "fedavg",
        "containers": args.containers,
        "tasks": tasks,
        "bare_ms_per_task": 1e3 * inside[0] / tasks,
        "overhead_ms_per_task": 1e3 * (found["run_seconds"] - inside[0]) / tasks,
        "overhead_cpu_ms_per_task": 1e3 * (used - inside[1]) / tasks,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "accuracy": found["accuracy"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    sides = ["bound", "peer", "overhead", "fedavg", "nebulafl-side", "plain-side"]
    parser.add_argument("what", nargs="?", default="bound", choices=sides)
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--linear", action="store_true")
    parser.add_argument("--pool", type=int, default=2)
    parser.add_argument("--containers", type=int, default=1000)
    parser.add_argument("--per-round", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rotate", action="store_true", help="overhead of NebulaFL instead of FedAvg")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--peer-script", default="flower_fedavg.py")
    args = parser.parse_args()
    if args.what in ("peer", "fedavg"):
        args.clients, args.per_round, args.rounds = args.numbers
    made: dict[str, Any] = {}
    if args.what == "bound":
        made = compare_bound(args.repeats)
    elif args.what == "peer":
        made = compare_peer(args)
    elif args.what == "overhead":
        made = measure_overhead(args)
    elif args.what == "fedavg":
        made = run_fedavg(args.clients, args.per_round, args.rounds, args.linear, args.pool)
    elif args.what == "nebulafl-side":
        made = nebulafl_side()
    else:
        plain_side(args.numbers[0])
    if made:
        print(json.dumps({**made, "seconds": time.perf_counter() - START}))


if __name__ == "__main__":
    main()

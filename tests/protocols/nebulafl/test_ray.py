"""NebulaFL on a real Ray cluster, its hardware and links emulated at a stated scale."""

import dataclasses
import os
import signal

import pytest

from fedactors.records.recorder import MemoryRecorder
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulated import SimulatedRuntime
from protocols.nebulafl.config import NebulaFLConfig
from protocols.nebulafl.data import load_data
from protocols.nebulafl.run import run

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

SMALL = NebulaFLConfig(
    num_centers=2,
    num_containers=8,
    active_per_center=2,
    duration=1200.0,
    rotation_interval=300.0,
    evaluation_interval=400.0,
    num_epochs=1,
    batch_size=200,
    checkpoint_interval=0,
)


def play(config, scale=0.005):
    data, recorder = load_data(config, "digits", 0), MemoryRecorder()
    runtime = RayRuntime(seed=0, recorder=recorder, emulate=True, scale=scale)
    return runtime.execute(lambda: run(config, data, runtime)), recorder, runtime


def test_the_emulated_run_keeps_the_simulated_account():
    result, recorder, runtime = play(SMALL)
    data = load_data(SMALL, "digits", 0)
    simulated = SimulatedRuntime(seed=0)
    expected = simulated.execute(lambda: run(SMALL, data, simulated))
    assert [entry["round"] for entry in recorder.rounds] == [1, 2, 3]
    # a slower machine does less in the same time, none does more than the model allows
    assert 0 < result.metrics["trainings"] <= 1.5 * expected.metrics["trainings"]
    assert result.metrics["dollars"] == pytest.approx(runtime.usage().price)
    assert result.metrics["transfers"] > 0
    assert sum(sum(v) for v in result.extra["versions"].values()) == result.metrics["trainings"]


def test_a_synchronous_baseline_gives_the_simulation_s_numbers():
    config = dataclasses.replace(
        SMALL, algorithm="fedavg-hierarchical", num_rounds=1, duration=1e5, evaluation_interval=1500.0
    )
    data, simulated, recorder = load_data(config, "digits", 0), SimulatedRuntime(seed=0), MemoryRecorder()
    expected = simulated.execute(lambda: run(config, data, simulated))
    runtime = RayRuntime(seed=0, recorder=recorder, emulate=True, scale=0.005)
    result = runtime.execute(lambda: run(config, data, runtime))
    assert result.metrics["accuracy"] == expected.metrics["accuracy"]


def test_a_killed_center_comes_back(monkeypatch):
    config = dataclasses.replace(SMALL, restart_seconds=100.0, duration=15000.0, evaluation_interval=2500.0)
    data, killed = load_data(config, "digits", 0), []

    class Killer(MemoryRecorder):
        def record_round(self, index, metrics):
            super().record_round(index, metrics)
            if not killed:
                killed.append(runtime.processes["virginia"])
                os.kill(killed[0], signal.SIGKILL)

    recorder = Killer()
    runtime = RayRuntime(seed=0, recorder=recorder, emulate=True, scale=0.002)
    result = runtime.execute(lambda: run(config, data, runtime))
    assert runtime.processes["virginia"] != killed[0]
    assert set(result.extra["versions"]) == {"oregon", "virginia"}
    assert result.metrics["dollars"] == pytest.approx(runtime.usage().price)

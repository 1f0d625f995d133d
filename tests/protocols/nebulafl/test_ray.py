"""NebulaFL on a real Ray cluster, its hardware and links emulated at a stated scale."""

import dataclasses
import itertools
import json
import os
import signal

import numpy as np
import pytest

from fedactors.data.new_rows import actor_state
from fedactors.errors import Stopped
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.data import load_data
from fedactors.protocols.nebulafl.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.runtime.simulation.runtime import SimulatedRuntime

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

SMALL = NebulaFLConfig(
    num_centers=2,
    num_containers=8,
    active_per_center=2,
    duration=1200.0,
    rotation_interval=300.0,
    evaluation_interval=400.0,
    local_epochs=1,
    batch_size=200,
    checkpoint_interval=0,
)


def play(config, scale=0.005, resume=None):
    data, recorder = load_data(config, "digits", 0), MemoryRecorder()
    runtime = RayRuntime(seed=0, recorder=recorder, emulate=True, scale=scale)
    return runtime.execute(lambda: run(config, data, runtime), resume), recorder, runtime


def counted_once(result):
    """Say whether every training is in exactly one planet's version."""
    return sum(sum(versions) for versions in result.extra["versions"].values()) == result.metrics["trainings"]


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
    assert counted_once(result)


def test_a_synchronous_baseline_gives_the_simulation_s_numbers():
    config = dataclasses.replace(
        SMALL, algorithm="fedavg-hierarchical", num_rounds=1, duration=1e5, evaluation_interval=1500.0
    )
    data, simulated, recorder = load_data(config, "digits", 0), SimulatedRuntime(seed=0), MemoryRecorder()
    expected = simulated.execute(lambda: run(config, data, simulated))
    runtime = RayRuntime(seed=0, recorder=recorder, emulate=True, scale=0.005)
    result = runtime.execute(lambda: run(config, data, runtime))
    assert result.metrics["test/accuracy"] == expected.metrics["test/accuracy"]


@pytest.mark.drawn(2, family="losses", subjects=["fedactors/runtime"])
def test_trainings_of_a_center_in_one_call_give_the_numbers_of_one_after_the_other():
    found = []
    for together in (False, True):
        config = dataclasses.replace(
            SMALL, algorithm="fedavg-hierarchical", num_rounds=1, duration=1e5, model="linear", together=together
        )
        _, recorder, _ = play(config)
        state = actor_state(list(recorder.checkpoints.values())[-1].actors, "exchange")
        found.append(state["parameters_P"])
    alone, at_once = found
    np.testing.assert_allclose(at_once, alone, atol=1e-5)
    assert not np.array_equal(at_once, alone)  # it is another order of additions


@pytest.mark.drawn(2, family="losses", subjects=["fedactors/runtime"])
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
    spans = [json.loads(line) for line in recorder.lines]
    trained = [s for s in spans if s["type"] == "span" and s["kind"] == "train" and s["actor"] == "virginia"]
    assert any(s["start"] > 2700.0 for s in trained)
    units = {}
    for span in trained:
        units.setdefault(span["label"].split(" on ")[1], []).append((span["start"], span["end"]))
    for intervals in units.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(sorted(intervals)))


@pytest.mark.drawn(2, family="losses", subjects=["fedactors/runtime"])
def test_a_container_that_is_away_is_not_called():
    config = dataclasses.replace(SMALL, outages="oregon/0@100-1100 virginia/2@300-900")
    result, recorder, _ = play(config)
    spans = [json.loads(line) for line in recorder.lines]
    called = [s for s in spans if s["type"] == "span" and s["kind"] == "train"]
    slack = 30.0  # the wall clock is 0.005 s for each of these seconds
    for container, begin, end in (("oregon/0", 100.0, 1100.0), ("virginia/2", 300.0, 900.0)):
        assert not [
            s for s in called if s["label"].startswith(f"{container} ") and begin + slack < s["start"] < end - slack
        ]
    assert counted_once(result)


@pytest.mark.drawn(2, family="losses", subjects=["fedactors/runtime"])
def test_a_run_stopped_between_two_rotations_resumes():
    # six seconds between rotations: a busy machine that stalls for less still makes each of them before the end
    config, scale = dataclasses.replace(SMALL, checkpoint_interval=1), 0.02
    data = load_data(config, "digits", 0)

    class Stopper(MemoryRecorder):
        def record_round(self, index, metrics):
            super().record_round(index, metrics)
            if index == 2:
                runtime.request_stop(143)

    recorder = Stopper()
    runtime = RayRuntime(seed=0, recorder=recorder, emulate=True, scale=scale)
    with pytest.raises(Stopped):
        runtime.execute(lambda: run(config, data, runtime))
    found = recorder.checkpoints["last"]  # taken at 400 s, between the rotations of 300 s and 600 s
    result, resumed, after = play(config, scale, Snapshot(found.actors, found.driver))
    first = resumed.rounds[0]["round"]
    assert first in (2, 3)
    assert [entry["round"] for entry in resumed.rounds] == list(range(first, 4))
    assert resumed.rounds[-1]["transfers"] == 2 * 2  # of four rotations of two centers every second is a self turn
    assert counted_once(result)
    assert result.metrics["dollars"] == pytest.approx(after.usage().price)

"""PubSub-VFL on a real Ray cluster: training, processes killed in mid-epoch, resume."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import psutil
import pytest

from fedactors.errors import PartyLost
from fedactors.protocols.pubsub_vfl.data import load_data
from fedactors.protocols.pubsub_vfl.run import run
from fedactors.runs.metrics import RunResult
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.ray.runtime import RayRuntime
from tests.protocols.pubsub_vfl.runs import Recorder, config_of, simulate

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

DATA = "synthetic:6000x20"
SETTINGS: dict[str, Any] = {
    "num_epochs": 6,
    "batch_size": 32,
    "num_layers": 4,
    "hidden_size": 32,
    "embedding_size": 16,
    "learning_rate": 0.003,
}


class KillingRecorder(Recorder):
    """Kills a process shortly after the second epoch was recorded, that is within the third."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self.runtime: RayRuntime | None = None
        self.pids: list[int] = []
        self.times: list[float] = []

    def record_round(self, index: int, metrics: Any) -> None:
        super().record_round(index, metrics)
        assert self.runtime is not None
        self.times.append(self.runtime.clock.now())
        if index == 2 and self.name is not None:
            # in the middle of the next epoch, however fast this machine is
            asyncio.get_running_loop().call_later(0.5 * (self.times[1] - self.times[0]), self._kill)

    def _kill(self) -> None:
        assert self.runtime is not None
        assert self.name is not None
        self.pids = list(self.runtime.processes.values())
        os.kill(self.runtime.processes[self.name], signal.SIGKILL)


def play(kill: str | None = None, resume: Any = None, **changes: Any) -> tuple[RunResult, KillingRecorder]:
    config = config_of(**{**SETTINGS, **changes})
    data = load_data(config, DATA, 0)
    recorder = KillingRecorder(kill)
    runtime = recorder.runtime = RayRuntime(seed=0, recorder=recorder, call_timeout=60.0)
    snapshot = None if resume is None else Snapshot(resume.actors, resume.driver)
    try:
        return runtime.execute(lambda: run(config, data, runtime), snapshot), recorder
    finally:
        recorder.pids = recorder.pids or list(runtime.processes.values())


def left_alive(pids: list[int]) -> list[psutil.Process]:
    """Return which processes are still there although all were told to end."""
    present = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return psutil.wait_procs(present, timeout=30)[1]


@pytest.fixture(scope="module")
def simulated_auc() -> float:
    return float(simulate(DATA, **SETTINGS).result.metrics["test/auc"])


def test_training_on_ray_reaches_the_quality_of_the_simulation(simulated_auc):
    result, recorder = play()
    assert result.metrics["test/auc"] == pytest.approx(simulated_auc, abs=0.02)
    assert [r["abandoned"] for r in recorder.rounds] == [0] * 6
    totals: dict[str, int] = {}
    for row in recorder.ledger_rows:
        totals[row[4]] = totals.get(row[4], 0) + row[5]
    assert totals["Embedding"] == totals["Gradient"] == 6 * result.extra["num_rows"] * 16 * 4


def test_a_synchronous_baseline_gives_equal_numbers_on_both_runtimes():
    config = {**SETTINGS, "algorithm": "vfl", "num_epochs": 2, "float64": True}
    result, recorder = play(**config)
    expected = simulate(DATA, **config)
    assert result.metrics == pytest.approx(expected.result.metrics, rel=1e-9)
    for one, other in zip(recorder.rounds, expected.recorder.rounds, strict=True):
        assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.drawn(2, family="kills", subjects=["fedactors/runtime"])
@pytest.mark.parametrize(
    ("name", "transfer"),
    [("passive/worker-0", "pull"), ("active/worker-0", "pull"), ("passive/worker-0", "push")],
)
def test_training_goes_on_after_kill_9_of_a_worker_and_says_so(name, transfer, simulated_auc, caplog):
    # where payloads are sent, the broker must tell the fresh process what to begin with
    result, recorder = play(kill=name, transfer=transfer)
    assert result.rounds == 6
    assert result.metrics["test/auc"] == pytest.approx(simulated_auc, abs=0.03)
    assert recorder.runtime is not None
    assert recorder.runtime.processes[name] not in recorder.pids, "a fresh process took its place"
    assert not left_alive(recorder.pids)
    assert f"{name}: its process is gone; a fresh process takes its place" in caplog.text


@pytest.mark.drawn(2, family="kills", subjects=["fedactors/runtime"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("broker", SETTINGS), ("active/ps", {**SETTINGS, "num_active_workers": 2, "sync_schedule": "every"})],
)
def test_kill_9_of_a_server_stops_with_its_name_and_the_checkpoint_resumes(name, settings, simulated_auc):
    config = config_of(**settings)
    data = load_data(config, DATA, 0)
    recorder = KillingRecorder(name)
    runtime = recorder.runtime = RayRuntime(seed=0, recorder=recorder, call_timeout=60.0)
    with pytest.raises(PartyLost, match=name):
        runtime.execute(lambda: run(config, data, runtime))
    assert not left_alive(recorder.pids)
    result, resumed = play(resume=recorder.checkpoints["last"], **settings)
    first = len(recorder.rounds) + 1
    assert [r["round"] for r in resumed.rounds] in (list(range(first, 7)), list(range(first - 1, 7)))
    assert result.metrics["test/auc"] == pytest.approx(simulated_auc, abs=0.03)

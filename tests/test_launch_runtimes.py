from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from fedactors.actors.context import MissingCost
from fedactors.errors import Stopped
from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.report.page import render_report
from fedactors.runs.compare import load_runs
from fedactors.runs.folder import EVENTS, ROUND_METRICS, RunFolder
from fedactors.runs.metrics import Summary, read_lines, read_rounds
from fedactors.runs.recorder import LEDGER, read_ledger
from tests.tiny_parties import PROTOCOL

pytest.importorskip("fedactors.data.datasets.catalogue")


def go(tmp_path: Path, *words: str, **flags: object) -> Summary:
    options = RunOptions(out=str(tmp_path), quiet=True, **flags)  # type: ignore[arg-type]
    config, options = resolve(PROTOCOL, words, options)
    return launch(PROTOCOL, config, options)[0]


def test_simulated_run_fills_its_folder(tmp_path):
    summary = go(tmp_path, runtime="simulated")
    folder = RunFolder.open(summary.run)
    folder.verify()
    assert [line["round"] for line in read_rounds(folder)] == [1, 2, 3, 4]
    rows = [row for row in parquet.read_table(folder.path / LEDGER).to_pylist() if row["type"] == "Step"]
    assert [(row["sender"], row["receiver"], row["bytes"]) for row in rows] == [("bank", "shop", 128)] * 4
    marks = [line for line in read_lines(folder, EVENTS) if line["type"] == "round"]
    assert [mark["seconds"] for mark in marks] == sorted({mark["seconds"] for mark in marks})
    assert summary.bytes >= 4 * 128
    assert "<h2>Who talks to whom</h2>" in render_report(load_runs([summary.run]))


def test_stopped_and_resumed_simulation_is_byte_identical(tmp_path):
    whole = go(tmp_path, runtime="simulated", seed=3)
    with pytest.raises(Stopped) as caught:
        go(tmp_path, "stop_after=2", runtime="simulated", seed=3)
    assert caught.value.exit_code == 143
    (stopped,) = (path for path in tmp_path.iterdir() if RunFolder.open(path).manifest["status"] == "stopped")
    resumed = go(tmp_path, resume=str(stopped))
    assert (Path(resumed.run) / ROUND_METRICS).read_bytes() == (Path(whole.run) / ROUND_METRICS).read_bytes()
    assert (resumed.bytes, resumed.messages, resumed.seconds) == (whole.bytes, whole.messages, whole.seconds)
    assert resumed.metrics == whole.metrics
    assert read_ledger(RunFolder.open(resumed.run)).equals(read_ledger(RunFolder.open(whole.run)))


def test_missing_cost_is_bad_input_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("fedactors.runtime.simulation.runtime.SimulatedRuntime.use_costs", lambda self, costs: None)
    with pytest.raises(MissingCost):
        go(tmp_path, runtime="simulated")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_ray_gives_the_numbers_of_the_simulation(tmp_path):
    simulated, on_ray = go(tmp_path, runtime="simulated"), go(tmp_path, runtime="ray")
    assert on_ray.metrics["distance"] == pytest.approx(simulated.metrics["distance"], rel=1e-12)
    assert (on_ray.bytes, on_ray.messages) == (simulated.bytes, simulated.messages)
    folder = RunFolder.open(on_ray.run)
    folder.verify()
    assert folder.load_checkpoint().actors.keys() == {"bank", "shop"}

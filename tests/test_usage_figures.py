"""The figures of what a run used mean what docs/reference/metrics.md says of them."""

import json
import re
from pathlib import Path

import pytest

from fedactors.launch import launch, resolve
from fedactors.messages.codec import HEADER_BYTES
from fedactors.options import RunOptions
from fedactors.plugins import find_protocol
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import read_events
from fedactors.runs.recorder import read_ledger
from tests.tiny_parties import PROTOCOL

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "metrics.md"
OF_THE_RUN = {"run", "protocol", "runtime", "seed", "metrics", "extra", "schema_version"}
SMALL = ["num_epochs=2", "batch_size=64"]


def written(out, protocol, words, runtime):
    """Run a protocol; return its folder, its summary's file, its ledger without the driver's rows, and its spans."""
    config, options = resolve(protocol, words, RunOptions(out=str(out), quiet=True, runtime=runtime))
    (done,) = launch(protocol, config, options)
    folder = RunFolder.open(done.run)
    summary = json.loads((folder.path / "metrics" / "summary.json").read_text())
    rows = [row for row in read_ledger(folder).to_pylist() if row["kind"] != "driver"]
    return folder, summary, rows, [line for line in read_events(folder) if line["type"] == "span"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    return written(tmp_path_factory.mktemp("runs"), find_protocol("pubsub-vfl"), SMALL, "simulated")


@pytest.mark.docs
def test_the_table_names_every_figure_that_a_run_writes_and_no_other(simulated):
    _, table = PAGE.read_text().split("## What a run used")
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(named) == sorted(simulated[1].keys() - OF_THE_RUN)


def test_figures_of_a_simulated_run_are_the_sums_that_the_page_says(simulated):
    _, used, rows, spans = simulated
    assert used["messages"] == len(rows)
    assert used["bytes"] == sum(row["bytes"] for row in rows) > 0
    assert used["header_bytes"] == HEADER_BYTES * len(rows)
    seconds = {kind: [s["end"] - s["start"] for s in spans if s["kind"] == kind] for kind in ("compute", "wait")}
    assert used["idle_seconds"] == pytest.approx(sum(seconds["wait"]), rel=1e-9)
    assert used["idle_seconds"] > used["seconds"], "it is a sum over actors"
    assert used["seconds"] >= max(span["end"] for span in spans)
    cores = len({span["actor"] for span in spans if span["kind"] == "compute"})
    assert used["cpu_utilisation"] == pytest.approx(sum(seconds["compute"]) / (cores * used["seconds"]), rel=1e-9)
    assert used["wall_seconds"] > 0
    assert (used["cost_usd"], used["overhead_seconds"], used["rounds"]) == (0, 0, 2)


@pytest.mark.slow
def test_dollars_and_hours_of_rented_hardware_are_cost_and_seconds(tmp_path):
    _, used, _, _ = written(tmp_path, find_protocol("nebulafl"), ["num_rounds=1"], "simulated")
    assert used["cost_usd"] == pytest.approx(used["metrics"]["dollars"], rel=1e-9)
    assert 0 < used["metrics"]["hours"] * 3600 <= used["seconds"] * (1 + 1e-9)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_on_ray_seconds_begin_when_the_actors_are_ready_and_processes_are_measured(tmp_path):
    _, used, rows, spans = written(tmp_path, PROTOCOL, [], "ray")
    assert used["messages"] == len(rows)
    assert used["header_bytes"] == HEADER_BYTES * len(rows)
    # what a process spends while it is closed is still its own
    assert max(span["end"] for span in spans if span["kind"] != "overhead") <= used["seconds"] < used["wall_seconds"]
    assert 0 < used["cpu_utilisation"] <= 1
    assert used["overhead_seconds"] > 0

"""What a run holds does not grow with its rounds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from fedactors.runs.folder import RunFolder
from fedactors.runs.recorder import FolderRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from tests.tiny_parties import WalkConfig, run

NUM_ROUNDS = 10_000
RESULTS = Path(__file__).parents[2] / "docs" / "results"


class Weighing(FolderRecorder):
    """Writes a run folder, and weighs what Python holds at some rounds."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder, max_spans=1000)
        self.bytes: dict[int, int] = {}

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        super().record_round(index, metrics)
        if index % 2000 == 0:
            gc.collect()
            self.bytes[index] = tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
def test_ten_thousand_simulated_rounds_hold_no_more_than_two_thousand(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "walk", 0, {})
    recorder = Weighing(folder)
    # a checkpoint waits for the disk, which says nothing about memory
    runtime = SimulatedRuntime(recorder=recorder, checkpoint_every=100)
    tracemalloc.start()
    try:
        runtime.execute(lambda: run(WalkConfig(num_rounds=NUM_ROUNDS), None, runtime))
    finally:
        tracemalloc.stop()
        recorder.close()
        folder.finish("finished")
    assert max(recorder.bytes) == NUM_ROUNDS
    grown = recorder.bytes[NUM_ROUNDS] - recorder.bytes[2000]
    # a number a round would be 64 kB, and a message a round half a megabyte; rows of the ledger wait for a checkpoint
    assert grown < 50_000, recorder.bytes


@pytest.mark.docs
def test_the_table_of_a_real_protocol_is_flat() -> None:
    """10,000 simulated rounds, by what is resident; see docs/results/reliability.md."""
    rows = parquet.read_table(RESULTS / "memory.parquet").to_pylist()
    held = {
        row["rounds"]: row["megabytes"]
        for row in rows
        if row["run"].startswith("simulated") and row["what"] == "resident" and 2000 <= row["rounds"] < NUM_ROUNDS
    }
    assert max(held) > 0.98 * NUM_ROUNDS
    assert len(held) > 100
    assert max(held.values()) < 1.02 * held[min(held)]
    assert held[max(held)] < 1.005 * held[min(held)]


@pytest.mark.docs
@pytest.mark.parametrize("what", ["all", "shared", "/dev/shm", "GCS"])
def test_the_table_of_thirty_minutes_on_ray_is_flat(what: str) -> None:
    """All processes, payloads and object store, whatever lies in /dev/shm, and the one that had grown."""
    rows = parquet.read_table(RESULTS / "memory.parquet").to_pylist()
    held = {r["seconds"]: r["megabytes"] for r in rows if r["run"].startswith("ray") and r["what"] == what}
    assert max(held) >= 1800
    assert len(held) > 100
    third = max(held) / 3
    second = [value for at, value in held.items() if third <= at < 2 * third]
    last = [value for at, value in held.items() if at >= 2 * third]
    assert sum(last) / len(last) < 1.01 * sum(second) / len(second)

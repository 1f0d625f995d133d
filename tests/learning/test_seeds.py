"""A seed decides a run, whatever ran before it in the same process: seed 1 of ``--seeds 0,1`` is seed 1 alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from fedactors import api
from fedactors.options import RunOptions
from fedactors.plugins import find_protocol

HERE = "tests.learning.user_networks"
PROTOCOLS = {
    "horizontal": ["num_rounds=2", "num_training=90", "num_clients=3"],
    "horizontal, F.dropout": ["num_rounds=2", "num_training=90", "num_clients=3", f"model={HERE}:dropping_by_function"],
    "horizontal, random": ["num_rounds=2", "num_training=90", "num_clients=3", f"model={HERE}:dropping_by_python"],
    "horizontal, nn.LSTM(dropout=)": ["num_rounds=2", "num_training=90", "num_clients=3", f"model={HERE}:recurrent"],
    "pubsub-vfl": [],
    "mtcd": [],
    "tablepuppet": [],
    "glasu": [],
    "nebulafl": [],
}


def written(folder: Path) -> dict[str, bytes]:
    """Return what decides of a run folder: metrics, ledger, privacy, and each checkpoint."""
    kept = ("metrics/round_metrics.jsonl", "ledger.parquet", "privacy.jsonl")
    found = {name: (folder / name).read_bytes() for name in kept if (folder / name).exists()}
    return found | {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.ckpt")}


@pytest.mark.slow
@pytest.mark.parametrize("case", PROTOCOLS)
def test_the_second_seed_is_that_seed_alone_to_the_byte(case, tmp_path):
    known, words = find_protocol(case.split(",")[0]), PROTOCOLS[case]
    asked = {"runtime": "simulated", "quiet": True, "smoke": not words}

    def runs(where: str, seeds: tuple[int, ...]) -> list[Path]:
        options = RunOptions.checked(**asked, seeds=seeds, out=str(tmp_path / where))
        return [run.path for run in api.execute(known, words, options)]

    _, second = runs("both", (0, 1))
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    (alone,) = runs("alone", (1,))
    first, other = written(second), written(alone)
    assert len(first) > 2
    assert first == other

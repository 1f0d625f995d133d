"""Every epsilon and mu that a run states, of each protocol, follows from its folder: one that does not is found."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedactors.command_line.main import main
from fedactors.privacy.audit import _figures, check_run
from fedactors.records.run_folder import RunFolder

ORDERS = "declared_facts=amount=0:3,hour=0:23,weight=0:3,price=0:3,credit_limit=0:3,age=18:80"
RUNS = {
    "pubsub-vfl": "embedding_mu=2 bottom_training=private bottom_mu=2 standardisation=private label_epsilon=1",
    "pubsub-vfl paper": "privacy_mu=1 gradient_mu=5",
    "glasu": "noise_multiplier=4 clip_norm=1 max_degree=50",
    "glasu sums": "secure_aggregation=true noise_multiplier=4 clip_norm=1 max_degree=50",
    "tablepuppet": f"algorithm=rfl-sgd-v feature_dp=8 prediction_clip=1 prediction_noise=2 label_dp=1 {ORDERS}",
    "tablepuppet admm": "algorithm=rfl-admm-v admm=paper_sgd local_epochs=1 feature_dp=8 label_dp=1",
    "mtcd": "noise=gaussian learning_rate=0.1",
    "mtcd found": "noise=gaussian",
    "horizontal": "secure_sums=true",
    "nebulafl": "algorithm=fedhisyn secure_sums=true on_party_loss=stop num_centers=3 num_containers=12",
}
NOISED = {name for name in RUNS if name.partition(" ")[0] not in ("horizontal", "nebulafl")}
FIGURES = ("nominal_mu", "rigorous_mu", "epsilon")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow) if " " in name else name for name in RUNS],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name, _, _ = request.param.partition(" ")
    out = tmp_path_factory.mktemp("runs")
    words = ["run", name, "--runtime", "simulated", "--quiet", "--smoke", *RUNS[request.param].split()]
    assert main([*words, "--out", str(out)]) == 0
    (made,) = out.iterdir()
    return request.param, made


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "privacy.jsonl").read_text().splitlines()]


def stated(tree: dict[str, Any]) -> list[str]:
    return [name for name in FIGURES if tree.get(name)]


def refutes(folder: Path, name: str, text: str) -> bool:
    """Say whether an audit refutes the folder with another text in one of its files."""
    path = folder / name
    before = path.read_text()
    path.write_text(text)
    try:
        return not check_run(RunFolder.open(folder)).agrees
    finally:
        path.write_text(before)


def test_every_figure_is_recomputed_and_no_other_agrees(run: tuple[str, Path], tmp_path: Path) -> None:
    name, made = run
    folder = tmp_path / made.name
    shutil.copytree(made, folder)
    assert check_run(RunFolder.open(folder)).refuted == []
    lines = lines_of(folder)
    told = [(number, figure) for number, line in enumerate(lines) for figure in stated(line)]
    assert bool(told) == (name in NOISED)
    for number, figure in told:
        other = [{**line} for line in lines]
        other[number][figure] *= 0.99
        assert refutes(folder, "privacy.jsonl", "".join(f"{json.dumps(line)}\n" for line in other)), (name, figure)


def test_the_summary_states_nothing_else(run: tuple[str, Path], tmp_path: Path) -> None:
    name, made = run
    folder = tmp_path / made.name
    shutil.copytree(made, folder)
    text = (folder / "metrics" / "summary.json").read_text()
    places = list(_figures(json.loads(text), ""))
    assert bool([value for _, value in places if value]) == (name in NOISED)
    for place, value in places:
        summary = json.loads(text)
        *way, last = place.split(".")
        tree = summary
        for step in way:
            tree = tree[step]
        assert tree[last] == value
        tree[last] = 1.01 * value + 0.001
        assert refutes(folder, "metrics/summary.json", json.dumps(summary)), (name, place)


def test_no_other_file_states_one(run: tuple[str, Path]) -> None:
    """The configuration asks for budgets; what was spent stands in ledger and summary only."""
    _, made = run
    for path in made.rglob("*.json*"):
        if path.name in ("privacy.jsonl", "summary.json", "config.json"):
            continue
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            assert not [place for place, value in _figures(json.loads(line), "") if math.isfinite(value)], path.name

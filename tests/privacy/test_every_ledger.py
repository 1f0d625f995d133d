"""Every epsilon and mu that a run states, of each protocol, follows from its folder: one that does not is found."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedactors.auditing.audit import _figures, check_run
from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.runs.folder import RunFolder

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
    "horizontal": "secure_aggregation=true",
    "nebulafl": "algorithm=fedhisyn secure_aggregation=true on_party_loss=stop num_centers=3 num_containers=12",
}
NOISED = {name for name in RUNS if name.partition(" ")[0] not in ("horizontal", "nebulafl")}
PREDICTED = {"pubsub-vfl", "pubsub-vfl paper", "glasu", "glasu sums", "mtcd", "mtcd found"}
"""Whose named data can be predicted under the noise of the run."""
FIGURES = ("nominal_mu", "rigorous_mu", "epsilon")
pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, subjects=["fedactors/auditing"])]


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name, _, _ = request.param.partition(" ")
    out = tmp_path_factory.mktemp("runs")
    words = ["run", name, "--runtime", "simulated", "--quiet", "--smoke", *RUNS[request.param].split()]
    assert main([*words, "--out", str(out)]) == 0
    (made,) = out.iterdir()
    if request.param in PREDICTED:
        for _ in range(2):
            data = json.loads((made / "config.json").read_text())["data"]
            to = str(tmp_path_factory.mktemp("said") / "said.csv")
            assert main(["predict", str(made), "--data", data, "--output", to]) == 0
    return request.param, made


def lines_of(folder: Path, file: str = "privacy.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / file).read_text().splitlines()]


def stated(tree: dict[str, Any]) -> list[str]:
    return [name for name in FIGURES if tree.get(name)]


def refutes(folder: Path, name: str, text: str) -> bool:
    """Say whether an audit refutes the folder with another text in one of its files."""
    made, before = RunFolder.open(folder), (folder / name).read_bytes()
    made.write_bytes(name, text.encode())
    made.write_manifest()  # whoever states a figure states the size and the hash of its file, too
    try:
        return not check_run(RunFolder.open(folder)).agrees
    finally:
        made.write_bytes(name, before)
        made.write_manifest()


def test_every_figure_is_recomputed_and_no_other_agrees(run: tuple[str, Path], tmp_path: Path) -> None:
    name, made = run
    folder = tmp_path / made.name
    shutil.copytree(made, folder)
    assert check_run(RunFolder.open(folder)).refuted == []
    assert (folder / "predictions.jsonl").exists() == (name in PREDICTED)
    for file, has_figures in (("privacy.jsonl", name in NOISED), ("predictions.jsonl", name in PREDICTED)):
        lines = lines_of(folder, file) if (folder / file).exists() else []
        told = [(number, figure) for number, line in enumerate(lines) for figure in stated(line)]
        assert bool(told) == has_figures, file
        for number, figure in told:
            other = [{**line} for line in lines]
            other[number][figure] *= 0.99
            assert refutes(folder, file, "".join(f"{json.dumps(line)}\n" for line in other)), (name, file, figure)


def test_predictions_compose_and_take_nothing_from_the_claims_on_the_training(run: tuple[str, Path]) -> None:
    name, made = run
    if name not in PREDICTED:
        return
    found = check_run(RunFolder.open(made))
    lines = lines_of(made, "predictions.jsonl")
    assert len(lines) % 2 == 0
    for claim in found.prediction_claims:
        local = [line for line in lines if (line["party"], line["neighbour"]) == (claim.party, claim.neighbour)]
        if claim.covered:
            assert claim.neighbour == "new row"
            assert claim.mu == pytest.approx(math.sqrt(sum(line["rigorous_mu"] ** 2 for line in local)))
            assert claim.mu == pytest.approx(math.sqrt(2) * local[0]["rigorous_mu"])
    for claim in found.claims:
        if claim.covered and claim.party in {line["party"] for line in lines}:
            assert any(line.startswith(f"{claim.party}, one {claim.neighbour}: ") for line in found.not_counted)


def test_a_line_that_is_cut_off_is_no_smaller_claim(run: tuple[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / run[1].name
    shutil.copytree(run[1], folder)
    for file in ("privacy.jsonl", "predictions.jsonl"):
        if not (folder / file).exists() or not (lines := (folder / file).read_text()):
            continue
        (folder / file).write_text(lines[:-2])
        with pytest.raises(BadInput, match=f"{file} is damaged"):
            check_run(RunFolder.open(folder))
        (folder / file).write_text(lines)


def test_the_summary_states_nothing_else(run: tuple[str, Path], tmp_path: Path) -> None:
    name, made = run
    folder = tmp_path / made.name
    shutil.copytree(made, folder)
    text = (folder / "metrics" / "summary.json").read_text()
    keys = list(_figures(json.loads(text), ""))
    assert bool([value for _, value in keys if value]) == (name in NOISED)
    for key, value in keys:
        summary = json.loads(text)
        *way, last = key.split(".")
        tree = summary
        for step in way:
            tree = tree[step]
        assert tree[last] == value
        tree[last] = 1.01 * value + 0.001
        assert refutes(folder, "metrics/summary.json", json.dumps(summary)), (name, key)


def test_a_figure_of_another_line_is_no_figure_of_this_one(run: tuple[str, Path], tmp_path: Path) -> None:
    name, made = run
    folder = tmp_path / made.name
    shutil.copytree(made, folder)
    text = (folder / "metrics" / "summary.json").read_text()
    keys = [(key, value) for key, value in _figures(json.loads(text), "") if value]
    for key, value in keys[:4]:
        summary = json.loads(text)
        *way, last = key.split(".")
        tree = summary
        for step in way:
            tree = tree[step]
        for tree[last] in {other for _, other in keys if not math.isclose(other, value)}:
            assert refutes(folder, "metrics/summary.json", json.dumps(summary)), (name, key)


def test_a_line_that_is_left_out_or_says_that_nothing_moves_is_found(run: tuple[str, Path], tmp_path: Path) -> None:
    name, made = run
    if name not in NOISED:
        return  # the summaries of the others state no privacy
    folder = tmp_path / made.name
    shutil.copytree(made, folder)
    lines = lines_of(folder)
    nothing = {"mechanism": "gaussian", "sensitivity": 0.0, "noise_scale": 1.0, "delta": 1e-5, "epsilon": 0.0}
    for number, line in enumerate(lines):
        for other in ([], [{**line, **nothing, "rigorous_mu": 0.0, "uncovered": [], "covered": True}]):
            text = "".join(f"{json.dumps(one)}\n" for one in [*lines[:number], *other, *lines[number + 1 :]])
            assert refutes(folder, "privacy.jsonl", text), (name, number, other)


def test_a_line_that_is_no_release_is_one_line(tmp_path: Path, run: tuple[str, Path]) -> None:
    folder = tmp_path / run[1].name
    shutil.copytree(run[1], folder)
    sound = {"party": "bank", "message_type": "Embedding", "clip_norm": 1.0, "noise_scale": 0.4, "sensitivity": 1.0}
    sound |= {"touched": 3, "releases": 3, "delta": 1e-5, "num_values": 2, "sampling": "known-batches"}
    for wrong in (
        {"mechanism": "gaussian", "delta": 0},
        {"mechanism": "dp-sgd", "sampling": "poisson", "sample_rate": 0},
        {"mechanism": "randomised-response", "num_values": 1},
    ):
        with pytest.raises(BadInput, match=r"no release|cannot be composed"):
            refutes(folder, "privacy.jsonl", f"{json.dumps(sound | wrong)}\n")


def test_no_other_file_states_one(run: tuple[str, Path]) -> None:
    """The configuration asks for budgets; what was spent stands in ledger and summary only."""
    _, made = run
    for path in made.rglob("*.json*"):
        if path.name in ("privacy.jsonl", "predictions.jsonl", "summary.json", "config.json"):
            continue
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            assert not [key for key, value in _figures(json.loads(line), "") if math.isfinite(value)], path.name

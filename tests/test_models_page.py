"""Every cell of the page of recipes, executed with the names of the file beside it; each page is about a screen."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torchmetrics

import fedactors

FOLDER = Path(__file__).parents[1] / "docs/how-to"
PAGE = (FOLDER / "models-recipes.md").read_text()
PAGES = ("models.md", "models-recipes.md", "targets.md")
ROWS = re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", PAGE, re.M)
SETTINGS = [row for row in ROWS if "=" in row[1] and not row[1].startswith("run.")]
CODE = [row[1] for row in ROWS if row not in SETTINGS]
SMALL = {"num_rounds": 2}
DEALT = {"num_clients": 5, "num_training": 250}
EPSILON = {"a refusal beyond a budget": {"num_rounds": 1, "num_training": None}}


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    found: dict[str, Any] = {"torchmetrics": torchmetrics, "hf": datasets.Dataset.from_pandas}
    path = FOLDER / "models_recipes.py"
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), found)
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec("torch.save(Net((1, 8, 8), 10).state_dict(), 'net.pt')", names)


def test_each_page_is_about_a_screen() -> None:
    for name in PAGES:
        assert (FOLDER / name).read_text().count("\n") <= 80, name


def test_the_script_of_the_page_runs(tmp_path: Path) -> None:
    (script,) = re.findall(r"<<'PY'\n(.*?)^PY$", (FOLDER / "models.md").read_text(), re.M | re.S)
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([2, 10])" in done.stdout


def test_the_table_has_what_engineers_ask_for() -> None:
    assert len(SETTINGS) >= 32
    assert len(CODE) >= 5
    whole = " ".join(row[0] for row in ROWS)
    for word in ("BatchNorm", "dropout", "embeddings", "BERT", "LoRA", "frozen", "loss", "metric", "bfloat16", "ONNX"):
        assert word in whole


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers for it
@pytest.mark.drawn(6, always=["BatchNorm kept at each client (FedBN)", "a server's step of your own"])
@pytest.mark.parametrize(("what", "cell"), SETTINGS, ids=[row[0] for row in SETTINGS])
def test_a_line_of_settings(what: str, cell: str, names: dict[str, Any]) -> None:
    given = eval(f"dict({cell})", names)
    dealt = {} if "data" in given else DEALT
    run = fedactors.simulate("horizontal", **{**SMALL, **dealt, **EPSILON.get(what, {}), **given})
    assert all(isinstance(value, str) or math.isfinite(value) for value in run.metrics.values())
    told = {name for name in run.metrics if name.partition("/")[0] in ("test", "validation")}
    assert told
    if "noise" in cell:
        assert run.summary.extra["privacy"]
    if "validation_fraction" in cell:
        assert "validation/spread_accuracy" in run.metrics
    if "local_parameters" in cell:
        assert run.summary.extra["local_parameters"]


def test_the_lines_on_a_run(names: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = fedactors.simulate("horizontal", out=tmp_path, **SMALL, **DEALT)
    found = {code: eval(code, {**names, "run": run}) for code in CODE}
    files = {path.name for path in found['run.export("model")']["server"]}
    assert {"bottom.safetensors", "bottom.pt2", "bottom.onnx"} <= files
    assert "torchvision" not in capfd.readouterr().err  # torch tells of libraries that nobody uses here
    assert found["run.rounds.to_pandas()"].shape[0] == SMALL["num_rounds"]
    assert "test/accuracy" in found["run"]._repr_html_()

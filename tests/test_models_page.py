"""Every cell of the tables of the page on models, executed with the names that the page defines."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest

import fedactors

PAGE = (Path(__file__).parents[1] / "docs/how-to/models.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", PAGE, re.M)
SETTINGS = [row for row in ROWS if "=" in row[1] and not row[1].startswith("run.")]
CODE = [row[1] for row in ROWS if row not in SETTINGS]
SMALL = {"num_rounds": 2}
DEALT = {"num_clients": 5, "num_training": 250}
NEEDS = {"LoRA": "peft", "BERT with random weights": "transformers", "a data set of Hugging Face": "datasets"}
EPSILON = {"a refusal beyond a budget": {"num_rounds": 1, "num_training": None}}


def definitions() -> list[str]:
    """Return the code of the page that defines names: its script up to the run, and its other blocks."""
    (script,) = re.findall(r"<<'PY'\n(.*?)^run = ", PAGE, re.M | re.S)
    (names,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    (adapted,) = re.findall(r"^( {4}def adapted.*?)^$", PAGE, re.M | re.S)
    return [script, names, "\n".join(line[4:] for line in adapted.splitlines())]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from tests.learning.test_libraries import Classifier

    found: dict[str, Any] = {"Classifier": Classifier}
    if importlib.util.find_spec("peft"):
        exec("import peft", found)
    if importlib.util.find_spec("datasets"):
        exec("import datasets; hf = datasets.Dataset.from_pandas", found)
    for code in definitions():
        exec(compile(code, "models.md", "exec"), found)
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec("torch.save(Net((1, 8, 8), 10).state_dict(), 'net.pt')", names)


def test_the_table_has_what_engineers_ask_for() -> None:
    assert len(SETTINGS) >= 32
    assert len(CODE) >= 5
    whole = " ".join(row[0] for row in ROWS)
    for word in ("BatchNorm", "dropout", "embeddings", "BERT", "LoRA", "frozen", "loss", "metric", "bfloat16", "ONNX"):
        assert word in whole


@pytest.mark.drawn(6, always=["BatchNorm kept at each client (FedBN)", "a server's step of your own"])
@pytest.mark.parametrize(("what", "cell"), SETTINGS, ids=[row[0] for row in SETTINGS])
def test_a_line_of_settings(what: str, cell: str, names: dict[str, Any]) -> None:
    if what in NEEDS:
        pytest.importorskip(NEEDS[what], reason=f"needs the extra `{NEEDS[what]}`")
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


def test_the_lines_on_a_run(names: dict[str, Any], tmp_path: Path) -> None:
    run = fedactors.simulate("horizontal", out=tmp_path, **SMALL, **DEALT)
    found = {code: eval(code, {**names, "run": run}) for code in CODE}
    files = {path.name for path in found['run.export("model")']["server"]}
    assert {"bottom.safetensors", "bottom.pt2"} <= files
    if importlib.util.find_spec("onnx") and importlib.util.find_spec("onnxscript"):
        assert "bottom.onnx" in files
    assert found["run.rounds.to_pandas()"].shape[0] == SMALL["num_rounds"]
    assert "test/accuracy" in found["run"]._repr_html_()

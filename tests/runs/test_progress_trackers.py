"""Experiment trackers, each for real and offline where its library is installed."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.runs.progress import open_trackers, scalars

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pathlib import Path
from fedactors.runs.progress import open_trackers
tracker, = open_trackers([sys.argv[1]], Path(sys.argv[2]), {"batch_size": 8, "model": "mlp"})
for index, loss in enumerate([0.5, 0.25, 0.125], start=1):
    tracker.log(index, {"loss": loss})
tracker.close()
"""


def log(tracker: str, folder: Path) -> None:
    """In a process of its own: these libraries keep threads, global state and warnings of their own."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])}
    environment |= {"HOME": str(folder), "WANDB_SILENT": "true", "GIT_PYTHON_REFRESH": "quiet"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, tracker, str(folder)], env=environment, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard(tmp_path):
    log("tensorboard", tmp_path / "run")
    read = (
        "import sys\nfrom tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "found = EventAccumulator(sys.argv[1])\nfound.Reload()\n"
        "print([(event.step, event.value) for event in found.Scalars('loss')])"
    )
    words = [sys.executable, "-W", "ignore", "-c", read, str(tmp_path / "run" / "tensorboard")]
    assert subprocess.check_output(words, text=True).strip() == "[(1, 0.5), (2, 0.25), (3, 0.125)]"


@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_in_a_database_of_the_run(tmp_path):
    log("mlflow", tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / "mlflow" / "mlflow.db") as database:
        found = database.execute("SELECT step, value FROM metrics WHERE key = 'loss' ORDER BY step").fetchall()
        settings = dict(database.execute("SELECT key, value FROM params").fetchall())
    database.close()
    assert found == [(1, 0.5), (2, 0.25), (3, 0.125)]
    assert settings == {"batch_size": "8", "model": "mlp"}


SEVERAL = """
import contextlib, os, sys
from fedactors import api
from fedactors.options import RunOptions

def at(outputs, targets):
    return {"precision@3": 0.5}

def fails(number, metrics):
    assert options.seeds != (2,) or number < 2, "a callback fails"

known, settings = api.find_protocol("horizontal"), {"num_clients": 2, "num_training": 40, "num_rounds": 2}
settings |= {"metric": at, "local_baseline": False}
for seeds in ((0, 1), (2,)):
    options = RunOptions.checked(runtime="simulated", quiet=True, seeds=seeds, track=("mlflow",), out=sys.argv[1])
    with contextlib.suppress(AssertionError):
        api.execute(known, settings, options, callbacks=[fails])
assert "MLFLOW_TRACKING_URI" not in os.environ
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_has_a_database_for_each_seed_and_says_which_run_failed(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    environment |= {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "GIT_PYTHON_REFRESH": "quiet"}
    words = [sys.executable, "-c", SEVERAL, str(tmp_path / "runs")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = []
    for path in sorted((tmp_path / "runs").glob("*/mlflow/mlflow.db"), key=lambda path: path.parts[-3][-1]):
        with sqlite3.connect(path) as database:
            found += database.execute("SELECT name, status FROM runs").fetchall()
            measured = database.execute("SELECT value FROM metrics WHERE key = 'test/precision_3'").fetchall()
        database.close()
        assert measured == [(0.5,), (0.5,)]
    assert [(name[-1], status) for name, status in found] == [("0", "FINISHED"), ("1", "FINISHED"), ("2", "FAILED")]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline(tmp_path):
    log("wandb", tmp_path / "run")
    (written,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"loss" in written.read_bytes()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch, name):
    def refuse(module):
        raise ImportError(module)

    monkeypatch.setattr("fedactors.runs.progress.importlib.import_module", refuse)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BadInput, match=rf"--track: {name} is not installed: pip install 'fedactors\[{name}\]'"):
        open_trackers([name], tmp_path, {})


def test_only_finite_numbers_are_tracked():
    assert scalars({"loss": 0.5, "rows": 3, "ok": True, "name": "x", "bad": float("nan")}) == {"loss": 0.5, "rows": 3.0}

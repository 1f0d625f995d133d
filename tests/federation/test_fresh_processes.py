"""Driver and sites in processes of their own: what one process imports helps no other, in a resumed run either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedactors.runs.folder import RunFolder
from tests.federation.test_runs import DATA, SMALL, VERTICAL
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="going on")]
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


SEQUENCES = {
    BANK: """
[data.waves]
path = "waves.parquet"
features = ["wave"]
label = "y"
task = { type = "binary", layout = "horizontal", shape = [6, 2], test = "test.parquet" }

[data.words]
path = "waves.parquet"
features = ["words"]
label = "signs"
task = { type = "multilabel", layout = "horizontal", classes = 2, shape = [5], test = "test.parquet" }

[data.steps]
path = "waves.parquet"
features = ["words"]
label = "high"
task = { type = "regression", layout = "horizontal", shape = [5], target_shape = [2], test = "test.parquet" }

[data.patterns]
path = "waves.parquet"
id = "id"
features = ["wave"]
label = "y"
task = { type = "binary", alignment = "already-aligned" }
""",
    SHOP: """
[data.tides]
path = "waves.parquet"
features = ["wave"]
label = "y"

[data.letters]
path = "waves.parquet"
features = ["words"]
label = "signs"

[data.hours]
path = "waves.parquet"
features = ["words"]
label = "high"

[data.texts]
path = "waves.parquet"
id = "id"
features = ["words"]
""",
}
"""Of each site: samples of (time, channels), and of whole numbers as tokens are; as rows, and as columns of rows."""


def sequences(seed: int, rows: int = 60) -> pa.Table:
    draw = np.random.default_rng(seed)
    wave = draw.normal(size=(rows, 6, 2))
    words = draw.integers(0, 7, (rows, 6))
    return pa.table(
        {
            "id": [f"c{index}" for index in range(rows)],
            "wave": wave.tolist(),
            "words": words[:, :5].tolist(),
            "signs": (wave[:, 0] > 0).astype(np.int64).tolist(),
            "high": wave[:, 0].tolist(),
            "y": (wave[:, 0, 0] > 0).astype(np.int64),
        }
    )


def write_sequences(folder: Path) -> None:
    for seed, path in enumerate((f"{BANK}/waves.parquet", f"{SHOP}/waves.parquet", f"{BANK}/test.parquet")):
        pq.write_table(sequences(seed), folder / path)


def described(folder: Path, first: str, second: str) -> Path:
    """Write the same data of both sites as a ``parties.toml``, and return it."""
    one, two = (tomllib.loads(SEQUENCES[name])["data"] for name in (BANK, SHOP))
    of_bank, of_shop = dict(one[first]), dict(two[second])
    task = of_bank.pop("task")
    tables = {"task": task, f"parties.{BANK}": of_bank, f"parties.{SHOP}": of_shop}
    for name, of_site in ((BANK, of_bank), (SHOP, of_shop)):
        of_site["path"] = f"{name}/{of_site['path']}"
    if "test" in task:
        task["test"] = f"{BANK}/{task['test']}"
    lines = [
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for table, keys in tables.items()
    ]
    (folder / f"{first}.toml").write_text("\n".join(lines))
    return folder / f"{first}.toml"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made, started = World(tmp_path_factory.mktemp("fresh")), []
    write_sequences(made.path)
    for name in (BANK, SHOP):
        file = made.path / name / "site.toml"
        file.write_text(file.read_text().replace("wait_seconds = 4.0", "wait_seconds = 60.0") + SEQUENCES[name])
        words = [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(made.path / name)]
        site = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT)
        started.append(site)
        assert site.stdout is not None
        assert f"{name}: listens at" in site.stdout.readline()
    yield made
    for site in started:
        site.kill()
        site.wait(10)
        site.stdout.close()  # type: ignore[union-attr]


def driver(world: World, protocol: str, *words: str) -> subprocess.Popen[str]:
    file, runs = str(world.path / BANK / "federation.toml"), str(world.path / "runs")
    command = [sys.executable, "-m", "fedactors", "run", protocol, "--federation", file, "--out", runs]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--format", "json", "--quiet", *words], env=ENVIRONMENT, **streams)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def with_checkpoint(world: World, before: set[Path]) -> Path:
    """Return the run that has begun once it can be gone on from."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        for path in set((world.path / "runs").glob("*")) - before:
            if (path / "manifest.json").exists() and RunFolder.open(path).manifest["checkpoints"]:
                return path
        time.sleep(0.02)
    raise AssertionError("no checkpoint was taken")


LONGER = {
    "tablepuppet": ("num_rounds=60",),
    "pubsub-vfl": ("num_epochs=60", *SMALL[1:], "algorithm=vfl"),
}


@pytest.mark.parametrize("protocol", LONGER)
def test_a_run_goes_on_where_nothing_was_imported_before(world: World, protocol: str) -> None:
    data = DATA.get(protocol, VERTICAL)
    (world.path / "runs").mkdir(exist_ok=True)
    before = set((world.path / "runs").glob("*"))
    answering = world.answer()
    first = driver(world, protocol, "--data", data, *LONGER[protocol])
    run = with_checkpoint(world, before)
    first.send_signal(signal.SIGINT)
    code, _, err = ended(first)
    answering.join(30)
    assert code == 130, err
    answering = world.answer()
    code, out, err = ended(driver(world, protocol, "--resume", str(run)))
    answering.join(30)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["rounds"] == 60


def test_features_and_labels_under_noise_end_with_their_budgets(world: World) -> None:
    answering = world.answer()
    words = ("num_rounds=2", "feature_dp=4.0", "label_dp=1.0", "admm=paper_sgd")
    code, out, err = ended(driver(world, "tablepuppet", "--data", DATA["tablepuppet"], *words))
    answering.join(30)
    assert code == 0, err
    assert "KeyError" not in err
    assert json.loads(out.splitlines()[-1])["metrics"]


WHAT = {
    "waves": ("horizontal", "tides", ()),
    "words": ("horizontal", "letters", ()),
    "steps": ("horizontal", "hours", ()),
    "patterns": ("pubsub-vfl", "texts", ("num_epochs=2", *SMALL[1:], "algorithm=vfl")),
}


@pytest.mark.parametrize("name", WHAT)
def test_sequences_train_between_sites_as_in_one_process(world: World, name: str) -> None:
    protocol, other, more = WHAT[name]
    words = (*more, "--seed", "3") if protocol == "pubsub-vfl" else (*more, "num_rounds=2", "--seed", "3")
    answering = world.answer()
    code, out, err = ended(driver(world, protocol, "--data", f"{BANK}={name},{SHOP}={other}", "--share-seed", *words))
    answering.join(30)
    assert code == 0, err
    command = [sys.executable, "-m", "fedactors", "run", protocol, "--runtime", "simulated", "--format", "json"]
    command += ["--data", str(described(world.path, name, other)), "--out", str(world.path / "runs"), *words]
    alone = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    found, expected = (json.loads(text.splitlines()[-1])["metrics"] for text in (out, alone.stdout))
    measured = [key for key in expected if key.startswith(("test/", "validation/"))]
    assert measured
    assert {key: found[key] for key in measured} == pytest.approx({key: expected[key] for key in measured})

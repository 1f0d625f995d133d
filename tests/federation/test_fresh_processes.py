"""Driver and sites in processes of their own: what one process imports helps no other, in a resumed run either."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors.runs.folder import RunFolder
from tests.federation.test_runs import DATA, SMALL, VERTICAL
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="going on")]
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made, started = World(tmp_path_factory.mktemp("fresh")), []
    for name in (BANK, SHOP):
        file = made.path / name / "site.toml"
        file.write_text(file.read_text().replace("wait_seconds = 4.0", "wait_seconds = 60.0"))
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

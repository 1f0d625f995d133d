"""A site does several runs at once, within its policy, and none of them is another's business."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.federation.operations import agree
from fedactors.federation.site_folder import SITE
from tests.federation.test_run_queue import drivers, finished, persons, queue_of, until
from tests.federation.world import BANK, CLINIC, SHOP, World

slow = pytest.mark.slow

TASK = 'task = { type = "binary", layout = "horizontal", classes = ["0", "1"], test = "test.csv" }'
POLICY = """
[policy]
approve = "policy"
proposals_per_hour = 1000
concurrent_runs = 2
"""
SEED = ("--share-seed", "--seed", "7")
DATA = {BANK: "patients", SHOP: "cases", CLINIC: "cured"}


def open_world(made: World) -> None:
    """Let any of the sites start a run over the rows of all, two at once."""
    test = (made.path / BANK / "test.csv").read_bytes()
    for name in made.names:
        file = made.path / name / SITE
        text = file.read_text()
        if name != BANK:
            text = text.replace(f"[data.{DATA[name]}]\n", f"[data.{DATA[name]}]\n{TASK}\n")
        file.write_text(f"{text}{POLICY}")
        (made.path / name / "test.csv").write_bytes(test)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("concurrent")
    (folder / CLINIC).mkdir()
    made = World(folder, (BANK, SHOP, CLINIC))
    open_world(made)
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


@contextlib.contextmanager
def policy(world: World, name: str, *lines: str) -> Iterator[None]:
    """Give a site's policy more lines meanwhile."""
    file = world.path / name / SITE
    before = file.read_text()
    file.write_text(before + "".join(f"{line}\n" for line in lines))
    try:
        yield
    finally:
        file.write_text(before)


def by(world: World, first: str, *more: str, rounds: int = 30, timeout: str | None = "120") -> list[str]:
    """What the person of the site `first` types to train over the rows of all sites."""
    names = [first, *(name for name in world.names if name != first)]
    data = ",".join(f"{name}={DATA[name]}" for name in names)
    file, out = str(world.path / first / "federation.toml"), str(world.path / f"runs-{first}")
    flags = ("--federation", file, "--data", data, "--out", out, "--format", "json")
    queue = () if timeout is None else ("--queue-timeout", timeout)
    return ["run", "horizontal", *flags, *queue, f"num_rounds={rounds}", "hidden_size=4", *more]


def runs_of(world: World, name: str = SHOP) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((world.path / name / "status.json").read_text())["runs"]
    return found


def is_free(world: World) -> bool:
    return not any(one.runs or len(one._queue) or queue_of(world, name) for name, one in world.processes.items())


def both_open(world: World) -> bool:
    """Say whether two runs compute at each site."""
    return all(
        sum(active.site_run is not None and active.site_run.life == 4 for active in list(one.runs.values())) == 2
        for one in world.processes.values()
    )


@slow
def test_two_runs_at_the_same_sites_have_the_results_of_each_alone(world: World) -> None:
    commands = [by(world, BANK, *SEED), by(world, SHOP, *SEED, "local_epochs=2")]
    with persons(world):
        alone = []
        for command in commands:
            with drivers(command) as (one,):
                alone.append(finished(one))
        until(lambda: is_free(world))
        with drivers(*commands) as both:
            until(lambda: len(runs_of(world, CLINIC)) == 2, 60)
            found = [finished(one) for one in both]
    for expected, one in zip(alone, found, strict=True):
        assert one["metrics"] == expected["metrics"]
        assert (one["bytes"], one["messages"]) == (expected["bytes"], expected["messages"])
    lines = world.audit(CLINIC)
    last = [line["run"] for line in lines if line["what"] == "ended"][-2:]
    begun = {line["run"]: line["number"] for line in lines if line["what"] == "approved"}
    ended = {line["run"]: line["number"] for line in lines if line["what"] == "ended"}
    assert max(begun[run] for run in last) < min(ended[run] for run in last)
    for run in last:
        assert agree({name: world.path / name for name in world.names}, run)
    for name in world.names:
        assert main(["site", "audit", "--folder", str(world.path / name)]) == 0
    until(lambda: is_free(world))

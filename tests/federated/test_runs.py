"""Runs between two sites give what the simulated run gives, and leave each site its own records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedactors.command_line.main import main
from fedactors.runtime.federated.crossings import agree
from tests.federated.world import BANK, SHOP, TASK, World

SMALL = ("num_epochs=2", "num_layers=2", "hidden_size=8", "embedding_size=4", "batch_size=32", "on_party_loss=stop")


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def federated(world: World, words: tuple[str, ...], *flags: str) -> int:
    answering = world.answer()
    file = str(world.path / BANK / "federation.toml")
    data = f"{BANK}=customers,{SHOP}=orders"
    places = ("--federation", file, "--data", data, "--out", str(world.path / "runs"), "--format", "json", "--quiet")
    code = main(["run", "pubsub-vfl", *places, *flags, *words])
    answering.join(30)
    return code


def simulated(world: World, words: tuple[str, ...]) -> int:
    parties = world.path / "parties.toml"
    task = TASK.replace(", ", "\n")
    bank = f'path = "{world.path / BANK / "customers.csv"}"\nid = "id"\nlabel = "bad"'
    shop = f'path = "{world.path / SHOP / "orders.csv"}"\nid = "id"'
    parties.write_text(f"[task]\n{task}\n[parties.{BANK}]\n{bank}\n[parties.{SHOP}]\n{shop}\n")
    places = ("--runtime", "simulated", "--data", str(parties), "--out", str(world.path / "runs"))
    return main(["run", "pubsub-vfl", *places, "--seed", "7", "--format", "json", "--quiet", *words])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("algorithm=vfl",), ("algorithm=pubsub-vfl", "max_in_flight=1")], ids=["vfl", "pubsub"]
)
def test_a_test_run_gives_the_metrics_bytes_and_messages_of_the_simulated_one(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert federated(world, (*SMALL, *words), "--share-seed", "--seed", "7") == 0, world.said
    found = last_line(capsys)
    assert simulated(world, (*SMALL, *words)) == 0
    expected = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    if "algorithm=vfl" in words:
        assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    run = next(line["run"] for line in world.audit(SHOP) if line["what"] == "ended")
    assert agree({name: world.path / name for name in (BANK, SHOP)}, run)
    # each site has its own part of the model, and only that
    for name, other in ((BANK, SHOP), (SHOP, BANK)):
        (folder,) = (world.path / name / "runs").iterdir()
        assert main(["export", str(folder), "--format", "json"]) == 0
        parts = last_line(capsys)["files"]
        assert name in parts
        assert other not in parts

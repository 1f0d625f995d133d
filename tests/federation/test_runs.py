"""Runs between two sites give what the simulated run gives, and leave each site its own records."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedactors.cli.main import main
from fedactors.federation.large_messages import Arriving
from fedactors.federation.operations import agree
from tests.federation.world import BANK, CLINIC, SHOP, SQL, SQL_OF_THREE, TASK, World

SMALL = ("num_epochs=2", "num_layers=2", "hidden_size=8", "embedding_size=4", "batch_size=32", "on_party_loss=stop")


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


VERTICAL = f"{BANK}=customers,{SHOP}=orders"
DATA = {
    "horizontal": f"{BANK}=patients,{SHOP}=cases",
    "tablepuppet": f"{BANK}=clients,{SHOP}=sales",
    "glasu": f"{BANK}=people,{SHOP}=buyers",
}
OF_THREE = {
    "tablepuppet": f"{BANK}=accounts,{SHOP}=sales,{CLINIC}=stays",
    "glasu": f"{BANK}=people,{SHOP}=buyers,{CLINIC}=members",
    "horizontal": f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured",
    "nebulafl": f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured",
}


def last_run(world: World) -> str:
    return str([line["run"] for line in world.audit(SHOP) if line["what"] == "ended"][-1])


def federated(
    world: World,
    words: tuple[str, ...],
    *flags: str,
    protocol: str = "pubsub-vfl",
    answering: threading.Thread | None = None,
) -> int:
    answering = answering or world.answer()
    code = main([*command(world, protocol), *flags, *words])
    answering.join(1 if code else 30)  # a run that was refused may have had nothing to answer
    return code


def command(world: World, protocol: str) -> tuple[str, ...]:
    """Return what the bank's person types to run a protocol between all sites."""
    file, data = str(world.path / BANK / "federation.toml"), DATA.get(protocol, VERTICAL)
    if CLINIC in world.names:
        data = OF_THREE.get(protocol, f"{VERTICAL},{CLINIC}=visits")
    flags = ("--federation", file, "--data", data, "--out", str(world.path / "runs"))
    return ("run", protocol, *flags, "--format", "json", "--quiet")


def parties_file(world: World, protocol: str) -> Path:
    """Write the data of all sites as a ``parties.toml``, and return it."""
    parties = world.path / f"{protocol}.toml"
    bank, shop, clinic = (world.path / name for name in (BANK, SHOP, CLINIC))
    other = f'path = "{clinic / "visits.csv"}"\nid = "id"'
    if protocol == "horizontal":
        task = f'type = "binary"\nlayout = "horizontal"\nclasses = ["0", "1"]\ntest = "{bank / "test.csv"}"'
        local = (f'path = "{bank / "patients.csv"}"\nlabel = "bad"', f'path = "{shop / "patients.csv"}"\nlabel = "bad"')
        other = f'path = "{clinic / "patients.csv"}"\nlabel = "bad"'
    elif protocol == "tablepuppet":
        table, sql = ("accounts", SQL_OF_THREE) if CLINIC in world.names else ("clients", SQL)
        task = f'type = "binary"\nlayout = "relational"\nsql = "{sql}"\nlabel = "{table}.bad"'
        other = f'path = "{clinic / "visits.csv"}"\ntable = "stays"'
        local = (
            f'path = "{bank / "customers.csv"}"\ntable = "{table}"',
            f'path = "{shop / "orders.csv"}"\ntable = "sales"',
        )
    elif protocol == "glasu":
        task = f'layout = "graph"\nnodes = "{bank / "nodes.npz"}"'
        local = (f'file = "{bank / "graph.npz"}"', f'file = "{shop / "graph.npz"}"')
        other = f'file = "{clinic / "graph.npz"}"'
    else:
        task = TASK.replace(", ", "\n")
        local = (
            f'path = "{bank / "customers.csv"}"\nid = "id"\nlabel = "bad"',
            f'path = "{shop / "orders.csv"}"\nid = "id"',
        )
    third = f"[parties.{CLINIC}]\n{other}\n" if CLINIC in world.names else ""
    parties.write_text(f"[task]\n{task}\n[parties.{BANK}]\n{local[0]}\n[parties.{SHOP}]\n{local[1]}\n{third}")
    return parties


def simulated(world: World, words: tuple[str, ...], protocol: str = "pubsub-vfl") -> int:
    parties = parties_file(world, protocol)
    flags = ("--runtime", "simulated", "--data", str(parties), "--out", str(world.path / "runs"))
    return main(["run", protocol, *flags, "--seed", "7", "--format", "json", "--quiet", *words])


MTCD = ("num_clients=2", "num_rounds=3", "record_every=1", "relaxed_protocol=true", "num_tokens=2", "problem=ridge")
GLASU = ("num_clients=2", "num_rounds=3", "evaluate_every=1", "hidden_size=8")
VALIDATED = ("num_rounds=2", "validation_fraction=0.25")
OTHERS = {
    "mtcd": ("mtcd", MTCD),
    "stcd": ("mtcd", (*MTCD[:4], "problem=ridge", "algorithm=stcd")),
    "svfl": ("mtcd", (*MTCD[:4], "problem=ridge", "algorithm=svfl")),
    "dcpa": ("mtcd", (*MTCD[:4], "problem=ridge", "algorithm=dcpa")),
    "glasu": ("glasu", GLASU),
    "glasu, each alone": ("glasu", (*GLASU, "special_case=standalone")),
    "horizontal": ("horizontal", ("num_rounds=2", "hidden_size=4")),
    "fedbn": ("horizontal", (*VALIDATED, "model=residual-mlp", "hidden_size=4", "local_parameters=norm")),
    "ditto": ("horizontal", (*VALIDATED, "algorithm=ditto")),
    "rfl-admm": ("tablepuppet", ("num_rounds=2",)),
    "rfl-sgd": ("tablepuppet", ("num_rounds=2", "algorithm=rfl-sgd")),
    "centralised": ("tablepuppet", ("num_rounds=2", "algorithm=centralised")),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [("algorithm=avfl",), ("algorithm=avfl-ps",), ("algorithm=vfl-ps",), (), ("transfer=push", "epochs_per_round=2")],
    ids=["avfl", "avfl-ps", "vfl-ps", "pubsub-vfl", "sent"],
)
def test_settings_whose_order_is_as_it_happens_run_too(world: World, words: tuple[str, ...]) -> None:
    assert federated(world, (*SMALL, *words)) == 0, world.output
    run = last_run(world)
    assert agree({name: world.path / name for name in (BANK, SHOP)}, run)


LARGE = ("horizontal", ("num_rounds=2", "hidden_size=1800", "model=mlp"))
"""Its models have 13 MB, and travel in parts."""


@pytest.mark.slow
@pytest.mark.parametrize("what", [*OTHERS, "large messages"])
def test_other_protocols_give_the_metrics_bytes_and_messages_of_the_simulated_run(
    world: World, capsys: pytest.CaptureFixture[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, arrived = Arriving.add, list[Arriving]()

    def noted(one: Arriving, *part: Any) -> Any:
        arrived.append(one)
        return add(one, *part)

    monkeypatch.setattr(Arriving, "add", noted)
    protocol, words = OTHERS.get(what, LARGE)
    assert simulated(world, words, protocol) == 0
    expected = last_line(capsys)
    code = federated(world, words, "--share-seed", "--seed", "7", protocol=protocol)
    assert code == 0, (world.output, capsys.readouterr().err)
    found = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6, nan_ok=True)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    run = last_run(world)
    assert agree({name: world.path / name for name in (BANK, SHOP)}, run)
    assert bool(arrived) == (what == "large messages")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("algorithm=vfl",), ("algorithm=pubsub-vfl", "max_in_flight=1")], ids=["vfl", "pubsub"]
)
def test_a_test_run_gives_the_metrics_bytes_and_messages_of_the_simulated_one(
    world: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert federated(world, (*SMALL, *words), "--share-seed", "--seed", "7") == 0, world.output
    found = last_line(capsys)
    assert simulated(world, (*SMALL, *words)) == 0
    expected = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
    if "algorithm=vfl" in words:
        assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    run = last_run(world)
    assert agree({name: world.path / name for name in (BANK, SHOP)}, run)
    # each site has its own part of the model, and only that
    for name, other in ((BANK, SHOP), (SHOP, BANK)):
        folder = max((world.path / name / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
        assert main(["export", str(folder), "--format", "json"]) == 0
        parts = last_line(capsys)["files"]
        assert name in parts
        assert other not in parts


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    yield from World.running(tmp_path_factory.mktemp("three"), (BANK, SHOP, CLINIC))


THREE = {
    "vfl": ("pubsub-vfl", (*SMALL, "algorithm=vfl", "num_parties=3")),
    "mtcd": ("mtcd", ("num_clients=3", "num_rounds=2", "relaxed_protocol=true", "num_tokens=1", "problem=ridge")),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", THREE)
def test_three_sites_that_all_talk_to_each_other(three: World, capsys: pytest.CaptureFixture[str], what: str) -> None:
    protocol, words = THREE[what]
    assert simulated(three, words, protocol) == 0
    expected = last_line(capsys)
    assert federated(three, words, "--share-seed", "--seed", "7", protocol=protocol) == 0, three.output
    found = last_line(capsys)
    assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-6, nan_ok=True)
    assert (found["bytes"], found["messages"]) == (expected["bytes"], expected["messages"])
    assert agree({name: three.path / name for name in three.names}, last_run(three))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["centralised", "simulated-centralised"])
def test_who_would_see_anothers_graph_is_refused(world: World, capsys: pytest.CaptureFixture[str], case: str) -> None:
    assert federated(world, (*GLASU, f"special_case={case}"), protocol="glasu") in (2, 3)
    assert "with other data than the approved ones, or another's" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_messages_are_larger_than_it_asked_for_ends_and_says_what_to_ask_for(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol, words = LARGE
    assert federated(world, words, "--limit", "message_gib=0.005", protocol=protocol) == 2, world.output
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    remedy = "--limit message_gib=0.02, where policy.limits.message_gib of all sites allows it"
    assert said == [
        f"fedactors: shop.train: a message of 13010560 bytes to shop: at most 5368709 are approved: {remedy}"
    ]


def test_folders_of_images_train_at_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    draw = np.random.default_rng(0)
    for folder in (f"{BANK}/photos", f"{SHOP}/photos", f"{BANK}/held"):
        for name, brightness in (("cat", 0), ("dog", 120)):
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(20):
                pixels = (brightness + draw.random((8, 8)) * 120).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / folder / name / f"{number}.png")
    task = 'type = "binary", layout = "horizontal", classes = ["cat", "dog"], shape = [1, 8, 8], test = "held"'
    for name, more in ((BANK, f"task = {{ {task} }}\n"), (SHOP, "")):
        file = tmp_path / name / "site.toml"
        file.write_text(f'{file.read_text()}\n[data.photos]\npath = "photos"\n{more}\n[policy]\napprove = "policy"\n')
        world.start(name)
    try:
        federation, out = str(tmp_path / BANK / "federation.toml"), str(tmp_path / "runs")
        words = ("--data", f"{BANK}=photos,{SHOP}=photos", "num_rounds=2", "model=linear", "local_baseline=false")
        assert main(["run", "horizontal", "--federation", federation, "--out", out, *words, "--format=json"]) == 0
        assert last_line(capsys)["metrics"]["test/auc"] > 0.9
    finally:
        world.stop()

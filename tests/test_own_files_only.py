"""A party's process opens its own file and no other party's, whatever reads it: the kernel says who opened what.

Python's own hooks do not see the files that Arrow, DuckDB or SQLite open, so that fanotify(7) watches the data files,
for which a process needs CAP_SYS_ADMIN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.config import build
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.prediction import Application
from fedactors.records.recorder import MemoryRecorder
from fedactors.runtime.ray.runtime import RayRuntime
from fedactors.serving import StoredState
from tests.openers import may_watch, openers

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.skipif(not may_watch(), reason="needs CAP_SYS_ADMIN"),
]


def vertical(folder: Path) -> tuple[str, dict[str, str]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    ids = np.arange(60)
    label = (x.sum(1) > 0).astype(int)
    np.savetxt(folder / "bank.csv", np.c_[ids, x[:, :2], label], delimiter=",", header="id,a,b,bad", comments="")
    np.savetxt(folder / "shop.csv", np.c_[ids, x[:, 2:]], delimiter=",", header="id,c,d", comments="")
    parties = (
        '[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "bad"\n[parties.shop]\npath = "shop.csv"\nid = "id"\n'
    )
    return f'[task]\ntype = "binary"\nalignment = "hash"\n{parties}', {"bank.csv": "bank", "shop.csv": "shop"}


def horizontal(folder: Path) -> tuple[str, dict[str, str]]:
    rng = np.random.default_rng(0)
    names = ("a", "b", "c", "d")
    for name in (*names, "test"):
        x = rng.normal(size=(30, 3))
        y = (x.sum(1) > 0).astype(int)
        np.savetxt(folder / f"{name}.csv", np.c_[x, y], delimiter=",", header="p,q,r,bad", comments="", fmt="%.6g")
    lines = ['[task]\ntype = "binary"\nlayout = "horizontal"\ntest = "test.csv"']
    lines += [f'[parties.{name}]\npath = "{name}.csv"\nlabel = "bad"\nfeatures = ["p", "q", "r"]' for name in names]
    return "\n".join(lines), {f"{name}.csv": name for name in names}


HELD = {"a.csv": "virginia", "b.csv": "oregon", "c.csv": "oregon", "d.csv": "virginia"}
"""Clients' files and the centers that they name."""


def centers(folder: Path) -> tuple[str, dict[str, str]]:
    text, files = horizontal(folder)
    for file, center in HELD.items():
        text = text.replace(f'path = "{file}"', f'path = "{file}"\ncenter = "{center}"')
    return text, files


def graph(folder: Path) -> tuple[str, dict[str, str]]:
    split = {"train": np.arange(2), "validation": np.arange(2, 4), "test": np.arange(4, 6)}
    np.savez(folder / "nodes.npz", labels=np.array([0, 1, 0, 1, 0, 1]), **split)
    for name in ("bank", "shop"):
        np.savez(folder / f"{name}.npz", edges=np.array([[0, 1, 2], [1, 2, 5]]), features=np.arange(18.0).reshape(6, 3))
    parties = "".join(f'[parties.{name}]\nfile = "{name}.npz"\n' for name in ("bank", "shop"))
    return f'[task]\nlayout = "graph"\nnodes = "nodes.npz"\n{parties}', {"bank.npz": "bank", "shop.npz": "shop"}


def relational(folder: Path) -> tuple[str, dict[str, str]]:
    rng = np.random.default_rng(0)
    orders = np.c_[rng.integers(0, 5, 40), rng.integers(0, 5, 40), rng.normal(size=(40, 2))]
    np.savetxt(folder / "orders.csv", orders, delimiter=",", header="item,card,size,amount", comments="", fmt="%.6g")
    for name, key, column in (("items", "item", "price"), ("cards", "card", "age")):
        rows = np.c_[np.arange(5), rng.normal(size=5)]
        np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header=f"{key},{column}", comments="", fmt="%.6g")
    sql = "SELECT o.amount, o.size, i.price, c.age FROM orders o JOIN items i ON o.item = i.item "
    sql += "JOIN cards c ON o.card = c.card"
    names = ("orders", "items", "cards")
    parties = "".join(f'[parties.{name}]\npath = "{name}.csv"\n' for name in names)
    task = f'[task]\ntype = "regression"\nlayout = "relational"\nsql = "{sql}"\nlabel = "o.amount"\n'
    return task + parties, {f"{name}.csv": name for name in names}


CASES: dict[str, Any] = {
    "pubsub-vfl": (vertical, {"num_epochs": 1, "num_layers": 2, "batch_size": 16}),
    "mtcd": (
        vertical,
        {"num_clients": 2, "num_rounds": 1, "topology": "complete", "num_tokens": 1, "relaxed_protocol": True},
    ),
    "horizontal": (horizontal, {"num_rounds": 1}),
    "nebulafl": (
        centers,
        {
            "num_containers": 4,
            "num_centers": 2,
            "active_per_center": 2,
            "num_rounds": 1,
            "rotation_interval": 1.0,
            "evaluation_interval": 1.0,
            "catalogue": "scarce",
            "duration": 900.0,
            "dirichlet": None,
        },
    ),
    "glasu": (graph, {"num_clients": 2, "num_rounds": 1, "hidden_size": 4, "evaluate_every": 1}),
    "tablepuppet": (relational, {"rounds": 1}),
    "pubsub-vfl on a query": (relational, {"num_epochs": 1, "num_layers": 2, "batch_size": 16}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_partys_process_opens_its_own_file_alone(name, tmp_path):
    make, settings = CASES[name]
    text, owners = make(tmp_path)
    described = tmp_path / "parties.toml"
    described.write_text(text)
    protocol = find_protocol(name.partition(" ")[0])
    config = build(protocol.Config, settings)
    recorder = MemoryRecorder()

    def opened_by(use: Any) -> dict[str, set[str]]:
        """Load the data and use them on Ray: by file, the parties whose processes opened it."""
        with openers([tmp_path / file for file in owners]) as found:
            data = load_data(protocol, config, str(described), 0)
            runtime = RayRuntime(seed=0, recorder=recorder, call_timeout=60.0)
            runtime.execute(lambda: use(data, runtime))
        parties = {process: actor.partition("/")[0] for actor, process in runtime.processes.items()}
        return {file: {parties.get(process, "driver") for process in processes} for file, processes in found.items()}

    in_training = opened_by(lambda data, runtime: protocol.run(config, data, runtime))
    holders = HELD if name == "nebulafl" else owners  # a center holds several clients' files
    assert in_training == {file: {holder} for file, holder in holders.items()}

    if name.endswith("on a query"):
        return  # its parts predict rows of files

    states = list(recorder.checkpoints.values())[-1].actors
    stored = {actor: StoredState(actor=actor, frame=frame) for actor, frame in states.items()}
    asked = Application(stored=stored, to=str(tmp_path / "predictions.csv"))
    predict = protocol.predict
    assert predict is not None
    in_prediction = opened_by(lambda data, runtime: predict(config, data, runtime, asked))
    assert in_prediction == {file: {owner} for file, owner in owners.items()}
    assert list(tmp_path.glob("predictions*.csv"))

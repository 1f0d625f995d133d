"""Sound files and finished runs, which the cases spoil: each folder is copied into the case's own."""

from __future__ import annotations

import contextlib
import io
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedactors.cli.main import main
from fedactors.protocols.nebulafl.config import EXAMPLES

_ROWS = 60

VERTICAL = """[task]
type = "binary"
alignment = "already-aligned"
[parties.bank]
path = "bank.csv"
id = "id"
label = "bad"
[parties.shop]
path = "shop.csv"
id = "id"
features = ["spent", "visits"]
"""
HORIZONTAL = """[task]
type = "binary"
layout = "horizontal"
classes = [0, 1]
test = "test.csv"
[parties.a]
path = "a.csv"
label = "y"
features = ["p", "q"]
[parties.b]
path = "b.csv"
label = "y"
features = ["p", "q"]
"""
RELATIONAL = '''[task]
type = "regression"
layout = "relational"
sql = """SELECT o.amount, i.price, c.age
FROM orders o JOIN items i ON o.item = i.item JOIN cards c ON o.card = c.card"""
label = "o.amount"
categorical = []
[parties.orders]
path = "orders.csv"
[parties.items]
path = "items.csv"
[parties.cards]
path = "cards.csv"
'''
GRAPH = """[task]
layout = "graph"
nodes = "nodes.npz"
[parties.bank]
file = "bank.npz"
[parties.shop]
file = "shop.npz"
"""
CATALOGUE = """spread = 0.1
[types.a]
price = 0.5
throughput = { cnn8 = 10, linear = 5 }
[types.b]
price = 1
throughput = { cnn8 = 30, linear = 5 }
[centers.x]
a = 2
b = 0
[centers.y]
b = 1
"""
NETWORK = """[[links]]
between = ["x", "y"]
latency_ms = 20
bandwidth_mbit = 80
egress_per_gb = 0.05
"""

_QUIET = ("--runtime", "simulated", "--quiet", "--out")
SMALL = {
    "pubsub-vfl": "num_epochs=1 num_layers=1 hidden_size=4 embedding_size=2 batch_size=8 test_fraction=0.3 "
    "validation_fraction=0.3",
    "mtcd": "num_clients=3 min_cluster_size=1 num_hops=1 num_local_steps=1 num_rounds=1 num_samples=12 num_features=6",
    "glasu": "num_rounds=1 hidden_size=4 evaluate_every=1 num_layers=2",
    "nebulafl": "num_centers=2 num_containers=4 active_per_center=1 duration=300 rotation_interval=100 "
    "evaluation_interval=150 num_training=40 local_epochs=1 dirichlet=none",
    "tablepuppet": "num_rounds=1",
}
"""Settings of runs that take a fraction of a second."""
NAMED = {
    "pubsub-vfl": "breast-cancer",
    "mtcd": "synthetic",
    "glasu": "blocks:60x6x2",
    "nebulafl": "digits",
    "tablepuppet": "orders",
}


def small(protocol: str, *leaving: str) -> str:
    """Return the settings of a quick run, all but some."""
    return " ".join(word for word in SMALL[protocol].split() if word.partition("=")[0] not in leaving)


def write_files(root: Path) -> None:
    """Write sound files of every layout."""
    for name in ("vertical", "horizontal", "relational", "graph", "market", "profiles"):
        (root / name).mkdir(parents=True)
    rng = np.random.default_rng(0)
    _csv(root / "vertical/bank.csv", id=range(_ROWS), age=range(20, 20 + _ROWS), income=rng.normal(size=_ROWS),
         bad=[0, 1] * (_ROWS // 2))  # fmt: skip
    _csv(root / "vertical/shop.csv", id=range(_ROWS), spent=rng.normal(size=_ROWS), visits=range(_ROWS),
         town=["n", "s", "w"] * (_ROWS // 3))  # fmt: skip
    (root / "vertical/parties.toml").write_text(VERTICAL)
    for name in ("a", "b", "test"):
        _csv(root / f"horizontal/{name}.csv", p=rng.normal(size=_ROWS), q=range(_ROWS), y=[0, 1] * (_ROWS // 2))
    (root / "horizontal/parties.toml").write_text(HORIZONTAL)
    _csv(root / "relational/orders.csv", item=[1, 2, 1, 3] * 10, card=[7, 8, 9, 7] * 10, amount=[1.0, 2.5, 3, 0.5] * 10)
    _csv(root / "relational/items.csv", item=[1, 2, 3], price=[4.0, 5.0, 6.0], kind=["a", "b", "c"])
    _csv(root / "relational/cards.csv", card=[7, 8, 9], age=[30, 40, 50], owner=["x", "y", "z"])
    (root / "relational/parties.toml").write_text(RELATIONAL)
    with contextlib.closing(sqlite3.connect(root / "relational/cards.sqlite")) as database:
        database.execute("CREATE TABLE cards (card INTEGER, age INTEGER, owner TEXT)")
        database.executemany("INSERT INTO cards VALUES (?, ?, ?)", [(7, 30, "x"), (8, 40, "y"), (9, 50, "z")])
        database.commit()
    masks = np.repeat(np.eye(3, dtype=bool), 4, axis=0)
    nodes = {"labels": np.arange(12) % 2, "train": masks[:, 0], "validation": masks[:, 1], "test": masks[:, 2]}
    np.savez(root / "graph/nodes.npz", **nodes)
    np.savez(root / "graph/bank.npz", edges=np.array([[0, 1, 2], [1, 2, 5]]), features=rng.normal(size=(12, 3)))
    np.savez(root / "graph/shop.npz", edges=np.array([[3], [4]]), features=rng.normal(size=(12, 2)))
    (root / "graph/parties.toml").write_text(GRAPH)
    (root / "market/catalogue.toml").write_text(CATALOGUE)
    (root / "market/network.toml").write_text(NETWORK)


def build(root: Path) -> None:
    """Write everything."""
    write_files(root)
    assert "market" in EXAMPLES
    for protocol in SMALL:
        train(protocol, root / "finished" / protocol)
    _command("sweep", "mtcd", *SMALL["mtcd"].split(), "--quiet", "--out", str(root / "table"))


def train(protocol: str, folder: Path) -> None:
    """Leave a finished run in ``folder/run``."""
    _command("run", protocol, *SMALL[protocol].split(), "--data", NAMED[protocol], *_QUIET, str(folder))
    (made,) = folder.iterdir()
    made.rename(folder / "run")


def _csv(path: Path, **columns: object) -> None:
    table = pa.table({name: list(values) for name, values in columns.items()})  # type: ignore[call-overload]
    pa.csv.write_csv(table, path)


def _command(*words: str) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(words))
    assert code == 0, (words, said.getvalue())

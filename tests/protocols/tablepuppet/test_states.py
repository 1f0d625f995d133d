"""What the holder of a run folder can compute from one checkpoint, and that with states kept elsewhere it is nothing.

The supplier's table has one feature, its prices. The server keeps the predictions h = theta x of every row and the
training labels, the supplier keeps theta and the scale of its column: whoever has both has the prices.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedactors.cli.main import main
from fedactors.data.new_rows import actor_state
from fedactors.errors import BadInput
from fedactors.runs.folder import RunFolder
from fedactors.runs.party_states import CheckpointStates, make_locations

PARTIES = ("shop", "supplier", "server")


def make_data(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write both tables and their description; return the supplier's prices and the shop's labels."""
    rng = np.random.default_rng(0)
    price = np.round(rng.gamma(2.0, 10.0, 60), 2)
    item = rng.integers(0, 60, 400)
    discount = rng.normal(size=400)
    returned = (discount + 0.1 * price[item] > rng.normal(2.0, 0.3, 400)).astype(np.int64)
    pq.write_table(pa.table({"item": np.arange(60), "price": price}), folder / "supplier.parquet")
    sold = {"item": item, "discount": discount, "returned": returned}
    pq.write_table(pa.table(sold), folder / "shop.parquet")
    (folder / "parties.toml").write_text(
        '[task]\nlayout = "relational"\ntype = "binary"\nlabel = "shop.returned"\n'
        'sql = "SELECT shop.returned, shop.discount, supplier.price '
        'FROM shop JOIN supplier ON shop.item = supplier.item"\n'
        '[parties.shop]\npath = "shop.parquet"\n[parties.supplier]\npath = "supplier.parquet"\n'
    )
    return price, returned


def train(folder: Path, *flags: str) -> RunFolder:
    words = ["algorithm=rfl-admm", "model=linear", "num_rounds=4", "rho=0.3", "test_fraction=0.1"]
    data = ["--data", str(folder / "parties.toml"), "--out", str(folder / "runs")]
    assert main(["run", "tablepuppet", "--runtime", "simulated", "--quiet", *words, *data, *flags]) == 0
    (found,) = (folder / "runs").iterdir()
    return RunFolder.open(found)


def solve_for_prices(states) -> np.ndarray:
    """Return the prices in dollars, in an order of their own: h divided by theta, at the column's scale."""
    h_N = np.asarray(actor_state(states, "server")["predictions"][1])[:, 0]
    supplier = actor_state(states, "supplier")
    facts = supplier["agreement"].facts
    mean = facts.totals[0] / facts.counts[0]
    deviation = np.sqrt(facts.squares[0] / facts.counts[0] - mean * mean)
    return mean + deviation * h_N / float(np.asarray(supplier["theta"])[0])


def distance(found_N: np.ndarray, price: np.ndarray) -> float:
    """Return how far, in dollars, the farthest row that was found is from a true price."""
    assert len(found_N) == len(price)
    return float(np.abs(np.sort(found_N) - np.sort(price)).max())


@pytest.mark.slow
def test_in_the_open_mode_one_checkpoint_is_the_suppliers_prices_and_the_training_labels(tmp_path):
    price, returned = make_data(tmp_path)
    states = train(tmp_path).load_checkpoint().actors
    assert distance(solve_for_prices(states), price) < 1e-11
    y_N = np.asarray(actor_state(states, "server")["y"]).ravel()
    assert len(y_N) == len(returned) - round(0.1 * len(returned))
    assert set(np.unique(y_N)) <= {0.0, 1.0}
    assert abs(y_N.mean() - returned.mean()) < 0.05


@pytest.mark.slow
def test_with_states_kept_by_their_parties_the_run_folder_holds_neither(tmp_path, monkeypatch):
    price, returned = make_data(tmp_path)
    keys = {party: base64.b64encode(os.urandom(32)).decode() for party in PARTIES}
    flags = []
    for party, key in keys.items():
        monkeypatch.setenv(f"KEY_OF_{party.upper()}", key)
        flags += ["--checkpoint-dir", f"{party}={tmp_path / 'kept' / party}"]
        flags += ["--checkpoint-key", f"{party}=env:KEY_OF_{party.upper()}"]
    folder = train(tmp_path, *flags)
    where = {party: str(tmp_path / "kept" / party) for party in PARTIES}
    names = {party: f"env:KEY_OF_{party.upper()}" for party in PARTIES}
    frames = folder.load_checkpoint().actors

    # whoever holds all places and all keys can do what the open mode's holder can: so the search below has an object
    states = CheckpointStates(frames, make_locations(where, names))
    server, supplier = actor_state(states, "server"), actor_state(states, "supplier")
    assert distance(solve_for_prices(states), price) < 1e-11
    wanted = {
        "labels": np.asarray(server["y"]),
        "h": np.asarray(server["predictions"][1]),
        "dual": np.asarray(server["dual"]),
        "theta": np.asarray(supplier["theta"]),
        "rows": np.asarray(server["train_rows"][1]),
        "price": price,
        "returned": returned,
    }

    # whoever has the run folder alone has none of it, whichever way the numbers were written
    everything = b"\0".join(path.read_bytes() for path in folder.path.rglob("*") if path.is_file())
    for what, values in wanted.items():
        for dtype in (values.dtype, np.float64, np.float32, np.int64, np.int32, np.int8):
            written = np.ascontiguousarray(values.ravel()[:24].astype(dtype))
            if len(np.unique(written)) > 1:  # zeros are everywhere
                assert written.tobytes() not in everything, f"{what} as {np.dtype(dtype)}"
    for value in np.asarray(supplier["theta"]).ravel().tolist():
        assert json.dumps(value).encode() not in everything
    for party in PARTIES:
        with pytest.raises(BadInput, match=f"{party} keeps its state in a place of its own"):
            CheckpointStates(frames, {})[party]

    # nor has whoever has the disks without the keys, or the disks and one party's key
    disks = b"\0".join(path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert all(np.ascontiguousarray(values.ravel()[:24]).tobytes() not in disks for values in wanted.values())
    stolen = dict.fromkeys(PARTIES, "env:KEY_OF_SERVER")
    with pytest.raises(BadInput, match="does not open with this key"):
        solve_for_prices(CheckpointStates(frames, make_locations(where, stolen)))

"""On Ray an actor's own process writes and reads its state; the driver sees references, and never the key."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import numpy as np
import pytest

from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.launch import load_data
from fedactors.plugins import find_protocol
from fedactors.runs.party_states import PartyStates, StateLocations, is_reference, make_locations
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.ray.runtime import RayRuntime

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(300)]
PARTIES = ("active", "passive")


def go(locations: StateLocations, resume: Snapshot | None = None, **words: object) -> MemoryRecorder:
    protocol, recorder = find_protocol("pubsub-vfl"), MemoryRecorder()
    settings = {"algorithm": "vfl", "float64": "true", "num_layers": "2", "hidden_size": "8", "num_epochs": "2"}
    settings |= {"schedule": "constant"}  # which one that ends after more epochs shares
    config = build(protocol.Config, {**settings, **{name: str(value) for name, value in words.items()}})
    data = load_data(protocol, config, "breast-cancer", 0)
    runtime = RayRuntime(num_cpus=2, recorder=recorder)
    runtime.states = locations
    runtime.execute(lambda: protocol.run(config, data, runtime), resume)
    return recorder


def states_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_states_stay_with_their_processes_and_a_run_goes_on_from_them(tmp_path, monkeypatch):
    for party in PARTIES:
        (tmp_path / f"{party}.key").write_text(base64.b64encode(os.urandom(32)).decode())
    where = {party: str(tmp_path / party) for party in PARTIES}
    locations = make_locations(where, {party: f"file:{tmp_path / party}.key" for party in PARTIES})
    plain = go(StateLocations())

    def forbidden(*_: object) -> None:
        raise AssertionError("the driver touched a party's state or key")

    # in this process, the driver's, alone: the parties' processes import the class anew
    for name in ("keep", "fetch", "drop", "begin", "_cipher"):
        monkeypatch.setattr(PartyStates, name, forbidden)
    kept = go(StateLocations(locations, "first"))
    assert kept.rounds == plain.rounds
    frames = kept.checkpoints["last"].actors
    assert set(frames) == set(plain.checkpoints["last"].actors)
    assert {name for name, frame in frames.items() if is_reference(frame)} == {
        name for name in frames if name.partition("/")[0] in PARTIES
    }
    # the states of the two checkpoints that there are, and none of those that they replaced
    local = [name for name in frames if name.startswith("passive")]
    assert len(states_in(tmp_path / "passive")) == len(local) * len(kept.checkpoints)

    last = kept.checkpoints["last"]
    longer = go(StateLocations(locations, "second"), Snapshot(last.actors, last.driver), num_epochs=3)
    whole = go(StateLocations(), num_epochs=3)
    assert longer.rounds[-1].keys() == whole.rounds[-1].keys()
    for name, value in whole.rounds[-1].items():
        assert np.allclose(longer.rounds[-1][name], value, rtol=1e-9), name


def test_a_place_or_key_that_is_none_ends_the_run_before_it_trains(tmp_path):
    for locations, message in [
        (make_locations({"passive": str(tmp_path)}, {"passive": "env:NOWHERE"}), "passive: no variable NOWHERE where"),
        (make_locations({"passive": "/proc/none"}, {}), "--checkpoint-dir: passive: cannot write /proc/none"),
        (make_locations({"pasive": str(tmp_path)}, {}), "'pasive' is not allowed: the parties are"),
    ]:
        with pytest.raises(BadInput, match=message):
            go(StateLocations(locations))
    assert states_in(tmp_path) == []

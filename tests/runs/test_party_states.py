"""A party's states in a place of its own: what is written, and everything that may be wrong with it."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.runs.party_states import (
    CheckpointStates,
    PartyStates,
    StateLocation,
    StateLocations,
    is_reference,
    make_locations,
    proven_locations,
)

FRAME = b"\x00\x01\x02\x03 the labels of all customers " * 40
KEY = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture(params=["folder", "memory"])
def where(request, tmp_path) -> str:
    return str(tmp_path / "own") if request.param == "folder" else f"memory://states/{tmp_path.name}"


def party_state(where: str, key: str | None = None, actor: str = "bank/worker-0") -> PartyStates:
    return PartyStates(StateLocation("bank", where, key), actor, "20260101T000000Z-x-0")


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_state_comes_back_and_its_reference_tells_nothing(where, monkeypatch):
    monkeypatch.setenv("BANK_KEY", KEY)
    for key in (None, "env:BANK_KEY"):
        local = party_state(where, key)
        assert local.begin(None) is None
        reference = local.keep(FRAME)
        assert is_reference(reference)
        assert not is_reference(FRAME)
        assert local.fetch(reference) == FRAME
        assert b"labels" not in reference
        assert KEY.encode() not in reference
        assert where.encode() not in reference
        # the same state twice: neither name nor digest says that it is the same
        again = local.keep(FRAME)
        told, told_again = (json.loads(r.partition(b"\n")[2]) for r in (reference, again))
        assert told["sha256"] != told_again["sha256"]
        local.drop(reference)
        with pytest.raises(BadInput, match="is missing"):
            local.fetch(reference)
        assert local.fetch(again) == FRAME
        local.drop(reference)  # gone already


def test_without_a_place_a_state_travels_as_it_is():
    local = PartyStates(None, "bank", "run")
    assert local.begin(FRAME) == FRAME
    assert local.keep(FRAME) == FRAME
    assert local.fetch(FRAME) == FRAME


def test_with_a_key_nothing_of_the_state_is_on_the_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("BANK_KEY", KEY)
    party_state(str(tmp_path / "clear")).keep(FRAME)
    (clear,) = files(tmp_path / "clear")
    assert b"the labels of all customers" in clear.read_bytes()
    party_state(str(tmp_path / "sealed"), "env:BANK_KEY").keep(FRAME)
    (sealed,) = files(tmp_path / "sealed")
    assert all(FRAME[i : i + 8] not in sealed.read_bytes() for i in range(len(FRAME) - 8))


def test_a_key_may_lie_in_a_file(tmp_path):
    path = tmp_path / "bank.key"
    path.write_text(KEY + "\n")
    local = party_state(str(tmp_path / "own"), f"file:{path}")
    assert local.fetch(local.keep(FRAME)) == FRAME


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "another key", "no key", "another actor", "another run"])
def test_whatever_was_done_to_a_state_is_found_and_named(change, tmp_path, monkeypatch):
    monkeypatch.setenv("BANK_KEY", KEY)
    folder = tmp_path / "own"
    local = party_state(str(folder), "env:BANK_KEY")
    reference = local.keep(FRAME)
    (path,) = files(folder)
    data = path.read_bytes()
    told = json.loads(reference.partition(b"\n")[2])
    if change == "flip":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif change == "cut":
        path.write_bytes(data[:40])
    elif change == "empty":
        path.write_bytes(b"")
    elif change == "another key":
        monkeypatch.setenv("BANK_KEY", base64.b64encode(os.urandom(32)).decode())
    elif change == "no key":
        local = party_state(str(folder))
    elif change == "another actor":
        local = party_state(str(folder), "env:BANK_KEY", actor="bank/worker-1")
    elif change == "another run":  # of the same actor, under its own key: bound to its name all the same
        name = told["name"].replace("-x-0/", "-x-1/")
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(data)
        reference = reference.partition(b"\n")[0] + b"\n" + json.dumps({**told, "name": name}).encode()
    expected = {
        "another key": "does not open with this key",
        "no key": "is encrypted: give --checkpoint-key bank=",
        "another actor": "refers to no state of bank/worker-1's",
        "another run": "does not open with this key",
    }
    with pytest.raises(BadInput, match=expected.get(change, "is damaged")) as caught:
        local.fetch(reference)
    assert "bank" in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "told",
    [
        {"name": "../../etc/bank/worker-0/" + "0" * 32 + ".state"},
        {"name": "/etc/bank/worker-0/" + "0" * 32 + ".state"},
        {"name": "run/bank/worker-0/../" + "0" * 32 + ".state"},
        {"name": "run/bank/worker-0/passwd"},
        {"name": 3},
        {"bytes": "many"},
        {"more": 1},
        [],
        "text",
        None,
    ],
)
def test_a_reference_that_a_stranger_wrote_names_no_other_file(told, tmp_path):
    sound = {"name": "run/bank/worker-0/" + "0" * 32 + ".state", "bytes": 3, "sha256": "0" * 64}
    content = {**sound, **told} if isinstance(told, dict) else told
    frame = b"fedactors state elsewhere\n" + json.dumps(content).encode()
    for what in (party_state(str(tmp_path)).fetch, party_state(str(tmp_path)).drop):
        with pytest.raises(BadInput, match="refers to no state"):
            what(frame)


def test_a_reference_that_is_no_json_or_whose_party_has_no_place_is_named():
    with pytest.raises(BadInput, match="refers to no state"):
        PartyStates(None, "bank", "run").fetch(b"fedactors state elsewhere\n{")
    told = {"name": "run/bank/" + "0" * 32 + ".state", "bytes": 3, "sha256": "0" * 64}
    frame = b"fedactors state elsewhere\n" + json.dumps(told).encode()
    with pytest.raises(BadInput, match="bank keeps its state in a place of its own: give --checkpoint-dir bank=PLACE"):
        PartyStates(None, "bank", "run").fetch(frame)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("env:NOWHERE_TO_BE_FOUND", "bank: no variable NOWHERE_TO_BE_FOUND where bank/worker-0 runs"),
        ("file:/nowhere/bank.key", "bank: /nowhere/bank.key cannot be read: No such file"),
        ("env:SHORT", "env:SHORT holds no key: 32 random bytes as base64"),
        ("env:NO_BASE64", "env:NO_BASE64 holds no key"),
    ],
)
def test_a_key_that_is_none_is_told_before_anything_is_trained(key, message, tmp_path, monkeypatch):
    monkeypatch.setenv("SHORT", base64.b64encode(b"short").decode())
    monkeypatch.setenv("NO_BASE64", "§§§ secret §§§")
    with pytest.raises(BadInput, match=message) as caught:
        party_state(str(tmp_path), key).begin(None)
    assert "secret" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_told_before_anything_is_trained(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--checkpoint-dir: bank: cannot write"):
        party_state(str(tmp_path / "file")).begin(None)
    with pytest.raises(BadInput, match="nothing://x"):
        party_state("nothing://x").begin(None)


def test_names_of_places_and_keys():
    assert make_locations({"bank": "/own"}, {"bank": "env:K"}) == {"bank": StateLocation("bank", "/own", "env:K")}
    for where, keys, message in [
        ({"bank": "/own"}, {"shop": "env:K"}, "'shop' is not allowed: it has no --checkpoint-dir shop=PLACE"),
        ({"bank": "/own"}, {"bank": "s3cr3t"}, "name where the key is, file:PATH or env:NAME"),
        ({"bank": "/own"}, {"bank": "env:"}, "name where the key is"),
        ({"bank": " "}, {}, "it names no place"),
    ]:
        with pytest.raises(BadInput, match=message):
            make_locations(where, keys)
    with pytest.raises(BadInput, match="--checkpoint-dir: 'bnak' is not allowed: the parties are bank, shop"):
        StateLocations(make_locations({"bnak": "/own"}, {})).check(["bank/worker-0", "bank", "shop"], {})


def test_only_places_where_all_of_a_partys_states_are_count_as_the_runs_own():
    reference = b"fedactors state elsewhere\n{}"
    frames = {"bank": reference, "bank/worker-0": reference, "shop": reference, "shop/worker-0": FRAME}
    where = {"bank": "/own", "shop": "/home/victim", "nobody": "/etc"}
    assert proven_locations(where, frames) == {"bank": "/own"}


def test_a_place_without_the_state_is_not_written_to(tmp_path):
    reference = party_state(str(tmp_path / "own")).keep(FRAME)
    with pytest.raises(BadInput, match="is missing"):
        party_state(str(tmp_path / "victim")).begin(reference)
    assert not (tmp_path / "victim").exists()
    locations = StateLocations(make_locations({"bank": str(tmp_path / "victim")}, {}))
    locations.check(["bank/worker-0"], {"bank/worker-0": reference})
    with pytest.raises(BadInput, match="refers to no state of bank/worker-0's, but to others of its party"):
        locations.check(["bank/worker-0"], {"bank/worker-9": reference})


def test_a_checkpoint_gives_states_wherever_they_are_and_only_those_that_are_asked_for(tmp_path):
    local = party_state(str(tmp_path))
    frames = {"bank/worker-0": local.keep(FRAME), "shop": b"the shop's"}
    found = CheckpointStates(frames, {})
    assert sorted(found) == ["bank/worker-0", "shop"]
    assert "bank/worker-0" in found
    assert found["shop"] == b"the shop's"
    with pytest.raises(BadInput, match="give --checkpoint-dir bank=PLACE"):
        found["bank/worker-0"]
    assert CheckpointStates(frames, {"bank": StateLocation("bank", str(tmp_path))})["bank/worker-0"] == FRAME

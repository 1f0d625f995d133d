"""Runs whose parties keep their states themselves: what is where, resume, prediction, export, and the two steps."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.plugins import find_protocol
from fedactors.runs.folder import RunFolder
from fedactors.runs.party_states import is_reference
from fedactors.runs.recorder import FolderRecorder
from fedactors.validation import without_password

WORDS = ("pubsub-vfl", "--runtime", "simulated", "--smoke", "--quiet")


@pytest.fixture
def key(monkeypatch) -> str:
    text = base64.b64encode(os.urandom(32)).decode()
    monkeypatch.setenv("ACTIVE_KEY", text)
    return text


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def states_in(state_dir: Path) -> list[Path]:
    return sorted(path for path in state_dir.rglob("*") if path.is_file())


def go(capsys, *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    done = capsys.readouterr()
    return done.out if code == 0 else done.err


@pytest.mark.slow
def test_the_run_folder_holds_references_only_and_everything_goes_on_from_them(tmp_path, capsys, key):
    plain, state_dir, runs = tmp_path / "plain", tmp_path / "own", tmp_path / "runs"
    go(capsys, "run", *WORDS, "--out", str(plain))
    kept = ("--checkpoint-dir", f"active={state_dir}", "--checkpoint-key", "active=env:ACTIVE_KEY")
    go(capsys, "run", *WORDS, *kept, "--out", str(runs))
    first, second = RunFolder.open(only(plain)), RunFolder.open(only(runs))
    assert (first.path / "metrics/round_metrics.jsonl").read_bytes() == (
        second.path / "metrics/round_metrics.jsonl"
    ).read_bytes()
    for entry in second.manifest["checkpoints"]:
        held = second.load_checkpoint(entry["label"]).actors
        assert {name for name, frame in held.items() if is_reference(frame)} == {
            name for name in held if name.startswith("active")
        }
    second.verify()
    # as many as the folder refers to, and no more
    assert len(states_in(state_dir)) == sum(
        name.startswith("active") for entry in second.manifest["checkpoints"] for name in entry["actors"]
    )
    everything = b"".join(path.read_bytes() for path in second.path.rglob("*") if path.is_file())
    assert key.encode() not in everything
    assert base64.b64decode(key) not in everything

    data = ("--data", "breast-cancer", "--output")
    go(capsys, "predict", str(first.path), *data, str(tmp_path / "a.csv"))
    go(capsys, "predict", str(second.path), *data, str(tmp_path / "b.csv"))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    for folder, to in ((first, "a"), (second, "b")):
        go(capsys, "export", str(folder.path), "--party", "active", "--output", str(tmp_path / to))
    a, b = ({p.name: p.read_bytes() for p in (tmp_path / to / "active").glob("*.safetensors")} for to in ("a", "b"))
    assert set(a) == {"bottom.safetensors", "top.safetensors"}
    assert a == b


@pytest.mark.slow
def test_a_run_goes_on_from_states_that_were_moved(tmp_path, capsys, key):
    state_dir, moved, runs = tmp_path / "own", tmp_path / "moved", tmp_path / "runs"
    kept = ("--checkpoint-dir", f"active={state_dir}", "--checkpoint-key", "active=env:ACTIVE_KEY")
    go(capsys, "run", *WORDS, *kept, "--out", str(runs))
    whole = only(runs)
    before = states_in(state_dir)
    go(capsys, "run", "pubsub-vfl", "--resume", str(whole), "--quiet", "--out", str(tmp_path / "child"))
    assert set(before) < set(states_in(state_dir))  # the parent can be resumed again
    config = RunFolder.open(only(tmp_path / "child")).config
    assert config["options"]["checkpoint_dir"] == {"active": str(state_dir)}
    assert config["options"]["checkpoint_key"] == {"active": "env:ACTIVE_KEY"}
    shutil.move(state_dir, moved)
    resume = ("run", "pubsub-vfl", "--resume", str(whole), "--quiet", "--out", str(tmp_path / "third"))
    assert "is missing" in go(capsys, *resume, code=2)
    go(capsys, *resume, "--checkpoint-dir", f"active={moved}")
    assert RunFolder.open(only(tmp_path / "third")).manifest["status"] == "finished"


@pytest.mark.slow
def test_without_the_key_or_the_place_there_is_one_line(tmp_path, capsys, key, monkeypatch):
    kept = ("--checkpoint-dir", f"active={tmp_path / 'own'}", "--checkpoint-key", "active=env:ACTIVE_KEY")
    go(capsys, "run", *WORDS, *kept, "--out", str(tmp_path / "runs"))
    whole = only(tmp_path / "runs")
    go(
        capsys, "export", str(whole), "--party", "passive", "--output", str(tmp_path / "part")
    )  # needs nothing of active
    monkeypatch.delenv("ACTIVE_KEY")
    export = ("export", str(whole), "--party", "active", "--output", str(tmp_path / "part"))
    for words in (export, ("predict", str(whole), "--data", "breast-cancer", "--output", str(tmp_path / "p.csv"))):
        assert go(capsys, *words, code=2).splitlines() == [
            "fedactors: --checkpoint-key: active: no variable ACTIVE_KEY where active/worker-0 runs"
        ]
    wrong = ("--checkpoint-dir", f"actve={tmp_path / 'x'}")
    assert "--checkpoint-dir: 'actve' is not allowed: the parties are" in go(
        capsys, "run", *WORDS, *wrong, "--out", str(tmp_path / "none"), code=2
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("forged", [[], ["active/worker-0"], ["active/worker-9"], ["active/worker-0", "active/ps"]])
def test_a_run_folder_cannot_choose_where_a_resume_writes(forged, tmp_path, capsys):
    go(capsys, "run", *WORDS, "--out", str(tmp_path / "runs"))
    whole, victim = RunFolder.open(only(tmp_path / "runs")), tmp_path / "victim"
    victim.mkdir()
    config = whole.config
    config["options"]["checkpoint_dir"] = {"active": str(victim)}
    whole.write_json("config.json", config)
    label = whole.checkpoint_to_resume().label
    last = next(entry for entry in whole.manifest["checkpoints"] if entry["label"] == label)
    if forged:
        last["actors"] = [name for name in last["actors"] if not name.startswith("active")] + forged
    for name in forged:
        told = {"name": f"run/{name}/{'0' * 32}.state", "bytes": 3, "sha256": "0" * 64}
        data = b"fedactors state elsewhere\n" + json.dumps(told).encode()
        whole.write_bytes(f"{last['folder']}/{name}.ckpt", data)
    whole.write_manifest()
    words = ("run", "pubsub-vfl", "--resume", str(whole.path), "--quiet", "--out", str(tmp_path / "child"))
    shown = go(capsys, *words, code=2 if forged else 0)
    refused = ("fedactors: --checkpoint-dir: ", "fedactors: the checkpoint is damaged: ")
    assert shown.startswith(refused) == bool(forged)
    assert list(victim.iterdir()) == []


def test_an_address_that_a_run_folder_names_is_not_asked(tmp_path, capsys):
    """Whoever owns the store that it names could have put states there, and would be given the new ones."""
    kept = ("--checkpoint-dir", f"active={tmp_path / 'own'}")
    go(capsys, "run", *WORDS, *kept, "--out", str(tmp_path / "runs"))
    folder = RunFolder.open(only(tmp_path / "runs"))
    config = folder.config
    config["options"]["checkpoint_dir"] = {"active": "ftp://somebody.invalid/loot"}
    folder.write_json("config.json", config)
    folder.write_manifest()
    words = ("run", "pubsub-vfl", "--resume", str(folder.path), "--quiet", "--out", str(tmp_path / "child"))
    assert "give --checkpoint-dir active=PLACE" in go(capsys, *words, code=2)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "endless", "larger"])
def test_a_state_or_a_key_that_is_no_plain_file_is_one_line(tmp_path, capsys, kind):
    state_dir, key = tmp_path / "own", tmp_path / "key"
    key.write_text(base64.b64encode(os.urandom(32)).decode())
    kept = ("--checkpoint-dir", f"active={state_dir}", "--checkpoint-key", f"active=file:{key}")
    go(capsys, "run", *WORDS, *kept, "--out", str(tmp_path / "runs"))
    folder = only(tmp_path / "runs")
    for victims, said in (([key], "--checkpoint-key: active: "), (states_in(state_dir), "--checkpoint-dir: active")):
        for path in victims:
            held = path.read_bytes()
            path.unlink()
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "endless":
                path.symlink_to("/dev/zero")
            else:
                path.write_bytes(held + bytes(10_000))
        shown = go(capsys, "export", str(folder), "--party", "active", "--output", str(tmp_path / "to"), code=2)
        assert shown.startswith(f"fedactors: {said}"), shown
        for path in victims:
            if path == key:
                path.unlink()
                path.write_bytes(held)


@pytest.mark.parametrize("link", ["exported", "exported/passive", "exported/passive/part.json"])
def test_a_run_folder_does_not_lead_an_export_out_of_it(tmp_path, capsys, link):
    go(capsys, "run", *WORDS, "--out", str(tmp_path / "runs"))
    folder, victim = only(tmp_path / "runs"), tmp_path / "victim"
    victim.mkdir()
    (victim / "mine").write_text("kept")
    (folder / link).parent.mkdir(parents=True, exist_ok=True)
    (folder / link).symlink_to(victim / "mine" if link.endswith("json") else victim)
    assert "link" in go(capsys, "export", str(folder), code=2)
    assert [path.name for path in victim.iterdir()] == ["mine"]
    assert (victim / "mine").read_text() == "kept"


@pytest.mark.slow
def test_a_checkpoint_that_the_driver_cannot_finish_leaves_the_one_before_whole(tmp_path, capsys, monkeypatch):
    state_dir, saved, real = tmp_path / "own", [], FolderRecorder.save_checkpoint

    def save(self, label, actors, driver):
        saved.append(label)
        if len(saved) == 3:  # the parties have written theirs by now
            raise BadInput("--out: no space left")
        real(self, label, actors, driver)

    monkeypatch.setattr(FolderRecorder, "save_checkpoint", save)
    protocol = find_protocol("pubsub-vfl")
    states = tuple((party, str(state_dir)) for party in ("active", "passive"))
    options = RunOptions(runtime="simulated", smoke=True, quiet=True, out=str(tmp_path / "runs"), checkpoint_dir=states)
    config, options = resolve(protocol, ["num_epochs=4"], options)
    with pytest.raises(BadInput, match="no space left"):
        launch(protocol, config, options)
    assert len(saved) == 3
    monkeypatch.setattr(FolderRecorder, "save_checkpoint", real)
    cut = RunFolder.open(only(tmp_path / "runs"))
    cut.verify()
    referred = [frame for frame in cut.load_checkpoint().actors.values() if is_reference(frame)]
    assert len(states_in(state_dir)) == 2 * len(referred)  # those of the checkpoint that was none are nobody's
    go(capsys, "run", "pubsub-vfl", "--resume", str(cut.path), "--quiet", "--out", str(tmp_path / "child"))
    go(capsys, "run", *WORDS, "num_epochs=4", "--out", str(tmp_path / "whole"))
    told = [only(tmp_path / name) / "metrics/round_metrics.jsonl" for name in ("child", "whole")]
    assert told[0].read_bytes() == told[1].read_bytes()


def test_a_description_of_user_data_says_where_states_are(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    label = (x.sum(axis=1) > 0).astype(int)
    bank = "\n".join(["income,defaulted", *(f"{a},{b}" for a, b in zip(x[:, 0], label, strict=True))])
    shop = "\n".join(["orders,returned", *(f"{a},{b}" for a, b in x[:, 1:])])
    (tmp_path / "bank.csv").write_text(bank)
    (tmp_path / "shop.csv").write_text(shop)
    (tmp_path / "shop.key").write_text(base64.b64encode(os.urandom(32)).decode())
    (tmp_path / "parties.toml").write_text(
        '[task]\ntype = "binary"\n[parties.bank]\npath = "bank.csv"\nlabel = "defaulted"\n'
        'checkpoint_dir = "kept/bank"\n[parties.shop]\npath = "shop.csv"\ncheckpoint_dir = "kept/shop"\n'
        f'checkpoint_key = "file:{tmp_path / "shop.key"}"\n'
    )
    data = ("--data", str(tmp_path / "parties.toml"))
    words = ("run", "pubsub-vfl", "--runtime", "simulated", "--quiet", "num_epochs=2", "batch_size=32", *data)
    go(capsys, *words, "--out", str(tmp_path / "runs"))
    folder = RunFolder.open(only(tmp_path / "runs"))
    assert folder.config["options"]["checkpoint_dir"] == {
        "bank": str(tmp_path / "kept/bank"),
        "shop": str(tmp_path / "kept/shop"),
    }
    assert all(path.read_bytes().startswith(b"fedactors-state-clear") for path in states_in(tmp_path / "kept/bank"))
    assert all(path.read_bytes().startswith(b"fedactors-state-aes") for path in states_in(tmp_path / "kept/shop"))
    out = go(capsys, "predict", str(folder.path), *data, "--output", str(tmp_path / "p.csv"), "--format", "json")
    assert json.loads(out)["predictions"][0]["predicted"] == 120


PASSWORDS = (
    "ftp://me:hush-7@host/x",
    "ftp://me:hush-7/and@more@host/x",
    "ftp://:hush-7@host",
    "sftp://me:hush-7@host:22/runs",
    "s3://key:hush-7/@bucket/x",
    "simplecache::ftp://me:hush-7@host/x",
    "https://host/x?token=hush-7",
    "abfs://c@account/x?sig=hush-7",
)


@pytest.mark.parametrize("address", PASSWORDS)
@pytest.mark.parametrize(
    "words", [("--checkpoint-dir", "active={}"), ("--out", "{}"), ("--data", "{}"), ("--resume", "{}")]
)
def test_a_password_is_refused_unshown_and_kept_nowhere(tmp_path, capsys, address, words):
    words = tuple(word.format(address) for word in words)
    out = () if "--out" in words else ("--out", str(tmp_path))
    for command in ("run", "submit"):
        more = WORDS if command == "run" else ("pubsub-vfl", "--address", "http://127.0.0.1:1")
        line = go(capsys, command, *more, *out, *words, code=2)
        assert f"{words[0]}" in line
        assert "password" in line
        assert "hush-7" not in line
    assert list(tmp_path.rglob("*")) == []


def test_a_password_in_a_description_or_a_setting_is_refused(tmp_path, capsys):
    with pytest.raises(BadInput, match=r"model: a password .* \(ftp://\.\.\.\)") as caught:
        build(find_protocol("horizontal").Config, {"model": PASSWORDS[0]})
    assert "hush-7" not in str(caught.value)
    for command in ("report", "fetch-none"):
        assert "hush-7" not in go(capsys, command, PASSWORDS[0], code=2)


@pytest.mark.parametrize(
    "address", ["ftp://me@host/x", "ftp://host:21/a@b", "memory://runs", "s3://bucket/a:b", "a:b@c"]
)
def test_an_address_without_a_password_is_none(address):
    assert without_password(address, "--out") == address

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import fsspec
import pytest

from fedactors.errors import BadInput, Stopped
from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.runs.compare import compare, load_runs
from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import Summary, read_rounds
from tests.tiny_parties import PROTOCOL


@pytest.fixture(params=["memory", "file"])
def out(request, tmp_path):
    yield "memory://runs" if request.param == "memory" else f"file://{tmp_path}/runs"
    files = fsspec.filesystem("memory")
    if files.exists("/runs"):
        files.rm("/runs", recursive=True)


def go(out: str, *words: str, **flags: object) -> Summary:
    options = RunOptions(out=out, quiet=True, runtime="simulated", **flags)  # type: ignore[arg-type]
    config, options = resolve(PROTOCOL, words, options)
    return launch(PROTOCOL, config, options)[0]


def test_a_run_at_an_address_is_a_whole_run_folder(out, tmp_path):
    there, here = go(out), go(str(tmp_path / "here"))
    assert there.run.startswith(out)
    folder = RunFolder.open(there.run)
    folder.verify()
    assert folder.manifest["status"] == "finished"
    assert read_rounds(folder) == read_rounds(RunFolder.open(here.run))
    assert folder.load_checkpoint().actors == RunFolder.open(here.run).load_checkpoint().actors


def test_runs_of_one_second_get_names_of_their_own(out):
    first, second = go(out), go(out)
    assert first.run != second.run
    assert len(compare(load_runs([first.run, second.run]))["groups"]) == 2


@pytest.mark.slow
def test_a_stopped_run_goes_on_from_its_address(out):
    whole = go(out, seed=3)
    with pytest.raises(Stopped) as caught:
        go(out, "stop_after=2", seed=3)
    (note,) = (note for note in caught.value.__notes__ if "resume" in note)
    stopped = note.split("'")[1] if "load_run(" in note else note.rpartition(" ")[2]
    assert RunFolder.open(stopped).manifest["status"] == "stopped"
    resumed = go(out, resume=stopped)
    assert (resumed.metrics, resumed.bytes) == (whole.metrics, whole.bytes)


def test_checkpoints_that_are_no_longer_kept_are_removed_there(out):
    folder = RunFolder.open(go(out, "num_rounds=9").run)
    files, root = fsspec.core.url_to_fs(folder.location)
    listed = {name for name in folder.manifest["files"] if name.startswith("checkpoints/")}
    assert listed
    assert {path.partition("checkpoints/")[2] for path in files.find(f"{root}/checkpoints")} == {
        name.removeprefix("checkpoints/") for name in listed
    }


def test_nothing_stays_on_this_machine(out, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    go(out)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(
    ("address", "said"),
    [("no-such-kind://x", "no-such-kind"), ("memory://nothing/here", "no such run folder")],
)
def test_addresses_that_lead_nowhere_are_named(address, said):
    with pytest.raises(BadInput, match=said):
        RunFolder.open(address)


def test_an_address_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(BadInput, match="taken"):
        go(f"file://{tmp_path}/taken")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["taken"]


@pytest.fixture
def store():
    run = go("memory://runs").run
    files = fsspec.filesystem("memory")
    yield run, files, "/" + run.removeprefix("memory://").strip("/")
    files.rm("/runs", recursive=True)


def rewritten(store, change) -> str:
    """Let the store's manifest say something else."""
    run, files, root = store
    manifest = json.loads(files.cat_file(f"{root}/manifest.json"))
    change(manifest["files"])
    files.pipe_file(f"{root}/manifest.json", json.dumps(manifest).encode())
    return run


@pytest.mark.parametrize("key", ["../outside.txt", "checkpoints/../../outside.txt", "./outside.txt", "/outside.txt"])
def test_a_store_cannot_write_outside_of_the_folder(store, key):
    entry = {"bytes": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}
    store[1].pipe_file(f"{store[2]}/{key}", b"evil")
    before = set(Path(tempfile.gettempdir()).glob("*outside.txt"))
    with pytest.raises(BadInput, match="it is outside the run folder"):
        RunFolder.open(rewritten(store, lambda files: files.update({key: entry})))
    assert set(Path(tempfile.gettempdir()).glob("*outside.txt")) == before


def test_a_store_sends_no_more_than_the_manifest_says(store, monkeypatch):
    run, files, root = store
    files.pipe_file(f"{root}/checkpoints/ballast", bytes(10_000_000))
    read: list[str] = []
    original = type(files).open

    def opened(self, path, *args, **kwargs):
        read.append(path)
        return original(self, path, *args, **kwargs)

    monkeypatch.setattr(type(files), "open", opened)
    RunFolder.open(run).verify()
    assert not [path for path in read if "ballast" in path]
    files.pipe_file(f"{root}/config.json", bytes(10_000_000))
    with pytest.raises(BadInput, match=r"config.json is damaged \(more than \d+ bytes\)"):
        RunFolder.open(run)
    files.pipe_file(f"{root}/manifest.json", bytes(20_000_000))
    with pytest.raises(BadInput, match=r"manifest.json is damaged \(more than \d+ bytes\)"):
        RunFolder.open(run)


def test_a_run_folder_that_does_not_fit_is_not_copied(store):
    with pytest.raises(BadInput, match="bytes do not fit on this machine's disk"):
        RunFolder.open(rewritten(store, lambda files: files["config.json"].update(bytes=10**15)))

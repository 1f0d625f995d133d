from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fedactors.errors import BadInput
from fedactors.runs import folder as liveness
from fedactors.runs.folder import MANIFEST, RunFolder
from fedactors.runs.metrics import read_summary
from fedactors.runs.storage import LineFile, disk_errors, local_path, write_atomic

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make(out: Path, **kwargs: object) -> RunFolder:
    return RunFolder.create(out, "pubsub-vfl", 7, {"config": {"batch_size": 8}}, now=NOW, **kwargs)  # type: ignore[arg-type]


def test_name_holds_utc_time_scenario_and_seed_and_is_never_used_twice(tmp_path):
    names = [make(tmp_path).path.name for _ in range(3)]
    base = "20260102T030405Z-pubsub-vfl-7"
    assert names == [base, f"{base}-2", f"{base}-3"]


def test_new_folder_verifies_and_holds_config_environment_and_schema(tmp_path):
    folder = RunFolder.open(make(tmp_path).path)
    folder.verify()
    assert folder.config == {"config": {"batch_size": 8}}
    assert folder.manifest["schema_version"] == 1
    assert folder.manifest["status"] == "running"
    assert folder.environment["packages"]["numpy"]


def test_environment_holds_no_variable_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "do-not-tell-9361")
    folder = make(tmp_path)
    assert all(b"do-not-tell-9361" not in file.read_bytes() for file in folder.path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / MANIFEST).unlink(), "manifest.json is missing"),
        (lambda p: (p / MANIFEST).write_text("{"), "not valid JSON"),
        (lambda p: (p / MANIFEST).write_text('{"kind": "other"}'), "another kind"),
        (lambda p: (p / MANIFEST).write_text('{"kind": "fedactors-run", "schema_version": 9}'), "schema_version 9"),
        (lambda p: (p / MANIFEST).write_text('{"kind": "fedactors-run", "schema_version": 1}'), "damaged"),
        (lambda p: (p / "config.json").write_text("{}"), "config.json is damaged"),
        (lambda p: (p / "config.json").unlink(), "config.json is missing"),
    ],
)
def test_foreign_or_damaged_folder_is_bad_input_that_names_what_is_wrong(tmp_path, damage, message):
    path = make(tmp_path).path
    damage(path)
    with pytest.raises(BadInput, match=message):
        RunFolder.open(path).verify()


def test_manifest_cannot_point_outside_the_folder(tmp_path):
    folder = make(tmp_path)
    manifest = json.loads((folder.path / MANIFEST).read_text())
    manifest["files"]["../secret"] = {"bytes": 0, "sha256": ""}
    (folder.path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match="outside the run folder"):
        RunFolder.open(folder.path).verify()


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_does_not_lead_outside_the_folder(tmp_path, is_folder):
    """Neither is what lies elsewhere read as the run's, nor is anything written there."""
    folder, secret = make(tmp_path), tmp_path / "secret"
    secret.mkdir()
    (secret / "key.json").write_text('{"key": "of another run"}')
    if is_folder:
        (folder.path / "notes").symlink_to(secret, target_is_directory=True)
        name = "notes/key.json"
    else:
        (folder.path / "key.json").symlink_to(secret / "key.json")
        name = "key.json"
    with pytest.raises(BadInput, match=f"'{name}' is a link to somewhere outside the run folder"):
        folder.read_json(name)
    with pytest.raises(BadInput, match="is a link to somewhere outside the run folder"):
        folder.write_json(name, {})
    with pytest.raises(BadInput, match="is a link to somewhere outside the run folder"):
        folder.stream(name)
    assert (secret / "key.json").read_text() == '{"key": "of another run"}'
    folder.write_json("alias.json", {})
    (folder.path / "alias.json").unlink()
    (folder.path / "alias.json").symlink_to(folder.path / "config.json")  # within the folder it may lead where it will
    assert folder.read_json("alias.json") == folder.read_json("config.json")


def test_checkpoint_round_trip_one_file_per_actor_in_its_partys_folder(tmp_path):
    folder = make(tmp_path)
    folder.save_checkpoint("round-1", {"bank": b"1", "bank/worker-0": b"2"}, b"driver")
    again = RunFolder.open(folder.path)
    again.verify()
    loaded = again.load_checkpoint()
    assert (loaded.label, loaded.actors, loaded.driver) == ("round-1", {"bank": b"1", "bank/worker-0": b"2"}, b"driver")
    assert (folder.path / "checkpoints/round-1/bank/worker-0.ckpt").read_bytes() == b"2"


def test_old_checkpoints_go_but_best_stays(tmp_path):
    folder = make(tmp_path)
    for label in ("best", "r1", "r2", "r3", "r4"):
        folder.save_checkpoint(label, {"bank": label.encode()}, b"", keep=2)
    assert sorted(p.name for p in (folder.path / "checkpoints").iterdir()) == ["best", "r3", "r4"]
    again = RunFolder.open(folder.path)
    again.verify()
    assert again.load_checkpoint().label == "r4"
    assert again.load_checkpoint("best").actors == {"bank": b"best"}
    with pytest.raises(BadInput, match=r"no checkpoint 'r1' \(there are: best, r3, r4\)"):
        again.load_checkpoint("r1")


def test_same_label_again_replaces(tmp_path):
    folder = make(tmp_path)
    folder.save_checkpoint("best", {"bank": b"old", "shop": b"old"}, b"")
    folder.save_checkpoint("best", {"bank": b"new"}, b"")
    again = RunFolder.open(folder.path)
    again.verify()
    assert again.load_checkpoint("best").actors == {"bank": b"new"}
    assert len(list((folder.path / "checkpoints").iterdir())) == 1


def test_damaged_checkpoint_is_named(tmp_path):
    folder = make(tmp_path)
    folder.save_checkpoint("r1", {"bank": b"state"}, b"")
    (folder.path / "checkpoints/r1/bank.ckpt").write_bytes(b"stale")
    with pytest.raises(BadInput, match=r"checkpoints/r1/bank\.ckpt is damaged"):
        RunFolder.open(folder.path).load_checkpoint()


def test_no_checkpoint_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="holds no checkpoint"):
        make(tmp_path).load_checkpoint()


@pytest.mark.parametrize("actor", ["../bank", "/bank", "bank/..", "", "_driver"])
def test_actor_names_that_are_no_file_names_are_refused(tmp_path, actor):
    with pytest.raises(ValueError, match="cannot be a file name"):
        make(tmp_path).save_checkpoint("r1", {actor: b""}, b"")


def test_line_files_may_grow_after_the_manifest_but_not_change(tmp_path):
    folder = make(tmp_path)
    lines = folder.stream("events.jsonl")
    lines.append("one")
    folder.write_manifest()
    lines.append("two")
    lines.flush()
    RunFolder.open(folder.path).verify()
    (folder.path / "events.jsonl").write_text("One\ntwo\n")
    with pytest.raises(BadInput, match=r"events\.jsonl is damaged"):
        RunFolder.open(folder.path).verify()


@contextlib.contextmanager
def file_limit(size: int):
    """Let no file grow beyond `size`; pytest itself may write to one, so only while something is tried."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_while_making_the_folder_leaves_nothing(tmp_path):
    with file_limit(10), pytest.raises(BadInput, match="no space left"):
        make(tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_full_disk_at_a_checkpoint_keeps_the_one_before(tmp_path):
    folder = make(tmp_path)
    folder.save_checkpoint("r1", {"bank": b"small"}, b"")
    with file_limit(20_000), pytest.raises(BadInput, match="no space left"):
        folder.save_checkpoint("r2", {"bank": b"x" * 30_000}, b"")
    again = RunFolder.open(folder.path)
    again.verify()
    assert again.load_checkpoint().label == "r1"
    assert [p.name for p in (folder.path / "checkpoints").iterdir()] == ["r1"]


def test_full_disk_cuts_a_line_file_back_to_its_last_whole_line(tmp_path):
    lines = LineFile(tmp_path / "lines")
    lines.append("a" * 50)
    lines.flush()
    lines.append("b" * 50)
    with file_limit(80), pytest.raises(BadInput, match="no space left"):
        lines.flush()
    lines.close()
    assert (tmp_path / "lines").read_text() == "a" * 50 + "\n"


def test_atomic_write_replaces_whole_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with file_limit(2), pytest.raises(BadInput):
        write_atomic(path, b"newer")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_out_that_is_a_file_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--out: cannot write"):
        make(tmp_path / "file" / "runs")


def test_address_of_another_file_system_is_refused_in_one_place():
    with pytest.raises(BadInput, match="not a local path"):
        local_path("s3://bucket/runs")


def test_every_kind_of_full_is_told_as_such(tmp_path):
    for code in (errno.ENOSPC, errno.EDQUOT):
        with pytest.raises(BadInput, match="no space left"), disk_errors(tmp_path):
            raise OSError(code, os.strerror(code))


def test_a_file_that_is_larger_than_listed_is_not_read(tmp_path, monkeypatch):
    made = RunFolder.create(tmp_path, "x", 0, {})
    made.save_checkpoint("r1", {"bank": b"state"}, b"driver")
    made.finish("finished")
    reads: list[str] = []
    real = Path.read_bytes

    def noted(path: Path) -> bytes:
        reads.append(path.name)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    os.truncate(made.path / "checkpoints/r1/bank.ckpt", 2**40)
    folder = RunFolder.open(made.path)
    with pytest.raises(BadInput, match=r"bank\.ckpt is damaged"):
        folder.verify()
    with pytest.raises(BadInput, match=r"bank\.ckpt is damaged"):
        folder.load_checkpoint()
    os.truncate(made.path / "config.json", 2**40)
    with pytest.raises(BadInput, match=r"config\.json is damaged \(it has more than"):
        _ = folder.config
    os.truncate(made.path / "manifest.json", 2**40)
    with pytest.raises(BadInput, match=r"manifest\.json is damaged \(it has more than"):
        RunFolder.open(made.path)
    for entry in made.manifest["files"].values():  # a file that is mostly holes, and a manifest that says so
        entry["bytes"] = 2**40
    with pytest.raises(BadInput, match=r"bank\.ckpt is damaged \(it has more than \d+ bytes\)"):
        made.load_checkpoint()
    assert "bank.ckpt" not in reads
    assert "config.json" not in reads


@pytest.fixture
def writer(tmp_path):
    """A process that writes a run folder, and the folder."""
    child = os.fork()
    if child == 0:
        RunFolder.create(tmp_path, "x", 0, {})
        while True:
            signal.pause()
    until = time.monotonic() + 20
    while not (made := [path.parent for path in tmp_path.glob("*/manifest.json")]) and time.monotonic() < until:
        time.sleep(0.01)
    yield child, made[0]
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def kill(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_run_that_was_killed_ended_without_a_word(writer):
    child, path = writer
    assert RunFolder.open(path).status == "running"
    kill(child)
    folder = RunFolder.open(path)
    assert (folder.manifest["status"], folder.status) == ("running", "ended without a word")
    with pytest.raises(BadInput, match=r"no summary \(status: ended without a word\)"):
        read_summary(folder)
    with pytest.raises(BadInput, match="this run ended without a word: resume it"):
        folder.check_countable()


@pytest.mark.parametrize(
    ("changed", "silence", "status"),
    [
        ({"start": 1}, 0, "ended without a word"),  # another process has the number by now
        ({"boot": "other"}, 0, "ended without a word"),
        ({"namespace": "other"}, 0, "running"),
        ({"namespace": "other"}, 200, "running"),
        ({"namespace": "other"}, 400, "ended without a word"),
        ({}, 400, "running"),  # it is here, and lives
    ],
)
def test_who_lives_is_known_here_by_number_and_start_and_elsewhere_by_signs_of_life(tmp_path, changed, silence, status):
    folder = RunFolder.create(tmp_path, "x", 0, {})
    folder.manifest["process"] |= changed
    folder.write_manifest()
    at = time.time() - silence
    os.utime(folder.path / "manifest.json", (at, at))
    assert RunFolder.open(folder.path).status == status


def test_the_manifest_is_touched_until_the_run_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.01)
    folder = RunFolder.create(tmp_path, "x", 0, {})
    os.utime(folder.path / "manifest.json", (1, 1))
    until = time.monotonic() + 20
    while (folder.path / "manifest.json").stat().st_mtime < 100 and time.monotonic() < until:
        time.sleep(0.01)
    assert RunFolder.open(folder.path).status == "running"
    assert (folder.path / "manifest.json").stat().st_mtime > 100
    folder.finish("finished")
    ended = RunFolder.open(folder.path)
    assert (ended.status, "process" in ended.manifest) == ("finished", False)

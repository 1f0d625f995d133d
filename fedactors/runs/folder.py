"""The folder of one run: ``runs/<UTC time>-<scenario>-<seed>/``, never overwritten, verified when opened again.

    manifest.json             kind, schema_version, status, parent, and size + sha256 of every file below
    config.json               the resolved configuration: scenario, protocol, runtime, seed, data, config
    environment.json          versions and host facts
    metrics/round_metrics.jsonl, metrics/summary.json
    events.jsonl              spans and the marks of rounds
    privacy.jsonl             what was released, with which clipping, noise and budget
    ledger.parquet            every message that left a party (ledger.arrows while the run lasts)
    checkpoints/<label>/<actor>.ckpt    one file an actor, in a folder of its party; ``_driver.ckpt`` is the driver's
    predictions.jsonl         what predictions with the model have released, as lines of privacy.jsonl
    code/DIGEST/              source files that the run brought to other sites; their folder's name proves them
    audit.json                what `fedactors audit` found by replays and attacks, if it was asked to

No file holds a secret: no variable of the environment, no password, no command line. A file that the manifest does not
list is not read. Nothing that a command writes for its user goes into the record of a run.

The manifest names the process that writes it, and its time of change is set every `BEAT_SECONDS`. On the same host the
process is looked for, by number and start; elsewhere it is gone after `HEARTBEAT_TIMEOUT` of silence.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import platform
import re
import shutil
import threading
import time
import weakref
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fedactors.actors.context import ACTOR_NAME
from fedactors.errors import BadInput
from fedactors.runs import schemas
from fedactors.runs.schemas import parse
from fedactors.runs.storage import (
    HALF_OF_MEMORY,
    PRIVATE_FILE,
    LineFile,
    Mirror,
    disk_errors,
    entry_of,
    folder_of_copies,
    free_mirror,
    is_as_listed,
    is_remote,
    json_bytes,
    local_path,
    make_unique,
    process_namespace,
    read_plain,
    sha256_of,
    start_of,
    sync_folder,
    write_atomic,
    write_synced,
)
from fedactors.user_code import files_of, look_in
from fedactors.validation import LARGEST_FILE, shown

SCHEMA_VERSION = 1
KIND = "fedactors-run"
MANIFEST = "manifest.json"
CONFIG = "config.json"
CODE = "code"
ENVIRONMENT = "environment.json"
ROUND_METRICS = "metrics/round_metrics.jsonl"
SUMMARY = "metrics/summary.json"
EVENTS = "events.jsonl"
PRIVACY = "privacy.jsonl"
PREDICTIONS = "predictions.jsonl"
"""What predictions with the run's model have released, as lines of the privacy ledger."""
AUDIT = "audit.json"
"""What `fedactors audit` found of an ended run."""
_RECORD = frozenset(
    {
        *(MANIFEST, CONFIG, ENVIRONMENT, EVENTS, PRIVACY, PREDICTIONS, AUDIT),
        *("ledger.parquet", "ledger.arrows", "error.txt", "metrics", "checkpoints"),
    }
)
"""What lies at the top of a run folder."""
DRIVER = "_driver"
BEST = "best"
FINAL = "final"
"""Label of the checkpoint that ends a run."""
WITHOUT_A_WORD = "ended without a word"
"""What became of a run whose process is gone, and that never said so."""
BEAT_SECONDS = 30.0
HEARTBEAT_TIMEOUT = 300.0
_PACKAGES = (
    *("fedactors", "ray", "torch", "numpy", "scipy", "scikit-learn", "networkx", "opacus", "pyarrow", "pydantic"),
    "duckdb",
)

_log = logging.getLogger(__name__)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One checkpoint: opaque bytes per actor and for the driver, and how far the run's line files had come."""

    label: str
    actors: Mapping[str, bytes]
    driver: bytes
    marks: Mapping[str, int]
    folder: str = ""
    """Where it lies, as a user finds it."""


class RunFolder:
    """A run folder opened for writing (`create`) or for reading (`open`)."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest
        self._streams: dict[str, LineFile] = {}
        self._mirror: Mirror | None = None
        self._heart: Heartbeat | None = None

    @classmethod
    def create(
        cls,
        out: str | Path,
        scenario: str,
        seed: int,
        config: Mapping[str, Any],
        *,
        now: datetime | None = None,
        parent: RunFolder | None = None,
    ) -> RunFolder:
        """Make a new folder under `out` and write config, environment and manifest.

        Args:
            out: parent of run folders; made if it does not exist.
            scenario: name of the protocol or of the scenario script.
            seed: seed of the run.
            config: JSON-ready resolved configuration.
            now: time for the name; the present by default.
            parent: the run that this one resumes.

        Raises:
            BadInput: `out` cannot be written or the disk is full; nothing is left behind.
        """
        name = f"{(now or datetime.now(UTC)):%Y%m%dT%H%M%SZ}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', scenario)}-{seed}"
        mirror = free_mirror(str(out), name) if is_remote(out) else None
        root = folder_of_copies() if mirror else apart_from_records(local_path(out), "--out", wholly=True)
        with disk_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            path = make_unique(root, mirror.address.rpartition("/")[2] if mirror else name)
        manifest = {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "status": "running",
            "parent": None if parent is None else parent.path.name,
            "files": {},
            "checkpoints": [],
            "process": this_process(),
        }
        folder = cls(path, manifest)
        folder._mirror = mirror
        try:
            folder.write_json(CONFIG, dict(config))
            folder.write_json(ENVIRONMENT, describe_environment())
            folder.write_manifest()
        except BaseException:
            folder.discard()
            raise
        folder._heart = Heartbeat(folder.path / MANIFEST)
        weakref.finalize(folder, folder._heart.end)
        return folder

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open an existing folder and check that it is a run folder this version can read.

        Raises:
            BadInput: not a folder, not a run folder, damaged manifest, or a newer schema.
        """
        if not is_remote(path):
            return cls._open(local_path(path, "run folder"))
        mirror = Mirror(str(path))
        made = cls._open(_pulled(mirror))
        made._mirror = mirror
        weakref.finalize(made, shutil.rmtree, made.path.parent, True)
        return made

    @classmethod
    def _open(cls, folder: Path) -> RunFolder:
        if not folder.is_dir():
            raise BadInput(f"{folder}: no such run folder")
        if not (folder / MANIFEST).is_file():
            raise BadInput(f"{folder}: not a run folder ({MANIFEST} is missing)")
        try:
            data = read_plain(folder / MANIFEST, LARGEST_FILE)
            found = json.loads(data)
        except (ValueError, OSError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else "not valid JSON"
            raise BadInput(f"{folder}: {MANIFEST} is damaged ({why})") from None
        if not isinstance(found, dict) or found.get("kind") != KIND:
            raise BadInput(f"{folder}: not a run folder of fedactors ({MANIFEST} has another kind)")
        if found.get("schema_version") != SCHEMA_VERSION:
            raise BadInput(
                f"{folder}: schema_version {shown(found.get('schema_version'))} is not allowed: "
                f"this version of fedactors reads {SCHEMA_VERSION}"
            )
        if (folder / CODE).is_dir():
            look_in(folder / CODE)
        return cls(folder, parse(schemas.Manifest, data, f"{folder}: {MANIFEST}"))

    def keep_code(self, digest: str) -> None:
        """Keep the source files of a run between sites, for exports and audits of it."""
        for name, content in files_of(digest).items():  # listed, so that a store has them too
            self.write_bytes(f"{CODE}/{digest}/{name}", content)

    @property
    def location(self) -> str:
        """Where a user finds the run folder: its path, or its address."""
        return str(self.path) if self._mirror is None else self._mirror.address

    @property
    def status(self) -> str:
        """What became of the run: ``running``, ``finished``, ``stopped``, ``failed``, or `WITHOUT_A_WORD`."""
        status, process = str(self.manifest["status"]), self.manifest.get("process")
        if status != "running" or process is None or self._heart is not None:
            return status
        silence = time.time() - (self.path / MANIFEST).stat().st_mtime
        return WITHOUT_A_WORD if is_gone(process, silence) else status

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration of the run."""
        return self.read_json(CONFIG, schemas.Config)

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and facts about the host."""
        return self.read_json(ENVIRONMENT, schemas.Environment)

    def listed(self, name: str) -> Path | None:
        """Return the path of a file that the manifest lists, else None: nothing else is checked, or read."""
        path = self.inside(name)
        if not path.is_file():
            return None
        if name in self.manifest["files"]:
            return path
        _log.warning("%s: %s is not read, since %s does not list it", self.path, name, MANIFEST)
        return None

    def verify(self, names: Container[str] | None = None) -> None:
        """Check every file of the manifest, or these of them, against its size and sha256.

        Raises:
            BadInput: names the first file that is missing or differs.
        """
        for name, entry in sorted(self.manifest["files"].items()):
            if names is not None and name not in names:
                continue
            path = self.inside(name)
            if not path.is_file():
                raise BadInput(f"{self.path}: {name} is missing")
            if not is_as_listed(path, entry):
                raise BadInput(f"{self.path}: {name} is damaged (it differs from {MANIFEST})")

    def read_json(self, name: str, kind: Any = schemas.Tree) -> dict[str, Any]:
        """Read the JSON object in the file `name` of this folder, by its schema."""
        if self.listed(name) is None:
            raise BadInput(f"{self.path}: {name} is missing, or {MANIFEST} does not list it")
        return dict(parse(kind, self._plain(name, LARGEST_FILE), f"{self.path}: {name}"))

    def _plain(self, name: str, most: int) -> bytes:
        try:
            return read_plain(self.inside(name), most)
        except OSError as error:
            raise BadInput(f"{self.path}: {name} is damaged ({error.strerror})") from None

    def write_bytes(self, name: str, data: bytes) -> Path:
        """Write one file atomically and note it in the manifest (which `write_manifest` then writes)."""
        path = self.inside(name)
        write_atomic(path, data, mode=PRIVATE_FILE)
        self.manifest["files"][name] = entry_of(data)
        return path

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        """Write `value` as JSON to the file `name`."""
        return self.write_bytes(name, json_bytes(value))

    def adopt(self, name: str) -> None:
        """Note in the manifest a file that was written by other means (and renamed into place)."""
        path = self.inside(name)
        path.chmod(PRIVATE_FILE)
        size = path.stat().st_size
        self.manifest["files"][name] = {"bytes": size, "sha256": sha256_of(path, size)}

    def stream(self, name: str, initial: bytes = b"") -> LineFile:
        """Open the append-only line file `name`, which starts with `initial`."""
        self._streams[name] = LineFile(self.inside(name), initial)
        return self._streams[name]

    def end_stream(self, name: str) -> None:
        """Close a file of `stream` whose content is kept in another one by now, and remove it."""
        self._streams.pop(name).abandon()
        self.manifest["files"].pop(name, None)
        self.write_manifest()  # a file goes only after a manifest that no longer names it is on disk
        self.inside(name).unlink(missing_ok=True)

    def reached(self) -> dict[str, int]:
        """Return how many bytes each line file has."""
        for stream in self._streams.values():
            stream.flush()
        return {name: stream.size for name, stream in self._streams.items()}

    def write_manifest(self) -> None:
        """Write the manifest; line files still open are covered up to their present end."""
        for name, stream in self._streams.items():
            stream.sync()
            self.manifest["files"][name] = {"bytes": stream.size, "sha256": stream.sha256, "grows": True}
        write_atomic(self.path / MANIFEST, json_bytes(self.manifest), mode=PRIVATE_FILE)
        if self._mirror is not None:
            self._mirror.push(self.path, self.manifest["files"], MANIFEST)

    def save_checkpoint(
        self,
        label: str,
        actors: Mapping[str, bytes],
        driver: bytes,
        *,
        keep: int = 3,
        marks: Mapping[str, int] | None = None,
    ) -> None:
        """Write a checkpoint as one folder that appears at once, then the manifest.

        Args:
            label: name of the checkpoint; one of the same name is replaced.
            actors: opaque state per actor name (``bank``, ``bank/worker-0``).
            driver: opaque state of the driver.
            keep: how many are kept besides the one called ``best``; older ones are removed.
            marks: positions to keep beside, or instead of, those of the line files.
        """
        if not _LABEL.fullmatch(label):
            raise ValueError(f"checkpoint label {label!r} must be letters, digits, '.', '_' and '-'")
        for actor in actors:
            if not ACTOR_NAME.fullmatch(actor):
                raise ValueError(f"actor name {actor!r} cannot be a file name")
        prefix = self._free_checkpoint(label)
        final, temporary = self.path / prefix, self.path / "checkpoints" / f".{label}.tmp"
        entries = {}
        with disk_errors(final):
            shutil.rmtree(temporary, ignore_errors=True)
            try:
                for actor, data in [*actors.items(), (DRIVER, driver)]:
                    write_synced(temporary / f"{actor}.ckpt", data)
                    entries[f"{prefix}/{actor}.ckpt"] = entry_of(data)
                temporary.rename(final)
                sync_folder(final.parent)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
        for stream in self._streams.values():
            stream.sync()
        reached = self.reached() | dict(marks or {})
        kept = [entry for entry in self.manifest["checkpoints"] if entry["label"] != label]
        kept.append({"label": label, "folder": prefix, "actors": sorted(actors), "marks": reached})
        ordinary = [entry["label"] for entry in kept if entry["label"] != BEST]
        kept = [entry for entry in kept if entry["label"] == BEST or entry["label"] in ordinary[-keep:]]
        self._replace_checkpoints(kept, entries)

    def relabel_checkpoint(self, label: str, to: str) -> None:
        """Give the checkpoint `label` the label `to`; one that had it goes, and the order stays."""
        entry = next(one for one in self.manifest["checkpoints"] if one["label"] == label)
        kept = [one for one in self.manifest["checkpoints"] if one["label"] != to]
        self._replace_checkpoints([{**one, "label": to} if one is entry else one for one in kept], {})

    def _replace_checkpoints(self, kept: list[dict[str, Any]], files: Mapping[str, Any]) -> None:
        """Write a manifest with these checkpoints and further files, and remove what it no longer names."""
        folders = [entry["folder"] for entry in kept]
        gone = [entry["folder"] for entry in self.manifest["checkpoints"] if entry["folder"] not in folders]
        files = self.manifest["files"] | files
        self.manifest["files"] = {n: e for n, e in files.items() if not n.startswith(tuple(f"{g}/" for g in gone))}
        self.manifest["checkpoints"] = kept
        self.write_manifest()  # before files go that the one on disk names
        for folder in gone:
            shutil.rmtree(self.path / folder, ignore_errors=True)

    def load_checkpoint(self, label: str | None = None) -> Checkpoint:
        """Read the checkpoint `label`, or the newest one.

        Raises:
            BadInput: there is none, or one of its files is damaged.
        """
        known = {entry["label"]: entry for entry in self.manifest["checkpoints"]}
        if not known:
            raise BadInput(f"{self.path}: holds no checkpoint to resume from")
        if label is None:
            label = next(reversed(known))
        if label not in known:
            raise BadInput(f"{self.path}: no checkpoint {label!r} (there are: {', '.join(known)})")
        entry = known[label]
        states = {actor: self._checked(f"{entry['folder']}/{actor}.ckpt") for actor in [*entry["actors"], DRIVER]}
        driver = states.pop(DRIVER)
        where = f"{self.location}/{entry['folder']}"
        return Checkpoint(label=label, actors=states, driver=driver, marks=entry["marks"], folder=where)

    def checkpoint_to_resume(self) -> Checkpoint:
        """Read the newest checkpoint of a round's end; another kind only if there is no such one.

        By the final one the run has drawn its conclusions: what that sent would be sent, and counted, again.

        Raises:
            BadInput: there is none, one of its files is damaged, or another version of fedactors wrote it.
        """
        self.check_version()
        labels = [entry["label"] for entry in self.manifest["checkpoints"]]
        of_rounds = [label for label in labels if label not in (BEST, FINAL)]
        return self.load_checkpoint(of_rounds[-1] if of_rounds else None)

    def check_version(self) -> None:
        """Check that this version of fedactors wrote the run's checkpoints: what a state holds differs among versions.

        Raises:
            BadInput: names both versions.
        """
        before, here = self.environment["packages"].get("fedactors"), _version("fedactors")
        if before is not None and here is not None and before != here:
            raise BadInput(
                f"{self.location}: its checkpoints are of fedactors {before}, this is {here}: "
                "resume it with that version, or begin a new run"
            )

    def check_countable(self) -> None:
        """Check that `count` will be possible, before anything is released.

        Raises:
            BadInput: the run has not ended, or its folder cannot be written.
        """
        cannot = f"{self.location}: what a prediction releases under noise or masks is counted in the run's folder, "
        if self.status == "running":
            raise BadInput(f"{cannot}and this run has not ended: wait for its end")
        if self.status == WITHOUT_A_WORD:
            raise BadInput(f"{cannot}and this run {WITHOUT_A_WORD}: resume it")
        if not os.access(self.path, os.W_OK):
            raise BadInput(f"{cannot}which cannot be written: make it writable")

    def count(self, lines: Sequence[str]) -> None:
        """Append lines about a prediction of this ended run; several predictions at once lose none."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self.manifest = RunFolder._open(self.path).manifest
            before = self._checked(PREDICTIONS) if PREDICTIONS in self.manifest["files"] else b""
            self.write_bytes(PREDICTIONS, before + "".join(f"{line}\n" for line in lines).encode())
            self.write_manifest()
        finally:
            os.close(handle)

    def finish(self, status: str) -> None:
        """Close the line files and write the manifest with `status`: finished, stopped or failed."""
        for name, stream in self._streams.items():
            stream.close()
            self.manifest["files"][name] = {"bytes": stream.size, "sha256": stream.sha256}
        self._streams.clear()
        self._end_heart()
        self.manifest.pop("process", None)
        self.manifest["status"] = status
        self.write_manifest()
        if self._mirror is not None:
            shutil.rmtree(self.path.parent, ignore_errors=True)

    def discard(self) -> None:
        """Remove a folder of a run that never began."""
        self.release()
        shutil.rmtree(self.path, ignore_errors=True)
        if self._mirror is not None:
            self._mirror.remove_all()

    def release(self) -> None:
        """Close the line files without writing anything more."""
        self._end_heart()
        for stream in self._streams.values():
            stream.abandon()
        self._streams.clear()

    def _end_heart(self) -> None:
        if self._heart is not None:
            self._heart.end()
            self._heart = None

    def _free_checkpoint(self, label: str) -> str:
        for number in range(1, 10_000):
            name = f"checkpoints/{label}" if number == 1 else f"checkpoints/{label}~{number}"
            if not (self.path / name).exists():
                return name
        raise BadInput(f"{self.path}: too many checkpoints called {label!r}")

    def _checked(self, name: str) -> bytes:
        entry = self.manifest["files"].get(name)
        if entry is None or not self.inside(name).is_file():
            raise BadInput(f"{self.path}: {name} is missing")
        data = self._plain(name, min(entry["bytes"], HALF_OF_MEMORY))
        if entry_of(data) != entry:
            raise BadInput(f"{self.path}: {name} is damaged (it differs from {MANIFEST})")
        return data

    def inside(self, name: str) -> Path:
        """Return the path of a file of the folder; one that leads out of it is `BadInput`."""
        path = self.path / name
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise BadInput(f"{self.path}: {MANIFEST} names {shown(name)}, which is outside the run folder")
        try:
            inside = path.resolve().is_relative_to(self.path.resolve())
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            raise BadInput(f"{self.path}: {shown(name)} is a link to somewhere outside the run folder")
        return path


def _pulled(mirror: Mirror) -> Path:
    if not mirror.exists():
        raise BadInput(f"{mirror.address}: no such run folder")
    path = folder_of_copies() / mirror.address.rpartition("/")[2]
    path.mkdir()
    # the manifest says what there is and how much of it: a store could hold, and send, anything
    mirror.fetch(MANIFEST, path / MANIFEST, LARGEST_FILE)
    folder = RunFolder._open(path)
    listed = folder.manifest["files"]
    if (size := sum(entry["bytes"] for entry in listed.values())) > (free := shutil.disk_usage(path).free):
        raise BadInput(f"{mirror.address}: its {size} bytes do not fit on this machine's disk, which has {free} free")
    for name, entry in listed.items():
        mirror.fetch(name, folder.inside(name), entry["bytes"], grows=entry.get("grows", False))
    return path


# --- whether the process that writes it lives -------------------------------------------------------------------------


def this_process() -> dict[str, Any]:
    """Return what the manifest says of the process that writes it."""
    pid = os.getpid()
    return {"namespace": process_namespace(), "boot": _boot(), "pid": pid, "start": start_of(pid) or 0}


def is_gone(process: Mapping[str, Any], silence: float) -> bool:
    """Say whether a process is gone that last gave a sign of life `silence` seconds ago."""
    if process["namespace"] != process_namespace():
        return silence > HEARTBEAT_TIMEOUT
    return bool(process["boot"] != _boot() or start_of(process["pid"]) != process["start"])


def is_here(process: Mapping[str, Any]) -> bool:
    """Say whether a process is, or was, one of this machine's as it runs now: it can be looked for by its number."""
    return bool(process["namespace"] == process_namespace() and process["boot"] == _boot())


class Heartbeat:
    """Touches a file until it is ended, or the file is gone."""

    def __init__(self, file: Path) -> None:
        self._over = threading.Event()
        threading.Thread(target=_beat, args=(file, self._over), name="heartbeat", daemon=True).start()

    def end(self) -> None:
        """Touch it no more."""
        self._over.set()


def _beat(file: Path, over: threading.Event) -> None:
    while not over.wait(BEAT_SECONDS):
        try:
            os.utime(file)
        except OSError:
            return


def _boot() -> str:
    """Return a text that is another one after the machine was started again."""
    return hashlib.sha256(Path("/proc/sys/kernel/random/boot_id").read_bytes()).hexdigest()[:16]


# --- the host ---------------------------------------------------------------------------------------------------------


def describe_environment() -> dict[str, Any]:
    """Return versions and host facts: no variable of the environment, no user name, no command line."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


# --- what lies beside it ----------------------------------------------------------------------------------------------


def apart_from_records(path: Path, field: str, *, wholly: bool = False) -> Path:
    """Return a path that is to be written if it is no part of a run's record.

    Args:
        path: a file or folder; nothing need be there.
        field: the flag that names it, for the error.
        wholly: whether it may lie in no run folder at all; else it may lie beside the record, as a page about the run.

    Raises:
        BadInput: it is a run folder, or a part of one's record.
    """
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path  # the writer says why that cannot be
    for folder in (resolved, *resolved.parents):
        inside = resolved.relative_to(folder).parts
        if (wholly or not inside or inside[0].lower() in _RECORD) and _is_run(folder):
            raise BadInput(f"{field}: {shown(str(path))} is not allowed: it lies in the record of the run {folder}")
    return path


def _is_run(folder: Path) -> bool:
    try:
        manifest = folder / MANIFEST
        return (
            manifest.is_file()
            and manifest.stat().st_size <= LARGEST_FILE
            and f'"{KIND}"'.encode() in manifest.read_bytes()
        )
    except OSError:
        return False

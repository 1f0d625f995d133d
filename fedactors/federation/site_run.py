"""One run at one site: its actors, barriers, calls through the gate, checkpoints, privacy budget, and its end.

    driver ──prepare, connect, load, open, watch, snapshot, drain, finish──▶ SiteRun ──▶ the actors of this site
    sites  ──calls, payloads───────────────────────────────────────────────▶ SiteRun

    who waits                  for what
    driver, each verb          all sites: prepare, connect, load, open, snapshot, finish are barriers
    a call, a payload          the run to be open here: nothing leaves that is not on record
    driver, a checkpoint       snapshot 7 ──▶ each site keeps 7 in memory, and the run goes on
                               written    ──▶ each site has written 7, beside 6 ──▶ the driver writes its own 7
                               commit 7   ──▶ 6 may go

So the driver's newest checkpoint is one that every site has, also when one is killed at any moment. What goes on from a
run, a resumption or a prediction, asks for a number; a site looks for it among its own states only (`find`). State
stays here: checkpoints, ledger rows, timeline and privacy records are written to a run folder of the site's own.

Actors are built from what another organisation's driver asks for (`built_with`): plain values, the approved config,
dataclasses of the protocol, and names of data, in whose place the site puts what only it knows. `PrivacyBudget` is what
the run takes of the site's data: announced, measured by the site itself before anything leaves, and charged.

It is one file because what leaves, what is written and what is charged of a run are counted together.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import hashlib
import hmac
import json
import math
import os
import re
import resource
import secrets
import shutil
import stat
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import psutil
from pydantic import TypeAdapter

from fedactors import user_code
from fedactors.actors.remote import DRIVER
from fedactors.data.layouts.horizontal import HorizontalData, HorizontalPart, forget_blocks
from fedactors.data.layouts.relational import TableOwner
from fedactors.data.layouts.vertical import RelationalPartition, RelationalQuery, VerticalPart
from fedactors.data.new_rows import StoredState
from fedactors.errors import BadInput, BudgetExceeded, FedactorsError, PartyLost, Refused, RowsChangedError
from fedactors.federation.approval import (
    Proposal,
    changed_data,
    check_resumes_itself,
    check_spawned,
    classes_of,
    first_of,
    has_quorum,
    may_come_back,
    package_of,
    spawned_by,
)
from fedactors.federation.audit_log import JOURNALS, Journal, PauseJournal
from fedactors.federation.handshake import dial
from fedactors.federation.hosting import (
    ActorHost,
    Counted,
    Gate,
    Life,
    LocalActorHost,
    Recorded,
    SiteContext,
    make_book,
    not_taken,
)
from fedactors.federation.operations import QUESTION_BYTES, Operations, log_end
from fedactors.federation.session import (
    REFUSED,
    TURNED_AWAY,
    Connection,
    Hello,
    Limits,
    checked_parts,
    decoded,
    parts_of,
    value_of,
)
from fedactors.federation.site_code import code_digest
from fedactors.federation.site_folder import (
    ANY,
    Amount,
    DataName,
    RunLimits,
    SiteFolder,
    as_logged,
    in_all,
    parts_of_name,
    taken_by,
)
from fedactors.inspection import COUNTED, describe_protections, may_leave
from fedactors.messages.codec import Parts, namespace_of
from fedactors.plugins import Protocol
from fedactors.privacy.accounting import (
    INTERRUPTED,
    Planned,
    PrivacyRecord,
    Released,
    Unaccounted,
    claims,
    recompute,
)
from fedactors.runs.folder import Checkpoint, RunFolder, is_here
from fedactors.runs.metrics import json_line, jsonable
from fedactors.runs.recorder import FolderRecorder
from fedactors.runs.storage import PRIVATE_FILE, make_folder, owner_of, remove_folders, start_of, write_atomic
from fedactors.runtime import snapshots
from fedactors.runtime.compute import ACCOUNT, WallClock
from fedactors.runtime.failures import UnawaitedCall, errors_for, raised_by, refused_for, without_words
from fedactors.runtime.interface import ActorSpec
from fedactors.validation import first_line, shown

# --- checkpoints ---

_PENDING = ".pending"


@dataclass(frozen=True)
class Earlier:
    """A run that another one goes on from, at this site.

    Args:
        folder: of the earlier run.
        states: the actors' frames, by name.
        seed: that the site had for its actors.
        now: seconds of the run's clock at the checkpoint.
        ledgers, waiting: totals of messages, and seconds of waiting, by actor.
        where: the checkpoint lies.
    """

    folder: RunFolder
    states: Mapping[str, bytes]
    seed: int
    now: float
    ledgers: Mapping[str, Any]
    waiting: Mapping[str, float]
    where: str

    def state(self, name: str) -> bytes:
        """Return an actor's state.

        Raises:
            BadInput: the checkpoint has none of it.
        """
        if name not in self.states:
            raise BadInput(f"the checkpoint has no state of {name} (of: {', '.join(sorted(self.states))})")
        return self.states[name]

    def counted(self, name: str) -> Counted:
        """Return an actor's totals of messages and its seconds of waiting.

        Raises:
            BadInput: the checkpoint is damaged.
        """
        what = snapshots.checkpoint_of(name, self.where)
        with snapshots.intact(what):
            waiting = snapshots.amount(self.waiting[name], "waiting", what)
            return Counted(snapshots.totals(self.ledgers[name], what), waiting)

    def restore(self, context: SiteContext) -> None:
        """Set a loaded actor of the site's process, and what is counted of it, as they were.

        Raises:
            BadInput: the checkpoint has no state of it, or a damaged one.
        """
        snapshots.restore(context.actor, self.state(context.name), context.name, self.where)
        counted = self.counted(context.name)
        context.idle_seconds = counted.waiting
        context.ledger.restore(counted.totals)


def folder_of(site: SiteFolder, proposal: Proposal, protocol: Protocol, parent: RunFolder | None) -> RunFolder:
    """Make the folder of what a site keeps of a run, which goes on from that of `parent`."""
    described = {
        "schema_version": 1,
        "scenario": proposal.protocol,
        "protocol": proposal.protocol,
        "runtime": "federated",
        "seed": 0,
        "data": proposal.data.get(site.name, "none"),
        "options": {},
        "headline": {"name": protocol.headline.name, "mode": protocol.headline.mode},
        "config": proposal.config,
        "site": {"name": site.name, "coordinator": proposal.coordinator, "run": proposal.run},
    }
    made = RunFolder.create(site.path / "runs", proposal.run, 0, described, parent=parent)
    if (digest := code_digest(proposal)) is not None:
        made.keep_code(digest)
    return made


def seal(label: str, number: int, seed: int, now: float, frames: Mapping[str, bytes], actors: ActorHost) -> bytes:
    """Return what a site keeps beside these states in a checkpoint: it is then `write`'s."""
    counted = actors.counted()
    site_part = {
        "number": number,
        "label": label,
        "seed": seed,
        "now": now,
        "ledgers": {name: one.totals for name, one in counted.items()},
        "waiting": {name: one.waiting for name, one in counted.items()},
    }
    return snapshots.seal_driver(site_part, frames)


def keyed_digests(frames: Mapping[str, bytes], seed: int) -> dict[str, bytes]:
    """Return what others know each state by: its HMAC under the site's secret `seed`.

    A plain digest would confirm a right guess of the rows: no noise hides a state.
    """
    return {name: hmac.digest(str(seed).encode(), frame, "sha256") for name, frame in frames.items()}


def write(recorder: FolderRecorder, label: str, frames: Mapping[str, bytes], site_part: bytes) -> None:
    """Write a checkpoint of these states that is not yet counted on."""
    recorder.save_checkpoint(f"{label}{_PENDING}", frames, site_part)


def commit(folder: RunFolder, label: str) -> None:
    """Count on the checkpoint that was last written under a label: all sites have it."""
    folder.relabel_checkpoint(f"{label}{_PENDING}", label)


def find(site: SiteFolder, run: str, number: int | None, *, or_before: bool = False) -> Earlier:
    """Return what a site has of a run at a checkpoint (None: at its newest).

    Args:
        site: whose.
        run: which.
        number: of the checkpoint.
        or_before: whether an older one will do, where the site was away when that one was taken.

    Raises:
        BadInput: it has not this run, or not this checkpoint, or it is damaged.
    """
    # a site that was away and came back has a folder for each time
    folders = [RunFolder.open(path) for path in sorted((site.path / "runs").glob(f"*-{run}-0*"), reverse=True)]
    if not folders:
        raise BadInput(f"{site.name}: has no records of run {run}")
    before: tuple[int, RunFolder, Checkpoint, dict[str, Any]] | None = None
    for folder in folders:
        for entry in folder.manifest["checkpoints"]:
            checkpoint = folder.load_checkpoint(str(entry["label"]))
            site_part = _site_part(checkpoint)
            if site_part["number"] == number:
                if checkpoint.label.endswith(_PENDING):  # all sites have it, and this one was not told
                    commit(folder, str(site_part["label"]))
                return _earlier_at(folder, checkpoint, site_part)
            if number is None or (or_before and site_part["number"] < number):
                one = site_part["number"], folder, checkpoint, site_part
                before = one if before is None or before[0] < one[0] else before
    if before is None:
        which = "checkpoint" if number is None else f"checkpoint {number}"
        raise BadInput(f"{site.name}: has no {which} of run {run}")
    return _earlier_at(*before[1:])


def has_checkpoint(site: SiteFolder, run: str, number: int) -> bool:
    """Say whether a site has a checkpoint of a run."""
    return any(found == number for found, *_ in _checkpoints(site, run))


def newest_checkpoint(site: SiteFolder, run: str) -> tuple[int, float]:
    """Return the number of the newest checkpoint of a run that a site counts on, and when the last one was written."""
    found = _checkpoints(site, run)
    counted = [number for number, is_pending, _ in found if not is_pending]
    return max(counted, default=0), max((written for *_, written in found), default=0.0)


def _checkpoints(site: SiteFolder, run: str) -> list[tuple[int, bool, float]]:
    """Return of each checkpoint of a run its number, whether it is not counted on yet, and when it was written."""
    return [
        (int(_site_part(checkpoint)["number"]), checkpoint.label.endswith(_PENDING), written)
        for path in (site.path / "runs").glob(f"*-{run}-0*")
        for folder in [RunFolder.open(path)]
        for entry in folder.manifest["checkpoints"]
        for checkpoint in [folder.load_checkpoint(str(entry["label"]))]
        for written in [(folder.path / entry["folder"]).stat().st_mtime]
    ]


def _earlier_at(folder: RunFolder, checkpoint: Checkpoint, site_part: Mapping[str, Any]) -> Earlier:
    ledgers, waiting = dict(site_part["ledgers"]), dict(site_part["waiting"])
    seed, now = int(site_part["seed"]), snapshots.amount(site_part["now"], "now", snapshots.DRIVERS)
    return Earlier(folder, checkpoint.actors, seed, now, ledgers, waiting, checkpoint.folder)


def _site_part(checkpoint: Checkpoint) -> dict[str, Any]:
    what = f"the site's part of checkpoint {checkpoint.label}"
    found = snapshots.unseal_driver(checkpoint.driver)
    with snapshots.intact(what):
        return {**found, "number": int(found["number"])}


# --- what actors are built with ---

_PARTS = (VerticalPart, HorizontalPart, RelationalPartition, RelationalQuery, DataName)
"""What actors are told of data."""


def built_with(
    name: str, frame: bytes, folder: SiteFolder, proposal: Proposal, config: Any, earlier: Earlier | None, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments of the actor `name`, from the frame that the driver sends.

    A state of an earlier run is asked for by the actor's name and what the site said then that stands for it; the site
    puts its own instead. Which of the own rows are held out follows from the site's own `seed`: its chooser would
    choose rows, and see in the scores of two runs what one row alone changes.

    Raises:
        Refused: they hold something else, another config, or data that are not approved or are another's.
    """
    protocol = namespace_of(type(config))
    sites = (folder.name,) if folder.name in proposal.data else ()
    as_asked, as_here = proposal.described(), proposal.described(folder)
    share = getattr(config, "validation_fraction", 0.0) if proposal.purpose != "predict" else 0.0
    if share and isinstance(as_asked, HorizontalData) and isinstance(as_here, HorizontalData):
        as_asked, as_here = as_asked.holding_out(share, proposal.seed), as_here.holding_out(share, seed)
    parts = [
        pair for site in sites for pair in zip(parts_of_name(as_asked, site), parts_of_name(as_here, site), strict=True)
    ]

    def resolve(value: Any) -> Any:
        if isinstance(value, type(config)):
            if value != config:
                raise Refused(DRIVER, f"spawns {name} with another configuration than the approved one")
            return config
        if type(value) in _PARTS:
            found = next((mine for asked, mine in parts if asked == value), None)
            if found is None:
                raise Refused(DRIVER, f"spawns {name} with other data than the approved ones, or another's")
            return found
        if type(value) is StoredState:
            frame = b"" if earlier is None else earlier.states.get(value.actor, b"")
            known = {} if earlier is None else keyed_digests({value.actor: frame}, earlier.seed)
            if not frame or known.get(value.actor) != value.frame or value.where is not None:
                raise Refused(
                    DRIVER,
                    f"spawns {name} with a state of {shown(value.actor)} that {folder.name} has not; predict with a "
                    "run that was trained by this version",
                )
            return StoredState(actor=value.actor, frame=frame)
        if type(value) in (tuple, list):
            return tuple(resolve(item) for item in value)
        if type(value) is dict:
            return {key: resolve(item) for key, item in value.items()}
        if value is None or type(value) in (bool, int, float, str, bytes, np.ndarray):
            return value
        if _is_of(type(value), protocol) and dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _rebuilt(value, resolve)
        raise Refused(DRIVER, f"spawns {name} with a {type(value).__name__}; data are asked for by their names only")

    args, kwargs = resolve(value_of(frame, DRIVER, arguments=True))
    return args, kwargs


def _is_of(cls: type, protocol: str) -> bool:
    """Say whether a class is the approved protocol's own, or says which host a table's owner has: neither has rows."""
    return cls is TableOwner or f"{namespace_of(cls)}.".startswith(f"{protocol}.")


def _rebuilt(value: Any, resolve: Callable[[Any], Any]) -> Any:
    """Return a copy of a dataclass, each of its fields being what `resolve` makes of it."""
    made = object.__new__(type(value))
    for field in dataclasses.fields(value):
        object.__setattr__(made, field.name, resolve(getattr(value, field.name)))
    return made


# --- the limits of the site's machine ---

_GIB = 1 << 30
_DISK_SECONDS = 5.0
_SLACK = _GIB
"""What the system holds a process to at once lies so much above what a run may take, which is measured."""


_bounding = threading.Lock()
_bounds: defaultdict[int, dict[object, int]] = defaultdict(dict)
_unbounded: dict[int, int] = {}
"""Limits of this process before somebody held it to others."""


def _bound(kind: int, by: object, most: int | None) -> None:
    """Hold this process to a limit of the system (None: no more), together with others that hold it: the lowest one."""
    with _bounding:
        soft, hard = resource.getrlimit(kind)
        if not (found := _bounds[kind]):
            _unbounded[kind] = soft
        if most is not None:
            found[by] = most
        elif found.pop(by, None) is None:
            return
        bounds = [one for one in (*found.values(), _unbounded[kind]) if one != resource.RLIM_INFINITY]
        resource.setrlimit(kind, (min(bounds, default=resource.RLIM_INFINITY), hard))


@contextlib.contextmanager
def memory_of(growth: int) -> Iterator[None]:
    """Let the system refuse memory, on Linux, by which this process would grow further: a `MemoryError` there."""
    by = object()
    if sys.platform == "linux":
        _bound(resource.RLIMIT_DATA, by, psutil.Process().memory_info().data + growth)
    try:
        yield
    finally:
        _bound(resource.RLIMIT_DATA, by, None)


class TemporaryFolder:
    """Where this process and those that it begins put temporary files while a run goes on; it is removed with the run.

    Of several that are open the last one is used, by all runs: it stays until those are over that were open with it.
    What a killed process left goes when the next one is made.
    """

    _guard = threading.Lock()
    _open: ClassVar[list[Path]] = []
    _users: ClassVar[dict[Path, set[Path]]] = {}
    """By folder: those of the runs that may have put something there."""
    _before: ClassVar[tuple[str, str | None]] = "", None

    def __init__(self) -> None:
        with self._guard:
            if not self._open:
                TemporaryFolder._before = tempfile.gettempdir(), os.environ.get("TMPDIR")
            remove_folders({"run": lambda _: None}, self._before[0])
            self.path = make_folder("run", self._before[0])
            self._open.append(self.path)
            self._use()

    def remove(self, *, waits: bool = True) -> None:
        """Remove it with all that lies in it, in a thread unless it `waits`; again does nothing."""
        with self._guard:
            if self.path in self._open:
                self._open.remove(self.path)
                self._use()
            for users in self._users.values():
                users.discard(self.path)
            unused = [folder for folder, users in self._users.items() if not users]
            for folder in unused:
                del self._users[folder]

        def remove() -> None:
            for folder in unused:
                shutil.rmtree(folder, ignore_errors=True)

        work = threading.Thread(target=remove)
        work.start()
        if waits:
            work.join()

    def _use(self) -> None:
        before, variable = self._before
        if self._open:
            self._users.setdefault(self._open[-1], set()).update(self._open)
        used = str(self._open[-1]) if self._open else variable
        tempfile.tempdir = str(self._open[-1]) if self._open else before
        os.environ.pop("TMPDIR", None)
        if used is not None:
            os.environ["TMPDIR"] = used


class UsageWatch:
    """Says when a run has taken more of the site's machine than it may.

    What actors take is counted by their processes, which are the site's own and those that it began. A process that
    computes in a thread of the site's is ended when it returns; one of its own at once. Of actors in an organisation's
    own cluster these are `others`. Files count in the run's folders, and elsewhere as long as a process has them. In
    shared memory they count until they are gone, and go with the last run whose processes have them.

    Args:
        most: that it may take.
        folders: of the run.
        record: where its hours are written down each time, so that they count on if the site comes back to the run.
        others: what processes say of themselves that count too, of other runs too; see `runs.folder.this_process`.
        root: the number of the process that counts with those that it began, once there is one; by default this one.
    """

    _watches: ClassVar[weakref.WeakSet[UsageWatch]] = weakref.WeakSet()
    """Those of the runs that go on in this process."""

    def __init__(
        self,
        most: RunLimits,
        folders: Callable[[], Sequence[Path]],
        record: Path | None = None,
        others: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
        root: Callable[[], int | None] = os.getpid,
    ) -> None:
        self._root = root
        self._most = most
        self._others = others
        self._folders = folders
        self._record = record
        self._hours_before = {"cpu_hours": 0.0, "hours": 0.0}
        if record is not None and record.exists():
            self._hours_before = {name: float(json.loads(record.read_text())[name]) for name in self._hours_before}
        self._process = psutil.Process()
        self._began = time.monotonic()
        self._cpu: dict[int, float] = {}
        self._of_others: set[psutil.Process] = set()
        """Processes whose parent was another one than this."""
        self._adopted: set[psutil.Process] = set()
        """Processes that somebody else began and that are this one's now."""
        self._files_before = set(self._files())
        self._shared_before = _bytes_in(_SHARED).keys()
        self._left: dict[_Inode, Path] = {}
        """Files in shared memory that processes of the run wrote to, or that have a name of theirs."""
        self._disk, self._shared, self._disk_seen = 0, 0, -math.inf
        """Bytes of files, and of those that are memory, and when they were counted."""
        self._memory_before, self._cpu_before = self._measure()
        self._adopts = False
        self._watches.add(self)

    def hold(self) -> None:
        """Let the system refuse memory, and a file's growth, a GiB beyond the limits: between two measurements, too.

        What does not fit then is an error in the actor that asked for it, and not the end of the site's process.
        """
        wanted = {resource.RLIMIT_FSIZE: (self._most.disk_gib, 0)}
        if sys.platform == "linux":  # allocated, whether or not it was written to
            wanted[resource.RLIMIT_DATA] = (self._most.memory_gib, self._process.memory_info().data)
            if self._most != RunLimits():
                self._adopts = _adopt(True)
        for kind, (most, before) in wanted.items():
            if most is not None:
                _bound(kind, self, before + int(most * _GIB) + _SLACK)

    def release(self) -> None:
        """Let the process have again what it could before the run."""
        for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA):
            _bound(kind, self, None)
        for watch in list(self._watches):  # others too: what they have not seen yet would be taken for this run's
            watch._look_at_shared_memory()
        self._watches.discard(self)
        shared = {key for other in list(self._watches) for key in list(other._left)}
        for key, path in list(self._left.items()):  # a look that is under way adds to them
            if key in shared:
                continue
            with contextlib.suppress(OSError):
                if _inode(path.lstat()) == key:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self._adopts:
            self._adopts = _adopt(False)
        self._reap()

    def exceeded(self) -> str | None:
        """Return which limit the run has passed, by what, and what to do; None: none."""
        is_due = time.monotonic() - self._disk_seen > _DISK_SECONDS
        if self._most == RunLimits():
            if is_due:
                self._look_at_shared_memory()
                self._disk_seen = time.monotonic()
            return None
        self._look_at_shared_memory()
        if is_due:
            self._look_at_files()
        memory, cpu = self._measure()
        taken = {
            "memory_gib": (memory + self._shared - self._memory_before) / _GIB,
            "cpu_hours": self._hours_before["cpu_hours"] + (cpu - self._cpu_before) / 3600,
            "hours": self._hours_before["hours"] + (time.monotonic() - self._began) / 3600,
            "disk_gib": self._disk / _GIB,
        }
        if self._record is not None:
            hours = {name: taken[name] for name in self._hours_before}
            write_atomic(self._record, json.dumps(hours).encode(), "limits", PRIVATE_FILE)
        for name, amount in taken.items():
            most = getattr(self._most, name)
            if most is not None and amount > most:
                return (
                    f"limits.{name}: it took {amount:.4g}; at most {most:g}: smaller settings, "
                    f"or a larger policy.limits.{name} and --limit {name}"
                )
        return None

    def _measure(self) -> tuple[int, float]:
        """Return bytes of memory and seconds of processor time, those of processes that have ended too."""
        memory = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                memory += process.memory_info().rss
                times = process.cpu_times()
                self._cpu[process.pid] = max(self._cpu.get(process.pid, 0.0), times.user + times.system)
                if process != self._process:
                    self._look_at_parent(process)
        self._reap()
        return memory, sum(self._cpu.values())

    def _look_at_files(self) -> None:
        """Count files in the run's folders, and elsewhere those that its processes have open for writing, or unlinked.

        What a table, DuckDB or Ray's object store has no room for in memory lies in such files.
        """
        inside = {key: size for folder in self._folders() for key, size in _bytes_in(folder).items()}
        outside = {key: one for key, one in self._files().items() if key not in self._files_before | inside.keys()}
        shared = {key: one.size for key, one in outside.items() if one.is_memory} | self._size_of_left()
        # what is mapped is memory of its process, which is measured
        mapped = set().union(*(_mapped_by(process.pid) for process in self._processes())) if shared else set()
        self._shared = sum(size for key, size in shared.items() if key not in mapped)
        self._disk = sum(inside.values()) + sum(one.size for one in outside.values() if not one.is_memory)
        self._disk_seen = time.monotonic()

    def _look_at_shared_memory(self) -> None:
        """Remember which files there are of the run: who closes one, or ends, leaves memory that is nobody's."""
        processes = self._processes()
        numbers = {process.pid for process in processes} | self._cpu.keys()
        found = {key: path for process in processes for key, path in _shared_by(process.pid).items()}
        with contextlib.suppress(OSError):
            for path in _SHARED.iterdir():
                name = _OF_TORCH.match(path.name)
                if (owner_of(path.name) if name is None else int(name[1])) in numbers:
                    with contextlib.suppress(OSError):
                        found[_inode(path.lstat())] = path
        self._left |= {key: path for key, path in found.items() if key not in self._shared_before}

    def _size_of_left(self) -> dict[_Inode, int]:
        """Return the bytes of memory of what is left in shared memory of the run."""
        found: dict[_Inode, int] = {}
        for key, path in list(self._left.items()):
            with contextlib.suppress(OSError):
                if _inode(path.lstat()) == key:
                    inside = [path, *(path.rglob("*") if path.is_dir() else ())]
                    found |= {_inode(file): file.st_blocks * 512 for file in map(os.lstat, inside)}
        return found

    def _files(self) -> dict[_Inode, _OpenFile]:
        return {key: one for process in self._processes() for key, one in _open_files(process.pid).items()}

    def check_others(self) -> None:
        """Check that processes which others began can be counted, where something of them has a limit.

        Raises:
            BadInput: they are of another machine, container or user.
        """
        names = [name for name in ("memory_gib", "cpu_hours", "disk_gib") if getattr(self._most, name) is not None]
        if names and not all(is_here(one) and os.access(f"/proc/{one['pid']}/fd", os.R_OK) for one in self._others()):
            raise BadInput(
                f"limits: {', '.join(names)}: what actors take in this cluster cannot be counted: its processes are of "
                "another machine, container or user: leave these limits out, or use ray = 'embedded'"
            )

    def _processes(self) -> list[psutil.Process]:
        found = []
        if (root := self._root()) is not None:
            with contextlib.suppress(psutil.Error):
                process = self._process if root == self._process.pid else psutil.Process(root)
                found = [process, *process.children(recursive=True)]
        for one in self._others():
            with contextlib.suppress(psutil.Error):
                if start_of(one["pid"]) == one["start"]:
                    other = psutil.Process(one["pid"])
                    found += [other, *other.children(recursive=True)]
        return list(dict.fromkeys(found))

    def _look_at_parent(self, process: psutil.Process) -> None:
        if process.ppid() != self._process.pid:
            self._of_others.add(process)
            return
        with contextlib.suppress(OSError):  # whom this process began is in its session, or begins one
            is_of_another = os.getsid(process.pid) not in (os.getsid(0), process.pid)
            if is_of_another or process in self._of_others:
                self._adopted.add(process)

    def _reap(self) -> None:
        """Let adopted processes go that have ended: all others are waited for by who began them."""
        for process in list(self._adopted):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(process.pid, os.WNOHANG) == (0, 0):
                    continue
            self._adopted.discard(process)


_PR_SET_CHILD_SUBREAPER = 36


def _adopt(is_on: bool) -> bool:
    """Let processes whose parent ends become this one's, on Linux: else who forks twice is counted nowhere."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)
    return is_on


_Inode = tuple[int, int]
"""Device and number of a file."""
_SHARED = Path("/dev/shm")
_OF_TORCH = re.compile(r"torch_(\d+)_")
"""Begins the name of torch's files there, with the number of their process."""


def _inode(file: os.stat_result) -> _Inode:
    return file.st_dev, file.st_ino


class _OpenFile(NamedTuple):
    """A file that a process has open, and changes, or that has no name any more."""

    size: int
    is_memory: bool


def _bytes_in(folder: Path) -> dict[_Inode, int]:
    """Return the bytes of what is in a folder; what goes while it is looked at counts for nothing."""
    found: dict[_Inode, int] = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                file = os.lstat(os.path.join(root, name))
                found[file.st_dev, file.st_ino] = file.st_size
    return found


def _open_files(process: int) -> dict[_Inode, _OpenFile]:
    """Return the files that a process has open for writing, or that no folder names, on Linux."""
    found: dict[_Inode, _OpenFile] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                file = os.stat(f"/proc/{process}/fd/{name}")
                if stat.S_ISREG(file.st_mode) and (not file.st_nlink or _is_written(process, name)):
                    is_memory = os.readlink(f"/proc/{process}/fd/{name}").startswith(("/dev/shm/", "/memfd:"))
                    found[file.st_dev, file.st_ino] = _OpenFile(file.st_blocks * 512, is_memory)
    return found


def _shared_by(process: int) -> dict[_Inode, Path]:
    """Return the files in shared memory that a process may write to, open or mapped, by name, on Linux."""
    paths = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/{process}/fd/{name}")
                if path.startswith(f"{_SHARED}/") and _is_written(process, name):
                    paths.add(path)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines():
            _, mode, _, _, _, *name_of = line.split(maxsplit=5)
            if "w" in mode and name_of and name_of[0].startswith(f"{_SHARED}/"):
                paths.add(name_of[0])
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):  # it has no name any more
            found[_inode(os.lstat(path))] = Path(path)
    return found


def _is_written(process: int, descriptor: str) -> bool:
    """Say whether a process may write to what it has open."""
    flags = re.search(r"^flags:\s*([0-7]+)$", Path(f"/proc/{process}/fdinfo/{descriptor}").read_text(), re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _mapped_by(process: int) -> set[_Inode]:
    """Return the files that a process has mapped, on Linux."""
    found = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines():
            _, _, _, device, number, *_ = line.split()
            major, _, minor = device.partition(":")
            found.add((os.makedev(int(major, 16), int(minor, 16)), int(number)))
    return found


# --- the privacy budget ---

_MEASURE_SECONDS = 1.0
_MOST_READ = 100
"""Files that a line of the log names; of more it names the folders."""


class Unknown(FedactorsError):
    """Something left, and an actor cannot say what it amounts to."""


def recorded(found: Sequence[PrivacyRecord | Planned | Unaccounted | Released]) -> list[PrivacyRecord]:
    """Return the lines of an account.

    Raises:
        Unknown: an actor of the party has none, and one of them has released something.
    """
    unknown = next((one.reason for one in found if isinstance(one, Unaccounted)), None)
    if unknown is not None and any(isinstance(one, Released) for one in found):
        raise Unknown(unknown)
    return [one for one in found if isinstance(one, PrivacyRecord)]


def read_account(content: bytes, path: Path) -> list[PrivacyRecord]:
    """Return the lines of a site's journal of what left.

    Raises:
        BadInput: the file is damaged: nobody knows what left.
    """
    try:
        return TypeAdapter(list[PrivacyRecord]).validate_json(content)
    except ValueError as error:
        raise BadInput(f"{path}: damaged: {first_line(error)}: bring it back from a copy, or begin a new run") from None


def add_forgotten(
    lines: Sequence[PrivacyRecord], restored: Sequence[PrivacyRecord], left: Sequence[PrivacyRecord]
) -> list[PrivacyRecord]:
    """Return an account of all that left: what had left before a restore, and what the account has grown by since.

    Args:
        lines: the account now, of actors that were restored.
        restored: the same when they had been restored; see `Actor.is_account_level`.
        left: what had left until then.
    """
    found = []
    for kind in dict.fromkeys(_kind_of(line) for line in (*left, *lines)):
        now, then, before = ([line for line in one if _kind_of(line) == kind] for one in (lines, restored, left))
        releases, touched = (
            sum(getattr(line, name) for line in before) - sum(getattr(line, name) for line in then)
            for name in ("releases", "touched")
        )
        first, *others = [replace(one, uncovered=_known(one)) for one in now] or [
            replace(before[0], releases=0, touched=0)
        ]
        found += [_of_as_many(first, max(0, first.releases + releases), max(0, first.touched + touched)), *others]
    return found


def _kind_of(line: PrivacyRecord) -> tuple[Any, ...]:
    """Return what says which lines' releases add up: all but how many they were, and what these amount to."""
    return (
        line.party, line.message_type, line.mechanism, line.neighbour, line.clip_norm, line.noise_scale, line.sampling,
        line.sensitivity, line.sample_rate, line.num_values, line.delta,
    )  # fmt: skip


def _known(line: PrivacyRecord) -> tuple[str, ...]:
    return tuple(reason for reason in line.uncovered if reason != INTERRUPTED)


def _of_as_many(line: PrivacyRecord, releases: int, touched: int) -> PrivacyRecord:
    """Return a line of so many releases."""
    made = replace(line, releases=releases, touched=touched, covered=False)
    amount = recompute(made)
    if amount is None:
        return made
    is_covered = math.isfinite(amount.epsilon) and not made.uncovered
    return replace(made, rigorous_mu=amount.mu, epsilon=amount.epsilon, covered=is_covered)


_UNACCOUNTED = "cannot account for releases"


class PrivacyBudget:
    """What a run takes of the site's privacy budget; all of it does nothing where the site's data have none.

    `refuse` is told that the run took more than it announced, and stops it.
    """

    def __init__(
        self,
        folder: SiteFolder,
        proposal: Proposal,
        actors: ActorHost,
        refuse: Callable[[Refused], Refused],
    ) -> None:
        name = proposal.data.get(folder.name)
        self.measuring = asyncio.Lock()
        """Held while actors account: what they write down then is told apart from what they record by themselves."""
        self._announced = None if name is None or folder.budget(name) is None else proposal.budget[folder.name]
        self._folder = folder
        self._proposal = proposal
        self._actors = actors
        self._refuse = refuse
        self._taken: dict[str, Amount] = {}
        self._is_planned = False
        """Whether what the settings release was found to be within what was announced."""
        self._refused: Refused | None = None
        self._asked = self._measured = 0
        self._is_open = False
        self.is_exact = False
        """Whether a journal tells what left, so that a run that breaks off is charged for just that."""
        self._journal: Path | None = None
        self._written: list[PrivacyRecord] = []
        """What the journal says that left, in all attempts."""
        self._restored: list[PrivacyRecord] | None = None
        """The actors' account as the checkpoint has it; None: they have not gone on from one."""
        self.is_level = True
        """See `Actor.is_account_level`: of all actors whose account this is."""
        self._left_before: list[PrivacyRecord] = []
        """What the journal said when they did."""
        self._opens: dict[str, Any] | None = None
        """What the log says of it once the run is open."""
        if name is not None and self._announced is not None:  # another run is allowed what this one leaves
            announced = as_logged({ANY: self._announced})[ANY]
            reads = sorted(folder.read_by(name))  # whatever these data are called later
            if len(reads) > _MOST_READ:
                reads = sorted({(str(Path(where).parent), "") for where, _ in reads})
            self._opens = {"run": proposal.run, "data": name, "announced": announced, "reads": reads}
            folder.reserved[proposal.run] = {"what": "opened", **self._opens}

    def remember(self, journal: Path) -> None:
        """Write what leaves to a file before it does: a checkpoint forgets what left since."""
        if self._announced is None:
            return
        self._journal = journal
        if journal.exists():
            self._written = self._left_before = read_account(journal.read_bytes(), journal)

    async def restore(self) -> None:
        """Learn what the actors' account says at the checkpoint that they have gone on from, before they open."""
        if self._journal is not None:
            async with self.measuring:
                restored = recorded(await self._actors.account(self._folder.name))
            self._restored = restored if self.is_level else []

    def with_forgotten(self, lines: Sequence[PrivacyRecord]) -> list[PrivacyRecord]:
        """Return the actors' account with what left after the checkpoint that they went on from."""
        return list(lines) if self._restored is None else add_forgotten(lines, self._restored, self._left_before)

    @property
    def is_counted(self) -> bool:
        """Whether the run takes of a budget."""
        return self._announced is not None

    async def check_plan(self) -> None:
        """Refuse, before the run is on record and takes anything, what its settings release beyond what it announced.

        Actors that have no account yet are asked again when something is about to leave.

        Raises:
            Refused: they do.
        """
        if self._announced is None:
            return
        async with self.measuring:
            found = await self._actors.account(self._folder.name)
        if plan := [one.record for one in found if isinstance(one, Planned)]:
            self._settle(self._folder.name, plan, is_plan=True)

    def open(self) -> None:
        """Put the run on record, before anything can leave."""
        self._is_open = True
        if self._left_before:
            self._taken = taken_by(self._folder.name, self._left_before)
        if self._opens is not None:
            self._folder.audit.add("opened", **self._opens)
            self.release()

    def release(self) -> None:
        """Reserve nothing any more: the log says what the run takes."""
        self._folder.reserved.pop(self._proposal.run, None)

    async def watch(self) -> None:
        """Check once a second until the run is closed, also where nothing leaves."""
        while self._announced is not None and self._is_open:
            await asyncio.sleep(_MEASURE_SECONDS)
            with contextlib.suppress(Refused, PartyLost):  # which has stopped the run, or it is over
                await self.check(leaves=False)

    def close(self) -> None:
        """Measure no more: the actors have closed."""
        self._is_open = False

    async def check(self, *, leaves: bool = True) -> None:
        """Refuse what is about to leave if the run takes more with it than it announced.

        What is drawn is counted before it leaves, so a measurement that begins now has it.

        Args:
            leaves: whether anything is about to; else what cannot be measured yet may be later.

        Raises:
            Refused: it does, or can no longer be accounted for.
            PartyLost: the run was measured for the last time, or is not open yet.
        """
        try:
            await self.measure()
        except Refused:
            raise
        except Exception as error:  # a process that is gone, which is told elsewhere, or no account of what has left
            if leaves or self._taken or isinstance(error, Unknown):
                self._refused = self._refuse(refused_for(self._folder.name, _UNACCOUNTED, error))
                raise self._refused from None
        if self._announced is not None and not self._is_open:
            raise PartyLost(self._folder.name, "the run is over at its site, or not open yet: nothing leaves uncounted")

    async def measure(self) -> None:
        """Stop the run if the own actors release more than it announced, by their own account or by their plan.

        Who asks while others measure shares the next measurement.
        """
        if self._announced is None or not self._is_open:
            return
        self._asked += 1
        asked, me = self._asked, self._folder.name
        async with self.measuring:
            if self._refused is not None:
                raise self._refused
            if self._measured >= asked:
                return
            measured, found = self._asked, await self._actors.account(me)
            lines = self.with_forgotten(recorded(found))
            if not any(isinstance(one, Unaccounted) for one in found):  # else nothing has left
                self._settle(me, lines)
                if self._journal is not None and lines != self._written:
                    text = json.dumps([dataclasses.asdict(line) for line in lines])
                    await asyncio.to_thread(write_atomic, self._journal, text.encode(), "journal", PRIVATE_FILE)
                    self._written = lines
            if not self._is_planned and (plan := [one.record for one in found if isinstance(one, Planned)]):
                self._settle(me, plan, is_plan=True)
            self._measured = measured

    def _settle(self, me: str, records: list[PrivacyRecord], *, is_plan: bool = False) -> None:
        """Take over what these lines amount to, or refuse it."""
        assert self._announced is not None
        taken = taken_by(me, records)
        if not (total := in_all(taken)).within(self._announced):
            by = " by its approved settings" if is_plan else ""
            why = next((f" ({claim.uncovered[0]})" for claim in claims(records).values() if claim.uncovered), "")
            said = f"the run would take {total}{by} of the budget of {me} and had announced {self._announced}{why}: "
            if INTERRUPTED in why:
                said += "begin it anew with --return-timeout, with which its account goes on after a loss as well"
            else:
                said += f"announce more (--budget {me}=EPSILON:DELTA), or run with more noise or fewer rounds"
            self._refused = self._refuse(BudgetExceeded(self._proposal.coordinator, said))
            raise self._refused
        if is_plan:
            self._is_planned = True
        else:
            self._taken = taken

    def charged(self, status: str, *, was_open: bool) -> dict[str, Amount]:
        """Return what counts against the budget: what was measured, and of a run that broke off all it announced.

        More than it announced has not left. A run whose plan was refused takes what it had taken by then. With a
        journal what is charged when the site comes back holds what was charged before.
        """
        if self._announced is None or not was_open:
            return {}
        was_refused = self._refused is not None and bool(self._taken) and not self._is_planned
        is_known = status == "finished" or (self.is_exact and bool(self._taken)) or was_refused
        return self._taken if is_known else {ANY: self._announced}


# --- the run ---


def shares_process(ray: str | None, config: Any, proposal: Proposal) -> bool:
    """Say whether the actors of a run are in the site's process.

    A prediction is short, and counts what it releases at once; a quorum needs the journal before answers leave, and a
    run that may pause the calls of a part that broke off.
    """
    return ray is None or proposal.purpose == "predict" or may_come_back(config, proposal)


T = TypeVar("T")
CALLS, PAYLOADS = "calls", "payloads"
_UNTIL = {
    Life.APPROVED: "all sites to approve",
    Life.PREPARED: "all sites to make their actors",
    Life.CONNECTED: "all sites to connect",
    Life.LOADED: "all sites to load their data",
    Life.CLOSED: "all sites to finish",
}
"""What a site waits for at a barrier, by how far its run has come."""
_SEED_BITS = 128
"""Of a site's own seed: who can try them all knows the first weights, and from what leaves then the rows."""
_MOST_REFUSED = 60
"""Refusals in one run that are written each for itself; what is more is counted."""
_MOST_LABELS = 8
"""Checkpoints that a run keeps, of which a driver needs a few; one under the same label takes the place of the last."""
_MOST_MEETINGS = 1000
"""How often another site comes back to a run: each time this site dials it, as its driver asks."""
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")


class SiteRun:
    """One run at one site; `protocol` and `config` are what the approved proposal asks for."""

    def __init__(
        self,
        folder: SiteFolder,
        proposal: Proposal,
        protocol: Protocol,
        config: Any,
        limits: Limits,
        operations: Operations,
    ) -> None:
        self.proposal, self.scope = proposal, proposal.run
        self.life = Life.APPROVED
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.has_quorum = has_quorum(config) and proposal.purpose != "predict"
        """Whether the run goes on without a site that is lost, once it is open."""
        self.is_return = False
        """Whether this site comes back to the run: it is under way elsewhere, or paused."""
        self._may_pause = may_come_back(config, proposal) and not self.has_quorum
        """Whether the run goes on by itself once a site that was lost is back."""
        self.hosts: Mapping[str, str] = folder.federation.hosts
        """Where actors without data are, as it was when the run was approved."""
        self.journal = None
        self._parts = PauseJournal(folder.path / JOURNALS / f"{proposal.run}.calls.json")
        if self.has_quorum:
            self.journal = Journal(folder.path / JOURNALS / f"{first_of(folder, proposal).run}.json")
        self.unawaited = UnawaitedCall(
            lambda error: self.failed(folder.name, error), lambda _: self._may_lose, partial(operations.tell, "error")
        )
        self.assignment = ""
        """Digest of the proposal and of who is spawned as what.

        Two sites that were told different things do not talk.
        """
        self.gate = Gate(folder.name, proposal.coordinator, {})
        self._folder = folder
        self._protocol = protocol
        self._config = config
        most = proposal.limits.within(folder.policy.run_limits, folder.name).message_bytes
        # of smaller messages more are under way, and a site whose policy allows larger ones sends so many at once
        self.limits = dataclasses.replace(
            limits,
            message=most,
            under_way=2 * max(most, limits.message),
            at_once=proposal.limits.message_bytes,
        )
        self.actors = self._host()
        self._operations = operations
        self._tell = operations.tell
        self._out: dict[tuple[str, str], Connection] = {}
        self._in: dict[tuple[str, str], Connection | None] = {}
        self._recorder: FolderRecorder | None = None
        self._run_folder: RunFolder | None = None
        self._earlier: Earlier | None = None
        """The run whose states this one takes."""
        self._goes_on: Earlier | None = None
        """The same, where this one is its continuation."""
        self._number: int | None = None
        """Of the checkpoint that a paused run goes on from."""
        self._last_number = proposal.number
        """Of the last checkpoint that the driver asked for; first of the one that the run goes on from."""
        self._disk = concurrent.futures.ThreadPoolExecutor(1)
        self._writing: tuple[str, asyncio.Future[None]] | None = None
        """Label of a checkpoint that is being written,"""
        self._written: str | None = None
        """and of one that is, and is not yet counted on."""
        self._labels: set[str] = set()
        self._released: list[Any] = []
        self._is_accounted = False
        """What predictions recorded of privacy."""
        self._clock = WallClock(time.time())
        self._is_open = asyncio.Event()
        """Before which no actor here does what others ask for: nothing leaves that is not on record."""
        self._num_refused = 0
        self._noted: Refused | None = None
        self._raised: BaseException | None = None
        """What a call from elsewhere last failed with: they are told that the log says more."""
        self._tasks: list[asyncio.Task[None]] = []
        self._spending = PrivacyBudget(folder, proposal, self.actors, self._refuse)
        if self._may_pause:
            self._spending.remember(folder.path / JOURNALS / f"{proposal.run}.account.json")
        self._spending.is_exact = self.has_quorum or self._may_pause
        self._lost_sites: asyncio.Queue[str] = asyncio.Queue()
        self._num_meetings: Counter[str] = Counter()
        self.usage: UsageWatch | None = None
        self.measured_at = 0.0
        """When it was last looked at what it takes of the machine."""
        self._temporary: TemporaryFolder | None = None
        self._asked_at = time.monotonic()
        """When the driver last asked for a step, or one was done; first the approval."""
        self._steps: set[str] = set()
        """What the driver has asked for, each once: one that ends late would bring the run back to where it was."""
        self._is_stepping = False
        self.is_told = asyncio.Event()
        """Whether the driver was told that the run has failed."""
        # known to this site alone, unless the run is a test
        self._seed = secrets.randbits(_SEED_BITS) if proposal.shared_seed is None else proposal.shared_seed
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.unawaited)
        self.unawaited.mark_tasks(loop)

    @property
    def idle_seconds(self) -> float:
        """Seconds for which nobody can do anything until the driver asks for the next step."""
        waits = not self._is_stepping and self.life is not Life.OPEN
        return time.monotonic() - self._asked_at if waits else 0.0

    @property
    def has_begun(self) -> bool:
        """Whether the driver has asked for a step."""
        return bool(self._steps)

    def _host(self) -> ActorHost:
        ray = self._folder.ray
        if ray is None or shares_process(ray, self._config, self.proposal):
            return LocalActorHost(self)
        from fedactors.federation.ray_hosting import RayActorHost

        package, digest = package_of(self._protocol), code_digest(self.proposal)
        code = None if digest is None else user_code.files_of(digest)
        return RayActorHost(self, ray, self.limits.call, package, self.proposal.source, code)

    # --- for the driver, whose site is the coordinator's ---

    VERBS = frozenset({"prepare", "connect", "load", "open", "snapshot", "written", "commit"})
    """What the driver asks for that ends the run at this site if it fails."""

    async def control(self, verb: str, args: tuple[Any, ...]) -> Any:
        """Do what the driver asks."""
        self.unawaited.enter()
        steps = {"prepare": Life.APPROVED, "connect": Life.PREPARED, "load": Life.CONNECTED, "open": Life.LOADED}
        steps |= {"finish": Life.OPEN, "end": Life.CLOSED}
        if verb in steps and self.life is not steps[verb]:
            raise Refused(DRIVER, f"asks {self._folder.name} to {verb}, where the run is {self.life.name.lower()}")
        if verb in self._steps:
            raise Refused(DRIVER, f"asks {self._folder.name} to {verb} a second time")
        if verb not in steps:
            return await self._do(verb, args)
        self._steps.add(verb)
        self._is_stepping = True
        try:
            return await self._do(verb, args)
        finally:
            self._is_stepping, self._asked_at = False, time.monotonic()

    async def _do(self, verb: str, args: tuple[Any, ...]) -> Any:
        match verb, args:
            case "prepare", (actor_specs, *number) if [type(one) for one in number] in ([], [int]):
                await self._prepare(actor_specs, *number)
            case "connect", ():
                await self._connect()
            case "load", ():
                with self._same_rows():
                    await self.actors.load(self._goes_on)
                if self._number is not None:
                    await self._spending.restore()
                    self._parts.resume(self.actors.call_counts())
                self.life = Life.LOADED
            case "open", ():
                if self.is_return:  # from here on it leaves anew what a restart forgets: `num_returns` counts it
                    first = first_of(self._folder, self.proposal).run
                    facts = {} if self._number is None else {"checkpoint": self._number}
                    self._folder.audit.add("reopened", run=self.proposal.run, first=first, **facts)
                if self._number is not None:  # not at the load: one that opens nothing would erase what others counted
                    self._parts.write(self.actors.call_counts())
                if not self.is_return or self._may_pause:
                    await self._spending.check_plan()
                self._spending.open()
                self.life, start = Life.OPEN, time.time()
                self._is_open.set()
                watch = asyncio.get_running_loop().create_task(self._spending.watch())
                watch.add_done_callback(self._watch_ended)
                self._tasks = [watch]
                with self._same_rows():
                    await self.actors.open(start)
            case "meet", (str(site),):
                await self._meet_again(site)
            case "lost", ():
                return await self._lost_sites.get()
            case "watch", ():
                error = await asyncio.shield(self.failure)
                self.is_told.set()
                raise error
            case "call", (receiver, method, value):
                if self.life is not Life.OPEN:
                    raise Refused(DRIVER, f"calls an actor, where the run is {self.life.name.lower()}")
                return await self.serve_call(self.proposal.coordinator, DRIVER, receiver, method, value)
            case "snapshot", (str(label), int(number)):
                return tuple((await self._snapshot(label, number)).items())
            case "written", (str(label),):
                if self._writing is None or self._writing[0] != label:
                    raise Refused(DRIVER, f"waits for a checkpoint {label[:40]!r} that it did not ask for")
                await self._writing[1]
                self._written, self._writing = label, None
            case "commit", (str(label),):
                if self._written != label or self._run_folder is None:
                    raise Refused(DRIVER, f"counts on a checkpoint {label[:40]!r} that was not just written")
                self._written = None
                await self._on_disk(commit, self._run_folder, label)
            case "drain", ():
                await self.actors.settle()
                await self._on_disk(self._record, self.actors.recorded())
                return self._counted()
            case "finish", ():
                await self._finish()
            case "end", ():
                self.end("finished")
            case _:
                raise Refused(DRIVER, f"asks {self._folder.name} for {verb[:40]!r} with what it does not take")
        return None

    async def unless_it_fails(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a step that may take long, and raise as soon as the run has failed."""
        task = asyncio.get_running_loop().create_task(work)
        both: set[asyncio.Future[Any]] = {task, self.failure}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self.is_told.set()
            raise self.failure.result()
        finally:
            task.cancel()  # also where its driver is gone: nobody would end what it goes on to open

    async def _prepare(self, actor_specs: Any, number: int | None = None) -> None:
        proposal, folder, me = self.proposal, self._folder, self._folder.name
        if (number is not None) != (self.is_return and self._may_pause):
            raise Refused(DRIVER, f"asks {me} to go on from checkpoint {number} of a run that is not paused here")
        if isinstance(self.actors, LocalActorHost):  # else they are processes of a Ray
            self._temporary = TemporaryFolder()
        folders = [folder.path / "predictions" / proposal.run]
        folders += [] if self._temporary is None else [self._temporary.path]
        self.usage = UsageWatch(
            proposal.limits.within(folder.policy.run_limits, folder.name),
            lambda: [*(folder.path / "runs").glob(f"*-{proposal.run}-0*"), *folders],
            folder.path / JOURNALS / f"{proposal.run}.usage.json" if self.has_quorum or self._may_pause else None,
            lambda: self.actors.reports,
            # beside other runs what the site's process takes, and begins, is nobody's alone
            os.getpid if folder.policy.concurrent_runs == 1 else lambda: self.actors.root,
        )
        if self._temporary is not None:
            self.usage.hold()
        hosts = self.hosts
        is_spawned = isinstance(actor_specs, tuple) and all(type(one) is tuple and len(one) == 3 for one in actor_specs)
        if not (is_spawned and actor_specs):
            raise Refused(DRIVER, "spawns what are no actors")
        classes = classes_of(self._protocol, self._config, proposal.purpose)
        pairs = [(name, cls) for name, cls, _ in actor_specs]
        book = make_book(pairs, classes.values(), lambda name: proposal.site_of(name, hosts))
        for name in book:
            party = name.partition("/")[0]
            if party in self._folder.federation.members and party not in proposal.data:
                raise Refused(DRIVER, f"spawns {name}, whose site takes no part in the run")
        sent = may_leave(self._protocol, self._config, predicts=proposal.purpose == "predict")
        self.gate = Gate(me, proposal.coordinator, book, sent)
        # of the proposal too: what the other sites approved is what this one did
        told = proposal.digest, sorted((name, cls, book[name].site) for name, cls in pairs)
        self.assignment = hashlib.sha256(repr(told).encode()).hexdigest()
        earlier = None
        if self.is_return:
            if number is None:
                earlier = find(folder, *self._newest())
            else:
                is_earlier, newest = (
                    not has_checkpoint(folder, proposal.run, number),
                    newest_checkpoint(folder, proposal.run),
                )
                check_resumes_itself(folder, proposal, number, *newest, is_earlier=is_earlier)
                earlier = find(folder, proposal.earlier if is_earlier else proposal.run, number)
            self._earlier = self._goes_on = earlier
            self._number = number
            self._last_number = self._last_number if number is None else number
            self._seed = earlier.seed
            folder.audit.add("returned", run=proposal.run)
        elif proposal.purpose != "train":
            earlier = find(folder, proposal.earlier, proposal.number, or_before=self.has_quorum)
            self._earlier = earlier
        if earlier is not None and proposal.purpose != "predict":
            earlier.folder.check_version()
        if earlier is not None and proposal.purpose == "resume" and not self.is_return:
            self._goes_on, self._seed = earlier, earlier.seed
            facts: dict[str, Any] = {"earlier": proposal.earlier, "first": first_of(self._folder, proposal).run}
            self._folder.audit.add("continued", run=proposal.run, checkpoint=proposal.number, **facts)
        clock = self._clock = WallClock(time.time(), 0.0 if self._goes_on is None else self._goes_on.now)
        self._open_records()
        specs: list[ActorSpec] = []
        for name, cls, frame in actor_specs:
            if book[name].site != me:
                continue
            try:
                args, kwargs = built_with(name, frame, self._folder, proposal, self._config, earlier, self._seed)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise not_taken(name) from error
            self._spending.is_level &= classes[cls].is_account_level or name.partition("/")[0] != me  # type: ignore[attr-defined]
            specs.append(ActorSpec(classes[cls], name, args, kwargs, classes[cls].resources))  # type: ignore[attr-defined]
        states = None if earlier is None else keyed_digests(earlier.states, earlier.seed)
        approved = await asyncio.to_thread(spawned_by, self._protocol, self._config, proposal, hosts, states)
        check_spawned(approved, actor_specs, lambda name: book[name].site == me)
        if not isinstance(self.actors, LocalActorHost):  # labels are of the coordinator's hosts
            specs = [replace(spec, resources=replace(approved[spec.name].resources, labels={})) for spec in specs]
        if proposal.purpose == "predict":
            trained = {"earlier": proposal.earlier, "first": first_of(self._folder, proposal).run}
            self._folder.audit.add("predicted", run=proposal.run, checkpoint=proposal.number, **trained)
        await self._look_at_data()
        await self.actors.spawn(specs, self._seed, clock)
        self.usage.check_others()
        self.life = Life.PREPARED

    async def _look_at_data(self) -> None:
        """Say in the site's log that its data are others than when the run was approved.

        Raises:
            RowsChangedError: its policy has no run begin then; names no place of this machine.
        """
        run, folder = self.proposal.run, self._folder
        changed = await asyncio.to_thread(changed_data, folder, self.proposal)
        if not changed:
            return
        name = f"data.{self.proposal.data[folder.name]}"
        folder.audit.add("data_changed", run=run, data=self.proposal.data[folder.name], changed=changed)
        self._tell("data_changed", f"run {run}: {name}: changed since the run was approved: {', '.join(changed)}")
        if folder.policy.changed_data == "refuse":
            raise RowsChangedError(
                f"{folder.name}: {name}: the rows have changed since run {run} was approved: propose it again"
            )

    @contextlib.contextmanager
    def _same_rows(self) -> Iterator[None]:
        """Say by the data's name that they are others than those of the run that this one goes on from.

        Raises:
            RowsChangedError: without the words of the actor's code, or of a path, which are for the own log.
        """
        try:
            yield
        except RowsChangedError as error:
            name, earlier = self._folder.name, self.proposal.earlier
            self._tell("error", f"run {self.proposal.run}: {error}")
            which = f"{name}: data.{self.proposal.data.get(name)}"
            raise RowsChangedError(
                f"{which}: the rows are others, or read otherwise, than when run {earlier} began"
            ) from error

    def _open_records(self) -> None:
        proposal, parent = self.proposal, None if self._goes_on is None else self._goes_on.folder
        if proposal.purpose == "predict":
            protections = describe_protections(self._protocol, self._config)
            is_counted = any(one["on"] and one["kind"] in COUNTED for one in protections)
            if self._earlier is not None and is_counted:  # else predictions leave no lines of the privacy ledger
                self._earlier.folder.check_countable()
            return
        self._run_folder = folder_of(self._folder, proposal, self._protocol, parent)
        self._recorder = FolderRecorder(self._run_folder, parent=parent)

    def _newest(self) -> tuple[str, int | None]:
        """Return the run, and the checkpoint, that a site goes on from that comes back: its own newest one of the run.

        Where it was away since a run was resumed, it has none of it, and goes on from its part of the earlier one.
        """
        proposal = self.proposal
        if proposal.purpose != "resume" or any((self._folder.path / "runs").glob(f"*-{proposal.run}-0*")):
            return proposal.run, None
        return proposal.earlier, None

    async def _connect(self) -> None:
        others = {address.site for address in self.gate.book.values()} - {self._folder.name}
        may_miss = self.has_quorum and (self.is_return or self.proposal.purpose == "resume")

        async def reach(site: str) -> None:
            try:
                await self._dial(site)
            except FedactorsError as error:
                # another site that refuses this one keeps it out of the run as little as one that is away
                is_needed = not may_miss or (site == self.proposal.coordinator and not isinstance(error, PartyLost))
                if is_needed:
                    raise
                self._leave(site, first_line(error))

        if may_miss:  # each may take as long as a handshake
            await asyncio.gather(*map(reach, sorted(others)))
        else:
            for site in sorted(others):
                await reach(site)
        self.life = Life.CONNECTED

    async def _dial(self, site: str) -> None:
        """Open the own connections to another site."""
        federation = self._folder.federation
        for purpose in (CALLS, PAYLOADS):
            hello = Hello(federation.name, purpose, self.proposal.run, self.assignment)
            ends: dict[str, Any] = {"serve": None, "lost": self._lost, "traffic": self._operations.traffic(site)}
            ends |= {"errors": errors_for(self._folder.name, site), "tell": partial(self._operations.tell_of, site)}
            ends["is_of"] = partial(self.gate.is_at, site)
            made = await dial(self._folder, federation.members[site], hello, self.limits, **ends)
            self._out[site, purpose] = made
            self._operations.met(made)

    # --- sites that are lost, and come back ---

    @property
    def _may_lose(self) -> bool:
        return self.has_quorum and self.life is Life.OPEN

    def _leave(self, site: str, why: str) -> None:
        """Go on without a site: calls to it fail, and the driver hears of it."""
        there = [links for links in (self._out, self._in) for who, _ in links if who == site]
        for links in (self._out, self._in):
            for key in [key for key in links if key[0] == site]:
                if (link := links.pop(key)) is not None:
                    link.give_up(why)
        if there and self._operations.has_room_for(site):  # it may go and come back as often as it likes
            self._folder.audit.add("away", run=self.proposal.run, site=site, why=why)
            self._tell("away", f"run {self.proposal.run}: goes on without {site}: {why}")
        self._lost_sites.put_nowait(site)

    async def _meet_again(self, site: str) -> None:
        """Open connections to a site that has come back to the run."""
        if not self._may_lose or site not in {address.site for address in self.gate.book.values()}:
            raise Refused(DRIVER, f"lets {site[:40]!r} come back to a run that nobody may leave, or is not in it")
        for purpose in (CALLS, PAYLOADS):
            if (old := self._out.pop((site, purpose), None)) is not None:
                old.give_up("it has come back as a new process")
        self._num_meetings[site] += 1
        try:
            if self._num_meetings[site] > _MOST_MEETINGS:
                raise Refused(site, f"comes back to a run more than {_MOST_MEETINGS} times")
            await self._dial(site)
        except FedactorsError as error:
            if self._folder.name == self.proposal.coordinator:  # what asks all others is there
                raise
            # who is not reached, or turns this site away, is not let say by it that this site failed
            self._leave(site, first_line(error))
            return
        # without it a log whose end is cut off would look like that of a site that is away
        self._folder.audit.add("returned", run=self.proposal.run, site=site)
        self._operations.tell_of(site, "away", f"run {self.proposal.run}: {site} is back")

    async def _snapshot(self, label: str, number: int) -> dict[str, bytes]:
        if self.life is not Life.OPEN or self._recorder is None:
            raise Refused(DRIVER, "asks for a checkpoint of a run that is not open, or trains nothing")
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,30}", label):
            raise Refused(DRIVER, f"asks for a checkpoint called {label[:40]!r}")
        if self._writing is not None or self._written is not None:
            raise Refused(DRIVER, "asks for a checkpoint before it counts on the one before")
        if number <= self._last_number:  # else a later part could go on from what an earlier one left
            raise Refused(DRIVER, f"asks for checkpoint {number} after {self._last_number}: numbers increase")
        self._last_number = number
        self._labels.add(label)
        if len(self._labels) > _MOST_LABELS:
            raise Refused(DRIVER, f"asks for checkpoints under {len(self._labels)} labels; kept: {_MOST_LABELS}")
        await self.actors.settle()
        found, frames = self.actors.recorded(), await self.actors.snapshots()
        if self._may_pause:  # what the states have counted is on record, whether or not it has left
            await self._spending.measure()
            self._parts.write(self.actors.call_counts())  # a kill forgets what follows, and no more
        site_part = seal(label, number, self._seed, self._clock.now(), frames, self.actors)
        self._on_disk(self._record, found)
        self._writing = label, self._on_disk(write, self._recorder, label, frames, site_part)
        return keyed_digests(frames, self._seed)

    def _on_disk(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Do something to the run's folder after all that was asked for before, while the actors go on."""
        done = asyncio.get_running_loop().run_in_executor(self._disk, work, *args)
        done.add_done_callback(self._was_done)
        return done

    def _was_done(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.fail(error)

    def _record(self, found: Recorded) -> None:
        """Write what the actors recorded."""
        found.privacy[:] = self._spending.with_forgotten(found.privacy) if found.privacy else []
        self._is_accounted = self._is_accounted or bool(found.privacy)
        if self._recorder is not None:
            self._recorder.ledger_sink(found.rows)
            for span in found.spans:
                self._recorder.record_span(*span)
            self._recorder.privacy(found.privacy)
        else:
            self._released.extend(found.privacy)

    def _counted(self) -> tuple[Any, ...]:
        """Return the actors' totals, and seconds of waiting: what this machine computes with is not the driver's."""
        counted = self.actors.counted().values()
        return tuple(row for one in counted for row in one.totals), sum(one.waiting for one in counted)

    async def _account(self) -> None:
        """Write down what the own actors released under noise, where the driver has not let them."""
        if self.proposal.purpose == "predict":  # whose actors write down each release at once
            return
        await self.actors.settle()
        await self._on_disk(self._record, self.actors.recorded())
        if self._is_accounted:
            return
        async with self._spending.measuring:
            found = await self.actors.account(self._folder.name)
        noised = [record for record in recorded(found) if record.mechanism not in ("none", "secure-sum")]
        await self._on_disk(self._record, Recorded(privacy=noised))

    async def _finish(self) -> None:
        await self.unawaited.last_answers()
        await self._spending.measure()
        await self._account()
        await self.actors.close()
        self.unawaited.check()
        if self.failure.done():
            raise self.failure.result()
        self._spending.close()
        self.life = Life.CLOSED  # other sites may end before this one

    # --- for other sites ---

    def welcome(self, peer: str, purpose: str, assignment: str) -> dict[str, Any]:
        """Return how the connection that another site opens is to be made.

        Raises:
            Refused: it is not in the run, was told of another assignment, or has this connection already.
        """
        sites = {address.site for address in self.gate.book.values()}
        comes_late = self.is_return and self.has_quorum and self.life is Life.LOADED
        begins = self.life in (Life.PREPARED, Life.CONNECTED) or comes_late
        if peer not in sites or not (begins or self._may_lose):
            raise Refused(peer, "opens a connection of a run that it is not in, or that is under way already")
        if assignment != self.assignment:
            raise Refused(peer, "was told of another run or assignment than this site")
        if (peer, purpose) in self._in and self._may_lose:
            if (old := self._in.pop((peer, purpose))) is not None:
                old.give_up("it has come back as a new process")
        elif (peer, purpose) in self._in:
            raise Refused(peer, f"opens its connection for {purpose} a second time")
        self._in[peer, purpose] = None
        calls, payloads = partial(self._serve_frame, peer, asyncio.Lock()), partial(self._serve_payload, peer)
        serve = calls if purpose == CALLS else payloads
        errors = errors_for(self._folder.name, peer)
        return {"serve": serve, "lost": self._lost, "errors": errors, "limits": self.limits}

    def joined(self, peer: str, purpose: str, connection: Connection) -> None:
        """Remember a connection that another site opened."""
        self._in[peer, purpose] = connection

    async def _serve_frame(self, peer: str, in_turn: asyncio.Lock, body: memoryview) -> Any:
        self.unawaited.enter()
        with self._refusing():
            async with in_turn:  # calls keep their order, also where one is long to read
                found = await decoded(body, peer)
            sender, receiver, method, value = checked_parts(found, peer, 4, "is no call")
        return await self.serve_call(peer, sender, receiver, method, value)

    async def serve_call(self, peer: str, sender: Any, receiver: Any, method: Any, value: Any) -> Any:
        """Do what an actor of another site, or the driver, calls for, if it may."""
        with self._refusing():
            path = self.gate.call_in(peer, sender, receiver, method, value)
        await self._opened(receiver)
        try:
            with self._refusing():
                # of the own party alone: a server that is hosted here calls others meanwhile, for which is measured
                is_of_site = method == ACCOUNT and receiver.partition("/")[0] == self._folder.name
                async with self._spending.measuring if is_of_site else contextlib.nullcontext():
                    reply = await self.actors.serve(path, value)
                await self._spending.check()
                self.gate.reply_out(path, reply)
        except Exception as error:
            if not isinstance(error, Refused):
                self._raised = error
            raise
        return reply

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Write down what is refused, which stops the run."""
        try:
            yield
        except Refused as error:
            raise self._refuse(error) from None

    async def _opened(self, actor: str) -> None:
        """Wait until the run is open here.

        Raises:
            PartyLost: it is over, and what would leave now nobody would count.
        """
        await self._is_open.wait()
        if self.life is not Life.OPEN and self._spending.is_counted:  # else a last word of another site may be late
            raise PartyLost(actor, "the run is over at its site")

    async def _serve_payload(self, peer: str, body: memoryview) -> Any:
        self.unawaited.enter()
        with self._refusing():
            reader, owner, key = parts_of(body, peer, 3, "asks for no payload", most=QUESTION_BYTES)
            self.gate.check_owner(peer, reader)
            address = self.gate.book.get(owner) if isinstance(owner, str) else None
            if address is None or address.site != self._folder.name or not isinstance(key, int):
                raise Refused(reader, f"asks {self._folder.name} for a payload that is not kept here")
            await self._opened(owner)
            value = await self.actors.read(owner, key, reader)
            await self._spending.check()
            self.gate.payload_out(owner, reader, value)
        return value

    def send(self, site: str, purpose: str, parts: Parts, what: str) -> asyncio.Future[Any]:
        """Send a request to another site; return the future of its reply's bytes."""
        if (site, purpose) not in self._out and self._may_lose:
            gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            gone.set_exception(PartyLost(site, f"its site is away; {what} was not done"))
            return gone
        if purpose == CALLS and self._spending.is_counted:
            return asyncio.get_running_loop().create_task(self._send_within(site, parts, what))
        return self._out[site, purpose].request(parts, what, order=what.partition(".")[0] if purpose == CALLS else "")

    async def _send_within(self, site: str, parts: Parts, what: str) -> Any:
        await self._spending.check()
        link = self._out.get((site, CALLS))
        if link is None:
            raise PartyLost(site, f"its site is away; {what} was not done")
        return await link.request(parts, what, order=what.partition(".")[0])

    def output(self, to: str) -> Path:
        """Return where a file that the driver asked for goes.

        Raises:
            Refused: it asks for a place, not for a name.
        """
        if not _FILE.fullmatch(to):
            raise Refused(DRIVER, f"asks for a file {to[:40]!r}: a name is allowed, no path")
        folder = self._folder.path / "predictions" / self.proposal.run
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / to

    def waits(self) -> list[dict[str, Any]]:
        """Return which site waits for which other one, as far as this one knows, JSON-ready."""
        me = self._folder.name
        found: list[dict[str, Any]] = []
        if barrier := _UNTIL.get(self.life):
            driver = self.proposal.coordinator
            found.append({"who": me, "for": driver, "what": barrier, "replies": None, "seconds": None})
        for (site, _), link in sorted(self._out.items()):
            number, what, seconds = link.awaited()
            if away := link.away_seconds:
                number, what, seconds = 0, "its connection to come back", away
            if what:
                found.append({"who": me, "for": site, "what": what, "replies": number, "seconds": round(seconds, 1)})
        for (site, purpose), known in sorted(self._in.items()):
            if known is not None and (number := known.num_unanswered):
                found.append({"who": site, "for": me, "what": purpose, "replies": number, "seconds": None})
        return found

    # --- what goes wrong ---

    def note(self, error: Refused) -> None:
        """Write down that something was refused, here or by another site, and stop the run.

        A peer that repeats what is refused after the run has failed fills no disk with it.
        """
        if error is self._noted:
            return
        self._noted = error
        self._num_refused += 1
        if self._num_refused > _MOST_REFUSED:
            return
        self._folder.audit.add("refused", run=self.proposal.run, party=error.party, why=error.message)
        self._tell("refused", f"refused: {error}")
        self.fail(error)

    def _refuse(self, error: Refused) -> Refused:
        self.note(error)
        return error

    def _lost(self, connection: Connection, why: str) -> None:
        if self.life >= Life.CLOSED:
            return
        peer = connection.peer
        if why.startswith(REFUSED):
            self.note(Refused(peer, why.removeprefix(REFUSED)))
            return
        if why.startswith(TURNED_AWAY):
            self.note(Refused(self._folder.name, f"is turned away by {peer}: it {why.removeprefix(TURNED_AWAY)}"))
            return
        links = [*self._out.values(), *self._in.values()]
        if self.has_quorum and (connection not in links or self._may_lose or self.is_return):
            if connection in links:  # else another one has taken its place
                self._leave(peer, why)
            return
        actor = next((address.name for address in self.gate.book.values() if address.site == peer), peer)
        self.fail(PartyLost(actor, f"its site {peer} was lost: {why}"))

    def fail(self, error: BaseException) -> None:
        """Stop the run with its first failure."""
        if not self.failure.done() and self.life is not Life.ENDED:
            self._tell("error", f"run {self.proposal.run}: {error}")
            self.failure.set_result(error)

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        """Stop a run whose budget nobody watches any more."""
        if not watch.cancelled() and (error := watch.exception()) is not None:
            self.fail(refused_for(self._folder.name, _UNACCOUNTED, error))

    def failed(self, actor: str, error: BaseException) -> None:
        """Stop the run because of something of an actor, or of code that is nobody's here."""
        self.fail(raised_by(actor, error, self.gate.book))

    def end(self, status: str, why: str = "") -> None:
        """End the run at this site; again does nothing."""
        if self.life is Life.ENDED:
            return
        if status == "failed" and self._raised is not None:
            self.fail(self._raised)
        last = self._disk.submit(self._record, self.actors.recorded())
        was_open = self.life >= Life.OPEN
        charged = as_logged(self._spending.charged(status, was_open=was_open))
        may_resume = self._may_pause and was_open and status != "finished"
        calls_here = self.actors.call_counts() if may_resume else {}
        self.life = Life.ENDED
        self._spending.release()
        if self.usage is not None:
            self.usage.release()
        for task in self._tasks:
            task.cancel()
        for connection in (*self._out.values(), *self._in.values()):
            if connection is not None:
                connection.close()
        self.actors.end()
        forget_blocks(self.scope)
        self._disk.shutdown()
        if self._temporary is not None:
            self._temporary.remove(waits=False)  # others are heard meanwhile, however many files there are
        more: dict[str, Any] = {"more_refused": n} if (n := self._num_refused - _MOST_REFUSED) > 0 else {}
        more |= {"taken": charged, "was_open": was_open}
        signed = partial(log_end, self._folder, self.proposal.run, status, self.gate, why, **more)
        for write in (
            partial(self._parts.write, calls_here),
            last.result,
            partial(self._close_records, status),
            signed,
        ):
            try:
                write()
            except (OSError, FedactorsError) as error:  # a full disk: the run is over, and others may ask for the next
                self._tell("error", f"run {self.proposal.run}: its records are not whole: {first_line(error)}")
        self._tell(status, f"run {self.proposal.run}: {status}{f': {why}' if why else ''}")

    def _close_records(self, status: str) -> None:
        if self._released and self._earlier is not None:  # whether or not the prediction came to an end
            self._earlier.folder.count([json_line(jsonable(record)) for record in self._released])
        if self._recorder is not None and self._run_folder is not None:
            if self.failure.done() and not self.failure.cancelled():
                self._run_folder.write_bytes("error.txt", without_words(self.failure.result()).encode())
            self._recorder.close()
            self._run_folder.finish("finished" if status == "finished" else "failed")

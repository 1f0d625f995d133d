"""What the campaign does: runs to which faults happen at random moments, each gone on from to its end.

A story is a chain of starts of one protocol under one loss policy. To each start one fault happens, at a random moment
(while it starts up, or later): a signal to one of its processes, its link going down, its disk being full. The run may
then finish or end with one line; what it leaves is counted; the next start goes on from its folder. The last one is
left alone, has to finish, and tells whether anything was lost on the way.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedactors.runs.folder import ROUND_METRICS, RunFolder
from fedactors.runs.metrics import read_rounds
from fedactors.runs.recorder import read_ledger
from tests.campaign.environment import Environment

HEARTBEAT_TIMEOUT = 8.0
LEFT_SECONDS = 20.0
"""After which what is left counts."""
_LIMIT = 150.0
"""Seconds after a fault by which a run must have ended: heartbeat timeouts, its own end, and a machine that is busy."""
_LAST_HEARTBEAT = 60.0
"""Of the start to which nothing happens: on a busy machine somebody may be silent for long."""
_TRIES = 4
_NOT_STARTED = "Ray did not start on this machine"
"""Nothing that was done here: Ray gives itself 30 seconds, which a busy machine may not have."""
_CODES = {2, 3, 4, 130, 143}
_RAYS_END = "(exit code 1)"
"""In the line of those that Ray's own library ended, with a code of its own."""
_EXPECTED = re.compile(r"^(fedactors: |details: |resume with: |warning: |.*; (a fresh process|the run goes on))")


@dataclass(frozen=True)
class Subject:
    """A protocol with the settings of the campaign."""

    name: str
    words: tuple[str, ...]
    kinds: tuple[str, ...]
    """Classes of its actors."""
    policies: tuple[str, ...]
    num_rounds: int
    repeats: bool = True
    """Whether its metrics do not depend on timing, so that they are those of a run to which nothing happened."""
    batches: tuple[int, int] = (0, 0)
    """Batches of an epoch and passive workers' parties, where batches are handed out."""
    emulate: float | None = None
    """As `--emulate`, where a run on a cluster that is joined would take hours otherwise."""
    spared: tuple[str, ...] = ()
    """Classes of those whose loss in training the run survives, unless its policy is ``stop``."""


SUBJECTS = {
    one.name: one
    for one in (
        Subject(
            "pubsub-vfl",
            ("num_epochs=30", "batch_size=32", "num_layers=2", "hidden_size=32", "num_passive_workers=2"),
            ("ActiveWorker", "PassiveWorker", "BatchBroker", "AveragingServer"),
            ("stop", "restart"),
            30,
            repeats=False,
            batches=(12, 1),
            spared=("ActiveWorker", "PassiveWorker"),
        ),
        Subject(
            "glasu",
            ("num_rounds=25", "hidden_size=16", "evaluate_every=5", "--data", "cora"),
            ("GraphClient", "AggregationServer"),
            ("stop", "continue"),
            25,
            spared=("GraphClient",),
        ),
        Subject(
            "mtcd",
            ("problem=sparse-logistic", "num_clients=3", "num_tokens=2", "num_hops=3", "num_rounds=40",
             "min_cluster_size=1", "--data", "breast-cancer"),
            ("TokenClient", "TokenServer"),
            ("stop", "continue"),
            40,
            spared=("TokenClient",),
        ),
        Subject(
            "nebulafl",
            ("num_centers=2", "num_containers=8", "active_per_center=2", "duration=3000", "rotation_interval=500",
             "evaluation_interval=200"),
            ("NebulaCenter", "Auditor"),
            ("stop", "continue", "restart"),
            15,
            repeats=False,
            emulate=0.002,
            spared=("NebulaCenter",),
        ),
        Subject(
            "tablepuppet",
            ("num_rounds=8", "--data", "orders:2000"),
            ("TableClient", "JoinServer"),
            ("stop",),
            8,
        ),
        Subject(
            "horizontal",
            ("num_clients=2", "num_rounds=25", "hidden_size=16", "num_training=400", "--data", "digits"),
            ("Site", "Coordinator"),
            ("stop", "continue"),
            25,
            spared=("Site",),
        ),
    )
}  # fmt: skip
PROCESSES = ("driver", "raylet", "GCS", "actor")
"""What every run has beside its own kinds of actors; ``actor``: one that is just starting, its kind not known yet."""
NO_FAULT = "none yet"
FAULTS = {"kill -9": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}


@dataclass(frozen=True)
class Fault:
    """What happens to a start of a run, and when."""

    what: str
    """One of `FAULTS`, ``link down`` or ``disk full``."""
    to: str
    """A kind of process; ``host`` for the faults of a place."""
    moment: float
    """Below 1 within start-up, from 1 to 2 once a round, and this share of .9 of all rounds, are recorded."""


@dataclass
class Row:
    """What came of a fault: a line of the table of the campaign."""

    protocol: str
    policy: str
    process: str
    fault: str
    moment: float
    round: int = -1
    """How many rounds were recorded when it happened; -1: the run was starting up."""
    cluster: str = "own"
    """``own``: embedded in the driver; ``joined``: it was there before."""
    ended: str = ""
    """``finished``, ``line`` and a documented code, ``killed`` (the driver itself), ``hung``, ``internal``."""
    code: int = 0
    seconds: float = 0.0
    """From the fault to the end."""
    resumed: bool = False
    """Whether it finished in the end, after going on if it had to."""
    later: str = ""
    """How the start after one that ended began: ``resumed``, or ``anew`` where there was no checkpoint yet."""
    seed: int | None = None
    """Of the campaign that it belongs to; none, nor the next two, in rows that are older than these columns."""
    commit: str = ""
    time: str = ""
    """Of day, UTC, when the fault happened."""
    left_processes: int = 0
    left_files: int = 0
    lost: str = ""
    """What a finished run lacks: rounds, batches, or the metrics that it should have."""
    message: str = ""
    """The line that it ended with, or what is wrong."""
    other_lines: int = 0
    """Lines on standard error that are none of ours."""

    @property
    def is_spared(self) -> bool:
        """Whether the policy promises that the run goes on: a party was lost in training, and not the only server."""
        spared = self.process in SUBJECTS[self.protocol].spared
        return spared and self.round >= 0 and self.policy != "stop" and self.fault in FAULTS

    @property
    def is_bad(self) -> bool:
        """Whether it came to what must not be."""
        left = self.left_processes or self.left_files
        ended = self.ended in ("hung", "internal") or (self.is_spared and self.ended != "finished")
        return bool(ended or left or self.lost or not self.resumed)


@dataclass
class Pace:
    """How long an undisturbed run of a subject takes here: seconds until its actors are known, and until it ends."""

    up: float
    end: float
    metrics: list[dict[str, Any]] = field(default_factory=list)


class Start:
    """One start of a run."""

    def __init__(
        self,
        environment: Environment,
        number: int,
        subject: Subject,
        policy: str,
        resume: Path | None,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT,
    ) -> None:
        self.environment, self.subject = environment, subject
        self.pids_file = environment.folder / f"start-{number}.pids"
        self._before = set(environment.out.iterdir())
        words = ["run", subject.name, *subject.words, f"on_party_loss={policy}"]
        if resume is not None:
            words = ["run", subject.name, "--resume", str(resume)]
        elif environment.address is not None and subject.emulate is not None:
            words += ["--emulate", f"{subject.emulate:g}"]
        words += ["--heartbeat-timeout", f"{heartbeat_timeout:g}"]
        joined = [] if environment.address is None else ["--address", environment.address]
        self.resumes = resume
        self.began = time.monotonic()
        self.patience = math.inf  # seconds after which a run that has not come to its fault counts as hung
        self.process = environment.start(
            self.pids_file, *words, "--runtime", "ray", "--quiet", "--out", str(environment.out), *joined
        )
        self.up: float | None = None
        self._earlier = 0

    @property
    def folder(self) -> Path | None:
        """The run folder, if it has one by now."""
        made = [path for path in self.environment.out.iterdir() if path not in self._before and path.is_dir()]
        return made[0] if made else None

    def actors(self) -> dict[str, tuple[str, int]]:
        """Return kind and process of each actor that is known."""
        try:
            return {name: (kind, pid) for name, (kind, pid) in json.loads(self.pids_file.read_text()).items()}
        except FileNotFoundError:
            return {}

    @property
    def last_round(self) -> int:
        """The last round that is recorded; -1 until this start, which may go on from another, has recorded one."""
        recorded = self._recorded()
        if self.up is None or len(recorded) <= self._earlier:
            return -1
        with suppress(ValueError):  # a line may be half written
            return int(json.loads(recorded.rstrip(b"\n").split(b"\n")[-1])["round"])
        return -1

    def _recorded(self) -> bytes:
        with suppress(FileNotFoundError):
            return (self.folder / ROUND_METRICS).read_bytes() if self.folder is not None else b""
        return b""

    def wait_until(self, seconds: float, num_rounds: int = -1) -> bool:
        """Wait so long after the start, and until so many rounds are recorded; return whether the run still goes on."""
        while time.monotonic() < self.began + seconds or self.last_round < num_rounds:
            if self.process.poll() is not None or self._is_late():
                return False
            if self.up is None and self.actors():
                self.up, self._earlier = time.monotonic() - self.began, len(self._recorded())
            time.sleep(0.02)
        return self.process.poll() is None

    def _is_late(self) -> bool:
        until = self.began + self.patience
        return time.monotonic() > until and time.monotonic() > until + self.environment.waited()

    def wait_for(self, moment: float, pace: Pace) -> bool:
        """Wait for the moment of a fault; return whether the run still goes on."""
        if moment < 1:
            return self.wait_until(pace.up * moment)
        return self.wait_until(0.0, int(0.9 * self.subject.num_rounds * (moment - 1)))

    def find(self, kind: str, draw: random.Random) -> int | None:
        """Return a process of a kind, waiting for one; None if the run ends before there is any."""
        while self.process.poll() is None and not self._is_late():
            if kind == "driver":
                driver = [pid for pid, what in self.environment.processes().items() if what == "driver"]
                return min(driver) if driver else self.process.pid
            if kind in PROCESSES:
                pids = [pid for pid, what in self.environment.processes().items() if what == kind]
            else:
                pids = [pid for is_kind, pid in self.actors().values() if is_kind == kind]
            if pids:
                return draw.choice(sorted(pids))
            time.sleep(0.02)
        return None

    def end(self, limit: float) -> int | None:
        """Wait for the end; return the exit code, or None if it did not come in time.

        Seconds in which one of its processes waited for a core do not count: whoever hangs waits for none.
        """
        until = time.monotonic() + limit
        while self.process.poll() is None:
            if time.monotonic() > until and time.monotonic() > until + self.environment.waited():
                break
            time.sleep(0.05)
        return self.process.returncode

    def errors(self) -> list[str]:
        """Return the lines of standard error."""
        return self.pids_file.with_suffix(".err").read_text(errors="replace").splitlines()


def measure_pace(subject: Subject, *, cluster: bool = False) -> Pace:
    """Run a subject undisturbed."""
    environment = Environment(cluster=cluster)
    try:
        start = Start(environment, 0, subject, subject.policies[0], None)
        start.wait_until(math.inf)
        end = time.monotonic() - start.began
        folder = start.folder
        if start.process.returncode != 0 or folder is None:
            raise RuntimeError(f"{subject.name} fails undisturbed: {start.errors()}")
        return Pace(start.up or end / 2, end, read_rounds(RunFolder.open(folder)))
    finally:
        environment.remove()


def tell(
    subject: Subject,
    policy: str,
    faults: Sequence[Fault],
    pace: Pace,
    draw: random.Random,
    *,
    cluster: bool = False,
    seed: int | None = None,
    commit: str = "",
) -> Iterator[Row]:
    """Let a story happen, and yield what came of each of its faults when its end is known."""
    what = {fault.what for fault in faults}
    environment = Environment(network="link down" in what, disk="disk full" in what, cluster=cluster)
    rows: list[Row] = []
    parent: Path | None = None
    try:
        for number, fault in enumerate(faults):
            start = Start(environment, number, subject, policy, parent)
            start.patience = _LIMIT + 3 * pace.end
            row = Row(subject.name, policy, fault.to, fault.what, fault.moment, cluster="joined" if cluster else "own")
            row.seed, row.commit = seed, commit
            struck = strike(start, fault, pace, draw, row)
            row.time = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            if struck:
                rows.append(row)
            code = start.end(_LIMIT)
            row.seconds = time.monotonic() - struck if struck else 0.0
            if code is None:
                keep_evidence(start, row)
                environment.end_all()
            if environment.network:
                environment.link(up=True)
            if environment.disk is not None:
                environment.disk.empty()
            left = count_left(row, environment)
            judge(row, code, start, fault)  # by now whoever speaks for a driver that ended at once has spoken
            if row.ended == "internal":
                keep_evidence(start, row)
            row.message = f"{row.message} {left}".strip()[:600]
            if not struck and (row.ended in ("hung", "internal") or left):
                row.fault = NO_FAULT  # it came to what must not be before anything was done to it
                rows.append(row)
            folder = start.folder
            if row.ended == "finished":
                row.lost, row.resumed, parent = lacks(start, subject, policy, pace, row), True, None
            else:
                if folder is not None and has_checkpoint(folder):
                    parent = folder
                row.later = "anew" if parent is None else "resumed"
        # the last start is left alone
        pending = [row for row in rows if not row.resumed]
        if pending:
            for attempt in range(_TRIES):
                last = Start(environment, len(faults) + attempt, subject, policy, parent, _LAST_HEARTBEAT)
                code = last.end(_LIMIT + 2 * pace.end)
                if code == 0 or not any(_NOT_STARTED in line for line in last.errors()):
                    break
            if code == 0:
                lost = lacks(last, subject, policy, pace, pending[-1])
                for row in pending:
                    row.resumed, row.lost = True, row.lost or lost
            else:
                text = " | ".join(last.errors()[-3:])
                for row in pending:
                    row.lost = row.lost or f"the last start ended with {code}: {text}"[:300]
                keep_evidence(last, pending[-1])
        yield from rows
    finally:
        environment.remove()


def strike(start: Start, fault: Fault, pace: Pace, draw: random.Random, row: Row) -> float | None:
    """Let a fault happen in its moment, and note the round; return when it did, or None if the run had ended before."""
    if not start.wait_for(fault.moment, pace):
        return None
    row.round = start.last_round
    if fault.what == "link down":
        start.environment.link(up=False)
    elif fault.what == "disk full":
        assert start.environment.disk is not None
        start.environment.disk.fill()
    else:
        pid = start.find(fault.to, draw)
        if pid is None:
            return None
        try:
            os.kill(pid, FAULTS[fault.what])
        except ProcessLookupError:
            return None
        if fault.to == "driver" and fault.what == "stop":
            # nobody supervises the driver: it goes on as soon as somebody lets it, and has missed heartbeat timeouts
            # until then
            at = time.monotonic()
            while time.monotonic() < at + 1.5 * HEARTBEAT_TIMEOUT:
                time.sleep(0.1)
            os.kill(pid, signal.SIGCONT)
    return time.monotonic()


def judge(row: Row, code: int | None, start: Start, fault: Fault) -> None:
    """Say how a start ended."""
    lines = start.errors()
    ours = [line for line in lines if line.startswith("fedactors: ")]
    row.code = -1000 if code is None else code
    row.other_lines = sum(1 for line in lines if not _EXPECTED.match(line))
    row.message = (ours[-1] if ours else "")[:300]
    if code is None:
        row.ended = "hung"
    elif code == 0:
        row.ended = "finished"
    elif fault.to == "driver" and fault.what == "kill -9":
        row.ended = "killed"
    elif fault.to == "driver" and fault.what == "terminate" and code == -signal.SIGTERM:
        row.ended = "killed"  # before Python could listen to signals
    elif (
        (code in _CODES or (code == 1 and ours and _RAYS_END in ours[0]))
        and len(ours) == 1
        and not any("Traceback" in line for line in lines)
    ):
        row.ended = "line"
    else:
        row.ended, row.message = "internal", " | ".join(lines[-4:])[-300:]


def count_left(row: Row, environment: Environment) -> str:
    """Count what is left after a while; return what it is."""
    until = time.monotonic() + LEFT_SECONDS
    while any(left := environment.left()) and time.monotonic() < until:
        time.sleep(0.25)
    row.left_processes, row.left_files = len(left[0]), len(left[1])
    if not any(left):
        return ""
    environment.end_all()
    return f"LEFT {left}"


def has_checkpoint(folder: Path) -> bool:
    """Say whether a run folder can be gone on from."""
    try:
        return bool(json.loads((folder / "manifest.json").read_text())["checkpoints"])
    except (FileNotFoundError, ValueError):
        return False


def lacks(start: Start, subject: Subject, policy: str, pace: Pace, row: Row) -> str:
    """Return what a finished run lacks; nothing if it is whole."""
    if start.folder is None:
        return "it has no run folder"
    folder = RunFolder.open(start.folder)
    folder.verify()
    parent = None if start.resumes is None else start.resumes.name
    if folder.manifest["parent"] != parent:
        return f"it goes on from {folder.manifest['parent']}, and not from {parent}"
    found, types = read_rounds(folder), read_ledger(folder).column("type").to_pylist()  # it adds up to the summary
    numbers = [line["round"] for line in found if line["round"] > 0]
    if numbers != list(range(1, subject.num_rounds + 1)):
        return f"its rounds are {numbers}"
    if subject.repeats and policy == "stop" and not _equal(found, pace.metrics):
        return "its metrics are not those of an undisturbed run"
    num_batches, num_parties = subject.batches
    if num_batches:
        epochs = [line for line in found if line["round"] > 0]
        if any(line["batches"] != num_batches for line in epochs):
            return f"{num_batches} batches are an epoch, those trained are {[line['batches'] for line in epochs]}"
        least = subject.num_rounds * num_batches * num_parties
        most = least + sum(line["abandoned"] for line in epochs) * num_parties
        seen = {kind: types.count(kind) for kind in ("Embedding", "Gradient")}
        # a process that was killed takes with it what it noted since it was last asked: its readers know as much
        if max(seen.values()) < least or max(seen.values()) > most:
            return f"{least} to {most} batches were to be published, the ledger knows of {seen}"
    return ""


def _equal(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    if len(found) != len(expected):
        return False
    for here, there in zip(found, expected, strict=True):
        for name, value in there.items():
            if isinstance(value, float) and not math.isclose(here[name], value, rel_tol=1e-5, abs_tol=1e-9):
                return False
    return True


def keep_evidence(start: Start, row: Row) -> None:
    """Keep what a run said that should not have ended as it did."""
    for pid in [pid for pid, what in start.environment.processes().items() if what == "driver"]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
            time.sleep(1)  # it writes where each of its threads is
    kept = Path("/tmp/campaign-evidence")
    kept.mkdir(exist_ok=True)
    name = f"{row.protocol}-{row.policy}-{row.process}-{row.fault}-{time.time():.0f}".replace(" ", "_")
    (kept / f"{name}.txt").write_text(json.dumps(dataclasses.asdict(row)) + "\n" + "\n".join(start.errors()))

"""Runs of a protocol for the conformance kit: watched, interrupted, with lost processes, on Ray, and between sites.

`simulate`, `simulate_elsewhere` and `run_on_ray` each return an `Outcome`. `remarks_on_sites` starts sites as
organisations would, each a process with a key, a log and small data of its own, and trains between them the protocol
that is installed; what is said of it comes from what the sites themselves wrote down.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import math
import os
import pickle
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import psutil

from fedactors.actors.remote import DRIVER
from fedactors.config import build
from fedactors.errors import BadInput, CallTimeout, PartyFailed
from fedactors.federation.approval import decide, kept_proposals
from fedactors.federation.audit_log import AUDIT, check
from fedactors.federation.operations import compare
from fedactors.federation.site_folder import SiteFolder
from fedactors.inspection import describe_messages
from fedactors.launch import load_data
from fedactors.messages.ledger import Usage
from fedactors.plugins import Protocol, find_protocol, resolve_address
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.runs.metrics import RunResult, encode_round, jsonable
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.addresses import free_port
from fedactors.runtime.interface import Runtime, Snapshot
from fedactors.testing.observation import Observed, ObservedRuntime, WatchedCode

_NOT_THERE = 3


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked and how strictly."""

    protocol: Protocol
    config: Mapping[str, Any] = field(default_factory=dict)
    """Values beside those of the protocol's ``smoke`` setting; at least two rounds are needed."""
    data: str = ""
    """Data set; the protocol's default one if it is empty."""
    seed: int = 0
    deterministic: bool = True
    """Whether the result does not depend on timing, so that both runtimes must give equal numbers."""
    relative: float = 1e-6
    """How much final metrics of the two runtimes may differ, if `deterministic`."""
    agree: Mapping[str, float] = field(default_factory=dict)
    """Else, per final metric, by how much the runtimes may differ."""
    raw_columns: Mapping[str, Any] = field(default_factory=dict)
    """Name to feature matrix (samples first), for data that does not come through `fedactors.data`."""
    allowed: tuple[str, ...] = ()
    """Message types, or single fields of them (``Smashed.labels``), that are meant to reveal raw values."""
    on_ray: bool = True
    """Whether to run on Ray as well (the cluster of this process, else an embedded one)."""
    num_sites: int = 0
    """Between how many sites (2 or 3, processes of this machine, TLS between them) to run as well, on small data of the
    protocol's layout; they are called north, south and west, and the protocol must be installed. 0: none."""
    site_config: Mapping[str, Any] | None = None
    """All config values of the run between sites, where own data refuse some of those of ``smoke``."""
    num_cpus: int | None = None
    """Cores of an embedded cluster."""
    timeout: float = 120.0
    """Seconds after its start (all processes are up) after which a run on Ray counts as hanging."""

    def make_config(self, **overrides: Any) -> Any:
        """Return the config, with the smallest meaningful values unless others were given."""
        return build(self.protocol.Config, {**self.protocol.smoke, **self.config, **overrides})

    def make_site_config(self) -> Any:
        """Return the config of the run between sites."""
        return self.make_config() if self.site_config is None else build(self.protocol.Config, self.site_config)

    def load(self, config: Any) -> Any:
        """Return what the protocol's `run` takes."""
        return load_data(self.protocol, config, self.data or self.protocol.default_data, self.seed)

    @property
    def home(self) -> ModuleType:
        """The module that the protocol's `run` comes from."""
        return inspect.getmodule(self.protocol.run) or sys.modules["__main__"]

    def is_user_code(self, file: str) -> bool:
        """Say whether a source file belongs to the protocol."""
        home = Path(getattr(self.home, "__file__", None) or "/nowhere")
        return Path(file).is_relative_to(home.parent) if self.home.__package__ else file == str(home)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A checkpoint and how many rounds had been recorded by then."""

    label: str
    num_rounds: int
    snapshot: Snapshot


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended and what it left."""

    lines: list[str]
    metrics: Mapping[str, Any]
    usage: Usage | None
    totals: dict[tuple[str, str, str], tuple[int, int]]
    taken: list[Taken]
    observed: Observed
    privacy: Sequence[PrivacyRecord]
    actors: dict[str, type]
    error: BaseException | None


class _RoundRecorder(MemoryRecorder):
    """Keeps every checkpoint instead of the newest of each label, and notes what a run folder would hold."""

    def __init__(self, observed: Observed, on_round: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.round_lines: list[str] = []
        self.taken: list[Taken] = []
        self._observed = observed
        self._on_round = on_round

    def _note(self, what: str, value: Any) -> None:
        self._observed.leave(what, "the run", "the run to its folder", value)

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        self._note("the metrics of rounds", metrics)
        self.round_lines.append(encode_round(index, metrics))
        if self._on_round is not None:
            self._on_round()

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        self._note("the timeline's names", (actor, kind, label))

    def ledger_sink(self, rows: list[Any]) -> None:
        self._note("the ledger's names", [(sender, receiver, type_) for _, sender, receiver, _, type_, _ in rows])

    def privacy(self, records: Iterable[Any]) -> None:
        self._note("the privacy records", [jsonable(record) for record in records])

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        self._note("the names of checkpoints", label)
        snapshot = Snapshot(dict(actors), driver)
        self.taken.append(Taken(label=label, num_rounds=len(self.round_lines), snapshot=snapshot))


def simulate(
    subject: Subject,
    *,
    watch: bool = False,
    resume: Snapshot | None = None,
    faults: Mapping[str, float] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run in the simulated runtime; `watch` also looks at the code itself."""
    observed, code = Observed(), WatchedCode(subject.home.__name__, subject.is_user_code)
    kept = _RoundRecorder(observed)
    runtime = ObservedRuntime(
        observed,
        after_step=code.after_step if watch else None,
        seed=subject.seed,
        recorder=kept,
        reproducible_noise=True,
        faults=faults,
    )
    config = subject.make_config(**(overrides or {}))
    with ExitStack() as stack:
        if watch:
            # imports the protocol before it is watched: an import may not begin inside another one
            subject.is_user_code("")
            importlib.import_module("sklearn.metrics")  # whose others a baseline imports
            stack.enter_context(code.watching(runtime))
        stack.enter_context(runtime.measured())
        return _execute(subject, config, runtime, kept, observed, resume)


def simulate_elsewhere(subject: Subject) -> tuple[list[str], Any] | str | None:
    """Simulate in a process of its own, where hashes of texts are others; return (lines of rounds, final metrics).

    A text says why it ended otherwise. None for a protocol that cannot be sent there, such as one that a notebook has
    defined.
    """
    pickled = io.BytesIO()
    try:
        _ModulePickler(pickled).dump(dataclasses.replace(subject, raw_columns={}))
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", "from fedactors.testing.runs import answer; answer()"]
    done = subprocess.run(command, input=pickled.getvalue(), env=environment, capture_output=True)
    if done.returncode == _NOT_THERE:
        return None
    if done.returncode != 0:
        return done.stderr.decode().strip().splitlines()[-1]
    lines, metrics = json.loads(done.stdout.splitlines()[-1])
    return lines, metrics


def answer() -> None:
    """Run what `simulate_elsewhere` sends, in the process that it started."""
    try:
        subject = pickle.load(sys.stdin.buffer)
    except (ImportError, AttributeError):
        sys.exit(_NOT_THERE)
    outcome = simulate(subject)
    if outcome.error is not None:
        raise outcome.error
    print(json.dumps([outcome.lines, jsonable(outcome.metrics)]))


class _ModulePickler(pickle.Pickler):
    """Sends a module by its name."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, ModuleType):
            return importlib.import_module, (value.__name__,)
        return NotImplemented


def run_on_ray(subject: Subject, *, kill: str | None = None, overrides: Mapping[str, Any] | None = None) -> Outcome:
    """Run on Ray; `kill` names an actor whose process is killed when the first round is recorded."""
    from fedactors.runtime.ray.runtime import RayRuntime

    def kill_once() -> None:
        if kill is not None and len(kept.round_lines) == 1:
            os.kill(runtime.processes[kill], signal.SIGKILL)

    observed = Observed()
    kept = _RoundRecorder(observed, on_round=kill_once)
    # a protocol whose parties wait for hours of their own says how fast they pass on embedded Ray
    scale = subject.protocol.emulate
    runtime = RayRuntime(
        seed=subject.seed,
        recorder=kept,
        num_cpus=subject.num_cpus,
        reproducible_noise=True,
        emulate=scale is not None,
        scale=scale or 1.0,
    )

    bring_up, limits = runtime.start, list[asyncio.TimerHandle]()

    async def start() -> None:
        await bring_up()
        if not limits:  # to come up, each process has a limit of its own
            hanging = CallTimeout("the run", f"it had not ended {subject.timeout:g} s after its start")
            limits.append(asyncio.get_running_loop().call_later(subject.timeout, runtime.fail, hanging))

    runtime.start = start  # type: ignore[method-assign]
    outcome = _execute(subject, subject.make_config(**(overrides or {})), runtime, kept, observed, None)
    left = [f"{name} ({pid})" for name, pid in runtime.processes.items() if not _ends(pid)]
    if left and outcome.error is None:
        outcome = dataclasses.replace(outcome, error=RuntimeError(f"processes are left behind: {', '.join(left)}"))
    return outcome


def _execute(
    subject: Subject, config: Any, runtime: Runtime, kept: _RoundRecorder, observed: Observed, resume: Snapshot | None
) -> Outcome:
    result: RunResult | None = None
    error: BaseException | None = None
    try:
        data = subject.load(config)
        result = runtime.execute(lambda: subject.protocol.run(config, data, runtime), resume)
        observed.leave("the actors' names", "the run", "the run to its folder", list(runtime._actor_specs))
        observed.leave("RunResult.metrics", "the run", "the run to its folder", result.metrics)
        observed.leave("RunResult.extra", "the run", "the run to its folder", result.extra)
    except (Exception, asyncio.CancelledError) as caught:
        error = caught
    totals: dict[tuple[str, str, str], tuple[int, int]] = {}
    for total in runtime.ledger.totals():
        if DRIVER not in (total.sender, total.receiver):
            totals[total.sender, total.receiver, total.type] = (total.messages, total.bytes)
    return Outcome(
        lines=kept.round_lines,
        metrics={} if result is None else result.metrics,
        usage=runtime.usage() if error is None else None,
        totals=totals,
        taken=kept.taken,
        observed=observed,
        privacy=tuple(runtime.privacy_records),
        actors={name: actor_spec.cls for name, actor_spec in runtime._actor_specs.items()},
        error=error,
    )


@contextmanager
def one_cluster(subject: Subject) -> Iterator[None]:
    """Keep one embedded cluster for all runs on Ray, unless this process has joined one already."""
    from fedactors.runtime.ray import cluster

    joined = cluster.join(None, subject.num_cpus)
    try:
        yield
    finally:
        cluster.leave(joined, ())


def _ends(pid: int, seconds: float = 20.0) -> bool:
    """Say whether a process ends within `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


_NUM_ROWS, _NUM_NODES, _NUM_EDGES = 160, 60, 150
_COLUMNS = 2
"""Of each site, where columns are dealt."""


def write_small_data(folder: Path, sites: Sequence[str], layout: str) -> str:
    """Write each site's data into its folder under `folder`, and what it says of them into its ``site.toml``.

    Site number i calls its data ``rows{i}``. The same data, for one machine, are described in ``parties.toml``.

    Args:
        folder: which has a folder of each site.
        sites: their names; the first has the label.
        layout: vertical, horizontal, relational or graph.

    Returns:
        What a run's ``--data`` calls them.
    """
    task, parties = _WRITERS[layout](folder, sites)
    if layout != "vertical":
        task = {"layout": layout, **task}
    described = [f"[task]\n{_lines(task)}"]
    for number, (site, facts) in enumerate(zip(sites, parties, strict=True)):
        table = {"table": f"rows{number}"} if layout == "relational" else {}
        described.append(f"[parties.{site}]\n{_lines({**facts, **table})}")
        told = _lines({**facts, "nodes": str(folder / site / "nodes.npz")} if layout == "graph" else facts)
        if number == 0:
            inner = ", ".join(f"{name} = {_random_word(value)}" for name, value in task.items() if name != "nodes")
            told += f"task = {{ {inner} }}\n"
        with (folder / site / "site.toml").open("a") as file:
            file.write(f"\n[data.rows{number}]\n{told}")
    (folder / "parties.toml").write_text("\n".join(described))
    return ",".join(f"{site}=rows{number}" for number, site in enumerate(sites))


Written = tuple[dict[str, Any], list[dict[str, Any]]]
"""What is said of the task, and of each site's own data."""


def _drawn(sites: Sequence[str]) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    x_NF = rng.normal(size=(_NUM_ROWS, _COLUMNS * len(sites)))
    return x_NF, (x_NF.sum(axis=1) + rng.normal(size=_NUM_ROWS) > 0).astype(int)


def _table(path: Path, columns: dict[str, Sequence[Any]]) -> str:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(f"{x:.4f}" if isinstance(x, float) else str(x) for x in row) for row in rows]
    path.write_text("\n".join([",".join(columns), *lines, ""]))
    return str(path)


def _columns(folder: Path, sites: Sequence[str]) -> list[dict[str, Any]]:
    x_NF, y_N = _drawn(sites)
    found = []
    for number, site in enumerate(sites):
        columns: dict[str, Any] = {"id": [f"r{i}" for i in range(_NUM_ROWS)]}
        for f in range(number * _COLUMNS, (number + 1) * _COLUMNS):
            columns[f"x{f}"] = x_NF[:, f]
        if number == 0:
            columns["bad"] = y_N
        found.append({"path": _table(folder / site / "rows.csv", columns)})
    return found


def _vertical(folder: Path, sites: Sequence[str]) -> Written:
    parties = [{**facts, "id": "id"} for facts in _columns(folder, sites)]
    parties[0]["label"] = "bad"
    return {"type": "binary", "alignment": "already-aligned"}, parties


def _relational(folder: Path, sites: Sequence[str]) -> Written:
    parties = _columns(folder, sites)
    names = [f"rows{number}" for number in range(len(sites))]
    asked = [f"{name}.x{f}" for n, name in enumerate(names) for f in range(n * _COLUMNS, (n + 1) * _COLUMNS)]
    joined = " ".join(f"JOIN {name} ON {names[0]}.id = {name}.id" for name in names[1:])
    sql = f"SELECT {names[0]}.bad, {', '.join(asked)} FROM {names[0]} {joined}"
    return {"type": "binary", "sql": sql, "label": f"{names[0]}.bad"}, parties


def _horizontal(folder: Path, sites: Sequence[str]) -> Written:
    x_NF, y_N = _drawn(sites)
    parts = np.array_split(np.arange(_NUM_ROWS), len(sites) + 1)  # the last are test rows

    def write(path: Path, rows: Any) -> str:
        columns = {f"x{f}": x_NF[rows, f] for f in range(x_NF.shape[1])}
        return _table(path, {**columns, "bad": y_N[rows]})

    test = write(folder / sites[0] / "test.csv", parts[-1])
    parties = [
        {"path": write(folder / site / "rows.csv", rows), "label": "bad"}
        for site, rows in zip(sites, parts, strict=False)
    ]
    return {"type": "binary", "classes": ["0", "1"], "test": test}, parties


def _graph(folder: Path, sites: Sequence[str]) -> Written:
    x_NF, y_N = _drawn(sites)
    rng = np.random.default_rng(6)
    nodes: dict[str, Any] = dict(
        zip(("train", "validation", "test"), np.split(np.arange(_NUM_NODES), (30, 40)), strict=True)
    )
    parties = []
    for number, site in enumerate(sites):
        path, features = folder / site / "graph.npz", x_NF[:_NUM_NODES, number * _COLUMNS : (number + 1) * _COLUMNS]
        np.savez(path, edges=rng.integers(0, _NUM_NODES, (2, _NUM_EDGES)), features=features)
        np.savez(folder / site / "nodes.npz", **{"labels": y_N[:_NUM_NODES], **nodes})
        parties.append({"file": str(path)})
    return {"nodes": str(folder / sites[0] / "nodes.npz")}, parties


_WRITERS = {"vertical": _vertical, "horizontal": _horizontal, "relational": _relational, "graph": _graph}


def _lines(facts: dict[str, Any]) -> str:
    return "".join(f"{name} = {_random_word(value)}\n" for name, value in facts.items())


def _random_word(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return f"[{', '.join(map(_random_word, value))}]"


SITES = ("north", "south", "west")
"""What the sites are called, the one with the label first."""
START_SECONDS = 90.0
_END_SECONDS = 30.0
_LOOK_SECONDS = 2.0
_BUSY_SHARE = 0.05
"""Of a core that a site may take which has nothing to do."""


@dataclass(frozen=True)
class Done:
    """How a command ended: its summary, or the line that it said instead."""

    summary: Mapping[str, Any] | None
    line: str


class Sites:
    """Sites of one federation in a folder, each of them a process.

    Args:
        folder: an empty one.
        names: of the sites.
        federation: its name.
        hosts: the party without data that a site hosts, by the site's name; the coordinator's hosts all others.
        tell: hears every command, as a person types it.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        federation: str = "federation",
        hosts: Mapping[str, str] = MappingProxyType({}),
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.names = tuple(names)
        self.data = ""
        """What a run's ``--data`` calls what they have."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = folder
        self._federation = federation
        self._tell = tell
        made = str(folder / federation)
        self.type("federation", "init", made)
        for name in names:
            home, address = str(folder / name), f"127.0.0.1:{free_port()}"
            self.type("site", "init", name, "--folder", home, "--listen", address)
            host = ("--host", hosts[name]) if name in hosts else ()
            self.type("federation", "admit", made, f"{home}/{name}.csr", "--address", address, *host)
        for name in names:
            (folder / name / "federation.toml").write_text((folder / federation / "federation.toml").read_text())

    def type(self, *words: str) -> dict[str, Any]:
        """Do what a person types, and return the JSON that it prints.

        Raises:
            PartyFailed: it did not work.
        """
        self._tell(f"$ fedactors {shlex.join(words)}")
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = resolve_address("fedactors.cli.main:main")([*words, "--format", "json"])
        if code:
            raise PartyFailed(self._federation, f"fedactors {words[0]} {words[1]}: {_last(said.getvalue())}")
        found: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
        return found

    def start(self) -> None:
        """Start them, and wait until each listens.

        Raises:
            CallTimeout: one does not.
        """
        for name in self.names:
            self._tell(f"$ fedactors site start --folder {self.home(name)} &")
            with self.log(name).open("wb") as log:
                words = [sys.executable, "-u", "-m", "fedactors", "site", "start", "--folder", str(self.home(name))]
                self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, env=environment())
        until = time.monotonic() + START_SECONDS
        for name, process in self.processes.items():
            while "listens at" not in (said := self.log(name).read_text()):
                if process.poll() is not None or time.monotonic() > until:
                    raise CallTimeout(name, f"its site did not start: {_last(said)}")
                time.sleep(0.05)

    def home(self, name: str) -> Path:
        """Return the folder of a site."""
        return self._folder / name

    def log(self, name: str) -> Path:
        """Return the file of what a site's process says."""
        return self.home(name) / "site.log"

    def simulate(self, subject: Subject) -> Done:
        """Run on the same data in one process."""
        return self._run(subject, "--runtime", "simulated", "--data", str(self._folder / "parties.toml"))

    def train(self, subject: Subject) -> Done:
        """Run between the sites, each of which approves."""
        federation = str(self.home(self.names[0]) / "federation.toml")
        is_over = threading.Event()
        person = threading.Thread(target=self._answer, args=(is_over,), daemon=True)
        person.start()
        try:
            return self._run(subject, "--federation", federation, "--data", self.data, "--share-seed")
        finally:
            is_over.set()
            person.join()

    def _answer(self, is_over: threading.Event) -> None:
        answered: set[tuple[str, str]] = set()
        while not is_over.wait(0.05):
            for name in self.names:
                folder = SiteFolder(self.home(name))
                for run, proposal in kept_proposals(folder).items():
                    if (name, run) not in answered:
                        answered.add((name, run))
                        with contextlib.suppress(BadInput):  # its coordinator went away
                            decide(folder, proposal, approved=True)

    def _run(self, subject: Subject, *where: str) -> Done:
        preset, given = ["--smoke"], subject.config
        if subject.site_config is not None:
            preset, given = [], subject.site_config
        settings = [f"{name}={_word(value)}" for name, value in given.items()]
        if hasattr(subject.make_site_config(), "on_party_loss"):
            settings.append("on_party_loss=stop")  # the only one over a federation
        words = ["run", subject.protocol.name, *preset, *where, "--seed", str(subject.seed), *settings]
        words += ["--out", str(self._folder / "runs"), "--quiet", "--format", "json"]
        out, said = (self._folder / f"driver.{end}" for end in ("out", "err"))
        with out.open("wb") as to, said.open("wb") as errors:  # no pipes, which a process that is left would hold open
            command = [sys.executable, "-m", "fedactors", *words]
            driver = subprocess.Popen(command, env=environment(), stdout=to, stderr=errors)
            try:
                code = driver.wait(START_SECONDS + subject.timeout)
            except subprocess.TimeoutExpired:
                return Done(None, f"it had not ended after {START_SECONDS + subject.timeout:g} s")
            finally:
                driver.kill()
                driver.wait()
        if code:
            lines = [line for line in said.read_text().splitlines() if line.startswith("fedactors: ")]
            return Done(None, (lines or [_last(said.read_text())])[0].removeprefix("fedactors: "))
        return Done(json.loads(out.read_text().splitlines()[-1]), "")

    def written(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a site's log, each checked."""
        folder = SiteFolder(self.home(name))
        return check(folder.path / AUDIT, folder.federation.members[name].certificate)

    def end(self) -> list[str]:
        """Ask all to end, and kill what they leave; return those that had to be killed themselves."""
        killed, left = [], []
        for process in self.processes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                left += psutil.Process(process.pid).children(recursive=True)
        for process in self.processes.values():
            process.terminate()
        for name, process in self.processes.items():
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                killed.append(name)
                process.kill()
                process.wait()
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.processes.clear()
        return killed


def remarks_on_sites(subject: Subject) -> Iterator[str]:
    """Between sites a run gives what it gives in simulation, sends what is declared, and leaves its sites free."""
    try:
        installed = find_protocol(subject.protocol.name)
    except BadInput as error:
        yield f"a site runs what is installed there, and this is not: {error}"
        return
    if installed.actors is None or installed.load_data is None or installed.messages is None:
        yield "a site must know its actors, messages and data: give actors_at, messages_at and load_data_at"
        return
    with tempfile.TemporaryDirectory(prefix="fedactors-sites-") as folder:
        sites = Sites(Path(folder), SITES[: subject.num_sites])
        sites.data = write_small_data(Path(folder), sites.names, installed.partition)
        try:
            sites.start()
            yield from _remarks_on_runs(subject, sites, sites.simulate(subject), sites.train(subject))
            yield from _remarks_on_logs(subject, sites)
            yield from _remarks_on_what_goes_on(sites)
        finally:
            killed = sites.end()
        for name in killed:
            yield f"the site {name} had to be killed {_END_SECONDS:g} s after it was asked to end"


def _remarks_on_runs(subject: Subject, sites: Sites, simulated: Done, found: Done) -> Iterator[str]:
    if found.summary is None:
        yield f"between sites the smoke run does not end well: {found.line}"
    elif simulated.summary is None:
        yield f"on the data of the sites the smoke run does not end well in simulation: {simulated.line}"
    else:
        expected, metrics = simulated.summary["metrics"], found.summary["metrics"]
        for name in sorted({*expected, *metrics}):
            one, other = expected.get(name), metrics.get(name)
            most = 0.0 if subject.deterministic else subject.agree.get(name, math.inf)
            if not _alike(one, other, subject.relative if subject.deterministic else 0.0, most):
                yield f"{name} is {one} in simulation and {other} between sites: its result depends on where it runs"
        traffic = [(one["messages"], one["bytes"]) for one in (simulated.summary, found.summary)]
        if subject.deterministic and traffic[0] != traffic[1]:
            yield f"messages and bytes are {traffic[0]} in simulation and {traffic[1]} between sites"
    for name in sites.names:
        for line in sites.written(name):
            if line["what"] == "refused":
                yield f"the gate of {name} refused {line['party']}: {line['why']}"


def _alike(one: Any, other: Any, relative: float, absolute: float) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        both_undefined = math.isnan(one) and math.isnan(other)
        return both_undefined or math.isclose(one, other, rel_tol=relative, abs_tol=max(absolute, relative))
    return bool(one == other)


def _remarks_on_logs(subject: Subject, sites: Sites) -> Iterator[str]:
    logs = {name: sites.written(name) for name in sites.names}
    told = {entry["message"] for entry in describe_messages(subject.protocol, subject.make_site_config())}
    for name, lines in logs.items():
        ends = [line for line in lines if line["what"] == "ended" and line.get("who") == "site"]
        if not ends:
            yield f"the log of {name} does not say how the run ended"
        for line in ends:
            if line["status"] != "finished":
                yield f"at {name} the run ended as {line['status']}: {line['why']}"
            for entry in line["left"]:
                if entry["type"] not in told and not entry["type"].endswith("()"):  # a call that carries nothing
                    yield f"{entry['type']} left {name} and `fedactors inspect` does not tell of it"
    for one, other in combinations(logs, 2):
        for run in compare(one, logs[one], other, logs[other]):
            yield from (f"the logs of {one} and {other} differ: {text}" for text in run.differences)


def _remarks_on_what_goes_on(sites: Sites) -> Iterator[str]:
    for name, process in sites.processes.items():
        if process.poll() is not None:
            yield f"the process of the site {name} is gone: {_last(sites.log(name).read_text())}"
            continue
        running = psutil.Process(process.pid)
        if children := running.children(recursive=True):
            yield f"at {name} {len(children)} processes go on after the run: {', '.join(c.name() for c in children)}"
        before = running.cpu_times()
        time.sleep(_LOOK_SECONDS)
        after = running.cpu_times()
        share = (after.user + after.system - before.user - before.system) / _LOOK_SECONDS
        if share > _BUSY_SHARE:
            yield f"the site {name} takes {100 * share:.0f} % of a core after the run: something of an actor goes on"


def environment() -> dict[str, str]:
    """Return the environment of processes of this Python and path, one thread each."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

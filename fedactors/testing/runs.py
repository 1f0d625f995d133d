"""Runs of a protocol for the conformance kit: watched, interrupted, with lost processes, in simulation and on Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import inspect
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from fedactors.config import build
from fedactors.errors import CallTimeout
from fedactors.launch import load_data
from fedactors.plugins import Protocol, RunResult
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.records.metrics import encode_round, jsonable
from fedactors.records.recorder import MemoryRecorder
from fedactors.remote import DRIVER
from fedactors.runtime.base import Runtime, Snapshot, Usage
from fedactors.testing.observed import Observed, ObservedRuntime
from fedactors.testing.watched import WatchedCode

_NOT_THERE = 3


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked and how strictly; see `check_protocol`."""

    protocol: Protocol
    config: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    """The protocol's default one if it is empty."""
    seed: int = 0
    deterministic: bool = True
    relative: float = 1e-6
    agree: Mapping[str, float] = field(default_factory=dict)
    raw_columns: Mapping[str, Any] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    on_ray: bool = True
    num_sites: int = 0
    """Between which it runs as well."""
    site_config: Mapping[str, Any] | None = None
    """Of the run between sites; as for all others if it is None."""
    num_cpus: int | None = None
    timeout: float = 120.0

    def made(self, **overrides: Any) -> Any:
        """Return the config, with the smallest meaningful values unless others were given."""
        return build(self.protocol.Config, {**self.protocol.smoke, **self.config, **overrides})

    def made_at_sites(self) -> Any:
        """Return the config of the run between sites."""
        return self.made() if self.site_config is None else build(self.protocol.Config, self.site_config)

    def load(self, config: Any) -> Any:
        """Return what the protocol's `run` takes."""
        return load_data(self.protocol, config, self.data or self.protocol.default_data, self.seed)

    @property
    def home(self) -> ModuleType:
        """The module that the protocol's `run` comes from."""
        return inspect.getmodule(self.protocol.run) or sys.modules["__main__"]

    def is_own(self, file: str) -> bool:
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


class _Keeper(MemoryRecorder):
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
    observed, code = Observed(), WatchedCode(subject.home.__name__, subject.is_own)
    keeper = _Keeper(observed)
    runtime = ObservedRuntime(
        observed,
        after_step=code.after_step if watch else None,
        seed=subject.seed,
        recorder=keeper,
        reproducible_noise=True,
        faults=faults,
    )
    config = subject.made(**(overrides or {}))
    with ExitStack() as stack:
        if watch:
            subject.is_own("")  # imports the protocol before it is watched: an import may not begin inside another one
            stack.enter_context(code.watching(runtime))
        stack.enter_context(runtime.measured())
        return _execute(subject, config, runtime, keeper, observed, resume)


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
        if kill is not None and len(keeper.round_lines) == 1:
            os.kill(runtime.processes[kill], signal.SIGKILL)

    observed = Observed()
    keeper = _Keeper(observed, on_round=kill_once)
    # a protocol whose parties wait for hours of their own says how fast they pass on embedded Ray
    scale = getattr(subject.protocol, "emulate", None)
    runtime = RayRuntime(
        seed=subject.seed,
        recorder=keeper,
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
    outcome = _execute(subject, subject.made(**(overrides or {})), runtime, keeper, observed, None)
    left = [f"{name} ({pid})" for name, pid in runtime.processes.items() if not _ends(pid)]
    if left and outcome.error is None:
        outcome = dataclasses.replace(outcome, error=RuntimeError(f"processes are left behind: {', '.join(left)}"))
    return outcome


def _execute(
    subject: Subject, config: Any, runtime: Runtime, keeper: _Keeper, observed: Observed, resume: Snapshot | None
) -> Outcome:
    result: RunResult | None = None
    error: BaseException | None = None
    try:
        data = subject.load(config)
        result = runtime.execute(lambda: subject.protocol.run(config, data, runtime), resume)
        observed.leave("the actors' names", "the run", "the run to its folder", list(runtime._castings))
        observed.leave("RunResult.metrics", "the run", "the run to its folder", result.metrics)
        observed.leave("RunResult.extra", "the run", "the run to its folder", result.extra)
    except (Exception, asyncio.CancelledError) as caught:
        error = caught
    totals: dict[tuple[str, str, str], tuple[int, int]] = {}
    for total in runtime.ledger.totals():
        if DRIVER not in (total.sender, total.receiver):
            totals[total.sender, total.receiver, total.type] = (total.messages, total.bytes)
    return Outcome(
        lines=keeper.round_lines,
        metrics={} if result is None else result.metrics,
        usage=runtime.usage() if error is None else None,
        totals=totals,
        taken=keeper.taken,
        observed=observed,
        privacy=tuple(runtime.privacy_records),
        actors={name: casting.cls for name, casting in runtime._castings.items()},
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
    import psutil

    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False

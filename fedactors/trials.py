"""Runs of a protocol for the conformance kit: watched, interrupted, with lost processes, in simulation and on Ray."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedactors.config import build
from fedactors.errors import CallTimeout
from fedactors.launch import load_data
from fedactors.plugins import Protocol, RunResult
from fedactors.records.metrics import encode_round
from fedactors.records.recorder import MemoryRecorder
from fedactors.runtime.base import DRIVER, Runtime, Snapshot, Usage
from fedactors.runtime.observed import Observed, ObservedRuntime, watched_code


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked and how strictly; see `check_protocol`."""

    protocol: Protocol
    config: Mapping[str, Any]
    data: str
    seed: int
    deterministic: bool
    relative: float
    agree: Mapping[str, float]
    raw_columns: Mapping[str, Any]
    allowed: tuple[str, ...]
    on_ray: bool
    num_cpus: int | None
    timeout: float

    def made(self, **overrides: Any) -> Any:
        """Return the config, with the smallest meaningful values unless others were given."""
        return build(self.protocol.Config, {**self.protocol.smoke, **self.config, **overrides})

    def is_own(self, file: str) -> bool:
        """Say whether a source file belongs to the protocol."""
        module = inspect.getmodule(self.protocol.run)
        home = Path(getattr(module, "__file__", None) or "/nowhere")
        packaged = bool(getattr(module, "__package__", ""))
        return Path(file).is_relative_to(home.parent) if packaged else file == str(home)


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
    actors: dict[str, type]
    error: BaseException | None


class _Keeper(MemoryRecorder):
    """Keeps every checkpoint instead of the newest of each label."""

    def __init__(self, on_round: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.round_lines: list[str] = []
        self.taken: list[Taken] = []
        self._on_round = on_round

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        self.round_lines.append(encode_round(index, metrics))
        if self._on_round is not None:
            self._on_round()

    def save_checkpoint(self, label: str, actors: Mapping[str, bytes], driver: bytes) -> None:
        snapshot = Snapshot(dict(actors), driver)
        self.taken.append(Taken(label=label, num_rounds=len(self.round_lines), snapshot=snapshot))


def simulate(
    subject: Subject,
    *,
    watch: bool = False,
    isolate: bool = False,
    resume: Snapshot | None = None,
    faults: Mapping[str, float] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Outcome:
    """Run in the simulated runtime; `watch` also looks at the code itself."""
    keeper = _Keeper()
    runtime = ObservedRuntime(
        isolate=isolate, seed=subject.seed, recorder=keeper, reproducible_noise=True, faults=faults
    )
    config = subject.made(**(overrides or {}))
    if not watch:
        return _execute(subject, config, runtime, keeper, runtime.observed, resume)
    subject.is_own("")  # imports the protocol before it is watched: an import may not begin inside another one
    with watched_code(runtime.observed, subject.is_own):
        return _execute(subject, config, runtime, keeper, runtime.observed, resume)


def run_on_ray(subject: Subject, *, kill: str | None = None, overrides: Mapping[str, Any] | None = None) -> Outcome:
    """Run on Ray; `kill` names an actor whose process is killed when the first round is recorded."""
    from fedactors.runtime.ray.runtime import RayRuntime

    def kill_once() -> None:
        if kill is not None and len(keeper.round_lines) == 1:
            os.kill(runtime.processes[kill], signal.SIGKILL)

    keeper = _Keeper(on_round=kill_once)
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

    def give_up() -> None:
        hanging = CallTimeout("the run", f"it had not ended after {subject.timeout:g} s")
        runtime._loop.call_soon_threadsafe(runtime.fail, hanging)

    timer = threading.Timer(subject.timeout, give_up)
    timer.daemon = True
    timer.start()
    try:
        outcome = _execute(subject, subject.made(**(overrides or {})), runtime, keeper, Observed(), None)
    finally:
        timer.cancel()
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
        data = load_data(subject.protocol, config, subject.data, subject.seed)
        result = runtime.execute(lambda: subject.protocol.run(config, data, runtime), resume)
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

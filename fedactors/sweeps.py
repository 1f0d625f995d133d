"""A sweep: plans trials, takes from the cache what is known, runs the rest, writes one table, and may choose a setting.

    settings x seeds --> trials --> cached? --> row                     DIR/cache/<digest>.json, one file a finished run
                            |                    |
                            +-- processes, Ray --+--> DIR/NAME.parquet

    learning_rate=0.01,0.03 batch_size=64,256      four settings: the product of the lists
    learning_rate=loguniform(1e-4,1e-1)            a random draw, ``--draws`` of them
    layers=[8,16],[32]                             two settings of a field that holds a list: brackets keep it together

Each key draws from a stream of its own, so that more draws begin with the ones before, and another key changes none.

Each row is kept as soon as its run ends, so that a sweep that was interrupted or killed goes on where it stopped. A run
that failed is a row of the table too, but is not kept: the next sweep that has it tries it again. A trial's digest
covers all that decides its result: protocol, resolved configuration, data set with the content of its files, runtime,
seed, and the sources of fedactors and of the protocol.

Worker processes take one trial at a time. One that dies takes only its trial with it. Ctrl-C and any error in the
caller end all workers; when the caller is killed, they notice and end themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
import importlib.util
import itertools
import json
import math
import multiprocessing
import multiprocessing.connection
import random
import re
import shlex
import signal
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import fedactors
from fedactors.config import as_dict, build, parse_words, sources, with_contents
from fedactors.data.datasets.catalogue import describe, find_file
from fedactors.errors import BadInput, FedactorsError
from fedactors.launch import check_data, load_data, make_runtime, resolve
from fedactors.options import RunOptions
from fedactors.plugins import Planning, Protocol, find_protocol
from fedactors.runs.folder import describe_environment
from fedactors.runs.metrics import RunResult, Summary, is_number, jsonable
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runs.storage import write_atomic
from fedactors.runs.table import RunRow, write_table
from fedactors.runtime.compute import end_with_owner, one_thread, one_torch_thread
from fedactors.runtime.interface import Runtime
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.runtime.snapshots import is_object
from fedactors.validation import read_tree

# --- which settings are tried -----------------------------------------------------------------------------------------


Draw = Callable[[random.Random], Any]
_DISTRIBUTION = re.compile(r"(?P<name>[a-z]+)\((?P<arguments>.*)\)", re.DOTALL)
_BRACKETS = {"[": "]", "{": "}", "(": ")"}


def settings_of(
    words: Sequence[str], *, listed: Sequence[Mapping[str, Any]] = (), draws: int | None = None, draw_seed: int = 0
) -> list[dict[str, Any]]:
    """Return every setting that the words stand for, each once, in the order of the lists.

    Args:
        words: ``key=value``, where a value may be a list or a distribution.
        listed: settings of a file; each is combined with those of the words.
        draws: how often each distribution is drawn from; needed if there is one, and only then.
        draw_seed: decides what is drawn.

    Raises:
        BadInput: a key given in the words and in the file, a distribution that is unknown or has wrong arguments.
    """
    given = parse_words(words)
    for key in given:
        if any(key in setting for setting in listed):
            raise BadInput(f"{key}: given both as a word and in the file of settings")
    samplers = {key: draw for key, text in given.items() if (draw := _distribution(key, text)) is not None}
    if samplers and draws is None:
        raise BadInput(f"{next(iter(samplers))}: a distribution needs --draws N")
    if draws is not None and not samplers:
        raise BadInput("--draws: no key has a distribution: uniform, loguniform, integer or choice")
    drawn = [dict[str, Any]() for _ in range(draws or 1)]
    for key, draw in samplers.items():
        stream = random.Random(f"{draw_seed} {key}")
        for setting in drawn:
            setting[key] = draw(stream)
    lists = {key: split_list(text) for key, text in given.items() if key not in samplers}
    grid = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    found = [{**base, **point, **more} for base in (listed or [{}]) for point in grid for more in drawn]
    return [setting for index, setting in enumerate(found) if setting not in found[:index]]


def split_list(text: str) -> list[str]:
    """Split ``a,b,c`` at the commas that stand in no brackets."""
    parts, closing = [""], list[str]()
    for letter in text:
        if letter == "," and not closing:
            parts.append("")
            continue
        if letter in _BRACKETS:
            closing.append(_BRACKETS[letter])
        elif closing and letter == closing[-1]:
            closing.pop()
        parts[-1] += letter
    return [part.strip() for part in parts]


def read_settings(path: str) -> list[dict[str, Any]]:
    """Read an explicit list of settings: JSON (a list of objects) or TOML (tables ``[[settings]]``).

    Raises:
        BadInput: the file cannot be read, or holds something else.
    """
    tree = read_tree(path, "--settings")
    made = tree.get("settings") if isinstance(tree, dict) else tree
    if not isinstance(made, list) or not made or not all(isinstance(setting, dict) for setting in made):
        raise BadInput(f"--settings: {path!r} holds no list of settings: [[settings]] in TOML, [{{...}}] in JSON")
    return made


def _distribution(key: str, text: str) -> Draw | None:
    """Return how the distribution `text` is drawn from, or None if it is a value or a list."""
    match = _DISTRIBUTION.fullmatch(text.strip())
    if match is None:
        return None
    name, arguments = match["name"], split_list(match["arguments"])
    if name == "choice":
        return lambda stream: stream.choice(arguments)
    if name not in ("uniform", "loguniform", "integer"):
        raise BadInput(f"{key}: {text!r} is not allowed: uniform, loguniform, integer or choice")
    try:
        low, high = (int(word) if name == "integer" else float(word) for word in arguments)
    except ValueError:
        raise BadInput(f"{key}: {text!r} is not allowed: {name}(LOW,HIGH)") from None
    if not (-math.inf < low < high < math.inf and (name != "loguniform" or low > 0)):
        raise BadInput(f"{key}: {text!r} is not allowed: {name} needs {'0 < ' * (name == 'loguniform')}LOW < HIGH")
    if name == "integer":
        return lambda stream: stream.randint(int(low), int(high))
    if name == "uniform":
        return lambda stream: _rounded(stream.uniform(low, high))
    return lambda stream: _rounded(math.exp(stream.uniform(math.log(low), math.log(high))))


def _rounded(value: float) -> float:
    """Return six significant digits: enough for a search, and short in a command line."""
    return float(f"{value:.6g}")


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: a setting of a protocol, with one seed."""

    protocol: str
    settings: Mapping[str, Any]
    """What is set, beside the size."""
    size: str
    """``smoke``, ``paper`` or nothing: which of the protocol's own settings come first."""
    config: Mapping[str, Any]
    """The whole configuration, resolved."""
    data: str
    runtime: str
    emulate: float | None
    seed: int
    code: str
    """Digest of the sources."""
    content: str
    """Digest of the data."""

    @property
    def digest(self) -> str:
        """The digest of all that decides the result."""
        decides = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("settings", "size")
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    @property
    def command(self) -> str:
        """A command that runs this trial alone."""
        words = [f"{key}={_text(value)}" for key, value in self.settings.items()]
        flags = ["--data", self.data, "--runtime", self.runtime, "--seed", str(self.seed)]
        flags += [f"--{self.size}"] if self.size else []
        flags += [] if self.emulate is None else ["--emulate", f"{self.emulate:g}"]
        return shlex.join(["fedactors", "run", self.protocol, *flags, *words])

    @property
    def label(self) -> str:
        """Setting and seed, for people."""
        return " ".join([*(f"{key}={_text(value)}" for key, value in self.settings.items()), f"seed {self.seed}"])


def plan(protocol: Protocol, settings: Sequence[Mapping[str, Any]], options: RunOptions) -> list[Trial]:
    """Return the trials of a sweep, by setting and then by seed; every setting is checked.

    Args:
        protocol: what to run.
        settings: see `fedactors.sweeps.settings_of`.
        options: data, runtime, seeds, ``smoke`` or ``paper``.

    Raises:
        BadInput: a setting that the protocol does not allow.
        DataMissing: the files of the data set are not here.
    """
    _, filled = resolve(protocol, [], options)
    size = "smoke" if options.smoke else "paper" if options.paper else ""
    preset = _preset(protocol, size)
    data = filled.data or protocol.default_data
    check_data(protocol, data)
    code, content = code_digest(protocol), data_digest(data)
    trials: dict[str, Trial] = {}
    for given in settings:
        config = as_dict(build(protocol.Config, {**preset, **given}))
        for seed in filled.seeds or (0,):
            trial = Trial(
                protocol=protocol.name,
                settings=given,
                size=size,
                config=config,
                data=data,
                runtime=filled.runtime or "simulated",
                emulate=filled.emulate,
                seed=seed,
                code=code,
                content=content,
            )
            trials.setdefault(trial.digest, trial)
    return list(trials.values())


def _preset(protocol: Protocol, size: str) -> Mapping[str, Any]:
    return {"smoke": protocol.smoke, "paper": protocol.paper}.get(size, {})


def _text(value: Any) -> str:
    """Return a value as a word of the command line that is read as the same value."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(jsonable(value)) if not isinstance(value, float) else repr(value)


HASHED_BYTES = 256 * 2**20
"""Larger files of data are known by size and time of change instead of their content."""


def code_digest(protocol: Protocol) -> str:
    """Return the digest of the sources of fedactors and of the protocol's package (or its one module)."""
    digest = hashlib.sha256()
    for root in (Path(fedactors.__file__).parent, _home(protocol)):
        for file in sources(root) if root.is_dir() else [root]:
            digest.update(f"{file.relative_to(root.parent)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _home(protocol: Protocol) -> Path:
    """Return the folder of the package that the protocol's ``run`` is in, or the file of its lone module."""
    module = protocol.run.__module__
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise BadInput(f"protocol {protocol.name}: the source of {module} is not known")
    return Path(spec.origin).parent if spec.parent else Path(spec.origin)


def data_digest(name: str) -> str:
    """Return the digest of the files of a data set, or of a description of your own data and the files it names.

    What is generated has no files, and tables of a database server cannot be looked at: their name stands for them.
    """
    digest = hashlib.sha256()
    for file in _data_files(name):
        status = file.stat()
        digest.update(f"{file.name} {status.st_size}\n".encode())
        if status.st_size <= HASHED_BYTES:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        else:
            digest.update(str(status.st_mtime_ns).encode())
    return digest.hexdigest()


def _data_files(name: str) -> Iterator[Path]:
    if is_object(name):
        raise BadInput(
            "data: objects are not allowed in a sweep, whose table is gone on with later: write them into files, or "
            "call fedactors.simulate for each trial"
        )
    if not name.endswith(".toml"):
        yield from (path for file in describe(name).files if (path := find_file(file)) is not None)
        return
    description = Path(name)
    try:
        given = tomllib.loads(description.read_text())
    except OSError:
        raise BadInput(f"--data: {name!r} does not exist") from None
    except ValueError as error:
        raise BadInput(f"--data: {name!r} is not TOML: {error}") from None
    yield description
    for text in _texts(given):
        path = description.parent / text
        if len(text) < 1000 and path.is_file():
            yield path


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries."""
    facts = describe_environment()
    return {"python": facts["python"], **facts["packages"]}


# --- one run ----------------------------------------------------------------------------------------------------------


class CurveRecorder(MemoryRecorder):
    """Keeps each round's metrics with what had been used by then, as columns; everything else is left out."""

    def __init__(self) -> None:
        super().__init__(keeps_checkpoints=False)  # a run that was interrupted begins anew
        self.runtime: Runtime | None = None

    @property
    def curve(self) -> dict[str, list[Any]]:
        """Return the columns; a metric that a round lacks is None there."""
        names = dict.fromkeys(name for line in self.rounds for name in line)
        return {name: [line.get(name) for line in self.rounds] for name in names}

    def record_round(self, index: int, metrics: Mapping[str, Any]) -> None:
        """Keep the round."""
        spent: dict[str, Any] = {}
        if self.runtime is not None:
            used = self.runtime.usage()
            spent = {"seconds": used.seconds, "bytes": used.bytes, "cost_usd": used.price}
        super().record_round(index, {**spent, **metrics})

    def record_span(self, actor: str, kind: str, label: str, start: float, end: float) -> None:
        """Leave the timeline out."""

    def ledger_sink(self, rows: list[Any]) -> None:
        """Leave the ledger's rows out: their sums are in the usage."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A run that has just ended, with all that its row may need."""

    protocol: Protocol
    config: Any
    data_name: str
    data: Any
    runtime: Runtime
    recorder: Any
    result: RunResult
    seed: int

    def row(self, metrics: Mapping[str, Any] | None = None, **more: Any) -> RunRow:
        """Return the row of the run; `metrics` instead of its own, `more` for other fields."""
        summary = Summary.of(
            self.result,
            self.runtime.usage(),
            run="",
            protocol=self.protocol.name,
            runtime="simulated" if isinstance(self.runtime, SimulatedRuntime) else "ray",
            seed=self.seed,
            metrics=metrics,
        )
        given: dict[str, Any] = {"data": self.data_name, "config": as_dict(self.config)}
        if isinstance(self.recorder, CurveRecorder):
            given["curve"] = self.recorder.curve
        return RunRow.of(summary, **{**given, **more})


def run_once(
    protocol: Protocol,
    settings: Mapping[str, Any],
    data: str,
    seed: int,
    *,
    make: Callable[..., Runtime] = SimulatedRuntime,
    recorder: MemoryRecorder | None = None,
    **keywords: Any,
) -> Done:
    """Run a protocol once, computing on one core, so that results do not depend on how many runs there are at a time.

    Args:
        protocol: what to run.
        settings: of its config, beside the defaults.
        data: name of a data set.
        seed: of the run.
        make: makes the runtime.
        recorder: what hears of the rounds; by default the curve is kept.
        keywords: what `make` takes beside seed and recorder; a function is called with the config.
    """
    gc.collect()  # actors of the run before are cycles; few objects with much in them, which Python looks for too late
    one_torch_thread()
    config = with_contents(build(protocol.Config, settings))
    source = load_data(protocol, config, data, seed)
    recorder = recorder or CurveRecorder()
    given = {name: value(config) if callable(value) else value for name, value in keywords.items()}
    runtime = make(seed=seed, recorder=recorder, **given)
    if hasattr(recorder, "runtime"):
        recorder.runtime = runtime
    return Done(
        protocol=protocol,
        config=config,
        data_name=data,
        data=source,
        runtime=runtime,
        recorder=recorder,
        result=runtime.execute(lambda: protocol.run(config, source, runtime)),
        seed=seed,
    )


def run_trial(trial: Trial) -> RunRow:
    """Run a trial and return its row; a run that fails gives a row that says why."""
    try:
        return dataclasses.replace(_run(trial), **_facts(trial))
    except Exception as error:
        return failed_row(
            trial, str(error) if isinstance(error, FedactorsError) else f"{type(error).__name__}: {error}"
        )


def failed_row(trial: Trial, failure: str) -> RunRow:
    """Return the row of a trial that failed."""
    row = RunRow(protocol=trial.protocol, seed=trial.seed, runtime=trial.runtime, status="failed", failure=failure)
    return dataclasses.replace(row, **_facts(trial))


def _run(trial: Trial) -> RunRow:
    protocol = find_protocol(trial.protocol)
    options = RunOptions(runtime=trial.runtime, emulate=trial.emulate)
    settings = {**_preset(protocol, trial.size), **trial.settings}
    make = functools.partial(make_runtime, options)
    return run_once(protocol, settings, trial.data, trial.seed, make=make).row()


def _facts(trial: Trial) -> dict[str, Any]:
    return {
        "data": trial.data,
        "config": trial.config,
        "command": trial.command,
        "digest": trial.digest,
        "code": trial.code,
        "content": trial.content,
        "versions": versions(),
    }


# --- all runs ---------------------------------------------------------------------------------------------------------


ProgressCallback = Callable[[int, int, Trial, RunRow], None]
"""Called with (runs done, runs in all, trial, its row) after each run."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep left: its table, its rows in the order of the trials, and the choice if one was asked for."""

    table: Path
    rows: Sequence[RunRow]
    num_cached: int
    choice: Mapping[str, Any] | None

    @property
    def num_failed(self) -> int:
        """Number of runs that failed."""
        return sum(row.status == "failed" for row in self.rows)


def sweep(
    trials: Sequence[Trial],
    table: Path,
    *,
    jobs: int = 1,
    address: str | None = None,
    again: bool = False,
    criterion: Criterion | None = None,
    progress: ProgressCallback | None = None,
) -> Sweep:
    """Run the trials that are not cached, write the table, and choose.

    Args:
        trials: see `fedactors.sweeps.plan`.
        table: the file; the cache lies beside it.
        jobs: number of processes of this machine.
        address: a Ray cluster whose tasks run the trials instead.
        again: run also what is cached.
        criterion: what a setting is chosen by.
        progress: hears of each run that ends.

    Raises:
        BadInput: the folder cannot be written, or nobody answers at the address.
    """
    cache = Cache(table.parent / "cache")
    rows = {} if again else {trial.digest: row for trial in trials if (row := cache.get(trial.digest)) is not None}
    missing = [trial for trial in trials if trial.digest not in rows]
    num_cached = len(rows)
    try:
        for index, row in _executed(missing, jobs, address):
            rows[row.digest] = row
            if row.status == "finished":
                cache.put(row)
            if progress is not None:
                progress(len(rows), len(trials), missing[index], row)
    finally:
        done = [rows[trial.digest] for trial in trials if trial.digest in rows]
        headline = find_protocol(trials[0].protocol).headline
        facts = {"headline": {"name": headline.name, "mode": headline.mode}}
        if done:
            write_table(table, done, facts)
    choice = None
    if criterion is not None:
        choice = choose(done, criterion, {trial.digest: trial.settings for trial in trials})
        write_table(table, done, {**facts, "choice": choice})
    return Sweep(table=table, rows=done, num_cached=num_cached, choice=choice)


class Cache:
    """Rows of finished runs in a folder, by digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, digest: str) -> RunRow | None:
        """Return the row of a run, or None if there is none that can be read."""
        try:
            return RunRow.from_dict(json.loads((self.folder / f"{digest}.json").read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, row: RunRow) -> None:
        """Keep a row, whole or not at all."""
        write_atomic(self.folder / f"{row.digest}.json", json.dumps(row.as_dict()).encode())


def _executed(trials: Sequence[Trial], jobs: int, address: str | None) -> Any:
    if address is None:
        return run_all(run_trial, trials, jobs=jobs, when_lost=failed_row)
    if any(trial.runtime != "simulated" for trial in trials):
        raise BadInput("--address: needs --runtime simulated; each run of a sweep is one task of the cluster")
    from fedactors.runtime.ray.jobs import run_on_cluster

    return run_on_cluster(run_trial, trials, address=address, when_lost=failed_row)


# --- the choice of a setting ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A metric, and whether more or less of it is better."""

    metric: str
    mode: Literal["max", "min"]

    @classmethod
    def parse(cls, text: str) -> Criterion:
        """Read ``metric:max`` or ``metric:min``.

        Raises:
            BadInput: another form, or a metric of the test rows: who chooses by it has none left to report.
        """
        metric, _, mode = text.rpartition(":")
        if not metric or mode not in ("max", "min"):
            raise BadInput(f"--choose: {text!r} is not allowed: METRIC:max or METRIC:min")
        if metric.startswith("test/"):
            raise BadInput(f"--choose: {metric!r} is not allowed: settings are chosen on validation or training rows")
        return cls(metric=metric, mode="max" if mode == "max" else "min")

    def value(self, row: RunRow) -> float | None:
        """Return the metric of a run, else the best of its rounds; None if it has none."""
        if is_number(row.metrics.get(self.metric)):
            return float(row.metrics[self.metric])
        rounds = [float(value) for value in row.curve.get(self.metric, ()) if is_number(value)]
        return None if not rounds else max(rounds) if self.mode == "max" else min(rounds)


def by_setting(rows: Sequence[RunRow]) -> list[list[RunRow]]:
    """Group rows that differ in nothing but their seed, in the order of their first ones."""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        key = [row.protocol, row.study, row.name, row.data, row.runtime, row.config]
        groups.setdefault(json.dumps(key, sort_keys=True), []).append(row)
    return list(groups.values())


def choose(rows: Sequence[RunRow], criterion: Criterion, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the setting with the best mean over seeds, JSON-ready, and how many settings were tried.

    A setting one of whose seeds failed, or lacks the metric, is tried but cannot be chosen.

    Args:
        rows: of the whole sweep.
        criterion: what decides.
        settings: what was set, by a row's digest.

    Raises:
        BadInput: no setting has the metric in all its runs.
    """
    tried: list[dict[str, Any]] = []
    for group in by_setting(rows):
        values = [criterion.value(row) if row.status == "finished" else None for row in group]
        known = [value for value in values if value is not None]
        mean = statistics.fmean(known) if len(known) == len(values) else None
        tried.append({"settings": dict(settings[group[0].digest]), "mean": mean, "seeds": [row.seed for row in group]})
    found = [entry for entry in tried if entry["mean"] is not None]
    if not found:
        names = sorted({name for row in rows for name in (*row.metrics, *row.curve) if not name.startswith("test/")})
        raise BadInput(f"--choose: no setting has {criterion.metric!r} in all its runs (there are {', '.join(names)})")
    best = (max if criterion.mode == "max" else min)(found, key=lambda entry: entry["mean"])
    return {"metric": criterion.metric, "mode": criterion.mode, "settings_tried": len(tried), **best, "tried": tried}


# --- pilots of a planner ----------------------------------------------------------------------------------------------


C = TypeVar("C")
FINALISTS, LAST, SEEDS = 6, 3, (3, 6, 12)
"""Finalists, those left of them at last, and seeds: of all that are tried, of the finalists, of the last."""
SLACK, ROUNDS = 4.0, 3
"""How much a finalist may cost, times the first candidate's cost with one seed, and how often neighbours are tried."""


class Enough(FedactorsError):
    """A pilot has reached its target, or spent what it may."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a pilot came to."""

    cost: float | None = None
    """Of reaching the target; None: it was not reached within the limit."""
    score: float = -math.inf
    """How near it came, the more the nearer; to choose among those that did not reach it."""
    has_ended: bool = False
    """Whether a larger limit would change nothing."""
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """What else is told of it."""


@dataclass(frozen=True)
class Pilot(Generic[C]):
    """A short run of a candidate: up to a limit of cost, and of the clock of this machine."""

    candidate: C
    seed: int
    limit: float
    until: float = math.inf


class Pilots(Generic[C]):
    """Runs pilots, none of them twice, and none once the time is over.

    Args:
        run: returns a pilot's outcome; with several jobs a function of a module.
        planning: says in how many processes and for how long.
        name: of a candidate, for who watches.
    """

    def __init__(self, run: Callable[[Pilot[C]], Outcome], planning: Planning, name: Callable[[C], str] = str) -> None:
        self._run = run
        self.tell = planning.tell
        self.name = name
        self._jobs = planning.jobs
        self._until = time.monotonic() + planning.time_limit
        self._known: dict[tuple[C, int], tuple[float, Outcome]] = {}
        self.num_run = 0

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self._until

    def __call__(self, candidates: Sequence[C], seeds: Sequence[int], limit: float) -> list[list[Outcome]]:
        """Return the outcomes of some candidates, one for each seed; of what had no time left one that says nothing."""
        asked = [Pilot(candidate, seed, limit, self._until) for candidate in candidates for seed in seeds]
        missing = [one for one in asked if not self._knows(one)]
        jobs = max(1, min(self._jobs, len(missing)))
        for index, outcome in run_all(functools.partial(_in_time, self._run), missing, jobs=jobs):
            self._known[missing[index].candidate, missing[index].seed] = (limit, outcome)
            self.num_run += 1
        return [[self._outcome(candidate, seed, limit) for seed in seeds] for candidate in candidates]

    def one(self, candidate: C, seed: int, limit: float) -> Outcome:
        """Return the outcome of one candidate."""
        return self([candidate], [seed], limit)[0][0]

    def best(self, seed: int) -> Outcome:
        """Return the best outcome of a seed's pilots."""
        found = [outcome for (_, known), (_, outcome) in self._known.items() if known == seed]
        return min(found, key=lambda outcome: rank([outcome]), default=Outcome())

    def known(self, candidate: C) -> list[Outcome]:
        """Return the outcomes of a candidate's pilots, in the order of their seeds."""
        found = {seed: outcome for (known, seed), (_, outcome) in self._known.items() if known == candidate}
        return [found[seed] for seed in sorted(found)]

    def _knows(self, asked: Pilot[C]) -> bool:
        limit, outcome = self._known.get((asked.candidate, asked.seed), (-math.inf, Outcome()))
        return outcome.cost is not None or outcome.has_ended or limit >= asked.limit

    def _outcome(self, candidate: C, seed: int, limit: float) -> Outcome:
        _, outcome = self._known.get((candidate, seed), (limit, Outcome()))
        is_over = outcome.cost is not None and outcome.cost > limit
        return dataclasses.replace(outcome, cost=None) if is_over else outcome


def _in_time(run: Callable[[Pilot[C]], Outcome], pilot: Pilot[C]) -> Outcome:
    return Outcome() if time.monotonic() >= pilot.until else run(pilot)


def rank(outcomes: Sequence[Outcome]) -> tuple[int, float, float]:
    """Return what candidates are sorted by: seeds that missed the target, the mean cost of the others, the score."""
    costs = [outcome.cost for outcome in outcomes if outcome.cost is not None]
    score = statistics.fmean(outcome.score for outcome in outcomes)
    return len(outcomes) - len(costs), statistics.fmean(costs) if costs else math.inf, -score


def halve(pilots: Pilots[C], candidates: Sequence[C], limits: Sequence[float], seed: int) -> list[C]:
    """Return candidates, the best first: by successive halving.

    All run to the first limit, the better half to the next (a few at least), until some had reached the target before.
    """
    left, is_last = list(candidates), False
    for number, limit in enumerate(limits, start=1):
        found = dict(zip(left, pilots(left, [seed], limit), strict=True))
        left.sort(key=lambda candidate: rank(found[candidate]))
        reached = sum(outcomes[0].cost is not None for outcomes in found.values())
        first = pilots.name(left[0])
        pilots.tell(f"rung {number}: {len(left)} candidates to {limit:.3g}, {reached} at the target; {first}")
        if is_last or pilots.is_late or number == len(limits):
            break
        is_last = reached > 0
        left = left[: max(FINALISTS, min(math.ceil(len(left) / 2), 2 * FINALISTS if is_last else len(left)))]
    return left


def settle(pilots: Pilots[C], candidates: Sequence[C], seed: int, near: Callable[[C], Sequence[C]]) -> list[C]:
    """Return the finalists, the best first, by the mean over several seeds.

    Args:
        pilots: what runs them.
        candidates: the best first, of which the first has reached the target.
        seed: the first one.
        near: candidates that differ little from one; those of the best are tried until none of them is better.
    """
    few, some, many = (range(seed, seed + count) for count in SEEDS)
    left = list(candidates[:FINALISTS])
    limit = SLACK * (pilots.one(left[0], seed, math.inf).cost or math.inf)
    tried: dict[C, list[Outcome]] = {}
    for _ in range(ROUNDS):
        tried |= zip(left, pilots(left, few, limit), strict=True)
        best = min(tried, key=lambda candidate: rank(tried[candidate]))
        missed, mean, _ = rank(tried[best])
        pilots.tell(f"{len(tried)} candidates with {len(few)} seeds: {pilots.name(best)}, {mean:.3g}")
        limit = limit if missed else min(limit, 2 * mean)
        fresh = [candidate for candidate in near(best) if candidate not in tried]
        found = dict(zip(fresh, pilots(fresh, few[:1], limit), strict=True))
        left = sorted(fresh, key=lambda candidate: rank(found[candidate]))[:LAST]
        if not left or pilots.is_late or math.isinf(rank(found[left[0]])[1]):
            break
    ranked = sorted(tried, key=lambda candidate: rank(tried[candidate]))
    for count, seeds in ((FINALISTS, some), (LAST, many)):
        found = dict(zip(ranked[:count], pilots(ranked[:count], seeds, 4 * limit), strict=True))
        ranked = sorted(found, key=lambda candidate: rank(found[candidate])) + ranked[count:]
    return ranked[:FINALISTS]


# --- worker processes -------------------------------------------------------------------------------------------------


A = TypeVar("A")
R = TypeVar("R")
PATIENCE = 10.0
"""Seconds that a worker has to end when it is asked to."""


def run_all(
    function: Callable[[A], R], arguments: Sequence[A], *, jobs: int, when_lost: Callable[[A, str], R] | None = None
) -> Iterator[tuple[int, R]]:
    """Yield (place of the argument, result) as they come.

    Args:
        function: called with one argument; with several jobs a function of a module.
        arguments: what to call it with.
        jobs: number of processes; with 1 it is called here.
        when_lost: what stands for the result when a worker's process died, from the argument and a sentence.

    Raises:
        BadInput: `function` did.
        RuntimeError: `function` raised something else, or, without `when_lost`, a worker died.
    """
    if jobs == 1:
        for index, argument in enumerate(arguments):
            yield index, function(argument)
        return
    waiting = list(enumerate(arguments))[::-1]
    busy: dict[Connection, tuple[_Worker, int]] = {}
    idle: list[_Worker] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                worker = idle.pop() if idle else _Worker(function)
                index, argument = waiting.pop()
                worker.pipe.send(argument)
                busy[worker.pipe] = (worker, index)
            ready = multiprocessing.connection.wait(list(busy))
            for pipe in [pipe for pipe in busy if pipe in ready]:
                worker, index = busy.pop(pipe)
                try:
                    is_result, value = worker.pipe.recv()
                except EOFError:
                    value = _lost(worker, arguments[index], when_lost)
                else:
                    idle.append(worker)
                    if not is_result:
                        raise (BadInput if value[0] else RuntimeError)(value[1])
                yield index, value
    finally:
        end([*idle, *(worker for worker, _ in busy.values())])


def end(workers: Sequence[_Worker]) -> None:
    """End processes: those that wait at once, those at work by a signal that lets them clean up."""
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.pipe.close()


class _Worker:
    """A process and the pipe to it."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(function, theirs), daemon=True)
        self.process.start()
        theirs.close()


def _lost(worker: _Worker, argument: A, when_lost: Callable[[A, str], R] | None) -> R:
    worker.process.join()
    code = worker.process.exitcode or 0
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    if when_lost is None:
        raise RuntimeError(f"a process ended {how}")
    return when_lost(argument, f"its process ended {how}")


def _work(function: Callable[[Any], Any], pipe: Connection) -> None:
    """Serve one pipe; the life of a worker's process."""
    for number in (signal.SIGINT, signal.SIGHUP):  # of Ctrl-C, and of a terminal that closes, the caller takes care
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    one_thread()
    end_with_owner()
    while True:
        argument = pipe.recv()
        try:
            answer = (True, function(argument))
        except Exception as error:
            # not the error itself: not all of them can be sent
            refused = isinstance(error, BadInput)
            answer = (False, (refused, str(error) if refused else f"{type(error).__name__}: {error}"))
        pipe.send(answer)

"""One run of a sweep: what decides its result, as a digest, and how it becomes a row of a table.

The digest covers protocol, resolved configuration, data set with the content of its files, runtime, seed, and the
sources of fedactors and of the protocol. A row that was computed under the same digest is not computed again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import json
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedactors
from fedactors.command_line.options import RunOptions
from fedactors.config import as_dict, build
from fedactors.data.catalogue import describe
from fedactors.data.storage import find_file
from fedactors.errors import BadInput, FedactorsError
from fedactors.launch import check_data, make_runtime, resolve
from fedactors.plugins import Protocol, find_protocol
from fedactors.records.environment import describe_environment
from fedactors.records.metrics import jsonable
from fedactors.records.table import RunRow
from fedactors.sweeps.runs import run_once

HASHED_BYTES = 256 * 2**20
"""Larger files of data are known by size and time of change instead of their content."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run: a setting of a protocol, with one seed."""

    protocol: str
    settings: Mapping[str, Any]
    """What is set, beside the size."""
    size: str
    """``smoke``, ``full`` or nothing: which of the protocol's own settings come first."""
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
        settings: see `fedactors.sweeps.space.settings_of`.
        options: data, runtime, seeds, ``smoke`` or ``full``.

    Raises:
        BadInput: a setting that the protocol does not allow.
        DataMissing: the files of the data set are not here.
    """
    _, filled = resolve(protocol, [], options)
    size = "smoke" if options.smoke else "full" if options.full else ""
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


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries."""
    facts = describe_environment()
    return {"python": facts["python"], **facts["packages"]}


def _preset(protocol: Protocol, size: str) -> Mapping[str, Any]:
    return {"smoke": protocol.smoke, "full": protocol.full}.get(size, {})


def code_digest(protocol: Protocol) -> str:
    """Return the digest of the sources of fedactors and of the protocol's package (or its one module)."""
    digest = hashlib.sha256()
    for root in (Path(fedactors.__file__).parent, _home(protocol)):
        for file in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
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
    """Return the digest of the files of a data set, or of a description of one's own data and the files it names.

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


def _text(value: Any) -> str:
    """Return a value as a word of the command line that is read as the same value."""
    if isinstance(value, str):
        return value
    return "none" if value is None else json.dumps(jsonable(value)) if not isinstance(value, float) else repr(value)

"""Metrics of rounds and the summary of a run, in files that hold no wall time and are the same for the same seed.

A protocol's run returns a `RunResult`; with the runtime's usage it becomes a `Summary`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedactors.errors import BadInput
from fedactors.runs import schemas
from fedactors.runs.folder import EVENTS, ROUND_METRICS, SCHEMA_VERSION, SUMMARY, RunFolder
from fedactors.runs.schemas import parse

if TYPE_CHECKING:
    from fedactors.messages.ledger import Usage


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a protocol's ``run`` returns: rounds done, final metrics, and anything else worth keeping (JSON-ready)."""

    rounds: int
    metrics: Mapping[str, Any]
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of one run: what ``metrics/summary.json`` holds and ``--format json`` prints."""

    run: str
    protocol: str
    runtime: str
    seed: int
    rounds: int
    metrics: Mapping[str, Any]
    bytes: int
    messages: int
    seconds: float
    wall_seconds: float
    cpu_utilisation: float
    idle_seconds: float
    cost_usd: float = 0.0
    header_bytes: int = 0
    overhead_seconds: float = 0.0
    """Processor time that actors spent outside of `compute`; 0 in simulation, where it takes no time."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready mapping."""
        made: dict[str, Any] = jsonable(dataclasses.asdict(self))
        return made

    @classmethod
    def of(
        cls,
        result: RunResult,
        usage: Usage,
        *,
        run: str,
        protocol: str,
        runtime: str,
        seed: int,
        metrics: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Summary:
        """Make the summary of a run that has just ended.

        Args:
            result: what the protocol's run returned.
            usage: what the runtime says that it took.
            run: its name or folder.
            protocol: name of the protocol.
            runtime: ``ray`` or ``simulated``.
            seed: the run's seed.
            metrics: instead of the result's own.
            extra: instead of the result's own.
        """
        return cls(
            run=run,
            protocol=protocol,
            runtime=runtime,
            seed=seed,
            rounds=result.rounds,
            metrics=jsonable(result.metrics if metrics is None else metrics),
            extra=jsonable(result.extra if extra is None else extra),
            bytes=usage.bytes,
            messages=usage.messages,
            seconds=usage.seconds,
            wall_seconds=usage.wall_seconds,
            cpu_utilisation=usage.cpu_utilisation,
            idle_seconds=usage.idle_seconds,
            cost_usd=usage.price,
            header_bytes=usage.header_bytes,
            overhead_seconds=usage.overhead_seconds,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "summary") -> Summary:
        """Make a summary from the mapping of its file.

        Raises:
            BadInput: a field is missing, or the schema is another one.
        """
        if values.get("schema_version") != SCHEMA_VERSION:
            raise BadInput(
                f"{where}: schema_version {values.get('schema_version')!r} is not allowed: {SCHEMA_VERSION} is read"
            )
        fields = dataclasses.fields(cls)
        required = {
            f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
        if missing := sorted(required - values.keys()):
            raise BadInput(f"{where}: {', '.join(missing)} missing")
        return cls(**{f.name: values[f.name] for f in fields if f.name in values})


def read_summary(folder: RunFolder) -> Summary:
    """Read the summary of a finished run; ``run`` is the folder as it was opened."""
    if isinstance(site := folder.config.get("site"), dict):
        whose = f"the records of the site {site.get('name')} alone"
        at = f"in the run folder of its coordinator, {site.get('coordinator')}"
        raise BadInput(f"{folder.path}: {whose}; the result is {at}")
    if folder.listed(SUMMARY) is None:
        raise BadInput(
            f"{folder.path}: the run has no summary (status: {folder.status}): give runs that finished; fedactors run "
            "PROTOCOL --resume RUN goes on with one that has a checkpoint"
        )
    values = folder.read_json(SUMMARY, schemas.SummaryFile)
    return Summary.from_dict({**values, "run": folder.location}, where=f"{folder.path}/{SUMMARY}")


def read_rounds(folder: RunFolder) -> list[dict[str, Any]]:
    """Read the metrics of every round, in the order they were recorded; each has the key ``round``."""
    return list(read_lines(folder, ROUND_METRICS, schemas.MetricsLine))


def read_events(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Read the timeline's lines; each has the key ``type``: span, round or totals."""
    return read_lines(folder, EVENTS, schemas.EventLine)


def read_lines(folder: RunFolder, name: str, kind: Any = schemas.Tree) -> Iterator[dict[str, Any]]:
    """Read a file of JSON lines; one that is not listed has no lines, and a last line cut short is left out.

    Args:
        folder: the run's.
        name: of the file.
        kind: the schema of a line.

    Raises:
        BadInput: a line that is not what the schema allows, with its number.
    """
    path = folder.listed(name)
    if path is None:
        return
    left = folder.manifest["files"][name]["bytes"]  # what stands behind that is nobody's word
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            left -= len(line)
            if left < 0 or not line.endswith(b"\n"):
                return
            yield parse(kind, line, f"{path}: line {number}")


def encode_round(index: int, metrics: Mapping[str, Any]) -> str:
    """Return one line of the metrics file: the round, then the metrics by name; floats in their shortest exact form."""
    return json_line({"round": index, **{name: metrics[name] for name in sorted(metrics)}})


def shown_metric(name: str, present: Collection[str]) -> str | None:
    """Return under which name the main metric is among `present`: its own, or that of another split; else the first.

    What a run is judged by in the end (``test/auc``) may be measured on other rows in its rounds (``validation/auc``),
    and is not defined for every task (the AUC of several classes): accuracy or the loss stand for it.
    """
    measures = dict.fromkeys((name.rpartition("/")[2], "accuracy", "rmse", "loss"))
    splits = ("validation", "test", "training")
    tried = (name, *(f"{split}/{measure}" for measure in measures for split in splits))
    return next((one for one in tried if one in present), next(iter(present), None))


def is_number(value: Any) -> bool:
    """Say whether a value of a round's metrics is one that can be drawn or compared."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def json_line(value: Mapping[str, Any]) -> str:
    """Return `value` as one line of JSON; floats round-trip exactly and not-a-number is null."""
    return json.dumps(jsonable(value), allow_nan=False, separators=(", ", ": "))


def jsonable(value: Any) -> Any:
    """Return `value` with numpy scalars and arrays as plain values, tuples as lists, and non-finite floats as None."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(jsonable(item) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def combine(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return ``{runs, mean, std}`` over the seeds; mean and std have the shape of a run, with its numbers only."""
    runs = [summary.as_dict() for summary in summaries]
    return {"runs": runs, "mean": _reduce(runs, statistics.fmean), "std": _reduce(runs, _deviation)}


def _reduce(runs: Sequence[Mapping[str, Any]], function: Callable[[list[float]], float]) -> dict[str, Any]:
    reduced: dict[str, Any] = {}
    for key, first in runs[0].items():
        if key in ("seed", "schema_version", "extra"):
            continue
        values = [run.get(key) for run in runs]
        if isinstance(first, Mapping):
            reduced[key] = _reduce([value if isinstance(value, Mapping) else {} for value in values], function)
        elif all(map(is_number, values)):
            reduced[key] = function([float(value) for value in values])  # type: ignore[arg-type]
    return reduced


def _deviation(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0

"""Runs as the rows of one Parquet table: what was set, what was measured, what it took, and how to have it again.

=====================  =================================================================================================
column                 what it holds
=====================  =================================================================================================
protocol, study, name  who ran; table or figure and row that a run belongs to, where it has a name
seed, data, runtime    seed, data set or description file, ``simulated`` or ``ray``
status, failure        ``finished`` or ``failed``; the error of a run that failed
censored               metrics whose target was not reached: they have no value in their own column
config.FIELD           the configuration
configuration          the whole of it as one JSON object, which keeps what is set to nothing; this one is read back
metrics.NAME           final metrics
usage.NAME             rounds, bytes, messages, header_bytes, seconds, cost_usd, cpu_utilisation, idle_seconds
curve.NAME             lists, one value a recorded round: round, seconds, bytes, cost_usd, and the rounds' metrics
extra.NAME             what else the run returned
command                a command that makes the row again
digest, code           of all that decides the result (`fedactors.sweeps`); of the sources alone
content                digest of the data's files (`fedactors.sweeps.data_digest`)
versions.NAME          of Python and of the libraries
wall_seconds           last and apart: in simulation all else is the same for the same digest
=====================  =================================================================================================

Numbers, texts, truth values and lists of them have columns of their type. A column that holds anything else, or several
kinds, is text with one JSON value a row; its field's metadata says so. What a row does not have is null.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from fedactors.runs.folder import SCHEMA_VERSION
from fedactors.runs.metrics import Summary, jsonable
from fedactors.runs.storage import write_atomic

USAGE = (
    "rounds", "bytes", "messages", "header_bytes", "seconds", "cost_usd", "cpu_utilisation", "idle_seconds",
)  # fmt: skip
GROUPS = ("config", "metrics", "usage", "curve", "extra", "versions")
NOT_REACHED = "not reached"
_SCHEMA = b"fedactors.table"
_FACTS = b"fedactors.facts"
_JSON = {b"encoding": b"json"}


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run, finished or failed; the fields are the columns and groups of columns of the table."""

    protocol: str
    study: str = ""
    name: str = ""
    seed: int
    data: str = ""
    runtime: str = "simulated"
    status: str = "finished"
    failure: str | None = None
    censored: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    curve: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    digest: str = ""
    code: str = ""
    content: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    wall_seconds: float = 0.0

    @classmethod
    def of(cls, summary: Summary, **more: Any) -> RunRow:
        """Return the row of a summary; metrics named ``..._to_...`` that are no finite number count as censored."""
        metrics = {name: _finite(value) for name, value in summary.metrics.items()}
        missing = {name for name, value in metrics.items() if value is None or value == NOT_REACHED}
        given: dict[str, Any] = {
            "protocol": summary.protocol,
            "seed": summary.seed,
            "runtime": summary.runtime,
            "censored": tuple(sorted(name for name in missing if "_to_" in name)),
            "metrics": {name: value for name, value in metrics.items() if name not in missing},
            "usage": {name: getattr(summary, name) for name in USAGE},
            "extra": summary.extra,
            "wall_seconds": summary.wall_seconds,
        }
        return cls(**{**given, **more})

    @property
    def summary(self) -> Summary:
        """The run as a summary; what was not reached is None."""
        return Summary(
            run=self.name or self.digest[:12],
            protocol=self.protocol,
            runtime=self.runtime,
            seed=self.seed,
            metrics={**self.metrics, **dict.fromkeys(self.censored)},
            extra=self.extra,
            wall_seconds=self.wall_seconds,
            **{name: self.usage.get(name, 0) for name in USAGE},
        )

    @property
    def lacks(self) -> tuple[str, ...]:
        """What is missing to make the row again: of configuration, data, content, code and command."""
        return tuple(name for name in ("config", "data", "content", "code", "command") if not getattr(self, name))

    def value(self, name: str) -> Any:
        """Return a metric or a figure of usage; None where the run has none."""
        return self.metrics.get(name, self.wall_seconds if name == "wall_seconds" else self.usage.get(name))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready mapping."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunRow:
        """Return the row that `as_dict` described."""
        return cls(**{**values, "censored": tuple(values["censored"])})


def is_table(path: str | Path) -> bool:
    """Say whether `path` names a table rather than a run folder."""
    return str(path).endswith(".parquet")


def write_table(path: Path, rows: Sequence[RunRow], facts: Mapping[str, Any] | None = None) -> None:
    """Write `rows` to `path`, whole or not at all; `facts` about the table as a whole are kept with it."""
    import pyarrow
    import pyarrow.parquet as parquet

    columns: dict[str, list[Any]] = {}
    for position, row in enumerate(rows):
        for name, value in _flat(row).items():
            columns.setdefault(name, [None] * len(rows))[position] = value
    positions = {f.name: position for position, f in enumerate(dataclasses.fields(RunRow))}
    positions["configuration"] = positions["config"]
    order = sorted(columns, key=lambda name: positions[name.partition(".")[0]])
    arrays, fields = [], []
    for name in order:
        array, metadata = _column(columns[name])
        arrays.append(array)
        fields.append(pyarrow.field(name, array.type, metadata=metadata))
    about = {_SCHEMA: str(SCHEMA_VERSION).encode(), _FACTS: json.dumps(jsonable(facts or {})).encode()}
    buffer = io.BytesIO()
    table = pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields, metadata=about))
    parquet.write_table(table, buffer, compression="zstd", compression_level=15)
    write_atomic(path, buffer.getvalue())


def read_table(path: str | Path) -> list[RunRow]:
    """Read the rows of a table in their order.

    Raises:
        BadInput: no such file, not a table of runs, or of another schema.
    """
    table = _open(path)
    rows: list[dict[str, Any]] = [{} for _ in range(table.num_rows)]
    for column in table.schema:
        decode: Callable[[Any], Any] = json.loads if (column.metadata or {}) == _JSON else lambda value: value
        group, _, name = column.name.partition(".")
        for row, value in zip(rows, table[column.name].to_pylist(), strict=True):
            if value is None:
                continue
            if name:
                row.setdefault(group, {})[name] = decode(value)
            else:
                row[group] = decode(value)
    for row in rows:
        if "configuration" in row:
            row["config"] = row.pop("configuration")
    return [RunRow.from_dict({"censored": (), **row}) for row in rows]


def read_facts(path: str | Path) -> dict[str, Any]:
    """Read the facts that a table carries about itself."""
    found: dict[str, Any] = json.loads((_open(path).schema.metadata or {})[_FACTS])
    return found


def _open(path: str | Path) -> Any:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid):
        missing = "no such table" if not Path(path).exists() else "not a Parquet file"
        raise BadInput(f"{path}: {missing}") from None
    version = (table.schema.metadata or {}).get(_SCHEMA)
    if version != str(SCHEMA_VERSION).encode():
        raise BadInput(f"{path}: not a table of runs of schema {SCHEMA_VERSION}")
    return table


def _flat(row: RunRow) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for f in dataclasses.fields(row):
        value = _plain(getattr(row, f.name))
        if f.name in GROUPS:
            flat |= {f"{f.name}.{name}": item for name, item in value.items()}
            if f.name == "config":
                flat["configuration"] = value
        else:
            flat[f.name] = value
    return flat


def _column(values: Sequence[Any]) -> tuple[Any, dict[bytes, bytes] | None]:
    """Return the values as an array of one type, and the field's metadata."""
    import pyarrow

    types = ((bool, pyarrow.bool_()), (int, pyarrow.int64()), (float, pyarrow.float64()), (str, pyarrow.string()))
    present = [value for value in values if value is not None]
    of_lists = bool(present) and all(isinstance(value, list) for value in present)
    kinds = {type(item) for value in present for item in (value if of_lists else [value])} - {type(None)}
    if kinds == {int, float}:
        kinds = {float}
    for kind, made in types:
        if kinds <= {kind}:
            return pyarrow.array(values, pyarrow.list_(made) if of_lists else made), None
    texts = [None if value is None else json.dumps(value) for value in values]
    return pyarrow.array(texts, pyarrow.string()), _JSON


def _plain(value: Any) -> Any:
    """Return a value of plain types; unlike in JSON files infinite numbers stay what they are."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, float) else jsonable(value)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

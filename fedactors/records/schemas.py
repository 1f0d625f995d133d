"""What the files of a run folder may hold; a folder may come from a stranger, so nothing of it is believed unread.

`parse` takes bytes or text and returns values of exactly the types that stand here: no other key, no number as text,
nothing that is not finite. What is not so is one `BadInput` line that names file, field and what is wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedactors.errors import BadInput
from fedactors.validation import shown

T = TypeVar("T")
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_DEEPEST = 100


def _shallow(value: Any) -> Any:
    """Refuse values that are nested so deeply that whoever walks through them fails."""
    layer, depth = [value], 0
    while layer:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError("is nested too deeply")
        layer = [item for one in layer for item in _items(one)]
    return value


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


def _path(name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or any(part in ("", ".", "..") or len(part) > 255 for part in parts) or "\0" in name:
        raise ValueError("it is outside the run folder")
    return name


def _numbered(value: dict[str, Any]) -> dict[str, Any]:
    if type(value.get("round")) is not int:
        raise ValueError("round: give a whole number")
    for name, item in value.items():
        if isinstance(item, float) and not math.isfinite(item):
            raise ValueError(f"{shown(name)}: a number that is not finite")
    return value


Inside = Annotated[str, Field(max_length=1000), AfterValidator(_path)]
"""A relative path that stays in the run folder."""
Text = Annotated[str, Field(max_length=10_000)]
Tree = Annotated[dict[str, Any], AfterValidator(_shallow)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class FileEntry:
    """What the manifest says of a file."""

    bytes: NonNegativeInt
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    grows: bool = False


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CheckpointEntry:
    """What the manifest says of a checkpoint."""

    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=200)]
    folder: Inside
    actors: list[Inside]
    marks: dict[str, NonNegativeInt]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Manifest:
    """manifest.json."""

    kind: Literal["fedactors-run"]
    schema_version: Literal[1]
    status: Literal["running", "finished", "stopped", "failed"]
    parent: Text | None
    files: dict[Inside, FileEntry]
    checkpoints: list[CheckpointEntry]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Headline:
    """The main metric, and whether more or less of it is better."""

    name: Text
    mode: Literal["max", "min"] = "max"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Config:
    """config.json; whoever goes on from it asks for what it needs."""

    schema_version: Literal[1] = 1
    scenario: Text | None = None
    protocol: Text | None = None
    runtime: Literal["ray", "simulated"] | None = None
    seed: NonNegativeInt | None = None
    data: Text | None = None
    options: Tree | None = None
    headline: Headline | None = None
    config: Tree | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SummaryFile:
    """metrics/summary.json."""

    run: Text
    protocol: Text
    runtime: Literal["ray", "simulated"]
    seed: NonNegativeInt
    rounds: NonNegativeInt
    metrics: Tree
    bytes: NonNegativeInt
    messages: NonNegativeInt
    seconds: float
    wall_seconds: float
    cpu_utilisation: float
    waiting_seconds: float
    money: float = 0.0
    header_bytes: NonNegativeInt = 0
    outside_seconds: float = 0.0
    extra: Tree = field(default_factory=dict)
    schema_version: Literal[1]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SpanLine:
    """A line of events.jsonl: something an actor did."""

    type: Literal["span"]
    actor: Text
    kind: Text
    label: Text
    start: float
    end: float


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RoundLine:
    """A line of events.jsonl: what had been used by the end of a round."""

    type: Literal["round"]
    round: int
    seconds: float
    bytes: int
    messages: int
    money: float


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TotalsLine:
    """The last line of events.jsonl."""

    type: Literal["totals"]
    actors: dict[Text, dict[Text, float]]
    spans: NonNegativeInt
    dropped: NonNegativeInt


EventLine = Annotated[SpanLine | RoundLine | TotalsLine, Field(discriminator="type")]
MetricsLine = Annotated[dict[str, Any], AfterValidator(_shallow), AfterValidator(_numbered)]
"""A line of round_metrics.jsonl: the round, and its metrics by name."""


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def parse(kind: Any, text: bytes | str, where: str) -> Any:
    """Return the plain mapping that `text` holds, less what has its default, after checking it against a schema.

    Args:
        kind: one of the types of this module.
        text: JSON.
        where: the file, for the error.

    Raises:
        BadInput: it is no JSON, or not what the schema allows.
    """
    adapter = _adapter(kind)
    try:
        return adapter.dump_python(adapter.validate_json(text), exclude_defaults=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(shown(part).strip("'") for part in first["loc"] if part not in ("span", "round", "totals"))
        reason = first["msg"].removeprefix("Value error, ").splitlines()[0]
        if first["type"] == "json_invalid":
            raise BadInput(f"{where} is damaged (not valid JSON)") from None
        raise BadInput(f"{where} is damaged: {f'{place}: ' if place else ''}{reason[0].lower()}{reason[1:]}") from None
    except (RecursionError, UnicodeDecodeError, ValueError):
        raise BadInput(f"{where} is damaged (not valid JSON)") from None

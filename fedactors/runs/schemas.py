"""What the files of a run folder may hold; a folder may come from someone else, so each file is checked.

`parse` takes bytes or text and returns values of exactly the types that stand here: no other key, no number as text,
nothing that is not finite. What is not so is one `BadInput` line that names file, field and what is wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from fedactors.errors import BadInput
from fedactors.validation import shown

T = TypeVar("T")
LARGEST = 1e100
"""Of a number that is added up, squared or drawn: what is larger is no measurement."""
_MOST_DIGITS = 100
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_DEEPEST = 100


def _shallow(value: Any) -> Any:
    """Refuse values that are nested so deeply, or numbers so large, that walking through them fails."""
    layer, depth = [value], 0
    while layer:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError("is nested too deeply")
        for one in layer:
            if isinstance(one, float) and not math.isfinite(one):
                raise ValueError("holds a number that is not finite")
            if isinstance(one, int) and abs(one) >= 10**_MOST_DIGITS:
                raise ValueError(f"holds a whole number of more than {_MOST_DIGITS} digits")
        layer = [item for one in layer for item in _items(one)]
    return value


def _measured(value: dict[str, Any]) -> dict[str, Any]:
    for name, item in value.items():
        if isinstance(item, (int, float)) and abs(item) > LARGEST:
            raise ValueError(f"{shown(name)}: a number beyond {LARGEST:g}")
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
    return value


Inside = Annotated[str, Field(max_length=1000), AfterValidator(_path)]
"""A relative path that stays in the run folder."""
Text = Annotated[str, Field(max_length=10_000)]
Tree = Annotated[dict[str, Any], AfterValidator(_shallow)]
Figures = Annotated[Tree, AfterValidator(_measured)]
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class FileEntry:
    """What the manifest says of a file."""

    bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    grows: bool = False


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class CheckpointEntry:
    """What the manifest says of a checkpoint."""

    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=200)]
    folder: Inside
    actors: list[Inside]
    marks: dict[str, Count]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ProcessEntry:
    """What the manifest says of the process that writes it; see `fedactors.runs.folder`."""

    namespace: Annotated[str, Field(max_length=64)]
    boot: Annotated[str, Field(max_length=64)]
    pid: Annotated[int, Field(ge=1, le=2**31)]
    start: Count


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Manifest:
    """manifest.json."""

    kind: Literal["fedactors-run"]
    schema_version: Literal[1]
    status: Literal["running", "finished", "stopped", "failed"]
    parent: Text | None
    files: dict[Inside, FileEntry]
    checkpoints: list[CheckpointEntry]
    process: ProcessEntry | None = None


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Headline:
    """The main metric, and whether more or less of it is better."""

    name: Text
    mode: Literal["max", "min"] = "max"


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Config:
    """config.json; a resumed run asks for the fields that it needs."""

    schema_version: Literal[1] = 1
    scenario: Text | None = None
    protocol: Text | None = None
    runtime: Literal["ray", "simulated", "federated"] | None = None
    seed: Count | None = None
    data: Text | None = None
    objects: Tree | None = None
    """Of a run of objects: the description that a ``parties.toml`` would be, with the address of each object."""
    code: Tree | None = None
    """By setting, of objects that settings were given: source text, and the version of Python; never run."""
    options: Tree | None = None
    headline: Headline | None = None
    config: Tree | None = None
    federation: Tree | None = None
    """Of a run over a federation: the id that its sites know it by."""
    site: Tree | None = None
    """Of a site's own records of such a run: its name, the coordinator's, and that id."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SummaryFile:
    """metrics/summary.json."""

    run: Text
    protocol: Text
    runtime: Literal["ray", "simulated", "federated"]
    seed: Count
    rounds: Count
    metrics: Figures
    bytes: Count
    messages: Count
    seconds: Number
    wall_seconds: Number
    cpu_utilisation: Number
    idle_seconds: Number
    cost_usd: Number = 0.0
    header_bytes: Count = 0
    overhead_seconds: Number = 0.0
    extra: Tree = field(default_factory=dict)
    schema_version: Literal[1]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class SpanLine:
    """A line of events.jsonl: something an actor did."""

    type: Literal["span"]
    actor: Text
    kind: Text
    label: Text
    start: Number
    end: Number

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"it ends at {self.end:g}, before its start at {self.start:g}")


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class RoundLine:
    """A line of events.jsonl: what had been used by the end of a round."""

    type: Literal["round"]
    round: Count
    seconds: Number
    bytes: Count
    messages: Count
    cost_usd: Number


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class TotalsLine:
    """The last line of events.jsonl."""

    type: Literal["totals"]
    actors: dict[Text, dict[Text, Number]]
    spans: Count
    dropped: Count


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Environment:
    """environment.json."""

    python: Text
    implementation: Text
    system: Text
    release: Text
    machine: Text
    cpus: Count | None
    memory_bytes: Count | None
    packages: dict[Text, Text]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PrivacyLine:
    """A line of privacy.jsonl: a `fedactors.privacy.accounting.PrivacyRecord`; null where it is infinite or None."""

    party: Text
    message_type: Text
    mechanism: Literal["gaussian", "laplace", "randomised-response", "randomised-label", "dp-sgd", "secure-sum", "none"]
    neighbour: Text = "row"
    clip_norm: Number | None
    noise_scale: Number = 0.0
    releases: Count = 1
    sampling: Text = "known-batches"
    sensitivity: Number | None = None
    touched: Count = 0
    sample_rate: Annotated[float, Field(ge=0, le=1)] = 1.0
    num_values: Count = 0
    nominal_mu: Number | None = None
    nominal_touched: Number = 0.0
    rigorous_mu: Number | None = None
    epsilon: Number | None = None
    delta: Annotated[float, Field(ge=0, le=1)] | None = None
    uncovered: list[Text] = field(default_factory=list)
    covered: bool = False
    note: Text = ""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class ReplayLine:
    """A neighbour that was replayed."""

    neighbour: Text
    kind: Text
    mu: Number | None
    bare: list[Text]
    to_driver: list[Text]
    moved: Tree


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class PartyReplay:
    """A party's replays."""

    party: Text
    claims: Tree
    replays: list[ReplayLine]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class AuditFile:
    """audit.json: what `fedactors audit` found by replays and attacks."""

    run: Text
    agrees: bool
    refuted: list[Text]
    lines: list[Tree]
    claims: list[Tree]
    predictions: list[Tree] = field(default_factory=list)
    prediction_claims: list[Tree] = field(default_factory=list)
    not_counted: list[Text] = field(default_factory=list)
    charged: str = ""
    replays: list[PartyReplay]
    attacks: list[Tree]


EventLine = Annotated[SpanLine | RoundLine | TotalsLine, Field(discriminator="type")]
MetricsLine = Annotated[dict[str, Any], AfterValidator(_shallow), AfterValidator(_measured), AfterValidator(_numbered)]
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
        field = ".".join(shown(part).strip("'") for part in first["loc"] if part not in ("span", "round", "totals"))
        reason = first["msg"].removeprefix("Value error, ").splitlines()[0]
        if first["type"] == "json_invalid":
            raise BadInput(f"{where} is damaged (not valid JSON)") from None
        raise BadInput(f"{where} is damaged: {f'{field}: ' if field else ''}{reason[0].lower()}{reason[1:]}") from None
    except (RecursionError, UnicodeDecodeError, ValueError):
        raise BadInput(f"{where} is damaged (not valid JSON)") from None

"""One table over several studies: a claim a line, what was measured for it, and whether its aim is reached.

A TOML file states the claims; their numbers come from the tables of runs beside it, so that this table is current
whenever theirs are. A document marks where the table goes:

    <!-- headlines: headlines.toml -->
    <!-- end -->

    [[headline]]
    protocol = "pubsub-vfl"
    what = "seconds to the target"
    measured = { rows = "x/study/pubsub-*", column = "seconds_to_target", take = "least" }
    against = { rows = "x/study/vfl-*", column = "seconds_to_target", take = "least" }
    compare = "ratio"         # or "difference" (measured - against), or "value" (measured alone)
    aim = "<= 0.5"

``rows`` are rows of ``x.parquet`` by study and name, a pattern or several if ``take`` says which of them (``least`` or
``most``). ``column`` may be a table of columns with weights, whose sum is meant.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from fedactors.errors import BadInput
from fedactors.records.table import RunRow, read_table

_AIM = re.compile(r"(<=|>=)\s*(-?[0-9.]+)")
_CONFIG = ConfigDict(extra="forbid")
_MISSING = "not measured"


@validated(frozen=True, kw_only=True, config=_CONFIG)
class Source:
    """Where a number stands."""

    rows: str | list[str]
    column: str | dict[str, float]
    take: Literal["only", "least", "most"] = "only"


@validated(frozen=True, kw_only=True, config=_CONFIG)
class Headline:
    """A claim."""

    protocol: str
    what: str
    measured: Source
    against: Source | None = None
    compare: Literal["ratio", "difference", "value"] = "value"
    aim: str | None = None


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number found, the row that it comes from, its deviation over seeds; infinite when it was not reached."""

    row: str
    value: float
    deviation: float | None
    seeds: int

    def __str__(self) -> str:
        if math.isinf(self.value):
            return f"not reached ({self.row})"
        spread = "" if self.deviation is None else f" ± {_text(self.deviation, 2)}"
        return f"{_text(self.value)}{spread} ({self.row})"


def headline_table(file: Path) -> str:
    """Return the Markdown table of the claims in `file`, whose paths are relative to it.

    Raises:
        BadInput: the file or one of its claims is not of the form above, or a column that a summary lacks.
    """
    try:
        claims = TypeAdapter(list[Headline]).validate_python(tomllib.loads(file.read_text()).get("headline", []))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise BadInput(f"{file}: {' '.join(str(error).split())[:200]}") from None
    lines = [["protocol", "what", "measured", "against", "result", "aim", "reached", "seeds"]]
    lines += [["---"] * len(lines[0])]
    lines += [_line(file.parent, claim) for claim in claims]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _line(base: Path, claim: Headline) -> list[str]:
    ours = _find(base, claim.measured)
    theirs = None if claim.against is None else _find(base, claim.against)
    result = _result(claim, ours, theirs)
    reached = "-" if claim.aim is None else _MISSING if result is None else "yes" if _holds(claim, result) else "no"
    shown = "-" if result is None else "not reached" if math.isinf(result) else _text(result)
    if result is not None and claim.compare == "difference" and result > 0:
        shown = f"+{shown}"
    return [
        claim.protocol,
        claim.what,
        _MISSING if ours is None else str(ours),
        "-" if claim.against is None else _MISSING if theirs is None else str(theirs),
        f"{shown}{' ×' if claim.compare == 'ratio' and result is not None else ''}",
        claim.aim or "-",
        reached,
        str(min(figure.seeds for figure in (ours, theirs) if figure is not None)) if ours else "-",
    ]


def _result(claim: Headline, ours: Figure | None, theirs: Figure | None) -> float | None:
    if ours is None or (claim.compare != "value" and theirs is None):
        return None
    if claim.compare == "value" or theirs is None:
        return ours.value
    if math.isinf(ours.value):
        return math.inf
    return ours.value / theirs.value if claim.compare == "ratio" else ours.value - theirs.value


def _holds(claim: Headline, result: float) -> bool:
    match = _AIM.fullmatch(claim.aim or "")
    if match is None:
        raise BadInput(f"headlines: aim {claim.aim!r} is not allowed: <= or >= and a number")
    bound = float(match[2])
    return result <= bound if match[1] == "<=" else bound <= result < math.inf


def _find(base: Path, source: Source) -> Figure | None:
    patterns = [source.rows] if isinstance(source.rows, str) else source.rows
    groups: dict[str, list[RunRow]] = {}
    for pattern in patterns:
        file = pattern.partition("/")[0]
        for row in read_table(base / f"{file}.parquet") if (base / f"{file}.parquet").exists() else ():
            place = f"{file}/{row.study}/{row.name}"
            if row.status == "finished" and fnmatchcase(place, pattern):
                groups.setdefault(place, []).append(row)
    found = [_figure(place, rows, source) for place, rows in groups.items()]
    if not found:
        return None
    if source.take == "only":
        if len(found) > 1:
            raise BadInput(f"headlines: {source.rows!r} names {len(found)} rows; say which to take")
        return found[0]
    choose = min if source.take == "least" else max
    finite = [figure for figure in found if math.isfinite(figure.value)]
    return choose(finite or found, key=lambda figure: figure.value)


def _figure(place: str, rows: Sequence[RunRow], source: Source) -> Figure:
    weights = {source.column: 1.0} if isinstance(source.column, str) else source.column
    values = [sum(weight * _number(place, row, column) for column, weight in weights.items()) for row in rows]
    mean = math.fsum(values) / len(values)
    deviation = None
    if len(values) > 1 and math.isfinite(mean):
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Figure(row=rows[0].name, value=mean, deviation=deviation, seeds=len(values))


def _number(place: str, row: RunRow, column: str) -> float:
    if column in row.censored:
        return math.inf
    value = row.value(column)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BadInput(f"{place}: has no number {column!r}")
    return float(value)


def _text(value: float, digits: int = 4) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"

"""Claims over several studies: how many hold, and for each protocol a table with a claim a line.

A line says what was measured for it, whether it holds, and why or where.

A TOML file states the claims; their numbers come from the tables of runs beside it, so that these tables are
current whenever theirs are. A document marks where the tables go:

    <!-- headlines: headlines.toml -->
    <!-- end -->

    [[headline]]
    protocol = "pubsub-vfl"
    what = "seconds to the target"
    measured = { rows = "x/study/pubsub-*", column = "seconds_to_target", take = "least" }
    against = { rows = "x/study/vfl-*", column = "seconds_to_target", take = "least" }
    compare = "ratio"         # or "difference" (measured - against), or "value" (measured alone)
    aim = "<= 0.5"
    why = "what bounds it, or where it holds"

``rows`` are rows of ``x.parquet`` by study and name, a pattern or several if ``take`` says which of them (``least`` or
``most``). ``column`` may be a table of columns with weights, whose sum is meant.

Where both sides have two seeds in common, the result is over these pairs: the mean of the differences, or the median of
the ratios, with the 95 % interval of `scenarios.paper.pairs`. A row that is a summary names the columns of its
``interval`` and of its number of ``pairs``. A claim holds if its whole interval does, and does not if none of it does.

A claim with a ``short`` text is also in the table of its protocol's own page (``<!-- verdicts: FILE PROTOCOL -->``),
and in its forest plot (``<!-- forest: FILE PROTOCOL -->``) where ``plot`` says what its number is. Cells of a map,
ratios of the method to the best other one, are ``[[cell]]`` with ``row``, ``column`` and ``measured``
(``<!-- map: FILE PROTOCOL -->``). ``<!-- counts: FILE -->`` is the first table alone.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from fedactors.errors import BadInput
from fedactors.runs.compare import paired_difference
from fedactors.runs.table import NOT_REACHED, RunRow, read_table
from scenarios.paper.pairs import paired_ratio

_AIM = re.compile(r"(<=|>=)\s*(-?[0-9.]+)")
_CONFIG = ConfigDict(extra="forbid")
_MISSING = "not measured"
_VERDICTS = ("confirmed", "inconclusive", "refuted")
_HEADER = ("claim, and why or where", "result (95 % interval)", "aim", "verdict", "seeds")
_VERDICT = _HEADER.index("verdict")
_SCALE = {"ratio": 1.0, "points": 100.0, "percent": 1.0}


@validated(frozen=True, kw_only=True, config=_CONFIG)
class Source:
    """Where a number stands."""

    rows: str | list[str]
    column: str | dict[str, float]
    take: Literal["only", "least", "most"] = "only"
    interval: tuple[str, str] | None = None
    pairs: str | None = None


@validated(frozen=True, kw_only=True, config=_CONFIG)
class Headline:
    """A claim."""

    protocol: str
    what: str
    measured: Source
    against: Source | None = None
    compare: Literal["ratio", "difference", "value"] = "value"
    aim: str | None = None
    why: str = ""
    short: str = ""
    plot: Literal["", "ratio", "points", "percent"] = ""


@validated(frozen=True, kw_only=True, config=_CONFIG)
class Cell:
    """A cell of a protocol's map: a ratio to the best other method."""

    protocol: str
    row: str
    column: str
    measured: Source
    against: Source | None = None
    other: str = ""


@validated(frozen=True, kw_only=True, config=_CONFIG)
class Claims:
    """A file of claims."""

    headline: list[Headline] = field(default_factory=list)
    cell: list[Cell] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ForestLine:
    """A line of a forest plot: a ratio, or a difference in percentage points."""

    label: str
    panel: Literal["ratio", "points"]
    value: float
    interval: tuple[float, float]
    aim: float | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number found, the row that it comes from, its deviation over seeds; infinite when it was not reached."""

    row: str
    value: float
    deviation: float | None
    seeds: int
    by_seed: Mapping[int, float]
    interval: tuple[float, float] | None = None

    def __str__(self) -> str:
        if math.isinf(self.value):
            return f"not reached ({self.row})"
        spread = "" if self.deviation is None else f" ± {_text(self.deviation, 2)}"
        return f"{_text(self.value)}{spread} ({self.row})"


def headline_tables(file: Path) -> str:
    """Return the Markdown of the claims in `file`, whose paths are relative to it: how many hold, then each.

    Raises:
        BadInput: the file or one of its claims is not of the form above, or a column that a summary lacks.
    """
    protocols = _protocols(file)
    parts = [_counts(protocols)]
    parts += [f"\n## {name}\n\n{_markdown(_HEADER, lines)}" for name, lines in protocols.items()]
    return "".join(parts)


def count_table(file: Path) -> str:
    """Return the Markdown table of how many claims of each protocol hold.

    Raises:
        BadInput: as `headline_tables`.
    """
    return _counts(_protocols(file))


def verdict_table(file: Path, protocol: str) -> str:
    """Return the Markdown table of a protocol's claims that have a short text.

    Raises:
        BadInput: as `headline_tables`, or there is no such claim.
    """
    lines = []
    for claim in _chosen(file, protocol):
        _, result = _sides(file.parent, claim)
        lines.append([claim.short, *_measured(claim, result), _verdict(claim, result)])
    return _markdown(("claim", "measured (95 % interval)", "aim", "verdict"), lines)


def _measured(claim: Headline, result: Result | None) -> tuple[str, str]:
    """Return a claim's number and its aim; differences of shares in percentage points."""
    if result is None:
        return _MISSING, _aim(claim)
    if claim.plot not in ("points", "percent") or claim.aim is None:
        return result.text(claim.compare), _aim(claim)
    scale = _SCALE[claim.plot]
    ends = "" if result.interval is None else f" ({' to '.join(f'{end * scale:+.2f}' for end in result.interval)})"
    sign, bound = _bound(claim.aim)
    return f"{result.value * scale:+.2f} points{ends}", f"{sign}\N{NO-BREAK SPACE}{bound * scale:g}"


def forest_lines(file: Path, protocol: str) -> list[ForestLine]:
    """Return the lines of a protocol's forest plot.

    Raises:
        BadInput: as `verdict_table`.
    """
    lines = []
    for claim in _chosen(file, protocol):
        _, result = _sides(file.parent, claim)
        if not claim.plot or result is None or result.interval is None:
            continue
        scale = _SCALE[claim.plot]
        low, high = (end * scale for end in result.interval)
        lines.append(
            ForestLine(
                label=claim.short,
                panel="ratio" if claim.plot == "ratio" else "points",
                value=result.value * scale,
                interval=(low, high),
                aim=None if claim.aim is None else _bound(claim.aim)[1] * scale,
                verdict=_verdict(claim, result),
            )
        )
    return lines


def map_table(file: Path, protocol: str) -> str:
    """Return the Markdown table of a protocol's map: bold where the whole interval is below 1, in italics above.

    Raises:
        BadInput: as `headline_tables`, or a cell has no number.
    """
    cells = [cell for cell in _claims(file).cell if cell.protocol == protocol]
    rows, columns = (_ordered(getattr(cell, name) for cell in cells) for name in ("row", "column"))
    said: dict[tuple[str, str], str] = {}
    for cell in cells:
        compare: Literal["value", "ratio"] = "value" if cell.against is None else "ratio"
        claim = Headline(protocol="", what="", measured=cell.measured, against=cell.against, compare=compare)
        _, result = _sides(file.parent, claim)
        if result is None or result.interval is None:
            raise BadInput(f"{file}: map of {protocol}, {cell.row}, {cell.column}: no ratio with an interval")
        low, high = result.interval
        mark = "**" if high < 1 else "*" if low > 1 else ""
        said[cell.row, cell.column] = f"{mark}{_text(result.value, 3)}{mark} ({_text(low, 3)} to {_text(high, 3)})" + (
            f" {cell.other}" if cell.other else ""
        )
    return _markdown(["", *columns], [[row, *(said.get((row, column), "-") for column in columns)] for row in rows])


def _ordered(names: Iterable[str]) -> list[str]:
    """Return each name once, by the numbers with which all begin, else as they come."""
    kept = list(dict.fromkeys(names))
    numbers = [re.match(r"[\d.]+", name) for name in kept]
    if not all(numbers):
        return kept
    return [
        name for _, name in sorted((float(found[0]), name) for found, name in zip(numbers, kept, strict=True) if found)
    ]


def _claims(file: Path) -> Claims:
    try:
        return TypeAdapter(Claims).validate_python(tomllib.loads(file.read_text()))
    except (OSError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise BadInput(f"{file}: {' '.join(str(error).split())[:200]}") from None


def _chosen(file: Path, protocol: str) -> list[Headline]:
    found = [claim for claim in _claims(file).headline if claim.protocol == protocol and claim.short]
    if not found:
        raise BadInput(f"{file}: no claim of {protocol!r} has a short text")
    return found


def _protocols(file: Path) -> dict[str, list[list[str]]]:
    protocols: dict[str, list[list[str]]] = {}
    for claim in _claims(file).headline:
        protocols.setdefault(claim.protocol, []).append(_line(file.parent, claim))
    return protocols


def _counts(protocols: Mapping[str, Sequence[Sequence[str]]]) -> str:
    found = dict.fromkeys(
        [*_VERDICTS, *(line[_VERDICT] for lines in protocols.values() for line in lines if line[_VERDICT] != "-")]
    )
    counts = [
        [name, str(len(lines)), *(str(sum(line[_VERDICT] == verdict for line in lines)) for verdict in found)]
        for name, lines in protocols.items()
    ]
    return _markdown(["protocol", "claims", *found], counts)


def _markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join("| " + " | ".join(line) + " |\n" for line in [header, ["---"] * len(header), *lines])


def _line(base: Path, claim: Headline) -> list[str]:
    (ours, theirs), result = _sides(base, claim)
    sides = _MISSING if ours is None else ours.row if claim.compare == "value" and not ours.deviation else str(ours)
    if claim.against is not None:
        sides += f" against {_MISSING if theirs is None else theirs}"
    return [
        _above(claim.what, claim.why),
        _above("-" if result is None else result.text(claim.compare), sides),
        _aim(claim),
        _verdict(claim, result),
        "-" if result is None else str(result.seeds),
    ]


def _sides(base: Path, claim: Headline) -> tuple[tuple[Figure | None, Figure | None], Result | None]:
    ours = _find(base, claim.measured)
    theirs = None if claim.against is None else _find(base, claim.against)
    return (ours, theirs), _result(claim, ours, theirs)


def _aim(claim: Headline) -> str:
    return (claim.aim or "-").replace(" ", "\N{NO-BREAK SPACE}")


def _above(said: str, besides: str) -> str:
    """Return a cell of a line, and what belongs to it in small letters below."""
    return f"{said}<br><small>{besides}</small>" if besides else said


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a claim came to, with its interval where there are pairs, and over how many seeds."""

    value: float
    seeds: int
    interval: tuple[float, float] | None = None

    def text(self, compare: str) -> str:
        """Return the result as the table shows it."""
        sign = "+" if compare == "difference" and self.value > 0 else ""
        unit = " ×" if compare == "ratio" else ""
        shown = NOT_REACHED if math.isinf(self.value) else f"{sign}{_text(self.value)}{unit}"
        return (
            shown
            if self.interval is None or all(map(math.isinf, self.interval))
            else f"{shown} ({' to '.join(_text(end) for end in self.interval)})"
        )


def _result(claim: Headline, ours: Figure | None, theirs: Figure | None) -> Result | None:
    if ours is None or (claim.compare != "value" and theirs is None):
        return None
    if claim.compare == "value" or theirs is None:
        return Result(value=ours.value, seeds=ours.seeds, interval=ours.interval)
    common = ours.by_seed.keys() & theirs.by_seed.keys()
    if len(common) > 1:
        return _paired(claim.compare, ours, theirs)
    value = ours.value / theirs.value if claim.compare == "ratio" else ours.value - theirs.value
    return Result(value=math.inf if math.isinf(ours.value) else value, seeds=min(ours.seeds, theirs.seeds))


def _paired(compare: str, ours: Figure, theirs: Figure) -> Result:
    if compare == "difference":
        found = paired_difference(ours.by_seed, theirs.by_seed)
        return Result(value=found["difference"], seeds=found["n"], interval=tuple(found["interval"]))
    censored = [{seed: None if math.isinf(v) else v for seed, v in one.by_seed.items()} for one in (ours, theirs)]
    found = paired_ratio(*censored)
    if found["ratio"] is None:
        return Result(value=math.inf, seeds=0)
    return Result(value=found["ratio"], seeds=found["n"], interval=tuple(found["interval"]))


def _verdict(claim: Headline, result: Result | None) -> str:
    if claim.aim is None:
        return "-"
    sign, bound = _bound(claim.aim)
    if result is None:
        return _MISSING
    ends = (result.value, *(result.interval or ()))
    kept = [end <= bound if sign == "<=" else bound <= end < math.inf for end in ends]
    return _VERDICTS[0 if all(kept) else 1 if any(kept) else 2]


def _bound(aim: str) -> tuple[str, float]:
    match = _AIM.fullmatch(aim)
    if match is None:
        raise BadInput(f"headlines: aim {aim!r} is not allowed: <= or >= and a number")
    return match[1], float(match[2])


@functools.lru_cache(maxsize=64)
def _rows(table: Path, changed: int) -> list[RunRow]:
    """Return the rows of a table as it was written at a time in nanoseconds."""
    return read_table(table)


def _find(base: Path, source: Source) -> Figure | None:
    patterns = [source.rows] if isinstance(source.rows, str) else source.rows
    groups: dict[str, list[RunRow]] = {}
    for pattern in patterns:
        file = pattern.partition("/")[0]
        table = base / f"{file}.parquet"
        for row in _rows(table, table.stat().st_mtime_ns) if table.exists() else ():
            key = f"{file}/{row.study}/{row.name}"
            if row.status == "finished" and fnmatchcase(key, pattern):
                groups.setdefault(key, []).append(row)
    found = [_figure(key, rows, source) for key, rows in groups.items()]
    if not found:
        return None
    if source.take == "only":
        if len(found) > 1:
            raise BadInput(f"headlines: {source.rows!r} names {len(found)} rows; say which to take")
        return found[0]
    choose = min if source.take == "least" else max
    finite = [figure for figure in found if math.isfinite(figure.value)]
    return choose(finite or found, key=lambda figure: figure.value)


def _figure(key: str, rows: Sequence[RunRow], source: Source) -> Figure:
    weights = {source.column: 1.0} if isinstance(source.column, str) else source.column
    values = [sum(weight * _number(key, row, column) for column, weight in weights.items()) for row in rows]
    mean = math.fsum(values) / len(values)
    deviation = None
    if len(values) > 1 and math.isfinite(mean):
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    interval, seeds = None, len(values)
    if source.interval is not None:
        low, high = (_number(key, rows[0], column) for column in source.interval)
        interval = (low, high)
    if source.pairs is not None:
        seeds = int(_number(key, rows[0], source.pairs))
    by_seed = {row.seed: value for row, value in zip(rows, values, strict=True)}
    return Figure(row=rows[0].name, value=mean, deviation=deviation, seeds=seeds, by_seed=by_seed, interval=interval)


def _number(key: str, row: RunRow, column: str) -> float:
    if column in row.censored:
        return math.inf
    value = row.value(column)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise BadInput(f"{key}: has no number {column!r}")
    return float(value)


def _text(value: float, digits: int = 4) -> str:
    if math.isinf(value):
        return NOT_REACHED
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"

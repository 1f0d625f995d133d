"""From the columns of a party's file to numbers: what a description says, training fits and prediction applies.

    rules    ColumnRule by name, from the description                    (kind, missing, scaling, unknown, ...)
    fit      on the rows that a party trains on --> FittedColumn: the same, with the categories that were there
    encode   fitted columns, any rows --> one float32 column per number, category and part of a date; missing: NaN
    finish   fill (NaN by what was fitted), shift and scale --> what the model sees           (`Preprocessing`)

Numbers are taken in double precision. Where single precision would merge values that training could tell apart, such
as seconds since 1970, they are counted from an origin that is fitted with the column, or refused where nothing may be
measured. Categories and origins belong to the party's file; means, medians and deviations to its training rows. All is
kept with the party's part of the model, as plain values. A category that training did not see is a row of zeros, which
no known one is: a bucket of its own. With ``rare = n`` categories of fewer than n rows share a bucket that is trained.
A row that cannot be used has a reason for its owner (``income: '12,5' is no number``); others may know its kind only.

Shapes: N rows, D columns of numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from fedactors.config import config
from fedactors.data.alignment.ids import Alignment
from fedactors.data.values import (
    WAVES,
    Column,
    CsvFormat,
    DatePart,
    Formats,
    IdRule,
    alike,
    allocate,
    blocks_of,
    encode_dates,
    formats_of,
    half_read,
    how_dates_are_read,
    how_it_is_read,
    moment_texts,
    parse_date,
    parts_without,
    truth_texts,
    value_text,
    whole_texts,
)
from fedactors.errors import BadInput
from fedactors.validation import first_line

_log = logging.getLogger(__name__)
ABSENT, INFINITE, NO_NUMBER, NO_DATE = "missing", "infinite", "is no number", "is no date"
NO_CATEGORY, NEVER_SEEN = "is no category", "was not there in training"
NO_ID, SEVERAL = "no id", "its id stands in several rows"
UNSEEN_ID = "its id holds a character that nobody sees, or that stands for a lost one"
_KINDS = {
    ABSENT: "missing values",
    "missing values": "missing values",
    INFINITE: "infinite values",
    NO_NUMBER: "values that are no numbers",
    NO_DATE: "values that are no dates",
    NO_CATEGORY: "unknown categories",
    NEVER_SEEN: "unknown categories",
    NO_ID: NO_ID,
    SEVERAL: SEVERAL,
    UNSEEN_ID: "ids with unseen characters",
}
"""What reasons end with, and what others may know of them."""


def kind_of(reason: str) -> str:
    """Return what others may know of why a row cannot be used: no column, no value."""
    return next((kind for ending, kind in _KINDS.items() if reason.endswith(ending)), "cannot be read")


Kind = Literal["numeric", "categorical", "text", "datetime"]
Missing = Literal["refuse", "drop", "mean", "median", "constant", "indicator"]
MISSING, OTHER = "<missing>", "<other>"
_MOST_CELLS = 1 << 28
"""Numbers that one categorical column may become: 1 GiB."""
_MOST_NAMED = 8
"""Columns that one line names."""
_MOST_SHOWN = 20


ONLY_OF: dict[str, tuple[Kind, ...]] = {
    "scaling": ("numeric", "datetime"),
    "range": ("numeric", "datetime"),
    "categories": ("categorical", "text"),
    "unknown": ("categorical", "text"),
    "rare": ("categorical", "text"),
    "format": ("datetime",),
    "parts": ("datetime",),
}
"""What a rule may say of columns of some types only."""


@config
class ColumnRule:
    """What a description says of a column, ``[parties.NAME.columns.COLUMN]``."""

    type: Kind = "numeric"
    """``numeric``; ``categorical`` (exact texts); ``text`` (categories too, but letters' case, blanks at the ends and
    how accents are composed do not count); ``datetime``."""
    missing: Missing = "refuse"
    """``refuse`` the file, ``drop`` the row, fill with the training rows' ``mean`` or ``median``, with the ``constant``
    that `fill` gives, or let an ``indicator`` column tell it (for categories: a category of its own)."""
    fill: float | str | None = None
    """The value of ``constant``; a category, a number, or a date as text."""
    scaling: Literal["standard", "none", "range"] = "standard"
    """Numbers: as the protocol standardises (``standard``), as they are (``none``), or the public ``range`` to 0..1."""
    range: tuple[float, float] | None = None
    """Smallest and largest value, of a date in days since 1970; what lies beyond is clipped."""
    categories: tuple[str, ...] = ()
    """The known categories in their order, which are public then; those of the file unless given."""
    unknown: Literal["bucket", "refuse"] = "bucket"
    """A category that training did not see: in the bucket, or the row is not predicted."""
    rare: Annotated[int, Field(ge=1)] = 1
    """Categories of fewer rows than this share the bucket, which is then trained."""
    format: Formats = ""
    """Of dates that are text, as Python's ``strptime`` has it, or a list of formats in the order in which they are
    tried; ISO 8601 unless given, ``iso`` in a list. ``unix``, ``unix-ms``, ``unix-us``, ``unix-ns``: seconds,
    milliseconds, microseconds or nanoseconds since 1970; ``excel``: days as a workbook counts them."""
    parts: tuple[DatePart, ...] = ("days", "month", "weekday")
    """What becomes of a date: ``days`` since 1970, and sine and cosine of ``month``, ``weekday`` or ``hour``."""

    def __post_init__(self) -> None:
        if self.is_category and self.missing in ("mean", "median"):
            raise ValueError(f"missing: {self.missing!r} is not allowed for type={self.type}: categories have none")
        if (self.missing == "constant") != (self.fill is not None):
            raise ValueError('fill: give the value together with missing = "constant", and only with it')
        if (self.scaling == "range") != (self.range is not None):
            raise ValueError('range: give [smallest, largest] together with scaling = "range", and only with it')
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"range: {list(self.range)} is not allowed: the first number is less than the second")
        if self.scaling == "range" and (self.is_category or (self.type == "datetime" and "days" not in self.parts)):
            raise ValueError(f"scaling: 'range' is not allowed for type={self.type}: it is for numbers, or dates' days")
        self._check_categories()
        if not self.parts:
            raise ValueError("parts: [] is not allowed: name at least one of days, month, weekday, hour")
        for one in formats_of(self.format):
            if why := half_read(one):
                raise ValueError(f"format: {one!r} is not allowed: {why}")
            if lost := parts_without(one, self.parts):
                what = "month" if lost == ["month"] else "year"
                kept = [
                    *([] if parts_without(one, ["month"]) else ["month"]),
                    *(["hour"] if "%H" in one or "%I" in one else []),
                ]
                or_parts = f"say parts = {json.dumps(kept)}, or " if kept else ""
                raise ValueError(
                    f"format: {one!r} is not allowed with parts {list(self.parts)}: it has no {what}; {or_parts}write "
                    f"dates with their {what}"
                )
        if self.missing == "constant" and self.type == "numeric" and isinstance(self.fill, str):
            raise ValueError(f"fill: {self.fill!r} is not allowed for type=numeric: give a number")
        if self.missing == "constant" and self.type == "datetime":
            try:
                parse_date(str(self.fill), self.format)
            except ValueError:
                raise ValueError(f"fill: {self.fill!r} is not allowed: give a date as the column has it") from None

    def _check_categories(self) -> None:
        if not self.categories:
            return
        if not self.is_category:
            raise ValueError(f"categories: {list(self.categories)} is not allowed for type={self.type}")
        if self.rare > 1:
            raise ValueError(f"rare: {self.rare} is not allowed with categories: nothing is counted")
        if len(set(self.declared)) < len(self.declared):
            raise ValueError(f"categories: {list(self.categories)} is not allowed: one is there twice")
        if self.fill is not None and self.plain(value_text(self.fill)) not in self.declared:
            raise ValueError(f"fill: {self.fill!r} is not allowed: it is none of the categories")

    def plain(self, text: str) -> str:
        """Return a text as it is compared with categories."""
        return alike(text) if self.type == "text" else text

    @property
    def declared(self) -> tuple[str, ...]:
        """The categories that the description gives, as values are compared with them; none where the file tells."""
        known = tuple(map(self.plain, self.categories))
        return (*known, MISSING) if known and self.missing == "indicator" else known

    @property
    def measures(self) -> str:
        """What of it depends on rows, as it stands in a description; empty: nothing does."""
        if self.is_category:
            return "" if self.categories else "categories"
        if self.fills_with:
            return f"missing = {self.missing!r}"
        return "days without a range" if self.type == "datetime" and "days" in self.parts and not self.range else ""

    @property
    def is_category(self) -> bool:
        """Whether each value is one of several."""
        return self.type in ("categorical", "text")

    @property
    def fills_with(self) -> str:
        """What stands for missing numbers after the training rows are known: mean, median, or nothing to be filled."""
        return {"mean": "mean", "median": "median", "indicator": "mean"}.get(self.missing, "")


NUMBERS = ColumnRule()
"""Of columns without one."""


@pydantic_dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FittedColumn:
    """A column of the training rows: its rule, and the categories that were there."""

    name: str
    rule: ColumnRule
    categories: tuple[str, ...] = ()
    bucket: bool = False
    """Whether training rows were in the bucket, so that it is a column."""
    origin: float = 0.0
    """What numbers, or days, are counted from, where single precision would merge them otherwise."""
    zone: Literal["", "named", "none"] = ""
    """Whether moments name a time zone other than UTC, or none; empty: neither, such as dates and moments in UTC."""

    @property
    def names(self) -> list[str]:
        """Names of the numbers that it becomes."""
        rule, made = self.rule, []
        if rule.is_category:
            return [f"{self.name}={text}" for text in (*self.categories, *([OTHER] if self.bucket else []))]
        if rule.type == "datetime":
            for part in rule.parts:
                made += [f"{self.name} ({part})"] if part == "days" else [f"{self.name} ({part}, {f})" for f in WAVES]
        else:
            made = [self.name]
        return [*made, *([f"{self.name} is missing"] if rule.missing == "indicator" else [])]

    @property
    def keeps_scale(self) -> list[bool]:
        """Of these numbers, which are never standardised."""
        scaled = {self.name, f"{self.name} (days)"} if self.rule.scaling == "standard" else set()
        return [name not in scaled for name in self.names]

    @property
    def fills(self) -> list[str]:
        """Of these numbers, what is measured to stand for missing ones: mean, median, or nothing."""
        if self.rule.is_category:
            return [""] * len(self.names)
        return ["" if name.endswith(" is missing") else self.rule.fills_with for name in self.names]


def resolve_rules(
    rules: Sequence[tuple[str, ColumnRule]], names: Sequence[str], categorical: Sequence[str] = ()
) -> dict[str, ColumnRule]:
    """Return the rule of each column that has one: its own, else that of the first pattern that its name is like.

    Args:
        rules: by name, or by a pattern in which ``*`` stands for anything, in the order of the description.
        names: of the columns.
        categorical: columns of categories that have no other rule.
    """
    exact = {**dict.fromkeys(categorical, ColumnRule(type="categorical")), **dict(rules)}
    patterns = [(".*".join(map(re.escape, name.split("*"))), rule) for name, rule in rules if "*" in name]
    found = {}
    for name in names:
        like = next((rule for pattern, rule in patterns if re.fullmatch(pattern, name, re.S)), None)
        if (rule := exact.get(name, like)) is not None:
            found[name] = rule
    return found


COLUMNS = TypeAdapter(tuple[FittedColumn, ...])
_CSV: TypeAdapter[CsvFormat | None] = TypeAdapter(CsvFormat | None)
Id = str | tuple[str, ...] | None
"""The column of the ids, or several that make one together; None: rows are called by their numbers."""
_ID: TypeAdapter[Id] = TypeAdapter(Id)
_ID_RULES: TypeAdapter[tuple[IdRule, ...]] = TypeAdapter(tuple[IdRule, ...])
_ALIGNMENT: TypeAdapter[Alignment | None] = TypeAdapter(Alignment | None)


@dataclasses.dataclass(frozen=True, eq=False)
class Encoded:
    """Rows as numbers, with NaN where what training measured is to be filled in."""

    features: NDArray[Any]
    """(N, D)."""
    rejected: dict[int, str]
    """Rows that cannot be used, with the reason; their numbers mean nothing."""


def fit(
    columns: Mapping[str, Column], rules: Mapping[str, ColumnRule], where: str, dtype: Any = np.float32
) -> tuple[FittedColumn, ...]:
    """Return the columns with the categories of these rows.

    Args:
        columns: the rows to be trained on, by column, in the order of the features.
        rules: of the columns that have one; the others are numbers.
        where: party and file, for errors.
        dtype: of the numbers that they become.

    Raises:
        BadInput: a categorical column of numbers that are no codes, or of too many categories; text where numbers must
            be, or numbers that cannot be told apart in this precision.
    """
    _refuse_texts([column for name, column in columns.items() if rules.get(name, NUMBERS).type == "numeric"], where)
    made = []
    for name, column in columns.items():
        rule = rules.get(name, NUMBERS)
        if not rule.is_category:
            zone = _zone(column, where) if rule.type == "datetime" else ""
            made.append(FittedColumn(name=name, rule=rule, origin=_origin(column, rule, where, dtype), zone=zone))
            continue
        if rule.declared:
            made.append(FittedColumn(name=name, rule=rule, categories=rule.declared))
            continue
        texts, codes_N = _categories(column, rule, where, ())
        if rule.type == "categorical":
            _refuse_measurements(name, texts, where.partition(":")[0])
        counts = dict(zip(texts, np.bincount(codes_N[codes_N >= 0], minlength=len(texts)).tolist(), strict=True))
        values = sorted(text for text, count in counts.items() if count)
        kept = tuple(text for text in values if counts[text] >= rule.rare or text == MISSING)
        if len(kept) * max(1, len(column)) > _MOST_CELLS:
            raise BadInput(
                f"{where.partition(':')[0]}: categorical: {name!r} has {len(kept)} different values in {len(column)} "
                f"rows: one column for each is more than {_MOST_CELLS} numbers"
            )
        zone = _zone(column, where) if moment_texts(text for text in texts if text != MISSING) else ""
        made.append(FittedColumn(name=name, rule=rule, categories=kept, bucket=len(kept) < len(values), zone=zone))
    return tuple(made)


def _zone(column: Column, where: str) -> Literal["", "named", "none"]:
    """Say whether the moments of a column name a time zone.

    Raises:
        BadInput: some do, and some do not.
    """
    named_N, none_N = (chosen.to_numpy(zero_copy_only=False) for chosen in column.zones())
    if named_N.any() and none_N.any():
        texts = column.texts()
        first = [texts[int(chosen_N.argmax())] for chosen_N in (named_N, none_N)]
        raise BadInput(
            f"{where}: column {column.name}: {first[0]!r} names a time zone, and {first[1]!r} none; name it in "
            "all of them, such as Z for UTC, or in none"
        )
    return "named" if named_N.any() else "none" if none_N.any() else ""


def _origin(column: Column, rule: ColumnRule, where: str, dtype: Any) -> float:
    """Return what the numbers of a column are to be counted from: 0 where this precision tells them apart as they are.

    Raises:
        BadInput: naming two of them that are the same number in this precision, whatever they are counted from.
    """
    if rule.range is not None or (rule.type == "datetime" and "days" not in rule.parts):
        return 0.0
    if rule.type == "datetime":
        moments_N, _ = column.moments(rule.format, where)
        values_N = encode_dates(moments_N, ("days",), 1)[:, 0]
    else:
        values_N = column.numbers(where)
        advice = "leave the column out of features, or name it under categorical"
        refuse_merged(column, values_N, f"{where}: column {column.name}", advice)
    if dtype != np.float32 or not merges_in_single(values_N):
        return 0.0
    is_tiny = bool(np.abs(values_N[np.isfinite(values_N)]).max() < np.finfo(np.float32).tiny)
    if rule.scaling == "none" or is_tiny:
        one, other = told_apart(values_N)
        rule_text = f'say under columns {column.name} = {{ scaling = "range", range = [LOWEST, LARGEST] }}'
        advice = "write them in another unit, in which they are larger" if is_tiny else rule_text
        raise BadInput(f"{where}: column {column.name}: {one} and {other} are one number in single precision; {advice}")
    return float(values_N[np.isfinite(values_N)].mean())


def refuse_merged(column: Column, values_N: NDArray[np.float64], where: str, advice: str) -> None:
    """Refuse numbers of a file that double precision makes one.

    Args:
        column: as the file has it.
        values_N: its numbers in double precision.
        where: party, file and column, for errors.
        advice: what to do about large ones.

    Raises:
        BadInput: naming two of them.
    """
    if (merged := column.merged(values_N)) is None:
        return
    limit = "which counts to 2^53"
    if not np.abs(values_N[np.isfinite(values_N)]).max() > 1:
        limit, advice = "which has nothing between 0 and 5e-324", "write them in another unit, in which they are larger"
    raise BadInput(f"{where}: {merged[0]} and {merged[1]} are one number in double precision, {limit}; {advice}")


_LEAST_SINGLE = 2.0**-150
"""Below which single precision has nothing but 0."""
_BLURRED = 1e-3
"""Share of a column's deviation that rounding may take off a value."""


def merges_in_single(values_N: NDArray[np.float64]) -> bool:
    """Say whether single precision rounds numbers by as much as what makes them different."""
    finite = values_N[np.isfinite(values_N)]
    if not len(finite) or finite.min() == finite.max():
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = finite.std()
        if not may_merge_in_single(np.abs(finite).max(), deviation):
            return False
        return bool(np.abs(finite - finite.astype(np.float32)).max() > _BLURRED * float(deviation))


def may_merge_in_single(largest: Any, deviation: Any) -> Any:
    """Say whether single precision may round numbers of this size by as much as what makes them different."""
    return np.maximum(largest * 2.0**-24, _LEAST_SINGLE) > _BLURRED * deviation


def check_single(values: NDArray[Any], where: str) -> None:
    """Check that single precision holds an array's numbers, and tells apart those at each place of the last axis.

    Raises:
        BadInput: naming the place, and two of its numbers.
    """
    if np.can_cast(values.dtype, np.float32):
        return
    for position in range(values.shape[-1]):
        values_N = values[..., position].ravel()
        numbers_N = values_N.astype(np.float64)
        told = f"{where}: column {position}"
        if (np.abs(numbers_N[np.isfinite(numbers_N)]) > np.finfo(np.float32).max).any():
            raise BadInput(f"{told}: values are infinite in single precision; write them in another unit")
        refuse_merged(Column(str(position), values_N), numbers_N, told, "take off what all of them have in common")
        if merges_in_single(numbers_N):
            raise BadInput(
                f"{told}: {' and '.join(told_apart(numbers_N))} are one number in single precision; take off what all "
                "of them have in common, or write them in another unit"
            )


def told_apart(values_N: NDArray[np.float64]) -> tuple[str, str]:
    """Return two numbers that single precision makes one, for errors."""
    found = np.unique(values_N[np.isfinite(values_N)])
    same = np.flatnonzero(np.diff(found.astype(np.float32)) == 0)
    index = int(same[0]) if len(same) else 0
    return f"{found[index]:.17g}", f"{found[min(index + 1, len(found) - 1)]:.17g}"


def fit_public(names: Sequence[str], rules: Mapping[str, ColumnRule]) -> tuple[FittedColumn, ...]:
    """Return columns of which nothing depends on rows (`ColumnRule.measures`); without a rule they are numbers."""
    ruled = resolve_rules([*rules.items()], names)
    chosen = {name: ruled.get(name, NUMBERS) for name in names}
    return tuple(FittedColumn(name=name, rule=rule, categories=rule.declared) for name, rule in chosen.items())


def columns_text(columns: Sequence[FittedColumn]) -> str:
    """Return columns as JSON; empty: none."""
    return COLUMNS.dump_json(tuple(columns)).decode() if columns else ""


def columns_of(text: str) -> tuple[FittedColumn, ...]:
    """Return what `columns_text` gave."""
    return COLUMNS.validate_json(text) if text else ()


def encode(
    columns: Mapping[str, Column], fitted: Sequence[FittedColumn], where: str, *, new: bool, dtype: Any = np.float32
) -> Encoded:
    """Return rows as numbers.

    Args:
        columns: by name; those that are not fitted are left alone.
        fitted: what training saw.
        where: party and file, for errors.
        new: rows to predict: a row with a value that is missing or not allowed is rejected by itself.
        dtype: of the numbers: single precision, or double where the model is of that.

    Raises:
        BadInput: if not `new`, text where numbers must be, dates that are none, infinite values, or values that may not
            be missing; if `new`, a column of another kind altogether, such as dates for numbers.
    """
    rejected: dict[int, str] = {}
    lacking: dict[str, tuple[int, str]] = {}
    num_rows = len(next(iter(columns.values()))) if columns else 0
    for one in fitted if not new else ():
        if one.rule.type == "datetime":
            _zone(columns[one.name], where)
    features = allocate((num_rows, sum(len(one.names) for one in fitted)), dtype)
    unseen: dict[str, Counter[str]] = {}
    found = _encode_blocks(columns, fitted, where, new, features, unseen)
    _tell_unseen(unseen, [one.name for one in fitted if one.rule.declared], num_rows, where)
    for one, problems in zip(fitted, found, strict=True):
        column = columns[one.name]
        if problems and one.rule.missing != "drop" and not new:
            other = next((row for row, reason in problems.items() if reason != ABSENT), None)
            if other is not None:
                raise BadInput(f"{where}: column {one.name}: {problems[other]} ({column.row(other)})")
            lacking[one.name] = (len(problems), column.row(min(problems)))
        for row, reason in problems.items():
            rejected.setdefault(row, f"{one.name}: {reason}")
    if lacking:
        rule = next(one.rule for one in fitted if one.name in lacking)
        raise BadInput(f"{where}: {without_values(lacking, category=rule.type if rule.is_category else None)}")
    return Encoded(features, rejected)


def _encode_blocks(
    columns: Mapping[str, Column],
    fitted: Sequence[FittedColumn],
    where: str,
    new: bool,
    features_ND: NDArray[Any],
    unseen: dict[str, Counter[str]],
) -> list[dict[int, str]]:
    """Write the numbers of all columns block by block; return of each the rows that cannot be used, and why.

    Categories that nobody knows are counted in `unseen`.
    """
    ends = np.cumsum([0, *(len(one.names) for one in fitted)]).tolist()
    parts = [slice(*pair) for pair in itertools.pairwise(ends)]
    found: list[dict[int, str]] = [{} for _ in fitted]
    for rows in blocks_of(len(features_ND), features_ND.nbytes / max(len(features_ND), 1)):
        for number, (one, part) in enumerate(zip(fitted, parts, strict=True)):
            column, made = columns[one.name], features_ND[rows, part]
            try:
                problems = _encode_one(column.block(rows), one, where, new, made, unseen)
            except BadInput:
                # the error says of how many rows it is: of all
                _encode_one(column, one, where, new, np.zeros((len(column), made.shape[1]), made.dtype), {})
                raise
            found[number] |= {row + rows.start: reason for row, reason in problems.items()} if rows.start else problems
    return found


def _tell_unseen(unseen: Mapping[str, Counter[str]], declared: Sequence[str], num_rows: int, where: str) -> None:
    """Tell a party, in the log of its own process and nowhere else, of categories that are none of the known ones."""
    for name, counts in unseen.items():
        _log.warning(
            "%s: column %s: %d of %d rows hold categories that %s, such as %r; they count as none of the known ones "
            '(unknown = "refuse" under columns leaves such rows out)',
            where,
            name,
            counts.total(),
            num_rows,
            "are not listed" if name in declared else "training did not see",
            counts.most_common(1)[0][0][:_MOST_SHOWN],
        )


_UNLIKE, _FEW_ROWS = 5.0, 20
"""Deviations by which the mean of rows to predict is told to be off, and rows below which nothing is said of it."""


def tell_unlike(names: Sequence[str], trained: NDArray[Any], rows: NDArray[Any], what: str) -> None:
    """Tell a party, in the log of its own process alone, of columns to predict from that are far from training's.

    Args:
        names: of the D columns.
        trained: means and deviations of training's rows (2, D).
        rows: to predict (N, D); what is not finite does not count.
        what: whose and what they are.
    """
    if len(rows) < _FEW_ROWS:
        return
    mean, deviation = trained
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without a number
        found = np.nanmean(np.where(np.isfinite(rows), rows, np.nan), axis=0, dtype=np.float64)
        least = np.finfo(np.float32).eps * np.maximum(np.abs(mean), np.abs(found))
        off = np.abs(found - mean) / np.maximum(deviation, np.maximum(least, np.finfo(np.float32).tiny))
    unlike = np.flatnonzero(off > _UNLIKE)
    if len(unlike):
        worst = int(unlike[np.argmax(off[unlike])])
        _log.warning(
            "%s: the mean of %d of %d columns is more than %g deviations from training's, such as %s (%.3g): are they "
            "in another unit, or another party's?",
            what,
            len(unlike),
            len(names),
            _UNLIKE,
            names[worst],
            off[worst],
        )


def without_values(
    counts: Mapping[str, tuple[int, str]], told: str = "missing", *, category: Kind | None = None
) -> str:
    """Return what to say of columns whose values may not be missing, and what the user can do about the first.

    Args:
        counts: values that are missing, by column, and where the first is (empty: nobody knows); at least one column.
        told: what they are.
        category: the first column's type, if its values are names: it may be listed under categorical.
    """
    found = ", ".join(
        f"column {name}: {count} values are {told}{f' (first in {row})' if row else ''}"
        for name, (count, row) in [*counts.items()][:_MOST_NAMED]
    )
    more = f" and {len(counts) - _MOST_NAMED} columns more" if len(counts) > _MOST_NAMED else ""
    name = next(iter(counts))
    key = _key(name)
    if category is not None:
        rule, others = f'type = "{category}", missing = "indicator"', 'or "drop", and not under categorical too'
    else:
        rule, others = 'missing = "indicator"', '"median" or "drop"'
    for_all = f', or for all columns of a file at once "*" = {{ {rule} }}' if more else ""
    return f"{found}{more}; say under columns what to do, such as {key} = {{ {rule} }}, {others}{for_all}"


def _key(name: str) -> str:
    """Return a column's name as a key of TOML."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _refuse_texts(columns: Sequence[Column], where: str) -> None:
    """Name all columns of text among those that must be numbers; a single one is named where it is read."""
    found = [f"{column.name} ({text[:_MOST_SHOWN]!r})" for column in columns if (text := column.first_text())]
    if len(found) > 1:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        advice = next(filter(None, (how_it_is_read(column.first_text(), column.csv) for column in columns)), "")
        raise BadInput(
            f"{where}: columns hold text: {', '.join(found[:_MOST_NAMED])}{more}; give numbers, or name the columns "
            "under categorical or columns; texts that mean a missing value are listed in csv = { null = [...] }"
            + advice
        )


def _encode_one(
    column: Column, one: FittedColumn, where: str, new: bool, made: NDArray[Any], unseen: dict[str, Counter[str]]
) -> dict[int, str]:
    """Write the numbers of a column (N, its width), which are zeros; return the rows that cannot be used, and why."""
    rule = one.rule
    if rule.is_category:
        return _encode_categories(column, one, where, made, unseen) | _other_zones(column, one, new)
    problems = dict[int, str]()
    if rule.type == "datetime":
        moments_N, wrong = column.moments(rule.format, where)
        if wrong and not new:
            row, text = next(iter(wrong.items()))
            told = f"{text[:80]!r} in {column.row(row)} {NO_DATE}"
            raise BadInput(f"{where}: column {one.name}: {told} {how_dates_are_read(text, rule.format, column.csv)}")
        problems |= {row: f"{text[:80]!r} {NO_DATE}" for row, text in wrong.items()}
        problems |= _other_zones(column, one, new)
        if rule.missing == "constant":
            moments_N[np.isnat(moments_N)] = np.datetime64(parse_date(str(rule.fill), rule.format), "us")
        missing_N, values_ND = np.isnat(moments_N), encode_dates(moments_N, rule.parts, len(one.names))
        numbers = one.names.index(f"{one.name} (days)") if "days" in rule.parts else None
    else:
        values_N, wrong = column.readable_numbers(where, new=True) if new else (column.numbers(where), {})
        problems |= {row: f"{text[:80]!r} {NO_NUMBER}" for row, text in wrong.items()}
        missing_N, numbers = np.isnan(values_N), 0
        if rule.missing == "constant":
            values_N = np.where(missing_N, float(rule.fill), values_N)  # type: ignore[arg-type]
        values_ND = values_N[:, None]
    with np.errstate(over="ignore"):  # what overflows is infinite, and infinite values are refused
        made[:, : values_ND.shape[1]] = values_ND
        if numbers is not None and rule.range is not None:
            made[:, numbers] = _in_range(values_ND[:, numbers], rule.range)
        elif numbers is not None and one.origin:
            made[:, numbers] = values_ND[:, numbers] - one.origin
    if rule.missing == "indicator":
        made[:, -1] = missing_N
    infinite = np.flatnonzero(np.isinf(made).any(axis=1))
    if len(infinite) and not new:
        _refuse_infinite(column, values_ND[infinite[0], 0], infinite, where)
    problems |= dict.fromkeys(map(int, infinite), INFINITE)
    # numbers that are missing where none may be are told together, when all rows are checked
    if rule.missing == "drop" or (rule.missing == "refuse" and (new or rule.type == "datetime")):
        problems = dict.fromkeys(map(int, np.flatnonzero(missing_N)), ABSENT) | problems
    return problems


def _other_zones(column: Column, one: FittedColumn, new: bool) -> dict[int, str]:
    """Return the rows to predict whose moments name a time zone where those of training named none, or none."""
    if not new or not one.zone:
        return {}
    is_named = one.zone == "none"
    how = "names a time zone, and those of training none" if is_named else "names no time zone, as in training"
    other = column.zones()[0 if is_named else 1].to_numpy(zero_copy_only=False)
    return {int(row): f"{column.values[int(row)]!s:.80} {how}" for row in np.flatnonzero(other)}


def _refuse_infinite(column: Column, value: float, rows: NDArray[Any], where: str) -> None:
    told = "infinite" if math.isinf(value) else "infinite in single precision"
    raise BadInput(
        f"{where}: column {column.name}: {len(rows)} values are {told}, such as {value:g} (first in "
        f"{column.row(rows[0])}); say under columns what to clip them to, such as {_key(column.name)} = "
        '{ scaling = "range", range = [0, 1000] }; texts that mean a missing value are listed in '
        "csv = { null = [...] }"
    )


def _encode_categories(
    column: Column, one: FittedColumn, where: str, made: NDArray[Any], unseen: dict[str, Counter[str]]
) -> dict[int, str]:
    rule, index_of = one.rule, {text: index for index, text in enumerate(one.categories)}
    texts, codes_N = _categories(column, rule, where, one.categories)
    bucket = len(index_of) if one.bucket and rule.unknown == "bucket" else -1
    # the last index is that of values that are missing
    indices = np.asarray([*(index_of.get(text, bucket) for text in texts), -1], np.int64)[codes_N]
    rows = np.flatnonzero(indices >= 0)
    made[rows, indices[rows]] = 1
    problems = dict.fromkeys(map(int, np.flatnonzero(codes_N < 0)), ABSENT)
    if rule.unknown == "refuse":
        why = NO_CATEGORY if rule.declared else NEVER_SEEN
        refused = np.asarray([*(text not in index_of for text in texts), False])[codes_N]
        problems |= {int(row): f"{texts[codes_N[row]][:80]!r} {why}" for row in np.flatnonzero(refused)}
    elif not one.bucket and (others := [text for text in texts if text not in index_of]):
        counts = np.bincount(codes_N[codes_N >= 0], minlength=len(texts))
        by_text = dict(zip(texts, counts.tolist(), strict=True))
        unseen.setdefault(one.name, Counter()).update({text: by_text[text] for text in others})
    return problems


def _in_range(values: Any, limits: tuple[float, float]) -> Any:
    """Return numbers clipped to a public range and brought to 0..1."""
    low, high = limits
    return (np.clip(np.asarray(values, np.float64), low, high) - low) / (high - low)


def _categories(
    column: Column, rule: ColumnRule, where: str, known: Sequence[str]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the different texts as they are compared, and the number of each row's (N); -1: missing.

    A whole number is one category however it is written, 7 or 7.0, where all are whole numbers, and so are a truth and
    a moment.
    """
    texts, codes_N = column.coded(where)
    decimal = column.csv.decimal
    if known:
        plain = [text for text in known if text != MISSING]
        alike = whole_texts(plain) or truth_texts(plain) or moment_texts(plain)
        named = {one: text for text, one in alike.items()}
        ways = [whole_texts([text], decimal) or truth_texts([text]) or moment_texts([text]) for text in texts if named]
        read = {text: one for way in ways for text, one in way.items()}
        texts = [text if text in alike else named.get(read.get(text, ""), text) for text in texts]
    else:
        plain_texts = (whole_texts(texts, decimal) if column.is_text else {}) or moment_texts(texts)
        texts = [plain_texts.get(text, text) for text in texts]
    placeholder = {"indicator": MISSING, "constant": None if rule.fill is None else rule.plain(value_text(rule.fill))}
    fill = placeholder.get(rule.missing)
    number: dict[str, int] = {}
    numbers = [number.setdefault(rule.plain(text), len(number)) for text in texts]
    codes_N = np.asarray([*numbers, -1], np.int64)[codes_N]
    if fill is not None and (codes_N < 0).any():
        codes_N[codes_N < 0] = number.setdefault(fill, len(number))
    return list(number), codes_N


def _refuse_measurements(name: str, texts: Sequence[str], party: str) -> None:
    """Refuse measurements where categories are said to be; whole numbers may well be codes."""
    found = 0.0
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            return  # some are text, so they are categories
        if math.isfinite(number) and number % 1 and not found:
            found = number
    if found:
        raise BadInput(f"{party}: categorical: {name!r} holds numbers such as {found:g}, no categories")


# --- what the model sees ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Preprocessing:
    """All that turns a party's rows into what its model sees, as it was fitted in training."""

    columns: tuple[FittedColumn, ...]
    feature_names: tuple[str, ...]
    """Of the D numbers."""
    fill: NDArray[Any]
    """What stands for a missing number (D)."""
    mean: NDArray[Any]
    """What is taken off (D)."""
    deviation: NDArray[Any]
    """What it is divided by (D)."""
    csv: CsvFormat | None = None
    """How the file trained on was written, where the description said so: that of new rows unless it says otherwise."""
    id_column: Id = None
    """The column of the ids; None: there was none."""
    id_rules: tuple[IdRule, ...] = ()
    """What does not count in ids."""
    alignment: Alignment | None = None
    """How rows found those of other parties, as new rows must; None: nobody has said."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers: single precision, or double where the model is of that."""
        return self.mean.dtype

    def finish(self, features_ND: NDArray[Any]) -> NDArray[Any]:
        """Return encoded rows as the model sees them (N, D)."""
        made: NDArray[Any] = np.where(np.isnan(features_ND), self.fill, features_ND).astype(self.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # a row may hold any number; what noise must hide is clipped
            made -= self.mean
            made /= self.deviation
        return made

    def finished(self, features_ND: NDArray[Any], rows_n: NDArray[Any]) -> NDArray[Any]:
        """Return some encoded rows as the model sees them (n, D), block by block."""
        made = allocate((len(rows_n), features_ND.shape[1]), self.dtype)
        for rows in blocks_of(len(made), features_ND.shape[1] * 8):
            made[rows] = self.finish(features_ND[rows_n[rows]])
        return made

    @classmethod
    def unmeasured(cls, columns: Sequence[FittedColumn], csv: CsvFormat | None = None) -> Preprocessing:
        """Return what columns of which nothing was measured become: their numbers as they are."""
        names = tuple(name for one in columns for name in one.names)
        zeros = np.zeros(len(names), np.float32)
        return cls(columns=tuple(columns), feature_names=names, fill=zeros, mean=zeros, deviation=zeros + 1, csv=csv)

    @functools.cached_property
    def text(self) -> str:
        """The same as JSON, for snapshots: a table of many columns is one value there, and written out once."""
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        arrays = {name: getattr(self, name) for name in ("fill", "mean", "deviation")}
        return {
            "columns": COLUMNS.dump_python(self.columns, mode="json"),
            "feature_names": list(self.feature_names),
            **({} if self.csv is None else {"csv": _CSV.dump_python(self.csv, mode="json")}),
            **({} if self.id_column is None else {"id": _ID.dump_python(self.id_column, mode="json")}),
            **({"id_rules": list(self.id_rules)} if self.id_rules else {}),
            **({} if self.alignment is None else {"alignment": self.alignment}),
            **({"double": True} if self.dtype == np.float64 else {}),
            **{name: [float(number) for number in array] for name, array in arrays.items()},
        }

    @classmethod
    def of(cls, given: str | Mapping[str, Any], where: str) -> Preprocessing:
        """Return what `text` or `as_dict` gave.

        Args:
            given: the value; it may come from someone else.
            where: whose, for errors.

        Raises:
            BadInput: it is something else.
        """
        try:
            given = json.loads(given) if isinstance(given, str) else given
            columns = COLUMNS.validate_python(given["columns"])
            names = tuple(str(name) for name in given["feature_names"])
            csv = _CSV.validate_python(given.get("csv"))
            id_column = _ID.validate_python(given.get("id"))
            id_rules = _ID_RULES.validate_python(given.get("id_rules", ()))
            alignment = _ALIGNMENT.validate_python(given.get("alignment"))
            dtype = np.float64 if given.get("double") else np.float32
            arrays = {name: np.asarray(given[name], dtype) for name in ("fill", "mean", "deviation")}
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else first_line(error)
            raise BadInput(f"{where}: its preprocessing is damaged: {reason}") from None
        if names != tuple(name for one in columns for name in one.names) or any(
            array.shape != (len(names),) or not np.isfinite(array).all() for array in arrays.values()
        ):
            raise BadInput(f"{where}: its preprocessing is damaged: columns and numbers do not fit together")
        facts: dict[str, Any] = {"csv": csv, "id_column": id_column, "id_rules": id_rules, "alignment": alignment}
        return cls(columns=columns, feature_names=names, **(facts | arrays))

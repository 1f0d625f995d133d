"""Values of a party's columns, which keep their Arrow type until they are numbers, dates or texts.

    Column.numbers    double precision                what is no number is named, in training as in prediction
    Column.moments    microseconds since 1970         ISO 8601, a format, several in their order, seconds since 1970
    Column.coded      different texts and their rows  categories and classes
    Column.names      exact texts                     ids: no value is another's, whatever the type of its column

Fields of CSV files come as text, so that no library guesses: 0x1F and 3_000 are no numbers. Dates become days since
1970, and month, weekday and hour as points on a circle.

Tables and arrays that are large beside the memory that there is lie in files without a name that are mapped, and are
worked on in blocks of rows: the system keeps of them in memory what there is room for. No value depends on the blocks.
This is one file because a column is read the same way wherever its values lie.

Shapes: N rows.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import datetime
import decimal
import functools
import itertools
import json
import math
import mmap
import os
import re
import resource
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from fedactors.config import config
from fedactors.errors import BadInput

_MOST_SHOWN = 40
OF_VALUES = ("null", "decimal", "thousands")
"""What of a CSV file's format texts of any file may have."""
Character = Annotated[str, Field(min_length=1, max_length=1)]


@config
class CsvFormat:
    """How a party's CSV file is written, ``[parties.NAME.csv]``."""

    separator: Character | None = None
    """Between fields: one character of ASCII; a comma unless given, a tab in a ``.tsv``."""
    decimal: Character = "."
    """Between the digits of a number."""
    thousands: Character | None = None
    """Between groups of three digits of a number; nothing unless given."""
    null: tuple[str, ...] | None = None
    """Texts that mean that a value is missing, the empty one always; unless given, also ``NA``, ``null``, ``nan`` and
    the like. With ``null = []``, ``NA`` is a value."""
    encoding: str = "utf8"
    """Of its characters."""
    names: tuple[str, ...] = ()
    """Of the columns, where no line of the file names them."""
    skip: Annotated[int, Field(ge=0)] = 0
    """Lines on top that are no part of the table."""
    comment: Character | None = None
    """What a line begins with that is no part of the table."""
    trim: bool = False
    """Whether blanks round a field, such as after a comma, do not count."""

    def __post_init__(self) -> None:
        if self.separator is not None and not self.separator.isascii():
            raise ValueError(
                f"separator: {self.separator!r} is not allowed: it is no character of ASCII; write the file with a "
                "comma, a tab or ; between fields"
            )
        if self.separator == self.decimal:
            raise ValueError(f"decimal: {self.decimal!r} is not allowed: it is the separator too")
        if self.thousands is not None and (self.thousands == self.decimal or self.thousands in "0123456789+-eE"):
            raise ValueError(f"thousands: {self.thousands!r} is not allowed: it stands in a number for something else")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"names: {list(self.names)} is not allowed: one is there twice")
        try:
            known = codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            known = None
        if known is None or not getattr(known, "_is_text_encoding", True):
            raise ValueError(f"encoding: {self.encoding!r} is not allowed: one of Python's, such as utf-8 or latin-1")

    @property
    def nulls(self) -> list[str]:
        """The texts that mean that a value is missing."""
        return list(_NULLS) if self.null is None else ["", *self.null]


_NULLS = ("", "#N/A", "#N/A N/A", "#NA", "(null)", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "-nan(ind)", "1.#IND",
          "1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "NaT", "[NULL]", "\\N", "n/a", "nan", "null")  # fmt: skip


# --- dates ------------------------------------------------------------------------------------------------------------

DatePart = Literal["days", "month", "weekday", "hour"]
WAVES = {"sine": np.sin, "cosine": np.cos}
"""The two numbers of each part that comes round again."""
_DAYS = ("%d.%m.%Y", "%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d %b %Y")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
_PATTERNS = (
    *(f"{day}{time}" for time in _TIMES for day in _DAYS),
    *("%Y-%m-%d %H:%M:%S UTC", "%Y-%m-%d %H:%M:%S.%f UTC", "%Y-%m", "%m/%Y", "%Y"),
)
"""Common ways to write a date that are not ISO 8601."""
_PERIODS: dict[str, int] = {"month": 12, "weekday": 7, "hour": 24}
COUNTED = {
    **{name: (1, 1_000**power, 0) for power, name in enumerate(("unix", "unix-ms", "unix-us", "unix-ns"))},
    "excel": (86_400, 1, -25_569 * 86_400),
}
"""Formats of dates that are numbers: so many seconds are so many of them, from so many seconds after 1970 on."""
_USUAL = CsvFormat()
_EPOCH = datetime.datetime(1970, 1, 1)
_FIRST_SECOND, _LAST_SECOND = {"excel": -2_203_891_200}, 253_402_300_800
"""From which on, since 1970, and to which there are dates: of workbooks since March 1900, before which their days are
counted in two ways, else of the years 1 to 9999."""
_ISO = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8}|[0-9]{4}-?W[0-9]{2}(-?[0-9])?)([Tt ]|$)")
"""What a date of ISO 8601 begins with."""
_HALF_OF_DAY = r"(?:\s*[AaPp][Mm])?\s*"
_OF_A_DAY = r"(?:[0-9][Tt][0-9:.,]+| [0-9]{1,2}:[0-9:.,]+| [0-9]{6}(?:[.,][0-9]+)?)"
_WITH_OFFSET = rf"{_OF_A_DAY}{_HALF_OF_DAY}[+-][0-9]{{2}}(?::?[0-9]{{2}}(?::?[0-9]{{2}}(?:\.[0-9]+)?)?)?\s*$"
_OFFSET_OF_UTC = r"[+-]00(?::?00(?::?00(?:\.0+)?)?)?\s*$"
_NO_ZONE_NEEDED = r"[0-9]\s*(?i:z|utc|gmt)\s*$|^[^0-9]*$|^\s*-?[0-9]{9,}(?:\.[0-9]+)?\s*$"
"""Moments that tell how far they are from UTC, those of UTC, and what names UTC, is no date, or counts since 1970."""
_ZONE_OF_LETTERS = re.compile(r"[0-9]\s*([A-Za-z]{2,5})\s*$")
NO_DAY = re.compile(r"0000-00-00([ T]00:00(:00(\.0+)?)?)?")
"""What MySQL writes for a date that is missing."""
_NAMES_OF_UTC = ("UTC", "ETC/UTC", "Z", "+00:00", "GMT")
Formats = str | tuple[str, ...]
"""One way to write dates, or several in the order in which they are tried; an empty one, or ``iso``: ISO 8601."""


def formats_of(pattern: Formats) -> tuple[str, ...]:
    """Return the ways to write dates, each by its name."""
    return tuple(one or "iso" for one in ((pattern,) if isinstance(pattern, str) else pattern))


def parse_date(text: str, pattern: Formats) -> datetime.datetime:
    """Return the time that a text means by the first of these ways that reads it, in UTC where it names a zone.

    Raises:
        ValueError: none.
    """
    text = text.strip()
    for one in formats_of(pattern):
        if one == "iso" and not _ISO.match(text):
            continue  # Python also reads 1712011500123, some milliseconds, as a day of 1712
        with contextlib.suppress(ValueError, OverflowError):  # a time zone's at the end of the calendar
            if one in COUNTED:
                seconds, is_date = _seconds_since_1970(float(text), one)
                if not is_date:
                    raise ValueError(f"{text!r} is no date")
                return _EPOCH + datetime.timedelta(seconds=float(seconds))
            if "%Z" in one and not _names_utc(text):
                raise ValueError(f"{text!r} names a zone of this machine, which another one does not know")
            if not all(re.search(digits, text) for digits in _runs_of(one)):
                raise ValueError(f"{text!r} has a digit too few, and nobody knows of what")
            found = datetime.datetime.fromisoformat(text) if one == "iso" else datetime.datetime.strptime(text, one)
            return found if found.tzinfo is None else found.astimezone(datetime.UTC).replace(tzinfo=None)
    raise ValueError(f"{text!r} is no date")


_WIDTHS = {**dict.fromkeys("dmyHMSIUW", "2"), "j": "3", "Y": "4", "G": "4", "f": "1,6"}


@functools.cache
def _runs_of(pattern: str) -> list[str]:
    """Return patterns of the digits that numbers without anything between them have: of 1112024 strptime makes one."""
    runs = re.findall(rf"(?:%[{''.join(_WIDTHS)}]){{2,}}", pattern.replace("%%", "%"))
    found = ["".join(f"[0-9]{{{_WIDTHS[sign]}}}" for sign in run[1::2]) for run in runs]
    return [f"(?<![0-9]){digits}(?![0-9])" for digits in found]


def _names_utc(text: str) -> bool:
    """Say whether the zone that a text names by letters is that of UTC; what EST is depends on who reads it."""
    return bool({"utc", "gmt"} & set(re.findall("[a-z]+", text.lower())))


def _seconds_since_1970(numbers: Any, pattern: str) -> tuple[Any, Any]:
    """Return seconds since 1970, and whether they are a date."""
    seconds, counts, begins = COUNTED[pattern]
    found = numbers / counts * seconds + begins
    return found, (found >= _FIRST_SECOND.get(pattern, -62_135_596_800)) & (found < _LAST_SECOND)


def how_dates_are_read(text: str, pattern: Formats, csv: CsvFormat | None = None) -> str:
    """Return what to say of a text that is no date by a pattern (empty: ISO 8601), with a pattern by which it is."""
    given = formats_of(pattern)
    told = "(ISO 8601)" if given == ("iso",) else f"by format = {_formats_text(given)}"
    if text.startswith(_BEYOND):
        return f"{told}: infinite, or beyond the years of any calendar; write NULL, or leave such rows out"
    if NO_DAY.fullmatch(text.strip()):
        listed = listed_as_missing(text, CsvFormat() if csv is None else csv)
        return f"{told}: it means that a value is missing: {listed}; in a view write NULLIF(x, '{text}')"
    if (unit := _unit_since_1970(text)) and unit not in given:
        both = f"; where both occur: format = {_formats_text((*given, unit))}" if given != ("iso",) else ""
        return f'{told}, but {_UNITS[unit]} since 1970 are read by format = "{unit}"{both}'
    if re.fullmatch(r"[2-6][0-9]{4}(\.[0-9]+)?", text.strip()) and "excel" not in given:
        return f'{told}, but days as a workbook counts them are read by format = "excel"'
    ways = [one for (one,) in formats_of_dates([text])]
    if len(ways) > 1:
        named = " or ".join(f'format = "{one}"' for one in ways)
        return f"{told}, but by {named}, which are different days: other rows may tell which is meant"
    if ways:
        return f'{told}, but by format = "{ways[0]}"; where both occur: format = {_formats_text((*given, ways[0]))}'
    if (zone := _ZONE_OF_LETTERS.search(text)) and zone[1].lower() not in ("am", "pm", "utc", "gmt"):
        return f"{told}: which zone {zone[1]} is depends on who reads it; write the offset, such as +01:00"
    if re.fullmatch(r"2[3-5][0-9]{5}(\.[0-9]+)?", text):
        return f"{told}: a Julian day, such as SQLite counts; in a view write datetime(...) of it"
    return f"{told}; give its format, as Python's strptime has it"


def _unit_since_1970(text: str) -> str:
    """Return the format of a text that is likely a number of seconds, or of parts of them, since 1970; else nothing."""
    if re.fullmatch(r"[0-9]{9,10}\.[0-9]+", text.strip()):
        return "unix"
    found = re.fullmatch(r"[0-9]{9,10}|[0-9]{12,13}|[0-9]{15,16}|[0-9]{18,19}", text.strip())
    return "" if found is None else list(_UNITS)[(len(found[0]) - 9) // 3]


_UNITS = {"unix": "seconds", "unix-ms": "milliseconds", "unix-us": "microseconds", "unix-ns": "nanoseconds"}


def _formats_text(given: Sequence[str]) -> str:
    return json.dumps(given[0] if len(given) == 1 else list(given))


def formats_of_dates(texts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the ways to read dates: each format that reads all of them, else all that are needed in their order.

    Empty: some are no dates. Several: nobody can tell which is meant.
    """
    first = _unit_since_1970(texts[0]) or "iso"
    whole = [one for one in (first, *_PATTERNS) if all(_reads(text, one) for text in texts)]
    if whole:
        read = {one: [parse_date(text, one) for text in texts] for one in whole}
        return [(one,) for number, one in enumerate(whole) if all(read[one] != read[other] for other in whole[:number])]
    known, by_iso = ["iso"], [text for text in texts if _reads(text, "iso")]
    known += [one for one in _PATTERNS if any(_reads(text, one) and text not in by_iso for text in texts)]
    known = known if by_iso else known[1:]
    starts = ("%d/%m", "%m/%d")  # of which one is meant throughout
    clear = [one for one in known if not one.startswith(starts)]
    ways = [clear, *([*clear, *(one for one in known if one.startswith(start))] for start in starts)]
    found = [tuple(way) for way in ways if all(any(_reads(text, one) for one in way) for text in texts)]
    return found[:1] if found and found[0] == tuple(clear) else found


_PARTS_OF_DATES = {"days": "YyGcx", "weekday": "YyGcx", "month": "mbBjUWVcx"}
"""What a format has that gives these parts of a date; of one without them strptime makes 1900, and January."""


def parts_without(pattern: str, parts: Sequence[DatePart]) -> list[DatePart]:
    """Return the parts that texts of a format do not tell."""
    if pattern in COUNTED or pattern in ("", "iso"):
        return []
    given = {sign[-1] for sign in re.findall(r"%-?[A-Za-z%]", pattern)}
    return [part for part in parts if not given & set(_PARTS_OF_DATES.get(part, given))]


def half_read(pattern: str) -> str:
    """Return which directive of a format Python's ``strptime`` reads and ignores; empty: none."""
    given = {sign[-1] for sign in re.findall(r"%-?[A-Za-z%]", pattern)}
    if "p" in given and "I" not in given:
        return "%p counts beside %I only; give %I for the hour"
    if "I" in given and "p" not in given:
        return "%I leaves open which half of the day it is; give %H, or %p beside it"
    if given & set("aAwu") and not given & set("djUWVcx"):
        return "a day of the week counts beside a week only; write dates with their day, such as %Y-%m-%d"
    if given & set("UW") and not given & set("aAwu"):
        return "a week counts beside a day of the week (%w, %a) only; write dates with their day"
    return ""


def _reads(text: str, pattern: str) -> bool:
    try:
        parse_date(text, pattern)
    except ValueError:
        return False
    return True


def rule_of_date(text: str) -> str:
    """Return the rule of a column (as ``{ type = "datetime" }``) by which a text is a date; empty if it is none."""
    first, *others = [one for (one,) in formats_of_dates([text])] or [""]
    given = f', format = "{first}"' if first != "iso" else ""
    either = "".join(f' or format = "{one}"' for one in others)
    return f'{{ type = "datetime"{given} }}{either}' if first else ""


def encode_dates(moments: NDArray[Any], parts: Sequence[DatePart], width: int) -> NDArray[np.float64]:
    """Return the numbers of N moments: one column for days, two for each part that comes round again.

    Args:
        moments: datetime64, (N,); NaT becomes NaN.
        parts: which, in this order.
        width: of the result, (N, width); columns beyond those of the parts are zeros.
    """
    days = moments.astype("datetime64[D]")
    numbers = {
        "days": moments.astype("datetime64[us]").astype(np.int64) / 86_400e6,
        "month": days.astype("datetime64[M]").astype(np.int64) % 12,
        "weekday": (days.astype(np.int64) + 3) % 7,  # 1970 began on a Thursday
        "hour": (moments - days).astype("timedelta64[m]").astype(np.int64) / 60,
    }
    made = np.zeros((len(moments), width))
    position = 0
    for part in parts:
        if part == "days":
            made[:, position] = numbers[part]
            position += 1
            continue
        for wave in WAVES.values():
            made[:, position] = wave(2 * np.pi * numbers[part] / _PERIODS[part])
            position += 1
    made[np.isnat(moments), :position] = np.nan
    return made


# --- values -----------------------------------------------------------------------------------------------------------

_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}([., '\u00a0\u202f][0-9]{3})+([.,][0-9]+)?")
_LONGEST_NULL = 4
_NUMBER_FORMS: tuple[dict[str, Any], ...] = (
    {"decimal": ","},
    *({"thousands": between} for between in ",' \u00a0\u202f"),
    *({"decimal": ",", "thousands": between} for between in ".' \u00a0\u202f"),
)
"""Ways to write numbers, other than with a point alone."""
_WHOLE = re.compile(r"[+-]?[0-9]+\.0+")
_WHOLE_TEXT = re.compile(r"(?:0|-?[1-9][0-9]*)(?:\.0+)?")
_EXACT = {16: 2.0**11, 32: 2.0**24, 64: 2.0**53}
"""Below which a float of so many bits holds whole numbers one by one."""
_LEAST_FULL, _LEAST_DOUBLE = 2.0**-1022, 2.0**-1074
"""Below the first double precision has fewer digits than elsewhere, and below the second nothing but 0."""
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMERAL = rf"^(?:{_NUMBER}|[+-]?(?i:inf|infinity|nan))$"
"""What a number is, in training and in prediction: digits with a point, an exponent, a sign."""
_FLOATS = r"^[+-]?[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-][0-9]+)$"
"""Whole numbers as programs write floats: 7.0, 7e+00; 12E4 may be a code."""
_WRITTEN = (
    r"^(?:-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-][0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)"
    r"|-?(?i:inf|infinity|nan))$"
)
"""Numbers as programs write them."""
_ROUNDED = r"^\s*[0-9](?:\.[0-9]+)?E\+(?:1[1-9]|[2-9][0-9]|[0-9]{3})\s*$"
"""Numbers of twelve digits or more as a workbook shows them."""
_PLAIN_WHOLE = r"^(?:0|-?[1-9][0-9]*)$"
_MIDNIGHT = r"^\s*([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]00:00(?::00(?:\.0+)?)?\s*$"
_ZEROS = r"(?:(\.[0-9]*[1-9])0+|\.0+)$"
"""Of seconds, which a type with a finer unit writes."""
_WORDS = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}
"""Columns of these only are numbers too."""


_BEYOND = "<value out of range"
"""What Arrow writes for dates that are infinite in a database."""


_OBJECT = "object:"
"""What the place of an object begins with."""


class Inexact(ValueError):
    """Values of which no exact text is known; says what they are, such as ``lists such as [1, 2]``."""


def plain_values(values: Any) -> Any:
    """Return values as one Arrow array of a plain type: categories decoded, texts in one type, UUIDs as texts."""
    if isinstance(values, pa.ChunkedArray):
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    if not isinstance(values, (pa.Array, pa.ChunkedArray)):
        values = _from_numpy(np.asarray(values))
    kind, types = values.type, pa.types
    if isinstance(values, pa.ExtensionArray):
        if kind.extension_name.startswith("pandas."):  # whose storage is numbers of months, or the like
            raise Inexact(f"values of pandas' type {kind.extension_name.removeprefix('pandas.')}")
        if kind.extension_name == "arrow.opaque":
            raise Inexact(f"values of a type that Arrow does not have ({kind.type_name})")
        if kind.extension_name == "arrow.bool8":  # true is whatever is not 0
            return pc.not_equal(values.storage, 0)
        found = values.to_pylist() if kind.extension_name == "arrow.uuid" else values.storage
        return pa.array(map(_text_or_none, found), pa.string()) if isinstance(found, list) else plain_values(found)
    if types.is_dictionary(kind):
        return plain_values(values.dictionary).take(values.indices)
    if types.is_run_end_encoded(kind):
        return plain_values(pc.run_end_decode(values))
    if types.is_decimal32(kind) or types.is_decimal64(kind):  # for which Arrow has few functions
        return values.cast(pa.decimal128(kind.precision, kind.scale))
    if types.is_large_string(kind) or types.is_string_view(kind):
        return values.cast(pa.large_string() if values.nbytes >= 2**31 else pa.string())
    if types.is_binary_view(kind):
        return values.cast(pa.large_binary())
    return values


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _from_numpy(values: NDArray[Any]) -> Any:
    if values.ndim != 1 or values.dtype.kind in "cV":
        raise Inexact(f"values of {values.ndim} dimensions and type {values.dtype}")
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise Inexact(f"byte strings such as {error.object[:_MOST_SHOWN]!r}, written in another encoding") from None
    if values.dtype.kind in "mM" and np.datetime_data(values.dtype)[0] != "generic":
        values = in_arrows_unit(values)
    if values.dtype.kind == "U":
        return texts_of_numpy(values)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):  # of several types
        texts = [None if one is None or one != one else value_text(one) for one in values.tolist()]
        return pa.array(texts, pa.string())


_ARROWS_UNITS = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}
"""Of numpy's dates those that Arrow does not have, and the next finer one that it has."""


def in_arrows_unit(values: NDArray[Any]) -> NDArray[Any]:
    """Return dates or time spans that count single units, of those that Arrow has: it takes 5 times 10 s for 5 s.

    Raises:
        Inexact: their steps are no whole number of such units.
    """
    unit, step = np.datetime_data(values.dtype)
    made = values.astype(f"{values.dtype.kind}8[{_ARROWS_UNITS.get(unit, unit) if values.dtype.kind == 'M' else unit}]")
    if step != 1 and not np.array_equal(made.astype(values.dtype), values, equal_nan=True):
        raise Inexact(f"dates in steps of {step} {unit} that single ones do not hold; give datetime64[us]")
    return made.astype(made.dtype.newbyteorder("="), copy=False)


def texts_of_numpy(values: NDArray[np.str_]) -> Any:
    """Return texts as an Arrow array, whole: Arrow itself ends those of numpy at the first character zero."""
    return pa.array(values.tolist(), pa.string(), from_pandas=True)


Purpose = Literal["name", "category", "key"]


def exact_texts(values: Any, purpose: Purpose = "name") -> Any:
    """Return the text of each value, as an Arrow array of strings: equal texts are equal values, of whatever type.

    7 and 7.0 are the same, and so are -0.0 and 0; of text nothing is changed. NaN is missing.

    Args:
        values: as `plain_values` gives them.
        purpose: floats that are not whole are no names of anything, and those from 2^53 on neither names nor keys, for
            each may stand for several values; categories are called as Python writes them.

    Raises:
        Inexact: lists, bytes that are no text, or such floats; says what they are, with two of them.
    """
    kind, types = values.type, pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return values
    if types.is_null(kind):
        return pa.nulls(len(values), pa.string())
    if types.is_boolean(kind) or types.is_integer(kind):
        return values.cast(pa.string())
    if types.is_temporal(kind) and not types.is_duration(kind) and len(_beyond(values)):
        raise Inexact(f"{_called(kind)} that are infinite, or beyond the years of any calendar: write NULL for them")
    if types.is_date(kind):
        return values.cast(pa.string())
    if types.is_floating(kind):
        return _float_texts(values.cast(pa.float64()), purpose, kind.bit_width)
    if types.is_decimal(kind):
        return _by_value(values, lambda value: _plain_number(format(value, "f")))
    if types.is_timestamp(kind):
        return pc.replace_substring_regex(_in_utc(values).cast(pa.string()), _ZEROS, r"\1")
    if types.is_time(kind):
        return pc.replace_substring_regex(values.cast(pa.string()), _ZEROS, r"\1")
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        try:
            return values.cast(pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            pass
    raise Inexact(f"{_called(kind)}{_such_as(values)}, which are no names or categories")


def _beyond(values: Any) -> NDArray[np.int64]:
    """Return the rows of dates, or times of day, that no calendar has: what databases call infinity, and 24:00."""
    if pa.types.is_interval(values.type):
        return np.zeros(0, np.int64)
    values = _in_utc(values) if pa.types.is_timestamp(values.type) else values
    ends = pc.min_max(values)
    if not any(str(ends[name].cast(pa.string())).startswith(_BEYOND) for name in ("min", "max")):
        return np.zeros(0, np.int64)
    return np.flatnonzero(_as_numpy(pc.fill_null(pc.starts_with(values.cast(pa.string()), _BEYOND), False)))


def _in_utc(values: Any) -> Any:
    unit, zone = values.type.unit, values.type.tz
    return values if zone is None else values.cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit))


def _plain_number(text: str) -> str:
    text = (text.rstrip("0").rstrip(".") if "." in text else text).removeprefix("+")
    return "0" if text in ("-0", "") else text


def _by_value(values: Any, text_of: Callable[[Any], str]) -> Any:
    """Return the text of each value, made once for each that is different."""
    coded = values.dictionary_encode()
    texts = pa.array([None if one is None else text_of(one) for one in coded.dictionary.to_pylist()], pa.string())
    return texts.take(coded.indices)


def _float_texts(values: Any, purpose: Purpose, bits: int) -> Any:
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, pa.float64()), values)
    present = values.drop_null()
    is_large = pc.greater_equal(pc.abs(present), _EXACT[bits])  # to which the next whole number is rounded
    is_odd = pc.or_(is_large, pc.not_equal(present, pc.floor(present)))
    if not pc.any(is_odd).as_py():
        return pc.cast(values, pa.int64()).cast(pa.string())
    refused = {"name": is_odd, "key": is_large}.get(purpose)
    if refused is not None and pc.any(refused).as_py():
        raise Inexact(
            f"floats{_such_as(present.filter(refused))}, each of which may stand for several values: give text, or "
            f"whole numbers below 2^{math.log2(_EXACT[bits]):g}"
        )
    return _by_value(values, value_text if purpose == "category" else _decimal_text)


def _decimal_text(value: float) -> str:
    return _plain_number(format(decimal.Decimal(repr(value)), "f"))


_CALLED = (
    (pa.types.is_list, "lists"),
    (pa.types.is_large_list, "lists"),
    (pa.types.is_fixed_size_list, "lists"),
    (pa.types.is_map, "maps"),
    (pa.types.is_struct, "structs"),
    (pa.types.is_duration, "time spans"),
    (pa.types.is_timestamp, "dates"),
    (pa.types.is_date, "dates"),
    (pa.types.is_time, "times of day"),
)
_REMEDIES = {
    "dates": 'say under columns: { type = "datetime" }',
    "times of day": 'say under columns: { type = "datetime", parts = ["hour"] }',
    "time spans": "write the seconds as numbers, or leave the column out of features",
    "byte strings": "name the column under categorical, or write numbers (of bits, in the database, CAST(x AS BIGINT))",
    "lists": "bring all to one length (labels of tokens with -100), or leave the column out of features",
}


UNCLEAR = {
    "array": "holds arrays; in a view write a column of each place, such as x[1] AS x1",
    "money": "holds amounts as the server's settings show them; in a view write x::numeric AS x",
    "interval": "holds time spans; in a view write EXTRACT(EPOCH FROM x) AS x",
    "range": "holds ranges; in a view write lower(x) AS x_from, upper(x) AS x_to",
}
"""What to say of kinds of a database whose texts are no values: others write them otherwise."""


def _called(kind: Any) -> str:
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "byte strings"
    return next((name for is_so, name in _CALLED if is_so(kind)), f"{kind} values")


def _such_as(values: Any) -> str:
    """Return two of the values that are different."""
    some = values.drop_null().slice(0, 1000)
    try:
        listed = some.to_pylist()
    except (OverflowError, ValueError):  # dates that Python does not have
        listed = some.cast(pa.string()).to_pylist()
    found = list(dict.fromkeys(map(str, listed)))[:2]
    return f" such as {' and '.join(text[:_MOST_SHOWN] for text in found)}" if found else ""


class Column:
    """One column of a file.

    Args:
        name: its name.
        values: as Arrow or numpy has them (N); a null is None, NaN or NaT.
        csv: how its numbers are written, where they are text.
        rows: numbers of the rows in the file, from 0 (N); None: all of them.
        is_large: whether its numbers are made anew each time they are asked for, because the table is too large.
        is_of_1904: whether its workbook counts days from 1904 on, as those of old Macs do.
    """

    def __init__(
        self,
        name: str,
        values: Any,
        csv: CsvFormat | None = None,
        rows: NDArray[Any] | None = None,
        *,
        is_large: bool = False,
        is_of_1904: bool = False,
    ) -> None:
        self.name = name
        self.values = plain_values(values)
        self.csv = csv or _USUAL
        self.is_large = is_large
        self._is_of_1904 = is_of_1904
        self._rows = rows
        self._numbers: tuple[NDArray[np.float64] | None, NDArray[np.int64]] | None = None
        self._is_settled = self._is_mixed = False
        """Whether its texts are neither all numbers as Arrow reads them nor all words, so that each is looked at."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_text(self) -> bool:
        """Whether its values are texts, which may be numbers or dates."""
        return bool(pa.types.is_string(self.values.type) or pa.types.is_large_string(self.values.type))

    def take(self, rows: NDArray[Any]) -> Column:
        """Return some rows of it."""
        taken = self.values.take(pa.array(rows, pa.int64()))
        numbers = rows if self._rows is None else self._rows[rows]
        return Column(self.name, taken, self.csv, numbers, is_of_1904=self._is_of_1904)

    def block(self, rows: slice) -> Column:
        """Return some rows of it that follow each other, read as all of them are."""
        if rows == slice(0, len(self)):
            return self
        if self.is_text:
            self._settle()
        numbers = np.arange(rows.start, rows.stop) if self._rows is None else self._rows[rows]
        values = self.values.slice(rows.start, rows.stop - rows.start)
        made = Column(self.name, values, self.csv, numbers, is_of_1904=self._is_of_1904)
        made._is_mixed = self._is_mixed
        return made

    def _settle(self) -> None:
        """Find out once how the texts of all rows are read."""
        if not self._is_settled:
            self._parsed()

    def row(self, position: int) -> str:
        """Return what the row of a value is called in errors: the first one below the names of columns is row 1."""
        return f"row {1 + int(position if self._rows is None else self._rows[position])}"

    def is_missing(self) -> NDArray[np.bool_]:
        """Return where no value is (N)."""
        return _as_numpy(pc.is_null(self.values, nan_is_null=pa.types.is_floating(self.values.type)))

    @property
    def num_missing(self) -> int:
        """How many values there are not."""
        if not pa.types.is_floating(self.values.type):
            return int(self.values.null_count)
        return int(self.is_missing().sum())

    def coded(self, where: str) -> tuple[list[str], NDArray[np.int64]]:
        """Return the different texts in the order in which they occur, and the number of each row's (N); -1: missing.

        Raises:
            BadInput: lists, or bytes that are no text.
        """
        if pa.types.is_boolean(self.values.type):
            texts = pc.if_else(self.values, "True", "False")
        else:
            texts = self._exact(where, "category")
        coded = texts.dictionary_encode()
        return coded.dictionary.to_pylist(), _as_numpy(pc.fill_null(coded.indices, -1)).astype(np.int64)

    def texts(self, where: str = "") -> list[str | None]:
        """Return each value as text: 7, 7.0 and "7" are the same; None where there is none.

        Raises:
            BadInput: as `coded`.
        """
        known, codes = self.coded(where)
        found: list[str | None] = [*known, None]
        return [found[code] for code in codes.tolist()]

    def _refuse_unseen(self, texts: Any, where: str) -> None:
        """Refuse names that hold what nobody sees, or what was lost: they are like others, and equal to none."""
        if not pa.types.is_string(texts.type) and not pa.types.is_large_string(texts.type):
            return
        found = _as_numpy(pc.fill_null(pc.match_substring_regex(texts, _UNSEEN), fill_value=False))
        if found.any():
            row = int(np.flatnonzero(found)[0])
            text = texts[row].as_py()
            one = next(letter for letter in text if re.match(_UNSEEN, letter))
            what = "which stands for a letter that was lost" if one == "\ufffd" else "which nobody sees"
            raise BadInput(
                f"{where}: column {self.name}: {text!a} in {self.row(row)} holds the character U+{ord(one):04X}, "
                f"{what}: such a name is like another one and not equal to it; write it without"
            )

    def names(self, where: str, *, new: bool = False) -> Any:
        """Return each value as the name of something, by which rows are found, as an Arrow array of texts.

        Texts of a CSV file that are whole numbers as floats are written, 7.0, are what they are in Parquet: 7. So they
        are where others are written 7, but not beside codes such as 007. A moment at midnight is its date, whose type
        some programs do not have. Of rows to predict (`new`) a name may hold what nobody sees: see `hold_unseen`.

        Raises:
            BadInput: floats that may stand for several values each, lists, or bytes that are no text.
        """
        texts = self._exact(where, "name")
        if not new:
            self._refuse_unseen(texts, where)
        if self.is_text or pa.types.is_timestamp(self.values.type):
            texts = pc.replace_substring_regex(texts, _MIDNIGHT, r"\1")
        if not self.is_text:
            return texts
        if _all_match(texts, rf"^\s*(?:{_MOMENT.pattern}|{_OF_DAY.pattern})\s*$"):
            return _moments_as_texts(texts)
        if rounded := self.rounded():
            raise BadInput(f"{where}: column {self.name}: holds {rounded}")
        trimmed = _with_points(pc.utf8_trim_whitespace(texts), self.csv)
        is_float = pa.array(_matches(trimmed, _FLOATS))
        if pc.all(is_float).as_py() or (
            pc.any(pc.and_(is_float, pc.is_valid(texts))).as_py()
            and _all_match(trimmed.filter(pc.invert(is_float)), _PLAIN_WHOLE)
        ):
            numbers = pc.cast(pc.if_else(is_float, trimmed, pa.scalar(None, trimmed.type)), pa.float64())
            if pc.all(pc.equal(numbers, pc.floor(numbers))).as_py() and self._are_whole(
                trimmed.filter(is_float), where
            ):
                exact = Column(self.name, numbers, self.csv, self._rows)._exact(where, "name")
                texts = pc.if_else(is_float, exact.cast(texts.type), texts)
        return texts

    def _are_whole(self, texts: Any, where: str) -> bool:
        """Say whether texts that are whole once they are floats are so before: 1e-400 is not.

        Raises:
            BadInput: one is another whole number as a float.
        """
        is_short = pc.match_substring_regex(texts, r"^[+-]?[^-]{1,16}$")  # with 15 digits at most, which a float holds
        for text in pc.unique(texts.filter(pc.invert(is_short)).drop_null()).to_pylist():
            exact = decimal.Decimal(text)
            if exact == decimal.Decimal(float(text)):
                continue
            if exact != exact.to_integral_value():
                return False
            raise BadInput(f"{where}: column {self.name}: holds {text}, which as a float is another whole number")
        return True

    def _exact(self, where: str, purpose: Purpose) -> Any:
        try:
            texts = exact_texts(self.values, purpose)
        except Inexact as error:
            raise BadInput(f"{where}: column {self.name}: holds {error}") from None
        if purpose == "name" and pc.any(is_bad := pc.match_substring(texts, "\0")).as_py():
            shown = _such_as(texts.filter(pc.fill_null(is_bad, False)).cast(pa.binary()))
            raise BadInput(f"{where}: column {self.name}: holds zero bytes{shown}, which are no part of names")
        return texts

    def first_text(self) -> str:
        """Return the first text that is no number; an empty one if there is none."""
        if not self.is_text:
            return ""
        bad = self._parsed()[1]
        return str(self.values[int(bad[0])].as_py()) if len(bad) else ""

    def numbers(self, where: str) -> NDArray[np.float64]:
        """Return numbers in double precision; NaN where there is none.

        Raises:
            BadInput: text, dates or lists; names the column and one of them.
        """
        numbers, bad = self._parsed()
        if len(bad):
            text = str(self.values[int(bad[0])].as_py())
            advice = how_it_is_read(text, self.csv) or _as_missing(text, self.csv)
            if f" {_OBJECT}" in where and "csv = " in advice:
                advice = "; in an object write None for what is missing, and numbers as numbers"
            raise BadInput(
                f"{where}: column {self.name}: holds text such as {text!r} in {self.row(bad[0])}; "
                f"give numbers, or name the column under categorical or columns{advice}"
            )
        if numbers is None:
            kind = _called(self.values.type)
            raise BadInput(
                f"{where}: column {self.name}: holds {kind}{_such_as(self.values)}, no numbers; "
                f"{_REMEDIES.get(kind, 'leave the column out of features, or write numbers')}"
            )
        return numbers

    def readable_numbers(self, where: str, *, new: bool = False) -> tuple[NDArray[np.float64], dict[int, str]]:
        """Return numbers as `numbers` does, and the texts that are none, by row; such a row has NaN.

        Args:
            where: party and file, for errors.
            new: rows to predict, for which no rule can be given any more.

        Raises:
            BadInput: dates or lists.
        """
        numbers, bad = self._parsed()
        if numbers is None and new:
            kind = f"{_called(self.values.type)}{_such_as(self.values)}"
            raise BadInput(f"{where}: column {self.name}: holds {kind}, and in training it held numbers")
        if numbers is None:
            self.numbers(where)
        assert numbers is not None
        return numbers, {int(row): str(self.values[int(row)].as_py()) for row in bad}

    def merged(self, numbers_N: NDArray[np.float64], *, all_differ: bool = True) -> tuple[str, str] | None:
        """Return two values that are one in double precision.

        Args:
            numbers_N: the values in double precision.
            all_differ: only where what makes all values different is no more than they differ by.
        """
        finite = numbers_N[np.isfinite(numbers_N)]
        if not len(finite) or pa.types.is_floating(self.values.type):
            return None
        largest = float(np.abs(finite).max())
        if _LEAST_FULL <= largest < _EXACT[64]:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            if all_differ and max(largest * 2.0**-53, _LEAST_DOUBLE) <= 1e-3 * finite.std():
                return None
        seen: dict[float, decimal.Decimal] = {}
        values = self.numerals() if self.is_text else self.values
        for value in pc.unique(values.drop_null()).to_pylist():
            try:
                exact = decimal.Decimal(value)
            except decimal.InvalidOperation:  # true and false
                continue
            if not exact.is_finite():
                continue
            first = seen.setdefault(float(exact), exact)
            if first != exact:
                return str(first), str(exact)
        return None

    def written_as(self, texts: Sequence[str], most: int) -> tuple[dict[str, Any], list[str]] | None:
        """Return how the file writes its numbers if one way reads all of these texts but a few, and these few.

        Args:
            texts: that are no numbers as the file is said to be written.
            most: different ones that may be no numbers either.
        """
        known = list(dict.fromkeys(texts))
        fits: list[tuple[dict[str, Any], list[str]]] = []
        for said in _NUMBER_FORMS:
            with contextlib.suppress(ValueError):
                _, bad = Column(self.name, known, dataclasses.replace(self.csv, **said))._parsed()
                if len(bad) <= most and len(bad) < len(known):
                    fits.append((said, [known[row] for row in bad]))
        ways = [said for said, _ in fits]
        is_clear = {"decimal": ","} not in ways or {"thousands": ","} not in ways
        return min(fits, key=lambda one: len(one[1])) if fits and is_clear else None

    def _parsed(self) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
        """Return the numbers, and the rows of texts that are none, NaN there; None: nothing of this type is one."""
        if self._numbers is not None:
            return self._numbers
        found = self._parsed_texts() if self.is_text else self._parsed_values()
        self._is_settled = True
        if not self.is_large:
            self._numbers = found
        return found

    def _parsed_values(self) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
        kind, types, none = self.values.type, pa.types, np.zeros(0, np.int64)
        if types.is_null(kind):
            return np.full(len(self), np.nan), none
        if types.is_boolean(kind):
            return _as_numpy(self.values.cast(pa.uint8()).cast(pa.float64())), none
        if types.is_decimal(kind):  # of which Arrow makes neighbours of the nearest float: -7.000000000000001
            return _as_numpy(pc.cast(pc.cast(self.values, pa.string()), pa.float64())), none
        if types.is_integer(kind) or types.is_floating(kind):
            return _as_numpy(pc.cast(self.values, pa.float64(), safe=False)), none
        return None, none

    def _parsed_texts(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        none = np.zeros(0, np.int64)
        if self.csv.decimal == "." and self.csv.thousands is None and not self._is_mixed:
            with contextlib.suppress(pa.ArrowInvalid):
                numbers = _as_numpy(pc.cast(self.values, pa.float64()))
                if np.isnan(numbers).sum() == self.values.null_count or not _holds_odd_nan(self.values):
                    return numbers, none
        texts = self.numerals()
        good = _matches(texts, _NUMERAL)
        if not good.all():
            words = pc.utf8_lower(texts)
            if not self._is_mixed and _as_numpy(pc.is_in(words.drop_null(), pa.array(_WORDS))).all():
                return np.asarray([_WORDS.get(word, np.nan) for word in words.to_pylist()]), none
            self._is_mixed = True
            texts = pc.if_else(pa.array(good), texts, pa.scalar(None, texts.type))
        return _as_numpy(pc.cast(texts, pa.float64())), np.flatnonzero(~good)

    def numerals(self) -> Any:
        """Return texts with numbers as programs write them: a point, nothing between thousands, no blanks, no plus."""
        return pc.replace_substring_regex(self.codes(), r"^\+([^+-])", r"\1")

    def codes(self) -> Any:
        """Return numerals as they stand there: 1.10 and 1.1 are two, and so are +5 and 5."""
        csv, texts = self.csv, pc.utf8_trim_whitespace(self.values)
        if csv.thousands is not None:
            between, point = re.escape(csv.thousands), re.escape(csv.decimal)
            grouped = pa.array(_matches(texts, rf"^[+-]?[1-9][0-9]{{0,2}}(?:{between}[0-9]{{3}})+(?:{point}[0-9]*)?$"))
            texts = pc.if_else(grouped, pc.replace_substring(texts, csv.thousands, ""), texts)
        return _with_points(texts, csv)

    def rounded(self) -> str:
        """Return what to say of a name that a workbook has rounded, such as 1.23457E+11; empty: there is none."""
        found = self.values.filter(pc.match_substring_regex(self.values, _ROUNDED))
        if not len(found):
            return ""
        return (
            f"{found[0].as_py()!r}, as a workbook shows and saves a long number, rounded: give its column there the "
            "format of a text or of a number without decimals, and save it again"
        )

    def code(self) -> str:
        """Return a text that no program writes for a number, so that these may be codes; empty: there is none.

        Such are 1e3, +5 and 01.5, and 1.10 unless all numbers have two digits behind the point.
        """
        texts = self.codes().drop_null()
        odd = texts.filter(pc.invert(pc.match_substring_regex(texts, _WRITTEN)))
        if not len(odd):
            behind = pc.utf8_length(pc.replace_substring_regex(texts, r"^[^.]*\.?", ""))
            padded = texts.filter(pc.match_substring_regex(texts, r"\.(?:[0-9]*[1-9]0+|00+)$"))
            odd = padded if len(behind.unique()) > 1 else padded[:0]
        return str(odd[0].as_py()) if len(odd) else ""

    def moments(self, pattern: Formats, where: str = "") -> tuple[NDArray[np.datetime64], dict[int, str]]:
        """Return times in microseconds, NaT where there is none, and the values that are no dates, by row.

        Raises:
            BadInput: values of another kind, such as lists, at `where`, or days that are counted from 1904 on.
        """
        kind, types = self.values.type, pa.types
        if types.is_timestamp(kind) or types.is_date(kind):
            values = _in_utc(self.values) if types.is_timestamp(kind) else self.values
            beyond = _beyond(values)
            found = _as_numpy(values.cast(pa.timestamp("us"), safe=False)).astype("datetime64[us]", copy=True)
            found[beyond] = np.datetime64("NaT")
            return found, {int(row): values[int(row)].cast(pa.string()).as_py() for row in beyond}
        if types.is_time(kind):
            of_day = pc.cast(self.values, pa.time64("us"), safe=False).cast(pa.int64())
            return _as_numpy(of_day.cast(pa.timestamp("us"))).astype("datetime64[us]"), {}
        given = formats_of(pattern)
        if self._is_of_1904 and "excel" in given:
            raise BadInput(
                f'{where}: column {self.name}: its workbook counts days from 1904 on, and format = "excel" from 1900: '
                "give its cells there the format of a date, and leave format out"
            )
        if len(given) == 1 and given[0] in COUNTED:
            numbers, bad = self._parsed()
            if numbers is not None:
                seconds, is_date = _seconds_since_1970(numbers, given[0])
                far = ~(is_date | np.isnan(numbers))
                micros = np.where(is_date, seconds, 0) * 1e6
                found = micros.round().astype(np.int64).astype("datetime64[us]")
                found[np.isnan(numbers) | far] = np.datetime64("NaT")
                texts = self.texts() if len(bad) or far.any() else []
                return found, {int(row): str(texts[row]) for row in {*bad.tolist(), *np.flatnonzero(far).tolist()}}
        if given == ("iso",) and self.is_text:
            with contextlib.suppress(pa.ArrowInvalid):
                found = _as_numpy(pc.cast(self.values, pa.timestamp("us"))).astype("datetime64[us]")
                if not (found < np.datetime64("0001-01-01")).any():  # Arrow has a year 0
                    return found, {}
        return self._parsed_dates(given, where)

    def zones(self) -> tuple[Any, Any]:
        """Return which rows name a time zone other than UTC, and which name none, dates too, as Arrow arrays (N)."""
        kind, types, no = self.values.type, pa.types, pa.scalar(False)
        if self.is_text:
            coded = self.values.dictionary_encode()  # rows may be many, and their days few
            told, is_utc, needs_none = (
                pc.match_substring_regex(coded.dictionary, pattern)
                for pattern in (_WITH_OFFSET, _OFFSET_OF_UTC, _NO_ZONE_NEEDED)
            )
            ways = [pc.and_not(told, is_utc), pc.invert(pc.or_(told, needs_none))]
            found = [one.take(coded.indices) for one in ways]
        elif types.is_timestamp(kind):
            is_utc = kind.tz is not None and kind.tz.upper() in _NAMES_OF_UTC
            found = [
                pc.and_(pc.is_valid(self.values), pa.scalar(said))
                for said in (bool(kind.tz) and not is_utc, not kind.tz)
            ]
        else:
            found = [pc.and_(pc.is_valid(self.values), pa.scalar(said)) for said in (False, types.is_date(kind))]
        return pc.fill_null(found[0], no), pc.fill_null(found[1], no)

    def _parsed_dates(self, pattern: tuple[str, ...], where: str) -> tuple[NDArray[np.datetime64], dict[int, str]]:
        known, codes = self.coded(where)
        found = np.full(len(known) + 1, np.datetime64("NaT", "us"))
        bad = np.zeros(len(known) + 1, np.bool_)
        for position, text in enumerate(known):
            try:
                found[position] = np.datetime64(parse_date(text, pattern), "us")
            except ValueError:
                bad[position] = True
        return found[codes], {int(row): known[codes[row]] for row in np.flatnonzero(bad[codes])}


IdRule = Literal["nfkc", "casefold", "strip-zeros"]


def row_names(columns: Sequence[Column], rules: Sequence[IdRule], where: str) -> list[str]:
    """Return what each row is called by: the text of one column, or of several together; empty: it has none.

    Blanks at the ends do not count, and letters with accents are the same however they are composed (NFC).

    Args:
        columns: one, or several, whose texts stand side by side with a stroke between them.
        rules: what else does not count: characters that only look otherwise (``nfkc``), letters' case (``casefold``),
            zeros in front (``strip-zeros``).
        where: party and file, for errors.

    Raises:
        BadInput: as `Column.names`.
    """
    return _names_in([column.names(where) for column in columns], rules)


_UNSEEN = "[\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\ufffd]"
"""Characters without a width that no language needs in a name, and the one that stands for what could not be read."""


def hold_unseen(names_N: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Say of each name whether it holds what nobody sees, or what was lost: it is like another, and equal to none."""
    return _as_numpy(pc.match_substring_regex(pa.array(names_N, pa.string()), _UNSEEN))


def row_name_array(
    columns: Sequence[Column], rules: Sequence[IdRule], where: str, *, new: bool = False
) -> NDArray[np.str_]:
    """Return what `row_names` does as an array (N); no more than some of its texts are Python's at a time."""
    texts = [column.names(where, new=new) for column in columns]
    blocks = (slice(first, first + _NAMED_ROWS) for first in range(0, max(len(texts[0]), 1), _NAMED_ROWS))
    return np.concatenate([np.asarray(_names_in([one[rows] for one in texts], rules), np.str_) for rows in blocks])


_NAMED_ROWS = 1 << 16
"""Whose names are Python's texts at once."""


def _names_in(columns: Sequence[Any], rules: Sequence[IdRule]) -> list[str]:
    parts = [compared_names(texts, rules) for texts in columns]
    if len(parts) == 1:
        return parts[0]
    return [
        "/".join(part.replace("\\", "\\\\").replace("/", "\\/") for part in one) if all(one) else ""
        for one in zip(*parts, strict=True)
    ]


def compared_names(texts: Any, rules: Sequence[IdRule]) -> list[str]:
    """Return texts without what does not count in names: see `row_names`; empty: there is none."""
    texts = pc.fill_null(pc.utf8_trim_whitespace(texts), "")
    if not rules and pc.all(pc.string_is_ascii(texts)).as_py():
        return list(texts.to_pylist())
    return [_name_of(text, rules) for text in texts.to_pylist()]


def _name_of(text: str, rules: Sequence[IdRule]) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC" if "nfkc" in rules else "NFC", text)
    if "casefold" in rules:
        text = text.casefold()
    return text.lstrip("0") or text[-1:] if "strip-zeros" in rules else text


def _as_numpy(values: Any) -> NDArray[Any]:
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _with_points(texts: Any, csv: CsvFormat) -> Any:
    """Return texts with a point where their file writes another decimal; a point of theirs is none."""
    if csv.decimal == ".":
        return texts
    return pc.replace_substring(pc.replace_substring(texts, ".", "\0"), csv.decimal, ".")


def _moments_as_texts(texts: Any) -> Any:
    """Return moments as a file with types has them: see `moment_texts`."""
    coded = texts.dictionary_encode()
    known = coded.dictionary.to_pylist()
    named = moment_texts(known)
    return pa.array([named.get(text, text) for text in known], pa.string()).take(coded.indices)


def _holds_odd_nan(texts: Any) -> bool:
    """Say whether a text is NaN to Arrow and no number here, such as ``nan(1)``."""
    return bool(pc.any(pc.match_substring(texts, "(")).as_py())


def _matches(texts: Any, pattern: str) -> NDArray[np.bool_]:
    """Return which texts match, those that are missing among them (N)."""
    return _as_numpy(pc.fill_null(pc.match_substring_regex(texts, pattern), fill_value=True)).astype(np.bool_)


def _all_match(texts: Any, pattern: str) -> bool:
    return bool(len(texts) > texts.null_count and _matches(texts, pattern).all())


def value_text(value: Any) -> str:
    """Return the text of a value: 7, 7.0 and "7" are the same."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def alike(text: str) -> str:
    """Return a text without what nobody tells apart: blanks at its ends, letters' case, how accents are composed."""
    return unicodedata.normalize("NFC", text.strip().casefold())


def class_text(value: Any) -> str:
    """Return the name of a class: 7, 7.0, "7" and "7.0" are the same, and so are true and "True"; "007" is another."""
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower()
    return text.rstrip("0")[:-1] if _WHOLE.fullmatch(text) else text


def whole_texts(texts: Iterable[str], decimal: str = ".") -> dict[str, str]:
    """Return whole numbers by their texts, where all are some: 7 is also 7.0, as pandas writes it beside a missing one.

    Empty where others are among them: 1.0 beside 1.5 is a code.
    """
    found = {text: text.partition(decimal)[0] for text in texts}
    return found if all(_WHOLE_TEXT.fullmatch(text.replace(decimal, ".")) for text in found) else {}


def truth_texts(texts: Iterable[str]) -> dict[str, str]:
    """Return true and false by their texts, where all are some: as a CSV file writes them, and as Python does."""
    found = {text: text.lower() for text in texts}
    return found if set(found.values()) <= {"true", "false"} else {}


_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2})?)(\.[0-9]+)?\s*"
    r"([Zz]|UTC|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)
"""As programs write them: date, time of day, fraction of a second, zone."""


def moment_texts(texts: Iterable[str]) -> dict[str, str]:
    """Return moments by their texts, as a file with types has them: in UTC, without zeros at the end, midnight a date.

    Times of day are some too.

    Empty where other texts are among them, or moments that name a zone beside those of none.
    """
    given = list(texts)
    if given and all(_OF_DAY.fullmatch(text) for text in given):
        return {text: re.sub(_ZEROS, r"\1", text) for text in given}
    found, are_zoned = dict[str, str](), set[bool]()
    for text in given:
        parts = _MOMENT.fullmatch(text.strip())
        if parts is None:
            return {}
        day, of_day, fraction, zone = parts.groups()
        try:
            moment = datetime.datetime.fromisoformat(f"{day}T{of_day or '00:00'}{_offset(zone)}")
            if of_day is not None:
                are_zoned.add(moment.tzinfo is not None)
            moment = moment if moment.tzinfo is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)
        except (ValueError, OverflowError):
            return {}
        behind = (fraction or "").rstrip("0").rstrip(".")
        at = moment.isoformat(" ") + behind
        found[text] = at.removesuffix(" 00:00:00")
    return found if len(are_zoned) < 2 else {}


_OF_DAY = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?")


def times_of_day(texts: Any) -> Any:
    """Return texts, if all of them are times of day without the zeros that a type with a finer unit writes."""
    if not _all_match(texts, rf"^{_OF_DAY.pattern}$"):
        return texts
    return pc.replace_substring_regex(texts, _ZEROS, r"\1")


def _offset(zone: str | None) -> str:
    if zone is None:
        return ""
    return "+00:00" if zone in ("Z", "z", "UTC") else zone


def how_it_is_read(text: str, csv: CsvFormat) -> str:
    """Return how a text that stands where numbers do could be read as a number or a date; empty if nobody knows."""
    text = text.strip()
    grouped = _THOUSANDS.fullmatch(text)
    if csv.decimal == "." and _DECIMAL_COMMA.fullmatch(text) and not (grouped and "," in grouped[1]):
        return '; decimal commas need csv = { decimal = "," }'
    if grouped and csv.thousands != grouped[1][0]:
        between = grouped[1][0]
        decimal = ', decimal = ","' if between == "." or (grouped[2] or "")[:1] == "," else ""
        if csv.decimal == "." and between == "," and _DECIMAL_COMMA.fullmatch(text):
            return f'; csv = {{ thousands = "," }} reads {text.replace(",", "")}, csv = {{ decimal = "," }} another'
        return f"; what stands between thousands is told by csv = {{ thousands = {json.dumps(between)}{decimal} }}"
    rule = rule_of_date(text)
    return f"; {text!r} could be a date: {rule} under columns" if rule else ""


_TRUTHS = {"t", "f", "y", "n", "yes", "no", "on", "off", "ja", "nein", "wahr", "falsch", "oui", "non", "vrai", "faux"}


def listed_as_missing(text: str, csv: CsvFormat) -> str:
    """Return how a description says that a text means that a value is missing."""
    listed = f"csv = {{ null = {json.dumps([*(csv.null or ()), text], ensure_ascii=False)} }}"
    return listed if csv.null is not None else f"{listed}, with NA and the like in that list where the file has them"


def _as_missing(text: str, csv: CsvFormat) -> str:
    listed = listed_as_missing(text, csv)
    if text.lower() in _TRUTHS:
        return "; if it means that something is so or not, its two texts are categories"
    if text.startswith("#") and text.endswith(("!", "?")):
        return f"; what a workbook shows where it cannot compute is missing by {listed}"
    if any(map(str.isdigit, text)):
        return "; a number is digits with a point, a sign and an exponent: leave out what else stands there"
    if 0 < len(text) <= _LONGEST_NULL and text.lower() != "true":
        return f"; if it means a missing value: {listed}"
    return ""


# --- larger than memory -----------------------------------------------------------------------------------------------

LARGE = 1 / 128
"""Share of the process's memory from which on a table or an array lies in a mapped file and is worked on in blocks."""
_BLOCK_BYTES = 1 << 20
_LEAST_ROWS, _MOST_ROWS = 1 << 8, 1 << 16


def is_large(num_bytes: float) -> bool:
    """Say whether a table or an array of so many bytes lies in a file."""
    return num_bytes > LARGE * min(memory_of_machine(), *map(_limit, (resource.RLIMIT_DATA, resource.RLIMIT_AS)))


def _limit(kind: int) -> float:
    found = resource.getrlimit(kind)[0]
    return math.inf if found == resource.RLIM_INFINITY else found


@functools.cache
def memory_of_machine() -> float:
    """Return the bytes of memory of this machine, or of the container."""
    found = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            found.append(float(file.read()))
    return min(found)


def _block_rows(size: float) -> int:
    """Return how many rows of a large table are worked on at once."""
    return int(min(max(_BLOCK_BYTES // max(size, 1), _LEAST_ROWS), _MOST_ROWS))


def blocks_of(num_rows: int, size: float) -> Iterator[slice]:
    """Yield the rows of a table in blocks, each row of so many bytes: all at once where it is not large."""
    step = _block_rows(size) if is_large(num_rows * size) else max(num_rows, 1)
    for first in range(0, num_rows, step):
        yield slice(first, min(first + step, num_rows))


def allocate(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros: in memory, or where it is large in a file without a name that is mapped.

    Raises:
        BadInput: there is no room for the file.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if not is_large(size):
        return np.zeros(shape, dtype)
    with scratch_file() as file, _room(size):
        os.posix_fallocate(file.fileno(), 0, size)  # a page for which there is no room later would end the process
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype).reshape(shape)


def read_only(values: NDArray[Any]) -> NDArray[Any]:
    """Return an array that nobody can write to any more, so that messages need no copy of a mapped one."""
    base: Any = None if values.base is None else values.base.base
    if not isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap):  # numpy 2 puts a view between
        return values
    return np.frombuffer(memoryview(base).toreadonly(), values.dtype).reshape(values.shape)


def scratch_file() -> Any:
    """Return an open file that has no name, and is gone when it is closed and no longer mapped."""
    return tempfile.TemporaryFile(prefix="fedactors-", buffering=0)


@contextlib.contextmanager
def _room(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(
            f"memory: a table of {size / 2**20:.0f} MiB needs as much room in the folder {tempfile.gettempdir()}: "
            f"{error.strerror or error}; make room there, or name another folder by the environment variable TMPDIR"
        ) from None


def taken(values_N: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """Return some rows of an array, as ``values[rows]`` does."""
    made = allocate((len(rows), *values_N.shape[1:]), values_N.dtype)
    for block in blocks_of(len(rows), made.nbytes / max(len(rows), 1)):
        made[block] = values_N[rows[block]]
    return made


def as_type(values_ND: NDArray[Any], dtype: Any) -> NDArray[Any]:
    """Return an array in another type, or itself if it has that."""
    if values_ND.dtype == dtype:
        return values_ND
    made = allocate(values_ND.shape, dtype)
    for rows in blocks_of(len(made), made.nbytes / max(len(made), 1)):
        made[rows] = values_ND[rows]
    return made


def are_finite(values_ND: NDArray[Any]) -> bool:
    """Say whether all values of an array are finite numbers."""
    rows = blocks_of(len(values_ND), values_ND.nbytes / max(len(values_ND), 1))
    return all(bool(np.isfinite(values_ND[block]).all()) for block in rows)


def mapped_table(schema: Any, num_rows: int | None, pieces: Iterable[tuple[int, Any]]) -> Any:
    """Return a `pyarrow.Table`, each of its columns in one piece, numbers and texts in mapped files.

    Args:
        schema: of the table; of columns of other types, such as lists, all values are kept in memory.
        num_rows: of the table; None: as many as come.
        pieces: the number of a column, and its next values.

    Raises:
        BadInput: there is no room for the files.
    """
    with contextlib.ExitStack() as files:
        columns = [_mapped_column(field.type, files) for field in schema]
        try:
            for number, values in pieces:
                columns[number].add(values)
        except _NoRoom as error:
            with _room(int(row_bytes(schema) * (num_rows or max(column.num_rows for column in columns)))):
                raise error.args[0] from None
        num_rows = columns[0].num_rows if num_rows is None and columns else num_rows
        if wrong := [column.num_rows for column in columns if column.num_rows != num_rows]:
            raise ValueError(f"{wrong[0]} rows where {num_rows} were announced")
        return pa.table([column.array() for column in columns], names=schema.names)


def gathered(schema: Any, batches: Iterable[Any]) -> Any:
    """Return the `pyarrow.Table` of record batches: in memory, or once they are large in mapped files."""
    kept: list[Any] = []
    size, left = 0, iter(batches)
    for batch in left:
        kept.append(batch)
        size += batch.nbytes
        if is_large(size):
            return mapped_table(schema, None, pieces_of(itertools.chain(kept, left)))
    return pa.Table.from_batches(kept, schema=schema)


def mapped_if_large(values: Any, is_large: bool) -> Any:
    """Return an Arrow array, in a mapped file where its table is large."""
    if not is_large:
        return values
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return mapped_table(pa.schema([("values", values.type)]), None, ((0, one) for one in chunks)).column(0)


def row_bytes(schema: Any) -> float:
    """Return about how many bytes a row has; one of texts is not known before it is read."""
    fixed = [field.type.bit_width / 8 for field in schema if pa.types.is_primitive(field.type)]
    return float(sum(fixed) + _TEXT_BYTES * (len(schema) - len(fixed)))


_TEXT_BYTES = 16


def pieces_of(batches: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the columns of record batches, for `mapped_table`."""
    return (piece for batch in batches for piece in enumerate(batch.columns))


def _mapped_column(kind: Any, files: contextlib.ExitStack) -> _HeldColumn:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_temporal(kind):
        return _FixedColumn(kind, files)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return _TextColumn(kind, files)
    return _HeldColumn(kind)


class _NoRoom(Exception):
    """The system has no room for a file; the error is its argument."""


class _HeldColumn:
    """A column in memory."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.num_rows = kind, 0
        self._parts: list[Any] = []

    def add(self, values: Any) -> None:
        """Take the values of the next rows."""
        self._write(values, self.num_rows)
        self.num_rows += len(values)

    def _write(self, values: Any, first: int) -> None:
        self._parts.append(values)

    def array(self) -> Any:
        """Return the whole column."""
        return pa.concat_arrays(self._parts) if self._parts else pa.array([], self.kind)


class _FixedColumn(_HeldColumn):
    """A column of values of one width, in a file; which of them are missing is told in another one."""

    def __init__(self, kind: Any, files: contextlib.ExitStack) -> None:
        super().__init__(kind)
        self._width = kind.bit_width // 8
        self._files = files
        self._values = files.enter_context(scratch_file())
        self._missing: Any = None

    def _write(self, values: Any, first: int) -> None:
        self._tell_missing(values, first)
        start = values.offset * self._width
        part = values.buffers()[1][start : start + len(values) * self._width]
        _write_all(self._values, part, first * self._width)

    def _tell_missing(self, values: Any, first: int) -> None:
        if not values.null_count:
            return
        if self._missing is None:
            self._missing = self._files.enter_context(scratch_file())
        flags = values.is_null().to_numpy(zero_copy_only=False)
        _write_all(self._missing, flags.tobytes(), first)

    def _validity(self) -> Any:
        if self._missing is None:
            return None
        flags = np.frombuffer(_mapped(self._missing, self.num_rows), np.bool_)
        parts = [np.packbits(~flags[rows], bitorder="little") for rows in _eighths(self.num_rows)]
        return pa.py_buffer(np.concatenate(parts))

    def array(self) -> Any:
        """Return the whole column."""
        values = pa.py_buffer(_mapped(self._values, self.num_rows * self._width))
        return pa.Array.from_buffers(self.kind, self.num_rows, [self._validity(), values])


class _TextColumn(_FixedColumn):
    """A column of texts or bytes: where each ends in one file, all of them one after the other in another."""

    def __init__(self, kind: Any, files: contextlib.ExitStack) -> None:
        _HeldColumn.__init__(self, kind)
        self._width = 8
        self._files = files
        self._values = files.enter_context(scratch_file())
        self._texts = files.enter_context(scratch_file())
        self._missing = None
        self._size = 0

    def _write(self, values: Any, first: int) -> None:
        self._tell_missing(values, first)
        is_wide = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
        width, kind = (8, np.int64) if is_wide else (4, np.int32)
        _, ends, texts = values.buffers()
        ends = np.frombuffer(ends, kind, len(values) + 1, values.offset * width).astype(np.int64)
        _write_all(self._values, (ends[1:] - ends[0] + self._size).tobytes(), 8 * (first + 1))
        if texts is not None:
            _write_all(self._texts, texts[int(ends[0]) : int(ends[-1])], self._size)
        self._size += int(ends[-1] - ends[0])

    def array(self) -> Any:
        """Return the whole column."""
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(self.kind, self.kind)
        ends, texts = _mapped(self._values, 8 * (self.num_rows + 1)), _mapped(self._texts, self._size)
        buffers = [self._validity(), pa.py_buffer(ends), pa.py_buffer(texts)]
        return pa.Array.from_buffers(wide, self.num_rows, buffers)


def _write_all(file: Any, part: Any, offset: int) -> None:
    """Write bytes at a place of a file; the system may take some of them at a time."""
    left = memoryview(part)
    while len(left):
        try:
            written = os.pwrite(file.fileno(), left, offset)
        except OSError as error:
            raise _NoRoom(error) from None
        left, offset = left[written:], offset + written


def content_of(stream: Any) -> bytes | mmap.mmap:
    """Return all bytes of a stream: in memory, or where they are large from a file without a name that is mapped.

    Raises:
        BadInput: there is no room for the file.
    """
    first: bytes = stream.read(_PART_BYTES)
    parts, size = [first], len(first)
    while not is_large(size):
        part: bytes = stream.read(_PART_BYTES)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    return written_to_file(itertools.chain(parts, iter(lambda: stream.read(_PART_BYTES), b"")))


_PART_BYTES = 1 << 20


def written_to_file(parts: Iterable[bytes]) -> bytes | mmap.mmap:
    """Return bytes that follow each other, from a file without a name that is mapped.

    Raises:
        BadInput: there is no room for the file.
    """
    with scratch_file() as file:
        size = 0
        for part in parts:
            try:
                _write_all(file, part, size)
            except _NoRoom as error:
                with _room(size + len(part)):
                    raise error.args[0] from None
            size += len(part)
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""


def _mapped(file: Any, size: int) -> Any:
    """Return a file's bytes, zeros where nothing was written, as pages of memory that are read when they are needed."""
    if not size:
        return b""
    os.ftruncate(file.fileno(), size)
    return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))


def _eighths(num_rows: int) -> Iterator[slice]:
    """Yield rows in blocks of whole bytes of bits."""
    return (slice(first, first + _FLAGS) for first in range(0, num_rows, _FLAGS))


_FLAGS = 1 << 16

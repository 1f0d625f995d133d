"""Tables and images as parties bring them, read into columns or arrays whose values are not interpreted yet.

    read_columns    CSV, Parquet or npy --> `Column` by name: its texts, numbers or dates
    read_pictures   photos/cat/01.png (class = name of the folder; resized to the task's shape), or
                    photos.npz: images (N, C, H, W), or (N, H, W) of one channel, and labels (N)

Arrow reads CSV files; what it refuses is read again by Python until the line at fault, which is named. Dates become
days since 1970, and month, weekday and hour as points on a circle. Pixels are divided by `peak`, less the channel's
`mean`, over its `deviation`: public numbers, so that no client's data enter them. Files are opened by Python and handed
to the libraries that read them, so that an audit hook sees every one.

Shapes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import codecs
import contextlib
import csv as python_csv
import datetime
import gzip
import importlib
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedactors.config import config
from fedactors.errors import BadInput
from fedactors.validation import reading

_CHUNK = 1 << 20
_MOST_SHOWN = 40


@config
class CsvFormat:
    """How a party's CSV file is written, ``[parties.NAME.csv]``."""

    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Between fields: one character; a comma unless given, a tab in a ``.tsv``."""
    decimal: Annotated[str, Field(min_length=1, max_length=1)] = "."
    """Between the digits of a number."""
    null: tuple[str, ...] | None = None
    """Texts that mean that a value is missing, the empty one always; unless given, also ``NA``, ``null``, ``nan`` and
    the like. With ``null = []``, ``NA`` is a value."""
    encoding: str = "utf8"
    """Of its characters."""

    def __post_init__(self) -> None:
        if self.separator == self.decimal:
            raise ValueError(f"decimal: {self.decimal!r} is not allowed: it is the separator too")
        try:
            known = codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            known = None
        if known is None or not getattr(known, "_is_text_encoding", True):
            raise ValueError(f"encoding: {self.encoding!r} is not allowed: one of Python's, such as utf-8 or latin-1")


def is_csv(path: Path) -> bool:
    """Return whether a file is called as one of these."""
    return path.name.endswith((".csv", ".csv.gz", ".tsv"))


def read_csv(
    path: Path, party: str, *, wanted: Sequence[str] | None, as_text: Sequence[str], csv: CsvFormat
) -> tuple[Any, list[str]]:
    """Return the wanted columns that are there as a `pyarrow.Table`, and the names of all columns.

    Args:
        path: of the file.
        party: whose, for errors.
        wanted: names of columns; None: all.
        as_text: columns whose values stay as they are written.
        csv: how it is written.

    Raises:
        BadInput: naming the file, where it is known the line, and what to do.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    _refuse_utf16(party, path, csv)
    parse = pa_csv.ParseOptions(delimiter=_separator(path, csv), newlines_in_values=True)
    read = pa_csv.ReadOptions(encoding=csv.encoding)
    with _told(party, path, csv):
        present = _header(path, csv)
    _refuse_other_separator(party, path, present, wanted, csv)
    convert = pa_csv.ConvertOptions(
        include_columns=None if wanted is None else list(dict.fromkeys(c for c in wanted if c in present)),
        strings_can_be_null=True,
        decimal_point=csv.decimal,
        null_values=None if csv.null is None else ["", *csv.null],
        column_types={name: pa.string() for name in as_text},
    )
    with _told(party, path, csv):
        _refuse_open_quote(party, path, csv)
        with _opened(path) as file:
            table = pa_csv.read_csv(file, read_options=read, parse_options=parse, convert_options=convert)
        for field in table.schema:  # what arrow makes of text in other characters where no type is asked for
            if pa.types.is_binary(field.type):
                raise UnicodeError(field.name)
    return table, present


def _header(path: Path, csv: CsvFormat) -> list[str]:
    """Return the names of the columns: what the first line that is not empty holds."""
    with _records(path, csv, errors="strict") as records:
        first: list[str] | None = next((record for record in records if record), None)
    if first is None:
        raise BadInput("is empty; its first line must name the columns")
    return first


@contextlib.contextmanager
def _told(party: str, path: Path, csv: CsvFormat) -> Iterator[None]:
    """Turn what is said of a file into one line with the place."""
    try:
        yield
    except BadInput as error:
        said = str(error)
        raise (error if said.startswith(f"{party}: ") else BadInput(f"{party}: {path} {said}")) from None
    except ValueError as error:  # of names of columns a UnicodeError, of values an ArrowInvalid, which only says so
        if isinstance(error, UnicodeError) or "invalid UTF8" in str(error):
            raise BadInput(
                f"{party}: {path} is not written in {csv.encoding}{_undecoded(path, csv)}; give its encoding, such as "
                'csv = { encoding = "latin-1" }'
            ) from error
        if fault := _ragged(path, csv):
            raise BadInput(f"{party}: {path}: {fault}") from error
        raise
    except python_csv.Error as error:
        raise BadInput(f"{party}: {path}: its first line names no columns: {error}") from error


def _undecoded(path: Path, csv: CsvFormat) -> str:
    """Return the line that is not of the encoding, where lines can be told before they are decoded."""
    if codecs.lookup(csv.encoding).name not in ("utf-8", "ascii"):
        return ""
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode(csv.encoding)
            except UnicodeDecodeError as error:
                return f" (line {number} has the byte 0x{line[error.start]:02x})"
    return ""


def _ragged(path: Path, csv: CsvFormat) -> str:
    """Return what to say of the first record that has not as many fields as the header; empty: there is none."""
    with _records(path, csv) as records:
        width, header = 0, ""
        for record in records:
            if not record:
                continue
            if not width:
                width, header = len(record), record[0]
            elif len(record) != width:
                only = f", {header[:_MOST_SHOWN]!r}" if width == 1 else ""
                return (
                    f"line {records.line_num} has {len(record)} fields, the header {width}{only}; mend the line, or "
                    f"put text that holds {json.dumps(_separator(path, csv))} into double quotes"
                )
    return ""


def _refuse_open_quote(party: str, path: Path, csv: CsvFormat) -> None:
    """Refuse a quote that is never closed: all that follows would be one value, in silence."""
    with _texts(path, csv) as file:
        if not sum(chunk.count('"') for chunk in iter(lambda: file.read(_CHUNK), "")) % 2:
            return
    with _records(path, csv, strict=True) as records:
        begins = 1
        try:
            for _ in records:
                begins = records.line_num + 1
        except python_csv.Error as error:
            if "unexpected end" in str(error) or "field larger" in str(error):
                raise BadInput(
                    f"{party}: {path}: a double quote in line {begins} is opened and never closed; close it, or write "
                    "two for one that belongs to the text"
                ) from None


def _refuse_utf16(party: str, path: Path, csv: CsvFormat) -> None:
    """Refuse a file that begins as UTF-16 does, which spreadsheets write, where it is read as something else."""
    with reading(party, path), _opened(path) as file:
        begins = bytes(file.read(2))
    if begins in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and "16" not in csv.encoding:
        raise BadInput(
            f'{party}: {path} is not written in {csv.encoding}; give its encoding: csv = {{ encoding = "utf-16" }}'
        )


def _refuse_other_separator(
    party: str, path: Path, present: Sequence[str], wanted: Sequence[str] | None, csv: CsvFormat
) -> None:
    if csv.separator is None and len(present) == 1 and present[0] not in (wanted or ()):
        for separator in ";\t|,":
            if separator in present[0]:
                raise BadInput(
                    f"{party}: {path} has one column, {present[0][:80]!r}; give what stands between its fields: "
                    f"csv = {{ separator = {json.dumps(separator)} }}"
                )


def _separator(path: Path, csv: CsvFormat) -> str:
    return csv.separator or ("\t" if path.suffix == ".tsv" else ",")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with open(path, "rb") as file:
        if path.name.endswith(".gz"):
            with gzip.open(file) as unpacked:
                yield unpacked
        else:
            yield file


@contextlib.contextmanager
def _texts(path: Path, csv: CsvFormat, errors: str = "replace") -> Iterator[Any]:
    encoding = "utf-8-sig" if codecs.lookup(csv.encoding).name == "utf-8" else csv.encoding
    with _opened(path) as file, io.TextIOWrapper(file, encoding=encoding, errors=errors, newline="") as texts:
        yield texts


@contextlib.contextmanager
def _records(path: Path, csv: CsvFormat, *, errors: str = "replace", strict: bool = False) -> Iterator[Any]:
    with _texts(path, csv, errors) as texts:
        yield python_csv.reader(texts, delimiter=_separator(path, csv), strict=strict)


DatePart = Literal["days", "month", "weekday", "hour"]
WAVES = {"sine": np.sin, "cosine": np.cos}
"""The two numbers of each part that comes round again."""
_DAYS = ("%d.%m.%Y", "%Y-%m-%d", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d %b %Y")
_PATTERNS = tuple(f"{day}{time}" for time in ("", " %H:%M", " %H:%M:%S") for day in _DAYS)
"""Common ways to write a date that are not ISO 8601."""
_PERIODS: dict[str, int] = {"month": 12, "weekday": 7, "hour": 24}


def parse_date(text: str, pattern: str) -> datetime.datetime:
    """Return the time that a text means, in UTC where it names a zone.

    Raises:
        ValueError: none.
    """
    text = text.strip()
    found = datetime.datetime.strptime(text, pattern) if pattern else datetime.datetime.fromisoformat(text)
    return found if found.tzinfo is None else found.astimezone(datetime.UTC).replace(tzinfo=None)


def how_dates_are_read(text: str, pattern: str) -> str:
    """Return what to say of a text that is no date by a pattern (empty: ISO 8601), with a pattern by which it is."""
    for other in _PATTERNS:
        try:
            parse_date(text, other)
        except ValueError:
            continue
        return f'by format = "{pattern}", but by "{other}"' if pattern else f'(ISO 8601), but by format = "{other}"'
    return f'by format = "{pattern}"' if pattern else "(ISO 8601); give its format, as Python's strptime has it"


def rule_of_date(text: str) -> str:
    """Return the rule of a column (as ``{ type = "datetime" }``) by which a text is a date; empty if it is none."""
    for pattern in ("", *_PATTERNS):
        try:
            parse_date(text, pattern)
        except ValueError:
            continue
        given = f', format = "{pattern}"' if pattern else ""
        return f'{{ type = "datetime"{given} }}'
    return ""


def encode_dates(moments: NDArray[Any], parts: Sequence[DatePart], width: int) -> NDArray[np.float32]:
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
    made = np.zeros((len(moments), width), np.float32)
    column = 0
    for part in parts:
        if part == "days":
            made[:, column] = numbers[part]
            column += 1
            continue
        for wave in WAVES.values():
            made[:, column] = wave(2 * np.pi * numbers[part] / _PERIODS[part])
            column += 1
    made[np.isnat(moments), :column] = np.nan
    return made


ENDINGS = ".csv, .tsv, .parquet or .npy"
_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}([., '][0-9]{3})+([.,][0-9]+)?")
_LONGEST_NULL = 4
_WHOLE = re.compile(r"[+-]?[0-9]+\.0+")


class Column:
    """One column of a file.

    Args:
        name: its name.
        values: as pyarrow or numpy has them (N); a null is None, NaN or NaT.
        decimal: between the digits of its numbers that are text.
        rows: numbers of the rows in the file, from 0 (N); None: all of them.
    """

    def __init__(self, name: str, values: NDArray[Any], decimal: str = ".", rows: NDArray[Any] | None = None) -> None:
        self.name = name
        self.values = values
        self.decimal = decimal
        self._rows = rows

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[Any]) -> Column:
        """Return some rows of it."""
        return Column(self.name, self.values[rows], self.decimal, rows if self._rows is None else self._rows[rows])

    def row(self, position: int) -> str:
        """Return what the row of a value is called in errors: the first one below the names of columns is row 1."""
        return f"row {1 + int(position if self._rows is None else self._rows[position])}"

    def is_missing(self) -> NDArray[np.bool_]:
        """Return where no value is (N)."""
        return np.asarray([value is None or value != value for value in self.values.tolist()], np.bool_)

    def texts(self) -> list[str | None]:
        """Return each value as text: 7, 7.0 and "7" are the same; None where there is none."""
        if self.values.dtype.kind in "OUS":
            found = self.values.tolist()
        else:
            found = self.values.astype(object).tolist()
        return [None if value is None or value != value else value_text(value) for value in found]

    def first_text(self) -> str:
        """Return the first text that is no number; an empty one if there is none."""
        return next((v for v in self.values.tolist() if isinstance(v, str) and not _is_number(v, self.decimal)), "")

    def numbers(self, where: str, dtype: Any = np.float32) -> NDArray[Any]:
        """Return numbers of a type of numpy's floats; NaN where there is none.

        Raises:
            BadInput: text, dates or lists; names the column and one of them.
        """
        values = self.values
        try:
            if values.dtype.kind in "MmcV":
                raise ValueError("dates, complex numbers and raw bytes are not numbers here")
            if values.dtype.kind == "O":
                values = np.asarray([np.nan if value is None else value for value in values.tolist()])
            if values.ndim != 1:
                raise ValueError("lists are not numbers")
            with np.errstate(over="ignore"):  # what overflows becomes infinite, and infinite values are refused
                return values.astype(dtype)
        except (ValueError, TypeError):
            kind = "text" if values.dtype.kind in "OUS" else "values"
            position, text = self._first_other()
            advice = how_it_is_read(text, self.decimal) or _as_missing(text)
            raise BadInput(
                f"{where}: column {self.name}: holds {kind} such as {text!r} in {self.row(position)}; "
                f"give numbers, or name the column under categorical or columns{advice}"
            ) from None

    def _first_other(self) -> tuple[int, str]:
        """Return the place of the first value that is no number, and the value."""
        found = enumerate(self.values.tolist())
        return next(
            ((position, str(value)) for position, value in found if not _is_number(value, self.decimal)), (0, "")
        )

    def readable_numbers(self, where: str, dtype: Any = np.float32) -> tuple[NDArray[Any], dict[int, str]]:
        """Return numbers as `numbers` does, and the texts that are none, by row; such a row has NaN.

        Raises:
            BadInput: dates or lists.
        """
        if not self.first_text():
            return self.numbers(where, dtype), {}
        bad: dict[int, str] = {}
        found: list[Any] = []
        for row, value in enumerate(self.values.tolist()):
            if isinstance(value, str) and not _is_number(value, self.decimal):
                bad[row] = value
            found.append(None if row in bad else value)
        texts = [one.replace(self.decimal, ".") if isinstance(one, str) else one for one in found]
        return Column(self.name, np.asarray(texts, dtype=object)).numbers(where, dtype), bad

    def moments(self, parse: Callable[[str], datetime.datetime]) -> tuple[NDArray[np.datetime64], dict[int, str]]:
        """Return times in microseconds, NaT where there is none, and the values that are no dates, by row."""
        if self.values.dtype.kind == "M":
            return self.values.astype("datetime64[us]"), {}
        made = np.full(len(self.values), np.datetime64("NaT", "us"))
        bad: dict[int, str] = {}
        for row, value in enumerate(self.values.tolist()):
            if value is None or value != value:
                continue
            try:
                is_date = isinstance(value, datetime.date)
                made[row] = np.datetime64(value if is_date else parse(str(value)), "us")
            except (ValueError, OverflowError):  # what overflows is a time zone's at the end of the calendar
                bad[row] = str(value)
        return made, bad


def value_text(value: Any) -> str:
    """Return the text of a value: 7, 7.0 and "7" are the same."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def class_text(value: Any) -> str:
    """Return the name of a class: 7, 7.0, "7" and "7.0" are the same, and so are true and "True"; "007" is another."""
    text = str(value)
    if text.lower() in ("true", "false"):
        return text.lower()
    return text.rstrip("0")[:-1] if _WHOLE.fullmatch(text) else text


def read_columns(
    path: Path, party: str, *, wanted: Sequence[str] | None, as_text: Sequence[str], csv: CsvFormat | None = None
) -> dict[str, Column]:
    """Read the wanted columns of a file; those that it does not have are left out, to be named by the caller.

    Args:
        path: of the file.
        party: whose, for errors.
        wanted: names of columns; None: all.
        as_text: columns of a CSV file whose values stay as they are written: 007 does not become 7.
        csv: how a CSV file is written.

    Raises:
        BadInput: it cannot be read, has no column, or two of one name.
    """
    if not os.path.isfile(path):
        raise BadInput(f"{party}: path: {path} is not a file")
    with reading(party, path):
        table, present = _read(path, wanted, as_text, csv or CsvFormat(), party)
    if not present:
        raise BadInput(f"{party}: path: {path} has no column")
    decimal = csv.decimal if csv is not None else "."
    return {name: Column(name, values, decimal) for name, values in table.items()}


def names_of_columns(path: Path, party: str, csv: CsvFormat | None) -> list[str]:
    """Return the names of all columns of a file that was read before, for errors."""
    return _read(path, (), (), csv or CsvFormat(), party)[1]


def _read_npy(path: Path) -> dict[str, NDArray[Any]]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.names:
        if array.ndim != 1 or any(array[name].ndim != 1 for name in array.dtype.names):
            raise ValueError("a structured array needs one dimension, and one value in each field")
        return {name: array[name] for name in array.dtype.names}
    if array.ndim != 2:
        raise ValueError(f"an array of {array.ndim} dimensions; a matrix or a structured array is needed")
    return {f"c{index}": array[:, index] for index in range(array.shape[1])}


def _read(
    path: Path, wanted: Sequence[str] | None, as_text: Sequence[str], csv: CsvFormat, party: str
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the wanted columns and the names of all."""
    import pyarrow.parquet as pa_parquet

    if path.suffix == ".npy":
        arrays = _read_npy(path)
        return arrays, list(arrays)
    if path.suffix in (".parquet", ".pq"):
        with open(path, "rb") as file:
            content = pa_parquet.ParquetFile(file)
            present = content.schema_arrow.names
            chosen = present if wanted is None else [c for c in present if c in wanted]
            _refuse_doubled(chosen, party, path)
            table = content.read(columns=chosen)
    elif is_csv(path):
        table, present = read_csv(path, party, wanted=wanted, as_text=as_text, csv=csv)
        _refuse_doubled(present if wanted is None else [c for c in present if c in wanted], party, path)
    else:
        raise BadInput(f"{party}: path: {path} is not allowed: give a {ENDINGS} file")
    return {name: table[name].to_numpy() for name in table.column_names}, present


def _refuse_doubled(names: Sequence[str], party: str, path: Path) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise BadInput(
                f"{party}: {path}: columns of the same name: {name!r}, {count} times; name them differently, or list "
                "the others under features"
            )


def how_it_is_read(text: str, decimal: str) -> str:
    """Return how a text that stands where numbers do could be read as a number or a date; empty if nobody knows."""
    if decimal == "." and _DECIMAL_COMMA.fullmatch(text.strip()):
        return '; decimal commas need csv = { decimal = "," }'
    if _THOUSANDS.fullmatch(text.strip()):
        return "; nothing may stand between thousands"
    rule = rule_of_date(text)
    return f"; {text!r} could be a date: {rule} under columns" if rule else ""


def _as_missing(text: str) -> str:
    if 0 < len(text) <= _LONGEST_NULL and text.lower() != "true":
        return f"; if it means a missing value: csv = {{ null = [{json.dumps(text)}] }}"
    return ""


def _is_number(value: Any, decimal: str) -> bool:
    """Return whether it is one as the file writes them: 1.5 is none where a comma stands between digits."""
    try:
        if isinstance(value, str) and "_" in value:  # a number in Python's programs only
            return False
        float(value.translate({ord("."): ",", ord(decimal): "."}) if isinstance(value, str) else value)
    except (ValueError, TypeError):
        return False
    return True


IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""What Pillow calls images of so many channels."""
_BYTE_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
"""Pillow's modes of images that bytes hold whole."""
_WORD_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
_WIDE_MODES = {"I": "whole numbers of 32 bits", "F": "floating-point numbers"}
"""Modes whose largest value no file tells."""
_OTHER_MODES = {"CMYK": "CMYK, the colours of print", "YCbCr": "YCbCr", "LAB": "L*a*b*", "HSV": "HSV"}
_SEVERAL_OF_ONE = ("MPO",)
"""Formats whose further frames belong to the first, such as a camera's preview."""
_MOST_VALUES = 2**24
_BYTES_PEAK = 255.0
_PEAKS = {"uint8": _BYTES_PEAK, "uint16": 65535.0}
Size = Annotated[int, Field(ge=1, le=65536)]


@config
class ImageFolder:
    """What samples that are images look like, in ``[task]``."""

    shape: tuple[Size, Size, Size]
    """Channels, height and width of a sample."""
    peak: Annotated[float, Field(gt=0)] | None = None
    """What values are divided by; unless given 255 for bytes, 65535 for 16 bits, else 1."""
    mean: tuple[float, ...] = ()
    """Of each channel, taken off after that; 0 unless given."""
    deviation: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """Of each channel, divided by at last; 1 unless given."""

    def __post_init__(self) -> None:
        if math.prod(self.shape) > _MOST_VALUES:
            raise ValueError(f"shape: {list(self.shape)} is not allowed: at most {_MOST_VALUES} values a sample")
        for name in ("mean", "deviation"):
            given = getattr(self, name)
            if given and len(given) != self.shape[0]:
                raise ValueError(
                    f"{name}: {list(given)} is not allowed: give a number for each of {self.shape[0]} channels"
                )

    def scaled(self, values_N: NDArray[Any]) -> NDArray[np.float32]:
        """Return samples as the model sees them (N, C, H, W), of values in any shape that has as many."""
        peak = self.peak or _PEAKS.get(values_N.dtype.name, 1.0)
        made = values_N.reshape(-1, *self.shape).astype(np.float32) / np.float32(peak)
        if self.mean:
            made -= np.asarray(self.mean, np.float32)[:, None, None]
        if self.deviation:
            made /= np.asarray(self.deviation, np.float32)[:, None, None]
        return made


class Read(NamedTuple):
    """What a folder or a file of arrays holds."""

    ids: NDArray[Any]
    """Places in the folder, or numbers."""
    images: NDArray[np.float32]
    """As the model sees them (N, C, H, W)."""
    labels: tuple[str, ...] | NDArray[Any]
    """Texts of classes, or the numbers of a regression; none of images to predict."""
    unusable: Mapping[int, str]
    """Images to predict that cannot be, and why."""


def read_image_folder(path: Path, party: str, image_folder: ImageFolder, *, is_new: bool = False) -> Read:
    """Read a client's images.

    Args:
        path: a folder, or an ``.npz`` file.
        party: whose, for errors.
        image_folder: what they look like.
        is_new: images to predict: no label is read, and one that cannot be read is left out with the reason.

    Raises:
        BadInput: neither is there, or what it holds are no such images; names party, file and what is needed.
    """
    if path.is_dir():
        return _read_folder(path, party, image_folder, is_new)
    if not os.path.isfile(path):
        raise BadInput(f"{party}: path: {path} is neither a folder nor a file")
    if path.suffix != ".npz":
        raise BadInput(
            f"{party}: path: {path} is not allowed: give a folder for each class, an .npz file, or with label = a table"
        )
    return _read_arrays(path, party, image_folder, is_new)


def read_labels(path: Path, party: str) -> tuple[str, ...] | None:
    """Return the class of each image of a folder without opening one; None: it is no folder."""
    return tuple(file.parent.name for file in _files(path, party, by_class=True)) if path.is_dir() else None


def _files(folder: Path, party: str, *, by_class: bool) -> list[Path]:
    found = []
    for file in sorted(folder.rglob("*")):
        relative = file.relative_to(folder)
        if file.is_dir() or any(part.startswith(".") for part in relative.parts):
            continue
        if file.suffix.lower() not in IMAGE_ENDINGS:
            raise BadInput(f"{party}: {file} is no image ({', '.join(IMAGE_ENDINGS)})")
        if by_class and len(relative.parts) != 2:
            raise BadInput(f"{party}: {file} is not allowed there: images lie in a folder for each class of {folder}")
        found.append(file)
    if not found:
        raise BadInput(f"{party}: path: {folder} holds no image")
    return found


def _read_folder(folder: Path, party: str, image_folder: ImageFolder, is_new: bool) -> Read:
    files = _files(folder, party, by_class=not is_new)
    pillow = _pillow(party)
    if image_folder.shape[0] not in _MODES:
        raise BadInput(f"task.shape: {image_folder.shape[0]} channels are not allowed for images in folders: 1, 3 or 4")
    images = np.zeros((len(files), *image_folder.shape), np.float32)
    unusable: dict[int, str] = {}
    for row, file in enumerate(files):
        try:
            images[row] = image_folder.scaled(_read_image(pillow, file, party, image_folder))[0]
        except BadInput as error:
            if not is_new:
                raise
            unusable[row] = str(error).partition(f"{file} ")[2]
    if len(unusable) == len(files):
        raise BadInput(f"{party}: {folder}: none of {len(files)} images can be read, the first {unusable[0]}")
    _refuse_equal(np.delete(images, list(unusable), axis=0) if unusable else images, f"{party}: {folder}")
    labels = () if is_new else tuple(file.parent.name for file in files)
    ids = np.asarray([file.relative_to(folder).as_posix() for file in files])
    return Read(ids, images, labels, unusable)


def _refuse_equal(images: NDArray[Any], where: str) -> None:
    """Refuse images that are all the same: nothing can be learnt of them, and they were written or read wrongly."""
    if len(images) > 1 and (images == images[:1]).all():
        raise BadInput(
            f"{where}: all {len(images)} images are equal once read; look at how they were written: empty channels, or "
            "all that differs lies in transparency"
        )


def _pillow(party: str) -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise BadInput(f"{party}: path: images in folders need Pillow: pip install 'fedactors[images]'") from None


def _read_image(pillow: Any, file: Path, party: str, image_folder: ImageFolder) -> NDArray[Any]:
    """Return an image's values (C, H, W), turned as its EXIF data say: bytes, words of 16 bits, or other numbers."""
    channels, height, width = image_folder.shape
    with reading(party, file), open(file, "rb") as stream:
        try:
            image = pillow.open(stream)
        except pillow.UnidentifiedImageError:  # which shows the stream, and where it lies on the host
            raise ValueError("no image of a known kind") from None
        if fault := _image_fault(image, image_folder):
            raise BadInput(f"{party}: {file} {fault}")
        is_wide, is_word = _is_word(image) or image.mode in _WIDE_MODES, _is_word(image)
        image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
        made = image.convert("F" if is_wide else _MODES[channels])  # Pillow resizes no words of 16 bits
        if made.size != (width, height):
            made = made.resize((width, height), pillow.Resampling.BILINEAR)
        pixels = np.asarray(made).reshape(height, width, -1).transpose(2, 0, 1)
    if not np.isfinite(pixels).all():
        raise BadInput(f"{party}: {file} holds values that are NaN or infinite")
    if is_word:
        pixels = np.rint(pixels).astype(np.uint16)
    return np.broadcast_to(pixels, image_folder.shape)


def _is_word(image: Any) -> bool:
    """Say whether an image has one channel of 16 bits; earlier versions of Pillow call that of a PNG ``I``."""
    return image.mode in _WORD_MODES or (image.mode == "I" and image.format == "PNG")


def _image_fault(image: Any, image_folder: ImageFolder) -> str:
    """Return why an image would be another one if it were read, and what to do; empty: it is read as it is."""
    channels, mode = image_folder.shape[0], image.mode
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format not in _SEVERAL_OF_ONE:
        return f"has {frames} frames or pages, of which a sample is one; save each as an image of its own"
    if mode in _BYTE_MODES:
        has_alpha = mode in ("LA", "PA", "RGBA") or "transparency" in image.info
        if channels < 4 and has_alpha and image.convert("RGBA").getchannel("A").getextrema()[0] < _BYTES_PEAK:
            return (
                f"is transparent in places (mode {mode}), and task.shape asks for {channels} channels without it; save "
                "it on a background, or give shape = [4, height, width]"
            )
        return ""
    if not _is_word(image) and mode not in _WIDE_MODES:
        return f"is of mode {_OTHER_MODES.get(mode, mode)}; save it as RGB or as grey values"
    if channels > 3:
        return f"has one channel (mode {mode}), and task.shape asks for {channels}; give shape = [1, height, width]"
    if _is_word(image):
        if image_folder.peak is None or image_folder.peak > _BYTES_PEAK + 1:
            return ""
        return f"holds 16 bits, and peak = {image_folder.peak:g} is that of bytes; leave peak out, which each kind has"
    if image_folder.peak is None:
        such = "1.0" if mode == "F" else "65535"
        return (
            f"holds {_WIDE_MODES[mode]} (mode {mode}), whose largest value no file tells; give it under [task], such "
            f"as peak = {such}"
        )
    return ""


def _read_arrays(path: Path, party: str, image_folder: ImageFolder, is_new: bool) -> Read:
    with reading(party, path), np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    for name in ("images",) if is_new else ("images", "labels"):
        if name not in found:
            raise BadInput(f"{party}: {path}: no array {name!r} (it has {', '.join(sorted(found)) or 'none'})")
    images = found["images"]
    shape, needed = images.shape[1:], image_folder.shape
    if shape != needed and (needed[0] != 1 or shape != needed[1:]):
        raise BadInput(f"{party}: {path}: images of shape {list(shape)} are not allowed: task.shape is {list(needed)}")
    if images.dtype.kind not in "buif" or not len(images):
        raise BadInput(f"{party}: {path}: images: {len(images)} of type {images.dtype} are not allowed: give numbers")
    bad = np.flatnonzero(~np.isfinite(images.reshape(len(images), -1)).all(1))
    if len(bad) and not is_new:
        raise BadInput(f"{party}: {path}: images: number {bad[0]} holds values that are NaN or infinite")
    has_peak = image_folder.peak is not None or images.dtype.kind not in "ui" or images.dtype.name in _PEAKS
    if not has_peak and (images.min() < 0 or images.max() > 1):
        raise BadInput(
            f"{party}: {path}: images of type {images.dtype} are not allowed without their largest value; give it "
            "under [task], such as peak = 255"
        )
    _refuse_equal(images, f"{party}: {path}")
    ids = np.arange(len(images))
    if is_new:
        return Read(ids, image_folder.scaled(np.nan_to_num(images)), (), dict.fromkeys(bad.tolist(), "missing values"))
    labels = found["labels"]
    if labels.shape != (len(images),):
        raise BadInput(f"{party}: {path}: labels of shape {list(labels.shape)} for {len(images)} images")
    return Read(ids, image_folder.scaled(images), labels, {})


def class_texts(labels: tuple[str, ...] | NDArray[Any]) -> tuple[str, ...]:
    """Return labels as texts of classes, as `class_text` has them."""
    return tuple(class_text(value) for value in (labels if isinstance(labels, tuple) else labels.tolist()))

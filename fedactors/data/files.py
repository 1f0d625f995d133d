"""Tables as parties bring them: CSV, Parquet and npy files, read into columns whose values are not interpreted yet.

Files are opened by Python and handed to the libraries that read them, so that an audit hook sees every one.
"""

from __future__ import annotations

import codecs
import contextlib
import datetime
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedactors.config import config
from fedactors.errors import BadInput
from fedactors.validation import reading

ENDINGS = ".csv, .tsv, .parquet or .npy"
_WHOLE = re.compile(r"[+-]?[0-9]+\.0+")


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


class Column:
    """One column of a file.

    Args:
        name: its name.
        values: as pyarrow or numpy has them (N); a null is None, NaN or NaT.
        decimal: between the digits of its numbers that are text.
    """

    def __init__(self, name: str, values: NDArray[Any], decimal: str = ".") -> None:
        self.name = name
        self.values = values
        self.decimal = decimal

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: NDArray[Any]) -> Column:
        """Return some rows of it."""
        return Column(self.name, self.values[rows], self.decimal)

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
            raise BadInput(
                f"{where}: column {self.name}: holds {kind} such as {_first_text(values, self.decimal)!r}; "
                "give numbers, or name the column under categorical or columns"
            ) from None

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
    if path.suffix in (".csv", ".tsv"):
        _refuse_other_encoding(party, path, csv or CsvFormat())
    with reading(party, path):
        if path.suffix == ".npy":
            table = _read_npy(path)
        else:
            table = _read_arrow(path, wanted, as_text, csv or CsvFormat(), party)
    if not table:
        raise BadInput(f"{party}: path: {path} has no column")
    decimal = csv.decimal if csv is not None else "."
    return {name: Column(name, values, decimal) for name, values in table.items()}


def _read_npy(path: Path) -> dict[str, NDArray[Any]]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.dtype.names:
        if array.ndim != 1 or any(array[name].ndim != 1 for name in array.dtype.names):
            raise ValueError("a structured array needs one dimension, and one value in each field")
        return {name: array[name] for name in array.dtype.names}
    if array.ndim != 2:
        raise ValueError(f"an array of {array.ndim} dimensions; a matrix or a structured array is needed")
    return {f"c{index}": array[:, index] for index in range(array.shape[1])}


def _read_arrow(
    path: Path, wanted: Sequence[str] | None, as_text: Sequence[str], csv: CsvFormat, party: str
) -> dict[str, NDArray[Any]]:
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    if path.suffix in (".parquet", ".pq"):
        with open(path, "rb") as file:
            content = pa_parquet.ParquetFile(file)
            present = content.schema_arrow.names
            table = content.read(columns=None if wanted is None else [c for c in wanted if c in present])
    elif path.name.endswith((".csv", ".csv.gz", ".tsv")):
        parse = pa_csv.ParseOptions(delimiter=csv.separator or ("\t" if path.suffix == ".tsv" else ","))
        read = pa_csv.ReadOptions(encoding=csv.encoding)
        with (
            _decoded(party, path, csv),
            _opened(path) as file,
            pa_csv.open_csv(file, read_options=read, parse_options=parse) as reader,
        ):
            present = reader.schema.names
        _refuse_other_separator(party, path, present, wanted, csv)
        convert = pa_csv.ConvertOptions(
            include_columns=None if wanted is None else [c for c in wanted if c in present],
            strings_can_be_null=True,
            decimal_point=csv.decimal,
            null_values=None if csv.null is None else ["", *csv.null],
            column_types={name: pa.string() for name in as_text},
        )
        with _decoded(party, path, csv), _opened(path) as file:
            table = pa_csv.read_csv(file, read_options=read, parse_options=parse, convert_options=convert)
            for field in table.schema:  # what arrow makes of text in other characters where no type is asked for
                if pa.types.is_binary(field.type):
                    raise UnicodeError(field.name)
    else:
        raise BadInput(f"{party}: path: {path} is not allowed: give a {ENDINGS} file")
    doubled = {name for name in table.column_names if table.column_names.count(name) > 1}
    if doubled:
        raise BadInput(f"{party}: {path}: columns of the same name: {', '.join(sorted(doubled))}")
    return {name: table[name].to_numpy() for name in table.column_names}


@contextlib.contextmanager
def _decoded(party: str, path: Path, csv: CsvFormat) -> Iterator[None]:
    """Turn characters that are not of the encoding into a line that says where that is given."""
    try:
        yield
    except ValueError as error:  # of names of columns a UnicodeError, of values an ArrowInvalid, which only says so
        if not isinstance(error, UnicodeError) and "invalid UTF8" not in str(error):
            raise
        raise BadInput(
            f"{party}: {path} is not written in {csv.encoding}; give its encoding, such as "
            'csv = { encoding = "latin-1" }'
        ) from error


def _refuse_other_encoding(party: str, path: Path, csv: CsvFormat) -> None:
    """Refuse a file that begins as UTF-16 does, which spreadsheets write, where it is read as something else."""
    with reading(party, path), open(path, "rb") as file:
        begins = file.read(2)
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


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow as pa

    with open(path, "rb") as file:
        yield pa.CompressedInputStream(file, "gzip") if path.name.endswith(".gz") else file


def _first_text(values: NDArray[Any], decimal: str) -> str:
    return next((str(value) for value in values.tolist() if not _is_number(value, decimal)), "")


def _is_number(value: Any, decimal: str) -> bool:
    """Return whether it is one as the file writes them: 1.5 is none where a comma stands between digits."""
    try:
        if isinstance(value, str) and "_" in value:  # a number in Python's programs only
            return False
        float(value.translate({ord("."): ",", ord(decimal): "."}) if isinstance(value, str) else value)
    except (ValueError, TypeError):
        return False
    return True

"""Tables and images as parties bring them, read into columns or arrays whose values are not interpreted yet.

    read_columns    CSV, Parquet, Arrow or npy --> `Column` by name: its texts, numbers or dates
    read_pictures   photos/cat/01.png (class = name of the folder; resized to the task's shape), or
                    photos.npz: images (N, C, H, W), or (N, H, W) of one channel, and labels (N)
    library_table   hf:OWNER/NAME, torchvision:NAME --> a table whose pictures are structs

A file's kind is told by its content, packed or not, and not by its name; files of a folder, or those like a pattern,
are one table. Files of other file systems are found by their address. Arrow
reads every field of a CSV file as text; `Column` decides what is a number or a date, in training and in prediction
alike. What Arrow refuses is read again by Python until the line at fault, which is named. Values of Parquet keep their
Arrow type until then, so that no whole number is rounded and ids have one exact text whatever their type. Dates become
days since 1970, and month, weekday and hour as points on a circle. Pixels are divided by `peak`, less the channel's
`mean`, over its `deviation`: public numbers, so that no client's data enter them. Files are opened by Python and handed
to the libraries that read them, so that an audit hook sees every one. All kinds of files are one file because each is
told by its content, and read by the same rules.

Shapes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import csv as python_csv
import datetime
import decimal
import gzip
import importlib
import inspect
import io
import itertools
import json
import math
import mmap
import os
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from fedactors.config import config
from fedactors.data.columns import check_single
from fedactors.data.values import (
    Column,
    CsvFormat,
    Inexact,
    class_text,
    content_of,
    gathered,
    is_large,
    mapped_table,
    pieces_of,
    plain_values,
    row_bytes,
    value_text,
    written_to_file,
)
from fedactors.errors import BadInput
from fedactors.runtime.snapshots import is_object, object_at
from fedactors.validation import (
    address_of,
    choice_of,
    files_at,
    first_line,
    is_in_library,
    library_parts,
    opened,
    reading,
    suggested,
    unreplaced,
)

_MOST_SHOWN = 40
_TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".data", ".dat")
_PACKED_ENDINGS = (".gz", ".bz2", ".zst", ".zip")
_OTHER_ENDINGS = (".parquet", ".pq", ".npy", ".feather", ".arrow", ".xlsx")
_NO_TABLES = (".xls", ".ods", ".json", ".xml", ".html", ".pdf", ".pkl", ".npz", ".duckdb", ".db", ".sqlite")
ENDINGS = ".csv, .tsv, .parquet, .feather, .npy or .xlsx"


def is_csv(path: Path) -> bool:
    """Return whether a file may be one of these by its name; what it is its content tells."""
    return not path.name.lower().endswith(_OTHER_ENDINGS) and not is_object(path) and not is_in_library(path)


def ending_of(name: str) -> str:
    """Return how a file's name ends, in small letters and without the ending of what packs it."""
    bare = name.lower()
    for packed in _PACKED_ENDINGS:
        bare = bare.removesuffix(packed)
    return os.path.splitext(bare)[1]


# --- what a file holds ------------------------------------------------------------------------------------------------

_OLD_OFFICE = "a document of Office of before 2007, or one with a password"
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"PAR1", "parquet"),
    (b"ARROW1", "arrow"),
    (b"\xff\xff\xff\xff", "a stream of Arrow"),
    (b"FEA1", "a Feather file of version 1"),
    (b"\x93NUMPY", "npy"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bz2"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"PK\x03\x04", "zip"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xd0\xcf\x11\xe0", _OLD_OFFICE),
    (b"%PDF", "a PDF document"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\xfd7zXZ", "an xz archive"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
    (b"ORC", "an ORC file"),
    (b"Obj\x01", "an Avro file"),
    (b"\x80\x04\x95", "a pickle of Python"),
    (b"\x80\x05\x95", "a pickle of Python"),
    (b"<stata_dta>", "a Stata file"),
    (b"$FL2", "an SPSS file"),
    (b"$FL3", "an SPSS file"),
    (b"ASCII SPSS PORT FILE", "an SPSS file"),
    (b"\0\0\0\0\0\0\0\0\0\0\0\0\xc2\xea\x81\x60", "a SAS file"),
    (b"HEADER RECORD*******LIB", "a SAS file"),
    (b"X\n\0\0\0", "a file of R"),
    (b"RDX", "a file of R"),
    (b"\0\1\0\0Standard ", "an Access database"),
)
"""What files begin with."""
_HEAD = 64
"""Bytes that tell it."""
_REWRITTEN = {
    "a stream of Arrow": "pyarrow.ipc.open_stream(path).read_all()",
    "a Feather file of version 1": "pyarrow.feather.read_table(path)",
}
"""Of what pyarrow reads in another way than files, how it does."""
_WITH_CODES = ("an SPSS file", "a Stata file", "a SAS file", "a file of R")
"""Of which one program sees codes, 1 and 2, and another one what they stand for."""


_COLUMNAR = ("parquet", "arrow")
_PARQUET: dict[str, Any] = {"coerce_int96_timestamp_unit": "us", "pre_buffer": False}
"""Moments of Spark and Impala, which nanoseconds of 64 bits would turn into others before 1678 and after 2261; a file's
bytes are not all in memory at once."""


def _kind_of(begins: bytes) -> str:
    if begins[8:12] == b"DUCK":
        return "a DuckDB database"
    if re.match(rb"[\x69-\x73][\x01\x02]\x01\x00", begins):
        return "a Stata file"
    if re.match(rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype|html|table|\?xml)", begins):
        return "HTML or XML, as a server's page to log in is"
    if re.match(rb'(\xef\xbb\xbf)?\s*(\[\s*)?\{\s*"[^"]*"?(\s*:|$)', begins):
        return "JSON"
    return next((kind for magic, kind in _MAGIC if begins.startswith(magic)), "csv")


_CUT_ARCHIVE = (
    "it begins as a workbook or an archive (zip) does and does not end so: it was cut short; fetch or save it anew"
)
Content = bytes | mmap.mmap
"""Of a file: in memory, or where it is large mapped from a copy, which nobody else can cut short."""


def _content(path: Path) -> tuple[str, Content]:
    """Return what a file is by its content, and that, unpacked; nothing of one that Arrow reads column by column."""
    with opened(path) as file, contextlib.ExitStack() as packed:
        kind = _kind_of(file.read(_HEAD))
        if kind in _COLUMNAR:
            return kind, b""
        file.seek(0)
        stream: Any = file
        if kind == "gzip":
            stream = packed.enter_context(gzip.GzipFile(fileobj=file))
        elif kind == "bz2":
            stream = packed.enter_context(bz2.BZ2File(file))
        elif kind == "zst":
            stream = packed.enter_context(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"))
        elif kind == "zip":
            try:
                archive = packed.enter_context(zipfile.ZipFile(file))
            except zipfile.BadZipFile:
                raise ValueError(_CUT_ARCHIVE) from None
            names = [one for one in archive.namelist() if not one.endswith("/") and not one.startswith("__MACOSX")]
            if "xl/workbook.xml" in names:
                file.seek(0)
                return "xlsx", file.read()
            if "[Content_Types].xml" in names:
                return "a document of an office", b""
            if len(names) != 1:
                raise ValueError(f"the zip file holds {len(names)} files ({', '.join(names[:5])}): one is needed")
            stream = packed.enter_context(archive.open(names[0]))
        raw = content_of(stream)
        if stream is file:
            return kind, raw
    kind = _kind_of(raw[:_HEAD])
    if kind in _COLUMNAR:
        raise ValueError(f"a {kind} file that is packed; unpack it, for it is packed inside")
    return kind, raw


# --- CSV --------------------------------------------------------------------------------------------------------------


def read_csv(
    content: Content, path: Path, party: str, *, wanted: Sequence[str] | None, csv: CsvFormat
) -> tuple[dict[str, Any], list[str]]:
    """Return the wanted columns that are there, as Arrow arrays of texts, and the names of all columns.

    Args:
        content: of the file, unpacked.
        path: of the file, for errors and for what separates fields.
        party: whose, for errors.
        wanted: names of columns; None: all.
        csv: how it is written.

    Raises:
        BadInput: naming the file, where it is known the line, and what to do.
    """
    import pyarrow.csv as pa_csv

    where = f"{party}: {address_of(path) or path}"
    lines = _Lines(_in_utf8(content, csv, where), _separator(path, csv), csv, where)
    present, rows = lines.head_and_rows()
    _refuse_other_separator(where, present, wanted, csv)
    asked = None if wanted is None else set(wanted)
    positions = [position for position, name in enumerate(present) if asked is None or name in asked]
    _refuse_doubled([present[position] for position in positions], where)
    if not positions or re.fullmatch(rb"[\r\n]*", rows):
        return {present[position]: pa.array([], pa.string()) for position in positions}, present
    parse = pa_csv.ParseOptions(delimiter=lines.separator, newlines_in_values=True)
    convert = pa_csv.ConvertOptions(
        include_columns=list(map(str, positions)),
        column_types={str(position): pa.string() for position in positions},
        strings_can_be_null=not csv.trim,
        null_values=csv.nulls,
    )
    # one block, so that no row is too long for it; of a large file as many as are needed, each four times the last
    sizes = [len(rows) + 1] if not is_large(len(rows)) else [_CSV_BLOCK * 4**n for n in range(10)]

    def batches(size: int) -> Iterator[Any]:
        # without threads, whose pool may never end after a fault
        names = list(map(str, range(len(present))))
        read = pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=min(size, 2**31 - 1))
        whole = pa.BufferReader(rows)
        for batch in pa_csv.open_csv(whole, read_options=read, parse_options=parse, convert_options=convert):
            columns = [_trimmed(column, csv.nulls) for column in batch.columns] if csv.trim else batch.columns
            yield pa.record_batch(columns, names=batch.schema.names)

    schema = pa.schema([(str(position), pa.string()) for position in positions])
    for size in sizes:
        try:
            table = gathered(schema, batches(size))
            break
        except pa.ArrowInvalid as error:
            if _ROW_TOO_LONG in str(error) and size != sizes[-1] and size <= len(rows):
                continue
            if "invalid UTF8" in str(error):
                raise BadInput(f"{where} {_other_encodings(content, csv)}") from error
            raise BadInput(f"{where}: {lines.ragged() or f'cannot be read: {first_line(error)}'}") from error
    columns = {present[position]: table.column(number) for number, position in enumerate(positions)}
    _refuse_second_header(columns, where, is_named=bool(csv.names))
    return columns, present


def _refuse_second_header(columns: Mapping[str, Any], where: str, *, is_named: bool) -> None:
    """Refuse a row that says of each column what it is called, as where files were put together."""
    if len(columns) < 2:
        return
    is_header: Any = True
    for name, values in columns.items():
        is_header = pc.and_(is_header, pc.fill_null(pc.equal(values, name), fill_value=False))
        if not pc.any(is_header).as_py():
            return
    row = int(np.flatnonzero(np.asarray(is_header.to_numpy()))[0]) + 1
    if is_named and row == 1:
        raise BadInput(f"{where}: its first line names the columns; leave csv.names out, or skip the line: skip = 1")
    raise BadInput(
        f"{where}: row {row} has the names of the columns once more, as where files were put together; take it out, or "
        "give the files by a pattern, such as part-*.csv"
    )


_CSV_BLOCK = 1 << 18
_ROW_TOO_LONG = "straddling object straddles two block boundaries"


def _trimmed(column: Any, nulls: Sequence[str]) -> Any:
    texts = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(texts, pa.array(nulls, pa.string())), pa.scalar(None, pa.string()), texts)


def _in_utf8(content: Content, csv: CsvFormat, where: str) -> Content:
    """Return a file's characters in UTF-8; of one that is said to be so Arrow checks what it reads."""
    width = 32 if content[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE) else 16
    if (width == 32 or content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and str(width) not in csv.encoding:
        raise BadInput(
            f'{where} is not written in {csv.encoding}; give its encoding: csv = {{ encoding = "utf-{width}" }}'
        )
    name = codecs.lookup(csv.encoding).name
    if name in ("utf-8", "utf-8-sig"):
        return _without_marks(content, where)
    is_of_bytes = len(bytes(range(256)).decode(name, "replace")) == 256
    if is_of_bytes and _is_utf_8(content):
        raise BadInput(
            f"{where} is written in UTF-8, in which a letter such as é has two bytes, and {csv.encoding} would make "
            "two letters of it; leave its encoding out"
        )
    if name == "iso8859-1" and (found := re.search(rb"[\x80-\x9f]", content)):
        raise BadInput(
            f"{where} has the byte 0x{content[found.start()]:02x}, which is no letter of {csv.encoding}; what Windows "
            'writes is read by csv = { encoding = "cp1252" }'
        )
    try:
        if is_of_bytes:
            _refuse_unlikely(content, csv, where)
        if isinstance(content, bytes):
            return _without_marks(b"".join(_without_private([content.decode(csv.encoding)], name)), where)
        characters = codecs.iterdecode(iter(partial(pa.BufferReader(content).read, _CSV_BLOCK), b""), csv.encoding)
        return _without_marks(written_to_file(_without_private(characters, name)), where)
    except UnicodeError as error:
        raise BadInput(f"{where} {_other_encodings(content, csv)}") from error


def _without_private(texts: Iterable[str], name: str) -> Iterator[bytes]:
    """Yield texts in UTF-8.

    Raises:
        UnicodeError: one holds a character of private use.
    """
    for text in texts:
        if _private_in(text, name):
            raise UnicodeError("a character of private use")
        yield text.encode()


_UNLIKELY = re.compile(
    "(?<=[a-z])[\u00c0-\u00d6\u00d8-\u00de\u0152\u0160\u017d](?=[a-z])"
    "|(?<=[A-Za-z])[\u00a0\u00a1\u00a4\u00a6-\u00a8\u00ab\u00ac\u00af\u00b0\u00b5\u00b8\u00bb\u00bf\u00f7\u00ff\u0178\u0192\u02c6"
    "\u201a\u201c-\u201e\u2020\u2021\u2026\u2030\u2039\u203a\u2044\u20ac\u2202\u2206\u221a\u2248\u2500-\u259f\u25ca\ufb01\ufb02](?=[a-z])"
)
"""A capital or a sign inside a word, which is what letters with accents become in an encoding that is not theirs."""
_UNLIKELY_LETTERS = re.compile("[\u00c0-\u00ff]{5}|(?<=[^\\W\\d_m])[\u00b2\u00b3\u00b9](?=[^\\W\\d_])")
"""A word of accents alone, or a small 1, 2 or 3 inside one: what letters of Poland, Russia and Greece become."""
_UNLIKELY_CAPITALS = re.compile("[\u0430-\u045f][\u0410-\u042f]")
"""A capital of Cyrillic behind a small letter: in the other encoding of its bytes all are the other way round."""
_OF_BYTES = (
    (_UNLIKELY, ("cp1252", "latin-1", "mac_roman", "cp850")),
    (_UNLIKELY_LETTERS, ("cp1250", "cp1251", "koi8_r", "cp1253")),
    (_UNLIKELY_CAPITALS, ("cp1251", "koi8_r")),
)
"""What is hardly what was written, and the encodings in which it may have been."""


def _refuse_unlikely(content: Content, csv: CsvFormat, where: str) -> None:
    """Refuse texts that another encoding of one byte for each letter makes better words of: they all read any byte."""
    for unlikely, encodings in _OF_BYTES:
        numbered = enumerate(_texts(content, csv.encoding, "replace"), 1)
        suspect = next((one for one in numbered if not one[1].isascii() and unlikely.search(one[1])), None)
        if suspect is None:
            continue
        # a name such as dateÉchéance has a capital inside: what all lines would be in another encoding decides
        at_most = _num_unlikely(content, csv.encoding, unlikely)
        others = {one: _num_unlikely(content, one, unlikely) for one in encodings}
        better = sorted((one for one in others if others[one] < at_most), key=lambda one: others[one])
        if not better:
            continue
        number, text = suspect
        start = next(unlikely.finditer(text)).start()
        shown = text[max(0, start - 9) :][:20].strip()
        line = shown.encode(csv.encoding, "replace")
        readings = _readings(line, better) or [(one, line.decode(one, "replace")) for one in better]
        told = ", ".join(f'encoding = "{one}" reads {text!r}' for one, text in readings)
        raise BadInput(
            f"{where}: line {number} is {shown!r} in {csv.encoding}, which is hardly what was written; give its "
            f'encoding, csv = {{ encoding = "..." }}: {told}; where none of them is right, write the file in UTF-8'
        )


def _num_unlikely(content: Content, encoding: str, unlikely: re.Pattern[str]) -> float:
    """Return in how many places a file is hardly what was written; infinite: no text at all."""
    number = 0
    try:
        for text in _texts(content, encoding, "strict"):
            if text.isascii():
                continue
            if re.search("[\x80-\x9f]", text):
                return math.inf
            number += len(unlikely.findall(text))
    except UnicodeDecodeError:
        return math.inf
    return number


def _texts(content: Content, encoding: str, errors: str) -> Iterator[str]:
    whole: Any = io.BytesIO(content) if isinstance(content, bytes) else pa.BufferReader(content)
    return iter(io.TextIOWrapper(whole, encoding=encoding, errors=errors))


def _readings(line: bytes, encodings: Sequence[str]) -> list[tuple[str, str]]:
    """Return what encodings make of a line, where it may be a text."""
    made = []
    for encoding in encodings:
        with contextlib.suppress(UnicodeDecodeError):
            text = line.decode(encoding).replace("\t", " ")
            first = next((at for at, letter in enumerate(text) if not letter.isascii()), 0)
            text = text[0 if len(text) <= _MOST_SHOWN else max(0, first - 10) :][:_MOST_SHOWN]
            if text.isprintable() and not _UNLIKELY.search(text):
                made.append((encoding, text))
    return [one for one in made if _are_words(one[1], one[0])] or made


_NO_WORDS = re.compile(
    "[A-Za-z\u00c0-\u024f][\u0370-\u06ff\u0e00-\u0e7f]|[\u0370-\u06ff\u0e00-\u0e7f][A-Za-z\u00c0-\u024f]|[\u0430-\u045f][\u0400-\u042f]|[\u00c0-\u024f]{4}"
    "|[a-z][\u00c0-\u00d6\u00d8-\u00de](?![A-Za-z\u00c0-\u024f])|[^\\W\\d_][\u00bc-\u00be]"
    "|[\u00a2-\u00a6\u00a8\u00ac\u00af\u00b1-\u00b4\u00b6\u00b8\u00b9\u00bc-\u00be\u00d7\u00f7\u2044\u2020-\u2022\u2030\u2202-\u2265\u25ca](?=[^\\W\\d_])"
    "|[\u2500-\u25ff]|[\uff61-\uff9f]"
)
"""Letters of two scripts or capitals inside a word, signs at letters, many accents in a row, kana of half a width."""
_USUAL = {"gb18030": ("gb2312", 0xB0, 0xD7), "shift_jis": ("shift_jis", 0x88, 0x97), "big5": ("big5", 0xA4, 0xC6)}
"""First bytes of the Chinese characters that are written every day, by encoding."""
_PRIVATE = re.compile("[\ue000-\uf8ff]")
"""Characters that stand for nothing unless sender and reader agree on it."""


def _are_words(text: str, encoding: str) -> bool:
    """Say whether a text is what people write: rare characters side by side come of another encoding than its own."""
    known, first, last = _USUAL.get(encoding, ("utf-8", 0, 255))
    leads = [one.encode(known, "replace")[0] for one in re.findall("[\u3400-\u9fff]", text)]
    return not _NO_WORDS.search(text) and 2 * sum(first <= lead <= last for lead in leads) >= len(leads)


def _is_utf_8(content: Content) -> bool:
    """Say whether characters beyond ASCII are those of UTF-8, which in an encoding of one byte each make no text."""
    if not re.search(rb"[\x80-\xff]", content):
        return False
    try:
        for _ in codecs.iterdecode(_parts_from(content, 0), "utf-8"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _without_marks(content: Content, where: str) -> Content:
    """Return a file's characters without the mark that tells their encoding; one in another line is of another file."""
    mark = codecs.BOM_UTF8
    while content[:3] == mark:
        content = content[3:] if isinstance(content, bytes) else written_to_file(_parts_from(content, 3))
    if _holds(content, mark) and (found := re.search(rb"[\r\n]" + mark, content)):
        number = len(content[: found.end()].splitlines())
        raise BadInput(
            f"{where}: line {number} begins with a byte order mark (0xEF 0xBB 0xBF), as where files were put together; "
            "take it out, or give the files by a pattern, such as part-*.csv"
        )
    return content


def _parts_from(content: Content, first: int) -> Iterator[bytes]:
    return (content[start : start + _CSV_BLOCK] for start in range(first, len(content), _CSV_BLOCK))


_ENCODINGS = (
    "utf-8", "cp1252", "latin-1", "mac_roman", "cp850", "cp1250", "cp1254", "cp1251", "koi8_r", "cp1253", "cp1255",
    "cp1256", "cp874", "gb18030", "shift_jis", "euc_jp", "big5", "cp949",
)  # fmt: skip
"""What files are written in, and what Excel writes; the first in which a line can be read is not always right."""


def _other_encodings(content: Content, csv: CsvFormat) -> str:
    """Return what to say of a file that is not written as it is said to be: the line, and what it could be."""
    name = codecs.lookup(csv.encoding).name
    number, wrong, byte = 0, content[:_CSV_BLOCK], ""
    if wide := _of_two_bytes(content):
        wrong = bytes(wrong).decode(wide, "replace").partition("\n")[0].strip().encode(wide)
    elif not name.startswith(("utf-16", "utf-32")):
        for number, wrong in enumerate(content[:].splitlines(), 1):
            try:
                if found := _private_in(wrong.decode(csv.encoding), name):
                    byte = f" (line {number} has the character U+{ord(found):04X}, which stands for nothing)"
                    break
            except UnicodeDecodeError as error:
                byte = f" (line {number} has the byte 0x{wrong[error.start]:02x})"
                break
    likely = [wide] if wide else list(_ENCODINGS)
    likely = [one for one in likely if codecs.lookup(one).name != name]
    readings = _readings(wrong, likely)
    told = ", ".join(f'encoding = "{encoding}" reads {text!r}' for encoding, text in readings)
    return f'is not written in {csv.encoding}{byte}; give its encoding, csv = {{ encoding = "..." }}: ' + (
        told or "none of " + ", ".join(_ENCODINGS) + " reads that line"
    )


def _private_in(text: str, name: str) -> str:
    """Return a character of private use that an encoding makes; those of Unicode write what is there."""
    found = None if name.startswith("utf") else _PRIVATE.search(text)
    return found[0] if found else ""


def _of_two_bytes(content: Content) -> str:
    """Return the encoding of texts whose letters have two bytes, mostly a zero and one of ASCII; empty: another."""
    first, second = content[:200:2], content[1:200:2]
    return "utf-16-le" if 2 * second.count(0) > len(second) else "utf-16-be" if 2 * first.count(0) > len(first) else ""


class _Lines:
    """The lines of a CSV file: which of them are rows, and where one is at fault.

    Args:
        content: in UTF-8.
        separator: between fields.
        csv: how it is written.
        where: party and file, for errors.
    """

    def __init__(self, content: Content, separator: str, csv: CsvFormat, where: str) -> None:
        self.content, self.separator, self.csv, self.where = content, separator, csv, where
        self._blank = " \t\r\n".replace(separator, "")
        self.num_blank = 0
        """Lines of blanks that `records` has left out so far."""

    def head_and_rows(self) -> tuple[list[str], Content | memoryview]:
        """Return the names of the columns, and the lines below them that are rows.

        Raises:
            BadInput: there is no line, or one opens a quote that is never closed.
        """
        csv = self.csv
        try:
            first = next(self.records(errors="strict"), None)
        except UnicodeDecodeError:
            raise BadInput(f"{self.where} {_other_encodings(self.content, csv)}") from None
        except python_csv.Error as error:
            raise BadInput(f"{self.where}: its first line names no columns: {error}") from error
        if first is None:
            raise BadInput(f"{self.where} is empty; its first line must name the columns")
        self._refuse_open_quote()
        number, text, names = first
        if found := _SEP_LINE.fullmatch(text):
            raise BadInput(
                f"{self.where}: line {number} tells Excel what stands between fields, and is no part of the table: "
                f"csv = {{ separator = {json.dumps(found[1])}, skip = {number} }}"
            )
        if csv.names:
            names = list(csv.names)
        elif csv.trim:
            names = [name.strip() for name in names]
        if len(names) == 1:
            self._refuse_blank()
        if self._has_other_lines():
            records = self.records()
            if not csv.names:
                next(records)
            lines = (text.encode() for _, text, _ in records)
            return names, b"".join(lines) if isinstance(self.content, bytes) else written_to_file(lines)
        if csv.names:
            return names, self.content
        begins = re.match(rb"[\r\n]*", self.content).end()  # type: ignore[union-attr]
        return names, memoryview(self.content)[begins + len(text.encode()) :]

    def records(self, *, errors: str = "replace", strict: bool = False) -> Iterator[tuple[int, str, list[str]]]:
        """Yield the number of the last line of each row, its lines, and its fields."""
        csv = self.csv
        lines: list[str] = []
        number = self.num_blank = 0

        def rows() -> Iterator[str]:
            nonlocal number
            whole: Any = io.BytesIO(self.content) if isinstance(self.content, bytes) else pa.BufferReader(self.content)
            with io.TextIOWrapper(whole, encoding="utf-8", errors=errors, newline="") as file:
                for line in file:
                    number += 1
                    if number <= csv.skip or (not lines and self._is_none(line)):
                        self.num_blank += number > csv.skip and not line.strip(self._blank)
                        continue
                    lines.append(line)
                    yield line

        reader = python_csv.reader(rows(), delimiter=self.separator, strict=strict, skipinitialspace=csv.trim)
        for record in reader:
            yield number, self._written(record, "".join(lines)), record
            lines.clear()

    def _written(self, record: Sequence[str], text: str) -> str:
        """Return a row as Arrow reads it, which knows no blanks before a quote."""
        if not self.csv.trim or '"' not in text:
            return text
        made = io.StringIO()
        python_csv.writer(made, delimiter=self.separator, quoting=python_csv.QUOTE_ALL).writerow(record)
        return made.getvalue()

    def _is_none(self, line: str) -> bool:
        """Say whether a line is no row: of blanks only, or a comment."""
        return not line.strip(self._blank) or (self.csv.comment is not None and line.startswith(self.csv.comment))

    def _has_other_lines(self) -> bool:
        """Say whether there may be lines that are no rows for Python, and are some for Arrow."""
        csv, content = self.csv, self.content
        if csv.skip or csv.comment is not None or (csv.trim and _holds(content, b'"')):
            return True
        blanks = [blank for blank in (b" ", b"\t") if blank != self.separator.encode()]
        begins = (b"\n", b"\r") if _holds(content, b"\r") else (b"\n",)
        return content[:1] in blanks or any(_holds(content, begin + blank) for begin in begins for blank in blanks)

    def _refuse_blank(self) -> None:
        """Refuse a blank line between rows of one column: it may be a row whose value is missing."""
        if not re.search(rb"(^|\r\n|\r(?!\n)|\n)[ \t]*[\r\n]\s*\S", self.content):
            return
        records = self.records()
        head, widest = (0, ""), 1
        if not self.csv.names:
            number, _, record = next(records)
            head, widest = (number, record[0]), max(len(one) for _, _, one in itertools.islice(self.records(), 100))
        on_top = self.num_blank
        for number, _, _ in records:
            if self.num_blank > on_top:
                if widest > 1:
                    raise BadInput(
                        f"{self.where}: line {head[0]} has one field, {head[1][:_MOST_SHOWN]!r}, and rows below have "
                        f"{widest}; lines on top that are no part of the table are left out by "
                        f"csv = {{ skip = {number - 1} }}"
                    )
                raise BadInput(
                    f"{self.where}: a blank line stands above line {number}; in a file of one column it may be a row "
                    'whose value is missing: write "" there, or take the line out'
                )

    def _refuse_open_quote(self) -> None:
        """Refuse a quote that is never closed, and text behind one that is: what follows would be read otherwise."""
        if not _holds(self.content, b'"'):
            return
        count = sum(part.count(b'"') for part in _parts_from(self.content, 0))
        if not count % 2 and not _has_quotes_inside(self.content, self.separator):
            return
        begins = 1
        try:
            for last, _, _ in self.records(strict=True):
                begins = last + 1
        except python_csv.Error as error:
            if "expected after" in str(error):
                raise BadInput(
                    f"{self.where}: text follows a closing double quote in or below line {begins}; write two for one "
                    "that belongs to the text, also where a backslash stands before it"
                ) from None
            if "unexpected end" in str(error) or "field larger" in str(error):
                raise BadInput(
                    f"{self.where}: a double quote in line {begins} is opened and never closed; close it, or write "
                    "two for one that belongs to the text"
                ) from None

    def ragged(self) -> str:
        """Return what to say of the first row that has not as many fields as there are names; empty: there is none."""
        width, header = len(self.csv.names), ""
        for number, _, record in self.records():
            if not width:
                width, header = len(record), record[0]
            elif len(record) != width:
                only = f", {header[:_MOST_SHOWN]!r}" if width == 1 and header else ""
                head = "csv.names" if self.csv.names else "the header"
                return (
                    f"line {number} has {len(record)} fields, {head} {width}{only}; mend the line, or put text that "
                    f"holds {json.dumps(self.separator)} into double quotes; lines on top that are no rows are left "
                    'out by csv = { skip = 1 } or csv = { comment = "#" }'
                )
        return ""


def _has_quotes_inside(content: Content, separator: str) -> bool:
    """Say whether quotes side by side stand between other characters than what begins and ends a field."""
    edges = separator.encode() + b'\r\n"'
    if not isinstance(content, bytes):  # which would need as much memory again
        inside = re.escape(edges)
        return re.search(b'[^%s]"+[^%s]' % (inside, inside), content) is not None
    bytes_B = np.frombuffer(b"\n" + content + b"\n", np.uint8)
    quotes_Q = np.flatnonzero(bytes_B == ord('"'))
    before_Q, behind_Q = bytes_B[quotes_Q - 1], bytes_B[quotes_Q + 1]
    is_edge = np.isin(np.arange(256), list(edges))
    begins_inside = ~is_edge[before_Q[before_Q != ord('"')]]
    ends_inside = ~is_edge[behind_Q[behind_Q != ord('"')]]
    return bool((begins_inside & ends_inside).any())


_SEP_LINE = re.compile(r"sep=(.)\s*", re.IGNORECASE)


def _holds(content: Content, part: bytes) -> bool:
    return content.find(part) >= 0


def _refuse_other_separator(where: str, present: Sequence[str], wanted: Sequence[str] | None, csv: CsvFormat) -> None:
    if csv.separator is None and len(present) == 1 and present[0] not in (wanted or ()):
        for separator in ";\t|,":
            if separator in present[0]:
                raise BadInput(
                    f"{where} has one column, {present[0][:80]!r}; give what stands between its fields: "
                    f"csv = {{ separator = {json.dumps(separator)} }}"
                )


def _separator(path: Path, csv: CsvFormat) -> str:
    return csv.separator or ("\t" if ending_of(path.name) == ".tsv" else ",")


# --- tables ---------------------------------------------------------------------------------------------------------


def read_columns(
    path: Path,
    party: str,
    *,
    wanted: Sequence[str] | None,
    csv: CsvFormat | None = None,
    whole: Collection[str] = (),
    is_complete: bool = False,
    table: Any = None,
) -> dict[str, Column]:
    """Read the wanted columns of a file; those that it does not have are left out, to be named by the caller.

    A column of lists, all of one length, becomes a column of each place in them: ``x`` is ``x.0``, ``x.1``, ...

    Args:
        path: of the file, or of a folder, a pattern or an address of files of one table.
        party: whose, for errors.
        wanted: names of columns; None: all.
        csv: how a CSV file is written.
        whole: columns that stay as they are if they are lists.
        is_complete: whether all places of lists must be wanted.
        table: a library's data set, where it was loaded before.

    Raises:
        BadInput: it cannot be read, has no column, or two of one name.
    """
    asked = with_lists(wanted)
    if table is None:
        arrays, present = read_arrays(path, party, asked, csv or CsvFormat())
    else:
        arrays, present = _chosen(table, path, party, asked)
    if not present:
        raise BadInput(f"{party}: path: {path} has no column")
    is_of_1904 = table is None and any(map(_FROM_1904.search, _parts_of_workbooks(path, _CALENDAR)))
    where = f"{party}: {path}"
    return named_columns(
        arrays, present, where, wanted, csv=csv, whole=whole, is_complete=is_complete, is_of_1904=is_of_1904
    )


def with_lists(wanted: Sequence[str] | None) -> list[str] | None:
    """Return names of columns, and those of the columns of lists of which they may be places; None: all."""
    if wanted is None:
        return None
    return [*wanted, *(list_of(name) for name in wanted if list_of(name) != name)]


def named_columns(
    arrays: dict[str, Any],
    present: Sequence[str],
    where: str,
    wanted: Sequence[str] | None,
    *,
    csv: CsvFormat | None = None,
    whole: Collection[str] = (),
    is_complete: bool = False,
    is_of_1904: bool = False,
) -> dict[str, Column]:
    """Return the wanted columns of those that were read, each place of lists as one: see `read_columns`.

    Args:
        arrays: that were read; changed.
        present: names of all columns that are there.
        where: for errors.
        wanted: names of columns; None: all.
        csv: how texts are written.
        whole: columns that stay as they are if they are lists.
        is_complete: whether all places of lists must be wanted.
        is_of_1904: whether they are of a workbook that counts days from 1904 on.

    Raises:
        BadInput: two of one name, or values of no plain type.
    """
    asked, known = None if wanted is None else set(wanted), set(present)
    for name, values in [*arrays.items()]:
        if isinstance(getattr(values, "type", None), pa.FixedShapeTensorType):
            arrays[name] = values = _lists_of_tensors(name, values, where)
        if is_list(values) and name not in whole:
            del arrays[name]
            elements = _elements(name, values, where)
            if taken := [one for one in elements if one != name and one in known]:
                number = taken[0].removeprefix(f"{name}.")
                raise BadInput(
                    f"{where}: column {taken[0]}: is also what place {number} of the lists of column {name} is "
                    "called; name one of them differently"
                )
            others = [one for one in elements if asked is not None and one not in asked]
            if is_complete and others and len(others) < len(elements):
                raise BadInput(
                    f"{where}: column {name}: its lists have {len(elements)} places, and of training "
                    f"{len(elements) - len(others)}; list those that are meant under features, if the others do not "
                    "count"
                )
            arrays |= elements
    arrays = {name: one for name, one in arrays.items() if asked is None or name in asked or list_of(name) in asked}
    found = {}
    large = is_large(sum(values.nbytes for values in arrays.values()))
    for name, values in arrays.items():
        try:
            found[name] = Column(name, values, csv, is_large=large, is_of_1904=is_of_1904)
        except Inexact as error:
            raise BadInput(f"{where}: column {name}: holds {error}, which are not read") from None
    return found


def list_of(name: str) -> str:
    """Return the column of lists that a column may be a place of: ``x`` of ``x.3`` or ``x.3.1``; else the name."""
    return re.sub(r"(?<=.)(\.\d+)+$", "", name)


def is_list(values: Any) -> bool:
    """Say whether values of Arrow are lists."""
    kind = getattr(values, "type", None)
    return isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType)


def _lists_of_tensors(name: str, values: Any, where: str) -> Any:
    """Return tensors of one shape as lists of all their values, the last axis fastest."""
    order = values.type.permutation
    if order is not None and order != sorted(order):
        raise BadInput(
            f"{where}: column {name}: holds tensors whose axes are permuted; write them in the order of axes"
        )
    return pa.chunked_array([one.storage for one in values.chunks], values.type.storage_type)


def shape_of_lists(values: Any, where: str) -> tuple[int, ...]:
    """Return the shape of lists, or of lists of lists; none of numbers.

    Raises:
        BadInput: they are of different lengths, or empty.
    """
    if not is_list(values):
        return ()
    lengths = pc.unique(pc.drop_null(pc.list_value_length(values))).to_pylist()
    if len(lengths) != 1 or lengths == [0]:
        told = f"of {min(lengths)} to {max(lengths)} values" if len(lengths) > 1 else "without a value"
        raise BadInput(f"{where}: lists {told} are not allowed: pad them to one length, labels with -100")
    return (lengths[0], *shape_of_lists(pc.list_flatten(values), where))


def _elements(name: str, values: Any, where: str) -> dict[str, Any]:
    """Return a column of each place of lists; those of different lengths are as they are, and refused where used."""
    try:
        shape = shape_of_lists(values, where)
    except BadInput:
        return {name: values}
    made = {name: values}
    for size in shape:
        made = {f"{key}.{index}": pc.list_element(one, index) for key, one in made.items() for index in range(size)}
    return made


def names_of_columns(path: Path, party: str, csv: CsvFormat | None) -> list[str]:
    """Return the names of all columns of a file that was read before, for errors."""
    return read_arrays(path, party, (), csv or CsvFormat())[1]


def read_arrays(
    path: Path, party: str, wanted: Sequence[str] | None, csv: CsvFormat
) -> tuple[dict[str, Any], list[str]]:
    """Return the wanted columns of a file as Arrow has them (numpy those of an npy file), and the names of all.

    Raises:
        BadInput: as `read_columns`.
    """
    if is_object(path):
        return _read_object(path, party, wanted)
    if is_in_library(path):
        table = library_table(path, party)
        return _chosen(table, path, party, wanted)
    try:
        files = files_at(path)
    except BadInput as error:
        raise BadInput(f"{party}: {error}") from None
    if files != [path] or (address_of(path) and os.path.basename(path) != files[0].name):
        return _read_parts(files, path, party, wanted, csv)
    return _read_file(path, party, wanted, csv)


def _read_file(
    path: Path, party: str, wanted: Sequence[str] | None, csv: CsvFormat
) -> tuple[dict[str, Any], list[str]]:
    with reading(party, path):
        kind, content = _content(path)
        if kind == "npy":
            arrays = _read_npy(content)
            return _without_nulls(arrays, csv.null or ()), list(arrays)
        if kind in _COLUMNAR:
            arrays, present = _read_arrow(kind, path, party, wanted)
            return _without_nulls(arrays, csv.null or ()), present
        if kind == "xlsx":
            arrays = _read_workbook(content, f"{party}: {path}")
            found = {name: one for name, one in arrays.items() if wanted is None or name in wanted}
            return _without_nulls(found, csv.nulls), list(arrays)
        if kind != "csv":
            where = "; its tables are read with layout = relational" if kind.endswith("database") else ""
            if kind == "an Access database":
                where = "; export its tables"
            if kind == _OLD_OFFICE:
                where = "; save it as .xlsx without a password"
            if kind in _REWRITTEN:
                where = f", as pyarrow.feather.write_feather({_REWRITTEN[kind]}, 'table.feather') makes it of this one"
            if kind in _WITH_CODES:
                where = "; export it as Parquet or CSV, and choose there whether values or their labels are written"
            raise BadInput(f"{party}: path: {path} is {kind}, which is not allowed: give a {ENDINGS} file{where}")
        if ending_of(path.name) in (*_OTHER_ENDINGS, *_NO_TABLES):
            raise BadInput(
                f"{party}: path: {path} cannot be read: it is no {ending_of(path.name)} file by its content; give a "
                f"{ENDINGS} file"
            )
        if b"\0" in content[:1000] and "16" not in csv.encoding and "32" not in csv.encoding:
            if content[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) and not _of_two_bytes(content):
                raise BadInput(f"{party}: path: {path} is no text (it has zero bytes): give a {ENDINGS} file")
            if content[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise BadInput(f"{party}: {path} {_other_encodings(content, csv)}")
        return read_csv(content, path, party, wanted=wanted, csv=csv)


def _without_nulls(arrays: Mapping[str, Any], nulls: Sequence[str]) -> dict[str, Any]:
    """Return columns in which texts that mean that a value is missing are none, and numbers that these texts write."""
    made = dict(arrays)
    for name, values in arrays.items() if nulls else ():
        kind = getattr(values, "type", None)
        kind = kind.value_type if kind is not None and pa.types.is_dictionary(kind) else kind
        if kind is None or _is_text(kind) or _is_number(kind):
            plain = plain_values(values)
            if len(listed := _of_type(nulls, plain.type)):
                made[name] = pc.if_else(pc.is_in(plain, listed), pa.scalar(None, plain.type), plain)
    return made


def _of_type(texts: Sequence[str], kind: Any) -> Any:
    """Return those of some texts that are values of a type."""
    found = []
    for text in texts if _is_text(kind) or _is_number(kind) else ():
        with contextlib.suppress(ValueError, ArithmeticError, pa.ArrowInvalid):
            value: Any = decimal.Decimal(text) if _is_number(kind) else text
            value = int(value) if pa.types.is_integer(kind) and value == int(value) else value
            value = float(value) if pa.types.is_floating(kind) else value
            found.append(pa.scalar(value, kind).as_py())
    return pa.array(found, kind)


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _read_arrow(kind: str, path: Path, party: str, wanted: Sequence[str] | None) -> tuple[dict[str, Any], list[str]]:
    import pyarrow.parquet as pa_parquet

    with opened(path) as file:
        whole = pa_parquet.ParquetFile(file, **_PARQUET) if kind == "parquet" else pa.ipc.open_file(file)
        present = list((whole.schema_arrow if kind == "parquet" else whole.schema).names)
        asked = set(present if wanted is None else wanted)
        chosen = [name for name in present if name in asked]
        _refuse_doubled(chosen, f"{party}: {path}")
        schema = whole.schema_arrow if kind == "parquet" else whole.schema
        refuse_pandas_types([schema.field(name) for name in chosen], f"{party}: {path}")
        if kind == "parquet":
            table = _read_parquet(whole, file, chosen)
        else:
            table = _read_batches(whole, chosen)
    return dict(zip(table.column_names, table.columns, strict=True)), present


def refuse_pandas_types(fields: Sequence[Any], where: str) -> None:
    """Refuse columns that hold other values than they stand for, such as months as numbers.

    Arrow knows their type only where pandas is imported; the file tells it always.

    Raises:
        BadInput: naming the first.
    """
    for field in fields:
        name = getattr(field.type, "extension_name", "") or (field.metadata or {}).get(b"ARROW:extension:name", b"")
        name = name.decode() if isinstance(name, bytes) else name
        if name.startswith("pandas."):
            raise BadInput(
                f"{where}: column {field.name}: holds values of pandas' type {name.removeprefix('pandas.')}, which are "
                f"not read; write texts, as frame[{field.name!r}].astype(str) makes them"
            )


def _read_parquet(opened: Any, file: Any, chosen: Sequence[str]) -> Any:
    """Read columns of a Parquet file: into memory, or where they are large block by block into files."""
    import pyarrow.parquet as pa_parquet

    schema = pa.schema([opened.schema_arrow.field(name) for name in chosen])
    num_rows = opened.metadata.num_rows
    if not is_large(num_rows * row_bytes(schema)):
        found = {name: opened.read(columns=[name], use_threads=False).column(name) for name in chosen}
        for values in found.values():
            if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
                values.validate(full=True)  # nobody else looks whether texts are in UTF-8
        return pa.table(found)
    file.seek(0)
    # column by column, of which a page is in memory, and not a row group
    read = pa_parquet.ParquetFile(file, buffer_size=1 << 16, **_PARQUET)
    pieces = (
        (number, batch.column(name))
        for number, name in enumerate(chosen)
        for batch in read.iter_batches(_ROWS_READ, columns=[name], use_threads=False)
    )
    return mapped_table(schema, num_rows, pieces)


def _read_batches(opened: Any, chosen: Sequence[str]) -> Any:
    """Read columns of an Arrow file as `_read_parquet` does those of a Parquet file."""
    batches = [opened.get_batch(number).num_rows for number in range(opened.num_record_batches)]
    schema = pa.schema([opened.schema.field(name) for name in chosen])
    if not is_large(sum(batches) * row_bytes(schema)):
        return opened.read_all().select(chosen)
    parts = (opened.get_batch(number).select(chosen) for number in range(len(batches)))
    return mapped_table(schema, sum(batches), pieces_of(parts))


_ROWS_READ = 1 << 16


def _read_object(address: Path, party: str, wanted: Sequence[str] | None) -> tuple[dict[str, Any], list[str]]:
    table = object_at(address)
    if not isinstance(table, pa.Table):
        raise BadInput(f"{party}: {address} holds arrays ({', '.join(table)}), which is not allowed: give a table")
    return _chosen(table, address, party, wanted)


def _chosen(table: Any, address: Path, party: str, wanted: Sequence[str] | None) -> tuple[dict[str, Any], list[str]]:
    present = list(table.column_names)
    asked = set(present if wanted is None else wanted)
    chosen = [name for name in present if name in asked]
    _refuse_doubled(chosen, f"{party}: {address}")
    return {name: table.column(name) for name in chosen}, present


def _read_parts(
    files: Sequence[Path], where: Path, party: str, wanted: Sequence[str] | None, csv: CsvFormat
) -> tuple[dict[str, Any], list[str]]:
    """Return the rows of several files of one kind, as Spark writes a table, in the order of their names.

    Columns have the type that all parts' values fit in without loss.
    """
    if not files:
        is_folder = os.path.isdir(where)
        what = "holds no file of a table" if is_folder else "is not a file"
        hint = "; files of several names are given by a pattern, such as part-*.csv" if is_folder else ""
        hint = hint or (f"; {variable}" if (variable := unreplaced(where)) else "")
        raise BadInput(f"{party}: path: {address_of(where) or where} {what}{hint}")
    parts: list[Any] = []
    kinds, present = dict[str, Path](), list[str]()
    for file in files:
        if file.is_dir():
            raise BadInput(f"{party}: path: {file} is a folder: the files of a table lie side by side in one")
        with reading(party, file):
            kinds.setdefault(_content(file)[0], file)
        if len(kinds) > 1:
            told = " and ".join(f"{one} is {kind}" for kind, one in kinds.items())
            raise BadInput(f"{party}: path: {where}: the files of a table are of one kind: {told}")
        part, names = _read_file(file, party, wanted, csv)
        if parts and sorted(names) != sorted(present):
            raise BadInput(
                f"{party}: {file} has the columns {', '.join(names)}, {files[0].name} {', '.join(present)}: all files "
                "of a table need the same; write the others anew, or leave them out by a pattern, such as part-*.csv"
            )
        present = present or names
        parts.append(pa.table({name: part[name] for name in present if name in part}))
        _refuse_other_types(parts[0].schema, parts[-1].schema, (files[0], file), party)
    refuse_lost_column(files, present, f"{party}: {where}")
    with reading(party, where):
        schema = pa.unify_schemas([part.schema for part in parts], promote_options="permissive")
        whole = pa.concat_tables([part.cast(schema) for part in parts])  # which refuses to round a value
        if is_large(whole.nbytes):
            whole = mapped_table(whole.schema, whole.num_rows, pieces_of(whole.to_batches()))
    return dict(zip(whole.column_names, whole.columns, strict=True)), present


def _refuse_other_types(first: Any, schema: Any, files: tuple[Path, Path], party: str) -> None:
    """Refuse a file that has values of another type in a column than the first one, where no type holds both."""
    for one, other in zip(first, schema, strict=True):
        try:
            pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            kind = f"as {one.type} in {files[0].name} and as {other.type} in {files[1].name}"
            raise BadInput(
                f"{party}: {files[1]}: column {one.name}: stands {kind}; write it with one type in all files"
            ) from error


def refuse_lost_column(files: Sequence[Path], present: Sequence[str], where: str) -> None:
    """Refuse files whose folders are called by values of a column that they do not have: year=2024, as Hive has it.

    Raises:
        BadInput: naming the column.
    """
    found: dict[str, set[str]] = {}
    for file in files:
        for name, value in (part.split("=", 1) for part in file.parent.parts if "=" in part):
            found.setdefault(name, set()).add(value)
    for name, values in found.items():
        if len(values) > 1 and name not in present:
            raise BadInput(
                f"{where}: column {name}: stands in the names of folders, such as {name}={min(values)}, and in no "
                "file; give the files of one folder, or write it into them as a column"
            )


def _read_workbook(content: Content, where: str) -> dict[str, Any]:
    """Return the columns of the one sheet of an Excel workbook: its first row names them; an error is no value.

    Raises:
        BadInput: several sheets, formulas of which the workbook does not have the values, or no openpyxl.
    """
    try:
        openpyxl = importlib.import_module("openpyxl")
    except ImportError:
        raise BadInput(
            f"{where} is an Excel workbook: install the extra, pip install 'fedactors[excel]', or save it as CSV"
        ) from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and the like, which are no values
        try:
            books = [openpyxl.load_workbook(io.BytesIO(content), data_only=is_value) for is_value in (True, False)]
        except MemoryError:
            raise
        except Exception as error:  # of any kind: what is wrong with its XML is the library's to find
            raise BadInput(f"{where} {_NO_WORKBOOK}") from error
    names = [sheet.title for sheet in books[0].worksheets if sheet.max_row > 1 or sheet["A1"].value is not None]
    if not names:
        raise BadInput(f"{where}: the workbook has no sheet with cells; a chart is none: save its table as a sheet")
    if len(names) != 1:
        hidden = [name for name in names if books[0][name].sheet_state != "visible"]
        told = f"; {', '.join(hidden[:5])} {'is' if len(hidden) == 1 else 'are'} hidden" if hidden else ""
        raise BadInput(
            f"{where}: the workbook has {len(names)} sheets ({', '.join(names[:5])}){told}: one is needed; move or "
            "copy the table's to a workbook of its own"
        )
    sheet, formulas = (book[names[0]] for book in books)
    if totals := [table for table in sheet.tables.values() if table.totalsRowCount]:
        raise BadInput(
            f"{where}: the last row of the table {totals[0].displayName} ({totals[0].ref}) has its totals; turn "
            "its total row off, and save it again"
        )
    if merged := list(map(str, sheet.merged_cells.ranges)):
        raise BadInput(f"{where}: cells {merged[0]} are merged: a value stands in the first of them only; unmerge them")
    for row in formulas.iter_rows():
        for cell in row:
            if cell.data_type == "f" and sheet[cell.coordinate].value is None:
                raise BadInput(
                    f"{where}: cell {cell.coordinate} is a formula whose value is not there: open and save it in Excel"
                )
    for cell in (cell for row in sheet.iter_rows() for cell in row) if books[0].epoch.year < 1904 else ():
        if isinstance(cell.value, datetime.datetime) and cell.value < _MARCH_1900:
            raise BadInput(
                f"{where}: cell {cell.coordinate} is a date before March 1900, which programs count in two ways; write "
                "such dates as texts"
            )
    for column in sheet.iter_cols(min_row=2):
        _refuse_units(column, str(sheet.cell(1, column[0].column).value), where)
    head, *rows = ([_cell_value(cell) for cell in row] for row in sheet.iter_rows())
    filled = [number for number, row in enumerate(rows, 1) if any(value is not None for value in row)]
    if len(head) == 1 and filled and filled[-1] > len(filled):
        blank = next(number for number in range(1, filled[-1]) if number not in filled) + 1
        raise BadInput(
            f"{where}: row {blank} is blank; in a workbook of one column it may be a row whose value is missing: write "
            "NA there, or delete the row"
        )
    rows = [rows[number - 1] for number in filled]
    width = max((number + 1 for number, name in enumerate(head) if name is not None), default=0)
    if any(value is not None for row in rows for value in row[width:]):
        raise BadInput(
            f"{where}: a column beyond {width} has no name in the first row; name it there, and delete what stands "
            "above, left or right of the table"
        )
    found = ["" if name is None else str(name) for name in head[:width]]
    if found.count("") > 1:
        raise BadInput(
            f"{where}: {found.count('')} columns have no name in the first row; name them there, and delete what "
            "stands above, left or right of the table"
        )
    _refuse_doubled(found, where)
    return {name: _cells([row[number] for row in rows]) for number, name in enumerate(found)}


_NO_WORKBOOK = "is a damaged workbook; open it and save it anew as .xlsx, or save its sheet as CSV"
_MARCH_1900 = datetime.datetime(1900, 3, 1)
_CALENDAR, _SHEETS = "xl/workbook.xml", "xl/worksheets/"
_FROM_1904 = re.compile(rb"""\bdate1904=["'](?:1|true)["']""")


def _parts_of_workbooks(path: Path, begins: str) -> Iterator[bytes]:
    """Yield those parts of the workbooks of a table whose names begin so; none of other files."""
    if is_object(path) or is_in_library(path):
        return
    for file in files_at(path):
        if not address_of(path) and not os.path.isfile(file):
            continue
        with opened(file) as stream:
            if _kind_of(stream.read(_HEAD)) != "zip":
                continue
            stream.seek(0)
            with zipfile.ZipFile(stream) as archive:
                names = archive.namelist()
                yield from (archive.read(name) for name in names if _CALENDAR in names and name.startswith(begins))


def hidden_parts(path: Path, party: str) -> str:
    """Return what nobody sees in a workbook, its rows below the names and its columns; empty: nothing is hidden."""
    num_rows, numbers = 0, set[int]()
    for part in _parts_of_workbooks(path, _SHEETS):
        num_rows += sum(bool(_HIDDEN.search(row[1]) and _FILLED.search(row[2])) for row in _ROW.finditer(part))
        for column in filter(_HIDDEN.search, _COLUMN.findall(part)):
            first, last = (int(dict(_LIMIT.findall(column)).get(end, b"0")) for end in (b"min", b"max"))
            numbers.update(range(first, min(last, first + _MOST_COLUMNS) + 1))
    named = enumerate(names_of_columns(path, party, None), 1) if numbers else ()
    columns = [name for number, name in named if number in numbers]
    told = [f"{num_rows} rows"] * bool(num_rows) + [f"columns {', '.join(columns[:5])}"] * bool(columns)
    return " and ".join(told)


_MOST_COLUMNS = 16_384
"""Of a sheet."""
_LIMIT = re.compile(rb"""\b(min|max)=["'](\d+)["']""")
_COLUMN = re.compile(rb"<(?:\w+:)?col\b([^>]*)>")
_ROW = re.compile(rb"<(?:\w+:)?row\b([^>]*[^>/])>(.*?)</(?:\w+:)?row>", re.DOTALL)
_HIDDEN, _FILLED = re.compile(rb"""\bhidden=["'](?:1|true)["']"""), re.compile(rb"<(?:\w+:)?(?:v|is)>")


def _cell_value(cell: Any) -> Any:
    """Return what a cell holds; of a whole number that is shown as a code, with zeros in front, what it shows."""
    if cell.data_type == "e":
        return None
    if isinstance(cell.value, str):
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), cell.value)
    if type(cell.value) is int and cell.value >= 0:
        return _shown_code(cell.value, _pieces_of(cell.number_format)) or cell.value
    return cell.value


_ESCAPED = re.compile("_x(?![Dd][89A-Fa-f])([0-9A-Fa-f]{4})_")
"""A character that XML does not have, or an underscore before such a text, as workbooks write it."""
_PIECE = re.compile(r"""\"([^"]*)\"|\\(.)|\[\$([^\]-]*)[^\]]*\]|\[[^\]]*\]|[_*].|(.)""", re.DOTALL)


@lru_cache(maxsize=1 << 10)  # a workbook has many cells and few formats
def _pieces_of(number_format: str) -> tuple[tuple[str, bool], ...]:
    """Return the parts of how positive numbers are shown, each a text or, second, a sign with a meaning such as 0."""
    found = []
    for quoted, escaped, currency, sign in _PIECE.findall(number_format or "General"):
        if sign == ";":
            break
        if text := quoted or escaped or currency:
            found.append((text, False))
        elif sign:
            found.append((sign, sign not in " -/()+:$€£¥"))
    return tuple(found)


def _shown_code(value: int, pieces: Sequence[tuple[str, bool]]) -> str:
    """Return how a whole number is shown where all its digits have a place, 0000 or "K-"0000; empty: it is no code."""
    signs = "".join(text for text, is_sign in pieces if is_sign)
    if not re.fullmatch("00+", signs):
        return ""
    digits = str(value).zfill(len(signs))
    extra, rest = digits[: len(digits) - len(signs)], iter(digits[len(digits) - len(signs) :])
    made, is_first = "", True
    for text, is_sign in pieces:
        made += (extra if is_first else "") + next(rest) if is_sign else text
        is_first = is_first and not is_sign
    return made.strip()


def _refuse_units(cells: Sequence[Any], name: str, where: str) -> None:
    """Refuse numbers of one column that are shown in several units, EUR and USD, or some of them as percents."""
    units: dict[str, str] = {}
    for cell in cells:
        if type(cell.value) in (int, float):
            pieces = _pieces_of(cell.number_format)
            signs = "".join(text for text, is_sign in pieces if is_sign)
            unit = "".join(text for text, is_sign in pieces if not is_sign or text == "%").strip(" -/()+:")
            if signs != "General" and re.fullmatch("00+", signs):
                continue  # a code
            units.setdefault("%" if "%" in unit else unit if signs != "General" else "", cell.coordinate)
    told = [one for one in units if one]
    if len(told) > 1 or ("%" in units and len(units) > 1):
        shown = " and ".join(
            f"{at} {f'in {unit}' if unit else 'without a unit'}" for unit, at in list(units.items())[:2]
        )
        raise BadInput(
            f"{where}: column {name}: its numbers are shown in several units ({shown}), and read as if they were in "
            "one; bring them to one, and show all alike"
        )


def _cells(values: Sequence[Any]) -> Any:
    """Return the cells of a column: of one type, or as texts; a blank text is a missing value, as in CSV."""
    values = [None if isinstance(value, str) and not value.strip() else value for value in values]
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and not any(isinstance(one, int) and abs(one) > 2**53 for one in values):
        return pa.array(values, pa.int64() if kinds == {int} else pa.float64())
    if kinds == {datetime.datetime} and all(one is None or one.time() == datetime.time() for one in values):
        return pa.array(values, pa.date32())  # whose texts are those of dates elsewhere
    if len(kinds) == 1:
        return pa.array(values)
    return pa.array([None if value is None else _cell_text(value) for value in values], pa.string())


def _cell_text(value: Any) -> str:
    is_midnight = isinstance(value, datetime.datetime) and value.time() == datetime.time()
    return str(value.date() if is_midnight else value_text(value))


def _read_npy(content: Content) -> dict[str, NDArray[Any]]:
    array = np.load(io.BytesIO(content), allow_pickle=False)
    if array.dtype.names:
        if array.ndim != 1 or any(array[name].ndim != 1 for name in array.dtype.names):
            raise ValueError("a structured array needs one dimension, and one value in each field")
        return {name: array[name] for name in array.dtype.names}
    if array.ndim != 2:
        raise ValueError(f"an array of {array.ndim} dimensions; a matrix or a structured array is needed")
    return {f"c{index}": array[:, index] for index in range(array.shape[1])}


def _refuse_doubled(names: Sequence[str], where: str) -> None:
    for name, count in Counter(names).items():
        if count > 1 and not name:
            raise BadInput(
                f"{where}: {count} columns have no name; name them, and put one separator between two fields, not "
                "several blanks"
            )
        if count > 1:
            raise BadInput(
                f"{where}: columns of the same name: {name!r}, {count} times; name them differently, or list "
                "the others under features"
            )


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
    """What samples that are no table look like, in ``[task]``."""

    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=3)]
    """Channels, height and width of an image; of a sequence its length, and the numbers of a step if it has several."""
    peak: Annotated[float, Field(gt=0)] | None = None
    """What values are divided by; unless given 255 for bytes, 65535 for 16 bits, else 1."""
    mean: tuple[float, ...] = ()
    """Of each channel, taken off after that; 0 unless given."""
    deviation: tuple[Annotated[float, Field(gt=0)], ...] = ()
    """Of each channel, divided by at last; 1 unless given."""

    def __post_init__(self) -> None:
        if math.prod(self.shape) > _MOST_VALUES:
            raise ValueError(f"shape: {list(self.shape)} is not allowed: at most {_MOST_VALUES} values a sample")
        for name in ("peak", "mean", "deviation") if not self.is_image else ():
            if getattr(self, name):
                raise ValueError(f"{name}: not allowed with shape = {list(self.shape)}: images have three dimensions")
        for name in ("mean", "deviation"):
            given = getattr(self, name)
            if given and len(given) != self.shape[0]:
                raise ValueError(
                    f"{name}: {list(given)} is not allowed: give a number for each of {self.shape[0]} channels"
                )

    @property
    def is_image(self) -> bool:
        """Whether they are images, whose values have a largest one; numbers of a sequence are taken as they are."""
        return len(self.shape) == 3

    def scaled(self, values_N: NDArray[Any]) -> NDArray[np.float32]:
        """Return samples as the model sees them (N, C, H, W), of values in any shape that has as many."""
        if not self.is_image:
            return values_N.reshape(-1, *self.shape).astype(np.float32)
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


def holds_images(path: Path) -> bool:
    """Say whether images are there, and no table of pixels: a folder, arrays in a file, or an object's arrays."""
    return not isinstance(object_at(path), pa.Table) if is_object(path) else path.is_dir() or path.suffix == ".npz"


def arrays_of(path: Path, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file, or of an object, by name.

    Raises:
        BadInput: it cannot be read, or holds something else.
    """
    if is_object(path):
        found = object_at(path)
        if isinstance(found, pa.Table):
            raise BadInput(f"{where}: {path} is a table, which is not allowed: give arrays")
        return dict(found)
    with reading(where, path), path.open("rb") as stream:
        file = np.load(stream, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise BadInput(f"{where}: {path} is no .npz file")
        return {name: file[name] for name in file.files}


def read_image_folder(
    path: Path,
    party: str,
    image_folder: ImageFolder,
    *,
    is_new: bool = False,
    label: str | None = None,
    features: Sequence[str] | None = None,
    table: Any = None,
) -> Read:
    """Read a client's images.

    Args:
        path: a folder, an ``.npz`` file, or a library's data set.
        party: whose, for errors.
        image_folder: what they look like.
        label: column of a data set's labels.
        features: column of its pictures, where the description names one.
        is_new: images to predict: no label is read, and one that cannot be read is left out with the reason.
        table: the library's data set, where it was loaded before.

    Raises:
        BadInput: neither is there, or what it holds are no such images; names party, file and what is needed.
    """
    if is_in_library(path):
        table = library_table(path, party) if table is None else table
        return _read_pictures(table, path, party, image_folder, is_new, label, features)
    if path.is_dir():
        return _read_folder(path, party, image_folder, is_new)
    if is_object(path):
        return _read_arrays(path, party, image_folder, is_new)
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
    if not image_folder.is_image:
        raise BadInput(
            f"task.shape: {list(image_folder.shape)} is not allowed for images in folders: channels, height and width"
        )
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
    if not is_new:
        _refuse_equal(images, f"{party}: {folder}")
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
    """Return an image's values (C, H, W); see `_pixels`."""
    with reading(party, file), open(file, "rb") as stream:
        return _pixels(pillow, _opened_image(pillow, stream), f"{party}: {file}", image_folder)


def _opened_image(pillow: Any, stream: Any) -> Any:
    try:
        return pillow.open(stream)
    except pillow.UnidentifiedImageError:  # which shows the stream, and where it lies on the host
        raise ValueError("no image of a known kind") from None


def _pixels(pillow: Any, image: Any, where: str, image_folder: ImageFolder) -> NDArray[Any]:
    """Return an image's values (C, H, W), turned as its EXIF data say: bytes, words of 16 bits, or other numbers.

    Raises:
        BadInput: it would be another one if it were read.
    """
    channels, height, width = image_folder.shape
    if fault := _image_fault(image, image_folder):
        raise BadInput(f"{where} {fault}")
    is_wide, is_word = _is_word(image) or image.mode in _WIDE_MODES, _is_word(image)
    is_unsigned = image.mode == "I" and _sample_format(image) == _UNSIGNED
    is_inverted = _is_inverted(image)  # which Pillow turns where a pixel is a byte, and not where it is a word
    image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
    made = image.convert("F" if is_wide else _MODES[channels])  # Pillow resizes no words of 16 bits
    if made.size != (width, height):
        made = made.resize((width, height), pillow.Resampling.BILINEAR)
    pixels = np.asarray(made).reshape(height, width, -1).transpose(2, 0, 1)
    if not np.isfinite(pixels).all():
        raise BadInput(f"{where} holds values that are NaN or infinite")
    if is_unsigned and pixels.min() < 0:
        raise BadInput(
            f"{where} holds whole numbers of 2^31 or more, which Pillow reads as negative; save it as floats"
        )
    if is_word:
        pixels = np.rint(pixels).astype(np.uint16)
        pixels = 65535 - pixels if is_inverted else pixels
    return np.broadcast_to(pixels, image_folder.shape)


def _is_word(image: Any) -> bool:
    """Say whether an image has one channel of 16 bits; earlier versions of Pillow call that of a PNG ``I``."""
    return image.mode in _WORD_MODES or (image.mode == "I" and image.format == "PNG")


_UNSIGNED, _SIGNED = 1, 2


def _sample_format(image: Any) -> int:
    """Return what kind of numbers a TIFF says that it holds; 0: it says nothing, or is none."""
    found = getattr(image, "tag_v2", {}).get(339, 0)
    return int(found[0] if isinstance(found, tuple) else found)


def _is_inverted(image: Any) -> bool:
    """Say whether a TIFF counts from white to black, as X-rays do."""
    return getattr(image, "tag_v2", {}).get(262) == 0


def _image_fault(image: Any, image_folder: ImageFolder) -> str:
    """Return why an image would be another one if it were read, and what to do; empty: it is read as it is."""
    channels, mode = image_folder.shape[0], image.mode
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format not in _SEVERAL_OF_ONE:
        return f"has {frames} frames or pages, of which a sample is one; save each as an image of its own"
    if mode in _BYTE_MODES and mode != "1" and ";16" in str(getattr(image, "tile", "")):
        return (
            f"holds 16 bits of each of several channels, of which Pillow reads 8 (mode {mode}); save it with 8, or "
            "each channel as an image of its own"
        )
    if mode in _BYTE_MODES and _sample_format(image) == _SIGNED:
        return "holds bytes from -128 to 127, which Pillow reads as 0 to 255; save it as floats, and give their peak"
    if mode not in _BYTE_MODES and _is_inverted(image) and not _is_word(image):
        return f"counts from white to black (mode {mode}, PhotometricInterpretation 0); save it from black to white"
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
    found = arrays_of(path, party)
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
    is_numbers = not image_folder.is_image or images.dtype.kind not in "ui"
    has_peak = is_numbers or image_folder.peak is not None or images.dtype.name in _PEAKS
    if not has_peak and (images.min() < 0 or images.max() > 1):
        raise BadInput(
            f"{party}: {path}: images of type {images.dtype} are not allowed without their largest value; give it "
            "under [task], such as peak = 255"
        )
    if image_folder.is_image and images.dtype.kind == "f" and (told := _other_peak(images, image_folder.peak)):
        raise BadInput(f"{party}: {path}: images of type {images.dtype} {told}")
    if not is_new:
        _refuse_equal(images, f"{party}: {path}")
        steps = images.reshape(-1, *needed) if len(needed) > 1 else images[..., None]
        check_single(np.moveaxis(steps, 1, -1) if image_folder.is_image else steps, f"{party}: {path}: images")
    ids = np.arange(len(images))
    if is_new:
        return Read(ids, image_folder.scaled(np.nan_to_num(images)), (), dict.fromkeys(bad.tolist(), "missing values"))
    labels = found["labels"]
    if len(labels) != len(images):
        raise BadInput(f"{party}: {path}: labels of shape {list(labels.shape)} for {len(images)} samples")
    return Read(ids, image_folder.scaled(images), labels, {})


_LEAST_OF_BYTES, _MOST_OF_WORDS = 16, 65535


def _other_peak(images: NDArray[Any], peak: float | None) -> str:
    """Return what to say of floats that look as if they had another largest value than is said; empty: they do not.

    Whole numbers of any other type are divided by it.
    """
    finite = images[np.isfinite(images)]
    if not len(finite) or finite.min() < 0:
        return ""
    largest = float(finite.max())
    if peak is None and _LEAST_OF_BYTES <= largest <= _MOST_OF_WORDS and bool((finite == np.floor(finite)).all()):
        return (
            f"hold whole numbers up to {largest:g}, as bytes do, which would be divided by 255; say under [task] what "
            "is their largest value, such as peak = 255, or peak = 1 for numbers as they are"
        )
    if peak is not None and peak >= _BYTES_PEAK and 0 < largest <= 1:
        return f"hold numbers up to {largest:g}, and peak = {peak:g} is that of whole numbers; leave peak out"
    return ""


def class_texts(labels: tuple[str, ...] | NDArray[Any]) -> tuple[str, ...]:
    """Return labels as texts of classes, as `class_text` has them."""
    return tuple(class_text(value) for value in (labels if isinstance(labels, tuple) else labels.tolist()))


# --- data sets of libraries -------------------------------------------------------------------------------------------


def _library(module: str, extra: str, where: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            raise BadInput(f"{where} is read by its own library: pip install 'fedactors[{extra}]'") from None
        raise
    except RuntimeError as error:
        raise BadInput(
            f"{where}: {extra} cannot be imported ({first_line(error)}): it was built for another torch than the one "
            "that is installed; install both from one index of wheels"
        ) from None


def library_table(address: Path, party: str) -> Any:
    """Return a data set of a library as a table; pictures are structs, see `_PICTURE`.

    Raises:
        BadInput: the library is not installed, or has no such data set.
    """
    where = f"{party}: {address}"
    with reading(party, address):
        library, name, settings = library_parts(address)
        return (_from_hugging_face if library == "hf" else _from_torchvision)(name, settings, where)


def _from_hugging_face(name: str, settings: Mapping[str, str], where: str) -> Any:
    datasets = _library("datasets", "hf", where)
    for key in settings:
        choice_of(key, ("config", "split", "revision"), f"{where}: setting")
    folder = name.removeprefix("file:") if name.startswith("file:") else ""
    if folder and not os.path.isdir(folder):
        raise BadInput(f"{where}: {folder} is no folder; a file is given as path, without hf:")
    owner, _, config = ("", "", "") if folder else re.match(r"([^/]+(?:/[^/]+)?)(/?)(.*)", name).groups()  # type: ignore[union-attr]
    config = settings.get("config", config) or None
    bars = datasets.utils.logging
    was_shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        if folder and any(os.path.isfile(os.path.join(folder, one)) for one in ("state.json", "dataset_dict.json")):
            for key in ("config", "revision"):
                if key in settings:
                    raise BadInput(f"{where}: {key} is not allowed for a folder of save_to_disk")
            found = datasets.load_from_disk(folder)
        else:
            given = {"path": folder or owner, "name": config, "revision": settings.get("revision")}
            builder = datasets.load_dataset_builder(**given)
            if builder.info.builder_name == "csv":
                way = "its folder as path, without hf:" if folder else f"its files as path: hf://datasets/{owner}/FILE"
                raise BadInput(f"{where}: is of CSV files, whose ids such as 007 {_LIBRARY_READS_NUMBERS}; give {way}")
            found = datasets.load_dataset(
                **given, split=settings.get("split") if "[" in settings.get("split", "") else None
            )
    finally:
        if was_shown:
            bars.enable_progress_bar()
    if isinstance(found, Mapping):
        splits = list(found)
        split = settings.get("split") or (splits[0] if len(splits) == 1 else "")
        parts = [found.get(one) for one in split.split("+")]
        if any(one is None for one in parts):
            told = f"split: {split}: it has none" if split else "split: missing"
            raise BadInput(f"{where}: {told}; its splits are {', '.join(splits)}: give ?split={splits[0]}")
        found = parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)
    elif "split" in settings and "[" not in settings["split"]:
        raise BadInput(f"{where}: split: the folder holds one split; leave it out")
    return table_of_hugging_face(found)


_LIBRARY_READS_NUMBERS = "its library reads as the number 7"


def table_of_hugging_face(found: Any) -> Any:
    """Return the rows of a Hugging Face data set as a table with the columns that its format has, and plain types.

    Classes are called by their names.

    Raises:
        ValueError: it computes its rows when they are read, or holds a class without a name.
    """
    how = found.format
    if how["type"] == "custom":
        raise ValueError("a data set with a transform, which has no rows but when they are read; use map(...) instead")
    table = found.select_columns(how["columns"]).with_format("arrow")[:]
    for number, column in enumerate(table.schema):
        feature = found.features[column.name]
        if type(feature).__name__ == "ClassLabel":
            table = table.set_column(number, column.name, _named(table.column(number), feature.names, column.name))
        elif type(feature).__name__ == "Image":  # of which a file may be named only
            values = pa.chunked_array([feature.embed_storage(one) for one in table.column(number).chunks], _PICTURE)
            table = table.set_column(number, column.name, values)
        elif isinstance(column.type, pa.ExtensionType):
            kind = column.type.storage_type
            storage = pa.chunked_array([one.storage for one in table.column(number).chunks], kind)
            table = table.set_column(number, column.name, storage)
    return table.replace_schema_metadata(None)


def _named(codes: Any, names: Sequence[str], column: str) -> Any:
    """Return the names of classes by their numbers; -1 says that a row has none."""
    codes = pc.if_else(pc.equal(codes, -1), pa.scalar(None, codes.type), codes)
    unnamed = codes.filter(pc.or_(pc.less(codes, 0), pc.greater_equal(codes, len(names))))
    if len(unnamed):
        raise ValueError(f"column {column} holds the class {unnamed[0]}, and {len(names)} have names, from 0 on")
    return pa.array(names, pa.string()).take(codes)


_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""A picture as a file has it; what a library has decoded is a `_PIXELS`."""
_PIXELS = pa.struct([("mode", pa.string()), ("width", pa.int32()), ("height", pa.int32()), ("pixels", pa.binary())])
_NOT_GIVEN = ("transform", "target_transform", "transforms", "loader", "is_valid_file")


def _from_torchvision(name: str, settings: Mapping[str, str], where: str) -> Any:
    module = _library("torchvision.datasets", "torchvision", where)
    pillow = _pillow(where)
    if name not in module.__all__:
        raise BadInput(f"{where}: torchvision has no data set {name!r}{suggested(name, module.__all__)}")
    if name in ("ImageFolder", "DatasetFolder"):
        raise BadInput(f"{where} makes RGB of every picture, whatever it is; give the folder as path")
    made = getattr(module, name)
    known = {key: one for key, one in inspect.signature(made).parameters.items() if key not in _NOT_GIVEN}
    for key in settings:
        if key not in known:
            raise BadInput(f"{where}: {key} is no setting of {name}{suggested(key, known)}")
    for key, one in known.items():
        if key not in settings and one.default is inspect.Parameter.empty and one.kind is not one.VAR_KEYWORD:
            raise BadInput(f"{where}: {key}: missing: give {name}?{key}=...")
    try:
        samples = made(**{key: _setting(value) for key, value in settings.items()})
    except RuntimeError as error:
        advice = "; fetch it with download=true" if "download" in known and "download" not in settings else ""
        raise BadInput(f"{where}: {first_line(error)}{advice}") from None
    rows = [samples[index] for index in range(len(samples))]
    if not all(isinstance(row, tuple) and len(row) == 2 and hasattr(row[0], "getbands") for row in rows):
        raise BadInput(f"{where}: each of its samples must be a picture and its class")
    labels = [row[1].item() if hasattr(row[1], "item") else row[1] for row in rows]
    if not all(isinstance(one, int | float | str) for one in labels):
        raise BadInput(f"{where}: its targets are {type(labels[0]).__name__}s; a picture needs one class or number")
    transpose = importlib.import_module("PIL.ImageOps").exif_transpose
    pixels = [_plain_picture(transpose(row[0]), pillow) for row in rows]
    return pa.table({"picture": pa.array(pixels, _PIXELS), "label": pa.array(labels)})


def _setting(text: str) -> Any:
    """Return a setting of a data set: true or false, whole numbers, or a text."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]+(,-?[0-9]+)*", text):
        numbers = tuple(map(int, text.split(",")))
        return numbers if len(numbers) > 1 else numbers[0]
    return text


def _plain_picture(image: Any, pillow: Any) -> dict[str, Any]:
    """Return a decoded picture, of a palette with its colours."""
    if image.mode in ("P", "PA", "LA"):
        image = image.convert("RGBA" if image.mode != "P" or "transparency" in image.info else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    return {"mode": image.mode, "width": image.width, "height": image.height, "pixels": image.tobytes()}


def holds_pictures(table: Any) -> bool:
    """Say whether a library's data set has a column of pictures."""
    return any(map(_is_picture, table.schema.types))


def _is_picture(kind: Any) -> bool:
    return kind in (_PICTURE, _PIXELS)


def _read_pictures(
    table: Any,
    path: Path,
    party: str,
    image_folder: ImageFolder,
    is_new: bool,
    label: str | None,
    features: Sequence[str] | None,
) -> Read:
    """Read a column of pictures of a library's data set, and their labels; see `read_image_folder`."""
    where = f"{party}: {path}"
    pillow = _pillow(party)
    label = label or ("label" if str(path).startswith("torchvision:") else None)
    if not is_new and (label is None or label not in table.column_names):
        said = "missing" if label is None else f"{label!r} is no column"
        raise BadInput(f"{where}: label: {said}; its columns are {', '.join(table.column_names)}")
    names = [name for name in table.column_names if name != label]
    if unknown := [name for name in features or () if name not in names]:
        raise BadInput(f"{where}: features: {unknown[0]!r} is no column of its pictures ({', '.join(names)})")
    chosen = [name for name in names if not features or name in features]
    pictures = [name for name in chosen if _is_picture(table.schema.field(name).type)]
    if len(pictures) != 1 or (not is_new and chosen != pictures):
        raise BadInput(
            f"{where}: features: a sample is one picture, and the columns are {', '.join(chosen)}; name its column: "
            f'features = ["{(pictures or ["image"])[0]}"]'
        )
    if not image_folder.is_image or image_folder.shape[0] not in _MODES:
        raise BadInput(
            f"{where}: task.shape: {list(image_folder.shape)} is not allowed for pictures: 1, 3 or 4 channels, height "
            "and width"
        )
    images = np.zeros((table.num_rows, *image_folder.shape), np.float32)
    unusable: dict[int, str] = {}
    for row, cell in enumerate(table.column(pictures[0])):
        named = f"{where}: picture {row}"
        try:
            with reading(where, f"picture {row}"):
                images[row] = image_folder.scaled(_pixels(pillow, _picture(pillow, cell), named, image_folder))[0]
        except BadInput as error:
            if not is_new:
                raise
            unusable[row] = str(error).removeprefix(named).removeprefix(f"{where}: picture {row}").strip()
    if not table.num_rows or len(unusable) == len(images):
        raise BadInput(f"{where}: none of {len(images)} pictures can be read{''.join(list(unusable.values())[:1])}")
    if is_new:
        return Read(np.arange(len(images)), images, (), unusable)
    _refuse_equal(images, where)
    labels = table.column(str(label))
    if labels.null_count:
        raise BadInput(f"{where}: label {label}: {labels.null_count} values are missing")
    is_number = pa.types.is_integer(labels.type) or pa.types.is_floating(labels.type)
    read = labels.to_numpy() if is_number else tuple(map(class_text, labels.to_pylist()))
    return Read(np.arange(len(images)), images, read, {})


def _picture(pillow: Any, cell: Any) -> Any:
    """Return a picture of a table."""
    found = cell.as_py()
    if found is None or (found.get("bytes", b"") is None):
        raise ValueError("there is none")
    if "bytes" in found:
        return _opened_image(pillow, io.BytesIO(found["bytes"]))
    return pillow.frombytes(found["mode"], (found["width"], found["height"]), found["pixels"])

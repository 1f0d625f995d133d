"""Files as people have them: what a person sees in one is what is read, or the file is refused with a way on."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from fedactors.data import readers
from fedactors.data.checks import check_data
from fedactors.data.columns import NO_ID, UNSEEN_ID, ColumnRule, kind_of
from fedactors.data.databases import TableSource
from fedactors.data.objects import table_of
from fedactors.data.party_rows import with_clear_ids
from fedactors.data.sources import FileSource
from fedactors.data.values import CsvFormat
from fedactors.errors import BadInput

TEXT = ColumnRule(type="categorical")


def read(path: Path, **more: Any) -> FileSource:
    usual: dict[str, Any] = {"task": "regression", "num_classes": 1, "id_column": "id"}
    return FileSource(party="shop", path=str(path), **usual | more)


def ids_of(path: Path, **more: Any) -> list[str]:
    return [str(one) for one in read(path, **more).load().ids]


# --- workbooks: numbers that are shown as codes, or in units ----------------------------------------------------------


def workbook(folder: Path, formats: list[str], values: list[Any], column: str = "id") -> Path:
    book = pytest.importorskip("openpyxl").Workbook()
    other = "x" if column == "id" else "id"
    book.active.append([column, other])
    for row, (number_format, value) in enumerate(zip(formats, values, strict=True), 2):
        book.active.append([value, row if other == "x" else f"r{row}"])
        book.active.cell(row, 1).number_format = number_format
    book.save(folder / "book.xlsx")
    return folder / "book.xlsx"


@pytest.mark.parametrize(
    ("number_format", "shown"),
    [
        ("00000", "00007"),
        ('"K-"0000', "K-0007"),
        ("\\K\\-0000", "K-0007"),
        ("000-0000", "000-0007"),
        ("00000;-00000", "00007"),
        ("[$-407]00000", "00007"),
        ("[Red]00000", "00007"),
        ("00000_)", "00007"),
        ('0000" / 24"', "0007 / 24"),
    ],
)
def test_an_id_is_what_a_workbook_shows(tmp_path: Path, number_format: str, shown: str) -> None:
    longer = shown.replace("0007", "1234")
    assert ids_of(workbook(tmp_path, [number_format] * 2, [7, 1234])) == [shown, longer]


@pytest.mark.parametrize("number_format", ["General", "0", "#,##0", '0 "kg"', '#,##0.00 "€"', "0.00", "#,##0 [$EUR]"])
def test_numbers_that_are_shown_in_one_unit_are_numbers(tmp_path: Path, number_format: str) -> None:
    path = workbook(tmp_path, [number_format] * 2, [7, 1234], "x")
    assert read(path).load().features.tolist() == [[7.0], [1234.0]]


def test_a_format_is_understood_once_for_all_its_cells(tmp_path: Path) -> None:
    path = workbook(tmp_path, ['0 "pieces"'] * 500, list(range(500)), "x")
    before = readers._pieces_of.cache_info()
    read(path).load()
    after = readers._pieces_of.cache_info()
    assert after.misses - before.misses <= 2
    assert after.hits - before.hits >= 500


def test_more_digits_than_a_code_has_places_stand_in_front(tmp_path: Path) -> None:
    assert ids_of(workbook(tmp_path, ["000-0000"] * 2, [491234567, 1])) == ["49123-4567", "000-0001"]


@pytest.mark.parametrize(
    "formats", [["0%", "0"], ["0%", "General"], ['#,##0 "€"', '#,##0 "$"'], ["0 [$€]", "0 [$CHF]"]]
)
def test_numbers_of_several_units_are_refused(tmp_path: Path, formats: list[str]) -> None:
    with pytest.raises(BadInput, match=r"column x: its numbers are shown in several units \(A2 in .* and A3 "):
        read(workbook(tmp_path, formats, [1, 50], "x")).load()


# --- encodings --------------------------------------------------------------------------------------------------------

TOWNS = "id,place\n1,Münster\n2,Schlüchtern\n3,Köln\n"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mac_roman", "cp1252"),
        ("cp1252", "mac_roman"),
        ("cp850", "cp1252"),
        ("cp437", "mac_roman"),
        ("cp850", "mac_roman"),
    ],
)
def test_another_encoding_of_one_byte_a_letter_is_refused_and_the_right_one_named(
    tmp_path: Path, written: str, said: str
) -> None:
    path = tmp_path / "places.csv"
    path.write_bytes(TOWNS.encode(written))
    rules = (("place", TEXT),)
    with pytest.raises(BadInput, match="give its encoding, csv = ") as refused:
        read(path, rules=rules, csv=CsvFormat(encoding=said)).load()
    right = "cp850" if written == "cp437" else written
    assert f'encoding = "{right}" reads' in str(refused.value)
    assert "\n" not in str(refused.value)
    names = read(path, rules=rules, csv=CsvFormat(encoding=written)).load().feature_names
    assert names == ("place=Köln", "place=Münster", "place=Schlüchtern")


@pytest.mark.parametrize("said", ["mac_roman", "cp437", "koi8_r", "cp1252", "iso8859-15"])
def test_utf_8_is_no_encoding_of_one_byte_a_letter(tmp_path: Path, said: str) -> None:
    path = tmp_path / "places.csv"
    path.write_bytes(TOWNS.encode())
    with pytest.raises(BadInput, match=r"is written in UTF-8.*leave its encoding out"):
        read(path, csv=CsvFormat(encoding=said)).load()


WORDS = {
    "cp949": "서울특별시 부산",
    "cp1250": "Wałęsa Łódź żółć",
    "cp1254": "İstanbul ışık dağ",
    "cp1253": "Αθήνα Πάτρα",
    "koi8_r": "Москва Казань",
    "cp1251": "Москва Казань",
    "cp1255": "שלום תודה",
    "cp1256": "سلام شكرا",
    "cp874": "สวัสดี ไทย",
    "euc_jp": "東京 大阪 ひらがな",
}


@pytest.mark.parametrize("encoding", WORDS)
def test_a_file_of_any_alphabet_hears_of_its_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes(f"id,x\n{WORDS[encoding]},1\nb,2\n".encode(encoding))
    with pytest.raises(BadInput, match="give its encoding") as refused:
        read(path).load()
    assert f"encoding = \"{encoding}\" reads '{WORDS[encoding]},1'" in str(refused.value)
    assert read(path, csv=CsvFormat(encoding=encoding)).load().ids.tolist() == [WORDS[encoding], "b"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("cp1250", "cp1252"),
        ("cp1251", "latin-1"),
        ("cp1251", "cp1252"),
        ("cp1253", "cp1252"),
        ("koi8_r", "cp1251"),
    ],
)
def test_another_alphabet_than_was_said_is_refused_and_the_right_one_named(
    tmp_path: Path, written: str, said: str
) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes(f"id,x\n{WORDS[written]},1\nb,2\n".encode(written))
    with pytest.raises(BadInput, match="which is hardly what was written") as refused:
        read(path, csv=CsvFormat(encoding=said)).load()
    assert f'encoding = "{written}" reads \'{WORDS[written][:3]}' in str(refused.value)


@pytest.mark.parametrize(
    ("words", "encoding"),
    [
        ("größer naïve œuvre m³h ÄÖÜß", "cp1252"),
        ("Győr űrhajó", "cp1250"),
        ("Москва МОСКВА ИванИванов", "cp1251"),
        ("x² + y³", "latin-1"),
    ],
)
def test_words_of_an_alphabet_are_read_as_they_are_said_to_be(tmp_path: Path, words: str, encoding: str) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes(f"id,x\n{words},1\nb,2\n".encode(encoding))
    assert read(path, csv=CsvFormat(encoding=encoding)).load().ids.tolist() == [words, "b"]


@pytest.mark.parametrize("encoding", ["cp1252", "mac_roman", "iso8859-15", "cp1250"])
def test_words_that_are_written_so_are_read(tmp_path: Path, encoding: str) -> None:
    words = [
        "Ärzte",
        "l’été",
        "ÉTÉ",
        "Öl",
        "garçon",
        "straße",
        "„so“",
        "naïve",
        "Čech" if encoding == "cp1250" else "œuvre",
    ]
    if encoding in ("cp1250", "iso8859-15"):
        words = [one for one in words if one not in ("l’été", "„so“", "naïve")]
    path = tmp_path / "words.csv"
    path.write_bytes(("id,word\n" + "".join(f"{n},{one}\n" for n, one in enumerate(words))).encode(encoding))
    found = read(path, rules=(("word", TEXT),), csv=CsvFormat(encoding=encoding)).load()
    assert {name.removeprefix("word=") for name in found.feature_names} == set(words)


@pytest.mark.parametrize(
    ("encoding", "column"),
    [
        ("cp1252", "dateÉchéance"),
        ("cp1252", "typeÉtat"),
        ("cp1252", "anzahlÄpfel"),
        ("cp1252", "idÜbung"),
        ("cp1252", "antalØvelser"),
        ("latin-1", "codeÎle"),
        ("mac_roman", "idŒuvre"),
        ("iso8859-15", "dateÉchéance"),
    ],
)
def test_a_name_may_have_a_capital_with_an_accent_inside(tmp_path: Path, encoding: str, column: str) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes(f"id,{column}\n1,2\n2,3\n".encode(encoding))
    assert read(path, csv=CsvFormat(encoding=encoding)).load().feature_names == (column,)


@pytest.mark.parametrize("encoding", ["cp1252", "mac_roman"])
@pytest.mark.parametrize("column", ["nomÕes", "antalÆbler"])
def test_words_of_the_same_encoding_decide_how_a_name_is_read(tmp_path: Path, encoding: str, column: str) -> None:
    path = tmp_path / "names.csv"
    path.write_bytes((f"id,{column},place\n" + "1,2,Münster\n2,3,forêt\n").encode(encoding))
    found = read(path, rules=(("place", TEXT),), csv=CsvFormat(encoding=encoding)).load()
    assert found.feature_names == (column, "place=Münster", "place=forêt")


@pytest.mark.parametrize("sign", ["§", "¦", "¬"])
def test_a_sign_that_is_not_ascii_stands_between_no_fields(sign: str) -> None:
    with pytest.raises(ValueError, match=f"separator: '{sign}' is not allowed: .*; write the file with a comma"):
        CsvFormat(separator=sign)


def test_who_is_asked_for_an_encoding_hears_of_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "places.csv"
    path.write_bytes("id,word\n1,l’eau\n".encode("mac_roman"))
    with pytest.raises(
        BadInput, match=r'"mac_roman" reads .*l’eau.*where none of them is right, write the file in UTF-8'
    ):
        read(path, rules=(("word", TEXT),), csv=CsvFormat(encoding="cp1252")).load()


# --- files of other programs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("a.sav", b"$FL2@(#) SPSS DATA FILE"),
        ("a.zsav", b"$FL3@(#) SPSS DATA FILE"),
        ("a.por", b"ASCII SPSS PORT FILE"),
        ("a.dta", b"<stata_dta><header>"),
        ("b.dta", b"\x73\x02\x01\x00"),
        ("a.sas7bdat", b"\0" * 12 + bytes.fromhex("c2ea8160b31411cf")),
        ("a.xpt", b"HEADER RECORD*******LIBRARY HEADER"),
        ("a.rds", gzip.compress(b"X\n\0\0\0\x03" + b"\0" * 90, mtime=0)),
        ("a.RData", gzip.compress(b"RDX3\nX\n" + b"\0" * 90, mtime=0)),
    ],
)
def test_files_with_codes_and_their_labels_are_refused_with_a_way_on(tmp_path: Path, name: str, begins: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(begins + b"\0" * 200)
    with pytest.raises(BadInput, match="export it as Parquet or CSV, and choose there whether values or their labels"):
        read(path).load()


# --- names that look alike --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["a\u200b", "a\ufeff", "a\u00ad", "\u202aa\u202c", "M\ufffdller", "a\u2060b"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_id_with_what_nobody_sees_is_refused(tmp_path: Path, odd: str, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        path.write_text(f"id,x\nq,1\n{odd},2\n")
    else:
        pq.write_table(pa.table({"id": ["q", odd], "x": [1.0, 2.0]}), path)
    with pytest.raises(BadInput, match=r"column id: '.*' in row 2 holds the character U\+[0-9A-F]{4}, which"):
        read(path).load()


@pytest.mark.parametrize("odd", ["a\u200b", "M\ufffdller"])
def test_a_new_row_whose_id_holds_what_nobody_sees_is_left_out_alone(tmp_path: Path, odd: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,x\nq,1\nr,2\n")
    trained = read(path).load().columns
    path.write_text(f"id,x\nq,1\n{odd},2\n,3\n{odd},4\n")
    found = read(path).load(trained)
    assert found.ids.tolist() == ["q", odd, "", odd]
    assert found.unusable == {1: UNSEEN_ID, 2: NO_ID, 3: UNSEEN_ID}
    assert kind_of(UNSEEN_ID) == "ids with unseen characters"
    keys = with_clear_ids(found, "psi").aligned_by
    assert keys[0] == "q"
    assert odd not in keys
    assert len(set(keys)) == 4


@pytest.mark.parametrize("name", ["می\u200cخواهم", "क्\u200dष", "é", "日本", "👩\u200d🔬"])
def test_an_id_with_what_its_language_needs_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,x\n{name},1\n")
    assert ids_of(path) == [name]


@pytest.mark.parametrize(
    ("there", "asked"), [("e\u0301t", "\u00e9t"), ("\u0430ge", "age"), ("age\u200b", "age"), ("\uff41ge", "age")]
)
def test_a_column_that_looks_like_the_one_asked_for_is_named_by_its_characters(
    tmp_path: Path, there: str, asked: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id,{there}\nq,1\n")
    with pytest.raises(BadInput, match=r"looks like .*, whose characters are others") as refused:
        read(path, features=(asked,)).load()
    assert ascii(there) in str(refused.value)


# --- files that were put together -------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
def test_a_header_among_the_rows_is_no_row(tmp_path: Path, packed: bool) -> None:
    parts = [b"id,job\na,cook\n", b"id,job\nb,nurse\n"]
    path = tmp_path / ("a.csv.gz" if packed else "a.csv")
    path.write_bytes(b"".join(map(gzip.compress, parts)) if packed else b"".join(parts))
    with pytest.raises(BadInput, match=r"row 2 has the names of the columns once more.*give the files by a pattern"):
        read(path, rules=(("job", TEXT),)).load()


def test_a_file_that_names_its_columns_itself_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,job\na,cook\n")
    with pytest.raises(BadInput, match=r"its first line names the columns; leave csv\.names out, or .*skip = 1"):
        read(path, rules=(("job", TEXT),), csv=CsvFormat(names=("id", "job"))).load()
    assert ids_of(path, rules=(("job", TEXT),), csv=CsvFormat(names=("id", "job"), skip=1)) == ["a"]


def test_a_word_that_is_its_column_s_name_is_a_value(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,job\njob,cook\nid,id\nb,job\n")
    assert ids_of(path, rules=(("job", TEXT),)) == ["job", "id", "b"]


# --- values of databases and of Arrow ---------------------------------------------------------------------------------


def sqlite_of(folder: Path, declared: str, values: list[Any]) -> TableSource:
    with sqlite3.connect(folder / "a.db") as connection:
        connection.execute(f"CREATE TABLE t (d {declared})")
        connection.executemany("INSERT INTO t VALUES (?)", [(one,) for one in values])
    connection.close()
    return TableSource(kind="sqlite", where=str(folder / "a.db"), table="t")


def test_whole_numbers_of_a_date_column_that_are_written_as_dates_are_dates(tmp_path: Path) -> None:
    source = sqlite_of(tmp_path, "DATE", [20240131, None, 19991231])
    assert source.describe() == {"d": "date"}
    expected = [datetime.date(2024, 1, 31), None, datetime.date(1999, 12, 31)]
    assert source.load().to_pydict() == {"d": expected}


@pytest.mark.parametrize(
    ("declared", "values"),
    [("DATE", [20240131, 20240231]), ("DATE", [1704067200]), ("INTEGER", [20240131]), ("TIMESTAMP", [20240131])],
)
def test_other_whole_numbers_stay_numbers(tmp_path: Path, declared: str, values: list[int]) -> None:
    source = sqlite_of(tmp_path, declared, values)
    assert source.load().to_pydict() == {"d": values}


def test_true_of_arrow_s_bytes_is_one(tmp_path: Path) -> None:
    truth = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([2, 0, -1], pa.int8()))
    table = pa.table({"id": ["a", "b", "c"], "x": truth})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert read(tmp_path / "a.arrow").load().features.tolist() == [[1.0], [0.0], [1.0]]


def test_time_spans_that_are_asked_for_as_dates_are_refused_with_their_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"], "x": [datetime.timedelta(days=1)]}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"^shop: .*a\.parquet: column x: holds time spans"):
        read(tmp_path / "a.parquet", rules=(("x", ColumnRule(type="datetime")),)).load()


@pytest.mark.parametrize("kind", ["stream", "version 1"])
def test_files_of_arrow_that_are_no_files_of_tables_are_told_with_what_makes_them_such(
    tmp_path: Path, kind: str
) -> None:
    table, path = pa.table({"id": ["a", "b"], "x": [1.5, 2.5]}), str(tmp_path / "a.arrow")
    if kind == "stream":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        Path(path).write_bytes(b"FEA1" + bytes(96) + b"FEA1")
    with pytest.raises(BadInput, match="stream of Arrow" if kind == "stream" else "Feather file of version 1") as told:
        read(Path(path)).load()
    call = str(told.value).partition(", as ")[2].removesuffix(" makes it of this one")
    assert call.startswith("pyarrow.feather.write_feather(")
    if kind == "stream":
        made = str(tmp_path / "table.feather")
        eval(call.replace("'table.feather'", "made"), {"pyarrow": pa, "path": path, "made": made})
        assert read(Path(made)).load().features.tolist() == [[1.5], [2.5]]


@pytest.mark.parametrize("values", ["periods", "intervals", "bins"])
def test_values_of_pandas_alone_are_told_with_the_texts_that_are_read(tmp_path: Path, values: str) -> None:
    periods = pandas.period_range("2024-01", periods=4, freq="M")
    held = {"periods": periods, "intervals": pandas.interval_range(0, 4), "bins": pandas.cut(range(4), 2)}[values]
    frame = pandas.DataFrame({"id": list("abcd"), "a column": held})
    with pytest.raises(BadInput, match=r"column a column: holds values of pandas' type .* frame\['a column'\]") as told:
        table_of(frame, "shop")
    frame["a column"] = eval(str(told.value).partition("as ")[2].removesuffix(" makes them").rpartition("as ")[2])
    assert len(set(table_of(frame, "shop")["a column"].to_pylist())) == (2 if values == "bins" else 4)
    if values == "periods":
        file = pandas.DataFrame({"id": list("abcd"), "x": held})
        file.to_parquet(tmp_path / "a.parquet")
        with pytest.raises(
            BadInput, match=r"column x: holds values of pandas' type period.* frame\['x'\].astype\(str\)"
        ):
            read(tmp_path / "a.parquet").load()
        file.assign(x=file["x"].astype(str)).to_parquet(tmp_path / "a.parquet")
        months = (("x", ColumnRule(type="datetime", format="%Y-%m")),)
        assert read(tmp_path / "a.parquet", rules=months).load().features[:2, 0].tolist() == [19723, 19754]


def test_a_chart_is_no_sheet(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    for row in (["id", "x"], ["a", 1], ["b", 2]):
        sheet.append(row)
    chart = openpyxl.chart.BarChart()
    chart.add_data(openpyxl.chart.Reference(sheet, min_col=2, min_row=1, max_row=3))
    book.create_chartsheet("chart", 0).add_chart(chart)
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx").load().features.tolist() == [[1], [2]]
    for cell in (cell for row in sheet["A1:B3"] for cell in row):
        cell.value = None
    sheet.delete_rows(1, 3)
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(BadInput, match="the workbook has no sheet with cells; a chart is none"):
        read(tmp_path / "a.xlsx").load()


def _workbook(folder: Path) -> bytes:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["id", "x"], ["a", 1], ["b", 2]):
        book.active.append(row)
    book.save(folder / "whole.xlsx")
    return (folder / "whole.xlsx").read_bytes()


def _repacked(content: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as whole, zipfile.ZipFile(made, "w") as other:
        for name in whole.namelist():
            other.writestr(name, change(name, whole.read(name)))
    return made.getvalue()


NO_WORKBOOKS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda whole: whole[: len(whole) // 2], "it was cut short; fetch or save it anew"),
    "other bytes behind its first": (lambda whole: whole[:40] + b"x" * 4000, "it was cut short"),
    "parts without XML": (
        lambda whole: _repacked(whole, lambda name, part: b"<" if "sheet1" in name else part),
        "is a damaged workbook; open it and save it anew as .xlsx, or save its sheet as CSV",
    ),
    "a part of zeros": (
        lambda whole: _repacked(whole, lambda name, part: part if name.endswith("book.xml") else b"\0" * 9),
        "is a damaged workbook",
    ),
    "text": (lambda whole: b"id,x\na,1\n", "it is no .xlsx file by its content"),
    "a workbook of 1997": (
        lambda whole: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 600,
        "save it as .xlsx without a",
    ),
}


@pytest.mark.parametrize("kind", NO_WORKBOOKS)
def test_a_workbook_that_is_none_is_told_with_a_way_on(tmp_path: Path, kind: str) -> None:
    made, told = NO_WORKBOOKS[kind]
    path = tmp_path / "shop.xlsx"
    path.write_bytes(made(_workbook(tmp_path)))
    with pytest.raises(BadInput, match=told) as refused:
        read(path).load()
    assert str(refused.value).count(str(path)) == 1
    assert "\n" not in str(refused.value)
    (tmp_path / "bank.csv").write_text("id,y\na,0\nb,1\n")
    (tmp_path / "parties.toml").write_text(
        '[task]\ntype = "binary"\nalignment = "hash"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
        '[parties.shop]\npath = "shop.xlsx"\nid = "id"\n'
    )
    assert [told in one.text for one in check_data(tmp_path / "parties.toml", "shop")] == [True]


def test_a_row_of_totals_is_no_row(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["id", "x"], ["a", 1], ["b", 2], ["Total", 3]):
        book.active.append(row)
    table = openpyxl.worksheet.table.Table(displayName="Sales", ref="A1:B4", totalsRowCount=1)
    book.active.add_table(table)
    book.save(tmp_path / "a.xlsx")
    with pytest.raises(BadInput, match=r"the last row of the table Sales \(A1:B4\) has its totals; turn"):
        read(tmp_path / "a.xlsx").load()
    table.totalsRowCount, table.ref = None, "A1:B3"
    book.active.delete_rows(4)
    book.save(tmp_path / "a.xlsx")
    assert read(tmp_path / "a.xlsx").load().features.tolist() == [[1], [2]]


@pytest.mark.parametrize("text", ["0,123", "00,123", "0.123"])
def test_what_begins_with_a_0_has_no_thousands(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(f'id,x\na,"{text}"\nb,"1{text[-4]}000"\n')
    with pytest.raises(BadInput, match=f"column x: holds text such as '{text}'"):
        read(tmp_path / "a.csv", csv=CsvFormat(thousands=text[-4], decimal=";")).load()


@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_tensors_of_one_shape_are_a_column_for_each_value(tmp_path: Path, ending: str) -> None:
    numbers = np.arange(12.0).reshape(3, 2, 2)
    table = pa.table({"id": list("abc"), "x": pa.FixedShapeTensorArray.from_numpy_ndarray(numbers)})
    path = tmp_path / f"a.{ending}"
    pq.write_table(table, path) if ending == "parquet" else pyarrow.feather.write_feather(table, str(path))
    block = read(path).load()
    assert block.feature_names == ("x.0", "x.1", "x.2", "x.3")
    assert block.features.tolist() == numbers.reshape(3, 4).tolist()
    turned = pa.fixed_shape_tensor(pa.float64(), (2, 2), permutation=[1, 0])
    tensors = pa.ExtensionArray.from_storage(turned, table["x"].chunk(0).storage)
    pyarrow.feather.write_feather(pa.table({"id": list("abc"), "x": tensors}), str(tmp_path / "b.feather"))
    with pytest.raises(BadInput, match="column x: holds tensors whose axes are permuted"):
        read(tmp_path / "b.feather").load()


@pytest.mark.parametrize("mark", ["?", "-", "--", "."])
def test_a_label_that_may_mean_none_is_told_to_be_either(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,x,y\n" + "".join(f"{row},{row}.5,{[mark, 'no', 'yes'][row % 3]}\n" for row in range(9)))
    given: dict[str, Any] = {"label": "y", "task": "multiclass", "num_classes": 3}
    with pytest.raises(BadInput) as told:
        read(path, **given).load()
    as_class, _, as_none = str(told.value).partition("if it means that a row has no label: ")
    listed = json.loads(as_class.partition("classes = ")[2].partition(" under")[0])
    block = read(path, **given, classes=tuple(listed)).load()
    assert (block.class_names, len(block.ids)) == (tuple(listed), 9)
    assert as_none.startswith(f'unlabelled = "drop" and csv = {{ null = ["{mark}"] }}')
    labelled = read(path, **given | {"num_classes": 2}, unlabelled="drop", csv=CsvFormat(null=(mark,))).load()
    assert (labelled.class_names, len(labelled.ids)) == (("no", "yes"), 6)


def test_labels_that_are_marks_only_or_plus_and_minus_are_classes(tmp_path: Path) -> None:
    for classes in ("-+", "?!", ["-", "--"]):
        text = "".join(f"{row},{row}.5,{classes[row % 2]}\n" for row in range(6))
        (tmp_path / "a.csv").write_text(f"id,x,y\n{text}")
        block = read(tmp_path / "a.csv", label="y", task="binary", num_classes=2).load()
        assert set(block.class_names) == set(classes)


def test_a_class_of_minus_one_too_many_is_told_to_be_perhaps_no_label(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,x,y\n" + "".join(f"{row},{row}.5,{row % 3 - 1}\n" for row in range(9)))
    given: dict[str, Any] = {"label": "y", "task": "binary", "num_classes": 2}
    with pytest.raises(BadInput, match=r"if -1 means that a row has no label: unlabelled = \"drop\" and, .*\[\"-1\"\]"):
        read(path, **given).load()
    block = read(path, **given, unlabelled="drop", csv=CsvFormat(null=("-1",))).load()
    assert (block.class_names, len(block.ids)) == (("0", "1"), 6)

"""What people's files, databases and objects hold is read as it is there, or refused with a remedy that works."""

from __future__ import annotations

import datetime
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from fedactors.data.checks import check_data, edits_of, warnings_of
from fedactors.data.databases import TableSource
from fedactors.data.description import load_description
from fedactors.data.layouts.relational import compared_keys
from fedactors.data.objects import table_of
from fedactors.data.readers import read_columns
from fedactors.data.values import CsvFormat, formats_of_dates, parse_date
from fedactors.errors import BadInput

BANK = "id,income,y\n" + "".join(f"c{i},{i * 1.5},{i % 2}\n" for i in range(4))


def described(folder: Path, shop: str) -> Path:
    """Write a description of two parties, the second as said, and return its path."""
    (folder / "bank.csv").write_text(BANK)
    task = '[task]\ntype = "binary"\nalignment = "psi"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
    path = folder / "parties.toml"
    path.write_text(f'{task}[parties.shop]\nid = "id"\n{shop}\n')
    return path


def loaded(folder: Path, shop: str) -> Any:
    return load_description(described(folder, shop)).load("shop")


def csv(folder: Path, values: list[str], rule: str = "", name: str = "x") -> Any:
    (folder / "shop.csv").write_text(f"id,{name}\n" + "".join(f"c{i},{value}\n" for i, value in enumerate(values)))
    return loaded(folder, f'path = "shop.csv"\n{rule}')


def database(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "shop.db") as connection:
        for statement in statements:
            connection.execute(statement)


# --- dates ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_new_york():
    before = os.environ.get("TZ")
    os.environ["TZ"] = "America/New_York"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_a_zone_of_the_machine_is_not_read_as_utc() -> None:
    for zone in ("EST", "EDT"):
        with pytest.raises(ValueError, match="no date"):
            parse_date(f"2024-01-05 10:00:00 {zone}", "%Y-%m-%d %H:%M:%S %Z")
    for zone in ("UTC", "GMT"):
        found = parse_date(f"2024-01-05 10:00:00 {zone}", "%Y-%m-%d %H:%M:%S %Z")
        assert found == datetime.datetime(2024, 1, 5, 10)


def test_a_zone_of_letters_is_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"which zone CET is depends on who reads it; write the offset, such as \+01:00"):
        csv(tmp_path, ["2024-01-05 10:00:00 CET"] * 2, 'columns = { x = { type = "datetime" } }')


@pytest.mark.parametrize("form", ["%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p"])
def test_moments_with_and_without_a_zone_are_refused_whatever_their_format(tmp_path: Path, form: str) -> None:
    moment = datetime.datetime(2024, 1, 5, 10).strftime(form)
    rule = f'columns = {{ x = {{ type = "datetime", format = ["{form} %z", "{form}"] }} }}'
    with pytest.raises(BadInput, match="names a time zone, and"):
        csv(tmp_path, [f"{moment} +0200", moment], rule)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("2024-01-15 10:00:00 UTC", "%Y-%m-%d %H:%M:%S UTC"),
        ("2024-01-15 10:00:00.25 UTC", "%Y-%m-%d %H:%M:%S.%f UTC"),
        ("01/15/2024 10:00 PM", "%m/%d/%Y %I:%M %p"),
        ("1/15/2024 9:05:01 AM", "%m/%d/%Y %I:%M:%S %p"),
    ],
)
def test_the_format_of_what_programs_export_is_named_and_reads_it(tmp_path: Path, text: str, form: str) -> None:
    with pytest.raises(BadInput) as refused:
        csv(tmp_path, [text, text.replace("15", "16")], 'columns = { x = { type = "datetime" } }')
    assert f'format = "{form}"' in str(refused.value)
    found = csv(
        tmp_path, [text, text.replace("15", "16")], f'columns = {{ x = {{ type = "datetime", format = "{form}" }} }}'
    )
    assert np.diff(found.features[:, 0]).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("text", "form", "why", "better"),
    [
        ("2024-01-05 05:00 PM", "%Y-%m-%d %H:%M %p", "%p counts beside %I only", "%Y-%m-%d %I:%M %p"),
        ("2024-01-05 05:00", "%Y-%m-%d %I:%M", "which half of the day", "%Y-%m-%d %H:%M"),
        ("2024 05", "%Y %U", "a week counts beside a day of the week", ""),
    ],
)
def test_a_format_that_is_read_by_half_is_refused(tmp_path: Path, text: str, form: str, why: str, better: str) -> None:
    rule = 'columns = {{ x = {{ type = "datetime", format = "{}" }} }}'
    texts = [text, text.replace("05", "06", 1)]
    with pytest.raises(BadInput, match=why):
        csv(tmp_path, texts, rule.format(form))
    if better:
        assert len(csv(tmp_path, texts, rule.format(better)).features) == 2


@pytest.mark.parametrize("rule", ["", 'columns = { x = { type = "datetime" } }'])
def test_a_day_that_two_formats_read_is_told_with_both(tmp_path: Path, rule: str) -> None:
    with pytest.raises(BadInput, match=r'"%d/%m/%Y".* or format = "%m/%d/%Y"'):
        csv(tmp_path, ["03/02/2024", "01/02/2024"], rule)
    assert len(formats_of_dates(["03/02/2024"])) == 2


DATES = 'columns = { x = { type = "datetime", parts = ["days"], FORMAT } }'


@pytest.mark.parametrize(
    ("values", "form", "days"),
    [
        (["2024", "2025"], "%Y", [19723, 20089]),
        (["2024-01", "2024-02"], "%Y-%m", [19723, 19754]),
        (["1704067200000000", "1704153600000000"], "unix-us", [19723, 19724]),
        (["1704067200000000000", "1704153600000000000"], "unix-ns", [19723, 19724]),
    ],
)
def test_years_months_and_parts_of_seconds_are_told_and_read(
    tmp_path: Path, values: list[str], form: str, days: list[int]
) -> None:
    with pytest.raises(BadInput, match=rf'format = "{form}"'):
        csv(tmp_path, values, DATES.replace(", FORMAT", ""))
    (found,) = [one for one in check_data(tmp_path / "parties.toml", "shop") if one.column == "x"]
    assert f'format = "{form}"' in found.suggestion
    read = csv(tmp_path, values, DATES.replace("FORMAT", f'format = "{form}"'))
    assert read.features[:, 0].tolist() == days


def test_dates_of_zeros_are_missing_as_the_error_says(tmp_path: Path) -> None:
    values, null = ["0000-00-00", "2024-01-01"], 'csv = { null = ["0000-00-00"] }'
    with pytest.raises(BadInput, match=r'a value is missing: csv = \{ null = \["0000-00-00"\] \}'):
        csv(tmp_path, values, DATES.replace(", FORMAT", ""))
    edits = edits_of(check_data(tmp_path / "parties.toml", "shop"))
    assert 'null = ["0000-00-00"' in edits
    assert 'missing = "median"' in edits
    rule = DATES.replace("FORMAT", 'missing = "median"')
    read = csv(tmp_path, values, f"{rule}\n{null}")
    assert np.isnan(read.features[:, 0]).tolist() == [True, False]


def test_years_of_two_digits_that_lie_in_the_future_are_told(tmp_path: Path) -> None:
    csv(tmp_path, ["01.02.65", "01.02.85", "01.02.01"], DATES.replace("FORMAT", 'format = "%d.%m.%y"'))
    (found,) = [one for one in check_data(tmp_path / "parties.toml", "shop") if "future" in one.text]
    assert (found.level, found.column) == ("warning", "x")
    assert "1 dates lie in the future, such as '01.02.65' (2065)" in found.text


@pytest.mark.parametrize(
    ("form", "value", "parts"),
    [
        ("%m/%d", "03/02", '["month"]'),
        ("%H:%M", "10:30", '["hour"]'),
        ("%d %b %H:%M", "2 Jan 10:30", '["month", "hour"]'),
    ],
)
def test_a_format_without_a_year_gives_no_days(tmp_path: Path, form: str, value: str, parts: str) -> None:
    rule = f'columns = {{ x = {{ type = "datetime", format = "{form}"PARTS }} }}'
    with pytest.raises(BadInput) as refused:
        csv(tmp_path, [value, value], rule.replace("PARTS", ""))
    assert f"it has no year; say parts = {parts}" in str(refused.value)
    assert csv(tmp_path, [value, value], rule.replace("PARTS", f", parts = {parts}")).features.shape[0] == 2


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_what_is_said_of_missing_values_keeps_what_was_said_before(tmp_path: Path) -> None:
    values, rule = ["-", "1", "2", "Null", "N/A"], 'columns = { x = { missing = "mean" } }\n'
    with pytest.raises(BadInput, match=r'csv = \{ null = \["-"\] \}, with NA and the like in that list'):
        csv(tmp_path, values, rule)
    with pytest.raises(BadInput, match=r'csv = \{ null = \["-", "N/A", "Null"\] \}'):
        csv(tmp_path, values, f'{rule}csv = {{ null = ["-", "N/A"] }}')
    found = csv(tmp_path, values, f'{rule}csv = {{ null = ["-", "N/A", "Null"] }}')
    assert np.isnan(found.features[:, 0]).tolist() == [True, False, False, True, True]


def test_true_beside_numbers_is_no_missing_value(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("id,x\nc0,True\nc1,0\nc2,5\nc3,7\n")
    assert "null" not in edits_of(check_data(described(tmp_path, 'path = "shop.csv"'), "shop"))


@pytest.mark.parametrize(("encoding", "said"), [("cp932", "cp1252"), ("cp932", "utf8"), ("gb18030", "shift_jis")])
def test_the_encoding_of_a_line_is_found_whatever_was_said(tmp_path: Path, encoding: str, said: str) -> None:
    path = tmp_path / "shop.csv"
    path.write_bytes("id,x\nc0,東京都\nc1,大阪府\nc2,表計算\n".encode(encoding))
    right = {"cp932": "shift_jis"}.get(encoding, encoding)
    with pytest.raises(BadInput, match=rf"line \d has the byte.*encoding = \"{right}\" reads"):
        read_columns(path, "shop", wanted=None, csv=CsvFormat(encoding=said))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_letters_of_two_bytes_without_a_mark_are_told(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "shop.csv"
    path.write_bytes("id,x\nc0,1\n".encode(encoding))
    with pytest.raises(BadInput, match=f'encoding = "{encoding}" reads'):
        read_columns(path, "shop", wanted=None)
    assert list(read_columns(path, "shop", wanted=None, csv=CsvFormat(encoding=encoding))) == ["id", "x"]


def test_a_title_above_a_blank_line_is_left_out_as_the_error_says(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_text("Report of January\n\nid,x\nc0,1\nc1,2\n")
    with pytest.raises(BadInput, match=r"line 1 has one field, 'Report of January'.*csv = \{ skip = 2 \}"):
        read_columns(path, "shop", wanted=None)
    assert list(read_columns(path, "shop", wanted=None, csv=CsvFormat(skip=2))) == ["id", "x"]


def test_texts_that_look_alike_are_told_and_one_category_by_the_rule(tmp_path: Path) -> None:
    values = ["Zu\u0308rich", "Z\u00fcrich", "Bern", "Bern"]
    csv(tmp_path, values, 'categorical = ["x"]')
    (found,) = [one for one in check_data(tmp_path / "parties.toml", "shop") if "different categories" in one.text]
    assert r"'Zu\u0308rich' and 'Z\xfcrich'" in found.text
    assert found.suggestion == 'x = { type = "text" }'
    assert csv(tmp_path, values, 'columns = { x = { type = "text" } }').features.shape == (4, 2)


@pytest.mark.parametrize(
    ("encoding", "words", "others"),
    [
        ("cp1251", ["Москва", "Казань"], ("cp1252", "mac_roman", "cp850", "gb18030", "big5")),
        ("big5", ["台北市", "高雄"], ("cp1252", "mac_roman", "cp850", "cp1251", "gb18030", "shift_jis")),
        ("cp1252", ["Zürich", "Genève"], ("cp1251", "big5", "gb18030")),
    ],
)
def test_an_encoding_is_proposed_where_it_makes_words(
    tmp_path: Path, encoding: str, words: list[str], others: tuple[str, ...]
) -> None:
    path = tmp_path / "shop.csv"
    path.write_bytes(f"id,town\nc0,{words[0]}\nc1,{words[1]}\n".encode(encoding))
    with pytest.raises(BadInput) as refused:
        read_columns(path, "shop", wanted=None)
    assert f"encoding = \"{encoding}\" reads 'c0,{words[0]}'" in str(refused.value)
    assert not [one for one in others if f'encoding = "{one}"' in str(refused.value)]
    assert read_columns(path, "shop", wanted=None, csv=CsvFormat(encoding=encoding))["town"].texts() == words


def test_characters_that_stand_for_nothing_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.csv"
    path.write_bytes("id,town\nc0,台北市\nc1,高雄\n".encode("big5"))
    with pytest.raises(BadInput, match=r'line 2 has the character U\+E67E, .*encoding = "big5" reads'):
        read_columns(path, "shop", wanted=None, csv=CsvFormat(encoding="gb18030"))
    path.write_text("id,town\nc0,\ue67e\n")
    assert read_columns(path, "shop", wanted=None)["town"].texts() == ["\ue67e"]


# --- ids --------------------------------------------------------------------------------------------------------------


def test_ids_that_a_spreadsheet_rounded_are_told(tmp_path: Path) -> None:
    rounded = [f"89490200000{number:04d}000" for number in range(1000, 1040)]
    whole = [f"89490200000{number:04d}{number % 900 + 100}" for number in range(1000, 1040)]
    for ids, is_told in ((rounded, True), ([*rounded, whole[1]], True), (whole, False), (["1" + "0" * 17], False)):
        path = described(tmp_path, 'path = "shop.csv"')
        (tmp_path / "shop.csv").write_text("id,x\n" + "".join(f"{one},{at}\n" for at, one in enumerate(ids)))
        told = [one.text for one in check_data(path, "shop") if "were rounded to 15 digits" in one.text]
        assert bool(told) == is_told, ids[-1]
        assert bool([one for one in warnings_of(load_description(path)) if "rounded to 15" in one]) == is_told


def test_keys_that_a_spreadsheet_rounded_are_told(tmp_path: Path) -> None:
    keys = [8949020000010000000 + number * 100_000 for number in range(9)]
    pq.write_table(pa.table({"id": keys, "y": [float(at) for at in range(9)]}), tmp_path / "bank.parquet")
    pq.write_table(pa.table({"id": keys, "x": [at * 1.5 for at in range(9)]}), tmp_path / "shop.parquet")
    path = tmp_path / "parties.toml"
    path.write_text(
        '[task]\nlayout = "relational"\ntype = "regression"\nlabel = "bank.y"\n'
        'sql = "SELECT bank.y, shop.x FROM bank JOIN shop ON bank.id = shop.id"\n'
        '[parties.bank]\npath = "bank.parquet"\n[parties.shop]\npath = "shop.parquet"\n'
    )
    told = [one for one in check_data(path) if "key id: 9 of 9 long numbers" in one.text]
    assert [one.party for one in told] == ["bank", "shop"]


# --- several files ----------------------------------------------------------------------------------------------------


def test_columns_of_files_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "1.csv").write_text("id,x,z\nc0,1,2\n")
    (tmp_path / "parts" / "2.csv").write_text("id,z,x\nc1,3,4\n")
    found = loaded(tmp_path, 'path = "parts"')
    assert found.feature_names == ("x", "z")
    assert found.features.tolist() == [[1.0, 2.0], [4.0, 3.0]]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([True]), pa.array([5])),
        (pa.array([1]), pa.array(["a"])),
        (pa.array([0], pa.timestamp("s", "UTC")), pa.array([0], pa.timestamp("s"))),
        (pa.array([0], pa.date32()), pa.array([0], pa.timestamp("s"))),
    ],
)
def test_files_of_other_types_are_named_with_the_column(tmp_path: Path, first: Any, second: Any) -> None:
    for number, values in enumerate((first, second)):
        pq.write_table(pa.table({"id": [f"c{number}"], "x": values}), tmp_path / f"part-{number}.parquet")
    with pytest.raises(
        BadInput, match=r"part-1\.parquet: column x: stands as .* in part-0\.parquet and as .* in part-1"
    ):
        read_columns(tmp_path / "part-*.parquet", "shop", wanted=None)


# --- workbooks --------------------------------------------------------------------------------------------------------


def workbook(folder: Path, *rows: list[Any], hidden: bool = False) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    if hidden:
        other = book.create_sheet("old")
        other.append(["id", "x"])
        other.sheet_state = "hidden"
        other.append(["c9", 4])
    book.save(folder / "shop.xlsx")
    return folder / "shop.xlsx"


def test_characters_that_a_workbook_escapes_are_read(tmp_path: Path) -> None:
    path = workbook(tmp_path, ["id", "x"], ["c0", "a_x000D_\nb"], ["c1", "a_x005F_x000D_b"], ["c2", "a_x000d"])
    found = read_columns(path, "shop", wanted=None)
    assert found["x"].texts() == ["a\r\nb", "a_x000D_b", "a_x000d"]


def test_a_workbook_says_what_to_do_with_what_is_no_table(tmp_path: Path) -> None:
    for rows in (
        [["Report of 2024"], [], ["id", "x"], ["c0", 1]],
        [[None, None], [None, "id", "x"], [None, "c0", 1]],
        [["id", "x", None, None, "note"], ["c0", 1]],
    ):
        with pytest.raises(BadInput, match="delete what stands above, left or right of the table"):
            read_columns(workbook(tmp_path, *rows), "shop", wanted=None)
    with pytest.raises(BadInput, match="old is hidden: one is needed; move or copy"):
        read_columns(workbook(tmp_path, ["id", "x"], ["c0", 1], hidden=True), "shop", wanted=None)


def test_days_that_a_workbook_counts_from_1904_are_not_read_as_those_from_1900(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    from openpyxl.utils.datetime import CALENDAR_MAC_1904

    rule = 'path = "shop.xlsx"\ncolumns = { x = { type = "datetime", parts = ["days"]FORMAT } }'
    excel = rule.replace("FORMAT", ', format = "excel"')
    workbook(tmp_path, ["id", "x"], ["c0", 45292], ["c1", 45293])
    assert loaded(tmp_path, excel).features.tolist() == [[19723.0], [19724.0]]
    book = openpyxl.Workbook()
    book.epoch = CALENDAR_MAC_1904
    for row in (["id", "x"], ["c0", 43830], ["c1", 43831]):
        book.active.append(row)
    book.save(tmp_path / "shop.xlsx")
    with pytest.raises(BadInput, match=r"column x: its workbook counts days from 1904 on.*the format of a date"):
        loaded(tmp_path, excel)
    for cell in book.active["B"][1:]:
        cell.number_format = "yyyy-mm-dd"
    book.save(tmp_path / "shop.xlsx")
    assert loaded(tmp_path, rule.replace("FORMAT", "")).features.tolist() == [[19723.0], [19724.0]]


def test_hidden_rows_of_a_workbook_are_counted(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    path = workbook(tmp_path, ["id", "x"], *([f"c{at}", at * 1.5] for at in range(5)))
    description = described(tmp_path, 'path = "shop.xlsx"')
    assert not [one for one in check_data(description, "shop") if "hidden" in one.text]
    book = openpyxl.load_workbook(path)
    for row in (2, 4, 9):
        book.active.row_dimensions[row].hidden = True
    book.save(path)
    (found,) = [one for one in check_data(description, "shop") if "hidden" in one.text]
    assert (found.level, found.text[:6]) == ("warning", "2 rows")


# --- databases --------------------------------------------------------------------------------------------------------

VIEW = 'tables = { v = "shop.db" }\nsql = "SELECT * FROM v"'


@pytest.mark.parametrize("odd", ["''", "'NA'", "'1,5'"])
def test_what_an_error_says_of_mixed_values_makes_no_zero(tmp_path: Path, odd: str) -> None:
    insert = f"INSERT INTO v VALUES ('c0', 2), ('c1', {odd})"
    database(tmp_path, "CREATE TABLE v (id TEXT, x INTEGER)", insert)
    with pytest.raises(BadInput, match=r"NULLIF\(x, 'TEXT'\).*CAST\(x AS TEXT\): a CAST to a number makes 0"):
        loaded(tmp_path, VIEW)
    database(tmp_path, f"CREATE VIEW w AS SELECT id, NULLIF(x, {odd}) AS x FROM v")
    missing = 'columns = { x = { missing = "mean" } }'
    found = loaded(tmp_path, f"{VIEW.replace('v =', 'w =').replace('FROM v', 'FROM w')}\n{missing}")
    assert found.features[0, 0] == 2
    assert np.isnan(found.features[1, 0])


def test_a_view_reads_the_columns_that_it_names(tmp_path: Path) -> None:
    database(tmp_path, "CREATE TABLE v (id TEXT, x INTEGER, z)", "INSERT INTO v VALUES ('c0', 2, 1), ('c1', 3, 'a')")
    with pytest.raises(BadInput, match="column z holds"):
        loaded(tmp_path, VIEW)
    assert loaded(tmp_path, VIEW.replace("*", "id, x")).features.tolist() == [[2.0], [3.0]]
    counted = VIEW.replace("*", "id, count(*) AS n, sum(V.X) AS x").replace("FROM v", "FROM v GROUP BY id")
    assert loaded(tmp_path, counted).feature_names == ("n", "x")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.id, a.x FROM v AS a NATURAL JOIN w",
        "SELECT id, x FROM (SELECT * FROM v) AS s",
        "SELECT id, r.x AS x FROM (SELECT id, v AS r FROM v) AS s",
        "SELECT id, x FROM v WHERE v.z > 0",
    ],
)
def test_columns_that_a_view_uses_without_naming_them_are_read(tmp_path: Path, sql: str) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE v AS SELECT * FROM (VALUES ('c0', 2, 1), ('c1', 3, 0)) AS t(id, x, z)")
        connection.execute("CREATE TABLE w AS SELECT id, z FROM v WHERE z = 1")
    tables = 'tables = { v = "shop.duckdb", w = "shop.duckdb" }' if " w" in sql else 'tables = { v = "shop.duckdb" }'
    found = loaded(tmp_path, f'{tables}\nsql = "{sql}"')
    assert found.features.tolist() == ([[2.0]] if "z" in sql or "NATURAL" in sql else [[2.0], [3.0]])


def test_lists_of_a_view_are_columns_as_those_of_a_file_are(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE v AS SELECT * FROM (VALUES ('c0', [1, 2]), ('c1', [3, 4])) AS t(id, x)")
    found = loaded(tmp_path, 'tables = { v = "shop.duckdb" }\nsql = "SELECT * FROM v"')
    assert found.feature_names == ("x.0", "x.1")
    assert found.features.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    found = loaded(tmp_path, 'tables = { v = "shop.duckdb" }\nsql = "SELECT * FROM v"\nfeatures = ["x.1"]')
    assert found.features.tolist() == [[2.0], [4.0]]


def test_whole_numbers_of_39_digits_are_read_as_the_error_says(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE v AS SELECT 'c0' AS id, (2::HUGEINT ** 127)::DECIMAL(38, 0) AS x LIMIT 0")
        connection.execute("ALTER TABLE v ALTER x TYPE HUGEINT")
        connection.execute("INSERT INTO v VALUES ('c0', 170141183460469231731687303715884105727), ('c1', 1)")
        connection.execute("CREATE VIEW w AS SELECT id, CAST(x AS DOUBLE PRECISION) AS x FROM v")
        connection.execute("CREATE VIEW u AS SELECT CAST(x AS TEXT) AS id, 1 AS x FROM v")
    tables = 'tables = { TABLE = "shop.duckdb" }\nsql = "SELECT * FROM TABLE"'
    with pytest.raises(
        BadInput, match=r"39 digits; .* in a view, CAST it to DOUBLE PRECISION to learn from it, or to TEXT"
    ):
        loaded(tmp_path, tables.replace("TABLE", "v"))
    assert loaded(tmp_path, tables.replace("TABLE", "w")).features[0, 0] == np.float32(2.0**127)
    assert loaded(tmp_path, tables.replace("TABLE", "u")).ids[0] == "170141183460469231731687303715884105727"


def test_julian_days_are_told_and_read_as_the_error_says(tmp_path: Path) -> None:
    database(tmp_path, "CREATE TABLE v (id TEXT, x REAL)", "INSERT INTO v VALUES ('c0', 2460310.5), ('c1', 2460311.25)")
    rule = 'columns = { x = { type = "datetime", parts = ["days"] } }'
    with pytest.raises(BadInput, match=r"'2460310.5' .* a Julian day, .* in a view write datetime\("):
        loaded(tmp_path, f"{VIEW}\n{rule}")
    database(tmp_path, "CREATE VIEW w AS SELECT id, datetime(x) AS x FROM v")
    shop = VIEW.replace("v =", "w =").replace("FROM v", "FROM w")
    assert loaded(tmp_path, f"{shop}\n{rule}").features.tolist() == [[19723.0], [19723.75]]


def test_a_place_that_is_no_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match=r"tables\.v: 'sqlite:shop\.db\?table=v' is not allowed: give a file whose name ends"
    ):
        loaded(tmp_path, 'tables = { v = "sqlite:shop.db?table=v" }\nsql = "SELECT * FROM v"')


def test_a_mark_that_begins_a_text_of_postgresql_is_part_of_it(postgres) -> None:
    psycopg = pytest.importorskip("psycopg")
    from tests.databases import postgres_address

    with psycopg.connect(postgres_address(postgres)) as connection:
        connection.execute("DROP TABLE IF EXISTS marked")
        connection.execute("CREATE TABLE marked (id TEXT)")
        connection.execute("INSERT INTO marked VALUES (%s), (%s)", ["\ufeffc0", "c1"])
    found = TableSource(kind="postgres", where=postgres_address(postgres), table="marked").load()
    assert found.column("id").to_pylist() == ["\ufeffc0", "c1"]


# --- objects ----------------------------------------------------------------------------------------------------------


def test_times_of_day_with_a_zone_are_refused() -> None:
    east = datetime.timezone(datetime.timedelta(hours=2))
    times = [datetime.time(10, tzinfo=datetime.UTC), datetime.time(10, tzinfo=east)]
    for value in ({"x": times}, pd.DataFrame({"x": times}), {"x": np.array(times, object)}):
        with pytest.raises(BadInput, match="column x: holds times of day with a time zone"):
            table_of(value, "shop")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1, "2", 3.5], "holds values of several types .*float, int, str.*; make them alike"),
        ([True, 1, 0], "holds values of several types .*bool, int.*; make them alike"),
        ([2**70, 1], "whole numbers beyond 64 bits as texts"),
        (np.array([1 + 2j]), "give real and imaginary parts"),
        (np.array([1], np.longdouble), "give float64"),
        (torch.tensor([1.0], dtype=torch.bfloat16), "give float32"),
    ],
)
def test_a_column_that_arrow_does_not_take_is_named_with_a_remedy(values: Any, told: str) -> None:
    with pytest.raises(BadInput, match=rf"shop: .*: column x: .*{told}") as refused:
        table_of({"y": [0] * len(values), "x": values}, "shop")
    assert "\n" not in str(refused.value)
    with pytest.raises(BadInput, match=r"column x: .*to_dense"):
        table_of(pd.DataFrame({"x": pd.arrays.SparseArray([0, 0, 1.5])}), "shop")
    if not isinstance(values, torch.Tensor):
        with pytest.raises(BadInput, match=rf"column x: .*{told}"):
            table_of(pd.DataFrame({"x": pd.Series(values, dtype=object if isinstance(values, list) else None)}), "shop")


# --- keys of joins ----------------------------------------------------------------------------------------------------


def test_keys_with_blanks_or_other_accents_are_told_and_join_by_the_rule(tmp_path: Path) -> None:
    names = ["a", "b", "Z\u00fcrich", "Bern"]
    other = ["a  ", "b", "Zu\u0308rich", "Bern"]
    pq.write_table(pa.table({"id": names, "y": [1.0, 2.0, 3.0, 4.0]}), tmp_path / "bank.parquet")
    pq.write_table(pa.table({"id": other, "x": [1.0, 2.0, 3.0, 5.0]}), tmp_path / "shop.parquet")
    path = tmp_path / "parties.toml"
    text = (
        '[task]\nlayout = "relational"\ntype = "regression"\nlabel = "bank.y"\n'
        'sql = "SELECT bank.y, shop.x FROM bank JOIN shop ON bank.id = shop.id"\n'
        '[parties.bank]\npath = "bank.parquet"\nRULE\n[parties.shop]\npath = "shop.parquet"\nRULE\n'
    )
    path.write_text(text.replace("RULE", ""))
    found = [one for one in check_data(path) if "blanks at their ends" in one.text]
    assert [(one.party, one.table, one.suggestion) for one in found] == [
        ("shop", "parties.shop", 'id_rules = ["nfkc"]')
    ]
    assert "2 keys of id, such as 'a  '" in found[0].text
    path.write_text(text.replace("RULE", found[0].suggestion))
    assert not [one for one in check_data(path) if "blanks at their ends" in one.text]
    keys = [pq.read_table(tmp_path / f"{name}.parquet").select(["id"]) for name in ("bank", "shop")]
    assert compared_keys(keys[0], ["id"], ("nfkc",), "") == compared_keys(keys[1], ["id"], ("nfkc",), "")


# --- clients that do not see one another's rows -----------------------------------------------------------------------


def test_lines_for_texts_and_labels_of_clients_make_a_description_that_loads(tmp_path: Path) -> None:
    for name, cities in (("north", ("Bonn", "Kiel")), ("south", ("Bonn", "Ulm"))):
        rows = "".join(f"{20 + i},{cities[i % 2]},{('yes', 'no')[i % 2]}\n" for i in range(40))
        (tmp_path / f"{name}.csv").write_text(f"age,city,churn\n{rows}")
    path = tmp_path / "parties.toml"
    task = '[task]\ntype = "binary"\nlayout = "horizontal"\n{classes}\n'
    parties = "".join(f'[parties.{name}]\npath = "{name}.csv"\nlabel = "churn"\n' for name in ("north", "south"))
    path.write_text(f"{task.format(classes='')}{parties}")
    lines = edits_of(check_data(path))
    classes, columns = (
        'classes = ["no", "yes"]',
        'city = { type = "categorical", categories = ["Bonn", "Kiel", "Ulm"] }',
    )
    assert lines == f"[task]\n{classes}\n\n[task.columns]\n{columns}"
    path.write_text(f"{task.format(classes=classes)}{parties}[task.columns]\n{columns}\n")
    assert check_data(path) == []

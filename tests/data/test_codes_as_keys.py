"""Codes that look like numbers keep their text as keys, or are refused with two of them: 1.10 and 1.1, 007 and 7."""

from __future__ import annotations

import decimal
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from fedactors.data.databases import SourceError, TableSource, in_memory
from fedactors.data.join import EmptyJoinError
from fedactors.data.query import KeyTypeError
from fedactors.data.values import CsvFormat
from tests.data.test_exact_queries import joined

SQL = "SELECT a.row, a.x, b.row FROM a JOIN b ON a.k = b.k"
CODES = {
    "fractions": ["1.10", "1.1"],
    "zeros in front": ["007", "7"],
    "exponents": ["1e3", "1000"],
    "signs": ["+5", "5"],
    "zeros with signs": ["-0", "0"],
}


def csv_of(path, keys, **more):
    columns = {"row": range(len(keys)), "k": keys, "x": [0.5 + row for row in range(len(keys))], **more}
    lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return TableSource(kind="csv", where=str(path), table=path.stem)


def memory_of(keys):
    return in_memory(pa.table({"row": range(len(keys)), "k": keys, "x": [0.5 + row for row in range(len(keys))]}))


def on(one, other):
    return SQL.replace("a.k = b.k", f"{one} = {other}")


@pytest.mark.parametrize("kind", CODES)
def test_codes_of_two_files_are_joined_by_their_text(kind, tmp_path):
    codes = CODES[kind]
    a, b = csv_of(tmp_path / "a.csv", codes), csv_of(tmp_path / "b.csv", codes[::-1])
    assert joined(SQL, "a.x", a=a, b=b)[0] == 2
    as_texts = on("CAST(a.k AS VARCHAR)", "CAST(b.k AS VARCHAR)")
    b = csv_of(tmp_path / "b.csv", codes[:1])
    assert joined(as_texts, "a.x", a=a, b=b)[0] == 1
    a = csv_of(tmp_path / "a.csv", codes[1:])
    with pytest.raises(EmptyJoinError, match="compared as texts"):
        joined(as_texts, "a.x", a=a, b=b)


@pytest.mark.parametrize("kind", ["zeros in front", "signs", "zeros with signs"])
def test_whole_codes_that_are_one_number_are_no_key_beside_numbers(kind, tmp_path):
    codes = CODES[kind]
    a, number = csv_of(tmp_path / "a.csv", codes), int(codes[0])
    b = memory_of([number, number + 1])
    for key in ("a.k", "COALESCE(a.k, 0)"):
        with pytest.raises(SourceError) as caught:
            joined(on(key, "b.k"), "a.x", a=a, b=b)
        assert f"column k: {codes[0]!r} and {codes[1]!r} are one number" in str(caught.value)
    as_number = str(caught.value).partition("where they are one key, write ")[2].partition(",")[0]
    assert joined(on(as_number.replace("(k", "(a.k"), "b.k"), "a.x", a=a, b=b)[0] == 2
    assert joined(on("CAST(a.k AS VARCHAR)", "CAST(b.k AS VARCHAR)"), "a.x", a=a, b=b)[0] == 1


@pytest.mark.parametrize("keys", [["1.10", "1.1"], ["1e3", "1000"], ["+1.5", "2.5"], ["01.5", "2.5"], ["1.00", "1.5"]])
def test_numbers_that_no_program_writes_are_no_key_beside_numbers(keys, tmp_path):
    a, b = csv_of(tmp_path / "a.csv", keys), memory_of([float(keys[0]), 99.5])
    with pytest.raises(
        KeyTypeError, match=r"a\.k is code, b\.k is float; the file of a\.k has numbers as no"
    ) as caught:
        joined(SQL, "a.x", a=a, b=b)
    with pytest.raises(KeyTypeError):
        joined(on("COALESCE(a.k, 0)", "b.k"), "a.x", a=a, b=b)
    advised = str(caught.value).partition("write ")[2].split(", or ")
    matched = sum(float(key) == float(keys[0]) for key in keys)
    assert joined(SQL.replace("a.k = b.k", advised[0]), "a.x", a=a, b=b)[0] == matched
    b = csv_of(tmp_path / "b.csv", [keys[0], "99.25"])
    assert joined(SQL.replace("a.k = b.k", advised[1]), "a.x", a=a, b=b)[0] == 1


def test_fractions_are_one_number_however_programs_write_them(tmp_path):
    a = csv_of(tmp_path / "a.csv", ["1", "2.5", "1e+15", ".75"])  # as R and SAS do
    b = csv_of(tmp_path / "b.csv", ["1.0", "2.5", "1000000000000000.0", "0.75"])
    assert joined(SQL, "a.x", a=a, b=b)[0] == 4
    with pytest.raises(SourceError, match=r"'0\.5' and '\.5' are one number"):
        joined(SQL, "a.x", a=csv_of(tmp_path / "a.csv", ["0.5", ".5"]), b=memory_of([0.5, 1.5]))


def test_numbers_of_a_file_are_those_of_a_database(tmp_path):
    whole = csv_of(tmp_path / "a.csv", ["7", "-3", "9007199254740993"])
    for keys in ([7, -3, 9007199254740993], [decimal.Decimal(one) for one in (7, -3, 9007199254740993)]):
        assert joined(SQL, "a.x", a=whole, b=memory_of(keys))[0] == 3
    # pandas writes whole numbers as floats where one is missing
    floats = csv_of(tmp_path / "c.csv", ["7.0", "", "8.0"])
    assert joined(SQL, "a.x", a=floats, b=csv_of(tmp_path / "b.csv", ["7", "8", "9"]))[0] == 2
    assert joined(SQL, "a.x", a=floats, b=memory_of([7, 8, 9]))[0] == 2
    fractions = csv_of(tmp_path / "d.csv", ["0.50", "1.25"])
    assert joined(SQL, "a.x", a=fractions, b=memory_of([0.5, 1.25]))[0] == 2
    assert joined(SQL, "a.x", a=fractions, b=memory_of([decimal.Decimal("0.500")]))[0] == 1


def test_codes_among_texts_and_decimal_commas_keep_their_digits(tmp_path):
    text = "row;k;x\n0;1,10;0,5\n1;1,1;1,5\n"
    (tmp_path / "a.csv").write_text(text)
    a = TableSource(kind="csv", where=str(tmp_path / "a.csv"), csv=CsvFormat(separator=";", decimal=","))
    b = csv_of(tmp_path / "b.csv", ["1.10", "E1"])
    assert joined(SQL, "a.x", a=a, b=b)[0] == 1
    assert a.load(["row"], "k = '1.10'")["row"].to_pylist() == [0]
    assert a.load(["row"], "k = 1.1")["row"].to_pylist() == [0, 1]
    assert a.load(["row"], "k LIKE '%0'")["row"].to_pylist() == [0]


def view_over(source, sql):
    return TableSource(kind="view", table="v", sql=sql, tables=(replace(source, label="t"),))


VIEWS: dict[str, Any] = {
    "SELECT k FROM t": ["1.10", "1.1"],
    "SELECT k FROM t GROUP BY k": ["1.10", "1.1"],
    "SELECT DISTINCT k FROM t": ["1.10", "1.1"],
    "SELECT a.k FROM t AS a JOIN t AS b ON a.k = b.k": ["1.10", "1.1"],
    "SELECT a.k FROM t AS a JOIN t AS b USING (k)": ["1.10", "1.1"],
    "SELECT CAST(k AS VARCHAR) AS k FROM t": ["1.10", "1.1"],
    "SELECT CAST(k AS DOUBLE) AS k FROM t": [1.1, 1.1],
    "SELECT MAX(k) + 1 AS k FROM t": [2.1],
    "SELECT CAST(k AS VARCHAR) AS k, MAX(CAST(k AS DOUBLE)) AS m FROM t GROUP BY CAST(k AS VARCHAR)": ["1.10", "1.1"],
    "SELECT k, MAX(k) AS m FROM t GROUP BY k": None,
}


@pytest.mark.parametrize("sql", VIEWS)
def test_codes_in_a_view(sql, tmp_path):
    view = view_over(csv_of(tmp_path / "t.csv", ["1.10", "1.1"]), sql)
    if VIEWS[sql] is None:
        with pytest.raises(
            SourceError, match=r"column k holds codes such as '1.10', and the view computes with it and"
        ):
            view.load()
        return
    assert sorted(map(str, view.load()["k"].to_pylist())) == sorted(map(str, VIEWS[sql]))

"""What programs export: one value in several forms, and some as another one."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from fedactors.data.checks import check_data
from fedactors.data.columns import ColumnRule, encode, fit
from fedactors.data.databases import SourceError, TableSource, in_memory
from fedactors.data.description import load_description
from fedactors.data.readers import read_columns
from fedactors.data.sources import FileSource
from fedactors.data.values import Column, CsvFormat, row_names
from fedactors.errors import BadInput
from tests.data.test_cases import described, lines
from tests.data.test_exact_queries import joined

SQL = "SELECT a.row, a.x, b.row FROM a JOIN b ON a.k = b.k"


def source_of(path, **more):
    return FileSource(party="shop", path=str(path), task="binary", num_classes=2, id_column="id", **more)


def csv_at(path, text):
    path.write_text(text)
    return TableSource(kind="csv", where=str(path), table=path.stem)


def book_at(path, rows, errors=()):
    book = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        book.active.append(row)
    for cell, error in errors:
        book.active[cell].value, book.active[cell].data_type = error, "e"
    book.save(path)
    return path


# --- names ------------------------------------------------------------------------------------------------------------


def test_names_that_a_workbook_has_rounded_are_refused(tmp_path):
    rounded = r"holds '1.23457E\+11', as a workbook shows and saves a long number, rounded"
    with pytest.raises(BadInput, match=rounded):
        row_names([Column("id", pa.array(["1.23457E+11", "5"]))], (), "shop: a.csv")
    assert row_names([Column("id", pa.array(["1e+05", "100001"]))], (), "") == ["100000", "100001"]  # of R
    a = csv_at(tmp_path / "a.csv", "row,k,x\n0,1.23457E+11,1\n1,5,2\n")
    for b in (
        csv_at(tmp_path / "b.csv", "row,k\n0,1.23457E+11\n"),
        in_memory(pa.table({"row": [0], "k": [123457 * 10**6]})),
    ):
        for on in ("a.k = b.k", "CAST(a.k AS VARCHAR) = CAST(b.k AS VARCHAR)"):
            with pytest.raises(SourceError, match=rounded):
                joined(SQL.replace("a.k = b.k", on), "a.x", a=a, b=b)


@pytest.mark.parametrize("digits", [37, 38, 39, 41, 60])
def test_numbers_of_any_length_are_no_others(digits, tmp_path):
    key = "9" * digits
    a = csv_at(tmp_path / "a.csv", f"row,k,x\n0,{key},1\n1,5,2\n")
    found = a.load(["k"])["k"].to_pylist()
    assert list(map(str, found)) == [key, "5"]
    assert joined(SQL, "a.x", a=a, b=csv_at(tmp_path / "b.csv", f"row,k\n0,{key}\n1,6\n"))[0] == 1


# --- missing values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["(null)", "[NULL]", "\\N", "<NA>", "NaT"])
def test_what_databases_and_pandas_write_for_null_is_missing(text, tmp_path):
    (tmp_path / "a.csv").write_text(f"id,c\na,u\nb,{text}\nc,v\n")
    with pytest.raises(BadInput, match=r"column c: 1 values are missing \(first in row 2\)"):
        source_of(tmp_path / "a.csv", categorical=("c",)).load()
    block = source_of(tmp_path / "a.csv", categorical=("c",), csv=CsvFormat(null=())).load()
    assert f"c={text}" in block.feature_names
    a = csv_at(tmp_path / "t.csv", f"row,k,x\n0,{text},1\n1,{text},2\n2,k,3\n")
    b = csv_at(tmp_path / "b.csv", f"row,k\n0,{text}\n1,k\n")
    assert joined(SQL, "a.x", a=a, b=b)[0] == 1


@pytest.mark.parametrize("ending", ["parquet", "xlsx", "feather"])
def test_the_advice_for_texts_among_numbers_works_in_files_that_are_no_csv(ending, tmp_path):
    count = 60
    texts = ["?" if row == 7 else f"{row},5" for row in range(count)]
    table = pa.table({"id": [f"a{row}" for row in range(count)], "v": texts})
    path = tmp_path / f"shop.{ending}"
    if ending == "xlsx":
        book_at(path, [table.column_names, *map(list, zip(*table.to_pydict().values(), strict=True))])
    else:
        writers = {"parquet": pa.parquet.write_table, "feather": pa.feather.write_feather}
        writers[ending](table, str(path))
    rules = '[parties.shop.columns]\nv = { missing = "median" }\n'
    described(tmp_path, "unused.csv", text=lines(["1"] * count), rules="")
    text = (tmp_path / "parties.toml").read_text().replace("unused.csv", path.name)
    (tmp_path / "parties.toml").write_text(text + 'csv = { null = ["?"], decimal = "," }\n' + rules)
    block = load_description(tmp_path / "parties.toml").part("shop").load()
    assert block.features[:3, 0].tolist() == [0.5, 1.5, 2.5]
    (tmp_path / "parties.toml").write_text(text + 'csv = { separator = ";" }\n')
    with pytest.raises(BadInput, match="is no CSV file, of whose texts null, decimal, thousands alone count"):
        load_description(tmp_path / "parties.toml")


def test_errors_of_a_workbook_are_no_values(tmp_path):
    rows = [["id", "x", "c"], ["a", 1.5, "u"], ["b", 2, "v"], ["c", 3, "NA"]]
    path = book_at(tmp_path / "a.xlsx", rows, [("B3", "#DIV/0!"), ("C3", "#N/A")])
    rules = (("x", ColumnRule(missing="constant", fill=7)), ("c", ColumnRule(type="categorical", missing="indicator")))
    block = source_of(path, rules=rules).load()
    assert block.features[:, 0].tolist() == [1.5, 7.0, 3.0]
    assert block.feature_names == ("x", "c=<missing>", "c=u")


@pytest.mark.parametrize("text", ["T", "no", "WAHR", "#VALUE!"])
def test_texts_that_mean_something_are_not_advised_as_missing(text):
    with pytest.raises(BadInput) as caught:
        Column("v", pa.array([text, "1"])).numbers("shop: a.csv")
    advised = "its two texts are categories" if text.isalpha() else 'null = ["#VALUE!"]'
    assert advised in str(caught.value)
    assert ("null" in str(caught.value)) == (not text.isalpha())


# --- categories -------------------------------------------------------------------------------------------------------


def categories(path, texts, trained=None, **rule):
    path.write_text("id,c\n" + "".join(f"r{row},{text}\n" for row, text in enumerate(texts)))
    rules = (("c", ColumnRule(type="categorical", **rule)),)
    return source_of(path, rules=rules).load(None if trained is None else trained.columns)


def test_whole_numbers_are_one_category_however_pandas_writes_them(tmp_path):
    path = tmp_path / "a.csv"
    whole = categories(path, ["1", "2", "3"])
    floats = categories(path, ["1.0", "2.0", "3.0"])
    assert whole.feature_names == floats.feature_names == ("c=1", "c=2", "c=3")
    for trained in (whole, floats):
        for texts in (["2.0", "1.0"], ["2", "1"], ["2", "1.0"], ["2.00"]):
            found = categories(path, texts, trained).features
            assert found.argmax(axis=1).tolist() == [1, 0][: len(texts)]
            assert (found.sum(axis=1) == 1).all()
    for listed in (("1", "2"), ("1.0", "2.0")):
        for texts in (["2.0", "1.0"], ["2", "1"]):
            found = categories(path, texts, categories=listed)
            assert found.features.argmax(axis=1).tolist() == [1, 0]
    assert categories(path, ["2.5", "1.0"], whole).features.tolist() == [[0, 0, 0], [1, 0, 0]]


def test_codes_are_categories_as_they_stand_there(tmp_path):
    path = tmp_path / "a.csv"
    trained = categories(path, ["1", "1.0", "E1.0"])
    assert trained.feature_names == ("c=1", "c=1.0", "c=E1.0")
    assert categories(path, ["1.00"], trained).features.tolist() == [[0, 0, 0]]
    assert categories(path, ["01", "1", "1.0"]).feature_names == ("c=01", "c=1", "c=1.0")


# --- what a check says ------------------------------------------------------------------------------------------------


def test_points_that_may_stand_between_thousands_and_a_row_of_totals_are_told(tmp_path):
    values = [f"{1 + row}.{row:03d}" for row in range(60)]
    text = lines(values).replace(",", ";") + "Total;99.000\n"
    path = described(tmp_path, "s.csv", text=text, rules='csv = { separator = ";" }\n')
    said = [finding.text for finding in check_data(path) if finding.party == "shop"]
    assert any("all have three digits behind the point" in one for one in said)
    assert any("the last row is called 'Total'" in one for one in said)
    (tmp_path / "s.csv").write_text(text.replace("99.000", "99.5").replace("Total", "zz"))
    said = [finding.text for finding in check_data(path) if finding.party == "shop"]
    assert not any("three digits" in one or "called" in one for one in said)


GERMAN = CsvFormat(separator=";", decimal=",")
DAYS = [datetime.datetime(2024, 1, 5), datetime.datetime(1960, 2, 1)]
SAME_NAMES = {
    "commas beside a missing value": (["7,0", None, "8,0"], GERMAN, ["7", "", "8"]),
    "codes with a comma": (["7,0", "7,5"], GERMAN, ["7,0", "7,5"]),
    "codes with a point": (["7.0", "8.0"], GERMAN, ["7.0", "8.0"]),
    "dates": (pa.array(DAYS, pa.date32()), None, ["2024-01-05", "1960-02-01"]),
    "moments": (pa.array(DAYS, pa.timestamp("ns")), None, ["2024-01-05", "1960-02-01"]),
    "moments as text": (["2024-01-05 00:00:00", "1960-02-01T00:00"], None, ["2024-01-05", "1960-02-01"]),
    "other moments": (["2024-01-05 00:00:01", "24-01-05 00:00"], None, ["2024-01-05 00:00:01", "24-01-05 00:00"]),
}


@pytest.mark.parametrize("kind", SAME_NAMES)
def test_names_are_the_same_whatever_program_has_written_them(kind):
    values, how, right = SAME_NAMES[kind]
    assert row_names([Column("id", values, how)], (), "shop") == right


def test_dates_of_a_workbook_are_called_as_elsewhere(tmp_path):
    path = book_at(tmp_path / "a.xlsx", [["id", "v"], [DAYS[0], DAYS[0]], [DAYS[1], DAYS[1].replace(hour=5)]])
    found = read_columns(path, "shop", wanted=None)
    assert found["id"].names("shop").to_pylist() == found["id"].texts() == ["2024-01-05", "1960-02-01"]
    assert found["v"].texts() == ["2024-01-05 00:00:00", "1960-02-01 05:00:00"]


ALIKE: dict[str, Any] = {
    "codes": [
        (["7", "8", "7"], None),
        (["7,0", "8,0", "7,0"], GERMAN),
        ([7.0, 8.0, 7.0], None),
        (["7.0", "8", "7"], None),
    ],
    "truths": [(["True", "False", "True"], None), (["true", "false", "true"], None), ([True, False, True], None)],
}


@pytest.mark.parametrize("kind", ALIKE)
def test_a_category_is_the_same_whatever_program_has_written_it(kind):
    rule = {"v": ColumnRule(type="categorical")}
    for values, how in ALIKE[kind]:
        trained = fit({"v": Column("v", values, how)}, rule, "shop")
        for others, how_others in ALIKE[kind]:
            found = encode({"v": Column("v", others, how_others)}, trained, "shop", new=True)
            assert found.features[:, 0].tolist() in ([1, 0, 1], [0, 1, 0])
            assert found.features.sum() == 3


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "iso-8859-15", "cp1251"])
@pytest.mark.parametrize("begins", ["", "\ufeff"])
def test_a_file_in_utf_8_is_read_in_no_other_encoding(tmp_path, encoding, begins):
    path = tmp_path / "a.csv"
    for text in ("id,v\nMüller,1\nWeiß,2\n", "id,v\nŁódź,1\n"):
        path.write_text(begins + text, encoding="utf-8")
        with pytest.raises(BadInput, match=rf"shop: .*is written in UTF-8, .* and {encoding} would make .*; leave its"):
            source_of(path, csv=CsvFormat(encoding=encoding)).load()
        assert source_of(path).load().ids[0] in ("Müller", "Łódź")
    path.write_text("id,v\n1,2\n", encoding="utf-8")
    assert source_of(path, csv=CsvFormat(encoding=encoding)).load().ids.tolist() == ["1"]


def test_a_blank_row_of_a_workbook_of_one_column_is_refused(tmp_path):
    for rows in ([["id"], [1], [None], [2]], [["id"], [None], [2]]):
        path = book_at(tmp_path / "a.xlsx", rows)
        with pytest.raises(BadInput, match=r"row \d is blank; in a workbook of one column .*: write NA there"):
            read_columns(path, "shop", wanted=None)
    advised = read_columns(book_at(tmp_path / "a.xlsx", [["id"], [1], ["NA"], [2], [None]]), "shop", wanted=None)
    assert advised["id"].texts() == ["1", None, "2"]
    two = read_columns(book_at(tmp_path / "a.xlsx", [["id", "v"], [1, 2], [None, None], [2, 3]]), "shop", wanted=None)
    assert two["id"].texts() == ["1", "2"]


def test_a_folders_name_changes_no_column_and_loses_none(tmp_path):
    """DuckDB takes ``age=30`` for a column, which would stand in place of the file's."""
    for age in (30, 40):
        (tmp_path / f"age={age}").mkdir()
        pyarrow.parquet.write_table(pa.table({"id": [age], "age": [5]}), tmp_path / f"age={age}" / "a.parquet")
    every = tmp_path / "*" / "*.parquet"
    for path in (tmp_path / "age=30" / "a.parquet", every):
        table = TableSource(kind="parquet", where=str(path), table="t")
        assert table.describe() == {"id": "integer", "age": "integer"}
        assert set(table.load(where="age < 30")["age"].to_pylist()) == {5}
    for age in (30, 40):
        pyarrow.parquet.write_table(pa.table({"id": [age]}), tmp_path / f"age={age}" / "a.parquet")
    assert TableSource(kind="parquet", where=str(tmp_path / "age=30" / "a.parquet")).load().to_pydict() == {"id": [30]}
    lost = r"column age: stands in the names of folders, such as age=30, and in no file"
    with pytest.raises(BadInput, match=rf"^t: .*{lost}"):
        TableSource(kind="parquet", where=str(every), table="t").load()
    with pytest.raises(BadInput, match=rf"^shop: .*{lost}"):
        read_columns(every, "shop", wanted=None)


def test_folders_in_a_folder_are_refused_at_an_address_too(tmp_path):
    (tmp_path / "parts" / "more").mkdir(parents=True)
    for name in ("a.csv", "more/b.csv"):
        (tmp_path / "parts" / name).write_text("id,v\n1,2\n")
    for path in (tmp_path / "parts", f"file://{tmp_path}/parts"):
        with pytest.raises(BadInput, match=r"more is a folder: the files of a table lie side by side"):
            read_columns(Path(path), "shop", wanted=None)

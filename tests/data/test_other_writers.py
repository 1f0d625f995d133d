"""Files and objects as other programs write them: each value is the source's own, or is refused with a remedy."""

from __future__ import annotations

import datetime
import decimal
import os
import subprocess
import sys
import time

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedactors
from fedactors.data.columns import ColumnRule
from fedactors.data.databases import SourceError, TableSource, in_memory
from fedactors.data.description import load_description
from fedactors.data.objects import table_of
from fedactors.data.query import SchemaMismatchError, make_plan, parse_query
from fedactors.data.sources import FileSource
from fedactors.data.values import Column, CsvFormat, Inexact
from fedactors.errors import BadInput
from tests.databases import fill_postgres

DATES = (("x", ColumnRule(type="datetime", parts=("days",))),)
FAR = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31), datetime.datetime(1600, 1, 1)]


def source(path, **given):
    return FileSource(**{"party": "bank", "path": str(path), "task": "binary", "num_classes": 2, **given})


def csv(tmp_path, content, **given):
    (tmp_path / "bank.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    return source(tmp_path / "bank.csv", **given)


def parquet(tmp_path, *, int96=False, **columns):
    path = tmp_path / "bank.parquet"
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=int96)
    return path


# --- dates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_moments_of_spark_and_impala_are_those_that_were_written(tmp_path, monkeypatch, large):
    path = parquet(tmp_path, int96=True, x=pa.array(FAR, pa.timestamp("us")), z=[0, 1, 2])
    if large:
        monkeypatch.setattr("fedactors.data.readers.is_large", lambda size: True)
    block = source(path, id_column="x", features=("z",)).load()
    assert block.ids.tolist() == [f"{day:%Y-%m-%d}".rjust(10, "0") for day in FAR]
    days = source(path, features=("x",), rules=DATES).load().features[:, 0]
    assert days.tolist() == [-719162, 2932896, -135140]
    assert TableSource(kind="parquet", where=str(path)).load(["x"]).column("x").to_pylist() == FAR


@pytest.mark.parametrize("text", ["1712011500123", "17120115001", "171201150012345", "2024-01-31912:30"])
def test_digits_are_no_date_of_iso_8601_unless_they_are_eight(tmp_path, text):
    with pytest.raises(BadInput, match=rf"column x: '{text}' in row 1 is no date \(ISO 8601\)"):
        csv(tmp_path, f"x\n{text}\n{text}\n", rules=DATES).load()
    whole = csv(tmp_path, "x\n20240131\n20240201T1200\n", rules=DATES).load()
    assert whole.features[:, 0].tolist() == [19753, 19754.5]


INFINITE = {
    "date": "SELECT UNNEST(['infinity', '2024-01-01'])::DATE AS x",
    "moment": "SELECT UNNEST(['-infinity', '2024-01-01'])::TIMESTAMP AS x",
    "moment of a zone": "SELECT UNNEST(['infinity', '2024-01-01'])::TIMESTAMPTZ AS x",
}


@pytest.mark.parametrize("kind", INFINITE)
def test_infinite_dates_of_a_database_are_none(tmp_path, kind):
    with duckdb.connect(tmp_path / "a.duckdb") as base:
        base.execute(f"CREATE TABLE t AS {INFINITE[kind]}")
    values = TableSource(kind="duckdb", where=str(tmp_path / "a.duckdb"), table="t").load().column("x")
    column = Column("x", values)
    moments, wrong = column.moments("")
    assert list(wrong) == [0]
    assert np.isnat(moments).tolist() == [True, False]
    for read in (column.names, column.coded, column.numbers):
        with pytest.raises(BadInput, match="column x: holds dates"):
            read("bank")
    path = parquet(tmp_path, x=values, z=[1, 2])
    with pytest.raises(BadInput, match=r"in row 1 is no date .*: infinite, or beyond the years of any calendar; write"):
        source(path, features=("x",), rules=DATES).load()
    written = parquet(tmp_path, x=pa.array([None, FAR[1]], pa.timestamp("us")), z=[1, 2])
    assert source(written, rules=(("x", ColumnRule(type="datetime", missing="drop")),)).load().ids.tolist() == [1]


def test_seconds_beyond_microseconds_are_no_other_dates(tmp_path):
    path = parquet(tmp_path, x=pa.array([10**17, 0]).cast(pa.timestamp("ms")), z=[1, 2])
    with pytest.raises(BadInput, match="in row 1 is no date"):
        source(path, features=("x",), rules=DATES).load()
    with pytest.raises(BadInput, match="column x: holds dates such as <value out of range"):
        source(path, features=("x",)).load()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_filter_on_moments_does_not_depend_on_the_machine(tmp_path, monkeypatch, zone):
    with duckdb.connect(tmp_path / "a.duckdb") as base:
        base.execute("SET TimeZone = 'UTC'; CREATE TABLE t AS SELECT UNNEST([TIMESTAMPTZ '2024-01-31 10:00:00+00',"
                     " TIMESTAMPTZ '2024-01-31 03:00:00+00']) AS x")  # fmt: skip
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        table = TableSource(kind="duckdb", where=str(tmp_path / "a.duckdb"), table="t")
        found = [table.load(["x"], one).num_rows for one in ("x >= '2024-01-31 09:30:00'", "x::DATE = '2024-01-31'")]
        (text,) = table.load([], "x > '2024-01-31 09:30:00'", ["CAST(x AS VARCHAR)"]).to_pydict().values()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (found, text, os.environ.get("TZ")) == ([1, 2], ["2024-01-31 10:00:00+00"], os.environ.get("TZ"))


def test_times_of_day_with_a_zone_keep_it(tmp_path):
    with duckdb.connect(tmp_path / "a.duckdb") as base:
        base.execute("CREATE TABLE t AS SELECT UNNEST(['12:30:00+02', '12:30:00+00'])::TIMETZ AS x")
    found = TableSource(kind="duckdb", where=str(tmp_path / "a.duckdb"), table="t").load()
    assert found.to_pydict() == {"x": ["12:30:00+02", "12:30:00+00"]}


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_ids_written_as_floats_in_some_rows_are_whole_numbers(tmp_path):
    given = {"id_column": "id", "features": ("x",)}
    assert csv(tmp_path, "id,x\n17.0,1\n18,2\n-3,3\n0.0,4\n", **given).load().ids.tolist() == ["17", "18", "-3", "0"]
    long = csv(tmp_path, f"id,x\n17.0,1\n{2**60 + 1},2\n", **given).load()
    assert long.ids.tolist() == ["17", str(2**60 + 1)]
    for codes in (["17.0", "018"], ["1.0", "1.10"], ["17.0", "A7"]):  # which are no numbers
        text = "id,x\n" + "".join(f"{one},1\n" for one in codes)
        assert csv(tmp_path, text, **given).load().ids.tolist() == codes


def test_byte_order_marks_are_no_part_of_a_name(tmp_path):
    mark, given = b"\xef\xbb\xbf", {"id_column": "id"}
    assert csv(tmp_path, mark * 2 + b"id,x\na,1\nb,2\n", **given).load().ids.tolist() == ["a", "b"]
    with pytest.raises(BadInput, match=r"bank.csv: line 3 begins with a byte order mark .* by a pattern"):
        csv(tmp_path, mark + b"id,x\na,1\n" + mark + b"b,2\n", **given).load()
    with pytest.raises(BadInput, match=r'csv = . encoding = "utf-32" .'):
        csv(tmp_path, "id,x\nä,1\nb,2\n".encode("utf-32"), **given).load()
    advised = csv(tmp_path, "id,x\nä,1\nb,2\n".encode("utf-32"), csv=CsvFormat(encoding="utf-32"), **given)
    assert advised.load().ids.tolist() == ["ä", "b"]


# --- tables of a query ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("x", "X"), ("x", "x")])
def test_columns_that_are_one_to_sql_are_refused(tmp_path, names):
    table = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4])], names=list(names))
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text(f"{','.join(names)}\n1,3\n2,4\n")
    sources = [TableSource(kind=kind, where=str(tmp_path / f"a.{kind}")) for kind in ("parquet", "csv")]
    for one in [*sources, in_memory(table)]:
        with pytest.raises(BadInput, match=r"are one name to SQL; rename|columns of the same name: 'x'"):
            one.load()


def test_columns_that_are_one_to_sql_are_refused_in_postgresql(postgres):
    named = fill_postgres(postgres, pa.table({"x": [1], "X": [2]}), "alike", '(x INTEGER, "X" INTEGER)')
    with pytest.raises(SourceError, match="columns 'x' and 'X' are one name to SQL"):
        named.load(["x"])


def test_types_that_duckdb_reads_as_others_are_what_they_are(tmp_path):
    path = parquet(tmp_path, x=pa.array([1, 2], pa.duration("ms")))
    assert TableSource(kind="parquet", where=str(path)).describe() == {"x": "other"}
    exact = [decimal.Decimal("12345678901234567890.25"), decimal.Decimal("1")]
    for kind in (pa.decimal256(60, 2), pa.decimal128(30, 2)):
        found = TableSource(kind="parquet", where=str(parquet(tmp_path, x=pa.array(exact, kind)))).load()
        assert found.column("x").to_pylist() == exact
    too_long = parquet(tmp_path, x=pa.array([decimal.Decimal("1" * 50)], pa.decimal256(60, 0)))
    wide = TableSource(kind="parquet", where=str(too_long))  # of which SQL has no type: exact texts
    assert wide.describe() == {"x": "text"}
    assert wide.load().column("x").to_pylist() == ["1" * 50]
    halves = in_memory(pa.table({"x": pa.array(np.asarray([0.5, 2], np.float16))}))
    assert halves.load().column("x").to_pylist() == [0.5, 2]


def test_decimals_beside_nan_are_not_rounded(postgres):
    def table(*values):
        return fill_postgres(postgres, pa.table({"x": list(values)}), "decimals", "(x NUMERIC)")

    assert table("NaN", "1.50", "-123456789012345").load().column("x").to_pylist()[1:] == [1.5, -123456789012345]
    for value in ("12345678901234567890", "0.1234567890123456", "1234567.890123456"):
        with pytest.raises(SourceError, match="column x holds NaN or infinity beside decimals of more than 15 digits"):
            table("NaN", value).load()
        assert table(None, value).load().column("x").to_pylist() == [None, decimal.Decimal(value)]


KINDS = {
    "boolean": pa.array([True, False]),
    "integer": pa.array([1, 2]),
    "decimal": pa.array([decimal.Decimal("1.25"), decimal.Decimal("2")], pa.decimal128(9, 2)),
    "float": pa.array([0.5, 2.0]),
    "date": pa.array([FAR[1].date()] * 2),
    "timestamp": pa.array(FAR[:2], pa.timestamp("us")),
    "text": pa.array(["a", "7"]),
}
PARTITIONS = """
[task]
type = "binary"
layout = "relational"
label = "r.y"
sql = "SELECT r.z, u.age FROM r JOIN (SELECT * FROM north UNION ALL SELECT * FROM south) u ON r.uid = u.uid"
categorical = ["u.age"]
[parties.r]
path = "r.parquet"
"""


@pytest.mark.parametrize("kinds", [("integer", "float"), ("decimal", "float"), ("integer", "decimal"), ("date", "text"),
                                   ("boolean", "integer"), ("text", "float"), ("date", "timestamp")])  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_partitions_of_several_kinds_are_made_alike_as_is_advised(tmp_path, kinds, turned):
    pq.write_table(pa.table({"uid": [0, 1], "y": [0, 1], "z": [0.5, 1.5]}), tmp_path / "r.parquet")
    held = dict(zip(("south", "north") if turned else ("north", "south"), kinds, strict=True))
    lines = {}
    for name, kind in held.items():
        pq.write_table(pa.table({"uid": [0, 1], "age": KINDS[kind]}), tmp_path / f"{name}.parquet")
        lines[name] = f'path = "{name}.parquet"'

    def planned():
        text = PARTITIONS + "".join(f"[parties.{name}]\n{line}\n" for name, line in lines.items())
        (tmp_path / "parties.toml").write_text(text)
        data = load_description(tmp_path / "parties.toml")
        schemas = {one.table: one.source.describe() for one in data.partitions}
        assert all(one.source.load().num_rows == 2 for one in data.partitions)
        return make_plan(parse_query(data.sql), schemas, "r.y", {"u.age": "one_hot"})

    with pytest.raises(SchemaMismatchError, match="differ in column 'age'") as refused:
        planned()
    wrong = next(name for name in held if f"let who holds {name!r}" in str(refused.value))
    sql = str(refused.value).rpartition("sql = ")[2]
    lines[wrong] = f'tables = {{ written = "{wrong}.parquet" }}\nsql = {sql}'
    assert [one.source for one in planned().table("u").partitions] == ["north", "south"]


# --- objects ----------------------------------------------------------------------------------------------------------


def test_objects_that_arrow_would_take_for_others_are_refused_or_right():
    pandas = pytest.importorskip("pandas")

    def frame(*values):
        return pandas.DataFrame({"x": pandas.Series(values, dtype=object)})

    moment, zoned = datetime.datetime(2024, 1, 1, 5), datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)
    for values in ((moment.date(), moment), (zoned, moment)):
        with pytest.raises(BadInput, match=r"bank: .*column x: holds dates of several kinds"):
            table_of(frame(*values), "bank")
    assert table_of(frame(moment, None, pandas.NaT), "bank").column("x").to_pylist() == [moment, None, None]
    with pytest.raises(
        BadInput, match=r"bank: .*type period, which Arrow holds as others; give texts, as frame\['x'\]"
    ):
        table_of(pandas.DataFrame({"x": pandas.period_range("2024-01", periods=2, freq="M")}), "bank")


def test_masked_values_are_missing():
    masked = np.ma.masked_array([1, 2, 3], [0, 1, 0])
    assert table_of({"x": masked}, "bank").column("x").to_pylist() == [1, None, 3]
    for other in (np.ma.masked_array([[1, 2], [3, 4]], [[0, 1], [0, 0]]), np.ma.masked_array([1.0], [1])):
        with pytest.raises(BadInput, match=r"bank: .*masked values; give columns by name"):
            table_of(other, "bank")
    with pytest.raises(BadInput, match="masked values"):
        fedactors.horizontal([(np.ma.masked_array(np.eye(4), np.eye(4)), np.asarray([0, 1, 0, 1]))])


def test_categories_of_polars_and_short_decimals_are_read():
    polars = pytest.importorskip("polars")
    for kind in (polars.Categorical, polars.Enum(["a", "b"])):
        table = table_of(polars.DataFrame({"x": polars.Series(["a", None, "b"], dtype=kind)}), "bank")
        assert table.column("x").to_pylist() == ["a", None, "b"]
    short = Column("x", pa.array([decimal.Decimal("1.50"), None], pa.decimal32(5, 2)))
    assert (short.texts(), short.numbers("bank")[0]) == (["1.5", None], 1.5)
    swapped = Column("x", np.asarray([2**60, 1], ">i8"))
    assert (swapped.values.type, swapped.texts()) == (pa.int64(), [str(2**60), "1"])
    months = pa.array(pytest.importorskip("pandas").period_range("2024-01", periods=1, freq="M"))
    with pytest.raises(Inexact, match="pandas' type period"):
        Column("x", months)


def test_periods_that_pandas_wrote_are_no_numbers(tmp_path):
    """Also where pandas is not imported, and Arrow sees numbers of months."""
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "p.parquet"
    pandas.DataFrame({"m": pandas.period_range("2024-01", periods=2, freq="M"), "n": [1, 2]}).to_parquet(path)
    script = f"""
import sys
from pathlib import Path
from fedactors.data.databases import TableSource
from fedactors.data.readers import read_columns
for read in (
    lambda: read_columns(Path({str(path)!r}), "bank", wanted=None),
    lambda: TableSource(kind="parquet", where={str(path)!r}, table="t").load(),
):
    try:
        read()
    except Exception as error:
        print(type(error).__name__, error)
assert "pandas" not in sys.modules
print(list(read_columns(Path({str(path)!r}), "bank", wanted=["n"])))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert found.count("column m: holds values of pandas' type period, which are not read") == 2
    assert found.endswith("['n']\n")

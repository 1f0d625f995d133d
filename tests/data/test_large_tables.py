"""Tables larger than memory: the same numbers as of small ones, in blocks of any size, in little memory."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

from fedactors.data import values
from fedactors.data.columns import ColumnRule
from fedactors.data.databases import TableSource
from fedactors.data.join import hash_keys
from fedactors.data.layouts.relational import read_rows
from fedactors.data.party_rows import check_block, measured_fill, measured_scale, prepare, split
from fedactors.data.query import make_plan, parse_query
from fedactors.data.readers import read_arrays
from fedactors.data.sources import FileSource
from fedactors.data.values import Column, CsvFormat, as_type, mapped_table, pieces_of, taken
from fedactors.errors import BadInput
from fedactors.messages.codec import freeze
from scenarios.benchmarks.large_tables import measure

RULES = (
    ("gaps", ColumnRule(missing="median")),
    ("mean", ColumnRule(missing="mean")),
    ("region", ColumnRule(type="categorical", missing="indicator")),
    ("job", ColumnRule(type="text", rare=3)),
    ("since", ColumnRule(type="datetime")),
    ("some", ColumnRule(missing="drop")),
)
Shrink = Callable[[int], None]


@pytest.fixture
def shrink(monkeypatch: pytest.MonkeyPatch) -> Shrink:
    """Return what makes every table large, in blocks of so many rows."""

    def to(rows: int) -> None:
        monkeypatch.setattr(values, "LARGE", 0)
        monkeypatch.setattr(values, "_LEAST_ROWS", rows)
        monkeypatch.setattr(values, "_MOST_ROWS", rows)

    return to


def table(num_rows: int = 700) -> pa.Table:
    rng = np.random.default_rng(1)
    numbers = rng.normal(1000, 200, (4, num_rows))
    return pa.table(
        {
            "id": pa.array([f"c{row:04d}" for row in rng.permutation(num_rows)]),
            "x": numbers[0],
            "gaps": pa.array(numbers[1], mask=rng.random(num_rows) < 0.2),
            "mean": pa.array(numbers[2], mask=rng.random(num_rows) < 0.2),
            "some": pa.array(numbers[3], mask=rng.random(num_rows) < 0.01),
            "count": rng.integers(0, 50, num_rows),
            "region": pa.array(rng.choice(["north", "south", "éast"], num_rows), mask=rng.random(num_rows) < 0.1),
            "job": rng.choice(["Cook", "cook ", "judge", "rare"], num_rows, p=[0.4, 0.3, 0.298, 0.002]),
            "since": (np.datetime64("2000-01-01") + rng.integers(0, 9000, num_rows)).astype("datetime64[D]"),
            "y": rng.choice(["no", "yes"], num_rows),
        }
    )


WRITERS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "csv": pyarrow.csv.write_csv,
    "parquet": lambda rows, path: pyarrow.parquet.write_table(rows, path, row_group_size=97),
    "feather": lambda rows, path: pyarrow.feather.write_feather(
        rows, str(path), compression="uncompressed", chunksize=97
    ),
}


def source(path: Path) -> FileSource:
    facts: dict[str, Any] = {"task": "binary", "num_classes": 2, "rules": RULES}
    return FileSource(party="bank", path=str(path), id_column="id", label="y", **facts)


def test_a_column_called_like_a_field_of_a_struct_is_that_column(tmp_path: Path, shrink: Shrink) -> None:
    values_of = {"s": [{"a": 1}, {"a": 2}], "s.a": [7, 8], "x.1": [5, 6], "x": [3, 4]}
    pa.parquet.write_table(pa.table(values_of), tmp_path / "a.parquet")
    shrink(1)
    for name, right in values_of.items():
        assert read_arrays(tmp_path / "a.parquet", "bank", [name], CsvFormat())[0][name].to_pylist() == right


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("rows", [8, 64, 699])
def test_blocks_of_any_size_give_the_same_numbers(ending: str, rows: int, tmp_path: Path, shrink: Shrink) -> None:
    path = tmp_path / f"rows.{ending}"
    WRITERS[ending](table(), path)
    block = source(path).load()
    order = np.random.default_rng(2).permutation(len(block.ids))
    parts = split(len(order), seed=3)
    prepared = prepare(block, order, parts, "binary")
    shrink(rows)
    large = source(path).load()
    assert large.features.base is not None, "it is in memory"
    np.testing.assert_array_equal(large.features, block.features, strict=True)
    np.testing.assert_array_equal(large.ids, block.ids, strict=True)
    np.testing.assert_array_equal(large.labels, block.labels)
    assert large.rejected
    assert (large.columns, large.rejected) == (block.columns, block.rejected)
    check_block(large, "bank", "binary", 2)
    found = prepare(large, order, parts, "binary")
    assert found.preprocessing.as_dict() == prepared.preprocessing.as_dict()
    for name in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(found, name).features, getattr(prepared, name).features, strict=True)


@pytest.mark.parametrize("width", [1, 2, 7])
def test_means_and_deviations_are_numpys_to_the_bit(width: int, shrink: Shrink) -> None:
    rng = np.random.default_rng(width)
    rows = (rng.normal(size=(5000, width)) * 10.0 ** rng.uniform(-3, 3, width)).astype(np.float32)
    rows[rng.random(rows.shape) < 0.01] = np.nan
    chosen = rng.permutation(5000)[:4000]
    shrink(64)
    fill = measured_fill(rows, ("mean",) * width, chosen)
    mean, deviation = measured_scale(rows, np.zeros(width, np.bool_), fill, chosen)
    filled = np.where(np.isnan(rows[chosen]), fill, rows[chosen])
    np.testing.assert_array_equal(mean, filled.mean(axis=0, dtype=np.float64))
    np.testing.assert_array_equal(deviation, filled.std(axis=0, dtype=np.float64))


def test_a_text_in_the_last_block_is_refused_as_in_a_small_table(tmp_path: Path, shrink: Shrink) -> None:
    rows = table()
    told = []
    for name, wrong in (("x", "twelve"), ("count", "inf"), ("since", "yesterday")):
        column = rows.column(name).cast(pa.string()).to_pylist()
        column[690] = wrong
        changed = rows.set_column(rows.column_names.index(name), name, pa.array(column))
        pyarrow.csv.write_csv(changed, tmp_path / f"{name}.csv")
        with pytest.raises(BadInput, match=wrong) as error:
            source(tmp_path / f"{name}.csv").load()
        told.append(str(error.value))
    assert all("row 691" in one for one in told)
    shrink(64)
    for name, one in zip(("x", "count", "since"), told, strict=True):
        with pytest.raises(BadInput) as error:
            source(tmp_path / f"{name}.csv").load()
        assert str(error.value) == one


def test_columns_of_words_and_of_numbers_are_read_as_a_whole(shrink: Shrink) -> None:
    shrink(8)
    words = Column("w", pa.array(["1", "0"] * 8 + ["true"] * 8), is_large=True)
    blocks = [words.block(rows).numbers("bank") for rows in values.blocks_of(24, 8)]
    np.testing.assert_array_equal(np.concatenate(blocks), words.numbers("bank"))
    mixed = Column("m", pa.array(["true"] * 8 + ["2"] * 8), is_large=True)
    assert sorted(mixed.block(slice(0, 8)).readable_numbers("bank")[1]) == list(range(8)), "words beside numbers"


CSV_FILES: dict[str, tuple[bytes, CsvFormat]] = {
    "mark": (b"\xef\xbb\xbf" + b'h,i\r\n"x, ""y""",1\r\n"two\r\nlines",\r\n' * 9, CsvFormat(names=("a", "b"))),
    "encoded": ("a,b\né,1\nß,2\n".encode("utf-16"), CsvFormat(encoding="utf-16")),
    "skipped": (
        b"of 2024\n# odd\na ; b\n x ; 1\n#\n y ; NA\n",
        CsvFormat(separator=";", skip=1, comment="#", trim=True),
    ),
    "long": (b"a,b\n1,2\n" + b"z" * 2_000_000 + b",3\n4,5\n", CsvFormat()),
}


@pytest.mark.parametrize("name", CSV_FILES)
def test_a_large_csv_file_is_read_as_a_small_one(name: str, tmp_path: Path, shrink: Shrink) -> None:
    content, csv = CSV_FILES[name]
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    small = {one: values.to_pylist() for one, values in read_arrays(path, "bank", None, csv)[0].items()}
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(content))
    shrink(8)
    for where in (path, tmp_path / "rows.csv.gz"):
        large = read_arrays(where, "bank", None, csv)[0]
        assert {one: values.to_pylist() for one, values in large.items()} == small
        assert large["a"].type == pa.large_string(), "it is in memory"


def test_a_large_table_of_sqlite_is_read_as_a_small_one(tmp_path: Path, shrink: Shrink) -> None:
    path = tmp_path / "rows.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (id TEXT, x REAL, count INTEGER, since DATE, good BOOLEAN)")
        rows = [(f"c{n}", n / 7 if n % 5 else None, n, f"2020-01-{1 + n % 28:02}", "tf"[n % 2]) for n in range(3000)]
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
    table = TableSource(kind="sqlite", where=str(path), table="rows")
    view = TableSource(kind="view", sql="SELECT * FROM t WHERE count > 9", tables=(replace(table, label="t"),))
    small = [(one.describe(), one.load().to_pydict()) for one in (table, view)]
    assert small[0][0] == {"id": "text", "x": "float", "count": "integer", "since": "date", "good": "boolean"}
    shrink(8)
    assert [(one.describe(), one.load().to_pydict()) for one in (table, view)] == small
    assert table.load().column("id").type == pa.large_string(), "it is in memory"


def test_mapped_tables_hold_what_was_written() -> None:
    rng = np.random.default_rng(0)
    size = 1000
    missing = rng.random(size) < 0.1
    rows = pa.table(
        {
            "whole": pa.array(rng.integers(-(2**62), 2**62, size), mask=missing),
            "narrow": pa.array(rng.integers(0, 100, size).astype(np.int8)),
            "real": pa.array(rng.normal(size=size), mask=missing),
            "text": pa.array(["", "é" * 3, "long text"] * (size // 3) + ["end"], pa.string(), mask=missing),
            "bytes": pa.array([bytes([n % 256]) for n in range(size)]),
            "moment": pa.array(rng.integers(0, 10**15, size)).cast(pa.timestamp("us")),
            "money": pa.array(rng.integers(0, 10**6, size)).cast(pa.decimal128(22, 2)),
            "flag": pa.array(rng.random(size) < 0.5, mask=missing),
            "list": pa.array([[n] for n in range(size)]),
            "nothing": pa.nulls(size),
        }
    )
    made = mapped_table(rows.schema, size, pieces_of(rows.to_batches(max_chunksize=7)))
    for name in rows.column_names:
        assert made.column(name).num_chunks == 1
        assert made.column(name).to_pylist() == rows.column(name).to_pylist(), name
    with pytest.raises(ValueError, match="1000 rows where 1001 were announced"):
        mapped_table(rows.schema, size + 1, pieces_of(rows.to_batches()))


def test_no_room_for_a_table_names_the_folder(shrink: Shrink, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    shrink(8)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(BadInput, match=r"No space left on device; make room there, or name another folder .* TMPDIR"):
        values.allocate((1000, 10), np.float64)


def test_a_mapped_array_that_is_read_only_is_sent_without_a_copy(shrink: Shrink) -> None:
    small = values.read_only(values.allocate((3, 2), np.float64))
    shrink(2)
    mapped = values.allocate((3, 2), np.float64)
    mapped[1] = 2.0
    held = values.read_only(mapped)
    assert freeze(held)[0] is held, "nobody can write to it through this view"
    np.testing.assert_array_equal(held, [[0, 0], [2, 2], [0, 0]])
    for writable in (small, mapped, values.read_only(np.ones(3))):
        assert freeze(writable)[0] is not writable


def test_rows_are_taken_and_converted_in_blocks(shrink: Shrink) -> None:
    rows = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    order = np.random.default_rng(1).permutation(500)[:333]
    shrink(10)
    np.testing.assert_array_equal(taken(rows, order), rows[order], strict=True)
    np.testing.assert_array_equal(as_type(rows, np.float64), rows.astype(np.float64), strict=True)
    assert as_type(rows, np.float32) is rows


SQL = (
    "SELECT sales.amount, items.price, sales.y FROM sales "
    "JOIN items ON sales.item = items.item AND sales.kind = items.kind"
)
SCHEMAS = {
    "sales": {"item": "integer", "kind": "text", "amount": "float", "y": "float"},
    "items": {"item": "integer", "kind": "text", "price": "float"},
}


def test_tables_of_a_query_are_the_same_in_files(tmp_path: Path, shrink: Shrink) -> None:
    rng = np.random.default_rng(0)
    size = 900
    sales = pa.table(
        {
            "item": pa.array(rng.integers(0, 30, size), mask=rng.random(size) < 0.05),
            "kind": rng.choice(["a", "b"], size),
            "amount": np.round(rng.normal(size=size), 1),
            "y": rng.normal(size=size),
        }
    )
    pyarrow.parquet.write_table(sales, tmp_path / "sales.parquet", row_group_size=100)
    where = TableSource(kind="parquet", where=str(tmp_path / "sales.parquet"), table="sales")
    plan = make_plan(parse_query(SQL), SCHEMAS, "sales.y")

    def read() -> tuple[Any, Any]:
        rows = read_rows(where, plan.table("sales"), 0, np.random.default_rng(1))
        return rows, hash_keys(rows.data, plan.edges[0], "sales", b"secret", threads=1)

    small, hashes = read()
    shrink(64)
    large, other = read()
    assert small.fingerprint == large.fingerprint
    assert small.num_null == large.num_null > 0
    assert large.data.to_pydict() == small.data.to_pydict()
    np.testing.assert_array_equal(hashes, other)


@pytest.mark.slow
@pytest.mark.drawn(1, of=4, subjects=["scenarios/benchmarks/large_tables.py"])
@pytest.mark.parametrize(
    ("protocol", "num_rows", "share"),
    [("horizontal", 200_000, 5), ("mtcd", 200_000, 4), ("pubsub-vfl", 200_000, 1.25), ("tablepuppet", 400_000, 2)],
)
def test_trains_on_a_table_of_several_times_the_memory(protocol: str, num_rows: int, share: float) -> None:
    found = measure(protocol, num_rows, 100, limit_mib=64)
    assert found["table_mib"] > 300
    assert found["peak_mib"] < found["table_mib"] / share, found

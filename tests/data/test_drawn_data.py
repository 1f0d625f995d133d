"""Drawn tables and queries: each source gives what was written to it, and a join is the one that DuckDB makes."""

from __future__ import annotations

import datetime
import decimal
import random
import sqlite3
import uuid
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedactors.data.columns import ColumnRule, encode, fit
from fedactors.data.databases import SourceError, TableSource
from fedactors.data.readers import read_columns
from fedactors.data.values import CsvFormat, exact_texts, plain_values, times_of_day
from tests.data.test_exact_queries import joined_twice
from tests.databases import fill_postgres

D = decimal.Decimal
DRAWN: dict[str, tuple[Any, str, list[Any]]] = {
    "int8": (pa.int8(), "SMALLINT", [-128, 127, 0]),
    "int32": (pa.int32(), "INTEGER", [-(2**31), 2**31 - 1, 0, 7]),
    "int64": (pa.int64(), "BIGINT", [2**53 + 1, 2**53, 2**63 - 1, -(2**63) + 1, 0, -1]),
    "float64": (pa.float64(), "DOUBLE PRECISION", [0.1, -0.0, 1e300, 5e-324, 1 / 3, 2.0**60, -2.5]),
    "decimal": (pa.decimal128(24, 4), "NUMERIC(24, 4)",
                [D("0.0001"), D("12345678901234567890.1234"), D("-7"), D("0")]),
    "uint64": (pa.uint64(), "NUMERIC(20, 0)", [2**64 - 1, 2**64 - 2, 2**53 + 1, 0, 7]),
    "decimal of 50": (pa.decimal256(50, 5), "NUMERIC(50, 5)",
                      [D("0.00001"), D("123456789012345678901234567890123456789012345.12345"), D("-7"), D("0")]),
    "bool": (pa.bool_(), "BOOLEAN", [True, False]),
    "uuid": (pa.uuid(), "UUID", [uuid.UUID(int=one).bytes for one in (0, 7, 2**128 - 1)]),
    "binary": (pa.binary(), "BYTEA", [b"abc", b"\xff\x00", b"", "é".encode()]),
    "time": (pa.time64("us"), "TIME", ["00:00:00", "23:59:59.999999", "12:00:00.5"]),
    "date": (pa.date32(), "DATE", ["1600-02-29", "1969-12-31", "2024-02-29", "9999-12-31"]),
    "timestamp": (pa.timestamp("us"), "TIMESTAMP",
                  ["1899-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2024-02-29 12:00:00.5", "1600-02-29 00:00:01",
                   "9999-12-31 23:59:59.999999"]),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), "TIMESTAMP WITH TIME ZONE",
              ["1899-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2024-02-29 12:00:00.5", "2500-07-01 06:30:00"]),
    "text": (pa.string(), "TEXT",
             ["NA", "null", " x", "x ", "X", "ß", "e\u0301", "é", "\u202f", "a,b", 'say "so"', "two\nlines", "007", "7",
              "0x1F", "1e5", "inf", "-", "'", "\\", "#", "=1+1", "\U0001f600"]),
}  # fmt: skip
KIND = {**dict.fromkeys(("int8", "int32", "int64", "float64", "decimal", "uint64", "decimal of 50"), "number"),
        **{"bool": "boolean", "date": "date", "timestamp": "timestamp",
           "zoned": "timestamp", "text": "text"}}  # fmt: skip
NUMBER = ("integer", "numeral", "decimal", "float", "code")
CSV = CsvFormat(null=())
"""Where NA is a text as any other."""


def column(rng: random.Random, kind: str, size: int) -> Any:
    of_type, _, pool = DRAWN[kind]
    found = [None if rng.random() < 0.2 else rng.choice(pool) for _ in range(size)]
    found[0] = "a letter" if kind == "text" else pool[0]
    if kind == "float64":
        found = [one if one is None or rng.random() < 0.5 else rng.uniform(-1e9, 1e9) / rng.random() for one in found]
    if kind == "time":
        return pa.array([one and datetime.time.fromisoformat(one) for one in found], of_type)
    if kind == "zoned":
        return pa.array(found, pa.string()).cast(pa.timestamp("us")).cast(pa.timestamp("us", "UTC")).cast(of_type)
    return pa.array(found, pa.string()).cast(of_type) if kind in ("date", "timestamp") else pa.array(found, of_type)


LACKS = {
    "csv": {"binary"},  # which it does not write
    "duckdb": {"decimal of 50"},  # nor has DuckDB decimals of more than 38 digits
    "sqlite": {"decimal", "decimal of 50", "uint64"},  # of 64 bits at most, others it rounds itself
}


def saved(kind: str, table: Any, types: dict[str, str], path: Any, server: Any, name: str) -> TableSource:
    """Write a table to a source of a kind."""
    where = str(path)
    if kind == "parquet":
        pa.parquet.write_table(table, where)
        return TableSource(kind="parquet", where=where, table=name)
    if kind == "csv":
        written = [plain_values(one) for one in table.columns]  # Arrow writes no UUID
        pa.csv.write_csv(pa.table(written, names=table.column_names), where)
        return TableSource(kind="csv", where=where, table=name, csv=CSV)
    if kind == "duckdb":
        with duckdb.connect(where) as base:
            base.register("given", table)
            base.execute("CREATE TABLE t AS SELECT * FROM given")
        return TableSource(kind="duckdb", where=where, table="t")
    columns = ", ".join(f'"{one}" {types.get(one, "BIGINT")}' for one in table.column_names)
    if kind == "postgres":
        return fill_postgres(server, table, f"drawn_{name}", f"({columns})")
    with sqlite3.connect(where) as base:
        base.execute(f"CREATE TABLE t ({columns})")
        rows = [
            [value if isinstance(value, int | float | str | bytes | None) else str(value) for value in row.values()]
            for row in table.to_pylist()
        ]
        base.executemany(f"INSERT INTO t VALUES ({', '.join('?' * table.num_columns)})", rows)
    return TableSource(kind="sqlite", where=where, table="t")


def texts(values: Any) -> list[str | None]:
    return list(times_of_day(exact_texts(plain_values(values), "category")).to_pylist())


def kinds_of_sources(request: Any) -> tuple[list[str], Any]:
    try:
        return ["csv", "parquet", "duckdb", "sqlite", "postgres"], request.getfixturevalue("postgres")
    except pytest.skip.Exception:
        return ["csv", "parquet", "duckdb", "sqlite"], None


@pytest.mark.drawn(6)
@pytest.mark.parametrize("number", range(60))
def test_a_drawn_column_is_read_as_it_was_written(number, tmp_path, request):
    rng = random.Random(number)
    kinds, server = kinds_of_sources(request)
    chosen = rng.sample(list(DRAWN), rng.randint(2, len(DRAWN)))
    table = pa.table({"row": range(30), **{kind: column(rng, kind, 30) for kind in chosen}})
    types = {kind: DRAWN[kind][1] for kind in chosen}
    for kind in kinds:
        given = table.drop_columns([one for one in chosen if one in LACKS.get(kind, ())])
        source = saved(kind, given, types, tmp_path / f"a.{kind}", server, "t")
        described = source.describe()
        names = given.column_names
        if kind == "postgres" and "decimal of 50" in names:
            with pytest.raises(SourceError, match=r"column decimal of 50: a decimal of .* CAST it"):
                source.load(["row", "decimal of 50"])
            names.remove("decimal of 50")
        if kind == "sqlite" and "binary" in names:
            with pytest.raises(SourceError, match=r"column binary holds .*hex\(binary\)"):
                source.load(["row", "binary"])
            names.remove("binary")
        read = source.load(names).sort_by("row")
        for name in names[1:]:
            found = "number" if described[name] in NUMBER else described[name]
            if name == "decimal of 50" and kind == "parquet":
                found = KIND[name]  # which SQL does not have: their exact texts
            assert found == KIND.get(name, found), (kind, name)
            if name.startswith("decimal") and kind == "csv":
                continue  # a number with a point of a CSV file is a float, which is no key beyond 2^53
            if name == "binary":
                assert read.column(name).to_pylist() == given.column(name).to_pylist(), (kind, name)
                continue
            assert texts(read.column(name)) == texts(given.column(name)), (kind, name)
    files = {kind: read_columns(tmp_path / f"a.{kind}", "bank", wanted=None, csv=CSV) for kind in ("csv", "parquet")}
    for kind, columns in files.items():
        for name in chosen:
            if name == "binary":
                continue
            if KIND.get(name) == "number":
                right = [float("nan") if one is None else float(one) for one in table.column(name).to_pylist()]
                assert list(map(repr, columns[name].numbers("").tolist())) == list(map(repr, right)), (kind, name)
            elif name in ("date", "timestamp", "zoned"):
                moments, wrong = columns[name].moments("")
                assert not wrong
                right = table.column(name).cast(pa.timestamp("us")).to_numpy()
                assert [str(one) for one in moments] == [str(one) for one in right.astype("datetime64[us]")]
            elif name == "text":
                assert columns[name].texts("") == table.column(name).to_pylist()
            if name in ("float64", "decimal", "decimal of 50"):
                continue  # which are no categories
            rule = {name: ColumnRule(type="categorical", missing="indicator")}
            made = [fit({name: one[name]}, rule, "bank: a")[0] for one in files.values()]
            assert [one.lower() for one in made[0].categories] == [one.lower() for one in made[1].categories], name
            read = [encode({name: one[name]}, made[:1], "bank: a", new=True) for one in files.values()]
            assert (read[0].features == read[1].features).all(), name
            if name != "text":
                assert files["csv"][name].names("").to_pylist() == files["parquet"][name].names("").to_pylist(), name


KEYS = {
    "i": (pa.int64(), "BIGINT", [1, 2, 3, 2**53 - 1, 2**53, -5]),
    "s": (pa.int32(), "INTEGER", [1, 2, 3, 4]),
    "f": (pa.float64(), "DOUBLE PRECISION", [1.0, 2.0, 2.5, 0.0, 2.0**53 - 1]),
    "n": (pa.decimal128(20, 0), "NUMERIC(20, 0)", [1, 2, 3, 2**53 - 1, 2**53]),
    "t": (pa.string(), "TEXT", ["1", "01", "x", "X", " x", "é", "e\u0301"]),
    "d": (pa.date32(), "DATE", ["1970-01-01", "2024-02-29"]),
    "m": (pa.timestamp("us"), "TIMESTAMP", ["1970-01-01 00:00:00", "2024-02-29 01:02:03.5"]),
    "z": (pa.timestamp("us", "UTC"), "TIMESTAMP WITH TIME ZONE", ["1965-01-01 00:00:00", "2400-02-29 01:02:03.5"]),
    "h": (pa.time64("us"), "TIME", ["00:00:00", "23:59:59.5"]),
    "u": (pa.uuid(), "UUID", [uuid.UUID(int=one).bytes for one in (0, 7, 2**128 - 1)]),
    "w": (pa.uint64(), "NUMERIC(20, 0)", [1, 2, 3, 2**53]),
    "b": (pa.bool_(), "BOOLEAN", [True, False]),
}  # fmt: skip
PAIRS = ["ii", "is", "if", "ff", "in", "nn", "nf", "sf", "tt", "tt", "dd", "mm", "bb", "zz", "hh", "uu", "ww", "iw"]
FILTERS = ["{t}.x > 0.2", "{t}.x BETWEEN 0.1 AND 0.8", "{t}.w IN ('a', 'b')", "{t}.w <> 'A'", "{t}.w LIKE 'a%'",
           "LOWER({t}.w) = 'a'", "{t}.v IS NOT NULL", "COALESCE({t}.v, 3) < 4", "({t}.v % 2 = 1 OR {t}.w = 'b')",
           "NOT ({t}.v > 2)", "{t}.v >= 0"]  # fmt: skip


def as_key(picked: list[Any], kind: str, of_type: Any) -> Any:
    if kind == "h":
        return pa.array([one and datetime.time.fromisoformat(one) for one in picked], of_type)
    if kind in "dm":
        return pa.array(picked, pa.string()).cast(of_type)
    return (
        pa.array(picked, pa.string()).cast(pa.timestamp("us")).cast(of_type)
        if kind == "z"
        else pa.array(picked, of_type)
    )


@pytest.mark.drawn(16)
@pytest.mark.parametrize("number", range(200))
def test_a_drawn_query_has_the_rows_and_sums_that_duckdb_has(number, tmp_path, request):
    rng = random.Random(number)
    kinds, server = kinds_of_sources(request)
    names = ["a", "b", "c", "d"][: rng.randint(2, 4)]
    edges = [(rng.choice(names[:number]), name, rng.choice(PAIRS)) for number, name in enumerate(names) if number]
    tables, types, made = {}, {}, {name: rng.choice(kinds) for name in names}
    for name in names:
        size = rng.randint(8, 40)
        columns: dict[str, Any] = {"row": pa.array(range(size)), "x": [rng.random() for _ in range(size)]}
        columns["v"] = pa.array([None if rng.random() < 0.2 else rng.randint(-2, 6) for _ in range(size)], pa.int64())
        columns["w"] = [rng.choice("aAbc") + rng.choice(["", "", "z"]) for _ in range(size)]
        types[name] = {"x": "DOUBLE PRECISION", "v": "BIGINT", "w": "TEXT"}
        for number, (one, other, pair) in enumerate(edges):
            if name not in (one, other):
                continue
            kind = pair[name == other]
            if kind == "n" and made[name] == "sqlite":
                made[name] = "parquet"
            of_type, sql, pool = KEYS[kind]
            picked = [None if rng.random() < 0.1 else rng.choice(pool) for _ in range(size)]
            columns[f"k{number}"] = as_key(picked, kind, of_type)
            types[name][f"k{number}"] = sql
        tables[name] = pa.table(columns)
    sources = {
        name: saved(made[name], tables[name], types[name], tmp_path / f"{name}.{made[name]}", server, name)
        for name in names
    }
    joins = ""
    for number, (one, other, pair) in enumerate(edges):
        key = f"TRIM({one}.k{number})" if pair == "tt" and rng.random() < 0.3 else f"{one}.k{number}"
        joins += f" JOIN {other} ON {key} = {other}.k{number}"
    filters = [rng.choice(FILTERS).format(t=name) for name in names if rng.random() < 0.4]
    where = f" WHERE {' AND '.join(filters)}" if filters else ""
    selected = ", ".join(f"{name}.row, {name}.x" for name in names)
    sql = f"SELECT {selected} FROM a{joins}{where}"
    right, found = joined_twice(sql, tables, sources)
    for number, name in enumerate(names):
        assert found[name] == Counter(row[2 * number] for row in right), (sql, made)
        read = sources[name].load(["row", "x"]).to_pydict()
        x_of = dict(zip(read["row"], read["x"], strict=True))
        for power in (1, 2):  # a sum of each power, and the mean and deviation with them
            ours = sum(times * x_of[row] ** power for row, times in found[name].items())
            assert ours == pytest.approx(sum(row[2 * number + 1] ** power for row in right), rel=1e-12), (sql, made)

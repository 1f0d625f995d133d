"""Tables of any database mean the same to a query: their values, kinds, filters and joins, against DuckDB's own."""

from __future__ import annotations

import decimal
import random
import sqlite3
from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from fedactors.data.databases import SourceError, TableSource, in_memory
from fedactors.data.join import EmptyJoinError, hash_rows, table_mapping
from fedactors.data.layouts.relational import read_rows
from fedactors.data.query import KeyTypeError, QueryError, UnsupportedQueryError, make_plan, named_tables, parse_query
from fedactors.data.values import exact_texts
from fedactors.errors import BadInput
from tests.databases import fill_postgres, postgres_address

SQL = {
    "i": "BIGINT",
    "n": "NUMERIC(20, 0)",
    "f": "DOUBLE PRECISION",
    "t": "TEXT",
    "b": "BOOLEAN",
    "d": "DATE",
    "m": "TIMESTAMP",
}
EXTREMES = {
    "i": [0, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63) + 1, 7],
    "n": [decimal.Decimal(one) for one in (0, 2**53 + 1, 2**63 + 1, 12345678901234567890, -7)],
    "f": [0.0, -0.0, 0.1, 1e300, -2.5, 1e-300, 3.0],
    "t": ["", "x", " x ", "X", "it's", "007", "ß", "äöü", "a,b", 'say "so"', "S\nT", "t"],
    "b": [True, False],
    "d": ["1970-01-01", "2024-02-29", "1899-12-31"],
    "m": ["1970-01-01 00:00:00", "2024-02-29 23:59:59.123456", "1950-06-01 12:00:00"],
}
TYPES = {"i": pa.int64(), "n": pa.decimal128(20, 0), "f": pa.float64(), "t": pa.string(), "b": pa.bool_(),
         "d": pa.date32(), "m": pa.timestamp("us")}  # fmt: skip


def drawn(rng: random.Random, size: int = 40) -> pa.Table:
    """Return a table of every kind: extremes, some of them missing."""
    columns = {"row": pa.array(range(size))}
    for name, values in EXTREMES.items():
        picked = [None if rng.random() < 0.15 else rng.choice(values) for _ in range(size)]
        kind = TYPES[name]
        columns[name] = pa.array(picked, pa.string()).cast(kind) if name in "dm" else pa.array(picked, kind)
    return pa.table(columns)


def as_sqlite(table, path, *, typed=True):
    columns = ", ".join(f'"{name}" {SQL.get(name, "INTEGER") if typed else ""}' for name in table.column_names)
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE t ({columns})")
    plain = {
        name: column.cast(pa.string()) if name in "ndm" else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    rows = [tuple(row.values()) for row in pa.table(plain).to_pylist()]
    connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * table.num_columns)})", rows)
    connection.commit()
    connection.close()
    return TableSource(kind="sqlite", where=str(path), table="t")


def as_duckdb(table, path):
    with duckdb.connect(str(path)) as connection:
        connection.register("incoming", table)
        connection.execute("CREATE TABLE t AS SELECT * FROM incoming")
    return TableSource(kind="duckdb", where=str(path), table="t")


def as_parquet(table, path):
    pyarrow.parquet.write_table(table, path)
    return TableSource(kind="parquet", where=str(path))


def as_csv(table, path):
    pyarrow.csv.write_csv(table, path)
    return TableSource(kind="csv", where=str(path))


def texts_of(table, name, kind="key"):
    column = table.column(name)
    if name == "f":  # which keys may not be where they are large
        return [None if value is None else value + 0.0 for value in column.to_pylist()]
    return exact_texts(column.combine_chunks(), kind).to_pylist()


def by_row(table):
    return table.sort_by("row")


@pytest.mark.parametrize("seed", range(8))
def test_every_source_gives_the_same_values_and_kinds(seed, tmp_path, request):
    table = drawn(random.Random(seed))
    # SQLite rounds decimals of more than 64 bits itself, and CSV has no empty text beside nothing
    sources = {
        "parquet": (as_parquet(table, tmp_path / "a.parquet"), set()),
        "duckdb": (as_duckdb(table, tmp_path / "a.duckdb"), set()),
        "csv": (as_csv(table, tmp_path / "a.csv"), {"t"}),
        "sqlite": (as_sqlite(table.drop_columns("n"), tmp_path / "a.sqlite"), {"n"}),
        "memory": (in_memory(table), set()),
    }
    try:
        server = request.getfixturevalue("postgres")
    except pytest.skip.Exception:
        pass
    else:
        columns = ", ".join(f'"{name}" {SQL.get(name, "BIGINT")}' for name in table.column_names)
        sources["postgres"] = (fill_postgres(server, table, "exact", f"({columns})"), set())
    names = dict.fromkeys(("integer", "numeral", "decimal", "float", "code"), "number")
    for source, other in sources.values():
        kinds = {name: names.get(kind, kind) for name, kind in source.describe().items()}
        read = by_row(source.load())
        for name in table.column_names:
            if name not in other:
                assert texts_of(read, name) == texts_of(table, name), (source.kind, name)
                expected = {"t": "text", "b": "boolean", "d": "date", "m": "timestamp"}.get(name, "number")
                assert kinds[name] == expected, (source.kind, name)


# --- filters ----------------------------------------------------------------------------------------------------------

FILTERS = (
    "i > 0", "i <= 9007199254740992", "9007199254740993 = i", "i IN (7, -1)", "NOT (i > 0 OR i IS NULL)",
    "i IS NOT NULL", "i BETWEEN -1 AND 7", "t LIKE 'S%'", "t ILIKE 'x%'", "t = 'x'", "t = 'X'",
    "t IN ('x', 'it''s')", "t <> 'x'", "t > 'T'", "t <= 'x'", "TRIM(t) = 'x'", "LOWER(t) = 'x'", "t = ''", "b",
    "NOT b", "b IS NULL", "d > '2000-01-01'", "m >= '2024-02-29 00:00:00'", "m = TIMESTAMP '1950-06-01 12:00:00'",
    "f > 0.05", "f = 0", "CAST(f AS INTEGER) = 3", "CAST(f AS INTEGER) = -2", "COALESCE(i, 7) = 7", "i % 2 = 1",
    "i / 2 > 3", "i = 7 AND t = 'x' OR f IS NULL",
)  # fmt: skip


def _collated(server, kind):
    """Return what says that texts are compared by ICU's rules, of which some take two texts for one."""
    import psycopg

    with psycopg.connect(postgres_address(server), autocommit=True) as base:
        if not base.execute("SELECT 1 FROM pg_collation WHERE collprovider = 'i'").fetchone():
            pytest.skip("this PostgreSQL has no ICU")
        base.execute("CREATE COLLATION IF NOT EXISTS by_icu (provider = icu, locale = 'en-US')")
        base.execute(
            "CREATE COLLATION IF NOT EXISTS without_case (provider = icu, locale = 'und-u-ks-level2',"
            " deterministic = false)"
        )
    return f"COLLATE {'without_case' if 'case' in kind else 'by_icu'}"


def _kept_there(server, condition):
    import psycopg

    with psycopg.connect(postgres_address(server)) as base:
        return base.execute(f"SELECT row FROM exact WHERE {condition} ORDER BY row").fetchall()


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite", "untyped sqlite", "nocase sqlite", "duckdb", "nocase duckdb", "parquet", "postgres",
        "postgres by ICU", "postgres by ICU without case",
    ],
)  # fmt: skip
def test_a_filter_keeps_the_rows_that_duckdb_keeps(kind, tmp_path, request):
    table = drawn(random.Random(3), 120).filter(pa.compute.field("row") >= 0)
    table = table.set_column(
        table.column_names.index("f"),
        "f",
        pa.array([random.Random(row).choice([0.0, 2.5, -2.5, 3.5, 0.1]) for row in range(120)]),
    )
    if kind.startswith("postgres"):
        server = request.getfixturevalue("postgres")
        collated = _collated(server, kind) if "ICU" in kind else ""
        types = {**SQL, "t": f"TEXT {collated}"}
        columns = ", ".join(f'"{name}" {types.get(name, "BIGINT")}' for name in table.column_names)
        source = fill_postgres(server, table, "exact", f"({columns})")
        if collated:
            assert _kept_there(server, "t > 'T'") != _kept_there(server, """t > 'T' COLLATE "C\"""")
    elif kind.endswith("sqlite"):
        source = as_sqlite(table, tmp_path / "a.db", typed=not kind.startswith("untyped"))
        if kind.startswith("nocase"):
            with sqlite3.connect(tmp_path / "a.db") as base:
                base.execute(
                    "CREATE TABLE u (row INTEGER, i INTEGER, n, f REAL, t TEXT COLLATE NOCASE, b BOOLEAN, d DATE,"
                    " m TIMESTAMP)"
                )
                base.execute("INSERT INTO u SELECT * FROM t")
            source = TableSource(kind="sqlite", where=source.where, table="u")
    elif kind == "parquet":
        source = as_parquet(table, tmp_path / "a.parquet")
    else:
        source = as_duckdb(table, tmp_path / "a.duckdb")
        if kind.startswith("nocase"):
            with duckdb.connect(source.where) as base:
                base.execute("CREATE TABLE u AS SELECT * REPLACE (t COLLATE NOCASE AS t) FROM t")
            source = TableSource(kind="duckdb", where=source.where, table="u")
    filters = [one for one in FILTERS if not (kind == "untyped sqlite" and one[:1] in "bdmN" and "(" not in one)]
    with duckdb.connect() as connection:
        connection.register("whole", table)
        for one in filters:
            right = {row for (row,) in connection.execute(f"SELECT row FROM whole WHERE {one}").fetchall()}
            assert set(source.load(["row"], one).column("row").to_pylist()) == right, one


def test_sqlite_has_the_kinds_of_its_values(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as base:
        base.execute("CREATE TABLE raw (id TEXT, orders INTEGER, flag BOOLEAN, no BOOLEAN, day DATE, mixed)")
        base.executemany(
            "INSERT INTO raw VALUES (?, ?, ?, ?, ?, ?)",
            [("a", 3, "t", 1, "2024-01-31", 1), ("b", 1, "f", 0, None, "x")],
        )
        base.execute(
            "CREATE VIEW v AS SELECT id, 1.0 * orders / 2 AS rate, CAST(orders AS REAL) AS r, COUNT(*) AS n, flag"
            " FROM raw GROUP BY id"
        )
        base.execute("CREATE TABLE made AS SELECT *, orders * 2 AS twice FROM raw")
    view = TableSource(kind="sqlite", where=str(tmp_path / "a.db"), table="v")
    assert view.describe() == {"id": "text", "rate": "float", "r": "float", "n": "integer", "flag": "boolean"}
    assert view.load(["rate"]).column("rate").to_pylist() == [1.5, 0.5]
    raw = TableSource(kind="sqlite", where=str(tmp_path / "a.db"), table="raw")
    assert raw.load(["flag", "no"]).to_pydict() == {"flag": [True, False], "no": [True, False]}
    assert raw.describe()["day"] == "date"
    assert TableSource(kind="sqlite", where=str(tmp_path / "a.db"), table="made").describe()["twice"] == "integer"
    with pytest.raises(SourceError, match=r"column mixed holds 1 \(int\) and 'x' \(str\); in a view, write"):
        raw.load(["mixed"])


# --- joins ------------------------------------------------------------------------------------------------------------


def joined(sql, label, **sources):
    """Return what the join has: its rows, and how often each row of each table is in it, by the table's `row`."""
    schemas = {name: source.describe() for name, source in sources.items()}
    plan = make_plan(parse_query(sql), schemas, label)
    rows, hashes = {}, {}
    for table in plan.tables:
        found = read_rows(sources[table.name], table, 0, np.random.default_rng(0)).data
        rows[table.name] = found
        hashes[table.name] = hash_rows(found, plan.edges_of(table.name), table.name, b"secret")
    mapping = table_mapping(plan, hashes, threads=1)
    counts = {}
    for table, count in zip(plan.tables, mapping.duplicate_counts, strict=True):
        numbers = rows[table.name].column("row").to_pylist()
        counts[table.name] = {row: int(times) for row, times in zip(numbers, count, strict=True) if times}
    return mapping.num_joined, counts


def joined_twice(sql, tables, sources):
    """Return the rows of the join in DuckDB, and what ours has by `joined`: of as many rows."""
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            connection.register(name, rows)
        right = connection.execute(sql).fetchall()
    if not right:
        with pytest.raises(EmptyJoinError):
            joined(sql, "a.x", **sources)
        return [], {name: {} for name in tables}
    count, found = joined(sql, "a.x", **sources)
    assert count == len(right), sql
    return right, found


KEYS: dict[str, Any] = {
    "i": (pa.int64(), [1, 2, 3, 2**53, 2**53 + 1, 2**62]),
    "s": (pa.int32(), [1, 2, 3, 4]),
    "n": (pa.decimal128(20, 0), [1, 2, 3, 2**53 + 1, 2**62]),
    "p": (pa.decimal128(30, 3), [1, 2, decimal.Decimal("2.5"), 2**53 + 1]),
    "f": (pa.float64(), [1.0, 2.0, 2.5, -0.0, 0.0, 2.0**53 - 1]),  # 2**53 may be 2**53 + 1
    "t": (pa.string(), ["1", "01", "x", "X", " x", "é", "e\u0301"]),
    "d": (pa.date32(), ["1970-01-01", "2024-02-29"]),
    "m": (pa.timestamp("us"), ["1970-01-01 00:00:00", "2024-02-29 01:02:03.5"]),
    "b": (pa.bool_(), [True, False]),
}
PAIRS = [("i", "i"), ("i", "s"), ("i", "n"), ("n", "n"), ("i", "p"), ("n", "p"), ("i", "f"), ("s", "f"), ("f", "f"),
         ("p", "f"),          ("t", "t"), ("d", "d"), ("m", "m"), ("b", "b")]  # fmt: skip
MAKERS = {"parquet": as_parquet, "duckdb": as_duckdb, "memory": lambda table, path: in_memory(table)}


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 15), marks=pytest.mark.slow)], ids=["one", "many"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_a_join_is_the_join_that_duckdb_makes(pair, seeds, tmp_path):
    one, other = pair

    def table(rng, kind, size):
        of_type, values = KEYS[kind]
        if "f" in pair and kind in "inp":  # DuckDB would round these to compare them with floats
            values = [value for value in values if value < 2**53]
        picked = [None if rng.random() < 0.1 else rng.choice(values) for _ in range(size)]
        keys = pa.array(picked, pa.string()).cast(of_type) if kind in "dm" else pa.array(picked, of_type)
        return pa.table({"row": range(size), "k": keys, "x": [rng.random() for _ in range(size)]})

    for seed in seeds:
        rng = random.Random(seed)
        tables = {"a": table(rng, one, 30), "b": table(rng, other, 20), "c": table(rng, one, 10)}
        made = {name: rng.choice(list(MAKERS.items())) for name in tables}
        sources = {name: make(tables[name], tmp_path / f"{seed}{name}.{kind}") for name, (kind, make) in made.items()}
        join = rng.choice(("b.k = c.k", "a.k = c.k"))  # a path, or a star
        limit = rng.choice((0.1, 0.4))
        sql = f"SELECT a.row, a.x, b.row, c.row FROM a JOIN b ON a.k = b.k JOIN c ON {join} WHERE a.x > {limit}"
        right, found = joined_twice(sql, tables, sources)
        for name, column in (("a", 0), ("b", 2), ("c", 3)):  # counts of rows make every sum over the join
            assert found[name] == Counter(row[column] for row in right)


def test_keys_that_are_long_numbers_are_exact_in_every_source(tmp_path, request):
    ids = [10**19 + 7 * row for row in range(60)]
    table = pa.table(
        {"row": range(60), "k": pa.array([decimal.Decimal(one) for one in ids], pa.decimal128(20, 0)), "x": range(60)}
    )
    sources = {name: make(table, tmp_path / f"k.{name}") for name, make in {**MAKERS, "csv": as_csv}.items()}
    try:
        server = request.getfixturevalue("postgres")
        sources["postgres"] = fill_postgres(server, table, "long", "(row BIGINT, k NUMERIC(20, 0), x BIGINT)")
    except pytest.skip.Exception:
        pass
    with duckdb.connect(str(tmp_path / "huge.duckdb")) as base:
        base.register("incoming", table)
        base.execute("CREATE TABLE t AS SELECT row, k::HUGEINT AS k, x FROM incoming")
    sources["hugeint"] = TableSource(kind="duckdb", where=str(tmp_path / "huge.duckdb"), table="t")
    for one in sources.values():
        count, _ = joined("SELECT a.row, a.x, b.row FROM a JOIN b ON a.k = b.k", "a.x", a=one, b=sources["csv"])
        assert count == 60, one.kind


def test_keys_are_equal_byte_by_byte_where_a_database_takes_two_for_one(postgres):
    collated = _collated(postgres, "postgres by ICU without case")
    table = pa.table({"row": range(4), "k": ["x", "X", "\u00e9", "e\u0301"], "x": [0.0, 1.0, 2.0, 3.0]})
    source = fill_postgres(postgres, table, "keyed", f"(row BIGINT, k TEXT {collated}, x DOUBLE PRECISION)")
    other = in_memory(table)
    count, found = joined("SELECT a.row, a.x, b.row FROM a JOIN b ON a.k = b.k", "a.x", a=source, b=other)
    assert (count, found["b"]) == (4, dict.fromkeys(range(4), 1))
    assert source.load(["row"], "k = 'X'").column("row").to_pylist() == [1]


def test_keys_of_csv_files_are_texts_to_texts_and_numbers_to_numbers(tmp_path):
    def file(name, keys):
        (tmp_path / name).write_text("row,k,x\n" + "".join(f"{row},{key},{row}.5\n" for row, key in enumerate(keys)))
        return TableSource(kind="csv", where=str(tmp_path / name))

    sql = "SELECT a.row, a.x, b.row FROM a JOIN b ON a.k = b.k"
    zips, padded, text = file("a.csv", [501, 10001]), file("b.csv", ["00501", "10001"]), file("c.csv", ["00501", "K1"])
    numbers = in_memory(pa.table({"row": [0, 1], "k": [501, 10001], "x": [0.0, 1.0]}))
    assert joined(sql, "a.x", a=zips, b=padded)[0] == 1
    assert joined(sql, "a.x", a=padded, b=text)[0] == 1
    assert joined(sql, "a.x", a=padded, b=numbers)[0] == 2
    assert (
        joined(sql.replace("a.k = b.k", "CAST(a.k AS BIGINT) = CAST(b.k AS BIGINT)"), "a.x", a=zips, b=padded)[0] == 2
    )
    with pytest.raises(
        KeyTypeError, match=r"a.k is integer, b.k is text; write CAST\(a.k AS VARCHAR\) = b.k"
    ) as caught:
        joined(sql, "a.x", a=numbers, b=text)
    advised = str(caught.value).partition("write ")[2].partition(", or")[0]
    assert advised == "CAST(a.k AS VARCHAR) = b.k"
    texts = in_memory(pa.table({"row": [0], "k": ["10001"], "x": [0.0]}))
    assert joined(sql.replace("a.k = b.k", advised), "a.x", a=numbers, b=texts)[0] == 1


def test_keys_may_be_computed_by_their_owner(tmp_path):
    a = as_csv(
        pa.table({"row": range(3), "k": [" x", "Y ", None], "l": ["p", "q", "z"], "x": [1.0, 2.0, 3.0]}),
        tmp_path / "a.csv",
    )
    b = as_sqlite(pa.table({"row": range(3), "t": ["X", "y", "z"]}), tmp_path / "b.db")
    sql = "SELECT a.*, b.row FROM a JOIN b ON LOWER(TRIM(COALESCE(a.k, a.l))) = LOWER(b.t)"
    plan = make_plan(parse_query(sql), {"a": a.describe(), "b": b.describe()}, "a.x")
    assert [feature.column for feature in plan.table("a").features] == ["row"]  # keys are no features
    assert plan.table("a").called_by == ("k", "l")
    assert joined(sql, "a.x", a=a, b=b)[0] == 3


def test_keys_that_may_stand_for_several_values_are_refused():
    floats = in_memory(pa.table({"row": [0, 1], "k": [2.0**60, 2.0**61], "x": [0.0, 1.0]}))
    with pytest.raises(BadInput, match=r"key a.k holds floats such as 1.15\d+e\+18 and 2.3\d+e\+18"):
        joined("SELECT a.row, a.x, b.row FROM a JOIN b ON a.k = b.k", "a.x", a=floats, b=floats)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("WITH big AS (SELECT * FROM a) SELECT big.x, b.y FROM big JOIN b ON big.k = b.k", "WITH"),
        ("SELECT a.x, b.y FROM a LEFT JOIN b ON a.k = b.k", "LEFT JOIN is not supported"),
        ("SELECT DISTINCT a.x, b.y FROM a JOIN b ON a.k = b.k", "DISTINCT"),
        ("SELECT a.x, b.y FROM a JOIN b ON a.k = b.k GROUP BY a.x", "GROUP BY"),
        ("SELECT a.x, b.y FROM a JOIN b ON a.k = b.k WHERE b.k IN (SELECT k FROM c)", "SELECT k FROM c"),
        ("SELECT COALESCE(a.x, 0) AS x, b.y FROM a JOIN b ON a.k = b.k", "select list is not supported"),
    ],
)
def test_what_a_query_may_not_have_is_named_before_its_tables_are(sql, said):
    with pytest.raises(UnsupportedQueryError, match=said):
        named_tables(sql)


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("SELECT a.`order`, b.y FROM a JOIN b ON a.k = b.k", ("`order`", '"order"')),
        ("SELECT a.x, b.y FROM [a] JOIN b ON a.k = b.k", ("[a]", '"a"')),
    ],
)
def test_names_in_quotes_of_other_databases_are_told_with_those_of_this_one(sql, written):
    with pytest.raises(QueryError, match=r"sql: line 1, column \d+") as told:
        named_tables(sql)
    assert f"names are quoted so: {written[1]}, not {written[0]}" in str(told.value)
    assert named_tables(sql.replace(*written)) == ("a", "b")

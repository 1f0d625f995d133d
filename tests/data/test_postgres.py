"""What a PostgreSQL catalogue has beside tables, and values as COPY writes them, on a real server."""

import datetime
import decimal
import math

import pyarrow as pa
import pytest

from fedactors.data import databases as copying
from fedactors.data.databases import SourceError, TableSource
from fedactors.data.description import load_description
from fedactors.data.values import Column
from fedactors.errors import BadInput
from fedactors.runtime.snapshots import digests_of_files
from tests.databases import PASSWORD, postgres_address

SETUP = """
DROP SCHEMA IF EXISTS shop CASCADE; CREATE SCHEMA shop;
CREATE TABLE shop.orders (id BIGINT, paid DOUBLE PRECISION, day DATE) PARTITION BY RANGE (day);
CREATE TABLE shop.orders_old PARTITION OF shop.orders FOR VALUES FROM ('2000-01-01') TO ('2020-01-01');
CREATE TABLE shop.orders_new PARTITION OF shop.orders FOR VALUES FROM ('2020-01-01') TO ('2040-01-01');
INSERT INTO shop.orders VALUES (1, 0.5, '2019-12-31'), (2, NULL, '2020-01-01'), (3, 2.5, '2021-05-05');
CREATE VIEW shop.paid AS SELECT id, paid FROM shop.orders WHERE paid IS NOT NULL;
CREATE MATERIALIZED VIEW shop.kept AS SELECT id, paid, day FROM shop.orders WHERE id > 1;
"""
KINDS = {"id": "integer", "paid": "float", "day": "date"}
OLD, FIRST, LATER = datetime.date(2019, 12, 31), datetime.date(2020, 1, 1), datetime.date(2021, 5, 5)
RELATIONS = {
    "orders": (KINDS, [(1, 0.5, OLD), (2, None, FIRST), (3, 2.5, LATER)]),
    "orders_new": (KINDS, [(2, None, FIRST), (3, 2.5, LATER)]),
    "paid": ({"id": "integer", "paid": "float"}, [(1, 0.5), (3, 2.5)]),
    "kept": (KINDS, [(2, None, FIRST), (3, 2.5, LATER)]),
}


def execute(server, text):
    import psycopg

    with psycopg.connect(postgres_address(server)) as connection:
        connection.execute(text)


def source(server, table):
    return TableSource(kind="postgres", where=postgres_address(server), table=table)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELATIONS)
def test_partitioned_tables_and_views_of_both_kinds_are_tables(postgres, name):
    execute(postgres, SETUP)
    kinds, rows = RELATIONS[name]
    found = source(postgres, f"shop.{name}")
    assert found.describe() == kinds
    assert sorted(tuple(row.values()) for row in found.load().to_pylist()) == rows
    some = found.load(["id"], "id > 2")
    assert (some.column_names, some["id"].to_pylist()) == (["id"], [3])
    assert found.load(where="id > 99").num_rows == 0
    assert found.load(where="id > 99").schema.names == list(kinds)


def test_what_is_no_table_or_may_not_be_read_is_one_line(postgres):
    execute(postgres, SETUP + "CREATE SEQUENCE shop.counter; CREATE INDEX by_id ON shop.orders_old (id);")
    for name in ("counter", "by_id", "nothing"):
        with pytest.raises(SourceError, match=f"no table shop.{name} at postgresql://"):
            source(postgres, f"shop.{name}").describe()
    execute(postgres, "CREATE TABLE shop.ends (d DATE); INSERT INTO shop.ends VALUES ('infinity')")
    with pytest.raises(
        SourceError, match=r"column d holds 'infinity', which is no date .* write NULL for it"
    ) as caught:
        source(postgres, "shop.ends").load()
    assert "\n" not in str(caught.value)


def test_values_arrive_as_they_are(postgres, monkeypatch):
    """Whatever their text looks like to a CSV parser; in one block, and in many."""
    execute(
        postgres,
        SETUP
        + """CREATE DOMAIN shop.money AS NUMERIC(12, 2); CREATE TYPE shop.colour AS ENUM ('red', 'blue');
        CREATE TABLE shop.odd (n SMALLINT, x REAL, m shop.money, b BOOLEAN, t TEXT, c CHAR(6), v VARCHAR,
        e shop.colour, d DATE, s TIMESTAMP, z TIMESTAMPTZ, u UUID);
        INSERT INTO shop.odd VALUES (1, 0.1, 12.34, TRUE, E'a,"b"\\nc', 'ab', '', 'red', '1969-12-31',
        '2020-02-03 04:05:06.789', '2020-02-03 04:05:06+02', '00000000-0000-0000-0000-000000000001'),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (-2, 'NaN', 'NaN', FALSE, 'NULL', 'NA', E'\\\\N', 'blue', '2020-01-01', '1900-01-01', '1900-01-01+00', NULL),
        (3, '-Infinity', 0, FALSE, E'\\\\.', '', ' ', NULL, NULL, NULL, NULL, NULL)""",
    )
    whole = source(postgres, "shop.odd").load()
    first, nothing, third, fourth = whole.to_pylist()
    assert first == {
        "n": 1, "x": pytest.approx(0.1), "m": 12.34, "b": True, "t": 'a,"b"\nc', "c": "ab", "v": "", "e": "red",
        "d": datetime.date(1969, 12, 31), "s": datetime.datetime(2020, 2, 3, 4, 5, 6, 789000),
        "z": datetime.datetime(2020, 2, 3, 2, 5, 6), "u": "00000000-0000-0000-0000-000000000001",
    }  # fmt: skip
    assert set(nothing.values()) == {None}
    assert (third["t"], third["c"], third["v"], third["b"], third["n"]) == ("NULL", "NA", r"\N", False, -2)
    assert math.isnan(third["x"])
    assert math.isnan(third["m"])
    assert (fourth["x"], fourth["t"], fourth["v"]) == (-math.inf, r"\.", " ")
    assert whole.schema.field("z").type == pa.timestamp("us")
    monkeypatch.setattr(copying, "_BLOCK", 1)
    monkeypatch.setattr(copying, "_PARSED", 1)
    again = source(postgres, "shop.odd").load()
    assert again["s"].num_chunks > 1
    assert str(again.to_pylist()) == str(whole.to_pylist())
    assert [row["n"] for row in source(postgres, "shop.odd").load(["n"]).to_pylist()] == [1, None, -2, 3]


def test_decimals_of_as_many_digits_as_are_read_have_no_digit_more_for_a_zero(postgres):
    digits = "12345678901234567890123456789012345678"
    execute(
        postgres,
        SETUP + f"CREATE TABLE shop.small (x NUMERIC(38, 38)); INSERT INTO shop.small VALUES (0.{digits}), (-0.5), (0)",
    )
    found = source(postgres, "shop.small").load().column("x")
    assert found.type == pa.decimal128(38, 38)
    assert found.to_pylist() == [decimal.Decimal(f"0.{digits}"), decimal.Decimal("-0.5"), 0]


def test_addresses_are_as_the_server_shows_them(postgres):
    execute(
        postgres,
        SETUP + "CREATE TABLE shop.hosts (a INET, n CIDR); INSERT INTO shop.hosts VALUES ('1.2.3.4', '1.2.3.0/24'),"
        " ('1.2.3.4/24', '::1/128'), (NULL, NULL)",
    )
    found = source(postgres, "shop.hosts")
    assert found.load().to_pydict() == {"a": ["1.2.3.4", "1.2.3.4/24", None], "n": ["1.2.3.0/24", "::1/128", None]}
    assert found.load(["n"], "a = '1.2.3.4'").to_pydict() == {"n": ["1.2.3.0/24"]}


def test_bits_are_names_and_no_numbers(postgres):
    """0101 would be 101; the cast that is advised counts them."""
    execute(
        postgres,
        SETUP
        + """CREATE TABLE shop.bits (b BIT(4), v BIT VARYING, one BIT); CREATE VIEW shop.counted AS
        SELECT CAST(b AS BIGINT) AS b FROM shop.bits; INSERT INTO shop.bits VALUES (B'0101', B'1', B'1'),
        (B'0011', B'01', B'0'), (NULL, NULL, NULL)""",
    )
    found = source(postgres, "shop.bits").load()
    columns = {name: Column(name, found[name]) for name in found.column_names}
    assert [one.texts() for one in columns.values()] == [["0101", "0011", None], ["1", "01", None], ["1", "0", None]]
    assert columns["one"].numbers("shop")[:2].tolist() == [1, 0]
    for name in ("b", "v"):
        with pytest.raises(BadInput, match=rf"column {name}: holds byte strings .*; name the column under categorical"):
            columns[name].numbers("shop")
    assert source(postgres, "shop.counted").load().to_pydict() == {"b": [5, 3, None]}


READER = """
CREATE ROLE reader LOGIN PASSWORD 'reader'; CREATE SCHEMA seen; GRANT USAGE ON SCHEMA seen TO reader;
ALTER ROLE reader SET datestyle = 'German'; ALTER ROLE reader SET bytea_output = 'escape';
ALTER ROLE reader SET intervalstyle = 'iso_8601'; ALTER ROLE reader SET client_encoding = 'LATIN1';
CREATE DOMAIN seen.count AS INT CHECK (VALUE > 0); CREATE DOMAIN seen.few AS seen.count CHECK (VALUE < 9);
CREATE TABLE seen.t (d DATE, b BYTEA, i INTERVAL, t TEXT, m MONEY, n seen.few);
INSERT INTO seen.t VALUES ('2024-03-05', 'ab', '1 day', '€ü', 1234.5, 7);
CREATE TABLE seen."Closed" (v INT); GRANT SELECT ON seen.t TO reader;
"""


@pytest.fixture
def reader(postgres):
    """The address of a user with settings of his own, who may read one table."""
    import psycopg

    with psycopg.connect(postgres_address(postgres), autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = 'reader'").fetchone():
            connection.execute("DROP SCHEMA IF EXISTS seen CASCADE; DROP OWNED BY reader; DROP ROLE reader")
        connection.execute(READER)
    host, port = postgres
    return f"postgresql://reader:reader@{host}:{port}/postgres"


@pytest.mark.parametrize("option", ["", "?client_encoding=latin1", "?options=-c%20datestyle%3DGerman"])
def test_values_do_not_depend_on_a_users_settings(reader, option, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    found = TableSource(kind="postgres", where=reader + option, table="seen.t")
    assert found.describe()["n"] == "integer"
    assert found.load().to_pylist() == [
        {"d": datetime.date(2024, 3, 5), "b": b"ab", "i": "1 day", "t": "€ü", "m": "$1,234.50", "n": 7}
    ]


NOT_SEEN = {
    "seen.Closed": "of which this user may read a column: GRANT USAGE ON SCHEMA and GRANT SELECT allow it",
    "seen.closed": "; there is seen.Closed$",
    "t": "; there is seen.t$",
    "seen.nothing": r"/postgres$",
}


@pytest.mark.parametrize("table", NOT_SEEN)
def test_a_table_that_is_not_seen_is_told_with_what_is_like_it(reader, table):
    with pytest.raises(SourceError, match=f"no table .*{NOT_SEEN[table]}"):
        TableSource(kind="postgres", where=reader, table=table).describe()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_texts_of_a_database_of_another_encoding(postgres, encoding):
    import psycopg

    base = f"in_{encoding.lower()}"
    with psycopg.connect(postgres_address(postgres), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {base}")
        connection.execute(
            f"CREATE DATABASE {base} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    where = postgres_address(postgres).rpartition("/")[0] + f"/{base}"
    with psycopg.connect(where, autocommit=True, client_encoding="latin1") as connection:
        connection.execute("CREATE TABLE t (v TEXT); INSERT INTO t VALUES (E'M\\xfcller')")
    found = TableSource(kind="postgres", where=where, table="t")
    if encoding == "LATIN1":
        assert found.load()["v"].to_pylist() == ["Müller"]
        return
    with pytest.raises(SourceError, match=r"0xfc|not in UTF-8"):
        found.load()


def test_a_partys_own_tables_may_be_a_servers(postgres, tmp_path, monkeypatch):
    """A run that goes on compares its rows with those that it began with."""
    execute(postgres, SETUP + "CREATE OR REPLACE VIEW public.paid AS SELECT * FROM shop.paid")
    monkeypatch.setenv("SHOP_TABLES", postgres_address(postgres))
    for where in ("env:SHOP_TABLES", postgres_address(postgres, "").replace(":@", "@")):
        view = f'tables = {{ paid = "{where}" }}\nsql = "SELECT CAST(id AS VARCHAR) AS id, paid FROM paid"'
        (tmp_path / "bank.csv").write_text("id,age,y\n1,30,0\n3,40,1\n")
        path = tmp_path / "parties.toml"
        path.write_text(
            '[task]\ntype = "binary"\nalignment = "hash"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
            f'[parties.shop]\nid = "id"\n{view}\n'
        )
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        data = load_description(path)
        ((name, _),) = digests_of_files(data.part("shop").source)
        assert name.startswith("table paid of ")
        assert PASSWORD not in name
        assert data.part("shop").load().ids.tolist() == ["1", "3"]


@pytest.mark.parametrize(
    ("kind", "text", "words", "advised"),
    [
        ("integer[]", "{1,2}", "holds arrays", "x[1] AS x1"),
        ("money", "1234.50", "holds amounts", "x::numeric AS x"),
        ("interval", "1 day", "holds time spans", "EXTRACT(EPOCH FROM x) AS x"),
        ("int4range", "[1,5)", "holds ranges", "lower(x) AS x_from, upper(x) AS x_to"),
    ],
)
def test_texts_that_are_no_values_are_refused_with_a_view_that_works(postgres, kind, text, words, advised):
    import psycopg

    with psycopg.connect(postgres_address(postgres), autocommit=True) as base:
        base.execute(f"DROP TABLE IF EXISTS unclear CASCADE; CREATE TABLE unclear (n integer, x {kind})")
        base.execute("INSERT INTO unclear VALUES (1, %s), (2, NULL)", [text])
        base.execute(f"CREATE VIEW cleared AS SELECT n, {advised} FROM unclear")
    where = postgres_address(postgres)
    source = TableSource(kind="postgres", where=where, table="unclear")
    assert source.load(["n"]).num_rows == 2
    with pytest.raises(SourceError, match=words) as refused:
        source.load(["n", "x"])
    assert advised in str(refused.value)
    cleared = TableSource(kind="postgres", where=where, table="cleared")
    assert set(cleared.describe().values()) <= {"integer", "decimal", "float"}
    assert cleared.load().num_rows == 2

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from fedactors.data.databases import TableSource
from fedactors.data.join import hash_keys, table_mapping
from fedactors.data.layouts.relational import rows_with_keys
from fedactors.data.query import make_plan, parse_query

pytestmark = pytest.mark.data

QUERY = """
    SELECT f.distance, f.dep_delay, f.arr_delay, p.seats, a.lat, a.lon, w.wind_speed, w.visib, l.name
    FROM flights f JOIN planes p ON f.tailnum = p.tailnum JOIN airports a ON f.dest = a.faa
    JOIN weather w ON f.origin = w.origin AND f.year = w.year AND f.month = w.month AND f.day = w.day
        AND f.hour = w.hour
    JOIN airlines l ON f.carrier = l.carrier
    WHERE f.arr_delay IS NOT NULL AND w.wind_speed IS NOT NULL AND p.seats > 0
"""
NAMES = ("flights", "planes", "airports", "weather", "airlines")


@pytest.mark.slow
def test_a_join_of_five_real_tables_one_edge_on_five_columns_equals_duckdb_on_the_raw_keys():
    if not os.environ.get("FEDACTORS_DATA"):
        pytest.skip("FEDACTORS_DATA is not set")
    folder = Path(os.environ["FEDACTORS_DATA"]) / "nycflights13"
    whole_hours = (("hour", "integer"),)
    sources = {
        n: TableSource(kind="csv", where=str(folder / f"{n}.csv.gz"), kinds=whole_hours if n == "flights" else ())
        for n in NAMES
    }
    schemas = {name: source.describe() for name, source in sources.items()}
    plan = make_plan(parse_query(QUERY), schemas, "arr_delay", {"l.name": "one_hot"})
    weather = next(e for e in plan.edges if e.right == "w")
    assert len(weather.keys) == 5
    raw, hashes = {}, {}
    for table in plan.tables:
        (part,) = table.partitions
        wanted = tuple(dict.fromkeys([*table.needed_columns(), *table.called_by]))
        data = sources[part.source].load(wanted, part.where, table.computed)
        data = data.filter(pa.array(rows_with_keys(data.select(table.keys))))
        raw[part.source] = data
        hashes[table.name] = [hash_keys(data, e, table.name, b"k" * 32) for e in plan.edges_of(table.name)]
    mapping = table_mapping(plan, hashes)
    with duckdb.connect() as connection:
        for name, data in raw.items():
            connection.register(name, data)
        joined = QUERY.partition("FROM")[2].partition("WHERE")[0]
        (expected,) = connection.sql(f"SELECT count(*) FROM {joined}").fetchall()[0]
    assert mapping.num_joined == expected > 250_000
    for i, table in enumerate(plan.tables):
        assert mapping.duplicate_counts[i].sum() == expected
        for edge in plan.edges_of(table.name):
            other = plan.tables.index(plan.table(edge.right if table.name == edge.left else edge.left))
            for mine, theirs in zip(edge.columns(table.name), edge.columns(plan.tables[other].name), strict=True):
                left = raw[table.partitions[0].source].column(mine).take(pa.array(mapping.rows[i][:500]))
                right = (
                    raw[plan.tables[other].partitions[0].source]
                    .column(theirs)
                    .take(pa.array(mapping.rows[other][:500]))
                )
                assert left.to_pylist() == right.to_pylist()

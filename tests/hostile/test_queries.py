"""What others ask of a site's tables: a query makes nothing large, sees nothing else, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from fedactors.actors.actor import Client, Resources
from fedactors.actors.context import Work
from fedactors.data import databases
from fedactors.data.databases import SourceError, TableSource, in_memory
from fedactors.data.query import UnsupportedQueryError, parse_query
from fedactors.runtime.compute import HostedContext, WallClock
from fedactors.runtime.interface import ActorSpec


def nested(function: str, times: int) -> str:
    made = "a.x"
    for _ in range(times):
        made = function.format(made)
    return made


@pytest.mark.parametrize(
    "made",
    [
        "LPAD(a.x, 2000000000, 'y')",
        "RPAD(a.x, a.id, 'y')",
        "LPAD(a.x, CAST('900000000' AS INTEGER), 'y')",
        nested("REPLACE({}, 'a', 'aaaaaaaaaa')", 9),
        nested("REPLACE({0}, 'a', TRIM({0}))", 4),
        nested("CONCAT({0}, {0})", 8),
    ],
)
def test_no_query_makes_texts_of_any_length(made: str) -> None:
    """Of LPAD(x, 900000000) DuckDB makes gigabytes a row, and nothing interrupts it meanwhile."""
    with pytest.raises(UnsupportedQueryError, match="makes texts longer than 10,000 characters"):
        parse_query(f"SELECT a.x, b.y FROM a JOIN b ON a.id = b.id WHERE {made} = 'z'")


@pytest.mark.parametrize("kind", ["BIT", "BLOB", "VARCHAR[]", "MAP(VARCHAR, VARCHAR)"])
def test_no_query_casts_to_what_is_longer_as_a_text(kind: str) -> None:
    with pytest.raises(UnsupportedQueryError, match="only numbers, texts and times are"):
        parse_query(f"SELECT a.x, b.y FROM a JOIN b ON a.id = b.id WHERE CAST(CAST(a.x AS {kind}) AS VARCHAR) = 'z'")


def test_texts_that_a_query_cleans_are_no_longer() -> None:
    cleaned = "LPAD(REPLACE(REPLACE(REPLACE(TRIM(a.x), '-', ''), ' ', ''), '/', '.'), 12, '0')"
    parse_query(f"SELECT a.x, b.y FROM a JOIN b ON {cleaned} = UPPER(b.x) || '-' || CAST(b.y AS DECIMAL(9, 2))")


@pytest.mark.parametrize("num_branches", [1, 2])
def test_a_union_of_very_many_combinations_is_counted_and_not_made(num_branches: int) -> None:
    """Of 2 KB of SQL, which nobody has approved, they filled the site's memory."""
    partitions = " UNION ALL ".join(f"SELECT * FROM a{number}" for number in range(12))
    branch = f"SELECT * FROM {', '.join(f'({partitions}) AS t{table}' for table in range(7))}"
    began = time.monotonic()
    with contextlib.suppress(UnsupportedQueryError):
        parse_query(" UNION ALL ".join([branch] * num_branches))
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "condition",
    [
        "id >= 0 AND EXISTS (SELECT 1 FROM salaries AS o(id, x) WHERE o.id = id AND o.x > 50)",
        "id < (SELECT max(x) FROM main.salaries)",
        "id IN (SELECT x FROM salaries)",
        "id >= (SELECT count(*) FROM duckdb_tables())",
    ],
)
def test_what_others_ask_of_a_duckdb_file_sees_no_table_but_the_one_that_is_offered(
    condition: str, tmp_path: Path
) -> None:
    """Whatever came through `parse_query`: the file is asked for columns, and what is evaluated has nothing else."""
    path = str(tmp_path / "a.duckdb")
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE offered AS SELECT i AS id, 0.5 * i AS x FROM range(4) AS t(i)")
        connection.execute("CREATE TABLE salaries AS SELECT i AS id, 10 * i AS x FROM range(10) AS t(i)")
    source = TableSource(kind="duckdb", where=path, table="offered")
    assert source.load(["id"], "id > 1 AND x < 1.4")["id"].to_pylist() == [2]
    if "duckdb_tables" in condition:  # those of a database that holds nothing
        assert source.load(["id"], condition).num_rows == 4
        return
    with pytest.raises(SourceError, match="salaries does not exist"):
        source.load(["id"], condition)
    with pytest.raises(SourceError, match="salaries does not exist"):
        source.load(["id"], computed=[f"CASE WHEN {condition} THEN 1 ELSE 0 END"])


def test_a_query_of_others_computes_for_so_long_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "QUERY_SECONDS", 0.5)
    source = in_memory(pa.table({"id": np.arange(200_000)}))
    dear = "(SELECT sum(a.id * b.id) FROM rows_in_memory AS a, rows_in_memory AS b) > 0"  # no query of others is this
    began = time.monotonic()
    with pytest.raises(SourceError, match=r"computed for more than 0\.5 s"):
        source.load(["id"], dear)
    assert time.monotonic() - began < 30


class Alone(HostedContext):
    """That of an actor that calls nobody."""

    call = put = get = free = None  # type: ignore[assignment]


def test_a_query_ends_with_the_run_of_its_actor() -> None:
    """Its thread would go on, for as long as the query takes, where the site has stopped the run."""
    source = in_memory(pa.table({"id": np.arange(2_000_000)}))
    dear = "(SELECT sum(a.id * b.id) FROM rows_in_memory AS a, rows_in_memory AS b) > 0"

    async def work() -> float:
        context = Alone(
            ActorSpec(Client, "shop", (), {}, Resources()), 0, False, WallClock(time.time()), keep_rows=False
        )
        context._thread = ThreadPoolExecutor(1)
        reading = context._thread.submit(context._timed, source.load, (["id"], dear), Work("read-table"))
        await asyncio.sleep(1)
        assert not reading.done()
        began = time.monotonic()
        context.close()
        with pytest.raises(SourceError, match="its run was stopped"):
            await asyncio.wrap_future(reading)
        return time.monotonic() - began

    assert asyncio.run(work()) < 20

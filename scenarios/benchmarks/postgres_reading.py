"""How fast a PostgreSQL table becomes Arrow, and how much memory that takes beside the rows themselves.

    python -m scenarios.benchmarks.postgres_reading 'postgresql://user@host/database?table=reading'

The table of the figures in the documentation (an id, three numbers, a date, a text; 10 % of a column NULL):

    CREATE TABLE reading AS SELECT i AS id, random() AS x, (random() * 1000)::numeric(8, 2) AS price,
    CASE WHEN i % 10 = 0 THEN NULL ELSE i % 97 END AS visits, DATE '2000-01-01' + (i % 9000)::int AS since,
    'customer ' || (i % 5000) AS name FROM generate_series(1::bigint, 1000000) i;
"""

from __future__ import annotations

import resource
import sys
import time

from fedactors.data.databases import parse_address


def main() -> None:
    """Read the table once and print one line."""
    source = parse_address(sys.argv[1])
    first = next(iter(source.describe()))
    source.load([first], f'"{first}" IS NULL')  # what is imported by the first reading
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    rows = source.load()
    seconds = time.perf_counter() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    size = rows.nbytes / 2**20
    print(f"{rows.num_rows} rows in {seconds:.2f} s, {rows.num_rows / seconds:,.0f} rows/s; {size:.0f} MiB in Arrow, "
          f"peak {peak:.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()

"""Table mapping of a generated star join over three tables, against the same join of the same hashes by DuckDB alone.

    python scenarios/benchmarks/tablepuppet_mapping.py [--smoke] [--out DIR] num_facts=5000000 repeats=5

One fact table joins two tables, one of which has two rows for each key, so the join has 2 * num_facts rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from pydantic import Field

from fedactors.config import build, config, parse_words
from fedactors.data.join import hash_keys, table_mapping
from fedactors.data.query import make_plan, parse_query

QUERY = "SELECT f.y FROM facts f JOIN doubles d ON f.a = d.a JOIN singles s ON f.b = s.b"
SCHEMAS = {
    "facts": {"a": "integer", "b": "integer", "y": "float"},
    "doubles": {"a": "integer"},
    "singles": {"b": "integer"},
}
ALONE = (
    "SELECT f.row, d.row, s.row FROM f, d, s WHERE f.high0 = d.high0 AND f.low0 = d.low0"
    " AND f.high1 = s.high0 AND f.low1 = s.low0"
)


@config
class MappingBenchmark:
    """How large the join is and how often it is timed."""

    num_facts: int = Field(default=5_000_000, ge=1)
    """Rows of the fact table; the join has twice as many."""
    num_keys: int = Field(default=50_000, ge=1)
    """Distinct keys of each of the two other tables."""
    repeats: int = Field(default=5, ge=1)
    """Timed repetitions; medians are printed."""
    threads: int | None = Field(default=None, ge=1)
    """DuckDB's threads on both sides; all cores if none."""


def join_alone(hashes: dict[str, list[np.ndarray]], threads: int | None) -> int:
    """Join the same hashes in one DuckDB query and fetch the row numbers; return how many there are."""
    with duckdb.connect(config={} if threads is None else {"threads": threads}) as connection:
        for name, columns in hashes.items():
            halves: dict[str, np.ndarray] = {"row": np.arange(len(columns[0]), dtype=np.int32)}
            for i, hashed in enumerate(columns):
                pair = hashed.view(np.uint64)
                halves[f"high{i}"], halves[f"low{i}"] = pair[:, 0].copy(), pair[:, 1].copy()
            connection.register(name, pa.table(halves))
        return len(next(iter(connection.sql(ALONE).fetchnumpy().values())))


def measure(settings: MappingBenchmark) -> dict[str, float]:
    """Print and return the medians, their ratio and the peak memory."""
    rng = np.random.default_rng(0)
    n, k = settings.num_facts, settings.num_keys
    tables = {
        "f": pa.table({"a": rng.integers(0, k, n), "b": rng.integers(0, k, n)}),
        "d": pa.table({"a": np.repeat(np.arange(k), 2)}),
        "s": pa.table({"b": np.arange(k)}),
    }
    plan = make_plan(parse_query(QUERY), SCHEMAS, "y")
    start = time.perf_counter()
    hashes = {
        name: [hash_keys(t, e, name, b"benchmark", settings.threads) for e in plan.edges_of(name)]
        for name, t in tables.items()
    }
    hashing = time.perf_counter() - start
    print(f"hashing at the clients       {hashing:8.3f} s")
    mapped, alone = [], []
    for _ in range(settings.repeats):
        start = time.perf_counter()
        num_joined = join_alone(hashes, settings.threads)
        alone.append(time.perf_counter() - start)
        start = time.perf_counter()
        mapping = table_mapping(plan, hashes, settings.threads)
        mapped.append(time.perf_counter() - start)
        assert mapping.num_joined == num_joined
    ours, theirs = statistics.median(mapped), statistics.median(alone)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"table mapping                {ours:8.3f} s for {num_joined:,} joined rows")
    print(f"DuckDB alone, same hashes    {theirs:8.3f} s (ratio {ours / theirs:.2f}, at most 2)")
    print(f"peak memory                  {peak:8.2f} GiB")
    return {"hashing_s": hashing, "mapping_s": ours, "duckdb_s": theirs, "joined_rows": num_joined, "peak_gib": peak}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="key=value", help="settings")
    parser.add_argument("--smoke", action="store_true", help="a small join")
    parser.add_argument("--out", type=Path, help="folder for tablepuppet_mapping.json")
    args = parser.parse_args()
    small = {"num_facts": 5000, "num_keys": 500, "repeats": 1} if args.smoke else {}
    found = measure(build(MappingBenchmark, small | parse_words(args.words)))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "tablepuppet_mapping.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

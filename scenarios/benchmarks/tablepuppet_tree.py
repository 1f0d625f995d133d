"""A whole run of RFL-ADMM-V over a join that is listed, and one whose sums travel along the join tree.

    python scenarios/benchmarks/tablepuppet_tree.py [--smoke] [--out DIR] num_rows=200000 matches=50 join_by=tree

Two tables of `num_rows` rows meet over a key that each row shares with `matches` of the other's, and a third one has a
row for each of 1,000 users: the join has num_rows * matches rows. All parties are in this process, in memory and on
one thread. Processor seconds and the largest resident memory, above what there was before the run, are of everybody:
the clients read, hash, order and solve their own rows in them. `duckdb_s` is what one process needs that has all three
tables: DuckDB lists the join on one thread, and numpy solves the ridge regression on it.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa
from pydantic import Field

from fedactors.config import build, config, parse_words
from fedactors.data.databases import in_memory
from fedactors.data.layouts.vertical import stated
from fedactors.protocols.tablepuppet.config import TablePuppetConfig
from fedactors.protocols.tablepuppet.plugin import PUBLISHED
from fedactors.protocols.tablepuppet.run import run
from fedactors.runs.recorder import MemoryRecorder
from fedactors.runtime.simulation.runtime import SimulatedRuntime

SQL = "SELECT * FROM visits JOIN offers ON visits.town = offers.town JOIN users ON visits.user = users.user"
NUM_USERS = 1000
MOST_LISTED = 20_000_000
"""Joined rows up to which DuckDB lists the join beside the run."""


@config
class TreeBenchmark:
    """How large the join is, and how it is worked on."""

    num_rows: int = Field(default=200_000, ge=1)
    """Rows of each of the two tables."""
    matches: int = Field(default=50, ge=1)
    """Rows of the other table that each row meets."""
    num_rounds: int = Field(default=10, ge=1)
    """Rounds of ADMM."""
    join_by: Literal["rows", "tree", "auto"] = "auto"
    """As of the protocol."""


def tables(settings: TreeBenchmark) -> dict[str, pa.Table]:
    """Return visits with the label, offers at the same places, and users."""
    rng = np.random.default_rng(0)
    n, towns = settings.num_rows, max(settings.num_rows // settings.matches, 1)
    user, age = rng.integers(0, NUM_USERS, n), rng.normal(size=NUM_USERS)
    length = rng.normal(size=n)
    visits = {"town": rng.permutation(n) % towns, "user": user, "length": length}
    visits["spent"] = 20 + 2 * length + age[user] + rng.normal(size=n)
    offers = {"town": rng.permutation(n) % towns, "price": rng.normal(size=n), "stars": rng.normal(size=n)}
    users = {"user": np.arange(NUM_USERS), "age": age}
    return {name: pa.table(columns) for name, columns in (("visits", visits), ("offers", offers), ("users", users))}


def measure(settings: TreeBenchmark) -> dict[str, Any]:
    """Run once; return what it took and what it found."""
    sources = {name: in_memory(table) for name, table in tables(settings).items()}
    protocol = build(
        TablePuppetConfig, {**PUBLISHED, "num_rounds": settings.num_rounds, "join_by": settings.join_by, "threads": 1}
    )
    before, cpu = _peak_mib(), time.process_time()
    runtime = SimulatedRuntime(seed=0, recorder=MemoryRecorder())
    data = stated(SQL, sources, label="spent")
    result = runtime.execute(lambda: run(protocol, data, runtime))
    processor_s, more_mib = time.process_time() - cpu, _peak_mib() - before
    joined = result.extra["joined_rows"] + result.extra["joined_test_rows"]
    return {
        "join_by": settings.join_by,
        "joined_rows": joined,
        "tables_rows": sum(result.extra["rows"].values()),
        "num_rounds": settings.num_rounds,
        "processor_s": round(processor_s, 2),
        "duckdb_s": round(pooled_seconds(settings), 2) if joined <= MOST_LISTED else None,
        "more_mib": round(more_mib),
        "test/rmse": result.metrics["test/rmse"],
        "training/loss": result.metrics["training/loss"],
    }


def pooled_seconds(settings: TreeBenchmark) -> float:
    """Return the processor seconds of DuckDB's join and a ridge regression on its rows."""
    columns = ("length", "price", "stars", "age")
    given = tables(settings)
    cpu = time.process_time()
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, table in given.items():
            connection.register(name, table)
        joined = connection.sql(SQL.replace("*", ", ".join((*columns, "spent")), 1)).fetchnumpy()
    x_ND = np.column_stack([joined[name] for name in columns])
    x_ND = np.column_stack([(x_ND - x_ND.mean(0)) / x_ND.std(0), np.ones(len(x_ND))])
    np.linalg.solve(x_ND.T @ x_ND / len(x_ND) + 1e-5 * np.eye(len(columns) + 1), x_ND.T @ joined["spent"] / len(x_ND))
    return time.process_time() - cpu


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="key=value", help="settings")
    parser.add_argument("--smoke", action="store_true", help="a small join")
    parser.add_argument("--out", type=Path, help="folder for tablepuppet_tree.json")
    args = parser.parse_args()
    small = {"num_rows": 500, "matches": 10, "num_rounds": 2} if args.smoke else {}
    found = measure(build(TreeBenchmark, small | parse_words(args.words)))
    print("\n".join(f"{name:16} {value}" for name, value in found.items()))
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "tablepuppet_tree.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

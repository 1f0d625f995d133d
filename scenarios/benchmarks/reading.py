"""How long a party's file becomes numbers, in processor seconds, and how much memory that takes beside the numbers.

    python -m scenarios.benchmarks.reading [ROWS] [FOLDER]
    python -m scenarios.benchmarks.reading wide [COLUMNS]
    python -m scenarios.results docs/results    # its table, of the rows in docs/results/data/reading.jsonl

A table of an id, six numbers with gaps, two categories, a date and a label, as CSV and as Parquet, read as `FileSource`
does. Each reading is a process of its own, so that its peak is its own; the best of three is given, as JSON:

    columns     values --> numbers, by the rules of the columns alone
    whole       file --> numbers with ids, label and checks
    peak_mib    of the process, less what it had before it read

With ``wide``: of a table of 200 rows and so many columns, of which one value in a hundred is missing, the seconds of a
party's reading, and of a whole run of PubSub-VFL on it, with the check of the data and its checkpoints.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import fedactors
from fedactors.data.columns import ColumnRule, encode, fit
from fedactors.data.readers import read_columns
from fedactors.data.sources import FileSource

ROWS = 300_000
WIDE_ROWS, WIDE_COLUMNS = 200, 5_000
RULES = (
    *((f"x{number}", ColumnRule(missing="median")) for number in range(6)),
    ("region", ColumnRule(type="categorical", missing="indicator")),
    ("job", ColumnRule(type="text")),
    ("since", ColumnRule(type="datetime")),
)


def write(folder: Path, num_rows: int) -> None:
    """Write the table twice."""
    rng = np.random.default_rng(0)
    columns = {"id": pa.array([f"c{row:07d}" for row in range(num_rows)])}
    for number in range(6):
        values = np.round(rng.normal(1000, 200, num_rows), 2)
        columns[f"x{number}"] = pa.array(values, mask=rng.random(num_rows) < 0.05)
    for name, count in (("region", 12), ("job", 40)):
        columns[name] = pa.array([f"{name} {number}" for number in rng.integers(0, count, num_rows)])
    columns["since"] = pa.array((np.datetime64("2000-01-01") + rng.integers(0, 9000, num_rows)).astype("datetime64[D]"))
    columns["y"] = pa.array(rng.integers(0, 2, num_rows))
    table = pa.table(columns)
    pyarrow.csv.write_csv(table, folder / "rows.csv")
    pyarrow.parquet.write_table(table, folder / "rows.parquet")


def read(path: str) -> dict[str, float]:
    """Read one of the files, and measure it."""
    facts = {"party": "bank", "path": path, "task": "binary", "num_classes": 2, "rules": RULES}
    source = FileSource(id_column="id", label="y", **facts)  # type: ignore[arg-type]
    small = {"x": read_columns(Path(path), "bank", wanted=["y"])["y"]}
    encode(small, fit(small, {}, "bank"), "bank", new=False)  # what is imported by the first reading
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    block = source.load()
    whole = time.process_time() - start
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    columns = read_columns(Path(path), "bank", wanted=[name for name, _ in RULES])
    start = time.process_time()
    encode(columns, fit(columns, dict(RULES), "bank"), "bank", new=False)
    rules = time.process_time() - start
    return {"columns": rules, "whole": whole, "peak_mib": peak, "numbers_mib": block.features.nbytes / 2**20}


def run_wide(folder: Path, num_columns: int) -> dict[str, float]:
    """Read a table of many columns, and train on it."""
    rng = np.random.default_rng(0)
    ids = [f"c{row:03d}" for row in range(WIDE_ROWS)]
    columns = {
        f"g{number}": pa.array(np.round(rng.random(WIDE_ROWS), 3), mask=rng.random(WIDE_ROWS) < 0.01)
        for number in range(num_columns)
    }
    bank = {"id": ids, "age": rng.normal(size=WIDE_ROWS), "y": rng.integers(0, 2, WIDE_ROWS)}
    pyarrow.csv.write_csv(pa.table(bank), folder / "bank.csv")
    pyarrow.csv.write_csv(pa.table({"id": ids, **columns}), folder / "shop.csv")
    (folder / "parties.toml").write_text(
        '[task]\ntype = "binary"\nalignment = "hash"\n[parties.bank]\npath = "bank.csv"\nid = "id"\nlabel = "y"\n'
        '[parties.shop]\npath = "shop.csv"\nid = "id"\n[parties.shop.columns]\n"*" = { missing = "mean" }\n'
    )
    (folder / "small").mkdir()
    pyarrow.csv.write_csv(pa.table({"id": ids, "g0": columns["g0"]}), folder / "small" / "shop.csv")
    for name in ("bank.csv", "parties.toml"):
        (folder / "small" / name).write_bytes((folder / name).read_bytes())
    settings: dict[str, Any] = {"num_epochs": 3, "batch_size": 32, "seed": 0}
    fedactors.simulate("pubsub-vfl", folder / "small" / "parties.toml", **settings)  # what is imported by the first
    facts = {"party": "shop", "path": str(folder / "shop.csv"), "task": "binary", "num_classes": 2, "id_column": "id"}
    start = time.process_time()
    FileSource(rules=(("*", ColumnRule(missing="mean")),), **facts).load()  # type: ignore[arg-type]
    whole = time.process_time() - start
    start = time.process_time()
    fedactors.simulate("pubsub-vfl", folder / "parties.toml", **settings)
    return {"columns": num_columns, "whole": round(whole, 2), "run": round(time.process_time() - start, 2)}


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the Markdown table of committed figures: a line a version and file."""
    header = ["version", "file", "columns, s", "whole, s", "peak, MiB", "numbers, MiB"]
    lines = [header, ["---"] * len(header)]
    for row in rows:
        figures = [
            f"{row['columns']:.2f}",
            f"{row['whole']:.2f}",
            f"{row['peak_mib']:.0f}",
            f"{row['numbers_mib']:.0f}",
        ]
        lines.append([row["version"], row["file"], *figures])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    """Print the figures of both files."""
    if sys.argv[1:2] == ["wide"]:
        with tempfile.TemporaryDirectory() as name:
            print(json.dumps(run_wide(Path(name), int(sys.argv[2]) if len(sys.argv) > 2 else WIDE_COLUMNS)))
        return
    if len(sys.argv) == 3 and Path(sys.argv[2]).is_file():
        print(json.dumps(read(sys.argv[2])))
        return
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else name)
        write(folder, num_rows)
        found: dict[str, object] = {"rows": num_rows, "cells": num_rows * (len(RULES) + 2)}
        for file in ("rows.csv", "rows.parquet"):
            words = [sys.executable, "-m", "scenarios.benchmarks.reading", "0", str(folder / file)]
            runs = [json.loads(subprocess.run(words, check=True, capture_output=True).stdout) for _ in range(3)]
            found[file] = {key: round(min(run[key] for run in runs), 3) for key in runs[0]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""How much memory a run needs beside what it starts with, of tables larger than that memory.

    python -m scenarios.benchmarks.large_tables PROTOCOL [ROWS] [COLUMNS] [LIMIT] [KIND]

PROTOCOL is pubsub-vfl, mtcd or horizontal, whose tables are files of two parties with COLUMNS numbers in each row, of
the kind parquet, csv or sqlite, or tables of PostgreSQL (KIND is a server's address, postgresql://...); or tablepuppet,
whose ROWS sales, of as many numbers, join items and shops. Tables are written in blocks to a
temporary folder and read by a simulated run in a process of its own, which prints one line of JSON:

    table_mib   the numbers of all tables in double precision
    peak_mib    the largest anonymous memory of the run, less what was there when it began
    rss_mib     the same with pages of files that are mapped, which the system takes back where memory is short
    seconds     processor time of the run

LIMIT is the memory, in MiB, that tables are large beside; the machine's unless given.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedactors.data import values

ROWS, COLUMNS = 2_000_000, 10
_BLOCK = 1 << 16
SETTINGS: dict[str, dict[str, Any]] = {
    "pubsub-vfl": {"num_epochs": 1, "batch_size": 1024, "hidden_size": 16, "num_layers": 2},
    "mtcd": {
        "problem": "network",
        "num_clients": 2,
        "num_rounds": 2,
        "batch_size": 1024,
        "relaxed_protocol": True,
    },
    "horizontal": {"num_rounds": 1, "local_epochs": 1, "batch_size": 1024, "model": "linear"},
    "tablepuppet": {"num_rounds": 3, "join_by": "rows"},
}
QUERY = (
    "SELECT {}, items.price, shops.size, sales.y FROM sales JOIN items ON sales.item = items.item "
    "JOIN shops ON sales.shop = shops.shop"
)
NUM_ITEMS, NUM_SHOPS = 10_000, 1_000
_TABLES = ("sales", "items", "shops")


def write(protocol: str, folder: Path, num_rows: int, num_columns: int, kind: str = "parquet") -> tuple[Path, float]:
    """Write the tables and their description; return its path and the MiB of their numbers."""
    if protocol == "tablepuppet":
        return _write_star(folder, num_rows, num_columns)
    for number, name in enumerate(("one", "two", "test")):
        labelled = name == "one" or protocol == "horizontal"
        count = num_rows if name != "test" else min(num_rows, 1000)
        _write(folder, name, count, number, num_columns, labelled, "parquet" if name == "test" else kind)
    parties = "\n".join(
        f"[parties.{name}]\n{_located(name, kind)}\n"
        + ('label = "y"\n' if name == "one" or protocol == "horizontal" else "")
        for name in ("one", "two")
    )
    layout = 'layout = "horizontal"\nclasses = [0, 1]\ntest = "test.parquet"' if protocol == "horizontal" else ""
    text = f'[task]\ntype = "binary"\n{layout}\n{parties}'
    (folder / "parties.toml").write_text(text)
    return folder / "parties.toml", 2 * num_rows * num_columns * 8 / 2**20


def _located(name: str, kind: str) -> str:
    """Return what a description says of where a party's rows are."""
    if kind in ("parquet", "csv"):
        return f'path = "{name}.{kind}"'
    where = f"{name}.sqlite" if kind == "sqlite" else kind
    return f'tables = {{ big_{name} = "{where}" }}\nsql = "SELECT * FROM big_{name}"'


def _write(folder: Path, name: str, num_rows: int, seed: int, num_columns: int, has_label: bool, kind: str) -> None:
    blocks = _blocks(num_rows, seed, num_columns, has_label)
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / f"{name}.sqlite")) as connection:
            for number, block in enumerate(blocks):
                if not number:
                    connection.execute(f"CREATE TABLE big_{name} ({_declared(block)})")
                marks = ", ".join("?" * block.num_columns)
                rows = zip(*(column.to_pylist() for column in block.columns), strict=True)
                connection.executemany(f"INSERT INTO big_{name} VALUES ({marks})", rows)
            connection.commit()
        return
    if kind not in ("parquet", "csv"):
        psycopg = importlib.import_module("psycopg")
        with psycopg.connect(kind) as connection:
            for number, block in enumerate(blocks):
                if not number:
                    connection.execute(f"DROP TABLE IF EXISTS big_{name}")
                    connection.execute(f"CREATE TABLE big_{name} ({_declared(block)})")
                text = io.BytesIO()
                pyarrow.csv.write_csv(block, text, pyarrow.csv.WriteOptions(include_header=False))
                with connection.cursor().copy(f"COPY big_{name} FROM STDIN (FORMAT csv)") as copy:
                    copy.write(text.getvalue())
        return
    make = pyarrow.parquet.ParquetWriter if kind == "parquet" else pyarrow.csv.CSVWriter
    writer = None
    for block in blocks:
        writer = writer or make(folder / f"{name}.{kind}", block.schema)
        writer.write_table(block)
    assert writer is not None
    writer.close()


def _declared(block: pa.Table) -> str:
    """Return the columns of a table of a database."""
    return ", ".join(f"{name} {'BIGINT' if name == 'y' else 'DOUBLE PRECISION'}" for name in block.column_names)


def _blocks(num_rows: int, seed: int, num_columns: int, has_label: bool) -> Iterator[pa.Table]:
    rng = np.random.default_rng(seed)
    for first in range(0, num_rows, _BLOCK):
        size = min(_BLOCK, num_rows - first)
        columns = {f"x{number}": rng.normal(size=size) for number in range(num_columns)}
        if has_label:
            columns["y"] = (columns["x0"] + rng.normal(size=size) > 0).astype(np.int64)
        yield pa.table(columns)


def _write_star(folder: Path, num_rows: int, num_columns: int) -> tuple[Path, float]:
    rng = np.random.default_rng(0)
    items, shops = rng.normal(size=NUM_ITEMS), rng.normal(size=NUM_SHOPS)
    for name, numbers, column in (("item", items, "price"), ("shop", shops, "size")):
        pyarrow.parquet.write_table(
            pa.table({name: np.arange(len(numbers)), column: numbers}), folder / f"{name}s.parquet"
        )
    writer = None
    for first in range(0, num_rows, _BLOCK):
        size = min(_BLOCK, num_rows - first)
        item, shop = rng.integers(0, NUM_ITEMS, size), rng.integers(0, NUM_SHOPS, size)
        features = {f"x{number}": rng.normal(size=size) for number in range(num_columns)}
        y = features["x0"] + items[item] - shops[shop] + rng.normal(size=size)
        table = pa.table({"item": item, "shop": shop, **features, "y": y})
        writer = writer or pyarrow.parquet.ParquetWriter(folder / "sales.parquet", table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    parties = "\n".join(f'[parties.{name}]\npath = "{name}.parquet"\ntable = "{name}"' for name in _TABLES)
    sql = QUERY.format(", ".join(f"sales.x{number}" for number in range(num_columns)))
    text = f'[task]\ntype = "regression"\nlayout = "relational"\nlabel = "sales.y"\nsql = "{sql}"\n{parties}'
    (folder / "parties.toml").write_text(text)
    return folder / "parties.toml", num_rows * (3 + num_columns) * 8 / 2**20


class Peak:
    """The largest memory of this process while a block runs, beyond what was there before, in MiB."""

    def __enter__(self) -> Peak:
        self.anonymous, self.whole = 0.0, 0.0
        self._first = _memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            anonymous, whole = (now - first for now, first in zip(_memory(), self._first, strict=True))
            self.anonymous, self.whole = max(self.anonymous, anonymous), max(self.whole, whole)


def _memory() -> tuple[float, float]:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(int(fields[name].split()[0]) / 1024 for name in ("RssAnon", "VmRSS"))  # type: ignore[return-value]


def run(protocol: str, description: str, limit_mib: float = 0.0) -> dict[str, float]:
    """Run a protocol in this process, and measure it."""
    import torch  # what a run imports is no part of what it needs

    import fedactors

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        fedactors.simulate(protocol, str(write(protocol, Path(name), 2000, 10)[0]), **SETTINGS[protocol])
    if limit_mib:
        values.LARGE = limit_mib / 128 * 2**20 / values.memory_of_machine()
    start = time.process_time()
    with Peak() as peak:
        metrics = _joined(description) if protocol == "tablepuppet" else _simulated(protocol, description)
    seconds = time.process_time() - start
    told = {"peak_mib": round(peak.anonymous, 1), "rss_mib": round(peak.whole, 1), "seconds": round(seconds, 2)}
    return told | {"loss": metrics["test/loss"]}


def _simulated(protocol: str, description: str) -> dict[str, Any]:
    import fedactors

    return dict(fedactors.simulate(protocol, description, **SETTINGS[protocol]).metrics)


def _joined(description: str) -> dict[str, Any]:
    """Run TablePuppet without checkpoints, which hold what the server has of each joined row."""
    from fedactors.config import build
    from fedactors.protocols.tablepuppet.config import TablePuppetConfig
    from fedactors.protocols.tablepuppet.data import load_data
    from fedactors.protocols.tablepuppet.run import run as run_protocol
    from fedactors.runtime.simulation.runtime import SimulatedRuntime

    config = build(TablePuppetConfig, SETTINGS["tablepuppet"])
    runtime = SimulatedRuntime(seed=0, checkpoint_every=0)
    data = load_data(config, description, 0)
    return dict(runtime.execute(lambda: run_protocol(config, data, runtime)).metrics)


def measure(
    protocol: str, num_rows: int, num_columns: int, limit_mib: float = 0.0, kind: str = "parquet"
) -> dict[str, float]:
    """Write tables, run a protocol on them in a process of its own, and return what it measured."""
    with tempfile.TemporaryDirectory() as name:
        description, table_mib = write(protocol, Path(name), num_rows, num_columns, kind)
        words = [
            sys.executable,
            "-m",
            "scenarios.benchmarks.large_tables",
            protocol,
            str(description),
            "0",
            str(limit_mib),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        return {"rows": num_rows, "table_mib": round(table_mib, 1), **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Print the figures of a protocol."""
    protocol, *given = sys.argv[1:]
    if given and given[0].endswith(".toml"):
        print(json.dumps(run(protocol, given[0], float(given[2]))))
        return
    rows, columns, limit, kind = (*given, *(str(ROWS), str(COLUMNS), "0", "parquet")[len(given) :])
    print(json.dumps(measure(protocol, int(float(rows)), int(float(columns)), float(limit), kind)))


if __name__ == "__main__":
    main()

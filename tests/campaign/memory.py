"""Whether the memory of a run grows, run by hand: on Ray every process, object store and shared memory included.

    python -m tests.campaign.memory ray pubsub-vfl 1800 docs/results/memory.parquet num_epochs=100000 batch_size=64
    python -m tests.campaign.memory simulated horizontal 3000 docs/results/memory.parquet num_rounds=10000 ...

A row each ten seconds (simulated: two): seconds, rounds, and megabytes. On Ray of each kind of process and of all
(libraries left out, of which the other programs of the machine hold a part), of shared memory (counted once), of
temporary files, and of all that lies in /dev/shm; simulated of the one process: what is resident (RSS), and what of
that is its own. At last the means of the second and of the last third. Rows of an earlier run of the same kind go.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from tests.campaign.environment import Environment

_EVERY = 10.0
_KINDS = ("driver", "actor", "GCS", "raylet", "agent")


def weigh(environment: Environment) -> dict[str, float]:
    """Return megabytes of memory and of temporary files that a place's runs hold."""
    sums: Counter[str] = Counter()
    for pid, kind in environment.processes().items():
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "Pss_Anon":
                    sums[kind if kind in _KINDS else "others of Ray's"] += int(value.split()[0])
                elif name == "Pss_Shmem":
                    sums["shared"] += int(value.split()[0])
    found = {name: kilobytes / 1024 for name, kilobytes in sums.items()}
    files = sum(
        f.stat().st_blocks * 512 for f in environment.temporary.rglob("*") if f.is_file() and not f.is_symlink()
    )
    return {**found, "all": sum(found.values()), "files": files / 2**20}


def weigh_process(pid: int) -> dict[str, float]:
    """Return megabytes of one process: resident, and its own."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {what: int(fields[name].split()[0]) / 1024 for what, name in (("resident", "VmRSS"), ("own", "RssAnon"))}


def in_memory_files() -> float:
    """Return megabytes of all files of Ray's in /dev/shm, whoever holds them open."""
    return sum(path.stat().st_blocks * 512 for path in Path("/dev/shm").iterdir() if path.is_file()) / 2**20


def watch(runtime: str, protocol: str, seconds: float, words: list[str]) -> tuple[int | None, list[dict[str, float]]]:
    """Run a protocol for so long at most, and return its exit code and what it held."""
    environment, every = Environment(), _EVERY if runtime == "ray" else _EVERY / 5
    found: list[dict[str, float]] = []
    try:
        before = in_memory_files()
        began = time.monotonic()
        start = ["run", protocol, *words, "--runtime", runtime, "--quiet", "--out", str(environment.out)]
        process = environment.start(environment.folder / "memory.pids", *start)
        while process.poll() is None and time.monotonic() < began + seconds:
            time.sleep(every)
            rounds = sum(len(f.read_text().splitlines()) for f in environment.out.glob("*/metrics/round_metrics.jsonl"))
            with suppress(OSError, KeyError):
                if runtime == "ray":
                    held = {**weigh(environment), "/dev/shm": in_memory_files() - before}
                else:
                    held = weigh_process(process.pid)
                found.append({"seconds": round(time.monotonic() - began, 1), "rounds": rounds, **held})
                print(json.dumps(found[-1]), flush=True)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait(600), found
    finally:
        environment.remove()


def main(runtime: str, protocol: str, seconds: float, out: Path, words: list[str]) -> int:
    """Watch a run, add what it held to a table, and say whether it grew."""
    code, found = watch(runtime, protocol, seconds, words)
    started = [one for one in found if one["rounds"] > 0]
    third = len(started) // 3
    for name in list(started[-1])[2:]:
        parts = [started[third:-third], started[-third:]]
        means = [statistics.fmean(one.get(name, 0.0) for one in part) for part in parts]
        print(json.dumps({"what": name, "second third": means[0], "last third": means[1]}), flush=True)
    run = f"{runtime} {protocol}"
    rows = parquet.read_table(out).to_pylist() if out.exists() else []
    rows = [row for row in rows if row["run"] != run]
    for one in started:
        at = {"run": run, "seconds": one["seconds"], "rounds": int(one["rounds"])}
        rows += [{**at, "what": name, "megabytes": value} for name, value in list(one.items())[2:]]
    parquet.write_table(pa.Table.from_pylist(rows), out, compression="zstd")
    return code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:]))

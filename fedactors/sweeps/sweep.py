"""A sweep: plans trials, takes from the cache what is known, runs the rest, and writes one table.

    settings x seeds --> trials --> cached? --> row                     DIR/cache/<digest>.json, one file a finished run
                            |                    |
                            +-- processes, Ray --+--> DIR/NAME.parquet

Each row is kept as soon as its run ends, so that a sweep that was interrupted or killed goes on where it stopped. A run
that failed is a row of the table too, but is not kept: it is tried again by the next sweep that has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from fedactors.plugins import find_protocol
from fedactors.records.storage import write_atomic
from fedactors.records.table import RunRow, write_table
from fedactors.sweeps.choice import Criterion, choose
from fedactors.sweeps.execution import run_all
from fedactors.sweeps.trials import Trial, failed_row, run_trial

Told = Callable[[int, int, Trial, RunRow], None]
"""Called with (runs done, runs in all, trial, its row) after each run."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What a sweep left: its table, its rows in the order of the trials, and the choice if one was asked for."""

    table: Path
    rows: Sequence[RunRow]
    num_cached: int
    choice: Mapping[str, Any] | None

    @property
    def num_failed(self) -> int:
        """Number of runs that failed."""
        return sum(row.status == "failed" for row in self.rows)


def sweep(
    trials: Sequence[Trial],
    table: Path,
    *,
    jobs: int = 1,
    address: str | None = None,
    again: bool = False,
    criterion: Criterion | None = None,
    told: Told | None = None,
) -> Sweep:
    """Run the trials that are not cached, write the table, and choose.

    Args:
        trials: see `fedactors.sweeps.trials.plan`.
        table: the file; the cache lies beside it.
        jobs: number of processes of this machine.
        address: a Ray cluster whose tasks run the trials instead.
        again: run also what is cached.
        criterion: what a setting is chosen by.
        told: hears of each run that ends.

    Raises:
        BadInput: the folder cannot be written, or nobody answers at the address.
    """
    cache = Cache(table.parent / "cache")
    rows = {} if again else {trial.digest: row for trial in trials if (row := cache.get(trial.digest)) is not None}
    missing = [trial for trial in trials if trial.digest not in rows]
    num_cached = len(rows)
    try:
        for place, row in _executed(missing, jobs, address):
            rows[row.digest] = row
            if row.status == "finished":
                cache.put(row)
            if told is not None:
                told(len(rows), len(trials), missing[place], row)
    finally:
        done = [rows[trial.digest] for trial in trials if trial.digest in rows]
        headline = find_protocol(trials[0].protocol).headline
        facts = {"headline": {"name": headline.name, "mode": headline.mode}}
        if done:
            write_table(table, done, facts)
    choice = None
    if criterion is not None:
        choice = choose(done, criterion, {trial.digest: trial.settings for trial in trials})
        write_table(table, done, {**facts, "choice": choice})
    return Sweep(table=table, rows=done, num_cached=num_cached, choice=choice)


class Cache:
    """Rows of finished runs in a folder, by digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, digest: str) -> RunRow | None:
        """Return the row of a run, or None if there is none that can be read."""
        try:
            return RunRow.from_dict(json.loads((self.folder / f"{digest}.json").read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def put(self, row: RunRow) -> None:
        """Keep a row, whole or not at all."""
        write_atomic(self.folder / f"{row.digest}.json", json.dumps(row.as_dict()).encode())


def _executed(trials: Sequence[Trial], jobs: int, address: str | None) -> Any:
    if address is None:
        return run_all(run_trial, trials, jobs=jobs, when_lost=failed_row)
    if any(trial.runtime != "simulated" for trial in trials):
        raise BadInput("--address: needs --runtime simulated; each run of a sweep is one task of the cluster")
    from fedactors.runtime.ray.tasks import run_on_cluster

    return run_on_cluster(run_trial, trials, address=address, when_lost=failed_row)

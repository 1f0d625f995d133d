"""Studies: scripts that measure a paper's table or figure, row by row, into a committed table of runs.

    given = study_flags(__doc__, "glasu", RESULTS).parse_args(namespace=Study())
    given.measure("table2", {"GLASU-1": {"num_local_updates": 1}}, once)       # once(point, seed) -> RunRow

``--smoke`` runs the smallest thing that means something, ``--paper`` the paper's size; without either a script runs at
the size of the committed results. A row that is there already is left alone unless ``--again`` is given.

Each row keeps the command that makes it alone: the script with ``--row STUDY/NAME --seeds SEED``. It writes nothing,
but prints the row beside the one in the table and ends with 1 if they differ (`scenarios.paper.repeat`). What a
simulated row took is told in processor seconds, which the load of the machine does not change.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import functools
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fedactors.cli.terminal import format_value
from fedactors.config import as_dict, build
from fedactors.errors import BadInput, Diverged
from fedactors.plugins import find_protocol
from fedactors.runs.storage import disk_errors
from fedactors.runs.table import RunRow, read_table, write_table
from fedactors.sweeps import code_digest, data_digest, run_all, versions
from scenarios.paper.repeat import Repeat

P = TypeVar("P")
Once = Callable[[P, int], RunRow]
"""``once(point, seed)``: the row of one run, its study and name left to the caller."""
_HOW_MANY = {"--only": 1, "--row": 1, "--seeds": 1, "--out": 1, "--jobs": 1, "--again": 0}
"""Flags that choose rows or say how they are run, and how many values follow: no part of the command of one row."""


class Study(argparse.Namespace):
    """What the command line says; see `study_flags`."""

    protocol: str
    out: Path
    seeds: tuple[int, ...]
    only: str
    row: str | None
    smoke: bool
    paper: bool
    again: bool
    jobs: int
    words: list[str]

    @property
    def settings(self) -> dict[str, str]:
        """The config values given as ``key=value``."""
        for word in self.words:
            if "=" not in word:
                raise BadInput(f"{word!r} is not key=value")
        return dict(word.split("=", 1) for word in self.words)

    @property
    def table(self) -> Path:
        """The table that rows are read from and written into."""
        return self.out / f"{self.protocol}.parquet"

    def rows(self, study: str, name: str | None = None) -> list[RunRow]:
        """Return what has been measured of a study, or of one of its rows, in the order of the table."""
        return rows_of(self.table, study, name)

    def wants(self, name: str) -> bool:
        """Say whether ``--only`` lets a row or panel through: its name holds one of the texts; ``--row`` asks later."""
        return self.row is not None or any(text in name for text in self.only.split(","))

    def lacks(self, study: str, name: str, num_seeds: int = 1) -> bool:
        """Say whether a row must be measured: not there with so many seeds, ``--again``, or the one of ``--row``."""
        if self.row is not None:
            return self.row == f"{study}/{name}"
        return self.again or len(self.rows(study, name)) < num_seeds

    def measure(
        self,
        study: str,
        points: Mapping[str, P],
        once: Once[P],
        *,
        seeds: Sequence[int] | None = None,
        all_seeds: bool = False,
        whole: bool = False,
        as_set: bool = False,
        smoke_rows: int | None = None,
    ) -> None:
        """Run the points that are wanted and not there yet over the seeds, and put their rows into the table.

        A run that diverges is a row that says so.

        Args:
            study: table or figure that they belong to.
            points: what to run, by the name of its row.
            once: runs one of them with one seed; with ``--jobs`` a function of a module, as points go to processes.
            seeds: instead of those of the command line.
            all_seeds: measure again what is there with fewer seeds; with `as_set`, only the seeds that are not there.
            whole: ``--only`` has been asked already.
            as_set: measure again what is there with other settings than those of its point (its `settings`, or the
                point itself), which may follow from other rows.
            smoke_rows: with ``--smoke``, only so many.
        """
        seeds = seeds or self.seeds
        seeds = seeds[:1] if self.smoke else seeds
        wanted = [name for name in points if whole or self.wants(f"{study}/{name}")][
            : smoke_rows if self.smoke else None
        ]
        missing = [
            name
            for name in wanted
            if self.lacks(study, name, len(seeds) if all_seeds else 1)
            or (as_set and self.row is None and not self._is_as_set(study, name, points[name]))
        ]
        kept: dict[str, list[RunRow]] = {name: [] for name in missing}
        for name in missing if all_seeds and as_set and not self.again and self.row is None else ():
            if self._is_as_set(study, name, points[name]):
                kept[name] = [row for row in self.rows(study, name) if row.seed in seeds]
        asked = [
            (name, points[name], seed)
            for name in missing
            for seed in seeds
            if all(row.seed != seed for row in kept[name])
        ]
        made: dict[str, list[RunRow]] = {}
        for index, row in run_all(functools.partial(_once, once), asked, jobs=self.jobs):
            name = asked[index][0]
            made.setdefault(name, []).append(row)
            if len(made[name]) + len(kept[name]) == len(seeds):
                self.put(study, name, made[name], list(points), kept[name])

    def _is_as_set(self, study: str, name: str, point: Any) -> bool:
        """Say whether all rows of a name were made with what the point sets; what it leaves open is not compared."""
        settings = getattr(point, "settings", point)
        asked = as_dict(build(find_protocol(self.protocol).Config, dict(settings)))
        rows = self.rows(study, name)
        return all(row.config.get(key, asked[key]) == asked[key] for row in rows for key in settings)

    def put(
        self, study: str, name: str, rows: Iterable[RunRow], order: Sequence[str] = (), kept: Sequence[RunRow] = ()
    ) -> None:
        """Put the rows of a name into the table, with how they were made, and say what came out.

        Args:
            study: table or figure that they belong to.
            name: of the rows.
            rows: those just made.
            order: of names in the study.
            kept: rows of the name that stay beside them as they are.
        """
        rows = [self._known(study, name, row) for row in rows]
        if self.row is not None:
            if self.row == f"{study}/{name}":
                self._compare(rows)
            return
        put_rows(self.table, sorted([*kept, *rows], key=lambda row: row.seed), order)
        first = rows[0]
        shown = first.failure or format_value(dict(list(first.metrics.items())[:6]))
        print(f"{study}/{name}: {shown} ({first.wall_seconds:.1f} s)", flush=True)

    def replace(self, study: str, rows: Mapping[str, RunRow]) -> None:
        """Put one row a name as all that a study has: what was compared before may go by other names."""
        if self.row is not None:
            for name, row in rows.items():
                self.put(study, name, [row])
            return
        put_rows(self.table, [self._known(study, name, row) for name, row in rows.items()], list(rows), (study,))
        print(f"{study}: {len(rows)} rows", flush=True)

    def command(self, study: str, name: str, seed: int) -> str:
        """Return the command line of this script that makes one row with one seed."""
        words, rest = [], list(sys.argv[1:])
        while rest:
            word = rest.pop(0)
            flag, is_joined, _ = word.partition("=")
            if flag not in _HOW_MANY:
                words.append(word)
            elif not is_joined:
                del rest[: _HOW_MANY[flag]]
        return shlex.join(["python", *_script(), *words, "--row", f"{study}/{name}", "--seeds", str(seed)])

    def _known(self, study: str, name: str, row: RunRow) -> RunRow:
        """Return a row with all that is needed to make it again."""
        protocol = find_protocol(self.protocol)
        return dataclasses.replace(
            row,
            protocol=protocol.name,
            study=study,
            name=name,
            # what failed has as its configuration what was set
            config=as_dict(build(protocol.Config, row.config)) if row.status == "failed" and row.config else row.config,
            command=self.command(study, name, row.seed),
            code=_code(self.protocol),
            content=data_digest(row.data) if row.data else "",
            versions=versions(),
        )

    def _compare(self, rows: Sequence[RunRow]) -> NoReturn:
        """Print rows made again beside those of the table, and end; nothing is written."""
        known = {row.seed: row for row in self.rows(rows[0].study, rows[0].name)}
        missing = [row.seed for row in rows if row.seed not in known]
        if missing:
            raise BadInput(f"{self.table}: has no row {self.row} with seed {missing[0]}")
        others = {seed: [row for row in known.values() if row.seed != seed] for seed in known}
        repeats = [Repeat(known=known[row.seed], again=row, others=others[row.seed]) for row in rows]
        print(*repeats, sep="\n", flush=True)
        raise SystemExit(any(repeat.differences for repeat in repeats))


class _Flags(argparse.ArgumentParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        # config values may stand before, between and after the flags
        return self.parse_intermixed_args(args, namespace)


def study_flags(
    description: str | None, protocol: str, results: Path, *, seeds: Sequence[int] = (0,)
) -> argparse.ArgumentParser:
    """Return a parser with the flags of every study; a script may add its own.

    Args:
        description: the script's documentation.
        protocol: whose table it is: the name of its package.
        results: folder of the committed tables.
        seeds: those of a run that gives none.
    """
    made = _Flags(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    made.set_defaults(protocol=protocol)
    made.add_argument("--out", type=Path, default=results, metavar="DIR", help="folder of the table of runs")
    made.add_argument("--seeds", type=_numbers, default=tuple(seeds), metavar="N,N", help="(default: %(default)s)")
    made.add_argument("--only", default="", metavar="TEXT,TEXT", help="measure only what has one of these in its name")
    made.add_argument(
        "--row", metavar="STUDY/NAME", help="make only this row, compare it with the table, write nothing"
    )
    made.add_argument("--smoke", action="store_true", help="the smallest run that means something")
    made.add_argument("--paper", action="store_true", help="the paper's size")
    made.add_argument("--again", action="store_true", help="measure also what is in the table already")
    made.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time, each in a process of its own")
    made.add_argument("words", nargs="*", metavar="key=value", help="config values of every run")
    return made


def rows_of(table: Path, study: str, name: str | None = None) -> list[RunRow]:
    """Return the rows of a study in a table, or of one name, in their order; none if there is no table."""
    return [row for row in _read(table) if row.study == study and name in (None, row.name)]


def _read(table: Path) -> list[RunRow]:
    return _read_at(table, table.stat().st_mtime_ns) if table.exists() else []


@functools.lru_cache(maxsize=8)
def _read_at(table: Path, modified: int) -> list[RunRow]:
    return read_table(table)


def _once(once: Once[P], asked: tuple[str, P, int]) -> RunRow:
    _, point, seed = asked
    begun = time.process_time()
    try:
        row = once(point, seed)
        took = time.process_time() - begun
        return dataclasses.replace(row, wall_seconds=took) if row.runtime == "simulated" else row
    except Diverged as error:
        settings = getattr(point, "settings", point)
        config = settings if isinstance(settings, Mapping) else {}
        data = getattr(point, "data", "")
        return RunRow(protocol="", seed=seed, data=data, status="failed", failure=str(error), config=config)


def _script() -> list[str]:
    """Return the words that start this script: its path in the project, or ``-m`` and its module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None:
        return ["-m", spec.name]
    script = Path(sys.argv[0])
    return [str(Path(*script.parts[script.parts.index("scenarios") :]) if "scenarios" in script.parts else script)]


@functools.cache
def _code(protocol: str) -> str:
    return code_digest(find_protocol(protocol))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def put_rows(path: Path, rows: Iterable[RunRow], order: Sequence[str] = (), whole: Sequence[str] = ()) -> None:
    """Put rows into the table at `path`, in place of those of the same study and name; several processes may at a time.

    Args:
        path: of the table, which need not exist.
        rows: the new ones.
        order: names in the order in which their study shall have them; names that are not in it stand before.
        whole: studies of which the new rows are all there is; others that they had go.
    """
    new: dict[tuple[str, str], list[RunRow]] = {}
    for row in rows:
        new.setdefault((row.study, row.name), []).append(row)
    with _locked(path):
        kept: dict[tuple[str, str], list[RunRow]] = {}
        for row in read_table(path) if path.exists() else ():
            if row.study not in whole:
                kept.setdefault((row.study, row.name), []).append(row)
        groups = {**kept, **new}
        studies = list(dict.fromkeys(study for study, _ in groups))
        position = {name: index for index, name in enumerate(order)}
        changed = {study for study, _ in new}

        def rank(key: tuple[str, str]) -> tuple[int, int]:
            return studies.index(key[0]), position.get(key[1], -1) if key[0] in changed else 0

        write_table(path, [row for key in sorted(groups, key=rank) for row in groups[key]])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

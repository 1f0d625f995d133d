"""Studies: scripts that measure a paper's table or figure, row by row, into a committed table of runs.

    given = study_flags(__doc__, "glasu", RESULTS).parse_args(namespace=Study())
    given.measure("table2", {"GLASU-1": {"num_local_updates": 1}}, once)       # once(point, seed) -> RunRow

``--smoke`` runs the smallest thing that means something, ``--full`` the paper's size; without either a script runs at
the size of the committed results. A row that is there already is left alone unless ``--again`` is given.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedactors.command_line.terminal import format_value
from fedactors.errors import BadInput, Diverged
from fedactors.plugins import find_protocol
from fedactors.records.table import RunRow, put_rows, read_table
from fedactors.sweeps.execution import run_all
from fedactors.sweeps.trials import code_digest, versions

P = TypeVar("P")
Once = Callable[[P, int], RunRow]
"""``once(point, seed)``: the row of one run, its study and name left to the caller."""


class Study(argparse.Namespace):
    """What the command line says; see `study_flags`."""

    protocol: str
    out: Path
    seeds: tuple[int, ...]
    only: str
    smoke: bool
    full: bool
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
        """Say whether ``--only`` lets a row or panel through: its name holds one of the texts."""
        return any(text in name for text in self.only.split(","))

    def lacks(self, study: str, name: str, num_seeds: int = 1) -> bool:
        """Say whether a row must be measured: it is not there with so many seeds, or ``--again`` is given."""
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
        smoke_rows: int | None = None,
    ) -> None:
        """Run the points that are wanted and not there yet over the seeds, and put their rows into the table.

        A run that diverges is a row that says so.

        Args:
            study: table or figure that they belong to.
            points: what to run, by the name of its row.
            once: runs one of them with one seed; with ``--jobs`` a function of a module, as points go to processes.
            seeds: instead of those of the command line.
            all_seeds: measure again what is there with fewer seeds.
            whole: ``--only`` has been asked already.
            smoke_rows: with ``--smoke``, only so many.
        """
        seeds = seeds or self.seeds
        seeds = seeds[:1] if self.smoke else seeds
        wanted = [name for name in points if whole or self.wants(f"{study}/{name}")][
            : smoke_rows if self.smoke else None
        ]
        missing = [name for name in wanted if self.lacks(study, name, len(seeds) if all_seeds else 1)]
        asked = [(name, points[name], seed) for name in missing for seed in seeds]
        made: dict[str, list[RunRow]] = {}
        for place, row in run_all(functools.partial(_once, once), asked, jobs=self.jobs):
            name = asked[place][0]
            made.setdefault(name, []).append(row)
            if len(made[name]) == len(seeds):
                self.put(study, name, sorted(made[name], key=lambda row: seeds.index(row.seed)), list(points))

    def put(self, study: str, name: str, rows: Iterable[RunRow], order: Sequence[str] = ()) -> None:
        """Put the rows of a name into the table, with how they were made, and say what came out."""
        facts: dict[str, Any] = {"protocol": find_protocol(self.protocol).name, "study": study, "name": name}
        facts |= {"command": self.command, "code": _code(self.protocol), "versions": versions()}
        rows = [dataclasses.replace(row, **facts) for row in rows]
        put_rows(self.table, rows, order)
        first = rows[0]
        shown = first.failure or format_value(dict(list(first.metrics.items())[:6]))
        print(f"{study}/{name}: {shown} ({first.wall_seconds:.1f} s)", flush=True)

    @property
    def command(self) -> str:
        """The command line of this script."""
        script = Path(sys.argv[0])
        if "scenarios" in script.parts:
            script = Path(*script.parts[script.parts.index("scenarios") :])
        return shlex.join(["python", str(script), *sys.argv[1:]])


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
    made.add_argument("--smoke", action="store_true", help="the smallest run that means something")
    made.add_argument("--full", action="store_true", help="the paper's size")
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
    try:
        return once(point, seed)
    except Diverged as error:
        settings = getattr(point, "settings", point)
        config = settings if isinstance(settings, Mapping) else {}
        return RunRow(protocol="", seed=seed, status="failed", failure=str(error), config=config)


@functools.cache
def _code(protocol: str) -> str:
    return code_digest(find_protocol(protocol))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))

"""The flags that every script has which measures a paper's table or figure, and where it writes its summaries.

    flags = study_flags(__doc__, RESULTS)
    given = flags.parse_args(namespace=Study())
    for row in rows:
        if given.wants(row.name): ...

``--smoke`` runs the smallest thing that means something, ``--full`` the paper's size; without either a script runs at
the size of the committed results. A summary that is there already is left alone unless ``--again`` is given.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedactors.errors import BadInput
from fedactors.records.metrics import jsonable
from fedactors.records.storage import write_atomic


class Study(argparse.Namespace):
    """What the command line says; see `study_flags`."""

    out: Path
    seeds: tuple[int, ...]
    only: str
    smoke: bool
    full: bool
    again: bool
    words: list[str]

    @property
    def settings(self) -> dict[str, str]:
        """The config values given as ``key=value``."""
        for word in self.words:
            if "=" not in word:
                raise BadInput(f"{word!r} is not key=value")
        return dict(word.split("=", 1) for word in self.words)

    def wants(self, name: str) -> bool:
        """Say whether ``--only`` lets a row or panel through: its name holds one of the texts."""
        return any(text in name for text in self.only.split(","))

    def lacks(self, path: Path) -> bool:
        """Say whether a summary must be measured: it is not there, or ``--again`` is given."""
        return self.again or not path.exists()


class _Flags(argparse.ArgumentParser):
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        # config values may stand before, between and after the flags
        return self.parse_intermixed_args(args, namespace)


def study_flags(description: str | None, results: Path, *, seeds: Sequence[int] = (0,)) -> argparse.ArgumentParser:
    """Return a parser with the flags of every study; a script may add its own.

    Args:
        description: the script's documentation.
        results: folder under which the committed summaries lie.
        seeds: those of a run that gives none.
    """
    made = _Flags(description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    made.add_argument(
        "--out", type=Path, default=results, metavar="DIR", help="folder under which summaries are written"
    )
    made.add_argument("--seeds", type=_numbers, default=tuple(seeds), metavar="N,N", help="(default: %(default)s)")
    made.add_argument("--only", default="", metavar="TEXT,TEXT", help="measure only what has one of these in its name")
    made.add_argument("--smoke", action="store_true", help="the smallest run that means something")
    made.add_argument("--full", action="store_true", help="the paper's size")
    made.add_argument("--again", action="store_true", help="measure also what has a summary already")
    made.add_argument("words", nargs="*", metavar="key=value", help="config values of every run")
    return made


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Write a summary, or the combination of several seeds' (`fedactors.launch.combine`), as committed results are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(jsonable(summary), indent=1, sort_keys=True) + "\n").encode())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))

"""Random rows of the results are made again by their own commands, and compared with the record.

python -m scenarios.replay                             one row of every page of docs/results
python -m scenarios.replay --rows 3 --within 20        three, of different pages, of those that took at most 20 s

Rows that are older than their command, and those whose data set is not on this machine, are not drawn; nor, with
``--within``, those of which nobody knows how long they took, those of `is_rounded`, and runs of fewer than
`scenarios.paper.repeat.SEEDS` seeds, of which nobody knows how far rounding may move them. What a command prints says
how many numbers are equal and which differ by more than `scenarios.paper.repeat.TOLERANCE`. It ends with 1
if a row differs or cannot be made, and with 2 if there is nothing to draw at all.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedactors.cli.terminal import guarded
from fedactors.errors import BadInput, DataMissing
from fedactors.launch import check_data
from fedactors.plugins import find_protocol
from fedactors.runs.table import RunRow, read_table
from scenarios.paper.repeat import SEEDS, can_repeat
from scenarios.results import tables_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PATIENCE = 10.0
"""A command may take so many times what its row took, and two minutes more: this machine may be slower or busy."""

ROUNDED = {"figure3-cora", "table4-cora", "choose-cora", "multi-party"}
"""Studies of which a row came out otherwise on another machine: training that stops at its best round stops at another
when float32 sums are rounded otherwise. With ``--within``, as in CI, they are not drawn."""
TO_A_TARGET = "seconds_to_"
"""How metrics begin of runs that stop at a target, which another rounding crosses a look earlier or later; likewise."""


def drawable(page: Path, within: float) -> list[RunRow]:
    """Return the rows behind a page that can be made again here in about `within` seconds."""
    rows = [row for table in tables_of(page) for row in read_table(table)]
    if math.isfinite(within):
        seeds = Counter((row.study, row.name) for row in rows)
        rows = [row for row in rows if 0 < row.wall_seconds <= within and not is_rounded(row)]
        rows = [row for row in rows if not row.usage or seeds[row.study, row.name] >= SEEDS]
    return [row for row in rows if can_repeat(row) and has_data(row)]


def is_rounded(row: RunRow) -> bool:
    """Say whether rounding of another machine may end the run elsewhere."""
    return row.study in ROUNDED or any(name.startswith(TO_A_TARGET) for name in row.metrics)


def draw(folder: Path, number: int | None, within: float, generator: random.Random) -> dict[Path, RunRow]:
    """Return a random row of every page that has any, or of `number` pages; pages without rows are told."""
    found: dict[Path, RunRow] = {}
    for page in sorted(folder.glob("*.md")):
        rows = drawable(page, within)
        if rows:
            found[page] = generator.choice(rows)
        elif tables_of(page):
            print(f"{page.name}: no row to draw", flush=True)
    kept = sorted(generator.sample(sorted(found), min(number or len(found), len(found))))
    return {page: found[page] for page in kept}


def made_again(row: RunRow, folder: Path = RESULTS) -> bool:
    """Run a row's command beside the table in `folder`, print what it says, and return whether it came out the same."""
    program, *words = shlex.split(row.command)
    if program != "python" or not (words[0].startswith("scenarios/") or words[:1] == ["-m"]):
        raise BadInput(f"{row.study}/{row.name}: {row.command!r} is not allowed: python and a script of scenarios/")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            [sys.executable, *words, "--out", str(folder)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE * row.wall_seconds + 120,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        print(f"  not done after {error.timeout:.0f} s", flush=True)
        return False
    lines = done.stdout.splitlines()
    prefix = f"{row.study}/{row.name} seed {row.seed}:"
    start = next((index for index, line in enumerate(lines) if line.startswith(prefix)), None)
    if start is None:
        print(f"  its command does not make it (code {done.returncode})\n{done.stderr.strip()[-2000:]}", flush=True)
        return False
    print("\n".join(lines[start:]), flush=True)
    return done.returncode == 0


@guarded()
def main(argv: Sequence[str] | None = None) -> int:
    """Draw rows, make them again, and say how it went."""
    parser = argparse.ArgumentParser(
        prog="python -m scenarios.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", default=RESULTS, help="pages and tables (default: docs/results)"
    )
    parser.add_argument("--rows", type=int, metavar="N", help="of so many pages (default: of every page)")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS", help="only quicker rows")
    parser.add_argument("--draw-seed", type=int, metavar="N", help="decides what is drawn (default: another each time)")
    args = parser.parse_args(argv)

    seed = random.SystemRandom().randrange(2**31) if args.draw_seed is None else args.draw_seed
    print(f"drawn with --draw-seed {seed}", flush=True)
    rows = draw(args.folder, args.rows, args.within, random.Random(seed))
    if not rows:
        raise BadInput(f"{args.folder}: no page has a row that can be made again here")
    different = 0
    for page, row in rows.items():
        print(f"{page.name}: {row.command}", flush=True)
        different += not made_again(row, page.parent.resolve())
    print(f"{len(rows)} rows made again, {different} of them different")
    return int(different > 0)


def has_data(row: RunRow) -> bool:
    """Say whether a row's data set is on this machine."""
    try:
        check_data(find_protocol(row.protocol), row.data)
    except DataMissing:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())

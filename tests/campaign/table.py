"""The table of the campaign: rows in a Parquet file, and the page that is made from them.

python -m tests.campaign.table docs/results/reliability.md [--check]
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from fedactors.runs.storage import write_atomic
from tests.campaign.stories import Row

_MARK = re.compile(r"(<!-- campaign: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def append_rows(file: Path, rows: Sequence[Row]) -> None:
    """Add rows to a table, which need not be there yet."""
    earlier = read_rows(file) if file.exists() else []
    made = pa.Table.from_pylist([dataclasses.asdict(row) for row in (*earlier, *rows)])
    parquet.write_table(made, file, compression="zstd")


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a table."""
    return [Row(**row) for row in parquet.read_table(file).to_pylist()]


_COLUMNS = (
    "number", "in training", "finished", "ended: resumed", "ended: begun anew", "ended: not noted", "hung",
    "internal errors", "lost", "left: processes", "left: files", "longest, s",
)  # fmt: skip
_PROCESSES = {"driver": "driver", "raylet": "raylet", "GCS": "GCS", "actor": "an actor that starts", "host": "host"}


def rendered(rows: Sequence[Row]) -> str:
    """Return tables as Markdown: what was done to which kind of process, to which protocol under which policy, where.

    The last one tells of parties that were lost in training, where the policy promises that the run goes on.
    """
    by_fault: dict[tuple[str, ...], list[Row]] = {}
    by_cluster: dict[tuple[str, ...], list[Row]] = {}
    by_protocol: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_fault.setdefault((row.fault, _PROCESSES.get(row.process, "an actor")), []).append(row)
        by_cluster.setdefault((row.cluster, row.fault), []).append(row)
        by_protocol.setdefault((row.protocol, row.policy), []).append(row)
    tables = (("fault", "process"), by_fault), (("protocol", "policy"), by_protocol), (("cluster", "fault"), by_cluster)
    return "\n".join([*(_table(names, groups, rows) for names, groups in tables), _spared(rows)])


def _spared(rows: Sequence[Row]) -> str:
    lines = [
        "| protocol | policy | parties lost in training | the run went on and finished |\n| --- | --- | --- | --- |\n"
    ]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.is_spared:
            groups.setdefault((row.protocol, row.policy), []).append(row)
    for (protocol, policy), group in sorted(groups.items()):
        lines.append(f"| {protocol} | {policy} | {len(group)} | {sum(row.ended == 'finished' for row in group)} |\n")
    return "".join(lines)


def _table(names: tuple[str, str], groups: dict[tuple[str, ...], list[Row]], rows: Sequence[Row]) -> str:
    lines: list[list[Any]] = [[*names, *_COLUMNS], ["---"] * (len(names) + len(_COLUMNS))]
    lines += [[*key, *_figures(group)] for key, group in sorted(groups.items())]
    lines.append(["all", "", *_figures(rows)])
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def _figures(group: Sequence[Row]) -> list[Any]:
    ended = [row for row in group if row.ended in ("line", "killed")]
    return [
        len(group),
        sum(row.round >= 0 for row in group),
        sum(row.ended == "finished" for row in group),
        *(sum(row.resumed and row.later == later for row in ended) for later in ("resumed", "anew", "")),
        sum(row.ended == "hung" for row in group),
        sum(row.ended == "internal" for row in group),
        sum(bool(row.lost) or not row.resumed for row in group),
        sum(row.left_processes for row in group),
        sum(row.left_files for row in group),
        f"{max((row.seconds for row in group), default=0.0):.0f}",
    ]


def render_page(page: Path) -> str:
    """Return a page with its tables made anew."""

    def made(match: re.Match[str]) -> str:
        return match[1] + rendered(read_rows(page.parent / match[2])) + match[3]

    return _MARK.sub(made, page.read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if the page is not current")
    args = parser.parse_args()
    text = render_page(args.page)
    if args.check:
        sys.exit(text != args.page.read_text())
    write_atomic(args.page, text.encode())

"""Tables in documents that are made from committed summaries, and the check that they are current.

A document marks where a table goes; everything between the marks is replaced:

    <!-- results: folder=pubsub columns=auc,bytes,seconds -->
    <!-- end -->

``<!-- headlines: FILE -->`` marks a table over several of them, see `fedactors.records.headlines`.
The folder is relative to the document and holds one JSON file per row, as `fedactors run --format json` prints it (with
several seeds: runs, mean and std); the file's name is the row's. ``python -m fedactors.records.results docs/results``
writes, and with ``--check`` only compares and ends with 1 if a document is not current.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedactors.command_line.terminal import format_value, guarded
from fedactors.errors import BadInput
from fedactors.records.headlines import headline_table
from fedactors.records.metrics import Summary
from fedactors.records.storage import write_atomic

_MARK = re.compile(
    r"(?P<open><!-- results: folder=(?P<folder>\S+) columns=(?P<columns>\S+) -->\n).*?(?P<close><!-- end -->)",
    re.DOTALL,
)
_HEADLINES = re.compile(r"(?P<open><!-- headlines: (?P<file>\S+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)


def render_document(text: str, base: Path) -> str:
    """Return `text` with every marked table made anew from the summaries under `base`.

    Raises:
        BadInput: a folder without summaries, a file that is no summary, or a column that no file has.
    """

    def table(match: re.Match[str]) -> str:
        made = markdown_table(base / match["folder"], match["columns"].split(","))
        return f"{match['open']}{made}{match['close']}"

    def headlines(match: re.Match[str]) -> str:
        return f"{match['open']}{headline_table(base / match['file'])}{match['close']}"

    return _HEADLINES.sub(headlines, _MARK.sub(table, text))


def markdown_table(folder: Path, columns: Sequence[str]) -> str:
    """Return the Markdown table of the summaries in `folder`, one row a file, sorted by name."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise BadInput(f"{folder}: holds no summary (.json)")
    rows = []
    for file in files:
        cells, seeds = _row(file, columns)
        rows.append([file.stem, *cells, str(seeds)])
    header = ["", *columns, "seeds"]
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write or check every Markdown document under a folder."""
    parser = argparse.ArgumentParser(prog="python -m fedactors.records.results", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of documents")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a document is not current")
    args = parser.parse_args(argv)

    def action() -> int:
        stale = []
        for document in sorted(args.folder.rglob("*.md")):
            text = document.read_text()
            made = render_document(text, document.parent)
            if made != text:
                stale.append(document)
                if not args.check:
                    write_atomic(document, made.encode())
        for document in stale:
            print(f"{document}: {'not current' if args.check else 'written'}")
        return 1 if stale and args.check else 0

    return guarded(action)


def _row(file: Path, columns: Sequence[str]) -> tuple[list[str], int]:
    try:
        value = json.loads(file.read_bytes())
    except ValueError:
        raise BadInput(f"{file}: not valid JSON") from None
    if "runs" in value:
        for run in value["runs"]:
            Summary.from_dict(run, where=str(file))
        mean, std, seeds = value["mean"], value["std"], len(value["runs"])
    else:
        Summary.from_dict(value, where=str(file))
        mean, std, seeds = value, {}, 1
    return [_cell(file, mean, std, column) for column in columns], seeds


def _cell(file: Path, mean: Mapping[str, Any], std: Mapping[str, Any], column: str) -> str:
    value = mean.get("metrics", {}).get(column, mean.get(column))
    if value is None:
        raise BadInput(f"{file}: has no {column!r}")
    spread = std.get("metrics", {}).get(column, std.get(column))
    return format_value(value) + (f" ± {format_value(spread)}" if spread is not None else "")


if __name__ == "__main__":
    sys.exit(main())

"""Tables in documents that are made from committed tables of runs, and the check that they are current.

A document marks where a table goes; everything between the marks is replaced:

    <!-- results: rows=glasu/table2-cora columns=accuracy,rounds -->
    <!-- end -->

Those are the rows of the study ``table2-cora`` in the file ``glasu.parquet`` beside the document, one line a name, mean
and deviation over its seeds; ``deviation=always`` at the end of a mark shows one, of 0, for a single seed too. A line
below names what an earlier version made, which kept no command for each row. An attack over several seeds is the mean,
its 95 % interval if seeds are independent, the least and the most of them, and mean chance.
``<!-- record: FILE,FILE -->`` marks the paragraph that says which rows behind a page can be made again
(`scenarios.replay`) and which are older than that; ``<!-- headlines: FILE -->`` tables over several studies. Parts of
them are ``<!-- counts: FILE -->``, and ``<!-- verdicts: FILE PROTOCOL -->``, ``<!-- map: FILE PROTOCOL -->`` and
``<!-- forest: FILE PROTOCOL -->`` of a protocol, see `scenarios.headlines`.
``<!-- defaults: PROTOCOL SCORE,... -->`` tables the rows of ``data/defaults.jsonl`` that
`scenarios/benchmarks/defaults.py` made: of each data set the mean over seeds of these scores.
``<!-- private averaging -->`` is the table of `scenarios/benchmarks/private_averaging.py`,
``<!-- reading -->`` that of `scenarios/benchmarks/reading.py`, ``<!-- fleet -->`` those of
`scenarios/benchmarks/fleet.py`,
``<!-- speed -->`` that of what is asked of speed and what several commands measured.
``python -m scenarios.results docs/results`` writes, and with ``--check`` only compares and ends with 1 if a document is
not current.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedactors.cli.terminal import format_value, guarded
from fedactors.errors import BadInput
from fedactors.runs.storage import write_atomic
from fedactors.runs.table import NOT_REACHED, RunRow, read_table
from scenarios.benchmarks import fleet, private_averaging, reading
from scenarios.forest import draw, is_current
from scenarios.headlines import ForestLine, count_table, forest_lines, headline_tables, map_table, verdict_table
from scenarios.paper.repeat import can_repeat, draws_noise, is_of_earlier_version, older_text

PAIRS = "n"
"""Metric of a comparison: the paired seeds that it is of."""
_MARK = re.compile(
    r"(?P<open><!-- results: rows=(?P<rows>\S+) columns=(?P<columns>\S+?)(?P<always> deviation=always)? -->\n)"
    r".*?(?P<close><!-- end -->)",
    re.DOTALL,
)
_ATTACK = re.compile(r"([\d.]+) \(([\d.]+) to ([\d.]+); chance ([\d.]+)\)")
_HEADLINES = re.compile(r"(?P<open><!-- headlines: (?P<file>\S+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_PARTS = re.compile(
    r"(?P<open><!-- (?P<part>counts|verdicts|map|forest): (?P<file>\S+)(?: (?P<protocol>\S+))? -->\n)"
    r".*?(?P<close><!-- end -->)",
    re.DOTALL,
)
_RECORD = re.compile(r"(?P<open><!-- record: (?P<files>\S+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_DEFAULTS = re.compile(
    r"(?P<open><!-- defaults: (?P<protocol>\S+) (?P<scores>[^>]+?) -->\n).*?(?P<close><!-- end -->)", re.DOTALL
)
_PRIVATE = re.compile(r"(?P<open><!-- private averaging -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_READING = re.compile(r"(?P<open><!-- reading -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_FLEET = re.compile(r"(?P<open><!-- fleet -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_SPEED = re.compile(r"(?P<open><!-- speed -->\n).*?(?P<close><!-- end -->)", re.DOTALL)
_load = functools.cache(read_table)


def render_document(text: str, base: Path) -> str:
    """Return `text` with every marked table made anew from the tables of runs in `base`.

    Raises:
        BadInput: no such table, a study without rows, or a column that no row has.
    """

    def table(match: re.Match[str]) -> str:
        made = markdown_table(base, match["rows"], match["columns"].split(","), always=bool(match["always"]))
        return f"{match['open']}{made}{match['close']}"

    def headlines(match: re.Match[str]) -> str:
        return f"{match['open']}{headline_tables(base / match['file'])}{match['close']}"

    def part(match: re.Match[str]) -> str:
        return f"{match['open']}{_part(match['part'], base / match['file'], match['protocol'])}{match['close']}"

    def record(match: re.Match[str]) -> str:
        return f"{match['open']}{record_text(base, match['files'].split(','))}{match['close']}"

    def defaults(match: re.Match[str]) -> str:
        made = defaults_table(base / "data/defaults.jsonl", match["protocol"], match["scores"].split(","))
        return f"{match['open']}{made}{match['close']}"

    def private(match: re.Match[str]) -> str:
        rows = map(json.loads, (base / "data/private_averaging.jsonl").read_text().splitlines())
        return f"{match['open']}{private_averaging.table(rows)}{match['close']}"

    made = _DEFAULTS.sub(defaults, _PARTS.sub(part, _HEADLINES.sub(headlines, _MARK.sub(table, text))))

    def measured(match: re.Match[str]) -> str:
        rows = map(json.loads, (base / "data/reading.jsonl").read_text().splitlines())
        return f"{match['open']}{reading.table(rows)}{match['close']}"

    def sites(match: re.Match[str]) -> str:
        rows = map(json.loads, (base / "data/fleet.jsonl").read_text().splitlines())
        return f"{match['open']}{fleet.table(rows)}{match['close']}"

    def speed(match: re.Match[str]) -> str:
        rows = map(json.loads, (base / "data/speed.jsonl").read_text().splitlines())
        return f"{match['open']}{speed_table(rows)}{match['close']}"

    made = _SPEED.sub(speed, _FLEET.sub(sites, made))
    made = _READING.sub(measured, _PRIVATE.sub(private, made))
    return _RECORD.sub(record, made)


def speed_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the Markdown table of what is asked and what was measured: medians, with the range of several."""

    def found(values: Sequence[float]) -> str:
        if len(values) < 2:
            return f"{values[0]:g}" if values else "as before"
        return f"{statistics.median(values):.3g} ({min(values):g} to {max(values):g})"

    lines = [["what", "asked", "before", "now", "command"], ["---"] * 5]
    lines += [[r["what"], r["asked"], found(r["before"]), found(r["after"]), f"`{r['command']}`"] for r in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def defaults_table(file: Path, protocol: str, scores: Sequence[str]) -> str:
    """Return the Markdown table of a protocol's runs by its defaults: a line a data set, means over its seeds.

    Of the first score, the defaults' own, the smallest and the largest stand beside the mean. Where a score was never
    reached the mean is that of the other seeds, with their number.

    Raises:
        BadInput: no run of the protocol.
    """
    named: dict[str, list[dict[str, Any]]] = {}
    for row in map(json.loads, file.read_text().splitlines()):
        if row["protocol"] == protocol:
            named.setdefault(row["data"], []).append(row)
    if not named:
        raise BadInput(f"{file}: has no rows of {protocol!r}")
    header = ["data", *scores, "seeds"]
    lines = [header, ["---"] * len(header)]
    for data, rows in named.items():
        found = [[row["scores"][score] for row in rows] for score in scores]
        means = [_mean(values) for values in found]
        means[0] += f" ({min(found[0]):.1f} to {max(found[0]):.1f})"
        seeds = ", ".join(str(row["seed"]) for row in sorted(rows, key=lambda row: row["seed"]))
        lines.append([data, *means, seeds])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _mean(values: Sequence[float]) -> str:
    """Return the mean; of a score that some runs never reached that of the others, and how many they are."""
    reached = [value for value in values if math.isfinite(value)]
    if len(reached) == len(values):
        return f"{statistics.fmean(values):.1f}"
    return f"{statistics.fmean(reached):.1f} (of {len(reached)})" if reached else "never"


def _part(name: str, file: Path, protocol: str | None) -> str:
    if name == "counts":
        return count_table(file)
    if protocol is None:
        raise BadInput(f"{file}: <!-- {name}: FILE PROTOCOL --> names a protocol")
    if name == "forest":
        picture = _picture(file, protocol)
        says = f"![Ratios and differences of {protocol} with 95 % intervals]({picture.relative_to(file.parent)})"
        return (
            f"{says}\n\n([PDF]({picture.relative_to(file.parent).with_suffix('.pdf')}); the dotted mark is the aim.)\n"
        )
    return (verdict_table if name == "verdicts" else map_table)(file, protocol)


def _picture(file: Path, protocol: str) -> Path:
    return file.parent / "figures" / f"forest-{protocol}.svg"


def stale_pictures(document: Path, text: str) -> dict[Path, list[ForestLine]]:
    """Return the forest plots of a document that do not show today's lines, with these."""
    found = {}
    for match in _PARTS.finditer(text):
        if match["part"] == "forest":
            file = document.parent / match["file"]
            lines = forest_lines(file, match["protocol"])
            if not is_current(_picture(file, match["protocol"]), lines):
                found[_picture(file, match["protocol"])] = lines
    return found


def tables_of(document: Path) -> list[Path]:
    """Return the tables of runs that a page says it stands on, in its mark of the record."""
    return [
        document.parent / file for match in _RECORD.finditer(document.read_text()) for file in match["files"].split(",")
    ]


def record_text(base: Path, files: Sequence[str]) -> str:
    """Return the paragraph on which rows of some tables can be made again, and why the others are never drawn."""
    rows = [row for file in files for row in _load(base / file)]
    whole = [row for row in rows if can_repeat(row)]
    says = [
        f"{len(whole)} of the {len(rows)} rows behind this page carry their whole configuration, seed, digests of data "
        "and sources, and a command that makes each of them again and compares; `python -m scenarios.replay` draws "
        "from these."
    ]
    rest: dict[str, dict[str, int]] = {}
    for row in rows:
        if not can_repeat(row):
            counts = rest.setdefault(_why_not(row), {})
            counts[row.study] = counts.get(row.study, 0) + 1
    for why, counts in sorted(rest.items()):
        says.append(f"*{why}:* {', '.join(f'{study} ({number})' for study, number in counts.items())}.")
    return "\n\n".join(says) + "\n"


def _why_not(row: RunRow) -> str:
    if is_of_earlier_version(row):
        return "Made by an earlier version"
    if row.config and row.data and not row.content:
        return "Made by an earlier version, with a command but without the digest of the data that it compares"
    if draws_noise(row):
        return "Under noise, which is drawn anew each time"
    return "Failed, measured by a clock, or of no single run"


def markdown_table(base: Path, rows: str, columns: Sequence[str], *, always: bool = False) -> str:
    """Return the Markdown table of a study, one line a name, in the order of its file.

    Args:
        base: folder of the tables of runs.
        rows: ``FILE/STUDY``.
        columns: metrics or figures of usage; "n", the pairs of a comparison, is its number of seeds.
        always: show a deviation, of 0, also for one seed.
    """
    file, _, study = rows.partition("/")
    named: dict[str, list[RunRow]] = {}
    for row in _load(base / f"{file}.parquet"):
        if row.study == study and row.status == "finished":
            named.setdefault(row.name, []).append(row)
    if not named:
        raise BadInput(f"{base / file}.parquet: has no rows of {study!r}")
    shown = [column for column in columns if column != PAIRS]
    header = ["", *shown, "seeds"]
    lines = [header, ["---"] * len(header)]
    for name, members in named.items():
        num_seeds = _cell(members, PAIRS, always) if PAIRS in columns else str(len(members))
        lines.append([name, *(_cell(members, column, always) for column in shown), num_seeds])
    return "".join("| " + " | ".join(line) + " |\n" for line in lines) + older_text(named)


@guarded()
def main(argv: Sequence[str] | None = None) -> int:
    """Write or check every Markdown document under a folder."""
    parser = argparse.ArgumentParser(prog="python -m scenarios.results", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of documents")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if a document is not current")
    args = parser.parse_args(argv)

    stale = []
    _load.cache_clear()
    for document in sorted(args.folder.rglob("*.md")):
        text = document.read_text()
        made = render_document(text, document.parent)
        if made != text:
            stale.append(document)
            if not args.check:
                write_atomic(document, made.encode())
        for picture, lines in stale_pictures(document, text).items():
            stale.append(picture)
            if not args.check:
                draw(picture, lines)
    for document in stale:
        print(f"{document}: {'not current' if args.check else 'written'}")
    return 1 if stale and args.check else 0


def _cell(members: Sequence[RunRow], column: str, always: bool) -> str:
    values = [row.value(column) for row in members]
    if any(value is None for value in values):
        if all(column in row.censored for row, value in zip(members, values, strict=True) if value is None):
            return NOT_REACHED
        raise BadInput(f"{members[0].study}/{members[0].name}: has no {column!r}")
    if len(set(values)) == 1 and isinstance(values[0], str):
        return values[0]
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) == len(values) and all(map(_ATTACK.fullmatch, texts)):
        mean, low, high, chance = pooled(texts)
        seeds = [text.partition(" ")[0] for text in texts]
        return f"{mean:.3f} ({low:.3f} to {high:.3f}; seeds {min(seeds)} to {max(seeds)}; chance {chance:.3f})"
    if texts:  # such as a figure that one seed has none of
        return ", ".join(dict.fromkeys(format_value(value) for value in values))
    if len(values) == 1 and not always:
        return format_value(values[0])
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{format_value(statistics.fmean(values))} ± {format_value(deviation)}"


def pooled(texts: Sequence[str]) -> tuple[float, float, float, float]:
    """Return an attack over several seeds as one: mean, 95 % interval of the mean, and mean chance.

    Raises:
        BadInput: a text that is no attack's.
    """
    found = [_ATTACK.fullmatch(text) for text in texts]
    if not all(found):
        raise BadInput(f"{texts}: no figures of an attack")
    value, low, high, chance = zip(*(map(float, one.groups()) for one in found if one), strict=True)
    mean = statistics.fmean(value)
    below, above = (math.dist(value, ends) / len(value) for ends in (low, high))
    return mean, mean - below, mean + above, statistics.fmean(chance)


if __name__ == "__main__":
    sys.exit(main())

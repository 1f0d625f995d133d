"""Every epsilon and mu in the text of README and pages is a row's figure or setting.

`docs/results/budgets.toml` says, page by page and piece by piece, where each number comes from. Tables that are made
from rows need no entry (`scenarios.accounts` computes these), nor do blocks of code, which are settings.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from fedactors.runs.table import RunRow, read_table

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+"
PIECE = re.compile(
    rf"(?:(?:{NUMBER}) of )?\b(?:epsilon|mu)\b(?: of| at| is|:)?(?: ?= ?| )(?:about |nearly |at most |nominal )?"
    rf"(?:{NUMBER})(?! sqrt)"
    rf"(?:(?:, and | and | of |, or | or |, )(?:(?:epsilon|mu) )?(?:{NUMBER})(?![\d.]* (?:points|%|seeds)))*",
    re.IGNORECASE,
)
REPLAYED = "replay found"
"""A column of the table of promises whose numbers are mus."""
SOURCES = tomllib.loads((RESULTS / "budgets.toml").read_text())["figure"]


def pages() -> list[Path]:
    generated = ROOT / "docs" / "reference"
    return [
        ROOT / "README.md",
        *(page for page in sorted((ROOT / "docs").rglob("*.md")) if generated not in page.parents),
    ]


def prose(page: Path) -> str:
    """Return a page's text in one line a paragraph, without made tables, code, links' targets and markup."""
    text = re.sub(r"<!-- (results|record|headlines).*?<!-- end -->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"^(    .*\n)+", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "CODE", text)
    text = re.sub(r"\]\([^)]*\)", "]", text).replace("*", "")
    return re.sub(r"(?<=[^\n])\n(?=[^\n|#*-])", " ", text)


def replayed(text: str) -> Iterator[str]:
    """Yield the cells of the table of promises that say what replays moved."""
    column = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if REPLAYED in cells:
            column = cells.index(REPLAYED)
        elif column is not None and len(cells) > column and re.search(NUMBER, cells[column]):
            yield cells[column]
        elif not line.startswith("|"):
            column = None


def pieces(page: Path) -> list[str]:
    text = prose(page)
    cells = list(replayed(text))
    for cell in cells:
        text = text.replace(f"| {cell} |", "| |")
    return [*cells, *(match.group(0) for match in PIECE.finditer(text))]


def numbers(piece: str) -> list[str]:
    return [found.replace(",", "") for found in re.findall(rf"(?<![\w]){NUMBER}", re.sub(r",(?= )", " ", piece))]


def row_of(key: str) -> list[RunRow]:
    file, study, name = key.split("/", 2)
    found = [row for row in read_table(RESULTS / f"{file}.parquet") if (row.study, row.name) == (study, name)]
    assert found, key
    return found


def value_of(source: dict[str, Any]) -> float:
    """Return the number that a source gives: a column (the largest over the seeds), a setting, a line of the ledger.

    A source of a measurement's file gives a site's account in `docs/results/data`.
    """
    if "file" in source:
        table, site, column = source["at"]
        lines = json.loads((RESULTS / "data" / source["file"]).read_text())[table]
        return next(float(line[column]) for line in lines if line["site"] == site)
    rows = row_of(source["row"])
    if "column" in source:
        return max(float(row.metrics[source["column"]]) for row in rows)
    if "ledger" in source:
        table, _, line = source["ledger"].partition("/")
        return max(float(row.extra["privacy"][table][line]["epsilon"]) for row in rows)
    return float(rows[0].config[source["setting"]])


def agrees(written: str, value: float) -> bool:
    """Whether a number as written is a value, rounded to as many digits."""
    decimals = max(-int(Decimal(written).as_tuple().exponent), 0)  # type: ignore[arg-type]
    return abs(float(written) - value) <= 0.5000001 * 10.0**-decimals


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_budget_in_a_text_has_a_source_and_is_what_it_says(page: Path) -> None:
    name = str(page.relative_to(ROOT))
    known = {one["text"]: one["sources"] for one in SOURCES if one["page"] == name}
    found = pieces(page)
    assert sorted(set(found) - set(known)) == [], "without a source in docs/results/budgets.toml"
    assert sorted(set(known) - set(found)) == [], "in docs/results/budgets.toml, and no longer on the page"
    for piece in found:
        written, sources = numbers(piece), known[piece]
        assert len(written) == len(sources), piece
        for number, source in zip(written, sources, strict=True):
            assert agrees(number, value_of(source)), (piece, number, value_of(source))


def test_what_counts_as_a_budget_in_a_text() -> None:
    def found(text: str) -> list[str]:
        return [match.group(0) for match in PIECE.finditer(text)]

    assert found("holds, mu 2 or epsilon 10, training") == ["mu 2 or epsilon 10"]
    assert found("by mu 14, 1,312, 1,229 at nominal mu 1 (x)") == ["mu 14, 1,312, 1,229", "mu 1"]
    assert found("5.33 of mu 7.84, 5.55 of 8.97 (orders)") == ["5.33 of mu 7.84, 5.55 of 8.97"]
    assert found("epsilon at delta 1e-5, mu^2 adds up, N(mu, 1)") == []
    assert numbers("5.33 of mu 7.84, 1,229 and .5") == ["5.33", "7.84", "1229", ".5"]
    assert agrees("20", 20.1359)
    assert not agrees("20.0", 20.1359)


def test_a_command_in_a_text_stands_in_no_entry_by_accident() -> None:
    assert all(set(one) == {"page", "text", "sources"} for one in SOURCES)
    assert len({(one["page"], one["text"]) for one in SOURCES}) == len(SOURCES)

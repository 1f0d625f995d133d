"""Every promise of the page for a security reviewer stands in a table with the tests that try to break it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/sites-security.md"


def known() -> dict[str, set[str]]:
    """The tests of each file, by its path."""
    folders = ("federation", "hostile", "protocols/horizontal", "secure_sums")
    files = [path for folder in folders for path in (ROOT / "tests" / folder).glob("test_*.py")]
    return {
        path.relative_to(ROOT).as_posix(): set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
        for path in files
    }


def rows() -> list[tuple[str, str]]:
    """The promises, and the cell with the tests of each."""
    promises = PAGE.read_text().split("## What is not protected")[0]
    found = re.findall(r"^\| (.+?) \| (.*?) \|$", promises.partition("## What is checked where")[2], re.MULTILINE)
    return [row for row in found if row[0] != "what holds"]


def test_each_promise_names_tests_that_are_in_the_files_that_it_names() -> None:
    tests, said = known(), rows()
    assert len(said) > 60
    for promise, cell in said:
        for part in cell.split("<br>"):
            path, _, names = part.partition(": ")
            assert path.strip("`") in tests, promise
            found = re.findall(r"`(test_\w+)`", names)
            assert found, promise
            assert set(found) <= tests[path.strip("`")], promise


def test_what_is_named_elsewhere_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert named - set().union(*known().values()) == set()


def test_nothing_is_promised_outside_of_the_tables() -> None:
    checked = PAGE.read_text().split("## What is checked where")[1].split("## What is not protected")[0]
    lines = [line for line in checked.splitlines() if line and not line.startswith(("|", "#"))]
    assert lines == []

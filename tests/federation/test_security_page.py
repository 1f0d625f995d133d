"""Every promise of the page for a security reviewer stands in a table with the tests that try to break it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_prose import length, sentences

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/sites-security.md"
FIRST, LIMITS = "## Authentication and connections", "## Known limits"
"""The headings between which the page is tables of promises, and after which it says what is not protected."""

MAX_SENTENCES, MAX_WORDS = 2, 30
NO_SUBJECT = re.compile(r"^(?:Who|Whom|Whoever|Whatever|What|Nor|And|So|Of|It|They|One that|None of|Nobody)\b")
"""Openings of a promise that needs the one above it, or whose subject is a relative clause."""
METAPHORS = re.compile(r"(?i)\b(strangers?|drips?|of others|sent away|gone on from|under masks)\b")


def checked() -> str:
    """The part of the page that promises."""
    return PAGE.read_text().split(FIRST)[1].split(LIMITS)[0]


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
    found = re.findall(r"^\| (.+?) \| (.*?) \|$", checked(), re.MULTILINE)
    return [row for row in found if row[0] != "what holds"]


def test_each_promise_names_tests_that_are_in_the_files_that_it_names() -> None:
    tests, said = known(), rows()
    assert len(said) > 200
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
    lines = [line for line in checked().splitlines() if line and not line.startswith(("|", "#"))]
    assert lines == []


def test_each_promise_is_understood_by_itself() -> None:
    """A reviewer reads single rows: short sentences, a subject first, no word of ours."""
    found = []
    for promise, _ in rows():
        parts = list(sentences(promise))
        is_long = len(parts) > MAX_SENTENCES or any(length(part) > MAX_WORDS for part in parts)
        if is_long or NO_SUBJECT.search(promise) or METAPHORS.search(promise):
            found.append(promise)
    assert found == [], f"at most {MAX_SENTENCES} sentences of {MAX_WORDS} words, the subject first, no metaphor"

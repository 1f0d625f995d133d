"""Every sentence of the page for a security reviewer stands with a test that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/sites-security.md"


def known() -> set[str]:
    folders = (ROOT / "tests/federation", ROOT / "tests/hostile")
    text = "".join(path.read_text() for folder in folders for path in folder.glob("test_*.py"))
    return set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))


def test_each_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 40
    assert named - known() == set()


def test_each_sentence_that_promises_something_names_a_test() -> None:
    promises = PAGE.read_text().split("## What is not protected")[0]
    items = re.findall(r"^- .*?(?=^- |^#|\Z)", promises, re.MULTILINE | re.DOTALL)
    assert len(items) > 25
    assert [item for item in items if "`test_" not in item] == []

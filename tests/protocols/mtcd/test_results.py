"""The tables of the results are those of the committed summaries."""

import importlib
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "results" / "mtcd-appendix.md"


@pytest.mark.slow
def test_the_tables_are_current(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scenarios" / "paper" / "mtcd"))
    for name in ("_tables", "_study"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tables = importlib.import_module("_tables")
    try:
        text = DOCUMENT.read_text()
        assert tables.render(text) == text
        assert set(re.findall(r"<!-- table: (\S+) -->", text)) == set(tables.TABLES)
    finally:
        for name in ("_tables", "_study"):
            sys.modules.pop(name, None)


def test_every_figure_of_the_document_is_there():
    shown = re.findall(r"!\[[^\]]*\]\((figures/mtcd/\S+)\)", DOCUMENT.read_text())
    assert len(shown) >= 6
    for name in shown:
        assert (DOCUMENT.parent / name).is_file()
    assert {path.name for path in (DOCUMENT.parent / "figures" / "mtcd").iterdir()} == {Path(n).name for n in shown}

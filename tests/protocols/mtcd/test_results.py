"""The tables of the results are those of the committed summaries."""

import importlib
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "scenarios" / "paper" / "mtcd"


def test_the_tables_are_current(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    try:
        figures = importlib.import_module("figures")
        text = figures.DOCUMENT.read_text()
        assert figures.render(text) == text
        assert "| STCD" in text
        assert text.count("<!-- table: ") == text.count("<!-- end -->")
    finally:
        for name in ("figures", "series"):
            sys.modules.pop(name, None)

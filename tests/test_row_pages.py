"""The pages that show all rows of the results, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from docs.row_pages import RESULTS, TITLES, page_of, rows_of
from tests.browser import CHROMIUM, Browser

pytestmark = [pytest.mark.docs, pytest.mark.xdist_group("browser")]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


def test_each_table_of_runs_has_a_page() -> None:
    tables = {file.stem for file in RESULTS.glob("*.parquet") if "study" in parquet.read_schema(file).names}
    listed = re.findall(r"\(rows/(\w+)\.html\) \| \[(\w+)\.parquet\]", (RESULTS / "rows.md").read_text())
    assert tables == set(TITLES)
    assert listed == [(name, name) for name in TITLES]


def test_a_page_has_the_figures_of_its_rows() -> None:
    rows, table = rows_of("glasu"), parquet.read_table(RESULTS / "glasu.parquet").to_pandas()
    assert len(rows) == len(table)
    assert rows["test/accuracy"].tolist() == pytest.approx(table["metrics.test/accuracy"].tolist(), nan_ok=True)
    assert rows["command"].tolist() == table["command"].tolist()
    assert "config.mode" in rows
    assert "config.float64" not in rows, "it is the same in all rows"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
@pytest.mark.parametrize(
    "screen", [{}, {"width": 390, "height": 844}, {"dark": True}], ids=["desktop", "phone", "dark"]
)
def test_rows_are_filtered_without_a_network(browser: Browser, tmp_path: Path, screen: dict[str, int]) -> None:
    page = tmp_path / "glasu.html"
    page.write_text(page_of("glasu"))
    browser.allowed = ("file:", "data:", "blob:")
    browser.show(page, **screen)
    count = "document.querySelector('.dt-info')?.textContent"
    for _ in range(100):
        if browser.evaluate(count):
            break
        browser.evaluate("new Promise(done => setTimeout(done, 100))")
    assert browser.evaluate(count).endswith(f"of {len(rows_of('glasu'))} entries")
    search = "document.querySelector('.dt-search input')"
    browser.evaluate(f"{search}.value = 'choose-cora'; {search}.dispatchEvent(new Event('input')); 0")
    found = int((rows_of("glasu")["study"] == "choose-cora").sum())
    for _ in range(100):
        if f"of {found} entries" in browser.evaluate(count):
            break
        browser.evaluate("new Promise(done => setTimeout(done, 100))")
    assert f"of {found} entries" in browser.evaluate(count)
    assert browser.errors == []
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")

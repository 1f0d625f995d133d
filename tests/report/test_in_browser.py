"""The report as a real browser shows it."""

from __future__ import annotations

import struct
from xml.etree import ElementTree

import pytest

from fedactors.launch import launch, resolve
from fedactors.options import RunOptions
from fedactors.report.page import render_report
from fedactors.runs.compare import load_runs
from tests.browser import CHROMIUM, Browser
from tests.tiny_parties import PROTOCOL

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield made
    made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page about one run, and pages about two and three groups of three seeds."""
    folder = tmp_path_factory.mktemp("pages")
    runs = []
    for words in ([], ["num_rounds=6"], ["num_rounds=7"]):
        options = RunOptions(out=str(folder / "runs"), quiet=True, runtime="simulated", seeds=(0, 1, 2))
        config, options = resolve(PROTOCOL, words, options)
        runs += [summary.run for summary in launch(PROTOCOL, config, options)]
    made = {name: folder / f"{name}.html" for name in ("one", "many", "three")}
    for page, number in zip(made.values(), (1, 6, 9), strict=True):
        page.write_text(render_report(load_runs(runs[:number])))
    return made


@pytest.mark.parametrize("name", ["one", "many"])
@pytest.mark.parametrize(
    "screen", [{}, {"width": 390, "height": 844}, {"dark": True}], ids=["desktop", "phone", "dark"]
)
def test_the_page_opens_without_a_word_on_the_console(browser, pages, tmp_path, name, screen):
    browser.errors.clear()
    browser.show(pages[name], **screen)
    assert browser.errors == []
    # the page itself never scrolls sideways, whatever its tables do
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.picture(tmp_path / "page.png")
    width, height = struct.unpack(">II", (tmp_path / "page.png").read_bytes()[16:24])
    assert width == screen.get("width", 1280)
    assert height >= 500


def test_each_figure_is_saved_as_a_file_of_its_own(browser, pages):
    browser.show(pages["one"])
    figures, buttons = "document.querySelectorAll('figure svg')", "document.querySelectorAll('figure > .save')"
    assert browser.evaluate(f"{figures}.length") == browser.evaluate(f"{buttons}.length") > 3
    # a file to save: its name, and what is in it
    browser.evaluate(
        "window.saved = []; URL.createObjectURL = blob => (blob.text().then(text => saved.push(text)), 'data:,');"
        "HTMLAnchorElement.prototype.click = function() { saved.push(this.download); };"
        f"{buttons}[0].click(); 0"
    )
    browser.evaluate("new Promise(done => setTimeout(done, 300))")
    name, written = browser.evaluate("saved")
    assert name == "distance-against-round.svg"
    picture = ElementTree.fromstring(written)
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(--" not in written
    curve = next(part for part in picture.iter() if part.tag.endswith("polyline"))
    assert curve.get("stroke") == "rgb(37, 99, 235)"
    assert curve.get("fill") == "none"
    assert "Distance" in written


def test_three_settings_and_their_differences_fit_a_desktop(browser, pages):
    browser.show(pages["three"])
    results = "[...document.querySelectorAll('h2 ~ .table')].slice(0, 2)"
    heads = browser.evaluate(f"{results}.map(table => table.querySelector('thead').textContent)")
    assert "[95 %]" in heads[1]
    assert "[95 %]" not in heads[0]
    assert browser.evaluate(f"{results}.every(table => table.scrollWidth <= table.clientWidth)")


def test_names_in_tables_are_not_broken_on_a_phone(browser, pages):
    browser.show(pages["many"], width=390, height=844)
    one_line = """[...document.querySelectorAll('td:first-child')].filter(cell => cell.textContent.length < 24)
      .every(cell => cell.clientHeight < 2 * parseFloat(getComputedStyle(cell).lineHeight))"""
    assert browser.evaluate("document.querySelectorAll('td:first-child').length") > 5
    assert browser.evaluate(one_line)


def test_plots_are_there_and_inside_their_frames(browser, pages):
    browser.show(pages["many"])
    assert browser.evaluate("document.querySelectorAll('.charts svg .curve').length") >= 4
    assert browser.evaluate("document.querySelectorAll('.charts svg polygon').length") >= 2
    drawn = """[...document.querySelectorAll('.charts svg')].every(svg => {
      const frame = svg.getBoundingClientRect();
      return frame.height > 100 && [...svg.querySelectorAll('.curve')].every(curve => {
        const box = curve.getBoundingClientRect();
        return box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom;
      });
    })"""
    assert browser.evaluate(drawn)


def test_timeline_and_talk_are_drawn(browser, pages):
    browser.show(pages["one"])
    assert browser.evaluate("document.querySelectorAll('.wide svg g path').length") >= 1
    assert browser.evaluate("document.querySelectorAll('.talk .edge').length") >= 1
    assert "bank to shop" in browser.evaluate("document.querySelector('.talk .edge title').textContent")


def test_dark_and_light_differ_in_every_colour(browser, pages):
    colours = {}
    for dark in (False, True):
        browser.show(pages["one"], dark=dark)
        colours[dark] = browser.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
            " getComputedStyle(document.querySelector('.curve')).stroke]"
        )
    assert all(light != dark for light, dark in zip(colours[False], colours[True], strict=True))


def test_a_click_sorts_a_table_by_number_and_back(browser, pages):
    browser.show(pages["many"])
    cells = """(() => {
      const table = document.querySelectorAll('table')[0];
      table.tHead.rows[0].cells[1].querySelector('button').click();
      return [...table.tBodies[0].rows].map(row => parseFloat(row.cells[1].textContent.replaceAll(',', '')));
    })()"""
    up, down = browser.evaluate(cells), browser.evaluate(cells)
    assert len(up) > 5
    assert up == sorted(up)
    assert down == sorted(up, reverse=True)
    assert up != down

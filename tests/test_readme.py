"""What the README and the home page say: the demo's output, which protocol is for what, one page long."""

import html
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs import readme
from fedactors.plugins import discover
from scenarios import demo
from tests.browser import CHROMIUM, Browser

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SUMMARY = (ROOT / "docs/results/summary.md").read_text()
HOME = (ROOT / "docs/index.md").read_text()
PROTOCOLS: dict[str, Any] = {
    found.name: found.protocol for found in discover() if found.package == "fedactors" and found.protocol
}


WITHOUT_PANDAS = """
import sys

class Hidden:
    def find_spec(self, name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
"""
"""The install line of the README does not bring it."""


def printed() -> list[str]:
    """Return what the README says that the demo printed."""
    block = README.partition(demo.BEGIN)[2].partition(demo.END)[0]
    return [line.removeprefix("    ") for line in block.strip("\n").splitlines()]


def test_the_readme_is_a_page():
    assert len(README.splitlines()) <= 120
    prose = re.sub(r"^```.*?^```$|^ {4}[^\n]*$", "", README, flags=re.M | re.S)
    assert len(prose.split()) <= 600


@pytest.mark.slow
def test_the_python_of_the_readme_prints_what_it_says():
    found = readme.block(README)
    words = [sys.executable, "-c", WITHOUT_PANDAS + found["code"]]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == found["printed"]


def test_the_readme_counts_the_claims_of_the_summary():
    rows = re.findall(r"^\| [a-z-]+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", SUMMARY, re.M)
    total, confirmed, inconclusive, refuted = (sum(map(int, column)) for column in zip(*rows, strict=True))
    says = f"Of {total} claims, {confirmed} are confirmed, {inconclusive} inconclusive and {refuted} refuted"
    assert says in " ".join(README.split())


@pytest.mark.parametrize("name", PROTOCOLS)
def test_both_pages_say_of_every_protocol_what_list_says(name):
    problem = PROTOCOLS[name].problem
    for page in (README, HOME):
        (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
        assert problem in row, f"{name}: the page says otherwise than its plugin"


def test_the_readme_shows_the_demo_of_now():
    lines = printed()
    scene = demo.scene_lines()
    assert lines[: len(scene)] == scene
    header, rule, *rows = lines[len(scene) + 1 : len(scene) + 3 + len(demo.METHODS)]
    assert re.split(r" {2,}", header.strip()) == [cell for cell in demo.HEADER if cell]
    assert set(rule) == {"-", " "}
    assert max(map(len, lines)) <= demo.WIDE
    assert [row.split()[0] for row in rows] == list(demo.METHODS)
    verdicts = [line.partition(":")[0] for line in lines[len(scene) + 3 + len(demo.METHODS) :]]
    assert verdicts[:2] == ["simulated", "on Ray"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_simulated_figures_of_the_readme_are_those_of_now(tmp_path):
    runs = {method: demo.train(method, "simulated", str(tmp_path), smoke=False) for method in demo.METHODS}
    lines = printed()
    for method, run in runs.items():
        (row,) = [line for line in lines if line.startswith(f"{method} ")]
        assert re.split(r" {2,}", row)[1:3] == demo.row_of(method, run, run)[1:3], "python scenarios/demo.py --readme"
    assert demo.verdict("simulated", runs) in lines


def shown_lines(svg: str) -> list[str]:
    """Return the lines of text in a recording, without the blank ones."""
    return [
        html.unescape(text).replace("\xa0", " ").rstrip()
        for text in re.findall(r"<text[^>]* data-row=.*?>(.*?)</", svg)
    ]


def test_the_recording_shows_the_demo_of_now():
    lines = shown_lines(readme.RECORDING.read_text())
    scene = demo.scene_lines()
    assert lines[: len(scene) + 1] == ["$ python scenarios/demo.py", *scene]
    for method in demo.METHODS:
        (row,) = [line for line in lines if re.match(rf"{method} +\d", line)]
        (said,) = [line for line in printed() if re.match(rf"{method} +\d", line)]
        assert row.split("  ")[0] == method
        assert re.split(r" {2,}", row)[1:3] == re.split(r" {2,}", said)[1:3], "python -m docs.readme"
    assert [line.partition(":")[0] for line in lines[-2:]] == ["picture", "report"]


def test_a_recording_has_the_times_of_printed_lines(tmp_path):
    code = "import sys, time; print('a'); time.sleep(0.5); print('b', file=sys.stderr); time.sleep(0.5); print('c')"
    (first, a), (second, b), (third, c) = readme.record([sys.executable, "-c", code], tmp_path)
    assert (a, b, c) == ("a", "b", "c")
    assert min(second - first, third - second) == pytest.approx(0.5, abs=0.4)
    with pytest.raises(subprocess.CalledProcessError):
        readme.record([sys.executable, "-c", "print('a'); exit(3)"], tmp_path)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(tmp_path / "profile")
    yield made
    made.close()


VISIBLE = """(second => {
    for (const one of document.getAnimations()) { one.pause(); one.currentTime = 1000 * second; }
    const rows = [...document.querySelectorAll("[data-row]")].filter(one => getComputedStyle(one).opacity > 0);
    const inner = document.querySelector("svg svg"), matrix = document.documentElement.getScreenCTM();
    const top = matrix.f + matrix.d * inner.y.baseVal.value, bottom = top + matrix.d * inner.height.baseVal.value;
    const seen = rows.filter(one => {
        const at = one.getBoundingClientRect();
        return at.bottom > top + 2 && at.bottom < bottom + 1;
    });
    return seen.map(one => one.textContent.replaceAll("\\u00a0", " "));
})"""


@pytest.mark.slow
@pytest.mark.xdist_group("browser")
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is here")
def test_a_recording_plays_each_line_at_its_time(browser, tmp_path):
    count = readme.ROWS + 10
    page = tmp_path / "recording.svg"
    page.write_text(readme.recording([(float(n), f"line {n}") for n in range(1, count + 1)], "command"))
    browser.show(page)
    each = readme.SHOWN_SECONDS / count
    assert browser.evaluate(f"{VISIBLE}(0.01)") == ["$ command"]
    assert browser.evaluate(f"{VISIBLE}({3.5 * each})") == ["$ command", "line 1", "line 2", "line 3"]
    last = [f"line {n}" for n in range(count - readme.ROWS + 1, count + 1)]
    assert browser.evaluate(f"{VISIBLE}({readme.SHOWN_SECONDS + 1})") == last
    browser.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    assert browser.evaluate(f"{VISIBLE}(0)") == last
    assert not browser.errors


def test_the_page_of_questions_knows_which_protocols_have_a_device():
    text = (ROOT / "docs/faq.md").read_text()
    (answer,) = re.findall(r"\*\*Does it run on a GPU\?\*\*(.*?)\n\n", text, re.S)
    on_gpu, on_cpu = (set(re.findall(r"`([a-z-]+)`", part)) for part in answer.split(";"))
    having = {name for name, one in PROTOCOLS.items() if "device" in one.Config.__dataclass_fields__}
    assert on_gpu == having
    assert on_cpu == PROTOCOLS.keys() - having

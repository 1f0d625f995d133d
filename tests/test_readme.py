"""What the README and the home page say: the demo's output, which protocol is for what, one page long."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs import readme
from fedactors.plugins import discover
from scenarios import demo

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
    prose = re.sub(r"^```.*?^```$|^ {4}.*$", "", README, flags=re.M | re.S)
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


def test_the_page_of_questions_knows_which_protocols_have_a_device():
    text = (ROOT / "docs/faq.md").read_text()
    (answer,) = re.findall(r"\*\*Does it run on a GPU\?\*\*(.*?)\n\n", text, re.S)
    on_gpu, on_cpu = (set(re.findall(r"`([a-z-]+)`", part)) for part in answer.split(";"))
    having = {name for name, one in PROTOCOLS.items() if "device" in one.Config.__dataclass_fields__}
    assert on_gpu == having
    assert on_cpu == PROTOCOLS.keys() - having

"""Print where the time of a run of pytest went: ``python -m tests.times REPORT.xml`` (from ``--junitxml``)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

LONGEST = 25
"""Tests that are named."""


def seconds(report: Path) -> dict[str, float]:
    """Return the seconds of each test, its fixtures included, by ``path/test_file.py::test[case]``."""
    found: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        found[f"{file}::{case.get('name')}"] += float(case.get("time", 0.0))
    return dict(found)


def table(found: dict[str, float]) -> str:
    """Return the folders with their tests and seconds, then the longest tests."""
    total = sum(found.values()) or 1.0
    tests, spent = Counter[str](), Counter[str]()
    for test, took in found.items():
        path = Path(test.partition("::")[0])
        folder = path.parent.as_posix() if len(path.parts) > 2 else "tests (top level)"
        tests[folder] += 1
        spent[folder] += took
    lines = [f"{'seconds':>8} {'share':>6} {'tests':>6}  folder"]
    lines += [f"{took:8.0f} {took / total:6.1%} {tests[folder]:6}  {folder}" for folder, took in spent.most_common()]
    lines += ["", f"{'seconds':>8}  the {LONGEST} longest"]
    lines += [f"{took:8.1f}  {test}" for test, took in Counter(found).most_common(LONGEST)]
    return "\n".join(lines)


def counts(report: Path) -> str:
    """Return how many tests passed, failed (or ended in an error) and were skipped, in one line."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    return f"{len(cases) - failed - skipped} passed, {failed} failed, {skipped} skipped"


if __name__ == "__main__":
    report = Path(sys.argv[1])
    print(table(seconds(report)))
    print(counts(report))

"""Where the time of a run of tests went."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import times

REPORT = """<testsuites><testsuite>
<testcase classname="tests.data.test_csv" name="test_a[one]" time="3.5"/>
<testcase classname="tests.data.test_csv" name="test_b" time="0.5"><failure message="no"/></testcase>
<testcase classname="tests.runs.test_store" name="test_c" time="6.0"><skipped message="no GPU"/></testcase>
<testcase classname="tests.test_names" name="test_d" time="2.0"/>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "times.xml"
    path.write_text(REPORT)
    return path


def test_folders_and_longest_tests_are_listed_by_their_seconds(report: Path) -> None:
    lines = times.table(times.seconds(report)).splitlines()
    assert [line.split() for line in lines[1:4]] == [
        ["6", "50.0%", "1", "tests/runs"],
        ["4", "33.3%", "2", "tests/data"],
        ["2", "16.7%", "1", "tests", "(top", "level)"],
    ]
    assert lines[6].split() == ["6.0", "tests/runs/test_store.py::test_c"]
    assert lines[7].split() == ["3.5", "tests/data/test_csv.py::test_a[one]"]


def test_what_passed_failed_and_was_skipped_is_counted(report: Path) -> None:
    assert times.counts(report) == "2 passed, 1 failed, 1 skipped"

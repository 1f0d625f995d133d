"""A small part of the campaign, and the page that is made from all of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.campaign.environment import Environment
from tests.campaign.stories import SUBJECTS, Fault, measure_pace, tell
from tests.campaign.table import read_rows, render_page

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.drawn(1, of=3)
@pytest.mark.walk
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_story_of_the_campaign_ends_well() -> None:
    subject, draw = SUBJECTS["mtcd"], random.Random(3)
    faults = [Fault("kill -9", "driver", 1.5), Fault("kill -9", "GCS", 1.2)]  # the whole campaign has all of them
    rows = list(tell(subject, "stop", faults, measure_pace(subject), draw, seed=3, commit="this"))
    assert rows, "every start had ended before its fault"
    for row in rows:
        assert row.ended in ("finished", "line", "killed"), row
        assert row.resumed, row
        assert (row.left_processes, row.left_files, row.lost) == (0, 0, ""), row
        assert (row.round >= 0) == (row.moment >= 1), "it happened in its moment"
        assert (row.seed, row.commit) == (3, "this")
        assert row.time
        assert row.later in ([""] if row.ended == "finished" else ["resumed"] if row.round > 1 else ["resumed", "anew"])


def test_a_process_that_waits_for_a_core_is_told_from_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = Environment()
    core = min(os.sched_getaffinity(0))
    busy = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(2)]
    try:
        monkeypatch.setattr(environment, "processes", lambda: {process.pid: "actor" for process in processes})
        until = time.monotonic() + 60
        while environment.waited() < 0.5 and time.monotonic() < until:
            time.sleep(0.05)
        assert environment.waited() >= 0.5
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        stopped = environment.waited()
        time.sleep(0.5)
        assert environment.waited() == stopped
    finally:
        for process in processes:
            process.kill()
            process.wait()
        environment.remove()


@pytest.mark.docs
def test_the_page_says_what_the_table_holds() -> None:
    page = RESULTS / "reliability.md"
    assert render_page(page) == page.read_text(), "run python -m tests.campaign.table docs/results/reliability.md"
    rows = read_rows(RESULTS / "reliability.parquet")
    assert {row.protocol for row in rows} == set(SUBJECTS)
    assert {(row.protocol, row.policy) for row in rows} <= {(n, p) for n, s in SUBJECTS.items() for p in s.policies}


@pytest.mark.docs
def test_the_table_holds_enough_and_nothing_that_must_not_be() -> None:
    rows = read_rows(RESULTS / "reliability.parquet")
    assert [row for row in rows if row.is_bad] == []
    assert sum(row.fault == "kill -9" for row in rows) >= 100
    assert sum(row.fault == "stop" for row in rows) >= 40
    promised = {(name, policy) for name, one in SUBJECTS.items() if one.spared for policy in one.policies}
    assert {(row.protocol, row.policy) for row in rows if row.is_spared} == {p for p in promised if p[1] != "stop"}

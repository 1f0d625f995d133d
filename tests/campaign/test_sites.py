"""A few trials of the campaign between sites, how it judges, and the page that is made from all of them."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from fedactors.runtime.addresses import free_port
from tests.campaign.environment import whether_possible
from tests.campaign.expected import difference, outside
from tests.campaign.faults import Fault, Full, Later, Signal, Slow, faults
from tests.campaign.sites import AWAY, COMPILER, SUBJECTS, Campaign, Sites, plan, read_trials, render_page
from tests.federation.ways import Way
from tests.federation.world import SHOP

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "sites-security.md"
SOME = (Signal("kill -9", "coordinator"), Later("back hours later", SHOP), Full("disk full", SHOP), Slow("slow", SHOP))


@pytest.mark.drawn(1, of=4)
@pytest.mark.walk
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", SOME, ids=[fault.name for fault in SOME])
def test_a_trial_of_the_campaign_ends_well(fault: Fault, tmp_path: Path) -> None:
    if fault.needs == "clock" and COMPILER is None:
        pytest.skip("no compiler")
    if fault.needs == "disk" and (why := whether_possible()["disk"]) is not None:
        pytest.skip(f"no disk of its own: {why}")
    sites = Sites(tmp_path, small_disks=fault.needs == "disk")
    campaign = Campaign(sites, 3, noise=False)
    try:
        trial = campaign.tell(1, "horizontal", fault, "pause")
    finally:
        campaign.stop()
        sites.end()
    assert trial.outcome in ("finished", "paused", "resumed", "started again"), trial
    assert not trial.wrong, trial
    assert trial.codes[-1] == 0
    if trial.outcome in ("finished", "paused"):
        assert trial.codes == [0]


def test_each_protocol_meets_each_fault_with_noise_and_without() -> None:
    possible = list(faults(AWAY))
    planned = plan(len(SUBJECTS) * len(possible), list(SUBJECTS), possible)
    assert {(one[1], one[2]) for one in planned} == {(name, fault) for name in SUBJECTS for fault in possible}
    for name, subject in SUBJECTS.items():
        flags = {one[3] for one in planned if one[1] == name}
        assert flags == ({"auto"} if subject.has_quorum else {"pause", "auto"})
        assert {one[4] for one in planned if one[1] == name} == ({False, True} if subject.noise else {False})


def test_a_slow_way_carries_all_and_takes_its_time() -> None:
    port, listener = free_port(), socket.create_server(("127.0.0.1", 0))
    way, sent, arrived = Way(port, listener.getsockname()), bytes(range(256)) * 40, bytearray()

    def take() -> None:
        far, _ = listener.accept()
        with far:
            while block := far.recv(4096):
                arrived.extend(block)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        way.pace = 0.05, 20_000.0
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", port)) as near:
            near.sendall(sent)
        thread.join(30)
        assert bytes(arrived) == sent
        assert time.monotonic() - begun >= len(sent) / 20_000 + 0.05
    finally:
        way.stop()
        listener.close()


def test_what_differs_from_the_undisturbed_run_is_said() -> None:
    found = {"metrics": {"test/loss": 0.5}, "bytes": 8, "messages": 2}
    rounds = [{"round": 1, "test/loss": 0.7}, {"round": 2, "test/loss": 0.5}]
    assert difference(found, rounds, found, rounds) == ""
    other = [{"round": 1, "test/loss": 0.70001}, rounds[1]]
    assert difference(found, other, found, rounds) == "test/loss is 0.70001, of 0.7"
    assert difference(found, rounds[:1], found, rounds) == "1 rounds of 2"
    assert difference({**found, "bytes": 9}, rounds, found, rounds) == "bytes are 9, of 8"
    assert difference({**found, "bytes": 9}, rounds, found, rounds, traffic=False) == ""


def test_a_metric_outside_of_the_interval_is_said() -> None:
    expected = [{"test/accuracy": value, "seconds": 1.0} for value in (0.70, 0.72, 0.71, 0.69, 0.70)]
    assert outside({"test/accuracy": 0.73, "seconds": 9.0}, expected) == ""
    assert outside({"test/accuracy": 0.95}, expected).startswith("test/accuracy is 0.95, outside of 0.")


@pytest.mark.docs
def test_the_page_says_what_the_trials_came_to() -> None:
    assert render_page(PAGE) == PAGE.read_text(), "run python -m tests.campaign.sites --page"


@pytest.mark.docs
def test_the_trials_are_enough_and_none_is_lost() -> None:
    struck = [one for one in read_trials() if one.outcome != "over before"]
    assert len(struck) >= 60
    assert [one for one in struck if one.outcome in ("hung", "not resumable") or one.wrong] == []
    assert {one.protocol for one in struck} == set(SUBJECTS)

"""A host that is cut off from a real cluster, under the default policy, heartbeat timeout.

And health checks of Ray's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedactors.runs.folder import RunFolder
from fedactors.runs.metrics import read_rounds
from fedactors.runtime.ray.runtime import HEARTBEAT_TIMEOUT
from tests.runtime.hosts import Hosts, run, whether_possible

WHY_NOT = whether_possible()
pytestmark = [
    pytest.mark.walk,
    pytest.mark.ray,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(WHY_NOT is not None, reason=f"three hosts cannot be made here: {WHY_NOT}"),
    pytest.mark.drawn(1, of=4),
]
PLACEMENT = ("--placement", "active=site-a", "--placement", "broker=site-a", "--placement", "passive=site-b")
START_SECONDS = 300.0
"""For a fresh process on a machine that is busy."""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    labels = [{"site-a": 1}, {"site-b": 1}, {"site-b": 1}]
    made = Hosts(tmp_path_factory.mktemp("hosts"), labels, default_health_checks=True)
    yield made
    made.stop()


def num_rounds(out: Path) -> int:
    return max((len(file.read_text().splitlines()) for file in out.glob("*/metrics/round_metrics.jsonl")), default=0)


def wait_for_rounds(out: Path, count: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while num_rounds(out) < count:
        assert time.monotonic() < until, f"{num_rounds(out)} of {count} rounds after {seconds:g} s"
        time.sleep(0.1)


def host_of_the_passive_party(hosts: Hosts) -> int:
    """Return which host has a party's process; the head has the others."""
    for index in (1, 2):
        for pid in run("ip", "netns", "pids", hosts.names[index]).split():
            if b"ray::ActorProcess" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return index
    raise AssertionError("no host has the passive party's process")


def test_a_partys_host_is_cut_off_twice(hosts: Hosts) -> None:
    """First another host has what the party asks, and the run goes on there; then none has, and it ends and says so."""
    out = hosts.folder / "out"
    words = ["submit", "pubsub-vfl", "num_epochs=100000", "batch_size=64", "num_layers=2", "hidden_size=8", "--wait"]
    where = [*PLACEMENT, "--quiet", "--out", str(out), "--address", hosts.dashboard]
    process = hosts.start(0, "python", "-m", "fedactors", *words, *where)
    try:
        wait_for_rounds(out, 2, START_SECONDS + 100)
        first = host_of_the_passive_party(hosts)
        hosts.cut(first)
        time.sleep(1.0)  # what had arrived by then
        # within the heartbeat timeout, a host's silence and a start: Ray itself gives the host up after a minute
        wait_for_rounds(out, num_rounds(out) + 3, HEARTBEAT_TIMEOUT + 10 + START_SECONDS)
        hosts.cut(3 - first)
        cut = time.monotonic()
        log = "".join(process.communicate(timeout=HEARTBEAT_TIMEOUT + 60 + START_SECONDS))
        took = time.monotonic() - cut
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 3, log[-3000:]
    (line,) = [line for line in log.splitlines() if line.startswith("fedactors: passive/")]
    assert "passive/worker-0 asks CPU=0.1, site-b=0.001, which no host has; the cluster has" in line
    assert "site-a=1" in line
    assert "site-b=1" not in line
    assert took < HEARTBEAT_TIMEOUT + 60
    (made,) = out.iterdir()
    folder = RunFolder.open(made)
    assert folder.manifest["status"] == "failed"
    assert len(read_rounds(folder)) >= 5
    assert folder.manifest["checkpoints"]

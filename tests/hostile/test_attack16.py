"""Failing tests of an attack on several runs at once; see the report."""

from __future__ import annotations

import os
from pathlib import Path

from fedactors.federation.run_queue import QueuedRun, RunQueue
from fedactors.federation.site_folder import RunLimits
from fedactors.federation.site_run import UsageWatch


def test_a_run_that_ends_removes_no_shared_memory_of_another_in_its_process():
    going_on = UsageWatch(RunLimits(), list)
    over = UsageWatch(RunLimits(), list)
    file = Path(f"/dev/shm/torch_{os.getpid()}_1234_0")
    file.write_bytes(b"of the run that goes on")
    try:
        over.release()  # before `going_on` was measured again: up to 5 s
        assert file.exists()
    finally:
        going_on.release()
        file.unlink(missing_ok=True)


def waiting(coordinator: str, run: str) -> QueuedRun:
    found = QueuedRun(coordinator, run, 0.0, proposal=object())  # type: ignore[arg-type]
    found.is_asking = True
    return found


def test_a_run_that_waits_for_a_run_of_its_own_coordinator_keeps_no_free_slot():
    """P's run A is under way; P queues one that goes on from A, which cannot begin before A's end."""
    queue = RunQueue()
    own, other = waiting("p", "a" * 16), waiting("q", "b" * 16)
    queue.add(own)
    queue.add(other)
    assert queue.reserve(1.0, ["p", "q"], None, lambda one: one is not own) is other

"""Runs that wait for a site begin in the order in which they came, and nobody keeps the others waiting for long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.errors import Refused
from fedactors.federation import run_queue
from fedactors.federation.approval import as_tree, decide, decision, kept_proposals
from fedactors.federation.handshake import dial
from fedactors.federation.operations import agree
from fedactors.federation.run_queue import QUEUED, QueuedRun, RunQueue
from fedactors.federation.session import Connection, Hello
from fedactors.federation.site_folder import SITE
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import Rogue
from tests.federation.test_runs import SMALL, VERTICAL, command, last_line, simulated
from tests.federation.world import BANK, CLINIC, LIMITS, SHOP, World

slow = pytest.mark.slow


# --- the order, without a site --------------------------------------------------------------------------------------


def waiting(queue: RunQueue, coordinator: str, run: str) -> QueuedRun:
    made = QueuedRun(coordinator, run, 0.0, proposal=object(), is_asking=True)  # type: ignore[arg-type]
    queue.add(made)
    return made


def test_the_first_run_whose_driver_asks_has_its_turn() -> None:
    queue = RunQueue()
    first, second, third = (waiting(queue, who, who * 2) for who in "abc")
    first.is_asking, first.asked_at = False, 0.0
    assert queue.reserve(run_queue.READY_SECONDS) is first
    queue.remove(first)
    assert [queue.position(one) for one in (second, third)] == [1, 2]
    second.is_asking, second.asked_at = False, 0.0
    assert queue.reserve(run_queue.READY_SECONDS + 0.1) is third
    assert (queue.position(third), queue.position(second)) == (0, 1)
    assert queue.ahead(third) is second
    assert queue.ahead(second) is None


@pytest.mark.parametrize("what", ["no proposal", "absent", "rejected"])
def test_a_run_that_could_not_begin_has_no_turn(what: str) -> None:
    queue = RunQueue()
    one, other = waiting(queue, "a", "1"), waiting(queue, "b", "2")
    if what == "no proposal":
        one.proposal = None
    elif what == "absent":
        one.absent_since = 0.0
    else:
        one.rejection = ""
    assert queue.reserve(0.0) is other


def test_a_reservation_ends_when_its_driver_stops_asking() -> None:
    queue = RunQueue()
    one = waiting(queue, "a", "1")
    queue.reserve(0.0)
    one.is_asking, one.asked_at = False, 1.0
    assert not queue.release(1.0 + run_queue.READY_SECONDS, 300.0)
    assert queue.release(1.1 + run_queue.READY_SECONDS, 300.0)
    assert queue.reserved is None
    assert queue.find("a", "1") is one  # at its position
    one.is_asking = True
    assert queue.reserve(20.0) is one


def test_who_does_not_begin_while_others_wait_is_last_and_passed_over() -> None:
    queue = RunQueue()
    one, more = waiting(queue, "a", "1"), waiting(queue, "a", "2")
    assert queue.reserve(0.0) is one
    queue.remove(more)
    assert not queue.release(10_000.0, 300.0)  # nobody waits
    more, other = waiting(queue, "a", "2"), waiting(queue, "b", "3")
    assert not queue.release(300.0, 300.0)
    assert queue.release(300.1, 300.0)
    assert [row.run for row in queue] == ["2", "3", "1"]
    assert queue.reserve(300.1) is other  # and no other run of the same coordinator
    queue.remove(other)
    assert queue.reserve(600.0) is None
    assert queue.reserve(600.2) is more


def test_a_driver_that_does_not_wait_counts_as_one_that_does() -> None:
    queue = RunQueue()
    one = waiting(queue, "a", "1")
    queue.refused(-1.0)  # before the reservation
    queue.reserve(0.0)
    assert not queue.release(301.0, 300.0)
    queue.refused(302.0)
    assert queue.release(303.0, 300.0)
    assert queue.reserve(304.0) is None
    assert queue.reserve(603.1) is one


def test_a_queue_has_room_for_so_many_runs_and_for_everybodys_first() -> None:
    queue = RunQueue()
    for number in range(2):
        assert queue.why_full("a", 2, 3) is None
        waiting(queue, "a", str(number))
    assert queue.why_full("a", 2, 3) == "2 runs of a wait already; at most 2 (policy.queued_runs)"
    waiting(queue, "b", "2")
    assert queue.why_full("b", 2, 3) == "3 runs wait already; at most 3 (policy.queue_length)"
    assert queue.why_full("c", 2, 3) is None


def test_who_is_gone_for_long_leaves_the_queue() -> None:
    queue = RunQueue()
    one = waiting(queue, "a", "1")
    assert queue.absent(100.0) == []
    one.absent_since = 0.0
    assert queue.absent(run_queue.ABSENT_SECONDS) == []
    assert queue.absent(run_queue.ABSENT_SECONDS + 0.1) == [one]


# --- real sites -----------------------------------------------------------------------------------------------------

VFL = (*SMALL, "algorithm=vfl")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three sites whose policies answer; the first starts runs with the shop, and so may the clinic with the bank."""
    made = World(tmp_path_factory.mktemp("queue"), (BANK, SHOP, CLINIC))
    for name in made.names:
        file = made.path / name / SITE
        file.write_text(f'{file.read_text()}\n[policy]\napprove = "policy"\nproposals_per_hour = 1000\n')
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


def words(world: World, *more: str, by: str = BANK, data: str = VERTICAL, timeout: str = "120") -> list[str]:
    flags = ("--federation", str(world.path / by / "federation.toml"), "--data", data, "--queue-timeout", timeout)
    return ["run", "pubsub-vfl", *flags, "--out", str(world.path / "runs"), "--format", "json", *VFL, *more]


def driver(world: World, *more: str, **about: str) -> subprocess.Popen[str]:
    """Start a coordinator in a process of its own."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "fedactors", *words(world, *more, **about)], **pipes)


def queue_of(world: World, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((world.path / name / "status.json").read_text())["queue"]
    return found


def hold(world: World, name: str = SHOP) -> threading.Event:
    """Keep a site busy with a driver that proposes nothing, until the event is set."""
    process = world.processes[name]
    world.on(name, lambda: setattr(process, "_asked", "f" * 16))
    done = threading.Event()

    def release() -> None:
        done.wait(120)
        world.on(name, process._be_idle)

    threading.Thread(target=release, daemon=True).start()
    return done


@slow
def test_two_runs_that_start_at_once_both_finish_with_the_metrics_of_single_ones(
    three: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world, seed = three, ("--share-seed", "--seed", "7")
    for name in (BANK, SHOP):  # a shared seed waits for a person
        file = world.path / name / SITE
        file.write_text(file.read_text().replace('approve = "policy"', 'approve = "person"'))
    answering = threading.Event()

    def answer() -> None:
        while not answering.wait(0.1):
            for name in (BANK, SHOP):
                for proposal in kept_proposals(world.folder(name)).values():
                    if decision(world.folder(name), proposal) is None:
                        decide(world.folder(name), proposal, approved=True)

    threading.Thread(target=answer, daemon=True).start()
    try:
        both = [driver(world, *seed), driver(world, *seed)]
        told = [one.communicate(timeout=150) for one in both]
    finally:
        answering.set()
        for name in (BANK, SHOP):
            file = world.path / name / SITE
            file.write_text(file.read_text().replace('approve = "person"', 'approve = "policy"'))
    assert [one.returncode for one in both] == [0, 0], told
    assert simulated(world, VFL) == 0 if CLINIC not in world.names else True
    found = [json.loads(out.splitlines()[-1]) for out, _ in told]
    assert found[0]["metrics"] == found[1]["metrics"]
    capsys.readouterr()

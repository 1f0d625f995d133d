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
from pydantic import ValidationError

from fedactors.cli.main import main
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation import run_queue
from fedactors.federation.approval import as_tree, decide, decision, keep_proposal, kept_proposals
from fedactors.federation.handshake import dial
from fedactors.federation.operations import agree
from fedactors.federation.run_queue import QUEUED, ActiveRun, Demand, QueuedRun, RunQueue, why_not_beside
from fedactors.federation.session import Connection, Hello
from fedactors.federation.site_folder import SITE, Policy, RunLimits, Totals
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import Rogue
from tests.federation.test_runs import SMALL, VERTICAL, last_line, simulated
from tests.federation.world import BANK, LIMITS, SHOP, World

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


def test_a_run_that_may_wait_for_one_of_its_own_coordinator_keeps_no_free_slot() -> None:
    queue = RunQueue()
    later, other = (waiting(queue, who, who * 2) for who in "pq")
    assert queue.reserve(0.0, ["p", "q"], None, lambda one: one is not later) is other


def test_a_run_that_nobody_has_answered_keeps_no_approved_one_waiting() -> None:
    queue = RunQueue()
    _, second, third = (waiting(queue, who, who * 2) for who in "abc")
    second.is_approved = third.is_approved = True
    assert queue.reserve(0.0) is second


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
    assert not queue.reserved
    assert queue.find("a", "1") is one  # at its position
    one.is_asking = True
    assert queue.reserve(20.0) is one


def test_who_does_not_begin_while_others_wait_is_behind_them_and_passed_over() -> None:
    queue = RunQueue()
    one, more = waiting(queue, "a", "1"), waiting(queue, "a", "2")
    assert queue.reserve(0.0) is one
    assert not queue.release(10_000.0, 300.0)  # no other coordinator waits
    other, last = waiting(queue, "b", "3"), waiting(queue, "a", "4")
    assert not queue.release(300.0, 300.0)
    assert queue.release(300.1, 300.0)
    assert [queue.position(each) for each in (other, one, more, last)] == [1, 2, 3, 4]
    assert queue.reserve(300.1) is other
    queue.remove(other)
    assert queue.reserve(600.0) is None
    assert queue.reserve(600.2) is one


def test_a_driver_that_does_not_wait_counts_as_one_that_does() -> None:
    queue = RunQueue()
    one = waiting(queue, "a", "1")
    queue.refused("b", -1.0)  # before the reservation
    queue.reserve(0.0)
    assert not queue.release(301.0, 300.0)
    queue.refused("b", 302.0)
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


def test_a_higher_priority_comes_first_and_equal_ones_as_they_came() -> None:
    queue = RunQueue()
    runs = [waiting(queue, who, str(number)) for number, who in enumerate("abcab")]
    queue.order({"b": 2, "c": -1})
    expected = [runs[1], runs[4], runs[0], runs[3], runs[2]]
    assert list(queue) == expected
    assert [row["priority"] for row in map(vars, queue)] == [2, 2, 0, 0, -1]
    assert [queue.reserve(0.0) for _ in runs] == expected
    assert queue.reserve(0.0) is None


def test_a_further_slot_is_of_the_coordinator_with_the_fewest_runs() -> None:
    queue = RunQueue()
    first, other = waiting(queue, "a", "1"), waiting(queue, "b", "2")
    assert queue.turns(0.0, ["a"])[0] is other
    assert queue.turns(0.0, ["a", "b"])[0] is first
    assert queue.turns(0.0, ["a", "b", "b"], most=1) == []
    assert queue.turns(0.0, ["a", "b", "b"], most=2)[0] is first
    other.is_approved = True
    assert queue.turns(0.0, ["b"])[0] is other, "who waits for a person's answer takes no slot of one that has it"


def test_a_run_that_does_not_fit_is_not_overtaken() -> None:
    queue = RunQueue()
    first, small = waiting(queue, "a", "1"), waiting(queue, "b", "2")
    assert queue.reserve(0.0, fits=lambda one: one is small) is None
    assert queue.reserve(0.0) is first
    assert queue.reserve(0.0) is small
    assert queue.reserved == (first, small)


GIB = RunLimits(memory_gib=1.0)


@pytest.mark.parametrize(
    ("demand", "others", "totals", "why"),
    [
        (Demand(GIB, "1", False), [Demand(GIB, "2", False)], Totals(memory_gib=2.0), None),
        (Demand(GIB, "1", False), [Demand(GIB, "2", False)], Totals(memory_gib=1.9), "would be 2; at most 1.9"),
        (Demand(GIB, "1", False), [Demand(GIB, "1", False)], Totals(), "goes on from the same run"),
        (Demand(GIB, "1", True), [Demand(GIB, "2", False)], Totals(), "where it has to be alone"),
        (Demand(GIB, "1", False), [Demand(GIB, "2", True)], Totals(), "a run of b is alone here"),
        (Demand(GIB, "1", True), [None], Totals(), None),
    ],
)
def test_a_run_begins_where_it_has_room_beside_others(
    demand: Demand, others: list[Demand | None], totals: Totals, why: str | None
) -> None:
    active = [ActiveRun("b", str(number), demand=one) for number, one in enumerate(others)]
    found = why_not_beside(demand, active, totals)
    assert found == why if why is None else why in str(found)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "concurrent_runs = 2\nlimits = { memory_gib = 1.0 }",
            "concurrent_runs: 2 is not allowed with a limit of",
        ),
        (
            "concurrent_runs = 2\ntotals = { disk_gib = 1.0 }",
            "2 is not allowed with a limit of disk_gib and",
        ),
        ("limits = { gpus = 3 }\ntotals = { gpus = 2 }", r"limits.gpus: 3 is not allowed: at most 2 \(policy.totals"),
        ("concurrent_runs = 0", "concurrent_runs"),
        ('priority = { bank = "high" }', "priority"),
        ('priority = { "no site" = 1 }', "priority"),
    ],
)
def test_a_policy_that_could_not_be_held_to_is_refused(tmp_path: Path, lines: str, said: str) -> None:
    world = World(tmp_path)
    file = tmp_path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n[policy]\n{lines}\n")
    with pytest.raises(BadInput, match=said):
        world.folder(SHOP)


def test_a_run_without_a_limit_may_take_what_all_may(tmp_path: Path) -> None:
    most = Policy(limits=RunLimits(memory_gib=1.0), totals=Totals(memory_gib=4.0, gpus=2)).run_limits
    assert (most.memory_gib, most.gpus, most.disk_gib) == (1.0, 2, None)
    with pytest.raises(BadInput, match=r"policy.limits.gpus: 3 is not allowed: at most 2"):
        RunLimits(gpus=3).within(most, SHOP)


def test_who_is_gone_for_long_leaves_the_queue() -> None:
    queue = RunQueue()
    one = waiting(queue, "a", "1")
    assert queue.absent(100.0) == []
    one.absent_since = 0.0
    assert queue.absent(run_queue.ABSENT_SECONDS) == []
    assert queue.absent(run_queue.ABSENT_SECONDS + 0.1) == [one]


@pytest.mark.parametrize("wrong", [{"queued_runs": 0}, {"queue_length": 0}, {"reservation_seconds": 59.0}])
def test_what_would_let_nobody_wait_is_no_policy(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Policy(**wrong)


# --- real sites -----------------------------------------------------------------------------------------------------

VFL = (*SMALL, "algorithm=vfl")
ROWS = ("num_rounds=2", "hidden_size=4")
TASK = 'task = { type = "binary", layout = "horizontal", classes = ["0", "1"], test = "test.csv" }'
POLICY = """
[policy]
approve = "policy"
proposals_per_hour = 1000
queued_runs = 3
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two sites whose policies answer, and either of which may start a run over the rows of both."""
    made = World(tmp_path_factory.mktemp("queue"))
    for name in made.names:
        file = made.path / name / SITE
        text = file.read_text().replace("[data.cases]\n", f"[data.cases]\n{TASK}\n")
        file.write_text(f"{text}{POLICY}")
    (made.path / SHOP / "test.csv").write_bytes((made.path / BANK / "test.csv").read_bytes())
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


@contextlib.contextmanager
def approving(world: World, how: str) -> Iterator[None]:
    """Have persons or policies answer meanwhile."""
    files = {name: world.path / name / SITE for name in world.names}
    before = {name: file.read_text() for name, file in files.items()}
    for name, file in files.items():
        file.write_text(before[name].replace('approve = "policy"', f'approve = "{how}"'))
    try:
        yield
    finally:
        for name, file in files.items():
            file.write_text(before[name])


@contextlib.contextmanager
def persons(world: World) -> Iterator[None]:
    """Answer whatever waits at all sites, as their persons would: a seed that is shared waits for them."""
    is_over = threading.Event()

    def answer() -> None:
        while not is_over.wait(0.1):
            for name in world.names:
                folder = world.folder(name)
                for proposal in kept_proposals(folder).values():
                    if decision(folder, proposal) is None:
                        with contextlib.suppress(FedactorsError):  # its coordinator went away
                            decide(folder, proposal, approved=True)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(10)


def until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


def by_bank(world: World, *more: str, timeout: str = "120") -> list[str]:
    file = str(world.path / BANK / "federation.toml")
    flags = ("--federation", file, "--data", VERTICAL, "--queue-timeout", timeout, "--out", str(world.path / "runs"))
    return ["run", "pubsub-vfl", *flags, "--format", "json", *VFL, *more]


def over_rows(world: World, first: str, *more: str) -> list[str]:
    """What the person of the site `first` types to train over the rows of both."""
    data = f"{BANK}=patients,{SHOP}=cases" if first == BANK else f"{SHOP}=cases,{BANK}=patients"
    file, out = str(world.path / first / "federation.toml"), str(world.path / f"runs-{first}")
    flags = ("--federation", file, "--data", data, "--queue-timeout", "120", "--out", out, "--format", "json")
    return ["run", "horizontal", *flags, *ROWS, *more]


@contextlib.contextmanager
def drivers(*commands: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start coordinators in processes of their own, and end those that are left."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    made = [subprocess.Popen([sys.executable, "-m", "fedactors", *words], **pipes) for words in commands]
    try:
        yield made
    finally:
        for one in made:
            if one.poll() is None:
                one.kill()
            one.wait(20)
            for stream in (one.stdout, one.stderr):
                if stream is not None:
                    stream.close()


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a coordinator prints of its run."""
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def queue_of(world: World, name: str = SHOP) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((world.path / name / "status.json").read_text())["queue"]
    return found


def is_free(world: World) -> bool:
    return not any(one.runs or len(one._queue) or queue_of(world, name) for name, one in world.processes.items())


@contextlib.contextmanager
def busy(world: World, name: str = SHOP) -> Iterator[None]:
    """Keep a site busy, as with a run of somebody's."""
    until(lambda: is_free(world))
    process = world.processes[name]
    world.on(name, lambda: process.runs.update({"f" * 16: ActiveRun("nobody", "f" * 16)}))
    try:
        yield
    finally:
        world.free(name)


def ended(world: World, name: str = SHOP) -> list[str]:
    return [line["run"] for line in world.audit(name) if line["what"] == "ended" and line["who"] == "site"]


@slow
def test_two_runs_that_start_at_once_both_finish_with_the_metrics_of_single_runs(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = ("--share-seed", "--seed", "7")
    assert simulated(world, VFL) == 0
    expected = last_line(capsys)
    with persons(world), drivers(by_bank(world, *seed), by_bank(world, *seed)) as both:
        found = [finished(one) for one in both]
    for one in found:
        assert one["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
        assert (one["bytes"], one["messages"]) == (expected["bytes"], expected["messages"])
    for run in ended(world)[-2:]:
        assert agree({name: world.path / name for name in (BANK, SHOP)}, run)
    until(lambda: is_free(world))


@slow
def test_two_coordinators_that_want_the_same_sites_do_not_wait_for_each_other(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = ("--share-seed", "--seed", "7")
    assert simulated(world, ROWS, "horizontal") == 0
    expected = last_line(capsys)
    with persons(world):
        for _ in range(2):
            with drivers(over_rows(world, BANK, *seed), over_rows(world, SHOP, *seed)) as both:
                found = [finished(one) for one in both]
            assert found[0]["metrics"] == pytest.approx(expected["metrics"], abs=1e-6)
            assert {one["protocol"] for one in found} == {"horizontal"}
    until(lambda: is_free(world))


@slow
def test_runs_begin_in_the_order_in_which_they_came(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    before = len(ended(world))
    with contextlib.ExitStack() as stack:
        with busy(world, BANK):
            for number in range(3):
                stack.enter_context(drivers(by_bank(world)))
                until(lambda number=number: len(queue_of(world, BANK)) > number)  # type: ignore[misc]
            rows = queue_of(world, BANK)
            assert [row["position"] for row in rows] == [1, 2, 3]
            assert {(row["coordinator"], row["protocol"], row["state"]) for row in rows} == {
                (BANK, "pubsub-vfl", "ready")
            }
            capsys.readouterr()
            assert main(["site", "status", "--folder", str(world.path / BANK)]) == 0
            shown = capsys.readouterr().out
            assert f"  2: run {rows[1]['run']}: pubsub-vfl of bank, waits since {rows[1]['since']}, ready" in shown
            assert main(["site", "runs", "--folder", str(world.path / BANK), "--format", "json"]) == 0
            known = {one["run"]: one for one in last_line(capsys)["runs"]}
            for row in rows:
                assert {name: known[row["run"]][name] for name in ("position", "waits_since")} == {
                    "position": row["position"],
                    "waits_since": row["since"],
                }
        until(lambda: len(ended(world)) == before + 3, 120)
    assert ended(world)[-3:] == [row["run"] for row in rows]
    until(lambda: is_free(world))


@slow
def test_a_run_is_answered_while_another_one_is_under_way(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """The approval holds when its turn comes; a rejection is told at once."""
    with approving(world, "person"), busy(world), drivers(by_bank(world), by_bank(world)) as both:
        # the bank comes first, and one of the two waits there
        (row,) = until(lambda: len(queue_of(world, BANK)) == 2 and queue_of(world, SHOP))
        assert decision(world.folder(SHOP), kept_proposals(world.folder(SHOP))[row["run"]]) is None
        assert main(["site", "approve", row["run"], "--folder", str(world.path / SHOP)]) == 0
        (other,) = [one["run"] for one in queue_of(world, BANK) if one["run"] != row["run"]]
        folder = str(world.path / BANK)
        assert main(["site", "reject", other, "--folder", folder, "--why", "not today"]) == 0
        rejected = until(lambda: next((one for one in both if one.poll() is not None), None), 30)
        assert rejected.returncode == 3
        assert "fedactors: bank: rejected the run: not today" in rejected.communicate()[1]
        assert main(["site", "approve", row["run"], "--folder", folder]) == 0
        (left,) = [one for one in both if one is not rejected]
        world.free(SHOP)
        finished(left)
    assert ended(world)[-1] == row["run"]
    until(lambda: is_free(world))


@slow
def test_who_waits_says_for_whom_and_for_how_long_at_most(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    with busy(world), drivers(by_bank(world, timeout="4")) as (one,):
        _, err = one.communicate(timeout=60)
    assert one.returncode == 3
    assert "waits for shop: position 1 in its queue" in err
    (line,) = [line for line in err.splitlines() if line.startswith("fedactors: ")]
    assert line.startswith("fedactors: shop: had no turn for the run within 4 s (waits for shop: position 1 in its")
    assert "--queue-timeout" in line
    until(lambda: is_free(world))
    assert decision(world.folder(SHOP), list(kept_proposals(world.folder(SHOP)).values())[-1]) == (
        False,
        "the coordinator went away",
    )


@slow
def test_without_a_timeout_a_busy_site_refuses_as_ever(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(world.path / BANK / "federation.toml")
    with busy(world):
        assert (
            main(["run", "pubsub-vfl", "--federation", file, "--data", VERTICAL, "--out", str(world.path / "no")]) == 3
        )
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert "one at a time; --queue-timeout SECONDS lets a run wait for its turn" in line


# --- hostile members, drivers that die, sites that are started again --------------------------------------------------


class Waiter:
    """A coordinator at the bank that waits at the shop as it likes."""

    def __init__(self, world: World) -> None:
        self.rogue = Rogue(world)
        self.link: Connection | None = None

    async def ask(self, verb: str, *args: Any) -> Any:
        """Ask the shop; the first time over a new connection."""
        if self.link is None:
            hello = Hello("credit", "driver", self.rogue.proposal.run, QUEUED)
            ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
            shop = self.rogue.folder.federation.members[SHOP]
            self.link = await dial(self.rogue.folder, shop, hello, replace(LIMITS, away=0.0), **ends)
        async with asyncio.timeout(60):
            return await self.link.ask((verb, args), verb)

    async def queue(self, **changed: Any) -> Any:
        return await self.ask(QUEUED, {**as_tree(self.rogue.proposal), **changed})

    async def end(self) -> None:
        if self.link is not None:
            await self.link.end()


def with_waiters(world: World, number: int, act: Callable[..., Any]) -> None:
    """Do something with coordinators of the bank's that wait at the shop, and end them."""
    until(lambda: is_free(world))
    made = [Waiter(world) for _ in range(number)]

    async def work() -> None:
        try:
            await act(*made)
        finally:
            for one in made:
                await one.end()

    asyncio.run(work())
    run_queue_ends(world)


def run_queue_ends(world: World) -> None:
    """Let the runs of drivers that are gone leave at once."""
    for name in world.names:
        queue = world.processes[name]._queue
        world.on(name, queue._passed_over.clear)
        for one in queue:
            world.on(name, lambda name=name, one=one: world.processes[name]._leave_queue(one, "gone"))  # type: ignore[misc]
    until(lambda: is_free(world))


@slow
def test_a_member_that_fills_the_queue_keeps_no_other_out(world: World) -> None:
    async def act(*waiters: Waiter) -> None:
        with busy(world):
            for number, one in enumerate(waiters[:3]):
                assert (await one.queue())[0] == number + 1
            for one in waiters[3:]:
                with pytest.raises(Refused, match=r"3 runs of bank wait already; at most 3 \(policy.queued_runs\)"):
                    await one.queue()
            with drivers(over_rows(world, SHOP)) as (other,):
                await asyncio.to_thread(until, lambda: [row for row in queue_of(world) if row["coordinator"] == SHOP])
                for one in waiters[:3]:
                    await one.end()  # they ask no more: the shop's own run is next
                world.free(SHOP)
                await asyncio.to_thread(finished, other)

    with_waiters(world, 5, act)


@slow
def test_who_reserves_a_site_and_does_not_begin_keeps_others_waiting_for_so_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reserves one site only and asks for its turn for ever; the others come first within the limit."""
    release = RunQueue.release
    monkeypatch.setattr(RunQueue, "release", lambda self, now, most: release(self, now, most / 60))

    async def act(waiter: Waiter) -> None:
        assert (await waiter.queue())[0] == 0
        is_over = asyncio.Event()

        async def ask_for_ever() -> None:
            while not is_over.is_set():
                await waiter.ask("position", 0, "")

        asking = asyncio.create_task(ask_for_ever())
        with drivers(over_rows(world, SHOP)) as (other,):
            # the other asks on: without the limit this one would wait for its --queue-timeout, and fail
            await asyncio.to_thread(finished, other)
        is_over.set()
        await asking

    with_waiters(world, 1, act)
    assert any("bank did not begin, and the site is free for the next" in line for line in world.output[SHOP])


@slow
def test_what_waits_is_what_begins(world: World) -> None:
    """A proposal that is changed, before or after it was approved, is refused when its turn comes."""

    async def act(waiter: Waiter, other: Waiter) -> None:
        tree = as_tree(waiter.rogue.proposal)
        longer = {**tree, "config": {**tree["config"], "num_epochs": 77}}
        with busy(world):
            await waiter.queue()
            with pytest.raises(Refused, match="asks for 'prepare' of a run that is not under way"):
                await waiter.ask("prepare", ())
            with pytest.raises(Refused, match="proposes a run before its turn"):
                await waiter.ask("propose", tree)
            decide(world.folder(SHOP), waiter.rogue.proposal, approved=True)
            with pytest.raises(Refused, match="asks for its position before it has proposed a run"):
                await other.ask("position")
        await asyncio.to_thread(until, lambda: world.driven_run(SHOP) == tree["run"])
        with pytest.raises(Refused, match="is another one than it was when it began to wait"):
            await waiter.ask("propose", longer)
        assert world.run(SHOP) is None

    with_waiters(world, 2, act)
    assert any("is another one than it was" in line for line in world.refusals(SHOP))


@slow
def test_a_run_is_of_the_coordinator_that_waits_with_it(world: World) -> None:
    """Another member has learnt its id: by that id it neither waits nor drives."""

    async def act(waiter: Waiter) -> None:
        run, me = waiter.rogue.proposal.run, world.folder(SHOP)
        ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(SHOP, SHOP)}
        for is_reserved in (False, True):
            with contextlib.nullcontext() if is_reserved else busy(world):
                assert ((await waiter.queue())[0] == 0) is is_reserved
                for assignment in (QUEUED, ""):
                    hello = Hello("credit", "driver", run, assignment)
                    with pytest.raises(Refused, match=r"waits (already|for its turn)"):
                        await dial(me, me.federation.members[SHOP], hello, replace(LIMITS, away=0.0), **ends)
            assert world.processes[SHOP]._queue.find(BANK, run) is not None

    with_waiters(world, 1, act)


def driver_of(world: World, run: str, assignment: str) -> Any:
    """Dial the shop as the bank's driver of a run."""
    bank = world.folder(BANK)
    ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
    hello = Hello("credit", "driver", run, assignment)
    return dial(bank, bank.federation.members[SHOP], hello, replace(LIMITS, away=0.0), **ends)


@slow
def test_no_second_connection_with_a_run_that_waits_keeps_a_site(world: World) -> None:
    async def act() -> None:
        first = await driver_of(world, "a" * 16, QUEUED)
        with pytest.raises(Refused, match="which waits for its turn"):
            await driver_of(world, "a" * 16, "")
        await first.end()

    with_waiters(world, 0, act)
    assert world.driven_run(SHOP) is None


@slow
def test_a_coordinator_is_told_of_no_run_of_others(world: World) -> None:
    """By the id of a run another member could wait with it at sites where it has yet to come."""

    async def act(waiter: Waiter) -> None:
        with busy(world):
            run = world.driven_run(SHOP)
            assert run
            assert run not in str(await waiter.queue())
            with pytest.raises(Refused, match="one at a time") as told:
                await driver_of(world, "b" * 16, "")
            assert run not in str(told.value)

    with_waiters(world, 1, act)


@slow
def test_a_run_that_paused_comes_before_those_that_wait(world: World) -> None:
    async def act(waiter: Waiter) -> None:
        paused = replace(Rogue(world).proposal, run="d" * 16, return_timeout=60.0)
        keep_proposal(world.folder(SHOP), paused)
        decide(world.folder(SHOP), paused, approved=True, why="a test")
        with busy(world):
            assert (await waiter.queue())[0] == 1
            with pytest.raises(Refused, match="one at a time"):
                await driver_of(world, paused.run, "")
        await asyncio.sleep(2)
        assert not world.processes[SHOP]._queue.reserved
        link = await driver_of(world, paused.run, "")
        assert world.driven_run(SHOP) == paused.run
        await link.end()
        position = (1, "")
        while position[0] != 0:
            position = await waiter.ask("position", position)

    with_waiters(world, 1, act)


@slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_a_driver_that_dies_while_it_waits_keeps_nobody_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(run_queue, "READY_SECONDS", 2.0)
    monkeypatch.setattr(run_queue, "ABSENT_SECONDS", 1.0)
    with busy(world), drivers(by_bank(world)) as (first,):
        until(lambda: queue_of(world))  # it has reserved the bank, too
        with drivers(by_bank(world)) as (second,):
            until(lambda: len(queue_of(world, BANK)) == 2)
            os.kill(first.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            begun = time.monotonic()
            until(lambda: world.driven_run(BANK) == queue_of(world, BANK)[-1]["run"], 30)
            assert time.monotonic() - begun < 20
            world.free(SHOP)
            finished(second)
    run_queue_ends(world)


@slow
def test_runs_wait_on_when_their_site_is_started_again(world: World) -> None:
    with approving(world, "person"), contextlib.ExitStack() as stack:
        with busy(world):
            (one,) = stack.enter_context(drivers(by_bank(world)))
            (row,) = until(lambda: queue_of(world))
            decide(world.folder(SHOP), kept_proposals(world.folder(SHOP))[row["run"]], approved=True)
            decide(world.folder(BANK), kept_proposals(world.folder(BANK))[row["run"]], approved=True)
            world.end(SHOP)
            assert main(["site", "status", "--folder", str(world.path / SHOP)]) == 3
            world.start(SHOP)
        finished(one)
    assert ended(world)[-1] == row["run"]
    since = [line for line in world.audit(SHOP) if line.get("run") == row["run"] and line["what"] == "proposed"]
    assert len(since) == 1
    until(lambda: is_free(world))

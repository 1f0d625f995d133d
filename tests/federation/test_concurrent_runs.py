"""A site does several runs at once, within its policy, and none of them is another's business."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.federation import site
from fedactors.federation.approval import why_a_person
from fedactors.federation.operations import agree
from fedactors.federation.run_queue import ActiveRun
from fedactors.federation.site import SiteProcess
from fedactors.federation.site_folder import SITE, Amount, in_all, spent
from fedactors.federation.site_run import SiteRun
from tests.federation.test_run_queue import drivers, finished, persons, queue_of, until
from tests.federation.world import BANK, CLINIC, SHOP, World

slow = pytest.mark.slow

TASK = 'task = { type = "binary", layout = "horizontal", classes = ["0", "1"], test = "test.csv" }'
POLICY = """
[policy]
approve = "policy"
proposals_per_hour = 1000
concurrent_runs = 2
"""
SEED = ("--share-seed", "--seed", "7")
DATA = {BANK: "patients", SHOP: "cases", CLINIC: "cured"}


def open_world(made: World) -> None:
    """Let any of the sites start a run over the rows of all, two at once."""
    test = (made.path / BANK / "test.csv").read_bytes()
    for name in made.names:
        file = made.path / name / SITE
        text = file.read_text()
        if name != BANK:
            text = text.replace(f"[data.{DATA[name]}]\n", f"[data.{DATA[name]}]\n{TASK}\n")
        file.write_text(f"{text}{POLICY}")
        (made.path / name / "test.csv").write_bytes(test)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("concurrent")
    (folder / CLINIC).mkdir()
    made = World(folder, (BANK, SHOP, CLINIC))
    open_world(made)
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


@contextlib.contextmanager
def policy(world: World, name: str, *lines: str) -> Iterator[None]:
    """Give a site's policy more lines meanwhile."""
    file = world.path / name / SITE
    before = file.read_text()
    file.write_text(before + "".join(f"{line}\n" for line in lines))
    try:
        yield
    finally:
        file.write_text(before)


def by(world: World, first: str, *more: str, rounds: int = 30, timeout: str | None = "120") -> list[str]:
    """What the person of the site `first` types to train over the rows of all sites."""
    names = [first, *(name for name in world.names if name != first)]
    data = ",".join(f"{name}={DATA[name]}" for name in names)
    file, out = str(world.path / first / "federation.toml"), str(world.path / f"runs-{first}")
    flags = ("--federation", file, "--data", data, "--out", out, "--format", "json")
    queue = () if timeout is None else ("--queue-timeout", timeout)
    return ["run", "horizontal", *flags, *queue, f"num_rounds={rounds}", "hidden_size=4", *more]


def runs_of(world: World, name: str = SHOP) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((world.path / name / "status.json").read_text())["runs"]
    return found


def is_free(world: World) -> bool:
    return not any(one.runs or len(one._queue) or queue_of(world, name) for name, one in world.processes.items())


def both_open(world: World) -> bool:
    """Say whether two runs compute at each site."""
    return all(
        sum(active.site_run is not None and active.site_run.life == 4 for active in list(one.runs.values())) == 2
        for one in world.processes.values()
    )


@slow
def test_two_runs_at_the_same_sites_have_the_results_of_each_alone(world: World) -> None:
    commands = [by(world, BANK, *SEED), by(world, SHOP, *SEED, "local_epochs=2")]
    with persons(world):
        alone = []
        for command in commands:
            with drivers(command) as (one,):
                alone.append(finished(one))
        until(lambda: is_free(world))
        with drivers(*commands) as both:
            until(lambda: len(runs_of(world, CLINIC)) == 2, 60)
            found = [finished(one) for one in both]
    for expected, made in zip(alone, found, strict=True):
        assert made["metrics"] == expected["metrics"]
        assert (made["bytes"], made["messages"]) == (expected["bytes"], expected["messages"])
    lines = world.audit(CLINIC)
    last = [line["run"] for line in lines if line["what"] == "ended"][-2:]
    begun = {line["run"]: line["number"] for line in lines if line["what"] == "approved"}
    ended = {line["run"]: line["number"] for line in lines if line["what"] == "ended"}
    assert max(begun[run] for run in last) < min(ended[run] for run in last)
    for run in last:
        assert agree({name: world.path / name for name in world.names}, run)
    for name in world.names:
        assert main(["site", "audit", "--folder", str(world.path / name)]) == 0
    until(lambda: is_free(world))


@slow
def test_one_is_stopped_and_the_other_goes_on(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    until(lambda: is_free(world))
    with drivers(by(world, BANK, rounds=1000), by(world, SHOP, rounds=120)) as (first, second):
        until(lambda: both_open(world))
        world.on(SHOP, world.processes[SHOP]._operations.look)  # as it does every few seconds
        run, other = (next(one["run"] for one in runs_of(world) if one["coordinator"] == name) for name in (BANK, SHOP))
        capsys.readouterr()
        assert main(["site", "status", "--folder", str(world.path / SHOP)]) == 0
        shown = capsys.readouterr().out
        assert f"run {run}: horizontal of bank, open" in shown
        assert f"run {other}: horizontal of shop, open" in shown
        assert main(["site", "runs", "--folder", str(world.path / SHOP), "--format", "json"]) == 0
        stages = {one["run"]: one["stage"] for one in json.loads(capsys.readouterr().out)["runs"]}
        assert {run: stages[run], other: stages[other]} == {run: "open", other: "open"}
        with drivers(by(world, CLINIC, timeout=None)) as (third,):
            assert third.wait(60) == 3
            assert third.stderr is not None
            assert "are under way or wait: 2 at a time; --queue-timeout SECONDS" in third.stderr.read()
        assert main(["site", "stop", run, "--folder", str(world.path / SHOP), "--why", "not today"]) == 0
        assert first.wait(60) == 3
        assert first.stderr is not None
        assert "shop: stopped the run: not today" in first.stderr.read()
        finished(second)
    until(lambda: is_free(world))
    for name in world.names:
        ended = {line["run"]: line["status"] for line in world.audit(name) if line["what"] == "ended"}
        assert ended[other] == "finished"
        assert ended[run] in ("stopped", "failed")


@slow
def test_a_coordinator_has_so_many_runs_at_once_and_leaves_the_next_slot_to_others(world: World) -> None:
    until(lambda: is_free(world))
    with policy(world, BANK, "coordinator_runs = 1"), drivers(by(world, BANK, rounds=400)) as (first,):
        until(lambda: runs_of(world, BANK))
        with drivers(by(world, BANK, timeout=None)) as (second,):
            assert second.wait(60) == 3
            assert second.stderr is not None
            assert "1 of bank are under way or wait: at most 1 at a time (policy.coordinator_runs)" in (
                second.stderr.read()
            )
        with drivers(by(world, BANK)) as (waiting,):
            until(lambda: queue_of(world, BANK))
            with drivers(by(world, SHOP)) as (other,):
                finished(other)  # though it came later
            assert waiting.poll() is None
        first.kill()
    until(lambda: is_free(world))


@slow
def test_a_run_with_the_higher_priority_begins_first(world: World) -> None:
    until(lambda: is_free(world))
    with contextlib.ExitStack() as stack:
        for name in world.names:
            stack.enter_context(policy(world, name, "priority = { clinic = 2 }"))
        with drivers(by(world, BANK, rounds=400), by(world, BANK, rounds=400)) as under_way:
            until(lambda: both_open(world))
            with drivers(by(world, SHOP)) as (low,):
                until(lambda: queue_of(world, BANK))
                with drivers(by(world, CLINIC)) as (high,):
                    until(lambda: len(queue_of(world, BANK)) == 2)
                    rows = [(row["coordinator"], row["position"], row["priority"]) for row in queue_of(world, BANK)]
                    assert rows == [(CLINIC, 1, 2), (SHOP, 2, 0)]
                    under_way[0].kill()
                    finished(high)
                    under_way[1].kill()
                    finished(low)
    until(lambda: is_free(world))
    lines = [line for line in world.audit(SHOP) if line["what"] == "ended" and line["status"] == "finished"]
    proposed = {line["run"]: line["coordinator"] for line in world.audit(SHOP) if line["what"] == "proposed"}
    assert [proposed[line["run"]] for line in lines if line["who"] == "site"][-2:] == [CLINIC, SHOP]


@slow
def test_a_run_whose_limits_are_those_of_the_process_is_alone(world: World) -> None:
    """In one process nobody could say which run took the memory."""
    until(lambda: is_free(world))
    with drivers(by(world, BANK, rounds=400)) as (first,):
        until(lambda: runs_of(world, BANK))
        with drivers(by(world, SHOP, "--limit", "memory_gib=4", timeout=None)) as (second,):
            assert second.wait(60) == 3
            assert second.stderr is not None
            assert "its limits are those of the site's process, where it has to be alone" in second.stderr.read()
        with drivers(by(world, SHOP, "--limit", "memory_gib=4")) as (alone,):
            until(lambda: queue_of(world, BANK))
            with drivers(by(world, CLINIC, timeout=None)) as (third,):
                assert third.wait(60) == 3
                assert third.stderr is not None
                assert "others wait for their turn" in third.stderr.read()
            first.kill()
            finished(alone)
    until(lambda: is_free(world))


NOISED = (
    "secure_aggregation=true", "client_clip_norm=1.0", "client_noise_multiplier=4.0", "weighting=uniform",
    "standardisation=none", "model=linear",
)  # fmt: skip


@slow
def test_two_runs_at_once_take_no_more_of_a_budget_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fits alone, and neither has opened when the other one is checked."""
    (tmp_path / CLINIC).mkdir()
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    open_world(world)
    world.give_budgets(8.0)
    for name in world.names:
        world.start(name)
    connect = SiteRun._connect

    async def later(self: SiteRun) -> None:
        await asyncio.sleep(15)
        await connect(self)

    monkeypatch.setattr(SiteRun, "_connect", later)
    budgets = [word for name in world.names for word in ("--budget", f"{name}=5:1e-5")]
    try:
        with drivers(*(by(world, name, *NOISED, *budgets, rounds=5) for name in (BANK, SHOP))) as both:
            ends = [one.communicate(timeout=150) for one in both]
        assert sorted(one.returncode for one in both) in ([0, 2], [0, 3]), ends
        (refused,) = [err for one, (_, err) in zip(both, ends, strict=True) if one.returncode]
        assert "epsilon 5 at delta 1e-05 is not allowed: too little is left" in refused
        for name in world.names:
            lines = world.audit(name)
            taken = [spent(lines)[data] for data in spent(lines)]
            assert all(in_all(one).within(Amount(epsilon=8.0, delta=1e-4)) for one in taken)
            assert len([line for line in lines if line["what"] == "opened"]) == 1
            assert not world.processes[name].folder.reserved
    finally:
        world.stop()


@slow
def test_the_policy_compares_runs_that_come_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sums of the same data by other settings tell parts of others: the second one waits for a person."""
    until(lambda: is_free(world))
    honest = why_a_person

    def later(*args: Any) -> str:
        time.sleep(4)
        return honest(*args)

    monkeypatch.setattr(site, "why_a_person", later)
    with drivers(*(by(world, BANK, "secure_aggregation=true", f"local_epochs={number}") for number in (1, 2))) as both:
        until(lambda: [one["stage"] for one in runs_of(world)].count("proposed") == 1 and len(runs_of(world)) == 2)
        until(lambda: any(one.poll() == 0 for one in both))
        assert [one.poll() for one in both].count(None) == 1
        (waiting,) = until(lambda: [one["run"] for one in runs_of(world)])
    assert any(f"run {waiting}: " in line and "summed the same data" in line for line in world.output[SHOP])
    until(lambda: is_free(world))


@slow
def test_a_site_that_is_killed_ends_all_its_runs_and_each_may_be_resumed(tmp_path: Path) -> None:
    world = World(tmp_path)
    open_world(world)
    words = [sys.executable, "-m", "fedactors", "site", "start", "--folder", str(world.path / SHOP)]

    def start() -> subprocess.Popen[bytes]:
        made = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        until(lambda: (world.path / SHOP / "status.json").exists(), 60)
        return made

    process = start()
    world.start(BANK)
    try:
        with drivers(*(by(world, BANK, rounds=1000) for _ in range(2))) as both:
            until(lambda: [has_rounds(one, 5) for one in list(world.processes[BANK].runs.values())] == [True, True])
            process.kill()
            process.wait(20)
            for one in both:
                assert one.wait(60) == 3
        process = start()
        until(lambda: not world.processes[BANK].runs)
        folders = sorted((world.path / f"runs-{BANK}").iterdir())
        assert len(folders) == 2
        file = str(world.path / BANK / "federation.toml")
        out = str(tmp_path / "resumed")
        flags = ("--federation", file, "--out", out, "--format", "json", "--queue-timeout", "60")
        with drivers(*(["run", "horizontal", "--resume", str(folder), *flags] for folder in folders)) as both:
            until(lambda: [has_rounds(one, 5) for one in list(world.processes[BANK].runs.values())] == [True, True])
            assert [one.poll() for one in both] == [None, None]
        until(lambda: not world.processes[BANK].runs)
        went_on = [line["first"] for line in world.audit(SHOP) if line["what"] == "continued"]
        assert len(set(went_on)) == 2
    finally:
        process.kill()
        process.wait(20)
        world.stop()


def has_rounds(active: ActiveRun, count: int) -> bool:
    return active.site_run is not None and active.site_run.gate.arrived.messages() > 4 * count


def test_a_driver_whose_connection_broke_goes_on_beside_a_further_run_of_its_site(tmp_path: Path) -> None:
    """It comes back by itself; where a site does one run at a time, the new one has to be the coordinator's choice."""
    given_up: list[str] = []

    def driver(name: str) -> Any:
        return SimpleNamespace(
            peer=BANK, stream=SimpleNamespace(is_carried=False), give_up=lambda _: given_up.append(name)
        )

    made = World(tmp_path)
    for lines, run, expected in (
        ("concurrent_runs = 2", "c", []),
        ("concurrent_runs = 2", "a", ["a"]),
        ("concurrent_runs = 1", "c", ["a", "b"]),
    ):
        file = made.path / SHOP / SITE
        before = file.read_text()
        file.write_text(f"{before}\n[policy]\n{lines}\n")
        process = SiteProcess(made.folder(SHOP))
        process.runs.update({name: ActiveRun(BANK, name, driver(name)) for name in "ab"})
        process._give_up_lost(BANK, run)
        assert given_up == expected
        given_up.clear()
        file.write_text(before)

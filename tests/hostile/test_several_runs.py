"""With several runs at once a site keeps the rows of each, and a run that paused comes before those that wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedactors.data.layouts import horizontal
from fedactors.errors import Refused
from fedactors.federation.approval import check_proposal, decide, keep_proposal, kept_proposals
from fedactors.federation.run_queue import ActiveRun
from fedactors.federation.site_folder import SITE
from tests.federation.hostile_sites import Rogue
from tests.federation.test_concurrent_runs import SEED, by, open_world, runs_of
from tests.federation.test_run_queue import Waiter, driver_of, drivers, persons, until, with_waiters
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, family="hostile")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.stop()


def rows_read() -> set[int]:
    return {len(block.features) for block in list(horizontal._BLOCKS.values())}


def test_a_run_under_way_keeps_the_rows_that_it_began_with(world: World) -> None:
    """The operator writes another file while a run goes on; then another proposal is checked."""
    open_world(world)
    for name in world.names:
        world.start(name)
    file = world.path / SHOP / "patients.csv"
    with persons(world), drivers(by(world, BANK, *SEED, rounds=2000)) as (one,):
        until(lambda: one.poll() is not None or any(found["stage"] == "open" for found in runs_of(world, SHOP)), 60)
        assert one.poll() is None, one.communicate()
        time.sleep(2)
        before = rows_read()
        assert before
        head, *rows = file.read_text().splitlines()
        file.write_text("\n".join([head, *rows[:20], ""]))
        folder = world.folder(SHOP)
        check_proposal(list(kept_proposals(folder).values())[-1], folder)
        time.sleep(3)
        assert one.poll() is None
        assert rows_read() == before
        one.kill()
    until(lambda: not horizontal._BLOCKS, 30)  # what a run has read is kept as long as the run


def test_a_run_that_paused_comes_before_those_that_wait_for_one_of_two_slots(world: World) -> None:
    file = world.path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n[policy]\nconcurrent_runs = 2\n")
    for name in world.names:
        world.start(name)

    async def act(waiter: Waiter) -> None:
        paused = replace(Rogue(world).proposal, run="d" * 16, return_timeout=60.0)
        keep_proposal(world.folder(SHOP), paused)
        decide(world.folder(SHOP), paused, approved=True, why="a test")
        process = world.processes[SHOP]
        busy = {run: ActiveRun("nobody", run) for run in ("e" * 16, "f" * 16)}
        world.on(SHOP, lambda: process.runs.update(busy))
        try:
            assert (await waiter.queue())[0] == 1
            with pytest.raises(Refused, match="2 at a time"):
                await driver_of(world, paused.run, "")
            world.on(SHOP, lambda: process._end(busy["f" * 16]))
            link = await driver_of(world, paused.run, "")
            assert paused.run in process.runs
            await link.end()
        finally:
            world.free(SHOP)

    with_waiters(world, 1, act)

"""Failing test: with several slots a run that paused comes behind those that wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fedactors.errors import Refused
from fedactors.federation.approval import decide, keep_proposal
from fedactors.federation.run_queue import ActiveRun
from fedactors.federation.site_folder import SITE
from tests.federation.test_run_queue import Waiter, driver_of, with_waiters
from tests.federation.test_attacks import Rogue
from tests.federation.world import BANK, SHOP, World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("paused"), (BANK, SHOP))
    file = made.path / SHOP / SITE
    file.write_text(file.read_text() + "\n[policy]\nconcurrent_runs = 2\n")
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


def test_a_run_that_paused_comes_before_those_that_wait_for_one_of_two_slots(world: World) -> None:
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
            link = await driver_of(world, paused.run, "")  # Refused: others wait for their turn
            assert paused.run in process.runs
            await link.end()
        finally:
            world.free(SHOP)

    with_waiters(world, 1, act)

"""Failing test: a proposal makes a run that is under way read its files anew, which may have changed since."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fedactors.data.layouts import horizontal
from fedactors.federation.approval import check_proposal, kept_proposals
from tests.federation.test_concurrent_runs import SEED, by, open_world, runs_of
from tests.federation.test_run_queue import drivers, persons, until
from tests.federation.world import BANK, SHOP, World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("rows"), (BANK, SHOP))
    open_world(made)
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


def rows_read() -> set[int]:
    return {len(block.features) for block in list(horizontal._BLOCKS.values())}


def test_a_run_under_way_keeps_the_rows_that_it_began_with(world: World) -> None:
    """The operator writes the next month's file while a run goes on; then another proposal is checked."""
    file = world.path / SHOP / "patients.csv"
    with persons(world), drivers(by(world, BANK, *SEED, rounds=2000)) as (one,):
        until(lambda: one.poll() is not None or any(found["stage"] == "open" for found in runs_of(world)), 60)
        assert one.poll() is None, one.communicate()
        time.sleep(2)
        before = rows_read()
        head, *rows = file.read_text().splitlines()
        file.write_text("\n".join([head, *rows[:20]]) + "\n")
        time.sleep(2)
        assert one.poll() is None and rows_read() == before  # nobody has proposed: the file was read once
        folder = world.folder(SHOP)
        proposal = list(kept_proposals(folder).values())[-1]
        check_proposal(proposal, folder)  # as `SiteProcess._checked` does with any proposal of anybody
        until(lambda: one.poll() is not None or len(horizontal._BLOCKS) >= 3, 20)
        time.sleep(1)
        assert rows_read() == before

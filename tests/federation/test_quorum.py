"""Sites that come and go in a horizontal run with a quorum: the run goes on, and who was lost returns by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from tests.federation.test_going_on import after_rounds, rounds_of
from tests.federation.test_runs import OF_THREE, command, federated, last_line
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="quorum")]
THREE = (BANK, SHOP, CLINIC)
QUORUM = ("hidden_size=4", "min_sites=2", "client_timeout=20", "quorum_timeout=60")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, THREE)
    for name in THREE:
        made.start(name)
    yield made
    made.stop()


def away(rounds: list[dict[str, Any]], name: str) -> list[int]:
    return [one["round"] for one in rounds if f"{name}/away" in one]


def restarted(world: World, name: str) -> Callable[[], None]:
    def act() -> None:
        world.end(name)
        world.start(name)

    return act


def test_a_site_that_is_restarted_misses_some_rounds_and_takes_part_again(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    acting = after_rounds(world, 3, restarted(world, CLINIC))
    assert federated(world, ("num_rounds=120", *QUORUM), protocol="horizontal") == 0, capsys.readouterr().err
    acting.join(60)
    found = last_line(capsys)
    rounds = rounds_of(found["run"])
    assert len(rounds) == 120
    assert rounds[-1]["sites"] == 3
    missed = away(rounds, CLINIC)
    assert missed
    assert all(one["sites"] == (2 if one["round"] in missed else 3) for one in rounds)

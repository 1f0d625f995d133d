"""A run that pauses for a site that is lost: it goes on exactly once all are there, by the approval that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.federation.test_going_on import MANY, after_rounds, runs, same
from tests.federation.test_quorum import restarted
from tests.federation.test_runs import federated, last_line, simulated
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="pauses")]
PAUSE = ("--return-timeout", "60")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from World.running(tmp_path, (BANK, SHOP))


def lines(world: World, name: str, what: str) -> list[dict[str, Any]]:
    return [line for line in world.audit(name) if line["what"] == what]


@pytest.mark.parametrize("lost", [SHOP, BANK])
def test_a_run_pauses_for_a_site_and_goes_on_exactly_without_a_new_approval(
    world: World, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    acting = after_rounds(world, 2, restarted(world, lost))
    assert federated(world, words, "--share-seed", "--seed", "7", *PAUSE) == 0, capsys.readouterr().err
    acting.join(60)
    same(last_line(capsys), expected)
    assert len(runs(world)) == 2
    for name in (BANK, SHOP):
        assert len(lines(world, name, "approved")) == 1
        assert len(lines(world, name, "reopened")) == 1

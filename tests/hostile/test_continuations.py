"""One checkpoint that is gone on from again and again: what it forgets was released, and the site's log counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedactors.federation.site_folder import SITE
from tests.federation.test_going_on import after_rounds, resumed, runs
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, of=2)]
LONG = ("num_epochs=200", *SMALL[1:], "algorithm=vfl")


def test_a_checkpoint_that_is_gone_on_from_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n[policy]\ncontinuations = 1\n")
    world.start(BANK)
    world.start(SHOP)
    (world.path / "runs").mkdir()
    try:
        ending = after_rounds(world, 2, lambda: world.end(SHOP))
        assert federated(world, LONG) == 3
        ending.join(60)
        (run,) = runs(world)
        world.start(SHOP)
        ending = after_rounds(world, 2, lambda: world.end(SHOP))
        assert resumed(world, run) == 3
        ending.join(60)
        world.start(SHOP)
        capsys.readouterr()
        assert resumed(world, run) in (2, 3)
        first = next(line["first"] for line in world.audit(SHOP) if line["what"] == "continued")
        said = f"goes on from run {first} for the 2nd time; approved: at most 1 (policy.continuations)"
        assert said in capsys.readouterr().err
        assert said in world.refusals(SHOP)[-1]
    finally:
        world.stop()

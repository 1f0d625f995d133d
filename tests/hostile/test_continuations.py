"""One checkpoint that is gone on from again and again: what it forgets was released, and the site's log counts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SITE, in_all, spent
from tests.federation.test_going_on import after_rounds, resumed, runs
from tests.federation.test_policy import BUDGET, NOISED
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, family="continuations")]
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
        ending.join(120)
        (run,) = runs(world)
        world.start(SHOP)
        ending = after_rounds(world, 2, lambda: world.end(SHOP))
        assert resumed(world, run) == 3
        ending.join(60)
        world.start(SHOP)
        capsys.readouterr()
        assert resumed(world, run) in (2, 3)
        first = next(line["first"] for line in world.audit(SHOP) if line["what"] == "continued")
        said = f"goes on from run {first} for the 2nd time"
        assert f"{said}: too often for policy.continuations" in capsys.readouterr().err
        assert f"{said}; approved: at most 1 (policy.continuations)" in world.refusals(SHOP)[-1]
    finally:
        world.stop()


def test_a_driver_fills_no_disk_with_checkpoints_of_ever_new_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FederatedRuntime.checkpoint

    async def checkpoint(self: FederatedRuntime, label: str = "last") -> None:
        for number in range(20):
            await honest(self, f"{label}-{number}")

    monkeypatch.setattr(FederatedRuntime, "checkpoint", checkpoint)
    monkeypatch.setattr(FederatedRuntime, "_is_due", lambda self, label: True)
    world = World(tmp_path)
    world.start(BANK)
    world.start(SHOP)
    try:
        assert federated(world, SMALL) in (2, 3)
        (said,) = world.refusals(SHOP)
        assert "driver: asks for checkpoints under 9 labels; kept: 8" in said
        assert len([*(world.path / SHOP / "runs").glob("*/checkpoints/*")]) <= 8
    finally:
        world.stop()


def test_a_budget_is_not_rolled_back_with_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    file.write_text(file.read_text().replace('"orders.csv"\nid = "id"\n', BUDGET, 1))
    world.start(BANK)
    (world.path / "runs").mkdir()
    try:
        world.start(SHOP)
        ending = after_rounds(world, 2, lambda: world.end(SHOP))
        assert federated(world, ("num_epochs=200", *NOISED[1:]), "--budget", "shop=25:1e-4") == 3
        ending.join(120)
        (run,) = runs(world)
        world.start(SHOP)
        taken = in_all(spent(world.folder(SHOP).log())["orders"])
        assert (taken.epsilon, taken.delta) == (25.0, 1e-4)  # it broke off, and counts with all that it announced
        capsys.readouterr()
        assert resumed(world, run) in (2, 3)
        said = "the run would take epsilon inf at delta 1 of the budget of shop and had announced epsilon 25"
        told = capsys.readouterr().err
        assert said in told  # what left after the checkpoint is known to nobody
        assert "begin it anew with --return-timeout" in told  # no announcement is enough
        assert "announce more" not in told
        taken = in_all(spent(world.folder(SHOP).log())["orders"])
        assert taken.epsilon >= 50.0  # both as announced
    finally:
        world.stop()

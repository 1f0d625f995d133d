"""A coordinator that waits, so that what watches a privacy budget has nothing to account for yet, escapes it not."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.errors import Refused
from fedactors.federation import site_run
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SITE, Amount
from fedactors.federation.site_run import PrivacyBudget, SiteRun
from fedactors.privacy.accounting import PrivacyRecord
from tests.federation.hostile_sites import in_mid_run
from tests.federation.test_policy import BUDGET, NOISED
from tests.federation.test_runs import federated
from tests.federation.world import BANK, SHOP, World


def line_of(epsilon: float) -> PrivacyRecord:
    facts: dict[str, Any] = {"epsilon": epsilon, "delta": 0.0, "covered": True, "touched": 1, "sensitivity": 1.0}
    scale = math.sqrt(2) / epsilon
    return PrivacyRecord(party=SHOP, message_type="Labels", mechanism="laplace", noise_scale=scale, **facts)


@pytest.mark.parametrize("then", ["it takes more", "it cannot account"])
def test_a_budget_is_watched_whatever_went_wrong_before(monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    monkeypatch.setattr(site_run, "_MEASURE_SECONDS", 0.01)
    answers: list[Any] = [RuntimeError("rows are used before they are aligned"), [line_of(1.0)]]
    answers.append([line_of(7.0)] if then == "it takes more" else RuntimeError("it is broken"))
    refused: list[str] = []

    async def account(party: str) -> Any:
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    def refuse(error: Refused) -> Refused:
        refused.append(error.message)
        return error

    announced = {SHOP: Amount(epsilon=5.0, delta=1e-4)}
    proposal = SimpleNamespace(data={SHOP: "orders"}, budget=announced, run="0" * 16, coordinator=BANK)
    audit = SimpleNamespace(add=lambda *_, **__: None)
    folder = SimpleNamespace(name=SHOP, budget=lambda _: announced[SHOP], audit=audit)

    async def work() -> None:
        budget = PrivacyBudget(folder, proposal, SimpleNamespace(account=account), refuse)  # type: ignore[arg-type]
        budget.open()
        watching = asyncio.get_running_loop().create_task(budget.watch())
        end = time.monotonic() + 5
        while not refused and time.monotonic() < end and not watching.done():
            await asyncio.sleep(0.01)
        budget.close()
        await watching

    asyncio.run(work())
    said = "the run would take epsilon 7" if then == "it takes more" else "cannot account for releases: it is broken"
    assert said in refused[0]


@pytest.mark.slow
def test_a_coordinator_that_waits_before_it_aligns_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, ended = FederatedRuntime.start, []

    async def late(self: FederatedRuntime) -> None:
        await honest(self)
        await asyncio.sleep(2.5)

    def look(run: SiteRun) -> None:
        ended.extend(task.done() for task in run._tasks)

    monkeypatch.setattr(FederatedRuntime, "start", late)
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    file.write_text(file.read_text().replace('"orders.csv"\nid = "id"\n', BUDGET, 1))
    world.start(BANK)
    world.start(SHOP)
    try:
        looking = in_mid_run(world, SHOP, look)
        assert federated(world, NOISED, "--budget", "shop=20:1e-4") == 0, world.output
        looking.join(60)
        assert ended == [False]
    finally:
        world.stop()

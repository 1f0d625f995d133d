"""NebulaFL with a coordinator whose exchange and auditor ask a center for more than was approved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fedactors.actors.remote import CallCounts
from fedactors.cli.main import main
from fedactors.protocols.nebulafl import containers, messages
from fedactors.protocols.nebulafl.actors import Auditor, NebulaCenter
from fedactors.protocols.nebulafl.baselines.actors import FlatExchange, OrderCenter, RoundExchange
from fedactors.protocols.nebulafl.baselines.flat_averaging import FlatServer
from tests.federation.test_centers import SMALL, flags, write_centers
from tests.federation.test_runs import command
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("centers"), (BANK, SHOP, CLINIC))
    write_centers(made)
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _only_the_shop_is_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    count, check_time = CallCounts.admit, containers.ContainerCenter._check_time

    def admit(self: CallCounts, endpoint: Any, bound: Any, sender: str, actor: Any, value: Any) -> None:
        if actor.party == SHOP:
            count(self, endpoint, bound, sender, actor, value)

    def check(self: containers.ContainerCenter) -> None:
        if self.party == SHOP:
            check_time(self)

    monkeypatch.setattr(CallCounts, "admit", admit)
    monkeypatch.setattr(containers.ContainerCenter, "_check_time", check)


def refused(world: World, *words: str) -> str:
    before = len(world.refusals(SHOP))
    answering = world.answer()
    given = dict(word.split("=", 1) for word in (*SMALL, *words))
    settings = [f"{name}={value}" for name, value in given.items()]
    assert main([*command(world, "nebulafl"), *flags(world), *settings]) in (2, 3), world.output
    answering.join(30)
    (found,) = world.refusals(SHOP)[before:]
    return found


def test_more_rounds_of_centers_than_were_approved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoundExchange, "_is_over", lambda _: False)
    found = refused(world, "algorithm=fedavg-hierarchical", "num_rounds=2", "duration=30")
    assert "calls shop.start_round for the 3rd time; approved: at most 2 times (num_center_rounds)" in found


def test_more_trainings_than_were_approved(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlatServer, "finished", lambda *_: False)
    found = refused(world, "algorithm=fedasync", "num_rounds=2", "duration=30")
    assert "calls shop.order for the 6th time; approved: at most 5 times (num_orders)" in found


@pytest.mark.parametrize("algorithm", ["fedavg", "fedhisyn"])
def test_orders_after_the_end_of_the_run(world: World, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    monkeypatch.setattr(containers, "ON_THE_WAY", 0.0)
    monkeypatch.setattr(RoundExchange, "_is_over", lambda _: False)
    monkeypatch.setattr(FlatServer, "finished", lambda *_: False)

    async def never(_: Any) -> None:
        """The driver does not end it."""

    monkeypatch.setattr("fedactors.protocols.nebulafl.run.Federation.finish", never)
    monkeypatch.setattr("fedactors.protocols.nebulafl.run.Federation.finished", never)
    late = property(lambda config: 2 * config.duration)
    monkeypatch.setattr("fedactors.protocols.nebulafl.config.NebulaFLConfig.end", late)
    found = refused(world, f"algorithm={algorithm}", "duration=2")
    assert "orders work of shop" in found
    assert "s after the run began; approved: duration=2" in found


def test_a_master_that_is_asked_for_all_the_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Auditor._ask_model

    async def again(self: Auditor, name: str) -> Any:
        for _ in range(5):
            found = await ask(self, name)
        return found

    monkeypatch.setattr(Auditor, "_ask_model", again)
    found = refused(world)
    assert "calls shop.model for the 3rd time; approved: at most 2 times" in found


def test_masters_that_come_all_the_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    send = NebulaCenter._send

    async def flood(self: NebulaCenter, rotation: int) -> None:
        await send(self, rotation)
        if self.party == BANK:
            master = messages.MasterModel(self.name, rotation, 1.0, self.models.master())
            for _ in range(4):
                await self.peer(SHOP, NebulaCenter).receive(master)

    monkeypatch.setattr(NebulaCenter, "_send", flood)
    assert "calls shop.receive for the 4th time; approved: at most 3 times" in refused(world)


def test_that_somebody_is_lost_where_a_loss_ends_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names a ring of two: the driver would choose whose master goes to whom."""

    async def measure(self: Any) -> messages.Measurement:
        await self.centers[SHOP].set_present(messages.PresentCenters((BANK, SHOP)))
        raise AssertionError("the shop takes it")

    monkeypatch.setattr("fedactors.protocols.nebulafl.run.Federation.measure", measure)
    expected = "calls shop.set_present with PresentCenters; approved: settings with which no run sends that"
    assert expected in refused(world)


def test_facts_that_are_asked_for_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = FlatExchange._begin

    async def asks(self: FlatExchange, start: messages.RunStart) -> Any:
        await self.peer(SHOP, OrderCenter).facts()
        return await begin(self, start)

    monkeypatch.setattr(FlatExchange, "_begin", asks)
    assert "calls shop.facts for the 2nd time; approved: once" in refused(world, "algorithm=fedavg")

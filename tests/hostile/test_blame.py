"""A site answers with an error that names another one: the error is its own, in groups of actors and in the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.actors.groups import ActorGroup
from fedactors.errors import PartyError, PartyLost, Refused
from fedactors.federation.session import error_in
from fedactors.messages.codec import encode_parts
from fedactors.protocols.horizontal.actors import ClientProcess
from fedactors.runtime import failures
from tests.federation.test_quorum import QUORUM, THREE
from tests.federation.test_runs import federated
from tests.federation.world import BANK, CLINIC, SHOP, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from World.running(tmp_path, THREE)


def sent(*fields: str) -> bytes:
    return b"".join(encode_parts(fields))


@pytest.mark.parametrize("kind", ["PartyLost", "CallTimeout", "Refused", "PartyFailed", "Whatever"])
def test_an_error_is_of_the_site_that_was_asked(kind: str) -> None:
    error = error_in(sent(kind, CLINIC, "it did it", ""), SHOP, lambda name: name == "shop/worker")
    assert isinstance(error, PartyError)
    assert error.party == SHOP
    assert "says of clinic: " in str(error)
    named = error_in(sent(kind, "shop/worker", "it did it", ""), SHOP, lambda name: name == "shop/worker")
    assert isinstance(named, PartyError)
    assert named.party == "shop/worker"


def test_who_answers_that_another_is_lost_is_away_itself() -> None:
    async def work() -> None:
        caller: Any = SimpleNamespace(clock=SimpleNamespace(timeout=asyncio.timeout))
        group: ActorGroup[str] = ActorGroup(caller, {name: name for name in THREE}, on_loss="return", timeout=5.0)

        async def call(name: str) -> str:
            if name == SHOP:
                raise PartyLost(CLINIC, "its site was lost")
            return name

        assert list(await group.ask(call)) == [BANK, CLINIC]
        assert group.members == [BANK, CLINIC]
        assert group.last_lost == SHOP

    asyncio.run(work())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Refused, PartyLost])
def test_a_site_that_accuses_another_is_named_itself(
    kind: type[PartyError], world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest, told, train = failures.error_for_sites, list[str](), ClientProcess._train

    def accuse(site: str, error: BaseException) -> Any:
        if site != SHOP:
            return honest(site, error)
        told.append(site)
        return kind(CLINIC, "it did what it may not")

    async def fail(self: ClientProcess, order: Any) -> Any:
        if self.party == SHOP and order.round == 2:
            raise ValueError("an answer with an error")
        return await train(self, order)

    monkeypatch.setattr(failures, "error_for_sites", accuse)
    monkeypatch.setattr(ClientProcess, "_train", fail)
    code = federated(world, ("num_rounds=6", *QUORUM), protocol="horizontal")
    err = capsys.readouterr().err
    assert told, err
    refused = [line for line in world.audit(BANK) if line["what"] == "refused"]
    assert CLINIC not in [line["party"] for line in refused]
    if kind is Refused:
        assert code == 3
        assert {line["party"] for line in refused} == {SHOP}
        assert "says of clinic: it did what it may not" in refused[0]["why"]
    else:
        assert CLINIC not in [line["site"] for line in world.audit(BANK) if line["what"] == "away"]

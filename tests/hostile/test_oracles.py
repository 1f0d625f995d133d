"""What a coordinator may still ask within the bounds: few rows, one client, models of its own to be measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedactors.actors.remote import CallCounts
from fedactors.cli.sites import describe
from fedactors.data.alignment import ids
from fedactors.errors import BadInput, Refused
from fedactors.federation.approval import check_proposal, make_proposal
from fedactors.federation.site_folder import SITE
from fedactors.plugins import find_protocol
from fedactors.protocols.horizontal import messages
from fedactors.protocols.horizontal.actors import ClientProcess, HorizontalServer
from fedactors.protocols.mtcd import run as mtcd
from fedactors.protocols.mtcd.messages import MeasureOrder
from tests.federation.test_runs import MTCD, SMALL, federated
from tests.federation.world import BANK, CLINIC, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="hostile")]
HORIZONTAL = ("num_rounds=6", "hidden_size=4")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("oracles"))
    for name in made.names:
        made.start(name)
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def _the_bank_is_hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    count, check_wanted = CallCounts.admit, ClientProcess._check_wanted

    def admit(self: CallCounts, endpoint: Any, bound: Any, sender: str, actor: Any, value: Any) -> None:
        if actor.party not in (BANK, "server"):
            count(self, endpoint, bound, sender, actor, value)

    def check(self: ClientProcess, round: int, clients: tuple[int, ...]) -> None:
        if self.party != BANK:
            check_wanted(self, round, clients)

    monkeypatch.setattr(CallCounts, "admit", admit)
    monkeypatch.setattr(ClientProcess, "_check_wanted", check)


def refused(world: World, words: tuple[str, ...], protocol: str) -> str:
    before = len(world.refusals(SHOP))
    assert federated(world, words, protocol=protocol) in (2, 3), world.output
    (found,) = world.refusals(SHOP)[before:]
    return found


def announced(monkeypatch: pytest.MonkeyPatch, rows: slice) -> None:
    """Let the label party announce some rows only."""
    honest = ids.announce_order

    def few(ids_N: Any, common: Any, rng: Any) -> Any:
        return honest(ids_N, common[rows], rng)

    monkeypatch.setattr(ids, "announce_order", few)


@pytest.mark.parametrize(("number", "is_refused"), [(9, True), (10, False)])
def test_an_order_of_few_rows(number: int, is_refused: bool) -> None:
    actor: Any = SimpleNamespace(name="shop", party="shop", caller="bank")
    if not is_refused:
        assert len(ids.check_number(actor, np.arange(number), 10, 20, num_train=lambda: 10)) == number
        return
    with pytest.raises(Refused, match=r"bank: aligns 9 rows of shop; approved: at least 10 \(min_aligned_rows\)"):
        ids.check_number(actor, np.arange(number), 10, 20, num_train=lambda: 9)


@pytest.mark.parametrize(
    ("protocol", "number", "said"),
    [
        ("pubsub-vfl", 5, "aligns 5 rows of {name}"),
        ("mtcd", 5, "aligns 5 rows of {name}"),
        ("pubsub-vfl", 25, "has 15 rows of {name} trained on"),
        ("mtcd", 11, "has 8 rows of {name} trained on"),
    ],
)
def test_few_rows_are_aligned(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, protocol: str, number: int, said: str
) -> None:
    world = World(tmp_path)
    file = world.path / BANK / SITE
    file.write_text(file.read_text().replace('"already-aligned"', '"hash"'))
    announced(monkeypatch, slice(0, number))
    world.start(BANK)
    world.start(SHOP)
    try:
        name, least = (SHOP, 10) if protocol == "mtcd" else (f"{SHOP}/worker-0", 20)
        words = MTCD if protocol == "mtcd" else (*SMALL, "min_aligned_rows=20")
        found = refused(world, words, protocol)
        assert f": {said.format(name=name)}; approved: at least {least} (min_aligned_rows)" in found
    finally:
        world.stop()


def test_a_policy_says_how_many_rows_must_be_aligned(tmp_path: Any) -> None:
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n[policy.protocols.pubsub-vfl]\nmin_aligned_rows = {{ at_least = 50 }}\n")
    protocol = find_protocol("pubsub-vfl")
    made = make_proposal(
        world.folder(BANK), protocol, {"on_party_loss": "stop"}, f"{BANK}=customers,{SHOP}=orders", None
    )
    with pytest.raises(BadInput, match="min_aligned_rows"):
        check_proposal(made, world.folder(SHOP))
    check_proposal(replace(made, config={**made.config, "min_aligned_rows": 50}), world.folder(SHOP))


def only_the_shop(monkeypatch: pytest.MonkeyPatch, *, others: bool) -> None:
    """Let the server want nobody but the shop's client."""
    honest = HorizontalServer._orders

    def orders(self: HorizontalServer, round: int) -> dict[str, messages.TrainOrder]:
        order = next(iter(honest(self, round).values()))
        wanted = {name: replace(order, clients=()) for name in self.sites.members} if others else {}
        return {**wanted, SHOP: replace(order, clients=(0,))}

    monkeypatch.setattr(HorizontalServer, "_orders", orders)


def test_one_client_is_wanted_each_round(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_shop(monkeypatch, others=False)
    found = refused(world, (*HORIZONTAL, "clients_per_round=1"), "horizontal")
    assert "server: orders clients 0 of shop in round " in found
    assert "; approved: none (clients_per_round)" in found


def test_a_sum_to_which_the_others_add_zeros(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    only_the_shop(monkeypatch, others=True)
    for name in world.names:
        world.start(name)
    try:
        words = (*HORIZONTAL, "secure_aggregation=true")
        assert federated(world, words, protocol="horizontal") in (2, 3)
        (found,) = world.refusals(CLINIC)
        assert "server: orders clients none of clinic in round 1; approved: 0 (clients_per_round)" in found
    finally:
        world.stop()


def test_a_model_of_its_own_is_measured_again_and_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer of a measurement says something of the rows."""
    scored = mtcd.scored

    async def again(federation: Any, part: str, theta_0: Any) -> Any:
        for _ in range(10):
            await federation.clients.ask(lambda client: client.measure(MeasureOrder(part)))
        return await scored(federation, part, theta_0)

    monkeypatch.setattr(mtcd, "scored", again)
    found = refused(world, MTCD, "mtcd")
    assert "driver: calls shop.measure for the " in found
    assert "(num_measurements)" in found


def test_what_stays_open_is_shown(tmp_path: Any) -> None:
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    shop, told = world.folder(SHOP), []
    sums = f"{BANK}=patients,{SHOP}=cases,{CLINIC}=cured", {"secure_aggregation": True}
    for protocol, (data, settings) in (("pubsub-vfl", (f"{BANK}=customers,{SHOP}=orders", {})), ("horizontal", sums)):
        found = find_protocol(protocol)
        made = make_proposal(world.folder(BANK), found, {"on_party_loss": "stop", **settings}, data, None)
        told.append(describe(shop, made)["left_open"])
    for one in told:
        assert "nothing limits, for no noise is added, what the answers tell of your rows" in one[0]
    said, seeded = told[0][1:]
    assert said.startswith("bank chooses which shared rows are aligned, and may say by a column of its data which")
    assert "trained on, validated and tested with, whatever shares the settings say: 10 at least are aligned" in said
    assert "follows from a seed that bank proposes" in seeded
    file = world.path / BANK / SITE
    file.write_text(file.read_text().replace('"already-aligned"', '"psi"'))
    found = find_protocol("pubsub-vfl")
    made = make_proposal(world.folder(BANK), found, {"on_party_loss": "stop"}, f"{BANK}=customers,{SHOP}=orders", None)
    by_ids = "bank may ask for ids that it has made up, and learns which of them you have (psi)"
    assert describe(shop, made)["left_open"][3] == by_ids
    signs, said = told[1][1:]
    assert signs.startswith("steps of adam and adamw are nearly plus or minus the learning rate")
    assert said.startswith("who reads a sum of 3 organisations knows your part if the other 2 tell theirs")
    roaming: dict[str, Any] = {
        "num_clients": 3,
        "num_tokens": 1,
        "problem": "ridge",
        "learning_rate": 0.1,
        "relaxed_protocol": True,
    }
    summed: dict[str, tuple[str, dict[str, Any]]] = {
        "mtcd": (f"{BANK}=customers,{SHOP}=orders,{CLINIC}=visits", roaming),
        "tablepuppet": (f"{BANK}=accounts,{SHOP}=sales,{CLINIC}=stays", {"algorithm": "rfl-sgd-v"}),
    }
    for protocol, (data, words) in summed.items():
        words |= {"on_party_loss": "stop", "secure_aggregation": True}
        made = make_proposal(world.folder(BANK), find_protocol(protocol), words, data, None)
        told.append(describe(shop, made)["left_open"])
    assert any(one.startswith("the server sends tokens to whom it likes, of the approved step") for one in told[-2])
    assert any(one.startswith("masks hold against a server that follows the protocol") for one in told[-1])
    assert any(
        one.startswith("bank hosts the server, which is told keyed hashes of your join keys") for one in told[-1]
    )
    stops = "a number of yours that is infinite, or beyond secure_range, stops the run with your name"
    assert any(one.startswith(stops) for one in told[-1])

"""A coordinator that waits, so that what watches a privacy budget has nothing to account for yet, escapes it not."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.cli.operator_page import _budgets
from fedactors.cli.sites import SiteSource, _print_proposal, describe
from fedactors.config import as_dict, build, spell_infinities
from fedactors.errors import BadInput, Refused
from fedactors.federation import site_run
from fedactors.federation.approval import as_tree, check_proposal, decide, keep_proposal, make_proposal
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SITE, Amount, SiteFolder, in_all, spent, taken_of
from fedactors.federation.site_run import PrivacyBudget, SiteRun
from fedactors.learning import local_training
from fedactors.plugins import find_protocol
from fedactors.privacy.accounting import PrivacyRecord
from fedactors.protocols.horizontal import algorithm
from fedactors.protocols.horizontal.actors import HorizontalServer
from fedactors.protocols.horizontal.messages import Change
from tests.federation.hostile_sites import Rogue, in_mid_run
from tests.federation.test_policy import BUDGET, NOISED
from tests.federation.test_runs import federated
from tests.federation.world import BANK, SHOP, World


def line_of(epsilon: float) -> PrivacyRecord:
    facts: dict[str, Any] = {"epsilon": epsilon, "delta": 0.0, "covered": True, "touched": 1, "sensitivity": 1.0}
    scale = math.sqrt(2) / epsilon
    return PrivacyRecord(party=SHOP, message_type="Labels", mechanism="laplace", noise_scale=scale, **facts)


def test_what_a_run_took_is_hidden_by_no_other_run_of_its_id(tmp_path: Path) -> None:
    """Its files in proposals/ are lost, and its coordinator proposes another run by the same id: the log knows it."""
    world, protocol = World(tmp_path), find_protocol("pubsub-vfl")
    settings = spell_infinities(as_dict(build(protocol.Config, {"on_party_loss": "stop"})))
    made = make_proposal(world.folder(BANK), protocol, settings, "bank=customers,shop=orders", None)
    world.start(SHOP)
    try:
        shop, rogue = world.folder(SHOP), Rogue(world)
        path = keep_proposal(shop, made)
        decide(shop, made, approved=True)
        path.unlink()
        path.with_suffix(".decision.json").unlink()
        rogue.proposal = replace(made, seed=7)
        with pytest.raises(Refused, match="proposes what cannot be: the run was proposed before"):
            rogue.say(("propose", (as_tree(rogue.proposal),)))
        assert not path.exists()
    finally:
        world.stop()


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
    folder = SimpleNamespace(
        name=SHOP, budget=lambda _: announced[SHOP], read_by=lambda _: set(), audit=audit, reserved={}
    )

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


@pytest.mark.slow
def test_what_is_under_way_when_a_run_is_ended_does_not_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver ends the run while a site computes: the last measurement would not have it, and it would leave then."""
    ask, call, private = FederatedRuntime._ask, FederatedRuntime.call, local_training.train_privately
    begun, ended, arrived = threading.Event(), [], []

    def slowly(*args: Any, **more: Any) -> Any:
        begun.set()
        time.sleep(1.0)
        return private(*args, **more)

    async def early(self: FederatedRuntime) -> None:
        await asyncio.to_thread(begun.wait, 30)
        ended.append(await ask(self, SHOP, self._sites[SHOP], "finish"))
        while SHOP not in arrived:
            await asyncio.sleep(0.02)
        await ask(self, SHOP, self._sites[SHOP], "end")

    def ordered(self: FederatedRuntime, receiver: str, method: str, value: Any) -> Any:
        if method == "train":
            tasks.append(asyncio.get_running_loop().create_task(early(self)))
        return call(self, receiver, method, value)

    async def but_once(self: FederatedRuntime, site: str, link: Any, verb: str, *args: Any) -> Any:
        return (None,) if (site, verb) == (SHOP, "finish") else await ask(self, site, link, verb, *args)

    async def taken(self: HorizontalServer, orders: Any) -> Any:
        found = await self.sites.ask_each(lambda site, message: site.train(message), orders)
        arrived.extend(found)
        return [one for one in found.values() if isinstance(one, Change)]

    async def nothing(self: HorizontalServer) -> None:
        pass

    tasks: list[Any] = []
    monkeypatch.setattr(algorithm, "train_privately", slowly)
    monkeypatch.setattr(FederatedRuntime, "call", ordered)
    monkeypatch.setattr(FederatedRuntime, "_ask", but_once)
    monkeypatch.setattr(HorizontalServer, "_changes", taken)
    monkeypatch.setattr(HorizontalServer, "account", functools.wraps(HorizontalServer.account)(nothing))
    world = World(tmp_path)
    file = world.path / SHOP / SITE
    budget = "[data.cases]\nbudget = { epsilon = 60.0, delta = 1e-4 }\n"
    file.write_text(file.read_text().replace("[data.cases]\n", budget))
    world.start(BANK)
    world.start(SHOP)
    words = (
        "num_rounds=1",
        "record_clip_norm=1.0",
        "record_noise_multiplier=8.0",
        "model=linear",
        "on_party_loss=stop",
    )
    try:
        code = federated(world, words, "--budget", f"{SHOP}=50:1e-5", protocol="horizontal")
        charged = in_all(spent(world.folder(SHOP).log()).get("cases", {}))
    finally:
        world.stop()
    assert ended
    assert SHOP not in arrived, (charged, code, capsys.readouterr().err)
    assert charged.epsilon == 50.0  # it broke off, and counts with all that it announced


def test_a_person_sees_what_is_left_of_the_rows_whatever_they_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What runs took of other data that read the same file counts where a run is checked, and stands there too."""
    world = World(tmp_path)
    file = tmp_path / SHOP / SITE
    again = '[data.again]\npath = "orders.csv"\nid = "id"\nbudget = { epsilon = 9.0, delta = 1e-3 }\n'
    file.write_text(file.read_text().replace('"orders.csv"\nid = "id"\n', BUDGET, 1) + again)
    folder = world.folder(SHOP)
    assert folder.with_budget("again") == ["again", "orders"]
    for number, name in enumerate(("orders", "again")):
        folder.audit.add("opened", run=f"{number:016x}", data=name, announced=[4.0, 1e-5])
    assert main(["site", "budget", "--folder", str(folder.path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "orders epsilon 60 at delta 0.001 epsilon 8 at delta 2e-05 epsilon 52 at delta 0.00098 again" in said
    assert "again epsilon 9 at delta 0.001 epsilon 8 at delta 2e-05 epsilon 1 at delta 0.00098 orders" in said
    assert main(["site", "budget", "--folder", str(folder.path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["budgets"]
    assert [one["taken"] for one in found.values()] == [[8.0, 2e-5], [8.0, 2e-5]]
    shown = {one["data"]: one["left"] for one in SiteSource(folder.path).budgets()}
    assert {name: one.epsilon for name, one in shown.items()} == {"orders": 52.0, "again": 1.0}


def budgets_of(folder: SiteFolder, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what `fedactors site budget` prints, in one line."""
    capsys.readouterr()
    assert main(["site", "budget", "--folder", str(folder.path)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_rows_keep_their_budget_when_their_name_is_gone_and_given_to_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the name alone, other data of a new name on the same file would begin with all of it."""
    world = World(tmp_path)
    file, orders = tmp_path / SHOP / SITE, '[data.orders]\npath = "orders.csv"\nid = "id"\n'
    budget = "budget = { epsilon = 8.0, delta = 1e-3 }\n"
    plain = file.read_text()
    assert orders in plain
    file.write_text(plain.replace(orders, orders + budget))
    folder, announced = world.folder(SHOP), {SHOP: Amount(epsilon=5.0, delta=1e-5)}
    proposal = SimpleNamespace(data={SHOP: "orders"}, budget=announced, run="a" * 16, coordinator=BANK)
    PrivacyBudget(folder, proposal, SimpleNamespace(), lambda error: error).open()  # type: ignore[arg-type]
    assert taken_of(folder, "orders", folder.log()).epsilon == 5.0

    # the same rows have another name, and their name is gone
    file.write_text(plain.replace(orders, orders.replace("data.orders", "data.purchases") + budget))
    folder = world.folder(SHOP)
    assert taken_of(folder, "purchases", folder.log()).epsilon == 5.0
    left = "epsilon 3 at delta 0.00099"
    assert f"purchases epsilon 8 at delta 0.001 epsilon 5 at delta 1e-05 {left} orders" in budgets_of(folder, capsys)
    assert "orders none now epsilon 5 at delta 1e-05 - purchases" in budgets_of(folder, capsys)
    shown = {one["data"]: one for one in SiteSource(folder.path).budgets()}
    assert (shown["purchases"]["left"].epsilon, shown["orders"]["budget"]) == (3.0, None)
    overview = _budgets(SiteSource(folder.path).budgets())
    assert "purchases" in "".join(overview)

    # nothing reads them any more
    file.write_text(plain.replace(orders, ""))
    folder = world.folder(SHOP)
    assert "orders none now epsilon 5 at delta 1e-05" in budgets_of(folder, capsys)
    assert main(["site", "budget", "--folder", str(folder.path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["budgets"]["orders"]["taken"] == [5.0, 1e-5]

    # the name is of another file: it may have the same people, and what else to do is said
    (tmp_path / SHOP / "may.csv").write_text((tmp_path / SHOP / "orders.csv").read_text())
    named = orders.replace("orders.csv", "may.csv") + budget
    file.write_text(plain.replace(orders, named))
    folder = world.folder(SHOP)
    said = f"data.orders read {tmp_path / SHOP / 'orders.csv'} then: if these are other people, give them another name"
    assert said in budgets_of(folder, capsys)
    asked = {SHOP: Amount(epsilon=4.0, delta=1e-5)}
    config = dict(word.split("=") for word in NOISED) | {"on_party_loss": "stop"}
    protocol = find_protocol("pubsub-vfl")
    made = make_proposal(world.folder(BANK), protocol, config, f"{BANK}=customers,{SHOP}=orders", None, asked)
    with pytest.raises(BadInput, match=r"epsilon 5 at delta 1e-05 of epsilon 8 .* is taken already; data\.orders read"):
        check_proposal(made, folder)
    # as it says: another name begins anew, and the rows of before keep theirs
    file.write_text(plain.replace(orders, named.replace("data.orders", "data.orders-of-may")))
    folder = world.folder(SHOP)
    assert taken_of(folder, "orders-of-may", folder.log()).epsilon == 0.0
    assert "orders none now epsilon 5" in budgets_of(folder, capsys)


def test_what_a_run_takes_of_a_budget_is_shown_and_a_policy_bounds_it(tmp_path: Path) -> None:
    """A small run that announces all that is left, and breaks off, takes all of it: by one approval."""
    world = World(tmp_path)
    file = tmp_path / SHOP / SITE
    file.write_text(file.read_text().replace('"orders.csv"\nid = "id"\n', BUDGET, 1))
    folder = world.folder(SHOP)
    folder.audit.add("opened", run=f"{1:016x}", data="orders", announced=[0.125, 1e-5])
    config = dict(word.split("=") for word in NOISED) | {"on_party_loss": "stop"}
    amounts = {SHOP: Amount(epsilon=59.875, delta=0.000777), BANK: Amount(epsilon=3.25)}
    data = f"{BANK}=customers,{SHOP}=orders"
    protocol = find_protocol("pubsub-vfl")
    asked = make_proposal(world.folder(BANK), protocol, config, data, None, amounts, 123456789)
    keep_proposal(folder, asked)
    lines: list[str] = []
    _print_proposal(describe(folder, asked), lambda text: lines.append(str(text)))
    (said_of_it,) = [line for line in lines if "your privacy budget" in line]
    assert said_of_it == (
        "it takes at most epsilon 59.875 at delta 0.000777 of your privacy budget of data.orders, epsilon 60 at delta "
        "0.001: epsilon 59.875 at delta 0.00099 is left; ALL OF THAT COUNTS IF THE RUN BREAKS OFF"
    )
    assert any(f"{BANK} epsilon 3.25" in line for line in lines)
    assert any("seed 123456789" in line for line in lines)
    page = SiteSource(folder.path).show(asked.run)
    assert page is not None
    assert said_of_it in page.text

    file.write_text(file.read_text() + "\n[policy]\nbudget_per_run = { epsilon = 2.0, delta = 1e-3 }\n")
    said = "shop: policy.budget_per_run: epsilon 59.875 at delta 0.000777 is not allowed"
    with pytest.raises(BadInput, match=said) as refused:
        check_proposal(asked, world.folder(SHOP))
    assert (refused.value.for_others, str(refused.value)) == (said, f"{said}: at most epsilon 2 at delta 0.001")
    check_proposal(replace(asked, budget={SHOP: Amount(epsilon=2.0, delta=5e-4)}), world.folder(SHOP))  # type: ignore[type-var]

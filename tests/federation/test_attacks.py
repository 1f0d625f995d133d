"""Who keeps to the frames and not to the rules: drivers out of turn, two truths, floods by a site of the federation."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from fedactors.cli.sites import _print_proposal
from fedactors.errors import BadInput, FedactorsError, PartyLost, Refused
from fedactors.federation import runtime, site
from fedactors.federation.approval import Proposal, as_tree, decide, kept_proposals, read_proposal
from fedactors.federation.handshake import dial
from fedactors.federation.hosting import LocalActorHost
from fedactors.federation.operations import CHECK_BYTES, CHECKING
from fedactors.federation.relay import Relay
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.session import LINES_PER_MINUTE, Hello, framed
from fedactors.federation.site_folder import SITE, in_all, spent
from fedactors.federation.site_run import SiteRun
from fedactors.messages.codec import MAGIC, encode, encode_parts
from fedactors.protocols.pubsub_vfl.messages import Embedding
from fedactors.runtime.addresses import free_port
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import WORKER, Rogue, in_mid_run
from tests.federation.test_policy import BUDGET, NOISED
from tests.federation.test_runs import federated
from tests.federation.world import BANK, LIMITS, SHOP, World

slow = pytest.mark.slow
QUICK = replace(LIMITS, piece=1.0)
BASKETS = '[data.baskets]\npath = "baskets.csv"\nid = "id"\n'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The shop's orders have a budget; its person answers."""
    made = World(tmp_path_factory.mktemp("attacks"))
    file = made.path / SHOP / SITE
    shutil.copyfile(file.with_name("orders.csv"), file.with_name("baskets.csv"))
    file.write_text(file.read_text().replace('"orders.csv"\nid = "id"\n', BUDGET.replace("60.0", "200.0"), 1) + BASKETS)
    made.start(BANK, QUICK)
    made.start(SHOP, QUICK)
    yield made
    made.stop()


def is_free(world: World) -> bool:
    end = time.monotonic() + 20
    while any(world.driven_run(name) for name in (BANK, SHOP)) and time.monotonic() < end:
        time.sleep(0.02)
    return not any(world.driven_run(name) for name in (BANK, SHOP))


# --- a budget, by a driver that does not keep to the order -----------------------------------------------------------


@slow
def test_nothing_leaves_before_a_run_is_on_record(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A driver that never opens the run would have it trained, and the budget would know nothing of it."""
    ask = FederatedRuntime._ask

    async def skipping(self: FederatedRuntime, site: str, link: Any, verb: str, *args: Any) -> Any:
        return (None,) if verb == "open" else await ask(self, site, link, verb, *args)

    monkeypatch.setattr(FederatedRuntime, "_ask", skipping)
    assert federated(world, NOISED, "--budget", "shop=20:1e-4") in (2, 3)
    assert "calls an actor, where the run is loaded" in capsys.readouterr().err
    assert is_free(world)
    ended = [line for line in world.audit(SHOP) if line["what"] == "ended" and line["who"] == "site"][-1]
    assert ended["left"] == []


@slow
def test_nothing_leaves_after_a_run_was_measured_for_the_last_time(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    every = FederatedRuntime._all

    async def again(self: FederatedRuntime, verb: str, *args: Any, **more: Any) -> Any:
        found = await every(self, verb, *args, **more)
        if verb == "finish":
            await self.call(WORKER, "account", None)
        return found

    monkeypatch.setattr(FederatedRuntime, "_all", again)
    assert federated(world, NOISED, "--budget", "shop=20:1e-4") in (2, 3)
    assert "calls an actor, where the run is closed" in capsys.readouterr().err
    assert is_free(world)


@slow
def test_of_a_run_that_is_over_a_site_asks_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a payload's reader would learn after the last measurement, nobody would count."""
    said: list[BaseException] = []
    every = FederatedRuntime._all

    async def late(self: FederatedRuntime, verb: str, *args: Any, **more: Any) -> Any:
        found = await every(self, verb, *args, **more)
        if verb == "finish":
            run = world.run(SHOP)
            assert run is not None
            world.on(SHOP, lambda: said.append(_why_not(run._opened(WORKER))))
        return found

    monkeypatch.setattr(FederatedRuntime, "_all", late)
    assert federated(world, NOISED, "--budget", "shop=20:1e-4") == 0, world.output
    assert [type(one) for one in said] == [PartyLost]
    assert is_free(world)


def _why_not(work: Any) -> BaseException:
    try:
        work.send(None)
    except FedactorsError as error:
        return error
    raise AssertionError("it was let through")


def test_a_step_does_not_outlive_the_driver_that_asked_for_it() -> None:
    """Else it would open connections, or an actor's loops, of a run that has ended."""
    done: list[str] = []

    async def step(begun: asyncio.Event, go_on: asyncio.Event, name: str) -> None:
        begun.set()
        await go_on.wait()
        done.append(name)

    async def work() -> None:
        run = SiteRun.__new__(SiteRun)
        run.failure = asyncio.get_running_loop().create_future()
        for name in ("stays", "goes"):
            begun, go_on = asyncio.Event(), asyncio.Event()
            task = asyncio.ensure_future(run.unless_it_fails(step(begun, go_on, name)))
            await begun.wait()
            if name == "goes":
                task.cancel()
                await asyncio.wait([task])
            go_on.set()
            while len(asyncio.all_tasks()) > 1:
                await asyncio.sleep(0)

    asyncio.run(work())
    assert done == ["stays"]


# --- a payload ------------------------------------------------------------------------------------------------------


@slow
def test_a_payload_is_for_the_reader_that_its_owner_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """An actor that the asking site does host, and a payload that there is: for another actor."""
    asked: list[Any] = []

    def ask(run: SiteRun) -> None:
        assert isinstance(run.actors, LocalActorHost)
        context = run.actors.actors[WORKER]
        ref = context.put(Embedding(1, 1, 1, 0.0, np.ones((2, 2), np.float32)), frozenset({WORKER}))
        body = memoryview(encode((f"{BANK}/worker-0", WORKER, ref.key)))
        asked.append(asyncio.ensure_future(run._serve_payload(BANK, body)))

    thread = in_mid_run(world, SHOP, ask)
    assert federated(world, ("num_epochs=100000", *NOISED[1:]), "--budget", "shop=20:1e-4") in (2, 3)
    thread.join(60)
    assert "bank/worker-0: asks for a payload of shop/worker-0 that is for shop/worker-0" in capsys.readouterr().err
    assert isinstance(asked[0].exception(), Refused)
    assert is_free(world)


@slow
def test_a_reply_that_was_not_declared_does_not_arrive(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The site that gives it has no gate any more; the one that asked has."""

    async def give_away(*args: Any) -> Any:
        return np.ones(9)

    def open_the_gate(run: SiteRun) -> None:
        run.gate.reply_out = lambda *args: None  # type: ignore[method-assign]
        run.actors.serve = give_away  # type: ignore[method-assign,assignment]

    before = len(world.refusals(BANK))
    thread = in_mid_run(world, SHOP, open_the_gate)
    assert federated(world, ("num_epochs=100000", *NOISED[1:]), "--budget", "shop=20:1e-4") in (2, 3)
    thread.join(60)
    said = "returned a ndarray; it is declared to give"
    assert said in capsys.readouterr().err
    assert any(line.startswith("shop/") and said in line for line in world.refusals(BANK)[before:])
    assert is_free(world)


# --- one run, told in two ways --------------------------------------------------------------------------------------


@slow
def test_sites_that_were_told_of_two_runs_do_not_work_together(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def two_tongued(proposal: Proposal) -> dict[str, Any]:
        tree = as_tree(proposal)
        if told:  # the second site hears of another budget
            tree["budget"] = {SHOP: {"epsilon": 21.0, "delta": 1e-4}}
        told.append(proposal.run)
        return tree

    monkeypatch.setattr(runtime, "as_tree", two_tongued)
    assert federated(world, NOISED, "--budget", "shop=20:1e-4") in (2, 3)
    assert len(told) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert len(lines) == 1
    assert "was told of another run or assignment" in lines[0]
    assert any("was told of another run or assignment" in one for name in (BANK, SHOP) for one in world.refusals(name))
    assert is_free(world)


def test_the_order_of_the_sites_is_part_of_what_is_approved() -> None:
    tree = {
        "run": "0" * 16, "federation": "f", "coordinator": "bank", "protocol": "p", "version": "1", "source": "s",
        "config": {}, "data": {"bank": "a", "shop": "b"}, "shared_seed": None, "budget": {},
        "task": {"layout": "vertical", "type": "binary", "classes": 2},
    }  # fmt: skip
    turned = {**tree, "data": {"shop": "b", "bank": "a"}}
    assert read_proposal(tree).digest == read_proposal(dict(reversed(tree.items()))).digest
    assert read_proposal(tree).digest != read_proposal(turned).digest


# --- what a person approves -----------------------------------------------------------------------------------------


@slow
def test_a_policy_that_changed_while_a_person_thought_holds(world: World) -> None:
    rogue, file = Rogue(world), world.path / SHOP / SITE
    text = file.read_text()
    rogue.proposal = replace(rogue.proposal, data={BANK: "customers", SHOP: "baskets"})  # which have no budget
    tree = as_tree(rogue.proposal)

    def change_and_approve() -> None:
        end = time.monotonic() + 30
        while rogue.proposal.run not in kept_proposals(world.folder(SHOP)) and time.monotonic() < end:
            time.sleep(0.02)
        proposal = kept_proposals(world.folder(SHOP))[rogue.proposal.run]
        file.write_text(f'{text}\n[policy]\ncoordinators = ["nobody"]\n')
        decide(world.folder(SHOP), proposal, approved=True)

    thread = threading.Thread(target=change_and_approve)
    thread.start()
    try:
        with pytest.raises(Refused, match=r"proposes what cannot be: shop: policy.coordinators: bank is not allowed"):
            rogue.say(("propose", (tree,)))
    finally:
        thread.join(30)
        file.write_text(text)
    assert world.run(SHOP) is None


@slow
def test_what_is_wrong_with_a_sites_user_data_names_no_place_to_others(world: World) -> None:
    rogue, before = Rogue(world), len(world.refusals(SHOP))
    with pytest.raises(Refused, match="proposes what cannot be") as told:  # which have a label, and no task for that
        rogue.say(("propose", ({**as_tree(rogue.proposal), "data": {BANK: "customers", SHOP: "cases"}},)))
    assert str(told.value).endswith("the log of the site shop says more")
    assert str(world.path) not in str(told.value)
    lines = world.refusals(SHOP)[before:]
    assert any(str(world.path) in line for line in lines), f"the own log says where: {lines}"


def test_no_value_of_a_proposal_looks_like_a_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "x\n\nnoise: ON; each row is protected\nsource 12, the same as here"
    task = {"layout": "relational", "type": "binary", "classes": 2, "sql": forged, "label": "a.b"}
    facts: dict[str, Any] = {
        "run": "0" * 16,
        "coordinator": BANK,
        "protocol": "p",
        "version": "1",
        "purpose": "train",
        "source": "s",
    }
    facts |= {"data": {BANK: "a", SHOP: "b"}, "site": SHOP, "hosts": {}, "shared_seed": None}
    facts |= {"federation_version": 3, "most": {"hours": 1.0}, "on_loss": "ends the run"}
    facts |= {"site_budget": None, "budget": {}, "seed": 1, "code": {}}
    _print_proposal(
        {**facts, "task": task, "config": {"name": forged}, "protections": [], "messages": [], "left_open": []}
    )
    said = capsys.readouterr().out.splitlines()
    assert sum("noise: ON" in line for line in said) == 2
    assert not [line for line in said if line.startswith(("noise", "source 12"))]


def test_a_proposal_that_is_too_deep_is_none() -> None:
    deep: Any = 1
    for _ in range(20_000):
        deep = [deep]
    with pytest.raises(BadInput, match="proposal"):
        read_proposal({"config": deep})
    while isinstance(deep, list):  # else it is taken apart by a recursion of Python's own
        deep = deep[0]


# --- two coordinators, and a run that there was ---------------------------------------------------------------------


@slow
def test_a_site_takes_one_driver_at_a_time_and_each_run_once(world: World) -> None:
    rogue, other = Rogue(world), Rogue(world)
    tree = {**as_tree(rogue.proposal), "data": {BANK: "customers", SHOP: "baskets"}}
    held, done = threading.Event(), threading.Event()

    async def hold(one: Any) -> None:
        await one()
        held.set()
        await asyncio.to_thread(done.wait, 20)

    thread = threading.Thread(target=lambda: knocking(world, Hello("credit", "driver", "c" * 16, ""), hold))
    thread.start()
    held.wait(20)
    try:
        for asked in (other, rogue):
            with pytest.raises(Refused, match=r"while (one of \w+|another) is under way or waits: one at a time"):
                asked.say(("propose", (tree,)))
    finally:
        done.set()
        thread.join(30)
    assert is_free(world)
    answering = world.answer(names=(SHOP,))
    rogue.say(("propose", (tree,)), ("fail", ("that is all",)))
    answering.join(30)
    assert is_free(world)
    for again in (tree, {**tree, "config": {**tree["config"], "num_epochs": 1}}):  # by the approval that there was
        with pytest.raises(Refused, match="proposes what cannot be: the run was proposed before"):
            rogue.say(("propose", (again,)))
    assert world.run(SHOP) is None
    with pytest.raises(Refused, match="asks for 'prepare' before anything is approved"):
        rogue.say(("prepare", ((),)))
    assert any("one at a time" in line for line in world.refusals(SHOP))


# --- a site of the federation that wants others to have no site -----------------------------------------------------


def knocking(world: World, hello: Hello, then: Any) -> Any:
    """Dial the shop as the bank, do something with the connections, and close them; `then` makes them."""
    folder = world.folder(BANK)
    shop = folder.federation.members[SHOP]
    made: list[Any] = []

    async def one() -> Any:
        ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
        made.append(await dial(folder, shop, hello, replace(LIMITS, away=0.0), **ends))
        return made[-1]

    async def work() -> Any:
        try:
            return await then(one)
        finally:
            await asyncio.gather(*(connection.end() for connection in made))

    return asyncio.run(work())


@slow
@pytest.mark.parametrize("is_proposing", [False, True])
def test_a_driver_that_asks_for_nothing_keeps_no_site(world: World, is_proposing: bool) -> None:
    """It connects and says nothing; or its proposal is refused and it stays."""
    before = len(world.refusals(SHOP))

    async def stay(one: Any) -> None:
        connection = await one()
        if is_proposing:
            with pytest.raises(Refused):
                await connection.ask(("propose", (7,)), "a proposal")
        async with asyncio.timeout(15):
            while not connection.is_closed:
                await asyncio.sleep(0.05)

    knocking(world, Hello("credit", "driver", "a" * 16, ""), stay)
    assert any("is connected as a driver and asks for no run" in line for line in world.refusals(SHOP)[before:])
    assert is_free(world)


@slow
def test_drivers_that_ask_for_nothing_take_turns_with_no_site_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is sent away comes back at once: others would never get to propose."""
    monkeypatch.setattr(site, "IDLE_SECONDS", 3.0)
    hello, before = Hello("credit", "driver", "a" * 16, ""), len(world.refusals(SHOP))

    async def come_back(one: Any) -> float:
        begun = time.monotonic()
        while time.monotonic() - begun < 30:
            connection = None
            with contextlib.suppress(Refused):
                connection = await one()
            if connection is None:
                break
            await asyncio.sleep(0.5)
            await connection.end()
            await asyncio.sleep(0.2)
        return time.monotonic() - begun

    assert knocking(world, hello, come_back) < 15
    assert any("proposed nothing: at most 3 s" in line for line in world.refusals(SHOP)[before:])
    assert is_free(world)
    assert len(world.processes[SHOP]._idled[BANK]) == 1
    world.processes[SHOP]._idled.clear()


@slow
def test_a_site_has_a_few_connections_for_a_check_and_no_more(world: World) -> None:
    async def many(one: Any) -> str:
        held = [await one() for _ in range(4)]
        with pytest.raises(FedactorsError) as told:
            await one()
        # and none of them takes what a run's would
        with pytest.raises(FedactorsError):
            await held[0].request(encode_parts(bytes(CHECK_BYTES + 1)), "too much")
        await held[1].end()
        await asyncio.sleep(0.5)
        await one()
        return str(told.value)

    assert "connections for a check already" in knocking(world, Hello("credit", CHECKING, "", ""), many)


@slow
def test_a_site_that_is_refused_again_and_again_fills_no_log(world: World) -> None:
    before = len(world.audit(SHOP))

    async def flood(one: Any) -> None:
        connection = await one()
        asked = [connection.request(encode_parts(number), "nonsense") for number in range(1000)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(one, Refused) for one in found) == 256  # then the link ends

    knocking(world, Hello("credit", "driver", "b" * 16, ""), flood)
    assert 0 < len(world.audit(SHOP)) - before <= LINES_PER_MINUTE + 3


def test_what_a_site_is_refused_is_written_however_many_strangers_are(world: World) -> None:
    """Else whoever reaches the port could hide from the log what a site of the federation tries."""
    shop = world.processes[SHOP]

    def flood() -> None:
        shop._unknown_peers._lines.has_room()
        shop._unknown_peers._lines.of_minute = 0.0  # no line is left for them
        shop._refused_again("somebody at 127.0.0.1:1", "begins with no handshake")
        shop._note(Refused(BANK, "tries what it may not"))

    shop._members.clear()
    before = len(world.audit(SHOP))
    world.on(SHOP, flood)
    said = [(line["party"], line["why"]) for line in world.audit(SHOP)[before:] if line["what"] == "refused"]
    assert said == [(BANK, "tries what it may not")]


@slow
def test_an_honest_run_goes_through_after_all_of_it(world: World) -> None:
    assert is_free(world)
    assert federated(world, NOISED, "--budget", "shop=20:1e-4") == 0, world.output
    assert in_all(spent(world.folder(SHOP).log())["orders"]).epsilon < 200


def test_a_frame_that_would_end_who_reads_it_ends_a_connection(tmp_path: Path) -> None:
    """It comes from anybody on the network, to a relay, before it is known who that is."""
    made = World(tmp_path)
    said: list[str] = []
    within: list[Any] = []
    for _ in range(200):
        within = [msgpack.ExtType(2, msgpack.packb(("a:b", within)))]
    header = msgpack.packb((msgpack.packb(within[0]), ()))
    deep = struct.pack("<4sI", MAGIC, len(header)) + header

    async def work() -> bytes:
        relay = Relay(made.path / "credit" / "federation.toml", tell=lambda line: said.append(line["text"]))
        async with await relay.start("127.0.0.1", port := free_port()):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(framed([deep]))
            found = await reader.read()
            writer.close()
            return found

    assert asyncio.run(work())
    assert any("does not decode: messages within messages, deeper than 32" in line for line in said), said

"""Before an approval a proposal opens nothing, is checked in bounded time, and learns nothing of a site."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fedactors.federation
from fedactors.config import as_dict, build, spell_infinities
from fedactors.errors import BadInput, PartyLost, Refused
from fedactors.federation import handshake, site
from fedactors.federation.approval import (
    Proposal,
    as_tree,
    check_proposal,
    decide,
    keep_proposal,
    left_open,
    make_proposal,
    read_proposal,
    why_a_person,
)
from fedactors.federation.session import Hello, WayRefused
from fedactors.federation.site import within_bounds
from fedactors.federation.site_folder import SITE, Amount
from fedactors.federation.site_run import PrivacyBudget, memory_of
from fedactors.messages.codec import decode
from fedactors.plugins import Protocol, find_protocol, protocol_names
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import Rogue
from tests.federation.world import BANK, CLINIC, LIMITS, SHOP, World

SITES = (BANK, SHOP, CLINIC)
VERTICAL, ROWS = ("customers", "orders", "visits"), ("patients", "cases", "cured")
SPEEDS = {"linear": 100.0, "mlp": 100.0, "skip-mlp": 100.0}
CATALOGUE = {
    "types": {"gpu": {"price": 1.0, "throughput": SPEEDS}},
    "centers": {name: {"gpu": 2} for name in SITES},
}
LINKS = [
    {"between": list(pair), "latency_ms": 1.0, "bandwidth_mbit": 100.0} for pair in itertools.combinations(SITES, 2)
]
CENTERS = {"catalogue": f"{json.dumps(CATALOGUE)}\n", "network": f"{json.dumps({'links': LINKS})}\n"}
RUNS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "pubsub-vfl": ({"num_parties": 3, "on_party_loss": "stop"}, VERTICAL),
    "mtcd": ({"num_clients": 3, "relaxed_protocol": True, "on_party_loss": "stop"}, VERTICAL),
    "horizontal": ({"on_party_loss": "stop"}, ROWS),
    "tablepuppet": ({"on_party_loss": "stop"}, ("accounts", "sales", "stays")),
    "glasu": ({"num_clients": 3, "on_party_loss": "stop"}, ("people", "buyers", "members")),
    "nebulafl": (
        {"num_centers": 3, "num_containers": 3, "active_per_center": 1, "on_party_loss": "stop", **CENTERS},
        ROWS,
    ),
}
"""Settings and data of a run that a site could take part in, by protocol."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("unapproved"), SITES)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.start(SHOP)
    yield made
    made.stop()


def proposed(world: World, name: str, words: Mapping[str, Any] | None = None, data: tuple[str, ...] = ()) -> Proposal:
    settings, names = RUNS[name]
    config = spell_infinities(as_dict(build(find_protocol(name).Config, {**settings, **(words or {})})))
    pairs = ",".join(f"{site}={one}" for site, one in zip(SITES, data or names, strict=True))
    return make_proposal(world.folder(BANK), find_protocol(name), config, pairs, None)


def can_federate(protocol: Protocol) -> bool:
    return protocol.actors is not None and protocol.load_data is not None


# --- nothing is opened ---

_opened: list[str] = []
_MARK = "canary-of-a-site"


@pytest.fixture(scope="module")
def opened() -> list[str]:
    """What was opened, listed or looked at, of whose path somebody else gave the name."""
    looked = {"open", "os.listdir", "os.scandir", "glob.glob", "import", "subprocess.Popen", "socket.connect"}

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event in looked and any(_MARK in str(arg) for arg in args):
            _opened.append(event)

    sys.addaudithook(hear)
    return _opened


@pytest.mark.parametrize("name", sorted(one for one in protocol_names() if can_federate(find_protocol(one))))
def test_no_setting_of_a_proposal_opens_a_path(
    world: World, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Neither before an approval nor after one: what names a path is no proposal that could be approved."""
    assert name in RUNS, "say here what a run of it over a federation asks for"
    shop, stat = world.folder(SHOP), os.stat

    def noting(path: Any, *args: Any, **how: Any) -> Any:
        if _MARK in str(path):
            opened.append("os.stat")
        return stat(path, *args, **how)

    made = proposed(world, name)
    check_proposal(made, shop)
    monkeypatch.setattr(os, "stat", noting)
    paths = [tmp_path / f"{_MARK}.{end}" for end in ("csv", "json", "toml")]
    for path in paths:
        path.write_text("1,0\n2,187543\n")
    opened.clear()
    given = [*map(str, paths), f"file://{paths[0]}", f"env:{_MARK}"]
    tree = as_tree(made)
    for key, value in itertools.product(tree["config"], given):
        asked = {**tree, "config": {**tree["config"], key: value}}
        with pytest.raises(BadInput) as told:
            check_proposal(read_proposal(asked), shop)
        assert "187543" not in str(told.value)
        assert opened == [], f"{key} = {value}"
    for key, value in itertools.product(tree["task"], given):
        with contextlib.suppress(BadInput):
            check_proposal(read_proposal({**tree, "task": {**tree["task"], key: value}}), shop)
        assert opened == [], f"task.{key} = {value}"


@pytest.mark.parametrize("name", sorted(RUNS))
def test_each_setting_that_may_name_a_file_is_refused_as_a_path(world: World, name: str) -> None:
    made, tree = proposed(world, name), as_tree(proposed(world, name))
    for key in getattr(find_protocol(name).Config, "files", {}):
        with pytest.raises(BadInput, match=f"config.{key}: a path is not allowed between sites"):
            check_proposal(dataclasses.replace(made, config={**tree["config"], key: "/etc/passwd"}), world.folder(SHOP))


# --- bounded time ---


def dear_toml(size: int = 60_000, depth: int = 200) -> str:
    keys = "\n".join(f"{'.'.join(['b'] * depth)}.c{i}=1" for i in range(size // 2 // (2 * depth + 8)))
    return f"[{'.'.join(['a'] * (size // 4))}]\n{keys}"


@pytest.mark.parametrize("key", ["catalogue", "network"])
def test_toml_of_a_proposal_is_not_read(world: World, key: str) -> None:
    """60 KB of it took 68 s of a processor."""
    made = proposed(world, "nebulafl")
    begun = time.process_time()
    with pytest.raises(BadInput, match="not valid JSON"):
        check_proposal(dataclasses.replace(made, config={**made.config, key: dear_toml()}), world.folder(SHOP))
    assert time.process_time() - begun < 3.0


def test_a_list_with_thousands_of_faults_is_shown_once_for_a_few(world: World) -> None:
    """It was shown for each of them: seconds, before an approval, and at each check."""
    tree = as_tree(proposed(world, "horizontal"))
    begun = time.process_time()
    with pytest.raises(BadInput) as told:
        check_proposal(read_proposal({**tree, "task": {**tree["task"], "deviation": [0] * 6553}}), world.folder(SHOP))
    assert len(str(told.value)) < 5000
    assert time.process_time() - begun < 2.0


def test_what_takes_too_long_is_ended_whatever_errors_it_passes_over() -> None:
    def endless() -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:
                continue

    with pytest.raises(BadInput, match=r"takes more than 0\.3 s of a processor"):
        within_bounds(0.3, endless)
    assert within_bounds(0.3, lambda: 7) == 7
    with pytest.raises(ValueError, match="its own"):
        within_bounds(0.3, lambda: (_ for _ in ()).throw(ValueError("its own")))


def test_a_proposal_that_takes_too_long_to_check_is_refused_and_the_next_one_is_checked(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, rogue = check_proposal, Rogue(fresh)

    def endless(*_: Any, **__: Any) -> Any:
        while True:
            sum(range(1000))

    monkeypatch.setattr(site, "CHECK_SECONDS", 0.5)
    monkeypatch.setattr(site, "check_proposal", endless)
    with pytest.raises(Refused, match=r"it takes more than 0\.5 s of a processor to check"):
        rogue.say(("propose", (as_tree(rogue.proposal),)))
    assert any("takes more than 0.5 s" in line for line in fresh.refusals(SHOP))
    monkeypatch.setattr(site, "CHECK_SECONDS", 60.0)
    monkeypatch.setattr(site, "check_proposal", honest)
    fresh.answer(approved=False, names=(SHOP,), why="no thanks")
    with pytest.raises(Refused, match="rejected the run: no thanks"):
        rogue.say(("propose", (as_tree(rogue.proposal),)))


def waits_for(what: Callable[[], Any], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_asks_for_too_much_memory_is_refused_and_the_process_has_as_much_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Be it at once, as one instruction does that no clock ends, or little by little."""
    monkeypatch.setattr(site, "CHECK_GROWTH", 1 << 28)
    before, kept = resource.getrlimit(resource.RLIMIT_DATA), list[bytes]()

    def grows() -> None:
        while True:
            kept.append(bytes(bytearray(b"x" * (1 << 20))))
            time.sleep(0.002)

    for much in (lambda: [0] * (1 << 28), grows):
        with pytest.raises(BadInput, match=r"proposal: it takes more than 0\.25 GiB of memory to check"):
            within_bounds(60.0, much)
        assert sum(map(len, kept)) < 1 << 29
        kept.clear()
    assert within_bounds(60.0, lambda: 7) == 7
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_limits_that_several_hold_a_process_to_end_in_any_order() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    first, second = memory_of(1 << 34), memory_of(1 << 33)
    first.__enter__()
    high, _ = resource.getrlimit(resource.RLIMIT_DATA)
    second.__enter__()
    assert 0 < resource.getrlimit(resource.RLIMIT_DATA)[0] < high
    first.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] < high
    second.__exit__(None, None, None)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_check_ends_with_its_driver(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who drops its link at once, again and again, keeps the one thread of checks."""
    is_ended, is_begun, honest, rogue = threading.Event(), threading.Event(), check_proposal, Rogue(fresh)

    def endless(*_: Any, **__: Any) -> Any:
        is_begun.set()
        try:
            while True:
                sum(range(1000))
        finally:
            is_ended.set()

    monkeypatch.setattr(site, "check_proposal", endless)

    async def drop() -> None:
        hello = Hello("credit", "driver", rogue.proposal.run, "")
        ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
        connection = await handshake.dial(rogue.folder, rogue.folder.federation.members[SHOP], hello, LIMITS, **ends)
        asking = asyncio.ensure_future(connection.ask(("propose", (as_tree(rogue.proposal),)), "propose"))
        await asyncio.to_thread(is_begun.wait, 30)
        await connection.end()
        with contextlib.suppress(PartyLost):
            await asking

    asyncio.run(drop())
    assert is_ended.wait(10.0), "it goes on, and the next one waits for 20 s"
    took = fresh.processes[SHOP]._checked_for[BANK]
    waits_for(lambda: len(took) == 1)
    monkeypatch.setattr(site, "check_proposal", honest)


def test_checks_of_one_sites_proposals_take_so_long_within_an_hour(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rogue, process = Rogue(fresh), fresh.processes[SHOP]
    now = time.monotonic()
    process._checked_for[BANK].extend([(now - 4000.0, 50.0), (now - 1800.0, 30.0), (now, 30.5)])
    with pytest.raises(Refused, match=r"bank proposed took 60 s of a processor within an hour.*again in 30 minutes"):
        rogue.say(("propose", (as_tree(rogue.proposal),)))
    process._checked_for[BANK].clear()
    # of all together a time from which on each has its share
    monkeypatch.setattr(site, "CHECKED_TOGETHER", 80.0)
    process._checked_for[SHOP].append((now, 45.0))
    process._checked_for[BANK].append((now, 41.0))
    with pytest.raises(Refused, match=r"bank proposed took 40 s of a processor within an hour"):
        rogue.say(("propose", (as_tree(rogue.proposal),)))
    process._checked_for[BANK][-1] = (now, 39.0)
    fresh.answer(approved=False, names=(SHOP,), why="no thanks")
    with pytest.raises(Refused, match="rejected the run: no thanks"):
        rogue.say(("propose", (as_tree(rogue.proposal),)))
    assert len(process._checked_for[BANK]) == 2, "its check counts too"


# --- what is told ---


def test_an_error_that_nobody_foresaw_is_in_the_log_and_not_told(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise TypeError("row 17: HIV")

    monkeypatch.setattr(site, "check_proposal", broken)
    rogue = Rogue(fresh)
    with pytest.raises(Refused) as told:
        rogue.say(("propose", (as_tree(rogue.proposal),)))
    assert str(told.value).endswith("proposes what cannot be: TypeError; the log of the site shop says more")
    assert any("TypeError: row 17: HIV" in line for line in fresh.refusals(SHOP))


def test_a_number_of_classes_is_one_that_can_be_computed_with(world: World) -> None:
    tree = as_tree(proposed(world, "nebulafl"))
    with pytest.raises(BadInput, match=r"task\.classes"):
        read_proposal({**tree, "task": {**tree["task"], "classes": 10**30}})


SECRETS = ("secret_patients", "hiv_cohort", "0.125", "carol")
RULES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # what the site's person wrote, what its coordinator is told, and what the proposal has
    "data": (
        '[policy.protocols.pubsub-vfl]\ndata = ["secret_patients", "hiv_cohort"]',
        "pubsub-vfl.data: 'orders'",
        {},
    ),
    "a setting": ("[policy.protocols.pubsub-vfl]\nlearning_rate = { at_most = 0.125 }", "learning_rate: 0.5", {}),
    "coordinators": ('[policy]\ncoordinators = ["carol"]', "policy.coordinators: bank is not allowed", {}),
    "protocols": ("[policy.protocols.secret_patients]", "policy.protocols: pubsub-vfl is not allowed", {}),
    "a limit": ("[policy.limits]\nhours = 0.125", "policy.limits.hours: 3 is not allowed", {"limits": {"hours": 3.0}}),
    "a budget": (
        '[data.hiv_cohort]\npath = "orders.csv"\nid = "id"\nbudget = { epsilon = 0.125 }',
        "data.orders.budget: missing; the log of the site shop says more",
        {},
    ),
}


@pytest.mark.parametrize("what", RULES)
def test_rules_of_a_policy_and_names_of_other_data_are_not_told(tmp_path: Path, what: str) -> None:
    rule, said, changes = RULES[what]
    world = World(tmp_path)
    file = tmp_path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n{rule}\n")
    settings = {"on_party_loss": "stop", "learning_rate": 0.5}
    config = spell_infinities(as_dict(build(find_protocol("pubsub-vfl").Config, settings)))
    made = make_proposal(world.folder(BANK), find_protocol("pubsub-vfl"), config, "bank=customers,shop=orders", None)
    with pytest.raises(BadInput) as raised:
        check_proposal(read_proposal({**as_tree(made), **changes}), world.folder(SHOP))
    words, told = str(raised.value), str(raised.value.for_others)
    assert said in told
    assert not [one for one in SECRETS if one in told]
    assert [one for one in SECRETS if one in words], "the own log says why"


def test_what_is_wrong_with_a_sites_own_data_is_not_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    made = Rogue(world).proposal
    file = tmp_path / SHOP / SITE
    file.write_text(file.read_text().replace('path = "orders.csv"\nid = "id"', 'path = "orders.csv"\nidd = "id"', 1))
    with pytest.raises(BadInput, match="idd") as raised:
        check_proposal(made, world.folder(SHOP))
    assert raised.value.for_others == "shop: its data or its policy do not allow it; the log of the site shop says more"


def test_a_log_that_is_none_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a site comes back to a run with a quorum is in its log, before anybody approves."""
    world = World(tmp_path, SITES)
    world.start(SHOP)

    def broken(*_: Any, **__: Any) -> Any:
        raise BadInput(f"{tmp_path}/audit.log: line 3: epsilon 7 of secret_patients is not signed")

    monkeypatch.setattr(site.SiteProcess, "_is_known", broken)
    rogue = Rogue(world)
    rogue.proposal = proposed(world, "horizontal", {"min_sites": 2, "on_party_loss": "continue"})
    try:
        with pytest.raises(Refused) as told:
            rogue.say(("propose", (as_tree(rogue.proposal),)))
        assert str(told.value).endswith("its data or its policy do not allow it; the log of the site shop says more")
        assert any("secret_patients is not signed" in line for line in world.refusals(SHOP))
    finally:
        world.stop()


def told_to_the_bank(error: BaseException) -> str:
    return repr(decode(b"".join(errors_for(SHOP, BANK)(error))))


def test_words_of_an_account_that_fails_stay_at_their_site() -> None:
    class Actors:
        async def account(self, party: str) -> list[Any]:
            raise ValueError("row 17 of orders: diagnosis 'HIV' has no epsilon")

    logged: list[Refused] = []

    def refuse(error: Refused) -> Refused:
        logged.append(error)
        return error

    log = SimpleNamespace(add=lambda *_, **__: None)
    folder: Any = SimpleNamespace(name=SHOP, budget=lambda _: 1, read_by=lambda _: set(), audit=log, reserved={})
    amount = Amount(epsilon=1.0, delta=1e-5)
    run: Any = SimpleNamespace(data={SHOP: "orders"}, budget={SHOP: amount}, run="r", coordinator=BANK)
    actors: Any = Actors()

    async def work() -> None:
        budget = PrivacyBudget(folder, run, actors, refuse)
        budget.open()
        await budget.check()

    with pytest.raises(Refused) as raised:
        asyncio.run(work())
    assert "HIV" in str(logged[0])
    assert "HIV" not in told_to_the_bank(raised.value)
    assert "cannot account for releases: ValueError; the log of the site shop says more" in told_to_the_bank(
        raised.value
    )


def test_the_way_to_another_site_is_not_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def closed(*_: Any, **__: Any) -> Any:
        raise WayRefused("the proxy squid.internal:3128 is not reached")

    monkeypatch.setattr(handshake, "open_stream", closed)
    monkeypatch.setattr(handshake, "open_websocket", lambda *_: None)
    monkeypatch.setattr(asyncio, "open_connection", closed)
    shop = world.folder(SHOP)
    with pytest.raises(PartyLost, match=r"squid\.internal") as raised:
        asyncio.run(
            handshake.dial(
                shop, shop.federation.members[BANK], Hello("credit", "driver", "0" * 16, ""), LIMITS, serve=None,
                lost=lambda *_: None, errors=errors_for(SHOP, BANK),
            )
        )  # fmt: skip
    assert "squid" not in told_to_the_bank(raised.value)


FOREIGN = {"first_line", "unforeseen", "str", "repr"}
"""What makes words of an error."""
MAY = {
    # where the words are of whom they are told, or of the federation's own files
    ("handshake.py", "_meet"),
    ("session.py", "decoded"),
    ("session.py", "value_of"),
    ("session.py", "refusal_in"),
    ("online.py", "_answers"),
}


def test_a_refusal_is_made_of_a_foreign_error_by_one_function() -> None:
    """`failures.refused_for`: what others' code or the system says goes into the own log alone."""
    found = []
    for file in sorted(Path(fedactors.federation.__path__[0]).glob("*.py")):
        tree = ast.parse(file.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for call in ast.walk(function):
                if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Refused", "PartyLost")):
                    continue
                makes = [n for n in ast.walk(call) if isinstance(n, ast.Call) and getattr(n.func, "id", "") in FOREIGN]
                names = [one for one in makes for n in ast.walk(one) if isinstance(n, ast.Name) and n.id == "error"]
                if names and (file.name, function.name) not in MAY:
                    found.append(f"{file.name}:{call.lineno}: {function.name}")
    assert found == []


# --- the same rows by another name ---


def test_rows_that_were_summed_are_the_same_rows_by_another_name(tmp_path: Path) -> None:
    """A coordinator, and a site that colludes, call their data as they like: the shop's are what they read."""
    world = World(tmp_path, SITES)
    rows = 'path = "patients.csv"\nlabel = "bad"'
    for name, text in ((SHOP, f"[data.cases2]\n{rows}"), (CLINIC, f"[data.other]\n{rows}")):
        file = tmp_path / name / SITE
        file.write_text(f"{file.read_text()}\n{text}\n")
    bank = tmp_path / BANK / SITE
    (patients,) = [part for part in bank.read_text().split("\n\n") if part.startswith("[data.patients]")]
    bank.write_text(f"{bank.read_text()}\n{patients.replace('data.patients', 'data.patients2')}\n")
    shop, words = world.folder(SHOP), {"secure_aggregation": True}
    first = proposed(world, "horizontal", words)
    protocol, config = check_proposal(first, shop)
    keep_proposal(shop, first)
    decide(shop, first, approved=True)
    second = proposed(world, "horizontal", words, ("patients2", "cases2", "other"))
    check_proposal(second, shop)
    assert why_a_person(config, second, shop).startswith(f"run {first.run} summed the same data")
    shown = left_open(protocol, config, second, shop)
    assert any(f"run {first.run} summed bank=patients" in one for one in shown)
    assert any("read data.cases2 too" in one for one in shown)
    assert why_a_person(config, proposed(world, "horizontal", words, ("patients2", "cases", "cured")), shop) == ""


def test_data_whose_name_is_gone_may_be_of_the_same_rows(world: World) -> None:
    shop = world.folder(SHOP)
    assert shop.reads_same("cases", "cases")
    assert shop.reads_same("orders", "sales"), "they read one file"
    assert not shop.reads_same("orders", "cases")
    assert shop.reads_same("orders", "gone")

"""Before an approval: proposals that are dear to check keep nobody waiting, and bad lists keep no removed site in."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.cli.sites import SiteSource
from fedactors.config import as_dict, build, spell_infinities
from fedactors.data.query import UnsupportedQueryError, parse_query
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation import approval
from fedactors.federation.approval import (
    as_tree,
    check_proposal,
    decide,
    decision,
    keep_proposal,
    kept_proposals,
    make_proposal,
    read_proposal,
    why_a_person,
)
from fedactors.federation.identity import FEDERATION
from fedactors.federation.site_folder import SITE, Amount, SiteFolder
from fedactors.learning.models import ModelSpec, build_model, build_skeleton
from fedactors.plugins import find_protocol
from fedactors.protocols.glasu.backbones import Network, initial_parameters
from tests.federation.hostile_sites import Rogue
from tests.federation.test_keys import bank_of_an_enterprise
from tests.federation.world import BANK, CLINIC, SHOP, World

JOINS = " ".join(f"JOIN sales s{number} ON clients.id = s{number}.id" for number in range(1000))
QUERY = f"SELECT clients.bad, clients.income, s0.orders FROM clients {JOINS}"


def propose(rogue: Rogue) -> None:
    with contextlib.suppress(FedactorsError, TimeoutError):
        rogue.say(("propose", (as_tree(rogue.proposal),)))


def test_a_query_that_is_dear_to_read_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Of 36 KB of SQL, which a member proposes, sqlglot makes seconds of work before anybody has approved."""
    world = World(tmp_path)
    world.start(SHOP)
    try:
        rogue, protocol = Rogue(world), find_protocol("tablepuppet")
        settings = spell_infinities(as_dict(build(protocol.Config, {"on_party_loss": "stop"})))
        made = make_proposal(world.folder(BANK), protocol, settings, "bank=clients,shop=sales", None)
        rogue.proposal = replace(made, task=replace(made.task, sql=QUERY))
        began = time.monotonic()

        proposing = threading.Thread(target=propose, args=(rogue,), daemon=True)
        proposing.start()
        slowest = 0.0
        while not any("proposes tablepuppet" in line for line in world.output[SHOP]) and time.monotonic() - began < 30:
            asked = time.monotonic()
            world.on(SHOP, lambda: None)
            slowest = max(slowest, time.monotonic() - asked)
            time.sleep(0.01)
        took = time.monotonic() - began
        assert took > 1.0  # else it is not dear any more
        assert slowest < 0.5 * took  # of a loop that is kept waiting it would be all of it, on a busy machine too
    finally:
        world.stop()


@pytest.mark.parametrize("what", ["it ended", "its CA was removed"])
def test_a_list_of_revoked_certificates_that_is_not_good_keeps_no_removed_site(tmp_path: Path, what: str) -> None:
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, site = tmp_path / SHOP / "revoked.pem", tmp_path / SHOP / SITE
    enterprise.revoke(revoked, hours=1.5 / 3600 if what == "it ended" else 1.0)
    site.write_text(f'crl = "revoked.pem"\n{site.read_text()}')
    shop = world.folder(SHOP)
    assert BANK in shop.federation.members
    if what == "it ended":
        time.sleep(2)
    world.command("federation", "remove", str(tmp_path / "credit"), BANK)
    file = tmp_path / "credit" / FEDERATION
    if what != "it ended":
        lines = file.read_text().split("issuers = [")
        file.write_text(world.signed(lines[0] + lines[1].split("]", 1)[1].lstrip("\n")))
    (tmp_path / SHOP / FEDERATION).write_text(file.read_text())
    assert BANK not in shop.federation.members
    assert ("a list ended at" if what == "it ended" else "signed by no CA") in str(shop.config_errors)


def test_an_older_list_of_revoked_certificates_makes_nobody_a_member_again(tmp_path: Path) -> None:
    """Who serves a site its list may serve an older one, which is signed and has not ended."""
    world, enterprise, _ = bank_of_an_enterprise(tmp_path)
    revoked, site = tmp_path / SHOP / "revoked.pem", tmp_path / SHOP / SITE
    site.write_text(f'crl = "revoked.pem"\n{site.read_text()}')
    enterprise.revoke(revoked)
    shop, before = world.folder(SHOP), revoked.read_bytes()
    assert BANK in shop.federation.members
    time.sleep(1.1)  # the time of a list is in whole seconds
    enterprise.revoke(revoked, shop.federation.members[BANK].certificate)
    assert BANK not in shop.federation.members
    revoked.write_bytes(before)
    assert BANK not in shop.federation.members
    assert "was read before" in str(shop.config_errors)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("mtcd", {"num_tokens": 2_000_000_000, "mode": "overlapping"}),
        ("mtcd", {"num_clients": 2_000_000_000}),
        ("mtcd", {"num_hops": 2_000_000_000}),
        ("glasu", {"num_clients": 2_000_000_000}),
        ("glasu", {"num_layers": 2_000_000_000}),
        ("glasu", {"hidden_size": 2_000_000_000}),
        ("nebulafl", {"num_containers": 2_000_000_000, "num_centers": 2}),
        ("pubsub-vfl", {"num_active_workers": 2_000_000_000}),
        ("horizontal", {"layers": 2_000_000_000, "model": "mlp"}),
        ("horizontal", {"hidden_size": 2_000_000_000}),
        ("nebulafl", {"center_rounds": 2_000_000_000, "algorithm": "fedavg-hierarchical"}),
    ],
)
def test_settings_that_would_fill_a_sites_memory_are_none(protocol: str, words: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="input should be less than or equal to"):
        build(find_protocol(protocol).Config, words)


def test_settings_that_fill_a_sites_memory_together_are_refused(tmp_path: Path) -> None:
    """Each is allowed for itself; of their product nothing is made before it is counted."""
    world, protocol = World(tmp_path), find_protocol("horizontal")
    words: dict[str, Any] = {"model": "mlp", "hidden_size": 16384, "layers": 1000, "on_party_loss": "stop"}
    said = "model mlp: its sizes together make 99[0-9].[0-9] GiB of parameters; at most 2"
    with pytest.raises(BadInput, match=said):
        make_proposal(world.folder(BANK), protocol, words, f"{BANK}=patients,{SHOP}=cases", None)
    for name, inputs, more in (
        ("linear", (65536, 65536), {"outputs": 10}),
        ("residual-mlp", (4,), {"outputs": 1, "hidden_size": 16384, "layers": 8}),
        ("skip-mlp", (4,), {"outputs": 1, "hidden_size": 16384, "layers": 8}),
    ):
        for build_one in (partial(build_skeleton, device="cpu"), partial(build_model, seed=1)):
            with pytest.raises(BadInput, match=f"model {name}: its sizes together make"):
                build_one(ModelSpec(name=name, inputs=inputs, **more))
    network = Network(
        backbone="gcn", num_layers=1000, aggregation_layers=(999,), num_features=4, hidden_size=16384, num_classes=2
    )
    with pytest.raises(BadInput, match="its sizes together make"):
        initial_parameters(network, np.random.default_rng(1), np.random.default_rng(1))


@pytest.mark.parametrize(
    ("protocol", "words"), [("pubsub-vfl", {}), ("mtcd", {"relaxed_protocol": True, "num_clients": 2})]
)
def test_a_policys_rule_on_what_the_proposal_says_is_not_of_the_setting(
    tmp_path: Path, protocol: str, words: dict[str, object]
) -> None:
    """The task says how rows are aligned, and the data how many take part: settings of that name are not used here."""
    world, found = World(tmp_path), find_protocol(protocol)
    bank, shop = tmp_path / BANK / SITE, tmp_path / SHOP / SITE
    bank.write_text(bank.read_text().replace('"already-aligned"', '"hash"', 1))
    settings = spell_infinities(as_dict(build(found.Config, {"on_party_loss": "stop", **words})))
    proposal = make_proposal(world.folder(BANK), found, settings, "bank=customers,shop=orders", None)
    text = f"{shop.read_text()}\n[policy.protocols.{protocol}]\n"
    for rule, said in (
        ('alignment = ["psi", "already-aligned"]', "alignment: 'hash' is not allowed"),
        ("num_parties = { at_least = 3 }", "num_parties: 2 is not allowed"),
        ("num_clients = { at_least = 3 }", "num_clients: 2 is not allowed"),
    ):
        shop.write_text(f"{text}{rule}\n")
        with pytest.raises(BadInput, match=f"policy.protocols.{protocol}.{said}"):
            check_proposal(proposal, world.folder(SHOP))
    shop.write_text(f'{text}alignment = "hash"\nnum_parties = 2\n')
    check_proposal(proposal, world.folder(SHOP))


def test_a_log_that_is_long_to_read_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a site comes back to a run with a quorum is in its log, which is read before anybody approves."""
    world, protocol, honest = World(tmp_path, (BANK, SHOP, CLINIC)), find_protocol("horizontal"), SiteFolder.log
    is_reading = threading.Event()

    def log(folder: SiteFolder) -> list[dict[str, Any]]:
        if threading.current_thread() is not threading.main_thread():
            is_reading.set()
            time.sleep(3)
        return honest(folder)

    rogue = Rogue(world)
    settings = spell_infinities(as_dict(build(protocol.Config, {"min_sites": 2})))
    data = "bank=patients,shop=cases,clinic=cured"
    rogue.proposal = make_proposal(world.folder(BANK), protocol, settings, data, None)
    keep_proposal(world.folder(SHOP), rogue.proposal)
    decide(world.folder(SHOP), rogue.proposal, approved=True)
    monkeypatch.setattr(SiteFolder, "log", log)
    world.start(SHOP)
    try:
        proposing = threading.Thread(target=propose, args=(rogue,), daemon=True)
        proposing.start()
        assert is_reading.wait(60)
        asked = time.monotonic()
        world.on(SHOP, lambda: None)
        assert time.monotonic() - asked < 1.5
        proposing.join(60)
    finally:
        world.stop()


def test_a_site_proposes_so_many_runs_an_hour_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    file = tmp_path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n[policy]\nproposals_per_hour = 3\n")
    world.start(SHOP)
    try:
        rogue = Rogue(world)
        for number in range(3):
            with pytest.raises(Refused, match="proposes what cannot be: proposal"):
                rogue.say(("propose", ({"run": f"{number:016}"},)))
        with pytest.raises(Refused, match="bank has proposed 3 times within an hour; at most 3"):
            rogue.say(("propose", (as_tree(rogue.proposal),)))
        assert kept_proposals(world.folder(SHOP)) == {}
        assert any("policy.proposals_per_hour" in line for line in world.refusals(SHOP))
    finally:
        world.stop()


def test_what_nobody_waits_for_any_more_is_not_approved_later(tmp_path: Path) -> None:
    """After the time for an answer, and after a restart, a proposal is rejected, and on record as that."""
    world = World(tmp_path)
    shop, late, old = world.folder(SHOP), Rogue(world), Rogue(world)
    keep_proposal(shop, old.proposal)
    world.start(SHOP)
    try:
        world.processes[SHOP]._approval_seconds = 0.5
        with pytest.raises(Refused, match=r"nobody answered within 0\.5 s"):
            late.say(("propose", (as_tree(late.proposal),)))
        for rogue, why in ((late, "nobody answered within 0.5 s"), (old, "the site was started again")):
            assert decision(shop, rogue.proposal) == (False, why)
            with pytest.raises(BadInput, match="is decided already"):
                decide(shop, rogue.proposal, approved=True)
    finally:
        world.stop()


@pytest.mark.parametrize(
    "condition",
    [
        """CAST(a.id AS "uint64) >= 0 AND EXISTS (SELECT 1 FROM salaries AS o(id, x) WHERE o.x > 50) AND (0") = 0""",
        """CAST(a.id AS "uint64) >= 0 OR (1=1") = 3""",
        """CAST(a.id AS "oid) > (SELECT count(*) FROM duckdb_tables()) OR (1") = 1""",
        "CAST(a.id AS MOOD) = 1",
    ],
)
def test_no_sql_hides_in_the_name_of_a_type(condition: str) -> None:
    with pytest.raises(UnsupportedQueryError, match=r"sql: type '.* is not supported, only those of DuckDB"):
        parse_query(f"SELECT a.x, b.y FROM a JOIN b ON a.id = b.id WHERE {condition}")


def test_a_proposal_that_is_kept_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members propose 60 an hour each: what looks at all of them, for each proposal too, would read them all again."""
    world, protocol, read = World(tmp_path), find_protocol("pubsub-vfl"), list[Any]()
    shop, settings = world.folder(SHOP), spell_infinities(as_dict(build(protocol.Config, {"on_party_loss": "stop"})))
    for _ in range(5):
        keep_proposal(shop, make_proposal(world.folder(BANK), protocol, settings, "bank=customers,shop=orders", None))

    def counted(tree: Any) -> Any:
        read.append(tree)
        return read_proposal(tree)

    monkeypatch.setattr(approval, "read_proposal", counted)
    found = kept_proposals(shop)
    assert (len(found), len(read)) == (5, 5)
    assert kept_proposals(world.folder(SHOP)) == found
    assert len(read) == 5


def test_a_proposal_that_cannot_be_read_hides_no_other_and_waits_for_a_person(tmp_path: Path) -> None:
    """Another version kept it: what it was about decides what a policy may answer for."""
    world, protocol = World(tmp_path), find_protocol("pubsub-vfl")
    shop, config = world.folder(SHOP), build(protocol.Config, {"on_party_loss": "stop"})
    settings = spell_infinities(as_dict(config))
    proposal = make_proposal(world.folder(BANK), protocol, settings, "bank=customers,shop=orders", None)
    path = keep_proposal(shop, proposal)
    assert not why_a_person(config, proposal, shop)
    old = {**as_tree(proposal), "run": "a" * 16, "gone": 1}
    path.with_name(f"{'a' * 16}.json").write_text(json.dumps(old))
    assert list(kept_proposals(shop)) == [proposal.run]
    assert why_a_person(config, proposal, shop).startswith(f"the proposal of run {'a' * 16} cannot be read")


def test_a_lost_proposal_waits_for_a_person_until_one_settles_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file is gone for good: without a word of the site's person no policy would ever answer again."""
    world, protocol = World(tmp_path), find_protocol("pubsub-vfl")
    shop, config = world.folder(SHOP), build(protocol.Config, {"on_party_loss": "stop"})
    settings = spell_infinities(as_dict(config))
    lost, other, asked = (
        make_proposal(world.folder(BANK), protocol, settings, "bank=customers,shop=orders", None) for _ in range(3)
    )
    for one in (lost, other):
        path = keep_proposal(shop, one)
        decide(shop, one, approved=True)
        if one is lost:
            os.remove(path)
    settling = ("site", "settle", lost.run, "--folder", str(shop.path))
    assert f"fedactors site settle {lost.run} --why TEXT" in why_a_person(config, asked, shop)
    assert main(settling) == 2
    assert "--why: missing" in capsys.readouterr().err
    assert main([*settling[:2], other.run, *settling[3:], "--why", "x"]) == 2
    assert "there is nothing to settle" in capsys.readouterr().err
    assert main([*settling, "--why", "the disk of May is gone"]) == 0
    assert not why_a_person(config, asked, shop)
    (line,) = [line for line in shop.log() if line["what"] == "settled"]
    assert (line["run"], line["why"]) == (lost.run, "the disk of May is gone")
    capsys.readouterr()
    assert main(["site", "runs", "--folder", str(shop.path), "--format", "json"]) == 0
    statuses = {one["run"]: one["status"] for one in json.loads(capsys.readouterr().out)["runs"]}
    assert statuses[lost.run].endswith("; settled: the disk of May is gone")
    assert "settled: the disk of May" in SiteSource(shop.path).show(lost.run).problem  # type: ignore[union-attr]
    assert main([*settling, "--why", "again"]) == 2
    assert "is settled already" in capsys.readouterr().err
    with pytest.raises(BadInput, match="so no run can resume from it"):  # what it was about nobody knows all the same
        approval._earlier(shop, lost.run)
    (path.with_suffix(".decision.json")).write_bytes(b"{")  # a settled one hides no other
    assert f"the proposal of run {other.run} cannot be read" in why_a_person(config, asked, shop)


@pytest.mark.parametrize("name", ["shape", "targets"])
def test_a_row_of_a_proposal_has_so_many_numbers(tmp_path: Path, name: str) -> None:
    """A site reads its images in the shape that the task states: one of 3 x 65536 x 65536 would take 52 GB."""
    world, protocol = World(tmp_path), find_protocol("horizontal")
    settings = spell_infinities(as_dict(build(protocol.Config, {"on_party_loss": "stop"})))
    made = as_tree(make_proposal(world.folder(BANK), protocol, settings, "bank=patients,shop=cases", None))
    made["task"] |= {name: [3, 2048, 2048]}
    assert getattr(read_proposal(made).task, name) == (3, 2048, 2048)
    made["task"] |= {name: [3, 65536, 65536]}
    with pytest.raises(BadInput, match=rf"{name}: \[3, 65536, 65536\] is not allowed: a row has at most 67108864"):
        read_proposal(made)


def test_data_of_a_proposal_are_names(tmp_path: Path) -> None:
    """What site.toml calls so decides what is read; no word that could be a path comes as far as that."""
    world, protocol = World(tmp_path), find_protocol("pubsub-vfl")
    settings = spell_infinities(as_dict(build(protocol.Config, {"on_party_loss": "stop"})))
    made = make_proposal(world.folder(BANK), protocol, settings, "bank=customers,shop=orders", None)
    for name in ("../bank/customers.csv", "/etc/passwd", "orders.csv/", "", "or\nders"):
        with pytest.raises(BadInput, match=r"proposal: data\.shop: .* is not allowed: up to 60 letters"):
            read_proposal({**as_tree(made), "data": {BANK: "customers", SHOP: name}})


DAMAGE: dict[str, Callable[[Path, Path], Any]] = {
    "damaged": lambda kept, answer: kept.write_bytes(kept.read_bytes()[:-20]),
    "changed": lambda kept, answer: kept.write_text(kept.read_text().replace('"seed": 0', '"seed": 1')),
    "gone": lambda kept, answer: os.remove(kept),
    "both gone": lambda kept, answer: list(map(os.remove, (kept, answer))),
    "answer damaged": lambda kept, answer: answer.write_bytes(b"{"),
    "answer of something else": lambda kept, answer: answer.write_text("[]"),
    "answer gone": lambda kept, answer: os.remove(answer),
    "answer changed": lambda kept, answer: answer.write_text(answer.read_text().replace("true", "false")),
    "both changed": lambda kept, answer: change_both(kept, answer),
}


def change_both(kept: Path, answer: Path) -> None:
    """Let an approval be of another proposal, which the signed log does not say."""
    tree = {**json.loads(kept.read_text()), "seed": 1}
    kept.write_text(json.dumps(tree))
    answer.write_text(json.dumps({**json.loads(answer.read_text()), "digest": read_proposal(tree).digest}))


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_approved_proposal_that_is_not_what_was_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    """Else a person who lists the runs sees nothing of it, or what somebody has put in its place."""
    world, protocol = World(tmp_path), find_protocol("pubsub-vfl")
    shop, config = world.folder(SHOP), build(protocol.Config, {"on_party_loss": "stop"})
    settings = spell_infinities(as_dict(config))
    proposals = [
        make_proposal(world.folder(BANK), protocol, settings, "bank=customers,shop=orders", None) for _ in range(2)
    ]
    for one in proposals:
        kept = keep_proposal(shop, one)
        shop.audit.add("proposed", run=one.run, coordinator=BANK, protocol="pubsub-vfl", hosts={})
        decide(shop, one, approved=True)
    run = proposals[1].run
    DAMAGE[damage](kept, kept.with_suffix(".decision.json"))
    if damage not in ("both gone", "both changed", "answer gone", "answer changed"):  # the log alone tells of these
        assert approval.unreadable_proposals(shop) == [run]
    capsys.readouterr()
    assert main(["site", "runs", "--folder", str(shop.path), "--format", "json"]) == 0
    statuses = {one["run"]: one for one in json.loads(capsys.readouterr().out)["runs"]}
    assert statuses[proposals[0].run]["status"] == "approved"
    assert (statuses[run]["coordinator"], statuses[run]["protocol"]) == (BANK, "pubsub-vfl")
    assert statuses[run]["status"].startswith("cannot be read: its file in proposals/, or the answer there")
    for form in ("text", "json"):
        assert main(["site", "show", run, "--folder", str(shop.path), "--format", form]) == 2
        found = capsys.readouterr()
        assert f"run: {run} cannot be read" in found.err
        assert "fedactors site audit" in found.err
        assert not found.out
    assert main(["site", "audit", run, "--folder", str(shop.path)]) == 0
    shown = SiteSource(shop.path).show(run)
    assert shown is not None
    assert "cannot be read" in shown.problem
    assert not shown.text
    assert "cannot be read" in why_a_person(config, proposals[0], shop)
    with pytest.raises(BadInput, match=f"shop: run {run} cannot be read"):
        approval._earlier(shop, run)


def test_proposals_of_others_take_no_time_and_no_room_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members propose 60 an hour each, of 48 KB: what is looked at for each is what was approved, and little of it."""
    monkeypatch.setattr(approval, "_MOST_REJECTED", 40)
    world, protocol, read = World(tmp_path), find_protocol("pubsub-vfl"), list[Any]()
    shop, config = world.folder(SHOP), build(protocol.Config, {"on_party_loss": "stop"})
    proposal = make_proposal(
        world.folder(BANK), protocol, spell_infinities(as_dict(config)), "bank=customers,shop=orders", None
    )
    for number in range(1100):
        one = replace(proposal, run=f"{number:016x}")  # type: ignore[type-var]
        if number in (0, 1090):
            keep_proposal(shop, one)
            decide(shop, one, approved=True)
        elif number < 80:
            keep_proposal(shop, one)
            decide(shop, one, approved=False)
        else:
            path = shop.path / "proposals" / f"{one.run}.json"
            path.write_text(json.dumps(as_tree(one)))
            path.with_suffix(".decision.json").write_text(
                json.dumps({"approved": True, "why": "", "digest": one.digest})
            )
        if number == 79:
            assert len(kept_proposals(shop)) == 1 + 40 + 1, "those that were approved, rejected, and answered now"
    keep_proposal(shop, proposal)
    assert f"{0:016x}" in kept_proposals(shop)

    def counted(tree: Any) -> Any:
        read.append(tree)
        return read_proposal(tree)

    monkeypatch.setattr(approval, "read_proposal", counted)
    assert not why_a_person(config, proposal, shop)
    before = len(read)
    assert not why_a_person(config, proposal, world.folder(SHOP))
    assert len(read) == before, "more than a thousand, and each is read once"
    assert all(len(json.dumps(as_tree(one))) < 1000 for one in approval.approved_before(proposal, shop))

    for path in (shop.path / "proposals").glob("00000000000003*"):
        path.unlink()
    known = len(approval._seen)
    assert not why_a_person(config, proposal, shop)
    assert len(approval._seen) < known, "of what is there no more nothing is kept in memory"

    made_up = replace(proposal, budget={f"x{number}": Amount(epsilon=0.0) for number in range(1200)})  # type: ignore[type-var]
    with pytest.raises(BadInput, match="budget: 'x0' is not allowed: it brings no data to the run"):
        check_proposal(made_up, shop)

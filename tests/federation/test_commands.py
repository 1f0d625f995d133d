"""What a site's person and a federation's organiser type: what they see, and what they get wrong."""

from __future__ import annotations

import json
import re
import resource
import tomllib
from pathlib import Path

import pytest

import fedactors
from fedactors.cli import demo
from fedactors.cli.main import main
from fedactors.cli.sites import FEDERATION_ACTIONS, SITE_ACTIONS, one_run
from fedactors.errors import BadInput
from fedactors.federation import operations
from fedactors.federation.approval import decide, decision, keep_proposal, make_proposal
from fedactors.federation.audit_log import AUDIT, check
from fedactors.federation.identity import quoted, read_federation
from fedactors.federation.site_folder import SiteFolder
from fedactors.runtime.addresses import free_port
from tests.federation.world import BANK, SHOP, World


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two sites that do not listen."""
    return World(tmp_path_factory.mktemp("quiet"))


def proposed(world: World) -> str:
    """Put a proposal of the bank's before the shop; return its run."""
    from fedactors.config import as_dict, build, spell_infinities
    from fedactors.plugins import find_protocol

    protocol = find_protocol("pubsub-vfl")
    config = build(protocol.Config, {"on_party_loss": "stop"})
    settings = spell_infinities(as_dict(config))
    site = world.path / BANK / "site.toml"
    site.write_text(site.read_text().replace('alignment = "already-aligned"', 'alignment = "psi"'))
    made = make_proposal(world.folder(BANK), protocol, settings, "bank=customers,shop=orders", None)
    keep_proposal(world.folder(SHOP), made)
    return made.run


@pytest.mark.slow
def test_a_person_sees_what_would_leave_and_answers_once(quiet: World, capsys: pytest.CaptureFixture[str]) -> None:
    run, flags = proposed(quiet), ("--folder", str(quiet.path / SHOP))
    assert main(["site", "pending", *flags]) == 0
    assert run in capsys.readouterr().out
    assert main(["site", "show", run, *flags]) == 0
    shown = capsys.readouterr().out
    assert "bank proposes pubsub-vfl" in shown
    assert "yours: orders" in shown
    assert "Embedding: passive parties' workers" in shown
    assert "TEST" not in shown
    assert "task: layout=vertical, type=binary, classes=2, alignment=psi, split=random; stated by bank" in shown
    (settings,) = [line for line in shown.splitlines() if line.startswith("settings: ")]
    assert "alignment=" not in settings  # of named data: the task says it
    assert f"to answer: fedactors site approve {run}, or fedactors site reject {run}" in shown
    other = proposed(quiet)
    assert main(["site", "show", run[:-1], *flags]) == 0
    assert f"run {run}: bank proposes" in capsys.readouterr().out
    assert main(["site", "approve", "", *flags]) == main(["site", "approve", "g", *flags]) == 2
    assert other in capsys.readouterr().err.splitlines()[-1], "what waits is listed"
    assert main(["site", "reject", other[:15], *flags]) == 0
    capsys.readouterr()
    assert main(["site", "show", run, *flags, "--format", "json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert entry["data"] == {"bank": "customers", "shop": "orders"}
    assert main(["site", "reject", run, *flags, "--why", "not this quarter"]) == 0
    assert main(["site", "approve", run, *flags]) == 2
    assert f"run: {run} is decided already" in capsys.readouterr().err
    assert main(["site", "runs", *flags, "--format", "json"]) == 0
    (last,) = [e for e in json.loads(capsys.readouterr().out)["runs"] if e["run"] == run]
    assert last["status"] == "rejected: not this quarter"


def test_an_approval_is_of_the_very_proposal_that_was_shown(quiet: World) -> None:
    from dataclasses import replace

    from fedactors.federation.approval import kept_proposals

    run, folder = proposed(quiet), quiet.folder(SHOP)
    proposal = kept_proposals(folder)[run]
    decide(folder, proposal, approved=True)
    assert decision(folder, proposal) == (True, "")
    other = replace(proposal, config={**proposal.config, "num_epochs": 99})
    assert decision(folder, other) == (False, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("site", "init", "x"), "--listen: missing"),
        (("site", "init", "../x", "--listen", "h:1"), "site: '../x' is not allowed"),
        (("site", "init", "driver", "--listen", "h:1"), "site: 'driver' is not allowed"),
        (
            ("site", "init", "broker", "--listen", "h:1"),
            "site: 'broker' is not allowed as the name of a party: auditor",
        ),
        (("site", "init", "x", "--listen", "nowhere"), "--listen: 'nowhere' is not allowed: give HOST:PORT"),
        (("site", "start", "--folder", "."), "holds no site.toml"),
        (("site", "show", "--folder", "SHOP"), "RUN: missing"),
        (
            ("site", "show", "0123", "--folder", "SHOP"),
            "run: '0123' was not proposed to shop (waiting for its answer: ",
        ),
        (
            ("federation", "admit", "CREDIT", "SHOP/shop.csr", "--renew", "--address", "0.0.0.0:1"),
            "--address: 0.0.0.0 is not allowed: nobody can dial it",
        ),
        (
            ("run", "pubsub-vfl", "--federation", "BANK/federation.toml", "--data", "bank=customers,labor=orders"),
            "'labor' is no site of credit (its sites: bank, shop)",
        ),
        (("federation", "admit", "CREDIT", "SHOP/shop.csr", "--address", "h:1"), "shop is in the federation already"),
        (("federation", "admit", "CREDIT", "SHOP/site.toml", "--address", "h:1"), "this is no certificate request"),
        (("run", "pubsub-vfl", "--federation", "BANK/federation.toml"), "--data: missing"),
        (
            ("run", "pubsub-vfl", "--federation", "BANK/federation.toml", "--data", "bank"),
            "--data: 'bank' is not allowed",
        ),
        (
            ("run", "pubsub-vfl", "--federation", "BANK/federation.toml", "--data", "bank=customers,shop=../x"),
            "data.shop: '../x' is not allowed",
        ),
        (
            ("run", "pubsub-vfl", "--federation", "BANK/federation.toml", "--data", "bank=orders,shop=orders"),
            "bank: has no data named 'orders' (its data: accounts, clients, customers, patients, people)",
        ),
        (
            ("run", "pubsub-vfl", "--federation", "SHOP/federation.toml", "--data", "bank=customers,shop=orders"),
            "orders of shop has no label and no task: the site that has the label",
        ),
        (
            ("run", "glasu", "--federation", "BANK/federation.toml", "--data", "bank=customers,shop=orders"),
            "task.layout: vertical is not allowed: glasu needs graph data",
        ),
        (
            ("run", "nebulafl", "--federation", "BANK/federation.toml", "--data", "bank=patients,shop=cases"),
            "num_centers: 4 is not allowed: over a federation the centers are the sites bank, shop, and the first ones",
        ),
        (
            (
                *("run", "nebulafl", "--federation", "BANK/federation.toml"),
                *("--data", "bank=patients,shop=cases", "catalogue=nowhere.toml"),
            ),
            "catalogue: 'nowhere.toml' is neither an example",
        ),
        (
            (
                *("run", "pubsub-vfl", "--federation", "BANK/federation.toml"),
                "--data",
                "bank=customers,shop=orders",
                "on_party_loss=restart",
            ),
            "on_party_loss: 'restart' is not allowed over a federation yet",
        ),
        (
            (
                *("run", "pubsub-vfl", "--federation", "BANK/federation.toml"),
                "--data",
                "bank=customers,shop=orders",
                "bottom_model=os:system",
            ),
            "is code that the run does not bring: give --code os.py",
        ),
        (
            ("run", "pubsub-vfl", "--federation", "x.toml", "--data", "a=b", "--runtime", "ray"),
            "--runtime: is not allowed",
        ),
        (("run", "pubsub-vfl", "--share-seed", "--runtime", "simulated"), "--share-seed: needs --federation"),
        (
            ("run", "pubsub-vfl", "--return-timeout", "9", "--runtime", "simulated"),
            "--return-timeout: needs --federation",
        ),
        (
            (
                *("run", "pubsub-vfl", "--federation", "BANK/federation.toml"),
                *("--data", "bank=customers,shop=orders", "--return-timeout", "2592001"),
            ),
            "--return-timeout: 2.592e+06 is not allowed: at most 2592000 (30 days)",
        ),
        (
            (
                *("run", "horizontal", "--federation", "BANK/federation.toml", "min_sites=2"),
                *("--data", "bank=patients,shop=cases", "--return-timeout", "60"),
            ),
            "return_timeout: 60 is not allowed with min_sites, with which a run goes on without a lost site",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    quiet: World, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    folders = {"SHOP": quiet.path / SHOP, "BANK": quiet.path / BANK, "CREDIT": quiet.path / "credit"}
    for name, folder in folders.items():
        words = tuple(word.replace(name, str(folder)) for word in words)
    assert main(list(words)) == 2
    told = capsys.readouterr().err.replace("reading ", "").splitlines()  # the latter is progress
    assert said in told[-1]
    assert len([line for line in told if line.startswith("fedactors: ")]) == 1


def test_a_log_that_was_changed_is_found_out(quiet: World, tmp_path: Path) -> None:
    folder = quiet.folder(BANK)
    for number in range(3):
        folder.audit.add("note", text=f"number {number}")
    certificate = folder.federation.members[BANK].certificate
    lines = (folder.path / AUDIT).read_bytes().splitlines(keepends=True)
    assert [line["text"] for line in check(folder.path / AUDIT, certificate)][-3:] == [
        "number 0",
        "number 1",
        "number 2",
    ]
    changed = [*lines[:-2], lines[-2].replace(b"number 1", b"number 7"), lines[-1]]
    for wrong in (changed, [*lines[:-2], lines[-1]], lines[1:], lines[::-1], [*lines, b"{}\n"]):
        (tmp_path / AUDIT).write_bytes(b"".join(wrong))
        with pytest.raises(BadInput, match="is not what the site wrote there"):
            check(tmp_path / AUDIT, certificate)
    with pytest.raises(BadInput, match="line 1 is not"):
        check(folder.path / AUDIT, folder.federation.members[SHOP].certificate)


def test_data_and_policy_are_read_again_when_the_file_has_changed(tmp_path: Path) -> None:
    folder = World(tmp_path).folder(SHOP)
    file = folder.path / "site.toml"
    before, names = file.read_text(), folder.names()
    folder.look()
    file.write_text(before + '\n[policy]\ncoordinators = ["bank"]\n\n[data.more]\npath = "orders.csv"\nid = "id"\n')
    folder.look()
    assert folder.names() == sorted([*names, "more"])
    assert folder.policy.coordinators == ["bank"]
    for wrong in ("[data", "[data.'../x']\n", before + "[policy]\napprove = 7\n"):
        file.write_text(wrong)
        with pytest.raises(BadInput, match=r"site\.toml"):
            folder.look()
        assert "more" in folder.names(), "what was read before holds"
        assert folder.policy.coordinators == ["bank"]


@pytest.mark.parametrize("left", [b'{"number": 4, "ti', b"x" * 10_000])
def test_half_a_line_of_a_log_goes_with_the_next(quiet: World, left: bytes) -> None:
    folder = quiet.folder(BANK)
    folder.audit.add("note", text="whole")
    with (folder.path / AUDIT).open("ab") as file:
        file.write(left)  # killed in the middle of it, or the disk is full
    folder.audit.add("note", text="the next")
    certificate = folder.federation.members[BANK].certificate
    assert [line["text"] for line in check(folder.path / AUDIT, certificate)][-2:] == ["whole", "the next"]


def test_a_line_that_the_disk_does_not_take_leaves_the_log_as_it_was(quiet: World) -> None:
    folder = quiet.folder(BANK)
    folder.audit.add("note", text="whole")
    path, limits = folder.path / AUDIT, resource.getrlimit(resource.RLIMIT_FSIZE)
    before = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))  # room for a part of a line
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.audit.add("note", text="it does not fit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    certificate = folder.federation.members[BANK].certificate
    assert check(path, certificate)[-1]["text"] == "whole"
    folder.audit.add("note", text="the next")
    assert [line["text"] for line in check(path, certificate)][-2:] == ["whole", "the next"]


def test_a_key_that_others_can_read_is_not_used(quiet: World, tmp_path: Path) -> None:
    made = World(tmp_path)
    (made.path / BANK / "key.pem").chmod(0o644)
    with pytest.raises(BadInput, match="can be read by others"):
        _ = SiteFolder(made.path / BANK).client_tls


def test_no_name_or_address_breaks_a_site_s_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, file = World(tmp_path), tmp_path / "credit/federation.toml"
    before, request = file.read_bytes(), str(tmp_path / SHOP / "shop.csr")
    renew = ("federation", "admit", str(tmp_path / "credit"), request, "--renew")
    for host in ('a"b', 'a"\n[x]', "a b", "", "driver", "n" * 61):
        assert main([*renew, "--host", host]) == 2
        assert "--host: " in capsys.readouterr().err
    for address in ('h"\n:1', "a b:1", "h:0", "h\x1b[2J:1", '"\n[data]:1', ":1"):
        assert main([*renew, "--address", address]) == 2
        assert "--address: " in capsys.readouterr().err
        assert main(["site", "init", "third", "--folder", str(tmp_path / "third"), "--listen", address]) == 2
        assert "--listen: " in capsys.readouterr().err
    assert file.read_bytes() == before
    assert not (tmp_path / "third").exists()
    assert main([*renew, "--host", "broker", "--address", "[::1]:4000"]) == 0
    assert made.folder(BANK).federation.name  # its copy is as it was
    found = read_federation(file)
    assert (found.hosts["broker"], found.members[SHOP].host, found.members[SHOP].port) == (SHOP, "::1", 4000)


@pytest.mark.parametrize("text", ["", "a", 'a"b\\', "a\nb\r\t", "\0\x1f\x7f\u0085\u2028", "é😀", '"""\n', "a\n", "\n"])
def test_whatever_is_quoted_is_read_as_it_was(text: str) -> None:
    assert (
        tomllib.loads(f"x = {quoted(text)}\n{quoted(text)} = 1" if "\n" not in text else f"x = {quoted(text)}")["x"]
        == text
    )


@pytest.mark.parametrize("garbage", [b"junk\n", b"[]\n", b'{"what": 3}\n', b"\xff\n"])
def test_a_damaged_log_is_one_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], garbage: bytes
) -> None:
    World(tmp_path)
    log = tmp_path / BANK / AUDIT
    log.write_bytes(garbage)
    for action in ("runs", "pending"):
        assert main(["site", action, "--folder", str(tmp_path / BANK)]) == 2
        assert f"{log}: line 1 is not what the site wrote there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("site init x --listen h:1 --why y", "--why is not allowed"),
        ("site check --listen h:1", "--listen is not allowed"),
        ("site start extra", "a word is not allowed ('extra' given): it is for init, show"),
        ("site show x --why y", "--why is not allowed"),
        ("federation init f more", "a second word is not allowed"),
        ("federation init f --host x", "--host is not allowed"),
        ("federation init f --renew", "--renew is not allowed"),
        ("federation demo f --address h:1", "--address is not allowed ('h:1' given): it is for admit"),
    ],
)
def test_what_an_action_does_not_take_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_beginning_of_a_run_is_enough_if_it_is_the_beginning_of_one() -> None:
    known = ["3fa0", "3fb1", "77"]
    assert one_run("3fa", known, "no") == "3fa0"
    assert one_run("77", [*known, "770"], "no") == "77", "a whole id is that run's, whatever else begins like it"
    with pytest.raises(BadInput, match=r"^run: '3f' is the beginning of 3fa0, 3fb1: give more of it$"):
        one_run("3f", known, "no")
    for given in ("", "4", "3fa00", "*"):
        with pytest.raises(BadInput, match=r"is not here$"):
            one_run(given, known, "is not here")


@pytest.mark.parametrize("command", ["site", "federation"])
def test_each_action_has_a_help_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    actions = {"site": SITE_ACTIONS, "federation": FEDERATION_ACTIONS}[command]
    told = {}
    for action in actions:
        assert main([command, action, "--help"]) == 0
        told[action] = " ".join(capsys.readouterr().out.split())
        assert told[action].startswith(f"usage: fedactors {command} {action} ")
        assert "pending,show" not in told[action]
    assert len(set(told.values())) == len(actions)
    if command == "site":
        assert "--why" in told["reject"]
        assert "--why" not in told["show"]
        assert "show RUN [flags]" in told["show"]
        assert "0.0.0.0:7443" in told["init"]
        assert "firewall" in told["init"]
    else:
        assert "not 0.0.0.0" in told["admit"]


@pytest.mark.slow
def test_a_site_reads_its_user_data_before_anybody_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = World(tmp_path)

    async def reached(*args: object) -> dict[str, object]:
        names = ("address", "version", "round_trip_ms", "mb_per_second", "clock_seconds", "certificate_until")
        return {"site": SHOP, "problem": None, "other_code": other, **dict.fromkeys(names)}

    other: list[str] = []
    monkeypatch.setattr(operations, "check_site", reached)
    sizes = {}
    for name in (BANK, SHOP):
        assert main(["site", "check", "--folder", str(tmp_path / name), "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])["data"]
        sizes |= {entry["name"]: (entry["rows"], entry["columns"]) for entry in found}
    assert sizes["customers"] == sizes["orders"] == (160, 2)
    assert sizes["patients"] == sizes["cases"] == (60, 4)
    assert sizes["clients"] == (160, 4)
    assert sizes["people"] == sizes["buyers"] == (60, 2)
    flags = ("site", "check", "--folder", str(tmp_path / SHOP))
    other.append("pubsub-vfl")
    assert main(list(flags)) == 3
    said = capsys.readouterr().out
    assert "shop: has other code for pubsub-vfl: install the same wheel at both" in said
    assert "data.orders: 160 rows, 2 columns" in said
    file = tmp_path / SHOP / "orders.csv"
    rows = file.read_text()
    for wrong, problem in ((rows.replace(",", ",?", 3), "'?"), (None, "orders.csv is not a file")):
        file.write_text(wrong) if wrong is not None else file.unlink()
        assert main(list(flags)) == 2
        (line,) = [text for text in capsys.readouterr().out.splitlines() if text.startswith("data.orders: ")]
        assert problem in line
    assert made.names


@pytest.mark.slow
def test_a_site_listens_and_is_dialled_at_an_address_of_ipv6(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which stands in brackets, as everywhere."""
    addresses = {BANK: f"[::1]:{free_port()}", SHOP: f"127.0.0.1:{free_port()}"}
    made = World(tmp_path, addresses=addresses)
    assert addresses[BANK] in (tmp_path / SHOP / "federation.toml").read_text()
    made.start(BANK)
    try:
        assert main(["site", "check", "--folder", str(tmp_path / SHOP)]) == 0, capsys.readouterr().out
    finally:
        made.stop()


@pytest.mark.slow
def test_new_rows_are_checked_by_the_rules_of_those_that_were_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no rules of their own, as the tutorial says; a row that stands twice hinders a training only."""
    made, site = World(tmp_path), tmp_path / SHOP

    async def reached(*args: object) -> dict[str, object]:
        names = ("address", "version", "round_trip_ms", "mb_per_second", "clock_seconds", "certificate_until")
        return {"site": BANK, "problem": None, "other_code": [], **dict.fromkeys(names)}

    monkeypatch.setattr(operations, "check_site", reached)
    (site / "kinds.csv").write_text("id;kind\na;new\nb;\nc;old\n")
    (site / "later.csv").write_text("id;kind\nx;old\ny;new\ny;new\n")
    (site / "wrong.csv").write_text("id;sort\nx;old\n")
    rules = 'csv = { separator = ";" }\n[data.kinds.columns]\nkind = { type = "text", missing = "indicator" }\n'
    names = [f'[data.{name}]\npath = "{name}.csv"\nid = "id"\n' for name in ("kinds", "later", "wrong")]
    file = site / "site.toml"
    file.write_text(f"{file.read_text()}{names[0]}{rules}{names[1]}{names[2]}")
    assert main(["site", "check", "--folder", str(site)]) == 2
    said = capsys.readouterr().out
    assert "data.kinds: 3 rows, 3 columns\n" in said
    assert re.search(r"^data.later: 3 rows, \d columns; read as data.kinds are, like rows to predict$", said, re.M), (
        said
    )
    assert "data.wrong: shop: " in said, "what is wrong with it, not with others' rules"
    with (site / "orders.csv").open("a") as orders:
        orders.write("c7,1.0,2.0\n")
    assert main(["site", "check", "--folder", str(site), "--format", "json"]) == 2
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["data"]}
    assert found["orders"]["rows"] == 161
    assert "1 ids occur more than once, the first is c7; keep one row of each, or " in found["orders"]["odd"]
    customers = tmp_path / BANK / "customers.csv"
    customers.write_text(f"{customers.read_text()}c7,1.0,2.0,1\n")
    with pytest.raises(BadInput, match="1 ids occur more than once"):
        made.folder(BANK).measure("customers")


@pytest.mark.slow
def test_the_demo_shows_what_the_others_columns_add(tmp_path: Path) -> None:
    text = '[task]\ntype = "binary"\nalignment = "psi"\n'
    for site, file in ((demo.BANK, "customers"), (demo.SHOP, "orders"), (demo.CARRIER, "calls")):
        (tmp_path / site).mkdir()
        text += f'[parties.{site}]\npath = "{site}/{file}.csv"\nid = "customer"\n'
        text += 'label = "defaulted"\n' if site == demo.BANK else ""
    demo._write_data(tmp_path)
    (tmp_path / "parties.toml").write_text(text)
    settings = dict(word.split("=") for word in demo.SETTINGS)
    metrics = fedactors.simulate("pubsub-vfl", data=tmp_path / "parties.toml", **settings).metrics
    assert metrics["test/auc"] > metrics["test/local_auc"] + 0.05

"""A hostile site or coordinator is refused, told so, and written down; honest sites go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.data.sources import FileSource
from fedactors.data.values import CsvFormat
from fedactors.errors import FedactorsError, Refused
from fedactors.federation import identity
from fedactors.federation.approval import Proposal, as_tree
from fedactors.federation.handshake import dial
from fedactors.federation.identity import Member, federation_text
from fedactors.federation.session import ERROR, HEAD, PIECE_BYTES, REQUEST, Broken, Connection, Hello, read_piece
from fedactors.federation.site_folder import SiteFolder
from fedactors.federation.site_run import CALLS, PAYLOADS, SiteRun
from fedactors.messages.codec import encode, encode_parts
from fedactors.protocols.pubsub_vfl.messages import EpochOrder, Report
from fedactors.runtime.failures import errors_for
from tests.federation.hostile_sites import BROKER, LONG, WORKER, Rogue, in_mid_run
from tests.federation.test_runs import SMALL, federated
from tests.federation.world import BANK, LIMITS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(12, family="hostile")]


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Sites that go through everything here; in the end they run a protocol as if nothing had been."""
    made = World(tmp_path_factory.mktemp("hostile"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


# --- strangers ------------------------------------------------------------------------------------------------------


def knock(folder: SiteFolder, member: Member, hello: Hello) -> None:
    """Dial a site as `dial` does, and close."""

    async def work() -> None:
        ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(folder.name, member.name)}
        await (await dial(folder, member, hello, LIMITS, **ends)).end()

    asyncio.run(work())


def signed(world: World, folder: Path, name: str, *, by: Path, days: int = 9) -> SiteFolder:
    """Return a folder of a site `name` with a key of its own, certified by the authority whose folder is `by`."""
    main(["site", "init", name, "--folder", str(folder), "--listen", "127.0.0.1:1"])
    authority = identity.read_certificate(_federation(by).authority, "authority")
    request = (folder / f"{name}.csr").read_bytes()
    _, made = identity.sign_request(request, identity.read_key(by / "authority.pem"), authority, days)
    federation = _federation(world.path / "credit")
    members = {**federation.members, name: Member(name, "127.0.0.1", 1, made)}
    (folder / "federation.toml").write_text(federation_text(replace(federation, members=members)))
    return SiteFolder(folder)


def _federation(folder: Path) -> Any:
    from fedactors.federation.identity import read_federation

    return read_federation(folder / "federation.toml")


@pytest.mark.parametrize("kind", ["foreign", "expired", "unknown"])
def test_a_certificate_that_is_not_the_federations(lasting: World, tmp_path: Path, kind: str) -> None:
    by = lasting.path / "credit"
    if kind == "foreign":
        by = tmp_path / "credit"
        assert main(["federation", "init", str(by)]) == 0
    outsider = signed(lasting, tmp_path / "stranger", SHOP, by=by, days=0 if kind == "expired" else 9)
    bank = lasting.folder(BANK).federation.members[BANK]
    before = len(lasting.refusals(BANK))
    with pytest.raises(FedactorsError) as told:
        knock(outsider, bank, Hello("credit", "driver", "0" * 16, ""))
    refused = await_refusal(lasting, BANK, before)
    assert "somebody at 127.0.0.1:" in refused
    said = {
        "foreign": "untrusted certificate",
        "expired": "certificate has expired",
        "unknown": "of no site of credit",
    }[kind]
    assert said in refused
    assert "refuse" in str(told.value)


def await_refusal(world: World, name: str, before: int) -> str:
    end = time.monotonic() + 10
    while len(found := world.refusals(name)) == before and time.monotonic() < end:
        time.sleep(0.05)
    assert len(found) > before, "nothing is in the log"
    return found[-1]


def test_what_a_driver_says_as_it_goes_is_a_line_of_the_log(lasting: World) -> None:
    rogue, said = Rogue(lasting), lasting.output[SHOP]
    answering = lasting.answer(names=(SHOP,))
    rogue.say(("propose", (as_tree(rogue.proposal),)), ("fail", ("gone\n\x1b[2Jrun: finished" + "x" * 5000,)))
    answering.join(30)
    end = time.monotonic() + 10
    while "ended it: gone" not in said[-1] and time.monotonic() < end:
        time.sleep(0.05)
    assert said[-1].startswith(f"run {rogue.proposal.run}: failed: the driver at bank ended it: gone")
    written = lasting.audit(SHOP)[-1]
    assert (written["what"], written["status"]) == ("ended", "failed")
    for text in (said[-1], written["why"]):
        assert not {"\n", "\x1b"} & set(text)
        assert len(text) < 500
    with pytest.raises(Refused, match="asks for 'fail' before anything is approved"):
        Rogue(lasting).say(("fail", (3,)))


def test_a_site_that_shows_anothers_certificate_is_not_spoken_to(lasting: World) -> None:
    bank = lasting.folder(BANK)
    shop = replace(bank.federation.members[SHOP], port=bank.federation.members[BANK].port)
    with pytest.raises(Refused, match=r"shop: 127.0.0.1:\d+ shows a certificate that is not shop's"):
        knock(bank, shop, Hello("credit", "driver", "0" * 16, ""))


def test_somebody_who_says_nothing_is_sent_away(lasting: World) -> None:
    bank = lasting.folder(BANK).federation.members[BANK]
    before = len(lasting.refusals(BANK))

    async def wait() -> bytes:
        reader, writer = await asyncio.open_connection(bank.host, bank.port)
        try:
            async with asyncio.timeout(30):
                return await reader.read()
        finally:
            writer.close()

    asyncio.run(wait())
    assert "somebody at 127.0.0.1" in await_refusal(lasting, BANK, before)


def test_a_piece_that_drips_or_is_too_long_is_refused() -> None:
    async def feed(data: bytes) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        await read_piece(reader, replace(LIMITS, piece=0.1))

    with pytest.raises(Broken, match=r"took more than 0\.1 s to send one piece"):
        asyncio.run(feed(HEAD.pack(100, REQUEST, 0, 1)[:3]))
    with pytest.raises(Broken, match=r"took more than 0\.1 s to send one piece"):
        asyncio.run(feed(HEAD.pack(100, REQUEST, 0, 1) + b"x"))
    with pytest.raises(Broken, match=f"announces a piece of {PIECE_BYTES + 1} bytes"):
        asyncio.run(feed(HEAD.pack(PIECE_BYTES + 1, REQUEST, 0, 1)))


# --- a hostile site, in a run ---------------------------------------------------------------------------------------


def out(run: SiteRun, purpose: str = CALLS) -> Connection:
    return run._out[BANK, purpose]


def say(*call: Any) -> Callable[[SiteRun], None]:
    """Send a call past the own gate, which would refuse it."""
    return lambda run: out(run).request(encode_parts(call), "mischief").add_done_callback(lambda done: done.exception())


def raw(data: Callable[[Connection], bytes], purpose: str = CALLS) -> Callable[[SiteRun], None]:
    return lambda run: out(run, purpose).stream.write(data(out(run, purpose)))


def replayed(run: SiteRun) -> None:
    connection = out(run)
    frame = encode_parts((WORKER, BROKER, "report", Report((), (), 1, False)))
    connection._send(REQUEST, connection._made, frame)


def payload_request(*request: Any) -> Callable[[SiteRun], None]:
    def ask(run: SiteRun) -> None:
        out(run, PAYLOADS).request(encode_parts(request), "mischief").add_done_callback(lambda done: done.exception())

    return ask


WRONG = Report((), (), "many", True)  # type: ignore[arg-type]
MISCHIEF: dict[str, tuple[Callable[[SiteRun], None], str]] = {
    "another's name": (
        say(f"{BANK}/worker-0", BROKER, "report", None),
        "bank/worker-0, which its certificate does not own",
    ),
    "the driver's name": (say("driver", BROKER, "lose", None), "speaks for driver, which its certificate does not own"),
    "nobody's name": (say(f"{SHOP}/worker-9", BROKER, "report", None), "'shop/worker-9', which is not in the run"),
    "no endpoint": (say(WORKER, BROKER, "load", None), "calls broker.load, which is no endpoint of BatchBroker"),
    "another's endpoint": (say(WORKER, BROKER, "serve_epoch", None), "which is open to: driver; not to shop/worker-0"),
    "undeclared": (
        say(WORKER, BROKER, "report", EpochOrder(1)),
        "calls broker.report with a EpochOrder; it takes a Report",
    ),
    "no message": (say(WORKER, BROKER, "report", np.ones(9)), "calls broker.report with a ndarray"),
    "a wrong field": (say(WORKER, BROKER, "report", WRONG), "sends Report.room as a str; it is declared as int"),
    "a relay": (say(WORKER, WORKER, "end_epoch", None), "'shop/worker-0', which is not hosted by bank"),
    "no call": (say(1), "sends what is no call"),
    "no receiver": (say(WORKER, {"a": 1}, "report", None), "calls a dict, which is not hosted by bank"),
    "an array for a receiver": (say(WORKER, np.ones(9), "report", None), "calls a ndarray, which is not hosted"),
    "an array for a sender": (say(np.ones(9), BROKER, "report", None), "speaks for a ndarray, which is not in the run"),
    "a list for an endpoint": (
        say(WORKER, BROKER, [1], None),
        ("calls broker for a tuple, which is no name of an endpoint"),
    ),
    "an endpoint that steers the terminal": (
        say(WORKER, BROKER, "\x1b[2J", None),
        "calls broker for '\\x1b[2J', which is",
    ),
    "an endpoint without an end": (say(WORKER, BROKER, "x" * 90_000, None), "xxx', which is no name of an endpoint"),
    "empty pieces": (
        raw(lambda c: HEAD.pack(0, REQUEST, 1, c._made + 1)),
        "sends a piece of 0 bytes within a message",
    ),
    "an answer to nothing": (raw(lambda _: HEAD.pack(0, ERROR, 0, 1 << 30)), "answers call 1073741824, which was not"),
    "too long": (raw(lambda _: HEAD.pack(1 << 30, REQUEST, 0, 1)), "announces a piece of 1073741824 bytes"),
    "a replay": (replayed, "calls are made once, in their order"),
    "another's payload": (
        payload_request(f"{BANK}/worker-0", f"{BANK}/worker-0", 1),
        "which its certificate does not own",
    ),
    "a list for an owner": (payload_request(WORKER, [1], 1), "asks bank for a payload that is not kept here"),
    "a list for a payload": (payload_request(WORKER, BROKER, [1]), "asks bank for a payload that is not kept here"),
    "no payload": (payload_request(WORKER, WORKER, 1), "asks bank for a payload that is not kept here"),
}


@pytest.mark.parametrize("what", MISCHIEF)
def test_a_hostile_site_is_refused_and_the_run_stops(
    lasting: World, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    act, said = MISCHIEF[what]
    before = len(lasting.refusals(BANK)), len(lasting.output[SHOP])
    thread = in_mid_run(lasting, SHOP, act)
    assert federated(lasting, LONG) in (2, 3)
    thread.join(60)
    line = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert len(line) == 1
    assert said in line[0], line  # whoever started the run is told
    assert any(said in text for text in lasting.refusals(BANK)[before[0] :])  # it is in the log
    assert "shop" in line[0]


def test_honest_sites_go_on_after_all_that(lasting: World) -> None:
    assert federated(lasting, (*SMALL, "algorithm=vfl")) == 0, lasting.output


# --- a hostile coordinator ------------------------------------------------------------------------------------------


def changed(**facts: Any) -> Callable[[Proposal], dict[str, Any]]:
    return lambda proposal: {**as_tree(proposal), **facts}


PROPOSALS: dict[str, tuple[Callable[[Proposal], Any], str]] = {
    "a path": (changed(data={BANK: "customers", SHOP: "../orders.csv"}), "data.shop: '../orders.csv' is not allowed"),
    "a whole path": (changed(data={BANK: "customers", SHOP: "/etc/passwd"}), "data.shop: '/etc/passwd' is not allowed"),
    "no such data": (changed(data={BANK: "customers", SHOP: "people"}), "shop: has no data named 'people'"),
    "other code": (changed(source="0" * 64), "shop: has other code for pubsub-vfl"),
    "another's run": (changed(coordinator=SHOP), "'shop' is not allowed as its coordinator: bank asks"),
    "a strange protocol": (changed(protocol="os"), "os"),
    "a path as a protocol": (changed(protocol="../x"), "../x"),
    "more than there is": (changed(run_me="x"), "run_me"),
    "no proposal": (lambda _: 7, "proposal"),
}


@pytest.mark.parametrize("what", PROPOSALS)
def test_a_proposal_that_cannot_be_is_refused(lasting: World, what: str) -> None:
    change, said = PROPOSALS[what]
    rogue, before = Rogue(lasting), len(lasting.refusals(SHOP))
    with pytest.raises(Refused, match="proposes what cannot be") as told:
        rogue.say(("propose", (change(rogue.proposal),)))
    assert said in str(told.value)
    assert said in await_refusal(lasting, SHOP, before)


def source(path: Path) -> FileSource:
    return FileSource(
        party=SHOP,
        path=str(path),
        task="binary",
        num_classes=2,
        id_column="id",
        features=None,
        label=None,
        csv=CsvFormat(),
    )


def assignment(what: str, rogue: Rogue) -> tuple[str, str, bytes]:
    """Return (name, class, arguments) of an actor that the shop did not agree to."""
    part: Any = rogue.proposal.described().part(SHOP)  # type: ignore[call-overload]
    names = (WORKER,)
    local: tuple[Any, ...] = (rogue.config, part, 1, names)
    if what == "a class outside the protocol":
        return WORKER, "Popen", encode(((), {}), arguments=True)
    if what == "a file":
        local = (rogue.config, replace(part, source=source(rogue.world.path / "secret.csv")), 1, names)
    elif what == "another's part":
        local = (rogue.config, rogue.proposal.described().part(BANK), 1, names)
    elif what == "other settings":
        local = (replace(rogue.config, embedding_size=3), part, 1, names)
    elif what == "a source alone":
        local = (rogue.config, source(rogue.world.path / "secret.csv"), 1, names)
    elif what == "too few arguments":
        local = (rogue.config,)
    name: Any = {"a name that is a path": f"{SHOP}/../x", "a list for a name": [WORKER]}.get(what, WORKER)
    kind: Any = {"a name": "PassiveWorker"} if what == "a dict for a class" else "PassiveWorker"
    frame = b"not a frame" if what == "no arguments" else encode((local, {}), arguments=True)
    return name, kind, frame


ASSIGNMENTS = {
    "a class outside the protocol": "as 'Popen', which is no actor of the protocol",
    "a file": "with other data than the approved ones",
    "another's part": "with other data than the approved ones, or another's",
    "other settings": "with another configuration than the approved one",
    "a source alone": "with a FileSource; data are asked for by their names only",
    "a name that is a path": "which is no name of an actor",
    "a list for a name": "spawns a tuple, which is no name of an actor",
    "a dict for a class": "as a dict, which is no actor of the protocol",
    "too few arguments": "spawns shop/worker-0 with other arguments than follow from the approved proposal",
    "no arguments": "sends what does not decode",
}


@pytest.mark.parametrize("actor_specs", [7, ((WORKER,),), "ab", (("a", "b", b"", 1),)])
def test_an_assignment_that_is_none(lasting: World, actor_specs: Any) -> None:
    rogue, before = Rogue(lasting), len(lasting.refusals(SHOP))
    answering = lasting.answer(names=(SHOP,))
    with pytest.raises(Refused, match="spawns what are no actors"):
        rogue.say(("propose", (as_tree(rogue.proposal),)), ("prepare", (actor_specs,)))
    answering.join(30)
    assert "spawns what are no actors" in await_refusal(lasting, SHOP, before)


@pytest.mark.parametrize("what", ASSIGNMENTS)
def test_what_was_not_approved_is_not_spawned(lasting: World, what: str) -> None:
    rogue, before = Rogue(lasting), len(lasting.refusals(SHOP))
    answering = lasting.answer(names=(SHOP,))
    with pytest.raises(Refused) as told:
        rogue.say(("propose", (as_tree(rogue.proposal),)), ("prepare", ((assignment(what, rogue),),)))
    answering.join(30)
    assert ASSIGNMENTS[what] in str(told.value)
    assert ASSIGNMENTS[what] in await_refusal(lasting, SHOP, before)


def test_nothing_is_done_before_it_is_approved_or_out_of_turn(lasting: World) -> None:
    rogue, before = Rogue(lasting), len(lasting.refusals(SHOP))
    with pytest.raises(Refused, match="asks for 'prepare' before anything is approved"):
        rogue.say(("prepare", ((),)))
    assert "before anything is approved" in await_refusal(lasting, SHOP, before)
    answering = lasting.answer(names=(SHOP,))
    with pytest.raises(Refused, match="asks shop to load, where the run is approved"):
        rogue.say(("propose", (as_tree(rogue.proposal),)), ("load", ()))
    answering.join(30)


def test_a_run_that_was_rejected_does_not_begin(lasting: World, capsys: pytest.CaptureFixture[str]) -> None:
    steering = "no\n\x1b[2Jfedactors: all is well" + "x" * 90_000
    answering = lasting.answer(approved=False, names=(SHOP,), why=steering)
    file, data = str(lasting.path / BANK / "federation.toml"), f"{BANK}=customers,{SHOP}=orders"
    words = ["run", "pubsub-vfl", "--federation", file, "--data", data, "--out", str(lasting.path / "no"), "--quiet"]
    assert main([*words, "num_epochs=1"]) == 3
    answering.join(30)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert line.startswith("fedactors: shop: rejected the run: no??[2Jfedactors: all is well")
    assert len(line) < 500
    (why,) = [entry["why"] for entry in lasting.audit(BANK) if "all is well" in entry.get("why", "")]
    assert why.isprintable()
    assert len(why) < 1100

"""Operators stop a run at their site, and hold another site's signed log against their own."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.errors import BadInput
from fedactors.federation import audit_log
from fedactors.federation.approval import decide, keep_proposal
from fedactors.federation.audit_log import AUDIT, AuditLog
from fedactors.federation.identity import verify
from fedactors.federation.operations import Compared, compare, read_others
from fedactors.federation.site_run import SiteRun
from tests.federation.hostile_sites import LONG, Rogue, in_mid_run
from tests.federation.test_runs import SMALL, federated, last_run
from tests.federation.world import BANK, CLINIC, SHOP, World

RUN = "0123456789abcdef"


# --- two logs of one run: what each may say -------------------------------------------------------------------------


def entry(sender: str, receiver: str, messages: int = 1, size: int = 80, type_: str = "Embedding") -> dict[str, Any]:
    ends = {"driver": BANK}
    sites = {"from": ends.get(sender, sender.split("/")[0]), "to": ends.get(receiver, receiver.split("/")[0])}
    return {**sites, "sender": sender, "receiver": receiver, "type": type_, "messages": messages, "bytes": size}


def log(left: list[Any], arrived: list[Any], status: str = "finished", who: str = "site") -> list[dict[str, Any]]:
    line = {"number": 2, "what": "ended", "run": RUN, "who": who, "status": status, "left": left, "arrived": arrived}
    return [{"number": 1, "what": "approved", "run": RUN}, line]


ONE, TWO = entry(f"{BANK}/worker-0", f"{SHOP}/worker-0", 3, 300), entry(f"{SHOP}/worker-0", f"{BANK}/worker-0", 2, 50)
TO_SHOP = entry("driver", f"{SHOP}/worker-0")


def verdict_of(lines: list[dict[str, Any]], others: list[dict[str, Any]]) -> Compared:
    (found,) = compare(BANK, lines, SHOP, others)
    (back,) = compare(SHOP, others, BANK, lines)
    assert (found.verdict, found.messages, sorted(found.differences)) == (
        back.verdict,
        back.messages,
        sorted(back.differences),
    )
    return found


def test_of_a_coordinators_site_that_was_killed_its_driver_alone_says_how_the_run_ended() -> None:
    driver = log([], [], "failed", "driver")
    assert verdict_of(driver, log([TWO], [ONE], "failed")).verdict == "cut"
    assert verdict_of(driver, log([TWO], [ONE])).verdict == "differ", "it came to its end at the other one"
    assert verdict_of(log([], [], "finished", "driver"), log([TWO], [ONE])).verdict == "differ"


def test_of_a_site_whose_disk_was_full_an_attempt_that_opened_nothing_says_nothing() -> None:
    attempt = [{**line, "was_open": False} for line in log([], [], "failed")[1:]]
    shop = [{"number": 1, "what": "approved", "run": RUN}, *attempt]
    assert verdict_of(log([ONE], [TWO], "failed"), shop).verdict == "cut"
    assert verdict_of(log([ONE], [TWO]), shop).verdict == "differ"


def test_what_a_driver_knew_that_was_killed_before_a_pause_is_not_missed() -> None:
    reopened = {"number": 3, "what": "reopened", "run": RUN, "checkpoint": 1}
    first, second = log([TWO], [ONE, TO_SHOP], "failed"), log([TWO], [ONE, TO_SHOP])[1:]
    shop = [*first, reopened, *second]
    bank = [*log([ONE], [TWO], "failed"), reopened, *log([ONE], [TWO])[1:]]
    end = log([TO_SHOP], [], "finished", "driver")[1:]
    assert verdict_of([*bank, *end], shop).verdict == "cut"
    told = log([TO_SHOP], [], "failed", "driver")[1:]
    assert verdict_of([*bank[:2], *told, *bank[2:], *end], shop).verdict == "cut"
    more = [*first, reopened, *log([TWO], [ONE, TO_SHOP, TO_SHOP])[1:]]
    assert verdict_of([*bank[:2], *told, *bank[2:], *end], more).verdict == "differ"


def test_what_left_one_arrived_at_the_other() -> None:
    found = verdict_of(log([ONE], [TWO]), log([TWO], [ONE]))
    assert (found.verdict, found.messages, found.bytes) == ("agree", 5, 350)
    # what crossed to a third site is no matter of these two
    third = entry(f"{BANK}/worker-0", f"{CLINIC}/worker-0")
    assert verdict_of(log([ONE, third], [TWO]), log([TWO], [ONE])).verdict == "agree"


@pytest.mark.parametrize(
    ("left", "arrived"),
    [
        ([ONE], []),
        ([], [ONE]),
        ([ONE], [{**ONE, "messages": 4}]),
        ([ONE], [{**ONE, "bytes": 299}]),
        ([ONE], [{**ONE, "type": "Report"}]),
        ([ONE], [{**ONE, "sender": f"{BANK}/worker-1"}]),
    ],
)
def test_a_site_that_writes_something_else_is_found_out(left: list[Any], arrived: list[Any]) -> None:
    found = verdict_of(log(left, []), log([], arrived))
    assert found.verdict == "differ"
    assert f"{BANK} says that" in found.differences[0]


def test_in_a_run_that_was_cut_what_left_may_be_lost_and_nothing_arrives_that_did_not_leave() -> None:
    assert verdict_of(log([ONE], [], "failed"), log([], [], "failed")).verdict == "cut"
    assert verdict_of(log([ONE], [], "failed"), log([], [{**ONE, "messages": 2}], "failed")).verdict == "cut"
    assert verdict_of(log([], [], "failed"), log([], [ONE], "failed")).verdict == "differ"
    assert verdict_of(log([ONE], [], "failed"), log([], [{**ONE, "bytes": 301}], "failed")).verdict == "differ"


def test_who_says_that_a_run_failed_which_finished_elsewhere_hides_nothing_by_it() -> None:
    few = [{**ONE, "messages": 1}]
    assert verdict_of(log([ONE], []), log([], few, "failed")).verdict == "differ"
    assert verdict_of(log([ONE], []), log([], [], "failed")).verdict == "differ"
    assert verdict_of(log([ONE], []), log([], [ONE], "failed")).verdict == "cut", "its link broke before it heard of it"
    came_back = {"number": 1, "what": "returned", "run": RUN}
    assert verdict_of(log([ONE], [TWO]), [came_back, *log([], [], "failed")]).verdict == "differ", "nobody saw it go"
    gone = {"number": 1, "what": "away", "run": RUN, "site": SHOP, "why": ""}
    assert verdict_of([gone, *log([ONE], [TWO])], [came_back, *log([], [], "failed")]).verdict == "cut"
    apart = {"number": 1, "what": "away", "run": RUN, "site": BANK, "why": ""}
    assert verdict_of(log([ONE], []), [apart, *log([], few)]).verdict == "differ", "that they were apart one alone says"
    assert verdict_of([gone, *log([ONE], [])], [apart, *log([], few)]).verdict != "differ"


def test_what_is_lost_while_a_site_is_stopped_and_comes_back_is_no_difference() -> None:
    """Its process was stopped: what the others sent meanwhile never arrived, and it says itself that its part broke."""
    away = {"number": 1, "what": "away", "run": RUN, "site": SHOP, "why": ""}
    back = {"number": 1, "what": "returned", "run": RUN}
    stopped = [*log([TWO], [], "failed"), back, *log([], [{**ONE, "messages": 1, "bytes": 100}])[1:]]
    assert verdict_of([away, *log([ONE], [TWO])], stopped).verdict == "cut"
    assert verdict_of(log([ONE], [TWO]), stopped).verdict == "differ", "nobody saw it go"
    more = [*log([TWO], [], "failed"), back, *log([], [ONE, ONE])[1:]]
    assert verdict_of([away, *log([ONE], [TWO])], more).verdict == "differ", "what never left cannot arrive"


def test_a_log_whose_end_was_cut_off_is_found_out_by_the_others() -> None:
    found = verdict_of(log([ONE], [TWO]), log([], [])[:1])
    assert found.differences == (f"{SHOP}'s log has no end of it, and {BANK}'s says that it finished",)
    assert verdict_of(log([ONE], [TWO]), []).verdict == "differ"  # with the run's very beginning
    assert verdict_of(log([ONE], [TWO], "failed"), log([], [])[:1]).verdict == "cut"  # its process may have been killed
    assert verdict_of(log([], [])[:1], log([], [])[:1]).verdict == "cut"  # it goes on
    assert compare(BANK, log([], []), SHOP, []) == []  # a run of other sites


def test_a_site_that_was_away_when_a_run_ended_has_no_end_of_it_to_write() -> None:
    away = {"number": 1, "what": "away", "run": RUN, "site": SHOP, "why": ""}
    back = {"number": 2, "what": "returned", "run": RUN, "site": SHOP}
    approved = log([], [])[:1]
    assert verdict_of([away, *log([ONE], [TWO])], approved).verdict == "cut"
    assert verdict_of([away, back, *log([ONE], [TWO])], approved).verdict == "differ", "it was there again"
    assert verdict_of([away, back, away, *log([ONE], [TWO])], approved).verdict == "cut"
    other_site = {**away, "site": CLINIC}
    assert verdict_of([other_site, *log([ONE], [TWO])], approved).verdict == "differ"


def test_what_the_driver_sent_is_compared_where_it_could_write_it_down() -> None:
    lines = [*log([], []), *log([TO_SHOP], [], who="driver")[1:]]
    assert verdict_of(lines, log([], [TO_SHOP])).verdict == "agree"
    assert verdict_of(lines[:2], log([], [TO_SHOP])).verdict == "differ"
    killed = log([], [], "failed")  # and with it what it knew
    assert verdict_of(killed, log([], [TO_SHOP], "failed")).verdict == "cut"


@pytest.mark.parametrize("wrong", [{"left": 7}, {"arrived": [7]}, {"left": [{**ONE, "messages": "3"}]}, {"status": 0}])
def test_what_a_hostile_site_signs_and_is_no_end_of_a_run_is_one_line(wrong: dict[str, Any]) -> None:
    lines = log([], [])
    lines[1] |= wrong
    with pytest.raises(BadInput, match=f"the log of {SHOP}: line 2 does not say how a run ended"):
        compare(BANK, log([], []), SHOP, lines)


def test_a_log_of_nobodys_or_a_changed_one_is_not_compared(tmp_path: Path) -> None:
    world = World(tmp_path)
    bank, shop = world.folder(BANK), world.folder(SHOP)
    for number in range(3):
        shop.audit.add("note", text=f"number {number}")
    copy = tmp_path / "theirs.log"
    shutil.copy(shop.path / AUDIT, copy)
    name, lines = read_others(bank, copy)
    assert (name, len(lines)) == (SHOP, 3)
    whole = copy.read_bytes().splitlines(keepends=True)
    copy.write_bytes(whole[0] + whole[2])
    with pytest.raises(BadInput, match="line 2 is not what the site wrote there"):
        read_others(bank, copy)
    for nobodys in (b"", b"[]\n", b"{}\n", whole[2][:-9] + b"\n", b"[" * 100_000 + b"\n"):
        copy.write_bytes(nobodys)
        with pytest.raises(BadInput, match="its last line is signed by no other site of credit"):
            read_others(bank, copy)
    bank.audit.add("note")
    with pytest.raises(BadInput, match="is signed by no other site"):
        read_others(bank, bank.path / AUDIT)  # one's own
    with pytest.raises(BadInput, match=r"is not there: give another site's audit\.log"):
        read_others(bank, tmp_path / "none.log")


def test_lines_that_were_verified_are_so_until_a_byte_of_them_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[Any] = []
    shop = World(tmp_path).folder(SHOP)

    def counted(*words: Any) -> bool:
        verified.append(words)
        return verify(*words)

    monkeypatch.setattr(audit_log, "verify", counted)

    def num_verified() -> int:
        verified.clear()
        assert [line["number"] for line in shop.log()] == list(range(1, number + 1))
        return len(verified)

    for number in range(1, 6):
        shop.audit.add("note", text=f"number {number}")
        assert num_verified() == 1, "the new line"
    file = shop.path / AUDIT
    whole = file.read_bytes()
    for changed in (whole.replace(b"number 2", b"number 7"), whole[: whole.index(b"\n") + 1] + whole):
        file.write_bytes(changed)
        with pytest.raises(BadInput, match="line 2 is not what the site wrote there"):
            shop.log()
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    number = 4
    assert num_verified() == 4, "a log that has become shorter is verified as a whole"
    shop.audit.add("note")
    number = 5
    assert num_verified() == 1


@pytest.mark.parametrize("facts", [{}, {"to": 7, "from": "00"}, {"to": "zz", "from": "00" * 32}])
def test_a_hostile_line_that_turns_the_key_to_none_is_one_line(tmp_path: Path, facts: dict[str, Any]) -> None:
    world = World(tmp_path)
    shop = world.folder(SHOP)
    AuditLog(shop.path / AUDIT, shop.path / "key.pem").add("turned", **facts)
    shop.audit.add("note")
    with pytest.raises(BadInput, match="is not what the site wrote there"):
        read_others(world.folder(BANK), shop.path / AUDIT)


# --- commands, on real runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("logs"))
    made.start(BANK)
    made.start(SHOP)
    yield made
    made.stop()


def audit(world: World, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["site", "audit", "--folder", str(world.path / BANK), "--format", "json", *words]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_two_sites_hold_their_logs_of_a_run_against_each_other(kept: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert federated(kept, SMALL) == 0, kept.output
    run, theirs = last_run(kept), kept.path / SHOP / AUDIT
    whole = audit(kept, capsys, "--verify")["whole"][BANK]
    assert whole["lines"] == len(kept.audit(BANK)) > 4
    found = audit(kept, capsys, run)["log"]
    assert {line["run"] for line in found} == {run}
    assert [line["what"] for line in found] == ["proposed", "approved", "ended", "ended"]
    (one,) = audit(kept, capsys, run, "--against", str(theirs))["runs"]
    assert (one["verdict"], one["differences"]) == ("agree", [])
    assert one["messages"] > 10
    # the shop writes another log, with its own key: that more than it says had left for it
    other = kept.path / "other.log"
    shop = AuditLog(other, kept.path / SHOP / "key.pem")
    for line in kept.audit(SHOP):
        facts = {key: value for key, value in line.items() if key not in ("number", "time", "before", "what")}
        if line["what"] == "ended":
            facts["arrived"][0]["messages"] -= 1
        shop.add(line["what"], **facts)
    (one,) = audit(kept, capsys, run, "--against", str(other), code=3)["runs"]
    assert one["verdict"] == "differ"
    assert main(["site", "audit", run, "--folder", str(kept.path / BANK), "--against", str(other)]) == 3
    assert f"run {run}: DO NOT AGREE" in capsys.readouterr().out
    assert main(["site", "audit", "f" * 16, "--folder", str(kept.path / BANK), "--against", str(theirs)]) == 2
    assert f"{'f' * 16!r} is not in the log of bank" in capsys.readouterr().err
    # a log that knows nothing of a run that finished here does not agree with this one
    other.unlink()
    AuditLog(other, kept.path / SHOP / "key.pem").add("started", site=SHOP)
    assert main(["site", "audit", run, "--folder", str(kept.path / BANK), "--against", str(other)]) == 3
    assert "shop's log has no end of it, and bank's says that it finished" in capsys.readouterr().out


@pytest.mark.slow
def test_a_person_stops_a_run_at_their_site(kept: World, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--folder", str(kept.path / SHOP))
    assert main(["site", "stop", RUN, *flags]) == 2
    assert f"run: '{RUN}' is not under way at shop, which is idle" in capsys.readouterr().err
    asked: list[str] = []
    stopping = in_mid_run(kept, SHOP, lambda run: asked.append(run.proposal.run))
    codes: list[int] = []

    def stop() -> None:
        stopping.join(60)
        codes.append(main(["site", "stop", asked[0], *flags, "--why", "the auditors called"]))

    thread = threading.Thread(target=stop)
    thread.start()
    assert federated(kept, LONG) == 3
    thread.join(60)
    assert codes == [0]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fedactors: ")]
    assert line.startswith("fedactors: shop: stopped the run: the auditors called")
    ends = [line for line in kept.audit(SHOP) if line.get("run") == asked[0]]
    assert [line["what"] for line in ends] == ["proposed", "approved", "stopped", "ended"]
    assert (ends[-1]["status"], ends[-1]["why"]) == ("stopped", "the auditors called")
    (one,) = audit(kept, capsys, asked[0], "--against", str(kept.path / SHOP / AUDIT))["runs"]
    assert one["verdict"] == "cut", one
    assert federated(kept, SMALL) == 0, kept.output  # both are free


@pytest.mark.slow
def test_a_driver_that_says_nothing_more_is_stopped_too(kept: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedactors.federation.runtime import FederatedRuntime

    monkeypatch.setattr(FederatedRuntime, "fail", lambda *_: None)  # it ignores what it is told
    seen: list[SiteRun] = []
    waiting = in_mid_run(kept, SHOP, seen.append)

    def stop() -> None:
        waiting.join(60)
        assert main(["site", "stop", seen[0].proposal.run, "--folder", str(kept.path / SHOP)]) == 0
        end = time.monotonic() + 20
        while kept.driven_run(SHOP) is not None and time.monotonic() < end:
            time.sleep(0.05)
        idle.append(kept.driven_run(SHOP))

    idle: list[Any] = []
    thread = threading.Thread(target=stop)
    thread.start()
    assert federated(kept, LONG) != 0
    thread.join(60)
    assert idle == [None]
    assert [line["status"] for line in kept.audit(SHOP) if line["what"] == "ended"][-1] == "stopped"


@pytest.mark.parametrize("is_all_gone", [False, True])
def test_a_site_that_starts_with_less_of_its_log_says_so(tmp_path: Path, is_all_gone: bool) -> None:
    """Somebody restored an older copy, or rotated it: what runs took of a budget would count no more."""
    world = World(tmp_path)
    shop, file = world.folder(SHOP), tmp_path / SHOP / AUDIT
    first, second = Rogue(world).proposal, Rogue(world).proposal
    for one in (first, second):
        keep_proposal(shop, one)
        decide(shop, one, approved=True)
    file.write_bytes(b"" if is_all_gone else file.read_bytes().splitlines(keepends=True)[0])
    expected = sorted([first.run, second.run] if is_all_gone else [second.run])
    try:
        for _ in range(2):  # it is said once
            world.start(SHOP)
            assert [line["runs"] for line in world.audit(SHOP) if line["what"] == "lost"] == [expected]
            assert sum("audit.log: lines are missing" in line for line in world.output[SHOP]) == 1
            world.end(SHOP)
    finally:
        world.stop()

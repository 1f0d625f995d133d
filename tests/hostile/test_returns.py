"""A coordinator lets a site come back to its run, or calls one late: neither budgets, limits nor sums give way."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from fedactors.actors.remote import current_caller
from fedactors.cli.main import main
from fedactors.errors import PartyFailed, PartyLost, Refused, Stopped
from fedactors.federation import approval, site, site_run
from fedactors.federation.approval import as_tree, kept_proposals, num_returns
from fedactors.federation.audit_log import JOURNALS, AuditLog, Journal
from fedactors.federation.handshake import dial
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.session import Hello
from fedactors.federation.site_folder import SITE, RunLimits, in_all, spent
from fedactors.federation.site_run import SiteRun, UsageWatch
from fedactors.protocols.horizontal.actors import ClientProcess, HorizontalServer
from fedactors.protocols.horizontal.config import HorizontalConfig
from fedactors.runtime.failures import errors_for
from fedactors.secure_sums.actors import SecureSums
from tests.federation.test_going_on import after_rounds, resumed, runs
from tests.federation.test_policy import limited
from tests.federation.test_quorum import QUORUM, THREE, hospitals, restarted
from tests.federation.test_runs import federated
from tests.federation.world import BANK, CLINIC, LIMITS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="returns")]
ROWS_NOISED = ("record_clip_norm=1.0", "record_noise_multiplier=8.0", "model=linear", "standardisation=none")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, THREE)
    yield made
    made.stop()


def propose_and_go(world: World, run: str) -> None:
    """Propose an approved run again, as the bank's driver, and go away as soon as the shop is back in it."""
    folder, tree = world.folder(BANK), as_tree(kept_proposals(world.folder(SHOP))[run])

    async def work() -> None:
        ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, SHOP)}
        link = await dial(folder, folder.federation.members[SHOP], Hello("credit", "driver", run, ""), LIMITS, **ends)
        try:
            await link.ask(("propose", (tree,)), "propose")
        finally:
            await link.end()

    try:
        asyncio.run(work())
    finally:
        is_free(world)


def test_a_return_that_goes_nowhere_takes_nothing_off_a_budget(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = world.path / SHOP / SITE
    budget = "[data.cases]\nbudget = { epsilon = 60.0, delta = 1e-4 }\n"
    file.write_text(file.read_text().replace("[data.cases]\n", budget))
    for name in THREE:
        world.start(name)
    honest, rounds = FederatedRuntime.checkpoint, []

    async def checkpoint(self: FederatedRuntime, label: str = "last") -> None:
        await honest(self, label)
        rounds.append(label)
        if len(rounds) == 4:
            raise Stopped("the coordinator has seen enough", 3)

    monkeypatch.setattr(FederatedRuntime, "checkpoint", checkpoint)
    words = ("num_rounds=40", *QUORUM[1:], *ROWS_NOISED)
    assert federated(world, words, "--budget", f"{SHOP}=50:1e-5", protocol="horizontal") == 3
    (run,) = kept_proposals(world.folder(SHOP))
    is_free(world)
    before = in_all(spent(world.folder(SHOP).log())["cases"])
    assert 0 < before.epsilon < 50, capsys.readouterr().err
    propose_and_go(world, run)
    ended = [line for line in world.audit(SHOP) if line["what"] == "ended"]
    assert len(ended) == 2
    assert in_all(spent(world.folder(SHOP).log())["cases"]) == before


def test_a_killed_run_stays_charged_when_a_return_to_it_goes_nowhere(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = world.path / SHOP / SITE
    budget = "[data.cases]\nbudget = { epsilon = 60.0, delta = 1e-4 }\n"
    file.write_text(file.read_text().replace("[data.cases]\n", budget))
    for name in THREE:
        world.start(name)
    honest, add, killed = FederatedRuntime.checkpoint, AuditLog.add, [True]

    def added(self: AuditLog, what: str, **facts: Any) -> Any:
        if not (killed and what == "ended" and self._path.parent.name == SHOP):  # who is killed writes none
            return add(self, what, **facts)
        return None

    async def checkpoint(self: FederatedRuntime, label: str = "last") -> None:
        await honest(self, label)
        raise Stopped("the coordinator has seen enough", 3)

    monkeypatch.setattr(AuditLog, "add", added)
    monkeypatch.setattr(FederatedRuntime, "checkpoint", checkpoint)
    words = ("num_rounds=40", *QUORUM[1:], *ROWS_NOISED)
    assert federated(world, words, "--budget", f"{SHOP}=50:1e-5", protocol="horizontal") == 3
    is_free(world)
    killed.clear()
    (run,) = kept_proposals(world.folder(SHOP))
    before = in_all(spent(world.folder(SHOP).log())["cases"])
    assert before.epsilon == 50, capsys.readouterr().err
    propose_and_go(world, run)
    assert [line["was_open"] for line in world.audit(SHOP) if line["what"] == "ended"] == [False]
    assert in_all(spent(world.folder(SHOP).log())["cases"]) == before


@pytest.mark.parametrize("seed", range(40))
def test_what_was_spent_is_never_less_than_what_left_in_whatever_order_sites_are_killed_and_return(seed: int) -> None:
    rng, lines, left, state = np.random.default_rng(seed), list[dict[str, Any]](), 0.0, "ready"
    settled = 0.0
    for _ in range(40):
        what = rng.choice(["opened", "released", "ended", "killed", "returned"])
        if what == "opened" and state == "ready":
            lines.append({"what": "opened", "run": "r", "data": "cases", "announced": [50.0, 0.0]})
            state = "open"
        elif what == "released" and state == "open":
            left = min(left + rng.uniform(0, 9), 50.0)
        elif what == "ended" and state in ("ready", "open"):
            taken = {"row": [left, 0.0]} if state == "open" and left else {}
            ended = {"what": "ended", "who": "site", "run": "r", "status": "failed", "taken": taken}
            lines.append(ended | ({} if rng.random() < 0.3 and state == "open" else {"was_open": state == "open"}))
            settled, state = (left if state == "open" else settled), "gone"
        elif what == "killed":
            state = "gone"
        elif what == "returned" and state == "gone":
            lines.append({"what": "returned", "run": "r"})
            state = "ready"
        taken_by_now = in_all(spent(lines).get("cases", {})).epsilon
        assert taken_by_now >= max(left, settled), lines
        assert taken_by_now <= 50


def test_a_site_that_another_one_does_not_meet_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who says that it does not is away itself; what it says keeps nobody out, and costs nobody a return."""
    honest, said = SiteRun._meet_again, []

    async def meet(self: SiteRun, site: str) -> None:
        me = self._folder.name
        if site == CLINIC and me in (BANK, SHOP) and said.count(me) < (2 if me == BANK else 1):
            said.append(me)
            raise PartyLost(me, "it is not ready") if me == BANK else PartyFailed(CLINIC, "ValueError: it has failed")
        await honest(self, site)

    monkeypatch.setattr(SiteRun, "_meet_again", meet)
    for name in THREE:
        world.start(name)
    acting = after_rounds(world, 3, restarted(world, CLINIC))
    assert federated(world, ("num_rounds=80", *QUORUM), protocol="horizontal") == 0, capsys.readouterr().err
    acting.join(60)
    assert sorted(said) == [BANK, BANK, SHOP]
    assert CLINIC in [line["site"] for line in world.audit(BANK) if line["what"] == "returned" and "site" in line]
    away = [line["why"] for line in world.audit(BANK) if line["what"] == "away" and line["site"] == SHOP]
    assert away[0].startswith("it does not meet clinic: shop: ")
    (proposal,) = kept_proposals(world.folder(CLINIC)).values()
    assert len([line for line in world.audit(CLINIC) if line["what"] == "returned"]) >= 3
    assert num_returns(world.folder(CLINIC), proposal) == 1


def test_a_site_that_left_at_its_limits_does_not_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else each return had the hours anew."""
    monkeypatch.setattr(site, "_MEASURE_SECONDS", 0.05)
    limited(world, CLINIC, hours=1.0)
    for name in THREE:
        world.start(name)
    far: list[float] = []
    honest = UsageWatch.exceeded

    def exceeded(self: UsageWatch) -> str | None:
        self._began -= sum(far)
        return honest(self)

    monkeypatch.setattr(UsageWatch, "exceeded", exceeded)
    acting = after_rounds(world, 3, lambda: far.append(7200.0))
    assert federated(world, ("num_rounds=150", *QUORUM), protocol="horizontal") == 0, capsys.readouterr().err
    acting.join(60)
    stopped = [line["why"] for line in world.audit(CLINIC) if line["what"] == "stopped"]
    assert len(stopped) == 1
    assert "limits.hours: it took " in stopped[0]
    assert not [line for line in world.audit(CLINIC) if line["what"] == "returned"]
    assert any("left the run: limits.hours" in line for line in world.refusals(CLINIC))


def test_nobody_is_late_for_sums_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint of before the first sum makes all sites forget among whom it was: a second one lacks one of them.

    The difference would be that site's rows, added up.
    """
    world, data = hospitals(tmp_path, 5)
    total, start, late, read = SecureSums.total, FederatedRuntime.start, [], []

    async def without(self: SecureSums, parts: Mapping[str, Any], point: Any, work: Any) -> Any:
        return await total(self, {name: part for name, part in parts.items() if name not in late}, point, work)

    async def started(self: FederatedRuntime) -> None:
        await start(self)
        if not late:
            await self.checkpoint("early")
            await self._saved()

    async def summed(self: HorizontalServer, reading: Any) -> Any:
        read.append(await self._column_sums(np.zeros(0), 1))
        raise Stopped("the coordinator has seen enough", 3)

    monkeypatch.setattr(SecureSums, "total", without)
    monkeypatch.setattr(FederatedRuntime, "start", started)
    monkeypatch.setattr(HorizontalServer, "_with_scale", summed)
    for name in world.names:
        world.start(name)
    words = ("num_rounds=2", "min_sites=4", "hidden_size=4", "secure_aggregation=true")
    flags = ["--federation", str(tmp_path / BANK / "federation.toml"), "--data", data, "--out", str(tmp_path / "runs")]
    command = ["run", "horizontal", *flags, "--format", "json", "--quiet", *words]
    try:
        answering = world.answer()
        assert main(command) in (1, 2, 3)
        answering.join(30)
        assert len(read) == 1, capsys.readouterr().err
        late.append("h2")
        (proposal,) = kept_proposals(world.folder(BANK)).values()
        monkeypatch.setattr(approval, "make_proposal", lambda *_, **__: proposal)
        is_free(world)
        assert main(command) in (1, 2, 3)
        assert read[1:] == [], (read[0] - read[1])[:2]
        assert any("sums of its rows after a restart" in line for line in world.refusals("h1")), capsys.readouterr().err
        (journal,) = (tmp_path / "h1" / JOURNALS).iterdir()
        assert Journal(journal).left("h1")["sum_columns"][0] == 1
    finally:
        world.stop()


def is_free(world: World) -> None:
    end = time.monotonic() + 20
    while any(world.driven_run(name) for name in world.names) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(world.driven_run(name) for name in world.names)


def test_sums_before_the_first_round_are_not_asked_for_after_a_restart() -> None:
    """A checkpoint that a driver took before them forgets among whom they were."""
    made = ClientProcess.__new__(ClientProcess)
    config = HorizontalConfig(secure_aggregation=True, min_sites=4)
    ClientProcess.__init__(made, config, None, 0, 0, ("a", "b", "c", "d", "e"))  # type: ignore[arg-type]
    made._context = SimpleNamespace(name="a", keeps_journal=True)  # type: ignore[assignment]
    made.catch_up({"sum_columns": (1, 0)})
    token = current_caller.set("server")
    for asked in (made.sum_columns(None), made.weigh()):  # type: ignore[arg-type]
        with pytest.raises(Refused, match="server: asks a for sums of its rows after a restart; approved: before"):
            asyncio.run(asked)
    current_caller.reset(token)


def test_hours_count_on_when_a_site_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, record, began = RunLimits(hours=1.0), tmp_path / "usage.json", time.monotonic()
    for number, said in enumerate((None, None, "limits.hours: it took 1.2; at most 1")):
        monkeypatch.setattr(time, "monotonic", lambda: began)
        watch = UsageWatch(most, list, record)
        monkeypatch.setattr(time, "monotonic", lambda: began + 0.4 * 3600)
        assert (watch.exceeded() or "").startswith(said or ""), number
        assert (said is None) == (watch.exceeded() is None)


def test_no_driver_lets_sites_meet_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time a site would dial another, as often and as long as its driver likes."""
    dialled: list[str] = []

    async def dials(site: str) -> None:
        dialled.append(site)

    monkeypatch.setattr(site_run, "_MOST_MEETINGS", 3)
    left: list[str] = []
    run: Any = SimpleNamespace(
        _may_lose=True,
        _folder=SimpleNamespace(name=SHOP),
        _leave=lambda site, why: left.append(why),
        gate=SimpleNamespace(book={"clinic/client": SimpleNamespace(site=CLINIC)}),
        _num_meetings=Counter(),
        _out={},
        _dial=dials,
        _operations=SimpleNamespace(tell_of=lambda *_: None),
        proposal=SimpleNamespace(run="0" * 16, coordinator=BANK),
    )

    async def meets() -> None:
        for _ in range(5):
            await SiteRun._meet_again(run, CLINIC)

    asyncio.run(meets())  # which is no failure of this site: who flaps keeps no other one out
    assert dialled == [CLINIC] * 3
    assert left == ["clinic: comes back to a run more than 3 times"] * 2
    run._folder.name = BANK
    with pytest.raises(Refused, match="clinic: comes back to a run more than 3 times"):
        asyncio.run(meets())


def break_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with a quorum, which its coordinator ends after the first checkpoint."""
    honest = FederatedRuntime.checkpoint

    async def checkpoint(self: FederatedRuntime, label: str = "last") -> None:
        await honest(self, label)
        raise Stopped("the coordinator has seen enough", 3)

    monkeypatch.setattr(FederatedRuntime, "checkpoint", checkpoint)
    assert federated(world, ("num_rounds=40", *QUORUM), protocol="horizontal") == 3
    is_free(world)


def test_nobody_comes_back_to_a_run_of_months_ago_or_that_a_person_has_closed(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run with a quorum that broke off was taken up without a question whenever its coordinator liked."""
    for name in THREE:
        world.start(name)
    break_off(world, monkeypatch)
    (run,) = kept_proposals(world.folder(SHOP))
    capsys.readouterr()

    apart = timedelta(0)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Later:
            return cls.fromisoformat((super().now(tz) + apart).isoformat())

    monkeypatch.setattr(approval, "datetime", Later)
    for days in (31, -31):
        apart = timedelta(days=days)
        with pytest.raises(Refused, match=r"was away from the run for 31 days: too long for policy.return_days"):
            propose_and_go(world, run)
        assert "31 days; approved: at most 30 (policy.return_days)" in world.refusals(SHOP)[-1]
    apart = timedelta(days=29)
    propose_and_go(world, run)
    assert len([line for line in world.audit(SHOP) if line["what"] == "ended"]) == 2
    words = ["site", "stop", run[:8], "--folder", str(world.path / SHOP)]
    assert main([*words, "--why", "that is over"]) == 0
    assert f"{run}: is not under way; this site comes back to it no more" in capsys.readouterr().out
    with pytest.raises(Refused, match="left the run: that is over"):
        propose_and_go(world, run)
    assert main(words) == 2, "it is closed already"


def test_what_a_person_stopped_goes_on_by_no_policy(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator proposed to resume it at once, and the policy answered in place of who had stopped it."""
    for name in THREE:
        world.start(name)
    break_off(world, monkeypatch)
    folder = world.folder(SHOP)
    ((run, trained),) = kept_proposals(folder).items()
    later = replace(trained, run="f" * 16, purpose="resume", earlier=run, number=1)  # type: ignore[type-var]
    again = replace(later, run="e" * 16, earlier=later.run)  # type: ignore[type-var]
    (folder.path / approval.PROPOSALS / f"{later.run}.json").write_text(json.dumps(as_tree(later)))
    approval.decide(folder, later, approved=True, why="")
    config = TypeAdapter(HorizontalConfig).validate_python(trained.config)
    assert [approval.why_a_person(config, one, folder) for one in (later, again)] == ["", ""]
    approval.ask_to_stop(folder, run, "no more")
    said = f"this site's person stopped run {run}, which it goes on from"
    assert [approval.why_a_person(config, one, folder) for one in (later, again)] == [said, said]


def test_nobody_comes_back_to_a_run_that_went_on_as_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would go on from one state, with rounds of the same numbers, and only one was asked for."""
    for name in THREE:
        world.start(name)
    honest, rounds = FederatedRuntime.checkpoint, []

    async def checkpoint(self: FederatedRuntime, label: str = "last") -> None:
        await honest(self, label)
        rounds.append(label)
        if len(rounds) == 3:
            raise Stopped("the coordinator has seen enough", 3)

    monkeypatch.setattr(FederatedRuntime, "checkpoint", checkpoint)
    assert federated(world, ("num_rounds=6", *QUORUM), protocol="horizontal") == 3
    is_free(world)
    (run,) = kept_proposals(world.folder(SHOP))
    (made,) = runs(world)
    assert resumed(world, made, "horizontal") == 0
    is_free(world)
    with pytest.raises(Refused, match="does not come back to the run, which went on as another one"):
        propose_and_go(world, run)

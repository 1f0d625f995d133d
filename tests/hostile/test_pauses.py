"""A coordinator pretends that a site was lost, to go on more often, or otherwise, than was approved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fedactors.actors.remote import DRIVER, CallCounts
from fedactors.errors import BadInput, PartyLost, Refused, Stopped
from fedactors.federation import approval, audit_log
from fedactors.federation.approval import as_tree, kept_proposals
from fedactors.federation.audit_log import PauseJournal
from fedactors.federation.handshake import dial
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.session import Hello
from fedactors.federation.site_folder import SITE
from fedactors.runtime.failures import errors_for
from tests.actors.test_bounds import Settings, Span, call
from tests.federation.test_going_on import MANY
from tests.federation.test_runs import federated
from tests.federation.world import BANK, CLINIC, LIMITS, SHOP, World
from tests.hostile.test_returns import is_free

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="pretended-pauses")]
WORDS = ("num_epochs=8", *MANY[1:], "algorithm=vfl")
PAUSE = ("--return-timeout", "60")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from World.running(tmp_path, (BANK, SHOP))


def lines(world: World, what: str, name: str = SHOP) -> list[dict[str, Any]]:
    return [line for line in world.audit(name) if line["what"] == what]


def pretends(monkeypatch: pytest.MonkeyPatch, keeps: Callable[[int, int], bool], loses: Callable[[int], bool]) -> None:
    """Let the driver take a checkpoint, or lose the shop, as these say of a part of the run and an epoch."""
    honest, start, parts = FederatedRuntime.checkpoint, FederatedRuntime.start, [0]

    async def started(self: FederatedRuntime) -> None:
        parts[0] += 1
        await start(self)

    async def checkpoint(self: FederatedRuntime, label: str = "last") -> None:
        epoch = self.state.get("round", 0)
        if keeps(parts[0], epoch):
            await honest(self, label)
            await self._saved()
        if loses(epoch):
            raise PartyLost(SHOP, "its site was lost")

    monkeypatch.setattr(FederatedRuntime, "start", started)
    monkeypatch.setattr(FederatedRuntime, "checkpoint", checkpoint)


def test_steps_are_repeated_as_often_as_they_are_approved_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else each of the policy's continuations had nearly the whole run anew."""
    pretends(monkeypatch, keeps=lambda part, epoch: epoch == part, loses=lambda epoch: epoch == 7)
    assert federated(world, WORDS, *PAUSE) == 2
    assert "shop/worker-0: Refused; the log of the site shop says more" in capsys.readouterr().err
    # 6 and 5 epochs are forgotten, each with the one of the checkpoint: the third part may have 3
    assert len(lines(world, "reopened")) == 2
    (refused,) = {line["why"] for line in lines(world, "refused")}
    assert "of round 4, with 13 repeated after pauses; approved: 8, and as many repeated" in refused


def propose(world: World, tree: Any, *steps: Any, sender: str = BANK) -> None:
    """Propose to the shop, as a driver, and ask for these steps."""
    folder, run = world.folder(sender), tree["run"]

    async def work() -> None:
        ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(sender, SHOP)}
        link = await dial(folder, folder.federation.members[SHOP], Hello("credit", DRIVER, run, ""), LIMITS, **ends)
        try:
            await link.ask(("propose", (tree,)), "propose")
            for step in steps:
                await link.ask(step, step[0])
        finally:
            await link.end()

    try:
        asyncio.run(work())
    finally:
        is_free(world)


def part(world: World, tree: Any, specs: Any, number: int, *steps: Any) -> None:
    """Go on from a checkpoint at both sites, as a driver: load, do these steps, and drop the connections."""
    folder, run, links = world.folder(BANK), tree["run"], {}

    async def both(verb: str, *args: Any, each: Any = None) -> None:
        asked = {site: args if each is None else (each[site], *args) for site in links}
        await asyncio.gather(*(link.ask((verb, asked[site]), verb) for site, link in links.items()))

    async def work() -> None:
        for site in (BANK, SHOP):
            ends: dict[str, Any] = {"serve": None, "lost": lambda *_: None, "errors": errors_for(BANK, site)}
            hello = Hello("credit", DRIVER, run, "")
            links[site] = await dial(folder, folder.federation.members[site], hello, LIMITS, **ends)
        try:
            await both("propose", tree)
            await both("prepare", number, each=specs)
            for verb, *args in [("connect",), ("load",), *steps]:
                await both(verb, *args)
        finally:
            for link in links.values():
                await link.end()

    try:
        asyncio.run(work())
    finally:
        is_free(world)


def paused(world: World, monkeypatch: pytest.MonkeyPatch, epochs: int = 2) -> tuple[str, Any, dict[str, Any]]:
    """Leave a run after its checkpoints; return its id, what was proposed, and the actors, as each site was told."""
    honest, ask, spawned = FederatedRuntime.checkpoint, FederatedRuntime._ask, {}

    async def checkpoint(self: FederatedRuntime, label: str = "last") -> None:
        await honest(self, label)
        if self.state.get("round", 0) == epochs:
            await self._saved()
            raise Stopped("the coordinator has seen enough", 3)

    async def asked(self: FederatedRuntime, site: str, link: Any, verb: str, *args: Any) -> Any:
        if verb == "prepare":
            spawned[site] = args[0]
        return await ask(self, site, link, verb, *args)

    with monkeypatch.context() as patched:
        patched.setattr(FederatedRuntime, "checkpoint", checkpoint)
        patched.setattr(FederatedRuntime, "_ask", asked)
        assert federated(world, WORDS, *PAUSE) == 3
    is_free(world)
    ((run, proposal),) = kept_proposals(world.folder(SHOP)).items()
    return run, proposal, spawned


CHANGES: dict[str, dict[str, Any]] = {
    "a setting": {"config": {"learning_rate": 0.5}},
    "a bound": {"config": {"num_epochs": 80}},
    "the pause": {"return_timeout": 600.0},
    "the seed": {"seed": 5},
    "the data": {"data": {BANK: "customers", SHOP: "sales"}},
    "the sites": {"data": {BANK: "customers", SHOP: "orders", CLINIC: "visits"}},
    "a budget": {"budget": {SHOP: {"epsilon": 1.0, "delta": 1e-5}}},
    "the limits": {"limits": {"hours": 9.0}},
}


def test_a_run_that_paused_goes_on_as_it_was_approved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    for name in world.names:
        world.start(name)
    try:
        data = f"{BANK}=customers,{SHOP}=orders"
        monkeypatch.setattr("tests.federation.test_runs.OF_THREE", {"pubsub-vfl": data})
        monkeypatch.setattr(world, "answer", lambda answer=world.answer: answer(names=(BANK, SHOP)))
        _, proposal, specs = paused(world, monkeypatch)
        for what, changed in CHANGES.items():
            tree = as_tree(proposal)
            for name, value in changed.items():
                tree[name] = {**tree[name], **value} if name == "config" else value
            before = len(world.audit(SHOP))
            with pytest.raises(Refused, match="proposes what cannot be: "):
                propose(world, tree, ("prepare", (specs[SHOP], 3)))
            assert {line["what"] for line in world.audit(SHOP)[before:]} <= {"refused"}, what
        said = f"'{BANK}' is not allowed as its coordinator: {CLINIC} asks"
        with pytest.raises(Refused, match=said):
            propose(world, as_tree(proposal), sender=CLINIC)
        with pytest.raises(Refused):
            propose(world, as_tree(replace(proposal, coordinator=CLINIC)), sender=CLINIC)
        assert not [line for line in world.audit(SHOP) if line["what"] == "returned"]
    finally:
        world.stop()


@pytest.mark.parametrize("number", [1, 2, 4, 0, -1])
def test_a_run_that_paused_goes_on_from_its_last_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _, proposal, specs = paused(world, monkeypatch)
    with pytest.raises(Refused, match=f"shop: the run goes on from its last checkpoint, 3, not {number}"):
        propose(world, as_tree(proposal), ("prepare", (specs[SHOP], number)))
    with pytest.raises(Refused, match="asks shop to go on from checkpoint None of a run that is not paused here"):
        propose(world, as_tree(proposal), ("prepare", (specs[SHOP],)))
    assert not lines(world, "reopened")


def test_a_pause_does_not_begin_anew_when_nothing_comes_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator called each quarter of an hour, and so had the run wait for months."""
    _, proposal, specs = paused(world, monkeypatch)
    apart = timedelta(0)

    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Later:
            return cls.fromisoformat((super().now(tz) + apart).isoformat())

    monkeypatch.setattr(approval, "datetime", Later)
    monkeypatch.setattr(audit_log, "datetime", Later)
    apart = timedelta(seconds=600)
    propose(world, as_tree(proposal), ("prepare", (specs[SHOP], 3)))
    apart = timedelta(seconds=1200)
    with pytest.raises(Refused, match=r"shop: the run paused for 12\d\d s; approved: 60 \(return_timeout\), and 604"):
        propose(world, as_tree(proposal), ("prepare", (specs[SHOP], 3)))
    apart = timedelta(seconds=-1200)
    with pytest.raises(Refused, match=r"shop: the run paused for -1\d\d\d s"):
        propose(world, as_tree(proposal), ("prepare", (specs[SHOP], 3)))


def test_a_run_pauses_as_often_as_the_policy_lets_it_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, (BANK, SHOP))
    file = world.path / SHOP / SITE
    file.write_text(f"{file.read_text()}\n[policy]\ncontinuations = 1\n")
    for name in world.names:
        world.start(name)
    lost = {3, 5}

    def loses(epoch: int) -> bool:
        is_lost = epoch in lost
        lost.discard(epoch)
        return is_lost

    pretends(monkeypatch, keeps=lambda *_: True, loses=loses)
    try:
        assert federated(world, WORDS, *PAUSE) == 2
        said = capsys.readouterr().err
        assert "shop: comes back to the run for the 2nd time: too often for policy.continuations" in said
        assert "approved: at most 1 (policy.continuations)" in world.refusals(SHOP)[-1]
        assert len(lines(world, "reopened")) == 1
    finally:
        world.stop()


def test_a_run_goes_on_once_from_each_checkpoint(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretends(monkeypatch, keeps=lambda _, epoch: epoch == 3, loses=lambda epoch: epoch == 5)
    assert federated(world, WORDS, *PAUSE) == 3
    assert "resume with: fedactors run" in capsys.readouterr().err
    is_free(world)
    assert [line["checkpoint"] for line in lines(world, "reopened")] == [1]
    (proposal,) = kept_proposals(world.folder(SHOP)).values()
    with pytest.raises(Refused, match="shop: the run went on from checkpoint 1 before: resume it as a run that is"):
        propose(world, as_tree(proposal), ("prepare", ((("shop/worker-0", "PairedPassiveWorker", b""),), 1)))


def test_a_part_that_opens_nothing_erases_no_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator loaded a late checkpoint, dropped it, and went on from an early one with nothing forgotten."""
    run, proposal, specs = paused(world, monkeypatch)
    tree, file = as_tree(proposal), world.path / SHOP / "journals" / f"{run}.calls.json"

    def journal() -> Any:
        return json.loads(file.read_bytes())

    before = journal()
    assert before["ended"]["shop/worker-0"]["calls"]
    part(world, tree, specs, 3)
    assert journal() == before
    assert not lines(world, "reopened")
    part(world, tree, specs, 3, ("open",))
    assert [line["checkpoint"] for line in lines(world, "reopened")] == [3]
    assert journal()["ended"]["shop/worker-0"] == before["ended"]["shop/worker-0"]


def test_numbers_of_checkpoints_increase(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator numbered an early checkpoint above later ones, and went on from it after them."""
    _, proposal, specs = paused(world, monkeypatch)
    tree, counted = as_tree(proposal), (("snapshot", "last", 5), ("written", "last"), ("commit", "last"))
    with pytest.raises(Refused, match="asks for checkpoint 4 after 5: numbers increase"):
        part(world, tree, specs, 3, ("open",), *counted, ("snapshot", "other", 4))
    with pytest.raises(Refused, match="asks for checkpoint 5 after 5: numbers increase"):
        part(world, tree, specs, 5, ("open",), ("snapshot", "other", 5))


# --- what counts remember of parts that broke off ---


def part_of(counts: CallCounts, *asked: Any) -> CallCounts:
    """Call for a number of times (None), for an epoch or several that end with it, or release something of a round."""
    for one in asked:
        if isinstance(one, str):
            round, last = map(int, one.split("/"))
            counts.release("shop", f"batches of {last}", " 1", 1, round, last)
        else:
            call(counts, "measure" if one is None else "run", one)
    return counts


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([None], [None, None, None]),
        ([], [None, None, None, None]),
        ([Span(1)], [Span(2), Span(3)]),
        ([], [Span(3, 3)]),
        (["1/3"], ["2/3", "3/3"]),
        ([], ["1/3", "2/3", "3/3"]),
        ([], ["0/0"]),
    ],
)
def test_all_that_a_checkpoint_forgets_is_repeated_once(tmp_path: Path, before: list[Any], after: list[Any]) -> None:
    journal = PauseJournal(tmp_path / "journals" / "run.calls.json")
    first = part_of(CallCounts(Settings(), 0), *before)
    kept = first.state()
    journal.write({"shop": part_of(first, *after)})
    for part in range(4):
        counts = CallCounts(Settings(), 0)
        counts.restore(kept)
        journal.resume({"shop": counts})
        if part == 2:  # a part that opened nothing takes nothing off
            continue
        if part:
            with pytest.raises(Refused, match=r"with \d repeated after pauses; approved: .*, and as many repeated"):
                part_of(counts, *after)
        else:
            journal.write({"shop": part_of(counts, *after)})


class Parts:
    """Parts of one run at a site, each from the state of a checkpoint, and the epochs that all of them answered."""

    def __init__(self, path: Path) -> None:
        self._journal = PauseJournal(path / "journals" / "run.calls.json")
        self.answered = 0

    def resume(self, state: Any) -> CallCounts:
        """Load a state."""
        counts = CallCounts(Settings(), 0)
        counts.restore(state)
        self._journal.resume({"shop": counts})
        return counts

    def open(self, state: Any) -> CallCounts:
        """Load a state, and open."""
        counts = self.resume(state)
        self._journal.write({"shop": counts})
        return counts

    def train(self, counts: CallCounts) -> Any:
        """Ask for all epochs that are left, end, and return the state."""
        try:
            for epoch in range(1, Settings().num_epochs + 1):
                call(counts, "run", Span(epoch))
                self.answered += 1
        finally:
            self._journal.write({"shop": counts})
        return counts.state()


@pytest.mark.parametrize("between", ["resume", "open"])
def test_no_order_of_checkpoints_has_more_than_twice_each_bound(tmp_path: Path, between: str) -> None:
    """A load, or a process that was killed once it was open, of a late state made the site forget what was asked."""
    parts = Parts(tmp_path)
    early = CallCounts(Settings(), 0).state()
    late = parts.train(parts.open(early))

    def repeat() -> None:
        for _ in range(6):
            getattr(parts, between)(late)
            parts.train(parts.open(early))

    with pytest.raises(Refused, match=r"with \d repeated after pauses; approved: .*, and as many repeated"):
        repeat()
    assert Settings().num_epochs <= parts.answered <= 2 * Settings().num_epochs


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    file = tmp_path / "run.calls.json"
    for text in ("[]", "{", '{"forgotten": {"shop": {"x": "y"}}, "ended": {}}', '{"ended": {}}'):
        file.write_text(text)
        with pytest.raises(BadInput, match=r"run\.calls\.json: damaged: bring it back from a copy, or begin a new run"):
            PauseJournal(file).resume({"shop": CallCounts(Settings(), 0)})

"""A driver that asks out of turn, for a step twice or in another's run; what changes between approval and start."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fedactors.cli.main import main
from fedactors.errors import BadInput, FedactorsError, Refused
from fedactors.federation.approval import as_tree, decide, kept_proposals
from fedactors.federation.hosting import Life, LocalActorHost
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SITE
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.runtime.compute import WallClock
from tests.federation.hostile_sites import Rogue
from tests.federation.test_runs import OTHERS
from tests.federation.world import BANK, CLINIC, LIMITS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(2, family="drivers")]
HORIZONTAL = OTHERS["horizontal"][1]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The clinic has a task of its own."""
    made = World(tmp_path_factory.mktemp("drivers"), (BANK, SHOP, CLINIC))
    clinic = made.path / CLINIC
    (clinic / "test.csv").write_text((made.path / BANK / "test.csv").read_text())
    task = 'task = { type = "binary", layout = "horizontal", classes = ["0", "1"], test = "test.csv" }'
    text = (clinic / SITE).read_text()
    (clinic / SITE).write_text(text.replace("[data.cured]\n", f"[data.cured]\n{task}\n"))
    for name in made.names:
        made.start(name, replace(LIMITS, piece=30.0))
    yield made
    made.stop()


@pytest.mark.parametrize("verb", ["connect", "load"])
def test_a_step_is_asked_for_once(world: World, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """One that ends late would bring the run back to before it was open, and its actors' counts to the checkpoint's."""
    honest, load, loads = FederatedRuntime._ask, LocalActorHost.load, []

    async def twice(self: FederatedRuntime, site: str, link: Any, asked: str, *args: Any) -> Any:
        if site == SHOP and asked == verb:
            await asyncio.gather(*(honest(self, site, link, asked, *args) for _ in range(2)))
        return await honest(self, site, link, asked, *args) if (site, asked) != (SHOP, verb) else (None,)

    async def counted(self: LocalActorHost, earlier: Any) -> None:
        loads.extend(name for name in self.actors if name == SHOP)
        await load(self, earlier)

    monkeypatch.setattr(FederatedRuntime, "_ask", twice)
    monkeypatch.setattr(LocalActorHost, "load", counted)
    before = len(world.refusals(SHOP))
    code = _run(world, BANK, f"{BANK}=patients,{SHOP}=cases")
    assert code in (2, 3)
    said = (f"driver: asks {SHOP} to {verb} a second time", f"driver: asks {SHOP} to {verb}, where the run is ")
    assert any(line.startswith(said) for line in world.refusals(SHOP)[before:])  # the first is under way, or done
    assert len(loads) <= 1


def _run(world: World, coordinator: str, data: str) -> int:
    answering = world.answer(names=(BANK, SHOP, CLINIC))
    flags = ("--federation", str(world.path / coordinator / "federation.toml"), "--out", str(world.path / "runs"))
    code = main(["run", "horizontal", *flags, "--data", data, "--format", "json", "--quiet", *HORIZONTAL])
    answering.join(0.5)
    return code


def test_a_driver_whose_run_is_over_drives_no_other_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank's stays connected, and asks in the clinic's run, which was approved for the clinic."""
    honest, told, is_over = FederatedRuntime._all, [], threading.Event()

    async def all_of(self: FederatedRuntime, verb: str, *args: Any, **more: Any) -> Any:
        if self._folder.name == CLINIC and verb == "finish":
            is_open.set()
            await asyncio.to_thread(asked.wait, 30)
        found = await honest(self, verb, *args, **more)
        if self._folder.name == BANK and verb == "end":
            is_over.set()
            await asyncio.to_thread(is_open.wait, 60)
            for what, given in (("drain", ()), ("snapshot", ("last", 1)), ("fail", ("for nothing",)), ("end", ())):
                try:
                    told.append((what, await self._sites[SHOP].ask((what, given), what)))
                except FedactorsError as error:
                    told.append((what, error))
            asked.set()
        return found

    is_open, asked = threading.Event(), threading.Event()
    monkeypatch.setattr(FederatedRuntime, "_all", all_of)
    codes: list[int] = []
    first = threading.Thread(target=lambda: codes.append(_run(world, BANK, f"{BANK}=patients,{SHOP}=cases")))
    first.start()
    assert is_over.wait(60)
    codes.append(_run(world, CLINIC, f"{CLINIC}=cured,{SHOP}=cases"))
    first.join(60)
    assert codes == [0, 0]
    found = dict(told)
    assert found.pop("fail") is None
    for one in found.values():
        assert isinstance(one, Refused), told
        assert "of a run that is not under way, or is another's" in one.message
    assert [text for text in world.refusals(SHOP) if text.startswith(f"{BANK}: asks for 'drain'")]


def test_who_hosts_whom_is_what_it_was_when_a_run_was_proposed(world: World) -> None:
    rogue = Rogue(world)
    tree = as_tree(replace(rogue.proposal, data={BANK: "customers", SHOP: "orders"}))
    file = world.path / SHOP / "federation.toml"
    text = file.read_text()

    def change_and_approve() -> None:
        end = time.monotonic() + 30
        while rogue.proposal.run not in kept_proposals(world.folder(SHOP)) and time.monotonic() < end:
            time.sleep(0.02)
        file.write_text(world.signed(text.replace("[hosts]\n", f'[hosts]\nbroker = "{CLINIC}"\n')))
        decide(world.folder(SHOP), kept_proposals(world.folder(SHOP))[rogue.proposal.run], approved=True)

    thread = threading.Thread(target=change_and_approve)
    thread.start()
    try:
        with pytest.raises(Refused, match=r"hosts: federation.toml names other hosts than when the run was proposed"):
            rogue.say(("propose", (tree,)))
    finally:
        thread.join(30)
    assert world.run(SHOP) is None


def test_a_clock_that_is_set_back_makes_no_run_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a center of NebulaFL does follows from `duration` by this clock."""
    clock = WallClock(time.time())
    clock.begin(time.time() - 100)
    before, real = clock.now(), time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    assert 100 <= before <= clock.now() < 160
    assert Life.OPEN > Life.LOADED


def test_trainings_that_are_said_to_take_for_ever_make_no_run_longer() -> None:
    """Where times of NebulaFL follow trainings, how long those take is what the driver says."""
    with pytest.raises(BadInput, match="rotation_interval: auto is not allowed with trainings of inf s"):
        NebulaFLConfig().timed(float("inf"))
    for said in (1e3, 1e300):
        times = NebulaFLConfig().timed(said).times
        assert (times.rotation_interval, times.duration) == (1000.0, 20_000.0)

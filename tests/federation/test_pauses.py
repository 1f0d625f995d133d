"""A run that pauses for a site that is lost: it goes on exactly once all are there, by the approval that it has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.config import build
from fedactors.errors import PartyLost
from fedactors.federation.runtime import FederatedRuntime
from fedactors.federation.site_folder import SITE, in_all, spent, taken_by
from fedactors.protocols.pubsub_vfl.algorithm import embedding_sigma
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.messages import RowCounts
from fedactors.protocols.pubsub_vfl.privacy import Counts, passive_records
from fedactors.runs.folder import RunFolder
from tests.federation.test_centers import SMALL as CENTERS
from tests.federation.test_centers import flags, write_centers
from tests.federation.test_going_on import MANY, after_rounds, runs, same, site
from tests.federation.test_quorum import restarted
from tests.federation.test_runs import OTHERS, SMALL, federated, last_line, simulated
from tests.federation.test_runs import command as coordinates
from tests.federation.world import BANK, CLINIC, NUM_ROWS, SHOP, World
from tests.hostile.test_pauses import pretends

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="pauses")]
_ = site  # a fixture
PAUSE = ("--return-timeout", "60")
PAUSING = ("glasu", "mtcd", "stcd", "dcpa", "rfl-admm", "rfl-sgd", "horizontal", "ditto")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from World.running(tmp_path, (BANK, SHOP))


def lines(world: World, name: str, what: str) -> list[dict[str, Any]]:
    return [line for line in world.audit(name) if line["what"] == what]


LONGER = {
    "pubsub-vfl": ("pubsub-vfl", (*MANY, "algorithm=vfl")),
    **{name: (OTHERS[name][0], (*OTHERS[name][1], "num_rounds=12")) for name in PAUSING},
}


@pytest.mark.parametrize("lost", [SHOP, BANK])
@pytest.mark.parametrize("what", LONGER)
def test_a_run_pauses_for_a_site_and_goes_on_exactly_without_a_new_approval(
    world: World, what: str, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol, words = LONGER[what]
    words = tuple({word.partition("=")[0]: word for word in words}.values())
    assert simulated(world, words, protocol) == 0
    expected = last_line(capsys)
    acting = after_rounds(world, 2, restarted(world, lost))
    code = federated(world, words, "--share-seed", "--seed", "7", *PAUSE, protocol=protocol)
    assert code == 0, capsys.readouterr().err
    acting.join(60)
    same(last_line(capsys), expected)
    assert len(runs(world)) == 2
    for name in (BANK, SHOP):
        assert len(lines(world, name, "approved")) == 1
        assert len(lines(world, name, "reopened")) == 1


def test_a_run_pauses_on_where_sites_are_lost_before_all_have_opened_it(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    protocol, words = LONGER["pubsub-vfl"]
    assert simulated(world, words, protocol) == 0
    expected, propose, lost = last_line(capsys), FederatedRuntime._propose, [1, 2]

    async def loses(self: FederatedRuntime) -> None:
        await propose(self)
        if self._is_paused and lost:
            lost.pop()
            raise PartyLost(SHOP, f"says of {BANK}: its site did not answer within 10 s")

    monkeypatch.setattr(FederatedRuntime, "_propose", loses)
    acting = after_rounds(world, 2, restarted(world, SHOP))
    code = federated(world, words, "--share-seed", "--seed", "7", *PAUSE, protocol=protocol)
    assert code == 0, capsys.readouterr().err
    acting.join(60)
    assert lost == []
    same(last_line(capsys), expected)
    for name in (BANK, SHOP):
        assert len(lines(world, name, "approved")) == 1
        assert len(lines(world, name, "reopened")) == 1


@pytest.mark.parametrize("lost", [SHOP, BANK])
def test_sums_under_masks_are_repeated_among_the_same_sites(
    tmp_path: Path, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    for name in world.names:
        world.start(name)
    words = ("num_rounds=12", "hidden_size=4", "secure_aggregation=true")
    try:
        assert simulated(world, words, "horizontal") == 0
        expected = last_line(capsys)
        acting = after_rounds(world, 2, restarted(world, lost))
        code = federated(world, words, "--share-seed", "--seed", "7", *PAUSE, protocol="horizontal")
        assert code == 0, capsys.readouterr().err
        acting.join(60)
        found = last_line(capsys)
        assert found["metrics"] == pytest.approx(expected["metrics"], abs=1e-5)
        assert [len(lines(world, name, "reopened")) for name in world.names] == [1, 1, 1]
    finally:
        world.stop()


def test_centers_pause_for_one_that_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NebulaFL follows the clock, so that no two runs are equal."""
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    write_centers(world)
    for name in world.names:
        world.start(name)
    words = (*(word for word in CENTERS if word != "duration=3"), *flags(world), "duration=15", "on_party_loss=stop")
    try:
        acting = after_rounds(world, 2, restarted(world, SHOP))
        assert federated(world, words, *PAUSE, protocol="nebulafl") == 0, capsys.readouterr().err
        acting.join(60)
        assert last_line(capsys)["metrics"]["test/accuracy"] > 0.6
        assert [len(lines(world, name, "reopened")) for name in world.names] == [1, 1, 1]
        assert [len(lines(world, name, "approved")) for name in world.names] == [1, 1, 1]
    finally:
        world.stop()


def test_a_run_pauses_for_a_site_that_was_killed(
    site: tuple[World, Callable[[], subprocess.Popen[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    world, start = site
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected, process = last_line(capsys), start()

    def kill() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        start()

    killing = after_rounds(world, 2, kill)
    code = federated(world, words, "--share-seed", "--seed", "7", "--return-timeout", "300")
    assert code == 0, capsys.readouterr().err
    killing.join(120)
    same(last_line(capsys), expected)
    assert len(lines(world, SHOP, "approved")) == 1
    assert len(lines(world, SHOP, "reopened")) == 1


def test_a_coordinator_that_was_killed_goes_on_when_it_is_started_again_by_the_same_command(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    command = [*coordinates(world, "pubsub-vfl"), "--resume", "auto", "--share-seed", "--seed", "7", *PAUSE, *words]
    answering = world.answer()
    driver = subprocess.Popen(
        [sys.executable, "-m", "fedactors", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        killing = after_rounds(world, 2, lambda: driver.send_signal(signal.SIGKILL))
        assert driver.wait(120) == -signal.SIGKILL
        killing.join(10)
        answering.join(60)
    finally:
        driver.kill()
        driver.wait(10)
    assert main(command) == 0, capsys.readouterr().err
    same(last_line(capsys), expected)
    for name in (BANK, SHOP):
        assert len(lines(world, name, "approved")) == 1
        assert [line["status"] for line in lines(world, name, "ended") if line["who"] == "site"] == [
            "failed",
            "finished",
        ]


NOISES = {
    "each epoch anew": ("embedding_mu=1", "bottom_training=private", "bottom_mu=2"),
    "once": ("embedding_mu=1", "bottom_training=frozen"),
}


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "pretended"])
@pytest.mark.parametrize("how", NOISES)
def test_a_budget_is_charged_for_what_was_drawn_before_and_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str, is_lost: bool
) -> None:
    """An epoch that was begun is drawn twice, by the site that stayed and by the one that was lost."""
    drawn: dict[str, dict[str, Counter[int]]] = {BANK: {}, SHOP: {}, CLINIC: {}}
    sites: dict[threading.Thread, str] = {}
    start, embed, step = World.start, Counts.embed, Counts.step

    def started(self: World, name: str, *limits: Any) -> None:
        start(self, name, *limits)
        sites[self._loops[name][1]] = name

    def count(self: Counts, kind: str, positions: Any) -> None:
        found = drawn[sites[threading.current_thread()]].setdefault(kind, Counter())
        found.update(self._rows[positions].tolist())

    def embedded(self: Counts, positions: Any) -> None:
        count(self, "embedded", positions)
        embed(self, positions)

    def stepped(self: Counts, positions: Any) -> None:
        count(self, "stepped", positions)
        step(self, positions)

    monkeypatch.setattr(World, "start", started)
    monkeypatch.setattr(Counts, "embed", embedded)
    monkeypatch.setattr(Counts, "step", stepped)
    world = World(tmp_path, (BANK, SHOP, CLINIC))
    for name, rows in ((SHOP, "orders"), (CLINIC, "visits")):
        file, head = world.path / name / SITE, f'"{rows}.csv"\nid = "id"\n'
        file.write_text(file.read_text().replace(head, f"{head}budget = {{ epsilon = 900.0, delta = 1e-4 }}\n", 1))
    for name in world.names:
        world.start(name)
    words = ("num_epochs=8", *SMALL[1:], "algorithm=vfl", "num_parties=3", "standardisation=none", *NOISES[how])
    try:
        if is_lost:
            acting = after_rounds(world, 3, restarted(world, SHOP))
        else:
            lost = {4}

            def loses(epoch: int) -> bool:
                is_lost = epoch in lost
                lost.discard(epoch)
                return is_lost

            pretends(monkeypatch, keeps=lambda part, epoch: part > 1 or epoch < 4, loses=loses)
        budgets = ("--budget", "shop=800:1e-5", "--budget", "clinic=800:1e-5")
        code = federated(world, words, *budgets, *PAUSE)
        if is_lost:
            acting.join(60)
        assert code == 0, capsys.readouterr().err
        assert len(runs(world)) == 2
        config = build(PubSubVflConfig, dict(word.split("=") for word in words))
        for name in (SHOP, CLINIC):
            counts = [max(drawn[name].get(kind, Counter({0: 0})).values()) for kind in ("embedded", "stepped")]
            assert counts[0] == 2 if how == "once" else 8 <= counts[0] <= 10
            charged = in_all(spent(world.folder(name).log())[{SHOP: "orders", CLINIC: "visits"}[name]])
            num_embedded, num_stepped = (np.array([count]) for count in counts)
            of = RowCounts(num_embedded, num_stepped, 0, 0, interrupted=False)
            records = passive_records(config, name, of, embedding_sigma(config, NUM_ROWS), 0)
            assert charged == in_all(taken_by(name, records)), counts
            assert 0 < charged.epsilon < 800
            folder = RunFolder.open(
                sorted((world.path / name / "runs").iterdir(), key=lambda one: one.stat().st_ctime)[-1]
            )
            assert main(["audit", str(folder.path)]) == 0
            assert "no guarantee" not in capsys.readouterr().out
    finally:
        world.stop()

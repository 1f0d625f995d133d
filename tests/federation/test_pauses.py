"""A run that pauses for a site that is lost: it goes on exactly once all are there, by the approval that it has."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedactors.cli.main import main
from fedactors.config import build
from fedactors.federation.site_folder import SITE, in_all, spent, taken_by
from fedactors.protocols.pubsub_vfl.algorithm import embedding_sigma
from fedactors.protocols.pubsub_vfl.config import PubSubVflConfig
from fedactors.protocols.pubsub_vfl.privacy import Counts, RowCounts, passive_records
from fedactors.runs.folder import RunFolder
from tests.federation.test_going_on import MANY, after_rounds, runs, same
from tests.federation.test_quorum import restarted
from tests.federation.test_runs import SMALL, federated, last_line, simulated
from tests.federation.world import BANK, CLINIC, NUM_ROWS, SHOP, World

pytestmark = [pytest.mark.slow, pytest.mark.drawn(3, family="pauses")]
PAUSE = ("--return-timeout", "60")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from World.running(tmp_path, (BANK, SHOP))


def lines(world: World, name: str, what: str) -> list[dict[str, Any]]:
    return [line for line in world.audit(name) if line["what"] == what]


@pytest.mark.parametrize("lost", [SHOP, BANK])
def test_a_run_pauses_for_a_site_and_goes_on_exactly_without_a_new_approval(
    world: World, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*MANY, "algorithm=vfl")
    assert simulated(world, words) == 0
    expected = last_line(capsys)
    acting = after_rounds(world, 2, restarted(world, lost))
    assert federated(world, words, "--share-seed", "--seed", "7", *PAUSE) == 0, capsys.readouterr().err
    acting.join(60)
    same(last_line(capsys), expected)
    assert len(runs(world)) == 2
    for name in (BANK, SHOP):
        assert len(lines(world, name, "approved")) == 1
        assert len(lines(world, name, "reopened")) == 1


NOISES = {
    "each epoch anew": ("embedding_mu=1", "bottom_training=private", "bottom_mu=2"),
    "once": ("embedding_mu=1", "bottom_training=frozen"),
}


@pytest.mark.parametrize("how", NOISES)
def test_a_budget_is_charged_for_what_was_drawn_before_and_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: str
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
        acting = after_rounds(world, 3, restarted(world, SHOP))
        budgets = ("--budget", "shop=800:1e-5", "--budget", "clinic=800:1e-5")
        code = federated(world, words, *budgets, *PAUSE)
        acting.join(60)
        assert code == 0, capsys.readouterr().err
        assert len(runs(world)) == 2
        config = build(PubSubVflConfig, dict(word.split("=") for word in words))
        for name in (SHOP, CLINIC):
            counts = [max(drawn[name].get(kind, Counter({0: 0})).values()) for kind in ("embedded", "stepped")]
            assert counts[0] == 2 if how == "once" else 8 <= counts[0] <= 10
            charged = in_all(spent(world.folder(name).log())[{SHOP: "orders", CLINIC: "visits"}[name]])
            of = RowCounts(*(np.array([count]) for count in counts), 0, 0, False)
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

"""A round done twice, before a cut and after it: its two sums are among the same sites, or there is no second one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedactors.errors import BadInput, FedactorsError
from fedactors.protocols.horizontal import algorithm
from fedactors.protocols.horizontal.data import load_data
from fedactors.protocols.horizontal.run import run
from fedactors.runs.folder import EVENTS, RunFolder
from fedactors.runs.recorder import FolderRecorder
from fedactors.runtime.interface import Snapshot
from fedactors.runtime.simulation.runtime import SimulatedRuntime
from fedactors.secure_sums.actors import SecureSums
from tests.protocols.horizontal.federation import changed, cut, play

CONFIG = changed(num_rounds=3, local_epochs=1, num_training=120, secure_aggregation=True)


@pytest.fixture
def seen(monkeypatch):
    """What an honest but curious server reads: (whose, sum), and what the sites made, by round."""
    totals, made = [], []
    total, summand = SecureSums.total, algorithm.summand

    async def listen(self, parts, point, work):
        found = await total(self, parts, point, work)
        totals.append((found[1], found[0]))
        return found

    def keep(change, weight, order, limit):
        made.append((order.round, summand(change, weight, order, limit)))
        return made[-1][1]

    monkeypatch.setattr(SecureSums, "total", listen)
    monkeypatch.setattr(algorithm, "summand", keep)
    return totals, made


@pytest.mark.slow
def test_a_site_lost_after_a_resume_does_not_leave_its_part_in_the_difference_of_two_sums(seen):
    totals, made = seen
    _, _, runtime = play(CONFIG)
    seconds, (_, whole) = runtime.usage().seconds, totals[-1]
    parts = [part for number, part in made if number == 3]
    _, snapshot = cut(CONFIG, 2)
    refused = []
    for share in (0.75, 0.8, 0.85):
        totals.clear()
        made.clear()
        try:
            play(CONFIG, resume=Snapshot(snapshot.actors, snapshot.driver), faults={"client-2": seconds * share})
        except FedactorsError as error:
            refused.append(str(error))
        assert {whose for whose, _ in totals} <= {tuple(f"client-{k}" for k in range(6))}
        assert not any(np.abs(whole - again - part).max() < 1e-3 for _, again in totals for part in parts)
    assert len(refused) >= 2
    assert all("together, and without client-2 a sum would show" in line for line in refused)


@pytest.mark.slow
def test_a_resumed_run_among_the_same_sites_gives_the_same_sum(seen):
    totals, _ = seen
    play(CONFIG)
    before = totals[-1][1]
    _, snapshot = cut(CONFIG, 2)
    totals.clear()
    play(CONFIG, resume=Snapshot(snapshot.actors, snapshot.driver))
    assert len(totals) == 1
    assert np.abs(totals[0][1] - before).max() < 1e-3


class Killed(BaseException):
    """The driver's end, without a word to anybody."""


@pytest.mark.slow
@pytest.mark.parametrize("masked", [True, False])
def test_a_site_lost_before_the_cut_does_not_come_back_into_the_same_round(masked, tmp_path, monkeypatch):
    """The first sum of round 3 would be without it, the second with it."""
    config = changed(num_rounds=3, local_epochs=1, num_training=120, secure_aggregation=masked)
    _, _, runtime = play(config)
    resolved = {"schema_version": 1, "scenario": "s", "protocol": "horizontal", "runtime": "simulated", "seed": 0}
    resolved |= {"data": "digits", "options": {}, "config": {}, "headline": {"name": "accuracy", "mode": "max"}}

    def begin(parent=None):
        return FolderRecorder(RunFolder.create(str(tmp_path), "s", 0, resolved, parent=parent), parent=parent)

    recorder = begin()
    save = recorder.save_checkpoint

    def until_the_third(label, actors, driver):
        if recorder.num_rounds == 3:
            raise Killed
        save(label, actors, driver)

    monkeypatch.setattr(recorder, "save_checkpoint", until_the_third)
    lossy = SimulatedRuntime(seed=0, recorder=recorder, faults={"client-2": runtime.usage().seconds * 0.8})
    with pytest.raises(Killed):
        lossy.execute(lambda: run(config, load_data(config, "digits", 0), lossy))
    lines = [json.loads(line) for line in (recorder.folder.path / EVENTS).read_text().splitlines()]
    assert "client-2" in {line["actor"] for line in lines if line.get("kind") == "lost"}
    parent = RunFolder.open(str(recorder.folder.path))
    if masked:
        with pytest.raises(BadInput, match=r"client-2 was lost after the checkpoint.*begin anew"):
            begin(parent)
    else:
        assert begin(parent).load_checkpoint() is not None

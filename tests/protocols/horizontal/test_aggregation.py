"""Robust means of changes: their formulas, and a client that poisons."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.protocols.horizontal.actors import ClientProcess
from fedactors.protocols.horizontal.aggregation import krum_chosen, robust_mean
from fedactors.protocols.horizontal.config import HorizontalConfig
from tests.protocols.horizontal.federation import changed, play

CHANGES = [np.array([float(value), -float(value)]) for value in (1, 2, 3, 4, 100)]
ROBUST = ("median", "trimmed-mean", "multi-krum")
MORE = {"num_rounds": 6, "num_training": 600, "dirichlet": None, "learning_rate": 0.2}


def test_each_rule_by_hand():
    assert robust_mean(changed(aggregation="median"), CHANGES) == pytest.approx([3, -3])
    assert robust_mean(changed(aggregation="trimmed-mean"), CHANGES) == pytest.approx([3, -3])
    assert robust_mean(changed(aggregation="multi-krum"), CHANGES) == pytest.approx([2.5, -2.5])
    assert robust_mean(changed(aggregation="median"), CHANGES[:4]) == pytest.approx([2.5, -2.5])


def test_krum_scores_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    changes = rng.normal(size=(7, 5)) * rng.uniform(0.5, 3, (7, 1))
    scores = []
    for one in range(7):
        distances = sorted(float(((changes[one] - changes[other]) ** 2).sum()) for other in range(7) if other != one)
        scores.append(sum(distances[: 7 - 2 - 2]))
    assert krum_chosen(changes, 2).tolist() == sorted(np.argsort(scores)[:5].tolist())


@pytest.mark.parametrize("name", ROBUST)
def test_a_change_that_is_not_finite_is_left_out(name):
    found = robust_mean(changed(aggregation=name), [*CHANGES[:4], np.array([np.nan, np.inf])])
    assert np.isfinite(found).all()
    assert 2 <= found[0] <= 3


@pytest.mark.parametrize(("name", "fewest"), [("trimmed-mean", 5), ("multi-krum", 7)])
def test_too_few_sites_are_refused(name, fewest):
    config = changed(aggregation=name, num_byzantine=2)
    assert len(robust_mean(config, [*CHANGES, *CHANGES][:fewest])) == 2
    with pytest.raises(BadInput, match=f"aggregation: {name} with num_byzantine=2 needs {fewest} sites"):
        robust_mean(config, [*CHANGES, *CHANGES][: fewest - 1])


def test_the_mean_fails_under_a_poisoned_client_and_robust_means_hold(monkeypatch):
    honest, _, _ = play(changed(**MORE))
    train = ClientProcess._train

    async def poisoned(self, order):
        change = await train(self, order)
        return dataclasses.replace(change, change=-50 * change.change) if self.name == "client-3" else change

    monkeypatch.setattr(ClientProcess, "_train", poisoned)
    accuracy = {name: play(changed(**MORE, aggregation=name))[0].metrics["test/accuracy"] for name in ("mean", *ROBUST)}
    assert honest.metrics["test/accuracy"] > 0.8
    assert accuracy["mean"] < 0.5
    assert all(accuracy[name] > honest.metrics["test/accuracy"] - 0.08 for name in ROBUST), accuracy


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"secure_aggregation": True}, "secure_aggregation: the server reads sums only"),
        ({"algorithm": "scaffold"}, "algorithm=scaffold"),
        ({"weighting": "samples"}, "weighting=samples"),
    ],
)
def test_what_robust_means_cannot_join_is_refused(words, why):
    with pytest.raises(BadInput, match=f"aggregation: median is not allowed with {why}"):
        build(HorizontalConfig, {"aggregation": "median", **words})

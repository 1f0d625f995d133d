from __future__ import annotations

import math
import random

import pytest

from fedactors.runs.compare import paired_difference
from scenarios.paper.pairs import paired_ratio


def test_two_seeds_by_hand():
    # gaps 0 and 3: mean 1.5, deviation 3 / sqrt(2), t(1, 97.5 %) = 12.706205: half width 12.706205 * 1.5
    found = paired_difference({0: 1.0, 1: 5.0}, {1: 2.0, 0: 1.0})
    assert (found["n"], found["difference"]) == (2, 1.5)
    assert found["interval"] == pytest.approx([1.5 - 19.0593071, 1.5 + 19.0593071])


def test_seeds_that_only_one_has_do_not_count():
    assert paired_difference({0: 1.0, 7: 100.0}, {0: 0.5, 8: -100.0}) == {"n": 1, "difference": 0.5, "interval": None}
    assert paired_difference({0: 1.0}, {1: 1.0}) == {"n": 0, "difference": None, "interval": None}


@pytest.mark.parametrize("pairs", [3, 5])
def test_a_difference_covers_the_truth_as_often_as_it_says(pairs):
    stream, hits = random.Random(1), 0
    for _ in range(1000):
        ours = {seed: stream.gauss(0.3, 1.0) for seed in range(pairs)}
        low, high = paired_difference(ours, dict.fromkeys(ours, 0.0))["interval"]
        hits += low <= 0.3 <= high
    assert 0.93 < hits / 1000 < 0.97


def test_a_ratio_bears_what_was_not_reached():
    ours: dict[int, float | None] = {0: 1.0, 1: 2.0, 2: None, 3: 3.0, 4: None}
    theirs: dict[int, float | None] = {0: 2.0, 1: None, 2: 5.0, 3: 3.0, 4: None}
    found = paired_ratio(ours, theirs)
    # pairs: 0.5, theirs censored (0), ours censored (inf), 1; in the last neither says anything
    assert {name: found[name] for name in ("n", "neither", "ours_censored", "theirs_censored")} == {
        "n": 4,
        "neither": 1,
        "ours_censored": 1,
        "theirs_censored": 1,
    }
    assert found["ratio"] == 0.5
    assert found["interval"] == [0.0, math.inf]
    assert paired_ratio({0: None}, {0: None})["ratio"] is None


@pytest.mark.slow
def test_a_ratio_covers_the_truth_about_as_often_as_it_says():
    stream, hits = random.Random(1), 0
    for trial in range(200):
        theirs: dict[int, float | None] = {seed: stream.lognormvariate(0, 1) for seed in range(10)}
        ours = {seed: (value or 1.0) * 0.8 * stream.lognormvariate(0, 0.2) for seed, value in theirs.items()}
        low, high = paired_ratio(ours, theirs, num_samples=400, seed=trial)["interval"]
        hits += low <= 0.8 <= high
    assert hits / 200 > 0.9

import math
import random

import pytest

from fedactors.records.paired import paired_difference, paired_ratio


def test_two_seeds_by_hand():
    # gaps 0 and 3: the four samples have the means 0, 1.5, 1.5, 3; 2.5 % and 97.5 % of four are the first and the last
    found = paired_difference({0: 1.0, 1: 5.0}, {1: 2.0, 0: 1.0})
    assert found == {"n": 2, "difference": 1.5, "interval": [0.0, 3.0]}
    # at a level of one half a quarter of them may lie below and above: the first, 0, and the third, 1.5
    assert paired_difference({0: 1.0, 1: 5.0}, {0: 1.0, 1: 2.0}, level=0.5)["interval"] == [0.0, 1.5]


def test_three_seeds_by_hand():
    # gaps 0, 0, 9: the 27 samples hold 9 never (8 of them), once (12), twice (6), always (1): means 0, 3, 6, 9
    found = paired_difference({0: 1.0, 1: 2.0, 2: 12.0}, {0: 1.0, 1: 2.0, 2: 3.0}, level=0.90)
    assert found["difference"] == 3.0
    # 5 % of 27 is 1.35: the second smallest, 0; 95 % is 25.65: the 26th, the last of the sixes
    assert found["interval"] == [0.0, 6.0]
    assert paired_difference({0: 1.0, 1: 2.0, 2: 12.0}, {0: 1.0, 1: 2.0, 2: 3.0}, level=0.95)["interval"] == [0.0, 9.0]


def test_seeds_that_only_one_has_do_not_count():
    assert paired_difference({0: 1.0, 7: 100.0}, {0: 0.5, 8: -100.0}) == {"n": 1, "difference": 0.5, "interval": None}
    assert paired_difference({0: 1.0}, {1: 1.0}) == {"n": 0, "difference": None, "interval": None}


def test_many_seeds_are_drawn_from_and_the_draw_is_fixed():
    ours = {seed: float(seed % 2) for seed in range(40)}
    theirs = dict.fromkeys(ours, 0.0)
    found = paired_difference(ours, theirs)
    assert found == paired_difference(ours, theirs)
    # twenty of forty ones: the mean is binomial, its deviation sqrt(0.25 / 40) = 0.079, so +- 1.96 of them
    assert found["interval"] == pytest.approx([0.345, 0.655], abs=0.03)


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


def test_a_ratio_covers_the_truth_about_as_often_as_it_says():
    stream, hits = random.Random(1), 0
    for trial in range(200):
        theirs: dict[int, float | None] = {seed: stream.lognormvariate(0, 1) for seed in range(10)}
        ours = {seed: (value or 1.0) * 0.8 * stream.lognormvariate(0, 0.2) for seed, value in theirs.items()}
        low, high = paired_ratio(ours, theirs, num_samples=400, seed=trial)["interval"]
        hits += low <= 0.8 <= high
    assert hits / 200 > 0.9

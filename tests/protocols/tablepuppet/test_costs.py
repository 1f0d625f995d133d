from __future__ import annotations

import pytest

from fedactors.protocols.tablepuppet.costs import US_UK, elements_per_epoch, epoch_cost, rounds_per_epoch

N, ROWS, ALPHA = 1_786_513, (850_177, 6_170, 6_040), (2_000_000, 500_000, 518_998)


def cost(algorithm, alpha=None):
    rounds = rounds_per_epoch(algorithm, N, 10_240, 10)
    return epoch_cost(rounds, elements_per_epoch(algorithm, N, ROWS, alpha), 1, US_UK)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        ("vfl-admm", 1.657),
        ("rfl-admm-v", 0.381),
        ("vfl-sgd", 25.32),
        ("rfl-sgd-v", 24.04),
        ("rfl-sgd", 47.85),
        ("rfl-admm", 1.741),
    ],
)
def test_the_published_epoch_times_are_reproduced_within_one_percent(algorithm, seconds):
    assert cost(algorithm).seconds == pytest.approx(seconds, rel=0.01)


def test_the_true_sgd_count_is_that_of_touched_rows():
    assert sum(ALPHA) == 3_018_998
    assert cost("rfl-sgd-v", ALPHA).seconds == pytest.approx(24.66, rel=0.001)


def test_four_times_less_time_is_six_times_fewer_bytes():
    vertical, relational = cost("vfl-admm"), cost("rfl-admm-v")
    assert vertical.seconds / relational.seconds == pytest.approx(4.35, abs=0.05)
    assert vertical.num_bytes / relational.num_bytes == pytest.approx(6.2, abs=0.05)


def test_centralised_training_communicates_nothing():
    assert cost("centralised").seconds == 0

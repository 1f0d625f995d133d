import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.nebulafl.selection import (
    ContainerTable,
    curiosity_rewards,
    draw,
    performance_rewards,
    random_probabilities,
    selection_probabilities,
)

SCORES = np.array([100.0, 200.0, 300.0, 500.0])
COUNTS = np.array([4, 1, 9, 1])
IDLE = np.zeros(4, dtype=bool)


@pytest.mark.parametrize(("gap", "expected"), [(-3, (0.345, 0.311, 0.212, 0.131)), (3, (0.119, 0.217, 0.241, 0.422))])
def test_probabilities_by_hand(gap, expected):
    np.testing.assert_allclose(selection_probabilities(SCORES, COUNTS, IDLE, gap), expected, atol=5.1e-4)


def test_the_print_favours_slow_containers_for_planets_that_lag():
    counts = np.ones(4, dtype=int)
    printed = selection_probabilities(SCORES, counts, IDLE, -3, paper_literal=True)
    sound = selection_probabilities(SCORES, counts, IDLE, -3)
    assert (np.diff(printed) > 0).all()
    assert (np.diff(sound) < 0).all()
    assert printed.sum() == pytest.approx(1)


def test_printed_rewards_by_hand():
    np.testing.assert_allclose(performance_rewards(SCORES, -3, paper_literal=True), [-3.0, -3.6, -4.2, -5.4])
    np.testing.assert_allclose(curiosity_rewards(COUNTS, paper_literal=True), [0.5, 1, 1 / 3, 1])


def test_printed_curiosity_takes_the_unseen_first():
    counts = np.array([0, 3, 0, 1])
    busy = np.array([True, False, False, False])
    np.testing.assert_array_equal(selection_probabilities(SCORES, counts, busy, 2, paper_literal=True), [0, 0, 1, 0])


tables = st.integers(1, 8).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(0.01, 1e5), min_size=n, max_size=n),
        st.lists(st.integers(0, 100), min_size=n, max_size=n),
        st.lists(st.booleans(), min_size=n, max_size=n),
    )
)


@given(tables, st.floats(-50, 50), st.booleans())
def test_probabilities_are_probabilities(table, gap, paper_literal):
    scores, counts, busy = (np.array(column) for column in table)
    busy[0] = False
    made = selection_probabilities(scores, counts, busy, gap, paper_literal=paper_literal)
    assert (made >= 0).all()
    assert made.sum() == pytest.approx(1)
    assert (made[busy] == 0).all()
    if not paper_literal:
        assert (made[~busy] > 0).all()


@given(st.lists(st.floats(1, 1e4), min_size=2, max_size=8, unique=True), st.floats(0.1, 50), st.integers(0, 9))
def test_probabilities_follow_the_scores_at_equal_counts(scores, gap, count):
    ordered = np.sort(np.array(scores))
    counts, idle = np.full(len(scores), count), np.zeros(len(scores), dtype=bool)
    assert (np.diff(selection_probabilities(ordered, counts, idle, gap)) >= 0).all()
    assert (np.diff(selection_probabilities(ordered, counts, idle, -gap)) <= 0).all()
    np.testing.assert_allclose(selection_probabilities(ordered, counts, idle, 0.0), 1 / len(scores))


def test_seldom_chosen_containers_are_preferred():
    made = selection_probabilities(np.full(3, 10.0), np.array([0, 5, 50]), np.zeros(3, dtype=bool), 0.0)
    assert made[0] > made[1] > made[2]


def test_nobody_idle_is_an_error():
    with pytest.raises(ValueError, match="idle"):
        selection_probabilities(SCORES, COUNTS, ~IDLE, 1)
    with pytest.raises(ValueError, match="idle"):
        random_probabilities(~IDLE)


@given(tables, st.floats(0, 1, exclude_max=True))
def test_a_draw_never_falls_on_a_busy_container(table, uniform):
    busy = np.array(table[2])
    busy[-1] = False
    assert not busy[draw(random_probabilities(busy), uniform)]


def test_draws_have_the_given_frequencies():
    probabilities = np.array([0.2, 0.0, 0.5, 0.3])
    drawn = [draw(probabilities, u) for u in np.linspace(0, 1, 1000, endpoint=False)]
    np.testing.assert_array_equal(np.bincount(drawn, minlength=4), [200, 0, 500, 300])


def table() -> ContainerTable:
    return ContainerTable(np.array([[300.0, 30.0], [100.0, 10.0]]))


def test_scores_are_predictions_until_measured():
    containers = table()
    np.testing.assert_array_equal(containers.scores, [200, 20])
    containers.occupy(0)
    containers.finished(0, hardware=0, seconds=500.0)
    np.testing.assert_array_equal(containers.times(0), [500, 100])
    np.testing.assert_array_equal(containers.scores, [300, 20])
    containers.occupy(0)
    containers.finished(0, hardware=0, seconds=300.0)
    np.testing.assert_array_equal(containers.times(0), [400, 100])


def test_busy_and_lost_containers_are_not_chosen():
    containers = table()
    assert containers.choose(0.0, 0.0) == 0
    assert containers.choose(0.0, 0.0) == 1
    assert containers.choose(0.0, 0.0) is None
    containers.lose(0)
    assert containers.choose(0.0, 0.0) is None
    with pytest.raises(ValueError, match="not idle"):
        containers.occupy(0)
    containers.regain(0)
    assert containers.choose(0.0, 0.99, random=True) == 0
    np.testing.assert_array_equal(containers.counts, [2, 1])
    assert containers.runs.sum() == 0


@given(st.lists(st.tuples(st.sampled_from("cfl"), st.floats(0, 0.999)), max_size=60))
def test_no_container_is_ever_given_twice(events):
    containers = ContainerTable(np.arange(1.0, 11.0).reshape(2, 5))
    training: set[int] = set()
    for kind, number in events:
        if kind == "c":
            chosen = containers.choose(number * 4 - 2, number)
            assert (chosen is None) == (len(training | set(np.flatnonzero(containers.lost))) == 5)
            if chosen is not None:
                assert chosen not in training
                training.add(chosen)
        elif training:
            one = sorted(training)[int(number * len(training))]
            training.remove(one)
            if kind == "f":
                containers.finished(one, 0, 5.0)
            else:
                containers.lose(one)
                containers.regain(one)
        assert set(np.flatnonzero(containers.busy)) == training


def test_a_snapshot_gives_the_same_future():
    first, second = table(), table()
    first.choose(1.0, 0.4)
    second.load_state_dict(first.state_dict())
    first.finished(0, 1, 50.0) if first.busy[0] else first.finished(1, 1, 50.0)
    assert second.busy.sum() == 1
    assert second.runs.sum() == 0

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedactors.learning.local_training import LocalTraining, train_locally
from fedactors.learning.network import initial_vector
from fedactors.protocols.nebulafl import algorithm
from fedactors.protocols.nebulafl.algorithm import (
    curiosity_rewards,
    draw,
    performance_rewards,
    random_probabilities,
    rotation_partners,
    rotation_target,
    selection_probabilities,
)
from tests.learning.test_local_training import DIGITS, samples

# --- planets and versions ---

numbers = st.floats(-1e3, 1e3, width=32)
vectors = arrays(np.float32, 4, elements=numbers)


def vector(value: float) -> np.ndarray:
    return np.full(3, value, dtype=np.float32)


@pytest.mark.parametrize(
    ("planet", "stellar", "version", "stellar_version", "decay", "expected"),
    [
        (1, 0, 12, 4, 1, 8 / 9),
        (1, 0, 3, 4, 1, 5 / 6),
        (1, 0, 3, 4, 0.5, 10 / 11),
        (2, -1, 20, 5.5, 0.75, 1.8524590),
    ],
)
def test_planet_update_by_hand(planet, stellar, version, stellar_version, decay, expected):
    made = algorithm.planet_update(vector(planet), vector(stellar), version, stellar_version, decay)
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    assert made.dtype == np.float32


def test_master_by_hand():
    np.testing.assert_allclose(algorithm.master_model([vector(1), vector(3)], [1, 2]), 7 / 3, rtol=1e-6)
    np.testing.assert_allclose(algorithm.master_model([vector(1), vector(3)], [0, 0]), 2.0)


def test_decay_falls_from_one_to_a_half_and_stays():
    at = [algorithm.stellar_decay(now, 100.0, 1000.0) for now in (100, 600, 1100, 5000)]
    assert at == [1.0, 0.75, 0.5, 0.5]


def test_a_lagging_center_is_sped_up_by_default_and_slowed_by_the_print():
    offset = 4.0 - 10.0  # of the own mean version over the stellar model's
    assert algorithm.version_gap(4, 4.0, offset) == -6
    assert algorithm.version_gap(4, 4.0, offset, paper_literal=True) == 6


@pytest.mark.slow
@given(vectors, vectors, st.integers(0, 60), st.floats(0, 60), st.floats(0, 1))
def test_planet_update_stays_between_its_inputs(planet, stellar, version, stellar_version, decay):
    made = algorithm.planet_update(planet, stellar, version, stellar_version, decay)
    assert (made >= np.minimum(planet, stellar)).all()
    assert (made <= np.maximum(planet, stellar)).all()


@given(st.lists(st.tuples(vectors, st.integers(0, 50)), min_size=1, max_size=6))
@settings(max_examples=60)
def test_master_stays_between_its_planets(planets):
    models, versions = [m for m, _ in planets], [v for _, v in planets]
    made = algorithm.master_model(models, versions)
    slack = 1e-6 * (1 + np.abs(models).max())
    assert (made >= np.min(models, axis=0) - slack).all()
    assert (made <= np.max(models, axis=0) + slack).all()


def test_synchronous_planets_of_one_center_with_equal_versions_are_fedavg():
    trained = [np.array([1.0, 5.0, -2.0], np.float32), np.array([3.0, 1.0, 4.0], np.float32)]
    np.testing.assert_allclose(algorithm.master_model(trained, [7, 7]), np.mean(trained, axis=0), rtol=1e-6)


def test_one_planet_that_ignores_its_stellar_model_is_sequential_sgd():
    x, y = samples()
    stellar = planet = sequential = initial_vector(DIGITS, 0)
    training = LocalTraining(num_epochs=1)
    for version in range(3):
        trained = train_locally(DIGITS, planet, x, y, seed=version, training=training).vector
        planet = algorithm.planet_update(trained, stellar, version, 0.0, decay=0.0)
        sequential = train_locally(DIGITS, sequential, x, y, seed=version, training=training).vector
    np.testing.assert_array_equal(planet, sequential)


# --- which container ---

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


# --- which hardware ---

PRICES = np.array([0.12, 0.30, 0.60])
TIMES = np.array([300.0, 120.0, 100.0])


def test_assignment_by_hand():
    np.testing.assert_allclose(algorithm.cost_factors(PRICES), [-0.36667, -0.06667, 0.43333], atol=1e-5)
    np.testing.assert_allclose(algorithm.time_factors(TIMES, -2), [0.84444, -0.35556, -0.48889], atol=1e-5)
    assert algorithm.assign(PRICES, TIMES, -2) == 1
    assert algorithm.assign(PRICES, TIMES, 2) == 0


def test_the_print_gives_slow_hardware_to_planets_that_lag():
    assert algorithm.assign(PRICES, TIMES, -2, paper_literal=True) == 0


def test_without_a_factor():
    assert algorithm.assign(PRICES, TIMES, -2, use_cost=False) == 2
    assert algorithm.assign(PRICES, TIMES, -2, use_time=False) == 0
    assert algorithm.assign(PRICES, TIMES, 0) == 0


def test_policies():
    def chosen(policy, uniform=0.0):
        return algorithm.choose_type(policy, PRICES, TIMES, -2, uniform)

    assert [chosen("cheapest"), chosen("fastest"), chosen("nebulafl")] == [0, 2, 1]
    assert [chosen("random", u) for u in (0.0, 0.34, 0.99)] == [0, 1, 2]


def test_ties_go_to_the_cheaper():
    assert algorithm.choose_type("fastest", np.array([2.0, 1.0]), np.array([5.0, 5.0]), 0, 0) == 1
    assert algorithm.assign(np.array([2.0, 1.0]), np.array([5.0, 5.0]), 3, use_cost=False) == 1


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 1e4)), min_size=1, max_size=6), st.floats(-20, 20))
def test_a_single_best_type_is_always_taken(types, gap):
    prices, times = (np.array(column) for column in zip(*types, strict=True))
    index = algorithm.assign(prices, times, gap)
    sums = algorithm.cost_factors(prices) + algorithm.time_factors(times, gap)
    assert sums[index] == pytest.approx(sums.min(), abs=1e-9)


def test_cold_start():
    made = algorithm.predicted_times([20, 40], 2, np.array([10.0, 5.0]))
    np.testing.assert_array_equal(made, [[4, 8], [8, 16]])
    assert algorithm.predicted_times([600], 5, np.array([20.0])) == 150.0


def test_run_times_are_normal_and_never_zero():
    generator = np.random.default_rng(0)
    drawn = np.array([algorithm.run_time(200.0, 0.05, generator) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(200, rel=0.005)
    assert drawn.std() == pytest.approx(10, rel=0.05)
    assert min(algorithm.run_time(1.0, 5.0, generator) for _ in range(200)) == pytest.approx(0.1)
    assert algorithm.run_time(7.0, 0.0, generator) == 7.0


# --- rotation ---


def test_targets_of_four_centers():
    targets = [[rotation_target(i, r, 4) for i in (1, 2, 3, 4)] for r in range(5)]
    assert targets == [[2, 3, 4, 1], [3, 4, 1, 2], [4, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 1]]


@given(st.integers(1, 12), st.integers(0, 100))
def test_every_rotation_is_a_bijection(num_centers, rotation):
    centers = [f"center-{i}" for i in range(num_centers)]
    partners = rotation_partners(centers, rotation)
    assert sorted(partners) == sorted(partners.values()) == sorted(centers)
    self_turn = rotation % num_centers == num_centers - 1
    assert all((a == b) == self_turn for a, b in partners.items())


@pytest.mark.parametrize("num_centers", [1, 2, 4, 6, 8])
def test_a_cycle_meets_everyone_once(num_centers):
    centers = [str(i) for i in range(num_centers)]
    sent = [pair for r in range(num_centers) for pair in algorithm.rotation_partners(centers, r).items()]
    crossing = [(sender, receiver) for sender, receiver in sent if sender != receiver]
    assert len(crossing) == num_centers * (num_centers - 1) == len(set(crossing))


def test_a_lost_center_is_left_out():
    assert rotation_partners(["1", "3", "4"], 0) == {"1": "3", "3": "4", "4": "1"}

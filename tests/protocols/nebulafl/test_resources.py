import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedactors.errors import BadInput
from protocols.nebulafl import resources
from protocols.nebulafl.resources import HardwareType, ResourcePool

PRICES = np.array([0.12, 0.30, 0.60])
TIMES = np.array([300.0, 120.0, 100.0])


def test_assignment_by_hand():
    np.testing.assert_allclose(resources.cost_factors(PRICES), [-0.36667, -0.06667, 0.43333], atol=1e-5)
    np.testing.assert_allclose(resources.time_factors(TIMES, -2), [0.84444, -0.35556, -0.48889], atol=1e-5)
    assert resources.assign(PRICES, TIMES, -2) == 1
    assert resources.assign(PRICES, TIMES, 2) == 0


def test_the_print_gives_slow_hardware_to_planets_that_lag():
    assert resources.assign(PRICES, TIMES, -2, paper_literal=True) == 0


def test_without_a_factor():
    assert resources.assign(PRICES, TIMES, -2, use_cost=False) == 2
    assert resources.assign(PRICES, TIMES, -2, use_time=False) == 0
    assert resources.assign(PRICES, TIMES, 0) == 0


def test_policies():
    def chosen(policy, uniform=0.0):
        return resources.choose_type(policy, PRICES, TIMES, -2, uniform)

    assert [chosen("cheapest"), chosen("fastest"), chosen("nebulafl")] == [0, 2, 1]
    assert [chosen("random", u) for u in (0.0, 0.34, 0.99)] == [0, 1, 2]


def test_ties_go_to_the_cheaper():
    assert resources.choose_type("fastest", np.array([2.0, 1.0]), np.array([5.0, 5.0]), 0, 0) == 1
    assert resources.assign(np.array([2.0, 1.0]), np.array([5.0, 5.0]), 3, use_cost=False) == 1


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 1e4)), min_size=1, max_size=6), st.floats(-20, 20))
def test_a_single_best_type_is_always_taken(types, gap):
    prices, times = (np.array(column) for column in zip(*types, strict=True))
    place = resources.assign(prices, times, gap)
    sums = resources.cost_factors(prices) + resources.time_factors(times, gap)
    assert sums[place] == pytest.approx(sums.min(), abs=1e-9)


def test_cold_start():
    assert resources.predicted_time(600, 5, 20.0) == 150.0
    types = [
        HardwareType(name="a", price=1, throughput={"m": 10.0}),
        HardwareType(name="b", price=1, throughput={"m": 5}),
    ]
    np.testing.assert_array_equal(resources.predicted_times([20, 40], 2, types, "m"), [[4, 8], [8, 16]])


def test_a_model_without_throughput_is_bad_input():
    with pytest.raises(BadInput, match="type 'a' has no throughput for model 'vgg16'"):
        HardwareType(name="a", price=1, throughput={"m": 10.0}).samples_per_second("vgg16")


def test_run_times_are_normal_and_never_zero():
    generator = np.random.default_rng(0)
    drawn = np.array([resources.run_time(200.0, 0.05, generator) for _ in range(4000)])
    assert drawn.mean() == pytest.approx(200, rel=0.005)
    assert drawn.std() == pytest.approx(10, rel=0.05)
    assert min(resources.run_time(1.0, 5.0, generator) for _ in range(200)) == pytest.approx(0.1)
    assert resources.run_time(7.0, 0.0, generator) == 7.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80))
def test_no_unit_is_ever_let_twice(events):
    pool = ResourcePool({"a": 2, "b": 3, "c": 0})
    let: dict[str, str] = {}
    for step, (take, number) in enumerate(events):
        free = pool.available()
        if take and free:
            lease = pool.acquire(free[number % len(free)], f"planet-{step}", float(step))
            assert lease.unit not in let
            let[lease.unit] = lease.holder
        elif let and not take:
            unit = sorted(let)[number % len(let)]
            assert pool.release(unit).holder == let.pop(unit)
        assert set(pool.leases) == set(let)
        assert sum(len(numbers) for numbers in pool.free.values()) + len(let) == 5
        assert ("c" in pool.available()) is False
        assert bool(pool.available()) == (len(let) < 5)


def test_letting_or_returning_what_is_not_there_is_an_error():
    pool = ResourcePool({"a": 1})
    lease = pool.acquire("a", "x", 0.0)
    with pytest.raises(ValueError, match="free"):
        pool.acquire("a", "y", 0.0)
    with pytest.raises(ValueError, match="free"):
        pool.acquire("b", "y", 0.0)
    pool.release(lease.unit)
    with pytest.raises(ValueError, match="not let"):
        pool.release(lease.unit)


def test_waiting_is_first_come_first_served_and_only_while_something_is_free():
    pool = ResourcePool({"a": 1})
    unit = pool.acquire("a", "x", 0.0).unit
    for key in ("p", "q", "p"):
        pool.wait(key)
    assert pool.next_waiting() is None
    pool.release(unit)
    assert [pool.next_waiting(), pool.next_waiting(), pool.next_waiting()] == ["p", "q", None]


def test_a_center_without_hardware_is_bad_input():
    with pytest.raises(BadInput, match="at least one unit"):
        ResourcePool({"a": 0})


def test_a_snapshot_keeps_leases_and_queue():
    first, second = ResourcePool({"a": 2}), ResourcePool({"a": 2})
    lease = first.acquire("a", "x", 3.0)
    first.wait("p")
    second.load_state_dict(first.state_dict())
    assert second.leases == first.leases
    assert second.acquire("a", "y", 4.0).unit != lease.unit
    assert second.release(lease.unit) == lease
    assert second.next_waiting() == "p"

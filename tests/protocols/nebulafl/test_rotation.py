import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedactors.errors import BadInput
from protocols.nebulafl.inputs import read_network
from protocols.nebulafl.rotation import (
    InterCenterLink,
    InterCenterNetwork,
    RotationTimer,
    aggregation_transfers,
    rotation_partners,
    rotation_target,
    rotation_transfers,
)

FOUR = ["1", "2", "3", "4"]


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
    sent = [pair for r in range(num_centers) for pair in rotation_transfers(centers, r)]
    assert len(sent) == num_centers * (num_centers - 1) == len(set(sent))


def test_rotation_needs_half_the_transfers_of_aggregation():
    assert len(rotation_transfers(FOUR, 0)) == 4
    assert len(aggregation_transfers(FOUR, "hub")) == 8
    assert len(aggregation_transfers(FOUR, "1")) == 6


def test_a_lost_center_is_left_out():
    assert rotation_partners(["1", "3", "4"], 0) == {"1": "3", "3": "4", "4": "1"}


def test_the_first_master_is_sent_after_one_interval():
    timer = RotationTimer(1000.0)
    assert timer.take(999.9) is None
    assert timer.take(1000.0) == 0
    assert timer.take(1000.0) is None
    assert timer.due_at() == 2000.0


def test_the_print_sends_at_once():
    assert RotationTimer(1000.0, paper_literal=True).take(0.0) == 0


def test_a_center_that_comes_back_counts_like_the_others():
    stayed, lost = RotationTimer(10.0), RotationTimer(10.0)
    for now in (10.0, 20.0, 30.0):
        stayed.take(now)
    lost.catch_up(35.0)
    assert stayed.due_at() == lost.due_at() == 40.0
    assert stayed.take(40.0) == lost.take(40.0) == 3


def link(a: str, b: str, latency: float, bandwidth: float, price: float = 0.0) -> InterCenterLink:
    return InterCenterLink(ends=(a, b), latency=latency, bandwidth=bandwidth, egress_price=price)


def test_the_quickest_way_depends_on_the_size():
    network = InterCenterNetwork(
        [link("a", "c", 0.1, 10.0, 3.0), link("a", "b", 1, 1e3, 1.0), link("b", "c", 1, 1e3, 1.0)]
    )
    small, large = network.route("a", "c", 1), network.route("a", "c", 1000)
    assert small.path == ("a", "c")
    assert small.seconds == pytest.approx(0.2)
    assert large.path == ("a", "b", "c")
    assert large.seconds == pytest.approx(4.0)
    assert large.dollars == 2000.0
    assert large.num_links == 2


def test_keeping_a_model_is_free():
    route = InterCenterNetwork([link("a", "b", 1, 1)]).route("a", "a", 10**9)
    assert (route.seconds, route.dollars, route.num_links) == (0.0, 0.0, 0)


def test_an_unreachable_center_is_bad_input():
    network = InterCenterNetwork([link("a", "b", 1, 1), link("c", "d", 1, 1)])
    network.require(["a", "b"])
    with pytest.raises(BadInput, match="center 'c' cannot be reached from 'a'"):
        network.require(["a", "b", "c"])
    with pytest.raises(BadInput, match="center 'e' has no link"):
        network.require(["a", "e"])


@pytest.mark.parametrize("name", ["market", "scarce"])
def test_every_two_centers_of_an_example_are_joined(name):
    centers = ["oregon", "virginia", "frankfurt", "singapore", "tokyo", "sydney", "mumbai", "saopaulo"]
    network = read_network(name)
    network.require(centers)
    route = network.route("saopaulo", "sydney", 10**6)
    assert route.seconds > 0
    assert route.dollars > 0

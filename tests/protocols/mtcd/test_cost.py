"""The cost and time formulas of Section 4.1 and what follows from them."""

import pytest

from protocols.mtcd import cost


def test_hand_computed_costs():
    costs = cost.weighted_costs(representation=10, token=12, link_cost_ratio=3.0)
    assert costs == cost.LinkCosts(30.0, 36.0, 12.0)
    assert cost.svfl_round_cost(costs, 4) == 4 * 30 + 4 * 36
    assert cost.mtcd_round_cost(costs, 4, 2, 5) == 4 * 30 + 2 * (36 + 5 * 12)
    assert cost.mtcd_round_cost(costs, 4, 2, 5, num_representations=3) == 3 * 30 + 2 * (36 + 5 * 12)
    assert cost.stcd_cost(costs, 7) == 84
    assert cost.dcpa_cost(costs, 5, num_edges=3) == 2 * 3 * 5 * 12


def test_hand_computed_times():
    times = cost.LinkTimes(2.0, 3.0, 0.5, 0.1)
    assert cost.stale_updates(20, 9) == 200
    assert cost.svfl_round_time(times, 4, 200) == pytest.approx(4 * 2 + 4 * 3 + 20)
    assert cost.mtcd_round_time(times, 4, 2, 9, 200) == pytest.approx(4 * 2 + 2 * 3 + 9 * 0.5 + 20)


@pytest.mark.parametrize(("server", "neighbour"), [(1.0, 1.0), (1.5, 1.0), (1.0, 1.5)])
def test_on_path_clusters_mtcd_is_cheaper_iff_the_server_link_costs_more(server, neighbour):
    num_clients, num_tokens = 40, 4
    num_hops = num_clients // num_tokens - 1
    costs = cost.LinkCosts(1.0, server, neighbour)
    ours, theirs = cost.mtcd_round_cost(costs, num_clients, num_tokens, num_hops), cost.svfl_round_cost(costs, 40)
    assert (ours < theirs) == (server > neighbour)


@pytest.mark.parametrize(("token", "neighbour"), [(1.0, 4.0), (1.0, 3.9), (1.0, 4.1)])
def test_on_path_clusters_mtcd_is_faster_iff_the_tokens_at_the_server_take_longer_than_a_hop(token, neighbour):
    num_clients, num_tokens, num_hops = 40, 4, 9
    times = cost.LinkTimes(1.0, token, neighbour, 0.01)
    ours = cost.mtcd_round_time(times, num_clients, num_tokens, num_hops, 200)
    assert (ours < cost.svfl_round_time(times, num_clients, 200)) == (num_tokens * token > neighbour)


def test_no_hops_and_a_token_for_each_client_costs_what_svfl_costs():
    costs = cost.LinkCosts(1.0, 2.0, 3.0)
    assert cost.mtcd_round_cost(costs, 8, 8, 0) == cost.svfl_round_cost(costs, 8)


def test_weighted_cost_of_a_ledger():
    assert cost.weighted_cost({"client-server": 10.0, "client-client": 4.0}, 2.5) == 29.0
    assert cost.weighted_cost({"client-client": 4.0}, 2.5) == 4.0

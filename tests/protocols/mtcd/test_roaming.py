"""Events in, issues out."""

import itertools
from collections import Counter

import networkx as nx
import numpy as np
import pytest

from fedactors.errors import BadInput
from fedactors.protocols.mtcd.roaming import Roaming, RoamingPlan, draw, lay_out, next_client, start_client, walk_seed
from tests.protocols.mtcd import by_hand

NAMES = tuple(f"c{k}" for k in range(12))


def make(graph, clusters=None, linked=None, **options):
    settings = {"num_tokens": len(clusters or (1,)), "num_hops": 3, **options}
    edges = np.array(list(graph.edges), np.int64).reshape(-1, 2)
    linked = tuple(graph) if linked is None else tuple(linked)
    return Roaming(RoamingPlan(num_clients=len(graph), edges=edges, clusters=clusters, linked=linked, **settings))


def test_a_round_is_finished_when_the_last_issue_of_every_token_is_back():
    roaming = make(nx.path_graph(6), ((0, 1, 2), (3, 4, 5)))
    first, second = roaming.begin(4)
    assert (first.token, second.token, first.attempt, first.num_hops) == (0, 1, 0, 3)
    assert first.start in (0, 1, 2)
    assert second.start in (3, 4, 5)
    assert not roaming.done(0, 0, (0,), round_=3)
    assert not roaming.done(0, 1, (0,), round_=4)
    assert roaming.done(0, 0, (0, 1, 0), round_=4)
    assert roaming.outstanding
    assert roaming.done(1, 0, (5,), round_=4)
    assert not roaming.outstanding
    assert roaming.changed == {0, 1, 5}


def test_a_token_whose_cluster_lost_a_client_is_issued_again_and_the_earlier_issue_is_stale():
    roaming = make(nx.complete_graph(6), ((0, 1, 2), (3, 4, 5)))
    roaming.begin(0)
    issues, touched = roaming.lose(1)
    assert [(issue.token, issue.attempt) for issue in issues] == [(0, 1)]
    assert issues[0].start in (0, 2)
    assert touched == (0, 2, 3, 4, 5)
    assert not roaming.done(0, 0, (0, 1), round_=0)
    assert roaming.done(1, 0, (3,), round_=0)
    assert roaming.outstanding
    assert roaming.done(0, 1, (0, 2), round_=0)
    assert not roaming.outstanding
    assert roaming.changed == {0, 2, 3}
    assert roaming.lose(1) == ([], ())


def test_a_cluster_that_falls_apart_is_served_through_the_server():
    roaming = make(nx.path_graph(5), ((0, 1, 2, 3, 4),))
    roaming.begin(0)
    issues, touched = roaming.lose(2)
    assert [(issue.token, issue.start in part) for issue, part in zip(issues, [(0, 1), (3, 4)], strict=True)] == [
        (0, True),
        (1, True),
    ]
    assert touched == (1, 3)
    assert roaming.links(1, NAMES).options == (0, 1)
    assert [issue.token for issue in roaming.begin(1)] == [0, 1]


def test_a_part_without_a_way_to_the_server_is_left_as_it_was():
    roaming = make(nx.path_graph(5), ((0, 1, 2, 3, 4),), linked={0})
    assert roaming.route(4) == (0, 1, 2, 3, 4)
    assert roaming.links(4, NAMES).uplink == "c3"
    assert roaming.links(0, NAMES).uplink == ""
    roaming.begin(0)
    issues, _ = roaming.lose(2)
    assert [issue.start for issue in issues] == [0]
    assert roaming.clients == (0, 1)
    assert roaming.route(4) == ()


def test_overlapping_tokens_are_all_issued_again_where_the_lost_client_may_have_been_visited():
    roaming = make(nx.cycle_graph(4), None, num_tokens=3)
    roaming.begin(0)
    assert roaming.done(1, 0, (0, 1), round_=0)
    issues, _ = roaming.lose(3)
    assert [(issue.token, issue.attempt) for issue in issues] == [(0, 1), (2, 1)]
    assert all(issue.start != 3 for issue in issues)


def test_the_last_client_of_a_cluster_takes_its_token_along():
    roaming = make(nx.empty_graph(3), ((0,), (1,), (2,)))
    roaming.begin(0)
    assert roaming.lose(0) == ([], ())
    assert roaming.outstanding == (1, 2)
    assert [issue.token for issue in roaming.begin(1)] == [1, 2]


def test_state_brings_back_who_was_lost():
    roaming, again = make(nx.path_graph(5), ((0, 1, 2, 3, 4),)), make(nx.path_graph(5), ((0, 1, 2, 3, 4),))
    roaming.lose(2)
    again.load_state_dict(roaming.state_dict())
    assert again.begin(7) == roaming.begin(7)


def test_partial_participation_draws_other_clusters_each_round():
    clusters = tuple((k,) for k in range(6))
    roaming = make(nx.empty_graph(6), clusters, num_tokens=1)
    drawn = [[issue.token for issue in roaming.begin(round_)] for round_ in range(30)]
    assert all(len(tokens) == 1 for tokens in drawn)
    assert {tokens[0] for tokens in drawn} == set(range(6))


def test_a_sweep_visits_each_client_of_a_cluster_once():
    roaming = make(nx.path_graph(6), ((0, 1, 2), (3, 4, 5)), sweep=True, num_hops=2)
    for issue, cluster in zip(roaming.begin(0), ([0, 1, 2], [3, 4, 5]), strict=True):
        client, route = issue.start, [issue.start]
        for hop in range(1, issue.num_hops + 1):
            client = next_client(0, hop, roaming.links(client, NAMES))
            route.append(client)
        assert sorted(route) == cluster


def test_starts_may_be_given():
    assert [i.start for i in make(nx.path_graph(4), ((0, 1), (2, 3)), start=(1, 2)).begin(0)] == [1, 2]
    assert [i.start for i in make(nx.path_graph(3), None, num_tokens=3, start="all-clients").begin(0)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("graph", "linked", "clusters", "num_tokens", "line"),
    [
        (nx.empty_graph(3), (0, 1), "components", 1, r"component \[2\] of a disconnected graph has no server link"),
        (nx.path_graph(4), None, ((0, 1), (1, 2, 3)), 2, "client 1 is in clusters 0 and 1"),
        (nx.path_graph(4), None, ((0, 1), (2,)), 2, r"clients \[3\] are in no cluster"),
        (nx.path_graph(4), None, ((0, 2), (1, 3)), 2, r"cluster 0 \[0, 2\] is not connected"),
        (nx.path_graph(4), None, "components", 2, "num_tokens: 2 is not allowed"),
        (nx.path_graph(4), (0, 1), ((0, 1), (2, 3)), 2, r"cluster 1 \[2, 3\] has no client with a link"),
    ],
)
def test_layouts_that_cannot_be_are_refused(graph, linked, clusters, num_tokens, line):
    with pytest.raises(BadInput, match=line):
        lay_out(graph, linked, clusters, num_tokens)


def test_clusters_may_be_found_by_a_community_method():
    graph = nx.connected_caveman_graph(3, 4)
    assert lay_out(graph, None, "greedy-modularity", 3) == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    assert lay_out(nx.path_graph(5), None, "whole", 1) == ((0, 1, 2, 3, 4),)


# --- walks ---


def test_lazy_walk_moves_along_edges_or_stays_and_is_repeatable():
    graph = nx.path_graph(5)
    route = by_hand.lazy_walk(graph, 2, 200, seed=9)
    assert len(route) == 201
    assert all(b in {a, *graph.neighbors(a)} for a, b in itertools.pairwise(route))
    assert any(a == b for a, b in itertools.pairwise(route))
    assert route == by_hand.lazy_walk(graph, 2, 200, seed=9)
    assert route != by_hand.lazy_walk(graph, 2, 200, seed=10)


def test_a_walk_drawn_hop_by_hop_is_the_same():
    graph, seed, client = nx.cycle_graph(7), 123, 4
    for hop, expected in enumerate(by_hand.lazy_walk(graph, 4, 30, seed)):
        if hop:
            client = next_client(seed, hop, by_hand.links(graph, client))
        assert client == expected


def test_without_edges_the_walk_stays_put():
    assert by_hand.lazy_walk(nx.empty_graph(3), 1, 4, seed=0) == (1, 1, 1, 1, 1)
    assert by_hand.lazy_walk(nx.path_graph(3), 1, 0, seed=0) == (1,)


@pytest.mark.slow
def test_draws_are_uniform_and_differ_by_seed_round_token_and_hop():
    counts = Counter(draw(walk_seed(0, 5, 1), hop, 3) for hop in range(30_000))
    assert all(abs(counts[i] - 10_000) < 400 for i in range(3))
    starts = Counter(start_client(walk_seed(0, r, t), (7, 8, 9, 10)) for r in range(2000) for t in range(10))
    assert set(starts) == {7, 8, 9, 10}
    assert all(abs(count - 5_000) < 300 for count in starts.values())
    seeds = {walk_seed(s, r, t) for s in range(10) for r in range(10) for t in range(10)}
    assert len(seeds) == 1000


def test_lazy_step_is_uniform_over_neighbours_and_self():
    graph = nx.star_graph(3)
    counts = Counter(next_client(walk_seed(1, r, 0), 1, by_hand.links(graph, 0)) for r in range(20_000))
    assert all(abs(counts[k] - 5_000) < 300 for k in range(4))


def chance(graph, start, target, num_hops):
    """The chance that a lazy walk from `start` meets `target`, by following every branch."""
    if start == target:
        return 1.0
    options = by_hand.links(graph, start).options
    return 0.0 if num_hops == 0 else sum(chance(graph, k, target, num_hops - 1) for k in options) / len(options)


def test_walks_meet_clients_as_often_as_they_should():
    graph = nx.path_graph(3)
    routes = [by_hand.lazy_walk(graph, 0, 5, walk_seed(2, r, 0)) for r in range(4000)]
    for k in range(3):
        assert sum(k in route for route in routes) / 4000 == pytest.approx(chance(graph, 0, k, 5), abs=0.03)


# --- who is visited ---


def swept(roaming, round_=0):
    """The clients that each token of a round visits, in order, by the links that clients have."""
    found = []
    for issue in roaming.begin(round_):
        here, way = issue.start, [issue.start]
        for hop in range(issue.num_hops):
            here = next_client(0, hop + 1, roaming.links(here, NAMES))
            way.append(here)
        found.append(tuple(way))
    return found


def test_a_sweep_with_too_few_hops_is_refused():
    roaming = make(nx.path_graph(6), ((0, 1, 2), (3, 4, 5)), sweep=True, num_hops=1)
    with pytest.raises(BadInput, match=r"num_hops: 1 is not allowed: client 2, one of 1, is never visited"):
        roaming.least_visit_probability()
    assert make(nx.path_graph(6), ((0, 1, 2), (3, 4, 5)), sweep=True, num_hops=2).least_visit_probability() == 1.0


def test_a_sweep_begins_where_there_is_a_link_to_the_server():
    roaming = make(nx.path_graph(4), ((0, 1, 2, 3),), linked=[3], sweep=True)
    assert swept(roaming) == [(3, 2, 1, 0)]
    assert roaming.least_visit_probability() == 1.0
    with pytest.raises(BadInput, match="from one with a link to the server on"):
        make(nx.path_graph(4), ((0, 1, 2, 3),), linked=[1], sweep=True).begin(0)


def test_tokens_that_overlap_sweep_from_places_of_their_own():
    roaming = make(nx.cycle_graph(6), sweep=True, num_tokens=3, num_hops=5)
    ways = swept(roaming)
    assert len(set(ways)) == 3
    assert all(set(way) == set(range(6)) for way in ways)
    assert roaming.least_visit_probability() == 1.0
    assert {
        client for way in swept(make(nx.cycle_graph(6), sweep=True, num_tokens=3, num_hops=1)) for client in way
    } == set(range(6))
    with pytest.raises(BadInput, match="num_hops: 0 is not allowed"):
        make(nx.cycle_graph(6), sweep=True, num_tokens=3, num_hops=0).least_visit_probability()
    with pytest.raises(BadInput, match="no closed route"):
        make(nx.path_graph(6), sweep=True, num_tokens=2, num_hops=5).least_visit_probability()


@pytest.mark.slow
def test_the_least_probability_of_a_visit_is_that_of_many_walks():
    roaming = make(nx.path_graph(7), ((0, 1, 2), (3, 4, 5, 6)), linked=[1, 3, 6], num_hops=3, num_tokens=1)
    least = roaming.least_visit_probability()
    visits = Counter()
    for round_ in range(20_000):
        for issue in roaming.begin(round_):
            seed, here = walk_seed(0, round_, issue.token), issue.start
            seen = {here}
            for hop in range(1, 4):
                here = next_client(seed, hop, roaming.links(here, NAMES))
                seen.add(here)
            visits.update(seen)
    assert min(visits.values()) / 20_000 == pytest.approx(least, abs=0.015)


def test_tokens_that_overlap_miss_a_client_only_together():
    one = make(nx.path_graph(5), num_tokens=1, num_hops=2).least_visit_probability()
    three = make(nx.path_graph(5), num_tokens=3, num_hops=2).least_visit_probability()
    assert three == pytest.approx(1 - (1 - one) ** 3)


def test_a_client_that_no_token_reaches_is_refused():
    with pytest.raises(
        BadInput, match=r"client 4, one of 1, is never visited by tokens that begin at \[0\]; it takes 4"
    ):
        make(nx.path_graph(5), ((0, 1, 2, 3, 4),), linked=[0], num_hops=3).least_visit_probability()
    assert make(nx.path_graph(5), ((0, 1, 2, 3, 4),), linked=[0], num_hops=4).least_visit_probability() > 0
    assert make(nx.path_graph(400), (tuple(range(400)),)).least_visit_probability() is None

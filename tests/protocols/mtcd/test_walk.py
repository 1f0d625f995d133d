"""Walks are lazy, repeatable and stay in their cluster; chances to be visited."""

import itertools
from collections import Counter

import networkx as nx
import numpy as np
import pytest

from fedactors.errors import BadInput
from protocols.mtcd import walk


def test_lazy_walk_moves_along_edges_or_stays_and_is_repeatable():
    graph = nx.path_graph(5)
    route = walk.lazy_walk(graph, 2, 200, seed=9)
    assert len(route) == 201
    assert all(b in {a, *graph.neighbors(a)} for a, b in itertools.pairwise(route))
    assert any(a == b for a, b in itertools.pairwise(route))
    assert route == walk.lazy_walk(graph, 2, 200, seed=9)
    assert route != walk.lazy_walk(graph, 2, 200, seed=10)


def test_a_walk_drawn_hop_by_hop_is_the_same():
    graph, seed, client = nx.cycle_graph(7), 123, 4
    for hop, expected in enumerate(walk.lazy_walk(graph, 4, 30, seed)):
        if hop:
            client = walk.next_client(seed, hop, walk.lazy_options(graph, client))
        assert client == expected


def test_without_edges_the_walk_stays_put():
    assert walk.lazy_walk(nx.empty_graph(3), 1, 4, seed=0) == (1, 1, 1, 1, 1)
    assert walk.lazy_walk(nx.path_graph(3), 1, 0, seed=0) == (1,)


def test_draws_are_uniform_and_differ_by_seed_round_token_and_hop():
    counts = Counter(walk.draw(walk.walk_seed(0, 5, 1), hop, 3) for hop in range(30_000))
    assert all(abs(counts[i] - 10_000) < 400 for i in range(3))
    starts = Counter(walk.start_client(walk.walk_seed(0, r, t), (7, 8, 9, 10)) for r in range(2000) for t in range(10))
    assert set(starts) == {7, 8, 9, 10}
    assert all(abs(count - 5_000) < 300 for count in starts.values())
    seeds = {walk.walk_seed(s, r, t) for s in range(10) for r in range(10) for t in range(10)}
    assert len(seeds) == 1000


def test_lazy_step_is_uniform_over_neighbours_and_self():
    graph = nx.star_graph(3)
    counts = Counter(walk.next_client(walk.walk_seed(1, r, 0), 1, walk.lazy_options(graph, 0)) for r in range(20_000))
    assert all(abs(counts[k] - 5_000) < 300 for k in range(4))


@pytest.mark.parametrize(
    "graph",
    [
        nx.path_graph(8),
        nx.complete_graph(6),
        nx.cycle_graph(9),
        nx.grid_2d_graph(4, 4),
        nx.relabel_nodes(nx.path_graph(5), {0: 3, 1: 0, 2: 4, 3: 1, 4: 2}),
    ],
)
def test_sweep_visits_each_client_once_along_edges(graph):
    graph = nx.convert_node_labels_to_integers(graph) if isinstance(next(iter(graph)), tuple) else graph
    route = walk.sweep(graph, graph.nodes)
    assert sorted(route) == sorted(graph.nodes)
    assert all(graph.has_edge(a, b) for a, b in itertools.pairwise(route))
    assert walk.sweep(graph, [route[0]]) == (route[0],)


def test_sweep_of_a_star_is_not_possible():
    with pytest.raises(BadInput, match="walk: sweep"):
        walk.sweep(nx.star_graph(3), range(4))


def chance(graph, start, target, num_hops):
    """The chance that a lazy walk from `start` meets `target`, by following every branch."""
    if start == target:
        return 1.0
    options = walk.lazy_options(graph, start)
    return 0.0 if num_hops == 0 else sum(chance(graph, k, target, num_hops - 1) for k in options) / len(options)


def test_visit_probability_bound_by_hand_and_below_the_exact_chance():
    graph = nx.path_graph(4)
    uniform, point = np.full(4, 0.25), np.array([1.0, 0, 0, 0])
    assert walk.visit_probability_bound(graph, uniform, 0) == 0.25
    assert walk.visit_probability_bound(graph, point, 2) == 0.0
    assert walk.visit_probability_bound(graph, point, 3) == pytest.approx(3.0**-3)
    assert chance(graph, 0, 3, 3) == pytest.approx(1 / 18)
    for num_hops in (3, 5, 7):
        exact = min(chance(graph, 0, k, num_hops) for k in range(4))
        assert 0 < walk.visit_probability_bound(graph, point, num_hops) <= exact


def test_walks_meet_clients_as_often_as_they_should():
    graph = nx.path_graph(3)
    routes = [walk.lazy_walk(graph, 0, 5, walk.walk_seed(2, r, 0)) for r in range(4000)]
    for k in range(3):
        assert sum(k in route for route in routes) / 4000 == pytest.approx(chance(graph, 0, k, 5), abs=0.03)


def test_cluster_graph_keeps_tokens_inside():
    cut = walk.cluster_graph(nx.path_graph(6), [(0, 1, 2), (3, 4, 5)])
    assert sorted(cut.edges) == [(0, 1), (1, 2), (3, 4), (4, 5)]
    assert set(walk.lazy_walk(cut, 0, 300, 1)) == {0, 1, 2}


@pytest.mark.parametrize(
    ("graph", "num_clusters", "sizes"),
    [
        (nx.path_graph(40), 4, [10, 10, 10, 10]),
        (nx.complete_graph(40), 4, [10, 10, 10, 10]),
        (nx.cycle_graph(10), 3, [3, 3, 4]),
        (nx.star_graph(5), 2, [1, 5]),
        (nx.empty_graph(4), 2, [1, 1, 1, 1]),
        (nx.disjoint_union(nx.path_graph(6), nx.path_graph(2)), 3, [2, 3, 3]),
        (nx.balanced_tree(2, 3), 3, None),
        (nx.gnp_random_graph(30, 0.15, seed=4), 5, None),
        (nx.path_graph(3), 9, [1, 1, 1]),
    ],
)
def test_even_clusters_are_connected_and_partition_the_clients(graph, num_clusters, sizes):
    clusters = walk.even_clusters(graph, num_clusters)
    assert sorted(k for cluster in clusters for k in cluster) == sorted(graph.nodes)
    assert all(nx.is_connected(graph.subgraph(cluster)) for cluster in clusters)
    if sizes is not None:
        assert sorted(map(len, clusters)) == sizes
    else:
        assert len(clusters) == max(num_clusters, nx.number_connected_components(graph))


def test_even_clusters_of_a_path_are_its_stretches():
    assert walk.even_clusters(nx.path_graph(6), 2) == ((0, 1, 2), (3, 4, 5))

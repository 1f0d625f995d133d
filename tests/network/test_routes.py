"""Ways over graphs."""

import itertools

import networkx as nx
import pytest

from fedactors.network import topology


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
def test_a_route_over_all_visits_each_node_once_along_edges(graph):
    graph = nx.convert_node_labels_to_integers(graph) if isinstance(next(iter(graph)), tuple) else graph
    route = topology.route_over_all(graph)
    assert route is not None
    assert sorted(route) == sorted(graph.nodes)
    assert all(graph.has_edge(a, b) for a, b in itertools.pairwise(route))
    assert topology.route_over_all(graph.subgraph([route[0]])) == (route[0],)


def test_a_star_has_no_route_over_all():
    assert topology.route_over_all(nx.star_graph(3)) is None


def test_edges_between_clusters_are_left_out():
    cut = topology.inside_clusters(nx.path_graph(6), [(0, 1, 2), (3, 4, 5)])
    assert sorted(cut.edges) == [(0, 1), (1, 2), (3, 4), (4, 5)]


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
    clusters = topology.even_clusters(graph, num_clusters)
    assert sorted(k for cluster in clusters for k in cluster) == sorted(graph.nodes)
    assert all(nx.is_connected(graph.subgraph(cluster)) for cluster in clusters)
    if sizes is not None:
        assert sorted(map(len, clusters)) == sizes
    else:
        assert len(clusters) == max(num_clusters, nx.number_connected_components(graph))


def test_even_clusters_of_a_path_are_its_stretches():
    assert topology.even_clusters(nx.path_graph(6), 2) == ((0, 1, 2), (3, 4, 5))


def test_a_tour_goes_along_edges_over_all_and_ends_at_the_last_new_one():
    tree = nx.balanced_tree(2, 2)
    tour = topology.tour(tree, 0)
    assert set(tour) == set(tree)
    assert all(tree.has_edge(a, b) for a, b in itertools.pairwise(tour))
    assert tour.count(tour[-1]) == 1


def test_the_way_to_the_nearest_end():
    path = nx.path_graph(6)
    assert topology.way_to(path, 3, {0, 5}) == (3, 4, 5)
    assert topology.way_to(path, 0, {0, 5}) == (0,)
    assert topology.way_to(nx.empty_graph(2), 0, {1}) == ()
    assert topology.way_to(path, 9, {0}) == ()

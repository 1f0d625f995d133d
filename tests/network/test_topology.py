import json

import networkx as nx
import numpy as np
import pytest

from fedactors.errors import BadInput, DataMissing
from fedactors.network.topology import (
    CLUSTER_METHODS,
    GRAPH_NAMES,
    check_clusters,
    check_reachable,
    detect_clusters,
    lazy_walk,
    make_graph,
    metropolis_weights,
    read_graph,
    visit_probabilities,
)


@pytest.mark.parametrize("name", GRAPH_NAMES)
@pytest.mark.parametrize("num_clients", [1, 2, 6, 7])
def test_every_graph_has_its_clients(name, num_clients):
    graph = make_graph(name, num_clients)
    assert sorted(graph) == list(range(num_clients))
    assert nx.number_of_selfloops(graph) == 0


def test_edges_by_hand():
    edges = {name: make_graph(name, 6).number_of_edges() for name in ("complete", "path", "ring", "star", "grid")}
    assert edges == {"complete": 15, "path": 5, "ring": 6, "star": 5, "grid": 7}
    assert make_graph("star", 6).degree[0] == 5
    same = [sorted(make_graph("erdos-renyi", 20, seed=s).edges()) for s in (1, 1, 2)]
    assert same[0] == same[1] != same[2]


def test_bad_graphs():
    with pytest.raises(BadInput, match="'torus' is not known"):
        make_graph("torus", 4)
    with pytest.raises(BadInput, match="num_clients"):
        make_graph("path", 0)
    with pytest.raises(BadInput, match="edge_probability"):
        make_graph("erdos-renyi", 4, edge_probability=1.5)


def test_files_of_every_kind_round_trip(tmp_path):
    graph = make_graph("grid", 12)
    nx.write_edgelist(graph, tmp_path / "g.edgelist", data=False)
    nx.write_graphml(graph, tmp_path / "g.graphml", prettyprint=False)
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    (tmp_path / "old.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    nx.set_edge_attributes(graph, 0.5, "weight")
    nx.write_edgelist(graph, tmp_path / "facts.edgelist")
    nx.write_weighted_edgelist(graph, tmp_path / "weighted.edgelist")
    nx.write_edgelist(graph, tmp_path / "commas.txt", delimiter=",", data=["weight"])
    nx.write_gml(graph, tmp_path / "g.gml")
    nx.write_adjlist(graph, tmp_path / "g.adjlist")
    kinds = ("facts.edgelist", "weighted.edgelist", "commas.txt", "g.gml", "g.adjlist")
    for name in ("g.edgelist", "g.graphml", "g.json", "old.json", *kinds):
        found = read_graph(tmp_path / name, 12)
        assert sorted(map(sorted, found.edges())) == sorted(map(sorted, graph.edges()))


def test_named_and_lone_nodes(tmp_path):
    path = tmp_path / "g.txt"
    path.write_text("# clients\nlyon, bonn\nrome\n")
    graph = read_graph(path)
    assert sorted(graph.edges()) == [(0, 1)]
    assert len(graph) == 3


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("g.graphml", "<graphml", "cannot be read"),
        ("g.json", "{", "cannot be read"),
        ("g.json", "[1, 2]", "cannot be read"),
        ("g.json", '{"nodes": [{"id": 0}], "edges": [{"source": 0}]}', "cannot be read"),
        ("g.edgelist", "0 1 2 3", "line 1 has 4 words"),
        ("g.edgelist", "0 1 b", "line 1 has 3 words"),
        ("g.gml", "graph [", "cannot be read"),
        ("g.edgelist", "# nothing", "no nodes"),
        ("g.edgelist", "lyon bonn", "2 nodes, but there are 3"),
        ("g.edgelist", "0 1\n\n1 7", r"g.edgelist, line 3: client 7 is unknown, allowed are 0 to 2"),
        ("g.json", '{"nodes": [{"id": 0}, {"id": 3}], "edges": []}', "client 3 is unknown"),
        ("g.json", '{"directed": true, "nodes": [{"id": 0}], "edges": []}', "directed"),
    ],
)
def test_broken_files_name_themselves(tmp_path, name, text, match):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadInput, match=match) as raised:
        read_graph(path, 3)
    assert name in str(raised.value)


def test_numbers_keep_their_clients_and_those_left_out_are_alone(tmp_path):
    path = tmp_path / "g.txt"
    path.write_text("0 3\n")
    graph = read_graph(path, 5)
    assert sorted(graph) == [0, 1, 2, 3, 4]
    assert list(graph.edges()) == [(0, 3)]
    assert len(read_graph(path)) == 4


def test_binary_and_missing_files(tmp_path):
    path = tmp_path / "g.edgelist"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="cannot be read"):
        read_graph(path)
    with pytest.raises(DataMissing):
        read_graph(tmp_path / "none.json")


@pytest.mark.parametrize("method", CLUSTER_METHODS)
def test_detected_clusters_are_valid(method):
    for graph in (nx.connected_caveman_graph(3, 5), make_graph("erdos-renyi", 25, seed=3), make_graph("empty", 4)):
        clusters = detect_clusters(graph, method, seed=1)
        check_clusters(graph, clusters)
        assert clusters == detect_clusters(graph, method, seed=1)


def test_caves_are_found():
    graph = nx.connected_caveman_graph(3, 5)
    caves = (tuple(range(5)), tuple(range(5, 10)), tuple(range(10, 15)))
    assert detect_clusters(graph, "greedy-modularity", num_clusters=3) == caves
    assert detect_clusters(graph, "louvain", seed=0) == caves
    with pytest.raises(BadInput, match="cluster_method"):
        detect_clusters(graph, "guess")


@pytest.mark.parametrize(
    ("clusters", "match"),
    [
        (((0, 1), (1, 2, 3)), "client 1 is in clusters 0 and 1"),
        (((0, 1), (2,)), r"clients \[3\] are in no cluster"),
        (((0, 2), (1, 3)), "not connected"),
        (((0, 1), (2, 3, 4)), "client 4 of cluster 1 does not exist"),
        (((0, 1, 2, 3), ()), "cluster 1 is empty"),
    ],
)
def test_bad_clusters(clusters, match):
    with pytest.raises(BadInput, match=match):
        check_clusters(make_graph("path", 4), clusters)


def test_components_need_server_links():
    graph = nx.Graph([(0, 1), (2, 3)])
    check_reachable(graph, {0, 3})
    check_reachable(make_graph("path", 4), ())
    with pytest.raises(BadInput, match=r"component \[2, 3\]"):
        check_reachable(graph, {0, 1})
    with pytest.raises(BadInput, match=r"clients \[9\] do not exist"):
        check_reachable(graph, {9})


def test_metropolis_weights_of_a_path_and_in_general():
    third = 1 / 3
    np.testing.assert_allclose(
        metropolis_weights(make_graph("path", 3)), [[1 - third, third, 0], [third, third, third], [0, third, 1 - third]]
    )
    weights = metropolis_weights(make_graph("erdos-renyi", 15, seed=1))
    np.testing.assert_allclose(weights, weights.T)
    np.testing.assert_allclose(weights.sum(axis=0), 1)
    assert (weights >= -1e-15).all()


def test_lazy_walk_is_uniform_over_neighbours_and_oneself():
    np.testing.assert_allclose(lazy_walk(make_graph("path", 3)), [[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0.5, 0.5]])
    np.testing.assert_array_equal(lazy_walk(make_graph("empty", 3)), np.eye(3))
    inside = lazy_walk(make_graph("path", 4), (0, 1))
    np.testing.assert_allclose(inside[:2, :2], [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_array_equal(inside[2:, 2:], np.eye(2))


def test_visit_probabilities_by_hand_and_by_simulation():
    walk = lazy_walk(make_graph("path", 3))
    start = np.array([1.0, 0.0, 0.0])
    np.testing.assert_allclose(visit_probabilities(walk, start, 0), start)
    # client 2 within two hops of client 0: stay-or-move 1/2, then 1/3
    np.testing.assert_allclose(visit_probabilities(walk, start, 2), [1.0, 0.75, 1 / 6])
    rng = np.random.default_rng(0)
    seen = np.zeros(3)
    for _ in range(4000):
        at = 0
        visited = {0}
        for _ in range(5):
            at = int(rng.choice(3, p=walk[at]))
            visited.add(at)
        seen[list(visited)] += 1
    np.testing.assert_allclose(seen / 4000, visit_probabilities(walk, start, 5), atol=4 * 0.5 / np.sqrt(4000))


def test_bad_walks():
    walk = lazy_walk(make_graph("path", 2))
    with pytest.raises(BadInput, match="sum to 1"):
        visit_probabilities(walk, np.array([0.5, 0.6]), 1)
    with pytest.raises(BadInput, match="num_hops"):
        visit_probabilities(walk, np.array([0.5, 0.5]), -1)

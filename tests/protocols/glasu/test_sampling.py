"""Sampling: only own edges, uniform choice, blocks that equal the matrix they stand for."""

import itertools

import networkx as nx
import numpy as np
import pytest

from fedactors.protocols.glasu import sampling


def karate():
    graph = nx.karate_club_graph()
    return graph, sampling.adjacency(np.array(list(graph.edges)).T, graph.number_of_nodes())


def dense(block):
    matrix = np.zeros((block.num_targets, block.num_sources))
    rows = np.repeat(np.arange(block.num_targets), np.diff(block.indptr))
    np.add.at(matrix, (rows, block.indices), block.weights)
    return matrix


def test_adjacency_is_symmetric_without_repeats_and_self_loops():
    made = sampling.adjacency(np.array([[0, 1, 2, 2, 3], [1, 0, 2, 0, 1]]), 5)
    assert made.indptr.tolist() == [0, 2, 4, 5, 6, 6]
    assert made.indices.tolist() == [1, 2, 0, 3, 0, 1]
    assert made.num_nodes == 5
    empty = sampling.adjacency(np.empty((2, 0), dtype=np.int64), 3)
    assert empty.degrees.tolist() == [0, 0, 0]


def test_full_block_is_the_normalised_adjacency():
    graph, made = karate()
    matrix = nx.to_numpy_array(graph, weight=None) + np.eye(34)
    scale = 1 / np.sqrt(matrix.sum(1))
    np.testing.assert_allclose(dense(sampling.full_block(made)), scale[:, None] * matrix * scale, rtol=1e-13)


def test_block_without_edges_is_the_identity():
    made = sampling.adjacency(np.empty((2, 0), dtype=np.int64), 4)
    np.testing.assert_array_equal(dense(sampling.full_block(made)), np.eye(4))


def test_sampling_all_neighbours_gives_rows_of_the_full_matrix():
    _, made = karate()
    targets = np.array([0, 5, 33])
    (layer,) = sampling.sample_segment(made, targets, 1, None, np.random.default_rng(0))
    full = dense(sampling.full_block(made))
    np.testing.assert_allclose(dense(sampling.block(made, layer)), full[np.ix_(targets, layer.sources_S)])
    assert full[targets].sum() == pytest.approx(full[np.ix_(targets, layer.sources_S)].sum())


def test_only_own_edges_are_sampled_and_no_neighbour_twice():
    graph, made = karate()
    rng = np.random.default_rng(0)
    targets = np.arange(34)
    for count in (1, 2, 3, 20):
        rows, neighbours = sampling.sample_neighbours(made, targets, count, rng)
        assert all(graph.has_edge(targets[row], other) for row, other in zip(rows, neighbours, strict=True))
        assert len(set(zip(rows.tolist(), neighbours.tolist(), strict=True))) == len(rows)
        assert np.bincount(rows, minlength=34).tolist() == np.minimum(made.degrees, count).tolist()


def test_neighbours_are_drawn_uniformly():
    star = sampling.adjacency(np.array([[0] * 5, [1, 2, 3, 4, 5]]), 6)
    rng = np.random.default_rng(1)
    _, drawn = sampling.sample_neighbours(star, np.zeros(20_000, dtype=np.int64), 2, rng)
    pairs = drawn.reshape(-1, 2)
    counts = [int(((pairs[:, 0] == a) & (pairs[:, 1] == b)).sum()) for a, b in itertools.combinations(range(1, 6), 2)]
    assert sum(counts) == 20_000
    assert max(abs(count - 2000) for count in counts) < 200


@pytest.mark.slow
def test_sampled_rows_are_unbiased():
    _, made = karate()
    rng = np.random.default_rng(2)
    targets = np.array([0, 2, 33])
    mean, draws = np.zeros((3, 34)), 4000
    for _ in range(draws):
        (layer,) = sampling.sample_segment(made, targets, 1, 3, rng)
        mean += dense(sampling.block(made, layer.with_sources(np.arange(34)))) / draws
    np.testing.assert_allclose(mean, dense(sampling.full_block(made))[targets], atol=0.02)


@pytest.mark.parametrize(("count", "top"), [(0, 1), (1, 5), (40, 30), (40, 100_000), (3, 40), (3, 60)])
def test_a_union_is_sorted_and_has_each_node_once_however_dense(count, top):
    drawn = np.random.default_rng(count).integers(0, top, count)
    found = sampling.union([drawn, drawn[:2], np.empty(0, dtype=np.int64)])
    assert found.tolist() == sorted(set(drawn.tolist()))
    assert found.dtype == np.int64
    assert sampling.positions(found, drawn).tolist() == [sorted(set(drawn.tolist())).index(node) for node in drawn]


def test_levels_contain_each_other_and_unions_hold_all():
    _, made = karate()
    rng = np.random.default_rng(3)
    layers = sampling.sample_segment(made, np.array([3, 8]), 3, 2, rng)
    for lower, upper in itertools.pairwise(layers):
        assert np.array_equal(lower.targets_T, upper.sources_S)
        assert set(upper.targets_T) <= set(upper.sources_S)
    joined = sampling.union([layers[0].sources_S, np.array([33, 0])])
    assert set(joined) == {*layers[0].sources_S.tolist(), 0, 33}
    wide = layers[0].with_sources(joined)
    made_block = sampling.block(made, wide)
    assert made_block.num_sources == len(joined)
    assert np.array_equal(joined[made_block.root_T], wide.targets_T)
    rows = sampling.initial_rows(layers)
    for layer, positions in zip(layers, rows, strict=True):
        assert np.array_equal(layers[0].sources_S[positions], layer.targets_T)


def test_batches_are_distinct_training_nodes():
    train = np.array([9, 4, 7, 1])
    rng = np.random.default_rng(0)
    batch = sampling.choose_batch(train, 3, rng)
    assert len(set(batch.tolist())) == 3
    assert set(batch) <= set(train)
    assert sampling.choose_batch(train, None, rng).tolist() == [1, 4, 7, 9]
    assert sampling.choose_batch(train, 10, rng).tolist() == [1, 4, 7, 9]


def test_equal_generators_draw_equal_samples():
    _, made = karate()
    one, two = (sampling.sample_neighbours(made, np.arange(34), 2, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(one[1], two[1])


def test_a_large_graph_is_sampled_without_visiting_every_node():
    rng = np.random.default_rng(0)
    made = sampling.adjacency(rng.integers(0, 200_000, (2, 1_000_000)), 200_000)
    layers = sampling.sample_segment(made, sampling.choose_batch(np.arange(200_000), 1024, rng), 2, 3, rng)
    assert len(layers[1].targets_T) == 1024
    assert len(layers[0].sources_S) <= 1024 * 16
    assert sampling.block(made, layers[0]).num_targets == len(layers[0].targets_T)

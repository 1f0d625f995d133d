"""A client's data: what is refused, and what each special case trains on."""

from dataclasses import replace

import numpy as np
import pytest

from fedactors.data.layouts.graph import NodeSplit, from_masks
from fedactors.errors import BadInput
from fedactors.protocols.glasu import data
from fedactors.protocols.glasu.data import ClientGraph
from fedactors.protocols.glasu.sampling import adjacency

EDGES = [np.array([[0, 1], [1, 2]]), np.array([[2, 3], [1, 4]])]
SPLIT = NodeSplit(np.array([0, 1, 0, 1, 0]), np.array([0, 1]), np.array([2]), np.array([3, 4]))


def clients():
    return [
        ClientGraph(f"client-{m}", adjacency(edges, 5), np.full((5, m + 2), m, dtype=np.float32), SPLIT, 2)
        for m, edges in enumerate(EDGES)
    ]


def test_fitting_data_pass():
    for local in clients():
        data.check(local)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"features_NF": np.zeros((4, 2), np.float32)}, "features of client-0: 4 rows"),
        ({"features_NF": np.zeros((5, 0), np.float32)}, "empty block"),
        ({"num_classes": 1}, "labels: 1 is not allowed: there are 1 classes"),
    ],
)
def test_a_client_whose_data_do_not_fit_is_refused(change, told):
    with pytest.raises(BadInput, match=told):
        data.check(replace(clients()[0], **change))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"train": np.array([], dtype=np.int64)}, "train: no nodes"),
        ({"test": np.array([2, 3])}, "test: node 2"),
        ({"validation": np.array([7])}, "validation: node 7"),
        ({"validation": np.array([2, 2])}, "twice"),
        ({"train": np.ones(5, dtype=bool)}, "mask"),
        ({"labels_N": np.array([0, 1, -1, 0, 0])}, "labels"),
        ({"labels_N": np.array([0, 1])}, "features"),
    ],
)
def test_a_split_that_contradicts_itself_is_refused(change, told):
    with pytest.raises(BadInput, match=told):
        data.check(replace(clients()[0], nodes=replace(SPLIT, **change)))


def test_masks_become_node_numbers():
    made = from_masks(SPLIT.labels_N, np.arange(5) < 2, np.arange(5) == 2, np.arange(5) > 2)
    assert (made.train.tolist(), made.validation.tolist(), made.test.tolist()) == ([0, 1], [2], [3, 4])
    with pytest.raises(BadInput, match="test mask: 4"):
        from_masks(SPLIT.labels_N, np.ones(5, bool), np.ones(5, bool), np.ones(4, bool))


def edges_of(local):
    return local.graph.edges.T.tolist()


def test_special_cases_rearrange_edges_and_features():
    (everything,) = data.arrange("centralised", clients())
    assert edges_of(everything) == [[0, 1], [1, 2], [3, 4]]
    assert everything.features_NF.shape == (5, 5)
    simulated = data.arrange("simulated-centralised", clients())
    assert [edges_of(local) for local in simulated] == [[[0, 1], [1, 2], [3, 4]]] * 2
    assert [local.features_NF.shape[1] for local in simulated] == [2, 3]
    assert [edges_of(local) for local in data.arrange("vfl", clients())] == [[], []]
    assert [edges_of(local) for local in data.arrange("standalone", clients())] == [[[0, 1], [1, 2]], [[1, 2], [3, 4]]]


def test_renumbering_moves_edges_features_labels_and_split_together():
    local, numbers = replace(clients()[0], features_NF=np.arange(10, dtype=np.float32).reshape(5, 2)), [3, 0, 4, 1, 2]
    moved = data.renumber(local, np.array(numbers))
    assert edges_of(moved) == [[0, 3], [0, 4]]
    for node, number in enumerate(numbers):
        np.testing.assert_array_equal(moved.features_NF[number], local.features_NF[node])
        assert moved.nodes.labels_N[number] == SPLIT.labels_N[node]
    assert [some.tolist() for some in (moved.nodes.train, moved.nodes.test)] == [[0, 3], [1, 2]]


def test_scaling_gives_rows_a_common_mean_length_and_keeps_proportions():
    local = replace(clients()[0], features_NF=np.array([[3, 4], [0, 0], [0, 10], [0, 5], [5, 0]], dtype=np.float32))
    np.testing.assert_allclose(data.scale_features(local).features_NF, local.features_NF * 0.5)
    empty = replace(local, features_NF=np.zeros((5, 2), dtype=np.float32))
    assert data.scale_features(empty) is empty

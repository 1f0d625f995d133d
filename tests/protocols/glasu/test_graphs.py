"""Shares and splits: what is refused, and what each special case trains on."""

from dataclasses import replace

import numpy as np
import pytest

from fedactors.errors import BadInput
from protocols.glasu import data
from protocols.glasu.data import GraphShare, NodeSplit


def shares():
    edges = [np.array([[0, 1], [1, 2]]), np.array([[2, 3], [1, 4]])]
    return [GraphShare(f"client-{m}", e, np.full((5, m + 2), m, dtype=np.float32)) for m, e in enumerate(edges)]


def split():
    return NodeSplit(np.array([0, 1, 0, 1, 0]), np.array([0, 1]), np.array([2]), np.array([3, 4]))


def test_fitting_shares_pass_without_remark():
    data.check(shares(), split())


def test_a_client_without_edges_is_allowed_and_said():
    lonely = replace(shares()[0], edges_2E=np.empty((2, 0), dtype=np.int64))
    data.check([lonely, shares()[1]], split())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"features_NF": np.zeros((4, 2), np.float32)}, "features of client-0: 4 rows"),
        ({"features_NF": np.zeros((5, 0), np.float32)}, "empty block"),
        ({"edges_2E": np.array([[0], [5]])}, "node 5"),
        ({"edges_2E": np.array([[-1], [0]])}, "node -1"),
        ({"edges_2E": np.array([0, 1])}, "shape"),
    ],
)
def test_a_share_that_does_not_fit_is_refused(change, told):
    with pytest.raises(BadInput, match=told):
        data.check([replace(shares()[0], **change), shares()[1]], split())


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
        data.check(shares(), replace(split(), **change))


def test_no_clients_is_refused():
    with pytest.raises(BadInput, match="clients"):
        data.check([], split())


def test_masks_become_node_numbers():
    made = data.from_masks(split().labels_N, np.arange(5) < 2, np.arange(5) == 2, np.arange(5) > 2)
    assert (made.train.tolist(), made.validation.tolist(), made.test.tolist()) == ([0, 1], [2], [3, 4])
    with pytest.raises(BadInput, match="test mask: 4"):
        data.from_masks(split().labels_N, np.ones(5, bool), np.ones(5, bool), np.ones(4, bool))


def test_special_cases_rearrange_edges_and_features():
    (everything,) = data.arrange("centralised", shares())
    assert everything.edges_2E.T.tolist() == [[0, 1], [1, 2], [3, 4]]
    assert everything.features_NF.shape == (5, 5)
    simulated = data.arrange("simulated-centralised", shares())
    assert [s.edges_2E.shape[1] for s in simulated] == [3, 3]
    assert [s.features_NF.shape[1] for s in simulated] == [2, 3]
    assert all(s.edges_2E.size == 0 for s in data.arrange("vfl", shares()))
    assert [s.edges_2E.tolist() for s in data.arrange("standalone", shares())] == [
        s.edges_2E.tolist() for s in shares()
    ]


def test_scaling_gives_rows_a_common_mean_length_and_keeps_proportions():
    share = replace(shares()[0], features_NF=np.array([[3, 4], [0, 0], [0, 10], [0, 5], [5, 0]], dtype=np.float32))
    scaled = data.scale_features(share)
    np.testing.assert_allclose(scaled.features_NF, share.features_NF * 0.5)
    empty = replace(share, features_NF=np.zeros((5, 2), dtype=np.float32))
    assert data.scale_features(empty) is empty

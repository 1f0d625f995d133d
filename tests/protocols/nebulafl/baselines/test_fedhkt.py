import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protocols.nebulafl.baselines import fedhkt


def test_clusters_follow_label_shares_not_sizes():
    counts = np.array([[90, 10], [1, 9], [9, 1], [10, 95]])
    assert fedhkt.label_clusters(counts, 2) == [[1, 3], [0, 2]]


def test_cluster_logits_are_weighted_by_samples():
    logits = [np.array([[1.0, 0.0]], np.float32), np.array([[5.0, 4.0]], np.float32)]
    np.testing.assert_allclose(fedhkt.cluster_logits(logits, [30, 10]), [[2.0, 1.0]])


def test_a_cluster_is_believed_where_it_has_samples():
    np.testing.assert_allclose(
        fedhkt.class_weights(np.array([[3, 0, 0], [1, 5, 0]])), [[0.75, 0.0, 0.5], [0.25, 1.0, 0.5]]
    )


def test_ensemble_by_hand():
    even, sure = np.zeros((1, 2)), np.array([[np.log(3.0), 0.0]])
    # weights: class 0 all to the first cluster, class 1 all to the second -> (0.5, 0.25), normalised
    np.testing.assert_allclose(fedhkt.ensemble([even, sure], np.array([[4, 0], [0, 4]])), [[2 / 3, 1 / 3]], rtol=1e-6)


@given(
    arrays(np.float64, (2, 5, 3), elements=st.floats(-30, 30)), arrays(np.int64, (2, 3), elements=st.integers(1, 50))
)
def test_ensembles_are_probabilities(logits, counts):
    made = fedhkt.ensemble(list(logits), counts, temperature=2.0)
    assert (made >= 0).all()
    np.testing.assert_allclose(made.sum(axis=1), 1.0, rtol=1e-5)


def test_one_cluster_is_its_own_softmax():
    logits = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(fedhkt.ensemble([logits], np.array([[5, 9, 1]])), fedhkt.softmax(logits), rtol=1e-6)

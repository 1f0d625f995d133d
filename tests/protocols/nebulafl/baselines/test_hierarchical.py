"""Rounds inside a center, clusters and ensembles, by hand."""

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedactors.learning.local_training import weighted_mean
from fedactors.protocols.nebulafl.baselines import hierarchical
from fedactors.protocols.nebulafl.baselines.hierarchical import (
    MeanRound,
    RingRound,
    RoundDesk,
    center_method,
    ensemble,
    kmeans,
    rings,
)
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.messages import ClusterLogits, RoundOrder, RoundResult
from fedactors.runtime import snapshots
from fedactors.serving.parts import softmax


def vector(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float32)


def trained(value: float, num_samples: int = 10, logits=None):
    return vector(value), 1.0, num_samples, logits


# --- hierarchical FedAvg ---


def test_average_by_hand():
    made = MeanRound([[1, 2]], vector(0))
    assert [s.container for s in made.starts()] == [1, 2]
    assert made.finished(2, trained(4, 10), 0.0) == []
    assert not made.complete
    assert made.finished(1, trained(1, 30), 0.0) == []
    assert made.complete
    np.testing.assert_allclose(made.parameters_P, 1.75)
    assert (made.num_samples, made.num_models) == (40, 2)


def test_the_last_answer_of_a_round_starts_the_next_from_the_mean():
    made = MeanRound([[1, 2], [2, 3]], vector(0))
    made.finished(1, trained(1), 0.0)
    starts = made.finished(2, trained(3), 0.0)
    assert [(s.container, float(s.parameters[0])) for s in starts] == [(2, 2.0), (3, 2.0)]


def test_who_was_not_called_or_answers_twice_is_refused():
    made = MeanRound([[3, 5, 8]], vector(0))
    made.finished(8, trained(8), 0.0)
    made.lose(5)
    for outsider in (5, 4, 8):
        with pytest.raises(ValueError, match="was not called"):
            made.finished(outsider, trained(0), 0.0)
    made.finished(3, trained(2), 0.0)
    np.testing.assert_allclose(made.parameters_P, 5.0)


def test_rounds_that_lost_everyone_or_called_nobody_are_over():
    made = MeanRound([[1], [2]], vector(7))
    assert [s.container for s in made.lose(1)] == [2]
    made.lose(2)
    assert made.complete
    assert made.num_models == 0
    empty = MeanRound([[], []], vector(7))
    assert empty.starts() == []
    assert empty.complete
    assert RingRound({}, 3, vector(7), 0.0).complete


def test_centers_averaged_again_are_the_flat_average():
    generator = np.random.default_rng(0)
    updates = [(generator.normal(size=5).astype(np.float32), int(n)) for n in generator.integers(1, 99, 12)]

    def mean(part):
        return weighted_mean([p for p, _ in part], [n for _, n in part]), sum(n for _, n in part)

    centers = [mean(updates[:3]), mean(updates[3:7]), mean(updates[7:])]
    answers = [RoundResult(str(n), 0, size, 1, model) for n, (model, size) in enumerate(centers)]
    made = center_method(NebulaFLConfig(algorithm="fedavg-hierarchical")).combine(answers)
    np.testing.assert_allclose(made, mean(updates)[0], rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg-hierarchical", "fedhisyn", "fedhkt"])
def test_a_snapshot_in_the_middle_of_a_round(algorithm):
    method = center_method(NebulaFLConfig(algorithm=algorithm))
    first, second = RoundDesk(method), RoundDesk(method)
    order = RoundOrder(4, 2, vector(0))
    first.number = 4
    first.round = method.new_round(order, [1, 2], np.array([0.0, 1.0, 2.0]), 0.0, np.random.default_rng(0))
    first.round.starts()
    first.round.finished(1, trained(1, logits=np.ones((2, 3))), 1.0)
    second.load_state_dict(snapshots.unpack(snapshots.pack(first.state_dict(), "desk")))
    for desk in (first, second):
        desk.round.finished(2, trained(2, logits=np.ones((2, 3))), 2.0)
        desk.round.lose(1)
    assert second.number == 4
    labels = [np.array([0, 1])] * 3
    answers = [method.answer("x", 4, desk.round, labels, 3) for desk in (first, second)]
    for name in answers[0].__slots__:
        np.testing.assert_array_equal(getattr(answers[0], name), getattr(answers[1], name))
    assert method.weight(answers[0]) > 0


# --- FedHiSyn ---

SECONDS = {0: 10.0, 1: 95.0, 2: 12.0, 3: 100.0, 4: 11.0}


def test_rings_join_containers_of_like_speed_from_fast_to_slow():
    assert rings(SECONDS, 2) == [[0, 4, 2], [1, 3]]
    assert rings({7: 5.0, 9: 5.0}, 3) == [[7, 9]]


def test_kmeans_finds_separated_groups_and_never_empty_ones():
    generator = np.random.default_rng(0)
    groups = np.concatenate([generator.normal(m, 0.1, (10, 2)) for m in (5, 0, 9)])
    assert kmeans(groups, 3) == [list(range(10, 20)), list(range(10)), list(range(20, 30))]
    assert sorted(c for cluster in kmeans(groups, 7) for c in cluster) == list(range(30))
    assert kmeans(np.ones((4, 1)), 3) == [[0, 1, 2, 3]]


def play(seconds: dict[int, float], num_clusters: int) -> tuple[RingRound, dict[int, int], float]:
    """Run a round whose trainings add 1 to a model; return how often each trained and when it ended."""
    ring = RingRound(seconds, num_clusters, vector(0), now=0.0)
    heap = [(seconds[s.container], s.container, float(s.parameters[0])) for s in ring.starts()]
    heapq.heapify(heap)
    counts, now = dict.fromkeys(seconds, 0), 0.0
    while heap:
        now, container, value = heapq.heappop(heap)
        counts[container] += 1
        going_on = ring.finished(container, trained(value + 1), now)
        for start in going_on:
            assert start.container == container
            heapq.heappush(heap, (now + seconds[container], container, float(start.parameters[0])))
    return ring, counts, now


def test_the_fast_train_on_while_the_slowest_trains_and_nothing_ends_later():
    ring, counts, end = play(SECONDS, 2)
    assert ring.complete
    assert end == 100.0
    assert counts == {0: 10, 1: 1, 2: 8, 3: 1, 4: 9}


def test_models_go_round_the_ring():
    ring = RingRound({0: 10.0, 1: 11.0, 2: 40.0}, 1, vector(0), now=5.0)
    assert [s.container for s in ring.starts()] == [0, 1, 2]
    assert [s.parameters for s in ring.finished(0, trained(1), 15.0)] == [vector(1)]
    assert [s.parameters for s in ring.finished(1, trained(2), 16.0)] == [vector(1)]
    assert [s.parameters for s in ring.finished(0, trained(3), 25.0)] == [vector(3)]
    assert not ring.complete
    assert ring.finished(2, trained(4), 45.0) == []
    assert ring.finished(0, trained(6), 45.0) == []
    assert ring.finished(1, trained(5), 45.0) == []
    assert ring.complete
    np.testing.assert_allclose(ring.parameters_P, 5.0)
    assert (ring.num_models, ring.num_samples) == (3, 30)
    with pytest.raises(ValueError, match="not training"):
        ring.finished(1, trained(5), 50.0)


def test_a_lost_container_leaves_a_smaller_ring():
    ring = RingRound({0: 1.0, 1: 1.0, 2: 10.0}, 1, vector(0), now=0.0)
    ring.lose(1)
    assert ring.successor == {0: 2, 2: 0}
    ring.lose(2)
    assert ring.successor == {0: 0}
    assert [s.parameters for s in ring.finished(0, trained(7), 1.0)] == [vector(7)]
    ring.lose(0)
    np.testing.assert_allclose(ring.parameters_P, 7.0)


def test_a_round_without_any_result():
    ring = RingRound({0: 1.0}, 1, vector(0), now=0.0)
    ring.lose(0)
    assert ring.complete
    assert ring.num_models == 0


# --- FedHKT ---


def test_clusters_follow_label_shares_not_sizes():
    counts = np.array([[90, 10], [1, 9], [9, 1], [10, 95]])
    assert hierarchical.label_clusters(counts, 2) == [[1, 3], [0, 2]]


def test_cluster_logits_are_weighted_by_samples():
    logits = [np.array([[1.0, 0.0]], np.float32), np.array([[5.0, 4.0]], np.float32)]
    np.testing.assert_allclose(hierarchical.cluster_logits(logits, [30, 10]), [[2.0, 1.0]])


def test_a_cluster_is_believed_where_it_has_samples():
    np.testing.assert_allclose(
        hierarchical.class_weights(np.array([[3, 0, 0], [1, 5, 0]])), [[0.75, 0.0, 0.5], [0.25, 1.0, 0.5]]
    )


def test_ensemble_by_hand():
    even, sure = np.zeros((1, 2)), np.array([[np.log(3.0), 0.0]])
    # weights: class 0 all to the first cluster, class 1 all to the second -> (0.5, 0.25), normalised
    np.testing.assert_allclose(ensemble([even, sure], np.array([[4, 0], [0, 4]])), [[2 / 3, 1 / 3]], rtol=1e-6)


@pytest.mark.slow
@given(
    arrays(np.float64, (2, 5, 3), elements=st.floats(-30, 30)), arrays(np.int64, (2, 3), elements=st.integers(1, 50))
)
def test_ensembles_are_probabilities(logits, counts):
    made = ensemble(list(logits), counts)
    assert (made >= 0).all()
    np.testing.assert_allclose(made.sum(axis=1), 1.0, rtol=1e-5)


def test_one_cluster_is_its_own_softmax():
    logits = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(ensemble([logits], np.array([[5, 9, 1]])), softmax(logits), rtol=1e-6)


def test_a_center_answers_with_clusters_of_its_containers_and_none_with_nothing():
    method = center_method(NebulaFLConfig(algorithm="fedhkt", num_clusters=2))
    made = MeanRound([[0, 1, 2]], vector(0))
    for container in (0, 1):
        made.finished(container, trained(0, 3, np.full((4, 2), float(container))), 0.0)
    made.lose(2)
    labels = [np.array([0, 0, 0]), np.array([1, 1, 1]), np.array([0, 1])]
    answer = method.answer("x", 0, made, labels, 2)
    assert isinstance(answer, ClusterLogits)
    np.testing.assert_array_equal(answer.counts, [[0, 3], [3, 0]])
    np.testing.assert_array_equal(answer.logits[:, 0, 0], [1, 0])
    assert method.weight(method.answer("x", 0, MeanRound([[]], vector(0)), labels, 2)) == 0

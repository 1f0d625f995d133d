import heapq

import numpy as np
import pytest

from protocols.nebulafl.baselines.clustering import kmeans
from protocols.nebulafl.baselines.fedhisyn import RingRound, rings

SECONDS = {0: 10.0, 1: 95.0, 2: 12.0, 3: 100.0, 4: 11.0}


def vector(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float32)


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
    trained, now = dict.fromkeys(seconds, 0), 0.0
    while heap:
        now, container, value = heapq.heappop(heap)
        trained[container] += 1
        going_on = ring.finished(container, vector(value + 1), now)
        if going_on is not None:
            assert going_on.container == container
            heapq.heappush(heap, (now + seconds[container], container, float(going_on.parameters[0])))
    return ring, trained, now


def test_the_fast_train_on_while_the_slowest_trains_and_nothing_ends_later():
    ring, trained, end = play(SECONDS, 2)
    assert ring.complete
    assert end == 100.0
    assert trained == {0: 10, 1: 1, 2: 8, 3: 1, 4: 9}


def test_models_go_round_the_ring():
    ring = RingRound({0: 10.0, 1: 11.0, 2: 40.0}, 1, vector(0), now=5.0)
    assert [s.container for s in ring.starts()] == [0, 1, 2]
    assert ring.finished(0, vector(1), 15.0).parameters == vector(1)
    assert ring.finished(1, vector(2), 16.0).parameters == vector(1)
    assert ring.finished(0, vector(3), 25.0).parameters == vector(3)
    with pytest.raises(ValueError, match="are training"):
        ring.result()
    assert ring.finished(2, vector(4), 45.0) is None
    assert ring.finished(0, vector(6), 45.0) is None
    assert ring.finished(1, vector(5), 45.0) is None
    np.testing.assert_allclose(ring.result(), 5.0)
    with pytest.raises(ValueError, match="not training"):
        ring.finished(1, vector(5), 50.0)


def test_a_lost_container_leaves_a_smaller_ring():
    ring = RingRound({0: 1.0, 1: 1.0, 2: 10.0}, 1, vector(0), now=0.0)
    ring.lose(1)
    assert ring.successor == {0: 2, 2: 0}
    ring.lose(2)
    assert ring.successor == {0: 0}
    assert ring.finished(0, vector(7), 1.0).parameters == vector(7)
    ring.lose(0)
    np.testing.assert_allclose(ring.result(), 7.0)


def test_a_round_without_any_result():
    ring = RingRound({0: 1.0}, 1, vector(0), now=0.0)
    ring.lose(0)
    assert ring.complete
    assert ring.result() is None


def test_a_snapshot_gives_the_same_future():
    first = RingRound({0: 1.0, 1: 2.0}, 1, vector(0), now=0.0)
    first.finished(0, vector(1), 1.0)
    second = RingRound({9: 1.0}, 1, vector(0), now=0.0)
    second.load_state_dict(first.state_dict())
    ends = [r.finished(1, vector(2), 2.0) for r in (first, second)]
    assert ends == [None, None]
    assert first.training == second.training == {0}

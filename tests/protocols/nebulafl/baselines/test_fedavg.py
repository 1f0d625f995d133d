import numpy as np
import pytest

from protocols.nebulafl.baselines.fedavg import SynchronousRound, Update, average, crosses_centers, sample


def update(value: float, num_samples: int) -> Update:
    return Update(np.full(2, value, np.float32), num_samples)


def test_average_by_hand():
    made = average([update(1, 30), update(4, 10)])
    np.testing.assert_allclose(made.parameters, 1.75)
    assert made.num_samples == 40


def test_centers_averaged_again_are_the_flat_average():
    generator = np.random.default_rng(0)
    updates = [Update(generator.normal(size=5).astype(np.float32), int(n)) for n in generator.integers(1, 99, 12)]
    centers = [average(updates[:3]), average(updates[3:7]), average(updates[7:])]
    np.testing.assert_allclose(average(centers).parameters, average(updates).parameters, rtol=1e-5)


def test_a_round_is_complete_when_all_answered_or_were_lost():
    collecting = SynchronousRound([3, 5, 8])
    collecting.arrive(8, update(8, 1))
    with pytest.raises(ValueError, match=r"\[3, 5\] have not answered"):
        collecting.result()
    collecting.arrive(3, update(2, 1))
    collecting.lose(5)
    assert collecting.complete
    np.testing.assert_allclose(collecting.result().parameters, 5.0)
    for stranger in (5, 4, 8):
        with pytest.raises(ValueError, match="was not called"):
            collecting.arrive(stranger, update(0, 1))


def test_a_round_that_lost_everyone_has_no_result():
    collecting = SynchronousRound([1])
    collecting.lose(1)
    assert collecting.result() is None


def test_models_are_added_in_the_order_of_containers_not_of_arrival():
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        collecting = SynchronousRound([0, 1, 2])
        for container in order:
            collecting.arrive(container, update((1e20, -1e20, 3.0)[container], 1))
        np.testing.assert_allclose(collecting.result().parameters, 1.0)


def test_a_snapshot_in_the_middle_of_a_round():
    first, second = SynchronousRound([1, 2]), SynchronousRound([])
    first.arrive(2, update(4, 1))
    second.load_state_dict(first.state_dict())
    second.arrive(1, update(2, 1))
    np.testing.assert_allclose(second.result().parameters, 3.0)
    assert not first.complete


def test_samples_are_different_and_from_the_idle():
    idle = [2, 3, 5, 7, 11]
    drawn = [sample(idle, 3, np.random.default_rng(seed)) for seed in range(30)]
    assert all(len(set(d)) == 3 and set(d) <= set(idle) and d == sorted(d) for d in drawn)
    assert {c for d in drawn for c in d} == set(idle)
    assert sample(idle, 9, np.random.default_rng(0)) == idle


def test_hierarchical_rounds_cross_every_so_often():
    assert [crosses_centers(r, 3) for r in range(6)] == [False, False, True, False, False, True]

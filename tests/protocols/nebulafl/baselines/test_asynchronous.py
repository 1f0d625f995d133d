import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.nebulafl.baselines.arrivals import Arrival, discount, staleness
from protocols.nebulafl.baselines.fedasync import FedAsync
from protocols.nebulafl.baselines.fedbuff import FedBuff
from protocols.nebulafl.baselines.fedsa import FedSA
from protocols.nebulafl.baselines.gitfl import GitFL
from protocols.nebulafl.baselines.pisces import Pisces, utility


def vector(value: float) -> np.ndarray:
    return np.full(2, value, dtype=np.float32)


def arrival(value: float, *, container=0, start=0.0, version=0, num_samples=10, loss_rms=1.0, seconds=4.0) -> Arrival:
    return Arrival(
        container=container, start=vector(start), parameters=vector(value), version=version,
        num_samples=num_samples, loss_rms=loss_rms, seconds=seconds,
    )  # fmt: skip


def test_discounts_by_hand():
    assert discount("constant", 7) == 1
    assert discount("polynomial", 3, exponent=0.5) == 0.5
    assert [discount("hinge", v) for v in (0, 4, 5)] == [1, 1, 1 / 11]
    assert staleness(5, 2) == 3
    with pytest.raises(ValueError, match="future"):
        staleness(1, 2)


def test_fedasync_mixes_fresh_and_stale_arrivals():
    server = FedAsync(vector(0), mixing=0.6)
    assert server.arrive(arrival(10)) == pytest.approx(0.6)
    np.testing.assert_allclose(server.model_P, 6.0, rtol=1e-6)
    assert server.arrive(arrival(0, version=0)) == pytest.approx(0.6 / 2**0.5)
    np.testing.assert_allclose(server.model_P, 6.0 * (1 - 0.6 / 2**0.5), rtol=1e-6)
    assert server.version == 2


def test_fedbuff_moves_when_the_buffer_is_full():
    server = FedBuff(vector(1), buffer_size=2)
    assert not server.arrive(arrival(3, start=1))
    np.testing.assert_array_equal(server.model_P, 1.0)
    assert server.arrive(arrival(5, start=1))
    np.testing.assert_allclose(server.model_P, 1 + (2 + 4) / 2)
    server.version = 4
    server.arrive(arrival(4, start=2, version=1))
    server.arrive(arrival(4, start=4, version=4))
    np.testing.assert_allclose(server.model_P, 4 + 0.5 * 2 / 2)


def test_fresh_and_equal_arrivals_make_fedbuff_the_plain_mean():
    server = FedBuff(vector(0), buffer_size=3)
    for value in (1, 2, 6):
        server.arrive(arrival(value))
    np.testing.assert_allclose(server.model_P, 3.0)


def test_fedsa_keeps_the_rest_of_the_model():
    server = FedSA(vector(10), total_samples=100, num_containers=4, num_arrivals=2)
    server.arrive(arrival(0, container=3, num_samples=30))
    assert not server.due(5.0)
    server.arrive(arrival(20, container=1, num_samples=10))
    assert server.due(5.0)
    assert server.aggregate(5.0) == [1, 3]
    np.testing.assert_allclose(server.model_P, 0.3 * 0 + 0.1 * 20 + 0.6 * 10, rtol=1e-6)
    assert not server.due(6.0)


def test_fedsa_with_everyone_is_fedavg():
    server = FedSA(vector(99), total_samples=40, num_containers=2, num_arrivals=2)
    server.arrive(arrival(1, container=0, num_samples=30))
    server.arrive(arrival(4, container=1, num_samples=10))
    server.aggregate(0.0)
    np.testing.assert_allclose(server.model_P, 1.75)


def test_fedsa_with_a_window_waits_for_its_end():
    server = FedSA(vector(0), 10, 2, num_arrivals=1, window=60.0)
    assert not server.due(70.0)
    server.arrive(arrival(1))
    assert not server.due(59.0)
    assert server.due(60.0)


def test_fedsa_slows_the_frequent_and_recalls_the_outdated():
    server = FedSA(vector(0), 100, num_containers=2, num_arrivals=1, staleness_bound=2)
    assert server.rate_factor(0) == 1.0
    for _ in range(3):
        server.arrive(arrival(1, container=0, version=server.version))
        server.aggregate(0.0)
    assert server.rate_factor(0) == pytest.approx(0.5)
    assert server.rate_factor(1) == pytest.approx(2.0)
    assert server.outdated({0: 3, 1: 0, 7: 1}) == [1]


def test_pisces_utility_by_hand():
    assert utility(10, 2.0, 4.0, 3.0) == pytest.approx(10 * 2 / 2 / 2)


def test_pisces_tries_everyone_then_takes_the_most_useful():
    server = Pisces(vector(0))
    assert server.choose([4, 2, 9], 2) == [2, 4]
    server.arrive(arrival(1, container=2, loss_rms=1.0))
    server.arrive(arrival(1, container=4, loss_rms=3.0))
    assert server.choose([2, 4, 9], 2) == [9, 4]
    server.arrive(arrival(1, container=9, loss_rms=3.0, seconds=400.0))
    assert server.choose([2, 4, 9], 3) == [4, 2, 9]


def test_pisces_paces_by_the_slowest_running():
    server = Pisces(vector(1), staleness_bound=4)
    assert not server.due(1e9, [40.0])
    server.arrive(arrival(3, start=1, num_samples=30))
    server.arrive(arrival(9, start=1, num_samples=10))
    assert server.due_at([8.0, 40.0]) == 10.0
    assert not server.due(9.9, [8.0, 40.0])
    assert server.due(10.0, [8.0, 40.0])
    assert server.due(0.0, [])
    server.aggregate(10.0)
    np.testing.assert_allclose(server.model_P, 1 + (30 * 2 + 10 * 8) / 40)
    assert server.due_at([40.0]) == 20.0


def test_pisces_forgets_old_staleness():
    server = Pisces(vector(0))
    server.version = 8
    for version in (0, 8, 8, 8, 8):
        server.arrive(arrival(0, version=version))
    assert server.utility_of(0) == pytest.approx(utility(10, 1.0, 4.0, 8 / 5))
    server.arrive(arrival(0, version=8))
    assert server.utility_of(0) == pytest.approx(utility(10, 1.0, 4.0, 0.0))


def test_gitfl_counts_the_push_before_the_pull():
    server = GitFL([vector(0), vector(4)], versions=[1, 1])
    made = server.push(0, vector(2))
    # versions (2, 1), master (2 * 2 + 4) / 3 = 8/3, gap 0.5, weight 10.5
    np.testing.assert_allclose(made, (10.5 * 2 + 8 / 3) / 11.5, rtol=1e-6)
    assert server.versions == [2, 1]
    assert server.gap(0) == 0.5
    np.testing.assert_array_equal(server.branches[1], 4.0)


values = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


@given(values)
def test_servers_stay_between_what_they_were_given(given_values):
    mixing = FedAsync(vector(0))
    partial = FedSA(vector(0), total_samples=100, num_containers=9, num_arrivals=1)
    git = GitFL([vector(0)] * 3)
    least, greatest = min(0, *given_values), max(0, *given_values)
    for number, value in enumerate(given_values):
        mixing.arrive(arrival(value))
        partial.arrive(arrival(value, container=number))
        partial.aggregate(0.0)
        git.push(number % 3, vector(value))
        for model in (mixing.model_P, partial.model_P, git.master(), *git.branches):
            assert least - 1e-4 <= model[0] <= greatest + 1e-4


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAsync(vector(0)),
        lambda: FedBuff(vector(0), buffer_size=3),
        lambda: FedSA(vector(0), 100, 4, num_arrivals=3),
        lambda: Pisces(vector(0)),
    ],
)
def test_a_snapshot_gives_the_same_future(make):
    first, second = make(), make()
    first.arrive(arrival(3, container=1))
    second.load_state_dict(first.state_dict())
    for server in (first, second):
        server.arrive(arrival(5, container=2))
        server.arrive(arrival(7, container=3))
        if isinstance(server, FedSA | Pisces):
            server.aggregate(9.0)
    np.testing.assert_array_equal(first.model_P, second.model_P)
    assert (first.model_P != 0).all()
    assert first.version == second.version > 0


def test_a_snapshot_of_gitfl():
    first, second = GitFL([vector(0)] * 2), GitFL([vector(9)] * 2)
    first.push(0, vector(1))
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(first.push(1, vector(2)), second.push(1, vector(2)))

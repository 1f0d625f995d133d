import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedactors.protocols.nebulafl.baselines.flat_averaging import (
    FedAsync,
    FedAvg,
    FedBuff,
    FedSA,
    FlatServer,
    GitFL,
    Pisces,
    Task,
    polynomial,
    pull,
    pull_weight,
    sample,
    staleness,
    utility,
)
from fedactors.protocols.nebulafl.config import NebulaFLConfig
from fedactors.protocols.nebulafl.messages import TrainingResult
from fedactors.protocols.nebulafl.scheduler import ContainerTable
from fedactors.runtime import snapshots


def vector(value: float) -> np.ndarray:
    return np.full(2, value, dtype=np.float32)


def arrival(
    value: float, *, container=0, start=0.0, version=0, num_samples=10, loss_rms=1.0, seconds=4.0, slot=0
) -> tuple[Task, TrainingResult]:
    task = Task(1, container, slot, version, vector(start))
    return task, TrainingResult(1, "oregon", num_samples, loss_rms, seconds, vector(value))


def test_discounts_by_hand():
    assert polynomial(3, 0.5) == 0.5
    assert staleness(5, 2) == 3
    with pytest.raises(ValueError, match="future"):
        staleness(1, 2)


def test_fedasync_mixes_fresh_and_stale_arrivals():
    server = FedAsync(vector(0), mixing=0.6)
    server.arrive(*arrival(10))
    np.testing.assert_allclose(server.model_P, 6.0, rtol=1e-6)
    server.arrive(*arrival(0, version=0))
    np.testing.assert_allclose(server.model_P, 6.0 * (1 - 0.6 / 2**0.5), rtol=1e-6)
    assert server.version == 2


def test_fedbuff_moves_when_the_buffer_is_full():
    server = FedBuff(vector(1), buffer_size=2)
    server.arrive(*arrival(3, start=1))
    assert not server.due(0.0, [])
    server.arrive(*arrival(5, start=1))
    assert server.due(0.0, [])
    server.aggregate(0.0)
    assert server.version == 1
    np.testing.assert_allclose(server.model_P, 1 + (2 + 4) / 2)
    server.version = 4
    server.arrive(*arrival(4, start=2, version=1))
    server.arrive(*arrival(4, start=4, version=4))
    server.aggregate(0.0)
    np.testing.assert_allclose(server.model_P, 4 + 0.5 * 2 / 2)


def test_fresh_and_equal_arrivals_make_fedbuff_the_plain_mean():
    server = FedBuff(vector(0), buffer_size=3)
    for value in (1, 2, 6):
        server.arrive(*arrival(value))
    server.aggregate(0.0)
    np.testing.assert_allclose(server.model_P, 3.0)


def test_fedsa_keeps_the_rest_of_the_model():
    server = FedSA(vector(10), total_samples=100, num_containers=4, num_arrivals=2)
    server.arrive(*arrival(0, container=3, num_samples=30))
    assert not server.due(5.0, [])
    server.arrive(*arrival(20, container=1, num_samples=10))
    assert server.due(5.0, [])
    server.aggregate(5.0)
    np.testing.assert_allclose(server.model_P, 0.3 * 0 + 0.1 * 20 + 0.6 * 10, rtol=1e-6)
    assert not server.due(6.0, [])


def test_fedsa_with_everyone_is_fedavg():
    server = FedSA(vector(99), total_samples=40, num_containers=2, num_arrivals=2)
    server.arrive(*arrival(1, container=0, num_samples=30))
    server.arrive(*arrival(4, container=1, num_samples=10))
    server.aggregate(0.0)
    np.testing.assert_allclose(server.model_P, 1.75)


def test_fedsa_with_a_window_waits_for_its_end():
    server = FedSA(vector(0), 10, 2, num_arrivals=1, window=60.0)
    assert not server.due(70.0, [])
    server.arrive(*arrival(1))
    assert not server.due(59.0, [])
    assert server.due(60.0, [])


def test_fedsa_slows_the_frequent_and_recalls_the_outdated():
    server = FedSA(vector(0), 100, num_containers=2, num_arrivals=1, staleness_bound=2)
    assert server.rate_factor(0) == 1.0
    for _ in range(3):
        server.arrive(*arrival(1, container=0, version=server.version))
        server.aggregate(0.0)
    assert server.rate_factor(0) == pytest.approx(0.5)
    assert server.rate_factor(1) == pytest.approx(2.0)
    assert server.outdated({0: 3, 1: 0, 7: 1}) == [1]


def test_pisces_utility_by_hand():
    assert utility(10, 2.0, 4.0, 3.0) == pytest.approx(10 * 2 / 2 / 2)


def test_pisces_tries_everyone_then_takes_the_most_useful():
    server = Pisces(vector(0))

    def best(idle, count):
        table = ContainerTable(np.ones((1, 10)))
        for container in set(range(10)) - set(idle):
            table.occupy(container)
        return [container for _, container in server.choose(table, range(count), np.random.default_rng(0))]

    assert best([4, 2, 9], 2) == [2, 4]
    server.arrive(*arrival(1, container=2, loss_rms=1.0))
    server.arrive(*arrival(1, container=4, loss_rms=3.0))
    assert best([2, 4, 9], 2) == [9, 4]
    server.arrive(*arrival(1, container=9, loss_rms=3.0, seconds=400.0))
    assert best([2, 4, 9], 3) == [4, 2, 9]


def test_pisces_paces_by_the_slowest_running():
    server = Pisces(vector(1), staleness_bound=4)
    assert not server.due(1e9, [40.0])
    assert server.due_at([40.0]) is None
    server.arrive(*arrival(3, start=1, num_samples=30))
    server.arrive(*arrival(9, start=1, num_samples=10))
    assert server.due_at([8.0, 40.0]) == 10.0
    assert not server.due(9.9, [8.0, 40.0])
    assert server.due(10.0, [8.0, 40.0])
    assert server.due(0.0, [])
    server.aggregate(10.0)
    np.testing.assert_allclose(server.model_P, 1 + (30 * 2 + 10 * 8) / 40)
    server.arrive(*arrival(3))
    assert server.due_at([40.0]) == 20.0


def test_pisces_forgets_old_staleness():
    server = Pisces(vector(0))
    server.version = 8
    for version in (0, 8, 8, 8, 8):
        server.arrive(*arrival(0, version=version))
    assert server.utility_of(0) == pytest.approx(utility(10, 1.0, 4.0, 8 / 5))
    server.arrive(*arrival(0, version=8))
    assert server.utility_of(0) == pytest.approx(utility(10, 1.0, 4.0, 0.0))


def test_gitfl_counts_the_push_before_the_pull():
    server = GitFL([vector(0), vector(4)], versions=[1, 1])
    server.arrive(*arrival(2, slot=0))
    # versions (2, 1), master (2 * 2 + 4) / 3 = 8/3, gap 0.5, weight 10.5
    np.testing.assert_allclose(server.branches[0], (10.5 * 2 + 8 / 3) / 11.5, rtol=1e-6)
    assert server.versions == [2, 1]
    assert server.gap(0) == 0.5
    np.testing.assert_array_equal(server.branches[1], 4.0)


values = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


@pytest.mark.slow
@given(values)
def test_servers_stay_between_what_they_were_given(given_values):
    mixing = FedAsync(vector(0))
    partial = FedSA(vector(0), total_samples=100, num_containers=9, num_arrivals=1)
    git = GitFL([vector(0)] * 3)
    least, greatest = min(0, *given_values), max(0, *given_values)
    for number, value in enumerate(given_values):
        mixing.arrive(*arrival(value))
        partial.arrive(*arrival(value, container=number))
        partial.aggregate(0.0)
        git.arrive(*arrival(value, slot=number % 3))
        for model in (mixing.model, partial.model, git.model, *git.branches):
            assert least - 1e-4 <= model[0] <= greatest + 1e-4


def through_a_frame(method):
    """What a snapshot keeps of a method, as a resumed process gets it."""
    return snapshots.unpack(snapshots.pack(method.state_dict(), "method"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(vector(0)),
        lambda: FedAsync(vector(0)),
        lambda: FedBuff(vector(0), buffer_size=3),
        lambda: FedSA(vector(0), 100, 4, num_arrivals=3),
        lambda: Pisces(vector(0)),
        lambda: GitFL([vector(0)] * 2),
    ],
)
def test_a_snapshot_gives_the_same_future(make):
    first, second = make(), make()
    first.arrive(*arrival(3, container=1))
    second.load_state_dict(through_a_frame(first))
    for server in (first, second):
        server.arrive(*arrival(5, container=2, slot=1))
        server.arrive(*arrival(7, container=3))
        if server.due(9.0, []):
            server.aggregate(9.0)
    np.testing.assert_array_equal(first.model, second.model)
    assert (first.model != 0).all()
    assert first.num_aggregations == second.num_aggregations > 0


# --- FedAvg, flat ---


def test_a_round_is_over_when_all_answered_or_were_lost():
    server = FedAvg(vector(0))
    assert server.is_open(0, False)
    assert not server.is_open(2, False)
    server.arrive(*arrival(1, container=1, num_samples=30))
    assert not server.due(1.0, [40.0])
    server.arrive(*arrival(4, container=2, num_samples=10))
    assert server.due(1.0, [])
    server.aggregate(1.0)
    np.testing.assert_allclose(server.model, 1.75)
    assert not server.due(2.0, [])


def test_models_are_added_in_the_order_of_containers_not_of_arrival():
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        server = FedAvg(vector(0))
        for container in order:
            server.arrive(*arrival((1e20, -1e20, 3.0)[container], container=container, num_samples=1))
        server.aggregate(0.0)
        np.testing.assert_allclose(server.model, 1.0)


def test_samples_are_different_and_from_the_idle():
    idle = [2, 3, 5, 7, 11]
    drawn = [sample(idle, 3, np.random.default_rng(seed)) for seed in range(30)]
    assert all(len(set(d)) == 3 and set(d) <= set(idle) and d == sorted(d) for d in drawn)
    assert {c for d in drawn for c in d} == set(idle)
    assert sample(idle, 9, np.random.default_rng(0)) == idle


# --- GitFL's pull ---

vectors = arrays(np.float32, 4, elements=st.floats(-1e3, 1e3, width=32))


def test_pull_weight_is_limited():
    assert [pull_weight(gap) for gap in (-20, -8, 0, 7.5, 90)] == [2, 2, 10, 17.5, 50]
    np.testing.assert_allclose(pull(vector(1), vector(0), 0), 10 / 11, rtol=1e-6)


@pytest.mark.slow
@given(vectors, vectors, st.floats(-100, 100))
def test_pull_stays_between_its_inputs(branch, master, gap):
    made = pull(branch, master, gap)
    assert (made >= np.minimum(branch, master)).all()
    assert (made <= np.maximum(branch, master)).all()


# --- the server ---


def flat_server(algorithm, **values) -> FlatServer:
    config = NebulaFLConfig(algorithm=algorithm, num_centers=2, num_containers=6, active_per_center=2, **values)
    seconds = [float(10 * (container + 1)) for container in range(6)]
    return FlatServer(config, vector(0), [10] * 6, seconds, np.random.default_rng(0))


def answer(made: FlatServer, task: int, now: float):
    return made.arrived(TrainingResult(task, "oregon", 10, 1.0, 5.0, vector(task)), now)


@pytest.mark.parametrize("algorithm", ["fedasync", "fedbuff", "pisces", "gitfl"])
def test_a_free_place_is_given_to_another_container_at_once(algorithm):
    made = flat_server(algorithm)
    first = made.advance(0.0).begun
    assert len({order.container for order in first}) == len(first) == 4
    again = answer(made, 2, 5.0).begun
    assert len(again) == 1
    assert len(made.tasks) == 4
    assert answer(made, 2, 6.0).begun == ()


def test_fedavg_waits_for_its_round_and_goes_on_without_the_lost():
    made = flat_server("fedavg")
    tasks = [task.number for task in made.advance(0.0).begun]
    for task in tasks[:3]:
        assert answer(made, task, 5.0).begun == ()
    lost = made.tasks[tasks[3]].container
    made.container_lost(lost)
    after = made.lost(tasks[3], 6.0).begun
    assert made.method.num_aggregations == 1
    assert len(after) == 4
    assert lost not in {order.container for order in after}
    assert made.container_back(lost, 7.0).begun == ()


def test_fedsa_gives_places_after_an_aggregation_and_recalls_the_outdated():
    made = flat_server("fedsa", buffer_size=1, staleness_bound=1)
    tasks = [task.number for task in made.advance(0.0).begun]
    slow = tasks[0]
    orders = answer(made, tasks[1], 5.0)
    assert (len(orders.begun), orders.withdrawn) == (1, ())
    recalled = answer(made, tasks[2], 6.0)
    assert {task.number for task in recalled.withdrawn} == {slow, tasks[3]}
    assert {task.container for task in recalled.withdrawn} <= {task.container for task in recalled.begun}
    assert len(made.tasks) == 4


def test_fedsa_does_not_wait_for_arrivals_that_can_no_longer_come():
    made = flat_server("fedsa", buffer_size=4)
    tasks = [task.number for task in made.advance(0.0).begun]
    made.container_lost(made.tasks[tasks[0]].container)
    assert made.lost(tasks[0], 1.0).begun == ()
    for task in tasks[1:3]:
        assert answer(made, task, 5.0).begun == ()
    assert len(answer(made, tasks[3], 6.0).begun) == 4

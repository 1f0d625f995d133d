import pytest

from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.protocols.nebulafl.config import NebulaFLConfig, Rules


def test_defaults_are_the_papers():
    made = build(NebulaFLConfig)
    assert (made.local_epochs, made.batch_size, made.learning_rate, made.momentum) == (5, 50, 0.01, 0.9)
    assert not made.paper_literal


def times(config):
    found = config.times
    return found.rotation_interval, found.duration, found.evaluation_interval


@pytest.mark.parametrize(
    ("words", "seconds", "expected"),
    [
        ({}, 0.5, (5.0, 100.0, 5.0)),  # ten trainings an interval, twenty intervals
        ({}, 1e9, (1000.0, 20000.0, 1000.0)),  # at most
        ({"num_rounds": "40"}, 0.5, (5.0, 200.0, 5.0)),
        ({"num_rounds": "40", "algorithm": "fedavg"}, 0.5, (5.0, 100.0, 5.0)),  # its rounds are no intervals
        ({"evaluation_interval": "50"}, 0.5, (5.0, 100.0, 50.0)),
        ({"duration": "500"}, 0.0, (25.0, 500.0, 25.0)),
        ({"duration": "20000"}, 0.0, (1000.0, 20000.0, 1000.0)),
        ({"rotation_interval": "10"}, 0.0, (10.0, 200.0, 10.0)),
        ({"rotation_interval": "10", "duration": "35", "evaluation_interval": "7"}, 0.0, (10.0, 35.0, 7.0)),
    ],
)
def test_times_that_are_auto_follow_trainings_or_each_other(words, seconds, expected):
    config = build(NebulaFLConfig, words)
    timed = config.timed(seconds)
    assert times(timed) == expected
    assert timed.timed(seconds) == timed
    assert config.follows_trainings == (seconds > 0)
    # how often an endpoint may be called is told before a training was tried
    assert timed.num_rotations <= config.num_rotations
    assert timed.num_measurements <= config.num_measurements
    assert timed.num_changes <= config.num_changes


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_trainings_without_a_time_are_refused(seconds):
    with pytest.raises(BadInput, match="rotation_interval: auto is not allowed with trainings of"):
        build(NebulaFLConfig).timed(seconds)


def test_containers_are_dealt_evenly():
    assert build(NebulaFLConfig, {"num_containers": "42", "num_centers": "4"}).center_sizes == (11, 11, 10, 10)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"active_per_center": "11"}, "active_per_center: 11 is more than the 10 containers of a center"),
        ({"num_containers": "3", "active_per_center": "1"}, "num_containers: 3 is fewer than num_centers=4"),
        ({"rotation_interval": "0"}, "rotation_interval: '0' is not allowed"),
        ({"rotation_interval": "-5"}, "rotation_interval: '-5' is not allowed"),
        ({"rotation_interval": "inf"}, "rotation_interval: 'inf' is not allowed"),
        ({"dirichlet": "0"}, "dirichlet: '0' is not allowed"),
        ({"dirichlet": "-1"}, "dirichlet: '-1' is not allowed"),
        ({"algorithm": "fedprox"}, "algorithm: 'fedprox' is not allowed"),
        ({"resource_policy": "best"}, "resource_policy: 'best' is not allowed"),
        ({"ablation": "random", "algorithm": "fedsa"}, "ablation: 'random' is not allowed with algorithm=fedsa"),
        ({"ablation": "random-resource", "resource_policy": "fastest"}, "resource_policy: 'fastest' is not allowed"),
        ({"centers": "3"}, "centers: unknown key"),
    ],
)
def test_bad_input_is_one_line(words, message):
    with pytest.raises(BadInput) as caught:
        build(NebulaFLConfig, words)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_dirichlet():
    assert build(NebulaFLConfig, {"dirichlet": "none"}).dirichlet is None


@pytest.mark.parametrize(
    ("ablation", "changed"),
    [
        ("none", {}),
        ("random", {"random_container": True, "resource_policy": "random"}),
        ("random-resource", {"resource_policy": "random"}),
        ("random-container", {"random_container": True}),
        ("without-cost", {"use_cost": False}),
        ("without-time", {"use_time": False}),
        ("aggregation", {"rotate": False}),
    ],
)
def test_each_ablation_takes_one_thing_away(ablation, changed):
    whole = {
        "random_container": False, "resource_policy": "nebulafl", "use_cost": True, "use_time": True, "rotate": True,
    }  # fmt: skip
    assert NebulaFLConfig(ablation=ablation).rules == Rules(**(whole | changed))

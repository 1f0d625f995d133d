import pytest

from fedactors.config import build
from fedactors.errors import BadInput
from protocols.nebulafl.config import NebulaFLConfig, Rules


def test_defaults_are_the_papers():
    made = build(NebulaFLConfig)
    assert (made.local_epochs, made.batch_size, made.learning_rate, made.momentum) == (5, 50, 0.01, 0.9)
    assert not made.paper_literal


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

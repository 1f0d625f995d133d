"""Settings: what is refused, and what the special cases fix."""

import pytest

from fedactors.config import build
from fedactors.errors import BadInput
from fedactors.protocols.glasu.config import GlasuConfig


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"aggregation_layers": "1,4"}, "layers are 0 to 3"),
        ({"aggregation_layers": "1"}, "the last layer, 3"),
        ({"aggregation_layers": "3,1"}, "ascending"),
        ({"aggregation_layers": "3,3"}, "ascending"),
        ({"aggregation_layers": "1,3", "special_case": "zhou"}, "zhou fixes"),
        ({"num_local_updates": "0"}, "num_local_updates"),
        ({"batch_size": "0"}, "batch_size"),
        ({"num_clients": "0"}, "num_clients"),
        ({"backbone": "sage"}, "backbone"),
        ({"backbone": "gat", "hidden_size": "10"}, "num_heads"),
        ({"num_neighbours": "2"}, "batch_size"),
        ({"momentum": "0.9", "optimizer": "adam"}, "momentum"),
        ({"secure_aggregation": "true", "aggregation": "concatenation"}, "average"),
        ({"secure_aggregation": "true", "num_clients": "2"}, "three"),
        ({"secure_aggregation": "true", "special_case": "centralised"}, "three"),
        ({"noise_multiplier": "1.0", "max_degree": "5"}, "clip_norm"),
        ({"noise_multiplier": "1.0", "clip_norm": "1"}, "max_degree"),
        ({"noise_multiplier": "1", "clip_norm": "1", "max_degree": "5", "special_case": "standalone"}, "sends nothing"),
        ({"backbonee": "gcn"}, "backbone"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field(given, told):
    with pytest.raises(BadInput) as error:
        build(GlasuConfig, given)
    assert told in str(error.value)
    assert next(iter(given)) in str(error.value) or told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "layers"),
    [
        ({}, (1, 3)),
        ({"num_layers": "1"}, (0,)),
        ({"aggregation_layers": "3"}, (3,)),
        ({"aggregation_layers": "0,1,2,3"}, (0, 1, 2, 3)),
        ({"special_case": "zhou"}, (3,)),
        ({"special_case": "ni", "num_layers": "2"}, (0, 1)),
        ({"special_case": "simulated-centralised"}, (0, 1, 2, 3)),
        ({"special_case": "vfl", "aggregation_layers": "3"}, (3,)),
    ],
)
def test_aggregation_layers_in_force(given, layers):
    assert build(GlasuConfig, given).resolved_layers == layers


def test_networks_that_meet_in_an_aggregation():
    assert build(GlasuConfig, {"special_case": "standalone"}).num_networks == 1
    assert build(GlasuConfig, {"num_clients": "4"}).num_networks == 4


def test_the_default_step_follows_the_local_updates():
    assert build(GlasuConfig, {}).step_size == 0.01
    assert build(GlasuConfig, {"num_local_updates": "4"}).step_rule.learning_rate == 0.0025
    assert build(GlasuConfig, {"num_local_updates": "4", "learning_rate": "0.02"}).step_size == 0.02
    with pytest.raises(BadInput, match="learning_rate"):
        build(GlasuConfig, {"learning_rate": "0"})

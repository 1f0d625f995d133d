import numpy as np
import pytest

from fedactors.learning.models import ModelSpec, build_model
from fedactors.learning.network import load_vector, num_values, to_vector

SPEC = ModelSpec(name="resnet18", inputs=(1, 8, 8), outputs=2, norm="batch")


@pytest.mark.slow
def test_a_vector_round_trip_with_running_statistics():
    source, target = build_model(SPEC, 0), build_model(SPEC, 1)
    vector = to_vector(source)
    vector.flags.writeable = False
    assert len(vector) == num_values(source) > sum(p.numel() for p in source.parameters())
    load_vector(target, vector)
    assert np.array_equal(to_vector(target), vector)


def test_loading_is_in_place_and_copies():
    module = build_model(ModelSpec(name="linear", inputs=(2,), outputs=1), 0)
    parameter = next(module.parameters())
    vector = np.array([1, 2, 3], dtype=np.float32)
    load_vector(module, vector)
    vector[:] = 0
    assert parameter.tolist() == [[1.0, 2.0]]


def test_wrong_sizes_are_errors():
    module = build_model(ModelSpec(name="linear", inputs=(2,), outputs=1), 0)
    with pytest.raises(ValueError, match="3 values"):
        load_vector(module, np.zeros(4))
